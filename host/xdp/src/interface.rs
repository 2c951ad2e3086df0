//! The owner's end of an interface: its program and its tables, groups of members, and the members' sockets.
//!
//! The kernel keeps a queue busy for about 56 ms after the last of its sockets has been closed, so that an owner that
//! follows another one may wait for it. One that serves others does not: it takes another queue.

use crate::gate;
use crate::memlock;
use crate::ring::Ring;
use crate::socket::{self, QUEUE_ENTRIES, Remains, Socket};
use crate::steering::{KEY_BYTES, Key, Steering};
use crate::umem::{Files, Shape, Umem};
use adverb_shm::alive;
use adverb_sys::bpf::{Attachment, Map, XdpMode};
use adverb_sys::fork::KeptFd;
use adverb_sys::netdev;
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_umem_completion_ring_size, set_xdp_umem_fill_ring_size,
    set_xdp_umem_reg,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpUmemReg, XdpUmemRegFlags,
};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How an interface is opened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Config {
    /// Where the program is to be; `None`: in the driver if it can, else behind it.
    pub mode: Option<XdpMode>,
    /// Queues to use, from the first on; `None`: all.
    pub queues: Option<u32>,
    /// Frames of each group, of 2 or 4 KiB by the length of the interface's packets; `None`: 8192. Of each queue 1024 wait for
    /// packets.
    pub frames: Option<u32>,
    /// The sockets poll the driver when calls find nothing, for so many packets at most: a system call each time. Not all drivers
    /// can ([`busy_poll::set`](adverb_sys::busy_poll::set)).
    pub busy_poll: Option<u16>,
}

/// Why an interface could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// There is no such interface.
    NotFound,
    /// Another program is on it.
    Occupied,
    /// This process may not: it takes CAP_NET_ADMIN, CAP_BPF and CAP_NET_RAW.
    Privilege(io::Error),
    /// The system has refused what is named here.
    System {
        /// What was to be done.
        doing: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("there is no such interface"),
            Self::Occupied => f.write_str("another process has a program on the interface"),
            Self::Privilege(error) => {
                write!(f, "it takes CAP_NET_ADMIN, CAP_BPF and CAP_NET_RAW: {error}")
            }
            Self::System { doing, error } => write!(f, "cannot {doing}: {error}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Privilege(error) | Self::System { error, .. } => Some(error),
            Self::NotFound | Self::Occupied => None,
        }
    }
}

/// An interface of which this process is the owner.
#[derive(Debug)]
pub struct Interface {
    /// Before the tables: packets are the kernel's again before their keys go.
    #[expect(dead_code, reason = "held for as long as the program is to be there")]
    attachment: Attachment,
    steering: Steering,
    index: u32,
    shape: Shape,
    mode: XdpMode,
    /// Why the program is not in the driver.
    reason: Option<String>,
    busy_poll: Option<u16>,
    /// Queues that no group has.
    free_queues: Vec<u32>,
    /// Which places have members.
    places: [bool; PLACES],
    /// Whose the packets are that match a key: as the kernel's table has it.
    keys: HashMap<[u8; KEY_BYTES], u32>,
}

impl Interface {
    /// Puts the program on the interface with this number. Nothing changes for its packets before keys are claimed. The soft
    /// limit of the memory that this process may lock becomes the hard one: groups need it, and on old kernels the tables do.
    ///
    /// # Errors
    ///
    /// [`OpenError`] says what is in the way; nothing has changed then.
    pub fn open(index: u32, config: &Config) -> Result<Self, OpenError> {
        let all = netdev::interfaces().map_err(system("list the interfaces"))?;
        let found = all.into_iter().find(|interface| interface.index == index);
        let mtu = found.ok_or(OpenError::NotFound)?.mtu;
        let shape = Shape::for_mtu(mtu).map_err(system("choose the length of frames"))?;
        let shape = Shape { frames: config.frames.unwrap_or(shape.frames), ..shape };
        memlock::raise();
        let places = u32::try_from(PLACES).unwrap_or(u32::MAX);
        let queues = config.queues.unwrap_or(QUEUES_MAX).min(QUEUES_MAX);
        let steering = Steering::new(QUEUES_MAX, places, KEYS_MAX, shape.packet_bytes_max())
            .map_err(privileged("load the steering program"))?;
        let (attachment, mode, reason) = attach(&steering, index, config.mode)?;
        Ok(Self {
            attachment,
            steering,
            index,
            shape,
            mode,
            reason,
            busy_poll: config.busy_poll,
            free_queues: (0..queues).rev().collect(),
            places: [false; PLACES],
            keys: HashMap::new(),
        })
    }

