//! Hardware provider: RDMA hardware and the kernel's drivers, through the system's
//! libibverbs.
//!
//! What is here mirrors what the device crate has for the software device, in the words of that crate,
//! so that the rest of this one sees no difference. `adverb-ibv` knows C's side of it. Where there is no
//! library there are no such devices.
//!
//! Of a device with several ports the first is used.

mod cq;
mod qp;
mod srq;

pub(crate) use self::cq::Cq;
pub(crate) use self::qp::{Makings, Qp, To};
pub(crate) use self::srq::Srq;

use crate::attr::{DeviceAttr, PortAttr, PortState};
use adverb_device::locks::Mutex;
use adverb_device::{
    AhAttr, AsyncEvent, ConnectError, Device, Element, EventKind, Gid, GidEntry, GidKind, Marks,
    Nature, NodeType, OpenError, PathMtu, QpLimits, Qpn, interface_name, wait_readable,
};
use adverb_ibv::layout::{self, value};
use adverb_ibv::{Affected, Context, Event};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The port that is used.
pub(crate) const PORT: u8 = 1;

/// The devices that the library knows, as far as they tell of themselves.
pub(crate) fn devices() -> Vec<Device> {
    let open = |found: &adverb_ibv::Found| Context::open(&found.name).ok().flatten();
    adverb_ibv::devices().iter().map(|found| describe(found, open(found).as_ref())).collect()
}

/// What a device is like now. One that cannot be opened has no addresses and is not active.
fn describe(found: &adverb_ibv::Found, context: Option<&Context>) -> Device {
    let attr = context.and_then(|context| context.query_port(PORT).ok());
    let entries = context.and_then(|context| context.gids(PORT).ok()).unwrap_or_default();
    let index = entries.iter().map(|entry| entry.ndev_ifindex).find(|index| *index != 0);
    let netdev = index.and_then(interface_name);
    let node_type = match found.node_type {
        value::NODE_CA => NodeType::Ca,
        value::NODE_RNIC => NodeType::Rnic,
        _ => NodeType::Unspecified,
    };
    let active_mtu = attr.and_then(|attr| mtu(attr.active_mtu)).unwrap_or(PathMtu::B256);
    let nature = Nature::new(node_type, active_mtu);
    let mut device = Device::foreign(found.name.clone(), found.guid, nature);
    (device.interface, device.interface_mtu) = netdev.unwrap_or_default();
    device.index = index.unwrap_or(0);
    device.active = attr.is_some_and(|attr| attr.state == value::PORT_ACTIVE);
    device.gids = places(&entries);
    device
}

/// The GID table. Places whose packets go over UDP come first: programs look for an address, which often
/// has a place of each kind.
fn places(entries: &[layout::GidEntry]) -> Vec<GidEntry> {
    let mut places: Vec<_> = entries.iter().filter_map(place).collect();
    places.sort_by_key(|place| place.kind != GidKind::RoceV2);
    places
}

/// A place of the GID table; none beyond those that have a name here.
fn place(entry: &layout::GidEntry) -> Option<GidEntry> {
    let kind = match entry.gid_type {
        value::GID_TYPE_ROCE_V1 => GidKind::RoceV1,
        value::GID_TYPE_ROCE_V2 => GidKind::RoceV2,
        _ => GidKind::Ib,
    };
    Some(GidEntry::foreign(u8::try_from(entry.gid_index).ok()?, Gid(entry.gid.0), kind))
}

fn mtu(code: i32) -> Option<PathMtu> {
    PathMtu::from_code(u8::try_from(code).ok()?)
}

/// A device that is open in this process.
#[derive(Debug)]
pub(crate) struct Port {
    context: Arc<Context>,
    device: Device,
    attr: DeviceAttr,
    /// The next name of a queue: never used again, so that completions of one that has gone are
    /// known as such.
    names: AtomicU32,
    /// What the makers of queues gave them, by name.
    contexts: Mutex<Vec<(u32, u64)>>,
}

/// Ports that are open in this process: opening a device once more gives the same.
static OPEN: Mutex<Vec<Weak<Port>>> = Mutex::new(Vec::new());

/// Numbers of protection domains, beyond those of the software device.
static DOMAINS: AtomicU32 = AtomicU32::new(1 << 31);

