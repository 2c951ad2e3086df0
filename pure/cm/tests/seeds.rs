//! Three hosts that connect, accept, refuse, part and crash at random, on a network that loses,
//! repeats and reorders. `ADVERB_CM_SEED=0x…` runs one seed, `ADVERB_CM_SEEDS=N` the first N.

#![expect(clippy::indexing_slicing, reason = "a test may fail by a panic")]
#![expect(clippy::disallowed_methods, reason = "seeds come from the environment")]

use adverb_cm::{Accept, Config, Connect, Event, Gid, Manager, Transmit};
use adverb_wire::cm::{CommId, Exponent, PortSpace, Reason, ServiceId, Small};
use adverb_wire::{Psn, Qpn};
use core::time::Duration;
use std::collections::BTreeMap;

const HOSTS: usize = 3;
const PORT: u16 = 1;
const BACKLOG: usize = 4;
const CONNECTIONS_MAX: usize = 64;
const STEPS: usize = 400;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(u64::try_from(len).expect("it fits"))).expect("it fits")
    }
}

/// What a user has heard of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Known {
    Asked,
    Accepted,
    Up,
    Over,
    Ended,
}

struct Host {
    manager: Manager,
    known: BTreeMap<CommId, Known>,
    qpn: u32,
}

struct World {
    random: Random,
    now: Duration,
    hosts: Vec<Host>,
    wire: BTreeMap<(Duration, u64), Transmit>,
    sent: u64,
    /// Losses and crashes have ended.
    calm: bool,
    established: usize,
}

fn gid(host: usize) -> Gid {
    [u8::try_from(host).expect("it fits") + 1; 16]
}

fn config() -> Config {
    Config {
        response_timeout: Exponent::saturating(14), // 67 ms
        retries: Small::saturating(5),
        service_timeout: Exponent::saturating(16),
        time_wait: Exponent::saturating(15),
        connections_max: CONNECTIONS_MAX,
        ..Config::default()
    }
}

fn host(random: &mut Random) -> Host {
    let mut manager = Manager::new(config(), random.below(u64::MAX));
    manager
        .listen(ServiceId::of_port(PortSpace::Tcp, PORT), None, BACKLOG)
        .expect("a first listener");
    let qpn = u32::try_from(random.below(1 << 20)).expect("it fits") + 2;
    Host { manager, known: BTreeMap::new(), qpn }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let hosts = (0..HOSTS).map(|_| host(&mut random)).collect();
        let wire = BTreeMap::new();
        Self { random, now: Duration::ZERO, hosts, wire, sent: 0, calm: false, established: 0 }
    }

    /// Something that a user does, or a crash.
    fn act(&mut self) {
        let at = self.random.index(HOSTS);
        let to = (at + 1 + self.random.index(HOSTS - 1)) % HOSTS;
        let choice = self.random.below(40);
        if choice == 0 {
            self.hosts[at] = host(&mut self.random);
            return;
        }
        let chosen = self.random.below(u64::MAX);
        let (now, host) = (self.now, &mut self.hosts[at]);
        let ids: Vec<_> = host.known.iter().map(|(id, known)| (*id, *known)).collect();
        let pick = usize::try_from(chosen).expect("it fits").checked_rem(ids.len()).map(|n| ids[n]);
        match (choice, pick) {
            (1..=15, _) => {
                host.qpn += 1;
                let (qpn, psn) = (Qpn::new(host.qpn), Psn::new(0xff_ffff));
                let connect = Connect::new(gid(at), gid(to), PORT, qpn, psn);
                if let Ok(id) = host.manager.connect(&connect, now) {
                    assert!(host.known.insert(id, Known::Asked).is_none(), "a name used again");
                }
            }
            (16..=22, Some((id, Known::Up))) => host.manager.disconnect(id, now).unwrap_or(()),
            (23..=24, Some((id, known))) if known != Known::Ended => {
                host.manager.destroy(id, now).unwrap_or(());
                host.known.insert(id, Known::Ended);
            }
            _ => {}
        }
    }

    /// Users answer what they hear.
    fn hear(&mut self) {
        for host in &mut self.hosts {
            while let Some(event) = host.manager.poll_event() {
                let id = event.id();
                let before = host.known.get(&id).copied();
                let after = match event {
                    Event::ConnectRequest { request, .. } => {
                        assert_eq!(before, None, "{event:?}");
                        host.qpn += 1;
                        let accept = Accept::new(&request, Qpn::new(host.qpn), Psn::new(0));
                        if self.random.below(4) == 0 {
                            host.manager.reject(id, Reason::CONSUMER, [0; 148]).unwrap_or(());
                            Known::Ended
                        } else {
                            host.manager.accept(id, &accept, self.now).unwrap_or(());
                            Known::Accepted
                        }
                    }
                    Event::ConnectResponse { .. } => {
                        assert_eq!(before, Some(Known::Asked), "{event:?}");
                        if host.manager.ready(id).is_ok() {
                            self.established += 1;
                            Known::Up
                        } else {
                            Known::Accepted
                        }
                    }
                    Event::Established { .. } => {
                        assert_eq!(before, Some(Known::Accepted), "{event:?}");
                        Known::Up
                    }
                    Event::Disconnected { .. } => {
                        assert!(matches!(before, Some(Known::Up | Known::Accepted)), "{event:?}");
                        Known::Over
                    }
                    Event::TimewaitExit { .. } => {
                        assert_eq!(before, Some(Known::Over), "{event:?}");
                        Known::Ended
                    }
                    Event::Rejected { .. } | Event::Unreachable { .. } => {
                        let expected = matches!(before, Some(Known::Asked | Known::Accepted));
                        // A peer that gives up at once is heard of after its request was refused.
                        assert!(expected, "{event:?} after {before:?}");
                        Known::Ended
                    }
                    Event::Resolved { .. } | Event::ResolveRequest { .. } => panic!("{event:?}"),
                };
                host.known.insert(id, after);
            }
            assert!(host.manager.connections() <= CONNECTIONS_MAX);
        }
    }

    fn send(&mut self) {
        for host in &mut self.hosts {
            while let Some(transmit) = host.manager.poll_transmit() {
                let copies = match self.random.below(10) {
                    0 | 1 if !self.calm => 0,
                    2 => 2,
                    _ => 1,
                };
                for _ in 0..copies {
                    let delay = Duration::from_micros(self.random.below(20_000));
                    self.sent += 1;
                    self.wire.insert((self.now + delay, self.sent), transmit);
                }
            }
        }
    }

    /// Goes on to whatever is next. False if nothing is.
    fn step(&mut self, until: Duration) -> bool {
        self.hear();
        self.send();
        let timers = self.hosts.iter().filter_map(|host| host.manager.next_deadline()).min();
        let arrival = self.wire.keys().next().map(|(at, _)| *at);
        let Some(next) = [timers, arrival].into_iter().flatten().min() else {
            return false;
        };
        if next > until {
            self.now = until;
            return false;
        }
        self.now = self.now.max(next);
        while let Some(entry) = self.wire.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let Transmit { local, peer, datagram, .. } = entry.remove();
            let host = &mut self.hosts[usize::from(peer[0]) - 1];
            host.manager.on_datagram(peer, local, &datagram, self.now);
        }
        let now = self.now;
        self.hosts.iter_mut().for_each(|host| host.manager.on_time(now));
        true
    }

    /// Goes on until nothing happens any more, which has to be soon.
    fn settle(&mut self) {
        let bound = self.now + Duration::from_secs(60);
        while self.step(bound) {}
        assert!(self.now < bound, "not over after a minute");
    }
}

