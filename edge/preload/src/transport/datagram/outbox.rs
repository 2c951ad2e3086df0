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
use super::mailbox::{Sender, Sleep};
use super::ways::{self, Counted, Settling, Verdict, Way, Ways};
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
/// So few bytes may go by a shorter way.
const SHORT: usize = 512;

/// What is known about one destination.
#[derive(Debug)]
struct Route {
    to: SocketAddr,
    /// What that is in the directory of the host.
    key: u16,
    /// What the directories, of this namespace and of the host, said when they were last searched.
    generations: [u32; 2],
    ways: Ways,
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
    /// `is_awaited`: it is of account when the kernel has been given it.
    Kernel {
        counted: Option<Counted>,
        is_awaited: bool,
        to: Option<SocketAddr>,
        wakes: Option<Sleep>,
    },
}

impl Route {
    fn new(to: SocketAddr) -> Self {
        let (ways, strangers, source) = (Ways::default(), Vec::new(), None);
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
            self.ways.0.clear();
            self.strangers.clear();
            return;
        };
        let all = all.get(..count).unwrap_or(&[]);
        let is_there = |cookie| all.iter().any(|found| found.cookie == cookie);
        self.ways.0.retain(|way| is_there(way.mailbox.cookie()));
        self.strangers.retain(|stranger| is_there(stranger.cookie()));
        for way in &self.ways.0 {
            way.sender().into_iter().for_each(Sender::doubt);
        }
        self.source = None;
        for Found { cookie, network } in all.iter().copied() {
            if self.ways.0.iter().any(|way| way.mailbox.cookie() == cookie)
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
                self.ways.0.extend(Way::new(mailbox, me, source));
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
                self.ways.0.extend(Way::new(mailbox, me, source));
            }
        }
        let is_known = |stranger: &Stranger| {
            self.ways.0.iter().any(|way| way.mailbox.cookie() == stranger.cookie())
        };
        self.strangers.retain(|stranger| !is_known(stranger));
    }

    /// All is found out again.
    fn forget(&mut self) {
        self.ways.0.clear();
        self.strangers.clear();
        self.generations = [0; 2];
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
        for way in self.routes.iter_mut().flatten().flat_map(|route| &mut route.ways.0) {
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
                && route.ways.0.len() > 1
                && route.ways.is_guessed()
            {
                is_settled &= route.ways.settle();
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
                    route.strangers.is_empty()
                        && route.ways.0.iter().all(|way| way.mailbox.is_dead())
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
        match route.ways.0.as_mut_slice() {
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
        let kernel = Plan::Kernel { counted: None, is_awaited: false, to, wakes: None };
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
        match route.ways.plan(parts, is_special) {
            Verdict::Delivered => Plan::Done,
            Verdict::Dropped => Plan::Dropped,
            Verdict::Kernel { counted, wakes, is_awaited } => {
                Plan::Kernel { counted: Some(counted), is_awaited, to: Some(to), wakes }
            }
            Verdict::Forget { is_dead } => {
                if is_dead && let Some(way) = route.ways.confirmed() {
                    resend(way, fd, to);
                }
                route.forget();
                kernel
            }
        }
    }
}

/// Sends again, through the kernel, what will not be read here: the socket that has the port now gets
/// it, or none does, and the kernel says so.
fn resend(way: &Way, fd: c_int, to: SocketAddr) {
    let domain = raw::option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).unwrap_or(0);
    let (storage, len) = address::write(to, domain);
    way.mailbox.take_back(way.place, |bytes| {
        let _ = raw::send_to(fd, bytes, &storage, len);
    });
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
    let (counted, is_awaited, to, wakes) = match plan {
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
        Plan::Kernel { counted, is_awaited, to, wakes } => (counted, is_awaited, to, wakes),
    };
    let given = to.zip(counted);
    let mut giving = Giving { socket, given, is_awaited, wakes };
    let answer = through_kernel(socket, kernel);
    let errno = raw::errno();
    if let Some(to) = to
        && giving.ends(answer.is_ok())
    {
        ways::let_settle(blocks(socket, waits), || {
            let held = socket.sending.hold();
            ours.outbox(&held, |outbox| {
                outbox.find(to).map_or(Settling::Done, |route| route.ways.settling())
            })
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

/// A datagram that is being given to the kernel, which has not taken it if the thread is cancelled there. A
/// `siglongjmp` out of the call skips this: the datagram stays counted.
struct Giving<'a> {
    socket: &'a Socket,
    /// Where to, and at which mailboxes it is counted.
    given: Option<(SocketAddr, Counted)>,
    is_awaited: bool,
    wakes: Option<Sleep>,
}

impl Giving<'_> {
    /// The kernel has been given it; whether it has taken it. Returns whether [`ways::let_settle`] is due.
    fn ends(&mut self, is_taken: bool) -> bool {
        let Self { socket, is_awaited, wakes, .. } = *self;
        let Some(((to, counted), ours)) = self.given.take().zip(socket.udp_attachment()) else {
            return false;
        };
        if !is_awaited && is_taken && wakes.is_none() {
            return false;
        }
        let held = socket.sending.hold();
        ours.outbox(&held, |outbox| match outbox.find(to) {
            Some(route) => route.ways.gave(counted, is_taken, wakes),
            None => {
                outbox.groups.gave(to, counted, is_taken, wakes);
                false
            }
        })
    }
}

impl Drop for Giving<'_> {
    fn drop(&mut self) {
        self.ends(false);
    }
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
        let way = to.or(peer).and_then(|to| outbox.find(to)?.ways.confirmed());
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
            let mut is_lost = false;
            for way in &mut route.ways.0 {
                if way.is_lost() {
                    resend(way, fd, to);
                    is_lost = true;
                }
            }
            if is_lost {
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
