//! Devices, what they are like, and protection domains.
//!
//! # Safety
//!
//! [`Pd::register`] passes its caller's promise on to the device (`memory.rs` keeps it for all memory
//! that is ours). Nothing else here is unsafe.

use crate::ah::{self, Ah, AhError, GlobalRoute};
use crate::attr::{DeviceAttr, PortAttr};
use crate::channel::CompChannel;
use crate::cq::{Cq, CqConfig, WorkCompletion};
use crate::error::{AllocateError, CreateError, OpenError};
use crate::events::AsyncEvents;
use crate::memory::{Buf, Dm, Mr, NullMr};
use crate::mw::Mw;
use crate::provider::{self, Domain, Events, Port, Region};
use crate::qp::{Qp, QpConfig};
use crate::srq::{Srq, SrqConfig};
use crate::trace;
use crate::transport::{InDomain, Rc};
use adverb_device::{
    Access, AhAttr, Device, GidEntry, Pkey, PortConfig as ContextConfig, PortCounters, QpCounters,
    WindowKind as MwKind,
};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// The RDMA devices of this host, as far as this network namespace sees them.
///
/// # Errors
///
/// The system would not list its network interfaces.
///
/// # Examples
///
/// ```
/// let devices = adverb_verbs::devices()?;
/// assert!(devices.iter().any(|device| device.name == "soft_lo"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[doc(alias = "ibv_get_device_list")]
#[doc(alias = "ibv_free_device_list")]
pub fn devices() -> io::Result<Vec<Device>> {
    provider::devices()
}

/// An open device.
///
/// ```
/// use adverb_verbs::Context;
///
/// let context = Context::open("soft_lo")?;
/// let (device, port) = (context.query_device(), context.query_port());
/// println!("{}: {} requests, MTU {:?}", context.device().name, device.max_qp_wr, port.active_mtu);
/// for entry in context.query_gid_table()? {
///     println!("{}: {}", entry.index, entry.gid);
/// }
/// let pd = context.alloc_pd();
/// assert_eq!(pd.buffer(64)?.len(), 64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "ibv_context")]
#[doc(alias = "ibv_close_device")]
pub struct Context {
    port: Port,
    events: Events,
    /// As they were when it was opened.
    gids: Arc<[GidEntry]>,
}

impl Context {
    /// Opens the device with this name, such as `soft_lo`. IBTA Vol. 1 §11.2.1.
    ///
    /// # Errors
    ///
    /// [`OpenError`], which names the devices there are.
    #[doc(alias = "ibv_open_device")]
    pub fn open(name: &str) -> Result<Self, OpenError> {
        Self::open_with(name, &ContextConfig::default())
    }

    /// Opens a device with this configuration. Contexts of this process that were opened in the same way
    /// share what there is, unless that is to be exclusive.
    ///
    /// # Errors
    ///
    /// [`OpenError`], which names the devices there are.
    ///
    /// # Examples
    ///
    /// ```
    /// use adverb_verbs::{Context, ContextConfig, PathChoice};
    ///
    /// let config = ContextConfig::default().path(PathChoice::Udp);
    /// let context = Context::open_with("soft_lo", &config)?;
    /// # Ok::<(), adverb_verbs::OpenError>(())
    /// ```
    pub fn open_with(name: &str, config: &ContextConfig) -> Result<Self, OpenError> {
        let port = Port::open_with(name, config)?;
        let failed = |error| OpenError::System { doing: "make a queue of events", error };
        let events = port.create_event_queue().map_err(failed)?;
        let gids = port.gids().into();
        let context = Self { port, events, gids };
        trace::opened(&context);
        Ok(context)
    }

    pub(crate) fn parts(&self) -> (&Port, &Events) {
        (&self.port, &self.events)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.port.device()
    }

    /// Its bounds. Hardware says more than fits the types here, and does not say what it takes inline:
    /// a queue pair that asks for too much is refused. IBTA Vol. 1 §11.2.1.
    #[doc(alias = "ibv_query_device")]
    pub fn query_device(&self) -> DeviceAttr {
        self.port.attr()
    }

