//! The list alone: queue pairs that owe acknowledgements, a clock that the test sets, and what leaves when.

use super::*;
use crate::port::pacing::Pacing;
use crate::port::schedule::Schedule;
use crate::qp::QpOptions;
use crate::testing::{Desk, PEER, SEND, asking, connect, read_request, request, send_only};
use adverb_wire::Packet;
use core::cell::{Cell, RefCell};

const START: Time = Time::from_nanos(1_000_000);
const FIRST: Qpn = Qpn::new(0x11);
const SECOND: Qpn = Qpn::new(0x12);
/// How long an acknowledgement is held, in nanoseconds.
const HOLD: u64 = 25_000;

/// A port of nothing but queue pairs.
#[derive(Debug)]
struct Table {
    surface: Notices,
    rows: Vec<Row>,
    now: Time,
}

#[derive(Debug, Default)]
struct Notices {
    schedule: RefCell<Schedule>,
    open: Cell<Option<Qpn>>,
    noticed: Cell<u32>,
}

#[derive(Debug)]
struct Row {
    number: Qpn,
    qp: Qp,
    pacing: Pacing,
    desk: Desk,
    /// Messages that the peer has sent.
    messages: i32,
    /// Turns to emit that it was given.
    turns: u32,
}

impl Table {
    fn of(numbers: &[Qpn]) -> Self {
        let row = |number: &Qpn| {
            let mut qp = Qp::new(QpOptions::rc(*number, 8));
            connect(&mut qp);
            let desk = Desk::with_receives(100, 100);
            Row { number: *number, qp, pacing: Pacing::default(), desk, messages: 0, turns: 0 }
        };
        let rows = numbers.iter().map(row).collect();
        Self { surface: Notices::default(), rows, now: START }
    }

    fn row(&mut self, number: Qpn) -> &mut Row {
        self.rows.iter_mut().find(|row| row.number == number).unwrap()
    }

    /// The peer's next message arrives, and `driver` delivers it.
    fn arrive(&mut self, waiting: &mut Waiting, number: Qpn, driver: Driver, published: u32) {
        let message = asking(send_only(self.row(number).messages));
        self.deliver(waiting, number, &message, driver, published);
    }

    fn deliver(
        &mut self,
        waiting: &mut Waiting,
        number: Qpn,
        message: &Packet<'_>,
        driver: Driver,
        published: u32,
    ) {
        let now = self.now;
        let row = self.row(number);
        row.qp.on_packet(message, PEER, now, &mut row.desk);
        row.messages += 1;
        let given = Given { published, only_served: published > 0 };
        assert_eq!(waiting.release(&mut self.seat(number).unwrap(), given, driver), 0);
    }

    /// A message arrives, the program has it, answers, and polls again.
    fn converse(&mut self, waiting: &mut Waiting, number: Qpn) {
        self.arrive(waiting, number, Driver::Program, 1);
        self.row(number).pacing.acks.on_answer();
        assert!(!waiting.acknowledge(self, Look::Usual), "nothing has completed");
    }

    /// Acknowledgements that have left since the last look, by the messages that each stands for.
    fn acks(&mut self, number: Qpn) -> Vec<u32> {
        self.row(number).desk.acks().into_iter().map(|(_, _, msn)| msn).collect()
    }

    /// Looks at those held, so many nanoseconds after the start.
    fn held(&mut self, waiting: &mut Waiting, at: u64, look: Look) {
        self.now = START.plus_nanos(at);
        let now = self.now;
        waiting.acknowledge_held(self, now, look);
    }
}

impl Surface for Notices {
    fn leave_open(&self, number: Qpn) -> bool {
        let is_free = self.open.get().is_none_or(|open| open == number);
        if is_free {
            self.open.set(Some(number));
        }
        is_free
    }

    fn is_open(&self, number: Qpn) -> bool {
        self.open.get() == Some(number)
    }

    fn take_open(&self) -> Option<Qpn> {
        self.open.take()
    }

    fn schedule<R>(&self, run: impl FnOnce(&mut Schedule) -> R) -> R {
        run(&mut self.schedule.borrow_mut())
    }

    fn notice(&self, _at: Time) {
        self.noticed.set(self.noticed.get() + 1);
    }
}