    /// Where the program is.
    #[must_use]
    pub const fn mode(&self) -> XdpMode {
        self.mode
    }

    pub(crate) const fn index(&self) -> u32 {
        self.index
    }

    /// Why it is not in the driver, if it was to be there.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Makes a group that has the next `queues` queues that no group and no other process has, or as many as there are:
    /// its UMEM, of this process alone unless it is to be `shared`. Queues that are busy are waited for so long if there
    /// are too few others.
    ///
    /// # Errors
    ///
    /// `ResourceBusy` if there is no free queue, here or because another process has it; `QuotaExceeded`, with a
    /// [`MemlockError`](crate::MemlockError) in it, if more memory would be locked than may be; `InvalidInput` for a number
    /// of frames that cannot be; no memory left.
    pub fn group(&mut self, queues: u32, shared: bool, patience: Duration) -> io::Result<Group> {
        if self.free_queues.is_empty() {
            return Err(io::ErrorKind::ResourceBusy.into()); // Before frames are made: a device that waits asks again and again.
        }
        let (umem, files) = match shared {
            true => Umem::shared(self.shape).map(|(umem, files)| (umem, Some(files)))?,
            false => (Umem::private(self.shape)?, None),
        };
        let mut group = Group {
            umem: Arc::new(umem),
            files,
            queues: Vec::new(),
            members: Vec::new(),
            left: Vec::new(),
            is_short: false,
        };
        let (begun, mut unbound) = (Instant::now(), None);
        loop {
            match self.add_queues(&mut group, queues, &mut unbound) {
                Ok(false) if begun.elapsed() < patience => std::thread::sleep(BIND_WAIT),
                Ok(is_whole) => {
                    group.is_short = !is_whole;
                    break;
                }
                Err(error) => {
                    let asked_bytes = group.umem.bytes();
                    self.disband(group);
                    return Err(memlock::explain(error, asked_bytes));
                }
            }
        }
        if group.queues.is_empty() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        self.fill(&mut group);
        Ok(group)
    }

    /// Adds queues that are busy no longer to a group without members, until it has that many.
    pub(crate) fn extend(&mut self, group: &mut Group, queues: u32) {
        // What cannot be added now may be later.
        group.is_short = !self.add_queues(group, queues, &mut None).unwrap_or(false);
        self.fill(group);
    }

    /// Gives each queue of a group its share of the frames.
    fn fill(&mut self, group: &mut Group) {
        group.umem.set_queues(u32::try_from(group.queues.len()).unwrap_or(u32::MAX));
        self.tend(group);
    }

    /// Adds queues to a group until it has that many; false if it would have more if none were busy.
    fn add_queues(
        &mut self,
        group: &mut Group,
        queues: u32,
        unbound: &mut Option<OwnedFd>,
    ) -> Result<bool, Errno> {
        let mut busy = Vec::new();
        let mut result = Ok(());
        let is_short =
            |group: &Group| u32::try_from(group.queues.len()).is_ok_and(|count| count < queues);
        while is_short(group) && result.is_ok() {
            let Some(number) = self.free_queues.pop() else { break };
            match self.queue(number, group, unbound) {
                Ok((base, fill)) => group.queues.push(Queue { number, base, fill }),
                Err(Errno::BUSY) => busy.push(number),
                Err(Errno::INVAL) if number > 0 => {
                    self.free_queues.clear(); // The interface has no more.
                }
                Err(error) => {
                    self.free_queues.push(number);
                    result = Err(error);
                }
            }
        }
        let is_whole = busy.is_empty() || !is_short(group);
        self.free_queues.extend(busy.into_iter().rev());
        result.map(|()| is_whole)
    }

