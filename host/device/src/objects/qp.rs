//! Queue pair: the transport's state machine, its rings, and the link to the network.
//!
//! [`QpInner`] lives in the port's table, behind the only lock of the data path. Its owner has a handle
//! ([`Qp`], `qp/handle.rs`); dropping that ends the queue pair.

mod change;
mod eager;
pub(crate) mod errors;
mod roles;

use crate::data_path::DataPath;
use crate::link::Links;
use crate::link::errors::ConnectError;
use crate::link::kind::Link;
use crate::link::out::{on_shm_link, on_udp_link};
use crate::link::peer_cache::{Addresses, FULL_MAX_NANOS, FanOut, PeerCache};
use crate::link::shm::direct::MapCache;
use crate::link::shm::link::{Grant, MessageBytes, PeerId, ShmLink, Takes};
use crate::memory::local::total_len;
use crate::memory::peer_page::QpWord;
use crate::memory::region::{Grips, Serial};
use crate::objects::ah::SendTo;
use crate::objects::completion::Completion;
use crate::objects::cq::CompletionQueue;
use crate::objects::events::{Affiliation, Element, EventQueue, Listener};
use crate::objects::host::{Came, Errand, Origin, Own, Receives, Surroundings};
use crate::objects::srq::{Drawn, Srq};
use crate::objects::work::{ReceiveRing, ReceiveWork, SendData, SendKind, SendRing, SendWork};
use crate::objects::xrc::{Role, Targets, Xrcd};
use crate::registry::stats_page::QpRow;
use adverb_engine::{
    Acks, Aftermath, Datagram, Gid, Pacing, QpCounters, QpOptions, QpState, QpType, Request, Time,
    To, WcOpcode, allowed,
};
use adverb_wire::{Marks, Packet, PathMtu, Qpn};
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use change::{Change, QpQuery, Side};
pub(crate) use eager::{Caller, Took};
pub use errors::PostError;
pub(crate) use roles::{Directed, Waiters};

/// Parameters of a queue pair.
#[derive(Clone, Debug)]
pub struct QpConfig {
    /// The protection domain.
    pub domain: u32,
    /// Its type.
    pub kind: QpType,
    /// Where send requests complete.
    pub send_cq: CompletionQueue,
    /// Where receives complete.
    pub recv_cq: CompletionQueue,
    /// Where its receives come from, if it has none of its own.
    pub srq: Option<Srq>,
    /// Where an XRC target finds shared receive queues.
    pub xrcd: Option<Xrcd>,
    /// Where its asynchronous events go.
    pub events: Option<Arc<EventQueue>>,
    /// Names the queue pair in its events.
    pub context: u64,
    /// Its capacities.
    pub cap: QpCap,
    /// Every send request completes visibly.
    pub signal_all: bool,
    /// What it sends to a multicast group does not come back to it.
    pub block_self_multicast: bool,
}

/// Capacities of a queue pair. `struct ibv_qp_cap`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(alias = "ibv_qp_cap")]
pub struct QpCap {
    /// Send requests outstanding at once, 1 to [`crate::QpLimits::WR_MAX`].
    pub max_send_wr: u32,
    /// Receives outstanding at once, to [`crate::QpLimits::WR_MAX`]; 0 with a shared receive queue.
    pub max_recv_wr: u32,
    /// Pieces of a send request's buffer, 1 to [`crate::QpLimits::SGE_MAX`].
    pub max_send_sge: u32,
    /// Pieces of a receive's buffer, 1 to [`crate::QpLimits::SGE_MAX`].
    pub max_recv_sge: u32,
    /// Bytes that a send request can carry inline, 0 to [`crate::QpLimits::INLINE_MAX`].
    pub max_inline: u32,
}

