//! Collectives: what a group of endpoints does together.
//!
//! A [`Group`] is a messenger to each other member. All members call the same collective, in the same
//! order, with buffers of the same length. Every member computes sums in the same order as every other,
//! so that all have the same bits; which order that is depends on the [`Topology`].
//!
//! Members send to and receive from one another at the same time: whoever has sent all that it may
//! takes what comes meanwhile, because a messenger notes arrivals while it waits.

use crate::error::MessageError;
use crate::messenger::{Message, Messenger};
use std::fmt;

/// How members of a group pass data on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Topology {
    /// Short vectors over the full mesh, long ones round a ring.
    #[default]
    Auto,
    /// Everybody sends to everybody: fewest steps.
    Mesh,
    /// Round a ring, in pieces: least to send.
    Ring,
    /// Up a tree and down again; each member has so many children, at least 1.
    Tree {
        /// Children of a member.
        width: usize,
    },
}

/// What is done with two numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reduction {
    /// They are added; integers wrap.
    Sum,
    /// The smaller one.
    Min,
    /// The larger one.
    Max,
}

mod sealed {
    pub trait Sealed {}
}

/// A number that groups can reduce: `f32`, `f64`, `i32` and `i64`.
pub trait Number: Copy + Default + fmt::Debug + sealed::Sealed {
    /// Bytes of it.
    const BYTES: usize;
    /// What comes of two of them.
    #[must_use]
    fn reduce(self, other: Self, how: Reduction) -> Self;
    /// Writes it to the start of `bytes`, in the machine's order.
    fn put(self, bytes: &mut [u8]);
    /// Reads it from the start of `bytes`.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! number {
    ($type:ty, $add:expr) => {
        impl sealed::Sealed for $type {}
        impl Number for $type {
            const BYTES: usize = size_of::<Self>();

            #[inline]
            fn reduce(self, other: Self, how: Reduction) -> Self {
                match how {
                    Reduction::Sum => $add(self, other),
                    Reduction::Min => self.min(other),
                    Reduction::Max => self.max(other),
                }
            }

            #[inline]
            fn put(self, bytes: &mut [u8]) {
                for (to, from) in bytes.iter_mut().zip(self.to_ne_bytes()) {
                    *to = from;
                }
            }

            #[inline]
            fn get(bytes: &[u8]) -> Self {
                bytes.first_chunk().map_or(Self::default(), |bytes| Self::from_ne_bytes(*bytes))
            }
        }
    };
}

number!(f32, |a: f32, b: f32| a + b);
number!(f64, |a: f64, b: f64| a + b);
number!(i32, i32::wrapping_add);
number!(i64, i64::wrapping_add);

/// Members that do things together.
#[derive(Debug)]
pub struct Group {
    rank: usize,
    /// To each member in the order of their ranks; none to itself.
    peers: Vec<Option<Messenger>>,
    topology: Topology,
    /// Bytes on their way.
    scratch: Vec<u8>,
}

/// Why a group did not do what it was to do. Its members are out of step then: make another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum GroupError {
    /// The members do not agree what they do: one sent so many bytes where another number was due.
    Disagreement {
        /// Which member.
        rank: usize,
        /// Bytes that it sent.
        sent: usize,
        /// Bytes that were due.
        due: usize,
    },
    /// The message to or from a member failed.
    Member {
        /// Which.
        rank: usize,
        /// How.
        error: MessageError,
    },
    /// There is no member of this rank, or it is this one and has a messenger, or it is not and has
    /// none.
    NoSuchMember {
        /// Which.
        rank: usize,
    },
    /// A vector that is divided among all members has a length that cannot be.
    Uneven {
        /// How long it is.
        len: usize,
        /// How many members there are.
        members: usize,
    },
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disagreement { rank, sent, due } => write!(
                f,
                "member {rank} sent {sent} bytes where {due} were due: all members have to call the \
                 same collectives in the same order, with vectors of one length"
            ),
            Self::Member { rank, error } => write!(f, "member {rank}: {error}"),
            Self::NoSuchMember { rank } => write!(f, "there is no member {rank} to talk to"),
            Self::Uneven { len, members } => {
                write!(f, "a vector of {len} cannot be divided among {members} members")
            }
        }
    }
}

impl std::error::Error for GroupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Member { error, .. } => Some(error),
            Self::Disagreement { .. } | Self::NoSuchMember { .. } | Self::Uneven { .. } => None,
        }
    }
}

impl Group {
    /// The group in which this member is number `rank`: `peers` has a messenger to each member, and
    /// none at its own place.
    ///
    /// # Errors
    ///
    /// [`GroupError::NoSuchMember`].
    pub fn new(rank: usize, peers: Vec<Option<Messenger>>) -> Result<Self, GroupError> {
        let wrong = |(at, peer): &(usize, &Option<Messenger>)| (*at == rank) == peer.is_some();
        if let Some((rank, _)) = peers.iter().enumerate().find(wrong) {
            return Err(GroupError::NoSuchMember { rank });
        }
        if rank >= peers.len() {
            return Err(GroupError::NoSuchMember { rank });
        }
        Ok(Self { rank, peers, topology: Topology::Auto, scratch: Vec::new() })
    }

