//! A process: a program that posts and polls, a helper that stands in for it, and the port that both
//! drive. What is decided is decided by `adverb_engine`; what is here moves bytes.

use super::connection::{Asked, Connection, REGION_BYTES, SLOT_BYTES, SLOTS, STILL_BYTES, still};
use super::desk::{ByReference, Desk, Own, Peer, Posted, SEGMENT_BYTES, gid};
use super::tally::Tally;
use super::twin::Twin;
use super::wires::{Frame, Medium, Wires};
use crate::memory::{Memory, Region};
use crate::random::Random;
use adverb_engine::{
    Access, AckCost, AckTimeout, Acks, Aftermath, Attributes, Capabilities, Driver, EagerHeader,
    Given, Look, Pacing, Partition, Qp, QpOptions, QpState, QpType, ReceiveDone, Request,
    RetryCount, RnrRetry, Schedule, Seat, Seats, Surface, Time, To, Waiting, WcOpcode, WcStatus,
    follow_up, serve_ready, set_open_deadline,
};
use adverb_wire::{Packet, PathMtu, Qpn, Rkey, RnrTimer};
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

/// State that all queue pairs of a process share.
#[derive(Debug, Default)]
struct Board {
    schedule: RefCell<Schedule>,
    open: Cell<Option<Qpn>>,
    /// The helper has to look by then.
    notice: Cell<Option<Time>>,
}

impl Surface for Board {
    fn leave_open(&self, number: Qpn) -> bool {
        let free = self.open.get().is_none();
        if free {
            self.open.set(Some(number));
        }
        free
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

    fn notice(&self, at: Time) {
        self.notice.set(Some(self.notice.get().map_or(at, |known| known.min(at))));
    }
}

/// A queue pair, and what is around it.
#[derive(Debug)]
struct Station {
    qp: Qp,
    pacing: Pacing,
    own: Own,
    peer: Peer,
    /// Where the peer sees whether it may reach this side's memory.
    open: Rc<Cell<bool>>,
    connection: usize,
    side: usize,
    /// Requests that the send queue holds.
    capacity: u64,
}

/// What all processes share.
#[derive(Debug)]
pub(super) struct Outside {
    pub(super) wires: RefCell<Wires>,
    pub(super) random: RefCell<Random>,
    pub(super) tally: RefCell<Tally>,
}

/// Surroundings that every call borrows.
#[derive(Clone, Copy)]
struct Around<'a> {
    me: usize,
    now: Time,
    board: &'a Board,
    memory: &'a RefCell<Memory>,
    outside: &'a Outside,
}

impl Around<'_> {
    fn below(&self, bound: u64) -> u64 {
        self.outside.random.borrow_mut().below(bound)
    }

    fn count(&self, what: impl FnOnce(&mut Tally)) {
        what(&mut self.outside.tally.borrow_mut());
    }
}

/// Packets that one call may emit.
const BUDGET: usize = 16;

impl Station {
    /// Lends the surroundings with room for so many packets; says how many were emitted, and how many
    /// completions published.
    fn lend<R>(
        &mut self,
        around: Around<'_>,
        left: usize,
        by_reference: Option<ByReference>,
        run: impl FnOnce(&mut Qp, &mut Desk<'_>) -> R,
    ) -> (R, u64, u32) {
        let Around { me, now, memory, outside: Outside { wires, random, .. }, .. } = around;
        let Self { qp, own, peer, .. } = self;
        let (emitted, published, direct, fetched) = (0, 0, 0, 0);
        let mut desk = Desk {
            me,
            own,
            peer,
            memory,
            wires,
            random,
            now,
            left,
            willing: false,
            emitted,
            published,
            by_reference,
            direct,
            fetched,
        };
        let before = qp.counters();
        let result = run(qp, &mut desk);
        let Desk { emitted, published, direct, fetched, .. } = desk;
        around.count(|tally| {
            tally.direct += direct;
            tally.fetched += fetched;
            tally.timeouts += qp.counters().ack_timeout - before.ack_timeout;
            tally.not_ready += qp.counters().send_rnr_err - before.send_rnr_err;
        });
        qp.count_sent(emitted);
        self.open.set(self.qp.is_open());
        (result, emitted, published)
    }

    fn is_memory(&self) -> bool {
        self.peer.medium.is_memory()
    }
}

/// A queue pair that has its turn.
struct Seated<'a> {
    around: Around<'a>,
    number: Qpn,
    station: &'a mut Station,
}

