//! A port: one network interface as an RDMA port of this process.
//!
//! Packets arrive under the receive lock, which whoever drives takes if it is free; they are
//! parsed in the receive buffer and copied once, to where they belong. Those who drive are the
//! program's own threads, when they post or poll, and the helper (`helper.rs`) when they do not.
//!
//! Locks are taken in this order: receive state, queue pair, completion queue or timers.
//!
//! # Safety
//!
//! [`Port::register`] passes its caller's promise on to the table of regions, which says what it is
//! good for (`region.rs`). Nothing else here is unsafe.

mod deputies;
mod lanes;

use crate::access::Access;
use crate::ack::{AckPolicy, Deferred};
use crate::capture::{self, Capture};
use crate::channel::{CompChannel, Hush};
use crate::commons::Commons;
use crate::counters::{Counters, PortCounters};
use crate::cq::{Cq, CqConfig};
use crate::endpoint::{Endpoint, FlowCache, gid_of};
use crate::events::{Audience, EventQueue};
use crate::gid::{Device, devices, look};
use crate::helper::Helper;
use crate::lane::{Inlet, Lane};
use crate::ledger::Ledger;
use crate::monitor::Monitor;
use crate::multicast::{Group, GroupError, GroupLimits};
use crate::path::{PathChoice, PortConfig};
use crate::probe;
use crate::qp::{Acks, Aftermath, Came, ConnectError, Directed, Origin, Qp, QpConfig, QpInner};
use crate::reception::{Mode, Reception, Switch};
use crate::region::{Region, RegionError, Regions};
use crate::registry::{BLOCK_BITS, Block, DomainClaim, Registry, SlotId};
use crate::relay::{Message, Passed, Relay};
use crate::shelf::QpWord;
use crate::srq::{Srq, SrqConfig, Tie};
use crate::standby::Standby;
use crate::sync::Mutex;
use crate::table::QpTable;
use crate::timers::Timers;
use crate::usher::Usher;
use crate::vicinity::Departed;
use crate::way::{Ah, AhAttr};
use crate::window::{Window, WindowKind};
use crate::xrc::Xrcd;
use adverb_engine::{Dropped, Gid, QpCounters, Time, accept};
use adverb_sys::clock;
use adverb_sys::epoll::{Epoll, Interest};
use adverb_sys::udp::{self, BURST_BYTES_MAX, Destination, GatherBuffer, Received, steering};
use adverb_wire::{Marks, Packet, Qpn, Transport};
use deputies::Deputies;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

/// Bounds of what a queue pair can be made of.
#[derive(Clone, Copy, Debug)]
pub struct QpLimits;

impl QpLimits {
    /// Requests outstanding in one queue.
    pub const WR_MAX: u32 = 1 << 20;
    /// Pieces of one buffer.
    pub const SGE_MAX: u32 = 32;
    /// Bytes inline.
    pub const INLINE_MAX: u32 = 4096;
    /// READs and atomics under way, each way.
    pub const RD_ATOMIC_MAX: u8 = 128;
    const _ASSERT: () = assert!(crate::burst::PIECES_MAX == 32);
}

/// Why a device could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no such device.
    NotFound {
        /// What was asked.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The system refused something.
    System {
        /// What we were doing.
        doing: &'static str,
        /// What it said.
        error: io::Error,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { name, known } if known.is_empty() => write!(
                f,
                "there is no device {name}, nor another: no network interface that is up has an address"
            ),
            Self::NotFound { name, known } => {
                write!(f, "there is no device {name}; there are: {}", known.join(", "))
            }
            Self::System { doing, error } => write!(f, "cannot {doing}: {error}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotFound { .. } => None,
            Self::System { error, .. } => Some(error),
        }
    }
}

/// Queue pair numbers of this port: those free, oldest first, so that none is used again soon.
#[derive(Debug, Default)]
struct Numbers {
    free: VecDeque<Qpn>,
    /// Blocks that were claimed.
    blocks: usize,
}

/// A socket, and what is known of its traffic.
#[derive(Debug)]
struct Door {
    endpoint: Arc<Endpoint>,
    flows: FlowCache,
    reception: Reception,
    /// It is that of a multicast group.
    group: Option<Group>,
}

impl Door {
    fn new(endpoint: Arc<Endpoint>) -> Self {
        let reception = Reception::new(endpoint.socket.gro());
        let captures = endpoint.capture.is_some();
        let mut door = Self { endpoint, flows: FlowCache::new(), reception, group: None };
        if captures {
            door.show_marks();
        }
        door
    }

    /// From now on arrivals show how they are marked. A socket that will not be told hides it on.
    fn show_marks(&mut self) {
        if self.endpoint.socket.show_marks().is_ok() {
            self.reception.show_marks();
        }
    }

    /// It is that of this multicast group.
    fn is_of(&self, gid: Gid) -> bool {
        self.group.as_ref().is_some_and(|group| group.is(gid))
    }

    /// Takes what has arrived: a datagram, or a burst.
    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Option<(Received, Marks)> {
        let socket = &self.endpoint.socket;
        let mut marks = Marks::USUAL;
        let received = match self.reception.mode() {
            Mode::Singles => socket.recv_single(buffer),
            Mode::Bursts | Mode::LastBursts if self.reception.shows_marks() => {
                socket.recv_marked(buffer).map(|(received, shown)| {
                    let udp::Marks { traffic_class, hop_limit, flow_label } = shown;
                    marks = Marks { traffic_class, hop_limit, flow_label };
                    received
                })
            }
            Mode::Bursts | Mode::LastBursts => socket.recv(buffer),
        };
        let Ok(received) = received else {
            self.reception.on_nothing();
            return None;
        };
        // A socket that will not be told goes on as before, and the next arrivals tell it again.
        let _ = match self.reception.on_arrival(received.segment.is_some()) {
            Switch::Nothing => Ok(()),
            Switch::GroOn => socket.set_gro(true),
            Switch::GroOff => socket.set_gro(false),
        };
        Some((received, marks))
    }
}

/// What receiving needs, under the receive lock.
#[derive(Debug)]
pub(crate) struct Receiver {
    inlets: Vec<Inlet>,
    /// Neighbours whose lanes have ended.
    departed: VecDeque<Departed>,
    doors: Vec<Door>,
    /// The sockets of multicast groups, once there was one: who sleeps watches it, and not them.
    groups: Option<Epoll>,
    buffer: Box<[u8]>,
    /// Acknowledgements that wait.
    waiting: Waiting,
    /// How often packets had been passed on to us when we last looked.
    relayed: u32,
    /// What was left to emit has waited for the program once.
    postponed: bool,
    /// Steps since timers and held acknowledgements were looked at.
    steps: u32,
    /// Steps since a lane brought something.
    quiet: u32,
    /// Sockets show how packets are marked.
    marks: bool,
}

