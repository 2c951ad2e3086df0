//! How libibverbs lays out what it shares with programs, as its public header says.
//!
//! Names are those of the header without `ibv_`. Only what is used here is here, but each structure
//! has its whole size, because some are allocated by us and filled by the library. The numbers are in
//! `layout/value.rs`. A test compiles a C program against the header, where there is one, and compares sizes,
//! alignments, offsets and numbers; it fails if a structure, a field or a number is not compared.
//!
//! A provider hands out structures of its own that begin with these; so they are only ever looked at
//! behind the library's pointers, never copied.
//!
//! # Safety
//!
//! Nothing is called here. The types of the library's functions are `unsafe`, for their contract is that
//! of the manual pages: pointers to objects of the library that live, and to places for answers.

mod extended;
mod kernel;
pub mod value;

pub use extended::*;
pub use kernel::*;

use libc::{c_char, c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t};

/// `struct ibv_device`.
#[derive(Debug)]
#[repr(C)]
pub struct Device {
    ops: [*mut c_void; 2],
    /// `enum ibv_node_type`.
    pub node_type: c_int,
    /// `enum ibv_transport_type`.
    pub transport_type: c_int,
    /// The kernel's name, such as `mlx5_0`.
    pub name: [c_char; 64],
    /// The name of its command device, such as `uverbs0`.
    pub dev_name: [c_char; 64],
    /// Where the command device is in sysfs.
    pub dev_path: [c_char; 256],
    /// Where the device is in sysfs.
    pub ibdev_path: [c_char; 256],
}

/// A function that is reached by another way.
pub type Unused = *mut c_void;

/// `struct ibv_context_ops`: what the header's inline functions call.
#[derive(Debug)]
#[repr(C)]
pub struct ContextOps {
    compat_1: [Unused; 7],
    /// `ibv_alloc_mw`.
    pub alloc_mw: Option<unsafe extern "C" fn(*mut Pd, c_int) -> *mut Mw>,
    /// `ibv_bind_mw`.
    pub bind_mw: Option<unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int>,
    /// `ibv_dealloc_mw`.
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
    compat_2: Unused,
    /// `ibv_poll_cq`.
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    /// `ibv_req_notify_cq`.
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    compat_3: [Unused; 7],
    /// `ibv_post_srq_recv`.
    pub post_srq_recv:
        Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    compat_4: [Unused; 4],
    /// `ibv_post_send`.
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    /// `ibv_post_recv`.
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    compat_5: [Unused; 5],
}

/// `struct ibv_context`.
#[derive(Debug)]
#[repr(C)]
pub struct Context {
    /// The device.
    pub device: *mut Device,
    /// Functions of its provider.
    pub ops: ContextOps,
    /// Where commands go.
    pub cmd_fd: c_int,
    /// Where asynchronous events come from.
    pub async_fd: c_int,
    /// Completion vectors.
    pub num_comp_vectors: c_int,
    /// Held while it is changed, by what waits for its events to be acknowledged too.
    pub mutex: pthread_mutex_t,
    /// All ones if the context lies in a [`VerbsContext`].
    pub abi_compat: *mut c_void,
}

/// The type of `verbs_context::query_port`.
pub type QueryPort = unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int;

/// `struct verbs_context`, which grows at its front: what is known of it is behind.
#[derive(Debug)]
#[repr(C)]
pub struct VerbsContext {
    /// `ibv_query_port`, with room for all of [`PortAttr`].
    pub query_port: Option<QueryPort>,
    /// The extended interfaces.
    pub extensions: Extensions,
    /// Size of what the library has, in bytes: the last of it is known.
    pub sz: usize,
    /// The context that programs see.
    pub context: Context,
}

/// `struct ibv_pd`.
#[derive(Debug)]
#[repr(C)]
pub struct Pd {
    /// Whose it is.
    pub context: *mut Context,
    /// The maker's own.
    pub handle: u32,
}

