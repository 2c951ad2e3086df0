//! Ownership: which processes of a family have which sockets.
//!
//! Any process may be killed between any two of its instructions. So there are no counts. Each process has a
//! *place*, and each slot two bits for every place: whether that process has it, and whether it has a
//! descriptor of it. To set or clear a bit twice is as good as once. A process that sweeps after the dead can
//! therefore be killed too, and the next one goes over the same ground.
//!
//! A place is taken before a fork, and everything that the child gets is noted there, before there is a
//! child. It is free again only when no bit of it is left. Which processes are dead is not known here: callers
//! say so.
//!
//! Nothing here makes a system call. How a slot is taken and freed is [`Allocation`]; where free ones are, which
//! is no more than a hint, is [`Vacancies`].

#![expect(clippy::as_conversions, reason = "an enumeration is stored as its number")]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Processes of a family that are told apart. Place 0 is that of all others: what they have is freed only when
/// the family ends.
pub(crate) const PLACES: usize = 1024;
/// Words of bits for each slot.
pub(crate) const WORDS: usize = PLACES / u64::BITS as usize;

/// Where a process stands in the list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Place(pub(crate) u32);

impl Place {
    /// All processes for which there was no place.
    pub(crate) const UNTRACKED: Self = Self(0);
    /// The process that has made the list.
    pub(crate) const FOUNDER: Self = Self(1);

    fn word(self) -> usize {
        usize::try_from(self.0 / u64::BITS).unwrap_or(0)
    }

    fn bit(self) -> u64 {
        1 << (self.0 % u64::BITS)
    }
}

/// A place that has been taken for a child, and how often it had been taken before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Reserved {
    pub(crate) place: Place,
    turn: u32,
}

impl Reserved {
    /// For a child for which there is no place.
    pub(crate) const UNTRACKED: Self = Self { place: Place::UNTRACKED, turn: 0 };

    /// One word, which a thread keeps across a fork.
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.turn) << 32 | u64::from(self.place.0)
    }

    pub(crate) fn unpack(word: u64) -> Self {
        let (place, turn) = halves(word);
        Self { place: Place(place), turn }
    }
}

/// The lower half of a word, and the upper one.
pub(crate) fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

/// What a place is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EntryState {
    Free,
    /// The process at that place is about to have a child.
    Reserved(Place),
    /// A child may have been forked, or not, and only the child itself can say so. Since that second.
    Unconfirmed(u32),
    /// The process of that number.
    Live(u32),
    /// That process is about to become another program, or has become it.
    Exec(u32),
    /// A process of which no number is known that would mean anything here.
    Foreign,
    /// It is dead, and what it had is being taken from it.
    Dead,
}

impl EntryState {
    fn parts(self) -> (u32, u32) {
        match self {
            Self::Free => (0, 0),
            Self::Reserved(Place(maker)) => (1, maker),
            Self::Unconfirmed(since) => (2, since),
            Self::Live(process) => (3, process),
            Self::Exec(process) => (4, process),
            Self::Foreign => (5, 0),
            Self::Dead => (6, 0),
        }
    }

    /// As a word: a number, the kind, and above it how often the place has been taken.
    fn word(self, turn: u32) -> u64 {
        let (kind, number) = self.parts();
        u64::from(turn) << 35 | u64::from(kind) << 32 | u64::from(number)
    }

    fn of(word: u64) -> (Self, u32) {
        let (number, upper) = halves(word);
        let state_of = match upper & 7 {
            0 => Self::Free,
            1 => Self::Reserved(Place(number)),
            2 => Self::Unconfirmed(number),
            3 => Self::Live(number),
            4 => EntryState::Exec(number),
            6 => Self::Dead,
            _ => Self::Foreign,
        };
        (state_of, upper >> 3)
    }
}

/// A turn has so many bits, beside a kind.
const TURN_MASK: u32 = u32::MAX >> 3;

/// One process.
#[derive(Debug)]
#[repr(C, align(64))]
struct Entry {
    word: AtomicU64,
    /// Where its number means something.
    space: AtomicU64,
    /// Slots that it has, at most: raised before it gets one, and lowered after it has given it back.
    held: AtomicU32,
}

