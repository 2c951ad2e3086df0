//! Sending to a multicast group: into the mailboxes of all its members, or to all of them through the
//! kernel.
//!
//! Never both, so that each gets every datagram once. The mailboxes are used if every socket on this host
//! that could get the datagram has one, is awake, and has been seen to get the group's datagrams from
//! this very socket through the kernel, by way of the loopback device, beyond which there are none. Whether
//! there are others the kernel's list of sockets says (`listing.rs`), which is read again every so
//! often, and after every datagram that has gone through the kernel; of joins and ends of our own
//! sockets we hear at once. So a member that is not ours gets everything from the first that it gets.
//!
//! All mailboxes get a datagram, or none: first each is reserved, in the order of their numbers, so
//! that no owner goes to sleep; then all are written, then all published.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use adverb_sockconf::Level;

use super::directory::{self, Directory};
use super::listing::Listing;
use super::mailbox::{Expects, LOOPBACK, Place, Pushed, Reserved, Sender, Shows, Sleep};
use super::outbox::{Plan, source_of};
use super::ways::{Counted, FULL_ROUNDS, LEN_MAX, LOOK, VERIFY, Way};
use crate::base::iovec::IoCursor;
use crate::base::{config, raw};
use crate::socket::state::Socket;

/// Groups to which one socket sends through mailboxes, at a time.
const GROUPS_MAX: usize = 16;
/// Members of one group; if there are more, it stays with the kernel.
const MEMBERS_MAX: usize = 16;
/// How long what the kernel's list says is believed.
const BELIEVED_NS: u64 = 20_000_000;
/// Nor is it read more often than this, in times of what reading it has taken, which may have been long
/// because another thread had the processor. Until it is read again everything goes through the kernel, which costs more.
const READ_SHARE: u64 = 8;
const PAUSE_MAX_NS: u64 = 200_000_000;

/// The socket that sends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) socket: &'a Socket,
    pub(super) fd: c_int,
    /// The kernel's number for it.
    pub(super) me: u64,
}

/// The groups of one socket.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: Vec<Group>,
    listing: Listing,
    /// Grows when members of a group come or go, or what one has counted is taken off.
    turn: u32,
}

/// What is known of the sockets that could get a group's datagrams.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Audience {
    Unknown,
    /// A socket has no mailbox.
    Mixed,
    /// The members all have.
    Known,
}

#[derive(Debug)]
struct Member {
    way: Way,
    /// By which the directory knows the mailbox. What that says of it may change.
    cookie: u64,
    /// Our place there about this group.
    place: Place,
    /// It could get the group's datagrams, as far as the kernel's list says.
    is_listed: bool,
    /// And it expects them.
    is_open: bool,
    /// Datagrams that were given to the kernel before it was known whether it expects them.
    guessed: u32,
}

impl Member {
    fn new(way: Way, cookie: u64, place: Place) -> Self {
        Self { way, cookie, place, is_listed: false, is_open: false, guessed: 0 }
    }

    fn entry(&self) -> Option<&Sender> {
        self.way.mailbox.entered(self.place)
    }

    /// Whether other senders may have its places by now.
    fn is_lost(&self) -> bool {
        self.way.sender().is_none() || self.entry().is_none()
    }

    fn expects(&self) -> Expects {
        self.entry().map_or(Expects::Nothing, Sender::expects)
    }

    /// Whether it has been seen to get the group's datagrams by loopback.
    fn is_reached(&self) -> bool {
        self.way.mailbox.is_confirmed(self.place)
            && self.entry().is_some_and(|entry| entry.interface() == LOOPBACK)
    }

    /// What the kernel brings here of the group does not come by loopback: that is not counted.
    fn is_by_network(&self) -> bool {
        self.entry().is_some_and(|entry| entry.interface() > LOOPBACK)
    }

