//! Tests of stacks: two of them with a wire between, and strangers.

extern crate std;

use std::vec;
use std::vec::Vec;

use super::*;
use crate::tcp::End;
use core::time::Duration;

type Bytes = Vec<u8>;

const LISTENER: ListenerId = ListenerId { port: 80, address: None };

fn tuple(remote: u8, remote_port: u16) -> Tuple {
    let (local, remote) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 1, remote]));
    Tuple { local, local_port: 80, remote, remote_port }
}

fn listen() -> Listen {
    Listen { config: Config::default(), backlog: 1000, half_open_max: 1000, syn_rate: None }
}

/// Server and clients, with time between them.
struct World {
    stacks: [Stack<Bytes>; 2],
    now: Time,
}

impl World {
    fn new(connections_max: usize, listen: Listen) -> Self {
        let mut stacks = [7, 8].map(|key| Stack::new(connections_max, [key, key]));
        stacks[0].listen(LISTENER, listen, Time::ZERO).unwrap();
        Self { stacks, now: Time::ZERO }
    }

    /// Carries segments until there are none; says how many.
    fn carry(&mut self) -> usize {
        let mut carried = 0;
        loop {
            let before = carried;
            for from in [0, 1] {
                let [a, b] = &mut self.stacks;
                let (from, to) = if from == 0 { (a, b) } else { (b, a) };
                while let Some(transmit) = from.poll_transmit(self.now) {
                    let bytes: Vec<u8> = transmit.payload().flatten().copied().collect();
                    assert_eq!(bytes.len(), transmit.payload_bytes());
                    let (tuple, header) = (transmit.tuple.reversed(), transmit.header);
                    to.on_segment(tuple, &header, Piece::whole(bytes), self.now);
                    carried += 1;
                }
            }
            if carried == before {
                return carried;
            }
        }
    }

    /// Lets time pass, with all that is due.
    fn pass(&mut self, span: Duration) {
        let end = self.now.plus(span);
        loop {
            self.carry();
            let next = self.stacks.iter().filter_map(Stack::next_deadline).min();
            let Some(next) = next.filter(|next| *next <= end) else {
                break;
            };
            self.now = self.now.max(next);
            for stack in &mut self.stacks {
                stack.on_time(self.now);
            }
        }
        self.now = end;
    }

    fn connect(&mut self, remote: u8, port: u16) -> ConnectionId {
        let tuple = tuple(remote, port).reversed();
        self.stacks[1].connect(tuple, &Config::default(), self.now).unwrap()
    }

    fn accept(&mut self) -> Option<ConnectionId> {
        self.stacks[0].accept(LISTENER)
    }
}

#[test]
fn only_one_host_is_connected_to() {
    let mut world = World::new(10, listen());
    let mut connect = |remote: &str, remote_port| {
        let remote: IpAddr = remote.parse().unwrap();
        let local = if remote.is_ipv4() { [10, 0, 0, 1].into() } else { [9_u16; 8].into() };
        let tuple = Tuple { local, local_port: 1000, remote, remote_port };
        world.stacks[1].connect(tuple, &Config::default(), world.now).map(|_| ())
    };
    for remote in ["224.0.0.1", "255.255.255.255", "0.0.0.0", "ff02::1", "::"] {
        assert_eq!(connect(remote, 80), Err(StackError::NotOneHost), "{remote}");
    }
    assert_eq!(connect("10.0.0.2", 0), Err(StackError::NotOneHost));
    assert_eq!((connect("10.0.0.2", 80), connect("fd00::2", 80)), (Ok(()), Ok(())));
}

