//! The ways from one socket to mailboxes that a destination may have: which datagram goes into one, and which through
//! the kernel.
//!
//! No call of the kernel is made here: the sender's own counts and the mailbox's words decide, so a simulation can run the
//! same decisions (`simulation.rs`).

use std::net::SocketAddr;

use adverb_shm::alive;

use super::mailbox::{Mailbox, Place, Pushed, Sender, Sleep};
use crate::base::iovec::IoCursor;
use crate::base::raw;
use crate::base::thread::Here;

/// The most that a datagram of IPv4 carries.
pub(super) const LEN_MAX: usize = 65_507;
/// What is written before it is looked whether the readers are awake: copying more in vain costs more.
const EAGER_LEN: usize = 2048;
/// After so many datagrams one goes through the kernel.
pub(super) const VERIFY: u32 = 4096;
/// Datagrams that are sent between two looks at whether the receiver reads them.
pub(super) const LOOK: u32 = 64;
/// What is put into a mailbox whose reader has been woken and does not run yet, at most, and after how many, or how
/// long, it is woken again meanwhile: the kernel may have lost what was to wake it, or have brought it elsewhere.
const UNHEARD_MAX: u32 = 512;
const KNOCK_AGAIN: u32 = 128;
const KNOCK_AGAIN_NS: u64 = 1_000_000;
/// After how many datagrams a sender waits that its receiver has seen none to be under way, each time after twice as many; and
/// in how many once at least.
const SETTLED_AFTER: u32 = 8;
const SETTLED_EVERY: u32 = 16_384;
/// How long it waits at most, as long as it takes to read a queue of the kernel's; for how long the receiver may take nothing
/// meanwhile, as it may be on its way out of a sleep; and how often the sender pauses between two looks.
const SETTLED_WAIT_NS: u64 = 4_000_000;
const SETTLED_IDLE_NS: u64 = 200_000;
const SETTLED_ROUNDS: u32 = 64;
/// How often a full mailbox is tried again while its owner reads.
pub(super) const FULL_ROUNDS: u32 = 512;

/// The way to one mailbox.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) mailbox: Mailbox,
    /// Our place there.
    pub(super) place: Place,
    /// It was copied by a fork: the parent has entered it, and leaves.
    pub(super) is_copied: bool,
    /// Datagrams since one went through the kernel.
    unverified: u32,
    /// Datagrams that were given to the kernel while it was not known to which socket it brings them.
    guessed: u32,
    /// Those that are being given to the kernel, and of which the mailbox wants to know when they have been; and how many have
    /// been.
    pending: u32,
    unsettled: u32,
    /// The end of the last one.
    pub(super) pushed_to: u64,
    /// Datagrams so far.
    looks: u32,
    /// The readers were awake for the last one.
    is_awake: bool,
    /// The sleep of theirs that this socket has ended last, by what it gave to the kernel; when it last gave it something
    /// for that, and datagrams since it first did.
    woken: Option<Sleep>,
    woken_ns: u64,
    unheard: u32,
    /// When it was last looked with all care whether the owners of the mailbox live.
    judged_ns: u64,
}

impl Drop for Way {
    fn drop(&mut self) {
        self.gave(self.pending);
        if !self.is_copied {
            self.mailbox.leave(self.place);
        }
    }
}

/// Those to one destination: several as long as it is not known to which socket the kernel brings what goes there.
#[derive(Debug, Default)]
pub(super) struct Ways(pub(super) Vec<Way>);

/// What is to be done with a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// Nothing more: it is in the mailbox.
    Delivered,
    /// Nothing more: there was no room for it, as in a receive buffer that is full.
    Dropped,
    /// Through the kernel. It has been counted, and ends that sleep. `is_awaited`: [`Ways::gave`] is to be told of it.
    Kernel { counted: Counted, wakes: Option<Sleep>, is_awaited: bool },
    /// Through the kernel, and what is known of the ways is out of date. What has been put into the one may never be read,
    /// if that is so.
    Forget { is_dead: bool },
}

