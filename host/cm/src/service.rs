//! The table of identifiers of this process, and the thread that serves queue pair 1.
//!
//! One lock guards all of it. Handles are never dropped while it is held: that of an identifier takes
//! it to destroy the identifier. Commands of programs are in `commands.rs`, what arrives is in `news.rs`.

use crate::error::Error;
use crate::handle::{Handle, Seat};
use crate::kind::{EventKind, Param};
use crate::peers::Peers;
use crate::ports::Ports;
use crate::state::{Stage, State};
use crate::waiting::{Entry, Waiting};
use adverb_cm::{Config, Counters, ListenerId, Manager};
use adverb_device::{
    CONNECTION_PREFIX_BITS, Gid, Inbox, ManagementDatagram, Port, Recorded, wait_readable,
};
use adverb_sys::clock;
use adverb_wire::Marks;
use adverb_wire::cm::{CommId, Exponent};
use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// All that this process has of connection management.
#[derive(Debug, Default)]
pub(crate) struct Core {
    pub(crate) ports: Ports,
    pub(crate) ids: HashMap<u64, State>,
    pub(crate) connections: HashMap<CommId, u64>,
    pub(crate) listeners: HashMap<ListenerId, u64>,
    pub(crate) peers: Peers,
    /// Connections to other hosts, by where they are written down.
    pub(crate) recorded: HashMap<CommId, Recorded>,
    /// When it was last looked at what other processes do.
    pub(crate) looked: Duration,
    last_key: u64,
    /// Once a device was opened.
    served: Option<Served>,
}

/// The protocol, and where its datagrams come in.
#[derive(Debug)]
struct Served {
    manager: Manager,
    inbox: Arc<Inbox>,
    /// When the thread looks at the clock next.
    wakes: Option<Duration>,
}

/// An event that was taken, with handles to what it is about.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) id: Arc<Handle>,
    pub(crate) listener: Option<Arc<Handle>>,
    pub(crate) membership: Option<Arc<Seat>>,
    pub(crate) kind: EventKind,
    pub(crate) status: i32,
    pub(crate) param: Param,
}

static CORE: LazyLock<Mutex<Core>> = LazyLock::new(Mutex::default);

/// The table, locked.
pub(crate) fn core() -> MutexGuard<'static, Core> {
    CORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`core`], if no other thread has it.
