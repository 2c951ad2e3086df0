//! Packets that the kernel gave to the wrong process of an address, passed on to the right one.
//!
//! Steering is a hint; this makes it correct. Each device has a second socket, on the loopback address, whose port
//! the registry knows. A message there is a short header, which says whose packets these are and where they came
//! from, and the packets as they arrived. A control message (`control_message.rs`) goes the same way, with a packet
//! or without. Both begin with a number that only devices of the same registry know: ports tell nothing, because that
//! of a process that was killed may be a stranger's.

use crate::registry::control_message::ControlMessage;
use crate::sync::Mutex;
use adverb_sys::udp::{BURST_BYTES_MAX, BindOptions, Destination, Socket};
use adverb_wire::Marks;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Packets that were passed on, and what is known of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Passed<'a> {
    /// Where they came from.
    pub(crate) source: SocketAddr,
    /// The local address they were sent to.
    pub(crate) target: IpAddr,
    /// How they were marked, as far as the socket has shown it.
    pub(crate) marks: Marks,
    /// Length of each but the last, if there are several.
    pub(crate) segment: Option<usize>,
    /// The packets.
    pub(crate) bytes: &'a [u8],
}

/// Kind of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Message<'a> {
    Passed(Passed<'a>),
    ControlMessage(ControlMessage, Option<Passed<'a>>),
}

/// The socket for passing on.
#[derive(Debug)]
pub(crate) struct Relay {
    socket: Socket,
    /// How messages begin.
    secret: [u8; SECRET_BYTES],
    /// Used by the receiving thread, one at a time; made once.
    /// What is being sent.
    message: Mutex<Vec<u8>>,
}

impl Relay {
    /// On the loopback address of IPv4, or where a host has none, of IPv6; where it has none either, on the first of
    /// the device's own addresses that will do.
    pub(crate) fn open(secret: u64, own: impl Iterator<Item = SocketAddr>) -> io::Result<Self> {
        let at = |address: SocketAddr| {
            let mut options = BindOptions::new(address);
            options.gro = false;
            Socket::bind(&options)
        };
        let loopback = LOOPBACK.map(|ip| SocketAddr::new(ip, 0));
        let mut socket = Err(io::ErrorKind::AddrNotAvailable.into());
        for mut address in loopback.into_iter().chain(own) {
            address.set_port(0);
            socket = at(address);
            if socket.is_ok() {
                break;
            }
        }
        let socket = socket?;
        let message = Mutex::new(Vec::new());
        Ok(Self { socket, secret: secret.to_ne_bytes(), message })
    }

    /// The relay of this device in another process that has this port: all are on the same address.
    fn at(&self, port: u16) -> Destination {
        let mut address = self.socket.local_addr();
        address.set_port(port);
        Destination::new(address)
    }

    /// Whether a message may be of this host: its network accepts none from outside that says so.
    pub(crate) fn is_here(&self, from: SocketAddr) -> bool {
        from.ip().is_loopback() || from.ip() == self.socket.local_addr().ip()
    }

    pub(crate) fn port(&self) -> u16 {
        self.socket.local_addr().port()
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Passes packets on to the device whose relay has this port.
    pub(crate) fn pass(&self, port: u16, passed: Passed<'_>) -> io::Result<()> {
        let destination = self.at(port);
        // A burst that fills a datagram leaves no room for the header: it goes in two parts.
        let step = passed.segment.unwrap_or(passed.bytes.len()).max(1);
        let most = (BURST_BYTES_MAX - SECRET_BYTES - HEADER_BYTES) / step * step;
        for bytes in passed.bytes.chunks(most.max(1)) {
            let header = Passed { bytes, ..passed }.header();
            self.send_parts(&[&header, bytes], &destination)?;
        }
        Ok(())
    }

    /// Sends a control message to the device whose relay has this port, with a packet that fits beside it.
    pub(crate) fn send(
        &self,
        port: u16,
        control: &ControlMessage,
        passed: Option<Passed<'_>>,
    ) -> io::Result<()> {
        let (destination, control) = (self.at(port), control.emit());
        match passed {
            None => self.send_parts(&[&control], &destination),
            Some(passed) => {
                self.send_parts(&[&control, &passed.header(), passed.bytes], &destination)
            }
        }
    }

    /// Sends these bytes, one behind the other, behind the secret.
    fn send_parts(&self, parts: &[&[u8]], destination: &Destination) -> io::Result<()> {
        let mut message = self.message.lock();
        message.clear();
        message.extend_from_slice(&self.secret);
        parts.iter().for_each(|part| message.extend_from_slice(part));
        self.socket.send(&message, destination, None).map(drop)
    }

    /// Takes one message; returns its sender, and what it is, if it is one of a device of this registry at all.
    pub(crate) fn take<'a>(
        &self,
        buffer: &'a mut [u8],
    ) -> io::Result<(SocketAddr, Option<Message<'a>>)> {
        let received = self.socket.recv(buffer)?;
        let message = buffer.get(..received.len).unwrap_or_default();
        let Some(message) = message.strip_prefix(&self.secret) else {
            return Ok((received.source, None));
        };
        let message = match ControlMessage::parse(message) {
            Some((control, [])) => Some(Message::ControlMessage(control, None)),
            Some((control, rest)) => {
                Passed::parse(rest).map(|passed| Message::ControlMessage(control, Some(passed)))
            }
            None => Passed::parse(message).map(Message::Passed),
        };
        Ok((received.source, message))
    }
}

/// Where relays are, if the host has the address.
pub(crate) const LOOPBACK: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
const SECRET_BYTES: usize = 8;
const MAGIC: [u8; 4] = *b"advg";
const HEADER_BYTES: usize = 4 + 16 + 16 + 4 + 4 + 4 + 4 + 2;

impl<'a> Passed<'a> {
    fn header(&self) -> [u8; HEADER_BYTES] {
        let scope = match self.source {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(addr) => addr.scope_id(),
        };
        let segment = u32::try_from(self.segment.unwrap_or(0)).unwrap_or(0);
        let mut header = [0; HEADER_BYTES];
        let Marks { traffic_class, hop_limit, flow_label } = self.marks;
        let parts: [&[u8]; 8] = [
            &MAGIC,
            &mapped(self.source.ip()),
            &mapped(self.target),
            &u32::from(self.source.port()).to_be_bytes(),
            &scope.to_be_bytes(),
            &segment.to_be_bytes(),
            &flow_label.to_be_bytes(),
            &[traffic_class, hop_limit],
        ];
        for (place, byte) in header.iter_mut().zip(parts.into_iter().flatten()) {
            *place = *byte;
        }
        header
    }

    fn parse(message: &'a [u8]) -> Option<Self> {
        let (magic, rest) = message.split_first_chunk::<4>()?;
        let (source, rest) = rest.split_first_chunk::<16>()?;
        let (target, rest) = rest.split_first_chunk::<16>()?;
        let (port, rest) = rest.split_first_chunk::<4>()?;
        let (scope, rest) = rest.split_first_chunk::<4>()?;
        let (segment, rest) = rest.split_first_chunk::<4>()?;
        let (flow_label, rest) = rest.split_first_chunk::<4>()?;
        let ([traffic_class, hop_limit], bytes) = rest.split_first_chunk::<2>()?;
        if *magic != MAGIC {
            return None;
        }
        let port = u16::try_from(u32::from_be_bytes(*port)).ok()?;
        let source = match unmapped(*source) {
            IpAddr::V4(ip) => SocketAddr::new(ip.into(), port),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, u32::from_be_bytes(*scope)).into(),
        };
        let segment = usize::try_from(u32::from_be_bytes(*segment)).ok()?;
        let segment = (segment > 0).then_some(segment);
        let (traffic_class, hop_limit) = (*traffic_class, *hop_limit);
        let marks = Marks { traffic_class, hop_limit, flow_label: u32::from_be_bytes(*flow_label) };
        Some(Self { source, target: unmapped(*target), marks, segment, bytes })
    }
}

fn mapped(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn unmapped(octets: [u8; 16]) -> IpAddr {
    let ip = Ipv6Addr::from(octets);
    ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_on_arrives_as_it_was() {
        let [here, there] = [(); 2].map(|()| Relay::open(7, std::iter::empty()).unwrap());
        for (source, target) in [("10.0.0.1:50000", "10.0.0.2"), ("[fe80::1%2]:4791", "fe80::2")] {
            let bytes = [7_u8; 100];
            let (source, target) = (source.parse().unwrap(), target.parse().unwrap());
            let marks = Marks { traffic_class: 1, hop_limit: 2, flow_label: 0x3_4567 };
            let passed = Passed { source, target, marks, segment: Some(40), bytes: &bytes };
            here.pass(there.port(), passed).unwrap();
            let mut buffer = [0; 200];
            let (from, got) = there.take(&mut buffer).unwrap();
            assert_eq!(from.port(), here.port());
            assert_eq!(got, Some(Message::Passed(passed)));
        }
    }

    #[test]
    fn a_strangers_bytes_are_no_message() {
        for message in [&b""[..], b"advg", &[0; 100]] {
            assert_eq!(Passed::parse(message), None);
        }
    }
}
