//! The fuzzing targets under libFuzzer, which keeps the inputs that reach code no input reached before, with
//! AddressSanitizer. The stable compiler instruments if it is told to take options of nightly ones
//! (`RUSTC_BOOTSTRAP`); libFuzzer itself needs a C++ compiler.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::program::watch;
use crate::{Failure, files};

/// What the fuzzer needs to see of the program: counters of blocks, their addresses, and what is compared.
const FLAGS: &str = "-Zsanitizer=address -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds the targets and runs each for its share of `seconds`, from its good inputs and those of earlier runs.
pub(crate) fn fuzz(root: &Path, seconds: u64) -> Result<(), Failure> {
    let place = root.join("target/coverage");
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root.join("fuzz/coverage"));
    cargo.args(["build", "--release", "--locked", "--target", TARGET, "--target-dir"]).arg(&place);
    cargo.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS);
    watch(cargo)?;
    let program = place.join(TARGET).join("release/target");
    let list = Command::new(&program).env("ADVERB_FUZZ_TARGET", "list").output();
    let list = list.map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    let names = String::from_utf8_lossy(&list.stdout).into_owned();
    let names: Vec<&str> = names.lines().collect();
    let share = seconds / u64::try_from(names.len()).unwrap_or(1).max(1);
    for name in names {
        let corpus = place.join("corpus").join(name);
        files::make(&corpus)?;
        let start = || {
            let mut fuzzer = Command::new(&program);
            fuzzer.current_dir(root).env("ADVERB_FUZZ_TARGET", name);
            fuzzer
        };
        let mut seed = start();
        seed.env("ADVERB_FUZZ_CORPUS", &corpus);
        watch(seed)?;
        let mut fuzzer = start();
        // An input that takes so long hangs: none does, even with the little that all tests leave of a processor.
        fuzzer.args(["-verbosity=0", "-timeout=120", "-rss_limit_mb=2048", "-max_len=9000"]);
        fuzzer.arg(format!("-max_total_time={}", share.max(1)));
        fuzzer.arg(format!("-artifact_prefix={}/{name}-", place.display()));
        fuzzer.arg(&corpus);
        watch(fuzzer).map_err(|failure| format!("{name}: {failure}; the input is above"))?;
        let inputs = fs::read_dir(&corpus).map_or(0, Iterator::count);
        eprintln!("xtask: {name}: {inputs} inputs that reach code of their own, no failure");
    }
    Ok(())
}
