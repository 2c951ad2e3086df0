//! Receive callbacks: the program looks at each packet before it is received, and has it received, dropped, or
//! held until it gives it back.
//!
//! A packet is a datagram, or what has come of a stream by the time that it is looked at, at most 64 KiB. It stays
//! where it came in until the callback has decided, and the callback sees it there. What is to be received stays there
//! after that, *admitted*: calls that receive get that and no more, and the next packet is looked at when they have
//! got all of it. What is dropped is taken out, and what is held becomes a loan (`loans.rs`).
//!
//! Packets are looked at by the thread that receives, polls, or waits on an instance, in that call. One thread at a
//! time looks at those of a socket, and holds no lock while the callback runs: the callback may call whatever it
//! likes. A call that receives from the same socket within it finds what has been admitted, or nothing.
//!
//! # Safety
//!
//! The callback is called with arguments as `vma_extra.h` has them, which are valid until it returns. The program
//! has promised that it is a function of that type.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::base::address;
use crate::base::iovec::{IoCursor, PARTS_MAX};
use crate::base::lock::{Guarded, Lock};
use crate::base::raw::{self, Answer, Errno};
use crate::base::thread::{self, Interrupts};
use crate::socket::counters::add;
use crate::socket::loans::{self, Keep, Lent, Loan, NO_PIECE, PIECES_MAX, Spare};
use crate::socket::policy;
use crate::socket::state::Kind;
use crate::socket::table::{self, SocketRef};
use crate::socket::wait_loop::Limits;
use crate::socket::waits::Waiting;
use crate::transport::datagram::{self, Arrival, Request};
use crate::transport::stream::{self, Receive, Step};
use crate::wait::{blocking, multiplex};

/// `vma_recv_callback_t`.
pub(crate) type Callback =
    unsafe extern "C-unwind" fn(c_int, usize, *mut libc::iovec, *mut Info, *mut c_void) -> c_int;

/// `struct vma_info_t`, which has no gaps.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Info {
    struct_size: usize,
    packet: u64,
    from: *const address::Name,
    to: *const address::Name,
    payload_bytes: usize,
    ready_packets: u32,
    ready_bytes: u32,
    hardware: [i64; 2],
    software: [i64; 2],
}

const _: () = assert!(size_of::<Info>() == 80);

/// What a callback decides: `vma_recv_callback_retval_t`. Anything else is to be received.
const DROP: c_int = 0;
const HOLD: c_int = 2;

/// The callback of one socket.
#[derive(Debug)]
struct Filter {
    /// Which of the sockets that the socket has been.
    life: u32,
    callback: Callback,
    context: usize,
    /// How long the packet is that may be received, or what is left of it.
    admitted: Option<usize>,
    /// What looking has come to that was no packet.
    error: Option<Errno>,
    /// The thread that is looking at a packet.
    looking: Option<u32>,
}

/// The callbacks of this process, by socket.
static FILTERS: Guarded<BTreeMap<usize, Filter>> = Guarded::new(BTreeMap::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The lock on them, for a fork.
pub(crate) fn lock() -> &'static Lock {
    FILTERS.lock()
}

/// Whether any socket has one.
#[inline]
pub(crate) fn is_any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Whether this socket has one.
#[inline]
pub(crate) fn has(socket: &SocketRef) -> bool {
    is_any() && with(socket, |_| ()).is_some()
}

/// Calls `f` with the filter of a socket, if it has one.
#[cold]
fn with<T>(socket: &SocketRef, f: impl FnOnce(&mut Filter) -> T) -> Option<T> {
    let life = socket.life.load(Ordering::Relaxed);
    FILTERS
        .with(|filters| filters.get_mut(&socket.key()).filter(|filter| filter.life == life).map(f))
}

