//! Where the two ends of a connection meet: a directory of their user, in shared memory.
//!
//! The end that connected makes a file with the rings, named after the network namespace and both
//! addresses, as soon as the kernel's connection stands; the end that accepted finds it there. If
//! either is not one of us, there is no file, or nobody takes it, and the connection stays the
//! kernel's. The directory is the user's own, so that only processes of one user meet. To another
//! namespace, where addresses mean something else, the file is brought: see `doors.rs`.
//!
//! # Safety
//!
//! A file that is found may be anything. It is used only if it is this user's alone ([`open_own`]), as
//! the directory has to be ([`Trust`]). It is mapped for as long as it is, its header is checked before it
//! is used, and its length is compared with what the header says.

use std::ffi::{CStr, CString, OsString, c_int};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering};

use adverb_sockconf::Level;

use crate::lock::Lazy;
use crate::raw::Errno;
use crate::ring::{ACCEPTED, Leaver, OFFERED, Segment, WITHDRAWN};
use crate::shelter::Mapping;
use crate::slot::{Carrier, End, Slot, Why};
use crate::{address, alive, changes, config, doors, habit, log, raw, sockets};

/// The directory, and whether it may be used.
#[derive(Debug)]
struct Place {
    path: String,
    trust: Trust,
}

/// Whether nobody but this user can put files into the directory, or take any away.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Trust {
    Own,
    /// It belongs to another user, or others may write to it.
    Foreign,
    /// It is not there, cannot be opened, or is no directory.
    Absent,
    /// Its path is not absolute: each process would mean another one.
    Relative,
}

impl Trust {
    /// A link in the place of the directory is not followed.
    fn of(path: &CStr) -> Self {
        if path.to_bytes().first() != Some(&b'/') {
            return Self::Relative;
        }
        raw::make_dir(path);
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let Ok(directory) = raw::open(path, flags) else { return Self::Absent };
        let about = raw::about(directory);
        raw::close(directory);
        let others = libc::S_IWGRP | libc::S_IWOTH;
        let is_own =
            |about: libc::stat| about.st_uid == raw::user_id() && about.st_mode & others == 0;
        if about.is_some_and(is_own) { Self::Own } else { Self::Foreign }
    }
}

fn whole_place() -> &'static Place {
    static PLACE: Lazy<Place> = Lazy::new();
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    let is_new = PLACE.get().is_none();
    let place = PLACE.get_or_init(|| {
        let path = config::meeting_place();
        let trust = CString::new(path.as_str()).map_or(Trust::Absent, |path| Trust::of(&path));
        Place { path, trust }
    });
    if is_new && place.trust != Trust::Own && !IS_SAID.swap(true, Ordering::Relaxed) {
        complain(place);
    }
    place
}

/// Says why there is no meeting place. A system without one for anybody is no reason for a warning.
fn complain(place: &Place) {
    let is_usual = place.trust == Trust::Absent && place.path == config::default_place();
    let level = if is_usual { Level::Debug } else { Level::Warning };
    let what = match place.trust {
        Trust::Own => return,
        Trust::Foreign => "belongs to another user, or others may write to it",
        Trust::Absent => "cannot be opened as a directory, or is a symbolic link",
        Trust::Relative => "is not an absolute path",
    };
    log::print(level, || {
        let Place { path, .. } = place;
        format!(
            "{path} {what}: all sockets stay with the kernel. Shared memory needs a directory of user {} \
             with mode 0700; ADVERB_SOCKETS_SHM_DIR names one",
            raw::user_id()
        )
    });
}

/// The directory, if it may be used.
fn place() -> Option<&'static str> {
    let place = whole_place();
    (place.trust == Trust::Own).then_some(place.path.as_str())
}

/// The path of a file in the meeting place, if that may be used.
pub(crate) fn path(name: &str) -> Option<CString> {
    CString::new(format!("{}/{name}", place()?)).ok()
}

/// Opens a file in the meeting place, to read and write, with more flags; one that is there already has
/// to be a file of this user that no other may open, and with no other name than doors give it.
pub(crate) fn open_own(path: &CStr, more: c_int) -> Option<c_int> {
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK | more;
    let file = raw::open(path, flags).ok()?;
    let others = libc::S_IRWXG | libc::S_IRWXO;
    let is_own = raw::about(file).is_some_and(|about| {
        about.st_mode & libc::S_IFMT == libc::S_IFREG
            && about.st_uid == raw::user_id()
            && about.st_mode & others == 0
            && about.st_nlink <= NAMES_MAX
    });
    if !is_own {
        raw::close(file);
    }
    is_own.then_some(file)
}

