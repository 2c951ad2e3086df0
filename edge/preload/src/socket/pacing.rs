//! Packet pacing: `SO_MAX_PACING_RATE` for what does not go through the kernel's own pacing.
//!
//! A send waits until its bytes are due. So does one that does not wait otherwise, for as long as a small part
//! of a burst takes (`DONTWAIT_NS` at most): it can then go on where it would have to be told when to come
//! back, which no event does. What is due is decided in `adverb_sockconf::Pace`; the bucket lies with the
//! socket, so that a parent and its children keep the rate together.
//!
//! # Safety
//!
//! Values of options are read with copies that fail where there is nothing.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use adverb_sockconf::{Discount, Grant, Load, Pace};

use crate::base::copy;
use crate::base::raw::{self, Errno};
use crate::base::thread::{self, Interrupts};

/// The rate of a socket, and its bucket.
#[derive(Debug, Default)]
pub(crate) struct Paced {
    /// Bytes per second; 0 is no limit.
    rate: AtomicU64,
    burst: AtomicU64,
    least: AtomicU64,
    full_at: AtomicU64,
    /// What its senders are owed for having woken up late; see [`Pace::discount`].
    owed: AtomicU64,
}

/// What the bucket has given, and what of its price the late sender was spared; see [`Pace::discount`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Granted {
    pub bytes: u64,
    discount: Discount,
}

impl Paced {
    pub(crate) fn reset(&self) {
        self.set(&Wanted::default());
    }

