//! Receive sockets of a port: one for each address and multicast group, shared with the
//! other processes that have the same address, and steered to the process that has a packet's queue pair.

use super::{Port, RxSocket};
use crate::link::errors::ConnectError;
use crate::link::udp::endpoint::{Endpoint, gid_of};
use crate::link::udp::multicast::{Group, GroupError, GroupLimits};
use crate::link::udp::steering::{scope, steer};
use crate::link::xdp::seeker::Seeker;
use crate::link::xdp::{Demand, XdpLink};
use crate::registry::{DomainClaim, Members, Registry, probe};
use adverb_engine::Gid;
use adverb_sys::clock;
use adverb_sys::epoll::{Epoll, Interest};
use adverb_sys::udp::Destination;
use adverb_wire::Qpn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::info;

impl Port {
    /// The socket of the address at `gid_index`, opened when first asked for.
    pub(crate) fn endpoint(&self, gid_index: u8) -> Result<Arc<Endpoint>, ConnectError> {
        let entry = self.links.gids.at(gid_index);
        let entry = entry.ok_or(ConnectError::NoSuchGid { index: gid_index })?;
        let failed = |error| ConnectError::Socket { local: entry.gid, error };
        // The owner of an interface may take long to answer: the helper, which looks at those that are there, goes on.
        let opening = self.opening.lock();
        let endpoints = self.endpoints.lock();
        // Also that of an address which was gone for a while, and is back.
        if let Some(endpoint) = endpoints.get(&entry.addr) {
            return Ok(Arc::clone(endpoint));
        }
        if endpoints.len() >= ENDPOINTS_MAX {
            return Err(failed(io::Error::other("the device has had too many addresses")));
        }
        drop(endpoints);
        let endpoint = self.open_endpoint(entry.addr).map_err(failed)?;
        self.endpoints.lock().insert(entry.addr, Arc::clone(&endpoint));
        drop(opening);
        self.begin_watch(entry.addr);
        let mut receiver = self.receiver.lock();
        let mut rx_socket = RxSocket::new(Arc::clone(&endpoint));
        if receiver.marks {
            rx_socket.show_marks();
        }
        endpoint.set_ecn_capable(!receiver.heedless);
        receiver.rx_sockets.push(rx_socket);
        drop(receiver);
        self.helper.watch(&endpoint.socket).map_err(failed)?;
        Ok(endpoint)
    }

    /// Opens the sockets of all addresses, for threads that listen to all of them.
    ///
    /// # Errors
    ///
    /// None of them could be opened.
    pub(crate) fn open_all(&self) -> Result<(), ConnectError> {
        let mut result = Err(ConnectError::NoSuchGid { index: 0 });
        for entry in self.links.gids.entries() {
            let opened = self.endpoint(entry.index).map(drop);
            if result.is_err() {
                result = opened;
            }
        }
        result
    }

    /// From now on arrivals show how they are marked: a queue pair takes datagrams, which have it in front
    /// of them. Asking for it makes each receive call a little dearer.
    pub(crate) fn show_marks(&self) {
        let mut receiver = self.receiver.lock();
        if !receiver.marks {
            receiver.marks = true;
            receiver.rx_sockets.iter_mut().for_each(RxSocket::show_marks);
        }
    }

    /// A queue pair is about to send that heeds no notifications of congestion: from now on packets do not say that
    /// switches may mark them in place of dropping them. RFC 3168 §6.
    pub(crate) fn stop_marking(&self) {
        let mut receiver = self.receiver.lock();
        if !receiver.heedless {
            receiver.heedless = true;
            receiver
                .rx_sockets
                .iter()
                .for_each(|rx_socket| rx_socket.endpoint.set_ecn_capable(false));
        }
    }

    /// Attaches a queue pair to a multicast group.
    pub(crate) fn attach(&self, gid: Gid, qp: Qpn) -> Result<(), GroupError> {
        Group::check(gid, self.links.device.loopback)?;
        let known = self.receiver.lock().rx_sockets.iter().any(|rx_socket| rx_socket.is_of(gid));
        // Under no lock. Neighbours send records from now on; those that come too early are lost.
        let mut claim = if known { None } else { self.links.claim_group(gid) };
        let attached = self.attach_with(&mut claim, gid, qp);
        if let Some(unused) = claim {
            self.links.registry.release_domain(unused);
        }
        attached
    }

