//! UDP port 4791 of every address that a device has, and the kernel's own RoCE driver, which takes it.
//!
//! Devices bind the port when they use an address, not when they are opened, so the trial is to bind it.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::path::Path;

use adverb::verbs::{Device, Provider};
use adverb_sys::udp::{BindOptions, Socket};

use super::{Finding, Grade};

/// What became of the port on the addresses of all devices.
#[derive(Debug, Default)]
pub(super) struct Port {
    /// Addresses on which it is free.
    free: usize,
    /// Addresses on which devices of this user have it, which share it.
    shared: usize,
    /// The other addresses, and why.
    taken: Vec<(IpAddr, io::Error)>,
}

impl Port {
    /// Binds the port on each address of these devices, and lets go of it.
    pub(super) fn look(devices: &[Device]) -> Self {
        let mut port = Self::default();
        for device in devices.iter().filter(|device| device.provider == Provider::Soft) {
            for ip in device.gids.iter().map(|entry| entry.ip()) {
                port.try_on(at(ip, device.index));
            }
        }
        port
    }

    fn try_on(&mut self, address: SocketAddr) {
        let Err(error) = UdpSocket::bind(address) else {
            self.free += 1;
            return;
        };
        if error.kind() == ErrorKind::AddrNotAvailable {
            return; // It has gone, or is not ready yet.
        }
        match is_shared(address) {
            true => self.shared += 1,
            false => self.taken.push((address.ip(), error)),
        }
    }

    pub(super) fn finding(&self) -> Finding {
        const CHECK: &str = "UDP port 4791";
        let Self { free, shared, taken } = self;
        if taken.is_empty() {
            let of_devices = match shared {
                0 => String::new(),
                shared => format!(", used on {shared} by devices of this user, which share it"),
            };
            if free + shared == 0 {
                return Finding::good(CHECK, "no device has an address that needs it");
            }
            return Finding::good(CHECK, format!("free on {free} addresses{of_devices}"));
        }
        let all: Vec<_> = taken.iter().map(|(ip, error)| format!("{ip} ({error})")).collect();
        Finding {
            check: CHECK,
            grade: Grade::Broken,
            found: format!("taken on {}", all.join(", ")),
            cost: "no connection by UDP from or to these addresses",
            cure: "end the program that has it (ss -uanp sport = 4791 names it), unload rdma_rxe, or use another network namespace"
                .into(),
        }
    }

    /// The kernel's RoCE driver. Its module is at this place while it is loaded.
    pub(super) fn kernel_roce(&self, module: &Path) -> Finding {
        const CHECK: &str = "kernel's RoCE driver";
        if !module.exists() {
            return Finding::good(CHECK, "not loaded");
        }
        if self.taken.is_empty() {
            return Finding::good(CHECK, "rdma_rxe is loaded, and has no address of a device here");
        }
        Finding {
            check: CHECK,
            grade: Grade::Broken,
            found: "rdma_rxe is loaded, and UDP port 4791 is taken".to_owned(),
            cost: "the driver has the port on all addresses of its network namespace, and devices have no connections by UDP there",
            cure: "rmmod rdma_rxe, or run in another network namespace".into(),
        }
    }
}

/// Whether a socket of this user may have the port beside those that have it. It has it for this moment alone, in the last
/// place of the group, to which devices send nothing.
fn is_shared(address: SocketAddr) -> bool {
    let mut options = BindOptions::new(address);
    options.reuse_port = true;
    Socket::bind(&options).is_ok()
}

/// The RoCE port of an address; the interface's number counts for link-local ones alone.
const fn at(ip: IpAddr, interface: u32) -> SocketAddr {
    match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, ROCE_PORT),
        IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, ROCE_PORT, 0, interface)),
    }
}

const ROCE_PORT: u16 = 4791;

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a driver that is loaded is no fault by itself; one that keeps devices from their port is.
    #[test]
    fn the_kernel_s_driver_is_graded_by_what_it_takes() {
        let (there, nowhere) = (Path::new("/proc"), Path::new("/nowhere"));
        let free = Port { free: 2, ..Port::default() };
        let error = io::Error::from(ErrorKind::AddrInUse);
        let taken = Port { taken: vec![([127, 0, 0, 1].into(), error)], ..Port::default() };
        assert_eq!(taken.kernel_roce(nowhere).grade, Grade::Good);
        assert_eq!(free.kernel_roce(there).grade, Grade::Good);
        assert_eq!(taken.kernel_roce(there).grade, Grade::Broken);
        assert!(taken.finding().found.contains("127.0.0.1"));
    }
}