#[derive(Debug)]
struct Chair<'a> {
    surface: &'a Notices,
    row: &'a mut Row,
    now: Time,
}

impl Seat for Chair<'_> {
    type Surface = Notices;

    fn surface(&self) -> &Notices {
        self.surface
    }

    fn number(&self) -> Qpn {
        self.row.number
    }

    fn parts(&mut self) -> (&mut Qp, &mut Pacing) {
        (&mut self.row.qp, &mut self.row.pacing)
    }

    fn now(&mut self) -> Time {
        self.now
    }

    fn transmit(&mut self, acks: Acks) -> Aftermath {
        let Row { qp, pacing, desk, turns, .. } = &mut *self.row;
        *turns += 1;
        let before = qp.counters().sent_pkts;
        pacing.on_transmit();
        let more = qp.transmit(self.now, acks == Acks::Now, desk);
        pacing.on_transmitted(qp, before, more, 0)
    }

    fn settle(&mut self) -> u32 {
        self.row.pacing.late = None;
        0
    }
}

impl Seats for Table {
    type Surface = Notices;
    type Seat<'a> = Chair<'a>;

    fn surface(&self) -> &Notices {
        &self.surface
    }

    fn seat(&mut self, number: Qpn) -> Option<Chair<'_>> {
        let (surface, now) = (&self.surface, self.now);
        let row = self.rows.iter_mut().find(|row| row.number == number)?;
        Some(Chair { surface, row, now })
    }
}

#[test]
fn the_program_has_its_completion_before_its_peer_has_an_acknowledgement() {
    let (mut table, mut waiting) = (Table::of(&[FIRST]), Waiting::default());
    table.arrive(&mut waiting, FIRST, Driver::Program, 1);
    assert_eq!(table.acks(FIRST), []);
    assert!(waiting.has(FIRST) && waiting.is_pressing() && waiting.has_packets());
    assert_eq!(table.surface.noticed.get(), 1, "the helper has to send it if no call follows");

    // The next call brings no answer: the peer may wait for the acknowledgement.
    waiting.acknowledge(&mut table, Look::Usual);
    assert_eq!(table.acks(FIRST), [1]);
    assert!(waiting.is_empty() && !waiting.is_pressing() && !waiting.owes_packets());
    assert_eq!(waiting.due(), None);
}

/// Goal: a queue pair that could only emit an acknowledgement, which waits, has no turn; one that has more has one.
#[test]
fn only_what_can_leave_with_company_has_a_turn_when_a_message_has_come() {
    let (packets, records) = (AckCost::Packets, AckCost::Records);
    let send = asking(send_only(0));
    for (cost, message, posts, turns) in [
        (packets, send, false, 0),
        (packets, send, true, 1),
        (packets, read_request(0, 10), false, 1),
        (records, send, false, 1),
    ] {
        let (mut table, mut waiting) = (Table::of(&[FIRST]), Waiting::default());
        let row = table.row(FIRST);
        row.pacing.set_ack_cost(cost);
        if posts {
            row.qp.post(request(SEND, 8)).unwrap();
        }
        table.deliver(&mut waiting, FIRST, &message, Driver::Program, 0);
        let row = table.row(FIRST);
        assert_eq!(row.turns, turns, "{cost:?} {message:?} {posts}");
        let reads = message != send;
        assert_eq!(row.desk.emitted.len(), usize::from(reads || posts));
        assert_eq!(waiting.has(FIRST), !reads);
    }
}

#[test]
fn an_answered_message_is_acknowledged_when_its_time_has_come_and_not_before() {
    let (mut table, mut waiting) = (Table::of(&[FIRST]), Waiting::default());
    table.converse(&mut waiting, FIRST);
    assert_eq!(waiting.due(), Some(START.plus_nanos(HOLD)));
    assert!(waiting.has(FIRST) && waiting.owes_packets() && !waiting.has_packets());
    table.held(&mut waiting, HOLD - 1, Look::Usual);
    assert_eq!(table.acks(FIRST), []);
    table.held(&mut waiting, HOLD, Look::Usual);
    assert_eq!(table.acks(FIRST), [1]);
    assert_eq!(waiting.due(), None);

    // A peer that has sent nothing in all that time, and again, waits: its next acknowledgements leave with answers.
    for turn in 2..=3 {
        table.now = START.plus_nanos(turn * HOLD);
        table.converse(&mut waiting, FIRST);
        table.held(&mut waiting, (turn + 1) * HOLD, Look::Usual);
    }
    assert_eq!(table.acks(FIRST), [2, 3]);
    table.arrive(&mut waiting, FIRST, Driver::Program, 1);
    assert!(table.row(FIRST).pacing.acks.on_answer());
}

