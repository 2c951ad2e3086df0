//! What a queue pair counts.
//!
//! The fields are named as rxe's `hw_counters` where it has the count, else as the `diag_counters`
//! of hardware. [`QpCounters::diagnostics`] lists all of the latter, [`QpCounters::hardware`] all of
//! the former: several names stand for the same count, and some for what cannot occur here.

use crate::status::WcStatus;
use adverb_wire::{Nak, Syndrome};

/// Counters of one queue pair; they only grow.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QpCounters {
    /// Packets emitted.
    pub sent_pkts: u64,
    /// Packets that reached the queue pair with a good ICRC.
    pub rcvd_pkts: u64,
    /// Requests that had been served before.
    pub duplicate_request: u64,
    /// Requests that came ahead of a missing one.
    pub out_of_seq_request: u64,
    /// RNR NAKs that came.
    pub rcvd_rnr_err: u64,
    /// RNR NAKs that were sent.
    pub send_rnr_err: u64,
    /// Sequence-error NAKs that came.
    pub rcvd_seq_err: u64,
    /// Acknowledgements that were late.
    pub ack_timeout: u64,
    /// Times the requester went back and sent again.
    pub completer_retry_err: u64,
    /// Requests that failed for want of an acknowledgement.
    pub retry_exceeded_err: u64,
    /// Requests that failed for want of a receive.
    pub retry_rnr_exceeded_err: u64,
    /// Refusals (other than sequence errors) that were sent.
    pub send_nak_err: u64,
    /// Packets that could not be emitted because their bytes were not to be had.
    pub send_err: u64,
    /// Messages that were sent and, where that is the custom, acknowledged.
    pub rdma_sends: u64,
    /// Messages that ended a receive well.
    pub rdma_recvs: u64,
    /// Packets that the queue pair dropped: from a stranger, in a state that takes none, or, over an
    /// unreliable transport, part of a message that came to nothing.
    pub dropped_pkts: u64,
    /// Packets of another partition; they are dropped as well.
    pub bad_pkey: u64,
    /// Datagrams that did not show the queue pair's Q_Key; they are dropped as well.
    pub qkey_viol: u64,
    /// Receives that were too short for their message.
    pub rq_num_lle: u64,
    /// Receives whose buffers no region covered.
    pub rq_num_lpe: u64,
    /// Receives that were flushed.
    pub rq_num_wrfe: u64,
    /// Receives that ended because their message asked for memory it may not access.
    pub rq_num_lae: u64,
    /// Requests that were refused as invalid.
    pub rq_num_rire: u64,
    /// Requests that were refused access.
    pub rq_num_rae: u64,
    /// Requests that this side could not carry out.
    pub rq_num_roe: u64,
    /// Requests that were too long.
    pub sq_num_lle: u64,
    /// Requests for which the queue pair was not fit.
    pub sq_num_lqpoe: u64,
    /// Requests whose buffers no region covered.
    pub sq_num_lpe: u64,
    /// Requests that were flushed.
    pub sq_num_wrfe: u64,
    /// Windows that were not bound, and keys that were not invalidated.
    pub sq_num_mwbe: u64,
    /// Requests that got an answer to something else.
    pub sq_num_bre: u64,
    /// Requests that the peer refused as invalid.
    pub sq_num_rire: u64,
    /// Requests to which the peer refused access.
    pub sq_num_rae: u64,
    /// Requests that the peer could not carry out.
    pub sq_num_roe: u64,
}

