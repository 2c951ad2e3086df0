//! A queue without a kernel: its rings and its UMEM in memory of this process, and steps that write anything there.
//!
//! What a member's own socket has is written by the kernel alone, besides the member; the rings of the queue and the record
//! of the UMEM, by other members, too. Each may say anything. It may cost frames, and counts as nonsense.

use super::*;
use crate::umem::Shape;
use adverb_sys::memory::Mapping;
use rustix::net::xdp::XdpRingOffset;
use std::sync::atomic::Ordering;

/// Goal: whatever others write to the rings and the record, no byte outside the frames is touched, no frame is named that there
/// is not, and no call takes for ever.
///
/// # Panics
///
/// If one of these does not hold.
pub fn rings(bytes: &[u8]) {
    let mut queue = Queue::new(None).expect("memory");
    for step in bytes.as_chunks::<STEP_BYTES>().0.iter().take(STEPS_MAX) {
        let before = queue.umem.nonsense();
        queue.step(step);
        queue.check();
        assert!(queue.umem.nonsense() - before <= NONSENSE_MAX, "it goes on and on");
    }
}

/// Steps to begin with: packets that come and go, and a little of everything else.
#[must_use]
pub fn lives() -> Vec<Vec<u8>> {
    let step = |what: u8, ring: u8, value: u32| {
        let [b3, b2, b1, b0] = value.to_be_bytes();
        [what, ring, 0, 0, b3, b2, b1, b0]
    };
    let come = [step(9, 0, 0), step(5, 0, 60), step(5, 0, 1500), step(7, 0, 64)].repeat(20);
    let go = [step(8, 0, 60), step(8, 0, 1500), step(10, 0, 0), step(6, 0, 2)].repeat(20);
    let both = [come.as_slice(), go.as_slice(), &[step(9, 1, 0)]].concat();
    let nonsense = (0..48).map(|n| step(n % 12, n / 12, u32::from(n) << (n % 32)));
    let nonsense: Vec<_> =
        come.iter().copied().zip(nonsense).flat_map(|(one, other)| [one, other]).collect();
    let again =
        [step(8, 0, 60), step(2, 3, 1), step(2, 2, 3), step(0, 3, 3), step(0, 2, 1)].repeat(9);
    let again = [again.as_slice(), &[step(8, 0, 60)].repeat(40)].concat();
    [come, go, both, again, nonsense].map(|steps| steps.as_flattened().to_vec()).to_vec()
}

/// The memory, and both halves of a member.
struct Queue {
    incoming: Incoming,
    outgoing: Outgoing,
    /// What an owner has of the same rings.
    remains: Remains,
    umem: Arc<Umem>,
    memory: Mapping,
    /// Only those who should have written the record.
    is_true: bool,
}

impl Queue {
    /// By that socket the kernel would be called.
    fn new(socket: Option<OwnedFd>) -> io::Result<Self> {
        let (memory, file) = Mapping::memfd("adverb-xdp-rings", RINGS * REGION)?;
        let umem = Arc::new(Umem::private(SHAPE)?);
        let map = |ring: usize, entries, entry| {
            let at = XdpRingOffset { producer: 0, consumer: 64, desc: 128, flags: Some(68) };
            let page = u64::try_from(ring * REGION).map_err(io::Error::other)?;
            Ring::map(&file, page, &at, entries, entry)
        };
        let rx = || map(RX, RX_ENTRIES, Entry::Descriptor);
        let tx = || map(TX, TX_ENTRIES, Entry::Descriptor);
        let remains = Remains { rx: rx()?, tx: tx()? };
        let (rx, tx) = (rx()?, tx()?);
        let fill = map(FILL, QUEUE_ENTRIES, Entry::Address)?;
        let completion = map(COMPLETION, QUEUE_ENTRIES, Entry::Address)?;
        let fd = Arc::new(KeptFd::new(socket.map_or_else(|| file.try_clone(), Ok)?)?);
        let (place, queue) = (0, 0);
        let incoming = Incoming {
            fd: Arc::clone(&fd),
            umem: Arc::clone(&umem),
            place,
            queue,
            rx,
            fill,
            read: Vec::new(),
            room: Vec::new(),
            idle: 0,
            coming: 0,
            polls: false,
        };
        let (written, spare) = (0, Vec::new());
        let outgoing =
            Outgoing { fd, umem: Arc::clone(&umem), place, tx, completion, written, spare };
        Ok(Self { incoming, outgoing, remains, umem, memory, is_true: true })
    }