/// `struct ibv_mr`.
#[derive(Debug)]
#[repr(C)]
pub struct Mr {
    /// Whose it is.
    pub context: *mut Context,
    /// Its domain.
    pub pd: *mut Pd,
    /// First byte.
    pub addr: *mut c_void,
    /// Bytes.
    pub length: usize,
    /// The maker's own.
    pub handle: u32,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}

/// `struct ibv_comp_channel`.
#[derive(Debug)]
#[repr(C)]
pub struct CompChannel {
    /// Whose it is.
    pub context: *mut Context,
    /// Where events come from.
    pub fd: c_int,
    /// Completion queues that use it.
    pub refcnt: c_int,
}

/// `struct ibv_cq`.
#[derive(Debug)]
#[repr(C)]
pub struct Cq {
    /// Whose it is.
    pub context: *mut Context,
    /// Where it says that it has something.
    pub channel: *mut CompChannel,
    /// What its maker gave it.
    pub cq_context: *mut c_void,
    /// The maker's own.
    pub handle: u32,
    /// Completions that it holds.
    pub cqe: c_int,
    /// Held while it is changed, by what waits for its events to be acknowledged too.
    pub mutex: pthread_mutex_t,
    /// Signaled when an event is acknowledged.
    pub cond: pthread_cond_t,
    /// Completion events that are acknowledged.
    pub comp_events_completed: u32,
    /// Asynchronous events that are acknowledged.
    pub async_events_completed: u32,
}

/// `struct ibv_srq`.
#[derive(Debug)]
#[repr(C)]
pub struct Srq {
    /// Whose it is.
    pub context: *mut Context,
    /// What its maker gave it.
    pub srq_context: *mut c_void,
    /// Its domain.
    pub pd: *mut Pd,
    /// The maker's own.
    pub handle: u32,
    /// Held while it is changed, by what waits for its events to be acknowledged too.
    pub mutex: pthread_mutex_t,
    /// Signaled when an event is acknowledged.
    pub cond: pthread_cond_t,
    /// Asynchronous events that are acknowledged.
    pub events_completed: u32,
}

/// `struct ibv_qp`.
#[derive(Debug)]
#[repr(C)]
pub struct Qp {
    /// Whose it is.
    pub context: *mut Context,
    /// What its maker gave it.
    pub qp_context: *mut c_void,
    /// Its domain.
    pub pd: *mut Pd,
    /// Where sends complete.
    pub send_cq: *mut Cq,
    /// Where receives complete.
    pub recv_cq: *mut Cq,
    /// Where receives come from, or null.
    pub srq: *mut Srq,
    /// The maker's own.
    pub handle: u32,
    /// Its number.
    pub qp_num: u32,
    /// `enum ibv_qp_state`, as last changed or asked.
    pub state: c_int,
    /// `enum ibv_qp_type`.
    pub qp_type: c_int,
    /// Held while it is changed, by what waits for its events to be acknowledged too.
    pub mutex: pthread_mutex_t,
    /// Signaled when an event is acknowledged.
    pub cond: pthread_cond_t,
    /// Asynchronous events that are acknowledged.
    pub events_completed: u32,
}

/// `struct ibv_ah`.
#[derive(Debug)]
#[repr(C)]
pub struct Ah {
    /// Whose it is.
    pub context: *mut Context,
    /// Its domain.
    pub pd: *mut Pd,
    /// The maker's own.
    pub handle: u32,
}

/// `struct ibv_wc`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Wc {
    /// What the request was posted with.
    pub wr_id: u64,
    /// `enum ibv_wc_status`.
    pub status: c_int,
    /// `enum ibv_wc_opcode`.
    pub opcode: c_int,
    /// The provider's own.
    pub vendor_err: u32,
    /// Bytes that came.
    pub byte_len: u32,
    /// Immediate data in network order, or the key that was invalidated.
    pub imm_data: u32,
    /// The queue pair.
    pub qp_num: u32,
    /// The peer's.
    pub src_qp: u32,
    /// `enum ibv_wc_flags`.
    pub wc_flags: c_uint,
    /// Place of the partition.
    pub pkey_index: u16,
    /// InfiniBand's.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
    /// InfiniBand's.
    pub dlid_path_bits: u8,
}

