//! Paths between two queue pairs, over each of which the tests of the transports run.
//!
//! A test's body takes a [`Path`], and `on_every_path!` makes a test of it for each. What is about the
//! packets themselves, captures, steering or strangers runs over UDP alone and says so by
//! `alone::over_udp`; what is about processes runs with an `agent::Agent`. What never leaves the queue
//! pair or its device runs once: mistakes, states, handles, work on windows that no peer takes part in,
//! arming and ending completion queues, and asynchronous events, but for that of a shared receive queue,
//! which messages cause.
//!
//! # Safety
//!
//! `unshare` takes no pointer, and changes the thread that calls it alone.

#![allow(dead_code, unused_imports, unused_macros, reason = "each test binary uses a part of it")]

use crate::pair::Setup;
use adverb_verbs::{Context, ContextConfig, DataPath, PathChoice, PathMtu, Qkey, QpConfig, Ud};
use std::sync::OnceLock;

/// How two queue pairs of a test reach one another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Path {
    /// Of one device: memory of this process.
    InProcess,
    /// Of two devices that share nothing but a ring, as if neither could touch the other's memory.
    Ring,
    /// Of two devices, which know each other as two processes do, by shared memory.
    SharedMemory,
    /// Of two devices, by packets.
    Udp,
    /// Of two devices, by packets that are frames of the interfaces at either end of a cable.
    Frames,
}

impl Path {
    /// The device for either end, which may be the same.
    pub(crate) fn contexts(self) -> [Context; 2] {
        // A socket that goes takes with it what was steered to it, and refusals are not repeated: over
        // UDP the devices stay until the test has ended.
        static OVER_UDP: OnceLock<[Context; 2]> = OnceLock::new();
        static OVER_FRAMES: OnceLock<[Context; 2]> = OnceLock::new();
        match self {
            Self::InProcess => {
                let one = self.context();
                [one.clone(), one]
            }
            Self::Udp => OVER_UDP.get_or_init(|| [self.context(), self.context()]).clone(),
            Self::Frames => OVER_FRAMES.get_or_init(|| self.at_both_ends_of_a_cable()).clone(),
            Self::Ring | Self::SharedMemory => [self.context(), self.context()],
        }
    }

    /// Devices of two hosts: this network namespace, and one that goes with its device.
    fn at_both_ends_of_a_cable(self) -> [Context; 2] {
        let open = move |name: &str, host: u8| {
            let interface = name.strip_prefix("soft_").expect("a device of ours");
            for line in [
                format!("link set {interface} addrgenmode none"), // No address but those below.
                format!("address add fd77::{host}/64 dev {interface} nodad"),
                format!("address add 10.77.0.{host}/24 dev {interface}"),
                format!("link set {interface} up"),
            ] {
                ip(&line);
            }
            let context =
                Context::open_with(name, &self.config()).expect("frames of the interface");
            // The sockets beside them are opened in this namespace, and stay as long as the device.
            let (pd, cq) = (context.alloc_pd(), context.create_cq(1).expect("a completion queue"));
            let datagrams = pd.create_qp_of::<Ud>(&QpConfig::new(&cq)).expect("a queue pair");
            datagrams.activate(Qkey(1)).expect("ready");
            std::mem::forget(datagrams);
            context
        };
        let there = std::thread::spawn(move || {
            // SAFETY: a call of this thread, which is about to end (header).
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "a namespace");
            // As long as a frame holds: packets of a path MTU of 2048 fit.
            let here = std::process::id();
            ip(&format!("link add far mtu 3498 type veth peer name near mtu 3498 netns {here}"));
            open("soft_far", 2)
        });
        let far = there.join().expect("the other end");
        [open("soft_near", 1), far]
    }

    /// A device for one end.
    pub(crate) fn context(self) -> Context {
        Context::open_with("soft_lo", &self.config()).expect("the loopback device")
    }

    fn config(self) -> ContextConfig {
        only_memory().path(match self {
            Self::InProcess | Self::SharedMemory => PathChoice::SharedMemory,
            Self::Ring => PathChoice::Ring,
            Self::Udp => PathChoice::Udp,
            Self::Frames => PathChoice::Xdp,
        })
    }

    /// The thread that serves the other end may be kept from a processor for longer than the retries of a short
    /// time-out take. Packets do get lost then, and records do not.
    pub(crate) fn setup(self) -> Setup {
        let path_mtu = Setup::default().path_mtu.min(self.path_mtu_max());
        Setup { path: Some(self), timeout: self.timeout(), path_mtu, ..Setup::default() }
    }

    /// What the interface carries.
    pub(crate) fn path_mtu_max(self) -> PathMtu {
        if self == Self::Frames { PathMtu::B2048 } else { PathMtu::B4096 }
    }

    /// Exponent of the time-out: a quarter of a second, or 4 s, seven times again.
    pub(crate) fn timeout(self) -> u8 {
        match self {
            Self::Udp | Self::Frames => 16,
            Self::InProcess | Self::Ring | Self::SharedMemory => 20,
        }
    }

    /// Messages are packets.
    pub(crate) fn has_packets(self) -> bool {
        self.expected() == DataPath::Udp
    }

    /// As `ADVERB_PATH` has it.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Self::InProcess | Self::SharedMemory => "shm",
            Self::Ring => "ring",
            Self::Udp => "udp",
            Self::Frames => "xdp",
        }
    }

    /// What a connected queue pair says of it.
    pub(crate) fn expected(self) -> DataPath {
        match self {
            Self::InProcess => DataPath::InProcess,
            Self::Ring | Self::SharedMemory => DataPath::SharedMemory,
            Self::Udp | Self::Frames => DataPath::Udp,
        }
    }
}