    fn attach_with(
        &self,
        claim: &mut Option<DomainClaim>,
        gid: Gid,
        qp: Qpn,
    ) -> Result<(), GroupError> {
        let mut receiver = self.receiver.lock();
        for rx_socket in &mut receiver.rx_sockets {
            if let Some(group) = rx_socket.group.as_mut().filter(|group| group.is(gid)) {
                return group.attach(qp, &rx_socket.endpoint);
            }
        }
        let groups =
            receiver.rx_sockets.iter().filter(|rx_socket| rx_socket.group.is_some()).count();
        if groups >= GroupLimits::GROUPS_MAX {
            return Err(GroupError::TooManyGroups { max: GroupLimits::GROUPS_MAX });
        }
        let failed = |error| GroupError::System { gid, error };
        let interface = self.links.device.index;
        let addr = Endpoint::group(gid, interface);
        let endpoint = Endpoint::bind(addr, interface, self.capture.clone()).map_err(failed)?;
        let endpoint = Arc::new(endpoint);
        let mut group = Group::new(gid, interface);
        let set = match receiver.groups.take() {
            Some(set) => set,
            None => {
                let set = Epoll::new().map_err(failed)?;
                self.helper.watch(&set).map_err(failed)?;
                set
            }
        };
        let added = set.add(&endpoint.socket, 0, Interest::Readable);
        receiver.groups = Some(set);
        added.map_err(failed)?;
        group.attach(qp, &endpoint)?;
        group.claim = claim.take();
        let mut rx_socket = RxSocket { group: Some(group), ..RxSocket::new(endpoint) };
        rx_socket.show_marks();
        receiver.rx_sockets.push(rx_socket);
        Ok(())
    }

    /// Detaches a queue pair from a multicast group, or from all; false if it was attached to none.
    pub(crate) fn detach(&self, gid: Option<Gid>, qp: Qpn) -> bool {
        let mut detached = false;
        let mut receiver = self.receiver.lock();
        for rx_socket in &mut receiver.rx_sockets {
            let wanted = |group: &&mut Group| gid.is_none_or(|gid| group.is(gid));
            if let Some(group) = rx_socket.group.as_mut().filter(wanted) {
                detached |= group.detach(qp, &rx_socket.endpoint);
                if let Some(claim) = group.claim.take_if(|_| group.members.is_empty()) {
                    self.links.registry.release_domain(claim);
                }
            }
        }
        receiver
            .rx_sockets
            .retain(|rx_socket| rx_socket.group.as_ref().is_none_or(|group| !group.is_empty()));
        detached
    }

    pub(super) fn open_endpoint(&self, addr: SocketAddr) -> io::Result<Arc<Endpoint>> {
        let group = (gid_of(addr.ip()).0, scope(addr));
        let bind = |registry: &Registry, members: &mut Members| {
            let endpoint = Endpoint::bind(addr, self.links.device.index, self.capture.clone())?;
            let shared = !members.is_empty();
            members.push(registry.slot());
            steer(&endpoint, registry, members)?;
            Ok((Arc::new(endpoint), shared))
        };
        let (endpoint, shared) = self.links.registry.with_group(group.0, group.1, bind)?;
        // The group is free meanwhile.
        match (self.take_frames(&endpoint, shared), self.demand) {
            (Ok(()), _) => Ok(endpoint),
            (Err(error), Some(Demand::Offered)) => {
                info!(device = %self.links.device.name, address = %addr.ip(), "no frames: {error}");
                Ok(endpoint)
            }
            (Err(error), Some(Demand::Always) | None) => {
                let leave = |_: &Registry, members: &mut Members| {
                    self.leave_group(endpoint, members);
                    Ok(())
                };
                self.links.registry.with_group(group.0, group.1, leave)?;
                Err(error)
            }
        }
    }

