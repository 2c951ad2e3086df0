//! Receiving datagrams: out of the mailbox, and out of the kernel's queue.
//!
//! # Safety
//!
//! Message headers passed to the kernel point to locals and to the program's buffers, which it has
//! promised for the length of the call (see `iovec.rs`). Short datagrams go to memory of ours, for which the caller
//! answers.

#![expect(clippy::as_conversions, reason = "lengths of the C library have other widths")]

use std::convert::Infallible;
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering;

use adverb_sockconf::Level;

use super::asleep::{self, Sleeper};
use super::attachment::Inbox;
use super::mailbox::{Empty, Front, LOOPBACK, Mailbox, Peeked, Sent, Shows};
use super::order::{self, KernelQueue, Next};
use super::store::Store;
use super::{across, attachment, framed, outbox};
use crate::base::address::{self, Name};
use crate::base::iovec::IoCursor;
use crate::base::raw::{self, Errno};
use crate::base::real::real;
use crate::base::thread::{Here, Seen};
use crate::base::{config, log};
use crate::socket::counters::{add, rise};
use crate::socket::loans::{Loan, NO_PIECE, PIECES_MAX};
use crate::socket::policy;
use crate::socket::spin::{LOOKS_OF_KERNEL, SpinBudget};
use crate::socket::stamps::Control;
use crate::socket::state::Socket;
use crate::socket::table::{self, SocketRef};
use crate::socket::wait_loop::{self, Budget, Limits, Look, Rest, Wait};
use crate::transport::{kernel, xdp};

/// What the program wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) parts: &'a [libc::iovec],
    pub(crate) control: *mut c_void,
    pub(crate) control_len: usize,
    pub(crate) flags: c_int,
    /// What comes out of a mailbox may be lent where it lies, rather than copied.
    pub(crate) loan: Option<&'a Loan<'a>>,
}

/// No bytes.
const NOTHING: Request<'_> =
    Request { parts: &[], control: std::ptr::null_mut(), control_len: 0, flags: 0, loan: None };

impl Request<'_> {
    pub(super) fn peeks(&self) -> bool {
        self.flags & libc::MSG_PEEK != 0
    }
}

/// A datagram that has come.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    /// What the call returns.
    pub(crate) len: usize,
    pub(crate) from: Name,
    pub(crate) from_len: libc::socklen_t,
    pub(crate) flags: c_int,
    pub(crate) control_len: usize,
    pub(super) is_from_ring: bool,
    pub(super) sent: Sent,
    /// How many the kernel had dropped before it queued this one, if it says so.
    pub(super) drops: u32,
}

pub(super) type Outcome = Result<Arrival, Errno>;

/// Receives one datagram, waiting as the socket's options and `request` say.
pub(crate) fn receive(socket: &SocketRef, fd: c_int, request: Request<'_>) -> Outcome {
    raw::cancellation_point();
    let errno = raw::errno();
    let outcome = counted(socket, wait(socket, fd, request));
    if outcome.is_ok() {
        raw::set_errno(errno);
    }
    outcome
}

/// Receives one datagram if there is one, for a caller that keeps `errno`, asks again, and holds a lock: the call waits for no
/// reader that sleeps.
pub(crate) fn receive_now(socket: &SocketRef, fd: c_int, request: Request<'_>) -> Outcome {
    let mailbox = || attachment::inbox(socket, fd).map(Inbox::mailbox);
    let outcome = match xdp::get(socket, fd) {
        Some(frames) => framed::wait(socket, fd, frames, request),
        None if mailbox().is_some_and(|mailbox| !mailbox.let_sleeper_wake(Here::find(), false)) => {
            Err(Errno::AGAIN)
        }
        None => attempt(socket, fd, request),
    };
    counted(socket, outcome)
}

