//! Steering: which packets of an interface are whose, and the program in the kernel that looks them up.
//!
//! A packet belongs to a member if its protocol, destination and source are in the table, or its protocol and
//! destination alone. It goes to the socket that the member has on the queue on which the packet came, for the kernel
//! drops packets for another queue's. Everything else is the kernel's: what is not in the table, fragments, IPv4 options,
//! IPv6 extension headers, VLANs, packets longer than a frame, and packets on a queue where the member has no socket.
//!
//! A key may have a *gate*: a word that its member maps, and opens and shuts without a call (`gate.rs`). While it is shut,
//! packets that match are the kernel's: a program that sleeps on its ordinary socket is woken by them. Packets that it lets
//! through are counted.

use crate::assembler::{Assembler, If, Label, Reg, Width};
use crate::gate;
use adverb_sys::bpf::{Map, MapKind, Program};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Protocol above IP.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// What packets of one member have in common.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Key {
    /// The protocol.
    pub protocol: Protocol,
    /// Where they are sent to: an address of this host or a multicast group, and not the unspecified address.
    pub local: SocketAddr,
    /// Where they come from; `None`: wherever that is.
    pub remote: Option<SocketAddr>,
}

impl Key {
    /// The key of both ends, as the program makes it from a frame, whether or not that is intact; `None` if it leaves the frame
    /// to the kernel.
    #[must_use]
    pub fn of_frame(frame: &[u8]) -> Option<Self> {
        let (ethernet, packet) = frame.split_first_chunk::<14>()?;
        let [.., kind_0, kind_1] = *ethernet;
        let (protocol, src, dst, rest): (_, IpAddr, IpAddr, _) = match [kind_0, kind_1] {
            [0x08, 0x00] => {
                let (header, rest) = packet.split_first_chunk::<20>()?;
                let [0x45, _, _, _, _, _, f0, f1, _, protocol, _, _, ends @ ..] = *header else {
                    return None; // Options.
                };
                let [s0, s1, s2, s3, d0, d1, d2, d3] = ends;
                // A fragment is the kernel's.
                let is_whole = u16::from_be_bytes([f0, f1]) & 0x3fff == 0;
                let found = (protocol, [s0, s1, s2, s3].into(), [d0, d1, d2, d3].into(), rest);
                is_whole.then_some(found)?
            }
            [0x86, 0xdd] => {
                let (header, rest) = packet.split_first_chunk::<40>()?;
                let ([_, _, _, _, _, _, protocol, _], ends) = header.split_first_chunk::<8>()?;
                let (src, dst) = ends.split_first_chunk::<16>()?;
                let dst: [u8; 16] = dst.try_into().ok()?;
                (*protocol, (*src).into(), dst.into(), rest)
            }
            _ => return None,
        };
        let protocol = match protocol {
            6 => Protocol::Tcp,
            17 => Protocol::Udp,
            _ => return None,
        };
        let [s0, s1, d0, d1] = *rest.first_chunk::<4>()?;
        let local = SocketAddr::new(dst, u16::from_be_bytes([d0, d1]));
        let remote = SocketAddr::new(src, u16::from_be_bytes([s0, s1]));
        Some(Self { protocol, local, remote: Some(remote) })
    }

