//! Two managers and the datagrams between them, one at a time.

use adverb_cm::{Accept, Answer, Config, Connect, Error, Event, Gid, Manager, Resolve, Transmit};
use adverb_wire::cm::{
    CommId, Datagram, Dreq, Message, PortSpace, Reason, Rej, ServiceId, SidrStatus, Small, Subject,
};
use adverb_wire::{Mad, Psn, Qkey, Qpn};
use core::time::Duration;

const A: Gid = [1; 16];
const B: Gid = [2; 16];
const STRANGER: Gid = [3; 16];
const PORT: u16 = 7174;
const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Tcp, PORT);
const LATER: Duration = Duration::from_secs(200);
const START: Duration = Duration::ZERO;

fn managers() -> (Manager, Manager) {
    let (a, mut b) = (Manager::new(Config::default(), 1), Manager::new(Config::default(), 2));
    b.listen(SERVICE, None, 2).expect("a first listener");
    (a, b)
}

fn request(qpn: u32) -> Connect {
    Connect::new(A, B, PORT, Qpn::new(qpn), Psn::new(0xff_ffff))
}

fn sent(from: &mut Manager) -> Vec<Transmit> {
    std::iter::from_fn(|| from.poll_transmit()).collect()
}

fn events(of: &mut Manager) -> Vec<Event> {
    std::iter::from_fn(|| of.poll_event()).collect()
}

/// Carries everything that waits from one to the other, once.
fn carry(from: &mut Manager, to: &mut Manager, now: Duration) -> usize {
    let all = sent(from);
    for Transmit { local, peer, datagram, .. } in &all {
        to.on_datagram(*peer, *local, datagram, now);
    }
    all.len()
}

/// A connection that both sides can use: its names at A and at B.
fn connected(a: &mut Manager, b: &mut Manager, qpn: u32) -> (CommId, CommId) {
    let id = a.connect(&request(qpn), START).expect("there is room");
    carry(a, b, START);
    let [Event::ConnectRequest { id: passive, request, peer: A, local: B, .. }] = events(b)[..]
    else {
        panic!("no request")
    };
    b.accept(passive, &Accept::new(&request, Qpn::new(qpn + 100), Psn::new(1)), START)
        .expect("it was asked for");
    carry(b, a, START);
    assert!(matches!(events(a)[..], [Event::ConnectResponse { .. }]));
    a.ready(id).expect("it was accepted");
    carry(a, b, START);
    assert_eq!(events(b), [Event::Established { id: passive }]);
    (id, passive)
}

#[test]
fn two_sides_connect_part_and_forget() {
    let (mut a, mut b) = managers();
    let (id, passive) = connected(&mut a, &mut b, 0x11);
    a.disconnect(id, START).unwrap();
    assert_eq!(a.disconnect(id, START), Err(Error::State));
    carry(&mut a, &mut b, START);
    carry(&mut b, &mut a, START);
    assert_eq!(events(&mut a), [Event::Disconnected { id }]);
    assert_eq!(events(&mut b), [Event::Disconnected { id: passive }]);
    a.on_time(LATER);
    b.on_time(LATER);
    assert_eq!(events(&mut a), [Event::TimewaitExit { id }]);
    assert_eq!(events(&mut b), [Event::TimewaitExit { id: passive }]);
    assert_eq!((a.connections(), b.connections()), (0, 0));
    assert_eq!((a.next_deadline(), b.next_deadline()), (None, None));
}

#[test]
fn what_nothing_listens_on_is_refused_by_name() {
    let (mut a, mut b) = managers();
    let other = Connect { service_id: ServiceId::of_port(PortSpace::Tcp, 9), ..request(1) };
    let id = a.connect(&other, START).unwrap();
    carry(&mut a, &mut b, START);
    carry(&mut b, &mut a, START);
    let [Event::Rejected { id: refused, reason: Reason::INVALID_SERVICE_ID, .. }] =
        events(&mut a)[..]
    else {
        panic!("not refused")
    };
    assert_eq!((refused, a.connections(), b.connections()), (id, 0, 0));
}

