//! A port: one network interface as an RDMA port of this process.
//!
//! It is driven (`driving.rs`) by the program's own threads, when they post or poll, and the
//! helper (`helper.rs`) when they do not. Its sockets are in `rx_sockets.rs`, and its ways to other
//! devices of the host in `neighbours.rs`.
//!
//! Locks are taken in this order: receive state, queue pair, completion queue or schedule. What is decided with
//! them, when a queue pair sends and acknowledges, is the engine's; `seats.rs` lends it what it needs.

mod driving;
mod exit;
mod frames;
pub(crate) mod helper;
pub(crate) mod management;
pub(crate) mod monitor;
mod neighbours;
mod numbers;
mod rx_sockets;
mod schedule;
mod seats;
mod watch;
mod xrc_proxies;

use crate::futex_mutex::{FutexGuard, FutexMutex};
use crate::link::Links;
use crate::link::errors::OpenError;
use crate::link::gid::{GidTable, devices};
use crate::link::path::PathChoice;
use crate::link::peer_cache::Departed;
use crate::link::shm::handshake::Handshake;
use crate::link::shm::link::{self};
use crate::link::udp::capture::{self, Capture};
use crate::link::udp::endpoint::{Endpoint, FlowCache};
use crate::link::udp::multicast::Group;
use crate::link::udp::reception::{Mode, Reception, Switch};
use crate::link::xdp::seeker::Seeker;
use crate::link::xdp::{Demand, XdpLink};
use crate::memory::export::Exports;
use crate::memory::region::Regions;
use crate::objects::events::Audience;
use crate::objects::notice::DeferredWakeups;
use crate::objects::progress::Progress;
use crate::objects::qp::QpInner;
use crate::objects::standby::Standby;
use crate::objects::table::{Place, QpTable};
use crate::progress::helper::Helper;
use crate::progress::monitor::Monitor;
use crate::progress::numbers::Numbers;
use crate::progress::schedule::SharedSchedule;
use crate::registry::counters::Counters;
use crate::registry::relay::{Passed, Relay};
use crate::registry::stats_page::StatsPage;
use crate::registry::{DomainName, Registry};
use crate::sync::Mutex;
use adverb_engine::{Acks, Driver, EarlyBudget, Gid, QpCounters, Time, Waiting};
use adverb_sys::clock;
use adverb_sys::epoll::Epoll;
use adverb_sys::udp::{self, BURST_BYTES_MAX, Received};
use adverb_wire::{Marks, Qpn};
use adverb_xdp::socket::Incoming;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use xrc_proxies::XrcProxies;

/// A socket, and what is known of its traffic.
#[derive(Debug)]
struct RxSocket {
    endpoint: Arc<Endpoint>,
    flows: FlowCache,
    reception: Reception,
    /// Marks of the last arrival, as far as they were shown.
    marks: Marks,
    /// It is that of a multicast group.
    group: Option<Group>,
}

impl RxSocket {
    /// That of a local address.
    fn at(rx_sockets: &mut [Self], address: IpAddr) -> Option<&mut Self> {
        rx_sockets.iter_mut().find(|rx_socket| rx_socket.endpoint.addr.ip() == address)
    }

