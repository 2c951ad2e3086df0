//! Identifiers of one process that meet on the loopback address.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

use adverb_rdmacm::{Error, Event, EventKind, EventQueue, Id, Param, Parameters, Private};
use adverb_rdmacm::{Space, Transport};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

fn next(queue: &EventQueue) -> Event {
    queue.next(Some(Duration::from_secs(60))).unwrap().expect("an event within a minute")
}

fn next_of(queue: &EventQueue, kind: EventKind) -> Event {
    let event = next(queue);
    assert_eq!((event.kind, event.status), (kind, 0), "{event:?}");
    event
}

fn here(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn listener(queue: &EventQueue, space: Space, transport: Transport) -> Id {
    let id = Id::new(queue, space, transport, 1).unwrap();
    id.bind(here(0)).unwrap();
    id.listen(16).unwrap();
    id
}

/// A new identifier that has a path to `peer`.
fn resolved(queue: &EventQueue, space: Space, transport: Transport, peer: SocketAddr) -> Id {
    let id = Id::new(queue, space, transport, 2).unwrap();
    id.resolve_addr(None, peer).unwrap();
    next_of(queue, EventKind::AddrResolved);
    id.resolve_route().unwrap();
    next_of(queue, EventKind::RouteResolved);
    id
}

fn saying(qpn: u32, private: &[u8]) -> Parameters {
    let private = Private::new(private).unwrap();
    Parameters { qpn, private, responder_resources: 3, initiator_depth: 5, ..Parameters::default() }
}

fn heard(event: &Event) -> Parameters {
    match event.param {
        Param::Connection(parameters) => parameters,
        Param::Datagram(_) | Param::Argument(_) | Param::None => panic!("{event:?}"),
    }
}

/// A connection, established on both sides: the one that asked, and the other.
fn connected(server: &EventQueue, client: &EventQueue, listener: &Id) -> (Id, Id) {
    let id = resolved(client, Space::Tcp, Transport::Rc, listener.local());
    id.connect(&saying(17, b"hello")).unwrap();
    let request = next_of(server, EventKind::ConnectRequest);
    assert_eq!(request.listener.as_ref(), Some(listener));
    request.id.accept(&saying(18, b"welcome")).unwrap();
    next_of(client, EventKind::ConnectResponse);
    id.ready().unwrap();
    assert_eq!(next_of(server, EventKind::Established).id, request.id);
    (id, request.id)
}

#[test]
fn two_identifiers_connect_and_part() {
    let [server, client] = [(); 2].map(|()| EventQueue::new().unwrap());
    let listener = listener(&server, Space::Tcp, Transport::Rc);
    let id = resolved(&client, Space::Tcp, Transport::Rc, listener.local());
    id.connect(&saying(17, b"hello")).unwrap();
    let request = next_of(&server, EventKind::ConnectRequest);
    let asked = heard(&request);
    assert_eq!((asked.qpn, asked.responder_resources, asked.initiator_depth), (17, 5, 3));
    assert_eq!(
        (asked.private.as_slice().len(), &asked.private.as_slice()[..5]),
        (56, &b"hello"[..])
    );
    assert_eq!(request.id.peer(), Some(id.local()));
    assert_eq!((request.id.local(), id.peer()), (listener.local(), Some(listener.local())));
    request.id.accept(&saying(18, b"welcome")).unwrap();
    let response = next_of(&client, EventKind::ConnectResponse);
    assert_eq!(
        (heard(&response).qpn, &heard(&response).private.as_slice()[..7]),
        (18, &b"welcome"[..])
    );
    id.ready().unwrap();
    next_of(&server, EventKind::Established);
    id.disconnect().unwrap();
    for queue in [&server, &client] {
        next_of(queue, EventKind::Disconnected);
        next_of(queue, EventKind::TimewaitExit);
    }
    id.disconnect().unwrap(); // What is over is no error.
}

#[test]
fn what_to_set_on_queue_pairs_is_what_the_other_side_has_said() {
    use adverb_device::QpState::{Init, Rtr, Rts};
    let [server, client] = [(); 2].map(|()| EventQueue::new().unwrap());
    let listener = listener(&server, Space::Tcp, Transport::Rc);
    let id = resolved(&client, Space::Tcp, Transport::Rc, listener.local());
    let of = |id: &Id, state| id.qp_attributes(state).unwrap().attributes;
    assert_eq!(of(&id, Init).port, Some(1));
    assert!(matches!(id.qp_attributes(Rtr), Err(Error::State(_))));
    id.connect(&saying(17, b"")).unwrap();
    let request = next_of(&server, EventKind::ConnectRequest);
    // Before it accepts, as librdmacm asks.
    assert_eq!(of(&request.id, Rtr).remote.map(|qpn| qpn.get()), Some(17));
    assert_eq!(of(&request.id, Rtr).max_dest_rd_atomic, Some(5));
    request.id.accept(&Parameters { responder_resources: 2, ..saying(18, b"") }).unwrap();
    next_of(&client, EventKind::ConnectResponse);
    let (here, there) = (of(&id, Rtr), of(&request.id, Rtr));
    assert_eq!(here.remote.map(|qpn| qpn.get()), Some(18));
    assert_eq!((here.max_dest_rd_atomic, there.max_dest_rd_atomic), (Some(5), Some(2)));
    assert_eq!(here.expected_psn, of(&request.id, Rts).first_psn);
    assert_eq!(there.expected_psn, of(&id, Rts).first_psn);
    assert_eq!((here.path_mtu, of(&id, Rts).max_rd_atomic), (there.path_mtu, Some(2)));
}

/// Goal: the options of the side that asks hold for both sides' queue pairs, and for those of groups.
#[test]
fn options_are_those_of_the_queue_pairs() {
    let [server, client, queue] = [(); 3].map(|()| EventQueue::new().unwrap());
    let listener = listener(&server, Space::Tcp, Transport::Rc);
    let id = resolved(&client, Space::Tcp, Transport::Rc, listener.local());
    id.set_tos(0x28).unwrap();
    id.set_ack_timeout(9).unwrap();
    id.connect(&saying(17, b"")).unwrap();
    let request = next_of(&server, EventKind::ConnectRequest);
    request.id.accept(&saying(18, b"")).unwrap();
    next_of(&client, EventKind::ConnectResponse);
    id.ready().unwrap();
    let timeout = adverb_device::AckTimeout::from_exponent(9).ok();
    for id in [&id, &request.id] {
        let [rtr, rts] = [adverb_device::QpState::Rtr, adverb_device::QpState::Rts]
            .map(|state| id.qp_attributes(state).unwrap());
        assert_eq!(rtr.ah.map(|ah| ah.traffic_class), Some(0x28));
        assert_eq!(rts.attributes.timeout, timeout);
    }
    let member = Id::new(&queue, Space::Udp, Transport::Ud, 0).unwrap();
    member.bind(here(0)).unwrap();
    member.set_tos(0x48).unwrap();
    let _membership = member.join("239.1.2.3:0".parse().unwrap(), 0).unwrap();
    let joined = next_of(&queue, EventKind::MulticastJoin);
    let Param::Datagram(group) = joined.param else { panic!("{joined:?}") };
    assert_eq!(group.ah.traffic_class, 0x48);
}

#[test]
fn a_refusal_says_why_and_an_empty_port_too() {
    let queue = EventQueue::new().unwrap();
    let listener = listener(&queue, Space::Tcp, Transport::Rc);
    let id = resolved(&queue, Space::Tcp, Transport::Rc, listener.local());
    id.connect(&saying(17, b"")).unwrap();
    next_of(&queue, EventKind::ConnectRequest).id.reject(0, b"busy").unwrap();
    let refused = next(&queue);
    assert_eq!((refused.kind, refused.status), (EventKind::Rejected, 28));
    assert_eq!(&heard(&refused).private.as_slice()[..4], b"busy");
    let peer = listener.local();
    listener.destroy();
    let id = resolved(&queue, Space::Tcp, Transport::Rc, peer);
    id.connect(&saying(17, b"")).unwrap();
    let refused = next(&queue);
    assert_eq!((refused.kind, refused.status), (EventKind::Rejected, 8));
}

#[test]
fn queue_pairs_of_datagrams_are_found() {
    let [server, client] = [(); 2].map(|()| EventQueue::new().unwrap());
    let listener = listener(&server, Space::Udp, Transport::Ud);
    let id = resolved(&client, Space::Udp, Transport::Ud, listener.local());
    id.connect(&saying(17, b"where")).unwrap();
    let request = next_of(&server, EventKind::ConnectRequest);
    let Param::Datagram(asked) = request.param else { panic!("{request:?}") };
    assert_eq!(&asked.private.as_slice()[..5], b"where");
    request.id.accept(&saying(18, b"here")).unwrap();
    let found = next_of(&client, EventKind::Established);
    let Param::Datagram(there) = found.param else { panic!("{found:?}") };
    assert_eq!(
        (there.qpn, there.qkey, &there.private.as_slice()[..4]),
        (18, 0x0123_4567, &b"here"[..])
    );

    let other = resolved(&client, Space::Udp, Transport::Ud, listener.local());
    other.connect(&saying(17, b"")).unwrap();
    next_of(&server, EventKind::ConnectRequest).id.reject(0, b"").unwrap();
    let refused = next(&client);
    assert_eq!((refused.kind, refused.status), (EventKind::Unreachable, 2));
}

#[test]
fn a_port_is_bound_once_and_free_again() {
    let queue = EventQueue::new().unwrap();
    let first = Id::new(&queue, Space::Tcp, Transport::Rc, 0).unwrap();
    first.bind(here(0)).unwrap();
    assert_ne!(first.local().port(), 0);
    let second = Id::new(&queue, Space::Tcp, Transport::Rc, 0).unwrap();
    assert!(matches!(second.bind(first.local()), Err(Error::AddressInUse)));
    assert_eq!(second.bind("192.0.2.1:0".parse().unwrap()).unwrap_err().errno(), 99);
    let local = first.local();
    drop(first);
    second.bind(local).unwrap();
    second.destroy();
    assert!(matches!(second.listen(1), Err(Error::Gone)));
}

/// Goal: wildcards clash, and are kept apart by family, as in the kernel's manager.
#[test]
fn an_unspecified_address_clashes_with_others_of_its_port() {
    let queue = EventQueue::new().unwrap();
    let id = || Id::new(&queue, Space::Tcp, Transport::Rc, 0).unwrap();
    let at = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port);
    let all = id();
    all.bind(at("0.0.0.0", 0)).unwrap();
    let port = all.local().port();
    for ip in ["127.0.0.1", "0.0.0.0", "::"] {
        assert_eq!(id().bind(at(ip, port)).unwrap_err().errno(), 99, "{ip}");
    }
    let v6 = id();
    v6.set_af_only(true).unwrap();
    v6.bind(at("::", port)).unwrap();
    all.listen(1).unwrap();
    v6.listen(1).unwrap();
    let client = EventQueue::new().unwrap();
    let asked = resolved(&client, Space::Tcp, Transport::Rc, at("127.0.0.1", port));
    asked.connect(&saying(17, b"")).unwrap();
    assert_eq!(next_of(&queue, EventKind::ConnectRequest).listener, Some(all));
}

