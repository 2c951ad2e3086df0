//! SocketXtreme: what has happened to the sockets of a ring, said by one call, and packets lent where they lie.
//!
//! A socket has a seat at its ring (`rings.rs`) as soon as it has an address. [`poll`] looks at the memory of the seats
//! in front, which have had something lately, and of a few of the others in turn, so that a call costs the same however
//! many there are; and once in so many calls at what the kernel has: all seats are registered with the ring's epoll
//! instance. Connections are accepted, and bytes received, by the call that finds them.
//!
//! One lock guards all of it, buffers too: it is taken once in a call.
//!
//! # Safety
//!
//! The program calls [`poll`] with room for as many completions as it says. Short packets are received into buffers that nothing refers to yet. Flags of the program's descriptors are set by numbers alone. Addresses are read as what their family
//! says they are, out of room for any.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

use adverb_switchover::Route;

use crate::base::forks::{self, Rank};
use crate::base::iovec::IoCursor;
use crate::base::lock::Guarded;
use crate::base::raw::{self, Errno};
use crate::base::thread::Here;
use crate::base::{address, config, copy, vfork};
use crate::exports::extra::buffers::{Blank, Buffer, Pool, SHORT};
use crate::exports::extra::rings;
use crate::share::sockets;
use crate::socket::loans::{Loan, PIECES_MAX, Spare};
use crate::socket::state::{self, Kind, Socket};
use crate::socket::table::{self, SocketRef};
use crate::transport::datagram::{self, Mailbox, Request, Store};
use crate::transport::stream::{self, Receive, Step};
use crate::transport::{bell, fallback, park};

/// `struct vma_completion_t`, whose packet comes first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Completion {
    buffer_count: usize,
    len: u16,
    buffers: *mut Buffer,
    hardware: [i64; 2],
    events: u64,
    user_data: u64,
    from: libc::sockaddr_in,
    listener: c_int,
}

const _: () = assert!(size_of::<Completion>() == 80);

/// Events beside those of epoll.
const PACKET: u64 = 1 << 32;
const ACCEPTED: u64 = 1 << 33;

/// Events of epoll, as completions have them.
const IN: u64 = 0x001;
const OUT: u64 = 0x004;
const ERR: u64 = 0x008;
const HUP: u64 = 0x010;
const RDHUP: u64 = 0x2000;

const _: () = assert!(SHORT.is_multiple_of(datagram::RUN_BYTES));

/// The length of a packet has 16 bits.
const PACKET_MAX: usize = 0xffff;

/// One socket at its ring.
#[derive(Debug)]
struct Seat {
    fd: c_int,
    socket: SocketRef,
    /// What the kernel was last asked about it; 0: it does not know it.
    asked: u64,
    /// It is, or was, on its way to its peer, and the program has not been told yet that it has arrived.
    is_arriving: bool,
    /// Of a stream, once it is known.
    peer: Option<libc::sockaddr_in>,
    /// The program has been told that it has come to its end.
    has_ended: bool,
}

/// Where there is something for a seat.
#[derive(Clone, Copy, Debug)]
enum News<'a> {
    Bytes,
    Mail(Store<'a>),
}

/// What packets are copied to: a buffer for short ones, and one for what comes through the kernel.
#[derive(Debug)]
struct Paper {
    blank: Option<Blank>,
    spare: Spare,
}

impl Paper {
    /// The buffer for a short packet, if there may be one more.
    #[inline]
    fn blank(&mut self, pool: &mut Pool) -> Option<&Blank> {
        if self.blank.is_none() {
            self.blank = pool.blank();
        }
        self.blank.as_ref()
    }

    /// Room for a packet. Those that are longer than a short one may be lent instead.
    #[inline]
    fn parts(&mut self, loan: &mut Loan<'_>, pool: &mut Pool) -> [libc::iovec; 2] {
        let whole = libc::iovec { iov_len: PACKET_MAX, ..self.spare.part() };
        match self.blank(pool) {
            // A long one goes on in the other buffer, behind room for what is in this one.
            Some(blank) => {
                loan.least = SHORT + 1;
                [blank.part(), after(whole, SHORT)]
            }
            None => [whole, after(whole, PACKET_MAX)],
        }
    }

