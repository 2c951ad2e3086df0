//! TCP: RFC 9293, its header and its options.

mod header;
mod options;
mod seq;

pub use self::header::{Flags, Tcp};
pub use self::options::{Options, SackBlocks, TimeStamps};
pub use self::seq::Seq;
