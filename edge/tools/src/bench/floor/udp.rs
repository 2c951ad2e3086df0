//! UDP as a program without RDMA would use it for speed: not blocking, spinning.
//!
//! The ping-pong is one `recv` and one `send` a side, on connected sockets, which spare the kernel the
//! search for a route. The stream is what Linux offers for
//! throughput: up to 64 KiB of datagrams in one send (GSO), and as many in one receive (GRO), from memory and to memory
//! that is as large as that of the messages it is compared with: what does not fit the caches costs both.

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use adverb_sys::udp::{BindOptions, Destination, Socket};

use super::{Arrivals, Exchange};
use crate::bench::control::{Answer, Control, Received, Watch};
use crate::bench::pace::{Limit, Pace};
use crate::bench::stats::Samples;
use crate::failure::{Doing, Failure};

/// The passive side of a ping-pong: answers datagrams of the client until it says stop.
pub(super) fn answer(exchange: Exchange, control: &mut Control) -> Result<Received, Failure> {
    let client = control.peer(0)?;
    let socket = open(control)?;
    let port = socket.local_addr().doing(SETTING_UP)?.port();
    let mut buffer = buffer();
    let reply = buffer_of(exchange.reply_bytes)?;
    control.send(&Answer::Ready { port })?;
    let mut watch = Watch::new(control);
    let mut known = false;
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((_, from)) if from.ip() == client.ip() => {
                if !known {
                    socket.connect(from).doing(SETTING_UP)?;
                    known = true;
                }
                send(&socket, &reply)?;
                watch.busy();
            }
            Ok(_) => {} // A stranger; the peer of the test is known.
            Err(error) if is_nothing(&error) => {
                if watch.stop_asked()? {
                    return Ok(Received::default());
                }
            }
            Err(error) => return Err(error).doing(RECEIVING),
        }
    }
}

/// The active side of a ping-pong.
pub(super) fn ask(
    exchange: Exchange,
    port: u16,
    control: &mut Control,
    limit: Limit,
) -> Result<Samples, Failure> {
    let socket = open(control)?;
    socket.connect(control.peer(port)?).doing(SETTING_UP)?;
    let message = buffer_of(exchange.bytes)?;
    let mut watch = Watch::new(control);
    rounds(&socket, &message, limit.warm_up().start(), &mut watch)?;
    rounds(&socket, &message, limit.start(), &mut watch)
}

/// There and back until `pace` says it is enough. A datagram lost is sent again and not counted.
fn rounds(
    socket: &UdpSocket,
    message: &[u8],
    mut pace: Pace,
    watch: &mut Watch<'_>,
) -> Result<Samples, Failure> {
    let mut samples = Samples::new();
    let mut buffer = buffer();
    let mut sent = Instant::now();
    loop {
        send(socket, message)?;
        let arrived = loop {
            match socket.recv(&mut buffer) {
                Ok(_) => break Some(Instant::now()),
                Err(error) if is_nothing(&error) => {
                    if watch.peer_lives()? && sent.elapsed() > LOST_AFTER {
                        break None;
                    }
                }
                Err(error) => return Err(error).doing(RECEIVING),
            }
        };
        let now = Instant::now();
        if let Some(arrived) = arrived {
            watch.busy();
            samples.record(arrived.duration_since(sent));
            sent = arrived;
            if !pace.go_on(1, arrived) {
                return Ok(samples);
            }
        } else {
            // The answer may yet come and be taken for that to the next: wait it out.
            while socket.recv(&mut buffer).is_ok() {}
            sent = now;
        }
    }
}

/// The passive side of a stream: counts bytes until the client says stop.
pub(super) fn drain(memory: usize, control: &mut Control) -> Result<Received, Failure> {
    let client = control.peer(0)?;
    let socket = bind(control, STREAM_QUEUE_BYTES)?;
    let mut memory = Memory::new(memory, RECEIVED_BYTES_MAX);
    control.send(&Answer::Ready { port: socket.local_addr().port() })?;
    let mut watch = Watch::new(control);
    let mut arrivals = Arrivals::default();
    loop {
        match socket.recv(memory.place()) {
            Ok(received) if received.source.ip() == client.ip() => {
                arrivals.add(received.len);
                memory.next();
                watch.busy();
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if watch.stop_asked()? {
                    return Ok(arrivals.received());
                }
            }
            Err(error) => return Err(error).doing(RECEIVING),
        }
    }
}