impl<'a> Seat for Seated<'a> {
    type Surface = Board;

    fn surface(&self) -> &Board {
        self.around.board
    }

    fn number(&self) -> Qpn {
        self.number
    }

    fn parts(&mut self) -> (&mut Qp, &mut Pacing) {
        (&mut self.station.qp, &mut self.station.pacing)
    }

    fn now(&mut self) -> Time {
        self.around.now
    }

    fn transmit(&mut self, acks: Acks) -> Aftermath {
        let Self { around, station, .. } = self;
        station.pacing.on_transmit();
        let settled = settle(station, *around);
        let before = station.qp.counters().sent_pkts;
        let memory = station.is_memory();
        // Where records are written, the clock is not always read.
        let now = if memory && around.below(2) == 0 { Time::UNKNOWN } else { around.now };
        let (more, emitted, published) = station.lend(*around, BUDGET, None, |qp, desk| {
            let more = qp.transmit(now, memory || acks == Acks::Now, desk);
            let company = !memory && acks == Acks::WithCompany && desk.emitted > 1;
            if company { qp.transmit(now, true, desk) } else { more }
        });
        if more && emitted == 0 {
            station.qp.on_no_room(now);
        }
        let Station { qp, pacing, .. } = station;
        pacing.on_transmitted(qp, before, more, settled + published)
    }

    fn acknowledge(&mut self) -> Aftermath {
        let Self { around, station, .. } = self;
        let (me, peer) = (around.me, station.peer.process);
        if station.is_memory()
            && around.outside.wires.borrow().has_room(me, peer)
            && let Some(eager) = station.qp.acknowledge_eagerly()
        {
            station.pacing.acks.on_sent();
            station.lend(*around, 1, None, |_, desk| desk.carry_eager(eager.emit(), Vec::new()));
            return Aftermath::default();
        }
        self.transmit(Acks::Now)
    }

    fn settle(&mut self) -> u32 {
        settle(self.station, self.around)
    }
}

fn settle(station: &mut Station, around: Around<'_>) -> u32 {
    let Some(eager) = station.pacing.late.take() else {
        return 0;
    };
    let run = |qp: &mut Qp, desk: &mut Desk<'_>| qp.on_eager_ack(&eager, || around.now, desk);
    station.lend(around, 0, None, run).2
}

/// The queue pairs of a process.
struct Table<'a> {
    around: Around<'a>,
    stations: &'a mut BTreeMap<Qpn, Station>,
}

impl Seats for Table<'_> {
    type Surface = Board;
    type Seat<'a>
        = Seated<'a>
    where
        Self: 'a;

    fn surface(&self) -> &Board {
        self.around.board
    }

    fn seat(&mut self, number: Qpn) -> Option<Seated<'_>> {
        let station = self.stations.get_mut(&number)?;
        Some(Seated { around: self.around, number, station })
    }
}

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) id: usize,
    board: Board,
    waiting: Waiting,
    stations: BTreeMap<Qpn, Station>,
    memory: Rc<RefCell<Memory>>,
    /// Regions that were deregistered, as they were then.
    buried: BTreeMap<u32, Vec<u8>>,
    /// It has ended, and starts again then.
    down: Option<Time>,
    /// It is stopped until then.
    stopped: Option<Time>,
    /// The program polls so many times more, and next then.
    polls: u64,
    next_poll: Time,
    /// The program has something to do, and calls again even if nothing happens.
    busy: bool,
    steps: u64,
}

/// Steps between looks at the clock.
const CLOCK_STEPS: u64 = 8;
/// The helper's patience with a program that has stopped to poll.
const TICK_NANOS: u64 = 5_000;
/// A key that was not given to peers, and what is behind it.
const SECRET: Rkey = Rkey(0xdead);
const SECRET_BYTES: [u8; 64] = [0x5a; 64];

impl Process {
    pub(super) fn new(id: usize) -> Self {
        let mut memory = Memory::default();
        memory.register(SECRET, 0x1000, SECRET_BYTES.len(), Access::NONE);
        if let Some(region) = memory.regions.first_mut() {
            region.bytes.copy_from_slice(&SECRET_BYTES);
        }
        Self {
            id,
            board: Board::default(),
            waiting: Waiting::default(),
            stations: BTreeMap::new(),
            memory: Rc::new(RefCell::new(memory)),
            buried: BTreeMap::new(),
            down: None,
            stopped: None,
            polls: 10,
            next_poll: Time::from_nanos(2_000),
            busy: true,
            steps: 0,
        }
    }

