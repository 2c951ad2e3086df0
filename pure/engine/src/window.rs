//! Congestion window of a reliable requester: how many packets may be in flight.
//!
//! The specification leaves this to the requester. The window opens fast, to all that the host allows, which is
//! what a receiver's socket buffer holds for sure; acknowledgements pace it, and on an idle path it costs
//! nothing but that. What makes it smaller, once in a round trip at most:
//!
//! - *delay*: round trips that take much longer than the shortest one, in the manner of Swift;
//! - *marks*: congestion notifications (CNPs) that the peer sends for packets that a switch has marked, in the
//!   manner of DCQCN: the more often they come, the more each takes;
//! - *loss*: each packet that was lost takes a few, up to half in a round trip. A network that loses one packet in
//!   hundreds, and not by a queue that is full, keeps nearly all of its goodput; a queue that overflows loses many at
//!   once. Where it is not known how many were lost, it is halved.
//!
//! It grows by a fixed number of packets in a round trip that filled it: as much for a large window as for a small
//! one, so that queue pairs that share a queue come to equal shares. Where the shortest round trip is long,
//! it may exceed what the host allows, for then most packets are on the way and not in a buffer.
//!
//! Read docs/design.md, "Loss and congestion", before changing this file.

/// The limit on packets under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    limit: u32,
    max: u32,
    /// Acknowledged packets since the last round trip ended.
    credit: u32,
    /// How often the peer tells of marks: from 0 to [`Window::ALWAYS`].
    marked: u32,
    /// Reactions are over when everything before this sequence number is acknowledged.
    recovered_at: u64,
    /// Half of what the window was when the last round trip ended: losses take no more until the next one has.
    least: u32,
    /// There was more to emit than the window allowed.
    full: bool,
    /// There was no sign of congestion so far.
    opening: bool,
    /// The shortest round trip is long.
    long: bool,
}

impl Window {
    /// The window never closes below this, so that a lossy path still moves.
    const LIMIT_MIN: u32 = 2;
    /// What the host allows is never less than this, so that a READ can be asked for in pieces.
    const MAX_MIN: u32 = 8;
    /// A window is at least so many pieces of READs.
    const READ_PIECES: u32 = 4;
    /// A READ request need not ask for less than this, so that few of them can be lost.
    const READ_MIN: u32 = 8;
    /// The window never opens beyond this, so that a PSN names one packet: IBTA Vol. 1 §9.7.1 allows
    /// 2²³ packets under way, and an answer may be as far behind.
    const LIMIT_MAX: u32 = 1 << 20;
    /// At least this share of what is not done with counts as under way, whatever has come early.
    const BEGUN_SHARE: u32 = 4;
    /// The window of a path of which nothing is known: many that begin at once must not flood it.
    const LIMIT_FIRST: u32 = 16;
    /// Packets by which the window grows in a round trip, at least, and as a share of what the host allows.
    const STEP_MIN: u32 = 4;
    const STEP_SHARE: u32 = 64;
    /// Peers that tell of marks all the time.
    const ALWAYS: u32 = 1024;
    /// Packets that each lost one takes from the window.
    const LOST_SHARE: u32 = 4;
    /// Share of the way from the old estimate of marks to a new observation.
    const MARK_GAIN: u32 = 16;
    /// A round trip is long from here on, in nanoseconds: more than a software peer's own delays.
    const LONG_NS: u64 = 1_000_000;
    /// Share of the window that is enough for a train.
    const TRAIN_SHARE: u32 = 8;
    /// Time that packets may wait, in nanoseconds, besides a quarter of the shortest round trip: a software peer on a
    /// busy machine takes tens of milliseconds to be scheduled, which is no queue, and a small window makes it worse.
    const DELAY_NS: u64 = 200_000_000;
    /// Delay closes the window no further than this, for the same reason.
    const DELAY_LIMIT_MIN: u32 = 64;

    /// The window of a path that allows so many packets, and loses none.
    pub(crate) fn open(max: u32) -> Self {
        let max = max.clamp(Self::MAX_MIN, Self::LIMIT_MAX);
        Self {
            limit: max,
            max,
            credit: 0,
            marked: Self::ALWAYS,
            recovered_at: 0,
            least: max / 2,
            full: false,
            opening: true,
            long: false,
        }
    }

    /// The window of a path that allows so many packets, and may lose some. It begins with `first`, if that is known.
    pub(crate) fn opening(max: u32, first: Option<u32>) -> Self {
        let window = Self::open(max);
        let first = first.unwrap_or(0).max(Self::LIMIT_FIRST);
        let limit = window.max.min(first);
        Self { limit, least: limit / 2, ..window }
    }

