//! Senders, as one mailbox knows them: which may use it, and how the order of their datagrams holds across
//! the mailbox and the kernel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

use adverb_shm::alive;

use super::{Consumer, LOOPBACK, Mailbox, SENDERS_MAX};
use crate::base::thread::Here;

/// One sender, as this socket sees it; and further entries for the groups to which it sends, which say
/// what is known of those, while what is counted is counted in the first.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct Sender {
    /// The kernel's number for its socket; 0 if the entry is free.
    cookie: AtomicU64,
    process: AtomicU32,
    /// Family and port of its address.
    port: AtomicU32,
    addr: [AtomicU64; 2],
    /// Datagrams it has given to the kernel for this socket, and how many have come of them.
    given: AtomicU32,
    pub(super) taken: AtomicU32,
    /// One more than the epoch in which the kernel was last seen to bring its datagrams here.
    confirmed: AtomicU32,
    /// Datagrams that have come beyond those. Below 0, another value each time: what it sent before it was entered may be in the
    /// kernel's queue still, so that it is not known which of those that come are counted.
    excess: AtomicI32,
    /// Datagrams that it is giving to the kernel just now, while that is so.
    pending: AtomicU32,
    /// Changes whenever the entry is used anew.
    turn: AtomicU32,
    /// The multicast group that this entry is about; zeros if it is about the socket's own address.
    group: [AtomicU64; 2],
    /// The interface by which the group's datagrams were last seen to come.
    interface: AtomicU32,
    /// Whether the group's datagrams that come by loopback are for this socket: [`Expects`].
    expects: AtomicU32,
    /// How many ways have been entered here that have not been left. Copies that a fork has made are not counted: they may
    /// end in ways of which nothing is heard.
    users: AtomicU32,
    /// Since when that and what it has given are as they were, where it is giving something.
    stuck_ns: AtomicU64,
    stuck_given: AtomicU32,
    stuck_pending: AtomicU32,
}

/// The kernel's queue when it was seen to be empty.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Empty {
    /// The time, in nanoseconds.
    pub(crate) now_ns: u64,
    /// Datagrams that it had dropped before it was seen to be empty.
    pub(crate) drops: u32,
}

/// What is seen of a sender that is not settled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Seen {
    /// The mark of that.
    excess: i32,
    given: u32,
    pending: u32,
}

/// Where a sender was entered: it is its place until the entry is used anew.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    pub(super) index: usize,
    /// The kernel's number for its socket.
    cookie: u64,
    turn: u32,
}

impl Sender {
    pub(super) fn matches(&self, from: SocketAddr) -> bool {
        let (port, [a, b]) = split(from);
        self.port.load(Ordering::Relaxed) == port
            && self.addr[0].load(Ordering::Relaxed) == a
            && self.addr[1].load(Ordering::Relaxed) == b
            && self.cookie.load(Ordering::Acquire) != 0
    }

    /// Whether the entry is in use.
    pub(super) fn is_used(&self) -> bool {
        self.cookie.load(Ordering::Acquire) != 0
    }

    fn is_about(&self, group: Option<IpAddr>) -> bool {
        let [a, b] = group.map_or([0, 0], |group| split(SocketAddr::new(group, 0)).1);
        self.group[0].load(Ordering::Relaxed) == a && self.group[1].load(Ordering::Relaxed) == b
    }

