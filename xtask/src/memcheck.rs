//! The stress test, and tests of several processes, under a tool that sees every use of memory that has gone.
//!
//! valgrind runs the program as it is, slowly; AddressSanitizer is built in, which a stable compiler does if it
//! is told to take options of nightly ones. Neither sees all: valgrind knows the heap and what was mapped, AddressSanitizer the stack
//! as well, and both only what happens in their run.
//!
//! ThreadSanitizer can be built in the same way (`-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer`), and runs,
//! but does not see what happens inside of the standard library, which is compiled without it: a `Mutex` for which two
//! threads wait is a data race to it. Its source, to compile it anew, is in no registry.

use std::path::Path;
use std::process::Command;

use crate::Failure;
use crate::program;

/// Which tool.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Tool {
    Valgrind,
    AddressSanitizer,
}

impl Tool {
    /// Steps of each thread: by then all outcomes have been seen that a longer run sees. They take valgrind a quarter of a
    /// minute, and AddressSanitizer half a one.
    const fn steps(self) -> &'static str {
        match self {
            Self::Valgrind => "10000",
            Self::AddressSanitizer => "500000",
        }
    }
}

/// Nothing takes this long that does not hang, on a machine that does much else.
const SECONDS_MAX: &str = "600";
/// The exit code by which valgrind says that it has found something.
const FOUND: &str = "--error-exitcode=99";

/// Builds the stress test and runs it once for each of the `seeds`.
pub(crate) fn memcheck(root: &Path, tool: Tool, seeds: &[u64]) -> Result<(), Failure> {
    let program = build(root, tool)?;
    for seed in seeds {
        let seed = seed.to_string();
        eprintln!("ADVERB_STRESS_SEED={seed} ADVERB_STRESS_STEPS={}", tool.steps());
        let mut words = vec!["timeout", SECONDS_MAX];
        if tool == Tool::Valgrind {
            words.extend(["valgrind", "--quiet", "--fair-sched=yes", "--leak-check=no", FOUND]);
            words.push("--suppressions=xtask/valgrind.supp");
        }
        words.extend([&program, "--nocapture"]);
        let prepared = |mut command: Command| {
            command.current_dir(root);
            command.env("ADVERB_STRESS_SEED", &seed).env("ADVERB_STRESS_STEPS", tool.steps());
            command.env("ASAN_OPTIONS", LEAKS_ALLOWED);
            command
        };
        let can_be_alone = program::run(program::alone(&["true"])).is_ok();
        let command = match can_be_alone {
            true => program::alone(&words),
            false => program::among_others(&words),
        };
        let failed = |failure| format!("the stress test with seed {seed}: {failure}");
        program::watch(prepared(command)).map_err(failed)?;
    }
    Ok(())
}

/// Tests of `host/verbs/tests/verbs` that run other processes, which are the same program, and so under the same tool.
const OF_PROCESSES: [&str; 7] = [
    "frozen::",
    "hostile::",
    "isolation::",
    "neighbours::",
    "processes::",
    "rogue::",
    "scribbler::",
];
/// That takes a minute and a half on two processors.
const PROCESSES_SECONDS_MAX: &str = "900";
/// Tests leak on purpose.
const LEAKS_ALLOWED: &str = "detect_leaks=0";
/// Some look how much memory they have: what was freed is not kept back for long.
const LITTLE_KEPT: &str = "detect_leaks=0:quarantine_size_mb=4:thread_local_quarantine_size_kb=64";

/// Builds the tests of several processes with AddressSanitizer, and runs them.
pub(crate) fn processes(root: &Path) -> Result<(), Failure> {
    let program =
        build_test(root, Tool::AddressSanitizer, &["-p", "adverb-verbs", "--test", "verbs"])?;
    let mut command = Command::new("timeout");
    command.args([PROCESSES_SECONDS_MAX, &program]).args(OF_PROCESSES).current_dir(root);
    command.env("ASAN_OPTIONS", LITTLE_KEPT);
    program::watch(command)
}

fn build(root: &Path, tool: Tool) -> Result<String, Failure> {
    // With the features that all other tests are built with, so that nothing is built twice.
    build_test(root, tool, &["--workspace", "--test", "stress"])
}

fn build_test(root: &Path, tool: Tool, which: &[&str]) -> Result<String, Failure> {
    let mut cargo = Command::new("cargo");
    if tool == Tool::AddressSanitizer {
        // A target of its own, so that build scripts and macros are built without it.
        cargo.args(["test", "--target", "x86_64-unknown-linux-gnu"]);
        cargo.env("RUSTFLAGS", "-Zsanitizer=address").env("RUSTC_BOOTSTRAP", "1");
    } else {
        cargo.arg("test");
    }
    cargo.args(which);
    program::build(root, cargo)
}