    /// The packet of `len` bytes that have been copied there.
    #[inline]
    fn list(
        &mut self,
        pool: &mut Pool,
        socket: &SocketRef,
        fd: c_int,
        len: usize,
    ) -> (*mut Buffer, usize) {
        if len <= SHORT
            && let Some(blank) = self.blank.take()
        {
            return (pool.fill(blank, len), 1);
        }
        if let Some(blank) = &self.blank {
            let (to, from) = (self.spare.part().iov_base, blank.part().iov_base);
            // SAFETY: both have room for so many bytes, and are not shared.
            unsafe { copy::copy(to.cast(), from.cast(), SHORT) };
        }
        pool.list(socket, fd, &self.spare.lend(socket, len))
    }
}

/// The place of one of `len` in a circle, so many steps behind another.
#[inline]
fn wrapped(first: usize, step: usize, len: usize) -> usize {
    let at = if first < len { first } else { 0 } + step;
    if at < len { at } else { at.saturating_sub(len) }
}

/// What is left of a buffer behind so many bytes.
fn after(part: libc::iovec, len: usize) -> libc::iovec {
    libc::iovec { iov_base: part.iov_base.wrapping_byte_add(len), iov_len: part.iov_len - len }
}

/// One ring.
#[derive(Debug)]
struct Desk {
    ring: c_int,
    /// Those in front have had something lately.
    seats: Vec<Seat>,
    /// How many are in front.
    front: usize,
    /// The seats in front and behind that are looked at first, counted from the first one there.
    turns: [usize; 2],
    /// Calls since the kernel was last asked, and after how many it is asked again.
    calls: u32,
    most_calls: u32,
    /// Calls in a row that have found nothing.
    idle: u32,
    /// Calls that had found no room when it was last looked which seats want some of the kernel's.
    wants_seen: u32,
    paper: Paper,
}

/// All rings that are polled, and the buffers of their packets.
#[derive(Debug)]
struct Hall {
    desks: Vec<Desk>,
    pool: Pool,
}

static HALL: Guarded<Hall> = Guarded::new(Hall { desks: Vec::new(), pool: Pool::new() });

/// Calls `f` with the buffers of packets.
pub(super) fn with_buffers<T>(f: impl FnOnce(&mut Pool) -> T) -> T {
    HALL.with(|hall| f(&mut hall.pool))
}

/// A socket has got an address, a peer, or a backlog: it has a seat from now on, where the program has asked for
/// SocketXtreme.
#[inline]
pub(crate) fn attach(socket: &SocketRef, fd: c_int) {
    if config::get().socketxtreme {
        let _errno = raw::KeptErrno::new();
        seat(socket, fd);
    }
}

#[cold]
fn seat(socket: &SocketRef, fd: c_int) {
    let Some(ring) = rings::of(socket, fd) else { return };
    forks::join(Rank::Desks, HALL.lock());
    forks::call_in_child(after_fork);
    HALL.with(|Hall { desks, .. }| {
        let desk = match desks.iter_mut().position(|desk| desk.ring == ring) {
            Some(at) => desks.get_mut(at),
            None => {
                let seats = Vec::new();
                desks.push(Desk {
                    ring,
                    seats,
                    front: 0,
                    turns: [0; 2],
                    calls: 0,
                    most_calls: 0,
                    idle: 0,
                    wants_seen: 0,
                    paper: Paper { blank: None, spare: Spare::take() },
                });
                desks.last_mut()
            }
        };
        if let Some(desk) = desk {
            desk.sit(socket.clone(), fd);
        }
    });
}

/// A descriptor is about to be closed: a copy of it takes its seat, if this process has one.
pub(crate) fn leaves(fd: c_int) {
    if !config::get().socketxtreme {
        return;
    }
    let Some(socket) = table::socket(fd) else { return };
    let copy = socket
        .has_copies_here()
        .then(|| table::find(|other| other != fd && table::is_socket(other, &socket)))
        .flatten();
    HALL.with(|Hall { desks, .. }| {
        for desk in desks {
            desk.leave(fd, &socket, copy);
        }
    });
}

