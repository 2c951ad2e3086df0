//! What has come for one socket, and the gate by which it comes.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::uplink::Uplink;
use crate::base::lock::Guarded;

/// A datagram, and where it comes from.
#[derive(Debug)]
pub(crate) struct Datagram {
    pub(crate) from: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

/// Datagrams of one socket, as many as its receive buffer may hold.
#[derive(Debug)]
pub(crate) struct Queue {
    gate: u32,
    limit: AtomicUsize,
    waiting: Guarded<Waiting>,
    /// How many wait, for looks without the lock.
    len: AtomicUsize,
    /// Datagrams so far, and those for which there was no room.
    count: AtomicU64,
    dropped: AtomicU64,
    /// Frames so far, with those that brought none, modulo two to the power of 32. Changed under the lock of those that wait.
    arrived: AtomicU32,
    door: Guarded<Door>,
    /// Whether it is open, for looks without the lock.
    is_open: AtomicBool,
    /// The kernel may have earlier ones than those that have come since the gate was opened.
    is_kernel_first: AtomicBool,
    /// Of those that wait, the first so many came before it was shut. Changed under the lock of those.
    earlier: AtomicUsize,
    /// How often it has been opened.
    openings: AtomicU64,
    /// Looks in a row that frames have had the precedence for.
    in_a_row: AtomicU32,
    /// Where the datagram is that the program has been shown, and will get next.
    shown: AtomicU8,
}

/// Where datagrams come from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Side {
    Frames,
    Kernel,
}

#[derive(Debug, Default)]
struct Waiting {
    datagrams: VecDeque<Datagram>,
    bytes: usize,
    /// The memory of the last short one that was taken out, for the next that comes.
    spare: Vec<u8>,
}

/// Why the gate is shut, or not.
#[derive(Debug)]
struct Door {
    uplinks: Vec<Arc<Uplink>>,
    /// It is open while there are none.
    holds: u64,
    /// So many more may lie in the kernel's queue from before the last opening.
    kernels: usize,
}

impl Queue {
    /// An empty one, whose gate is shut until it is released.
    pub(super) const fn new(gate: u32, limit: usize) -> Self {
        let waiting = Waiting { datagrams: VecDeque::new(), bytes: 0, spare: Vec::new() };
        Self {
            gate,
            limit: AtomicUsize::new(limit),
            waiting: Guarded::new(waiting),
            len: AtomicUsize::new(0),
            count: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            arrived: AtomicU32::new(0),
            door: Guarded::new(Door { uplinks: Vec::new(), holds: 1, kernels: 0 }),
            is_open: AtomicBool::new(false),
            is_kernel_first: AtomicBool::new(true),
            earlier: AtomicUsize::new(0),
            openings: AtomicU64::new(0),
            in_a_row: AtomicU32::new(0),
            shown: AtomicU8::new(0),
        }
    }

    pub(super) const fn gate(&self) -> u32 {
        self.gate
    }

    /// How many bytes may wait: as with the kernel, more than that only by one datagram.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// A datagram has come, with a frame.
    pub(super) fn push(&self, from: SocketAddr, bytes: &[u8]) {
        self.waiting.with(|waiting| {
            if waiting.bytes > self.limit.load(Ordering::Relaxed) {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            } else {
                waiting.bytes += charge(bytes);
                let mut room = std::mem::take(&mut waiting.spare);
                room.extend_from_slice(bytes);
                waiting.datagrams.push_back(Datagram { from, bytes: room });
                self.len.store(waiting.datagrams.len(), Ordering::Release);
                self.count.store(self.count().wrapping_add(1), Ordering::Release);
            }
            self.count_arrival();
        });
    }

    /// A frame has come that has brought nothing.
    pub(super) fn note_arrival(&self) {
        self.waiting.with(|_| self.count_arrival());
    }

    /// A frame has come, and what it brought is here. The lock is held: each interface of the socket may have one at the same
    /// time.
    fn count_arrival(&self) {
        self.arrived.store(self.arrived().wrapping_add(1), Ordering::Release);
    }

