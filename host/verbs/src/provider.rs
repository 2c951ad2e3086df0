//! The two providers behind one API: the software device, and the system's libibverbs.
//!
//! Each handle of this crate holds one of these, and each call is one match of two arms: `Soft` is the
//! device crate's type, `Hw` that of `hw.rs`, which has the same calls. What a device of the second kind
//! cannot do is an error that says so.
//!
//! # Safety
//!
//! 1. A [`Region`] of a device that is not ours ends the device's registration before its own: the
//!    fields are dropped in the order of their declaration. When the first has ended, the device has
//!    let go of the memory (IBTA Vol. 1 §10.6.7.2); where a driver does not let go, the process ends.
//! 2. Whoever registers memory gives the promise of [`adverb_device::Port::register`].

use crate::ah::AhError;
use crate::context::{DeviceAttr, PortAttr};
use crate::cq::CqConfig;
use crate::error::{AllocateError, CreateError, Lacks};
use crate::hw;
use crate::qp::{QpCap, QpConfig};
use crate::srq::SrqConfig;
use adverb_device::{
    Access, AhAttr, Arm, AsyncEvent, Change, Completion, ConnectError, DataPath, Device,
    EventQueue, Gid, GroupError, Notice, OpenError, Overrun, Pages, PortConfig, PortCounters,
    PostError, QpCounters, QpQuery, QpState, QpType, Qpn, ReceiveWork, ResizeError, SendWork, Side,
    SrqAttr, SrqError, Timestamps, Window, WindowKind, prefer_huge_pages,
};
use std::io;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// A device that is open.
#[derive(Clone, Debug)]
pub(crate) enum Port {
    Soft(Arc<adverb_device::Port>),
    Hw(Arc<hw::Port>),
}

/// The devices of both providers: ours first.
pub(crate) fn devices() -> io::Result<Vec<Device>> {
    let mut all = adverb_device::devices()?;
    all.extend(hw::devices());
    Ok(all)
}

