//! Another process that sends mutations of every message of connection management, while this one serves.

use crate::alone;
use crate::child::Child;
use crate::hostile::{Random, Stranger, fresh, request};
use adverb_rdmacm::{EventKind, EventQueue, Id, Parameters, Private, Space, Transport, counters};
use adverb_wire::cm::{
    Apr, CommId, Datagram, Drep, Dreq, Exponent, Lap, Message, Mra, Path, PortSpace, Reason, Rej,
    Rep, Rtu, ServiceId, SidrRep, SidrReq, SidrStatus, Small, Subject,
};
use adverb_wire::{Mad, Pkey, Psn, Qkey, Qpn};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Sends until it is killed, and says how often, now and then.
pub(crate) fn send(port: u16, seed: u64) {
    let (stranger, mut random) = (Stranger::new(), Random(seed));
    let service = ServiceId::of_port(PortSpace::Tcp, port);
    for round in 1_u64.. {
        for message in messages(service, &mut random) {
            let mut bytes = Datagram { transaction: random.next(), message }.emit().to_vec();
            let qkey = mutate(&mut bytes, &mut random);
            stranger.send(&bytes, qkey);
        }
        if round.is_multiple_of(64) {
            std::thread::sleep(Duration::from_millis(1)); // What finds no room in the socket tries nothing.
        }
    }
}

/// Each message once, with names that may mean a connection.
fn messages(service_id: ServiceId, random: &mut Random) -> [Message; 11] {
    let mut number = || u32::try_from(random.next() >> 32).unwrap();
    let [local_id, remote_id, qpn] = [number(), number(), number() & 0x00ff_ffff];
    let (local_id, remote_id, qpn) = (CommId(local_id), CommId(remote_id), Qpn::new(qpn));
    let (request_id, subject) = (remote_id, Subject::Rep);
    let rep = Rep {
        local_id,
        remote_id,
        qkey: Qkey(0),
        qpn,
        psn: Psn::new(1),
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: Exponent::MAX,
        failover: Small::ZERO,
        flow_control: false,
        rnr_retries: Small::MAX,
        srq: false,
        ca_guid: 1,
        private: [1; 196],
    };
    let rej = Rej {
        local_id,
        remote_id,
        subject,
        information_len: Small::ZERO,
        reason: Reason::STALE_CONNECTION,
        information: [0; 72],
        private: [0; 148],
    };
    let lap = Lap {
        local_id,
        remote_id,
        remote_qpn: qpn,
        response_timeout: Exponent::MAX,
        alternate: Path::NONE,
        private: [0; 168],
    };
    let apr = Apr {
        local_id,
        remote_id,
        information_len: 72,
        status: 0,
        information: [1; 72],
        private: [0; 148],
    };
    let found = SidrRep {
        request_id,
        status: SidrStatus::VALID,
        information_len: 0,
        qpn,
        service_id,
        qkey: Qkey(1),
        information: [0; 72],
        private: [0; 136],
    };
    let mra =
        Mra { local_id, remote_id, subject, service_timeout: Exponent::MAX, private: [0; 222] };
    [
        Message::Req(request(service_id, local_id.0)),
        Message::Mra(mra),
        Message::Rej(rej),
        Message::Rep(rep),
        Message::Rtu(Rtu { local_id, remote_id, private: [0; 224] }),
        Message::Dreq(Dreq { local_id, remote_id, remote_qpn: qpn, private: [0; 220] }),
        Message::Drep(Drep { local_id, remote_id, private: [0; 224] }),
        Message::SidrReq(SidrReq {
            request_id,
            pkey: Pkey::DEFAULT,
            service_id,
            private: [0; 216],
        }),
        Message::SidrRep(found),
        Message::Lap(lap),
        Message::Apr(apr),
    ]
}

/// Changes up to seven bytes, and at times the length or the key, which is the answer.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) -> Qkey {
    for _ in 0..random.next() % 8 {
        let [at, value, ..] = random.next().to_le_bytes();
        bytes[usize::from(at)] = value;
    }
    match random.next() % 64 {
        0 => bytes.truncate(usize::from(random.next().to_le_bytes()[0])),
        1 => bytes.extend([7; 64]),
        2 => return Qkey(1),
        _ => {}
    }
    Qkey::GSI
}

