//! Offers: how the two ends of a connection come to have rings in common.
//!
//! The end that connected makes a file with the rings, named after the network namespace and both
//! addresses, as soon as the kernel's connection stands; the end that accepted finds it there. If
//! either is not one of us, there is no file, or it is not taken, and the connection stays the
//! kernel's. To another namespace, where addresses mean something else, the file is announced: see `path_proof.rs`.
//! Where files lie is `rendezvous.rs`.
//!
//! # Safety
//!
//! A file that is found is mapped for as long as it is, its header is checked before it
//! is used, and its length is compared with what the header says.

use std::ffi::{CStr, CString, c_int};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use adverb_shm::alive;
use adverb_shm::file::Expect;
use adverb_switchover::{Connection, End, Leaver, Route, Waiters};
use adverb_sys::random;

use crate::base::raw::{self, Errno};
use crate::base::shelter::Mapping;
use crate::base::{address, config};
use crate::socket::parts::{Rendezvous, Traffic};
use crate::socket::state::{Reason, Socket};
use crate::socket::{changes, history, policy};
use crate::transport::rendezvous::{self, Name};
use crate::transport::ring::Segment;
use crate::transport::xdp::streams;
use crate::transport::{bell, path_proof, ports};

/// A name for a connection: both addresses, and the namespaces they are addresses in.
fn name(space: u64, client: SocketAddr, server: SocketAddr) -> [u64; 2] {
    let mut name = Name::of_processes().and(&space.to_le_bytes());
    for end in [client, server] {
        name = match end.ip() {
            IpAddr::V4(addr) => name.and(&addr.octets()),
            IpAddr::V6(addr) => name.and(&addr.octets()),
        };
        name = name.and(&end.port().to_be_bytes());
    }
    name.0
}

fn file(name: [u64; 2]) -> Option<CString> {
    let [a, b] = name;
    rendezvous::path(&format!("{a:016x}{b:016x}"))
}

/// The addresses of a connection, its own first.
fn ends(fd: c_int) -> Option<(SocketAddr, SocketAddr)> {
    Some((address::name(fd, false)?, address::name(fd, true)?))
}

/// Whether both ends of a connection with these addresses are in one namespace: if not, what says so is
/// a probe.
fn is_near(ours: SocketAddr, theirs: SocketAddr) -> bool {
    ours.ip() == theirs.ip() || theirs.ip().is_loopback()
}

/// The end that connected, to `theirs`: offers rings, if the peer is one that looks for them.
pub(crate) fn offer(socket: &Socket, fd: c_int, theirs: SocketAddr) {
    socket.set_end(End::Client);
    if streams::adopt(socket, fd) || socket.is_reset() {
        return;
    }
    if rendezvous::place().is_none() {
        return socket.leave_to_kernel(Reason::NoPlace);
    }
    let ours = || address::name(fd, false);
    let is_near = theirs.ip().is_loopback() || ours().is_some_and(|ours| is_near(ours, theirs));
    if is_near && !ports::listens(theirs.port()) {
        return socket.leave_to_kernel(Reason::PeerSilent);
    }
    if !is_near && !path_proof::request(theirs) {
        return socket.leave_to_kernel(Reason::PeerElsewhere);
    }
    let destination = history::destination(theirs);
    socket.rendezvous.destination.store(destination, Ordering::Relaxed);
    if !policy::insists(socket) && !history::is_worth(destination, raw::now_ns()) {
        return socket.leave_to_kernel(Reason::ShortLived);
    }
    let (Some(ours), Some(space)) = (ours(), rendezvous::space(fd)) else {
        return socket.leave_to_kernel(Reason::PeerElsewhere);
    };
    let name = name(space, ours, theirs);
    // If this process is killed while it makes them, others know where they are.
    store_name(socket, name);
    socket.rendezvous.key.store(rendezvous::cookie(fd), Ordering::Relaxed);
    if is_near {
        ports::count_offer(socket, theirs.port());
    }
    match make(name, fd) {
        Some(segment) => {
            if !is_near {
                segment.address(random::number(), ours, theirs);
                send_probe(&segment, ours, theirs);
            }
            remember(socket, fd, name, &segment);
            socket.attach(segment);
            socket.traffic.kernel_count.store(0, Ordering::Relaxed);
            socket.set_reason(Reason::Offered);
            socket.set_route(Route::Offered);
            prepare_kernel_socket(socket, fd);
        }
        None => {
            ports::discount_offer(socket);
            socket.leave_to_kernel(Reason::NoRoom);
        }
    }
}

/// Tells the other end of an offer that it cannot find.
fn send_probe(segment: &Segment, ours: SocketAddr, theirs: SocketAddr) {
    let secret = segment.header().secret.load(Ordering::Relaxed);
    if secret != 0 && segment.page().is_offered() {
        path_proof::probe(ours, theirs, segment.name(), secret);
    }
}

