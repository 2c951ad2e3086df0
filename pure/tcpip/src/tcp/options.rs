//! TCP options: RFC 9293 §3.1 (maximum segment size), RFC 7323 (window scale, time stamps), RFC 2018 (SACK).
//!
//! An option is a kind, a length that counts both, and a value; kinds 0 (end) and 1 (padding) are alone. Unknown
//! options, and known ones of another length, are ignored. What follows an option that does not fit is ignored, too.

use super::seq::Seq;
use adverb_wire::Room;

/// The options of a segment that this implementation knows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Options {
    /// The longest payload that the sender of a SYN takes, in bytes.
    pub mss: Option<u16>,
    /// In a SYN: windows count units of two to the power of this many bytes; at most 14.
    pub window_scale: Option<u8>,
    /// In a SYN: selective acknowledgements are understood.
    pub sack_permitted: bool,
    /// When the segment left, and which one it answers.
    pub time_stamps: Option<TimeStamps>,
    /// What has arrived beyond the acknowledgement number.
    pub sack: SackBlocks,
}

/// The time stamps of a segment, by the clocks of both ends.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TimeStamps {
    /// When the segment left, by its sender's clock.
    pub value: u32,
    /// The value that the segment answers, by its receiver's clock.
    pub echo: u32,
}

/// Up to four ranges of sequence numbers, each from its first to the one after its last.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SackBlocks {
    blocks: [(Seq, Seq); Self::MAX],
    len: usize,
}

impl SackBlocks {
    /// The most blocks of a segment.
    pub const MAX: usize = 4;

    /// Appends a block, if there is room; says whether there was.
    pub fn push(&mut self, from: Seq, to: Seq) -> bool {
        let room = self.blocks.get_mut(self.len);
        let fits = room.is_some();
        if let Some(block) = room {
            *block = (from, to);
            self.len += 1;
        }
        fits
    }

    /// The blocks in their order.
    pub fn iter(&self) -> impl Iterator<Item = (Seq, Seq)> + Clone + '_ {
        self.blocks.iter().take(self.len).copied()
    }

    /// There are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Without the blocks after the first `len`.
    #[must_use]
    pub fn first(self, len: usize) -> Self {
        let mut first = Self::default();
        for (from, to) in self.iter().take(len) {
            first.push(from, to);
        }
        first
    }
}

impl Options {
    /// The most bytes of options.
    pub const LEN_MAX: usize = 40;

