//! Handles that programs hold of a device: the open port, and what is made with it.
//!
//! # Safety
//!
//! [`Port::register`] passes its caller's promise on to the table of regions, which says what it is
//! good for (`region.rs`). Nothing else here is unsafe.

pub(crate) mod cq;
pub(crate) mod qp;
pub(crate) mod xrc_targets;

use self::cq::Cq;
use self::qp::Qp;
use crate::holder::Holder;
use crate::link::address_vector::AddressVector;
use crate::link::errors::{ConnectError, OpenError};
use crate::link::gid::{Device, GidEntry};
use crate::link::path::{PathChoice, PortConfig};
use crate::link::udp::endpoint::{gid_of, ip_of};
use crate::memory::export::Pages;
use crate::memory::local::Sge;
use crate::memory::lost;
use crate::memory::peer_page::QpWord;
use crate::memory::region::{Region, RegionError, Registration};
use crate::memory::window::{Window, WindowKind};
use crate::objects::ah::{Ah, AhAttr};
use crate::objects::channel::CompChannel;
use crate::objects::cq::{CompletionQueue, CqConfig};
use crate::objects::events::EventQueue;
use crate::objects::progress::Progress;
use crate::objects::qp::{QpConfig, QpInner};
use crate::objects::srq::{Srq, SrqConfig, Tie};
use crate::objects::xrc::{OpenXrcd, Xrcd};
use crate::progress::Port;
use crate::progress::monitor::Monitor;
use crate::registry::counters::PortCounters;
use crate::sync::Mutex;
use adverb_engine::{Access, AccessError, QpCounters};
use adverb_sys::fork::PerProcess;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// A port that others of this process can have too: openers that ask for the same.
#[derive(Debug)]
struct Opened {
    name: String,
    path: Option<PathChoice>,
    port: Weak<Port>,
}

static OPEN: PerProcess<Mutex<Vec<Opened>>> = PerProcess::new();
/// One is started at a time, which takes a while: meanwhile the list can be looked at.
static STARTING: PerProcess<Mutex<()>> = PerProcess::new();

/// The first port like that which is still open.
fn opened(is_it: impl Fn(&Opened) -> bool) -> Option<Arc<Port>> {
    let open = OPEN.get().lock();
    open.iter().filter(|known| is_it(known)).find_map(|known| known.port.upgrade())
}

impl Port {
    fn progress(self: &Arc<Self>) -> Arc<dyn Progress> {
        Arc::<Self>::clone(self)
    }

