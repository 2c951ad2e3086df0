//! The test suite: each test runs once, under a time limit, and tests that could not run here are listed.
//!
//! A test that lacks something (a tool, a privilege, a namespace) prints a line `skipped: REASON` and
//! passes. Such lines are collected here. On the build machine (`CI` is set) a skip is a failure unless
//! its reason is in `.ci/skips`.
//!
//! Tests run under cargo-nextest where it is installed: it ends a test that hangs, and names it. A fresh
//! machine has no cargo-nextest, so `cargo test` runs there, with one time limit for all.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::num::NonZero;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::Failure;
use crate::program::target;

/// What the test runners said.
#[derive(Debug, Default, Eq, PartialEq)]
struct Report {
    passed: u64,
    failed: u64,
    skips: Vec<Skip>,
}

/// A test that could not do its work on this machine.
#[derive(Debug, Eq, PartialEq)]
struct Skip {
    test: String,
    reason: String,
}

/// Longest run of one runner in seconds. No suite takes a third of it.
const SECONDS_MAX: &str = "3600";
/// How a test says that it cannot run here.
const SKIPPED: &str = "skipped: ";
/// Reasons that the build machine may have, one a line.
const ALLOWED: &str = ".ci/skips";

/// Runs the examples in the documentation and all tests; lists what was skipped.
pub(crate) fn test(root: &Path) -> Result<(), Failure> {
    let examples = watched(root, &["test", "--workspace", "--doc"], &[])?;
    let tests = match has_nextest() {
        true => with_nextest(root)?,
        false => {
            eprintln!("xtask: cargo-nextest is not installed; `cargo test` does instead");
            let kinds = ["test", "--workspace", "--no-fail-fast", "--lib", "--bins", "--tests"];
            watched(root, &kinds, &["--show-output"])?
        }
    };
    let skips = tests.skips;
    if !skips.is_empty() {
        println!("\n{} could not run here:", count(skips.len(), "test"));
    }
    for Skip { test, reason } in &skips {
        println!("  {test}: {reason}");
    }
    let (passed, failed) = (examples.passed + tests.passed, examples.failed + tests.failed);
    let refused = match env::var_os("CI") {
        Some(_) => refused(&skips, &fs::read_to_string(root.join(ALLOWED)).unwrap_or_default()),
        None => 0,
    };
    println!("\n{passed} passed, {failed} failed, {} skipped", skips.len());
    match (failed, refused) {
        (0, 0) => Ok(()),
        (0, _) => Err(format!("{} for a reason that is not in {ALLOWED}", count(refused, "skip"))),
        _ => Err(format!("{failed} failed")),
    }
}

/// How many skips have a reason that is not allowed. A line of `allowed` is the start of a reason, or a comment.
fn refused(skips: &[Skip], allowed: &str) -> usize {
    let lines = allowed.lines().map(str::trim);
    let allowed: Vec<&str> =
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let is_allowed = |skip: &&Skip| !allowed.iter().any(|line| skip.reason.starts_with(line));
    skips.iter().filter(is_allowed).count()
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn has_nextest() -> bool {
    let mut probe = Command::new("cargo");
    probe.args(["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

/// Runs all tests under cargo-nextest, and reads its report.
fn with_nextest(root: &Path) -> Result<Report, Failure> {
    let profile = if env::var_os("CI").is_some() { "ci" } else { "default" };
    let junit = target(root).join("nextest").join(profile).join("junit.xml");
    let _ = fs::remove_file(&junit); // That of an earlier run says nothing of this one.
    // Two more than there are processors: many tests wait for something half of the time, and some all of it.
    let threads =
        thread::available_parallelism().map_or(1, NonZero::get).saturating_add(2).to_string();
    let args = ["nextest", "run", "--workspace", "--profile", profile, "--test-threads", &threads];
    eprintln!("$ cargo {}", args.join(" "));
    let mut command = Command::new("cargo");
    let status = command.current_dir(root).args(args).stdin(Stdio::null()).status();
    let status = status.map_err(|error| format!("cannot run cargo nextest: {error}"))?;
    let text = fs::read_to_string(&junit)
        .map_err(|error| format!("no report at {}: {error} ({status})", junit.display()))?;
    let report = from_junit(&text).ok_or("the report of cargo nextest makes no sense")?;
    match status.success() || report.failed > 0 {
        true => Ok(report),
        false => Err(format!("cargo nextest: {status}")),
    }
}

/// Reads a report in JUnit's format: the counts of its first line, and the skips that tests have printed.
fn from_junit(text: &str) -> Option<Report> {
    let head = text.split("<testsuites ").nth(1)?.split('>').next()?;
    let number = |name: &str| attribute(head, name)?.parse::<u64>().ok();
    let (tests, failed) = (number("tests")?, number("failures")? + number("errors")?);
    let mut report = Report { passed: tests.checked_sub(failed)?, failed, skips: Vec::new() };
    for case in text.split("<testcase ").skip(1) {
        let name = attribute(case, "name")?;
        let program = attribute(case, "classname").unwrap_or_default();
        let test = format!("{program} {name}");
        // The output follows an opening tag on the same line.
        let lines = case.lines().map(|line| line.rsplit_once('>').map_or(line, |(_, text)| text));
        note_skips(&mut report, &test, lines);
    }
    Some(report)
}

/// The value of an attribute in a tag's text.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let start = format!("{name}=\"");
    let at = tag.match_indices(&start).map(|(at, _)| at);
    // `name` is the end of `classname`, too.
    let at = at.into_iter().find(|at| *at == 0 || tag.get(at - 1..*at) == Some(" "))?;
    tag.get(at + start.len()..)?.split('"').next()
}

fn note_skips<'a>(report: &mut Report, test: &str, lines: impl Iterator<Item = &'a str>) {
    for reason in lines.filter_map(|line| line.strip_prefix(SKIPPED)) {
        let skip = Skip { test: test.to_owned(), reason: reason.trim().to_owned() };
        if !report.skips.contains(&skip) {
            report.skips.push(skip);
        }
    }
}

/// Runs `cargo ARGS -- LAST` under a time limit, and shows what it prints but for the output of tests that
/// passed.
fn watched(root: &Path, args: &[&str], last: &[&str]) -> Result<Report, Failure> {
    eprintln!("$ cargo {} -- {}", args.join(" "), last.join(" "));
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", SECONDS_MAX, "cargo"]).args(args).arg("--").args(last);
    command.current_dir(root).stdin(Stdio::null()).stdout(Stdio::piped());
    let cannot = |error: io::Error| format!("cannot run cargo {}: {error}", args.join(" "));
    let mut child = command.spawn().map_err(cannot)?;
    let mut filter = Filter::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = line.map_err(cannot)?;
            if filter.shows(&String::from_utf8_lossy(&line)) {
                let mut out = io::stdout().lock();
                let _ = out.write_all(&line).and_then(|()| out.write_all(b"\n"));
            }
        }
    }
    let status = child.wait().map_err(cannot)?;
    match status.code() {
        Some(0) => Ok(filter.report),
        Some(_) if filter.report.failed > 0 => Ok(filter.report),
        Some(124 | 137) => Err(format!("cargo {}: a test hangs, see above", args.join(" "))),
        _ => Err(format!("cargo {}: {status}", args.join(" "))),
    }
}

