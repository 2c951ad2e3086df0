//! Exported functions: those of the C library that we stand in front of.
//!
//! One file for each kind. Each function asks the table whether it knows the descriptor; if not, it
//! calls the real one with the same arguments.

#![expect(clippy::as_conversions, reason = "C integers meet us here")]

mod bytes;
mod descriptors;
mod extra;
mod files;
mod lending;
mod multiplexing;
mod numbers;
mod printing;
mod processes;
mod programs;
mod setup;

use std::ffi::c_int;

use crate::base::raw::{self, Answer};
use crate::socket::table;
use crate::transport::fallback;

/// The C library's way to say how many, or that it failed.
fn size(answer: Answer) -> libc::ssize_t {
    match answer {
        Ok(count) => count as libc::ssize_t,
        Err(error) => {
            raw::set_errno(error);
            -1
        }
    }
}

/// The same, as an `int`.
fn int(answer: Answer) -> c_int {
    size(answer) as c_int
}

/// What a real function has said, as an answer.
fn answer(value: libc::ssize_t) -> Answer {
    usize::try_from(value).map_err(|_| raw::errno())
}

/// Whether a descriptor stands for a connection with rings, once it has been brought up to date.
fn has_rings(fd: c_int) -> bool {
    table::socket(fd).is_some_and(|socket| {
        fallback::advance(&socket, fd);
        socket.segment().is_some()
    })
}