impl Port {
    pub(crate) fn open_with(name: &str, config: &PortConfig) -> Result<Self, OpenError> {
        let (name, mut known) = match adverb_device::Port::open_with(name, config) {
            Ok(port) => return Ok(Self::Soft(port)),
            Err(OpenError::NotFound { name, known }) => (name, known),
            Err(error) => return Err(error),
        };
        if let Some(port) = hw::Port::open(&name)? {
            return Ok(Self::Hw(port));
        }
        known.extend(adverb_ibv::devices().into_iter().map(|found| found.name));
        Err(OpenError::NotFound { name, known })
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Soft(one), Self::Soft(two)) => Arc::ptr_eq(one, two),
            (Self::Hw(one), Self::Hw(two)) => Arc::ptr_eq(one, two),
            (Self::Soft(_), Self::Hw(_)) | (Self::Hw(_), Self::Soft(_)) => false,
        }
    }

    pub(crate) fn device(&self) -> &Device {
        match self {
            Self::Soft(port) => port.device(),
            Self::Hw(port) => port.device(),
        }
    }

    /// The software device, or the error that another has nothing of the kind.
    pub(crate) fn soft(&self, what: &'static str) -> Result<&Arc<adverb_device::Port>, Lacks> {
        match self {
            Self::Soft(port) => Ok(port),
            Self::Hw(port) => Err(Lacks { device: port.device().name.clone(), what }),
        }
    }

    pub(crate) fn attr(&self) -> DeviceAttr {
        match self {
            Self::Soft(port) => DeviceAttr { node_guid: port.device().guid, ..DeviceAttr::SOFT },
            Self::Hw(port) => port.attr(),
        }
    }

    /// The device as it is now; `None` if its interface has gone.
    pub(crate) fn look(&self) -> io::Result<Option<Device>> {
        match self {
            Self::Soft(port) => port.look(),
            Self::Hw(port) => Ok(Some(port.look())),
        }
    }

    pub(crate) fn query_port(&self) -> PortAttr {
        match self {
            Self::Soft(port) => PortAttr::of(port.device(), port.look().ok().flatten().as_ref()),
            Self::Hw(port) => port.query_port(),
        }
    }

    pub(crate) fn counters(&self) -> PortCounters {
        match self {
            Self::Soft(port) => port.counters(),
            Self::Hw(_) => PortCounters::default(),
        }
    }

    pub(crate) fn qp_counters(&self) -> QpCounters {
        match self {
            Self::Soft(port) => port.qp_counters(),
            Self::Hw(_) => QpCounters::default(),
        }
    }

    /// Takes a step for a device that needs it.
    #[inline]
    pub(crate) fn drive(&self) {
        match self {
            Self::Soft(port) => {
                port.drive();
            }
            Self::Hw(_) => {}
        }
    }

    /// Takes in and answers all that has arrived, on a device that needs it.
    pub(crate) fn settle(&self) {
        match self {
            Self::Soft(port) => port.settle(),
            Self::Hw(_) => {}
        }
    }

    /// Starts to listen for what happens to the port.
    pub(crate) fn monitor(&self) -> io::Result<()> {
        match self {
            Self::Soft(port) => port.monitor(),
            Self::Hw(_) => Ok(()),
        }
    }

    pub(crate) fn create_event_queue(&self) -> io::Result<Events> {
        Ok(match self {
            Self::Soft(port) => Events::Soft(port.create_event_queue()?),
            Self::Hw(port) => Events::Hw(Arc::clone(port)),
        })
    }

    pub(crate) fn create_comp_channel(&self) -> io::Result<CompChannel> {
        Ok(match self {
            Self::Soft(port) => CompChannel::Soft(port.create_comp_channel()?),
            Self::Hw(port) => CompChannel::Hw(Arc::new(adverb_ibv::Channel::new(port.context())?)),
        })
    }

    pub(crate) fn new_domain(&self) -> Domain {
        match self {
            Self::Soft(port) => Domain::Soft(Arc::clone(port), port.new_domain()),
            Self::Hw(port) => Domain::Hw(Arc::new(hw::Domain::new(port))),
        }
    }

    /// Makes a completion queue. The caller has checked the limits, and that the channel is this
    /// port's.
    pub(crate) fn create_cq(
        &self,
        events: &Events,
        config: &CqConfig<'_>,
    ) -> Result<Cq, CreateError> {
        match self {
            Self::Soft(port) => Ok(Cq::Soft(port.create_cq(&adverb_device::CqConfig {
                capacity: config.cqe,
                context: config.context,
                channel: config.channel.and_then(|channel| channel.device().soft()).cloned(),
                events: events.soft().cloned(),
                timestamps: config.timestamps,
            }))),
            Self::Hw(port) => {
                if config.timestamps != Timestamps::None {
                    let device = port.device().name.clone();
                    return Err(Lacks { device, what: "timestamps of completions" }.into());
                }
                let channel = config.channel.and_then(|channel| channel.device().hw());
                let CqConfig { cqe, context, comp_vector, .. } = *config;
                let cq = hw::Cq::new(port, cqe, context, channel, comp_vector);
                let what = format_args!("a completion queue of {cqe} completions");
                let failed = |error| CreateError::System(port.explain(what, &error));
                Ok(Cq::Hw(Arc::new(cq.map_err(failed)?)))
            }
        }
    }
}

/// The asynchronous events of a context.
#[derive(Clone, Debug)]
pub(crate) enum Events {
    Soft(Arc<EventQueue>),
    Hw(Arc<hw::Port>),
}

impl Events {
    pub(crate) fn soft(&self) -> Option<&Arc<EventQueue>> {
        match self {
            Self::Soft(queue) => Some(queue),
            Self::Hw(_) => None,
        }
    }

    pub(crate) fn get(&self, timeout: Option<Duration>) -> io::Result<Option<AsyncEvent>> {
        match self {
            Self::Soft(queue) => queue.get(timeout),
            Self::Hw(port) => port.event(timeout),
        }
    }

    pub(crate) fn try_get(&self) -> Option<AsyncEvent> {
        match self {
            Self::Soft(queue) => queue.try_get(),
            Self::Hw(port) => port.try_event(),
        }
    }

