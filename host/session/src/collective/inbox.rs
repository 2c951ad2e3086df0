//! Inboxes: long vectors are reduced piece by piece, by WRITEs among all members.
//!
//! A vector goes in slabs, and a slab has a piece for each member. Everybody writes its part of a
//! piece to the inbox of the piece's owner; the owner reduces the parts in the order of ranks and
//! writes the result to the inboxes of all. Slabs are short, so that most of this happens in the
//! processors' caches, and several are under way at once.
//!
//! There are no acknowledgements. A place for a part is free when the result has come that was made
//! of it; a place for a result is free when its owner has sent the part that comes [`SLOTS`] slabs
//! later, which it does once it has copied the result; a source of a WRITE is free when something has
//! come that the receiver could not have sent without what was written. All members run through the
//! same steps, which bounds what is on its way.

use super::number::{Number, Reduction, bytes, bytes_mut, reduce_after};
use super::{Group, GroupError};
use crate::adapter::Adapter;
use crate::buffer::{Block, Buffer};
use crate::error::{BlockError, BufferError, MessageError};
use crate::messenger::Message;
use crate::remote::RemoteBuffer;
use adverb_verbs::{Access, Rkey};
use std::ops::Range;

/// What a member has in common with each other, and knows of it.
#[derive(Debug)]
pub(super) struct Inboxes {
    /// In the order of their ranks; none for itself.
    others: Vec<Option<Other>>,
    /// Results on their way: one buffer for each adapter that leads to others.
    results: Vec<Buffer>,
    block_bytes: usize,
}

#[derive(Debug)]
struct Other {
    /// What it writes here: parts, then results.
    own: Buffer,
    /// Parts on their way to it.
    parts: Buffer,
    /// Which of the buffers results go to it from.
    results: usize,
    /// What is written there.
    theirs: RemoteBuffer,
    /// Notices that it has sent, in the present operation.
    parts_heard: usize,
    results_heard: usize,
}

/// What is in a block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum What {
    Part,
    Result,
}

impl Inboxes {
    /// Makes inboxes, and tells the others of them. All members do so at once.
    pub(super) fn open(group: &Group) -> Result<Self, GroupError> {
        let block_bytes = block_bytes(group.size());
        let mut made = Self { others: Vec::new(), results: Vec::new(), block_bytes };
        let mut adapters: Vec<&Adapter> = Vec::new();
        let mut own = Vec::with_capacity(group.size());
        for (rank, peer) in group.others() {
            let failed = |error: BufferError| GroupError::Member { rank, error: error.into() };
            let adapter = peer.endpoint().adapter();
            let allocate = |blocks, rights| {
                adapter.buffer_with(blocks, block_bytes, Access::LOCAL_WRITE | rights)
            };
            let known = adapters.iter().position(|known| known.is(adapter));
            let results = match known {
                Some(known) => known,
                None => {
                    adapters.push(adapter);
                    made.results.push(allocate(SLOTS, Access::NONE).map_err(failed)?);
                    adapters.len() - 1
                }
            };
            let inbox = allocate(2 * SLOTS, Access::REMOTE_WRITE).map_err(failed)?;
            let parts = allocate(SLOTS, Access::NONE).map_err(failed)?;
            let words = [inbox.addr(), u64::from(inbox.rkey().0), word(block_bytes)];
            let sent = peer.send(words.map(u64::to_le_bytes).as_flattened());
            sent.map_err(|error| GroupError::Member { rank, error })?;
            own.push((rank, inbox, parts, results));
        }
        made.others.resize_with(group.size(), || None);
        for (rank, own, parts, results) in own {
            let theirs = ask(group, rank, block_bytes)?;
            if let Some(other) = made.others.get_mut(rank) {
                let (parts_heard, results_heard) = (0, 0);
                *other = Some(Other { own, parts, results, theirs, parts_heard, results_heard });
            }
        }
        Ok(made)
    }

    fn other(&self, rank: usize) -> Result<&Other, GroupError> {
        let other = self.others.get(rank).and_then(Option::as_ref);
        other.ok_or(GroupError::NoSuchMember { rank })
    }

    fn other_mut(&mut self, rank: usize) -> Result<&mut Other, GroupError> {
        let other = self.others.get_mut(rank).and_then(Option::as_mut);
        other.ok_or(GroupError::NoSuchMember { rank })
    }