/// Takes the datagram that is in the mailbox of a socket, if it is a short one of at most `most` bytes, in the plainest
/// case. `None`: [`receive_now`] finds out what there is, and nothing has happened, to `errno` neither.
///
/// # Safety
///
/// `into` has room for `most` bytes, in whole runs (`RUN_BYTES`), which are nothing else's.
#[inline]
pub(crate) unsafe fn receive_short(
    here: Here,
    socket: &SocketRef,
    mailbox: &Mailbox,
    into: *mut u8,
    most: usize,
) -> Option<(usize, Option<SocketAddr>)> {
    // A mailbox that has been given up is here still.
    if !socket.datagrams.has_inbox.load(Ordering::Acquire) || !mailbox.let_sleeper_wake(here, false)
    {
        return None;
    }
    let _held = mailbox.try_hold_readers(here)?;
    // SAFETY: the caller's promise.
    let take = |front| unsafe { take_short(socket, mailbox, front, into, most) };
    match mailbox.front_beside() {
        Some(front) => take(front),
        None => take(mailbox.front()?),
    }
}

/// Takes the first record, in the plainest case; see [`receive_short`]. The readers' lock is held.
///
/// # Safety
///
/// That of [`receive_short`].
#[inline(always)]
unsafe fn take_short(
    socket: &Socket,
    mailbox: &Mailbox,
    front: Front,
    into: *mut u8,
    most: usize,
) -> Option<(usize, Option<SocketAddr>)> {
    let is_plain = !mailbox.is_held()
        && mailbox.shows() != Shows::Wanted
        && front.len <= most
        && !mailbox.is_blocked(&front)
        && mailbox.peeked() != Peeked::Kernel
        && !mailbox.is_others_turn_next();
    // SAFETY: the caller's promise.
    if !is_plain || !unsafe { mailbox.copy_short(&front, into) } {
        return None;
    }
    mailbox.is_others_turn();
    note_waiting(socket, mailbox, &front);
    let from = mailbox.address(&front);
    mailbox.advance(&front);
    mailbox.set_peeked(Peeked::Nothing);
    add(&socket.counters.rx_packets, 1);
    add(&socket.counters.rx_bytes, front.len);
    Some((front.len, from))
}

#[inline]
fn counted(socket: &Socket, outcome: Outcome) -> Outcome {
    match &outcome {
        Ok(arrival) if arrival.is_from_ring => {
            add(&socket.counters.rx_packets, 1);
            add(&socket.counters.rx_bytes, arrival.len);
        }
        Ok(arrival) => {
            add(&socket.counters.rx_os_packets, 1);
            add(&socket.counters.rx_os_bytes, arrival.len);
        }
        Err(Errno::AGAIN) => add(&socket.counters.rx_eagain, 1),
        Err(_) => {
            add(&socket.counters.rx_errors, 1);
            socket.note_error_taken();
        }
    }
    outcome
}

fn wait(socket: &SocketRef, fd: c_int, request: Request<'_>) -> Outcome {
    if let Some(frames) = xdp::get(socket, fd) {
        return framed::wait(socket, fd, frames, request);
    }
    let now = request.flags & libc::MSG_DONTWAIT != 0
        || socket.flags.is_nonblocking.load(Ordering::Relaxed);
    if now {
        let first = attempt(socket, fd, request);
        let is_empty = matches!(first, Err(Errno::AGAIN));
        return if is_empty { last_look(socket, fd, request) } else { first };
    }
    // With a mailbox, it looks there first, and asks the kernel a little later.
    let mailbox = attachment::inbox(socket, fd).map(Inbox::mailbox);
    let limits = Limits::of_receiver(socket, policy::receive_spin_ns(socket));
    let every = config::get().mailbox_looks;
    let outcome = Err(Errno::AGAIN);
    let mut call = Receiving { socket, fd, request, mailbox, rounds: 0, asked: 0, every, outcome };
    wait_loop::wait(Budget::new(limits, Seen::now()), &mut call)?;
    call.outcome
}

/// A call that receives, and waits.
struct Receiving<'a> {
    socket: &'a SocketRef,
    fd: c_int,
    request: Request<'a>,
    mailbox: Option<&'a Mailbox>,
    /// Looks, and those of them at the kernel's queue, which are one in so many of those in vain.
    rounds: u32,
    asked: u32,
    every: u32,
    /// It lies here, as it is too long to be moved from one function to the next.
    outcome: Outcome,
}

