//! A process that forks: what is registered stays the parent's, traffic goes on, and its child has none of the device.
//!
//! # Safety
//!
//! What a child runs before it becomes another program is `read` and `write` on pipes: nothing that
//! allocates, locks, or touches a handle of this library.

use crate::agent::Agent;
use crate::pair::{Setup, assert_same, bytes_of, pattern, remote};
use crate::path::{Path, between_processes};
use adverb_verbs::{WcStatus, Work};
use std::io::{Read, Write, pipe};
use std::os::unix::process::CommandExt;
use std::process::Command;

const LEN: usize = 300_000;

between_processes! {
    a_child_keeps_nothing_of_a_device_that_its_parent_closes,
}

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

/// A child that ends with the test, however that ends: it has both ends of the pipe that it waits for.
struct Killed(u32);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-KILL", &self.0.to_string()]).status();
    }
}

/// Goal: a child that outlives the device of its parent gets none of the packets for its address, holds no place in
/// the registry, and keeps no newcomer waiting. Method: the child has no socket; what others send one another after
/// that arrives where it belongs, without being passed on.
fn a_child_keeps_nothing_of_a_device_that_its_parent_closes(path: Path) {
    let context = path.context();
    let side = Setup::default().side(&context);
    let mut first = Agent::start_over(path);
    first.connect_to(&side.qp, &Setup::default());
    let (mut forked, mut say) = pipe().expect("a pipe");
    let (mut wait, mut release) = pipe().expect("a pipe");
    let child = std::thread::spawn(move || {
        let mut command = Command::new("true");
        let pause = move || {
            say.write_all(&std::process::id().to_ne_bytes())?;
            wait.read_exact(&mut [0])
        };
        // SAFETY: the closure reads and writes pipes (header).
        unsafe { command.pre_exec(pause) };
        command.status().expect("a child")
    });
    let mut pid = [0; 4];
    forked.read_exact(&mut pid).expect("the child says so");
    let pid = u32::from_ne_bytes(pid);
    let _end = Killed(pid);
    assert_ne!(sockets_of(std::process::id()), 0);
    assert_eq!(sockets_of(pid), 0);
    drop((side, context));

    for round in 0..8 {
        let mut others = [(); 2].map(|()| Agent::start_over(path));
        let [a, b] = &mut others;
        let (x, _) = Agent::introduce(a, b, &Setup::default());
        let far = b.memory();
        a.fill(0, 9000, round);
        let write = format!("write {} 0 9000 {} {}", x.index, far.addr, far.rkey.0);
        assert_eq!(a.ask(&write), "Success");
        assert!(b.has(0, 9000, round));
    }
    release.write_all(&[1]).expect("the child waits");
    assert!(child.join().expect("no panic").success());
}

/// How many sockets a process has that are bound to a port or listen by a name.
fn sockets_of(pid: u32) -> usize {
    let read =
        |name| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let bound = [read("udp"), read("udp6")].concat();
    let named: String = read("unix").lines().filter(|line| line.contains('@')).collect();
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("proc");
    let targets = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    let inodes = targets.filter_map(|target| {
        let target = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        Some(format!(" {target} "))
    });
    inodes.filter(|inode| bound.contains(inode) || named.contains(inode)).count()
}