    /// Reads the bytes between the header's fixed part and the payload.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Self {
        // As nearly all segments of a connection have them.
        if let &[PADDING, PADDING, TIME_STAMPS, 10, v0, v1, v2, v3, e0, e1, e2, e3] = bytes {
            let value = u32::from_be_bytes([v0, v1, v2, v3]);
            let echo = u32::from_be_bytes([e0, e1, e2, e3]);
            return Self { time_stamps: Some(TimeStamps { value, echo }), ..Self::default() };
        }
        Self::parse_any(bytes)
    }

    fn parse_any(mut bytes: &[u8]) -> Self {
        let mut options = Self::default();
        while let Some((&kind, rest)) = bytes.split_first() {
            if kind == END {
                break;
            }
            if kind == PADDING {
                bytes = rest;
                continue;
            }
            let Some((&len, _)) = rest.split_first() else {
                break;
            };
            let Some((option, after)) = bytes.split_at_checked(usize::from(len)) else {
                break;
            };
            let Some(([_, _], value)) = option.split_first_chunk::<2>() else {
                break;
            };
            options.take(kind, value);
            bytes = after;
        }
        options
    }

    fn take(&mut self, kind: u8, value: &[u8]) {
        match (kind, value) {
            (MSS, &[m0, m1]) => self.mss = Some(u16::from_be_bytes([m0, m1])),
            (WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift.min(SHIFT_MAX)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (TIME_STAMPS, &[v0, v1, v2, v3, e0, e1, e2, e3]) => {
                let value = u32::from_be_bytes([v0, v1, v2, v3]);
                self.time_stamps =
                    Some(TimeStamps { value, echo: u32::from_be_bytes([e0, e1, e2, e3]) });
            }
            (SACK, blocks) => {
                let (blocks, rest) = blocks.as_chunks::<8>();
                if rest.is_empty() {
                    for &[f0, f1, f2, f3, t0, t1, t2, t3] in blocks {
                        let from = Seq::new(u32::from_be_bytes([f0, f1, f2, f3]));
                        self.sack.push(from, Seq::new(u32::from_be_bytes([t0, t1, t2, t3])));
                    }
                }
            }
            _ => {}
        }
    }

    /// The bytes of time stamps with their padding, if there is nothing else.
    #[inline]
    pub fn stamps_alone(&self) -> Option<[u8; 12]> {
        let Self { mss: None, window_scale: None, sack_permitted: false, time_stamps, sack } = self
        else {
            return None;
        };
        let TimeStamps { value, echo } = time_stamps.filter(|_| sack.is_empty())?;
        let ([v0, v1, v2, v3], [e0, e1, e2, e3]) = (value.to_be_bytes(), echo.to_be_bytes());
        Some([PADDING, PADDING, TIME_STAMPS, 10, v0, v1, v2, v3, e0, e1, e2, e3])
    }

    /// The options as bytes, a multiple of four of them.
    ///
    /// SACK blocks for which there is no room are left out, the last first.
    pub fn emit(&self) -> Room<{ Self::LEN_MAX }> {
        let mut room = Room::new();
        if let Some(mss) = self.mss {
            let [m0, m1] = mss.to_be_bytes();
            room.push([MSS, 4, m0, m1]);
        }
        // Padding where most hosts have it, so that values are aligned.
        match (self.sack_permitted, self.time_stamps) {
            (true, Some(_)) => room.push([SACK_PERMITTED, 2]),
            (true, None) => room.push([PADDING, PADDING, SACK_PERMITTED, 2]),
            (false, Some(_)) => room.push([PADDING, PADDING]),
            (false, None) => {}
        }
        if let Some(TimeStamps { value, echo }) = self.time_stamps {
            room.push([TIME_STAMPS, 10]);
            room.push(value.to_be_bytes());
            room.push(echo.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            room.push([PADDING, WINDOW_SCALE, 3, shift]);
        }
        let space = Self::LEN_MAX.saturating_sub(room.as_slice().len() + 4) / 8;
        let blocks = self.sack.first(space);
        if !blocks.is_empty() {
            let len = u8::try_from(2 + 8 * blocks.len).unwrap_or_default();
            room.push([PADDING, PADDING, SACK, len]);
            for (from, to) in blocks.iter() {
                room.push(from.bits().to_be_bytes());
                room.push(to.bits().to_be_bytes());
            }
        }
        room
    }
}

/// The largest window scale. RFC 7323 §2.3.
const SHIFT_MAX: u8 = 14;

const END: u8 = 0;
const PADDING: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIME_STAMPS: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_syn_are_as_most_hosts_send_them() {
        let options = Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            time_stamps: Some(TimeStamps { value: 0x0102_0304, echo: 0 }),
            ..Options::default()
        };
        let expected = [2, 4, 5, 180, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7];
        assert_eq!(options.emit().as_slice(), expected);
        assert_eq!(Options::parse(&expected), options);
    }

    #[test]
    fn time_stamps_alone_are_read_as_among_others() {
        let alone = [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
        let expected = TimeStamps { value: 0x0102_0304, echo: 0x0506_0708 };
        assert_eq!(Options::parse(&alone).time_stamps, Some(expected));
        for at in 0..alone.len() {
            for value in 0..=u8::MAX {
                let mut other = alone;
                other[at] = value;
                for len in at..=alone.len() {
                    let bytes = &other[..len];
                    assert_eq!(Options::parse(bytes), Options::parse_any(bytes), "{bytes:?}");
                }
            }
        }
    }

    #[test]
    fn three_blocks_fit_beside_time_stamps_and_four_alone() {
        let mut options = Options::default();
        for from in [1, 11, 21, 31] {
            assert!(options.sack.push(Seq::new(from), Seq::new(from + 5)));
        }
        assert!(!options.sack.push(Seq::new(41), Seq::new(42)));
        assert_eq!(Options::parse(options.emit().as_slice()), options);
        options.time_stamps = Some(TimeStamps::default());
        assert_eq!(Options::parse(options.emit().as_slice()).sack, options.sack.first(3));
    }

    #[test]
    fn what_does_not_fit_ends_the_options_and_what_is_unknown_is_skipped() {
        let known = Options { mss: Some(536), ..Options::default() };
        for bytes in [
            &[2, 4, 2, 24, 3, 3][..], // Cut.
            &[2, 4, 2, 24, 3, 0, 7],  // No length.
            &[2, 4, 2, 24, 3, 1, 7],  // Shorter than its own head.
            &[2, 4, 2, 24, 3],
            &[2, 4, 2, 24, 0, 3, 3, 7],    // After the end.
            &[254, 4, 9, 9, 2, 4, 2, 24],  // An experiment.
            &[3, 4, 9, 9, 1, 2, 4, 2, 24], // A known kind of another length.
        ] {
            assert_eq!(Options::parse(bytes), known, "{bytes:?}");
        }
        assert_eq!(Options::parse(&[3, 3, 200]).window_scale, Some(14));
    }
}
