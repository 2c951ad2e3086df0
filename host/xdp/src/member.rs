//! A process that has its sockets from an owner.

use crate::gate::Gates;
use crate::grant::{self, Greeting, Question, Request};
use crate::socket::Socket;
use crate::steering::Key;
use crate::umem::{Files, Umem};
use adverb_sys::bpf::XdpMode;
use adverb_sys::clock;
use adverb_sys::fork::KeptFd;
use adverb_sys::poll;
use adverb_sys::process;
use adverb_sys::unix::Stream;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::Shutdown;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// A member's connection to its owner. It ends the membership when it is dropped. An owner that does not answer in time is
/// asked nothing before it does: what it was asked it does not do any more, unless it was about to have done it, and all that
/// the member has stays with it. A descriptor that can be read says that the owner has ended, or answers at last:
/// [`Membership::has_ended`] finds out.
#[derive(Debug)]
pub struct Membership {
    stream: Stream,
    gates: Gates,
    mode: XdpMode,
    umem: Arc<Umem>,
    /// Threads ask in turn: the owner has one question at a time.
    talk: Mutex<Talk>,
    /// Keys that are to be released once the owner can be asked. Locked for a moment, also by a thread that has `talk`.
    owed: Mutex<Vec<Key>>,
}

/// What has been asked.
#[derive(Debug, Default)]
struct Talk {
    /// The number of the next question.
    next: u32,
    /// Questions without an answer, the oldest first.
    open: VecDeque<Open>,
}

/// A question without an answer.
#[derive(Clone, Copy, Debug)]
struct Open {
    number: u32,
    request: Request,
    /// It has been given up.
    is_late: bool,
}

impl Talk {
    /// The owner has not answered in time, and still has not.
    fn is_stuck(&self) -> bool {
        self.open.front().is_some_and(|open| open.is_late)
    }
}

impl Membership {
    /// How long it waits for an answer at most. An owner that has not answered by then is late.
    pub const ANSWER: Duration = PATIENCE.saturating_add(GRACE);

    /// Asks the owner with this abstract name for sockets, one on each queue of this user's group. The owner has to be
    /// of this user or root: any process could have taken the name. It has to be of this process namespace: the lock of
    /// a group has a process's number.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused` if there is no owner; `PermissionDenied` if it does not admit this process, or is another
    /// user's or of another process namespace; `ResourceBusy` if another user's group has its queues, or for a moment an owner that
    /// was before this one; `QuotaExceeded` if the owner may not lock the memory that a group takes; `TimedOut` if it does not
    /// answer; `InvalidData` if its answer makes no sense.
    pub fn ask(name: &[u8]) -> io::Result<(Self, Vec<Socket>)> {
        Self::ask_above(name, 0)
    }

    /// The same, with descriptors of which none that stays open has a number below `least`: a library leaves low ones to
    /// its program.
    ///
    /// # Errors
    ///
    /// Those of [`Membership::ask`]; `EINVAL` or `EMFILE` if there may be no such numbers.
    pub fn ask_above(name: &[u8], least: RawFd) -> io::Result<(Self, Vec<Socket>)> {
        let above = |fd: OwnedFd| Ok::<_, io::Error>(fcntl_dupfd_cloexec(fd, least)?);
        let stream = Stream::connect(name)?.move_above(least)?;
        let owner = stream.peer()?;
        let ours = owner.uid == 0 || owner.uid == process::user();
        // It looks from its side, too: what each sees of the other is a process of one namespace.
        if !ours || owner.pid == 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut fds = Vec::new();
        let mut bytes = [0; Greeting::LEN + 1];
        let greeting = Greeting::parse(take(&stream, &mut bytes, &mut fds)?)?;
        let [frames, record, gates, tie] = <[OwnedFd; 4]>::try_from(fds).map_err(|_| nonsense())?;
        let mut umem = Umem::open(greeting.shape, &Files { frames, record })?;
        umem.hold(KeptFd::new(above(tie)?)?);
        umem.set_queues(greeting.sockets);
        let umem = Arc::new(umem);
        let gates = Gates::open(&gates)?;
        let mut sockets = Vec::new();
        while u32::try_from(sockets.len()).is_ok_and(|count| count < greeting.sockets) {
            let mut fds = Vec::new();
            let bytes = take(&stream, &mut bytes, &mut fds)?;
            for (queue, fd) in grant::parse_sockets(bytes, fds)? {
                let fd = above(fd)?;
                sockets.push(Socket::adopt(fd, Arc::clone(&umem), greeting.place, queue)?);
            }
        }
        let (mode, talk, owed) = (greeting.mode, Mutex::default(), Mutex::default());
        Ok((Self { stream, gates, mode, umem, talk, owed }, sockets))
    }

