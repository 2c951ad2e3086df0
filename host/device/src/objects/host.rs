//! The transport's view of its surroundings: rings, regions, completion queues, the way out.

use crate::link::out::Out;
use crate::link::peer_cache::{Addresses, NextHop};
use crate::link::shm::SEGMENT_BYTES;
use crate::link::shm::direct::{self, Direct, MapCache, Sink, land};
use crate::link::shm::link::{InRing, MessageBytes, ShmLink};
use crate::memory::local::{Local, Sge, Source, parts};
use crate::memory::region::{Grip, Grips, Pin, Regions, Serial};
use crate::objects::completion::{Completion, CqShared, PollBuffer};
use crate::objects::events::{Affiliation, EventKind};
use crate::objects::srq::Drawn;
use crate::objects::work::{ReceiveRing, SendRing, SendWork};
use crate::objects::xrc::Targets;
use adverb_engine::{
    Access, AccessError, AtomicOp, EmitError, FetchError, Gid, Host, Invalidator, Landing,
    LocalError, NoReceive, Payload, QpEvent, Range, Reach, Receive, ReceiveDone, Request,
    RequestKind, Route, SendDone, Target,
};
use adverb_wire::{Flow, Grh, Headers, Marks, Packet, Qpn, Rkey};
use std::sync::Arc;

/// Source of a queue pair's receives.
#[derive(Debug)]
pub(crate) enum Receives {
    /// A ring of its own.
    Own(ReceiveRing),
    /// A queue that it shares.
    Shared(Drawn),
    /// Those of an XRC domain, which each message names one of.
    Xrc(Targets),
}

impl Receives {
    /// Where a receive's bytes go: protection domain and buffers. That of the queue pair is `own`.
    #[inline(always)]
    fn sges(&self, receive: Receive, own: u32) -> (u32, &[Sge]) {
        match self {
            Self::Own(ring) => (own, ring.sges(receive.token)),
            Self::Shared(drawn) => (drawn.domain(), drawn.sges()),
            Self::Xrc(targets) => {
                targets.current().map_or((own, &[]), |drawn| (drawn.domain(), drawn.sges()))
            }
        }
    }
}

/// State of a queue pair besides its transport.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) number: Qpn,
    pub(crate) domain: u32,
    /// The queue pair's peer, once it is known.
    pub(crate) peer: Option<Qpn>,
    /// Neighbours' memory that it uses.
    pub(crate) map_cache: MapCache,
    /// What windows of type 2 are tied to; numbers are used again.
    pub(crate) serial: Serial,
    pub(crate) sends: SendRing,
    pub(crate) receives: Receives,
    pub(crate) send_cq: Arc<CqShared>,
    pub(crate) recv_cq: Arc<CqShared>,
    /// Completions of requests that the program has not polled yet, or more: polls are not counted.
    pub(crate) unpolled: u32,
    /// A completion found its queue full: the queue pair cannot go on.
    pub(crate) overrun: bool,
    /// Where its asynchronous events go.
    pub(crate) affiliation: Arc<Affiliation>,
}

impl Own {
    /// A target has no protection domain of its own: that of the queue that a packet names counts.
    #[inline]
    pub(crate) fn meet_queue(&mut self, packet: &Packet<'_>) {
        if let (Receives::Xrc(targets), Some(xrceth)) = (&mut self.receives, packet.headers.xrceth)
        {
            self.domain = targets.meet(xrceth.srqn).unwrap_or(0);
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.affiliation.retire();
    }
}

/// The surroundings, for the length of one call.
pub(crate) struct Surroundings<'a, 'b, 'r> {
    pub(crate) own: &'a mut Own,
    pub(crate) regions: &'a Regions,
    /// Pins that last for several packets.
    pub(crate) grips: Option<&'a mut Grips<'r>>,
    /// The way out.
    pub(crate) out: Exit<'a, 'b>,
    /// The message that is being handed over came by reference.
    pub(crate) message: Option<MessageBytes<'a>>,
    /// Where a poll waits for completions.
    pub(crate) poll_buffer: Option<&'a mut PollBuffer<'b>>,
    /// What the call is about, where datagrams want to know.
    pub(crate) errand: Errand<'a>,
    /// Completions published during the call.
    pub(crate) published: u32,
}

