//! Keeps pairs level: none gets more than some blocks ahead of the slowest.
//!
//! A node does so with those that it sends to and with those that send to it. The pair that is behind
//! all others of the mesh is held up by none, so there is always one that goes on.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The lanes of a node in one direction, one for each peer.
#[derive(Debug)]
pub(super) struct Pace {
    /// Blocks of each lane that is used.
    lanes: Mutex<Vec<Option<u64>>>,
    moved: Condvar,
}

/// A lane while it is used.
#[derive(Debug)]
pub(super) struct Lane<'a> {
    pace: &'a Pace,
    rank: usize,
}

impl Pace {
    pub(super) fn new(size: usize) -> Self {
        Self { lanes: Mutex::new(vec![None; size]), moved: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<u64>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses the lane of peer `rank` from now on: level with the slowest.
    pub(super) fn join(&self, rank: usize) -> Lane<'_> {
        let mut lanes = self.lock();
        let slowest = lanes.iter().flatten().min().copied().unwrap_or(0);
        if let Some(lane) = lanes.get_mut(rank) {
            *lane = Some(slowest);
        }
        Lane { pace: self, rank }
    }
}

impl Lane<'_> {
    /// One block more; waits while too far ahead, but not for ever: one that stands still is not worth
    /// the others.
    pub(super) fn step(&self) {
        let mut lanes = self.pace.lock();
        let Some(Some(own)) = lanes.get_mut(self.rank) else {
            return;
        };
        *own += 1;
        let own = *own;
        // A pair that waits does so for the slowest.
        if lanes.iter().flatten().all(|other| *other >= own) {
            self.pace.moved.notify_all();
        }
        let ahead = |lanes: &mut Vec<Option<u64>>| {
            let slowest = lanes.iter().flatten().min().copied().unwrap_or(own);
            own - slowest > AHEAD_MAX
        };
        if ahead(&mut lanes) {
            let waited = self.pace.moved.wait_timeout_while(lanes, PATIENCE, ahead);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.pace.lock().get_mut(self.rank) {
            *lane = None;
        }
        self.pace.moved.notify_all();
    }
}

/// Blocks that one may be ahead: more than can be on their way.
const AHEAD_MAX: u64 = 128;
/// How long one waits for the slowest before each block.
const PATIENCE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    #[test]
    fn nobody_gets_far_ahead_of_the_slowest_until_that_leaves() {
        let pace = Pace::new(2);
        let (fast, slow) = (AtomicU64::new(0), pace.join(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                let lane = pace.join(1);
                for _ in 0..1000 {
                    lane.step();
                    fast.fetch_add(1, Ordering::Relaxed);
                }
            });
            for own in 1..500 {
                slow.step();
                // A few of its waits may be over on a busy machine.
                assert!(fast.load(Ordering::Relaxed) < own + AHEAD_MAX + 20);
            }
            drop(slow);
        });
        assert_eq!(fast.load(Ordering::Relaxed), 1000);
    }
}
