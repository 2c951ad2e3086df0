//! XRC proxies of a port: control messages between targets and their proxies in other processes.
//!
//! Control messages are taken under the receive lock, as packets are. What is delegated to which process is decided in
//! `xrc_home.rs`, and what a proxy is in `xrc_proxy.rs`.

use super::{Arrival, Clock, Port, Receiver, RxSocket};
use crate::futex_mutex::FutexGuard;
use crate::link::udp::endpoint::KnownSender;
use crate::objects::host::{Came, Origin};
use crate::objects::notice::DeferredWakeups;
use crate::objects::progress::Progress;
use crate::objects::qp::{QpInner, Waiters};
use crate::objects::xrc::Xrcd;
use crate::objects::xrc_home::XrcHome;
use crate::registry::control_message::{
    Condition, ControlMessage, Delegation, Dismissal, Report, Subject,
};
use crate::registry::relay::Passed;
use crate::registry::{DomainName, Member, SlotId};
use crate::sync::Mutex;
use adverb_engine::{Acks, Driver, Identification, Time, admit};
use adverb_wire::{Packet, Qpn};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Proxies of a port at once; beyond that, those go whose targets have gone, or the idlest one.
const XRC_PROXIES_MAX: usize = 1024;
/// How often a proxy that has drawn a receive looks whether its XRC home lives.
const WATCH_NANOS: u64 = 500_000_000;

/// Proxies of this port, by whose targets they stand for.
#[derive(Debug, Default)]
pub(super) struct XrcProxies {
    places: Mutex<HashMap<(SlotId, Qpn), Place>>,
    delegations: AtomicU64,
    /// The port itself.
    port: OnceLock<Weak<dyn Progress>>,
}

#[derive(Debug)]
struct Place {
    from: Member,
    life: u64,
    domain: Option<DomainName>,
    /// Its place in the table.
    number: Qpn,
    /// Greater for what was delegated later.
    delegated: u64,
}

impl XrcProxies {
    pub(super) fn set_port(&self, port: &Arc<Port>) {
        let _ = self.port.set(Arc::<Port>::downgrade(port));
    }
}

impl Place {
    fn is_of(&self, subject: &Subject) -> bool {
        self.from == subject.from && self.life == subject.life
    }
}

impl Port {
    /// A control message has come. It is the writer's, if it is from where the registry says.
    pub(super) fn on_control_message(
        &self,
        from: SocketAddr,
        control: &ControlMessage,
        passed: Option<Passed<'_>>,
        rx_sockets: &mut [RxSocket],
        now: Time,
    ) {
        let subject = *control.subject();
        let writer = subject.from;
        let honest = self.links.registry.relay_port(writer.slot) == Some(from.port())
            && self.links.registry.member(writer.slot) == writer;
        if !honest {
            return;
        }
        match control {
            ControlMessage::Delegation(delegation) => {
                self.on_delegation(delegation, passed, rx_sockets, now)
            }
            ControlMessage::Report(report) => self.on_report(report),
            ControlMessage::Dismissal(dismissal) => {
                let key = (writer.slot, subject.target);
                let mut places = self.proxies.places.lock();
                if let Some(place) = places.get(&key).filter(|place| place.is_of(&subject)) {
                    let number = place.number;
                    places.remove(&key);
                    drop(places);
                    self.table
                        .with(number, |inner| inner.on_dismissal(dismissal.flush, &self.links));
                    self.end_proxy(number);
                }
            }
        }
    }

    fn on_report(&self, report: &Report) {
        let Report { subject, .. } = report;
        let taken = self.table.with(subject.target, |inner| inner.on_report(report, &self.links));
        let dismissal = taken.unwrap_or_else(|| {
            let subject = Subject { from: self.links.registry.me(), ..*subject };
            Some(Dismissal { subject, flush: false })
        });
        if let Some(dismissal) = dismissal.filter(|_| report.condition != Condition::Gone) {
            self.links.tell(subject.from, ControlMessage::Dismissal(dismissal));
        }
    }

