//! Receiving datagrams of a socket that has frames: out of what has come past the kernel, and out of the kernel's queue.
//!
//! What the kernel has got while the gate was shut is earlier than what comes after it was opened, and is received first.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use super::inbox::{Arrival, Outcome, Request, from_kernel};
use crate::base::iovec::IoCursor;
use crate::base::raw::{self, Errno};
use crate::base::thread::Seen;
use crate::base::{address, ppoll};
use crate::socket::counters::add;
use crate::socket::policy;
use crate::socket::spin::SpinBudget;
use crate::socket::stamps::Control;
use crate::socket::table::{self, SocketRef};
use crate::socket::wait_loop::{self, Budget, Limits, Look, Rest, Wait};
use crate::transport::xdp::{self, Datagram, Frames, Side};

/// Receives one datagram, waiting as the socket's options and `request` say.
pub(super) fn wait(
    socket: &SocketRef,
    fd: c_int,
    frames: &Frames,
    request: Request<'_>,
) -> Outcome {
    let waits = request.flags & libc::MSG_DONTWAIT == 0
        && !socket.flags.is_nonblocking.load(Ordering::Relaxed);
    if !waits {
        return attempt(socket, fd, frames, request, false);
    }
    let limits = Limits::of_receiver(socket, policy::receive_spin_ns(socket));
    let mut call = Receiving { socket, fd, frames, request, rounds: 0 };
    wait_loop::wait(Budget::new(limits, Seen::now()), &mut call)?
}

/// A call that receives.
struct Receiving<'a> {
    socket: &'a SocketRef,
    fd: c_int,
    frames: &'a Frames,
    request: Request<'a>,
    rounds: u32,
}

impl Receiving<'_> {
    /// `None`: there is nothing.
    fn attempt(&self, asks: bool) -> Option<Outcome> {
        let outcome = attempt(self.socket, self.fd, self.frames, self.request, asks);
        (!matches!(outcome, Err(Errno::AGAIN))).then_some(outcome)
    }
}

impl Wait for Receiving<'_> {
    type Answer = Outcome;

    fn look(&mut self, budget: &mut Budget) -> Look<Outcome> {
        if !budget.has_started() {
            return self.attempt(true).map_or(Look::Nothing(1), Look::Found);
        }
        self.rounds = self.rounds.wrapping_add(1);
        let asks = self.rounds.is_multiple_of(KERNEL_LOOK_ROUNDS);
        if !asks && !self.frames.has_any() {
            return Look::Nothing(1);
        }
        if let Err(error) = table::still(self.fd, self.socket) {
            return Look::Found(Err(error));
        }
        let Some(outcome) = self.attempt(asks) else { return Look::Nothing(1) };
        add(&self.socket.counters.rx_poll_hit, 1);
        Look::Found(outcome)
    }

    fn sleep(&mut self, budget: &mut SpinBudget) -> Rest<Outcome> {
        add(&self.socket.counters.rx_poll_miss, 1);
        if self.frames.doze() {
            let slice = [budget.slice_ns(), xdp::slice_ns()].into_iter().flatten().min();
            let mut polled = [libc::pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 }];
            let awake = Awake(self.frames);
            let slept = ppoll::sleep(&mut polled, slice, None);
            drop(awake);
            match slept {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Rest::Answered(Err(error)),
            }
        }
        Rest::Slept
    }

    fn woken(&mut self) -> Option<Outcome> {
        let is_still = table::still(self.fd, self.socket);
        is_still.map_or_else(|error| Some(Err(error)), |()| self.attempt(true))
    }
}

/// The gate of a thread that sleeps is opened when this is dropped, also where the thread is cancelled.
struct Awake<'a>(&'a Frames);

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.0.awake();
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
        let (from, from_len) = address::write_name(*from, frames.domain());
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
