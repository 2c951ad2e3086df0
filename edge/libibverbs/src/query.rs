//! What devices and ports are like.
//!
//! # Safety
//!
//! As in `export.rs`.

use crate::boxed::Plain;
use crate::context;
use crate::errno::{Answer, Errno, INVALID, UNSUPPORTED};
use crate::export::{entry, export, guarded, is_ours, style, versioned};
use adverb_device::{
    CompletionQueue, Device, GidEntry, GidKind, GroupLimits, PathMtu, Port, QpLimits,
};
use adverb_ibv::layout::{self, Gid, value};
use libc::{c_char, c_int, c_void};

/// The number of the only port.
pub(crate) const PORT: u8 = 1;
/// Bytes that device memory has, at most.
pub(crate) const DM_MAX: u64 = 1 << 30;
/// Objects of a kind, as far as a device has a bound: memory is the bound here.
const MANY: c_int = 1 << 20;

fn int(number: u32) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

fn device_attr(device: &Device) -> layout::DeviceAttr {
    let mut attr = layout::DeviceAttr::zeroed();
    for (place, byte) in attr.fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *place = c_char::from_ne_bytes([byte]);
    }
    attr.node_guid = device.guid.to_be();
    attr.sys_image_guid = device.guid.to_be();
    attr.max_mr_size = u64::MAX;
    attr.page_size_cap = !0xfff;
    attr.vendor_id = 0x00ff_ffff;
    attr.vendor_part_id = part_id();
    attr.max_qp = MANY;
    attr.max_qp_wr = int(QpLimits::WR_MAX);
    attr.device_cap_flags = value::DEVICE_CURR_QP_STATE_MOD
        | value::DEVICE_PORT_ACTIVE_EVENT
        | value::DEVICE_SYS_IMAGE_GUID
        | value::DEVICE_RC_RNR_NAK_GEN
        | value::DEVICE_SRQ_RESIZE
        | value::DEVICE_MEM_WINDOW
        | value::DEVICE_MEM_WINDOW_TYPE_2B
        | value::DEVICE_MEM_MGT_EXTENSIONS
        | value::DEVICE_XRC;
    attr.max_sge = int(QpLimits::SGE_MAX);
    attr.max_sge_rd = int(QpLimits::SGE_MAX);
    attr.max_cq = MANY;
    attr.max_cqe = int(CompletionQueue::CAPACITY_MAX);
    attr.max_mr = MANY;
    attr.max_pd = MANY;
    attr.max_qp_rd_atom = int(QpLimits::RD_ATOMIC_MAX.into());
    attr.max_res_rd_atom = MANY;
    attr.max_qp_init_rd_atom = int(QpLimits::RD_ATOMIC_MAX.into());
    attr.atomic_cap = value::ATOMIC_HCA;
    attr.max_mw = MANY;
    attr.max_mcast_grp = int(GroupLimits::GROUPS);
    attr.max_mcast_qp_attach = int(GroupLimits::MEMBERS);
    attr.max_total_mcast_qp_attach = int(GroupLimits::GROUPS * GroupLimits::MEMBERS);
    attr.max_ah = MANY;
    attr.max_srq = MANY;
    attr.max_srq_wr = int(QpLimits::WR_MAX);
    attr.max_srq_sge = int(QpLimits::SGE_MAX);
    attr.max_pkeys = 1;
    attr.phys_port_cnt = PORT;
    attr
}

