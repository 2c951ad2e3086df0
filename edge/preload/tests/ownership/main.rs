//! Ownership of slots, with processes that end at any instant.
//!
//! The library's symbols are those of the C library, so that it runs no tests within: its modules that can
//! do without system calls are tested here.
//!
//! # Safety
//!
//! What is made of zeros are atomics, and structures and arrays of them.

#[path = "../../src/socket/history.rs"]
#[expect(dead_code, reason = "what is used depends on the crate that includes it")]
mod history;
#[path = "../../src/transport/datagram/listing.rs"]
mod listing;
#[path = "../../src/socket/ownership.rs"]
#[expect(dead_code, reason = "what is used depends on the crate that includes it")]
mod ownership;

/// The room that `listing.rs` knows.
mod base {
    pub(crate) use crate::raw;
}

/// What `listing.rs` reads with, by the standard library.
mod raw {
    use std::ffi::{CStr, OsStr};
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::ffi::OsStrExt;

    pub(crate) const PIECE_BYTES: usize = 4096;

    pub(crate) fn read_pieces(
        path: &CStr,
        first: usize,
        most: usize,
        bytes: &mut Vec<u8>,
        ends: &mut Vec<usize>,
    ) -> Option<()> {
        let mut file = File::open(OsStr::from_bytes(path.to_bytes())).ok()?;
        bytes.clear();
        ends.clear();
        while bytes.len() < most {
            let len = if ends.is_empty() { first.min(PIECE_BYTES) } else { PIECE_BYTES };
            let mut piece = vec![0; len];
            let got = file.read(&mut piece).ok()?;
            piece.truncate(got);
            if piece.is_empty() {
                break;
            }
            bytes.append(&mut piece);
            ends.push(bytes.len());
        }
        Some(())
    }
}

use ownership::{
    Allocation, Bits, EntryState, Ownership, PLACES, Place, Places, Reserved, Suspect,
    UNCONFIRMED_S, Vacancies, WORDS,
};
use std::collections::HashSet;
use std::mem::zeroed;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const SLOTS: usize = 256;
const HERE: u64 = 7;

/// Slots, a list for each test.
static HOLDINGS: [[Allocation; SLOTS]; 8] = {
    // SAFETY: they are atomics, for which zeros are legal.
    unsafe { zeroed() }
};

fn allocation<const TEST: usize>(slot: u32) -> Option<&'static Allocation> {
    HOLDINGS.get(TEST)?.get(usize::try_from(slot).ok()?)
}

/// A family that begins with one process, of number 100.
fn family<const TEST: usize>() -> Ownership<'static> {
    let bits = (0..(WORDS - 1) * SLOTS).map(|_| {
        // SAFETY: they are atomics, for which zeros are legal.
        unsafe { zeroed() }
    });
    let bits: Vec<Bits> = bits.collect();
    // SAFETY: as above.
    let places: Box<Places> = unsafe { Box::new_zeroed().assume_init() };
    let free = Vec::from_iter((0..SLOTS / 64).map(|_| AtomicU64::new(0)));
    let low = Box::leak(Box::new(AtomicU32::new(0)));
    let ownership = Ownership {
        places: Box::leak(places),
        bits: bits.leak(),
        slots_max: SLOTS,
        vacancies: Vacancies { bits: free.leak(), low },
        slot: allocation::<TEST>,
    };
    ownership.places.found(100, HERE);
    ownership
}

const ME: Place = Place::FOUNDER;

/// A child of that number.
fn child(ownership: &Ownership<'_>, process: u32) -> Place {
    let reserved = ownership.places.reserve(ME, HERE).expect("a place");
    ownership.places.start(reserved, Some(process)).expect("its place");
    reserved.place
}

/// A slot that a process makes and has a descriptor of.
fn make(ownership: &Ownership<'_>, place: Place, slot: u32) {
    ownership.places.more(place);
    let life = (ownership.slot)(slot).expect("a slot");
    assert!(life.claim(place), "slot {slot} is not free");
    ownership.get_in_hand(place, slot);
    life.settle(place);
    ownership.name(place, slot);
}

/// Another process has it too.
fn share(ownership: &Ownership<'_>, place: Place, slot: u32) {
    ownership.get(place, slot);
    ownership.name(place, slot);
}

fn close(ownership: &Ownership<'_>, place: Place, slot: u32) {
    ownership.unname(place, slot);
    ownership.give_back(place, slot);
}

