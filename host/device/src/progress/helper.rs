//! The helper: a thread that drives the port when the program does not.
//!
//! While the program polls, the helper only looks, once a [`TICK`] or [`STEADY_TICK`], whether it
//! still does: no packet wakes it, and the sockets are not even in its set, which would cost each
//! packet a call-back. When the program has been silent for a tick, or leaves what has arrived where it is, or a
//! thread that cannot drive while it sleeps has asked for an event, the helper stands in: it drives as long as there is
//! something to do, and [`LINGER`] longer, then sleeps until a packet or a deadline comes.
//!
//! A program that polls its memory drives now and then, too, so that a call does not end that. When something has
//! arrived, the helper holds back for a few [`LINGER`]s, at first at once and then less and less often. If the
//! program calls all the time meanwhile, [`TAKEN_ENOUGH`] times in turn, the helper goes back to looking. If something was
//! left after all, and the program calls as soon as the helper has taken it ([`PROMPT`]), the program had waited for it in
//! its memory: then it takes more to convince the helper the next time, or a program that waits for completions and for its
//! memory by turns would wait for a tick again and again. A program that was merely busy is left to itself as soon as before.
//!
//! A socket in the helper's set makes each packet dearer for its sender, if that is on this host, whether the helper sleeps or
//! not: while it answers one packet after the other, the sockets are not in the set either.
//!
//! Where the program drives and more threads want to run than there are processors, the helper does not spin, which would
//! keep the program from its processor: it looks every [`STEP`] while it lingers. A packet that wakes a thread right after it
//! went to sleep would not help: the scheduler owes such a thread nothing, and lets the program spin on until the next tick.
//! Later, a sleeper is let in as soon as a packet wakes it. Which waiters need the helper, and which threads wait for the
//! sockets in its place, is in `standby.rs`.

use crate::holder::Holder;
use crate::objects::notice::DeferredWakeups;
use crate::objects::standby::Standby;
use crate::progress::Port;
use crate::sync::Mutex;
use adverb_engine::Time;
use adverb_sys::clock;
use adverb_sys::epoll::{Epoll, Events, Interest};
use adverb_sys::fork::KeptFd;
use adverb_sys::scheduler::{self, Load};
use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Silence of the program after which the helper takes over.
const TICK: Duration = Duration::from_millis(2);
/// The same, for a program that has driven for [`STEADY_TICKS`] without a pause: each look takes its
/// processor away for some 15 µs.
const STEADY_TICK: Duration = Duration::from_millis(8);
const STEADY_TICKS: u32 = 4;
/// Time that the helper keeps looking after the last packet before it sleeps.
const LINGER: Duration = Duration::from_micros(50);
/// Steps in turn that find something, without a sleep, after which no packet shall call the helper back.
const IN_A_ROW: u32 = 8;
/// A program that has driven within this time needs its processor.
const CROWDED: Duration = Duration::from_millis(100);
/// Looks at the load that make a crowd, and how many are remembered.
const CROWD: u32 = 2;
const CROWD_MAX: u32 = 4;
/// Arrivals in turn that the program takes by itself before the helper leaves them to it; as many times more after each time
/// that this was wrong, up to a bound; and so few again after so many looks in turn that found nothing wrong.
const TAKEN_ENOUGH: u32 = 2;
const TAKEN_MORE: u32 = 4;
const TAKEN_ENOUGH_MAX: u32 = 128;
const LOOKS_RIGHT: u32 = 128;
/// A program that calls so soon after the helper has taken what was left had waited for that in its memory.
const PROMPT: Duration = Duration::from_micros(200);
/// A program that has just taken something may go on to poll its memory: that many looks tell.
const LOOKS: u32 = 8;
/// How long at most the helper takes what arrives without a look whether the program would.
const PAUSE_MAX: Duration = Duration::from_millis(128);
/// How long to let the program go on with a step. In a virtual machine shorter sleeps are over before they begin.
const STEP: Duration = Duration::from_micros(30);
/// How often to try again to emit what a stopped neighbour leaves no room for.
const STUCK_TICK: Duration = Duration::from_millis(1);
/// What the helper's own wake-up is called in its set.
const WAKE: u64 = 0;
const SOCKET: u64 = 1;
/// The helper is awake, or looks again within a tick: it need not be woken.
const AWAKE: u64 = 0;

