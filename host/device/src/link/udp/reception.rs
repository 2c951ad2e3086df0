//! Choice of the receive call: with GRO while bursts come, without it for single datagrams.
//!
//! With GRO the kernel hands over a burst in one call, and says how long its datagrams are; asking
//! for that makes each call a quarter dearer. A program that waits for one small message after the
//! other pays this for nothing. So GRO is switched off when datagrams come one at a time, each after
//! the socket was empty, and on again when several wait. Two at once weigh as much as two that come alone, both ways: an
//! answer takes an acknowledgement along now and then. Two that GRO has left apart, as of two peers, count as one that comes
//! alone, and do not switch it on again.

/// How many datagrams in a row have to come alone before GRO is switched off, and how many two at once have to make up for
/// before it is switched on.
const SINGLES_MIN: u32 = 64;
/// How many of them two at once make up for: of a conversation that has two in every third message GRO stays on.
const PAIR_WEIGHT: u32 = 2;
/// How many datagrams may wait in a row before GRO is switched on.
const RUN_MAX: u32 = 8;

/// Receive call to use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// For bursts.
    Bursts,
    /// For bursts, of which some may still wait; no more of them come.
    LastBursts,
    /// For single datagrams.
    Singles,
}

/// Change of the socket's receive mode.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub(crate) enum Switch {
    Nothing,
    GroOn,
    GroOff,
}

/// Statistics of a socket's traffic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reception {
    mode: Mode,
    /// The socket was empty when last asked.
    empty: bool,
    /// Datagrams that came alone, less what others make up for; at most [`SINGLES_MIN`].
    singles: u32,
    /// Datagrams since the socket was empty.
    run: u32,
    /// Of the last that came at once GRO has joined none.
    unjoined: bool,
    /// Arrivals are to show how they are marked, which the cheap call does not tell.
    marks: bool,
}

impl Reception {
    /// A socket with GRO on, where the kernel has it.
    pub(crate) fn new(gro: bool) -> Self {
        let (mode, singles) = if gro { (Mode::Bursts, 0) } else { (Mode::Singles, SINGLES_MIN) };
        Self { mode, empty: false, singles, run: 0, unjoined: false, marks: false }
    }

    #[inline]
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// From now on arrivals are to show how they are marked.
    pub(crate) fn show_marks(&mut self) {
        self.marks = true;
        if self.mode == Mode::Singles {
            self.mode = Mode::LastBursts;
        }
    }

    /// There was nothing.
    #[inline]
    pub(crate) fn on_nothing(&mut self) {
        self.empty = true;
        self.run = 0;
        if self.mode == Mode::LastBursts && !self.marks {
            self.mode = Mode::Singles;
        }
    }

