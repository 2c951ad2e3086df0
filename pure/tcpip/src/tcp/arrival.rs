//! Segments that arrive. RFC 9293 §3.10.7.3 and §3.10.7.4, with RFC 5961 and RFC 7323 §5.3.

use super::connection::Connection;
use super::header::{Flags, Tcp};
use super::piece::Piece;
use super::position::{Origin, count};
use super::receiver::Fit;
use super::sender::Ack;
use super::state::{End, State};
use crate::icmp::Report;
use crate::time::Time;
use core::time::Duration;

/// Where a segment lies in the peer's stream.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: u64,
    /// Position of its first byte of payload.
    payload: u64,
    /// Position of its FIN, or after its payload.
    fin: u64,
    end: u64,
}

impl<B: AsRef<[u8]>> Connection<B> {
    /// A segment has arrived. Returns a reset to send, if it must be refused.
    ///
    /// [`Connection::poll_transmit`] may have something afterwards.
    pub fn on_segment(&mut self, header: &Tcp, payload: Piece<B>, now: Time) -> Option<Tcp> {
        match self.state {
            State::Closed => Self::refuse(header, payload.len()),
            State::SynSent => self.on_answer(header, payload.len(), now),
            State::CloseWait
            | State::Closing
            | State::Established
            | State::FinWait1
            | State::FinWait2
            | State::LastAck
            | State::SynReceived
            | State::TimeWait => self.on_any(header, payload, now),
        }
    }

    /// The segment begins a new connection of this name, and this one, in TIME-WAIT, has nothing against it: it is
    /// newer than all that came. RFC 9293 §3.6.1, RFC 6191.
    pub fn yields_to(&self, header: &Tcp) -> bool {
        let flags = header.flags;
        if self.state != State::TimeWait || !flags.has(Flags::SYN) || flags.has(Flags::ACK) {
            return false;
        }
        let expected = self.receiver.origin.seq(self.receiver.next());
        let later = header.seq.since(expected) > 0;
        match (self.receiver.stamp, header.options.time_stamps) {
            (Some((recent, _)), Some(stamps)) if self.agreed.time_stamps => {
                let newer = stamps.value.wrapping_sub(recent).cast_signed();
                newer > 0 || newer == 0 && later
            }
            (Some(_) | None, Some(_) | None) => later,
        }
    }

    /// In SYN-SENT.
    fn on_answer(&mut self, header: &Tcp, payload_bytes: usize, now: Time) -> Option<Tcp> {
        let flags = header.flags;
        let ours = Origin(self.names.first);
        let acks = flags.has(Flags::ACK);
        let position = ours.position(header.ack, 1);
        let acceptable = acks && position == Some(1) && self.sender.next() == 1;
        if acks && !acceptable {
            return Self::refuse(header, payload_bytes);
        }
        if flags.has(Flags::RST) {
            if acceptable {
                self.finish(Some(End::Refused));
            }
            return None;
        }
        if !flags.has(Flags::SYN) {
            return None;
        }
        self.take_syn(header, now);
        self.hear(now);
        self.receiver.owe_now();
        if acceptable {
            self.acknowledge(header, 1, 0, 0, now);
            self.establish();
        } else {
            // Both have sent a SYN: ours leaves again, with an acknowledgement.
            self.state = State::SynReceived;
            self.sender.repeat();
        }
        None
    }

    /// In all other states.
    fn on_any(&mut self, header: &Tcp, payload: Piece<B>, now: Time) -> Option<Tcp> {
        let flags = header.flags;
        let rst = flags.has(Flags::RST);
        let place = self.place(header, payload.len())?;
        if !rst && self.agreed.time_stamps {
            // RFC 7323 §3.2: once agreed upon, every segment has them.
            let stamps = header.options.time_stamps?;
            if self.receiver.is_stale(stamps, now) {
                self.challenge(now);
                return None;
            }
        }
        if self.receiver.fit(place.start, place.end) == Fit::Outside {
            self.on_outside(header, place, now);
            return None;
        }
        if rst {
            self.on_reset(place, now);
            return None;
        }
        if flags.has(Flags::SYN) {
            self.challenge(now); // RFC 5961 §4.2.
            return None;
        }
        if !flags.has(Flags::ACK) {
            return None;
        }
        if let Some(stamps) = header.options.time_stamps {
            self.receiver.on_stamps(stamps, place.start, now);
        }
        let position = Origin(self.names.first).position(header.ack, self.sender.unacked());
        if self.state == State::SynReceived {
            let next = self.sender.next();
            if !position.is_some_and(|position| (1..=next).contains(&position)) {
                return Self::refuse(header, payload.len());
            }
            self.establish();
        }
        match position {
            Some(position) if self.may_acknowledge(position) => {
                self.hear(now);
                self.acknowledge(header, position, payload.len(), place.start, now);
            }
            Some(_) | None => {
                self.challenge(now); // RFC 5961 §5.2.
                return None;
            }
        }
        self.on_stream(header, place, payload, now)
    }