/// Outputs of a call for outstanding requests.
#[derive(Debug)]
pub(crate) enum Exit<'a, 'b> {
    /// Nothing.
    None,
    /// Emit packets.
    Link(Out<'a, 'b>),
    /// Use the peer's memory, and for this request alone, which is never queued.
    Direct { shm_link: &'a ShmLink, work: &'a SendWork<'a> },
}

impl<'a, 'b> Surroundings<'a, 'b, '_> {
    pub(crate) fn new(own: &'a mut Own, regions: &'a Regions, out: Out<'a, 'b>) -> Self {
        Self::by(own, regions, Exit::Link(out))
    }

    #[inline]
    pub(crate) fn by(own: &'a mut Own, regions: &'a Regions, out: Exit<'a, 'b>) -> Self {
        Self {
            own,
            regions,
            grips: None,
            out,
            message: None,
            poll_buffer: None,
            errand: Errand::None,
            published: 0,
        }
    }

    /// Without a way out.
    pub(crate) fn quiet(own: &'a mut Own, regions: &'a Regions) -> Self {
        Self::by(own, regions, Exit::None)
    }

    /// The way to the peer's memory, if there is one.
    #[inline]
    fn shm_link(&self) -> Option<&'a ShmLink> {
        match &self.out {
            Exit::None => None,
            Exit::Link(out) => out.shm_link(),
            Exit::Direct { shm_link, .. } => Some(shm_link),
        }
    }

    /// An acknowledgement costs less than a packet of its own.
    pub(crate) fn takes_along(&self) -> bool {
        match &self.out {
            Exit::Link(out) => out.takes_along(),
            Exit::None | Exit::Direct { .. } => false,
        }
    }
}

impl Exit<'_, '_> {
    /// Takes a packet with these bytes (`Out::emit`).
    #[inline(always)]
    fn emit(
        &mut self,
        headers: &Headers,
        source: &Source<'_>,
        near: Option<&Addresses>,
        fan_out: &[Arc<ShmLink>],
        regions: &Regions,
    ) -> Result<(), AccessError> {
        match self {
            Self::Link(out) => out.emit(headers, source, near, fan_out, regions),
            // The transport asks for room first, and there is none.
            Self::None | Self::Direct { .. } => Ok(()),
        }
    }

    /// Takes a packet with bytes that the peer reads, after those were not found: meanwhile a request for a queue
    /// of another protection domain may have come. `None` if they are nowhere.
    #[cold]
    fn emit_in_other_domains(
        &mut self,
        headers: &Headers,
        payload: Payload,
        own: &Own,
        near: Option<&Addresses>,
        regions: &Regions,
    ) -> Option<()> {
        let Receives::Xrc(targets) = &own.receives else {
            return None;
        };
        let others = targets.domains().filter(|other| *other != own.domain);
        others
            .map(|domain| source_in(own, payload, domain))
            .find_map(|source| self.emit(headers, &source, near, &[], regions).ok())
    }
}

/// Copies `bytes` into the buffers `sges`, `offset` bytes from their start.
#[inline]
fn scatter_to(
    grip: &mut Grip<'_>,
    (domain, sges): (u32, &[Sge]),
    offset: u32,
    bytes: &[u8],
) -> Result<(), LocalError> {
    let mut left = bytes;
    let mut parts = parts(sges, offset, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    for Sge { addr, len, lkey } in parts.by_ref() {
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(left.len());
        let (now, later) = left.split_at(len);
        grip.pin_local(lkey, domain)
            .and_then(|pin| pin.write(addr, now, Access::LOCAL_WRITE))
            .map_err(|_| LocalError::Protection)?;
        left = later;
    }
    if parts.is_done() { Ok(()) } else { Err(LocalError::Protection) }
}

/// The bytes that a packet or a record carries.
#[inline(always)]
fn source_of(own: &Own, payload: Payload) -> Source<'_> {
    source_in(own, payload, own.domain)
}

/// The same, where they are of this protection domain.
#[inline(always)]
fn source_in(own: &Own, payload: Payload, domain: u32) -> Source<'_> {
    match payload {
        Payload::None => Source::None,
        Payload::Request { index, offset, len } => {
            Source::Local { local: own.sends.local(index), offset, len, domain }
        }
        Payload::Region(Range { rkey, va, len }) => {
            Source::Remote { rkey: rkey.0, va, len, domain, qp: own.serial }
        }
    }
}

