//! A connection: two halves, a state, and what the program asks for. RFC 9293 §3.9.1.
//!
//! Segments go in through `arrival.rs` and come out of `departure.rs`; time passes here. A connection does not know
//! addresses: its owner finds it by them.

use core::time::Duration;

use super::config::{Algorithm, Config, KeepAlive};
use super::header::{Flags, Tcp};
use super::options::Options;
use super::path::PathMtu;
use super::piece::{Piece, Received};
use super::position::Origin;
use super::receiver::Receiver;
use super::sender::Sender;
use super::seq::Seq;
use super::state::{End, Events, State};
use crate::time::{Time, earliest, is_due};

/// One end of a connection.
#[derive(Debug)]
pub struct Connection<B> {
    pub(super) state: State,
    pub(super) end: Option<End>,
    pub(super) events: Events,
    pub(super) sender: Sender<B>,
    pub(super) receiver: Receiver<B>,
    pub(super) names: Names,
    pub(super) agreed: Agreed,
    pub(super) config: Config,
    pub(super) challenges: Guard,
    pub(super) duplicates: Guard,
    clocks: Clocks,
    /// The latest time that a segment was stamped with.
    pub(super) stamped_at: Time,
    /// A reset is to be sent.
    pub(super) reset_due: bool,
    /// It is left to another implementation.
    pub(super) is_left: bool,
    /// What is urgent comes in line all the same.
    pub(super) keeps_urgent: bool,
    /// The program has closed it.
    orphaned: bool,
}

/// What a connection is given by its owner.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Our port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
    /// Bytes of the IP header before each segment.
    pub ip_header_bytes: u16,
    /// Our first sequence number. It must not be guessed: RFC 6528.
    pub first: Seq,
    /// What our time stamps begin with. It should not be guessed.
    pub stamp_origin: u32,
}

impl Names {
    /// The addresses are those of IPv6.
    pub(super) fn are_v6(&self) -> bool {
        self.ip_header_bytes > 20
    }

    /// Bytes of a packet that every path takes.
    pub(super) fn mtu_min(&self) -> u16 {
        if self.are_v6() { MTU_MIN_V6 } else { MTU_MIN_V4 }
    }

    /// Payload of a segment if the peer does not say: RFC 9293 §3.7.1.
    fn segment_default(&self) -> u16 {
        if self.are_v6() { SEGMENT_DEFAULT_V6 } else { SEGMENT_DEFAULT_V4 }
    }
}

/// What both ends have agreed upon.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    pub(super) time_stamps: bool,
    pub(super) sack: bool,
    /// The peer's windows count units of two to the power of this many bytes; `None` before, or without, scaling.
    pub(super) peer_scale: Option<u8>,
    /// Payload of the longest segment that the peer takes, before options.
    pub(super) peer_segment: u16,
    /// How long IP packets of the path may be.
    pub(super) path: PathMtu,
}

/// Answers to segments that have nothing new, so many a second. RFC 5961 §7.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    max: u16,
    second: u64,
    answered: u16,
}

/// Deadlines of the connection as a whole.
#[derive(Clone, Copy, Debug, Default)]
struct Clocks {
    /// When something came from the peer.
    heard: Time,
    /// When the peer is asked whether it is there.
    keep_alive: Option<Time>,
    /// Questions that it has not answered.
    asked: u32,
    /// The question is due.
    ask: bool,
    /// The state ends then.
    state: Option<Time>,
}

impl<B: AsRef<[u8]>> Connection<B> {
    pub(super) fn new(config: &Config, names: Names, state: State, now: Time) -> Self {
        let peer_segment = names.segment_default();
        let agreed = Agreed {
            time_stamps: config.time_stamps,
            sack: config.sack,
            peer_scale: None,
            peer_segment,
            path: PathMtu::new(config.mtu),
        };
        let segment = u64::from(peer_segment);
        Self {
            state,
            end: None,
            events: Events::default(),
            sender: Sender::new(config, segment, now),
            receiver: Receiver::new(config),
            names,
            agreed,
            config: *config,
            challenges: Guard::new(CHALLENGES_MAX),
            duplicates: Guard::new(DUPLICATES_MAX),
            clocks: Clocks { heard: now, ..Clocks::default() },
            stamped_at: now,
            reset_due: false,
            is_left: false,
            keeps_urgent: false,
            orphaned: false,
        }
    }

