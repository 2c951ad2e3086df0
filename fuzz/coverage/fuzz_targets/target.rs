//! One target of `adverb-fuzz` under libFuzzer, which keeps the inputs that reach code no input reached before.
//!
//! `ADVERB_FUZZ_TARGET` names the target; `list` prints all names and ends. With `ADVERB_FUZZ_CORPUS` set to a folder, the target's good inputs are
//! written there, to start from, and nothing else is done. `cargo xtask fuzz --coverage` does all of it.

#![no_main]

use adverb_fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fuzz_target!(init: start(), |bytes: &[u8]| {
    if let Some(target) = TARGET.get() {
        (target.feed)(bytes);
    }
});

fn start() {
    let name = std::env::var("ADVERB_FUZZ_TARGET").expect("ADVERB_FUZZ_TARGET names a target");
    if name == "list" {
        TARGETS.iter().for_each(|target| println!("{}", target.name));
        std::process::exit(0);
    }
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target's name");
    if let Some(folder) = std::env::var_os("ADVERB_FUZZ_CORPUS") {
        for (number, input) in (target.corpus)().into_iter().enumerate() {
            let path = std::path::Path::new(&folder).join(format!("good-{number}"));
            std::fs::write(path, input).expect("the folder can be written to");
        }
        std::process::exit(0);
    }
    TARGET.set(target).expect("started once");
}