/// Names of one file: the one under which it was made, and that of a door (`doors.rs`).
const NAMES_MAX: libc::nlink_t = 2;

/// A name of 128 bits, made of everything that has to be the same.
#[derive(Clone, Copy, Debug)]
struct Name([u64; 2]);

impl Name {
    const EMPTY: Self = Self([0xcbf2_9ce4_8422_2325, 0x6c62_272e_07bb_0142]);

    fn and(self, bytes: &[u8]) -> Self {
        let Self([mut a, mut b]) = self;
        for byte in bytes {
            a = (a ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
            b = (b ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        }
        Self([a, b])
    }

    /// What a link of the kernel's says.
    fn and_link(self, path: &CStr) -> Self {
        let mut space = [0_u8; 64];
        let len = raw::read_link(path, &mut space).unwrap_or(0);
        self.and(space.get(..len).unwrap_or(&[]))
    }

    /// Ends are asked by their numbers whether they live: they must mean the same to both. What they
    /// mean to a process stays so: it looks once.
    fn of_processes() -> Self {
        let (o, me) = (Ordering::Relaxed, raw::process_id());
        let [a, b] = &SEEN;
        if SEEN_BY.load(Ordering::Acquire) == me {
            return Self([a.load(o), b.load(o)]);
        }
        let seen = Self::EMPTY.and(&FORMAT).and_link(c"/proc/self/ns/pid");
        let Self([first, second]) = seen;
        a.store(first, o);
        b.store(second, o);
        SEEN_BY.store(me, Ordering::Release);
        seen
    }
}

/// Another one, where what lies in the meeting place has come to mean something else.
const FORMAT: [u8; 1] = [3];

static SEEN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static SEEN_BY: AtomicU32 = AtomicU32::new(0);

/// In the child: it may be in another namespace, and have its parent's number there.
pub(crate) fn after_fork() {
    SEEN_BY.store(0, Ordering::Relaxed);
}

/// The network namespace that a socket is in.
pub(crate) fn space(fd: c_int) -> Option<u64> {
    let cookie = raw::option::<u64>(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE).ok();
    cookie.or_else(|| {
        let Name([a, _]) = Name::EMPTY.and_link(c"/proc/thread-self/ns/net");
        Some(a)
    })
}

const SO_NETNS_COOKIE: c_int = 71;

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
    path(&format!("{a:016x}{b:016x}"))
}

/// The addresses of a connection, its own first.
fn ends(fd: c_int) -> Option<(SocketAddr, SocketAddr)> {
    Some((address::name(fd, false)?, address::name(fd, true)?))
}

/// Whether both ends of a connection with these addresses are in one namespace: if not, what says so is
/// a knock at a door.
fn is_near(ours: SocketAddr, theirs: SocketAddr) -> bool {
    ours.ip() == theirs.ip() || theirs.ip().is_loopback()
}

/// The end that connected, to `theirs`: offers rings, if the peer is one that looks for them.
pub(crate) fn offer(slot: &Slot, fd: c_int, theirs: SocketAddr) {
    if place().is_none() {
        return slot.leave_to_kernel(Why::NoPlace);
    }
    let ours = || address::name(fd, false);
    let is_near = theirs.ip().is_loopback() || ours().is_some_and(|ours| is_near(ours, theirs));
    if is_near && !listens(theirs.port()) {
        return slot.leave_to_kernel(Why::PeerSilent);
    }
    if !is_near && !doors::ask(theirs) {
        return slot.leave_to_kernel(Why::PeerElsewhere);
    }
    slot.set_end(End::Client);
    let destination = habit::destination(theirs);
    slot.destination.store(destination, Ordering::Relaxed);
    if !sockets::insists(slot) && !habit::is_worth(destination, raw::now_ns()) {
        return slot.leave_to_kernel(Why::ShortLived);
    }
    let (Some(ours), Some(space)) = (ours(), space(fd)) else {
        return slot.leave_to_kernel(Why::PeerElsewhere);
    };
    let name = name(space, ours, theirs);
    // If this process is killed while it makes them, others know where they are.
    store_name(slot, name);
    slot.meeting_key.store(cookie(fd), Ordering::Relaxed);
    if is_near {
        count_offer(slot, theirs.port());
    }
    match make(name, fd) {
        Some(segment) => {
            if !is_near {
                segment.address(raw::secret(), ours, theirs);
                knock(&segment, ours, theirs);
            }
            remember(slot, fd, name, &segment);
            slot.attach(segment);
            slot.sends.store(0, Ordering::Relaxed);
            slot.set_why(Why::Offered);
            slot.set_carrier(Carrier::Offered);
            prepare_kernel_socket(slot, fd);
        }
        None => {
            discount_offer(slot);
            slot.leave_to_kernel(Why::NoRoom);
        }
    }
}

/// Tells the other end of an offer that it cannot find.
fn knock(segment: &Segment, ours: SocketAddr, theirs: SocketAddr) {
    let secret = segment.header().secret.load(Ordering::Relaxed);
    if secret != 0 && segment.header().state.load(Ordering::Acquire) == OFFERED {
        doors::knock(ours, theirs, segment.name(), secret);
    }
}

/// The same, later: the door may have been opened since, or a knock been lost. Returns whether the offer
/// is one that has to be brought.
pub(crate) fn knock_again(segment: &Segment, fd: c_int) -> bool {
    let has_to_be_brought = segment.header().secret.load(Ordering::Relaxed) != 0;
    if has_to_be_brought && let Some((ours, theirs)) = ends(fd) {
        knock(segment, ours, theirs);
    }
    has_to_be_brought
}

/// Somebody has knocked: what it has sent has come from `from` to this namespace, that of `door`. If it
/// is what the offer says, the connection of these addresses is the one that the offer is for.
fn let_in(door: c_int, offered: [u64; 2], secret: u64, from: IpAddr) {
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
        && header.state.load(Ordering::Acquire) == OFFERED
        && segment.name() == offered
        && client.ip() == from;
    let Some(space) = space(door).filter(|_| is_right) else { return };
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

fn store_name(slot: &Slot, [a, b]: [u64; 2]) {
    let [first, second] = &slot.meeting;
    first.store(a, Ordering::Relaxed);
    second.store(b, Ordering::Relaxed);
}

fn remember(slot: &Slot, fd: c_int, name: [u64; 2], segment: &Segment) {
    slot.cookie.store(cookie(fd), Ordering::Relaxed);
    store_name(slot, name);
    let key = segment.header().cookie.load(Ordering::Relaxed);
    slot.meeting_key.store(key, Ordering::Relaxed);
    slot.ring_bytes.store(segment.first_bytes().try_into().unwrap_or(0), Ordering::Relaxed);
}

fn remembered(slot: &Slot) -> [u64; 2] {
    let [first, second] = &slot.meeting;
    [first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)]
}

/// The kernel's number for a socket, the same in every process that has it.
pub(crate) fn cookie(fd: c_int) -> u64 {
    raw::option::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE).unwrap_or(0)
}