    fn new(endpoint: Arc<Endpoint>) -> Self {
        let reception = Reception::new(endpoint.socket.gro());
        let captures = endpoint.capture.is_some();
        let (flows, marks) = (FlowCache::new(), Marks::USUAL);
        let mut rx_socket = Self { endpoint, flows, reception, marks, group: None };
        match captures {
            true => rx_socket.show_marks(),
            // Without it a receiver is blind to congestion, and nothing else changes.
            false => drop(rx_socket.endpoint.socket.show_traffic_class()),
        }
        rx_socket
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
    fn recv(&mut self, buffer: &mut [u8]) -> Option<Received> {
        let socket = &self.endpoint.socket;
        let received = match self.reception.mode() {
            Mode::Singles => {
                self.marks = Marks::USUAL;
                socket.recv_single(buffer)
            }
            Mode::Bursts | Mode::LastBursts => {
                socket.recv_marked(buffer).map(|(received, shown)| {
                    let udp::Marks { traffic_class, hop_limit, flow_label } = shown;
                    // 0 stands for what was not shown.
                    let hop_limit = if hop_limit == 0 { Marks::USUAL.hop_limit } else { hop_limit };
                    self.marks = Marks { traffic_class, hop_limit, flow_label };
                    received
                })
            }
        };
        let Ok(received) = received else {
            self.reception.on_nothing();
            return None;
        };
        // A socket that will not be told goes on as before, and the next arrivals tell it again.
        let datagrams = received.segment.map_or(1, |segment| received.len.div_ceil(segment.max(1)));
        let _ = match self.reception.on_arrival(datagrams) {
            Switch::Nothing => Ok(()),
            Switch::GroOn => socket.set_gro(true),
            Switch::GroOff => socket.set_gro(false),
        };
        Some(received)
    }
}

/// The receiving end of a shared-memory link, and where the queue pair lives that most of its records are for.
type ShmReceiver = link::ShmReceiver<Place>;

/// State of receiving, under the receive lock.
#[derive(Debug)]
pub(crate) struct Receiver {
    shm_receivers: Vec<ShmReceiver>,
    /// Neighbours whose shared-memory links have ended.
    departed: VecDeque<Departed>,
    rx_sockets: Vec<RxSocket>,
    /// Frames that come past the sockets, by queue.
    frames: Vec<Incoming>,
    /// The sockets of multicast groups, once there was one: sleepers watch it, and not them.
    groups: Option<Epoll>,
    buffer: Box<[u8]>,
    /// Acknowledgements that wait.
    waiting: Waiting,
    /// Targets with packets whose turn has not come: `xrc_home.rs`.
    parked: Vec<Qpn>,
    /// How often packets had been passed on to us when we last looked.
    relayed: u32,
    /// What was left to emit has waited for the program once.
    postponed: bool,
    /// Steps since timers and held acknowledgements were looked at.
    steps: u32,
    /// Steps since a shared-memory link or a frame brought something.
    quiet: u32,
    /// Sockets show how packets are marked.
    marks: bool,
    /// Packets do not say that switches may mark them: a queue pair may send that heeds no marks.
    heedless: bool,
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

    /// It was read a moment ago.
    const fn at(now: Time) -> Self {
        Self { read: Some(now) }
    }

    /// The time for a queue pair to emit at: where records are written, it is not asked for on their account.
    fn for_link(&mut self, inner: &QpInner) -> Time {
        match self.read {
            None if inner.has_shm_link() => Time::UNKNOWN,
            Some(_) | None => self.now(),
        }
    }