    pub(super) fn is_up(&self, now: Time) -> bool {
        self.down.is_none_or(|down| down <= now)
    }

    pub(super) fn memory(&self) -> Rc<RefCell<Memory>> {
        Rc::clone(&self.memory)
    }

    /// The program learns by other ways that a connection is broken.
    pub(super) fn hear_of_trouble(&mut self) {
        self.busy = true;
    }

    pub(super) fn pause(&mut self, until: Time) {
        self.stopped = Some(until);
    }

    /// When it takes its next step; `arrival`: something arrives then.
    pub(super) fn wakes(&self, arrival: Option<Time>, now: Time) -> Option<Time> {
        if let Some(down) = self.down {
            return Some(down.max(now));
        }
        if self.polls > 0 {
            return Some(self.next_poll.max(self.stopped.unwrap_or(now)).max(now));
        }
        let hints = self.board.schedule.borrow().hints();
        let soon = now.plus_nanos(TICK_NANOS);
        let owes = hints.ready || self.board.open.get().is_some() || !self.waiting.is_empty();
        let times = [
            arrival,
            hints.deadline,
            self.waiting.due(),
            owes.then_some(soon),
            self.busy.then_some(self.next_poll),
        ];
        let next = times.into_iter().flatten().min()?;
        Some(next.max(self.stopped.unwrap_or(now)).max(now))
    }

    /// Ends without a word; says which queue pairs went with it.
    pub(super) fn die(&mut self, until: Time) -> Vec<Qpn> {
        let numbers = self.stations.keys().copied().collect();
        let id = self.id;
        *self = Self { down: Some(until), next_poll: until, ..Self::new(id) };
        numbers
    }

