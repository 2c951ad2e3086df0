//! Windows: what they give and take away, checked on the table alone.
//!
//! # Safety
//!
//! Every test keeps the memory that it registers until the region is gone, and looks at it only
//! through the region, or afterwards.

use super::*;
use adverb_engine::Access;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;

const DOMAIN: u32 = 7;
const WRITE: Access = Access::REMOTE_WRITE;

/// A table, and a queue pair's serial.
struct Bench {
    table: Arc<Regions>,
    qp: Serial,
}

impl Bench {
    fn new() -> Self {
        Self { table: Arc::new(Regions::new()), qp: Serial::new() }
    }

    fn region(&self, memory: &mut [u64], access: Access) -> Region {
        let base = NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap();
        // SAFETY: the tests keep `memory` until the region is gone and look at it only afterwards.
        unsafe { self.table.register(DOMAIN, base, size_of_val(memory), access) }.unwrap()
    }

    fn window(&self, kind: WindowKind) -> Window {
        self.table.alloc_window(DOMAIN, kind).unwrap()
    }

    fn bind(&self, bind: Bind) -> Result<(), AccessError> {
        self.table.bind(&bind, DOMAIN, self.qp)
    }

    fn invalidate(&self, key: Key, by: Invalidator) -> Result<(), AccessError> {
        self.table.invalidate(key.0, DOMAIN, self.qp, by)
    }

    /// What a peer's access comes to.
    fn access(&self, key: Key, va: u64, len: usize, access: Access) -> Result<(), AccessError> {
        let pin = self.table.pin_remote(key.0, DOMAIN, self.qp)?;
        pin.range(va, len, access).map(|_| ())
    }
}

fn to(region: &Region, offset: usize, len: usize) -> BindTo<'_> {
    BindTo { region, offset, len, access: Access::REMOTE_WRITE | Access::REMOTE_READ }
}

/// The key that the owner chooses, where it does.
fn choice(window: &Window) -> Option<Key> {
    (window.kind() == WindowKind::Type2).then(|| next(window.key()))
}

fn next(key: Key) -> Key {
    Key(key.0 & !0xff | key.0.wrapping_add(1) & 0xff)
}

const BINDABLE: Access = Access::LOCAL_WRITE.with(Access::MW_BIND);
const DENIED: Result<(), AccessError> = Err(AccessError::Denied);
const UNKNOWN: Result<(), AccessError> = Err(AccessError::UnknownKey);
const OUT: Result<(), AccessError> = Err(AccessError::OutOfBounds);

#[test]
fn a_window_opens_its_range_and_its_rights_and_nothing_else() {
    let bench = Bench::new();
    let mut memory = [0_u64; 8];
    let region = bench.region(&mut memory, BINDABLE);
    let window = bench.window(WindowKind::Type1);
    assert!(!window.is_bound());
    let unbound = window.key();
    assert_eq!(bench.access(unbound, region.addr(), 1, WRITE), UNKNOWN);

    let bind = window.bind(to(&region, 8, 16), None).unwrap();
    let key = bind.key();
    bench.bind(bind).unwrap();
    assert!(window.is_bound());
    assert_eq!((window.key(), region.windows()), (key, 1));
    let va = region.addr() + 8;
    assert_eq!(bench.access(key, va, 16, WRITE), Ok(()));
    assert_eq!(bench.access(key, va + 16, 0, Access::REMOTE_READ), Ok(()));
    for (va, len) in [(va - 1, 1), (va, 17), (va + 16, 1), (0, 1), (u64::MAX, 2)] {
        assert_eq!(bench.access(key, va, len, WRITE), OUT, "{len} at {va}");
    }
    assert_eq!(bench.access(key, va, 8, Access::REMOTE_ATOMIC), DENIED);
    // What the window gives, the region's own key does not.
    assert_eq!(bench.access(region.key(), va, 16, WRITE), DENIED);
    assert_eq!(bench.access(unbound, va, 16, WRITE), UNKNOWN);
    let other = bench.table.pin_remote(key.0, DOMAIN + 1, bench.qp);
    assert_eq!(other.unwrap_err(), AccessError::UnknownKey);
    let local = bench.table.pin_local(key.0, DOMAIN);
    assert_eq!(local.unwrap_err(), AccessError::UnknownKey, "windows are for peers");
}