    /// Finds out whether what the kernel was given was for this one. Returns false if that is not known yet. `turn` is that
    /// of [`Groups`].
    fn settle(&mut self, turn: &mut u32) -> bool {
        if self.guessed == 0 {
            return true;
        }
        let Some(sender) = self.way.sender() else { return true };
        let is_for_it = match self.expects() {
            Expects::Unknown if !self.is_by_network() => return false,
            Expects::Unknown | Expects::Nothing => false,
            Expects::All => !self.is_by_network(),
        };
        if !is_for_it {
            sender.gave_not(self.guessed);
            *turn = turn.wrapping_add(1);
        }
        self.guessed = 0;
        true
    }

    /// One datagram more is about to go through the kernel. Returns whether it is counted.
    fn count(&mut self, turn: &mut u32) -> bool {
        self.settle(turn);
        let expects = self.expects();
        let is_counted = expects != Expects::Nothing && !self.is_by_network() && self.way.gives();
        self.guessed += u32::from(is_counted && expects == Expects::Unknown);
        is_counted
    }

    /// The kernel has not taken one that was counted here.
    fn uncount(&mut self) {
        self.guessed = self.guessed.saturating_sub(1);
        if let Some(sender) = self.way.sender() {
            sender.gave_not(1);
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.settle(&mut 0);
        if !self.way.is_copied {
            self.way.mailbox.leave(self.place);
        }
    }
}

/// One group.
#[derive(Debug)]
struct Group {
    to: SocketAddr,
    source: Option<SocketAddr>,
    /// What the directory said of the port when it was last searched.
    generation: u32,
    /// In the order of their numbers.
    members: Vec<Member>,
    audience: Audience,
    /// Until when that is believed, and from when on the kernel may be asked again.
    until_ns: u64,
    next_ns: u64,
    /// Datagrams so far, and those since one went through the kernel.
    looks: u32,
    unverified: u32,
    /// It has been said that it goes by shared memory.
    is_explained: bool,
}

/// Lets a socket of ours send to groups by the interface by which the program's does.
pub(super) fn send_by_same(socket: &Socket, fd: c_int, probe: c_int, is_v4: bool) {
    if is_v4 {
        let by = socket.datagrams.multicast_by.load(Ordering::Relaxed);
        let addr = u32::try_from(by & u64::from(u32::MAX)).unwrap_or(0);
        let index = c_int::try_from(by >> 32).unwrap_or(0);
        let (level, name) = (libc::IPPROTO_IP, libc::IP_MULTICAST_IF);
        let _ = raw::set_option_as(probe, level, name, &[0, addr, index.cast_unsigned()]);
    } else {
        let (level, name) = (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF);
        let index = raw::option::<c_int>(fd, level, name).unwrap_or(0);
        let _ = raw::set_option(probe, level, name, index);
    }
}

impl Groups {
    /// How the socket sends may have changed: everything is found out again.
    pub(super) fn clear(&mut self) {
        self.groups.clear();
        self.turn = self.turn.wrapping_add(1);
    }

    /// Whether nothing has been sent to any.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// In a child just forked; see [`super::outbox::Outbox::after_fork`].
    pub(super) fn after_fork(&mut self) {
        for member in self.groups.iter_mut().flat_map(|group| &mut group.members) {
            member.guessed = 0;
            member.way.after_fork();
        }
    }

    /// Finds out for which sockets what was sent to groups on a port has been. Returns false if that is not known yet:
    /// mailboxes would wait for it that do not get it.
    pub(super) fn settle(&mut self, port: u16) -> bool {
        let Self { groups, turn, .. } = self;
        let groups = groups.iter_mut().filter(|group| group.to.port() == port);
        groups.map(|group| group.settle(turn)).filter(|is_settled| !is_settled).count() == 0
    }

