//! A report as tables for people.

use std::fmt::Write;

use super::summary::headline;
use super::{FloorFigure, Path, Record, Report, Value};
use crate::args::{Op, Test};
use crate::bench::plan::{Buffers, Memory};
use crate::bench::stats::{Percentiles, to_f64};

/// All tables, those of each path together. Bandwidth is in Gbit/s or MiB/s.
pub(crate) fn tables(report: &Report, gbits: bool) -> String {
    let mut text = String::new();
    for path in [Path::Udp, Path::Shm, Path::Local, Path::Hw] {
        let of_path = |record: &&Record| record.path == path;
        let results: Vec<_> = report.results.iter().filter(of_path).cloned().collect();
        if results.is_empty() && (path != Path::Udp || !report.results.is_empty()) {
            continue;
        }
        let floors = report.floors.iter().filter(|floor| floor.path == path).cloned().collect();
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&tables_of(&Report { results, floors, ..report.clone() }, gbits));
    }
    text
}

/// All tables of one path.
fn tables_of(report: &Report, gbits: bool) -> String {
    let path = report.results.first().map_or(Path::Udp, |record| record.path);
    let mut text = headline(&report.machine, Some(path));
    text.push_str(&sockets(report, gbits));
    for op in OPS {
        text.push_str(&latency(report, op));
    }
    for op in OPS {
        for buffers in [Buffers::RoundRobin, Buffers::One] {
            text.push_str(&bandwidth(report, op, buffers, None, gbits));
        }
    }
    for op in OPS {
        text.push_str(&bandwidth(report, op, Buffers::RoundRobin, Some(Memory::Caller), gbits));
    }
    text.push_str(&rates(report));
    text
}

/// What plain sockets reach, in one line.
fn sockets(report: &Report, gbits: bool) -> String {
    let trip = |name, word| {
        let half = half_trip(report, name, 64)?;
        Some(format!("{word} {} µs", usec(half)))
    };
    let rate = |name, word| {
        let rate = stream(report, name)?;
        Some(format!("{word} stream {} {}", speed(rate, gbits), unit(gbits)))
    };
    let trips =
        [trip("udp_pingpong", "UDP"), trip("unix_pingpong", "UNIX"), trip("tcp_pingpong", "TCP")];
    let rates = [rate("unix_stream", "UNIX"), rate("tcp_stream", "TCP")];
    let parts: Vec<_> = trips.into_iter().chain(rates).flatten().collect();
    if parts.is_empty() {
        return String::new();
    }
    format!("plain sockets, 64 bytes one way: {}\n", parts.join(", "))
}

/// Both latencies of one operation.
fn latency(report: &Report, op: Op) -> String {
    let two_ways = op != Op::Read;
    let mut heads = vec!["bytes", "p50", "p99", "p99.9"];
    let mut groups = vec![(1, ""), (3, "post to completion")];
    if two_ways {
        heads.extend(["p50", "p99", "p99.9"]);
        groups.push((3, "half round trip"));
    }
    heads.extend(["floor", "ratio"]);
    let sockets = is_shm(report) && op == Op::Send;
    if sockets {
        heads.extend(["UNIX", "TCP"]);
    }
    let title = match op {
        Op::Send | Op::Write => {
            format!("Latency of {op}, µs; floor and ratio of the half round trip")
        }
        Op::Read => format!("Latency of {op}, µs; floor and ratio of the completion"),
    };
    let mut table = Table::new(title, &heads);
    table.groups = groups;
    let of = |record: &&Record| record.test == Test::Latency && record.op == op;
    for first in
        report.results.iter().filter(of).filter(|r| matches!(r.value, Value::Completion(_)))
    {
        let Value::Completion(completion) = first.value else {
            continue;
        };
        let half = report.results.iter().filter(of).find_map(|record| match record.value {
            Value::HalfRoundTrip(half) if record.bytes == first.bytes => Some((record, half)),
            Value::HalfRoundTrip(_)
            | Value::Completion(_)
            | Value::BytesPerSecond(_)
            | Value::MessagesPerSecond(_) => None,
        });
        let mut row = vec![size(first.bytes)];
        row.extend(three(completion));
        if let Some((_, half)) = half {
            row.extend(three(half));
        }
        let compared = half.map_or(first, |(record, _)| record);
        row.push(compared.floor.as_ref().map(|floor| usec(floor.value)).unwrap_or_default());
        row.push(times(compared.ratio));
        if sockets {
            let of = |name| half_trip(report, name, first.bytes).map(usec).unwrap_or_default();
            row.extend(["unix_pingpong", "tcp_pingpong"].map(of));
        }
        table.row(row);
    }
    table.print()
}

