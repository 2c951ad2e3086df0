//! Numbers of the header, by the enumeration that they are of.
//!
//! Names are those of the header without `IBV_`, with exceptions. The flags of `struct ibv_wc` are called
//! `WC_FLAG_*` here, because the operations are `WC_*`, too. `ADVISE_MR_PREFETCH*` have lost an `ADVICE`. What
//! programs see, but `<infiniband/verbs.h>` has no name for, is called as in the kernel: device capabilities
//! beyond 32 bits, physical states, widths and speeds of ports.
//!
//! Structures are in `layout.rs` and `layout/extended.rs`.

#![expect(missing_docs, reason = "the names are the header's, and it says no more")]

use libc::{c_int, c_uint};

pub const NODE_CA: c_int = 1;
pub const NODE_RNIC: c_int = 4;
pub const PORT_DOWN: c_int = 1;
pub const PORT_INIT: c_int = 2;
pub const PORT_ARMED: c_int = 3;
pub const PORT_ACTIVE: c_int = 4;
pub const PORT_ACTIVE_DEFER: c_int = 5;
pub const GID_TYPE_ROCE_V1: u32 = 1;
pub const GID_TYPE_ROCE_V2: u32 = 2;
pub const LINK_LAYER_ETHERNET: u8 = 2;
pub const PORT_CM_SUP: u32 = 1 << 16;
pub const PORT_PHYS_STATE_DISABLED: u8 = 3;
pub const PORT_PHYS_STATE_LINK_UP: u8 = 5;
pub const WIDTH_4X: u8 = 2;
pub const SPEED_QDR: u8 = 4;

