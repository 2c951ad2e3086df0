//! Roles of a queue pair in an XRC domain of several processes: home of a target, or proxy of another process's.
//!
//! `xrc_home.rs` decides, `control_message.rs` says how it is written, and `progress/xrc_proxies.rs` carries it from
//! and to the relay socket.

use super::{QpCap, QpConfig, QpInner};
use crate::link::Links;
use crate::link::address_vector::AddressVector;
use crate::link::errors::ConnectError;
use crate::link::kind::Link;
use crate::link::udp::endpoint::Endpoint;
use crate::objects::cq::{CompletionQueue, CqConfig};
use crate::objects::host::{Came, Errand, Receives};
use crate::objects::xrc::{Role, Xrcd};
use crate::objects::xrc_home::{Head, Own, Parked, Step, XrcHome};
use crate::objects::xrc_proxy::{Begin, XrcProxy};
use crate::registry::Member;
use crate::registry::control_message::{
    Condition, ControlMessage, Delegation, Dismissal, Report, Subject, TargetAttributes, Task,
};
use crate::registry::relay::Passed;
use adverb_engine::{Acks, Aftermath, Attributes, Gid, Partition, QpState, QpType, Time};
use adverb_wire::{Operation, Packet};
use std::sync::Arc;

/// Outcome of a packet to a target.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Directed {
    /// It was served here, and published so many completions.
    Served(u32),
    /// Another process has it, or none.
    Elsewhere,
    /// It waits.
    Parked,
}

/// State of the parked packets.
#[derive(Debug)]
pub(crate) enum Waiters {
    /// There are none.
    None,
    /// Their turn has not come.
    Waiting,
    /// Their turn has come.
    Ready(Parked),
}

impl QpInner {
    fn home_mut(&mut self) -> Option<&mut XrcHome> {
        match &mut self.own.receives {
            Receives::Xrc(targets) => targets.home_mut(),
            Receives::Own(_) | Receives::Shared(_) => None,
        }
    }

    fn proxy_mut(&mut self) -> Option<&mut XrcProxy> {
        match &mut self.own.receives {
            Receives::Xrc(targets) => targets.proxy_mut(),
            Receives::Own(_) | Receives::Shared(_) => None,
        }
    }

    /// State of the target's own responder.
    fn own_part(&self) -> Option<Own> {
        let standing = self.engine.standing()?;
        let (mid_message, owes_data) = (self.engine.is_mid_message(), self.engine.owes_data());
        Some(Own { standing, mid_message, owes_data })
    }

    /// Takes a packet that may be for a queue of another process.
    pub(crate) fn direct(
        &mut self,
        packet: &Packet<'_>,
        came: Came<'_>,
        passed: &Passed<'_>,
        now: Time,
        links: &Links,
    ) -> Directed {
        let registry = &links.registry;
        let (Some(home), Some(xrceth)) = (self.home_mut(), packet.headers.xrceth) else {
            return Directed::Served(self.on_packet(packet, came, now, links, None));
        };
        let owner = home.owner(xrceth.srqn, registry);
        if owner.is_none() && home.is_at_rest() {
            return Directed::Served(self.on_packet(packet, came, now, links, None));
        }
        let mut admitted = false;
        self.quietly(links, |engine, host| admitted = engine.admit(packet, came.from.source, host));
        let operation = packet.headers.bth.opcode.operation();
        if !admitted || !operation.is_request() {
            return Directed::Elsewhere;
        }
        let psn = packet.headers.bth.psn;
        let at_work = self.home_mut().and_then(|home| home.proxy());
        let owner = owner.filter(|owner| at_work == Some(*owner) || registry.lives(*owner));
        let late = self.home_mut().is_some_and(|home| home.is_late(psn));
        if at_work.is_some_and(|proxy| late && !registry.lives(proxy)) {
            self.replace_dead_proxy(links);
        }
        if owner.is_some() && self.engine.owes_data() {
            // No other process's answers may overtake ours.
            self.transmit(now, Acks::Now, links);
        }
        let head = Head {
            psn,
            span: self.engine.span(packet),
            is_end: operation.is_end(),
            brings_data: matches!(
                operation,
                Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd
            ),
        };
        let Some(own) = self.own_part() else {
            return Directed::Elsewhere;
        };
        let step = self.home_mut().map_or(Step::Drop, |home| {
            let step = home.on_request(head, owner, own);
            if step == Step::Park {
                home.park(head, passed);
            }
            step
        });
        match step {
            Step::Serve => Directed::Served(self.serve_admitted(packet, came, now, links)),
            Step::Resume(standing) => {
                self.quietly(links, |engine, host| engine.resume(standing, host));
                Directed::Served(self.serve_admitted(packet, came, now, links))
            }
            Step::Delegate(member) => self.delegate(member, Task::Serve, Some(*passed), links),
            Step::Again(member) => self.delegate(member, Task::Again, Some(*passed), links),
            Step::Park => Directed::Parked,
            Step::Drop => Directed::Elsewhere,
        }
    }

