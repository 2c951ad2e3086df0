//! Memory that processes share: what the device and the socket library both stand on.
//!
//! ```text
//! page    files in memory with a layout: made, sealed, opened, checked
//! file    files with a path, which are to be one user's alone
//! alive   processes and threads as words, and whether they have ended
//! copying copies of bytes that others change meanwhile
//! line    cache lines asked for ahead of their use
//! ```
//!
//! Everything that another process has written is hostile: a page holds types for which every value is legal, and a
//! file is looked at before it is used.
//!
//! The socket library stands in front of functions of the C library, and must not meet itself. So nothing here calls
//! those, changes `errno`, or lets a thread be cancelled: system calls are made by `rustix`, and descriptors are closed
//! by [`file::SharedFile`]. Pages alone are the device's: they come with the standard library's descriptors.

pub mod alive;
pub mod copying;
pub mod file;
pub mod line;
pub mod page;
