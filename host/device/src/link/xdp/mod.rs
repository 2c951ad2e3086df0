//! Packets to and from other hosts as frames of the interface, past the kernel's sockets: the link `xdp`.
//!
//! What goes over the wire is what the UDP link sends. The socket of each address stays beside: it holds the port, and
//! has what frames cannot carry or the steering program leaves to the kernel: multicast, fragments, long bursts, packets
//! to this host, and to neighbours whose hardware address is not known: a datagram of its own makes the kernel ask for one.

use crate::link::gid::Device;
use crate::link::xdp::frame::{Frame, MacAddresses};
use crate::sync::Mutex;
use adverb_sys::bpf::XdpMode;
use adverb_sys::clock;
use adverb_sys::netdev;
use adverb_sys::routes::{Neighbour, Routes};
use adverb_wire::{Flow, Marks};
use adverb_xdp::interface::{Config, Group, Interface, QUEUE_PATIENCE};
use adverb_xdp::socket::{Incoming, NotSent, Outgoing};
use adverb_xdp::steering::{Key, Protocol};
use std::io::{self, ErrorKind::WouldBlock};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

pub(crate) mod frame;

/// The frames of an interface, of which this process is the owner.
#[derive(Debug)]
pub(crate) struct XdpLink {
    owned: Mutex<Owned>,
    index: u32,
    mac: [u8; 6],
    outgoing: Mutex<Outgoing>,
    /// The kernel has not taken all that was written.
    is_behind: AtomicBool,
    routes: Mutex<Routes>,
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
    /// Takes the frames of a device's interface; what arrives comes by the second.
    pub(crate) fn open(device: &Device) -> io::Result<(Arc<Self>, Vec<Incoming>)> {
        let all = netdev::interfaces()?;
        let found = all.iter().find(|interface| interface.index == device.index);
        let Some(mac) = found.and_then(|interface| interface.mac) else {
            let message = format!("{} has no hardware address", device.interface);
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        };
        let failed = |error| io::Error::other(format!("{}: {error}", device.interface));
        // Behind the driver, a program would see bursts that the kernel has not cut yet, which are no packets.
        let config = Config { mode: Some(XdpMode::Native), ..Config::default() };
        let mut interface = Interface::open(device.index, &config).map_err(failed)?;
        let mut group = interface.group(u32::MAX, false, QUEUE_PATIENCE)?;
        let member = interface.join(&mut group)?;
        let place = member.place();
        let mut incoming = Vec::new();
        let mut outgoing = None;
        for socket in member.into_sockets(&group)? {
            incoming.push(socket.incoming);
            outgoing.get_or_insert(socket.outgoing);
        }
        let outgoing = outgoing.ok_or(io::ErrorKind::NotFound)?;
        let link = Self {
            owned: Mutex::new(Owned { interface, group, place }),
            index: device.index,
            mac,
            outgoing: Mutex::new(outgoing),
            is_behind: AtomicBool::new(false),
            routes: Mutex::new(Routes::open()?),
        };
        Ok((Arc::new(link), incoming))
    }

    /// Packets to the RoCE port of this address come here from now on.
    pub(crate) fn claim(&self, local: SocketAddr) -> io::Result<()> {
        let Owned { interface, place, .. } = &mut *self.owned.lock();
        interface.claim(Key { protocol: Protocol::Udp, local, remote: None }, *place)
    }

    /// Lets leave what the kernel has not taken yet; says whether there was any.
    #[inline]
    pub(crate) fn catch_up(&self) -> bool {
        let is_behind = self.is_behind.load(Ordering::Relaxed);
        if is_behind && let Some(mut outgoing) = self.outgoing.try_lock() {
            self.flush(&mut outgoing);
        }
        is_behind
    }

    fn flush(&self, outgoing: &mut Outgoing) {
        let is_behind = outgoing.flush().is_err_and(|error| error.kind() == WouldBlock);
        self.is_behind.store(is_behind, Ordering::Relaxed);
    }

    pub(crate) fn next_hop(self: &Arc<Self>, to: IpAddr) -> Box<NextHop> {
        Box::new(NextHop {
            link: Arc::clone(self),
            to,
            mac: AtomicU64::new(UNKNOWN),
            ask_at: AtomicU64::new(0),
        })
    }
}

/// Where frames for one address go, as the kernel knows it.
#[derive(Debug)]
pub(crate) struct NextHop {
    link: Arc<XdpLink>,
    to: IpAddr,
    /// The hardware address in its lower bits, or [`UNKNOWN`].
    mac: AtomicU64,
    /// When to ask the kernel again, in nanoseconds.
    ask_at: AtomicU64,
}

impl NextHop {
    /// The way for a burst that leaves now; `None`: the socket's.
    #[inline]
    pub(crate) fn way(&self) -> Option<Way<'_>> {
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
        let route = routes.route(self.to, None)?;
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
    outgoing: Option<MutexGuard<'a, Outgoing>>,
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
        link.flush(outgoing.get_or_insert_with(|| link.outgoing.lock()));
    }
}

/// No hardware address has these bits.
const UNKNOWN: u64 = u64::MAX;
/// How long an answer of the kernel counts, and how long it is not asked again about what it does not know.
const KNOWN_NANOS: u64 = 1_000_000_000;
const UNKNOWN_NANOS: u64 = 1_000_000;