/// The part that devices say they are: none, unless `ADVERB_PART_ID` has a number. perftest sends inline only on parts that
/// it knows.
fn part_id() -> u32 {
    let number = std::env::var("ADVERB_PART_ID").ok();
    number.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

export! {
    code "IBVERBS_1.1"
    fn ibv_query_device(
        context: *mut layout::Context,
        attr: Option<&mut std::mem::MaybeUninit<layout::DeviceAttr>>,
    ) -> c_int, of context is context::is_ours, {
        // SAFETY: one of ours.
        let inner = unsafe { context::own_or_inherited(context) }?;
        attr.ok_or(INVALID)?.write(device_attr(inner.port.device()));
        Ok(())
    }
}

entry! {
    code
    fn query_device_ex(
        context: *mut layout::Context,
        _input: *const c_void,
        attr: *mut layout::DeviceAttrEx,
        size: usize,
    ) -> c_int {
        // SAFETY: one of ours.
        let inner = unsafe { context::own_or_inherited(context) }?;
        if attr.is_null() {
            return Err(INVALID);
        }
        let mut all = layout::DeviceAttrEx::zeroed();
        all.orig_attr = device_attr(inner.port.device());
        all.odp_caps = layout::OdpCaps {
            general_caps: value::ODP_SUPPORT | value::ODP_SUPPORT_IMPLICIT,
            rc_odp_caps: ODP_ALL,
            uc_odp_caps: ODP_SENDS,
            ud_odp_caps: ODP_SENDS,
        };
        all.completion_timestamp_mask = u64::MAX;
        all.hca_core_clock = KHZ_OF_NANOSECONDS;
        all.device_cap_flags_ex = u64::from(all.orig_attr.device_cap_flags)
            | value::DEVICE_FLUSH_GLOBAL
            | value::DEVICE_ATOMIC_WRITE;
        all.max_dm_size = DM_MAX;
        all.xrc_odp_caps = ODP_ALL;
        all.phys_port_cnt_ex = PORT.into();
        // SAFETY: the program says how much room it has, and that there is.
        unsafe { fill(&all, attr.cast(), size) };
        Ok(())
    }
}

const ODP_ALL: u32 = ODP_SENDS
    | value::ODP_SUPPORT_WRITE
    | value::ODP_SUPPORT_READ
    | value::ODP_SUPPORT_ATOMIC
    | value::ODP_SUPPORT_FLUSH
    | value::ODP_SUPPORT_ATOMIC_WRITE;
const ODP_SENDS: u32 =
    value::ODP_SUPPORT_SEND | value::ODP_SUPPORT_RECV | value::ODP_SUPPORT_SRQ_RECV;
const KHZ_OF_NANOSECONDS: u64 = 1_000_000;

/// Copies as much of a structure as the program knows of it; what it knows beyond is zeros.
///
/// # Safety
///
/// There is room for `size` bytes at `to`.
unsafe fn fill<T: Plain>(from: &T, to: *mut u8, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { to.write_bytes(0, size) };
    let from: *const u8 = (&raw const *from).cast();
    // SAFETY: both are that long.
    unsafe { to.copy_from_nonoverlapping(from, size.min(size_of::<T>())) };
}

entry! {
    code
    fn query_rt_values(
        context: *mut layout::Context,
        values: *mut layout::ValuesEx,
    ) -> c_int {
        // SAFETY: one of ours.
        unsafe { context::of(context) }?;
        // SAFETY: the program's structure, or null.
        let values = unsafe { values.as_mut() }.ok_or(INVALID)?;
        if values.comp_mask & value::VALUES_MASK_RAW_CLOCK != 0 {
            // SAFETY: a place for the answer.
            unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut values.raw_clock) };
        }
        values.comp_mask &= value::VALUES_MASK_RAW_CLOCK;
        Ok(())
    }
}

/// What a port is like now. Violations of keys are those that this process has met; the counter stops where 16 bits end (IBTA Vol. 1
/// §14.2.5.6, PortInfo).
fn port_attr(port: &Port) -> layout::PortAttr {
    let now = port.look().ok().flatten();
    let device = port.device();
    let active = now.as_ref().is_some_and(|device| device.active);
    let mtu = now.as_ref().unwrap_or(device).active_mtu();
    let mut attr = layout::PortAttr::zeroed();
    attr.state = if active { value::PORT_ACTIVE } else { value::PORT_DOWN };
    attr.max_mtu = PathMtu::B4096.code().into();
    attr.active_mtu = mtu.code().into();
    attr.gid_tbl_len = c_int::try_from(port.gid_places()).unwrap_or(c_int::MAX);
    attr.port_cap_flags = value::PORT_CM_SUP;
    attr.max_msg_sz = 1 << 31;
    attr.qkey_viol_cntr =
        u32::from(u16::try_from(port.qp_counters().qkey_viol).unwrap_or(u16::MAX));
    attr.pkey_tbl_len = 1;
    attr.max_vl_num = 1;
    attr.active_width = value::WIDTH_4X;
    attr.active_speed = value::SPEED_QDR;
    attr.phys_state = match active {
        true => value::PORT_PHYS_STATE_LINK_UP,
        false => value::PORT_PHYS_STATE_DISABLED,
    };
    attr.link_layer = value::LINK_LAYER_ETHERNET;
    attr.flags = value::QPF_GRH_REQUIRED;
    attr
}

