//! The airlock to Linux: every system call this project makes, behind a safe interface.
//!
//! One module for each thing the kernel lends us. Nothing here knows what a packet, a queue pair or
//! a registration is; the device crate above gives these calls their meaning. The rest of `host/`
//! should find what it needs here rather than call the C library itself.
//!
//! The modules that contain `unsafe` open with a `# Safety` section; the others stand on `std` and
//! `rustix` alone. Read the section of a file before changing it.

pub mod affinity;
pub mod bpf;
pub mod busy_poll;
pub mod cancel;
pub mod clock;
pub mod epoll;
pub mod eventfd;
pub mod faults;
pub mod fork;
pub mod futex;
pub mod futex_mutex;
pub mod lock;
pub mod memory;
pub mod netdev;
pub mod netlink;
pub mod netns;
pub mod poll;
pub mod process;
pub mod random;
pub mod repair;
pub mod routes;
pub mod scheduler;
mod setters;
pub mod signals;
mod sockopt;
mod sync;
pub mod tcp;
pub mod terminal;
pub mod udp;
pub mod unix;
pub mod vm;

/// Makes `Debug` of errors read like `Display`: it is what a program's `main` prints of them.
#[macro_export]
macro_rules! debug_as_display {
    ($($error:ty),+ $(,)?) => {$(
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }
    )+};
}

/// Makes an error of each of those that its variants wrap.
#[macro_export]
macro_rules! wraps {
    ($error:ty: $($variant:ident($inner:ty)),+ $(,)?) => {$(
        impl ::std::convert::From<$inner> for $error {
            fn from(error: $inner) -> Self {
                Self::$variant(error)
            }
        }
    )+};
}

/// Implements `Error` for an enum whose source is what these patterns call `$cause`; other variants have none.
#[macro_export]
macro_rules! caused {
    ($error:ty: $cause:ident in $($variant:pat),+ $(,)?) => {
        impl ::std::error::Error for $error {
            fn source(&self) -> Option<&(dyn ::std::error::Error + 'static)> {
                match self {
                    $($variant => Some($cause),)+
                    _ => None,
                }
            }
        }
    };
}