    /// Calls `f` with the first datagram, and takes it out if `f` says so.
    pub(crate) fn front<T>(&self, f: impl FnOnce(&Datagram) -> (bool, T)) -> Option<T> {
        self.waiting.with(|waiting| {
            let (is_taken, answer) = f(waiting.datagrams.front()?);
            if is_taken && let Some(mut taken) = waiting.datagrams.pop_front() {
                waiting.bytes -= charge(&taken.bytes);
                if taken.bytes.capacity() <= SPARE_BYTES_MAX {
                    taken.bytes.clear();
                    waiting.spare = taken.bytes;
                }
                self.len.store(waiting.datagrams.len(), Ordering::Release);
                let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
                if self.earlier.load(r) > 0 {
                    let _ = self.earlier.fetch_update(o, r, |earlier| earlier.checked_sub(1));
                }
            }
            Some(answer)
        })
    }

    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.len.load(Ordering::Acquire) > 0
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Frames that have come, whatever they brought, modulo two to the power of 32.
    pub(super) fn arrived(&self) -> u32 {
        self.arrived.load(Ordering::Acquire)
    }

    /// Datagrams for which there was no room.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Whether the kernel may have datagrams that came before those here.
    pub(crate) fn is_kernel_first(&self) -> bool {
        self.is_kernel_first.load(Ordering::Acquire) && self.earlier.load(Ordering::Acquire) == 0
    }

    /// Which side a call that receives is to look at first: where the next datagram was shown, or the one that has the
    /// earlier ones. However many frames there are, the kernel has its turn; what it has from before they came is bounded.
    pub(crate) fn first(&self) -> Side {
        let usual = if self.is_kernel_first() { Side::Kernel } else { Side::Frames };
        match self.shown() {
            Some(Side::Kernel) => Side::Kernel,
            Some(Side::Frames) if self.has_any() => Side::Frames,
            Some(Side::Frames) | None if usual == Side::Kernel || !self.has_any() => usual,
            Some(Side::Frames) | None => {
                let is_kernels = self.in_a_row.fetch_add(1, Ordering::Relaxed) >= TURNS;
                if is_kernels {
                    self.in_a_row.store(0, Ordering::Relaxed);
                }
                if is_kernels { Side::Kernel } else { Side::Frames }
            }
        }
    }

    /// Whether the kernel's is the next one, if it has any: out of turn, it is not.
    pub(crate) fn is_kernel_next(&self) -> bool {
        match self.shown() {
            Some(side) if side == Side::Kernel || self.has_any() => side == Side::Kernel,
            Some(_) | None => self.is_kernel_first(),
        }
    }

    /// Where the datagram is that the program has been shown.
    pub(crate) fn shown(&self) -> Option<Side> {
        match self.shown.load(Ordering::Relaxed) {
            FRAMES => Some(Side::Frames),
            KERNEL => Some(Side::Kernel),
            _ => None,
        }
    }

    pub(crate) fn show(&self, side: Option<Side>) {
        let shown = side.map_or(0, |side| match side {
            Side::Frames => FRAMES,
            Side::Kernel => KERNEL,
        });
        self.shown.store(shown, Ordering::Relaxed);
    }

    /// How often the gate has been opened.
    pub(crate) fn openings(&self) -> u64 {
        self.openings.load(Ordering::Acquire)
    }

    /// The kernel has none, as a look says that began after so many openings.
    pub(crate) fn follows_kernel(&self, openings: u64) {
        if self.shown() == Some(Side::Kernel) {
            self.show(None); // Another thread has taken it.
        }
        self.leave_kernels(openings, usize::MAX);
    }

    /// One of the kernel's has been taken, by a call that began after so many openings.
    pub(crate) fn took_kernels(&self, openings: u64) {
        self.leave_kernels(openings, 1);
    }

