//! Time as TCP sees it: an argument, never something that is asked for.

use core::time::Duration;

/// A moment, in nanoseconds after an origin that the caller chose. Only differences mean anything.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Time(u64);

impl Time {
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

    /// The moment that much later; saturates at the end of time.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long ago `earlier` was; zero if it is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The earliest of these moments.
pub(crate) fn earliest<const N: usize>(moments: [Option<Time>; N]) -> Option<Time> {
    moments.into_iter().flatten().min()
}

/// This moment has come.
pub(crate) fn is_due(moment: Option<Time>, now: Time) -> bool {
    moment.is_some_and(|moment| moment <= now)
}