impl Surroundings<'_, '_, '_> {
    /// The call ends: a queue pair whose completions were lost does not go on.
    #[inline]
    pub(crate) fn end(&mut self, engine: &mut adverb_engine::Qp) {
        if self.own.overrun {
            self.own.overrun = false;
            engine.abort(self);
        }
    }
}

/// Origin of a burst of packets.
#[derive(Debug)]
pub(crate) struct Origin<'a> {
    pub(crate) source: Gid,
    pub(crate) flow: &'a Flow,
    /// How they were marked.
    pub(crate) marks: Marks,
}

/// Arrival of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Came<'a> {
    pub(crate) from: &'a Origin<'a>,
    /// Length of the datagram that it came in.
    pub(crate) len: u16,
}

/// Parameters of a call for datagrams.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Errand<'a> {
    /// Nothing.
    None,
    /// A packet has come.
    Arrival(Came<'a>),
    /// Packets leave by this next hop; request number `next` is the next.
    /// A shared-memory link of its fan-out that is full for long loses them; of others there has to be room.
    Departure { next_hop: &'a NextHop, next: u64, sinks: bool },
}

impl<'a> Surroundings<'a, '_, '_> {
    /// Carries out a one-sided request on the peer's memory.
    fn reach_peer(&mut self, index: u64, request: &Request, all_before: bool) -> Reach {
        let Some(shm_link) = self.shm_link() else {
            return Reach::Not;
        };
        let Own { number, peer, domain, serial, map_cache, sends, .. } = &mut *self.own;
        let (number, peer, domain, serial) = (*number, *peer, *domain, *serial);
        let mut direct =
            Direct { shm_link, regions: self.regions, map_cache, number, peer, domain, serial };
        if !all_before {
            // Small WRITEs follow what is under way; the rest is better off waiting.
            let write = matches!(request.kind, RequestKind::Write { .. });
            let sent = write && request.len <= SEGMENT_BYTES;
            return if sent || !direct.may_reach(request) { Reach::Not } else { Reach::Later };
        }
        let local = match &self.out {
            Exit::Direct { work, .. } => work.local(),
            Exit::None | Exit::Link(_) => sends.local(index),
        };
        match direct.act(request, local) {
            Some(()) => Reach::Done,
            None => Reach::Not,
        }
    }

    /// Copies the bytes of the message by reference that is being handed over.
    #[inline(never)]
    fn fetch_by_reference(&mut self, to: Target) -> Result<(), FetchError> {
        let (shm_link, total, pieces) = match self.message {
            None => return Err(FetchError::Lost),
            Some(MessageBytes::InRing(near)) => return self.fetch_near(near, to),
            Some(MessageBytes::ByReference { shm_link, total, pieces }) => {
                (shm_link, total, pieces)
            }
        };
        let regions = self.regions;
        let Own { number, peer, domain, serial, map_cache, receives, .. } = &mut *self.own;
        let (number, peer, domain, serial) = (*number, *peer, *domain, *serial);
        let pin;
        let sink = match to {
            Target::Receive(receive) => {
                let (domain, sges) = receives.sges(receive, domain);
                Sink::Buffers { domain, sges }
            }
            Target::Region { rkey, va } => {
                pin = regions.pin_remote(rkey.0, domain, serial).map_err(FetchError::Access)?;
                Sink::Region { pin: &pin, va }
            }
        };
        Direct { shm_link, regions, map_cache, number, peer, domain, serial }
            .fetch(pieces, total, sink)
    }

    /// Copies the bytes of a record out of the ring.
    #[inline(always)]
    fn fetch_near(&mut self, near: InRing<'_>, to: Target) -> Result<(), FetchError> {
        match to {
            Target::Receive(receive) => match self.own.receives.sges(receive, self.own.domain) {
                (domain, [sge]) => {
                    // The transport has seen to it that the receive is long enough.
                    let refused = |_| FetchError::Local(LocalError::Protection);
                    land(near, sge, domain, &mut Grip::new(self.regions)).map_err(refused)
                }
                (domain, sges) => {
                    direct::fetch_near(near, self.regions, Sink::Buffers { domain, sges })
                }
            },
            Target::Region { rkey, va } => {
                let pin = self.pin(rkey).map_err(FetchError::Access)?;
                direct::fetch_near(near, self.regions, Sink::Region { pin: &pin, va })
            }
        }
    }

    /// The message of a request can go by reference: the peer can reach the bytes.
    fn can_go_by_reference(&self, index: u64, request: &Request) -> bool {
        let carries = matches!(
            request.kind,
            RequestKind::Send { .. }
                | RequestKind::SendInvalidate { .. }
                | RequestKind::Write { .. }
        );
        let long = request.len > SEGMENT_BYTES;
        let Some(shm_link) = self.shm_link().filter(|_| carries && long) else {
            return false;
        };
        let Local::Gather(sges) = self.own.sends.local(index) else {
            return false;
        };
        direct::can_go_by_reference(shm_link, self.regions, self.own.domain, sges)
    }
}

impl Surroundings<'_, '_, '_> {
    /// Holds what the peer's key names.
    #[inline]
    fn pin(&self, rkey: Rkey) -> Result<Pin<'_>, AccessError> {
        self.regions.pin_remote(rkey.0, self.own.domain, self.own.serial)
    }

    /// Gives up the pins of what has arrived and of what leaves: what follows waits for pins (`region.rs`, rule 6).
    fn let_go(&mut self) {
        if let Some(grips) = &mut self.grips {
            grips.let_go();
        }
        self.let_go_of_what_leaves();
    }

    /// The next request goes by this next hop, as the burst does, and its fan-out has room.
    #[inline(never)]
    fn goes_along(&mut self, next_hop: &NextHop, next: u64, sinks: bool) -> bool {
        let fan_out = next_hop.fan_out.as_deref().unwrap_or_default();
        if !fan_out.is_empty() {
            self.let_go_of_what_leaves(); // The locks of links follow.
        }
        if !sinks && fan_out.iter().any(|shm_link| !shm_link.has_room()) {
            return false;
        }
        let sends = &self.own.sends;
        sends.next_hop(sends.route(next)).is_some_and(|other| next_hop.is_same(other))
    }

    /// Gives up the pins of what leaves.
    #[inline]
    fn let_go_of_what_leaves(&mut self) {
        if let Exit::Link(Out::Packets(burst)) = &mut self.out {
            burst.let_go();
        }
    }

    /// A request of its own has ended that asked for a completion, or that has failed.
    #[inline]
    fn report_send(&mut self, done: SendDone) {
        let (wr_id, buffer) = match &self.out {
            Exit::Direct { work, .. } => (work.wr_id, work.buffer),
            Exit::None | Exit::Link(_) => {
                // Only a burst keeps pins. With the completion the program may release its memory.
                self.let_go_of_what_leaves();
                let posted = self.own.sends.get(done.index);
                (posted.wr_id, posted.buffer)
            }
        };
        let number = self.own.number;
        let completion = || Completion {
            wr_id,
            status: done.status,
            opcode: done.opcode,
            byte_len: done.byte_len,
            imm: None,
            qp: number,
            src_qp: Qpn::new(0),
            buffer,
            ..Completion::EMPTY
        };
        self.publish(Cq::Send, completion, false);
    }

    /// Publishes a completion, which is made where it will be: made elsewhere and copied, it would keep
    /// the processor waiting for itself.
    #[inline(always)]
    fn publish(&mut self, cq: Cq, completion: impl Fn() -> Completion, solicited: bool) {
        let queue = match cq {
            Cq::Send => &self.own.send_cq,
            Cq::Receive => &self.own.recv_cq,
        };
        self.published += 1;
        if let Some(poll_buffer) =
            self.poll_buffer.as_mut().filter(|poll_buffer| poll_buffer.takes(queue))
        {
            poll_buffer.put(completion());
            return;
        }
        let stored = queue.publish(completion(), solicited);
        match cq {
            Cq::Send => self.own.unpolled = self.own.unpolled.saturating_add(1),
            Cq::Receive => {}
        }
        if !stored {
            self.own.overrun = true;
        }
    }
}

