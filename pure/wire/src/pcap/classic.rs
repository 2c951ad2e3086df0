//! The classic capture format, read.
//!
//! ```text
//!     file:   magic | version | zone | precision | snapshot length | link type     24 bytes
//!     frame:  seconds | micro- or nanoseconds | length here | length on the wire   16 bytes
//!             and the bytes
//! ```
//!
//! All numbers are in the byte order of the machine that wrote the file; the magic tells which,
//! and whether time is in micro- or nanoseconds.

use core::fmt;

/// Reads the frames of a classic capture, one after the other.
///
/// Nothing follows an error: the place of the next frame is not known then.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    link: u32,
    big_endian: bool,
    /// Nanoseconds in the unit of the file.
    unit_ns: u64,
}

/// One captured frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Frame<'a> {
    /// When, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The link type, which says what the bytes start with.
    pub link: u32,
    /// The frame, or as much of it as was kept.
    pub bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts to read `file`.
    ///
    /// # Errors
    ///
    /// [`Error::Magic`] if it is in another format, [`Error::Truncated`] if even the file header
    /// is not all there.
    pub fn new(file: &'a [u8]) -> Result<Self, Error> {
        let (header, rest) = file.split_first_chunk::<24>().ok_or(Error::Truncated)?;
        let [m0, m1, m2, m3, _version @ .., l0, l1, l2, l3] = *header;
        let (big_endian, unit_ns) = match [m0, m1, m2, m3] {
            [0xa1, 0xb2, 0xc3, 0xd4] => (true, 1000),
            [0xd4, 0xc3, 0xb2, 0xa1] => (false, 1000),
            [0xa1, 0xb2, 0x3c, 0x4d] => (true, 1),
            [0x4d, 0x3c, 0xb2, 0xa1] => (false, 1),
            _ => return Err(Error::Magic),
        };
        let mut reader = Self { rest, link: 0, big_endian, unit_ns };
        reader.link = reader.number([l0, l1, l2, l3]);
        Ok(reader)
    }

    fn number(&self, bytes: [u8; 4]) -> u32 {
        if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }

    fn frame(&mut self) -> Result<Frame<'a>, Error> {
        let (header, rest) = self.rest.split_first_chunk::<16>().ok_or(Error::Truncated)?;
        let [s0, s1, s2, s3, f0, f1, f2, f3, l0, l1, l2, l3, _original @ ..] = *header;
        let seconds = u64::from(self.number([s0, s1, s2, s3]));
        let fraction = u64::from(self.number([f0, f1, f2, f3]));
        let len = self.number([l0, l1, l2, l3]);
        let len = usize::try_from(len).map_err(|_| Error::Truncated)?;
        let (bytes, rest) = rest.split_at_checked(len).ok_or(Error::Truncated)?;
        self.rest = rest;
        let time_ns = seconds * 1_000_000_000 + fraction * self.unit_ns;
        Ok(Frame { time_ns, link: self.link, bytes })
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Frame<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let frame = self.frame();
        if frame.is_err() {
            self.rest = &[];
        }
        Some(frame)
    }
}

impl<'a> Frame<'a> {
    /// The IP packet in the frame; `None` if the link type is unknown or the frame carries
    /// something else.
    pub fn ip(&self) -> Option<&'a [u8]> {
        match self.link {
            RAW => Some(self.bytes),
            ETHERNET => {
                let (header, packet) = self.bytes.split_first_chunk::<14>()?;
                let [_addresses @ .., t0, t1] = *header;
                matches!([t0, t1], [0x08, 0x00] | [0x86, 0xdd]).then_some(packet)
            }
            _ => None,
        }
    }
}

/// Error of parsing a capture.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Error {
    /// The file is in another format.
    Magic,
    /// The file ends within a header or a frame.
    Truncated,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Magic => "the file is not a classic pcap file",
            Self::Truncated => "the file ends within a header or a frame",
        })
    }
}

impl core::error::Error for Error {}

const ETHERNET: u32 = 1;
const RAW: u32 = 101;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// A file with one frame of three bytes, taken at 2.000000005 s.
    fn file(magic: [u8; 4], number: fn(u32) -> [u8; 4]) -> Vec<u8> {
        let fields = [2, 4, 0, 0, RAW, 2, 5, 3, 60].map(number);
        let numbers = fields.as_flattened();
        // Version, zone, precision, snapshot length stand in for one another: they are not read.
        let mut file = magic.to_vec();
        file.extend_from_slice(numbers);
        file.extend_from_slice(&[7, 8, 9]);
        file
    }

    #[test]
    fn both_byte_orders_and_both_units_are_read() {
        let files = [
            (file([0xa1, 0xb2, 0x3c, 0x4d], u32::to_be_bytes), 5),
            (file([0x4d, 0x3c, 0xb2, 0xa1], u32::to_le_bytes), 5),
            (file([0xa1, 0xb2, 0xc3, 0xd4], u32::to_be_bytes), 5000),
            (file([0xd4, 0xc3, 0xb2, 0xa1], u32::to_le_bytes), 5000),
        ];
        for (file, fraction) in files {
            let mut reader = Reader::new(&file).unwrap();
            let expected =
                Frame { time_ns: 2_000_000_000 + fraction, link: RAW, bytes: &[7, 8, 9] };
            assert_eq!(reader.next(), Some(Ok(expected)));
            assert_eq!(reader.next(), None);
        }
    }

    #[test]
    fn a_cut_file_gives_one_error_and_ends() {
        let file = file([0xa1, 0xb2, 0x3c, 0x4d], u32::to_be_bytes);
        for len in 0..24 {
            assert_eq!(Reader::new(&file[..len]).err(), Some(Error::Truncated));
        }
        for len in 25..file.len() {
            let mut reader = Reader::new(&file[..len]).unwrap();
            assert_eq!(reader.next(), Some(Err(Error::Truncated)));
            assert_eq!(reader.next(), None);
        }
        assert_eq!(Reader::new(&[0; 24]).err(), Some(Error::Magic));
    }

    #[test]
    fn only_ip_is_taken_out_of_ethernet() {
        let mut bytes = [0; 16];
        let ip = |bytes: &[u8; 16]| Frame { time_ns: 0, link: ETHERNET, bytes }.ip().is_some();
        assert!(!ip(&bytes));
        [bytes[12], bytes[13]] = [0x08, 0x00];
        assert!(ip(&bytes));
        [bytes[12], bytes[13]] = [0x86, 0xdd];
        assert!(ip(&bytes));
        assert_eq!(Frame { time_ns: 0, link: 0, bytes: &bytes }.ip(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(mut file: Vec<u8>, magic in 0..4_usize) {
            let magics = [[0xa1, 0xb2, 0xc3, 0xd4], [0xd4, 0xc3, 0xb2, 0xa1]];
            if let (Some(head), Some(magic)) = (file.first_chunk_mut(), magics.get(magic)) {
                *head = *magic;
            }
            if let Ok(reader) = Reader::new(&file) {
                prop_assert!(reader.count() <= file.len() / 16 + 1);
            }
        }
    }
}
