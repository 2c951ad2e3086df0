//! Packets to and from other hosts as frames of the interface, past the kernel's sockets: the link `xdp`.
//!
//! What goes over the wire is what the UDP link sends. The socket of each address stays beside: it holds the port, and
//! has what frames cannot carry or the steering program leaves to the kernel: multicast, fragments, long bursts, packets
//! to this host, and to neighbours whose hardware address is not known: a datagram of its own makes the kernel ask for one.
//! When an owner ends, the sockets have all, until a thread finds the next one (`seeker.rs`).

use crate::link::gid::Device;
use crate::link::xdp::frame::{Frame, MacAddresses};
use crate::sync::Mutex;
use adverb_sys::bpf::XdpMode;
use adverb_sys::clock;
use adverb_sys::epoll::{Epoll, Interest};
use adverb_sys::eventfd::EventFd;
use adverb_sys::netdev;
use adverb_sys::routes::{Neighbour, Routes};
use adverb_wire::{Flow, Marks};
use adverb_xdp::interface::{Config, Group, Interface, QUEUE_PATIENCE};
use adverb_xdp::owner::name_of;
use adverb_xdp::socket::{Incoming, NotSent, Outgoing};
use adverb_xdp::steering::{Key, Protocol};
use adverb_xdp::{Membership, Socket};
use std::io::{self, ErrorKind::WouldBlock};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};
use tracing::info;

pub(crate) mod frame;
pub(crate) mod seeker;

/// Whether a device is to have frames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Demand {
    /// If the interface has an owner that offers them.
    Offered,
    /// By an owner, or as one where there is none.
    Always,
}

/// The frames of an interface that are this process's.
#[derive(Debug)]
pub(crate) struct XdpLink {
    source: Source,
    demand: Demand,
    index: u32,
    mac: [u8; 6],
    /// The longest frame that can be sent, in bytes.
    frame_bytes_max: AtomicUsize,
    /// `None` while there is no owner.
    outgoing: Mutex<Option<Outgoing>>,
    /// The kernel has not taken all that was written.
    is_behind: AtomicBool,
    /// There is no owner: the sockets have all packets. Changes with the membership, under its lock.
    is_over: AtomicBool,
    /// What arrives by the next owner, until a step takes it, and whether there is any.
    renewed: Mutex<Vec<Incoming>>,
    is_renewed: AtomicBool,
    /// When it is next looked whether the owner has ended, in nanoseconds.
    look_at: AtomicU64,
    /// Wakes the seeker: the owner has ended, or which addresses have need of one has changed.
    bell: EventFd,
    /// Can be read when frames have come, or the owner has something to say.
    arrivals: Epoll,
    routes: Mutex<Routes>,
}

/// Whom the frames are from.
#[derive(Debug)]
enum Source {
    /// This process has the interface.
    Own(Box<Mutex<Owned>>),
    /// Another one has, of which this one is a member while that lives. Locked for a moment.
    Owner(Mutex<Option<Arc<Membership>>>),
}

impl Source {
    fn membership(&self) -> Option<Arc<Membership>> {
        match self {
            Self::Own(_) => None,
            Self::Owner(place) => place.lock().clone(),
        }
    }
}

#[derive(Debug)]
struct Owned {
    interface: Interface,
    /// Its queues are this process's as long as it lives.
    #[expect(dead_code, reason = "held for as long as the link")]
    group: Group,
    place: u32,
}

impl XdpLink {
    /// Takes frames of a device's interface, by its owner or as one where there is none; what arrives comes by the second.
    pub(crate) fn open(device: &Device) -> io::Result<(Arc<Self>, Vec<Incoming>)> {
        let asked = ask(device, QUEUE_PATIENCE).map_err(|error| refusal(device, &error))?;
        let (source, sockets) = match asked {
            Some((membership, sockets)) => (member(membership), sockets),
            None => own(device)?,
        };
        Self::over(source, sockets, Demand::Always, device)
    }

