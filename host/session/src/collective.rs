//! Collectives: what a group of endpoints does together.
//!
//! A [`Group`] is a messenger to each other member. All members call the same collective, in the same
//! order, with buffers of the same length. Every number of a result is computed by one member, or by
//! all in the same order, so that all have the same bits; which order that is [`Topology`] says.
//!
//! Members send to and receive from one another at the same time: a member that has sent all that it
//! may takes what comes meanwhile, because a messenger notes arrivals while it waits. Long messages are
//! only taken when they are asked for, though: all members send and ask in the same order, and none
//! sends more than [`LAG`] of them before it asks.
//!
//! The shapes of trees are in `collective/tree.rs`, the numbers are in `collective/number.rs`,
//! and how long vectors go over the full mesh in `collective/inbox.rs`.

mod inbox;
mod number;
mod tree;

use self::inbox::Inboxes;
pub use self::number::{Number, Reduction};
use self::number::{bytes, bytes_mut, reduce_after, reduce_before};
use self::tree::Tree;
use crate::error::{ChannelError, MessageError};
use crate::link::Departure;
use crate::messenger::{Message, Messenger};
use std::fmt;
use std::ops::Range;

/// How members of a group pass data on, and in which order they reduce it.
///
/// [`Group`] has an example.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Topology {
    /// The full mesh in small groups; in large ones two trees for short vectors, a ring for long.
    #[default]
    Auto,
    /// Everybody sends to everybody: fewest steps. The order is that of the ranks.
    Mesh,
    /// Round a ring, in pieces: each member talks to two others. Each piece is reduced from the member
    /// of its own number on, upwards, and after the last member from the first on.
    Ring,
    /// Up a tree and down again. Each member reduces its own and then those below, the lowest rank
    /// first.
    Tree {
        /// Members below each, at least 1.
        width: usize,
    },
    /// Half of the vector up one binary tree and half up another, and down again. A leaf
    /// of one has members below it in the other. The order is as for a tree.
    DoubleTree,
}

/// Members that do things together.
///
/// ```
/// use adverb_session::{ClientSession, Config, Group, Messenger, MessengerConfig, Reduction};
/// use adverb_session::{Endpoint, ServerSession, Topology};
/// use std::{error::Error, thread, time::Duration};
///
/// fn member(rank: usize, peer: &Endpoint) -> Result<[f32; 2], Box<dyn Error + Send + Sync>> {
///     let messenger = Messenger::open(peer, "data", MessengerConfig::default())?;
///     let mut peers = vec![None, None];
///     peers[1 - rank] = Some(messenger);
///     let mut group = Group::new(rank, peers)?.topology(Topology::Auto);
///     let mut vector = [1.0, rank as f32];
///     group.allreduce(&mut vector, Reduction::Sum)?;
///     group.close()?; // When the others are done, too.
///     Ok(vector)
/// }
///
/// let mut server = ServerSession::bind("127.0.0.1:0", Config::default())?;
/// let address = server.local_addr();
/// let other = thread::spawn(move || member(0, &server.accept(Duration::from_secs(5))?));
/// let endpoint = ClientSession::new(Config::default())?.connect(address)?;
/// assert_eq!(member(1, &endpoint).expect("a sum"), [2.0, 1.0]);
/// assert_eq!(other.join().expect("no panic").expect("a sum"), [2.0, 1.0]);
/// # Ok::<(), Box<dyn Error>>(())
/// ```
#[derive(Debug)]
pub struct Group {
    rank: usize,
    /// To each member in the order of their ranks; none to itself.
    peers: Vec<Option<Messenger>>,
    topology: Topology,
    /// Made when the first long vector goes over the full mesh.
    inboxes: Option<Inboxes>,
}

/// Why a group did not do what it was to do. Its members are out of step then: make another.
#[derive(Clone, Copy, Eq, PartialEq)]
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

