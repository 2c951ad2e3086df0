//! What came of a mesh: a table while it runs, then a matrix, JSON, and a heat map.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use super::node::{Pair, Row};
use crate::bench::stats;

/// Where a node stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Life {
    /// Nothing has been heard from it.
    Starting,
    Running,
    Killed,
    Back,
    Done,
    Failed,
}

impl Life {
    const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Killed => "killed",
            Self::Back => "back",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// What is known of all nodes. Lives of a node that has come back are added up.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    #[serde(serialize_with = "seconds", rename = "elapsed_s")]
    pub(crate) elapsed: Duration,
    /// Nodes that were killed on purpose.
    pub(crate) deaths: u64,
    pub(crate) nodes: Vec<Node>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Node {
    pub(crate) life: Life,
    /// What passed between it and the others, in all its lives.
    pub(crate) peers: Vec<Pair>,
    /// Of lives that have ended.
    #[serde(skip)]
    before: Vec<Pair>,
    #[serde(skip)]
    number: u32,
}

fn seconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

impl Report {
    /// Nothing as yet.
    pub(crate) fn new(size: usize) -> Self {
        let node = Node {
            life: Life::Starting,
            peers: vec![Pair::default(); size],
            before: vec![Pair::default(); size],
            number: 0,
        };
        Self { elapsed: Duration::ZERO, deaths: 0, nodes: vec![node; size] }
    }

    /// Takes in what a node says in one of its lives.
    pub(crate) fn note(&mut self, rank: usize, life: u32, row: Row) {
        let Some(node) = self.nodes.get_mut(rank) else {
            return;
        };
        if node.life == Life::Starting {
            node.life = Life::Running;
        }
        if life > node.number {
            node.number = life;
            node.before.clone_from(&node.peers);
        }
        if life == node.number && row.peers.len() == node.peers.len() {
            let both = node.before.iter().zip(&row.peers);
            node.peers = both.map(|(before, now)| before.plus(now)).collect();
        }
    }

    pub(crate) fn life(&self, rank: usize) -> Life {
        self.nodes.get(rank).map_or(Life::Failed, |node| node.life)
    }

    pub(crate) fn set_life(&mut self, rank: usize, life: Life) {
        if let Some(node) = self.nodes.get_mut(rank) {
            node.life = life;
        }
    }

    /// Blocks that were not what they should have been.
    pub(crate) fn errors(&self) -> u64 {
        self.pairs().map(|(_, _, pair)| pair.spoilt + pair.misplaced).sum()
    }

    /// Nodes that ended and should not have.
    pub(crate) fn failed(&self) -> usize {
        self.nodes.iter().filter(|node| node.life == Life::Failed).count()
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize, &Pair)> {
        self.nodes.iter().enumerate().flat_map(|(rank, node)| {
            let others = node.peers.iter().enumerate().filter(move |(peer, _)| *peer != rank);
            others.map(move |(peer, pair)| (rank, peer, pair))
        })
    }

    fn total_bytes(&self) -> u64 {
        self.pairs().map(|(_, _, pair)| pair.received_bytes).sum()
    }

    fn gbits(&self, bytes: u64) -> f64 {
        let rate = stats::per_second(bytes, self.elapsed);
        stats::to_f64(rate) * 8.0 / 1e9
    }

    /// The largest rate of a pair over the smallest; `None` if that is zero.
    pub(crate) fn fairness(&self) -> Option<f64> {
        let rates = || self.pairs().map(|(_, _, pair)| pair.received);
        let (least, most) = (rates().min().unwrap_or(0), rates().max().unwrap_or(0));
        stats::ratio(most, least)
    }

    /// A line for each node.
    pub(crate) fn table(&self) -> String {
        let mut text = format!(
            "{:>5} {:>8} {:>12} {:>12} {:>9} {:>9} {:>8} {:>8} {:>6}\n",
            "node",
            "state",
            "sent",
            "received",
            "Gbit/s in",
            "p99 µs",
            "resent",
            "losses",
            "errors"
        );
        for (rank, node) in self.nodes.iter().enumerate() {
            let sum = |of: fn(&Pair) -> u64| node.peers.iter().map(of).sum::<u64>();
            let p99 = node.peers.iter().map(|pair| pair.p99_ns).max().unwrap_or(0);
            let _ = writeln!(
                text,
                "{rank:>5} {:>8} {:>12} {:>12} {:>9.3} {:>9.1} {:>8} {:>8} {:>6}",
                node.life.name(),
                sum(|pair| pair.sent),
                sum(|pair| pair.received),
                self.gbits(sum(|pair| pair.received_bytes)),
                stats::to_f64(p99) / 1e3,
                sum(|pair| pair.resent),
                sum(|pair| pair.losses),
                sum(|pair| pair.spoilt + pair.misplaced),
            );
        }
        text
    }

