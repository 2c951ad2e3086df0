//! A bottleneck: one line that several links lead through, with a queue in front of it, as at a port of a switch.

use crate::link::Datagram;
use adverb_engine::Time;

/// A line with a queue in front of it.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck {
    /// What the line carries, in bits a second.
    pub bits_per_second: u64,
    /// What does not fit so many bytes of queue vanishes.
    pub queue_bytes: u64,
    /// What finds more bytes in the queue than this is marked; `u64::MAX`: nothing is.
    pub mark_bytes: u64,
}

/// Statistics of a bottleneck.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Passage {
    /// Datagrams that came through.
    pub carried: u64,
    /// Datagrams that found no room.
    pub dropped: u64,
    /// Datagrams that came through with a mark.
    pub marked: u64,
}

/// A bottleneck at work.
#[derive(Debug)]
pub(crate) struct Switch {
    bottleneck: Bottleneck,
    free_at: Time,
    pub(crate) passage: Passage,
}

impl Switch {
    pub(crate) fn new(bottleneck: Bottleneck) -> Self {
        Self { bottleneck, free_at: Time::ZERO, passage: Passage::default() }
    }

    /// Takes a datagram; says when it has left, if there is room for it, and marks it.
    pub(crate) fn carry(&mut self, datagram: &mut Datagram, now: Time) -> Option<Time> {
        let Bottleneck { bits_per_second, queue_bytes, mark_bytes } = self.bottleneck;
        let len = u64::try_from(datagram.bytes.len()).unwrap_or(0) + HEADERS_BYTES;
        let wait_ns = self.free_at.nanos().saturating_sub(now.nanos());
        let queued = wait_ns.saturating_mul(bits_per_second) / BITS_NS;
        if queued + len > queue_bytes {
            self.passage.dropped += 1;
            return None;
        }
        if queued > mark_bytes {
            datagram.marked = true;
            self.passage.marked += 1;
        }
        self.passage.carried += 1;
        self.free_at = self.free_at.max(now).plus_nanos(len * BITS_NS / bits_per_second);
        Some(self.free_at)
    }
}

/// Bits in a byte, times nanoseconds in a second.
const BITS_NS: u64 = 8_000_000_000;
/// Ethernet with preamble and gap, IPv4 and UDP, before and after what a datagram carries.
const HEADERS_BYTES: u64 = 38 + 20 + 8;
