//! The receiving half of a connection: what is acceptable, what is kept, what is owed to the peer.

use core::time::Duration;

use super::blocks::Recent;
use super::config::Config;
use super::inbox::{Inbox, Placed};
use super::options::{SackBlocks, TimeStamps};
use super::piece::{Piece, Received};
use super::position::{Origin, count, length};
use crate::time::{Time, is_due};

/// The receiving half of a connection.
#[derive(Debug)]
pub(super) struct Receiver<B> {
    pub(super) origin: Origin,
    inbox: Inbox<B>,
    /// Bytes that may wait for the program.
    buffer: u64,
    /// Our windows count units of two to the power of this many bytes.
    pub(super) scale: u8,
    /// Position after the last byte that the peer was ever allowed to send.
    limit: u64,
    /// The limit that it was told last.
    told: u64,
    /// The position that was acknowledged last.
    acked: u64,
    blocks: Recent,
    /// What arrived twice, and is to be reported.
    twice: Option<(u64, u64)>,
    /// Position of the FIN, once one has come.
    fin: Option<u64>,
    /// The FIN has come, and all before it.
    ended: bool,
    owed: Owed,
    /// The peer's time stamp to echo, and when it came; RFC 7323's TS.Recent.
    pub(super) stamp: Option<(u32, Time)>,
    /// Nothing is kept for the program any more.
    pub(super) discards: bool,
}

/// What is owed to the peer.
#[derive(Clone, Copy, Debug)]
struct Owed {
    /// An acknowledgement, at once.
    now: bool,
    /// An acknowledgement, at the latest then.
    at: Option<Time>,
    /// Bytes that have arrived and are not acknowledged.
    bytes: u64,
    /// The longest payload that has come: a full segment, as far as is known.
    full: u64,
    /// Segments that are acknowledged at once still, as the peer's window grows by acknowledgements.
    quick: u8,
    delay: Duration,
    always: bool,
}

/// How a segment lies to the window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fit {
    /// It has nothing that is new, or nothing that was allowed.
    Outside,
    /// Part of it, at least, is new and allowed; or it has no length and lies within.
    Inside,
}

impl<B: AsRef<[u8]>> Receiver<B> {
    pub(super) fn new(config: &Config) -> Self {
        let buffer = u64::from(config.receive_bytes_max.clamp(1, WINDOW_MAX));
        let owed = Owed {
            now: false,
            at: None,
            bytes: 0,
            full: 1,
            quick: QUICK,
            delay: config.ack_delay,
            always: config.quick_ack,
        };
        Self {
            origin: Origin(super::seq::Seq::new(0)),
            inbox: Inbox::new(config.receive_packets_max.max(1), early_packets_max(buffer)),
            buffer,
            scale: 0,
            limit: 0,
            told: 0,
            acked: 0,
            blocks: Recent::default(),
            twice: None,
            fin: None,
            ended: false,
            owed,
            stamp: None,
            discards: false,
        }
    }

    /// The window scale to offer: the smallest with which the buffer fits a window.
    pub(super) fn scale_to_offer(&self) -> u8 {
        (0..14).find(|scale| self.buffer >> scale <= u64::from(u16::MAX)).unwrap_or(14)
    }

    /// The peer's SYN has come. `limit` is what our SYN allows.
    pub(super) fn begin(&mut self, origin: Origin) {
        self.origin = origin;
        self.limit = 1 + self.buffer.min(u64::from(u16::MAX));
        self.told = self.limit;
    }

    /// The connection is established already: all before the first byte has come, and the peer was allowed so many bytes.
    pub(super) fn resume(&mut self, origin: Origin, window: u64) {
        self.origin = origin;
        self.limit = 1 + window;
        self.told = self.limit;
        self.acked = 1;
    }

    /// Bytes that the peer is allowed to send still.
    pub(super) fn allowed(&self) -> u64 {
        self.limit.saturating_sub(self.next())
    }

    /// The next position that has not come, the FIN included.
    pub(super) fn next(&self) -> u64 {
        self.inbox.next() + u64::from(self.ended)
    }

    /// The position that was acknowledged last.
    pub(super) fn acked(&self) -> u64 {
        self.acked
    }

    /// The FIN has come, and all before it.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Bytes that wait for the program.
    pub(super) fn ready_bytes(&self) -> u64 {
        self.inbox.ready_bytes()
    }

    /// The next bytes for the program. An acknowledgement may be owed then, as the window has grown.
    pub(super) fn take(&mut self, segment: u64) -> Option<Received<B>> {
        let received = self.inbox.take()?;
        self.on_room(segment);
        Some(received)
    }

