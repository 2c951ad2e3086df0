//! Several processes on one address: data between them, wrong steering, and sudden death.

use crate::agent::{Agent, registry_of};
use crate::alone::{alone, is_alone, over_udp};
use crate::pair::{FOREVER, Setup, eventually, pattern};
use crate::path::Path;
use adverb_sys::udp::steering;
use adverb_sys::udp::{BindOptions, Socket};
use adverb_verbs::{Context, QpState, WcStatus, Work};
use std::io::Read;
use std::time::{Duration, Instant};

const MB: usize = 1 << 20;

#[test]
fn two_processes_reach_each_other_with_every_operation() {
    for (gid_index, setup) in
        [(1, Setup::default()), (0, Setup { gid_index: 0, ..Setup::default() })]
    {
        let context = Context::open("soft_lo").expect("the loopback device");
        let side = setup.side(&context);
        let mut agent = Agent::start("soft_lo", gid_index);
        let there = agent.connect_to(&side.qp, &setup);
        let far = agent.memory();
        let data = pattern(1, 4 * MB);

        side.qp.post(Work::write(side.buffer(&data), far)).expect("room");
        assert_eq!(side.status(), WcStatus::Success);
        assert!(agent.has(0, 4 * MB, 1));

        agent.fill(0, 3 * MB, 2);
        side.qp.post(Work::read(side.pd.buffer(3 * MB).expect("memory"), far)).expect("room");
        let read = side.wait().ok().expect("read").memory;
        let read = read.and_then(adverb_verbs::Memory::into_buf).expect("a buffer");
        assert!(*read == *pattern(2, 3 * MB));

        assert_eq!(agent.ask(&format!("recv {} 8 {MB}", there.index)), "posted");
        side.qp.post(Work::send(side.buffer(&pattern(3, MB)))).expect("room");
        assert_eq!(agent.ask("wait"), format!("Success Receive {MB}"));
        assert_eq!(side.status(), WcStatus::Success);
        assert!(agent.has(8, MB, 3));

        // And the other way round.
        let here = side.region(&vec![0; MB]);
        let (addr, rkey) = (here.addr(), here.rkey().0);
        agent.fill(0, MB, 4);
        agent.tell(&format!("write {} 0 {MB} {addr} {rkey}", there.index));
        eventually("data", || {
            context.drive();
            crate::pair::bytes_of(&here, 0, MB) == pattern(4, MB)
        });
        assert_eq!(agent.answer(), "Success");
        here.store_u64(0, 5).expect("in there");
        agent.tell(&format!("add {} {addr} {rkey} 10", there.index));
        eventually("a sum", || {
            context.drive();
            here.load_u64(0) == Ok(15)
        });
        assert_eq!(agent.answer(), "Success");
    }
}

#[test]
fn eight_processes_reach_each_other_pairwise() {
    alone("processes::eight_processes_reach_each_other_pairwise", || {
        let setup = Setup::default();
        let mut agents: Vec<_> = (0..8).map(|_| Agent::start("soft_lo", 1)).collect();
        let memory: Vec<_> = agents.iter_mut().map(Agent::memory).collect();
        let mut streams = Vec::new();
        let len = MB + 13;
        for from in 0..8_usize {
            for to in 0..8_usize {
                if from == to {
                    continue;
                }
                let (low, high) = (from.min(to), from.max(to));
                let (left, right) = agents.split_at_mut(high);
                let (Some(x), Some(y)) = (left.get_mut(low), right.first_mut()) else {
                    unreachable!("both exist");
                };
                let (at_low, at_high) = Agent::introduce(x, y, &setup);
                streams.push((from, to, if from < to { at_low } else { at_high }));
            }
        }
        for (n, agent) in (0..).zip(&mut agents) {
            agent.fill(0, len, n);
        }
        // Each writes to one other at a time, all of them at once.
        for distance in 1..8 {
            let all = streams.iter().filter(|(from, to, _)| (from + distance) % 8 == *to);
            let all: Vec<_> = all.collect();
            for (from, to, qp) in &all {
                let place = memory
                    .get(*to)
                    .expect("it is there")
                    .plus(u64::try_from((from + 1) * 2 * MB).expect("small") / 2);
                let (index, addr, rkey) = (qp.index, place.addr, place.rkey.0);
                let agent = agents.get_mut(*from).expect("it is there");
                agent.tell(&format!("write {index} 0 {MB} {addr} {rkey}"));
            }
            for (from, _, _) in &all {
                let agent = agents.get_mut(*from).expect("it is there");
                assert_eq!(agent.answer(), "Success");
            }
        }
        for (to, agent) in agents.iter_mut().enumerate() {
            for from in (0..8).filter(|from| *from != to) {
                let seed = u64::try_from(from).expect("small");
                assert!(agent.has((from + 1) * MB, MB, seed), "{from} to {to}");
            }
            assert_eq!(agent.counter("unknown_qp"), 0);
            assert_eq!(agent.counter("icrc_errors"), 0);
        }
    });
}

