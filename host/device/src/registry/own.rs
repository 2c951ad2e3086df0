//! Own entries of a device in the registry, remembered, compared and repaired.
//!
//! Every process of the user can write everywhere in the registry (`mod.rs`), also one whose memory is corrupt. So each
//! device remembers what it has written there, compares now and then, and writes again what differs: its slot, its
//! blocks of queue pair numbers, its claims on names, and for newcomers the head of the file. What others have there is
//! theirs to put right. Places in groups of sockets are looked after where the sockets are (`progress/rx_sockets.rs`).

use super::layout::{Layout, MAGIC, Slot, VERSION};
use super::{Block, DomainName, Registry, SlotId};
use std::sync::atomic::{AtomicU32, Ordering};

/// Entries of a device in the registry.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// What it has written into its slot.
    slot: Slot,
    blocks: Vec<Block>,
    claims: Vec<(usize, DomainName)>,
    /// As it was when the device joined.
    secret: u64,
    /// How often something was put right that another live device is said to have.
    contests: u32,
}

/// Words of a slot that only its device writes. What says that the others hold comes last.
const FIELDS: [fn(&Slot) -> &AtomicU32; 11] = [
    |slot| &slot.pid,
    |slot| &slot.processes,
    |slot| &slot.serial,
    |slot| &slot.interface,
    |slot| &slot.manages,
    |slot| &slot.connections,
    |slot| &slot.nonce_low,
    |slot| &slot.nonce_high,
    |slot| &slot.counters,
    |slot| &slot.relay_port,
    |slot| &slot.shm,
];
/// Two devices have the same numbers if the first one's claim was wiped out when the second looked for free ones. Each
/// says that they are its own so many times, then leaves it at that.
const CONTESTS_MAX: u32 = 1 << 16;

impl Registry {
    /// Writes a word of `slot`, which is this device's.
    pub(super) fn set_field(&self, slot: SlotId, field: fn(&Slot) -> &AtomicU32, value: u32) {
        field(&self.own.lock().slot).store(value, Ordering::Relaxed);
        field(self.slot_at(slot)).store(value, Ordering::Release);
    }

    pub(super) fn remember_secret(&self, secret: u64) {
        self.own.lock().secret = secret;
    }

    pub(super) fn remember_block(&self, block: Block) {
        self.own.lock().blocks.push(block);
    }

    pub(super) fn remember_claim(&self, place: usize, name: DomainName) {
        self.own.lock().claims.push((place, name));
    }

    pub(super) fn forget_claim(&self, place: usize) {
        self.own.lock().claims.retain(|(known, _)| *known != place);
    }

    /// What devices of this registry know and other users do not.
    pub(crate) fn secret(&self) -> u64 {
        self.own.lock().secret
    }

    /// Puts right what others have written over of this device's part; says how many places that were.
    pub(crate) fn mend(&self) -> u64 {
        let mut own = self.own.lock();
        let Own { slot, blocks, claims, contests, .. } = &mut *own;
        let mut mended = 0;
        for field in FIELDS {
            let value = field(slot).load(Ordering::Relaxed);
            mended += u64::from(put_right(field(self.slot_at(self.slot)), value));
        }
        for block in blocks {
            mended += u64::from(self.mend_owner(self.memory.block(*block), contests));
        }
        for (place, name) in claims {
            let Some(domain) = self.memory.domains.get(*place) else { continue };
            let words = domain.name.iter().zip(name.words());
            let renamed = words.filter(|(place, word)| put_right(place, *word)).count() > 0;
            if self.mend_owner(&domain.owner, contests) || renamed {
                self.memory.domain_changes.fetch_add(1, Ordering::Release);
                mended += 1;
            }
        }
        mended
    }

    /// Puts right what newcomers look at first, as [`Registry::mend`].
    pub(super) fn mend_head(&self) -> u64 {
        let Layout { magic, version, secret_low, secret_high, .. } = &*self.memory;
        let [low, high] = halves(self.secret());
        let head = [(magic, MAGIC), (version, VERSION), (secret_low, low), (secret_high, high)];
        let wrong = head.into_iter().filter(|(word, value)| put_right(word, *value));
        u64::try_from(wrong.count()).unwrap_or(u64::MAX)
    }