/// Queue pairs that wait; those whose acknowledgements do, for what `ack.rs` says.
#[derive(Debug)]
struct Waiting {
    /// For the program's next call.
    deferred: Vec<Qpn>,
    /// For a quiet moment, or for the program's next call if one of them is pressing: where the way is
    /// a lane.
    local: Vec<Qpn>,
    pressing: bool,
    /// For more messages, or for time to pass; the longest first.
    held: VecDeque<(Qpn, Time)>,
    /// Targets with packets whose turn has not come: `steward.rs`.
    parked: Vec<Qpn>,
}

impl Waiting {
    /// Nobody waits for what the program does next.
    #[inline]
    const fn is_empty(&self) -> bool {
        self.deferred.is_empty() && self.local.is_empty() && self.parked.is_empty()
    }
}

/// The time of a step: read when first asked for.
#[derive(Debug)]
struct Clock {
    read: Option<Time>,
}

impl Clock {
    const fn new() -> Self {
        Self { read: None }
    }

    fn now(&mut self) -> Time {
        *self.read.get_or_insert_with(|| Time::from_nanos(clock::now_ns()))
    }
}

/// Who drives: what is polite for a program's thread is not for the helper.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Driver {
    /// A thread of the program: it gets its completions first, and acknowledgements go out with
    /// its next call.
    Program,
    /// The helper: everything at once.
    Helper,
}

/// A device that is open in this process.
#[derive(Debug)]
pub struct Port {
    device: Device,
    regions: Arc<Regions>,
    commons: Arc<Commons>,
    table: QpTable,
    timers: Timers,
    counters: Arc<Counters>,
    /// What queue pairs have counted that have gone. Locked before any that has not.
    gone: Mutex<QpCounters>,
    receiver: Mutex<Receiver>,
    endpoints: Mutex<HashMap<u8, Arc<Endpoint>>>,
    capture: Option<Arc<Capture>>,
    registry: Registry,
    /// Where others see the counters, unless the system has no room for that.
    ledger: Option<Ledger>,
    relay: Relay,
    numbers: Mutex<Numbers>,
    choice: PathChoice,
    usher: Option<Usher>,
    lanes: Mutex<HashMap<SlotId, Arc<Lane>>>,
    /// Held while a lane is made, so that none is made twice; by slot.
    meetings: [Mutex<()>; lanes::MEETINGS],
    /// Grows whenever the program drives; the helper watches it.
    drives: AtomicU64,
    unfinished: Mutex<VecDeque<Qpn>>,
    /// Whether `unfinished` has something in it, to be seen without its lock.
    has_unfinished: AtomicBool,
    /// The queue pair whose deadline was left open; 0 if there is none.
    timeless: AtomicU32,
    /// Packets for others that came here since steering was last put right.
    misled: AtomicU32,
    /// When that was last tried, in nanoseconds.
    mended: AtomicU64,
    helper: Helper,
    standby: Arc<Standby>,
    audience: Arc<Audience>,
    monitor: Mutex<Option<Monitor>>,
    deputies: Deputies,
}

/// A port that others of this process can have too: those who ask for the same.
#[derive(Debug)]
struct Opened {
    name: String,
    path: Option<PathChoice>,
    port: Weak<Port>,
}

static OPEN: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

