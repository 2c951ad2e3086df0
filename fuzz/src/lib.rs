//! Hostile bytes for everything that parses.
//!
//! A [`Target`] is a function that takes any bytes and panics if it finds a bug, with some good
//! inputs to start from. [`run`] feeds it mutations of those for a while. It needs nothing but
//! stable Rust and stays small: a fuzzer that knows coverage can call the same functions.
//!
//! `tests/targets.rs` runs them all, for as many seconds each as `ADVERB_FUZZ_SECONDS` says, 2 if
//! it says nothing. A failure prints a seed; `ADVERB_FUZZ_SEED=0x…` runs the one input made from it.
//!
//! To add a target, write its function in a file named after the crate it is for, and add it to
//! [`TARGETS`].

mod corpus;
mod mutate;
mod rdma_cm;
mod session;
mod sockconf;
mod tcpip;
mod wire;

use crate::mutate::{Random, mutate};
use adverb_xdp::grant;
use adverb_xdp::socket::hostile;
use std::thread;
use std::time::{Duration, Instant};

/// Something to be fed with hostile bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What the output calls it.
    pub name: &'static str,
    /// Good inputs, of which the hostile ones are made.
    pub corpus: fn() -> Vec<Vec<u8>>,
    /// Takes any bytes. Panics if there is a bug.
    pub feed: fn(&[u8]),
}

/// Everything there is to run.
pub const TARGETS: &[Target] = &[
    Target { name: "wire_parse", corpus: corpus::datagrams, feed: wire::parse },
    Target { name: "wire_icrc", corpus: corpus::datagrams, feed: wire::icrc },
    Target { name: "wire_capture", corpus: corpus::files, feed: wire::capture },
    Target { name: "wire_management", corpus: corpus::management, feed: wire::management },
    Target { name: "rdma_cm_command", corpus: rdma_cm::commands, feed: rdma_cm::command },
    Target { name: "session_frame", corpus: session::frames, feed: session::frame },
    Target { name: "sockets_rules", corpus: sockconf::files, feed: sockconf::rules },
    Target { name: "tcpip_frame", corpus: tcpip::frames, feed: tcpip::frame },
    Target { name: "tcpip_segments", corpus: tcpip::conversations, feed: tcpip::segments },
    Target { name: "xdp_rings", corpus: hostile::lives, feed: hostile::rings },
    Target { name: "xdp_grant", corpus: grant::conversation, feed: grant::messages },
];

/// As many inputs should a run have, however busy the machine is.
pub const INPUTS_MIN: u64 = 5000;
/// How many times as long as it should a run takes at most to have them.
pub const PATIENCE: u32 = 10;

/// Feeds `target` for as long as `budget` says, and at least once. Returns how many inputs it took.
///
/// A thread that gets little of a processor goes on until it has fed [`INPUTS_MIN`], for [`PATIENCE`] times as long at most.
///
/// The inputs are made from the seeds `seed`, `seed` + 1, and so on.
///
/// # Panics
///
/// If the target does. The seed of the input that it did not like is printed.
pub fn run(target: &Target, seed: u64, budget: Duration) -> u64 {
    let corpus = (target.corpus)();
    let start = Instant::now();
    let mut count = 0;
    loop {
        feed_one(target, &corpus, seed.wrapping_add(count));
        count += 1;
        let limit = if count < INPUTS_MIN { PATIENCE * budget } else { budget };
        if start.elapsed() >= limit {
            return count;
        }
    }
}

/// Feeds `target` the one input that is made from `seed`.
///
/// # Panics
///
/// If the target does.
pub fn replay(target: &Target, seed: u64) {
    feed_one(target, &(target.corpus)(), seed);
}

fn feed_one(target: &Target, corpus: &[Vec<u8>], seed: u64) {
    let input = mutate(corpus, &mut Random::new(seed));
    let witness = Witness { name: target.name, seed, input: &input };
    (target.feed)(witness.input);
}

/// Says what was fed, should it have been the last.
struct Witness<'a> {
    name: &'a str,
    seed: u64,
    input: &'a [u8],
}

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let Self { name, seed, input } = self;
            eprintln!("{name}: ADVERB_FUZZ_SEED={seed:#x} fails with {input:02x?}");
        }
    }
}