/// State that the helper and its wakers share.
#[derive(Debug)]
struct Shared {
    epoll: Epoll,
    standby: Arc<Standby>,
    /// What wakes the helper while it stands in for the program.
    sockets: Mutex<Vec<KeptFd>>,
    /// Until when the helper sleeps, in nanoseconds; [`AWAKE`] if it does not.
    asleep_until: AtomicU64,
    stop: AtomicBool,
    /// The process ends: what peers wait for is to be sent; and it was.
    finishing: AtomicBool,
    finished: AtomicBool,
    holder: Arc<Holder>,
}

/// The port, and the thread's mark that it has it.
struct HeldPort<'a> {
    port: Arc<Port>,
    _held: MutexGuard<'a, ()>, // Dropped second.
}

impl Deref for HeldPort<'_> {
    type Target = Port;

    fn deref(&self) -> &Port {
        &self.port
    }
}

/// The thread, seen from the port.
#[derive(Debug)]
pub(crate) struct Helper {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Helper {
    pub(crate) fn new(standby: Arc<Standby>) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(standby.wake(), WAKE, Interest::Readable)?;
        let asleep_until = AtomicU64::new(AWAKE);
        let shared = Shared {
            epoll,
            standby,
            sockets: Mutex::new(Vec::new()),
            asleep_until,
            stop: AtomicBool::new(false),
            finishing: AtomicBool::new(false),
            finished: AtomicBool::new(false),
            holder: Arc::default(),
        };
        Ok(Self { shared: Arc::new(shared), thread: Mutex::new(None) })
    }

    /// Wakes the helper for what arrives at `socket`, from its next sleep on.
    pub(crate) fn watch(&self, socket: impl AsFd) -> io::Result<()> {
        self.shared.standby.watch(&socket)?;
        let socket = KeptFd::new(socket.as_fd().try_clone_to_owned()?)?;
        self.shared.sockets.lock().push(socket);
        self.shared.standby.wake().signal()
    }

    pub(crate) fn start(&self, port: &Arc<Port>) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let weak = Arc::downgrade(port);
        let run = move || shared.run(&weak);
        let thread = adverb_sys::signals::spawn("adverb-helper", run)?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Closes what it holds of the sockets; it must have been stopped.
    pub(crate) fn forget_sockets(&self) {
        self.shared.sockets.lock().clear();
    }

    /// Something is due at `at`: the helper must not sleep longer.
    #[inline]
    pub(crate) fn notice(&self, at: Time) {
        if at.nanos() < self.shared.asleep_until.load(Ordering::SeqCst) {
            // Once is enough: on a busy machine it may take long until it wakes.
            self.shared.asleep_until.store(AWAKE, Ordering::SeqCst);
            let _ = self.shared.standby.wake().signal();
        }
    }

    /// The process ends: has the thread send what peers wait for ([`Port::finish`]).
    pub(super) fn finish(&self) {
        self.shared.finishing.store(true, Ordering::Release);
        let _ = self.shared.standby.wake().signal();
    }

    pub(crate) fn holder(&self) -> Arc<Holder> {
        Arc::clone(&self.shared.holder)
    }

    /// The thread has sent it.
    pub(super) fn has_finished(&self) -> bool {
        self.shared.finished.load(Ordering::Acquire)
    }

