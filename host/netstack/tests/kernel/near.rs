//! The near end: an interface's owner with a [`Netstack`].

use super::place::{Running, index};
use super::{at, listen};
use adverb_netstack::{Counters, Limits, Netstack};
use adverb_sys::bpf::XdpMode;
use adverb_sys::{clock, poll};
use adverb_tcpip::Time;
use adverb_tcpip::stack::{ConnectionId, ListenerId};
use adverb_tcpip::tcp::{Config, End, State};
use adverb_tcpip::tuple::Tuple;
use adverb_xdp::interface::{Group, QUEUE_PATIENCE};
use adverb_xdp::steering::Protocol;
use adverb_xdp::{Interface, Key, Socket};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

pub(crate) struct Near {
    pub(crate) net: Netstack,
    interface: Interface,
    group: Group,
    place: u32,
}

/// The listener of a port, at all addresses.
pub(crate) const fn listener(port: u16) -> ListenerId {
    ListenerId { port, address: None }
}

/// Bytes of a stream, none of which is where another could be taken for it.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at + seed).wrapping_mul(0x9e37_79b9) >> 13;
    (0..len).map(|at| u8::try_from(byte(at) & 0xff).unwrap()).collect()
}

impl Near {
    pub(crate) fn new(mode: Option<XdpMode>) -> Self {
        Self::on("near", mode)
    }

    /// An interface of another name.
    pub(crate) fn on(device: &str, mode: Option<XdpMode>) -> Self {
        let config = adverb_xdp::Config { mode, ..adverb_xdp::Config::default() };
        let mut interface = Interface::open(index(device), &config).unwrap();
        let mut group = interface.group(4, false, QUEUE_PATIENCE).unwrap();
        let member = interface.join(&mut group).unwrap();
        let place = member.place();
        let sockets = member.into_sockets(&group).unwrap();
        let net = Netstack::new(index(device), sockets, Limits::default()).unwrap();
        Self { net, interface, group, place }
    }

