//! What frames travel on: a TCP connection, or a queue pair that connection management has connected.
//!
//! Both are streams of bytes that do not wait, with a descriptor to sleep on. What the bytes mean is the business of
//! `connector.rs`.

mod cm;

pub(crate) use self::cm::{CmDoor, CmPipe, CmWay};
use adverb_sys::epoll::Interest;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// A stream of bytes to a peer and from it.
#[derive(Debug)]
pub(crate) enum Pipe {
    Cm(Box<CmPipe>),
    Tcp(TcpStream),
}

/// Where peers come in.
#[derive(Debug)]
pub(crate) enum Door {
    Cm(CmDoor),
    Tcp(TcpListener),
}

impl Pipe {
    /// One over a TCP connection.
    ///
    /// # Errors
    ///
    /// The connection is gone.
    pub(crate) fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    /// Takes bytes that have come; 0 of them once the peer has ended the stream.
    ///
    /// # Errors
    ///
    /// `WouldBlock` while there are none; the connection is broken.
    pub(crate) fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Cm(pipe) => pipe.read(bytes),
            Self::Tcp(stream) => (&*stream).read(bytes),
        }
    }

    /// Sends bytes, and says how many.
    ///
    /// # Errors
    ///
    /// `WouldBlock` while there is no room; the connection is broken.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Cm(pipe) => pipe.write(bytes),
            Self::Tcp(stream) => (&*stream).write(bytes),
        }
    }

    /// The descriptor to sleep on; it can be read, or for a TCP connection what `interest` says.
    pub(crate) fn watched(&self, interest: Interest) -> (BorrowedFd<'_>, Interest) {
        match (self, interest) {
            (Self::Cm(pipe), Interest::Writable) => (pipe.room(), Interest::Readable),
            (Self::Cm(_) | Self::Tcp(_), _) => (self.as_fd(), interest),
        }
    }

    /// Ends the stream after what was sent, for which a queue pair waits, at most for `patience`; the system sends
    /// what is in a TCP connection without that.
    pub(crate) fn finish(&self, patience: Duration) {
        match self {
            Self::Cm(pipe) => pipe.finish(patience),
            Self::Tcp(stream) => {
                // Bytes that have not been read would make the kernel reset the connection, and the last words
                // would be lost.
                let mut rest = [0; REST_BYTES];
                for _ in 0..READS_MAX {
                    if !matches!((&*stream).read(&mut rest), Ok(1..)) {
                        break;
                    }
                }
                let _ = stream.shutdown(Shutdown::Write);
            }
        }
    }
}

impl AsFd for Pipe {
    /// Can be read when [`Pipe::read`] has something to say.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Cm(pipe) => pipe.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Door {
    /// Where it is.
    pub(crate) fn local(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Cm(door) => Ok(door.local()),
            Self::Tcp(listener) => listener.local_addr(),
        }
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Cm(door) => door.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// Why there is no connection, where the system has no number for it.
fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

fn unsupported() -> io::Error {
    io::Error::new(ErrorKind::Unsupported, "connection management is for software devices")
}

const REST_BYTES: usize = 4096;
/// Reads of what is left when a connection ends.
const READS_MAX: usize = 16;
