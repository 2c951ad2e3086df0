//! One registration: what it watches, and what there is to report of it.
//!
//! An item knows its socket and what has been reported of it, nothing of the instance it belongs to.

#![expect(clippy::as_conversions, reason = "the kernel's event masks have two widths")]

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use adverb_switchover::Want;

use super::Instance;
use crate::base::raw;
use crate::socket::changes;
use crate::socket::counters::add;
use crate::socket::state::Socket;
use crate::socket::table::{self, SocketRef};
use crate::transport::datagram::{self, Content};
use crate::transport::{bell, fallback, park, xdp};
use crate::wait::epoll;

/// What an item watches.
#[derive(Debug)]
pub(super) enum Target {
    Socket(SocketRef),
    /// A UDP socket: the kernel knows it as the program wants it, and its mailbox is looked at
    /// besides.
    Datagram(SocketRef),
    /// Another instance.
    Inner(Instance),
}

/// One registration of a connection, or of another instance.
#[derive(Debug)]
pub(super) struct Item {
    /// The descriptor that was registered, as the program and the kernel know it. Its number may be
    /// another one's by now, if there are copies.
    pub(super) fd: c_int,
    /// A descriptor of the same socket that is open, to look at it; -1 if this process has none.
    pub(super) via: c_int,
    pub(super) target: Target,
    pub(super) events: u32,
    pub(super) data: u64,
    /// It has rings, and the kernel knows it under our mark.
    pub(super) is_marked: bool,
    pub(super) is_polled: bool,
    /// It was polled until its watcher went to sleep, and is polled again when that wakes.
    pub(super) is_parked: bool,
    /// The program has removed it, by this descriptor of the instance, and the kernel still has it;
    /// see [`super::Epoll::bury`].
    pub(super) ghost_of: Option<c_int>,
    /// It was reported once, and once was asked for.
    pub(super) is_spent: bool,
    /// A UDP socket whose mailbox is closed on our behalf: the kernel brings what comes.
    pub(super) is_armed: bool,
    /// A UDP socket whose mailbox we know of.
    pub(super) is_seen: bool,
    /// What has been reported.
    seen: Look,
    /// The ends and errors among it.
    seen_ends: i16,
    /// What the kernel has said since.
    pub(super) notified: u32,
    /// Looks that found nothing.
    pub(super) idle: u32,
    /// It came with a fork.
    is_copied: bool,
}

/// How far a connection or a mailbox was when it was looked at.
///
/// It is read before what is to be reported is worked out: what comes in between is news the next time, rather than a part
/// of a report that does not mention it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Look {
    /// Bytes that have come by the ring, or datagrams by the mailbox.
    head: u64,
    /// How often the ring of the other direction has been full.
    tx_full_count: u32,
    /// Whether the kernel speaks for what is to be read, and for room.
    kernel: (bool, bool),
    /// Ends and errors, as they are reported.
    ends: i16,
}

impl Look {
    /// Before anything has been reported, and for items that report what there is again and again.
    const NOTHING: Self =
        Self { head: u64::MAX, tx_full_count: u32::MAX, kernel: (false, false), ends: 0 };

    /// Whether there is something to read or room to write, respectively, that was not there when the item was last
    /// reported, which was as `seen` says. What comes through the kernel is new when the kernel says so (`notified`), and
    /// what comes after it is too.
    fn news(self, seen: Self, notified: u32) -> (bool, bool) {
        let notified = |events: c_int| notified & events as u32 != 0;
        let is_read = match self.kernel.0 {
            true => notified(libc::EPOLLIN),
            false => seen.kernel.0 || self.head != seen.head,
        };
        let is_written = match self.kernel.1 {
            true => notified(libc::EPOLLOUT),
            false => seen.kernel.1 || self.tx_full_count != seen.tx_full_count,
        };
        (is_read, is_written)
    }
}

impl Item {
    pub(super) fn new(fd: c_int, target: Target, events: u32, data: u64) -> Self {
        let is_polled = matches!(target, Target::Inner(_));
        Self {
            fd,
            via: fd,
            target,
            events,
            data,
            is_marked: false,
            is_polled,
            is_parked: false,
            ghost_of: None,
            is_spent: false,
            is_armed: false,
            is_seen: false,
            seen: Look::NOTHING,
            seen_ends: 0,
            notified: 0,
            idle: 0,
            is_copied: false,
        }
    }

