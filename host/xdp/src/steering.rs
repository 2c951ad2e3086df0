//! Steering: which packets of an interface are whose, and the program in the kernel that looks them up.
//!
//! A packet belongs to a member if its protocol, destination and source are in the table, or its protocol and
//! destination alone. It goes to the socket that the member has on the queue on which the packet came, for the kernel
//! drops packets for another queue's. Everything else is the kernel's: what is not in the table, fragments, IPv4 options,
//! IPv6 extension headers, VLANs, packets longer than a frame, and packets on a queue where the member has no socket.
//!
//! A router's report that a segment was too long (RFC 1191, RFC 8201) goes where the segments of the connection go, if its
//! key has a source: the kernel would not find a connection that the report fits.
//!
//! Each frame of the interface waits for the look-ups, and those mostly for the hash of a key. So IPv4 has a table of its
//! own, with short keys. And the program knows how many keys there are of a packet's local port, with a source and without:
//! where there are none, it looks none up. Some ports are counted together.
//!
//! A key may have a *gate*: a word that its member maps, and opens and shuts without a call (`gate.rs`). While it is shut,
//! packets that match are the kernel's: a program that sleeps on its ordinary socket is woken by them. Packets that it lets
//! through are counted.

use crate::assembler::{Assembler, If, Label, Reg, Width};
use crate::gate;
use adverb_sys::bpf::{Map, MapKind, Program};
use adverb_sys::memory::Mapping;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};

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

    /// As members send it to owners; `None` if the addresses are of different families.
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

/// What [`Key::bytes`] has made, as the program makes it from a packet: source, destination, both ports, protocol. The
/// kernel hashes words: each is stored by the program as one.
fn pack(key: &[u8; KEY_BYTES]) -> Vec<u8> {
    let [version, protocol, l0, l1, addresses @ .., r0, r1, _, _] = *key;
    let (local, remote) = addresses.split_at(16);
    let bytes = if version == 4 { V4 } else { V6 }.address_bytes();
    let address = |of: &[u8]| of.get(..bytes).unwrap_or_default().to_vec();
    let protocol = u32::from(protocol).to_ne_bytes();
    [address(remote), address(local), vec![r0, r1, l0, l1], protocol.to_vec()].concat()
}

/// How many keys there are of each local port, with a source and without, for the program to read. Some ports have the same
/// counts.
#[derive(Debug)]
struct Counts {
    map: Map,
    mapping: Mapping,
}

impl Counts {
    fn new() -> io::Result<Self> {
        let map = Map::create(MapKind::Array, 4, COUNTS_BYTES, 1)?;
        let mapping = Mapping::shared(&map, COUNTS_BYTES)?;
        Ok(Self { map, mapping })
    }

    /// That of a key.
    fn of(&self, key: &[u8; KEY_BYTES]) -> &AtomicU32 {
        let [_, _, l0, l1, addresses @ .., r0, r1, _, _] = key;
        let (_, remote) = addresses.split_at(16);
        let has_source = remote.iter().chain([r0, r1]).any(|byte| *byte != 0);
        let at = usize::from(u16::from_ne_bytes([*l0, *l1]) & COUNTS_MASK);
        self.mapping.half(at + usize::from(if has_source { WITH } else { WITHOUT }.unsigned_abs()))
    }
}

/// The tables of an interface, and its program.
#[derive(Debug)]
pub(crate) struct Steering {
    /// Keys of IPv4, and of IPv6.
    keys_4: Map,
    keys_6: Map,
    counts: Counts,
    sockets: Map,
    /// The gates of each member, by its place.
    gates: Map,
    queues: u32,
    pub(crate) program: Program,
}

impl Steering {
    /// Tables for that many queues, members, and keys of each version of IP.
    pub(crate) fn new(
        queues: u32,
        places: u32,
        keys_max: u32,
        packet_bytes_max: u32,
    ) -> io::Result<Self> {
        let keys = |version: Version| {
            Map::create(MapKind::Hash, version.key_bytes(), TARGET_BYTES, keys_max)
        };
        let (keys_4, keys_6, counts) = (keys(V4)?, keys(V6)?, Counts::new()?);
        let sockets = Map::create(MapKind::XdpSockets, 4, 4, queues * places)?;
        let gates = Map::create_table_of(&gate::new_map()?, places)?;
        let maps = Maps {
            keys_4: &keys_4,
            keys_6: &keys_6,
            counts: &counts.map,
            sockets: &sockets,
            gates: &gates,
        };
        let program = Program::load_xdp(&program(&maps, queues, packet_bytes_max))?;
        Ok(Self { keys_4, keys_6, counts, sockets, gates, queues, program })
    }

