//! Every interleaving of one writer and one reader of a ring, tried by a model checker; and rings
//! that were written by a stranger.
//!
//! The file under test is the device's own; the words are loom's.

#![allow(dead_code, unreachable_pub, reason = "a part of the device, seen from outside")]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

/// What the file under test finds in its surroundings.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
}

#[path = "../src/link/shm/ring.rs"]
mod ring;

use loom::sync::Arc;
use loom::thread;
use ring::{Broken, LINE, MARK, Memory, Reader, Record, Writer};
use sync::{AtomicU64, Ordering};

/// A ring of a few lines, whose records consist of words.
struct Words {
    words: Vec<AtomicU64>,
    read: AtomicU64,
}

impl Words {
    fn new(lines: usize) -> Self {
        let words = (0..lines * LINE / 8).map(|_| AtomicU64::new(0)).collect();
        Self { words, read: AtomicU64::new(0) }
    }
}

impl Memory for Words {
    fn size(&self) -> usize {
        self.words.len() * 8
    }

    fn mark(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(LINE));
        &self.words[at / 8]
    }

    fn read_up_to(&self) -> &AtomicU64 {
        &self.read
    }
}

fn write(writer: &mut Writer, memory: &Words, values: &[u64], note: u16) -> bool {
    let Some(at) = writer.reserve(memory, values.len() * 8) else {
        return false;
    };
    for (n, value) in values.iter().enumerate() {
        memory.words[at / 8 + n].store(*value, Ordering::Relaxed);
    }
    writer.commit(memory, values.len() * 8, note);
    true
}

/// Twice, for what is asked for the first time is cleared the second time.
fn prepare(writer: &mut Writer, memory: &Words) {
    for _ in 0..2 {
        drop(writer.prepare(memory));
    }
}

fn read(reader: &mut Reader, memory: &Words) -> Option<(u16, Vec<u64>)> {
    let record = reader.next(memory).unwrap()?;
    let words = &memory.words[record.at / 8..][..record.len / 8];
    let values = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    reader.release(memory, record);
    Some((record.note, values))
}

/// Goal: what is read is what was written, in order, whole and once, also around the end of the
/// ring. Method: records of one and two lines in a ring of sixteen, so that places are used again.
#[test]
fn records_arrive_whole_in_order_and_once() {
    loom::model(|| {
        let memory = Arc::new(Words::new(16));
        let (mut writer, mut reader) = (Writer::default(), Reader::default());
        // Close to the end, with places behind that have been used.
        for round in 0..13 {
            assert!(write(&mut writer, &memory, &[RECORDS[0][0]; 1], round));
            assert!(read(&mut reader, &memory).is_some());
        }
        prepare(&mut writer, &memory);
        let there = Arc::clone(&memory);
        let writing = thread::spawn(move || {
            let mut sent = 0;
            for (values, note) in RECORDS.iter().zip(0..) {
                if !write(&mut writer, &there, values, note) {
                    break;
                }
                prepare(&mut writer, &there);
                sent += 1;
            }
            sent
        });
        let mut got = 0;
        let mut check = |reader: &mut Reader| {
            let Some((note, values)) = read(reader, &memory) else {
                return false;
            };
            assert_eq!(usize::from(note), got);
            assert_eq!(values, RECORDS[got]);
            got += 1;
            true
        };
        for _ in 0..2 {
            check(&mut reader);
        }
        let sent = writing.join().unwrap();
        while check(&mut reader) {}
        assert_eq!(got, sent);
        assert!(sent >= 2);
    });
}

/// Values with bits that would make a mark, of one line and two.
const RECORDS: [&[u64]; 3] =
    [&[1 << 63 | 8, 2, 3, 4, 5, 6, 7], &[1 << 63 | 8; 9], &[1 << 62 | 64, 1 << 63 | 8]];

/// Goal: a full ring takes nothing and loses nothing, and goes on when the reader has read.
#[test]
fn a_full_ring_waits_for_its_reader() {
    loom::model(|| {
        let memory = Words::new(16);
        let (mut writer, mut reader) = (Writer::default(), Reader::default());
        for round in 0..4_u16 {
            let mut sent = 0;
            while write(&mut writer, &memory, &[u64::from(round); 8], sent) {
                sent += 1;
            }
            assert!(sent > 0, "round {round}");
            assert!(!writer.can_take(&memory, 64));
            for note in 0..sent {
                assert_eq!(read(&mut reader, &memory), Some((note, vec![u64::from(round); 8])));
            }
            assert_eq!(read(&mut reader, &memory), None);
        }
    });
}

