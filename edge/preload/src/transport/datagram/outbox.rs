//! Sending datagrams: into the receiver's mailbox, or through the kernel.
//!
//! Everything goes through the kernel until the receiver has been seen to get it. From then on the
//! mailbox is used while the receiver is awake; every so often a datagram goes through the kernel
//! nevertheless, so that changes of which we hear nothing (a firewall, another socket on the port)
//! take effect here as well.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;

use super::across::{self, Stranger};
use super::directory::{self, Directory, Found};
use super::group::{self, Groups};
use super::mailbox::{Mailbox, Place, Pushed, Sender, Sleep};
use crate::base::iovec::IoCursor;
use crate::base::raw::{self, Answer, Errno};
use crate::base::thread::Here;
use crate::base::{address, config, thread};
use crate::socket::counters::add;
use crate::socket::state::Socket;
use crate::socket::table::SocketRef;
use crate::transport::xdp;

/// Candidates for one destination; if there are more, it stays with the kernel.
const CANDIDATES_MAX: usize = 4;
/// Destinations that one socket knows mailboxes of, at a time.
const ROUTES: usize = 64;
/// Places where one destination may be.
const PROBES: usize = 4;
/// The most that a datagram of IPv4 carries.
pub(super) const LEN_MAX: usize = 65_507;
/// What is written before it is looked whether the readers are awake: copying more in vain costs more.
const EAGER_LEN: usize = 2048;
/// So few bytes may go by a shorter way.
const SHORT: usize = 512;
/// After so many datagrams one goes through the kernel.
pub(super) const VERIFY: u32 = 4096;
/// Datagrams that are sent between two looks at whether the receiver reads them.
pub(super) const LOOK: u32 = 64;
/// What is put into a mailbox whose reader has been woken and does not run yet, at most, and after how many, or how
/// long, it is woken again meanwhile: the kernel may have lost what was to wake it, or have brought it elsewhere.
const UNHEARD_MAX: u32 = 512;
const KNOCK_AGAIN: u32 = 128;
const KNOCK_AGAIN_NS: u64 = 1_000_000;
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
}

impl Drop for Way {
    fn drop(&mut self) {
        if !self.is_copied {
            self.mailbox.leave(self.place);
        }
    }
}

/// What is known about one destination.
#[derive(Debug)]
struct Route {
    to: SocketAddr,
    /// What that is in the directory of the host.
    key: u16,
    /// What the directories, of this namespace and of the host, said when they were last searched.
    generations: [u32; 2],
    ways: Vec<Way>,
    /// It is in another namespace, if it is on this host: which mailboxes may be its, and where datagrams to it
    /// come from.
    is_elsewhere: bool,
    strangers: Vec<Stranger>,
    source: Option<SocketAddr>,
}

/// The ways of one socket.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) cookie: u64,
    routes: Vec<Option<Box<Route>>>,
    /// Where the route was that was last looked for.
    last: usize,
    groups: Groups,
    /// Where it is connected to, as of the given turn.
    peer: Option<SocketAddr>,
    peer_turn: u32,
}

/// What is to be done with a datagram.
pub(super) enum Plan {
    /// Nothing more: it has been taken care of.
    Done,
    /// Nothing more: there was no room for it, and it is dropped.
    Dropped,
    /// Through the kernel; there are candidates which have been told of it, or none. It ends that sleep.
    Kernel { is_counted: bool, to: Option<SocketAddr>, wakes: Option<Sleep> },
}

impl Route {
    fn new(to: SocketAddr) -> Self {
        let (ways, strangers, source) = (Vec::new(), Vec::new(), None);
        let (key, generations) = (directory::key(to), [0; 2]);
        Self { to, key, generations, ways, is_elsewhere: false, strangers, source }
    }

