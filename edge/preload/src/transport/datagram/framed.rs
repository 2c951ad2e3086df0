//! Receiving datagrams of a socket that has frames: out of what has come past the kernel, and out of the kernel's queue.
//!
//! What the kernel has got while the gate was shut is earlier than what comes after it was opened, and is received first.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use super::inbox::{Arrival, Outcome, Request, from_kernel};
use crate::base::iovec::IoCursor;
use crate::base::raw::{self, Errno};
use crate::base::thread::Interrupts;
use crate::base::{address, ppoll};
use crate::socket::counters::add;
use crate::socket::policy;
use crate::socket::spin::{Spin, SpinBudget};
use crate::socket::stamps::Control;
use crate::socket::table::{self, SocketRef};
use crate::transport::xdp::{self, Datagram, Frames, Side};

/// Receives one datagram, waiting as the socket's options and `request` say.
pub(super) fn wait(
    socket: &SocketRef,
    fd: c_int,
    frames: &Frames,
    request: Request<'_>,
) -> Outcome {
    let now = request.flags & libc::MSG_DONTWAIT != 0
        || socket.flags.is_nonblocking.load(Ordering::Relaxed);
    let first = attempt(socket, fd, frames, request, !now);
    if now || !matches!(first, Err(Errno::AGAIN)) {
        return first;
    }
    let (limit, kind) = match socket.options.receive_limit_ns.load(Ordering::Relaxed) {
        0 => (None, Interrupts::Hard),
        limit => (Some(limit), Interrupts::All),
    };
    let most_ns = policy::receive_spin_ns(socket);
    let mut budget = SpinBudget::start(most_ns, limit, kind);
    loop {
        if let Some(outcome) = spin(socket, fd, frames, request, &mut budget, most_ns) {
            return outcome;
        }
        add(&socket.counters.rx_poll_miss, 1);
        let since = raw::now_ns();
        if frames.doze() {
            let slice = [budget.slice_ns(), xdp::slice_ns()].into_iter().flatten().min();
            let mut polled = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
            let awake = Awake(frames);
            let slept = ppoll::sleep(&mut polled, slice, None);
            drop(awake);
            match slept {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        budget.slept(since, most_ns);
        table::still(fd, socket)?;
        let outcome = attempt(socket, fd, frames, request, true);
        if !matches!(outcome, Err(Errno::AGAIN)) {
            return outcome;
        }
        if budget.is_interrupted() {
            return Err(Errno::INTR);
        }
        if budget.is_over() {
            return Err(Errno::AGAIN);
        }
    }
}

/// The gate of a thread that sleeps is opened when this is dropped, also where the thread is cancelled.
struct Awake<'a>(&'a Frames);

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.0.awake();
    }
}

/// Spins; `None` if it is time to sleep.
fn spin(
    socket: &SocketRef,
    fd: c_int,
    frames: &Frames,
    request: Request<'_>,
    budget: &mut SpinBudget,
    most_ns: u64,
) -> Option<Outcome> {
    let mut rounds = 0_u32;
    loop {
        match budget.goes_on(true) {
            Spin::Look => {}
            Spin::Sleep => return None,
            Spin::Interrupted => return Some(Err(Errno::INTR)),
            Spin::TimedOut => return Some(Err(Errno::AGAIN)),
        }
        rounds = rounds.wrapping_add(1);
        let asks = rounds.is_multiple_of(KERNEL_LOOK_ROUNDS);
        if asks || frames.has_any() {
            if let Err(error) = table::still(fd, socket) {
                return Some(Err(error));
            }
            let outcome = attempt(socket, fd, frames, request, asks);
            if !matches!(outcome, Err(Errno::AGAIN)) {
                budget.hit(most_ns);
                add(&socket.counters.rx_poll_hit, 1);
                return Some(outcome);
            }
        }
    }
}

/// Receives what is there; `asks`: the kernel is asked where there are no frames, whether it is its turn or not.
fn attempt(
    socket: &SocketRef,
    fd: c_int,
    frames: &Frames,
    request: Request<'_>,
    asks: bool,
) -> Outcome {
    let queue = frames.queue();
    let has_any = frames.has_any();
    let first = queue.first();
    if first == Side::Frames
        && has_any
        && let Some(outcome) = take(socket, frames, request)
    {
        return outcome;
    }
    if first == Side::Kernel || asks || frames.is_kernels_turn() {
        let openings = queue.openings();
        match from_kernel(socket, fd, request, request.flags | libc::MSG_DONTWAIT, false) {
            Err(Errno::AGAIN) => queue.follows_kernel(openings),
            outcome => {
                if outcome.is_ok() {
                    queue.show(request.peeks().then_some(Side::Kernel));
                    if !request.peeks() {
                        queue.took_kernels(openings);
                    }
                }
                return outcome;
            }
        }
    }
    let taken = if has_any { take(socket, frames, request) } else { None };
    taken.unwrap_or(Err(Errno::AGAIN))
}

/// Takes the first of those that have come as frames.
fn take(socket: &SocketRef, frames: &Frames, request: Request<'_>) -> Option<Outcome> {
    let queue = frames.queue();
    queue.front(|Datagram { from, bytes }| {
        queue.show(request.peeks().then_some(Side::Frames));
        let copied = IoCursor::new(request.parts).fill(bytes.as_ptr(), bytes.len());
        let Ok(copied) = copied else {
            // As the kernel has it: what could not be delivered is gone.
            return (!request.peeks(), Err(Errno::FAULT));
        };
        let (from, from_len) = address::write(*from, frames.domain());
        let cut = if copied < bytes.len() { libc::MSG_TRUNC } else { 0 };
        let mut control = Control::new(request.control, request.control_len);
        control.stamp(socket.options.stamps.load(Ordering::Relaxed));
        let whole = request.flags & libc::MSG_TRUNC != 0;
        let arrival = Arrival {
            len: if whole { bytes.len() } else { copied },
            from,
            from_len,
            flags: request.flags & libc::MSG_CMSG_CLOEXEC | cut | control.flags,
            control_len: control.len,
            ..Arrival::empty()
        };
        (!request.peeks(), Ok(arrival))
    })
}

/// The size of the next datagram, as `FIONREAD` has it; `None` if the kernel is to be asked.
pub(super) fn next_len(frames: &Frames, fd: c_int) -> Option<usize> {
    frames.watched();
    let queue = frames.queue();
    if queue.is_kernel_next() && raw::poll_now(fd, libc::POLLIN) != Ok(0) {
        queue.show(Some(Side::Kernel));
        return None;
    }
    frames.look();
    let found = queue.front(|first| (false, first.bytes.len()));
    queue.show(Some(if found.is_some() { Side::Frames } else { Side::Kernel }));
    found
}

/// Spinning waits look at the kernel once in so many rounds.
const KERNEL_LOOK_ROUNDS: u32 = 256;