impl Receiving<'_> {
    fn say_looks(&self) {
        let Self { fd, rounds, asked, .. } = self;
        log::print(Level::Finer, || {
            format!("fd {fd} has been looked at {rounds} times, by the kernel {asked} times")
        });
    }

    /// Whether there is an outcome.
    fn attempt(&mut self) -> bool {
        self.outcome = attempt(self.socket, self.fd, self.request);
        !matches!(self.outcome, Err(Errno::AGAIN))
    }
}

impl Wait for Receiving<'_> {
    type Answer = ();

    #[inline]
    fn look(&mut self, budget: &mut Budget) -> Look<()> {
        let spins = budget.has_started();
        let looks = if self.mailbox.is_some() { 1 } else { LOOKS_OF_KERNEL };
        self.rounds = self.rounds.wrapping_add(1);
        let is_worth_a_look =
            self.mailbox.is_none_or(Mailbox::has_record) || self.rounds.is_multiple_of(self.every);
        if !is_worth_a_look {
            return Look::Nothing(looks);
        }
        if spins {
            if let Err(error) = table::still(self.fd, self.socket) {
                self.outcome = Err(error);
                return Look::Found(());
            }
            let mailbox = || attachment::inbox(self.socket, self.fd).map(Inbox::mailbox);
            self.mailbox = self.mailbox.or_else(mailbox);
        }
        self.asked = self.asked.wrapping_add(1);
        if !self.attempt() {
            return Look::Nothing(looks);
        }
        if spins {
            add(&self.socket.counters.rx_poll_hit, 1);
        }
        Look::Found(())
    }

    fn sleep(&mut self, budget: &mut SpinBudget) -> Rest<()> {
        let (socket, fd, request) = (self.socket, self.fd, self.request);
        self.say_looks();
        add(&socket.counters.rx_poll_miss, 1);
        outbox::mind(socket, fd);
        if let Some(frames) = xdp::of(socket) {
            self.outcome = framed::wait(socket, fd, frames, request); // Another thread has got them meanwhile.
            return Rest::Found(());
        }
        let stack = (&raw const *self).addr();
        asleep::end_left(stack);
        let Some(sleeper) = Sleeper::new(socket, fd, stack) else {
            if self.attempt() {
                return Rest::Found(());
            }
            // A record waits for a datagram that the kernel is about to bring, or has lost.
            raw::nap(BLOCKED_NAP_NS);
            budget.again(policy::receive_spin_ns(socket));
            return Rest::Barred;
        };
        self.outcome = kernel::sleep_until_readable(socket, fd, budget)
            .and_then(|()| from_kernel(socket, fd, request, request.flags, true));
        // While other readers see that a thread sleeps: none takes it that all has come that the kernel has brought.
        if let Ok(arrival) = &self.outcome {
            take_note(socket, fd, request, arrival);
        }
        drop(sleeper);
        settle(socket, fd);
        Rest::Answered(())
    }

    fn last_look(&mut self) -> Option<()> {
        self.say_looks();
        None
    }
}

/// Nothing was there, and the program does not wait: now and then it is looked whether a process
/// has died to which this socket has sent.
fn last_look(socket: &SocketRef, fd: c_int, request: Request<'_>) -> Outcome {
    let now = raw::now_ns();
    if socket.udp_attachment().is_none()
        || now.saturating_sub(socket.waiting.looked_ns.load(Ordering::Relaxed)) < LOOK_NS
    {
        return Err(Errno::AGAIN);
    }
    socket.waiting.looked_ns.store(now, Ordering::Relaxed);
    outbox::mind(socket, fd);
    attempt(socket, fd, request)
}

/// Receives what is there.
fn attempt(socket: &SocketRef, fd: c_int, request: Request<'_>) -> Outcome {
    let now = request.flags | libc::MSG_DONTWAIT;
    match attachment::inbox(socket, fd) {
        None => {
            let arrival = from_kernel(socket, fd, request, now, false)?;
            take_note(socket, fd, request, &arrival);
            Ok(arrival)
        }
        Some(inbox) => from_both(socket, fd, &inbox.mailbox, request),
    }
}

