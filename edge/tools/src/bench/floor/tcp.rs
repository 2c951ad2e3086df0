//! TCP as a program without RDMA would use it for speed: no delay, large writes.
//!
//! A ping-pong spins on sockets that do not block: that is how TCP answers fastest. A stream blocks,
//! which makes it faster: a receiver that sleeps while bytes gather takes more of them at a time, and
//! stays out of the sender's way.
//!
//! The congestion control is set to cubic on both sockets. Some distributions default to bbr, which
//! paces even a connection to oneself and would make the floor lower than it is.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use adverb_sys::tcp::set_congestion_control;

use super::{Arrivals, Exchange};
use crate::bench::control::{Answer, Control, Received, Watch};
use crate::bench::pace::{Limit, Pace};
use crate::bench::stats::Samples;
use crate::failure::{Doing, Failure};

/// The passive side of a ping-pong: reads a message, answers it, until the client hangs up.
pub(super) fn answer(exchange: Exchange, control: &mut Control) -> Result<Received, Failure> {
    let listener = listen(control)?;
    let mut watch = Watch::new(control);
    let mut stream = accept(&listener, &mut watch)?;
    let mut message = buffer_of(exchange.bytes)?;
    let reply = buffer_of(exchange.reply_bytes)?;
    loop {
        let mut wait = || watch.stop_asked();
        if read_all(&mut stream, &mut message, &mut wait)? == Flow::Stopped
            || write_all(&mut stream, &reply, &mut wait)? == Flow::Stopped
        {
            return Ok(Received::default());
        }
        watch.busy();
    }
}

/// The active side of a ping-pong.
pub(super) fn ask(
    exchange: Exchange,
    port: u16,
    control: &mut Control,
    limit: Limit,
) -> Result<Samples, Failure> {
    let mut stream = connect(port, control)?;
    let mut watch = Watch::new(control);
    let message = buffer_of(exchange.bytes)?;
    let mut reply = buffer_of(exchange.reply_bytes)?;
    rounds(&mut stream, &message, &mut reply, limit.warm_up().start(), &mut watch)?;
    rounds(&mut stream, &message, &mut reply, limit.start(), &mut watch)
}

/// There and back until `pace` says it is enough.
fn rounds(
    stream: &mut TcpStream,
    message: &[u8],
    reply: &mut [u8],
    mut pace: Pace,
    watch: &mut Watch<'_>,
) -> Result<Samples, Failure> {
    let mut samples = Samples::new();
    let mut sent = Instant::now();
    loop {
        let mut wait = || watch.peer_lives().map(|_| false);
        write_all(stream, message, &mut wait)?;
        read_all(stream, reply, &mut wait)?;
        watch.busy();
        let now = Instant::now();
        samples.record(now.duration_since(sent));
        sent = now;
        if !pace.go_on(1, now) {
            return Ok(samples);
        }
    }
}

/// The passive side of a stream: counts bytes until the client hangs up.
pub(super) fn drain(control: &mut Control) -> Result<Received, Failure> {
    let listener = listen(control)?;
    let mut watch = Watch::new(control);
    let mut stream = accept(&listener, &mut watch)?;
    let mut buffer = buffer_of(READ_BYTES)?;
    let mut arrivals = Arrivals::default();
    block(&stream)?;
    loop {
        match stream.read(&mut buffer) {
            Ok(len) if len > 0 => {
                arrivals.add(len);
                watch.busy();
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                return Err(error).doing(READING);
            }
            // Nothing now, or nothing any more.
            Ok(_) | Err(_) => {
                watch.waited();
                if watch.stop_asked()? {
                    return Ok(arrivals.received());
                }
            }
        }
    }
}

/// The active side of a stream.
pub(super) fn pour(port: u16, control: &mut Control, limit: Limit) -> Result<(), Failure> {
    let mut stream = connect(port, control)?;
    let mut watch = Watch::new(control);
    let chunk = buffer_of(WRITE_BYTES)?;
    block(&stream)?;
    let mut pace = limit.start();
    loop {
        let mut wait = || {
            watch.waited();
            watch.peer_lives().map(|_| false)
        };
        write_all(&mut stream, &chunk, &mut wait)?;
        watch.busy();
        if !pace.go_on(1, Instant::now()) {
            return Ok(());
        }
    }
}

