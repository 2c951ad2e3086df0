//! Counters of a queue pair.
//!
//! The fields are named as rxe's `hw_counters` where it has the count, else as the `diag_counters`
//! of hardware. [`QpCounters::diagnostics`] lists all of the latter, [`QpCounters::hardware`] all of
//! the former: several names stand for the same count, and some for what cannot occur here.

use crate::status::WcStatus;
use adverb_wire::{Nak, Syndrome};

macro_rules! counted {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one queue pair, or of several together; they only grow.
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        #[non_exhaustive]
        pub struct QpCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl core::ops::AddAssign for QpCounters {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }

        impl QpCounters {
            /// How many there are.
            pub const COUNT: usize = [$(stringify!($name)),*].len();

            /// All of them, in the order of declaration.
            pub const fn to_array(&self) -> [u64; Self::COUNT] {
                [$(self.$name),*]
            }

            /// Those that [`QpCounters::to_array`] has made an array of.
            pub const fn from_array(array: [u64; Self::COUNT]) -> Self {
                let [$($name),*] = array;
                Self { $($name),* }
            }
        }
    };
}

counted! {
    /// Packets emitted.
    sent_pkts,
    /// Packets that reached the queue pair with a good ICRC.
    rcvd_pkts,
    /// Requests that had been served before; over an unreliable connection, any that came late.
    duplicate_request,
    /// Requests that came ahead of a missing one.
    out_of_seq_request,
    /// RNR NAKs that came.
    rcvd_rnr_err,
    /// RNR NAKs that were sent.
    send_rnr_err,
    /// Sequence-error NAKs that came.
    rcvd_seq_err,
    /// Acknowledgements that waited for company.
    ack_deferred,
    /// Acknowledgements that were late.
    ack_timeout,
    /// Times the requester went back and sent again.
    completer_retry_err,
    /// Congestion notifications that were sent: packets of the peer's came marked.
    np_cnp_sent,
    /// Congestion notifications that came.
    rp_cnp_handled,
    /// Times the requester asked after what was late, before the ACK time-out.
    probes,
    /// Requests that failed for want of an acknowledgement.
    retry_exceeded_err,
    /// Requests that failed for want of a receive.
    retry_rnr_exceeded_err,
    /// Refusals (other than sequence errors) that were sent.
    send_nak_err,
    /// Requests that failed here, before they could be emitted or carried out.
    send_err,
    /// Messages that were sent and, where that is the custom, acknowledged.
    rdma_sends,
    /// Messages that ended a receive well.
    rdma_recvs,
    /// Packets that the queue pair dropped: from a stranger, in a state that takes none, or, over an
    /// unreliable transport, part of a message that came to nothing.
    dropped_pkts,
    /// Packets of another partition; they are dropped as well.
    bad_pkey,
    /// Datagrams that did not show the queue pair's Q_Key; they are dropped as well.
    qkey_viol,
    /// Receives that were too short for their message.
    rq_num_lle,
    /// Receives whose buffers no region covered.
    rq_num_lpe,
    /// Receives that were flushed.
    rq_num_wrfe,
    /// Receives that ended because their message asked for memory it may not access.
    rq_num_lae,
    /// Requests that were refused as invalid.
    rq_num_rire,
    /// Requests that were refused access.
    rq_num_rae,
    /// Requests that this side could not carry out.
    rq_num_roe,
    /// Requests that were too long.
    sq_num_lle,
    /// Requests for which the queue pair was not fit.
    sq_num_lqpoe,
    /// Requests whose buffers no region covered.
    sq_num_lpe,
    /// Requests that were flushed.
    sq_num_wrfe,
    /// Windows that were not bound, and keys that were not invalidated.
    sq_num_mwbe,
    /// Requests that got an answer to something else.
    sq_num_bre,
    /// Requests that the peer refused as invalid.
    sq_num_rire,
    /// Requests to which the peer refused access.
    sq_num_rae,
    /// Requests that the peer could not carry out.
    sq_num_roe,
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

    /// The counters under the names of rxe's `hw_counters`, and the few that it lacks after them;
    /// `link_downed` is the device's to count.
    pub fn hardware(&self) -> [(&'static str, u64); 22] {
        [
            ("sent_pkts", self.sent_pkts),
            ("rcvd_pkts", self.rcvd_pkts),
            ("duplicate_request", self.duplicate_request),
            ("out_of_seq_request", self.out_of_seq_request),
            ("rcvd_rnr_err", self.rcvd_rnr_err),
            ("send_rnr_err", self.send_rnr_err),
            ("rcvd_seq_err", self.rcvd_seq_err),
            ("ack_deferred", self.ack_deferred),
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
            ("probes", self.probes),
            ("np_cnp_sent", self.np_cnp_sent),
            ("rp_cnp_handled", self.rp_cnp_handled),
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
    #[inline]
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

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// The names as hardware's drivers list them, in their order; the overflows of queues, which
    /// come between, are the device's.
    const DIAGNOSTICS: &str = "rq_num_lle rq_num_lqpoe rq_num_leeoe rq_num_lpe rq_num_wrfe \
        rq_num_lae rq_num_rire rq_num_rae rq_num_roe rq_num_rnr rq_num_oos rq_num_dup \
        rq_num_rirdre rq_num_mce rq_num_rsync sq_num_lle sq_num_lqpoe sq_num_leeoe sq_num_lpe \
        sq_num_wrfe sq_num_mwbe sq_num_bre sq_num_rire sq_num_rae sq_num_roe sq_num_rnr \
        sq_num_oos sq_num_to sq_num_tree sq_num_rree sq_num_lrdve sq_num_rabrte sq_num_ieecne \
        sq_num_ieecse sq_num_rsync";

    #[test]
    fn all_names_of_the_hardware_are_there_in_their_order() {
        let ours: Vec<&str> =
            QpCounters::default().diagnostics().into_iter().map(|(name, _)| name).collect();
        assert_eq!(ours, DIAGNOSTICS.split_whitespace().collect::<Vec<_>>());
    }

    /// Goal: no count is forgotten by both lists.
    #[test]
    fn every_count_is_listed_under_some_name() {
        let all = QpCounters {
            sent_pkts: 1,
            rcvd_pkts: 1,
            duplicate_request: 1,
            out_of_seq_request: 1,
            rcvd_rnr_err: 1,
            send_rnr_err: 1,
            rcvd_seq_err: 1,
            ack_deferred: 1,
            ack_timeout: 1,
            completer_retry_err: 1,
            np_cnp_sent: 1,
            rp_cnp_handled: 1,
            probes: 1,
            retry_exceeded_err: 1,
            retry_rnr_exceeded_err: 1,
            send_nak_err: 1,
            send_err: 1,
            rdma_sends: 1,
            rdma_recvs: 1,
            dropped_pkts: 1,
            bad_pkey: 1,
            qkey_viol: 1,
            rq_num_lle: 1,
            rq_num_lpe: 1,
            rq_num_wrfe: 1,
            rq_num_lae: 1,
            rq_num_rire: 1,
            rq_num_rae: 1,
            rq_num_roe: 1,
            sq_num_lle: 1,
            sq_num_lqpoe: 1,
            sq_num_lpe: 1,
            sq_num_wrfe: 1,
            sq_num_mwbe: 1,
            sq_num_bre: 1,
            sq_num_rire: 1,
            sq_num_rae: 1,
            sq_num_roe: 1,
        };
        let mut twice = all;
        twice += all;
        assert_eq!((twice.sent_pkts, twice.sq_num_roe), (2, 2));
        assert_eq!(QpCounters::from_array(twice.to_array()), twice);
        let sum = |list: &[(&str, u64)]| list.iter().map(|(_, count)| count).sum::<u64>();
        assert_eq!(sum(&all.hardware()), 22);
        // Sixteen of their own, and eight that the first list has under other names.
        assert_eq!(sum(&all.diagnostics()), 16 + 8);
    }
}