    /// The socket that holds a queue for a group. It receives nothing itself. One that could not be bound is left for the
    /// next queue.
    fn queue(
        &self,
        number: u32,
        group: &Group,
        unbound: &mut Option<OwnedFd>,
    ) -> Result<(KeptFd, Ring), Errno> {
        let other = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let fd = match unbound.take() {
            Some(fd) => fd,
            None => self.base(group)?,
        };
        let first = group.queues.first().map(|queue| queue.base.as_fd());
        if let Err(error) = bind(&fd, first, self.index, number, self.mode) {
            *unbound = Some(fd);
            return Err(error);
        }
        let fill = socket::fill_ring(fd.as_fd()).map_err(other)?;
        Ok((KeptFd::new(fd).map_err(other)?, fill))
    }

    /// A socket for a group's next queue; that for the first one has the UMEM.
    fn base(&self, group: &Group) -> Result<OwnedFd, Errno> {
        let fd =
            socket::open().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        if group.queues.is_empty() {
            let umem = XdpUmemReg {
                addr: group.umem.start(),
                len: group.umem.bytes(),
                chunk_size: self.shape.frame_bytes,
                headroom: 0,
                flags: XdpUmemRegFlags::empty(),
                tx_metadata_len: 0,
            };
            set_xdp_umem_reg(&fd, umem)?;
        }
        set_xdp_umem_fill_ring_size(&fd, QUEUE_ENTRIES)?;
        set_xdp_umem_completion_ring_size(&fd, QUEUE_ENTRIES)?;
        set_xdp_rx_ring_size(&fd, BASE_RX_ENTRIES)?;
        Ok(fd)
    }

    /// Makes a member of a group: its sockets, one on each of the group's queues.
    ///
    /// # Errors
    ///
    /// `ResourceBusy` if there are as many members as there may be; no memory or descriptors left.
    pub fn join(&mut self, group: &mut Group) -> io::Result<Member> {
        self.tend(group);
        let free = self.places.iter_mut().zip(0..).find(|(taken, _)| !**taken);
        let (taken, place) = free.ok_or(io::ErrorKind::ResourceBusy)?;
        *taken = true;
        group.members.push(Sockets { place, fds: Vec::new() });
        let gates = gate::new_map();
        let gates = gates.and_then(|map| self.steering.install_gates(place, &map).map(|()| map));
        let result = gates.and_then(|gates| self.add_sockets(group, place, gates));
        if result.is_err() {
            self.leave(group, place);
        }
        result
    }

    fn add_sockets(&self, group: &mut Group, place: u32, gates: Map) -> io::Result<Member> {
        let mut sockets = Vec::new();
        for Queue { number, base, fill: _ } in &group.queues {
            let base = base.as_fd();
            let fd = socket::on_queue_of(base, self.index, *number, self.busy_poll)?;
            self.steering.install(place, *number, fd.as_fd())?;
            if let Some(own) = group.members.last_mut() {
                own.fds.push((*number, KeptFd::new(fd.try_clone()?)?));
            }
            sockets.push((*number, fd));
        }
        Ok(Member { place, gates, sockets })
    }

    /// Ends a member: its packets are the kernel's again, and what it had of its group's frames comes back, now or by
    /// [`Interface::tend`]. Sockets of a member that lives on receive nothing more.
    pub fn leave(&mut self, group: &mut Group, place: u32) {
        self.dismiss(group, place, None);
    }

    /// The same for a member that is another process. What it has in its hands comes back once that has ended, or has
    /// its UMEM no more: until then it may write there, whether it has been told or not.
    pub(crate) fn dismiss(&mut self, group: &mut Group, place: u32, holding: Option<Holding>) {
        let Some(at) = group.members.iter().position(|member| member.place == place) else {
            return;
        };
        let Sockets { place, fds } = group.members.swap_remove(at);
        let keys = self.keys.extract_if(|_, holder| *holder == place);
        keys.for_each(|(key, _)| self.steering.release(&key));
        fds.iter().for_each(|(queue, _)| self.steering.uninstall(place, *queue));
        self.steering.uninstall_gates(place);
        // A ring that cannot be mapped keeps its frames.
        let remains = fds.iter().filter_map(|(_, fd)| Remains::of(fd.as_fd()).ok()).collect();
        group.left.push(Left { place, holding, since: Instant::now(), remains });
        self.tend(group);
    }