/// Those of the numbers are dead. Returns the slots that were cleared.
fn sweep(ownership: &Ownership<'_>, me: Place, now_s: u32, dead: &[u32]) -> Option<Vec<u32>> {
    let judge = |suspect: Suspect| suspect.space == HERE && dead.contains(&suspect.process);
    let mut cleared = Vec::new();
    let slots = u32::try_from(SLOTS).expect("few");
    ownership.sweep(me, slots, now_s, &judge, &mut |slot| cleared.push(slot))?;
    Some(cleared)
}

/// Slots that can be had.
fn free(ownership: &Ownership<'_>, place: Place) -> HashSet<u32> {
    let slots = u32::try_from(SLOTS).expect("few");
    let taken = std::iter::from_fn(|| ownership.vacancies.take(slots));
    taken.filter(|slot| (ownership.slot)(*slot).is_some_and(|life| life.claim(place))).collect()
}

#[test]
fn a_slot_is_free_when_the_last_process_gives_it_back() {
    let ownership = family::<0>();
    let other = child(&ownership, 101);
    make(&ownership, ME, 3);
    share(&ownership, other, 3);
    close(&ownership, ME, 3);
    assert_eq!(ownership.vacancies.take(64), None);
    assert_eq!(ownership.others(ME, 3).collect::<Vec<_>>(), [other]);
    close(&ownership, other, 3);
    // To give back what one has not got changes nothing.
    close(&ownership, other, 3);
    assert_eq!(ownership.vacancies.take(64), Some(3));
    assert_eq!(ownership.vacancies.take(64), None);
}

#[test]
fn what_the_dead_had_alone_is_free_and_what_others_have_is_theirs() {
    let ownership = family::<1>();
    let (dead, alive) = (child(&ownership, 101), child(&ownership, 102));
    make(&ownership, dead, 1);
    make(&ownership, dead, 2);
    share(&ownership, alive, 2);
    make(&ownership, alive, 3);
    assert_eq!(sweep(&ownership, ME, 0, &[]), Some(vec![]));
    assert_eq!(ownership.others(alive, 2).collect::<Vec<_>>(), [dead]);
    assert_eq!(sweep(&ownership, ME, 0, &[101]), Some(vec![1]));
    assert_eq!(ownership.others(alive, 2).count(), 0);
    assert_eq!(ownership.places.state_of(dead), EntryState::Free);
    // The process that has the place next has none of it.
    assert_eq!(child(&ownership, 103), dead);
    close(&ownership, dead, 2);
    let slots = u32::try_from(SLOTS).expect("few");
    assert_eq!(free(&ownership, ME), (0..slots).filter(|slot| ![2, 3].contains(slot)).collect());
}

/// Goal: whatever a process was about to do when it was killed, its slots are free afterwards, once.
/// Method: every prefix of the steps of which making and closing consist.
#[test]
fn a_process_may_be_killed_between_any_two_steps() {
    let ownership = family::<2>();
    for last in 0..9 {
        let place = child(&ownership, 101);
        let life = allocation::<2>(9).expect("a slot");
        let steps: [&dyn Fn(); 8] = [
            &|| ownership.places.more(place),
            &|| assert!(life.claim(place)),
            &|| ownership.get_in_hand(place, 9),
            &|| life.settle(place),
            &|| ownership.name(place, 9),
            &|| ownership.unname(place, 9),
            &|| ownership.give_back(place, 9),
            // A slot that was freed, and of which no process was told.
            &|| _ = ownership.vacancies.take(64),
        ];
        steps.iter().take(last).for_each(|step| step());
        let cleared = sweep(&ownership, ME, 0, &[101]).expect("no other process sweeps");
        assert_eq!(!cleared.is_empty(), (3..7).contains(&last), "{last} steps");
        // A process that dies with slots has others look at all of them.
        let other = child(&ownership, 102);
        ownership.places.more(other);
        sweep(&ownership, ME, 0, &[102]).expect("no other process sweeps");
        assert!(last == 0 || free(&ownership, ME).remove(&9), "{last} steps");
        if last != 0 {
            // It is in hand now: as if it had been used.
            ownership.get_in_hand(ME, 9);
            life.settle(ME);
            ownership.give_back(ME, 9);
            assert_eq!(ownership.vacancies.take(64), Some(9));
        }
    }
}