/// The same, later: the probe socket may have been opened since, or a probe been lost. Returns whether the offer
/// is one that has to be brought.
pub(crate) fn probe_again(segment: &Segment, fd: c_int) -> bool {
    let has_to_be_brought = segment.header().secret.load(Ordering::Relaxed) != 0;
    if has_to_be_brought && let Some((ours, theirs)) = ends(fd) {
        send_probe(segment, ours, theirs);
    }
    has_to_be_brought
}

/// A probe has come: from `from`, to this namespace, that of `probe_socket`. If it says what the offer says,
/// the connection of these addresses is the one that the offer is for.
fn accept_probe(probe_socket: c_int, offered: [u64; 2], secret: u64, from: IpAddr) {
    let Some((path, segment)) = file(offered).and_then(|path| {
        let opened = open(&path)?;
        Some((path, opened))
    }) else {
        return;
    };
    let header = segment.header();
    let (client, server) = segment.addresses();
    let is_right = secret != 0
        && header.secret.load(Ordering::Relaxed) == secret
        && segment.page().is_offered()
        && segment.name() == offered
        && client.ip() == from;
    let Some(space) = rendezvous::space(probe_socket).filter(|_| is_right) else { return };
    let alias = name(space, client, server);
    let Some(second) = file(alias).filter(|_| alias != offered) else { return };
    if raw::link(&path, &second) == Err(Errno(libc::EEXIST)) {
        // Left behind, unless the same has been let in already: there is no second connection of these
        // addresses here.
        if segment.alias() != alias {
            raw::unlink(&second);
            let _ = raw::link(&path, &second);
        }
    }
    segment.set_alias(alias);
}

fn store_name(socket: &Socket, [a, b]: [u64; 2]) {
    socket.rendezvous.name_first.store(a, Ordering::Relaxed);
    socket.rendezvous.name_second.store(b, Ordering::Relaxed);
}

fn remember(socket: &Socket, fd: c_int, name: [u64; 2], segment: &Segment) {
    socket.rendezvous.cookie.store(rendezvous::cookie(fd), Ordering::Relaxed);
    store_name(socket, name);
    let key = segment.header().cookie.load(Ordering::Relaxed);
    socket.rendezvous.key.store(key, Ordering::Relaxed);
    socket
        .rendezvous
        .ring_bytes
        .store(segment.first_bytes().try_into().unwrap_or(0), Ordering::Relaxed);
}

fn remembered(socket: &Socket) -> [u64; 2] {
    let Rendezvous { name_first, name_second, .. } = &socket.rendezvous;
    [name_first.load(Ordering::Relaxed), name_second.load(Ordering::Relaxed)]
}

/// Where the bytes are that the end that left had to take out of the kernel's queue.
pub(crate) fn resend_path(socket: &Socket) -> Option<CString> {
    let [a, b] = remembered(socket);
    rendezvous::path(&format!("{a:016x}{b:016x}{RESEND}"))
}

/// Bells are single bytes, which Nagle's algorithm would hold back.
fn prepare_kernel_socket(socket: &Socket, fd: c_int) {
    let was = raw::option::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY).unwrap_or(0);
    socket.flags.nodelay.store(was != 0, Ordering::Relaxed);
    let _ = raw::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
}

fn make(name: [u64; 2], fd: c_int) -> Option<Segment> {
    let path = file(name)?;
    let file = rendezvous::open_own(&path, Expect::Nothing).or_else(|| {
        // Left behind by a process that was killed: the kernel has just given us these addresses.
        raw::unlink(&path);
        rendezvous::open_own(&path, Expect::Nothing)
    })?;
    let sizes = config::get().rings;
    let made =
        rendezvous::has_room(rendezvous::MAKE_SHARE).then(|| Segment::make(&file, sizes)).flatten();
    let Some(segment) = made else {
        raw::unlink(&path);
        return None;
    };
    segment.prepare(rendezvous::cookie(fd), name);
    Some(segment)
}

/// Rings whose other end is in this process as well: mapped for each of them.
pub(crate) fn make_both(socket: &Socket, fd: c_int) -> Option<(Segment, Segment)> {
    let ((ours, theirs), space) = (ends(fd)?, rendezvous::space(fd)?);
    rendezvous::place()?;
    let name = match socket.end() {
        End::Client => name(space, ours, theirs),
        End::Server => name(space, theirs, ours),
    };
    store_name(socket, name);
    let near = make(name, fd)?;
    let far = file(name).and_then(|path| open(&path));
    let Some(far) = far.filter(|_| near.page().take(0, 0)) else {
        file(name).iter().for_each(|path| raw::unlink(path));
        return None;
    };
    near.own(End::Server);
    remember(socket, fd, name, &near);
    prepare_kernel_socket(socket, fd);
    Some((near, far))
}

