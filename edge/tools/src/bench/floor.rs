//! The machine's floor: what plain sockets, or shared pages, reach between the same two processes.
//!
//! A figure means little without the machine. So each result of a run stands beside what the
//! kernel's own UDP or TCP does for bytes of the same length, at nearly the same moment, between the
//! same two processes on the same processors; results of shared memory beside what the memory itself
//! does. This code is meant to be as fast as the machine allows: a bad floor would flatter us.
//!
//! `udp.rs`, `stream.rs` and `shared.rs` hold the loops; here is what can be asked for, and which
//! side runs what.

use std::fmt;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};

use super::control::{Answer, Control, Order, Received};
use super::pace::Limit;
use super::plan::Buffers;
use super::stats::{Percentiles, per_second};
use crate::failure::{Doing, Failure};

mod shared;
mod stream;
mod udp;

pub(crate) use self::shared::Pages;

/// One measurement of plain sockets or of shared pages.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FloorSpec {
    /// A UDP datagram there, another back, both ends spinning.
    UdpPingpong(Exchange),
    /// UDP datagrams of one size, as fast as they go, in bursts (GSO, GRO).
    UdpStream {
        /// Length of each datagram, without IP and UDP headers.
        packet_bytes: u16,
        /// Bytes that are sent from and received to, in turn; fewer than a burst are as many as a burst.
        #[serde(default)]
        memory_bytes: u64,
    },
    /// A message there over TCP, another back, both ends spinning.
    TcpPingpong(Exchange),
    /// Bytes over TCP, as fast as they go.
    TcpStream,
    /// A message there over a UNIX socket, another back, both ends spinning.
    UnixPingpong(Exchange),
    /// Bytes over a UNIX socket, as fast as they go.
    UnixStream,
    /// A cache line there and back, both ends spinning; a message that does not fit it is copied into
    /// shared pages before.
    ShmPingpong {
        /// Length of the message, either way.
        bytes: u64,
    },
    /// `memcpy` between shared pages, while the other process sleeps.
    Memcpy {
        /// Length of each copy.
        bytes: u64,
        /// Places that are copied from and to, in turn.
        places: u32,
    },
    /// Messages of a cache line through a ring in shared pages, with nothing around it.
    Ring {
        /// Messages that the reader is shown at a time.
        list: u32,
    },
}

/// How long the messages of a ping-pong are.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(crate) struct Exchange {
    /// From the client, 1 or more.
    pub(crate) bytes: u64,
    /// From the server, 1 or more.
    pub(crate) reply_bytes: u64,
}

/// What a floor has come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FloorValue {
    /// There and back, in nanoseconds.
    RoundTrip(Percentiles),
    /// Bytes received in a second.
    BytesPerSecond(u64),
    /// Messages received in a second.
    MessagesPerSecond(u64),
}