/// `struct ibv_sge`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Sge {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Key.
    pub lkey: u32,
}

/// `struct ibv_send_wr`. Its unions are arrays here.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SendWr {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// The next of a list.
    pub next: *mut SendWr,
    /// Pieces.
    pub sg_list: *const Sge,
    /// How many.
    pub num_sge: c_int,
    /// `enum ibv_wr_opcode`.
    pub opcode: c_int,
    /// `enum ibv_send_flags`.
    pub send_flags: c_uint,
    /// Immediate data in network order, or a key to invalidate.
    pub imm_data: u32,
    /// `wr`: RDMA, atomic or datagram.
    pub wr: Remote,
    /// `qp_type.xrc.remote_srqn`.
    pub remote_srqn: u32,
    /// `bind_mw`.
    pub bind_mw: BindWr,
}

/// `bind_mw` of `struct ibv_send_wr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BindWr {
    /// The window.
    pub mw: *mut Mw,
    /// The key that it is to have.
    pub rkey: u32,
    /// To what.
    pub bind_info: MwBindInfo,
}

/// The union `wr` of `struct ibv_send_wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub union Remote {
    /// WRITE and READ.
    pub rdma: Rdma,
    /// Atomics.
    pub atomic: Atomic,
    /// Datagrams.
    pub ud: Datagram,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Remote")
    }
}

/// `wr.rdma`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Rdma {
    /// First byte there.
    pub remote_addr: u64,
    /// Key there.
    pub rkey: u32,
}

/// `wr.atomic`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Atomic {
    /// First byte there.
    pub remote_addr: u64,
    /// What to add, or to compare with.
    pub compare_add: u64,
    /// What to put.
    pub swap: u64,
    /// Key there.
    pub rkey: u32,
}

/// `wr.ud`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Datagram {
    /// The way.
    pub ah: *mut Ah,
    /// The queue pair there.
    pub remote_qpn: u32,
    /// The key to show.
    pub remote_qkey: u32,
}

impl SendWr {
    /// A request that does nothing yet.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_data: 0,
        wr: Remote { atomic: Atomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 } },
        remote_srqn: 0,
        bind_mw: BindWr {
            mw: std::ptr::null_mut(),
            rkey: 0,
            bind_info: MwBindInfo {
                mr: std::ptr::null_mut(),
                addr: 0,
                length: 0,
                mw_access_flags: 0,
            },
        },
    };
}

/// `struct ibv_recv_wr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RecvWr {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// The next of a list.
    pub next: *mut RecvWr,
    /// Pieces.
    pub sg_list: *const Sge,
    /// How many.
    pub num_sge: c_int,
}

impl RecvWr {
    /// A receive of nothing.
    pub const EMPTY: Self =
        Self { wr_id: 0, next: std::ptr::null_mut(), sg_list: std::ptr::null(), num_sge: 0 };
}

/// `struct ibv_device_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `struct ibv_port_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct PortAttr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// `struct ibv_gid_entry`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct GidEntry {
    /// The identifier; aligned as the header's union is.
    pub gid: Gid,
    /// Its place.
    pub gid_index: u32,
    /// The port.
    pub port_num: u32,
    /// `enum ibv_gid_type`.
    pub gid_type: u32,
    /// The network interface.
    pub ndev_ifindex: u32,
}

/// `union ibv_gid`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(8))]
pub struct Gid(pub [u8; 16]);

/// `struct ibv_global_route`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct GlobalRoute {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_cap`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

/// `struct ibv_qp_attr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct QpAttr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `struct ibv_srq_attr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct SrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the header's, and it says no more")]
pub struct SrqInitAttr {
    pub srq_context: *mut c_void,
    pub attr: SrqAttr,
}

/// `struct ibv_async_event`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AsyncEvent {
    /// A queue pair, a completion queue, a shared receive queue, or the number of a port: the kind
    /// says which.
    pub element: *mut c_void,
    /// `enum ibv_event_type`.
    pub event_type: c_int,
}