impl Port {
    /// Opens the device with this name; `None` if the library knows none.
    pub(crate) fn open(name: &str) -> Result<Option<Arc<Self>>, OpenError> {
        let mut open = OPEN.lock();
        open.retain(|port| port.strong_count() > 0);
        let same = |port: &Arc<Self>| port.device.name == name;
        if let Some(port) = open.iter().filter_map(Weak::upgrade).find(same) {
            return Ok(Some(port));
        }
        let Some(found) = adverb_ibv::devices().into_iter().find(|found| found.name == name) else {
            return Ok(None);
        };
        let failed = |error| OpenError::System { doing: "open the device by libibverbs", error };
        let Some(context) = Context::open(name).map_err(failed)? else {
            return Ok(None);
        };
        let port = Arc::new(Self {
            device: describe(&found, Some(&context)),
            attr: bounds(&found, &context).map_err(failed)?,
            context: Arc::new(context),
            names: AtomicU32::new(1),
            contexts: Mutex::default(),
        });
        open.push(Arc::downgrade(&port));
        Ok(Some(port))
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn attr(&self) -> DeviceAttr {
        self.attr
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The device as it is now.
    pub(crate) fn look(&self) -> Device {
        let node_type = match self.device.node_type() {
            NodeType::Ca => value::NODE_CA,
            NodeType::Rnic => value::NODE_RNIC,
            NodeType::Unspecified | _ => 0,
        };
        let (name, guid) = (self.device.name.clone(), self.device.guid);
        describe(&adverb_ibv::Found { name, guid, node_type }, Some(&self.context))
    }

    /// What its port is like now; one that does not answer is not active.
    pub(crate) fn query_port(&self) -> PortAttr {
        let attr = self.context.query_port(PORT).ok();
        let size = |n: Option<u16>| n.map_or(0, usize::from);
        PortAttr {
            state: attr.map_or(PortState::Unknown, |attr| port_state(attr.state)),
            max_mtu: attr.and_then(|attr| mtu(attr.max_mtu)).unwrap_or(PathMtu::B4096),
            active_mtu: attr.and_then(|attr| mtu(attr.active_mtu)).unwrap_or(PathMtu::B256),
            gid_tbl_len: attr.map_or(0, |attr| usize::try_from(attr.gid_tbl_len).unwrap_or(0)),
            pkey_tbl_len: size(attr.map(|attr| attr.pkey_tbl_len)),
            max_msg_sz: attr.map_or(0, |attr| attr.max_msg_sz),
        }
    }

    /// A name for a queue, and what its maker gave it.
    fn name(&self, context: u64) -> u32 {
        let name = self.names.fetch_add(1, Ordering::Relaxed);
        self.contexts.lock().push((name, context));
        name
    }

    fn forget(&self, name: u32) {
        self.contexts.lock().retain(|(known, _)| *known != name);
    }

    fn context_of(&self, name: u64) -> Option<(u32, u64)> {
        self.contexts.lock().iter().copied().find(|(known, _)| u64::from(*known) == name)
    }

    /// Takes an event, if there is one that has a name here. Does not wait.
    pub(crate) fn try_event(&self) -> Option<AsyncEvent> {
        while let Ok(Some(event)) = self.context.take_event() {
            if let Some(event) = self.translate(event) {
                return Some(event);
            }
        }
        None
    }

    /// Takes an event; waits for it, at most for `timeout` (`None`: for ever).
    pub(crate) fn event(&self, timeout: Option<Duration>) -> io::Result<Option<AsyncEvent>> {
        wait(timeout, || Ok(self.try_event()), || self.context.async_fd())
    }

    fn translate(&self, Event { kind, affected }: Event) -> Option<AsyncEvent> {
        let kind = match kind {
            value::EVENT_CQ_ERR => EventKind::CqErr,
            value::EVENT_QP_FATAL => EventKind::QpFatal,
            value::EVENT_QP_REQ_ERR => EventKind::QpReqErr,
            value::EVENT_QP_ACCESS_ERR => EventKind::QpAccessErr,
            value::EVENT_COMM_EST => EventKind::CommEst,
            value::EVENT_SQ_DRAINED => EventKind::SqDrained,
            value::EVENT_DEVICE_FATAL => EventKind::DeviceFatal,
            value::EVENT_PORT_ACTIVE => EventKind::PortActive,
            value::EVENT_PORT_ERR => EventKind::PortErr,
            value::EVENT_SRQ_ERR => EventKind::SrqErr,
            value::EVENT_SRQ_LIMIT_REACHED => EventKind::SrqLimitReached,
            value::EVENT_QP_LAST_WQE_REACHED => EventKind::LastWqeReached,
            value::EVENT_GID_CHANGE => EventKind::GidChange,
            _ => return None, // Subnets, migration and other things that RoCE does not have.
        };
        let element = match affected {
            Affected::Cq { context } => Element::Cq { context: self.context_of(context)?.1 },
            Affected::Device => Element::Device,
            Affected::Port { number } => Element::Port { number },
            Affected::Qp { number, context } => Element::Qp { number: Qpn::new(number), context },
            Affected::Srq { context } => {
                let (number, context) = self.context_of(context)?;
                Element::Srq { number, context }
            }
        };
        Some(AsyncEvent::foreign(kind, element))
    }
}

/// The bounds of a device, no wider than what this crate has types for.
fn bounds(found: &adverb_ibv::Found, context: &Context) -> io::Result<DeviceAttr> {
    let attr = context.query_device()?;
    let at_most = |n: i32, most: u32| u32::try_from(n).unwrap_or(0).min(most);
    let few = |n: i32| u8::try_from(n.clamp(0, i32::from(QpLimits::RD_ATOMIC_MAX))).unwrap_or(0);
    Ok(DeviceAttr {
        node_guid: found.guid,
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        phys_port_cnt: attr.phys_port_cnt,
        max_qp_wr: at_most(attr.max_qp_wr, QpLimits::WR_MAX),
        max_sge: at_most(attr.max_sge, QpLimits::SGE_MAX),
        max_cqe: at_most(attr.max_cqe, adverb_device::CompletionQueue::CAPACITY_MAX),
        max_qp_rd_atom: few(attr.max_qp_rd_atom),
        max_qp_init_rd_atom: few(attr.max_qp_init_rd_atom),
        max_inline: QpLimits::INLINE_MAX,
        max_mcast_grp: at_most(attr.max_mcast_grp, u32::MAX),
        max_mcast_qp_attach: at_most(attr.max_mcast_qp_attach, u32::MAX),
        max_total_mcast_qp_attach: at_most(attr.max_total_mcast_qp_attach, u32::MAX),
        num_comp_vectors: context.comp_vectors().max(1),
    })
}

/// Takes what there is; while there is nothing, waits for a descriptor, at most for `timeout`.
pub(crate) fn wait<'a, T>(
    timeout: Option<Duration>,
    mut take: impl FnMut() -> io::Result<Option<T>>,
    fd: impl Fn() -> std::os::fd::BorrowedFd<'a>,
) -> io::Result<Option<T>> {
    let deadline = timeout.map(|timeout| (Instant::now(), timeout));
    loop {
        let taken = take()?;
        let left = deadline.map(|(since, timeout)| timeout.saturating_sub(since.elapsed()));
        if taken.is_some() || left.is_some_and(|left| left.is_zero()) {
            return Ok(taken);
        }
        wait_readable(fd(), left)?;
    }
}

/// A protection domain. One that the library did not make says so when it is used.
#[derive(Debug)]
pub(crate) struct Domain {
    number: u32,
    port: Arc<Port>,
    pd: io::Result<Arc<adverb_ibv::Pd>>,
}

impl Domain {
    pub(crate) fn new(port: &Arc<Port>) -> Self {
        let number = DOMAINS.fetch_add(1, Ordering::Relaxed);
        let pd = adverb_ibv::Pd::new(&port.context).map(Arc::new);
        Self { number, port: Arc::clone(port), pd }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn port(&self) -> &Arc<Port> {
        &self.port
    }

    pub(crate) fn pd(&self) -> io::Result<&Arc<adverb_ibv::Pd>> {
        let again = |error: &io::Error| match error.raw_os_error() {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => error.kind().into(),
        };
        self.pd.as_ref().map_err(again)
    }

    /// Makes an address handle.
    pub(crate) fn create_ah(&self, attr: AhAttr) -> Result<Ah, ConnectError> {
        let port = &self.port;
        let index = attr.place(&port.device.gids);
        let attr = attr.gid_index(index);
        port.has_gid(index)?;
        let failed = |error| port.refused("make an address handle", error);
        let pd = self.pd().map_err(failed)?;
        let raw = adverb_ibv::Ah::new(pd, way(attr, index)).map_err(failed)?;
        Ok(Ah { raw: Arc::new(raw), attr })
    }
}

impl Port {
    fn has_gid(&self, index: u8) -> Result<(), ConnectError> {
        match self.device.gids.iter().any(|entry| entry.index == index) {
            true => Ok(()),
            false => Err(ConnectError::NoSuchGid { index }),
        }
    }

