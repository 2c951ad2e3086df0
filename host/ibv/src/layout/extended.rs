//! What libibverbs reaches through the tables of a context or an object: the extended interfaces, as a
//! device has to provide them.
//!
//! The objects that every interface has are in `layout.rs`. Each function here is called by an inline function of
//! the header, which checks nothing and fills in nothing: a function that a device does not have is `None`, and
//! the program sees `EOPNOTSUPP`. Functions that mean nothing without hardware (flows, receive work queues,
//! counters, tag matching) have a place, but no type.
//!
//! # Safety
//!
//! Nothing is called here. The types of functions are `unsafe`, for their contract is that of the manual pages.

use super::{
    Ah, CompChannel, Context, Cq, DeviceAttr, Mr, Pd, Qp, QpCap, Sge, Srq, SrqAttr, Unused,
};
use libc::{c_int, c_uint, c_void};

/// The functions of `struct verbs_context` between `query_port` and `sz`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct Extensions {
    pub advise_mr: Option<unsafe extern "C" fn(*mut Pd, c_int, u32, *mut Sge, u32) -> c_int>,
    pub alloc_null_mr: Option<unsafe extern "C" fn(*mut Pd) -> *mut Mr>,
    counters: [Unused; 4],
    pub reg_dm_mr: Option<unsafe extern "C" fn(*mut Pd, *mut Dm, u64, usize, c_uint) -> *mut Mr>,
    pub alloc_dm: Option<unsafe extern "C" fn(*mut Context, *mut AllocDmAttr) -> *mut Dm>,
    pub free_dm: Option<unsafe extern "C" fn(*mut Dm) -> c_int>,
    flow_actions: [Unused; 3],
    modify_qp_rate_limit: Unused,
    pub alloc_parent_domain:
        Option<unsafe extern "C" fn(*mut Context, *mut ParentDomainInitAttr) -> *mut Pd>,
    pub dealloc_td: Option<unsafe extern "C" fn(*mut Td) -> c_int>,
    pub alloc_td: Option<unsafe extern "C" fn(*mut Context, *mut TdInitAttr) -> *mut Td>,
    modify_cq: Unused,
    post_srq_ops: Unused,
    work_queues: [Unused; 5],
    pub query_rt_values: Option<unsafe extern "C" fn(*mut Context, *mut ValuesEx) -> c_int>,
    pub create_cq_ex: Option<unsafe extern "C" fn(*mut Context, *mut CqInitAttrEx) -> *mut CqEx>,
    /// Private to the library, which calls what it finds there.
    pub private: *mut c_void,
    pub query_device_ex: Option<
        unsafe extern "C" fn(*mut Context, *const c_void, *mut DeviceAttrEx, usize) -> c_int,
    >,
    flows: [Unused; 4],
    pub open_qp: Option<unsafe extern "C" fn(*mut Context, *mut QpOpenAttr) -> *mut Qp>,
    pub create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut Srq, *mut u32) -> c_int>,
    pub create_srq_ex: Option<unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq>,
    pub open_xrcd: Option<unsafe extern "C" fn(*mut Context, *mut XrcdInitAttr) -> *mut Xrcd>,
    pub close_xrcd: Option<unsafe extern "C" fn(*mut Xrcd) -> c_int>,
    placeholder: u64,
}

/// `struct ibv_values_ex`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct ValuesEx {
    pub comp_mask: u32,
    pub raw_clock: libc::timespec,
}

/// `struct ibv_ece`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct Ece {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}

/// `struct ibv_mw`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct Mw {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub rkey: u32,
    pub handle: u32,
    /// `enum ibv_mw_type`, in the field `type`.
    pub kind: c_int,
}

/// `struct ibv_mw_bind_info`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct MwBindInfo {
    pub mr: *mut Mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

/// `struct ibv_mw_bind`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct MwBind {
    pub wr_id: u64,
    pub send_flags: c_uint,
    pub bind_info: MwBindInfo,
}

/// `struct ibv_td`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct Td {
    pub context: *mut Context,
}

/// `struct ibv_td_init_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct TdInitAttr {
    pub comp_mask: u32,
}

/// `struct ibv_parent_domain_init_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct ParentDomainInitAttr {
    pub pd: *mut Pd,
    pub td: *mut Td,
    pub comp_mask: u32,
    alloc: Unused,
    free: Unused,
    pub pd_context: *mut c_void,
}

/// `struct ibv_xrcd`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct Xrcd {
    pub context: *mut Context,
}

/// `struct ibv_xrcd_init_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct XrcdInitAttr {
    pub comp_mask: u32,
    pub fd: c_int,
    pub oflags: c_int,
}

/// `struct ibv_dm`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct Dm {
    pub context: *mut Context,
    pub memcpy_to_dm: Option<unsafe extern "C" fn(*mut Dm, u64, *const c_void, usize) -> c_int>,
    pub memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut Dm, u64, usize) -> c_int>,
    pub comp_mask: u32,
    pub handle: u32,
}

/// `struct ibv_alloc_dm_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct AllocDmAttr {
    pub length: usize,
    pub log_align_req: u32,
    pub comp_mask: u32,
}

/// `struct ibv_mr_init_attr`, of rdma-core 59 and later; the buffer came with 65.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct MrInitAttr {
    pub length: usize,
    pub access: c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut c_void,
    pub fd: c_int,
    pub fd_offset: u64,
    pub dmah: *mut c_void,
    pub buf: *mut Buf,
}

