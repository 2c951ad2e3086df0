//! The record: user-space instructions of each operation, counted by callgrind, kept in the tree.
//!
//! A count does not depend on other users of the machine, so that a change of a percent shows. The
//! operations are functions of one bench program (`host/verbs/benches/instructions.rs`); each is run
//! in a network namespace of its own where the system gives one, so that no other process's packets count.
//!
//! The same operations are counted as a program of C on libibverbs calls them, with the library in front of it: those
//! begin with `c_`. They go through shared memory in both interfaces, where the interface itself weighs most; what C
//! pays is compared with what Rust pays in the same run, and may be a little more.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::program::{self, run, target};
use crate::{Failure, files};

/// Where the record is, from the root of the tree.
const PLACE: &str = "benches/record";
/// What stands at its top.
const HEAD: &str = "\
# User-space instructions of one operation, in-process over the loopback device.
# Compare with `cargo xtask record`, replace with `cargo xtask record --write`.
";
/// The smallest of so many runs counts: what disturbs only ever adds.
const RUNS: usize = 3;
/// Growth that is noise, in thousandths.
const TOLERATED: u64 = 10;
/// What an operation may cost more through libibverbs than by the Rust API, in thousandths.
const C_ALLOWED: u64 = 150;
/// The program of C, from the root of the tree.
const C_SOURCE: &str = "edge/libibverbs/benches/instructions.c";

/// Instructions by operation.
type Counts = BTreeMap<String, u64>;

/// What the tree does now, or did when it was recorded.
#[derive(Debug, Default, Eq, PartialEq)]
struct Record {
    compiler: String,
    counts: Counts,
}

/// Counts, and compares with the record; fails if an operation has become dearer.
pub(crate) fn compare(root: &Path) -> Result<(), Failure> {
    let text = files::read(&root.join(PLACE))?;
    let (old, new) = (Record::parse(&text)?, count(root)?);
    if old.compiler != new.compiler {
        eprintln!("recorded with {}, counted with {}", old.compiler, new.compiler);
    }
    let (table, dearer) = old.compare(&new);
    print!("{table}");
    match dearer.is_empty() {
        true => Ok(()),
        false => Err(format!("dearer than on record: {}", dearer.join(", "))),
    }
}

/// Counts what C and what Rust pay through shared memory; fails if C pays too much more.
pub(crate) fn compare_interfaces(root: &Path) -> Result<(), Failure> {
    let rust = rust_program(root)?;
    let c = CProgram::build(root)?;
    println!("{:<28}{:>10}{:>10}{:>10}", "operation, shared memory", "Rust", "C", "%");
    let mut dearer = Vec::new();
    for (name, operations) in operations(Command::new(&c.program))? {
        let plain = name.strip_prefix("c_").unwrap_or(&name);
        let own = least(&[&rust, plain], plain, &["ADVERB_PATH=shm"])? / operations;
        let set = ["ADVERB_PATH=shm", "ADVERB_DEVICES=soft_lo", &c.preload];
        let theirs = least(&[&c.program, &name], &name, &set)? / operations;
        println!("{plain:<28}{own:>10}{theirs:>10}{:>10}", percent(own, theirs));
        if theirs * 1000 > own * (1000 + C_ALLOWED) {
            dearer.push(plain.to_owned());
        }
    }
    match dearer.is_empty() {
        true => Ok(()),
        false => Err(format!("too dear through libibverbs: {}", dearer.join(", "))),
    }
}

/// Counts, and puts the counts in the place of the record.
pub(crate) fn write(root: &Path) -> Result<(), Failure> {
    let text = count(root)?.to_string();
    print!("{text}");
    files::write(&root.join(PLACE), &text)
}

impl Record {
    fn parse(text: &str) -> Result<Self, Failure> {
        let mut record = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (name, rest) = line.split_once(' ').ok_or(format!("not an entry: {line}"))?;
            match rest.trim().parse() {
                Ok(count) => drop(record.counts.insert(name.to_owned(), count)),
                Err(_) => line.clone_into(&mut record.compiler),
            }
        }
        Ok(record)
    }

    /// A table of both, and the operations that have become dearer.
    fn compare(&self, new: &Self) -> (String, Vec<String>) {
        let mut table = format!("{:<28}{:>10}{:>10}{:>10}\n", "operation", "record", "now", "%");
        let mut dearer = Vec::new();
        for (name, now) in &new.counts {
            let Some(then) = self.counts.get(name) else {
                let _ = writeln!(table, "{name:<28}{:>10}{now:>10}{:>10}", "-", "new");
                continue;
            };
            let change = percent(*then, *now);
            let _ = writeln!(table, "{name:<28}{then:>10}{now:>10}{change:>10}");
            if now * 1000 > then * (1000 + TOLERATED) {
                dearer.push(name.clone());
            }
        }
        (table, dearer)
    }
}

