//! A machine whose tasks take turns as a seed says, one access to shared memory at a time.
//!
//! Each task is a thread that runs only while it has the turn. Stores are late: they lie in a buffer of their task's
//! and reach memory at any time later, a relaxed one before earlier ones to other words. A read-modify-write and a full
//! fence have them reach memory first. Loads are not early.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64 as Real, Ordering as O};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use crate::kernel::Kernel;

/// What a killed task unwinds with.
struct Killed;

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

struct Store {
    cell: Arc<Real>,
    value: u64,
    is_ordered: bool,
}

/// What a task waits for.
#[derive(Clone)]
pub(crate) enum Block {
    /// The kernel's stream: something to read at this end, or room to write.
    Poll {
        end: usize,
        reads: bool,
        writes: bool,
        fd_of: usize,
    },
    /// The same for a writer that waits for a bell: nothing wakes it when its own end goes back to the kernel.
    PollForRoom {
        end: usize,
        fd_of: usize,
    },
    /// A word has another value.
    Word(Arc<Real>, u64),
    Lock(usize),
    /// Nothing but time.
    Nap,
}

enum Status {
    Runnable,
    Blocked(Block, u64),
    Done,
}

struct Task {
    process: usize,
    status: Status,
    late: VecDeque<Store>,
    is_killed: bool,
    has_timed_out: bool,
}

/// Which task has a lock, and which had it last.
#[derive(Clone, Copy, Default)]
struct Owners {
    now: Option<usize>,
    last: Option<usize>,
}

/// How often something happens: once in so many accesses.
struct Pace {
    turn: u64,
    store: u64,
    delivery: u64,
}

impl Pace {
    fn of(random: &mut Random) -> Self {
        let mut once_in = |most: u32| 2 << random.below(u64::from(most));
        Self { turn: once_in(6), store: once_in(7), delivery: once_in(6) }
    }
}

/// What happens to the machine besides what its tasks do.
#[derive(Clone, Copy, Default)]
pub(crate) struct Chaos {
    /// A process is killed after so many accesses.
    pub(crate) kill: Option<(u64, usize)>,
    /// Once in so many accesses a word of the page is overwritten.
    pub(crate) corrupt: Option<u64>,
}

pub(crate) struct State {
    pub(crate) random: Random,
    pub(crate) kernel: Kernel,
    pub(crate) now_ns: u64,
    pub(crate) chaos: Chaos,
    /// Sleeps may last until their time is over: what wakes them is dead, or nonsense.
    pub(crate) is_excused: bool,
    /// An end has gone back to the kernel.
    pub(crate) has_left: bool,
    /// Words that may be overwritten.
    pub(crate) words: Vec<Arc<Real>>,
    pub(crate) failure: Option<String>,
    pub(crate) trace: Vec<String>,
    pub(crate) sent: [u64; 2],
    pub(crate) read: [u64; 2],
    current: usize,
    tasks: Vec<Task>,
    locks: Vec<Owners>,
    pace: Pace,
    points: u64,
    handles: Vec<JoinHandle<()>>,
}

pub(crate) struct Machine {
    state: Mutex<State>,
    turns: Vec<Condvar>,
}

thread_local! {
    static ME: RefCell<Option<(Arc<Machine>, usize)>> = const { RefCell::new(None) };
}

/// No task has the turn: all have ended.
const OVER: usize = usize::MAX;
const TASKS_MAX: usize = 16;
/// A run that is not over after so many accesses never ends.
const POINTS_MAX: u64 = 400_000;

fn me() -> Option<(Arc<Machine>, usize)> {
    ME.with(|me| me.borrow().clone())
}

impl State {
    pub(crate) fn fail(&mut self, why: impl Into<String>) {
        if self.failure.is_none() {
            self.failure = Some(why.into());
        }
        for task in &mut self.tasks {
            task.is_killed = true;
        }
    }

    fn is_ready(&self, block: &Block) -> bool {
        match block {
            Block::Poll { end, reads, writes, fd_of } => {
                !self.kernel.has(*fd_of, *end)
                    || *reads && self.kernel.is_readable(*end)
                    || *writes && self.kernel.is_writable(*end)
            }
            Block::PollForRoom { end, fd_of } => {
                !self.kernel.has(*fd_of, *end) || self.kernel.is_readable(*end)
            }
            Block::Word(cell, value) => cell.load(O::SeqCst) != *value,
            Block::Lock(lock) => {
                self.locks[*lock].now.is_none_or(|owner| self.tasks[owner].is_killed)
            }
            Block::Nap => true,
        }
    }

