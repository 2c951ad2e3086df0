//! The software RDMA device: queue pairs, regions and completion queues over plain UDP sockets.
//!
//! A [`Port`] is one network interface seen as an RDMA port. It lives in the process that opened
//! it: posting and polling drive the transport, and a helper thread takes over when the program
//! does. Several processes share an address through the host's registry.
//!
//! | room | what is in it |
//! |---|---|
//! | `registry/` | several processes on one address; counters, and their pages for other processes |
//! | `memory/` | regions, windows, keys, and what neighbours can map |
//! | `link/` | ways between ports: `udp/`, `shm/`, and which of them a peer is reached by |
//! | `objects/` | queue pairs, completion queues, shared receive queues, channels, events |
//! | `progress/` | the port: what takes steps, and what sleeps meanwhile |
//! | `port/` | what programs hold: the port, opened, and its queue pairs |
//!
//! The safe API that programs use is `adverb-verbs`; this crate trusts its caller in what its
//! documentation says, and no other input.

mod data_path;
mod futex_mutex;
mod holder;
mod link;
#[doc(hidden)]
pub mod locks;
mod memory;
mod objects;
mod port;
mod progress;
mod registry;

/// What `doorbell.rs`, `guard.rs`, `notify.rs` and `ring.rs` are built from; their models put in other ones.
mod sync {
    pub(crate) use crate::futex_mutex::FutexMutex;
    pub(crate) use crate::locks::Mutex;
    pub(crate) use adverb_sys::eventfd::EventFd;
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

pub use adverb_engine::{
    Access, AccessError, AckTimeout, AttributeSet, Attributes, GRH_LEN, Gid, ModifyError,
    Partition, QpCounters, QpState, QpType, RequestOp, RetryCount, RnrRetry, Settings,
    TransitionRule, WcOpcode, WcStatus, allowed, check_modify, transition,
};
pub use adverb_sys::cancel::uncancelled;
pub use adverb_sys::fork::{Generation, PerProcess};
pub use adverb_sys::memory::{
    Mapping, fault_in, file_len, is_mapped, is_sealed, page_bytes, prefer_huge_pages,
};
#[doc(hidden)]
pub use adverb_sys::process::errno;
#[doc(hidden)]
pub use adverb_sys::{caused, debug_as_display, setters, wraps};
pub use adverb_wire::{Feth, Grh, Imm, Marks, PathMtu, Pkey, Psn, Qkey, Qpn, Rkey, RnrTimer};
pub use data_path::DataPath;
pub use link::errors::{ConnectError, OpenError};
pub use link::gid::{
    Device, GidEntry, GidKind, Nature, NodeType, Provider, devices, interface_name,
};
pub use link::path::{PathChoice, PortConfig, neighbours_path};
pub use link::udp::multicast::{GroupError, GroupLimits};
pub use memory::export::Pages;
pub use memory::local::{BufferNumber, Sge};
pub use memory::region::{Key, Region, RegionError, Registration};
pub use memory::window::{Bind, BindError, BindTo, Window, WindowKind};
pub use objects::ah::{Ah, AhAttr, SendTo};
pub use objects::channel::CompChannel;
pub use objects::completion::{Completion, Overrun, Timestamps};
pub use objects::cq::{CompletionQueue, CqConfig, ResizeError};
pub use objects::events::{AsyncEvent, Element, EventKind, EventQueue, Listener};
pub use objects::inbox::{Inbox, ManagementDatagram};
pub use objects::limits::QpLimits;
pub use objects::notice::Notice;
pub use objects::notify::Arm;
pub use objects::qp::{Change, PostError, QpCap, QpConfig, QpQuery, Side};
pub use objects::srq::{Srq, SrqAttr, SrqConfig, SrqError};
pub use objects::work::{ReceiveWork, SendData, SendKind, SendWork};
pub use objects::xrc::{OpenXrcd, XRC_SRQS_MAX, Xrcd};
pub use port::cq::Cq;
pub use port::qp::Qp;
pub use port::xrc_targets::{OpenTarget, RemoteTarget, Serve};
pub use progress::Port;
pub use progress::management::{BoundService, Owner};
pub use registry::CONNECTION_PREFIX_BITS;
pub use registry::connections::Recorded;
pub use registry::counters::{PortCounters, diag_counters, hw_counters};
pub use registry::services::ServicePort;
pub use registry::stats_page::{DeviceReport, QpRow, survey};

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// No handler of this process ends a wait: all ask for a restart (`SA_RESTART`).
pub fn all_handlers_restart() -> bool {
    adverb_sys::signals::all_restart()
}

/// Waits until `fd` can be read, at most for `timeout` (`None`: for ever); says whether it can. A signal
/// ends the wait early.
///
/// # Errors
///
/// Those of `poll(2)`.
pub fn wait_readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    adverb_sys::poll::readable(&fd, std::iter::empty(), timeout)
}

/// A packet sequence number that cannot be guessed from the last one.
pub fn random_psn() -> Psn {
    Psn::new(u32::try_from(adverb_sys::random::number() & 0x00ff_ffff).unwrap_or(0))
}