    /// Looks for mailboxes of the destination.
    fn search(
        &mut self,
        directory: &Directory,
        generations: [u32; 2],
        socket: &Socket,
        fd: c_int,
        me: u64,
    ) {
        if socket.rendezvous.port.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.generations = generations;
        let [_, elsewhere] = generations;
        self.is_elsewhere = elsewhere != 0 && !address::is_here(fd, self.to);
        let (directory, key) = match directory::host_if_known().filter(|_| self.is_elsewhere) {
            Some(host) => (host, directory::key(self.to)),
            None => (directory, self.to.port()),
        };
        let Some((all, count)) = directory.find::<CANDIDATES_MAX>(key) else {
            self.ways.clear();
            self.strangers.clear();
            return;
        };
        let all = all.get(..count).unwrap_or(&[]);
        let is_there = |cookie| all.iter().any(|found| found.cookie == cookie);
        self.ways.retain(|way| is_there(way.mailbox.cookie()));
        self.strangers.retain(|stranger| is_there(stranger.cookie()));
        for way in &self.ways {
            way.sender().into_iter().for_each(Sender::doubt);
        }
        self.source = None;
        for Found { cookie, network } in all.iter().copied() {
            if self.ways.iter().any(|way| way.mailbox.cookie() == cookie)
                || self.strangers.iter().any(|stranger| stranger.cookie() == cookie)
            {
                continue;
            }
            self.source = self.source.or_else(|| source_of(socket, fd, self.to));
            let (Some(source), Some((mailbox, _))) =
                (self.source, directory::open_in(network, cookie))
            else {
                continue;
            };
            if mailbox.port() != self.to.port() {
                continue;
            }
            if self.is_elsewhere {
                self.strangers.extend(Stranger::new(mailbox, source.ip()));
            } else {
                let sent = socket.counters.tx_os_packets.load(Ordering::Relaxed);
                self.ways.extend(Way::new(mailbox, me, source, sent));
            }
        }
    }

    /// Enters this socket at mailboxes in other namespaces that it has been seen to reach.
    #[cold]
    fn introduce(&mut self, socket: &Socket, fd: c_int, me: u64) {
        self.source = self.source.or_else(|| source_of(socket, fd, self.to));
        let Some(source) = self.source else { return };
        for stranger in &mut self.strangers {
            if let Some(mailbox) = stranger.shown(source.ip(), self.to.ip()) {
                let sent = socket.counters.tx_os_packets.load(Ordering::Relaxed);
                self.ways.extend(Way::new(mailbox, me, source, sent));
            }
        }
        let is_known = |stranger: &Stranger| {
            self.ways.iter().any(|way| way.mailbox.cookie() == stranger.cookie())
        };
        self.strangers.retain(|stranger| !is_known(stranger));
    }

    /// All is found out again.
    fn forget(&mut self) {
        self.ways.clear();
        self.strangers.clear();
        self.generations = [0; 2];
    }

    /// The way that the kernel has been seen to take, if it is one.
    fn confirmed(&mut self) -> Option<&mut Way> {
        let mut confirmed = self.ways.iter_mut().filter(|way| way.is_confirmed());
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
    fn settle(&mut self) -> bool {
        if self.confirmed().is_none() {
            return false;
        }
        for way in self.ways.iter_mut().filter(|way| way.guessed > 0) {
            let guessed = std::mem::take(&mut way.guessed);
            if let Some(sender) = way.sender().filter(|_| !way.is_confirmed()) {
                sender.gave_not(guessed);
            }
        }
        true
    }

    /// One datagram more is about to go through the kernel: to the one that it was last seen to bring
    /// them to, or to whichever.
    fn count(&mut self) {
        let is_known = self.settle();
        for way in self.ways.iter_mut().filter(|way| !is_known || way.is_confirmed()) {
            if let Some(sender) = way.sender() {
                sender.gives();
                way.guessed += u32::from(!is_known);
            }
        }
    }

    /// It has not.
    fn uncount(&mut self) {
        let is_known = self.confirmed().is_some();
        for way in self.ways.iter_mut().filter(|way| !is_known || way.is_confirmed()) {
            if let Some(sender) = way.sender() {
                sender.gave_not(1);
                way.guessed = way.guessed.saturating_sub(1);
            }
        }
    }
}

/// The address that a socket's datagrams to `to` come from.
pub(super) fn source_of(socket: &Socket, fd: c_int, to: SocketAddr) -> Option<SocketAddr> {
    let own = address::name(fd, false)?;
    let port = u16::try_from(socket.rendezvous.port.load(Ordering::Relaxed)).ok()?;
    // Nothing comes from the address of a group, though sockets may be bound to one.
    if !own.ip().is_unspecified() && !own.ip().is_multicast() {
        return Some(SocketAddr::new(own.ip(), port));
    }
    let source = facing_by(to, |probe| {
        if to.ip().is_multicast() {
            group::send_by_same(socket, fd, probe, to.is_ipv4());
        }
    });
    Some(SocketAddr::new(source?.ip(), port))
}

/// The address of this namespace by which `to` is reached.
pub(super) fn facing(to: SocketAddr) -> Option<SocketAddr> {
    facing_by(to, |_| ())
}

/// The same, from a socket that `prepare` has set up.
fn facing_by(to: SocketAddr, prepare: impl FnOnce(c_int)) -> Option<SocketAddr> {
    let domain = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let probe = raw::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC).ok()?;
    prepare(probe);
    let (storage, len) = address::write(to, domain);
    let source = raw::connect(probe, &storage, len).ok().and_then(|_| address::name(probe, false));
    raw::close(probe);
    source
}