    /// Packets that may be under way, if that is more than a guess.
    pub(crate) fn known_limit(&self) -> Option<u32> {
        Some(self.limit).filter(|limit| !self.opening || *limit > Self::LIMIT_FIRST)
    }

    /// Packets that may be emitted while this many are under way.
    pub(crate) fn room(&self, under_way: u64) -> u32 {
        u32::try_from(under_way).map_or(0, |under_way| self.limit.saturating_sub(under_way))
    }

    /// A piece of a READ of so many packets may be asked for again, while `allowed` may be: by itself whatever its length
    /// is, for the window was larger then.
    pub(crate) fn fits_again(&self, packets: u32, allowed: u32) -> bool {
        packets <= self.read_room(allowed) || allowed == self.limit
    }

    /// Packets that may be asked for with one more READ request while `allowed` may be emitted: a window that losses have
    /// closed is exceeded a little, for each request is a packet that may be lost, too, and waited for.
    fn read_room(&self, allowed: u32) -> u32 {
        allowed.max(Self::READ_MIN.min(self.max.saturating_sub(self.limit)))
    }

    /// The same while this many are not done with, of which so many have come though others before them have not.
    #[inline]
    pub(crate) fn room_behind(&self, begun: u64, ahead: u64) -> u32 {
        self.room(begun.saturating_sub(ahead).max(begun / u64::from(Self::BEGUN_SHARE)))
    }

    /// So many packets are enough for a train.
    pub(crate) fn fits_train(&self, packets: u32) -> bool {
        packets >= (self.limit / Self::TRAIN_SHARE).max(1)
    }

    /// Packets after which an acknowledgement should be asked for.
    pub(crate) fn ack_every(&self) -> u32 {
        (self.limit / 4).max(1)
    }

    /// Response packets that one READ request asks for, at most.
    pub(crate) fn read_packets_max(&self) -> u32 {
        self.max / Self::READ_PIECES
    }

    /// Response packets that a READ request asks for now, of `left` that are to be asked for, while `allowed` may be
    /// asked for; 0: it waits for more room, so that what is asked for at once is not less and less.
    pub(crate) fn read_packets(&self, left: u32, allowed: u32) -> u32 {
        let whole = left.min(self.read_packets_max());
        match whole <= allowed || allowed >= self.limit / Self::READ_PIECES {
            true => whole.min(self.read_room(allowed)),
            false => 0,
        }
    }

    /// Something waits to be emitted, and the window is full.
    pub(crate) fn on_full(&mut self) {
        self.full = true;
    }

    #[inline]
    pub(crate) fn on_progress(&mut self, packets: u64) {
        self.credit = self.credit.saturating_add(u32::try_from(packets).unwrap_or(u32::MAX));
        if self.credit >= self.limit {
            self.on_round();
        }
    }

    fn step(&self) -> u32 {
        (self.max / Self::STEP_SHARE).max(Self::STEP_MIN)
    }

    /// A whole window was acknowledged.
    #[cold]
    fn on_round(&mut self) {
        self.credit = 0;
        self.marked -= self.marked / Self::MARK_GAIN;
        let (cap, step) = match (self.long, self.opening) {
            (true, true) => (Self::LIMIT_MAX, self.limit.min(self.max)),
            (true, false) => (Self::LIMIT_MAX, self.step()),
            (false, true) => (self.max, self.limit),
            (false, false) => (self.max, self.step()),
        };
        if self.full && self.limit < cap {
            self.limit = (self.limit + step).min(cap);
        }
        self.least = self.limit / 2;
        self.full = false;
    }

    /// A packet was acknowledged after so many nanoseconds; the shortest time so far is `base_ns`. Everything
    /// before `unacked` is acknowledged, and nothing from `top` on was sent yet.
    pub(crate) fn on_round_trip(&mut self, nanos: u64, base_ns: u64, unacked: u64, top: u64) {
        self.long = base_ns >= Self::LONG_NS;
        let allowed = base_ns + base_ns / 4 + Self::DELAY_NS;
        if nanos > allowed && self.limit > Self::DELAY_LIMIT_MIN && self.reacts(unacked) {
            // What is too long is taken off, but no more than half.
            let keep = u64::from(self.limit).saturating_mul(allowed) / nanos;
            let least = (self.limit / 2).max(Self::DELAY_LIMIT_MIN);
            let keep = u32::try_from(keep).unwrap_or(self.limit).max(least);
            self.limit_to(keep, unacked, top);
        }
    }

