//! Other people's programs, unmodified, under the library; and programs that are killed, starved and
//! swamped.
//!
//! A program that is not installed is skipped, and said so. The programs of faults are this test's own
//! children (`child.rs`): what they do stands in their environment.

#![expect(clippy::indexing_slicing, reason = "a test may panic")]

mod child;
mod echo;
mod faults;
mod measures;
mod running;
mod runtimes;
mod stores;
#[path = "../support/mod.rs"]
mod support;
mod web;

/// The program of this test's own children.
#[test]
#[ignore = "the child of another test"]
fn the_child() {
    child::run();
}