    /// The system's error, with what was asked and of which device.
    pub(crate) fn explain(&self, what: impl fmt::Display, error: &io::Error) -> io::Error {
        let name = &self.device.name;
        io::Error::new(error.kind(), format!("{name} refused {what}: {error}"))
    }

    fn refused(&self, doing: &'static str, error: io::Error) -> ConnectError {
        ConnectError::Refused { device: self.device.name.clone(), doing, error }
    }
}

fn port_state(state: std::ffi::c_int) -> PortState {
    match state {
        value::PORT_DOWN => PortState::Down,
        value::PORT_INIT => PortState::Init,
        value::PORT_ARMED => PortState::Armed,
        value::PORT_ACTIVE => PortState::Active,
        value::PORT_ACTIVE_DEFER => PortState::ActiveDefer,
        _ => PortState::Unknown,
    }
}

/// The way to a port. Every address is global, as RoCE has it; a hop limit of 0 would be one.
fn way(attr: AhAttr, gid_index: u8) -> layout::AhAttr {
    let AhAttr { gid, flow_label, traffic_class, hop_limit, .. } = attr;
    let grh = layout::GlobalRoute {
        dgid: layout::Gid(gid.0),
        flow_label,
        sgid_index: gid_index,
        hop_limit: if hop_limit == 0 { Marks::USUAL.hop_limit } else { hop_limit },
        traffic_class,
    };
    layout::AhAttr { grh, is_global: 1, port_num: PORT, ..layout::AhAttr::default() }
}

/// An address handle.
#[derive(Clone, Debug)]
pub(crate) struct Ah {
    raw: Arc<adverb_ibv::Ah>,
    attr: AhAttr,
}

impl Ah {
    pub(crate) fn attr(&self) -> AhAttr {
        self.attr
    }
}
