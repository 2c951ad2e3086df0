//! Blocking calls on connections: they wait as the socket's options say, first spinning, then asleep.
//!
//! A call sleeps in the kernel on the connection itself, so that whatever else wakes a sleeper there still
//! does; or on the ring's own word, for a moment.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use adverb_sockconf::Load;
use adverb_switchover::{Route, Source, Want};

use crate::base::config;
use crate::base::iovec::IoCursor;
use crate::base::raw::{self, Answer, Errno};
use crate::base::thread::Seen;
use crate::socket::counters::add;
use crate::socket::spin::{LOOKS_OF_KERNEL, SLICE_NS, SpinBudget};
use crate::socket::state::{Kind, Socket};
use crate::socket::wait_loop::{self, Budget, Limits, Look, Rest, Wait};
use crate::socket::{pacing, table};
use crate::transport::ring::Segment;
use crate::transport::stream::{
    NO_PARTS, Receive, Step, look_for, try_receive, try_receive_plain, try_send,
};
use crate::transport::xdp::streams;
use crate::transport::{bell, fallback, park, streak};
use crate::wait::standstill;

/// Sleeps until the kernel has something for this connection, at most so long.
fn sleep(socket: &Socket, fd: c_int, want: Want, mut left_ns: Option<u64>) -> Result<(), Errno> {
    streams::resting();
    let rings = socket.segment();
    let is_writer = want != Want::Read;
    let start_ns = left_ns.map(|_| raw::now_ns());
    let sleeper = park::Sleeper::new(socket, is_writer);
    if let Some(segment) = rings {
        if !is_writer && park::sleep_on_word(socket, segment, left_ns) {
            return Ok(());
        }
        let spent_ns = start_ns.map(|start_ns| raw::now_ns().saturating_sub(start_ns));
        left_ns = left_ns.map(|left| left.saturating_sub(spent_ns.unwrap_or(0)));
        let is_quiet = bell::drain(socket, segment, fd, is_writer);
        if !park::arm(socket, segment, want) {
            return Ok(());
        }
        let in_ring = socket.route() == Route::Rings;
        if is_writer && in_ring && !is_quiet {
            // Bytes that another thread has to read keep the kernel's queue full.
            raw::nap(WRITER_NAP_NS);
            park::look_at_kernel(socket, fd);
            return Ok(());
        }
    }
    let events = match (is_writer, rings.is_some() && socket.route() == Route::Rings) {
        (false, _) | (true, true) => libc::POLLIN | libc::POLLRDHUP,
        (true, false) => libc::POLLOUT,
    };
    let events = if rings.is_none() { events & !libc::POLLRDHUP } else { events };
    let events = events | if park::has_to_resend(socket) { libc::POLLOUT } else { 0 };
    let left_ns = match rings {
        None => left_ns,
        Some(_) => Some(left_ns.unwrap_or(u64::MAX).min(SLICE_NS)),
    };
    let milliseconds = match left_ns {
        None => -1,
        Some(left) => c_int::try_from(left.div_ceil(1_000_000)).unwrap_or(c_int::MAX),
    };
    let mut polled = libc::pollfd { fd, events, revents: 0 };
    let answer = crate::base::real::real!(
        c"poll" as fn(*mut libc::pollfd, libc::nfds_t, c_int) -> c_int,
        &raw mut polled,
        1,
        milliseconds
    );
    let errno = raw::errno();
    drop(sleeper);
    if let Some(segment) = rings {
        park::apply_events(socket, fd, polled.revents);
        bell::drain_after_sleep(socket, segment, fd);
        if answer == 0 && is_writer {
            park::look_at_kernel(socket, fd);
        }
    }
    if answer < 0 { Err(errno) } else { Ok(()) }
}

/// Attempts something again and again until it comes to something, or the socket's time limit, a
/// signal or its flags end the wait.
fn wait(
    socket: &Socket,
    fd: c_int,
    want: Want,
    now: bool,
    mut attempt: impl FnMut() -> Step,
) -> Step {
    let errno = raw::errno();
    let seen = Seen::now();
    if want == Want::Read {
        if now {
            if is_quiet(socket) {
                return last_look(socket, fd, want, attempt);
            }
        } else if socket.segment().is_some() {
            streak::gather(socket);
        }
    }
    match attempt() {
        Step::Nothing => {}
        step @ (Step::Moved(_) | Step::Ended | Step::Failed(_)) => return step,
    }
    if socket.flags.wants_kernel.load(Ordering::Relaxed) {
        fallback::leave_for_feature(socket, fd);
    }
    if now {
        return last_look(socket, fd, want, attempt);
    }
    let attempt = || table::still(fd, socket).map_or_else(Step::Failed, |()| attempt());
    let most_ns = config::get().receive_spin_ns;
    let limits = match want {
        Want::Read => Limits::of_receiver(socket, most_ns),
        Want::Write | Want::Room => Limits::of_sender(socket, most_ns),
    };
    let mut call = Waiting { socket, fd, want, attempt, rounds: 0, slept: Ok(()) };
    let step = wait_loop::wait(Budget::new(limits, seen), &mut call);
    raw::set_errno(errno);
    step.unwrap_or_else(|ended| Step::Failed(ended.into()))
}

