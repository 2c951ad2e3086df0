//! Two managers and the datagrams between them, one at a time.

use adverb_cm::{Accept, Answer, Config, Connect, Error, Event, Gid, Manager, Resolve, Transmit};
use adverb_wire::cm::{
    CommId, ConnectionRecord, Datagram, Dreq, Exponent, Message, PortSpace, Reason, Rej, ServiceId,
    SidrStatus, Small, Subject,
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

/// Lets two managers talk until A has heard what has become of its request; says when that was.
fn heard(a: &mut Manager, b: &mut Manager) -> (Duration, Vec<Event>) {
    let mut now = START;
    loop {
        carry(a, b, now);
        carry(b, a, now);
        let events = events(a);
        if !events.is_empty() {
            return (now, events);
        }
        now = a.next_deadline().expect("it waits for something");
        a.on_time(now);
    }
}

#[test]
fn what_nothing_listens_on_is_refused_by_name_after_some_more_requests() {
    let (mut a, mut b) = managers();
    let other = Connect { service_id: ServiceId::of_port(PortSpace::Tcp, 9), ..request(1) };
    let id = a.connect(&other, START).unwrap();
    let (when, events) = heard(&mut a, &mut b);
    assert_eq!((when, a.counters().resent), (Duration::from_millis(310), 5));
    let [Event::Rejected { id: refused, reason: Reason::INVALID_SERVICE_ID, .. }] = events[..]
    else {
        panic!("not refused")
    };
    assert_eq!((refused, a.connections(), b.connections()), (id, 0, 0));
}

#[test]
fn a_search_for_what_nothing_listens_on_ends_after_some_more() {
    let (mut a, mut b) = managers();
    let service_id = ServiceId::of_port(PortSpace::Udp, 9);
    let what = Resolve { local: A, peer: B, traffic_class: 0, service_id, private: [1; 216] };
    a.resolve(&what, START).unwrap();
    let (when, events) = heard(&mut a, &mut b);
    let [Event::Resolved { reply, .. }] = events[..] else { panic!("no answer") };
    assert_eq!((reply.status, when), (SidrStatus::UNSUPPORTED, Duration::from_millis(310)));
}

/// Goal: a server that listens anew for each connection is met although its client is faster.
#[test]
fn a_listener_that_is_a_little_late_gets_the_request() {
    let (mut a, mut b) = managers();
    let late = ServiceId::of_port(PortSpace::Tcp, 9);
    a.connect(&Connect { service_id: late, ..request(1) }, START).unwrap();
    carry(&mut a, &mut b, START);
    carry(&mut b, &mut a, START);
    b.listen(late, None, 1).unwrap();
    let again = a.next_deadline().unwrap();
    a.on_time(again);
    carry(&mut a, &mut b, again);
    assert!(matches!(events(&mut b)[..], [Event::ConnectRequest { .. }]));
    assert_eq!(events(&mut a), []);
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

/// Goal: a host that gives the number of a queue pair to the next one is not refused for the connection before.
#[test]
fn the_number_of_a_queue_pair_serves_again_while_its_last_connection_waits_to_be_forgotten() {
    let (mut a, mut b) = managers();
    for _ in 0..2 {
        let (id, _) = connected(&mut a, &mut b, 0x11);
        a.disconnect(id, START).unwrap();
        carry(&mut a, &mut b, START);
        carry(&mut b, &mut a, START);
        assert_eq!((events(&mut a).len(), events(&mut b).len()), (1, 1));
    }
    assert_eq!((a.connections(), a.counters().stale, b.counters().stale), (2, 0, 0));
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

/// The one message that waits to be sent.
fn message(from: &mut Manager) -> Message {
    let [only] = &sent(from)[..] else { panic!("one message") };
    Datagram::parse(&only.datagram).expect("a message of ours").message
}

/// Goal: a peer that gives the name of a connection to another one has forgotten the first.
#[test]
fn a_known_name_in_another_transaction_is_of_a_peer_that_has_forgotten() {
    let (mut a, mut b) = managers();
    let (_, passive) = connected(&mut a, &mut b, 0x11);
    a.connect(&request(0x12), START).unwrap();
    let [again] = &sent(&mut a)[..] else { panic!("one request") };
    let Datagram { transaction, message: Message::Req(mut req) } =
        Datagram::parse(&again.datagram).unwrap()
    else {
        panic!("a request")
    };
    let old = b.counters();
    let first = [0x11, 0x12].map(Qpn::new);
    req.local_id = CommId(77);
    for (qpn, transaction) in first.into_iter().zip([transaction, transaction ^ 1]) {
        // The first is stale by its queue pair, which is another one's; the second is let in.
        let message = Message::Req(adverb_wire::cm::Req { qpn, ..req });
        b.on_datagram(B, A, &Datagram { transaction, message }.emit(), START);
    }
    assert_eq!(b.counters().stale, old.stale + 1);
    assert!(matches!(
        events(&mut b)[..],
        [Event::Disconnected { id }, Event::ConnectRequest { .. }] if id == passive
    ));
    sent(&mut b);
    // The same name once more, of another queue pair.
    let message = Message::Req(adverb_wire::cm::Req { qpn: Qpn::new(0x13), ..req });
    b.on_datagram(B, A, &Datagram { transaction: 5, message }.emit(), START);
    assert_eq!(b.counters().stale, old.stale + 2);
    assert!(matches!(
        events(&mut b)[..],
        [Event::Rejected { reason: Reason::STALE_CONNECTION, .. }]
    ));
}

/// Goal: a side that accepts waits as long as the peer says that it takes, and as often, but no longer than is sensible.
#[test]
fn a_side_that_accepts_waits_as_the_request_says_within_bounds() {
    let patient = |response_timeout, retries| {
        let config = Config { response_timeout, retries, ..Config::default() };
        let (mut a, mut b) = (Manager::new(config, 1), managers().1);
        a.connect(&request(1), START).unwrap();
        carry(&mut a, &mut b, START);
        let [Event::ConnectRequest { id, request, .. }] = events(&mut b)[..] else {
            panic!("no request")
        };
        b.accept(id, &Accept::new(&request, Qpn::new(9), Psn::new(1)), START).unwrap();
        let wait = b.next_deadline().expect("it waits");
        let mut count = 0;
        while let Some(at) = b.next_deadline() {
            b.on_time(at);
            count += 1;
        }
        assert!(matches!(events(&mut b)[..], [Event::Unreachable { .. }]));
        (wait, count)
    };
    let nanos = |e| Duration::from_nanos(Exponent::saturating(e).nanos());
    assert_eq!(patient(Exponent::saturating(18), Small::saturating(3)), (nanos(18), 4));
    assert_eq!(patient(Exponent::ZERO, Small::ZERO), (nanos(13), 1));
    assert_eq!(patient(Exponent::MAX, Small::MAX), (nanos(22), 16));
}

#[test]
fn a_side_that_lets_go_of_what_was_accepted_says_that_its_user_refuses() {
    let (mut a, mut b) = managers();
    a.connect(&request(1), START).unwrap();
    carry(&mut a, &mut b, START);
    let [Event::ConnectRequest { id, request, .. }] = events(&mut b)[..] else {
        panic!("no request")
    };
    b.accept(id, &Accept::new(&request, Qpn::new(9), Psn::new(1)), START).unwrap();
    carry(&mut b, &mut a, START);
    let [Event::ConnectResponse { id: active, .. }] = events(&mut a)[..] else {
        panic!("no response")
    };
    a.destroy(active, START).unwrap();
    let Message::Rej(rej) = message(&mut a) else { panic!("no refusal") };
    assert_eq!((rej.reason, rej.subject), (Reason::CONSUMER, Subject::Rep));
    b.destroy(id, START).unwrap();
    let Message::Rej(rej) = message(&mut b) else { panic!("no refusal") };
    assert_eq!((rej.reason, rej.subject), (Reason::CONSUMER, Subject::Rep));
}

#[test]
fn a_request_goes_to_the_listener_of_its_address_or_to_that_of_all() {
    let (mut a, mut b) = managers();
    let own = b.listen(SERVICE, Some(B), 1).unwrap();
    assert_eq!(b.listen(SERVICE, Some(B), 1), Err(Error::InUse));
    let asked = |a: &mut Manager, b: &mut Manager, qpn| {
        a.connect(&request(qpn), START).unwrap();
        carry(a, b, START);
        let [Event::ConnectRequest { listener, .. }] = events(b)[..] else { panic!("no request") };
        listener
    };
    assert_eq!(asked(&mut a, &mut b, 1), own);
    b.unlisten(own).unwrap();
    assert_eq!(b.unlisten(own), Err(Error::NotFound));
    assert_ne!(asked(&mut a, &mut b, 2), own);
}

/// Goal: names begin as the owner says, and none comes again for long.
#[test]
fn names_have_a_prefix_and_are_not_given_twice() {
    let config = Config { prefix: 0x2a5, prefix_bits: 10, ..Config::default() };
    let mut a = Manager::new(config, 3);
    let mut names: Vec<_> = (1..5000)
        .map(|qpn| {
            let id = a.connect(&request(qpn), START).unwrap();
            a.destroy(id, START).unwrap();
            sent(&mut a);
            id
        })
        .collect();
    assert!(names.iter().all(|name| name.0 >> 22 == 0x2a5));
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 4999);
}

#[test]
fn a_connection_whose_peer_is_no_more_ends_without_a_message() {
    let (mut a, mut b) = managers();
    let (id, _) = connected(&mut a, &mut b, 1);
    a.lose(id, START).unwrap();
    assert_eq!((sent(&mut a).len(), events(&mut a)), (0, vec![Event::Disconnected { id }]));
    assert_eq!(a.lose(id, START), Err(Error::State));
    a.on_time(LATER);
    assert_eq!(events(&mut a), [Event::TimewaitExit { id }]);
    assert_eq!(a.lose(id, LATER), Err(Error::NotFound));
}

/// Goal: the peer of an end that was announced need not agree to it any more.
#[test]
fn an_end_that_was_announced_to_a_peer_that_is_no_more_comes_at_once() {
    let (mut a, mut b) = managers();
    let (id, _) = connected(&mut a, &mut b, 1);
    a.disconnect(id, START).unwrap();
    sent(&mut a);
    a.lose(id, START).unwrap();
    assert_eq!(events(&mut a), [Event::Disconnected { id }]);
}

/// A connection between A, whose manager is no more, and B: what is written down of it, and its name at B.
fn left_behind(b: &mut Manager) -> (ConnectionRecord, CommId) {
    let mut gone = Manager::new(Config::default(), 1);
    let (id, passive) = connected(&mut gone, b, 1);
    let remote_qpn = Qpn::new(101);
    let record = ConnectionRecord {
        local: A,
        peer: B,
        id,
        remote_id: passive,
        remote_qpn,
        traffic_class: 8,
    };
    (record, passive)
}

/// Goal: the manager of another process ends what a killed one had, as if it had said so itself, and has no events of it.
#[test]
fn the_connection_of_a_manager_that_is_no_more_is_ended_by_another() {
    let (mut heir, mut b) = (Manager::new(Config::default(), 3), managers().1);
    let (record, passive) = left_behind(&mut b);
    heir.part_from(&record, START).unwrap();
    assert_eq!(heir.part_from(&record, START), Err(Error::InUse), "its name is taken meanwhile");
    let all = sent(&mut heir);
    assert_eq!((all.len(), all[0].local, all[0].peer, all[0].traffic_class), (1, A, B, 8));
    b.on_datagram(B, A, &all[0].datagram, START);
    assert_eq!(events(&mut b), [Event::Disconnected { id: passive }]);
    assert_eq!(carry(&mut b, &mut heir, START), 1);
    heir.on_time(LATER);
    assert_eq!((sent(&mut heir).len(), events(&mut heir), heir.connections()), (0, vec![], 0));
}

/// Goal: a peer that does not agree costs a few messages and no memory.
#[test]
fn the_end_of_a_connection_that_another_manager_had_is_announced_a_few_times() {
    let (mut heir, mut b) = (Manager::new(Config::default(), 3), managers().1);
    let (record, _) = left_behind(&mut b);
    let other = ConnectionRecord { remote_qpn: Qpn::new(9), ..record };
    heir.part_from(&other, START).unwrap();
    let mut announced = carry(&mut heir, &mut b, START);
    while let Some(at) = heir.next_deadline() {
        heir.on_time(at);
        announced += carry(&mut heir, &mut b, at);
    }
    assert_eq!((announced, b.counters().forged), (4, 4), "the queue pair is another one");
    assert_eq!((events(&mut b), events(&mut heir), heir.connections()), (vec![], vec![], 0));

    let mut full = Manager::new(Config { connections_max: 1, ..Config::default() }, 4);
    full.connect(&request(5), START).unwrap();
    sent(&mut full);
    assert_eq!(full.part_from(&record, START), Err(Error::Full { max: 1 }));
    assert_eq!(sent(&mut full), []);
}