    /// Opens a device; twice, and both share what there is.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(name: &str) -> Result<Arc<Self>, OpenError> {
        Self::open_with(name, &PortConfig::default())
    }

    /// Opens a device with this configuration; opened twice with the same one, both share what there is, unless
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
        let _starting = STARTING.get().lock();
        if let Some(port) = opened(|known| known.name == name && known.path == path) {
            let _ = port.look(); // Else its table is as of the last look.
            return Ok(port);
        }
        let port = Self::start(name, path)?;
        let mut open = OPEN.get().lock();
        open.retain(|known| known.port.strong_count() > 0);
        open.push(Opened { name: name.to_owned(), path, port: Arc::downgrade(&port) });
        Ok(port)
    }

    /// Gives this handle up. If it was the last one, the threads of the device have ended when the call returns; without
    /// this call, one of them may be at work and end the device a little later. That takes up to 4 s where one of them waits for
    /// the owner of the interface's frames, which has been stopped.
    pub fn close(self: Arc<Self>) {
        if !self.links.registry.is_inherited() {
            let [helper, meeting] = [self.helper.holder(), self.handshake.holder()];
            drop(Holder::without([&helper, &meeting], || Arc::into_inner(self)));
        }
    }

    /// The device, as it was when it was opened.
    pub fn device(&self) -> &Device {
        &self.links.device
    }

    /// What was counted since this process opened the device.
    pub fn counters(&self) -> PortCounters {
        self.links.counters.snapshot()
    }

    /// What all queue pairs have counted, those that have gone included.
    pub fn qp_counters(&self) -> QpCounters {
        let gone = self.gone.lock();
        let mut total = *gone;
        self.table.each().flat_map(|slot| slot.as_ref().map(|qp| qp.counters())).for_each(|qp| {
            total += qp;
        });
        total
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
    /// `access` allows any writing. Until then no code holds a reference to bytes of it that an
    /// access by the device or a peer could make untrue: no `&[u8]` where others may write, no
    /// `&mut [u8]` where others may read.
    pub unsafe fn register(
        &self,
        domain: u32,
        base: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Region, RegionError> {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { self.links.regions.register(domain, base, len, access) }
    }

    /// Registers memory whose first byte is known to work requests and peers by the address `va`.
    /// `ibv_reg_mr_iova`.
    ///
    /// # Errors
    ///
    /// [`RegionError`].
    ///
    /// # Safety
    ///
    /// As for [`Port::register`].
    pub unsafe fn register_at(
        &self,
        domain: u32,
        base: NonNull<u8>,
        len: usize,
        access: Access,
        va: u64,
    ) -> Result<Region, RegionError> {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { self.links.regions.register_at(domain, base, len, access, va) }
    }

    /// Registers memory.
    ///
    /// # Errors
    ///
    /// [`RegionError`].
    ///
    /// # Safety
    ///
    /// As for [`Port::register`]; of memory on demand, what is mapped when an access begins stays so until it ends.
    pub unsafe fn register_as(&self, memory: Registration) -> Result<Region, RegionError> {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { self.links.regions.register_as(memory) }
    }

    /// From now on accesses to its regions survive that their memory has gone: that of programs that do not know that it is not
    /// pinned. For that, `SIGSEGV` and `SIGBUS` have a handler, which passes on what it does not mend.
    pub fn survive_lost_memory(&self) {
        lost::survive(&self.links.regions);
    }

    /// Makes memory present that a piece names, for work of its owner, as an access would.
    ///
    /// # Errors
    ///
    /// [`AccessError`]: no such region in this domain, out of its bounds, not mapped, or not to be written to.
    pub fn prefetch(&self, domain: u32, piece: &Sge, writing: bool) -> Result<(), AccessError> {
        let access = if writing { Access::LOCAL_WRITE } else { Access::NONE };
        let pin = self.links.regions.pin_local(piece.lkey, domain)?;
        let len = usize::try_from(piece.len).map_err(|_| AccessError::OutOfBounds)?;
        pin.range(piece.addr, len, access).map(|_| ())
    }

    /// Takes `len` bytes of zeros from the system, rounded up to whole pages, for a region of this domain with
    /// these rights.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn allocate(&self, len: usize, domain: u32, access: Access) -> io::Result<Pages> {
        match self.links.exports() {
            Some(exports) => Pages::new(exports, len, domain, access),
            None => Pages::private(len),
        }
    }

    /// A region was registered here, and not with another device.
    pub fn owns(&self, region: &Region) -> bool {
        region.is_of(&self.links.regions)
    }

    /// Registers a place that takes what is written to it and keeps nothing, and from which local
    /// work reads zeros.
    ///
    /// # Errors
    ///
    /// [`RegionError::TooMany`].
    pub fn register_null(&self, domain: u32) -> Result<Region, RegionError> {
        self.links.regions.register_null(domain)
    }

    /// Makes a memory window for protection domain `domain`, bound to nothing.
    ///
    /// # Errors
    ///
    /// [`RegionError::TooMany`].
    pub fn alloc_window(&self, domain: u32, kind: WindowKind) -> Result<Window, RegionError> {
        self.links.regions.alloc_window(domain, kind)
    }

    /// Makes a completion queue. The caller has checked the limits, and that the channel is this
    /// port's.
    pub fn create_cq(self: &Arc<Self>, config: &CqConfig) -> Cq {
        Cq::new(Arc::clone(self), CompletionQueue::new(config, &self.links.counters))
    }

    /// Makes a completion channel.
    ///
    /// # Errors
    ///
    /// No descriptors left.
    pub fn create_comp_channel(self: &Arc<Self>) -> io::Result<CompChannel> {
        CompChannel::new(self.progress(), Arc::clone(&self.standby))
    }

    /// Starts to listen for changes of the network interface, unless it was started before.
    ///
    /// # Errors
    ///
    /// No descriptors or threads left.
    pub fn monitor(&self) -> io::Result<()> {
        let mut monitor = self.monitor.lock();
        if monitor.is_none() {
            let (gids, audience) = (Arc::clone(&self.links.gids), Arc::clone(&self.audience));
            *monitor = Some(Monitor::start(&self.links.device, gids, audience)?);
        }
        Ok(())
    }

    /// What is in the GID table. It follows the interface at each [`Port::look`], and while there is a
    /// [monitor](Port::monitor).
    pub fn gids(&self) -> Vec<GidEntry> {
        self.links.gids.entries()
    }

    /// The GID table as it is now of the device of this name, if this process has it open.
    pub fn gids_of_open(name: &str) -> Option<Vec<GidEntry>> {
        opened(|known| known.name == name)?.look().ok()?.map(|device| device.gids)
    }

    /// Places of the GID table, empty ones included: as many as long as the device is open.
    pub fn gid_places(&self) -> usize {
        self.links.gids.places()
    }

    /// The place of the GID table that has the local address of a connection, as [`Device::entry_at`] finds it; also
    /// that of an address which has come since the last look.
    pub fn entry_at(&self, local: SocketAddr) -> Option<GidEntry> {
        let find = |gids| Device { gids, ..self.links.device.clone() }.entry_at(local).copied();
        find(self.gids()).or_else(|| find(self.look().ok()??.gids))
    }

    /// The device as it is now, and not when it was opened; `None` if its interface has gone. The GID table follows:
    /// an address keeps its place as long as it is there, and a new one takes the first free one.
    ///
    /// # Errors
    ///
    /// The system would not list its network interfaces.
    pub fn look(&self) -> io::Result<Option<Device>> {
        self.links.gids.look()
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
        let mut inner = QpInner::new(number, config, self.links.device.active_mtu());
        inner.engine.set_early_budget(&self.links.early);
        // Before a peer can learn of it, and connect.
        if inner.takes_packets_alone()
            && let Some(word) = self.links.exports.page().qp(number)
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
            domain: xrcd.clone(),
            cq: Arc::clone(&cq.shared),
            port: Arc::downgrade(&self.progress()),
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

    /// Makes an XRC domain that no other process can open.
    pub fn create_xrcd(self: &Arc<Self>) -> Xrcd {
        Xrcd::new(&self.progress())
    }

    /// The XRC domain of a file, for this process and others of this user. The file is not read, and can be
    /// closed afterwards.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` and `NotFound`, as `how` has it; `PermissionDenied` if the file belongs to another
    /// user; those of `fstat(2)`.
    pub fn open_xrcd(self: &Arc<Self>, file: impl AsFd, how: OpenXrcd) -> io::Result<Xrcd> {
        Xrcd::open(&self.progress(), file, how)
    }

    /// An XRC domain was made here, and not with another device.
    pub fn owns_xrcd(self: &Arc<Self>, xrcd: &Xrcd) -> bool {
        xrcd.is_of(&self.progress())
    }

    /// Makes an address handle.
    ///
    /// # Errors
    ///
    /// [`ConnectError::NoSuchGid`], [`ConnectError::OtherFamily`] and [`ConnectError::Socket`].
    pub fn create_ah(self: &Arc<Self>, domain: u32, attr: AhAttr) -> Result<Ah, ConnectError> {
        let index = attr.place(&self.gids());
        let attr = attr.gid_index(index);
        let mut address_vector = AddressVector::new(self.endpoint(index)?, attr.gid, attr.marks())?;
        let source = gid_of(address_vector.endpoint.addr.ip());
        address_vector.local = match ip_of(attr.gid).is_multicast() {
            true => self.links.local_group_route(source, attr.gid, address_vector.marks()),
            false => self.links.local_route(source, attr.gid, address_vector.marks()),
        };
        Ok(Ah::new(Arc::new(address_vector), self.progress(), domain, attr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Goal: the table of a device is that of a port that is open, whichever others have been, or are about to be.
    #[test]
    fn the_table_of_a_device_is_that_of_one_that_is_open() {
        let open = |path| {
            let config = PortConfig { path, ..PortConfig::default() };
            Port::open_with("soft_lo", &config).unwrap()
        };
        let closed = open(Some(PathChoice::Udp));
        let port = open(None);
        drop(closed);
        let _starting = STARTING.get().lock();
        assert_eq!(Port::gids_of_open("soft_lo"), Some(port.gids()));
        drop(port);
        // The helper may be in the midst of a step, and lets go of it then.
        let until = Instant::now() + Duration::from_secs(20);
        while let Some(gids) = Port::gids_of_open("soft_lo") {
            assert!(Instant::now() < until, "{gids:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