    /// What a socket that was accepted has of its listener.
    pub(crate) fn inherit(&self, from: &Self) {
        for (to, from) in
            [(&self.burst, &from.burst), (&self.least, &from.least), (&self.rate, &from.rate)]
        {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn set(&self, wanted: &Wanted) {
        self.burst.store(wanted.burst, Ordering::Relaxed);
        self.least.store(wanted.least, Ordering::Relaxed);
        self.full_at.store(0, Ordering::Relaxed);
        self.owed.store(0, Ordering::Relaxed);
        self.rate.store(wanted.rate, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.rate.load(Ordering::Relaxed) != 0
    }

    fn pace(&self) -> Option<Pace> {
        let [rate, burst, least] =
            [&self.rate, &self.burst, &self.least].map(|word| word.load(Ordering::Relaxed));
        Pace::new(rate, burst, least)
    }

    /// Takes what is due now, or says how many nanoseconds it takes until it is. `now_ns` is the clock; `has_waited` says
    /// that the sender has waited for the bucket, and has perhaps woken up late.
    fn take(&self, load: Load, has_waited: bool, now_ns: impl Fn() -> u64) -> Result<Granted, u64> {
        let Some(pace) = self.pace() else {
            let (Load::Stream(bytes) | Load::Datagram(bytes)) = load;
            return Ok(Granted { bytes, discount: Discount::default() });
        };
        let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
        let mut full_at = self.full_at.load(r);
        loop {
            let now_ns = now_ns();
            // Of several senders that are late, one says so.
            if let Some(late) = Pace::late(full_at, now_ns, has_waited) {
                match self.full_at.compare_exchange(full_at, full_at + late, o, r) {
                    Ok(_) => full_at += late,
                    Err(changed) => {
                        full_at = changed;
                        continue;
                    }
                }
                let _ = self.owed.fetch_update(o, r, |owed| Some(Pace::owe(owed, late)));
            }
            let owed = self.owed.load(r);
            let (granted, next) = match pace.take(full_at, now_ns, load, owed) {
                Grant::Bytes(granted, next) => (granted, next),
                Grant::Wait(wait_ns) => return Err(wait_ns),
            };
            let discount = pace.discount(granted, owed);
            let Discount { paid, off } = discount;
            let next = next.saturating_sub(off);
            if paid > 0 && self.owed.compare_exchange(owed, owed - paid, o, r).is_err() {
                continue;
            }
            match self.full_at.compare_exchange(full_at, next, o, r) {
                Ok(_) => return Ok(Granted { bytes: granted, discount }),
                Err(changed) => full_at = changed,
            }
            if paid > 0 {
                self.owed.fetch_add(paid, o);
            }
        }
    }

    /// How long it is worth to wait where `wait_ns` would do. A sender that has been late shares its processor. One that
    /// sleeps in longer naps has it back sooner than one that spins, and loses nothing by waking late: what is due
    /// meanwhile stays in the bucket.
    fn worth_ns(&self, wait_ns: u64) -> u64 {
        let is_late = self.owed.load(Ordering::Relaxed) > 0;
        let nap_ns = self.pace().filter(|_| is_late).map_or(0, Pace::nap_ns);
        if nap_ns > SPIN_NS { wait_ns.max(nap_ns + SPIN_NS) } else { wait_ns }
    }

    /// A socket has come with its descriptor: has it a rate?
    pub(crate) fn learn(&self, fd: c_int) {
        let rate = raw::option::<u64>(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
        let rate = rate.unwrap_or(0);
        let is_limit = ![0, u64::MAX, u64::from(u32::MAX)].contains(&rate);
        if is_limit && !self.is_on() {
            self.set(&Wanted { rate, burst: 0, least: 0 });
        }
    }

    /// Waits until bytes are due, and takes them: how many, of a stream. `limit_ns` is the time limit of the
    /// socket's sends, 0 for none, and `is_still` says after each wait whether to go on.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if they are not due in time, `EINTR` after a signal handler, or what `is_still` says; nothing has
    /// been taken.
    #[cold]
    pub(crate) fn admit(
        &self,
        load: Load,
        may_wait: MayWait,
        limit_ns: u64,
        is_still: impl Fn() -> Result<(), Errno>,
    ) -> Result<Granted, Errno> {
        if let Ok(granted) = self.take(load, false, raw::now_ns) {
            return Ok(granted);
        }
        let start_ns = raw::now_ns();
        let limit_ns = match may_wait {
            MayWait::Never => Some(0),
            MayWait::DontWait => Some(DONTWAIT_NS),
            MayWait::Wait => Some(limit_ns).filter(|ns| *ns > 0),
        };
        let kind = if limit_ns.is_none() { Interrupts::Hard } else { Interrupts::All };
        let interrupts = thread::interrupts(kind);
        let mut has_waited = false;
        loop {
            let wait_ns = match self.take(load, has_waited, raw::now_ns) {
                Ok(granted) => return Ok(granted),
                Err(wait_ns) => wait_ns,
            };
            let spent_ns = raw::now_ns().saturating_sub(start_ns);
            if limit_ns.is_some_and(|limit| spent_ns >= limit) {
                return Err(Errno::AGAIN);
            }
            if may_wait == MayWait::Wait && thread::interrupts(kind) != interrupts {
                return Err(Errno::INTR);
            }
            raw::cancellation_point();
            let left_ns = limit_ns.map_or(u64::MAX, |limit| limit - spent_ns);
            pause(self.worth_ns(wait_ns).min(left_ns));
            has_waited = true;
            is_still()?;
        }
    }

    /// Gives back what was taken and could not be sent.
    pub(crate) fn give_back(&self, granted: Granted, unsent: u64) {
        let (Some(pace), true) = (self.pace(), unsent > 0) else { return };
        let Granted { bytes, discount } = granted;
        let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
        let back = |full_at| Some(pace.give_back(full_at, bytes, discount, unsent).0);
        let _ = self.full_at.fetch_update(o, r, back);
        let (_, owed) = pace.give_back(0, bytes, discount, unsent);
        if owed > 0 {
            let _ = self.owed.fetch_update(o, r, |before| Some(Pace::owe(before, owed)));
        }
    }
}

/// What an option asks for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Wanted {
    rate: u64,
    burst: u64,
    least: u64,
}

/// `struct vma_rate_limit_t` of `vma_extra.h`: kilobits per second, bytes, bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct RateLimit {
    rate: u32,
    max_burst_sz: u32,
    typical_pkt_sz: u16,
}

const RATE_LIMIT_BYTES: usize = size_of::<RateLimit>();

/// What the program has set `SO_MAX_PACING_RATE` to; `None` if it is for the kernel to refuse.
///
/// # Safety
///
/// `value` is what the program has passed: `len` bytes, if anything is there.
unsafe fn wanted(value: *const c_void, len: usize) -> Option<Wanted> {
    if len == RATE_LIMIT_BYTES {
        // SAFETY: integers, of which any are legal.
        let limit = unsafe { copy::read(value.cast::<RateLimit>()) }?;
        return Some(Wanted {
            rate: u64::from(limit.rate) * 1000 / 8,
            burst: limit.max_burst_sz.into(),
            least: limit.typical_pkt_sz.into(),
        });
    }
    let rate = match len {
        // SAFETY: as above.
        8.. => unsafe { copy::read(value.cast::<u64>()) }?,
        // SAFETY: as above.
        4.. => match unsafe { copy::read(value.cast::<u32>()) }? {
            u32::MAX => u64::MAX,
            rate => rate.into(),
        },
        _ => return None,
    };
    Some(Wanted { rate: if rate == u64::MAX { 0 } else { rate }, burst: 0, least: 0 })
}

/// The program sets `SO_MAX_PACING_RATE`. `call` sets it for the kernel to the value and length given.
///
/// # Safety
///
/// `value` is what the program has passed: `len` bytes, if anything is there.
pub(crate) unsafe fn set(
    paced: &Paced,
    value: *const c_void,
    len: usize,
    call: impl FnOnce(*const c_void, libc::socklen_t) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let wanted = unsafe { wanted(value, len) };
    let given = libc::socklen_t::try_from(len).unwrap_or(libc::socklen_t::MAX);
    let answer = match wanted {
        // The kernel knows nothing of this form.
        Some(Wanted { rate, .. }) if len == RATE_LIMIT_BYTES => {
            let rate = if rate == 0 { u64::MAX } else { rate };
            call((&raw const rate).cast(), RATE_BYTES)
        }
        Some(_) | None => call(value, given),
    };
    if let Some(wanted) = wanted.filter(|_| answer == 0) {
        paced.set(&wanted);
    }
    answer
}

const RATE_BYTES: libc::socklen_t = 8;

/// How a send waits for bytes to be due.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum MayWait {
    /// As the socket's options say.
    Wait,
    /// For a moment: the call does not wait.
    DontWait,
    /// Not at all: it has sent something.
    Never,
}

impl MayWait {
    /// What a call has that does not wait, or does, and has sent something, or nothing yet.
    pub(crate) fn of(now: bool, has_sent: bool) -> Self {
        match (now, has_sent) {
            (false, _) => Self::Wait,
            (true, false) => Self::DontWait,
            (true, true) => Self::Never,
        }
    }
}

/// Waits, for so long at most. A sleeper wakes late: the last of it is spun.
fn pause(wait_ns: u64) {
    let nap_ns = wait_ns.saturating_sub(SPIN_NS).min(NAP_MAX_NS);
    if nap_ns > 0 {
        return raw::nap(i64::try_from(nap_ns).unwrap_or(0));
    }
    let until = raw::now_ns().saturating_add(wait_ns);
    while raw::now_ns() < until {
        std::hint::spin_loop();
    }
}

/// How long a call that does not wait waits for its bytes to be due.
const DONTWAIT_NS: u64 = 10_000_000;
/// A nap takes longer than it was asked for by up to about so much.
const SPIN_NS: u64 = 100_000;
/// A nap is no longer than this, so that closed descriptors and handlers are noticed.
const NAP_MAX_NS: u64 = 20_000_000;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Goal: nothing goes free of charge. Method: time passes with each look at the clock, so that what is not due at
    /// the first is due at the next.
    #[test]
    fn what_is_granted_is_charged() {
        let paced = Paced::default();
        paced.set(&Wanted { rate: 1_000_000, burst: 3000, least: 0 });
        let clock = Cell::new(1_000_000_000);
        let mut waits = 0;
        for _ in 0..100 {
            let before = paced.full_at.load(Ordering::Relaxed);
            let grant =
                paced.take(Load::Datagram(1500), false, || clock.replace(clock.get() + 1_000_000));
            let is_charged = paced.full_at.load(Ordering::Relaxed) > before;
            assert_eq!(is_charged, grant.is_ok(), "{grant:?}");
            waits += u32::from(!is_charged);
        }
        assert!(waits > 10, "{waits}");
    }

