//! Sockets: what is known of each, whatever carries its bytes.
//!
//! ```text
//! state, parts, arena   one socket, and the memory that all lie in      table   which descriptor is which
//! policy          what rules allow            history       connections that were too short
//! counters, memberships, changes      for statistics, and for epoll
//! ownership, own  which process has which socket, and which of them this one is      takers     other programs that have it
//! wait_loop       what calls that wait do     spin        how long they spin      pacing      rates that sends keep
//! stamps          time stamps                 loans       bytes that the program reads where they lie
//! ```

pub(crate) mod arena;
pub(crate) mod changes;
pub(crate) mod counters;
pub(crate) mod history;
pub(crate) mod loans;
pub(crate) mod memberships;
pub(crate) mod own;
pub(crate) mod ownership;
pub(crate) mod pacing;
pub(crate) mod parts;
pub(crate) mod policy;
pub(crate) mod spin;
pub(crate) mod stamps;
pub(crate) mod state;
pub(crate) mod table;
pub(crate) mod takers;
pub(crate) mod wait_loop;
pub(crate) mod waits;