    /// The same by the interface's owner alone, if there is one. It may have no queue free: another user has them, or the kernel
    /// has not let go of those of an owner that was killed. Then the link begins without a membership, for which the seeker asks.
    pub(crate) fn offered(device: &Device) -> io::Result<Option<(Arc<Self>, Vec<Incoming>)>> {
        match ask_in_time(device) {
            Ok(None) => Ok(None),
            Ok(Some((membership, sockets))) => {
                Self::over(member(membership), sockets, Demand::Offered, device).map(Some)
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                info!(device = %device.name, "no frames yet: {}", refusal(device, &error));
                let source = Source::Owner(Mutex::new(None));
                let link = Self::new(source, Demand::Offered, device, Epoll::new()?, None)?;
                Ok(Some((Arc::new(link), Vec::new())))
            }
            Err(error) => Err(refusal(device, &error)),
        }
    }

    fn over(
        source: Source,
        sockets: Vec<Socket>,
        demand: Demand,
        device: &Device,
    ) -> io::Result<(Arc<Self>, Vec<Incoming>)> {
        let arrivals = Epoll::new()?;
        let (incoming, outgoing) = watch(&arrivals, source.membership().as_deref(), sockets)?;
        let link = Self::new(source, demand, device, arrivals, Some(outgoing))?;
        Ok((Arc::new(link), incoming))
    }

    fn new(
        source: Source,
        demand: Demand,
        device: &Device,
        arrivals: Epoll,
        outgoing: Option<Outgoing>,
    ) -> io::Result<Self> {
        Ok(Self {
            source,
            demand,
            index: device.index,
            mac: mac(device)?,
            frame_bytes_max: AtomicUsize::new(outgoing.as_ref().map_or(0, frame_bytes_max)),
            is_over: AtomicBool::new(outgoing.is_none()),
            outgoing: Mutex::new(outgoing),
            is_behind: AtomicBool::new(false),
            renewed: Mutex::new(Vec::new()),
            is_renewed: AtomicBool::new(false),
            look_at: AtomicU64::new(0),
            bell: EventFd::new()?,
            arrivals,
            routes: Mutex::new(Routes::open()?),
        })
    }

    /// Packets to the RoCE port of this address come here from now on, or from the next owner on, where the last one has ended;
    /// `twin` is the kernel's socket that has it, and `shared` says that other processes have it, too. False if they do not, and
    /// need not.
    pub(crate) fn claim(
        &self,
        local: SocketAddr,
        twin: BorrowedFd<'_>,
        shared: bool,
    ) -> io::Result<bool> {
        if shared && self.yields() {
            return Ok(false); // The kernel gives each process its own packets: this one would have to pass them on.
        }
        let claimed = match &self.source {
            Source::Own(owned) => {
                let Owned { interface, place, .. } = &mut *owned.lock();
                interface.claim(key(local), *place)
            }
            Source::Owner(_) => match self.source.membership() {
                Some(membership) => membership.claim(key(local), twin),
                None => Ok(()),
            },
        };
        claimed.map(|()| true).map_err(|error| {
            let text = format!("frames for {}: {}", local.ip(), explain(&error, "the owner"));
            io::Error::new(error.kind(), text)
        })
    }

    /// Where other processes have an address, too, its packets are the kernel's: frames were not asked for.
    pub(crate) fn yields(&self) -> bool {
        self.demand == Demand::Offered
    }

    /// Another process has the interface, or has had it.
    pub(crate) fn is_by_owner(&self) -> bool {
        matches!(self.source, Source::Owner(_))
    }

    /// Packets to the RoCE port of this address are the kernel's again.
    pub(crate) fn release(&self, local: SocketAddr) {
        match &self.source {
            Source::Own(owned) => {
                let Owned { interface, place, .. } = &mut *owned.lock();
                interface.release(&key(local), *place);
            }
            // The owner may be stopped, and the helper, which calls this, looks after other devices as well.
            Source::Owner(_) => {
                let membership = self.source.membership();
                membership.iter().for_each(|membership| membership.release_soon(key(local)));
                let _ = self.bell.signal();
            }
        }
    }

    /// No address has need of the owner any more: its place there is free for another, and what leaves goes by the sockets.
    fn leave(&self) {
        self.source.membership().iter().for_each(|membership| membership.leave());
    }

    /// Can be read when frames have come, or the owner has something to say.
    pub(crate) fn arrivals(&self) -> &Epoll {
        &self.arrivals
    }

    /// The owner has ended, or the membership. It is not asked all the time, for that takes a system call.
    pub(crate) fn looks_over(&self, now: u64) -> bool {
        if now < self.look_at.load(Ordering::Relaxed) {
            return false;
        }
        self.look_at.store(now.saturating_add(LOOK_NANOS), Ordering::Relaxed);
        self.source.membership().is_some_and(|membership| membership.has_ended())
    }