    /// The interface by which the group's datagrams were last seen to come.
    pub(crate) fn interface(&self) -> u32 {
        self.interface.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn address(&self) -> SocketAddr {
        let port = self.port.load(Ordering::Relaxed);
        let [a, b] = &self.addr;
        let (a, b) = (a.load(Ordering::Relaxed), b.load(Ordering::Relaxed));
        let number = u16::try_from(port & 0xffff).unwrap_or(0);
        let ip = if port & V6 != 0 {
            IpAddr::V6(Ipv6Addr::from_bits(u128::from(a) << 64 | u128::from(b)))
        } else {
            IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(b).unwrap_or(0)))
        };
        SocketAddr::new(ip, number)
    }

    pub(super) fn origin(&self) -> Origin {
        Origin {
            cookie: self.cookie.load(Ordering::Relaxed),
            process: self.process.load(Ordering::Relaxed),
            from: self.address(),
        }
    }

    /// The sender is about to give a datagram to the kernel. Returns whether it has to say when it has: [`Self::gave`].
    pub(crate) fn gives(&self) -> bool {
        let is_unsettled = self.is_unsettled();
        if is_unsettled {
            self.pending.fetch_add(1, Ordering::AcqRel);
        }
        self.given.fetch_add(1, Ordering::AcqRel);
        is_unsettled
    }

    /// It has given so many, of which it had to say so.
    pub(crate) fn gave(&self, count: u32) {
        let down = |pending: u32| Some(pending.saturating_sub(count));
        let _ = self.pending.fetch_update(Ordering::AcqRel, Ordering::Relaxed, down);
    }

    /// The kernel has not taken so many, or they were not for this socket.
    pub(crate) fn gave_not(&self, count: u32) {
        if count > 0 {
            self.given.fetch_sub(count, Ordering::AcqRel);
            self.level();
        }
    }

    /// Lowers the count of what has come to the count of what was given: a datagram may have counted as come before the sender
    /// knew that it was for another socket. Called after each change that may leave the first count too high: of a reader and
    /// a sender that change both at the same time, one sees what the other has done.
    pub(super) fn level(&self) {
        fence(Ordering::SeqCst);
        let down = |taken: u32| {
            let given = self.given();
            is_behind(given, taken).then_some(given)
        };
        let _ = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, down);
    }

    pub(crate) fn expects(&self) -> Expects {
        match self.expects.load(Ordering::Acquire) {
            1 => Expects::Nothing,
            2 => Expects::All,
            _ => Expects::Unknown,
        }
    }

    /// Whether it is not known how many have come of those that it has given to the kernel.
    #[inline]
    pub(crate) fn is_unsettled(&self) -> bool {
        self.excess.load(Ordering::Relaxed) < 0
    }

    /// What it has given to the kernel, and is giving, if that is so.
    fn seen(&self) -> Option<Seen> {
        let excess = self.excess.load(Ordering::Acquire);
        let given = self.given();
        let pending = self.pending.load(Ordering::Acquire);
        (excess < 0).then_some(Seen { excess, given, pending })
    }

    /// Whether it is giving nothing just now. A process that is killed within the call never says that it has given it: where
    /// nothing has changed for long, it is not waited for any more. The readers' lock is held.
    fn is_still(&self, seen: Seen, now_ns: u64) -> bool {
        let Seen { given, pending, .. } = seen;
        if pending == 0 {
            return true;
        }
        let Self { stuck_ns, stuck_given, stuck_pending, .. } = self;
        let since = stuck_ns.load(Ordering::Relaxed);
        let is_as_before = stuck_given.load(Ordering::Relaxed) == given
            && stuck_pending.load(Ordering::Relaxed) == pending;
        // A time that is still to come was never written by a reader.
        if is_as_before && since != 0 && since <= now_ns {
            return now_ns - since > STUCK_NS;
        }
        stuck_given.store(given, Ordering::Relaxed);
        stuck_pending.store(pending, Ordering::Relaxed);
        stuck_ns.store(now_ns.max(1), Ordering::Relaxed);
        false
    }

    pub(crate) fn given(&self) -> u32 {
        self.given.load(Ordering::Acquire)
    }

    /// What it has given before a record of its that says `before`.
    fn due(&self, before: u32) -> u32 {
        let given = self.given();
        if is_behind(before, given) { before } else { given }
    }

    /// How many of those have not come, if more than 0.
    #[inline]
    pub(super) fn missing(&self, before: u32) -> i32 {
        self.due(before).wrapping_sub(self.taken.load(Ordering::Acquire)).cast_signed()
    }

    /// They will not come.
    pub(super) fn skip(&self, before: u32) {
        self.taken.store(self.due(before), Ordering::Release);
        self.level();
    }

    /// The sender no longer trusts that the kernel brings its datagrams here.
    pub(crate) fn doubt(&self) {
        if self.confirmed.load(Ordering::Relaxed) != AMBIGUOUS {
            self.confirmed.store(0, Ordering::Release);
        }
    }
}

/// Whether a count is less than another one; both wrap.
fn is_behind(count: u32, other: u32) -> bool {
    count.wrapping_sub(other).cast_signed() < 0
}

const V6: u32 = 1 << 16;

