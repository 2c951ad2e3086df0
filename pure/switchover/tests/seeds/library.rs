//! What a program's calls do on one end of a connection: as the library of sockets does it, in small.

use std::sync::Arc;

use crate::bell::{Bells, Wake};
use crate::carry::{Empty, Source, WayOut};
use crate::kernel::{BELL, Error};
use crate::leave::{Following, Leave, Leaving, Received};
use crate::machine::sync::{AtomicU32, AtomicU64, Ordering};
use crate::machine::{Block, Lock, call, fail, nap, now_ns, random, sleep, trace};
use crate::page::{Connection, Direction, End, Leaver, NEVER, ON_WORD, Page, Route, Waiters};
use crate::park::{OnWord, Want};

/// Bytes of a ring.
const RING: usize = 8;
const NAP_NS: u64 = 50_000;
const MOMENT_NS: u64 = 20_000_000;
const SLICE_NS: u64 = 250_000_000;
const LEAVE_NS: u64 = 500_000_000;
const LEAVING_NS: u64 = 20_000_000;
const NOTIFYING_NS: u64 = 100_000_000;
const TIMEOUT_NS: u64 = 500_000_000;

/// What both ends have mapped.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) page: Page,
    pub(crate) bytes: [Vec<AtomicU32>; 2],
    /// What the end that left has kept for the other.
    kept: std::sync::Mutex<Vec<u16>>,
}

impl Memory {
    pub(crate) fn new() -> Self {
        let ring = || (0..RING).map(|_| AtomicU32::default()).collect();
        let page = Page::default();
        page.prepare();
        Self { page, bytes: [ring(), ring()], kept: std::sync::Mutex::default() }
    }
}

/// What a socket is, for all processes of a family that have it.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) memory: Arc<Memory>,
    pub(crate) me: End,
    pub(crate) route: AtomicU32,
    waiters: Waiters,
    is_peer_gone: AtomicU32,
    is_write_shut: AtomicU32,
    taken: AtomicU64,
    given: AtomicU64,
    answers: AtomicU32,
    leaving_since_ns: AtomicU64,
    receiving: Lock,
    sending: Lock,
    /// It came from another program, which may have it still.
    is_adopted: bool,
}

/// A socket, as a process has it.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) socket: Arc<Socket>,
    pub(crate) process: usize,
    /// Processes of the other end: it is abandoned if none of them lives.
    pub(crate) others: Vec<usize>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Step {
    Moved(usize),
    Ended,
    Nothing,
    Failed,
}

pub(crate) const fn number(end: End) -> usize {
    match end {
        End::Client => 0,
        End::Server => 1,
    }
}

/// The byte of a position in a stream.
const fn byte_at(position: u64) -> u16 {
    (position % 251) as u16
}

/// Bytes of the direction that comes to `end` have been read by its program.
fn check(end: usize, bytes: &[u16]) {
    call(|state| {
        for &byte in bytes {
            let read = state.read[1 - end];
            if byte == BELL {
                state.fail("a bell is read as data");
            } else if byte != byte_at(read) {
                state.fail(format!("byte {read} is {byte}, not {}", byte_at(read)));
            }
            state.read[1 - end] += 1;
        }
    });
}

impl Socket {
    pub(crate) fn new(
        memory: &Arc<Memory>,
        me: End,
        route: Route,
        is_adopted: bool,
        lock: usize,
    ) -> Self {
        let socket = Self {
            memory: Arc::clone(memory),
            me,
            route: AtomicU32::default(),
            waiters: Waiters::default(),
            is_peer_gone: AtomicU32::default(),
            is_write_shut: AtomicU32::default(),
            taken: AtomicU64::default(),
            given: AtomicU64::default(),
            answers: AtomicU32::default(),
            leaving_since_ns: AtomicU64::default(),
            receiving: Lock::new(lock),
            sending: Lock::new(lock + 1),
            is_adopted,
        };
        socket.set_route(route);
        socket
    }

    fn set_route(&self, route: Route) {
        trace(|| format!("{:?} is {route:?}", self.me));
        self.route.store(route as u32, Ordering::SeqCst);
    }

    pub(crate) fn route(&self) -> Route {
        match self.route.load(Ordering::Acquire) {
            0 => Route::Open,
            2 => Route::Offered,
            3 => Route::Rings,
            4 => Route::Leaving,
            _ => Route::Kernel,
        }
    }

