//! Strangers that send to queue pair 1 of a process that has connections.

use crate::alone;
use adverb_rdmacm::{EventKind, EventQueue, Id, Parameters, Space, Transport, counters};
use adverb_wire::cm::{Addressing, Service, ServiceId, Small, Subject};
use adverb_wire::cm::{
    CommId, Datagram, Dreq, Exponent, Message, Path, PortSpace, Reason, Rej, Req, Rtu,
};
use adverb_wire::{
    Bth, Deth, Extension, Flow, Headers, ICRC_LEN, Mad, Opcode, Operation, Packet, Pad,
};
use adverb_wire::{PathMtu, Pkey, Psn, Qkey, Qpn, ROCE_PORT, Transport as Wire};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A host of its own address, with any socket.
pub(crate) struct Stranger(UdpSocket, [u8; 4]);

impl Stranger {
    pub(crate) fn new() -> Self {
        Self::at([127, 0, 0, 9], 0)
    }

    fn at(address: [u8; 4], port: u16) -> Self {
        Self(UdpSocket::bind((Ipv4Addr::from(address), port)).unwrap(), address)
    }

    /// Sends a payload to queue pair 1.
    pub(crate) fn send(&self, payload: &[u8], qkey: Qkey) {
        let from = self.0.local_addr().unwrap().port();
        let bth = Bth {
            opcode: Opcode::of(Wire::Ud, Operation::SendOnly).unwrap(),
            solicited: false,
            migrated: true,
            pad: Pad::for_len(payload.len()),
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp: Qpn::GSI,
            ack_request: false,
            keeps_early: false,
            psn: Psn::new(0),
        };
        let deth = Some(Deth { qkey, src_qp: Qpn::GSI });
        let headers = Headers { bth, deth, xrceth: None, extension: Extension::None };
        let flow = Flow::v4(self.1, [127, 0, 0, 1], from, ROCE_PORT);
        let mut datagram = Vec::new();
        Packet { headers, payload }.emit_into(&flow, 0, &mut datagram);
        let _ = self.0.send_to(&datagram, (Ipv4Addr::LOCALHOST, ROCE_PORT));
    }

    fn tell(&self, transaction: u64, message: Message) {
        self.send(&Datagram { transaction, message }.emit(), Qkey::GSI);
    }

    /// What comes for this host next; it has to have the port of RoCE.
    fn hear(&self) -> Message {
        let mut packet = [0; 2048];
        self.0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let len = self.0.recv(&mut packet).unwrap();
        Datagram::parse(&packet[Bth::LEN + Deth::LEN..len - ICRC_LEN]).unwrap().message
    }
}

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Waits until a count has come so far.
fn until(mut reached: impl FnMut() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < Duration::from_secs(60), "it does not come: {:?}", counters());
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn request(service_id: ServiceId, number: u32) -> Req {
    let addressing = Addressing {
        source: [127, 0, 0, 9].into(),
        source_port: 1,
        destination: [127, 0, 0, 1].into(),
    };
    let mut private = [0; 92];
    private[..36].copy_from_slice(&addressing.emit());
    Req {
        local_id: CommId(number),
        service_id,
        ca_guid: 1,
        qkey: Qkey(0),
        qpn: Qpn::new(number),
        responder_resources: 1,
        initiator_depth: 1,
        remote_response_timeout: Exponent::saturating(20),
        service: Service::Rc,
        flow_control: false,
        psn: Psn::new(0),
        local_response_timeout: Exponent::saturating(20),
        retries: Small::MAX,
        pkey: Pkey::DEFAULT,
        path_mtu: PathMtu::B1024,
        rnr_retries: Small::MAX,
        cm_retries: Small::MAX,
        srq: false,
        primary: Path::NONE,
        alternate: Path::NONE,
        private,
    }
}

const BACKLOG: u32 = 16;