/// Maps the rings of that name, if they are there and what they should be.
fn open(path: &CStr) -> Option<Segment> {
    let file = rendezvous::open_own(path, Expect::File)?;
    Segment::open(Mapping::new(&file, file.size().ok()?)?)
}

/// The end that accepted: takes the rings that the peer has offered, if it has. No other thread may be
/// sending or receiving on the socket.
pub(crate) fn take(socket: &Socket, fd: c_int) -> bool {
    if streams::adopt(socket, fd) || socket.is_reset() {
        return true;
    }
    let port = socket.rendezvous.port.load(Ordering::Relaxed);
    if port != 0 && !ports::has_offers(port) {
        return false;
    }
    let Some((ours, theirs)) = ends(fd) else {
        socket.leave_to_kernel(Reason::PeerElsewhere);
        return false;
    };
    let is_counted = is_near(theirs, ours); // As the peer has it.
    if is_counted {
        socket.rendezvous.port.store(ours.port().into(), Ordering::Relaxed);
        if !ports::has_offers(ours.port().into()) {
            return false;
        }
    }
    let Some(space) = rendezvous::space(fd) else {
        socket.leave_to_kernel(Reason::PeerElsewhere);
        return false;
    };
    if rendezvous::place().is_none() {
        socket.leave_to_kernel(Reason::NoPlace);
        return false;
    }
    if !is_near(ours, theirs) {
        // A peer asks for the probe socket as soon as it has connected: about now.
        let is_early = socket.traffic.probe_count.load(Ordering::Relaxed) <= LOOKS_EARLY
            && path_proof::is_announced();
        if !is_early && !path_proof::is_wanted() {
            socket.leave_to_kernel(Reason::PeerElsewhere);
            return false;
        }
        receive_probes();
        let _ =
            socket.traffic.probe_count.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
    }
    let name = name(space, theirs, ours);
    let Some(segment) = file(name).and_then(|path| open(&path)) else {
        return false;
    };
    let header = segment.header();
    if alive::is_missing(header.maker.load(Ordering::Relaxed)) {
        return false;
    }
    socket.set_end(End::Server);
    prepare_kernel_socket(socket, fd);
    segment.own(End::Server);
    let Traffic { taken, given, .. } = &socket.traffic;
    if !segment.page().take(taken.load(Ordering::Relaxed), given.load(Ordering::Relaxed)) {
        return false;
    }
    if is_counted {
        ports::discount(ours.port());
    }
    remember(socket, fd, segment.name(), &segment);
    socket.attach(segment);
    socket.set_reason(Reason::Rings);
    socket.set_route(Route::Rings);
    true
}

/// Takes note of what probes have come.
pub(crate) fn receive_probes() {
    path_proof::receive_probes(accept_probe);
}

/// Looks for rings from elsewhere by which the other end must have asked for the probe socket.
const LOOKS_EARLY: u32 = 3;

/// A connection that came from another program with its descriptor: looks whether it has rings.
pub(crate) fn inherit(socket: &Socket, fd: c_int) -> bool {
    let (Some((ours, theirs)), Some(space)) = (ends(fd), rendezvous::space(fd)) else {
        return false;
    };
    let both = [(End::Client, ours, theirs), (End::Server, theirs, ours)];
    for (end, client, server) in both {
        let name = name(space, client, server);
        let Some(segment) = file(name).and_then(|path| open(&path)) else { continue };
        if !segment.page().is_accepted() {
            continue;
        }
        socket.set_end(end);
        socket.flags.nodelay.store(true, Ordering::Relaxed);
        segment.share(end);
        if matches!(segment.leaver(), Ok(Leaver::Leaves(leaver) | Leaver::Left(leaver)) if leaver == end)
        {
            continue;
        }
        socket.flags.is_adopted.store(true, Ordering::Relaxed);
        remember(socket, fd, segment.name(), &segment);
        socket.attach(segment);
        socket.set_reason(Reason::Rings);
        socket.set_route(Route::Rings);
        return true;
    }
    false
}

impl Socket {
    /// The rings: mapped now if another process of this family has set them up.
    #[inline]
    pub(crate) fn segment(&self) -> Option<&Segment> {
        match self.route() {
            Route::Open | Route::Kernel => None,
            Route::Offered | Route::Rings | Route::Leaving => {
                self.mapped().or_else(|| map_again(self))
            }
        }
    }
}

