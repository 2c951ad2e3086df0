//! Every structure, field and number of the layout, and what C calls it.

use adverb_ibv::layout::{value::*, *};
use std::mem::offset_of;

/// Something that is compared.
pub(crate) struct Fact {
    /// Its name in the layout: `Wc`, `Wc.status` or `WC_SEND`.
    pub(crate) name: String,
    /// The same in C.
    pub(crate) c: String,
    /// What it is here.
    pub(crate) ours: i128,
}

/// A structure of C, or the part of it that a structure here is.
struct Structure {
    name: &'static str,
    c: &'static str,
    /// The field of C that ours begins with; none if it begins as C's does.
    from: Option<&'static str>,
    /// The field of C that is behind ours; none if it ends as C's does.
    to: Option<&'static str>,
}

/// Fields: their names here and in C, and where they are here.
type Fields<'a> = &'a [(&'static str, &'static str, usize)];

impl Structure {
    fn facts(&self, size: usize, align: usize, fields: Fields<'_>) -> Vec<Fact> {
        let Self { name, c, from, to } = *self;
        let place = |field: &str| format!("offsetof({c}, {field})");
        let minus_start = from.map(|from| format!(" - {}", place(from))).unwrap_or_default();
        let end = to.map_or_else(|| format!("sizeof({c})"), place);
        let fact = |name: &str, c: String, ours: usize| {
            let (name, ours) = (name.to_owned(), i128::try_from(ours).unwrap());
            Fact { name, c, ours }
        };
        let mut facts = vec![fact(name, format!("{end}{minus_start}"), size)];
        if from.is_none() {
            facts.push(fact(name, format!("_Alignof({c})"), align));
        }
        facts.extend(fields.iter().map(|&(field, theirs, offset)| {
            fact(&format!("{name}.{field}"), place(theirs) + &minus_start, offset)
        }));
        facts
    }
}

/// C's name, if it is not the one that is used here.
macro_rules! or {
    ($ours:expr) => {
        $ours
    };
    ($ours:expr, $theirs:expr) => {
        $theirs
    };
}

macro_rules! structures {
    ($($name:ident = $c:literal $(from $from:literal)? $(to $to:literal)? {
        $($field:ident $(= $theirs:literal)?)*
    })*) => {
        [$({
            let structure = Structure {
                name: stringify!($name),
                c: $c,
                from: or!(None $(, Some($from))?),
                to: or!(None $(, Some($to))?),
            };
            structure.facts(size_of::<$name>(), align_of::<$name>(), &[$((
                stringify!($field),
                or!(stringify!($field) $(, $theirs)?),
                offset_of!($name, $field),
            )),*])
        }),*]
    };
}

macro_rules! numbers {
    ($($name:ident $(= $theirs:literal)?)*) => {
        [$(Fact {
            name: stringify!($name).to_owned(),
            c: or!(concat!("IBV_", stringify!($name)) $(, $theirs)?).to_owned(),
            ours: i128::from($name),
        }),*]
    };
}

