//! Descriptors that other processes have sent: looked at, and closed, where nothing waits for it.
//!
//! Either may take as long as the sender wants: a socket is locked while another call on it waits for memory, and
//! lingers when it is closed. So each user that has members has a thread, which only its own members can keep busy, and
//! another one closes connections that were not admitted. Also a connection is closed there: with it go descriptors
//! that have not been taken from it.

use crate::steering::{Key, Protocol};
use adverb_sys::clock;
use adverb_sys::eventfd::EventFd;
use adverb_sys::repair::{self, Farewell};
use adverb_sys::unix::Stream;
use adverb_sys::{netdev, netns};
use rustix::net::{SocketType, sockopt};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The threads of an owner. Its descriptor can be read when there are verdicts.
#[derive(Debug)]
pub(crate) struct Inspectors {
    /// By user.
    threads: HashMap<u32, Inspector>,
    /// For the connections of others.
    gate: Inspector,
    verdicts: Receiver<Verdict>,
    office: Office,
}

/// What a thread knows.
#[derive(Clone, Debug)]
struct Office {
    place: Place,
    verdicts: Sender<Verdict>,
    bell: Arc<EventFd>,
}

/// Where sockets have to be to have packets of an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) interface: u32,
    /// The network namespace.
    pub(crate) namespace: u64,
}

/// A member that asks for the packets of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Claim {
    pub(crate) user: u32,
    pub(crate) place: u32,
    /// No other member of the owner's ever has had this number.
    pub(crate) member: u64,
    pub(crate) key: Key,
    pub(crate) gate: Option<u32>,
    /// Nothing is to be done for it after that.
    pub(crate) until_ns: u64,
}

/// What is to be said to that.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) claim: Claim,
    pub(crate) ruling: Ruling,
}

/// What was found.
#[derive(Debug)]
pub(crate) enum Ruling {
    /// What was to be done has been, or could not be.
    Done(io::Result<()>),
    /// The kernel's socket that has the port.
    Right(OwnedFd),
    /// There is none.
    Wrong,
}

impl Ruling {
    pub(crate) fn into_twin(self) -> Option<OwnedFd> {
        match self {
            Self::Right(twin) => Some(twin),
            Self::Done(_) | Self::Wrong => None,
        }
    }
}

#[derive(Debug)]
enum Task {
    Inspect(Claim, Vec<OwnedFd>),
    LetGo(Claim, Vec<OwnedFd>),
    Repair(Claim, Option<OwnedFd>, bool),
    Close(Vec<OwnedFd>),
    Reset(Vec<OwnedFd>),
    HangUp(Stream),
}

impl Inspectors {
    pub(crate) fn new(place: Place) -> io::Result<Self> {
        let (send, verdicts) = channel();
        let office = Office { place, verdicts: send, bell: Arc::new(EventFd::new()?) };
        let gate = Inspector::start(office.clone())?;
        Ok(Self { threads: HashMap::new(), gate, verdicts, office })
    }

    /// Makes sure that there is a thread for a user.
    ///
    /// # Errors
    ///
    /// `ResourceBusy` if it has too much to do; no thread to be had.
    pub(crate) fn open(&mut self, user: u32) -> io::Result<()> {
        match self.threads.get(&user) {
            Some(thread) if thread.is_behind() => Err(io::ErrorKind::ResourceBusy.into()),
            Some(_) => Ok(()),
            None => {
                self.threads.insert(user, Inspector::start(self.office.clone())?);
                Ok(())
            }
        }
    }

    /// Ends the threads of users that need none, once they have nothing to do.
    pub(crate) fn close_all_but(&mut self, needed: impl Fn(u32) -> bool) {
        self.threads.retain(|user, thread| needed(*user) || thread.pending() > 0);
    }

    /// Looks for the socket that makes a claim right: there will be a verdict.
    pub(crate) fn inspect(&self, claim: Claim, fds: Vec<OwnedFd>) {
        self.of(claim.user).give(Task::Inspect(claim, fds));
    }

