//! A stranger: a plain socket that can send the device any bytes.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use adverb_verbs::{Mr, Qpn, Rkey};
use adverb_wire::{
    Bth, Extension, Flow, Headers, Opcode, Operation, Packet, Pad, Pkey, Psn, ROCE_PORT, Reth,
    Transport,
};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

/// The device's socket.
pub(crate) const VICTIM: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), ROCE_PORT);

/// Where a stranger may live: the peer's own address, and another one.
pub(crate) const PEERS: Ipv4Addr = Ipv4Addr::LOCALHOST;
pub(crate) const ANOTHERS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A socket, and a knowledge of the format.
#[derive(Debug)]
pub(crate) struct Stranger {
    pub(crate) socket: UdpSocket,
    pub(crate) flow: Flow,
}

impl Stranger {
    pub(crate) fn at(address: Ipv4Addr) -> Self {
        Self::at_port(address, 0)
    }

    /// One that packets for queue pairs at this address reach, if `port` is RoCE's.
    pub(crate) fn at_port(address: Ipv4Addr, port: u16) -> Self {
        let socket = UdpSocket::bind((address, port)).expect("a socket");
        let port = socket.local_addr().expect("an address").port();
        let flow = Flow::v4(address.octets(), PEERS.octets(), port, ROCE_PORT);
        Self { socket, flow }
    }

    pub(crate) fn send(&self, datagram: &[u8]) {
        self.socket.send_to(datagram, VICTIM).expect("sent");
    }

    /// A packet with this payload, and an ICRC that fits.
    pub(crate) fn packet(&self, headers: Headers, payload: &[u8]) -> Vec<u8> {
        let mut datagram = Vec::new();
        Packet { headers, payload }.emit_into(&self.flow, 0, &mut datagram);
        datagram
    }

    /// Makes the ICRC of a datagram fit what is in it.
    pub(crate) fn seal(&self, datagram: &mut [u8]) {
        let len = u16::try_from(datagram.len()).expect("short");
        let (packet, sum) = datagram.split_last_chunk_mut::<4>().expect("an ICRC");
        let mut icrc = self.flow.icrc(len, 0);
        icrc.headers(packet);
        *sum = icrc.finish();
    }
}

/// Headers of an RC packet with a payload of `len` bytes.
pub(crate) fn headers(
    operation: Operation,
    qp: Qpn,
    psn: Psn,
    len: usize,
    extension: Extension,
) -> Headers {
    let opcode = Opcode::of(Transport::Rc, operation).expect("RC has it");
    let plain = headers_of(opcode, qp, psn, len);
    Headers { bth: Bth { ack_request: true, ..plain.bth }, extension, ..plain }
}

/// Headers of any transport's packet, without what only some have.
pub(crate) fn headers_of(opcode: Opcode, qp: Qpn, psn: Psn, len: usize) -> Headers {
    let bth = Bth {
        opcode,
        solicited: false,
        migrated: true,
        pad: Pad::for_len(len),
        pkey: Pkey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qp: qp,
        ack_request: false,
        keeps_early: false,
        psn,
    };
    Headers { bth, deth: None, xrceth: None, extension: Extension::None }
}

/// A WRITE of these bytes to the start of the region.
pub(crate) fn write(qp: Qpn, psn: Psn, target: &Mr, bytes: &[u8]) -> Headers {
    let len = u32::try_from(bytes.len()).expect("short");
    let reth = Reth { va: target.addr(), rkey: Rkey(target.rkey().0), len };
    headers(Operation::WriteOnly, qp, psn, bytes.len(), Extension::Reth(reth))
}
