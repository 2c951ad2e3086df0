//! The pace of a thread's waits: the intervals at which what it waits for comes.
//!
//! A stream of messages at a steady pace is worth spinning for all the time, as long as a processor is free: each
//! message is then there at once, rather than after a wake-up. So the last [`WAITS`] waits are remembered, as one
//! bit each: whether the wait was over within the limit. A thread most of whose waits were *spins through*.
//!
//! A processor that is wanted elsewhere is given back: where others have run for more than a small share of the time,
//! because the scheduler wanted it or the spinning thread let them, or where more threads could run than there are
//! processors, the thread does not spin through for a while, which grows each time that this happens again. It sleeps
//! then, and the scheduler puts it where a processor is free when it wakes.
//!
//! The count is needed beside the others: to yield lets only threads of the same scheduling group run (`sched(7)`,
//! autogroups), so a thread of another group waits until the spinning one's time slice ends, which its wait may not last.

/// What one thread has learnt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Pace {
    /// The last waits, the latest in the lowest bit: 1 if it was over within the limit.
    recent: u32,
    /// Until when it does not spin through.
    paused_until_ns: u64,
    /// How often in a row it was so, soon after each other.
    setbacks: u32,
    /// Since when it is counted how long others have run, and how long that was.
    window_ns: u64,
    lost_ns: u64,
    /// When it was last counted how many threads could run, and what the last counts said, as one bit each: 1 if there
    /// were more than processors.
    counted_ns: u64,
    counts: u8,
}

impl Pace {
    pub(crate) const fn new() -> Self {
        Self {
            recent: 0,
            paused_until_ns: 0,
            setbacks: 0,
            window_ns: 0,
            lost_ns: 0,
            counted_ns: 0,
            counts: 0,
        }
    }

    /// A wait is over that has lasted so long, asleep or not.
    #[must_use]
    pub(crate) fn after_wait(self, lasted_ns: u64, limit_ns: u64) -> Self {
        Self { recent: self.recent << 1 | u32::from(lasted_ns <= limit_ns), ..self }
    }

    /// Whether the next wait is to be spun through.
    pub(crate) fn spins_through(self, now_ns: u64) -> bool {
        self.recent.count_ones() >= REGULAR && now_ns >= self.paused_until_ns
    }

    /// Others have run for so long in the midst of a spin, up to now. Too much of that in a short time, and the
    /// processor is given back.
    #[must_use]
    pub(crate) fn after_others(self, ran_ns: u64, now_ns: u64) -> Self {
        let is_old = now_ns.saturating_sub(self.window_ns) > WINDOW_NS;
        let (window_ns, before_ns) =
            if is_old { (now_ns, 0) } else { (self.window_ns, self.lost_ns) };
        let lost_ns = before_ns.saturating_add(ran_ns);
        if lost_ns < CROWDED_NS {
            return Self { window_ns, lost_ns, ..self };
        }
        Self { window_ns, lost_ns: 0, ..self.after_setback(now_ns) }
    }

    /// Whether it is to be counted how many threads could run.
    pub(crate) fn is_count_due(self, now_ns: u64) -> bool {
        self.spins_through(now_ns) && now_ns.saturating_sub(self.counted_ns) >= COUNT_NS
    }

    /// It was counted. If most of the last counts found more threads than processors, the processor is given back.
    #[must_use]
    pub(crate) fn after_count(self, is_crowded: bool, now_ns: u64) -> Self {
        let is_old = now_ns.saturating_sub(self.counted_ns) > COUNTS_NS;
        let counts = if is_old { 0 } else { self.counts << 1 } | u8::from(is_crowded);
        let counted = Self { counts, counted_ns: now_ns, ..self };
        match counts.count_ones() >= CROWDED_COUNTS {
            true => counted.after_setback(now_ns),
            false => counted,
        }
    }

    fn after_setback(self, now_ns: u64) -> Self {
        let is_again = now_ns.saturating_sub(self.paused_until_ns) < CALM_NS;
        let setbacks = if is_again { (self.setbacks + 1).min(SETBACKS_MAX) } else { 0 };
        let paused_until_ns = now_ns.saturating_add(PAUSE_NS << setbacks);
        Self { recent: 0, paused_until_ns, setbacks, counts: 0, ..self }
    }
}