    /// Closes what had the port of a claim: there will be a verdict after that.
    pub(crate) fn let_go(&self, claim: Claim, fds: Vec<OwnedFd>) {
        self.of(claim.user).give(Task::LetGo(claim, fds));
    }

    /// Takes the socket of a key out of the kernel's hands, or puts it back: there will be a verdict.
    pub(crate) fn repair(&self, claim: Claim, twin: Option<OwnedFd>, on: bool) {
        self.of(claim.user).give(Task::Repair(claim, twin, on));
    }

    /// The next verdict.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        self.verdicts.try_recv().ok()
    }

    /// Takes note of the bell.
    pub(crate) fn silence(&self) {
        let _ = self.office.bell.drain();
    }

    pub(crate) fn close(&self, user: u32, fds: Vec<OwnedFd>) {
        if !fds.is_empty() {
            self.of(user).give(Task::Close(fds));
        }
    }

    /// Closes what a member has left. The peers of its connections are told.
    pub(crate) fn reset(&self, user: u32, fds: Vec<OwnedFd>) {
        if !fds.is_empty() {
            self.of(user).give(Task::Reset(fds));
        }
    }

    pub(crate) fn hang_up(&self, user: u32, stream: Stream) {
        self.of(user).give(Task::HangUp(stream));
    }

    /// Hangs up on one that is not a member.
    pub(crate) fn turn_away(&self, stream: Stream) {
        self.gate.give(Task::HangUp(stream));
    }

    /// No more should be turned away for now.
    pub(crate) fn is_gate_behind(&self) -> bool {
        self.gate.is_behind()
    }

    fn of(&self, user: u32) -> &Inspector {
        self.threads.get(&user).unwrap_or(&self.gate)
    }
}

impl AsFd for Inspectors {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.office.bell.as_fd()
    }
}

/// A thread, which ends with this once it has nothing to do.
#[derive(Debug)]
struct Inspector {
    tasks: Sender<Task>,
    pending: Arc<AtomicUsize>,
}

impl Inspector {
    fn start(office: Office) -> io::Result<Self> {
        let (tasks, queue) = channel();
        let pending = Arc::new(AtomicUsize::new(0));
        let done = Arc::clone(&pending);
        adverb_sys::signals::spawn("adverb-xdp-look", move || {
            let mut farewells = Farewells::default();
            while let Some(task) = farewells.next(&queue) {
                office.attend(task, &mut farewells);
                done.fetch_sub(1, Ordering::Relaxed);
            }
        })?;
        Ok(Self { tasks, pending })
    }

    fn give(&self, task: Task) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        // Its thread ends after this only.
        let _ = self.tasks.send(task);
    }

    fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    fn is_behind(&self) -> bool {
        self.pending() >= PENDING_MAX
    }
}

/// What peers of connections are told that are no more: several times, as one packet may be lost.
#[derive(Debug, Default)]
struct Farewells {
    /// By how often they have been said, the next one first.
    rounds: [VecDeque<(Instant, Farewell)>; AGAIN.len()],
}

impl Farewells {
    fn say(&mut self, farewell: Farewell) {
        let _ = farewell.say();
        self.say_again(0, farewell);
    }

    fn say_again(&mut self, round: usize, farewell: Farewell) {
        if let (Some(waiting), Some(pause)) = (self.rounds.get_mut(round), AGAIN.get(round))
            && waiting.len() < FAREWELLS_MAX
        {
            waiting.push_back((Instant::now() + *pause, farewell));
        }
    }

    /// Says those that are due.
    fn on_time(&mut self) {
        for round in 0..AGAIN.len() {
            let now = Instant::now();
            let waiting = self.rounds.get_mut(round);
            let due = waiting.map(|all| all.partition_point(|(at, _)| *at <= now));
            for _ in 0..due.unwrap_or(0) {
                let first = self.rounds.get_mut(round).and_then(VecDeque::pop_front);
                if let Some((_, farewell)) = first {
                    let _ = farewell.say();
                    self.say_again(round + 1, farewell);
                }
            }
        }
    }

