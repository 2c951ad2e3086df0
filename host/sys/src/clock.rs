//! The two clocks: one that only moves forward, and the one on the wall.
//!
//! Protocol code takes time as an argument; it is read here, once, by the driving thread.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds since an arbitrary start (`CLOCK_MONOTONIC`); never goes back.
///
/// The value is the same for all processes of one machine, and costs no system call.
#[inline]
#[must_use]
pub fn now_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Nanoseconds since 1970-01-01 00:00 UTC, for time stamps that people read.
///
/// Jumps when the clock is set: never subtract two of these.
#[must_use]
pub fn unix_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Realtime))
}

/// A clock reading as one number; a reading before the clock's origin counts as the origin.
#[inline]
fn nanoseconds(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.wrapping_mul(NS_PER_SECOND).wrapping_add(rest)
}

const NS_PER_SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn monotonic_time_never_goes_back() {
        let mut last = now_ns();
        for _ in 0..10_000 {
            let now = now_ns();
            assert!(now >= last, "{now} came after {last}");
            last = now;
        }
    }

    #[test]
    fn monotonic_time_moves() {
        let (start, limit) = (now_ns(), Instant::now() + Duration::from_secs(30));
        while now_ns() == start {
            assert!(Instant::now() < limit, "it stands still");
        }
    }

    #[test]
    fn unix_time_lies_between_two_readings_of_the_standard_library() {
        let std_ns = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let before = std_ns();
        let ours = u128::from(unix_ns());
        let after = std_ns();
        assert!((before..=after).contains(&ours), "{before} {ours} {after}");
    }
}