    pub(crate) fn lost(&self) -> u64 {
        match self {
            Self::Soft(queue) => queue.lost(),
            Self::Hw(_) => 0,
        }
    }

    pub(crate) fn watch(&self) -> BorrowedFd<'_> {
        match self {
            Self::Soft(queue) => queue.watch(),
            Self::Hw(port) => port.context().async_fd(),
        }
    }
}

/// A completion queue had something.
#[derive(Debug)]
pub(crate) struct Wake {
    /// Which, among those of its channel.
    pub(crate) id: u64,
    /// What is to be acknowledged; nothing where that is done already.
    pub(crate) notice: Option<Arc<Notice>>,
}

impl Wake {
    fn soft(notice: Arc<Notice>) -> Self {
        Self { id: notice.id(), notice: Some(notice) }
    }

    fn hw(id: u64) -> Self {
        Self { id, notice: None }
    }
}

/// A completion channel.
#[derive(Clone, Debug)]
pub(crate) enum CompChannel {
    Soft(adverb_device::CompChannel),
    Hw(Arc<adverb_ibv::Channel>),
}

impl CompChannel {
    fn soft(&self) -> Option<&adverb_device::CompChannel> {
        match self {
            Self::Soft(channel) => Some(channel),
            Self::Hw(_) => None,
        }
    }

    fn hw(&self) -> Option<&Arc<adverb_ibv::Channel>> {
        match self {
            Self::Soft(_) => None,
            Self::Hw(channel) => Some(channel),
        }
    }

    pub(crate) fn get(&self, timeout: Option<Duration>) -> io::Result<Option<Wake>> {
        match self {
            Self::Soft(channel) => Ok(channel.get(timeout)?.map(Wake::soft)),
            Self::Hw(channel) => {
                Ok(hw::wait(timeout, || channel.take(), || channel.fd())?.map(Wake::hw))
            }
        }
    }

    pub(crate) fn try_get(&self) -> Option<Wake> {
        match self {
            Self::Soft(channel) => channel.try_get().map(Wake::soft),
            Self::Hw(channel) => channel.take().ok().flatten().map(Wake::hw),
        }
    }

    pub(crate) fn watch(&self) -> io::Result<BorrowedFd<'_>> {
        match self {
            Self::Soft(channel) => channel.watch(),
            Self::Hw(channel) => Ok(channel.fd()),
        }
    }

    pub(crate) fn watch_events(&self) -> BorrowedFd<'_> {
        match self {
            Self::Soft(channel) => channel.watch_events(),
            Self::Hw(channel) => channel.fd(),
        }
    }
}

/// A completion queue.
#[derive(Clone, Debug)]
pub(crate) enum Cq {
    Soft(adverb_device::Cq),
    Hw(Arc<hw::Cq>),
}

impl Cq {
    pub(crate) fn soft(&self) -> Option<&adverb_device::Cq> {
        match self {
            Self::Soft(cq) => Some(cq),
            Self::Hw(_) => None,
        }
    }

