//! XRC targets of other processes: what their openers ask, and what their makers answer.
//!
//! A request is a mask and attributes, as of `ibv_modify_qp`; with no mask it changes nothing. The answer is an error
//! number, or 0, and the attributes as `ibv_query_qp` finds them. Both have the same form. A request is the other
//! program's: what it says is checked as what this one says is. Which attributes there are is part of what openers and
//! makers have agreed on: `VERSION` in `xrc_targets.rs` of the device counts the changes of that list.

use crate::boxed::Plain;
use crate::errno::{Answer, Errno};
use adverb_device::{QpState, RemoteTarget};
use adverb_ibv::layout::QpAttr;
use libc::c_int;
use std::mem::offset_of;
use std::sync::{Mutex, PoisonError};

/// A target of another process.
pub(crate) struct Remote {
    target: RemoteTarget,
    /// What was found last.
    last: Mutex<QpAttr>,
}

impl Remote {
    pub(crate) fn new(target: RemoteTarget) -> Self {
        Self { target, last: Mutex::new(QpAttr::zeroed()) }
    }

    /// Changes what the mask says; what the target is set to then, and whether it was changed. In ERR, if its process has
    /// ended.
    pub(crate) fn ask(&self, mask: c_int, attr: &QpAttr) -> (QpAttr, Answer<()>) {
        let answer = self.target.ask(&emit(mask, attr)).map_err(Errno::from);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = match answer.and_then(|answer| parse(&answer).ok_or(Errno(libc::EIO))) {
            Ok((errno, found)) => {
                *last = found;
                if errno == 0 { Ok(()) } else { Err(Errno(errno)) }
            }
            Err(error) => {
                last.qp_state = state_for_c(QpState::Err);
                Err(error)
            }
        };
        (*last, changed)
    }
}

/// The answer of a target's maker.
pub(crate) fn answer(changed: Answer<()>, found: &QpAttr) -> Vec<u8> {
    emit(changed.map_or_else(|Errno(number)| number, |()| 0), found)
}

pub(crate) fn state_for_c(state: QpState) -> c_int {
    let at = QpState::ALL.iter().position(|known| *known == state);
    c_int::try_from(at.unwrap_or(0)).unwrap_or(0)
}

/// A message: a number, the peer's GID, and these attributes.
macro_rules! message {
    ($($($field:ident).+: $type:ty,)*) => {
        fn emit(number: c_int, attr: &QpAttr) -> Vec<u8> {
            let mut bytes = [&number.to_ne_bytes()[..], &attr.ah_attr.grh.dgid.0].concat();
            $(bytes.extend(attr.$($field).+.to_ne_bytes());)*
            bytes
        }

        pub(crate) fn parse(bytes: &[u8]) -> Option<(c_int, QpAttr)> {
            let mut attr = QpAttr::zeroed();
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
        let len = emit(0, &QpAttr::zeroed()).len();
        let bytes: Vec<u8> = (1..).take(len).collect();
        let (number, attr) = parse(&bytes).unwrap();
        assert_eq!(number, c_int::from_ne_bytes([1, 2, 3, 4]));
        assert_eq!((attr.ah_attr.grh.dgid.0[0], attr.rnr_retry), (5, bytes[len - 1]));
        assert_eq!(emit(number, &attr), bytes);
        assert!(parse(&bytes[1..]).is_none() && parse(&[&bytes[..], b"x"].concat()).is_none());
        assert!(parse(&[]).is_none());
    }
}