    fn step(&mut self, step: &[u8; STEP_BYTES]) {
        let [what, ring, high, low, value @ ..] = *step;
        let (ring, at) = (usize::from(ring) % RINGS, u16::from_be_bytes([high, low]));
        let value = u32::from_be_bytes(value);
        match what % 12 {
            0 if ring != TX => self.move_on(ring, PRODUCER, value, high & 1 == 0),
            1 if ring != RX => self.move_on(ring, CONSUMER, value, high & 1 == 0),
            2 if ring != TX => {
                let addr = match high & 3 {
                    0 => (value % (SHAPE.frames + 1) * SHAPE.frame_bytes).into(),
                    1 => u64::from(value) << 31,
                    _ => value.into(),
                };
                self.memory.word(entry(ring, at.into())).store(addr, Ordering::Relaxed);
            }
            3 if ring == RX => {
                let half = entry(RX, at.into()) + if high & 1 == 0 { 8 } else { 12 };
                self.memory.half(half).store(value, Ordering::Relaxed);
            }
            4 => self.set(ring, FLAGS, value),
            5 => self.deliver(value),
            6 => self.complete(value),
            7 => {
                let budget = usize::try_from(value).unwrap_or(0);
                self.incoming.receive(budget, |bytes| {
                    assert!(bytes.len() <= to_usize(SHAPE.frame_bytes), "one frame");
                    if low == 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
            }
            8 => {
                let len = to_usize(value % (SHAPE.frame_bytes + 2));
                let _ = self.outgoing.send(|writer| writer.push(&vec![1; len]));
            }
            9 => self.tend(ring == 1),
            10 => drop(self.outgoing.flush()),
            11 => {
                self.is_true = false;
                self.umem.scribble(at.into(), if high & 1 == 0 { value % 70 } else { value });
            }
            _ => {}
        }
    }

    fn set(&self, ring: usize, at: usize, value: u32) {
        self.memory.half(ring * REGION + at).store(value, Ordering::Relaxed);
    }

    /// Moves a position by a few entries, or anywhere.
    fn move_on(&self, ring: usize, at: usize, value: u32, by_few: bool) {
        let few = self.get(ring, at).wrapping_add(value % 8);
        self.set(ring, at, if by_few { few } else { value });
    }

    fn get(&self, ring: usize, at: usize) -> u32 {
        self.memory.half(ring * REGION + at).load(Ordering::Relaxed)
    }

    /// As the kernel: a packet of so many bytes has come, if there is a frame for it.
    fn deliver(&self, len: u32) {
        let (next, produced) = (self.get(FILL, CONSUMER), self.get(RX, PRODUCER));
        if self.get(FILL, PRODUCER) == next {
            return;
        }
        let addr = self.memory.word(entry(FILL, next)).load(Ordering::Relaxed) + 256;
        let to = entry(RX, produced);
        self.memory.word(to).store(addr, Ordering::Relaxed);
        self.memory.half(to + 8).store(len, Ordering::Relaxed);
        self.memory.half(to + 12).store(0, Ordering::Relaxed);
        self.set(FILL, CONSUMER, next.wrapping_add(1));
        self.set(RX, PRODUCER, produced.wrapping_add(1));
    }

    /// As the kernel: some frames have been sent.
    fn complete(&self, count: u32) {
        for _ in 0..count % 64 {
            let (next, produced) = (self.get(TX, CONSUMER), self.get(COMPLETION, PRODUCER));
            if self.get(TX, PRODUCER) == next {
                return;
            }
            let addr = self.memory.word(entry(TX, next)).load(Ordering::Relaxed);
            self.memory.word(entry(COMPLETION, produced)).store(addr, Ordering::Relaxed);
            self.set(TX, CONSUMER, next.wrapping_add(1));
            self.set(COMPLETION, PRODUCER, produced.wrapping_add(1));
        }
    }

    /// As the owner: gives the kernel frames, or takes those back that are in the rings of a member that has ended.
    fn tend(&self, reclaims: bool) {
        let mut locked = self.umem.lock().expect("nothing else has the lock");
        match reclaims {
            true => self.remains.reclaim(&self.umem, &mut locked),
            false => give_to(&self.incoming.fill, &self.umem, &mut locked, &mut Vec::new()),
        }
    }

    fn check(&self) {
        let (read, spare) = (&self.incoming.read, &self.outgoing.spare);
        assert!(spare.len() <= BATCH && read.len() <= 2 * BATCH);
        let mut all: Vec<_> = read.iter().chain(spare).copied().collect();
        assert!(all.iter().all(|frame| *frame < SHAPE.frames));
        let me = Holder::Member(self.incoming.place);
        if self.is_true {
            // Nothing that is in the rings makes a frame two.
            assert!(all.iter().all(|frame| self.umem.is_held_by(*frame, me)));
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count, "a frame twice");
        }
    }
}

/// Where an entry is.
fn entry(ring: usize, position: u32) -> usize {
    let (entries, bytes) = if ring < FILL { (RX_ENTRIES, 16) } else { (QUEUE_ENTRIES, 8) };
    ring * REGION + 128 + to_usize(position & (entries - 1)) * bytes
}

const SHAPE: Shape = Shape { frames: 64, frame_bytes: 2048 };
/// The rings, one behind the other, and the words of each.
const RINGS: usize = 4;
const RX: usize = 0;
const TX: usize = 1;
const FILL: usize = 2;
const COMPLETION: usize = 3;
const REGION: usize = 1 << 16;
const PRODUCER: usize = 0;
const CONSUMER: usize = 64;
const FLAGS: usize = 68;
/// What is to be done, which ring, where, and a value.
const STEP_BYTES: usize = 8;
const STEPS_MAX: usize = 300;
/// Entries that a step can find to be nonsense: those of the completion ring, which is looked at twice, and of the stack.
const NONSENSE_MAX: u64 = 2 * 4096 + 3 * 64;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::socketpair;