/// Descriptors are about to be closed: sockets of rings among them have no seat any more, until they get another ring.
#[inline]
pub(crate) fn closes(fds: &RangeInclusive<c_int>) {
    if rings::are_any() {
        close_rings(fds);
    }
}

#[inline(never)]
fn close_rings(fds: &RangeInclusive<c_int>) {
    if !vfork::is_child() && rings::closes(fds) {
        HALL.with(|Hall { desks, pool }| {
            for desk in desks.extract_if(.., |desk| fds.contains(&desk.ring)) {
                desk.paper.blank.into_iter().for_each(|blank| pool.put_back(blank));
            }
        });
    }
}

/// In a child just forked: its rings know nothing of any socket yet.
fn after_fork() {
    rings::after_fork();
    HALL.with(|hall| {
        for Desk { ring, seats, .. } in &mut hall.desks {
            for seat in seats {
                seat.asked = 0;
                let fd = seat.fd;
                seat.ask(*ring, fd);
            }
        }
    });
}

/// What has happened at a ring: fills in at most `room` completions at `into`, and returns how many.
///
/// # Safety
///
/// `into` is null, or there is room for so many.
pub(crate) unsafe fn poll(ring: c_int, into: *mut Completion, room: usize) -> Result<usize, Errno> {
    if into.is_null() || room == 0 {
        return Err(Errno(libc::EINVAL));
    }
    HALL.with_here(|Hall { desks, pool }, here| {
        let desk = desks.iter_mut().find(|desk| desk.ring == ring);
        match desk {
            Some(desk) => Ok(desk.poll(here, &mut Room { into, room, count: 0 }, pool)),
            None if rings::is_ring(ring) => Ok(0),
            None => Err(Errno(libc::EBADFD)),
        }
    })
}

/// Where completions go.
struct Room {
    into: *mut Completion,
    room: usize,
    count: usize,
}

impl Room {
    #[inline]
    fn is_full(&self) -> bool {
        self.count >= self.room
    }

    /// Puts one where there is room.
    #[inline]
    fn put(&mut self, completion: Completion) {
        let at = self.into.wrapping_add(self.count);
        // SAFETY: the program's promise: room for so many.
        unsafe { at.write_unaligned(completion) };
        self.count += 1;
    }
}

impl Desk {
    /// A socket sits down, or has changed.
    fn sit(&mut self, socket: SocketRef, fd: c_int) {
        let is_there =
            |seat: &Seat| seat.fd == fd && std::ptr::eq(seat.socket.socket(), socket.socket());
        if !self.seats.iter().any(is_there) {
            self.keep(|seat| seat.fd != fd && table::is_socket(seat.fd, &seat.socket));
            let (is_arriving, peer, has_ended) = (false, None, false);
            self.seats.push(Seat { fd, socket, asked: 0, is_arriving, peer, has_ended });
        }
        let ring = self.ring;
        if let Some(seat) = self.seat(fd) {
            if seat.socket.kind() == Kind::Listener
                && let Ok(flags) = raw::file_flags(fd)
            {
                // Another process may accept what was there: this one must not wait.
                raw::set_file_flags(fd, flags | libc::O_NONBLOCK);
            }
            seat.ask(ring, fd);
        }
    }

    /// A descriptor leaves its seat, which is its copy's from now on, if there is one.
    fn leave(&mut self, fd: c_int, socket: &Socket, copy: Option<c_int>) {
        let ring = self.ring;
        let Some(seat) = self.seat(fd) else { return };
        if !std::ptr::eq(seat.socket.socket(), socket) {
            return;
        }
        // The kernel would keep what it knows by this number for as long as there is a copy.
        if seat.asked != 0 {
            let _ = raw::epoll_control(ring, libc::EPOLL_CTL_DEL, fd, 0, 0);
            seat.asked = 0;
        }
        match copy {
            Some(copy) => {
                seat.fd = copy;
                seat.ask(ring, copy);
            }
            None => self.keep(|seat| seat.fd != fd),
        }
    }