    /// Makes a queue pair, and connects it.
    pub(super) fn open(
        &mut self,
        connection: &Connection,
        side: usize,
        peer: Peer,
        open: Rc<Cell<bool>>,
        now: Time,
        outside: &Outside,
    ) {
        self.register(connection, side);
        let number = connection.side(side).number;
        let remote = connection.side(1 - side).number;
        let [first, second] = connection.first_psns;
        let (first, expected) = if side == 0 { (first, second) } else { (second, first) };
        let medium = connection.medium;
        let capacity = u32::try_from(outside.random.borrow_mut().between(2, 24)).unwrap_or(2);
        let mut qp = Qp::new(QpOptions {
            port_mtu: PathMtu::B256,
            ..QpOptions::of(QpType::Rc, number, capacity)
        });
        let shares = medium == Medium::Memory;
        let link = Capabilities {
            segment: SEGMENT_BYTES,
            by_reference: shares,
            direct: shares,
            eager: true,
            lossy: false,
            trains: false,
            keeps_early: false,
        };
        let memory = medium.is_memory();
        let [trains, keeps_early] = [(); 2].map(|()| outside.random.borrow_mut().below(2) == 0);
        let packets = Capabilities { trains, keeps_early, ..Capabilities::PACKETS };
        qp.set_link(if memory { link } else { packets });
        let mut pacing = Pacing::default();
        pacing.set_ack_cost(if memory { AckCost::Records } else { AckCost::Packets });
        let own = Own::default();
        let at = connection.at;
        let mut station = Station {
            qp,
            pacing,
            own,
            peer,
            open,
            connection: at,
            side,
            capacity: capacity.into(),
        };
        let init = Attributes {
            partition: Some(Partition::DEFAULT),
            port: Some(1),
            access: Some(Access::ALL),
            ..Attributes::default()
        };
        let rtr = Attributes {
            remote_gid: Some(gid(station.peer.process)),
            remote: Some(remote),
            expected_psn: Some(expected),
            path_mtu: Some(PathMtu::B256),
            max_dest_rd_atomic: Some(4),
            min_rnr_timer: Some(RnrTimer::new(4)),
            ..Attributes::default()
        };
        let rts = Attributes {
            first_psn: Some(first),
            timeout: AckTimeout::from_exponent(8).ok(),
            retry_count: Some(RetryCount::MAX),
            rnr_retry: Some(RnrRetry::FOREVER),
            max_rd_atomic: Some(4),
            window_packets: Some(32),
            ..Attributes::default()
        };
        let Self { id, board, memory, .. } = &*self;
        let around = Around { me: *id, now, board, memory, outside };
        for (to, attributes) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
            let (result, _, _) =
                station.lend(around, 0, None, |qp, desk| qp.modify(to, &attributes, desk));
            result.expect("the states follow one another");
        }
        self.stations.insert(number, station);
        self.down = None;
        self.busy = true;
        self.next_poll = now;
    }

    /// Registers the region of a connection, under the key that it had before.
    fn register(&mut self, connection: &Connection, side: usize) {
        let rkey = connection.rkey(side);
        self.judge_buried();
        self.buried.remove(&rkey.0);
        let mut memory = self.memory.borrow_mut();
        memory.regions.retain(|region| region.rkey != rkey);
        let len = usize::try_from(REGION_BYTES).unwrap_or(0);
        memory.register(rkey, connection.va(side), len, Access::ALL);
        let from = usize::try_from(SLOTS * SLOT_BYTES).unwrap_or(0);
        let still = still(connection.at, side, STILL_BYTES);
        let region = memory.regions.last_mut().expect("it was registered");
        region.bytes.get_mut(from..from + still.len()).expect("it fits").copy_from_slice(&still);
    }

    /// Takes a region from under its users, if there is one.
    pub(super) fn deregister_something(&mut self, random: &mut Random) -> bool {
        let mut memory = self.memory.borrow_mut();
        let at = random.index(memory.regions.len());
        let usual = |region: &&mut Region| region.rkey != SECRET && !region.gone;
        let Some(region) = memory.regions.get_mut(at).filter(usual) else {
            return false;
        };
        region.gone = true;
        self.buried.insert(region.rkey.0, region.bytes.clone());
        true
    }

    /// A step of the program or of its helper, or its first few phases.
    pub(super) fn step(&mut self, (now, phases): (Time, u64), outside: &Outside) {
        if let Some(down) = self.down {
            if down <= now {
                self.down = None;
            }
            return;
        }
        if self.stopped.is_some_and(|until| now < until) {
            return;
        }
        self.stopped = None;
        // A program that polls keeps the helper off; one that sleeps is woken by what arrives, or is not.
        let program = self.polls > 0 || (self.busy && outside.random.borrow_mut().below(2) == 0);
        let driver = if program { Driver::Program } else { Driver::Helper };
        let mut lot = outside.random.borrow_mut();
        let pause = match (program, self.polls) {
            (true, 0) => {
                self.polls = lot.below(100);
                lot.below(400)
            }
            (true, 1) => {
                self.polls = 0;
                if lot.below(32) == 0 { lot.below(4_000_000) } else { lot.below(60_000) }
            }
            (true, _) => {
                self.polls -= 1;
                lot.below(400)
            }
            // Sometimes it is away for longer than acknowledgements are waited for.
            (false, _) if lot.below(32) == 0 => lot.below(4_000_000),
            (false, _) => lot.below(60_000),
        };
        drop(lot);
        self.next_poll = now.plus_nanos(1 + pause);
        let Self { id, board, waiting, stations, memory, steps, .. } = self;
        let around = Around { me: *id, now, board, memory, outside };
        let mut table = Table { around, stations };
        board.notice.set(None);
        *steps += 1;
        let everything = driver == Driver::Helper;
        let look = if everything { Look::Everything } else { Look::Usual };
        let clock = everything || *steps % CLOCK_STEPS == 0 || waiting.has_packets();
        let most = around.below(12);
        for phase in 0..phases {
            match phase {
                0 if clock => {
                    waiting.acknowledge(&mut table, look);
                    waiting.acknowledge_held(&mut table, now, look);
                }
                0 if waiting.is_pressing() => {
                    waiting.acknowledge(&mut table, Look::Usual);
                }
                1 => {
                    let records =
                        take_all(most, || outside.wires.borrow_mut().take_record(*id, now));
                    let quiet = records.is_empty();
                    receive(&mut table, waiting, records, driver);
                    if quiet && !waiting.is_empty() {
                        waiting.acknowledge(&mut table, Look::Usual);
                    }
                }
                2 => {
                    let packets =
                        take_all(most, || outside.wires.borrow_mut().take_packet(*id, now));
                    receive(&mut table, waiting, packets, driver);
                }
                3 if clock => serve_timers(&mut table),
                4 if board.schedule.borrow().hints().ready => {
                    serve_ready(&mut table);
                }
                _ => {}
            }
        }
    }

    /// What has arrived has, even if the program does not live to see it.
    pub(super) fn take_stock(
        &mut self,
        now: Time,
        connections: &mut [Connection],
        outside: &Outside,
    ) {
        let Self { id, board, stations, memory, .. } = self;
        let around = Around { me: *id, now, board, memory, outside };
        for (number, station) in stations.iter_mut() {
            let connection = connections.get_mut(station.connection).expect("it exists");
            reap_received(&mut Seated { around, number: *number, station }, connection);
        }
    }

    /// Destroys all queue pairs, which ends what they were at, and forgets all that the device had.
    pub(super) fn close(
        &mut self,
        (now, until): (Time, Time),
        connections: &mut [Connection],
        outside: &Outside,
    ) {
        let Self { id, board, stations, memory, .. } = self;
        let around = Around { me: *id, now, board, memory, outside };
        for (number, station) in stations.iter_mut() {
            let connection = connections.get_mut(station.connection).expect("it exists");
            connection.broken = true;
            destroy(&mut Seated { around, number: *number, station }, connection);
        }
        self.judge();
        self.judge_buried();
        self.die(until);
    }

    /// The program looks at what has ended, and asks for more.
    pub(super) fn act(&mut self, now: Time, connections: &mut [Connection], outside: &Outside) {
        if self.down.is_some() || self.stopped.is_some() {
            return;
        }
        let Self { id, board, stations, memory, .. } = self;
        let around = Around { me: *id, now, board, memory, outside };
        let mut busy = false;
        stations.retain(|number, station| {
            let connection = connections.get_mut(station.connection).expect("it exists");
            if !connection.medium.is_memory()
                || !outside.wires.borrow().is_cut(*id, station.peer.process)
            {
                // All is as it should be.
            } else if around.below(4) == 0 {
                connection.broken = true;
            }
            let mut seat = Seated { around, number: *number, station };
            reap(&mut seat, connection);
            let waits = around.below(8) != 0;
            if connection.broken && !waits {
                destroy(&mut seat, connection);
                return false;
            }
            post(&mut seat, connection);
            let side = seat.station.side;
            // What was carried out while it was posted has ended, and has still to be looked at.
            let station = &*seat.station;
            let unended = station.qp.outstanding() > 0 || !station.own.sent.is_empty();
            busy |= connection.broken || connection.has_more(side) || unended;
            true
        });
        self.busy = busy;
    }

    /// What holds after every step.
    pub(super) fn judge(&self) {
        let memory = self.memory.borrow();
        let secret = memory.regions.iter().find(|region| region.rkey == SECRET);
        assert!(secret.is_some_and(|region| region.bytes == SECRET_BYTES), "a secret was touched");
        for (number, Station { qp, pacing, .. }) in &self.stations {
            let owes = qp.owes_ack() || pacing.late.is_some();
            let known = self.waiting.has(*number) || pacing.is_ready();
            assert!(!owes || known, "{number:?} owes something that is on no list");
        }
        let most = self.stations.len();
        let (deadlines, turns) = self.board.schedule.borrow().lens();
        assert!(deadlines <= most && turns <= most, "{deadlines} deadlines, {turns} turns");
    }

    fn judge_buried(&self) {
        for region in &self.memory.borrow().regions {
            let then = self.buried.get(&region.rkey.0);
            assert!(
                then.is_none_or(|then| *then == region.bytes),
                "deregistered memory was written"
            );
        }
    }

    /// What holds when nothing happens any more.
    pub(super) fn judge_rest(&self, lossless: bool) {
        self.judge_buried();
        assert!(self.waiting.is_empty() && self.waiting.due().is_none(), "acknowledgements wait");
        assert!(!self.board.schedule.borrow().hints().ready, "something waits for its turn");
        assert!(self.board.open.get().is_none(), "a deadline was left open");
        for station in self.stations.values() {
            assert!(!station.qp.owes_ack(), "an acknowledgement is owed");
            assert!(station.pacing.late.is_none(), "an acknowledgement was not looked at");
            assert!(!station.qp.has_more(), "there is more to emit");
            assert_eq!(station.qp.outstanding(), 0, "requests that do not end");
            assert!(station.own.requests.is_empty(), "requests whose end was not reported");
            let late = station.qp.counters().ack_timeout;
            assert!(!lossless || late == 0, "{late} acknowledgements were late, and none was lost");
        }
    }
}

