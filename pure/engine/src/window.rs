//! How many packets may be under way: grows while all goes well, halves when something is lost.
//!
//! The specification leaves this to the requester. A software receiver's buffer is a socket buffer
//! of a size we do not know, and a burst that overflows it costs a whole go-back; so the window
//! backs off as TCP's does, and recovers by one part in [`Window::GROWTH`] a window.

/// The limit on packets under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    limit: u32,
    max: u32,
    /// Acknowledged packets since the limit last grew.
    credit: u32,
}

impl Window {
    /// The window never closes below this, so that a lossy path still moves.
    const LIMIT_MIN: u32 = 8;
    /// The window never opens beyond this, so that a PSN names one packet: IBTA Vol. 1 §9.7.1 allows
    /// 2²³ packets under way, and an answer may be as far behind.
    const LIMIT_MAX: u32 = 1 << 22;
    /// Share of itself by which the window grows when a whole window was acknowledged.
    const GROWTH: u32 = 8;

    pub(crate) fn new(max: u32) -> Self {
        let max = max.clamp(Self::LIMIT_MIN, Self::LIMIT_MAX);
        Self { limit: max, max, credit: 0 }
    }

    /// Packets that may be under way.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Packets that may be emitted while this many are under way.
    pub(crate) fn room(&self, under_way: u64) -> u32 {
        u32::try_from(under_way).map_or(0, |under_way| self.limit.saturating_sub(under_way))
    }

    /// Packets after which an acknowledgement should be asked for.
    pub(crate) fn ack_every(&self) -> u32 {
        (self.limit / 4).max(1)
    }

    /// Response packets that one READ request asks for, at most: a constant, see `requester.rs`.
    pub(crate) fn read_packets_max(&self) -> u32 {
        self.max / 4
    }

    pub(crate) fn on_progress(&mut self, packets: u64) {
        self.credit = self.credit.saturating_add(u32::try_from(packets).unwrap_or(u32::MAX));
        if self.limit < self.max && self.credit >= self.limit {
            self.credit = 0;
            self.limit = (self.limit + (self.limit / Self::GROWTH).max(1)).min(self.max);
        }
    }

    pub(crate) fn on_loss(&mut self) {
        self.credit = 0;
        self.limit = (self.limit / 2).max(Self::LIMIT_MIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_halves_the_window_and_whole_windows_bring_it_back() {
        let mut window = Window::new(64);
        window.on_loss();
        assert_eq!(window.limit(), 32);
        window.on_progress(31);
        assert_eq!(window.limit(), 32);
        window.on_progress(1);
        assert_eq!(window.limit(), 36);
        for _ in 0..10 {
            window.on_progress(64);
        }
        assert_eq!(window.limit(), 64);
    }

    #[test]
    fn the_window_never_closes() {
        let mut window = Window::new(1);
        for _ in 0..10 {
            window.on_loss();
        }
        assert_eq!(window.limit(), 8);
        assert!(window.ack_every() > 0);
    }
}