    fn connection(&self) -> Connection<'_> {
        Connection { page: &self.memory.page, waiters: &self.waiters, me: self.me }
    }

    fn has_rings(&self) -> bool {
        !matches!(self.route(), Route::Open | Route::Kernel)
    }
}

impl Handle {
    fn end(&self) -> usize {
        number(self.socket.me)
    }

    fn connection(&self) -> Connection<'_> {
        self.socket.connection()
    }

    fn kernel_recv(&self, most: usize, peek: bool) -> Result<Vec<u16>, Error> {
        call(|state| state.kernel.recv(self.end(), most, peek)).unwrap_or(Err(Error::Again))
    }

    fn kernel_send(&self, bytes: &[u16]) -> Result<usize, Error> {
        call(|state| state.kernel.send(self.end(), bytes)).unwrap_or(Err(Error::Again))
    }

    fn is_abandoned(&self) -> bool {
        call(|state| {
            !self
                .others
                .iter()
                .any(|other| state.kernel.has(*other, 1 - self.end()) || state.is_alive(*other))
        })
        .unwrap_or(true)
    }

    fn poll(&self, reads: bool, writes: bool, limit_ns: u64) -> bool {
        let (end, fd_of) = (self.end(), self.process);
        self.block(Block::Poll { end, reads, writes, fd_of }, limit_ns)
    }

    fn block(&self, block: Block, limit_ns: u64) -> bool {
        let until = now_ns().saturating_add(limit_ns);
        let has_timed_out = sleep(block, until);
        if has_timed_out {
            trace(|| "a slice is over".to_owned());
        }
        !has_timed_out
    }

    fn wake(&self, wake: Wake<'_>) -> bool {
        // A word that has changed wakes by itself, here.
        matches!(wake, Wake::Bell)
    }

    fn notify(&self) {
        trace(|| "sends a bell".to_owned());
        if let Some(bell) = self.connection().bell() {
            bell.send(|| self.kernel_send(&[BELL]).is_ok());
        }
    }

    // Sending.

    /// Sends at most so many of the bytes that are next.
    pub(crate) fn try_send(&self, most: usize) -> Step {
        self.advance();
        if self.socket.route() == Route::Open && random(3) == 0 {
            let _receiving = self.socket.receiving.hold();
            let _sending = self.socket.sending.hold();
            self.take();
        }
        for _ in 0..8 {
            let held = self.socket.sending.hold();
            if self.socket.is_write_shut.load(Ordering::Relaxed) != 0 {
                return Step::Failed;
            }
            let step = if !self.socket.has_rings() {
                return self.through_kernel(most, true);
            } else {
                match self.connection().way_out(self.socket.route()) {
                    WayOut::Follow => None,
                    WayOut::Blocked => Some(Step::Nothing),
                    WayOut::Kernel => Some(self.through_kernel(most, false)),
                    WayOut::Ring => Some(self.through_ring(most)),
                }
            };
            drop(held);
            match step {
                Some(step) => {
                    if self.connection().is_left_behind(|| self.socket.route()) {
                        self.follow();
                    }
                    return step;
                }
                None if self.follow() => {}
                None => return Step::Nothing,
            }
        }
        self.poison();
        Step::Failed
    }

    fn next(&self, most: usize) -> Vec<u16> {
        let from = call(|state| state.sent[self.end()]).unwrap_or(0);
        (from..).take(most).map(byte_at).collect()
    }

    fn has_sent(&self, count: usize) {
        call(|state| state.sent[self.end()] += count as u64);
    }

    fn through_kernel(&self, most: usize, is_plain: bool) -> Step {
        match self.kernel_send(&self.next(most)) {
            Ok(sent) => {
                trace(|| format!("gives {sent} to the kernel"));
                self.has_sent(sent);
                if is_plain {
                    self.socket.given.fetch_add(sent as u64, Ordering::AcqRel);
                } else {
                    self.connection().on_given(sent as u64);
                }
                Step::Moved(sent)
            }
            Err(Error::Again) => Step::Nothing,
            Err(Error::Pipe | Error::Reset) => Step::Failed,
        }
    }

    fn through_ring(&self, most: usize) -> Step {
        let connection = self.connection();
        let outgoing = connection.outgoing();
        if outgoing.switch() || self.socket.route() == Route::Offered {
            self.socket.set_route(Route::Rings);
        }
        if outgoing.is_gone() || self.socket.is_peer_gone.load(Ordering::Acquire) != 0 {
            return match self.kernel_send(&[BELL]) {
                Ok(_) | Err(Error::Again) => Step::Moved(most),
                Err(Error::Pipe | Error::Reset) => Step::Failed,
            };
        }
        let head = outgoing.sender.head.load(Ordering::Relaxed);
        let ahead = head.wrapping_sub(outgoing.consumer.tail.load(Ordering::Acquire));
        if ahead > RING as u64 {
            self.poison();
            return Step::Failed;
        }
        let bytes = self.next(most.min(RING - ahead as usize));
        for (at, byte) in (0..).zip(&bytes) {
            self.ring(true)[head.wrapping_add(at) as usize % RING]
                .store(u32::from(*byte), Ordering::Relaxed);
        }
        if bytes.is_empty() {
            return Step::Nothing;
        }
        let head = head.wrapping_add(bytes.len() as u64);
        outgoing.sender.head.store(head, Ordering::Release);
        self.has_sent(bytes.len());
        trace(|| format!("writes {} to the ring", bytes.len()));
        outgoing.producer.head.store(head, Ordering::Release);
        if self.wake(connection.wake_reader()) {
            self.notify();
        }
        Step::Moved(bytes.len())
    }

    fn ring(&self, outgoing: bool) -> &[AtomicU32] {
        let [client, server] = &self.socket.memory.bytes;
        if (self.socket.me == End::Client) == outgoing { client } else { server }
    }

    fn has_room(&self, want: Want) -> bool {
        let outgoing = self.connection().outgoing();
        let head = outgoing.sender.head.load(Ordering::Acquire);
        let ahead = head.wrapping_sub(outgoing.consumer.tail.load(Ordering::Acquire));
        let most = if want == Want::Room { RING / 2 } else { RING - 1 };
        ahead <= most as u64 || ahead > RING as u64
    }

    // Receiving.

    pub(crate) fn try_receive(&self, most: usize) -> Step {
        self.advance();
        for _ in 0..8 {
            let held = self.socket.receiving.hold();
            if !self.socket.has_rings() {
                return self.receive_plain(most);
            }
            if !self.connection().is_left_behind(|| self.socket.route()) {
                return self.receive_settled(most);
            }
            drop(held);
            if !self.follow() {
                return Step::Nothing;
            }
        }
        self.poison();
        Step::Failed
    }

    fn receive_plain(&self, most: usize) -> Step {
        match self.kernel_recv(most, false) {
            Ok(bytes) if bytes.is_empty() => Step::Ended,
            Ok(bytes) => {
                trace(|| format!("reads {:?} plainly", bytes));
                check(self.end(), &bytes);
                self.socket.taken.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                if self.socket.route() == Route::Open {
                    let _held = self.socket.sending.hold();
                    self.take();
                }
                Step::Moved(bytes.len())
            }
            Err(Error::Again) => Step::Nothing,
            Err(Error::Reset | Error::Pipe) => Step::Failed,
        }
    }

    fn take(&self) {
        let socket = &self.socket;
        if socket.me == End::Server && socket.route() == Route::Open {
            let (taken, given) = (&socket.taken, &socket.given);
            let page = &socket.memory.page;
            if page.take(taken.load(Ordering::Relaxed), given.load(Ordering::Relaxed)) {
                socket.set_route(Route::Rings);
            }
        }
    }

    fn receive_settled(&self, most: usize) -> Step {
        let connection = self.connection();
        for _ in 0..64 {
            let from_kernel = match connection.source() {
                Source::Ring => return self.receive_ring(most),
                Source::Kernel(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX),
                Source::Queue => {
                    let waiting = call(|state| state.kernel.waiting(self.end())).unwrap_or(0);
                    match (waiting, connection.source()) {
                        (_, Source::Ring | Source::Kernel(_)) => continue,
                        (0, Source::Queue) => match self.kernel_recv(1, true) {
                            Ok(bytes) if bytes.is_empty() => return Step::Ended,
                            Ok(_) => continue,
                            Err(Error::Again) if connection.incoming().is_switched() => continue,
                            Err(Error::Again) => return Step::Nothing,
                            Err(Error::Reset | Error::Pipe) => return Step::Failed,
                        },
                        (waiting, Source::Queue) => waiting,
                    }
                }
            };
            let bytes = match self.kernel_recv(most.min(from_kernel), false) {
                Ok(bytes) if bytes.is_empty() => return Step::Ended,
                Ok(bytes) => bytes,
                Err(Error::Again) => return Step::Nothing,
                Err(Error::Reset | Error::Pipe) => return Step::Failed,
            };
            check(self.end(), &bytes);
            trace(|| format!("takes {} of the kernel's", bytes.len()));
            connection.on_taken(bytes.len() as u64);
            if self.socket.route() == Route::Offered {
                let answers = self.socket.answers.fetch_add(1, Ordering::Relaxed);
                let given = connection.outgoing().producer.given.load(Ordering::Relaxed);
                if given > 0 && answers >= 3 {
                    let _held = self.socket.sending.hold();
                    self.take_back();
                }
            }
            return Step::Moved(bytes.len());
        }
        Step::Nothing
    }

    fn receive_ring(&self, most: usize) -> Step {
        let connection = self.connection();
        let incoming = connection.incoming();
        let head = incoming.producer.head.load(Ordering::Acquire);
        let tail = incoming.consumer.tail.load(Ordering::Relaxed);
        let available = head.wrapping_sub(tail);
        if available > RING as u64 {
            self.poison();
            return Step::Failed;
        }
        let got = most.min(available as usize);
        if got > 0 {
            let bytes = self.bytes(tail, got);
            check(self.end(), &bytes);
            trace(|| format!("reads {got} of the ring"));
            incoming.consumer.tail.store(tail.wrapping_add(got as u64), Ordering::Release);
            self.notify_of_room();
            let pending = connection.pending_after_read();
            self.take_bells(pending);
            return Step::Moved(got);
        }
        let is_peer_gone = || self.socket.is_peer_gone.load(Ordering::Acquire) != 0;
        match connection.at_empty(false, is_peer_gone, || false, connection.page.leaver().ok()) {
            Empty::Again => Step::Moved(0),
            Empty::Nothing => Step::Nothing,
            Empty::Ended => Step::Ended,
            Empty::AskKernel => self.last_word(),
            Empty::Behind => self.receive_behind(most),
        }
    }

    fn bytes(&self, from: u64, count: usize) -> Vec<u16> {
        self.bytes_of(false, from, count)
    }

    fn bytes_of(&self, outgoing: bool, from: u64, count: usize) -> Vec<u16> {
        let place = |at: usize| &self.ring(outgoing)[(from as usize).wrapping_add(at) % RING];
        (0..count).map(|at| place(at).load(Ordering::Relaxed) as u16).collect()
    }

    fn notify_of_room(&self) {
        let connection = self.connection();
        let incoming = connection.incoming();
        let has_room = || {
            let head = incoming.producer.head.load(Ordering::Acquire);
            let ahead = head.wrapping_sub(incoming.consumer.tail.load(Ordering::Acquire));
            ahead <= RING as u64 / 2
        };
        if !self.wake(connection.wake_writer(has_room)) {
            return;
        }
        if !connection.outgoing().is_switched() {
            let _held = self.socket.sending.hold();
            if connection.outgoing().switch() {
                self.socket.set_route(Route::Rings);
            }
        }
        self.notify();
    }

    fn last_word(&self) -> Step {
        for _ in 0..64 {
            match self.kernel_recv(512, false) {
                Ok(bytes) if bytes.is_empty() => return Step::Ended,
                Ok(_) => {}
                Err(Error::Again) => {
                    self.socket.is_peer_gone.store(0, Ordering::Release);
                    return Step::Nothing;
                }
                Err(Error::Reset | Error::Pipe) => return Step::Failed,
            }
        }
        Step::Nothing
    }

    fn receive_behind(&self, most: usize) -> Step {
        if !self.is_drained() {
            let has_bytes = self.connection().incoming().has_bytes();
            return if has_bytes { Step::Moved(0) } else { Step::Nothing };
        }
        match self.kernel_recv(most, false) {
            Ok(bytes) if bytes.is_empty() => Step::Ended,
            Ok(bytes) => {
                check(self.end(), &bytes);
                Step::Moved(bytes.len())
            }
            Err(Error::Again) => Step::Nothing,
            Err(Error::Reset | Error::Pipe) => Step::Failed,
        }
    }

    fn take_bells(&self, count: u64) -> bool {
        let mut left = count.min(1 << 10) as usize;
        while left > 0 {
            let Ok(bytes) = self.kernel_recv(left, false) else { return false };
            if bytes.is_empty() {
                return false;
            }
            self.drop_bells(&bytes);
            left -= bytes.len();
        }
        true
    }

    fn drop_bells(&self, bytes: &[u16]) {
        trace(|| format!("drops {} bells", bytes.len()));
        if bytes.iter().any(|byte| *byte != BELL) {
            fail("data is dropped for a bell");
        }
        self.connection().incoming().drained(bytes.len() as u64);
    }

    // Waiting.

    fn is_worth_a_look(&self, want: Want) -> bool {
        !self.socket.has_rings()
            || self.connection().is_worth_a_look(
                want,
                || self.socket.route(),
                || self.has_room(want),
            )
    }

    fn drain(&self, is_writer: bool) -> bool {
        let connection = self.connection();
        if let Some(bells) = connection.looks_for_bells(is_writer) {
            return bells == Bells::None;
        }
        let _held = self.socket.receiving.hold();
        match connection.bells_to_take() {
            Bells::None => true,
            Bells::Take(pending) => self.take_bells(pending),
            Bells::Leave => false,
            Bells::Data => call(|state| state.kernel.waiting(self.end())) == Some(0),
        }
    }

    fn look_at_kernel(&self) {
        let is_over = call(|state| state.kernel.is_over(self.end())).unwrap_or(true);
        if is_over
            || self.socket.has_rings()
                && !self.connection().page.is_leaving()
                && self.is_abandoned()
        {
            self.socket.is_peer_gone.store(1, Ordering::Release);
        }
    }

    fn fall_asleep(&self, want: Want) {
        let socket = &self.socket;
        let is_writer = want != Want::Read;
        let has_rings = socket.has_rings();
        let sleeper = Sleeper::new(&socket.waiters, is_writer);
        if has_rings {
            let connection = self.connection();
            if !is_writer && socket.is_peer_gone.load(Ordering::Relaxed) == 0 {
                match connection.arm_on_word(socket.route(), || false) {
                    OnWord::Refused => {}
                    OnWord::Look => return,
                    OnWord::Sleep => {
                        let word = connection.incoming().consumer.sleep.armed.cell();
                        let until = now_ns().saturating_add(MOMENT_NS);
                        if !sleep(Block::Word(word, u64::from(ON_WORD)), until) {
                            return;
                        }
                        trace(|| "a moment is over".to_owned());
                    }
                }
            }
            let is_quiet = self.drain(is_writer);
            let armed = connection.arm(want, || socket.route(), || self.has_room(want));
            self.wake(armed.wakes);
            if !armed.sleeps {
                return;
            }
            let in_ring = socket.route() == Route::Rings;
            if is_writer && in_ring && !is_quiet {
                nap(2 * NAP_NS);
                self.look_at_kernel();
                return;
            }
        }
        let in_ring = has_rings && socket.route() == Route::Rings;
        let resends = socket.route() == Route::Leaving && self.connection().left_to_send() > 0;
        let writes = is_writer && !in_ring || resends;
        trace(|| format!("sleeps to {want:?}, in ring: {in_ring}"));
        let is_woken = if is_writer && in_ring {
            self.block(Block::PollForRoom { end: self.end(), fd_of: self.process }, SLICE_NS)
        } else {
            self.poll(!is_writer || resends, writes, if has_rings { SLICE_NS } else { u64::MAX })
        };
        drop(sleeper);
        if has_rings {
            self.after_sleep();
            if !is_woken && is_writer {
                self.look_at_kernel();
            }
        }
    }

    /// Attempts something until it comes to something.
    fn wait(&self, want: Want, attempt: impl Fn() -> Step) -> Step {
        loop {
            for _ in 0..random(4) + 1 {
                let is_gone = self.socket.is_peer_gone.load(Ordering::Relaxed) != 0;
                if is_gone || self.is_worth_a_look(want) {
                    match attempt() {
                        Step::Nothing | Step::Moved(0) => {}
                        step @ (Step::Moved(_) | Step::Ended | Step::Failed) => return step,
                    }
                }
            }
            if call(|state| state.kernel.has(self.process, self.end())) != Some(true) {
                return Step::Failed;
            }
            self.fall_asleep(want);
        }
    }

    pub(crate) fn receive(&self, most: usize) -> Step {
        self.wait(Want::Read, || self.try_receive(most))
    }

    pub(crate) fn send(&self, most: usize) -> Step {
        self.wait(Want::Write, || self.try_send(most))
    }

    /// As `poll` for reading and writing: sleeps until there may be one of them.
    pub(crate) fn poll_both(&self) {
        let socket = &self.socket;
        if !socket.has_rings() {
            self.poll(true, true, u64::MAX);
            return;
        }
        let sleeper = Sleeper::new(&socket.waiters, true);
        let connection = self.connection();
        self.drain(true);
        self.wake(connection.arm(Want::Read, || socket.route(), || false).wakes);
        let room = connection.arm(Want::Room, || socket.route(), || self.has_room(Want::Room));
        self.wake(room.wakes);
        let is_ready = self.has_room(Want::Room)
            || connection.incoming().has_bytes()
            || connection.incoming().has_fin()
            || connection.outgoing().is_gone()
            || connection.is_left_behind(|| socket.route())
            || socket.is_peer_gone.load(Ordering::Relaxed) != 0;
        if is_ready {
            return;
        }
        let resends = socket.route() == Route::Leaving && connection.left_to_send() > 0;
        let writes = connection.kernel_speaks(socket.route()).1 || resends;
        trace(|| "polls".to_owned());
        self.poll(true, writes, SLICE_NS);
        drop(sleeper);
        self.after_sleep();
    }

    fn after_sleep(&self) {
        if call(|state| state.kernel.is_over(self.end())).unwrap_or(true) {
            self.socket.is_peer_gone.store(1, Ordering::Release);
        }
        let _held = self.socket.receiving.hold();
        if self.connection().incoming().is_past() {
            let pending = self.connection().pending_after_read();
            self.take_bells(pending);
        }
    }

    // The end.

    pub(crate) fn shut(&self) {
        trace(|| "shuts".to_owned());
        let socket = &self.socket;
        let _held = socket.sending.hold();
        if socket.route() == Route::Open {
            socket.set_route(Route::Kernel);
        }
        if !socket.has_rings() || !socket.memory.page.is_accepted() && self.take_back() {
            call(|state| state.kernel.shut(self.end()));
            return;
        }
        let connection = self.connection();
        if connection.outgoing().switch() {
            socket.set_route(Route::Rings);
        }
        socket.is_write_shut.store(1, Ordering::Release);
        self.wake(connection.shut(true));
        if self.wake(connection.wake_at_fin()) {
            self.notify();
        }
    }

    fn take_back(&self) -> bool {
        let is_ours = self.socket.memory.page.withdraw();
        if is_ours {
            self.socket.set_route(Route::Kernel);
        }
        is_ours
    }

    /// The last descriptor of this end is closed, or one of several.
    pub(crate) fn close(&self, is_last: bool) {
        trace(|| format!("closes, last: {is_last}"));
        if is_last && self.socket.has_rings() {
            if self.socket.is_adopted {
                self.send_the_rest();
            } else {
                self.part();
            }
        }
        call(|state| state.kernel.close(self.process, self.end()));
    }

    fn part(&self) {
        let connection = self.connection();
        let closing = connection.close(false);
        self.wake(closing.wakes);
        if closing.has_to_resend {
            return self.send_the_rest();
        }
        let until = now_ns() + NOTIFYING_NS;
        while connection.is_being_notified() && now_ns() < until {
            nap(NAP_NS);
        }
        if closing.is_unread {
            call(|state| state.kernel.reset(self.end()));
        } else if connection.incoming().is_past() {
            while self.kernel_recv(512, false).is_ok_and(|bytes| !bytes.is_empty()) {}
        }
    }

    fn send_the_rest(&self) {
        let start = now_ns();
        loop {
            if self.connection().page.is_leaving() {
                self.follow();
            }
            if !self.socket.has_rings() || self.connection().left_to_send() == 0 {
                return;
            }
            if now_ns().saturating_sub(start) > TIMEOUT_NS {
                call(|state| state.kernel.reset(self.end()));
                return;
            }
            nap(100 * NAP_NS);
        }
    }

    fn poison(&self) {
        if self.socket.route() == Route::Kernel {
            return;
        }
        trace(|| "poisoned".to_owned());
        call(|state| {
            if !state.is_excused {
                state.fail("the connection is reset, and nothing has happened");
            }
            state.kernel.reset(self.end());
        });
        self.socket.set_route(Route::Kernel);
        self.wake(self.connection().incoming().wake_at_end());
    }

    // Back to the kernel.

    fn advance(&self) {
        if self.socket.route() == Route::Leaving {
            self.follow();
        }
    }

    /// Gives the connection back to the kernel.
    pub(crate) fn leave(&self) {
        trace(|| "leaves".to_owned());
        if self.connection().page.is_leaving() {
            self.follow();
        }
        let is_first = {
            let _receiving = self.socket.receiving.hold();
            let _sending = self.socket.sending.hold();
            if self.socket.route() == Route::Open {
                self.socket.set_route(Route::Kernel);
            }
            if !self.socket.has_rings()
                || !self.socket.memory.page.is_accepted() && self.take_back()
            {
                return;
            }
            match self.connection().leave(now_ns() + LEAVE_NS) {
                Some(leave) => {
                    self.leave_first(leave);
                    true
                }
                None => false,
            }
        };
        if !is_first {
            self.follow_to_the_end();
        }
    }

    fn leave_first(&self, mut leave: Leave<'_>) {
        let mut given = Vec::new();
        loop {
            let next = leave.next(|| self.is_abandoned(), now_ns());
            trace(|| format!("{next:?}"));
            match next {
                Leaving::Pause => nap(NAP_NS),
                Leaving::Receive { most, are_bells } => {
                    let most = usize::try_from(most).unwrap_or(usize::MAX);
                    let received = match self.kernel_recv(most, false) {
                        Ok(bytes) if bytes.is_empty() => Received::Ended,
                        Ok(bytes) => {
                            let is_bell = |byte: &u16| *byte == BELL;
                            if bytes.iter().any(|byte| is_bell(byte) != are_bells) {
                                fail("the end that leaves takes one for the other");
                            }
                            let count = bytes.len() as u64;
                            if !are_bells {
                                given.extend(bytes);
                            }
                            Received::Bytes(count)
                        }
                        Err(Error::Again) => Received::Nothing,
                        Err(Error::Reset | Error::Pipe) => Received::Ended,
                    };
                    leave.on_received(received);
                }
                Leaving::Await => {
                    nap(NAP_NS);
                }
                Leaving::Keep => {
                    let mut kept = self.socket.memory.kept.lock().expect("one at a time");
                    *kept = std::mem::take(&mut given);
                    leave.on_kept(Some(kept.len() as u64));
                }
                Leaving::Inherit => {
                    // Where it is put is not this protocol's: the program reads it.
                    check(self.end(), &given);
                    let incoming = self.connection().incoming();
                    let tail = incoming.consumer.tail.load(Ordering::Relaxed);
                    let count = incoming.waiting();
                    if count <= RING as u64 {
                        check(self.end(), &self.bytes(tail, count as usize));
                        incoming.consumer.tail.store(tail.wrapping_add(count), Ordering::Release);
                    }
                    call(|state| state.kernel.reset(self.end()));
                    leave.on_inherited();
                }
                Leaving::LastBell(sleeper) => {
                    self.wake(sleeper);
                    leave.on_last_bell(self.kernel_send(&[BELL]).is_ok());
                }
                Leaving::Reset => return self.poison(),
                Leaving::Finish(sleeper) => {
                    self.finish();
                    self.wake(sleeper);
                    call(|state| state.has_left = true);
                    return;
                }
            }
        }
    }

    fn finish(&self) {
        if self.socket.is_write_shut.load(Ordering::Acquire) != 0 {
            call(|state| state.kernel.shut(self.end()));
        }
        self.socket.set_route(Route::Kernel);
    }

    fn follow(&self) -> bool {
        let _receiving = self.socket.receiving.hold();
        let _sending = self.socket.sending.hold();
        !self.socket.has_rings() || self.follow_held()
    }

    fn follow_held(&self) -> bool {
        let mut follow = self.connection().follow();
        let until = now_ns() + LEAVING_NS;
        loop {
            let next = follow.next(|| self.is_abandoned());
            trace(|| format!("{next:?}"));
            match next {
                Following::Wait if now_ns() < until => nap(NAP_NS),
                Following::Wait => {
                    let now = now_ns();
                    let since = &self.socket.leaving_since_ns;
                    let since = match since.compare_exchange(
                        0,
                        now,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    ) {
                        Ok(_) => now,
                        Err(since) => since,
                    };
                    if now.saturating_sub(since) <= TIMEOUT_NS {
                        return false;
                    }
                    self.poison();
                    return true;
                }
                Following::Gone => {
                    self.socket.set_route(Route::Kernel);
                    return true;
                }
                Following::Resend { from, of } => {
                    self.begin_to_follow();
                    let kept = self.socket.memory.kept.lock().expect("one at a time").clone();
                    if kept.len() as u64 != of {
                        self.poison();
                        return true;
                    }
                    let rest = &kept[from as usize..];
                    let sent = self.give(rest);
                    follow.on_resent(sent as u64, sent == rest.len());
                }
                Following::Forward => {
                    self.begin_to_follow();
                    match self.forward() {
                        Some(is_all) => follow.on_forwarded(is_all),
                        None => {
                            self.poison();
                            return true;
                        }
                    }
                }
                Following::Drain => follow.on_drained(self.is_drained()),
                Following::Later => return true,
                Following::Finish => {
                    self.finish();
                    return true;
                }
                Following::Reset => {
                    self.poison();
                    return true;
                }
            }
        }
    }

    fn begin_to_follow(&self) {
        if self.socket.route() != Route::Leaving {
            self.socket.set_route(Route::Leaving);
        }
    }

    fn give(&self, bytes: &[u16]) -> usize {
        match self.kernel_send(bytes) {
            Ok(sent) if sent < bytes.len() => sent + self.give(&bytes[sent..]),
            Ok(sent) => sent,
            Err(Error::Again) => 0,
            Err(Error::Reset | Error::Pipe) => bytes.len(),
        }
    }

    fn forward(&self) -> Option<bool> {
        let outgoing = self.connection().outgoing();
        let tail = outgoing.consumer.tail.load(Ordering::Relaxed);
        let count = outgoing.producer.head.load(Ordering::Acquire).wrapping_sub(tail);
        if count > RING as u64 {
            return None;
        }
        let bytes = self.bytes_of(true, tail, count as usize);
        let sent = self.give(&bytes);
        outgoing.consumer.tail.store(tail.wrapping_add(sent as u64), Ordering::Release);
        Some(sent == bytes.len())
    }

    fn is_drained(&self) -> bool {
        for _ in 0..64 {
            let Some(left) = self.connection().bells_behind() else { return false };
            let most = left.min(64) as usize;
            if most == 0 {
                return true;
            }
            match self.kernel_recv(most, false) {
                Ok(bytes) if bytes.is_empty() => return true,
                Ok(bytes) => self.drop_bells(&bytes),
                Err(Error::Again) => return false,
                Err(Error::Reset | Error::Pipe) => return true,
            }
        }
        false
    }

    fn follow_to_the_end(&self) {
        let start = now_ns();
        loop {
            {
                let _receiving = self.socket.receiving.hold();
                let _sending = self.socket.sending.hold();
                if !self.socket.has_rings()
                    || self.follow_held() && self.socket.route() == Route::Kernel
                {
                    return;
                }
                let is_over = now_ns().saturating_sub(start) > TIMEOUT_NS;
                if self.connection().bells_behind().is_none() || is_over {
                    trace(|| "both leave, and bytes are lost: reset".to_owned());
                    call(|state| {
                        state.kernel.reset(self.end());
                        state.is_excused = true;
                    });
                    return self.finish();
                }
            }
            nap(200 * NAP_NS);
        }
    }
}