/// The mailbox first, the kernel's queue when it is empty, or has to wait for what is there.
fn from_both(socket: &SocketRef, fd: c_int, mailbox: &Mailbox, request: Request<'_>) -> Outcome {
    if !mailbox.let_sleeper_wake(Here::find(), true) {
        return Err(Errno::AGAIN);
    }
    let Some(_held) = mailbox.hold_readers() else {
        attachment::give_up(socket, fd);
        return from_kernel(socket, fd, request, request.flags | libc::MSG_DONTWAIT, false);
    };
    mind_others(socket, fd, mailbox);
    let mut kernel = Queue { socket, fd, request };
    match order::next(mailbox, request.peeks(), &mut kernel)? {
        Next::Record(front) => from_ring(socket, mailbox, &front, request),
        Next::Kernel(arrival) => {
            count(socket, fd, mailbox, request, &arrival);
            Ok(arrival)
        }
    }
}

/// The kernel's queue of a socket.
struct Queue<'a> {
    socket: &'a Socket,
    fd: c_int,
    request: Request<'a>,
}

impl KernelQueue for Queue<'_> {
    type Arrival = Arrival;

    fn receive(&mut self) -> Outcome {
        let now = self.request.flags | libc::MSG_DONTWAIT;
        from_kernel(self.socket, self.fd, self.request, now, false)
    }

    fn empty(&mut self) -> Option<Empty> {
        empty(self.socket, self.fd)
    }

    fn first(&mut self) -> Option<(SocketAddr, u32)> {
        first(self.socket, self.fd)
    }

    fn drops(&mut self) -> Result<u32, Errno> {
        drops_of(self.socket, self.fd)
    }

    fn now_ns(&mut self) -> u64 {
        raw::now_ns()
    }
}

/// What others want to know of a mailbox that is read. The readers' lock is held.
#[inline]
fn mind_others(socket: &Socket, fd: c_int, mailbox: &Mailbox) {
    if mailbox.is_held() {
        mailbox.let_senders(
            socket.waiters.sleepers.load(Ordering::SeqCst),
            socket.waiters.watchers.load(Ordering::SeqCst),
        );
    }
    if mailbox.shows() == Shows::Wanted {
        show_groups(socket, fd, mailbox);
    }
}

/// Remembers how much waits, from a record on.
#[inline]
fn note_waiting(socket: &Socket, mailbox: &Mailbox, front: &Front) {
    let counters = &socket.counters;
    if rise(&counters.rx_waiting_bytes_max, mailbox.waiting_bytes(front)) {
        rise(&counters.rx_waiting_packets_max, mailbox.waiting());
    }
}

/// Datagrams for which there was no room, here or in the kernel's queue, and bytes of those here.
pub(crate) fn dropped(socket: &Socket, fd: c_int) -> (u64, u64) {
    let framed = xdp::of(socket).map_or(0, |frames| frames.queue().dropped());
    let (packets, bytes) =
        attachment::mapped(socket).map(Inbox::mailbox).map_or((0, 0), Mailbox::dropped);
    (packets.saturating_add(framed).saturating_add(drops(fd).into()), bytes)
}

/// How many datagrams the kernel has dropped for want of room.
fn drops(fd: c_int) -> u32 {
    let [.., drops] =
        raw::option::<[u32; 9]>(fd, libc::SOL_SOCKET, libc::SO_MEMINFO).unwrap_or([0; 9]);
    drops
}

/// The same of the socket, as the descriptor may have been closed meanwhile. What was asked before is then of the socket, too.
fn drops_of(socket: &Socket, fd: c_int) -> Result<u32, Errno> {
    let drops = drops(fd);
    table::still(fd, socket).map(|()| drops)
}

/// Whether the kernel's queue is empty.
fn has_none(fd: c_int) -> bool {
    raw::poll_now(fd, libc::POLLIN) == Ok(0)
}

/// The sender of the first datagram of the kernel's queue, and how many had been dropped before that.
fn first(socket: &Socket, fd: c_int) -> Option<(SocketAddr, u32)> {
    if raw::poll_now(fd, libc::POLLIN) != Ok(libc::POLLIN) {
        return None;
    }
    // An error that came just now is lost.
    let arrival =
        from_kernel(socket, fd, NOTHING, libc::MSG_PEEK | libc::MSG_DONTWAIT, false).ok()?;
    Some((address::read_name(&arrival.from)?, arrival.drops))
}

