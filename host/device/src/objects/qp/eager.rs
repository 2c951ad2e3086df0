//! The eager path of a queue pair whose peer is on this host: small SENDs with eager headers, and one-sided
//! requests that nothing stands before.
//!
//! What may go this way is for the transport to say (`Qp::eager_sends`, `Qp::can_reach`); whatever it
//! refuses, and whatever comes after that in a batch, goes the general way. Bytes are looked up, and
//! room for them in the ring is found, before the transport is asked, so that a mistake in a request's
//! buffers is found while nothing has happened yet. The records of a batch become visible together.

use super::{Aftermath, Posted, QpInner, Surroundings};
use crate::link::Links;
use crate::link::kind::Link;
use crate::link::shm::SEGMENT_BYTES;
use crate::link::shm::direct::{goes_by_reference, land};
use crate::link::shm::link::{
    Form, InRing, MessageBytes, Reservation, ShmLink, TxBatch, reference_words,
};
use crate::memory::region::Grip;
use crate::objects::ah::SendTo;
use crate::objects::completion::{Completion, PollBuffer};

use crate::objects::host::{Exit, Own, Receives};
use crate::objects::work::{SendData, SendKind, SendWork};
use adverb_engine::{
    AckPolicy, EagerHeader, EagerSends, QpState, Request, Time, To, WcOpcode, WcStatus,
};

