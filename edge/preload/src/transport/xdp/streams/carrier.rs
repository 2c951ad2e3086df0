//! The connections of one interface: bytes between their rings and their segments.
//!
//! Each has the end of its rings that a peer in another process would have. Nothing here waits.
//!
//! # Safety
//!
//! Copies of descriptors are this library's own, from the moment at which they are made.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use adverb_netstack::Netstack;
use adverb_switchover::{Connection, End, Waiters, Wake};
use adverb_sys::bpf::XdpMode;
use adverb_sys::fork::KeptFd;
use adverb_sys::repair;
use adverb_tcpip::Time;
use adverb_tcpip::stack::{ConnectionId, Event};
use adverb_tcpip::tcp::{self, State};
use adverb_xdp::{Key, Membership};

use super::super::uplink::FD_MIN;
use super::Shared;
use super::closing::Closing;
use super::habits::{self, Habits};
use crate::base::iovec::IoCursor;
use crate::base::{address, config, raw};
use crate::socket::state::{Reason, Socket};
use crate::socket::table::SocketRef;
use crate::transport::ring::{Ring, Segment};
use crate::transport::{bell, doorbell};

/// An interface whose owner helps, and what is carried by it.
#[derive(Debug)]
pub(super) struct Carrier {
    pub(super) index: u32,
    pub(super) membership: Membership,
    pub(super) net: Netstack,
    pub(super) carried: BTreeMap<ConnectionId, Carried>,
    /// Those that their programs have closed.
    closing: Closing<ConnectionId>,
    /// Those that are to go back to the kernel, and when: their peers have sent what is urgent, their way or their packets' is by
    /// another interface, or the kernel carries them better. Some of them are gone.
    leaving: BTreeSet<(u64, ConnectionId)>,
    /// When to look whether the owner has ended.
    look_at_ns: u64,
    /// Why frames carry no connections: some of their packets would not come here.
    unfit: Option<&'static str>,
    /// When to look for that again, and the last connection that was looked at.
    check_at_ns: u64,
    checked: Option<ConnectionId>,
    /// Peers whose packets have come by other ways, and until when they have no frames.
    misled: HashMap<IpAddr, u64>,
    /// When a stream's frames were last handed to the kernel.
    flushed_ns: u64,
    /// A connection whose ring has bytes that wait for more of its stream. The next step takes them.
    deferred: Option<ConnectionId>,
    is_over: bool,
}

/// A connection's other end.
#[derive(Debug)]
pub(super) struct Carried {
    /// `None` once the program has closed it.
    pub(super) socket: Option<&'static Socket>,
    pub(super) segment: Segment,
    pub(super) me: End,
    pub(super) waiters: Waiters,
    pub(super) shared: Arc<Shared>,
    pub(super) twin: Twin,
    pub(super) key: Key,
    /// By which its packets come, while it is open.
    pub(super) gate: u32,
    /// What has come and found no room in the ring.
    pub(super) rest: Vec<u8>,
    has_told_fin: bool,
    /// What has come is not to be read any more.
    is_read_out: bool,
    /// How often it has been told to go back to the kernel; `None` if it is not to. And why.
    attempts: Option<u32>,
    why: Reason,
    /// A thread is there that gives it back.
    pub(super) may_leave: bool,
    /// How far both streams were at the last check, and when that was.
    checked: Option<(u64, [u64; 2])>,
    pub(super) habits: Habits,
}

/// A copy of the descriptor of a socket that is in repair. If it is the last one, the connection is forgotten in silence.
#[derive(Debug)]
pub(super) struct Twin {
    fd: OwnedFd,
    /// Packets that the kernel had dropped when that was last looked at, and how many looks in a row have found more.
    dropped: u32,
    drops: u32,
}

impl Twin {
    pub(super) fn copy_of(fd: c_int) -> Option<Self> {
        let copy = raw::copy_above(fd, FD_MIN).ok()?;
        // SAFETY: it has just been made, and nothing else has it.
        Some(Self::new(unsafe { OwnedFd::from_raw_fd(copy) }))
    }

    /// Takes over a descriptor of ours, which the program does not know.
    fn new(fd: OwnedFd) -> Self {
        super::super::uplink::process().note_own(fd.as_raw_fd());
        let dropped = repair::dropped(&fd).unwrap_or(0);
        Self { fd, dropped, drops: 0 }
    }

