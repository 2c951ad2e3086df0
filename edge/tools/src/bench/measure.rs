//! The measurements themselves, as loops over a connected queue pair.
//!
//! An [`Endpoint`] is all that they need of one; `rdma.rs` makes one of the real thing, the tests one
//! of two vectors. A [`Link`] adds what both sides agree on: where messages lie in the registered
//! memory, and that there are always receives posted. The passive side is here, the active side's
//! loops are in `latency.rs` and `stream.rs`.
//!
//! The active side decides when a test ends. The passive side serves until it is told to stop, so it
//! needs to know nothing but its [`Pattern`].

use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::control::Watch;
use crate::args::Op;
use crate::failure::Failure;

mod latency;
mod stream;

pub(crate) use self::stream::Stream;

/// What the measurements need of a connected queue pair and its registered memory.
pub(crate) trait Endpoint {
    /// Posts requests in one call. The caller keeps to the queue's depth.
    fn post(&mut self, list: &[Request]) -> Result<(), Failure>;

    /// Posts so many receives, each for up to `bytes` bytes at `offset`.
    fn post_receives(&mut self, offset: usize, bytes: usize, count: u32) -> Result<(), Failure>;

    /// Makes progress, and takes completions. One that is not a success is an error.
    fn poll(&mut self) -> Result<Reaped, Failure>;

    /// The byte at `offset`, which the peer may be writing.
    fn load(&self, offset: usize) -> u8;

    /// Changes the byte at `offset`.
    fn store(&mut self, offset: usize, byte: u8);

    /// Copies `bytes` to `offset`.
    fn write(&mut self, offset: usize, bytes: &[u8]);
}

/// One request. Offsets count from the start of the registered memory, here and at the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// What to do.
    pub(crate) op: Op,
    /// Where the bytes are, or go to, here.
    pub(crate) local: usize,
    /// Where they go to, or are, at the peer; of no meaning to a SEND.
    pub(crate) remote: usize,
    /// How many.
    pub(crate) bytes: usize,
    /// Ask for a completion.
    pub(crate) signaled: bool,
}

/// Completions taken by one poll.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Reaped {
    /// Of signaled requests.
    pub(crate) requests: u32,
    /// Of receives.
    pub(crate) receives: u32,
}

/// What the passive side of a test does.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Pattern {
    /// Sleeps: one-sided operations of a neighbour need no help.
    Rest,
    /// Takes whatever comes, and answers nothing.
    Absorb,
    /// Answers each SEND with one of the same length.
    EchoSend,
    /// Answers each WRITE, seen in memory, with one of the same length.
    EchoWrite,
}

/// How both sides use their registered memory: the first half for messages that leave, the second
/// for messages that arrive.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Layout {
    /// Length of each half.
    pub(crate) half_bytes: usize,
    /// Longest message.
    pub(crate) message_bytes_max: usize,
    /// Receives that are posted at any time.
    pub(crate) receives: u32,
}

impl Layout {
    /// For messages up to `message_bytes_max`: room for several of them, so that a stream can go
    /// round.
    pub(crate) fn new(message_bytes_max: usize, receives: u32) -> Self {
        let several = message_bytes_max.saturating_mul(4).clamp(HALF_BYTES_MIN, HALF_BYTES_ENOUGH);
        let half_bytes = several.max(message_bytes_max);
        Self { half_bytes, message_bytes_max, receives }
    }

    /// Whether both sides can keep to it. Layouts come over the network.
    pub(crate) const fn is_legal(&self) -> bool {
        self.message_bytes_max >= 1
            && self.message_bytes_max <= self.half_bytes
            && self.half_bytes <= HALF_BYTES_MAX
            && self.receives >= 1
            && self.receives <= RECEIVES_MAX
    }

    /// How many messages of `bytes` bytes have a place of their own in a half.
    pub(crate) fn blocks(&self, bytes: usize) -> usize {
        (self.half_bytes / stride(bytes)).clamp(1, BLOCKS_MAX)
    }
}

/// A ping-pong by WRITE, as one side sees it.
#[derive(Debug)]
struct Rally {
    /// Where the byte is that the peer changes last.
    mark: usize,
    /// Own requests without a completion.
    unfinished: u32,
    /// Looks at the byte in vain.
    looks: u32,
    /// What arrived last was there after a poll, and not before.
    takes_polls: bool,
}

/// An endpoint that keeps its receives posted.
#[derive(Debug)]
pub(crate) struct Link<E> {
    endpoint: E,
    layout: Layout,
    /// Receives that were used and have not been posted again.
    used: u32,
}

