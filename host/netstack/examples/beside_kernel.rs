//! TCP over frames beside the kernel's, between two network namespaces: round trips, streams, streams with loss.
//!
//! Run as root with `cargo run --profile gate -p adverb-netstack --example beside_kernel`; a word as argument chooses the
//! measurements that have it in their names. The kernel's ends spin on sockets that do not block. All measurements are
//! made in turn, several times, and the medians are printed, beside their ratio to that of two ends of the kernel's.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a measurement may fail")]

#[path = "../tests/kernel/faults.rs"]
mod faults;
#[path = "../tests/kernel/near.rs"]
#[expect(dead_code, reason = "part of it is for tests")]
mod near;
#[path = "../../xdp/tests/namespaces/place.rs"]
#[expect(dead_code, reason = "part of it is for tests")]
mod place;

use adverb_netstack::Netstack;
use adverb_sys::{affinity, clock};
use adverb_tcpip::Time;
use adverb_tcpip::stack::{ConnectionId, Listen};
use adverb_tcpip::tcp::Config;
use near::Near;
use place::{FAR, NEAR, Pair};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PORT: u16 = 7001;
const MESSAGE: usize = 64;
const WRITE: usize = 1448;
const ROUNDS: usize = 5;
/// Of round trips, in nanoseconds.
const PINGS: u64 = 150_000_000;
const STREAM: Duration = Duration::from_millis(400);

/// What an end of a connection is made of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    Frames,
    Kernel,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum What {
    /// Round trips over a connection, in nanoseconds.
    TcpPing,
    /// Short writes, in bytes a second.
    Stream,
    /// The same, where the receiving end loses packets.
    Loss,
}

const WHAT: [What; 3] = [What::TcpPing, What::Stream, What::Loss];
const ENDS: [(End, End); 4] = [
    (End::Kernel, End::Kernel),
    (End::Frames, End::Kernel),
    (End::Kernel, End::Frames),
    (End::Frames, End::Frames),
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("far") => far(&words[1], &words[2]),
        Some("inside") => measure(words.get(1).map_or("", String::as_str)),
        first => {
            let mut command = Command::new("unshare");
            command.arg("-n").arg(std::env::current_exe().unwrap()).arg("inside");
            let status = command.arg(first.unwrap_or("")).status().unwrap();
            std::process::exit(status.code().unwrap_or(1));
        }
    }
}

/// Polls until it is true; false if it does not become so in several seconds.
fn soon(mut is: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        if is() {
            return true;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    false
}

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

fn listen(config: Config) -> Listen {
    Listen { config, backlog: 16, half_open_max: 16, syn_rate: None }
}

fn measure(only: &str) {
    let pair = Pair::new(1);
    pin(0);
    let name = |what: What, (near, far): (End, End)| format!("{what:?} {near:?}-{far:?}");
    let cases: Vec<_> = WHAT
        .into_iter()
        .flat_map(|what| ENDS.map(|ends| (what, ends)))
        .filter(|(what, ends)| *what != What::Loss || ends.1 == End::Kernel)
        .filter(|(what, ends)| name(*what, *ends).to_lowercase().contains(&only.to_lowercase()))
        .collect();
    let mut found = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for ((what, ends), found) in cases.iter().zip(&mut found) {
            found.push(once(&pair, *what, *ends));
        }
    }
    let mut kernel = f64::NAN;
    for ((what, ends), found) in cases.iter().zip(&mut found) {
        found.sort_by(f64::total_cmp);
        let median = found[found.len() / 2];
        if *ends == (End::Kernel, End::Kernel) {
            kernel = median;
        }
        let value = match what {
            What::TcpPing => format!("{:8.2} us", median / 1e3),
            What::Stream | What::Loss => format!("{:8.0} MB/s", median / 1e6),
        };
        println!("{:<24} {value}   {:.2}", name(*what, *ends), median / kernel);
    }
}

/// One measurement.
fn once(pair: &Pair, what: What, (near, far): (End, End)) -> f64 {
    let _loss = (what == What::Loss).then(|| Far::start(pair, "loss", End::Kernel));
    let _far = Far::start(pair, &format!("{what:?}"), far);
    match (what, near) {
        (What::TcpPing, End::Kernel) => tcp_ping_kernel(),
        (What::TcpPing, End::Frames) => tcp_ping_frames(),
        (What::Stream | What::Loss, End::Kernel) => stream_kernel(),
        (What::Stream | What::Loss, End::Frames) => stream_frames(),
    }
}

/// A process at the far end.
struct Far(Child);