/// How far receivers are with seeing that all has come that a sender has sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Settling {
    Done,
    /// One has looked since it was last asked to, and more is under way.
    Tried,
    Idle,
}

/// A sender that is nearly always in a call of the kernel's leaves its receiver no moment to see that all has come that it
/// has sent: now and then it waits for one, for as long as the receiver takes what has come, and lets another thread have
/// its processor if it does not. No lock is held but while `look` runs, which is [`Ways::settling`]. `waits`: the call may
/// take long.
pub(super) fn let_settle(waits: bool, mut look: impl FnMut() -> Settling) {
    let most_ns = if waits { SETTLED_WAIT_NS } else { SETTLED_IDLE_NS };
    let begun_ns = raw::now_ns();
    let (mut now_ns, mut tried_ns) = (begun_ns, begun_ns);
    while now_ns.saturating_sub(begun_ns) < most_ns
        && now_ns.saturating_sub(tried_ns) < SETTLED_IDLE_NS
    {
        match look() {
            Settling::Done => return,
            Settling::Tried => tried_ns = now_ns,
            Settling::Idle => raw::give_way(),
        }
        (0..SETTLED_ROUNDS).for_each(|_| std::hint::spin_loop());
        now_ns = raw::now_ns();
    }
}

/// At which mailboxes a datagram has been counted that goes through the kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Counted {
    /// At all that it may be for.
    Guessed,
    /// At one, by its number, at this place there.
    At(u64, Place),
    /// At these members of a group, a bit for each, as they were in this turn of it.
    Members { turn: u32, counted: u16 },
}

impl Ways {
    /// Decides about one datagram, and delivers it if it can. `is_special`: it asks for what only the kernel has.
    pub(super) fn plan(&mut self, parts: &[libc::iovec], is_special: bool) -> Verdict {
        if !is_special && let Some(way) = self.confirmed() {
            match way.send(parts) {
                Pushed::At(_) => return Verdict::Delivered,
                Pushed::Full => return Verdict::Dropped,
                Pushed::Asleep => {}
                Pushed::Gone => return Verdict::Forget { is_dead: way.is_dead() },
            }
        }
        // Another sender may have our place by now.
        if self.0.iter().any(|way| way.sender().is_none()) {
            return Verdict::Forget { is_dead: false };
        }
        let counted = self.count();
        let is_awaited = self.0.iter().any(Way::is_awaited);
        let wakes = self.confirmed().and_then(|way| way.mailbox.sleep());
        Verdict::Kernel { counted, wakes, is_awaited }
    }

    /// The way that the kernel has been seen to take, if it is one.
    pub(super) fn confirmed(&mut self) -> Option<&mut Way> {
        let mut confirmed = self.0.iter_mut().filter(|way| way.is_confirmed());
        let first = confirmed.next()?;
        match confirmed.next() {
            None => Some(first),
            Some(second) => {
                // The kernel has changed its mind: which of them is it now?
                [first, second].iter().filter_map(|way| way.sender()).for_each(Sender::doubt);
                None
            }
        }
    }

    /// What was given to the kernel while its receiver was not known was for the one that it has been seen
    /// to bring it to. Returns false if there is none.
    pub(super) fn settle(&mut self) -> bool {
        if self.confirmed().is_none() {
            return false;
        }
        for way in self.0.iter_mut().filter(|way| way.guessed > 0) {
            let guessed = std::mem::take(&mut way.guessed);
            if let Some(sender) = way.sender().filter(|_| !way.is_confirmed()) {
                sender.gave_not(guessed);
            }
        }
        true
    }

    /// Whether something was given to the kernel while it was not known to which of them it brings that.
    pub(super) fn is_guessed(&self) -> bool {
        self.0.iter().any(|way| way.guessed > 0)
    }

