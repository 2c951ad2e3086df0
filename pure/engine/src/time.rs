//! Time as the transport sees it: an argument, never something that is asked for.

use core::time::Duration;

/// A moment, in nanoseconds after an origin that the caller chose.
///
/// Only differences mean anything. The software device uses the system's monotonic clock, the
/// simulated network a counter of its own.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Time(u64);

impl Time {
    /// A moment that was not looked up: deadlines set at it are only meant, until
    /// [`Qp::on_clock`](crate::Qp::on_clock) sets them.
    pub const UNKNOWN: Self = Self::from_nanos(u64::MAX);

    /// The origin.
    pub const ZERO: Self = Self(0);

    /// The moment `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// The moment `nanos` nanoseconds later; saturates at the end of time.
    #[must_use]
    pub const fn plus_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
}

/// How long a requester waits for an acknowledgement before it sends again. A time-out below 268 ms is doubled when it runs
/// out, twice at most, and not beyond 268 ms. A longer one does not grow.
///
/// The verbs and the connection manager carry the wait as a 5-bit exponent *e* and mean
/// 4.096 µs × 2ᵉ, so the steps are coarse: 8.192 µs, 16.384 µs, … up to 2 h 26 min. Zero means
/// "wait for ever". IBTA Vol. 1 §9.7.6.1.3; `ibv_qp_attr.timeout`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// Never send again.
    pub const FOREVER: Self = Self(0);

    /// The largest exponent that the five bits can say.
    const EXPONENT_MAX: u8 = 31;

    /// The timeout with this exponent.
    ///
    /// # Errors
    ///
    /// [`TooLong`] if `exponent` does not fit five bits.
    pub const fn from_exponent(exponent: u8) -> Result<Self, TooLong> {
        if exponent > Self::EXPONENT_MAX {
            return Err(TooLong);
        }
        Ok(Self(exponent))
    }

    /// The shortest timeout that lasts at least `wait`.
    ///
    /// # Errors
    ///
    /// [`TooLong`] if `wait` is more than 2³¹ × 4.096 µs, about 2 h 26 min.
    ///
    /// # Examples
    ///
    /// ```
    /// use adverb_engine::AckTimeout;
    /// use core::time::Duration;
    ///
    /// let timeout = AckTimeout::at_least(Duration::from_millis(60))?;
    /// assert_eq!(timeout.duration(), Some(Duration::from_nanos(67_108_864)));
    /// # Ok::<(), adverb_engine::TooLong>(())
    /// ```
    pub fn at_least(wait: Duration) -> Result<Self, TooLong> {
        (1..=Self::EXPONENT_MAX).map(Self).find(|t| t.duration() >= Some(wait)).ok_or(TooLong)
    }

    /// The five bits.
    pub const fn exponent(self) -> u8 {
        self.0
    }

    /// The wait; `None` if it has no end.
    pub const fn duration(self) -> Option<Duration> {
        match self.nanos() {
            Some(nanos) => Some(Duration::from_nanos(nanos)),
            None => None,
        }
    }

    /// The wait in nanoseconds; `None` if it has no end.
    pub(crate) const fn nanos(self) -> Option<u64> {
        if self.0 == 0 { None } else { Some(4096 << self.0) }
    }
}

/// A wait that the five bits of a timeout cannot say.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TooLong;

impl core::fmt::Display for TooLong {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("an acknowledgement timeout is at most 2^31 x 4.096 us: exponents 0 to 31")
    }
}

impl core::error::Error for TooLong {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_timeout_that_is_long_enough_is_chosen() {
        let exact = AckTimeout::at_least(Duration::from_nanos(8192)).unwrap();
        assert_eq!(exact.exponent(), 1);
        let above = AckTimeout::at_least(Duration::from_nanos(8193)).unwrap();
        assert_eq!(above.exponent(), 2);
        assert_eq!(AckTimeout::at_least(Duration::from_secs(10_000)), Err(TooLong));
    }

    #[test]
    fn exponent_zero_waits_for_ever_and_32_does_not_exist() {
        assert_eq!(AckTimeout::FOREVER.duration(), None);
        assert_eq!(AckTimeout::from_exponent(32), Err(TooLong));
        let longest = AckTimeout::from_exponent(31).unwrap();
        assert_eq!(longest.duration(), Some(Duration::from_nanos(4096 << 31)));
    }
}
