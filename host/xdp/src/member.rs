//! A process that has its sockets from an owner.

use crate::grant::{self, Greeting, Request};
use crate::socket::Socket;
use crate::steering::Key;
use crate::umem::{Files, Umem};
use adverb_sys::poll;
use adverb_sys::process;
use adverb_sys::unix::Stream;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// A member's connection to its owner. It ends the membership when it is dropped; a file descriptor that can be read
/// says that the owner has ended.
#[derive(Debug)]
pub struct Membership {
    stream: Stream,
}

impl Membership {
    /// Asks the owner with this abstract name for sockets, one on each queue of this user's group. The owner has to be
    /// of this user or root: any process could have taken the name. It has to be of this process namespace: the lock of
    /// a group has a process's number.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused` if there is no owner; `PermissionDenied` if it does not admit this process, or is another
    /// user's or of another process namespace; `ResourceBusy` if another user's group has its queues; `TimedOut` if it does not answer; `InvalidData`
    /// if its answer makes no sense.
    pub fn ask(name: &[u8]) -> io::Result<(Self, Vec<Socket>)> {
        let stream = Stream::connect(name)?;
        let owner = stream.peer()?;
        let ours = owner.uid == 0 || owner.uid == process::user();
        // It looks from its side, too: what each sees of the other is a process of one namespace.
        if !ours || owner.pid == 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut fds = Vec::new();
        let mut bytes = [0; Greeting::LEN + 1];
        let greeting = Greeting::parse(take(&stream, &mut bytes, &mut fds)?)?;
        let [frames, record] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| nonsense())?;
        let umem = Arc::new(Umem::open(greeting.shape, &Files { frames, record })?);
        let mut sockets = Vec::new();
        while u32::try_from(sockets.len()).is_ok_and(|count| count < greeting.sockets) {
            let mut fds = Vec::new();
            let bytes = take(&stream, &mut bytes, &mut fds)?;
            for (queue, fd) in grant::parse_sockets(bytes, fds)? {
                sockets.push(Socket::adopt(fd, Arc::clone(&umem), greeting.place, queue)?);
            }
        }
        Ok((Self { stream }, sockets))
    }

    /// From now on packets that match come here. `twin` is a socket of the kernel's that has the port.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` if the socket has it not; `AlreadyExists` if another member has these packets.
    pub fn claim(&self, key: Key, twin: impl AsFd) -> io::Result<()> {
        self.request(Request::Claim(key), &[twin.as_fd()])
    }

    /// They are the kernel's again.
    ///
    /// # Errors
    ///
    /// The owner has ended.
    pub fn release(&self, key: Key) -> io::Result<()> {
        self.request(Request::Release(key), &[])
    }

    /// The owner has ended: no packets come any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        // It says nothing unless it is asked.
        poll::readable(&self.stream, std::iter::empty(), Some(Duration::ZERO)).unwrap_or(true)
    }

    fn request(&self, request: Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.stream.send(&request.emit()?, fds)?;
        let mut bytes = [0; 8];
        grant::parse_answer(take(&self.stream, &mut bytes, &mut Vec::new())?)
    }
}

impl AsFd for Membership {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Waits for a message.
fn take<'a>(stream: &Stream, bytes: &'a mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<&'a [u8]> {
    if !poll::readable(stream, std::iter::empty(), Some(PATIENCE))? {
        return Err(io::ErrorKind::TimedOut.into());
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