fn check_port(number: u8) -> Answer<()> {
    if number == PORT { Ok(()) } else { Err(INVALID) }
}

entry! {
    code
    fn query_port(
        context: *mut layout::Context,
        number: u8,
        attr: *mut layout::PortAttr,
        size: usize,
    ) -> c_int {
        // SAFETY: one of ours.
        let inner = unsafe { context::of(context) }?;
        check_port(number)?;
        if attr.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the program says how much room it has, and that there is.
        unsafe { fill(&port_attr(&inner.port), attr.cast(), size) };
        Ok(())
    }
}

/// What the exported function knows of `struct ibv_port_attr`: what is before `port_cap_flags2`.
const SHORT_PORT_ATTR: usize = std::mem::offset_of!(layout::PortAttr, port_cap_flags2);

export! {
    code "IBVERBS_1.1"
    fn ibv_query_port(context: *mut layout::Context, number: u8, attr: *mut layout::PortAttr) -> c_int,
    of context is context::is_ours, {
        // SAFETY: one of ours.
        let inner = unsafe { context::of(context) }?;
        check_port(number)?;
        if attr.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the program has room for as much.
        unsafe { fill(&port_attr(&inner.port), attr.cast(), SHORT_PORT_ATTR) };
        Ok(())
    }
}

/// The place of a GID table; `None` if it is empty.
fn gid_at(port: &Port, index: u32) -> Answer<Option<GidEntry>> {
    if usize::try_from(index).unwrap_or(usize::MAX) >= port.gid_places() {
        return Err(INVALID);
    }
    Ok(port.gids().iter().find(|entry| u32::from(entry.index) == index).copied())
}

export! {
    minus "IBVERBS_1.1"
    fn ibv_query_gid(
        context: *mut layout::Context, number: u8, index: c_int, gid: Option<&mut [u8; 16]>,
    ) -> c_int, of context is context::is_ours, {
        // SAFETY: one of ours.
        let inner = unsafe { context::of(context) }?;
        check_port(number)?;
        let entry = gid_at(&inner.port, u32::try_from(index).map_err(|_| INVALID)?)?;
        *gid.ok_or(INVALID)? = entry.map_or([0; 16], |entry| entry.gid.0);
        Ok(())
    }
}

fn for_c(device: &Device, entry: &GidEntry) -> layout::GidEntry {
    layout::GidEntry {
        gid: Gid(entry.gid.0),
        gid_index: entry.index.into(),
        port_num: PORT.into(),
        gid_type: match entry.kind {
            GidKind::Ib => 0,
            GidKind::RoceV1 => value::GID_TYPE_ROCE_V1,
            GidKind::RoceV2 => value::GID_TYPE_ROCE_V2,
        },
        ndev_ifindex: device.index,
    }
}

export! {
    code "IBVERBS_1.11"
    fn _ibv_query_gid_ex(
        context: *mut layout::Context,
        number: u32,
        index: u32,
        entry: *mut layout::GidEntry,
        flags: u32,
        size: usize,
    ) -> c_int, of context is context::is_ours, {
        // SAFETY: one of ours.
        let inner = unsafe { context::of(context) }?;
        if flags != 0 {
            return Err(UNSUPPORTED);
        }
        check_port(u8::try_from(number).map_err(|_| INVALID)?)?;
        if entry.is_null() {
            return Err(INVALID);
        }
        let found = gid_at(&inner.port, index)?.ok_or(Errno(libc::ENODATA))?;
        // SAFETY: the program says how much room it has, and that there is.
        unsafe { fill(&for_c(inner.port.device(), &found), entry.cast(), size) };
        Ok(())
    }
}

// SAFETY: numbers.
unsafe impl Plain for layout::GidEntry {}