impl FloorSpec {
    /// The name in results: what was done, not how long it took.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::UdpPingpong(_) => "udp_pingpong",
            Self::UdpStream { .. } => "udp_stream",
            Self::TcpPingpong(_) => "tcp_pingpong",
            Self::TcpStream => "tcp_stream",
            Self::UnixPingpong(_) => "unix_pingpong",
            Self::UnixStream => "unix_stream",
            Self::ShmPingpong { .. } => "shm_pingpong",
            Self::Memcpy { .. } => "memcpy",
            Self::Ring { .. } => "ring",
        }
    }

    /// Whether it is a stream, not a ping-pong.
    pub(crate) const fn is_stream(self) -> bool {
        self.reply_bytes().is_none()
    }

    /// The length that the result belongs to: of a message, a packet or, for a stream of TCP, one
    /// write.
    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Self::UdpPingpong(exchange)
            | Self::TcpPingpong(exchange)
            | Self::UnixPingpong(exchange) => exchange.bytes,
            Self::ShmPingpong { bytes } | Self::Memcpy { bytes, .. } => bytes,
            Self::Ring { .. } => 64,
            Self::UdpStream { packet_bytes, .. } => {
                let [low, high] = packet_bytes.to_le_bytes();
                u64::from_le_bytes([low, high, 0, 0, 0, 0, 0, 0])
            }
            Self::TcpStream | Self::UnixStream => stream::WRITE_BYTES,
        }
    }

    /// Of a ping-pong: the length of the answer.
    pub(crate) const fn reply_bytes(self) -> Option<u64> {
        match self {
            Self::UdpPingpong(exchange)
            | Self::TcpPingpong(exchange)
            | Self::UnixPingpong(exchange) => Some(exchange.reply_bytes),
            Self::ShmPingpong { bytes } => Some(bytes),
            Self::UdpStream { .. }
            | Self::TcpStream
            | Self::UnixStream
            | Self::Memcpy { .. }
            | Self::Ring { .. } => None,
        }
    }

    /// Of copies: where they lie.
    pub(crate) const fn buffers(self) -> Option<Buffers> {
        let Self::Memcpy { places, .. } = self else { return None };
        Some(if places > 1 { Buffers::RoundRobin } else { Buffers::One })
    }

    /// Of packets: the memory that they come from and go to, if it is more than that of one burst.
    pub(crate) const fn memory_bytes(self) -> Option<u64> {
        let Self::UdpStream { memory_bytes: memory_bytes @ 1.., .. } = self else { return None };
        Some(memory_bytes)
    }

    /// Of a ring: messages at a time.
    pub(crate) const fn post_list(self) -> Option<u32> {
        let Self::Ring { list } = self else { return None };
        Some(list)
    }

    /// Whether a passive side can run it. Specifications come over the network.
    fn check(self) -> Result<(), Failure> {
        let legal = match self {
            Self::UdpPingpong(e) => {
                (1..=udp::DATAGRAM_BYTES_MAX).contains(&e.bytes)
                    && (1..=udp::DATAGRAM_BYTES_MAX).contains(&e.reply_bytes)
            }
            Self::TcpPingpong(e) | Self::UnixPingpong(e) => {
                (1..=stream::MESSAGE_BYTES_MAX).contains(&e.bytes)
                    && (1..=stream::MESSAGE_BYTES_MAX).contains(&e.reply_bytes)
            }
            Self::UdpStream { packet_bytes, memory_bytes } => {
                packet_bytes > 0 && memory_bytes <= udp::MEMORY_BYTES_MAX
            }
            // Those of shared pages are checked against the pages.
            Self::ShmPingpong { bytes } => bytes > 0,
            Self::Memcpy { bytes, places } => bytes > 0 && places > 0,
            Self::Ring { list } => list > 0,
            Self::TcpStream | Self::UnixStream => true,
        };
        if legal { Ok(()) } else { Err(Failure::Failed(format!("no such floor: {self:?}"))) }
    }
}

impl fmt::Display for FloorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "floor {} of {} bytes", self.name(), self.bytes())
    }
}

/// Runs the passive side until the client says stop, and says what was received. `pages`: those that
/// were shared, if any.
pub(crate) fn serve(
    spec: FloorSpec,
    pages: Option<&Pages>,
    control: &mut Control,
) -> Result<(), Failure> {
    spec.check()?;
    let received = match spec {
        FloorSpec::UdpPingpong(exchange) => udp::answer(exchange, control)?,
        FloorSpec::UdpStream { memory_bytes, .. } => udp::drain(length(memory_bytes)?, control)?,
        FloorSpec::TcpPingpong(exchange) => stream::answer::<TcpStream>(exchange, control)?,
        FloorSpec::TcpStream => stream::drain::<TcpStream>(control)?,
        FloorSpec::UnixPingpong(exchange) => stream::answer::<UnixStream>(exchange, control)?,
        FloorSpec::UnixStream => stream::drain::<UnixStream>(control)?,
        FloorSpec::ShmPingpong { bytes } => shared::answer(length(bytes)?, known(pages)?, control)?,
        FloorSpec::Memcpy { .. } => shared::rest(control)?,
        FloorSpec::Ring { .. } => shared::take(known(pages)?, control)?,
    };
    control.send(&Answer::Done(received))
}

