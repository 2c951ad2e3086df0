//! What is done unless something else is set: calls that wait sleep, for as long as it takes.
//!
//! A test program of its own, for it counts the processor time of all of it.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::{Config, Messenger, MessengerConfig};
use adverb_sys::process::usage;
use std::thread;
use std::time::{Duration, Instant};
use support::pair;

/// Goal: a program that waits for a message leaves the processor to others.
/// Method: what the wait costs is compared with its length.
#[test]
fn calls_that_wait_sleep_and_have_no_limit() {
    assert_eq!(Config::default().timeouts.work, None);
    let (client, server) = pair(Config::default());
    let opening = thread::spawn(move || {
        Messenger::open(&server, "data", MessengerConfig::default()).unwrap()
    });
    let client = Messenger::open(&client, "data", MessengerConfig::default()).unwrap();
    let server = opening.join().unwrap();
    let cpu = || usage().unwrap().cpu();
    let (start, before) = (Instant::now(), cpu());
    let waiting = thread::spawn(move || server.recv().unwrap().to_vec());
    thread::sleep(Duration::from_secs(1));
    let (used, waited) = (cpu() - before, start.elapsed());
    println!("{used:?} of {waited:?}");
    assert!(used < waited / 2, "{used:?} of {waited:?}");
    client.send(b"at last").unwrap();
    assert_eq!(waiting.join().unwrap(), b"at last");
}