#[test]
fn what_is_written_through_a_window_is_where_it_looks() {
    let bench = Bench::new();
    let mut memory = [0_u64; 4];
    let region = bench.region(&mut memory, BINDABLE);
    for (kind, zero_based) in
        [(WindowKind::Type1, false), (WindowKind::Type2, false), (WindowKind::Type2, true)]
    {
        let window = bench.window(kind);
        let mut target = to(&region, 9, 7);
        let mut va = region.addr() + 9;
        if zero_based {
            (target.access, va) = (target.access | Access::ZERO_BASED, 0);
        }
        let bind = window.bind(target, choice(&window)).unwrap();
        let key = bind.key();
        bench.bind(bind).unwrap();
        let pin = bench.table.pin_remote(key.0, DOMAIN, bench.qp).unwrap();
        pin.write(va, &[9; 7], WRITE).unwrap();
        assert_eq!(pin.range(va + 7, 1, WRITE), Err(AccessError::OutOfBounds));
        drop(pin);
        let mut bytes = [1; 9];
        assert!(region.read(8, &mut bytes));
        assert_eq!(bytes, [0, 9, 9, 9, 9, 9, 9, 9, 0], "{kind:?}");
        assert!(region.fill(0, 32, 0));
    }
}

#[test]
fn type_1_is_bound_anew_at_any_time_and_to_nothing_in_the_end() {
    let bench = Bench::new();
    let mut memory = [0_u64; 8];
    let region = bench.region(&mut memory, BINDABLE);
    let window = bench.window(WindowKind::Type1);
    let mut old = window.key();
    for round in 0..if cfg!(miri) { 20 } else { 600_usize } {
        let bind = window.bind(to(&region, round % 8, 8), None).unwrap();
        let key = bind.key();
        assert_ne!(key, old);
        bench.bind(bind).unwrap();
        assert_eq!(bench.bind(bind), DENIED, "the key has to change");
        assert_eq!(bench.access(old, region.addr() + 8, 1, WRITE), UNKNOWN);
        assert_eq!(region.windows(), 1);
        old = key;
    }
    assert_eq!(bench.invalidate(old, Invalidator::Owner), DENIED);
    assert_eq!(bench.invalidate(old, Invalidator::Peer), DENIED);

    let bind = window.bind(to(&region, 0, 0), None).unwrap();
    let key = bind.key();
    bench.bind(bind).unwrap();
    assert_eq!(bench.access(old, region.addr(), 1, WRITE), UNKNOWN);
    assert_eq!(bench.access(key, region.addr(), 1, WRITE), UNKNOWN);
    assert_eq!((window.is_bound(), region.windows()), (false, 0));
}

#[test]
fn type_2_is_bound_once_for_one_queue_pair_until_its_key_is_invalidated() {
    let bench = Bench::new();
    let mut memory = [0_u64; 8];
    let region = bench.region(&mut memory, BINDABLE);
    let window = bench.window(WindowKind::Type2);
    let first = next(window.key());
    bench.bind(window.bind(to(&region, 0, 8), Some(first)).unwrap()).unwrap();
    assert_eq!(bench.access(first, region.addr(), 8, WRITE), Ok(()));

    let stranger = Serial::new();
    let other = bench.table.pin_remote(first.0, DOMAIN, stranger);
    assert_eq!(other.unwrap_err(), AccessError::UnknownKey, "it is tied to its queue pair");
    let second = next(first);
    let anew = window.bind(to(&region, 8, 8), Some(second)).unwrap();
    assert_eq!(bench.bind(anew), DENIED, "it is bound");
    assert_eq!(bench.access(first, region.addr(), 8, WRITE), Ok(()), "as it was");

    for by in [Invalidator::Owner, Invalidator::Peer] {
        assert_eq!(bench.table.invalidate(first.0, DOMAIN, stranger, by), UNKNOWN);
        assert_eq!(bench.table.invalidate(first.0, DOMAIN + 1, bench.qp, by), UNKNOWN);
        assert_eq!(bench.invalidate(second, by), UNKNOWN);
        assert_eq!(bench.invalidate(region.key(), by), UNKNOWN, "a region's key");
        assert_eq!(bench.invalidate(Key(u32::MAX), by), UNKNOWN);
    }
    bench.invalidate(first, Invalidator::Peer).unwrap();
    assert_eq!(bench.access(first, region.addr(), 8, WRITE), UNKNOWN);
    assert_eq!((window.key(), region.windows()), (first, 0));
    assert_eq!(bench.invalidate(first, Invalidator::Peer), UNKNOWN, "it may not be used");
    assert_eq!(bench.invalidate(first, Invalidator::Owner), Ok(()), "it is done");

    bench.bind(anew).unwrap();
    assert_eq!(bench.access(second, region.addr() + 8, 8, WRITE), Ok(()));
    assert_eq!(bench.access(second, region.addr(), 8, WRITE), OUT);
    bench.invalidate(second, Invalidator::Owner).unwrap();
    assert_eq!(bench.access(second, region.addr() + 8, 8, WRITE), UNKNOWN);
}

