//! A process that has its sockets from an owner.

use crate::gate::Gates;
use crate::grant::{self, Greeting, Request};
use crate::socket::Socket;
use crate::steering::Key;
use crate::umem::{Files, Umem};
use adverb_sys::fork::KeptFd;
use adverb_sys::poll;
use adverb_sys::process;
use adverb_sys::unix::Stream;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::Shutdown;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// A member's connection to its owner. It ends the membership when it is dropped, and when the owner does not answer; a file descriptor that can be read
/// says that the owner has ended.
#[derive(Debug)]
pub struct Membership {
    stream: Stream,
    gates: Gates,
    umem: Arc<Umem>,
    /// Threads ask in turn: an answer does not say to which question.
    turn: Mutex<()>,
}

impl Membership {
    /// Asks the owner with this abstract name for sockets, one on each queue of this user's group. The owner has to be
    /// of this user or root: any process could have taken the name. It has to be of this process namespace: the lock of
    /// a group has a process's number.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused` if there is no owner; `PermissionDenied` if it does not admit this process, or is another
    /// user's or of another process namespace; `ResourceBusy` if another user's group has its queues, or for a moment an owner that
    /// was before this one; `TimedOut` if it does not answer; `InvalidData`
    /// if its answer makes no sense.
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
        Ok((Self { stream, gates, umem, turn: Mutex::new(()) }, sockets))
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

    /// From now on packets that match come here. `twin` is a socket of the kernel's that has the port.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` if the socket has it not; `AlreadyExists` if another member has these packets; `ResourceBusy`
    /// if this user has as many keys as it may. `TimedOut` if the owner does not answer: the membership has ended then.
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
    /// The owner has ended; `TimedOut` as in [`Membership::claim`].
    pub fn release(&self, key: Key) -> io::Result<()> {
        self.request(Request::Release(key), &[])
    }

    /// The socket of a connection's key is taken out of the kernel's hands (`TCP_REPAIR`), or put back, with the
    /// packets.
    ///
    /// # Errors
    ///
    /// What the kernel says to the owner; `PermissionDenied` if this member does not have that key; `TimedOut` as in
    /// [`Membership::claim`].
    pub fn repair(&self, key: Key, on: bool) -> io::Result<()> {
        self.request(Request::Repair(key, on), &[])
    }

    /// The owner has ended, or the membership: no packets come any more. While a thread asks, it is that one's to find out.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        // It says nothing unless it is asked.
        poll::readable(&self.stream, std::iter::empty(), Some(Duration::ZERO)).unwrap_or(true)
    }

    fn request(&self, request: Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let request = request.emit()?;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.stream.send(&request, fds)?;
        let mut bytes = [0; 8];
        match take(&self.stream, &mut bytes, &mut Vec::new()) {
            Ok(bytes) => grant::parse_answer(bytes),
            Err(error) => {
                // An answer that is late must not be the next question's.
                let _ = rustix::net::shutdown(&self.stream, Shutdown::Both);
                Err(error)
            }
        }
    }
}

impl AsFd for Membership {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Waits for a message, whatever signals come meanwhile.
fn take<'a>(stream: &Stream, bytes: &'a mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<&'a [u8]> {
    let until = Instant::now() + PATIENCE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
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

fn nonsense() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// How long an owner may take: it may have to wait for a queue.
const PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
