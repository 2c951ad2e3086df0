//! An owner that serves other processes: takes them in, answers them, and puts in order what they leave.
//!
//! Members of one user are a group, with a UMEM and queues of its own; the first user of an interface gets as many
//! queues as the owner gives to each, and one for which there is none is refused. A member has the packets of ports that
//! it holds by a socket of the kernel's, which it shows: nothing can be taken from another that way which the kernel
//! would not give.
//!
//! Nothing here waits for a member. One that does not read its answers is ended.

use crate::grant::{self, Greeting, Request};
use crate::interface::{Group, Interface, Member};
use crate::steering::{Key, Protocol};
use adverb_sys::epoll::{Epoll, Events, Interest};
use adverb_sys::netns;
use adverb_sys::unix::{Credentials, Listener, Stream};
use rustix::net::{SocketType, sockopt};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// An interface's owner, and the members that it serves.
#[derive(Debug)]
pub struct Owner {
    interface: Interface,
    listener: Listener,
    epoll: Epoll,
    events: Events,
    /// By user.
    groups: HashMap<u32, Group>,
    /// By place.
    members: HashMap<u32, Served>,
    queues_each: u32,
    /// The network namespace of the interface.
    namespace: u64,
}

#[derive(Debug)]
struct Served {
    stream: Stream,
    user: u32,
}

impl Owner {
    /// Serves an interface under an abstract name; each user gets `queues_each` of its queues, or what is left of them.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if the name is taken; no descriptors left.
    pub fn new(interface: Interface, name: &[u8], queues_each: u32) -> io::Result<Self> {
        let listener = Listener::bind(name)?;
        let epoll = Epoll::new()?;
        epoll.add(&listener, LISTENER, Interest::Readable)?;
        let namespace = netns::cookie_of(std::net::UdpSocket::bind("0.0.0.0:0")?)?;
        Ok(Self {
            interface,
            listener,
            epoll,
            events: Events::with_capacity(EVENTS),
            groups: HashMap::new(),
            members: HashMap::new(),
            queues_each,
            namespace,
        })
    }

    /// How many members there are.
    #[must_use]
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The interface.
    #[must_use]
    pub const fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Waits until there is something to do, or for `timeout`, and does it; ten times a second is enough for members that
    /// wait for packets while another, which reads none, has all frames. `admits` says which processes may be members;
    /// those that cannot be seen from this process's namespace may not.
    ///
    /// # Errors
    ///
    /// Those of `epoll_wait(2)`.
    pub fn step(
        &mut self,
        timeout: Option<Duration>,
        admits: impl Fn(Credentials) -> bool,
    ) -> io::Result<()> {
        let is_behind = self.groups.values().any(Group::is_behind);
        let timeout = if is_behind { Some(timeout.unwrap_or(AGAIN).min(AGAIN)) } else { timeout };
        self.epoll.wait(&mut self.events, timeout)?;
        let ready: Vec<_> = self.events.iter().map(|event| event.token).collect();
        for token in ready {
            match u32::try_from(token) {
                Ok(place) => self.serve(place),
                Err(_) => self.take_in(&admits),
            }
        }
        self.groups.values_mut().for_each(|group| self.interface.tend(group));
        Ok(())
    }

    /// Takes in a process that has connected.
    fn take_in(&mut self, admits: impl Fn(Credentials) -> bool) {
        let Ok(stream) = self.listener.accept() else { return };
        let result = match stream.peer() {
            Ok(peer) if peer.pid != 0 && admits(peer) => self.admit(&stream, peer.uid),
            Ok(_) => Err(io::ErrorKind::PermissionDenied.into()),
            Err(error) => Err(error),
        };
        match result {
            Ok((place, user)) => {
                let watched = self.epoll.add(&stream, place.into(), Interest::Readable);
                self.members.insert(place, Served { stream, user });
                if watched.is_err() {
                    self.end(place);
                }
            }
            // One that does not wait for the answer is gone.
            Err(error) => drop(grant::answer(&stream, Err(error))),
        }
    }

