//! Queue pairs and shared receive queues of either provider.

use crate::hw;
use adverb_device::{
    Change, ConnectError, DataPath, Gid, GroupError, PostError, QpCounters, QpQuery, QpState, Qpn,
    ReceiveWork, SendWork, Side, SrqAttr, SrqError,
};
use std::sync::Arc;

/// A shared receive queue.
#[derive(Clone, Debug)]
pub(crate) enum Srq {
    Soft(adverb_device::Srq),
    Hw(Arc<hw::Srq>),
}

impl Srq {
    pub(super) fn soft(&self) -> Option<&adverb_device::Srq> {
        match self {
            Self::Soft(srq) => Some(srq),
            Self::Hw(_) => None,
        }
    }

    pub(super) fn hw(&self) -> Option<&Arc<hw::Srq>> {
        match self {
            Self::Soft(_) => None,
            Self::Hw(srq) => Some(srq),
        }
    }

    /// Takes an XRC queue out of its domain.
    pub(crate) fn close(&self) {
        match self {
            Self::Soft(srq) => srq.close(),
            Self::Hw(_) => {}
        }
    }

    pub(crate) fn number(&self) -> u32 {
        either!(self, srq => srq.number())
    }

    pub(crate) fn query(&self) -> SrqAttr {
        either!(self, srq => srq.query())
    }

    pub(crate) fn arm_limit(&self, limit: u32) -> Result<(), SrqError> {
        either!(self, srq => srq.arm_limit(limit))
    }

    pub(crate) fn resize(&self, max_wr: u32) -> Result<(), SrqError> {
        either!(self, srq => srq.resize(max_wr))
    }

    #[inline]
    pub(crate) fn post_receive(&self, batch: &[ReceiveWork<'_>]) -> Result<(), (usize, PostError)> {
        either!(self, srq => srq.post_receive(batch))
    }

    pub(crate) fn unacknowledged(&self) -> u32 {
        either!(self, srq => srq.unacknowledged(), else 0)
    }
}

/// A queue pair.
#[derive(Debug)]
pub(crate) enum Qp {
    Soft(adverb_device::Qp),
    Hw(Box<hw::Qp>),
}

impl Qp {
    #[inline]
    pub(crate) fn number(&self) -> Qpn {
        either!(self, qp => qp.number())
    }

    pub(crate) fn state(&self) -> QpState {
        either!(self, qp => qp.state())
    }

    pub(crate) fn counters(&self) -> QpCounters {
        either!(self, qp => qp.counters(), else QpCounters::default())
    }

    pub(crate) fn path(&self) -> Option<DataPath> {
        either!(self, qp => qp.path(), else None)
    }

    pub(crate) fn remote(&self) -> Option<(Gid, Qpn)> {
        either!(self, qp => qp.remote())
    }

    pub(crate) fn outstanding(&self) -> u64 {
        either!(self, qp => qp.outstanding())
    }

    pub(crate) fn modify(
        &self,
        to: QpState,
        change: &Change,
        forgotten: impl FnMut(Side, u32),
    ) -> Result<(), ConnectError> {
        either!(self, qp => qp.modify(to, change, forgotten))
    }

    pub(crate) fn query(&self) -> QpQuery {
        either!(self, qp => qp.query())
    }

    pub(crate) fn to_err(&self) {
        either!(self, qp => qp.to_err())
    }

    #[inline]
    pub(crate) fn post_send(&self, batch: &[SendWork<'_>]) -> Result<(), (usize, PostError)> {
        match self {
            Self::Soft(qp) => qp.post_send(batch),
            Self::Hw(qp) => qp.post_send(batch, hw::To::Peer),
        }
    }

    #[inline]
    pub(crate) fn post_receive(&self, batch: &[ReceiveWork<'_>]) -> Result<(), (usize, PostError)> {
        either!(self, qp => qp.post_receive(batch))
    }

    pub(crate) fn attach(&self, group: Gid) -> Result<(), GroupError> {
        either!(self, qp => qp.attach(group))
    }

    pub(crate) fn detach(&self, group: Gid) -> Result<(), GroupError> {
        either!(self, qp => qp.detach(group))
    }
}
