//! Measured figures of the README and of the book's chapter: tables made from one run of `adverb bench`.
//!
//! The run lies in `docs/book/figures.json`, in the format of `docs/json.md`. A page has a table between
//! `<!-- figures NAME -->` and `<!-- end -->`; what stands around it is written by hand. A test compares the pages
//! with the run.

use std::path::Path;

use serde_json::Value;

use crate::{Failure, files};

/// Makes the tables anew, from the run in the tree, or from that in `file`, which takes its place.
pub(crate) fn figures(root: &Path, file: Option<&str>) -> Result<(), Failure> {
    if let Some(file) = file {
        let text = files::read(Path::new(file))?;
        let kept = keep(&serde_json::from_str(&text).map_err(|error| format!("{file}: {error}"))?)?;
        files::write(&root.join(RUN), &kept)?;
    }
    let run = read(root)?;
    for page in PAGES {
        let path = root.join(page);
        let text = files::read(&path)?;
        files::write(&path, &filled(&text, &run).map_err(|failure| format!("{page}: {failure}"))?)?;
    }
    Ok(())
}

/// Pages whose tables are not those of the run.
pub(crate) fn stale(root: &Path) -> Result<Vec<String>, Failure> {
    let run = read(root)?;
    let mut stale = Vec::new();
    for page in PAGES {
        let text = files::read(&root.join(page))?;
        if filled(&text, &run)? != text {
            stale
                .push(format!("{page}: its figures are not those of {RUN}: `cargo xtask figures`"));
        }
    }
    Ok(stale)
}

fn read(root: &Path) -> Result<Value, Failure> {
    let text = files::read(&root.join(RUN))?;
    serde_json::from_str(&text).map_err(|error| format!("{RUN}: {error}"))
}

/// The run, one result a line; of the kernel the version alone, as its release may name a machine.
fn keep(run: &Value) -> Result<String, Failure> {
    if run.get("schema_version").and_then(Value::as_u64) != Some(SCHEMA_VERSION) {
        return Err(format!("its schema_version is not {SCHEMA_VERSION}"));
    }
    let mut machine = run.get("machine").cloned().ok_or("no machine")?;
    let kernel = machine.get("kernel").and_then(Value::as_str).unwrap_or_default();
    let kernel: Vec<&str> = kernel.split('.').take(2).collect();
    let kernel = Value::from(kernel.join("."));
    machine.as_object_mut().ok_or("no machine")?.insert("kernel".to_owned(), kernel);
    let number = |name: &str| run.get(name).cloned().unwrap_or(Value::Null);
    let mut text = format!(
        "{{\n\"schema_version\": {SCHEMA_VERSION},\n\"machine\": {machine},\n\"rounds\": {},\n\"shm_rounds\": {}",
        number("rounds"),
        number("shm_rounds")
    );
    for list in ["floors", "results"] {
        let entries = run.get(list).and_then(Value::as_array).ok_or("no results")?;
        let lines: Vec<String> = entries.iter().map(Value::to_string).collect();
        text.push_str(&format!(",\n\"{list}\": [\n{}\n]", lines.join(",\n")));
    }
    Ok(text + "\n}\n")
}