    fn now(&mut self) -> Time {
        *self.read.get_or_insert_with(|| Time::from_nanos(clock::now_ns()))
    }
}

/// A device that is open in this process.
#[derive(Debug)]
pub struct Port {
    pub(crate) links: Links,
    pub(crate) table: QpTable,
    schedule: SharedSchedule,
    /// What queue pairs have counted that have gone. Locked before any that has not.
    pub(crate) gone: Mutex<QpCounters>,
    receiver: FutexMutex<Receiver>,
    /// The sockets of addresses, those included that have gone: they may come back.
    endpoints: Mutex<HashMap<SocketAddr, Arc<Endpoint>>>,
    /// Held while one is opened: before `endpoints`.
    opening: Mutex<()>,
    capture: Option<Arc<Capture>>,
    /// Packets of other hosts come and go by it.
    xdp_link: OnceLock<Arc<XdpLink>>,
    /// Looks for the next owner of the interface.
    seeker: OnceLock<Seeker>,
    /// There may be such a link: where the interface's owner offers one, it is made with the first address that has use for it.
    demand: Option<Demand>,
    /// Where others see the counters, unless the system has no room for that.
    stats_page: Option<StatsPage>,
    numbers: Mutex<Numbers>,
    pub(crate) handshake: Handshake,
    /// Held while a shared-memory link is made, so that none is made twice; by slot.
    meetings: [Mutex<()>; neighbours::MEETINGS],
    /// Grows whenever the program drives; the helper watches it.
    drives: AtomicU64,
    /// Packets for others that came here since steering was last put right.
    misled: AtomicU32,
    /// When that was last tried, in nanoseconds.
    mended: AtomicU64,
    /// When it was last looked whether this port's sockets are listed where they belong.
    listed: AtomicU64,
    pub(crate) helper: Helper,
    pub(crate) standby: Arc<Standby>,
    pub(crate) audience: Arc<Audience>,
    pub(crate) monitor: Mutex<Option<Monitor>>,
    proxies: XrcProxies,
    desk: management::Desk,
}

impl Port {
    /// Opens a device, whether or not it is open already.
    pub(crate) fn start(name: &str, path: Option<PathChoice>) -> Result<Arc<Self>, OpenError> {
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
        let stats_page = StatsPage::new(name).ok();
        if let Some(stats_page) = &stats_page {
            registry.set_counters(stats_page.descriptor());
        }
        let counters = Arc::<Counters>::default();
        let relay = Relay::open(registry.secret(), device.gids.iter().map(|entry| entry.addr))
            .map_err(failed("open a socket for packets of other processes"))?;
        registry.set_relay_port(relay.port());
        let standby = Arc::new(Standby::new().map_err(failed("prepare the helper thread"))?);
        let helper =
            Helper::new(Arc::clone(&standby)).map_err(failed("prepare the helper thread"))?;
        helper.watch(relay.socket()).map_err(failed("prepare the helper thread"))?;
        helper.watch(standby.doorbell().fd()).map_err(failed("prepare the helper thread"))?;
        let exports =
            Arc::new(Exports::new(Arc::clone(standby.doorbell().page()), memory.shares()));
        let handshake = neighbours::open_handshake(
            device,
            &registry,
            &standby,
            &exports,
            memory.allows_memory(),
        )
        .map_err(failed("listen for neighbours"))?;
        let demand = choice.frames().filter(|demand| !device.loopback || *demand == Demand::Always);
        let opened = match demand {
            Some(Demand::Always) => XdpLink::open(device).map(Some),
            Some(Demand::Offered) | None => Ok(None),
        };
        let (xdp_link, frames) =
            opened.map_err(failed("have the interface's frames, as ADVERB_PATH=xdp asks"))?.unzip();
        if let Some(link) = &xdp_link {
            helper.watch(link.arrivals()).map_err(failed("prepare the helper thread"))?;
        }
        let relayed = registry.relayed();
        let port = Arc::new(Self {
            links: Links {
                device: device.clone(),
                gids: Arc::new(GidTable::new(device)),
                regions: Arc::new(match handshake.uses_shm() {
                    true => Regions::new().with_exports(Arc::clone(&exports)),
                    false => Regions::new(),
                }),
                exports,
                counters: Arc::clone(&counters),
                registry,
                relay,
                choice,
                uses_shm: handshake.uses_shm(),
                shm_links: Mutex::default(),
                early: EarlyBudget::default(),
                paths: Mutex::default(),
            },
            table: QpTable::new(),
            schedule: SharedSchedule::new(),
            gone: Mutex::default(),
            receiver: FutexMutex::new(Receiver {
                shm_receivers: Vec::new(),
                departed: VecDeque::new(),
                rx_sockets: Vec::new(),
                frames: frames.unwrap_or_default(),
                groups: None,
                buffer: vec![0; BURST_BYTES_MAX + 1].into(),
                waiting: Waiting::default(),
                parked: Vec::new(),
                relayed,
                postponed: false,
                steps: 0,
                quiet: 0,
                marks: false,
                heedless: false,
            }),
            endpoints: Mutex::new(HashMap::new()),
            opening: Mutex::new(()),
            capture: capture.map(Arc::new),
            xdp_link: xdp_link.map(OnceLock::from).unwrap_or_default(),
            seeker: OnceLock::new(),
            demand,
            stats_page,
            numbers: Mutex::new(Numbers::default()),
            handshake,
            meetings: std::array::from_fn(|_| Mutex::default()),
            drives: AtomicU64::new(0),
            misled: AtomicU32::new(0),
            mended: AtomicU64::new(0),
            listed: AtomicU64::new(0),
            helper,
            standby,
            audience: Arc::new(Audience::counting_in(counters)),
            monitor: Mutex::default(),
            proxies: XrcProxies::default(),
            desk: management::Desk::default(),
        });
        port.proxies.set_port(&port);
        port.helper.start(&port).map_err(failed("start the helper thread"))?;
        port.handshake
            .start(Arc::<Self>::downgrade(&port))
            .map_err(failed("start the handshake thread"))?;
        exit::register(&port);
        Ok(port)
    }