pub(crate) fn try_core() -> Option<MutexGuard<'static, Core>> {
    match CORE.try_lock() {
        Ok(core) => Some(core),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// What this process has dropped or repeated since its first connection.
///
/// ```
/// println!("{:?}", adverb_rdmacm::counters());
/// ```
pub fn counters() -> Counters {
    core().served.as_ref().map(|served| served.manager.counters()).unwrap_or_default()
}

/// Takes the oldest event of a queue.
pub(crate) fn take(queue: &Waiting) -> Option<Taken> {
    // Handles of events that are left out: the last of an identifier's takes the lock, so it is dropped after that.
    let mut unused = Vec::new();
    let mut core = core();
    loop {
        let Entry { owner, child, membership, kind, status, param } = queue.pop()?;
        if let Some(state) = core.ids.get_mut(&owner) {
            state.queued = state.queued.saturating_sub(1);
        }
        let upgrade = |key| core.ids.get(key).and_then(|state: &State| state.handle.upgrade());
        // An identifier whose last handle is being dropped waits for the lock, to be destroyed.
        let owned = upgrade(&owner);
        let (id, listener) = match child {
            None => (owned, None),
            Some(child) => (core.adopt(child), owned),
        };
        let Some(id) = id else {
            unused.extend(listener);
            continue;
        };
        let of = core.ids.get(&id.0);
        let member = membership.and_then(|seat| of?.seats.get(&seat));
        let membership = member.and_then(|member| member.seat.upgrade());
        return Some(Taken { id, listener, membership, kind, status, param });
    }
}

/// Ends an identifier and all that waits for it.
pub(crate) fn destroy(key: u64) {
    let mut core = core();
    core.remove(key);
    core.settle();
}

/// Leaves a multicast group.
pub(crate) fn leave(id: u64, number: u64) {
    let mut core = core();
    let Some(state) = core.ids.get_mut(&id) else {
        return;
    };
    if state.seats.remove(&number).is_some() {
        state.queue.forget_membership(number);
    }
}

impl Core {
    /// A number that no identifier or membership has had.
    pub(crate) fn new_key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }

    /// The handle of an identifier that a request has made: the first.
    fn adopt(&mut self, child: u64) -> Option<Arc<Handle>> {
        let state = self.ids.get_mut(&child)?;
        let handle = Arc::new(Handle(child));
        state.handle = Arc::downgrade(&handle);
        Some(handle)
    }

    pub(crate) fn state(&mut self, key: u64) -> Result<&mut State, Error> {
        self.ids.get_mut(&key).ok_or(Error::Gone)
    }

    /// Queues an event of an identifier.
    pub(crate) fn tell(&mut self, owner: u64, kind: EventKind, status: i32, param: Param) {
        self.queue(Entry { owner, child: None, membership: None, kind, status, param });
    }

    pub(crate) fn queue(&mut self, entry: Entry) {
        if let Some(state) = self.ids.get_mut(&entry.owner) {
            state.queued += 1;
            state.queue.push(entry);
        }
    }

    /// Takes an identifier out of everything; requests that wait for it are refused.
    pub(crate) fn remove(&mut self, key: u64) {
        let Some(state) = self.ids.remove(&key) else {
            return;
        };
        if let Some(connection) = state.connection {
            self.connections.remove(&connection);
            self.forget_peer(connection);
            self.with_manager(|manager, now| manager.destroy(connection, now).unwrap_or(()));
        }
        if let Stage::Listening(listener) = state.stage {
            self.listeners.remove(&listener);
            self.with_manager(|manager, _| manager.unlisten(listener).unwrap_or(()));
        }
        if state.queued > 0 {
            for child in state.queue.take_of(key).into_iter().filter_map(|entry| entry.child) {
                self.remove(child);
            }
        }
    }

    /// Runs with the protocol, if a device was opened.
    fn with_manager<R>(&mut self, run: impl FnOnce(&mut Manager, Duration) -> R) -> Option<R> {
        Some(run(&mut self.served.as_mut()?.manager, now()))
    }

    /// The protocol. An identifier that has an address has opened a device.
    pub(crate) fn manager(&mut self) -> Result<(&mut Manager, Duration), Error> {
        let served = self.served.as_mut().ok_or(Error::State("bound to a device"))?;
        Ok((&mut served.manager, now()))
    }

    /// Starts the protocol once a device was opened.
    pub(crate) fn serve(&mut self) -> Result<(), Error> {
        let Some(home) = self.ports.home().filter(|_| self.served.is_none()) else {
            return Ok(());
        };
        let config = Config {
            ca_guid: home.device().guid,
            response_timeout: RESPONSE_TIMEOUT,
            prefix: home.connection_prefix(),
            prefix_bits: CONNECTION_PREFIX_BITS,
            ..Config::default()
        };
        let inbox = Inbox::new().map_err(Error::system("make a descriptor"))?;
        let inbox = Arc::new(inbox);
        let manager = Manager::new(config, adverb_sys::random::number());
        let served = Arc::clone(&inbox);
        let run = move || run(&served);
        adverb_sys::signals::spawn("adverb-cm", run).map_err(Error::system("start a thread"))?;
        self.served = Some(Served { manager, inbox, wakes: None });
        Ok(())
    }

    /// Has datagrams of a device come here.
    pub(crate) fn receive_from(&self, port: &Port) {
        if let Some(served) = &self.served {
            port.take_management(&served.inbox);
        }
    }

    /// After a command or an arrival: tells what has come of it, sends what is to be sent, and wakes
    /// the thread if it would sleep too long.
    pub(crate) fn settle(&mut self) {
        self.settle_after(&mut Vec::new());
    }

    /// `settled`: the ports that have taken in what came before the datagrams that are processed now.
    fn settle_after(&mut self, settled: &mut Vec<Arc<Port>>) {
        while let Some(event) = self.served.as_mut().and_then(|s| s.manager.poll_event()) {
            self.on_event(event, settled);
        }
        while let Some(transmit) = self.served.as_mut().and_then(|s| s.manager.poll_transmit()) {
            let adverb_cm::Transmit { local, peer, traffic_class, datagram } = transmit;
            let marks = Marks { traffic_class, hop_limit: 0, flow_label: 0 };
            if let Some((port, index)) = self.ports.of_gid(Gid(local)) {
                let _ = port.send_management(index, Gid(peer), marks, &datagram); // As if it was lost.
            }
        }
        let look = self.next_look();
        if let Some(Served { manager, inbox, wakes }) = &mut self.served {
            let next = earlier(manager.next_deadline(), look);
            if next.is_some_and(|next| wakes.is_none_or(|wakes| next < wakes)) {
                *wakes = next;
                inbox.ring();
            }
        }
    }

    /// Takes datagrams; says how long the thread may sleep afterwards.
    fn on_arrivals(&mut self, arrivals: &mut VecDeque<ManagementDatagram>) -> Option<Duration> {
        let (now, mut settled) = (now(), Vec::new());
        for _ in 0..ARRIVALS_MAX {
            let Some(ManagementDatagram { local, peer, bytes }) = arrivals.pop_front() else {
                break;
            };
            if let Some(served) = &mut self.served {
                served.manager.on_datagram(local.0, peer.0, &bytes, now);
            }
            self.settle_after(&mut settled);
        }
        if let Some(served) = &mut self.served {
            served.manager.on_time(now);
        }
        self.look_around(now);
        let look = self.next_look();
        if let Some(served) = &mut self.served {
            served.wakes = earlier(served.manager.next_deadline(), look);
        }
        self.settle();
        let wakes = self.served.as_ref().and_then(|served| served.wakes);
        wakes.map(|wakes| wakes.saturating_sub(now))
    }
}

/// The thread.
fn run(inbox: &Inbox) {
    let mut arrivals = VecDeque::new();
    loop {
        let sleep = core().on_arrivals(&mut arrivals);
        if arrivals.is_empty() {
            let _ = wait_readable(inbox.as_fd(), sleep);
            arrivals = inbox.take();
        }
    }
}

/// The earlier one of those that there are.
fn earlier(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

fn now() -> Duration {
    Duration::from_nanos(clock::now_ns())
}

/// Datagrams taken under one lock.
const ARRIVALS_MAX: usize = 64;
/// How long an answer may take before it is asked for again: a second, and 15 times so. That of the
/// kernel is four seconds.
const RESPONSE_TIMEOUT: Exponent = Exponent::saturating(18);