    /// As the program makes it from a packet; `None` if the addresses are of different families.
    pub(crate) fn bytes(&self) -> Option<[u8; KEY_BYTES]> {
        let version = if self.local.is_ipv4() { 4 } else { 6 };
        let protocol = match self.protocol {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
        };
        let (remote, remote_port) = match self.remote {
            Some(remote) if remote.is_ipv4() == self.local.is_ipv4() => {
                (octets(remote.ip()), remote.port())
            }
            Some(_) => return None,
            None => ([0; 16], 0),
        };
        let mut bytes = Vec::with_capacity(KEY_BYTES);
        bytes.extend([version, protocol]);
        bytes.extend(self.local.port().to_be_bytes());
        bytes.extend(octets(self.local.ip()));
        bytes.extend(remote);
        bytes.extend(remote_port.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.try_into().ok()
    }

    /// What [`Key::bytes`] has made; `None` if it is something else.
    pub(crate) fn parse(bytes: &[u8; KEY_BYTES]) -> Option<Self> {
        let [version, protocol, p0, p1, addresses @ .., r0, r1, _, _] = bytes;
        let protocol = match protocol {
            6 => Protocol::Tcp,
            17 => Protocol::Udp,
            _ => return None,
        };
        let (local, remote) = addresses.split_first_chunk::<16>()?;
        let local = SocketAddr::new(ip(*version, *local)?, u16::from_be_bytes([*p0, *p1]));
        let remote = ip(*version, remote.try_into().ok()?)?;
        let remote = SocketAddr::new(remote, u16::from_be_bytes([*r0, *r1]));
        let remote = Some(remote).filter(|remote| !remote.ip().is_unspecified());
        Some(Self { protocol, local, remote }).filter(|key| key.bytes().as_ref() == Some(bytes))
    }
}

fn ip(version: u8, octets: [u8; 16]) -> Option<IpAddr> {
    let [a, b, c, d, ..] = octets;
    match version {
        4 => Some([a, b, c, d].into()),
        6 => Some(octets.into()),
        _ => None,
    }
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The tables of an interface, and its program.
#[derive(Debug)]
pub(crate) struct Steering {
    keys: Map,
    sockets: Map,
    /// The gates of each member, by its place.
    gates: Map,
    queues: u32,
    pub(crate) program: Program,
}

impl Steering {
    /// Tables for that many queues, members and keys.
    pub(crate) fn new(
        queues: u32,
        places: u32,
        keys_max: u32,
        packet_bytes_max: u32,
    ) -> io::Result<Self> {
        let keys = Map::create(MapKind::Hash, KEY_BYTES, TARGET_BYTES, keys_max)?;
        let sockets = Map::create(MapKind::XdpSockets, 4, 4, queues * places)?;
        let gates = Map::create_table_of(&gate::new_map()?, places)?;
        let maps = Maps { keys: &keys, sockets: &sockets, gates: &gates };
        let program = Program::load_xdp(&program(&maps, queues, packet_bytes_max))?;
        Ok(Self { keys, sockets, gates, queues, program })
    }

    /// Packets that match `key` go to the member at `place`, while that gate of it is open if there is one.
    pub(crate) fn claim(
        &self,
        key: &[u8; KEY_BYTES],
        place: u32,
        gate: Option<u32>,
    ) -> io::Result<()> {
        let words = [place * self.queues, place, gate.unwrap_or(NO_GATE)];
        self.keys.set(key, words.map(u32::to_ne_bytes).as_flattened())
    }

    /// The member at `place` has these gates.
    pub(crate) fn install_gates(&self, place: u32, gates: &Map) -> io::Result<()> {
        self.gates.set(&place.to_ne_bytes(), &gates.as_fd().as_raw_fd().to_ne_bytes())
    }

    /// It has none any more: what it has claimed with one is the kernel's.
    pub(crate) fn uninstall_gates(&self, place: u32) {
        self.gates.remove(&place.to_ne_bytes());
    }

    /// They are the kernel's again.
    pub(crate) fn release(&self, key: &[u8; KEY_BYTES]) {
        self.keys.remove(key);
    }

    /// The member at `place` has this socket on this queue.
    pub(crate) fn install(&self, place: u32, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let at = place * self.queues + queue;
        self.sockets.set(&at.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes())
    }

    /// It has none there any more.
    pub(crate) fn uninstall(&self, place: u32, queue: u32) {
        self.sockets.remove(&(place * self.queues + queue).to_ne_bytes());
    }
}

/// What the program looks things up in.
struct Maps<'a> {
    keys: &'a Map,
    sockets: &'a Map,
    gates: &'a Map,
}

/// The program: makes a key of the packet, looks it up with its source and without, and redirects it. Without, segments of
/// connections that the kernel has stay the kernel's.
fn program(maps: &Maps<'_>, queues: u32, packet_bytes_max: u32) -> Vec<u64> {
    let Maps { keys, sockets, gates } = *maps;
    let mut asm = Assembler::default();
    let [v4, v6, look, mine, hit, redirect, done, pass] = [(); 8].map(|()| asm.label());
    asm.set(CONTEXT, Reg(1));
    asm.load(Width::Word, PACKET, CONTEXT, XDP_DATA);
    asm.load(Width::Word, END, CONTEXT, XDP_DATA_END);
    for at in (0..5).map(|n| KEY + 8 * n) {
        asm.store(Width::Double, STACK, at, 0);
    }
    // What does not fit a frame: packets that a sender on this host leaves to the interface to cut.
    asm.set(BYTES, PACKET);
    asm.add(BYTES, i32::try_from(packet_bytes_max).unwrap_or(i32::MAX));
    asm.jump(If::Greater, END, BYTES, pass);
    bound(&mut asm, ETHERNET + 20 + PORTS, pass);
    asm.load(Width::Half, BYTES, PACKET, 12);
    asm.jump(If::Equal, BYTES, network(0x0800), v4);
    asm.jump(If::Equal, BYTES, network(0x86dd), v6);
    asm.go(pass);

    asm.place(v4);
    asm.load(Width::Byte, BYTES, PACKET, ETHERNET);
    asm.jump(If::Unequal, BYTES, 0x45, pass); // Options.
    asm.load(Width::Half, BYTES, PACKET, ETHERNET + 6);
    asm.and(BYTES, network(0x3fff)); // More fragments, or an offset.
    asm.jump(If::Unequal, BYTES, 0, pass);
    asm.store(Width::Byte, STACK, KEY, 4);
    copy(&mut asm, Width::Byte, ETHERNET + 9, KEY + 1);
    copy(&mut asm, Width::Word, ETHERNET + 16, KEY_LOCAL);
    copy(&mut asm, Width::Word, ETHERNET + 12, KEY_REMOTE);
    copy(&mut asm, Width::Half, ETHERNET + 22, KEY + 2);
    copy(&mut asm, Width::Half, ETHERNET + 20, KEY_REMOTE + 16);
    note_ends(&mut asm, ETHERNET + 12, 12);
    asm.go(look);

    asm.place(v6);
    bound(&mut asm, ETHERNET + 40 + PORTS, pass);
    asm.store(Width::Byte, STACK, KEY, 6);
    copy(&mut asm, Width::Byte, ETHERNET + 6, KEY + 1);
    for at in (0..4).map(|n| 4 * n) {
        copy(&mut asm, Width::Word, ETHERNET + 24 + at, KEY_LOCAL + at);
        copy(&mut asm, Width::Word, ETHERNET + 8 + at, KEY_REMOTE + at);
    }
    copy(&mut asm, Width::Half, ETHERNET + 42, KEY + 2);
    copy(&mut asm, Width::Half, ETHERNET + 40, KEY_REMOTE + 16);
    note_ends(&mut asm, ETHERNET + 8, 36);

    asm.place(look);
    look_up(&mut asm, keys, KEY);
    asm.jump(If::Unequal, Reg(0), 0, hit);
    for at in (0..5).map(|n| KEY_REMOTE + 4 * n) {
        asm.store(Width::Word, STACK, at, 0);
    }
    look_up(&mut asm, keys, KEY);
    asm.jump(If::Equal, Reg(0), 0, pass);
    asm.set(TARGET, Reg(0));
    asm.load(Width::Byte, BYTES, STACK, KEY + 1);
    asm.jump(If::Unequal, BYTES, TCP, mine);
    leave_connections(&mut asm, mine, pass);
    asm.place(mine);
    asm.set(Reg(0), TARGET);

    asm.place(hit);
    asm.load(Width::Word, TARGET, Reg(0), 0);
    asm.load(Width::Word, BYTES, Reg(0), 8);
    asm.set(PASSED, 0);
    asm.jump(If::Equal, BYTES, i32::try_from(NO_GATE).unwrap_or(0), redirect);
    asm.store(Width::Word, STACK, GATE, BYTES);
    asm.load(Width::Word, BYTES, Reg(0), 4);
    asm.store(Width::Word, STACK, PLACE, BYTES);
    look_up(&mut asm, gates, PLACE);
    asm.jump(If::Equal, Reg(0), 0, pass);
    asm.set(Reg(1), Reg(0));
    look_up_there(&mut asm, GATE);
    asm.jump(If::Equal, Reg(0), 0, pass);
    asm.load(Width::Word, BYTES, Reg(0), 0);
    asm.jump(If::Equal, BYTES, 0, pass);
    asm.set(PASSED, Reg(0));

    asm.place(redirect);
    asm.set(Reg(2), TARGET);
    asm.load(Width::Word, BYTES, CONTEXT, XDP_QUEUE);
    asm.jump(If::NotLess, BYTES, i32::try_from(queues).unwrap_or(i32::MAX), pass);
    asm.add(Reg(2), BYTES);
    asm.map(Reg(1), sockets.as_fd().as_raw_fd());
    asm.set(Reg(3), XDP_PASS); // Where there is no socket.
    asm.call(REDIRECT_MAP);
    asm.jump(If::Unequal, Reg(0), XDP_REDIRECT, done);
    asm.jump(If::Equal, PASSED, 0, done);
    asm.set(Reg(1), 1);
    asm.add_there(Width::Word, PASSED, gate::COUNT, Reg(1));
    asm.place(done);
    asm.exit();

    asm.place(pass);
    asm.set(Reg(0), XDP_PASS);
    asm.exit();
    asm.finish()
}

/// Notes where in the packet both ends are, and how long that is.
fn note_ends(asm: &mut Assembler, at: i16, bytes: i32) {
    asm.set(BYTES, PACKET);
    asm.add(BYTES, i32::from(at));
    asm.store(Width::Double, STACK, ENDS, BYTES);
    asm.set(BYTES, bytes);
    asm.store(Width::Double, STACK, ENDS_BYTES, BYTES);
}

/// Passes segments on of connections that the kernel has: a port may have been claimed after they were made. Those that
/// only a listener of the kernel's would get are not, nor those of one that is over: what comes may begin another.
fn leave_connections(asm: &mut Assembler, mine: Label, pass: Label) {
    asm.set(Reg(1), CONTEXT);
    asm.load(Width::Double, Reg(2), STACK, ENDS);
    asm.load(Width::Double, Reg(3), STACK, ENDS_BYTES);
    asm.set(Reg(4), THIS_NAMESPACE);
    asm.set(Reg(5), 0);
    asm.call(SKC_LOOKUP_TCP);
    asm.jump(If::Equal, Reg(0), 0, mine);
    asm.load(Width::Word, PACKET, Reg(0), SOCK_STATE); // The packet is not read any more.
    asm.set(Reg(1), Reg(0));
    asm.call(SK_RELEASE);
    asm.jump(If::Equal, PACKET, TCP_TIME_WAIT, mine);
    asm.jump(If::Unequal, PACKET, TCP_LISTEN, pass);
}

/// Passes packets on that are shorter. The verifier lets the program read as far as it has looked.
fn bound(asm: &mut Assembler, bytes: i16, pass: Label) {
    asm.set(BYTES, PACKET);
    asm.add(BYTES, i32::from(bytes));
    asm.jump(If::Greater, BYTES, END, pass);
}

/// Copies from the packet to the key.
fn copy(asm: &mut Assembler, width: Width, from: i16, to: i16) {
    asm.load(width, BYTES, PACKET, from);
    asm.store(width, STACK, to, BYTES);
}

/// Looks up what lies on the stack. The packet's registers survive the call.
fn look_up(asm: &mut Assembler, map: &Map, at: i16) {
    asm.map(Reg(1), map.as_fd().as_raw_fd());
    look_up_there(asm, at);
}

/// The same, in the map that the first register has.
fn look_up_there(asm: &mut Assembler, at: i16) {
    asm.set(Reg(2), STACK);
    asm.add(Reg(2), i32::from(at));
    asm.call(MAP_LOOKUP_ELEM);
}

/// A number as a packet's half word is loaded.
fn network(number: u16) -> i32 {
    i32::from(number.to_be())
}

const CONTEXT: Reg = Reg(6);
const PACKET: Reg = Reg(7);
const END: Reg = Reg(8);
const BYTES: Reg = Reg(5);
/// Where the sockets of the member are, once it is known.
const TARGET: Reg = Reg(9);
/// The gate that the packet has passed, or 0; the packet is not read any more by then.
const PASSED: Reg = Reg(7);
const STACK: Reg = Reg(10);
/// The key: version, protocol, local port, local address, remote address, remote port, zeros.
pub(crate) const KEY_BYTES: usize = 40;
const KEY: i16 = -40;
/// Below the key: numbers to look up.
const PLACE: i16 = KEY - 4;
const GATE: i16 = KEY - 8;
/// Where in the packet both ends are, and how long that is.
const ENDS: i16 = KEY - 16;
const ENDS_BYTES: i16 = KEY - 24;
/// What is under a key: where the sockets of the member begin, its place, and the number of the gate.
const TARGET_BYTES: usize = 12;
/// No gate has this number.
const NO_GATE: u32 = 0x7fff_ffff;
const _: () = assert!(NO_GATE > gate::GATES);
const KEY_LOCAL: i16 = KEY + 4;
const KEY_REMOTE: i16 = KEY + 20;
const ETHERNET: i16 = 14;
const PORTS: i16 = 4;
// Of `struct xdp_md`.
const XDP_DATA: i16 = 0;
const XDP_DATA_END: i16 = 4;
const XDP_QUEUE: i16 = 16;
const XDP_PASS: i32 = 2;
const XDP_REDIRECT: i32 = 4;
const MAP_LOOKUP_ELEM: i32 = 1;
const REDIRECT_MAP: i32 = 51;
const SK_RELEASE: i32 = 86;
const SKC_LOOKUP_TCP: i32 = 99;
const THIS_NAMESPACE: i32 = -1;
// Of `struct bpf_sock`.
const SOCK_STATE: i16 = 72;
const TCP_TIME_WAIT: i32 = 6;
const TCP_LISTEN: i32 = 10;
const TCP: i32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_without_a_source_has_zeros_there() {
        let local = "10.0.0.1:4791".parse().unwrap();
        let key = Key { protocol: Protocol::Udp, local, remote: None };
        let mut expected = [0; KEY_BYTES];
        expected[..8].copy_from_slice(&[4, 17, 0x12, 0xb7, 10, 0, 0, 1]);
        assert_eq!(key.bytes(), Some(expected));
        let remote = Some("10.0.0.2:1".parse().unwrap());
        let bytes = Key { remote, ..key }.bytes().unwrap();
        assert_eq!(bytes[20..], [[10, 0, 0, 2].as_slice(), &[0; 12], &[0, 1, 0, 0]].concat());
        let remote = Some("[::1]:1".parse().unwrap());
        assert_eq!(Key { remote, ..key }.bytes(), None);
    }

