//! Eager path between neighbours: the most frequent operations, without the general machinery.
//!
//! Two things take it: a SEND of one packet while nothing waits to be sent, with an [`EagerHeader`], and a
//! one-sided request that the host carries out at once while nothing is outstanding. They leave the
//! queue pair exactly as the general way would (`qp.rs`), which everything else takes, and which
//! is the fall-back: so there is nothing here but the common case,
//! and the tests hold the two ways against each other.

use super::{Progress, Qp, same_partition};
use crate::attributes::Gid;
use crate::completer::{Completer, Sent};
use crate::cutting::Cutting;
use crate::eager::{self, EagerHeader};
use crate::host::{Host, Reach};
use crate::packetizer::Path;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::roles::{Receiver, Sender};
use crate::send_queue::{Entry, SendQueue};
use crate::status::{QpState, WcStatus};
use crate::time::Time;
use crate::transport::QpType;
use crate::work::{Request, RequestKind, To};
use adverb_wire::{Psn, Qpn, Syndrome};

impl Qp {
    /// SENDs that the caller is about to post can go eagerly now, one after another, as long as each is
    /// planned. `None`, and nothing has changed, if they have to go the general way: [`Qp::post`], which
    /// also says what is wrong with them.
    #[inline(always)]
    pub fn eager_sends(&mut self) -> Option<EagerSends<'_>> {
        if !self.link.eager || self.state != QpState::Rts {
            return None;
        }
        let Some(Sender::Reliable { requester, completer }) = &mut self.sender else {
            return None;
        };
        let peer = self.peer.as_mut()?;
        let responder = peer.receiver.as_mut()?.debtor_mut()?;
        if !responder.owes_little() || !requester.is_idle(&self.queue) {
            return None;
        }
        let acked = eager::acked(responder.plain_ack());
        let (to, queue) = (eager::to(peer.path.remote, peer.path.pkey), &mut self.queue);
        let mut eager_sends =
            EagerSends { requester, completer, responder, queue, to, acked, left: 0, quiet: 0 };
        eager_sends.look_ahead();
        Some(eager_sends)
    }

    /// The acknowledgement that is owed, for the caller to write at once, if there is nothing else to
    /// emit. `None`, and nothing has changed, if it has to go the general way: [`Qp::transmit`].
    #[inline]
    pub fn acknowledge_eagerly(&mut self) -> Option<EagerHeader> {
        if !self.link.eager || !self.state.receives() || self.has_more() {
            return None;
        }
        let peer = self.peer.as_mut()?;
        let responder = peer.receiver.as_mut()?.debtor_mut()?;
        let acked = responder.plain_ack()?;
        responder.note_ack();
        Some(EagerHeader {
            dest_qp: peer.path.remote,
            psn: None,
            pkey: peer.path.pkey,
            ack_request: false,
            solicited: false,
            imm: None,
            acked: Some(acked),
        })
    }

    /// The SEND of this eager header is the next one, and there is nothing to do but to put it into a receive of
    /// the queue pair's own: the host may do that, and complete it, by itself. [`Qp::note_taken`] has to
    /// follow then. Says its sender.
    #[inline(always)]
    pub fn awaits_eager(&self, eager: &EagerHeader) -> Option<Origin> {
        let (psn, peer) = (eager.psn?, self.peer.as_ref()?);
        let responder = peer.receiver.as_ref()?.debtor()?;
        let usual = self.takes_eager_sends()
            && same_partition(eager.pkey, peer.path.pkey)
            && responder.awaits(psn);
        let Path { remote, pkey_index, .. } = peer.path;
        usual.then_some(Origin { src_qp: remote, pkey_index })
    }

    /// The SEND that [`Qp::awaits_eager`] told of was taken, and its receive completed. An acknowledgement
    /// is owed.
    #[inline]
    pub fn note_taken(&mut self) {
        let receiver = self.peer.as_mut().and_then(|peer| peer.receiver.as_mut());
        if let Some(responder) = receiver.and_then(Receiver::debtor_mut) {
            responder.note_eager();
            self.counters.rcvd_pkts += 1;
            self.counters.note_receive(WcStatus::Success);
        }
    }

    /// SENDs of eager records can be for it. An eager header does not say which shared receive queue it is for.
    #[inline]
    fn takes_eager_sends(&self) -> bool {
        self.state.receives()
            && self.progress != Progress::AwaitsPacket
            && self.kind() == QpType::Rc
    }

    /// Takes an eager header of a SEND of `len` bytes, which the host holds: [`Host::by_reference`] says how many,
    /// [`Host::fetch`] brings them. `now` is asked only if the time matters.
    #[inline]
    pub fn on_eager(
        &mut self,
        eager: &EagerHeader,
        len: u32,
        now: impl FnOnce() -> Time,
        host: &mut impl Host,
    ) {
        self.on_eager_message(eager, len, host);
        self.on_eager_ack(eager, now, host);
    }

    /// The first half of [`Qp::on_eager`]: the message, if there is one. True if it has ended a receive
    /// well, and all else is as it was but that an acknowledgement is owed.
    #[inline(always)]
    pub fn on_eager_message(
        &mut self,
        eager: &EagerHeader,
        len: u32,
        host: &mut impl Host,
    ) -> bool {
        eager.psn.is_some_and(|psn| self.on_eager_send(eager, psn, len, host))
    }

    /// The second half: what it acknowledges. It may come any time after the first, if nothing else is
    /// asked of the queue pair meanwhile but to post; what comes later acknowledges no less.
    #[inline]
    pub fn on_eager_ack(
        &mut self,
        eager: &EagerHeader,
        now: impl FnOnce() -> Time,
        host: &mut impl Host,
    ) {
        let alone = u64::from(eager.psn.is_none());
        let Some(pkey) = self.peer.as_ref().map(|peer| peer.path.pkey) else {
            self.counters.dropped_pkts += alone;
            return;
        };
        let same_partition = same_partition(eager.pkey, pkey);
        let asks = matches!(self.kind(), QpType::Rc | QpType::XrcInitiator);
        match eager.acked {
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
    fn on_eager_send(
        &mut self,
        eager: &EagerHeader,
        psn: Psn,
        len: u32,
        host: &mut impl Host,
    ) -> bool {
        let open = self.takes_eager_sends();
        let Some(peer) = &mut self.peer else {
            self.counters.dropped_pkts += 1;
            return false;
        };
        let same_partition = same_partition(eager.pkey, peer.path.pkey);
        if let Some(Receiver::Reliable(responder)) = &mut peer.receiver
            && open
            && same_partition
            && responder.awaits(psn)
        {
            self.counters.rcvd_pkts += 1;
            let served = responder.on_eager(eager, len, &mut self.counters, host);
            return match served {
                Ok(()) => true,
                Err(served) => {
                    self.settle(served, host);
                    false
                }
            };
        }
        let gid = peer.gid;
        self.on_unusual(*eager, psn, gid, host);
        false
    }

    /// Takes the SEND of an eager header as the packet that it stands for.
    #[cold]
    fn on_unusual(&mut self, eager: EagerHeader, psn: Psn, source: Gid, host: &mut impl Host) {
        if let Some(packet) = eager.packet(psn) {
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
        let is_free = match &self.sender {
            Some(Sender::Reliable { requester, completer }) => {
                requester.is_free(completer.unacked(), request.fence, &self.queue)
                    && requester.is_one_sided(&request.kind)
            }
            // No acknowledgement tells what has been done of what was sent: nothing may have been.
            Some(Sender::Unreliable(streamer)) => {
                streamer.is_fresh() && matches!(request.kind, RequestKind::Write { imm: None, .. })
            }
            None => false,
        };
        is_free
            && self.link.direct
            && self.state == QpState::Rts
            && self.queue.len() == 0
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
        if let Some(Sender::Reliable { requester, .. }) = &mut self.sender {
            requester.pass_one();
        }
        self.counters.note_sends(1);
        self.queue.pass(request, host);
        true
    }
}

/// Sender of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Origin {
    /// The sender's queue pair.
    pub src_qp: Qpn,
    /// Index of the partition in the port's table.
    pub pkey_index: u16,
}

/// A queue pair while SENDs of its own leave eagerly: nothing waits to be sent.
#[derive(Debug)]
pub struct EagerSends<'a> {
    requester: &'a mut Requester,
    completer: &'a mut Completer,
    responder: &'a mut Responder,
    queue: &'a mut SendQueue,
    /// What all eager records say of their way.
    to: u64,
    /// What the next one acknowledges.
    acked: u64,
    /// SENDs that may still leave.
    left: u64,
    /// The next so many of them need not ask for an acknowledgement.
    quiet: u64,
}