/// Goal: an answer that comes at once waits for nothing, and what can wait has its time; several ask for their turns.
#[test]
fn what_has_nothing_to_send_can_wait_and_what_has_does_not() {
    let mut world = World::new(10, listen());
    let client = world.connect(1, 1000);
    world.carry();
    let server = world.accept().unwrap();
    let send = |stack: &mut Stack<Bytes>, id, now| {
        stack.with(id, |end| end.send(vec![7; 64], now).unwrap());
    };
    for turn in 0..100 {
        let now = world.now;
        send(&mut world.stacks[1], client, now);
        assert!(world.stacks[1].is_urgent(now));
        world.carry();
        world.stacks[0].with(server, |server| assert!(server.receive().is_some()));
        // The first segments are acknowledged at once, by what `carry` carries.
        let stack = &mut world.stacks[0];
        assert!(turn < 20 || stack.is_ready() && !stack.is_urgent(now), "{turn}");
        send(stack, server, now);
        assert!(stack.is_urgent(now));
        world.carry();
        world.stacks[1].with(client, |client| assert!(client.receive().is_some()));
        world.now = now.plus(Duration::from_micros(10));
    }
    // What is not answered is acknowledged in time, and a reset does not wait for that.
    let now = world.now;
    send(&mut world.stacks[1], client, now);
    world.carry();
    let stack = &mut world.stacks[0];
    assert!(stack.next_deadline().is_some_and(|at| at <= now.plus(Config::default().ack_delay)));
    stack.with(server, |server| assert!(server.receive().is_some()));
    assert!(!stack.is_urgent(now) && stack.is_urgent(now.plus(Config::default().ack_delay)));
    let other = tuple(9, 9);
    stack.refuse_unknown(other, &syn_of(other), 0);
    assert!(stack.is_urgent(now));
}

/// Goal: an answer leaves before the rest of the segment that it answers is taken, and that rest is not forgotten; of a
/// connection that is gone it says nothing.
#[test]
fn an_answer_leaves_before_the_rest_of_what_it_answers_is_taken() {
    let mut world = World::new(10, listen());
    let client = world.connect(1, 1000);
    world.carry();
    let ids = [world.accept().unwrap(), client];
    let now = world.now;
    let send = |stack: &mut Stack<Bytes>, id| {
        let call = |connection: &mut Connection<Bytes>| {
            connection.set_no_delay(true);
            connection.send(vec![1], now).unwrap();
        };
        stack.with(id, call).unwrap();
        let transmit = stack.poll_transmit(now).unwrap();
        (transmit.tuple.reversed(), transmit.header)
    };
    let mut segment = send(&mut world.stacks[1], client);
    let mut laters = 0;
    for turn in 0..60 {
        let (stack, id) = (&mut world.stacks[turn % 2], ids[turn % 2]);
        let mut has_read = false;
        let taken = stack.on_expected(&segment.0, &segment.1, 1, now, |of| {
            has_read = of == id;
            true
        });
        assert!(has_read);
        segment = send(stack, id);
        let unacknowledged = stack.get(id).unwrap().unacknowledged_bytes();
        if let Some(Taken::Later(later)) = taken {
            assert_eq!(unacknowledged, 2);
            stack.on_later(&later);
            laters += 1;
        }
        assert!(stack.is_ready());
        assert_eq!(stack.get(id).unwrap().unacknowledged_bytes(), 1);
        while stack.poll_transmit(now).is_some() {}
    }
    assert!(laters > 20, "{laters}");
    let (stack, id) = (&mut world.stacks[0], ids[0]);
    let taken = stack.on_expected(&segment.0, &segment.1, 1, now, |_| true);
    let Some(Taken::Later(later)) = taken else { panic!("{taken:?}") };
    stack.let_go(id);
    stack.on_later(&later);
    assert_eq!((stack.get(id).is_none(), stack.is_ready()), (true, false));
}

fn syn_of(tuple: Tuple) -> Tcp {
    let mut stranger: Stack<Bytes> = Stack::new(1, [1, 1]);
    stranger.connect(tuple.reversed(), &Config::default(), Time::ZERO).unwrap();
    stranger.poll_transmit(Time::ZERO).unwrap().header
}