    /// One datagram more is about to go through the kernel: to the one that it was last seen to bring
    /// them to, or to whichever.
    fn count(&mut self) -> Counted {
        self.settle();
        if let Some(way) = self.confirmed() {
            way.gives();
            return Counted::At(way.mailbox.cookie(), way.place);
        }
        for way in &mut self.0 {
            way.guessed += u32::from(way.gives());
        }
        Counted::Guessed
    }

    /// The kernel has been given one; whether it has taken it, and which sleep that ends. Returns whether [`let_settle`] is
    /// due.
    pub(super) fn gave(&mut self, counted: Counted, is_taken: bool, wakes: Option<Sleep>) -> bool {
        if !is_taken {
            self.uncount(counted);
        } else if let Some(sleep) = wakes
            && let Some(way) = self.confirmed()
        {
            way.wakes(sleep);
        }
        // When the counts are right again.
        for way in self.0.iter_mut().filter(|way| way.is_awaited()) {
            way.gave(1);
        }
        // One that the kernel passes over never sees them come.
        is_taken && self.confirmed().is_none() && self.0.iter().any(Way::is_due_to_settle)
    }

    /// How far receivers are that this sender waits for; see [`let_settle`]. They are asked to look.
    pub(super) fn settling(&mut self) -> Settling {
        let mut settling = Settling::Done;
        if self.confirmed().is_some() {
            return settling;
        }
        for way in self.0.iter().filter(|way| way.is_due_to_settle()) {
            match way.mailbox.has_tried_to_settle() {
                true => settling = Settling::Tried,
                false if settling == Settling::Done => settling = Settling::Idle,
                false => {}
            }
            way.mailbox.ask_to_settle();
        }
        settling
    }

    /// The kernel has not taken it. A guess that has been settled meanwhile stays counted at the confirmed way: one record
    /// waits for it in vain.
    fn uncount(&mut self, counted: Counted) {
        for way in &mut self.0 {
            let is_counted = match counted {
                Counted::Guessed => way.guessed > 0,
                Counted::At(cookie, place) => way.mailbox.cookie() == cookie && way.place == place,
                Counted::Members { .. } => false,
            };
            if let Some(sender) = way.sender().filter(|_| is_counted) {
                sender.gave_not(1);
                way.guessed -= u32::from(counted == Counted::Guessed);
            }
        }
    }
}

impl Way {
    /// In a child just forked; see `Outbox::after_fork`.
    pub(super) fn after_fork(&mut self) {
        (self.guessed, self.pending, self.is_copied) = (0, 0, true);
    }

    /// Our entry there, unless another sender has its place by now.
    #[inline]
    pub(super) fn sender(&self) -> Option<&Sender> {
        self.mailbox.entered(self.place)
    }

    /// A datagram is about to go through the kernel; returns whether that is counted.
    pub(super) fn gives(&mut self) -> bool {
        let Some(is_awaited) = self.sender().map(Sender::gives) else { return false };
        self.pending += u32::from(is_awaited);
        self.unsettled = self.unsettled.saturating_add(u32::from(is_awaited));
        true
    }

    /// Whether it is time to wait that the receiver sees all to have come that has been sent.
    fn is_due_to_settle(&self) -> bool {
        let is_due = self.unsettled.is_power_of_two() && self.unsettled >= SETTLED_AFTER
            || self.unsettled.is_multiple_of(SETTLED_EVERY) && self.unsettled > 0;
        is_due && self.pending == 0 && self.sender().is_some_and(Sender::is_unsettled)
    }

    /// So many of those that are awaited have been given to the kernel.
    pub(super) fn gave(&mut self, count: u32) {
        let count = count.min(self.pending);
        self.pending -= count;
        if let Some(sender) = self.sender().filter(|_| count > 0) {
            sender.gave(count);
        }
    }

    /// Whether the mailbox wants to know when something has been given to the kernel.
    pub(super) fn is_awaited(&self) -> bool {
        self.pending > 0
    }

    /// Whether the kernel has been seen to bring our datagrams there.
    #[inline]
    fn is_confirmed(&self) -> bool {
        self.mailbox.is_confirmed(self.place)
    }

