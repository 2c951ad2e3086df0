//! Connections that their programs end in haste, or wait for at the end; and what their packets look like.
//!
//! # Safety
//!
//! Every pointer passed to the kernel is to a local of the length that is said.

use std::ffi::c_int;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::streams::{begin, pattern, set, talker, waiting};
use super::{NEAR, NEAR_6, Pair, Running, at, soon, with_namespaces};

/// Has one connection, and ends it as it is told.
pub(crate) fn end(at: SocketAddr, how: &str) {
    let mut listener = TcpListener::bind(at);
    soon("the port", || {
        listener.is_ok() || {
            listener = TcpListener::bind(at);
            listener.is_ok()
        }
    });
    let listener = listener.expect("a port");
    if let Some(name) = how.strip_prefix("early ") {
        dress(&listener, name);
    }
    println!("\nready");
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
        "patient" | "impatient" | "disturbed" | "leaving" => {
            stream.read_to_end(&mut Vec::new()).expect("the end");
            // More than the peer takes before it reads.
            stream.write_all(&pattern(220_000)).expect("it is sent");
            linger(&stream, if how == "impatient" { 1 } else { 20 });
        }
        _ => {
            let name = how.split_once(' ').expect("two words").1;
            dress(&stream, name);
            println!("said dressed");
            begin(&mut stream);
            line();
        }
    }
    if how == "disturbed" {
        extern "C" fn heed(_: c_int) {}
        let handler: extern "C" fn(c_int) = heed;
        #[expect(clippy::as_conversions, reason = "the C library takes a function as a number")]
        let handler = handler as libc::sighandler_t;
        // SAFETY: a handler that does nothing.
        unsafe { libc::signal(libc::SIGALRM, handler) };
        // SAFETY: no precondition.
        let me = unsafe { libc::pthread_self() };
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(1));
            // SAFETY: that thread waits.
            unsafe { libc::pthread_kill(me, libc::SIGALRM) };
        });
    }
    let began = Instant::now();
    println!("said closing");
    if how == "leaving" {
        std::mem::forget(stream);
        std::process::exit(0);
    }
    drop(stream);
    println!("said closed {}", began.elapsed().as_millis());
    line();
}

/// Sets an option that changes the headers of packets, or the route that rules have for them.
fn dress(socket: impl AsFd, name: &str) {
    let (level, name, value) = match name {
        "mark" => (libc::SOL_SOCKET, libc::SO_MARK, 7_i32),
        "class" => (libc::IPPROTO_IP, libc::IP_TOS, 0x48),
        "hops" => (libc::IPPROTO_IP, libc::IP_TTL, 9),
        "class6" => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 0x48),
        "hops6" => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, 9),
        other => panic!("{other:?} is no option"),
    };
    set(socket, level, name, value);
}

fn linger(stream: &TcpStream, seconds: c_int) {
    let linger = libc::linger { l_onoff: 1, l_linger: seconds };
    set(stream, libc::SOL_SOCKET, libc::SO_LINGER, linger);
}

/// For how long a program that is not impatient waits for its peer.
const TOLD: Duration = Duration::from_secs(20);

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

/// Goal: a program that closes a connection waits as long as it has told its socket to, but no longer than the peer takes
/// to have all, or than until a signal comes, where frames end it; and a program that ends does not wait for that.
#[test]
fn a_close_waits_for_the_peer_as_long_as_it_is_told() {
    with_namespaces("ends::a_close_waits_for_the_peer_as_long_as_it_is_told", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for how in ["impatient", "patient", "disturbed", "leaving"] {
            let (mut server, mut client) = begun(&pair, how, NEAR);
            assert!(server.has_frames(), "{how}: {}", server.explained());
            assert_eq!(client.ask("shut"), "said Ok(())");
            server.tell("end");
            server.await_line("said closing");
            let drink = |client: &mut Running| {
                assert_eq!(client.ask("drink"), "said 220000 Ok(())", "{how}");
            };
            if how == "patient" {
                std::thread::sleep(Duration::from_secs(1));
                drink(&mut client);
            }
            if how == "leaving" {
                let began = Instant::now();
                assert!(server.child.wait().expect("it ends").success());
                assert!(began.elapsed() < TOLD / 2, "{:?}", began.elapsed());
                continue;
            }
            let closed = server.await_line("said closed ");
            let waited = closed.rsplit(' ').next().and_then(|ms| ms.parse().ok());
            // As long as the peer took, as it was told, or until the signal.
            let waited = waited.map(Duration::from_millis).expect("a time");
            assert!((Duration::from_millis(900)..TOLD / 2).contains(&waited), "{how}: {closed}");
            if how == "impatient" {
                drink(&mut client);
            }
        }
    });
}

/// Goal: packets have the headers that a program wants for them, or the mark, whether it says so before frames carry its connection, which
/// they do not then, or after that, when the connection goes back to the kernel.
#[test]
fn headers_are_as_the_program_wants_them() {
    with_namespaces("ends::headers_are_as_the_program_wants_them", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for (ip, name) in
            [(NEAR, "class"), (NEAR, "hops"), (NEAR, "mark"), (NEAR_6, "class6"), (NEAR_6, "hops6")]
        {
            let (mut server, mut client) = begun(&pair, &format!("dressed {name}"), ip);
            assert!(server.has_frames(), "{name}: {}", server.explained());
            server.tell("dress");
            assert_eq!(server.await_line("said "), "said dressed");
            let before = super::streams::by_kernel();
            assert_eq!(client.ask("exchange 50 64 0"), "said 50");
            let kernels = super::streams::by_kernel() - before;
            assert!(kernels >= 50, "{name}: {kernels} by the kernel");
            drop((client, server));
            let (server, _client) = begun(&pair, &format!("early {name}"), ip);
            assert!(!server.has_frames(), "{name}: {}", server.explained());
        }
    });
}

/// Goal: a host whose packets pass another number of routers than those of frames keeps its connections, and the log says why.
#[test]
fn a_host_with_other_hops_keeps_its_connections() {
    with_namespaces("ends::a_host_with_other_hops_keeps_its_connections", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        std::fs::write("/proc/sys/net/ipv4/ip_default_ttl", "128").expect("a setting");
        let front = ["env", "VMA_TRACELEVEL=5"];
        let server = pair.framed_by(&front, "serve block", at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("exchange 50 64 0"), "said 50");
        let explained = server.explained();
        assert!(
            !server.has_frames() && explained.contains("other hops than the 64"),
            "{explained}"
        );
    });
}
