//! The network: nodes, links, and the events between them in virtual time.

use crate::bottleneck::{Bottleneck, Passage, Switch};
use crate::link::{Datagram, Fault, Line};
use crate::memory::{Memory, Target};
use crate::node::{Around, Node, Work};
use crate::random::Random;
use crate::receives::Receives;
use crate::setup::Setup;
use crate::trace::Trace;
use adverb_engine::{
    AttributeSet, Attributes, Capabilities, Datagram as To, Gid, Identification, ModifyError,
    Partition, Qp, QpOptions, QpState, QpType, RequestError, Route, Time, admit, transition,
};
use adverb_wire::{Flow, Grh, Marks, Packet, Psn, Qkey, Qpn, ROCE_PORT, Rkey};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;

/// A node of a [`Net`].
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct NodeId(usize);

/// One direction between two nodes of a [`Net`]: the one that leads away from a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LinkId(NodeId);

/// The first node of the first pair.
pub const A: NodeId = NodeId(0);
/// The second node of the first pair.
pub const B: NodeId = NodeId(1);
/// The way from [`A`] to [`B`].
pub const A_TO_B: LinkId = LinkId(A);
/// The way from [`B`] to [`A`].
pub const B_TO_A: LinkId = LinkId(B);

/// Events that one call may take: enough for any test, few enough to end.
const EVENTS_MAX: u64 = 3_000_000;

/// Virtual time did not come to rest.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stuck {
    /// When patience ended.
    pub at: Time,
    /// The last packets on the links.
    pub trace: String,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, trace } = self;
        write!(f, "still busy {} ns after the start:\n{trace}", at.nanos())
    }
}

impl core::error::Error for Stuck {}

/// A simulated network.
#[derive(Debug)]
pub struct Net {
    now: Time,
    random: Random,
    nodes: Vec<Station>,
    events: BTreeMap<(Time, u64), Event>,
    /// Number of the next event: events of the same moment happen in the order of their making.
    next_event: u64,
    trace: Trace,
    switches: Vec<Switch>,
    /// What goes over the links is written down.
    traced: bool,
    /// Damaged datagrams that a checksum of 16 bits let pass; the network withdraws them.
    undetected: u64,
}

/// A node and the way out of it.
#[derive(Debug)]
struct Station {
    node: Node,
    line: Line,
    peer: NodeId,
    /// The bottleneck that the line leads through, if there is one.
    switch: Option<usize>,
    first_psn: Psn,
    ack_delay_ns: u64,
    /// A moment for emitting acknowledgements is planned.
    acks_planned: bool,
    /// There is more to emit than there was room for: the rest waits until the link is free.
    waits_for_link: bool,
    /// Until then its process is not scheduled.
    stopped_until: Time,
}

#[derive(Debug)]
enum Event {
    Arrival { to: NodeId, datagram: Datagram },
    Entry { switch: usize, to: NodeId, datagram: Datagram },
    Acks { node: NodeId },
    LinkFree { node: NodeId },
}

impl Net {
    /// An empty network.
    pub fn new(seed: u64) -> Self {
        Self {
            now: Time::ZERO,
            random: Random::new(seed),
            nodes: Vec::new(),
            events: BTreeMap::new(),
            next_event: 0,
            trace: Trace::default(),
            switches: Vec::new(),
            traced: true,
            undetected: 0,
        }
    }

    /// A network of [`A`] and [`B`].
    pub fn pair(seed: u64, setup: &Setup) -> Self {
        let mut net = Self::new(seed);
        net.add_pair(setup);
        net
    }