    /// Lets a word say again that this device has the place.
    fn mend_owner(&self, word: &AtomicU32, contests: &mut u32) -> bool {
        let (found, mine) = (word.load(Ordering::Acquire), self.slot.0 + 1);
        if found == mine {
            return false;
        }
        if let Some(other) = found.checked_sub(1).and_then(SlotId::new) {
            if *contests >= CONTESTS_MAX {
                return false;
            }
            *contests += u32::from(self.is_alive(other));
        }
        word.compare_exchange(found, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Two words, the lower one first.
pub(super) fn halves(number: u64) -> [u32; 2] {
    [number & 0xffff_ffff, number >> 32].map(|half| u32::try_from(half).unwrap_or(0))
}

fn put_right(word: &AtomicU32, value: u32) -> bool {
    let is_wrong = word.load(Ordering::Relaxed) != value;
    if is_wrong {
        word.store(value, Ordering::Release);
    }
    is_wrong
}

#[cfg(test)]
mod tests {
    use super::super::tests::Scratch;
    use super::*;
    use adverb_sys::memory::Mapping;

    /// Writes nonsense to every word.
    fn scribble(registry: &Registry, nonsense: u32) {
        let memory = Mapping::shared(&registry.file, size_of::<Layout>()).unwrap();
        for at in (0..size_of::<Layout>()).step_by(4) {
            memory.atomic_u32(at).unwrap().store(nonsense, Ordering::Relaxed);
        }
    }

    /// Goal: nonsense in the registry lasts until its owner looks. Method: every word is overwritten, with each of
    /// some patterns, while two devices are open.
    #[test]
    fn what_a_device_has_is_put_right_and_counted_once() {
        let scratch = Scratch::new();
        let [first, second] = [(); 2].map(|()| scratch.join().unwrap());
        first.set_relay_port(99);
        first.set_shm(3, 0x1_0000_0002, 7);
        first.set_counters(5);
        let block = first.claim_block().unwrap();
        let name = DomainName::from_words([1, 2, 3, 4, 5]);
        let claim = first.claim_domain(name, |_| Ok(())).unwrap();
        let (me, secret) = (first.me(), first.secret());
        assert_eq!((first.mend(), first.mend_head()), (0, 0));
        for nonsense in [0, 1, 2, 7, 0x8000_0000, u32::MAX] {
            scribble(&second, nonsense);
            assert!(first.mend_head() >= 3, "{nonsense}");
            assert!(first.mend() > 5, "{nonsense}");
            second.mend();
            assert_eq!((first.mend(), first.mend_head()), (0, 0), "{nonsense}");
            assert_eq!(second.owner(block.first()), Some(first.slot()));
            assert_eq!(second.relay_port(first.slot()), Some(99));
            assert_eq!(second.shm_nonce(first.slot(), 3), Some(0x1_0000_0002));
            assert_eq!(second.interface(first.slot()), 7);
            let members: Vec<_> = second.claimants(name).collect();
            assert_eq!((members, second.lives(me)), (vec![me], true), "{nonsense}");
            assert_eq!(scratch.join().unwrap().secret(), secret, "{nonsense}");
        }
        first.release_domain(claim);
        assert_eq!((first.mend(), second.claimants(name).count()), (0, 0));
    }

    /// Goal: two devices that have the same numbers do not overwrite one another's claim for ever.
    #[test]
    fn a_block_that_two_have_is_contested_for_a_limited_time() {
        let scratch = Scratch::new();
        let [first, second] = [(); 2].map(|()| scratch.join().unwrap());
        let block = first.claim_block().unwrap();
        second.remember_block(block);
        let rounds = (0..=CONTESTS_MAX).take_while(|_| second.mend() + first.mend() > 0).count();
        assert!(rounds > 1 && rounds <= usize::try_from(CONTESTS_MAX).unwrap());
        assert!(second.owner(block.first()).is_some());
    }

    /// Goal: whatever is in the registry, no call runs on and on. Method: as above, but it is not put right; each
    /// call either fails or does what it says.
    #[test]
    fn calls_end_in_a_registry_of_nonsense() {
        let scratch = Scratch::new();
        let first = scratch.join().unwrap();
        for nonsense in [0, 1, 2, 1024, 1025, 0x8000_0000, u32::MAX] {
            scribble(&first, nonsense);
            let joined = scratch.join().unwrap();
            assert_ne!(joined.slot(), first.slot(), "{nonsense}");
            if let Ok(block) = joined.claim_block() {
                assert_eq!(first.owner(block.first()), Some(joined.slot()), "{nonsense}");
            }
            let _ = joined.with_group([3; 16], 0, |registry, members| {
                members.push(registry.slot());
                assert!(members.len() <= 2, "{nonsense}: {members:?}");
                assert!(registry.routes(members).count() <= super::super::layout::BLOCK_COUNT);
                Ok(())
            });
            let _ = joined.claim_domain(DomainName::from_words([nonsense; 5]), |_| Ok(()));
        }
    }
}