/// The number of a queue pair that no other connection has: those of the last ones are remembered for a while.
pub(crate) fn fresh() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0x100);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// A connection of this process with itself, and its listener.
fn connected(queue: &EventQueue) -> (Id, Id, Id) {
    let listener = Id::new(queue, Space::Tcp, Transport::Rc, 0).unwrap();
    listener.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listener.listen(BACKLOG).unwrap();
    let id = Id::new(queue, Space::Tcp, Transport::Rc, 0).unwrap();
    id.resolve_addr(None, listener.local()).unwrap();
    id.resolve_route().unwrap();
    id.connect(&Parameters { qpn: fresh(), ..Parameters::default() }).unwrap();
    let mut passive = None;
    while !is_up(queue, &id, &mut passive) {}
    (listener, id, passive.unwrap())
}

fn is_up(queue: &EventQueue, id: &Id, passive: &mut Option<Id>) -> bool {
    let event = queue.next(Some(Duration::from_secs(60))).unwrap().expect("an event");
    match event.kind {
        EventKind::ConnectRequest => {
            event.id.accept(&Parameters { qpn: fresh(), ..Parameters::default() }).unwrap();
            *passive = Some(event.id);
        }
        EventKind::ConnectResponse => id.ready().unwrap(),
        EventKind::Established => return true,
        EventKind::Rejected | EventKind::Unreachable => panic!("{event:?}"),
        _ => {}
    }
    false
}

fn in_this_process(name: &str, test: fn()) {
    alone::alone(name, || {
        if alone::is_alone() {
            test();
        } else {
            println!("skipped: no network namespace of its own");
        }
    });
}

/// Goal: the flood of requests costs memory up to the backlog, and is counted; the connection that there is stays, and
/// when the program has refused what it has got, peers are let in again.
#[test]
fn a_flood_of_requests_is_bounded_and_counted_on_a_device() {
    in_this_process("hostile::a_flood_of_requests_is_bounded_and_counted_on_a_device", || {
        let queue = EventQueue::new().unwrap();
        let (listener, ..) = connected(&queue);
        let service = ServiceId::of_port(PortSpace::Tcp, listener.local().port());
        let (stranger, mut sent) = (Stranger::new(), 0);
        until(|| {
            for _ in 0..50 {
                sent += 1;
                stranger.tell(sent.into(), Message::Req(request(service, sent)));
            }
            counters().backlog_full >= 1000
        });
        let requests: Vec<_> = std::iter::from_fn(|| queue.try_next()).collect();
        assert_eq!(requests.len(), usize::try_from(BACKLOG).unwrap());
        drop(requests);
        connected(&queue);
    });
}

/// Goal: a stranger that guesses the names of a connection does not end it.
#[test]
fn forged_ends_are_dropped_and_counted_on_a_device() {
    in_this_process("hostile::forged_ends_are_dropped_and_counted_on_a_device", || {
        let queue = EventQueue::new().unwrap();
        let (_listener, id, passive) = connected(&queue);
        let stranger = Stranger::new();
        let mut random = Random(1);
        until(|| {
            for _ in 0..256 {
                let [a, b] = [(); 2].map(|()| CommId(u32::try_from(random.next() >> 32).unwrap()));
                let remote_qpn = Qpn::new(17);
                let dreq = Dreq { local_id: a, remote_id: b, remote_qpn, private: [0; 220] };
                stranger.tell(random.next(), Message::Dreq(dreq));
                stranger.tell(random.next(), refusal(a, b));
            }
            let counted = counters();
            counted.unknown + counted.forged > 2000
        });
        assert!(queue.try_next().is_none());
        id.disconnect().unwrap();
        let event = queue.next(Some(Duration::from_secs(60))).unwrap().unwrap();
        assert_eq!(event.kind, EventKind::Disconnected);
        drop(passive);
    });
}

fn refusal(local_id: CommId, remote_id: CommId) -> Message {
    Message::Rej(Rej {
        local_id,
        remote_id,
        subject: Subject::Rep,
        information_len: Small::ZERO,
        reason: Reason::STALE_CONNECTION,
        information: [0; 72],
        private: [0; 148],
    })
}