    /// A connection that sends a SYN.
    pub fn connect(config: &Config, names: Names, now: Time) -> Self {
        Self::new(config, names, State::SynSent, now)
    }

    /// A connection that answers a SYN.
    pub fn answer(config: &Config, names: Names, syn: &Tcp, now: Time) -> Self {
        let mut connection = Self::new(config, names, State::SynReceived, now);
        connection.take_syn(syn, now);
        connection
    }

    /// Takes what the peer's SYN says.
    pub(super) fn take_syn(&mut self, syn: &Tcp, now: Time) {
        let Options { mss, window_scale, sack_permitted, time_stamps, .. } = syn.options;
        self.receiver.begin(Origin(syn.seq));
        self.agreed.sack &= sack_permitted;
        self.agreed.time_stamps &= time_stamps.is_some();
        self.agreed.peer_scale = window_scale.filter(|_| self.config.window_scaling);
        if self.agreed.peer_scale.is_some() {
            self.receiver.scale = self.receiver.scale_to_offer();
        }
        self.agreed.peer_segment = mss.unwrap_or(self.agreed.peer_segment).max(SEGMENT_MIN);
        self.receiver.stamp = time_stamps.map(|stamps| (stamps.value, now));
        self.sender.agree(self.segment(), self.agreed.sack);
    }

    /// Bytes of payload in a full segment.
    pub(super) fn segment(&self) -> u64 {
        self.segment_in(self.agreed.path.bytes())
    }

    /// Bytes of payload in a packet of this length.
    pub(super) fn segment_in(&self, mtu: u16) -> u64 {
        let path = mtu.saturating_sub(self.names.ip_header_bytes + HEADER_BYTES);
        let segment = path.min(self.agreed.peer_segment).saturating_sub(self.options_bytes());
        u64::from(segment.max(SEGMENT_MIN - STAMPS_BYTES))
    }

    /// Bytes of a packet with this payload.
    pub(super) fn packet_with(&self, segment: u64) -> u16 {
        let headers = self.names.ip_header_bytes + HEADER_BYTES + self.options_bytes();
        u16::try_from(segment).unwrap_or(u16::MAX).saturating_add(headers)
    }

