//! UDP sockets: their names, and queues of what has arrived.

use adverb_tcpip::tuple::Tuple;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Names a UDP socket; no other one ever has the same.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SocketId(u64);

/// Another socket has the name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InUse;

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another socket has this name")
    }
}

impl std::error::Error for InUse {}

/// A datagram that has arrived.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Datagram {
    /// Where it comes from.
    pub from: SocketAddr,
    /// Where it was sent to: an address of this host, or a group.
    pub to: SocketAddr,
    /// What it carries.
    pub payload: Vec<u8>,
}

/// All UDP sockets of a [`Netstack`](crate::Netstack).
#[derive(Debug, Default)]
pub struct Datagrams {
    sockets: BTreeMap<SocketId, Socket>,
    names: BTreeMap<Name, SocketId>,
    /// Sockets with something to read, of which nothing has been told.
    readable: VecDeque<SocketId>,
    made: u64,
}

/// Where a socket's datagrams are sent to and, if it has one peer, come from.
type Name = (SocketAddr, Option<SocketAddr>);

#[derive(Debug)]
struct Socket {
    name: Name,
    waiting: VecDeque<Datagram>,
    /// What they take, against `bytes_max`.
    bytes: usize,
    bytes_max: usize,
    dropped: u64,
    told: bool,
}

impl Datagrams {
    /// Makes a socket that has the datagrams to `local`, or to this port of all addresses if that is unspecified, and
    /// from `remote` alone if it is said. What waits to be read takes at most `bytes_max`; more is dropped.
    ///
    /// # Errors
    ///
    /// [`InUse`]
    pub fn bind(
        &mut self,
        local: SocketAddr,
        remote: Option<SocketAddr>,
        bytes_max: usize,
    ) -> Result<SocketId, InUse> {
        let name = (plain(local), remote.map(plain));
        if self.names.contains_key(&name) {
            return Err(InUse);
        }
        self.made += 1;
        let id = SocketId(self.made);
        let (waiting, bytes, dropped, told) = (VecDeque::new(), 0, 0, false);
        self.sockets.insert(id, Socket { name, waiting, bytes, bytes_max, dropped, told });
        self.names.insert(name, id);
        Ok(id)
    }

    /// Renames a socket, as when it is connected. What has arrived stays.
    ///
    /// # Errors
    ///
    /// [`InUse`]; nothing has changed then.
    pub fn rename(
        &mut self,
        id: SocketId,
        local: SocketAddr,
        remote: Option<SocketAddr>,
    ) -> Result<(), InUse> {
        let name = (plain(local), remote.map(plain));
        let Some(socket) = self.sockets.get_mut(&id) else { return Ok(()) };
        if self.names.get(&name).is_some_and(|other| *other != id) {
            return Err(InUse);
        }
        self.names.remove(&socket.name);
        socket.name = name;
        self.names.insert(name, id);
        Ok(())
    }

    /// Ends a socket; what waits is lost.
    pub fn close(&mut self, id: SocketId) {
        if let Some(socket) = self.sockets.remove(&id) {
            self.names.remove(&socket.name);
        }
    }

    /// The next datagram, to look at.
    #[must_use]
    pub fn peek(&self, id: SocketId) -> Option<&Datagram> {
        self.sockets.get(&id)?.waiting.front()
    }

    /// Takes the next datagram.
    pub fn receive(&mut self, id: SocketId) -> Option<Datagram> {
        let socket = self.sockets.get_mut(&id)?;
        let datagram = socket.waiting.pop_front()?;
        socket.bytes -= cost(&datagram);
        Some(datagram)
    }

    /// Datagrams of a socket for which there was no room.
    #[must_use]
    pub fn dropped(&self, id: SocketId) -> u64 {
        self.sockets.get(&id).map_or(0, |socket| socket.dropped)
    }

    /// A socket for which something has come, if one has since the last call.
    pub fn poll_readable(&mut self) -> Option<SocketId> {
        loop {
            let id = self.readable.pop_front()?;
            if let Some(socket) = self.sockets.get_mut(&id) {
                socket.told = false;
                return Some(id);
            }
        }
    }