fn split(addr: SocketAddr) -> (u32, [u64; 2]) {
    let port = u32::from(addr.port());
    match addr.ip() {
        IpAddr::V4(ip) => (port, [0, u64::from(ip.to_bits())]),
        IpAddr::V6(ip) => {
            let [a, b, c, d, e, f, g, h, rest @ ..] = ip.octets();
            let high = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
            (port | V6, [high, u64::from_be_bytes(rest)])
        }
    }
}

/// Where the kernel says that a datagram was sent to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sent {
    /// It does not say.
    Somewhere,
    /// To an address of this socket's.
    Here,
    /// To a group, by way of an interface.
    Group(IpAddr, u32),
}

/// Whether a group's datagrams are for a socket, as its owner says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(crate) enum Expects {
    Unknown = 0,
    Nothing = 1,
    All = 2,
}

/// Whence a datagram is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// The kernel's number for the socket that sent it, and the process that has it; 0 if it is closed.
    pub(crate) cookie: u64,
    pub(crate) process: u32,
    pub(crate) from: SocketAddr,
}

#[expect(clippy::as_conversions, reason = "an enumeration is stored as its number")]
fn expects_number(expects: Expects) -> u32 {
    expects as u32
}

impl Mailbox {
    /// The sender of a record.
    pub(super) fn sender(&self, index: usize) -> Option<&Sender> {
        self.header().senders.get(index)
    }

    /// The sender at a place, unless the place is used otherwise by now.
    #[inline]
    pub(crate) fn entered(&self, place: Place) -> Option<&Sender> {
        let Place { index, cookie, turn } = place;
        self.sender(index).filter(|sender| {
            sender.cookie.load(Ordering::Relaxed) == cookie
                && sender.turn.load(Ordering::Relaxed) == turn
        })
    }

    /// Enters a sender; finds it if it is there already. Refused if another one uses the same
    /// address, or if there are too many.
    pub(crate) fn enter(
        &self,
        cookie: u64,
        from: SocketAddr,
        group: Option<IpAddr>,
    ) -> Option<Place> {
        let header = self.header();
        let _held = self.hold_senders(Here::find())?;
        let is_empty = !self.has_record();
        let mut free = None;
        for (index, sender) in header.senders.iter().enumerate() {
            let known = sender.cookie.load(Ordering::Acquire);
            let is_same = sender.matches(from) && sender.is_about(group);
            if known == cookie && is_same {
                sender.process.store(alive::me(), Ordering::Relaxed);
                if sender.users.fetch_add(1, Ordering::Relaxed) == 0 {
                    // It had left, and has counted nothing since.
                    self.unsettle(sender);
                }
                let turn = sender.turn.load(Ordering::Relaxed);
                return Some(Place { index, cookie, turn });
            }
            let process = sender.process.load(Ordering::Relaxed);
            let is_free = known == 0 || is_empty && (process == 0 || alive::has_ended(process));
            if !is_free && is_same {
                return None;
            }
            if is_free {
                sender.cookie.store(0, Ordering::Release);
                free = free.or(Some(index));
            }
            if known == 0 && index >= usize::try_from(header.used.load(Ordering::Relaxed)).ok()? {
                break;
            }
        }
        let index = free?;
        let sender = header.senders.get(index)?;
        let (port, [a, b]) = split(from);
        sender.port.store(port, Ordering::Relaxed);
        sender.addr[0].store(a, Ordering::Relaxed);
        sender.addr[1].store(b, Ordering::Relaxed);
        let [a, b] = group.map_or([0, 0], |group| split(SocketAddr::new(group, 0)).1);
        sender.group[0].store(a, Ordering::Relaxed);
        sender.group[1].store(b, Ordering::Relaxed);
        header.used.fetch_max(u32::try_from(index + 1).unwrap_or(0), Ordering::AcqRel);
        let Sender { given, taken, interface, expects, .. } = sender;
        for count in [given, taken, interface, expects] {
            count.store(0, Ordering::Relaxed);
        }
        self.unsettle(sender);
        sender.users.store(1, Ordering::Relaxed);
        sender.process.store(alive::me(), Ordering::Relaxed);
        let turn = sender.turn.load(Ordering::Relaxed).wrapping_add(1);
        sender.turn.store(turn, Ordering::Relaxed);
        sender.cookie.store(cookie, Ordering::Release);
        Some(Place { index, cookie, turn })
    }

