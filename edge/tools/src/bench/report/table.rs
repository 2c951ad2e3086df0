//! Figures as rows of tables for people. Each is printed when it is known, so that columns are as wide as what
//! usually stands there.

use std::fmt::Write;

use super::{FloorFigure, FloorRecord, Path, Record, Value};
use crate::args::{Op, Test};
use crate::bench::plan::{Buffers, Memory};
use crate::bench::stats::{Percentiles, to_f64};

/// What stands over the rows of a table.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) title: String,
    /// How many columns stand under a head of their own, from the left.
    groups: Vec<(usize, &'static str)>,
    /// The head of each column, flush right, and how wide it is.
    columns: Vec<(&'static str, usize)>,
}

impl Table {
    /// The table that a record has its row in.
    pub(super) fn of(record: &Record, gbits: bool) -> Self {
        match record.test {
            Test::Latency => Self::of_latency(record),
            Test::Bandwidth => Self::of_bandwidth(record, gbits),
            Test::Rate => Self::of_rates(record),
        }
    }

    /// Both latencies of one operation.
    fn of_latency(record: &Record) -> Self {
        let op = record.op;
        let three = [("p50", TIME), ("p99", TIME), ("p99.9", TIME)];
        let mut columns = vec![("bytes", SIZE)];
        columns.extend(three);
        let mut groups = vec![(1, ""), (3, "post to completion")];
        let compared = match op {
            Op::Send | Op::Write => {
                columns.extend(three);
                groups.push((3, "half round trip"));
                "half round trip"
            }
            Op::Read => "completion",
        };
        columns.extend([("floor", TIME), ("ratio", RATIO)]);
        if has_sockets(record) {
            columns.extend([("UNIX", TIME), ("TCP", TIME)]);
        }
        let title = format!("Latency of {op}, µs; floor and ratio of the {compared}");
        Self { title, groups, columns }
    }

    /// Bandwidth of one operation.
    fn of_bandwidth(record: &Record, gbits: bool) -> Self {
        let how = match (record.buffers, record.memory) {
            (_, Some(Memory::Caller)) => "memory of the caller's own",
            (Some(Buffers::One), _) => "one buffer",
            (Some(Buffers::RoundRobin) | None, _) => "buffers in turn",
        };
        let title = format!("Bandwidth of {}, {how}, {}", record.op, unit(gbits));
        let floor = if record.path == Path::Shm { "memcpy" } else { "UDP stream" };
        let columns = vec![
            ("bytes", SIZE),
            ("bandwidth", SPEED),
            (floor, SPEED),
            ("ratio", RATIO),
            ("of TCP stream", RATIO),
        ];
        Self { title, groups: Vec::new(), columns }
    }

    /// All message rates.
    fn of_rates(record: &Record) -> Self {
        let floor = if record.path == Path::Shm { "bare ring" } else { "UDP packets" };
        let columns = vec![
            ("operation", SIZE),
            ("bytes", SIZE),
            ("in a post", SIZE),
            ("rate", TIME),
            (floor, TIME),
            ("ratio", RATIO),
        ];
        let title = "Message rate, millions a second".to_owned();
        Self { title, groups: Vec::new(), columns }
    }

    /// Everything over the first row.
    pub(super) fn head(&self) -> String {
        let mut text = format!("\n{}\n", self.title);
        let mut widths = self.widths();
        for (count, head) in &self.groups {
            let width: usize = widths.by_ref().take(*count).map(|width| width + 2).sum();
            // Writing to a string does not fail.
            let _ = write!(text, "{head:>width$}");
        }
        if !self.groups.is_empty() {
            text.push('\n');
        }
        let heads: Vec<_> = self.columns.iter().map(|(head, _)| (*head).to_owned()).collect();
        text + &self.row(&heads)
    }

    pub(super) fn row(&self, cells: &[String]) -> String {
        let mut text = String::new();
        for (cell, width) in cells.iter().zip(self.widths()) {
            let _ = write!(text, "  {cell:>width$}");
        }
        text + "\n"
    }

    fn widths(&self) -> impl Iterator<Item = usize> {
        self.columns.iter().map(|(head, width)| head.chars().count().max(*width))
    }
}

/// A row, of the records that are in it, beside floors.
pub(super) fn cells(records: &[Record], floors: &[FloorRecord], gbits: bool) -> Vec<String> {
    // Of two latencies the half round trip is compared.
    let Some(record) = records.last() else {
        return Vec::new();
    };
    let floor = |show: &dyn Fn(u64) -> String| {
        record.floor.as_ref().map(|floor| show(floor.value)).unwrap_or_default()
    };
    let (op, bytes) = (record.op, size(record.bytes));
    match record.value {
        Value::Completion(_) | Value::HalfRoundTrip(_) => {
            let mut row = vec![bytes];
            for value in records.iter().map(|record| record.value) {
                if let Value::Completion(latency) | Value::HalfRoundTrip(latency) = value {
                    row.extend(three(latency));
                }
            }
            row.extend([floor(&usec), times(record.ratio)]);
            if has_sockets(record) {
                let half = |name| half_trip(floors, name, record.bytes);
                let names = ["unix_pingpong", "tcp_pingpong"];
                row.extend(names.map(|name| half(name).map(usec).unwrap_or_default()));
            }
            row
        }
        Value::BytesPerSecond(ours) => {
            let speed = |rate| speed(rate, gbits);
            vec![bytes, speed(ours), floor(&speed), times(record.ratio), times(record.tcp_ratio)]
        }
        Value::MessagesPerSecond(ours) => {
            let list = record.post_list.map(|list| list.to_string()).unwrap_or_default();
            let (ours, floor) = (millions(ours), floor(&millions));
            vec![op.to_string(), bytes, list, ours, floor, times(record.ratio)]
        }
    }
}

/// Sockets of one host stand beside it, which a program would use instead.
fn has_sockets(record: &Record) -> bool {
    record.path == Path::Shm && record.op == Op::Send
}

/// What plain sockets reach, in one line.
pub(super) fn sockets(floors: &[FloorRecord], gbits: bool) -> String {
    let trip = |name, word| {
        let half = half_trip(floors, name, 64)?;
        Some(format!("{word} {} µs", usec(half)))
    };
    let rate = |name, word| {
        let rate = stream(floors, name)?;
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

/// Half a ping-pong of messages of one length, in nanoseconds.
fn half_trip(floors: &[FloorRecord], name: &str, bytes: u64) -> Option<u64> {
    floors.iter().find_map(|floor| match floor.value {
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
fn stream(floors: &[FloorRecord], name: &str) -> Option<u64> {
    floors.iter().find_map(|floor| match floor.value {
        FloorFigure::BytesPerSecond(rate) if floor.name == name => Some(rate),
        FloorFigure::BytesPerSecond(_)
        | FloorFigure::RoundTrip(_)
        | FloorFigure::MessagesPerSecond(_) => None,
    })
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

/// Characters of a column with lengths.
const SIZE: usize = 5;
/// Of one with microseconds, or millions a second.
const TIME: usize = 8;
/// Of one with bandwidths.
const SPEED: usize = 9;
/// Of one with ratios.
const RATIO: usize = 5;
