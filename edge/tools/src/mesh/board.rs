//! What a node knows of all nodes: each says its row to every other, so that each has the whole matrix
//! at the end, the nodes that are missing.
//!
//! Rows come over the network, and are believed as far as their shape goes: a node can only spoil its
//! own.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::node::Row;
use super::report::{Life, Report};

/// Rows of all nodes.
#[derive(Debug)]
pub(super) struct Board {
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    report: Report,
    /// When the present life of each began, and how many it had before.
    lives: Vec<Option<(u64, u32)>>,
}

impl Board {
    pub(super) fn new(size: usize) -> Self {
        Self { known: Mutex::new(Known { report: Report::new(size), lives: vec![None; size] }) }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what node `from` says; false if it makes no sense.
    pub(super) fn note(&self, from: usize, row: Row) -> bool {
        let known = &mut *self.lock();
        let Some(life) = known.lives.get_mut(from) else {
            return false;
        };
        if row.rank != from || row.peers.len() != known.report.nodes.len() {
            return false;
        }
        let (born, number) = match *life {
            None => (row.born_ms, 0),
            Some((born, number)) if row.born_ms > born => (row.born_ms, number.saturating_add(1)),
            // Late words of an earlier life change nothing.
            Some((born, _)) if row.born_ms < born => return true,
            Some(same) => same,
        };
        *life = Some((born, number));
        let stands = match (row.last, number) {
            (true, _) => Life::Done,
            (false, 0) => Life::Running,
            (false, 1..) => Life::Back,
        };
        known.report.note(from, number, row);
        known.report.set_life(from, stands);
        true
    }

    /// How it stands.
    pub(super) fn report(&self, elapsed: Duration) -> Report {
        let mut report = self.lock().report.clone();
        report.elapsed = elapsed;
        report
    }

    /// How it stands when nothing more will be heard: a node that has not said its last word has failed.
    pub(super) fn last_report(&self, elapsed: Duration) -> Report {
        let mut report = self.report(elapsed);
        for rank in 0..report.nodes.len() {
            if report.life(rank) != Life::Done {
                report.set_life(rank, Life::Failed);
            }
        }
        report
    }
}

/// What a message with a row begins with: no block does, because no node has this number.
const ROW_MARK: [u8; 8] = [0xff; 8];
/// Bytes of a row at most, for each node.
const PAIR_BYTES_MAX: usize = 512;

/// The longest message with a row, in a mesh of so many nodes.
pub(super) fn row_bytes_max(size: usize) -> usize {
    PAIR_BYTES_MAX * (size + 1)
}

/// A row as a message.
pub(super) fn emit(row: &Row) -> Vec<u8> {
    let mut message = ROW_MARK.to_vec();
    // A row is numbers, which can always be written.
    message.extend(serde_json::to_vec(row).unwrap_or_default());
    message
}

/// The message is a row, or wants to be one.
pub(super) fn is_row(start: &[u8]) -> bool {
    start.starts_with(&ROW_MARK)
}

/// The row in a message.
pub(super) fn parse(message: &[u8]) -> Option<Row> {
    serde_json::from_slice(message.strip_prefix(&ROW_MARK)?).ok()
}

#[cfg(test)]
mod tests {
    use super::super::node::Pair;
    use super::*;

    fn row(rank: usize, born_ms: u64, received: u64) -> Row {
        let pair = Pair { received, ..Pair::default() };
        Row { rank, born_ms, peers: vec![pair; 3], ..Row::default() }
    }

    #[test]
    fn rows_parse_to_what_they_were_and_are_as_short_as_promised() {
        let mut long = row(2, u64::MAX, u64::MAX);
        for pair in &mut long.peers {
            pair.sent = u64::MAX;
            pair.sent_bytes = u64::MAX;
            pair.received_bytes = u64::MAX;
            (pair.spoilt, pair.misplaced, pair.resent) = (u64::MAX, u64::MAX, u64::MAX);
            (pair.losses, pair.p99_ns) = (u64::MAX, u64::MAX);
        }
        let message = emit(&long);
        assert!(message.len() <= row_bytes_max(3), "{}", message.len());
        assert!(is_row(&message));
        assert_eq!(parse(&message), Some(long));
        assert_eq!(parse(&message[..40]), None);
        assert_eq!(parse(b"{}"), None);
    }

    #[test]
    fn a_node_speaks_for_itself_and_its_lives_add_up() {
        let board = Board::new(3);
        assert!(board.note(1, row(1, 10, 5)));
        assert!(!board.note(0, row(1, 10, 99)), "of another");
        assert!(!board.note(3, row(3, 10, 99)), "nobody");
        let mut short = row(2, 1, 99);
        short.peers.pop();
        assert!(!board.note(2, short));
        assert!(board.note(1, row(1, 20, 2)));
        assert!(board.note(1, row(1, 10, 98)), "late words");
        let report = board.report(Duration::from_secs(1));
        assert_eq!(report.nodes[1].peers[0].received, 7);
        assert_eq!(report.life(1), Life::Back);
        assert!(board.note(1, Row { last: true, ..row(1, 20, 3) }));
        let report = board.last_report(Duration::from_secs(2));
        assert_eq!(report.nodes[1].peers[0].received, 8);
        assert_eq!(
            [0, 1, 2].map(|rank| report.life(rank)),
            [Life::Failed, Life::Done, Life::Failed]
        );
    }
}