    /// The sender is to be seen to reach this socket once more, and before that what it has sent before is to be out of the
    /// kernel's queue. The senders' lock is held.
    fn unsettle(&self, sender: &Sender) {
        let excess = sender.excess.load(Ordering::Relaxed).min(0).checked_sub(1).unwrap_or(-1);
        sender.excess.store(excess, Ordering::Relaxed);
        sender.pending.store(0, Ordering::Relaxed);
        sender.stuck_ns.store(0, Ordering::Relaxed);
        sender.confirmed.store(0, Ordering::Release);
        let Consumer { is_unsettled, looks, .. } = &self.header().consumer;
        looks.store(0, Ordering::Relaxed);
        is_unsettled.store(1, Ordering::Release);
    }

    /// Whether a sender may not be settled.
    #[inline]
    pub(crate) fn is_unsettled(&self) -> bool {
        self.header().consumer.is_unsettled.load(Ordering::Acquire) != 0
    }

    /// Whether [`Self::settle`] has something to do: it costs a call of the kernel's, so not at every datagram for long. The
    /// readers' lock is held.
    #[inline]
    pub(crate) fn wants_to_settle(&self) -> bool {
        let Consumer { looks, .. } = &self.header().consumer;
        if !self.is_unsettled() || self.has_sleeper() {
            return false;
        }
        let count = looks.load(Ordering::Relaxed).wrapping_add(1);
        looks.store(count, Ordering::Relaxed);
        count < SETTLED_EVERY || count.is_multiple_of(SETTLED_EVERY)
    }

    /// A sender waits: the next looks at whether it can be settled are not left out.
    pub(crate) fn ask_to_settle(&self) {
        self.header().consumer.looks.store(0, Ordering::Relaxed);
    }

    /// Whether the reader has had something from the kernel, or found nothing there, since then.
    pub(crate) fn has_tried_to_settle(&self) -> bool {
        self.header().consumer.looks.load(Ordering::Relaxed) != 0
    }

    /// If the kernel's queue is empty, all has come that senders have given to it, as it brings datagrams of this host before the
    /// call returns that sends them: from now on it is known what comes of which. What a sender is giving meanwhile may have
    /// come or not, so such a sender has to wait. A thread that the kernel has woken has a datagram that is neither in the queue
    /// nor noted: it counts as a sleeper until it has noted it, under the lock. `empty`: the queue, if it is empty.
    /// The readers' lock is held.
    #[cold]
    pub(crate) fn settle(&self, empty: impl FnOnce() -> Option<Empty>) {
        let header = self.header();
        let is_unsettled = &header.consumer.is_unsettled;
        is_unsettled.store(0, Ordering::Release);
        fence(Ordering::SeqCst);
        let used = usize::try_from(header.used.load(Ordering::Acquire)).unwrap_or(0);
        let before: [Option<Seen>; SENDERS_MAX] = std::array::from_fn(|at| {
            header.senders.get(at).filter(|_| at < used).and_then(Sender::seen)
        });
        let empty = empty();
        // After the look at the queue: what is there no more has been taken by a thread that slept before.
        fence(Ordering::SeqCst);
        let empty = empty.filter(|_| !self.has_sleeper());
        for (sender, before) in header.senders.iter().take(used).zip(before) {
            let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
            let still =
                before.zip(empty).filter(|(seen, empty)| sender.is_still(*seen, empty.now_ns));
            if let Some((Seen { given, pending, .. }, _)) = still {
                // A reader may have noted one of another sender's late that was entered there before.
                sender.doubt();
                // Before it is settled: what the sender takes back from then on, it takes off here as well.
                // What a process was giving when it was stopped comes when it goes on, and is counted then. If it had come already,
                // the next record waits for it in vain.
                sender.taken.store(given.wrapping_sub(pending), Ordering::Release);
                fence(Ordering::SeqCst);
            }
            let is_settled = still.is_some_and(|(seen, _)| {
                before == sender.seen()
                    && sender.excess.compare_exchange(seen.excess, 0, o, r).is_ok()
            });
            if !is_settled && sender.is_unsettled() {
                is_unsettled.store(1, Ordering::Release);
            }
        }
        if let Some(empty) = empty {
            self.unmix(empty);
        }
    }

