//! Programs that do not poll: they are served, and they cost nothing.

use crate::agent::Agent;
use crate::alone::alone;
use crate::pair::{Setup, pattern};
use adverb_verbs::{Context, Memory, WcStatus, Work};
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