    /// Copies the next bytes for the program as [`Inbox::peek`] does.
    pub(super) fn peek(&self, skip: usize, to: &mut [u8]) -> usize {
        self.inbox.peek(skip, to)
    }

    /// Copies the next bytes for the program; an acknowledgement may be owed then, too.
    pub(super) fn read(&mut self, to: &mut [u8], segment: u64) -> usize {
        let len = self.inbox.peek(0, to);
        if len > 0 {
            self.inbox.consume(len);
            self.on_room(segment);
        }
        len
    }

    /// The program has read something.
    fn on_room(&mut self, segment: u64) {
        let left = self.told.saturating_sub(self.next());
        let gained = self.window_limit().saturating_sub(self.limit);
        // RFC 9293 §3.8.6.2.2: no small steps.
        let step =
            if left < segment { self.step_min(segment) } else { segment.max(self.buffer / 4) };
        if gained >= step && !self.ended {
            self.owed.now = true;
        }
    }

    /// The smallest step by which the window opens: RFC 9293 §3.8.6.2.2.
    fn step_min(&self, segment: u64) -> u64 {
        segment.min(self.buffer / 2).max(1)
    }

    /// The limit that the buffer allows now.
    fn window_limit(&self) -> u64 {
        let free = self.buffer.saturating_sub(self.inbox.ready_bytes());
        self.told.max(self.inbox.next() + free)
    }

    /// Whether the positions `start..end` are acceptable: RFC 9293 §3.10.7.4.
    pub(super) fn fit(&self, start: u64, end: u64) -> Fit {
        let next = self.next();
        let allowed = start < self.limit || start == next;
        let new = if start == end { start >= next } else { end > next };
        if allowed && new { Fit::Inside } else { Fit::Outside }
    }

    /// The position is at most a window before what comes next.
    pub(super) fn is_of_late(&self, start: u64) -> bool {
        (self.next().saturating_sub(self.buffer)..=self.next()).contains(&start)
    }

    /// All of `start..end` has come before.
    pub(super) fn on_outside(&mut self, start: u64, end: u64) {
        self.owed.now = true;
        if start < end && end <= self.next() {
            self.twice = Some((start, end));
        }
    }

    /// Takes a payload that begins at `start` and whose segment fits. Returns whether something is ready.
    pub(super) fn on_payload(&mut self, start: u64, mut piece: Piece<B>, now: Time) -> bool {
        let whole = count(piece.len());
        piece.truncate(length(self.limit.saturating_sub(start)));
        if count(piece.len()) < whole || self.ended {
            self.owed.now = true; // The peer should know what the window is.
        }
        if piece.is_empty() || self.ended {
            return false;
        }
        self.owed.full = self.owed.full.max(count(piece.len()));
        let (end, before) = (start + count(piece.len()), self.inbox.next());
        let had_early = self.inbox.has_early();
        match self.inbox.insert(start, piece) {
            Placed::Ready => {
                self.blocks.pass(self.inbox.next());
                self.owe(self.inbox.next() - before, had_early, now);
                if self.discards {
                    while self.inbox.take().is_some() {}
                }
                return true;
            }
            Placed::Early => self.blocks.add(start, end),
            Placed::Twice => self.twice = Some((start, end)),
            Placed::Dropped { from } => {
                self.blocks.add(start, end);
                self.blocks.forget_from(from);
            }
        }
        self.owed.now = true;
        false
    }

    /// So many bytes that come next would be ready at once, with nothing before or behind them.
    pub(super) fn expects(&self, bytes: u64) -> bool {
        (1..=self.limit.saturating_sub(self.inbox.next())).contains(&bytes)
            && self.inbox.is_empty()
            && self.fin.is_none()
            && !self.ended
            && !self.discards
    }

    /// They have come, and the program has them: as [`Receiver::on_payload`] and [`Receiver::take`].
    pub(super) fn pass(&mut self, bytes: u64, segment: u64, now: Time) {
        debug_assert!(self.blocks.is_empty(), "nothing is early");
        self.owed.full = self.owed.full.max(bytes);
        self.inbox.pass(bytes);
        self.owe(bytes, false, now);
        self.on_room(segment);
    }