    /// Its name in events of its channel; `None` if it has none.
    pub(crate) fn id(&self) -> Option<u64> {
        match self {
            Self::Soft(cq) => cq.notice().map(Notice::id),
            Self::Hw(cq) => Some(cq.name()),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        match self {
            Self::Soft(cq) => cq.capacity(),
            Self::Hw(cq) => cq.capacity(),
        }
    }

    pub(crate) fn resize(&self, cqe: u32) -> Result<(), ResizeError> {
        match self {
            Self::Soft(cq) => cq.resize(cqe),
            Self::Hw(cq) => cq.resize(cqe),
        }
    }

    /// Acknowledges events; those of hardware are acknowledged when they are taken.
    pub(crate) fn acknowledge(&self, count: u32) {
        match self {
            Self::Soft(cq) => {
                if let Some(notice) = cq.notice() {
                    notice.acknowledge(count);
                }
            }
            Self::Hw(_) => {}
        }
    }

    pub(crate) fn unacknowledged(&self) -> u32 {
        match self {
            Self::Soft(cq) => {
                let notice = cq.notice().map_or(0, Notice::unacknowledged);
                notice.saturating_add(cq.unacknowledged_async())
            }
            Self::Hw(_) => 0,
        }
    }

    /// Asks for an event; false if there is no channel for it.
    #[inline]
    pub(crate) fn arm(&self, solicited_only: bool) -> bool {
        match self {
            Self::Soft(cq) => cq.arm(if solicited_only { Arm::Solicited } else { Arm::Any }),
            Self::Hw(cq) => cq.arm(solicited_only),
        }
    }

    #[inline]
    pub(crate) fn poll(&self, out: &mut [Completion]) -> Result<usize, Overrun> {
        match self {
            Self::Soft(cq) => cq.poll(out),
            Self::Hw(cq) => cq.poll(out),
        }
    }
}

/// A protection domain.
#[derive(Clone, Debug)]
pub(crate) enum Domain {
    Soft(Arc<adverb_device::Port>, u32),
    Hw(Arc<hw::Domain>),
}

impl Domain {
    /// Its number: no two domains of a process that can meet have the same.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        match self {
            Self::Soft(_, number) => *number,
            Self::Hw(domain) => domain.number(),
        }
    }

    fn soft(&self, what: &'static str) -> Result<(&Arc<adverb_device::Port>, u32), Lacks> {
        match self {
            Self::Soft(port, number) => Ok((port, *number)),
            Self::Hw(domain) => Err(Lacks { device: domain.port().device().name.clone(), what }),
        }
    }

    /// Takes memory from the system, for a region with these rights.
    pub(crate) fn pages(&self, len: usize, access: Access) -> io::Result<Pages> {
        match self {
            Self::Soft(port, number) => port.allocate(len, *number, access),
            Self::Hw(_) => Pages::private(len),
        }
    }

    /// Registers memory.
    ///
    /// # Safety
    ///
    /// Rule 2.
    pub(crate) unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Region, AllocateError> {
        // Neighbours copy to and from huge pages faster, and adapters have fewer of them to look up.
        // Where there are none, small ones do.
        if len >= HUGE_PAGE_BYTES && !access.contains(Access::ON_DEMAND) {
            let _ = prefer_huge_pages(start, len);
        }
        match self {
            Self::Soft(port, number) => {
                // SAFETY: the caller's promise.
                let region = unsafe { port.register(*number, start, len, access) }?;
                Ok(Region::Soft(region))
            }
            Self::Hw(domain) => {
                // SAFETY: the caller's promise.
                let region =
                    unsafe { adverb_device::Region::foreign(domain.number(), start, len, access) }?;
                let what = "to register them (it pins them: see `ulimit -l`)";
                let port = domain.port();
                let failed = |error| {
                    let error = port.explain(what, &error);
                    AllocateError::Memory { len, error }
                };
                let pd = domain.pd().map_err(failed)?;
                let (iova, bits) = (region.addr(), access.bits() & !IGNORED.bits());
                // SAFETY: the caller's promise, for as long as the value that is made here lives.
                let hardware = unsafe { adverb_ibv::Mr::register(pd, start, len, iova, bits) };
                let hardware = hardware.map_err(failed)?;
                Ok(Region::Hw(Box::new(Hardware { mr: hardware, region })))
            }
        }
    }

    /// A region of this domain with these rights may lie in these pages.
    pub(crate) fn suits(&self, pages: &Pages, access: Access) -> bool {
        match self {
            Self::Soft(_, number) => pages.suit(*number, access),
            Self::Hw(_) => true,
        }
    }

    /// The memory of `region` can be registered here too.
    pub(crate) fn is_of_the_same_device(&self, region: &Region) -> bool {
        match (self, region) {
            (Self::Soft(port, _), Region::Soft(region)) => port.owns(region),
            (Self::Hw(domain), Region::Hw(hardware)) => {
                Arc::ptr_eq(hardware.mr.pd().context(), domain.port().context())
            }
            (Self::Soft(..), Region::Hw(_)) | (Self::Hw(_), Region::Soft(_)) => false,
        }
    }

    pub(crate) fn register_null(&self) -> Result<adverb_device::Region, AllocateError> {
        let (port, number) = self.soft("null memory regions")?;
        Ok(port.register_null(number)?)
    }

    pub(crate) fn alloc_window(&self, kind: WindowKind) -> Result<Window, AllocateError> {
        let (port, number) = self.soft("memory windows")?;
        Ok(port.alloc_window(number, kind)?)
    }

    pub(crate) fn create_ah(&self, attr: &AhAttr) -> Result<Ah, AhError> {
        Ok(match self {
            Self::Soft(port, number) => Ah::Soft(port.create_ah(*number, *attr)?),
            Self::Hw(domain) => Ah::Hw(domain.create_ah(*attr)?),
        })
    }

    /// Makes a shared receive queue. The caller has checked the limits.
    pub(crate) fn create_srq(
        &self,
        events: &Events,
        config: &SrqConfig,
    ) -> Result<Srq, CreateError> {
        let SrqConfig { max_wr, max_sge, context } = *config;
        match self {
            Self::Soft(_, number) => {
                let config = config.for_device(*number, events);
                Ok(Srq::Soft(adverb_device::Srq::new(&config)))
            }
            Self::Hw(domain) => {
                let srq = hw::Srq::new(domain, max_wr, max_sge, context);
                let what = format_args!("a shared receive queue of {max_wr} receives");
                let failed = |error| CreateError::System(domain.port().explain(what, &error));
                Ok(Srq::Hw(Arc::new(srq.map_err(failed)?)))
            }
        }
    }

    /// Makes a queue pair in RESET. The caller has checked the limits, and that all is of one device.
    pub(crate) fn create_qp(
        &self,
        kind: QpType,
        events: &Events,
        config: &QpConfig<'_>,
        xrcd: Option<&adverb_device::Xrcd>,
    ) -> Result<Qp, CreateError> {
        let queues = [config.send_cq.device(), config.recv_cq.device()];
        match (self, queues) {
            (Self::Soft(port, number), [Cq::Soft(send_cq), Cq::Soft(recv_cq)]) => {
                let made = port.create_qp(&adverb_device::QpConfig {
                    domain: *number,
                    kind,
                    send_cq: (**send_cq).clone(),
                    recv_cq: (**recv_cq).clone(),
                    srq: config.srq.and_then(|srq| srq.device().soft()).cloned(),
                    xrcd: xrcd.cloned(),
                    events: events.soft().cloned(),
                    context: config.context,
                    max_send_wr: config.max_send_wr,
                    max_recv_wr: config.max_recv_wr,
                    max_send_sge: config.max_send_sge,
                    max_recv_sge: config.max_recv_sge,
                    max_inline: config.max_inline,
                    signal_all: config.signal_all,
                    block_self_multicast: config.block_self_multicast,
                });
                Ok(Qp::Soft(made.map_err(CreateError::System)?))
            }
            (Self::Hw(domain), [Cq::Hw(send_cq), Cq::Hw(recv_cq)]) => {
                if matches!(kind, QpType::XrcInitiator | QpType::XrcTarget) {
                    let device = domain.port().device().name.clone();
                    return Err(Lacks { device, what: XRC }.into());
                }
                if config.block_self_multicast {
                    let device = domain.port().device().name.clone();
                    return Err(Lacks { device, what: BLOCK_SELF_MULTICAST }.into());
                }
                let made = hw::Qp::new(
                    domain,
                    &hw::Makings {
                        kind,
                        send_cq,
                        recv_cq,
                        srq: config.srq.and_then(|srq| srq.device().hw()),
                        cap: QpCap {
                            max_send_wr: config.max_send_wr,
                            max_recv_wr: if config.srq.is_some() { 0 } else { config.max_recv_wr },
                            max_send_sge: config.max_send_sge,
                            max_recv_sge: config.max_recv_sge,
                            max_inline: config.max_inline,
                        },
                        signal_all: config.signal_all,
                        context: config.context,
                    },
                );
                let QpConfig { max_send_wr, max_recv_wr, max_inline, .. } = *config;
                let what = format_args!(
                    "a queue pair of {max_send_wr} requests and {max_recv_wr} receives, \
                     {max_inline} bytes inline"
                );
                let failed = |error| CreateError::System(domain.port().explain(what, &error));
                Ok(Qp::Hw(Box::new(made.map_err(failed)?)))
            }
            (Self::Soft(..) | Self::Hw(_), _) => Err(CreateError::ForeignCq),
        }
    }
}

