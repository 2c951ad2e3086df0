//! Connection data that the two sides tell each other: as values, bytes, text and, with the `serde` feature, in
//! any format that serde knows (as text).

use adverb_device::{Gid, Psn, Qpn, Rkey};
use std::fmt;
use std::str::FromStr;

/// Address of a queue pair: what its peer has to know to connect to it.
///
/// ```
/// # use adverb_verbs::RemoteQp;
/// # fn with(remote: RemoteQp) -> Result<(), Box<dyn std::error::Error>> {
/// assert_eq!(remote.to_string().parse::<RemoteQp>()?, remote);
/// assert_eq!(RemoteQp::from_bytes(remote.to_bytes()), remote);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct RemoteQp {
    /// Address of its port.
    pub gid: Gid,
    /// Its number.
    pub qpn: Qpn,
    /// Sequence number of the first packet it will send.
    pub psn: Psn,
}

impl RemoteQp {
    /// Length of [`RemoteQp::to_bytes`].
    pub const BYTES: usize = 22;

    /// GID, number (3 bytes) and sequence number (3 bytes), each in network byte order.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let [_, q0, q1, q2] = self.qpn.get().to_be_bytes();
        let [_, p0, p1, p2] = self.psn.get().to_be_bytes();
        let mut bytes = [0; Self::BYTES];
        let all = self.gid.0.into_iter().chain([q0, q1, q2, p0, p1, p2]);
        bytes.iter_mut().zip(all).for_each(|(place, byte)| *place = byte);
        bytes
    }

    /// What [`RemoteQp::to_bytes`] has made bytes of. Any bytes are an address; not every address is reached.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let (gid, [q0, q1, q2, p0, p1, p2]) = split(bytes);
        Self {
            gid: Gid(gid),
            qpn: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
            psn: Psn::new(u32::from_be_bytes([0, p0, p1, p2])),
        }
    }
}

fn split(bytes: [u8; RemoteQp::BYTES]) -> ([u8; 16], [u8; 6]) {
    let mut rest = bytes.into_iter();
    let gid = std::array::from_fn(|_| rest.next().unwrap_or(0));
    (gid, std::array::from_fn(|_| rest.next().unwrap_or(0)))
}

/// `<gid>/<number>/<sequence number>`, the numbers in hexadecimal: what [`RemoteQp::from_str`] reads.
impl fmt::Display for RemoteQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:#x}/{:#x}", self.gid, self.qpn.get(), self.psn.get())
    }
}

impl FromStr for RemoteQp {
    type Err = ParseRemoteError;

    fn from_str(text: &str) -> Result<Self, ParseRemoteError> {
        let error = || ParseRemoteError { text: text.to_owned(), expected: RemoteQp::EXPECTED };
        let mut parts = text.trim().split('/');
        let (Some(gid), Some(qpn), Some(psn), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(error());
        };
        let small = |text| number(text).filter(|number| *number < 1 << 24);
        let small = |text| small(text).and_then(|number| u32::try_from(number).ok());
        let gid = gid.parse().map_err(|_| error())?;
        let qpn = small(qpn).ok_or_else(error)?;
        let psn = small(psn).ok_or_else(error)?;
        Ok(Self { gid, qpn: Qpn::new(qpn), psn: Psn::new(psn) })
    }
}

impl RemoteQp {
    const EXPECTED: &'static str = "<gid>/<queue pair number>/<sequence number>, the numbers below 2^24, as fe80::1/0x11/0xabc";
}

/// Memory of a peer: what the peer said of it.
///
/// [`Mr`](crate::Mr) and [`Work`](crate::Work) have examples.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct RemoteSlice {
    /// Address of the first byte, there.
    pub addr: u64,
    /// Key of the region, there.
    pub rkey: Rkey,
}

impl RemoteSlice {
    /// Length of [`RemoteSlice::to_bytes`].
    pub const BYTES: usize = 12;

    /// The memory `bytes` further on.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self { addr: self.addr.wrapping_add(bytes), rkey: self.rkey }
    }

    /// Address and key, each in network byte order.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let all = self.addr.to_be_bytes().into_iter().chain(self.rkey.0.to_be_bytes());
        bytes.iter_mut().zip(all).for_each(|(place, byte)| *place = byte);
        bytes
    }

    /// What [`RemoteSlice::to_bytes`] has made bytes of.
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3] = bytes;
        Self {
            addr: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            rkey: Rkey(u32::from_be_bytes([k0, k1, k2, k3])),
        }
    }

    const EXPECTED: &'static str = "<address>/<key>, as 0x7f0000001000/0x101";
}

