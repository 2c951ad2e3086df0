//! A report made of known figures, in each of the shapes in which it leaves.

use clap::Parser;
use serde_json::{Value as Json, json};

use super::csv::csv;
use super::screen::{Screen, Style};
use super::*;
use crate::args::BenchArgs;
use crate::bench::floor::Exchange;
use crate::terminal::Paint;

fn machine() -> Machine {
    Machine::look(true)
}

/// Three rounds of four jobs, in which the middle one counts.
fn report(floors: bool) -> Report {
    report_of(Path::Udp, floors)
}

fn report_of(path: Path, floors: bool) -> Report {
    let (findings, plan) = findings(path, floors);
    findings.report(machine(), &plan)
}

/// The tables of the same, row by row.
fn tables(path: Path, floors: bool, gbits: bool) -> String {
    let (findings, plan) = findings(path, floors);
    let mut screen = Screen::new(Style::Tables, gbits, Paint::default());
    screen.machine(machine());
    let jobs = plan.jobs_on(path);
    let rows = jobs.chunk_by(|one, next| one.is_in_row_of(*next));
    rows.map(|row| screen.text(&findings, row, &plan)).collect()
}

fn findings(path: Path, floors: bool) -> (Findings, Plan) {
    let no_floor = if floors { &[][..] } else { &["--no-floor"] };
    let words = ["bench", "-s", "64"].iter().chain(no_floor);
    let plan = Plan::new(&BenchArgs::try_parse_from(words).unwrap()).unwrap();
    let mut findings = Findings::of("soft_lo", 4096, path);
    for round in [3, 1, 2] {
        let latency = Percentiles { p50: round * 1000, p99: round * 2000, p999: round * 3000 };
        for job in plan.jobs_on(path) {
            findings.add(
                job,
                match job.quantity.test() {
                    Test::Latency => Figure::Latency(latency),
                    Test::Bandwidth | Test::Rate => Figure::PerSecond(round * 1_000_000_000),
                },
            );
            let Some(spec) = plan.floor(job, path, 4096) else {
                continue;
            };
            let value = match job.quantity.test() {
                Test::Rate if spec.post_list().is_some() => {
                    FloorValue::MessagesPerSecond(round * 4_000_000_000)
                }
                Test::Rate | Test::Bandwidth => FloorValue::BytesPerSecond(round * 4_000_000_000),
                Test::Latency => FloorValue::RoundTrip(latency),
            };
            findings.add_floor(spec, value);
        }
        if floors {
            let exchange = Exchange { bytes: 64, reply_bytes: 64 };
            findings.add_floor(FloorSpec::TcpPingpong(exchange), FloorValue::RoundTrip(latency));
            let rate = FloorValue::BytesPerSecond(round * 500_000_000);
            findings.add_floor(FloorSpec::TcpStream, rate);
        }
    }
    (findings, plan)
}

fn find(json: &Json, test: &str, op: &str, key: &str) -> Json {
    let of = |r: &&Json| r["test"] == test && r["op"] == op && r.get(key).is_some();
    json["results"].as_array().unwrap().iter().find(of).unwrap().clone()
}