    fn on_delegation(
        &self,
        delegation: &Delegation,
        passed: Option<Passed<'_>>,
        rx_sockets: &mut [RxSocket],
        now: Time,
    ) {
        let Delegation { subject, .. } = delegation;
        let Some(passed) = passed else {
            match self.proxy(subject) {
                Some(number) => self.give_to_proxy(number, delegation, None, now),
                None => self.report_gone(delegation),
            }
            return;
        };
        let Some(RxSocket { endpoint, flows, .. }) = RxSocket::at(rx_sockets, passed.target) else {
            return;
        };
        let Some(&KnownSender { gid: source, flow, .. }) = flows.get(&passed.source, endpoint)
        else {
            return;
        };
        let parsed = Packet::parse(passed.bytes);
        let Ok(packet) = admit(&parsed, passed.bytes, &flow, Identification::Guessed(0)) else {
            self.links.counters.malformed.add(1);
            return;
        };
        if packet.headers.bth.dest_qp != subject.target || packet.headers.xrceth.is_none() {
            return;
        }
        self.links.counters.relayed.add(1);
        let len = u16::try_from(passed.bytes.len()).unwrap_or(u16::MAX);
        let number = self.proxy(subject).or_else(|| {
            let make = |domain: &Xrcd| {
                QpInner::proxy(delegation, domain, Arc::clone(endpoint), source, &self.links).ok()
            };
            self.add_proxy(delegation, make)
        });
        if let Some(number) = number {
            let from = Origin { source, flow: &flow, marks: passed.marks };
            let came = Came { from: &from, len };
            self.give_to_proxy(number, delegation, Some((packet, came)), now);
        }
    }

    /// The proxy of a target, if there is one for this life of it.
    fn proxy(&self, subject: &Subject) -> Option<Qpn> {
        let mut places = self.proxies.places.lock();
        let place = places.get_mut(&(subject.from.slot, subject.target))?;
        place.delegated = self.proxies.delegations.fetch_add(1, Ordering::Relaxed);
        place.is_of(subject).then_some(place.number)
    }

    fn report_gone(&self, delegation: &Delegation) {
        let subject = Subject { from: self.links.registry.me(), ..delegation.subject };
        let (epoch, standing) = (delegation.epoch, delegation.known);
        let report = Report { subject, epoch, standing, condition: Condition::Gone };
        self.links.tell(delegation.subject.from, ControlMessage::Report(report));
    }

    fn add_proxy(
        &self,
        delegation: &Delegation,
        make: impl FnOnce(&Xrcd) -> Option<QpInner>,
    ) -> Option<Qpn> {
        let subject = delegation.subject;
        let port = self.proxies.port.get()?.upgrade()?;
        let key = (subject.from.slot, subject.target);
        let mut places = self.proxies.places.lock();
        if places
            .get(&key)
            .is_some_and(|place| place.from == subject.from && place.life > subject.life)
        {
            return None; // The control message is late.
        }
        let before = places.remove(&key).map(|place| place.number);
        let victims = match places.len() >= XRC_PROXIES_MAX {
            true => self.make_room(&mut places),
            false => Vec::new(),
        };
        let added = (places.len() < XRC_PROXIES_MAX).then(|| {
            // A process that has not opened the domain has no queues in it, and its proxy says so.
            let open = self
                .links
                .registry
                .claimants(delegation.domain)
                .any(|member| member == subject.from);
            let domain = match open {
                true => Xrcd::known(delegation.domain, &port),
                false => Xrcd::new(&port),
            };
            let inner = make(&domain)?;
            let number = self.take_number().ok()?;
            let mut guard = self.table.slot(number)?.lock();
            *guard = Some(Box::new(inner));
            drop(guard);
            let domain = domain.shared.name();
            let (from, life) = (subject.from, subject.life);
            let delegated = self.proxies.delegations.fetch_add(1, Ordering::Relaxed);
            places.insert(key, Place { from, life, domain, number, delegated });
            Some(number)
        });
        drop(places);
        before.into_iter().chain(victims).for_each(|number| self.end_proxy(number));
        added.flatten()
    }

    /// Takes proxies out of their places whose targets are gone; if there are none, the one that is at
    /// nothing for longest.
    fn make_room(&self, places: &mut HashMap<(SlotId, Qpn), Place>) -> Vec<Qpn> {
        let mut victims = Vec::new();
        places.retain(|_, place| {
            let lives = self.links.registry.lives(place.from);
            if !lives {
                victims.push(place.number);
            }
            lives
        });
        let idle = |place: &&Place| {
            self.table.with(place.number, |inner| inner.is_idle_proxy()).unwrap_or(true)
        };
        if victims.is_empty()
            && let Some(idlest) = places.values().filter(idle).min_by_key(|place| place.delegated)
        {
            let number = idlest.number;
            places.retain(|_, place| place.number != number);
            victims.push(number);
        }
        victims
    }

