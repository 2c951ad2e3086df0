//! Isolation: what a process of the same host can do to memory without our code: only what its queue pairs are allowed.
//!
//! The other process asks by the stream that its device has to ours, by every number, and maps what it is given.
//! What it has got is seen from outside, in `/proc/PID/maps`.
//!
//! # Safety
//!
//! Descriptors of this process that the test names by number are borrowed to be duplicated, and stay open.

use crate::agent::Agent;
use crate::alone::alone;
use crate::pair::{bytes_of, eventually, pattern, remote};
use crate::path::Path;
use adverb_verbs::{Access, Memory, Mr, Pd, WcStatus, Work};
use std::fs::{self, File};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixDatagram;

/// A file of this process that holds certain bytes.
#[derive(Debug)]
struct Found {
    inode: u64,
    file: File,
    /// Where they are.
    at: u64,
}

/// The descriptors of this process, and what they are of.
fn descriptors() -> Vec<(i32, String)> {
    let entries = fs::read_dir("/proc/self/fd").expect("proc").filter_map(Result::ok);
    entries
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, fs::read_link(entry.path()).ok()?.to_str()?.to_owned()))
        })
        .collect()
}

/// The file that neighbours may be given in which these bytes are, opened anew for reading and writing.
fn file_with(bytes: &[u8]) -> Option<Found> {
    let names = descriptors().into_iter();
    let shared = names.filter(|(_, name)| {
        name.starts_with("/memfd:adverb-arena") || name.starts_with("/memfd:adverb ")
    });
    shared.into_iter().find_map(|(number, _)| {
        let path = format!("/proc/self/fd/{number}");
        let file = File::options().read(true).write(true).open(path).ok()?;
        let metadata = file.metadata().ok()?;
        let mut page = vec![0; bytes.len()];
        let mut places = (0..metadata.len()).step_by(4096);
        let at = places.find(|at| file.read_at(&mut page, *at).is_ok() && page == bytes)?;
        Some(Found { inode: metadata.ino(), file, at })
    })
}

/// What a process can do with the pages of this file, as `/proc` says it; nothing if it has not mapped it.
fn rights(agent: &Agent, found: &Found) -> Option<String> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", agent.pid())).expect("proc");
    maps.lines().find_map(|line| {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let [_, rights, _, _, inode, ..] = *words else { return None };
        (inode == found.inode.to_string()).then(|| rights.to_owned())
    })
}

/// For the other process: asks its neighbours for all files up to this number, as a device does (`import.rs`).
pub(crate) fn ask_for_files(up_to: u64) -> String {
    for (number, name) in descriptors() {
        if !name.starts_with("socket:") {
            continue;
        }
        // SAFETY: it is open, and a device's thread that closes it now does no harm: `dup` would fail.
        let socket = unsafe { BorrowedFd::borrow_raw(number) };
        let Ok(socket) = socket.try_clone_to_owned().map(UnixDatagram::from) else { continue };
        if socket.peer_addr().is_err() {
            continue; // It is no stream between processes.
        }
        for file in 1..=up_to {
            let ask: Vec<u8> = [1_u64, file].into_iter().flat_map(u64::to_ne_bytes).collect();
            let _ = socket.send(&ask);
        }
    }
    "asked".to_owned()
}

fn region(pd: &Pd, seed: u64, access: Access) -> (Mr, Vec<u8>) {
    let (mr, bytes) = (pd.allocate(4096, access).expect("memory"), pattern(seed, 4096));
    mr.write(0, &bytes).expect("it is writable");
    (mr, bytes)
}

