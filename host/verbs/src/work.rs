//! Work that owns its memory.

use crate::ah::Ah;
use crate::hw;
use crate::memory::{IntoMemory, Memory};
use crate::mw::{Mw, MwBind};
use crate::provider;
use crate::remote::RemoteSlice;
use crate::transport::op;
use adverb_device::{
    Bind, BindError, Feth, Imm, Key, PostError, Qkey, Qpn, Rkey, SendKind, SendTo,
};
use std::fmt;
use std::marker::PhantomData;

/// Kind of the work.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Send(SendKind),
    Bind(Bind),
    Receive,
}

/// Whom it is for; what it owns of that.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Peer,
    Datagram { ah: Ah, remote: Qpn, qkey: Qkey },
    SharedQueue(u32),
}

impl Target {
    /// As the software device has it.
    #[inline]
    pub(crate) fn soft(&self) -> Result<SendTo<'_>, PostError> {
        Ok(match self {
            Self::Peer => SendTo::Peer,
            Self::Datagram { ah, remote, qkey } => match ah.device() {
                provider::Ah::Soft(ah) => SendTo::Datagram { ah, remote: *remote, qkey: *qkey },
                provider::Ah::Hw(_) => return Err(PostError::ForeignAddress),
            },
            Self::SharedQueue(number) => SendTo::SharedQueue(*number),
        })
    }

    /// As other devices have it: what the request itself says, and what it cannot say.
    #[inline]
    pub(crate) fn hw(&self) -> Result<(SendTo<'_>, hw::To<'_>), PostError> {
        Ok(match self {
            Self::Peer => (SendTo::Peer, hw::To::Peer),
            Self::Datagram { ah, remote, qkey } => match ah.device() {
                provider::Ah::Soft(_) => return Err(PostError::ForeignAddress),
                provider::Ah::Hw(ah) => {
                    (SendTo::Peer, hw::To::Datagram { ah, remote: *remote, qkey: *qkey })
                }
            },
            Self::SharedQueue(number) => (SendTo::SharedQueue(*number), hw::To::Peer),
        })
    }
}

/// A request that owns its memory until it completes. Its memory comes back with its completion;
/// that of an unsignaled one is released by the next completion of its queue pair's send queue.
///
/// `O` is what it does: a queue pair takes it if its transport [`Supports`](crate::Supports) that.
/// `Work` without one is work of any kind, which is checked when it is posted: [`Work::any`].
///
/// ```
/// use adverb_verbs::{Access, RemoteSlice, Work};
/// # use adverb_verbs::{Context, QpConfig};
/// # let context = Context::open("soft_lo")?;
/// # let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// # let a = pd.create_qp(&QpConfig::new(&cq))?;
/// # let b = pd.create_qp(&QpConfig::new(&cq))?;
/// # a.connect(b.address()?)?;
/// # b.connect(a.address()?)?;
/// let memory = pd.allocate(64, Access::ALL)?;
/// let far = RemoteSlice { addr: memory.addr(), rkey: memory.rkey() }; // What the peer tells.
/// let local = pd.allocate(64, Access::LOCAL_WRITE)?;
/// local.write(0, b"hello")?;
///
/// a.post_all([
///     Work::write(local.slice(0, 5)?, far).any().unsignaled(),
///     Work::read(local.slice(8, 5)?, far).any().fence(),
///     Work::fetch_add(local.slice(16, 8)?, far.plus(56), 5).any(),
///     Work::compare_swap(local.slice(24, 8)?, far.plus(56), 5, 6).any().wr_id(4),
/// ])?;
/// while cq.wait()?.ok()?.wc.wr_id != 4 {}
/// let mut text = [0; 5];
/// local.read(8, &mut text)?;
/// assert_eq!((&text, memory.load_u64(56)?), (b"hello", 6));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "work does nothing until it is posted"]
pub struct Work<O = op::Any> {
    pub(crate) kind: Kind,
    pub(crate) memory: Memory,
    pub(crate) wr_id: u64,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    pub(crate) to: Target,
    operation: PhantomData<fn() -> O>,
}

impl<O> fmt::Debug for Work<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, wr_id, to, .. } = self;
        f.debug_struct("Work")
            .field("kind", kind)
            .field("to", to)
            .field("wr_id", wr_id)
            .finish_non_exhaustive()
    }
}