/// Goal: a message that was received is acknowledged, whatever the receiver does next.
/// Method: a process that ends with its first completion, by `exit`, and drops nothing.
#[test]
fn a_process_that_ends_with_its_last_receive_acknowledges_it() {
    for path in [Path::Udp, Path::Ring, Path::SharedMemory] {
        let setup = Setup { retry_count: 1, ..path.setup() };
        let context = path.context();
        for _ in 0..4 {
            let side = setup.side(&context);
            let mut agent = Agent::start_over(path);
            let there = agent.connect_to(&side.qp, &setup);
            assert_eq!(agent.ask(&format!("recv {} 0 8", there.index)), "posted");
            agent.tell("leave");
            side.qp.post(Work::send(side.buffer(&[1; 8]))).expect("room");
            assert_eq!(side.status(), WcStatus::Success, "{path:?}");
        }
    }
}

/// Goal: steering is only a hint.
/// Method: a filter that gives every packet of the address to the process that bound first, which
/// has to pass on those of the other two.
#[test]
fn packets_that_are_given_to_the_wrong_process_arrive() {
    over_udp("processes::packets_that_are_given_to_the_wrong_process_arrive", || {
        let setup = Setup::default();
        let context = Context::open("soft_lo").expect("the loopback device");
        let side = setup.side(&context);
        let mut first = Agent::start("soft_lo", 1);
        let _ = first.connect_to(&side.qp, &setup); // This process or the agent binds first.
        let (mut a, mut b) = (Agent::start("soft_lo", 1), Agent::start("soft_lo", 1));
        let (x, y) = Agent::introduce(&mut a, &mut b, &setup);
        let far = b.memory();

        // A socket that shares the port may set the filter of all, and goes again at once. Its own
        // place is the last one, so that the others keep theirs.
        let mislead = || {
            let mut options = BindOptions::new("127.0.0.1:4791".parse().expect("an address"));
            options.reuse_port = true;
            let socket = Socket::bind(&options).expect("the same user may share the port");
            let to_the_first =
                steering::program(8, 0, &[], &steering::Connections::NONE, 0).expect("it is short");
            socket.attach_reuseport_filter(&to_the_first).expect("a sound program");
        };
        // On a busy machine another process may put it right before the first packet comes.
        let write = format!("write {} 0 1 {} {}", x.index, far.addr, far.rkey.0);
        eventually("something is passed on", || {
            mislead();
            assert_eq!(a.ask(&write), "Success");
            context.counters().forwarded + first.counter("forwarded") > 0
        });

        for (seed, len) in (1..).zip([1, 5000, 3 * MB]) {
            a.fill(0, len, seed);
            let write = format!("write {} 0 {len} {} {}", x.index, far.addr, far.rkey.0);
            assert_eq!(a.ask(&write), "Success");
            assert!(b.has(0, len, seed), "{len} bytes");
            let read = format!("read {} {} {len} {} {}", x.index, 4 * MB, far.addr, far.rkey.0);
            assert_eq!(a.ask(&read), "Success");
            assert!(a.has(4 * MB, len, seed), "{len} bytes");
        }
        let _ = y;
        let forwarded = context.counters().forwarded + first.counter("forwarded");
        println!("{forwarded} packets were passed on");
        // What came this way was for one of the two, or got lost for want of room.
        assert!(a.counter("relayed") + b.counter("relayed") > 0 || !is_alone());
    });
}

