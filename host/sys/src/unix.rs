//! Sockets between processes of one host that carry descriptors along.
//!
//! Messages keep their bounds (`SOCK_SEQPACKET`). Names are abstract: they belong to the network
//! namespace, vanish with their socket, and leave nothing behind in a file system. Any process of the
//! namespace may connect: the accepting side looks at [`Stream::peer`].

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::fork::KeptFd;
use crate::sockopt;

/// Descriptors that one message carries at most.
pub const FDS_MAX: usize = 4;

/// The process at the other end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Credentials {
    /// The process, as this one's namespace numbers it; 0 if it cannot be seen from here.
    pub pid: u32,
    /// The effective user.
    pub uid: u32,
}

/// A socket that others connect to.
#[derive(Debug)]
pub struct Listener {
    fd: KeptFd,
}

impl Listener {
    /// Listens by this abstract name. Nothing here blocks.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if the name is taken; those of `socket(2)`.
    pub fn bind(name: &[u8]) -> io::Result<Self> {
        let fd = KeptFd::new(socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?)?;
        rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
        rustix::net::listen(&fd, BACKLOG)?;
        Ok(Self { fd })
    }

    /// Takes the next connection.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is none; those of `accept(2)`.
    pub fn accept(&self) -> io::Result<Stream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::accept_with(&self.fd, flags)?;
        Ok(Stream { fd: KeptFd::new(fd)? })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A connection.
#[derive(Debug)]
pub struct Stream {
    fd: KeptFd,
}

impl Stream {
    /// Connects to the process that listens by this abstract name.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused` if none does; `WouldBlock` if too many are waiting to be accepted.
    pub fn connect(name: &[u8]) -> io::Result<Self> {
        let fd = KeptFd::new(socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?)?;
        rustix::net::connect(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
        Ok(Self { fd })
    }

    /// Two that are connected to one another: what the first sends, the second takes. Nothing goes back, so that no
    /// descriptor waits at the first, which its holder need not read from.
    ///
    /// # Errors
    ///
    /// No descriptors left.
    pub fn one_way() -> io::Result<[Self; 2]> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::SEQPACKET;
        let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
        rustix::net::shutdown(&one, Shutdown::Read)?;
        Ok([Self::of(one)?, Self::of(other)?])
    }

    /// One end, which was made elsewhere. What is no such socket can be neither sent to nor read from.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn of(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: KeptFd::new(fd)? })
    }

    /// The same, with a descriptor whose number is not below `least`.
    ///
    /// # Errors
    ///
    /// Those of `fcntl(2)`: there may be no such number, or none is left.
    pub fn move_above(self, least: RawFd) -> io::Result<Self> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, least)?;
        Ok(Self { fd: KeptFd::new(fd)? })
    }

    /// The process at the other end, or the one that was there when the connection was made.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn peer(&self) -> io::Result<Credentials> {
        // Not by way of `rustix`, whose type of a process's number has no 0.
        let [pid, uid, _gid] = sockopt::get_all(&self.fd, libc::SOL_SOCKET, libc::SO_PEERCRED)?;
        Ok(Credentials { pid: u32::try_from(pid).unwrap_or(0), uid: uid.cast_unsigned() })
    }

    /// Sends one message with these descriptors, at most [`FDS_MAX`].
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is no room; those of `sendmsg(2)`.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut extra = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !extra.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = rustix::net::sendmsg(&self.fd, &[io::IoSlice::new(bytes)], &mut extra, flags)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Takes one message, the part of it that fits `bytes`; says how long that is, and puts the
    /// descriptors into `fds`. 0 bytes: the other end is gone.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is none; those of `recvmsg(2)`.
    pub fn recv(&self, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        self.recv_with(&mut [MaybeUninit::uninit(); space(FDS_MAX)], bytes, fds)
    }

    /// The same, with as many descriptors as anyone can send. Those for which there is no room the kernel closes here,
    /// which may take as long as their sender wants.
    ///
    /// # Errors
    ///
    /// Those of [`Stream::recv`].
    pub fn recv_all(&self, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        self.recv_with(&mut [MaybeUninit::uninit(); space(SENT_MAX)], bytes, fds)
    }

    fn recv_with(
        &self,
        space: &mut [MaybeUninit<u8>],
        bytes: &mut [u8],
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        let mut extra = RecvAncillaryBuffer::new(space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut parts = [io::IoSliceMut::new(bytes)];
        let got = rustix::net::recvmsg(&self.fd, &mut parts, &mut extra, flags)?;
        for message in extra.drain() {
            if let RecvAncillaryMessage::ScmRights(list) = message {
                fds.extend(list);
            }
        }
        Ok(got.bytes)
    }
}