#[test]
fn a_sweeper_that_was_killed_is_followed_by_the_next() {
    let ownership = family::<3>();
    let (dead, sweeper) = (child(&ownership, 101), child(&ownership, 102));
    for slot in 0..10 {
        make(&ownership, dead, slot);
    }
    // It was killed in the midst: while it cleared a slot away, no other could sweep.
    let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let judge = |suspect: Suspect| suspect.process == 101;
        let mut count = 0;
        ownership.sweep(sweeper, 64, 0, &judge, &mut |_| {
            count += 1;
            assert_eq!(sweep(&ownership, ME, 0, &[101]), None);
            assert!(count < 5, "killed");
        })
    }));
    assert!(killed.is_err());
    assert_eq!(sweep(&ownership, ME, 0, &[101]), None);
    // The first five have been looked at; the last of those was in its hands.
    assert_eq!(sweep(&ownership, ME, 0, &[101, 102]), Some((5..10).collect()));
    let again = child(&ownership, 103);
    ownership.places.more(again);
    assert_eq!(sweep(&ownership, ME, 0, &[103]), Some(vec![]));
    assert_eq!(free(&ownership, ME).len(), SLOTS);
}

#[test]
fn a_child_that_is_not_confirmed_is_waited_for() {
    let ownership = family::<4>();
    let maker = child(&ownership, 101);
    let expect = || ownership.places.reserve(maker, HERE).expect("a place");
    let (late, never, soon) = (expect(), expect(), expect());
    for (slot, reserved) in [late, never, soon].into_iter().enumerate() {
        make(&ownership, maker, u32::try_from(slot).expect("few"));
        share(&ownership, reserved.place, u32::try_from(slot).expect("few"));
    }
    // The maker is killed while it forks.
    assert_eq!(sweep(&ownership, ME, 1000, &[101]), Some(vec![]));
    assert_eq!(ownership.places.state_of(late.place), EntryState::Unconfirmed(1000));
    assert!(ownership.places.start(soon, Some(103)).is_ok());
    assert_eq!(sweep(&ownership, ME, 1000 + UNCONFIRMED_S, &[]), Some(vec![]));
    assert_eq!(sweep(&ownership, ME, 1001 + UNCONFIRMED_S, &[]), Some(vec![0, 1]));
    assert!(ownership.places.start(late, Some(104)).is_err());
    // Another process has its place by now, and is not taken for it.
    let other = child(&ownership, 105);
    assert!([late.place, never.place].contains(&other) || other == maker);
    assert!(ownership.places.start(late, Some(104)).is_err());
    ownership.places.confirm(late, 104);
    assert_eq!(ownership.places.state_of(soon.place), EntryState::Live(103));
}

#[test]
fn who_cannot_be_judged_is_left_alone() {
    let ownership = family::<5>();
    let far = ownership.places.reserve(ME, HERE + 1).expect("a place");
    ownership.places.start(far, Some(101)).expect("its place");
    let unknown = ownership.places.reserve(ME, HERE).expect("a place");
    ownership.places.start(unknown, None).expect("its place");
    make(&ownership, far.place, 1);
    make(&ownership, unknown.place, 2);
    assert_eq!(sweep(&ownership, ME, 0, &[0, 101]), Some(vec![]));
    assert_eq!(ownership.places.state_of(unknown.place), EntryState::Foreign);
    // Its parent knows a number that means something.
    ownership.places.confirm(unknown, 102);
    assert_eq!(sweep(&ownership, ME, 0, &[101, 102]), Some(vec![2]));
    // Processes for which there was no place are not told apart.
    share(&ownership, Place::UNTRACKED, 5);
    assert_eq!(ownership.others(ME, 5).collect::<Vec<_>>(), [Place::UNTRACKED]);
    close(&ownership, Place::UNTRACKED, 5);
    assert!(!ownership.places.is_gone(Place::UNTRACKED, &|_| true));
    assert_eq!(ownership.others(ME, 5).count(), 1);
}