/// A call that waits.
struct Waiting<'a, A> {
    socket: &'a Socket,
    fd: c_int,
    want: Want,
    attempt: A,
    rounds: u32,
    /// What the kernel said of the last sleep.
    slept: Result<(), Errno>,
}

impl<A: FnMut() -> Step> Waiting<'_, A> {
    fn attempt(&mut self) -> Option<Step> {
        match (self.attempt)() {
            Step::Nothing => None,
            step @ (Step::Moved(_) | Step::Ended | Step::Failed(_)) => Some(step),
        }
    }

    /// True if the connection stood still, and has gone back to the kernel.
    fn look_for_standstill(&self) -> bool {
        let (socket, fd) = (self.socket, self.fd);
        self.want != Want::Read && standstill::is_due(socket) && standstill::end(socket, fd)
    }
}

impl<A: FnMut() -> Step> Wait for Waiting<'_, A> {
    type Answer = Step;

    #[inline]
    fn look(&mut self, _: &mut Budget) -> Look<Step> {
        let socket = self.socket;
        streams::look();
        let segment = socket.segment();
        self.rounds = self.rounds.wrapping_add(1);
        if segment.is_some() && self.rounds.is_multiple_of(KERNEL_LOOK_ROUNDS) {
            park::look_at_kernel(socket, self.fd);
            self.look_for_standstill();
        }
        let gone = socket.flags.is_peer_gone.load(Ordering::Relaxed);
        if gone || park::is_worth_a_look(socket, segment, self.want) {
            if self.want == Want::Read {
                streak::gather(socket);
            }
            if let Some(step) = self.attempt() {
                add(&socket.counters.rx_poll_hit, 1);
                return Look::Found(step);
            }
        }
        let is_memory = segment.is_some() && socket.route() == Route::Rings;
        Look::Nothing(if is_memory { 1 } else { LOOKS_OF_KERNEL })
    }

    fn sleep(&mut self, budget: &mut SpinBudget) -> Rest<Step> {
        add(&self.socket.counters.rx_poll_miss, 1);
        let short_ns = match self.want {
            Want::Read => None,
            Want::Write | Want::Room => standstill::slice_ns(self.socket),
        };
        let slice_ns = [budget.slice_ns(), short_ns].into_iter().flatten().min();
        self.slept = sleep(self.socket, self.fd, self.want, slice_ns);
        if self.want == Want::Read {
            streams::look();
        }
        Rest::Slept
    }

    fn woken(&mut self) -> Option<Step> {
        let mut step = self.attempt();
        if step.is_none() && self.look_for_standstill() {
            step = self.attempt();
        }
        step.or(match self.slept {
            Ok(()) | Err(Errno::INTR) => None,
            Err(error) => Some(Step::Failed(error)),
        })
    }
}

/// Whether a connection has its rings for good, and nothing in them to read or to be told of.
#[inline]
fn is_quiet(socket: &Socket) -> bool {
    let is_plain = socket.kind() == Kind::Stream
        && socket.route() == Route::Rings
        && socket.flags.pending_error.load(Ordering::Relaxed) == 0
        && !socket.flags.is_read_shut.load(Ordering::Relaxed)
        && !socket.flags.wants_kernel.load(Ordering::Relaxed);
    let is_empty = |segment: &Segment| {
        segment.connection(socket).source() == Source::Ring && !park::has_news(socket, segment)
    };
    is_plain && socket.mapped().is_some_and(is_empty)
}

/// Nothing was there, and the program does not wait: before it is told so, now and then the kernel
/// is asked whether the peer still lives.
fn last_look(socket: &Socket, fd: c_int, want: Want, mut attempt: impl FnMut() -> Step) -> Step {
    // Of one that frames carry the kernel knows nothing.
    if socket.mapped().is_some() && !streams::is_framed(socket) {
        let now = raw::now_ns();
        if park::is_look_due(socket, now) {
            socket.waiting.looked_ns.store(now, Ordering::Relaxed);
            park::look_at_kernel(socket, fd);
            let has_left =
                want != Want::Read && standstill::is_due(socket) && standstill::end(socket, fd);
            if has_left || socket.flags.is_peer_gone.load(Ordering::Relaxed) {
                return match attempt() {
                    Step::Nothing => Step::Failed(Errno::AGAIN),
                    step @ (Step::Moved(_) | Step::Ended | Step::Failed(_)) => step,
                };
            }
        }
    }
    add(&socket.counters.rx_eagain, 1);
    Step::Failed(Errno::AGAIN)
}