/// Runs `ip` in the namespace of this thread.
fn ip(line: &str) {
    let status = std::process::Command::new("ip").args(line.split(' ')).status();
    assert!(status.expect("iproute2").success(), "ip {line}");
}

/// Of a device of one's own that uses memory or nothing.
pub(crate) fn only_memory() -> ContextConfig {
    ContextConfig::default().path(PathChoice::SharedMemory).exclusive(true)
}

/// Makes a test for each path of functions that take one.
macro_rules! on_every_path {
    ($($test:ident),+ $(,)?) => {
        mod in_process {
            $(#[test] fn $test() { super::$test(crate::path::Path::InProcess); })+
        }
        mod ring {
            $(#[test] fn $test() { super::$test(crate::path::Path::Ring); })+
        }
        mod shared_memory {
            $(#[test] fn $test() { super::$test(crate::path::Path::SharedMemory); })+
        }
        mod udp {
            $(#[test] fn $test() {
                // A refusal that gets lost is not repeated: no other process may use these sockets.
                let name = concat!(module_path!(), "::", stringify!($test));
                let (_, name) = name.split_once("::").expect("a module of the test program");
                crate::alone::alone(name, || super::$test(crate::path::Path::Udp));
            })+
        }
        mod frames {
            $(#[test] fn $test() {
                let name = concat!(module_path!(), "::", stringify!($test));
                let (_, name) = name.split_once("::").expect("a module of the test program");
                crate::alone::over_frames(name, || super::$test(crate::path::Path::Frames));
            })+
        }
    };
}
pub(crate) use on_every_path;

/// Makes a test, in a namespace of its own, for each path between processes of functions that take one.
macro_rules! between_processes {
    ($($test:ident),+ $(,)?) => {
        between_processes! { ring: crate::path::Path::Ring; $($test),+ }
        between_processes! { shared_memory: crate::path::Path::SharedMemory; $($test),+ }
        between_processes! { udp: crate::path::Path::Udp; $($test),+ }
    };
    ($name:ident: $path:expr; $($test:ident),+) => {
        mod $name {
            $(#[test] fn $test() {
                let name = concat!(module_path!(), "::", stringify!($test));
                let (_, name) = name.split_once("::").expect("a module of the test program");
                crate::alone::alone(name, || super::$test($path));
            })+
        }
    };
}
pub(crate) use between_processes;