    /// Takes notices of a member until it has written what is wanted of a slab.
    fn hear(
        &mut self,
        call: &Call<'_>,
        rank: usize,
        what: What,
        slab: usize,
    ) -> Result<(), GroupError> {
        let other = self.other_mut(rank)?;
        while slab >= *other.heard(what) {
            let message = call.group.recv(rank, NOTICE_BYTES)?;
            let [kind, number, len] = words(&message);
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            if len != call.len_bytes {
                return Err(GroupError::Disagreement { rank, sent: len, due: call.len_bytes });
            }
            let kind = if kind == What::Part.word() { What::Part } else { What::Result };
            let next = other.heard(kind);
            if number != word(*next) {
                let error = MessageError::Unruly { what: "it is in another step of a collective" };
                return Err(GroupError::Member { rank, error });
            }
            *next += 1;
        }
        Ok(())
    }
}

impl Other {
    fn heard(&mut self, what: What) -> &mut usize {
        match what {
            What::Part => &mut self.parts_heard,
            What::Result => &mut self.results_heard,
        }
    }
}

impl What {
    const fn word(self) -> u64 {
        match self {
            Self::Part => 0,
            Self::Result => 1,
        }
    }

    /// In which block of an inbox it is.
    const fn place(self, slab: usize) -> usize {
        match self {
            Self::Part => slab % SLOTS,
            Self::Result => SLOTS + slab % SLOTS,
        }
    }
}

/// Where a member's inbox is.
fn ask(group: &Group, rank: usize, block_bytes: usize) -> Result<RemoteBuffer, GroupError> {
    let [start, rkey, bytes] = words(&group.recv(rank, NOTICE_BYTES)?);
    if bytes != word(block_bytes) {
        let error = MessageError::Unruly { what: "its inbox has blocks of another length" };
        return Err(GroupError::Member { rank, error });
    }
    let rkey = Rkey(u32::try_from(rkey).unwrap_or(0));
    Ok(RemoteBuffer::from_raw(start, rkey, 2 * SLOTS, block_bytes))
}

/// The words of a notice.
fn words(message: &Message) -> [u64; 3] {
    let mut words = [[0; 8]; 3];
    let read = message.read(0, words.as_flattened_mut());
    debug_assert!(read.is_ok(), "the message has this length");
    words.map(u64::from_le_bytes)
}

/// One operation.
struct Call<'a> {
    group: &'a Group,
    how: Reduction,
    /// Bytes of the whole vector.
    len_bytes: usize,
    /// Numbers of a slab.
    slab: usize,
}

impl Call<'_> {
    /// Where the piece of a member is in a slab.
    fn piece(&self, len: usize, slab: usize, index: usize) -> Range<usize> {
        let start = (slab * self.slab).min(len);
        let end = (start + self.slab).min(len);
        let piece = self.group.piece(end - start, index);
        start + piece.start..start + piece.end
    }

    /// WRITEs a block to a member, and says so; no block is nothing to write.
    fn post(
        &self,
        inboxes: &Inboxes,
        rank: usize,
        (what, slab): (What, usize),
        block: Option<Block>,
    ) -> Result<(), GroupError> {
        let failed = |error| GroupError::Member { rank, error };
        let peer = self.group.peer(rank)?;
        if let Some(block) = block {
            let to = inboxes.other(rank)?.theirs.at(what.place(slab));
            let to = to.map_err(|error| failed(error.into()))?;
            peer.write(&block, to).map_err(failed)?;
        }
        let words = [what.word(), word(slab), word(self.len_bytes)];
        peer.send(words.map(u64::to_le_bytes).as_flattened()).map_err(failed)
    }

    /// Gives the owners of a slab's pieces what this member has of them.
    fn give<T: Number>(
        &self,
        inboxes: &Inboxes,
        data: &[T],
        slab: usize,
    ) -> Result<(), GroupError> {
        for step in 1..self.group.size() {
            let (rank, _) = self.group.neighbours(step);
            let part = data.get(self.piece(data.len(), slab, rank)).unwrap_or_default();
            let block = self.fill(&inboxes.other(rank)?.parts, slab, part)?;
            self.post(inboxes, rank, (What::Part, slab), block)?;
        }
        Ok(())
    }

    /// Numbers in a block of a buffer; none if there are none.
    fn fill<T: Number>(
        &self,
        buffer: &Buffer,
        slab: usize,
        numbers: &[T],
    ) -> Result<Option<Block>, GroupError> {
        let block = buffer.at(slab % SLOTS).and_then(|block| {
            block.write(0, bytes(numbers))?;
            block.first(size_of_val(numbers))
        });
        let block = block.map_err(|error| self.own(error))?;
        Ok((!numbers.is_empty()).then_some(block))
    }

    fn own(&self, error: BlockError) -> GroupError {
        GroupError::Member { rank: self.group.rank(), error: error.into() }
    }

    /// Reduces this member's piece of a slab into `data`.
    fn reduce<T: Number>(
        &self,
        inboxes: &mut Inboxes,
        data: &mut [T],
        slab: usize,
        (sum, part): (&mut [T], &mut [T]),
    ) -> Result<(), GroupError> {
        let (rank, size) = (self.group.rank(), self.group.size());
        for step in 1..size {
            let (_, from) = self.group.neighbours(step);
            inboxes.hear(self, from, What::Part, slab)?;
        }
        let piece = self.piece(data.len(), slab, rank);
        let own = data.get_mut(piece).unwrap_or_default();
        let mut offset = 0;
        for own in own.chunks_mut(sum.len().max(1)) {
            let (Some(sum), Some(part)) = (sum.get_mut(..own.len()), part.get_mut(..own.len()))
            else {
                continue;
            };
            for from in 0..size {
                let into = if from == 0 { &mut *sum } else { &mut *part };
                if from == rank {
                    into.copy_from_slice(own);
                } else {
                    let block = inboxes.other(from)?.own.at(What::Part.place(slab));
                    let read = block.and_then(|block| block.read(offset, bytes_mut(into)));
                    read.map_err(|error| self.own(error))?;
                }
                if from > 0 {
                    reduce_after(sum, part, self.how);
                }
            }
            own.copy_from_slice(sum);
            offset += size_of_val(own);
        }
        Ok(())
    }

    /// Gives everybody the result of this member's piece.
    fn tell<T: Number>(
        &self,
        inboxes: &Inboxes,
        data: &[T],
        slab: usize,
    ) -> Result<(), GroupError> {
        let piece = self.piece(data.len(), slab, self.group.rank());
        let piece = data.get(piece).unwrap_or_default();
        let blocks = inboxes.results.iter().map(|buffer| self.fill(buffer, slab, piece));
        let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
        for step in 1..self.group.size() {
            let (rank, _) = self.group.neighbours(step);
            let block = blocks.get(inboxes.other(rank)?.results).cloned().flatten();
            self.post(inboxes, rank, (What::Result, slab), block)?;
        }
        Ok(())
    }

    /// Takes the results of a slab.
    fn take<T: Number>(
        &self,
        inboxes: &mut Inboxes,
        data: &mut [T],
        slab: usize,
    ) -> Result<(), GroupError> {
        let len = data.len();
        for step in 1..self.group.size() {
            let (_, rank) = self.group.neighbours(step);
            inboxes.hear(self, rank, What::Result, slab)?;
            let piece = data.get_mut(self.piece(len, slab, rank)).unwrap_or_default();
            let block = inboxes.other(rank)?.own.at(What::Result.place(slab));
            let read = block.and_then(|block| block.read(0, bytes_mut(piece)));
            read.map_err(|error| self.own(error))?;
        }
        Ok(())
    }
}

