//! Byte streams of the kernel's, TCP and UNIX sockets, as a program without RDMA would use them for
//! speed: no delay, large writes.
//!
//! A ping-pong spins on sockets that do not block: that is how a stream answers fastest. A stream of
//! data blocks, which makes it faster: a receiver that sleeps while bytes gather takes more of them at
//! a time, and stays out of the sender's way.
//!
//! The congestion control of TCP is set to cubic on both sockets. Some distributions default to bbr,
//! which paces even a connection to oneself and would make the floor lower than it is.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use adverb_sys::tcp::set_congestion_control;

use super::{Arrivals, Exchange, shared};
use crate::bench::control::{Answer, Control, Received, Watch};
use crate::bench::pace::Limit;
use crate::bench::stats::Samples;
use crate::failure::{Doing, Failure};

/// A kind of connection.
pub(super) trait Pipe: Read + Write + Sized {
    /// Where connections come from.
    type Listener;

    /// Listens without blocking, and says where.
    fn listen(control: &Control) -> io::Result<(Self::Listener, u16)>;

    /// Takes a connection if there is one.
    fn accept(listener: &Self::Listener) -> io::Result<Self>;

    /// Connects to the server's `port`.
    fn reach(control: &Control, port: u16) -> Result<Self, Failure>;

    /// From now on calls do not wait.
    fn prepare(&self) -> Result<(), Failure>;

    /// From now on calls wait, for a while.
    fn block(&self) -> io::Result<()>;
}

impl Pipe for TcpStream {
    type Listener = TcpListener;

    /// On the address that the control connection uses.
    fn listen(control: &Control) -> io::Result<(TcpListener, u16)> {
        let address = control.local(0).map_err(|failure| io::Error::other(failure.to_string()))?;
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        Ok((listener, port))
    }

    fn accept(listener: &TcpListener) -> io::Result<Self> {
        listener.accept().map(|(stream, _)| stream)
    }

    fn reach(control: &Control, port: u16) -> Result<Self, Failure> {
        Self::connect(control.peer(port)?).doing(SETTING_UP)
    }

    fn prepare(&self) -> Result<(), Failure> {
        self.set_nodelay(true).doing(SETTING_UP)?;
        self.set_nonblocking(true).doing(SETTING_UP)?;
        // reno is part of every kernel, and over loopback as fast.
        if set_congestion_control(self, "cubic").is_err() {
            set_congestion_control(self, "reno").doing(SETTING_UP)?;
        }
        Ok(())
    }

    fn block(&self) -> io::Result<()> {
        self.set_nonblocking(false)?;
        self.set_read_timeout(Some(WAIT))?;
        self.set_write_timeout(Some(WAIT))
    }
}

/// UNIX sockets have abstract names, which belong to the network namespace as ports do.
impl Pipe for UnixStream {
    type Listener = UnixListener;

    fn listen(_: &Control) -> io::Result<(UnixListener, u16)> {
        let (listener, port) = shared::by_free_name(|name| {
            UnixListener::bind_addr(&UnixAddr::from_abstract_name(name)?)
        })?;
        listener.set_nonblocking(true)?;
        Ok((listener, port))
    }

    fn accept(listener: &UnixListener) -> io::Result<Self> {
        listener.accept().map(|(stream, _)| stream)
    }

    fn reach(_: &Control, port: u16) -> Result<Self, Failure> {
        let address = UnixAddr::from_abstract_name(shared::name(port)).doing(SETTING_UP)?;
        Self::connect_addr(&address).doing(SETTING_UP)
    }

    fn prepare(&self) -> Result<(), Failure> {
        self.set_nonblocking(true).doing(SETTING_UP)
    }

    fn block(&self) -> io::Result<()> {
        self.set_nonblocking(false)?;
        self.set_read_timeout(Some(WAIT))?;
        self.set_write_timeout(Some(WAIT))
    }
}

/// The passive side of a ping-pong: reads a message, answers it, until the client hangs up.
pub(super) fn answer<P: Pipe>(
    exchange: Exchange,
    control: &mut Control,
) -> Result<Received, Failure> {
    let listener = listen::<P>(control)?;
    let mut watch = Watch::new(control);
    let mut stream = accept::<P>(&listener, &mut watch)?;
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
pub(super) fn ask<P: Pipe>(
    exchange: Exchange,
    port: u16,
    control: &mut Control,
    limit: Limit,
) -> Result<Samples, Failure> {
    let mut stream = connect::<P>(port, control)?;
    let message = buffer_of(exchange.bytes)?;
    let mut reply = buffer_of(exchange.reply_bytes)?;
    limit.time_turns(&mut Watch::new(control), |watch| {
        let mut wait = || watch.peer_lives().map(|_| false);
        write_all(&mut stream, &message, &mut wait)?;
        read_all(&mut stream, &mut reply, &mut wait)?;
        Ok(())
    })
}

/// The passive side of a stream: counts bytes until the client hangs up.
pub(super) fn drain<P: Pipe>(control: &mut Control) -> Result<Received, Failure> {
    let listener = listen::<P>(control)?;
    let mut watch = Watch::new(control);
    let mut stream = accept::<P>(&listener, &mut watch)?;
    let mut buffer = buffer_of(READ_BYTES)?;
    let mut arrivals = Arrivals::default();
    stream.block().doing(SETTING_UP)?;
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
pub(super) fn pour<P: Pipe>(port: u16, control: &mut Control, limit: Limit) -> Result<(), Failure> {
    let mut stream = connect::<P>(port, control)?;
    let mut watch = Watch::new(control);
    let chunk = buffer_of(WRITE_BYTES)?;
    stream.block().doing(SETTING_UP)?;
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
    stream: &mut impl Pipe,
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
    stream: &mut impl Pipe,
    mut bytes: &[u8],
    wait: &mut impl FnMut() -> Result<bool, Failure>,
) -> Result<Flow, Failure> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(len) => bytes = bytes.get(len..).unwrap_or_default(),
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                return Err(error).doing("writing to a socket");
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

/// Listens, and tells the client where.
fn listen<P: Pipe>(control: &mut Control) -> Result<P::Listener, Failure> {
    let (listener, port) = P::listen(control).doing(SETTING_UP)?;
    control.send(&Answer::Ready { port })?;
    Ok(listener)
}

/// Waits for the client.
fn accept<P: Pipe>(listener: &P::Listener, watch: &mut Watch<'_>) -> Result<P, Failure> {
    loop {
        match P::accept(listener) {
            Ok(stream) => {
                stream.prepare()?;
                return Ok(stream);
            }
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
fn connect<P: Pipe>(port: u16, control: &Control) -> Result<P, Failure> {
    let stream = P::reach(control, port)?;
    stream.prepare()?;
    Ok(stream)
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
const SETTING_UP: &str = "opening a connection for the floor";
/// What we do when it fails.
const READING: &str = "reading from a socket";