/// Where the bytes are that the end that left had to take out of the kernel's queue.
pub(crate) fn refund(slot: &Slot) -> Option<CString> {
    let [a, b] = remembered(slot);
    path(&format!("{a:016x}{b:016x}.back"))
}

/// The directory.
pub(crate) fn directory() -> &'static str {
    &whole_place().path
}

/// Bells are single bytes, which Nagle's algorithm would hold back.
fn prepare_kernel_socket(slot: &Slot, fd: c_int) {
    let was = raw::option::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY).unwrap_or(0);
    slot.nodelay.store(was != 0, Ordering::Relaxed);
    let _ = raw::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
}

fn make(name: [u64; 2], fd: c_int) -> Option<Segment> {
    let path = file(name)?;
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
    let opened = raw::open(&path, flags).or_else(|_| {
        // Left behind by a process that was killed: the kernel has just given us these addresses.
        raw::unlink(&path);
        raw::open(&path, flags)
    });
    let file = opened.ok()?;
    let sizes = config::get().rings;
    let made = has_room(MAKE_SHARE).then(|| Segment::make(file, sizes)).flatten();
    raw::close(file);
    let Some(segment) = made else {
        raw::unlink(&path);
        return None;
    };
    segment.prepare(cookie(fd), name);
    Some(segment)
}