/// `<address>/<key>`, both in hexadecimal: what [`RemoteSlice::from_str`] reads.
impl fmt::Display for RemoteSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}/{:#x}", self.addr, self.rkey.0)
    }
}

impl FromStr for RemoteSlice {
    type Err = ParseRemoteError;

    fn from_str(text: &str) -> Result<Self, ParseRemoteError> {
        let parts = text.trim().split_once('/');
        let values = parts.and_then(|(addr, key)| {
            Some(Self { addr: number(addr)?, rkey: Rkey(u32::try_from(number(key)?).ok()?) })
        });
        values.ok_or_else(|| ParseRemoteError { text: text.to_owned(), expected: Self::EXPECTED })
    }
}

/// A number in hexadecimal, after `0x`, or in decimal.
fn number(text: &str) -> Option<u64> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok().filter(|_| digits(hex)),
        None => text.parse().ok().filter(|_| digits(text)),
    }
}

/// A text is no address of a queue pair, or of memory.
#[derive(Clone, Eq, PartialEq)]
pub struct ParseRemoteError {
    text: String,
    expected: &'static str,
}

impl fmt::Display for ParseRemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not of the form {}", self.text, self.expected)
    }
}

impl std::error::Error for ParseRemoteError {}

#[cfg(feature = "serde")]
mod serde {
    use super::{RemoteQp, RemoteSlice};
    use ::serde::de::{Deserialize, Deserializer, Error};
    use ::serde::ser::{Serialize, Serializer};
    use std::borrow::Cow;

    macro_rules! as_text {
        ($($type:ty),*) => {$(
            impl Serialize for $type {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.collect_str(self)
                }
            }

            impl<'de> Deserialize<'de> for $type {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    Cow::<str>::deserialize(deserializer)?.parse().map_err(D::Error::custom)
                }
            }
        )*};
    }

    as_text!(RemoteQp, RemoteSlice);
}

adverb_device::debug_as_display!(ParseRemoteError);

#[cfg(test)]
mod tests {
    use super::*;

    fn remote() -> RemoteQp {
        let (qpn, psn) = (Qpn::new(0x00ab_cdef), Psn::new(0x0012_3456));
        RemoteQp { gid: Gid::from_v4([10, 0, 0, 1]), qpn, psn }
    }

    const MEMORY: RemoteSlice = RemoteSlice { addr: 0x7fff_1234_5678_9abc, rkey: Rkey(0x1_0203) };

    #[test]
    fn what_is_told_as_bytes_or_text_is_what_was_meant() {
        assert_eq!(RemoteQp::from_bytes(remote().to_bytes()), remote());
        assert_eq!(remote().to_string().parse(), Ok(remote()));
        assert_eq!(RemoteSlice::from_bytes(MEMORY.to_bytes()), MEMORY);
        assert_eq!(MEMORY.to_string().parse(), Ok(MEMORY));
        assert_eq!(" ::ffff:10.0.0.1/11259375/0x123456\n".parse(), Ok(remote()));
        let bytes = remote().to_bytes();
        assert_eq!(bytes[10..], [0xff, 0xff, 10, 0, 0, 1, 0xab, 0xcd, 0xef, 0x12, 0x34, 0x56]);
    }

    #[test]
    fn any_other_text_is_refused_with_what_was_expected() {
        let queue_pairs = [
            "",
            "/",
            "//",
            "::1/1",
            "::1/1/2/3",
            "x/1/2",
            "::1/0x1000000/2",
            "::1/1/16777216",
            "::1/-1/2",
            "::1/+1/2",
            "::1/0x/2",
            "::1/1/",
            "::1/ 1/2",
            "10.0.0.1.2/1/2",
        ];
        for text in queue_pairs {
            let error = text.parse::<RemoteQp>().expect_err(text).to_string();
            assert!(error.contains("<gid>/<queue pair number>"), "{error}");
        }
        for text in
            ["", "/", "1", "1/", "0x1/0x100000000", "-1/1", "1/2/3", "0x1ffffffffffffffff/1"]
        {
            assert!(text.parse::<RemoteSlice>().is_err(), "{text}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_has_the_text() {
        let json = serde_json::to_string(&(remote(), MEMORY)).unwrap();
        assert!(json.contains("/0xabcdef/0x123456\"") && json.contains("/0x10203\""), "{json}");
        assert_eq!(serde_json::from_str(&json).ok(), Some((remote(), MEMORY)));
        assert!(serde_json::from_str::<RemoteQp>("\"::1\"").is_err());
    }
}