impl Far {
    fn start(pair: &Pair, what: &str, end: End) -> Self {
        let mut command = pair.far_command(std::env::current_exe().unwrap());
        command.args(["far", what, &format!("{end:?}")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Self(child)
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pin(cpu: usize) {
    let _ = affinity::pin_to_cpu(cpu);
}

fn now() -> Time {
    Time::from_nanos(clock::now_ns())
}

fn ready() {
    print!("!");
    std::io::stdout().flush().unwrap();
}

fn far(what: &str, end: &str) {
    pin(1);
    match (what, end) {
        ("TcpPing", "Kernel") => {
            let mut stream = accept();
            stream.set_nodelay(true).unwrap();
            let mut room = [0; 2048];
            while let Some(len) = spin(|| stream.read(&mut room)) {
                stream.write_all(&room[..len]).unwrap();
            }
        }
        ("TcpPing", _) => {
            let (mut end, id) = accept_frames();
            let mut room = [0; 2048];
            loop {
                end.net.step(now());
                if end.net.tcp().get(id).is_some_and(|connection| connection.readable_bytes() == 0)
                {
                    continue;
                }
                let len = end.net.tcp().with(id, |connection| connection.read(&mut room));
                let Some(len) = len else { return };
                end.net.send(id, &room[..len], now());
            }
        }
        ("Stream" | "Loss", "Kernel") => {
            let mut stream = accept();
            let (mut room, mut bytes) = (vec![0; 1 << 16], 0_u64);
            while let Some(len) = spin(|| stream.read(&mut room)) {
                bytes += u64::try_from(len).unwrap();
            }
            stream.write_all(&bytes.to_be_bytes()).unwrap();
            let _ = std::io::stdin().read(&mut [0]);
        }
        ("Stream" | "Loss", _) => {
            let (mut end, id) = accept_frames();
            let (mut room, mut bytes) = (vec![0; 1 << 16], 0_u64);
            loop {
                end.net.step(now());
                end.net.tcp().with(id, |connection| {
                    let len = connection.read(&mut room);
                    bytes += u64::try_from(len).unwrap();
                });
                if end.net.tcp().get(id).unwrap().is_at_end() {
                    break;
                }
            }
            end.net.send(id, &bytes.to_be_bytes(), now());
            end.until(|_| false);
        }
        ("loss", _) => {
            let _loss = faults::lose(place::index("far"), 1);
            ready();
            let _ = std::io::stdin().read(&mut [0]);
        }
        _ => panic!("{what} {end}"),
    }
}

/// A connection of the kernel's to the far end, with the congestion control that is usual, which does not block.
fn accept() -> TcpStream {
    let listener = TcpListener::bind(at(FAR, PORT)).unwrap();
    ready();
    let (stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    stream
}

fn accept_frames() -> (Near, ConnectionId) {
    let mut end = Near::on("far", None);
    let config = Config { no_delay: true, ..end.net.config() };
    end.listen(at(FAR, PORT), Some(config));
    ready();
    let mut id = None;
    while id.is_none() {
        end.net.step(now());
        id = end.net.tcp().accept(near::listener(PORT));
    }
    (end, id.unwrap())
}

/// Tries until there are bytes; `None` if there are no more.
fn spin(mut read: impl FnMut() -> std::io::Result<usize>) -> Option<usize> {
    loop {
        match read() {
            Ok(0) => return None,
            Ok(len) => return Some(len),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
}

/// The median time of what is done many times, in nanoseconds.
fn median(mut round: impl FnMut()) -> f64 {
    (0..200).for_each(|_| round());
    let (begun, mut times) = (clock::now_ns(), Vec::new());
    let mut last = begun;
    while last - begun < PINGS {
        round();
        let now = clock::now_ns();
        times.push(u32::try_from(now - last).unwrap_or(u32::MAX));
        last = now;
    }
    times.sort_unstable();
    f64::from(times[times.len() / 2])
}

fn connect() -> TcpStream {
    let stream = TcpStream::connect(at(FAR, PORT)).unwrap();
    rustix::net::sockopt::set_tcp_congestion(&stream, "cubic").unwrap();
    stream
}

fn connect_frames() -> (Near, ConnectionId) {
    let mut end = Near::new(None);
    let config = Config { no_delay: true, ..end.net.config() };
    let id = end.connect(at(NEAR, 9000), at(FAR, PORT), Some(config));
    end.until(|net| net.tcp().get(id).unwrap().state().is_synchronized());
    (end, id)
}

fn tcp_ping_kernel() -> f64 {
    let mut stream = connect();
    stream.set_nodelay(true).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut room = [0; 2048];
    median(|| {
        stream.write_all(&[7; MESSAGE]).unwrap();
        spin(|| stream.read(&mut room)).unwrap();
    })
}

fn tcp_ping_frames() -> f64 {
    let (mut end, id) = connect_frames();
    let mut room = [0; 2048];
    median(|| {
        end.net.send(id, &[7; MESSAGE], now());
        while end.net.tcp().get(id).unwrap().readable_bytes() == 0 {
            end.net.step(now());
        }
        end.net.tcp().with(id, |connection| connection.read(&mut room));
    })
}

/// Bytes a second, from the first write to the far end's answer that it has all.
fn rate(begun: Instant, answer: [u8; 8]) -> f64 {
    let bytes = u32::try_from(u64::from_be_bytes(answer) >> 10).unwrap();
    f64::from(bytes) * 1024.0 / begun.elapsed().as_secs_f64()
}

fn stream_kernel() -> f64 {
    let mut stream = connect();
    let begun = Instant::now();
    while begun.elapsed() < STREAM {
        stream.write_all(&[7; WRITE]).unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    rate(begun, answer)
}

fn stream_frames() -> f64 {
    let (mut end, id) = connect_frames();
    let begun = Instant::now();
    while begun.elapsed() < STREAM {
        write_some(&mut end.net, id);
        end.net.step(now());
    }
    end.net.tcp().with(id, |connection| connection.shut_down());
    let mut answer = [0; 8];
    let mut have = 0;
    while have < 8 {
        end.net.step(now());
        have += end.net.tcp().with(id, |connection| connection.read(&mut answer[have..])).unwrap();
    }
    rate(begun, answer)
}

/// Writes until the connection has enough for some steps.
fn write_some(net: &mut Netstack, id: ConnectionId) {
    while net.tcp().get(id).unwrap().send_room() > 3 << 20 {
        net.send(id, &[7; WRITE], now());
    }
}