/// Takes the first record. The readers' lock is held, and it is there and may go.
fn from_ring(
    socket: &Socket,
    mailbox: &Mailbox,
    front: &Front,
    request: Request<'_>,
) -> Result<Arrival, Errno> {
    note_waiting(socket, mailbox, front);
    let from = mailbox.address(front);
    if let Some(loan) = request.loan.filter(|loan| loan.shows == request.peeks()) {
        let mut pieces = [NO_PIECE; PIECES_MAX];
        let count = mailbox.pieces(front, &mut pieces);
        let take = |into: &mut _| {
            *into = pieces;
            let start = if loan.shows { front.start() } else { mailbox.lend(front) };
            Ok::<_, Infallible>((count, front.len, start))
        };
        if count <= loan.pieces && front.len >= loan.least {
            let _ = loan.lend(true, take);
            mailbox.set_peeked(if loan.shows { Peeked::Ring } else { Peeked::Nothing });
            let (from, from_len) = sender_of(mailbox, from);
            return Ok(Arrival { len: front.len, from, from_len, ..Arrival::empty() });
        }
    }
    let Ok(copied) = mailbox.copy(front, &mut IoCursor::new(request.parts)) else {
        if mailbox.is_spoilt() {
            return Err(Errno::AGAIN); // A page of the mailbox is missing, which is given up.
        }
        // As the kernel has it: what could not be delivered is gone.
        if !request.peeks() {
            mailbox.advance(front);
        }
        return Err(Errno::FAULT);
    };
    let is_cut = copied < front.len;
    let (from, from_len) = sender_of(mailbox, from);
    order::taken(mailbox, request.peeks(), front);
    let cut = if is_cut { libc::MSG_TRUNC } else { 0 };
    let mut control = Control::new(request.control, request.control_len);
    control.stamp(socket.options.stamps.load(Ordering::Relaxed));
    Ok(Arrival {
        len: if request.flags & libc::MSG_TRUNC != 0 { front.len } else { copied },
        from,
        from_len,
        flags: request.flags & libc::MSG_CMSG_CLOEXEC | cut | control.flags,
        control_len: control.len,
        is_from_ring: true,
        sent: Sent::Somewhere,
        drops: 0,
    })
}

/// The address of a sender as the program gets it, and its length.
fn sender_of(mailbox: &Mailbox, from: Option<SocketAddr>) -> (Name, libc::socklen_t) {
    match from {
        Some(from) => address::write_name(from, mailbox.domain()),
        None => (Arrival::empty().from, 0),
    }
}

impl Arrival {
    /// Nothing, from nowhere.
    pub(crate) fn empty() -> Self {
        // SAFETY: all zeros is a legal value of this structure of integers.
        let from = unsafe { std::mem::zeroed() };
        Self {
            len: 0,
            from,
            from_len: 0,
            flags: 0,
            control_len: 0,
            is_from_ring: true,
            sent: Sent::Somewhere,
            drops: 0,
        }
    }
}