pub const QPT_RC: c_int = 2;
pub const QPT_UC: c_int = 3;
pub const QPT_UD: c_int = 4;
pub const QPT_XRC_SEND: c_int = 9;
pub const QPT_XRC_RECV: c_int = 10;
pub const MW_TYPE_1: c_int = 1;
pub const MW_TYPE_2: c_int = 2;
pub const SRQT_BASIC: c_int = 0;
pub const SRQT_XRC: c_int = 1;
pub const ACCESS_OPTIONAL_RANGE: c_uint = 0x3ff0_0000;
pub const ADVISE_MR_PREFETCH: c_int = 0;
pub const ADVISE_MR_PREFETCH_WRITE: c_int = 1;
pub const ADVISE_MR_PREFETCH_NO_FAULT: c_int = 2;
pub const ADVISE_MR_FLAG_FLUSH: u32 = 1;
pub const REG_MR_MASK_IOVA: u64 = 1;
pub const REG_MR_MASK_ADDR: u64 = 1 << 1;
pub const REG_MR_MASK_FD: u64 = 1 << 2;
pub const REG_MR_MASK_FD_OFFSET: u64 = 1 << 3;
pub const REG_MR_MASK_DMAH: u64 = 1 << 4;
pub const REG_MR_MASK_BUF: u64 = 1 << 5;
pub const REREG_MR_CHANGE_TRANSLATION: c_int = 1;
pub const REREG_MR_CHANGE_PD: c_int = 1 << 1;
pub const REREG_MR_CHANGE_ACCESS: c_int = 1 << 2;
pub const REREG_MR_ERR_INPUT: c_int = -1;
pub const REREG_MR_ERR_CMD: c_int = -4;
pub const QP_INIT_ATTR_PD: u32 = 1;
pub const QP_INIT_ATTR_XRCD: u32 = 1 << 1;
pub const QP_INIT_ATTR_CREATE_FLAGS: u32 = 1 << 2;
pub const QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;
pub const QP_CREATE_BLOCK_SELF_MCAST_LB: u32 = 1 << 1;
pub const QP_EX_WITH_RDMA_WRITE: u64 = 1;
pub const QP_EX_WITH_RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
pub const QP_EX_WITH_SEND: u64 = 1 << 2;
pub const QP_EX_WITH_SEND_WITH_IMM: u64 = 1 << 3;
pub const QP_EX_WITH_RDMA_READ: u64 = 1 << 4;
pub const QP_EX_WITH_ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
pub const QP_EX_WITH_ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
pub const QP_EX_WITH_LOCAL_INV: u64 = 1 << 7;
pub const QP_EX_WITH_BIND_MW: u64 = 1 << 8;
pub const QP_EX_WITH_SEND_WITH_INV: u64 = 1 << 9;
pub const QP_EX_WITH_FLUSH: u64 = 1 << 11;
pub const QP_EX_WITH_ATOMIC_WRITE: u64 = 1 << 12;
pub const SRQ_INIT_ATTR_TYPE: u32 = 1;
pub const SRQ_INIT_ATTR_PD: u32 = 1 << 1;
pub const SRQ_INIT_ATTR_XRCD: u32 = 1 << 2;
pub const SRQ_INIT_ATTR_CQ: u32 = 1 << 3;
pub const SRQ_INIT_ATTR_TM: u32 = 1 << 4;
pub const CQ_INIT_ATTR_MASK_FLAGS: u32 = 1;
pub const CQ_INIT_ATTR_MASK_PD: u32 = 1 << 1;
pub const CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1;
pub const CREATE_CQ_ATTR_IGNORE_OVERRUN: u32 = 1 << 1;
pub const WC_STANDARD_FLAGS: u64 = 0x7f;
pub const WC_EX_WITH_COMPLETION_TIMESTAMP: u64 = 1 << 7;
pub const WC_EX_WITH_CVLAN: u64 = 1 << 8;
pub const WC_EX_WITH_FLOW_TAG: u64 = 1 << 9;
pub const WC_EX_WITH_TM_INFO: u64 = 1 << 10;
pub const WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK: u64 = 1 << 11;
pub const VALUES_MASK_RAW_CLOCK: u32 = 1;
pub const PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: u32 = 1;
pub const PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: u32 = 1 << 1;
pub const XRCD_INIT_ATTR_FD: u32 = 1;
pub const XRCD_INIT_ATTR_OFLAGS: u32 = 1 << 1;
pub const QP_OPEN_ATTR_NUM: u32 = 1;
pub const QP_OPEN_ATTR_XRCD: u32 = 1 << 1;
pub const QP_OPEN_ATTR_CONTEXT: u32 = 1 << 2;
pub const QP_OPEN_ATTR_TYPE: u32 = 1 << 3;
pub const ATOMIC_HCA: c_int = 1;
pub const DEVICE_CURR_QP_STATE_MOD: c_uint = 1 << 7;
pub const DEVICE_PORT_ACTIVE_EVENT: c_uint = 1 << 10;
pub const DEVICE_SYS_IMAGE_GUID: c_uint = 1 << 11;
pub const DEVICE_RC_RNR_NAK_GEN: c_uint = 1 << 12;
pub const DEVICE_SRQ_RESIZE: c_uint = 1 << 13;
pub const DEVICE_MEM_WINDOW: c_uint = 1 << 17;
pub const DEVICE_XRC: c_uint = 1 << 20;
pub const DEVICE_MEM_MGT_EXTENSIONS: c_uint = 1 << 21;
pub const DEVICE_MEM_WINDOW_TYPE_2B: c_uint = 1 << 24;
pub const DEVICE_FLUSH_GLOBAL: u64 = 1 << 38;
pub const DEVICE_ATOMIC_WRITE: u64 = 1 << 40;
pub const ODP_SUPPORT: u64 = 1;
pub const ODP_SUPPORT_IMPLICIT: u64 = 1 << 1;
pub const ODP_SUPPORT_SEND: u32 = 1;
pub const ODP_SUPPORT_RECV: u32 = 1 << 1;
pub const ODP_SUPPORT_WRITE: u32 = 1 << 2;
pub const ODP_SUPPORT_READ: u32 = 1 << 3;
pub const ODP_SUPPORT_ATOMIC: u32 = 1 << 4;
pub const ODP_SUPPORT_SRQ_RECV: u32 = 1 << 5;
pub const ODP_SUPPORT_FLUSH: u32 = 1 << 6;
pub const ODP_SUPPORT_ATOMIC_WRITE: u32 = 1 << 7;
pub const QPF_GRH_REQUIRED: u8 = 1;