/// All structures, with their fields.
pub(crate) fn structures() -> Vec<Fact> {
    structures! {
        Device = "struct ibv_device" { node_type transport_type name dev_name dev_path ibdev_path }
        ContextOps = "struct ibv_context_ops" {
            alloc_mw bind_mw dealloc_mw poll_cq req_notify_cq post_srq_recv post_send post_recv
        }
        Context = "struct ibv_context" {
            device ops cmd_fd async_fd num_comp_vectors mutex abi_compat
        }
        Pd = "struct ibv_pd" { context handle }
        Mr = "struct ibv_mr" { context pd addr length handle lkey rkey }
        CompChannel = "struct ibv_comp_channel" { context fd refcnt }
        Cq = "struct ibv_cq" {
            context channel cq_context handle cqe mutex cond comp_events_completed
            async_events_completed
        }
        Srq = "struct ibv_srq" { context srq_context pd handle mutex cond events_completed }
        Qp = "struct ibv_qp" {
            context qp_context pd send_cq recv_cq srq handle qp_num state qp_type mutex cond
            events_completed
        }
        Ah = "struct ibv_ah" { context pd handle }
        Wc = "struct ibv_wc" {
            wr_id status opcode vendor_err byte_len imm_data qp_num src_qp wc_flags pkey_index slid
            sl dlid_path_bits
        }
        Sge = "struct ibv_sge" { addr length lkey }
        SendWr = "struct ibv_send_wr" {
            wr_id next sg_list num_sge opcode send_flags imm_data wr
            remote_srqn = "qp_type.xrc.remote_srqn" bind_mw
        }
        BindWr = "__typeof__(((struct ibv_send_wr *)0)->bind_mw)" { mw rkey bind_info }
        Remote = "__typeof__(((struct ibv_send_wr *)0)->wr)" { rdma atomic ud }
        Rdma = "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)" { remote_addr rkey }
        Atomic = "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)" {
            remote_addr compare_add swap rkey
        }
        Datagram = "__typeof__(((struct ibv_send_wr *)0)->wr.ud)" { ah remote_qpn remote_qkey }
        RecvWr = "struct ibv_recv_wr" { wr_id next sg_list num_sge }
        DeviceAttr = "struct ibv_device_attr" {
            fw_ver node_guid sys_image_guid max_mr_size page_size_cap vendor_id vendor_part_id
            hw_ver max_qp max_qp_wr device_cap_flags max_sge max_sge_rd max_cq max_cqe max_mr max_pd
            max_qp_rd_atom max_ee_rd_atom max_res_rd_atom max_qp_init_rd_atom max_ee_init_rd_atom
            atomic_cap max_ee max_rdd max_mw max_raw_ipv6_qp max_raw_ethy_qp max_mcast_grp
            max_mcast_qp_attach max_total_mcast_qp_attach max_ah max_fmr max_map_per_fmr max_srq
            max_srq_wr max_srq_sge max_pkeys local_ca_ack_delay phys_port_cnt
        }
        PortAttr = "struct ibv_port_attr" {
            state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz bad_pkey_cntr
            qkey_viol_cntr pkey_tbl_len lid sm_lid lmc max_vl_num sm_sl subnet_timeout
            init_type_reply active_width active_speed phys_state link_layer flags port_cap_flags2
        }
        GidEntry = "struct ibv_gid_entry" { gid gid_index port_num gid_type ndev_ifindex }
        Gid = "union ibv_gid" {}
        GlobalRoute = "struct ibv_global_route" {
            dgid flow_label sgid_index hop_limit traffic_class
        }
        AhAttr = "struct ibv_ah_attr" { grh dlid sl src_path_bits static_rate is_global port_num }
        QpCap = "struct ibv_qp_cap" {
            max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data
        }
        QpInitAttr = "struct ibv_qp_init_attr" {
            qp_context send_cq recv_cq srq cap qp_type sq_sig_all
        }
        QpAttr = "struct ibv_qp_attr" {
            qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num
            qp_access_flags cap ah_attr alt_ah_attr pkey_index alt_pkey_index en_sqd_async_notify
            sq_draining max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt
            rnr_retry alt_port_num alt_timeout rate_limit
        }
        SrqAttr = "struct ibv_srq_attr" { max_wr max_sge srq_limit }
        SrqInitAttr = "struct ibv_srq_init_attr" { srq_context attr }
        AsyncEvent = "struct ibv_async_event" { element event_type }
        KernelRoute = "struct ib_uverbs_global_route" {
            dgid flow_label sgid_index hop_limit traffic_class
        }
        KernelAhAttr = "struct ib_uverbs_ah_attr" {
            grh dlid sl src_path_bits static_rate is_global port_num
        }
        KernelQpAttr = "struct ib_uverbs_qp_attr" {
            qp_attr_mask qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn
            sq_psn dest_qp_num qp_access_flags ah_attr alt_ah_attr max_send_wr
            max_recv_wr max_send_sge max_recv_sge max_inline_data pkey_index
            alt_pkey_index en_sqd_async_notify sq_draining max_rd_atomic
            max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt rnr_retry
            alt_port_num alt_timeout
        }
        KernelPath = "struct ib_user_path_rec" {
            dgid sgid dlid slid raw_traffic flow_label reversible mtu pkey hop_limit
            traffic_class numb_path sl mtu_selector rate_selector rate
            packet_life_time_selector packet_life_time preference
        }
        SaPath = "struct ibv_sa_path_rec" {
            dgid sgid dlid slid raw_traffic flow_label hop_limit traffic_class
            reversible numb_path pkey sl mtu_selector mtu rate_selector rate
            packet_life_time_selector packet_life_time preference
        }
        ValuesEx = "struct ibv_values_ex" { comp_mask raw_clock }
        Ece = "struct ibv_ece" { vendor_id options comp_mask }
        Mw = "struct ibv_mw" { context pd rkey handle kind = "type" }
        MwBindInfo = "struct ibv_mw_bind_info" { mr addr length mw_access_flags }
        MwBind = "struct ibv_mw_bind" { wr_id send_flags bind_info }
        Td = "struct ibv_td" { context }
        TdInitAttr = "struct ibv_td_init_attr" { comp_mask }
        ParentDomainInitAttr = "struct ibv_parent_domain_init_attr" { pd td comp_mask pd_context }
        Xrcd = "struct ibv_xrcd" { context }
        XrcdInitAttr = "struct ibv_xrcd_init_attr" { comp_mask fd oflags }
        Dm = "struct ibv_dm" { context memcpy_to_dm memcpy_from_dm comp_mask handle }
        AllocDmAttr = "struct ibv_alloc_dm_attr" { length log_align_req comp_mask }
        MrInitAttr = "struct ibv_mr_init_attr" {
            length access comp_mask iova addr fd fd_offset dmah buf
        }
        Buf = "struct ibv_buf" { addr size pd dmabuf_fd }
        CqEx = "struct ibv_cq_ex" {
            cq = "context" comp_mask status wr_id start_poll next_poll end_poll read_opcode
            read_vendor_err read_byte_len read_imm_data read_qp_num read_src_qp read_wc_flags
            read_slid read_sl read_dlid_path_bits read_completion_ts read_cvlan read_flow_tag
            read_completion_wallclock_ns
        }
        QpEx = "struct ibv_qp_ex" {
            qp_base comp_mask wr_id wr_flags wr_atomic_cmp_swp wr_atomic_fetch_add wr_bind_mw
            wr_local_inv wr_rdma_read wr_rdma_write wr_rdma_write_imm wr_send wr_send_imm
            wr_send_inv wr_set_ud_addr wr_set_xrc_srqn wr_set_inline_data wr_set_inline_data_list
            wr_set_sge wr_set_sge_list wr_start wr_complete wr_abort wr_atomic_write wr_flush
        }
        DataBuf = "struct ibv_data_buf" { addr length }
        CqInitAttrEx = "struct ibv_cq_init_attr_ex" {
            cqe cq_context channel comp_vector wc_flags comp_mask flags parent_domain
        }
        QpInitAttrEx = "struct ibv_qp_init_attr_ex" {
            qp_context send_cq recv_cq srq cap qp_type sq_sig_all comp_mask pd xrcd create_flags
            max_tso_header source_qpn send_ops_flags
        }
        QpOpenAttr = "struct ibv_qp_open_attr" { comp_mask qp_num xrcd qp_context qp_type }
        SrqInitAttrEx = "struct ibv_srq_init_attr_ex" {
            srq_context attr comp_mask srq_type pd xrcd cq
        }
        DeviceAttrEx = "struct ibv_device_attr_ex" {
            orig_attr comp_mask odp_caps completion_timestamp_mask hca_core_clock
            device_cap_flags_ex max_dm_size xrc_odp_caps phys_port_cnt_ex
        }
        OdpCaps = "struct ibv_odp_caps" {
            general_caps rc_odp_caps = "per_transport_caps.rc_odp_caps"
            uc_odp_caps = "per_transport_caps.uc_odp_caps"
            ud_odp_caps = "per_transport_caps.ud_odp_caps"
        }
        VerbsContext = "struct verbs_context" from "query_port" {
            query_port extensions = "advise_mr" sz context
        }
        Extensions = "struct verbs_context" from "advise_mr" to "sz" {
            advise_mr alloc_null_mr reg_dm_mr alloc_dm free_dm alloc_parent_domain dealloc_td
            alloc_td query_rt_values create_cq_ex private = "priv" query_device_ex open_qp
            create_qp_ex get_srq_num create_srq_ex open_xrcd close_xrcd
        }
    }
    .into_iter()
    .flatten()
    .collect()
}