/// Receives from the kernel's queue; `waits`: through the C library, so that the thread can be
/// cancelled. What it says of groups is for us: sockets that have asked for control data themselves
/// are the kernel's alone.
pub(super) fn from_kernel(
    socket: &Socket,
    fd: c_int,
    request: Request<'_>,
    flags: c_int,
    waits: bool,
) -> Outcome {
    let is_ours = socket.datagrams.has_inbox.load(Ordering::Relaxed)
        && !socket.datagrams.is_kernel_only.load(Ordering::Relaxed);
    let mut control = Room([0; CONTROL_BYTES]);
    let mut arrival = Arrival { is_from_ring: false, ..Arrival::empty() };
    // SAFETY: all zeros is a legal value of this structure of integers and pointers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut arrival.from).cast();
    message.msg_namelen = size_of::<Name>() as libc::socklen_t;
    message.msg_iov = request.parts.as_ptr().cast_mut();
    message.msg_iovlen = request.parts.len();
    message.msg_control = if is_ours { control.0.as_mut_ptr().cast() } else { request.control };
    message.msg_controllen = if is_ours { CONTROL_BYTES } else { request.control_len };
    arrival.len = if waits {
        let got = real!(
            c"recvmsg" as fn(c_int, *mut libc::msghdr, c_int) -> libc::ssize_t,
            fd,
            &raw mut message,
            flags
        );
        usize::try_from(got).map_err(|_| raw::errno())?
    } else {
        // SAFETY: the header points to a local and to the program's buffers.
        unsafe { raw::recvmsg(fd, &raw mut message, flags) }?
    };
    arrival.from_len = message.msg_namelen;
    arrival.flags = message.msg_flags;
    if is_ours {
        (arrival.sent, arrival.drops) = said(&message);
        let mut control = Control::new(request.control, request.control_len);
        if socket.options.stamps.load(Ordering::Relaxed) != 0 {
            // SAFETY: the kernel has just filled it in, and the buffer is on this stack.
            unsafe { control.pass_on(&message) };
        }
        (arrival.control_len, arrival.flags) = (control.len, arrival.flags | control.flags);
    } else {
        arrival.control_len = message.msg_controllen;
    }
    Ok(arrival)
}

/// Room for what the kernel says of a datagram.
#[repr(align(8))]
struct Room([u8; CONTROL_BYTES]);

const CONTROL_BYTES: usize = 256;

/// Where a datagram was sent to, if the kernel has said so, and how many it had dropped before.
fn said(message: &libc::msghdr) -> (Sent, u32) {
    let (mut sent, mut drops) = (Sent::Somewhere, 0);
    // SAFETY: the header is the kernel's answer about a buffer of ours, which is still there.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !control.is_null() {
        // SAFETY: not null, and within the control data.
        let header = unsafe { control.read() };
        // SAFETY: as above.
        let data = unsafe { libc::CMSG_DATA(control) };
        if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) {
            // SAFETY: that is what a message of this type carries.
            drops = unsafe { data.cast::<u32>().read_unaligned() };
        }
        match destination(&header, data) {
            Sent::Somewhere => {}
            to @ (Sent::Here | Sent::Group(..)) => sent = to,
        }
        // SAFETY: the header and one of its control messages.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
    (sent, drops)
}

/// Where a datagram was sent to, if that is what a control message says: its header, and where its data lies.
fn destination(header: &libc::cmsghdr, data: *const u8) -> Sent {
    let (group, interface) = match (header.cmsg_level, header.cmsg_type) {
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            // SAFETY: that is what a message of this type carries; any bits are legal.
            let info = unsafe { data.cast::<libc::in_pktinfo>().read_unaligned() };
            let group = Ipv4Addr::from_bits(u32::from_be(info.ipi_addr.s_addr));
            (IpAddr::V4(group), info.ipi_ifindex.cast_unsigned())
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            // SAFETY: as above.
            let info = unsafe { data.cast::<libc::in6_pktinfo>().read_unaligned() };
            let group = IpAddr::V6(Ipv6Addr::from(info.ipi6_addr.s6_addr)).to_canonical();
            (group, info.ipi6_ifindex)
        }
        _ => return Sent::Somewhere,
    };
    if group.is_multicast() { Sent::Group(group, interface) } else { Sent::Here }
}

/// The option by which the kernel says where datagrams were sent to.
pub(super) fn shows_option(fd: c_int) -> (c_int, c_int) {
    match raw::option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) {
        Ok(libc::AF_INET6) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
        Ok(_) | Err(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
    }
}

/// A sender to a group wants to know what comes of it: from now on the kernel says so,
/// unless the program could see that, and we say which groups' datagrams are for this socket. The
/// readers' lock is held.
#[cold]
fn show_groups(socket: &Socket, fd: c_int, mailbox: &Mailbox) {
    if mailbox.is_held() || socket.datagrams.is_kernel_only.load(Ordering::Relaxed) {
        return;
    }
    let (level, name) = shows_option(fd);
    let errors = if level == libc::IPPROTO_IP { libc::IP_RECVERR } else { libc::IPV6_RECVERR };
    let is_off = |name| raw::option::<c_int>(fd, level, name) == Ok(0);
    let is_on = socket.datagrams.shows_groups.load(Ordering::Acquire);
    let may_be_on = is_on || is_off(name) && is_off(errors);
    if !may_be_on {
        mailbox.set_shows(Shows::Wanted, Shows::Never);
    } else if mailbox.set_shows(Shows::Wanted, Shows::Groups) {
        if !is_on {
            socket.datagrams.shows_groups.store(true, Ordering::Release);
            let _ = raw::set_option(fd, level, name, 1);
        }
        expect_groups(fd, mailbox);
    }
}