/// `struct ibv_buf`. To programs it has no fields; libibverbs and its providers see these.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct Buf {
    pub addr: *mut c_void,
    pub size: usize,
    pub pd: *mut Pd,
    pub dmabuf_fd: c_int,
}

/// `struct ibv_cq_ex`, which begins as [`Cq`] does.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct CqEx {
    pub cq: Cq,
    pub comp_mask: u32,
    pub status: c_int,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(*mut CqEx, *mut c_void) -> c_int>,
    pub next_poll: Option<unsafe extern "C" fn(*mut CqEx) -> c_int>,
    pub end_poll: Option<unsafe extern "C" fn(*mut CqEx)>,
    pub read_opcode: Option<unsafe extern "C" fn(*mut CqEx) -> c_int>,
    pub read_vendor_err: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_byte_len: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_imm_data: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_qp_num: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_src_qp: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_wc_flags: Option<unsafe extern "C" fn(*mut CqEx) -> c_uint>,
    pub read_slid: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_sl: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
    pub read_dlid_path_bits: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
    pub read_completion_ts: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
    pub read_cvlan: Option<unsafe extern "C" fn(*mut CqEx) -> u16>,
    pub read_flow_tag: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    read_tm_info: Unused,
    pub read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
}

/// `struct ibv_qp_ex`, which begins as [`Qp`] does.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct QpEx {
    pub qp_base: Qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64)>,
    pub wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64)>,
    pub wr_bind_mw: Option<unsafe extern "C" fn(*mut QpEx, *mut Mw, u32, *const MwBindInfo)>,
    pub wr_local_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub wr_rdma_read: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
    pub wr_rdma_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
    pub wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    pub wr_send: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub wr_send_imm: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub wr_send_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    wr_send_tso: Unused,
    pub wr_set_ud_addr: Option<unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32)>,
    pub wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub wr_set_inline_data: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, usize)>,
    pub wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf)>,
    pub wr_set_sge: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    pub wr_set_sge_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const Sge)>,
    pub wr_start: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub wr_complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int>,
    pub wr_abort: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub wr_atomic_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, *const c_void)>,
    /// Of rdma-core 46 and later; what knows less does not look here.
    pub wr_flush: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, usize, u8, u8)>,
}

/// `struct ibv_data_buf`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct DataBuf {
    pub addr: *mut c_void,
    pub length: usize,
}

/// `struct ibv_cq_init_attr_ex`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct CqInitAttrEx {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut CompChannel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut Pd,
}

/// `struct ibv_qp_init_attr_ex`, which begins as [`super::QpInitAttr`] does.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct QpInitAttrEx {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut Pd,
    pub xrcd: *mut Xrcd,
    pub create_flags: u32,
    pub max_tso_header: u16,
    rwq_ind_tbl: Unused,
    rx_hash: [u64; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

/// `struct ibv_qp_open_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct QpOpenAttr {
    pub comp_mask: u32,
    pub qp_num: u32,
    pub xrcd: *mut Xrcd,
    pub qp_context: *mut c_void,
    pub qp_type: c_int,
}

/// `struct ibv_srq_init_attr_ex`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct SrqInitAttrEx {
    pub srq_context: *mut c_void,
    pub attr: SrqAttr,
    pub comp_mask: u32,
    pub srq_type: c_int,
    pub pd: *mut Pd,
    pub xrcd: *mut Xrcd,
    pub cq: *mut Cq,
    tag_matching: [u32; 2],
}

/// `struct ibv_device_attr_ex`. What has no name here is zero for a device without it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct DeviceAttrEx {
    pub orig_attr: DeviceAttr,
    pub comp_mask: u32,
    pub odp_caps: OdpCaps,
    pub completion_timestamp_mask: u64,
    /// In kHz.
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    segmentation: [u32; 2],
    receive_hash: [u64; 4],
    max_wq_type_rq: u32,
    pacing: [u32; 3],
    raw_packet_caps: u32,
    tag_matching: [u32; 5],
    moderation: [u16; 2],
    pub max_dm_size: u64,
    pci_atomics: [u16; 3],
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}

/// `struct ibv_odp_caps`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct OdpCaps {
    pub general_caps: u64,
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
}

/// Sizes on machines with pointers of 64 bits, as libibverbs 44 has them.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<super::Device>() == 664);
    assert!(size_of::<Context>() == 328);
    assert!(size_of::<super::VerbsContext>() == 648);
    assert!(size_of::<Cq>() == 128);
    assert!(size_of::<CqEx>() == 288);
    assert!(size_of::<Qp>() == 160);
    assert!(std::mem::offset_of!(QpEx, wr_flush) == 352);
    assert!(size_of::<Srq>() == 128);
    assert!(size_of::<Mw>() == 32);
    assert!(size_of::<Dm>() == 32);
    assert!(size_of::<MrInitAttr>() == 72);
    assert!(std::mem::offset_of!(MrInitAttr, buf) == 64);
    assert!(std::mem::offset_of!(Buf, pd) == 16);
    assert!(size_of::<DeviceAttrEx>() == 400);
    assert!(size_of::<CqInitAttrEx>() == 56);
    assert!(size_of::<QpInitAttrEx>() == 136);
    assert!(size_of::<SrqInitAttrEx>() == 64);
};