    /// The kernel has been given one to a group; whether it has taken it, and which sleep that ends.
    pub(super) fn gave(
        &mut self,
        to: SocketAddr,
        counted: Counted,
        is_taken: bool,
        wakes: Option<Sleep>,
    ) {
        let Self { groups, turn: now, .. } = self;
        let Some(group) = groups.iter_mut().find(|group| group.to == to) else { return };
        if !is_taken {
            // Where the members are others by now it stays counted: one record waits for it in vain.
            if let Counted::Members { turn, counted } = counted
                && turn == *now
            {
                group.uncount(counted);
            }
        } else if let Some(sleep) = wakes
            && let Some(way) = group.only()
        {
            way.wakes(sleep);
        }
        group.members.iter_mut().for_each(|member| member.way.gave(1));
    }

    /// Decides about one datagram, and delivers it if it can.
    pub(super) fn plan(
        &mut self,
        source: &Source<'_>,
        parts: &[libc::iovec],
        to: SocketAddr,
        is_special: bool,
        directory: &Directory,
    ) -> Plan {
        let kernel = Plan::Kernel { counted: None, is_awaited: false, to: Some(to), wakes: None };
        let is_known = source.socket.datagrams.multicast_by.load(Ordering::Relaxed) != BY_UNKNOWN;
        if !is_known {
            return kernel;
        }
        let Some(at) = self.find_or_new(to) else { return kernel };
        let Self { groups, listing, turn } = self;
        let Some(group) = groups.get_mut(at) else { return kernel };
        let generation = directory.generation(to.port());
        // A sender that has lost its place is told nothing there any more, so what the receiver expects is not known.
        if group.generation != generation || group.members.iter().any(Member::is_lost) {
            *turn = turn.wrapping_add(1);
            group.search(directory, generation, source);
        }
        if group.members.is_empty() {
            return kernel;
        }
        if !is_special && IoCursor::new(parts).remaining() <= LEN_MAX && group.is_ready(listing) {
            group.explain(source.fd);
            match group.transmit(parts) {
                Pushed::At(_) => return Plan::Done,
                Pushed::Full => return Plan::Dropped,
                Pushed::Asleep => {}
                Pushed::Gone => group.generation = 0,
            }
        }
        let counted = group.count(turn);
        let counted = Counted::Members { turn: *turn, counted };
        // A socket that gets this one, and has not been there so far, is not to miss the next.
        group.until_ns = 0;
        let wakes = group.only().and_then(|way| way.mailbox.sleep());
        let is_awaited = group.members.iter().any(|member| member.way.is_awaited());
        Plan::Kernel { counted: Some(counted), is_awaited, to: Some(to), wakes }
    }

    fn find_or_new(&mut self, to: SocketAddr) -> Option<usize> {
        let at = self.groups.iter().position(|group| group.to == to);
        at.or_else(|| {
            let is_unused = |group: &Group| group.members.is_empty();
            let at = match self.groups.len() {
                GROUPS_MAX => self.groups.iter().position(is_unused)?,
                len => len,
            };
            if at < self.groups.len() {
                self.groups.remove(at);
            }
            self.turn = self.turn.wrapping_add(1);
            self.groups.push(Group::new(to));
            Some(self.groups.len() - 1)
        })
    }
}

impl Group {
    fn new(to: SocketAddr) -> Self {
        Self {
            to,
            source: None,
            generation: 0,
            members: Vec::new(),
            audience: Audience::Unknown,
            until_ns: 0,
            next_ns: 0,
            looks: 0,
            unverified: 0,
            is_explained: false,
        }
    }

    /// See [`Groups::settle`].
    fn settle(&mut self, turn: &mut u32) -> bool {
        let settled = self.members.iter_mut().map(|member| member.settle(turn));
        settled.filter(|is_settled| !is_settled).count() == 0
    }

    /// One datagram more is about to go through the kernel. Returns the members that count it, a bit for each.
    fn count(&mut self, turn: &mut u32) -> u16 {
        let members = self.members.iter_mut().enumerate();
        members.fold(0, |counted, (at, member)| counted | u16::from(member.count(turn)) << at)
    }

