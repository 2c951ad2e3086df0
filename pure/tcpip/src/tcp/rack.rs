//! Loss by time: a segment is lost if one that was sent well after it has arrived. RFC 8985.

use core::time::Duration;

use super::scoreboard::{Fate, Scoreboard, Sent};
use crate::time::Time;

/// What is known of the segment that was sent last of those that have arrived, and of reordering.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rack {
    /// When it was sent, and where it ends.
    latest: Option<(Time, u64)>,
    /// How long its answer took.
    rtt: Duration,
    /// End of the furthest segment that has arrived.
    furthest: u64,
    /// Segments have overtaken one another.
    reordering: bool,
    /// Quarters of a round trip to wait for segments that were overtaken.
    quarters: u32,
    /// Recoveries until `quarters` is one again.
    patience: u32,
}

/// What an acknowledgement says beside what it acknowledges.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// When it came.
    pub(super) now: Time,
    /// The latest moment at which the segment that it answers can have left, if time stamps say so.
    pub(super) echoed: Option<Time>,
    /// The shortest round trip of late.
    pub(super) shortest: Duration,
}

impl Rack {
    /// A segment has arrived. RFC 8985 §6.2, steps 1 to 3.
    pub(super) fn deliver(&mut self, sent: &Sent, answer: &Answer) {
        if sent.end > self.furthest {
            self.furthest = sent.end;
        } else if !sent.again {
            self.reordering = true;
        }
        let took = answer.now.since(sent.sent_at);
        let answers_the_first =
            answer.echoed.is_some_and(|echoed| echoed < sent.sent_at) || took < answer.shortest;
        if sent.again && answers_the_first {
            return; // What arrived is an earlier transmission: when it left is not known any more.
        }
        if self.latest.is_none_or(|latest| latest < (sent.sent_at, sent.end)) {
            self.latest = Some((sent.sent_at, sent.end));
            self.rtt = took;
        }
    }

    /// The peer says that something arrived twice: the wait was too short. RFC 8985 §6.2, step 4.
    pub(super) fn on_duplicate(&mut self) {
        self.quarters = (self.quarters + 1).min(QUARTERS_MAX);
        self.patience = PATIENCE;
    }

    /// A recovery has ended.
    pub(super) fn on_recovered(&mut self) {
        self.patience = self.patience.saturating_sub(1);
        if self.patience == 0 {
            self.quarters = 1;
        }
    }

    /// Marks what is lost; returns when to look again. `hurry` says that nothing is won by waiting: there is a
    /// recovery already, or as many segments have arrived as RFC 5681 takes for a sign of loss.
    pub(super) fn detect(
        &self,
        board: &mut Scoreboard,
        hurry: bool,
        smoothed: Duration,
        shortest: Duration,
        now: Time,
    ) -> (bool, Option<Time>) {
        let Some((latest, end)) = self.latest else {
            return (false, None);
        };
        let wait = if !self.reordering && hurry {
            Duration::ZERO
        } else {
            (shortest / 4 * self.quarters.max(1)).min(smoothed)
        };
        let mut look_again = None;
        let any = board.lose(|sent| {
            let before = (sent.sent_at, sent.end) < (latest, end);
            match sent.fate {
                // Later segments that were sent once were sent later still.
                Fate::InFlight if !before && !sent.again => return None,
                Fate::InFlight if before => {}
                Fate::InFlight | Fate::Lost | Fate::Sacked => return Some(false),
            }
            let due = sent.sent_at.plus(self.rtt + wait);
            if due > now {
                look_again = look_again.max(Some(due));
            }
            Some(due <= now)
        });
        (any, look_again)
    }

    /// Marks what is lost when there was no answer in time: the first segment, and all that should have been
    /// answered. RFC 8985 §6.3.
    pub(super) fn on_timeout(&self, board: &mut Scoreboard, now: Time) {
        let first = board.iter().next().map(|sent| sent.start);
        let rtt = self.rtt;
        board.lose(|sent| Some(Some(sent.start) == first || sent.sent_at.plus(rtt) <= now));
    }
}

/// Most quarters of a round trip to wait: the smoothed round trip bounds it anyway.
const QUARTERS_MAX: u32 = 16;

/// Recoveries for which a longer wait is kept.
const PATIENCE: u32 = 16;
