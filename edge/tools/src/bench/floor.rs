//! The machine's floor: what plain sockets reach between the same two processes.
//!
//! A figure means little without the machine. So each result of a run stands beside what the
//! kernel's own UDP or TCP does for bytes of the same length, at nearly the same moment, between the
//! same two processes on the same processors. This code is meant to be as fast as sockets allow: a
//! bad floor would flatter us.
//!
//! `udp.rs` and `tcp.rs` hold the loops; here is what can be asked for, and who runs what.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::control::{Answer, Control, Order, Received};
use super::pace::Limit;
use super::stats::{Percentiles, per_second};
use crate::failure::Failure;

mod tcp;
mod udp;

/// One measurement of plain sockets.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FloorSpec {
    /// A UDP datagram there, another back, both ends spinning.
    UdpPingpong(Exchange),
    /// UDP datagrams of one size, as fast as they go, in bursts (GSO, GRO).
    UdpStream {
        /// Length of each datagram, without IP and UDP headers.
        packet_bytes: u16,
    },
    /// A message there over TCP, another back, both ends spinning.
    TcpPingpong(Exchange),
    /// Bytes over TCP, as fast as they go.
    TcpStream,
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
}

impl FloorSpec {
    /// The name in results: what was done, not how long it took.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::UdpPingpong(_) => "udp_pingpong",
            Self::UdpStream { .. } => "udp_stream",
            Self::TcpPingpong(_) => "tcp_pingpong",
            Self::TcpStream => "tcp_stream",
        }
    }

    /// Whether it is a stream, not a ping-pong.
    pub(crate) const fn is_stream(self) -> bool {
        match self {
            Self::UdpStream { .. } | Self::TcpStream => true,
            Self::UdpPingpong(_) | Self::TcpPingpong(_) => false,
        }
    }

    /// The length that the result belongs to: of a message, a packet or, for a stream of TCP, one
    /// write.
    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Self::UdpPingpong(exchange) | Self::TcpPingpong(exchange) => exchange.bytes,
            Self::UdpStream { packet_bytes } => {
                let [low, high] = packet_bytes.to_le_bytes();
                u64::from_le_bytes([low, high, 0, 0, 0, 0, 0, 0])
            }
            Self::TcpStream => tcp::WRITE_BYTES,
        }
    }

    /// Whether a passive side can run it. Specifications come over the network.
    fn check(self) -> Result<(), Failure> {
        let legal = match self {
            Self::UdpPingpong(e) => {
                (1..=udp::DATAGRAM_BYTES_MAX).contains(&e.bytes)
                    && (1..=udp::DATAGRAM_BYTES_MAX).contains(&e.reply_bytes)
            }
            Self::TcpPingpong(e) => {
                (1..=tcp::MESSAGE_BYTES_MAX).contains(&e.bytes)
                    && (1..=tcp::MESSAGE_BYTES_MAX).contains(&e.reply_bytes)
            }
            Self::UdpStream { packet_bytes } => packet_bytes > 0,
            Self::TcpStream => true,
        };
        if legal { Ok(()) } else { Err(Failure::Failed(format!("no such floor: {self:?}"))) }
    }
}

impl fmt::Display for FloorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "floor {} of {} bytes", self.name(), self.bytes())
    }
}

/// Runs the passive side until the client says stop, and says what was received.
pub(crate) fn serve(spec: FloorSpec, control: &mut Control) -> Result<(), Failure> {
    spec.check()?;
    let received = match spec {
        FloorSpec::UdpPingpong(exchange) => udp::answer(exchange, control)?,
        FloorSpec::UdpStream { .. } => udp::drain(control)?,
        FloorSpec::TcpPingpong(exchange) => tcp::answer(exchange, control)?,
        FloorSpec::TcpStream => tcp::drain(control)?,
    };
    control.send(&Answer::Done(received))
}

/// Runs the active side against a server that waits for orders.
pub(crate) fn measure(
    spec: FloorSpec,
    control: &mut Control,
    limit: Limit,
) -> Result<FloorValue, Failure> {
    spec.check()?;
    let port = control.start(&Order::Floor(spec))?;
    match spec {
        FloorSpec::UdpPingpong(exchange) => {
            let samples = udp::ask(exchange, port, control, limit)?;
            control.stop()?;
            Ok(FloorValue::RoundTrip(samples.percentiles()))
        }
        FloorSpec::TcpPingpong(exchange) => {
            let samples = tcp::ask(exchange, port, control, limit)?;
            control.stop()?;
            Ok(FloorValue::RoundTrip(samples.percentiles()))
        }
        FloorSpec::UdpStream { packet_bytes } => {
            udp::pour(packet_bytes, port, control, limit.by_time())?;
            Ok(rate(control.stop()?))
        }
        FloorSpec::TcpStream => {
            tcp::pour(port, control, limit.by_time())?;
            Ok(rate(control.stop()?))
        }
    }
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
