//! Neighbours that mean harm: another user in the place where rings meet, and nonsense in shared memory.
//!
//! # Safety
//!
//! Calls into the C library take numbers alone, or arrays that live through the call.

#![expect(clippy::indexing_slicing, reason = "a test may panic")]

mod bells;
mod meeting;
mod memory;
mod nonsense;
#[path = "../programs/running.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod running;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod support;

use std::process::Command;

use support::Place;

/// A program of this test's own, with the library in front of it: see [`the_child`].
fn child(place: &Place, role: &str) -> Command {
    let mut command = place.command(std::env::current_exe().expect("a path of this test"));
    command.args(["the_child", "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
    command.env("ADVERB_TEST_ROLE", role).env("ADVERB_SOCKETS_EXPLAIN", "1");
    command
}

/// The program of this test's own children.
#[test]
#[ignore = "the child of another test"]
fn the_child() {
    let Ok(role) = std::env::var("ADVERB_TEST_ROLE") else { return };
    let fields: Vec<&str> = role.split(' ').collect();
    match fields[..] {
        ["alone"] => meeting::talk_to_itself(),
        ["stay"] => meeting::stay(),
        ["threads", port] => nonsense::serve_from_threads(number(port)),
        ["events", port] => nonsense::serve_events(number(port)),
        ["crowd", count, fill] => memory::crowd_of(number(count).into(), fill == "fill"),
        ["datagrams", count] => memory::datagrams_of(number(count).into()),
        ["call", port] => nonsense::call(number(port)),
        ["answer", port] => nonsense::answer_datagrams(number(port)),
        ["ask", port] => nonsense::ask_by_datagrams(number(port)),
        ["unmappable", port] => nonsense::talk_without_mappings(number(port)),
        ["leave", port] => nonsense::leave(number(port)),
        ["close", port] => nonsense::close(number(port)),
        _ => panic!("no such role: {role}"),
    }
}

fn number(text: &str) -> u16 {
    text.parse().expect("a port")
}