/// All of them.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Places {
    /// Places from here on have never been taken.
    used: AtomicU32,
    /// From this place on it is worth looking for dead ones first.
    mark: AtomicU32,
    /// The place of the process that sweeps, and one.
    sweeper: AtomicU32,
    entries: [Entry; PLACES],
}

/// The least mark.
const MARK_MIN: u32 = 8;
/// So long a child may take to say that it has started, in seconds.
pub(crate) const UNCONFIRMED_S: u32 = 60;

/// A process that may have ended, for the caller to judge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspect {
    pub(crate) process: u32,
    pub(crate) space: u64,
    /// It may be another program by now.
    pub(crate) is_leaving: bool,
}

impl Places {
    fn entry(&self, place: Place) -> Option<&Entry> {
        self.entries.get(usize::try_from(place.0).ok()?)
    }

    /// The standing of a place.
    pub(crate) fn state_of(&self, place: Place) -> EntryState {
        self.entry(place)
            .map_or(EntryState::Free, |entry| EntryState::of(entry.word.load(Ordering::Acquire)).0)
    }

    /// Enters the first process, before any other can know the list.
    pub(crate) fn found(&self, process: u32, space: u64) {
        let Some(entry) = self.entry(Place::FOUNDER) else { return };
        entry.space.store(space, Ordering::Relaxed);
        entry.word.store(EntryState::Live(process).word(1), Ordering::Release);
        self.used.store(Place::FOUNDER.0 + 1, Ordering::Release);
        self.mark.store(MARK_MIN, Ordering::Release);
    }

    fn taken(&self) -> impl Iterator<Item = (Place, &Entry)> {
        let used = usize::try_from(self.used.load(Ordering::Acquire)).unwrap_or(0);
        (0..).map(Place).zip(&self.entries).take(used).skip(1)
    }

    /// Whether more places are taken than it takes to look for dead ones first, and whether hardly any
    /// is left.
    pub(crate) fn is_due(&self) -> (bool, bool) {
        let mut taken = self.taken();
        let free = taken.find(|(_, entry)| {
            matches!(EntryState::of(entry.word.load(Ordering::Relaxed)).0, EntryState::Free)
        });
        let first = free.map_or(self.used.load(Ordering::Relaxed), |(place, _)| place.0);
        let is_short = usize::try_from(first).is_ok_and(|first| first >= PLACES / 2);
        (first >= self.mark.load(Ordering::Relaxed), is_short)
    }

    /// A place for a child that the process at `maker` is about to have.
    pub(crate) fn reserve(&self, maker: Place, space: u64) -> Option<Reserved> {
        for (place, entry) in (0..).map(Place).zip(&self.entries).skip(1) {
            let word = entry.word.load(Ordering::Acquire);
            let (EntryState::Free, turn) = EntryState::of(word) else { continue };
            let turn = turn.wrapping_add(1) & TURN_MASK;
            let new = EntryState::Reserved(maker).word(turn);
            // Others have to look as far before it is taken.
            self.used.fetch_max(place.0 + 1, Ordering::AcqRel);
            if entry.word.compare_exchange(word, new, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                entry.space.store(space, Ordering::Release);
                return Some(Reserved { place, turn });
            }
        }
        None
    }

    /// Changes the state of a reserved entry, if `may` says so of what it is. Returns whether it has changed,
    /// or `Err` if the entry is another process's.
    fn settle(
        &self,
        reserved: Reserved,
        new: EntryState,
        may: impl Fn(EntryState) -> bool,
    ) -> Result<bool, Lost> {
        let entry = self.entry(reserved.place).ok_or(Lost)?;
        let mut word = entry.word.load(Ordering::Acquire);
        loop {
            let (state_of, turn) = EntryState::of(word);
            if turn != reserved.turn || matches!(state_of, EntryState::Free | EntryState::Dead) {
                return Err(Lost);
            }
            if !may(state_of) {
                return Ok(false);
            }
            let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
            match entry.word.compare_exchange(word, new.word(turn), o, r) {
                Ok(_) => return Ok(true),
                Err(changed) => word = changed,
            }
        }
    }

    /// The child has started, and says so itself; `None` if its number means nothing where the place
    /// was taken. Fails if it has been given up.
    pub(crate) fn start(&self, reserved: Reserved, process: Option<u32>) -> Result<(), Lost> {
        let new = process.map_or(EntryState::Foreign, EntryState::Live);
        let may = |was| matches!(was, EntryState::Reserved(_) | EntryState::Unconfirmed(_));
        self.settle(reserved, new, may).map(|_| ())
    }