    /// Adds two nodes, connected and ready to send.
    ///
    /// # Panics
    ///
    /// If there are more nodes than addresses.
    pub fn add_pair(&mut self, setup: &Setup) -> (NodeId, NodeId) {
        let (a, b) = (NodeId(self.nodes.len()), NodeId(self.nodes.len() + 1));
        let [link_a, link_b] = setup.links.clone();
        let [psn_a, psn_b] = setup.first_psns;
        for (me, peer, link, first, expected) in
            [(a, b, link_a, psn_a, psn_b), (b, a, link_b, psn_b, psn_a)]
        {
            let line = Line::new(link, self.random.fork());
            let node = self.new_node(setup, me, peer, first, expected);
            let ack_delay_ns = setup.ack_delay_ns;
            self.nodes.push(Station {
                node,
                line,
                peer,
                switch: None,
                first_psn: first,
                ack_delay_ns,
                acks_planned: false,
                waits_for_link: false,
                stopped_until: Time::ZERO,
            });
        }
        (a, b)
    }

    fn new_node(
        &mut self,
        setup: &Setup,
        me: NodeId,
        peer: NodeId,
        first_psn: Psn,
        expected_psn: Psn,
    ) -> Node {
        let [first, second] = setup.kinds;
        let kind = if me < peer { first } else { second };
        let options = QpOptions {
            number: number(me),
            kind,
            send_capacity: setup.send_capacity,
            shared_receives: setup.shared_receives,
            port_mtu: setup.path_mtu,
        };
        let all = Attributes {
            partition: Some(Partition::DEFAULT),
            port: Some(1),
            access: Some(setup.qp_access),
            qkey: Some(setup.qkey),
            remote_gid: Some(gid(peer, setup.v6)),
            remote: Some(number(peer)),
            expected_psn: Some(expected_psn),
            path_mtu: Some(setup.path_mtu),
            max_dest_rd_atomic: Some(setup.max_dest_rd_atomic),
            min_rnr_timer: Some(setup.rnr_timer),
            first_psn: Some(first_psn),
            timeout: Some(setup.timeout),
            retry_count: Some(setup.retry_count),
            rnr_retry: Some(setup.rnr_retry),
            max_rd_atomic: Some(setup.max_rd_atomic),
            window_packets: Some(setup.window_packets),
            window_first: setup.window_first,
            ..Attributes::default()
        };
        let mut memory = Memory::default();
        let low = u32::from(host_number(me));
        let va = 0x7000_0000_0000 + (u64::from(low) << 32);
        memory.register(Rkey(0x100 + low), va, setup.region_len, setup.region_access);
        let mut around = Around {
            gid: gid(me, setup.v6),
            flow: flow(me, peer, setup.v6),
            id: u16::try_from(self.random.below(1 << 16)).unwrap_or(0),
            memory,
            requests: BTreeMap::new(),
            receives: Receives::default(),
            events: Vec::new(),
            routes: Vec::new(),
            grh: [0; Grh::LEN],
            sent: Vec::new(),
            received: Vec::new(),
            outbox: Vec::new(),
            room: setup.room,
            atomics: 0,
            refused_datagrams: 0,
        };
        let mut qp = Qp::new(options);
        let [first, second] = setup.keeps_early;
        let (trains, keeps_early) = (setup.trains, if me < peer { first } else { second });
        qp.set_link(Capabilities { trains, keeps_early, ..Capabilities::PACKETS });
        let states = [QpState::Init, QpState::Rtr, QpState::Rts];
        let last = if setup.in_init { 1 } else { states.len() };
        for to in states.into_iter().take(last) {
            let attributes = required(kind, qp.state(), to, &all);
            qp.modify(to, &attributes, &mut around).expect("the states follow one another");
        }
        Node { qp, around, all }
    }

    fn station(&self, id: NodeId) -> &Station {
        self.nodes.get(id.0).expect("the node exists")
    }

    fn station_mut(&mut self, id: NodeId) -> &mut Station {
        self.nodes.get_mut(id.0).expect("the node exists")
    }

