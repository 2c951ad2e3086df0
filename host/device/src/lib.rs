//! The software RDMA device: queue pairs, regions and completion queues over plain UDP sockets.
//!
//! A [`Port`] is one network interface seen as an RDMA port. It lives in the process that opened
//! it: whoever posts or polls drives the transport, and a helper thread takes over when nobody
//! does. Several processes share an address through the host's registry.
//!
//! | to change | see |
//! |---|---|
//! | which devices exist, their addresses | `gid.rs` |
//! | what a key may touch | `region.rs`, `window.rs` |
//! | how packets leave | `burst.rs`, `endpoint.rs` |
//! | how packets arrive, who drives | `port.rs`, `reception.rs`, `helper.rs`, `standby.rs` |
//! | when to acknowledge | `ack.rs` |
//! | records between processes of one host | `ring.rs`, `lane.rs`, `bell.rs`, `port/lanes.rs` |
//! | what neighbours see, and who they are | `shelf.rs`, `commons.rs`, `maps.rs`, `usher.rs`, `path.rs` |
//! | direct access to a neighbour's memory | `reach.rs` |
//! | who is told that a completion came | `notify.rs`, `channel.rs` |
//! | asynchronous events | `events.rs`, `monitor.rs` |
//! | what a queue pair owns | `qp.rs`, `host.rs`, `work.rs`, `srq.rs` |
//! | shared receive queues over XRC | `xrc.rs`; of other processes: `steward.rs`, `deputy.rs`, `letter.rs`, `port/deputies.rs` |
//! | where datagrams go, and to how many | `way.rs`, `vicinity.rs`, `multicast.rs` |
//! | several processes on one address | `registry.rs`, `relay.rs`, `probe.rs` |
//! | what is counted, and who can see it | `counters.rs`, `ledger.rs` |
//!
//! The safe API that programs use is `adverb-verbs`; this crate trusts its caller in what its
//! documentation says, and nobody else.

mod access;
mod ack;
mod arena;
mod bell;
mod burst;
mod capture;
mod channel;
mod commons;
mod copying;
mod counters;
mod cq;
mod deputy;
mod endpoint;
mod events;
mod gid;
mod helper;
mod host;
mod lane;
mod latch;
mod ledger;
mod letter;
#[doc(hidden)]
pub mod locks;
mod maps;
mod monitor;
mod multicast;
mod notify;
mod path;
mod port;
mod probe;
mod qp;
mod reach;
mod reception;
mod region;
mod registry;
mod relay;
mod rendezvous;
mod ring;
mod shelf;
mod srq;
mod standby;
mod steward;
mod table;
mod timers;
mod usher;
mod vicinity;
mod way;
mod window;
mod work;
mod xrc;

/// What `notify.rs` and `ring.rs` are built from; their models put in other ones.
mod sync {
    pub(crate) use crate::locks::Mutex;
    pub(crate) use std::sync::MutexGuard;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
}

pub use access::Access;
pub use adverb_engine::{
    AckTimeout, AttributeSet, Attributes, GRH_LEN, Gid, InitAttributes, ModifyError, Partition,
    QpCounters, QpState, QpType, RequestOp, RetryCount, RnrRetry, RtrAttributes, RtsAttributes,
    Settings, TransitionRule, WcOpcode, WcStatus, allowed, check_modify, transition,
};
pub use adverb_sys::memory::{Mapping, file_len, is_sealed, page_bytes, prefer_huge_pages};
pub use adverb_wire::{Grh, Imm, Marks, PathMtu, Pkey, Psn, Qkey, Qpn, Rkey, RnrTimer};
pub use channel::{CompChannel, Notice};
pub use commons::Pages;
pub use counters::{PortCounters, diag_counters, hw_counters};
pub use cq::{Completion, Cq, CqConfig, Overrun, ResizeError, Timestamps};
pub use events::{AsyncEvent, Element, EventKind, EventQueue};
pub use gid::{Device, GidEntry, GidKind, Nature, NodeType, Provider, devices, interface_name};
pub use ledger::{DeviceReport, QpRow, survey};
pub use multicast::{GroupError, GroupLimits};
pub use notify::Arm;
pub use path::{DataPath, PathChoice, PortConfig, neighbours_path};
pub use port::{OpenError, Port, QpLimits};
pub use qp::{Change, ConnectError, PostError, Qp, QpConfig, QpQuery, Side};
pub use region::{Key, Region, RegionError};
pub use srq::{Srq, SrqAttr, SrqConfig, SrqError};
pub use way::{Ah, AhAttr, SendTo};
pub use window::{Bind, BindError, BindTo, Window, WindowKind};
pub use work::{BufferNumber, ReceiveWork, SendData, SendKind, SendWork, Sge};
pub use xrc::{OpenXrcd, XRC_SRQS_MAX, Xrcd};

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Waits until `fd` can be read, at most for `timeout` (`None`: for ever); says whether it can. A signal
/// ends the wait early.
///
/// # Errors
///
/// Those of `poll(2)`.
pub fn wait_readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    adverb_sys::poll::readable(&fd, std::iter::empty(), timeout)
}

/// A packet sequence number that nobody can guess from the last one.
pub fn random_psn() -> Psn {
    use std::hash::{BuildHasher, Hasher};
    // Each `RandomState` has keys of its own, from the system's source of randomness.
    let number = std::hash::RandomState::new().build_hasher().finish();
    Psn::new(u32::try_from(number & 0x00ff_ffff).unwrap_or(0))
}
