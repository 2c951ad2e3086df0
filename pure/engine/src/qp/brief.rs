//! The short way between neighbours: what is done most often, without the general machinery.
//!
//! Two things take it: a SEND of one packet while nothing waits to be sent, as a [`Brief`], and a
//! one-sided request that the host carries out at once while nothing is outstanding. They leave the
//! queue pair exactly as the general way would (`qp.rs`), which everything else takes, and which
//! whoever finds something in the way falls back to: so there is nothing here but the common case,
//! and the tests hold the two ways against each other.

use super::{Progress, Qp, same_partition};
use crate::attributes::Gid;
use crate::brief::Brief;
use crate::completer::Sent;
use crate::host::{Host, Reach};
use crate::roles::{Receiver, Sender};
use crate::send_queue::Entry;
use crate::status::QpState;
use crate::time::Time;
use crate::transport::QpType;
use crate::work::{Request, RequestKind, To};
use adverb_wire::{Psn, Syndrome};

impl Qp {
    /// The brief of a SEND that the caller is about to post and writes at once, for which it has room and
    /// the bytes: a small one, or one that is `lent`. Once it is written, [`Qp::note_brief`] has to
    /// follow. `None` if it has to go the general way: [`Qp::post`], which also says what is wrong with
    /// it.
    ///
    /// Nothing has changed so far: what is to be remembered is so while the peer reads the brief.
    #[inline(always)]
    pub fn plan_brief(&self, request: &Request, lent: bool) -> Option<Brief> {
        let RequestKind::Send { imm } = request.kind else {
            return None;
        };
        let here = self.local && self.state == QpState::Rts;
        let fits = lent || request.len <= crate::LOCAL_SEGMENT_BYTES;
        if !here || request.to != To::Peer || !fits || self.queue.is_full() {
            return None;
        }
        let Some(Sender::Reliable { requester, completer }) = &self.sender else {
            return None;
        };
        let peer = self.peer.as_ref()?;
        let responder = peer.receiver.as_ref()?.debtor()?;
        let unacked = completer.unacked();
        if !responder.owes_little() || !requester.is_free(unacked, request.fence, &self.queue) {
            return None;
        }
        // Slots become free by acknowledgements only: who has few left, asks for one.
        let scarce = self.queue.is_half_full();
        let (psn, ack_request) = requester.plan_brief(unacked, request.signaled || scarce);
        Some(Brief {
            dest_qp: peer.path.remote,
            psn: Some(psn),
            pkey: peer.path.pkey,
            ack_request,
            solicited: request.solicited,
            imm,
            acked: responder.plain_ack(),
        })
    }

    /// The brief that [`Qp::plan_brief`] has made of this SEND is written. Returns the request's index.
    ///
    /// [`Qp::next_deadline`] may be open afterwards, as after [`Qp::transmit`] at
    /// [`Time::UNKNOWN`]. The acknowledgement that was owed went along.
    #[inline]
    pub fn note_brief(&mut self, request: &Request, lent: bool, brief: &Brief) -> u64 {
        let index = self.queue.tail();
        let receiver = self.peer.as_mut().and_then(|peer| peer.receiver.as_mut());
        if let Some(Sender::Reliable { requester, completer }) = &mut self.sender {
            let entry = Entry { start: requester.next(), packets: 1, ..Entry::new(*request) };
            let posted = self.queue.push(Entry { lent, ..entry });
            debug_assert!(posted == Ok(index), "there was room when it was planned");
            requester.note_brief(brief.ack_request);
            completer.arm_if_idle(requester.next(), Time::UNKNOWN);
        }
        if let Some(responder) = receiver.and_then(Receiver::debtor_mut) {
            responder.note_ack();
        }
        index
    }

    /// The acknowledgement that is owed, for the caller to write at once, if there is nothing else to
    /// emit. `None`, and nothing has changed, if it has to go the general way: [`Qp::transmit`].
    #[inline]
    pub fn acknowledge_briefly(&mut self) -> Option<Brief> {
        if !self.local || !self.state.receives() || self.has_more() {
            return None;
        }
        let peer = self.peer.as_mut()?;
        let responder = peer.receiver.as_mut()?.debtor_mut()?;
        let acked = responder.plain_ack()?;
        responder.note_ack();
        Some(Brief {
            dest_qp: peer.path.remote,
            psn: None,
            pkey: peer.path.pkey,
            ack_request: false,
            solicited: false,
            imm: None,
            acked: Some(acked),
        })
    }

    /// Takes a brief of a SEND of `len` bytes, which the host holds: [`Host::lent`] says how many,
    /// [`Host::fetch`] brings them. `now` is asked only if the time matters.
    #[inline]
    pub fn on_brief(
        &mut self,
        brief: &Brief,
        len: u32,
        now: impl FnOnce() -> Time,
        host: &mut impl Host,
    ) {
        self.on_brief_message(brief, len, host);
        self.on_brief_ack(brief, now, host);
    }