    fn seat(&mut self, fd: c_int) -> Option<&mut Seat> {
        self.seats.iter_mut().find(|seat| seat.fd == fd)
    }

    /// Others leave their seats.
    fn keep(&mut self, is_kept: impl Fn(&Seat) -> bool) {
        self.seats.retain(is_kept);
        self.front = self.front.min(self.seats.len());
    }

    fn poll(&mut self, here: Here, room: &mut Room, pool: &mut Pool) -> usize {
        for _ in 0..ROUNDS_MAX {
            let before = room.count;
            self.look_at_memory(here, room, pool);
            if room.is_full() || room.count == before {
                break;
            }
        }
        self.calls = self.calls.wrapping_add(1);
        if room.count > 0 {
            self.idle = 0;
            return room.count;
        }
        self.idle = self.idle.wrapping_add(1);
        let _ = self.paper.blank(pool); // The next packet finds it made.
        // Before it polls again, a thread had better leave the lines alone for a moment that others write to.
        std::hint::spin_loop();
        // What has ended the flow may be that the next one comes through the kernel.
        let is_soon = self.idle >= KERNEL_SOON && self.idle.is_power_of_two();
        if is_soon || self.calls > self.most_calls {
            let _errno = raw::KeptErrno::new();
            self.calls = 0;
            self.look_at_kernel(room, pool);
            // Where something came from more may come, and a sender that begins by the kernel goes on there until all has come.
            let has_memory = self.seats.iter().take(FRONT_MAX).any(Seat::is_in_memory);
            self.most_calls = if has_memory && room.count == 0 { KERNEL_CALLS } else { 0 };
            if room.count > 0 {
                self.idle = 0;
            }
        }
        room.count
    }

    /// The seats in front, and then some of the others; now and then the other way round, so that those in front do
    /// not keep the others waiting for good.
    #[inline]
    fn look_at_memory(&mut self, here: Here, room: &mut Room, pool: &mut Pool) {
        let is_other_way = self.calls.is_multiple_of(BEHIND_FIRST);
        if is_other_way {
            self.look_behind(here, room, pool);
        }
        self.look_in_front(here, room, pool);
        if !is_other_way {
            self.look_behind(here, room, pool);
        }
    }

    #[inline]
    fn look_in_front(&mut self, here: Here, room: &mut Room, pool: &mut Pool) {
        let [first, behind] = self.turns;
        for step in 0..self.front {
            if room.is_full() {
                return;
            }
            let at = wrapped(first, step, self.front);
            if self.look_at(here, at, room, pool) {
                self.turns = [at + 1, behind];
            }
        }
    }

    #[inline]
    fn look_behind(&mut self, here: Here, room: &mut Room, pool: &mut Pool) {
        let ([front, first], others) = (self.turns, self.seats.len() - self.front);
        for step in 0..others.min(BEHIND_LOOKS) {
            if room.is_full() {
                return;
            }
            let at = wrapped(first, step, others);
            self.turns = [front, at + 1];
            let at = at + self.front;
            if self.look_at(here, at, room, pool) {
                self.come_to_front(at);
            }
        }
    }

    /// Says what the memory of a seat has to say, if anything.
    #[inline]
    fn look_at(&mut self, here: Here, at: usize, room: &mut Room, pool: &mut Pool) -> bool {
        let Some(seat) = self.seats.get_mut(at) else { return false };
        let Some(news) = seat.memory_news() else { return false };
        let fd = seat.fd;
        if !table::is_socket(fd, &seat.socket) {
            self.keep(|seat| table::is_socket(seat.fd, &seat.socket));
            return false;
        }
        if let News::Mail(Store::Mailbox(mailbox)) = news
            && seat.take_mail(here, mailbox, fd, &mut self.paper, pool, room)
        {
            return true;
        }
        let said = seat.serve(fd, &mut self.paper, pool);
        if let Some(completion) = said {
            room.put(completion);
        }
        said.is_some()
    }