    fn is_runnable(&self, task: usize) -> bool {
        let Task { status, is_killed, .. } = &self.tasks[task];
        match status {
            Status::Done => false,
            Status::Runnable => true,
            Status::Blocked(block, _) => *is_killed || self.is_ready(block),
        }
    }

    fn flush(&mut self, task: usize) {
        for Store { cell, value, .. } in self.tasks[task].late.drain(..) {
            cell.store(value, O::SeqCst);
        }
    }

    /// Some late store reaches memory.
    fn drain_one(&mut self) {
        let task = self.random.below(self.tasks.len() as u64) as usize;
        let late = &mut self.tasks[task].late;
        if late.is_empty() {
            return;
        }
        let at = self.random.below(late.len() as u64) as usize;
        let is_first =
            |at: usize| !late.iter().take(at).any(|s| Arc::ptr_eq(&s.cell, &late[at].cell));
        let at = if !late[at].is_ordered && is_first(at) { at } else { 0 };
        if let Some(Store { cell, value, .. }) = late.remove(at) {
            cell.store(value, O::SeqCst);
        }
    }

    /// Which task has the turn next.
    fn choose(&mut self) -> usize {
        for round in 0..3 {
            let ready: Vec<_> = (0..self.tasks.len()).filter(|t| self.is_runnable(*t)).collect();
            if !ready.is_empty() {
                let next = ready[self.random.below(ready.len() as u64) as usize];
                if let Status::Blocked(Block::Nap, until) = self.tasks[next].status {
                    self.now_ns = self.now_ns.max(until);
                }
                return next;
            }
            if self.tasks.iter().all(|task| matches!(task.status, Status::Done)) {
                return OVER;
            }
            if round == 0 {
                (0..self.tasks.len()).for_each(|task| self.flush(task));
                self.kernel.deliver_all();
            } else {
                self.let_time_pass();
            }
        }
        OVER
    }

    /// Every task sleeps, and nothing wakes one but time.
    fn let_time_pass(&mut self) {
        let sleeping: Vec<_> = (0..self.tasks.len())
            .filter_map(|task| match &self.tasks[task].status {
                Status::Blocked(_, until) => Some((*until, task)),
                Status::Runnable | Status::Done => None,
            })
            .collect();
        let is_late = |task: usize| {
            let Status::Blocked(block, _) = &self.tasks[task].status else { return false };
            self.is_excused || self.has_left && matches!(block, Block::PollForRoom { .. })
        };
        let late = sleeping.iter().filter(|(until, task)| *until < u64::MAX && is_late(*task));
        let Some((until, task)) = late.min().copied() else {
            return self.fail("all sleep, and none will wake another");
        };
        self.now_ns = self.now_ns.max(until);
        self.tasks[task].has_timed_out = true;
        self.tasks[task].status = Status::Runnable;
    }

    pub(crate) fn kill(&mut self, process: usize) {
        self.is_excused = true;
        for task in 0..self.tasks.len() {
            if self.tasks[task].process == process {
                self.flush(task);
                self.tasks[task].is_killed = true;
            }
        }
        self.kernel.end_of(process);
    }

    pub(crate) fn is_alive(&self, process: usize) -> bool {
        self.tasks.iter().any(|task| {
            task.process == process && !task.is_killed && !matches!(task.status, Status::Done)
        })
    }

    fn happen(&mut self) {
        if self.random.below(self.pace.store) == 0 {
            self.drain_one();
        }
        if self.random.below(self.pace.delivery) == 0 {
            self.kernel.deliver();
        }
        if let Some((at, process)) = self.chaos.kill
            && at == self.points
        {
            self.trace.push(format!("process {process} is killed"));
            self.kill(process);
        }
        if let Some(every) = self.chaos.corrupt
            && self.random.below(every) == 0
            && !self.words.is_empty()
        {
            let word = self.random.below(self.words.len() as u64) as usize;
            let value = match self.random.below(4) {
                0 => u64::MAX,
                1 => self.random.below(u64::MAX),
                2 => 1 << self.random.below(40),
                _ => self.random.below(8),
            };
            self.words[word].store(value, O::SeqCst);
            self.is_excused = true;
        }
    }
}

