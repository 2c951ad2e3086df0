//! The words that two ends of a connection share, and what one end sees of them.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The page has been offered, and not taken.
pub const OFFERED: u32 = 1;
/// Both ends have it.
pub const ACCEPTED: u32 = 2;
/// The end that offered it has closed first.
pub const WITHDRAWN: u32 = 3;
/// An armed bell is for this connection alone.
pub const ALONE: u32 = 1;
/// The sleeper looks at all of its connections when it wakes: one bell is enough for all.
pub const TOGETHER: u32 = 2;
/// The sleeper sleeps on this very word.
pub const ON_WORD: u32 = 3;
/// Nothing has been switched yet.
pub const NEVER: u64 = u64::MAX;

/// Which end of a connection: the one that connected, or the one that accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// It connected.
    Client,
    /// It accepted.
    Server,
}

impl End {
    /// The other one.
    #[inline]
    pub const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// How the bytes of a connection travel, as this end sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Route {
    /// Through the kernel; that may change.
    Open = 0,
    /// Through the kernel, for good.
    Kernel = 1,
    /// Rings have been offered to the peer.
    Offered = 2,
    /// Through the rings, once what was sent before has arrived.
    Rings = 3,
    /// Back to the kernel, once what is in the rings has arrived.
    Leaving = 4,
}

/// Whether one end goes back to the kernel, and how far it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Leaver {
    /// None does.
    Neither,
    /// It uses the rings no more, and empties its kernel's queue of bells.
    Leaves(End),
    /// It has left: what is in its ring is to be sent through the kernel.
    Left(End),
}

impl Leaver {
    const fn word(self) -> u32 {
        match self {
            Self::Neither => 0,
            Self::Leaves(End::Client) => 1,
            Self::Leaves(End::Server) => 2,
            Self::Left(End::Client) => 3,
            Self::Left(End::Server) => 4,
        }
    }
}

/// The other end has written nonsense.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Broken;

/// What two ends share.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Page {
    /// Of the ring of the end that connected first.
    pub(crate) directions: [Direction; 2],
    /// Which end goes back to the kernel, and how far it is: a [`Leaver`].
    pub(crate) leaver: AtomicU32,
    /// [`OFFERED`], [`ACCEPTED`] or [`WITHDRAWN`].
    pub(crate) state: AtomicU32,
    /// Bytes that the end that left had to take out of the kernel's queue, and that are sent again.
    pub resend: AtomicU64,
    /// How many of them have been.
    pub resent: AtomicU64,
}

/// What belongs to one ring.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Direction {
    /// Written by the end that sends, read by the other.
    pub producer: Producer,
    /// The sender's own.
    pub sender: Sender,
    /// Written by the end that receives.
    pub consumer: Consumer,
    /// Written by a sender that waits.
    pub writer: Writer,
}

/// Written by the end that sends.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Producer {
    /// How many bytes it has sent, by the ring.
    pub head: AtomicU64,
    /// A reader that is at the first of these goes on at the second.
    pub skip_from: AtomicU64,
    /// See there.
    pub skip_to: AtomicU64,
    /// How many bytes have gone through the kernel; [`NEVER`] before they go through the ring.
    pub switched_at: AtomicU64,
    /// How many bytes it has given to the kernel before.
    pub given: AtomicU64,
    /// It will send no more.
    pub fin: AtomicU32,
    /// How many of its threads are about to send a bell.
    pub notifying: AtomicU32,
    /// How many bells this end has sent, each a byte in the kernel's stream.
    pub bells: AtomicU64,
    /// From here on bytes lie in the larger ring; [`NEVER`] before it has grown.
    pub grown_at: AtomicU64,
}

/// What the end that sends has for itself. The other end does not look at it, so a sender need not wait
/// until it has got back what the other end looks at all the time.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Sender {
    /// As in [`Producer`], from before bytes are published.
    pub head: AtomicU64,
    /// As in [`Producer`].
    pub grown_at: AtomicU64,
    pub(crate) is_switched: AtomicU32,
    /// What it last knew of the other end's cursor.
    pub tail_seen: AtomicU64,
    /// How much has gone through it while a larger one was wanted.
    pub wanted: AtomicU64,
    /// Where the reader was when it was last found full.
    pub full_at: AtomicU64,
    /// So many bytes from the start of the ring have memory.
    pub reserved: AtomicU64,
    /// The same of the larger one.
    pub reserved_large: AtomicU64,
}