adverb_sys::debug_as_display!(GroupError);
adverb_sys::caused!(GroupError: error in Self::Member { error, .. });

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
        Ok(Self { rank, peers, topology: Topology::Auto, inboxes: None })
    }

    /// Sets how data is passed on. All members need the same.
    #[must_use]
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// Sets from now on how data is passed on. All members need the same.
    pub fn set_topology(&mut self, topology: Topology) {
        self.topology = topology;
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

    fn others(&self) -> impl Iterator<Item = (usize, &Messenger)> {
        let all = self.peers.iter().enumerate();
        all.filter_map(|(rank, peer)| Some((rank, peer.as_ref()?)))
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

    fn send_numbers<T: Number>(&self, to: usize, numbers: &[T]) -> Result<(), GroupError> {
        self.send(to, bytes(numbers))
    }

    /// Receives numbers into the place of others.
    fn recv_numbers<T: Number>(&self, from: usize, numbers: &mut [T]) -> Result<(), GroupError> {
        let message = self.recv(from, size_of_val(numbers))?;
        let read = message.read(0, bytes_mut(numbers));
        debug_assert!(read.is_ok(), "the message has this length");
        Ok(())
    }

    /// Receives as many numbers and shows them, some at a time, together with those that are there.
    fn recv_onto<T: Number>(
        &self,
        from: usize,
        numbers: &mut [T],
        take: impl Fn(&mut [T], &[T]),
    ) -> Result<(), GroupError> {
        let message = self.recv(from, size_of_val(numbers))?;
        let mut new = [T::default(); STEP];
        let mut offset = 0;
        for numbers in numbers.chunks_mut(STEP) {
            let new = new.get_mut(..numbers.len()).unwrap_or_default();
            let read = message.read(offset, bytes_mut(new));
            debug_assert!(read.is_ok(), "the message has this length");
            take(numbers, new);
            offset += size_of_val(numbers);
        }
        Ok(())
    }

    /// Waits until all members have come here, and parts from them. A member that is dropped instead
    /// may take with it what others have not got yet.
    ///
    /// # Errors
    ///
    /// [`GroupError`]; it has parted from them then too.
    pub fn close(mut self) -> Result<(), GroupError> {
        let met = self.barrier();
        for (rank, peer) in self.others() {
            match peer.close() {
                // The members that close first have everything.
                Ok(()) | Err(MessageError::Channel(ChannelError::PeerGone(Departure::Closed))) => {}
                Err(error) => return met.and(Err(GroupError::Member { rank, error })),
            }
        }
        met
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

    /// Gives everybody the vector of member `root`: down a binary tree, or a tree of the width that
    /// the topology has, or from one to the next in a ring, or, over the full mesh, at once.
    ///
    /// # Errors
    ///
    /// [`GroupError`].
    pub fn broadcast<T: Number>(&mut self, root: usize, data: &mut [T]) -> Result<(), GroupError> {
        if root >= self.size() {
            return Err(GroupError::NoSuchMember { rank: root });
        }
        let width = match self.topology {
            Topology::Tree { width } => width,
            Topology::Mesh => self.size(),
            Topology::Ring => 1,
            Topology::Auto | Topology::DoubleTree => 2,
        };
        let tree = Tree::wide(self.rank, self.size(), root, width);
        for part in parts::<T>(data.len()) {
            self.pass_down(&tree, data.get_mut(part).unwrap_or_default())?;
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
        let short = size_of_val(data) <= SHORT_BYTES;
        let (rank, size) = (self.rank, self.size());
        match self.topology {
            _ if size == 1 => Ok(()),
            Topology::Auto if size > MESH_MEMBERS_MAX => match size_of_val(data) <= TREE_BYTES {
                true => self.up_and_down(&Tree::double(rank, size), data, how),
                false => self.round(data, how),
            },
            Topology::Auto | Topology::Mesh => match short {
                true => self.allreduce_short(data, how),
                false => self.allreduce_long(data, how),
            },
            Topology::Ring => self.round(data, how),
            Topology::Tree { width } => {
                self.up_and_down(&[Tree::wide(rank, size, 0, width)], data, how)
            }
            Topology::DoubleTree => self.up_and_down(&Tree::double(rank, size), data, how),
        }
    }

    /// Everybody sends its vector to everybody, and reduces them in the order of their ranks.
    fn allreduce_short<T: Number>(
        &mut self,
        data: &mut [T],
        how: Reduction,
    ) -> Result<(), GroupError> {
        for step in 1..self.size() {
            let (to, _) = self.neighbours(step);
            self.send_numbers(to, data)?;
        }
        self.reduce_in_order(data, &mut Vec::new(), how)
    }

    /// Receives as many numbers from each of the others, and reduces all in the order of the ranks.
    /// `sum` is memory for it.
    fn reduce_in_order<T: Number>(
        &self,
        data: &mut [T],
        sum: &mut Vec<T>,
        how: Reduction,
    ) -> Result<(), GroupError> {
        // Those before it come before its own.
        if let Some(last) = self.rank.checked_sub(1) {
            sum.resize(data.len(), T::default());
            self.recv_numbers(0, sum)?;
            for rank in 1..=last {
                self.recv_onto(rank, sum, |sum, new| reduce_after(sum, new, how))?;
            }
            reduce_before(data, sum, how);
        }
        for rank in self.rank + 1..self.size() {
            self.recv_onto(rank, data, |sum, new| reduce_after(sum, new, how))?;
        }
        Ok(())
    }

    /// Everybody reduces a piece of each slab, and writes it to everybody.
    fn allreduce_long<T: Number>(
        &mut self,
        data: &mut [T],
        how: Reduction,
    ) -> Result<(), GroupError> {
        let mut inboxes = match self.inboxes.take() {
            Some(inboxes) => inboxes,
            None => Inboxes::open(self)?,
        };
        let reduced = inbox::allreduce(self, &mut inboxes, data, how);
        self.inboxes = Some(inboxes);
        reduced
    }

    /// Up some trees, each with its share of the vector, and down again.
    fn up_and_down<T: Number>(
        &mut self,
        trees: &[Tree],
        data: &mut [T],
        how: Reduction,
    ) -> Result<(), GroupError> {
        // Where the trees' shares are, cut into parts. What goes down is some parts behind what goes
        // up; the same for everybody, so that members that meet in both trees send and ask in one
        // order.
        let len = data.len();
        let share = |tree| share(len, trees.len(), tree);
        let shares: Vec<Vec<Range<usize>>> = (0..trees.len())
            .map(|tree| {
                let Range { start, end } = share(tree);
                parts::<T>(end - start).map(|p| start + p.start..start + p.end).collect()
            })
            .collect();
        let steps = shares.iter().map(Vec::len).max().unwrap_or(0);
        for step in 0..steps + LAG {
            for (tree, parts) in trees.iter().zip(&shares) {
                if let Some(part) = parts.get(step) {
                    self.pass_up(tree, data.get_mut(part.clone()).unwrap_or_default(), how)?;
                }
            }
            for (tree, parts) in trees.iter().zip(&shares) {
                if let Some(part) = step.checked_sub(LAG).and_then(|step| parts.get(step)) {
                    self.pass_down(tree, data.get_mut(part.clone()).unwrap_or_default())?;
                }
            }
        }
        Ok(())
    }

    /// Reduces what comes from below, and sends it on.
    fn pass_up<T: Number>(
        &self,
        tree: &Tree,
        part: &mut [T],
        how: Reduction,
    ) -> Result<(), GroupError> {
        for below in &tree.below {
            self.recv_onto(*below, part, |sum, new| reduce_after(sum, new, how))?;
        }
        tree.above.map_or(Ok(()), |above| self.send_numbers(above, part))
    }

    /// Takes what comes from above, and sends it on.
    fn pass_down<T: Number>(&self, tree: &Tree, part: &mut [T]) -> Result<(), GroupError> {
        if let Some(above) = tree.above {
            self.recv_numbers(above, part)?;
        }
        tree.below.iter().try_for_each(|below| self.send_numbers(*below, part))
    }

    /// Where piece number `index` of a vector is.
    fn piece(&self, len: usize, index: usize) -> Range<usize> {
        share(len, self.size(), index % self.size())
    }

    /// Twice round the ring.
    fn round<T: Number>(&mut self, data: &mut [T], how: Reduction) -> Result<(), GroupError> {
        let own = self.rank + 1;
        self.scatter_ring(data, how, own)?;
        self.gather_ring(data, own)
    }

    /// Once round the ring: each member has a piece, this one number `own` and the next one the next, and
    /// afterwards all have all.
    fn gather_ring<T: Number>(&self, data: &mut [T], own: usize) -> Result<(), GroupError> {
        let size = self.size();
        for step in 0..size - 1 {
            let out = self.piece(data.len(), own + size - step);
            let into = self.piece(data.len(), own + size - step - 1);
            self.pass_on(data, out, into, |old, new| old.copy_from_slice(new))?;
        }
        Ok(())
    }

    /// Once round the ring: afterwards this member has piece number `own` of the result, and the next
    /// member has the next one.
    fn scatter_ring<T: Number>(
        &mut self,
        data: &mut [T],
        how: Reduction,
        own: usize,
    ) -> Result<(), GroupError> {
        let size = self.size();
        for step in 1..size {
            let out = self.piece(data.len(), own + size - step);
            let into = self.piece(data.len(), own + 2 * size - step - 1);
            // What comes has been reduced by those before.
            self.pass_on(data, out, into, |own, sum| reduce_before(own, sum, how))?;
        }
        Ok(())
    }

    /// Sends one piece to the next member in the ring while another comes from the one before, both in
    /// parts.
    fn pass_on<T: Number>(
        &self,
        data: &mut [T],
        out: Range<usize>,
        into: Range<usize>,
        take: impl Fn(&mut [T], &[T]),
    ) -> Result<(), GroupError> {
        let (next, previous) = self.neighbours(1);
        let (mut out_parts, mut in_parts) =
            (parts::<T>(out.end - out.start), parts::<T>(into.end - into.start));
        loop {
            let (send, receive) = (out_parts.next(), in_parts.next());
            if let Some(part) = &send {
                let part = out.start + part.start..out.start + part.end;
                self.send_numbers(next, data.get(part).unwrap_or_default())?;
            }
            if let Some(part) = &receive {
                let part = into.start + part.start..into.start + part.end;
                self.recv_onto(previous, data.get_mut(part).unwrap_or_default(), &take)?;
            }
            if send.is_none() && receive.is_none() {
                return Ok(());
            }
        }
    }

    /// Reduces the vectors of all members, and gives each member one part of the result, the first
    /// member the first part; parts are as even as can be. Returns where in `data` its part is; the rest
    /// is of no use. In a ring it is reduced from the member after the part's on, otherwise in the order
    /// that [`Topology`] says.
    ///
    /// # Errors
    ///
    /// [`GroupError`].
    pub fn reduce_scatter<T: Number>(
        &mut self,
        data: &mut [T],
        how: Reduction,
    ) -> Result<Range<usize>, GroupError> {
        let (rank, size) = (self.rank, self.size());
        match self.topology {
            _ if size == 1 => {}
            Topology::Auto if size > MESH_MEMBERS_MAX => match size_of_val(data) <= TREE_BYTES {
                true => self.up_and_down(&Tree::double(rank, size), data, how)?,
                false => self.scatter_ring(data, how, rank)?,
            },
            Topology::Auto | Topology::Mesh => self.scatter_mesh(data, how)?,
            Topology::Ring => self.scatter_ring(data, how, rank)?,
            Topology::Tree { width } => {
                self.up_and_down(&[Tree::wide(rank, size, 0, width)], data, how)?;
            }
            Topology::DoubleTree => self.up_and_down(&Tree::double(rank, size), data, how)?,
        }
        Ok(self.piece(data.len(), rank))
    }

    /// Everybody sends everybody their piece, and reduces its own in the order of the ranks.
    fn scatter_mesh<T: Number>(&self, data: &mut [T], how: Reduction) -> Result<(), GroupError> {
        let (len, size) = (data.len(), self.size());
        // Some pieces may be longer by one than others, and have a part more.
        let steps = parts::<T>(len.div_ceil(size)).count();
        let part = |rank: usize, step: usize| {
            let piece = self.piece(len, rank);
            let part = parts::<T>(piece.end - piece.start).nth(step)?;
            Some(piece.start + part.start..piece.start + part.end)
        };
        let mut sum = Vec::new();
        for step in 0..steps {
            for (to, part) in (1..size).filter_map(|on| {
                let (to, _) = self.neighbours(on);
                Some((to, part(to, step)?))
            }) {
                self.send_numbers(to, data.get(part).unwrap_or_default())?;
            }
            let Some(part) = part(self.rank, step) else { continue };
            let mine = data.get_mut(part).unwrap_or_default();
            self.reduce_in_order(mine, &mut sum, how)?;
        }
        Ok(())
    }

    /// Gives everybody the vectors of all members, one after the other in the order of their ranks;
    /// this member's own is `data`, and `all` has room for all. They go round a ring, or from each down
    /// a tree of its own, or, over the full mesh, to everybody at once.
    ///
    /// # Errors
    ///
    /// [`GroupError::Uneven`] if `all` has another length; [`GroupError`].
    pub fn allgather<T: Number>(&mut self, data: &[T], all: &mut [T]) -> Result<(), GroupError> {
        let (len, size) = (data.len(), self.size());
        if all.len() != len * size {
            return Err(GroupError::Uneven { len: all.len(), members: size });
        }
        let place = |rank: usize| rank * len..rank * len + len;
        all.get_mut(place(self.rank)).unwrap_or_default().copy_from_slice(data);
        match self.topology {
            Topology::Auto if size > MESH_MEMBERS_MAX && size_of_val(data) > SHORT_BYTES => {
                self.gather_ring(all, self.rank)
            }
            Topology::Ring => self.gather_ring(all, self.rank),
            Topology::Tree { .. } | Topology::DoubleTree => (0..size).try_for_each(|root| {
                self.broadcast(root, all.get_mut(place(root)).unwrap_or_default())
            }),
            Topology::Auto | Topology::Mesh => {
                for part in parts::<T>(len) {
                    for step in 1..size {
                        let (to, _) = self.neighbours(step);
                        self.send_numbers(to, data.get(part.clone()).unwrap_or_default())?;
                    }
                    for step in 1..size {
                        let (_, from) = self.neighbours(step);
                        let theirs = all.get_mut(place(from)).unwrap_or_default();
                        self.recv_numbers(from, theirs.get_mut(part.clone()).unwrap_or_default())?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// One of `count` shares of a vector, as even as can be.
fn share(len: usize, count: usize, index: usize) -> Range<usize> {
    let at = |index: usize| len / count * index + (len % count).min(index);
    at(index)..at(index + 1)
}

/// A vector in parts that are passed on one after the other; one without bytes for an empty vector,
/// so that lengths that differ are always noticed.
fn parts<T: Number>(len: usize) -> impl Iterator<Item = Range<usize>> {
    let step = PART_BYTES / T::BYTES;
    (0..len.div_ceil(step).max(1)).map(move |part| part * step..(part * step + step).min(len))
}

/// Vectors up to this long are sent to everybody as they are.
const SHORT_BYTES: usize = 8 << 10;
/// Members of a group in which everybody sends to everybody, unless it is told to.
const MESH_MEMBERS_MAX: usize = 16;
/// Vectors up to this long go over trees in larger groups.
const TREE_BYTES: usize = 64 << 10;
/// What is passed on at once: much longer than what it costs to say so.
const PART_BYTES: usize = 256 << 10;
/// Parts that have gone up a tree when the first comes down.
const LAG: usize = 3;
/// Numbers that are reduced at once: they stay in the cache that is nearest.
const STEP: usize = 512;
