//! Devices by address, as the kernel chooses them.

use crate::error::Error;
use adverb_device::{ConnectError, Device, Gid, OpenError, Port, devices};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::Arc;

/// A device's address.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) port: Arc<Port>,
    pub(crate) gid: Gid,
    pub(crate) gid_index: u8,
}

/// The devices that were opened, the first of which names connections.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    open: Vec<Arc<Port>>,
}

impl Ports {
    /// The first device that was opened.
    pub(crate) fn home(&self) -> Option<&Arc<Port>> {
        self.open.first()
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Arc<Port>] {
        &self.open
    }

    /// The device of an address, and the place of the address in its table.
    pub(crate) fn of_gid(&self, gid: Gid) -> Option<(Arc<Port>, u8)> {
        self.open.iter().find_map(|port| {
            let gids = port.gids();
            let entry = gids.iter().find(|entry| entry.gid == gid)?;
            Some((Arc::clone(port), entry.index))
        })
    }

    /// The address `local` of a device, ready to receive.
    pub(crate) fn place(&mut self, local: SocketAddr) -> Result<Place, Error> {
        let known = self.open.iter().find(|port| port.entry_at(local).is_some());
        let port = match known {
            Some(port) => Arc::clone(port),
            None => {
                let all = devices().map_err(Error::system("list the network interfaces"))?;
                let device = all.into_iter().find(|device| device.entry_at(local).is_some());
                self.open(&device.ok_or(Error::AddressNotAvailable)?)?
            }
        };
        let entry = port.entry_at(local).ok_or(Error::AddressNotAvailable)?;
        let (gid, gid_index) = (entry.gid, entry.index);
        port.open_address(gid_index).map_err(of_connect)?;
        Ok(Place { port, gid, gid_index })
    }

    /// Opens every address of every device, for a listener to all of them. One is enough.
    pub(crate) fn open_all(&mut self) -> Result<(), Error> {
        let all = devices().map_err(Error::system("list the network interfaces"))?;
        let mut result = Err(Error::AddressNotAvailable);
        for device in all {
            let opened = self.open(&device);
            let Ok(port) = opened else { continue };
            let now = port.look().ok().flatten();
            for entry in now.map(|device| device.gids).unwrap_or_default() {
                if port.open_address(entry.index).is_ok() {
                    result = Ok(());
                }
            }
        }
        result
    }

    fn open(&mut self, device: &Device) -> Result<Arc<Port>, Error> {
        if let Some(port) = self.open.iter().find(|port| port.device().name == device.name) {
            return Ok(Arc::clone(port));
        }
        let port = Port::open(&device.name).map_err(of_open)?;
        self.open.push(Arc::clone(&port));
        Ok(port)
    }
}

/// The address that packets to `peer` leave from, by the routes of this host; its port is 0.
///
/// # Errors
///
/// No route; no descriptors left.
///
/// # Examples
///
/// ```
/// let here = adverb_rdmacm::source("127.0.0.1:7000".parse()?)?;
/// assert!(here.ip().is_loopback());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn source(peer: SocketAddr) -> io::Result<SocketAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(SocketAddr::new(peer.ip(), ROUTE_PORT).with_scope_of(peer))?;
    let mut source = socket.local_addr()?;
    source.set_port(0);
    Ok(source)
}

/// Addresses, and the scope that those of a link have.
pub(crate) trait Scoped {
    /// The address with the scope of `other`, if both have one.
    fn with_scope_of(self, other: SocketAddr) -> Self;

    /// Its port, and its address with IPv4 within IPv6 made plain.
    fn canonical(self) -> Self;
}

impl Scoped for SocketAddr {
    fn with_scope_of(self, other: SocketAddr) -> Self {
        match (self, other) {
            (Self::V6(own), Self::V6(other)) => {
                SocketAddrV6::new(*own.ip(), own.port(), 0, other.scope_id()).into()
            }
            (own, _) => own,
        }
    }

    fn canonical(self) -> Self {
        match self.ip().to_canonical() {
            IpAddr::V4(ip) => Self::new(ip.into(), self.port()),
            IpAddr::V6(_) => self,
        }
    }
}

fn of_open(error: OpenError) -> Error {
    Error::System { doing: "open the device", error: io::Error::other(error) }
}

fn of_connect(error: ConnectError) -> Error {
    Error::System { doing: "open the socket of the address", error: io::Error::other(error) }
}

/// Any port will do to ask for a route.
const ROUTE_PORT: u16 = adverb_wire::ROCE_PORT;
