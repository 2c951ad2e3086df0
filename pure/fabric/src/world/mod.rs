//! Hosts with several processes, each of which drives a port of several queue pairs.
//!
//! Where a [`Net`](crate::Net) holds one queue pair against another, a [`World`] runs
//! [`adverb_engine`]'s port: acknowledgements that wait, requests that wait for company, turns, timers,
//! and what a program and a helper that stands in for it do to them. Between two processes there is
//! either a network, which loses, copies and delays packets, or memory that they share: a ring of
//! records that the reader may see late and a few at a time, messages by reference, requests that are
//! carried out on the peer's memory, and SENDs with eager headers.
//!
//! Processes are killed or stopped in the midst of a step, and continued; devices are closed; both are started
//! again with the same numbers and keys; regions are deregistered while they are used; records become nonsense, or
//! come twice. Now and then a copy of a queue pair does the general way what the queue pair does in a shorter one
//! (`twin.rs`). After each step the world checks what a program may rely on, and panics if it does not hold:
//!
//! - each request and each receive ends once, requests in the order of posting;
//! - messages arrive once, in order and whole; a SEND that has succeeded has arrived;
//! - bytes that were written are where they belong, atomics were executed once, bytes that were not
//!   granted are as they were;
//! - what is put off is on some list: when everything rests, nothing is owed, and where nothing got lost no
//!   ACK time-out has helped;
//! - lists of turns and deadlines are no longer than there are queue pairs;
//! - a short way leaves what the general one leaves.

mod connection;
mod desk;
mod process;
mod tally;
mod twin;
mod wires;

use self::connection::Connection;
use self::desk::Peer;
use self::process::{Outside, Process};
pub use self::tally::Tally;
use self::wires::Wires;
pub use self::wires::{Medium, Weather};
use crate::random::Random;
use adverb_engine::Time;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

/// Parameters of a world.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Processes; each pair of them may be connected.
    pub processes: usize,
    /// Connections, each between two processes or within one.
    pub connections: usize,
    /// What is between two processes, one for each connection: repeated if there are fewer.
    pub media: Vec<Medium>,
    /// What the network does to packets.
    pub weather: Weather,
    /// Requests that each side of a connection posts.
    pub requests: u64,
    /// Processes are killed and started again, stopped and continued.
    pub accidents: bool,
    /// Regions are deregistered while they are used.
    pub deregisters: bool,
    /// Records become nonsense.
    pub nonsense: bool,
}

/// Processes, and what is between them.
#[derive(Debug)]
pub struct World {
    plan: Plan,
    now: Time,
    processes: Vec<Process>,
    connections: Vec<Connection>,
    outside: Outside,
}

/// Steps that one run may take: enough for any, few enough to end.
const STEPS_MAX: u64 = 20_000_000;
/// Parts of a step, after each of which it may end.
const PHASES: u64 = 5;
/// Virtual time in which everything comes to rest.
const PATIENCE_NANOS: u64 = 3_600_000_000_000;

impl World {
    /// A world in which nothing has happened.
    pub fn new(seed: u64, plan: Plan) -> Self {
        let mut random = Random::new(seed);
        let processes: Vec<_> = (0..plan.processes).map(Process::new).collect();
        let wires = Wires::new(plan.weather, plan.nonsense, plan.deregisters, random.fork());
        let mut world = Self {
            now: Time::from_nanos(1_000),
            processes,
            connections: Vec::new(),
            outside: Outside {
                wires: RefCell::new(wires),
                random: RefCell::new(random),
                tally: RefCell::default(),
            },
            plan,
        };
        for at in 0..world.plan.connections {
            let medium =
                *world.plan.media.get(at % world.plan.media.len().max(1)).expect("a medium");
            let (a, b) = {
                let mut random = world.outside.random.borrow_mut();
                (random.index(world.plan.processes), random.index(world.plan.processes))
            };
            // A process has one kind of way to another one, and memory to itself.
            let medium = match (a == b, world.outside.wires.borrow().medium(a, b)) {
                (true, _) => Medium::Memory,
                (false, known) => known.unwrap_or(medium),
            };
            world.outside.wires.borrow_mut().connect(a, b, medium);
            world.connections.push(Connection::new(at, [a, b], medium, world.plan.requests));
        }
        for at in 0..world.plan.connections {
            world.establish(at);
        }
        world
    }

    /// Runs until everything is done that was planned, and everything rests.
    ///
    /// # Panics
    ///
    /// If something does not hold that a program relies on.
    pub fn run(&mut self) -> Tally {
        let end = self.now.plus_nanos(PATIENCE_NANOS);
        while let Some((at, next)) = self.next() {
            assert!(
                self.outside.tally.borrow().steps < STEPS_MAX,
                "no rest after {STEPS_MAX} steps"
            );
            assert!(next < end, "no rest after an hour");
            self.now = next;
            self.outside.tally.borrow_mut().steps += 1;
            self.step(at);
        }
        self.judge_rest();
        let mut tally = *self.outside.tally.borrow();
        self.outside.wires.borrow().count(&mut tally);
        tally
    }

    /// The process that takes the next step, and when.
    fn next(&self) -> Option<(usize, Time)> {
        let wires = self.outside.wires.borrow();
        let wake = |process: &Process| process.wakes(wires.next_arrival(process.id), self.now);
        let times = self.processes.iter().filter_map(|process| Some((process.id, wake(process)?)));
        times.min_by_key(|(_, at)| *at)
    }

