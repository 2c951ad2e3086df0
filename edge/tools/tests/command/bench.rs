//! `adverb bench`: what it prints has the shape that `docs/json.md` promises.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use super::{Server, adverb, stderr, stdout};

/// A run of few iterations, as JSON.
fn run(words: &[&str]) -> Value {
    let output = adverb(&[&["bench", "--json", "-n", "20"], words].concat());
    assert_eq!(output.status.code(), Some(0), "{words:?}: {}", stderr(&output));
    let json = serde_json::from_slice(&output.stdout).expect("valid JSON");
    check(&json);
    super::schema::check("bench", &json);
    json
}

/// Names and types of everything in a report.
fn check(json: &Value) {
    let machine = &json["machine"];
    for name in ["cpu", "kernel", "adverb", "device"] {
        assert!(machine[name].as_str().is_some_and(|text| !text.is_empty()), "{name}: {machine}");
    }
    for name in ["cpus", "memory_bytes", "mtu"] {
        assert!(machine[name].as_u64().is_some_and(|number| number > 0), "{name}: {machine}");
    }
    assert!(machine["pinned"].is_boolean(), "{machine}");
    assert_eq!(json["rounds"], 1, "of a run with -n");
    for floor in json["floors"].as_array().expect("a list") {
        check_floor(floor);
    }
    let results = json["results"].as_array().expect("a list");
    assert!(!results.is_empty());
    results.iter().for_each(check_result);
}