    pub(super) fn change(&mut self, events: u32, data: u64) {
        (self.events, self.data) = (events, data);
        (self.seen, self.seen_ends) = (Look::NOTHING, 0);
        (self.is_spent, self.notified) = (false, ALL_NOTIFIED);
        self.idle = 0;
    }

    /// The socket that it watches, if it is one.
    pub(super) fn socket(&self) -> Option<&'static Socket> {
        match &self.target {
            Target::Socket(socket) | Target::Datagram(socket) => Some(socket.socket()),
            Target::Inner(_) => None,
        }
    }

    /// Where an instance finds it: by its socket and its descriptor.
    pub(super) fn place(&self) -> Option<(u32, c_int)> {
        match &self.target {
            Target::Socket(socket) | Target::Datagram(socket) => Some((socket.index(), self.fd)),
            Target::Inner(_) => None,
        }
    }

    /// The kernel cannot be told anything about it any more: the descriptor that was registered has
    /// been closed, and copies keep the socket, and with it the registration.
    pub(super) fn is_orphan(&self) -> bool {
        match &self.target {
            Target::Socket(socket) | Target::Datagram(socket) => !table::is_socket(self.fd, socket),
            Target::Inner(inner) => !epoll::is_of(self.fd, inner),
        }
    }

    /// What the kernel is asked for under our mark.
    pub(super) fn bells(&self) -> u32 {
        let bells = match self.target {
            Target::Socket(_) => libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET,
            Target::Inner(_) | Target::Datagram(_) => libc::EPOLLIN,
        };
        bells as u32
    }

    /// How far it is.
    #[inline]
    pub(super) fn look(&self) -> Look {
        if self.events & libc::EPOLLET as u32 == 0 {
            return Look::NOTHING;
        }
        match &self.target {
            Target::Inner(_) => Look::NOTHING,
            Target::Datagram(socket) => datagram::stored(socket)
                .map_or(Look::NOTHING, |mailbox| Look { head: mailbox.head(), ..Look::NOTHING }),
            Target::Socket(socket) => socket.mapped().map_or(Look::NOTHING, |segment| Look {
                head: segment.incoming(socket.end()).head(),
                tx_full_count: socket.traffic.tx_full_count.load(Ordering::Acquire),
                kernel: park::kernel_speaks(socket, segment),
                ends: 0,
            }),
        }
    }

    /// What is to be reported now. Nothing of it counts as reported yet.
    pub(super) fn due(&self) -> u32 {
        self.due_since(&mut self.look())
    }

    /// The same, of an item that has just been looked at.
    pub(super) fn due_since(&self, look: &mut Look) -> u32 {
        if self.is_spent || self.ghost_of.is_some() {
            return 0;
        }
        let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let ready = match &self.target {
            Target::Inner(inner) if inner.is_ready() => libc::EPOLLIN as u32,
            Target::Inner(_) => 0,
            Target::Datagram(socket) => self.due_datagram(socket, *look),
            Target::Socket(socket) => {
                let Some(segment) = socket.segment() else {
                    if self.is_marked && self.is_orphan() {
                        let all = (libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP).cast_unsigned();
                        let asked = u32::from(all) & self.events;
                        let ready = raw::poll_now(self.via, asked as i16).unwrap_or(0);
                        let ready = u32::from(ready.cast_unsigned()) & (self.events | always);
                        // At an edge, what the kernel has said since the last report.
                        let is_edge = self.events & libc::EPOLLET as u32 != 0;
                        return if is_edge { ready & self.notified } else { ready };
                    }
                    if self.is_marked {
                        // A process of this family has given the rings up.
                        changes::note(socket.index());
                    }
                    return 0;
                };
                let ready = events_of(socket, segment, self.via);
                let is_in_ring = segment.incoming(socket.end()).direction.has_fin();
                look.ends = ready & ENDS | if is_in_ring { END_IN_RING } else { 0 };
                if self.events & libc::EPOLLET as u32 != 0 && !self.is_edge(*look, ready) {
                    return 0;
                }
                u32::from(ready.cast_unsigned())
            }
        };
        ready & (self.events | always)
    }

    /// The same for a UDP socket: what its mailbox has. The kernel reports its own.
    fn due_datagram(&self, socket: &Socket, look: Look) -> u32 {
        let Some(mailbox) = datagram::stored(socket) else { return 0 };
        let is_new = self.events & libc::EPOLLET as u32 == 0 || look.head != self.seen.head;
        let is_there = |is_edge| match datagram::content(socket, mailbox, self.via) {
            Content::Nothing => false,
            Content::Datagram => true,
            // It is news all the same, if what it waits for is there.
            Content::Blocked => is_edge && raw::poll_now(self.via, libc::POLLIN) != Ok(0),
        };
        if !is_new || !is_there(self.events & libc::EPOLLET as u32 != 0) {
            return 0;
        }
        let out = libc::POLLOUT | libc::POLLWRNORM;
        let wants_room = self.events & u32::from(out.cast_unsigned()) != 0;
        let room = if wants_room { raw::poll_now(self.via, out).unwrap_or(0) } else { 0 };
        let ready = libc::POLLIN | libc::POLLRDNORM | room & out;
        u32::from(ready.cast_unsigned())
    }

    /// Whether its watcher waits for room alone: it has nothing to report, and at an edge a send was refused since it last
    /// reported room.
    pub(super) fn waits_for_room(&self) -> bool {
        let is_watched = !self.is_spent && self.ghost_of.is_none();
        if !is_watched || self.events & libc::EPOLLOUT as u32 == 0 {
            return false;
        }
        let mut look = self.look();
        let is_level = self.events & libc::EPOLLET as u32 == 0;
        let is_refused = is_level || look.tx_full_count != self.seen.tx_full_count;
        is_refused && self.due_since(&mut look) == 0
    }

    /// Whether what is to be read of it still comes through the kernel, which wakes its watchers.
    pub(super) fn is_read_by_kernel(&self) -> bool {
        let Target::Socket(socket) = &self.target else { return false };
        socket.mapped().is_some_and(|segment| park::kernel_speaks(socket, segment).0)
    }

    /// What it costs to look at it, in looks at memory.
    pub(super) fn cost(&self) -> u32 {
        let Target::Socket(socket) = &self.target else { return 1 };
        let speaks = socket.mapped().map(|segment| park::kernel_speaks(socket, segment));
        if speaks.is_some_and(|(reading, writing)| reading || writing) {
            KERNEL_LOOK_WORTH
        } else {
            1
        }
    }

    /// Only the kernel can say whose turn it is, or that once is enough.
    pub(super) fn is_kernels(&self) -> bool {
        self.events & (libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32 != 0
    }

    /// One of those that wait is woken.
    pub(super) fn is_exclusive(&self) -> bool {
        self.events & libc::EPOLLEXCLUSIVE as u32 != 0
    }

    /// Whether it is a UDP socket that has frames.
    pub(super) fn has_frames(&self) -> bool {
        matches!(&self.target, Target::Datagram(socket) if xdp::of(socket).is_some())
    }

    /// The mailbox of a UDP socket takes what comes from now on, as far as we are concerned.
    pub(super) fn disarm(&mut self) {
        if self.is_armed
            && !self.is_kernels()
            && let Target::Datagram(socket) = &self.target
            && let Some(mailbox) = datagram::stored(socket)
        {
            mailbox.awake();
            self.is_armed = false;
        }
    }

    /// The mailbox of a UDP socket may have come into being: then it is looked at from now on.
    pub(super) fn meet(&mut self, is_asleep: bool) {
        let Target::Datagram(socket) = &self.target else { return };
        let Some(mailbox) = datagram::store(socket, self.via) else { return };
        if (self.is_kernels() || is_asleep) && !self.is_armed {
            mailbox.hold();
            self.is_armed = true;
        }
        if !self.is_seen {
            self.is_seen = true;
            mailbox.seen(true);
        }
        if !is_asleep {
            self.disarm();
        }
    }

    /// It is removed.
    pub(super) fn part(&mut self) {
        match &self.target {
            // Its watcher is the parent, which has been counted.
            Target::Socket(_) if self.is_copied => {}
            Target::Socket(socket) => {
                if let Some(segment) = socket.mapped() {
                    segment.connection(socket).part_together();
                }
                socket.waiters.watchers.fetch_sub(1, Ordering::AcqRel);
            }
            Target::Datagram(socket) => {
                if let Some(mailbox) = datagram::stored(socket) {
                    if self.is_armed {
                        mailbox.awake();
                    }
                    if self.is_seen {
                        mailbox.seen(false);
                    }
                }
                socket.waiters.watchers.fetch_sub(1, Ordering::AcqRel);
            }
            Target::Inner(_) => {}
        }
    }

    /// It has been copied by a fork.
    pub(super) fn after_fork(&mut self) {
        self.is_copied = true;
        if let Target::Datagram(socket) = &self.target {
            socket.waiters.watchers.fetch_add(1, Ordering::AcqRel);
            if let Some(mailbox) = datagram::stored(socket) {
                if self.is_armed {
                    mailbox.hold();
                }
                if self.is_seen {
                    mailbox.seen(true);
                }
            }
        }
    }

    /// Whether something is new since the last report.
    fn is_edge(&self, look: Look, ready: i16) -> bool {
        let readable = ready & libc::POLLIN != 0;
        let ended = look.ends & !self.seen_ends != 0;
        let writable = ready & libc::POLLOUT != 0;
        let (is_read, is_written) = look.news(self.seen, self.notified);
        // An end that has been reported the kernel may tell of once more.
        let is_told = || look.ends & self.seen_ends != 0 && raw::waiting(self.via) == Ok(0);
        let is_read = is_read && !(look.kernel.0 && is_told());
        (readable && is_read)
            || ended
            || (writable && is_written && self.events & libc::EPOLLOUT as u32 != 0)
    }

    /// These events have been reported, as it was found by this look.
    pub(super) fn reported(&mut self, events: u32, look: Look) {
        self.idle = 0;
        if self.events & libc::EPOLLONESHOT as u32 != 0 {
            self.is_spent = true;
        }
        if let Target::Datagram(socket) = &self.target {
            self.seen = look;
            add(&socket.counters.rx_poll_hit, 1);
        }
        if let Target::Socket(socket) = &self.target {
            self.notified &= !events;
            if socket.mapped().is_none() {
                return;
            }
            let tx_full_count = if events & libc::EPOLLOUT as u32 != 0 {
                look.tx_full_count
            } else {
                self.seen.tx_full_count
            };
            self.seen = Look { tx_full_count, ..look };
            self.seen_ends |= look.ends;
            add(&socket.counters.rx_poll_hit, 1);
        }
    }

    /// Arms it, so that a bell comes; together with others, if there is a doorbell for that. Returns
    /// false if it has something to report already.
    pub(super) fn arm(&mut self, doorbell: u32) -> bool {
        if self.is_spent || self.ghost_of.is_some() {
            return true;
        }
        match &self.target {
            Target::Inner(inner) => inner.arm(None),
            Target::Datagram(socket) => {
                let reading = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
                let Some(mailbox) = datagram::stored(socket) else { return true };
                datagram::mind(socket, self.via);
                if self.events & reading == 0 || self.is_armed {
                    return self.due() == 0;
                }
                if !mailbox.doze() {
                    // What is there has been reported, and not been read; unless it waits for
                    // the kernel, and may have to go on without.
                    let is_blocked = datagram::content(socket, mailbox, self.via)
                        == Content::Blocked
                        && raw::poll_now(self.via, libc::POLLIN) == Ok(0);
                    if is_blocked {
                        raw::nap(BLOCKED_NAP_NS);
                    }
                    if is_blocked || self.due() != 0 {
                        return false;
                    }
                    mailbox.hold();
                }
                self.is_armed = true;
                self.due() == 0
            }
            Target::Socket(socket) => {
                let Some(segment) = socket.segment() else {
                    return !(self.is_marked && self.is_orphan()) || self.due() == 0;
                };
                let (reading, writing) = (libc::EPOLLIN as u32, libc::EPOLLOUT as u32);
                let is_reader = self.events & reading != 0;
                // What the kernel wakes for stays armed when its watcher wakes: it is notified for alone.
                let doorbell = if self.is_read_by_kernel() { 0 } else { doorbell };
                let is_drained = bell::drain(socket, segment, self.via, false);
                let is_together =
                    is_reader && segment.connection(socket).arm_together(doorbell, false);
                if is_reader && !is_together {
                    park::arm(socket, segment, Want::Read);
                }
                if self.events & writing != 0 && !segment.outgoing(socket.end()).has_much_room() {
                    park::arm(socket, segment, Want::Room);
                }
                let waits_for_room =
                    self.events & writing != 0 && !segment.outgoing(socket.end()).has_much_room();
                if waits_for_room && !is_reader && !is_drained {
                    // Bytes that the program does not read now may fill the kernel's queue, and no bell
                    // gets past them.
                    raw::nap(BLOCKED_NAP_NS);
                    return false;
                }
                doorbell != 0 || self.due() == 0
            }
        }
    }
}