impl Port {
    /// Opens a device; twice, and both share what there is.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(name: &str) -> Result<Arc<Self>, OpenError> {
        Self::open_with(name, &PortConfig::default())
    }

    /// Opens a device in a way of one's own; twice in the same way, and both share what there is, unless
    /// it is to be exclusive.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open_with(name: &str, config: &PortConfig) -> Result<Arc<Self>, OpenError> {
        let PortConfig { path, exclusive } = *config;
        if exclusive {
            return Self::start(name, path);
        }
        let mut open = lock(&OPEN);
        open.retain(|known| known.port.strong_count() > 0);
        let known = open.iter().find(|known| known.name == name && known.path == path);
        if let Some(port) = known.and_then(|known| known.port.upgrade()) {
            return Ok(port);
        }
        let port = Self::start(name, path)?;
        open.push(Opened { name: name.to_owned(), path, port: Arc::downgrade(&port) });
        Ok(port)
    }

    fn start(name: &str, path: Option<PathChoice>) -> Result<Arc<Self>, OpenError> {
        let failed = |doing| move |error| OpenError::System { doing, error };
        let all = devices().map_err(failed("list the network interfaces"))?;
        let Some(device) = all.iter().find(|device| device.name == name) else {
            let known = all.into_iter().map(|device| device.name).collect();
            return Err(OpenError::NotFound { name: name.to_owned(), known });
        };
        let asked = path.map_or_else(PathChoice::from_environment, Ok);
        let choice = asked.map_err(failed("choose a path"))?;
        let capture = std::env::var_os(capture::VARIABLE)
            .filter(|path| !path.is_empty())
            .map(|path| Capture::start(Path::new(&path), name))
            .transpose()
            .map_err(failed("write the file that ADVERB_PCAP names"))?;
        let memory = if capture.is_some() { PathChoice::Udp } else { choice };
        let registry = Registry::join().map_err(failed("join the host's registry in /dev/shm"))?;
        let ledger = Ledger::new(name).ok();
        if let Some(ledger) = &ledger {
            registry.set_counters(ledger.descriptor());
        }
        let counters = Arc::<Counters>::default();
        let relay = Relay::open().map_err(failed("open a socket on the loopback address"))?;
        registry.set_relay_port(relay.port());
        let standby = Arc::new(Standby::new().map_err(failed("prepare the helper thread"))?);
        let helper =
            Helper::new(Arc::clone(&standby)).map_err(failed("prepare the helper thread"))?;
        helper.watch(relay.socket()).map_err(failed("prepare the helper thread"))?;
        helper.watch(standby.bell().fd()).map_err(failed("prepare the helper thread"))?;
        let commons = Arc::new(Commons::new(Arc::clone(standby.bell().shelf()), memory.shares()));
        let usher = match memory.allows_memory() {
            true => Some(
                lanes::open_usher(device, &registry, &standby, &commons)
                    .map_err(failed("listen for neighbours"))?,
            ),
            false => None,
        };
        let port = Arc::new(Self {
            device: device.clone(),
            regions: Arc::new(match usher.is_some() {
                true => Regions::new().with_commons(Arc::clone(&commons)),
                false => Regions::new(),
            }),
            commons: Arc::clone(&commons),
            table: QpTable::new(),
            timers: Timers::new(),
            counters: Arc::clone(&counters),
            gone: Mutex::default(),
            receiver: Mutex::new(Receiver {
                inlets: Vec::new(),
                departed: VecDeque::new(),
                doors: Vec::new(),
                groups: None,
                buffer: vec![0; BURST_BYTES_MAX + 1].into(),
                waiting: Waiting {
                    deferred: Vec::with_capacity(DEFERRED_MAX),
                    held: VecDeque::with_capacity(DEFERRED_MAX),
                    local: Vec::with_capacity(DEFERRED_MAX),
                    pressing: false,
                    parked: Vec::new(),
                },
                relayed: registry.relayed(),
                postponed: false,
                steps: 0,
                quiet: 0,
                marks: false,
            }),
            endpoints: Mutex::new(HashMap::new()),
            capture: capture.map(Arc::new),
            registry,
            ledger,
            relay,
            numbers: Mutex::new(Numbers::default()),
            choice,
            usher,
            lanes: Mutex::default(),
            meetings: std::array::from_fn(|_| Mutex::default()),
            drives: AtomicU64::new(0),
            unfinished: Mutex::new(VecDeque::with_capacity(DEFERRED_MAX)),
            has_unfinished: AtomicBool::new(false),
            timeless: AtomicU32::new(0),
            misled: AtomicU32::new(0),
            mended: AtomicU64::new(0),
            helper,
            standby,
            audience: Arc::new(Audience::counting_in(counters)),
            monitor: Mutex::default(),
            deputies: Deputies::default(),
        });
        port.deputies.set_port(&port);
        port.helper.start(&port).map_err(failed("start the helper thread"))?;
        if let Some(usher) = &port.usher {
            usher.start(&port).map_err(failed("start the usher thread"))?;
        }
        Ok(port)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What was counted since this process opened the device.
    pub fn counters(&self) -> PortCounters {
        self.counters.snapshot()
    }

    /// What all queue pairs have counted, those that have gone included.
    pub fn qp_counters(&self) -> QpCounters {
        let gone = lock(&self.gone);
        let mut total = *gone;
        self.table.each().flat_map(|slot| slot.as_ref().map(|qp| qp.counters())).for_each(|qp| {
            total += qp;
        });
        total
    }

    /// Shows others the counters, if somebody has asked. For the helper.
    pub(crate) fn show_counters(&self) {
        let asked = self.registry.asked();
        if let Some(ledger) = self.ledger.as_ref().filter(|ledger| !ledger.has_answered(asked)) {
            let gone = lock(&self.gone);
            let rows = self.table.each().filter_map(|slot| slot.as_ref().map(|qp| qp.row()));
            ledger.answer(asked, self.counters(), *gone, rows);
        }
    }

    /// A protection domain's number, never used before: in this process, so that what belongs to another
    /// device is never taken for this one's.
    pub fn new_domain(&self) -> u32 {
        static DOMAINS: AtomicU32 = AtomicU32::new(1);
        DOMAINS.fetch_add(1, Ordering::Relaxed)
    }

    /// Registers memory.
    ///
    /// # Errors
    ///
    /// [`RegionError`].
    ///
    /// # Safety
    ///
    /// `base..base + len` stays mapped until the region is dropped: readable, and writable if
    /// `access` allows any writing. Until then nobody holds a reference to bytes of it that an
    /// access by the device or a peer could make untrue: no `&[u8]` where somebody may write, no
    /// `&mut [u8]` where somebody may read.
    pub unsafe fn register(
        &self,
        domain: u32,
        base: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Region, RegionError> {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { self.regions.register(domain, base, len, access) }
    }

    /// Registers a place that takes what is written to it and keeps nothing, and from which local
    /// work reads zeros.
    ///
    /// # Errors
    ///
    /// [`RegionError::TooMany`].
    pub fn register_null(&self, domain: u32) -> Result<Region, RegionError> {
        self.regions.register_null(domain)
    }

    /// Makes a memory window for protection domain `domain`, bound to nothing.
    ///
    /// # Errors
    ///
    /// [`RegionError::TooMany`].
    pub fn alloc_window(&self, domain: u32, kind: WindowKind) -> Result<Window, RegionError> {
        self.regions.alloc_window(domain, kind)
    }

    /// Makes a completion queue. The caller has checked the limits, and that the channel is this
    /// port's.
    pub fn create_cq(self: &Arc<Self>, config: &CqConfig) -> Cq {
        Cq::new(Arc::clone(self), config)
    }

    /// Makes a completion channel.
    ///
    /// # Errors
    ///
    /// No descriptors left.
    pub fn create_comp_channel(self: &Arc<Self>) -> io::Result<CompChannel> {
        CompChannel::new(Arc::clone(self), Arc::clone(&self.standby))
    }

    /// Starts to listen for changes of the network interface, unless somebody has before.
    ///
    /// # Errors
    ///
    /// No descriptors or threads left.
    pub fn monitor(&self) -> io::Result<()> {
        let mut monitor = lock(&self.monitor);
        if monitor.is_none() {
            *monitor = Some(Monitor::start(&self.device, Arc::clone(&self.audience))?);
        }
        Ok(())
    }

    /// The device as it is now, and not when it was opened; `None` if its interface has gone.
    ///
    /// # Errors
    ///
    /// The system would not list its network interfaces.
    pub fn look(&self) -> io::Result<Option<Device>> {
        look(self.device.index)
    }

    /// Makes a queue of asynchronous events, which hears what happens to the port from now on.
    ///
    /// # Errors
    ///
    /// No descriptors left.
    pub fn create_event_queue(&self) -> io::Result<Arc<EventQueue>> {
        self.audience.join()
    }

    /// Makes a queue pair in RESET. The caller has checked the limits.
    ///
    /// # Errors
    ///
    /// All numbers of the host are taken.
    pub fn create_qp(self: &Arc<Self>, config: &QpConfig) -> io::Result<Qp> {
        let number = self.take_number()?;
        if let Some(slot) = self.table.slot(number) {
            let inner = QpInner::new(number, config, self.device.active_mtu());
            // Before anybody can learn of it, and connect.
            if inner.takes_packets_alone()
                && let Some(word) = self.commons.shelf().qp(number)
            {
                word.store(QpWord::ONLY_PACKETS.bits(), Ordering::SeqCst);
            }
            *lock(slot) = Some(Box::new(inner));
        }
        Ok(Qp::new(Arc::clone(self), number))
    }

    /// Makes a shared receive queue of an XRC domain, whose receives complete on `cq`. The caller has
    /// checked the limits.
    ///
    /// # Errors
    ///
    /// All numbers of the host are taken, or the domain has [`crate::XRC_SRQS_MAX`] queues.
    pub fn create_xrc_srq(
        self: &Arc<Self>,
        config: &SrqConfig,
        xrcd: &Xrcd,
        cq: &Cq,
    ) -> io::Result<Srq> {
        let number = self.take_number()?;
        let tie = Tie {
            domain: Arc::clone(&xrcd.shared),
            cq: Arc::clone(&cq.shared),
            port: Arc::downgrade(self),
        };
        if xrcd.is_of_file() {
            // What targets of other processes pass on has come by way of any address, or none of ours.
            self.open_all().map_err(io::Error::other)?;
        }
        let srq = Srq::with_number(config, number.get(), Some(tie));
        match xrcd.shared.enter(&srq.shared) {
            true => Ok(srq),
            false => Err(io::Error::other("the XRC domain has as many queues as possible")),
        }
    }

    /// A number that [`Port::take_number`] gave is free again.
    pub(crate) fn give_number_back(&self, number: Qpn) {
        lock(&self.numbers).free.push_back(number);
    }

    fn take_number(&self) -> io::Result<Qpn> {
        let mut numbers = lock(&self.numbers);
        if let Some(number) = numbers.free.pop_front() {
            return Ok(number);
        }
        let block = self.registry.claim_block()?;
        self.table.add_block(block);
        self.commons.shelf().add_block(block, numbers.blocks);
        numbers.blocks += 1;
        numbers.free.extend(block.numbers());
        let number = numbers.free.pop_front();
        drop(numbers);
        self.steer_again()?;
        number.ok_or_else(|| io::Error::other("a block of numbers is never empty"))
    }

    /// Ends a queue pair: what is owed goes out, then it is gone.
    pub(crate) fn remove_qp(&self, number: Qpn) {
        let Some(slot) = self.table.slot(number) else {
            return;
        };
        let _hush = Hush::begin();
        let mut counted = lock(&self.gone);
        let mut guard = lock(slot);
        if let Some(inner) = guard.as_mut() {
            inner.transmit(self.now(), Acks::Now, self);
            inner.leave(self);
            *counted += inner.counters();
        }
        let gone = guard.take();
        if let Some(word) = self.commons.shelf().qp(number) {
            word.store(0, Ordering::SeqCst);
        }
        self.timers.forget(number);
        drop(guard);
        self.wait_for_neighbours();
        drop(counted);
        drop(gone);
        lock(&self.numbers).free.push_back(number);
    }

    /// The socket of the address at `gid_index`, opened when first asked for.
    pub(crate) fn endpoint(&self, gid_index: u8) -> Result<Arc<Endpoint>, ConnectError> {
        let mut endpoints = lock(&self.endpoints);
        if let Some(endpoint) = endpoints.get(&gid_index) {
            return Ok(Arc::clone(endpoint));
        }
        let entry = self.device.gids.iter().find(|entry| entry.index == gid_index);
        let entry = entry.ok_or(ConnectError::NoSuchGid { index: gid_index })?;
        let failed = |error| ConnectError::Socket { local: entry.gid, error };
        let endpoint = self.open_endpoint(entry.addr).map_err(failed)?;
        endpoints.insert(gid_index, Arc::clone(&endpoint));
        drop(endpoints);
        let mut receiver = lock(&self.receiver);
        let mut door = Door::new(Arc::clone(&endpoint));
        if receiver.marks {
            door.show_marks();
        }
        receiver.doors.push(door);
        drop(receiver);
        self.helper.watch(&endpoint.socket).map_err(failed)?;
        Ok(endpoint)
    }

    /// Opens the sockets of all addresses, for those who listen to all of them.
    ///
    /// # Errors
    ///
    /// None of them could be opened.
    pub(crate) fn open_all(&self) -> Result<(), ConnectError> {
        let mut result = Err(ConnectError::NoSuchGid { index: 0 });
        for entry in &self.device.gids {
            let opened = self.endpoint(entry.index).map(drop);
            if result.is_err() {
                result = opened;
            }
        }
        result
    }

    /// From now on arrivals show how they are marked: somebody takes datagrams, which have it in front
    /// of them. Asking for it makes each receive call a little dearer.
    pub(crate) fn show_marks(&self) {
        let mut receiver = lock(&self.receiver);
        if !receiver.marks {
            receiver.marks = true;
            receiver.doors.iter_mut().for_each(Door::show_marks);
        }
    }

    /// Attaches a queue pair to a multicast group.
    pub(crate) fn attach(&self, gid: Gid, qp: Qpn) -> Result<(), GroupError> {
        Group::check(gid, self.device.loopback)?;
        let known = lock(&self.receiver).doors.iter().any(|door| door.is_of(gid));
        // Under no lock. Neighbours send records from now on; those that come too early are lost.
        let mut claim = if known { None } else { self.claim_group(gid) };
        let attached = self.attach_with(&mut claim, gid, qp);
        if let Some(unused) = claim {
            self.registry.release_domain(unused);
        }
        attached
    }

    fn attach_with(
        &self,
        claim: &mut Option<DomainClaim>,
        gid: Gid,
        qp: Qpn,
    ) -> Result<(), GroupError> {
        let mut receiver = lock(&self.receiver);
        for door in &mut receiver.doors {
            if let Some(group) = door.group.as_mut().filter(|group| group.is(gid)) {
                return group.attach(qp, &door.endpoint);
            }
        }
        let groups = receiver.doors.iter().filter(|door| door.group.is_some()).count();
        if groups >= GroupLimits::GROUPS_MAX {
            return Err(GroupError::TooManyGroups { max: GroupLimits::GROUPS_MAX });
        }
        let failed = |error| GroupError::System { gid, error };
        let interface = self.device.index;
        let addr = Endpoint::group(gid, interface);
        let endpoint = Endpoint::bind(addr, interface, self.capture.clone()).map_err(failed)?;
        let endpoint = Arc::new(endpoint);
        let mut group = Group::new(gid, interface);
        let set = match receiver.groups.take() {
            Some(set) => set,
            None => {
                let set = Epoll::new().map_err(failed)?;
                self.helper.watch(&set).map_err(failed)?;
                set
            }
        };
        let added = set.add(&endpoint.socket, 0, Interest::Readable);
        receiver.groups = Some(set);
        added.map_err(failed)?;
        group.attach(qp, &endpoint)?;
        group.claim = claim.take();
        let mut door = Door { group: Some(group), ..Door::new(endpoint) };
        door.show_marks();
        receiver.doors.push(door);
        Ok(())
    }

    /// Detaches a queue pair from a multicast group, or from all; false if it was attached to none.
    pub(crate) fn detach(&self, gid: Option<Gid>, qp: Qpn) -> bool {
        let mut detached = false;
        let mut receiver = lock(&self.receiver);
        for door in &mut receiver.doors {
            let wanted = |group: &&mut Group| gid.is_none_or(|gid| group.is(gid));
            if let Some(group) = door.group.as_mut().filter(wanted) {
                detached |= group.detach(qp, &door.endpoint);
                if let Some(claim) = group.claim.take_if(|_| group.members.is_empty()) {
                    self.registry.release_domain(claim);
                }
            }
        }
        receiver.doors.retain(|door| door.group.as_ref().is_none_or(|group| !group.is_empty()));
        detached
    }

    /// Makes an address handle.
    ///
    /// # Errors
    ///
    /// [`ConnectError::NoSuchGid`], [`ConnectError::OtherFamily`] and [`ConnectError::Socket`].
    pub fn create_ah(self: &Arc<Self>, domain: u32, attr: AhAttr) -> Result<Ah, ConnectError> {
        Ah::new(Arc::clone(self), domain, attr)
    }

    fn open_endpoint(&self, addr: SocketAddr) -> io::Result<Arc<Endpoint>> {
        self.registry.with_group(gid_of(addr.ip()).0, scope(addr), |registry, members| {
            let endpoint = Endpoint::bind(addr, self.device.index, self.capture.clone())?;
            members.push(registry.slot());
            steer(&endpoint, registry.routes(members))?;
            Ok(Arc::new(endpoint))
        })
    }

    /// Tells the kernel which numbers are whose, on every address of this port.
    fn steer_again(&self) -> io::Result<()> {
        let endpoints: Vec<_> = lock(&self.endpoints).values().cloned().collect();
        for endpoint in endpoints {
            let addr = endpoint.addr;
            self.registry.with_group(gid_of(addr.ip()).0, scope(addr), |registry, members| {
                steer(&endpoint, registry.routes(members))
            })?;
        }
        Ok(())
    }

    /// Puts steering right if it has gone wrong. The helper looks after this, now and then.
    pub(crate) fn mend_steering(&self) {
        let now = clock::now_ns();
        let soon = now < self.mended.load(Ordering::Relaxed).saturating_add(MENDING_NANOS);
        if soon || self.misled.load(Ordering::Relaxed) < MISLED_MAX {
            return;
        }
        self.mended.store(now, Ordering::Relaxed);
        if self.registry.is_alone() {
            self.misled.store(0, Ordering::Relaxed); // Late, then, for another reason.
            return;
        }
        let endpoints: Vec<_> = lock(&self.endpoints).values().cloned().collect();
        for endpoint in endpoints {
            // If the answers make no sense, things stay as they are: slower, but correct.
            let _ = self.mend_steering_of(&endpoint);
        }
        self.misled.store(0, Ordering::Relaxed);
    }

    fn mend_steering_of(&self, endpoint: &Endpoint) -> io::Result<Option<()>> {
        let addr = endpoint.addr;
        let here = Destination::new(addr);
        let until = clock::now_ns() + CENSUS_NANOS;
        // Nothing waits here, for the helper has packets to look after.
        self.registry.try_with_group(gid_of(addr.ip()).0, scope(addr), |registry, members| {
            steer(endpoint, registry.routes(members))?;
            let ask = |place, nonce| {
                let probe = probe::emit(place, nonce);
                let mut buffer = GatherBuffer::new();
                let mut gather = buffer.begin();
                let _ = gather.push(&probe); // One place always fits.
                endpoint.socket.send(&gather, &here, None).map(|_| ())
            };
            let wait = || {
                self.help();
                std::thread::yield_now();
                clock::now_ns() < until
            };
            if let Some(found) = registry.census(members, ask, wait) {
                *members = found;
            }
            steer(endpoint, registry.routes(members))
        })
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    pub(crate) fn regions(&self) -> &Regions {
        &self.regions
    }

    pub(crate) fn counters_ref(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub(crate) fn table(&self) -> &QpTable {
        &self.table
    }

    pub(crate) fn now(&self) -> Time {
        Clock::new().now()
    }

    /// How often the program has driven.
    pub(crate) fn drives(&self) -> u64 {
        self.drives.load(Ordering::Relaxed)
    }

    /// When the earliest timer runs out.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.timers.next()
    }

    /// There is something to emit that only waits for its turn.
    pub(crate) fn has_unfinished(&self) -> bool {
        self.has_unfinished.load(Ordering::Acquire) || self.timeless.load(Ordering::Acquire) != 0
    }

    /// An acknowledgement waits for the program's next call, or somebody drives and may defer one.
    pub(crate) fn has_deferred(&self) -> bool {
        self.receiver.try_lock().map_or(true, |receiver| {
            let Waiting { deferred, held, .. } = &receiver.waiting;
            !deferred.is_empty() || !held.is_empty()
        })
    }

    /// Takes a step on behalf of the program: receives, and does what is due. True if something was
    /// there to do.
    #[inline]
    pub fn drive(&self) -> bool {
        // Not a read-modify-write: the helper wants to know that it changes, not by how much.
        self.drives.store(self.drives().wrapping_add(1), Ordering::Relaxed);
        match self.receiver.try_lock() {
            Ok(mut receiver) => {
                let busy =
                    !self.is_calm(&mut receiver) && self.step(&mut receiver, Driver::Program);
                let quiet = receiver.quiet;
                drop(receiver);
                if quiet >= PATIENCE_STEPS && quiet.is_multiple_of(YIELD_STEPS) {
                    // The neighbour may be waiting for this very processor.
                    std::thread::yield_now();
                }
                busy
            }
            Err(_) => false,
        }
    }

    /// Takes in all that has arrived, and answers all that waits for an answer.
    ///
    /// Unlike [`Port::drive`], it waits for whoever is driving: that thread may have taken packets
    /// and not yet looked at them. A peer that goes on sending is not waited for.
    pub fn settle(&self) {
        let mut receiver = lock(&self.receiver);
        for _ in 0..SETTLING_STEPS_MAX {
            if !self.step(&mut receiver, Driver::Helper) {
                break;
            }
        }
    }

    /// Acknowledges what a queue pair has received, which it may have put off.
    pub(crate) fn pay_debt(&self, number: Qpn) {
        self.acknowledge_if(number, self.now(), |_| true);
    }

    /// Takes a step on behalf of nobody; true if something was there to do.
    pub(crate) fn help(&self) -> bool {
        match self.receiver.try_lock() {
            Ok(mut receiver) => self.step(&mut receiver, Driver::Helper),
            Err(_) => false,
        }
    }

    fn step(&self, receiver: &mut Receiver, driver: Driver) -> bool {
        // Reading the clock is a good part of a step that finds nothing.
        receiver.steps += 1;
        let rarely = if receiver.inlets.is_empty() { CLOCK_STEPS } else { LANE_CLOCK_STEPS };
        let due = receiver.steps >= rarely || !receiver.waiting.deferred.is_empty();
        let mut clock = Clock::new();
        if due || driver == Driver::Helper {
            receiver.steps = 0;
            self.acknowledge(&mut receiver.waiting, clock.now(), driver);
        }
        let mut busy = false;
        let mut published = false;
        if !receiver.inlets.is_empty() {
            (busy, published) = self.receive_records(receiver, &mut clock, driver);
        }
        if receiver.looks_at_sockets(driver) {
            let (received, completed) = self.receive(receiver, &mut clock, driver);
            busy |= received | self.receive_relayed(receiver, &mut clock, driver);
            published |= completed;
        }
        if !receiver.waiting.parked.is_empty() {
            busy |= self.look_after_parked(receiver, &mut clock, driver);
        }
        // After receiving: whoever was kept from its processor for long finds the answers that it
        // thinks late in its socket.
        if let Some(now) = clock.read {
            self.close_deadline(now);
            while let Some(number) = self.timers.due(now) {
                self.on_timer(number, now);
            }
        }
        if self.has_unfinished.load(Ordering::Acquire) {
            // A program that has completions to look at often posts more at once, and then all of
            // it leaves together; but nobody waits for that twice.
            receiver.postponed = published && !receiver.postponed && driver == Driver::Program;
            // A lane may be full for long, if its other end is stopped: that is no reason to hurry.
            busy |= receiver.postponed || self.finish_unfinished(clock.now());
        }
        busy
    }

    /// Takes what the sockets have; says whether there was something, and whether it completed work.
    fn receive(&self, receiver: &mut Receiver, clock: &mut Clock, driver: Driver) -> (bool, bool) {
        let Receiver { doors, buffer, waiting, inlets, departed, .. } = receiver;
        let (mut busy, mut published) = (false, false);
        for door in doors {
            for _ in 0..BURSTS_MAX {
                let Some((received, marks)) = door.recv(buffer) else {
                    break;
                };
                let Door { endpoint, flows, group, .. } = &mut *door;
                busy = true;
                if received.len == 0 {
                    self.counters.malformed.add(1); // It has no pieces to go through below.
                    continue;
                }
                if received.truncated {
                    self.counters.truncated.add(1);
                    continue;
                }
                let passed = Passed {
                    source: received.source,
                    target: endpoint.addr.ip(),
                    marks,
                    segment: received.segment,
                    bytes: buffer.get(..received.len).unwrap_or_default(),
                };
                let now = clock.now();
                let group = group.as_ref().map(|group| Listeners { group, inlets, departed });
                let arrival = Arrival { passed, endpoint, group, now, driver, relayed: false };
                let completed = self.take(&arrival, flows, waiting) > 0;
                published |= completed;
                // The program has something to look at: completions, or a little in its memory.
                let little = received.len <= LITTLE_BYTES;
                if driver == Driver::Program && (completed || little) {
                    break;
                }
            }
        }
        (busy, published)
    }

    fn receive_relayed(&self, receiver: &mut Receiver, clock: &mut Clock, driver: Driver) -> bool {
        let relayed = self.registry.relayed();
        // The helper looks anyway: what a stranger sends would wake it again and again.
        if relayed == receiver.relayed && driver == Driver::Program {
            return false;
        }
        receiver.relayed = relayed;
        if self.ledger.as_ref().is_some_and(|ledger| !ledger.has_answered(self.registry.asked())) {
            self.helper.notice(Time::ZERO);
        }
        let mut busy = false;
        let Receiver { doors, buffer, waiting, .. } = receiver;
        while let Ok((from, message)) = self.relay.take(buffer) {
            busy = true;
            let trusted = from.ip().is_loopback() && self.registry.is_relay_port(from.port());
            let passed = match message.filter(|_| trusted) {
                None => continue,
                Some(Message::Letter(letter, passed)) => {
                    self.on_letter(from, &letter, passed, doors, clock.now());
                    continue;
                }
                Some(Message::Passed(passed)) => passed,
            };
            let found = doors.iter_mut().find(|door| door.endpoint.addr.ip() == passed.target);
            if let Some(Door { endpoint, flows, .. }) = found {
                self.counters.relayed.add(1);
                let now = clock.now();
                let arrival = Arrival { passed, endpoint, group: None, now, driver, relayed: true };
                self.take(&arrival, flows, waiting);
            }
        }
        busy
    }

    /// Takes what arrived at once from one source; says how many completions that published.
    fn take(&self, arrival: &Arrival<'_>, flows: &mut FlowCache, waiting: &mut Waiting) -> u32 {
        let _hush = Hush::begin();
        let Arrival { passed, endpoint, now, .. } = arrival;
        let Some(flow) = flows.get(passed.source, endpoint) else {
            return 0;
        };
        let source = gid_of(passed.source.ip());
        let from = Origin { source, flow, marks: passed.marks };
        let mut published = 0;
        let mut current: Option<Held<'_>> = None;
        let step = passed.segment.unwrap_or(passed.bytes.len()).max(1);
        for (index, datagram) in passed.bytes.chunks(step).enumerate() {
            let guess = u16::try_from(index).unwrap_or(0);
            if let Some(capture) = endpoint.capture.as_deref()
                && probe::parse(datagram).is_none()
            {
                let id = flow.verify(datagram, guess).unwrap_or(guess);
                capture.packet((passed.source, endpoint.addr), id, passed.marks, datagram);
            }
            let packet = match accept(datagram, flow, guess) {
                Ok(packet) => packet,
                Err(Dropped::Corrupt) => {
                    self.counters.icrc_errors.add(1);
                    continue;
                }
                Err(Dropped::Malformed(_)) => {
                    self.on_malformed(datagram, arrival);
                    continue;
                }
            };
            let number = packet.headers.bth.dest_qp;
            let len = u16::try_from(datagram.len()).unwrap_or(u16::MAX);
            let came = Came { from: &from, len };
            if let Some(group) = &arrival.group {
                published += self.give_to_all(group, &packet, came, arrival, waiting);
                continue;
            }
            if current.as_ref().is_none_or(|held| held.number != number) {
                if let Some(held) = current.take() {
                    published += self.release(held, arrival, waiting);
                }
                let Some(guard) = self.table.lock(number) else {
                    self.pass_on(number, datagram, arrival);
                    continue;
                };
                current = Some(Held { number, guard, published: 0 });
            }
            self.counters.rcvd_pkts.add(1);
            if let Some(Held { guard, published, .. }) = current.as_mut()
                && let Some(inner) = guard.as_mut().filter(|inner| !inner.is_local())
            {
                if packet.headers.xrceth.is_none() {
                    *published += inner.on_packet(&packet, came, *now, self);
                    continue;
                }
                let one = Passed { segment: None, bytes: datagram, ..*passed };
                match inner.direct(&packet, came, &one, *now, self) {
                    Directed::Served(count) => *published += count,
                    Directed::Elsewhere => {}
                    Directed::Parked => self.note_parked(number, *now, waiting),
                }
            }
        }
        if let Some(held) = current {
            published += self.release(held, arrival, waiting);
        }
        published
    }

    /// Gives a copy to each queue pair of a group; says how many completions that published.
    fn give_to_all(
        &self,
        listeners: &Listeners<'_>,
        packet: &Packet<'_>,
        came: Came<'_>,
        arrival: &Arrival<'_>,
        waiting: &mut Waiting,
    ) -> u32 {
        let bth = &packet.headers.bth;
        if bth.dest_qp != Qpn::MULTICAST || bth.opcode.transport() != Transport::Ud {
            self.counters.bad_multicast.add(1);
            return 0;
        }
        let sender = packet.headers.deth.map(|deth| deth.src_qp);
        if sender.is_some_and(|sender| self.is_heard_by_lane(listeners, sender, came.from.source)) {
            return 0;
        }
        self.counters.rcvd_pkts.add(1);
        let mut completions = 0;
        for number in listeners.group.members.iter().copied() {
            let Some(mut guard) = self.table.lock(number) else {
                continue;
            };
            let own = sender == Some(number) && self.has_address(came.from.source);
            if let Some(inner) = guard.as_mut().filter(|inner| !own || inner.hears_itself()) {
                let published = inner.on_packet(packet, came, arrival.now, self);
                completions += self.release(Held { number, guard, published }, arrival, waiting);
            }
        }
        completions
    }

    /// An address is one of this port's.
    fn has_address(&self, gid: Gid) -> bool {
        self.device.gids.iter().any(|entry| entry.gid == gid)
    }

    /// What is no packet may be a probe; it comes from the address that it is sent to.
    fn on_malformed(&self, datagram: &[u8], arrival: &Arrival<'_>) {
        let own = arrival.passed.source.ip() == arrival.endpoint.addr.ip();
        match probe::parse(datagram).filter(|_| own && !arrival.relayed) {
            Some((place, nonce)) => self.registry.answer(place, nonce),
            None => self.counters.malformed.add(1),
        }
    }

    /// Lets a queue pair answer what it was given, and lets it go.
    fn release(&self, mut held: Held<'_>, arrival: &Arrival<'_>, waiting: &mut Waiting) -> u32 {
        let Some(inner) = held.guard.as_mut() else {
            return 0;
        };
        let can_wait = arrival.driver == Driver::Program && waiting.deferred.len() < DEFERRED_MAX;
        // The program shall have its completion before its peer has an answer: often it has one of
        // its own, and then both leave in one burst.
        let aftermath = match (can_wait, held.published) {
            (true, 1..) => inner.put_off(),
            (true, 0) => inner.transmit(arrival.now, Acks::WithCompany, self),
            (false, _) => inner.transmit(arrival.now, Acks::Now, self),
        };
        if can_wait && inner.owes_ack() && inner.acks.on_messages(held.published.max(1)) {
            inner.count_deferred();
            waiting.deferred.push(held.number);
            // If the program never calls again, the helper has to send it; it may be asleep.
            self.helper.notice(Time::ZERO);
        }
        self.follow_up(held.number, inner, aftermath);
        held.published + aftermath.published
    }

    /// A packet for a queue pair that is not ours: passed on to whose it is.
    fn pass_on(&self, number: Qpn, datagram: &[u8], arrival: &Arrival<'_>) {
        let owner = self.registry.owner(number).filter(|owner| *owner != self.registry.slot());
        let port = owner.and_then(|owner| Some((owner, self.registry.relay_port(owner)?)));
        // What was passed on once and is still not ours has lost its owner meanwhile.
        let Some((owner, port)) = port.filter(|_| !arrival.relayed) else {
            self.counters.unknown_qp.add(1);
            return;
        };
        let passed = Passed { segment: None, bytes: datagram, ..arrival.passed };
        if self.relay.pass(port, passed).is_ok() {
            self.counters.forwarded.add(1);
            self.misled.fetch_add(1, Ordering::Relaxed);
            self.registry.note_relayed(owner);
        }
    }

    /// Notes what a queue pair wants next.
    #[inline]
    pub(crate) fn follow_up(&self, number: Qpn, inner: &mut QpInner, aftermath: Aftermath) {
        let Aftermath { deadline, more, .. } = aftermath;
        if deadline.is_some() || (more && !inner.unfinished) {
            self.follow_all_up(number, inner, aftermath);
        }
    }

    fn follow_all_up(&self, number: Qpn, inner: &mut QpInner, aftermath: Aftermath) {
        if aftermath.deadline == Some(Time::UNKNOWN) {
            self.open_deadline(number, inner);
        } else if let Some(deadline) = aftermath.deadline {
            self.timers.arm(number, deadline);
            self.helper.notice(deadline);
        }
        if aftermath.more && !inner.unfinished {
            inner.unfinished = true;
            lock(&self.unfinished).push_back(number);
            self.has_unfinished.store(true, Ordering::Release);
            self.helper.notice(Time::ZERO);
        }
    }

    /// Looks at the acknowledgements that wait.
    fn acknowledge(&self, waiting: &mut Waiting, now: Time, driver: Driver) {
        let Waiting { deferred, held, .. } = waiting;
        while let Some(number) = deferred.pop() {
            let send = self.acknowledge_if(number, now, |acks| {
                acks.on_next_call(now) == Deferred::Send || driver == Driver::Helper
            });
            if send == Some(false) {
                held.push_back((number, now));
            }
        }
        while let Some(&(number, since)) = held.front() {
            if AckPolicy::due(since) > now && driver == Driver::Program {
                break;
            }
            held.pop_front();
            self.acknowledge_if(number, now, |acks| {
                let silent = acks.is_held_since(since);
                if silent && driver == Driver::Program {
                    acks.on_silence();
                }
                silent
            });
        }
    }

    /// Sends what a queue pair owes if `policy` says so. `None` if it owes nothing.
    fn acknowledge_if(
        &self,
        number: Qpn,
        now: Time,
        policy: impl FnOnce(&mut AckPolicy) -> bool,
    ) -> Option<bool> {
        let _hush = Hush::begin();
        let mut guard = self.table.lock(number)?;
        let inner = guard.as_mut()?;
        let send = policy(&mut inner.acks);
        if !inner.owes_ack() {
            inner.acks.on_sent();
            return None;
        }
        if send {
            let aftermath = inner.transmit(now, Acks::Now, self);
            self.follow_up(number, inner, aftermath);
        }
        Some(send)
    }

    /// Gives each queue pair that has more to emit one turn; says whether one of them got further.
    fn finish_unfinished(&self, now: Time) -> bool {
        let _hush = Hush::begin();
        let mut moved = false;
        let turns = lock(&self.unfinished).len();
        for _ in 0..turns {
            let Some(number) = lock(&self.unfinished).pop_front() else {
                break;
            };
            let Some(mut guard) = self.table.lock(number) else {
                continue;
            };
            if let Some(inner) = guard.as_mut() {
                inner.unfinished = false;
                let aftermath = inner.transmit(now, Acks::Now, self);
                moved |= aftermath.moved || aftermath.published > 0 || !aftermath.more;
                self.follow_up(number, inner, aftermath);
            }
        }
        let unfinished = lock(&self.unfinished);
        self.has_unfinished.store(!unfinished.is_empty(), Ordering::Release);
        moved
    }

    fn on_timer(&self, number: Qpn, now: Time) {
        let _hush = Hush::begin();
        let Some(mut guard) = self.table.lock(number) else {
            return;
        };
        if guard.as_mut().is_some_and(|inner| inner.deputy_of().is_some()) {
            return self.on_deputy_timer(number, guard, now);
        }
        if let Some(inner) = guard.as_mut() {
            let late = inner.on_timer(now, self);
            if late && inner.peer_is_here() {
                // Its packets, or our answers, may go to somebody who does not run.
                self.misled.fetch_add(MISLED_MAX, Ordering::Relaxed);
            }
            let aftermath = inner.transmit(now, Acks::Now, self);
            self.follow_up(number, inner, aftermath);
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.helper.stop();
        if let Some(usher) = &self.usher {
            usher.stop();
        }
        // A socket leaves its group when its last descriptor is closed: that has to be below.
        self.helper.forget_sockets();
        let receiver = self.receiver.get_mut().unwrap_or_else(PoisonError::into_inner);
        receiver.doors.clear();
        let endpoints =
            std::mem::take(self.endpoints.get_mut().unwrap_or_else(PoisonError::into_inner));
        for endpoint in endpoints.into_values() {
            let addr = endpoint.addr;
            // The group's last socket takes the place of the one that goes, in the kernel as here.
            let _ =
                self.registry.with_group(gid_of(addr.ip()).0, scope(addr), |registry, members| {
                    if let Some(at) = members.iter().position(|slot| *slot == registry.slot()) {
                        members.swap_remove(at);
                    }
                    steer(&endpoint, registry.routes(members))?;
                    drop(endpoint);
                    Ok(())
                });
        }
    }
}

/// A queue pair that is being given packets.
struct Held<'a> {
    number: Qpn,
    guard: MutexGuard<'a, Option<Box<QpInner>>>,
    published: u32,
}

/// A multicast group, and the neighbours from which its messages come by way of lanes.
struct Listeners<'a> {
    group: &'a Group,
    inlets: &'a [Inlet],
    departed: &'a VecDeque<Departed>,
}

/// Packets that arrived at once, and how.
struct Arrival<'a> {
    passed: Passed<'a>,
    endpoint: &'a Arc<Endpoint>,
    /// They were sent to it.
    group: Option<Listeners<'a>>,
    now: Time,
    driver: Driver,
    /// They came by way of another process.
    relayed: bool,
}

