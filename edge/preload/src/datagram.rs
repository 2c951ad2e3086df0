//! Receiving from the kernel's sockets, spinning before sleeping: datagrams, and connections whose
//! bytes stay with the kernel.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use crate::config;
use crate::patience::{self, Patience, Spin};
use crate::raw::{self, Answer, Errno};
use crate::slot::Slot;
use crate::stats::add;
use crate::thread::Interrupts;

/// Tries `attempt`, which never waits, for as long as it is worth it; then `block`, which does.
pub(crate) fn receive(
    slot: &Slot,
    now: bool,
    mut attempt: impl FnMut() -> Answer,
    block: impl FnOnce() -> Answer,
) -> Answer {
    let answer = receive_inner(slot, now, &mut attempt, block);
    match answer {
        Ok(got) => {
            add(&slot.counters.rx_os_packets, 1);
            add(&slot.counters.rx_os_bytes, got);
        }
        Err(Errno::AGAIN) => add(&slot.counters.rx_eagain, 1),
        Err(_) => add(&slot.counters.rx_errors, 1),
    }
    answer
}

fn receive_inner(
    slot: &Slot,
    now: bool,
    attempt: &mut impl FnMut() -> Answer,
    block: impl FnOnce() -> Answer,
) -> Answer {
    let errno = raw::errno();
    let first = attempt();
    let waits = !now && !slot.is_nonblocking.load(Ordering::Relaxed);
    if first != Err(Errno::AGAIN) || !waits {
        return first;
    }
    let (limit, kind) = match slot.receive_limit_ns.load(Ordering::Relaxed) {
        0 => (None, Interrupts::Hard),
        limit => (Some(limit), Interrupts::All),
    };
    let most_ns = config::get().receive_spin_ns;
    let mut patience = Patience::start(most_ns, limit, kind);
    loop {
        match patience.goes_on(false) {
            Spin::Look => {}
            Spin::Sleep => break,
            Spin::Interrupted => return Err(Errno::INTR),
            Spin::TimedOut => return Err(Errno::AGAIN),
        }
        let answer = attempt();
        if answer != Err(Errno::AGAIN) {
            patience.hit(most_ns);
            add(&slot.counters.rx_poll_hit, 1);
            raw::set_errno(errno);
            return answer;
        }
    }
    add(&slot.counters.rx_poll_miss, 1);
    let since = raw::now_ns();
    let answer = block();
    patience::miss(raw::now_ns().saturating_sub(since), most_ns);
    answer
}

/// Spins until a descriptor has something to read, for as long as it is worth it. Returns whether a
/// signal handler has run meanwhile that interrupts the call.
pub(crate) fn spin_until_readable(slot: &Slot, fd: c_int) -> bool {
    if slot.is_nonblocking.load(Ordering::Relaxed)
        || slot.receive_limit_ns.load(Ordering::Relaxed) > 0
    {
        return false;
    }
    let most_ns = config::get().receive_spin_ns;
    let mut patience = Patience::start(most_ns, None, Interrupts::Hard);
    while raw::poll_now(fd, libc::POLLIN) == Ok(0) {
        match patience.goes_on(false) {
            Spin::Look => {}
            Spin::Sleep | Spin::TimedOut => return false,
            Spin::Interrupted => return true,
        }
    }
    false
}
