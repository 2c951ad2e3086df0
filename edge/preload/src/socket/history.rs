//! The history of short connections: to which destinations rings are worth it.
//!
//! To lay rings and to take them away again costs what some twenty messages by them save. A program that
//! connects anew for each request would only lose. So each process remembers of each destination how many
//! connections there were over, one after the other, with next to nothing sent. After [`SHORTS`] of them
//! the next ones stay the kernel's, as long as they come soon after each other: rarer ones do not cost
//! enough to matter. One that lasts ends it.
//!
//! A rule that asks for shared memory and nothing less is not second-guessed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A destination, as a number that is not 0.
pub(crate) fn destination(peer: SocketAddr) -> u32 {
    let mut hasher = DefaultHasher::new();
    peer.hash(&mut hasher);
    let [a, b, c, d, ..] = hasher.finish().to_le_bytes();
    u32::from_le_bytes([a, b, c, d]).max(1)
}

/// Whether rings to a destination are worth it at `now_ns`.
pub(crate) fn is_worth(destination: u32, now_ns: u64) -> bool {
    HISTORY.is_worth(destination, now_ns)
}

/// A connection there has ended that has sent and received so many messages, and so many bytes.
pub(crate) fn ended(destination: u32, messages: u64, bytes: u64, now_ns: u64) {
    HISTORY.ended(destination, messages >= LASTING_MESSAGES || bytes >= LASTING_BYTES, now_ns);
}

static HISTORY: History = History::new();

/// What is known of some destinations. Threads that meet here lose a count at worst.
#[derive(Debug)]
struct History([Record; PLACES]);

#[derive(Debug)]
struct Record {
    destination: AtomicU32,
    /// Short connections since the last one that was not.
    shorts: AtomicU32,
    /// When the last of them ended.
    last_ns: AtomicU64,
}

impl History {
    const fn new() -> Self {
        Self(
            [const {
                Record {
                    destination: AtomicU32::new(0),
                    shorts: AtomicU32::new(0),
                    last_ns: AtomicU64::new(0),
                }
            }; PLACES],
        )
    }

    fn of(&self, destination: u32) -> Option<&Record> {
        self.0.get(usize::try_from(destination).unwrap_or(0) % PLACES)
    }

    fn is_worth(&self, destination: u32, now_ns: u64) -> bool {
        let o = Ordering::Relaxed;
        let known = self.of(destination).filter(|known| known.destination.load(o) == destination);
        known.is_none_or(|known| {
            known.shorts.load(o) < SHORTS || now_ns.saturating_sub(known.last_ns.load(o)) > SOON_NS
        })
    }

    fn ended(&self, destination: u32, lasted: bool, now_ns: u64) {
        let o = Ordering::Relaxed;
        let Some(known) = self.of(destination) else { return };
        if known.destination.swap(destination, o) != destination || lasted {
            known.shorts.store(0, o);
        }
        if !lasted {
            known.shorts.store(known.shorts.load(o).saturating_add(1).min(SHORTS), o);
            known.last_ns.store(now_ns, o);
        }
    }
}

/// Destinations that are remembered, unless two of them want the same place.
const PLACES: usize = 64;
/// After so many short connections there will be more.
const SHORTS: u32 = 8;
/// With fewer than ten a second, what rings cost is nothing to save.
const SOON_NS: u64 = 100_000_000;
/// A connection with so many messages, or so many bytes, is no short one.
const LASTING_MESSAGES: u64 = 20;
const LASTING_BYTES: u64 = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: u32 = 7;

    fn after(shorts: u32) -> History {
        let history = History::new();
        (0..shorts).for_each(|_| history.ended(HERE, false, 1000));
        history
    }

    #[test]
    fn many_short_ones_soon_after_each_other_are_not_worth_it() {
        assert!(after(SHORTS - 1).is_worth(HERE, 1000));
        assert!(!after(SHORTS).is_worth(HERE, 1000));
        assert!(!after(3 * SHORTS).is_worth(HERE, 1000 + SOON_NS));
        assert!(after(SHORTS).is_worth(HERE, 1001 + SOON_NS));
    }

    #[test]
    fn one_that_lasts_ends_it() {
        let history = after(SHORTS);
        history.ended(HERE, true, 1000);
        assert!(history.is_worth(HERE, 1000));
        history.ended(HERE, false, 1000);
        assert!(history.is_worth(HERE, 1000));
    }

    #[test]
    fn destinations_do_not_answer_for_each_other() {
        let history = after(SHORTS);
        let elsewhere = HERE + u32::try_from(PLACES).unwrap();
        assert!(history.is_worth(elsewhere, 1000));
        history.ended(elsewhere, false, 1000);
        assert!(history.is_worth(HERE, 1000));
        let ports = [1, 2].map(|port| destination(SocketAddr::from(([127, 0, 0, 1], port))));
        assert!(ports[0] != ports[1] && !ports.contains(&0), "{ports:?}");
    }
}
