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

/// The rights of an [`Mr`].
#[doc(inline)]
pub use adverb_device::Access;
pub use adverb_device::AckTimeout;
/// Of an [`Mw`] in a raw request.
#[doc(inline)]
pub use adverb_device::Bind;
/// For [`Context::open_xrcd_of`]; [`Xrcd`] has an example.
#[doc(inline)]
pub use adverb_device::OpenXrcd;
/// That of all queue pairs: [`Context::pkey`].
#[doc(inline)]
pub use adverb_device::Pkey;
/// What datagrams show to the queue pair that they are for: [`Ah`].
#[doc(inline)]
pub use adverb_device::Qkey;
/// [`Modify`] changes it.
#[doc(inline)]
pub use adverb_device::QpState;
/// Names the memory of a [`RemoteSlice`] to its owner: [`Mr::rkey`].
#[doc(inline)]
pub use adverb_device::Rkey;
/// What [`Srq::query`] answers.
#[doc(inline)]
pub use adverb_device::SrqAttr;
/// Of completions: [`CqConfig::timestamps`], and [`Cq`] for the rest.
#[doc(inline)]
pub use adverb_device::Timestamps;
/// What an [`Mw`] is.
#[doc(inline)]
pub use adverb_device::WindowKind as MwKind;
#[doc(hidden)]
pub use adverb_device::locks;
/// Of the way that packets take: [`Ah`].
#[doc(inline)]
pub use adverb_device::{AhAttr, Marks};
/// What [`AsyncEvents`] brings.
#[doc(inline)]
pub use adverb_device::{AsyncEvent, Element, EventKind};
pub use adverb_device::{
    BindError, ConnectError, GroupError, ModifyError, PostError, ResizeError, SrqError,
};
/// Raw requests, over memory that the program answers for:
///
/// ```
/// use adverb_verbs::{Access, BufferNumber, Context, QpConfig};
/// use adverb_verbs::{ReceiveWork, SendData, SendKind, SendTo, SendWork, Sge};
/// # let context = Context::open("soft_lo")?;
/// # let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// let config = QpConfig::new(&cq).max_send_sge(2);
/// let (a, b) = (pd.create_qp(&config)?, pd.create_qp(&config)?);
/// # a.connect(b.address()?)?;
/// # b.connect(a.address()?)?;
/// let memory = pd.allocate(64, Access::LOCAL_WRITE)?;
/// let (from, to): ([Sge; 2], [Sge; 1]) =
///     ([memory.sge(0, 8)?, memory.sge(16, 8)?], [memory.sge(32, 16)?]);
/// let receive = ReceiveWork { wr_id: 1, sges: &to, buffer: None };
/// let send = SendWork {
///     wr_id: 2,
///     to: SendTo::Peer,
///     kind: SendKind::Send { imm: None },
///     data: SendData::Gather(&from),
///     signaled: true,
///     solicited: false,
///     fence: false,
///     buffer: None::<BufferNumber>,
/// };
/// // SAFETY: the memory stays until both have completed.
/// unsafe {
///     b.post_recv(&[receive])?;
///     a.post_send(&[send])?;
/// }
/// for _ in 0..2 {
///     cq.wait()?.ok()?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use adverb_device::{BufferNumber, ReceiveWork, SendData, SendKind, SendTo, SendWork, Sge};
/// ```
/// use adverb_verbs::{Context, ContextConfig, DataPath, PathChoice, QpConfig};
///
/// let config = ContextConfig::default().path(PathChoice::Udp);
/// let context = Context::open_with("soft_lo", &config)?;
/// let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// let (a, b) = (pd.create_qp(&QpConfig::new(&cq))?, pd.create_qp(&QpConfig::new(&cq))?);
/// a.connect(b.address()?)?;
/// assert_eq!(a.path(), Some(DataPath::Udp)); // And not `DataPath::InProcess`.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use adverb_device::{DataPath, PathChoice, PortConfig as ContextConfig, neighbours_path};
/// ```
/// use adverb_verbs::{NodeType, Provider, devices};
///
/// for device in devices()? {
///     match device.provider {
///         Provider::Soft => println!("{}: software, of {}", device.name, device.interface),
///         Provider::Hw(nature) if nature.node_type == NodeType::Ca => println!("{}: a NIC", device.name),
///         Provider::Hw(nature) => println!("{}: {}", device.name, nature.node_type),
///     }
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[doc(inline)]
pub use adverb_device::{Device, Nature, NodeType, Provider};
/// ```
/// use adverb_verbs::{Context, hw_counters, survey};
///
/// let context = Context::open("soft_lo")?;
/// for device in survey()? {
///     println!("process {}, {}: {} packets", device.pid, device.device, device.port.sent_pkts);
///     for qp in &device.qps {
///         println!("  queue pair {:#x}: {:?}", qp.number.get(), qp.state);
///     }
/// }
/// for (name, count) in hw_counters(&context.counters(), &context.qp_counters()) {
///     println!("{name}: {count}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use adverb_device::{
    DeviceReport, PortCounters, QpCounters, QpRow, diag_counters, hw_counters, survey,
};
/// ```
/// use adverb_verbs::{Context, Gid, GidKind};
///
/// for entry in Context::open("soft_lo")?.gids() {
///     println!("{}: {}", entry.index, entry.gid);
///     assert_eq!(entry.kind, GidKind::RoceV2);
/// }
/// let gid: Gid = "192.0.2.7".parse()?;
/// assert_eq!(gid.to_string(), "::ffff:192.0.2.7");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use adverb_device::{Gid, GidEntry, GidKind};
/// What [`Context::query_device`] has of it.
#[doc(inline)]
pub use adverb_device::{GroupLimits, QpLimits};
/// ```
/// use adverb_verbs::{Context, Imm, QpConfig, WcOpcode, WcStatus, Work};
/// # let context = Context::open("soft_lo")?;
/// # let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// # let (a, b) = (pd.create_qp(&QpConfig::new(&cq))?, pd.create_qp(&QpConfig::new(&cq))?);
/// # a.connect(b.address()?)?;
/// # b.connect(a.address()?)?;
/// b.post(Work::recv(pd.buffer(8)?))?;
/// a.post(Work::send_with_imm(pd.buffer(8)?, 7))?;
/// for _ in 0..2 {
///     let wc = cq.wait()?.wc;
///     match (wc.status, wc.opcode) {
///         (WcStatus::Success, WcOpcode::Receive) => assert_eq!(wc.imm, Some(Imm(7))),
///         (WcStatus::Success, opcode) => println!("{opcode:?} is done"),
///         (status, _) => panic!("{status}"),
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use adverb_device::{Imm, WcOpcode, WcStatus};
/// Of a connection: [`RcConnect`].
#[doc(inline)]
pub use adverb_device::{PathMtu, RetryCount, RnrRetry, RnrTimer};
/// ```
/// use adverb_verbs::{Context, QpConfig, RemoteQp};
///
/// let context = Context::open("soft_lo")?;
/// let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// let RemoteQp { gid, qpn, psn } = pd.create_qp(&QpConfig::new(&cq))?.address()?;
/// println!("{gid}, queue pair {:#x}, first packet {:#x}", qpn.get(), psn.get());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use adverb_device::{Psn, Qpn};
/// Of a [`Qp`].
#[doc(inline)]
pub use adverb_device::{QpCap, QpType};
pub use ah::{Ah, AhError, GlobalRoute};
pub use attr::{DeviceAttr, PortAttr, PortState};
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
pub use memory::{
    Buf, DeregisterError, Dm, IntoMemory, Lent, Memory, Mr, MrSlice, NullMr, ReregisterError,
};
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