/// `page` with the tables of `run`.
fn filled(page: &str, run: &Value) -> Result<String, Failure> {
    let mut text = String::with_capacity(page.len());
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (name, after) = after.split_once(" -->\n").ok_or("a mark without an end")?;
        let (_, after) = after.split_once(END).ok_or_else(|| format!("{name}: no {END}"))?;
        text.push_str(&format!("{before}{BEGIN}{name} -->\n{}{END}", table(name, run)?));
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

fn table(name: &str, run: &Value) -> Result<String, Failure> {
    match name {
        "six" => six(run),
        "machine" => machine(run),
        "udp" | "shm" => all(run, name),
        _ => Err(format!("no such table: {name}")),
    }
}

/// The front page's: three quantities by two paths.
fn six(run: &Value) -> Result<String, Failure> {
    let rows = [
        ("SEND of 64 bytes, one way", "latency", "send", 64, "half_rtt_ns"),
        ("WRITE of 1 MiB, bandwidth", "bandwidth", "write", 1 << 20, "bytes_per_s"),
        ("SEND of 64 bytes, rate", "rate", "send", 64, "messages_per_s"),
    ];
    let mut text = "| | UDP, as between hosts | floor | one host, shared memory | floor |\n|---|---|---|---|---|\n".to_owned();
    for (title, test, op, bytes, unit) in rows {
        text.push_str(&format!("| {title}"));
        for path in ["udp", "shm"] {
            let is_it = |result: &&Value| {
                let has = |name: &str, value: &str| {
                    result.get(name).and_then(Value::as_str).is_none_or(|found| found == value)
                };
                has("test", test)
                    && has("op", op)
                    && has("path", path)
                    && has("buffers", "round_robin")
                    && result.get("memory").is_none()
                    && result.get("bytes").and_then(Value::as_u64) == Some(bytes)
                    && result.get("post_list").is_none_or(|list| *list == 32)
                    && result.get(unit).is_some()
            };
            let found = results(run)?.iter().find(is_it);
            let found = found.ok_or_else(|| format!("no result: {test} {op} {path} {bytes}"))?;
            let (value, floor) = value_and_floor(found)?;
            text.push_str(&format!(" | {value} | {floor}"));
        }
        text.push_str(" |\n");
    }
    Ok(text)
}

fn machine(run: &Value) -> Result<String, Failure> {
    let machine = run.get("machine").ok_or("no machine")?;
    let text = |name: &str| machine.get(name).and_then(Value::as_str).unwrap_or("unknown");
    let number = |value: &Value, name: &str| value.get(name).and_then(Value::as_u64).unwrap_or(0);
    let rounds = |name: &str| number(run, name);
    Ok(format!(
        "One run of `adverb bench` {}: {}, {} processors of a virtual machine, Linux {}, device `{}`, path MTU {}; \
         medians of {} rounds over UDP and {} through shared memory.\n",
        text("adverb"),
        text("cpu"),
        number(machine, "cpus"),
        text("kernel"),
        text("device"),
        number(machine, "mtu"),
        rounds("rounds"),
        rounds("shm_rounds"),
    ))
}

/// What was measured over a path: latencies, bandwidths of long messages, rates of short ones.
fn all(run: &Value, path: &str) -> Result<String, Failure> {
    let mut text =
        "| | bytes | Adverb | floor | of the floor |\n|---|---|---|---|---|\n".to_owned();
    for result in results(run)? {
        let word = |name: &str| result.get(name).and_then(Value::as_str).unwrap_or_default();
        let bytes = result.get("bytes").and_then(Value::as_u64).unwrap_or(0);
        let has_answer = result.get("half_rtt_ns").is_some() || word("op") == "read";
        let is_shown = match word("test") {
            "latency" => has_answer,
            "bandwidth" => bytes >= LONG_BYTES && word("buffers") == "round_robin",
            _ => bytes <= SHORT_BYTES,
        };
        if word("path") != path || !is_shown {
            continue;
        }
        let quantity = match (word("test"), result.get("half_rtt_ns")) {
            ("latency", Some(_)) => "half a round trip".to_owned(),
            ("latency", None) => "post to completion".to_owned(),
            ("bandwidth", _) if word("memory") == "caller" => {
                "bandwidth, memory of the program's own".to_owned()
            }
            ("bandwidth", _) => "bandwidth".to_owned(),
            _ => match result.get("post_list").and_then(Value::as_u64) {
                Some(1) => "rate, one in a post".to_owned(),
                list => format!("rate, {} in a post", list.unwrap_or(0)),
            },
        };
        let (value, floor) = value_and_floor(result)?;
        let ratio = result.get("ratio").and_then(Value::as_f64).unwrap_or(0.0);
        let floor_name = result.pointer("/floor/name").and_then(Value::as_str).unwrap_or_default();
        text.push_str(&format!(
            "| {}, {quantity} | {} | {value} | {floor} (`{floor_name}`) | {ratio:.2} |\n",
            word("op").to_uppercase(),
            bytes_as_text(bytes),
        ));
    }
    Ok(text)
}

fn results(run: &Value) -> Result<&[Value], Failure> {
    run.get("results").and_then(Value::as_array).map(Vec::as_slice).ok_or("no results".to_owned())
}

/// A result and what stands beside it, with their unit.
fn value_and_floor(result: &Value) -> Result<(String, String), Failure> {
    let floor = result.pointer("/floor/value").and_then(Value::as_f64).ok_or("no floor")?;
    for (name, per, unit) in [
        ("half_rtt_ns", 1e3, "µs"),
        ("completion_ns", 1e3, "µs"),
        ("bytes_per_s", 1e9, "GB/s"),
        ("messages_per_s", 1e6, "million/s"),
    ] {
        let Some(found) = result.get(name) else { continue };
        let value = found.get("p50").unwrap_or(found).as_f64().ok_or("no number")?;
        return Ok((two_digits(value / per, unit), two_digits(floor / per, unit)));
    }
    Err("a result without a value".to_owned())
}

/// Two digits that mean something, and not fewer before the point.
fn two_digits(value: f64, unit: &str) -> String {
    let places = match value {
        value if value >= 10.0 => 0,
        value if value >= 1.0 => 1,
        value if value >= 0.1 => 2,
        _ => 3,
    };
    format!("{value:.places$} {unit}")
}

fn bytes_as_text(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => {
            format!("{} MiB", bytes >> 20)
        }
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => {
            format!("{} KiB", bytes >> 10)
        }
        bytes => bytes.to_string(),
    }
}

const RUN: &str = "docs/book/figures.json";
const PAGES: [&str; 2] = ["README.md", "docs/book/src/figures.md"];
const LONG_BYTES: u64 = 64 << 10;
const SHORT_BYTES: u64 = 64;
const BEGIN: &str = "<!-- figures ";
const END: &str = "<!-- end -->";
/// Of the JSON that is read: `docs/json.md`.
const SCHEMA_VERSION: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_have_the_figures_of_the_run_in_the_tree() {
        assert_eq!(stale(&crate::workspace_root()), Ok(Vec::new()));
    }

    #[test]
    fn a_table_takes_the_place_of_what_stood_between_its_marks() {
        let run = read(&crate::workspace_root()).unwrap();
        let page = "a\n<!-- figures six -->\nold\n<!-- end -->\nb\n";
        let text = filled(page, &run).unwrap();
        assert!(
            text.starts_with("a\n<!-- figures six -->\n| |")
                && text.ends_with(" |\n<!-- end -->\nb\n")
        );
        assert_eq!(text.lines().filter(|line| line.starts_with('|')).count(), 5);
        assert!(filled("<!-- figures other -->\n<!-- end -->\n", &run).is_err());
        assert!(filled("<!-- figures six -->\n", &run).is_err());
    }

    #[test]
    fn a_run_is_kept_without_the_release_of_the_kernel() {
        let run = r#"{"schema_version": 1, "machine": {"kernel": "6.1.0-name"}, "rounds": 3, "floors": [], "results": []}"#;
        let kept = keep(&serde_json::from_str(run).unwrap()).unwrap();
        assert!(kept.contains(r#""kernel":"6.1""#), "{kept}");
        assert!(keep(&serde_json::json!({"schema_version": 2})).is_err());
    }
}