/// Reads what libtest prints.
#[derive(Debug, Default)]
struct Filter {
    report: Report,
    /// Within the output of tests that passed: the test's name, if it is known yet.
    success: Option<String>,
}

impl Filter {
    /// Takes a line. Returns whether a person wants to see it.
    fn shows(&mut self, line: &str) -> bool {
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.success = None;
            let number = |noun: &str| {
                let before = rest.split(noun).next()?.trim_end();
                before.rsplit(' ').next()?.parse::<u64>().ok()
            };
            self.report.passed += number("passed").unwrap_or(0);
            self.report.failed += number("failed").unwrap_or(0);
            return true;
        }
        match line {
            "successes:" => self.success = Some(String::new()),
            "failures:" => self.success = None,
            _ => {}
        }
        let Some(test) = &mut self.success else { return true };
        if let Some(name) =
            line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            name.clone_into(test);
        }
        let test = test.clone();
        note_skips(&mut self.report, &test, std::iter::once(line));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip(test: &str, reason: &str) -> Skip {
        Skip { test: test.to_owned(), reason: reason.to_owned() }
    }

    #[test]
    fn a_report_of_nextest_is_counted_and_its_skips_are_found() {
        let text = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1" errors="0" uuid="x">
    <testsuite name="adverb-verbs::verbs" tests="3" disabled="0">
        <testcase name="users::two" classname="adverb-verbs::verbs" time="0.1">
            <system-out>
running 1 test
skipped: not root
test users::two ... ok
</system-out>
            <system-err></system-err>
        </testcase>
        <testcase name="b" classname="adverb-verbs::verbs" time="0.1">
            <system-err>skipped: no netem: not here</system-err>
        </testcase>
        <testcase name="c" classname="adverb-verbs::verbs" time="0.1">
            <failure message="skipped: is not said here">x</failure>
        </testcase>
    </testsuite>
</testsuites>"#;
        let report = from_junit(text).unwrap();
        assert_eq!((report.passed, report.failed), (2, 1));
        let first = skip("adverb-verbs::verbs users::two", "not root");
        assert_eq!(report.skips.first(), Some(&first));
        assert_eq!(from_junit("<testsuites name=\"x\">"), None);
    }

    #[test]
    fn output_of_tests_that_passed_is_read_and_not_shown() {
        let mut filter = Filter::default();
        let text = "running 2 tests\ntest a ... ok\n\nsuccesses:\n\n---- a stdout ----\nskipped: no tool\n\n\
                    successes:\n    a\n\nfailures:\n\n---- b stdout ----\nskipped\n\n\
                    test result: FAILED. 11 passed; 2 failed; 0 ignored; 0 measured";
        let shown: Vec<&str> = text.lines().filter(|line| filter.shows(line)).collect();
        assert!(shown.contains(&"test a ... ok") && shown.contains(&"---- b stdout ----"));
        assert!(!shown.contains(&"skipped: no tool"));
        let skips = vec![skip("a", "no tool")];
        assert_eq!(filter.report, Report { passed: 11, failed: 2, skips });
    }

    #[test]
    fn a_skip_is_refused_unless_its_reason_is_listed() {
        let skips = [skip("a", "no netem: not here"), skip("b", "not root")];
        assert_eq!(refused(&skips, ""), 2);
        assert_eq!(refused(&skips, "# kernels without it\nno netem\n\n"), 1);
    }
}
