//! What may not cross the boundary to C: panics.

use super::compiled::Compiled;
use super::support;
use std::path::Path;

/// Goal: a panic becomes the failure that the function is documented to have, and the library goes on. Method: a hook
/// of builds with debug assertions makes every call of a thread panic; a program of C goes through exported functions,
/// those of tables, `ibv_wr_*` and `ibv_wc_read_*`, and then uses the same objects.
#[test]
fn a_panic_becomes_a_failure_and_the_program_goes_on() {
    let Some(program) = Compiled::new("panics", &["-libverbs", "-ldl"]) else {
        return;
    };
    let set = [("ADVERB_DEVICES", "soft_lo"), ("ADVERB_EXPLAIN", "0")];
    let output = support::command(program.path()).envs(set).output().unwrap();
    if output.status.code() == Some(77) {
        println!("skipped: no hook for panics: the library was built without debug assertions");
        return;
    }
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{said}", output.status);
}

/// Functions without a guard, because there is nothing in them that can panic: a lock, a constant, a jump, the end of the
/// program; or they call one that has a guard.
const BARE: [&str; 14] = [
    "$name", // `words.rs`: names of numbers; `forward.rs`: a jump. Those of other macros have guards.
    "abort",
    "adverb_provoke_panics",
    "dlopen",
    "end_poll",
    "fstat",
    "ibv_ack_async_event",
    "ibv_get_sysfs_path",
    "missing",
    "missing_pointer",
    "reached",
    "resolve",
    "start",
    "visit",
];

#[test]
fn every_function_that_c_calls_has_a_guard() {
    let mut unguarded = Vec::new();
    sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut |text| {
        for function in text.split("extern \"C\" fn ").skip(1) {
            let name = function.split('(').next().unwrap();
            let body = function.split("\n}\n").next().unwrap();
            let has = ["guarded(", "catch_unwind(", "step(", "received("];
            if !name.is_empty() && !has.iter().any(|guard| body.contains(guard)) {
                unguarded.push(name.to_owned());
            }
        }
    });
    unguarded.sort_unstable();
    unguarded.dedup();
    assert_eq!(unguarded, BARE);
}

fn sources(directory: &Path, each: &mut dyn FnMut(&str)) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, each),
            false => each(&std::fs::read_to_string(&path).unwrap()),
        }
    }
}