    pub(super) fn number(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    /// Whether the kernel has dropped packets between the last two looks, and again since then: what was on its way, or is made
    /// up, is not enough.
    fn keeps_missing(&mut self) -> bool {
        let Ok(dropped) = repair::dropped(&self.fd) else { return false };
        let has_more = std::mem::replace(&mut self.dropped, dropped) != dropped;
        self.drops = if has_more { self.drops + 1 } else { 0 };
        self.drops > 1
    }
}

/// A copy of one of those, for a moment. A child that is forked in it does not have it: its parent's connection may have gone
/// back to the kernel by then, and would not end.
#[derive(Debug)]
pub(super) struct ShortCopy(KeptFd);

impl ShortCopy {
    fn of(twin: &Twin) -> Option<Self> {
        let copy = raw::copy_above(twin.number(), FD_MIN).ok()?;
        // SAFETY: it has just been made, and nothing else has it.
        let copy = KeptFd::new(unsafe { OwnedFd::from_raw_fd(copy) }).ok()?;
        super::super::uplink::process().note_own(copy.as_raw_fd());
        Some(Self(copy))
    }

    pub(super) fn number(&self) -> c_int {
        self.0.as_raw_fd()
    }
}

impl Drop for ShortCopy {
    fn drop(&mut self) {
        super::super::uplink::process().forget_own(self.number());
    }
}

impl AsFd for Twin {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        repair::let_in(&self.fd);
        super::super::uplink::process().forget_own(self.number());
    }
}

/// Its time, as the stack has it.
pub(super) const fn time(now_ns: u64) -> Time {
    Time::from_nanos(now_ns)
}

impl Carrier {
    pub(super) fn new(index: u32, membership: Membership, net: Netstack) -> Self {
        let carried = BTreeMap::new();
        let closing = Closing::default();
        Self {
            index,
            membership,
            net,
            carried,
            closing,
            leaving: BTreeSet::new(),
            look_at_ns: 0,
            unfit: None,
            check_at_ns: 0,
            checked: None,
            misled: HashMap::new(),
            flushed_ns: 0,
            deferred: None,
            is_over: false,
        }
    }

    /// Whether the interface has an address.
    pub(super) fn has(&self, own: IpAddr) -> bool {
        self.net.addresses().iter().any(|address| address.ip == own)
    }

    /// Packets that come by a gate are the kernel's at once, whenever the owner does what it is asked. Another connection may
    /// get the gate: the owner has answered by then.
    pub(super) fn shut(&self, gate: u32) {
        self.membership.gates().set(gate, false);
        super::super::uplink::process().free_gate(gate);
    }