/// What only the software device has.
pub(crate) const XRC: &str = "extended reliable connections (XRC)";
const BLOCK_SELF_MULTICAST: &str = "queue pairs that do not hear themselves (block_self_multicast)";

/// Registered memory of this length may have a huge page in it.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Rights that say how C's memory is to be treated, which is done otherwise here: addresses that start
/// at 0 are asked for by themselves, and hints about pages are not passed on.
const IGNORED: Access = Access::ZERO_BASED.with(Access::ON_DEMAND).with(Access::HUGETLB);

/// A registration.
#[derive(Debug)]
pub(crate) enum Region {
    Soft(adverb_device::Region),
    Hw(Box<Hardware>),
}

/// A registration with a device that is not ours.
#[derive(Debug)]
pub(crate) struct Hardware {
    /// The device's own. Ends first (rule 1).
    mr: adverb_ibv::Mr,
    /// How its owner reaches the memory.
    region: adverb_device::Region,
}

impl Deref for Region {
    type Target = adverb_device::Region;

    #[inline]
    fn deref(&self) -> &adverb_device::Region {
        match self {
            Self::Soft(region) => region,
            Self::Hw(hardware) => &hardware.region,
        }
    }
}

impl Region {
    /// The local key.
    #[inline]
    pub(crate) fn lkey(&self) -> u32 {
        match self {
            Self::Soft(region) => region.key().0,
            Self::Hw(hardware) => hardware.mr.lkey(),
        }
    }

