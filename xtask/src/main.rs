//! `cargo xtask`: what a developer and the build machine run, under one name each.
//!
//! The commands call `cargo` and `git` and are otherwise self-contained; nothing in the product
//! depends on this package. `gate` and `record` run other programs, `lab` a virtual machine, `tidy` reads the tree.

mod api;
mod book;
mod coverage;
mod crates;
mod dist;
mod examples;
mod figures;
mod files;
mod gate;
mod html;
mod lab;
mod memcheck;
mod net;
mod picture;
mod program;
mod python;
mod readme;
mod record;
mod source;
mod suite;
mod tidy;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::dist::Origin;

/// What went wrong, for a person to read.
type Failure = String;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<(), Failure> {
    let root = workspace_root();
    match words {
        ["check", steps @ ..] => gate::check(&root, steps),
        ["fuzz"] => gate::fuzz(&root, DEFAULT_SECONDS),
        ["fuzz", "--seconds", seconds] => gate::fuzz(&root, number(seconds)?),
        ["fuzz", "--coverage"] => coverage::fuzz(&root, DEFAULT_SECONDS),
        ["fuzz", "--coverage", "--seconds", seconds] => coverage::fuzz(&root, number(seconds)?),
        ["memcheck", "--processes"] => memcheck::processes(&root),
        ["memcheck", rest @ ..] => {
            let (tool, rest) = match rest {
                ["--asan", rest @ ..] => (memcheck::Tool::AddressSanitizer, rest),
                _ => (memcheck::Tool::Valgrind, rest),
            };
            let seeds: Result<Vec<u64>, Failure> = rest.iter().map(|seed| number(seed)).collect();
            let seeds = if rest.is_empty() { vec![1, 2] } else { seeds? };
            memcheck::memcheck(&root, tool, &seeds)
        }
        ["api"] => api::compare(&root),
        ["api", "--write"] => api::write(&root),
        ["book"] => book::book(&root),
        ["dist"] => dist::dist(&root, "release"),
        ["dist", "--profile", profile] => dist::dist(&root, profile),
        ["dist", "--check"] => dist::check(&root, Origin::Package),
        ["dist", "--check", "--from-source"] => dist::check(&root, Origin::Source),
        ["figures"] => figures::figures(&root, None),
        ["figures", file] => figures::figures(&root, Some(file)),
        ["lab"] => lab::lab(&root, "", 1),
        ["lab", only] => lab::lab(&root, only, 1),
        ["lab", only, times] => lab::lab(&root, only, number(times)?),
        ["net"] => net::net(&root, ""),
        ["net", only] => net::net(&root, only),
        ["python"] => python::test(&root),
        ["record"] => record::compare(&root),
        ["record", "--write"] => record::write(&root),
        ["record", "--c"] => record::compare_interfaces(&root),
        ["seed", seed] => gate::seed(&root, seed),
        ["seeds"] => gate::seeds(&root, DEFAULT_SECONDS),
        ["seeds", "--seconds", seconds] => gate::seeds(&root, number(seconds)?),
        ["sim"] => gate::sim(&root, DEFAULT_SECONDS),
        ["sim", "--seconds", seconds] => gate::sim(&root, number(seconds)?),
        ["sim", "--hours", hours] => gate::sim(&root, number(hours)?.saturating_mul(3600)),
        ["test"] => suite::test(&root),
        ["tidy"] => tidy::tidy(&root),
        ["help" | "--help" | "-h"] | [] => {
            print!("{USAGE}");
            Ok(())
        }
        _ => Err(format!("no such command: {}\n\n{USAGE}", words.join(" "))),
    }
}

fn number(text: &str) -> Result<u64, Failure> {
    text.parse().map_err(|_| format!("{text} is not a number"))
}

/// The directory above this package's, wherever the command is called from. Cargo says at run time where that
/// is: a program that several checkouts build in one place may be another's.
fn workspace_root() -> PathBuf {
    let here = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map_or_else(|| here.clone(), Path::to_path_buf)
}

const DEFAULT_SECONDS: u64 = 60;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  check [STEP ...]       the gate: all of fmt clippy tidy doc api test seeds, or the steps named
  test                   all tests and examples once; lists those that cannot run here
  tidy                   facts about the tree that must hold, and oddities worth a look
  seeds [--seconds N]    random runs of the simulated network for N seconds (60)
  sim [--seconds N | --hours N]
                         random runs of simulated hosts, whose processes are stopped and killed
  seed 0xSEED            the one run that this seed stands for
  api [--write]          the public API, compared with docs/api, or put there
  record [--write]       instructions of each operation, compared with benches/record, or put there
  record --c             instructions through libibverbs, compared with the Rust API
  dist [--profile NAME]  a Debian package, an archive and a Python wheel in target/dist
  dist --check [--from-source]
                         installs the Debian package in a fresh root, does what the README says, and removes it; installs
                         the wheel, and runs what the book shows; or does all that the README says, from a clone
                         (root, mmdebstrap)
  book                   the book with the pages that it leads to, in target/book; in HTML by mdbook, or else rustdoc
  python                 the Python package: built, linted and tested, in target/python
  figures [FILE]         the measured figures of README and book, from docs/book/figures.json, or from the JSON of a run
                         (`adverb bench -s 64,4K,64K,1M -o FILE`), which takes its place
  lab [NAME [TIMES]]     the software device against a Linux kernel's RoCE driver in a virtual machine (root):
                         all conversations, or those whose name has NAME in it, that many times each
  net [NAME]             `adverb bench` between two namespaces, over links that lose, delay and reorder packets (root):
                         all links, or those whose name has NAME in it
  memcheck [--asan] [SEED ...]
                         random use of all objects under valgrind, or AddressSanitizer
  memcheck --processes   tests of several processes under AddressSanitizer: hostile, stopped and killed neighbours
  fuzz [--coverage] [--seconds N]
                         random bytes into the parsers for N seconds (60), also guided by coverage (libFuzzer)
";