/// Goal: an entry of those held whose acknowledgement has left does nothing when its time comes.
#[test]
fn the_acknowledgement_of_eight_messages_leaves_at_once_and_the_next_one_in_its_own_time() {
    let (mut table, mut waiting) = (Table::of(&[FIRST]), Waiting::default());
    for _ in 0..8 {
        table.converse(&mut waiting, FIRST);
    }
    assert_eq!(table.acks(FIRST), [8]);
    assert!(waiting.has(FIRST), "among those held, until its time comes");
    table.now = START.plus_nanos(5_000);
    table.converse(&mut waiting, FIRST);
    table.held(&mut waiting, HOLD, Look::Usual);
    assert_eq!(table.acks(FIRST), []);
    assert_eq!(waiting.due(), Some(START.plus_nanos(HOLD + 5_000)));
    table.held(&mut waiting, HOLD + 5_000, Look::Usual);
    assert_eq!(table.acks(FIRST), [9]);
    assert_eq!(waiting.due(), None);
}

#[test]
fn one_that_is_held_again_goes_behind_those_that_are_due_before_it() {
    let (mut table, mut waiting) = (Table::of(&[FIRST, SECOND]), Waiting::default());
    table.converse(&mut waiting, FIRST);
    table.now = START.plus_nanos(5_000);
    table.converse(&mut waiting, SECOND);
    // More has come for both: neither peer waits.
    table.converse(&mut waiting, FIRST);
    table.converse(&mut waiting, SECOND);
    table.held(&mut waiting, HOLD, Look::Usual);
    assert_eq!(waiting.due(), Some(START.plus_nanos(HOLD + 5_000)), "the second comes first now");
    table.held(&mut waiting, HOLD + 5_000, Look::Usual);
    assert_eq!(waiting.due(), Some(START.plus_nanos(2 * HOLD)));
    assert_eq!((table.acks(FIRST), table.acks(SECOND)), (Vec::new(), Vec::new()));

    // Not for a third time, whatever has come.
    table.converse(&mut waiting, FIRST);
    table.held(&mut waiting, 2 * HOLD, Look::Usual);
    assert_eq!((table.acks(FIRST), table.acks(SECOND)), (Vec::from([3]), Vec::new()));
    table.held(&mut waiting, 2 * HOLD + 5_000, Look::Usual);
    assert_eq!(table.acks(SECOND), [2]);
    assert_eq!(waiting.due(), None);
}

/// Goal: one that is held again by a look that comes late goes before those that have been held since.
#[test]
fn one_that_is_held_again_late_stays_before_those_that_are_due_after_it() {
    let (mut table, mut waiting) = (Table::of(&[FIRST, SECOND]), Waiting::default());
    table.converse(&mut waiting, FIRST);
    table.converse(&mut waiting, FIRST);
    table.now = START.plus_nanos(HOLD + 5_000);
    table.converse(&mut waiting, SECOND);
    table.held(&mut waiting, HOLD + 10_000, Look::Usual);
    assert_eq!(waiting.due(), Some(START.plus_nanos(2 * HOLD)));
    assert_eq!(table.acks(FIRST), []);
    table.held(&mut waiting, 2 * HOLD, Look::Usual);
    assert_eq!((table.acks(FIRST), table.acks(SECOND)), (Vec::from([2]), Vec::new()));
    assert_eq!(waiting.due(), Some(START.plus_nanos(2 * HOLD + 5_000)));
}