    #[expect(clippy::unused_self, reason = "it is the near end's")]
    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(clock::now_ns())
    }

    pub(crate) fn counters(&self) -> Counters {
        self.net.counters()
    }

    pub(crate) fn claim_tcp(&mut self, local: SocketAddr, remote: Option<SocketAddr>) {
        self.interface.claim(Key { protocol: Protocol::Tcp, local, remote }, self.place).unwrap();
    }

    /// Steps until it is true; false if it does not become so in many seconds.
    pub(crate) fn until(&mut self, mut is: impl FnMut(&mut Netstack) -> bool) -> bool {
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            let busy = self.net.step(self.now());
            if is(&mut self.net) {
                self.net.step(self.now());
                return true;
            }
            if !busy {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        false
    }

    /// Has other members take all frames; what they are.
    pub(crate) fn hoard(&mut self) -> Vec<(u32, Vec<Socket>)> {
        let hoarder = |_| {
            let member = self.interface.join(&mut self.group).unwrap();
            let place = member.place();
            let mut sockets = member.into_sockets(&self.group).unwrap();
            // As many as its ring holds, which are not sent.
            for _ in 0..1024 {
                sockets[0].outgoing.send(|writer| writer.push(&[0; 60])).unwrap();
            }
            (place, sockets)
        };
        // The kernel has an eighth, for what comes.
        (0..7).map(hoarder).collect()
    }

    /// Their frames are free again.
    pub(crate) fn free(&mut self, hoard: Vec<(u32, Vec<Socket>)>) {
        for (place, sockets) in hoard {
            drop(sockets);
            self.interface.leave(&mut self.group, place);
        }
    }

    /// Steps when a frame comes or it is said to be time, until it is true; false if it is never time again.
    pub(crate) fn until_by_deadlines(&mut self, mut is: impl FnMut(&mut Self) -> bool) -> bool {
        loop {
            let busy = self.net.step(self.now());
            if is(self) {
                return true;
            }
            if !busy {
                let now = self.now();
                let Some(deadline) = self.net.next_deadline(now) else { return false };
                let wait = Duration::from_nanos(deadline.nanos().saturating_sub(now.nanos()));
                let mut fds = self.net.fds();
                let first = fds.next().unwrap();
                poll::readable(&first, fds, Some(wait)).unwrap();
            }
        }
    }

    pub(crate) fn run_until_says(&mut self, running: &mut Running, said: &str) {
        let wait = std::thread::scope(|scope| {
            let wait = scope.spawn(|| running.wait_for(said));
            self.until(|_| wait.is_finished());
            wait.is_finished()
        });
        assert!(wait, "it does not say {said}");
    }

    pub(crate) fn connect(
        &mut self,
        here: SocketAddr,
        there: SocketAddr,
        config: Option<Config>,
    ) -> ConnectionId {
        self.claim_tcp(here, Some(there));
        self.connect_unclaimed(here, there, config)
    }

    pub(crate) fn connect_unclaimed(
        &mut self,
        here: SocketAddr,
        there: SocketAddr,
        config: Option<Config>,
    ) -> ConnectionId {
        let tuple = Tuple {
            local: here.ip(),
            local_port: here.port(),
            remote: there.ip(),
            remote_port: there.port(),
        };
        let (config, now) = (config.unwrap_or_else(|| self.net.config()), self.now());
        self.net.tcp().connect(tuple, &config, now).unwrap()
    }

    pub(crate) fn listen(&mut self, local: SocketAddr, config: Option<Config>) {
        self.claim_tcp(at(&local.ip().to_string(), local.port()), None);
        let (config, now) = (config.unwrap_or_else(|| self.net.config()), self.now());
        self.net.tcp().listen(listener(local.port()), listen(config), now).unwrap();
    }

    pub(crate) fn end(&mut self, id: ConnectionId) -> Option<End> {
        self.net.tcp().get(id).unwrap().end()
    }

    pub(crate) fn send_all(&mut self, id: ConnectionId, mut bytes: &[u8]) {
        assert!(self.until(|net| {
            let now = Time::from_nanos(clock::now_ns());
            bytes = &bytes[net.send(id, bytes, now).unwrap()..];
            bytes.is_empty()
        }));
    }

    /// Reads until the peer ends its stream.
    pub(crate) fn read_until_end(&mut self, id: ConnectionId, bytes: &mut Vec<u8>) -> bool {
        self.until(|net| {
            read(net, id, bytes);
            net.tcp().get(id).unwrap().is_at_end()
        })
    }

    /// Sends so many bytes, ends the stream, and reads until the peer does: it sends all back.
    pub(crate) fn echo_through(&mut self, id: ConnectionId, len: usize) {
        self.echo_through_after(id, b"", len);
    }

    /// The same, after these bytes have been sent.
    pub(crate) fn echo_through_after(&mut self, id: ConnectionId, before: &[u8], len: usize) {
        let bytes = pattern(1, len);
        let (mut sent, mut came, mut ended) = (0, Vec::new(), false);
        let done = self.until(|net| {
            let now = Time::from_nanos(clock::now_ns());
            sent += net.send(id, &bytes[sent..], now).unwrap();
            // A program that ends its stream before there is a peer has no connection.
            let connected = net.tcp().get(id).unwrap().state() != State::SynSent;
            if sent == len && connected && !ended {
                ended = true;
                net.tcp().with(id, |connection| connection.shut_down());
            }
            read(net, id, &mut came);
            net.tcp().get(id).unwrap().is_at_end()
        });
        let connection = self.net.tcp().get(id).unwrap();
        assert!(done, "{sent} sent, {} came: {connection:?}", came.len());
        assert_eq!(connection.end(), None);
        assert!(came == [before, &bytes].concat(), "{} of {} bytes", came.len(), len);
    }

    /// Accepts so many connections at a port, and sends back what they bring until they end.
    pub(crate) fn serve_echo(&mut self, port: u16, count: usize) {
        let (mut connections, mut ended) = (Vec::new(), 0);
        assert!(self.until(|net| {
            while let Some(id) = net.tcp().accept(listener(port)) {
                connections.push((id, Vec::new()));
            }
            ended += echo(net, &mut connections);
            ended == count
        }));
        self.finish();
    }

    /// The same, once there are as many connections.
    pub(crate) fn serve_crowd(&mut self, port: u16, count: usize) {
        let mut connections = Vec::new();
        assert!(self.until(|net| {
            while let Some(id) = net.tcp().accept(listener(port)) {
                connections.push((id, Vec::new()));
            }
            connections.len() == count
        }));
        self.echo_connections(connections);
    }

    /// Lets the last bytes leave, again if they are lost.
    fn finish(&mut self) {
        assert!(self.until(all_said));
    }

    pub(crate) fn echo_connections(&mut self, mut connections: Vec<(ConnectionId, Vec<u8>)>) {
        let count = connections.len();
        let mut ended = 0;
        assert!(self.until(|net| {
            ended += echo(net, &mut connections);
            ended == count
        }));
        self.finish();
    }
}

/// Nothing waits to be sent or to be acknowledged: what is left is in TIME-WAIT.
fn all_said(net: &mut Netstack) -> bool {
    if net.tcp().is_ready() {
        return false;
    }
    let soon = Time::from_nanos(clock::now_ns()).plus(Duration::from_secs(10));
    net.tcp().next_deadline().is_none_or(|deadline| deadline > soon)
}

fn read(net: &mut Netstack, id: ConnectionId, bytes: &mut Vec<u8>) {
    let mut room = [0; 5000];
    while let Some(len) = net.tcp().with(id, |connection| connection.read(&mut room))
        && len > 0
    {
        bytes.extend_from_slice(&room[..len]);
    }
}

/// Sends back what connections bring; those that have ended are closed. Says how many.
fn echo(net: &mut Netstack, connections: &mut Vec<(ConnectionId, Vec<u8>)>) -> usize {
    let before = connections.len();
    connections.retain_mut(|(id, held)| {
        if held.len() < 1 << 20 {
            read(net, *id, held);
        }
        let now = Time::from_nanos(clock::now_ns());
        let sent = net.send(*id, held, now).unwrap();
        held.drain(..sent);
        let connection = net.tcp().get(*id).unwrap();
        if !connection.is_at_end() || !held.is_empty() {
            return true;
        }
        assert_eq!(connection.end(), None);
        net.tcp().with(*id, |connection| connection.close(now));
        false
    });
    before - connections.len()
}