    /// Its descriptors, but for those of the sockets.
    pub fn all_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.stream.as_fd()).chain(self.umem.tie())
    }

    /// By which it says for which keys it wants packets now.
    #[must_use]
    pub const fn gates(&self) -> &Gates {
        &self.gates
    }

    /// Where the owner's program is. Behind the driver it sees what the kernel has put together, or not yet cut.
    #[must_use]
    pub const fn mode(&self) -> XdpMode {
        self.mode
    }

    /// From now on packets that match come here. `twin` is a socket of the kernel's that has the port.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` if the socket has it not; `AlreadyExists` if another member has these packets; `ResourceBusy`
    /// if this user has as many keys as it may; `TimedOut` if the owner does not answer, or has not yet to what it was asked
    /// before: nothing is done then, and what the owner turns out to have done is undone.
    pub fn claim(&self, key: Key, twin: impl AsFd) -> io::Result<()> {
        self.request(Request::Claim(key, None), &[twin.as_fd()])
    }

    /// The same, while a gate is open: from one of 0 to [`GATES`](crate::gate::GATES) - 1, on.
    ///
    /// # Errors
    ///
    /// Those of [`Membership::claim`]; another gate ends the membership.
    pub fn claim_by(&self, key: Key, gate: u32, twin: impl AsFd) -> io::Result<()> {
        self.request(Request::Claim(key, Some(gate)), &[twin.as_fd()])
    }

    /// They are the kernel's again, and the owner has no copy of the socket any more.
    ///
    /// # Errors
    ///
    /// The owner has ended; `TimedOut` if it does not answer: it is done as soon as it does.
    pub fn release(&self, key: Key) -> io::Result<()> {
        self.request(Request::Release(key), &[])
    }

    /// The same without waiting, neither for the owner nor for a thread that asks it something: it is done as soon as the owner
    /// answers, before anything that it is asked later.
    pub fn release_soon(&self, key: Key) {
        self.owed().push(key);
        self.settle();
    }

    /// The socket of a connection's key is taken out of the kernel's hands (`TCP_REPAIR`), or put back, with the
    /// packets.
    ///
    /// # Errors
    ///
    /// What the kernel says to the owner; `PermissionDenied` if this member does not have that key; `TimedOut` if the owner
    /// does not answer: it may have done that all the same, also with the packets alone.
    pub fn repair(&self, key: Key, on: bool) -> io::Result<()> {
        self.request(Request::Repair(key, on), &[])
    }

    /// Ends it: its place at the owner is free for another, and its packets are the kernel's. What can be read says so.
    pub fn leave(&self) {
        // One that the owner has ended is over.
        let _ = rustix::net::shutdown(&self.stream, Shutdown::Both);
    }

    /// The owner has ended, or the membership: no packets come any more. Answers that are late are taken note of. While a
    /// thread asks, it is that one's to find out.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let Some(mut talk) = self.free_talk() else { return false };
        let has_ended = self.catch_up(&mut talk).is_err();
        drop(talk);
        self.settle();
        has_ended
    }

    /// The owner has not answered in time, and has not since: nothing that it is asked would be done.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        let mut talk = self.talk.lock().unwrap_or_else(PoisonError::into_inner);
        let is_stuck = self.catch_up(&mut talk).is_ok() && talk.is_stuck();
        drop(talk);
        self.settle();
        is_stuck
    }

    /// The talk, unless a thread has it.
    fn free_talk(&self) -> Option<MutexGuard<'_, Talk>> {
        match self.talk.try_lock() {
            Ok(talk) => Some(talk),
            Err(TryLockError::Poisoned(talk)) => Some(talk.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn owed(&self) -> MutexGuard<'_, Vec<Key>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases what is owed. A thread that has the talk meanwhile does that when it lets go of it.
    fn settle(&self) {
        let is_owed = || !self.owed().is_empty();
        while is_owed() {
            let Some(mut talk) = self.free_talk() else { return };
            if !self.catch_up(&mut talk).is_ok_and(|is_all| is_all) {
                return; // When it has answered, it is gone on with.
            }
        }
    }

    fn request(&self, request: Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut talk = self.talk.lock().unwrap_or_else(PoisonError::into_inner);
        let result = self.request_by(&mut talk, request, fds);
        drop(talk);
        self.settle();
        result
    }

    fn request_by(
        &self,
        talk: &mut Talk,
        request: Request,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        if !self.catch_up(talk)? {
            // Nothing goes before what is owed: that could be the same key.
            if let Request::Release(key) = request {
                self.owed().push(key);
            }
            return Err(io::ErrorKind::TimedOut.into());
        }
        let number = self.send(talk, request, fds)?;
        let until = clock::now_ns().saturating_add(nanoseconds(Self::ANSWER));
        loop {
            let left = Duration::from_nanos(until.saturating_sub(clock::now_ns()));
            if poll::readable(&self.stream, std::iter::empty(), Some(left))? {
                if let Some((_, result)) = self.hear(talk)?.filter(|(of, _)| *of == number) {
                    return result;
                }
            } else if left.is_zero() {
                talk.open.iter_mut().for_each(|open| open.is_late = true);
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Sends a question; its number.
    fn send(&self, talk: &mut Talk, request: Request, fds: &[BorrowedFd<'_>]) -> io::Result<u32> {
        let number = talk.next;
        let until_ns = clock::now_ns().saturating_add(nanoseconds(PATIENCE));
        self.stream.send(&Question { number, until_ns, request }.emit()?, fds)?;
        talk.next = number.wrapping_add(1);
        talk.open.push_back(Open { number, request, is_late: false });
        Ok(number)
    }

    /// Takes note of what the owner has said, and releases what is to be released if it answers; says whether that was all.
    fn catch_up(&self, talk: &mut Talk) -> io::Result<bool> {
        while self.hear(talk)?.is_some() {}
        while !talk.is_stuck() {
            let Some(key) = self.owed().pop() else { return Ok(true) };
            if self.send(talk, Request::Release(key), &[]).is_err() {
                self.owed().push(key); // There is no room: the owner has much to read.
                break;
            }
        }
        Ok(false)
    }

    /// Takes an answer, if there is one. What makes no sense ends the membership. What an owner has done just in time, and says
    /// too late, is undone if it is a claim; of the rest the one that has asked takes care.
    fn hear(&self, talk: &mut Talk) -> io::Result<Option<(u32, io::Result<()>)>> {
        let mut bytes = [0; 9];
        let heard = match self.stream.recv(&mut bytes, &mut Vec::new()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => Err(error),
            Ok(0) => Err(io::ErrorKind::ConnectionAborted.into()),
            Ok(len) => bytes.get(..len).and_then(grant::parse_answer).ok_or_else(nonsense),
        };
        let known = heard.and_then(|(number, result)| {
            let open = talk.open.pop_front().filter(|open| open.number == number);
            let Open { request, is_late, .. } = open.ok_or_else(nonsense)?;
            if let Request::Claim(key, _) = request
                && is_late
                && result.is_ok()
            {
                self.owed().push(key);
            }
            Ok((number, result))
        });
        if known.is_err() {
            self.leave();
        }
        known.map(Some)
    }
}

impl AsFd for Membership {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Waits for a message of a greeting, whatever signals come meanwhile.
fn take<'a>(stream: &Stream, bytes: &'a mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<&'a [u8]> {
    let until = clock::now_ns().saturating_add(nanoseconds(PATIENCE));
    loop {
        let left = Duration::from_nanos(until.saturating_sub(clock::now_ns()));
        if poll::readable(stream, std::iter::empty(), Some(left))? {
            break;
        }
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    match stream.recv(bytes, fds)? {
        0 => Err(io::ErrorKind::ConnectionAborted.into()),
        len => bytes.get(..len).ok_or_else(nonsense),
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn nonsense() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// How long an owner may take: it may have to wait for a queue.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an answer may take that was given in time.
const GRACE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
