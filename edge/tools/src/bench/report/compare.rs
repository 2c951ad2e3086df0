//! Two runs side by side: each figure before and now, and how far both are from their floors.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path as File;

use serde_json::Value as Json;

use super::summary::{figure, short, what};
use super::{Record, Report};
use crate::args::Test;
use crate::bench::stats::to_f64;
use crate::failure::{Doing, Failure};
use crate::output::SCHEMA_VERSION;
use crate::terminal::{Colour, Paint};

/// Reads a report that `bench --json` has written.
pub(crate) fn read(path: &File) -> Result<Report, Failure> {
    let name = path.display();
    let text = std::fs::read_to_string(path).doing(format_args!("reading {name}"))?;
    parse(&text).map_err(|why| Failure::failed(format!("{name} is no report of bench: {why}")))
}

fn parse(text: &str) -> Result<Report, String> {
    let json: Json = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let version = json.get("schema_version").and_then(Json::as_u64);
    if version != Some(SCHEMA_VERSION.into()) {
        let found = version.map_or("none".to_owned(), |version| version.to_string());
        return Err(format!(
            "its schema_version is {found}, this command reads {SCHEMA_VERSION}; \
             `adverb bench -o FILE` writes one"
        ));
    }
    serde_json::from_value(json).map_err(|error| error.to_string())
}

/// Prints what both runs have measured.
pub(crate) fn show(
    before: &Report,
    now: &Report,
    gbits: bool,
    paint: Paint,
) -> Result<(), Failure> {
    let text = text(before, now, gbits, paint).ok_or(Failure::failed(
        "the two runs have no figure in common: measure the same sizes and operations",
    ))?;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).doing("printing the comparison")
}

fn text(before: &Report, now: &Report, gbits: bool, paint: Paint) -> Option<String> {
    let known: BTreeMap<_, _> = before.results.iter().map(|record| (key(record), record)).collect();
    let pairs: Vec<_> =
        now.results.iter().filter_map(|record| Some((*known.get(&key(record))?, record))).collect();
    let mut text = String::new();
    for (what, before, now) in [
        ("processor", &before.machine.cpu, &now.machine.cpu),
        ("kernel", &before.machine.kernel, &now.machine.kernel),
        ("version", &before.machine.adverb, &now.machine.adverb),
    ] {
        if before != now {
            let _ = writeln!(text, "Another {what}: {before} before, {now} now.");
        }
    }
    for pairs in pairs.chunk_by(|(_, one), (_, next)| one.path == next.path) {
        let (_, first) = pairs.first()?;
        let head = line(&first.path.to_string(), ["before", "now"], "change", ["ratio", "now"]);
        let _ = writeln!(text, "\n{}", paint.colour(Colour::Bold, &head));
        pairs.iter().for_each(|(before, now)| {
            let _ = writeln!(text, "{}", pair(before, now, gbits, paint));
        });
    }
    let gains: Vec<_> = pairs.iter().filter_map(|(before, now)| gain(before, now)).collect();
    let faster = gains.iter().filter(|gain| is_faster(**gain)).count();
    let slower = gains.iter().filter(|gain| is_faster(1.0 / **gain)).count();
    let _ = writeln!(
        text,
        "\nOf {} figures {faster} are faster and {slower} slower by more than {:.0} %; the ratios to the floors say \
         whether the machine was.",
        pairs.len(),
        NOTABLE * 100.0
    );
    (!pairs.is_empty()).then_some(text)
}

/// One figure of both.
fn pair(before: &Record, now: &Record, gbits: bool, paint: Paint) -> String {
    let of = |record: &Record| figure(record.value, record.value.compared(), gbits);
    let ratio = |record: &Record| record.ratio.map(short).unwrap_or_default();
    let gain = gain(before, now);
    // The sign is of speed: a latency that is shorter is faster.
    let change = gain.map_or("-".to_owned(), |gain| format!("{:+.0} %", (gain - 1.0) * 100.0));
    let text = line(&what(now), [&of(before), &of(now)], &change, [&ratio(before), &ratio(now)]);
    match gain {
        Some(gain) if is_faster(gain) => paint.colour(Colour::Good, &text),
        Some(gain) if is_faster(1.0 / gain) => paint.colour(Colour::Poor, &text),
        Some(_) | None => text,
    }
}

fn line(
    what: &str,
    [before, now]: [&str; 2],
    change: &str,
    [ratio, ratio_now]: [&str; 2],
) -> String {
    let line = format!("{what:<36}{before:>11}{now:>12}{change:>8}{ratio:>6}{ratio_now:>6}");
    line.trim_end().to_owned()
}

/// How many times as fast.
fn gain(before: &Record, now: &Record) -> Option<f64> {
    let (before, after) = (to_f64(before.value.compared()), to_f64(now.value.compared()));
    let gain = match now.test {
        Test::Latency => before / after,
        Test::Bandwidth | Test::Rate => after / before,
    };
    (gain.is_finite() && gain > 0.0).then_some(gain)
}

/// So many times as fast is more than noise.
fn is_faster(gain: f64) -> bool {
    gain > 1.0 + NOTABLE
}

/// What makes two figures the same measurement.
fn key(record: &Record) -> String {
    let Record { path, memory, post_list, .. } = record;
    // The words of a person leave out what figures of one path have in common.
    format!("{} {} {path} {memory:?} {post_list:?}", what(record), record.bytes)
}

/// Less is noise, on most machines.
const NOTABLE: f64 = 0.05;

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ns: u64, rate: u64) -> String {
        format!(
            r#"{{"schema_version": 1, "machine": {{"cpu": "c", "cpus": 2, "kernel": "k", "memory_bytes": 1,
            "adverb": "0", "pinned": true, "device": "soft_lo", "mtu": 4096}}, "rounds": 1, "floors": [], "results": [
            {{"test": "latency", "op": "send", "path": "udp", "bytes": 64, "half_rtt_ns": {{"p50": {ns}, "p99": 9,
            "p999": 9}}, "ratio": 1.5}},
            {{"test": "rate", "op": "send", "path": "shm", "bytes": 64, "post_list": 32, "messages_per_s": {rate}}}]}}"#
        )
    }

    #[test]
    fn a_shorter_latency_and_a_higher_rate_are_faster() {
        let (before, now) = (parse(&report(4000, 100)).unwrap(), parse(&report(2000, 50)).unwrap());
        let text = text(&before, &now, false, Paint::default()).unwrap();
        assert!(text.contains("4.0 µs      2.0 µs  +100 %   1.5   1.5\n"), "{text}");
        assert!(text.contains("-50 %\n"), "{text}");
        assert!(text.contains("Of 2 figures 1 are faster and 1 slower"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() < 120), "{text}");
    }

    #[test]
    fn what_is_no_report_of_this_schema_is_refused_and_says_why() {
        for (text, why) in [
            ("", "EOF"),
            ("{}", "its schema_version is none"),
            ("[]", "its schema_version is none"),
            (r#"{"schema_version": 2}"#, "its schema_version is 2, this command reads 1"),
            (r#"{"schema_version": 1}"#, "missing field"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn runs_with_nothing_in_common_are_not_compared() {
        let (before, mut now) = (parse(&report(1, 1)).unwrap(), parse(&report(1, 1)).unwrap());
        now.results.iter_mut().for_each(|record| record.bytes = 65);
        assert_eq!(text(&before, &now, false, Paint::default()), None);
    }
}
