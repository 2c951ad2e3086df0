//! Links between processes: a network that treats packets badly, or rings in shared memory.

use super::tally::Tally;
use crate::random::Random;
use adverb_engine::{EagerHeader, Time};
use adverb_wire::{Headers, Qpn};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;

/// Medium between two processes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Medium {
    /// Packets that may get lost.
    Network,
    /// Records in memory; messages by reference and requests carried out on the peer's memory, too.
    Memory,
    /// Records in memory, and nothing else of the peer's.
    RecordsOnly,
}

impl Medium {
    pub(super) const fn is_memory(self) -> bool {
        matches!(self, Self::Memory | Self::RecordsOnly)
    }
}

/// Faults of the network, each in a million packets.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Weather {
    /// They get lost.
    pub loss_ppm: u32,
    /// They come twice.
    pub duplication_ppm: u32,
    /// They come late.
    pub reordering_ppm: u32,
}

/// Packet or record in transit.
#[derive(Clone, Debug)]
pub(super) enum Frame {
    Packet {
        headers: Headers,
        payload: Vec<u8>,
    },
    /// A packet whose bytes are where they were posted.
    ByReference {
        headers: Headers,
        bytes: Option<Rc<Vec<u8>>>,
        len: u32,
    },
    Eager {
        words: [u64; 2],
        payload: Vec<u8>,
    },
}

impl Frame {
    pub(super) fn dest(&self) -> Option<Qpn> {
        match self {
            Self::Packet { headers, .. } | Self::ByReference { headers, .. } => {
                Some(headers.bth.dest_qp)
            }
            Self::Eager { words, .. } => EagerHeader::parse(*words).map(|eager| eager.dest_qp),
        }
    }
}

/// A ring from one process to another.
#[derive(Debug)]
struct Ring {
    records: VecDeque<(Time, Frame)>,
    /// The last record is to be seen then; none overtakes another.
    last: Time,
    /// One end has gone, or nonsense was found: nothing goes in or comes out.
    cut: bool,
}

impl Ring {
    const fn new(last: Time) -> Self {
        Self { records: VecDeque::new(), last, cut: false }
    }
}

impl Default for Ring {
    fn default() -> Self {
        Self::new(Time::ZERO)
    }
}

/// Packets on their way to a process, by when they arrive; and where they are from.
type Inbox = BTreeMap<(Time, u64), (usize, Frame)>;

/// Records that a ring holds, at least and at most.
const RING_RECORDS: [u64; 2] = [3, 40];
/// Packets that wait for a process at once: what is more gets lost.
const INBOX_PACKETS: usize = 256;

/// All of them.
#[derive(Debug)]
pub(super) struct Wires {
    weather: Weather,
    nonsense: bool,
    mistakes: bool,
    random: Random,
    media: BTreeMap<(usize, usize), Medium>,
    rings: BTreeMap<(usize, usize), Ring>,
    /// Packets, by where they go.
    inboxes: BTreeMap<usize, Inbox>,
    next: u64,
    /// Records that a ring holds.
    ring_records: u64,
    /// Packets that found no room.
    lost: u64,
    seen: Seen,
}

/// Events in transit.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    lost: u64,
    duplicated: u64,
    reordered: u64,
    spoiled: u64,
    twice: u64,
    cut: u64,
}

impl Wires {
    pub(super) fn new(
        weather: Weather,
        nonsense: bool,
        mistakes: bool,
        mut random: Random,
    ) -> Self {
        let [least, most] = RING_RECORDS;
        Self {
            ring_records: random.between(least, most),
            weather,
            nonsense,
            mistakes,
            random,
            media: BTreeMap::new(),
            rings: BTreeMap::new(),
            inboxes: BTreeMap::new(),
            next: 0,
            lost: 0,
            seen: Seen::default(),
        }
    }

    /// What is between two processes, and nothing else.
    pub(super) fn between(a: usize, b: usize, medium: Medium) -> Self {
        let mut wires = Self::new(Weather::default(), false, false, Random::new(0));
        wires.connect(a, b, medium);
        wires
    }

    /// All records on their way from one process to another.
    pub(super) fn records(&self, from: usize, to: usize) -> impl Iterator<Item = &Frame> {
        let ring = self.rings.get(&(from, to));
        ring.into_iter().flat_map(|ring| ring.records.iter().map(|(_, frame)| frame))
    }

    /// Adds what has happened on the way.
    pub(super) fn count(&self, tally: &mut Tally) {
        let Seen { lost, duplicated, reordered, spoiled, twice, cut } = self.seen;
        tally.lost += lost + self.lost;
        tally.duplicated += duplicated;
        tally.reordered += reordered;
        tally.spoiled += spoiled;
        tally.twice += twice;
        tally.cut += cut;
    }

    /// Programs ask for what they were not granted, now and then.
    pub(super) const fn allows_mistakes(&self) -> bool {
        self.mistakes
    }

    /// Packets that found no room.
    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn medium(&self, a: usize, b: usize) -> Option<Medium> {
        self.media.get(&(a.min(b), a.max(b))).copied()
    }

    pub(super) fn connect(&mut self, a: usize, b: usize, medium: Medium) {
        self.media.insert((a.min(b), a.max(b)), medium);
        if medium.is_memory() {
            self.rings.entry((a, b)).or_default();
            self.rings.entry((b, a)).or_default();
        }
    }

    /// There is another ring where one was cut.
    pub(super) fn mend(&mut self, [a, b]: [usize; 2]) {
        for way in [(a, b), (b, a)] {
            if let Some(ring) = self.rings.get_mut(&way).filter(|ring| ring.cut) {
                *ring = Ring::new(ring.last);
            }
        }
    }