impl Machine {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn hand_on<'a>(&'a self, mut state: MutexGuard<'a, State>, me: usize) -> MutexGuard<'a, State> {
        let next = state.choose();
        state.current = next;
        if next != me {
            self.turns[if next == OVER { TASKS_MAX } else { next }].notify_one();
            while state.current != me {
                state = self.turns[me].wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
        }
        state
    }
}

/// Gives other tasks the turn, perhaps. Returns false if this task has been killed and unwinds.
fn point() -> bool {
    let Some((machine, me)) = me() else { return true };
    let mut state = machine.lock();
    if state.tasks[me].is_killed {
        drop(state);
        return die();
    }
    state.points += 1;
    if state.points > POINTS_MAX {
        state.fail("it never ends");
    }
    state.happen();
    let turn = state.pace.turn;
    if state.random.below(turn) == 0 {
        state = machine.hand_on(state, me);
    }
    let is_killed = state.tasks[me].is_killed;
    drop(state);
    if is_killed { die() } else { true }
}

fn die() -> bool {
    if std::thread::panicking() {
        return false;
    }
    panic::resume_unwind(Box::new(Killed))
}

/// Calls `f` with the machine's state, as a system call. A task that has been killed gets `None`.
pub(crate) fn call<R>(f: impl FnOnce(&mut State) -> R) -> Option<R> {
    if !point() {
        return None;
    }
    let (machine, _) = me().expect("a task");
    let mut state = machine.lock();
    Some(f(&mut state))
}

/// Sleeps until what is waited for, or the time. Returns whether it was the time.
pub(crate) fn sleep(block: Block, until: u64) -> bool {
    if !point() {
        return true;
    }
    let (machine, me) = me().expect("a task");
    let mut state = machine.lock();
    state.flush(me);
    state.tasks[me].has_timed_out = false;
    state.tasks[me].status = Status::Blocked(block, until);
    let mut state = machine.hand_on(state, me);
    state.tasks[me].status = Status::Runnable;
    let (has_timed_out, is_killed) = (state.tasks[me].has_timed_out, state.tasks[me].is_killed);
    drop(state);
    if is_killed {
        die();
    }
    has_timed_out
}

pub(crate) fn now_ns() -> u64 {
    call(|state| state.now_ns).unwrap_or(u64::MAX)
}

pub(crate) fn nap(ns: u64) {
    let until = now_ns().saturating_add(ns);
    sleep(Block::Nap, until);
}

pub(crate) fn random(bound: u64) -> u64 {
    call(|state| state.random.below(bound)).unwrap_or(0)
}

pub(crate) fn fail(why: impl Into<String>) {
    call(|state| state.fail(why));
}

pub(crate) fn trace(text: impl FnOnce() -> String) {
    if let Some((machine, me)) = me() {
        let mut state = machine.lock();
        let text = format!("{me}: {}", text());
        state.trace.push(text);
    }
}

/// A lock that a task which is killed loses.
#[derive(Debug)]
pub(crate) struct Lock(usize);

pub(crate) struct Held(usize);

impl Lock {
    pub(crate) const fn new(number: usize) -> Self {
        Self(number)
    }

    pub(crate) fn hold(&self) -> Held {
        sleep(Block::Lock(self.0), u64::MAX);
        // It is free, and this task has the turn.
        if let Some((machine, me)) = me() {
            let mut state = machine.lock();
            if !state.tasks[me].is_killed {
                // What the last owner has written is there.
                if let Some(last) = state.locks[self.0].last {
                    state.flush(last);
                }
                state.locks[self.0] = Owners { now: Some(me), last: Some(me) };
            }
        }
        Held(self.0)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some((machine, me)) = me() {
            let mut state = machine.lock();
            if !state.tasks[me].is_killed {
                state.locks[self.0].now = None;
            }
        }
    }
}

/// Has a process do something at the same time.
pub(crate) fn spawn(machine: &Arc<Machine>, process: usize, f: impl FnOnce() + Send + 'static) {
    let mut state = machine.lock();
    let number = state.tasks.len();
    assert!(number < TASKS_MAX);
    let is_killed = state.failure.is_some();
    state.tasks.push(Task {
        process,
        status: Status::Runnable,
        late: VecDeque::new(),
        is_killed,
        has_timed_out: false,
    });
    let there = Arc::clone(machine);
    let run = move || {
        ME.with(|me| *me.borrow_mut() = Some((Arc::clone(&there), number)));
        {
            let mut state = there.lock();
            while state.current != number {
                state = there.turns[number].wait(state).expect("no panic with the lock");
            }
        }
        let ended = panic::catch_unwind(AssertUnwindSafe(f));
        ME.with(|me| *me.borrow_mut() = None);
        let mut state = there.lock();
        if let Err(payload) = ended
            && !payload.is::<Killed>()
        {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|&text| text.to_owned()));
            state.fail(text.unwrap_or_default());
        }
        state.flush(number);
        state.tasks[number].status = Status::Done;
        let next = state.choose();
        state.current = next;
        there.turns[if next == OVER { TASKS_MAX } else { next }].notify_one();
    };
    state.handles.push(std::thread::spawn(run));
}

