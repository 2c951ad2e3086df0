//! RNR timer: how long a responder without a posted receive asks to be left alone.

/// A receiver-not-ready timer: a code of 5 bits for 10 µs up to 655.36 ms.
///
/// The codes do not ascend with time: 1 is the shortest, 31 the second longest, 0 the longest.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// The timer whose code is the low 5 bits of `code`; the rest is ignored.
    #[inline]
    pub const fn new(code: u8) -> Self {
        Self(code & 31)
    }

    /// The code, below 32.
    #[inline]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// How long to wait at least, in nanoseconds.
    pub const fn nanos(self) -> u64 {
        let steps = match self.0 {
            0 => 1 << 16,
            1 => 1,
            even if even.is_multiple_of(2) => 1 << (even / 2),
            odd => 3 << ((odd - 3) / 2),
        };
        steps * 10_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table as the specification prints it, in hundredths of a millisecond: typed in by
    /// hand, so that the formula and the table can only agree if both are right.
    const PRINTED: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    #[test]
    fn every_code_waits_as_long_as_the_specification_says() {
        for (code, hundredths) in (0..).zip(PRINTED) {
            assert_eq!(RnrTimer::new(code).nanos(), hundredths * 10_000, "code {code}");
        }
        assert_eq!(RnrTimer::new(32), RnrTimer::new(0));
    }
}