/// Which of a queue pair's completion queues.
#[derive(Clone, Copy, Debug)]
enum Cq {
    Send,
    Receive,
}

impl Host for Surroundings<'_, '_, '_> {
    #[inline]
    fn room(&mut self) -> bool {
        let same_way = match self.errand {
            Errand::None | Errand::Arrival(_) => true,
            Errand::Departure { next_hop, next, sinks } => self.goes_along(next_hop, next, sinks),
        };
        match &mut self.out {
            Exit::Link(out) => same_way && out.room(),
            Exit::None | Exit::Direct { .. } => false,
        }
    }

    fn emit(
        &mut self,
        headers: &Headers,
        payload: Payload,
        _route: Option<Route>, // `room` has seen to it that the burst goes that way.
    ) -> Result<(), EmitError> {
        let mut near = None;
        let mut fan_out = &[][..];
        if let Errand::Departure { next_hop, next, .. } = &mut self.errand {
            *next += 1; // A datagram is one packet.
            fan_out = next_hop.fan_out.as_deref().unwrap_or_default();
            near = next_hop.address_vector.local.as_ref().map(|near| &near.addresses);
        }
        let Self { own, regions, out, .. } = self;
        let emitted = out.emit(headers, &source_of(own, payload), near, fan_out, regions);
        let Err(error) = emitted else {
            return Ok(());
        };
        let Payload::Region(_) = payload else {
            return Err(EmitError::Local(LocalError::Protection));
        };
        out.emit_in_other_domains(headers, payload, own, near, regions)
            .ok_or(EmitError::Remote(error))
    }

    #[inline]
    fn take_receive(&mut self, srq: Option<Qpn>) -> Result<Receive, NoReceive> {
        let receive = match (&mut self.own.receives, srq) {
            (Receives::Own(ring), None) => ring.take(),
            (Receives::Shared(drawn), None) => drawn.take(),
            (Receives::Xrc(targets), Some(srq)) => return targets.take(srq),
            (Receives::Xrc(_), None) => return Err(NoReceive::Empty),
            (Receives::Own(_) | Receives::Shared(_), Some(_)) => {
                return Err(NoReceive::NoSuchQueue);
            }
        };
        receive.ok_or(NoReceive::Empty)
    }

    fn put_back_receive(&mut self, _receive: Receive, _srq: Option<Qpn>) {
        match &mut self.own.receives {
            Receives::Own(ring) => ring.put_back(),
            Receives::Shared(drawn) => drawn.put_back(),
            Receives::Xrc(targets) => targets.put_back(),
        }
    }

    fn grh(&self) -> [u8; 40] {
        match self.errand {
            Errand::Arrival(Came { from, len }) => Grh::emit(from.flow, from.marks, len),
            Errand::None | Errand::Departure { .. } => [0; 40], // Not asked for then.
        }
    }

    #[inline]
    fn scatter(&mut self, to: Landing, offset: u32, bytes: &[u8]) -> Result<(), LocalError> {
        let domain = self.own.domain;
        match to {
            Landing::Receive(receive) => {
                let buffers = self.own.receives.sges(receive, domain);
                match &mut self.grips {
                    Some(grips) => scatter_to(&mut grips.local, buffers, offset, bytes),
                    None => scatter_to(&mut Grip::new(self.regions), buffers, offset, bytes),
                }
            }
            Landing::Request(index) => match self.own.sends.local(index) {
                Local::Gather(sges) => match &mut self.grips {
                    Some(grips) => scatter_to(&mut grips.local, (domain, sges), offset, bytes),
                    None => scatter_to(&mut Grip::new(self.regions), (domain, sges), offset, bytes),
                },
                // Inline data is refused for requests that bring data back.
                Local::Inline(_) if bytes.is_empty() => Ok(()),
                Local::Inline(_) => Err(LocalError::Protection),
            },
        }
    }

    fn check(&self, range: Range, access: Access) -> Result<(), AccessError> {
        let len = usize::try_from(range.len).unwrap_or(usize::MAX);
        self.pin(range.rkey)?.range(range.va, len, access).map(|_| ())
    }

    #[inline]
    fn write(&mut self, rkey: Rkey, va: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let Own { domain, serial, .. } = *self.own;
        let write = |pin: &Pin<'_>| pin.write(va, bytes, Access::REMOTE_WRITE);
        match &mut self.grips {
            Some(grips) => write(grips.remote.pin_remote(rkey.0, domain, serial)?),
            None => write(&self.regions.pin_remote(rkey.0, domain, serial)?),
        }
    }

    fn atomic(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessError> {
        self.pin(rkey)?.atomic(va, op)
    }

    fn atomic_write(&mut self, rkey: Rkey, va: u64, bytes: [u8; 8]) -> Result<(), AccessError> {
        self.pin(rkey)?.atomic_write(va, bytes)
    }

    fn invalidate(&mut self, rkey: Rkey, by: Invalidator) -> Result<(), AccessError> {
        self.let_go();
        let Own { domain, serial, .. } = *self.own;
        self.regions.invalidate(rkey.0, domain, serial, by)
    }

    fn bind(&mut self, index: u64) -> Result<(), AccessError> {
        self.let_go();
        let Own { domain, serial, .. } = *self.own;
        let bind = self.own.sends.bind(index).ok_or(AccessError::UnknownKey)?;
        self.regions.bind(&bind, domain, serial)
    }

    #[inline]
    fn reach(&mut self, index: u64, request: &Request, all_before: bool) -> Reach {
        self.reach_peer(index, request, all_before)
    }

    fn goes_by_reference(&self, index: u64, request: &Request) -> bool {
        self.can_go_by_reference(index, request)
    }

    fn by_reference(&self) -> Option<u32> {
        self.message.map(|message| message.total())
    }

    #[inline(always)]
    fn fetch(&mut self, to: Target) -> Result<(), FetchError> {
        match self.message {
            Some(MessageBytes::InRing(near)) => self.fetch_near(near, to),
            Some(MessageBytes::ByReference { .. }) | None => self.fetch_by_reference(to),
        }
    }

    fn event(&mut self, event: QpEvent) {
        if let Receives::Xrc(targets) = &mut self.own.receives
            && let Some(proxy) = targets.proxy_mut()
        {
            proxy.note(event);
        }
        let kind = match event {
            QpEvent::CommEst => EventKind::CommEst,
            QpEvent::LastWqeReached => EventKind::LastWqeReached,
            QpEvent::QpAccessErr => EventKind::QpAccessErr,
            QpEvent::QpFatal => EventKind::QpFatal,
            QpEvent::QpReqErr => EventKind::QpReqErr,
            QpEvent::SqDrained => EventKind::SqDrained,
            _ => return,
        };
        self.own.affiliation.raise(kind);
    }

    #[inline(always)]
    fn send_done(&mut self, done: SendDone) {
        if done.report {
            self.report_send(done);
        }
    }

    #[inline(always)]
    fn receive_done(&mut self, done: ReceiveDone) {
        let (wr_id, buffer, srq) = match &mut self.own.receives {
            Receives::Own(ring) => {
                let (wr_id, buffer) = ring.finish(done.receive.token);
                (wr_id, buffer, None)
            }
            Receives::Shared(drawn) => {
                let (wr_id, buffer, srq) = drawn.finish();
                (wr_id, buffer, Some(srq))
            }
            Receives::Xrc(targets) => {
                let Some((wr_id, buffer, srq)) = targets.finish() else {
                    return;
                };
                if let Some(cq) = targets.current().and_then(Drawn::cq) {
                    self.own.recv_cq = Arc::clone(cq); // It is the queue's that counts.
                }
                (wr_id, buffer, Some(srq))
            }
        };
        let number = self.own.number;
        // Only datagrams have a network header to tell of.
        let ipv6 = done.grh
            && match self.errand {
                Errand::Arrival(Came { from, .. }) => from.flow.is_ipv6(),
                Errand::None | Errand::Departure { .. } => false,
            };
        let completion = || Completion {
            wr_id,
            status: done.status,
            opcode: done.opcode,
            byte_len: done.byte_len,
            imm: done.imm,
            invalidated: done.invalidated,
            grh: done.grh,
            ipv6,
            pkey_index: done.pkey_index,
            qp: number,
            src_qp: done.src_qp,
            buffer,
            srq,
            ..Completion::EMPTY
        };
        self.publish(Cq::Receive, completion, done.solicited);
    }
}