impl Work<op::Receive> {
    /// Receives a message. A datagram needs [`crate::GRH_LEN`] bytes more than its message has.
    #[doc(alias = "ibv_post_recv")]
    pub fn recv(memory: impl IntoMemory) -> Self {
        Self::new(Kind::Receive, memory)
    }
}

impl Work<op::Send> {
    /// Sends a message.
    #[doc(alias = "IBV_WR_SEND")]
    pub fn send(memory: impl IntoMemory) -> Self {
        Self::new(Kind::Send(SendKind::Send { imm: None }), memory)
    }

    /// Sends a message with immediate data.
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    pub fn send_with_imm(memory: impl IntoMemory, imm: u32) -> Self {
        Self::new(Kind::Send(SendKind::Send { imm: Some(Imm(imm)) }), memory)
    }

    /// Gives the message an address: a queue pair on the other side of `ah`, and the Q_Key to show
    /// there. For a multicast group the number is [`Qpn::MULTICAST`]. A Q_Key with the highest bit set
    /// means the sending queue pair's own.
    #[doc(alias = "ibv_wr_set_ud_addr")]
    pub fn to(self, ah: &Ah, remote: Qpn, qkey: Qkey) -> Work<op::SendTo> {
        let to = Target::Datagram { ah: ah.clone(), remote, qkey };
        Work { to, ..self.become_other() }
    }
}

impl Work<op::SendTo> {
    /// Sends a datagram: [`Work::send`] with [`Work::to`].
    #[doc(alias = "IBV_WR_SEND")]
    pub fn send_to(memory: impl IntoMemory, ah: &Ah, remote: Qpn, qkey: Qkey) -> Self {
        Work::send(memory).to(ah, remote, qkey)
    }
}

impl Work<op::SendInvalidate> {
    /// Sends a message and invalidates a key of the receiver's: that of a window of type 2, which it
    /// bound on the receiving queue pair. The receiver's completion says which key.
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    pub fn send_with_invalidate(memory: impl IntoMemory, rkey: Rkey) -> Self {
        Self::new(Kind::Send(SendKind::SendInvalidate { rkey }), memory)
    }
}

impl Work<op::LocalInvalidate> {
    /// Invalidates the key of a window of type 2 that was bound on the same queue pair, once all
    /// work posted before is complete: the window is bound to nothing then.
    ///
    /// It ends with [`crate::WcStatus::MemoryWindowBind`], and the queue pair with it, if the key is
    /// anything else.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn local_invalidate(rkey: Rkey) -> Self {
        Self::new(Kind::Send(SendKind::LocalInvalidate { rkey }), Memory::Nothing)
    }
}

impl Work<op::BindWindow> {
    /// Binds a window of type 2, which is bound to nothing when the work's turn comes, under the key
    /// `rkey`: usually [`Mw::rkey`], [incremented](Rkey::incremented).
    ///
    /// It ends with [`crate::WcStatus::MemoryWindowBind`], and the queue pair with it, if the window
    /// is bound then, has this key already, or has gone, or the region has.
    ///
    /// # Errors
    ///
    /// [`BindError`].
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn bind_mw(mw: &Mw, rkey: Rkey, to: &MwBind<'_>) -> Result<Self, BindError> {
        let bind = mw.device().bind(to.device(), Some(Key(rkey.0)))?;
        Ok(Self::new(Kind::Bind(bind), Memory::Nothing))
    }
}

impl Work<op::AtomicWrite> {
    /// Writes the 8 bytes of `memory` to a peer's 8 bytes, as they are and at once: no reader there
    /// sees some of them. IBTA Vol. 1 Annex A19.
    #[doc(alias = "IBV_WR_ATOMIC_WRITE")]
    pub fn atomic_write(memory: impl IntoMemory, to: RemoteSlice) -> Self {
        Self::new(Kind::Send(SendKind::AtomicWrite { va: to.addr, rkey: to.rkey }), memory)
    }
}