/// Goal: one that knows the names of a connection, but is at another address, does not end it, and neither does the peer with
/// another name or queue pair.
/// Method: the peer is a socket of this test. What is forged is right at last, but for its sender.
#[test]
fn right_names_from_a_wrong_address_end_nothing_on_a_device() {
    in_this_process("hostile::right_names_from_a_wrong_address_end_nothing_on_a_device", || {
        let queue = EventQueue::new().unwrap();
        let (listener, ..) = connected(&queue);
        let service = ServiceId::of_port(PortSpace::Tcp, listener.local().port());
        let next = || queue.next(Some(Duration::from_secs(60))).unwrap().expect("an event");
        let peer = Stranger::at([127, 0, 0, 9], ROCE_PORT);
        let (ours, qpn) = (CommId(0x1234_5678), Qpn::new(fresh()));
        peer.tell(9, Message::Req(Req { qpn, ..request(service, ours.0) }));
        let asked = next();
        assert_eq!(asked.kind, EventKind::ConnectRequest);
        let own = fresh();
        asked.id.accept(&Parameters { qpn: own, ..Parameters::default() }).unwrap();
        let Message::Rep(rep) = peer.hear() else { panic!("it was accepted") };
        let theirs = rep.local_id;
        peer.tell(9, Message::Rtu(Rtu { local_id: ours, remote_id: theirs, private: [0; 224] }));
        assert_eq!(next().kind, EventKind::Established);

        let forger = Stranger::at([127, 0, 0, 10], 0);
        let end = |local_id, remote_id, qpn| {
            let remote_qpn = Qpn::new(qpn);
            Message::Dreq(Dreq { local_id, remote_id, remote_qpn, private: [0; 220] })
        };
        let before = counters().forged;
        let forged = [
            (&forger, end(ours, theirs, own)),
            (&forger, refusal(ours, theirs)),
            (&peer, end(CommId(1), theirs, own)),
            (&peer, end(ours, theirs, own + 1)),
            (&peer, refusal(CommId(1), theirs)),
        ];
        for (count, (from, message)) in (1..).zip(forged) {
            from.tell(9, message);
            until(|| counters().forged == before + count);
        }
        assert!(queue.try_next().is_none());
        peer.tell(10, end(ours, theirs, own));
        assert_eq!(next().kind, EventKind::Disconnected, "the same from the peer");
    });
}

/// Goal: whatever is sent to queue pair 1, of any attribute and any length, the device goes on.
/// Method: each attribute with random bytes, all lengths, wrong keys, and half-true requests whose fields are random.
#[test]
fn nonsense_of_every_attribute_changes_nothing_on_a_device() {
    in_this_process("hostile::nonsense_of_every_attribute_changes_nothing_on_a_device", || {
        let queue = EventQueue::new().unwrap();
        let (listener, id, _passive) = connected(&queue);
        let service = ServiceId::of_port(PortSpace::Tcp, listener.local().port());
        let (stranger, mut random) = (Stranger::new(), Random(2));
        for round in 0..400_u64 {
            for attribute in 0..0x20_u16 {
                let mut data = [0; Mad::DATA_LEN];
                data.iter_mut().for_each(|byte| *byte = random.next().to_le_bytes()[0]);
                if attribute == 0x10 && round.is_multiple_of(2) {
                    data[8..16].copy_from_slice(&service.0.to_be_bytes());
                }
                let [method, class_version] = match round % 4 {
                    0 => [random.next().to_le_bytes()[0], 2],
                    1 => [Mad::SEND, random.next().to_le_bytes()[0]],
                    _ => [Mad::SEND, 2],
                };
                let mad = Mad {
                    class: Mad::COMMUNICATION,
                    class_version,
                    method,
                    status: 0,
                    class_specific: 0,
                    transaction: round,
                    attribute,
                    modifier: 0,
                };
                stranger.send(&mad.emit(&data), Qkey::GSI);
            }
            let len = usize::try_from(round * 2 % 1024).unwrap();
            stranger.send(&vec![7; len], Qkey::GSI);
            stranger.send(&[7; 256], Qkey(0x1111_1111));
            if round.is_multiple_of(16) {
                // Requests that are let in by chance are refused, so that there is room for others.
                while queue.try_next().is_some_and(|event| event.id != id) {}
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        until(|| counters().malformed > 100);
        while queue.try_next().is_some() {}
        drop((listener, id));
        while queue.next(Some(Duration::from_millis(100))).unwrap().is_some() {}
        connected(&queue);
    });
}