/// Ends what a queue pair is at; its place is to be given up.
fn destroy(seat: &mut Seated<'_>, connection: &mut Connection) {
    let around = seat.around;
    let (_, _, _) = seat.station.lend(around, 0, None, |qp, desk| qp.to_err(desk));
    reap(seat, connection);
    let side = connection.side_mut(seat.station.side);
    assert!(side.pending.is_empty(), "all requests are flushed");
    side.over = true;
    seat.station.open.set(false);
    around.board.schedule.borrow_mut().forget(seat.number);
}

/// Lets queue pairs whose time has come do what it has come for.
fn serve_timers(table: &mut Table<'_>) {
    let Around { now, board, .. } = table.around;
    set_open_deadline(table);
    while let Some(number) = board.schedule(|schedule| schedule.due(now)) {
        if let Some(mut seat) = table.seat(number) {
            let (qp, pacing) = seat.parts();
            let aftermath = pacing.on_due(qp, now).unwrap_or_else(|| {
                let around = seat.around;
                seat.station.lend(around, 0, None, |qp, desk| qp.on_timer(now, desk));
                seat.transmit(Acks::Now)
            });
            follow_up(&mut seat, aftermath);
        }
    }
}

fn take_all(most: u64, mut next: impl FnMut() -> Option<(usize, Frame)>) -> Vec<(usize, Frame)> {
    (0..most).map_while(|_| next()).collect()
}