    /// The owner has ended, and with it all connections.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Descriptors that can be read when there is something to do.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.net.fds().chain([self.membership.as_fd()])
    }

    /// When a step is due, if no packet comes before.
    pub(super) fn deadline_ns(&self, now_ns: u64) -> Option<u64> {
        let deferred = self.deferred.map(|_| now_ns + FLUSH_NS);
        let due = self.net.next_deadline(time(now_ns)).map(Time::nanos);
        let leaving = self.leaving.first().map(|(at, _)| *at);
        let check = Some(self.check_at_ns).filter(|_| !self.carried.is_empty());
        let deadlines = [deferred, due, leaving, check];
        deadlines.into_iter().flatten().min()
    }

    pub(super) fn state(&mut self, id: ConnectionId) -> Option<State> {
        self.net.tcp().get(id).map(tcp::Connection::state)
    }

    /// Whether a connection that its program has closed has something to say still, or a reset has not left for want of room.
    /// In TIME-WAIT there is nothing to say.
    pub(super) fn is_closing(&mut self) -> bool {
        self.let_go();
        let Self { carried, net, .. } = self;
        let mut closed = carried.iter().filter(|(_, one)| one.socket.is_none());
        closed.any(|(id, _)| {
            net.tcp().get(*id).is_some_and(|connection| connection.state() != State::TimeWait)
        }) || self.has_unsent()
    }

    fn has_unsent(&mut self) -> bool {
        self.net.tcp().is_ready() || self.net.unflushed() > 0
    }

    /// Something is to be done at once.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.deferred.is_some() || self.net.is_due()
    }

    /// Takes what has come, and sends what there is. Says whether there was anything.
    pub(super) fn step(&mut self, now_ns: u64) -> bool {
        let is_busy = self.step_unflushed(now_ns);
        self.let_go();
        self.net.flush();
        is_busy
    }

    /// The same by a thread that waits: where something has come, what it does with that is more urgent than what can wait. It
    /// may take the next bytes of a connection itself.
    pub(super) fn step_for_news(
        &mut self,
        now_ns: u64,
        take: &mut dyn FnMut(ConnectionId, &[u8]) -> bool,
    ) {
        let has_news = self.take_in(now_ns, take);
        match has_news {
            true => self.net.send_urgent(time(now_ns)),
            false => self.net.send_out(time(now_ns)),
        };
        self.let_go();
        self.net.flush();
    }

    /// The same after the program has written: that leaves before anything else is done.
    pub(super) fn step_for_written(&mut self, now_ns: u64) {
        self.net.send_urgent(time(now_ns));
        self.net.flush();
        self.step(now_ns);
    }

    /// The same for a stream: what it writes leaves once there is some of it, or some time has passed since some has.
    pub(super) fn step_stream(&mut self, id: ConnectionId, now_ns: u64) {
        self.step_unflushed(now_ns);
        if let Some(one) = self.carried.get(&id) {
            one.shared.stepped_ns.store(now_ns, Ordering::Relaxed);
        }
        if self.net.unflushed() >= FLUSH_FRAMES || now_ns > self.flushed_ns + FLUSH_NS {
            self.flushed_ns = now_ns;
            self.net.flush();
        }
    }

    fn step_unflushed(&mut self, now_ns: u64) -> bool {
        let is_busy = self.take_in(now_ns, &mut |_, _| false);
        self.net.send_out(time(now_ns)) || is_busy
    }

    /// Bytes of a stream wait in its ring for more of it, until the next step: of a thread that waits or writes, or of the helper,
    /// which looks after 2 to 4 ms if no thread of the program does.
    pub(super) fn defer(&mut self, id: ConnectionId, now_ns: u64) {
        self.expect_more(id, false);
        if let Some(other) = self.deferred.replace(id).filter(|other| *other != id) {
            self.send_from_ring(other, now_ns);
        }
    }

    /// Takes what has come. Says whether there was anything.
    fn take_in(&mut self, now_ns: u64, take: &mut dyn FnMut(ConnectionId, &[u8]) -> bool) -> bool {
        if let Some(id) = self.deferred.take() {
            self.send_from_ring(id, now_ns);
        }
        if now_ns >= self.look_at_ns {
            self.look_at_ns = now_ns + LOOK_NS;
            if self.membership.has_ended() {
                self.fail_all();
                return false;
            }
        }
        self.hindrance(now_ns);
        let Self { net, carried, .. } = self;
        let mut is_busy = net.take_in_by(time(now_ns), |id, bytes| {
            carried
                .get_mut(&id)
                .is_some_and(|one| one.rest.is_empty() && (take(id, bytes) || one.put_short(bytes)))
        });
        while let Some(event) = self.net.poll_event() {
            is_busy = true;
            match event {
                Event::Connection(id, _) => self.serve(id, now_ns),
                Event::Acceptable(_) => {}
            }
        }
        is_busy
    }

    /// Why frames of this interface carry no connections, looked up anew once a second.
    pub(super) fn hindrance(&mut self, now_ns: u64) -> Option<&'static str> {
        if now_ns >= self.check_at_ns {
            self.check_at_ns = now_ns + CHECK_NS;
            let is_behind = self.membership.mode() == XdpMode::Generic;
            self.unfit = is_behind
                .then_some(
                    "the owner's program is behind the driver, where packets are put together",
                )
                .or_else(|| self.net.shortfall());
            self.check_some(now_ns);
        }
        self.unfit
    }

    /// Connections whose packets come to the kernel go back to it, and those that it carries better. All do if frames carry none
    /// any more; otherwise some are asked in turn.
    fn check_some(&mut self, now_ns: u64) {
        let Self { net, carried, leaving, unfit, checked, misled, .. } = self;
        misled.retain(|_, until| now_ns < *until);
        let most = if unfit.is_some() { usize::MAX } else { CHECKS_MAX };
        let last = checked.take();
        let is_before = |id: &ConnectionId| last.is_some_and(|last| *id <= last);
        let all = || carried.keys().copied();
        let turn = all().skip_while(is_before).chain(all().take_while(is_before));
        let ids: Vec<_> = turn.take(most).collect();
        *checked = ids.last().copied();
        for id in ids {
            let progress = net.tcp().get(id).map(tcp::Connection::progress);
            let Some((one, progress)) = carried.get_mut(&id).zip(progress) else { continue };
            let is_held = one.is_held_back(progress, now_ns);
            let is_misled = one.twin.keeps_missing();
            if let Some(peer) = one.key.remote.filter(|_| is_misled && misled.len() < MISLED_MAX) {
                misled.insert(peer.ip(), now_ns + MISLED_NS);
            }
            let leaves = unfit.is_some() || is_held || is_misled;
            if leaves && one.may_leave && one.attempts.is_none() {
                one.attempts = Some(0);
                one.why = if is_held { Reason::Bulk } else { Reason::Feature };
                leaving.insert((0, id));
            }
        }
    }

    /// Packets of this peer have come by other ways of late.
    pub(super) fn is_misled(&self, peer: IpAddr) -> bool {
        self.misled.contains_key(&peer)
    }

    /// Lets go of what its programs have closed and the stack has forgotten.
    fn let_go(&mut self) {
        while self.carried.len() > self.net.connections() {
            let Self { closing, net, .. } = self;
            let Some(id) = closing.take(|id| net.tcp().get(id).is_none()) else { return };
            self.finish(id);
        }
    }

    /// Something has happened to a connection.
    pub(super) fn serve(&mut self, id: ConnectionId, now_ns: u64) {
        let Self { net, carried, .. } = self;
        let Some(one) = carried.get_mut(&id) else { return net.tcp().let_go(id) };
        let served = net.tcp().with(id, |connection| {
            // A ring that its program has spoilt has nothing to send.
            let _ = one.empty_ring(connection, time(now_ns));
            let is_at_end = one.fill_ring(connection);
            let is_over = connection.state() == State::Closed;
            let is_done = is_over && !(connection.end().is_none() && one.has_more(connection));
            (is_at_end, is_done, connection.is_left())
        });
        let Some((is_at_end, is_done, is_left)) = served else { return };
        if is_left && one.attempts.is_none() {
            one.attempts = Some(0);
            self.leaving.insert((0, id));
        }
        if is_at_end {
            one.tell_fin();
        }
        if is_done {
            self.finish(id);
        }
    }

    /// Takes what the program has written. Says whether there was anything.
    pub(super) fn send_from_ring(&mut self, id: ConnectionId, now_ns: u64) -> bool {
        let Self { net, carried, .. } = self;
        let Some(one) = carried.get_mut(&id) else { return false };
        let sent = net.tcp().with(id, |connection| one.empty_ring(connection, time(now_ns)));
        match sent {
            Some(Ok(sent)) => sent,
            Some(Err(_)) | None => false,
        }
    }

    /// Takes a few bytes that the program has written, and that follow all that is in its ring: nothing. Says whether the
    /// connection has them; nothing has happened otherwise.
    pub(super) fn send_short(
        &mut self,
        id: ConnectionId,
        from: *const u8,
        len: usize,
        now_ns: u64,
    ) -> bool {
        let Self { net, carried, .. } = self;
        let Some(one) = carried.get(&id) else { return false };
        if one.habits.holds || one.segment.incoming(one.me).direction.has_bytes() {
            return false;
        }
        let sent = net.with_sender(id, time(now_ns), |connection| {
            if connection.send_room() < u64::try_from(len).unwrap_or(u64::MAX) {
                return false;
            }
            let mut chunk = vec![0_u8; len];
            let part = [parts_of(from.cast_mut(), len)];
            let copied = IoCursor::new(&part).drain(chunk.as_mut_ptr(), len);
            copied.is_ok() && connection.send(chunk, time(now_ns)).is_ok()
        });
        sent == Some(true)
    }

    /// More follows what the program is about to write, or does not; the connection may be corked besides.
    pub(super) fn expect_more(&mut self, id: ConnectionId, more: bool) {
        let Self { net, carried, .. } = self;
        if let Some(one) = carried.get_mut(&id).filter(|one| one.habits.holds != more) {
            one.habits.holds = more;
            let is_corked = one.habits.is_corked();
            net.tcp().with(id, |connection| connection.set_corked(is_corked));
        }
    }

    /// The program has set an option of the socket, and `no_delay` is what it wants of small segments.
    pub(super) fn heed(&mut self, id: ConnectionId, option: (c_int, c_int), no_delay: bool) {
        let Self { net, carried, .. } = self;
        let Some(one) = carried.get_mut(&id) else { return };
        let fd = one.twin.number();
        let of = raw::option::<c_int>(fd, option.0, option.1).unwrap_or(0);
        let usual = net.config().user_timeout;
        let habits = &mut one.habits;
        net.tcp().with(id, |connection| match option {
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
                connection.set_no_delay(no_delay);
            }
            (libc::IPPROTO_TCP, libc::TCP_CORK) => {
                habits.corked = of != 0;
                connection.set_corked(habits.is_corked());
            }
            (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => connection.set_quick_ack(of != 0),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                connection.set_congestion(habits::congestion(fd, config::get().is_uncontrolled));
            }
            (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
                connection.set_pacing(habits::pacing(fd));
            }
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
                habits.keeps_alive = of != 0;
                habits::silence(fd);
                connection.set_keep_alive(habits.keep_alive(fd));
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT) => {
                connection.set_keep_alive(habits.keep_alive(fd));
            }
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
                connection.set_user_timeout(habits::user_timeout(fd).unwrap_or(usual));
                connection.set_keep_alive(habits.keep_alive(fd));
            }
            _ => {}
        });
    }

    /// One of the connections that are to go back to the kernel now, with a copy of its descriptor. Those that cannot are carried
    /// on, and what is urgent comes in line.
    pub(super) fn take_leaving(&mut self, now_ns: u64) -> Option<(SocketRef, ShortCopy, Reason)> {
        let Self { leaving, carried, net, membership, .. } = self;
        while let Some((at, id)) = leaving.first().copied().filter(|(at, _)| *at <= now_ns) {
            leaving.remove(&(at, id));
            let Some(one) = carried.get_mut(&id) else { continue };
            let attempts = one.attempts.unwrap_or(0) + 1;
            let may_go = attempts <= config::get().leave_attempts_max && !membership.is_stuck();
            let copy = if may_go { one.copy() } else { None };
            one.attempts = copy.is_some().then_some(attempts);
            if let Some((socket, copy)) = copy {
                leaving.insert((now_ns + LEAVE_AGAIN_NS, id));
                return Some((socket, copy, one.why));
            }
            net.tcp().with(id, |connection| {
                if connection.is_left() {
                    connection.keep();
                }
            });
        }
        None
    }

    /// Whether silent peers of a connection are asked.
    pub(super) fn keeps_alive(&self, id: ConnectionId) -> Option<bool> {
        self.carried.get(&id).map(|one| one.habits.keeps_alive)
    }

    /// The connection has ended: the program is told, unless it has closed it itself.
    fn finish(&mut self, id: ConnectionId) {
        let end = self.net.tcp().get(id).and_then(tcp::Connection::end);
        self.finish_as(id, end);
    }

    fn finish_as(&mut self, id: ConnectionId, end: Option<tcp::End>) {
        let Some(mut one) = self.carried.remove(&id) else { return };
        one.keep_rest(&mut self.net, id);
        self.net.tcp().let_go(id);
        self.shut(one.gate);
        // The owner has closed its copy of the socket after that.
        let _ = self.membership.release(one.key);
        let errno = match end {
            Some(tcp::End::TimedOut) => libc::ETIMEDOUT,
            // As the kernel has it of a peer that had ended its stream before: there is nothing to send to.
            Some(tcp::End::Reset) if one.awaits_own_end() => libc::EPIPE,
            Some(tcp::End::Aborted | tcp::End::Refused | tcp::End::Reset) => libc::ECONNRESET,
            None => 0,
        };
        one.vanish(errno);
    }

    /// The owner has ended: nothing comes any more. All peers are told, as far as frames leave still.
    fn fail_all(&mut self) {
        self.is_over = true;
        for id in self.carried.keys() {
            self.net.tcp().with(*id, tcp::Connection::abort);
        }
        let mut rounds = 0..FAREWELL_ROUNDS_MAX;
        while self.has_unsent() && rounds.next().is_some() {
            if !self.net.step(time(raw::now_ns())) {
                raw::nap(FAREWELL_NAP_NS);
            }
        }
        for (id, mut one) in std::mem::take(&mut self.carried) {
            one.keep_rest(&mut self.net, id);
            self.net.tcp().let_go(id);
            self.shut(one.gate);
            one.vanish(libc::ECONNRESET);
        }
    }

    /// Resets a connection that its program is done with.
    pub(super) fn abort(&mut self, id: ConnectionId, now_ns: u64) {
        if let Some(one) = self.carried.get_mut(&id) {
            one.socket = None;
        }
        self.reset(id, now_ns);
    }

    /// Resets a connection that was to go to another program, and tells its own, which reads no more of it.
    pub(super) fn reset(&mut self, id: ConnectionId, now_ns: u64) {
        if let Some(one) = self.carried.get_mut(&id) {
            one.is_read_out = true;
        }
        self.end_by_reset(id, now_ns);
    }

    /// Resets a connection whose socket has been disconnected, by a child of this process that could not pass it on. Its program
    /// reads what has come by now, and is told. Says whether that is so.
    pub(super) fn reset_if_disconnected(&mut self, id: ConnectionId, now_ns: u64) -> bool {
        let has_no_peer = |one: &Carried| address::name(one.twin.number(), true).is_none();
        let is_disconnected = self.carried.get(&id).is_some_and(has_no_peer);
        if is_disconnected {
            self.end_by_reset(id, now_ns);
        }
        is_disconnected
    }

    fn end_by_reset(&mut self, id: ConnectionId, now_ns: u64) {
        self.net.tcp().with(id, tcp::Connection::abort);
        // The stack forgets it with the reset.
        let end = self.net.tcp().get(id).and_then(tcp::Connection::end);
        self.net.step(time(now_ns));
        self.finish_as(id, end);
    }

    /// The program closes a connection whose peer has ended its stream. Says whether frames end it.
    pub(super) fn close(&mut self, id: ConnectionId, now_ns: u64) -> bool {
        if !self.drain_ring(id) {
            return false;
        }
        self.net.tcp().with(id, |connection| connection.close(time(now_ns)));
        self.net.step(time(now_ns));
        if let Some(one) = self.carried.get_mut(&id) {
            one.socket = None;
            one.shared.is_over.store(true, Ordering::Release);
            self.closing.add(id);
        }
        self.let_go();
        true
    }

    /// Another program is to have a connection both of whose streams have ended, and this one lets go of it: what has come
    /// and is behind the bytes in the ring. `None` if it has not ended so.
    pub(super) fn take_rest(&mut self, id: ConnectionId, now_ns: u64) -> Option<Vec<u8>> {
        let connection = self.net.tcp().get(id).filter(|connection| connection.end().is_none())?;
        if !matches!(connection.state(), State::Closed | State::TimeWait) {
            return None;
        }
        let mut rest = std::mem::take(&mut self.carried.get_mut(&id)?.rest);
        let receive = |connection: &mut tcp::Connection<Vec<u8>>| {
            connection.receive().map(|received| received.as_ref().to_vec())
        };
        while let Some(Some(more)) = self.net.tcp().with(id, receive) {
            rest.extend_from_slice(&more);
        }
        self.close(id, now_ns).then_some(rest)
    }

    /// The same, if it only ends its stream.
    pub(super) fn shut_down(&mut self, id: ConnectionId, now_ns: u64) -> bool {
        if !self.drain_ring(id) {
            return false;
        }
        self.net.tcp().with(id, tcp::Connection::shut_down);
        self.net.step(time(now_ns));
        true
    }

    /// Takes all that the program has written; false if the peer does not take it in time.
    fn drain_ring(&mut self, id: ConnectionId) -> bool {
        let until = raw::now_ns() + DRAIN_NS;
        loop {
            let now = raw::now_ns();
            self.send_from_ring(id, now);
            let Some(one) = self.carried.get(&id) else { return false };
            if !one.segment.incoming(one.me).direction.has_bytes() {
                return true;
            }
            if now > until {
                return false;
            }
            self.net.step(time(now));
            raw::give_way();
        }
    }
}

