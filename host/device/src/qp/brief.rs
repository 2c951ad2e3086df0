//! The short way of a queue pair whose peer is on this host: small SENDs as briefs, and one-sided
//! requests that nothing stands before.
//!
//! What may go this way is for the transport to say (`Qp::plan_brief`, `Qp::can_reach`); whatever it
//! refuses, and whatever comes after that in a batch, goes the general way. Bytes are looked up, and
//! room for them in the ring is found, before the transport is asked, so that a mistake in a request's
//! buffers is found while nothing has happened yet. The records of a batch become visible together.

use super::{Acks, Aftermath, Link, Posted, QpInner, Surroundings};
use crate::cq::Tray;
use crate::host::Own;
use crate::lane::{Cargo, Form, Lane, Lent, lent_bytes};
use crate::port::Port;
use crate::reach::lends_one;
use crate::work::{SendData, SendKind, SendWork};
use adverb_engine::{Brief, LOCAL_SEGMENT_BYTES, QpState, Request, Time};

/// What is known of the acknowledgement that a queue pair owes a neighbour.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Debt {
    /// It is on the port's list of those that owe one.
    pub(crate) listed: bool,
    /// The peer waits for it.
    asked: bool,
    /// Messages that it stands for.
    messages: u32,
}

/// Messages that an acknowledgement nobody waits for stands for, at most.
const MESSAGES_MAX: u32 = 32;

impl Debt {
    /// A packet came that was no brief: whoever sent it may wait.
    pub(crate) fn on_packet(&mut self) {
        self.asked = true;
    }

    fn on_brief(&mut self, brief: &Brief) {
        self.asked |= brief.ack_request;
        self.messages = self.messages.saturating_add(1);
    }

    /// It has left, or nothing was owed.
    pub(crate) fn on_paid(&mut self) {
        (self.asked, self.messages) = (false, 0);
    }

    /// It should leave with the program's next call, and not wait for a quiet moment.
    pub(crate) fn is_pressing(&self) -> bool {
        self.asked || self.messages >= MESSAGES_MAX
    }
}