    /// Does for a group what is to be done, unless a member has its UMEM locked just then: takes back what members have
    /// left, and gives the kernel free frames for packets that come, if it has few. Members do that only as packets
    /// come, and one that reads none may have all there were: an owner of several members calls it now and then.
    pub fn tend(&mut self, group: &mut Group) {
        let Group { umem, queues, left, .. } = group;
        if left.is_empty() && !queues.iter().any(|queue| socket::is_low(&queue.fill, umem)) {
            return;
        }
        let Some(mut locked) = umem.try_lock() else { return };
        let is_due = |left: &mut Left| left.holding.as_ref().is_none_or(Holding::has_ended);
        for Left { place, remains, .. } in left.extract_if(.., is_due) {
            remains.iter().for_each(|rings| rings.reclaim(umem, &mut locked));
            locked.reclaim(place);
            free(&mut self.places, place);
        }
        queues.iter().for_each(|queue| socket::top_up(&queue.fill, umem, &mut locked));
    }

    /// Ends a group; its queues are free for others once no member has its sockets any more.
    pub fn disband(&mut self, mut group: Group) {
        while let Some(place) = group.members.last().map(|member| member.place) {
            self.leave(&mut group, place);
        }
        group.left.iter().for_each(|left| free(&mut self.places, left.place));
        self.free_queues.extend(group.queues.iter().rev().map(|queue| queue.number));
    }

    /// From now on packets that match go to a member.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if they go to another; `InvalidInput` for addresses of different families; `E2BIG` if there are
    /// as many keys as there may be.
    pub fn claim(&mut self, key: Key, place: u32) -> io::Result<()> {
        self.claim_by(key, place, None)
    }

    /// The same, while that gate of the member is open.
    pub(crate) fn claim_by(&mut self, key: Key, place: u32, gate: Option<u32>) -> io::Result<()> {
        let key = key.bytes().ok_or(io::ErrorKind::InvalidInput)?;
        match self.keys.get(&key) {
            Some(holder) if *holder != place => return Err(io::ErrorKind::AlreadyExists.into()),
            Some(_) | None => self.steering.claim(&key, place, gate)?,
        }
        self.keys.insert(key, place);
        Ok(())
    }

    /// They are the kernel's again, if they were this member's.
    pub fn release(&mut self, key: &Key, place: u32) {
        let Some(key) = key.bytes() else { return };
        if self.keys.get(&key) == Some(&place) {
            self.keys.remove(&key);
            self.steering.release(&key);
        }
    }
}

/// Processes that trust each other: a UMEM, and the queues that it has.
#[derive(Debug)]
pub struct Group {
    umem: Arc<Umem>,
    files: Option<Files>,
    queues: Vec<Queue>,
    members: Vec<Sockets>,
    left: Vec<Left>,
    /// It would have more queues if they had not been busy.
    is_short: bool,
}

impl Group {
    /// The numbers of its queues.
    pub fn queues(&self) -> impl Iterator<Item = u32> {
        self.queues.iter().map(|queue| queue.number)
    }

    /// It would have more queues if they had not been busy when it was made.
    pub(crate) const fn is_short(&self) -> bool {
        self.is_short
    }

    /// It has no member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Its members, and those that have left and whose frames have not come back.
    pub(crate) fn len(&self) -> usize {
        self.members.len() + self.left.len()
    }

    /// How soon to look again whether frames that members have left can come back.
    pub(crate) fn look_again(&self) -> Option<Duration> {
        let youngest = self.left.iter().map(|left| left.since.elapsed()).min()?;
        Some(if youngest < LOOK_RARELY { LOOK_OFTEN } else { LOOK_RARELY })
    }

    pub(crate) fn shape(&self) -> Shape {
        self.umem.shape()
    }

    /// The descriptors by which others map the UMEM; `None` if it is not shared.
    pub(crate) fn files(&self) -> Option<&Files> {
        self.files.as_ref()
    }
}

/// A queue, and the socket that holds it.
#[derive(Debug)]
struct Queue {
    number: u32,
    fill: Ring,
    base: KeptFd,
}

/// What the owner keeps of a member's sockets, to take back what is in their rings.
#[derive(Debug)]
struct Sockets {
    place: u32,
    fds: Vec<(u32, KeptFd)>,
}

/// What a member has left, until it has been taken back. Its place is not given to another as long.
#[derive(Debug)]
struct Left {
    place: u32,
    /// What has to end before.
    holding: Option<Holding>,
    since: Instant,
    remains: Vec<Remains>,
}