/// The change, with one decimal.
fn percent(then: u64, now: u64) -> String {
    let thousandths = then.abs_diff(now) * 1000 / then.max(1);
    let sign = if now < then { '-' } else { '+' };
    format!("{sign}{}.{}", thousandths / 10, thousandths % 10)
}

impl std::fmt::Display for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{HEAD}{}", self.compiler)?;
        self.counts.iter().try_for_each(|(name, count)| writeln!(f, "{name:<28}{count:>8}"))
    }
}

/// Counts all operations.
fn count(root: &Path) -> Result<Record, Failure> {
    let program = rust_program(root)?;
    let mut record = Record { compiler: compiler()?, counts: Counts::new() };
    for (name, operations) in operations(Command::new(&program))? {
        // What is on record goes over UDP.
        let count = least(&[&program, &name], &name, &["ADVERB_PATH=udp"])?;
        record.counts.insert(name, count / operations);
    }
    Ok(record)
}

/// Builds the program of the Rust API, and says where it is.
fn rust_program(root: &Path) -> Result<String, Failure> {
    let mut cargo = Command::new("cargo");
    cargo.args(["bench", "-p", "adverb-verbs", "--bench", "instructions"]);
    program::build(root, cargo)
}

/// The program of C, which goes when this does, and the library in front of it.
struct CProgram {
    program: String,
    preload: String,
}

impl CProgram {
    fn build(root: &Path) -> Result<Self, Failure> {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(root).args(["build", "--release", "-p", "adverb-libibverbs"]);
        run(cargo)?;
        let library = target(root).join("release/libadverb_ibverbs.so");
        let name = format!("adverb-instructions-{}", std::process::id());
        let program = std::env::temp_dir().join(name).to_string_lossy().into_owned();
        let mut cc = Command::new("cc");
        cc.current_dir(root).args(["-O2", C_SOURCE, "-o", &program, "-libverbs"]);
        run(cc)?;
        Ok(Self { program, preload: format!("LD_PRELOAD={}", library.display()) })
    }
}

impl Drop for CProgram {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.program);
    }
}

/// The operations of a program, and how many a call is.
fn operations(program: Command) -> Result<Vec<(String, u64)>, Failure> {
    let list = run(program)?;
    String::from_utf8_lossy(&list.stdout)
        .lines()
        .map(|line| {
            let parts = line.split_once(' ').and_then(|(name, n)| Some((name, n.parse().ok()?)));
            let (name, operations): (_, u64) = parts.ok_or(format!("not an operation: {line}"))?;
            Ok((name.to_owned(), operations.max(1)))
        })
        .collect()
}

/// Instructions of all rounds of an operation: the least of some runs.
fn least(command: &[&str], name: &str, set: &[&str]) -> Result<u64, Failure> {
    let mut least = u64::MAX;
    for _ in 0..RUNS {
        least = least.min(collected(command, name, set)?);
    }
    Ok(least)
}

fn compiler() -> Result<String, Failure> {
    let output = run({
        let mut rustc = Command::new("rustc");
        rustc.arg("--version");
        rustc
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    // The date and the hash after the number say nothing more.
    Ok(text.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
}

/// Instructions of all rounds of an operation, in one run.
fn collected(command: &[&str], name: &str, set: &[&str]) -> Result<u64, Failure> {
    let toggle = format!("--toggle-collect=*counted_{name}*");
    let valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", &toggle];
    let words = [&["env"], set, &valgrind, command].concat();
    let output = run(program::alone(&words)).or_else(|_| run(program::among_others(&words)))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let count =
        text.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    count.filter(|count| *count > 0).ok_or_else(|| format!("callgrind has not counted {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(counts: &[(&str, u64)]) -> Record {
        let counts = counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        Record { compiler: "rustc 1.2.3".to_owned(), counts }
    }

    #[test]
    fn what_was_written_is_read_back() {
        let record = record(&[("send", 1234), ("poll_empty", 99)]);
        assert_eq!(Record::parse(&record.to_string()), Ok(record));
        assert!(Record::parse("nonsense").is_err());
    }

    #[test]
    fn only_what_has_become_dearer_by_more_than_noise_is_named() {
        let old = record(&[("cheaper", 1000), ("dearer", 1000), ("same", 1000)]);
        let new = record(&[("cheaper", 995), ("dearer", 1011), ("new", 5), ("same", 1010)]);
        let (table, dearer) = old.compare(&new);
        assert_eq!(dearer, ["dearer"]);
        assert!(
            table.contains("-0.5") && table.contains("+1.1") && table.contains("new"),
            "{table}"
        );
    }
}