/// Runs the active side against a server that waits for orders.
pub(crate) fn measure(
    spec: FloorSpec,
    pages: Option<&Pages>,
    control: &mut Control,
    limit: Limit,
) -> Result<FloorValue, Failure> {
    spec.check()?;
    let port = control.start(&Order::Floor(spec))?;
    let trip = |samples: super::stats::Samples| FloorValue::RoundTrip(samples.percentiles());
    let value = match spec {
        FloorSpec::UdpPingpong(exchange) => trip(udp::ask(exchange, port, control, limit)?),
        FloorSpec::TcpPingpong(exchange) => {
            trip(stream::ask::<TcpStream>(exchange, port, control, limit)?)
        }
        FloorSpec::UnixPingpong(exchange) => {
            trip(stream::ask::<UnixStream>(exchange, port, control, limit)?)
        }
        FloorSpec::ShmPingpong { bytes } => {
            trip(shared::ask(length(bytes)?, known(pages)?, control, limit)?)
        }
        FloorSpec::Memcpy { bytes, places } => {
            let rate = shared::copy(length(bytes)?, places, known(pages)?, limit)?;
            FloorValue::BytesPerSecond(rate)
        }
        FloorSpec::Ring { list } => {
            let rate = shared::put(list, known(pages)?, control, limit)?;
            FloorValue::MessagesPerSecond(rate)
        }
        FloorSpec::UdpStream { packet_bytes, memory_bytes } => {
            let memory = length(memory_bytes)?;
            udp::pour(packet_bytes, memory, port, control, limit.by_time())?;
            return Ok(rate(control.stop()?));
        }
        FloorSpec::TcpStream => {
            stream::pour::<TcpStream>(port, control, limit.by_time())?;
            return Ok(rate(control.stop()?));
        }
        FloorSpec::UnixStream => {
            stream::pour::<UnixStream>(port, control, limit.by_time())?;
            return Ok(rate(control.stop()?));
        }
    };
    control.stop()?;
    Ok(value)
}

/// The pages that a floor needs.
fn known(pages: Option<&Pages>) -> Result<&Pages, Failure> {
    pages.ok_or_else(|| Failure::failed("no pages have been shared"))
}

/// A length that came over the network.
fn length(bytes: u64) -> Result<usize, Failure> {
    usize::try_from(bytes).doing("reading a length")
}

/// What the passive side of a stream has received in a second.
fn rate(received: Received) -> FloorValue {
    let elapsed = std::time::Duration::from_nanos(received.elapsed_ns);
    FloorValue::BytesPerSecond(per_second(received.bytes, elapsed))
}

/// Bytes that have arrived, counted from the end of the first arrival to the last: the time before
/// the sender is under way is not the receiver's.
#[derive(Debug, Default)]
struct Arrivals {
    bytes: u64,
    first: Option<std::time::Instant>,
    last: Option<std::time::Instant>,
}

impl Arrivals {
    /// `len` bytes have just been read.
    #[inline]
    fn add(&mut self, len: usize) {
        let now = std::time::Instant::now();
        if self.first.is_none() {
            self.first = Some(now);
        } else {
            self.bytes += u64::try_from(len).unwrap_or(0);
            self.last = Some(now);
        }
    }

    /// What it comes to.
    fn received(&self) -> Received {
        let elapsed = match (self.first, self.last) {
            (Some(first), Some(last)) => last.duration_since(first).as_nanos(),
            (None, _) | (_, None) => 0,
        };
        Received { bytes: self.bytes, elapsed_ns: u64::try_from(elapsed).unwrap_or(u64::MAX) }
    }
}

#[cfg(test)]
mod tests;