    /// The next task; none once there will be no more of them, and all is said.
    fn next(&mut self, tasks: &Receiver<Task>) -> Option<Task> {
        loop {
            let first = |all: &VecDeque<(Instant, Farewell)>| all.front().map(|(at, _)| *at);
            let Some(at) = self.rounds.iter().filter_map(first).min() else {
                return tasks.recv().ok();
            };
            let pause = at.saturating_duration_since(Instant::now());
            match tasks.recv_timeout(pause) {
                Ok(task) => return Some(task),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => thread::sleep(pause),
            }
            self.on_time();
        }
    }
}

impl Office {
    fn attend(&self, task: Task, farewells: &mut Farewells) {
        match task {
            Task::Inspect(claim, fds) => {
                let twin = <[OwnedFd; 1]>::try_from(fds).ok().map(|[twin]| twin);
                let twin = twin.filter(|twin| self.place.holds(twin, &claim.key));
                self.say(Verdict { claim, ruling: twin.map_or(Ruling::Wrong, Ruling::Right) });
            }
            Task::LetGo(claim, fds) => {
                drop(fds);
                self.say(Verdict { claim, ruling: Ruling::Done(Ok(())) });
            }
            Task::Repair(claim, twin, on) => {
                let is_connection =
                    claim.key.protocol == Protocol::Tcp && claim.key.remote.is_some();
                let done = match twin.filter(|_| is_connection) {
                    None => Err(io::ErrorKind::PermissionDenied.into()),
                    Some(_) if on && claim.until_ns < clock::now_ns() => {
                        Err(io::ErrorKind::TimedOut.into())
                    }
                    Some(twin) if on => repair::begin(twin),
                    Some(twin) => repair::end(twin),
                };
                self.say(Verdict { claim, ruling: Ruling::Done(done) });
            }
            Task::Close(fds) => drop(fds),
            Task::Reset(fds) => {
                for fd in fds {
                    // What is not in repair is none that the member has carried on.
                    if let Ok(Some(farewell)) = repair::reset(fd) {
                        farewells.say(farewell);
                    }
                }
            }
            Task::HangUp(stream) => drop(stream),
        }
    }

    fn say(&self, verdict: Verdict) {
        // There is nothing to be said to an owner that has ended.
        let _ = self.verdicts.send(verdict);
        let _ = self.bell.signal();
    }
}

impl Place {
    /// The kernel would give the packets of a key to this socket, and to no other one that is bound as it is.
    pub(crate) fn holds(self, twin: &OwnedFd, key: &Key) -> bool {
        // One of IPv6 may have addresses of IPv4.
        let plain = |one: SocketAddr| SocketAddr::new(one.ip().to_canonical(), one.port());
        let bound = rustix::net::getsockname(twin).map(SocketAddr::try_from);
        let Ok(Ok(bound)) = bound.map(|bound| bound.map(plain)) else { return false };
        let peer = rustix::net::getpeername(twin).ok().flatten().map(SocketAddr::try_from);
        let peer = peer.and_then(Result::ok).map(plain);
        let is_exact = bound.ip() == key.local.ip();
        let (kind, right) = match (key.protocol, key.remote) {
            // One that listens keeps others from the port at every address.
            (Protocol::Tcp, None) => {
                let any = bound.ip().is_unspecified() && bound.is_ipv4() == key.local.is_ipv4();
                let listens = sockopt::socket_acceptconn(twin) == Ok(true);
                (SocketType::STREAM, listens && (any || is_exact))
            }
            (Protocol::Tcp, Some(remote)) => {
                let is_peers = peer.is_some_and(|peer| is_same(peer, remote));
                (SocketType::STREAM, is_exact && is_peers)
            }
            (Protocol::Udp, remote) => {
                let right = peer.is_none_or(|peer| remote.is_some_and(|to| is_same(peer, to)));
                let is_both = || bound.is_ipv6() && sockopt::ipv6_v6only(twin) == Ok(false);
                let any = bound.ip().is_unspecified()
                    && (bound.is_ipv4() == key.local.is_ipv4() || is_both());
                let group = Some(key.local.ip()).filter(IpAddr::is_multicast);
                let is_alone = || !is_shared(twin);
                let has = match group {
                    // What is sent to a group is for all that have joined it with the same port.
                    Some(group) => {
                        let joined = || netdev::has_group(twin, group, self.interface);
                        (any || is_exact) && is_alone() && joined()
                    }
                    None => is_exact || any && is_alone(),
                };
                (SocketType::DGRAM, right && has)
            }
        };
        let interface = netdev::of_socket(twin);
        right
            && bound.port() == key.local.port()
            && bound.port() != 0
            && sockopt::socket_type(twin) == Ok(kind)
            && interface.is_ok_and(|interface| interface == 0 || interface == self.interface)
            && netns::cookie_of(twin).is_ok_and(|namespace| namespace == self.namespace)
    }
}