#[test]
fn a_window_is_refused_what_makes_no_sense_before_anything_is_posted() {
    let bench = Bench::new();
    let mut memory = [0_u64; 8];
    let region = bench.region(&mut memory, BINDABLE);
    let one = bench.window(WindowKind::Type1);
    let two = bench.window(WindowKind::Type2);
    let refused = |window: &Window, to: BindTo<'_>| window.bind(to, choice(window)).unwrap_err();

    for (offset, len) in [(0, 65), (64, 1), (usize::MAX, 2), (1, usize::MAX)] {
        let out = BindError::OutOfBounds { offset, len, region: 64 };
        assert_eq!(refused(&one, to(&region, offset, len)), out);
    }
    assert_eq!(refused(&two, to(&region, 0, 0)), BindError::Empty);
    assert_eq!(two.unbind().unwrap_err(), BindError::Empty);
    let key = one.key();
    let foreign = two.bind(to(&region, 0, 8), Some(key)).unwrap_err();
    assert_eq!(foreign, BindError::ForeignKey { key });
    let refusal = one.bind(to(&region, 0, 8), Some(key)).unwrap_err();
    assert_eq!(refusal, BindError::Kind { kind: WindowKind::Type1 });
    let refusal = two.bind(to(&region, 0, 8), None).unwrap_err();
    assert_eq!(refusal, BindError::Kind { kind: WindowKind::Type2 });
    for access in [Access::LOCAL_WRITE, Access::MW_BIND, Access::RELAXED_ORDERING] {
        let refusal = refused(&two, BindTo { access, ..to(&region, 0, 8) });
        assert_eq!(refusal, BindError::Rights { access });
    }
    let zero_based = BindTo { access: Access::ZERO_BASED, ..to(&region, 0, 8) };
    assert_eq!(refused(&one, zero_based), BindError::ZeroBasedType1);

    for (access, why) in [
        (Access::ALL, BindError::NoBindAccess),
        (Access::MW_BIND, BindError::AccessWithoutLocalWrite),
        (BINDABLE | Access::ZERO_BASED, BindError::ZeroBasedRegion),
    ] {
        let mut memory = [0_u64; 8];
        let other = bench.region(&mut memory, access);
        assert_eq!(refused(&one, to(&other, 0, 8)), why);
    }
    let mut memory = [0_u64; 8];
    let readable = bench.region(&mut memory, Access::MW_BIND);
    let reading = BindTo { access: Access::REMOTE_READ, ..to(&readable, 0, 8) };
    assert!(two.bind(reading, choice(&two)).is_ok(), "a window to read needs no local write");
    let mut memory = [0_u64; 8];
    let elsewhere = Bench::new();
    let foreign = elsewhere.region(&mut memory, BINDABLE);
    assert_eq!(refused(&one, to(&foreign, 0, 8)), BindError::ForeignRegion);
    let window = bench.table.alloc_window(DOMAIN + 1, WindowKind::Type1).unwrap();
    assert_eq!(refused(&window, to(&region, 0, 8)), BindError::ForeignRegion);
    let null = bench.table.register_null(DOMAIN).unwrap();
    assert_eq!(refused(&one, to(&null, 0, 8)), BindError::NoBindAccess);
}

#[test]
fn a_binding_that_comes_too_late_changes_nothing() {
    let bench = Bench::new();
    let mut memory = [0_u64; 8];
    let region = bench.region(&mut memory, BINDABLE);
    let window = bench.window(WindowKind::Type1);
    let bind = window.bind(to(&region, 0, 8), None).unwrap();
    let key = bind.key();
    assert_eq!(bench.table.bind(&bind, DOMAIN + 1, bench.qp), UNKNOWN, "another domain's");
    drop(region);
    assert_eq!(bench.bind(bind), UNKNOWN, "the region has gone");
    let mut memory = [0_u64; 8];
    let next = bench.region(&mut memory, BINDABLE);
    assert_eq!(bench.bind(bind), UNKNOWN, "another one is in its place");
    assert_eq!(bench.access(key, next.addr(), 1, WRITE), UNKNOWN);

    let bind = window.bind(to(&next, 0, 8), None).unwrap();
    drop(window);
    let successor = bench.window(WindowKind::Type1);
    assert_eq!(bench.bind(bind), UNKNOWN, "the window has gone");
    assert_eq!((successor.is_bound(), next.windows()), (false, 0));
}