#[test]
fn nothing_is_held_once_the_program_has_stopped_calling() {
    let (mut table, mut waiting) = (Table::of(&[FIRST, SECOND]), Waiting::default());
    table.converse(&mut waiting, FIRST);
    table.arrive(&mut waiting, SECOND, Driver::Program, 1);
    table.row(SECOND).pacing.acks.on_answer();
    waiting.acknowledge(&mut table, Look::Everything);
    assert_eq!((table.acks(FIRST), table.acks(SECOND)), (Vec::new(), Vec::from([1])));
    table.held(&mut waiting, 1, Look::Everything);
    assert_eq!(table.acks(FIRST), [1]);
    assert!(!waiting.owes_packets());
}

/// Goal: the helper holds what it has delivered for a program that is at work, and for no other.
#[test]
fn the_helper_holds_acknowledgements_only_if_it_is_patient() {
    for is_patient in [false, true] {
        let (mut table, mut waiting) = (Table::of(&[FIRST]), Waiting::default());
        waiting.set_patient(is_patient);
        table.arrive(&mut waiting, FIRST, Driver::Helper, 0);
        assert_eq!(table.acks(FIRST).is_empty(), is_patient);
        assert_eq!(waiting.due().is_some(), is_patient);
        // What completes a receive is the program's to answer, and it is not known to look soon.
        table.arrive(&mut waiting, FIRST, Driver::Helper, 1);
        assert_eq!(table.acks(FIRST), [2]);
    }
}

/// Goal: a queue pair that has gone keeps those behind it from nothing.
#[test]
fn queue_pairs_that_have_gone_are_skipped() {
    for is_held in [false, true] {
        let (mut table, mut waiting) = (Table::of(&[FIRST, SECOND]), Waiting::default());
        // The list is taken from its end, those held from their beginning.
        let (goes, stays) = if is_held { (FIRST, SECOND) } else { (SECOND, FIRST) };
        for number in [FIRST, SECOND] {
            if is_held {
                table.converse(&mut waiting, number);
            } else {
                table.arrive(&mut waiting, number, Driver::Program, 1);
            }
        }
        table.rows.retain(|row| row.number != goes);
        assert!(!waiting.acknowledge(&mut table, Look::Usual));
        table.held(&mut waiting, HOLD, Look::Usual);
        assert_eq!(table.acks(stays), [1]);
        assert!(waiting.is_empty() && !waiting.owes_packets());
    }
}

/// Goal: as a record in memory it costs little, so it leaves in a quiet moment, and is never held.
#[test]
fn a_record_waits_for_a_quiet_moment_and_presses_if_the_peer_asks_for_it() {
    for asked in [false, true] {
        let (mut table, mut waiting) = (Table::of(&[FIRST]), Waiting::default());
        table.row(FIRST).pacing.set_ack_cost(AckCost::Records);
        table.row(FIRST).pacing.acks.on_message(asked);
        table.arrive(&mut waiting, FIRST, Driver::Program, 1);
        assert_eq!(waiting.is_pressing(), asked);
        assert!(waiting.has(FIRST) && !waiting.has_packets());
        table.row(FIRST).pacing.acks.on_answer();
        waiting.acknowledge(&mut table, Look::Usual);
        assert_eq!(table.acks(FIRST), [1]);
        assert_eq!(waiting.due(), None);
    }
}

/// Goal: the list has an end, and what finds no place on it is not lost.
#[test]
fn an_acknowledgement_that_finds_the_list_full_leaves_at_once() {
    let (mut table, mut waiting) = (Table::of(&[FIRST]), Waiting::default());
    waiting.listed.resize(LISTED_MAX, SECOND);
    assert!(!waiting.takes(Driver::Program));
    table.arrive(&mut waiting, FIRST, Driver::Program, 1);
    assert_eq!(table.acks(FIRST), [1]);
    assert!(!waiting.has(FIRST));
}

#[test]
fn the_longest_held_is_overdue_when_it_has_been_due_for_as_long_as_it_was_held() {
    let (mut table, mut waiting) = (Table::of(&[FIRST]), Waiting::default());
    assert!(!waiting.is_overdue(START));
    table.converse(&mut waiting, FIRST);
    assert!(!waiting.is_overdue(START.plus_nanos(2 * HOLD - 1)));
    assert!(waiting.is_overdue(START.plus_nanos(2 * HOLD)));
}
