//! The library's heap, which this program allocates from as well: whatever the tests do, harness and threads, they
//! do with it; and lists that mostly do without.

#[path = "../../src/base/few.rs"]
mod few;
#[path = "../../src/base/heap.rs"]
mod heap;
mod raw;

/// The room that they know.
mod base {
    pub(crate) use crate::raw;
}

use std::hint::black_box;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;

/// A small random number generator (xorshift).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % end
    }
}

/// Bytes that know how they have to look.
fn bytes(random: &mut Random) -> Vec<u8> {
    let doublings = 1 + random.below(18);
    let len = 1 + random.below(1 << doublings);
    let first = len.to_le_bytes()[0];
    vec![first; len]
}

fn check(bytes: &[u8], len: usize) {
    let first = len.to_le_bytes()[0];
    assert!(bytes.iter().all(|byte| *byte == first), "{len} bytes are in use elsewhere, too");
}

/// Goal: no two blocks overlap, whatever threads take and give back, their own and others'.
/// Method: each block is full of one byte; half of the blocks are given back by the next thread.
#[test]
fn a_block_is_one_owners() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 20_000;
    heap::provide();
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..THREADS).map(|_| mpsc::channel::<Vec<u8>>()).unzip();
    let mut senders = senders.into_iter();
    let first = senders.next().expect("one");
    let senders = senders.chain([first]);
    let work = |number: u64, next: mpsc::Sender<Vec<u8>>, own: mpsc::Receiver<Vec<u8>>| {
        let mut random = Random(number * 0x9e37_79b9 + 1);
        let mut kept: Vec<Vec<u8>> = Vec::new();
        for _ in 0..ROUNDS {
            let new = bytes(&mut random);
            match random.below(4) {
                0 => next.send(new).unwrap_or(()),
                _ => kept.push(new),
            }
            if kept.len() > 100 {
                let at = random.below(kept.len());
                let mut old = kept.swap_remove(at);
                let len = old.len();
                check(&old, len);
                old.reserve(random.below(5_000));
                check(&old, len);
            }
            own.try_iter().for_each(|sent| check(&sent, sent.len()));
        }
        kept.iter().for_each(|kept| check(kept, kept.len()));
    };
    thread::scope(|scope| {
        for ((number, next), own) in (0..).zip(senders).zip(receivers) {
            scope.spawn(move || work(number, next, own));
        }
    });
}

/// Goal: blocks are aligned as they were asked to be, and a mapping begins with zeros.
#[test]
fn blocks_are_aligned() {
    #[repr(align(64))]
    struct Line([u8; 3]);
    #[repr(align(4096))]
    struct Page([u8; 5]);
    for number in 0..100 {
        let (line, page) = (Box::new(Line([number; 3])), Box::new(Page([number; 5])));
        assert_eq!(line.0.as_ptr().addr() % 64, 0);
        assert_eq!(page.0.as_ptr().addr() % 4096, 0);
        let long = vec![0_u8; 1_000_000];
        assert!(long.iter().all(|byte| *byte == 0));
    }
}

/// Goal: what has been given back is used again.
/// Method: as many mappings after a hundred thousand lists as after a thousand.
#[test]
fn blocks_are_used_again() {
    let lists = |count: usize| {
        for number in 0..count {
            let list = vec![number; 100 + number % 300];
            assert_eq!(black_box(list).first(), Some(&number));
        }
        raw::mapped_bytes()
    };
    let before = lists(1_000);
    let after = lists(100_000);
    // Other tests run in this process: each of them has some megabytes.
    assert!(after < before + (1 << 27), "{before} bytes became {after}");
}

/// Goal: a list has what was put into it, however long it becomes, and drops each element once.
#[test]
fn a_short_list_becomes_a_long_one() {
    for len in 0..40 {
        let elements: Vec<Rc<usize>> = (0..len).map(Rc::new).collect();
        let counts = || elements.iter().map(Rc::strong_count).collect::<Vec<_>>();
        let mut pushed = few::Few::new();
        elements.iter().for_each(|element| pushed.push(element.clone()));
        let collected: few::Few<_> = elements.iter().cloned().collect();
        let guessed: few::Few<_> = elements.iter().filter(|_| true).cloned().collect();
        for mut list in [pushed, collected, guessed] {
            assert_eq!(*list, *elements);
            list.reverse();
            assert!(list.iter().rev().eq(&elements));
        }
        assert_eq!(counts(), vec![1; len]);
    }
}
