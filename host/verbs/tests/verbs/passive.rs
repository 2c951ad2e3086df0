//! Programs that do not poll: they are served, and they cost nothing.

use crate::agent::Agent;
use crate::alone::{alone, over_udp};
use crate::pair::{Setup, Side, pattern, remote};
use crate::path::Path;
use adverb_verbs::{Context, Memory, Mr, RemoteSlice, WcStatus, Work};
use std::time::{Duration, Instant};

/// The share of a processor that an agent uses while `wait` runs.
fn share(agent: &mut Agent, wait: impl FnOnce(&mut Agent)) -> f64 {
    let (start, cpu) = (Instant::now(), agent.cpu());
    wait(agent);
    let used = agent.cpu().saturating_sub(cpu);
    used.as_secs_f64() / start.elapsed().as_secs_f64()
}

fn rest() {
    std::thread::sleep(Duration::from_secs(2));
}

#[test]
fn a_process_that_never_polls_serves_reads_writes_and_atomics() {
    let setup = Setup::default();
    let context = Context::open("soft_lo").expect("the loopback device");
    let side = setup.side(&context);
    let mut agent = Agent::start("soft_lo", 1);
    let _ = agent.connect_to(&side.qp, &setup);
    let far = agent.memory();
    agent.tell("idle 3000"); // It looks at nothing until it has slept.
    for len in [1, 4096, 1 << 20] {
        let data = pattern(1, len);
        side.qp.post(Work::write(side.buffer(&data), far)).expect("room");
        assert_eq!(side.status(), WcStatus::Success);
        side.qp.post(Work::read(side.pd.buffer(len).expect("memory"), far)).expect("room");
        let read = side.wait().ok().expect("read").memory.and_then(Memory::into_buf);
        assert!(*read.expect("a buffer") == *data);
        // Let its helper fall asleep, so that the next request has to wake it.
        std::thread::sleep(Duration::from_millis(20));
    }
    side.qp.post(Work::fetch_add(side.pd.buffer(8).expect("memory"), far, 1)).expect("room");
    assert_eq!(side.status(), WcStatus::Success);
    assert_eq!(agent.answer(), "rested");
}

/// Goal: idle means idle, compared with what a program that polls takes of a processor at the same time.
#[test]
fn an_idle_process_costs_nothing() {
    alone("passive::an_idle_process_costs_nothing", || {
        let setup = Setup::default();
        let context = Context::open("soft_lo").expect("the loopback device");
        let side = setup.side(&context);
        let mut agent = Agent::start("soft_lo", 1);
        let there = agent.connect_to(&side.qp, &setup);
        let fresh = share(&mut agent, |_| rest());
        println!("connected, never used: {:.3} % of a processor", fresh * 100.0);

        let far = agent.memory();
        for _ in 0..100 {
            side.qp.post(Work::write(side.buffer(&[1; 64]), far)).expect("room");
            assert_eq!(side.status(), WcStatus::Success);
        }
        let used = share(&mut agent, |_| rest());
        println!("after it was a target: {:.3} % of a processor", used * 100.0);

        let busy = share(&mut agent, |agent| assert_eq!(agent.ask("poll 300"), "polled"));
        println!("while it polls: {:.3} % of a processor", busy * 100.0);
        let polled = share(&mut agent, |_| rest());
        println!("after it has polled: {:.3} % of a processor", polled * 100.0);

        // With a receive posted and a queue pair that waits for work.
        assert_eq!(agent.ask(&format!("recv {} 0 64", there.index)), "posted");
        let waiting = share(&mut agent, |_| rest());
        println!("with a receive posted: {:.3} % of a processor", waiting * 100.0);
        for share in [fresh, used, polled, waiting] {
            assert!(share < busy / 10.0, "{share}, and {busy} while it polls");
        }
    });
}

