//! CUBIC: the window as a cubic function of the time since the last loss. RFC 9438.

use core::time::Duration;

use crate::time::Time;

/// What CUBIC remembers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cubic {
    /// The window before the last loss, in bytes; lower if windows shrink from loss to loss.
    window_max: u64,
    /// The window just before the last loss.
    before: u64,
    /// The present stretch without loss, once something has been acknowledged in it.
    epoch: Option<Epoch>,
}

/// A stretch of time without loss.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Time,
    /// When the window was looked at last.
    seen: Time,
    /// Milliseconds until the window is `window_max` again: the RFC's K.
    back_ms: u64,
    /// What NewReno's window would be, in 1/1024 bytes.
    reno: u64,
}

impl Cubic {
    /// The window after `acked` bytes.
    pub(super) fn grow(
        &mut self,
        window: u64,
        acked: u64,
        segment: u64,
        rtt: Duration,
        now: Time,
    ) -> u64 {
        let window_max = self.window_max.max(window);
        let mut epoch = self.epoch.unwrap_or_else(|| Epoch {
            start: now,
            seen: now,
            back_ms: cube_root(
                (window_max - window).saturating_mul(2_500_000_000) / segment.max(1),
            ),
            reno: window * 1024,
        });
        // RFC 9438 §4.3: what NewReno with the same average would have.
        let gain = if epoch.reno / 1024 < self.before { 529 } else { 1000 };
        let gained = u128::from(segment) * u128::from(acked) * 1024 * gain;
        epoch.reno += narrow(gained / (u128::from(window.max(1)) * 1000));
        epoch.seen = now;
        self.epoch = Some(epoch);
        let ahead = now.plus(rtt).since(epoch.start);
        let target = cubic_at(window_max, epoch.back_ms, segment, ahead);
        let target = target.clamp(window, window.saturating_add(window / 2));
        let step = u128::from(target - window) * u128::from(acked) / u128::from(window.max(1));
        window.saturating_add(narrow(step)).max(epoch.reno / 1024)
    }

    /// The window has not been used since it was looked at last: that time does not count. RFC 9438 §5.8.
    pub(super) fn pause(&mut self, now: Time) {
        if let Some(epoch) = &mut self.epoch {
            epoch.start = epoch.start.plus(now.since(epoch.seen));
            epoch.seen = now;
        }
    }

    /// The threshold after a loss, if `used` bytes of the window were.
    pub(super) fn lower(&mut self, window: u64, used: u64) -> u64 {
        self.epoch = None;
        self.before = window;
        // RFC 9438 §4.7: a window that shrinks makes room for others sooner.
        self.window_max = if used < self.window_max { used / 100 * 85 } else { used };
        used / 10 * 7
    }
}

/// The RFC's W_cubic, in bytes: 0.4 segments × (seconds − K)³ about `window_max`.
fn cubic_at(window_max: u64, back_ms: u64, segment: u64, since: Duration) -> u64 {
    let since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    let distance = u128::from(since_ms.abs_diff(back_ms).min(DISTANCE_MS_MAX));
    let bytes = narrow(u128::from(segment) * distance.pow(3) * 4 / 10_000_000_000);
    if since_ms < back_ms {
        window_max.saturating_sub(bytes)
    } else {
        window_max.saturating_add(bytes)
    }
}

/// The largest number whose cube is not above `value`.
fn cube_root(value: u64) -> u64 {
    let (mut low, mut high) = (0_u64, 2_642_245);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if middle.pow(3) <= value { low = middle } else { high = middle - 1 }
    }
    low
}

fn narrow(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// Times further from K than this, 17 minutes, are as good as this.
const DISTANCE_MS_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cube_roots_are_right() {
        for root in [0, 1, 2, 99, 1000, 2_642_245] {
            let cube = root * root * root;
            assert_eq!(cube_root(cube), root);
            assert_eq!(cube_root(cube.saturating_sub(1)), root.saturating_sub(1));
        }
        assert_eq!(cube_root(u64::MAX), 2_642_245);
    }
}
