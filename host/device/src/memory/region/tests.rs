//! Regions: what a key may touch, checked on the table alone.
//!
//! # Safety
//!
//! Every test keeps the memory that it registers until the region is gone, and looks at it only
//! through the region, or afterwards.

use super::*;

#[test]
fn a_zero_based_region_starts_at_0_and_ends_at_its_length() {
    let table = table();
    let mut memory = [0_u64; 4];
    let region = region(&table, &mut memory, Access::ALL | Access::ZERO_BASED);
    assert_eq!(region.addr(), 0);
    let pin = table.pin_local(region.key().0, 7).unwrap();
    pin.write(24, &[5; 8], Access::REMOTE_WRITE).unwrap();
    assert_eq!(region.load_u64(24), Some(u64::from_ne_bytes([5; 8])));
    for (va, len) in [(25, 8), (32, 1), (u64::MAX, 1)] {
        assert_eq!(pin.range(va, len, Access::REMOTE_WRITE), Err(AccessError::OutOfBounds));
    }
}

#[test]
fn an_atomic_needs_memory_that_is_aligned_and_not_only_an_address() {
    let table = table();
    let mut memory = [0_u64; 4];
    let base = NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap();
    // SAFETY: one byte into four words.
    let base = unsafe { base.add(1) };
    // SAFETY: the memory outlives the region, and no other code looks at it meanwhile.
    let region = unsafe { table.register(7, base, 24, Access::ALL | Access::ZERO_BASED) };
    let region = region.unwrap();
    let pin = table.pin_local(region.key().0, 7).unwrap();
    let add = AtomicOp::FetchAdd { add: 1 };
    assert_eq!(pin.atomic(0, add), Err(AccessError::Misaligned));
}

#[test]
fn an_atomic_write_needs_the_right_to_write_and_an_aligned_word() {
    let table = table();
    let mut memory = [0_u64; 2];
    let writable = region(&table, &mut memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let pin = table.pin_local(writable.key().0, 7).unwrap();
    let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(pin.atomic_write(writable.addr() + 8, bytes), Ok(()));
    let mut read = [0; 8];
    assert!(writable.read(8, &mut read));
    assert_eq!(read, bytes, "as they came");
    assert_eq!(pin.atomic_write(writable.addr() + 4, bytes), Err(AccessError::Misaligned));
    assert_eq!(pin.atomic_write(writable.addr() + 16, bytes), Err(AccessError::OutOfBounds));
    let mut memory = [0_u64; 1];
    let readable = region(&table, &mut memory, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC);
    let pin = table.pin_local(readable.key().0, 7).unwrap();
    assert_eq!(pin.atomic_write(readable.addr(), bytes), Err(AccessError::Denied));
}

#[test]
fn a_reader_sees_an_atomic_write_whole_or_not_at_all() {
    let table = table();
    let mut memory = [0_u64; 1];
    let region = region(&table, &mut memory, Access::ALL);
    let pin = table.pin_local(region.key().0, 7).unwrap();
    let rounds = if cfg!(miri) { 50 } else { 2_000_000 };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..rounds {
                let byte = u8::try_from(round % 251).unwrap();
                pin.atomic_write(region.addr(), [byte; 8]).unwrap();
            }
        });
        while !writer.is_finished() {
            let [first, rest @ ..] = region.load_u64(0).unwrap().to_ne_bytes();
            assert!(rest.iter().all(|byte| *byte == first), "a mix");
        }
    });
}