/// How long another process has a UMEM mapped.
#[derive(Debug)]
pub(crate) struct Holding {
    /// Once this has ended, also if others have its descriptors; or
    pub(crate) process: u32,
    /// once the pipe has no other end.
    pub(crate) tie: KeptFd,
}

impl Holding {
    fn has_ended(&self) -> bool {
        rustix::io::read(&self.tie, &mut [0; 64]) == Ok(0) || alive::has_ended(self.process)
    }
}

fn free(places: &mut [bool], place: u32) {
    let taken = usize::try_from(place).ok().and_then(|at| places.get_mut(at));
    taken.into_iter().for_each(|taken| *taken = false);
}

/// A new member's sockets, to be used here or handed to another process.
#[derive(Debug)]
pub struct Member {
    pub(crate) place: u32,
    pub(crate) gates: Map,
    pub(crate) sockets: Vec<(u32, OwnedFd)>,
}

impl Member {
    /// The name that the owner knows it by.
    #[must_use]
    pub const fn place(&self) -> u32 {
        self.place
    }

    /// The sockets, to be used in this process.
    ///
    /// # Errors
    ///
    /// No memory left to map their rings.
    pub fn into_sockets(self, group: &Group) -> io::Result<Vec<Socket>> {
        let Self { place, gates: _, sockets } = self;
        let adopt = |(queue, fd)| Socket::adopt(fd, Arc::clone(&group.umem), place, queue);
        sockets.into_iter().map(adopt).collect()
    }
}

/// Puts the program in the driver if it can be there, else behind it, with the reason.
fn attach(
    steering: &Steering,
    index: u32,
    asked: Option<XdpMode>,
) -> Result<(Attachment, XdpMode, Option<String>), OpenError> {
    let attach = |mode| Attachment::xdp(&steering.program, index, mode);
    let failed = |error: io::Error| match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::BUSY | Errno::EXIST) => OpenError::Occupied,
        Some(Errno::NODEV) => OpenError::NotFound,
        _ => privileged("put the steering program on the interface")(error),
    };
    let mode = asked.unwrap_or(XdpMode::Native);
    match attach(mode).map_err(failed) {
        Ok(attachment) => Ok((attachment, mode, None)),
        Err(OpenError::System { error, .. }) if asked.is_none() => {
            let attachment = attach(XdpMode::Generic).map_err(failed)?;
            let reason = format!("the driver does not take a program: {error}");
            Ok((attachment, XdpMode::Generic, Some(reason)))
        }
        Err(error) => Err(error),
    }
}

/// Binds a socket to a queue: the `first` of its group, or with the UMEM of that.
fn bind(
    fd: &OwnedFd,
    first: Option<BorrowedFd<'_>>,
    interface: u32,
    queue: u32,
    mode: XdpMode,
) -> Result<(), Errno> {
    let copy = match mode {
        XdpMode::Native => SocketAddrXdpFlags::empty(), // The driver may do without copies.
        XdpMode::Generic => SocketAddrXdpFlags::XDP_COPY,
    };
    let addr = |flags| SocketAddrXdp::new(flags, interface, queue);
    match first {
        Some(shared_umem_fd) => {
            let addr = addr(SocketAddrXdpFlags::XDP_SHARED_UMEM);
            rustix::net::bind(fd, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd })
        }
        None => rustix::net::bind(fd, &addr(copy | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP)),
    }
}

fn system(doing: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    move |error| OpenError::System { doing, error }
}

fn privileged(doing: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    move |error| match error.kind() == io::ErrorKind::PermissionDenied {
        true => OpenError::Privilege(error),
        false => OpenError::System { doing, error },
    }
}

/// Members of one interface.
const PLACES: usize = 64;
/// Queues of an interface that are used.
const QUEUES_MAX: u32 = 64;
/// Keys of one interface, IPv4 and IPv6 together.
pub(crate) const KEYS_MAX: u32 = 65_536;
/// The kernel wants a ring, also where nothing is received.
const BASE_RX_ENTRIES: u32 = 1;
/// Several times what a queue stays busy after its last socket.
pub const QUEUE_PATIENCE: Duration = Duration::from_millis(300);
/// Between two looks at whether those that have left have ended, at first and later.
const LOOK_OFTEN: Duration = Duration::from_millis(20);
const LOOK_RARELY: Duration = Duration::from_secs(1);
const BIND_WAIT: Duration = Duration::from_millis(5);