impl Work<op::Flush> {
    /// Makes sure that what was written to `len` bytes of a peer's memory before is visible there to all; the peer must
    /// allow WRITEs to it. `wr_flush` with `IBV_FLUSH_GLOBAL` and `IBV_FLUSH_RANGE`. IBTA Vol. 1 Annex A19.
    ///
    /// Nothing of a software device outlives a loss of power, so there is no persistent FLUSH.
    #[doc(alias = "IBV_WR_FLUSH")]
    #[doc(alias = "ibv_wr_flush")]
    pub fn flush(to: RemoteSlice, len: u32) -> Self {
        let how = Feth::default();
        let kind = SendKind::Flush { va: to.addr, rkey: to.rkey, len, how };
        Self::new(Kind::Send(kind), Memory::Nothing)
    }
}

impl Work<op::Write> {
    /// Writes to a peer's memory.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn write(memory: impl IntoMemory, to: RemoteSlice) -> Self {
        let kind = SendKind::Write { va: to.addr, rkey: to.rkey, imm: None };
        Self::new(Kind::Send(kind), memory)
    }

    /// Writes to a peer's memory and completes one of its receives with immediate data.
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub fn write_with_imm(memory: impl IntoMemory, to: RemoteSlice, imm: u32) -> Self {
        let kind = SendKind::Write { va: to.addr, rkey: to.rkey, imm: Some(Imm(imm)) };
        Self::new(Kind::Send(kind), memory)
    }
}

impl Work<op::Read> {
    /// Reads a peer's memory.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn read(memory: impl IntoMemory, from: RemoteSlice) -> Self {
        Self::new(Kind::Send(SendKind::Read { va: from.addr, rkey: from.rkey }), memory)
    }
}

impl Work<op::Atomic> {
    /// Puts `swap` into the peer's 8 bytes if they equal `compare`; what was there comes back in
    /// `memory`, 8 bytes in this machine's order.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    pub fn compare_swap(memory: impl IntoMemory, at: RemoteSlice, compare: u64, swap: u64) -> Self {
        let kind = SendKind::CompareSwap { va: at.addr, rkey: at.rkey, compare, swap };
        Self::new(Kind::Send(kind), memory)
    }

    /// Adds to the peer's 8 bytes, wrapping; what was there comes back in `memory`, 8 bytes in this
    /// machine's order.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub fn fetch_add(memory: impl IntoMemory, at: RemoteSlice, add: u64) -> Self {
        Self::new(Kind::Send(SendKind::FetchAdd { va: at.addr, rkey: at.rkey, add }), memory)
    }
}

impl<O: op::Remote> Work<O> {
    /// Names the shared receive queue of the other side that the request is for: XRC. READs, WRITEs
    /// and atomics take no receive from it, and act on memory of its protection domain.
    #[doc(alias = "ibv_wr_set_xrc_srqn")]
    pub fn to_srq(self, number: u32) -> Work<op::Xrc<O>> {
        Work { to: Target::SharedQueue(number), ..self.become_other() }
    }
}

impl<O> Work<O> {
    fn new(kind: Kind, memory: impl IntoMemory) -> Self {
        Self {
            kind,
            memory: memory.into(),
            wr_id: 0,
            signaled: true,
            solicited: false,
            fence: false,
            to: Target::Peer,
            operation: PhantomData,
        }
    }

    fn become_other<P>(self) -> Work<P> {
        let Self { kind, memory, wr_id, signaled, solicited, fence, to, .. } = self;
        Work { kind, memory, wr_id, signaled, solicited, fence, to, operation: PhantomData }
    }

    /// The same work, and its type does not say what it does: whether the queue pair has it is
    /// checked when it is posted.
    pub fn any(self) -> Work {
        self.become_other()
    }

    /// Comes back with the completion.
    pub fn wr_id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }

    /// Completes without saying so, unless it fails; receives always say so. Its memory is released
    /// when a later request of the same send queue completes visibly.
    pub fn unsignaled(mut self) -> Self {
        self.signaled = false;
        self
    }

    /// Asks the peer for an event.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    pub fn solicited(mut self) -> Self {
        self.solicited = true;
        self
    }

    /// Waits until the READs and atomics posted before have completed.
    #[doc(alias = "IBV_SEND_FENCE")]
    pub fn fence(mut self) -> Self {
        self.fence = true;
        self
    }
}
