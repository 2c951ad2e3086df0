//! XRC targets of other processes: what their openers ask, and what their makers answer.
//!
//! A request is a mask and attributes, as of `ibv_modify_qp`; with no mask it changes nothing. The answer is an error
//! number, or 0, and the attributes as `ibv_query_qp` finds them. Both have the same form. A request is the other
//! program's: what it says is checked as what this one says is.

use crate::boxed::Plain;
use crate::errno::{Answer, Errno};
use crate::message::{emit, parse};
use adverb_device::{QpState, RemoteTarget};
use adverb_ibv::layout::QpAttr;
use libc::c_int;
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