#[test]
fn a_user_refuses_with_words_of_its_own() {
    let (mut a, mut b) = managers();
    a.connect(&request(1), START).unwrap();
    carry(&mut a, &mut b, START);
    let [event] = events(&mut b)[..] else { panic!("one request") };
    b.reject(event.id(), Reason::CONSUMER, [7; 148]).unwrap();
    carry(&mut b, &mut a, START);
    let refusals = events(&mut a);
    assert!(matches!(
        refusals[..],
        [Event::Rejected { reason: Reason::CONSUMER, private: [7, ..], .. }]
    ));
    assert_eq!((a.connections(), b.connections()), (0, 0));
}

#[test]
fn lost_messages_are_sent_again_and_repeated_ones_answered_again() {
    let (mut a, mut b) = managers();
    let id = a.connect(&request(1), START).unwrap();
    assert_eq!(sent(&mut a).len(), 1); // Lost.
    let first = a.next_deadline().unwrap();
    a.on_time(first);
    carry(&mut a, &mut b, first);
    let [Event::ConnectRequest { id: passive, request, .. }] = events(&mut b)[..] else {
        panic!("one request")
    };
    b.accept(passive, &Accept::new(&request, Qpn::new(9), Psn::new(1)), first).unwrap();
    assert_eq!(sent(&mut b).len(), 1); // Lost.
    a.on_time(a.next_deadline().unwrap());
    carry(&mut a, &mut b, first);
    assert_eq!(carry(&mut b, &mut a, first), 1); // The reply, again.
    assert_eq!(events(&mut a).len(), 1);
    a.ready(id).unwrap();
    assert_eq!(sent(&mut a).len(), 1); // Lost.
    b.on_time(b.next_deadline().unwrap());
    carry(&mut b, &mut a, first);
    assert_eq!(carry(&mut a, &mut b, first), 1); // "Ready", again.
    assert_eq!(events(&mut b), [Event::Established { id: passive }]);
    assert_eq!((a.counters().resent, b.counters().resent), (2, 1));
}

#[test]
fn a_peer_that_never_answers_is_unreachable_after_all_retries() {
    let (mut a, _) = managers();
    let id = a.connect(&request(1), START).unwrap();
    let mut datagrams = 0;
    while let Some(at) = a.next_deadline() {
        datagrams += sent(&mut a).len();
        a.on_time(at);
    }
    assert_eq!(datagrams, 16); // And then the news that it has given up.
    assert_eq!(sent(&mut a).len(), 1);
    assert_eq!(events(&mut a), [Event::Unreachable { id }]);
    assert_eq!(a.connections(), 0);
}

#[test]
fn a_slow_user_is_waited_for() {
    let (mut a, mut b) = managers();
    a.connect(&request(1), START).unwrap();
    carry(&mut a, &mut b, START);
    let first = a.next_deadline().unwrap();
    a.on_time(first); // The request again: the user has not answered.
    carry(&mut a, &mut b, first);
    assert_eq!(carry(&mut b, &mut a, first), 1); // MRA
    let patient = a.next_deadline().unwrap();
    assert!(patient >= first + Duration::from_nanos(4096 << 24));
}

#[test]
fn messages_from_elsewhere_or_with_other_names_change_nothing() {
    let (mut a, mut b) = managers();
    let (id, passive) = connected(&mut a, &mut b, 0x11);
    let good =
        Dreq { local_id: id, remote_id: passive, remote_qpn: Qpn::new(0x75), private: [0; 220] };
    let rej = Rej {
        local_id: id,
        remote_id: passive,
        subject: Subject::Other,
        information_len: Small::ZERO,
        reason: Reason::CONSUMER,
        information: [0; 72],
        private: [0; 148],
    };
    let forgeries = [
        (STRANGER, Message::Dreq(good)),
        (A, Message::Dreq(Dreq { local_id: CommId(5), ..good })),
        (A, Message::Dreq(Dreq { remote_qpn: Qpn::new(0x11), ..good })),
        (STRANGER, Message::Rej(rej)),
        (A, Message::Rej(Rej { local_id: CommId(5), ..rej })),
    ];
    for (count, (peer, message)) in (1..).zip(forgeries) {
        b.on_datagram(B, peer, &Datagram { transaction: 1, message }.emit(), START);
        assert_eq!(b.counters().forged, count, "{message:?}");
        assert_eq!((events(&mut b), sent(&mut b)), (vec![], vec![]), "{message:?}");
    }
    let message = Message::Dreq(good);
    b.on_datagram(B, A, &Datagram { transaction: 1, message }.emit(), START);
    assert_eq!(events(&mut b), [Event::Disconnected { id: passive }]); // The test can fail.
}

