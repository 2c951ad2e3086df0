//! The newest record, if it is short, once more: beside the word, which readers look at all the time.
//!
//! It takes two processors as long to pass a cache line on as a call takes. So what has come is not fetched from the
//! ring, after the word has said that it is there: it comes with the word. The record is in the ring as well, for
//! readers that come too late, when the next one is here already.
//!
//! Written under the senders' lock, before the word that publishes the record; read at any time, and believed if the
//! position is the same before and afterwards.
//!
//! # Safety
//!
//! 1. What senders copy from lies in the ring of the mailbox, in one piece, and no other thread writes there.
//! 2. What readers copy to has room for as many bytes, in whole runs.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use adverb_shm::line;

/// So many bytes are short: with the word and what there is to know of the record they fill two lines.
pub(super) const NEWEST_BYTES: usize = WORDS * WORD_BYTES;
const WORDS: usize = RUNS * RUN_WORDS;
const WORD_BYTES: usize = size_of::<u64>();
/// They are copied in runs of so many words, and of so many bytes.
const RUNS: usize = 3;
const RUN_WORDS: usize = 4;
pub(crate) const RUN_BYTES: usize = RUN_WORDS * WORD_BYTES;

/// The newest record.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Newest {
    /// Where it is in the ring; [`NOWHERE`] while it is written, and if it is a long one.
    at: AtomicU64,
    head: [AtomicU32; 4],
    bytes: [[AtomicU64; RUN_WORDS]; RUNS],
}

/// No record begins there: cursors have fewer bits.
const NOWHERE: u64 = u64::MAX;

impl Newest {
    /// There is none.
    pub(super) fn clear(&self) {
        self.at.store(NOWHERE, Ordering::Relaxed);
    }

    /// A long record is about to be there, of which a short one may have been before that was not published.
    pub(super) fn forget(&self, cursor: u64) {
        if self.is_at(cursor) {
            self.clear();
        }
    }

    /// Whether the newest record, or one that may yet be, begins there.
    #[inline]
    pub(super) fn is_at(&self, cursor: u64) -> bool {
        self.at.load(Ordering::Relaxed) == cursor
    }

    /// The second line of it is about to be read.
    #[inline]
    pub(super) fn fetch_ahead(&self) {
        line::prefetch((&raw const *self).cast::<u8>().wrapping_add(line::LINE_BYTES));
    }

