//! What tests with programs share.

pub(crate) mod library;

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

/// A directory of a test's own, where rings meet and files lie. It is gone afterwards.
#[derive(Debug)]
pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/adverb-test-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    /// Where rings meet.
    pub(crate) fn rings(&self) -> PathBuf {
        self.0.join("rings")
    }

    /// A command that runs with the library in front of it.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", library::library());
        command.env("ADVERB_SOCKETS_SHM_DIR", self.rings());
        command.env("ADVERB_SOCKETS_QUIET", "1");
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A port that is free, for this process alone, and not among those that the system gives to sockets that want any: a
/// program that looks whether there is a listener would meet itself now and then. The port itself is not bound: a program
/// that another thread starts meanwhile would have that until it runs. A name that goes with it is: tests of other
/// processes, which run at the same time, take that port for theirs no more.
pub(crate) fn free_port() -> u16 {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    static TAKEN: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());
    let first = std::process::id().wrapping_mul(37);
    loop {
        let tried = u32::from(TRIED.fetch_add(1, Ordering::Relaxed));
        let place = first.wrapping_add(tried) % u32::from(PORT_COUNT);
        let port = FIRST_PORT + u16::try_from(place).expect("fewer than 2^16");
        let name = SocketAddr::from_abstract_name(format!("adverb-test-port-{port}"));
        let Ok(taken) = UnixDatagram::bind_addr(&name.expect("a short name")) else { continue };
        let lists = ["tcp", "tcp6", "udp", "udp6"];
        let lists = lists.map(|list| fs::read_to_string(format!("/proc/net/{list}")));
        let name = format!(":{port:04X} ");
        if !lists.iter().flatten().any(|list| list.contains(&name)) {
            TAKEN.lock().expect("a list").push(taken);
            return port;
        }
    }
}

/// Below `ip_local_port_range` (ip(7)).
const FIRST_PORT: u16 = 20_000;
const PORT_COUNT: u16 = 12_000;