    /// Ends the thread, and waits for it unless it is the caller.
    pub(crate) fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = self.shared.standby.wake().signal();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id())
        {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, port: &Weak<Port>) {
        crate::link::udp::burst::prepare();
        DeferredWakeups::prepare();
        // What wakes this thread is short, and urgent: a kernel that knows slices lets it in at once.
        let _ = scheduler::ask_for_short_slices();
        let _ = scheduler::ask_for_exact_timers();
        let mut duty = Duty::new();
        while self.stand_in(port, &mut duty).is_some() {
            self.leave_sockets(&mut duty);
            if self.look(port, &mut duty).is_none() {
                return;
            }
        }
    }

    /// Drives until the program does so itself. `None` at the end.
    fn stand_in(&self, port: &Weak<Port>, duty: &mut Duty) -> Option<()> {
        let mut last_busy = clock::now_ns();
        let mut needed = 0;
        let mut busy = 0_u32;
        let drives = self.going_on(port)?.drives();
        loop {
            let port = self.going_on(port)?;
            let now = clock::now_ns();
            duty.look_after(&port, now);
            let engaged = self.standby.is_engaged();
            if engaged {
                needed = now;
            } else if duty.is_due(now) {
                duty.learn(is_left_waiting(&port, LOOKS), now);
            } else if duty.is_over()
                && port.drives() != drives
                && now.saturating_sub(needed) > nanos(TICK)
            {
                return Some(()); // What needed us has had time to need us again.
            }
            let found = port.help(!engaged && duty.is_at_work(&port, now));
            duty.arrived = found != Some(false);
            duty.see_answer(port.drives(), found == Some(true), now);
            let rest = now.saturating_sub(last_busy) > nanos(LINGER);
            match found {
                Some(true) => {
                    last_busy = now;
                    busy = busy.saturating_add(1);
                    if busy == IN_A_ROW {
                        self.leave_sockets(duty);
                    }
                }
                Some(false) if rest || (engaged && duty.is_crowded(&port, now)) => {
                    self.sleep(port, duty);
                    last_busy = clock::now_ns();
                    busy = 0;
                }
                // The program may need this very processor to go on, and takes what there is.
                Some(false) | None if duty.is_crowded(&port, now) => thread::sleep(STEP),
                Some(false) | None => duty.give_way(now),
            }
        }
    }

    /// Looks now and then whether the program drives, until it does not. `None` at the end.
    fn look(&self, port: &Weak<Port>, duty: &mut Duty) -> Option<()> {
        let mut steady = 0_u32;
        let mut posts_only = false;
        let (mut calls, mut drives) =
            self.going_on(port).map(|port| (port.calls(), port.drives()))?;
        while self.standby.begin_looking() {
            steady = steady.saturating_add(1);
            let tick = if steady > STEADY_TICKS { STEADY_TICK } else { TICK };
            let _ = self.epoll.wait(&mut duty.events, Some(tick));
            self.standby.end_looking();
            self.silence(&duty.events);
            let port = self.going_on(port)?;
            duty.look_after(&port, clock::now_ns());
            // A burst of requests may take longer than a tick, a program that posts and never polls needs the helper.
            let drove = port.drives() != drives || port.is_taking_a_step();
            if !drove && (posts_only || !has_called(&port, calls)) {
                duty.stand_in_again(port.has_arrivals().then_some(port.drives()));
                return Some(());
            }
            if port.has_arrivals() && is_left_waiting(&port, 1) == Some(true) {
                duty.stand_in_again(Some(port.drives()));
                duty.learn(Some(true), clock::now_ns());
                return Some(());
            }
            if steady >= LOOKS_RIGHT {
                duty.enough = TAKEN_ENOUGH;
            }
            (posts_only, calls, drives) = (!drove, port.calls(), port.drives());
        }
        duty.begin(duty.enough);
        Some(())
    }

    /// The port, while it is open.
    fn going_on(&self, port: &Weak<Port>) -> Option<HeldPort<'_>> {
        let _held = self.holder.hold();
        let port = port.upgrade().filter(|_| !self.stop.load(Ordering::Acquire))?;
        if self.finishing.load(Ordering::Acquire) && !self.finished.load(Ordering::Relaxed) {
            port.finish();
            self.finished.store(true, Ordering::Release);
        }
        Some(HeldPort { port, _held })
    }

    /// Sleeps until a packet, a deadline, or a call.
    fn sleep(&self, port: HeldPort<'_>, duty: &mut Duty) {
        // A program that drives now and then need not wake us for each of its deadlines: we look again in a tick.
        let drives = port.drives();
        let alone = duty.slept_at == drives || self.standby.is_engaged();
        duty.slept_at = drives;
        // Announce the sleep first, look for reasons not to sleep second: a thread that makes a reason
        // does it the other way round, so that one of the two sees the other.
        if alone {
            self.asleep_until.store(u64::MAX, Ordering::SeqCst);
        }
        let deadline = port.next_deadline();
        let blind = self.standby.begin_blindness();
        self.standby.doorbell().announce();
        let stuck = port.has_unfinished();
        let waiting = port.has_something_to_do();
        drop(port); // The program may close the port while we sleep.
        match blind {
            true => self.leave_sockets(duty),
            false => self.watch_sockets(duty),
        }
        let left = |at: Time| Duration::from_nanos(at.nanos().saturating_sub(clock::now_ns()));
        let timeout = match deadline.map(left) {
            // Or the program drives right now, and may leave something.
            _ if waiting != Some(false) => Some(STEP),
            // What could not be emitted in all that time will not be in no time.
            _ if stuck => Some(STUCK_TICK),
            left if alone && !duty.is_deaf => left,
            left => Some(left.map_or(TICK, |left| left.min(TICK))),
        };
        if let Some(at) = deadline.filter(|_| alone) {
            self.asleep_until.store(at.nanos(), Ordering::SeqCst);
        }
        let _ = self.epoll.wait(&mut duty.events, timeout);
        self.asleep_until.store(AWAKE, Ordering::SeqCst);
        self.standby.doorbell().retire();
        self.standby.end_blindness();
        duty.arrived = duty.events.iter().any(|event| event.token == SOCKET);
        self.silence(&duty.events);
    }

    /// The helper's set has all sockets from now on, or as many as the kernel has room for.
    fn watch_sockets(&self, duty: &mut Duty) {
        let sockets = self.sockets.lock();
        let added = |socket: &&_| self.epoll.add(socket, SOCKET, Interest::Readable).is_ok();
        duty.watched += sockets.iter().skip(duty.watched).take_while(added).count();
        duty.is_deaf = duty.watched < sockets.len();
    }

    /// The helper's set has no sockets from now on: no packet wakes it, or costs a call-back.
    fn leave_sockets(&self, duty: &mut Duty) {
        for socket in self.sockets.lock().iter().take(duty.watched) {
            let _ = self.epoll.remove(socket);
        }
        (duty.watched, duty.is_deaf) = (0, false);
    }

    fn silence(&self, events: &Events) {
        if events.iter().any(|event| event.token == WAKE) {
            let _ = self.standby.wake().drain();
        }
    }
}

