//! Extended reliable connections: domains, their shared receive queues and their targets.

use crate::context::{Context, Pd};
use crate::cq::{Cq, CqConfig};
use crate::error::CreateError;
use crate::provider::{Domain, Events, Port, XRC};
use crate::qp::{Qp, QpConfig};
use crate::srq::{Srq, SrqConfig};
use crate::transport::XrcTarget;
use adverb_device::OpenXrcd;
use std::io;
use std::os::fd::AsFd;

/// A domain of extended reliable connections: its targets reach its shared receive queues.
/// `struct ibv_xrcd`; IBTA Vol. 1 Annex A14.
///
/// One queue pair a process pair serves any number of queues at the far end:
///
/// ```
/// use adverb_verbs::{Context, QpConfig, SrqConfig, Work, XrcInitiator};
///
/// let context = Context::open("soft_lo")?;
/// let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// let xrcd = context.open_xrcd();
/// let target = xrcd.create_target(0)?;
/// let initiator = pd.create_qp_of::<XrcInitiator>(&QpConfig::new(&cq))?;
/// let [here, there] = [initiator.address()?, target.address()?];
/// initiator.connect(there)?;
/// target.connect(here)?;
///
/// let queues = [(); 2].map(|()| pd.create_xrc_srq(&SrqConfig::new(4), &xrcd, &cq));
/// for (n, srq) in (0..).zip(queues) {
///     let srq = srq?;
///     srq.post(Work::recv(pd.buffer(8)?).wr_id(n))?;
///     initiator.post(Work::send(pd.buffer(8)?).to_srq(srq.number()).wr_id(10))?;
///     for _ in 0..2 {
///         let done = cq.wait()?.ok()?;
///         assert!(done.wc.wr_id == 10 || done.wc.srq == Some(srq.number()));
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A handle: clones are the same domain, which lives as long as a handle, a queue or a target of it.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_xrcd")]
#[doc(alias = "ibv_close_xrcd")]
pub struct Xrcd {
    /// None of a device that has no such domains: nothing can be made in it.
    device: Option<adverb_device::Xrcd>,
    port: Port,
    events: Events,
}

impl Context {
    /// Makes a domain that no other process can open. IBTA Vol. 1 Annex A14.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(&self) -> Xrcd {
        let (port, events) = self.parts();
        let device = port.soft(XRC).ok().map(|port| port.create_xrcd());
        Xrcd { device, port: port.clone(), events: events.clone() }
    }

    /// Opens the domain of a file: the same for all that open that file on this device, by whatever
    /// descriptor, in this process and in others of the same user and network namespace. It ends with the
    /// last of them. The file's contents do not matter, and it can be closed afterwards.
    /// IBTA Vol. 1 Annex A14.
    ///
    /// A target reaches queues of all these processes. Each serves what is for its own queues, so a
    /// process that is stopped keeps the requests for them waiting, and those that come after them on the
    /// same queue pair; one that dies leaves the others alone.
    ///
    /// # Errors
    ///
    /// `NotFound` with [`OpenXrcd::Existing`] if there is none, `AlreadyExists` with
    /// [`OpenXrcd::CreateNew`] if there is one; `PermissionDenied` if the file belongs to another user
    /// than this process; those of `fstat(2)`.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd_of(&self, file: impl AsFd, how: OpenXrcd) -> io::Result<Xrcd> {
        let (port, events) = self.parts();
        let soft =
            port.soft(XRC).map_err(|lacks| io::Error::new(io::ErrorKind::Unsupported, lacks))?;
        let device = Some(soft.open_xrcd(file, how)?);
        Ok(Xrcd { device, port: port.clone(), events: events.clone() })
    }
}

impl Xrcd {
    /// Makes a target in RESET: the end that receives. It belongs to no protection domain; a request
    /// reaches memory of the domain of the queue that it names. `context` names it in its events.
    /// IBTA Vol. 1 Annex A14.
    ///
    /// # Errors
    ///
    /// [`CreateError::System`].
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_target(&self, context: u64) -> Result<Qp<XrcTarget>, CreateError> {
        let soft = self.port.soft(XRC)?;
        // Nothing completes there: receives complete where their queue says.
        let cq = Cq::create(&self.port, &self.events, &CqConfig::new(1))?;
        let config =
            QpConfig::new(&cq).max_send_wr(1).max_recv_wr(0).max_inline(0).context(context);
        let domain = Domain::Soft(soft.clone(), 0);
        Qp::create_in(&self.port, &domain, &self.events, &config, self.device.as_ref())
    }

    /// Two handles are of the same domain.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.device, &other.device) {
            (Some(one), Some(two)) => one.is_same(two),
            (None, _) | (_, None) => false,
        }
    }
}

impl Pd {
    /// Makes a shared receive queue of an XRC domain, whose buffers are of this protection domain.
    /// Its receives complete on `cq`; [`Srq::number`] is what initiators name.
    /// IBTA Vol. 1 Annex A14.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    #[doc(alias = "ibv_create_srq_ex")]
    #[doc(alias = "IBV_SRQT_XRC")]
    pub fn create_xrc_srq(
        &self,
        config: &SrqConfig,
        xrcd: &Xrcd,
        cq: &Cq,
    ) -> Result<Srq, CreateError> {
        let device = xrcd.device.as_ref().ok_or(CreateError::ForeignXrcd);
        let (port, _) = self.parts();
        port.soft(XRC)?;
        Srq::create_xrc(self, config, device?, cq)
    }
}