/// Receives, waiting as the socket's options and `how` say.
pub(crate) fn receive(
    socket: &Socket,
    fd: c_int,
    parts: &[libc::iovec],
    how: Receive<'_>,
) -> Answer {
    raw::cancellation_point();
    let now = how.now || socket.flags.is_nonblocking.load(Ordering::Relaxed);
    if let Some(answer) = receive_plain(socket, fd, parts, how, now) {
        return answer;
    }
    let how = Receive { looked: true, ..how };
    let mut cursor = IoCursor::new(parts);
    let wanted = cursor.remaining();
    let mut done = 0;
    loop {
        if done > 0 {
            streams::look();
        }
        let step = wait(socket, fd, Want::Read, now, || {
            if how.all && how.peek && wanted > 0 {
                return peek_all(socket, fd, parts, how, &mut done);
            }
            for _ in 0..EMPTY_LOOKS_MAX {
                match try_receive(socket, fd, &mut cursor, how) {
                    // The ring was found empty and then not: look again.
                    Step::Moved(0) if wanted > 0 => {}
                    // The kernel waits for bytes, even where none are wanted.
                    Step::Moved(0) if wanted == 0 && is_empty(socket) => return Step::Nothing,
                    step @ (Step::Moved(_) | Step::Ended | Step::Nothing | Step::Failed(_)) => {
                        return step;
                    }
                }
            }
            Step::Nothing
        });
        match step {
            Step::Moved(count) if how.peek => return Ok(count),
            Step::Moved(count) => {
                done += count;
                if !how.all || done >= wanted {
                    return Ok(done);
                }
            }
            Step::Ended | Step::Nothing => return Ok(done),
            Step::Failed(error) if done > 0 => {
                leave_to_next_call(socket, error);
                return Ok(done);
            }
            Step::Failed(error) => {
                if error != Errno::AGAIN {
                    add(&socket.counters.rx_errors, 1);
                }
                return Err(error);
            }
        }
    }
}

/// What has moved is the answer of a call, and the end of the connection that of the next one.
fn leave_to_next_call(socket: &Socket, error: Errno) {
    let calls = [
        libc::EAGAIN,
        libc::EINTR,
        libc::EFAULT,
        libc::ENOMEM,
        libc::ENOBUFS,
        libc::EBADF,
        libc::ENOTSOCK,
    ];
    if !calls.contains(&error.0) {
        socket.set_error(error.0);
    }
}

/// Looks for what frames have brought, and receives what lies in one piece of memory. `None`: [`try_receive`] finds out what there
/// is. That there is nothing is known here of a connection that frames carry alone: of others the kernel may know more.
#[inline]
fn receive_plain(
    socket: &Socket,
    fd: c_int,
    parts: &[libc::iovec],
    how: Receive<'_>,
    now: bool,
) -> Option<Answer> {
    let is_plain = !how.peek && !how.all && !how.discard && how.loan.is_none();
    let part = match parts {
        [part] if is_plain && part.iov_len > 0 => part,
        _ => {
            streams::look();
            return None;
        }
    };
    let (is_framed, got) = look_for(socket, fd, part.iov_base.cast(), part.iov_len);
    if let Some(got) = got {
        return Some(Ok(got));
    }
    if !is_framed && !now && socket.mapped().is_some() {
        streak::gather(socket);
    }
    if let Some(got) = try_receive_plain(socket, fd, part.iov_base.cast(), part.iov_len, is_framed)
    {
        return Some(Ok(got));
    }
    let is_nothing = is_framed && now && is_quiet(socket);
    is_nothing.then(|| {
        add(&socket.counters.rx_eagain, 1);
        Err(Errno::AGAIN)
    })
}