/// Waits that are remembered, and how many of them have to have been over within the limit.
const WAITS: u32 = u32::BITS;
const REGULAR: u32 = WAITS - WAITS / 8;
/// Others that have run for so long, within the time of a window, want the processor.
const CROWDED_NS: u64 = 1_000_000;
const WINDOW_NS: u64 = 20_000_000;
/// While a thread spins through, the machine's runnable threads are counted after so long. It is crowded if so many of the last
/// eight counts say so: one alone may have met a thread of the kernel's that runs for a moment. Counts older than this say
/// nothing.
const COUNT_NS: u64 = 2_000_000;
const CROWDED_COUNTS: u32 = 6;
const COUNTS_NS: u64 = 50 * COUNT_NS;
/// A thread does not spin through for so long the first time, and for twice as long each next time, up to 1.3 s.
const PAUSE_NS: u64 = 5_000_000;
const SETBACKS_MAX: u32 = 8;
/// Spinning undisturbed for so long starts anew.
const CALM_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT_NS: u64 = 200_000;

    fn after(waits: u32, lasted_ns: u64) -> Pace {
        (0..waits).fold(Pace::new(), |pace, _| pace.after_wait(lasted_ns, LIMIT_NS))
    }

    #[test]
    fn a_steady_pace_is_learnt_and_forgotten() {
        assert!(!after(REGULAR - 1, LIMIT_NS).spins_through(0));
        assert!(after(REGULAR, LIMIT_NS).spins_through(0));
        assert!(!after(10 * WAITS, LIMIT_NS + 1).spins_through(0));
        let mut pace = after(WAITS, 1000);
        for late in 1..=WAITS - REGULAR + 1 {
            pace = pace.after_wait(10 * LIMIT_NS, LIMIT_NS);
            assert_eq!(pace.spins_through(0), late <= WAITS - REGULAR, "{late} late");
        }
    }

    #[test]
    fn others_that_run_a_little_change_nothing() {
        let mut pace = after(WAITS, 1000);
        for time in (1..100).map(|window| window * (WINDOW_NS + 1)) {
            pace = pace.after_others(CROWDED_NS - 1, time);
            assert!(pace.spins_through(time), "{time}");
        }
        let often = |ran_ns| (0..10).fold(pace, |pace, _| pace.after_others(ran_ns, u64::MAX / 2));
        assert!(often(CROWDED_NS / 10 - 1).spins_through(u64::MAX / 2));
        assert!(!often(CROWDED_NS / 10).spins_through(u64::MAX / 2));
    }

    #[test]
    fn more_threads_than_processors_end_it_and_a_few_moments_of_them_do_not() {
        const NOW: u64 = CALM_NS;
        let pace = after(WAITS, 1000);
        assert!(!after(REGULAR - 1, 1000).is_count_due(NOW));
        let once = pace.after_count(false, NOW);
        assert!(!once.is_count_due(NOW + COUNT_NS - 1) && once.is_count_due(NOW + COUNT_NS));
        let counted = |pace: Pace, crowded: u32, of: u32| {
            (0..of).fold(pace, |pace, at| pace.after_count(at < crowded, NOW))
        };
        assert!(counted(pace, CROWDED_COUNTS - 1, 8).spins_through(NOW));
        let ended = counted(pace, CROWDED_COUNTS, CROWDED_COUNTS);
        assert_eq!(ended.paused_until_ns, NOW + PAUSE_NS);
        assert!(!ended.is_count_due(u64::MAX), "what comes after the pause has to be learnt anew");
        let seldom = (0..100).fold(pace, |pace, at| pace.after_count(at % 2 == 0, NOW));
        assert!(seldom.spins_through(NOW));
    }

    /// Goal: on a crowded machine the share of time that is spun away goes towards nothing.
    /// Method: after each pause the pace is learnt anew at once, and others run.
    #[test]
    fn the_pause_grows_while_others_want_the_processor() {
        let relearnt =
            |pace| (0..WAITS).fold(pace, |pace: Pace, _| pace.after_wait(1000, LIMIT_NS));
        let (mut pace, mut now, mut pauses) = (Pace::new(), CALM_NS, Vec::new());
        for _ in 0..12 {
            pace = relearnt(pace);
            assert!(pace.spins_through(now));
            pace = pace.after_others(CROWDED_NS, now);
            assert!(!pace.spins_through(now) && !relearnt(pace).spins_through(now));
            pauses.push(pace.paused_until_ns - now);
            now = pace.paused_until_ns;
        }
        let doubled = pauses.windows(2).take_while(|pair| pair[1] == 2 * pair[0]).count();
        assert_eq!(doubled, usize::try_from(SETBACKS_MAX).unwrap(), "{pauses:?}");
        assert_eq!(pauses.first(), Some(&PAUSE_NS));
        now += CALM_NS;
        assert_eq!(pace.after_others(CROWDED_NS, now).paused_until_ns, now + PAUSE_NS);
    }
}