/// Goal: the survivor learns of it, loses nothing but the connection, and can have a new one.
/// Method: the peer dies in the middle of a transfer, as the receiver and as the sender.
#[test]
fn a_peer_may_be_killed_at_any_moment() {
    alone("processes::a_peer_may_be_killed_at_any_moment", || {
        let setup = Setup::impatient();
        let context = Context::open("soft_lo").expect("the loopback device");
        let data = pattern(1, MB);
        for round in 0..20_u64 {
            // Our sends die with their receiver.
            let side = setup.side(&context);
            let mut agent = Agent::start("soft_lo", 1);
            let _ = agent.connect_to(&side.qp, &setup);
            let far = agent.memory();
            let kill_at = Instant::now() + Duration::from_micros(round * 700);
            let mut victim = Some(agent);
            let end = Instant::now() + FOREVER;
            let source = side.region(&data);
            let status = loop {
                let slice = source.slice(0, MB).expect("in there");
                let _ = side.qp.post(Work::write(slice, far));
                if Instant::now() > kill_at
                    && let Some(agent) = victim.take()
                {
                    agent.kill();
                }
                if let Some(done) = side.cq.next().expect("no overrun")
                    && done.wc.status != WcStatus::Success
                {
                    break done.wc.status;
                }
                assert!(Instant::now() < end, "it was not noticed");
            };
            assert_eq!(status, WcStatus::RetryExceeded, "round {round}");
            assert_eq!(side.qp.state(), QpState::Err);

            // The peer's sends die with it; we are left with a queue pair that works no more, and
            // notice when we send ourselves.
            let side = setup.side(&context);
            let mut agent = Agent::start("soft_lo", 1);
            let there = agent.connect_to(&side.qp, &setup);
            let far = agent.memory();
            let here = side.region(&vec![0; MB]);
            let (index, addr, rkey) = (there.index, here.addr(), here.rkey().0);
            agent.tell(&format!("stream {index} {MB} {addr} {rkey}"));
            let kill_at = Instant::now() + Duration::from_micros(2000 + round * 700);
            while Instant::now() < kill_at {
                assert!(side.cq.next().expect("no overrun").is_none());
            }
            agent.kill();
            // Memory that both shared outlives it by as long as the news takes.
            let write = || {
                side.qp.post(Work::write(side.buffer(&data), far)).expect("room");
                side.status()
            };
            let failed =
                std::iter::from_fn(|| Some(write())).find(|status| *status != WcStatus::Success);
            assert_eq!(failed, Some(WcStatus::RetryExceeded), "round {round}");
        }
        // After all of that, everything is as it was.
        let side = setup.side(&context);
        let mut agent = Agent::start("soft_lo", 1);
        let _ = agent.connect_to(&side.qp, &setup);
        let far = agent.memory();
        side.qp.post(Work::write(side.buffer(&data), far)).expect("room");
        assert_eq!(side.status(), WcStatus::Success);
        assert!(agent.has(0, MB, 1));
    });
}

/// Goal: what a dead process had in the registry goes to others.
/// Method: more processes die than there are slots... would take long; so the registry's slot is
/// looked at: the next process has the dead one's.
#[test]
fn a_dead_process_leaves_its_place_to_the_next() {
    alone("processes::a_dead_process_leaves_its_place_to_the_next", || {
        let pids = |known: &[u32]| {
            let mut file = registry_of(known[0]).expect("it has a place in it");
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).expect("readable");
            let words: Vec<_> =
                bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
            // 16 words of header, then 16 words a slot, of which the first is the process.
            let slots = words.iter().skip(16).step_by(16).take(1024).copied();
            slots.filter(|pid| known.contains(pid)).collect::<Vec<_>>()
        };
        let setup = Setup::default();
        let mut survivor = Agent::start("soft_lo", 1);
        for _ in 0..5 {
            let mut victim = Agent::start("soft_lo", 1);
            let _ = Agent::introduce(&mut survivor, &mut victim, &setup);
            let known = [survivor.pid(), victim.pid()];
            assert_eq!(pids(&known), known);
            let dead = victim.pid();
            victim.kill();
            let mut next = Agent::start("soft_lo", 1);
            let (x, _) = Agent::introduce(&mut survivor, &mut next, &setup);
            assert_eq!(pids(&[survivor.pid(), next.pid(), dead]), [survivor.pid(), next.pid()]);
            let far = next.memory();
            survivor.fill(0, MB, 3);
            let write = format!("write {} 0 {MB} {} {}", x.index, far.addr, far.rkey.0);
            assert_eq!(survivor.ask(&write), "Success");
            assert!(next.has(0, MB, 3));
        }
    });
}
