//! What processes beside a test do.

use super::near::{Near, pattern};
use super::{at, faults};
use rustix::net::sockopt;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// The entry of a process with a role.
#[test]
fn a_role() {
    let Ok(role) = std::env::var("ADVERB_TEST_ROLE") else { return };
    let with = std::env::var("ADVERB_TEST_WITH").unwrap();
    let words: Vec<_> = with.split(' ').collect();
    let number = |at: usize| words[at].parse::<usize>().unwrap();
    let addr =
        |at: usize| SocketAddr::new(words[at].parse().unwrap(), words[at + 1].parse().unwrap());
    match role.as_str() {
        "echo" => echo(addr(0), Duration::ZERO),
        "slow" => echo(addr(0), Duration::from_secs(1)),
        "client" => clients(addr(0), number(2), number(3)),
        "crowd" => crowd(addr(0), number(2)),
        "deaf" => deaf(addr(0)),
        "reader" => reader(addr(0)),
        "refused" => refused(addr(0)),
        "talker" => talker(addr(0)),
        "urgent" => urgent(addr(0)),
        "crossing" => crossing(addr(0), addr(2)),
        "closed" => closed(addr(0), addr(2)),
        "again" => again(addr(0), addr(2)),
        "loss" => loss(words[0], u32::try_from(number(1)).unwrap()),
        "netstack-server" => netstack_server(addr(0)),
        other => panic!("{other} is no role"),
    }
}

fn ready() {
    println!("\nready");
}

/// Says it, and waits until the test is over.
fn say(what: &str) {
    println!("\n{what}");
    let _ = std::io::stdin().read(&mut [0]);
}

/// Sends everything back, to any number of clients; reads nothing for so long.
fn echo(addr: SocketAddr, patience: Duration) {
    let listener = TcpListener::bind(addr).unwrap();
    ready();
    for stream in listener.incoming() {
        std::thread::spawn(move || {
            let mut stream = stream.unwrap();
            std::thread::sleep(patience);
            let mut room = vec![0; 1 << 16];
            let mut held = Vec::new();
            // All of it is read before it is sent back, so that no end waits for the other to read.
            while let Ok(len @ 1..) = stream.read(&mut room) {
                held.extend_from_slice(&room[..len]);
            }
            stream.write_all(&held).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let _ = stream.read(&mut room);
        });
    }
}