    /// Packets that match `key` go to the member at `place`, while that gate of it is open if there is one.
    pub(crate) fn claim(
        &self,
        key: &[u8; KEY_BYTES],
        place: u32,
        gate: Option<u32>,
    ) -> io::Result<()> {
        let words = [place * self.queues, place, gate.unwrap_or(NO_GATE)];
        let (table, packed, count) = (self.table(key), pack(key), self.counts.of(key));
        let is_new = !table.get(&packed, &mut [0; TARGET_BYTES]);
        // Counted before it is there, and until it is not.
        count.fetch_add(u32::from(is_new), Ordering::SeqCst);
        let result = table.set(&packed, words.map(u32::to_ne_bytes).as_flattened());
        if result.is_err() {
            count.fetch_sub(u32::from(is_new), Ordering::SeqCst);
        }
        result
    }

    const fn table(&self, key: &[u8; KEY_BYTES]) -> &Map {
        match key {
            [4, ..] => &self.keys_4,
            _ => &self.keys_6,
        }
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
        if self.table(key).remove(&pack(key)) {
            self.counts.of(key).fetch_sub(1, Ordering::SeqCst);
        }
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
    keys_4: &'a Map,
    keys_6: &'a Map,
    counts: &'a Map,
    sockets: &'a Map,
    gates: &'a Map,
}

/// Where in a packet of one version of IP the parts of a key are.
#[derive(Clone, Copy)]
struct Version {
    protocol: i16,
    /// The source's address; behind it are the destination's, and the ports.
    source: i16,
    destination: i16,
    ports: i16,
    /// The number of its ICMP, and type and code of "packet too big" there.
    icmp: i32,
    too_big: u16,
}

impl Version {
    fn address_bytes(self) -> usize {
        usize::from(self.destination.abs_diff(self.source))
    }