impl QpInner {
    /// Posts and sends the first requests of a batch, as many as can take the eager path; says how many,
    /// and how many completions that published.
    #[inline(always)]
    pub(crate) fn post_eagerly(&mut self, batch: &[SendWork<'_>], links: &Links) -> Posted {
        let mut posted = Posted::default();
        if self.pacing.late.is_some() && !self.has_room_for(batch) {
            posted.published += self.settle(None, links);
        }
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        if !self.has_slots(count) {
            return posted; // The general way looks at each.
        }
        let Some(shm_link) = self.link.as_ref().and_then(Link::shm_link) else {
            return posted;
        };
        if self.engine.state() != QpState::Rts || shm_link.is_cut() {
            return posted;
        }
        // Most one-sided requests need no record.
        let start = || shm_link.tx_batch(batch.len() + 1);
        let mut tx_batch: Option<TxBatch<'_>> = None;
        let several = batch.len() > 1;
        let mut grip = Grip::new(links.regions());
        while let Some(rest @ [work, ..]) = batch.get(posted.requests..) {
            let done = if let SendKind::Send { .. } = work.kind {
                let tx_batch = tx_batch.get_or_insert_with(start);
                let Self { engine, own, pacing, signal_all, .. } = self;
                let (acks, signal_all) = (&mut pacing.acks, *signal_all);
                let mut outgoing = Outgoing { own, acks, signal_all, several };
                outgoing.send(rest, engine, tx_batch, &mut grip)
            } else {
                let Ok(request) = self.check_send(work, links) else {
                    break; // The general way says what is wrong with it.
                };
                let Self { engine, own, .. } = self;
                let reached = act_directly(engine, own, work, &request, shm_link, links);
                posted.published += reached.unwrap_or(0);
                usize::from(reached.is_some())
            };
            posted.requests += done;
            if done == 0 {
                break;
            }
        }
        // The program's next call takes along what is owed, whatever it posts.
        if posted.requests > 0 && self.engine.owes_plain_ack() {
            let tx_batch = tx_batch.get_or_insert_with(start);
            if acknowledge(&mut self.engine, tx_batch) {
                self.pacing.acks.on_sent();
            }
        }
        if let Some(tx_batch) = tx_batch {
            self.engine.count_sent(tx_batch.send());
        }
        posted
    }

    /// There is plenty of room for these requests, and whether others have ended does not matter to
    /// them.
    fn has_room_for(&self, batch: &[SendWork<'_>]) -> bool {
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        batch.iter().all(|work| matches!(work.kind, SendKind::Send { .. }))
            && self.engine.outstanding().saturating_add(count) < self.own.sends.capacity() / 2
    }

    /// Looks at what the peer has acknowledged along with a message; says how many completions that
    /// published.
    #[inline]
    pub(crate) fn settle(
        &mut self,
        poll_buffer: Option<&mut PollBuffer<'_>>,
        links: &Links,
    ) -> u32 {
        match self.pacing.late.take() {
            None => 0,
            Some(eager) => self.on_late(eager, poll_buffer, links),
        }
    }

    fn on_late(
        &mut self,
        eager: EagerHeader,
        poll_buffer: Option<&mut PollBuffer<'_>>,
        links: &Links,
    ) -> u32 {
        let Self { engine, own, .. } = self;
        let mut host = Surroundings::quiet(own, links.regions());
        host.poll_buffer = poll_buffer;
        engine.on_eager_ack(&eager, || links.now(), &mut host);
        host.end(engine);
        let published = host.published;
        self.show(links);
        published
    }

    /// What requests that were posted eagerly leave for the port to do.
    #[inline(always)]
    pub(crate) fn after_eager(&mut self, posted: Posted, links: &Links) -> Aftermath {
        if self.own.overrun {
            self.quietly(links, |_, _| {});
        }
        let (deadline, published) = (self.pacing.deadline(&self.engine), posted.published);
        Aftermath { deadline, published, ..Aftermath::default() }
    }

    /// Sends the acknowledgement that is owed to a neighbour, if there is nothing else to emit.
    pub(crate) fn acknowledge_eagerly(&mut self) -> bool {
        let Some(shm_link) = self.link.as_ref().and_then(Link::shm_link) else {
            return false;
        };
        let mut tx_batch = shm_link.tx_batch(1);
        let sent = acknowledge(&mut self.engine, &mut tx_batch);
        if sent {
            self.pacing.acks.on_sent();
            shm_link.note_lone_ack();
            self.engine.count_sent(tx_batch.send());
        }
        sent
    }

    /// Its peer is at the other end of this shared-memory link.
    #[inline]
    pub(super) fn knows(&self, shm_link: &ShmLink) -> bool {
        self.shm_link().is_some_and(|own| own.peer() == shm_link.peer())
    }

    /// Takes an eager header of this shared-memory link whose bytes are `near`, and completes the receive that it is
    /// for, if there is nothing else to do: what it acknowledges is looked at later. Of [`QpInner::on_eager`], this
    /// is the part that nearly all messages take; where it does not apply, nothing has happened.
    #[inline(always)]
    pub(crate) fn take_plainly(
        &mut self,
        eager: &EagerHeader,
        near: InRing<'_>,
        shm_link: &ShmLink,
        poll_buffer: &mut PollBuffer<'_>,
        grip: &mut Grip<'_>,
    ) -> bool {
        if !self.knows(shm_link) || self.pacing.late.is_some() {
            return false;
        }
        let Self { engine, own, .. } = self;
        let (Some(origin), Receives::Own(ring)) = (engine.awaits_eager(eager), &mut own.receives)
        else {
            return false;
        };
        let Some((next, [sge])) = ring.next() else {
            return false;
        };
        let fits = near.len() <= next.len && poll_buffer.takes(&own.recv_cq);
        if !fits || land(near, sge, own.domain, grip).is_err() {
            return false;
        }
        poll_buffer.put(Completion {
            wr_id: next.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Receive,
            byte_len: near.len(),
            imm: eager.imm,
            pkey_index: origin.pkey_index,
            qp: own.number,
            src_qp: origin.src_qp,
            buffer: next.buffer,
            ..Completion::EMPTY
        });
        ring.skip();
        engine.note_taken();
        self.pacing.acks.on_message(eager.ack_request);
        if eager.acked.is_some() {
            self.pacing.late = Some(*eager);
            self.pacing.acks.on_wait(false);
        }
        true
    }

    /// Takes an eager header of this shared-memory link, whose bytes are `message`.
    #[inline(always)]
    pub(crate) fn on_eager(
        &mut self,
        eager: &EagerHeader,
        message: MessageBytes<'_>,
        shm_link: &ShmLink,
        caller: Caller<'_, '_>,
        now: impl FnOnce() -> Time,
        links: &Links,
    ) -> Took {
        if !self.knows(shm_link) {
            return Took::default();
        }
        let settled = self.settle(None, links);
        if eager.psn.is_some() {
            self.pacing.acks.on_message(eager.ack_request);
        }
        let Self { engine, own, pacing, .. } = self;
        // The program waits for its requests alone: until those end, it does not look at the message.
        let for_sends = caller.poll_buffer.as_deref().is_some_and(|poll_buffer| {
            poll_buffer.takes(&own.send_cq) && !poll_buffer.takes(&own.recv_cq)
        });
        if caller.poll_buffer.is_some() && eager.acked.is_some() {
            pacing.acks.on_wait(for_sends);
        }
        let mut host = Surroundings::quiet(own, links.regions());
        (host.message, host.poll_buffer) = (Some(message), caller.poll_buffer);
        let served = engine.on_eager_message(eager, message.total(), &mut host);
        let can_wait = caller.can_wait && !for_sends;
        let is_late = can_wait && host.published > 0 && eager.acked.is_some();
        if is_late {
            pacing.late = Some(*eager);
        }
        let only_served = served && (is_late || eager.acked.is_none()) && !host.own.overrun;
        if only_served && settled == 0 {
            return Took { published: host.published, only_served };
        }
        if !is_late {
            engine.on_eager_ack(eager, now, &mut host);
        }
        host.end(engine);
        let published = settled + host.published;
        self.show(links);
        Took { published, only_served: false }
    }
}

/// The caller that takes a message.
#[derive(Debug)]
pub(crate) struct Caller<'a, 'b> {
    /// The program probably replies at once, so the piggybacked ACK is handled later.
    pub(crate) can_wait: bool,
    /// Where he waits for completions.
    pub(crate) poll_buffer: Option<&'a mut PollBuffer<'b>>,
}

/// What an eager header has led to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Took {
    /// Completions published.
    pub(crate) published: u32,
    /// One of a receive, and nothing else but that an acknowledgement is owed, or may be waiting.
    pub(crate) only_served: bool,
}

/// What sending eagerly takes of a queue pair, besides its transport.
struct Outgoing<'a> {
    own: &'a mut Own,
    acks: &'a mut AckPolicy,
    signal_all: bool,
    /// More than one request was posted at once.
    several: bool,
}