    /// Enters a socket as a sender, from `source`.
    pub(super) fn new(mailbox: Mailbox, me: u64, source: SocketAddr) -> Option<Self> {
        let place = mailbox.enter(me, source, None)?;
        let pushed_to = mailbox.head();
        let (unverified, guessed, pending, unsettled, looks) = (0, 0, 0, 0, 0);
        let (is_awake, woken, woken_ns, unheard, judged_ns) = (false, None, 0, 0, 0);
        Some(Self {
            mailbox,
            place,
            is_copied: false,
            unverified,
            guessed,
            pending,
            unsettled,
            pushed_to,
            looks,
            is_awake,
            woken,
            woken_ns,
            unheard,
            judged_ns,
        })
    }

    /// What has just been given to the kernel ends a sleep: if it is one of this mailbox's reader, as another way may have been
    /// taken meanwhile.
    pub(super) fn wakes(&mut self, sleep: Sleep) {
        if sleep.mailbox() != self.mailbox.cookie() {
            return;
        }
        if self.woken != Some(sleep) {
            (self.woken, self.unheard) = (Some(sleep), 0);
        }
        self.woken_ns = raw::now_ns();
    }

    /// The sleep of the reader, if this socket has ended it and one more may be put there before it runs.
    fn woken(&mut self) -> Option<Sleep> {
        let woken = self.woken.filter(|_| self.mailbox.sleep() == self.woken)?;
        self.unheard = self.unheard.saturating_add(1);
        let is_due = self.unheard.is_multiple_of(KNOCK_AGAIN)
            || self.unheard > UNHEARD_MAX
            || raw::now_ns().saturating_sub(self.woken_ns) > KNOCK_AGAIN_NS;
        (!is_due).then_some(woken)
    }