/// Whether datagrams to an address may go into the mailboxes of a group.
fn is_group(to: SocketAddr) -> bool {
    address::is_group(to.ip()) && to.port() != 0
}

/// Whether datagrams to an address may ever go into a mailbox.
fn is_unicast(to: SocketAddr) -> bool {
    let is_one = match to.ip() {
        IpAddr::V4(ip) => !ip.is_multicast() && !ip.is_broadcast() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_multicast() && !ip.is_unspecified() && !ip.is_unicast_link_local(),
    };
    is_one && to.port() != 0
}

impl Outbox {
    pub(super) fn new(fd: c_int) -> Self {
        Self::again(directory::cookie(fd).unwrap_or(0))
    }

    /// The same, for the socket of that number.
    pub(super) fn again(cookie: u64) -> Self {
        Self {
            cookie,
            routes: Vec::new(),
            last: 0,
            groups: Groups::default(),
            peer: None,
            peer_turn: u32::MAX,
        }
    }

    /// In a child just forked: it uses the ways of its parent for as long as that has them. Its end, of which mailboxes may
    /// never hear, is not the end of them; where they have ended, it enters by itself.
    pub(super) fn after_fork(&mut self) {
        for way in self.routes.iter_mut().flatten().flat_map(|route| &mut route.ways) {
            way.after_fork();
        }
        self.groups.after_fork();
    }

    /// Where the socket is connected to.
    #[inline]
    fn peer(&mut self, socket: &Socket, fd: c_int) -> Option<SocketAddr> {
        let turn = socket.datagrams.epoch.load(Ordering::Acquire);
        if turn != self.peer_turn {
            self.peer = address::name(fd, true);
            self.peer_turn = turn;
            self.groups.clear();
        }
        self.peer
    }

    fn places(to: SocketAddr) -> impl Iterator<Item = usize> {
        let first = usize::from(to.port());
        (0..PROBES).map(move |step| (first + step) % ROUTES)
    }

    /// What is known about a destination.
    #[inline]
    fn find(&mut self, to: SocketAddr) -> Option<&mut Route> {
        let is_it = |index: &usize| {
            let route = self.routes.get(*index).and_then(Option::as_ref);
            route.is_some_and(|route| route.to == to)
        };
        let index = match self.last {
            last if is_it(&last) => last,
            _ => Self::places(to).find(is_it)?,
        };
        self.last = index;
        self.routes.get_mut(index)?.as_deref_mut()
    }