impl Outgoing<'_> {
    /// Posts and sends the SENDs that are first in the list, as many as can go this way; says how many.
    #[inline(always)]
    fn send(
        &mut self,
        list: &[SendWork<'_>],
        engine: &mut adverb_engine::Qp,
        tx_batch: &mut TxBatch<'_>,
        grip: &mut Grip<'_>,
    ) -> usize {
        let Some(mut eager_sends) = engine.eager_sends() else {
            return 0;
        };
        let sent = |work: &&_| self.send_one(work, &mut eager_sends, tx_batch, grip).is_some();
        list.iter().take_while(sent).count()
    }

    /// `None` if it cannot go this way: nothing has happened then.
    #[inline(always)]
    fn send_one(
        &mut self,
        work: &SendWork<'_>,
        eager_sends: &mut EagerSends<'_>,
        tx_batch: &mut TxBatch<'_>,
        grip: &mut Grip<'_>,
    ) -> Option<()> {
        let (SendKind::Send { imm }, SendTo::Peer) = (&work.kind, &work.to) else {
            return None;
        };
        let imm = *imm;
        let request = |len| Request {
            kind: SendKind::Send { imm },
            to: To::Peer,
            len,
            signaled: work.signaled || self.signal_all,
            solicited: work.solicited,
            fence: work.fence,
        };
        // What is wrong with others, the general way says.
        match work.data {
            SendData::Gather([sge])
                if self.own.sends.sges_max() > 0 && sge.len <= Request::LEN_MAX =>
            {
                let Own { map_cache, domain, .. } = &mut *self.own;
                let by_reference =
                    goes_by_reference(tx_batch.shm_link(), map_cache, *domain, grip, sge);
                let words;
                let reservation = if by_reference {
                    words = reference_words(sge);
                    tx_batch.reserve_words(&words)?
                } else if sge.len <= SEGMENT_BYTES {
                    tx_batch.reserve_registered(sge, self.own.domain, grip)?
                } else {
                    return None;
                };
                let index = self.leave(
                    &request(sge.len),
                    by_reference,
                    reservation,
                    eager_sends,
                    tx_batch,
                )?;
                self.own.sends.put_one(index, work, sge);
            }
            SendData::Inline(bytes) if bytes.len() <= self.own.sends.inline_max() => {
                let len = u32::try_from(bytes.len()).ok()?;
                let reservation = tx_batch.reserve(bytes)?;
                let index = self.leave(&request(len), false, reservation, eager_sends, tx_batch)?;
                self.own.sends.put(index, work, None, None);
            }
            SendData::Gather(_) | SendData::Inline(_) | SendData::Bind(_) => return None,
        }
        Some(())
    }

    /// The request's eager header leaves, with what was reserved for it. Says which number the request has.
    #[inline(always)]
    fn leave(
        &mut self,
        request: &Request,
        by_reference: bool,
        reservation: Reservation<'_>,
        eager_sends: &mut EagerSends<'_>,
        tx_batch: &mut TxBatch<'_>,
    ) -> Option<u64> {
        let planned = eager_sends.plan(request, by_reference)?;
        tx_batch.commit(reservation, planned.words, Form { by_reference, more: self.several });
        if planned.acks {
            self.acks.on_sent();
        }
        Some(eager_sends.note(request, by_reference, &planned))
    }
}

/// Carries out a one-sided request; `None` if it cannot go this way. Says how many completions that
/// published.
#[inline]
fn act_directly(
    engine: &mut adverb_engine::Qp,
    own: &mut Own,
    work: &SendWork<'_>,
    request: &Request,
    shm_link: &ShmLink,
    links: &Links,
) -> Option<u32> {
    if !engine.can_reach(request) {
        return None;
    }
    let mut host = Surroundings::by(own, links.regions(), Exit::Direct { shm_link, work });
    engine.reach_at_once(request, &mut host).then_some(host.published)
}

/// Writes the acknowledgement that is owed, if it can go this way.
#[inline]
fn acknowledge(engine: &mut adverb_engine::Qp, tx_batch: &mut TxBatch<'_>) -> bool {
    let Some(reservation) = tx_batch.reserve(&[]) else {
        return false;
    };
    let Some(eager) = engine.acknowledge_eagerly() else {
        return false;
    };
    tx_batch.commit(reservation, eager.emit(), Form { by_reference: false, more: false });
    true
}
