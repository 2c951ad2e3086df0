//! Two ends of a connection, a network between them that a seed makes bad, and virtual time.
//!
//! After each event the invariants are checked: no byte beyond the window that its receiver has ever said, every
//! byte once and in order, and no more memory than the configuration says.

use std::collections::BTreeMap;
use std::time::Duration;

use adverb_fabric::Random;
use adverb_tcpip::Time;
use adverb_tcpip::tcp::{Config, Connection, End, Flags, Names, Piece, Seq, State, Tcp};
use adverb_wire::ip::Sum;

/// What the network does to segments, in millionths of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    pub(crate) lost: u32,
    pub(crate) twice: u32,
    /// Delivered up to `late` later than others.
    pub(crate) overtaken: u32,
    /// One bit differs.
    pub(crate) flipped: u32,
}

/// A network: delay, rate and queue in each direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) delay: Duration,
    /// Bytes a second; 0 is no limit.
    pub(crate) rate: u64,
    /// Bytes that wait for the link; what is more is lost.
    pub(crate) queue_bytes: u64,
    pub(crate) late: Duration,
    pub(crate) weather: Weather,
    /// Longer packets are lost, as a router with a narrow link would do.
    pub(crate) mtu: usize,
    /// Nothing arrives at this side.
    pub(crate) cut_to: Option<usize>,
}

impl Default for Path {
    fn default() -> Self {
        let (delay, late) = (Duration::from_millis(5), Duration::from_millis(4));
        let weather = Weather::default();
        Self { delay, rate: 0, queue_bytes: u64::MAX, late, weather, mtu: usize::MAX, cut_to: None }
    }
}

/// What a program does with its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Bytes to send.
    pub(crate) bytes: u64,
    /// The longest chunk.
    pub(crate) chunk_max: u64,
    /// The longest pause between two steps.
    pub(crate) pause: Duration,
    /// Pieces read in a step, at most.
    pub(crate) reads: u64,
}

/// One end and its program.
pub(crate) struct Side {
    pub(crate) connection: Connection<Vec<u8>>,
    pub(crate) plan: Plan,
    pub(crate) written: u64,
    pub(crate) read: u64,
    next_step: Time,
    /// The furthest sequence number that this side has allowed, and its scale.
    allowed: Option<Seq>,
    scale: u8,
    link_free: Time,
    pub(crate) segments: u64,
    pub(crate) payload_bytes: u64,
    /// Segments with more bytes than this, and what this is.
    pub(crate) long: u64,
    pub(crate) long_from: usize,
    salt: u8,
    receive_bytes_max: u32,
}

/// Both ends.
pub(crate) struct Pair {
    pub(crate) sides: [Side; 2],
    pub(crate) path: Path,
    pub(crate) now: Time,
    network: BTreeMap<(Time, u64), (usize, Vec<u8>)>,
    count: u64,
    random: Random,
    pub(crate) trace: Vec<String>,
    pub(crate) traced: bool,
}

/// The shortest pause between two steps of a program, in nanoseconds.
const PAUSE_MIN: u64 = 200_000;

/// Both ends of the network, for checksums.
const ADDRESS: std::net::Ipv4Addr = std::net::Ipv4Addr::LOCALHOST;

fn pattern(salt: u8, at: u64) -> u8 {
    let [.., b1, b0] = at.to_be_bytes();
    b0.wrapping_mul(31) ^ b1.wrapping_mul(17) ^ salt
}

fn names(local_port: u16, remote_port: u16, first: u32) -> Names {
    let first = Seq::new(first);
    Names { local_port, remote_port, ip_header_bytes: 20, first, stamp_origin: first.bits() }
}

impl Side {
    fn new(connection: Connection<Vec<u8>>, plan: Plan, salt: u8, config: &Config) -> Self {
        Self {
            receive_bytes_max: config.receive_bytes_max,
            connection,
            plan,
            written: 0,
            read: 0,
            next_step: Time::ZERO,
            allowed: None,
            scale: 0,
            link_free: Time::ZERO,
            segments: 0,
            payload_bytes: 0,
            long: 0,
            long_from: usize::MAX,
            salt,
        }
    }