    /// Finds out for which socket what was sent to single sockets on a port has been. Returns false if that is
    /// not known yet: mailboxes would wait for it that do not get it.
    fn settle(&mut self, port: u16) -> bool {
        let places = Self::places(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port));
        let mut is_settled = true;
        for index in places {
            if let Some(Some(route)) = self.routes.get_mut(index)
                && route.to.port() == port
                && route.ways.len() > 1
                && route.ways.iter().any(|way| way.guessed > 0)
            {
                is_settled &= route.settle();
            }
        }
        is_settled
    }

    /// The same, and made if need be and if there is room for it.
    fn find_or_new(&mut self, to: SocketAddr) -> Option<&mut Route> {
        if self.find(to).is_none() {
            if self.routes.is_empty() {
                self.routes.resize_with(ROUTES, || None);
            }
            let is_free = |index: &usize| match self.routes.get(*index) {
                Some(Some(route)) => {
                    route.strangers.is_empty() && route.ways.iter().all(|way| way.mailbox.is_dead())
                }
                Some(None) => true,
                None => false,
            };
            let index = Self::places(to).find(is_free)?;
            let route = Route::new(to);
            *self.routes.get_mut(index)? = Some(Box::new(route));
        }
        self.find(to)
    }

    /// Delivers a short datagram in the plainest case: to where the last one went, and as that did, since nothing has
    /// changed. `to` is where the call says, if it says so. False: [`Self::plan`] decides, and nothing has happened.
    #[inline]
    fn send_short(
        &mut self,
        here: Here,
        socket: &Socket,
        part: &libc::iovec,
        to: Option<&SocketAddr>,
        directory: &Directory,
    ) -> bool {
        if socket.datagrams.epoch.load(Ordering::Acquire) != self.peer_turn
            || !self.groups.is_empty()
        {
            return false;
        }
        let Some(Some(route)) = self.routes.get_mut(self.last) else { return false };
        let near = directory.generation(route.to.port());
        let there = directory::host_if_known().map_or(0, |host| host.generation(route.key));
        let is_as_before = to.or(self.peer.as_ref()) == Some(&route.to)
            && route.generations == [near, there]
            && route.generations != [0; 2]
            && route.strangers.is_empty();
        match route.ways.as_mut_slice() {
            [way] if is_as_before => way.send_short(here, part),
            [] | [..] => false,
        }
    }

    /// Decides about one datagram, and delivers it if it can.
    fn plan(
        &mut self,
        socket: &Socket,
        fd: c_int,
        parts: &[libc::iovec],
        to: Option<SocketAddr>,
        is_special: bool,
        directory: &Directory,
    ) -> Plan {
        let peer = self.peer(socket, fd);
        let to = to.or(peer).filter(|to| is_unicast(*to) || is_group(*to));
        let kernel = Plan::Kernel { is_counted: false, to, wakes: None };
        let Some(to) = to else { return kernel };
        let here = directory.generation(to.port());
        let me = self.cookie;
        if is_group(to) {
            if here == 0 {
                return kernel;
            }
            let is_settled = self.settle(to.port()) && self.groups.settle(to.port());
            let is_special = is_special || !is_settled;
            let source = group::Source { socket, fd, me };
            return self.groups.plan(&source, parts, to, is_special, directory);
        }
        let host = directory::host_if_known();
        let generations = [here, host.map_or(0, |host| host.generation(directory::key(to)))];
        if generations == [0; 2] {
            return kernel;
        }
        let is_special = is_special || !self.groups.settle(to.port());
        let Some(route) = self.find_or_new(to) else { return kernel };
        if route.generations != generations {
            route.search(directory, generations, socket, fd, me);
        }
        if !route.strangers.is_empty() {
            route.introduce(socket, fd, me);
        }
        if !is_special && let Some(way) = route.confirmed() {
            match way.send(parts) {
                Pushed::At(_) => return Plan::Done,
                Pushed::Full => return Plan::Dropped,
                Pushed::Asleep => {}
                Pushed::Gone => {
                    if way.is_dead() {
                        way.resend(fd, to);
                    }
                    route.forget();
                    return kernel;
                }
            }
        }
        // Another sender may have our place by now.
        if route.ways.iter().any(|way| way.sender().is_none()) {
            route.forget();
            return kernel;
        }
        route.count();
        let wakes = route.confirmed().and_then(|way| way.mailbox.sleep());
        Plan::Kernel { is_counted: true, to: Some(to), wakes }
    }
}

impl Way {
    /// In a child just forked; see [`Outbox::after_fork`].
    pub(super) fn after_fork(&mut self) {
        (self.guessed, self.is_copied) = (0, true);
    }

    /// Our entry there, unless another sender has its place by now.
    #[inline]
    pub(super) fn sender(&self) -> Option<&Sender> {
        self.mailbox.entered(self.place)
    }