    /// Puts a datagram into the mailbox; `Asleep` if it is to go through the kernel for any reason.
    pub(super) fn send(&mut self, parts: &[libc::iovec]) -> Pushed {
        self.mailbox.prepare(self.pushed_to);
        let mut cursor = IoCursor::new(parts);
        let len = cursor.remaining();
        if self.mailbox.is_spoilt() {
            return Pushed::Gone;
        }
        if len > LEN_MAX {
            return Pushed::Asleep;
        }
        // The readers' cursor is in their cache: it is looked at now and then.
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOK) {
            if self.mailbox.is_read(self.pushed_to) {
                if self.unverified >= VERIFY {
                    self.unverified = 0;
                    return Pushed::Asleep;
                }
            } else if self.is_dead() {
                return Pushed::Gone;
            }
        }
        let woken = if self.is_awake { None } else { self.woken() };
        let Some(sender) = self.mailbox.entered(self.place) else { return Pushed::Gone };
        let mut rounds = 0;
        loop {
            let is_eager = self.is_awake && len <= EAGER_LEN;
            let given = sender.given();
            let pushed = self.mailbox.push(self.place, given, &mut cursor, len, is_eager, woken);
            self.is_awake = matches!(pushed, Pushed::At(_)) && woken.is_none();
            match pushed {
                Pushed::At(end) => {
                    self.pushed_to = end;
                    self.unverified = self.unverified.saturating_add(1);
                }
                Pushed::Full if rounds < FULL_ROUNDS && self.mailbox.moves() => {
                    rounds += 1;
                    std::hint::spin_loop();
                    continue;
                }
                Pushed::Full => self.mailbox.stalls(len),
                Pushed::Asleep | Pushed::Gone => {}
            }
            return pushed;
        }
    }

    /// Puts a short datagram into the mailbox, whose readers are awake, most likely, and which it need not be looked
    /// after. False: [`Self::send`] finds out what there is to do, and nothing has happened.
    #[inline]
    pub(super) fn send_short(&mut self, here: Here, part: &libc::iovec) -> bool {
        let looks = self.looks.wrapping_add(1);
        if !self.is_awake || looks.is_multiple_of(LOOK) || self.mailbox.is_spoilt() {
            return false;
        }
        self.mailbox.prepare(self.pushed_to);
        let Some(end) = self.mailbox.push_short(here, self.place, part) else { return false };
        (self.looks, self.pushed_to) = (looks, end);
        self.unverified = self.unverified.saturating_add(1);
        true
    }

    pub(super) fn is_dead(&self) -> bool {
        self.mailbox.is_dead()
    }

    /// Whether what was sent will never be read. It is asked before each sleep.
    pub(super) fn is_lost(&mut self) -> bool {
        if self.mailbox.is_read(self.pushed_to) {
            return false;
        }
        let now = raw::now_ns();
        if now.saturating_sub(self.judged_ns) < alive::JUDGED_NS {
            return self.mailbox.is_dead_by(alive::has_ended_since);
        }
        self.judged_ns = now;
        self.is_dead()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::mailbox::{Empty, Sent};
    use super::*;

    fn way(of: &str, cookie: u64) -> Way {
        let mailbox = Mailbox::of_test(of, cookie);
        mailbox.let_senders(0, 0);
        Way::new(mailbox, 1, source()).expect("a way")
    }

    fn source() -> SocketAddr {
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 5)
    }

    fn counted(ways: &mut Ways) -> Counted {
        match ways.plan(&[], true) {
            Verdict::Kernel { counted, .. } => counted,
            verdict @ (Verdict::Delivered | Verdict::Dropped | Verdict::Forget { .. }) => {
                panic!("{verdict:?}")
            }
        }
    }

    fn given(ways: &Ways) -> Vec<u32> {
        ways.0.iter().filter_map(Way::sender).map(Sender::given).collect()
    }

    /// The mailbox of the first way has one more of those that were given to the kernel.
    fn comes(ways: &Ways) {
        let way = &ways.0[0];
        way.mailbox.settle(|| Some(Empty { now_ns: 1, drops: 0 }));
        assert!(way.mailbox.note(source(), Sent::Here, 0));
    }

    /// Goal: a datagram that the kernel refuses is taken off where it was counted, whatever has become known meanwhile.
    #[test]
    fn a_refused_datagram_is_taken_off_where_it_was_counted() {
        let mut ways = Ways(vec![way("refused", 7), way("refused", 8)]);
        ways.0.iter().for_each(|way| way.mailbox.settle(|| Some(Empty { now_ns: 1, drops: 0 })));
        // It is not known for which: it counts for both, until the first is seen to get them.
        let first = counted(&mut ways);
        ways.gave(first, true, None);
        let refused = counted(&mut ways);
        assert_eq!((refused, given(&ways)), (Counted::Guessed, vec![2, 2]));
        comes(&ways);
        ways.gave(refused, false, None);
        assert_eq!(given(&ways), [1, 1]);
        // It is known: it counts for the first, though there is doubt by then.
        let refused = counted(&mut ways);
        assert_eq!(given(&ways), [2, 0]);
        ways.0.iter().filter_map(Way::sender).for_each(Sender::doubt);
        ways.gave(refused, false, None);
        assert_eq!(given(&ways), [1, 0]);
    }

    /// Goal: what a sender takes back, because it was for another mailbox, has not come here either, so that no record passes
    /// what is still to come.
    #[test]
    fn what_was_for_another_mailbox_has_not_come() {
        let mut ways = Ways(vec![way("another", 7), way("another", 8)]);
        for _ in 0..2 {
            let guessed = counted(&mut ways);
            ways.gave(guessed, true, None);
            ways.0
                .iter()
                .for_each(|way| way.mailbox.settle(|| Some(Empty { now_ns: 1, drops: 0 })));
        }
        comes(&ways);
        assert!(ways.settle());
        assert_eq!(given(&ways), [2, 0]);
        assert!(ways.0.iter().all(|way| way.mailbox.is_level()));
    }
}