    /// Copies a record of at most [`NEWEST_BYTES`] bytes from the ring, which has as many at `source`.
    ///
    /// # Safety
    ///
    /// All of those may be read, and are written by no other thread meanwhile. The senders' lock is held.
    #[inline]
    pub(super) unsafe fn put(&self, cursor: u64, head: [u32; 4], source: *const u8, len: usize) {
        self.clear();
        // Readers that see any of what follows see that nothing is here.
        fence(Ordering::Release);
        for (place, value) in self.head.iter().zip(head) {
            place.store(value, Ordering::Relaxed);
        }
        let mut source = source.cast::<[AtomicU64; RUN_WORDS]>();
        for (_, run) in Self::runs(len).zip(&self.bytes) {
            // SAFETY: the caller's promise; records begin at units of 16 bytes.
            let words = unsafe { &*source };
            for (place, word) in run.iter().zip(words) {
                place.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            source = source.wrapping_add(1);
        }
        self.at.store(cursor, Ordering::Release);
    }

    /// What there is to know of the record that begins there, if it is here.
    #[inline]
    pub(super) fn head(&self, cursor: u64) -> Option<[u32; 4]> {
        if self.at.load(Ordering::Acquire) != cursor {
            return None;
        }
        let [a, b, c, d] = &self.head;
        let head = [a, b, c, d].map(|word| word.load(Ordering::Relaxed));
        self.is_still(cursor).then_some(head)
    }

    /// The runs in which so many bytes lie.
    #[inline]
    fn runs(len: usize) -> impl Iterator<Item = usize> {
        (0..len).step_by(RUN_BYTES)
    }

    /// Copies the bytes of the record that begins there, in whole runs. False: it is not here any more, and what has
    /// been copied is of no use.
    ///
    /// # Safety
    ///
    /// `into` has room for `len` bytes, rounded up to whole runs, which are nothing else's.
    #[inline]
    pub(super) unsafe fn copy(&self, cursor: u64, into: *mut u8, len: usize) -> bool {
        if self.at.load(Ordering::Acquire) != cursor {
            return false;
        }
        let mut target = into.cast::<[u64; RUN_WORDS]>();
        for (_, [a, b, c, d]) in Self::runs(len).zip(&self.bytes) {
            let words = [a, b, c, d].map(|place| place.load(Ordering::Relaxed));
            // SAFETY: the caller's promise.
            unsafe { target.write_unaligned(words) };
            target = target.wrapping_add(1);
        }
        self.is_still(cursor)
    }

    /// Whether what has been read was that of the record that begins there.
    #[inline]
    fn is_still(&self, cursor: u64) -> bool {
        fence(Ordering::Acquire);
        self.is_at(cursor)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::net::{Ipv4Addr, SocketAddr};

    use adverb_shm::file::{Expect, SharedFile};

    use super::super::{About, Mailbox, Place, Pushed};
    use super::{NEWEST_BYTES, RUN_BYTES};
    use crate::base::iovec::IoCursor;

    fn mailbox(of: &str) -> Mailbox {
        let name = format!("adverb-newest-{of}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let text = CString::new(path.to_str().expect("a path")).expect("a path");
        let file = SharedFile::open_own(&text, Expect::Nothing, 1).expect("a file");
        let about =
            About { cookie: 7, inode: 8, port: 9, domain: libc::AF_INET, is_v6_only: false };
        let made = Mailbox::make(&file, &about, 1 << 17);
        std::fs::remove_file(path).expect("it is there");
        made.expect("a mailbox")
    }

    fn enter(mailbox: &Mailbox, cookie: u64) -> Place {
        let port = u16::try_from(cookie).expect("a number");
        let from = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        mailbox.enter(cookie, from, None).expect("a place")
    }

    fn push(mailbox: &Mailbox, place: Place, bytes: &[u8]) -> Pushed {
        let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        mailbox.push(place, 0, &mut IoCursor::new(&[part]), bytes.len(), true, None)
    }

    /// The first record, as a call and as SocketXtreme reads it; `meanwhile` happens between a look at it and its use.
    fn read(mailbox: &Mailbox, meanwhile: impl FnOnce()) -> Vec<u8> {
        let _held = mailbox.hold_readers().expect("it is not spoilt");
        let beside = mailbox.front_beside();
        let front = mailbox.front().expect("a record");
        // The shorter look at it finds the same, or nothing.
        assert!(beside.is_none_or(|beside| beside == front), "{beside:?} {front:?}");
        meanwhile();
        let mut bytes = vec![0_u8; front.len];
        let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let copied = mailbox.copy(&front, &mut IoCursor::new(&[part])).expect("it has room");
        assert_eq!(copied, front.len);
        let mut words = vec![0_u64; front.len.next_multiple_of(RUN_BYTES) / size_of::<u64>()];
        // SAFETY: it has room for as many bytes, in whole runs.
        if unsafe { mailbox.copy_short(&front, words.as_mut_ptr().cast()) } {
            let again: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert_eq!(again.get(..front.len), Some(bytes.as_slice()));
        }
        mailbox.advance(&front);
        bytes
    }

    /// Goal: what was written beside the word and not published is not read in place of what was published there.
    #[test]
    fn a_long_record_is_read_where_a_short_one_was_not_published() {
        let mailbox = mailbox("forgotten");
        let place = enter(&mailbox, 1);
        let (short, long) = ([1_u8; 40], [2_u8; 3 * NEWEST_BYTES]);
        assert_eq!(push(&mailbox, place, &short), Pushed::Asleep);
        mailbox.awake();
        assert!(matches!(push(&mailbox, place, &long), Pushed::At(_)));
        assert_eq!(read(&mailbox, || {}), long);
        // The same of a shorter one.
        mailbox.hold();
        assert_eq!(push(&mailbox, place, &short), Pushed::Asleep);
        mailbox.awake();
        assert_eq!(mailbox.front_beside(), None);
        assert!(matches!(push(&mailbox, place, &[3; 5]), Pushed::At(_)));
        assert!(mailbox.front_beside().is_some());
        assert_eq!(read(&mailbox, || {}), [3; 5]);
    }

    /// Goal: a record is the same, whether or not the next one has come before it is read, or while it is; at every
    /// length about which is short, and at every place in the ring.
    #[test]
    fn a_record_is_the_same_from_beside_the_word_and_from_the_ring() {
        let mailbox = mailbox("same");
        let place = enter(&mailbox, 1);
        mailbox.awake();
        for round in 0..4_096_usize {
            let lens = [round % 110 + 1, round * 7 % 110 + 1];
            let [first, second] = lens.map(|len| {
                let kind = u8::try_from(round % 251).unwrap_or(0) ^ u8::from(len == lens[0]);
                (0..len)
                    .map(|at| kind.wrapping_add(u8::try_from(at).unwrap_or(0)))
                    .collect::<Vec<u8>>()
            });
            let pushes =
                |bytes: &[u8]| assert!(matches!(push(&mailbox, place, bytes), Pushed::At(_)));
            pushes(&first);
            match round % 3 {
                0 => assert_eq!(read(&mailbox, || pushes(&second)), first),
                1 => {
                    pushes(&second);
                    assert_eq!(read(&mailbox, || {}), first);
                }
                _ => {
                    assert_eq!(read(&mailbox, || {}), first);
                    pushes(&second);
                }
            }
            // One waits now and then, so that the ring does not begin again at once.
            assert_eq!(read(&mailbox, || {}), second);
        }
    }
}
