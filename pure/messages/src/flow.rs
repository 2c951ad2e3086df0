//! The counts of one side, and what they allow.

#[cfg(test)]
mod tests;

use crate::header::{Header, Kind};
use core::fmt;

/// Messages of counts that can be on their way without an offer.
pub const COUNTS_MAX: u32 = 2;
/// Offers that the peer has not taken, at most.
pub const OFFERS_MAX: u32 = 8;
/// Receives that are never granted: for counts, and one for each offer.
pub const RECEIVES_KEPT: u32 = COUNTS_MAX + OFFERS_MAX;
/// Places of the send queue that data leaves for counts, a READ, and the question for the peer's facts.
pub const SENDS_KEPT: u32 = 4;
/// Bytes of [`Facts`].
pub const FACTS_BYTES: usize = 3 * size_of::<u64>();

/// What a side tells the other of itself before the first message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Facts {
    /// Receives that may be used from the start.
    pub receives: u32,
    /// Bytes of a message that fit a receive, behind its header.
    pub block_bytes: usize,
    /// Bytes of the longest message that is received.
    pub message_max: usize,
}

/// A peer that breaks the rules, and which.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Unruly(pub &'static str);

impl fmt::Display for Unruly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for Unruly {}

impl Facts {
    /// Three big-endian words.
    pub fn emit(self) -> [u8; FACTS_BYTES] {
        let word = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let words = [u64::from(self.receives), word(self.block_bytes), word(self.message_max)];
        let mut out = [0; FACTS_BYTES];
        for (to, from) in out.iter_mut().zip(words.into_iter().flat_map(u64::to_be_bytes)) {
            *to = from;
        }
        out
    }

    /// Reads what a peer with blocks of at least `block_min` bytes says.
    ///
    /// # Errors
    ///
    /// A peer that could never be sent a message.
    pub fn parse(bytes: &[u8; FACTS_BYTES], block_min: usize) -> Result<Self, Unruly> {
        let mut words = bytes.chunks_exact(size_of::<u64>()).map(|word| {
            word.iter().fold(0, |number, byte| (number << u8::BITS) | u64::from(*byte))
        });
        let mut word = || words.next().unwrap_or(0);
        let facts = Self {
            receives: u32::try_from(word()).unwrap_or(0),
            block_bytes: usize::try_from(word()).unwrap_or(usize::MAX),
            message_max: usize::try_from(word()).unwrap_or(usize::MAX),
        };
        if facts.receives < 2 || facts.block_bytes < block_min {
            return Err(Unruly("it cannot receive anything"));
        }
        Ok(facts)
    }
}

/// Flow control of one side. All counts are since the beginning, modulo 2³².
#[derive(Clone, Debug)]
pub struct Flow {
    /// Receives of ours that the peer could use from the start, and the peer's that we could.
    receives: u32,
    peer_receives: u32,
    /// Messages that were sent and used a grant, and what the peer granted beyond its receives.
    sent: u32,
    granted_by_peer: u32,
    /// What was granted to the peer, and of that what it was told.
    granted: u32,
    granted_told: u32,
    /// Offers that were made, and of those what the peer has taken.
    offered: u32,
    taken_by_peer: u32,
    /// Offers of the peer's that have come, that were taken, and of the latter what it was told.
    heard: u32,
    taken: u32,
    taken_told: u32,
}

impl Flow {
    /// The beginning of a side with `receives` posted beside [`RECEIVES_KEPT`], whose peer has `peer_receives`.
    pub fn new(receives: u32, peer_receives: u32) -> Self {
        Self {
            receives,
            peer_receives,
            sent: 0,
            granted_by_peer: 0,
            granted: 0,
            granted_told: 0,
            offered: 0,
            taken_by_peer: 0,
            heard: 0,
            taken: 0,
            taken_told: 0,
        }
    }

    /// Messages and offers that may be sent now.
    pub fn credit(&self) -> u32 {
        self.peer_receives.wrapping_add(self.granted_by_peer).wrapping_sub(self.sent)
    }

    /// Offers that the peer has not taken.
    pub fn offers(&self) -> u32 {
        self.offered.wrapping_sub(self.taken_by_peer)
    }

    /// The number of the next offer, if one may be made now.
    pub fn next_offer(&self) -> Option<u32> {
        (self.credit() > 0 && self.offers() < OFFERS_MAX).then_some(self.offered)
    }

    /// The peer has taken the offer of this number.
    pub fn is_taken(&self, number: u32) -> bool {
        self.taken_by_peer.wrapping_sub(number).cast_signed() > 0
    }

    /// The peer may be waiting for counts that it was not told.
    pub fn owes_counts(&self) -> bool {
        self.granted.wrapping_sub(self.granted_told) >= self.receives.div_ceil(2)
            || self.taken != self.taken_told
    }

    /// The header of something that is sent now. Data and offers use a grant, which there has to be.
    pub fn send(&mut self, kind: Kind) -> Header {
        match kind {
            Kind::Counts => {}
            Kind::Data => self.sent = self.sent.wrapping_add(1),
            Kind::Offer { .. } => {
                self.sent = self.sent.wrapping_add(1);
                self.offered = self.offered.wrapping_add(1);
            }
        }
        self.granted_told = self.granted;
        self.taken_told = self.taken;
        Header { kind, granted: self.granted, taken: self.taken }
    }

    /// Takes in the header of something that has come; returns how many offers, oldest first, the peer has taken.
    ///
    /// # Errors
    ///
    /// A peer that counts what was not, or offers more than it may. The connection is to end then.
    pub fn receive(&mut self, header: Header) -> Result<u32, Unruly> {
        let granted = header.granted.wrapping_sub(self.granted_by_peer);
        if granted > self.sent.wrapping_sub(self.granted_by_peer) {
            return Err(Unruly("it grants what was not used"));
        }
        let taken = header.taken.wrapping_sub(self.taken_by_peer);
        if taken > self.offers() {
            return Err(Unruly("it takes what was not offered"));
        }
        if matches!(header.kind, Kind::Offer { .. }) {
            if self.heard.wrapping_sub(self.taken) >= OFFERS_MAX {
                return Err(Unruly("it offers more than it may"));
            }
            self.heard = self.heard.wrapping_add(1);
        }
        self.granted_by_peer = header.granted;
        self.taken_by_peer = header.taken;
        Ok(taken)
    }

    /// Grants a receive anew, which was posted again.
    pub fn grant(&mut self) {
        self.granted = self.granted.wrapping_add(1);
    }

    /// Counts the oldest offer of the peer's as taken.
    pub fn take(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }
}
