//! Another process: a test starts its own program again as its child.

use std::env;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

pub(crate) const ADDRESS: &str = "ADVERB_TEST_ADDRESS";

/// A child that runs one of the tests of this program that are not for running alone.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn start(role: &str, address: SocketAddr) -> Self {
        Self::start_by(Command::new(env::current_exe().expect("this binary")), role, address)
    }

    /// By a command that runs the program that its arguments name.
    pub(crate) fn start_by(mut command: Command, role: &str, address: SocketAddr) -> Self {
        let child = command
            .args(["--exact", role, "--ignored", "--nocapture"])
            .env(ADDRESS, address.to_string())
            .stdout(Stdio::null())
            .spawn()
            .expect("a process");
        Self(child)
    }

    /// A server, on a port that is free now.
    pub(crate) fn listen(role: &str) -> (Self, SocketAddr) {
        let address = free_address();
        (Self::start(role, address), address)
    }

    pub(crate) fn signal(&self, signal: &str) {
        let id = self.0.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().expect("kill");
        assert!(sent.success(), "{signal} was sent");
    }

    /// Kills it, and waits until it has ended.
    pub(crate) fn kill(mut self) {
        self.0.kill().expect("a child of ours");
        self.0.wait().expect("a child of ours");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that is free now, and not among those that the system gives to any program: it may
/// have to be free again later.
pub(crate) fn free_address() -> SocketAddr {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id().wrapping_mul(37);
    loop {
        let tried = u32::from(TRIED.fetch_add(1, Ordering::Relaxed));
        let place = first.wrapping_add(tried) % u32::from(PORT_COUNT);
        let port = FIRST_PORT + u16::try_from(place).expect("fewer than 2^16");
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener.local_addr().expect("an address");
        }
    }
}

/// Below `ip_local_port_range` (ip(7)).
const FIRST_PORT: u16 = 20_000;
const PORT_COUNT: u16 = 12_000;

/// Where the parent is, or this process is to listen; `None` if it was not started as a child.
pub(crate) fn address() -> Option<SocketAddr> {
    Some(env::var(ADDRESS).ok()?.parse().expect("an address"))
}