#[test]
fn connections_come_up_carry_bytes_and_go_without_a_trace() {
    let mut world = World::new(10, listen());
    let client = world.connect(1, 1000);
    world.carry();
    assert_eq!(world.stacks[0].poll_event(), Some(Event::Acceptable(LISTENER)));
    let server = world.accept().unwrap();
    let now = world.now;
    world.stacks[1].with(client, |client| client.send(vec![7; 5000], now).unwrap());
    world.carry();
    let read = world.stacks[0].with(server, |server| {
        let mut read = 0;
        while let Some(received) = server.receive() {
            assert!(received.as_ref().iter().all(|byte| *byte == 7));
            read += received.as_ref().len();
        }
        read
    });
    assert_eq!(read, Some(5000));
    world.stacks[1].with(client, |client| client.close(now));
    world.carry();
    world.stacks[0].with(server, |server| server.close(now));
    world.carry();
    assert_eq!(world.stacks[1].get(client).unwrap().state(), State::TimeWait);
    assert!(world.stacks[0].get(server).is_none());
    world.pass(Duration::from_secs(61));
    for stack in &mut world.stacks {
        assert!(stack.is_empty());
        assert_eq!(stack.next_deadline(), None);
    }
}

/// Goal: a segment costs the same with ten thousand idle connections as with one.
/// Method: steps are counted, not time. Connections that are compared are those that share a chain of the table.
#[test]
fn ten_thousand_idle_connections_cost_a_packet_nothing() {
    const IDLE: usize = 10_000;
    let mut world =
        World::new(IDLE + 10, Listen { backlog: 20_000, half_open_max: 20_000, ..listen() });
    let first = world.connect(0, 1);
    for number in 1..IDLE {
        let [.., high, low] = number.to_be_bytes();
        world.connect(high, 1000 + u16::from(low));
    }
    world.carry();
    world.pass(Duration::from_secs(1));
    let server = world.accept().unwrap();
    assert_eq!(world.stacks[0].acceptable(LISTENER), IDLE - 1);

    let before = world.stacks[0].counters();
    let mut carried = 0;
    for _ in 0..1000 {
        let now = world.now;
        world.stacks[1].with(first, |client| client.send(vec![1; 64], now).unwrap());
        carried += world.carry();
        let read = world.stacks[0].with(server, |server| {
            let read = server.receive().unwrap().as_ref().len();
            server.send(vec![2; 64], now).unwrap();
            read
        });
        assert_eq!(read, Some(64));
        carried += world.carry();
        world.stacks[1].with(first, |client| client.receive().unwrap());
        world.pass(Duration::from_micros(10));
    }
    let after = world.stacks[0].counters();
    let segments = after.segments - before.segments;
    assert!(carried > 2000 && segments >= 1000, "{carried} {segments}");
    assert!(after.compared - before.compared <= 8 * segments, "{before:?} {after:?}");
    assert!(after.asked - before.asked <= 6 * segments, "{before:?} {after:?}");
}

#[test]
fn a_flood_of_syns_is_bounded_by_half_open_connections_and_by_rate() {
    let rate = Listen { half_open_max: 50, syn_rate: None, ..listen() };
    let mut server: Stack<Bytes> = Stack::new(1000, [1, 2]);
    server.listen(LISTENER, rate, Time::ZERO).unwrap();
    let syn = |port| {
        let client = Connection::<Bytes>::connect(
            &Config::default(),
            Names {
                local_port: port,
                remote_port: 80,
                ip_header_bytes: 20,
                first: Seq::new(port.into()),
                stamp_origin: 0,
            },
            Time::ZERO,
        )
        .poll_transmit(Time::ZERO);
        client.unwrap().header
    };
    for port in 0..500 {
        let none = Piece::whole(vec![]);
        server.on_segment(tuple(1, port), &syn(port), none, Time::ZERO);
    }
    assert_eq!((server.len(), server.counters().syns_dropped), (50, 450));

    let mut server: Stack<Bytes> = Stack::new(1000, [1, 2]);
    server.listen(LISTENER, Listen { syn_rate: Some(10), ..listen() }, Time::ZERO).unwrap();
    for port in 0..500 {
        let now = Time::ZERO.plus(Duration::from_millis(10) * port.into());
        server.on_segment(tuple(1, port), &syn(port), Piece::whole(vec![]), now);
    }
    // Ten at once, and ten in each of five seconds.
    assert!((55..=60).contains(&server.len()), "{}", server.len());
}

