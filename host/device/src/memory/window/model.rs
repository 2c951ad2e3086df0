//! The table of keys against a model of it that is as simple as it can be.
//!
//! The model is a list of what was made, and finds everything by walking through it. After every
//! step all keys that ever were are tried at places inside, outside and across every border.
//!
//! # Safety
//!
//! One memory outlives all regions, and no other code looks at it.

use super::*;
use adverb_engine::Access;
use proptest::prelude::*;
use std::ptr::NonNull;

const WORDS: usize = 8;
const BYTES: usize = WORDS * size_of::<u64>();

/// What is done to the table. Numbers name one of what there is, whatever their size.
#[derive(Clone, Debug)]
enum Step {
    Register { domain: bool, start: usize, len: usize, bits: u32 },
    Deregister(usize),
    Allocate { domain: bool, kind: WindowKind },
    Free(usize),
    Bind { window: usize, region: usize, qp: usize, offset: usize, len: usize, bits: u32, tag: u32 },
    Unbind { window: usize, qp: usize },
    Invalidate { key: usize, domain: bool, qp: usize, peer: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![Just(WindowKind::Type1), Just(WindowKind::Type2)];
    let bits = prop_oneof![Just(0b1_0001_u32), Just(0b1_1111), 0..64_u32];
    let view = prop_oneof![Just(0b110_u32), Just(0b100_0110 & 0x3f), 0..16_u32, Just(0b10_0010)];
    prop_oneof![
        2 => (any::<bool>(), 0..BYTES, 1..BYTES, bits)
            .prop_map(|(domain, start, len, bits)| Step::Register { domain, start, len, bits }),
        1 => any::<usize>().prop_map(Step::Deregister),
        2 => (any::<bool>(), kind).prop_map(|(domain, kind)| Step::Allocate { domain, kind }),
        1 => any::<usize>().prop_map(Step::Free),
        6 => (any::<(usize, usize)>(), 0..2_usize, 0..BYTES, 0..BYTES, view, 1..256_u32).prop_map(
            |((window, region), qp, offset, len, bits, tag)| {
                Step::Bind { window, region, qp, offset, len: len / 2, bits, tag }
            }
        ),
        1 => (any::<usize>(), 0..2_usize).prop_map(|(window, qp)| Step::Unbind { window, qp }),
        3 => (any::<usize>(), any::<bool>(), 0..2_usize, any::<bool>())
            .prop_map(|(key, domain, qp, peer)| Step::Invalidate { key, domain, qp, peer }),
    ]
}

/// A range that a key opens, in bytes of the memory.
#[derive(Clone, Copy, Debug)]
struct Opening {
    key: u32,
    start: usize,
    len: usize,
    va: u64,
    bits: u32,
    domain: u32,
    tied_to: Option<Serial>,
}

struct KnownWindow {
    window: Window,
    key: u32,
    /// The opening, and the key of the region that it is in.
    bound: Option<(Opening, u32)>,
}

struct World {
    table: Arc<Regions>,
    base: NonNull<u8>,
    qps: [Serial; 2],
    regions: Vec<(Region, Opening)>,
    windows: Vec<KnownWindow>,
    /// All keys that ever were.
    keys: Vec<u32>,
}

fn domain_of(second: bool) -> u32 {
    if second { 2 } else { 1 }
}

fn pick(number: usize, len: usize) -> Option<usize> {
    number.checked_rem(len)
}

impl World {
    fn new(memory: &mut [u64; WORDS]) -> Self {
        Self {
            table: Arc::new(Regions::new()),
            base: NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap(),
            qps: [Serial::new(), Serial::new()],
            regions: Vec::new(),
            windows: Vec::new(),
            keys: vec![0, u32::MAX],
        }
    }

