//! Against smoltcp, another implementation: both roles, in good and bad weather, in one process and virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crate::pair::Weather;
use adverb_fabric::Random;
use adverb_tcpip::Time;
use adverb_tcpip::stack::{ConnectionId, Listen, ListenerId, Outcome, Stack};
use adverb_tcpip::tcp::{Config, Piece, State, Tcp};
use adverb_tcpip::tuple::Tuple;
use adverb_wire::ip::{Ipv4, Sum};
use smoltcp::iface::{self, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, Device, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const DELAY: Duration = Duration::from_millis(3);
/// How much later than others a packet comes that is overtaken, at most.
const LATE_NS: u64 = 3_000_000;

/// The other implementation's interface: packets in, packets out.
#[derive(Default)]
struct Port {
    arrived: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
}

struct Arrived(Vec<u8>);
struct Room<'a>(&'a mut VecDeque<Vec<u8>>);

impl phy::RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

impl phy::TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut packet = vec![0; len];
        let result = write(&mut packet);
        self.0.push_back(packet);
        result
    }
}

impl Device for Port {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Room<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived, Room<'_>)> {
        let packet = self.arrived.pop_front()?;
        Some((Arrived(packet), Room(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_>> {
        Some(Room(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = 1500;
        capabilities
    }
}

/// What is to be carried, and over what.
#[derive(Clone, Copy, Debug)]
struct Case {
    seed: u64,
    /// They begin the connection.
    they_connect: bool,
    bytes: [usize; 2],
    weather: Weather,
    their_buffer: usize,
    config: Config,
}

/// Both implementations, and the network between them.
struct Meeting {
    case: Case,
    now: Time,
    random: Random,
    network: BTreeMap<(Time, u64), (bool, Vec<u8>)>,
    count: u64,
    ours: Stack<Vec<u8>>,
    id: Option<ConnectionId>,
    theirs: Interface,
    port: Port,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    /// Bytes that each side has written and read.
    written: [usize; 2],
    read: [usize; 2],
}

fn byte(at: usize) -> u8 {
    let [.., high, low] = at.to_be_bytes();
    low.wrapping_mul(7) ^ high
}

fn instant(now: Time) -> Instant {
    Instant::from_micros(i64::try_from(now.nanos() / 1000).unwrap())
}

impl Meeting {
    fn new(case: Case) -> Self {
        let mut port = Port::default();
        let config = iface::Config::new(HardwareAddress::Ip);
        let mut theirs = Interface::new(config, &mut port, instant(Time::ZERO));
        theirs.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(IpAddress::Ipv4(THEIRS), 24)).unwrap();
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; case.their_buffer]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        let mut ours = Stack::new(4, [case.seed, 5]);
        let mut id = None;
        if case.they_connect {
            let listen =
                Listen { config: case.config, backlog: 1, half_open_max: 1, syn_rate: None };
            ours.listen(ListenerId { port: 80, address: None }, listen, Time::ZERO).unwrap();
            let to = (IpAddress::Ipv4(OURS), 80);
            socket.connect(theirs.context(), to, 5000).unwrap();
        } else {
            socket.listen(80).unwrap();
            let (local, remote) = (IpAddr::V4(OURS), IpAddr::V4(THEIRS));
            let tuple = Tuple { local, local_port: 5000, remote, remote_port: 80 };
            id = Some(ours.connect(tuple, &case.config, Time::ZERO).unwrap());
        }
        let mut sockets = SocketSet::new(vec![]);
        let handle = sockets.add(socket);
        Self {
            case,
            now: Time::ZERO,
            random: Random::new(case.seed),
            network: BTreeMap::new(),
            count: 0,
            ours,
            id,
            theirs,
            port,
            sockets,
            handle,
            written: [0; 2],
            read: [0; 2],
        }
    }

    fn run(&mut self) {
        for _ in 0..2_000_000 {
            self.our_program();
            self.their_program();
            self.transmit();
            self.their_program(); // What has come makes room for more.
            self.transmit();
            if self.is_over() {
                assert_eq!(self.read, [self.case.bytes[1], self.case.bytes[0]]);
                return;
            }
            let arrival = self.network.keys().next().map(|(at, _)| *at);
            let theirs = self.theirs.poll_at(instant(self.now), &self.sockets);
            let theirs = theirs.map(|at| {
                let nanos = u64::try_from(at.total_micros()).unwrap_or_default() * 1000;
                Time::from_nanos(nanos.max(self.now.nanos() + 1000))
            });
            let next = [arrival, theirs, self.ours.next_deadline()].into_iter().flatten().min();
            self.now = self.now.max(next.unwrap_or_else(|| panic!("stuck: {}", self.describe())));
            self.ours.on_time(self.now);
            self.deliver();
        }
        panic!("not over: {}", self.describe());
    }

    fn describe(&self) -> String {
        let ours = self.id.and_then(|id| self.ours.get(id)).map(|ours| (ours.state(), ours.end()));
        let theirs = self.sockets.get::<tcp::Socket<'_>>(self.handle).state();
        format!("{:?} {ours:?} {theirs} {:?} {:?}", self.now, self.written, self.read)
    }

    fn is_over(&self) -> bool {
        let theirs = self.sockets.get::<tcp::Socket<'_>>(self.handle);
        let ours = self
            .id
            .is_some_and(|id| self.ours.get(id).is_none_or(|ours| ours.state() == State::TimeWait));
        ours && !theirs.is_open()
    }

    fn our_program(&mut self) {
        let listener = ListenerId { port: 80, address: None };
        self.id = self.id.or_else(|| self.ours.accept(listener));
        let Some(id) = self.id else {
            return;
        };
        let (now, all) = (self.now, self.case.bytes);
        let (written, read) = (&mut self.written[0], &mut self.read[0]);
        self.ours.with(id, |ours| {
            assert_eq!(ours.end(), None, "ours gave up");
            while let Some(received) = ours.receive() {
                for found in received.as_ref() {
                    assert_eq!(*found, byte(*read), "byte {read}");
                    *read += 1;
                }
            }
            while *written < all[0] && ours.send_room() > 0 {
                let end = (*written + 3000).min(all[0]);
                ours.send((*written..end).map(byte).collect(), now).unwrap();
                *written = end;
            }
            if *written == all[0] && ours.state() != State::SynSent {
                ours.shut_down();
            }
            if ours.is_at_end() && ours.state().has_sent_fin() {
                ours.close(now);
            }
        });
    }

    fn their_program(&mut self) {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.handle);
        while socket.can_recv() {
            let mut chunk = [0; 2000];
            let len = socket.recv_slice(&mut chunk).unwrap();
            for found in &chunk[..len] {
                assert_eq!(*found, byte(self.read[1]));
                self.read[1] += 1;
            }
        }
        let (written, all) = (&mut self.written[1], self.case.bytes[1]);
        while *written < all && socket.can_send() {
            let end = (*written + 1000).min(all);
            let chunk: Vec<u8> = (*written..end).map(byte).collect();
            *written += socket.send_slice(&chunk).unwrap();
        }
        let ended = socket.state() == tcp::State::CloseWait || self.read[1] == self.case.bytes[0];
        if *written == all && socket.may_send() && ended {
            socket.close();
        }
    }

    fn transmit(&mut self) {
        self.theirs.poll(instant(self.now), &mut self.port, &mut self.sockets);
        while let Some(packet) = self.port.sent.pop_front() {
            self.send(true, packet);
        }
        while let Some(transmit) = self.ours.poll_transmit(self.now) {
            let len = transmit.header.emit(0).as_slice().len() + transmit.payload_bytes();
            let len = u16::try_from(len).unwrap();
            let pseudo = Sum::pseudo_v4(OURS, THEIRS, 6, len);
            let ip = Ipv4 {
                traffic_class: 0,
                id: 0,
                dont_fragment: true,
                hop_limit: 64,
                protocol: 6,
                src: OURS,
                dst: THEIRS,
            };
            let mut packet = ip.emit(len).to_vec();
            packet.extend(transmit.header.emit_sum(pseudo, transmit.payload()).as_slice());
            packet.extend(transmit.payload().flatten());
            assert!(packet.len() <= 1500, "a packet of {} bytes", packet.len());
            self.send(false, packet);
        }
    }

    /// Puts a packet on the way, as the weather is.
    fn send(&mut self, to_us: bool, mut packet: Vec<u8>) {
        let Weather { lost, twice, overtaken, flipped } = self.case.weather;
        if self.random.chance(lost) {
            return;
        }
        if self.random.chance(flipped) {
            let bit = self.random.index(packet.len() * 8);
            packet[bit / 8] ^= 1 << (bit % 8);
        }
        for _ in 0..1 + u32::from(self.random.chance(twice)) {
            let late = if self.random.chance(overtaken) { self.random.below(LATE_NS) } else { 0 };
            let at = self.now.plus(DELAY).plus(Duration::from_nanos(late));
            self.count += 1;
            self.network.insert((at, self.count), (to_us, packet.clone()));
        }
    }

    fn deliver(&mut self) {
        while let Some(entry) = self.network.first_entry() {
            if entry.key().0 > self.now {
                return;
            }
            let (to_us, packet) = entry.remove();
            if !to_us {
                self.port.arrived.push_back(packet);
                continue;
            }
            let parsed = parse(&packet);
            assert!(parsed.is_some() || self.case.weather.flipped > 0, "their packet is right");
            let Some((ip, header, payload)) = parsed else { continue };
            let (local, remote) = (IpAddr::V4(ip.dst), IpAddr::V4(ip.src));
            let (local_port, remote_port) = (header.dst_port, header.src_port);
            let tuple = Tuple { local, local_port, remote, remote_port };
            let piece = Piece::whole(payload);
            let outcome = self.ours.on_segment(tuple, &header, piece, self.now);
            assert!(outcome == Outcome::Taken || self.is_over(), "{}", self.describe());
        }
    }
}

/// A packet of theirs, unless the network has changed it.
fn parse(packet: &[u8]) -> Option<(Ipv4, Tcp, Vec<u8>)> {
    let (ip, rest) = Ipv4::parse(packet).ok()?;
    let len = u16::try_from(rest.payload.len()).ok()?;
    let sum = Sum::pseudo_v4(ip.src, ip.dst, ip.protocol, len).with(rest.payload);
    let (header, payload) = Tcp::parse(rest.payload).filter(|_| sum.finish() == 0)?;
    Some((ip, header, payload.to_vec()))
}

#[test]
fn both_roles_carry_every_byte_to_and_from_another_implementation() {
    for seed in 0..12 {
        for they_connect in [false, true] {
            let all = Weather { lost: 10_000, twice: 20_000, overtaken: 50_000, flipped: 10_000 };
            for weather in [
                Weather::default(),
                Weather { lost: 10_000, ..Weather::default() },
                Weather { lost: 50_000, ..Weather::default() },
                Weather { twice: 100_000, ..Weather::default() },
                Weather { overtaken: 200_000, ..Weather::default() },
                Weather { flipped: 50_000, ..Weather::default() },
                all,
            ] {
                let their_buffer = [700, 4000, 65_535, 300_000][usize::try_from(seed % 4).unwrap()];
                let plain = seed % 3 == 0;
                let config = Config { time_stamps: !plain, sack: !plain, ..Config::default() };
                let bytes = [150_000, 60_000];
                let case = Case { seed, they_connect, bytes, weather, their_buffer, config };
                Meeting::new(case).run();
            }
        }
    }
}

#[test]
fn streams_of_one_direction_and_none_end_with_another_implementation() {
    for bytes in [[0, 0], [1, 0], [0, 1], [100_000, 0], [0, 100_000]] {
        for they_connect in [false, true] {
            let (seed, their_buffer) = (9, 8000);
            let weather = Weather { lost: 20_000, ..Weather::default() };
            let config = Config::default();
            Meeting::new(Case { seed, they_connect, bytes, weather, their_buffer, config }).run();
        }
    }
}