    /// The remote key.
    #[inline]
    pub(crate) fn rkey(&self) -> u32 {
        match self {
            Self::Soft(region) => region.key().0,
            Self::Hw(hardware) => hardware.mr.rkey(),
        }
    }

    /// Ends the registration; false if its memory must be kept for ever ([`adverb_device::Region::end`]).
    pub(crate) fn end(self) -> bool {
        match self {
            Self::Soft(region) => region.end(),
            Self::Hw(hardware) => {
                let Hardware { mr, region } = *hardware;
                drop(mr); // First (rule 1).
                region.end()
            }
        }
    }
}

/// A way to a port or a multicast group.
#[derive(Clone, Debug)]
pub(crate) enum Ah {
    Soft(adverb_device::Ah),
    Hw(hw::Ah),
}

impl Ah {
    pub(crate) fn attr(&self) -> AhAttr {
        match self {
            Self::Soft(ah) => ah.attr(),
            Self::Hw(ah) => ah.attr(),
        }
    }
}

/// A shared receive queue.
#[derive(Clone, Debug)]
pub(crate) enum Srq {
    Soft(adverb_device::Srq),
    Hw(Arc<hw::Srq>),
}

impl Srq {
    fn soft(&self) -> Option<&adverb_device::Srq> {
        match self {
            Self::Soft(srq) => Some(srq),
            Self::Hw(_) => None,
        }
    }

    fn hw(&self) -> Option<&Arc<hw::Srq>> {
        match self {
            Self::Soft(_) => None,
            Self::Hw(srq) => Some(srq),
        }
    }

    /// Takes an XRC queue out of its domain.
    pub(crate) fn close(&self) {
        match self {
            Self::Soft(srq) => srq.close(),
            Self::Hw(_) => {}
        }
    }

    pub(crate) fn number(&self) -> u32 {
        match self {
            Self::Soft(srq) => srq.number(),
            Self::Hw(srq) => srq.number(),
        }
    }

    pub(crate) fn query(&self) -> SrqAttr {
        match self {
            Self::Soft(srq) => srq.query(),
            Self::Hw(srq) => srq.query(),
        }
    }

