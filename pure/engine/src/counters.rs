//! What a queue pair counts. The names follow rxe's `hw_counters`.

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
    /// Packets that the queue pair dropped: from a stranger, or in a state that takes none.
    pub dropped_pkts: u64,
}

impl QpCounters {
    pub(crate) fn note_syndrome(&mut self, syndrome: Syndrome) {
        match syndrome {
            Syndrome::Nak(Nak::SequenceError) => self.rcvd_seq_err += 1,
            Syndrome::RnrNak(_) => self.rcvd_rnr_err += 1,
            Syndrome::Ack { .. } | Syndrome::Nak(_) => {}
        }
    }

    pub(crate) fn note_failure(&mut self, status: WcStatus) {
        if status == WcStatus::RetryExceeded {
            self.retry_exceeded_err += 1;
        } else if status == WcStatus::RnrRetryExceeded {
            self.retry_rnr_exceeded_err += 1;
        }
    }
}