/// Maps the rings of that name, if they are there and what they should be.
fn open(path: &CStr) -> Option<Segment> {
    let file = open_own(path, 0)?;
    let mapped = raw::file_size(file).and_then(|len| Mapping::new(file, len));
    raw::close(file);
    Segment::open(mapped.ok()?)
}

/// Whether there is memory for rings that grow: most of what the meeting place may have is free.
pub(crate) fn is_roomy() -> bool {
    has_room(2)
}

/// Whether at least one of so many parts of what the meeting place may hold is free.
pub(crate) fn has_room(parts: u64) -> bool {
    let Some(path) = place().and_then(|place| CString::new(place).ok()) else { return false };
    raw::free_share(&path).is_ok_and(|(free, all)| free >= all / parts)
}

/// The end that accepted: takes the rings that the peer has offered, if it has. Nobody else may be
/// sending or receiving on the socket.
pub(crate) fn take(slot: &Slot, fd: c_int) -> bool {
    let port = slot.port.load(Ordering::Relaxed);
    if port != 0 && !has_offers(port) {
        return false;
    }
    let (Some((ours, theirs)), Some(space)) = (ends(fd), space(fd)) else {
        slot.leave_to_kernel(Why::PeerElsewhere);
        return false;
    };
    if place().is_none() {
        slot.leave_to_kernel(Why::NoPlace);
        return false;
    }
    if !is_near(ours, theirs) {
        // Who asks for the door does so as soon as it has connected: about now.
        let is_early = slot.looks.load(Ordering::Relaxed) <= LOOKS_EARLY && doors::is_announced();
        if !is_early && !doors::is_wanted() {
            slot.leave_to_kernel(Why::PeerElsewhere);
            return false;
        }
        doors::answer(let_in);
        let _ = slot.looks.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
    }
    let name = name(space, theirs, ours);
    let Some(segment) = file(name).and_then(|path| open(&path)) else {
        return false;
    };
    let header = segment.header();
    if alive::is_missing(header.maker.load(Ordering::Relaxed)) {
        return false;
    }
    slot.set_end(End::Server);
    let incoming = segment.incoming(End::Server);
    incoming.direction.consumer.taken.store(slot.taken.load(Ordering::Relaxed), Ordering::Release);
    let outgoing = segment.outgoing(End::Server);
    outgoing.direction.producer.given.store(slot.given.load(Ordering::Relaxed), Ordering::Release);
    prepare_kernel_socket(slot, fd);
    segment.own(End::Server);
    let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
    if header.state.compare_exchange(OFFERED, ACCEPTED, o, r).is_err() {
        return false;
    }
    if is_near(ours, theirs) {
        discount(ours.port());
    }
    remember(slot, fd, segment.name(), &segment);
    slot.attach(segment);
    slot.set_why(Why::Rings);
    slot.set_carrier(Carrier::Rings);
    true
}

/// Looks for rings from elsewhere by which the other end must have asked for the door.
const LOOKS_EARLY: u32 = 3;

/// A connection that came from another program with its descriptor: looks whether it has rings.
pub(crate) fn inherit(slot: &Slot, fd: c_int) -> bool {
    let (Some((ours, theirs)), Some(space)) = (ends(fd), space(fd)) else { return false };
    let both = [(End::Client, ours, theirs), (End::Server, theirs, ours)];
    for (end, client, server) in both {
        let name = name(space, client, server);
        let Some(segment) = file(name).and_then(|path| open(&path)) else { continue };
        if segment.header().state.load(Ordering::Acquire) != ACCEPTED {
            continue;
        }
        slot.set_end(end);
        slot.nodelay.store(true, Ordering::Relaxed);
        segment.share(end);
        if matches!(segment.leaver(), Ok(Leaver::Leaves(who) | Leaver::Left(who)) if who == end) {
            continue;
        }
        slot.is_adopted.store(true, Ordering::Relaxed);
        remember(slot, fd, segment.name(), &segment);
        slot.attach(segment);
        slot.set_why(Why::Rings);
        slot.set_carrier(Carrier::Rings);
        return true;
    }
    false
}

impl Slot {
    /// The rings: mapped now if another process of this family has set them up.
    #[inline]
    pub(crate) fn segment(&self) -> Option<&Segment> {
        match self.carrier() {
            Carrier::Open | Carrier::Kernel => None,
            Carrier::Offered | Carrier::Rings | Carrier::Leaving => {
                self.mapped().or_else(|| map_again(self))
            }
        }
    }
}