/// Bandwidth of one operation.
fn bandwidth(
    report: &Report,
    op: Op,
    buffers: Buffers,
    memory: Option<Memory>,
    gbits: bool,
) -> String {
    let how = match (buffers, memory) {
        (_, Some(Memory::Caller)) => "memory of the caller's own",
        (Buffers::RoundRobin, Some(Memory::Library) | None) => "buffers in turn",
        (Buffers::One, Some(Memory::Library) | None) => "one buffer",
    };
    let title = format!("Bandwidth of {op}, {how}, {}", unit(gbits));
    let floor = if is_shm(report) { "memcpy" } else { "UDP stream" };
    let heads = ["bytes", "bandwidth", floor, "ratio", "of TCP stream"];
    let mut table = Table::new(title, &heads);
    let of = |r: &&Record| r.op == op && r.buffers == Some(buffers) && r.memory == memory;
    for record in report.results.iter().filter(of) {
        let ours = record.value.compared();
        let floor = record.floor.as_ref();
        table.row(vec![
            size(record.bytes),
            speed(ours, gbits),
            floor.map(|floor| speed(floor.value, gbits)).unwrap_or_default(),
            times(record.ratio),
            times(record.tcp_ratio),
        ]);
    }
    table.print()
}

/// All message rates.
fn rates(report: &Report) -> String {
    let floor = if is_shm(report) { "bare ring" } else { "UDP packets" };
    let heads = ["operation", "bytes", "in a post", "rate", floor, "ratio"];
    let mut table = Table::new("Message rate, millions a second".to_owned(), &heads);
    for record in report.results.iter().filter(|record| record.test == Test::Rate) {
        let floor = record.floor.as_ref();
        table.row(vec![
            record.op.to_string(),
            size(record.bytes),
            record.post_list.map(|list| list.to_string()).unwrap_or_default(),
            millions(record.value.compared()),
            floor.map(|floor| millions(floor.value)).unwrap_or_default(),
            times(record.ratio),
        ]);
    }
    table.print()
}

/// The floors are those of shared memory.
fn is_shm(report: &Report) -> bool {
    report.results.first().is_some_and(|record| record.path == Path::Shm)
}

/// Half a ping-pong of messages of one length, in nanoseconds.
fn half_trip(report: &Report, name: &str, bytes: u64) -> Option<u64> {
    report.floors.iter().find_map(|floor| match floor.value {
        FloorFigure::RoundTrip(rtt)
            if floor.name == name && floor.bytes == bytes && floor.reply_bytes == Some(bytes) =>
        {
            Some(rtt.halved().p50)
        }
        FloorFigure::RoundTrip(_)
        | FloorFigure::BytesPerSecond(_)
        | FloorFigure::MessagesPerSecond(_) => None,
    })
}

/// What a stream of sockets reaches, in bytes a second.
fn stream(report: &Report, name: &str) -> Option<u64> {
    report.floors.iter().find_map(|floor| match floor.value {
        FloorFigure::BytesPerSecond(rate) if floor.name == name => Some(rate),
        FloorFigure::BytesPerSecond(_)
        | FloorFigure::RoundTrip(_)
        | FloorFigure::MessagesPerSecond(_) => None,
    })
}

/// Columns of text, flush right.
#[derive(Debug)]
struct Table {
    title: String,
    /// How many columns stand under a head of their own, from the left.
    groups: Vec<(usize, &'static str)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(title: String, heads: &[&str]) -> Self {
        Self {
            title,
            groups: Vec::new(),
            rows: vec![heads.iter().map(|&head| head.to_owned()).collect()],
        }
    }

    fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table under its title; nothing if it has only heads.
    fn print(&self) -> String {
        if self.rows.len() < 2 {
            return String::new();
        }
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let mut text = format!("\n{}\n", self.title);
        let mut rest = widths.iter();
        for (count, head) in &self.groups {
            let width: usize = rest.by_ref().take(*count).map(|width| width + 2).sum();
            let _ = write!(text, "{head:>width$}");
        }
        if !self.groups.is_empty() {
            text.push('\n');
        }
        for row in &self.rows {
            for (cell, width) in row.iter().zip(&widths) {
                // Writing to a string does not fail.
                let _ = write!(text, "  {cell:>width$}");
            }
            text.push('\n');
        }
        text
    }
}

/// Three percentiles in microseconds.
fn three(percentiles: Percentiles) -> [String; 3] {
    [percentiles.p50, percentiles.p99, percentiles.p999].map(usec)
}

/// Nanoseconds as microseconds.
fn usec(ns: u64) -> String {
    format!("{:.2}", to_f64(ns) / 1e3)
}

/// A length, short where it is a power of two.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// Bytes a second in the unit that the user wants.
fn speed(bytes_per_s: u64, gbits: bool) -> String {
    if gbits {
        format!("{:.2}", to_f64(bytes_per_s) * 8.0 / 1e9)
    } else {
        format!("{:.1}", to_f64(bytes_per_s) / f64::from(1_u32 << 20))
    }
}

/// The name of that unit.
const fn unit(gbits: bool) -> &'static str {
    if gbits { "Gbit/s" } else { "MiB/s" }
}

/// A rate in millions.
fn millions(per_s: u64) -> String {
    format!("{:.3}", to_f64(per_s) / 1e6)
}

/// A ratio, or nothing.
fn times(ratio: Option<f64>) -> String {
    ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default()
}

/// In the order in which they are printed.
const OPS: [Op; 3] = [Op::Send, Op::Write, Op::Read];