    /// A datagram has arrived; says whether a socket has it, or would have it if there were room.
    pub(crate) fn deliver(&mut self, tuple: &Tuple, payload: &[u8]) -> bool {
        let to = SocketAddr::new(tuple.local, tuple.local_port);
        let from = SocketAddr::new(tuple.remote, tuple.remote_port);
        let any = match to.ip() {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        let any = SocketAddr::new(any, to.port());
        let names = [(to, Some(from)), (to, None), (any, Some(from)), (any, None)];
        let Some(id) = names.iter().find_map(|name| self.names.get(name).copied()) else {
            return false;
        };
        let Some(socket) = self.sockets.get_mut(&id) else { return false };
        let datagram = Datagram { from, to, payload: payload.to_vec() };
        if socket.bytes + cost(&datagram) > socket.bytes_max {
            socket.dropped += 1;
            return true;
        }
        socket.bytes += cost(&datagram);
        socket.waiting.push_back(datagram);
        if !std::mem::replace(&mut socket.told, true) {
            self.readable.push_back(id);
        }
        true
    }
}

/// Without the scope and the flow label of IPv6, which packets do not have.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// Bytes that a datagram takes, also one without payload.
fn cost(datagram: &Datagram) -> usize {
    datagram.payload.len() + size_of::<Datagram>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(local: &str, remote: &str) -> Tuple {
        let [local, remote] = [local, remote].map(|text| text.parse::<SocketAddr>().unwrap());
        Tuple {
            local: local.ip(),
            local_port: local.port(),
            remote: remote.ip(),
            remote_port: remote.port(),
        }
    }

    /// Goal: the socket whose name says the most has a datagram, and what has no socket is refused.
    #[test]
    fn a_datagram_goes_to_the_closest_name() {
        let mut datagrams = Datagrams::default();
        let bind = |datagrams: &mut Datagrams, local: &str, remote: Option<&str>| {
            let remote = remote.map(|text| text.parse().unwrap());
            datagrams.bind(local.parse().unwrap(), remote, 1 << 16)
        };
        let any = bind(&mut datagrams, "0.0.0.0:7", None).unwrap();
        let one = bind(&mut datagrams, "10.0.0.1:7", None).unwrap();
        let peer = bind(&mut datagrams, "10.0.0.1:7", Some("10.0.0.2:8")).unwrap();
        assert_eq!(bind(&mut datagrams, "10.0.0.1:7", None), Err(InUse));
        for (local, remote, expected) in [
            ("10.0.0.3:7", "10.0.0.2:8", any),
            ("10.0.0.1:7", "10.0.0.2:9", one),
            ("10.0.0.1:7", "10.0.0.2:8", peer),
        ] {
            assert!(datagrams.deliver(&tuple(local, remote), b"x"));
            assert_eq!(datagrams.poll_readable(), Some(expected));
            assert_eq!(datagrams.receive(expected).unwrap().from, remote.parse().unwrap());
        }
        assert!(!datagrams.deliver(&tuple("10.0.0.1:6", "10.0.0.2:8"), b"x"));
        assert!(!datagrams.deliver(&tuple("[fd00::1]:7", "[fd00::2]:8"), b"x"));
        datagrams.close(peer);
        datagrams
            .rename(one, "10.0.0.1:7".parse().unwrap(), Some("10.0.0.2:8".parse().unwrap()))
            .unwrap();
        assert_eq!(
            datagrams.rename(
                any,
                "10.0.0.1:7".parse().unwrap(),
                Some("10.0.0.2:8".parse().unwrap())
            ),
            Err(InUse)
        );
        assert!(datagrams.deliver(&tuple("10.0.0.1:7", "10.0.0.2:8"), b"x"));
        assert_eq!((datagrams.poll_readable(), datagrams.poll_readable()), (Some(one), None));
    }

    /// Goal: what a peer sends takes a bounded amount of memory, empty datagrams too, and room comes back.
    #[test]
    fn a_queue_is_bounded_and_counts_what_it_drops() {
        for payload in [&b""[..], &[7; 1000]] {
            let mut datagrams = Datagrams::default();
            let id = datagrams.bind("10.0.0.1:7".parse().unwrap(), None, 10_000).unwrap();
            let tuple = tuple("10.0.0.1:7", "10.0.0.2:8");
            (0..1000).for_each(|_| assert!(datagrams.deliver(&tuple, payload)));
            let kept = 1000 - datagrams.dropped(id);
            assert!((5..200).contains(&kept), "{kept}");
            assert_eq!(
                datagrams.peek(id).map(|datagram| datagram.payload.as_slice()),
                Some(payload)
            );
            for _ in 0..kept {
                datagrams.receive(id).unwrap();
            }
            assert_eq!(datagrams.receive(id), None);
            assert!(datagrams.deliver(&tuple, payload) && datagrams.peek(id).is_some());
        }
    }
}