/// A queue pair as the port holds it.
#[derive(Debug)]
pub(crate) struct QpInner {
    pub(crate) engine: adverb_engine::Qp,
    own: Own,
    /// The link to the peer, once it is known.
    link: Option<Link>,
    /// Neighbours that datagrams were sent to.
    pub(crate) peer_cache: PeerCache,
    /// Place of its own address in the GID table, once it is known.
    pub(crate) gid_index: u8,
    /// How its packets are to be marked.
    pub(crate) marks: Marks,
    signal_all: bool,
    block_self_multicast: bool,
    reads_allowed: bool,
    /// When it sends, and acknowledges.
    pub(crate) pacing: Pacing,
    /// The state that neighbours were last shown, and whether the peer may do something in it.
    shown: (QpState, bool),
    /// What the peer may have of our memory, if it is a neighbour.
    grant: Option<Grant>,
    /// It has joined the path to its peer ([`adverb_engine::Paths`]).
    joined: bool,
}

/// Requests that were posted eagerly, and completions that this published.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Posted {
    pub(crate) requests: usize,
    pub(crate) published: u32,
}

/// Packets that one call may emit before it looks at what has arrived.
const EMIT_BUDGET: usize = 128;

impl QpInner {
    pub(crate) fn new(number: Qpn, config: &QpConfig, port_mtu: PathMtu) -> Self {
        let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline } = config.cap;
        let sends = SendRing::new(max_send_wr, max_send_sge, max_inline);
        let sends = if config.kind == QpType::Ud { sends.with_legs() } else { sends };
        Self {
            engine: adverb_engine::Qp::new(QpOptions {
                shared_receives: config.srq.is_some(),
                port_mtu,
                ..QpOptions::of(config.kind, number, max_send_wr)
            }),
            own: Own {
                number,
                domain: config.domain,
                peer: None,
                map_cache: MapCache::default(),
                serial: Serial::new(),
                sends,
                receives: match (&config.srq, &config.xrcd) {
                    (_, Some(xrcd)) => Receives::Xrc(Targets::new(xrcd)),
                    (Some(srq), None) => Receives::Shared(Drawn::new(srq)),
                    (None, None) => Receives::Own(ReceiveRing::new(max_recv_wr, max_recv_sge)),
                },
                send_cq: Arc::clone(&config.send_cq.shared),
                recv_cq: Arc::clone(&config.recv_cq.shared),
                unpolled: 0,
                overrun: false,
                affiliation: Affiliation::new(
                    config.events.clone(),
                    Element::Qp { number, context: config.context },
                ),
            },
            link: None,
            peer_cache: PeerCache::default(),
            gid_index: 0,
            marks: Marks::default(),
            signal_all: config.signal_all,
            block_self_multicast: config.block_self_multicast,
            reads_allowed: false,
            pacing: Pacing::default(),
            shown: (QpState::Reset, false),
            grant: None,
            joined: false,
        }
    }

    /// Publishes to neighbours what the peer may do by direct access, if that has changed.
    #[inline]
    pub(crate) fn show(&mut self, links: &Links) {
        let shown = (self.engine.state(), self.has_shm_link() && self.engine.is_open());
        if self.shown != shown {
            self.show_anew(shown, links);
        }
    }

    #[cold]
    fn show_anew(&mut self, shown: (QpState, bool), links: &Links) {
        let (_, open) = shown;
        let seen = self.shown.1;
        self.shown = shown;
        if !open && !seen {
            return; // They saw nothing, whatever its state was.
        }
        let kind = self.engine.kind();
        let asks = matches!(kind, QpType::Rc | QpType::Uc | QpType::XrcInitiator);
        let word = match self.own.peer.filter(|_| open && asks) {
            None if self.takes_packets_alone() => QpWord::ONLY_PACKETS,
            None => QpWord::CLOSED,
            Some(peer) => {
                let settings = self.engine.settings();
                let resources = settings.max_dest_rd_atomic > 0;
                QpWord::new(peer, settings.access, resources, self.own.domain)
            }
        };
        self.grant = None;
        if let Some(shm_link) = self.shm_link().filter(|_| open) {
            // Before the peer can learn of it, and ask for what it may have.
            let access = self.engine.settings().access;
            self.grant = Some(shm_link.grant(self.own.number, self.own.domain, access));
        }
        if let Some(place) = links.exports().and_then(|exports| exports.page().qp(self.own.number))
        {
            place.store(word.bits(), Ordering::SeqCst);
        }
    }

    /// Lends the surroundings without a way out.
    pub(crate) fn quietly(
        &mut self,
        links: &Links,
        run: impl FnOnce(&mut adverb_engine::Qp, &mut Surroundings<'_, '_, '_>),
    ) -> u32 {
        self.with_errand(Errand::None, None, None, links, run)
    }

    /// Lends the surroundings for an errand without a way out.
    #[inline]
    fn with_errand(
        &mut self,
        errand: Errand<'_>,
        message: Option<MessageBytes<'_>>,
        grips: Option<&mut Grips<'_>>,
        links: &Links,
        run: impl FnOnce(&mut adverb_engine::Qp, &mut Surroundings<'_, '_, '_>),
    ) -> u32 {
        let settled = self.settle(None, links);
        let Self { engine, own, .. } = self;
        let mut host = Surroundings::quiet(own, links.regions());
        host.errand = errand;
        host.message = message;
        host.grips = grips;
        run(engine, &mut host);
        host.end(engine);
        let published = host.published;
        self.show(links);
        settled + published
    }

    /// Takes a packet; says how many completions that published.
    #[inline]
    pub(crate) fn on_packet(
        &mut self,
        packet: &Packet<'_>,
        came: Came<'_>,
        now: Time,
        links: &Links,
        grips: Option<&mut Grips<'_>>,
    ) -> u32 {
        self.own.meet_queue(packet);
        if came.from.marks.met_congestion() {
            self.engine.on_mark(packet, now);
        }
        self.with_errand(Errand::Arrival(came), None, grips, links, |engine, host| {
            engine.on_packet(packet, came.from.source, now, host);
        })
    }

    /// Takes a record of this shared-memory link; says how many completions that published. `by_reference`: the
    /// places of its message's bytes.
    #[inline]
    pub(crate) fn on_record(
        &mut self,
        packet: &Packet<'_>,
        by_reference: Option<&[u8]>,
        shm_link: &ShmLink,
        now: Time,
        links: &Links,
    ) -> u32 {
        let Some((source, _)) = self.engine.remote().filter(|_| self.knows(shm_link)) else {
            return 0;
        };
        self.pacing.acks.on_message(true);
        let message = match by_reference {
            None => None,
            Some(bytes) => match MessageBytes::parse(shm_link, bytes) {
                None => return 0,
                message => message,
            },
        };
        self.own.meet_queue(packet);
        self.with_errand(Errand::None, message, None, links, |engine, host| {
            engine.on_packet(packet, source, now, host);
        })
    }

    /// It is a target whose packets others may have to be given (`xrc_home.rs`).
    pub(crate) fn takes_packets_alone(&self) -> bool {
        match &self.own.receives {
            Receives::Xrc(targets) => !matches!(targets.role, Role::Alone),
            Receives::Own(_) | Receives::Shared(_) => false,
        }
    }

    /// Has another hear of its events.
    pub(crate) fn listen(&self, listener: &Listener) {
        self.own.affiliation.listen(listener);
    }

    /// What it sends to a multicast group that it is attached to comes back to it.
    pub(crate) fn hears_itself(&self) -> bool {
        !self.block_self_multicast
    }

    /// The queue pair goes for good.
    pub(crate) fn leave(&mut self, links: &Links) {
        self.leave_path(links);
        self.end_epoch(false, links);
    }

    /// Takes the record of a datagram that would have been `len` bytes long; says how many completions
    /// that published.
    pub(crate) fn on_datagram(
        &mut self,
        packet: &Packet<'_>,
        addresses: Addresses,
        len: u16,
        now: Time,
        links: &Links,
    ) -> u32 {
        let Some(flow) = addresses.flow().filter(|_| self.engine.kind() == QpType::Ud) else {
            return 0;
        };
        let Addresses { source, marks, .. } = addresses;
        let from = Origin { source, flow: &flow, marks };
        self.on_packet(packet, Came { from: &from, len }, now, links, None)
    }

    /// The device that a request is for, if it is a datagram for a neighbour that was not met yet.
    #[inline]
    pub(crate) fn stranger(&mut self, work: &SendWork<'_>, links: &Links) -> Option<PeerId> {
        let SendTo::Datagram { ah, remote, .. } = work.to else {
            return None;
        };
        let near = ah.address_vector.local?;
        if near.group {
            let destination = near.addresses.destination;
            return if remote == Qpn::MULTICAST { self.absentee(destination, links) } else { None };
        }
        let peer = links.neighbour(remote, near.interface)?;
        match self.peer_cache.find(peer) {
            None => Some(peer),
            Some(_) => None,
        }
    }

    /// The shared-memory link that a request is to take, if it is a datagram for a neighbour.
    #[inline]
    fn shm_link_for<'a>(&'a self, work: &SendWork<'_>, links: &Links) -> Option<&'a Arc<ShmLink>> {
        let SendTo::Datagram { ah, remote, .. } = work.to else {
            return None;
        };
        let near = ah.address_vector.local.filter(|near| !near.group)?;
        let peer = links.neighbour(remote, near.interface)?;
        self.peer_cache.find(peer)?
    }

    /// Shared-memory links that a request is to take besides, if it is a datagram for a multicast group.
    #[inline]
    fn fan_out_for<'a>(&'a self, work: &SendWork<'_>) -> Option<&'a FanOut> {
        let SendTo::Datagram { ah, remote: Qpn::MULTICAST, .. } = work.to else {
            return None;
        };
        let near = ah.address_vector.local.filter(|near| near.group)?;
        self.peer_cache.fan_out(near.addresses.destination)
    }

    /// A neighbour that is in a multicast group and was not met yet.
    fn absentee(&mut self, group: Gid, links: &Links) -> Option<PeerId> {
        let changes = links.registry.domain_changes();
        let has_shm_link = |peer| links.has_shm_link(peer);
        if self.peer_cache.knows(group, changes, has_shm_link) {
            return None;
        }
        self.peer_cache.gather(group, changes, &links.members(group), has_shm_link)
    }

    /// Its deadline has passed ([`Pacing::on_due`]). True if an acknowledgement is late.
    pub(crate) fn on_timer(&mut self, now: Time, links: &Links) -> bool {
        let before = self.engine.counters().ack_timeout;
        self.quietly(links, |engine, host| engine.on_timer(now, host));
        self.engine.counters().ack_timeout > before
    }

    /// Emits what there is to emit.
    pub(crate) fn transmit(&mut self, now: Time, acks: Acks, links: &Links) -> Aftermath {
        self.pacing.on_transmit();
        let mut published = self.settle(None, links);
        self.report(links); // The next responder has to know all that the peer knows.
        let Self { engine, own, link, .. } = self;
        let before = engine.counters().sent_pkts;
        let mut more = false;
        if let Some(link) = link {
            let sent = link.emit(EMIT_BUDGET, links, |out| {
                let all = acks == Acks::Now || out.takes_along();
                let mut host = Surroundings::new(own, links.regions(), out);
                let mut more = engine.transmit(now, all, &mut host);
                if !all && acks == Acks::WithCompany && host.takes_along() {
                    more = engine.transmit(now, true, &mut host);
                }
                (more, host.published)
            });
            if let Some(((rest, done), packets)) = sent {
                engine.count_sent(packets);
                (more, published) = (rest, published + done);
                if more && packets == 0 {
                    engine.on_no_room(now); // Its other end may be stopped.
                }
            }
        } else {
            let (rest, done) = self.transmit_datagrams(now, links);
            (more, published) = (rest, published + done);
            published += self.quietly(links, |engine, host| {
                engine.transmit(now, acks == Acks::Now, host);
            });
        }
        if self.own.overrun {
            published += self.quietly(links, |_, _| {});
        }
        self.report(links);
        self.show(links);
        self.pacing.on_transmitted(&self.engine, before, more, published)
    }

    /// Emits datagrams: a burst for each run of requests that go the same way. True if there is more
    /// to emit.
    fn transmit_datagrams(&mut self, now: Time, links: &Links) -> (bool, u32) {
        let Self { engine, own, .. } = self;
        let (mut budget, mut published) = (EMIT_BUDGET, 0);
        while budget > 0 && engine.outstanding() > 0 {
            let head = engine.next_index() - engine.outstanding();
            let Some(next_hop) = own.sends.next_hop(own.sends.route(head)).cloned() else {
                return (false, published); // It is no datagram.
            };
            let errand = Errand::Departure { next_hop: &next_hop, next: head, sinks: false };
            if let Some(shm_link) = &next_hop.shm_link {
                let mut tx_batch = shm_link.tx_batch(budget);
                let full = !tx_batch.room();
                if shm_link.note_full(full, now.nanos()) > FULL_MAX_NANOS {
                    tx_batch.sink();
                } else if full {
                    return (true, published);
                }
                let (done, packets) = on_shm_link(tx_batch, |out| {
                    let mut host = Surroundings::new(own, links.regions(), out);
                    host.errand = errand;
                    engine.transmit(now, true, &mut host);
                    host.published
                });
                published += done;
                engine.count_sent(packets);
                if packets == 0 {
                    return (false, published); // Not in a state to send.
                }
                budget = budget.saturating_sub(usize::try_from(packets).unwrap_or(usize::MAX));
                continue;
            }
            let shm_links = next_hop.fan_out.as_deref().unwrap_or_default();
            let takes =
                |wanted| shm_links.iter().any(|shm_link| shm_link.takes(now.nanos()) == wanted);
            if takes(Takes::ItSoon) {
                return (true, published);
            }
            let sinks = takes(Takes::Nothing);
            let errand = Errand::Departure { next_hop: &next_hop, next: head, sinks };
            let most = if sinks { 1 } else { budget };
            let sent = on_udp_link(&next_hop.address_vector, most, links, |out| {
                let mut host = Surroundings::new(own, links.regions(), out);
                host.errand = errand;
                engine.transmit(now, true, &mut host);
                host.published
            });
            let Some((done, packets)) = sent.filter(|(_, packets)| *packets > 0) else {
                // Not in a state to send, or others have filled a shared-memory link meanwhile.
                return (takes(Takes::ItSoon), published);
            };
            engine.count_sent(packets);
            published += done;
            budget = budget.saturating_sub(usize::try_from(packets).unwrap_or(usize::MAX));
        }
        (engine.outstanding() > 0, published)
    }

    /// What it sends may reach another process of this host than the peer's.
    pub(crate) fn can_be_misled(&self) -> bool {
        self.link.as_ref().is_some_and(Link::can_be_misled)
    }

    /// The memory that it shares with its peer.
    #[inline]
    fn shm_link(&self) -> Option<&Arc<ShmLink>> {
        self.link.as_ref()?.shm_link()
    }

    /// Its packets are records in memory.
    #[inline]
    pub(crate) fn has_shm_link(&self) -> bool {
        self.shm_link().is_some()
    }

    pub(crate) fn path(&self) -> Option<DataPath> {
        self.link.as_ref().map(Link::path)
    }

    pub(crate) fn counters(&self) -> QpCounters {
        self.engine.counters()
    }

    /// What others are shown of it.
    pub(crate) fn row(&self) -> QpRow {
        QpRow {
            number: self.own.number,
            peer: self.engine.remote().map(|(_, peer)| peer),
            state: self.engine.state(),
            path: self.path(),
            counters: self.engine.counters(),
        }
    }

    /// Checks one request and says what the transport needs to know of it.
    #[inline(always)]
    fn check_send(&self, work: &SendWork<'_>, links: &Links) -> Result<Request, PostError> {
        let (kind, operation) = (self.engine.kind(), work.kind.operation());
        if !allowed(kind, operation) {
            return Err(PostError::Operation { kind, operation });
        }
        let brings_data = work.kind.awaits_data();
        let len = match work.data {
            SendData::Gather(sges) => {
                let (count, max) = (sges.len(), self.own.sends.sges_max());
                if count > max {
                    return Err(PostError::TooManySges { count, max });
                }
                total_len(sges).filter(|len| *len <= Request::LEN_MAX).ok_or(PostError::TooLong)?
            }
            SendData::Inline(_) if brings_data => return Err(PostError::InlineForRead),
            SendData::Inline(bytes) => {
                let (len, max) = (bytes.len(), self.own.sends.inline_max());
                if len > max {
                    return Err(PostError::InlineTooLong { len, max });
                }
                u32::try_from(len).map_err(|_| PostError::TooLong)?
            }
            SendData::Bind(bind) if bind.domain() == self.own.domain => 0,
            SendData::Bind(_) => return Err(PostError::ForeignWindow),
        };
        let binds = matches!(work.data, SendData::Bind(_));
        if binds != matches!(work.kind, SendKind::BindWindow) {
            return Err(PostError::NotABind);
        }
        if work.kind.fixed_len().is_some_and(|fixed| fixed != len) {
            return Err(PostError::AtomicLength { len });
        }
        if brings_data && !self.reads_allowed && self.engine.state() != QpState::Err {
            return Err(PostError::ReadsNotAllowed);
        }
        Ok(Request {
            kind: work.kind,
            to: self.to(work, links)?,
            len,
            signaled: work.signaled || self.signal_all,
            solicited: work.solicited,
            fence: work.fence,
        })
    }

    /// Whom a request is for, as the transport wants to know it.
    #[inline(always)]
    fn to(&self, work: &SendWork<'_>, links: &Links) -> Result<To, PostError> {
        Ok(match work.to {
            SendTo::Peer => To::Peer,
            SendTo::SharedQueue(number) => To::SharedQueue(Qpn::new(number)),
            SendTo::Datagram { ah, remote, qkey } => {
                if !ah.is_for(links, self.own.domain) {
                    return Err(PostError::ForeignAddress);
                }
                let route = self.own.sends.route(self.engine.next_index());
                To::Datagram(Datagram { route, remote, qkey })
            }
        })
    }

    /// What the transport has said against a request.
    fn refusal(&self, error: adverb_engine::RequestError) -> PostError {
        use adverb_engine::RequestError as Engine;
        match error {
            Engine::Address { kind } => PostError::Address { kind },
            Engine::Length { len, allowed: mtu } if self.engine.kind() == QpType::Ud => {
                PostError::DatagramTooLong { len, mtu }
            }
            Engine::Length { .. } => PostError::TooLong, // Others were checked before.
            Engine::Operation { kind, operation } => PostError::Operation { kind, operation },
            Engine::State(state) => PostError::NotReady { state },
            // The only one that is left.
            Engine::Full | _ => PostError::QueueFull { capacity: self.own.sends.capacity() },
        }
    }

    /// The send queue has room for so many requests. One that asked for a completion takes its slot until that is
    /// polled (IBTA Vol. 1 §10.8.5.1): a program that posts until the queue is full does not overrun its completion queue.
    #[inline]
    fn has_slots(&mut self, count: u64) -> bool {
        let (outstanding, capacity) = (self.engine.outstanding(), self.own.sends.capacity());
        let Some(free) = capacity.checked_sub(outstanding.saturating_add(count)) else {
            return false;
        };
        u64::from(self.own.unpolled) <= free || self.count_unpolled() <= free
    }

    /// Counts the completions of requests that have not been polled.
    #[cold]
    fn count_unpolled(&mut self) -> u64 {
        let number = self.own.number;
        let is_of_receive = |one: &Completion| {
            matches!(one.opcode, WcOpcode::Receive | WcOpcode::ReceiveRdmaWithImm)
        };
        let is_own = |one: &Completion| one.qp == number && !is_of_receive(one);
        self.own.unpolled = u32::try_from(self.own.send_cq.queue.count(is_own)).unwrap_or(u32::MAX);
        self.own.unpolled.into()
    }

    /// Says whether [`QpInner::post_send`] would take all of these; if not, which one it would not, and why.
    pub(crate) fn check_all(
        &mut self,
        batch: &[SendWork<'_>],
        links: &Links,
    ) -> Result<(), (usize, PostError)> {
        let state = self.engine.state();
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err((0, PostError::NotReady { state }));
        }
        for (at, work) in batch.iter().enumerate() {
            let request = self.check_send(work, links).map_err(|error| (at, error))?;
            self.engine.check(&request).map_err(|error| (at, self.refusal(error)))?;
        }
        match self.has_slots(u64::try_from(batch.len()).unwrap_or(u64::MAX)) {
            true => Ok(()),
            false => Err((0, PostError::QueueFull { capacity: self.own.sends.capacity() })),
        }
    }

    pub(crate) fn post_send(
        &mut self,
        work: &SendWork<'_>,
        links: &Links,
    ) -> Result<(), PostError> {
        let state = self.engine.state();
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::NotReady { state });
        }
        let request = self.check_send(work, links)?;
        if !self.has_slots(1) {
            return Err(PostError::QueueFull { capacity: self.own.sends.capacity() });
        }
        let index = self.engine.post(request).map_err(|error| self.refusal(error))?;
        let (shm_link, fan_out) =
            (self.shm_link_for(work, links).cloned(), self.fan_out_for(work).cloned());
        self.own.sends.put(index, work, shm_link, fan_out);
        self.pacing.company.on_post(request.len);
        Ok(())
    }

    /// Emits what was posted, now or soon.
    pub(crate) fn send_off(&mut self, links: &Links) -> Aftermath {
        if self.pacing.may_wait(&self.engine) && self.engine.state() == QpState::Rts {
            return Aftermath { more: true, ..Aftermath::default() };
        }
        let acks = if self.pacing.acks.on_answer() { Acks::Now } else { Acks::WithCompany };
        let now = if self.has_shm_link() { Time::UNKNOWN } else { links.now() };
        self.transmit(now, acks, links)
    }

    pub(crate) fn modify(
        &mut self,
        to: QpState,
        change: &Change,
        link: Option<Link>,
        links: &Links,
        forgotten: &mut impl FnMut(Side, u32),
    ) -> Result<Aftermath, ConnectError> {
        let mut attributes = change.attributes;
        let known = link.as_ref().or(self.link.as_ref());
        if let Some(known) = known.filter(|_| attributes.window_packets.is_none()) {
            let settings = self.engine.settings();
            let mtu = attributes.path_mtu.unwrap_or(settings.path_mtu);
            attributes.window_packets = Some(known.window_packets(mtu));
        }
        self.engine.may_modify(to, &attributes)?;
        if to == QpState::Reset {
            self.forget_sends(forgotten);
        }
        if to == QpState::Reset || attributes.remote_gid.is_some() {
            self.leave_path(links);
        }
        if to == QpState::Rts && self.engine.state() == QpState::Rtr {
            attributes.window_first = self.join_path(links);
        }
        if let Some(link) = &link {
            self.engine.set_link(link.capabilities());
        }
        // What neighbours are shown holds the rights, too, which may change while the state does not.
        self.shown.0 = QpState::Reset;
        let mut result = Ok(());
        let published = self.quietly(links, |engine, host| {
            result = engine.modify(to, &attributes, host);
        });
        result?;
        match to {
            QpState::Reset | QpState::Rtr => self.end_epoch(false, links),
            QpState::Err => self.end_epoch(true, links),
            QpState::Init | QpState::Rts | QpState::Sqd | QpState::Sqe => {}
        }
        if to == QpState::Reset {
            match &mut self.own.receives {
                Receives::Own(ring) => ring.clear(|buffer| forgotten(Side::Receive, buffer)),
                Receives::Shared(drawn) => drawn.put_back(),
                Receives::Xrc(targets) => targets.put_back(),
            }
            (self.link, self.gid_index) = (None, 0);
            self.marks = Marks::default();
            self.own.peer = None;
            self.pacing.reset();
        }
        if let Some(link) = link {
            self.pacing.set_ack_cost(link.ack_cost());
            (self.link, self.gid_index) = (Some(link), change.gid_index);
            self.marks = change.marks;
            self.own.peer = self.engine.remote().map(|(_, qp)| qp);
        }
        self.reads_allowed = self.engine.settings().max_rd_atomic > 0;
        let aftermath = match to {
            QpState::Rts => self.transmit(links.now(), Acks::WithCompany, links),
            QpState::Reset
            | QpState::Init
            | QpState::Rtr
            | QpState::Sqd
            | QpState::Sqe
            | QpState::Err => Aftermath::default(),
        };
        Ok(Aftermath { published: aftermath.published + published, ..aftermath })
    }

    /// The peer to which packets go that may get lost, by a window.
    pub(crate) fn path_to(&self) -> Option<Gid> {
        let by_packets = self.link.as_ref().is_some_and(|link| link.path() == DataPath::Udp);
        let remote = self.engine.settings().remote_gid;
        Some(remote).filter(|_| by_packets && self.engine.kind().is_reliable())
    }

    /// Joins those that are connected to its peer; returns the window to begin with, if something is known.
    fn join_path(&mut self, links: &Links) -> Option<u32> {
        self.leave_path(links);
        let peer = self.path_to()?;
        self.joined = true;
        links.paths(|paths| paths.join(peer, self.own.number, links.now()))
    }

    fn leave_path(&mut self, links: &Links) {
        if std::mem::take(&mut self.joined) {
            let peer = self.engine.settings().remote_gid;
            links.paths(|paths| paths.leave(peer, self.engine.window(), links.now()));
        }
    }

    /// Forgets posted requests, of which no completion will tell.
    fn forget_sends(&mut self, forgotten: &mut impl FnMut(Side, u32)) {
        let end = self.engine.next_index();
        for index in end - self.engine.outstanding()..end {
            if let Some(buffer) = self.own.sends.get(index).buffer {
                forgotten(Side::Send, buffer.get());
            }
        }
        self.own.sends.clear();
    }

    pub(crate) fn post_receive(&mut self, work: &ReceiveWork<'_>) -> Result<(), PostError> {
        let state = self.engine.state();
        if state == QpState::Reset {
            return Err(PostError::NotReady { state });
        }
        let kind = self.engine.kind();
        if matches!(kind, QpType::XrcInitiator | QpType::XrcTarget) {
            return Err(PostError::NoReceives { kind });
        }
        let Receives::Own(receives) = &mut self.own.receives else {
            return Err(PostError::SharedReceives);
        };
        let (count, max) = (work.sges.len(), receives.sges_max());
        if count > max {
            return Err(PostError::TooManySges { count, max });
        }
        let len = total_len(work.sges).ok_or(PostError::TooLong)?;
        if receives.room() == 0 {
            return Err(PostError::QueueFull { capacity: receives.capacity() });
        }
        receives.push(work, len);
        Ok(())
    }
}