/// Written by the end that receives.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Consumer {
    /// How many bytes it has read.
    pub tail: AtomicU64,
    /// So many bytes behind it the program still has, where they lie: no room for the sender.
    pub held: AtomicU64,
    /// How many bytes it has taken from the kernel.
    pub taken: AtomicU64,
    /// How many bells it has taken from the kernel.
    pub drained: AtomicU64,
    /// What the sender looks at with every message.
    pub sleep: Sleep,
}

/// Whether the end that receives sleeps: written when it does so, and not with what it reads.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Sleep {
    /// It sleeps, and wants to be woken: [`ALONE`], [`TOGETHER`] or [`ON_WORD`].
    pub armed: AtomicU32,
    /// The doorbell of a sleeper that sleeps together.
    pub doorbell: AtomicU32,
    /// It is closed, and will read no more.
    pub gone: AtomicU32,
    /// Its program has been lent what it received last.
    pub lends: AtomicU32,
}

/// Written by a sender that waits for room.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Writer {
    /// It sleeps until there is room.
    pub armed: AtomicU32,
    /// What both ends had read together, and one more, when it last waited for a while and neither read; 0: it never has.
    pub still_at: AtomicU64,
    /// How often it has said so.
    pub still_count: AtomicU32,
}

impl Sender {
    /// Whether it has switched.
    #[inline]
    pub fn is_switched(&self) -> bool {
        self.is_switched.load(Ordering::Relaxed) != 0
    }
}

impl Page {
    /// Fills in the words of a page that no other process knows yet.
    pub fn prepare(&self) {
        for direction in &self.directions {
            direction.producer.switched_at.store(NEVER, Ordering::Relaxed);
            direction.producer.grown_at.store(NEVER, Ordering::Relaxed);
            direction.sender.grown_at.store(NEVER, Ordering::Relaxed);
            // A thread that sleeps in the kernel and does not know of the rings yet has to be notified.
            direction.consumer.sleep.armed.store(ALONE, Ordering::Relaxed);
        }
        self.state.store(OFFERED, Ordering::Relaxed);
    }

    /// Both directions, that of the end that connected first.
    pub const fn directions(&self) -> &[Direction; 2] {
        &self.directions
    }

    /// The ring on which this end sends.
    #[inline]
    pub const fn outgoing(&self, end: End) -> &Direction {
        let [client, server] = &self.directions;
        match end {
            End::Client => client,
            End::Server => server,
        }
    }

    /// The ring from which this end receives.
    #[inline]
    pub const fn incoming(&self, end: End) -> &Direction {
        self.outgoing(end.other())
    }

    /// Whether it has been offered and neither taken nor withdrawn.
    #[inline]
    pub fn is_offered(&self) -> bool {
        self.state.load(Ordering::Acquire) == OFFERED
    }

    /// Whether both ends have it.
    #[inline]
    pub fn is_accepted(&self) -> bool {
        self.state.load(Ordering::Acquire) == ACCEPTED
    }

    /// The end that accepted takes the offer: so many bytes it has received and sent through the kernel before.
    /// Returns false if the offer has been taken back. No thread of this end sends or receives meanwhile.
    pub fn take(&self, taken: u64, given: u64) -> bool {
        self.incoming(End::Server).consumer.taken.store(taken, Ordering::Release);
        self.outgoing(End::Server).producer.given.store(given, Ordering::Release);
        let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
        self.state.compare_exchange(OFFERED, ACCEPTED, o, r).is_ok()
    }

    /// The end that connected takes its offer back. Returns false if the other was faster.
    pub fn withdraw(&self) -> bool {
        let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
        self.state.compare_exchange(OFFERED, WITHDRAWN, o, r).is_ok()
    }

    /// Which end goes back to the kernel.
    #[inline]
    pub fn leaver(&self) -> Result<Leaver, Broken> {
        match self.leaver.load(Ordering::SeqCst) {
            0 => Ok(Leaver::Neither),
            1 => Ok(Leaver::Leaves(End::Client)),
            2 => Ok(Leaver::Leaves(End::Server)),
            3 => Ok(Leaver::Left(End::Client)),
            4 => Ok(Leaver::Left(End::Server)),
            _ => Err(Broken),
        }
    }

    /// Whether either end goes back to the kernel, or the word for that means nothing: then the end that
    /// follows finds that out.
    #[inline]
    pub fn is_leaving(&self) -> bool {
        self.leaver.load(Ordering::SeqCst) != 0
    }

