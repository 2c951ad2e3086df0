//! Shared memory is short, full, filled while connections live, read-only, or not there: every byte arrives, and
//! nothing ends by a signal.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;

use crate::child;
use crate::running::succeed;
use crate::support::Place;

/// What each end sends before either reads.
const BYTES: usize = 240_000;

/// The directory on which a small file system is mounted, for the child alone.
fn mount_point(place: &Place) -> PathBuf {
    place.0.join("small")
}

/// Runs a crowd of connections where shared memory is mounted like this. `None` if that cannot be.
fn crowd(name: &str, mount: &str, count: u16, fill: &str) -> Option<String> {
    run(name, mount, count, &format!("crowd {count} {fill}"))
}

fn run(name: &str, mount: &str, count: u16, role: &str) -> Option<String> {
    let place = Place::new(name);
    let at = mount_point(&place);
    fs::create_dir(&at).expect("a directory");
    let can = Command::new("unshare").args(["-m", "true"]).status();
    if !can.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no mount namespace can be made here");
        return None;
    }
    let inner = child(&place, role);
    let mut command = Command::new("unshare");
    let script = format!("{mount} && LD_PRELOAD=\"$LIBRARY\" exec \"$@\"");
    command.args(["-m", "sh", "-c", &script, "sh"]).arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        let name = if name == "LD_PRELOAD" { "LIBRARY".as_ref() } else { name };
        command.env(name, value.expect("a value"));
    }
    command.env("AT", &at).env("ADVERB_SOCKETS_SHM_DIR", at.join("rings"));
    let said = succeed(&mut command);
    assert!(said.contains(&format!("right: {count}")), "{said}");
    Some(said)
}

fn rings_in(said: &str) -> usize {
    said.matches("shared memory with the peer").count()
}

/// Goal: where memory is short, connections that have rings go on through the kernel.
#[test]
fn a_crowd_in_a_small_file_system_is_served() {
    let mount = "mount -t tmpfs -o size=64m none \"$AT\"";
    let Some(said) = crowd("memory-64m", mount, 400, "-") else { return };
    assert!(rings_in(&said) > 50, "{}", rings_in(&said));
}

/// Goal: the smallest, down to one in which nothing fits.
#[test]
fn the_smallest_file_systems_do_no_harm() {
    for size in ["4k", "16k", "128k", "512k", "4m"] {
        let mount = format!("mount -t tmpfs -o size={size} none \"$AT\"");
        if crowd(&format!("memory-{size}"), &mount, 8, "-").is_none() {
            return;
        }
    }
}

/// Goal: one that is filled while connections with rings live.
#[test]
fn a_file_system_that_is_filled_does_no_harm() {
    for size in ["1m", "4m", "20m"] {
        let mount = format!("mount -t tmpfs -o size={size} none \"$AT\"");
        let Some(said) = crowd(&format!("memory-filled-{size}"), &mount, 3, "fill") else { return };
        assert!(size == "1m" || rings_in(&said) > 0, "{size}: {said}");
    }
}

/// Goal: one that may not be written to, and none.
#[test]
fn no_file_system_does_no_harm() {
    for (name, mount) in [("ro", "mount -t tmpfs -o ro none \"$AT\""), ("none", "rmdir \"$AT\"")] {
        if crowd(&format!("memory-{name}"), mount, 8, "-").is_none() {
            return;
        }
    }
}

/// Goal: mailboxes of UDP sockets leave a quarter of the file system free, and sockets without one are served.
#[test]
fn mailboxes_leave_room() {
    let mount = "mount -t tmpfs -o size=16m none \"$AT\"";
    let Some(said) = run("memory-boxes", mount, 100, "datagrams 100") else { return };
    let boxes = said.matches(" mailbox ").count();
    assert!((10..100).contains(&boxes), "{boxes}");
    let free = said.split("free pages in a hundred: ").nth(1).and_then(|rest| rest.lines().next());
    let free: u64 = free.and_then(|free| free.parse().ok()).expect("a number");
    assert!((20..60).contains(&free), "{free}");
}

/// So many UDP sockets of a program, which send to themselves.
pub(crate) fn datagrams_of(count: usize) {
    let bind = |_| UdpSocket::bind("127.0.0.1:0").expect("a port");
    let sockets: Vec<_> = (0..count).map(bind).collect();
    let (mut right, mut buffer) = (0, [0; 1000]);
    for (number, socket) in sockets.iter().enumerate() {
        socket.connect(socket.local_addr().expect("an address")).expect("a socket");
        let sent = bytes(number, 1);
        let all = (0..20).all(|_| {
            socket.send(&sent[..1000]).expect("a socket");
            socket.recv(&mut buffer).expect("a socket") == 1000 && buffer == sent[..1000]
        });
        right += usize::from(all);
    }
    println!("right: {right}");
    let place = std::env::var("ADVERB_SOCKETS_SHM_DIR").expect("a place");
    let told = Command::new("df").args(["--output=pcent", &place]).output().expect("df");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let used = told.lines().nth(1).map(|line| line.trim().trim_end_matches('%'));
    let used: u64 = used.and_then(|used| used.parse().ok()).expect("a number");
    println!("free pages in a hundred: {}", 100 - used);
}

/// So many connections of a program with itself: both ends send, and then both read.
pub(crate) fn crowd_of(count: usize, fills: bool) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("a port");
    let mut ends = Vec::new();
    for _ in 0..count {
        let mut client = TcpStream::connect(at).expect("a connection");
        let (mut server, _) = listener.accept().expect("a connection");
        let mut buffer = [0; 5];
        client.write_all(b"hello").expect("a connection");
        server.read_exact(&mut buffer).expect("a connection");
        server.write_all(&buffer).expect("a connection");
        client.read_exact(&mut buffer).expect("a connection");
        ends.push((client, server));
    }
    if fills {
        fill(Path::new(&std::env::var("ADVERB_SOCKETS_SHM_DIR").expect("a place")));
    }
    let all_sent = Barrier::new(2 * count);
    let right: usize = std::thread::scope(|threads| {
        let mut running = Vec::new();
        for (number, (client, server)) in ends.iter().enumerate() {
            for (stream, ours, theirs) in [(client, 1, 2), (server, 2, 1)] {
                let all_sent = &all_sent;
                let thread = std::thread::Builder::new().stack_size(1 << 17);
                let thread = thread.spawn_scoped(threads, move || {
                    let sent = (&*stream).write_all(&bytes(number, ours));
                    all_sent.wait();
                    sent.expect("a connection");
                    let mut got = vec![0; BYTES];
                    (&*stream).read_exact(&mut got).expect("a connection");
                    usize::from(got == bytes(number, theirs))
                });
                running.push(thread.expect("a thread"));
            }
        }
        running.into_iter().map(|thread| thread.join().unwrap_or(0)).sum()
    });
    println!("right: {}", right / 2);
}

fn bytes(connection: usize, end: usize) -> Vec<u8> {
    (0..BYTES)
        .map(|at| u8::try_from((at * 7 + at / 251 + connection * 13 + end) % 256).expect("a byte"))
        .collect()
}

/// Leaves no page in a file system.
fn fill(place: &Path) {
    let Ok(mut file) = File::create(place.with_file_name("full")) else { return };
    for size in [1 << 20, 4096, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
}