/// State of the helper's thread.
#[derive(Debug)]
struct Duty {
    events: Events,
    /// As many of the sockets are in the set.
    watched: usize,
    /// Not all of them are, though they are to be.
    is_deaf: bool,
    /// How often the program had driven when the helper last went to sleep.
    slept_at: u64,
    /// Something has just arrived, or another thread takes a step.
    arrived: bool,
    /// How often in turn the program took by itself what had arrived, and how often is enough.
    taken: u32,
    enough: u32,
    /// Something was left when the program had driven so often; since when the helper has taken it, in nanoseconds.
    left_at: Option<u64>,
    delivered: Option<u64>,
    /// When it is next looked whether the program does, in nanoseconds, and how long that waits if it does not.
    due: u64,
    pause: u64,
    load: Load,
    /// How often, of late, more threads wanted to run than there are processors; as of `counted`.
    crowd: u32,
    counted: u64,
    /// How often the program had driven when that was last asked for, and when it was last seen to drive.
    driven: u64,
    active: u64,
    /// When things that have time were last looked after.
    tended: u64,
}

impl Duty {
    fn new() -> Self {
        Self {
            events: Events::with_capacity(16),
            watched: 0,
            is_deaf: false,
            slept_at: 0,
            arrived: false,
            taken: 0,
            enough: TAKEN_ENOUGH,
            left_at: None,
            delivered: None,
            due: 0,
            pause: nanos(TICK),
            load: Load::new(),
            crowd: 0,
            counted: 0,
            driven: 0,
            active: 0,
            tended: 0,
        }
    }

    /// The helper stands in from now on; the program has taken so many arrivals by itself.
    fn begin(&mut self, taken: u32) {
        (self.taken, self.due, self.pause) = (taken, 0, nanos(TICK));
    }

    /// The program does not take what arrives, after all; something was left when it had driven so often.
    fn stand_in_again(&mut self, left_at: Option<u64>) {
        (self.left_at, self.delivered) = (left_at, None);
        self.begin(0);
    }