    /// The child has this number, says its parent. It may have ended since.
    pub(crate) fn confirm(&self, reserved: Reserved, process: u32) {
        let may = |was| {
            matches!(
                was,
                EntryState::Reserved(_) | EntryState::Unconfirmed(_) | EntryState::Foreign
            )
        };
        let _ = self.settle(reserved, EntryState::Live(process), may);
    }

    /// Whether there is a child only the child itself can say.
    pub(crate) fn doubt(&self, reserved: Reserved, now_s: u32) {
        let may = |was| matches!(was, EntryState::Reserved(_));
        let _ = self.settle(reserved, EntryState::Unconfirmed(now_s), may);
    }

    /// There is no child. Its bits have been cleared.
    pub(crate) fn cancel(&self, reserved: Reserved) {
        if let Some(entry) = self.entry(reserved.place)
            && reserved.place != Place::UNTRACKED
        {
            entry.held.store(0, Ordering::Relaxed);
            entry.word.store(EntryState::Free.word(reserved.turn), Ordering::Release);
        }
    }

    /// The process at a place is about to become another program, or goes on with this one after all.
    pub(crate) fn set_exec(&self, place: Place, process: u32, is_leaving: bool) {
        let Some(entry) = self.entry(place).filter(|_| place != Place::UNTRACKED) else { return };
        let word = entry.word.load(Ordering::Acquire);
        let new = if is_leaving { EntryState::Exec(process) } else { EntryState::Live(process) };
        if let (EntryState::Live(_) | EntryState::Exec(_), turn) = EntryState::of(word) {
            let _ = entry.word.compare_exchange(
                word,
                new.word(turn),
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
    }

    /// The process at a place is about to have one slot more.
    pub(crate) fn more(&self, place: Place) {
        if let Some(entry) = self.entry(place) {
            entry.held.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// It has one less.
    pub(crate) fn fewer(&self, place: Place) {
        if let Some(entry) = self.entry(place) {
            entry.held.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Whether the process at a place has ended, as far as `judge` can tell.
    pub(crate) fn is_gone(&self, place: Place, judge: &dyn Fn(Suspect) -> bool) -> bool {
        let Some(entry) = self.entry(place).filter(|_| place != Place::UNTRACKED) else {
            return false;
        };
        let space = entry.space.load(Ordering::Acquire);
        match EntryState::of(entry.word.load(Ordering::Acquire)).0 {
            EntryState::Live(process) => judge(Suspect { process, space, is_leaving: false }),
            EntryState::Exec(process) => judge(Suspect { process, space, is_leaving: true }),
            EntryState::Dead => true,
            EntryState::Free
            | EntryState::Reserved(_)
            | EntryState::Unconfirmed(_)
            | EntryState::Foreign => false,
        }
    }

    /// One process sweeps at a time, and by one thread. A sweeper that has been killed is followed by the
    /// next.
    fn begin(&self, me: Place, judge: &dyn Fn(Suspect) -> bool) -> bool {
        let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
        let mine = me.0 + 1;
        match self.sweeper.compare_exchange(0, mine, o, r) {
            Ok(_) => true,
            Err(other) => {
                other != mine
                    && self.is_gone(Place(other - 1), judge)
                    && self.sweeper.compare_exchange(other, mine, o, r).is_ok()
            }
        }
    }

    fn finish(&self) {
        self.sweeper.store(0, Ordering::Release);
    }

    /// Marks the dead, and returns them, and whether any of them had a slot.
    fn mark_dead(&self, now_s: u32, judge: &dyn Fn(Suspect) -> bool) -> (Dead, bool) {
        let (mut dead, mut had_any) = (Dead::default(), false);
        for (place, entry) in self.taken() {
            let word = entry.word.load(Ordering::Acquire);
            let (state_of, turn) = EntryState::of(word);
            let is_over = match state_of {
                EntryState::Unconfirmed(since) => now_s.wrapping_sub(since) > UNCONFIRMED_S,
                EntryState::Free
                | EntryState::Reserved(_)
                | EntryState::Live(_)
                | EntryState::Exec(_)
                | EntryState::Foreign
                | EntryState::Dead => self.is_gone(place, judge),
            };
            let new = EntryState::Dead.word(turn);
            let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
            if is_over && entry.word.compare_exchange(word, new, o, r).is_ok() {
                dead.add(place);
                had_any |= entry.held.load(Ordering::Acquire) != 0;
            }
        }
        // Children whose parents will never confirm them.
        for (place, entry) in self.taken() {
            if let (EntryState::Reserved(maker), turn) =
                EntryState::of(entry.word.load(Ordering::Acquire))
                && dead.has(maker)
            {
                self.doubt(Reserved { place, turn }, now_s);
            }
        }
        (dead, had_any)
    }

    /// Nothing is left of the dead: their places are free. Says when to look again.
    fn free_dead(&self, dead: &Dead) {
        let mut taken = 0;
        for (place, entry) in self.taken() {
            let (state_of, turn) = EntryState::of(entry.word.load(Ordering::Acquire));
            if dead.has(place) {
                entry.held.store(0, Ordering::Relaxed);
                entry.word.store(EntryState::Free.word(turn), Ordering::Release);
            } else if state_of != EntryState::Free {
                taken += 1;
            }
        }
        // When as many more are taken, or half of those that are left.
        let left = u32::try_from(PLACES).unwrap_or(0).saturating_sub(taken);
        let mark = MARK_MIN.max(taken + taken.min(left / 2));
        self.mark.store(mark, Ordering::Release);
    }
}

/// A place is another process's by now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lost;

/// Places of the dead.
#[derive(Debug, Default)]
struct Dead([u64; WORDS]);

impl Dead {
    fn add(&mut self, place: Place) {
        if let Some(word) = self.0.get_mut(place.word()) {
            *word |= place.bit();
        }
    }

    fn has(&self, place: Place) -> bool {
        self.0.get(place.word()).is_some_and(|word| word & place.bit() != 0)
    }
}

/// Which of 64 processes have a slot.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Bits {
    has: AtomicU64,
    /// Those that have a descriptor of it. None of them is not among the others.
    names: AtomicU64,
}

/// How a slot is taken and freed, and which processes have it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Allocation {
    /// Whether it is free, and how often it has been taken.
    life: AtomicU64,
    /// The bits of the first places, which few families go beyond.
    first: Bits,
}

/// The low bits of how often it has been taken say how often it has stayed in use after all.
const STAYS_MASK: u32 = 0xff;
const FREE: u32 = 0;
const IN_USE: u32 = 1;
/// A process prepares it, or clears it away: this, and its place.
const IN_HAND: u32 = 2;

impl Allocation {
    fn parts(&self) -> (u32, u32) {
        halves(self.life.load(Ordering::Acquire))
    }

    fn turn(&self, from: (u32, u32), to: (u32, u32)) -> bool {
        let word = |(state, count): (u32, u32)| u64::from(count) << 32 | u64::from(state);
        let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
        self.life.compare_exchange(word(from), word(to), o, r).is_ok()
    }

    /// Takes a free slot in hand. Returns false if another process was faster.
    pub(crate) fn claim(&self, me: Place) -> bool {
        let (state, count) = self.parts();
        let next = (count | STAYS_MASK).wrapping_add(1);
        state == FREE && self.turn((FREE, count), (IN_HAND + me.0, next))
    }

    /// It stays in use, as it has been since it was taken that often: a process that is about to find that none
    /// has it is too late. Returns false if it has been freed.
    fn stay(&self, since: u32) -> bool {
        let (mut state, mut count) = self.parts();
        while state == IN_USE && count | STAYS_MASK == since | STAYS_MASK {
            let next = count & !STAYS_MASK | count.wrapping_add(1) & STAYS_MASK;
            if self.turn((state, count), (state, next)) {
                return true;
            }
            (state, count) = self.parts();
        }
        false
    }

    /// It is ready: what was noted before for its owners counts from now on.
    pub(crate) fn settle(&self, me: Place) {
        let (_, count) = self.parts();
        let settled = self.turn((IN_HAND + me.0, count), (IN_USE, count));
        debug_assert!(settled, "no other process may touch what is in hand");
    }
}

/// Which slots are free. A bit that is missing is found again by the next sweep; one too many is found out
/// when the slot is claimed.
#[derive(Debug)]
pub(crate) struct Vacancies<'a> {
    pub(crate) bits: &'a [AtomicU64],
    /// No word below has a bit, as far as is known.
    pub(crate) low: &'a AtomicU32,
}

impl Vacancies<'_> {
    /// A slot that is free, it seems, of those below `fresh`.
    pub(crate) fn take(&self, fresh: u32) -> Option<u32> {
        let end = usize::try_from(fresh.div_ceil(u64::BITS)).ok()?;
        let first = self.low.load(Ordering::Relaxed);
        let start = usize::try_from(first).ok()?.min(end);
        let (before, behind) = self.bits.get(..end)?.split_at_checked(start)?;
        let ways = behind.iter().zip(first..).chain(before.iter().zip(0..));
        for (word, number) in ways {
            let mut seen = word.load(Ordering::Relaxed);
            while seen != 0 {
                let bit = seen.trailing_zeros();
                seen = word.fetch_and(!(1 << bit), Ordering::AcqRel);
                if seen & 1 << bit != 0 {
                    if number != first {
                        let (o, r) = (Ordering::Relaxed, Ordering::Relaxed);
                        let _ = self.low.compare_exchange(first, number, o, r);
                    }
                    return Some(number * u64::BITS + bit);
                }
            }
        }
        None
    }

    /// A slot is free.
    pub(crate) fn add(&self, slot: u32) {
        let number = slot / u64::BITS;
        if let Some(word) = usize::try_from(number).ok().and_then(|number| self.bits.get(number)) {
            let bit = 1 << (slot % u64::BITS);
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::AcqRel);
                self.low.fetch_min(number, Ordering::Relaxed);
            }
        }
    }
}