    /// Lets go of all, so that the next owner can have the queues: from now on the sockets have all packets.
    pub(crate) fn end(&self, frames: &mut Vec<Incoming>) {
        let Source::Owner(place) = &self.source else { return };
        let mut membership = place.lock();
        self.is_over.store(true, Ordering::Relaxed);
        for incoming in frames.drain(..) {
            let _ = self.arrivals.remove(&incoming);
        }
        if let Some(membership) = membership.take() {
            let _ = self.arrivals.remove(&*membership);
        }
        *self.outgoing.lock() = None;
        let _ = self.bell.signal();
    }

    /// There is no owner, as far as is known.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Frames come and go by this owner from now on, in place of one that has ended.
    fn renew(&self, membership: Membership, sockets: Vec<Socket>) -> io::Result<()> {
        let Source::Owner(place) = &self.source else { return Ok(()) };
        let (incoming, outgoing) = watch(&self.arrivals, Some(&membership), sockets)?;
        // An end that comes at once finds all of that.
        let mut place = place.lock();
        self.frame_bytes_max.store(frame_bytes_max(&outgoing), Ordering::Relaxed);
        self.is_behind.store(false, Ordering::Relaxed);
        *self.outgoing.lock() = Some(outgoing);
        *self.renewed.lock() = incoming;
        self.is_renewed.store(true, Ordering::Release);
        *place = Some(Arc::new(membership));
        self.is_over.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Takes over what arrives by the next owner.
    #[inline]
    pub(crate) fn take_renewed(&self, frames: &mut Vec<Incoming>) {
        if self.is_renewed.load(Ordering::Relaxed) && self.is_renewed.swap(false, Ordering::Acquire)
        {
            frames.append(&mut self.renewed.lock());
        }
    }

    /// Lets leave what the kernel has not taken yet; says whether there was any.
    #[inline]
    pub(crate) fn catch_up(&self) -> bool {
        let is_behind = self.is_behind.load(Ordering::Relaxed);
        if is_behind
            && let Some(mut outgoing) = self.outgoing.try_lock()
            && let Some(outgoing) = outgoing.as_mut()
        {
            self.flush(outgoing);
        }
        is_behind
    }

    fn flush(&self, outgoing: &mut Outgoing) {
        let is_behind = outgoing.flush().is_err_and(|error| error.kind() == WouldBlock);
        self.is_behind.store(is_behind, Ordering::Relaxed);
    }

    pub(crate) fn next_hop(self: &Arc<Self>, from: IpAddr, to: IpAddr) -> Box<NextHop> {
        Box::new(NextHop {
            link: Arc::clone(self),
            from,
            to,
            mac: AtomicU64::new(UNKNOWN),
            ask_at: AtomicU64::new(0),
        })
    }
}

/// Where frames from one address to another go, as the kernel knows it.
#[derive(Debug)]
pub(crate) struct NextHop {
    link: Arc<XdpLink>,
    from: IpAddr,
    to: IpAddr,
    /// The hardware address in its lower bits, or [`UNKNOWN`].
    mac: AtomicU64,
    /// When to ask the kernel again, in nanoseconds.
    ask_at: AtomicU64,
}

impl NextHop {
    /// The way for a burst that leaves now, of packets of so many bytes from the BTH on; `None`: the socket's.
    #[inline]
    pub(crate) fn way(&self, packet_bytes: usize) -> Option<Way<'_>> {
        if self.link.is_over()
            || packet_bytes + HEADERS_MAX > self.link.frame_bytes_max.load(Ordering::Relaxed)
        {
            return None;
        }
        let now = clock::now_ns();
        if now >= self.ask_at.load(Ordering::Relaxed) && !self.ask(now) {
            return None;
        }
        let mac = self.mac.load(Ordering::Relaxed);
        let [high, low @ ..] = mac.to_be_bytes();
        let [second, dst @ ..] = low;
        (high == 0 && second == 0)
            .then_some(Way { link: &self.link, macs: MacAddresses { src: self.link.mac, dst } })
    }