/// How a transfer has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flow {
    /// All bytes are through.
    Complete,
    /// The test is over.
    Stopped,
}

/// Fills `buffer`. `wait` is called whenever there is nothing, and says whether to stop.
#[inline]
fn read_all(
    stream: &mut TcpStream,
    mut buffer: &mut [u8],
    wait: &mut impl FnMut() -> Result<bool, Failure>,
) -> Result<Flow, Failure> {
    while !buffer.is_empty() {
        match stream.read(buffer) {
            Ok(len) if len > 0 => buffer = buffer.get_mut(len..).unwrap_or_default(),
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                return Err(error).doing(READING);
            }
            Ok(_) | Err(_) => {
                if wait()? {
                    return Ok(Flow::Stopped);
                }
            }
        }
    }
    Ok(Flow::Complete)
}

/// Writes all of `bytes`. `wait` as in [`read_all`].
#[inline]
fn write_all(
    stream: &mut TcpStream,
    mut bytes: &[u8],
    wait: &mut impl FnMut() -> Result<bool, Failure>,
) -> Result<Flow, Failure> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(len) => bytes = bytes.get(len..).unwrap_or_default(),
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                return Err(error).doing("writing to a TCP socket");
            }
            Err(_) => {
                if wait()? {
                    return Ok(Flow::Stopped);
                }
            }
        }
    }
    Ok(Flow::Complete)
}

/// Listens on the address that the control connection uses, and tells the client where.
fn listen(control: &mut Control) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(control.local(0)?).doing(SETTING_UP)?;
    listener.set_nonblocking(true).doing(SETTING_UP)?;
    let port = listener.local_addr().doing(SETTING_UP)?.port();
    control.send(&Answer::Ready { port })?;
    Ok(listener)
}

/// Waits for the client.
fn accept(listener: &TcpListener, watch: &mut Watch<'_>) -> Result<TcpStream, Failure> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => return prepare(stream),
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                return Err(error).doing(SETTING_UP);
            }
            Err(_) => {
                if watch.stop_asked()? {
                    return Err(Failure::failed("the client stopped before it had connected"));
                }
            }
        }
    }
}

/// Connects to the server.
fn connect(port: u16, control: &Control) -> Result<TcpStream, Failure> {
    prepare(TcpStream::connect(control.peer(port)?).doing(SETTING_UP)?)
}

/// Sets what makes a connection fast.
fn prepare(stream: TcpStream) -> Result<TcpStream, Failure> {
    stream.set_nodelay(true).doing(SETTING_UP)?;
    stream.set_nonblocking(true).doing(SETTING_UP)?;
    // reno is part of every kernel, and over loopback as fast.
    if set_congestion_control(&stream, "cubic").is_err() {
        set_congestion_control(&stream, "reno").doing(SETTING_UP)?;
    }
    Ok(stream)
}

/// From now on calls wait, for a while.
fn block(stream: &TcpStream) -> Result<(), Failure> {
    stream.set_nonblocking(false).doing(SETTING_UP)?;
    stream.set_read_timeout(Some(WAIT)).doing(SETTING_UP)?;
    stream.set_write_timeout(Some(WAIT)).doing(SETTING_UP)
}

/// A message of a length that was checked.
fn buffer_of(bytes: u64) -> Result<Vec<u8>, Failure> {
    Ok(vec![0x5a; usize::try_from(bytes).doing("allocating a message")?])
}

/// Largest message of a ping-pong: 1 GiB.
pub(super) const MESSAGE_BYTES_MAX: u64 = 1 << 30;
/// How much the sender of a stream hands over at a time.
pub(super) const WRITE_BYTES: u64 = 1 << 20;
/// How much the receiver of a stream takes at a time.
const READ_BYTES: u64 = 256 << 10;
/// How long a call of a stream waits before it looks whether the other side is still there.
const WAIT: Duration = Duration::from_millis(5);
/// What we do when it fails.
const SETTING_UP: &str = "opening a TCP connection for the floor";
/// What we do when it fails.
const READING: &str = "reading from a TCP socket";