    fn options_bytes(&self) -> u16 {
        if self.agreed.time_stamps { STAMPS_BYTES } else { 0 }
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Why the connection ended, if it did so other than by both FINs.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// The program has closed or aborted it: when [`State::Closed`], nothing is left to tell.
    pub fn is_orphaned(&self) -> bool {
        self.orphaned
    }

    /// [`Connection::poll_transmit`] would have nothing now, and change nothing.
    pub fn is_calm(&self, now: Time) -> bool {
        self.state != State::Closed
            && !self.reset_due
            && !self.clocks.ask
            && !self.receiver.owes(now)
            && self.sender.is_calm()
    }

    /// Another implementation is to carry it on: the peer has marked something as urgent, or it was left by
    /// [`Connection::leave`]. Nothing that comes is taken or acknowledged any more; the peer sends that again to the
    /// other one.
    pub fn is_left(&self) -> bool {
        self.is_left
    }

    /// Leaves it to another implementation, if there is one: [`Config::may_leave`].
    pub fn leave(&mut self) {
        let is_new = self.config.may_leave && !self.is_left;
        self.events.left |= is_new;
        self.is_left |= is_new;
    }

    /// None carries it on: what comes is taken, and what is urgent comes in line.
    pub fn keep(&mut self) {
        self.keeps_urgent = true;
        self.is_left = false;
    }

    /// What has happened since the last call.
    pub fn take_events(&mut self) -> Events {
        core::mem::take(&mut self.events)
    }

    /// Something has happened.
    pub fn has_events(&self) -> bool {
        self.events.any()
    }

    /// Bytes that can be handed over now.
    pub fn send_room(&self) -> u64 {
        if self.state == State::Closed || self.sender.outbox.is_finished() {
            return 0;
        }
        let chunks_left = self.sender.outbox.chunks() < CHUNKS_MAX;
        let room = self.config.send_bytes_max.saturating_sub(self.sender.queued());
        if chunks_left { room } else { 0 }
    }

    /// Hands over bytes to be sent. The buffer is dropped when they are acknowledged.
    ///
    /// # Errors
    ///
    /// The bytes come back, and nothing has been taken: there is no room for any, or the stream to the peer has ended.
    /// The last chunk may exceed the room.
    pub fn send(&mut self, chunk: B, now: Time) -> Result<(), B> {
        if self.send_room() == 0 {
            return Err(chunk);
        }
        self.sender.push(Piece::whole(chunk), now);
        Ok(())
    }

    /// The next bytes that the peer has sent; `None` if there are none now, or no more: [`Connection::is_at_end`].
    pub fn receive(&mut self) -> Option<Received<B>> {
        self.receiver.take(self.sender.segment())
    }

    /// Copies the next bytes that the peer has sent, and says how many: 0 if there are none now, or no more.
    pub fn read(&mut self, to: &mut [u8]) -> usize {
        self.receiver.read(to, self.sender.segment())
    }

    /// Copies what [`Connection::read`] would after `skip` bytes, and leaves it to be received.
    pub fn peek(&self, skip: usize, to: &mut [u8]) -> usize {
        self.receiver.peek(skip, to)
    }

    /// Bytes that wait to be received.
    pub fn readable_bytes(&self) -> u64 {
        self.receiver.ready_bytes()
    }

    /// The peer has ended its stream, and all of it has been received.
    pub fn is_at_end(&self) -> bool {
        self.receiver.ready_bytes() == 0
            && (self.receiver.has_ended() || self.state == State::Closed)
    }

    /// How many bytes the peer has acknowledged so far, and how many of its own have come without a gap, counted from where the
    /// streams began or were taken over.
    pub fn progress(&self) -> [u64; 2] {
        [self.sender.unacked(), self.receiver.next()]
    }

    /// Bytes that have been handed over and not been acknowledged.
    pub fn unacknowledged_bytes(&self) -> u64 {
        self.sender.queued()
    }

    /// The smoothed round trip, if one has been measured.
    pub fn round_trip(&self) -> Option<Duration> {
        self.sender.round_trip()
    }

    /// Bytes that may be in the network.
    pub fn congestion_window(&self) -> u64 {
        self.sender.congestion_window()
    }

    /// Packets and segments that are remembered; bounded by the configuration.
    pub fn remembered(&self) -> usize {
        self.sender.remembered() + self.sender.outbox.chunks()
    }

    /// Small segments leave at once, or do not any longer.
    pub fn set_no_delay(&mut self, no_delay: bool) {
        self.sender.no_delay = no_delay;
    }

    /// Small segments wait for more bytes, 200 ms at most, or do not any longer.
    pub fn set_corked(&mut self, corked: bool) {
        self.sender.set_corked(corked);
    }

    /// With `true` the next segments are acknowledged at once, and so is what is owed now. With `false` they are acknowledged as
    /// usual. A connection whose configuration says so acknowledges all at once, in both cases.
    pub fn set_quick_ack(&mut self, quick_ack: bool) {
        self.receiver.set_quick(quick_ack);
    }

    /// How the network's load is guessed from now on.
    pub fn set_congestion(&mut self, algorithm: Algorithm) {
        self.sender.set_congestion(algorithm);
    }

    /// Most bytes a second; `None` is no limit.
    pub fn set_pacing(&mut self, bytes_per_second: Option<u64>) {
        self.sender.set_pacing(bytes_per_second);
    }

    /// Silent peers are asked if they are there, or are not any longer.
    pub fn set_keep_alive(&mut self, keep_alive: Option<KeepAlive>) {
        self.config.keep_alive = keep_alive;
        self.arm_keep_alive();
    }

    /// How long the peer may be silent while it owes an answer.
    pub fn set_user_timeout(&mut self, timeout: Duration) {
        self.config.user_timeout = timeout;
        if self.state.is_synchronized() {
            self.sender.patience.limit = timeout;
        }
    }

    /// Ends our stream. The peer's goes on.
    pub fn shut_down(&mut self) {
        let next = match self.state {
            State::SynSent => {
                // Nothing is known of a peer: there is nothing to end. RFC 9293 §3.10.4.
                self.finish(None);
                return;
            }
            State::Established | State::SynReceived => State::FinWait1,
            State::CloseWait => State::LastAck,
            State::Closed
            | State::Closing
            | State::FinWait1
            | State::FinWait2
            | State::LastAck
            | State::TimeWait => return,
        };
        self.sender.outbox.finish();
        // A FIN before the handshake is over waits for it: `establish` moves on.
        if self.state != State::SynReceived {
            self.state = next;
        }
    }

    /// Ends our stream, and takes nothing more. Bytes that wait to be received are lost, and the peer gets a reset
    /// for them: RFC 9293 §3.6.1, RFC 2525 §2.17.
    pub fn close(&mut self, now: Time) {
        if self.orphaned {
            return;
        }
        self.orphaned = true;
        if self.receiver.ready_bytes() > 0 {
            self.abort();
            return;
        }
        self.shut_down();
        self.receiver.discards = true;
        if self.state == State::FinWait2 {
            self.clocks.state = Some(now.plus(self.config.fin_wait_2));
        }
    }

    /// Ends the connection at once, and tells the peer by a reset.
    pub fn abort(&mut self) {
        self.orphaned = true;
        // RFC 9293 §3.10.5: the peer has nothing to be told in the other states.
        self.reset_due = match self.state {
            State::CloseWait
            | State::Established
            | State::FinWait1
            | State::FinWait2
            | State::SynReceived => true,
            State::Closed | State::Closing | State::LastAck | State::SynSent | State::TimeWait => {
                false
            }
        };
        self.finish(Some(End::Aborted));
    }

    /// There is no connection any more.
    pub(super) fn finish(&mut self, end: Option<End>) {
        self.state = State::Closed;
        self.end = self.end.or(end);
        self.sender.clear();
        self.clocks.state = None;
        self.clocks.keep_alive = None;
        self.events.closed = true;
        self.events.readable = true;
        self.events.writable = true;
    }

    /// The handshake is over.
    pub(super) fn establish(&mut self) {
        self.state =
            if self.sender.outbox.is_finished() { State::FinWait1 } else { State::Established };
        self.sender.patience.limit = self.config.user_timeout;
        self.events.connected = true;
        self.events.writable = true;
        self.arm_keep_alive();
    }

    /// The state is TIME-WAIT from `now` on.
    pub(super) fn wait_out(&mut self, now: Time) {
        self.state = State::TimeWait;
        self.sender.clear();
        self.clocks.keep_alive = None;
        self.clocks.state = Some(now.plus(self.config.time_wait));
    }

    /// Our FIN is acknowledged, and the peer's has not come.
    pub(super) fn wait_for_fin(&mut self, now: Time) {
        self.state = State::FinWait2;
        if self.orphaned {
            self.clocks.state = Some(now.plus(self.config.fin_wait_2));
        }
    }

    /// Something acceptable has come from the peer.
    pub(super) fn hear(&mut self, now: Time) {
        self.clocks.heard = now;
        self.clocks.asked = 0;
        // The deadline stays where it is: when it comes, it is put off.
    }

    fn arm_keep_alive(&mut self) {
        let KeepAlive { idle, interval, .. } = match self.config.keep_alive {
            Some(keep_alive) if self.state.is_synchronized() => keep_alive,
            Some(_) | None => {
                self.clocks.keep_alive = None;
                return;
            }
        };
        let asked = self.clocks.asked;
        self.clocks.keep_alive = Some(self.clocks.heard.plus(idle + interval * asked));
    }

    /// A question whether the peer is there is to be sent.
    pub(super) fn takes_ask(&mut self) -> bool {
        core::mem::take(&mut self.clocks.ask)
    }

    /// When [`Connection::on_time`] is to be called, if [`Connection::poll_transmit`] has nothing.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.state == State::Closed {
            return None;
        }
        let (sender, receiver) = (self.sender.next_deadline(), self.receiver.next_deadline());
        earliest([sender, receiver, self.clocks.keep_alive, self.clocks.state])
    }

    /// Time has passed. [`Connection::poll_transmit`] may have something then.
    pub fn on_time(&mut self, now: Time) {
        if self.state == State::Closed {
            return;
        }
        if is_due(self.clocks.state, now) {
            self.finish(None);
            return;
        }
        if self.sender.on_time(now) {
            self.time_out();
            return;
        }
        self.look_for_black_hole();
        if is_due(self.clocks.keep_alive, now) {
            self.on_keep_alive(now);
        }
    }

    /// RFC 4821 §7.7: a path that takes no full segments, of which no router tells, looks like one that takes nothing.
    fn look_for_black_hole(&mut self) {
        let time_outs = self.sender.time_outs_of(self.segment());
        if let Some(mtu) = self.agreed.path.shorter(time_outs, self.names.mtu_min()) {
            self.agreed.path.suppose(mtu);
            self.sender.shorten(self.segment());
        }
    }

    fn on_keep_alive(&mut self, now: Time) {
        self.arm_keep_alive();
        let Some(KeepAlive { probes_max, interval, .. }) = self.config.keep_alive else {
            return;
        };
        if !is_due(self.clocks.keep_alive, now) {
            return; // Something came meanwhile.
        }
        if self.sender.next() > self.sender.unacked() {
            // An answer is owed, and waited for, anyway.
            self.clocks.keep_alive = Some(now.plus(interval));
            return;
        }
        if self.clocks.asked >= probes_max {
            self.reset_due = true;
            self.time_out();
            return;
        }
        self.clocks.asked += 1;
        self.clocks.ask = true;
        self.arm_keep_alive();
    }

    fn time_out(&mut self) {
        self.reset_due |= self.state.is_synchronized();
        self.finish(Some(End::TimedOut));
    }

    /// Our clock for time stamps: milliseconds. RFC 7323 §4.1.
    pub(super) fn stamp(&self, now: Time) -> u32 {
        let [.., b0, b1, b2, b3] = (now.nanos() / 1_000_000).to_be_bytes();
        self.names.stamp_origin.wrapping_add(u32::from_be_bytes([b0, b1, b2, b3]))
    }

    /// The segment is a reset for one that belongs to no connection; `None` if that is a reset itself.
    /// RFC 9293 §3.10.7.1.
    pub fn refuse(header: &Tcp, payload_bytes: usize) -> Option<Tcp> {
        if header.flags.has(Flags::RST) {
            return None;
        }
        let len = u32::try_from(payload_bytes).unwrap_or_default()
            + u32::from(header.flags.has(Flags::SYN))
            + u32::from(header.flags.has(Flags::FIN));
        let (seq, ack, flags) = if header.flags.has(Flags::ACK) {
            (header.ack, Seq::new(0), Flags::RST)
        } else {
            (Seq::new(0), header.seq.plus(len), Flags::RST | Flags::ACK)
        };
        let (src_port, dst_port) = (header.dst_port, header.src_port);
        let options = Options::default();
        Some(Tcp { src_port, dst_port, seq, ack, flags, window: 0, urgent: 0, options })
    }
}