    /// Has an address's packets come and go as frames, if they can and are to.
    fn take_frames(&self, endpoint: &Arc<Endpoint>, shared: bool) -> io::Result<()> {
        if let Some(link) = self.xdp_link.get() {
            let was_over = link.is_over();
            endpoint.take_frames(link, shared)?;
            self.begin_to_seek(link, endpoint);
            if was_over && !link.is_over() {
                // The next owner may have been asked for the others' before this one was known.
                endpoint.take_frames(link, shared)?;
            }
            return Ok(());
        }
        // Each member takes one of its user's places at the owner: not without an address that it can have frames for.
        if self.demand != Some(Demand::Offered) || shared {
            return Ok(());
        }
        let Some((link, mut frames)) = XdpLink::offered(&self.links.device)? else { return Ok(()) };
        endpoint.take_frames(&link, shared)?;
        if let Err(error) = self.helper.watch(link.arrivals()) {
            endpoint.yield_frames();
            link.end(&mut frames); // It is the address's way for good: by the socket.
            return Err(error);
        }
        self.receiver.lock().frames = frames;
        self.begin_to_seek(self.xdp_link.get_or_init(|| link), endpoint);
        Ok(())
    }

    /// An address has frames: when the owner has ended, the next one is asked for them. `opening` is held.
    fn begin_to_seek(&self, link: &Arc<XdpLink>, endpoint: &Arc<Endpoint>) {
        if !link.is_by_owner() || !endpoint.has_claim() {
            return;
        }
        if self.seeker.get().is_none() {
            match Seeker::start(link, &self.links.device) {
                Ok(seeker) => _ = self.seeker.get_or_init(|| seeker),
                Err(error) => info!(device = %self.links.device.name, "no next owner: {error}"),
            }
        }
        self.seeker.get().into_iter().for_each(|seeker| seeker.add(endpoint));
    }

    /// Leaves the groups of all addresses, and takes no datagram of another process along. Nothing else uses the port.
    pub(super) fn leave_groups(&self) {
        let endpoints = std::mem::take(&mut *self.endpoints.lock());
        for endpoint in endpoints.into_values() {
            let (address, scope) = (gid_of(endpoint.addr.ip()).0, scope(endpoint.addr));
            let _ = self.links.registry.with_group(address, scope, |_, members| {
                self.leave_group(endpoint, members);
                Ok(())
            });
        }
    }

    /// Leaves an address's group, and passes on what has come before and is for others.
    ///
    /// The kernel moves a group's last socket into the place of the one that goes. Where others are looked for until they
    /// are told of it there is no socket, and the kernel gives datagrams to any one, whose process passes them on.
    pub(super) fn leave_group(&self, endpoint: Arc<Endpoint>, members: &mut Members) {
        let addr = endpoint.addr;
        self.give_up(endpoint);
        let me = self.links.registry.slot();
        if let Some(place) = members.iter().position(|slot| *slot == me) {
            members.swap_remove(place);
        }
        if !members.is_empty() {
            let _ = self.steer_for(addr, members); // Else they find out by themselves.
        }
    }

    /// Takes a socket out of its group, passes on what it has, and closes it.
    fn give_up(&self, endpoint: Arc<Endpoint>) {
        // Where the kernel refuses it the socket goes when it is closed, and what comes in that moment is lost.
        let _ = endpoint.socket.leave_group();
        let mut steps = 0..LAST_STEPS_MAX;
        while self.help(false) == Some(true) && steps.next().is_some() {}
        if let Some(mut receiver) = self.receiver.try_lock() {
            receiver.rx_sockets.retain(|rx_socket| !Arc::ptr_eq(&rx_socket.endpoint, &endpoint));
        }
    }

    /// Tells the kernel the places of an address's sockets, where this port has none: by one for this moment alone, whose
    /// place is the last, so that the others keep theirs.
    fn steer_for(&self, addr: SocketAddr, members: &Members) -> io::Result<()> {
        let endpoint = Endpoint::bind(addr, self.links.device.index, self.capture.clone())?;
        let endpoint = Arc::new(endpoint);
        let mut receiver = self.receiver.lock();
        let mut rx_socket = RxSocket::new(Arc::clone(&endpoint));
        if receiver.marks {
            rx_socket.show_marks();
        }
        receiver.rx_sockets.push(rx_socket);
        drop(receiver);
        let steered = steer(&endpoint, &self.links.registry, members);
        self.give_up(endpoint);
        steered
    }