    /// So many fewer lie in the kernel's queue from before the last opening: without any, frames are first.
    fn leave_kernels(&self, openings: u64, fewer: usize) {
        if self.is_kernel_first.load(Ordering::Acquire) {
            self.door.with(|door| {
                if self.openings() == openings {
                    door.kernels = door.kernels.saturating_sub(fewer);
                    if door.kernels == 0 {
                        self.is_kernel_first.store(false, Ordering::Release);
                        self.in_a_row.store(0, Ordering::Relaxed);
                    }
                }
            });
        }
    }

    /// The gate is in these interfaces' tables.
    pub(super) fn use_gates(&self, uplinks: &[Arc<Uplink>]) {
        self.door.with(|door| {
            door.uplinks = uplinks.to_vec();
            self.move_gate(door);
        });
    }

    /// The kernel brings what comes from now on.
    pub(crate) fn shut(&self) {
        self.door.with(|door| {
            door.holds += 1;
            if door.holds == 1 {
                self.move_gate(door);
            }
        });
    }

    /// One hold fewer: without any, frames come.
    pub(crate) fn open(&self) {
        self.door.with(|door| {
            // Those for good are more than there ever are others.
            door.holds = door.holds.saturating_sub(1);
            if door.holds == 0 {
                // What the kernel has got meanwhile is later than what is here, and earlier than what comes.
                if !self.is_kernel_first.load(Ordering::Acquire) {
                    self.waiting.with(|Waiting { datagrams, .. }| {
                        self.earlier.store(datagrams.len(), Ordering::Release);
                    });
                }
                self.is_kernel_first.store(true, Ordering::Release);
                let room = self.limit.load(Ordering::Relaxed) / OVERHEAD_BYTES;
                door.kernels = room.max(KERNELS_MIN);
                self.openings.fetch_add(1, Ordering::AcqRel);
                self.in_a_row.store(0, Ordering::Relaxed);
                self.move_gate(door);
            }
        });
    }

    /// The hold of the beginning ends.
    pub(super) fn release(&self) {
        self.open();
    }

    /// The kernel brings what comes.
    pub(super) fn is_shut(&self) -> bool {
        !self.is_open.load(Ordering::Acquire)
    }

    pub(super) fn is_over(&self) -> bool {
        self.door.with(|door| door.holds >= FOR_GOOD)
    }

    pub(super) fn shut_for_good(&self) {
        self.door.with(|door| {
            door.holds = 2 * FOR_GOOD;
            self.move_gate(door);
        });
    }

    fn move_gate(&self, door: &Door) {
        self.is_open.store(door.holds == 0, Ordering::Release);
        door.uplinks.iter().for_each(|uplink| uplink.set_gate(self.gate, door.holds == 0));
    }
}

/// What a datagram counts for, as the kernel counts its own, about.
fn charge(bytes: &[u8]) -> usize {
    bytes.len() + OVERHEAD_BYTES
}