    fn step(&mut self, at: usize) {
        let (now, accidents) = (self.now, self.plan.accidents);
        let lot = if accidents { self.outside.random.borrow_mut().below(20_000) } else { u64::MAX };
        if lot < 7 {
            return self.suffer(at, lot);
        }
        if self.plan.deregisters && self.outside.random.borrow_mut().below(20_000) == 0 {
            let Self { processes, outside, .. } = self;
            let process = processes.get_mut(at).expect("the process exists");
            let gone = process.deregister_something(&mut outside.random.borrow_mut());
            outside.tally.borrow_mut().deregistered += u64::from(gone);
        }
        self.drive(at, PHASES);
        let Self { processes, connections, outside, .. } = self;
        let process = processes.get_mut(at).expect("the process exists");
        process.act(now, connections, outside);
        process.judge();
        for at in 0..self.connections.len() {
            self.look_after(at);
        }
    }

    fn process_mut(&mut self, at: usize) -> &mut Process {
        self.processes.get_mut(at).expect("the process exists")
    }

    /// So many phases of a process's step.
    fn drive(&mut self, at: usize, phases: u64) {
        let Self { processes, outside, now, .. } = self;
        let process = processes.get_mut(at).expect("the process exists");
        process.step((*now, phases), outside);
    }

    /// An accident befalls a process, after a part of its step.
    fn suffer(&mut self, at: usize, lot: u64) {
        let (phases, pause) = {
            let mut random = self.outside.random.borrow_mut();
            let most = if lot == 2 { 200_000_000 } else { 2_000_000 };
            (random.below(PHASES + 1), random.below(most))
        };
        let until = self.now.plus_nanos(pause);
        self.drive(at, phases);
        let Self { processes, connections, outside, now, .. } = self;
        let process = processes.get_mut(at).expect("the process exists");
        process.take_stock(*now, connections, outside);
        match lot {
            0..2 => self.kill(at, until),
            2..6 => {
                self.outside.tally.borrow_mut().stopped += 1;
                let process = self.process_mut(at);
                process.pause(until);
                process.judge();
            }
            _ => self.reopen(at, until),
        }
    }

    /// A process ends without a word, and starts again a little later.
    fn kill(&mut self, at: usize, until: Time) {
        self.outside.tally.borrow_mut().killed += 1;
        let stations = self.process_mut(at).die(until);
        self.outside.tally.borrow_mut().torn +=
            self.outside.wires.borrow_mut().forget(at, Some(self.now));
        for connection in &mut self.connections {
            connection.on_death(at, &stations, &mut self.outside.tally.borrow_mut());
        }
    }

    /// A device is closed, with all that it has, and opened again a little later.
    fn reopen(&mut self, at: usize, until: Time) {
        let Self { processes, connections, outside, now, .. } = self;
        outside.tally.borrow_mut().reopened += 1;
        let process = processes.get_mut(at).expect("the process exists");
        process.close((*now, until), connections, outside);
        let nothing = outside.wires.borrow_mut().forget(at, None);
        debug_assert_eq!(nothing, 0, "what was written is complete");
    }

    /// Makes a connection anew that has ended on both sides.
    fn look_after(&mut self, at: usize) {
        let connection = self.connections.get(at).expect("the connection exists");
        if connection.broken && !connection.is_over() {
            for at in connection.processes {
                self.process_mut(at).hear_of_trouble();
            }
            return;
        }
        if !connection.is_over() || connection.is_done() {
            return;
        }
        let ready = |side: usize| {
            let process = connection.processes.get(side).copied().expect("two sides");
            self.processes.get(process).is_some_and(|process| process.is_up(self.now))
        };
        if ready(0) && ready(1) {
            self.outside.tally.borrow_mut().again += 1;
            self.establish(at);
        }
    }

    fn establish(&mut self, at: usize) {
        let Self { processes, connections, outside, now, plan, .. } = self;
        let connection = connections.get_mut(at).expect("the connection exists");
        connection.begin(&mut outside.random.borrow_mut());
        connection.exact = !(plan.nonsense && connection.medium.is_memory());
        outside.wires.borrow_mut().mend(connection.processes);
        let [a, b] = connection.processes;
        let [a_open, b_open] = [0, 1].map(|_| Rc::new(Cell::new(false)));
        let memory = |at: usize| processes.get(at).expect("the process exists").memory();
        let [a_memory, b_memory] = [memory(a), memory(b)];
        let medium = connection.medium;
        let peer_of_a = Peer { process: b, medium, memory: b_memory, open: Rc::clone(&b_open) };
        let peer_of_b = Peer { process: a, medium, memory: a_memory, open: Rc::clone(&a_open) };
        for (side, at, peer, open) in [(0, a, peer_of_a, a_open), (1, b, peer_of_b, b_open)] {
            let process = processes.get_mut(at).expect("the process exists");
            process.open(connection, side, peer, open, *now, outside);
        }
    }

    /// Everything rests: nothing is owed, and everything has ended.
    fn judge_rest(&self) {
        let Plan { weather, accidents, deregisters, nonsense, .. } = self.plan;
        let calm = !accidents && !deregisters && !nonsense;
        let lossless =
            calm && weather == Weather::default() && self.outside.wires.borrow().lost() == 0;
        for process in &self.processes {
            process.judge_rest(lossless);
        }
        for connection in &self.connections {
            connection.judge_rest(calm);
        }
    }
}