    /// What its only port, number 1, is like now. A port whose interface has gone is not active.
    /// IBTA Vol. 1 §11.2.1.
    #[doc(alias = "ibv_query_port")]
    pub fn query_port(&self) -> PortAttr {
        self.port.query_port()
    }

    /// The GID table as it was when this context was opened. [`Context::query_gid_table`] has it as it is
    /// now. IBTA Vol. 1 §11.2.1.
    #[doc(alias = "ibv_query_gid")]
    pub fn gids(&self) -> &[GidEntry] {
        &self.gids
    }

    /// The GID table as it is now. An address keeps its place as long as it is there; one that comes takes the
    /// first free place, and queue pairs and address handles can use it from this look on. Connections over an
    /// address that has gone fail as those whose packets are lost. IBTA Vol. 1 §11.2.1.
    ///
    /// # Errors
    ///
    /// The system would not list its network interfaces.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn query_gid_table(&self) -> io::Result<Vec<GidEntry>> {
        Ok(self.port.look()?.map(|device| device.gids).unwrap_or_default())
    }

    /// The place of the GID table that has the local address of a connection, as [`Device::entry_at`] finds it; also that
    /// of an address which has come since the device was opened.
    pub fn entry_at(&self, local: SocketAddr) -> Option<GidEntry> {
        self.port.entry_at(local)
    }

    /// The only entry of the P_Key table, index 0. IBTA Vol. 1 §11.2.1.
    #[doc(alias = "ibv_query_pkey")]
    pub fn pkey(&self) -> Pkey {
        Pkey::DEFAULT
    }

    /// What the port has counted since this process opened it; [`crate::survey`] tells of other
    /// processes.
    pub fn counters(&self) -> PortCounters {
        self.port.counters()
    }

    /// What all its queue pairs in this process have counted, those that have gone included.
    pub fn qp_counters(&self) -> QpCounters {
        self.port.qp_counters()
    }

    /// Makes a protection domain. IBTA Vol. 1 §11.2.1.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Pd {
        let domain = self.port.new_domain();
        Pd { port: self.port.clone(), events: self.events.clone(), domain }
    }

    /// Allocates memory of the device: `len` bytes of zeros.
    ///
    /// # Errors
    ///
    /// [`AllocateError::Memory`].
    #[doc(alias = "ibv_alloc_dm")]
    pub fn alloc_dm(&self, len: usize) -> Result<Dm, AllocateError> {
        Dm::allocate(&self.port, len)
    }

    /// Makes a completion channel. IBTA Vol. 1 §11.5.1.
    ///
    /// # Errors
    ///
    /// No descriptors left.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self) -> io::Result<CompChannel> {
        CompChannel::create(&self.port)
    }

    /// Makes a completion queue that holds `cqe` completions, without a channel.
    /// IBTA Vol. 1 §11.2.8.
    ///
    /// # Errors
    ///
    /// [`CreateError::OutOfRange`] unless `cqe` is from 1 to [`DeviceAttr::max_cqe`].
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, cqe: u32) -> Result<Cq, CreateError> {
        self.create_cq_with(&CqConfig::new(cqe))
    }

    /// Makes a completion queue. IBTA Vol. 1 §11.2.8.
    ///
    /// # Errors
    ///
    /// [`CreateError::OutOfRange`] and [`CreateError::ForeignChannel`].
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn create_cq_with(&self, config: &CqConfig<'_>) -> Result<Cq, CreateError> {
        Cq::create(&self.port, &self.events, config)
    }

    /// The asynchronous events of this context: those of objects made from it, and those of the
    /// port and the device. IBTA Vol. 1 §11.5.2.
    ///
    /// The first call starts a thread that listens for changes of the network interface.
    ///
    /// # Errors
    ///
    /// The system would not let us listen.
    #[doc(alias = "ibv_get_async_event")]
    pub fn async_events(&self) -> io::Result<AsyncEvents> {
        self.port.monitor()?;
        Ok(AsyncEvents::new(self.events.clone(), self.port.clone()))
    }

    /// Takes a step for the device: receives, answers, and does what is due. Polling a completion
    /// queue that is empty does this too; programs that poll memory instead call it themselves to
    /// be served at once. Without it, a helper thread does the work a little later.
    #[inline]
    pub fn drive(&self) {
        self.port.drive();
    }

    /// Takes in all that has arrived and answers it, and waits for another thread that is doing so.
    /// After it, what a peer sent before this call and the network has delivered has completed, and the
    /// peer has what it waits for. For a program that is about to end, or that must know whether
    /// anything still comes; it takes longer than [`Context::drive`].
    pub fn settle(&self) {
        self.port.settle();
    }
}