/// Maps the rings that another process of this family has set up.
#[cold]
#[inline(never)]
fn map_again(slot: &Slot) -> Option<&Segment> {
    let segment = open(&file(remembered(slot))?)?;
    slot.attach(segment);
    // Instances of this process have not heard of it.
    changes::note(slot.index());
    slot.mapped()
}

/// The last descriptor has been closed: nobody will look for the rings any more.
pub(crate) fn withdraw(slot: &Slot) {
    if let Some(segment) = slot.mapped() {
        let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
        if segment.header().state.compare_exchange(OFFERED, WITHDRAWN, o, r).is_ok() {
            discount_offer(slot);
        }
        if let Some(path) = Some(segment.alias()).filter(|alias| *alias != [0, 0]).and_then(file) {
            raw::unlink(&path);
        }
    }
    if let Some(path) = file(remembered(slot)) {
        raw::unlink(&path);
    }
}

/// The same for a connection that only dead processes had. A later one may have its name by now.
pub(crate) fn withdraw_of_dead(slot: &Slot, key: u64) {
    let name = remembered(slot);
    let Some(path) = file(name) else { return };
    let Some(segment) = open(&path) else {
        // Whoever was killed while it made them has not got far.
        if is_blank(&path) {
            discount_offer(slot);
            raw::unlink(&path);
        }
        return;
    };
    if segment.name() == name && segment.header().cookie.load(Ordering::Relaxed) == key {
        let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
        if segment.header().state.compare_exchange(OFFERED, WITHDRAWN, o, r).is_ok() {
            discount_offer(slot);
        }
        if let Some(alias) = Some(segment.alias()).filter(|alias| *alias != [0, 0]).and_then(file) {
            raw::unlink(&alias);
        }
        raw::unlink(&path);
    }
}

/// Whether nobody has written what a file is.
pub(crate) fn is_blank(path: &CStr) -> bool {
    read_own(path, size_of::<u64>()).is_some_and(|head| head.iter().all(|byte| *byte == 0))
}

/// Whether a file is blank that its process would have written to long ago: it was killed before.
pub(crate) fn is_stillborn(path: &CStr) -> bool {
    let Ok(file) = raw::open(path, libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC) else {
        return false;
    };
    let about = raw::about(file);
    raw::close(file);
    let age = about.map_or(0, |about| raw::real_time().0.saturating_sub(about.st_ctime));
    age > STILLBORN_S && is_blank(path)
}

/// A file that is still blank after so many seconds will be for ever.
const STILLBORN_S: i64 = 2;

/// The first bytes of a file in the meeting place, `most` at most, if it is one that [`open_own`] opens.
pub(crate) fn read_own(path: &CStr, most: usize) -> Option<Vec<u8>> {
    let file = open_own(path, 0)?;
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    raw::read_open(file, raw::PIECE_BYTES, most, &mut bytes, &mut ends);
    raw::close(file);
    Some(bytes)
}

/// Removes what processes have left behind that were killed.
pub(crate) fn tidy_up() {
    let names = place().and_then(|place| raw::names(Path::new(place), TIDY_MAX));
    for name in names.unwrap_or_default() {
        let Some(name) = name.to_str() else { continue };
        crate::datagram::tidy_up(name);
        let maker = match name.strip_prefix("stat.") {
            Some(pid) => pid.parse().ok(),
            None if name.len() == NAME_LEN => path(name).and_then(|path| {
                let segment = open(&path);
                if segment.is_none() && is_stillborn(&path) {
                    raw::unlink(&path);
                }
                Some(segment?.header().maker.load(Ordering::Relaxed))
            }),
            None => None,
        };
        if maker.is_some_and(alive::has_ended)
            && let Some(path) = path(name)
        {
            raw::unlink(&path);
        }
    }
}

/// This process ends: if nobody else has anything here, what all of them shared goes, and the
/// directory. Whoever starts at this very moment makes its own.
pub(crate) fn clear_away() {
    let Some(place) = place() else { return };
    let Some(names) = raw::names(Path::new(place), TIDY_MAX) else { return };
    let names = names.into_iter().map(OsString::into_string);
    let Ok(names) = names.collect::<Result<Vec<String>, _>>() else { return };
    let is_shared = |name: &String| {
        let (kind, rest) = name.split_once('.').unwrap_or((name, "."));
        let parts = rest.split('.').count();
        matches!((kind, parts), ("ports" | "doorbells" | "doors", 1)) || (kind, parts) == ("udp", 2)
    };
    if !names.iter().all(is_shared) {
        return;
    }
    for name in names {
        if let Some(path) = path(&name) {
            raw::unlink(&path);
        }
    }
    // A directory that somebody has named may be there for other reasons too.
    if place == config::default_place() {
        let _ = std::fs::remove_dir(place);
    }
}