    /// Asks the kernel; false if the burst at hand is to go by the socket: the kernel then finds out or proves right what
    /// it is not sure of.
    #[cold]
    fn ask(&self, now: u64) -> bool {
        let found = self.neighbour().ok().flatten();
        let (mac, wait) = match found {
            Some(Neighbour { mac: [a, b, c, d, e, f], .. }) => {
                (u64::from_be_bytes([0, 0, a, b, c, d, e, f]), KNOWN_NANOS)
            }
            None => (UNKNOWN, UNKNOWN_NANOS),
        };
        self.mac.store(mac, Ordering::Relaxed);
        self.ask_at.store(now + wait, Ordering::Relaxed);
        found.is_some_and(|neighbour| neighbour.fresh)
    }

    fn neighbour(&self) -> io::Result<Option<Neighbour>> {
        let routes = self.link.routes.lock();
        let route = routes.route(self.to, Some(self.from), None)?;
        if !route.unicast || route.interface != self.link.index {
            return Ok(None);
        }
        routes.neighbour(route.gateway.unwrap_or(self.to), route.interface)
    }
}

/// The way of a burst.
#[derive(Debug)]
pub(crate) struct Way<'a> {
    link: &'a XdpLink,
    macs: MacAddresses,
}

impl<'a> Way<'a> {
    /// For packets of a flow, marked like this. Where there is no room, it waits so long, once.
    pub(crate) fn sender(&self, flow: &'a Flow, marks: Marks, patience: Duration) -> Sender<'a> {
        let Self { link, macs } = self;
        let outgoing = Some(link.outgoing.lock());
        Sender { link, outgoing, macs: *macs, flow, marks, patience, until: None }
    }
}

/// Sends the packets of a burst; all have left when it is dropped.
#[derive(Debug)]
pub(crate) struct Sender<'a> {
    link: &'a XdpLink,
    /// Let go of while there is no room: others may send what is short.
    outgoing: Option<MutexGuard<'a, Option<Outgoing>>>,
    macs: MacAddresses,
    flow: &'a Flow,
    marks: Marks,
    patience: Duration,
    until: Option<Instant>,
}

impl Sender<'_> {
    /// Sends a packet, from the BTH on; says whether it leaves.
    pub(crate) fn send(&mut self, id: u16, packet: &[u8]) -> bool {
        let Self { link, outgoing, macs, flow, marks, .. } = self;
        let frame = Frame { macs: *macs, flow, marks: *marks };
        loop {
            let ring = outgoing.get_or_insert_with(|| link.outgoing.lock());
            let Some(ring) = ring.as_mut() else { return false };
            match ring.send(|writer| frame.write(writer, id, packet)) {
                Ok(()) => return true,
                Err(NotSent::Size) => return false,
                Err(NotSent::Full) => {
                    let now = Instant::now();
                    if now >= *self.until.get_or_insert_with(|| now + self.patience) {
                        return false;
                    }
                    *outgoing = None;
                    std::thread::yield_now();
                }
            }
        }
    }
}

impl Drop for Sender<'_> {
    fn drop(&mut self) {
        // What the kernel does not take now leaves with the next burst or step.
        let Self { link, outgoing, .. } = self;
        if let Some(outgoing) = outgoing.get_or_insert_with(|| link.outgoing.lock()).as_mut() {
            link.flush(outgoing);
        }
    }
}

fn member(membership: Membership) -> Source {
    Source::Owner(Mutex::new(Some(Arc::new(membership))))
}

/// The ends of sockets; `arrivals` can be read when there is something at one that receives, or the owner has something to say.
fn watch(
    arrivals: &Epoll,
    membership: Option<&Membership>,
    sockets: Vec<Socket>,
) -> io::Result<(Vec<Incoming>, Outgoing)> {
    membership.map_or(Ok(()), |owner| arrivals.add(owner, 0, Interest::Readable))?;
    let (mut incoming, mut outgoing) = (Vec::new(), None);
    for socket in sockets {
        arrivals.add(&socket.incoming, 0, Interest::Readable)?;
        incoming.push(socket.incoming);
        outgoing.get_or_insert(socket.outgoing);
    }
    Ok((incoming, outgoing.ok_or(io::ErrorKind::NotFound)?))
}

fn frame_bytes_max(outgoing: &Outgoing) -> usize {
    usize::try_from(outgoing.packet_bytes_max()).unwrap_or(0)
}