    /// Whether the kernel has been seen to bring our datagrams there.
    #[inline]
    fn is_confirmed(&self) -> bool {
        self.mailbox.is_confirmed(self.place)
    }

    /// Enters a socket as a sender, from `source`, that has sent so many datagrams through the kernel.
    pub(super) fn new(mailbox: Mailbox, me: u64, source: SocketAddr, sent: u64) -> Option<Self> {
        let place = mailbox.enter(me, source, None, sent)?;
        let pushed_to = mailbox.head();
        let (unverified, guessed, looks) = (0, 0, 0);
        let (is_awake, woken, woken_ns, unheard) = (false, None, 0, 0);
        Some(Self {
            mailbox,
            place,
            is_copied: false,
            unverified,
            guessed,
            pushed_to,
            looks,
            is_awake,
            woken,
            woken_ns,
            unheard,
        })
    }

    /// What has just been given to the kernel ends a sleep. Of no account if that is one of another mailbox's readers:
    /// another way may have been taken meanwhile.
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
    fn send_short(&mut self, here: Here, part: &libc::iovec) -> bool {
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

    /// Sends again, through the kernel, what will not be read here: the socket that has the port now gets
    /// it, or none does, and the kernel says so.
    fn resend(&self, fd: c_int, to: SocketAddr) {
        let domain = raw::option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).unwrap_or(0);
        let (storage, len) = address::write(to, domain);
        self.mailbox.take_back(self.place, |bytes| {
            let _ = raw::send_to(fd, bytes, &storage, len);
        });
    }
}

/// Sends one datagram: `to` is where the call says, if it says so. `is_special`: it asks for what
/// only the kernel has. `waits`: it may wait for room. `kernel` is the real call.
pub(crate) fn send(
    socket: &SocketRef,
    fd: c_int,
    parts: &[libc::iovec],
    to: Option<SocketAddr>,
    is_special: bool,
    waits: bool,
    kernel: impl FnOnce() -> Answer,
) -> Answer {
    raw::cancellation_point();
    if let [part] = parts
        && !is_special
        && send_short(socket, part, to.as_ref())
    {
        add(&socket.counters.tx_packets, 1);
        add(&socket.counters.tx_bytes, part.iov_len);
        return Ok(part.iov_len);
    }
    if socket.datagrams.is_kernel_only.load(Ordering::Acquire) {
        return through_kernel(socket, kernel);
    }
    if let Some(frames) = xdp::get(socket, fd).filter(|_| !is_special)
        && let Some(len) = frames.send(socket, fd, parts, to, waits)
    {
        add(&socket.counters.tx_packets, 1);
        add(&socket.counters.tx_bytes, len);
        return Ok(len);
    }
    let ours = socket.udp_attachment_or_new(fd);
    let Some((ours, directory)) = ours.and_then(|ours| Some((ours, ours.directory?))) else {
        return through_kernel(socket, kernel);
    };
    let held = socket.sending.hold();
    let plan =
        ours.outbox(&held, |outbox| outbox.plan(socket, fd, parts, to, is_special, directory));
    drop(held);
    let (is_counted, to, wakes) = match plan {
        Plan::Dropped if config::get().says_full && !blocks(socket, waits) => {
            add(&socket.counters.tx_eagain, 1);
            socket.want_room();
            return Err(Errno::AGAIN);
        }
        Plan::Done | Plan::Dropped => {
            let len = IoCursor::new(parts).remaining();
            add(&socket.counters.tx_packets, 1);
            add(&socket.counters.tx_bytes, len);
            return Ok(len);
        }
        Plan::Kernel { is_counted, to, wakes } => (is_counted, to, wakes),
    };
    let answer = through_kernel(socket, kernel);
    let errno = raw::errno();
    if answer.is_err() && is_counted {
        let held = socket.sending.hold();
        ours.outbox(&held, |outbox| {
            let Some(to) = to else { return };
            match outbox.find(to) {
                Some(route) => route.uncount(),
                None => outbox.groups.uncount(to),
            }
        });
    }
    if let (Ok(_), Some(sleep), Some(to)) = (&answer, wakes, to) {
        let held = socket.sending.hold();
        ours.outbox(&held, |outbox| match outbox.find(to).map(Route::confirmed) {
            Some(Some(way)) => way.wakes(sleep),
            Some(None) => {}
            None => outbox.groups.wakes(to, sleep),
        });
    }
    if answer.is_ok() {
        let port = u16::try_from(socket.rendezvous.port.load(Ordering::Relaxed)).unwrap_or(0);
        if port == 0 || directory.generation(port) == 0 {
            announce(socket, fd, directory);
        }
        let sent = socket.counters.tx_os_packets.load(Ordering::Relaxed);
        if sent.is_power_of_two()
            && config::get().reaches_across
            && let Some(to) = to
            && let Some(from) = source_of(socket, fd, to)
        {
            across::announce(from, to);
        }
    }
    raw::set_errno(errno);
    answer
}