    pub(crate) fn arm_limit(&self, limit: u32) -> Result<(), SrqError> {
        match self {
            Self::Soft(srq) => srq.arm_limit(limit),
            Self::Hw(srq) => srq.arm_limit(limit),
        }
    }

    pub(crate) fn resize(&self, max_wr: u32) -> Result<(), SrqError> {
        match self {
            Self::Soft(srq) => srq.resize(max_wr),
            Self::Hw(srq) => srq.resize(max_wr),
        }
    }

    #[inline]
    pub(crate) fn post_receive(&self, batch: &[ReceiveWork<'_>]) -> Result<(), (usize, PostError)> {
        match self {
            Self::Soft(srq) => srq.post_receive(batch),
            Self::Hw(srq) => srq.post_receive(batch),
        }
    }

    pub(crate) fn unacknowledged(&self) -> u32 {
        match self {
            Self::Soft(srq) => srq.unacknowledged(),
            Self::Hw(_) => 0,
        }
    }
}

/// A queue pair.
#[derive(Debug)]
pub(crate) enum Qp {
    Soft(adverb_device::Qp),
    Hw(Box<hw::Qp>),
}

impl Qp {
    #[inline]
    pub(crate) fn number(&self) -> Qpn {
        match self {
            Self::Soft(qp) => qp.number(),
            Self::Hw(qp) => qp.number(),
        }
    }

    pub(crate) fn state(&self) -> QpState {
        match self {
            Self::Soft(qp) => qp.state(),
            Self::Hw(qp) => qp.state(),
        }
    }

    pub(crate) fn counters(&self) -> QpCounters {
        match self {
            Self::Soft(qp) => qp.counters(),
            Self::Hw(_) => QpCounters::default(),
        }
    }

    pub(crate) fn path(&self) -> Option<DataPath> {
        match self {
            Self::Soft(qp) => qp.path(),
            Self::Hw(_) => None,
        }
    }

    pub(crate) fn remote(&self) -> Option<(Gid, Qpn)> {
        match self {
            Self::Soft(qp) => qp.remote(),
            Self::Hw(qp) => qp.remote(),
        }
    }

    pub(crate) fn outstanding(&self) -> u64 {
        match self {
            Self::Soft(qp) => qp.outstanding(),
            Self::Hw(qp) => qp.outstanding(),
        }
    }

    pub(crate) fn modify(
        &self,
        to: QpState,
        change: &Change,
        forgotten: impl FnMut(Side, u32),
    ) -> Result<(), ConnectError> {
        match self {
            Self::Soft(qp) => qp.modify(to, change, forgotten),
            Self::Hw(qp) => qp.modify(to, change, forgotten),
        }
    }

    pub(crate) fn query(&self) -> QpQuery {
        match self {
            Self::Soft(qp) => qp.query(),
            Self::Hw(qp) => qp.query(),
        }
    }

    pub(crate) fn to_err(&self) {
        match self {
            Self::Soft(qp) => qp.to_err(),
            Self::Hw(qp) => qp.to_err(),
        }
    }

    #[inline]
    pub(crate) fn post_send(&self, batch: &[SendWork<'_>]) -> Result<(), (usize, PostError)> {
        match self {
            Self::Soft(qp) => qp.post_send(batch),
            Self::Hw(qp) => qp.post_send(batch, hw::To::Peer),
        }
    }

    #[inline]
    pub(crate) fn post_receive(&self, batch: &[ReceiveWork<'_>]) -> Result<(), (usize, PostError)> {
        match self {
            Self::Soft(qp) => qp.post_receive(batch),
            Self::Hw(qp) => qp.post_receive(batch),
        }
    }

    pub(crate) fn attach(&self, group: Gid) -> Result<(), GroupError> {
        match self {
            Self::Soft(qp) => qp.attach(group),
            Self::Hw(qp) => qp.attach(group),
        }
    }

    pub(crate) fn detach(&self, group: Gid) -> Result<(), GroupError> {
        match self {
            Self::Soft(qp) => qp.detach(group),
            Self::Hw(qp) => qp.detach(group),
        }
    }
}