/// An eager header that is about to be written.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// What is to be written.
    pub words: [u64; 2],
    /// It takes along the acknowledgement that was owed.
    pub acks: bool,
    asks: bool,
}

impl EagerSends<'_> {
    #[inline(always)]
    fn look_ahead(&mut self) {
        let (room, quiet) = self.requester.allowance(self.completer.unacked());
        self.left = self.queue.room().min(room.into());
        // Slots become free by acknowledgements only: with few left, one is asked for.
        self.quiet = self.queue.room_to_half().min(quiet.into());
    }

    /// The eager header of the next SEND, for which the caller has room and the bytes: a small one, or one that
    /// goes by reference. Once it is written, [`EagerSends::note`] has to follow. `None` if it has to go the general
    /// way.
    ///
    /// Nothing has changed so far: what is to be remembered is so while the peer reads the eager header.
    #[inline(always)]
    pub fn plan(&self, request: &Request, by_reference: bool) -> Option<Planned> {
        let RequestKind::Send { imm } = request.kind else {
            return None;
        };
        let fits = by_reference || request.len <= self.requester.segment();
        if request.to != To::Peer || !fits || self.left == 0 {
            return None;
        }
        if request.fence && self.requester.awaits_data() {
            return None;
        }
        let asks = request.signaled || self.quiet == 0;
        let back = self.acked | eager::says(asks, request.solicited, imm);
        let words = eager::send(self.to, self.requester.next_psn(), back);
        Some(Planned { words, acks: self.acked != 0, asks })
    }

    /// The eager header that [`EagerSends::plan`] has made of this SEND is written. Returns the request's index.
    ///
    /// [`Qp::next_deadline`] may be open afterwards, as after [`Qp::transmit`] at
    /// [`Time::UNKNOWN`]. The acknowledgement that was owed went along.
    #[inline(always)]
    pub fn note(&mut self, request: &Request, by_reference: bool, planned: &Planned) -> u64 {
        let index = self.queue.tail();
        let (start, cutting) = (self.requester.next(), Cutting::ONE);
        let posted =
            self.queue.push(Entry { start, cutting, by_reference, ..Entry::new(*request) });
        debug_assert!(posted == Ok(index), "there was room when it was planned");
        self.requester.note_eager(planned.asks);
        self.completer.arm_if_idle(self.requester.next(), Time::UNKNOWN);
        self.responder.note_ack();
        self.acked = 0;
        self.left -= 1;
        self.quiet = self.quiet.saturating_sub(1);
        if planned.asks {
            self.look_ahead();
        }
        index
    }
}