    fn admit(&mut self, stream: &Stream, user: u32) -> io::Result<(u32, u32)> {
        if self.groups.get(&user).map_or(0, Group::len) >= MEMBERS_EACH {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let mut group = match self.groups.remove(&user) {
            Some(group) => group,
            None => self.interface.group(self.queues_each, true)?,
        };
        let joined = self.interface.join(&mut group);
        let greeted = joined.and_then(|member| {
            let place = member.place();
            let greeted = greet(stream, &group, member);
            greeted.inspect_err(|_| self.interface.leave(&mut group, place)).map(|()| place)
        });
        self.keep(user, group);
        Ok((greeted?, user))
    }

    /// Keeps a group as long as it has members.
    fn keep(&mut self, user: u32, group: Group) {
        if group.is_empty() {
            self.interface.disband(group);
        } else {
            self.groups.insert(user, group);
        }
    }

    /// Answers a member, or ends it.
    fn serve(&mut self, place: u32) {
        for _ in 0..REQUESTS {
            let Some(Served { stream, .. }) = self.members.get(&place) else { return };
            let (mut bytes, mut fds) = ([0; Request::LEN + 1], Vec::new());
            let result = match stream.recv(&mut bytes, &mut fds) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) | Ok(0) => return self.end(place),
                Ok(len) => Request::parse(bytes.get(..len).unwrap_or_default()),
            };
            let result = match result {
                None => return self.end(place),
                Some(Request::Claim(key)) => match fds.as_slice() {
                    [twin] if self.holds(twin, &key) => self.interface.claim(key, place),
                    _ => Err(io::ErrorKind::PermissionDenied.into()),
                },
                Some(Request::Release(key)) => {
                    self.interface.release(&key, place);
                    Ok(())
                }
            };
            let answered =
                self.members.get(&place).map(|member| grant::answer(&member.stream, result));
            if answered.is_none_or(|answered| answered.is_err()) {
                return self.end(place);
            }
        }
    }

    /// The kernel's socket has the port of the key, here.
    fn holds(&self, twin: &OwnedFd, key: &Key) -> bool {
        let kind = match key.protocol {
            Protocol::Tcp => SocketType::STREAM,
            Protocol::Udp => SocketType::DGRAM,
        };
        let bound = rustix::net::getsockname(twin).map(SocketAddr::try_from);
        let Ok(Ok(bound)) = bound else { return false };
        let any = bound.ip().is_unspecified() && bound.is_ipv4() == key.local.is_ipv4();
        bound.port() == key.local.port()
            && bound.port() != 0
            && (any || bound.ip() == key.local.ip())
            && sockopt::socket_type(twin) == Ok(kind)
            && netns::cookie_of(twin).is_ok_and(|namespace| namespace == self.namespace)
    }

    fn end(&mut self, place: u32) {
        let Some(Served { stream, user }) = self.members.remove(&place) else { return };
        let _ = self.epoll.remove(stream.as_fd());
        if let Some(mut group) = self.groups.remove(&user) {
            self.interface.leave(&mut group, place);
            self.keep(user, group);
        }
    }
}

/// Sends a member what it needs.
fn greet(stream: &Stream, group: &Group, member: Member) -> io::Result<()> {
    let files = group.files().ok_or(io::ErrorKind::InvalidInput)?;
    let sockets = u32::try_from(member.sockets.len()).unwrap_or(u32::MAX);
    let greeting = Greeting { place: member.place(), shape: group.shape(), sockets };
    stream.send(&greeting.emit(), &[files.frames.as_fd(), files.record.as_fd()])?;
    grant::send_sockets(stream, &member.sockets)
}

/// No place has this number.
const LISTENER: u64 = u64::MAX;
const EVENTS: usize = 16;
/// How long what could not be done is left.
const AGAIN: Duration = Duration::from_millis(20);
/// Members of one user, with those that have left and whose frames have not come back.
const MEMBERS_EACH: usize = 32;
/// Questions of one member that are answered before others are looked at.
const REQUESTS: usize = 16;