/// What `poll` would say about a connection with rings: from memory, and from the kernel as long as
/// bytes still come through it.
pub(crate) fn events_of(
    socket: &Socket,
    segment: &crate::transport::ring::Segment,
    fd: c_int,
) -> i16 {
    let wants_kernel = socket.flags.wants_kernel.load(Ordering::Relaxed);
    if wants_kernel || segment.is_leaving() || segment.is_spoilt() {
        match wants_kernel {
            true => fallback::leave_for_feature(socket, fd),
            false => fallback::advance(socket, fd),
        }
        if socket.segment().is_none() {
            return raw::poll_now(fd, ALL).unwrap_or(0);
        }
    }
    let mut ready = park::readiness(socket, segment);
    let (reading, writing) = park::kernel_speaks(socket, segment);
    if reading || writing {
        let events = raw::poll_now(fd, ALL).unwrap_or(0);
        let events = events & ROOM | park::apply_events(socket, fd, events);
        if reading {
            ready |= events & !ROOM;
        }
        if writing {
            let room = if park::has_to_resend(socket) { 0 } else { events & ROOM };
            ready = (ready & !ROOM) | room;
        }
    } else if park::is_at_end(socket, segment) {
        // Whether it was a reset, and whether that has been told, the kernel knows.
        let events = raw::poll_now(fd, libc::POLLIN | libc::POLLRDHUP).unwrap_or(0);
        let events = park::apply_events(socket, fd, events);
        ready = park::readiness(socket, segment) | events & (libc::POLLERR | libc::POLLHUP);
    }
    ready
}