/// `MSG_PEEK | MSG_WAITALL`: from the front, once all that is wanted is there, or nothing more can come. `seen` is how
/// much there is until then.
#[cold]
fn peek_all(
    socket: &Socket,
    fd: c_int,
    parts: &[libc::iovec],
    how: Receive<'_>,
    seen: &mut usize,
) -> Step {
    let mut cursor = IoCursor::new(parts);
    let wanted = cursor.remaining();
    park::look_at_kernel(socket, fd);
    let is_last = match socket.segment() {
        Some(segment) => park::readiness(socket, segment) & libc::POLLRDHUP != 0,
        None => raw::poll_now(fd, libc::POLLRDHUP) != Ok(0),
    };
    match try_receive(socket, fd, &mut cursor, how) {
        Step::Moved(count) if count < wanted && !is_last => {
            *seen = count;
            raw::nap(PEEK_NAP_NS);
            Step::Nothing
        }
        step @ (Step::Moved(_) | Step::Ended | Step::Nothing | Step::Failed(_)) => step,
    }
}

/// Whether there is nothing to receive, as far as memory says so.
fn is_empty(socket: &Socket) -> bool {
    socket.segment().is_some_and(|segment| {
        !park::kernel_speaks(socket, segment).0
            && !park::has_news(socket, segment)
            && !socket.flags.is_read_shut.load(Ordering::Relaxed)
    })
}

/// Looks that find a ring empty that has bytes just after.
const EMPTY_LOOKS_MAX: u32 = 64;

/// How to send.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Send {
    /// Do not wait.
    pub(crate) now: bool,
    /// More is to follow.
    pub(crate) more: bool,
    /// No signal if the peer is gone.
    pub(crate) quiet: bool,
}

/// Sends, waiting as the socket's options and `how` say.
pub(crate) fn send(socket: &Socket, fd: c_int, parts: &[libc::iovec], how: Send) -> Answer {
    raw::cancellation_point();
    if let Some(segment) = socket.mapped() {
        segment.outgoing(socket.end()).prepare();
    }
    let now = how.now || socket.flags.is_nonblocking.load(Ordering::Relaxed);
    let mut cursor = IoCursor::new(parts);
    let wanted = cursor.remaining();
    let mut done = 0;
    loop {
        let step = wait(socket, fd, Want::Write, now, || match socket.paced.is_on() {
            false => try_send(socket, fd, &mut cursor, how.more),
            true => {
                let may_wait = pacing::MayWait::of(now, done > 0);
                try_send_paced(socket, fd, &mut cursor, how.more, may_wait)
            }
        });
        match step {
            Step::Moved(count) => {
                done += count;
                if done >= wanted {
                    return Ok(done);
                }
            }
            Step::Ended | Step::Nothing => return Ok(done),
            Step::Failed(error) if done > 0 => {
                match error {
                    Errno::AGAIN => socket.want_room(),
                    // The kernel says it again.
                    Errno::PIPE => {}
                    _ => leave_to_next_call(socket, error),
                }
                return Ok(done);
            }
            Step::Failed(error) => {
                match error {
                    Errno::PIPE if !how.quiet => raw::raise(libc::SIGPIPE),
                    Errno::AGAIN => {
                        add(&socket.counters.tx_eagain, 1);
                        socket.want_room();
                    }
                    _ => {}
                }
                return Err(error);
            }
        }
    }
}

/// Sends what is due at the socket's rate, once something is.
#[cold]
fn try_send_paced(
    socket: &Socket,
    fd: c_int,
    from: &mut IoCursor<'_>,
    more: bool,
    may_wait: pacing::MayWait,
) -> Step {
    let wanted = u64::try_from(from.remaining()).unwrap_or(u64::MAX);
    if wanted == 0 {
        return try_send(socket, fd, from, more);
    }
    let limit_ns = socket.options.send_limit_ns.load(Ordering::Relaxed);
    let is_still = || table::still(fd, socket);
    let granted = match socket.paced.admit(Load::Stream(wanted), may_wait, limit_ns, is_still) {
        Ok(granted) => granted,
        Err(error) => return Step::Failed(error),
    };
    let mut parts = NO_PARTS;
    let count = from.rest(usize::try_from(granted.bytes).unwrap_or(usize::MAX), &mut parts);
    let mut part = IoCursor::new(parts.get(..count).unwrap_or(&[]));
    let step = try_send(socket, fd, &mut part, more);
    let moved = if let Step::Moved(moved) = step { moved } else { 0 };
    from.skip(moved);
    let unsent = granted.bytes.saturating_sub(u64::try_from(moved).unwrap_or(0));
    socket.paced.give_back(granted, unsent);
    step
}

/// Spinning waits look at the kernel once in so many rounds.
const KERNEL_LOOK_ROUNDS: u32 = 4096;
/// How long a reader sleeps to which too little has come.
const PEEK_NAP_NS: i64 = 50_000;
/// How long a writer sleeps that cannot be woken.
const WRITER_NAP_NS: i64 = 100_000;
