//! The main figures of a run, a line each, and what they come to.

use super::table::size;
use super::{Path, Record, Value};
use crate::args::Test;
use crate::bench::plan::Buffers;
use crate::bench::stats::to_f64;
use crate::terminal::{Colour, Paint};

/// The heads of the columns of a path, whose first record this is.
pub(super) fn heads(first: &Record, paint: Paint) -> String {
    let [floor, ratio] = if first.floor.is_some() { ["floor", "ratio"] } else { [""; 2] };
    let path = first.path.to_string();
    let line = row([&path, "Adverb", floor, "", ratio]);
    format!("{}\n", paint.colour(Colour::Bold, &line))
}

/// One figure beside its floor.
pub(super) fn line(record: &Record, gbits: bool, paint: Paint) -> String {
    let ours = figure(record.value, record.value.compared(), gbits);
    let floor = record.floor.as_ref();
    let theirs = floor.map(|floor| figure(record.value, floor.value, gbits)).unwrap_or_default();
    let ratio = record.ratio.map(short).unwrap_or_default();
    let name = floor.map_or("", |floor| plain(&floor.name));
    let line = row([&what(record), &ours, &theirs, name, &ratio]);
    let Some(share) = record.share() else {
        return format!("{line}\n");
    };
    // The ratio is what the line ends with.
    let (start, _) = line.split_at(line.len() - ratio.len());
    let bar = paint.bar(share, LINE + 1);
    format!("{}\n", format!("{start}{} {bar}", paint.graded(share, &ratio)).trim_end())
}

fn row([what, ours, floor, name, ratio]: [&str; 5]) -> String {
    let line = format!("{what:<36}{ours:>11}{floor:>12}  {name:<13} {ratio:>5}");
    line.trim_end().to_owned()
}

/// What was measured.
pub(super) fn what(record: &Record) -> String {
    let how = match (record.value, record.buffers, record.post_list) {
        (Value::HalfRoundTrip(_), ..) => "half round trip",
        (Value::Completion(_), ..) => "post to completion",
        (Value::BytesPerSecond(_), ..) if record.memory.is_some() => "bandwidth, own memory",
        (Value::BytesPerSecond(_), Some(Buffers::One), _) => "bandwidth, one buffer",
        (Value::BytesPerSecond(_), Some(Buffers::RoundRobin) | None, _) => "bandwidth",
        (Value::MessagesPerSecond(_), _, Some(1) | None) => "message rate",
        (Value::MessagesPerSecond(_), _, Some(list)) => {
            return format!("{} {}B, message rate, {list} a post", record.op, bytes(record));
        }
    };
    format!("{} {}B, {how}", record.op, bytes(record))
}

/// A length before its unit: "64 ", "64 Ki".
fn bytes(record: &Record) -> String {
    let size = size(record.bytes);
    match size.strip_suffix(['K', 'M']) {
        Some(number) => format!("{number} {}i", &size[number.len()..]),
        None => format!("{size} "),
    }
}

/// A number with the unit of `value`.
pub(super) fn figure(value: Value, number: u64, gbits: bool) -> String {
    let number = to_f64(number);
    match value {
        Value::Completion(_) | Value::HalfRoundTrip(_) => format!("{} µs", short(number / 1e3)),
        Value::BytesPerSecond(_) if gbits => format!("{} Gbit/s", short(number * 8.0 / 1e9)),
        Value::BytesPerSecond(_) => format!("{} GB/s", short(number / 1e9)),
        Value::MessagesPerSecond(_) => format!("{} M/s", short(number / 1e6)),
    }
}

/// Two digits, or all before the point.
pub(super) fn short(number: f64) -> String {
    match number {
        // 0.00 would say that there is nothing.
        LEAST..0.1 => {
            let zeros = (1..PLACES_MAX).find(|&place| number * 10_f64.powi(place) >= 1.0);
            let places = usize::try_from(zeros.unwrap_or(PLACES_MAX) + 1).unwrap_or_default();
            format!("{number:.places$}")
        }
        0.0..1.0 => format!("{number:.2}"),
        1.0..10.0 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

/// Below this a number is nothing.
const LEAST: f64 = 1e-6;
const PLACES_MAX: i32 = 6;

/// How a floor was measured, for people.
fn plain(floor: &str) -> &str {
    match floor {
        "udp_pingpong" => "UDP ping-pong",
        "udp_stream" => "UDP stream",
        "tcp_pingpong" => "TCP ping-pong",
        "shm_pingpong" => "a cache line",
        "ring" => "the bare ring",
        other => other,
    }
}

/// Characters of a line.
const LINE: usize = 80;

/// What to try next, by what has been measured.
pub(super) fn advice(results: &[Record]) -> &'static str {
    let slow = |record: &Record| {
        record.path == Path::Udp && record.share().is_some_and(|share| share < SLOW)
    };
    match results.iter().filter(|record| record.test != Test::Rate).any(slow) {
        true => {
            "Slow for this machine? `adverb doctor` says what costs speed here, and the cure.\n"
        }
        false => {
            "Next: `adverb bench --html bench.html` draws every size;\n\
             `adverb bench --server` here and `adverb bench HOST` there measure a network;\n\
             `adverb run -- PROGRAM` runs programs of libibverbs.\n"
        }
    }
}

/// A share of the floor that good machines are above.
const SLOW: f64 = 0.4;

/// One sentence on how far the figures are from their floors; `None` without floors.
pub(super) fn verdict(results: &[Record]) -> Option<String> {
    let clauses: Vec<_> = [Path::Hw, Path::Udp, Path::Shm, Path::Local]
        .into_iter()
        .filter_map(|path| {
            let of = |test| {
                let of = |record: &&Record| record.path == path && record.test == test;
                middle(results.iter().filter(of).filter_map(|record| record.ratio).collect())
            };
            let (latency, bandwidth) = (of(Test::Latency)?, of(Test::Bandwidth)?);
            let [way, trip, stream] = match path {
                Path::Udp => ["Over UDP", "bare datagrams", "their bandwidth"],
                Path::Hw => ["Over the NIC", "bare datagrams", "their bandwidth"],
                Path::Shm => ["through shared memory", "a cache line", "memcpy"],
                Path::Local => ["within the process", "bare datagrams", "their bandwidth"],
            };
            Some(format!(
                "{way}, small messages take {} times as long as {trip},\n\
                 and streams reach {} of {stream}",
                short(latency),
                short(bandwidth)
            ))
        })
        .collect();
    (!clauses.is_empty()).then(|| format!("{}.\n", clauses.join(";\n")))
}

/// The median; of an even number the lower of the two.
fn middle(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len().checked_sub(1)? / 2).copied()
}
