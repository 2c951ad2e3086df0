//! What programs see of sockets, with and without acceleration: it has to be the same.
//!
//! Each case does something with sockets and writes down what it saw. The cases run in children of
//! this test: one without the library, one that spins, one with shared memory, one that never
//! spins. What they wrote down is compared, word for word.

mod call;
mod cases;
mod datagrams;
mod ends;
mod groups;
#[path = "../support/library.rs"]
mod library;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// Set in a child: run that share of the cases and print what they saw.
const CHILD: &str = "ADVERB_POSIX_CHILD";

/// Children for the cases of one mode: they mostly wait, so they do so at the same time.
const SHARES: usize = 4;

/// Every so many of the cases, from one on.
#[derive(Debug)]
struct Share {
    number: usize,
    /// How many cases there have been.
    seen: usize,
}

impl Share {
    /// Whether the next case belongs to it.
    fn has_next(&mut self) -> bool {
        self.seen += 1;
        self.seen % SHARES == self.number
    }
}

/// What every case saw, and everything that was printed.
#[derive(Debug, Default)]
struct Run {
    saw: BTreeMap<String, String>,
    stderr: String,
}

/// Runs one share of the cases.
fn run_share(mode: &str, environment: &[(&str, &str)], number: usize) -> Run {
    let mut command = Command::new(std::env::current_exe().expect("a path of this test"));
    command.args(["the_child", "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
    let mode_name = mode.replace(' ', "-");
    let place = format!("adverb-posix-{}-{mode_name}-{number}", std::process::id());
    let place = PathBuf::from("/dev/shm").join(place);
    command.env(CHILD, number.to_string()).env("ADVERB_SOCKETS_SHM_DIR", &place);
    command.envs(environment.iter().copied());
    let output = command.output().expect("a child");
    let _ = std::fs::remove_dir_all(place);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{mode}: {}\n{stdout}\n{stderr}", output.status);
    let saw = stdout
        .lines()
        .filter_map(|line| line.split_once(" => "))
        .map(|(name, saw)| (name.to_owned(), saw.to_owned()))
        .collect();
    Run { saw, stderr }
}

/// Runs all of the cases.
fn run(mode: &str, environment: &[(&str, &str)]) -> Run {
    let mut all = Run::default();
    std::thread::scope(|threads| {
        let runs: Vec<_> = (0..SHARES)
            .map(|number| threads.spawn(move || run_share(mode, environment, number)))
            .collect();
        for run in runs {
            let Run { saw, stderr } = run.join().expect("a run");
            all.saw.extend(saw);
            all.stderr.push_str(&stderr);
        }
    });
    all
}

#[test]
#[ignore = "the child of another test"]
fn the_child() {
    if let Some(number) = std::env::var(CHILD).ok().and_then(|number| number.parse().ok()) {
        let mut share = Share { number, seen: 0 };
        cases::run(&mut share);
        datagrams::run(&mut share);
        groups::run(&mut share);
    }
}

/// Goal: no program can tell, by what calls return, that it is accelerated.
#[test]
fn programs_see_the_same_with_and_without_the_library() {
    let library = library::library();
    let library = library.to_str().expect("a path in Unicode");
    let modes: [(&str, (&str, &str)); 4] = [
        ("spinning", ("ADVERB_SOCKETS_TRANSPORT", "spin")),
        ("shared memory", ("ADVERB_SOCKETS_EXPLAIN", "1")),
        ("shared memory without spinning", ("ADVERB_SOCKETS_PROFILE", "frugal")),
        ("left alone", ("ADVERB_SOCKETS_TRANSPORT", "os")),
    ];
    let (expected, runs) = std::thread::scope(|threads| {
        let runs = modes.map(|(mode, setting)| {
            let run = move || run(mode, &[("LD_PRELOAD", library), setting]);
            (mode, threads.spawn(run))
        });
        let expected = run("the kernel", &[]).saw;
        (expected, runs.map(|(mode, run)| (mode, run.join().expect("a run"))))
    });
    assert!(expected.len() > 300, "only {} cases", expected.len());
    let mut wrong = String::new();
    for (mode, Run { saw, stderr }) in &runs {
        for (name, expected) in &expected {
            let saw = saw.get(name).map_or("nothing", String::as_str);
            if saw != expected {
                let lines = format!("\n{mode}, {name}:\n  kernel: {expected}\n  ours:   {saw}");
                wrong.push_str(&lines);
            }
        }
        let ringed = stderr.matches("shared memory with the peer").count();
        assert!(*mode != "shared memory" || ringed > 300, "only {ringed} connections had rings");
        let boxes = stderr.matches(" mailbox ").count();
        assert!(*mode != "shared memory" || boxes > 150, "only {boxes} sockets had mailboxes");
        let groups = stderr.matches(" members, all by shared memory").count();
        assert!(*mode != "shared memory" || groups > 15, "only {groups} groups had mailboxes");
    }
    assert!(wrong.is_empty(), "{wrong}");
}
