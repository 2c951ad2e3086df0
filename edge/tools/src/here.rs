//! Where processes of a run on this machine alone meet, and the device that they use.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};

use adverb::verbs::{Provider, devices};

/// An address of this host: that of the loopback, or where there is none, of any device.
pub(crate) fn address() -> IpAddr {
    let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let devices = devices().unwrap_or_default();
    let others = devices.iter().flat_map(|device| &device.gids).map(|gid| gid.ip());
    let is_here = |ip: &IpAddr| TcpListener::bind((*ip, 0)).is_ok();
    loopback.into_iter().chain(others).find(is_here).unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// The device that has this address; the loopback's, which may be missing, if no device has it.
pub(crate) fn device() -> String {
    let (here, devices) = (address(), devices().unwrap_or_default());
    let mut ours = devices.iter().filter(|device| device.provider == Provider::Soft);
    let found = ours.find(|device| device.gids.iter().any(|gid| gid.ip() == here));
    found.map_or_else(|| LOOPBACK.to_owned(), |device| device.name.clone())
}

const LOOPBACK: &str = "soft_lo";