/// Says for every group that has a sender whether its datagrams are for this socket.
pub(super) fn expect_groups(fd: c_int, mailbox: &Mailbox) {
    let (own, peer) = (address::name(fd, false), address::name(fd, true));
    mailbox.expect(|from, group| {
        let is_bound = own.is_some_and(|own| own.ip().is_unspecified() || own.ip() == group);
        if !is_bound || peer.is_some_and(|peer| peer != from) {
            return Some(false);
        }
        membership(fd, group, from.ip())
    });
}

/// Whether a socket gets from `source` what is sent to `group` by way of the loopback device, by its
/// memberships and filters as the kernel has them. `None` if there are more filters than we read.
fn membership(fd: c_int, group: IpAddr, source: IpAddr) -> Option<bool> {
    let (level, all) = match group {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL),
    };
    let domain = if group.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let nowhere = address::write(SocketAddr::new(group, 0), domain).0;
    let mut filter = Filter {
        interface: LOOPBACK,
        group: nowhere,
        mode: 0,
        count: SOURCES_MAX,
        sources: [nowhere; SOURCES_MAX as usize],
    };
    match raw::read_option(fd, level, MCAST_MSFILTER, &mut filter) {
        Err(Errno(libc::EADDRNOTAVAIL)) => {
            // No membership of its own: then it gets what others have joined, or nothing.
            return Some(raw::option::<c_int>(fd, level, all).unwrap_or(1) != 0);
        }
        Err(_) => return None,
        Ok(()) => {}
    }
    let sources = filter.sources.get(..filter.count as usize)?;
    let is_named = sources.iter().filter_map(address::read).any(|named| named.ip() == source);
    Some(is_named == (filter.mode == MCAST_INCLUDE))
}

/// A filter of sources, as the kernel has it.
#[repr(C)]
struct Filter {
    interface: u32,
    group: libc::sockaddr_storage,
    mode: u32,
    count: u32,
    sources: [libc::sockaddr_storage; SOURCES_MAX as usize],
}

const SOURCES_MAX: u32 = 32;
const MCAST_INCLUDE: u32 = 1;

/// The kernel has brought a datagram to a socket that may have a mailbox by now.
fn take_note(socket: &SocketRef, fd: c_int, request: Request<'_>, arrival: &Arrival) {
    match attachment::inbox(socket, fd) {
        Some(inbox) => {
            let Some(_held) = inbox.mailbox.hold_readers() else { return };
            mind_others(socket, fd, &inbox.mailbox);
            count(socket, fd, &inbox.mailbox, request, arrival);
        }
        None if !request.peeks() => meet(socket, fd, arrival),
        None => {}
    }
}

/// The calling thread, which has slept, is awake: what it could not do for senders meanwhile.
fn settle(socket: &Socket, fd: c_int) {
    if let Some(inbox) = attachment::inbox(socket, fd)
        && inbox.mailbox.is_unsettled()
        && let Some(_held) = inbox.mailbox.hold_readers()
    {
        order::settle(&inbox.mailbox, || empty(socket, fd));
    }
}

/// The kernel's queue, if it is empty: that of the socket, as the descriptor may have been closed meanwhile.
fn empty(socket: &Socket, fd: c_int) -> Option<Empty> {
    // First, as what is dropped after that is not written off.
    let drops = drops_of(socket, fd).ok()?;
    has_none(fd).then(|| Empty { now_ns: raw::now_ns(), drops })
}