    /// A process has ended: the rings to and from it are cut, but what it has written can be read. One that
    /// has `died` may have been in the midst of writing what has not been seen; says how many records that were.
    pub(super) fn forget(&mut self, process: usize, died: Option<Time>) -> u64 {
        let mut torn = 0;
        for ((from, to), ring) in &mut self.rings {
            if *to == process {
                ring.records.clear();
            }
            while *from == process
                && let Some(now) = died
                && ring.records.back().is_some_and(|(at, _)| *at > now)
                && self.random.below(2) == 0
            {
                ring.records.pop_back();
                torn += 1;
            }
            ring.cut |= *from == process || *to == process;
        }
        self.inboxes.remove(&process);
        torn
    }

    pub(super) fn cut(&mut self, from: usize, to: usize) {
        self.seen.cut += 1;
        for way in [(from, to), (to, from)] {
            if let Some(ring) = self.rings.get_mut(&way) {
                ring.cut = true;
                ring.records.clear();
            }
        }
    }

    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.rings.get(&(from, to)).is_some_and(|ring| ring.cut)
    }

    pub(super) fn has_room(&self, from: usize, to: usize) -> bool {
        self.rings
            .get(&(from, to))
            .is_none_or(|ring| !ring.cut && count(ring.records.len()) < self.ring_records)
    }

    /// Takes what a process sends.
    pub(super) fn carry(&mut self, from: usize, to: usize, frame: Frame, now: Time) {
        match self.medium(from, to).filter(|medium| medium.is_memory()) {
            Some(_) => self.write(from, to, frame, now),
            None => self.transmit(from, to, frame, now),
        }
    }

    fn write(&mut self, from: usize, to: usize, mut frame: Frame, now: Time) {
        let Self { rings, random, seen, .. } = self;
        let lot = if self.nonsense { random.below(500) } else { u64::MAX };
        if lot == 0 {
            seen.spoiled += 1;
            spoil(&mut frame, random);
        }
        let ring = rings.entry((from, to)).or_default();
        if ring.cut {
            return;
        }
        // Most are seen at once, some when the cache line has come.
        let late = if random.below(4) == 0 { random.below(3_000) } else { random.below(100) };
        ring.last = ring.last.max(now.plus_nanos(late));
        if lot == 1 {
            seen.twice += 1;
            ring.records.push_back((ring.last, frame.clone()));
        }
        ring.records.push_back((ring.last, frame));
    }

    fn transmit(&mut self, from: usize, to: usize, frame: Frame, now: Time) {
        let Self { random, weather, inboxes, next, lost, seen, .. } = self;
        if random.chance(weather.loss_ppm) {
            seen.lost += 1;
            return;
        }
        let inbox = inboxes.entry(to).or_default();
        let copies = 1 + u64::from(random.chance(weather.duplication_ppm));
        seen.duplicated += copies - 1;
        for _ in 0..copies {
            let detour = match random.chance(weather.reordering_ppm) {
                true => random.below(50_000),
                false => 0,
            };
            seen.reordered += u64::from(detour > 0);
            if inbox.len() < INBOX_PACKETS {
                *next += 1;
                // What takes no detour keeps its order.
                let at = now.plus_nanos(3_000 + detour);
                inbox.insert((at, *next), (from, frame.clone()));
            } else {
                *lost += 1;
            }
        }
    }

    /// When something is there for a process, at the earliest.
    pub(super) fn next_arrival(&self, process: usize) -> Option<Time> {
        let packet = self.inboxes.get(&process).and_then(|inbox| inbox.keys().next());
        let packet = packet.map(|(at, _)| *at);
        let rings = self.rings.iter().filter(|((_, to), _)| *to == process);
        let record = rings.filter_map(|(_, ring)| ring.records.front().map(|(at, _)| *at)).min();
        [packet, record].into_iter().flatten().min()
    }

    /// Takes the next record for a process that can be seen; and where it is from.
    pub(super) fn take_record(&mut self, process: usize, now: Time) -> Option<(usize, Frame)> {
        let mut rings = self.rings.iter_mut().filter(|((_, to), _)| *to == process);
        rings.find_map(|((from, _), ring)| {
            ring.records.front().filter(|(at, _)| *at <= now)?;
            ring.records.pop_front().map(|(_, frame)| (*from, frame))
        })
    }

    /// Takes the next packet for a process that has arrived; and where it is from.
    pub(super) fn take_packet(&mut self, process: usize, now: Time) -> Option<(usize, Frame)> {
        let inbox = self.inboxes.get_mut(&process)?;
        let entry = inbox.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(entry.remove())
    }
}

fn count(records: usize) -> u64 {
    u64::try_from(records).unwrap_or(u64::MAX)
}

/// Writes nonsense into a record.
fn spoil(frame: &mut Frame, random: &mut Random) {
    match frame {
        Frame::Packet { headers, payload } => match random.below(3) {
            0 => payload.truncate(payload.len() / 2),
            1 => {
                headers.bth.psn =
                    headers.bth.psn.plus(random.below(1 << 23).try_into().unwrap_or(1))
            }
            _ => headers.bth.dest_qp = Qpn::new(random.below(1 << 24).try_into().unwrap_or(1)),
        },
        Frame::ByReference { len, bytes, .. } => match random.below(2) {
            0 => *len = random.below(1 << 32).try_into().unwrap_or(7),
            _ => *bytes = None,
        },
        Frame::Eager { words: [to, back], payload } => match random.below(5) {
            0 => payload.truncate(payload.len() / 2),
            1 => payload.iter_mut().for_each(|byte| *byte = !*byte),
            2 => *to ^= 1 << random.below(64),
            3 => *back ^= 1 << random.below(64),
            _ => *back |= 0xe0 << 24, // Flags that there are not.
        },
    }
}