    fn serve_admitted(
        &mut self,
        packet: &Packet<'_>,
        came: Came<'_>,
        now: Time,
        links: &Links,
    ) -> u32 {
        self.own.meet_queue(packet);
        let errand = Errand::Arrival(came);
        self.with_errand(errand, None, None, links, |engine, host| {
            engine.on_admitted(packet, now, host);
        })
    }

    /// The proxy at work has gone: goes on from what it has reported.
    fn replace_dead_proxy(&mut self, links: &Links) {
        if let Some(standing) = self.home_mut().and_then(XrcHome::on_death) {
            self.quietly(links, |engine, host| engine.resume(standing, host));
        }
    }

    /// Writes to another process.
    fn delegate(
        &mut self,
        member: Member,
        task: Task,
        passed: Option<Passed<'_>>,
        links: &Links,
    ) -> Directed {
        let (target, settings, marks) = (self.own.number, *self.engine.settings(), self.marks);
        let own = self.engine.standing();
        let from = links.registry.me();
        if let Some(home) = self.home_mut()
            && let Some(known) = home.known().or(own)
        {
            let subject = Subject { from, target, life: home.life() };
            let attributes = TargetAttributes {
                peer: settings.remote,
                path_mtu: settings.path_mtu,
                pkey: settings.partition.pkey,
                access: settings.access,
                min_rnr_timer: settings.min_rnr_timer,
                max_dest_rd_atomic: settings.max_dest_rd_atomic,
                marks,
            };
            let (epoch, domain) = (home.epoch(), home.name());
            let delegation = Delegation { subject, epoch, task, known, domain, attributes };
            links.send_control_message(member, &ControlMessage::Delegation(delegation), passed);
        }
        Directed::Elsewhere
    }

    /// Looks after packets that are parked.
    pub(crate) fn look_after_parked(&mut self, now: Time, links: &Links) -> Waiters {
        let Some(home) = self.home_mut().filter(|home| home.has_parked()) else {
            return Waiters::None;
        };
        if let Some(proxy) = home.proxy()
            && home.asks(now)
        {
            match links.registry.lives(proxy) {
                true => _ = self.delegate(proxy, Task::Report, None, links),
                false => self.replace_dead_proxy(links),
            }
        }
        if self.engine.owes_data() {
            self.transmit(now, Acks::Now, links);
        }
        let Some(own) = self.own_part() else {
            return Waiters::None;
        };
        match self.home_mut() {
            Some(home) if home.has_parked() => {
                home.unpark(own).map_or(Waiters::Waiting, Waiters::Ready)
            }
            Some(_) | None => Waiters::None,
        }
    }

    /// A proxy reports. What it is to be told, if anything.
    pub(crate) fn on_report(&mut self, report: &Report, links: &Links) -> Option<Dismissal> {
        let Report { subject, epoch, standing, condition } = *report;
        let (from, target) = (subject.from, subject.target);
        let dismissal = |life| {
            let subject = Subject { from: links.registry.me(), target, life };
            Some(Dismissal { subject, flush: false })
        };
        let Some(home) = self.home_mut().filter(|home| home.life() == subject.life) else {
            return dismissal(subject.life);
        };
        match condition {
            Condition::Busy | Condition::Idle => {
                home.on_report(from, epoch, standing, condition == Condition::Idle);
                None
            }
            Condition::Gone => {
                if home.proxy() == Some(from) && home.epoch() == epoch {
                    self.replace_dead_proxy(links);
                }
                None
            }
            Condition::Refused(event) => {
                if !home.on_report(from, epoch, standing, true) {
                    return None;
                }
                home.begin();
                self.quietly(links, |engine, host| engine.on_refused_elsewhere(event, host));
                dismissal(subject.life)
            }
        }
    }

    /// The target was reset or reconnected: its proxy goes, with its unfinished work.
    pub(crate) fn end_epoch(&mut self, flush: bool, links: &Links) {
        let target = self.own.number;
        if let Some(home) = self.home_mut() {
            let (proxy, life) = (home.proxy(), home.life());
            home.begin();
            if let Some(proxy) = proxy {
                let subject = Subject { from: links.registry.me(), target, life };
                links.tell(proxy, ControlMessage::Dismissal(Dismissal { subject, flush }));
            }
        }
    }
}