    /// Sets how data is passed on. All members need the same.
    #[must_use]
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// Which member this is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.peers.len()
    }

    fn peer(&self, rank: usize) -> Result<&Messenger, GroupError> {
        let peer = self.peers.get(rank).and_then(Option::as_ref);
        peer.ok_or(GroupError::NoSuchMember { rank })
    }

    fn send(&self, to: usize, bytes: &[u8]) -> Result<(), GroupError> {
        let sent = self.peer(to)?.send(bytes);
        sent.map_err(|error| GroupError::Member { rank: to, error })
    }

    fn recv(&self, from: usize, due: usize) -> Result<Message, GroupError> {
        let message = self.peer(from)?.recv();
        let message = message.map_err(|error| GroupError::Member { rank: from, error })?;
        match message.len() {
            len if len == due => Ok(message),
            sent => Err(GroupError::Disagreement { rank: from, sent, due }),
        }
    }

    fn send_numbers<T: Number>(&mut self, to: usize, numbers: &[T]) -> Result<(), GroupError> {
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.resize(numbers.len() * T::BYTES, 0);
        for (to, number) in bytes.chunks_exact_mut(T::BYTES).zip(numbers) {
            number.put(to);
        }
        let sent = self.send(to, &bytes);
        self.scratch = bytes;
        sent
    }

    fn recv_numbers<T: Number>(
        &mut self,
        from: usize,
        numbers: &mut [T],
        mut take: impl FnMut(&mut T, T),
    ) -> Result<(), GroupError> {
        let message = self.recv(from, numbers.len() * T::BYTES)?;
        self.scratch.resize(message.len(), 0);
        let read = message.read(0, &mut self.scratch);
        debug_assert!(read.is_ok(), "the message has this length");
        for (number, bytes) in numbers.iter_mut().zip(self.scratch.chunks_exact(T::BYTES)) {
            take(number, T::get(bytes));
        }
        Ok(())
    }

    /// Waits until all members have come here.
    ///
    /// # Errors
    ///
    /// [`GroupError`].
    pub fn barrier(&mut self) -> Result<(), GroupError> {
        // In each step everybody hears of twice as many as before.
        let mut step = 1;
        while step < self.size() {
            let (to, from) = self.neighbours(step);
            self.send(to, &[])?;
            self.recv(from, 0)?;
            step *= 2;
        }
        Ok(())
    }

    /// The members so many places on and back.
    fn neighbours(&self, step: usize) -> (usize, usize) {
        let size = self.size();
        ((self.rank + step) % size, (self.rank + size - step % size) % size)
    }

    /// Gives everybody the vector of member `root`.
    ///
    /// # Errors
    ///
    /// [`GroupError`].
    pub fn broadcast<T: Number>(&mut self, root: usize, data: &mut [T]) -> Result<(), GroupError> {
        if root >= self.size() {
            return Err(GroupError::NoSuchMember { rank: root });
        }
        let width = match self.topology {
            Topology::Tree { width } => width.max(1),
            Topology::Mesh => self.size(),
            Topology::Ring => 1,
            Topology::Auto => 2,
        };
        // Places in a tree whose root is place 0.
        let size = self.size();
        let place = (self.rank + size - root) % size;
        let member = |place: usize| (place + root) % size;
        if let Some(above) = place.checked_sub(1) {
            self.recv_numbers(member(above / width), data, |old, new| *old = new)?;
        }
        for below in (place * width + 1..=place * width + width).take_while(|below| *below < size) {
            self.send_numbers(member(below), data)?;
        }
        Ok(())
    }

    /// Reduces the vectors of all members, element by element, and gives everybody the result.
    ///
    /// # Errors
    ///
    /// [`GroupError`].
    pub fn allreduce<T: Number>(
        &mut self,
        data: &mut [T],
        how: Reduction,
    ) -> Result<(), GroupError> {
        let short = data.len() * T::BYTES <= SHORT_BYTES;
        match self.topology {
            _ if self.size() == 1 => Ok(()),
            Topology::Mesh => self.allreduce_mesh(data, how),
            Topology::Auto if short => self.allreduce_mesh(data, how),
            Topology::Auto | Topology::Ring => {
                self.scatter_ring(data, how)?;
                self.gather_ring(data)
            }
            Topology::Tree { width } => self.allreduce_tree(data, width.max(1), how),
        }
    }

    /// Everybody sends its vector to everybody, and reduces them in the order of their ranks.
    fn allreduce_mesh<T: Number>(
        &mut self,
        data: &mut [T],
        how: Reduction,
    ) -> Result<(), GroupError> {
        for step in 1..self.size() {
            let (to, _) = self.neighbours(step);
            self.send_numbers(to, data)?;
        }
        let own = data.to_vec();
        for rank in 0..self.size() {
            let first = rank == 0;
            let take = |sum: &mut T, new: T| *sum = if first { new } else { sum.reduce(new, how) };
            match rank == self.rank {
                true => data.iter_mut().zip(&own).for_each(|(sum, new)| {
                    *sum = if first { *new } else { sum.reduce(*new, how) };
                }),
                false => self.recv_numbers(rank, data, take)?,
            }
        }
        Ok(())
    }

    /// Up a tree, the children in order, and down again.
    fn allreduce_tree<T: Number>(
        &mut self,
        data: &mut [T],
        width: usize,
        how: Reduction,
    ) -> Result<(), GroupError> {
        let size = self.size();
        let below = self.rank * width + 1..=self.rank * width + width;
        for child in below.take_while(|child| *child < size) {
            self.recv_numbers(child, data, |sum, new| *sum = sum.reduce(new, how))?;
        }
        if let Some(above) = self.rank.checked_sub(1) {
            self.send_numbers(above / width, data)?;
        }
        let topology = std::mem::replace(&mut self.topology, Topology::Tree { width });
        let told = self.broadcast(0, data);
        self.topology = topology;
        told
    }

    /// Where piece number `index` of a vector is.
    fn piece(&self, len: usize, index: usize) -> std::ops::Range<usize> {
        let size = self.size();
        let at = |index: usize| len / size * index + (len % size).min(index);
        at(index % size)..at(index % size + 1)
    }

    /// Round the ring: afterwards this member has piece `rank + 1` of the result.
    fn scatter_ring<T: Number>(
        &mut self,
        data: &mut [T],
        how: Reduction,
    ) -> Result<(), GroupError> {
        let (size, (next, previous)) = (self.size(), self.neighbours(1));
        for step in 0..size - 1 {
            let out = self.piece(data.len(), self.rank + size - step);
            self.send_numbers(next, data.get(out).unwrap_or_default())?;
            let into = self.piece(data.len(), self.rank + size - step - 1);
            let into = data.get_mut(into).unwrap_or_default();
            self.recv_numbers(previous, into, |own, sum| *own = sum.reduce(*own, how))?;
        }
        Ok(())
    }

    /// Round the ring again: everybody has every piece afterwards.
    fn gather_ring<T: Number>(&mut self, data: &mut [T]) -> Result<(), GroupError> {
        let (size, (next, previous)) = (self.size(), self.neighbours(1));
        for step in 0..size - 1 {
            let out = self.piece(data.len(), self.rank + 1 + size - step);
            self.send_numbers(next, data.get(out).unwrap_or_default())?;
            let into = self.piece(data.len(), self.rank + size - step);
            let into = data.get_mut(into).unwrap_or_default();
            self.recv_numbers(previous, into, |old, new| *old = new)?;
        }
        Ok(())
    }

    /// Reduces the vectors of all members, and gives each member one part of the result, the first
    /// member the first part. Returns where in `data` its part is; the rest is of no use.
    ///
    /// # Errors
    ///
    /// [`GroupError`].
    pub fn reduce_scatter<T: Number>(
        &mut self,
        data: &mut [T],
        how: Reduction,
    ) -> Result<std::ops::Range<usize>, GroupError> {
        if !data.len().is_multiple_of(self.size()) {
            return Err(GroupError::Uneven { len: data.len(), members: self.size() });
        }
        let own = self.piece(data.len(), self.rank);
        if self.size() == 1 {
            return Ok(own);
        }
        // One place further than the ring leaves it.
        self.scatter_ring(data, how)?;
        let (next, previous) = self.neighbours(1);
        let has = self.piece(data.len(), self.rank + 1);
        self.send_numbers(next, data.get(has).unwrap_or_default())?;
        let into = data.get_mut(own.clone()).unwrap_or_default();
        self.recv_numbers(previous, into, |old, new| *old = new)?;
        Ok(own)
    }

    /// Gives everybody the vectors of all members, one after the other in the order of their ranks;
    /// this member's own is `data`, and `all` has room for all.
    ///
    /// # Errors
    ///
    /// [`GroupError::Uneven`] if `all` has another length; [`GroupError`].
    pub fn allgather<T: Number>(&mut self, data: &[T], all: &mut [T]) -> Result<(), GroupError> {
        if all.len() != data.len() * self.size() {
            return Err(GroupError::Uneven { len: all.len(), members: self.size() });
        }
        for step in 1..self.size() {
            let (to, _) = self.neighbours(step);
            self.send_numbers(to, data)?;
        }
        let len = data.len();
        for rank in 0..self.size() {
            let part = all.get_mut(rank * len..rank * len + len).unwrap_or_default();
            match rank == self.rank {
                true => part.copy_from_slice(data),
                false => self.recv_numbers(rank, part, |old, new| *old = new)?,
            }
        }
        Ok(())
    }
}

/// Vectors up to this long go over the full mesh unless it is told otherwise.
const SHORT_BYTES: usize = 4096;