/// Goal: requests cost memory up to the backlog, whether or not events are taken, and no more.
#[test]
fn a_flood_of_requests_is_bounded_and_counted() {
    let (mut a, mut b) = managers();
    for qpn in 1..=1000 {
        a.connect(&request(qpn), START).unwrap();
    }
    carry(&mut a, &mut b, START);
    assert_eq!((b.connections(), b.counters().backlog_full), (2, 998));
    // A peer that gives up makes no room while the user has not heard of its request.
    let ids: Vec<_> = events(&mut a);
    assert!(ids.is_empty());
    a.on_time(LATER);
    for _ in 0..20 {
        a.on_time(a.next_deadline().unwrap_or(LATER));
        carry(&mut a, &mut b, LATER);
        sent(&mut b);
    }
    assert!(b.connections() <= 2, "{}", b.connections());
}

/// Goal: a peer that has forgotten can connect again, and what is left of the old connection ends.
#[test]
fn a_peer_that_has_forgotten_is_told_that_the_old_connection_is_stale() {
    let (mut a, mut b) = managers();
    let (_, passive) = connected(&mut a, &mut b, 0x11);
    let mut reborn = Manager::new(Config::default(), 77);
    reborn.connect(&request(0x11), START).unwrap();
    carry(&mut reborn, &mut b, START);
    carry(&mut b, &mut reborn, START);
    assert_eq!(events(&mut b), [Event::Disconnected { id: passive }]);
    let refused = events(&mut reborn);
    assert!(matches!(refused[..], [Event::Rejected { reason: Reason::STALE_CONNECTION, .. }]));
    b.on_time(LATER);
    events(&mut b);
    connected(&mut reborn, &mut b, 0x11);
}

#[test]
fn the_end_of_what_is_forgotten_is_agreed_to() {
    let (mut a, mut b) = managers();
    let (id, _) = connected(&mut a, &mut b, 0x11);
    let mut reborn = Manager::new(Config::default(), 78);
    a.disconnect(id, START).unwrap();
    carry(&mut a, &mut reborn, START);
    carry(&mut reborn, &mut a, START);
    assert_eq!(events(&mut a), [Event::Disconnected { id }]);
}

#[test]
fn queue_pairs_of_datagrams_are_found() {
    let (mut a, mut b) = managers();
    let service_id = ServiceId::of_port(PortSpace::Udp, PORT);
    b.listen(service_id, None, 1).unwrap();
    let what = Resolve { local: A, peer: B, traffic_class: 0, service_id, private: [1; 216] };
    let id = a.resolve(&what, START).unwrap();
    carry(&mut a, &mut b, START);
    let [Event::ResolveRequest { id: asked, request, .. }] = events(&mut b)[..] else {
        panic!("no search")
    };
    assert_eq!((request.private, request.request_id), ([1; 216], id));
    let (qpn, qkey) = (Qpn::new(5), Qkey(6));
    let answer = Answer { status: SidrStatus::VALID, qpn, qkey, private: [2; 136] };
    b.answer(asked, &answer, START).unwrap();
    sent(&mut b); // Lost.
    a.on_time(a.next_deadline().unwrap());
    carry(&mut a, &mut b, START);
    carry(&mut b, &mut a, START);
    let [Event::Resolved { reply, .. }] = events(&mut a)[..] else { panic!("no answer") };
    assert_eq!((reply.qpn, reply.qkey, reply.service_id), (qpn, qkey, service_id));
    b.on_time(LATER);
    assert_eq!((a.connections(), b.connections(), events(&mut b)), (0, 0, vec![]));
}

#[test]
fn attributes_of_the_class_are_refused_by_an_answer() {
    let (_, mut b) = managers();
    let get = Mad {
        class: Mad::COMMUNICATION,
        class_version: 2,
        method: Mad::GET,
        status: 0,
        class_specific: 0,
        transaction: 9,
        attribute: 1, // ClassPortInfo
        modifier: 0,
    };
    b.on_datagram(B, A, &get.emit(&[0; 232]), START);
    let [answer] = &sent(&mut b)[..] else { panic!("one answer") };
    let (mad, _) = Mad::parse(&answer.datagram).unwrap();
    assert_eq!((mad.method, mad.status, mad.transaction), (0x81, Mad::UNSUPPORTED, 9));
    assert_eq!(b.counters().malformed, 1);
}
