//! Strangers ring the bells by which the library wakes sleepers: every call ends, and others are served.
//!
//! A bell is a socket with a name in the network namespace, to which any process there may send.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::child;
use crate::nonsense::{in_use, is_served, rings};
use crate::running::{Running, until};
use crate::support::{Place, free_port};

/// Goal: a server that gets bells without end, datagrams of all lengths, until no bell of a neighbour's fits any more,
/// serves others, and loses no descriptor.
/// Method: a server that sleeps in epoll, and clients that look by themselves whether each of their calls ends.
#[test]
fn bells_of_strangers_hold_up_no_other() {
    let (place, port) = (Place::new("bells"), free_port());
    let role = |role: &str| {
        let mut command: Command = child(&place, &format!("{role} {port}"));
        command.stderr(Stdio::null()).stdout(Stdio::null());
        command
    };
    let mut server = Running::serve(&mut role("events"), port);
    is_served(port);
    let before = descriptors(server.id());
    let is_over = AtomicBool::new(false);
    let sent = std::thread::scope(|threads| {
        let ringing = threads.spawn(|| ring(server.id(), &is_over));
        for _ in 0..3 {
            let start = || Running::start(&mut role("call"));
            let (mut clients, _rings) = in_use(start, || rings(&place), 2);
            is_served(port);
            for client in &mut clients {
                assert!(client.end().success(), "a call of a client's hung");
            }
        }
        is_over.store(true, Ordering::Relaxed);
        ringing.join().expect("no panic")
    });
    // Half of what a queue of the kernel's takes, at least: bells are left there for a while, the clients' among them.
    assert!(sent >= 5, "only {sent} were sent");
    is_served(port);
    // Its bell, and the socket that it rings by.
    until("descriptors come back", || descriptors(server.id()) <= before + 2);
    assert_eq!(server.has_ended(), None, "the server has ended");
}

/// Sends to all bells of a process until it is over; says how many datagrams.
fn ring(process: u32, is_over: &AtomicBool) -> u64 {
    let socket = UnixDatagram::unbound().expect("a socket");
    socket.set_nonblocking(true).expect("a socket");
    let mut sent = 0;
    while !is_over.load(Ordering::Relaxed) {
        let bells = bells(process);
        for len in (0..1000_usize).map(|turn| turn * 7 % 100) {
            let ring = |bell| socket.send_to_addr(&[7; 100][..len], bell).is_ok();
            sent += bells.iter().filter(|bell| ring(bell)).map(|_| 1).sum::<u64>();
        }
    }
    sent
}

/// The names of the bells of a process.
fn bells(process: u32) -> Vec<SocketAddr> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let own: Vec<_> = entries.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
    let all = fs::read_to_string("/proc/net/unix").expect("proc");
    let named = all.lines().filter_map(|line| {
        let (start, name) = line.rsplit_once(" @")?;
        let inode = start.split_whitespace().next_back()?;
        let is_own =
            own.iter().any(|file| file.as_os_str() == format!("socket:[{inode}]").as_str());
        is_own.then(|| SocketAddr::from_abstract_name(name).ok())?
    });
    named.collect()
}

fn descriptors(process: u32) -> usize {
    fs::read_dir(format!("/proc/{process}/fd")).expect("proc").count()
}