versioned!("IBVERBS_1.11" _ibv_query_gid_table);
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut layout::Context,
    entries: *mut layout::GidEntry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    // SAFETY: a context that lives.
    if !unsafe { context::is_ours(context) } {
        type Real = unsafe extern "C" fn(
            *mut layout::Context,
            *mut layout::GidEntry,
            usize,
            u32,
            usize,
        ) -> isize;
        static REAL: crate::real::Function<Real> =
            crate::real::Function::new("_ibv_query_gid_table", "IBVERBS_1.11");
        let Some(real) = REAL.get() else {
            return -enosys();
        };
        // SAFETY: the function of this name, with the program's arguments.
        return unsafe { real(context, entries, room, flags, size) };
    }
    let listed = guarded(|| {
        // SAFETY: one of ours.
        let inner = unsafe { context::of(context) }?;
        if flags != 0 {
            return Err(UNSUPPORTED);
        }
        let device = inner.port.device();
        let gids = inner.port.look()?.map(|device| device.gids).unwrap_or_default();
        if entries.is_null() || gids.len() > room {
            return Err(INVALID);
        }
        for (at, entry) in gids.iter().enumerate() {
            let place = entries.cast::<u8>().wrapping_add(at * size);
            // SAFETY: there is room for as many of this size.
            unsafe { fill(&for_c(device, entry), place, size) };
        }
        Ok(gids.len())
    });
    match listed {
        Ok(count) => isize::try_from(count).unwrap_or(isize::MAX),
        Err(Errno(number)) => -isize::try_from(number).unwrap_or(0),
    }
}

fn enosys() -> isize {
    isize::try_from(libc::ENOSYS).unwrap_or(0)
}

/// The kernel's own names for the two kinds: InfiniBand or RoCE over Ethernet alone, and RoCE over UDP.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut layout::Context,
    number: u8,
    index: u32,
    kind: Option<&mut c_int>,
) -> c_int {
    // SAFETY: a context that lives.
    if !unsafe { context::is_ours(context) } {
        type Real =
            unsafe extern "C" fn(*mut layout::Context, u8, u32, Option<&mut c_int>) -> c_int;
        static REAL: crate::real::Function<Real> =
            crate::real::Function::new("ibv_query_gid_type", "IBVERBS_PRIVATE_34");
        let Some(real) = REAL.get() else {
            return -1;
        };
        // SAFETY: the function of this name, with the program's arguments.
        return unsafe { real(context, number, index, kind) };
    }
    style!(
        minus,
        guarded(move || {
            // SAFETY: one of ours.
            let inner = unsafe { context::of(context) }?;
            check_port(number)?;
            gid_at(&inner.port, index)?;
            *kind.ok_or(INVALID)? = 1;
            Ok(())
        })
    )
}

export! {
    minus "IBVERBS_1.1"
    fn ibv_query_pkey(
        context: *mut layout::Context, number: u8, index: c_int, pkey: Option<&mut u16>,
    ) -> c_int, of context is context::is_ours, {
        // SAFETY: one of ours.
        unsafe { context::of(context) }?;
        check_port(number)?;
        if index != 0 {
            return Err(INVALID);
        }
        *pkey.ok_or(INVALID)? = 0xffff;
        Ok(())
    }
}

export! {
    value "IBVERBS_1.5"
    fn ibv_get_pkey_index(context: *mut layout::Context, number: u8, pkey: u16) -> c_int,
    of context is context::is_ours, {
        // SAFETY: one of ours.
        unsafe { context::of(context) }?;
        check_port(number)?;
        if pkey == 0xffff { Ok(0) } else { Err(INVALID) }
    }
}

export! {
    code "IBVERBS_1.10"
    fn ibv_query_ece(qp: *mut layout::Qp, ece: Option<&mut layout::Ece>) -> c_int, of qp is is_ours, {
        let ece = ece.ok_or(INVALID)?;
        *ece = layout::Ece { vendor_id: 0, options: 0, comp_mask: 0 };
        Err(UNSUPPORTED)
    }
}

export! {
    code "IBVERBS_1.10"
    fn ibv_set_ece(qp: *mut layout::Qp, ece: Option<&mut layout::Ece>) -> c_int, of qp is is_ours, {
        let _ = ece;
        Err(UNSUPPORTED)
    }
}

/// What a port can carry, in units of 100 Mbit/s.
const SPEED: u64 = 400;

export! {
    code "IBVERBS_1.16"
    fn ibv_query_port_speed(
        context: *mut layout::Context, number: u32, speed: Option<&mut u64>,
    ) -> c_int, of context is context::is_ours, {
        // SAFETY: one of ours.
        unsafe { context::of(context) }?;
        check_port(u8::try_from(number).map_err(|_| INVALID)?)?;
        *speed.ok_or(INVALID)? = SPEED;
        Ok(())
    }
}