    /// The last queue of a domain has gone from this process: proxies let go of those that they know, and stay, since
    /// they know which packets have come before. One that fills a receive of such a queue ends.
    pub(crate) fn forget_queues_in(&self, domain: DomainName) {
        let places = self.proxies.places.lock();
        let of_domain = places.values().filter(|place| place.domain == Some(domain));
        let numbers: Vec<_> = of_domain.map(|place| place.number).collect();
        drop(places);
        for number in numbers {
            if self.table.with(number, |inner| inner.forget_gone_queues()).unwrap_or(false) {
                self.end_placed(number);
            }
        }
    }

    /// Ends a proxy, unless another thread has taken it out of its place meanwhile: that one ends it.
    fn end_placed(&self, number: Qpn) {
        let taken =
            self.proxies.places.lock().extract_if(|_, place| place.number == number).count();
        if taken > 0 {
            self.end_proxy(number);
        }
    }

    /// Ends a proxy that has no place any more. Its memory is only reached through the engine.
    fn end_proxy(&self, number: Qpn) {
        let Some(slot) = self.table.slot(number) else {
            return;
        };
        let _deferred = DeferredWakeups::begin();
        let mut counted = self.gone.lock();
        let gone = slot.lock().take();
        if let Some(inner) = &gone {
            *counted += inner.counters();
        }
        drop(counted);
        self.schedule.with(|schedule| schedule.forget(number));
        drop(gone);
        self.numbers.lock().rest(number, self.links.now());
    }

    fn give_to_proxy(
        &self,
        number: Qpn,
        delegation: &Delegation,
        packet: Option<(&Packet<'_>, Came<'_>)>,
        now: Time,
    ) {
        let _deferred = DeferredWakeups::begin();
        self.table.with(number, |inner| {
            if inner.proxy_of() != Some(delegation.subject) {
                return;
            }
            inner.on_delegation(delegation, packet, now, &self.links);
            let aftermath = inner.transmit(now, Acks::Now, &self.links);
            self.follow_up(number, inner, aftermath);
            if inner.is_to_be_watched() {
                self.arm(number, now, WATCH_NANOS);
            }
        });
    }

    /// Has a queue pair looked at after so many nanoseconds.
    fn arm(&self, number: Qpn, now: Time, nanos: u64) {
        let at = Time::from_nanos(now.nanos().saturating_add(nanos));
        self.schedule.with(|schedule| schedule.arm(number, at));
        self.helper.notice(at);
    }

    /// Looks whether a proxy's target is still there.
    pub(super) fn on_proxy_timer(
        &self,
        number: Qpn,
        mut guard: FutexGuard<'_, Option<Box<QpInner>>>,
        now: Time,
    ) {
        let Some(inner) = guard.as_mut() else {
            return;
        };
        if let Some(aftermath) = inner.watch(now, &self.links) {
            self.follow_up(number, inner, aftermath);
            if inner.is_to_be_watched() {
                self.arm(number, now, WATCH_NANOS);
            }
            return;
        }
        drop(guard);
        self.end_placed(number);
    }

    /// Packets of this target wait.
    pub(super) fn note_parked(&self, number: Qpn, now: Time, parked: &mut Vec<Qpn>) {
        if !parked.contains(&number) {
            parked.push(number);
            self.arm(number, now, XrcHome::ASK_NANOS);
        }
    }

    /// Takes packets that were parked and whose turn has come; says whether there were any.
    pub(super) fn look_after_parked(
        &self,
        receiver: &mut Receiver,
        clock: &mut Clock,
        driver: Driver,
    ) -> bool {
        let Receiver { rx_sockets, waiting, parked: all, .. } = receiver;
        let now = clock.now();
        let mut busy = false;
        for _ in 0..all.len() {
            let number = all.remove(0);
            let look = |inner: &mut QpInner| inner.look_after_parked(now, &self.links);
            match self.table.with(number, look).unwrap_or(Waiters::None) {
                Waiters::None => {}
                Waiters::Waiting => {
                    all.push(number);
                    self.arm(number, now, XrcHome::ASK_NANOS);
                }
                Waiters::Ready(parked) => {
                    busy = true;
                    for passed in parked.iter() {
                        let rx_socket = RxSocket::at(rx_sockets, passed.target);
                        if let Some(RxSocket { endpoint, flows, .. }) = rx_socket {
                            let (group, relayed) = (None, true);
                            let arrival =
                                Arrival { passed, endpoint, group, now, driver, relayed, id: None };
                            self.take(&arrival, flows, waiting, all);
                        }
                    }
                }
            }
        }
        busy
    }
}