impl<E: Endpoint> Link<E> {
    /// Posts the receives that `layout` promises.
    pub(crate) fn new(mut endpoint: E, layout: Layout) -> Result<Self, Failure> {
        endpoint.post_receives(layout.half_bytes, layout.message_bytes_max, layout.receives)?;
        Ok(Self { endpoint, layout, used: 0 })
    }

    /// What the loops run over.
    pub(crate) const fn endpoint(&self) -> &E {
        &self.endpoint
    }

    /// A message length that came over the network.
    ///
    /// # Errors
    ///
    /// If it is 0 or does not fit the registered memory.
    pub(crate) fn check_length(&self, bytes: u64) -> Result<usize, Failure> {
        let most = self.layout.message_bytes_max;
        match usize::try_from(bytes) {
            Ok(bytes) if (1..=most).contains(&bytes) => Ok(bytes),
            _ => Err(Failure::Failed(format!("messages are 1 to {most} bytes, not {bytes}"))),
        }
    }

    /// Takes completions, and posts a receive for each that was used.
    #[inline]
    fn poll(&mut self) -> Result<Reaped, Failure> {
        let reaped = self.take()?;
        self.refill()?;
        Ok(reaped)
    }

    /// Takes completions. An answer goes first, and receives are posted while it is under way.
    #[inline]
    fn take(&mut self) -> Result<Reaped, Failure> {
        let reaped = self.endpoint.poll()?;
        self.used += reaped.receives;
        if self.used >= self.layout.receives {
            self.refill()?;
        }
        Ok(reaped)
    }

    /// Posts receives for those that were used.
    #[inline]
    fn refill(&mut self) -> Result<(), Failure> {
        if self.used == 0 {
            return Ok(());
        }
        let (at, bytes) = (self.layout.half_bytes, self.layout.message_bytes_max);
        self.endpoint.post_receives(at, bytes, std::mem::take(&mut self.used))
    }

    /// Posts one signaled request of the first block.
    #[inline]
    fn post_one(&mut self, op: Op, bytes: usize) -> Result<(), Failure> {
        self.post_at(op, 0, bytes)
    }

    /// Posts one signaled request of the block that lies at `at` in either half.
    #[inline]
    fn post_at(&mut self, op: Op, at: usize, bytes: usize) -> Result<(), Failure> {
        let remote = match op {
            Op::Send | Op::Write => self.layout.half_bytes + at,
            Op::Read => at,
        };
        self.endpoint.post(&[Request { op, local: at, remote, bytes, signaled: true }])
    }

    /// Lets neighbours map one another's memory, which they do on first use and by the way; and uses all of
    /// it once, so that no page is new to either while we measure.
    ///
    /// The other side may read its control connection meanwhile: its device answers for it.
    pub(crate) fn get_acquainted(&mut self) -> Result<(), Failure> {
        let bytes = self.layout.message_bytes_max;
        for _ in 0..FIRST_USES {
            self.use_block(0, bytes)?;
            thread::sleep(FIRST_USE_PAUSE);
        }
        (1..self.layout.blocks(bytes)).try_for_each(|n| self.use_block(n * stride(bytes), bytes))
    }

    /// Writes and reads the block that lies at `at`.
    fn use_block(&mut self, at: usize, bytes: usize) -> Result<(), Failure> {
        for op in [Op::Write, Op::Read] {
            self.post_at(op, at, bytes)?;
            let deadline = Instant::now() + FIRST_USE_TIME_MAX;
            while self.poll()?.requests == 0 {
                if Instant::now() > deadline {
                    return Err(Failure::failed("the first requests were never completed"));
                }
                thread::sleep(FIRST_USE_PAUSE);
            }
        }
        Ok(())
    }

    /// Prepares for a ping-pong by WRITE: the byte that is watched must not look like an arrival.
    pub(crate) fn clear_mark(&mut self, bytes: usize) {
        self.endpoint.store(self.mark(bytes), 0);
    }

    /// The last byte of an arriving message.
    fn mark(&self, bytes: usize) -> usize {
        self.layout.half_bytes + bytes.saturating_sub(1)
    }

    /// Serves one test until the client says stop.
    pub(crate) fn serve(
        &mut self,
        pattern: Pattern,
        bytes: usize,
        watch: &mut Watch<'_>,
    ) -> Result<(), Failure> {
        match pattern {
            Pattern::Rest => watch.sleep_until_stop(),
            Pattern::Absorb => self.absorb(watch),
            Pattern::EchoSend => self.echo_send(bytes, watch),
            Pattern::EchoWrite => self.echo_write(bytes, watch),
        }
    }

