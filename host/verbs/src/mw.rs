//! Memory windows: keys to parts of a region that are given to peers, and taken back, by posted work.
//!
//! What a window lets peers do, and when it ends, is decided in the device (`window.rs` there); here
//! are the handle and the verb for windows of type 1. Those of type 2 are bound by
//! [`Work::bind_mw`](crate::Work::bind_mw).

use crate::error::{AllocateError, BindMwError};
use crate::memory::Mr;
use crate::provider::Domain;
use crate::qp::Qp;
use crate::transport::{Supports, op};
use adverb_device::{Access, BindTo, Rkey, SendData, SendKind, SendWork, Window, WindowKind};

/// A memory window. `struct ibv_mw`; IBTA Vol. 1 §10.6.7.
///
/// Dropping it unbinds it: its key is dead from then on. So is that of a window whose region goes,
/// whatever it was bound to: memory that is no longer registered is out of reach.
///
/// ```
/// use adverb_verbs::{Access, Context, MwBind, MwKind, QpConfig, RemoteSlice, Work};
///
/// let context = Context::open("soft_lo")?;
/// let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// let a = pd.create_qp(&QpConfig::new(&cq))?;
/// let b = pd.create_qp(&QpConfig::new(&cq))?;
/// a.connect(b.address()?)?;
/// b.connect(a.address()?)?;
///
/// // No peer can reach the region itself.
/// let mr = pd.allocate(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
/// let mw = pd.alloc_mw(MwKind::Type2)?;
/// let rkey = mw.rkey().incremented();
/// let part = MwBind::new(&mr, 1000, 100, Access::REMOTE_WRITE);
/// b.post(Work::bind_mw(&mw, rkey, &part)?)?;
/// cq.wait()?.ok()?;
///
/// let mut message = pd.buffer(5)?;
/// message.copy_from_slice(b"hello");
/// a.post(Work::write(message, RemoteSlice { addr: part.addr(), rkey }))?;
/// cq.wait()?.ok()?;
///
/// b.post(Work::local_invalidate(rkey))?;
/// cq.wait()?.ok()?;
/// assert!(!mw.is_bound());
/// mr.deregister()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Datagrams reach no memory but receives, so that their queue pairs bind nothing:
///
/// ```compile_fail,E0277
/// # use adverb_verbs::{Access, Context, MwBind, MwKind, QpConfig, Ud};
/// # let context = Context::open("soft_lo")?;
/// # let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// # let mr = pd.allocate(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
/// # let part = MwBind::new(&mr, 0, 100, Access::REMOTE_WRITE);
/// let qp = pd.create_qp_of::<Ud>(&QpConfig::new(&cq))?;
/// qp.bind_mw(&pd.alloc_mw(MwKind::Type1)?, &part, 1)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_mw")]
#[doc(alias = "ibv_dealloc_mw")]
pub struct Mw {
    window: Window,
}

impl Mw {
    pub(crate) fn allocate(domain: &Domain, kind: WindowKind) -> Result<Self, AllocateError> {
        Ok(Self { window: domain.alloc_window(kind)? })
    }

    pub(crate) fn device(&self) -> &Window {
        &self.window
    }

    /// How it is bound and unbound.
    pub fn kind(&self) -> WindowKind {
        self.window.kind()
    }

    /// The key that it has now, or had last: peers can use it only while the window is bound.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.window.key().0)
    }

    /// It is bound to a region that is still registered.
    pub fn is_bound(&self) -> bool {
        self.window.is_bound()
    }
}

/// Target of a memory window's binding. `struct ibv_mw_bind_info`.
///
/// [`Mw`] has an example.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_mw_bind_info")]
pub struct MwBind<'a> {
    /// The region, registered with [`Access::MW_BIND`].
    pub mr: &'a Mr,
    /// Where in it the window starts, in bytes.
    pub offset: usize,
    /// Length of the window in bytes; 0 unbinds a window of type 1.
    pub len: usize,
    /// What peers may do: of [`Access::REMOTE_WRITE`], [`Access::REMOTE_READ`] and
    /// [`Access::REMOTE_ATOMIC`], whether or not the region's own key gives these rights. Writing
    /// and atomics need a region with [`Access::LOCAL_WRITE`]. With [`Access::ZERO_BASED`], for
    /// windows of type 2, the first byte has address 0.
    pub access: Access,
}

impl<'a> MwBind<'a> {
    /// `len` bytes of `mr` from `offset` on.
    pub const fn new(mr: &'a Mr, offset: usize, len: usize, access: Access) -> Self {
        Self { mr, offset, len, access }
    }

    /// Address of the window's first byte: what a peer has to be told, with its key.
    pub fn addr(&self) -> u64 {
        if self.access.contains(Access::ZERO_BASED) {
            return 0;
        }
        self.mr.addr().wrapping_add(u64::try_from(self.offset).unwrap_or(u64::MAX))
    }

    pub(crate) fn device(&self) -> BindTo<'a> {
        let Self { mr, offset, len, access } = *self;
        BindTo { region: mr.region(), offset, len, access }
    }
}

impl<T: Supports<op::BindWindow>> Qp<T> {
    /// Posts a request that binds a window of type 1, and says which key it will have: a message
    /// that is sent later on the same queue pair may tell it to the peer. It is signaled.
    /// IBTA Vol. 1 §10.6.7.
    ///
    /// # Errors
    ///
    /// [`BindMwError`]; nothing was posted then. A request that fails in its turn, because the window
    /// or the region has gone, ends with [`crate::WcStatus::MemoryWindowBind`].
    #[doc(alias = "ibv_bind_mw")]
    pub fn bind_mw(&self, mw: &Mw, to: &MwBind<'_>, wr_id: u64) -> Result<Rkey, BindMwError> {
        let bind = mw.device().bind(to.device(), None).map_err(BindMwError::Bind)?;
        let work = SendWork {
            wr_id,
            kind: SendKind::BindWindow,
            data: SendData::Bind(&bind),
            signaled: true,
            ..SendWork::EMPTY
        };
        self.post_bare(work).map_err(BindMwError::Refused)?;
        Ok(Rkey(bind.key().0))
    }
}