    /// The peer has got packets that a switch has marked.
    pub(crate) fn on_marks(&mut self, unacked: u64, top: u64) {
        if self.reacts(unacked) {
            self.marked += (Self::ALWAYS - self.marked) / Self::MARK_GAIN;
            let share =
                u64::from(self.limit) * u64::from(self.marked) / u64::from(2 * Self::ALWAYS);
            let share = u32::try_from(share).unwrap_or(0);
            self.limit_to(self.limit.saturating_sub(share), unacked, top);
        }
    }

    /// So many packets were lost.
    pub(crate) fn on_losses(&mut self, packets: u64) {
        let packets = u32::try_from(packets).unwrap_or(u32::MAX);
        let less = self.limit.saturating_sub(packets.saturating_mul(Self::LOST_SHARE));
        self.opening = false;
        self.limit = less.max(self.least).max(Self::LIMIT_MIN).min(self.limit);
    }

    /// Packets were lost, and all after them, or it is not known how many.
    pub(crate) fn on_loss(&mut self, unacked: u64, top: u64) {
        if self.reacts(unacked) {
            self.limit_to(self.limit / 2, unacked, top);
        }
    }

    /// A window was acknowledged since the last reaction, so that what happens is no consequence of what was before.
    fn reacts(&self, unacked: u64) -> bool {
        unacked >= self.recovered_at
    }

    fn limit_to(&mut self, limit: u32, unacked: u64, top: u64) {
        (self.credit, self.opening) = (0, false);
        self.limit = limit.max(Self::LIMIT_MIN);
        self.recovered_at = top.min(unacked + u64::from(self.limit));
    }
}

const _: () = assert!(
    Window::LIMIT_MAX <= (1 << 22) / Window::BEGUN_SHARE,
    "a PSN names one packet, and answers may be as far behind"
);

#[cfg(test)]
mod tests {
    use super::*;

    /// A window whose round trips are over as soon as they begin.
    fn rounds(window: &mut Window, count: u32) {
        for _ in 0..count {
            window.on_full();
            window.on_progress(window.limit.into());
        }
    }

    #[test]
    fn a_loss_halves_the_window_and_whole_windows_bring_it_back() {
        let mut window = Window::open(64);
        window.on_loss(0, 10);
        assert_eq!(window.limit, 32);
        window.on_full();
        window.on_progress(31);
        assert_eq!(window.limit, 32);
        window.on_progress(1);
        assert_eq!(window.limit, 36);
        rounds(&mut window, 10);
        assert_eq!(window.limit, 64);
    }

    /// Goal: single losses cost little, many in a round trip half of the window, and each round trip may cost as much.
    #[test]
    fn each_lost_packet_takes_a_few_and_a_round_trip_no_more_than_half() {
        let mut window = Window::open(256);
        for (packets, limit) in [(1, 252), (2, 244), (100, 128), (1, 128)] {
            window.on_losses(packets);
            assert_eq!(window.limit, limit, "{packets}");
        }
        window.on_progress(128);
        window.on_losses(1);
        assert_eq!(window.limit, 124);
        for _ in 0..10 {
            window.on_losses(u64::MAX);
            window.on_progress(128);
        }
        assert_eq!(window.limit, Window::LIMIT_MIN);
    }

    /// Goal: of a network that loses one packet in a hundred a large window is left.
    #[test]
    fn a_window_grows_in_spite_of_a_loss_in_each_round_trip() {
        let mut window = Window::open(256);
        for _ in 0..1000 {
            window.on_losses(u64::from(window.limit / 100));
            rounds(&mut window, 1);
        }
        assert!(window.limit >= 100, "{}", window.limit);
    }

    #[test]
    fn the_window_of_a_known_path_begins_as_large_as_it_was_within_what_the_host_allows() {
        for (first, expected) in [(0, 16), (100, 100), (5000, 1000)] {
            let window = Window::opening(1000, Some(first));
            assert_eq!(window.limit, expected);
            assert_eq!(window.known_limit(), (expected > 16).then_some(expected));
        }
    }

    #[test]
    fn the_window_of_a_network_opens_fast_until_there_is_a_sign_of_congestion() {
        let mut window = Window::opening(1000, None);
        for expected in [16, 32, 64] {
            assert_eq!(window.limit, expected);
            rounds(&mut window, 1);
        }
        window.on_marks(0, 1000);
        let after = window.limit;
        assert!(after < 128);
        rounds(&mut window, 1);
        assert_eq!(window.limit, after + window.step());
    }