    /// The kernel has not taken one that these count.
    fn uncount(&mut self, counted: u16) {
        let members = self.members.iter_mut().enumerate();
        members.filter(|(at, _)| counted >> at & 1 != 0).for_each(|(_, member)| member.uncount());
    }

    /// Looks for mailboxes on the group's port.
    fn search(&mut self, directory: &Directory, generation: u32, source: &Source<'_>) {
        let Source { socket, fd, me } = *source;
        if socket.rendezvous.port.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.generation = generation;
        self.audience = Audience::Unknown;
        self.until_ns = 0;
        let Some((all, count)) = directory.find::<MEMBERS_MAX>(self.to.port()) else {
            return self.members.clear();
        };
        let all = all.get(..count).unwrap_or(&[]);
        let is_there = |cookie| all.iter().any(|found| found.cookie == cookie);
        self.members.retain(|member| is_there(member.cookie) && !member.is_lost());
        for found in all {
            if self.members.iter().any(|member| member.cookie == found.cookie) {
                continue;
            }
            self.source = self.source.or_else(|| source_of(socket, fd, self.to));
            let Some(source) = self.source else { return self.members.clear() };
            let Some((mailbox, _)) = directory::open(fd, found.cookie) else { continue };
            let is_v6 = mailbox.domain() == libc::AF_INET6;
            let is_fit = if self.to.is_ipv6() { is_v6 } else { !mailbox.is_v6_only() };
            if !is_fit || mailbox.port() != self.to.port() {
                continue;
            }
            let Some(way) = Way::new(mailbox, me, source) else { continue };
            let group = Some(self.to.ip());
            let Some(place) = way.mailbox.enter(me, source, group) else { continue };
            for from in [Shows::Nothing, Shows::Groups] {
                way.mailbox.set_shows(from, Shows::Wanted);
            }
            self.members.push(Member::new(way, found.cookie, place));
        }
        self.members.sort_by_key(|member| member.cookie);
    }

    /// Whether every socket that could get a datagram has a mailbox that may be used.
    fn is_ready(&mut self, listing: &mut Listing) -> bool {
        let now = raw::now_ns();
        if now >= self.until_ns {
            if now < self.next_ns || !self.members.iter().any(Member::is_reached) {
                return false;
            }
            self.ask_kernel(listing);
        }
        let mut count = 0;
        for member in &mut self.members {
            if member.is_lost() {
                return false;
            }
            let expects = member.expects();
            member.is_open = member.is_listed && expects == Expects::All;
            let is_right = match expects {
                Expects::Nothing => true,
                Expects::Unknown => !member.is_listed,
                Expects::All => !member.is_listed || member.is_reached(),
            };
            if !is_right {
                return false;
            }
            count += usize::from(member.is_open);
        }
        self.audience == Audience::Known && count > 0
    }

    /// Asks the kernel which sockets could get the group's datagrams.
    fn ask_kernel(&mut self, listing: &mut Listing) {
        let start = raw::now_ns();
        self.members.iter_mut().for_each(|member| member.is_listed = false);
        let Self { members, .. } = self;
        let mut is_mixed = false;
        let is_read = self.source.and_then(|source| {
            listing.each_candidate(self.to, source, |inode| {
                let mut members = members.iter_mut();
                match members.find(|member| member.way.mailbox.inode() == inode) {
                    Some(member) => member.is_listed = true,
                    None => is_mixed = true,
                }
            })
        });
        self.audience = match is_read {
            Some(()) if !is_mixed => Audience::Known,
            Some(()) | None => Audience::Mixed,
        };
        let pause = raw::now_ns().saturating_sub(start).saturating_mul(READ_SHARE);
        let pause = pause.min(PAUSE_MAX_NS);
        self.next_ns = start.saturating_add(pause);
        self.until_ns = start.saturating_add(BELIEVED_NS.max(pause));
    }