#[test]
fn a_port_is_shared_until_one_listens() {
    let queue = EventQueue::new().unwrap();
    let id = || {
        let id = Id::new(&queue, Space::Tcp, Transport::Rc, 0).unwrap();
        id.set_reuse(true).unwrap();
        id
    };
    let [first, second] = [id(), id()];
    first.bind(here(0)).unwrap();
    second.bind(first.local()).unwrap();
    assert!(matches!(first.listen(1), Err(Error::AddressInUse)));
    second.destroy();
    first.listen(1).unwrap();
    assert!(matches!(id().bind(first.local()), Err(Error::AddressInUse)));
}

#[test]
fn what_is_destroyed_tells_its_peer_and_hears_nothing_more() {
    let [server, client] = [(); 2].map(|()| EventQueue::new().unwrap());
    let listener = listener(&server, Space::Tcp, Transport::Rc);
    let (id, passive) = connected(&server, &client, &listener);
    drop(id);
    assert_eq!(next_of(&server, EventKind::Disconnected).id, passive);
    // A request that waits is refused with its listener.
    let id = resolved(&client, Space::Tcp, Transport::Rc, listener.local());
    id.connect(&saying(17, b"")).unwrap();
    assert!(adverb_device::wait_readable(server.as_fd(), Some(Duration::from_secs(60))).unwrap());
    while server
        .next(Some(Duration::ZERO))
        .unwrap()
        .is_some_and(|e| e.kind != EventKind::TimewaitExit)
    {}
    drop(listener);
    let refused = next(&client);
    assert_eq!(refused.kind, EventKind::Rejected);
}

