//! Segments that leave. RFC 9293 §3.8.

use super::connection::Connection;
use super::header::{Flags, Tcp};
use super::options::{Options, SackBlocks, TimeStamps};
use super::position::{Origin, length};
use super::sender::Choice;
use super::seq::Seq;
use super::state::State;
use crate::time::Time;

/// A segment to send: its header, and which bytes of the stream it carries.
#[derive(Clone, Copy, Debug)]
pub struct Departure {
    /// The header.
    pub header: Tcp,
    /// Positions of the payload, for [`Connection::payload`].
    payload: (u64, u64),
}

impl Departure {
    /// Bytes of payload.
    pub fn payload_bytes(&self) -> usize {
        length(self.payload.1 - self.payload.0)
    }
}

impl<B: AsRef<[u8]>> Connection<B> {
    /// The next segment to send, if there is one. It must be sent.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Departure> {
        if core::mem::take(&mut self.reset_due) {
            let next = self.sender.next();
            return Some(self.bare(Flags::RST | Flags::ACK, next, now));
        }
        if matches!(self.state, State::Closed) {
            return None;
        }
        if self.state.is_synchronized() {
            // A peer that gets payload with it might not look at what else it says.
            if self.receiver.has_reports() {
                let next = self.sender.next();
                return Some(self.bare(Flags::ACK, next, now));
            }
            if self.takes_ask() {
                return Some(self.probe(now));
            }
        }
        match self.sender.choose(now) {
            Some(Choice::Send { from, to }) => Some(self.segment_of(from, to, now)),
            Some(Choice::Probe) => Some(self.probe(now)),
            None if self.state != State::SynSent && self.receiver.owes(now) => {
                let next = self.sender.next();
                Some(self.bare(Flags::ACK, next, now))
            }
            None => None,
        }
    }

    /// The reset that the peer has not been sent yet, if one is due. It needs no time stamps: RFC 7323 §3.2.
    pub fn due_reset(&self) -> Option<Tcp> {
        self.reset_due.then(|| Tcp {
            src_port: self.names.local_port,
            dst_port: self.names.remote_port,
            seq: Origin(self.names.first).seq(self.sender.next()),
            ack: self.receiver.origin.seq(self.receiver.acked()),
            flags: Flags::RST | Flags::ACK,
            window: 0,
            urgent: 0,
            options: Options::default(),
        })
    }

    /// The payload of a segment, if it was handed over in one chunk, and last.
    pub fn whole_payload(&self, departure: &Departure) -> Option<&[u8]> {
        self.sender.outbox.slice(departure.payload.0, departure.payload.1)
    }

    /// The payload of a segment, in pieces.
    pub fn payload(&self, departure: &Departure) -> impl Iterator<Item = &[u8]> + Clone {
        self.sender.outbox.slices(departure.payload.0, departure.payload.1)
    }

    /// A segment with these positions, of which the first may be the SYN and the last the FIN.
    fn segment_of(&mut self, from: u64, to: u64, now: Time) -> Departure {
        let end = self.sender.outbox.end();
        let payload = (from.max(1), to.min(end).max(from.max(1)));
        let answers = self.state != State::SynSent;
        let mut flags = if answers { Flags::ACK } else { Flags::default() };
        if from == 0 {
            flags = flags | Flags::SYN;
        }
        if to > end {
            flags = flags | Flags::FIN;
        }
        if payload.1 == end && payload.0 < payload.1 {
            flags = flags | Flags::PSH;
        }
        let header = self.header(flags, from, SackBlocks::default(), now);
        Departure { header, payload }
    }

    /// A segment that the peer must answer, as its sequence number is of the past. RFC 9293 §3.8.4.
    fn probe(&mut self, now: Time) -> Departure {
        let before = self.sender.unacked().saturating_sub(1);
        self.bare(Flags::ACK, before, now)
    }

    /// A segment without payload.
    fn bare(&mut self, flags: Flags, position: u64, now: Time) -> Departure {
        let reports = flags == Flags::ACK && self.agreed.sack;
        let sack = if reports { self.receiver.report() } else { SackBlocks::default() };
        Departure { header: self.header(flags, position, sack, now), payload: (1, 1) }
    }

    fn header(&mut self, flags: Flags, position: u64, sack: SackBlocks, now: Time) -> Tcp {
        let syn = flags.has(Flags::SYN);
        let mut options = Options { sack, ..Options::default() };
        if syn {
            let overhead = self.names.ip_header_bytes + 20;
            options.mss = Some(self.config.mtu.saturating_sub(overhead));
            options.sack_permitted = self.agreed.sack;
            let scaling = self.config.window_scaling
                && (self.state == State::SynSent || self.agreed.peer_scale.is_some());
            options.window_scale = scaling.then(|| self.receiver.scale_to_offer());
        }
        if self.agreed.time_stamps {
            let echo = self.receiver.stamp.map_or(0, |(value, _)| value);
            // A thread that waited for its turn may know an earlier time than the one before it. A peer would drop what is
            // stamped with that: RFC 7323 §5.
            self.stamped_at = self.stamped_at.max(now);
            options.time_stamps = Some(TimeStamps { value: self.stamp(self.stamped_at), echo });
        }
        let acks = flags.has(Flags::ACK);
        let (ack, window) = if acks {
            let window = self.receiver.acknowledge(!syn, self.sender.segment());
            (self.receiver.origin.seq(self.receiver.acked()), window)
        } else {
            let unscaled = self.config.receive_bytes_max.min(u32::from(u16::MAX));
            (Seq::new(0), u16::try_from(unscaled).unwrap_or(u16::MAX))
        };
        Tcp {
            src_port: self.names.local_port,
            dst_port: self.names.remote_port,
            seq: Origin(self.names.first).seq(position),
            ack,
            flags,
            window,
            urgent: 0,
            options,
        }
    }
}