/// The machine on which the caller runs.
pub(crate) fn here() -> Arc<Machine> {
    me().expect("a task").0
}

/// A machine for a seed.
pub(crate) fn machine(seed: u64, locks: usize) -> Arc<Machine> {
    let mut random = Random(seed);
    let state = State {
        pace: Pace::of(&mut random),
        random,
        kernel: Kernel::default(),
        now_ns: 1,
        chaos: Chaos::default(),
        is_excused: false,
        has_left: false,
        words: Vec::new(),
        failure: None,
        trace: Vec::new(),
        sent: [0; 2],
        read: [0; 2],
        current: OVER,
        tasks: Vec::new(),
        locks: vec![Owners::default(); locks],
        points: 0,
        handles: Vec::new(),
    };
    let turns = (0..=TASKS_MAX).map(|_| Condvar::new()).collect();
    Arc::new(Machine { state: Mutex::new(state), turns })
}

impl Machine {
    pub(crate) fn set_up(&self, f: impl FnOnce(&mut State)) {
        f(&mut self.lock());
    }

    /// Runs until all tasks have ended, and returns what they have come to.
    pub(crate) fn run<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let next = state.choose();
        state.current = next;
        self.turns[next].notify_one();
        while state.current != OVER {
            state = self.turns[TASKS_MAX].wait(state).expect("no panic with the lock");
        }
        let handles = std::mem::take(&mut state.handles);
        drop(state);
        handles.into_iter().for_each(|handle| handle.join().expect("a task"));
        f(&mut self.lock())
    }
}

pub(crate) mod sync {
    //! What the files under test find in place of the processor's atomics.

    use super::{Arc, O, Real, Store, me, point};
    pub(crate) use std::sync::atomic::Ordering;

    macro_rules! atomic {
        ($name:ident, $value:ty) => {
            #[derive(Debug, Default)]
            pub struct $name(Arc<Real>);

            impl $name {
                pub fn cell(&self) -> Arc<Real> {
                    Arc::clone(&self.0)
                }

                pub fn load(&self, _: Ordering) -> $value {
                    point();
                    let late = me().and_then(|(machine, me)| {
                        let state = machine.lock();
                        let late = &state.tasks[me].late;
                        late.iter().rev().find(|s| Arc::ptr_eq(&s.cell, &self.0)).map(|s| s.value)
                    });
                    late.unwrap_or_else(|| self.0.load(O::SeqCst)) as $value
                }

                pub fn store(&self, value: $value, order: Ordering) {
                    if !point() {
                        return;
                    }
                    let value = u64::from(value);
                    let Some((machine, me)) = me() else { return self.0.store(value, O::SeqCst) };
                    let mut state = machine.lock();
                    let is_ordered = order != Ordering::Relaxed;
                    let store = Store { cell: Arc::clone(&self.0), value, is_ordered };
                    state.tasks[me].late.push_back(store);
                    if order == Ordering::SeqCst {
                        state.flush(me);
                    }
                }

                fn update(
                    &self,
                    f: impl FnOnce($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    let is_dead = !point();
                    let held = me();
                    let mut state = held.as_ref().map(|(machine, _)| machine.lock());
                    if let (Some(state), Some((_, me))) = (&mut state, &held) {
                        state.flush(*me);
                    }
                    let before = self.0.load(O::SeqCst) as $value;
                    match f(before).filter(|_| !is_dead) {
                        Some(value) => {
                            self.0.store(u64::from(value), O::SeqCst);
                            Ok(before)
                        }
                        None => Err(before),
                    }
                }

                pub fn swap(&self, value: $value, _: Ordering) -> $value {
                    self.update(|_| Some(value)).unwrap_or_else(|before| before)
                }

                pub fn fetch_add(&self, value: $value, _: Ordering) -> $value {
                    self.update(|before| Some(before.wrapping_add(value))).unwrap_or_else(|b| b)
                }

                pub fn fetch_sub(&self, value: $value, _: Ordering) -> $value {
                    self.update(|before| Some(before.wrapping_sub(value))).unwrap_or_else(|b| b)
                }

                pub fn compare_exchange(
                    &self,
                    from: $value,
                    to: $value,
                    _: Ordering,
                    _: Ordering,
                ) -> Result<$value, $value> {
                    self.update(|before| (before == from).then_some(to))
                }
            }
        };
    }

    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);

    pub fn fence(_: Ordering) {
        if point()
            && let Some((machine, me)) = me()
        {
            machine.lock().flush(me);
        }
    }
}