/// Gives queue pairs what has come for them, and lets each answer what came at once.
fn receive(
    table: &mut Table<'_>,
    waiting: &mut Waiting,
    arrivals: Vec<(usize, Frame)>,
    driver: Driver,
) {
    let mut arrivals = arrivals.into_iter().peekable();
    while let Some((from, first)) = arrivals.next() {
        let number = first.dest();
        let me = table.around.me;
        let Some(number) = number else {
            table.around.outside.wires.borrow_mut().cut(from, me); // That was nonsense.
            continue;
        };
        let Some(mut seat) = table.seat(number) else {
            continue;
        };
        let is_record = table_medium(&seat, from);
        if !is_record {
            continue; // Whatever sent that, it is not the peer.
        }
        let mut given = Given { published: 0, only_served: true };
        let mut frame = Some(first);
        while let Some(one) = frame.take() {
            let (published, only_served) = take(&mut seat, one, waiting.takes(driver), from);
            given.published += published;
            given.only_served &= only_served;
            frame = arrivals
                .next_if(|(next, frame)| *next == from && frame.dest() == Some(number))
                .map(|(_, frame)| frame);
        }
        let before = seat.station.qp.counters().ack_deferred;
        waiting.release(&mut seat, given, driver);
        let deferred = seat.station.qp.counters().ack_deferred - before;
        seat.around.count(|tally| tally.deferred += deferred);
    }
}

fn table_medium(seat: &Seated<'_>, from: usize) -> bool {
    seat.station.peer.process == from
}

/// Gives a queue pair one message or packet; says how many completions that published, and whether they were
/// of receives and nothing else happened.
fn take(seat: &mut Seated<'_>, frame: Frame, can_wait: bool, from: usize) -> (u32, bool) {
    let around = seat.around;
    let station = &mut *seat.station;
    let source = gid(from);
    match frame {
        Frame::Eager { words, payload } => match EagerHeader::parse(words) {
            None => (0, false),
            Some(eager) => take_eager(station, &eager, payload, can_wait, around),
        },
        Frame::Packet { headers, payload } => {
            if station.is_memory() {
                station.pacing.acks.on_message(true);
            }
            let settled = settle(station, around);
            let packet = Packet { headers, payload: &payload };
            let now = around.now;
            let (_, _, published) =
                station.lend(around, 0, None, |qp, desk| qp.on_packet(&packet, source, now, desk));
            (settled + published, false)
        }
        Frame::ByReference { headers, bytes, len } => {
            station.pacing.acks.on_message(true);
            let settled = settle(station, around);
            let packet = Packet { headers, payload: &[] };
            let by_reference = Some(ByReference { bytes, len });
            let now = around.now;
            let (_, _, published) = station
                .lend(around, 0, by_reference, |qp, desk| qp.on_packet(&packet, source, now, desk));
            (settled + published, false)
        }
    }
}

