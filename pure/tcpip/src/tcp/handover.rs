//! Connections that another implementation has made and carries on: what both have to know of one.
//!
//! A connection is established when it is taken over, and nothing of it is in flight to the peer. It can be let go of until
//! it sends its FIN first: its bytes then go on from there by another implementation, in the same sequence numbers, under
//! the same agreements, and with time stamps that grow.

use alloc::vec::Vec;

use super::config::Config;
use super::connection::{Connection, Names};
use super::position::Origin;
use super::seq::Seq;
use super::state::State;
use crate::time::Time;

/// An established connection, between two implementations that carry it one after the other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Handover {
    /// The first sequence number that the peer has not acknowledged.
    pub unacknowledged: Seq,
    /// The next sequence number of the peer's: behind its FIN, if that has come.
    pub expected: Seq,
    /// Bytes that the peer takes from `unacknowledged` on.
    pub peer_window: u32,
    /// Bytes that the peer was allowed to send from `expected` on.
    pub window: u32,
    /// The peer's windows count units of two to the power of this many bytes; `None` without scaling.
    pub peer_scale: Option<u8>,
    /// So do ours, with scaling.
    pub scale: u8,
    /// Payload of the longest segment that the peer takes, before options.
    pub peer_segment: u16,
    /// Selective acknowledgements are understood by both.
    pub sack: bool,
    /// What our time stamps are now; `None` without time stamps.
    pub stamp: Option<u32>,
}

/// What a connection that is let go of had to send.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Unsent {
    /// Bytes that have been sent, and not been acknowledged.
    pub flying: Vec<u8>,
    /// Bytes behind these, that have never been sent.
    pub waiting: Vec<u8>,
}

impl<B: AsRef<[u8]>> Connection<B> {
    /// A connection that is established already. `names` are as for [`Connection::connect`], whose numbers mean nothing
    /// here.
    pub fn resume(config: &Config, names: Names, from: &Handover, now: Time) -> Self {
        let first = from.unacknowledged.plus(u32::MAX);
        let [.., b0, b1, b2, b3] = (now.nanos() / 1_000_000).to_be_bytes();
        let clock = u32::from_be_bytes([b0, b1, b2, b3]);
        let stamp_origin = from.stamp.unwrap_or(0).wrapping_sub(clock);
        let names = Names { first, stamp_origin, ..names };
        let mut connection = Self::new(config, names, State::Established, now);
        connection.agreed.sack = from.sack;
        connection.agreed.time_stamps = from.stamp.is_some();
        connection.agreed.peer_scale = from.peer_scale;
        connection.agreed.peer_segment = from.peer_segment.max(super::connection::SEGMENT_MIN);
        connection.receiver.scale = if from.peer_scale.is_some() { from.scale.min(14) } else { 0 };
        connection.receiver.resume(Origin(from.expected.plus(u32::MAX)), u64::from(from.window));
        connection.receiver.owe_now(); // What has come may not have been acknowledged.
        let segment = connection.segment();
        connection.sender.agree(segment, from.sack);
        connection.sender.resume(u64::from(from.peer_window), config.user_timeout);
        connection.establish();
        connection
    }

    /// What another implementation needs to carry the connection on, and what is to be sent still; `None` unless it is
    /// established, or the peer has ended its stream first. The other implementation has to know of the FINs: the peer does
    /// not send its own again, and ours is to be sent behind all bytes, also if it has been sent. What has been received and
    /// not been read is to be read first. Early packets are forgotten, as the peer has been told that they may be.
    pub fn hand_over(&self, now: Time) -> Option<(Handover, Unsent)> {
        if !matches!(self.state, State::Established | State::CloseWait | State::LastAck) {
            return None;
        }
        let (unacked, next) = (self.sender.unacked(), self.sender.next());
        let outbox = &self.sender.outbox;
        let bytes = |from, to| {
            let mut bytes = Vec::new();
            outbox.slices(from, to).for_each(|slice| bytes.extend_from_slice(slice));
            bytes
        };
        let low = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let handover = Handover {
            unacknowledged: Origin(self.names.first).seq(unacked),
            expected: self.receiver.origin.seq(self.receiver.next()),
            peer_window: low(self.sender.peer.limit.saturating_sub(unacked)),
            window: low(self.receiver.allowed()),
            peer_scale: self.agreed.peer_scale,
            scale: self.receiver.scale,
            peer_segment: self.agreed.peer_segment,
            sack: self.agreed.sack,
            stamp: self.agreed.time_stamps.then(|| self.stamp(self.stamped_at.max(now))),
        };
        let unsent = Unsent { flying: bytes(unacked, next), waiting: bytes(next, outbox.end()) };
        Some((handover, unsent))
    }
}