    /// A seat behind takes a place in front, if need be that of the one that has waited longest for its turn.
    fn come_to_front(&mut self, at: usize) {
        let [turn, _] = self.turns;
        let place = if self.front < FRONT_MAX { self.front } else { turn % FRONT_MAX };
        if at < self.seats.len() && place < self.seats.len() {
            self.seats.swap(at, place);
        }
        self.front = (self.front + 1).min(FRONT_MAX);
    }

    /// What the kernel has for the seats: connections, bytes, ends, and bells.
    fn look_at_kernel(&mut self, room: &mut Room, pool: &mut Pool) {
        let wants = state::wants_of_room();
        // What had rings may be the kernel's by now: it is looked again after a while, less and less often.
        if wants != self.wants_seen || self.idle.is_power_of_two() {
            self.wants_seen = wants;
            let ring = self.ring;
            for seat in self.seats.iter_mut().filter(|seat| seat.wants_room()) {
                let fd = seat.fd;
                seat.ask(ring, fd);
            }
        }
        let mut events = [NO_EVENT; KERNEL_EVENTS];
        let most = (room.room - room.count).min(KERNEL_EVENTS);
        let count = raw::epoll_now(self.ring, events.get_mut(..most).unwrap_or(&mut []));
        for event in events.iter().take(count) {
            let Ok(fd) = c_int::try_from(event.u64) else { continue };
            let Some(at) = self.seats.iter().position(|seat| seat.fd == fd) else { continue };
            let Some(seat) = self.seats.get_mut(at) else { continue };
            if !table::is_socket(fd, &seat.socket) {
                self.keep(|seat| table::is_socket(seat.fd, &seat.socket));
                continue;
            }
            let completion = match seat.socket.kind() {
                Kind::Listener => self.accept(fd),
                Kind::Connecting | Kind::Fresh => seat.arrive(self.ring, fd, event.events.into()),
                // The program has used it meanwhile.
                Kind::Stream if seat.is_arriving => Some(seat.tell_of_arrival(self.ring, fd)),
                Kind::Stream | Kind::Datagram => {
                    seat.hear(self.ring, fd, event.events.into(), &mut self.paper, pool)
                }
            };
            if let Some(completion) = completion {
                room.put(completion);
            }
        }
    }

    /// Accepts a connection, which sits down here, too.
    fn accept(&mut self, listener: c_int) -> Option<Completion> {
        let socket = self.seat(listener)?.socket.clone();
        let fd = raw::accept(listener).ok()?;
        // Whatever had this number before was closed behind our back.
        table::clear(fd).map(Socket::release).unwrap_or(());
        sockets::accepted(&socket, fd, 0, false);
        let new = table::socket(fd)?;
        new.completions
            .ring
            .store(socket.completions.ring.load(Ordering::Relaxed), Ordering::Release);
        let completion = Completion {
            events: ACCEPTED,
            user_data: new.user_data_or(fd),
            from: short(address::name(fd, true)),
            listener,
            ..NOTHING
        };
        self.sit(new, fd);
        Some(completion)
    }
}

impl Seat {
    /// Whether what comes to it comes through memory.
    #[inline]
    fn is_in_memory(&self) -> bool {
        match self.socket.kind() {
            Kind::Stream => self.socket.route() == Route::Rings && !self.has_ended,
            Kind::Datagram => datagram::stored(&self.socket).is_some(),
            Kind::Fresh | Kind::Listener | Kind::Connecting => false,
        }
    }

    /// Whether a call has found no room to send, of which the program has not been told since.
    #[inline]
    fn wants_room(&self) -> bool {
        self.socket.completions.wants_room.load(Ordering::Relaxed)
    }

    /// Whether only the kernel can say when there is some.
    fn wants_kernels_room(&self) -> bool {
        self.wants_room()
            && self
                .socket
                .segment()
                .is_none_or(|segment| park::kernel_speaks(&self.socket, segment).1)
    }