    /// Sees whether the program had waited for what the helper has taken, if something was left: then it calls at once.
    fn see_answer(&mut self, drives: u64, found: bool, now: u64) {
        if self.left_at.is_none_or(|left_at| left_at == drives) {
            self.delivered = self.delivered.or(found.then_some(now));
            return;
        }
        self.left_at = None;
        if self.delivered.is_some_and(|delivered| now.saturating_sub(delivered) < nanos(PROMPT)) {
            self.enough = (TAKEN_MORE * self.enough).min(TAKEN_ENOUGH_MAX);
        }
    }

    /// Something has arrived, and it is time to see whether the program takes it.
    fn is_due(&self, now: u64) -> bool {
        self.arrived && now >= self.due && !self.is_over()
    }

    /// The program took what had arrived by itself, or left it.
    fn learn(&mut self, left: Option<bool>, now: u64) {
        match left {
            Some(true) => {
                self.taken = 0;
                self.due = now.saturating_add(self.pause);
                self.pause = (2 * self.pause).min(nanos(PAUSE_MAX));
            }
            Some(false) => self.taken += 1,
            None => {}
        }
    }

    /// The program takes what arrives.
    fn is_over(&self) -> bool {
        self.taken >= self.enough
    }

    /// Does what has time.
    fn look_after(&mut self, port: &Port, now: u64) {
        port.show_counters();
        if now.saturating_sub(self.tended) > nanos(TICK) {
            self.tended = now;
            port.mend_registry();
            port.mend_steering();
        }
    }

    /// The helper should sleep and not look again: it would keep the program, which is at work, from its processor.
    fn is_crowded(&mut self, port: &Port, now: u64) -> bool {
        let at_work = self.has_driven_within(CROWDED, port, now);
        if now >= self.counted.saturating_add(nanos(TICK)) {
            self.counted = now;
            // Threads that have a moment's work do not make a crowd.
            self.crowd = match self.load.is_crowded() {
                true => (self.crowd + 1).min(CROWD_MAX),
                false => self.crowd.saturating_sub(1),
            };
        }
        self.crowd >= CROWD && at_work
    }

    /// The program may answer at once what is delivered: it has made a call of late.
    fn is_at_work(&mut self, port: &Port, now: u64) -> bool {
        self.has_driven_within(TICK, port, now)
    }

    fn has_driven_within(&mut self, time: Duration, port: &Port, now: u64) -> bool {
        let drives = port.drives();
        if self.driven != drives {
            (self.driven, self.active) = (drives, now);
        }
        now.saturating_sub(self.active) < nanos(time)
    }

    /// Lets others have the processor for a moment. If it takes long, there are too many of them.
    fn give_way(&mut self, now: u64) {
        thread::yield_now();
        let after = clock::now_ns();
        if after.saturating_sub(now) > nanos(LINGER) {
            self.crowd = CROWD_MAX;
        }
    }
}

/// Whether the program, given time, leaves what arrives: it computes, or polls its memory. `None` if nothing tells: it
/// does not call all the time, but nothing arrives either. The helper itself sends nothing meanwhile.
fn is_left_waiting(port: &Port, looks: u32) -> Option<bool> {
    let mut steady = true;
    for _ in 0..looks {
        let (calls, waits) = (port.calls(), port.has_arrivals());
        thread::sleep(LINGER);
        let called = has_called(port, calls);
        if !called && waits && port.has_arrivals() {
            return Some(true);
        }
        steady &= called;
    }
    steady.then_some(false)
}