impl Carried {
    pub(super) fn new(
        socket: &'static Socket,
        (segment, me): (Segment, End),
        shared: Arc<Shared>,
        (twin, key, gate): (Twin, Key, u32),
        habits: Habits,
    ) -> Self {
        Self {
            socket: Some(socket),
            segment,
            me,
            waiters: Waiters::default(),
            shared,
            twin,
            key,
            gate,
            rest: Vec::new(),
            has_told_fin: false,
            is_read_out: false,
            attempts: None,
            why: Reason::Feature,
            may_leave: false,
            checked: None,
            habits,
        }
    }

    /// Its program's socket, which stays what it is meanwhile, and another copy of the descriptor.
    fn copy(&self) -> Option<(SocketRef, ShortCopy)> {
        let socket = self.socket.and_then(SocketRef::of)?;
        Some((socket, ShortCopy::of(&self.twin)?))
    }

    pub(super) fn connection(&self) -> Connection<'_> {
        Connection { page: self.segment.page(), waiters: &self.waiters, me: self.me }
    }

    /// Moves what the program has written into the connection, as far as it takes it. Says whether there was anything.
    fn empty_ring(
        &mut self,
        connection: &mut tcp::Connection<Vec<u8>>,
        now: Time,
    ) -> Result<bool, adverb_switchover::Broken> {
        let ring = self.segment.incoming(self.me);
        // Before the ring is looked at: a write that is counted after that asks for another step.
        self.shared.deferred.swap(0, Ordering::AcqRel);
        let mut has_moved = false;
        loop {
            let room = usize::try_from(connection.send_room()).unwrap_or(usize::MAX);
            let (_, available) = ring.readable()?;
            let len = available.min(room).min(CHUNK_BYTES);
            if len == 0 {
                break;
            }
            let mut chunk = vec![0_u8; len];
            let part = [parts_of(chunk.as_mut_ptr(), len)];
            let Ok(got) = ring.read(&mut IoCursor::new(&part), false) else { break };
            chunk.truncate(got);
            if got == 0 || connection.send(chunk, now).is_err() {
                break;
            }
            has_moved = true;
        }
        if has_moved {
            self.wake(self.connection().wake_writer(|| ring.leaves_much_room()));
        }
        Ok(has_moved)
    }

    /// Moves what has come into the ring, as far as there is room. Says whether that was the last of it.
    pub(super) fn fill_ring(&mut self, connection: &mut tcp::Connection<Vec<u8>>) -> bool {
        let mut has_moved = false;
        loop {
            has_moved |= !self.rest.is_empty() && self.put(&[]);
            while self.rest.is_empty() {
                let Some(received) = connection.receive() else { break };
                has_moved |= self.put(received.as_ref());
            }
            let is_full = !self.rest.is_empty();
            let was_full = self.shared.is_full.load(Ordering::Relaxed);
            self.shared.is_full.store(is_full, Ordering::Release);
            if !is_full || was_full {
                break;
            }
            // A program that has read before it could see that does not come back: there is room by now.
            fence(Ordering::SeqCst);
        }
        if has_moved {
            self.wake(self.connection().wake_reader());
        }
        if has_fin(connection) && !self.shared.has_fin.swap(true, Ordering::AcqRel) {
            self.wake(self.connection().wake_at_fin());
        }
        self.rest.is_empty() && connection.is_at_end() && connection.end().is_none()
    }

    /// Whether a stream moves at least half as many bytes in a round trip as this end takes or keeps at once, where round trips
    /// are long: the kernel, which may have more of them on their way, is faster.
    fn is_held_back(&mut self, progress: [u64; 2], now_ns: u64) -> bool {
        let Some((since, before)) = self.checked.replace((now_ns, progress)) else { return false };
        let moved = std::iter::zip(progress, before).map(|(now, then)| now.saturating_sub(then));
        let halves = [SEND_BYTES / 2, u64::from(WINDOW_BYTES / 2)];
        let mut much = moved.zip(halves).filter(|(bytes, half)| bytes >= half).peekable();
        if much.peek().is_none() {
            return false;
        }
        let elapsed_ns = u128::from(now_ns.saturating_sub(since).max(1));
        let round_trip = repair::round_trip_us(&self.twin).unwrap_or(0);
        let at_once = |bytes: u64| u128::from(bytes) * u128::from(round_trip) * 1000 / elapsed_ns;
        round_trip >= ROUND_TRIP_US && much.any(|(bytes, half)| at_once(bytes) >= half.into())
    }

    /// The peer has ended its stream, and the program has not.
    fn awaits_own_end(&self) -> bool {
        let is_open = |socket: &Socket| !socket.flags.is_write_shut.load(Ordering::Relaxed);
        self.shared.has_fin.load(Ordering::Relaxed) && self.socket.is_some_and(is_open)
    }

    /// More has come than there is room for yet, and its program may still read it.
    fn has_more(&self, connection: &tcp::Connection<Vec<u8>>) -> bool {
        let has_rest = !self.rest.is_empty() || connection.readable_bytes() > 0;
        self.socket.is_some() && has_rest
    }

    /// Puts bytes behind what waits for room. Says whether any have gone into the ring.
    pub(super) fn put(&mut self, bytes: &[u8]) -> bool {
        let ring = self.segment.outgoing(self.me);
        if self.rest.is_empty() {
            let done = put_into(ring, bytes);
            self.rest.extend_from_slice(bytes.get(done..).unwrap_or(&[]));
            return done > 0;
        }
        self.rest.extend_from_slice(bytes);
        let done = put_into(ring, &self.rest);
        self.rest.drain(..done);
        done > 0
    }

    /// Puts a few bytes that have come, and wait for no others, into the ring, all or none. Says whether they are there.
    fn put_short(&mut self, bytes: &[u8]) -> bool {
        let ring = self.segment.outgoing(self.me);
        let is_put = ring.write_short(bytes.as_ptr(), bytes.len(), false);
        if is_put {
            self.wake(self.connection().wake_reader());
        }
        is_put
    }

    /// Takes all that has come out of the connection, which ends.
    fn keep_rest(&mut self, net: &mut Netstack, id: ConnectionId) {
        while let Some(Some(more)) = net.tcp().with(id, tcp::Connection::receive) {
            self.put(more.as_ref());
        }
    }

    /// Takes back what is in the ring, and has not been read. The lock for receiving is held.
    pub(super) fn take_unread(&self) -> Option<Vec<u8>> {
        let ring = self.segment.outgoing(self.me);
        let mut unread = Vec::new();
        loop {
            let (_, available) = ring.readable().ok()?;
            if available == 0 {
                return Some(unread);
            }
            let mut room = vec![0_u8; available];
            let part = [parts_of(room.as_mut_ptr(), available)];
            let got = ring.read(&mut IoCursor::new(&part), false).ok()?;
            unread.extend_from_slice(room.get(..got)?);
        }
    }

    /// The socket is out of repair, which has made it forget something.
    pub(super) fn restore_reuse(&self) {
        let reuse = self.habits.reuse;
        let _ = raw::set_option(self.twin.number(), libc::SOL_SOCKET, libc::SO_REUSEADDR, reuse);
    }

    fn tell_fin(&mut self) {
        if !std::mem::replace(&mut self.has_told_fin, true) {
            let connection = self.connection();
            self.wake(connection.shut(true));
            self.wake(connection.wake_at_fin());
        }
    }

    /// There is no connection any more. The kernel's socket is without one, too. What has come is to be read before the
    /// program learns of that.
    fn vanish(mut self, errno: c_int) {
        let rest = std::mem::take(&mut self.rest);
        let has_rest = !self.is_read_out && !rest.is_empty();
        let ring = self.segment.outgoing(self.me).direction;
        let has_unread = has_rest || !self.is_read_out && ring.has_bytes();
        if has_rest {
            self.shared.rest.with(|its| *its = rest);
        }
        self.shared.is_full.store(has_rest, Ordering::Release);
        self.shared.is_over.store(true, Ordering::Release);
        let Some(socket) = self.socket.filter(|_| errno != 0) else { return };
        socket.flags.has_rest.store(has_rest, Ordering::Relaxed);
        // In this order: what is unread comes before the error of one that was reset.
        socket.set_reason(Reason::Reset);
        socket.set_error(errno);
        if !has_unread {
            socket.set_route(adverb_switchover::Route::Kernel);
        }
        socket.flags.is_peer_gone.store(true, Ordering::Release);
        let wakes = self.connection().vanish(false);
        // What sleeps in the kernel is woken by that, and of an error.
        raw::disconnect(self.twin.number());
        bell::wake(wakes);
    }

    /// Wakes a thread of the program that sleeps.
    pub(super) fn wake(&self, wake: Wake<'_>) {
        let is_for_stream = match wake {
            Wake::Doorbell(number) => {
                doorbell::is_asleep(number) && doorbell::claim(number) && !doorbell::notify(number)
            }
            wake @ (Wake::Nothing | Wake::Word(_) | Wake::Bell) => bell::wake(wake),
        };
        if is_for_stream && let Some(bell) = self.connection().bell() {
            let twin = &self.twin;
            bell.send(|| {
                raw::send(twin.number(), &[0]).is_ok() && repair::wake_readers(twin).is_ok()
            });
        }
    }
}

