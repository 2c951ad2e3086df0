//! What goes beyond plain sockets, used by programs in C as other people's programs use it.
//!
//! Where there is no compiler, the tests are skipped, and say so.

#[path = "../support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::Place;

/// With shared memory, and without.
const SHARED: [(&str, &str); 2] = [("ADVERB_SOCKETS_TRANSPORT", "shm"), ("WANT_RINGS", "1")];
const SPINNING: [(&str, &str); 1] = [("ADVERB_SOCKETS_TRANSPORT", "spin")];

/// Builds a program of this directory; `None`, and said so, without a compiler.
fn built(place: &Place, name: &str) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = place.0.join(name);
    let mut command = Command::new("cc");
    command
        .args(["-O1", "-Wall", "-Wno-unused-function", "-pthread", "-I"])
        .arg(here.join("include"));
    command.arg("-o").arg(&program).arg(here.join("tests/extra").join(format!("{name}.c")));
    let Ok(status) = command.status() else {
        eprintln!("skipped: there is no compiler for C");
        return None;
    };
    assert!(status.success(), "{command:?}");
    Some(program)
}

/// Runs a program in several modes and with several arguments; each says by its status whether all was well.
fn succeeds(name: &str, modes: &[&[(&str, &str)]], arguments: &[&str]) {
    let place = Place::new(name);
    let Some(program) = built(&place, name) else { return };
    for mode in modes {
        for argument in arguments {
            let mut command = place.command(&program);
            command.args(argument.split_whitespace()).envs(mode.iter().copied());
            command.env("PORT", support::free_port().to_string());
            ends_well(&mut command);
        }
    }
}

/// Runs a command that has to end well before long.
fn ends_well(command: &mut Command) {
    let mut child = command.stdout(Stdio::null()).spawn().expect("a program");
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return assert!(status.success(), "{command:?}: {status}");
        }
        if Instant::now() > until {
            let _ = child.kill();
            panic!("{command:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_comes_through_shared_memory_is_stamped() {
    succeeds("stamps", &[&SHARED, &SPINNING], &[""]);
}

/// Goal: what is lent is what was sent, comes back in any order, and holds the sender back, not the other way round.
#[test]
fn what_is_read_without_a_copy_stays_until_it_is_given_back() {
    succeeds("zcopy", &[&SHARED, &SPINNING], &[""]);
}

#[test]
fn the_extra_functions_do_what_their_mask_says() {
    succeeds("api", &[&SHARED, &SPINNING], &[""]);
}

/// Goal: every packet is seen once, in order, and goes where the program says, however it is waited for.
#[test]
fn a_callback_has_packets_received_dropped_or_held() {
    succeeds("callback", &[&SHARED, &SPINNING], &[""]);
}

/// Goal: connections, packets, ends and errors of all sockets of a ring come by one call, and packets stay until they
/// are freed.
#[test]
fn what_happens_to_the_sockets_of_a_ring_is_said_by_one_call() {
    let xtreme = ("VMA_SOCKETXTREME", "1");
    let [shared, wants_rings] = SHARED;
    let [spinning] = SPINNING;
    let modes: [&[(&str, &str)]; 3] =
        [&[shared, wants_rings, xtreme], &[spinning, xtreme], &[shared, wants_rings]];
    succeeds("xtreme", &modes, &[""]);
}

#[test]
fn sockets_share_rings_by_the_logic_that_was_asked_for() {
    let by = |logic| [("VMA_RING_ALLOCATION_LOGIC_RX", logic), ("LOGIC", logic)];
    succeeds("rings", &[&by("0"), &by("10"), &by("20")], &[""]);
}

/// Goal: no more is sent than a rate allows, whether calls wait or not.
#[test]
fn a_rate_is_kept() {
    succeeds("pacing", &[&SHARED, &SPINNING], &[""]);
}

/// Goal: what programs get wrong is an error, and harms nothing.
#[test]
fn mistakes_are_errors() {
    let xtreme = ("VMA_SOCKETXTREME", "1");
    let [shared, wants_rings] = SHARED;
    succeeds("wrongs", &[&SHARED, &SPINNING, &[shared, wants_rings, xtreme]], &[""]);
}
