//! Paths to peers: what the queue pairs of a port have found out about them, for those that come later.
//!
//! Each queue pair has a congestion window of its own (`window.rs`), and begins with a small one, as nothing is known
//! of its path. Over a way of a millisecond it takes six round trips until a megabyte is under way at once. But most
//! ports connect to the same peers again and again, or with several queue pairs. So a newcomer begins with an equal
//! share of the windows that others had there, in the manner of RFC 9040 (TCP control block sharing).

use crate::attributes::Gid;
use crate::time::Time;
use adverb_wire::Qpn;
use alloc::collections::BTreeMap;

/// Peers that are remembered at once.
const PEERS_MAX: usize = 1024;
/// How long what is known of a path without queue pairs holds, in nanoseconds.
const KNOWN_NS: u64 = 60_000_000_000;

/// What is known of the way to a peer.
#[derive(Clone, Copy, Debug)]
struct Path {
    /// Queue pairs that are connected to it.
    users: u32,
    /// The one that came last.
    latest: Qpn,
    /// Packets that all of its queue pairs together could have under way; 0: nothing is known.
    packets: u32,
    /// When that was found out.
    at: Time,
}

/// Paths to the peers of a port.
#[derive(Debug, Default)]
pub struct Paths {
    known: BTreeMap<Gid, Path>,
}

impl Paths {
    /// The queue pair that was connected to this peer last, if it is still: its window is worth a look before the
    /// next one comes.
    pub fn latest(&self, peer: Gid) -> Option<Qpn> {
        self.known.get(&peer).filter(|path| path.users > 0).map(|path| path.latest)
    }

    /// One of the queue pairs that are connected to the peer has a window of so many packets.
    pub fn note(&mut self, peer: Gid, window: u32, now: Time) {
        if let Some(path) = self.known.get_mut(&peer) {
            path.packets = window.saturating_mul(path.users.max(1));
            path.at = now;
        }
    }

    /// A queue pair connects to the peer. Returns the window that it begins with, in packets, if something is known.
    pub fn join(&mut self, peer: Gid, number: Qpn, now: Time) -> Option<u32> {
        if !self.known.contains_key(&peer) && !self.make_room(now) {
            return None;
        }
        let fresh = Path { users: 0, latest: number, packets: 0, at: now };
        let path = self.known.entry(peer).or_insert(fresh);
        if path.users == 0 && path.at.plus_nanos(KNOWN_NS) < now {
            path.packets = 0;
        }
        path.users = path.users.saturating_add(1);
        path.latest = number;
        Some(path.packets / path.users).filter(|window| *window > 0)
    }

    /// A queue pair that had joined goes, with this window if it has found one out.
    pub fn leave(&mut self, peer: Gid, window: Option<u32>, now: Time) {
        if let Some(window) = window {
            self.note(peer, window, now);
        }
        if let Some(path) = self.known.get_mut(&peer) {
            // The rest gets what this one had: while one of them is there, it is asked anew.
            path.users = path.users.saturating_sub(1);
        }
    }

    /// There is room for one more peer, perhaps in the place of one that is not connected to.
    fn make_room(&mut self, now: Time) -> bool {
        if self.known.len() < PEERS_MAX {
            return true;
        }
        self.known.retain(|_, path| path.users > 0 || path.at.plus_nanos(KNOWN_NS) >= now);
        if self.known.len() >= PEERS_MAX {
            let unused = self.known.iter().filter(|(_, path)| path.users == 0);
            let Some(oldest) =
                unused.min_by_key(|(_, path)| path.at.nanos()).map(|(peer, _)| *peer)
            else {
                return false;
            };
            self.known.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Gid = Gid([7; 16]);

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_newcomer_begins_with_its_share_of_what_the_path_bore() {
        let mut paths = Paths::default();
        assert_eq!(paths.join(PEER, Qpn::new(2), at(1)), None);
        assert_eq!(paths.latest(PEER), Some(Qpn::new(2)));
        paths.note(PEER, 256, at(2));
        assert_eq!(paths.join(PEER, Qpn::new(3), at(2)), Some(128));
        assert_eq!(paths.latest(PEER), Some(Qpn::new(3)));
        paths.note(PEER, 128, at(3));
        paths.leave(PEER, Some(100), at(4));
        paths.leave(PEER, None, at(4));
        assert_eq!(paths.latest(PEER), None);
        assert_eq!(paths.join(PEER, Qpn::new(4), at(5)), Some(200));
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let mut paths = Paths::default();
        paths.join(PEER, Qpn::new(2), at(1));
        paths.leave(PEER, Some(256), at(2));
        assert_eq!(paths.join(PEER, Qpn::new(3), at(63)), None);
    }

    #[test]
    fn peers_without_end_take_no_memory_without_end() {
        let mut paths = Paths::default();
        let peer = |number: u32| Gid(u128::from(number).to_be_bytes());
        for number in 0..5000 {
            paths.join(peer(number), Qpn::new(2), at(1));
            if number >= 100 {
                paths.leave(peer(number), Some(64), at(1));
            }
        }
        assert_eq!(paths.known.len(), PEERS_MAX);
        assert!((0..100).all(|number| paths.latest(peer(number)).is_some()));
    }
}
