//! The completer alone: acknowledgements and data in, verdicts out.

use super::*;
use crate::attributes::RetryCount;
use crate::cutting::Cutting;
use crate::segment::Segment;
use crate::send_queue::Entry;
use crate::status::WcOpcode;
use crate::testing::{ATOMIC, Desk, FIRST, MTU, PATH, READ, SEND, WRITE, request, settings};
use crate::time::AckTimeout;
use crate::work::RequestKind;
use alloc::vec::Vec;

const NOW: Time = Time::from_nanos(1_000);

/// A completer, the requests under way, and what happened to them.
struct Flight {
    completer: Completer,
    queue: SendQueue,
    desk: Desk,
    top: u64,
    paused: bool,
}

/// Everything is emitted; start PSN 0xfffffe, so that most windows straddle the wrap.
fn in_flight(work: &[(RequestKind, u32)]) -> Flight {
    in_flight_with(&settings(), work)
}

fn in_flight_with(settings: &Settings, work: &[(RequestKind, u32)]) -> Flight {
    let mut queue = SendQueue::with_capacity(16);
    let mut top = 0;
    for &(kind, len) in work {
        let request = request(kind, len);
        let cutting = Cutting::of(&request, Segment::of(MTU), false, false, 0);
        queue.push(Entry { start: top, cutting, ..Entry::new(request) }).unwrap();
        top += u64::from(cutting.packets);
    }
    let mut completer = Completer::new(&PATH, settings);
    completer.arm(top, NOW);
    Flight { completer, queue, desk: Desk::new(), top, paused: false }
}

impl Flight {
    fn sent(&self) -> Sent {
        let unacked = u32::try_from(self.completer.unacked()).unwrap();
        Sent { unacked_psn: FIRST.plus(unacked), top: self.top, paused: self.paused, now: NOW }
    }

    fn ack(&mut self, at: u32, syndrome: Syndrome) -> Verdict {
        let (psn, sent) = (FIRST.plus(at), self.sent());
        self.completer.on_ack(psn, syndrome, sent, &mut self.queue, &mut self.desk)
    }

    fn data(&mut self, at: u32, operation: Operation, len: usize) -> Verdict {
        let (psn, sent) = (FIRST.plus(at), self.sent());
        let data = &[0; 4096][..len];
        self.completer.on_data(psn, operation, data, sent, &mut self.queue, &mut self.desk)
    }

    /// Indices of the requests that have ended well.
    fn done(&self) -> Vec<u64> {
        assert!(self.desk.sent.iter().all(|done| done.status == WcStatus::Success));
        self.desk.sent.iter().map(|done| done.index).collect()
    }
}

const HOLE: Syndrome = Syndrome::Nak(Nak::SequenceError);
const MIDDLE: Operation = Operation::ReadResponseMiddle;

#[test]
fn an_acknowledgement_covers_all_up_to_its_packet() {
    let mut flight = in_flight(&[(SEND, 1), (WRITE, 600), (SEND, 1)]);
    assert_eq!(flight.ack(2, Syndrome::ACK), Verdict::Progress);
    assert_eq!((flight.done(), flight.completer.unacked()), (Vec::from([0]), 3));
    assert_eq!(flight.ack(4, Syndrome::ACK), Verdict::Progress);
    assert_eq!((flight.done(), flight.completer.unacked()), (Vec::from([0, 1, 2]), 5));
    assert_eq!(flight.desk.sent[1].opcode, WcOpcode::RdmaWrite);
}

#[test]
fn acknowledgements_from_outside_the_window_are_ignored() {
    let mut flight = in_flight(&[(WRITE, 600)]);
    let far = 1 << 20;
    for at in [3, 4, far, 0xff_ffff, 0xff_ffff - far] {
        for syndrome in [Syndrome::ACK, HOLE, Syndrome::Nak(Nak::RemoteAccess)] {
            assert_eq!(flight.ack(at, syndrome), Verdict::Ignore, "{at} {syndrome:?}");
        }
        assert_eq!(flight.data(at, MIDDLE, 256), Verdict::Ignore, "{at}");
    }
    assert_eq!(flight.completer.unacked(), 0);
}

/// Goal: a hole costs one resend, and a second refusal of the same hole is fatal.
/// Method: retries is 1; progress in between must refill it.
#[test]
fn a_sequence_error_resends_from_the_hole_until_the_budget_is_spent() {
    let mut flight = in_flight(&[(WRITE, 256 * 6)]); // Packets 0xfffffe ..= 3.
    assert_eq!(flight.ack(3, HOLE), Verdict::Resend { from: 3 });
    assert_eq!(flight.ack(4, HOLE), Verdict::Resend { from: 4 }); // Packet 3 arrived: refilled.
    assert_eq!(flight.ack(4, HOLE), Verdict::Fail(WcStatus::RetryExceeded));
}