/// Goal: the helper stays out of the way of a program that polls: both together use one processor.
#[test]
fn the_helper_costs_nothing_while_the_program_polls() {
    alone("passive::the_helper_costs_nothing_while_the_program_polls", || {
        let setup = Setup::default();
        let context = Context::open("soft_lo").expect("the loopback device");
        let side = setup.side(&context);
        let mut agent = Agent::start("soft_lo", 1);
        let _ = agent.connect_to(&side.qp, &setup);
        let used = share(&mut agent, |agent| assert_eq!(agent.ask("poll 2000"), "polled"));
        println!("while it polls: {:.1} % of a processor", used * 100.0);
        assert!(used < 1.05, "{used}");
    });
}

/// Goal: a receiver that takes its completion and never calls again still lets its peer finish.
#[test]
fn what_a_program_owes_is_sent_though_it_never_calls_again() {
    alone("passive::what_a_program_owes_is_sent_though_it_never_calls_again", || {
        let setup = Setup { timeout: 20, ..Setup::default() }; // 4 s: not a second attempt.
        let context = Context::open("soft_lo").expect("the loopback device");
        let side = setup.side(&context);
        let mut agent = Agent::start("soft_lo", 1);
        let there = agent.connect_to(&side.qp, &setup);
        for _ in 0..20 {
            assert_eq!(agent.ask(&format!("recv {} 0 64", there.index)), "posted");
            agent.tell("wait");
            std::thread::sleep(Duration::from_millis(5)); // Long enough for it to poll.
            side.qp.post(Work::send(side.buffer(&[1; 64]))).expect("room");
            assert_eq!(side.status(), WcStatus::Success);
            assert_eq!(agent.answer(), "Success Receive 64");
        }
        assert_eq!(side.qp.counters().ack_timeout, 0, "the acknowledgements came by themselves");
    });
}

/// Writes a number into the peer's memory and waits until it is complete, then for the answer in its own; each
/// round. What waits for the answer calls `look` meanwhile. The median of a round's time.
fn rounds(side: &Side, own: &Mr, far: RemoteSlice, first: bool, look: impl Fn()) -> Duration {
    let mut times = Vec::new();
    for round in 1..=ROUNDS {
        let start = Instant::now();
        let wait = || {
            while own.load_u64(0).expect("a word") != round {
                look();
                std::hint::spin_loop();
            }
        };
        if !first {
            wait();
        }
        side.qp.post(Work::write(side.buffer(&round.to_ne_bytes()), far)).expect("room");
        assert_eq!(side.status(), WcStatus::Success);
        if first {
            wait();
        }
        times.push(start.elapsed());
    }
    times.sort_unstable();
    *times.get(times.len() / 2).expect("rounds")
}

const ROUNDS: u64 = 300;

/// Goal: a program that polls for its own completion and then looks at nothing but its memory, as perftest does to
/// measure the latency of WRITE, is not served by the ticks of a helper that looks now and then.
/// Method: the same with a step of the device in each look at the memory, for comparison; medians, of which a few pairs are
/// taken, as a machine may be busier in one half of a pair than in the other.
#[test]
fn a_program_that_polls_its_memory_is_served_when_something_arrives() {
    over_udp("passive::a_program_that_polls_its_memory_is_served_when_something_arrives", || {
        let measure = |drives: bool| {
            let setup = Setup { path: Some(Path::Udp), timeout: 20, ..Setup::default() };
            let pair = setup.pair();
            let [near, far] = [&pair.a, &pair.b].map(|side| side.region(&[0; 8]));
            let (context, other) = (&pair.context, &pair.far);
            std::thread::scope(|scope| {
                let answers = || {
                    let look = || {
                        drives.then(|| other.drive());
                    };
                    rounds(&pair.b, &far, remote(&near), false, look)
                };
                scope.spawn(answers);
                let look = || {
                    drives.then(|| context.drive());
                };
                rounds(&pair.a, &near, remote(&far), true, look)
            })
        };
        let is_served = |_| {
            let [driven, left] = [true, false].map(measure);
            println!(
                "a round takes {driven:?} if both drive, {left:?} if both look at their memory"
            );
            left < 60 * driven
        };
        assert!((0..5).any(is_served), "it is not served");
    });
}
