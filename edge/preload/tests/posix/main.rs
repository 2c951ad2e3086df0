//! What programs see of sockets, with and without acceleration: it has to be the same.
//!
//! Each case does something with sockets and writes down what it saw. The cases run in children of
//! this test: one without the library, one that spins, one with shared memory, one that never
//! spins. What they wrote down is compared, word for word.

mod call;
mod cases;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// Set in a child: run the cases and print what they saw.
const CHILD: &str = "ADVERB_POSIX_CHILD";

/// Where the library is: beside this test, or one up.
fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a path of this test");
    let deps = exe.parent().expect("a directory");
    let places = [deps.to_owned(), deps.parent().expect("a directory").to_owned()];
    let files = places.map(|place| place.join("libadverb_sockets.so"));
    files.into_iter().find(|file| file.exists()).expect("the library has been built")
}

/// What every case saw, and everything that was printed.
fn run(environment: &[(&str, &str)]) -> (BTreeMap<String, String>, String) {
    let mut command = Command::new(std::env::current_exe().expect("a path of this test"));
    command.args(["the_child", "--exact", "--nocapture", "--test-threads=1"]);
    let place = std::env::temp_dir().join(format!("adverb-posix-{}", std::process::id()));
    command.env(CHILD, "1").env("ADVERB_SOCKETS_SHM_DIR", &place);
    command.envs(environment.iter().copied());
    let output = command.output().expect("a child");
    let _ = std::fs::remove_dir_all(place);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{environment:?}: {}\n{stdout}\n{stderr}", output.status);
    let saw = stdout
        .lines()
        .filter_map(|line| line.split_once(" => "))
        .map(|(name, saw)| (name.to_owned(), saw.to_owned()))
        .collect();
    (saw, stderr)
}

/// Goal: no program can tell, by what calls return, that it is accelerated.
fn same_as_the_kernel(environment: &[(&str, &str)]) -> String {
    let (expected, _) = run(&[]);
    let library = library();
    let mut all = vec![("LD_PRELOAD", library.to_str().expect("a path in Unicode"))];
    all.extend_from_slice(environment);
    let (saw, stderr) = run(&all);
    assert!(expected.len() > 150, "only {} cases", expected.len());
    let mut wrong = String::new();
    for (name, expected) in &expected {
        let saw = saw.get(name).map_or("nothing", String::as_str);
        if saw != expected {
            wrong.push_str(&format!("\n{name}:\n  kernel: {expected}\n  ours:   {saw}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    stderr
}

#[test]
fn the_child() {
    if std::env::var_os(CHILD).is_some() {
        cases::run_all();
    }
}

#[test]
fn programs_see_the_same_when_waits_spin() {
    same_as_the_kernel(&[("ADVERB_SOCKETS_TRANSPORT", "spin")]);
}

#[test]
fn programs_see_the_same_through_shared_memory() {
    let stderr = same_as_the_kernel(&[("ADVERB_SOCKETS_EXPLAIN", "1")]);
    let ringed = stderr.matches("shared memory with the peer").count();
    assert!(ringed > 150, "only {ringed} connections had rings");
}

#[test]
fn programs_see_the_same_through_shared_memory_without_spinning() {
    same_as_the_kernel(&[("ADVERB_SOCKETS_PROFILE", "frugal")]);
}

#[test]
fn programs_see_the_same_when_rules_leave_everything_to_the_kernel() {
    same_as_the_kernel(&[("ADVERB_SOCKETS_TRANSPORT", "os")]);
}