/// Takes an eager header, in the shortest way that there is for it or, sometimes, in a longer one.
fn take_eager(
    station: &mut Station,
    eager: &EagerHeader,
    payload: Vec<u8>,
    can_wait: bool,
    around: Around<'_>,
) -> (u32, bool) {
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let twin = (station.pacing.late.is_none() && around.below(TWINS) == 0)
        .then(|| station.twin(around).take(eager, &payload));
    let plain = can_wait && station.pacing.late.is_none() && around.below(4) != 0;
    if plain
        && let Some(origin) = station.qp.awaits_eager(eager)
        && station.own.receives.front().is_some_and(|receive| len <= receive.len)
        && let Some(receive) = station.own.receives.pop_front()
    {
        let mut bytes = station.own.buffers.remove(&receive.token).expect("a receive ends once");
        bytes.get_mut(..payload.len()).expect("it fits").copy_from_slice(&payload);
        let done = ReceiveDone {
            receive,
            status: WcStatus::Success,
            opcode: WcOpcode::Receive,
            byte_len: len,
            imm: eager.imm,
            invalidated: None,
            solicited: eager.solicited,
            src_qp: origin.src_qp,
            grh: false,
            pkey_index: origin.pkey_index,
            srq: None,
        };
        station.own.received.push_back((done, bytes));
        station.qp.note_taken();
        station.compare(twin, around);
        station.pacing.acks.on_message(eager.ack_request);
        if eager.acked.is_some() {
            station.pacing.late = Some(*eager);
        }
        around.count(|tally| tally.plain += 1);
        return (1, true);
    }
    let settled = settle(station, around);
    if eager.psn.is_some() {
        station.pacing.acks.on_message(eager.ack_request);
    }
    let by_reference = Some(ByReference { bytes: Some(Rc::new(payload)), len });
    let (served, _, published) =
        station.lend(around, 0, by_reference, |qp, desk| qp.on_eager_message(eager, len, desk));
    station.compare(twin, around);
    let is_late = can_wait && published > 0 && eager.acked.is_some() && around.below(4) != 0;
    if is_late {
        station.pacing.late = Some(*eager);
        return (settled + published, served && settled == 0);
    }
    let now = around.now;
    let (_, _, more) =
        station.lend(around, 0, None, |qp, desk| qp.on_eager_ack(eager, || now, desk));
    (settled + published + more, served && settled == 0 && eager.acked.is_none())
}

/// Messages that have arrived.
fn reap_received(seat: &mut Seated<'_>, connection: &mut Connection) {
    let around = seat.around;
    let station = &mut *seat.station;
    let side = station.side;
    while let Some((done, bytes)) = station.own.received.pop_front() {
        if done.status == WcStatus::Success {
            around.count(|tally| tally.received += 1);
            let len = usize::try_from(done.byte_len).unwrap_or(usize::MAX);
            let send = done.opcode == WcOpcode::Receive;
            let bytes = if send { bytes.get(..len).expect("it fits") } else { &[] };
            connection.on_received(side, bytes, done.imm, send);
        } else {
            connection.broken = true;
        }
    }
}

/// The program sees what has ended.
fn reap(seat: &mut Seated<'_>, connection: &mut Connection) {
    reap_received(seat, connection);
    let around = seat.around;
    let station = &mut *seat.station;
    let side = station.side;
    while let Some(done) = station.own.sent.pop_front() {
        let posted = station.own.requests.remove(&done.index).expect("a request ends once");
        let well = done.status == WcStatus::Success;
        around.count(|tally| match well {
            true => tally.succeeded += 1,
            false => {
                tally.failed += 1;
                tally.refused += u64::from(done.status == WcStatus::RemoteAccess);
            }
        });
        let memory = station.peer.memory.borrow();
        let rkey = connection.rkey(1 - side);
        let region = memory.regions.iter().find(|region| region.rkey == rkey && !region.gone);
        let bytes = region.map(|region| &region.bytes[..]);
        connection.on_sent(side, done.index, done.status, &posted.landed, bytes);
    }
}