/// Whether the program has made a call since it had made so many, or makes one. A step of a stream and a long copy take
/// longer than a look.
fn has_called(port: &Port, calls: Option<u64>) -> bool {
    let now = port.calls();
    now.is_none() || now != calls || port.is_taking_a_step()
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::path::{PathChoice, PortConfig};
    use crate::registry::relay::Passed;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::os::fd::AsRawFd;
    use std::time::Instant;

    /// Goal: a program is left to itself once it has taken a few arrivals in turn; one that was left lying counts more.
    #[test]
    fn a_program_that_takes_what_arrives_is_left_to_itself() {
        let mut duty = Duty::new();
        duty.begin(0);
        for _ in 1..TAKEN_ENOUGH {
            duty.learn(Some(false), 0);
        }
        duty.learn(None, 0);
        assert!(!duty.is_over());
        duty.learn(Some(true), 0);
        for _ in 0..TAKEN_ENOUGH {
            assert!(!duty.is_over());
            duty.learn(Some(false), 0);
        }
        assert!(duty.is_over());
    }

    /// Goal: one that waits in its memory for what it has left has to take more in turn the next time.
    #[test]
    fn a_program_that_waits_in_its_memory_makes_the_helper_harder_to_convince() {
        let mut duty = Duty::new();
        let mut before = 0;
        for _ in 0..8 {
            let mut takes = 0;
            while !duty.is_over() {
                duty.learn(Some(false), 0);
                takes += 1;
            }
            assert!(takes > before || takes == TAKEN_ENOUGH_MAX, "{takes} after {before}");
            before = takes;
            duty.stand_in_again(Some(1));
            duty.see_answer(1, false, 0);
            duty.see_answer(1, true, 1000);
            duty.see_answer(2, false, nanos(PROMPT));
            duty.see_answer(3, false, nanos(PROMPT));
        }
        assert_eq!(duty.enough, TAKEN_ENOUGH_MAX);
    }

    /// Goal: one that was busy while something arrived is left to itself as soon as before.
    #[test]
    fn a_program_that_was_busy_is_left_to_itself_as_soon_as_before() {
        let mut duty = Duty::new();
        duty.stand_in_again(Some(1));
        duty.see_answer(1, true, 0);
        duty.see_answer(1, true, nanos(PROMPT));
        duty.see_answer(2, true, nanos(PROMPT));
        duty.stand_in_again(None);
        duty.see_answer(3, true, nanos(PROMPT));
        assert_eq!(duty.enough, TAKEN_ENOUGH);
        // It drives before the helper has taken anything: it was not the helper that it waited for.
        duty.stand_in_again(Some(3));
        duty.see_answer(4, true, nanos(PROMPT));
        duty.see_answer(5, true, nanos(PROMPT));
        assert_eq!(duty.enough, TAKEN_ENOUGH);
    }

    /// Goal: a program is at work while it takes a step, however long that is: a burst of a stream takes longer than a look.
    #[test]
    fn a_program_in_the_midst_of_a_step_takes_what_arrives() {
        let config = PortConfig { path: Some(PathChoice::Udp), exclusive: true };
        let port = Port::open_with("soft_lo", &config).unwrap();
        let step = port.receiver.lock();
        assert_eq!(is_left_waiting(&port, LOOKS), Some(false));
        drop(step);
    }

    /// Goal: packets that come one after the other call no thread back, and a sleeping helper wakes for the next one.
    /// Method: the kernel's list of what is in the helper's set, while messages come to the relay socket without end.
    #[test]
    fn the_sockets_are_not_in_the_set_while_packets_come_one_after_the_other() {
        let config = PortConfig { path: Some(PathChoice::Udp), exclusive: true };
        let [port, other] = [(); 2].map(|()| Port::open_with("soft_lo", &config).unwrap());
        let set = port.helper.shared.epoll.as_fd().as_raw_fd();
        let watches = || {
            let list = std::fs::read_to_string(format!("/proc/self/fdinfo/{set}")).unwrap();
            list.lines().filter(|line| line.starts_with("tfd:")).count() > 1
        };
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let source = SocketAddr::new(here, adverb_wire::ROCE_PORT);
        let marks = Default::default();
        let message = || Passed { source, target: here, marks, segment: None, bytes: &[0; 64] };
        let until = Instant::now() + Duration::from_secs(20);
        let late = || assert!(Instant::now() < until, "the set stays as it is");
        for watched in [true, false, true] {
            while watches() != watched {
                if !watched {
                    let _ = other.links.relay.pass(port.links.relay.port(), message());
                }
                late();
            }
        }
    }

    #[test]
    fn the_longer_a_program_leaves_what_arrives_the_less_often_it_is_tried() {
        let mut duty = Duty::new();
        duty.begin(0);
        duty.arrived = true;
        let (mut now, mut before) = (0, 0);
        while before < nanos(PAUSE_MAX) {
            assert!(duty.is_due(now));
            duty.learn(Some(true), now);
            let pause = duty.due - now;
            assert!(!duty.is_due(duty.due - 1) && pause > before, "{pause} after {before}");
            (now, before) = (duty.due, pause);
        }
        duty.learn(Some(true), now);
        assert_eq!(duty.due - now, nanos(PAUSE_MAX));
    }
}