    /// How it stands, in one line.
    pub(crate) fn line(&self) -> String {
        let at_work = |node: &&Node| matches!(node.life, Life::Running | Life::Back);
        format!(
            "{:.0} s, {} of {} nodes at work, {:.3} Gbit/s in all, {} spoilt, lost or repeated",
            self.elapsed.as_secs_f64(),
            self.nodes.iter().filter(at_work).count(),
            self.nodes.len(),
            self.gbits(self.total_bytes()),
            self.errors(),
        )
    }

    /// The rate of each pair, senders down, receivers across.
    pub(crate) fn matrix(&self) -> String {
        let mut text = "Gbit/s, senders down, receivers across:\n      ".to_owned();
        for rank in 0..self.nodes.len() {
            let _ = write!(text, "{rank:>8}");
        }
        for from in 0..self.nodes.len() {
            let _ = write!(text, "\n{from:>6}");
            for to in 0..self.nodes.len() {
                match self.rate(from, to) {
                    Some(rate) => drop(write!(text, "{rate:>8.3}")),
                    None => text.push_str("       -"),
                }
            }
        }
        let _ = writeln!(
            text,
            "\n{:.1} s; {:.3} Gbit/s in all; fastest pair over slowest: {}; {} spoilt, lost or \
             repeated",
            self.elapsed.as_secs_f64(),
            self.gbits(self.total_bytes()),
            self.fairness().map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
            self.errors(),
        );
        text
    }

    /// What arrived of what `from` sent to `to`.
    fn rate(&self, from: usize, to: usize) -> Option<f64> {
        let pair = self.nodes.get(to)?.peers.get(from).filter(|_| from != to)?;
        Some(self.gbits(pair.received_bytes))
    }

    /// The matrix as a picture.
    pub(crate) fn svg(&self) -> String {
        let size = self.nodes.len();
        let all = || (0..size).flat_map(|from| (0..size).filter_map(move |to| self.rate(from, to)));
        let most = all().fold(f64::MIN_POSITIVE, f64::max);
        let side = CELL * (size + 1) + MARGIN;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{side}\" height=\"{side}\" \
             font-family=\"sans-serif\" font-size=\"11\" text-anchor=\"middle\">\n\
             <title>Gbit/s, senders down, receivers across</title>\n"
        );
        for rank in 0..size {
            let at = CELL * (rank + 1) + CELL / 2;
            let _ = writeln!(text, "<text x=\"{at}\" y=\"{}\">{rank}</text>", CELL / 2);
            let _ = writeln!(text, "<text x=\"{}\" y=\"{}\">{rank}</text>", CELL / 2, at + 4);
        }
        for from in 0..size {
            for to in 0..size {
                let (x, y) = (CELL * (to + 1), CELL * (from + 1));
                let (fill, label) = match self.rate(from, to) {
                    // From pale yellow to deep red.
                    Some(rate) => (
                        format!("hsl(40 90% {:.0}%)", 95.0 - 50.0 * rate / most),
                        format!("{rate:.2}"),
                    ),
                    None => ("#ddd".to_owned(), String::new()),
                };
                let _ = writeln!(
                    text,
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{CELL}\" height=\"{CELL}\" fill=\"{fill}\" \
                     stroke=\"white\"><title>{from} to {to}: {label} Gbit/s</title></rect>\
                     <text x=\"{}\" y=\"{}\">{label}</text>",
                    x + CELL / 2,
                    y + CELL / 2 + 4,
                );
            }
        }
        text + "</svg>\n"
    }
}

impl Pair {
    /// What passed in both of two lives.
    fn plus(&self, other: &Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            received: self.received + other.received,
            received_bytes: self.received_bytes + other.received_bytes,
            spoilt: self.spoilt + other.spoilt,
            misplaced: self.misplaced + other.misplaced,
            up: other.up,
            losses: self.losses + other.losses,
            resent: self.resent + other.resent,
            p99_ns: self.p99_ns.max(other.p99_ns),
        }
    }
}

/// Sizes of the picture, in pixels.
const CELL: usize = 48;
const MARGIN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(received: u64) -> Row {
        let pair = Pair { received, received_bytes: received * 1_000_000, ..Pair::default() };
        Row { peers: vec![pair.clone(), pair], ..Row::default() }
    }

    #[test]
    fn a_node_that_comes_back_adds_to_what_it_did_before() {
        let mut report = Report::new(2);
        report.note(0, 0, row(5));
        report.note(0, 0, row(7));
        report.note(0, 1, row(1));
        report.note(0, 1, row(2));
        report.note(0, 0, row(100)); // Late words of an earlier life.
        assert_eq!(report.nodes[0].peers[1].received, 9);
    }

    #[test]
    fn the_matrix_and_the_picture_have_a_place_for_each_pair() {
        let mut report = Report::new(2);
        report.elapsed = Duration::from_secs(1);
        report.note(1, 0, row(250));
        report.note(0, 0, row(125));
        assert!(
            report.matrix().contains("     0       -   2.000\n     1   1.000       -"),
            "{}",
            report.matrix()
        );
        assert_eq!(report.fairness(), Some(2.0));
        let svg = report.svg();
        assert_eq!(svg.matches("<rect").count(), 4);
        assert!(svg.contains("0 to 1: 2.00 Gbit/s"), "{svg}");
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }
}