impl QpCounters {
    /// The counters under the names of `diag_counters`, in their order. Those of reliable datagrams
    /// are always 0; overflows of completion and event queues are the device's to count.
    pub fn diagnostics(&self) -> [(&'static str, u64); 35] {
        [
            ("rq_num_lle", self.rq_num_lle),
            ("rq_num_lqpoe", 0),
            ("rq_num_leeoe", 0),
            ("rq_num_lpe", self.rq_num_lpe),
            ("rq_num_wrfe", self.rq_num_wrfe),
            ("rq_num_lae", self.rq_num_lae),
            ("rq_num_rire", self.rq_num_rire),
            ("rq_num_rae", self.rq_num_rae),
            ("rq_num_roe", self.rq_num_roe),
            ("rq_num_rnr", self.send_rnr_err),
            ("rq_num_oos", self.out_of_seq_request),
            ("rq_num_dup", self.duplicate_request),
            ("rq_num_rirdre", 0),
            ("rq_num_mce", 0),
            ("rq_num_rsync", 0),
            ("sq_num_lle", self.sq_num_lle),
            ("sq_num_lqpoe", self.sq_num_lqpoe),
            ("sq_num_leeoe", 0),
            ("sq_num_lpe", self.sq_num_lpe),
            ("sq_num_wrfe", self.sq_num_wrfe),
            ("sq_num_mwbe", self.sq_num_mwbe),
            ("sq_num_bre", self.sq_num_bre),
            ("sq_num_rire", self.sq_num_rire),
            ("sq_num_rae", self.sq_num_rae),
            ("sq_num_roe", self.sq_num_roe),
            ("sq_num_rnr", self.rcvd_rnr_err),
            ("sq_num_oos", self.rcvd_seq_err),
            ("sq_num_to", self.ack_timeout),
            ("sq_num_tree", self.retry_exceeded_err),
            ("sq_num_rree", self.retry_rnr_exceeded_err),
            ("sq_num_lrdve", 0),
            ("sq_num_rabrte", 0),
            ("sq_num_ieecne", 0),
            ("sq_num_ieecse", 0),
            ("sq_num_rsync", 0),
        ]
    }

    /// The counters under the names of rxe's `hw_counters`, and the few that it lacks after them.
    pub fn hardware(&self) -> [(&'static str, u64); 18] {
        [
            ("sent_pkts", self.sent_pkts),
            ("rcvd_pkts", self.rcvd_pkts),
            ("duplicate_request", self.duplicate_request),
            ("out_of_seq_request", self.out_of_seq_request),
            ("rcvd_rnr_err", self.rcvd_rnr_err),
            ("send_rnr_err", self.send_rnr_err),
            ("rcvd_seq_err", self.rcvd_seq_err),
            ("retry_exceeded_err", self.retry_exceeded_err),
            ("retry_rnr_exceeded_err", self.retry_rnr_exceeded_err),
            ("completer_retry_err", self.completer_retry_err),
            ("send_err", self.send_err),
            ("rdma_sends", self.rdma_sends),
            ("rdma_recvs", self.rdma_recvs),
            ("ack_timeout", self.ack_timeout),
            ("send_nak_err", self.send_nak_err),
            ("dropped_pkts", self.dropped_pkts),
            ("bad_pkey", self.bad_pkey),
            ("qkey_viol", self.qkey_viol),
        ]
    }

    pub(crate) fn note_syndrome(&mut self, syndrome: Syndrome) {
        match syndrome {
            Syndrome::Nak(Nak::SequenceError) => self.rcvd_seq_err += 1,
            Syndrome::RnrNak(_) => self.rcvd_rnr_err += 1,
            Syndrome::Ack { .. } | Syndrome::Nak(_) => {}
        }
    }

    /// A refusal is on its way.
    pub(crate) fn note_refusal(&mut self, code: Nak) {
        self.send_nak_err += 1;
        match code {
            Nak::InvalidRequest => self.rq_num_rire += 1,
            Nak::RemoteAccess => self.rq_num_rae += 1,
            Nak::RemoteOperation => self.rq_num_roe += 1,
            Nak::SequenceError | Nak::InvalidRdRequest => {}
        }
    }

    /// `requests` have ended well.
    pub(crate) fn note_sends(&mut self, requests: u64) {
        self.rdma_sends += requests;
    }

    /// A request has failed.
    pub(crate) fn note_failure(&mut self, status: WcStatus) {
        let counter = match status {
            WcStatus::LocalLength => &mut self.sq_num_lle,
            WcStatus::LocalQpOperation => &mut self.sq_num_lqpoe,
            WcStatus::LocalProtection => &mut self.sq_num_lpe,
            WcStatus::WorkRequestFlushed => &mut self.sq_num_wrfe,
            WcStatus::MemoryWindowBind => &mut self.sq_num_mwbe,
            WcStatus::BadResponse => &mut self.sq_num_bre,
            WcStatus::RemoteInvalidRequest => &mut self.sq_num_rire,
            WcStatus::RemoteAccess => &mut self.sq_num_rae,
            WcStatus::RemoteOperation => &mut self.sq_num_roe,
            WcStatus::RetryExceeded => &mut self.retry_exceeded_err,
            WcStatus::RnrRetryExceeded => &mut self.retry_rnr_exceeded_err,
            WcStatus::Success | WcStatus::LocalAccess | WcStatus::General => return,
        };
        *counter += 1;
    }

    /// A receive has ended.
    pub(crate) fn note_receive(&mut self, status: WcStatus) {
        let counter = match status {
            WcStatus::Success => &mut self.rdma_recvs,
            WcStatus::LocalLength => &mut self.rq_num_lle,
            WcStatus::LocalProtection => &mut self.rq_num_lpe,
            WcStatus::WorkRequestFlushed => &mut self.rq_num_wrfe,
            WcStatus::LocalAccess => &mut self.rq_num_lae,
            WcStatus::LocalQpOperation
            | WcStatus::MemoryWindowBind
            | WcStatus::BadResponse
            | WcStatus::RemoteInvalidRequest
            | WcStatus::RemoteAccess
            | WcStatus::RemoteOperation
            | WcStatus::RetryExceeded
            | WcStatus::RnrRetryExceeded
            | WcStatus::General => return,
        };
        *counter += 1;
    }
}