/// A protection domain: queue pairs reach only memory of their own. `struct ibv_pd`.
///
/// [`Context`] has an example.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_pd")]
#[doc(alias = "ibv_dealloc_pd")]
pub struct Pd {
    port: Port,
    events: Events,
    domain: Domain,
}

impl Pd {
    /// Allocates and registers `len` bytes of zeros, at the start of a page. IBTA Vol. 1 §10.6.3.
    ///
    /// # Errors
    ///
    /// [`AllocateError`].
    ///
    /// # Examples
    ///
    /// ```
    /// use adverb_verbs::{Access, Context};
    ///
    /// let pd = Context::open("soft_lo")?.alloc_pd();
    /// let mr = pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    /// mr.write(100, b"for all to read")?;
    /// assert_eq!(mr.addr() % 4096, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn allocate(&self, len: usize, access: Access) -> Result<Mr, AllocateError> {
        Mr::allocate(&self.domain, len, access)
    }

    /// Registers memory that the caller gives away. IBTA Vol. 1 §10.6.3.
    ///
    /// # Errors
    ///
    /// [`AllocateError`]; the vector is gone then too.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_vec(&self, bytes: Vec<u8>, access: Access) -> Result<Mr, AllocateError> {
        Mr::from_vec(&self.domain, bytes, access)
    }

    /// Registers `len` bytes of a file of the caller's in memory, a `memfd`, from `offset` on. The file can be
    /// closed afterwards. IBTA Vol. 1 §10.6.3.
    ///
    /// Its length has to be sealed, so that cutting it short cannot kill this process. A dma-buf, memory that
    /// another device's driver exports, has no seals and is refused.
    ///
    /// # Errors
    ///
    /// [`AllocateError::NotSealed`] unless its length is sealed, [`AllocateError::FileTooShort`],
    /// [`AllocateError::Memory`] if it cannot be mapped for reading and writing.
    pub fn register_fd(
        &self,
        file: impl AsFd,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Mr, AllocateError> {
        if !adverb_device::is_sealed(&file) {
            return Err(AllocateError::NotSealed);
        }
        let failed = |error| AllocateError::Memory { len, error };
        let bytes = adverb_device::file_len(&file).map_err(failed)?;
        let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(len));
        if end.is_none_or(|end| end > bytes) {
            return Err(AllocateError::FileTooShort { offset, len, file: bytes });
        }
        Mr::from_file(&self.domain, file, offset, len, access)
    }

    /// Registers a part of the device's memory, zero-based.
    ///
    /// # Errors
    ///
    /// [`AllocateError`].
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn register_dm(
        &self,
        dm: &Dm,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<Mr, AllocateError> {
        Mr::from_dm(&self.domain, dm, offset, len, access)
    }

    /// Makes a place for bytes that are not wanted.
    ///
    /// # Errors
    ///
    /// [`AllocateError::Region`]: there are too many regions.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn null_mr(&self) -> Result<NullMr, AllocateError> {
        NullMr::allocate(&self.domain)
    }

    /// Makes a memory window, bound to nothing. IBTA Vol. 1 §10.6.7.
    ///
    /// # Errors
    ///
    /// [`AllocateError::Region`]: there are too many regions and windows.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, kind: MwKind) -> Result<Mw, AllocateError> {
        Mw::allocate(&self.domain, kind)
    }

    /// Makes a parent domain: another handle of this domain, for objects of one thread. The software
    /// device has no locks to save there.
    #[doc(alias = "ibv_alloc_parent_domain")]
    #[must_use]
    pub fn parent_domain(&self) -> Self {
        self.clone()
    }

    /// # Safety
    ///
    /// As [`adverb_device::Port::register`].
    pub(crate) unsafe fn register_region(
        &self,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Region, AllocateError> {
        // SAFETY: the caller's promise.
        unsafe { self.domain.register(start, len, access) }
    }

    pub(crate) fn parts(&self) -> (&Port, &Events) {
        (&self.port, &self.events)
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Registers memory that stays the caller's. IBTA Vol. 1 §10.6.3.
    ///
    /// The kernel is asked for huge pages behind memory of 2 MiB or more (`MADV_HUGEPAGE` of madvise(2)),
    /// unless `access` has [`Access::ON_DEMAND`]: it gives them to bytes that were not touched before.
    ///
    /// # Errors
    ///
    /// [`AllocateError`].
    ///
    /// # Safety
    ///
    /// Until the last handle of the region is dropped and all work posted with it has completed:
    /// `start..start + len` stays mapped and readable, and writable if `access`, or what it is
    /// registered with anew, allows any writing;
    /// no code holds a `&mut` reference to any of it, and a `&` reference only if `access` allows no
    /// writing and no work that writes to it is posted.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Mr, AllocateError> {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { Mr::from_raw(&self.domain, start, len, access) }
    }

    /// Allocates a local buffer of `len` bytes of zeros, 0 to 2 GiB.
    ///
    /// # Errors
    ///
    /// [`AllocateError`].
    pub fn buffer(&self, len: usize) -> Result<Buf, AllocateError> {
        Buf::allocate(&self.domain, len)
    }

    /// Makes a shared receive queue, whose buffers are of this domain. IBTA Vol. 1 §10.2.9.
    ///
    /// # Errors
    ///
    /// [`CreateError::OutOfRange`].
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, config: &SrqConfig) -> Result<Srq, CreateError> {
        Srq::create(&self.port, &self.events, &self.domain, config)
    }

    /// Makes a queue pair in RESET. IBTA Vol. 1 §11.2.5.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp(&self, config: &QpConfig<'_>) -> Result<Qp<Rc>, CreateError> {
        self.create_qp_of(config)
    }

    /// Makes a queue pair of another type, in RESET. IBTA Vol. 1 §11.2.5.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    ///
    /// # Examples
    ///
    /// ```
    /// use adverb_verbs::{Context, QpConfig, QpState, Uc};
    ///
    /// let context = Context::open("soft_lo")?;
    /// let cq = context.create_cq(16)?;
    /// let qp = context.alloc_pd().create_qp_of::<Uc>(&QpConfig::new(&cq))?;
    /// assert_eq!(qp.state(), QpState::Reset);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp_of<T: InDomain>(&self, config: &QpConfig<'_>) -> Result<Qp<T>, CreateError> {
        Qp::create(&self.port, &self.domain, &self.events, config)
    }

    /// Makes an address handle. IBTA Vol. 1 §11.2.2.
    ///
    /// # Errors
    ///
    /// [`AhError::Connect`].
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, attr: &AhAttr) -> Result<Ah, AhError> {
        Ah::create(&self.domain, attr)
    }

    /// Says where to answer a datagram to: `grh` is the first 40 bytes of its receive.
    /// IBTA Vol. 1 §11.2.2.
    ///
    /// # Errors
    ///
    /// [`AhError::Multicast`], [`AhError::NoHeader`] and [`AhError::NotOurs`].
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn ah_attr_from(
        &self,
        completion: &WorkCompletion,
        grh: &GlobalRoute,
    ) -> Result<AhAttr, AhError> {
        ah::answer_to(&self.port.gids(), completion, grh)
    }

    /// Makes an address handle to answer a datagram: `grh` is the first 40 bytes of its receive.
    /// IBTA Vol. 1 §11.2.2.
    ///
    /// # Errors
    ///
    /// [`AhError`].
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn create_ah_from(
        &self,
        completion: &WorkCompletion,
        grh: &GlobalRoute,
    ) -> Result<Ah, AhError> {
        self.create_ah(&self.ah_attr_from(completion, grh)?)
    }
}