    fn key_bytes(self) -> usize {
        2 * self.address_bytes() + 8
    }
}

/// The program: makes a key of the packet, looks it up with its source and without, and redirects it.
fn program(maps: &Maps<'_>, queues: u32, packet_bytes_max: u32) -> Vec<u64> {
    let Maps { keys_4, keys_6, counts, sockets, gates } = *maps;
    let mut asm = Assembler::default();
    let [other, hit, redirect, done, pass] = [(); 5].map(|()| asm.label());
    asm.set(CONTEXT, Reg(1));
    asm.load(Width::Word, PACKET, CONTEXT, XDP_DATA);
    asm.load(Width::Word, END, CONTEXT, XDP_DATA_END);
    // What does not fit a frame: packets that a sender on this host leaves to the interface to cut.
    asm.set(BYTES, PACKET);
    asm.add(BYTES, i32::try_from(packet_bytes_max).unwrap_or(i32::MAX));
    asm.jump(If::Greater, END, BYTES, pass);
    bound(&mut asm, V4.ports + PORTS, pass);
    asm.load(Width::Half, BYTES, PACKET, 12);
    asm.jump(If::Unequal, BYTES, network(0x0800), other);
    asm.load(Width::Byte, BYTES, PACKET, ETHERNET);
    asm.jump(If::Unequal, BYTES, 0x45, pass); // Options.
    asm.load(Width::Half, BYTES, PACKET, ETHERNET + 6);
    asm.and(BYTES, network(0x3fff)); // More fragments, or an offset.
    asm.jump(If::Unequal, BYTES, 0, pass);
    look_up_key(&mut asm, V4, keys_4, counts, hit, pass);

    asm.place(other);
    asm.jump(If::Unequal, BYTES, network(0x86dd), pass);
    bound(&mut asm, V6.ports + PORTS, pass);
    look_up_key(&mut asm, V6, keys_6, counts, hit, pass);

    asm.place(hit);
    asm.set(FOUND, Reg(0));
    asm.set(PASSED, 0);
    asm.load(Width::Word, BYTES, FOUND, TARGET_GATE);
    asm.jump(If::Equal, BYTES, i32::try_from(NO_GATE).unwrap_or(0), redirect);
    asm.map(Reg(1), gates.as_fd().as_raw_fd());
    look_up(&mut asm, FOUND, TARGET_PLACE);
    asm.jump(If::Equal, Reg(0), 0, pass);
    asm.set(Reg(1), Reg(0));
    look_up(&mut asm, FOUND, TARGET_GATE);
    asm.jump(If::Equal, Reg(0), 0, pass);
    asm.load(Width::Word, BYTES, Reg(0), 0);
    asm.jump(If::Equal, BYTES, 0, pass);
    asm.set(PASSED, Reg(0));

    asm.place(redirect);
    asm.load(Width::Word, Reg(2), FOUND, TARGET_SOCKETS);
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

/// Looks the key of a packet up, with its source and without, and goes to `hit` with what is under it. Without, segments of
/// connections that the kernel has stay the kernel's.
fn look_up_key(
    asm: &mut Assembler,
    version: Version,
    keys: &Map,
    counts: &Map,
    hit: Label,
    pass: Label,
) {
    let Version { protocol, source, destination, ports, .. } = version;
    let [without, mine, report] = [(); 3].map(|()| asm.label());
    let key = -i16::try_from(version.key_bytes()).unwrap_or(0);
    let of = |at: i16| key + at - source;
    let words = |from: i16, to: i16| (from..to).step_by(4);
    asm.load(Width::Half, BYTES, PACKET, ports + 2);
    asm.and(BYTES, i32::from(COUNTS_MASK));
    asm.value_of(COUNT, counts.as_fd().as_raw_fd());
    asm.add(COUNT, BYTES);
    asm.load(Width::Byte, BYTES, PACKET, protocol);
    asm.jump(If::Equal, BYTES, version.icmp, report);
    asm.store(Width::Word, STACK, of(ports + PORTS), BYTES);

    asm.load(Width::Word, BYTES, COUNT, WITH);
    asm.jump(If::Equal, BYTES, 0, without);
    words(source, ports + PORTS).for_each(|at| copy(asm, at, of(at)));
    asm.map(Reg(1), keys.as_fd().as_raw_fd());
    look_up(asm, STACK, key);
    asm.jump(If::Unequal, Reg(0), 0, hit);

    asm.place(without);
    asm.load(Width::Word, BYTES, COUNT, WITHOUT);
    asm.jump(If::Equal, BYTES, 0, pass);
    words(source, destination).for_each(|at| asm.store(Width::Word, STACK, of(at), 0));
    words(destination, ports).for_each(|at| copy(asm, at, of(at)));
    asm.load(Width::Word, BYTES, PACKET, ports);
    asm.and(BYTES, i32::from_ne_bytes([0, 0, 0xff, 0xff]));
    asm.store(Width::Word, STACK, of(ports), BYTES);
    asm.map(Reg(1), keys.as_fd().as_raw_fd());
    look_up(asm, STACK, key);
    asm.jump(If::Equal, Reg(0), 0, pass);
    asm.load(Width::Byte, BYTES, PACKET, protocol);
    asm.jump(If::Unequal, BYTES, TCP, hit);
    asm.set(FOUND, Reg(0));
    leave_connections(asm, version, mine, pass);
    asm.place(mine);
    asm.set(Reg(0), FOUND);
    asm.go(hit);
    asm.place(report);
    look_up_report(asm, version, keys, hit, pass);
}

/// The same of a report that a segment was too long: the key is that of segments which come the other way.
fn look_up_report(asm: &mut Assembler, version: Version, keys: &Map, hit: Label, pass: Label) {
    let Version { protocol, source, destination, ports, .. } = version;
    let key = -i16::try_from(version.key_bytes()).unwrap_or(0);
    let of = |at: i16| key + at - source;
    // Behind eight bytes of ICMP, the segment begins with its IP header.
    let inner = |at: i16| at + ports + ICMP - ETHERNET;
    bound(asm, inner(ports + PORTS), pass);
    asm.load(Width::Half, BYTES, PACKET, ports);
    asm.jump(If::Unequal, BYTES, network(version.too_big), pass);
    asm.load(Width::Byte, BYTES, PACKET, inner(protocol));
    asm.jump(If::Unequal, BYTES, TCP, pass);
    asm.store(Width::Word, STACK, of(ports + PORTS), BYTES);
    if version.icmp == V4.icmp {
        asm.load(Width::Byte, BYTES, PACKET, inner(ETHERNET));
        asm.jump(If::Unequal, BYTES, 0x45, pass); // Options.
    }
    for at in (0..destination - source).step_by(4) {
        copy(asm, inner(destination + at), of(source + at));
        copy(asm, inner(source + at), of(destination + at));
    }
    for (from, to) in [(ports, ports + 2), (ports + 2, ports)] {
        asm.load(Width::Half, BYTES, PACKET, inner(from));
        asm.store(Width::Half, STACK, of(to), BYTES);
    }
    asm.map(Reg(1), keys.as_fd().as_raw_fd());
    look_up(asm, STACK, key);
    asm.jump(If::Equal, Reg(0), 0, pass);
    asm.go(hit);
}

/// Passes segments on of connections that the kernel has: a port may have been claimed after they were made. Those that
/// only a listener of the kernel's would get are not, nor those of one that is over: what comes may begin another.
fn leave_connections(asm: &mut Assembler, version: Version, mine: Label, pass: Label) {
    let Version { source, ports, .. } = version;
    asm.set(Reg(1), CONTEXT);
    asm.set(Reg(2), PACKET);
    asm.add(Reg(2), i32::from(source));
    asm.set(Reg(3), i32::from(ports + PORTS - source));
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

/// Copies a word from the packet to the key.
fn copy(asm: &mut Assembler, from: i16, to: i16) {
    asm.load(Width::Word, BYTES, PACKET, from);
    asm.store(Width::Word, STACK, to, BYTES);
}

/// Looks up, in the map that the first register has, what lies there.
fn look_up(asm: &mut Assembler, base: Reg, at: i16) {
    asm.set(Reg(2), base);
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
/// The counts of the packet's port, until they have been looked at.
const COUNT: Reg = Reg(9);
/// What is under the key, from then on.
const FOUND: Reg = Reg(9);
/// The gate that the packet has passed, or 0; the packet is not read any more by then.
const PASSED: Reg = Reg(7);
const STACK: Reg = Reg(10);
/// The key between processes: version, protocol, local port, local address, remote address, remote port, zeros.
pub(crate) const KEY_BYTES: usize = 40;
/// What is under a key: where the sockets of the member begin, its place, and the number of the gate.
const TARGET_BYTES: usize = 12;
const TARGET_SOCKETS: i16 = 0;
const TARGET_PLACE: i16 = 4;
const TARGET_GATE: i16 = 8;
/// No gate has this number.
const NO_GATE: u32 = 0x7fff_ffff;
const _: () = assert!(NO_GATE > gate::GATES);
/// Of a local port, as it is loaded from a packet, these bits say where its counts are.
const COUNTS_MASK: u16 = 0xfff8;
const COUNTS_BYTES: usize = 1 << 16;
/// Of those, the count of keys with a source, and that of keys without.
const WITH: i16 = 0;
const WITHOUT: i16 = 4;
const ETHERNET: i16 = 14;
const PORTS: i16 = 4;
/// Bytes of an ICMP header.
const ICMP: i16 = 8;
const V4: Version = Version {
    protocol: ETHERNET + 9,
    source: ETHERNET + 12,
    destination: ETHERNET + 16,
    ports: ETHERNET + 20,
    icmp: 1,
    too_big: 0x0304,
};
const V6: Version = Version {
    protocol: ETHERNET + 6,
    source: ETHERNET + 8,
    destination: ETHERNET + 24,
    ports: ETHERNET + 40,
    icmp: 58,
    too_big: 0x0200,
};
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

    #[test]
    fn the_program_makes_keys_of_whole_words() {
        let key = |local: &str, remote: Option<&str>| {
            let [local, remote] =
                [Some(local), remote].map(|end| end.map(|end| end.parse().unwrap()));
            Key { protocol: Protocol::Tcp, local: local.unwrap(), remote }.bytes().unwrap()
        };
        let protocol = 6_u32.to_ne_bytes();
        let v4 = [[10, 0, 0, 2, 10, 0, 0, 1, 0, 7, 0x12, 0xb7].as_slice(), &protocol].concat();
        assert_eq!(pack(&key("10.0.0.1:4791", Some("10.0.0.2:7"))), v4);
        let without = [[0, 0, 0, 0, 10, 0, 0, 1, 0, 0, 0x12, 0xb7].as_slice(), &protocol].concat();
        assert_eq!(pack(&key("10.0.0.1:4791", None)), without);
        let v6 = pack(&key("[fe00::1]:4791", Some("[fd00::2]:7")));
        let end = |first, last| [&[first], [0; 14].as_slice(), &[last]].concat();
        let ports = [0, 7, 0x12, 0xb7].to_vec();
        assert_eq!(v6, [end(0xfd, 2), end(0xfe, 1), ports, protocol.to_vec()].concat());
        assert_eq!([v4.len(), v6.len()], [V4, V6].map(Version::key_bytes));
    }

    /// Goal: the program looks nothing up in vain for keys that were.
    #[test]
    fn a_key_is_counted_once_and_while_it_is_there() {
        let steering = match Steering::new(1, 1, 1, 2048) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return println!("skipped: no CAP_BPF");
            }
            steering => steering.unwrap(),
        };
        let [all, one, more] = [None, Some("10.0.0.2:7"), Some("10.0.0.2:8")].map(|remote| {
            let remote = remote.map(|remote| remote.parse().unwrap());
            let local = "10.0.0.1:4791".parse().unwrap();
            Key { protocol: Protocol::Udp, local, remote }.bytes().unwrap()
        });
        let counts = || [&all, &one].map(|key| steering.counts.of(key).load(Ordering::Relaxed));
        for (key, expected) in [(all, [1, 0]), (one, [0, 1])] {
            (0..2).for_each(|_| steering.claim(&key, 0, None).unwrap());
            assert_eq!(counts(), expected);
            assert_eq!(
                steering.claim(&more, 0, None).unwrap_err().raw_os_error(),
                Some(libc::E2BIG)
            );
            steering.release(&more);
            assert_eq!(counts(), expected);
            (0..2).for_each(|_| steering.release(&key));
            assert_eq!(counts(), [0, 0]);
        }
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