    /// Goal: tries that send nothing gain nothing for a sender that is owed time. Method: the clock stands still.
    #[test]
    fn what_cannot_be_sent_is_worth_nothing() {
        let paced = Paced::default();
        paced.set(&Wanted { rate: 1_000_000, burst: 3000, least: 0 });
        paced.owed.store(1 << 29, Ordering::Relaxed);
        let before =
            paced.take(Load::Datagram(1600), false, || 1_000_000_000).expect("a full bucket");
        let (full_at, owed) =
            [&paced.full_at, &paced.owed].map(|word| word.load(Ordering::Relaxed)).into();
        for _ in 0..100 {
            let granted = paced.take(Load::Stream(800), false, || 1_000_000_000).expect("room");
            paced.give_back(granted, granted.bytes);
        }
        assert!(before.discount.paid > 0, "nothing was owed");
        assert_eq!(paced.full_at.load(Ordering::Relaxed), full_at);
        assert_eq!(paced.owed.load(Ordering::Relaxed), owed);
    }

    /// Goal: a sender that comes back late, however it was kept, makes good for it, and a pause of its own is worth no
    /// more than a full bucket. Method: 1,500 bytes take 1.5 ms; the clock is moved on by hand.
    #[test]
    fn time_that_others_took_is_made_good_and_a_pause_is_not() {
        let paced = Paced::default();
        paced.set(&Wanted { rate: 1_000_000, burst: 3000, least: 0 });
        let owed = || paced.owed.load(Ordering::Relaxed);
        let mut now_ns = 1_000_000_000;
        for (pause_ns, is_owed) in [(0, false), (1_500_000, false), (5_500_000, true)] {
            now_ns += pause_ns;
            paced.take(Load::Datagram(1500), false, || now_ns).expect("a full bucket");
            assert_eq!(owed() > 0, is_owed, "{pause_ns}");
        }
        let before = owed();
        now_ns += 60_000_000_000;
        let granted = paced.take(Load::Datagram(1500), false, || now_ns).expect("a full bucket");
        assert_eq!(owed(), before - granted.discount.paid, "a pause");
        now_ns += 60_000_000_000;
        paced.take(Load::Datagram(1500), true, || now_ns).expect("a full bucket");
        assert!(owed() > before, "a sender that waited");
    }

    /// Goal: a sender that shares its processor sleeps, but not for as long as it takes to lose something.
    #[test]
    fn a_late_sender_naps_for_less_than_its_burst_lasts() {
        let paced = Paced::default();
        for (burst, nap_ns) in [(3000, 850_000), (300, 14)] {
            paced.set(&Wanted { rate: 1_000_000, burst, least: 0 });
            assert_eq!(paced.worth_ns(14), 14, "nothing was lost");
            paced.owed.store(1, Ordering::Relaxed);
            assert_eq!(paced.worth_ns(14), nap_ns);
            assert_eq!(paced.worth_ns(1_000_000), 1_000_000);
        }
    }
}
