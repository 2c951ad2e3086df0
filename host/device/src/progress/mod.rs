//! A port: one network interface as an RDMA port of this process.
//!
//! Those who drive it (`port/driving.rs`) are the program's own threads, when they post or poll, and the
//! helper (`helper.rs`) when they do not. Its sockets are in `port/doors.rs`, and its ways to other
//! devices of the host in `port/lanes.rs`.
//!
//! Locks are taken in this order: receive state, queue pair, completion queue or timers.
//!
//! # Safety
//!
//! [`Port::register`] passes its caller's promise on to the table of regions, which says what it is
//! good for (`region.rs`). Nothing else here is unsafe.

mod deputies;
mod doors;
mod driving;
pub(crate) mod helper;
mod lanes;
pub(crate) mod monitor;
pub(crate) mod standby;
pub(crate) mod timers;

use crate::latch::{Latch, Latched};
use crate::link::gid::{Device, devices, look};
use crate::link::path::{PathChoice, PortConfig};
use crate::link::shm::lane::{Inlet, Lane};
use crate::link::shm::usher::Usher;
use crate::link::udp::capture::{self, Capture};
use crate::link::udp::endpoint::{Endpoint, FlowCache, gid_of};
use crate::link::udp::multicast::Group;
use crate::link::udp::reception::{Mode, Reception, Switch};
use crate::link::vicinity::Departed;
use crate::link::way::{Ah, AhAttr};
use crate::memory::access::Access;
use crate::memory::commons::Commons;
use crate::memory::region::{Region, RegionError, Regions};
use crate::memory::shelf::QpWord;
use crate::memory::window::{Window, WindowKind};
use crate::objects::channel::{CompChannel, Hush};
use crate::objects::cq::{Cq, CqConfig};
use crate::objects::events::{Audience, EventQueue};
use crate::objects::qp::{Acks, ConnectError, Qp, QpConfig, QpInner};
use crate::objects::srq::{Srq, SrqConfig, Tie};
use crate::objects::table::QpTable;
use crate::objects::xrc::Xrcd;
use crate::progress::helper::Helper;
use crate::progress::monitor::Monitor;
use crate::progress::standby::Standby;
use crate::progress::timers::Timers;
use crate::registry::counters::{Counters, PortCounters};
use crate::registry::ledger::Ledger;
use crate::registry::relay::{Passed, Relay};
use crate::registry::{Registry, SlotId};
use crate::sync::Mutex;
use adverb_engine::{Gid, QpCounters, Time};
use adverb_sys::clock;
use adverb_sys::epoll::Epoll;
use adverb_sys::udp::{self, BURST_BYTES_MAX, Received};
use adverb_wire::{Marks, Qpn};
use deputies::Deputies;
use doors::{scope, steer};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
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
    const _ASSERT: () = assert!(crate::link::udp::burst::PIECES_MAX == 32);
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
    /// What came as packets waits for the program's next call.
    #[inline]
    const fn has_packets(&self) -> bool {
        !self.deferred.is_empty() || !self.parked.is_empty()
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
    receiver: Latch<Receiver>,
    endpoints: Mutex<HashMap<u8, Arc<Endpoint>>>,
    capture: Option<Arc<Capture>>,
    registry: Registry,
    /// Where others see the counters, unless the system has no room for that.
    ledger: Option<Ledger>,
    relay: Relay,
    numbers: Mutex<Numbers>,
    choice: PathChoice,
    usher: Usher,
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
        let registry =
            Registry::join().map_err(failed("join the registry of this network namespace"))?;
        let ledger = Ledger::new(name).ok();
        if let Some(ledger) = &ledger {
            registry.set_counters(ledger.descriptor());
        }
        let counters = Arc::<Counters>::default();
        let relay = Relay::open(registry.secret())
            .map_err(failed("open a socket on the loopback address"))?;
        registry.set_relay_port(relay.port());
        let standby = Arc::new(Standby::new().map_err(failed("prepare the helper thread"))?);
        let helper =
            Helper::new(Arc::clone(&standby)).map_err(failed("prepare the helper thread"))?;
        helper.watch(relay.socket()).map_err(failed("prepare the helper thread"))?;
        helper.watch(standby.bell().fd()).map_err(failed("prepare the helper thread"))?;
        let commons = Arc::new(Commons::new(Arc::clone(standby.bell().shelf()), memory.shares()));
        let usher =
            lanes::open_usher(device, &registry, &standby, &commons, memory.allows_memory())
                .map_err(failed("listen for neighbours"))?;
        let port = Arc::new(Self {
            device: device.clone(),
            regions: Arc::new(match usher.lends() {
                true => Regions::new().with_commons(Arc::clone(&commons)),
                false => Regions::new(),
            }),
            commons: Arc::clone(&commons),
            table: QpTable::new(),
            timers: Timers::new(),
            counters: Arc::clone(&counters),
            gone: Mutex::default(),
            receiver: Latch::new(Receiver {
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
        port.usher.start(&port).map_err(failed("start the usher thread"))?;
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
        let unclaimed = || io::Error::other("a queue pair number that was never claimed");
        let place = self.table.place_of(number).ok_or_else(unclaimed)?;
        let inner = QpInner::new(number, config, self.device.active_mtu());
        // Before anybody can learn of it, and connect.
        if inner.takes_packets_alone()
            && let Some(word) = self.commons.shelf().qp(number)
        {
            word.store(QpWord::ONLY_PACKETS.bits(), Ordering::SeqCst);
        }
        place.fill(inner);
        Ok(Qp::new(Arc::clone(self), number, place))
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
        let hush = Hush::begin();
        let mut counted = lock(&self.gone);
        let mut guard = slot.lock();
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
        drop(counted);
        drop(hush);
        // A neighbour may be stopped: whoever waits for it holds up nobody else.
        self.wait_for_neighbours();
        drop(gone);
        lock(&self.numbers).free.push_back(number);
    }

    /// Makes an address handle.
    ///
    /// # Errors
    ///
    /// [`ConnectError::NoSuchGid`], [`ConnectError::OtherFamily`] and [`ConnectError::Socket`].
    pub fn create_ah(self: &Arc<Self>, domain: u32, attr: AhAttr) -> Result<Ah, ConnectError> {
        Ah::new(Arc::clone(self), domain, attr)
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
        self.receiver.try_lock().is_none_or(|receiver| {
            let Waiting { deferred, held, .. } = &receiver.waiting;
            !deferred.is_empty() || !held.is_empty()
        })
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.helper.stop();
        self.regions.withdraw_all();
        self.usher.stop();
        // A socket leaves its group when its last descriptor is closed: that has to be below.
        self.helper.forget_sockets();
        let receiver = self.receiver.get_mut();
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
    guard: Latched<'a, Option<Box<QpInner>>>,
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

/// Queue pairs whose acknowledgements wait at once.
const DEFERRED_MAX: usize = 1024;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