    /// Prints once that the mailboxes are used, if the log's level says so.
    fn explain(&mut self, fd: c_int) {
        if !self.is_explained && config::get().explain {
            let count = self.members.iter().filter(|member| member.is_open).count();
            let text =
                format!("fd {fd} sends to {}: {count} members, all by shared memory", self.to);
            config::get().log.print(Level::Info, &text);
        }
        self.is_explained = true;
    }

    /// The way to the only member that gets the group's datagrams, if there is but one.
    fn only(&mut self) -> Option<&mut Way> {
        let mut open = self.members.iter_mut().filter(|member| member.is_open);
        let only = open.next()?;
        open.next().is_none().then_some(&mut only.way)
    }

    /// Puts a datagram into all mailboxes, or into none: `Asleep` and `Gone` if it is to go through
    /// the kernel.
    fn transmit(&mut self, parts: &[libc::iovec]) -> Pushed {
        if let Some(only) = self.only() {
            return only.send(parts);
        }
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOK) {
            let is_read = |way: &Way| way.mailbox.is_read(way.pushed_to);
            let is_open = |member: &&Member| member.is_open;
            let mut ways = self.members.iter().filter(is_open).map(|member| &member.way);
            if ways.clone().all(is_read) {
                if self.unverified >= VERIFY {
                    self.unverified = 0;
                    return Pushed::Asleep;
                }
            } else if ways.any(|way| !is_read(way) && way.is_dead()) {
                return Pushed::Gone;
            }
        }
        let mut rounds = 0;
        loop {
            let pushed = self.put(parts, rounds < FULL_ROUNDS);
            match pushed {
                Pushed::Full => {
                    rounds += 1;
                    std::hint::spin_loop();
                }
                Pushed::At(_) => {
                    self.unverified = self.unverified.saturating_add(1);
                    return pushed;
                }
                Pushed::Asleep | Pushed::Gone => return pushed,
            }
        }
    }

    /// One attempt. `Full` if it is worth trying again, since one that is full is being read.
    fn put(&mut self, parts: &[libc::iovec], waits: bool) -> Pushed {
        let from = IoCursor::new(parts);
        let len = from.remaining();
        let mut ends = [None; MEMBERS_MAX];
        {
            let mut reserved = [const { None::<Reserved<'_>> }; MEMBERS_MAX];
            let open = self.members.iter().filter(|member| member.is_open);
            for (Member { way, .. }, place) in open.clone().zip(&mut reserved) {
                match way.mailbox.reserve(len) {
                    Ok(here) if here.is_full() && waits && way.mailbox.moves() => {
                        return Pushed::Full;
                    }
                    Ok(here) => *place = Some(here),
                    Err(refused) => return refused,
                }
            }
            for (Member { way, .. }, here) in open.clone().zip(&reserved) {
                let (Some(here), Some(sender)) = (here, way.sender()) else {
                    return Pushed::Gone;
                };
                if here.is_full() {
                    way.mailbox.stalls(len);
                }
                // The kernel says what there is to say about a buffer that is none.
                if !here.fill(way.place, sender.given(), from.clone()) {
                    return Pushed::Asleep;
                }
            }
            for (here, end) in reserved.into_iter().zip(&mut ends) {
                *end = here.and_then(Reserved::publish);
            }
        }
        let open = self.members.iter_mut().filter(|member| member.is_open);
        for (member, end) in open.zip(ends) {
            member.way.pushed_to = end.unwrap_or(member.way.pushed_to);
        }
        Pushed::At(0)
    }
}

/// By which interface a socket sends to groups is not known.
pub(super) const BY_UNKNOWN: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, UdpSocket};
    use std::os::fd::AsRawFd;

    use super::super::mailbox::{Mailbox, Sent};
    use super::*;
    use crate::share::processes;
    use crate::socket::state::Kind;