#[test]
fn half_open_connections_go_when_their_time_is_over() {
    let mut world = World::new(10, listen());
    world.connect(1, 1000);
    let syn = world.stacks[1].poll_transmit(world.now).unwrap().header;
    world.stacks[0].on_segment(tuple(1, 1000), &syn, Piece::whole(vec![]), world.now);
    let mut answers = 0;
    while world.stacks[0].poll_transmit(world.now).is_some() {
        answers += 1;
    }
    while let Some(next) = world.stacks[0].next_deadline() {
        world.stacks[0].on_time(next);
        while world.stacks[0].poll_transmit(next).is_some() {
            answers += 1;
        }
    }
    assert!((3..10).contains(&answers), "{answers} answers");
    assert!(world.stacks[0].is_empty());
    assert_eq!(world.accept(), None);
}

#[test]
fn a_port_without_listener_is_unknown_and_a_stray_acknowledgement_is_reset() {
    let mut world = World::new(10, listen());
    let elsewhere = Tuple { local_port: 81, ..tuple(1, 1000) };
    world.stacks[1].connect(elsewhere.reversed(), &Config::default(), world.now).unwrap();
    let syn = world.stacks[1].poll_transmit(world.now).unwrap().header;
    let none = || Piece::whole(vec![]);
    let outcome = world.stacks[0].on_segment(elsewhere, &syn, none(), world.now);
    assert_eq!(outcome, Outcome::Unknown);
    let reset = Connection::<Bytes>::refuse(&syn, 0).unwrap();
    let client = Tuple::reversed(&elsewhere);
    world.stacks[1].on_segment(client, &reset, none(), world.now);
    let Some(Event::Connection(id, events)) = world.stacks[1].poll_event() else {
        panic!("an event");
    };
    assert!(events.closed);
    assert_eq!(world.stacks[1].get(id).unwrap().end(), Some(End::Refused));

    let stray = Tcp { flags: Flags::ACK, ..syn };
    for _ in 0..1000 {
        world.stacks[0].on_segment(tuple(1, 1000), &stray, none(), world.now);
    }
    let mut resets = 0;
    while let Some(transmit) = world.stacks[0].poll_transmit(world.now) {
        assert!(transmit.header.flags.has(Flags::RST));
        resets += 1;
    }
    assert_eq!(resets, RESETS_MAX);
}

#[test]
fn a_name_in_time_wait_can_be_used_again_and_its_room_too() {
    let mut world = World::new(1, listen());
    for round in 0..5 {
        let client = world.connect(1, 1000);
        world.carry();
        let server = world.accept().unwrap_or_else(|| panic!("round {round}"));
        let now = world.now;
        // The server closes first, so that its end is the one that waits.
        world.stacks[0].with(server, |server| server.close(now));
        world.carry();
        world.stacks[1].with(client, |client| client.close(now));
        world.carry();
        assert_eq!(world.stacks[0].get(server).unwrap().state(), State::TimeWait);
        world.now = world.now.plus(Duration::from_secs(1));
    }
    // Another name takes the room of the connection that only waits.
    world.connect(1, 1001);
    world.carry();
    assert!(world.accept().is_some());
}

#[test]
fn an_identifier_does_not_outlive_its_connection() {
    let mut world = World::new(1, listen());
    let client = world.connect(1, 1000);
    world.stacks[1].with(client, Connection::abort);
    while world.stacks[1].poll_transmit(world.now).is_some() {}
    assert!(world.stacks[1].with(client, |_| ()).is_none());
    let other = world.connect(1, 1000);
    assert_ne!(client, other);
    assert!(world.stacks[1].get(client).is_none());
}

/// Goal: a peer learns that a connection was aborted, also where there was no room for the reset before it was forgotten.
#[test]
fn a_reset_leaves_although_its_connection_is_forgotten() {
    for is_aborted in [true, false] {
        let mut world = World::new(1, listen());
        let client = world.connect(1, 1000);
        world.carry();
        let server = world.accept().unwrap();
        if is_aborted {
            world.stacks[1].with(client, Connection::abort);
        }
        world.stacks[1].let_go(client);
        assert!(world.stacks[1].is_empty());
        assert_eq!(world.carry(), usize::from(is_aborted));
        let end = world.stacks[0].get(server).unwrap().end();
        assert_eq!(end, is_aborted.then_some(End::Reset));
    }
}