#[test]
fn a_null_region_takes_everything_and_reads_as_zeros() {
    let table = table();
    let region = table.register_null(7).unwrap();
    let pin = table.pin_local(region.key().0, 7).unwrap();
    assert_eq!(pin.write(u64::MAX, &[1; 9], Access::LOCAL_WRITE), Ok(()));
    assert!(pin.range(12345, 4096, Access::NONE).is_ok());
    let many = pin.range(0, 1 << 31, Access::NONE).unwrap();
    let last = many.wrapping_add((1 << 31) - 1);
    for byte in [many, last] {
        // SAFETY: so many zeros can be read.
        assert_eq!(unsafe { byte.read() }, 0);
    }
    assert_eq!(pin.range(0, (1 << 31) + 1, Access::NONE), Err(AccessError::OutOfBounds));
    for access in [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        assert_eq!(pin.range(0, 1, access), Err(AccessError::Denied));
    }
    assert_eq!(pin.write(0, &[1], Access::REMOTE_WRITE), Err(AccessError::Denied));
    assert!(ZEROS.iter().all(|byte| *byte == 0));
}

fn table() -> Arc<Regions> {
    Arc::new(Regions::new())
}

fn region(table: &Arc<Regions>, memory: &mut [u64], access: Access) -> Region {
    let base = NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap();
    // SAFETY: the tests keep `memory` until the region is gone and look at it only afterwards.
    unsafe { table.register(7, base, size_of_val(memory), access) }.unwrap()
}

#[test]
fn a_claim_is_checked_for_key_domain_rights_and_bounds() {
    let table = table();
    let mut memory = [0_u64; 4];
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = region(&table, &mut memory, access);
    let (key, va) = (region.key().0, region.addr());

    assert_eq!(table.pin_local(key ^ 1, 7).unwrap_err(), AccessError::UnknownKey);
    assert_eq!(table.pin_local(u32::MAX, 7).unwrap_err(), AccessError::UnknownKey);
    assert_eq!(table.pin_local(key, 8).unwrap_err(), AccessError::UnknownKey);
    let pin = table.pin_local(key, 7).unwrap();
    assert_eq!(pin.range(va, 1, Access::REMOTE_READ), Err(AccessError::Denied));
    let write = Access::REMOTE_WRITE;
    assert!(pin.range(va, 32, write).is_ok());
    assert!(pin.range(va + 32, 0, write).is_ok());
    for (start, len) in [(va - 1, 1), (va, 33), (va + 32, 1), (0, 1), (u64::MAX, 2)] {
        assert_eq!(pin.range(start, len, write), Err(AccessError::OutOfBounds));
    }
}

#[test]
fn a_dropped_region_has_no_key_and_its_slot_gets_another() {
    let table = table();
    let mut memory = [0_u64; 1];
    let first = region(&table, &mut memory, Access::NONE);
    let key = first.key();
    drop(first);
    assert_eq!(table.pin_local(key.0, 7).unwrap_err(), AccessError::UnknownKey);
    let second = region(&table, &mut memory, Access::NONE);
    assert_ne!(second.key(), key);
}

#[test]
fn dropping_a_region_waits_for_accesses_under_way() {
    let table = table();
    let mut memory = [0_u64; 1];
    let region = region(&table, &mut memory, Access::NONE);
    let key = region.key().0;
    let pin = table.pin_local(key, 7).unwrap();
    std::thread::scope(|scope| {
        let dropping = scope.spawn(move || drop(region));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!dropping.is_finished());
        drop(pin);
        dropping.join().unwrap();
    });
}

#[test]
fn a_grip_holds_the_region_that_was_asked_for_last_and_no_other() {
    let table = table();
    let mut memory = [[0_u64; 1]; 2];
    let [one, other] = &mut memory;
    let regions = [region(&table, one, Access::NONE), region(&table, other, Access::NONE)];
    let keys = regions.each_ref().map(|region| region.key().0);
    let users = |grip: &mut Grip<'_>, key| {
        grip.pin_local(key, 7).map(|pin| pin.slot.users.load(Ordering::SeqCst))
    };
    let held =
        || keys.map(|key| table.pin_local(key, 7).unwrap().slot.users.load(Ordering::SeqCst) - 1);
    let mut grip = Grip::new(&table);
    assert_eq!((users(&mut grip, keys[0]), users(&mut grip, keys[0])), (Ok(1), Ok(1)));
    assert_eq!(users(&mut grip, keys[1]), Ok(1));
    assert_eq!(held(), [0, 1]);
    for (key, domain) in [(keys[1], 8), (keys[0] ^ 1, 7)] {
        assert_eq!(grip.pin_local(key, domain).map(drop).unwrap_err(), AccessError::UnknownKey);
        assert_eq!(held(), [0, 0]);
    }
    assert_eq!(users(&mut grip, keys[0]), Ok(1));
    grip.let_go();
    assert_eq!(held(), [0, 0]);
}

