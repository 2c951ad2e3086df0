//! Two ends of a connection that send, receive, sleep, shut, close, fork, become other programs, go back to the kernel
//! and are killed at random, over a kernel stream and a shared page that a machine of tasks and late stores simulates.
//! `ADVERB_SWITCHOVER_SEED=0x…` runs one seed of each test and prints what happened, `ADVERB_SWITCHOVER_SEEDS=N` the
//! first N.
//!
//! The files under test are the crate's own; their words are the machine's.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "parts of the crate, seen from outside"
)]
#![expect(clippy::indexing_slicing, reason = "a test may fail by a panic")]
#![expect(clippy::as_conversions, reason = "numbers here are small")]
#![expect(
    clippy::disallowed_methods,
    reason = "tasks are threads, and seeds come from the environment"
)]

#[path = "../../src/bell.rs"]
mod bell;
#[path = "../../src/carry.rs"]
mod carry;
mod kernel;
#[path = "../../src/leave.rs"]
mod leave;
mod library;
mod machine;
#[path = "../../src/page.rs"]
mod page;
#[path = "../../src/park.rs"]
mod park;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32 as Count, Ordering as O};

use library::{Handle, Memory, Socket, Step, number};
use machine::{Chaos, Machine, Random, sync};
use page::{End, Route};

/// What may happen besides sending and receiving.
#[derive(Clone, Copy, Default)]
struct May {
    fork: bool,
    leave: bool,
    exec: bool,
    kill: bool,
    corrupt: bool,
}

/// What one end does.
#[derive(Clone, Copy, Debug)]
struct Role {
    /// Bytes to send.
    count: u64,
    /// At once, at most.
    most: u64,
    /// A task sends while another receives; else one does both.
    is_duplex: bool,
    /// After it has sent so many bytes it goes back to the kernel.
    leaves_at: Option<u64>,
    /// After so many another program with the library takes its place.
    becomes_at: Option<u64>,
    /// A child goes on receiving.
    forks: bool,
}

const LOCKS: usize = 32;

fn role(random: &mut Random, may: May) -> Role {
    let count = random.below(50);
    let mut at = |may: bool| (may && random.below(2) == 0).then(|| random.below(count + 1));
    let (leaves_at, becomes_at) = (at(may.leave), at(may.exec));
    Role {
        count,
        most: random.below(6) + 1,
        is_duplex: becomes_at.is_none() && random.below(2) == 0,
        leaves_at,
        becomes_at,
        forks: may.fork && random.below(2) == 0,
    }
}

/// A program: sends what its role says, and receives until the other end sends no more.
fn program(machine: &Arc<Machine>, handle: Handle, role: Role, lock: usize) {
    if role.is_duplex {
        let running = Arc::new(Count::new(2));
        let writer = (handle.clone(), Arc::clone(&running));
        machine::spawn(machine, handle.process, move || {
            let (handle, running) = writer;
            send_all(&handle, role);
            handle.shut();
            end(&handle, &running);
        });
        machine::spawn(machine, handle.process, move || {
            if role.forks {
                return fork(&handle, role, &running);
            }
            receive_all(&handle, role);
            end(&handle, &running);
        });
    } else {
        machine::spawn(machine, handle.process, move || {
            let mut handle = handle;
            let (mut sent, mut is_open) = (0, true);
            let mut becomes_at = role.becomes_at;
            let mut leaves_at = role.leaves_at;
            let mut is_shut = false;
            while sent < role.count || is_open {
                let mut has_moved = false;
                if sent < role.count {
                    match handle.try_send(role.most.min(role.count - sent) as usize) {
                        Step::Moved(count) => (sent, has_moved) = (sent + count as u64, true),
                        Step::Nothing => {}
                        Step::Failed | Step::Ended => sent = role.count,
                    }
                }
                if is_open {
                    match handle.try_receive(role.most as usize) {
                        Step::Moved(_) => has_moved = true,
                        Step::Nothing => {}
                        Step::Ended | Step::Failed => is_open = false,
                    }
                }
                if !has_moved && is_open && sent < role.count {
                    handle.poll_both();
                } else if !has_moved && is_open {
                    is_open = matches!(handle.receive(role.most as usize), Step::Moved(_));
                } else if !has_moved && sent < role.count {
                    match handle.send(1) {
                        Step::Moved(count) => sent += count as u64,
                        Step::Nothing | Step::Failed | Step::Ended => sent = role.count,
                    }
                }
                if leaves_at.take_if(|at| *at <= sent).is_some() {
                    handle.leave();
                }
                if becomes_at.take_if(|at| *at <= sent).is_some() {
                    handle = exec(&handle, lock);
                }
                if sent == role.count && !is_shut {
                    handle.shut();
                    is_shut = true;
                }
            }
            handle.close(true);
        });
    }
}

fn send_all(handle: &Handle, role: Role) {
    let mut sent = 0;
    let mut leaves_at = role.leaves_at;
    while sent < role.count {
        match handle.send(role.most.min(role.count - sent) as usize) {
            Step::Moved(count) => sent += count as u64,
            Step::Failed | Step::Ended | Step::Nothing => return,
        }
        if leaves_at.take_if(|at| *at <= sent).is_some() {
            handle.leave();
        }
    }
}