/// Delivers a short datagram in the plainest case; see [`Outbox::send_short`].
#[inline]
fn send_short(socket: &Socket, part: &libc::iovec, to: Option<&SocketAddr>) -> bool {
    if !(1..=SHORT).contains(&part.iov_len)
        || socket.datagrams.is_kernel_only.load(Ordering::Acquire)
        || !xdp::has_none(socket)
    {
        return false;
    }
    let Some(ours) = socket.udp_attachment() else { return false };
    let Some(directory) = ours.directory else { return false };
    let held = socket.sending.hold();
    ours.outbox(&held, |outbox| outbox.send_short(held.here(), socket, part, to, directory))
}

/// Whether a call waits that may.
fn blocks(socket: &Socket, waits: bool) -> bool {
    waits && !socket.flags.is_nonblocking.load(Ordering::Relaxed)
}

/// Goes the way of a send as far as the mailbox that it would write to. Returns whether there is one.
pub(crate) fn warm(socket: &SocketRef, fd: c_int, to: Option<SocketAddr>) -> bool {
    let Some(ours) = socket.udp_attachment() else { return false };
    let held = socket.sending.hold();
    ours.outbox(&held, |outbox| {
        let peer = outbox.peer(socket, fd);
        let way = to.or(peer).and_then(|to| outbox.find(to)?.confirmed());
        way.is_some_and(|way| {
            way.mailbox.prepare(way.pushed_to);
            std::hint::black_box(way.mailbox.head());
            true
        })
    })
}

fn through_kernel(socket: &Socket, kernel: impl FnOnce() -> Answer) -> Answer {
    let answer = kernel();
    match answer {
        Ok(len) => {
            thread::note_woken();
            add(&socket.counters.tx_os_packets, 1);
            add(&socket.counters.tx_os_bytes, len);
        }
        Err(Errno::AGAIN) => socket.want_room(),
        Err(_) => socket.note_error_taken(),
    }
    answer
}

/// The socket has got a port: receivers may look for it there.
#[cold]
fn announce(socket: &Socket, fd: c_int, directory: &Directory) {
    if let Some(own) = address::name(fd, false).filter(|own| own.port() != 0) {
        socket.rendezvous.port.store(own.port().into(), Ordering::Relaxed);
        directory.announce(own.port());
    }
}

/// Before a sleep, or when there is nothing to read: has a receiver died that has not read what was
/// sent? Then the kernel gets it, and may have something to say about it.
pub(crate) fn mind(socket: &Socket, fd: c_int) {
    let Some(ours) = socket.udp_attachment().filter(|ours| ours.directory.is_some()) else {
        return;
    };
    let held = socket.sending.hold();
    ours.outbox(&held, |outbox| {
        for route in outbox.routes.iter_mut().flatten() {
            let to = route.to;
            let is_lost = |way: &Way| !way.mailbox.is_read(way.pushed_to) && way.mailbox.is_dead();
            if route.ways.iter().any(is_lost) {
                route.ways.iter().filter(|way| is_lost(way)).for_each(|way| way.resend(fd, to));
                route.forget();
            }
        }
    });
}

/// The socket does not send through mailboxes for the time being: they are told so.
pub(crate) fn forget(socket: &Socket) {
    let Some(ours) = socket.udp_attachment() else { return };
    let held = socket.sending.hold();
    ours.outbox(&held, |outbox| {
        outbox.routes.clear();
        outbox.groups.clear();
    });
}