impl Guard {
    fn new(max: u16) -> Self {
        Self { max, second: 0, answered: 0 }
    }

    /// A segment may be answered.
    pub(super) fn allows(&mut self, now: Time) -> bool {
        let second = now.nanos() / 1_000_000_000;
        if second != self.second {
            (self.second, self.answered) = (second, 0);
        }
        self.answered = self.answered.saturating_add(1);
        self.answered <= self.max
    }
}

/// Answers a second to segments that should not have come.
const CHALLENGES_MAX: u16 = 10;

/// Answers a second to segments that came before: enough for all that a peer sends again without need, and an end to
/// ends that only answer each other.
const DUPLICATES_MAX: u16 = 1000;

/// Most chunks that wait to be sent or acknowledged.
const CHUNKS_MAX: usize = 1 << 16;

/// What hosts take, without headers.
const SEGMENT_DEFAULT_V4: u16 = 536;

/// What links take, without headers.
const SEGMENT_DEFAULT_V6: u16 = 1220;

/// A peer that says less is not believed: its segments would be all headers.
pub(super) const SEGMENT_MIN: u16 = 88;

/// A router that says less is not believed: IPv6 links take this much, RFC 8200 §5.
const MTU_MIN_V6: u16 = 1280;

/// Hosts take packets of this length, RFC 9293 §3.7.1.
const MTU_MIN_V4: u16 = 576;

const HEADER_BYTES: u16 = 20;
const STAMPS_BYTES: u16 = 12;
