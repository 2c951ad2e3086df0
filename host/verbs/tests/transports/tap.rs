//! Tap on the wire: all packets that pass an interface of this namespace.
//!
//! # Safety
//!
//! The descriptor that `socket` returns is open and not shared.

use adverb_verbs::{Marks, Qpn};
use adverb_wire::ip::Datagram;
use std::net::UdpSocket;
use std::os::fd::FromRawFd;

/// Everything that passes an interface of this namespace, as IP has it.
pub(crate) struct Tap(UdpSocket);

impl Tap {
    /// `None` where that is not allowed.
    pub(crate) fn new() -> Option<Self> {
        let protocol = i32::from(0x0003_u16.to_be()); // All.
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: it takes integers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, protocol) };
        if fd < 0 {
            println!("skipped: no packet sockets");
            return None;
        }
        // SAFETY: it was just opened, and not shared. Of a UDP socket's calls only `recv` is made.
        Some(Self(unsafe { UdpSocket::from_raw_fd(fd) }))
    }

    /// All packets since the last call.
    pub(crate) fn packets(&self) -> Vec<Vec<u8>> {
        let mut buffer = vec![0; 1 << 17];
        let mut all = Vec::new();
        while let Ok(len) = self.0.recv(&mut buffer) {
            all.push(buffer.get(..len).unwrap_or_default().to_vec());
        }
        all
    }

    /// The marks of all RoCE packets since the last call that carry something for this queue pair.
    #[allow(dead_code, reason = "each test binary uses a part of it")]
    pub(crate) fn marks_to(&self, number: Qpn) -> Vec<Marks> {
        marks_to(&self.packets(), number)
    }
}

/// The marks of those among `packets` that carry something for this queue pair.
pub(crate) fn marks_to(packets: &[Vec<u8>], number: Qpn) -> Vec<Marks> {
    let to = |packet: &Vec<u8>| {
        let datagram = Datagram::parse(packet).ok()?;
        let [_, _, _, _, _, q0, q1, q2, ..] = *datagram.payload else {
            return None;
        };
        (u32::from_be_bytes([0, q0, q1, q2]) == number.get()).then_some(datagram.marks)
    };
    packets.iter().filter_map(to).collect()
}
