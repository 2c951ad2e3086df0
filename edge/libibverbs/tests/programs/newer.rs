//! Programs of a release of rdma-core that is later than the distribution's, with all libraries of that release.
//!
//! `edge/libibverbs/tests/rdma-core` builds it from its source, which a package of Python's registry carries.

use crate::cm::{self, Line, RDMACM, RSOCKETS};
use crate::drop_in::Directory;
use crate::support::{self, Place};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where it was built; says so if it was not.
fn built() -> Option<PathBuf> {
    let exe = std::env::current_exe().expect("a program has a path");
    let build = |above: &Path| above.join("rdma-core/build");
    let found = exe.ancestors().map(build).find(|build| build.join("bin/rping").is_file());
    if found.is_none() {
        println!("skipped: no later rdma-core: edge/libibverbs/tests/rdma-core builds it");
    }
    found
}

/// The libraries that a program gets, by name.
fn libraries(program: &Path, set: &[(&str, &str)]) -> String {
    let mut command = Command::new(program);
    command.envs(set.iter().copied()).env("LD_TRACE_LOADED_OBJECTS", "1");
    String::from_utf8_lossy(&command.output().expect("it starts").stdout).into_owned()
}

/// Runs all programs of the release; `set` says how they get the library.
fn all(build: &Path, place: Place<'_>, set: &[(&str, &str)], ibverbs: &Path) {
    let programs = build.join("bin");
    let listed = libraries(&programs.join("rping"), set);
    for (name, directory) in [("librdmacm", build.join("lib").as_path()), ("libibverbs", ibverbs)] {
        let from = format!("{name}.so.1 => {}/", directory.display());
        assert!(listed.contains(&from), "{from}: {listed}");
    }
    let programs = format!("{}/", programs.display());
    let as_before = RDMACM.iter().chain(&RSOCKETS).filter(|line| line.name != CMTIME.name);
    for line in as_before.chain([&CMTIME]) {
        let run = || cm::run_from(&programs, line, place, set);
        // One thread of this rping polls for events and then reads, while another one destroys the identifier that the event
        // is about, and the event with it: with the kernel's device as well, the first then waits for ever. One run of a hundred.
        let again = |why: String| if line.name.starts_with("rping") { run() } else { Err(why) };
        run().or_else(again).unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn the_programs_of_a_later_rdma_core_meet_with_the_library_in_front_of_libibverbs() {
    if let Some(build) = built() {
        let library = support::library();
        let set = [("LD_PRELOAD", library.to_str().expect("a path of letters"))];
        all(&build, Place::Here("udp"), &set, &build.join("lib"));
    }
}

#[test]
fn the_programs_of_a_later_rdma_core_meet_with_the_library_in_the_place_of_libibverbs() {
    if let Some(build) = built() {
        let directory = Directory::new();
        all(&build, Place::Here("shm"), &directory.set(), directory.path());
    }
}

/// Its options have changed.
const CMTIME: Line = cm::line(
    "cmtime -c 1000",
    "cmtime -L -b {h} -C {h} -p {p} -c 1000",
    "cmtime -b {h} -C {h} -p {p} -c 1000",
);