/// Goal: every connection comes up on both sides or ends on both, in bounded time, whatever is
/// lost; no event comes twice or out of order; nothing is left behind.
/// Method: chaos, then calm. A side that is up without the other (which may have crashed, or given
/// up with a message that was lost) must be able to end it.
fn run(seed: u64) -> usize {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world.act();
        let until = world.now + Duration::from_micros(world.random.below(20_000));
        while world.step(until) {}
        world.now = until;
    }
    world.calm = true;
    world.settle();
    for at in 0..HOSTS {
        let unsettled = |k: &Known| matches!(k, Known::Asked | Known::Accepted | Known::Over);
        let left: Vec<_> = world.hosts[at].known.iter().filter(|(_, k)| unsettled(k)).collect();
        assert!(left.is_empty(), "host {at}: {left:?}");
        let up = world.hosts[at].known.iter().filter(|(_, k)| **k == Known::Up);
        for id in up.map(|(id, _)| *id).collect::<Vec<_>>() {
            let now = world.now;
            world.hosts[at].manager.disconnect(id, now).unwrap_or(()); // The peer may have, before.
        }
    }
    world.settle();
    for (at, host) in world.hosts.iter().enumerate() {
        assert_eq!(host.manager.connections(), 0, "host {at}");
        assert!(host.known.values().all(|known| *known == Known::Ended), "{:?}", host.known);
    }
    world.established
}

#[test]
fn every_connection_comes_up_or_ends_on_both_sides() {
    let one = std::env::var("ADVERB_CM_SEED").ok();
    if let Some(seed) = one {
        let digits = seed.strip_prefix("0x").expect("ADVERB_CM_SEED starts with 0x");
        run(u64::from_str_radix(digits, 16).expect("a hexadecimal number"));
        return;
    }
    let count = std::env::var("ADVERB_CM_SEEDS").map_or(200, |n| n.parse().expect("a number"));
    let mut established = 0;
    for seed in 0..count {
        let result = std::panic::catch_unwind(|| run(seed));
        established += result.unwrap_or_else(|_| panic!("ADVERB_CM_SEED={seed:#x} fails"));
    }
    println!("{count} seeds, {established} connections");
    assert!(established > usize::try_from(count).expect("it fits") * 10, "too few: {established}");
}