#[test]
fn grips_hold_a_region_for_packets_and_a_peer_apart() {
    let table = table();
    let mut memory = [0_u64; 1];
    let region = region(&table, &mut memory, Access::NONE);
    let key = region.key().0;
    let users = || table.pin_local(key, 7).unwrap().slot.users.load(Ordering::SeqCst) - 1;
    let mut grips = Grips::new(&table);
    let (one, other) = (Serial::new(), Serial::new());
    for peer in [one, one, other] {
        assert!(grips.remote.pin_remote(key, 7, peer).is_ok());
        assert!(grips.local.pin_local(key, 7).is_ok());
        assert_eq!(users(), 2);
    }
    grips.let_go();
    assert_eq!(users(), 0);
}

#[test]
fn remote_writing_needs_local_writing() {
    let table = table();
    let mut memory = [0_u64; 1];
    let base = NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap();
    // SAFETY: nothing is registered: the call fails.
    let result = unsafe { table.register(7, base, 8, Access::REMOTE_WRITE) };
    assert_eq!(result.unwrap_err(), RegionError::AccessWithoutLocalWrite);
}

#[test]
fn atomics_change_aligned_words_and_return_what_was_there() {
    let table = table();
    let mut memory = [5_u64, 0];
    let region = region(&table, &mut memory, Access::ALL);
    let pin = table.pin_local(region.key().0, 7).unwrap();
    let va = region.addr();
    assert_eq!(pin.atomic(va, AtomicOp::FetchAdd { add: 2 }), Ok(5));
    let swap = AtomicOp::CompareSwap { compare: 7, swap: 9 };
    assert_eq!(pin.atomic(va, swap), Ok(7));
    assert_eq!(pin.atomic(va, swap), Ok(9));
    assert_eq!(pin.atomic(va + 1, swap), Err(AccessError::Misaligned));
    assert_eq!(region.load_u64(0), Some(9));
}

/// Goal: a key that has gone does not come back soon, and the first key of a process cannot be told.
/// Method: regions one after the other, more than there are tags.
#[test]
fn keys_start_at_random_and_come_back_late() {
    let first = || {
        let (table, mut memory) = (table(), [0_u64; 1]);
        region(&table, &mut memory, Access::NONE).key().0
    };
    let firsts: std::collections::BTreeSet<u32> = (0..32).map(|_| first()).collect();
    assert!(firsts.len() > 8, "{firsts:x?}");
    let (table, mut memory) = (table(), [0_u64; 1]);
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..16 << Regions::TAG_BITS {
        let key = region(&table, &mut memory, Access::NONE).key().0;
        assert!(seen.insert(key), "{key:#x} again after {n} others");
    }
}

