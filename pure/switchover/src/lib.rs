//! How the two ends of a connection change from the kernel's stream to rings in shared memory, sleep and wake
//! there, and go back.
//!
//! The connection is the kernel's throughout. Two ends that find each other have a [`Page`] in common: words
//! that each of them reads and writes at any time, and a ring of bytes each way. This crate is the protocol of those
//! words. It copies no bytes, makes no system call, waits for nothing and has no clock: a [`Connection`] reads and
//! writes words, and says what its owner has to do next ([`Wake`], [`Source`], [`Leaving`], [`Following`]).
//!
//! ```text
//!            offer             take               switch              leave                 has left
//! end        OFFERED ───────── ACCEPTED ───────── switched_at ─────── Leaves(end) ───────── Left(end)
//! its bytes  the kernel's      the kernel's       the ring's          (none)                the kernel's
//! bells      none              none               bytes behind that position                none
//! ```
//!
//! A *bell* is a byte in the kernel's stream behind the position at which its sender has switched. An end that sleeps
//! says so first and looks again ([`Connection::arm`]); an end that has written looks for that afterwards
//! ([`Connection::wake_reader`]). Bells are counted on both sides, so that a reader can tell them from data.
//!
//! Every word may hold nonsense: no function loops until the other end does something, and nonsense is
//! [`Broken`], a bell too many, or an empty look.
//!
//! Not here: where pages lie and how ends find them, and the cursors of the rings beyond whether there is
//! something.

#![no_std]
#![forbid(unsafe_code)]

mod bell;
mod carry;
mod leave;
mod page;
mod park;

/// The primitives: `tests/` compiles this crate's files with others, which a simulation controls.
mod sync {
    pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

pub use crate::bell::{Bell, Bells, Wake};
pub use crate::carry::{Closing, Empty, Source, WayOut};
pub use crate::leave::{Follow, Following, Leave, Leaving, QUEUE_MAX, Received};
pub use crate::page::{
    ACCEPTED, ALONE, Broken, Connection, Consumer, Direction, End, Leaver, NEVER, OFFERED, ON_WORD,
    Page, Producer, Route, Sender, Sleep, TOGETHER, WITHDRAWN, Waiters, Writer,
};
pub use crate::park::{Armed, OnWord, Want};