/// Goal: so do the peers of many that are forgotten at once.
#[test]
fn as_many_resets_leave_as_connections_are_forgotten() {
    let mut world = World::new(300, listen());
    let clients: Vec<_> = (0..300).map(|port| world.connect(1, 1000 + port)).collect();
    world.carry();
    let servers: Vec<_> = std::iter::from_fn(|| world.accept()).collect();
    assert_eq!(servers.len(), 300);
    for client in clients {
        world.stacks[1].with(client, Connection::abort);
        world.stacks[1].let_go(client);
    }
    world.carry();
    let is_reset =
        |server: &&ConnectionId| world.stacks[0].get(**server).unwrap().end() == Some(End::Reset);
    assert_eq!(servers.iter().filter(is_reset).count(), 300);
    assert_eq!(world.stacks[1].counters().resets_dropped, 0);
}

#[test]
fn a_listener_that_goes_resets_what_was_not_accepted() {
    let mut world = World::new(10, listen());
    let client = world.connect(1, 1000);
    world.carry();
    world.stacks[0].unlisten(LISTENER);
    world.carry();
    assert_eq!(world.stacks[1].get(client).unwrap().end(), Some(End::Reset));
    assert!(world.stacks[0].is_empty());
}

#[test]
fn connections_that_only_wait_make_room_and_those_that_a_program_knows_stay() {
    let mut world = World::new(3, listen());
    let known = world.connect(1, 999);
    world.carry();
    let server = world.accept().unwrap();
    // The server's end waits, but its program has only shut it down.
    world.stacks[0].with(server, Connection::shut_down);
    world.carry();
    let now = world.now;
    world.stacks[1].with(known, |client| client.close(now));
    world.carry();
    assert_eq!(world.stacks[0].get(server).unwrap().state(), State::TimeWait);
    for port in 1000..1100 {
        let client = world.connect(1, port);
        world.carry();
        let other = world.accept().unwrap_or_else(|| panic!("room for {port}"));
        world.stacks[0].with(other, |other| other.close(now));
        world.carry();
        world.stacks[1].with(client, |client| client.close(now));
        world.carry();
        assert!(world.stacks[0].waiting.len() <= world.stacks[0].len());
    }
    assert!(world.stacks[0].get(server).is_some(), "the program still knows it");
    assert!(world.stacks[0].table.find(&tuple(1, 1098)).is_some(), "older ones went first");
    // What the program lets go of makes room like all others.
    world.stacks[0].with(server, |server| server.close(now));
    for port in 1100..1103 {
        world.connect(1, port);
        world.carry();
        assert!(world.accept().is_some(), "room for {port}");
    }
}

#[test]
fn handshakes_that_nothing_accepts_make_one_event() {
    let mut world = World::new(100, listen());
    for port in 1000..1050 {
        let client = world.connect(1, port);
        world.carry();
        world.stacks[1].with(client, Connection::abort);
        world.carry();
    }
    assert_eq!(world.stacks[0].acceptable.len(), 1);
    assert_eq!(world.stacks[0].poll_event(), Some(Event::Acceptable(LISTENER)));
    assert_eq!(world.stacks[0].poll_event(), None);
    world.connect(1, 2000);
    world.carry();
    assert_eq!(world.stacks[0].poll_event(), Some(Event::Acceptable(LISTENER)));
}

#[test]
fn a_connection_that_ends_before_it_is_accepted_leaves_the_others_in_their_order() {
    let mut world = World::new(100, Listen { backlog: 5, ..listen() });
    let clients = [1000, 1001, 1002, 1003, 1004].map(|port| {
        let client = world.connect(1, port);
        world.carry();
        client
    });
    for gone in [0, 2] {
        world.stacks[1].with(clients[gone], Connection::abort);
    }
    world.carry();
    assert_eq!(world.stacks[0].acceptable(LISTENER), 3);
    for port in [2000, 2001, 2002] {
        world.connect(1, port);
        world.carry();
    }
    assert_eq!(world.stacks[0].acceptable(LISTENER), 5);
    for port in [1001, 1003, 1004, 2000, 2001] {
        let id = world.accept().unwrap();
        assert_eq!(world.stacks[0].tuple(id).unwrap().remote_port, port);
    }
    assert_eq!(world.accept(), None);
}