/// From now on the program looks at what comes to a socket; or, with `None`, no longer.
pub(crate) fn register(socket: &SocketRef, callback: Option<Callback>, context: *mut c_void) {
    let life = socket.life.load(Ordering::Relaxed);
    FILTERS.with(|filters| {
        match callback {
            None => drop(filters.remove(&socket.key())),
            Some(callback) => {
                let old = filters.remove(&socket.key()).filter(|old| old.life == life);
                let (admitted, error, looking) =
                    old.map_or((None, None, None), |old| (old.admitted, old.error, old.looking));
                let context = context.expose_provenance();
                let new = Filter { life, callback, context, admitted, error, looking };
                filters.insert(socket.key(), new);
            }
        }
        COUNT.store(filters.len(), Ordering::Relaxed);
    });
}

/// The number of each socket that has a callback.
pub(crate) fn each(mut f: impl FnMut(usize)) {
    FILTERS.with(|filters| filters.keys().copied().for_each(&mut f));
}

/// What looking at a socket has come to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Seen {
    /// A packet may be received: so many bytes of it.
    Admitted(usize),
    /// The program has got something, of which calls that receive get nothing.
    Held,
    /// Nothing is there, or nothing that is to be received.
    Nothing,
    /// The end of a stream: whatever receives says so.
    End,
    Failed(Errno),
    /// Another thread is looking, or this one, further up.
    Busy(bool),
    /// The program looks no more: it has taken its callback away, perhaps within it.
    Unfiltered,
}

/// Has the program look at packets, until one is to be received or there is none.
pub(crate) fn look(socket: &SocketRef, fd: c_int) -> Seen {
    let mut seen = Seen::Nothing;
    for _ in 0..LOOKS_MAX {
        let looking = match Looking::begin(socket) {
            Ok(looking) => looking,
            Err(now) => return now,
        };
        let mut spare = Spare::take();
        match show(socket, fd, &mut spare) {
            Shown::Nothing => return seen,
            Shown::End => return Seen::End,
            Shown::Failed(error) => return Seen::Failed(error),
            Shown::Packet(packet) => match looking.decide(fd, packet, spare) {
                Seen::Nothing => {}
                Seen::Held => seen = Seen::Held,
                decided @ (Seen::Admitted(_)
                | Seen::End
                | Seen::Failed(_)
                | Seen::Busy(_)
                | Seen::Unfiltered) => return decided,
            },
        }
    }
    seen
}

/// Packets that are looked at in a row, none of which is to be received.
const LOOKS_MAX: u32 = 64;

/// A packet where it lies.
#[derive(Debug)]
struct Packet {
    pieces: [libc::iovec; PIECES_MAX],
    count: usize,
    len: usize,
    is_shared: bool,
    from: Option<SocketAddr>,
}

#[derive(Debug)]
enum Shown {
    Packet(Packet),
    Nothing,
    End,
    Failed(Errno),
}

/// The next packet of a socket: where it lies in shared memory, or a copy of it in `spare`.
fn show(socket: &SocketRef, fd: c_int, spare: &mut Spare) -> Shown {
    let loan = Loan::showing(socket);
    let (len, from) = if socket.kind() == Kind::Datagram {
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        match letter(socket, fd, &[spare.part()], flags, Some(&loan)) {
            Ok(arrival) => (arrival.len, address::read_name(&arrival.from)),
            Err(Errno::AGAIN) => return Shown::Nothing,
            Err(error) => return Shown::Failed(error),
        }
    } else {
        let how = Receive { peek: true, now: true, loan: Some(&loan), ..Receive::default() };
        match stream::try_receive(socket, fd, &mut IoCursor::new(&[spare.part()]), how) {
            Step::Moved(0) | Step::Nothing => return Shown::Nothing,
            Step::Moved(len) => (len, address::name(fd, true)),
            Step::Ended => return Shown::End,
            Step::Failed(error) => return Shown::Failed(error),
        }
    };
    let (pieces, count, is_shared) = match loan.lent() {
        Some(Lent { pieces, count, .. }) => (pieces, count, true),
        None => (spare.pieces(len), 1, false),
    };
    Shown::Packet(Packet { pieces, count, len, is_shared, from })
}

fn letter(
    socket: &SocketRef,
    fd: c_int,
    parts: &[libc::iovec],
    flags: c_int,
    loan: Option<&Loan<'_>>,
) -> Result<Arrival, Errno> {
    let (control, control_len) = (std::ptr::null_mut(), 0);
    datagram::receive_one(socket, fd, Request { parts, control, control_len, flags, loan })
}

