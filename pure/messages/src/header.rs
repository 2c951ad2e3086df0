//! What stands before each message of a messenger, as values and as bytes.
//!
//! ```text
//!  byte  0      1        4             8           12
//!       +------+--------+-------------+-----------+--------+----------
//!       | kind | 0 0 0  | granted     | taken     | rkey   | payload …
//!       +------+--------+-------------+-----------+--------+----------
//! ```
//!
//! All numbers are big-endian. `granted` and `taken` are counts since the beginning, modulo 2³², so
//! that any message brings what one that was left out would have brought. An offer's payload is the
//! address and the length of what is offered, 8 bytes each. Parsing forgives nothing.

/// Something that one messenger says to another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// Messages that the other side may have sent in all, less those it could from the start.
    pub granted: u32,
    /// Offers of the other side's that were read in all.
    pub taken: u32,
}

/// What it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A message; its bytes follow.
    Data,
    /// Nothing but the counts.
    Counts,
    /// A message that the other side is to READ.
    Offer {
        /// Where it is in the sender's memory.
        addr: u64,
        /// Its bytes.
        len: u64,
        /// The key of that memory.
        rkey: u32,
    },
}

/// Bytes before a message.
pub const HEADER_BYTES: usize = 16;
/// Bytes of an offer.
pub const OFFER_BYTES: usize = HEADER_BYTES + 16;

const DATA: u8 = 1;
const COUNTS: u8 = 2;
const OFFER: u8 = 3;

impl Header {
    /// Reads what stands at the start of a message of `len` bytes, of which `start` are the first; `None` if no messenger
    /// says that.
    pub fn parse(start: &[u8; OFFER_BYTES], len: usize) -> Option<Self> {
        let (header, body) = start.split_first_chunk::<HEADER_BYTES>()?;
        let [kind, z0, z1, z2, g0, g1, g2, g3, t0, t1, t2, t3, r0, r1, r2, r3] = *header;
        if len < HEADER_BYTES || [z0, z1, z2] != [0; 3] {
            return None;
        }
        let rkey = u32::from_be_bytes([r0, r1, r2, r3]);
        let kind = match (kind, len) {
            (DATA, _) if rkey == 0 => Kind::Data,
            (COUNTS, HEADER_BYTES) if rkey == 0 => Kind::Counts,
            (OFFER, OFFER_BYTES) => {
                let (addr, rest) = body.split_first_chunk::<8>()?;
                let (len, _) = rest.split_first_chunk::<8>()?;
                Kind::Offer { addr: u64::from_be_bytes(*addr), len: u64::from_be_bytes(*len), rkey }
            }
            _ => return None,
        };
        Some(Self {
            kind,
            granted: u32::from_be_bytes([g0, g1, g2, g3]),
            taken: u32::from_be_bytes([t0, t1, t2, t3]),
        })
    }

    /// The header as bytes, and how many of them there are.
    pub fn emit(self) -> ([u8; OFFER_BYTES], usize) {
        let (kind, addr, len, rkey, bytes) = match self.kind {
            Kind::Data => (DATA, 0, 0, 0, HEADER_BYTES),
            Kind::Counts => (COUNTS, 0, 0, 0, HEADER_BYTES),
            Kind::Offer { addr, len, rkey } => (OFFER, addr, len, rkey, OFFER_BYTES),
        };
        let mut out = [0; OFFER_BYTES];
        let parts: [&[u8]; 6] = [
            &[kind, 0, 0, 0],
            &self.granted.to_be_bytes(),
            &self.taken.to_be_bytes(),
            &rkey.to_be_bytes(),
            &addr.to_be_bytes(),
            &len.to_be_bytes(),
        ];
        for (to, from) in out.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        (out, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kind() -> impl Strategy<Value = Kind> {
        let offer = any::<(u64, u64, u32)>();
        prop_oneof![
            Just(Kind::Data),
            Just(Kind::Counts),
            offer.prop_map(|(addr, len, rkey)| Kind::Offer { addr, len, rkey }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_emitted_parses_to_the_same(
            kind in kind(),
            granted in any::<u32>(),
            taken in any::<u32>(),
        ) {
            let header = Header { kind, granted, taken };
            let (bytes, len) = header.emit();
            prop_assert_eq!(Header::parse(&bytes, len), Some(header));
        }

        #[test]
        fn any_bytes_are_a_header_that_could_have_been_sent_or_none(
            bytes in any::<[u8; OFFER_BYTES]>(),
            len in 0..64_usize,
        ) {
            if let Some(header) = Header::parse(&bytes, len) {
                let (again, used) = header.emit();
                prop_assert!(used <= len);
                prop_assert_eq!(&again[..used], &bytes[..used]);
            }
        }
    }

    #[test]
    fn the_bytes_are_those_that_the_header_of_the_file_draws() {
        let kind = Kind::Offer { addr: 0x1122, len: 0x3344, rkey: 0x55 };
        let (bytes, len) = Header { kind, granted: 6, taken: 7 }.emit();
        let expected =
            b"\x03\0\0\0\0\0\0\x06\0\0\0\x07\0\0\0\x55\0\0\0\0\0\0\x11\x22\0\0\0\0\0\0\x33\x44";
        assert_eq!((&bytes, len), (expected, 32));
    }
}