#[test]
fn a_window_does_not_outlive_its_region_even_in_the_same_place() {
    let bench = Bench::new();
    let window = bench.window(WindowKind::Type1);
    let mut memory = [0_u64; 8];
    let region = bench.region(&mut memory, BINDABLE);
    let va = region.addr();
    let bind = window.bind(to(&region, 0, 8), None).unwrap();
    let key = bind.key();
    bench.bind(bind).unwrap();
    assert_eq!(bench.access(key, va, 8, WRITE), Ok(()));
    drop(region);
    assert!(!window.is_bound());
    assert_eq!(bench.access(key, va, 8, WRITE), UNKNOWN);
    // All keys of the place come round, with regions and with windows in it.
    for round in 0..if cfg!(miri) { 20 } else { 300_u32 } {
        if round % 2 == 0 {
            let next = bench.region(&mut memory, BINDABLE);
            assert_eq!(bench.access(key, va, 8, WRITE), UNKNOWN);
            assert_eq!(next.windows(), 0);
        } else {
            let other = bench.window(WindowKind::Type2);
            let mut memory = [0_u64; 8];
            let target = bench.region(&mut memory, BINDABLE);
            let bind = other.bind(to(&target, 0, 8), choice(&other)).unwrap();
            bench.bind(bind).unwrap();
            assert_eq!(bench.access(key, va, 8, WRITE), UNKNOWN);
            assert_eq!(target.windows(), 1);
            if round % 4 == 1 {
                drop(target);
            }
        }
    }
    // It can be bound anew.
    let region = bench.region(&mut memory, BINDABLE);
    let bind = window.bind(to(&region, 0, 8), None).unwrap();
    let key = bind.key();
    bench.bind(bind).unwrap();
    assert_eq!((window.is_bound(), region.windows()), (true, 1));
    drop(window);
    assert_eq!(region.windows(), 0);
    assert_eq!(bench.access(key, va, 8, WRITE), UNKNOWN);
}

/// Goal: whatever ends a window waits for accesses through it, and so does the end of its region.
#[test]
fn an_end_waits_for_accesses_under_way() {
    for what in 0..4 {
        let bench = Bench::new();
        let mut memory = [0_u64; 8];
        let region = bench.region(&mut memory, BINDABLE);
        let kind = if what == 0 { WindowKind::Type1 } else { WindowKind::Type2 };
        let window = bench.window(kind);
        let bind = window.bind(to(&region, 0, 8), choice(&window)).unwrap();
        let key = bind.key();
        bench.bind(bind).unwrap();
        let anew = window.bind(to(&region, 8, 8), choice(&window)).unwrap();
        let pin = bench.table.pin_remote(key.0, DOMAIN, bench.qp).unwrap();
        let (mut window, mut region) = (Some(window), Some(region));
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| match what {
                0 => bench.bind(anew).unwrap(),
                1 => bench.invalidate(key, Invalidator::Owner).unwrap(),
                2 => drop(window.take()),
                _ => drop(region.take()),
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!ending.is_finished(), "{what}");
            pin.write(0, &[], WRITE).unwrap_err();
            drop(pin);
            ending.join().unwrap();
        });
    }
}

/// Goal: no access is ever made by parts of two bindings, or after its end.
/// Method: a window moves between two halves while others write to both by the newest key they
/// know; the half that it has left belongs to its owner, which finds it as it was left.
#[test]
fn a_window_that_moves_under_load_lets_no_write_past() {
    let (rounds, words, writers) = if cfg!(miri) { (5, 8, 1) } else { (1_000, 1024, 2) };
    let half = words * size_of::<u64>();
    let bench = Bench::new();
    let mut memory = vec![0_u64; 2 * words];
    let region = bench.region(&mut memory, BINDABLE);
    let window = bench.window(WindowKind::Type1);
    let stop = AtomicBool::new(false);
    let starts = [0, half].map(|at| region.addr() + u64::try_from(at).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..writers {
            scope.spawn(|| {
                let (mut key, bytes) = (window.key(), vec![0xff; half]);
                while !stop.load(Ordering::Relaxed) {
                    for va in starts {
                        if let Ok(pin) = bench.table.pin_remote(key.0, DOMAIN, bench.qp) {
                            let _ = pin.write(va, &bytes, WRITE);
                        }
                    }
                    key = newest_key(&window, key);
                }
            });
        }
        let _stop = Stop(&stop);
        let (mut at, mut bytes) = (0, vec![0; half]);
        for round in 0..rounds {
            bench.bind(window.bind(to(&region, at, half), None).unwrap()).unwrap();
            let other = half - at;
            assert!(region.fill(other, half, 7));
            std::thread::yield_now();
            assert!(region.read(other, &mut bytes));
            let found = bytes.iter().position(|byte| *byte != 7);
            assert_eq!(found, None, "bytes outside the window were written in round {round}");
            at = other;
        }
    });
}

/// Others stop even if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The key that is the window's now, without waiting for the thread that binds it.
fn newest_key(window: &Window, last: Key) -> Key {
    let tag = window.table.slot(window.index).unwrap().generation.load(Ordering::Relaxed);
    Key(last.0 & !0xff | tag.wrapping_sub(1) & 0xff)
}