#[test]
fn events_that_wait_move_along_with_their_identifier() {
    let [old, new, client] = [(); 3].map(|()| EventQueue::new().unwrap());
    let listener = listener(&old, Space::Tcp, Transport::Rc);
    let id = resolved(&client, Space::Tcp, Transport::Rc, listener.local());
    id.connect(&saying(17, b"")).unwrap();
    assert!(adverb_device::wait_readable(old.as_fd(), Some(Duration::from_secs(60))).unwrap());
    listener.migrate(&new).unwrap();
    assert!(old.try_next().is_none());
    let request = next_of(&new, EventKind::ConnectRequest);
    request.id.accept(&saying(18, b"")).unwrap();
    next_of(&client, EventKind::ConnectResponse);
    id.ready().unwrap();
    next_of(&new, EventKind::Established);
}

#[test]
fn groups_are_joined_with_an_address_for_the_queue_pair() {
    let queue = EventQueue::new().unwrap();
    let id = Id::new(&queue, Space::Udp, Transport::Ud, 0).unwrap();
    id.bind(here(0)).unwrap();
    let member = id.join("239.1.2.3:0".parse().unwrap(), 77).unwrap();
    let joined = next_of(&queue, EventKind::MulticastJoin);
    assert_eq!(joined.membership.as_ref(), Some(&member));
    let Param::Datagram(group) = joined.param else { panic!("{joined:?}") };
    assert_eq!((group.qpn, group.ah.gid, member.user()), (0xff_ffff, member.group(), 77));
    assert!(matches!(id.join(here(0), 0), Err(Error::Invalid(_))));
}