    /// RFC 5961 §5.2: the position has been sent, and is not too far in the past.
    pub(super) fn may_acknowledge(&self, position: u64) -> bool {
        let oldest = self.sender.unacked().saturating_sub(self.sender.peer.largest);
        (oldest..=self.sender.next()).contains(&position)
    }

    fn place(&mut self, header: &Tcp, payload_bytes: usize) -> Option<Place> {
        let origin = self.receiver.origin;
        let start = origin.position(header.seq, self.receiver.next())?;
        let payload = start + u64::from(header.flags.has(Flags::SYN));
        let fin = payload + count(payload_bytes);
        Some(Place { start, payload, fin, end: fin + u64::from(header.flags.has(Flags::FIN)) })
    }

    /// Nothing of it is new: it came before, asks whether this end is there, or was never sent by the peer.
    fn on_outside(&mut self, header: &Tcp, place: Place, now: Time) {
        if header.flags.has(Flags::RST) {
            return;
        }
        let position = Origin(self.names.first).position(header.ack, self.sender.unacked());
        let known = header.flags.has(Flags::ACK)
            && self.receiver.is_of_late(place.start)
            && position.is_some_and(|position| self.may_acknowledge(position));
        if !known {
            self.challenge(now);
            return;
        }
        self.hear(now);
        // RFC 9293 §3.10.7.4: the peer's FIN once more.
        let is_last = place.end == self.receiver.next();
        if self.state == State::TimeWait && header.flags.has(Flags::FIN) && is_last {
            self.wait_out(now);
        }
        if self.duplicates.allows(now) {
            self.receiver.on_outside(place.payload, place.fin);
        }
    }

    /// RFC 5961 §3.2; RFC 1337 for TIME-WAIT.
    fn on_reset(&mut self, place: Place, now: Time) {
        if place.start != self.receiver.next() {
            self.challenge(now);
        } else if self.state != State::TimeWait {
            let refused = self.state == State::SynReceived;
            self.finish(Some(if refused { End::Refused } else { End::Reset }));
        }
    }

    /// Answers with an acknowledgement what should not have come, but not too often.
    fn challenge(&mut self, now: Time) {
        if self.challenges.allows(now) {
            self.receiver.owe_now();
        }
    }

    /// Takes what the segment says of our stream.
    pub(super) fn acknowledge(
        &mut self,
        header: &Tcp,
        position: u64,
        bytes: usize,
        start: u64,
        now: Time,
    ) {
        let sender = &mut self.sender;
        let (unacked, next) = (sender.unacked(), sender.next());
        let mut repeated = false;
        if position >= unacked {
            let scale =
                if header.flags.has(Flags::SYN) { 0 } else { self.agreed.peer_scale.unwrap_or(0) };
            let window = u64::from(header.window) << scale;
            let limit = position + window;
            repeated = position == unacked
                && bytes == 0
                && limit == sender.peer.limit
                && !header.flags.has(Flags::FIN);
            // RFC 9293 §3.10.7.4: an older segment says nothing new of the window.
            if sender.peer.said_by <= (start, position) {
                sender.on_window(limit, window, (start, position));
            }
        }
        let acked = match header.options.sack.is_empty() && sender.is_answered_by(position) {
            true => sender.on_answer(position, now),
            false => self.acknowledge_any(header, (position, unacked, next), repeated, now),
        };
        if !self.is_orphaned() {
            self.sender.on_alive();
        }
        self.lengthen(acked, now);
        if acked > 0 {
            self.events.writable = true;
            self.on_progress(position.max(unacked), now);
        }
    }

    /// The same of anything that an acknowledgement may say of segments.
    fn acknowledge_any(
        &mut self,
        header: &Tcp,
        (position, unacked, next): (u64, u64, u64),
        repeated: bool,
        now: Time,
    ) -> u64 {
        let ours = Origin(self.names.first);
        let inside = |seq| ours.position(seq, unacked).filter(|position| *position <= next);
        let blocks = header.options.sack;
        let mut ranges = blocks.iter().filter_map(|(from, to)| {
            let (from, to) = (inside(from)?, inside(to)?);
            (from < to).then_some((from, to))
        });
        // RFC 2883 §4: the first block is of what arrived twice, if it is acknowledged, or within the second.
        let first = ranges.clone().next();
        let second = ranges.clone().nth(1);
        let twice = first.is_some_and(|(from, to)| {
            to <= position || second.is_some_and(|(start, end)| start <= from && to <= end)
        });
        if twice {
            ranges.next();
        }
        let sacked = ranges.filter(|_| self.agreed.sack).filter(|(from, _)| *from >= position);
        let echoed =
            header.options.time_stamps.filter(|_| self.agreed.time_stamps).and_then(|stamps| {
                let ago = u64::from(self.stamp(now).wrapping_sub(stamps.echo));
                let floor = (now.nanos() / MILLI).checked_sub(ago)? * MILLI;
                Some(Time::from_nanos(floor).plus(Duration::from_nanos(MILLI - 1)))
            });
        let position = position.max(unacked);
        let ack = Ack { position, sacked, twice, repeated, echoed };
        self.sender.on_ack(ack, now)
    }