    fn openings(&self) -> impl Iterator<Item = Opening> {
        let regions = self.regions.iter().map(|(_, opening)| *opening);
        let alive = |key| self.regions.iter().any(|(_, opening)| opening.key == key);
        let bound = self.windows.iter().filter_map(|window| window.bound);
        regions.chain(bound.filter(move |(_, under)| alive(*under)).map(|(opening, _)| opening))
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Register { domain, start, len, bits } => {
                let (len, access) = (len.min(BYTES - start), Access::from_bits(bits));
                // SAFETY: `start` lies in the memory.
                let base = unsafe { self.base.add(start) };
                let domain = domain_of(domain);
                // SAFETY: the memory outlives the table, and no other code looks at it.
                let region = unsafe { self.table.register(domain, base, len, access) };
                let writes = bits & 0b1010 != 0 && bits & 1 == 0;
                assert_eq!(region.is_err(), writes);
                let Ok(region) = region else { return };
                let key = region.key().0;
                assert!(!self.keys.contains(&key), "a key that was there before");
                let va = region.addr();
                let tied_to = None;
                let opening = Opening { key, start, len, va, bits, domain, tied_to };
                self.keys.push(key);
                self.regions.push((region, opening));
            }
            Step::Deregister(number) => {
                if let Some(at) = pick(number, self.regions.len()) {
                    let (region, opening) = self.regions.swap_remove(at);
                    drop(region);
                    for window in &mut self.windows {
                        window.bound = window.bound.filter(|(_, under)| *under != opening.key);
                    }
                }
            }
            Step::Allocate { domain, kind } => {
                let window = self.table.alloc_window(domain_of(domain), kind).unwrap();
                let key = window.key().0;
                assert!(!self.keys.contains(&key), "a key that was there before");
                self.keys.push(key);
                self.windows.push(KnownWindow { window, key, bound: None });
            }
            Step::Free(number) => {
                if let Some(at) = pick(number, self.windows.len()) {
                    drop(self.windows.swap_remove(at));
                }
            }
            Step::Bind { window, region, qp, offset, len, bits, tag } => {
                self.bind((window, region, qp), offset, len, bits, tag);
            }
            Step::Unbind { window, qp } => self.unbind(window, qp),
            Step::Invalidate { key, domain, qp, peer } => {
                let key = self.keys[key % self.keys.len()];
                let by = if peer { Invalidator::Peer } else { Invalidator::Owner };
                let domain = domain_of(domain);
                let result = self.table.invalidate(key, domain, self.qps[qp], by);
                let known = self.windows.iter_mut().find(|window| window.key == key);
                let expected = known.is_some_and(|known| {
                    let may = known.window.kind() == WindowKind::Type2
                        && known.window.domain() == domain
                        && match known.bound {
                            Some((opening, _)) => opening.tied_to == Some(self.qps[qp]),
                            None => !peer,
                        };
                    known.bound = known.bound.filter(|_| !may);
                    may
                });
                assert_eq!(result.is_ok(), expected, "{step:?}: {result:?}");
            }
        }
    }

    /// Binds, under a key that may be the window's own; whatever is refused changes nothing.
    fn bind(
        &mut self,
        (window, region, qp): (usize, usize, usize),
        offset: usize,
        len: usize,
        bits: u32,
        tag: u32,
    ) {
        let Some(at) = pick(window, self.windows.len()) else { return };
        let Some(under) = pick(region, self.regions.len()) else { return };
        let (known, (region, whole)) = (&mut self.windows[at], &self.regions[under]);
        let (kind, access) = (known.window.kind(), Access::from_bits(bits));
        let key = known.key & !0xff | known.key.wrapping_add(tag % 4) & 0xff;
        let target = BindTo { region, offset, len, access };
        let zero_based = bits & 0b10_0000 != 0;
        let sensible = match (kind, len) {
            (WindowKind::Type1, 0) => true,
            (WindowKind::Type2, 0) => false,
            _ => {
                known.window.domain() == whole.domain
                    && whole.bits & 0b1_0000 != 0
                    && whole.bits & 0b10_0000 == 0
                    && bits & !0b10_1110 == 0
                    && !(zero_based && kind == WindowKind::Type1)
                    && (bits & 0b1010 == 0 || whole.bits & 1 != 0)
                    && offset + len <= whole.len
            }
        };
        let choice = (kind == WindowKind::Type2).then_some(Key(key));
        let made = known.window.bind(target, choice);
        assert_eq!(made.is_ok(), sensible, "{made:?} {target:?} in {whole:?}");
        let Ok(made) = made else { return };
        let (domain, key) = (known.window.domain(), made.key().0);
        let result = self.table.bind(&made, domain, self.qps[qp]);
        let expected = key != known.key && !(kind == WindowKind::Type2 && known.bound.is_some());
        assert_eq!(result.is_ok(), expected, "{result:?}");
        if !expected {
            return;
        }
        known.key = key;
        self.keys.push(key);
        let opening = Opening {
            key,
            start: whole.start + offset,
            len,
            va: if zero_based { 0 } else { whole.va + u64::try_from(offset).unwrap() },
            bits,
            domain,
            tied_to: (kind == WindowKind::Type2).then_some(self.qps[qp]),
        };
        known.bound = (len > 0).then_some((opening, whole.key));
    }