/// All of it together.
#[derive(Debug)]
pub(crate) struct Ownership<'a> {
    pub(crate) places: &'a Places,
    pub(crate) slot: fn(u32) -> Option<&'static Allocation>,
    /// For every 64 places but the first, the bits of all slots.
    pub(crate) bits: &'a [Bits],
    pub(crate) slots_max: usize,
    pub(crate) vacancies: Vacancies<'a>,
}

impl Ownership<'_> {
    fn bits(&self, word: usize, slot: u32) -> Option<&Bits> {
        match word.checked_sub(1) {
            None => (self.slot)(slot).map(|slot| &slot.first),
            Some(word) => self.bits.get(word * self.slots_max + usize::try_from(slot).ok()?),
        }
    }

    /// The words in which there may be bits.
    fn words(&self) -> std::ops::RangeInclusive<usize> {
        let last = self.places.used.load(Ordering::Acquire).saturating_sub(1);
        0..=Place(last).word()
    }

    /// A process has a slot from now on. What it has is counted once.
    pub(crate) fn get(&self, place: Place, slot: u32) {
        let Some(bits) = self.bits(place.word(), slot) else { return };
        if bits.has.load(Ordering::Acquire) & place.bit() == 0 {
            self.places.more(place);
            bits.has.fetch_or(place.bit(), Ordering::SeqCst);
        }
    }

    /// The same, for a slot in hand: this place has been told already.
    pub(crate) fn get_in_hand(&self, place: Place, slot: u32) {
        if let Some(bits) = self.bits(place.word(), slot) {
            bits.has.fetch_or(place.bit(), Ordering::SeqCst);
        }
    }

    /// It has it no longer; if no process has, it is free.
    pub(crate) fn give_back(&self, place: Place, slot: u32) {
        if place == Place::UNTRACKED {
            return;
        }
        let (Some(bits), Some(allocation)) = (self.bits(place.word(), slot), (self.slot)(slot))
        else {
            return;
        };
        // As long as this process has it, that cannot change.
        let (_, count) = allocation.parts();
        if bits.has.fetch_and(!place.bit(), Ordering::SeqCst) & place.bit() == 0 {
            return;
        }
        if !self.is_had(slot) && allocation.turn((IN_USE, count), (FREE, count)) {
            self.vacancies.add(slot);
        }
        self.places.fewer(place);
    }

    /// A process gives up what others have as well, for now. Returns what it takes to have it again.
    pub(crate) fn suspend(&self, place: Place, slot: u32) -> Option<u32> {
        let bits = self.bits(place.word(), slot).filter(|_| place != Place::UNTRACKED)?;
        let (_, count) = (self.slot)(slot)?.parts();
        if bits.has.fetch_and(!place.bit(), Ordering::SeqCst) & place.bit() == 0 {
            return None;
        }
        self.places.fewer(place);
        Some(count)
    }

    /// It has it again. Returns false if the others have given it back meanwhile.
    pub(crate) fn resume(&self, place: Place, slot: u32, since: u32) -> bool {
        self.get(place, slot);
        let is_there = (self.slot)(slot).is_some_and(|allocation| allocation.stay(since));
        if !is_there && let Some(bits) = self.bits(place.word(), slot) {
            bits.has.fetch_and(!place.bit(), Ordering::SeqCst);
            self.places.fewer(place);
        }
        is_there
    }

    fn is_had(&self, slot: u32) -> bool {
        self.words().any(|word| {
            self.bits(word, slot).is_some_and(|bits| bits.has.load(Ordering::SeqCst) != 0)
        })
    }

    /// A process has a descriptor of a slot.
    pub(crate) fn name(&self, place: Place, slot: u32) {
        if let Some(bits) = self.bits(place.word(), slot) {
            bits.names.fetch_or(place.bit(), Ordering::SeqCst);
        }
    }

    /// It has no descriptor of it any more.
    pub(crate) fn unname(&self, place: Place, slot: u32) {
        if let Some(bits) = self.bits(place.word(), slot).filter(|_| place != Place::UNTRACKED) {
            bits.names.fetch_and(!place.bit(), Ordering::SeqCst);
        }
    }

    /// The other processes that have a descriptor of it, dead ones too.
    pub(crate) fn others(&self, me: Place, slot: u32) -> impl Iterator<Item = Place> {
        self.words().flat_map(move |word| {
            let names = self.bits(word, slot).map_or(0, |bits| bits.names.load(Ordering::SeqCst));
            let others = if word == me.word() { names & !me.bit() } else { names };
            let first = u32::try_from(word).unwrap_or(0) * u64::BITS;
            let rest = |left: &u64| Some(left & left.wrapping_sub(1));
            std::iter::successors(Some(others), rest)
                .take_while(|left| *left != 0)
                .map(move |left| Place(first + left.trailing_zeros()))
        })
    }

    /// Takes from the dead what they had, of the slots below `fresh`. `clear` is called with each slot that
    /// only dead processes had. Returns whether there were any dead, or `None` if another process sweeps.
    pub(crate) fn sweep(
        &self,
        me: Place,
        fresh: u32,
        now_s: u32,
        judge: &dyn Fn(Suspect) -> bool,
        clear: &mut dyn FnMut(u32),
    ) -> Option<bool> {
        if me == Place::UNTRACKED || !self.places.begin(me, judge) {
            return None;
        }
        let (dead, had_any) = self.places.mark_dead(now_s, judge);
        if had_any {
            (0..fresh).for_each(|slot| self.inherit(me, slot, &dead, clear));
        }
        self.places.free_dead(&dead);
        self.places.finish();
        Some(dead.0.iter().any(|word| *word != 0))
    }

    /// One slot.
    fn inherit(&self, me: Place, slot: u32, dead: &Dead, clear: &mut dyn FnMut(u32)) {
        let Some(allocation) = (self.slot)(slot) else { return };
        let mut was_had = false;
        for (word, gone) in self.words().zip(&dead.0) {
            let Some(bits) = self.bits(word, slot) else { continue };
            if bits.has.load(Ordering::Acquire) & gone != 0 {
                bits.names.fetch_and(!gone, Ordering::SeqCst);
                bits.has.fetch_and(!gone, Ordering::SeqCst);
                was_had = true;
            }
        }
        let (state, count) = allocation.parts();
        let holder = state.checked_sub(IN_HAND).map(Place);
        let is_over = match holder {
            Some(holder) => dead.has(holder),
            None => state == IN_USE && !self.is_had(slot),
        };
        if state == FREE {
            // The process that freed it may have been killed before it could say so.
            self.vacancies.add(slot);
        } else if is_over && allocation.turn((state, count), (IN_HAND + me.0, count)) {
            if was_had {
                clear(slot);
            }
            allocation.turn((IN_HAND + me.0, count), (FREE, count));
            self.vacancies.add(slot);
        }
    }
}