/// Maps the rings that another process of this family has set up.
#[cold]
#[inline(never)]
fn map_again(socket: &Socket) -> Option<&Segment> {
    let segment = open(&file(remembered(socket))?)?;
    socket.attach(segment);
    // Instances of this process do not know of it.
    changes::note(socket.index());
    socket.mapped()
}

/// Gives up rings that have not been taken. Returns false if the peer was faster.
pub(crate) fn take_back(socket: &Socket, segment: &Segment, fd: c_int) -> bool {
    let is_ours = segment.page().withdraw();
    if is_ours {
        ports::discount_offer(socket);
        let nodelay = c_int::from(socket.flags.nodelay.load(Ordering::Relaxed));
        let _ = raw::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, nodelay);
        socket.set_route(Route::Kernel);
        withdraw(socket);
    }
    is_ours
}

/// The last descriptor has been closed: the rings will not be looked for any more.
pub(crate) fn withdraw(socket: &Socket) {
    if let Some(segment) = socket.mapped() {
        withdraw_segment(socket, segment);
        if segment.page().resend.load(Ordering::Acquire) > 0 {
            resend_path(socket).iter().for_each(|path| raw::unlink(path));
        }
    }
    if let Some(path) = file(remembered(socket)) {
        raw::unlink(&path);
    }
}

/// Takes an offer back that has not been taken, and the second name that a path proof has given it.
fn withdraw_segment(socket: &Socket, segment: &Segment) {
    if segment.page().withdraw() {
        ports::discount_offer(socket);
    }
    if let Some(path) = Some(segment.alias()).filter(|alias| *alias != [0, 0]).and_then(file) {
        raw::unlink(&path);
    }
}

/// Withdraws the rings of a connection that only dead processes had. A later one may have its name by now.
pub(crate) fn withdraw_of_dead(socket: &Socket, key: u64) {
    let name = remembered(socket);
    let Some(path) = file(name) else { return };
    let Some(segment) = open(&path) else {
        // A process that was killed while it made them has left a blank file.
        if rendezvous::is_blank(&path) {
            ports::discount_offer(socket);
            raw::unlink(&path);
        }
        return;
    };
    // An end that lives may have bytes to send again, which it finds by these files.
    let is_needed = segment.is_leaving() && segment.has_living();
    if segment.name() == name
        && segment.header().cookie.load(Ordering::Relaxed) == key
        && !is_needed
    {
        withdraw_segment(socket, &segment);
        raw::unlink(&path);
        resend_path(socket).iter().for_each(|path| raw::unlink(path));
    }
}

/// Where a process that had an end was killed: tells the other end, as the dead one would have if it had ended.
/// What is on its way through the kernel the kernel tells of.
fn tell_of_deaths(segment: &Segment) {
    if !segment.page().is_accepted() || segment.is_leaving() {
        return;
    }
    for (dead, other) in [(End::Client, End::Server), (End::Server, End::Client)] {
        let page = segment.page();
        if segment.is_abandoned(other) && page.outgoing(dead).is_switched() {
            // With bytes that it has not read, the kernel resets the connection.
            let fin = !page.incoming(dead).has_bytes();
            let none = Waiters::default();
            bell::wake(Connection { page, waiters: &none, me: dead }.vanish(fin));
        }
    }
}

/// Removes the file of that name, if it is one of rings that processes have left behind that were killed, or of bytes to be
/// sent again where there are no rings any more. `tells`: ends that have lost their peer are told.
pub(crate) fn tidy_up(name: &str, tells: bool) {
    if let Some(rings) = name.strip_suffix(RESEND).filter(|rings| rings.len() == NAME_LEN) {
        if rendezvous::path(rings).is_some_and(|path| !rendezvous::has(&path)) {
            rendezvous::path(name).iter().for_each(|path| raw::unlink(path));
        }
        return;
    }
    let Some(path) = rendezvous::path(name).filter(|_| name.len() == NAME_LEN) else { return };
    let segment = open(&path);
    if segment.as_ref().is_some_and(|segment| !segment.is_of_known()) {
        return;
    }
    segment.iter().filter(|_| tells).for_each(tell_of_deaths);
    let maker = segment.as_ref().map(|segment| segment.header().maker.load(Ordering::Relaxed));
    // An end that lives may have bytes to send again, or be about to leave some that are.
    let is_needed = segment.is_some_and(|segment| segment.has_living());
    if !is_needed && maker.map_or_else(|| rendezvous::is_stillborn(&path), alive::has_ended) {
        raw::unlink(&path);
        rendezvous::path(&format!("{name}{RESEND}")).iter().for_each(|path| raw::unlink(path));
    }
}

/// What the name of a file of bytes to be sent again has behind that of its rings.
const RESEND: &str = ".back";
/// Letters in the name of a file of rings.
const NAME_LEN: usize = 32;
