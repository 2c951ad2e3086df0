//! RDMA verbs, safe: devices, protection domains, memory regions, completion queues, queue pairs.
//!
//! The objects and their names are those of libibverbs. What is behind them is the software device
//! `soft_<interface>`, which every network interface with an address has: no hardware, no kernel
//! module, no privilege.
//!
//! ```
//! use adverb_verbs::{Access, Context, QpConfig, Work};
//!
//! let context = Context::open("soft_lo")?;
//! let pd = context.alloc_pd();
//! let cq = context.create_cq(16)?;
//! let a = pd.create_qp(&QpConfig::new(&cq))?;
//! let b = pd.create_qp(&QpConfig::new(&cq))?;
//! a.connect(b.address()?)?;
//! b.connect(a.address()?)?;
//!
//! let target = pd.allocate(64, Access::LOCAL_WRITE)?;
//! b.post(Work::recv(target.slice(0, 64)?).wr_id(1))?;
//! let mut message = pd.buffer(5)?;
//! message.copy_from_slice(b"hello");
//! a.post(Work::send(message).wr_id(2))?;
//!
//! for _ in 0..2 {
//!     cq.wait()?.ok()?;
//! }
//! let mut received = [0; 5];
//! target.read(0, &mut received)?;
//! assert_eq!(&received, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Memory
//!
//! A peer that holds a key may change memory at any time, and a Rust reference promises that no other
//! code does. So memory comes in two kinds: [`Mr`] can be shared with peers and is only ever copied from
//! and to, or accessed as atomics; [`Buf`] is local and gives slices, while it is yours: posting it
//! gives it away, its completion gives it back. An [`Mw`] gives a peer a part of a region for a
//! while.
//!
//! # Posting
//!
//! [`Qp::post`] takes [`Work`] that owns its memory. [`Pd::scope`] lends slices of the program to work
//! for the length of a closure. [`Qp::post_send`] and [`Qp::post_recv`] take batches of raw requests,
//! as C does, and are `unsafe` for that.
//!
//! # Mistakes
//!
//! What can be told from types does not compile. A buffer that was posted is gone until it comes
//! back:
//!
//! ```compile_fail,E0382
//! # use adverb_verbs::{Context, QpConfig, Work};
//! # let context = Context::open("soft_lo")?;
//! # let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
//! # let qp = pd.create_qp(&QpConfig::new(&cq))?;
//! let buffer = pd.buffer(8)?;
//! qp.post(Work::recv(buffer))?;
//! println!("{}", buffer[0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Memory that peers can reach is never a slice:
//!
//! ```compile_fail
//! # use adverb_verbs::{Access, Context};
//! # let pd = Context::open("soft_lo")?.alloc_pd();
//! let mr = pd.allocate(64, Access::ALL)?;
//! let bytes: &[u8] = &mr;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! No other crate can make a transport, and raw requests are not posted without a promise:
//!
//! ```compile_fail,E0277
//! #[derive(Debug)]
//! enum Mine {}
//! impl adverb_verbs::Transport for Mine {}
//! ```
//!
//! ```compile_fail,E0133
//! # use adverb_verbs::{Context, QpConfig, ReceiveWork};
//! # let context = Context::open("soft_lo")?;
//! # let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
//! # let qp = pd.create_qp(&QpConfig::new(&cq))?;
//! qp.post_recv(&[ReceiveWork { wr_id: 0, sges: &[], buffer: None }]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What cannot is an error that names the mistake, before anything is queued; handles may be dropped
//! in any order, with work outstanding, or leaked.

mod ah;
mod attr;
mod channel;
pub mod cm;
mod context;
mod cq;
mod error;
mod events;
#[cfg(feature = "tokio")]
mod futures;
mod hw;
mod memory;
mod mw;
mod provider;
mod qp;
mod remote;
mod scope;
mod srq;
mod trace;
mod transport;
mod work;
mod xrc;

#[doc(hidden)]
pub use adverb_device::locks;
pub use adverb_device::{
    Access, AckTimeout, AhAttr, AsyncEvent, Bind, BindError, BufferNumber, ConnectError, DataPath,
    Device, DeviceReport, Element, EventKind, Gid, GidEntry, GidKind, GroupError, GroupLimits, Imm,
    Marks, ModifyError, Nature, NodeType, OpenXrcd, PathChoice, PathMtu, Pkey,
    PortConfig as ContextConfig, PortCounters, PostError, Provider, Psn, Qkey, QpCap, QpCounters,
    QpLimits, QpRow, QpState, QpType, Qpn, ReceiveWork, ResizeError, RetryCount, Rkey, RnrRetry,
    RnrTimer, SendData, SendKind, SendTo, SendWork, Sge, SrqAttr, SrqError, Timestamps, WcOpcode,
    WcStatus, WindowKind as MwKind, diag_counters, hw_counters, neighbours_path, survey,
};
pub use ah::{Ah, AhError, GlobalRoute};
pub use attr::{DeviceAttr, PortAttr};
pub use channel::{CompChannel, CqEvent};
pub use context::{Context, Pd, devices};
pub use cq::{Completion, Completions, Cq, CqConfig, WorkCompletion};
pub use error::{
    AllocateError, BindMwError, Busy, CreateError, Lacks, NotifyError, OpenError, PollError,
    RangeError, Rejected, WorkError,
};
pub use events::AsyncEvents;
#[cfg(feature = "tokio")]
pub use futures::{AsyncCompChannel, AsyncEventStream};
pub use memory::{Buf, DeregisterError, Dm, Lent, Memory, Mr, MrSlice, NullMr, ReregisterError};
pub use mw::{Mw, MwBind};
pub use qp::{Modify, Qp, QpAttr, QpConfig, RcConnect, UcConnect};
pub use remote::{ParseRemoteError, RemoteQp, RemoteSlice};
pub use scope::Scope;
pub use srq::{Srq, SrqConfig};
pub use transport::{
    Connected, InDomain, Rc, Receives, Sends, Supports, Transport, Uc, Ud, XrcInitiator, XrcTarget,
    op,
};
pub use work::Work;
pub use xrc::Xrcd;

/// Bytes in front of every datagram in its receive: its network header.
pub const GRH_LEN: usize = 40;
const _: () = assert!(adverb_device::GRH_LEN == 40);
