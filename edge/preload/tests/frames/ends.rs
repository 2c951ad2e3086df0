//! Connections that their programs end in haste, or wait for at the end; and what their packets look like.
//!
//! # Safety
//!
//! Every pointer passed to the kernel is to a local of the length that is said.

use std::ffi::c_int;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use super::streams::{begin, talker, waiting};
use super::{NEAR, Pair, Running, at, soon, with_namespaces};

/// Has one connection, and ends it as it is told.
pub(crate) fn end(at: SocketAddr, how: &str) {
    let mut listener = TcpListener::bind(at);
    soon("the port", || {
        listener.is_ok() || {
            listener = TcpListener::bind(at);
            listener.is_ok()
        }
    });
    println!("\nready");
    let listener = listener.expect("a port");
    let (mut stream, _) = listener.accept().expect("a connection");
    begin(&mut stream);
    let line = || std::io::stdin().read_line(&mut String::new()).expect("a line");
    println!("said begun");
    line();
    match how {
        "reset" => linger(&stream, 0),
        "reset ended" => {
            stream.read_to_end(&mut Vec::new()).expect("the end");
            linger(&stream, 0);
        }
        "unread" | "unread ended" => soon("something", || waiting(&stream) == 100),
        other => panic!("{other:?} is no end"),
    }
    drop(stream);
    println!("said closed");
    line();
}

fn linger(stream: &TcpStream, seconds: c_int) {
    let linger = libc::linger { l_onoff: 1, l_linger: seconds };
    let len = libc::socklen_t::try_from(size_of_val(&linger)).expect("a length");
    let (fd, at) = (stream.as_raw_fd(), (&raw const linger).cast());
    // SAFETY: a structure, which is ours, and its length.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, at, len) };
    assert_eq!(set, 0);
}

/// Such a program and its peer, with which it has exchanged something by frames.
fn begun(pair: &Pair, how: &str, ip: &str) -> (Running, Running) {
    let mut server = pair.framed(&format!("end {how}"), at(ip), None);
    let mut client = talker(pair, ip);
    assert_eq!(client.ask("exchange 50 64 0"), "said 50");
    assert_eq!(server.await_line("said "), "said begun");
    (server, client)
}

/// Goal: the peer of a program that closes at once, as it has told its socket to, or while bytes of the peer's are unread, sees a
/// reset, whether the peer has ended its stream before or not.
#[test]
fn a_close_in_haste_resets_the_connection() {
    with_namespaces("ends::a_close_in_haste_resets_the_connection", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for how in ["reset", "unread", "reset ended", "unread ended"] {
            let (mut server, mut client) = begun(&pair, how, NEAR);
            assert!(server.has_frames(), "{how}: {}", server.explained());
            if how.ends_with("ended") {
                client.tell("half 100 0");
            } else if how == "unread" {
                assert_eq!(client.ask("write 100"), "said written");
            }
            server.tell("end");
            server.await_line("said closed");
            if !how.ends_with("ended") {
                client.tell("drink");
            }
            assert_eq!(client.await_line("said "), "said 0 Err(ConnectionReset)", "{how}");
        }
    });
}