impl QpInner {
    /// Posts and sends the first requests of a batch, as many as can go the short way; says how many,
    /// and how many completions that published.
    #[inline(always)]
    pub(super) fn post_briefly(&mut self, batch: &[SendWork<'_>], port: &Port) -> Posted {
        let mut posted = Posted::default();
        if self.late.is_some() && !self.has_room_for(batch) {
            posted.published += self.settle(None, port);
        }
        let Some(Link::Lane(lane)) = &self.link else {
            return posted;
        };
        if self.engine.state() != QpState::Rts || lane.is_cut() {
            return posted;
        }
        // Most one-sided requests need no record.
        let load = || lane.load(batch.len() + 1);
        let mut cargo: Option<Cargo<'_>> = None;
        let several = batch.len() > 1;
        for work in batch {
            let Ok(request) = self.check_send(work, port) else {
                break; // The general way says what is wrong with it.
            };
            let Self { engine, own, debt, .. } = self;
            let done = if let SendKind::Send { .. } = work.kind {
                let cargo = cargo.get_or_insert_with(load);
                let sent = send_briefly(engine, own, work, &request, cargo, several, port);
                if sent == Some(Some(())) {
                    debt.on_paid();
                }
                sent.is_some()
            } else {
                let reached = reach_briefly(engine, own, work, &request, lane, port);
                posted.published += reached.unwrap_or(0);
                reached.is_some()
            };
            if !done {
                break;
            }
            posted.requests += 1;
        }
        // The program's next call takes along what is owed, whatever it posts.
        if posted.requests > 0 && self.engine.owes_plain_ack() {
            let cargo = cargo.get_or_insert_with(load);
            acknowledge(&mut self.engine, cargo, &mut self.debt);
        }
        if let Some(cargo) = cargo {
            self.engine.count_sent(cargo.send());
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
    pub(crate) fn settle(&mut self, tray: Option<&mut Tray<'_>>, port: &Port) -> u32 {
        match self.late.take() {
            None => 0,
            Some(brief) => self.on_late(brief, tray, port),
        }
    }

    fn on_late(&mut self, brief: Brief, tray: Option<&mut Tray<'_>>, port: &Port) -> u32 {
        let Self { engine, own, .. } = self;
        let mut host = Surroundings::quiet(own, port.regions());
        host.tray = tray;
        engine.on_brief_ack(&brief, || port.now(), &mut host);
        host.end(engine);
        let published = host.published;
        self.show(port);
        published
    }

    /// What requests that were posted the short way leave for the port to do.
    #[inline(always)]
    pub(super) fn after_brief(&mut self, posted: Posted, port: &Port) -> Aftermath {
        if self.own.overrun {
            self.quietly(port, |_, _| {});
        }
        let (deadline, published) = (self.new_deadline(), posted.published);
        Aftermath { deadline, published, ..Aftermath::default() }
    }

    /// Sends the acknowledgement that is owed to a neighbour, and whatever else there is to emit.
    pub(crate) fn acknowledge(&mut self, port: &Port) -> Aftermath {
        let Some(Link::Lane(lane)) = &self.link else {
            return Aftermath::default();
        };
        let mut cargo = lane.load(1);
        if acknowledge(&mut self.engine, &mut cargo, &mut self.debt) {
            self.engine.count_sent(cargo.send());
            return Aftermath::default();
        }
        drop(cargo);
        self.transmit(Time::UNKNOWN, Acks::Now, port)
    }

    /// Takes a brief of this lane, whose bytes are `lent`.
    #[inline(always)]
    pub(crate) fn on_brief(
        &mut self,
        brief: &Brief,
        lent: Lent<'_>,
        lane: &Lane,
        caller: Caller<'_, '_>,
        now: impl FnOnce() -> Time,
        port: &Port,
    ) -> Took {
        let known = matches!(&self.link, Some(Link::Lane(own)) if own.peer() == lane.peer());
        if !known {
            return Took::default();
        }
        let settled = self.settle(None, port);
        if brief.psn.is_some() {
            self.debt.on_brief(brief);
        }
        let Self { engine, own, late, .. } = self;
        let mut host = Surroundings::quiet(own, port.regions());
        (host.lent, host.tray) = (Some(lent), caller.tray);
        let served = engine.on_brief_message(brief, lent.total(), &mut host);
        let is_late = caller.can_wait && host.published > 0 && brief.acked.is_some();
        if is_late {
            *late = Some(*brief);
        }
        let only_served = served && (is_late || brief.acked.is_none()) && !host.own.overrun;
        if only_served && settled == 0 {
            return Took { published: host.published, only_served };
        }
        if !is_late {
            engine.on_brief_ack(brief, now, &mut host);
        }
        host.end(engine);
        let published = settled + host.published;
        self.show(port);
        Took { published, only_served: false }
    }
}

/// Who takes a message.
#[derive(Debug)]
pub(crate) struct Caller<'a, 'b> {
    /// A program that gets a message answers it at once, likely. So what came along with the message
    /// that it waits for can wait, until there is time or somebody wants to know.
    pub(crate) can_wait: bool,
    /// Where he waits for completions.
    pub(crate) tray: Option<&'a mut Tray<'b>>,
}

/// What a brief has led to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Took {
    /// Completions published.
    pub(crate) published: u32,
    /// One of a receive, and nothing else but that an acknowledgement is owed, or may be waiting.
    pub(crate) only_served: bool,
}

/// Posts and sends a SEND; `None` if it cannot go this way. Says whether an acknowledgement went along.
#[inline(always)]
fn send_briefly(
    engine: &mut adverb_engine::Qp,
    own: &mut Own,
    work: &SendWork<'_>,
    request: &Request,
    cargo: &mut Cargo<'_>,
    several: bool,
    port: &Port,
) -> Option<Option<()>> {
    let mut lent = false;
    let words;
    let draft = match work.data {
        SendData::Gather([sge]) if lends_one(cargo.lane(), own, port.regions(), sge) => {
            lent = true;
            words = lent_bytes(sge);
            cargo.draft_words(&words)?
        }
        SendData::Gather([sge]) if request.len <= LOCAL_SEGMENT_BYTES => {
            cargo.draft_registered(sge, own.domain, port.regions())?
        }
        SendData::Inline(bytes) => cargo.draft(bytes)?,
        SendData::Gather(_) | SendData::Bind(_) => return None,
    };
    let brief = engine.plan_brief(request, lent)?;
    cargo.commit(draft, &brief, Form { lent, more: several });
    let index = engine.note_brief(request, lent, &brief);
    own.sends.put(index, work, None, None);
    Some(brief.acked.map(drop))
}

/// Carries out a one-sided request; `None` if it cannot go this way. Says how many completions that
/// published.
#[inline]
fn reach_briefly(
    engine: &mut adverb_engine::Qp,
    own: &mut Own,
    work: &SendWork<'_>,
    request: &Request,
    lane: &Lane,
    port: &Port,
) -> Option<u32> {
    if !engine.can_reach(request) {
        return None;
    }
    let mut host = Surroundings::quiet(own, port.regions());
    (host.lane, host.at_once) = (Some(lane), Some(work));
    engine.reach_at_once(request, &mut host).then_some(host.published)
}

/// Writes the acknowledgement that is owed, if it can go this way.
#[inline]
fn acknowledge(engine: &mut adverb_engine::Qp, cargo: &mut Cargo<'_>, debt: &mut Debt) -> bool {
    let Some(draft) = cargo.draft(&[]) else {
        return false;
    };
    let Some(brief) = engine.acknowledge_briefly() else {
        return false;
    };
    cargo.commit(draft, &brief, Form { lent: false, more: false });
    debt.on_paid();
    true
}