const OVERHEAD_BYTES: usize = 512;
/// Memory that a queue keeps while nothing waits.
const SPARE_BYTES_MAX: usize = 4096;
/// Frames after which the kernel is looked at.
const TURNS: u32 = 64;
/// How many datagrams the kernel may have at least, however small its socket's buffer.
const KERNELS_MIN: usize = 64;
// Sides, as words.
const FRAMES: u8 = 1;
const KERNEL: u8 = 2;
/// More holds than there ever are.
const FOR_GOOD: u64 = 1 << 62;

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue whose gate is open, and whose kernel has nothing.
    fn open_queue(limit: usize) -> Queue {
        let queue = Queue::new(0, limit);
        queue.release();
        queue.follows_kernel(queue.openings());
        queue
    }

    fn push(queue: &Queue, number: u8) {
        queue.push(([10, 0, 0, 1], 1).into(), &[number]);
    }

    fn take(queue: &Queue) -> Option<u8> {
        queue.front(|first| (true, first.bytes[0]))
    }

    /// Goal: what the kernel gets while the gate is shut is received after what came before, and before what comes later.
    #[test]
    fn frames_from_before_the_gate_was_shut_are_earlier_than_the_kernels() {
        let queue = open_queue(1 << 20);
        push(&queue, 1);
        queue.shut();
        push(&queue, 2); // One that was on its way.
        assert_eq!(queue.first(), Side::Frames);
        queue.open();
        push(&queue, 3);
        for number in [1, 2] {
            assert_eq!((queue.first(), take(&queue)), (Side::Frames, Some(number)));
        }
        assert_eq!(queue.first(), Side::Kernel);
        queue.follows_kernel(queue.openings());
        assert_eq!((queue.first(), take(&queue)), (Side::Frames, Some(3)));
    }

    /// Goal: a look that began before the gate was shut says nothing of what the kernel has got since.
    #[test]
    fn an_old_look_at_the_kernel_does_not_count() {
        let queue = open_queue(1 << 20);
        let seen = queue.openings();
        queue.shut();
        queue.open();
        push(&queue, 1);
        queue.follows_kernel(seen);
        assert_eq!(queue.first(), Side::Kernel);
    }

    /// Goal: neither side waits for ever, whatever the other has, and what was shown is received.
    #[test]
    fn each_side_has_its_turn_and_what_was_shown_comes_next() {
        let queue = open_queue(1 << 20);
        push(&queue, 1);
        let frames = (0..1000).filter(|_| queue.first() == Side::Frames).count();
        assert!((950..1000).contains(&frames), "{frames}");
        for side in [Side::Frames, Side::Kernel] {
            queue.show(Some(side));
            assert!((0..1000).all(|_| queue.first() == side));
        }
        queue.follows_kernel(queue.openings());
        assert_eq!(queue.shown(), None);
    }

    /// Goal: all that the kernel may have from before the gate was opened is received before what comes later, and no
    /// more than that: the frames have their turn, whatever the kernel gets.
    #[test]
    fn what_the_kernel_may_have_had_comes_before_frames_and_no_more() {
        for (limit, most) in [(1 << 20, 2048), (0, KERNELS_MIN)] {
            let queue = open_queue(limit);
            queue.shut();
            let before = queue.openings();
            queue.open();
            push(&queue, 1);
            queue.took_kernels(before);
            for taken in 0..most {
                assert_eq!(queue.first(), Side::Kernel, "{taken}");
                queue.took_kernels(queue.openings());
            }
            assert_eq!((queue.first(), take(&queue)), (Side::Frames, Some(1)));
        }
    }

    /// Goal: a thread that opens the gate while another one receives does not count what has been received.
    #[test]
    fn no_more_are_earlier_than_there_are() {
        let queue = open_queue(1 << 20);
        let is_over = AtomicBool::new(false);
        let counts = || {
            let count = |waiting: &mut Waiting| {
                (queue.earlier.load(Ordering::Acquire), waiting.datagrams.len())
            };
            queue.waiting.with(count)
        };
        let worst = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    queue.shut();
                    queue.open();
                    queue.follows_kernel(queue.openings());
                }
            });
            let mut worst = None;
            while worst.is_none() && queue.openings() < 400_000 {
                push(&queue, 1);
                take(&queue);
                let mut looks = (0..8).map(|_| counts());
                worst = looks.find(|(earlier, waiting)| earlier > waiting);
            }
            is_over.store(true, Ordering::Relaxed);
            worst
        });
        assert_eq!(worst, None);
    }

    #[test]
    fn a_queue_takes_what_it_has_room_for_and_one_more() {
        let queue = open_queue(0);
        (0..3).for_each(|number| push(&queue, number));
        assert_eq!((queue.count(), queue.dropped()), (1, 2));
        queue.set_limit(2 * charge(&[0]));
        (0..9).for_each(|number| push(&queue, number));
        assert_eq!((queue.count(), queue.dropped()), (3, 9));
    }
}