pub const WR_RDMA_WRITE: c_int = 0;
pub const WR_RDMA_WRITE_WITH_IMM: c_int = 1;
pub const WR_SEND: c_int = 2;
pub const WR_SEND_WITH_IMM: c_int = 3;
pub const WR_RDMA_READ: c_int = 4;
pub const WR_ATOMIC_CMP_AND_SWP: c_int = 5;
pub const WR_ATOMIC_FETCH_AND_ADD: c_int = 6;
pub const WR_LOCAL_INV: c_int = 7;
pub const WR_BIND_MW: c_int = 8;
pub const WR_SEND_WITH_INV: c_int = 9;
pub const WR_ATOMIC_WRITE: c_int = 15;

pub const SEND_FENCE: c_uint = 1;
pub const SEND_SIGNALED: c_uint = 1 << 1;
pub const SEND_SOLICITED: c_uint = 1 << 2;
pub const SEND_INLINE: c_uint = 1 << 3;

pub const WC_SEND: c_int = 0;
pub const WC_RDMA_WRITE: c_int = 1;
pub const WC_RDMA_READ: c_int = 2;
pub const WC_COMP_SWAP: c_int = 3;
pub const WC_FETCH_ADD: c_int = 4;
pub const WC_BIND_MW: c_int = 5;
pub const WC_LOCAL_INV: c_int = 6;
pub const WC_FLUSH: c_int = 8;
pub const WC_ATOMIC_WRITE: c_int = 9;
pub const WC_RECV: c_int = 128;
pub const WC_RECV_RDMA_WITH_IMM: c_int = 129;
pub const WC_FLAG_GRH: c_uint = 1;
pub const WC_FLAG_WITH_IMM: c_uint = 1 << 1;
pub const WC_FLAG_WITH_INV: c_uint = 1 << 3;

pub const QP_STATE: c_int = 1;
pub const QP_CUR_STATE: c_int = 1 << 1;
pub const QP_EN_SQD_ASYNC_NOTIFY: c_int = 1 << 2;
pub const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub const QP_PKEY_INDEX: c_int = 1 << 4;
pub const QP_PORT: c_int = 1 << 5;
pub const QP_QKEY: c_int = 1 << 6;
pub const QP_AV: c_int = 1 << 7;
pub const QP_PATH_MTU: c_int = 1 << 8;
pub const QP_TIMEOUT: c_int = 1 << 9;
pub const QP_RETRY_CNT: c_int = 1 << 10;
pub const QP_RNR_RETRY: c_int = 1 << 11;
pub const QP_RQ_PSN: c_int = 1 << 12;
pub const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub const QP_ALT_PATH: c_int = 1 << 14;
pub const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub const QP_SQ_PSN: c_int = 1 << 16;
pub const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub const QP_PATH_MIG_STATE: c_int = 1 << 18;
pub const QP_CAP: c_int = 1 << 19;
pub const QP_DEST_QPN: c_int = 1 << 20;

pub const SRQ_MAX_WR: c_int = 1;
pub const SRQ_LIMIT: c_int = 1 << 1;

pub const EVENT_CQ_ERR: c_int = 0;
pub const EVENT_QP_FATAL: c_int = 1;
pub const EVENT_QP_REQ_ERR: c_int = 2;
pub const EVENT_QP_ACCESS_ERR: c_int = 3;
pub const EVENT_COMM_EST: c_int = 4;
pub const EVENT_SQ_DRAINED: c_int = 5;
pub const EVENT_PATH_MIG: c_int = 6;
pub const EVENT_PATH_MIG_ERR: c_int = 7;
pub const EVENT_DEVICE_FATAL: c_int = 8;
pub const EVENT_PORT_ACTIVE: c_int = 9;
pub const EVENT_PORT_ERR: c_int = 10;
pub const EVENT_SRQ_ERR: c_int = 14;
pub const EVENT_SRQ_LIMIT_REACHED: c_int = 15;
pub const EVENT_QP_LAST_WQE_REACHED: c_int = 16;
pub const EVENT_GID_CHANGE: c_int = 18;