/// Goal: a writer clears marks ahead of what it writes, and nothing that the reader has yet to read; what
/// it wrote for a record that it gave up is no mark. Method: no place but the next record's is looked at
/// by a reader that has read everything, so whatever is left there would be taken for a record.
#[test]
fn marks_are_cleared_ahead_and_a_record_may_be_given_up() {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000; // All in one thread.
    builder.check(|| {
        let memory = Words::new(16);
        let (mut writer, mut reader) = (Writer::default(), Reader::default());
        for round in 0..40_u16 {
            prepare(&mut writer, &memory);
            if let Some(at) = writer.reserve(&memory, 144).filter(|_| round % 3 == 0) {
                for word in &memory.words[at / 8..][..18] {
                    word.store(1 << 63 | 8, Ordering::Relaxed);
                }
            }
            let values = vec![1 << 63 | 8; usize::from(round % 4 * 7 + 1)];
            assert!(write(&mut writer, &memory, &values, round));
            if round % 5 == 0 {
                prepare(&mut writer, &memory);
            }
            assert_eq!(read(&mut reader, &memory), Some((round, values)));
            assert_eq!(read(&mut reader, &memory), None, "round {round}");
        }
        // Nothing is read from now on: what is cleared is behind what is written.
        let mut sent = 0;
        while write(&mut writer, &memory, &[7; 7], sent) {
            prepare(&mut writer, &memory);
            sent += 1;
        }
        for note in 0..sent {
            assert_eq!(read(&mut reader, &memory), Some((note, vec![7; 7])));
        }
        assert!(sent > 10);
    });
}

/// Goal: whatever a stranger writes, places and lengths lie in the ring.
#[test]
fn marks_that_make_no_sense_break_the_ring_and_nothing_else() {
    loom::model(|| {
        let size = 32 * LINE;
        for mark in [
            1,
            u64::MAX,
            1 << 63 | u64::from(u32::MAX),
            1 << 63 | u64::try_from(size / 4 - LINE).unwrap(),
            1 << 62 | 64,
            1 << 62,
            1 << 62 | u64::try_from(size).unwrap(),
        ] {
            let memory = Words::new(32);
            memory.words[0].store(mark, Ordering::Relaxed);
            let mut reader = Reader::default();
            assert!(reader.has_more(&memory));
            assert_eq!(reader.next(&memory), Err(Broken), "{mark:x}");
        }
        let memory = Words::new(32);
        memory.words[0].store(1 << 63 | 7 << 32 | 100, Ordering::Relaxed);
        let record = Record { at: MARK, len: 100, note: 7 };
        assert_eq!(Reader::default().next(&memory), Ok(Some(record)));
    });
}

#[test]
fn a_reader_that_claims_too_much_is_not_believed() {
    loom::model(|| {
        let memory = Words::new(32);
        let mut writer = Writer::default();
        memory.read.store(u64::MAX, Ordering::Relaxed);
        let mut sent = 0;
        while write(&mut writer, &memory, &[7; 7], 0) {
            sent += 1;
        }
        assert_eq!(sent, 31);
    });
}

/// Goal: of records that are committed unseen none is seen before they are published, and then all.
#[test]
fn records_committed_unseen_are_seen_together() {
    loom::model(|| {
        let memory = Arc::new(Words::new(16));
        let (mut writer, mut reader) = (Writer::default(), Reader::default());
        let there = Arc::clone(&memory);
        let writing = thread::spawn(move || {
            for note in 0..2 {
                let at = writer.reserve(&*there, 8).unwrap();
                there.words[at / 8].store(u64::from(note), Ordering::Relaxed);
                writer.commit_unseen(&*there, 8, note);
            }
            writer.publish(&*there);
        });
        if let Some(first) = read(&mut reader, &memory) {
            assert_eq!(first, (0, vec![0]));
            assert_eq!(read(&mut reader, &memory), Some((1, vec![1])));
        }
        writing.join().unwrap();
        while read(&mut reader, &memory).is_some() {}
        assert_eq!(reader.place_after_next(), 3 * 64);
    });
}

/// Goal: a writer that keeps many records from the reader does not keep a ring's worth.
#[test]
fn much_that_is_unseen_is_published_by_itself() {
    loom::model(|| {
        let memory = Words::new(128);
        let (mut writer, mut reader) = (Writer::default(), Reader::default());
        let mut sent = 0;
        while !reader.has_more(&memory) {
            writer.reserve(&memory, 512).unwrap();
            writer.commit_unseen(&memory, 512, sent);
            sent += 1;
        }
        assert!(sent > 1);
        for note in 0..sent {
            let record = reader.next(&memory).unwrap().unwrap();
            assert_eq!(record.note, note);
            reader.release(&memory, record);
        }
    });
}