const fn space(fds: usize) -> usize {
    rustix::cmsg_space!(ScmRights(fds))
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Descriptors that the kernel lets a message carry (`SCM_MAX_FD`).
const SENT_MAX: usize = 253;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let kind = SocketType::SEQPACKET;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventfd::EventFd;

    fn pair(name: &str) -> (Listener, Stream, Stream) {
        let name = format!("adverb-test-{name}-{}", std::process::id());
        let listener = Listener::bind(name.as_bytes()).unwrap();
        assert_eq!(Listener::bind(name.as_bytes()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let here = Stream::connect(name.as_bytes()).unwrap();
        let there = listener.accept().unwrap();
        (listener, here, there)
    }

    #[test]
    fn messages_keep_their_bounds_and_bring_descriptors() {
        let (_listener, here, there) = pair("bring");
        let doorbell = EventFd::new().unwrap();
        here.send(b"one", &[doorbell.as_fd(), doorbell.as_fd()]).unwrap();
        here.send(b"two", &[]).unwrap();
        let (mut bytes, mut fds) = ([0; 16], Vec::new());
        assert_eq!(there.recv(&mut bytes, &mut fds).unwrap(), 3);
        assert_eq!((&bytes[..3], fds.len()), (&b"one"[..], 2));
        EventFd::from(fds.remove(0)).signal().unwrap();
        assert_eq!(doorbell.drain().unwrap(), 1);
        assert_eq!(there.recv(&mut bytes, &mut fds).unwrap(), 3);
        assert_eq!(&bytes[..3], b"two");
        let nothing = there.recv(&mut bytes, &mut fds).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_message_brings_all_the_descriptors_that_there_is_room_for() {
        let (_listener, here, there) = pair("all");
        let doorbell = EventFd::new().unwrap();
        let mut space = [MaybeUninit::uninit(); space(SENT_MAX)];
        for all in [false, true] {
            let mut extra = SendAncillaryBuffer::new(&mut space);
            let many = vec![doorbell.as_fd(); SENT_MAX];
            assert!(extra.push(SendAncillaryMessage::ScmRights(&many)));
            let bytes = [io::IoSlice::new(b"x")];
            rustix::net::sendmsg(&here.fd, &bytes, &mut extra, SendFlags::empty()).unwrap();
            let (mut bytes, mut fds) = ([0], Vec::new());
            let recv = if all { Stream::recv_all } else { Stream::recv };
            assert_eq!(recv(&there, &mut bytes, &mut fds).unwrap(), 1);
            assert_eq!(fds.len() == SENT_MAX, all, "{}", fds.len());
        }
    }

    #[test]
    fn both_ends_know_whose_process_the_other_is() {
        let (_listener, here, there) = pair("whose");
        for end in [&here, &there] {
            let peer = end.peer().unwrap();
            assert_eq!(peer.pid, std::process::id());
            assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        }
    }

    /// Where the other process of the next test finds the name to connect to.
    const NAME: &str = "ADVERB_TEST_NAME";

    /// Goal: a process whose number means nothing here has the number 0, and a user. Method: this test runs again
    /// in a process namespace of its own, which cannot see its parent.
    #[test]
    fn a_process_that_cannot_be_seen_from_here_has_number_0() {
        if let Some(name) = std::env::var_os(NAME) {
            let peer = Stream::connect(name.as_encoded_bytes()).unwrap().peer().unwrap();
            assert_eq!(peer, Credentials { pid: 0, uid: rustix::process::geteuid().as_raw() });
            return;
        }
        let name = format!("adverb-test-unseen-{}", std::process::id());
        let _listener = Listener::bind(name.as_bytes()).unwrap();
        let mut command = std::process::Command::new("unshare");
        command.args(["-p", "-f", "--kill-child"]).arg(std::env::current_exe().unwrap());
        command
            .args(["--exact", "unix::tests::a_process_that_cannot_be_seen_from_here_has_number_0"]);
        let output = command.env(NAME, name).output();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match output {
            Ok(output) if text(&output.stdout).contains("running 1 test") => {
                assert!(output.status.success(), "{}", text(&output.stdout));
            }
            Ok(output) => println!("skipped: no process namespace: {}", text(&output.stderr)),
            Err(error) => println!("skipped: unshare: {error}"),
        }
    }

    #[test]
    fn the_end_of_one_side_is_the_end_of_both() {
        let (_listener, here, there) = pair("end");
        drop(here);
        assert_eq!(there.recv(&mut [0; 16], &mut Vec::new()).unwrap(), 0);
        assert!(there.send(b"x", &[]).is_err());
    }

    /// Goal: a descriptor that keeps a connection open cannot wait where nothing is read.
    #[test]
    fn nothing_goes_back_the_one_way() {
        let [from, to] = Stream::one_way().unwrap();
        assert_eq!(to.send(b"x", &[to.as_fd()]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        from.send(b"one", &[]).unwrap();
        let mut bytes = [0; 16];
        assert_eq!(to.recv(&mut bytes, &mut Vec::new()).unwrap(), 3);
        let nothing = to.recv(&mut bytes, &mut Vec::new()).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        drop(from);
        assert_eq!(to.recv(&mut bytes, &mut Vec::new()).unwrap(), 0);
    }

    #[test]
    fn a_name_that_is_not_taken_cannot_be_reached() {
        let refused = Stream::connect(b"adverb-test-not-taken").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