#[test]
fn there_are_as_many_places_as_there_are() {
    let ownership = family::<6>();
    let all: Vec<Reserved> = std::iter::from_fn(|| ownership.places.reserve(ME, HERE)).collect();
    assert_eq!(all.len(), PLACES - 2);
    assert_eq!(ownership.places.is_due(), (true, true));
    let last = all.last().expect("many").place;
    for (number, reserved) in all.iter().enumerate() {
        assert_eq!(Reserved::unpack(reserved.pack()), *reserved);
        let process = if number < 600 { 102 } else { 101 };
        ownership.places.start(*reserved, Some(process)).expect("its place");
    }
    make(&ownership, last, 200);
    assert_eq!(ownership.others(ME, 200).collect::<Vec<_>>(), [last]);
    // None is dead: it has to be looked again next time.
    assert_eq!(sweep(&ownership, ME, 0, &[]), Some(vec![]));
    assert_eq!(ownership.places.is_due(), (true, true));
    assert_eq!(sweep(&ownership, ME, 0, &[101]), Some(vec![200]));
    // Before there is no place left again, those of the dead are looked for.
    let more = || (!ownership.places.is_due().0).then(|| ownership.places.reserve(ME, HERE));
    let more: Vec<_> = std::iter::from_fn(more).collect();
    assert!((100..400).contains(&more.len()) && more.iter().all(Option::is_some));
    assert_eq!(sweep(&ownership, ME, 0, &[102]), Some(vec![]));
    assert_eq!(ownership.places.is_due(), (false, false));
    let again = ownership.places.reserve(ME, HERE).expect("a place");
    assert_eq!(again.place, all[0].place);
    ownership.places.cancel(again);
    assert_eq!(ownership.places.state_of(again.place), EntryState::Free);
}

/// Goal: slots are neither lost nor had twice, whichever processes make, share, lend, close and sweep at once.
/// Method: threads as processes, some of which end in the midst and come back in another place.
#[test]
fn processes_and_sweepers_at_once_lose_no_slot() {
    let ownership = family::<7>();
    let slots = u32::try_from(SLOTS).expect("few");
    let owners: Vec<AtomicU32> = (0..SLOTS).map(|_| AtomicU32::new(0)).collect();
    (0..slots).for_each(|slot| ownership.vacancies.add(slot));
    let dead: Vec<AtomicU32> = (0..64).map(|_| AtomicU32::new(0)).collect();
    let judge = |suspect: Suspect| {
        let index = usize::try_from(suspect.process).expect("few") / 1000;
        suspect.process >= 1000 && dead[index].load(Ordering::SeqCst) >= suspect.process
    };
    std::thread::scope(|threads| {
        for number in 1..7_u32 {
            let other = child(&ownership, 100);
            let (ownership, owners, dead, judge) = (&ownership, &owners, &dead, &judge);
            threads.spawn(move || {
                for round in 0..300 {
                    let process = number * 1000 + round;
                    let reserved = loop {
                        // A process that sweeps may be held up for long.
                        if let Some(reserved) = ownership.places.reserve(ME, HERE) {
                            break reserved;
                        }
                        std::thread::yield_now();
                        ownership.sweep(ME, slots, 0, judge, &mut |_| {});
                    };
                    ownership.places.start(reserved, Some(process)).expect("its place");
                    let mut own = Vec::new();
                    for _ in 0..20 {
                        ownership.places.more(reserved.place);
                        let Some(slot) = ownership.vacancies.take(slots) else { break };
                        let at = usize::try_from(slot).expect("few");
                        if !(ownership.slot)(slot).expect("a slot").claim(reserved.place) {
                            continue;
                        }
                        ownership.get_in_hand(reserved.place, slot);
                        (ownership.slot)(slot).expect("a slot").settle(reserved.place);
                        ownership.name(reserved.place, slot);
                        assert_eq!(owners[at].swap(process, Ordering::SeqCst), 0, "slot {slot}");
                        own.push(slot);
                    }
                    // Half of it is closed; the rest is what it is killed with.
                    for (index, slot) in own.into_iter().enumerate() {
                        let at = usize::try_from(slot).expect("few");
                        if index % 3 == 0 {
                            // What another has too is still there afterwards.
                            share(ownership, other, slot);
                            let since = ownership.suspend(reserved.place, slot).expect("it has it");
                            assert!(ownership.resume(reserved.place, slot, since));
                            close(ownership, other, slot);
                        }
                        owners[at].store(0, Ordering::SeqCst);
                        if index % 2 == 0 {
                            close(ownership, reserved.place, slot);
                        }
                    }
                    dead[usize::try_from(number).expect("few")].store(process, Ordering::SeqCst);
                    if round % 3 == 0 {
                        ownership.sweep(ME, slots, 0, judge, &mut |_| {});
                    }
                }
            });
        }
    });
    let last = child(&ownership, 999);
    ownership.places.more(last);
    ownership.sweep(ME, slots, 0, &|suspect| suspect.process != 100, &mut |_| {});
    assert_eq!(free(&ownership, ME).len(), SLOTS);
}
