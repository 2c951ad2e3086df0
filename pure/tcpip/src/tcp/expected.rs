//! Header prediction: a shorter way for the segments that an established connection mostly gets.
//!
//! Such a segment has the next bytes of the peer's stream, none of which waits for others, and says nothing else but what
//! it acknowledges. Its bytes go where the program reads them, and are not kept. All else goes by `arrival.rs`, and so may
//! this: what is taken here has the same effect as [`Connection::on_segment`] and [`Connection::receive`] after it.

use super::connection::Connection;
use super::header::{Flags, Tcp};
use super::position::{Origin, count};
use super::state::State;
use crate::time::Time;

impl<B: AsRef<[u8]>> Connection<B> {
    /// The segment, which has so many bytes of payload, is of this kind.
    pub fn expects(&self, header: &Tcp, payload_bytes: usize, now: Time) -> bool {
        let stamps = header.options.time_stamps;
        let position = Origin(self.names.first).position(header.ack, self.sender.unacked());
        self.state == State::Established
            && !self.is_left
            && header.flags.bits() & KIND == Flags::ACK.bits()
            && header.seq == self.receiver.origin.seq(self.receiver.next())
            && header.options.sack.is_empty()
            && stamps.is_some() == self.agreed.time_stamps
            && !stamps.is_some_and(|stamps| self.receiver.is_stale(stamps, now))
            && position.is_some_and(|position| self.may_acknowledge(position))
            && self.receiver.expects(count(payload_bytes))
    }

    /// Takes the payload of such a segment, which the program has. [`Connection::take_answer`] takes the rest.
    pub fn take_payload(&mut self, header: &Tcp, payload_bytes: usize, now: Time) -> Answer {
        debug_assert!(self.expects(header, payload_bytes, now), "a segment that was asked about");
        let start = self.receiver.next();
        if let Some(stamps) = header.options.time_stamps {
            self.receiver.on_stamps(stamps, start, now);
        }
        self.receiver.pass(count(payload_bytes), self.sender.segment(), now);
        Answer { header: *header, payload_bytes, start, came: now }
    }

    /// Takes what such a segment says of our stream. The program is told of room to send only if there was none.
    ///
    /// [`Connection::poll_transmit`] may have something afterwards.
    pub fn take_answer(&mut self, answer: &Answer) {
        let Answer { header, payload_bytes, start, came } = answer;
        self.hear(*came);
        let tells_room = self.events.writable || self.send_room() == 0;
        if let Some(position) = Origin(self.names.first).position(header.ack, self.sender.unacked())
        {
            self.acknowledge(header, position, *payload_bytes, *start, *came);
        }
        self.events.writable &= tells_room;
    }

    /// Between both, all but [`Connection::send`] and [`Connection::poll_transmit`] has to wait, and the rest of the segment
    /// may: what has been sent is all that there is to send, the segment acknowledges it, and nothing is due.
    pub fn may_answer_later(&self, answer: &Answer) -> bool {
        let position = Origin(self.names.first).position(answer.header.ack, self.sender.unacked());
        answer.header.options.sack.is_empty()
            && position.is_some_and(|position| self.sender.is_answered_by(position))
            && !self.sender.is_idle(answer.came)
            && self.is_calm(answer.came)
            && self.send_room() > 0
    }
}

/// What a segment says of the stream to the peer.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    header: Tcp,
    payload_bytes: usize,
    /// Position of the segment in the peer's stream.
    start: u64,
    came: Time,
}

impl Answer {
    /// When it came.
    pub const fn came(&self) -> Time {
        self.came
    }
}

/// Flags that say what a segment is; the others change nothing.
const KIND: u8 = Flags::ACK.bits()
    | Flags::FIN.bits()
    | Flags::RST.bits()
    | Flags::SYN.bits()
    | Flags::URG.bits();