    /// More of our stream is acknowledged.
    fn on_progress(&mut self, position: u64, now: Time) {
        let outbox = &self.sender.outbox;
        if !outbox.is_finished() || position < outbox.end_with_fin() {
            return;
        }
        match self.state {
            State::FinWait1 => self.wait_for_fin(now),
            State::Closing => self.wait_out(now),
            State::LastAck => self.finish(None),
            State::CloseWait
            | State::Closed
            | State::Established
            | State::FinWait2
            | State::SynReceived
            | State::SynSent
            | State::TimeWait => {}
        }
    }

    /// Takes what the segment carries of the peer's stream.
    fn on_stream(
        &mut self,
        header: &Tcp,
        place: Place,
        payload: Piece<B>,
        now: Time,
    ) -> Option<Tcp> {
        let listens = matches!(self.state, State::Established | State::FinWait1 | State::FinWait2);
        if !listens {
            if place.start < place.end {
                self.receiver.owe_now();
            }
            return None;
        }
        if self.receiver.discards && place.fin > self.receiver.next() && !payload.is_empty() {
            // The program has closed, so that nothing will ever read this: RFC 9293 §3.6.1.
            self.finish(Some(End::Aborted));
            return Self::refuse(header, payload.len());
        }
        if self.leaves(header) {
            return None;
        }
        let mut ended = false;
        if !payload.is_empty() && self.receiver.on_payload(place.payload, payload, now) {
            self.events.readable = true;
            ended = self.receiver.meets_fin();
        }
        if header.flags.has(Flags::FIN) {
            ended |= self.receiver.on_fin(place.fin);
        }
        if ended {
            self.on_end(now);
        }
        None
    }

    /// What the segment carries is left to another implementation.
    fn leaves(&mut self, header: &Tcp) -> bool {
        if !self.keeps_urgent && header.flags.has(Flags::URG) {
            self.leave();
        }
        // Nothing will ever read what comes for a program that has closed.
        self.is_left && !self.receiver.discards
    }

    /// The peer's stream has ended.
    fn on_end(&mut self, now: Time) {
        self.events.readable = true;
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.wait_out(now),
            State::CloseWait
            | State::Closed
            | State::Closing
            | State::LastAck
            | State::SynReceived
            | State::SynSent
            | State::TimeWait => {}
        }
    }

    /// A router or host reports an error about a segment of ours. RFC 9293 §3.9.2.2, RFC 5927.
    pub fn on_icmp(&mut self, report: Report, seq: super::seq::Seq) {
        let position = Origin(self.names.first).position(seq, self.sender.unacked());
        let in_flight =
            |position: u64| position >= self.sender.unacked() && position < self.sender.next();
        if !position.is_some_and(in_flight) {
            return;
        }
        match report {
            Report::Refused if self.state == State::SynSent => self.finish(Some(End::Refused)),
            // Elsewhere a hint at most: the connection may well recover.
            Report::Refused | Report::Unreachable => {}
            Report::TooBig { mtu } => self.on_too_big(mtu),
        }
    }

    fn on_too_big(&mut self, mtu: u32) {
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX).max(self.names.mtu_min());
        if self.agreed.path.limit(mtu) {
            self.sender.shorten(self.segment());
        }
    }

    /// Some of our stream has arrived: longer segments may do so, too.
    fn lengthen(&mut self, acked: u64, now: Time) {
        if let Some(bytes) = self.sender.take_carried() {
            self.agreed.path.carried(self.packet_with(bytes));
            self.sender.lengthen(self.segment());
        }
        if acked == 0 || self.sender.tries_longer() {
            return;
        }
        let Some(mtu) = self.agreed.path.on_progress(now) else { return };
        let longer = self.segment_in(mtu);
        if longer > self.segment() {
            self.sender.try_longer(longer);
        } else {
            // The peer takes no longer ones.
            self.agreed.path.carried(mtu);
        }
    }
}

const MILLI: u64 = 1_000_000;