/// Files that one process looks at when it starts, at most.
const TIDY_MAX: usize = 256;
/// Letters in the name of a file of rings.
const NAME_LEN: usize = 32;

/// Who shares a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Reach {
    /// All of a network namespace.
    Network,
    /// All that know each other's processes by the same numbers.
    Host,
}

/// A file that many share, of zeros at first: maps it, for good.
pub(crate) fn map_shared(kind: &str, reach: Reach, len: usize) -> Option<*mut u8> {
    let Name([a, _]) = match reach {
        Reach::Network => Name::of_processes().and_link(c"/proc/self/ns/net"),
        Reach::Host => Name::of_processes(),
    };
    let file = open_own(&path(&format!("{kind}.{a:016x}"))?, libc::O_CREAT)?;
    let mapped = map_whole(file, len);
    raw::close(file);
    mapped.map(Mapping::keep)
}

/// Maps a file of that length whose memory is put aside from the start.
pub(crate) fn map_whole(file: c_int, len: usize) -> Option<Mapping> {
    raw::set_size(file, len).ok()?;
    raw::reserve(file, 0, len).ok()?;
    Mapping::new(file, len).ok()
}

/// Connections get rings, and sockets mailboxes, while more than this part of what the file system may hold is free.
pub(crate) const MAKE_SHARE: u64 = 4;

/// What is known of ports, shared by all of a namespace: whether accelerated programs listen there, and how many offers
/// to connections within the namespace have been neither taken nor withdrawn.
///
/// Words that another process has spoilt cost rings, or looks in vain, and nothing else.
fn ports() -> Option<&'static [AtomicU16; PORTS]> {
    static MAP: AtomicPtr<[AtomicU16; PORTS]> = AtomicPtr::new(std::ptr::null_mut());
    let mut at = MAP.load(Ordering::Acquire);
    if at.is_null() {
        at = map_shared("ports", Reach::Network, size_of::<[AtomicU16; PORTS]>())?.cast();
        MAP.store(at, Ordering::Release);
    }
    // SAFETY: mapped for good, of this length, and made of atomics.
    Some(unsafe { &*at })
}

fn port(port: u16) -> Option<&'static AtomicU16> {
    ports()?.get(usize::from(port))
}

const PORTS: usize = 65_536;
/// Of a port: an accelerated program has ever listened there.
const LISTENS: u16 = 1;
/// Of a port: one offer.
const OFFER: u16 = 2;

/// Says that this program listens on a port, and looks for offers.
pub(crate) fn announce(number: u16) {
    if let Some(port) = port(number) {
        port.fetch_or(LISTENS, Ordering::AcqRel);
    }
}

/// Whether an accelerated program has ever listened on that port. If it no longer does, an offer
/// is in vain and nothing else.
fn listens(number: u16) -> bool {
    port(number).is_some_and(|port| port.load(Ordering::Acquire) & LISTENS != 0)
}

/// Whether there may be offers to connections that a port has accepted.
fn has_offers(number: u32) -> bool {
    let number = u16::try_from(number).unwrap_or(0);
    port(number).is_none_or(|port| port.load(Ordering::Acquire) >= OFFER)
}

/// An offer is about to be made to a port, and `slot` answers for it.
fn count_offer(slot: &Slot, number: u16) {
    slot.port.store(u32::from(number), Ordering::Relaxed);
    if let Some(port) = port(number) {
        let more = |word: u16| word.checked_add(OFFER);
        let _ = port.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
    }
}

/// The offer of a socket is there no more, and has not been taken.
pub(crate) fn discount_offer(slot: &Slot) {
    if let Ok(number @ 1..) = u16::try_from(slot.port.swap(0, Ordering::AcqRel)) {
        discount(number);
    }
}

fn discount(number: u16) {
    if let Some(port) = port(number) {
        let fewer = |word: u16| word.checked_sub(OFFER);
        let _ = port.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer);
    }
}
