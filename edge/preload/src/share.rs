//! Processes that share sockets: forks, new programs, descriptors that are passed on, ends.
//!
//! ```text
//! processes, life, exec_target      those that share, children, the next program
//! sockets, closing            from the first call of a socket to its last descriptor
//! stats                       the file that sockets lie in, and reports
//! ```

pub(crate) mod closing;
pub(crate) mod exec_target;
pub(crate) mod life;
pub(crate) mod processes;
pub(crate) mod sockets;
pub(crate) mod stats;