/// Asks the owner of a device's interface once. One that has not answered in time is not waited for again by this process for a
/// while, nor is another, which may be the same process.
fn ask_in_time(device: &Device) -> io::Result<Option<(Membership, Vec<Socket>)>> {
    if clock::now_ns() < ASK_AT.load(Ordering::Relaxed) {
        let message = "an owner has not answered a moment ago, and is not asked";
        return Err(io::Error::other(message));
    }
    let asked = ask(device, Duration::ZERO);
    if asked.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
        ASK_AT.store(clock::now_ns() + SILENCE_NANOS, Ordering::Relaxed);
    }
    asked
}

/// When owners may be asked again, in nanoseconds.
static ASK_AT: AtomicU64 = AtomicU64::new(0);
/// How long an owner counts as silent.
const SILENCE_NANOS: u64 = 10_000_000_000;

/// Asks the owner of a device's interface, if there is one. Queues of one that was before it may be busy for a moment.
fn ask(device: &Device, patience: Duration) -> io::Result<Option<(Membership, Vec<Socket>)>> {
    let (name, begun) = (name_of(device.index), Instant::now());
    let asked = loop {
        match Membership::ask(&name) {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && begun.elapsed() < patience =>
            {
                std::thread::sleep(BUSY_WAIT);
            }
            asked => break asked,
        }
    };
    match asked {
        // As of an interface of our own.
        Ok((membership, _)) if membership.mode() != XdpMode::Native => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "its owner is not in the driver"))
        }
        Ok(member) => Ok(Some(member)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(None),
        Err(error) => Err(error),
    }
}

/// Becomes the owner of a device's interface.
fn own(device: &Device) -> io::Result<(Source, Vec<Socket>)> {
    mac(device)?;
    let failed = |error| io::Error::other(format!("{}: {error}", device.interface));
    // Behind the driver, a program would see bursts that the kernel has not cut yet, which are no packets.
    let config = Config { mode: Some(XdpMode::Native), ..Config::default() };
    let mut interface = Interface::open(device.index, &config).map_err(failed)?;
    let mut group = interface.group(u32::MAX, false, QUEUE_PATIENCE)?;
    let member = interface.join(&mut group)?;
    let place = member.place();
    let sockets = member.into_sockets(&group)?;
    Ok((Source::Own(Box::new(Mutex::new(Owned { interface, group, place }))), sockets))
}

/// The hardware address of a device's interface.
fn mac(device: &Device) -> io::Result<[u8; 6]> {
    let all = netdev::interfaces()?;
    let found = all.iter().find(|interface| interface.index == device.index);
    found.and_then(|interface| interface.mac).ok_or_else(|| {
        let message = format!("{} has no hardware address", device.interface);
        io::Error::new(io::ErrorKind::Unsupported, message)
    })
}

/// Why there are no frames of a device's interface.
fn refusal(device: &Device, error: &io::Error) -> io::Error {
    io::Error::other(format!("{}: {}", device.interface, explain(error, "its owner")))
}

/// What an owner's refusal means.
fn explain(error: &io::Error, owner: &str) -> String {
    let meanings = [
        (io::ErrorKind::AlreadyExists, "another process has them".to_owned()),
        (io::ErrorKind::PermissionDenied, format!("{owner} does not admit this process")),
        (io::ErrorKind::ResourceBusy, format!("{owner} has none left")),
        (io::ErrorKind::TimedOut, format!("{owner} does not answer")),
    ];
    let found = meanings.into_iter().find(|(kind, _)| *kind == error.kind());
    found.map_or_else(|| error.to_string(), |(_, meaning)| meaning)
}

const fn key(local: SocketAddr) -> Key {
    Key { protocol: Protocol::Udp, local, remote: None }
}

/// No hardware address has these bits.
const UNKNOWN: u64 = u64::MAX;
/// How long an answer of the kernel counts, and how long it is not asked again about what it does not know.
const KNOWN_NANOS: u64 = 1_000_000_000;
const UNKNOWN_NANOS: u64 = 1_000_000;
const BUSY_WAIT: Duration = Duration::from_millis(20);
/// Between two looks whether the owner has ended.
const LOOK_NANOS: u64 = 1_000_000;
/// What is in a frame before the BTH, at most, in bytes.
const HEADERS_MAX: usize = 14 + 40 + 8;
