//! What openers and makers of XRC targets write to one another: a number, the peer's GID, and these attributes.
//!
//! Tests compile this file by itself: it needs the layouts alone.

use adverb_ibv::layout::QpAttr;
use libc::c_int;
use std::mem::offset_of;

/// A message of these attributes, after the number and the GID.
macro_rules! message {
    ($($($field:ident).+: $type:ty,)*) => {
        pub(crate) fn emit(number: c_int, attr: &QpAttr) -> Vec<u8> {
            let mut bytes = [&number.to_ne_bytes()[..], &attr.ah_attr.grh.dgid.0].concat();
            $(bytes.extend(attr.$($field).+.to_ne_bytes());)*
            bytes
        }

        pub(crate) fn parse(bytes: &[u8]) -> Option<(c_int, QpAttr)> {
            let mut attr = QpAttr::default();
            let (number, rest) = bytes.split_first_chunk()?;
            let (gid, rest) = rest.split_first_chunk()?;
            attr.ah_attr.grh.dgid.0 = *gid;
            $(
                let (value, rest) = rest.split_first_chunk()?;
                attr.$($field).+ = <$type>::from_ne_bytes(*value);
            )*
            rest.is_empty().then_some((c_int::from_ne_bytes(*number), attr))
        }

        /// A number that another list does not have.
        const LIST: usize = {
            let mut sum = 0;
            $(sum = (sum * 31 + offset_of!(QpAttr, $($field).+) * 8 + size_of::<$type>()) % 65_521;)*
            sum
        };
    };
}

message! {
    qp_state: c_int,
    cur_qp_state: c_int,
    path_mtu: c_int,
    path_mig_state: c_int,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr.grh.flow_label: u32,
    ah_attr.grh.sgid_index: u8,
    ah_attr.grh.hop_limit: u8,
    ah_attr.grh.traffic_class: u8,
    ah_attr.is_global: u8,
    ah_attr.port_num: u8,
    pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
}

const _: () =
    assert!(LIST == 5683, "another list of attributes is another `VERSION` in `xrc_targets.rs`");

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: attributes arrive as they were written. Method: bytes that all differ; nothing else has the length.
    #[test]
    fn a_message_arrives_as_it_was_written_and_other_lengths_are_none() {
        let len = emit(0, &QpAttr::default()).len();
        let bytes: Vec<u8> = (1..).take(len).collect();
        let (number, attr) = parse(&bytes).unwrap();
        assert_eq!(number, c_int::from_ne_bytes([1, 2, 3, 4]));
        assert_eq!((attr.ah_attr.grh.dgid.0[0], attr.rnr_retry), (5, bytes[len - 1]));
        assert_eq!(emit(number, &attr), bytes);
        assert!(parse(&bytes[1..]).is_none() && parse(&[&bytes[..], b"x"].concat()).is_none());
        assert!(parse(&[]).is_none());
    }
}