fn check_floor(floor: &Value) {
    let name = floor["name"].as_str().expect("a name");
    assert!(floor["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{floor}");
    match name {
        "udp_pingpong" | "tcp_pingpong" | "unix_pingpong" | "shm_pingpong" => {
            assert!(floor["reply_bytes"].is_u64(), "{floor}");
            check_percentiles(&floor["rtt_ns"]);
        }
        "udp_stream" | "tcp_stream" | "unix_stream" => {
            assert!(floor["bytes_per_s"].is_u64(), "{floor}");
        }
        "memcpy" => {
            assert!(floor["bytes_per_s"].is_u64() && floor["buffers"].is_string(), "{floor}");
        }
        "ring" => {
            assert!(floor["messages_per_s"].is_u64() && floor["post_list"].is_u64(), "{floor}");
        }
        other => panic!("an unknown floor: {other}"),
    }
}

fn check_result(result: &Value) {
    let values: Vec<_> = ["completion_ns", "half_rtt_ns", "bytes_per_s", "messages_per_s"]
        .into_iter()
        .filter(|name| result.get(name).is_some())
        .collect();
    let [name] = values[..] else { panic!("one value, not {values:?}: {result}") };
    let test = result["test"].as_str().expect("a test");
    let ours = match (test, name) {
        ("latency", "completion_ns" | "half_rtt_ns") => check_percentiles(&result[name]),
        ("bandwidth", "bytes_per_s") | ("rate", "messages_per_s") => {
            result[name].as_u64().expect("a number")
        }
        other => panic!("{other:?} do not belong together: {result}"),
    };
    assert!(ours > 0, "{result}");
    assert!(["send", "write", "read"].contains(&result["op"].as_str().expect("an op")));
    assert!(["udp", "shm"].contains(&result["path"].as_str().expect("a path")), "{result}");
    assert!(result["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{result}");
    let buffers = result.get("buffers").and_then(Value::as_str);
    assert_eq!(buffers.is_some(), test == "bandwidth", "{result}");
    if let Some(floor) = result.get("floor") {
        assert!(floor["name"].is_string(), "{result}");
        let floor = floor["value"].as_u64().and_then(|value| u32::try_from(value).ok());
        let ours = u32::try_from(ours).ok();
        if let (Some(ours), Some(floor @ 1..)) = (ours, floor) {
            let ratio = result["ratio"].as_f64().expect("a ratio");
            assert!((ratio - f64::from(ours) / f64::from(floor)).abs() < 0.001, "{result}");
        }
    }
}

/// Returns the median.
fn check_percentiles(percentiles: &Value) -> u64 {
    let of = |name: &str| percentiles[name].as_u64().expect("a number");
    assert!(of("p50") <= of("p99") && of("p99") <= of("p999"), "{percentiles}");
    of("p50")
}

/// How many results there are of a path, a test and an operation.
fn count(json: &Value, path: &str, test: &str, op: &str) -> usize {
    let results = json["results"].as_array().expect("a list").iter();
    let of =
        |result: &&Value| result["path"] == path && result["test"] == test && result["op"] == op;
    results.filter(of).count()
}

#[test]
fn queue_pairs_meet_by_connection_management_if_they_are_told_to() {
    for test in ["latency", "bandwidth"] {
        run(&["--connector", "cm", "--op", "read", "--test", test, "-s", "64K", "--no-floor"]);
    }
    let refused = adverb(&["bench", "--connector", "cm", "-m", "1024"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
}

#[test]
fn a_run_on_one_machine_measures_everything_beside_its_floor() {
    let json = run(&["-s", "1,5000"]);
    for path in ["udp", "shm"] {
        let counts = |test| ["send", "write", "read"].map(|op| count(&json, path, test, op));
        assert_eq!(counts("latency"), [4, 4, 2], "both latencies of SEND and WRITE");
        let caller = if path == "shm" { 2 } else { 0 };
        let bandwidths = [2 + caller, 4 + caller, 4 + caller];
        assert_eq!(counts("bandwidth"), bandwidths, "WRITE, READ with many buffers and with one");
        assert_eq!(counts("rate"), [4, 4, 4], "one in a post, and many");
    }
    for result in json["results"].as_array().expect("a list") {
        let of_sockets = ["udp_pingpong", "tcp_pingpong", "udp_stream"];
        let name = result["floor"]["name"].as_str().expect("everything has a floor");
        assert_eq!(of_sockets.contains(&name), result["path"] == "udp", "{result}");
    }
    assert_eq!(json["shm_rounds"], 1);
    assert_eq!(json["machine"]["device"], "soft_lo");
}

#[test]
fn without_floors_nothing_is_compared() {
    let json = run(&["-s", "64", "--op", "send", "--no-floor"]);
    assert!(json["floors"].as_array().expect("a list").is_empty());
    let results = json["results"].as_array().expect("a list").iter();
    results.for_each(|r| assert!(r.get("floor").is_none() && r.get("ratio").is_none(), "{r}"));
}

#[test]
fn two_processes_agree_on_the_smaller_path_mtu() {
    let server = Server::start("bench", "127.0.0.1");
    let words = ["127.0.0.1", "-p", &server.port, "-s", "3000", "-m", "1024", "--no-pin"];
    let json = run(&words);
    assert_eq!(json["machine"]["mtu"], 1024);
    assert_eq!(json["machine"]["pinned"], false);
}

#[test]
fn two_processes_meet_over_ipv6_where_there_is_ipv6() {
    if let Err(error) = std::net::TcpListener::bind("[::1]:0") {
        println!("skipped: no IPv6: {error}");
        return;
    }
    let server = Server::start("bench", "::1");
    for host in ["::1", "[::1]"] {
        run(&[host, "-p", &server.port, "-s", "64", "--op", "read", "--test", "latency"]);
    }
}

/// Lists longer than what fits one call of the device, and bytes within the requests.
#[test]
fn requests_go_in_lists_and_with_their_bytes_inline() {
    for posting in [&["-l", "100"][..], &["-l", "7", "-Q", "3"], &["-l", "33", "-I", "64"]] {
        let words = [&["-s", "60,100", "--test", "rate,bandwidth", "--no-floor"], posting].concat();
        run(&words);
    }
}

#[test]
fn csv_has_the_documented_columns() {
    let words = ["bench", "--csv", "-n", "20", "-s", "64", "--no-floor"];
    let output = adverb(&words);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    let mut lines = text.lines();
    let header = "test,op,path,bytes,buffers,unit,value,p99,p999,floor_name,floor_value,ratio,\
                  tcp_ratio,memory,post_list";
    assert_eq!(lines.next(), Some(header));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 2 * (5 + 5 + 6) + 3, "{text}");
    let fields = header.split(',').count();
    assert!(lines.iter().all(|line| line.split(',').count() == fields), "{text}");
}

#[test]
fn without_options_the_answer_is_a_dozen_figures_and_a_sentence() {
    let output = adverb(&["bench", "-n", "20"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.lines().count() <= 30, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    let (_, conclusion) = text.rsplit_once("\n\n").expect("figures, and what they come to");
    assert!(conclusion.lines().all(|line| line.chars().count() <= 80), "{text}");
    for word in ["udp (RoCEv2)", "shm (shared memory)"] {
        assert!(text.contains(word), "{word} in\n{text}");
    }
    let figures = text.lines().filter(|line| line.contains("B, "));
    let ends_in_ratio =
        |line: &str| line.rsplit(' ').next().is_some_and(|ratio| ratio.parse::<f64>().is_ok());
    assert_eq!(figures.filter(|line| ends_in_ratio(line)).count(), 6 + 9, "{text}");
    assert!(text.contains("Over UDP, small messages take"), "{text}");
    assert!(stderr(&output).is_empty(), "no progress without a terminal: {}", stderr(&output));
}

/// Goal: rows do not wait for the end of a run, which may take minutes.
/// Method: a run that is killed at its first figure has not said its last, which would take seconds more.
#[test]
fn figures_are_shown_as_they_are_measured() {
    let rows = ["--rounds", "3", "-s", "64,4096"];
    for (more, figure, last) in
        [(&[][..], "half round trip", "Every size"), (&rows, "     64  ", "Message rate")]
    {
        let words = [&["bench", "-D", "0.2", "--no-floor"], more].concat();
        let mut command = super::command(&words);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut lines = lines.map(|line| line.expect("text"));
        lines.find(|line| line.contains(figure)).expect("a figure");
        let _ = child.kill();
        assert!(!lines.any(|line| line.contains(last)), "all at once, at the end");
        let _ = child.wait();
    }
}

#[test]
fn a_file_gets_json_and_the_screen_gets_tables() {
    let path = std::env::temp_dir().join(format!("adverb-bench-{}.json", std::process::id()));
    let name = path.to_str().expect("a path in UTF-8");
    let output = adverb(&["bench", "-n", "20", "-s", "64", "--no-floor", "-o", name]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = std::fs::read(&path).expect("the file is there");
    std::fs::remove_file(&path).expect("it is ours");
    check(&serde_json::from_slice(&text).expect("valid JSON"));
    let tables = stdout(&output);
    for line in
        ["soft_lo, path udp", "soft_lo, path shm", "Latency of SEND", "Bandwidth of WRITE", "rate"]
    {
        assert!(tables.contains(line), "{line:?} in\n{tables}");
    }
    assert!(stderr(&output).is_empty(), "no progress without a terminal: {}", stderr(&output));
}

#[test]
fn a_limit_that_is_not_met_ends_with_3_after_the_results() {
    let words = ["bench", "-n", "20", "-s", "64", "--no-floor", "--limit_bw", "1000000"];
    let output = adverb(&words);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(stderr(&output).contains("limit not met"), "{}", stderr(&output));
    assert!(stdout(&output).contains("Bandwidth"), "{}", stdout(&output));
}

#[test]
fn the_modes_of_a_session_are_measured_one_by_one() {
    let output = adverb(&["bench", "--modes", "-D", "0.2", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let costs: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    let mut cpu_percent = 0.0;
    let modes: Vec<_> = costs["modes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|cost| {
            assert!(cost["half_rtt_ns"]["p50"].as_u64() > Some(0), "{cost}");
            // On a busy machine one of them may have had next to nothing.
            for end in ["client_cpu_percent", "server_cpu_percent"] {
                cpu_percent += cost[end].as_f64().expect("a number");
            }
            format!("{} {}", cost["wait"], cost["threads"]).replace('"', "")
        })
        .collect();
    let six = ["busy", "channel", "epoll"]
        .map(|wait| ["per-channel", "shared-cq"].map(|threads| format!("{wait} {threads}")));
    assert_eq!(modes, six.concat());
    assert!(cpu_percent > 0.0, "{costs}");
}

#[test]
fn layers_are_compared_on_each_way_there_is() {
    let output = adverb(&["bench", "--layers", "-D", "0.1", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let reports: Value = serde_json::from_slice(&output.stdout).expect("valid JSON");
    let reports = reports["paths"].as_array().expect("a list");
    assert!(!reports.is_empty());
    for report in reports {
        let layers = report["layers"].as_array().expect("a list");
        let names: Vec<_> = layers.iter().map(|layer| &layer["layer"]).collect();
        assert_eq!(names, ["verbs", "session"]);
        for figure in ["half_rtt_ns", "half_rtt_ratio", "write_ns", "write_ratio"] {
            assert!(layers.iter().all(|layer| layer[figure].as_f64() > Some(0.0)), "{figure}");
        }
        assert_eq!(layers[0]["half_rtt_ratio"], 1.0);
    }
}