    /// Owes an acknowledgement of `bytes`: RFC 5681 §4.2.
    fn owe(&mut self, bytes: u64, at_once: bool, now: Time) {
        self.owed.bytes += bytes;
        let quick = self.owed.quick > 0 || self.owed.always;
        self.owed.quick = self.owed.quick.saturating_sub(1);
        // Every second full segment, and whatever fills or makes a hole.
        if at_once || quick || self.owed.bytes >= 2 * self.owed.full {
            self.owed.now = true;
        } else if self.owed.at.is_none() {
            self.owed.at = Some(now.plus(self.owed.delay));
        }
    }

    /// A FIN has come at `position`. Returns whether the stream has ended.
    pub(super) fn on_fin(&mut self, position: u64) -> bool {
        self.owed.now = true;
        if self.ended || position >= self.limit && position != self.next() {
            return false;
        }
        let fin = *self.fin.get_or_insert(position);
        self.ended = fin == self.inbox.next();
        self.ended
    }

    /// Payload has become ready: a FIN that came early may be next. Returns whether the stream has ended.
    pub(super) fn meets_fin(&mut self) -> bool {
        if !self.ended && self.fin == Some(self.inbox.next()) {
            self.ended = true;
            self.owed.now = true;
            return true;
        }
        false
    }

    /// The next segments are acknowledged at once, as at the begin, or not any longer; what is owed leaves with that.
    pub(super) fn set_quick(&mut self, quick: bool) {
        self.owed.quick = if quick { QUICK } else { 0 };
        self.owed.now |= quick && self.owed.at.is_some();
    }

    /// An acknowledgement is owed, at once.
    pub(super) fn owe_now(&mut self) {
        self.owed.now = true;
    }

    /// An acknowledgement is to leave now.
    pub(super) fn owes(&self, now: Time) -> bool {
        self.owed.now || is_due(self.owed.at, now)
    }

    /// Something is to be reported that needs an acknowledgement without payload.
    pub(super) fn has_reports(&self) -> bool {
        self.owed.now && (self.twice.is_some() || !self.blocks.is_empty())
    }

    /// When an acknowledgement is to leave.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.owed.at
    }

    /// A segment leaves, and acknowledges all there is: the window that it says, scaled if `scaled`.
    pub(super) fn acknowledge(&mut self, scaled: bool, segment: u64) -> u16 {
        let scale = if scaled { self.scale } else { 0 };
        let next = self.next();
        let limit = self.window_limit();
        let opens = limit >= self.limit.saturating_add(self.step_min(segment));
        let limit = if opens { limit } else { self.limit };
        let window = (limit.saturating_sub(next) >> scale).min(u64::from(u16::MAX));
        // Rounded down, the window may seem to shrink by less than a unit: what was allowed stays so. RFC 7323 §2.4.
        self.told = next + (window << scale);
        self.limit = self.limit.max(self.told);
        self.acked = next;
        (self.owed.now, self.owed.at, self.owed.bytes) = (false, None, 0);
        u16::try_from(window).unwrap_or(u16::MAX)
    }

    /// What to report beside the acknowledgement. What arrived twice is reported once.
    pub(super) fn report(&mut self) -> SackBlocks {
        self.blocks.option(self.origin, self.twice.take())
    }

    /// The peer's time stamp is older than what came before: RFC 7323 §5.
    pub(super) fn is_stale(&self, stamps: TimeStamps, now: Time) -> bool {
        self.stamp.is_some_and(|(recent, at)| {
            stamps.value.wrapping_sub(recent).cast_signed() < 0 && now.since(at) < STAMP_KEPT
        })
    }

    /// Takes the time stamp of an acceptable segment at `start`: RFC 7323 §4.3.
    pub(super) fn on_stamps(&mut self, stamps: TimeStamps, start: u64, now: Time) {
        if start <= self.acked && !self.is_stale(stamps, now) {
            self.stamp = Some((stamps.value, now));
        }
    }
}

/// Segments at the begin of a connection that are acknowledged at once.
const QUICK: u8 = 16;

/// The largest window: RFC 7323 §2.3.
const WINDOW_MAX: u32 = 1 << 30;

/// How long a time stamp says what is old: RFC 7323 §5.5.
const STAMP_KEPT: Duration = Duration::from_secs(24 * 24 * 3600);

/// Most packets that are kept before the ones that they follow: a window of the shortest segments that hosts choose.
fn early_packets_max(buffer: u64) -> usize {
    length(buffer / EARLY_BYTES) + EARLY_PACKETS_MIN
}

/// A full segment has at least as many bytes: RFC 9293 §3.7.1 has 536 without options.
const EARLY_BYTES: u64 = 512;

/// Early packets that are kept however small the window is.
const EARLY_PACKETS_MIN: usize = 4;