    /// Whether there is some, of a ring.
    fn has_ring_room(&self) -> bool {
        self.socket.segment().is_some_and(|segment| {
            !park::kernel_speaks(&self.socket, segment).1
                && park::readiness(&self.socket, segment) & libc::POLLOUT != 0
        })
    }

    /// Says so.
    fn tell_of_room(&self, fd: c_int) -> Completion {
        self.socket.completions.wants_room.store(false, Ordering::Relaxed);
        Completion { events: OUT, user_data: self.socket.user_data_or(fd), ..NOTHING }
    }

    /// Where there is something, if memory alone says so.
    #[inline]
    fn memory_news(&self) -> Option<News<'_>> {
        let is_there = match self.socket.kind() {
            Kind::Stream if self.wants_room() && self.has_ring_room() => true,
            Kind::Stream if !self.has_ended => {
                self.socket.segment().is_some_and(|segment| park::has_news(&self.socket, segment))
            }
            Kind::Datagram => {
                let store = datagram::stored(&self.socket)?;
                return store.has_record().then_some(News::Mail(store));
            }
            Kind::Stream | Kind::Fresh | Kind::Listener | Kind::Connecting => false,
        };
        is_there.then_some(News::Bytes)
    }

    /// Receives a packet, or finds the end of a stream.
    fn serve(&mut self, fd: c_int, paper: &mut Paper, pool: &mut Pool) -> Option<Completion> {
        let _errno = raw::KeptErrno::new();
        if self.wants_room() && self.has_ring_room() {
            return Some(self.tell_of_room(fd));
        }
        if let Some((len, from)) = self.take_short(fd, paper, pool) {
            let list = paper.list(pool, &self.socket, fd, len);
            return Some(self.packet(fd, len, list, from));
        }
        let socket = &self.socket;
        let mut loan = Loan::new(socket, PACKET_MAX, PIECES_MAX);
        let parts = paper.parts(&mut loan, pool);
        let (len, from) = if socket.kind() == Kind::Datagram {
            let (control, flags) = (std::ptr::null_mut(), libc::MSG_DONTWAIT);
            let request =
                Request { parts: &parts, control, control_len: 0, flags, loan: Some(&loan) };
            let arrival = datagram::receive_now(socket, fd, request).ok()?;
            (arrival.len, stored(&arrival.from))
        } else {
            let how = Receive { now: true, loan: Some(&loan), ..Receive::default() };
            let len = match stream::try_receive(socket, fd, &mut IoCursor::new(&parts), how) {
                Step::Moved(0) | Step::Nothing => return None,
                Step::Moved(len) => len,
                Step::Ended => return self.end(fd, IN | RDHUP),
                Step::Failed(error) => {
                    // Whatever the program does next fails with it.
                    socket.set_error(error.0);
                    return self.end(fd, IN | ERR | HUP | RDHUP);
                }
            };
            (len, *self.peer.get_or_insert_with(|| short(address::name(fd, true))))
        };
        let list = match loan.lent() {
            Some(lent) => pool.list(socket, fd, &lent),
            None => paper.list(pool, socket, fd, len),
        };
        Some(self.packet(fd, len, list, from))
    }

    /// Says what is in a mailbox, if that is a short packet in the plainest case. False: [`Self::serve`] finds out what
    /// there is, and nothing has happened.
    #[inline]
    fn take_mail(
        &self,
        here: Here,
        mailbox: &Mailbox,
        fd: c_int,
        paper: &mut Paper,
        pool: &mut Pool,
        room: &mut Room,
    ) -> bool {
        let Some(blank) = paper.blank(pool) else { return false };
        let libc::iovec { iov_base, iov_len } = blank.part();
        // SAFETY: it has room for as much, in whole runs, and is the paper's alone.
        let got = unsafe {
            datagram::receive_short(here, &self.socket, mailbox, iov_base.cast(), iov_len)
        };
        if let Some((len, from)) = got
            && let Some(blank) = paper.blank.take()
        {
            room.put(self.packet(fd, len, (pool.fill(blank, len), 1), short(from)));
        }
        got.is_some()
    }

    /// Receives a few bytes of a connection in the plainest case: how many, and where they come from.
    #[inline]
    fn take_short(
        &self,
        fd: c_int,
        paper: &mut Paper,
        pool: &mut Pool,
    ) -> Option<(usize, libc::sockaddr_in)> {
        let from = self.peer?;
        let libc::iovec { iov_base, iov_len } = paper.blank(pool)?.part();
        // SAFETY: it has room for as much, and is the paper's alone.
        let len = unsafe { stream::try_receive_short(&self.socket, fd, iov_base.cast(), iov_len) }?;
        Some((len, from))
    }

    #[inline]
    fn packet(
        &self,
        fd: c_int,
        len: usize,
        (buffers, buffer_count): (*mut Buffer, usize),
        from: libc::sockaddr_in,
    ) -> Completion {
        let len = u16::try_from(len).unwrap_or(u16::MAX);
        let user_data = self.socket.user_data_or(fd);
        Completion { buffer_count, len, buffers, events: PACKET, user_data, from, ..NOTHING }
    }

    /// Says once that there is no more to come.
    fn end(&mut self, fd: c_int, events: u64) -> Option<Completion> {
        if std::mem::replace(&mut self.has_ended, true) {
            return None;
        }
        self.is_arriving = false;
        let is_shut = self.socket.flags.is_write_shut.load(Ordering::Relaxed);
        let events = if is_shut { events | HUP } else { events };
        Some(Completion { events, user_data: self.socket.user_data_or(fd), ..NOTHING })
    }

    /// A connection that was on its way has arrived, or failed.
    fn arrive(&mut self, ring: c_int, fd: c_int, events: u64) -> Option<Completion> {
        let has_failed = events & (ERR | HUP) != 0;
        let is_open = !has_failed && events & OUT != 0;
        if has_failed {
            let said = self.end(fd, ERR | HUP | IN);
            self.ask(ring, fd);
            return said;
        }
        is_open.then(|| self.tell_of_arrival(ring, fd))
    }

    /// A connection has arrived.
    fn tell_of_arrival(&mut self, ring: c_int, fd: c_int) -> Completion {
        self.is_arriving = false;
        fallback::advance(&self.socket, fd);
        self.ask(ring, fd);
        Completion { events: OUT, user_data: self.socket.user_data_or(fd), ..NOTHING }
    }

    /// The kernel has something for it.
    fn hear(
        &mut self,
        ring: c_int,
        fd: c_int,
        events: u64,
        paper: &mut Paper,
        pool: &mut Pool,
    ) -> Option<Completion> {
        // At its end, any event says that sending does not wait.
        if self.wants_kernels_room() && (self.has_ended || events & (OUT | ERR | HUP) == OUT) {
            let said = self.tell_of_room(fd);
            self.ask(ring, fd);
            return Some(said);
        }
        if self.has_ended {
            self.ask(ring, fd);
            return None;
        }
        let is_error = events & ERR != 0 && self.socket.kind() == Kind::Datagram;
        if is_error && !self.socket.completions.has_told_error.swap(true, Ordering::Relaxed) {
            // The error is the program's to take. If it does not, it is taken the next time, and what comes goes on.
            let user_data = self.socket.user_data_or(fd);
            return Some(Completion { events: ERR, user_data, ..NOTHING });
        }
        if let Some(segment) = self.socket.segment() {
            let (reading, _) = park::kernel_speaks(&self.socket, segment);
            if !reading {
                // A bell, or the end of the peer.
                park::look_at_kernel(&self.socket, fd);
                bell::drain(&self.socket, segment, fd, false);
                if !park::has_news(&self.socket, segment) {
                    return None;
                }
            }
        }
        let is_kernels = self.socket.kind() == Kind::Stream && self.socket.segment().is_none();
        if is_kernels && events & ERR != 0 && raw::waiting(fd) == Ok(0) {
            // The error is the program's to take.
            let said = self.end(fd, IN | ERR | HUP | RDHUP);
            self.ask(ring, fd);
            return said;
        }
        let said =
            if events & (IN | ERR | HUP | RDHUP) != 0 { self.serve(fd, paper, pool) } else { None };
        if self.has_ended {
            self.ask(ring, fd);
        }
        said
    }

    /// Has the kernel say what it has to say of it, and no more.
    fn ask(&mut self, ring: c_int, fd: c_int) {
        let kind = self.socket.kind();
        self.is_arriving |= kind == Kind::Connecting && !self.has_ended;
        let room = if self.is_arriving || self.wants_kernels_room() { OUT } else { 0 };
        let wanted = match kind {
            _ if self.has_ended => room,
            Kind::Fresh => 0,
            Kind::Listener => IN,
            Kind::Datagram => IN | room,
            Kind::Connecting => OUT,
            Kind::Stream => IN | RDHUP | room,
        };
        let op = match (self.asked, wanted) {
            (asked, wanted) if asked == wanted => return,
            (0, _) => libc::EPOLL_CTL_ADD,
            (_, 0) => libc::EPOLL_CTL_DEL,
            _ => libc::EPOLL_CTL_MOD,
        };
        let events = u32::try_from(wanted).unwrap_or(0);
        let data = u64::try_from(fd).unwrap_or(u64::MAX);
        let _ = raw::epoll_control(ring, op, fd, events, data);
        self.asked = wanted;
    }
}