    /// A sender has closed its socket. Its address is needed for as long as records are here.
    pub(crate) fn leave(&self, place: Place) {
        let Some(_held) = self.hold_senders(Here::find()) else { return };
        if let Some(sender) = self.entered(place) {
            let users = sender.users.load(Ordering::Relaxed).saturating_sub(1);
            sender.users.store(users, Ordering::Relaxed);
            if users > 0 {
                return;
            }
            sender.process.store(0, Ordering::Relaxed);
            if !self.has_record() {
                sender.cookie.store(0, Ordering::Release);
            }
        }
    }

    /// Whether the kernel has been seen to bring this sender's datagrams to this socket.
    #[inline]
    pub(crate) fn is_confirmed(&self, place: Place) -> bool {
        self.entered(place).is_some_and(|sender| self.has_confirmed(sender))
    }

    /// The same of a sender that is entered. One that is not settled may have it from the sender that was entered there before.
    #[inline]
    pub(super) fn has_confirmed(&self, sender: &Sender) -> bool {
        let now = self.header().epoch.load(Ordering::Relaxed).wrapping_add(1);
        sender.confirmed.load(Ordering::Acquire) == now && !sender.is_unsettled()
    }

    /// The kernel has brought a datagram, before which it had dropped `drops` in all. Returns whether it came from a sender that
    /// is known here.
    pub(crate) fn note(&self, from: SocketAddr, sent: Sent, drops: u32) -> bool {
        let is_known = self.count(from, sent);
        self.write_off(drops);
        is_known
    }

    fn count(&self, from: SocketAddr, sent: Sent) -> bool {
        let header = self.header();
        let used = usize::try_from(header.used.load(Ordering::Acquire)).unwrap_or(0);
        let known = header.senders.iter().take(used).filter(|sender| sender.matches(from));
        let about = |group| known.clone().find(|sender| sender.is_about(group));
        let Some(sender) = about(None) else {
            self.mix();
            return known.clone().next().is_some();
        };
        let (proven, interface) = match sent {
            Sent::Here => (Some(sender), 0),
            // If it sends to groups too, it is not known what this proves.
            Sent::Somewhere if known.clone().nth(1).is_some() => (None, 0),
            Sent::Somewhere => (Some(sender), 0),
            Sent::Group(group, interface) => (about(Some(group)), interface),
        };
        if let (Some(proven), Sent::Group(..)) = (proven, sent) {
            proven.interface.store(interface, Ordering::Relaxed);
        }
        if interface > LOOPBACK {
            // Senders do not count what goes by way of the network.
            self.mix();
            return true;
        }
        let excess = sender.excess.load(Ordering::Relaxed);
        let up = |taken: u32| is_behind(taken, sender.given()).then(|| taken.wrapping_add(1));
        if sender.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, up).is_err() {
            // More than it has sent: another socket sends under the same address, or it was sent before it was entered.
            if excess >= 0 {
                self.mix();
            }
            let (o, up) = (Ordering::Relaxed, excess.saturating_add(1));
            if excess >= 0
                && sender.excess.compare_exchange(excess, up, o, o).is_ok()
                && excess > EXCESS_MAX
            {
                sender.confirmed.store(AMBIGUOUS, Ordering::Release);
            }
            return true;
        }
        sender.level();
        // As long as it is not settled, this may be one from before: it counts for the records that are here, if any.
        let is_proof = excess >= 0 && sender.confirmed.load(Ordering::Relaxed) != AMBIGUOUS;
        if let Some(proven) = proven.filter(|_| is_proof) {
            let now = header.epoch.load(Ordering::Acquire).wrapping_add(1);
            proven.confirmed.store(now, Ordering::Release);
        }
        true
    }

    /// Remembers of every group that senders send to what `f` says of a sender and a group: whether
    /// its datagrams are for this socket; `None` if that is not known.
    pub(crate) fn expect(&self, f: impl Fn(SocketAddr, IpAddr) -> Option<bool>) {
        let used = usize::try_from(self.header().used.load(Ordering::Acquire)).unwrap_or(0);
        for sender in self.header().senders.iter().take(used) {
            let is_used = sender.cookie.load(Ordering::Acquire) != 0;
            let (from, [a, b]) = (sender.address(), &sender.group);
            let (a, b) = (a.load(Ordering::Relaxed), b.load(Ordering::Relaxed));
            if !is_used || (a, b) == (0, 0) {
                continue;
            }
            let group = if from.is_ipv6() {
                IpAddr::V6(Ipv6Addr::from_bits(u128::from(a) << 64 | u128::from(b)))
            } else {
                IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(b).unwrap_or(0)))
            };
            let expects = match f(from, group) {
                None => Expects::Unknown,
                Some(false) => Expects::Nothing,
                Some(true) => Expects::All,
            };
            sender.expects.store(expects_number(expects), Ordering::Release);
        }
    }

    /// Whether no more has come of any sender than it has given, as far as that is known.
    #[cfg(test)]
    pub(crate) fn is_level(&self) -> bool {
        self.header().senders.iter().all(|sender| {
            let taken = sender.taken.load(Ordering::Acquire);
            sender.is_unsettled() || !is_behind(sender.given(), taken)
        })
    }

    /// Whether a sender of that address is known here.
    pub(crate) fn knows(&self, from: SocketAddr) -> bool {
        let used = usize::try_from(self.header().used.load(Ordering::Acquire)).unwrap_or(0);
        self.header().senders.iter().take(used).any(|sender| sender.matches(from))
    }
}