    /// A step of the program.
    fn step(&mut self, peer_salt: u8, random: &mut Random, now: Time) {
        for _ in 0..self.plan.reads {
            let Some(received) = self.connection.receive() else {
                break;
            };
            for byte in received.as_ref() {
                assert_eq!(*byte, pattern(peer_salt, self.read), "byte {}", self.read);
                self.read += 1;
            }
        }
        while self.written < self.plan.bytes && self.connection.send_room() > 0 {
            let len = random.between(1, self.plan.chunk_max).min(self.plan.bytes - self.written);
            let chunk = (self.written..self.written + len).map(|at| pattern(self.salt, at));
            if self.connection.send(chunk.collect(), now).is_err() {
                break;
            }
            self.written += len;
        }
        if self.written == self.plan.bytes && self.connection.state() != State::SynSent {
            self.connection.shut_down();
        }
        let state = self.connection.state();
        if self.connection.is_at_end() && (state.has_sent_fin() || state == State::Closed) {
            self.connection.close(now);
        }
        let pause = u64::try_from(self.plan.pause.as_nanos()).unwrap_or(u64::MAX);
        self.next_step =
            now.plus(Duration::from_nanos(random.between(PAUSE_MIN, pause.max(PAUSE_MIN))));
    }

    fn is_done(&self) -> bool {
        self.connection.state() == State::Closed && self.connection.is_orphaned()
    }
}

impl Pair {
    /// A client, its SYN not yet sent, and a server that answers it when it comes.
    pub(crate) fn new(seed: u64, config: [Config; 2], plans: [Plan; 2], path: Path) -> Self {
        let mut random = Random::new(seed);
        let mut first = || u32::try_from(random.bits() >> 32).unwrap_or_default();
        let (client, server) = (names(1000, 80, first()), names(80, 1000, first()));
        let mut client = Connection::connect(&config[0], client, Time::ZERO);
        let syn = client.poll_transmit(Time::ZERO).expect("a SYN");
        let server = Connection::answer(&config[1], server, &syn.header, Time::ZERO);
        let sides = [
            Side::new(client, plans[0], 0x5a, &config[0]),
            Side::new(server, plans[1], 0xc3, &config[1]),
        ];
        let mut pair = Self {
            sides,
            path,
            now: Time::ZERO,
            network: BTreeMap::new(),
            count: 0,
            random,
            trace: Vec::new(),
            traced: false,
        };
        pair.note_window(0, &syn.header);
        pair
    }

    /// Runs until both ends are closed, or `limit` has passed.
    pub(crate) fn run(&mut self, limit: Duration) {
        let end = Time::ZERO.plus(limit);
        while !self.sides.iter().all(Side::is_done) {
            assert!(self.now <= end, "not over after {limit:?}: {}", self.describe());
            self.step();
        }
    }

    /// What both ends are at.
    pub(crate) fn describe(&self) -> String {
        let side = |side: &Side| {
            let (state, end) = (side.connection.state(), side.connection.end());
            format!("{state:?} {end:?}, {} written, {} read", side.written, side.read)
        };
        let [client, server] = &self.sides;
        format!("{:?} client {}; server {}", self.now, side(client), side(server))
    }

    /// Neither end gave up, and all bytes have arrived.
    pub(crate) fn assert_complete(&self) {
        let [client, server] = &self.sides;
        assert_eq!((client.connection.end(), server.connection.end()), (None, None));
        assert_eq!((client.read, server.read), (server.plan.bytes, client.plan.bytes));
    }

