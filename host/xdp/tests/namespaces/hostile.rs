//! Members that do what they should not, and what it costs others.

use super::place::{NEAR, Pair, apart_role, near_role, with_namespaces};
use super::{OWNER, PORT, key, soon};
use adverb_sys::memory::Mapping;
use adverb_sys::poll;
use adverb_sys::unix::Stream;
use adverb_xdp::Membership;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

/// A member that knows what the record of its group looks like.
struct Raw {
    #[expect(dead_code, reason = "it is a member as long as this is open")]
    stream: Stream,
    record: Mapping,
    frames: usize,
}

impl Raw {
    fn ask() -> Self {
        let stream = Stream::connect(OWNER).unwrap();
        assert!(poll::readable(&stream, std::iter::empty(), None).unwrap());
        let (mut bytes, mut fds) = ([0; 64], Vec::new());
        assert_eq!(stream.recv(&mut bytes, &mut fds).unwrap(), 20);
        let word = |at| u32::from_ne_bytes(*bytes[at..].first_chunk::<4>().unwrap());
        let frames = usize::try_from(word(8)).unwrap();
        let record = Mapping::shared(fds[1].as_fd(), 64 + 8 * frames).unwrap();
        Self { stream, record, frames }
    }

    fn set_lock(&self, word: u32) {
        self.record.half(0).store(word, Ordering::Relaxed);
    }

    /// How many frames are free, the kernel's, and members'.
    fn frames(&self) -> [usize; 3] {
        let mut count = [0; 3];
        for frame in 0..self.frames {
            let holder = self.record.half(64 + 4 * (self.frames + frame)).load(Ordering::Relaxed);
            count[usize::try_from(holder.min(2)).unwrap()] += 1;
        }
        count
    }
}

/// Goal: a member that keeps the lock keeps the owner from nothing but that group's frames, and from those only as long.
/// Method: another one of its group is killed meanwhile; then the lock is let go.
#[test]
fn a_lock_that_a_member_keeps_costs_no_frames() {
    with_namespaces("hostile::a_lock_that_a_member_keeps_costs_no_frames", || {
        let _pair = Pair::new(1);
        let _owner = near_role("owner", "");
        let raw = Raw::ask();
        let (third, _sockets) = Membership::ask(OWNER).unwrap();
        let writer = near_role("writer", "");
        let before = raw.frames();
        assert!(before[2] > 0, "{before:?}");
        raw.set_lock(std::process::id());
        writer.kill();
        third.release(key(NEAR, PORT)).unwrap(); // By now it has looked at the one that has ended.
        assert_eq!(raw.frames(), before);
        raw.set_lock(0);
        assert!(soon(|| raw.frames() == [raw.frames - FILLED, FILLED, 0]), "{:?}", raw.frames());
    });
}

/// Goal: a member that is killed before it has flushed what it wrote loses its group no frames.
#[test]
fn frames_that_were_written_and_not_flushed_come_back() {
    with_namespaces("hostile::frames_that_were_written_and_not_flushed_come_back", || {
        let _pair = Pair::new(1);
        let _owner = near_role("owner", "");
        let raw = Raw::ask();
        let writer = near_role("writer", "");
        assert!(raw.frames()[2] >= 900, "{:?}", raw.frames());
        writer.kill();
        assert!(soon(|| raw.frames() == [raw.frames - FILLED, FILLED, 0]), "{:?}", raw.frames());
    });
}

/// Goal: where one does not see the other by its number, the lock could not say which process has it.
#[test]
fn members_of_another_process_namespace_are_refused() {
    with_namespaces("hostile::members_of_another_process_namespace_are_refused", || {
        let _pair = Pair::new(1);
        let owner = near_role("owner", "");
        let mut foreigner = apart_role("foreigner");
        foreigner.wait_for("refused");
        owner.kill();
        let _owner = apart_role("owner");
        assert_eq!(Membership::ask(OWNER).unwrap_err().kind(), ErrorKind::PermissionDenied);
    });
}

/// Frames that are the kernel's where nothing is under way.
const FILLED: usize = 1024;
