//! Connections to other hosts, written down so that their peers can be told when the process that has them is killed.
//!
//! The kernel's connection manager outlives its programs and ends their connections. Here it is in the process; so each
//! device writes its connections down, and another one of the host, whichever looks first, announces their ends when it
//! has gone. A record is taken by the one that clears its name, so that each is announced once. What finds no
//! room in the table is not announced.

use super::layout::{Record, index};
use super::{Member, Registry, SlotId};
use adverb_wire::Qpn;
use adverb_wire::cm::{CommId, ConnectionRecord};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

/// The place where a connection is written down.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Recorded(usize);

impl Registry {
    /// Writes a connection of this device down; `None` if there is no room near the place where its name leads.
    pub(crate) fn record(&self, connection: &ConnectionRecord) -> Option<Recorded> {
        let records = &self.memory.records;
        let start = index(connection.id.0) % records.len();
        let places = (start..records.len()).chain(0..start).take(PLACES_MAX);
        let mine = self.slot.0 + 1;
        let is_taken = |record: &Record| {
            record.owner.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let mut free = places.filter_map(|place| Some((place, records.get(place)?)));
        let (place, record) = free.find(|(_, record)| is_taken(record))?;
        record.serial.store(self.me().serial, Ordering::Relaxed);
        record.remote_id.store(connection.remote_id.0, Ordering::Relaxed);
        record.remote_qpn.store(connection.remote_qpn.get(), Ordering::Relaxed);
        record.traffic_class.store(connection.traffic_class.into(), Ordering::Relaxed);
        store_gid(&record.local, connection.local);
        store_gid(&record.peer, connection.peer);
        record.id.store(connection.id.0, Ordering::Release);
        self.count_records(1);
        Some(Recorded(place))
    }

    /// The connection is over.
    pub(crate) fn strike(&self, recorded: Recorded) {
        if let Some(record) = self.memory.records.get(recorded.0) {
            record.id.store(0, Ordering::Relaxed);
            record.owner.store(0, Ordering::Release);
        }
        self.count_records(u32::MAX);
    }

    fn count_records(&self, more: u32) {
        let known = self.slot_at(self.slot).connections.load(Ordering::Relaxed);
        self.set_field(self.slot, |slot| &slot.connections, known.wrapping_add(more));
    }

    /// A slot is taken anew: what the device before it has written down is to be looked at.
    pub(super) fn leave_records_of(&self, slot: SlotId) {
        if self.slot_at(slot).connections.load(Ordering::Relaxed) != 0 {
            self.memory.orphans.store(1, Ordering::Release);
        }
        self.set_field(slot, |slot| &slot.connections, 0);
    }

    /// Takes what devices that have gone had written down. Looks at the table only if one has gone that had some.
    pub(crate) fn take_orphans(&self) -> Vec<ConnectionRecord> {
        let mut any = self.memory.orphans.load(Ordering::Acquire) != 0
            && self.memory.orphans.swap(0, Ordering::AcqRel) != 0;
        for slot in Self::slots().filter(|slot| *slot != self.slot) {
            let count = &self.slot_at(slot).connections;
            let said = count.load(Ordering::Acquire);
            if said != 0 && !self.is_alive(slot) {
                let seen = count.compare_exchange(said, 0, Ordering::AcqRel, Ordering::Relaxed);
                any |= seen.is_ok();
            }
        }
        let mut lives = HashMap::new();
        let mut is_gone = |record: &Record| {
            let slot = record.owner.load(Ordering::Acquire).checked_sub(1).and_then(SlotId::new);
            let serial = record.serial.load(Ordering::Relaxed);
            let member = slot.map(|slot| Member { slot, serial });
            member.is_some_and(|it| !*lives.entry(it).or_insert_with(|| self.lives(it)))
        };
        let records = self.memory.records.iter().filter(|_| any);
        let taken = records.filter_map(|record| {
            // Written last: what else the record says is of this name, or it is another one when it is taken.
            let id = Some(record.id.load(Ordering::Acquire)).filter(|id| *id != 0)?;
            if is_gone(record) { take(record, id) } else { None }
        });
        taken.collect()
    }
}

/// Takes a record of this name whose device has gone; `None` if another one was faster.
fn take(record: &Record, id: u32) -> Option<ConnectionRecord> {
    let connection = ConnectionRecord {
        local: load_gid(&record.local),
        peer: load_gid(&record.peer),
        id: CommId(id),
        remote_id: CommId(record.remote_id.load(Ordering::Relaxed)),
        remote_qpn: Qpn::new(record.remote_qpn.load(Ordering::Relaxed) & 0x00ff_ffff),
        traffic_class: u8::try_from(record.traffic_class.load(Ordering::Relaxed)).unwrap_or(0),
    };
    record.id.compare_exchange(id, 0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    record.owner.store(0, Ordering::Release);
    Some(connection)
}

fn store_gid(words: &[AtomicU32; 4], bytes: [u8; 16]) {
    let (chunks, _) = bytes.as_chunks::<4>();
    for (word, bytes) in words.iter().zip(chunks) {
        word.store(u32::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
}

fn load_gid(words: &[AtomicU32; 4]) -> [u8; 16] {
    let [a, b, c, d] = words.each_ref().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
    let mut gid = [0; 16];
    gid.iter_mut().zip([a, b, c, d].concat()).for_each(|(place, byte)| *place = byte);
    gid
}

/// Places that are looked at for a free one.
const PLACES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::super::tests::Scratch;
    use super::*;

    fn connection(id: u32) -> ConnectionRecord {
        ConnectionRecord {
            local: [1; 16],
            peer: [2; 16],
            id: CommId(id),
            remote_id: CommId(id + 1),
            remote_qpn: Qpn::new(17),
            traffic_class: 4,
        }
    }

    /// Goal: the connections of a device that has gone are handed out once, those of one that lives not at all, though
    /// it has the slot of the other one.
    #[test]
    fn what_a_gone_device_has_written_down_is_taken_once() {
        let scratch = Scratch::new();
        let [first, second, third] = [(); 3].map(|()| scratch.join().unwrap());
        let over = second.record(&connection(1)).unwrap();
        second.record(&connection(2)).unwrap();
        second.record(&connection(0x4000_0002)).unwrap();
        second.strike(over);
        assert_eq!(first.take_orphans(), []);
        for heir_of_slot in [false, true] {
            let gone = scratch.join().unwrap();
            gone.record(&connection(7)).unwrap();
            let slot = gone.slot();
            drop(gone);
            let heir = heir_of_slot.then(|| scratch.join().unwrap());
            if let Some(heir) = &heir {
                assert_eq!(heir.slot(), slot);
                heir.record(&connection(8)).unwrap();
            }
            assert_eq!(third.take_orphans(), [connection(7)]);
            assert_eq!(first.take_orphans(), []);
        }
        drop(second);
        let mut taken = first.take_orphans();
        taken.retain(|it| it.id != CommId(8));
        assert_eq!(taken, [connection(2), connection(0x4000_0002)]);
    }

    #[test]
    fn a_full_table_takes_no_more_and_looks_no_further() {
        let scratch = Scratch::new();
        let device = scratch.join().unwrap();
        let places = (0..PLACES_MAX).map(|_| device.record(&connection(3)).unwrap());
        let places: Vec<_> = places.collect();
        assert_eq!(device.record(&connection(3)), None);
        device.strike(places[9]);
        assert_eq!(device.record(&connection(3)), Some(places[9]));
    }
}