    /// Tells the kernel which numbers are whose, on every address of this port.
    pub(super) fn steer_again(&self) -> io::Result<()> {
        let endpoints: Vec<_> = self.endpoints.lock().values().cloned().collect();
        for endpoint in endpoints {
            let addr = endpoint.addr;
            self.links.registry.with_group(
                gid_of(addr.ip()).0,
                scope(addr),
                |registry, members| {
                    self.keep_place(members);
                    steer(&endpoint, registry, members)
                },
            )?;
        }
        Ok(())
    }

    /// The list of an address's sockets leaves this port's out only if it was written over. A census finds its place.
    pub(super) fn keep_place(&self, members: &mut Members) {
        let me = self.links.registry.slot();
        if !members.contains(&me) {
            members.push(me);
            self.links.counters.registry_repairs.add(1);
        }
    }

    /// Puts right what others have written over of this port's part of the registry. The helper looks after this, now
    /// and then, and so does a thread that is about to meet another device.
    pub(crate) fn mend_registry(&self) {
        let registry = &self.links.registry;
        self.links.counters.registry_repairs.add(registry.mend());
        let now = clock::now_ns();
        if now < self.listed.load(Ordering::Relaxed).saturating_add(MENDING_NANOS) {
            return;
        }
        self.listed.store(now, Ordering::Relaxed);
        let addrs: Vec<_> = self.endpoints.lock().values().map(|endpoint| endpoint.addr).collect();
        if addrs.into_iter().any(|addr| !registry.is_in_group(gid_of(addr.ip()).0, scope(addr))) {
            self.misled.store(MISLED_MAX, Ordering::Relaxed);
        }
    }

    /// Puts steering right if it has gone wrong. The helper looks after this, now and then.
    pub(crate) fn mend_steering(&self) {
        let now = clock::now_ns();
        let soon = now < self.mended.load(Ordering::Relaxed).saturating_add(MENDING_NANOS);
        if soon || self.misled.load(Ordering::Relaxed) < MISLED_MAX {
            return;
        }
        self.mended.store(now, Ordering::Relaxed);
        if self.links.registry.is_alone() {
            self.misled.store(0, Ordering::Relaxed); // Late, then, for another reason.
            return;
        }
        let endpoints: Vec<_> = self.endpoints.lock().values().cloned().collect();
        for endpoint in endpoints {
            // If the answers make no sense, things stay as they are: slower, but correct.
            if self.mend_steering_of(&endpoint).is_ok_and(|shared| shared == Some(true)) {
                endpoint.yield_frames();
            }
        }
        self.misled.store(0, Ordering::Relaxed);
    }

    /// Says whether other processes have the address, too; `None` if its group is busy.
    fn mend_steering_of(&self, endpoint: &Endpoint) -> io::Result<Option<bool>> {
        let addr = endpoint.addr;
        let here = Destination::new(addr);
        let until = clock::now_ns() + CENSUS_NANOS;
        // Nothing waits here, for the helper has packets to look after.
        self.links.registry.try_with_group(gid_of(addr.ip()).0, scope(addr), |registry, members| {
            self.keep_place(members);
            steer(endpoint, registry, members)?;
            let ask = |place, nonce| send_to(endpoint, &here, &probe::emit(place, nonce));
            let wait = || {
                self.help(false);
                std::thread::yield_now();
                clock::now_ns() < until
            };
            if let Some(found) = registry.census(members, ask, wait) {
                *members = found;
            }
            steer(endpoint, registry, members)?;
            Ok(members.len() > 1)
        })
    }
}

/// Sends what is no packet.
pub(super) fn send_to(endpoint: &Endpoint, to: &Destination, bytes: &[u8]) -> io::Result<()> {
    endpoint.socket.send(bytes, to, None).map(drop)
}

/// Sockets of addresses: those that the device has, and has had while it was open.
const ENDPOINTS_MAX: usize = 256;
/// Steps after which what still comes is left where it is.
const LAST_STEPS_MAX: u32 = 64;
/// Packets for others after which steering is looked at.
pub(super) const MISLED_MAX: u32 = 16;
/// How long to leave steering alone after an attempt to put it right.
const MENDING_NANOS: u64 = 200_000_000;
/// How long others have to answer a probe: they may be asleep, or have lost their processor.
const CENSUS_NANOS: u64 = 20_000_000;