    /// There was a burst of so many datagrams, or one.
    #[inline]
    pub(crate) fn on_arrival(&mut self, datagrams: usize) -> Switch {
        let was_empty = std::mem::replace(&mut self.empty, false);
        self.run = self.run.saturating_add(1);
        self.unjoined &= datagrams < 2;
        let run_min = if self.unjoined { 3 } else { 2 };
        self.singles = match (was_empty, datagrams) {
            (true, ..2) => SINGLES_MIN.min(self.singles + 1),
            (true, 2) => self.singles.saturating_sub(PAIR_WEIGHT),
            // Two at once come by two calls here, of which the first was taken for one alone.
            (false, ..2) if self.mode != Mode::Bursts && self.run == run_min => {
                self.singles.saturating_sub(PAIR_WEIGHT + 1)
            }
            (false, ..2) if self.mode != Mode::Bursts => self.singles,
            // A second one by itself: GRO cannot join what comes of two peers, or was not sent as one.
            (false, ..2) if self.run == 2 => {
                self.unjoined = true;
                self.singles
            }
            (_, _) => 0,
        };
        match self.mode {
            Mode::Bursts if self.singles >= SINGLES_MIN => {
                self.mode = Mode::LastBursts;
                Switch::GroOff
            }
            Mode::LastBursts | Mode::Singles if self.run >= RUN_MAX || self.singles == 0 => {
                self.mode = Mode::Bursts;
                self.singles = 0;
                Switch::GroOn
            }
            Mode::Bursts | Mode::LastBursts | Mode::Singles => Switch::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(reception: &mut Reception) -> Switch {
        reception.on_nothing();
        reception.on_arrival(1)
    }

    #[test]
    fn datagrams_that_come_alone_switch_gro_off_once_no_burst_waits() {
        let mut reception = Reception::new(true);
        for _ in 1..SINGLES_MIN {
            assert_eq!(alone(&mut reception), Switch::Nothing);
        }
        assert_eq!(alone(&mut reception), Switch::GroOff);
        assert_eq!(reception.mode(), Mode::LastBursts);
        reception.on_nothing();
        assert_eq!(reception.mode(), Mode::Singles);
    }

    #[test]
    fn a_burst_among_them_starts_the_count_again() {
        let mut reception = Reception::new(true);
        for _ in 0..10 * SINGLES_MIN {
            reception.on_nothing();
            assert_eq!(reception.on_arrival(1), Switch::Nothing);
            assert_eq!(reception.on_arrival(3), Switch::Nothing);
        }
    }

    /// Goal: a conversation of which every fourth message takes an acknowledgement along is one of single datagrams; one of
    /// which every second does, or each, is none.
    #[test]
    fn two_at_once_weigh_as_two_alone() {
        let switches_off = |every| {
            let mut reception = Reception::new(true);
            (0..8 * SINGLES_MIN).any(|at| {
                reception.on_nothing();
                let datagrams = if at % every == 0 { 2 } else { 1 };
                reception.on_arrival(datagrams) == Switch::GroOff
            })
        };
        assert_eq!([1, 2, 4].map(switches_off), [false, false, true]);
    }

    /// Goal: what has switched GRO off does not decide for ever. Method: pairs, and pairs now and then, where it is off.
    #[test]
    fn two_at_once_switch_gro_on_where_they_are_the_rule() {
        let switches_on = |every| {
            let mut reception = Reception::new(false);
            (0..8 * SINGLES_MIN).any(|at| {
                let first = alone(&mut reception);
                let second = match at % every {
                    0 => reception.on_arrival(1),
                    _ => Switch::Nothing,
                };
                [first, second].contains(&Switch::GroOn)
            })
        };
        assert_eq!([1, 2, 4].map(switches_on), [true, true, false]);
    }

    /// Goal: messages of two peers that come at the same time do not keep GRO on, which cannot join them, nor switch it on
    /// again; three at once do.
    #[test]
    fn two_that_gro_does_not_join_neither_keep_it_on_nor_switch_it_on_again() {
        for gro in [false, true] {
            let mut reception = Reception::new(gro);
            let mut switches = Vec::new();
            for _ in 0..1000 {
                switches.extend([alone(&mut reception), reception.on_arrival(1)]);
            }
            let count = |which| switches.iter().filter(|switch| **switch == which).count();
            assert_eq!([Switch::GroOn, Switch::GroOff].map(count), [usize::from(!gro), 1]);
            let mut three = || {
                let first = alone(&mut reception);
                [first, reception.on_arrival(1), reception.on_arrival(1)].contains(&Switch::GroOn)
            };
            assert!((0..SINGLES_MIN).any(|_| three()));
        }
    }

    #[test]
    fn where_marks_are_shown_the_call_that_hides_them_is_not_used() {
        let mut reception = Reception::new(true);
        while alone(&mut reception) == Switch::Nothing {}
        reception.on_nothing();
        assert_eq!(reception.mode(), Mode::Singles);
        reception.show_marks();
        for _ in 0..2 * SINGLES_MIN {
            assert_eq!(alone(&mut reception), Switch::Nothing);
            assert_eq!(reception.mode(), Mode::LastBursts);
        }
        while reception.on_arrival(1) == Switch::Nothing {}
        assert_eq!(reception.mode(), Mode::Bursts);
    }

    #[test]
    fn datagrams_that_wait_switch_gro_on() {
        let mut reception = Reception::new(true);
        while alone(&mut reception) == Switch::Nothing {}
        reception.on_nothing();
        for _ in 1..RUN_MAX {
            assert_eq!(reception.on_arrival(1), Switch::Nothing);
        }
        assert_eq!(reception.on_arrival(1), Switch::GroOn);
        assert_eq!(reception.mode(), Mode::Bursts);
    }
}