/// As a proxy.
impl QpInner {
    /// A proxy of the target that a delegation is about, whose peer is at `remote`.
    pub(crate) fn proxy(
        delegation: &Delegation,
        domain: &Xrcd,
        endpoint: Arc<Endpoint>,
        remote: Gid,
        links: &Links,
    ) -> Result<Self, ConnectError> {
        let Delegation { subject, known, attributes, .. } = *delegation;
        let config = CqConfig { capacity: 1, ..CqConfig::default() };
        let cq = CompletionQueue::new(&config, &links.counters);
        let config = QpConfig {
            domain: 0,
            kind: QpType::XrcTarget,
            send_cq: cq.clone(),
            recv_cq: cq,
            srq: None,
            xrcd: Some(domain.clone()),
            events: None,
            context: 0,
            cap: QpCap {
                max_send_wr: 1,
                max_recv_wr: 0,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            signal_all: false,
            block_self_multicast: false,
        };
        let mut proxy = Self::new(subject.target, &config, links.device.active_mtu());
        if let Receives::Xrc(targets) = &mut proxy.own.receives {
            targets.role = Role::XrcProxy(Box::new(XrcProxy::new(delegation)));
        }
        let init = Attributes {
            partition: Some(Partition { index: 0, pkey: attributes.pkey }),
            port: Some(1),
            access: Some(attributes.access),
            ..Attributes::default()
        };
        let rtr = Attributes {
            remote_gid: Some(remote),
            remote: Some(attributes.peer),
            path_mtu: Some(attributes.path_mtu),
            expected_psn: Some(known.expected),
            max_dest_rd_atomic: Some(attributes.max_dest_rd_atomic),
            min_rnr_timer: Some(attributes.min_rnr_timer),
            ..Attributes::default()
        };
        let address_vector = AddressVector::new(endpoint, remote, attributes.marks)?;
        let mut result = Ok(());
        proxy.quietly(links, |engine, host| {
            result = engine
                .modify(QpState::Init, &init, host)
                .and_then(|()| engine.modify(QpState::Rtr, &rtr, host));
            engine.resume(known, host);
        });
        result?;
        proxy.link = Some(Link::Udp(address_vector));
        proxy.own.peer = Some(attributes.peer);
        Ok(proxy)
    }

    /// The target and the process that this is a proxy for, if it is one.
    pub(crate) fn proxy_of(&mut self) -> Option<Subject> {
        self.proxy_mut().map(|proxy| *proxy.subject())
    }

    /// It has no unfinished work, and the XRC home knows its progress.
    pub(crate) fn is_idle_proxy(&self) -> bool {
        !self.engine.is_mid_message() && !self.engine.owes_data()
    }

    /// Lets go of queues that have left the domain. True if one of them has to stay, as its message is arriving.
    pub(crate) fn forget_gone_queues(&mut self) -> bool {
        match &mut self.own.receives {
            Receives::Xrc(targets) => targets.forget_gone(),
            Receives::Own(_) | Receives::Shared(_) => false,
        }
    }

    /// A delegation has come, with a packet or without; says how many completions that published.
    pub(crate) fn on_delegation(
        &mut self,
        delegation: &Delegation,
        packet: Option<(&Packet<'_>, Came<'_>)>,
        now: Time,
        links: &Links,
    ) -> u32 {
        let Some(proxy) = self.proxy_mut() else {
            return 0;
        };
        match proxy.accept(delegation) {
            None => return 0,
            Some(Begin::GoOn) => {}
            Some(Begin::Anew) => {
                self.quietly(links, |engine, host| engine.resume(delegation.known, host));
            }
        }
        self.engine.adjust(delegation.attributes.access, delegation.attributes.min_rnr_timer);
        let expected = self.engine.standing().map(|standing| standing.expected);
        let late = packet
            .zip(expected)
            .is_none_or(|((packet, _), expected)| packet.headers.bth.psn.since(expected) < 0);
        if (late || self.engine.state() == QpState::Err)
            && let Some(proxy) = self.proxy_mut()
        {
            proxy.forget_report(); // It may have got lost.
        }
        match packet {
            Some((packet, came)) if late || delegation.task == Task::Serve => {
                self.on_packet(packet, came, now, links, None)
            }
            Some(_) | None => 0,
        }
    }

    /// Tells the XRC home how far this proxy has come, if that is new.
    #[inline(always)]
    pub(crate) fn report(&mut self, links: &Links) {
        if matches!(self.own.receives, Receives::Xrc(_)) {
            self.report_of_proxy(links);
        }
    }

    /// The rare part: most queue pairs are no proxies.
    #[cold]
    fn report_of_proxy(&mut self, links: &Links) {
        if let Receives::Xrc(targets) = &mut self.own.receives
            && let Some(proxy) = targets.proxy_mut()
            && let Some(report) = proxy.report(&self.engine, links.registry.me())
        {
            links.tell(proxy.subject().from, ControlMessage::Report(report));
        }
    }

    /// The target's process says that it is over.
    pub(crate) fn on_dismissal(&mut self, flush: bool, links: &Links) {
        if flush {
            self.quietly(links, |engine, host| engine.to_err(host));
        }
    }

    /// A receive is drawn, and a timer has to look whether its message still comes; true if none
    /// does yet.
    pub(crate) fn is_to_be_watched(&mut self) -> bool {
        let mid_message = self.engine.is_mid_message();
        self.proxy_mut().is_some_and(|proxy| {
            let begins = mid_message && !proxy.watched;
            proxy.watched |= begins;
            begins
        })
    }

    /// Looks whether the message still comes; `None` if the target's process is gone.
    pub(crate) fn watch(&mut self, now: Time, links: &Links) -> Option<Aftermath> {
        let proxy = self.proxy_mut()?;
        proxy.watched = false;
        proxy.forget_report(); // If the target is gone, its process answers to that.
        let from = proxy.subject().from;
        links.registry.lives(from).then(|| self.transmit(now, Acks::Now, links))
    }
}