    const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));

    fn source() -> SocketAddr {
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 5)
    }

    fn member(of: &str) -> Member {
        let way = Way::new(Mailbox::of_test(of, 7), 1, source()).expect("a way");
        let place = way.mailbox.enter(1, source(), Some(GROUP)).expect("a place");
        Member::new(way, 7, place)
    }

    fn given(member: &Member) -> u32 {
        member.way.sender().map_or(0, Sender::given)
    }

    /// Goal: a mailbox is one member, and keeps its place among the others, whatever is written into it as its number.
    #[test]
    fn a_mailbox_that_changes_its_cookie_stays_the_member_that_it_is() {
        let socket = processes::create(Kind::Datagram).expect("a socket");
        socket.rendezvous.port.store(1, Ordering::Relaxed);
        let owners = [0, 0].map(|port| UdpSocket::bind(("127.0.0.1", port)).expect("a socket"));
        let fds = owners.each_ref().map(AsRawFd::as_raw_fd);
        let port = owners[0].local_addr().expect("an address").port();
        let directory = directory::of(fds[0]).expect("a directory");
        let make = |fd| directory::make(directory, fd, port, libc::AF_INET, 1 << 17);
        let made = fds.map(|fd| make(fd).expect("a mailbox"));
        let mut group = Group::new(SocketAddr::new(GROUP, port));
        group.source = Some(source());
        let mut search = |generation| {
            group.search(directory, generation, &Source { socket, fd: fds[0], me: 1 });
            group.members.iter().map(|member| member.cookie).collect::<Vec<_>>()
        };
        let cookies = made.each_ref().map(|(mailbox, _)| mailbox.cookie());
        let first = search(1);
        made[0].0.set_cookie(u64::MAX);
        let second = search(2);
        for ((_, path), cookie) in made.into_iter().zip(cookies) {
            directory.remove(port, cookie);
            raw::unlink(&path);
        }
        assert_eq!((first, second), (cookies.to_vec(), cookies.to_vec()));
    }

    /// Goal: a datagram that the kernel refuses is taken off a member where it was counted, and nowhere else, whatever the
    /// member has said meanwhile.
    #[test]
    fn a_refused_datagram_is_taken_off_the_members_that_count_it() {
        let mut group = Group::new(SocketAddr::new(GROUP, 9));
        group.members = vec![member("uncounted")];
        let turn = &mut 0;
        let says = |group: &Group, expects| group.members[0].way.mailbox.expect(|_, _| expects);
        let counts = |group: &Group| (given(&group.members[0]), group.members[0].guessed);
        let first = group.count(turn);
        assert_eq!((first, counts(&group)), (1, (1, 1)));
        // Refused while it is known to be for another: then it is taken off with the others that were.
        says(&group, Some(false));
        group.uncount(first);
        assert_eq!(counts(&group), (0, 0));
        // Two threads, of which both are refused.
        says(&group, Some(true));
        let both = [group.count(turn), group.count(turn)];
        assert_eq!(counts(&group), (2, 0));
        both.into_iter().for_each(|counted| group.uncount(counted));
        assert_eq!(counts(&group), (0, 0));
        let _ = group.count(turn);
        // It is not for this one, and is by the time at which it is refused.
        says(&group, Some(false));
        let refused = group.count(turn);
        says(&group, Some(true));
        group.uncount(refused);
        assert_eq!((refused, counts(&group)), (0, (1, 0)));
        // By the network: not counted either.
        group.members[0].way.mailbox.note(source(), Sent::Group(GROUP, LOOPBACK + 1), 0);
        let refused = group.count(turn);
        group.uncount(refused);
        assert_eq!(counts(&group), (1, 0));
        // What was guessed and is taken off changes the turn.
        let mut group = Group::new(SocketAddr::new(GROUP, 9));
        group.members = vec![member("settled")];
        let _ = group.count(turn);
        says(&group, Some(false));
        assert_eq!(*turn, 0);
        assert!(group.settle(turn) && *turn == 1 && counts(&group) == (0, 0));
    }
}