    #[test]
    fn lives_to_begin_with_harm_nothing() {
        for life in lives() {
            rings(&life);
        }
    }

    /// Goal: the kernel is called only where it waits for that: to send, and for frames to be filled.
    /// Method: in the place of the kernel's socket there is one whose other end has a message for each call that sends, and
    /// which has a message less for each that receives.
    #[test]
    fn calls_that_the_kernel_does_not_wait_for_are_spared() {
        let pair =
            || socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::NONBLOCK, None);
        let (near, far) = pair().unwrap();
        let messages = |fd: &OwnedFd| {
            std::iter::from_fn(|| rustix::net::recv(fd, &mut [0; 9][..], RecvFlags::DONTWAIT).ok())
                .count()
        };
        let mut queue = Queue::new(Some(near.try_clone().unwrap())).unwrap();
        assert!(queue.outgoing.has_room());
        queue.tend(false); // It gets the others.
        for waits in [true, false] {
            queue.set(TX, FLAGS, u32::from(waits));
            queue.set(FILL, FLAGS, u32::from(waits));
            for _ in 0..3 {
                queue.outgoing.send(|writer| writer.push(&[1; 60])).unwrap();
                queue.outgoing.flush().unwrap();
            }
            assert_eq!(messages(&far), if waits { 3 } else { 0 }, "calls that send");
            assert_eq!(queue.get(TX, PRODUCER) - queue.get(TX, CONSUMER), 3, "all are in the ring");
            queue.complete(3);
            for _ in 0..5 {
                rustix::net::send(&far, b"?", SendFlags::empty()).unwrap();
            }
            for _ in 0..REFILL_MIN {
                queue.deliver(60);
            }
            assert_eq!(queue.incoming.receive(64, |_| ControlFlow::Continue(())), REFILL_MIN);
            assert!(queue.incoming.read.is_empty(), "the frames went back");
            assert_eq!(messages(&near), if waits { 4 } else { 5 }, "calls that receive");
        }
    }
}