/// What there is to ask the kernel of a connection.
const ALL: i16 = libc::POLLIN
    | libc::POLLOUT
    | libc::POLLRDHUP
    | libc::POLLPRI
    | libc::POLLRDNORM
    | libc::POLLWRNORM;
const ROOM: i16 = libc::POLLOUT | libc::POLLWRNORM;
/// Events that come once, and stay.
const ENDS: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;

/// Of a connection of frames that comes later than `POLLRDHUP`, behind what there was no room for.
const END_IN_RING: i16 = libc::POLLIN;

/// How long a watcher sleeps that waits for what the kernel has not brought yet.
const BLOCKED_NAP_NS: i64 = 50_000;
/// What is to be reported anew, whatever it is.
const ALL_NOTIFIED: u32 = u32::MAX;
/// A look that has to ask the kernel is worth so many that do not.
const KERNEL_LOOK_WORTH: u32 = 500;

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what arrives while a report is made that does not mention it is reported the next time.
    /// Method: the first answer by the ring comes when room to write has been found, and nothing to read.
    #[test]
    fn what_arrives_during_a_report_is_news_after_it() {
        let before = Look { head: 0, tx_full_count: 0, kernel: (true, false), ends: 0 };
        let after = Look { head: 8, tx_full_count: 0, kernel: (false, false), ends: 0 };
        assert_eq!(before.news(Look::NOTHING, 0), (false, true));
        // It was reported as it was looked at, not as it is by then.
        assert_eq!(after.news(before, 0), (true, false));
        assert_eq!(after.news(after, 0), (false, false));
        let more = Look { head: 9, tx_full_count: 1, ..after };
        assert_eq!(more.news(after, 0), (true, true));
    }

    #[test]
    fn while_the_kernel_speaks_its_word_counts() {
        let look = Look { head: 0, tx_full_count: 0, kernel: (true, true), ends: 0 };
        assert_eq!(look.news(Look::NOTHING, 0), (false, false));
        let notified = (libc::EPOLLIN | libc::EPOLLOUT).cast_unsigned();
        assert_eq!(look.news(look, notified), (true, true));
    }
}