/// Goal: a neighbour that asks for everything maps what its queue pair may reach, and can write to no more than that;
/// what it got a message from by reference, and what it may only READ, only the owner can write to.
#[test]
fn a_neighbour_maps_what_its_queue_pair_may_reach() {
    alone("isolation::a_neighbour_maps_what_its_queue_pair_may_reach", || {
        let (path, setup) = (Path::SharedMemory, Path::SharedMemory.setup());
        let context = path.context();
        let (side, mut agent) = (setup.side(&context), Agent::start_over(path));
        let other = context.alloc_pd();
        let local = Access::LOCAL_WRITE;
        let (open, in_open) = region(&side.pd, 1, Access::ALL);
        let (_readable, in_readable) = region(&side.pd, 2, local | Access::REMOTE_READ);
        let (_writable, in_writable) = region(&side.pd, 3, local | Access::REMOTE_WRITE);
        let (_window, in_window) = region(&side.pd, 4, local | Access::MW_BIND);
        let (_foreign, in_foreign) = region(&other, 5, Access::ALL);
        let mut kept = other.buffer(4096).expect("memory");
        kept.copy_from_slice(&pattern(6, 4096));
        let sent = side.buffer(&pattern(7, 4096));
        let file = |bytes: &[u8]| file_with(bytes).expect("it is in a file");
        let [open_file, readable, foreign, local_file, kept_file] =
            [&in_open, &in_readable, &in_foreign, &pattern(7, 4096), &pattern(6, 4096)]
                .map(|bytes| file(bytes));

        // A process without a queue pair here has a device here all the same.
        let there = agent.connect_to(&side.qp, &setup);
        agent.ask("ask for files 200");
        eventually("it is given what it may reach", || rights(&agent, &open_file).is_some());
        assert_eq!(rights(&agent, &open_file).as_deref(), Some("rw-s"));
        eventually("and what it may read", || rights(&agent, &readable).is_some());
        assert_eq!(rights(&agent, &readable).as_deref(), Some("r--s"));
        for unreachable in [&foreign, &kept_file, &local_file] {
            assert_eq!(rights(&agent, unreachable), None, "{unreachable:?}");
        }
        assert!(file_with(&in_writable).is_none(), "a mapping for writing could be read");
        assert_eq!(file(&in_window).inode, local_file.inode, "windows are reached by packets");

        // A message that is lent: the second one, as soon as the other has the pages.
        let mut sent = Memory::from(sent);
        eventually("the message is lent", || {
            agent.ask(&format!("recv {} 0 4096", there.index));
            let message = std::mem::replace(&mut sent, Memory::Nothing);
            side.qp.post(Work::send(message)).expect("room");
            let done = side.wait();
            assert_eq!(done.wc.status, WcStatus::Success);
            sent = done.memory.expect("it comes back");
            assert_eq!(agent.ask("wait"), "Success Receive 4096");
            rights(&agent, &local_file).is_some()
        });
        assert_eq!(rights(&agent, &local_file).as_deref(), Some("r--s"));
        assert_eq!(rights(&agent, &kept_file), None, "of another domain");

        // By whatever way a process gets hold of the file.
        for sealed in [&local_file, &readable, &kept_file] {
            assert!(sealed.file.write_at(&[0xee; 64], sealed.at).is_err(), "{sealed:?}");
        }
        assert_eq!(&kept[..], &pattern(6, 4096));

        // And what the rights are for goes on.
        let (index, far) = (there.index, remote(&open));
        let line = |what: &str| format!("{what} {index} 0 4096 {} {}", far.addr, far.rkey.0);
        agent.fill(0, 4096, 9);
        assert_eq!(agent.ask(&line("write")), "Success");
        assert_eq!(bytes_of(&open, 0, 4096), pattern(9, 4096));
        assert_eq!(agent.ask(&line("read")), "Success");
    });
}

/// Goal: memory that is registered anew with fewer rights, or in another domain, is out of reach of neighbours that have mapped it.
#[test]
fn memory_registered_anew_leaves_the_file_that_neighbours_have() {
    alone("isolation::memory_registered_anew_leaves_the_file_that_neighbours_have", || {
        let (path, setup) = (Path::SharedMemory, Path::SharedMemory.setup());
        let context = path.context();
        let (side, mut agent) = (setup.side(&context), Agent::start_over(path));
        let _ = agent.connect_to(&side.qp, &setup);
        let other = context.alloc_pd();
        let (mut mr, bytes) = region(&side.pd, 1, Access::ALL);
        let first = file_with(&bytes).expect("it is in a file");
        agent.ask("ask for files 200");
        eventually("it is mapped", || rights(&agent, &first).is_some());
        let steps = [
            (&side.pd, Access::LOCAL_WRITE),
            (&other, Access::ALL),
            (&other, Access::LOCAL_WRITE | Access::REMOTE_READ),
            (&side.pd, Access::LOCAL_WRITE | Access::REMOTE_READ),
        ];
        for (seed, (pd, access)) in (2..).zip(steps) {
            mr = mr.reregister(pd, access).expect("it is not shared");
            assert_eq!(bytes_of(&mr, 0, 4096), pattern(seed - 1, 4096), "the bytes stay");
            mr.write(0, &pattern(seed, 4096)).expect("it is writable");
            let now = file_with(&pattern(seed, 4096)).expect("it is in a file");
            assert_ne!(now.inode, first.inode, "{access}");
            assert_ne!(rights(&agent, &now).as_deref(), Some("rw-s"), "{access}");
        }
    });
}
