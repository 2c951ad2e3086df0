//! TCP against itself, against scripts and against another implementation, in virtual time.
//!
//! Random programs and networks are in `random.rs`; what they have in common in `pair.rs`.
#![allow(dead_code, reason = "not every test needs all of it")]
#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test may panic")]

mod expected;
mod goodput;
mod habits;
mod handover;
mod hostile;
mod other;
mod pair;
mod random;
mod rare;
mod scripts;