/// The program posts receives and requests, or not.
fn post(seat: &mut Seated<'_>, connection: &mut Connection) {
    let around = seat.around;
    let side = seat.station.side;
    if around.below(4) != 0 {
        while seat.station.own.receives.len() < 8 {
            seat.station.own.post_receive(u32::try_from(SLOT_BYTES).unwrap_or(0));
        }
    }
    let batch = around.below(6);
    for _ in 0..batch {
        let state = seat.station.qp.state();
        if !connection.has_more(side) || state != QpState::Rts {
            break;
        }
        let (asked, kind, bytes, lands) = {
            let mut random = around.outside.random.borrow_mut();
            if seat.station.own.requests.len() >= 2 && random.below(4) == 0 {
                break;
            }
            let forbidden = connection.exact && around.outside.wires.borrow().allows_mistakes();
            if seat.station.is_full() {
                break;
            }
            connection.next(side, &mut random, forbidden)
        };
        let len = u32::try_from(bytes.len().max(lands)).unwrap_or(0);
        let random = around.below(8);
        let request = Request {
            kind,
            to: To::Peer,
            len,
            signaled: random & 1 == 0 || matches!(asked, Asked::Read { .. } | Asked::Add),
            solicited: false,
            fence: random & 6 == 0,
        };
        let posted = Posted { bytes: Rc::new(bytes), landed: alloc::vec![0; lands] };
        let index = send(seat, request, posted);
        connection.side_mut(side).pending.push_back((index, asked));
    }
    let station = &mut *seat.station;
    if station.pacing.may_wait(&station.qp) && around.below(2) == 0 {
        let aftermath = Aftermath { more: true, ..Aftermath::default() };
        follow_up(seat, aftermath);
    } else if station.qp.has_more() {
        let acks = if station.pacing.acks.on_answer() { Acks::Now } else { Acks::WithCompany };
        let aftermath = seat.transmit(acks);
        follow_up(seat, aftermath);
    }
}

/// One of so many steps that can go a short way is held against the general one.
const TWINS: u64 = 32;

impl Station {
    fn is_full(&self) -> bool {
        self.qp.outstanding() >= self.capacity
    }

    fn twin(&self, Around { me, now, memory, .. }: Around<'_>) -> Twin {
        Twin::new(self.qp.clone(), self.own.clone(), &self.peer, memory, (me, now))
    }

    /// The eager path has left what the general one has left.
    fn compare(&self, twin: Option<Twin>, around: Around<'_>) {
        if let Some(twin) = twin {
            twin.judge(&self.qp, &self.own);
            around.count(|tally| tally.compared += 1);
        }
    }

    /// As [`Station::compare`], after a request that was carried out at once.
    fn compare_ended(&self, twin: Option<Twin>, around: Around<'_>) {
        if let Some(twin) = twin {
            twin.judge_ended(&self.qp, &self.own, &self.peer);
            around.count(|tally| tally.compared += 1);
        }
    }
}

/// Posts one request, in the shortest way that there is for it or, sometimes, in a longer one.
fn send(seat: &mut Seated<'_>, request: Request, posted: Posted) -> u64 {
    let around = seat.around;
    let index = seat.station.qp.next_index();
    let bytes = Rc::clone(&posted.bytes);
    seat.station.own.requests.insert(index, posted);
    let short = around.below(4) != 0;
    let room = around.outside.wires.borrow().has_room(around.me, seat.station.peer.process);
    if short && seat.station.pacing.late.is_some() {
        seat.settle();
    }
    let twin = (short && around.below(TWINS) == 0).then(|| seat.station.twin(around));
    if short && seat.station.qp.can_reach(&request) {
        let twin = twin.clone().map(|twin| twin.reach(request));
        let (reached, _, _) =
            seat.station.lend(around, 0, None, |qp, desk| qp.reach_at_once(&request, desk));
        if reached {
            seat.station.compare_ended(twin, around);
            return index;
        }
    }
    if short && room && request.len <= SEGMENT_BYTES {
        let station = &mut *seat.station;
        let planned = station.qp.eager_sends().and_then(|mut eager_sends| {
            let planned = eager_sends.plan(&request, false)?;
            eager_sends.note(&request, false, &planned);
            Some(planned)
        });
        if let Some(planned) = planned {
            if planned.acks {
                station.pacing.acks.on_sent();
            }
            let payload = bytes.to_vec();
            let twin = twin.map(|twin| twin.send(request, planned.words, &payload));
            station.compare(twin, around);
            station.lend(around, 1, None, |_, desk| desk.carry_eager(planned.words, payload));
            let deadline = station.pacing.deadline(&station.qp);
            follow_up(seat, Aftermath { deadline, ..Aftermath::default() });
            return index;
        }
    }
    let station = &mut *seat.station;
    let found = station.qp.post(request).expect("there is room, and it makes sense");
    assert_eq!(found, index, "requests are numbered in the order of posting");
    station.pacing.company.on_post(request.len);
    index
}