/// So many connections at once, each of which sends so many bytes of its own and gets them back.
fn clients(addr: SocketAddr, count: usize, len: usize) {
    ready();
    let streams: Vec<_> = (0..count).map(|_| TcpStream::connect(addr).unwrap()).collect();
    let mut threads = Vec::new();
    for (n, mut stream) in streams.into_iter().enumerate() {
        let client = move || {
            let bytes = pattern(n, len);
            let mut writer = stream.try_clone().unwrap();
            let copy = bytes.clone();
            let writes = std::thread::Builder::new().stack_size(1 << 16).spawn(move || {
                writer.write_all(&copy).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            let mut back = Vec::new();
            stream.read_to_end(&mut back).unwrap();
            writes.unwrap().join().unwrap();
            assert!(back == bytes, "{n}: {} of {len} bytes", back.len());
        };
        threads.push(std::thread::Builder::new().stack_size(1 << 17).spawn(client).unwrap());
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    say("done");
}

/// Connects so many times, and then has a few bytes sent back by each connection.
fn crowd(addr: SocketAddr, count: usize) {
    let id = std::process::id().to_string();
    let descriptors = format!("--nofile={}", count + 100);
    let raised = std::process::Command::new("prlimit").args(["--pid", &id, &descriptors]).status();
    assert!(raised.unwrap().success());
    ready();
    let mut streams: Vec<_> = (0..count).map(|_| TcpStream::connect(addr).unwrap()).collect();
    for (n, stream) in streams.iter_mut().enumerate() {
        stream.write_all(&pattern(n, 100)).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    }
    for (n, stream) in streams.iter_mut().enumerate() {
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert!(back == pattern(n, 100), "{n}: {} bytes", back.len());
    }
    say("done");
}

/// Closes connections that have bytes to read.
fn deaf(addr: SocketAddr) {
    let listener = TcpListener::bind(addr).unwrap();
    ready();
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        stream.peek(&mut [0]).unwrap();
    }
}

/// Reads until it fails, and says how.
fn reader(addr: SocketAddr) {
    let listener = TcpListener::bind(addr).unwrap();
    ready();
    let (mut stream, _) = listener.accept().unwrap();
    loop {
        match stream.read(&mut [0; 100]) {
            Ok(0) => return say("the end"),
            Ok(_) => {}
            Err(error) => return say(&format!("{:?}", error.kind())),
        }
    }
}

fn refused(addr: SocketAddr) {
    ready();
    let error = TcpStream::connect(addr).map(|_| ()).unwrap_err();
    say(&format!("{:?}", error.kind()));
}

/// Talks to an echo until that fails, and says how.
fn talker(addr: SocketAddr) {
    ready();
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_nodelay(true).unwrap();
    // A peer that is killed may have acknowledged what it does not answer: then only more shows that it has gone.
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    for n in 0_u64.. {
        let result = stream.write_all(b"ping").and_then(|()| stream.read_exact(&mut [0; 4]));
        match result {
            Ok(()) if n % 500 == 10 => println!("\ntalking"),
            Ok(()) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return say(&format!("{:?}", error.kind())),
        }
    }
}

/// Is idle for longer than it waits for answers to whether the peer is there, and sends a byte as urgent.
fn urgent(addr: SocketAddr) {
    ready();
    let mut stream = TcpStream::connect(addr).unwrap();
    sockopt::set_socket_keepalive(&stream, true).unwrap();
    sockopt::set_tcp_keepidle(&stream, Duration::from_secs(1)).unwrap();
    sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(1)).unwrap();
    sockopt::set_tcp_keepcnt(&stream, 2).unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
    stream.write_all(b"before").unwrap();
    rustix::net::send(&stream, b"!", rustix::net::SendFlags::OOB).unwrap();
    stream.write_all(b"after").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    say("done");
}

/// Connects from a port of its own, and says what it reads.
fn crossing(from: SocketAddr, to: SocketAddr) {
    let mut stream = bound(from);
    ready();
    if let Err(error) = rustix::net::connect(&stream, &to) {
        return say(&format!("{error:?}"));
    }
    let mut bytes = [0; 7];
    stream.read_exact(&mut bytes).unwrap();
    say(std::str::from_utf8(&bytes).unwrap());
}

fn bound(from: SocketAddr) -> TcpStream {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    // A port is free when the peer has acknowledged the end of the connection before.
    assert!(super::soon(|| rustix::net::bind(&socket, &from).is_ok()), "{from} is in use");
    TcpStream::from(socket)
}

/// Connects, closes its end after the server has closed the other, and says when there is nothing left of that here.
fn closed(from: SocketAddr, to: SocketAddr) {
    let mut stream = bound(from);
    ready();
    rustix::net::connect(&stream, &to).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    drop(stream);
    drop(bound(from));
    say("over");
}

/// Connects from a port to an echo, and says what comes back.
fn again(from: SocketAddr, to: SocketAddr) {
    let mut stream = bound(from);
    ready();
    rustix::net::connect(&stream, &to).unwrap();
    stream.write_all(b"again").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut bytes = String::new();
    stream.read_to_string(&mut bytes).unwrap();
    say(&bytes);
}

/// Loses packets that come to an interface.
fn loss(interface: &str, percent: u32) {
    let _loss = faults::lose(super::place::index(interface), percent);
    ready();
    let _ = std::io::stdin().read(&mut [0]);
}

/// The near end in a process of its own, which echoes.
fn netstack_server(addr: SocketAddr) {
    let mut near = Near::new(None);
    near.listen(at(&addr.ip().to_string(), addr.port()), None);
    ready();
    near.serve_echo(addr.port(), 1);
}