    /// Shows others the counters, if a reader has asked. For the helper.
    pub(crate) fn show_counters(&self) {
        let asked = self.links.registry.asked();
        if let Some(stats_page) =
            self.stats_page.as_ref().filter(|stats_page| !stats_page.has_answered(asked))
        {
            let gone = self.gone.lock();
            let rows = self.table.each().filter_map(|slot| slot.as_ref().map(|qp| qp.row()));
            stats_page.answer(asked, self.counters(), *gone, rows);
        }
    }

    pub(crate) fn take_number(&self) -> io::Result<Qpn> {
        self.mend_registry(); // By which others find what has the number.
        let now = self.links.now();
        let mut numbers = self.numbers.lock();
        if let Some(number) = numbers.take(now) {
            return Ok(number);
        }
        let block = match self.links.registry.claim_block() {
            Ok(block) => block,
            // Where no more can be had, one that rests is better than none.
            Err(error) => return numbers.take_resting().ok_or(error),
        };
        self.table.add_block(block);
        self.links.exports.page().add_block(block, numbers.add(block));
        let number = numbers.take(now);
        drop(numbers);
        self.steer_again()?;
        number.ok_or_else(|| io::Error::other("a block of numbers is never empty"))
    }

    /// Ends a queue pair: what is owed goes out, then it is gone.
    pub(crate) fn remove_qp(&self, number: Qpn) {
        let Some(slot) = self.table.slot(number) else {
            return;
        };
        let deferred = DeferredWakeups::begin();
        let mut counted = self.gone.lock();
        let mut guard = slot.lock();
        if let Some(inner) = guard.as_mut() {
            inner.transmit(self.links.now(), Acks::Now, &self.links);
            inner.leave(&self.links);
            *counted += inner.counters();
        }
        let gone = guard.take();
        if let Some(word) = self.links.exports.page().qp(number) {
            word.store(0, Ordering::SeqCst);
        }
        self.schedule.with(|schedule| schedule.forget(number));
        drop(guard);
        drop(counted);
        drop(deferred);
        // A neighbour may be stopped: a thread that waits for it holds up no other.
        self.wait_for_neighbours();
        drop(gone);
        self.numbers.lock().rest(number, self.links.now());
    }

    /// How often the program has driven.
    pub(crate) fn drives(&self) -> u64 {
        self.drives.load(Ordering::Relaxed)
    }

    /// When the earliest timer runs out.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.schedule.deadline()
    }

    /// There is something to emit that only waits for its turn.
    pub(crate) fn has_unfinished(&self) -> bool {
        self.schedule.is_ready() || self.schedule.has_open()
    }

    /// An acknowledgement waits for the program's next call, or a thread drives and may defer one.
    pub(crate) fn has_deferred(&self) -> bool {
        self.receiver.try_lock().is_none_or(|receiver| receiver.waiting.owes_packets())
    }
}

impl Progress for Port {
    fn links(&self) -> &Links {
        &self.links
    }

    fn drive(&self) -> bool {
        self.drive()
    }

    fn help(&self) -> bool {
        self.help(false).unwrap_or(false)
    }

    fn has_deferred(&self) -> bool {
        self.has_deferred()
    }

    fn has_record_left(&self) -> bool {
        self.has_record_left()
    }

    fn give_number_back(&self, number: Qpn) {
        self.numbers.lock().give_back(number);
    }

    fn forget_queues_in(&self, domain: DomainName) {
        self.forget_queues_in(domain);
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if self.links.registry.is_inherited() {
            return; // Neither threads nor sockets, and what is shared belongs to the parent.
        }
        self.helper.stop();
        self.links.regions.withdraw_all();
        self.handshake.stop();
        drop(self.seeker.take());
        // A socket leaves its group when its last descriptor is closed: that has to be below.
        self.helper.forget_sockets();
        self.leave_groups();
    }
}

/// A queue pair that is being given packets.
struct Held<'a> {
    number: Qpn,
    guard: FutexGuard<'a, Option<Box<QpInner>>>,
    published: u32,
}

/// A multicast group, and the neighbours from which its messages come by way of shared-memory links.
struct Listeners<'a> {
    group: &'a Group,
    shm_receivers: &'a [ShmReceiver],
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
    /// The IP identification, where it is known: then there is one packet.
    id: Option<u16>,
}