/// The active side of a stream: sends, whether it arrives or not.
pub(super) fn pour(
    packet_bytes: u16,
    memory: usize,
    port: u16,
    control: &mut Control,
    limit: Limit,
) -> Result<(), Failure> {
    let socket = bind(control, STREAM_QUEUE_BYTES)?;
    let server = Destination::new(control.peer(port)?);
    let mut burst = Burst::new(packet_bytes, memory);
    let mut pace = limit.start();
    loop {
        match socket.send(burst.bytes(), &server, Some(packet_bytes)) {
            Ok(_) if pace.go_on(burst.packets, Instant::now()) => burst.memory.next(),
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if !pace.go_on(0, Instant::now()) {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            Err(_) if burst.packets > 1 => burst.shrink(), // Not every kernel or route takes as many.
            Err(error) => return Err(error).doing("sending a UDP stream"),
        }
    }
}

/// What one send call of a stream carries: as many whole packets as fit.
#[derive(Debug)]
struct Burst {
    memory: Memory,
    packet_bytes: usize,
    packets: u64,
}

impl Burst {
    fn new(packet_bytes: u16, memory: usize) -> Self {
        let packets = (DATAGRAM_BYTES_MAX / u64::from(packet_bytes.max(1))).clamp(1, SEGMENTS_MAX);
        let packet_bytes = usize::from(packet_bytes);
        let burst = packet_bytes * usize::try_from(packets).unwrap_or(1);
        Self { memory: Memory::new(memory, burst), packet_bytes, packets }
    }

    fn bytes(&mut self) -> &[u8] {
        self.memory.place()
    }

    /// Half as many packets, but at least one.
    fn shrink(&mut self) {
        self.packets = (self.packets / 2).max(1);
        self.memory.step = self.packet_bytes * usize::try_from(self.packets).unwrap_or(1);
    }
}

/// Memory that a stream goes round, step by step.
#[derive(Debug)]
struct Memory {
    bytes: Vec<u8>,
    step: usize,
    at: usize,
}

impl Memory {
    /// At least one step of `step` bytes.
    fn new(len: usize, step: usize) -> Self {
        Self { bytes: vec![0x5a; len.max(step)], step, at: 0 }
    }

    fn place(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.at..self.at + self.step).unwrap_or_default()
    }

    fn next(&mut self) {
        self.at += self.step;
        if self.at + self.step > self.bytes.len() {
            self.at = 0;
        }
    }
}

/// A socket for a ping-pong, on the address that the control connection uses.
fn open(control: &Control) -> Result<UdpSocket, Failure> {
    let socket = UdpSocket::bind(control.local(0)?).doing(SETTING_UP)?;
    socket.set_nonblocking(true).doing(SETTING_UP)?;
    Ok(socket)
}

/// A socket for a stream, on the address that the control connection uses.
fn bind(control: &Control, queue_bytes: usize) -> Result<Socket, Failure> {
    let mut options = BindOptions::new(control.local(0)?);
    options.recv_buffer_bytes = queue_bytes;
    Socket::bind(&options).doing(SETTING_UP)
}

/// Sends one datagram, now or as soon as there is room.
#[inline]
fn send(socket: &UdpSocket, message: &[u8]) -> Result<(), Failure> {
    loop {
        match socket.send(message) {
            Ok(_) => return Ok(()),
            Err(error) if is_nothing(&error) => std::hint::spin_loop(),
            Err(error) => return Err(error).doing("sending a UDP datagram"),
        }
    }
}

/// There is nothing, or no room, now. An answer that came too late for the other side to take it is
/// reported as a refusal on our side; that is no reason to stop either.
fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused)
}

/// Room for the largest datagram or burst.
fn buffer() -> Vec<u8> {
    vec![0; RECEIVED_BYTES_MAX]
}

/// A message of a length that was checked.
fn buffer_of(bytes: u64) -> Result<Vec<u8>, Failure> {
    Ok(vec![0x5a; usize::try_from(bytes).doing("allocating a message")?])
}

/// The most that one receive call brings.
const RECEIVED_BYTES_MAX: usize = 1 << 16;
/// The most memory that a stream goes round.
pub(super) const MEMORY_BYTES_MAX: u64 = 1 << 30;
/// Largest payload of a UDP datagram over IPv4.
pub(super) const DATAGRAM_BYTES_MAX: u64 = 65_507;
/// Most datagrams in one send since Linux 6.9; 64 before.
const SEGMENTS_MAX: u64 = 128;
/// How much of a stream may wait for the receiver.
const STREAM_QUEUE_BYTES: usize = 4 << 20;
/// After this long without an answer a datagram or its answer is lost.
const LOST_AFTER: Duration = Duration::from_millis(200);
/// What we do when it fails.
const SETTING_UP: &str = "opening a UDP socket for the floor";
/// What we do when it fails.
const RECEIVING: &str = "receiving from a UDP socket";