#[test]
fn the_json_has_the_documented_shape() {
    let json = serde_json::to_value(report(true)).unwrap();
    assert_eq!(
        find(&json, "latency", "send", "half_rtt_ns"),
        json!({
            "test": "latency", "op": "send", "path": "udp", "bytes": 64,
            "half_rtt_ns": {"p50": 2000, "p99": 4000, "p999": 6000},
            "floor": {"name": "udp_pingpong", "value": 1000}, "ratio": 2.0,
        })
    );
    assert_eq!(
        find(&json, "latency", "read", "completion_ns"),
        json!({
            "test": "latency", "op": "read", "path": "udp", "bytes": 64,
            "completion_ns": {"p50": 2000, "p99": 4000, "p999": 6000},
            "floor": {"name": "udp_pingpong", "value": 2000}, "ratio": 1.0,
        })
    );
    assert_eq!(
        find(&json, "bandwidth", "write", "bytes_per_s"),
        json!({
            "test": "bandwidth", "op": "write", "path": "udp", "bytes": 64, "buffers": "round_robin",
            "bytes_per_s": 2_000_000_000_u64,
            "floor": {"name": "udp_stream", "value": 8_000_000_000_u64}, "ratio": 0.25, "tcp_ratio": 2.0,
        })
    );
    assert_eq!(
        find(&json, "rate", "write", "messages_per_s"),
        json!({
            "test": "rate", "op": "write", "path": "udp", "bytes": 64, "post_list": 1,
            "messages_per_s": 2_000_000_000_u64,
            "floor": {"name": "udp_stream", "value": 83_333_333}, "ratio": 24.0,
        })
    );
    let tcp =
        json["floors"].as_array().unwrap().iter().find(|f| f["name"] == "tcp_stream").unwrap();
    assert_eq!(
        *tcp,
        json!({"name": "tcp_stream", "path": "udp", "bytes": 1 << 20, "bytes_per_s": 1_000_000_000})
    );
    for key in ["cpu", "cpus", "kernel", "memory_bytes", "adverb", "pinned", "device", "mtu"] {
        assert!(json["machine"].get(key).is_some(), "{key}");
    }
}

/// A message crosses shared memory once, answered or not.
#[test]
fn shared_memory_stands_on_floors_of_its_own() {
    let json = serde_json::to_value(report_of(Path::Shm, true)).unwrap();
    for (op, key) in [("send", "half_rtt_ns"), ("read", "completion_ns")] {
        let found = find(&json, "latency", op, key);
        assert_eq!(found["floor"], json!({"name": "shm_pingpong", "value": 1000}), "{found}");
    }
    let rate = find(&json, "rate", "send", "messages_per_s");
    assert_eq!(rate["floor"], json!({"name": "ring", "value": 8_000_000_000_u64}));
    let floors = json["floors"].as_array().unwrap();
    let floor = |name: &str, key: &str| {
        let of = |f: &&Json| f["name"] == name && f["path"] == "shm";
        floors.iter().filter(of).map(|f| f[key].clone()).collect::<Vec<_>>()
    };
    assert_eq!(floor("memcpy", "buffers"), ["one", "round_robin"]);
    assert_eq!(floor("ring", "post_list"), [1, 32]);
    let text = tables(Path::Shm, true, true);
    for line in ["bare ring", "memcpy", "Bandwidth of READ, memory of the caller's own, Gbit/s"] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
    let callers = report_of(Path::Shm, true).results;
    assert_eq!(callers.iter().filter(|r| r.memory == Some(Memory::Caller)).count(), 3);
}

#[test]
fn json_survives_reading_it_back() {
    let report = report(true);
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
}

#[test]
fn without_floors_there_is_neither_floor_nor_ratio() {
    let report = report(false);
    assert!(report.floors.is_empty());
    assert!(report.results.iter().all(|r| r.floor.is_none() && r.ratio.is_none()));
    assert!(!tables(Path::Udp, false, false).contains("plain sockets"));
}

#[test]
fn csv_has_as_many_fields_in_every_line() {
    let text = csv(&report(true));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 1 + report(true).results.len());
    let fields = lines[0].split(',').count();
    assert!(lines.iter().all(|line| line.split(',').count() == fields), "{text}");
    let half = "latency,send,udp,64,,half_rtt_ns,2000,4000,6000,udp_pingpong,1000,2,,,";
    assert!(lines.contains(&half), "{text}");
}

