//! Attributes and limits of devices, ports and queue pairs.

use adverb_device::{Device, GroupLimits, PathMtu, QpLimits};
use std::fmt;

/// Completion vectors of a software device.
pub(crate) const COMP_VECTORS: u32 = 1;

/// Bounds of a device. `struct ibv_device_attr`.
///
/// [`Context`](crate::Context) has an example.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
#[doc(alias = "ibv_device_attr")]
pub struct DeviceAttr {
    /// Identifier of the node.
    pub node_guid: u64,
    /// Its vendor: 0xffffff for software devices.
    pub vendor_id: u32,
    /// Its maker's number for what it is.
    pub vendor_part_id: u32,
    /// Its maker's number for its version.
    pub hw_ver: u32,
    /// Ports; they count from 1. The first is used.
    pub phys_port_cnt: u8,
    /// Requests outstanding in one queue.
    pub max_qp_wr: u32,
    /// Pieces of one buffer.
    pub max_sge: u32,
    /// Completions in one queue.
    pub max_cqe: u32,
    /// READs and atomics of peers that one queue pair remembers.
    pub max_qp_rd_atom: u8,
    /// READs and atomics under way from one queue pair.
    pub max_qp_init_rd_atom: u8,
    /// Bytes inline.
    pub max_inline: u32,
    /// Multicast groups that queue pairs of one process are attached to at once.
    pub max_mcast_grp: u32,
    /// Queue pairs of one process that are attached to one multicast group.
    pub max_mcast_qp_attach: u32,
    /// The same, to all groups together.
    pub max_total_mcast_qp_attach: u32,
    /// Completion vectors: what [`crate::CqConfig::comp_vector`] can be, and one more.
    pub num_comp_vectors: u32,
}

impl DeviceAttr {
    /// What every software device has in common; the identifier is left out.
    pub const SOFT: Self = Self {
        node_guid: 0,
        vendor_id: 0x00ff_ffff,
        vendor_part_id: 0,
        hw_ver: 0,
        phys_port_cnt: 1,
        max_qp_wr: QpLimits::WR_MAX,
        max_sge: QpLimits::SGE_MAX,
        max_cqe: adverb_device::CompletionQueue::CAPACITY_MAX,
        max_qp_rd_atom: QpLimits::RD_ATOMIC_MAX,
        max_qp_init_rd_atom: QpLimits::RD_ATOMIC_MAX,
        max_inline: QpLimits::INLINE_MAX,
        max_mcast_grp: GroupLimits::GROUPS,
        max_mcast_qp_attach: GroupLimits::MEMBERS,
        max_total_mcast_qp_attach: GroupLimits::GROUPS * GroupLimits::MEMBERS,
        num_comp_vectors: COMP_VECTORS,
    };
}

/// Attributes of a port as they are. `struct ibv_port_attr`.
///
/// [`Context`](crate::Context) has an example.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
#[doc(alias = "ibv_port_attr")]
pub struct PortAttr {
    /// Whether it carries traffic.
    pub state: PortState,
    /// The largest path MTU there is.
    pub max_mtu: PathMtu,
    /// The largest path MTU that fits the interface.
    pub active_mtu: PathMtu,
    /// Places of the GID table, empty ones between others included: every index in it is less.
    pub gid_tbl_len: usize,
    /// Entries of the P_Key table.
    pub pkey_tbl_len: usize,
    /// The longest message, in bytes.
    pub max_msg_sz: u32,
}

/// State of a port. `enum ibv_port_state`; IBTA Vol. 1 §7.2.7.
///
/// ```
/// use adverb_verbs::{Context, PortState};
///
/// let state = Context::open("soft_lo")?.query_port().state;
/// assert_eq!((state, state.to_string().as_str()), (PortState::Active, "active"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
#[doc(alias = "ibv_port_state")]
pub enum PortState {
    /// It carries traffic.
    #[doc(alias = "IBV_PORT_ACTIVE")]
    Active,
    /// It carried traffic, and the link recovers from an error.
    #[doc(alias = "IBV_PORT_ACTIVE_DEFER")]
    ActiveDefer,
    /// The link is up, and it waits to be allowed to carry traffic.
    #[doc(alias = "IBV_PORT_ARMED")]
    Armed,
    /// There is no link. The only other state of a software device: its interface is down or has gone.
    #[doc(alias = "IBV_PORT_DOWN")]
    Down,
    /// The link is up, and it is being set up.
    #[doc(alias = "IBV_PORT_INIT")]
    Init,
    /// There is no change of state, or the device does not say.
    #[doc(alias = "IBV_PORT_NOP")]
    Unknown,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::ActiveDefer => "active, recovering",
            Self::Armed => "armed",
            Self::Down => "down",
            Self::Init => "initializing",
            Self::Unknown => "unknown",
        })
    }
}

impl PortAttr {
    /// What the port of a software device is like, which is `now` like this, or has gone.
    pub(crate) fn of(device: &Device, now: Option<&Device>) -> Self {
        let state = match now.is_some_and(|device| device.active) {
            true => PortState::Active,
            false => PortState::Down,
        };
        let device = now.unwrap_or(device);
        Self {
            state,
            max_mtu: PathMtu::B4096,
            active_mtu: device.active_mtu(),
            gid_tbl_len: device.gid_places(),
            pkey_tbl_len: 1,
            max_msg_sz: 1 << 31,
        }
    }
}