#[test]
fn a_region_that_is_registered_anew_keeps_its_key_and_nothing_else() {
    let table = table();
    let (mut memory, mut other) = ([0_u64; 1], [0_u64; 2]);
    let mut region = region(&table, &mut memory, Access::NONE);
    let (key, before) = (region.key(), region.serial());
    let base = NonNull::new(other.as_mut_ptr().cast::<u8>()).unwrap();
    let new =
        Registration { domain: 8, base, len: 16, access: Access::ALL, va: 100, on_demand: false };
    // SAFETY: the memory outlives the region, and no other code looks at it meanwhile.
    unsafe { region.reregister(new) }.unwrap();
    assert_eq!((region.key(), region.addr(), region.len()), (key, 100, 16));
    assert_ne!(region.serial(), before, "windows that looked out on what it was see nothing");
    assert_eq!(table.pin_local(key.0, 7).unwrap_err(), AccessError::UnknownKey);
    let pin = table.pin_local(key.0, 8).unwrap();
    pin.write(108, &[3; 8], Access::REMOTE_WRITE).unwrap();
    assert_eq!(pin.range(117, 1, Access::NONE), Err(AccessError::OutOfBounds));
    assert_eq!(region.load_u64(8), Some(u64::from_ne_bytes([3; 8])));
}

#[test]
fn a_region_is_as_before_if_it_cannot_be_registered_anew() {
    let table = table();
    let mut memory = [0_u64; 1];
    let mut region = region(&table, &mut memory, Access::NONE);
    let (key, base) = (region.key(), region.start());
    let new = Registration {
        domain: 8,
        base,
        len: 8,
        access: Access::REMOTE_WRITE,
        va: 0,
        on_demand: false,
    };
    // SAFETY: nothing is registered: the call fails.
    let result = unsafe { region.reregister(new) };
    assert_eq!(result, Err(RegionError::AccessWithoutLocalWrite));
    // SAFETY: as above.
    let result = unsafe { region.reregister(Registration { len: 0, access: Access::ALL, ..new }) };
    assert_eq!(result, Err(RegionError::Empty));
    assert!(table.pin_local(key.0, 7).is_ok());
}

#[test]
fn registering_anew_waits_for_accesses_under_way() {
    let table = table();
    let mut memory = [0_u64; 1];
    let mut region = region(&table, &mut memory, Access::NONE);
    let key = region.key().0;
    let pin = table.pin_local(key, 7).unwrap();
    std::thread::scope(|scope| {
        let again = scope.spawn(move || {
            let base = region.start();
            let (access, va) = (Access::ALL, 0);
            let new = Registration { domain: 7, base, len: 8, access, va, on_demand: false };
            // SAFETY: the memory outlives the region, and no other code looks at it meanwhile.
            unsafe { region.reregister(new) }.map(|()| region)
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!again.is_finished());
        drop(pin);
        assert!(again.join().unwrap().is_ok());
    });
}

#[cfg(not(miri))]
#[test]
fn all_memory_can_be_registered_and_what_is_not_mapped_is_refused() {
    let table = table();
    // SAFETY: no other code looks at memory that is written to here, nor unmaps any meanwhile.
    let all = unsafe { table.register_as(Registration::all(7, Access::ALL)) }.unwrap();
    let pin = table.pin_local(all.key().0, 7).unwrap();
    let mapping = adverb_sys::memory::Mapping::anonymous(8192).unwrap();
    let va = u64::try_from(mapping.as_ptr().as_ptr().expose_provenance()).unwrap();
    pin.write(va + 4090, &[1; 100], Access::REMOTE_WRITE).unwrap();
    assert_eq!(pin.atomic(va, AtomicOp::FetchAdd { add: 2 }), Ok(0));
    assert!(pin.range(va, 8192, Access::REMOTE_READ).is_ok());
    drop(mapping);
    for (start, len) in [(va, 1), (0, 8), (1, 8), (8, 8), (1 << 47, 8), (u64::MAX - 8, 8)] {
        for access in [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::NONE] {
            assert_eq!(pin.range(start, len, access), Err(AccessError::OutOfBounds), "{start:#x}");
        }
    }
    let text: &[u8] = b"bytes that cannot be written to";
    let text = u64::try_from(text.as_ptr().expose_provenance()).unwrap();
    assert!(pin.range(text, 8, Access::REMOTE_READ).is_ok());
    assert_eq!(pin.range(text, 8, Access::REMOTE_WRITE), Err(AccessError::OutOfBounds));
}