#[test]
fn tables_show_both_latencies_and_both_bandwidths() {
    let text = tables(Path::Udp, true, true);
    let squeezed: Vec<String> =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "Latency of SEND, µs; floor and ratio of the half round trip",
        "64 2.00 4.00 6.00 2.00 4.00 6.00 1.00 2.00",
        "Latency of READ, µs; floor and ratio of the completion",
        "64 2.00 4.00 6.00 2.00 1.00",
        "Bandwidth of WRITE, one buffer, Gbit/s",
        "64 16.00 64.00 0.25 2.00",
        "WRITE 64 1 2000.000 83.333 24.00",
    ] {
        assert!(squeezed.iter().any(|l| l == line), "no line {line:?} in\n{text}");
    }
    assert!(tables(Path::Udp, true, false).contains("1907.3"), "MiB/s");
}

#[test]
fn columns_are_flush_right() {
    let text = tables(Path::Udp, true, true);
    let table: Vec<_> =
        text.lines().skip_while(|l| !l.starts_with("Bandwidth")).skip(1).take(2).collect();
    assert_eq!(table[0].chars().count(), table[1].chars().count(), "{table:?}");
}

#[test]
fn a_limit_that_is_not_met_is_named() {
    let report = report(true);
    report.check(Limits::default()).unwrap();
    report.check(Limits { gbits: Some(16.0), mmsgs: Some(2000.0), usec: Some(2.0) }).unwrap();
    for (limits, hint) in [
        (Limits { gbits: Some(16.1), ..Limits::default() }, "16.000 Gbit/s"),
        (Limits { mmsgs: Some(2001.0), ..Limits::default() }, "2000.000 million"),
        (Limits { usec: Some(1.9), ..Limits::default() }, "2.000 µs"),
    ] {
        match report.check(limits) {
            Err(Failure::LimitNotMet(why)) => assert!(why.contains(hint), "{why}"),
            other => panic!("{limits:?}: {other:?}"),
        }
    }
}

#[test]
fn the_picture_has_a_chart_of_each_quantity_and_the_page_every_figure() {
    let mut report = report(true);
    report.machine.cpu = "<b>\"fast\" & new".to_owned();
    let svg = plot::svg(&report);
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{svg}");
    for part in [
        "Latency, µs",
        "Bandwidth, GB/s",
        "Share of the floor",
        "&lt;b&gt;&quot;fast&quot; &amp; new",
    ] {
        assert!(svg.contains(part), "no {part:?} in\n{svg}");
    }
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    let page = plot::html(&report);
    assert!(page.contains(&svg), "the picture is in the page");
    assert_eq!(page.matches("<tr><td>").count(), report.results.len());
    for part in ["<script", "http://", "https://"] {
        let known = page.matches("http://www.w3.org/2000/svg").count();
        let expected = if part == "http://" { known } else { 0 };
        assert_eq!(page.matches(part).count(), expected, "{part}: nothing from elsewhere");
    }
}

#[test]
fn a_small_figure_has_two_digits_and_is_not_nothing() {
    for (number, text) in [
        (0.0, "0.00"),
        (0.000_56, "0.00056"),
        (0.049, "0.049"),
        (0.1, "0.10"),
        (0.58, "0.58"),
        (9.96, "10.0"),
        (346.0, "346"),
    ] {
        assert_eq!(summary::short(number), text);
    }
}

#[test]
fn a_picture_of_nothing_is_a_picture() {
    let mut report = report(false);
    report.results.clear();
    assert!(plot::svg(&report).ends_with("</svg>\n"));
    report = self::report(false);
    assert!(!plot::svg(&report).contains("NaN"));
}

/// What a terminal shows is what a pipe gets, and colours.
#[test]
fn ratios_have_bars_where_they_fit() {
    let results = report(true).results;
    let record = results.iter().find(|record| record.ratio == Some(2.0)).unwrap();
    let plain = summary::line(record, false, Paint::default());
    assert!(plain.ends_with("2.0\n") && plain.chars().count() == 81, "{plain:?}");
    let wide = summary::line(record, false, Paint::new(false, 120));
    assert_eq!(wide, plain.replace('\n', " █████\n"));
    assert!(summary::line(record, false, Paint::new(true, 80)).contains("\x1b[33m2.0\x1b[0m"));
}
