//! The kernel's sockets: receiving from them, spinning before sleeping.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use crate::base::raw::{self, Answer, Errno};
use crate::base::thread::Seen;
use crate::base::{config, ppoll, signal};
use crate::socket::counters::add;
use crate::socket::policy;
use crate::socket::spin::{LOOKS_OF_KERNEL, SpinBudget};
use crate::socket::state::{Kind, Socket};
use crate::socket::table;
use crate::socket::wait_loop::{self, Budget, Limits, Look, Rest, Wait};
use crate::transport::streak;

/// Tries `attempt`, which never waits, for as long as it is worth it; then `block`, which does.
pub(crate) fn receive(
    socket: &Socket,
    fd: c_int,
    now: bool,
    mut attempt: impl FnMut() -> Answer,
    block: impl FnOnce() -> Answer,
) -> Answer {
    raw::cancellation_point();
    let answer = receive_inner(socket, fd, now, &mut attempt, block);
    match answer {
        Ok(got) => {
            streak::note_run(socket);
            add(&socket.counters.rx_os_packets, 1);
            add(&socket.counters.rx_os_bytes, got);
            acknowledge(socket, fd);
        }
        Err(Errno::AGAIN) => add(&socket.counters.rx_eagain, 1),
        Err(_) => {
            add(&socket.counters.rx_errors, 1);
            socket.note_error_taken();
        }
    }
    answer
}

/// Bytes of a connection have come through the kernel, which is to acknowledge the next at once if settings say so: it
/// forgets that by itself.
#[inline]
pub(crate) fn acknowledge(socket: &Socket, fd: c_int) {
    if config::get().quickack && socket.kind() == Kind::Stream {
        let _ = raw::set_option(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1);
    }
}

/// A call that receives from the kernel.
struct Receiving<'a, A, B> {
    socket: &'a Socket,
    fd: c_int,
    waits: bool,
    attempt: A,
    block: Option<B>,
}

impl<A: FnMut() -> Answer, B: FnOnce() -> Answer> Wait for Receiving<'_, A, B> {
    type Answer = Answer;

    fn look(&mut self, budget: &mut Budget) -> Look<Answer> {
        let spins = budget.has_started();
        if spins {
            if self.socket.kind() == Kind::Stream {
                streak::gather(self.socket);
            }
            if let Err(error) = table::still(self.fd, self.socket) {
                return Look::Found(Err(error));
            }
        }
        let answer = (self.attempt)();
        if answer == Err(Errno::AGAIN) && self.waits {
            return Look::Nothing(LOOKS_OF_KERNEL);
        }
        if spins {
            add(&self.socket.counters.rx_poll_hit, 1);
        }
        Look::Found(answer)
    }

    fn sleep(&mut self, budget: &mut SpinBudget) -> Rest<Answer> {
        add(&self.socket.counters.rx_poll_miss, 1);
        let slept = sleep_until_readable(self.socket, self.fd, budget);
        let block = self.block.take();
        Rest::Answered(slept.and_then(|()| block.map_or(Err(Errno::AGAIN), |block| block())))
    }
}

fn receive_inner(
    socket: &Socket,
    fd: c_int,
    now: bool,
    attempt: &mut impl FnMut() -> Answer,
    block: impl FnOnce() -> Answer,
) -> Answer {
    let errno = raw::errno();
    let waits = !now && !socket.flags.is_nonblocking.load(Ordering::Relaxed);
    let limits = Limits::of_receiver(socket, policy::receive_spin_ns(socket));
    let mut call = Receiving { socket, fd, waits, attempt, block: Some(block) };
    let answer = wait_loop::wait(Budget::new(limits, Seen::now()), &mut call)?;
    if answer.is_ok() {
        raw::set_errno(errno);
    }
    answer
}

/// A call that accepts a connection, of which the kernel keeps the time.
struct Listening<'a> {
    socket: &'a Socket,
    fd: c_int,
}

impl Wait for Listening<'_> {
    type Answer = Result<(), Errno>;

    fn look(&mut self, _: &mut Budget) -> Look<Self::Answer> {
        match raw::poll_now(self.fd, libc::POLLIN) == Ok(0) {
            true => Look::Nothing(LOOKS_OF_KERNEL),
            false => Look::Found(table::still(self.fd, self.socket)),
        }
    }

    fn sleep(&mut self, budget: &mut SpinBudget) -> Rest<Self::Answer> {
        // What the kernel does for long is the call itself.
        Rest::Found(sleep_until_readable(self.socket, self.fd, budget))
    }
}

/// Spins until a descriptor has something to read, for as long as it is worth it. Fails if a signal
/// handler has run meanwhile that interrupts the call, or the descriptor has been closed.
pub(crate) fn spin_until_readable(socket: &Socket, fd: c_int) -> Result<(), Errno> {
    let limits = Limits::of_receiver(socket, config::get().receive_spin_ns);
    if socket.flags.is_nonblocking.load(Ordering::Relaxed) || limits.limit_ns.is_some() {
        return Ok(());
    }
    let call = &mut Listening { socket, fd };
    wait_loop::wait(Budget::new(limits, Seen::now()), call)?
}

/// Before a sleep in the kernel that only a handler would end: waits for something to read, so that
/// none is missed that has run since the last look.
pub(crate) fn sleep_until_readable(
    socket: &Socket,
    fd: c_int,
    budget: &SpinBudget,
) -> Result<(), Errno> {
    while signal::may_interrupt(budget.kind()) {
        if budget.is_interrupted() {
            return Err(Errno::INTR);
        }
        if budget.is_over() {
            return Err(Errno::AGAIN);
        }
        let mut polled = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        let slept = ppoll::sleep(&mut polled, budget.slice_ns(), None);
        table::still(fd, socket)?;
        match slept {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