/// Packets for others after which steering is looked at.
const MISLED_MAX: u32 = 16;
/// How long to leave steering alone after an attempt to put it right.
const MENDING_NANOS: u64 = 200_000_000;
/// How long others have to answer a probe: they may be asleep, or have lost their processor.
const CENSUS_NANOS: u64 = 20_000_000;
/// Steps that find nothing, between looks at the clock.
const CLOCK_STEPS: u32 = 8;
/// The same, where there are lanes: a look at them is short.
const LANE_CLOCK_STEPS: u32 = 64;
/// Steps in which no lane brings anything, before others are let to the processor, and again after so
/// many more: some 50 µs, and some 10.
const PATIENCE_STEPS: u32 = 2048;
const YIELD_STEPS: u32 = 512;
/// Bursts taken from one socket before others have their turn.
const BURSTS_MAX: usize = 16;
/// Steps after which a peer that goes on sending is not waited for.
const SETTLING_STEPS_MAX: u32 = 10_000;
/// What arrives in so few bytes at once is looked at before more is taken: somebody may poll for it.
const LITTLE_BYTES: usize = 512;
/// Queue pairs whose acknowledgements wait at once.
const DEFERRED_MAX: usize = 1024;
fn steer(endpoint: &Endpoint, routes: impl Iterator<Item = (Block, u32)>) -> io::Result<()> {
    let routes: Vec<_> = routes
        .map(|(block, index)| steering::Route { block: block.index(), index })
        .take(steering::ROUTES_MAX)
        .collect();
    let program = steering::program(BLOCK_BITS, Block::PROBE.index(), &routes)?;
    endpoint.socket.attach_reuseport_filter(&program)
}

fn scope(addr: SocketAddr) -> u32 {
    match addr {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(addr) => addr.scope_id(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