    fn unbind(&mut self, window: usize, qp: usize) {
        let Some(at) = pick(window, self.windows.len()) else { return };
        let known = &mut self.windows[at];
        match known.window.unbind() {
            Err(error) => {
                assert_eq!((error, known.window.kind()), (BindError::Empty, WindowKind::Type2));
            }
            Ok(nothing) => {
                self.table.bind(&nothing, known.window.domain(), self.qps[qp]).unwrap();
                (known.key, known.bound) = (nothing.key().0, None);
                self.keys.push(known.key);
            }
        }
    }

    /// Every key opens what the model says, and nothing else.
    fn check(&self) {
        for key in &self.keys {
            let mine: Vec<Opening> =
                self.openings().filter(|opening| opening.key == *key).collect();
            assert!(mine.len() <= 1, "one key, two openings");
            for domain in [1, 2] {
                for qp in self.qps {
                    self.check_key(*key, mine.first(), domain, qp);
                }
            }
        }
        for known in &self.windows {
            assert_eq!(known.window.is_bound(), known.bound.is_some());
            assert_eq!(known.window.key().0, known.key);
        }
        for (region, opening) in &self.regions {
            let mine =
                |window: &&KnownWindow| window.bound.is_some_and(|(_, under)| under == opening.key);
            let count = self.windows.iter().filter(mine).count();
            assert_eq!(region.windows(), u32::try_from(count).unwrap());
        }
    }

    fn check_key(&self, key: u32, opening: Option<&Opening>, domain: u32, qp: Serial) {
        let pinned = self.table.pin_remote(key, domain, qp);
        let usable = opening.filter(|opening| {
            opening.domain == domain && opening.tied_to.is_none_or(|only| only == qp)
        });
        assert_eq!(pinned.is_ok(), usable.is_some(), "{key:#x} in {domain}");
        let (Ok(pin), Some(opening)) = (pinned, usable) else { return };
        let len = u64::try_from(opening.len).unwrap();
        for right in [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            let has = opening.bits & right.bits() == right.bits();
            for (from, to) in [(0, len), (0, len + 1), (len, len), (len, len + 1), (len / 2, len)] {
                let (va, bytes) = (opening.va + from, usize::try_from(to - from).unwrap());
                let found = pin.range(va, bytes, right);
                let offset = opening.start + usize::try_from(from).unwrap();
                let want = (has && to <= len).then(|| self.base.as_ptr().wrapping_add(offset));
                assert_eq!(found.ok(), want, "{from}..{to} of {opening:?}");
            }
            assert!(pin.range(opening.va.wrapping_sub(1), 1, right).is_err());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else { 300 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_key_opens_what_it_was_given_and_nothing_else(
        steps in prop::collection::vec(step(), 1..if cfg!(miri) { 12 } else { 60 }),
    ) {
        let mut memory = [0; WORDS];
        let mut world = World::new(&mut memory);
        for step in &steps {
            world.run(step);
            world.check();
        }
    }
}
