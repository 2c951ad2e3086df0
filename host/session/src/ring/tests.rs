//! Tests of the ring: a few by hand, and many against a plain list.

use super::*;
use crate::adapter::Adapter;
use crate::config::Config;
use proptest::prelude::*;
use std::collections::VecDeque;

const FLUSHED: WcStatus = WcStatus::WorkRequestFlushed;

fn block() -> Block {
    let adapter = Adapter::open(Config::default()).unwrap();
    adapter.buffer(1, 8).unwrap().at(0).unwrap()
}

fn ring(depth: u32, posted: u64) -> Ring {
    let mut ring = Ring::new(Queue::Send, depth);
    let block = block();
    for _ in 0..posted {
        ring.post(Operation::Write, Some(block.clone()), Claim::Poll);
    }
    ring
}

fn numbers(ring: &mut Ring) -> Vec<u64> {
    std::iter::from_fn(|| ring.next().map(|event| event.ticket.number)).collect()
}

#[test]
fn one_completion_ends_all_work_before_it() {
    let mut ring = ring(4, 4);
    ring.complete(2, WcStatus::Success, None);
    assert_eq!((ring.in_flight(), ring.untaken()), (1, 3));
    assert_eq!(numbers(&mut ring), [0, 1, 2]);
}

#[test]
fn what_failed_fails_alone_and_what_was_before_has_succeeded() {
    let mut ring = ring(4, 3);
    ring.complete(1, WcStatus::RemoteAccess, None);
    ring.complete(2, FLUSHED, None);
    let statuses: Vec<_> = std::iter::from_fn(|| ring.next().map(|event| event.status)).collect();
    assert_eq!(statuses, [WcStatus::Success, WcStatus::RemoteAccess, FLUSHED]);
}

#[test]
fn a_place_is_free_only_when_the_event_is_taken() {
    let mut ring = ring(2, 2);
    assert_eq!(ring.room(), 0);
    ring.complete(0, WcStatus::Success, None);
    assert_eq!(ring.room(), 0);
    assert!(ring.next().is_some());
    assert_eq!(ring.room(), 1);
}

#[test]
fn a_claimed_event_waits_for_its_waiter() {
    let mut ring = ring(4, 3);
    ring.claim(1, Claim::Waiter);
    assert!(matches!(ring.take(1), Fate::Pending));
    ring.complete(2, WcStatus::Success, None);
    assert_eq!(numbers(&mut ring), [0, 2]);
    assert_eq!(ring.room(), 2); // The waiter's place holds up the one after it.
    assert!(matches!(ring.take(1), Fate::Done(event) if event.ticket.number == 1));
    assert_eq!(ring.room(), 4);
    assert!(matches!(ring.take(1), Fate::Taken));
    assert!(matches!(ring.take(99), Fate::Taken));
}

#[test]
fn nobody_hears_of_work_without_a_block() {
    let mut ring = ring(2, 1);
    ring.post(Operation::Write, None, Claim::Poll);
    ring.complete(1, WcStatus::Success, None);
    assert_eq!(numbers(&mut ring), [0]);
    assert_eq!(ring.room(), 2);
}

#[test]
fn wr_ids_carry_the_queue() {
    for queue in [Queue::Send, Queue::Receive] {
        let ticket = Ticket { queue, number: 77 };
        assert_eq!(Ticket::from_wr_id(ticket.to_wr_id()), ticket);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Post,
    Complete(u64),
    /// Completes the oldest and takes its event at once.
    Finish,
    Next,
    TakeInto(usize),
    Claim(u64),
    Take(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Post),
        2 => (0..4_u64).prop_map(Step::Complete),
        2 => Just(Step::Finish),
        2 => Just(Step::Next),
        1 => (0..3_usize).prop_map(Step::TakeInto),
        1 => (0..4_u64).prop_map(Step::Claim),
        1 => (0..6_u64).prop_map(Step::Take),
    ]
}

proptest! {
    /// Goal: every piece of work has exactly one event, and no more fit than there are places.
    /// Method: a list of (number, done, claimed) says what the ring should do.
    #[test]
    fn a_ring_does_as_a_list_would(
        depth in 1..5_u32,
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let block = block();
        let mut ring = Ring::new(Queue::Send, depth);
        let mut list: VecDeque<(u64, bool, bool)> = VecDeque::new();
        let mut posted = 0;
        for step in steps {
            match step {
                Step::Post if ring.room() > 0 => {
                    prop_assert_eq!(ring.next_ticket().number, posted);
                    ring.post(Operation::Send, Some(block.clone()), Claim::Poll);
                    list.push_back((posted, false, false));
                    posted += 1;
                }
                Step::Post => {}
                Step::Complete(ahead) => {
                    let number = ring.done + ahead;
                    if number < posted {
                        ring.complete(number, WcStatus::Success, None);
                        list.iter_mut().filter(|w| w.0 <= number).for_each(|w| w.1 = true);
                    }
                }
                Step::Finish => {
                    // The oldest can be done and taken at once, if no call waits for it.
                    let number = ring.done;
                    let is_next = list.front().is_some_and(|w| *w == (number, false, false));
                    prop_assert_eq!(ring.is_next(number), is_next);
                    if is_next {
                        let event = ring.finish_next(None).unwrap();
                        prop_assert_eq!(Some(event.ticket.number), list.pop_front().map(|w| w.0));
                        prop_assert_eq!(event.status, WcStatus::Success);
                    }
                }
                Step::TakeInto(room) => {
                    let mut events = Vec::with_capacity(room);
                    ring.take_into(&mut events);
                    for event in &events {
                        let at = list.iter().position(|(_, done, claimed)| *done && !claimed);
                        let expected = at.and_then(|at| list.remove(at)).map(|w| w.0);
                        prop_assert_eq!(Some(event.ticket.number), expected);
                    }
                    let left = list.iter().any(|(_, done, claimed)| *done && !claimed);
                    prop_assert!(events.len() == room || !left);
                }
                Step::Next => {
                    let at = list.iter().position(|(_, done, claimed)| *done && !claimed);
                    let expected = at.and_then(|at| list.remove(at)).map(|w| w.0);
                    prop_assert_eq!(ring.next().map(|event| event.ticket.number), expected);
                }
                Step::Claim(ahead) => {
                    let number = ring.free + ahead;
                    ring.claim(number, Claim::Waiter);
                    list.iter_mut().filter(|w| w.0 == number).for_each(|w| w.2 = true);
                }
                Step::Take(ahead) => {
                    let number = ring.free + ahead;
                    let at = list.iter().position(|w| w.0 == number);
                    match (ring.take(number), at.map(|at| list[at])) {
                        (Fate::Pending, Some((_, false, _))) | (Fate::Taken, None) => {}
                        (Fate::Done(event), Some((_, true, _))) => {
                            prop_assert_eq!(event.ticket.number, number);
                            list.remove(at.unwrap());
                        }
                        (fate, expected) => prop_assert!(false, "{fate:?} for {expected:?}"),
                    }
                }
            }
            let oldest = list.front().map_or(posted, |w| w.0);
            let done = list.iter().filter(|w| !w.1).count();
            prop_assert_eq!(ring.in_flight(), u64::try_from(done).unwrap());
            prop_assert_eq!(ring.room(), u64::from(depth) - (posted - oldest));
            prop_assert_eq!(ring.awaits_anything(), list.iter().any(|w| !w.2));
        }
    }
}