    /// A node.
    ///
    /// # Panics
    ///
    /// If it belongs to another network.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.station(id).node
    }

    /// A node, to change its memory.
    ///
    /// # Panics
    ///
    /// If it belongs to another network.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.station_mut(id).node
    }

    /// Where a region of a node starts, as its peer names it.
    pub fn region(&self, id: NodeId, region: usize) -> Target {
        let region = self.node(id).region(region);
        Target { rkey: region.rkey, va: region.va }
    }

    /// What the time is.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Makes something happen to certain datagrams of a link, counted from 1.
    pub fn script(&mut self, link: LinkId, fault: Fault, which: RangeInclusive<u64>) {
        self.station_mut(link.0).line.script(which, fault);
    }

    /// Changes how a link treats datagrams from now on.
    pub fn link_mut(&mut self, link: LinkId) -> &mut crate::Link {
        &mut self.station_mut(link.0).line.link
    }

    /// Posts a request and returns its index.
    ///
    /// # Panics
    ///
    /// If the send queue is full: see [`Net::try_post`].
    pub fn post(&mut self, id: NodeId, work: Work) -> u64 {
        self.try_post(id, work).expect("the send queue has room")
    }

    /// Posts a request and returns its index.
    ///
    /// # Errors
    ///
    /// [`RequestError`]; nothing was posted then.
    pub fn try_post(&mut self, id: NodeId, work: Work) -> Result<u64, RequestError> {
        let Node { qp, around, .. } = self.node_mut(id);
        let index = qp.post(work.request)?;
        around.requests.insert(index, work);
        self.transmit(id);
        Ok(index)
    }

    /// Posts a receive of `len` bytes and returns its name.
    pub fn post_receive(&mut self, id: NodeId, len: u32) -> u32 {
        self.post_receive_to(id, None, len, usize::MAX)
    }

    /// Posts a receive of `len` bytes that no region covers from `offset` on.
    pub fn post_unwritable_receive(&mut self, id: NodeId, len: u32, offset: usize) -> u32 {
        self.post_receive_to(id, None, len, offset)
    }

    /// Posts a receive of `len` bytes to a shared queue for XRC, which exists from then on.
    pub fn post_srq_receive(&mut self, id: NodeId, srq: Qpn, len: u32) -> u32 {
        self.post_receive_to(id, Some(srq), len, usize::MAX)
    }

    fn post_receive_to(&mut self, id: NodeId, srq: Option<Qpn>, len: u32, writable: usize) -> u32 {
        let token = self.node(id).around.receives.post(srq, len, writable);
        self.transmit(id);
        token
    }

    /// From now on, two nodes take their receives from the same queue.
    pub fn share_receives(&mut self, id: NodeId, with: NodeId) {
        self.node_mut(id).around.receives = self.node(with).around.receives.clone();
    }

    /// Modifies a node's queue pair.
    ///
    /// # Errors
    ///
    /// [`ModifyError`]; nothing has changed then.
    pub fn modify(
        &mut self,
        id: NodeId,
        to: QpState,
        attributes: &Attributes,
    ) -> Result<(), ModifyError> {
        let Node { qp, around, .. } = self.node_mut(id);
        qp.modify(to, attributes, around)?;
        if to == QpState::Reset {
            around.receives.clear();
        }
        self.transmit(id);
        Ok(())
    }

    /// Modifies a node's queue pair with the attributes that its setup has for the transition.
    ///
    /// # Panics
    ///
    /// If there is no such transition.
    pub fn go(&mut self, id: NodeId, to: QpState) {
        let Node { qp, all, .. } = self.node(id);
        let attributes = required(qp.kind(), qp.state(), to, all);
        self.modify(id, to, &attributes).expect("a transition from the table");
    }

    /// Where a node's peer is, as a datagram names it, with the key of the setup.
    pub fn datagram(&self, id: NodeId, qkey: Qkey) -> To {
        let peer = self.station(id).peer;
        To { route: Route(u32::from(host_number(peer))), remote: number(peer), qkey }
    }

    /// Puts a node's queue pair into ERR.
    pub fn to_err(&mut self, id: NodeId) {
        let Node { qp, around, .. } = self.node_mut(id);
        qp.to_err(around);
        self.transmit(id);
    }

    /// Puts a node's queue pair into ERR as a failure of its surroundings would.
    pub fn abort(&mut self, id: NodeId) {
        let Node { qp, around, .. } = self.node_mut(id);
        qp.abort(around);
        self.transmit(id);
    }

    /// Hands a node a datagram that seems to come from its peer.
    pub fn inject(&mut self, to: NodeId, bytes: Vec<u8>) {
        let datagram = Datagram { bytes, damaged: false, marked: false };
        self.plan(self.now, Event::Arrival { to, datagram });
    }

    /// The way by which datagrams come to a node.
    pub fn flow_to(&self, to: NodeId) -> Flow {
        self.node(self.station(to).peer).around.flow
    }

    /// Leads links through a bottleneck, which all of them share; returns its number.
    pub fn join(&mut self, links: &[LinkId], bottleneck: Bottleneck) -> usize {
        let switch = self.switches.len();
        self.switches.push(Switch::new(bottleneck));
        for link in links {
            self.station_mut(link.0).switch = Some(switch);
        }
        switch
    }

    /// What the bottleneck with this number has done.
    ///
    /// # Panics
    ///
    /// If there is no such bottleneck.
    pub fn passage(&self, bottleneck: usize) -> Passage {
        self.switches.get(bottleneck).expect("the bottleneck exists").passage
    }

    /// Writes nothing down any more of what goes over the links: for long runs.
    pub fn stop_tracing(&mut self) {
        self.traced = false;
    }

    /// Stops a node until `end`: what arrives waits, in order, and so do its timers.
    pub fn stop(&mut self, id: NodeId, end: Time) {
        self.station_mut(id).stopped_until = end;
    }

    /// The way that leads away from a node.
    pub fn link_from(&self, id: NodeId) -> LinkId {
        LinkId(id)
    }

    /// Lets time pass until no node has anything to do, or wait for.
    ///
    /// # Errors
    ///
    /// [`Stuck`] after an hour of virtual time, or very many events.
    pub fn drive(&mut self) -> Result<(), Stuck> {
        const HOUR_NS: u64 = 3_600_000_000_000;
        let end = self.now.plus_nanos(HOUR_NS);
        let mut left = EVENTS_MAX;
        while let Some(next) = self.next_moment() {
            if next > end || left == 0 {
                let log = self.log();
                let skipped = log.lines().count().saturating_sub(60);
                let lines: Vec<&str> = log.lines().skip(skipped).collect();
                return Err(Stuck { at: self.now, trace: lines.join("\n") });
            }
            left -= self.step(next).min(left);
        }
        Ok(())
    }

    /// Lets time pass until `end`, whatever is left to do then.
    pub fn drive_until(&mut self, end: Time) {
        while let Some(next) = self.next_moment().filter(|&next| next <= end) {
            self.step(next);
        }
        self.now = self.now.max(end);
    }

    /// No node has anything to do, or wait for.
    pub fn is_idle(&self) -> bool {
        self.next_moment().is_none()
    }

    /// When something happens next.
    fn next_moment(&self) -> Option<Time> {
        let event = self.events.keys().next().map(|&(at, _)| at);
        let deadlines = self.nodes.iter().filter_map(|station| {
            let deadline = station.node.qp.next_deadline()?;
            Some(deadline.max(station.stopped_until))
        });
        deadlines.chain(event).min().map(|next| next.max(self.now))
    }

    /// Lets everything happen that is due at `now`; returns how much that was.
    fn step(&mut self, now: Time) -> u64 {
        self.now = now;
        let mut happened = 1;
        for id in (0..self.nodes.len()).map(NodeId) {
            if self.station(id).stopped_until > now {
                continue;
            }
            let Node { qp, around, .. } = self.node_mut(id);
            if qp.next_deadline().is_some_and(|deadline| deadline <= now) {
                qp.on_timer(now, around);
                self.transmit(id);
            }
        }
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= now) {
            happened += 1;
            match entry.remove() {
                Event::Arrival { to, datagram } if self.station(to).stopped_until > now => {
                    let at = self.station(to).stopped_until;
                    self.plan(at, Event::Arrival { to, datagram });
                }
                Event::Arrival { to, datagram } => self.arrive(to, &datagram),
                Event::Entry { switch, to, mut datagram } => {
                    let switch = self.switches.get_mut(switch).expect("it was joined");
                    if let Some(at) = switch.carry(&mut datagram, now) {
                        self.plan(at, Event::Arrival { to, datagram });
                    }
                }
                Event::Acks { node } => {
                    self.station_mut(node).acks_planned = false;
                    self.emit(node, true);
                }
                Event::LinkFree { node } => {
                    self.station_mut(node).waits_for_link = false;
                    self.emit(node, true);
                }
            }
        }
        happened
    }

    fn plan(&mut self, at: Time, event: Event) {
        self.events.insert((at, self.next_event), event);
        self.next_event += 1;
    }

    fn arrive(&mut self, to: NodeId, datagram: &Datagram) {
        let (now, flow, peer) = (self.now, self.flow_to(to), self.station(to).peer);
        let source = self.node(peer).around.gid;
        let guess = self.node(peer).around.id;
        let Node { qp, around, .. } = self.node_mut(to);
        let len = u16::try_from(datagram.bytes.len()).unwrap_or(u16::MAX);
        around.grh = Grh::emit(&flow, Marks::USUAL, len);
        let parsed = Packet::parse(&datagram.bytes);
        match admit(&parsed, &datagram.bytes, &flow, Identification::Guessed(guess)) {
            // An identification that is not known leaves 16 check bits: one damaged datagram in
            // 65536 looks whole. The transport cannot know better.
            Ok(_) if datagram.damaged => self.undetected += 1,
            Ok(packet) if is_for(packet.headers.bth.dest_qp, qp.number()) => {
                if datagram.marked {
                    qp.on_mark(packet, now);
                }
                qp.on_packet(packet, source, now, around);
                self.transmit(to);
            }
            Ok(_) | Err(_) => around.refused_datagrams += 1,
        }
    }

    /// Lets a node emit what it has to; acknowledgements perhaps later.
    fn transmit(&mut self, id: NodeId) {
        let delay = self.station(id).ack_delay_ns;
        self.emit(id, delay == 0);
        let owes = self.node(id).qp.owes_ack();
        if owes && !self.station(id).acks_planned {
            self.station_mut(id).acks_planned = true;
            self.plan(self.now.plus_nanos(delay), Event::Acks { node: id });
        }
    }

    /// Lets a node emit as much as it has room for, unless it waits for the link; plans the rest.
    fn emit(&mut self, id: NodeId, acks: bool) {
        let now = self.now;
        let station = self.station_mut(id);
        if station.waits_for_link {
            return;
        }
        let Node { qp, around, .. } = &mut station.node;
        let more = qp.transmit(now, acks, around);
        let outbox = core::mem::take(&mut around.outbox);
        assert!(!more || !outbox.is_empty(), "what is more to emit is emitted");
        for (headers, bytes) in outbox {
            self.carry(id, headers, bytes);
        }
        if more {
            let station = self.station_mut(id);
            station.waits_for_link = true;
            let free_at = station.line.free_at;
            self.plan(free_at, Event::LinkFree { node: id });
        }
    }

    fn carry(&mut self, from: NodeId, headers: adverb_wire::Headers, bytes: Vec<u8>) {
        let station = self.station(from);
        let to = station.peer;
        let base = match headers.bth.opcode.operation().is_request() {
            true => station.first_psn,
            false => self.station(to).first_psn,
        };
        let (now, len) = (self.now, bytes.len());
        let (fault, arrivals) = self.station_mut(from).line.carry(bytes, now);
        if self.traced {
            self.trace.record(now, LinkId(from), headers, base, len, fault);
        }
        let switch = self.station(from).switch;
        for (at, datagram) in arrivals {
            let event = match switch {
                Some(switch) => Event::Entry { switch, to, datagram },
                None => Event::Arrival { to, datagram },
            };
            self.plan(at, event);
        }
    }

    /// What went over a link, in short: requests by their number from 1, answers by a letter and
    /// the number of the request packet they name.
    ///
    /// | sign | means |
    /// |---|---|
    /// | `A3` | everything up to 3 is acknowledged |
    /// | `D3` | data of a READ or an atomic |
    /// | `N3` | 3 is missing |
    /// | `R3` | there is no receive for 3 |
    /// | `E3` | 3 is refused for good |
    /// | <code>\|</code> | the requester went back |
    /// | `x` `c` `d` `~` | dropped, corrupted, duplicated, delayed |
    pub fn trace(&self, link: LinkId) -> String {
        self.trace.short(link)
    }

    /// What went over all links, one line a packet.
    pub fn log(&self) -> String {
        self.trace.long()
    }

    /// Datagrams that were given to the links.
    pub fn packets(&self) -> usize {
        self.trace.len()
    }

    /// Damaged datagrams whose damage could not be noticed, and that the network withdrew.
    pub fn undetected(&self) -> u64 {
        self.undetected
    }
}