#[test]
fn mistakes_are_errors_before_anything_is_sent() {
    let queue = EventQueue::new().unwrap();
    assert!(matches!(Id::new(&queue, Space::Tcp, Transport::Ud, 0), Err(Error::Unsupported)));
    let id = Id::new(&queue, Space::Tcp, Transport::Rc, 0).unwrap();
    for refused in [id.connect(&saying(1, b"")), id.accept(&saying(1, b"")), id.ready()] {
        assert!(matches!(refused, Err(Error::State(_))));
    }
    assert!(id.reject(0, b"").is_err() && id.disconnect().is_err() && id.resolve_route().is_err());
    let error = id.set_ack_timeout(32).unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string()); // What `main` prints of it.
    let id = resolved(&queue, Space::Tcp, Transport::Rc, here(1));
    assert!(matches!(id.connect(&saying(1, &[0; 57])), Err(Error::TooLong { max: 56 })));
    id.resolve_addr(None, here(1)).unwrap_err();
}

#[test]
fn a_program_queues_events_of_its_own_and_not_without_end() {
    let queue = EventQueue::new().unwrap();
    let id = Id::new(&queue, Space::Tcp, Transport::Rc, 1).unwrap();
    assert!(matches!(id.write_event(EventKind::Established, 0, 0), Err(Error::Invalid(_))));
    id.write_event(EventKind::Internal, -7, 16).unwrap();
    let event = next(&queue);
    assert_eq!((event.kind, event.status), (EventKind::Internal, -7));
    assert_eq!((event.param, &event.id), (Param::Argument(16), &id));
    for number in 0..1024 {
        id.write_event(EventKind::User, 0, number).unwrap();
    }
    assert!(matches!(id.write_event(EventKind::User, 0, 0), Err(Error::Full)));
    for number in 0..1024 {
        assert_eq!(next_of(&queue, EventKind::User).param, Param::Argument(number));
    }
    id.write_event(EventKind::User, 0, 0).unwrap();
}