/// This thread looks at a packet of a socket, and no other does.
#[derive(Debug)]
struct Looking<'a> {
    socket: &'a SocketRef,
    callback: Callback,
    context: usize,
}

impl<'a> Looking<'a> {
    /// If nothing has been admitted, and no other thread is looking.
    fn begin(socket: &'a SocketRef) -> Result<Self, Seen> {
        let me = raw::thread_id();
        let begun = with(socket, |filter| {
            if let Some(len) = filter.admitted {
                return Err(Seen::Admitted(len));
            }
            if let Some(error) = filter.error.take() {
                return Err(Seen::Failed(error));
            }
            if let Some(other) = filter.looking {
                return Err(Seen::Busy(other == me));
            }
            filter.looking = Some(me);
            Ok((filter.callback, filter.context))
        });
        let (callback, context) = begun.unwrap_or(Err(Seen::Unfiltered))?;
        Ok(Self { socket, callback, context })
    }

    /// Has the program decide, and does what it says.
    fn decide(&self, fd: c_int, packet: Packet, spare: Spare) -> Seen {
        let id = loans::reserve(self.socket);
        let verdict = self.ask(fd, &packet, id);
        let is_out = loans::is_out(self.socket.key(), id);
        if let Err(closed) = table::still(fd, self.socket) {
            loans::cancel(self.socket.key(), id);
            return Seen::Failed(closed);
        }
        match verdict {
            HOLD if is_out => {
                hold(self.socket, fd, &packet, spare, id);
                Seen::Held
            }
            DROP | HOLD => {
                loans::cancel(self.socket.key(), id);
                take_out(self.socket, fd, packet.len, None);
                Seen::Nothing
            }
            _ => {
                loans::cancel(self.socket.key(), id);
                with(self.socket, |filter| filter.admitted = Some(packet.len));
                Seen::Admitted(packet.len)
            }
        }
    }

    fn ask(&self, fd: c_int, packet: &Packet, id: u64) -> c_int {
        let name = |addr: Option<SocketAddr>| {
            let addr = addr.map(|addr| SocketAddr::new(addr.ip().to_canonical(), addr.port()));
            addr.map_or(Arrival::empty().from, |addr| {
                address::write_name(
                    addr,
                    if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 },
                )
                .0
            })
        };
        let (from, to) = (name(packet.from), name(address::name(fd, false)));
        let (seconds, nanoseconds) = raw::real_time();
        let mut info = Info {
            struct_size: size_of::<Info>(),
            packet: id,
            from: &raw const from,
            to: &raw const to,
            payload_bytes: packet.len,
            // What is waiting has been received.
            ready_packets: 0,
            ready_bytes: 0,
            hardware: [0; 2],
            software: [seconds, nanoseconds],
        };
        let mut pieces = packet.pieces;
        let context = std::ptr::with_exposed_provenance_mut(self.context);
        // SAFETY: the program's promise about the function; its arguments are valid until it returns.
        unsafe { (self.callback)(fd, packet.count, pieces.as_mut_ptr(), &raw mut info, context) }
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        with(self.socket, |filter| filter.looking = None);
    }
}

/// Keeps a packet for the program, under a number that it knows already.
fn hold(socket: &SocketRef, fd: c_int, packet: &Packet, mut spare: Spare, id: u64) {
    let loan = Loan::reserved(socket, id, packet.len, packet.count.max(1));
    take_out(socket, fd, packet.len, Some(&loan).filter(|_| packet.is_shared));
    if !packet.is_shared {
        loans::fill(socket, id, None, spare.keep(packet.len));
    }
}