/// Whether an end that goes back leaves nothing in rings: for programs that are replaced by others.
pub(crate) fn is_settled(memory: &Memory) -> bool {
    let directions = memory.page.directions();
    memory.page.is_accepted()
        && matches!(memory.page.leaver(), Ok(Leaver::Neither))
        && directions
            .iter()
            .all(|direction| direction.producer.switched_at.load(Ordering::Acquire) != NEVER)
}

struct Sleeper<'a> {
    waiters: &'a Waiters,
    is_writer: bool,
}

impl<'a> Sleeper<'a> {
    fn new(waiters: &'a Waiters, is_writer: bool) -> Self {
        waiters.sleepers.fetch_add(1, Ordering::SeqCst);
        if is_writer {
            waiters.writers.fetch_add(1, Ordering::SeqCst);
        }
        Self { waiters, is_writer }
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        if self.is_writer {
            self.waiters.writers.fetch_sub(1, Ordering::SeqCst);
        }
        self.waiters.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The words that the other end can overwrite.
pub(crate) fn words(memory: &Memory) -> Vec<Arc<std::sync::atomic::AtomicU64>> {
    let page = &memory.page;
    let mut words =
        vec![page.leaver.cell(), page.state.cell(), page.resend.cell(), page.resent.cell()];
    for Direction { producer, sender, consumer, writer } in &page.directions {
        let long = [
            &producer.head,
            &producer.switched_at,
            &producer.given,
            &producer.bells,
            &sender.head,
            &consumer.tail,
            &consumer.taken,
            &consumer.drained,
        ];
        let short = [
            &producer.fin,
            &producer.notifying,
            &sender.is_switched,
            &consumer.sleep.armed,
            &consumer.sleep.gone,
            &writer.armed,
        ];
        words.extend(long.map(AtomicU64::cell));
        words.extend(short.map(AtomicU32::cell));
    }
    words.extend(memory.bytes.iter().flatten().map(AtomicU32::cell));
    words
}