/// Another may be bound to the same port, at one address of those that the socket has.
fn is_shared(twin: &OwnedFd) -> bool {
    let [address, port] = [sockopt::socket_reuseaddr(twin), sockopt::socket_reuseport(twin)];
    address != Ok(false) || port != Ok(false)
}

/// Without the scope, which packets do not have.
fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    (one.ip(), one.port()) == (other.ip(), other.port())
}

/// Tasks of a thread from which on it gets no new members, or is spared new connections.
const PENDING_MAX: usize = 64;
/// How long after the last time a farewell is said again.
const AGAIN: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(3)];
/// Farewells of each round that are kept, which is all keys of some users; further ones are said fewer times.
const FAREWELLS_MAX: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    fn here() -> Place {
        let namespace = netns::cookie_of(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        Place { interface: 1, namespace }
    }

    fn holds(
        twin: impl Into<OwnedFd>,
        protocol: Protocol,
        local: SocketAddr,
        remote: Option<SocketAddr>,
    ) -> bool {
        here().holds(&twin.into(), &Key { protocol, local, remote })
    }

    #[test]
    fn a_tcp_socket_has_what_it_listens_for_or_is_connected_to() {
        let any = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = any.local_addr().unwrap().port();
        let local = SocketAddr::new("127.0.0.1".parse().unwrap(), port);
        let near = TcpStream::connect(local).unwrap();
        let (far, from) = any.accept().unwrap();
        let other = SocketAddr::new("127.0.0.1".parse().unwrap(), 1);
        let copy = |socket: &TcpStream| socket.try_clone().unwrap();
        assert!(holds(any.try_clone().unwrap(), Protocol::Tcp, local, None));
        assert!(!holds(any, Protocol::Tcp, local, Some(from)));
        assert!(holds(copy(&far), Protocol::Tcp, local, Some(from)));
        assert!(!holds(copy(&far), Protocol::Tcp, local, Some(other)));
        // Bound to the port, and not listening for it.
        assert!(!holds(copy(&far), Protocol::Tcp, local, None));
        assert!(holds(near, Protocol::Tcp, from, Some(local)));
        assert!(!holds(far, Protocol::Udp, local, Some(from)));
    }

    #[test]
    fn a_udp_socket_has_its_own_address_and_its_peers_packets() {
        let twin = UdpSocket::bind("127.0.0.1:0").unwrap();
        let local = twin.local_addr().unwrap();
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let copy = || twin.try_clone().unwrap();
        assert!(holds(copy(), Protocol::Udp, local, None));
        assert!(holds(copy(), Protocol::Udp, local, Some(peer)));
        assert!(!holds(copy(), Protocol::Udp, SocketAddr::new(local.ip(), 1), None));
        assert!(
            !here().holds(&copy().into(), &Key { protocol: Protocol::Tcp, local, remote: None })
        );
        let away = Place { namespace: 0, ..here() };
        assert!(!away.holds(&copy().into(), &Key { protocol: Protocol::Udp, local, remote: None }));
        twin.connect(peer).unwrap();
        assert!(holds(copy(), Protocol::Udp, local, Some(peer)));
        assert!(!holds(copy(), Protocol::Udp, local, Some(local)));
        assert!(!holds(copy(), Protocol::Udp, local, None));
        let any = UdpSocket::bind("0.0.0.0:0").unwrap();
        let local = SocketAddr::new(local.ip(), any.local_addr().unwrap().port());
        assert!(holds(any.try_clone().unwrap(), Protocol::Udp, local, None));
        let none: SocketAddr = "[::1]:1".parse().unwrap();
        assert!(!holds(
            any.try_clone().unwrap(),
            Protocol::Udp,
            SocketAddr::new(none.ip(), local.port()),
            None
        ));
        // Another user's socket may be bound to an address of those then.
        sockopt::set_socket_reuseaddr(&any, true).unwrap();
        assert!(!holds(any, Protocol::Udp, local, None));
    }

    /// Goal: a socket of IPv6 has what comes by IPv4, if the kernel would give it that.
    #[test]
    fn a_udp_socket_of_both_families_has_what_comes_by_either() {
        let Ok(both) = UdpSocket::bind("[::]:0") else { return println!("skipped: no IPv6") };
        let port = both.local_addr().unwrap().port();
        let [v4, v6] = ["127.0.0.1", "::1"].map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
        for local in [v4, v6] {
            assert!(holds(both.try_clone().unwrap(), Protocol::Udp, local, None), "{local}");
        }
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let IpAddr::V4(ip) = peer.ip() else { panic!("of IPv4") };
        both.connect((ip.to_ipv6_mapped(), peer.port())).unwrap();
        assert!(holds(both.try_clone().unwrap(), Protocol::Udp, v4, Some(peer)));
        assert!(!holds(both, Protocol::Udp, v4, Some(v6)));
        let (family, kind) = (rustix::net::AddressFamily::INET6, SocketType::DGRAM);
        let one = rustix::net::socket(family, kind, None).unwrap();
        sockopt::set_ipv6_v6only(&one, true).unwrap();
        rustix::net::bind(&one, &"[::]:0".parse::<SocketAddr>().unwrap()).unwrap();
        let bound = SocketAddr::try_from(rustix::net::getsockname(&one).unwrap()).unwrap();
        let [v4, v6] = [v4, v6].map(|at| SocketAddr::new(at.ip(), bound.port()));
        assert!(holds(one.try_clone().unwrap(), Protocol::Udp, v6, None));
        assert!(!holds(one, Protocol::Udp, v4, None));
    }

    /// Method: a link-local address binds its socket to the interface of its scope.
    #[test]
    fn a_socket_of_another_interface_has_nothing_here() {
        let all = netdev::interfaces().unwrap();
        let mut addresses = all.iter().flat_map(|interface| &interface.addresses);
        let Some(found) = addresses.find(|address| address.scope_id != 0) else {
            return println!("skipped: no link-local address");
        };
        let IpAddr::V6(ip) = found.ip else { return };
        let twin = UdpSocket::bind(std::net::SocketAddrV6::new(ip, 0, 0, found.scope_id)).unwrap();
        let key = Key { protocol: Protocol::Udp, local: twin.local_addr().unwrap(), remote: None };
        let twin = OwnedFd::from(twin);
        assert!(Place { interface: found.scope_id, ..here() }.holds(&twin, &key));
        assert!(!Place { interface: found.scope_id + 1, ..here() }.holds(&twin, &key));
    }
}