    /// A frame with an IPv4 header, or an IPv6 one, and ports 7 and 4791.
    fn frame(kind: u16, header: &[u8]) -> Vec<u8> {
        [&[0; 12], &kind.to_be_bytes()[..], header, &[0, 7, 0x12, 0xb7]].concat()
    }

    #[test]
    fn a_frame_has_the_key_that_the_program_makes_of_it() {
        let mut v4 = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0xff, 0xff];
        v4.extend([10, 0, 0, 2, 10, 0, 0, 1]);
        let remote = Some("10.0.0.2:7".parse().unwrap());
        let local = "10.0.0.1:4791".parse().unwrap();
        let key = Key { protocol: Protocol::Udp, local, remote };
        assert_eq!(Key::of_frame(&frame(0x800, &v4)), Some(key));
        let whole = frame(0x800, &v4);
        assert_eq!(Key::of_frame(&whole[..whole.len() - 1]), None);
        for (at, value) in [(0, 0x46), (6, 0x20), (7, 1), (9, 1)] {
            let mut v4 = v4.clone();
            v4[at] = value;
            assert_eq!(Key::of_frame(&frame(0x800, &v4)), None, "{at}");
        }
        assert_eq!(Key::of_frame(&frame(0x806, &v4)), None);
        let mut v6 = vec![0x60, 0, 0, 0, 0, 0, 6, 64];
        v6.extend([[0xfd; 16], [0xfe; 16]].concat());
        let of = |octets: [u8; 16], port| SocketAddr::new(octets.into(), port);
        let (local, remote) = (of([0xfe; 16], 4791), Some(of([0xfd; 16], 7)));
        let key = Key { protocol: Protocol::Tcp, local, remote };
        assert_eq!(Key::of_frame(&frame(0x86dd, &v6)), Some(key));
    }

    #[test]
    fn a_key_that_was_written_can_be_read_and_nothing_else() {
        for (local, remote) in [
            ("10.0.0.1:4791", None),
            ("10.0.0.1:4791", Some("10.0.0.2:7")),
            ("[fd00::1]:80", Some("[fd00::2]:65535")),
        ] {
            let remote = remote.map(|remote| remote.parse().unwrap());
            let key = Key { protocol: Protocol::Tcp, local: local.parse().unwrap(), remote };
            let bytes = key.bytes().unwrap();
            assert_eq!(Key::parse(&bytes), Some(key));
            for (at, value) in [(0, 5), (1, 1), (38, 1), (39, 1)] {
                let mut bytes = bytes;
                bytes[at] = value;
                assert_eq!(Key::parse(&bytes), None, "{at}");
            }
        }
    }
}