#[test]
fn a_refusal_acknowledges_what_was_before_it() {
    let codes = [
        (Nak::InvalidRequest, WcStatus::RemoteInvalidRequest),
        (Nak::RemoteAccess, WcStatus::RemoteAccess),
        (Nak::RemoteOperation, WcStatus::RemoteOperation),
    ];
    for (code, status) in codes {
        let mut flight = in_flight(&[(SEND, 1), (WRITE, 600)]);
        assert_eq!(flight.ack(1, Syndrome::Nak(code)), Verdict::Fail(status));
        assert_eq!(flight.done(), [0]);
    }
}

#[test]
fn a_peer_without_a_receive_is_left_alone_as_often_as_agreed() {
    let mut flight = in_flight(&[(SEND, 1), (SEND, 1)]);
    let timer = adverb_wire::RnrTimer::new(3);
    let until = NOW.plus_nanos(timer.nanos());
    let refusal = Syndrome::RnrNak(timer);
    assert_eq!(flight.ack(0, refusal), Verdict::Pause { from: 0, until });
    assert_eq!(flight.completer.deadline(), None, "the pause is the clock now");
    assert_eq!(flight.ack(1, refusal), Verdict::Pause { from: 1, until }); // Refilled.
    flight.paused = true;
    assert_eq!(flight.ack(1, refusal), Verdict::Ignore); // A copy.
    flight.paused = false;
    assert_eq!(flight.ack(1, refusal), Verdict::Fail(WcStatus::RnrRetryExceeded));
}

#[test]
fn data_land_where_they_belong_and_the_last_of_them_ends_the_read() {
    let mut flight = in_flight(&[(SEND, 1), (READ, 600)]);
    for (at, operation, len) in [
        (1, Operation::ReadResponseFirst, 256),
        (2, MIDDLE, 256),
        (3, Operation::ReadResponseLast, 88),
    ] {
        assert_eq!(flight.done().len(), usize::from(at > 1));
        assert_eq!(flight.data(at, operation, len), Verdict::Progress);
    }
    assert_eq!(flight.done(), [0, 1]);
    let places: Vec<_> = flight.desk.landed.iter().map(|&(_, offset, len)| (offset, len)).collect();
    assert_eq!(places, [(0, 256), (256, 256), (512, 88)]);
}

#[test]
fn an_acknowledgement_does_not_end_a_read() {
    let mut flight = in_flight(&[(READ, 100), (SEND, 1)]);
    assert_eq!(flight.ack(1, Syndrome::ACK), Verdict::Resend { from: 0 });
    assert_eq!(flight.done(), []);
}

/// Goal: late answers to the first attempt do not use up the retries of the second.
#[test]
fn a_gap_in_the_data_is_acted_on_once() {
    let mut flight = in_flight(&[(READ, 256 * 6)]);
    assert_eq!(flight.data(0, Operation::ReadResponseFirst, 256), Verdict::Progress);
    assert_eq!(flight.data(2, MIDDLE, 256), Verdict::Resend { from: 1 });
    for at in 3..6 {
        assert_eq!(flight.data(at, MIDDLE, 256), Verdict::Progress);
    }
    assert_eq!(flight.data(1, MIDDLE, 256), Verdict::Progress);
    assert_eq!(flight.completer.unacked(), 2);
    assert_eq!(flight.data(3, MIDDLE, 256), Verdict::Resend { from: 2 });
}

#[test]
fn without_a_timeout_a_known_hole_has_its_own_clock() {
    let patient = Settings { timeout: AckTimeout::FOREVER, ..settings() };
    let mut flight = in_flight_with(&patient, &[(READ, 256 * 6)]);
    assert_eq!(flight.data(1, MIDDLE, 256), Verdict::Resend { from: 0 });
    assert_eq!(flight.completer.deadline(), None);
    assert_eq!(flight.data(2, MIDDLE, 256), Verdict::Progress);
    let deadline = flight.completer.deadline().expect("a clock");
    assert_eq!(flight.completer.on_timer(8, 8, NOW), None);
    let verdict = flight.completer.on_timer(8, 8, deadline);
    assert_eq!(verdict, Some(Verdict::Fail(WcStatus::RetryExceeded)));
}

/// Goal: a peer that does not answer is waited for ever longer, up to four times a short ACK time-out, and anew once it does.
#[test]
fn short_time_outs_grow_to_four_times_until_there_is_progress() {
    for (exponent, times) in [(10, [1, 2, 4, 4, 4]), (15, [1, 2, 2, 2, 2]), (17, [1; 5])] {
        time_outs_grow(exponent, times);
    }
}

fn time_outs_grow(exponent: u8, times: [u64; 5]) {
    let timeout = AckTimeout::from_exponent(exponent).unwrap();
    let settings = Settings { retry_count: RetryCount::new(4).unwrap(), timeout, ..settings() };
    let timeout = timeout.nanos().unwrap();
    let mut flight = in_flight_with(&settings, &[(SEND, 1), (SEND, 1)]);
    let mut now = NOW;
    let mut waits = Vec::new();
    loop {
        let deadline = flight.completer.deadline.expect("a clock");
        waits.push(deadline.nanos() - now.nanos());
        now = deadline;
        let verdict = flight.completer.on_timer(2, 2, now);
        if verdict == Some(Verdict::Fail(WcStatus::RetryExceeded)) {
            break;
        }
        assert_eq!(verdict, Some(Verdict::Resend { from: 0 }));
        flight.completer.arm(2, now);
    }
    assert_eq!(waits, times.map(|times| times * timeout), "{exponent}");
    assert_eq!(flight.ack(0, Syndrome::ACK), Verdict::Progress);
    flight.completer.arm(2, now);
    assert_eq!(flight.completer.deadline, Some(now.plus_nanos(timeout)));
}