/// Reduces `data` of all members, in the order of their ranks.
pub(super) fn allreduce<T: Number>(
    group: &Group,
    inboxes: &mut Inboxes,
    data: &mut [T],
    how: Reduction,
) -> Result<(), GroupError> {
    let slab = inboxes.block_bytes / T::BYTES * group.size();
    let slabs = data.len().div_ceil(slab);
    let call = Call { group, how, len_bytes: size_of_val(data), slab };
    for other in inboxes.others.iter_mut().flatten() {
        (other.parts_heard, other.results_heard) = (0, 0);
    }
    let (mut sum, mut part) = (vec![T::default(); CHUNK], vec![T::default(); CHUNK]);
    for slab in 0..slabs.min(SLOTS) {
        call.give(inboxes, data, slab)?;
    }
    // Results are taken one slab late: they come while the next one is reduced.
    for step in 0..=slabs {
        if step < slabs {
            call.reduce(inboxes, data, step, (&mut sum, &mut part))?;
            call.tell(inboxes, data, step)?;
        }
        if let Some(slab) = step.checked_sub(1) {
            call.take(inboxes, data, slab)?;
            if slab + SLOTS < slabs {
                call.give(inboxes, data, slab + SLOTS)?;
            }
        }
    }
    Ok(())
}

/// Bytes of a block: less for many members, so that an inbox has a bound.
fn block_bytes(size: usize) -> usize {
    let bytes = INBOX_BYTES / (2 * SLOTS * size.max(1));
    bytes.clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX) & !(BLOCK_BYTES_MIN - 1)
}

fn word(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Slabs under way.
const SLOTS: usize = 2;
/// Bytes of an inbox, as long as blocks are not too short then.
const INBOX_BYTES: usize = 4 << 20;
const BLOCK_BYTES_MIN: usize = 16 << 10;
const BLOCK_BYTES_MAX: usize = 512 << 10;
const _: () = assert!(BLOCK_BYTES_MIN.is_power_of_two());
/// What, which slab, and bytes of the whole vector; or address, key and bytes of a block of an inbox.
const NOTICE_BYTES: usize = 24;
/// Numbers that are reduced at once: they stay in the cache that is nearest.
const CHUNK: usize = 1024;
