//! A process that forks: what is registered stays the parent's, and traffic goes on.
//!
//! # Safety
//!
//! What a child runs before it becomes another program is `read` and `write` on pipes: nothing that
//! allocates, locks, or touches a handle of this library.

use crate::pair::{Setup, assert_same, bytes_of, pattern, remote};
use adverb_verbs::{WcStatus, Work};
use std::io::{Read, Write, pipe};
use std::os::unix::process::CommandExt;
use std::process::Command;

const LEN: usize = 300_000;

/// Goal: pages that parent and child share until one of them writes are no trouble, for memory is not
/// pinned: peers see what the parent writes, and the parent sees what they write.
/// Method: a child that has forked and not yet begun its program holds all pages of the parent.
#[test]
fn memory_stays_the_parents_while_a_child_has_copies_of_its_pages() {
    let pair = Setup::default().pair();
    let here = pair.a.region(&pattern(1, LEN));
    let there = pair.b.region(&pattern(2, LEN));
    let (mut forked, mut say) = pipe().expect("a pipe");
    let (mut wait, mut release) = pipe().expect("a pipe");
    let child = std::thread::spawn(move || {
        let mut command = Command::new("true");
        let pause = move || {
            say.write_all(&[1])?;
            wait.read_exact(&mut [0])
        };
        // SAFETY: the closure reads and writes pipes (header).
        unsafe { command.pre_exec(pause) };
        command.status().expect("a child")
    });
    forked.read_exact(&mut [0]).expect("the child says so");
    for seed in 3..8 {
        let data = pattern(seed, LEN);
        here.write(0, &data).expect("it fits");
        let write = Work::write(here.slice(0, LEN).expect("in there"), remote(&there));
        pair.a.qp.post(write).expect("room");
        assert_eq!(pair.a.status(), WcStatus::Success);
        assert_same(&bytes_of(&there, 0, LEN), &data, "written");
        let back = pattern(100 + seed, LEN);
        there.write(0, &back).expect("it fits");
        let read = Work::read(here.slice(0, LEN).expect("in there"), remote(&there));
        pair.a.qp.post(read).expect("room");
        assert_eq!(pair.a.status(), WcStatus::Success);
        assert_same(&bytes_of(&here, 0, LEN), &back, "read");
    }
    release.write_all(&[1]).expect("the child waits");
    assert!(child.join().expect("no panic").success());
    let last = Work::write(here.slice(0, LEN).expect("in there"), remote(&there));
    pair.a.qp.post(last).expect("room");
    assert_eq!(pair.a.status(), WcStatus::Success);
}