/// All numbers.
pub(crate) fn numbers() -> Vec<Fact> {
    numbers! {
        NODE_CA NODE_RNIC PORT_DOWN PORT_INIT PORT_ARMED PORT_ACTIVE PORT_ACTIVE_DEFER
        GID_TYPE_ROCE_V1 GID_TYPE_ROCE_V2 LINK_LAYER_ETHERNET PORT_CM_SUP QPT_RC QPT_UC QPT_UD
        QPT_XRC_SEND QPT_XRC_RECV MW_TYPE_1 MW_TYPE_2 SRQT_BASIC SRQT_XRC ACCESS_OPTIONAL_RANGE
        ADVISE_MR_FLAG_FLUSH
        REG_MR_MASK_IOVA REG_MR_MASK_ADDR REG_MR_MASK_FD REG_MR_MASK_FD_OFFSET REG_MR_MASK_DMAH
        REG_MR_MASK_BUF REREG_MR_CHANGE_TRANSLATION REREG_MR_CHANGE_PD REREG_MR_CHANGE_ACCESS
        REREG_MR_ERR_INPUT REREG_MR_ERR_CMD QP_INIT_ATTR_PD QP_INIT_ATTR_XRCD
        QP_INIT_ATTR_CREATE_FLAGS QP_INIT_ATTR_SEND_OPS_FLAGS QP_CREATE_BLOCK_SELF_MCAST_LB
        QP_EX_WITH_RDMA_WRITE QP_EX_WITH_RDMA_WRITE_WITH_IMM QP_EX_WITH_SEND
        QP_EX_WITH_SEND_WITH_IMM QP_EX_WITH_RDMA_READ QP_EX_WITH_ATOMIC_CMP_AND_SWP
        QP_EX_WITH_ATOMIC_FETCH_AND_ADD QP_EX_WITH_LOCAL_INV QP_EX_WITH_BIND_MW
        QP_EX_WITH_SEND_WITH_INV QP_EX_WITH_FLUSH QP_EX_WITH_ATOMIC_WRITE SRQ_INIT_ATTR_TYPE
        SRQ_INIT_ATTR_PD SRQ_INIT_ATTR_XRCD SRQ_INIT_ATTR_CQ SRQ_INIT_ATTR_TM
        CQ_INIT_ATTR_MASK_FLAGS CQ_INIT_ATTR_MASK_PD CREATE_CQ_ATTR_SINGLE_THREADED
        CREATE_CQ_ATTR_IGNORE_OVERRUN WC_STANDARD_FLAGS WC_EX_WITH_COMPLETION_TIMESTAMP
        WC_EX_WITH_CVLAN WC_EX_WITH_FLOW_TAG WC_EX_WITH_TM_INFO
        WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK VALUES_MASK_RAW_CLOCK
        PARENT_DOMAIN_INIT_ATTR_ALLOCATORS PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT XRCD_INIT_ATTR_FD
        XRCD_INIT_ATTR_OFLAGS QP_OPEN_ATTR_NUM QP_OPEN_ATTR_XRCD QP_OPEN_ATTR_CONTEXT
        QP_OPEN_ATTR_TYPE ATOMIC_HCA DEVICE_CURR_QP_STATE_MOD DEVICE_PORT_ACTIVE_EVENT
        DEVICE_SYS_IMAGE_GUID DEVICE_RC_RNR_NAK_GEN DEVICE_SRQ_RESIZE DEVICE_MEM_WINDOW DEVICE_XRC
        DEVICE_MEM_MGT_EXTENSIONS DEVICE_MEM_WINDOW_TYPE_2B ODP_SUPPORT ODP_SUPPORT_IMPLICIT
        ODP_SUPPORT_SEND ODP_SUPPORT_RECV ODP_SUPPORT_WRITE ODP_SUPPORT_READ ODP_SUPPORT_ATOMIC
        ODP_SUPPORT_SRQ_RECV ODP_SUPPORT_FLUSH ODP_SUPPORT_ATOMIC_WRITE QPF_GRH_REQUIRED
        WR_RDMA_WRITE WR_RDMA_WRITE_WITH_IMM WR_SEND WR_SEND_WITH_IMM WR_RDMA_READ
        WR_ATOMIC_CMP_AND_SWP WR_ATOMIC_FETCH_AND_ADD WR_LOCAL_INV WR_BIND_MW WR_SEND_WITH_INV
        WR_ATOMIC_WRITE SEND_FENCE SEND_SIGNALED SEND_SOLICITED SEND_INLINE WC_SEND WC_RDMA_WRITE
        WC_RDMA_READ WC_COMP_SWAP WC_FETCH_ADD WC_BIND_MW WC_LOCAL_INV WC_FLUSH WC_ATOMIC_WRITE
        WC_RECV WC_RECV_RDMA_WITH_IMM QP_STATE QP_CUR_STATE QP_EN_SQD_ASYNC_NOTIFY QP_ACCESS_FLAGS
        QP_PKEY_INDEX QP_PORT QP_QKEY QP_AV QP_PATH_MTU QP_TIMEOUT QP_RETRY_CNT QP_RNR_RETRY
        QP_RQ_PSN QP_MAX_QP_RD_ATOMIC QP_ALT_PATH QP_MIN_RNR_TIMER QP_SQ_PSN QP_MAX_DEST_RD_ATOMIC
        QP_PATH_MIG_STATE QP_CAP QP_DEST_QPN SRQ_MAX_WR SRQ_LIMIT EVENT_CQ_ERR EVENT_QP_FATAL
        EVENT_QP_REQ_ERR EVENT_QP_ACCESS_ERR EVENT_COMM_EST EVENT_SQ_DRAINED EVENT_PATH_MIG
        EVENT_PATH_MIG_ERR EVENT_DEVICE_FATAL EVENT_PORT_ACTIVE EVENT_PORT_ERR EVENT_SRQ_ERR
        EVENT_SRQ_LIMIT_REACHED EVENT_QP_LAST_WQE_REACHED EVENT_GID_CHANGE
        ADVISE_MR_PREFETCH = "IBV_ADVISE_MR_ADVICE_PREFETCH"
        ADVISE_MR_PREFETCH_WRITE = "IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE"
        ADVISE_MR_PREFETCH_NO_FAULT = "IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT"
        WC_FLAG_GRH = "IBV_WC_GRH"
        WC_FLAG_WITH_IMM = "IBV_WC_WITH_IMM"
        WC_FLAG_WITH_INV = "IBV_WC_WITH_INV"
        DEVICE_FLUSH_GLOBAL = "IB_UVERBS_DEVICE_FLUSH_GLOBAL"
        DEVICE_ATOMIC_WRITE = "IB_UVERBS_DEVICE_ATOMIC_WRITE"
        PORT_PHYS_STATE_DISABLED = "IB_PORT_PHYS_STATE_DISABLED"
        PORT_PHYS_STATE_LINK_UP = "IB_PORT_PHYS_STATE_LINK_UP"
        WIDTH_4X = "IB_WIDTH_4X"
        SPEED_QDR = "IB_SPEED_QDR"
    }
    .into()
}
