//! The kernel's structures of ways and queue pairs to those of programs, and back: librdmacm calls these for all that it reads.
//!
//! # Safety
//!
//! 1. As in `export.rs`. What is to be filled may never have been written: it is written through pointers, field by field.
//! 2. What is no field of the other structure stays as it is: programs set the state of a queue pair themselves.

use crate::errno::{Answer, INVALID};
use crate::export::export;
use adverb_ibv::layout::{AhAttr, Gid, KernelAhAttr, KernelPath, KernelQpAttr, QpAttr, SaPath};

/// Writes fields of a structure from another's that are called the same. `as` says how, where their types differ.
macro_rules! copy {
    ($from:expr => $to:expr; $($($field:ident).+ $(as $by:expr)?),* $(,)?) => {{
        let (from, to) = ($from.ok_or(INVALID)?, $to);
        if to.is_null() {
            return Err(INVALID);
        }
        $({
            let value = from.$($field).+;
            $(let value = $by(value);)?
            // SAFETY: a field of a structure to fill (rule 1).
            unsafe { (&raw mut (*to).$($field).+).write(value) };
        })*
        Ok(())
    }};
}

export! {
    value "IBVERBS_1.1"
    fn ibv_copy_ah_attr_from_kern(to: *mut AhAttr, from: Option<&KernelAhAttr>) -> () {
        // SAFETY: rule 1.
        unsafe { copy_ah(to, from) }
    }
}

/// # Safety
///
/// Rule 1.
unsafe fn copy_ah(to: *mut AhAttr, from: Option<&KernelAhAttr>) -> Answer<()> {
    copy! {
        from => to;
        grh.dgid as Gid, grh.flow_label, grh.sgid_index, grh.hop_limit, grh.traffic_class, dlid, sl, src_path_bits,
        static_rate, is_global, port_num,
    }
}

export! {
    value "IBVERBS_1.0"
    fn ibv_copy_qp_attr_from_kern(to: *mut QpAttr, from: Option<&KernelQpAttr>) -> () {
        // SAFETY: rule 1.
        unsafe { copy_numbers(to, from) }?;
        // SAFETY: a field of the structure to fill (rule 1).
        let (cap, way) = unsafe { (&raw mut (*to).cap, &raw mut (*to).ah_attr) };
        // SAFETY: as above.
        unsafe { copy_ah(way, from.map(|from| &from.ah_attr)) }?;
        // SAFETY: as above.
        unsafe { copy_ah(&raw mut (*to).alt_ah_attr, from.map(|from| &from.alt_ah_attr)) }?;
        copy! { from => cap; max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    }
}

/// What is no structure of its own.
///
/// # Safety
///
/// Rule 1.
unsafe fn copy_numbers(to: *mut QpAttr, from: Option<&KernelQpAttr>) -> Answer<()> {
    copy! {
        from => to;
        cur_qp_state as u32::cast_signed, path_mtu as u32::cast_signed, path_mig_state as u32::cast_signed, qkey, rq_psn,
        sq_psn, dest_qp_num, qp_access_flags, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
        max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
    }
}

export! {
    value "IBVERBS_1.0"
    fn ibv_copy_path_rec_from_kern(to: *mut SaPath, from: Option<&KernelPath>) -> () {
        copy! {
            from => to;
            dgid as Gid, sgid as Gid, dlid, slid, raw_traffic as u32::cast_signed, flow_label,
            reversible as u32::cast_signed, mtu as low, pkey, hop_limit, traffic_class, numb_path, sl, mtu_selector,
            rate_selector, rate, packet_life_time_selector, packet_life_time, preference,
        }
    }
}

export! {
    value "IBVERBS_1.0"
    fn ibv_copy_path_rec_to_kern(to: *mut KernelPath, from: Option<&SaPath>) -> () {
        copy! {
            from => to;
            dgid as bytes, sgid as bytes, dlid, slid, raw_traffic as i32::cast_unsigned, flow_label,
            reversible as i32::cast_unsigned, mtu as u32::from, pkey, hop_limit, traffic_class, numb_path, sl,
            mtu_selector, rate_selector, rate, packet_life_time_selector, packet_life_time, preference,
        }
    }
}

/// What programs have room for of a number of `enum ibv_mtu`.
const fn low(number: u32) -> u8 {
    let [low, ..] = number.to_le_bytes();
    low
}

const fn bytes(gid: Gid) -> [u8; 16] {
    gid.0
}