    /// Lets all that is due happen, and time pass until the next event.
    pub(crate) fn step(&mut self) {
        for at in [0, 1] {
            self.serve(at);
        }
        if self.sides.iter().all(Side::is_done) {
            return;
        }
        let arrival = self.network.keys().next().map(|(at, _)| *at);
        let clocks = self.sides.iter().flat_map(|side| {
            let step = (!side.connection.is_orphaned()).then_some(side.next_step);
            [side.connection.next_deadline(), step]
        });
        let Some(next) = clocks.flatten().chain(arrival).min() else {
            panic!("nothing will ever happen: {}", self.describe());
        };
        assert!(next >= self.now || arrival.is_none_or(|at| at > self.now), "time runs back");
        self.now = self.now.max(next);
        while let Some(entry) = self.network.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, bytes) = entry.remove();
            self.deliver(to, &bytes);
        }
    }

    fn serve(&mut self, at: usize) {
        let (now, peer_salt) = (self.now, self.sides[1 - at].salt);
        let side = &mut self.sides[at];
        if side.connection.next_deadline().is_some_and(|deadline| deadline <= now) {
            side.connection.on_time(now);
        }
        if side.next_step <= now && !side.connection.is_orphaned() {
            side.step(peer_salt, &mut self.random, now);
        }
        self.transmit(at);
    }

    fn transmit(&mut self, at: usize) {
        for round in 0.. {
            assert!(round < 100_000, "no end of segments: {}", self.describe());
            let is_calm = self.sides[at].connection.is_calm(self.now);
            let departure = self.sides[at].connection.poll_transmit(self.now);
            assert!(!is_calm || departure.is_none(), "a calm connection has something to send");
            let Some(departure) = departure else {
                break;
            };
            let pseudo = |len| Sum::pseudo_v4(ADDRESS, ADDRESS, 6, len);
            let payload = self.sides[at].connection.payload(&departure);
            let bytes = payload.clone().flatten().count();
            assert_eq!(bytes, departure.payload_bytes(), "all of the payload is there");
            let len = departure.header.emit(0).as_slice().len() + bytes;
            let pseudo = pseudo(u16::try_from(len).unwrap());
            let head = departure.header.emit_sum(pseudo, payload.clone());
            let mut segment = head.as_slice().to_vec();
            segment.extend(payload.flatten());
            self.sides[at].segments += 1;
            self.sides[at].payload_bytes += u64::try_from(bytes).unwrap();
            self.sides[at].long += u64::from(bytes > self.sides[at].long_from);
            self.check_departure(at, &departure.header, bytes);
            self.send(1 - at, segment);
        }
    }

    /// No byte leaves that the peer has not allowed.
    fn check_departure(&mut self, at: usize, header: &Tcp, bytes: usize) {
        if self.traced {
            let (seq, ack) = (header.seq.bits(), header.ack.bits());
            let line = format!("{:?} {at} {:?} {seq} +{bytes} ack {ack}", self.now, header.flags);
            self.trace.push(line);
        }
        let end = header.seq.plus(u32::try_from(bytes).unwrap());
        if let (true, Some(allowed)) = (bytes > 0, self.sides[1 - at].allowed) {
            assert!(end.since(allowed) <= 0, "beyond the window: {}", self.describe());
        }
        self.note_window(at, header);
        let connection = &self.sides[at].connection;
        assert!(connection.remembered() < 200_000);
    }

    fn note_window(&mut self, at: usize, header: &Tcp) {
        let side = &mut self.sides[at];
        let syn = header.flags.has(Flags::SYN);
        if syn {
            side.scale = header.options.window_scale.unwrap_or(0);
        }
        if header.flags.has(Flags::ACK) {
            let window = u32::from(header.window) << if syn { 0 } else { side.scale };
            let edge = header.ack.plus(window);
            if side.allowed.is_none_or(|allowed| edge.since(allowed) > 0) {
                side.allowed = Some(edge);
            }
        }
    }

    /// Puts a segment on the way to a side.
    fn send(&mut self, to: usize, mut segment: Vec<u8>) {
        let Path { delay, rate, queue_bytes, late, weather, mtu, cut_to } = self.path;
        let len = u64::try_from(segment.len() + 20).unwrap();
        let side = &mut self.sides[1 - to];
        let mut at = self.now;
        if rate > 0 {
            let span = |bytes: u64| Duration::from_nanos(bytes * 1_000_000_000 / rate);
            let free = side.link_free.max(self.now);
            if free.since(self.now) > span(queue_bytes.min(1 << 30)) {
                return;
            }
            at = free.plus(span(len));
            side.link_free = at;
        }
        if self.random.chance(weather.lost) || segment.len() + 20 > mtu || cut_to == Some(to) {
            return;
        }
        if self.random.chance(weather.flipped) {
            let bit = self.random.index(segment.len() * 8);
            segment[bit / 8] ^= 1 << (bit % 8);
        }
        at = at.plus(delay);
        if self.random.chance(weather.overtaken) {
            let late = u64::try_from(late.as_nanos()).unwrap();
            at = at.plus(Duration::from_nanos(self.random.below(late)));
        }
        if self.random.chance(weather.twice) {
            self.count += 1;
            let again = at.plus(Duration::from_nanos(self.random.below(20_000_000)));
            self.network.insert((again, self.count), (to, segment.clone()));
        }
        self.count += 1;
        self.network.insert((at, self.count), (to, segment));
    }

    fn deliver(&mut self, to: usize, segment: &[u8]) {
        let len = u16::try_from(segment.len()).unwrap();
        if Sum::pseudo_v4(ADDRESS, ADDRESS, 6, len).with(segment).finish() != 0 {
            return;
        }
        let Some((header, payload)) = Tcp::parse(segment) else {
            return;
        };
        let piece = Piece::whole(payload.to_vec());
        let reply = self.sides[to].connection.on_segment(&header, piece, self.now);
        if let Some(reset) = reply {
            let head = reset.emit_sum(Sum::pseudo_v4(ADDRESS, ADDRESS, 6, 20), [].into_iter());
            self.send(1 - to, head.as_slice().to_vec());
        }
        let side = &self.sides[to];
        let unread = side.connection.readable_bytes();
        let most = u64::from(side.receive_bytes_max) + (1 << side.scale);
        assert!(unread <= most, "{unread} bytes wait, {most} may");
        self.transmit(to);
    }

    /// One side has been reset by the other.
    pub(crate) fn ends(&self) -> [Option<End>; 2] {
        [self.sides[0].connection.end(), self.sides[1].connection.end()]
    }
}