/// Last byte of a node's address.
fn host_number(id: NodeId) -> u8 {
    u8::try_from(id.0 + 1).expect("a network has at most 255 nodes")
}

fn number(id: NodeId) -> Qpn {
    Qpn::new(0x10 + u32::from(host_number(id)))
}

fn v4(id: NodeId) -> [u8; 4] {
    [10, 0, 0, host_number(id)]
}

fn v6(id: NodeId) -> [u8; 16] {
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host_number(id)]
}

fn gid(id: NodeId, is_v6: bool) -> Gid {
    if is_v6 { Gid(v6(id)) } else { Gid::from_v4(v4(id)) }
}

fn flow(from: NodeId, to: NodeId, is_v6: bool) -> Flow {
    const SOURCE_PORT: u16 = 0xc012;
    if is_v6 {
        Flow::v6(v6(from), v6(to), SOURCE_PORT, ROCE_PORT)
    } else {
        Flow::v4(v4(from), v4(to), SOURCE_PORT, ROCE_PORT)
    }
}

/// A packet with this destination is for the queue pair with this number; all are in the one
/// multicast group that there is.
fn is_for(destination: Qpn, number: Qpn) -> bool {
    destination == number || destination == Qpn::MULTICAST
}

/// The attributes that a transition requires, out of all.
fn required(kind: QpType, from: QpState, to: QpState, all: &Attributes) -> Attributes {
    let rule = transition(kind, from, to).expect("a transition from the table");
    let has = |set: AttributeSet| rule.required.contains(set);
    Attributes {
        partition: all.partition.filter(|_| has(AttributeSet::PKEY)),
        port: all.port.filter(|_| has(AttributeSet::PORT)),
        access: all.access.filter(|_| has(AttributeSet::ACCESS)),
        qkey: all.qkey.filter(|_| has(AttributeSet::QKEY)),
        remote_gid: all.remote_gid.filter(|_| has(AttributeSet::ADDRESS)),
        remote: all.remote.filter(|_| has(AttributeSet::REMOTE)),
        expected_psn: all.expected_psn.filter(|_| has(AttributeSet::EXPECTED_PSN)),
        path_mtu: all.path_mtu.filter(|_| has(AttributeSet::PATH_MTU)),
        max_dest_rd_atomic: all
            .max_dest_rd_atomic
            .filter(|_| has(AttributeSet::MAX_DEST_RD_ATOMIC)),
        min_rnr_timer: all.min_rnr_timer.filter(|_| has(AttributeSet::MIN_RNR_TIMER)),
        first_psn: all.first_psn.filter(|_| has(AttributeSet::FIRST_PSN)),
        timeout: all.timeout.filter(|_| has(AttributeSet::TIMEOUT)),
        retry_count: all.retry_count.filter(|_| has(AttributeSet::RETRY_COUNT)),
        rnr_retry: all.rnr_retry.filter(|_| has(AttributeSet::RNR_RETRY)),
        max_rd_atomic: all.max_rd_atomic.filter(|_| has(AttributeSet::MAX_RD_ATOMIC)),
        window_packets: all.window_packets,
        window_first: all.window_first,
        ..Attributes::default()
    }
}