/// A sender's name for which nothing can be told.
const AMBIGUOUS: u32 = u32::MAX;

/// More datagrams than were sent, before that counts as ambiguous.
const EXCESS_MAX: i32 = 16;
/// How long what a sender is giving stays as it is before it is taken for left over: longer than a thread waits for a
/// processor in the middle of a call. No record waits meanwhile, as none is put here.
const STUCK_NS: u64 = 1_000_000_000;
/// It is looked so often at once whether a sender can be settled, and then once in so many datagrams.
const SETTLED_EVERY: u32 = 64;

#[cfg(test)]
mod tests {
    use super::super::Pushed;
    use super::*;
    use crate::base::iovec::IoCursor;

    fn mailbox(of: &str) -> Mailbox {
        Mailbox::of_test(of, 7)
    }

    fn empty(now_ns: u64) -> Empty {
        Empty { now_ns, drops: 0 }
    }

    fn enter(mailbox: &Mailbox, cookie: u64) -> Place {
        let port = u16::try_from(cookie).expect("a number");
        let from = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        mailbox.enter(cookie, from, None).expect("a place")
    }

    /// Goal: what has lost its place takes nothing from the sender that has it now, and sends nothing in its name.
    #[test]
    fn a_place_that_was_lost_stays_its_new_owners() {
        let mailbox = mailbox("lost");
        let first = enter(&mailbox, 1);
        mailbox.leave(first);
        let second = enter(&mailbox, 2);
        assert_eq!(first.index, second.index);
        mailbox.leave(first);
        assert!(mailbox.entered(second).is_some());
        assert!(mailbox.entered(first).is_none());
        assert_ne!(enter(&mailbox, 3).index, second.index);
        // The same socket, about another group than its child still believes.
        mailbox.leave(second);
        let again = enter(&mailbox, 2);
        assert!(again.index == second.index && mailbox.entered(second).is_none());
        let mut none = IoCursor::new(&[]);
        assert_eq!(mailbox.push(first, 0, &mut none, 0, true, None), Pushed::Gone);
        assert_eq!(mailbox.push(again, 0, &mut none, 0, true, None), Pushed::Asleep);
    }

    /// Goal: a sender has its place until all its ways have been left.
    #[test]
    fn a_place_is_free_when_its_last_way_is_left() {
        let mailbox = mailbox("last");
        let ways = [enter(&mailbox, 1), enter(&mailbox, 1)];
        assert_eq!(ways[0], ways[1]);
        mailbox.leave(ways[0]);
        assert!(mailbox.entered(ways[1]).is_some());
        mailbox.leave(ways[1]);
        assert!(mailbox.entered(ways[1]).is_none());
    }