/// Whether the peer has ended its stream.
fn has_fin(connection: &tcp::Connection<Vec<u8>>) -> bool {
    match connection.state() {
        State::CloseWait | State::Closing | State::LastAck | State::TimeWait => true,
        State::Closed => connection.end().is_none(),
        State::Established
        | State::FinWait1
        | State::FinWait2
        | State::SynReceived
        | State::SynSent => false,
    }
}

/// Says how many bytes there was room for.
pub(super) fn put_into(ring: Ring<'_>, bytes: &[u8]) -> usize {
    let part = [parts_of(bytes.as_ptr().cast_mut(), bytes.len())];
    ring.write(&mut IoCursor::new(&part), false).unwrap_or(0)
}

fn parts_of(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast::<c_void>(), iov_len: len }
}

/// Bytes that may wait: the kernel's queues can take them back, and what is in a ring.
pub(super) const WINDOW_BYTES: u32 = 128 << 10;
pub(super) const SEND_BYTES: u64 = 256 << 10;
/// Bytes that are kept together until all of them are acknowledged.
const CHUNK_BYTES: usize = 64 << 10;
/// Frames of a stream that leave together, and how long after earlier ones they may wait for each other.
const FLUSH_FRAMES: usize = 16;
pub(super) const FLUSH_NS: u64 = 50_000;
/// Steps that tell peers of the owner's end: enough for as many connections as there can be, with some for want of room;
/// and a pause for room.
const FAREWELL_ROUNDS_MAX: u32 = 256;
const FAREWELL_NAP_NS: i64 = 50_000;
/// How often to look whether all packets come here, and of how many connections at once.
const CHECK_NS: u64 = 1_000_000_000;
const CHECKS_MAX: usize = 1024;
/// How long a peer whose packets have come by other ways has no frames, and how many of those are known.
const MISLED_NS: u64 = 60_000_000_000;
const MISLED_MAX: usize = 256;
/// Shorter round trips hold no stream back.
const ROUND_TRIP_US: u32 = 200;
/// How often to look whether the owner has ended, while steps are taken.
const LOOK_NS: u64 = 5_000_000;
/// How long after an attempt to give a connection back, in which a thread of its program was in the midst of something, there
/// is another one.
const LEAVE_AGAIN_NS: u64 = 10_000_000;
/// How long a program that closes waits for a peer that takes nothing.
const DRAIN_NS: u64 = 800_000_000;