    /// Goal: a READ is asked for in pieces of a quarter of the window, or of what is allowed at once; in no less than
    /// eight packets, for which the window is exceeded, but never what the host allows.
    #[test]
    fn pieces_of_reads_follow_the_window() {
        let mut window = Window::open(256);
        for (left, allowed, packets) in
            [(1000, 256, 64), (1000, 64, 64), (1000, 63, 0), (9, 63, 9), (9, 1, 0)]
        {
            assert_eq!(window.read_packets(left, allowed), packets, "{allowed} of {left}");
        }
        (0..4).for_each(|round| window.on_loss(1000 * round, 1000 * round));
        assert_eq!(window.limit, 16);
        for (left, allowed, packets) in [(1000, 16, 16), (1000, 4, 8), (1000, 3, 0), (2, 3, 2)] {
            assert_eq!(window.read_packets(left, allowed), packets, "{allowed} of {left}");
        }
        for (packets, allowed, fits) in [(8, 1, true), (9, 1, false), (64, 16, true)] {
            assert_eq!(window.fits_again(packets, allowed), fits, "{packets} into {allowed}");
        }
        let window = Window::open(256);
        assert!(!window.fits_again(8, 1), "as many as the host allows are under way");
    }

    /// Goal: what has come early makes room, as far as sequence numbers stay near one another.
    #[test]
    fn what_has_come_early_is_not_under_way() {
        let window = Window::open(64);
        assert_eq!(window.room_behind(64, 0), 0);
        assert_eq!(window.room_behind(64, 20), 20);
        assert_eq!(window.room_behind(200, 199), 14);
        assert_eq!(window.room_behind(256, 255), 0);
    }

    #[test]
    fn a_window_that_is_not_full_does_not_grow() {
        let mut window = Window::open(64);
        window.on_loss(0, 10);
        window.on_progress(1000);
        assert_eq!(window.limit, 32);
    }

    #[test]
    fn losses_of_one_round_trip_count_once() {
        let mut window = Window::open(64);
        window.on_loss(0, 64);
        window.on_loss(20, 64);
        window.on_marks(31, 70);
        assert_eq!(window.limit, 32);
        window.on_loss(32, 70);
        assert_eq!(window.limit, 16);
    }

    #[test]
    fn the_window_never_closes() {
        let mut window = Window::open(1);
        for at in 0..10 {
            window.on_loss(at, at + 1);
            window.on_marks(at, at + 1);
            window.on_round_trip(u64::MAX / 2, 1, at, at + 1);
        }
        assert_eq!(window.limit, Window::LIMIT_MIN);
        assert!(window.ack_every() > 0);
    }

    /// Goal: rare marks take little, frequent ones half.
    #[test]
    fn marks_take_the_more_the_more_often_they_come() {
        let mut window = Window::open(1024);
        rounds(&mut window, 200); // None came for long.
        window.on_marks(0, 1);
        let rare = window.limit;
        assert!((900..1024).contains(&rare), "{rare}");
        for at in 1..200 {
            window.on_marks(at, at + 1);
            window = Window { limit: 1024, ..window };
        }
        window.on_marks(200, 201);
        assert!((512..560).contains(&window.limit), "{}", window.limit);
    }

    #[test]
    fn round_trips_that_take_too_long_close_the_window_to_what_the_queue_may_hold() {
        let base = 100_000;
        let mut window = Window::open(1000);
        window.on_round_trip(base + Window::DELAY_NS, base, 0, 1);
        assert_eq!(window.limit, 1000);
        let allowed = base + base / 4 + Window::DELAY_NS;
        window.on_round_trip(allowed * 5 / 4, base, 1, 2);
        assert_eq!(window.limit, 800);
        window.on_round_trip(allowed * 100, base, 2, 3);
        assert_eq!(window.limit, 400);
    }

    /// Goal: over a long way the window opens fast, and beyond what a buffer holds; over a short one it does not.
    #[test]
    fn a_long_path_takes_more_than_a_buffer() {
        for (base, expected) in [(20_000_000, 1000 * 11), (50_000, 1000)] {
            let mut window = Window::open(1000);
            window.on_round_trip(base, base, 0, 1);
            rounds(&mut window, 10);
            assert_eq!(window.limit, expected);
        }
    }
}
