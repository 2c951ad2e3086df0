//! Paths between two queue pairs, over each of which the tests of the transports run.
//!
//! A test's body takes a [`Path`], and `on_every_path!` makes a test of it for each. What is about the
//! packets themselves, captures, steering or strangers runs over UDP alone and says so by
//! `alone::over_udp`; what is about processes runs with an `agent::Agent`. What never leaves the queue
//! pair or its device runs once: mistakes, states, handles, work on windows that no peer takes part in,
//! arming and ending completion queues, and asynchronous events, but for that of a shared receive queue,
//! which messages cause.

#![allow(dead_code, unused_imports, unused_macros, reason = "each test binary uses a part of it")]

use crate::pair::Setup;
use adverb_verbs::{Context, ContextConfig, DataPath, PathChoice};
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
}

impl Path {
    /// The device for either end, which may be the same.
    pub(crate) fn contexts(self) -> [Context; 2] {
        // A socket that goes takes with it what was steered to it, and refusals are not repeated: over
        // UDP the devices stay until the test has ended.
        static OVER_UDP: OnceLock<[Context; 2]> = OnceLock::new();
        match self {
            Self::InProcess => {
                let one = self.context();
                [one.clone(), one]
            }
            Self::Udp => OVER_UDP.get_or_init(|| [self.context(), self.context()]).clone(),
            Self::Ring | Self::SharedMemory => [self.context(), self.context()],
        }
    }

    /// A device for one end.
    pub(crate) fn context(self) -> Context {
        let choice = match self {
            Self::InProcess | Self::SharedMemory => PathChoice::SharedMemory,
            Self::Ring => PathChoice::Ring,
            Self::Udp => PathChoice::Udp,
        };
        let config = only_memory().path(choice);
        Context::open_with("soft_lo", &config).expect("the loopback device")
    }

    /// The thread that serves the other end may be kept from a processor for longer than the retries of a short
    /// time-out take. Packets do get lost then, and records do not.
    pub(crate) fn setup(self) -> Setup {
        Setup { path: Some(self), timeout: self.timeout(), ..Setup::default() }
    }

    /// Exponent of the time-out: a quarter of a second, or 4 s, seven times again.
    pub(crate) fn timeout(self) -> u8 {
        match self {
            Self::Udp => 16,
            Self::InProcess | Self::Ring | Self::SharedMemory => 20,
        }
    }

    /// As `ADVERB_PATH` has it.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Self::InProcess | Self::SharedMemory => "shm",
            Self::Ring => "ring",
            Self::Udp => "udp",
        }
    }

    /// What a connected queue pair says of it.
    pub(crate) fn expected(self) -> DataPath {
        match self {
            Self::InProcess => DataPath::InProcess,
            Self::Ring | Self::SharedMemory => DataPath::SharedMemory,
            Self::Udp => DataPath::Udp,
        }
    }
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