    /// This end goes back to the kernel, unless the other does so already.
    pub fn begin_to_leave(&self, end: End) -> bool {
        let (o, word) = (Ordering::SeqCst, Leaver::Leaves(end).word());
        self.leaver.compare_exchange(0, word, o, o).is_ok()
    }

    /// This end has gone.
    pub fn has_left(&self, end: End) {
        self.leaver.store(Leaver::Left(end).word(), Ordering::SeqCst);
    }
}

impl Direction {
    /// Whether there are bytes to read.
    #[inline]
    pub fn has_bytes(&self) -> bool {
        let head = self.producer.head.load(Ordering::Acquire);
        head != self.consumer.tail.load(Ordering::Relaxed)
    }

    /// How many bytes there are to read, about.
    #[inline]
    pub fn waiting(&self) -> u64 {
        let head = self.producer.head.load(Ordering::Relaxed);
        head.wrapping_sub(self.goes_on(self.consumer.tail.load(Ordering::Relaxed), head))
    }

    /// Where a reader at `tail` goes on: behind what the sender has skipped since, if that begins there.
    /// `head` is the sender's position.
    #[inline]
    pub fn goes_on(&self, tail: u64, head: u64) -> u64 {
        if self.producer.skip_from.load(Ordering::Relaxed) != tail {
            return tail;
        }
        let to = self.producer.skip_to.load(Ordering::Relaxed);
        if to.wrapping_sub(tail) <= head.wrapping_sub(tail) { to } else { tail }
    }

    /// Whether the sender has said that no more will come.
    #[inline]
    pub fn has_fin(&self) -> bool {
        self.producer.fin.load(Ordering::Acquire) != 0
    }

    /// Whether the reader is closed.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.consumer.sleep.gone.load(Ordering::Acquire) != 0
    }

    /// Bytes go through the ring from here on: so many have gone through the kernel. Returns whether they
    /// did not before. The lock for sending is held.
    #[inline]
    pub fn switch(&self) -> bool {
        let Self { producer, sender, .. } = self;
        let is_first = !sender.is_switched();
        if is_first {
            producer.switched_at.store(producer.given.load(Ordering::Acquire), Ordering::Release);
            sender.is_switched.store(1, Ordering::Relaxed);
        }
        is_first
    }

    /// Whether the sender has switched.
    #[inline]
    pub fn is_switched(&self) -> bool {
        self.producer.switched_at.load(Ordering::Acquire) != NEVER
    }

    /// Whether the sender has switched, and all that it had given to the kernel before has been read.
    #[inline]
    pub fn is_past(&self) -> bool {
        let switched = self.producer.switched_at.load(Ordering::Acquire);
        switched != NEVER && self.consumer.taken.load(Ordering::Relaxed) >= switched
    }

    /// Bells that the sender of this ring has sent, and that have not been taken out of the kernel's queue.
    #[inline]
    pub fn pending_bells(&self) -> u64 {
        let sent = self.producer.bells.load(Ordering::SeqCst);
        sent.wrapping_sub(self.consumer.drained.load(Ordering::Acquire))
    }

    /// So many bells have been taken out of the kernel's queue.
    #[inline]
    pub fn drained(&self, bells: u64) {
        self.consumer.drained.fetch_add(bells, Ordering::AcqRel);
    }
}

/// Threads of one end that wait, and watchers of it: shared by all processes that have that end.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Waiters {
    /// Threads that sleep, or are about to, until something happens here.
    pub sleepers: AtomicU32,
    /// Those among them that wait for room.
    pub writers: AtomicU32,
    /// Epoll instances that know it.
    pub watchers: AtomicU32,
}

impl Waiters {
    /// As a new socket has it.
    pub fn reset(&self) {
        for count in [&self.sleepers, &self.writers, &self.watchers] {
            count.store(0, Ordering::Relaxed);
        }
    }
}

/// A connection, as one of its ends has it.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'a> {
    /// What it shares with the other.
    pub page: &'a Page,
    /// What it shares among processes that have this end.
    pub waiters: &'a Waiters,
    /// Which end it is.
    pub me: End,
}

impl<'a> Connection<'a> {
    /// The ring on which this end sends.
    #[inline]
    pub const fn outgoing(&self) -> &'a Direction {
        self.page.outgoing(self.me)
    }

    /// The ring from which this end receives.
    #[inline]
    pub const fn incoming(&self) -> &'a Direction {
        self.page.incoming(self.me)
    }
}