/// An address as completions have room for: of IPv6 the family and the port alone.
#[inline]
fn short(addr: Option<SocketAddr>) -> libc::sockaddr_in {
    let Some(addr) = addr else { return NOTHING.from };
    let ip = match addr.ip().to_canonical() {
        std::net::IpAddr::V4(ip) => Some(ip),
        std::net::IpAddr::V6(_) => None,
    };
    let family = if ip.is_some() { libc::AF_INET } else { libc::AF_INET6 };
    libc::sockaddr_in {
        sin_family: u16::try_from(family).unwrap_or(0),
        sin_port: addr.port().to_be(),
        sin_addr: libc::in_addr { s_addr: ip.map_or(0, |ip| u32::from_ne_bytes(ip.octets())) },
        sin_zero: [0; 8],
    }
}

/// The same of one that has come with a datagram.
#[inline]
fn stored(addr: &address::Name) -> libc::sockaddr_in {
    if c_int::from(addr.sin6_family) != libc::AF_INET {
        return short(address::read_name(addr));
    }
    // SAFETY: that is what an address of this family is, and there is room for any.
    let addr = unsafe { (&raw const *addr).cast::<libc::sockaddr_in>().read() };
    libc::sockaddr_in { sin_zero: [0; 8], ..addr }
}

/// A completion of nothing.
const NOTHING: Completion = Completion {
    buffer_count: 0,
    len: 0,
    buffers: std::ptr::null_mut(),
    hardware: [0; 2],
    events: 0,
    user_data: 0,
    from: libc::sockaddr_in {
        sin_family: 0,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: 0 },
        sin_zero: [0; 8],
    },
    listener: 0,
};

/// Packets of one socket that a call takes, where there is room for them.
const ROUNDS_MAX: usize = 16;
/// Seats in front, and of those behind how many a call looks at in a round.
const FRONT_MAX: usize = 16;
const BEHIND_LOOKS: usize = 8;
/// Once in so many calls those behind come first.
const BEHIND_FIRST: u32 = 16;
const NO_EVENT: libc::epoll_event = libc::epoll_event { events: 0, u64: 0 };
/// Events that the kernel is asked for at a time.
const KERNEL_EVENTS: usize = 32;
/// Calls that look at memory alone for each that asks the kernel, where there is any memory to look at.
const KERNEL_CALLS: u32 = 4096;
/// After so many that have found nothing it is asked for the first time, then after twice as many, and so on.
const KERNEL_SOON: u32 = 64;
const _: () = assert!(KERNEL_SOON < KERNEL_CALLS);
