//! Which slot has the connection of a tuple: a hash table with chains, as large as it will ever be.

use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::keyed::Key;
use crate::tuple::Tuple;

/// Slots by tuple.
#[derive(Debug)]
pub(super) struct Table {
    /// The first slot of each chain.
    heads: Vec<Option<u32>>,
    /// By slot: its tuple, and the next slot of its chain.
    links: Vec<Option<Link>>,
    key: Key,
    /// The slot that was found last.
    last: u32,
    /// Tuples that were compared, since the begin.
    compared: u64,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    tuple: Tuple,
    next: Option<u32>,
}

impl Table {
    pub(super) fn new(slots: usize, key: Key) -> Self {
        let heads = vec![None; slots.next_power_of_two()];
        Self { heads, links: vec![None; slots], key, last: 0, compared: 0 }
    }

    /// Tuples that were compared, since the begin.
    pub(super) fn compared(&self) -> u64 {
        self.compared
    }

    pub(super) fn find(&mut self, tuple: &Tuple) -> Option<u32> {
        // A hash costs more than what most segments need.
        if self.link(self.last).is_some_and(|link| link.tuple == *tuple) {
            self.compared += 1;
            return Some(self.last);
        }
        let mut at = self.heads.get(self.chain(tuple)).copied().flatten();
        while let Some(slot) = at {
            self.compared += 1;
            let link = self.link(slot)?;
            if link.tuple == *tuple {
                self.last = slot;
                return Some(slot);
            }
            at = link.next;
        }
        None
    }

    /// The slot, which has no tuple, has this one, which no slot has.
    pub(super) fn insert(&mut self, tuple: Tuple, slot: u32) {
        let chain = self.chain(&tuple);
        let Some(head) = self.heads.get_mut(chain) else {
            return;
        };
        let next = head.replace(slot);
        if let Some(link) = index(slot).and_then(|slot| self.links.get_mut(slot)) {
            *link = Some(Link { tuple, next });
        }
    }

    /// The slot has no tuple any more.
    pub(super) fn remove(&mut self, slot: u32) {
        let Some(link) = index(slot).and_then(|slot| self.links.get_mut(slot)?.take()) else {
            return;
        };
        let chain = self.chain(&link.tuple);
        let mut at = self.heads.get(chain).copied().flatten();
        if at == Some(slot) {
            if let Some(head) = self.heads.get_mut(chain) {
                *head = link.next;
            }
            return;
        }
        while let Some(before) = at {
            at = self.link(before).and_then(|link| link.next);
            if at == Some(slot) {
                let before = index(before).and_then(|before| self.links.get_mut(before));
                if let Some(Some(before)) = before {
                    before.next = link.next;
                }
                return;
            }
        }
    }

    fn link(&self, slot: u32) -> Option<Link> {
        index(slot).and_then(|slot| self.links.get(slot).copied().flatten())
    }

    fn chain(&self, tuple: &Tuple) -> usize {
        let hash = self.key.hash(words(tuple));
        usize::try_from(hash).unwrap_or_default() & (self.heads.len() - 1)
    }
}

/// A tuple as words, for the hash.
pub(super) fn words(tuple: &Tuple) -> [u64; 5] {
    let [local, remote] = [tuple.local, tuple.remote].map(|address| match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    });
    let halves = |address: u128| {
        let [b0, b1, b2, b3, b4, b5, b6, b7, rest @ ..] = address.to_be_bytes();
        (u64::from_be_bytes([b0, b1, b2, b3, b4, b5, b6, b7]), u64::from_be_bytes(rest))
    };
    let ports = u64::from(tuple.local_port) << 16 | u64::from(tuple.remote_port);
    let ((l0, l1), (r0, r1)) = (halves(local), halves(remote));
    [l0, l1, r0, r1, ports]
}

fn index(slot: u32) -> Option<usize> {
    usize::try_from(slot).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(port: u16) -> Tuple {
        let (local, remote) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        Tuple { local, local_port: 80, remote, remote_port: port }
    }

    #[test]
    fn slots_are_found_until_they_are_removed_in_any_order() {
        let mut table = Table::new(100, Key([1, 2]));
        for port in 0..100 {
            table.insert(tuple(port), port.into());
        }
        for step in 0..100 {
            let gone = step * 37 % 100;
            table.remove(gone.into());
            assert_eq!(table.find(&tuple(gone)), None);
            for later in step + 1..100 {
                let kept = later * 37 % 100;
                assert_eq!(table.find(&tuple(kept)), Some(kept.into()));
            }
        }
        table.remove(5);
        assert!(table.heads.iter().all(Option::is_none));
    }
}