    /// Goal: a sender is settled where the process has ended that has entered it, and a child of that sends on.
    #[test]
    fn a_sender_is_settled_where_its_first_process_has_ended() {
        let mailbox = mailbox("ended");
        mailbox.let_senders(0, 0);
        let place = enter(&mailbox, 1);
        let sender = mailbox.entered(place).expect("an entry");
        sender.process.store(0, Ordering::Relaxed);
        assert!(sender.gives() && mailbox.wants_to_settle());
        mailbox.settle(|| Some(empty(1)));
        assert!(sender.is_unsettled());
        sender.gave(1);
        assert!(mailbox.wants_to_settle());
        mailbox.settle(|| Some(empty(1)));
        assert!(!sender.is_unsettled() && !mailbox.wants_to_settle());
    }

    /// Goal: what is noted late of the sender that had an entry before confirms none that has it now.
    #[test]
    fn a_late_note_confirms_no_other_sender() {
        let mailbox = mailbox("late");
        mailbox.let_senders(0, 0);
        let first = enter(&mailbox, 1);
        mailbox.leave(first);
        let second = enter(&mailbox, 2);
        let sender = mailbox.entered(second).expect("an entry");
        assert_eq!(first.index, second.index);
        let now = mailbox.header().epoch.load(Ordering::Relaxed) + 1;
        sender.confirmed.store(now, Ordering::Release);
        assert!(!mailbox.is_confirmed(second));
        mailbox.settle(|| Some(empty(1)));
        assert!(!sender.is_unsettled() && !mailbox.is_confirmed(second));
        sender.gives();
        mailbox.note(sender.address(), Sent::Here, 0);
        assert!(mailbox.is_confirmed(second));
    }

    /// Goal: a sender is settled of which one process was killed while it gave a datagram, but not while another one gives
    /// some.
    #[test]
    fn a_sender_that_was_killed_in_the_call_is_settled_in_time() {
        let mailbox = mailbox("killed");
        mailbox.let_senders(0, 0);
        let sender = mailbox.entered(enter(&mailbox, 1)).expect("an entry");
        let mut now = 1;
        sender.gives();
        mailbox.settle(|| Some(empty(now)));
        // Another one gives one meanwhile.
        sender.gives();
        sender.gave(1);
        now += STUCK_NS + 1;
        mailbox.settle(|| Some(empty(now)));
        assert!(sender.is_unsettled());
        now += STUCK_NS;
        mailbox.settle(|| Some(empty(now)));
        assert!(sender.is_unsettled());
        now += 1;
        mailbox.settle(|| None);
        assert!(sender.is_unsettled());
        mailbox.settle(|| Some(empty(now)));
        assert!(!sender.is_unsettled());
    }

    /// Goal: what a process was giving when it was stopped is counted when it comes. Method: it is settled meanwhile, gives one
    /// more, and a record after that: none passes the two.
    #[test]
    fn what_a_stopped_process_was_giving_still_counts() {
        let mailbox = mailbox("stopped");
        mailbox.let_senders(0, 0);
        let place = enter(&mailbox, 1);
        let sender = mailbox.entered(place).expect("an entry");
        assert!(sender.gives());
        for now in [1, 2 + STUCK_NS] {
            mailbox.settle(|| Some(empty(now)));
        }
        assert!(!sender.is_unsettled());
        sender.gives();
        for has_come in [1, 2] {
            mailbox.note(sender.address(), Sent::Here, 0);
            let taken = sender.taken.load(Ordering::Relaxed);
            assert_eq!(sender.given().wrapping_sub(taken), 2 - has_come);
        }
    }

    /// Goal: what a thread that slept has taken out of the kernel's queue, and has not noted yet, has not come.
    #[test]
    fn no_sender_is_settled_while_a_thread_sleeps() {
        let mailbox = mailbox("asleep");
        mailbox.let_senders(0, 0);
        let sender = mailbox.entered(enter(&mailbox, 1)).expect("an entry");
        sender.gives();
        sender.gave(1);
        let is_known = mailbox.doze_to_read().expect("nothing is here");
        assert!(!mailbox.wants_to_settle());
        mailbox.settle(|| Some(empty(1)));
        assert!(sender.is_unsettled() && mailbox.is_unsettled());
        mailbox.awake_to_read(is_known);
        assert!(mailbox.wants_to_settle());
        // One that falls asleep while the queue is looked at may have what was there.
        mailbox.settle(|| mailbox.doze_to_read().map(|_| empty(1)));
        assert!(sender.is_unsettled());
        mailbox.awake_to_read(is_known);
        mailbox.settle(|| Some(empty(1)));
        assert!(!sender.is_unsettled());
    }
}