const FRIEND: &[u8] = b"a friend";

/// Both ends of the connections of this process.
struct Serving {
    listener: Id,
    server: EventQueue,
    client: EventQueue,
}

impl Serving {
    fn new() -> Self {
        let [server, client] = [(); 2].map(|()| EventQueue::new().unwrap());
        let listener = Id::new(&server, Space::Tcp, Transport::Rc, 0).unwrap();
        listener.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        listener.listen(64).unwrap();
        Self { listener, server, client }
    }

    /// Makes a connection, among the requests of strangers, and ends it.
    fn meet(&self) {
        let id = Id::new(&self.client, Space::Tcp, Transport::Rc, 0).unwrap();
        id.resolve_addr(None, self.listener.local()).unwrap();
        id.resolve_route().unwrap();
        let private = Private::new(FRIEND).unwrap();
        id.connect(&Parameters { qpn: fresh(), private, ..Parameters::default() }).unwrap();
        let (start, mut passive, mut is_up) = (Instant::now(), None, false);
        while !is_up {
            assert!(start.elapsed() < PATIENCE, "no connection within a minute: {:?}", counters());
            while let Some(event) = self.client.try_next() {
                match event.kind {
                    EventKind::ConnectResponse => id.ready().unwrap(),
                    EventKind::Rejected | EventKind::Unreachable => panic!("{event:?}"),
                    _ => {}
                }
            }
            let Some(event) = self.server.next(Some(Duration::from_millis(1))).unwrap() else {
                continue;
            };
            match event.kind {
                EventKind::ConnectRequest if is_friendly(&event) => {
                    let answer = Parameters { qpn: fresh(), ..Parameters::default() };
                    event.id.accept(&answer).unwrap();
                    passive = Some(event.id);
                }
                EventKind::Established => is_up = passive.as_ref() == Some(&event.id),
                _ => {} // The request of a stranger is refused by dropping it.
            }
        }
    }
}

fn is_friendly(event: &adverb_rdmacm::Event) -> bool {
    match event.param {
        adverb_rdmacm::Param::Connection(with) => with.private.as_slice().starts_with(FRIEND),
        _ => false,
    }
}

/// Pages of memory that this process has.
fn resident() -> u64 {
    let said = std::fs::read_to_string("/proc/self/statm").unwrap();
    said.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Goal: whatever another process sends, of any attribute, connections are made and memory does not grow.
/// `ADVERB_CM_FUZZ_SECONDS` for longer than three seconds.
#[test]
fn connections_are_made_while_another_process_sends_mutations() {
    alone::alone("attack::connections_are_made_while_another_process_sends_mutations", || {
        if !alone::is_alone() {
            println!("skipped: no network namespace of its own");
            return;
        }
        let seconds =
            std::env::var("ADVERB_CM_FUZZ_SECONDS").map_or(3, |text| text.parse().unwrap());
        let serving = Serving::new();
        serving.meet();
        let task = format!("attack {} {}", serving.listener.local().port(), seconds);
        let mut attacker = Child::start(crate::here(), &task);
        let (start, mut half, mut made) = (Instant::now(), None, 0);
        while start.elapsed() < Duration::from_secs(seconds) {
            serving.meet();
            made += 1;
            if half.is_none() && start.elapsed() > Duration::from_secs(seconds) / 2 {
                half = Some(resident());
            }
        }
        attacker.kill();
        let grown = resident().saturating_sub(half.unwrap_or(u64::MAX)) * PAGE_BYTES;
        assert!(grown < GROWTH_BYTES_MAX, "{grown} bytes more in the second half");
        let counted = counters();
        println!("{made} connections among {counted:?}");
        assert!(counted.malformed > 0 && counted.unknown > 0, "{counted:?}");
        serving.meet();
    });
}

const PATIENCE: Duration = Duration::from_secs(60);
const PAGE_BYTES: u64 = 4096;
/// What a process that goes on may need: connections that are over are known for two seconds.
const GROWTH_BYTES_MAX: u64 = 32 << 20;
const _: () = assert!(Mad::DATAGRAM_LEN == 256, "a byte is an index into a datagram");