    fn absorb(&mut self, watch: &mut Watch<'_>) -> Result<(), Failure> {
        loop {
            if self.poll()? != Reaped::default() {
                watch.busy();
            } else if watch.stop_asked()? {
                return Ok(());
            }
        }
    }

    fn echo_send(&mut self, bytes: usize, watch: &mut Watch<'_>) -> Result<(), Failure> {
        let mut unfinished = 0;
        loop {
            let reaped = self.take()?;
            unfinished -= reaped.requests;
            for _ in 0..reaped.receives {
                self.post_one(Op::Send, bytes)?;
                unfinished += 1;
            }
            self.refill()?;
            if reaped != Reaped::default() {
                watch.busy();
            } else if watch.stop_asked()? {
                return self.finish(unfinished, watch);
            }
        }
    }

    fn echo_write(&mut self, bytes: usize, watch: &mut Watch<'_>) -> Result<(), Failure> {
        let mut rally = self.rally(bytes);
        let mut expected = 1;
        loop {
            if self.has_landed(expected, &mut rally)? {
                self.write_back(expected, bytes, &mut rally)?;
                expected = expected.wrapping_add(1);
                watch.busy();
            } else if watch.stop_asked()? {
                return self.finish(rally.unfinished, watch);
            }
        }
    }

    fn rally(&self, bytes: usize) -> Rally {
        Rally { mark: self.mark(bytes), unfinished: 0, looks: 0, takes_polls: true }
    }

    /// WRITEs a message whose last byte is `count`.
    #[inline]
    fn write_back(&mut self, count: u8, bytes: usize, rally: &mut Rally) -> Result<(), Failure> {
        self.endpoint.store(bytes.saturating_sub(1), count);
        self.post_one(Op::Write, bytes)?;
        rally.unfinished += 1;
        // A side that never has to wait shall look after its completions, too, and wait for them rather than post more than
        // the queue takes: messages may land by themselves while another thread is kept from bringing completions.
        while rally.unfinished > 1 {
            rally.unfinished -= self.poll()?.requests;
            if rally.unfinished < UNFINISHED_MAX {
                break;
            }
            thread::yield_now();
        }
        Ok(())
    }

    /// Whether the peer's message is there whose last byte is `count`. Where messages land by themselves,
    /// polls are only in the way of looking: so they are rare unless one has brought the last message.
    #[inline]
    fn has_landed(&mut self, count: u8, rally: &mut Rally) -> Result<bool, Failure> {
        if self.endpoint.load(rally.mark) == count {
            rally.takes_polls = false;
            return Ok(true);
        }
        rally.looks = rally.looks.wrapping_add(1);
        let polls = rally.takes_polls || rally.looks.is_multiple_of(LOOKS_PER_POLL);
        if polls || rally.unfinished > 0 {
            rally.unfinished -= self.poll()?.requests;
            let is_there = self.endpoint.load(rally.mark) == count;
            rally.takes_polls |= is_there;
            return Ok(is_there);
        }
        Ok(false)
    }

    /// Waits for the completions of requests that a test has left behind.
    fn finish(&mut self, mut unfinished: u32, watch: &mut Watch<'_>) -> Result<(), Failure> {
        while unfinished > 0 {
            let reaped = self.poll()?;
            unfinished -= reaped.requests;
            if reaped == Reaped::default() {
                watch.peer_lives()?;
            }
        }
        self.refill()?;
        watch.busy();
        Ok(())
    }
}

/// Distance between two messages: whole cache lines.
pub(crate) fn stride(bytes: usize) -> usize {
    bytes.next_multiple_of(64).max(64)
}

/// Looks at memory between two polls where messages land by themselves: the next may not.
const LOOKS_PER_POLL: u32 = 64;
/// Requests of a ping-pong without a completion, of which more are not posted.
const UNFINISHED_MAX: u32 = 16;
/// Rounds of requests until neighbours know one another's memory.
const FIRST_USES: u32 = 3;
/// Between two of them, for the threads that map it.
const FIRST_USE_PAUSE: Duration = Duration::from_millis(1);
/// How long one of them may take.
const FIRST_USE_TIME_MAX: Duration = Duration::from_secs(10);
/// Smallest half: large enough that a stream of middling messages leaves the processor's caches.
const HALF_BYTES_MIN: usize = 16 << 20;
/// A half that is this large needs to be larger only for a single message.
const HALF_BYTES_ENOUGH: usize = 64 << 20;
/// Largest half that a server gives a client.
const HALF_BYTES_MAX: usize = 1 << 30;
/// Most receives that a server posts for a client.
const RECEIVES_MAX: u32 = 16384;
/// Most places that a stream goes round.
const BLOCKS_MAX: usize = 256;

#[cfg(test)]
mod tests;