/// Counts a datagram of the kernel's for its sender. The readers' lock is held.
fn count(socket: &Socket, fd: c_int, mailbox: &Mailbox, request: Request<'_>, arrival: &Arrival) {
    let (from, sent) = (address::read_name(&arrival.from), (arrival.sent, arrival.drops));
    if !order::note(mailbox, request.peeks(), from, sent, || empty(socket, fd))
        && let Some(from) = from
    {
        across::received(socket, fd, mailbox, from, prove);
    }
}

/// Now and then, as long as there is no mailbox: is the sender one that would use it?
fn meet(socket: &SocketRef, fd: c_int, arrival: &Arrival) {
    let count = socket.traffic.kernel_count.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    if !count.is_power_of_two() || socket.datagrams.is_kernel_only.load(Ordering::Relaxed) {
        return;
    }
    let Some(from) = address::read_name(&arrival.from) else { return };
    let ours = socket.udp_attachment_or_new(fd);
    let Some(directory) = ours.and_then(|ours| ours.directory) else { return };
    let errno = raw::errno();
    if directory.generation(from.port()) > 0 && address::is_here(fd, from) {
        attachment::set_up(socket, fd);
    } else if across::is_announced(from) {
        attachment::set_up(socket, fd);
        if let Some(inbox) = attachment::mapped(socket) {
            across::open(fd, &inbox.mailbox, prove);
        }
    }
    raw::set_errno(errno);
}

/// A probe has come, from that address, for a mailbox of this process's.
fn prove([cookie, place]: [u64; 2], secret: u64, from: IpAddr) {
    let Ok(place) = usize::try_from(place) else { return };
    table::each(0, usize::MAX, |fd| {
        if let Some(socket) = table::socket(fd)
            && let Some(inbox) = attachment::mapped(&socket)
            && inbox.mailbox.cookie() == cookie
        {
            inbox.mailbox.proofs().prove(place, secret, from);
        }
    });
}

/// The size of the next datagram, as `FIONREAD` has it; `None` if the kernel is to be asked.
pub(crate) fn next_len(socket: &SocketRef, fd: c_int) -> Option<usize> {
    if let Some(frames) = xdp::of(socket) {
        return framed::next_len(frames, fd);
    }
    let mailbox = &attachment::inbox(socket, fd)?.mailbox;
    let _held = mailbox.hold_readers()?;
    if mailbox.peeked() == Peeked::Kernel {
        return None;
    }
    let mut kernel = Queue { socket, fd, request: NOTHING };
    let front = mailbox.front().filter(|front| {
        !mailbox.is_blocked(front) || order::passes(mailbox, front, &mut kernel).unwrap_or(false)
    })?;
    mailbox.set_peeked(Peeked::Ring);
    Some(front.len)
}

/// What there is to read in a mailbox. The kernel knows of its own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Content {
    Nothing,
    /// A datagram that has to wait for another, which the kernel is about to bring.
    Blocked,
    Datagram,
}

/// What there is to read in the mailbox of a socket, or in its frames.
pub(crate) fn content(socket: &Socket, store: Store<'_>, fd: c_int) -> Content {
    let mailbox = match store {
        Store::Frames(frames) if frames.has_any() => return Content::Datagram,
        Store::Frames(frames) => {
            frames.watched();
            return Content::Nothing;
        }
        Store::Mailbox(mailbox) => mailbox,
    };
    if !mailbox.has_record() {
        return Content::Nothing;
    }
    let Some(_held) = mailbox.hold_readers() else { return Content::Nothing };
    let Some(front) = mailbox.front() else { return Content::Nothing };
    // What is waited for may have been dropped.
    let unblocks = |drops| mailbox.unblock(&front, drops, raw::now_ns());
    let goes = !mailbox.is_blocked(&front)
        || has_none(fd)
            && (!mailbox.is_blocked(&front) || drops_of(socket, fd).is_ok_and(unblocks));
    if goes { Content::Datagram } else { Content::Blocked }
}

/// Reads that find nothing and do not wait look after receivers no more often than this.
const LOOK_NS: u64 = 2_000_000;
/// How long a reader sleeps that waits for what the kernel has not brought yet.
const BLOCKED_NAP_NS: i64 = 50_000;

pub(super) const MCAST_MSFILTER: c_int = 48;

pub(super) const IPV6_MULTICAST_ALL: c_int = 29;
