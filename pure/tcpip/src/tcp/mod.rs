//! TCP: RFC 9293, its header, its options, and a connection as a state machine.
//!
//! ```text
//!     segments --> arrival, expected
//!                     +-------> connection <--- the program's calls, time
//!                             receiver, sender
//!     segments <-- departure <------+
//!
//!     receiver: inbox (payloads), blocks (what to report)
//!     sender:   outbox (chunks), scoreboard (segments), rack, round_trip, congestion, pacer
//!     both:     path (how long packets may be)
//! ```

mod arrival;
mod blocks;
mod config;
mod congestion;
mod connection;
mod departure;
mod expected;
mod handover;
mod header;
mod inbox;
mod options;
mod outbox;
mod pacer;
mod path;
mod piece;
mod position;
mod rack;
mod receiver;
mod round_trip;
mod scoreboard;
mod sender;
mod seq;
mod state;

pub use self::config::{Algorithm, Config, KeepAlive};
pub use self::connection::{Connection, Names};
pub use self::departure::Departure;
pub use self::expected::Answer;
pub use self::handover::{Handover, Unsent};
pub use self::header::{Flags, Tcp};
pub use self::options::{Options, SackBlocks, TimeStamps};
pub use self::piece::{Piece, Received};
pub use self::seq::Seq;
pub use self::state::{End, Events, State};
