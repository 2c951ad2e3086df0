//! The kernel's sockets: receiving from them, spinning before sleeping.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use crate::base::raw::{self, Answer, Errno};
use crate::base::thread::{Interrupts, Seen};
use crate::base::{config, ppoll, signal};
use crate::socket::counters::add;
use crate::socket::policy;
use crate::socket::spin::{Spin, SpinBudget};
use crate::socket::state::{Kind, Socket};
use crate::socket::table;
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

fn receive_inner(
    socket: &Socket,
    fd: c_int,
    now: bool,
    attempt: &mut impl FnMut() -> Answer,
    block: impl FnOnce() -> Answer,
) -> Answer {
    let (errno, seen) = (raw::errno(), Seen::now());
    let first = attempt();
    let waits = !now && !socket.flags.is_nonblocking.load(Ordering::Relaxed);
    if first != Err(Errno::AGAIN) || !waits {
        return first;
    }
    let (limit, kind) = match socket.options.receive_limit_ns.load(Ordering::Relaxed) {
        0 => (None, Interrupts::Hard),
        limit => (Some(limit), Interrupts::All),
    };
    let most_ns = policy::receive_spin_ns(socket);
    let mut budget = SpinBudget::start(most_ns, limit, kind).since(seen);
    loop {
        match budget.goes_on(false) {
            Spin::Look => {}
            Spin::Sleep => break,
            Spin::Interrupted => return Err(Errno::INTR),
            Spin::TimedOut => return Err(Errno::AGAIN),
        }
        if socket.kind() == Kind::Stream {
            streak::gather(socket);
        }
        table::still(fd, socket)?;
        let answer = attempt();
        if answer != Err(Errno::AGAIN) {
            budget.hit(most_ns);
            add(&socket.counters.rx_poll_hit, 1);
            raw::set_errno(errno);
            return answer;
        }
    }
    add(&socket.counters.rx_poll_miss, 1);
    let since = raw::now_ns();
    let answer = sleep_until_readable(socket, fd, &budget).and_then(|()| block());
    budget.miss(since, most_ns);
    answer
}

/// Spins until a descriptor has something to read, for as long as it is worth it. Fails if a signal
/// handler has run meanwhile that interrupts the call, or the descriptor has been closed.
pub(crate) fn spin_until_readable(socket: &Socket, fd: c_int) -> Result<(), Errno> {
    if socket.flags.is_nonblocking.load(Ordering::Relaxed)
        || socket.options.receive_limit_ns.load(Ordering::Relaxed) > 0
    {
        return Ok(());
    }
    let most_ns = config::get().receive_spin_ns;
    let mut budget = SpinBudget::start(most_ns, None, Interrupts::Hard);
    while raw::poll_now(fd, libc::POLLIN) == Ok(0) {
        match budget.goes_on(false) {
            Spin::Look => {}
            Spin::Sleep => return sleep_until_readable(socket, fd, &budget),
            Spin::TimedOut => return Ok(()),
            Spin::Interrupted => return Err(Errno::INTR),
        }
    }
    table::still(fd, socket)
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