fn receive_all(handle: &Handle, role: Role) {
    while let Step::Moved(_) | Step::Nothing = handle.receive(role.most as usize) {}
}

fn end(handle: &Handle, running: &Count) {
    let is_last = running.fetch_sub(1, O::SeqCst) == 1;
    if is_last {
        handle.close(true);
    }
}

/// A child has the end as well, and goes on receiving.
fn fork(handle: &Handle, role: Role, running: &Arc<Count>) {
    let child = Handle { process: handle.process + 10, ..handle.clone() };
    machine::call(|state| state.kernel.open(child.process, number(child.socket.me)));
    let parent = handle.clone();
    let there = Arc::clone(running);
    machine::spawn(&machine::here(), child.process, move || {
        receive_all(&child, role);
        let is_last = there.fetch_sub(1, O::SeqCst) == 1;
        child.close(is_last);
        if is_last {
            parent.close(false);
        }
    });
}

/// Another program with the library takes the end over: what it knows is what lies in the page.
fn exec(handle: &Handle, lock: usize) -> Handle {
    let old = &handle.socket;
    if !library::is_settled(&old.memory) || old.route() != Route::Rings {
        handle.leave();
        return handle.clone();
    }
    let new = Socket::new(&old.memory, old.me, Route::Rings, true, lock + 2);
    Handle { socket: Arc::new(new), ..handle.clone() }
}

/// Runs a seed, and returns what was wrong with it, and what happened.
fn run(seed: u64, may: May) -> Result<[u64; 2], String> {
    let machine = machine::machine(seed, LOCKS);
    let memory = Arc::new(Memory::new());
    let mut random = Random(seed ^ 0xabcd);
    let roles = [role(&mut random, may), role(&mut random, may)];
    let ends = [(End::Client, Route::Offered), (End::Server, Route::Open)];
    machine.set_up(|state| {
        (0..2).for_each(|end| state.kernel.open(end, end));
        state.chaos = Chaos {
            kill: may.kill.then(|| (random.below(2000), random.below(2) as usize)),
            corrupt: may.corrupt.then(|| 20 + random.below(500)),
        };
        state.words = library::words(&memory);
        state.trace.push(format!("{roles:?}"));
    });
    for (end, (which, route)) in ends.into_iter().enumerate() {
        let socket = Socket::new(&memory, which, route, false, 8 * end);
        let others = vec![1 - end, 11 - end];
        let handle = Handle { socket: Arc::new(socket), process: end, others };
        program(&machine, handle, roles[end], 8 * end);
    }
    machine.run(|state| {
        let is_whole = may.kill || state.sent == state.read || state.kernel.is_reset();
        if !is_whole {
            state.fail(format!("{:?} bytes are sent, and {:?} read", state.sent, state.read));
        }
        match state.failure.take() {
            Some(failure)
                if !may.corrupt
                    || failure.contains("never ends")
                    || failure.contains("overflow") =>
            {
                Err(format!("{failure}\n{}", state.trace.join("\n")))
            }
            Some(_) | None => Ok(state.read),
        }
    })
}

fn seeds(may: May, count: u64) {
    let value = |name| std::env::var(name).ok();
    let parse = |text: String| {
        let digits = text.trim_start_matches("0x");
        u64::from_str_radix(digits, 16).expect("a seed")
    };
    if let Some(seed) = value("ADVERB_SWITCHOVER_SEED").map(parse) {
        panic!("{:?}", run(seed, may).map_err(|trace| println!("{trace}")));
    }
    let count = value("ADVERB_SWITCHOVER_SEEDS").map_or(count, |n| n.parse().expect("a number"));
    let mut total = [0; 2];
    for seed in 0..count {
        match run(seed, may) {
            Ok(read) => (0..2).for_each(|end| total[end] += read[end]),
            Err(why) => panic!("seed {seed:#x}: {why}"),
        }
    }
    assert!(total.iter().all(|bytes| *bytes > count), "hardly anything has been read: {total:?}");
}

#[test]
fn every_byte_comes_once_and_in_order() {
    seeds(May::default(), 300);
}

#[test]
fn processes_share_an_end() {
    seeds(May { fork: true, ..May::default() }, 300);
}

#[test]
fn an_end_goes_back_to_the_kernel() {
    seeds(May { leave: true, ..May::default() }, 300);
}

#[test]
fn another_program_takes_an_end_over() {
    seeds(May { exec: true, ..May::default() }, 300);
}

#[test]
fn all_of_that_goes_together() {
    seeds(May { fork: true, leave: true, exec: true, ..May::default() }, 300);
}

#[test]
fn processes_are_killed() {
    seeds(May { fork: true, leave: true, exec: true, kill: true, ..May::default() }, 300);
}

#[test]
fn nonsense_in_the_page_keeps_no_call_from_ending() {
    seeds(May { leave: true, corrupt: true, ..May::default() }, 300);
}