/// Takes the packet that was looked at out, and lends it if that is wished.
fn take_out(socket: &SocketRef, fd: c_int, len: usize, loan: Option<&Loan<'_>>) {
    if socket.kind() == Kind::Datagram {
        let _ = letter(socket, fd, &[], libc::MSG_DONTWAIT, loan);
        return;
    }
    let how = Receive { discard: loan.is_none(), now: true, loan, ..Receive::default() };
    let mut left = len;
    while left > 0 {
        let nowhere = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: left }];
        match stream::try_receive(socket, fd, &mut IoCursor::new(&nowhere), how) {
            Step::Moved(moved @ 1..) if loan.is_none() => left = left.saturating_sub(moved),
            Step::Moved(_) | Step::Ended | Step::Nothing | Step::Failed(_) => return,
        }
    }
}

/// What a call may receive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Admitted {
    /// So many bytes, or a datagram.
    Bytes(usize),
    /// The end of the stream.
    End,
    /// Whatever comes: there is no callback any more.
    All,
}

/// Waits, unless `now`, until something may be received.
pub(crate) fn admit(socket: &SocketRef, fd: c_int, now: bool) -> Result<Admitted, Errno> {
    let now = now || socket.flags.is_nonblocking.load(Ordering::Relaxed);
    let errno = raw::errno();
    let budget = Limits::of_receiver(socket, policy::receive_spin_ns(socket)).start();
    loop {
        match look(socket, fd) {
            Seen::Admitted(len) => {
                raw::set_errno(errno);
                return Ok(Admitted::Bytes(len));
            }
            Seen::End => return Ok(Admitted::End),
            Seen::Unfiltered => return Ok(Admitted::All),
            Seen::Failed(error) => return Err(error),
            Seen::Busy(true) => return Err(Errno::AGAIN),
            Seen::Busy(false) if !now => raw::nap(OTHERS_NAP_NS),
            Seen::Nothing | Seen::Held | Seen::Busy(false) => {}
        }
        if now {
            add(&socket.counters.rx_eagain, 1);
            return Err(Errno::AGAIN);
        }
        let mut polled = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        let handlers = thread::interrupts(Interrupts::All);
        match multiplex::poll_unfiltered(
            &mut polled,
            budget.left_ns(),
            None,
            &mut Waiting::uncounted(),
        ) {
            Ok(0) => return Err(Errno::AGAIN),
            // Of a handler that was set behind our back it is not known that the call goes on after it.
            Err(Errno::INTR)
                if !budget.is_interrupted() && thread::interrupts(Interrupts::All) != handlers => {}
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        table::still(fd, socket)?;
    }
}

/// How long a thread sleeps that waits for another one's callback.
const OTHERS_NAP_NS: i64 = 50_000;

/// So much of what was admitted has been received; all of a datagram.
pub(crate) fn taken(socket: &SocketRef, len: usize) {
    let is_datagram = socket.kind() == Kind::Datagram;
    with(socket, |filter| {
        let left = filter.admitted.map_or(0, |admitted| admitted.saturating_sub(len));
        filter.admitted = (left > 0 && !is_datagram).then_some(left);
    });
}

/// Receives on a stream, as `recv(2)` does.
pub(crate) fn receive(
    socket: &SocketRef,
    fd: c_int,
    parts: &[libc::iovec],
    how: Receive<'_>,
) -> Answer {
    raw::cancellation_point();
    let mut cursor = IoCursor::new(parts);
    let mut done = 0;
    while cursor.remaining() > 0 {
        let admitted = match admit(socket, fd, how.now || done > 0 && !how.all) {
            Ok(Admitted::Bytes(len)) => len,
            Ok(Admitted::End) => break,
            Ok(Admitted::All) => return receive_rest(socket, fd, &cursor, how, done),
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        };
        let mut rest = [NO_PIECE; PARTS_MAX];
        let count = cursor.rest(admitted, &mut rest);
        let how = Receive { now: true, all: false, ..how };
        match blocking::receive(socket, fd, rest.get(..count).unwrap_or(&[]), how) {
            Ok(got) => {
                done += got;
                cursor.skip(got);
                if how.peek || got == 0 {
                    break;
                }
                taken(socket, got);
            }
            // Another process has taken it.
            Err(Errno::AGAIN) => taken(socket, usize::MAX),
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// The callback has gone after `done` bytes: the rest of the call is as without it.
fn receive_rest(
    socket: &SocketRef,
    fd: c_int,
    cursor: &IoCursor<'_>,
    how: Receive<'_>,
    done: usize,
) -> Answer {
    let mut rest = [NO_PIECE; PARTS_MAX];
    let count = cursor.rest(usize::MAX, &mut rest);
    let how = Receive { now: how.now || done > 0 && !how.all, ..how };
    match blocking::receive(socket, fd, rest.get(..count).unwrap_or(&[]), how) {
        Ok(got) => Ok(done + got),
        Err(_) if done > 0 => Ok(done),
        Err(error) => Err(error),
    }
}

/// Receives on a stream, once, and lends what comes.
pub(crate) fn receive_lent(
    socket: &SocketRef,
    fd: c_int,
    parts: &[libc::iovec],
    mut how: Receive<'_>,
) -> Answer {
    raw::cancellation_point();
    let len = match admit(socket, fd, how.now)? {
        Admitted::Bytes(len) => len,
        Admitted::End => return Ok(0),
        Admitted::All => return blocking::receive(socket, fd, parts, how),
    };
    how.now = true;
    if let Some(loan) = how.loan {
        loan.most.set(loan.most.get().min(len));
    }
    let mut rest = [NO_PIECE; PARTS_MAX];
    let count = IoCursor::new(parts).rest(len, &mut rest);
    let got = blocking::receive(socket, fd, rest.get(..count).unwrap_or(&[]), how)?;
    taken(socket, got);
    Ok(got)
}

/// Receives a datagram.
pub(crate) fn receive_one(
    socket: &SocketRef,
    fd: c_int,
    request: Request<'_>,
) -> Result<Arrival, Errno> {
    raw::cancellation_point();
    if admit(socket, fd, request.flags & libc::MSG_DONTWAIT != 0)? == Admitted::All {
        return datagram::receive_one(socket, fd, request);
    }
    let now = request.flags | libc::MSG_DONTWAIT;
    let outcome = datagram::receive_one(socket, fd, Request { flags: now, ..request });
    if request.flags & libc::MSG_PEEK == 0 {
        taken(socket, usize::MAX);
    }
    outcome
}

/// Whether there is something for a program that was told of a socket: what may be received, what it has got in its
/// callback, an end, or an error.
pub(crate) fn has_news(socket: &SocketRef, fd: c_int) -> bool {
    match look(socket, fd) {
        Seen::Admitted(_) | Seen::Held | Seen::End => true,
        Seen::Unfiltered => {
            // What there was it may have had dropped.
            let mut polled = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
            let found =
                multiplex::poll_unfiltered(&mut polled, Some(0), None, &mut Waiting::uncounted());
            found != Ok(0)
        }
        Seen::Nothing | Seen::Busy(_) => false,
        Seen::Failed(error) => {
            with(socket, |filter| filter.error = Some(error));
            true
        }
    }
}

/// Waits for as long as `limit_ns` says, until something has come that the program is to be told of. `wait` takes the
/// time that is left; it says how much it has found, and how much of that stays.
#[cold]
pub(crate) fn until_kept(
    limit_ns: Option<u64>,
    mut wait: impl FnMut(Option<u64>) -> Result<(usize, usize), Errno>,
) -> Result<usize, Errno> {
    let start_ns = raw::now_ns();
    let mut left_ns = limit_ns;
    loop {
        let (count, kept) = wait(left_ns)?;
        left_ns =
            limit_ns.map(|limit| limit.saturating_sub(raw::now_ns().saturating_sub(start_ns)));
        if kept > 0 || count == 0 || left_ns == Some(0) {
            return Ok(kept);
        }
    }
}

/// Of descriptors that can be read, those stay ready that the program is to be told of. Returns how many are ready.
pub(crate) fn sift(fds: &mut [libc::pollfd]) -> usize {
    const READING: i16 = libc::POLLIN | libc::POLLRDNORM;
    let mut count = 0;
    for fd in fds {
        if fd.revents & READING != 0
            && let Some(socket) = table::socket(fd.fd).filter(has)
            && !has_news(&socket, fd.fd)
        {
            fd.revents &= !READING;
        }
        count += usize::from(fd.revents != 0);
    }
    count
}