#[test]
fn answers_that_do_not_fit_their_request_are_bad_responses() {
    let lines = [
        (READ, 600, MIDDLE, 255),
        (READ, 600, MIDDLE, 0),
        (READ, 100, Operation::ReadResponseOnly, 101),
        (READ, 8, Operation::AtomicAcknowledge, 8),
        (ATOMIC, 8, Operation::ReadResponseOnly, 8),
    ];
    for (kind, len, operation, data) in lines {
        let mut flight = in_flight(&[(kind, len)]);
        let verdict = flight.data(0, operation, data);
        assert_eq!(verdict, Verdict::Fail(WcStatus::BadResponse), "{kind:?} {operation:?}");
    }
    let mut flight = in_flight(&[(SEND, 10)]);
    assert_eq!(flight.data(0, MIDDLE, 256), Verdict::Ignore);
}

#[test]
fn data_without_a_place_to_land_fail_the_request() {
    let mut flight = in_flight(&[(READ, 10)]);
    flight.desk.local = false;
    let verdict = flight.data(0, Operation::ReadResponseOnly, 10);
    assert_eq!(verdict, Verdict::Fail(WcStatus::LocalProtection));
}

#[test]
fn the_clock_probes_resends_from_the_oldest_packet_and_then_gives_up() {
    let mut flight = in_flight(&[(WRITE, 600)]);
    let deadline = NOW.plus_nanos(4096 << 10);
    assert_eq!(flight.completer.on_timer(8, 8, NOW), None);
    for millis in [1, 3] {
        let probe = NOW.plus_nanos(millis * 1_000_000);
        assert_eq!(flight.completer.deadline(), Some(probe));
        assert_eq!(
            flight.completer.on_timer(8, 8, probe),
            Some(Verdict::Probe { from: 0, to: None })
        );
    }
    assert_eq!(flight.completer.deadline(), Some(deadline), "a probe does not move the time-out");
    assert_eq!(flight.completer.on_timer(8, 8, deadline), Some(Verdict::Resend { from: 0 }));
    assert_eq!(flight.completer.on_timer(8, 8, deadline), None, "the clock has to be set again");
    flight.completer.arm(3, deadline);
    let late = deadline.plus_nanos(1 << 40);
    assert_eq!(flight.completer.on_timer(8, 8, late), Some(Verdict::Fail(WcStatus::RetryExceeded)));
}

#[test]
fn there_is_no_clock_when_nothing_is_under_way() {
    let mut flight = in_flight(&[(SEND, 1)]);
    assert_eq!(flight.ack(0, Syndrome::ACK), Verdict::Progress);
    flight.completer.arm(1, NOW);
    assert_eq!(flight.completer.deadline(), None);
}

/// Goal: both ways of acknowledging an ATOMIC WRITE are understood.
#[test]
fn an_atomic_write_ends_with_an_acknowledgement_or_the_answer_to_a_read_of_nothing() {
    let kind = RequestKind::AtomicWrite { va: 0, rkey: crate::testing::RKEY };
    let mut flight = in_flight(&[(kind, 8), (kind, 8), (kind, 8), (SEND, 1)]);
    assert_eq!(flight.data(0, Operation::ReadResponseOnly, 0), Verdict::Progress);
    assert_eq!(flight.done(), [0]);
    assert_eq!(flight.data(1, Operation::ReadResponseOnly, 8), Verdict::Ignore);
    assert_eq!(flight.data(1, Operation::ReadResponseFirst, 0), Verdict::Ignore);
    assert_eq!(flight.data(2, Operation::ReadResponseOnly, 0), Verdict::Progress);
    assert_eq!(flight.done(), [0, 1, 2]);
    assert_eq!(flight.desk.sent[0].opcode, WcOpcode::AtomicWrite);
    assert_eq!(flight.data(3, Operation::ReadResponseOnly, 0), Verdict::Ignore);

    let mut flight = in_flight(&[(kind, 8)]);
    assert_eq!(flight.ack(0, Syndrome::ACK), Verdict::Progress);
    assert_eq!(flight.done(), [0]);
}

/// Goal: modifying a queue pair again and again does not keep a dead connection alive.
#[test]
fn a_budget_is_refilled_by_new_limits_only() {
    let mut flight = in_flight(&[(WRITE, 256 * 6)]);
    assert_eq!(flight.ack(0, HOLE), Verdict::Resend { from: 0 });
    flight.completer.set_limits(&settings());
    assert_eq!(flight.ack(0, HOLE), Verdict::Fail(WcStatus::RetryExceeded));
    let retry_count = RetryCount::MAX;
    flight.completer.set_limits(&Settings { retry_count, ..settings() });
    assert_eq!(flight.ack(0, HOLE), Verdict::Resend { from: 0 });
}