    /// The first half of [`Qp::on_brief`]: the message, if there is one. True if it has ended a receive
    /// well, and all else is as it was but that an acknowledgement is owed.
    #[inline(always)]
    pub fn on_brief_message(&mut self, brief: &Brief, len: u32, host: &mut impl Host) -> bool {
        brief.psn.is_some_and(|psn| self.on_brief_send(brief, psn, len, host))
    }

    /// The second half: what it acknowledges. It may come any time after the first, if nothing else is
    /// asked of the queue pair meanwhile but to post; what comes later acknowledges no less.
    #[inline]
    pub fn on_brief_ack(
        &mut self,
        brief: &Brief,
        now: impl FnOnce() -> Time,
        host: &mut impl Host,
    ) {
        let alone = u64::from(brief.psn.is_none());
        let Some(pkey) = self.peer.as_ref().map(|peer| peer.path.pkey) else {
            self.counters.dropped_pkts += alone;
            return;
        };
        let same_partition = same_partition(brief.pkey, pkey);
        let asks = matches!(self.kind(), QpType::Rc | QpType::XrcInitiator);
        match brief.acked {
            Some(psn) if same_partition && self.state.receives() && asks => {
                self.counters.rcvd_pkts += alone;
                self.on_acked(psn, now, host);
            }
            Some(_) | None => {
                self.counters.bad_pkey += if same_partition { 0 } else { alone };
                self.counters.dropped_pkts += alone;
            }
        }
    }

    #[inline(always)]
    fn on_brief_send(&mut self, brief: &Brief, psn: Psn, len: u32, host: &mut impl Host) -> bool {
        // A brief does not say which shared receive queue it is for.
        let open = self.state.receives()
            && self.progress != Progress::AwaitsPacket
            && self.kind() == QpType::Rc;
        let Some(peer) = &mut self.peer else {
            self.counters.dropped_pkts += 1;
            return false;
        };
        let same_partition = same_partition(brief.pkey, peer.path.pkey);
        if let Some(Receiver::Reliable(responder)) = &mut peer.receiver
            && open
            && same_partition
            && responder.awaits(psn)
        {
            self.counters.rcvd_pkts += 1;
            let served = responder.on_brief(brief, len, &mut self.counters, host);
            return match served {
                Ok(()) => true,
                Err(served) => {
                    self.settle(served, host);
                    false
                }
            };
        }
        let gid = peer.gid;
        self.on_unusual(*brief, psn, gid, host);
        false
    }

    /// Takes the SEND of a brief as the packet that it stands for.
    #[cold]
    fn on_unusual(&mut self, brief: Brief, psn: Psn, source: Gid, host: &mut impl Host) {
        if let Some(packet) = brief.packet(psn) {
            self.on_packet(&packet, source, Time::ZERO, host); // Of a request, no time matters.
        }
    }

    /// Everything up to `psn` was executed by the peer.
    #[inline]
    fn on_acked(&mut self, psn: Psn, now: impl FnOnce() -> Time, host: &mut impl Host) {
        let Some(Sender::Reliable { requester, completer }) = self.sender.as_mut() else {
            return;
        };
        // Only where data is missing does it matter when something came.
        let now = if requester.awaits_data() { now() } else { Time::UNKNOWN };
        let before = completer.unacked();
        let (top, paused) = (requester.top(), requester.paused_until().is_some());
        let sent = Sent { unacked_psn: requester.psn(before), top, paused, now };
        let head = self.queue.head();
        let verdict = completer.on_ack(psn, Syndrome::ACK, sent, &mut self.queue, host);
        self.follow(before, head, verdict, now, host);
    }

    /// A request could be carried out by [`Qp::reach_at_once`].
    #[inline]
    pub fn can_reach(&self, request: &Request) -> bool {
        let Some(Sender::Reliable { requester, completer }) = &self.sender else {
            return false;
        };
        self.local
            && self.state == QpState::Rts
            && self.queue.len() == 0
            && requester.is_free(completer.unacked(), request.fence, &self.queue)
            && requester.is_one_sided(&request.kind)
            && self.check(request).is_ok()
    }

    /// Carries out a one-sided request of which [`Qp::can_reach`] says that it can be; it is number
    /// [`Qp::next_index`], and never queued. False, and nothing has changed, if the host cannot: it has
    /// to go the general way.
    #[inline]
    pub fn reach_at_once(&mut self, request: &Request, host: &mut impl Host) -> bool {
        debug_assert!(self.can_reach(request), "the caller has asked");
        let index = self.queue.tail();
        if host.reach(index, request, true) != Reach::Done {
            return false;
        }
        let Some(Sender::Reliable { requester, .. }) = &mut self.sender else {
            return false;
        };
        requester.pass_one();
        self.counters.note_sends(1);
        self.queue.pass(request, host);
        true
    }
}
