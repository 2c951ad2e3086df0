//! The layouts are the header's: a C program that is compiled against it says the same sizes, offsets
//! and numbers as ours. Without a header or a compiler it is skipped.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

use adverb_ibv::layout::*;
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::process::Command;

/// What is compared: a C expression, and what it is here.
type Facts = BTreeMap<String, i64>;

macro_rules! facts {
    ($($c:literal $ours:ident { $($field:ident)* })*) => {{
        let mut facts = Facts::new();
        let number = |n: usize| i64::try_from(n).unwrap();
        $(
            facts.insert(format!("sizeof(struct {})", $c), number(size_of::<$ours>()));
            $(facts.insert(
                format!("offsetof(struct {}, {})", $c, stringify!($field)),
                number(offset_of!($ours, $field)),
            );)*
        )*
        facts
    }};
}

macro_rules! numbers {
    ($facts:ident: $($prefix:literal { $($name:ident)* })*) => {
        $($($facts.insert(concat!($prefix, stringify!($name)).to_owned(), i64::from(value::$name));)*)*
    };
}

fn ours() -> Facts {
    let mut facts = facts! {
        "ibv_device" Device { node_type transport_type name dev_name dev_path ibdev_path }
        "ibv_context_ops" ContextOps { poll_cq req_notify_cq post_srq_recv post_send post_recv alloc_mw
            bind_mw dealloc_mw
        }
        "ibv_context" Context { device ops cmd_fd async_fd num_comp_vectors mutex abi_compat }
        "verbs_context" VerbsContext { query_port sz context }
        "ibv_pd" Pd { context handle }
        "ibv_mr" Mr { context pd addr length handle lkey rkey }
        "ibv_comp_channel" CompChannel { context fd refcnt }
        "ibv_cq" Cq {
            context channel cq_context handle cqe mutex cond comp_events_completed async_events_completed
        }
        "ibv_srq" Srq { context srq_context pd handle mutex cond events_completed }
        "ibv_qp" Qp {
            context qp_context pd send_cq recv_cq srq handle qp_num state qp_type mutex cond
            events_completed
        }
        "ibv_ah" Ah { context pd handle }
        "ibv_wc" Wc {
            wr_id status opcode vendor_err byte_len imm_data qp_num src_qp wc_flags pkey_index slid sl
            dlid_path_bits
        }
        "ibv_sge" Sge { addr length lkey }
        "ibv_send_wr" SendWr {
            wr_id next sg_list num_sge opcode send_flags imm_data wr bind_mw
        }
        "ibv_recv_wr" RecvWr { wr_id next sg_list num_sge }
        "ibv_device_attr" DeviceAttr {
            node_guid max_qp_wr max_sge max_cqe max_qp_rd_atom max_qp_init_rd_atom atomic_cap
            max_srq_wr max_srq_sge max_pkeys phys_port_cnt
        }
        "ibv_port_attr" PortAttr {
            state max_mtu active_mtu gid_tbl_len max_msg_sz pkey_tbl_len lid link_layer
            port_cap_flags2
        }
        "ibv_gid_entry" GidEntry { gid gid_index port_num gid_type ndev_ifindex }
        "ibv_global_route" GlobalRoute { dgid flow_label sgid_index hop_limit traffic_class }
        "ibv_ah_attr" AhAttr { grh dlid sl src_path_bits static_rate is_global port_num }
        "ibv_qp_cap" QpCap { max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data }
        "ibv_qp_init_attr" QpInitAttr { qp_context send_cq recv_cq srq cap qp_type sq_sig_all }
        "ibv_qp_attr" QpAttr {
            qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num
            qp_access_flags cap ah_attr alt_ah_attr pkey_index alt_pkey_index en_sqd_async_notify
            sq_draining max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt
            rnr_retry alt_port_num alt_timeout rate_limit
        }
        "ibv_srq_attr" SrqAttr { max_wr max_sge srq_limit }
        "ibv_srq_init_attr" SrqInitAttr { srq_context attr }
        "ibv_async_event" AsyncEvent { element event_type }
        "ibv_mw" Mw { context pd rkey handle }
        "ibv_mw_bind_info" MwBindInfo { mr addr length mw_access_flags }
        "ibv_mw_bind" MwBind { wr_id send_flags bind_info }
        "ibv_td" Td { context }
        "ibv_td_init_attr" TdInitAttr { comp_mask }
        "ibv_parent_domain_init_attr" ParentDomainInitAttr { pd td comp_mask pd_context }
        "ibv_xrcd" Xrcd { context }
        "ibv_xrcd_init_attr" XrcdInitAttr { comp_mask fd oflags }
        "ibv_dm" Dm { context memcpy_to_dm memcpy_from_dm comp_mask handle }
        "ibv_alloc_dm_attr" AllocDmAttr { length log_align_req comp_mask }
        "ibv_cq_ex" CqEx {
            comp_mask status wr_id start_poll next_poll end_poll read_opcode read_vendor_err
            read_byte_len read_imm_data read_qp_num read_src_qp read_wc_flags read_slid read_sl
            read_dlid_path_bits read_completion_ts read_cvlan read_flow_tag
            read_completion_wallclock_ns
        }
        "ibv_qp_ex" QpEx {
            qp_base comp_mask wr_id wr_flags wr_atomic_cmp_swp wr_atomic_fetch_add wr_bind_mw
            wr_local_inv wr_rdma_read wr_rdma_write wr_rdma_write_imm wr_send wr_send_imm
            wr_send_inv wr_set_ud_addr wr_set_xrc_srqn wr_set_inline_data
            wr_set_inline_data_list wr_set_sge wr_set_sge_list wr_start wr_complete wr_abort
            wr_atomic_write
        }
        "ibv_data_buf" DataBuf { addr length }
        "ibv_cq_init_attr_ex" CqInitAttrEx {
            cqe cq_context channel comp_vector wc_flags comp_mask flags parent_domain
        }
        "ibv_qp_init_attr_ex" QpInitAttrEx {
            qp_context send_cq recv_cq srq cap qp_type sq_sig_all comp_mask pd xrcd create_flags
            max_tso_header source_qpn send_ops_flags
        }
        "ibv_qp_open_attr" QpOpenAttr { comp_mask qp_num xrcd qp_context qp_type }
        "ibv_srq_init_attr_ex" SrqInitAttrEx { srq_context attr comp_mask srq_type pd xrcd cq }
        "ibv_device_attr_ex" DeviceAttrEx {
            orig_attr comp_mask odp_caps completion_timestamp_mask hca_core_clock
            device_cap_flags_ex max_dm_size xrc_odp_caps phys_port_cnt_ex
        }
        "ibv_odp_caps" OdpCaps { general_caps }
    };
    // Later headers have one function more.
    facts.remove("sizeof(struct ibv_qp_ex)");
    let number = |n: usize| i64::try_from(n).unwrap();
    let wr = offset_of!(SendWr, wr);
    for (c, ours) in [
        ("wr.rdma.rkey", wr + offset_of!(Rdma, rkey)),
        ("wr.atomic.compare_add", wr + offset_of!(Atomic, compare_add)),
        ("wr.atomic.swap", wr + offset_of!(Atomic, swap)),
        ("wr.atomic.rkey", wr + offset_of!(Atomic, rkey)),
        ("wr.ud.remote_qpn", wr + offset_of!(Datagram, remote_qpn)),
        ("wr.ud.remote_qkey", wr + offset_of!(Datagram, remote_qkey)),
    ] {
        facts.insert(format!("offsetof(struct ibv_send_wr, {c})"), number(ours));
    }
    macro_rules! extensions {
        ($($field:ident)*) => {$(facts.insert(
            concat!("offsetof(struct verbs_context, ", stringify!($field), ")").to_owned(),
            number(offset_of!(VerbsContext, extensions.$field)),
        );)*};
    }
    extensions! {
        advise_mr alloc_null_mr reg_dm_mr alloc_dm free_dm alloc_parent_domain dealloc_td
        alloc_td create_cq_ex query_device_ex open_qp create_qp_ex get_srq_num create_srq_ex
        open_xrcd close_xrcd
    }
    for (c, ours) in [
        ("struct verbs_context, priv", offset_of!(VerbsContext, extensions.private)),
        ("struct ibv_mw, type", offset_of!(Mw, kind)),
        ("struct ibv_odp_caps, per_transport_caps", offset_of!(OdpCaps, rc_odp_caps)),
    ] {
        facts.insert(format!("offsetof({c})"), number(ours));
    }
    numbers! { facts:
        "IBV_" {
            NODE_CA NODE_RNIC PORT_ACTIVE GID_TYPE_ROCE_V1 GID_TYPE_ROCE_V2 LINK_LAYER_ETHERNET
            QPT_RC QPT_UC QPT_UD
            WR_RDMA_WRITE WR_RDMA_WRITE_WITH_IMM WR_SEND WR_SEND_WITH_IMM WR_RDMA_READ
            WR_ATOMIC_CMP_AND_SWP WR_ATOMIC_FETCH_AND_ADD WR_LOCAL_INV WR_SEND_WITH_INV
            SEND_FENCE SEND_SIGNALED SEND_SOLICITED SEND_INLINE
            WC_RECV WC_RECV_RDMA_WITH_IMM
            QP_STATE QP_CUR_STATE QP_EN_SQD_ASYNC_NOTIFY QP_ACCESS_FLAGS QP_PKEY_INDEX QP_PORT QP_QKEY
            QP_AV QP_PATH_MTU QP_TIMEOUT QP_RETRY_CNT QP_RNR_RETRY QP_RQ_PSN QP_MAX_QP_RD_ATOMIC
            QP_MIN_RNR_TIMER QP_SQ_PSN QP_MAX_DEST_RD_ATOMIC QP_CAP QP_DEST_QPN
            SRQ_MAX_WR SRQ_LIMIT
            EVENT_CQ_ERR EVENT_QP_FATAL EVENT_QP_REQ_ERR EVENT_QP_ACCESS_ERR EVENT_COMM_EST
            EVENT_SQ_DRAINED EVENT_PATH_MIG EVENT_PATH_MIG_ERR EVENT_DEVICE_FATAL EVENT_PORT_ACTIVE
            EVENT_PORT_ERR EVENT_SRQ_ERR EVENT_SRQ_LIMIT_REACHED EVENT_QP_LAST_WQE_REACHED
            EVENT_GID_CHANGE
        }
    }
    for (c, ours) in [
        ("IBV_WC_GRH", value::WC_FLAG_GRH),
        ("IBV_WC_WITH_IMM", value::WC_FLAG_WITH_IMM),
        ("IBV_WC_WITH_INV", value::WC_FLAG_WITH_INV),
    ] {
        facts.insert(c.to_owned(), i64::from(ours));
    }
    facts
}

/// A program that prints all facts, one a line.
fn program(facts: &Facts) -> String {
    let print = |fact: &String| format!("  printf(\"%lld\\n\", (long long)({fact}));\n");
    let lines: String = facts.keys().map(print).collect();
    format!(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n\
         int main(void) {{\n{lines}  return 0;\n}}\n"
    )
}

fn runs(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

#[test]
fn every_layout_and_number_is_the_headers() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (probe, source) = (folder.join("probe.c"), folder.join("layout.c"));
    let binary = folder.join("layout");
    std::fs::write(&probe, "#include <infiniband/verbs.h>\n").unwrap();
    if !runs(Command::new("cc").args(["-fsyntax-only"]).arg(&probe)) {
        println!("skipped: no compiler, or no header of libibverbs, to compare layouts with");
        return;
    }
    let ours = ours();
    std::fs::write(&source, program(&ours)).unwrap();
    assert!(runs(Command::new("cc").arg(&source).arg("-o").arg(&binary)), "it compiles");
    let output = Command::new(&binary).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let theirs: Vec<i64> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), ours.len());
    for ((fact, ours), theirs) in ours.iter().zip(theirs) {
        assert_eq!(*ours, theirs, "{fact}");
    }
}
