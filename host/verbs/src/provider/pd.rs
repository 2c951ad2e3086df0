//! Protection domains of either provider, and what is made in them.
//!
//! # Safety
//!
//! 1. A [`Region`] of a device that is not ours ends the device's registration before its own: the
//!    fields are dropped in the order of their declaration. When the first has ended, the device has
//!    release the memory (IBTA Vol. 1 §10.6.7.2); where a driver does not release it, the process ends.
//! 2. The caller that registers memory gives the promise of [`adverb_device::Port::register`].

use super::cq::{Cq, Events};
use super::qp::{Qp, Srq};
use crate::ah::AhError;
use crate::error::{AllocateError, CreateError, Lacks};
use crate::hw;
use crate::qp::QpConfig;
use crate::srq::SrqConfig;
use adverb_device::{Access, AhAttr, Pages, QpType, Window, WindowKind, prefer_huge_pages};
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

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
                    cap: config.cap(),
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
                        cap: config.cap(),
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
        either!(self, ah => ah.attr())
    }
}
