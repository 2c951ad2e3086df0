//! Buffers of SocketXtreme: pieces of packets that the program counts its references to.
//!
//! A packet is a loan (`loans.rs`) with a buffer for each of its pieces, which comes back when nothing refers to any of
//! them; or it is short, and has been copied into its one buffer. Buffers lie in chunks that stay for as long as the
//! process, so that one that the program passes can be told from anything else.
//!
//! # Safety
//!
//! The first fields of a buffer are `struct vma_buff_t`, which the program reads. They are written by the owner of the
//! [`Pool`], and never read here. So are its own bytes, but by the owner of a [`Blank`]. All others are touched by the
//! pool's owner alone.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr;

use super::returning::give_back;
use crate::socket::loans::{Lent, PIECES_MAX};
use crate::socket::table::SocketRef;

/// `struct vma_buff_t`, and what we know of it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Buffer {
    next: *mut Buffer,
    payload: *mut c_void,
    len: u16,
    /// References of the program's; 0 if it has none any more.
    references: u32,
    /// The place of the packet's first buffer.
    first: usize,
    /// Of the first: what the packet is of, and how many buffers are referred to. `None` if it is a short one.
    packet: Option<Packet>,
    /// The bytes of a short packet.
    own: UnsafeCell<[u8; SHORT]>,
}

/// A packet of so many bytes is copied.
pub(crate) const SHORT: usize = 256;
const _: () = assert!(SHORT.is_multiple_of(size_of::<u64>()));

/// Short packets that the program has at the same time; others are lent, and hold the sender up in the end.
const SHORTS_MAX: usize = 4096;

#[derive(Debug)]
pub(crate) struct Packet {
    /// What has been lent: of which socket and descriptor, and under which number.
    loan: (SocketRef, c_int, u64),
    places: [usize; PIECES_MAX],
    count: usize,
    alive: usize,
}

/// Buffers of one chunk.
const CHUNK: usize = 256;

/// All buffers of this process.
#[derive(Debug)]
pub(crate) struct Pool {
    chunks: Vec<Box<[Buffer; CHUNK]>>,
    free: Vec<usize>,
    /// Short packets that the program has.
    shorts: usize,
}

// SAFETY: the pointers of a buffer are the program's to follow, and not ours.
unsafe impl Send for Pool {}

impl Buffer {
    /// Whether the buffer at this place, which is referred to, is the one of a short packet.
    fn is_short(&self, place: usize) -> bool {
        self.packet.is_none() && self.first == place
    }
}

impl Pool {
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new(), free: Vec::new(), shorts: 0 }
    }

    #[inline]
    fn buffer(&mut self, place: usize) -> Option<&mut Buffer> {
        self.chunks.get_mut(place / CHUNK)?.get_mut(place % CHUNK)
    }

    #[inline]
    fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| self.grow())
    }

    /// One more chunk, and the place of its first buffer.
    #[cold]
    fn grow(&mut self) -> usize {
        let first = self.chunks.len() * CHUNK;
        let empty = |_| Buffer {
            next: ptr::null_mut(),
            payload: ptr::null_mut(),
            len: 0,
            references: 0,
            first: 0,
            packet: None,
            own: UnsafeCell::new([0; SHORT]),
        };
        self.chunks.push(Box::new(std::array::from_fn(empty)));
        self.free.extend((first + 1..first + CHUNK).rev());
        first
    }

    /// Where a buffer is that the program has passed, if it is one that it refers to.
    #[inline]
    fn place(&self, at: *const Buffer) -> Option<usize> {
        let within = |chunk: &[Buffer; CHUNK]| {
            let offset = at.addr().checked_sub(chunk.as_ptr().addr())?;
            let is_one = offset.is_multiple_of(size_of::<Buffer>());
            let index = offset / size_of::<Buffer>();
            let buffer = chunk.get(index).filter(|_| is_one)?;
            (buffer.references > 0).then_some(index)
        };
        self.chunks
            .iter()
            .enumerate()
            .find_map(|(number, chunk)| Some(number * CHUNK + within(chunk)?))
    }

    /// A list of buffers for what has been lent of a socket, of at least one.
    pub(crate) fn list(
        &mut self,
        socket: &SocketRef,
        fd: c_int,
        lent: &Lent,
    ) -> (*mut Buffer, usize) {
        let count = lent.count.clamp(1, PIECES_MAX);
        let mut places = [0; PIECES_MAX];
        places.iter_mut().take(count).for_each(|place| *place = self.take());
        let [first, ..] = places;
        let mut next = ptr::null_mut();
        for (place, piece) in places.iter().zip(&lent.pieces).take(count).rev() {
            let Some(buffer) = self.buffer(*place) else { continue };
            buffer.next = next;
            buffer.payload = piece.iov_base;
            buffer.len = u16::try_from(piece.iov_len).unwrap_or(u16::MAX);
            (buffer.references, buffer.first) = (1, first);
            next = ptr::from_mut(buffer);
        }
        if let Some(buffer) = self.buffer(first) {
            let loan = (socket.clone(), fd, lent.id);
            buffer.packet = Some(Packet { loan, places, count, alive: count });
        }
        (next, count)
    }

    /// A buffer for a short packet; `None` if the program has very many.
    pub(crate) fn blank(&mut self) -> Option<Blank> {
        if self.shorts >= SHORTS_MAX {
            return None;
        }
        let place = self.take();
        let own = self.buffer(place)?.own.get().cast();
        Some(Blank { place, own })
    }

    /// A blank that is not wanted any more.
    pub(crate) fn put_back(&mut self, Blank { place, .. }: Blank) {
        self.free.push(place);
    }

    /// The packet of the first `len` bytes of a blank.
    #[inline]
    pub(crate) fn fill(&mut self, Blank { place, own }: Blank, len: usize) -> *mut Buffer {
        self.shorts += 1;
        let Some(buffer) = self.buffer(place) else { return ptr::null_mut() };
        (buffer.next, buffer.payload) = (ptr::null_mut(), own.cast());
        buffer.len = u16::try_from(len).unwrap_or(0);
        (buffer.references, buffer.first) = (1, place);
        ptr::from_mut(buffer)
    }

    /// One reference more; `None` if the program has none.
    pub(crate) fn refer(&mut self, buffer: *const Buffer) -> Option<u32> {
        let place = self.place(buffer)?;
        let buffer = self.buffer(place)?;
        buffer.references = buffer.references.checked_add(1)?;
        Some(buffer.references)
    }

    /// One less. Returns how many are left; `None` if the program has none.
    pub(crate) fn free(&mut self, buffer: *const Buffer) -> Option<u32> {
        let place = self.place(buffer)?;
        let (left, packet) = self.release(place)?;
        if let Some(packet) = packet {
            packet.return_loan();
        }
        Some(left)
    }

    /// One less to each buffer of a packet, by its first. `None` if it is none, or the program refers to it no more.
    pub(crate) fn free_packet(&mut self, first: *const Buffer) -> Option<()> {
        let place = self.place(first)?;
        let buffer = self.buffer(place)?;
        if buffer.is_short(place) {
            buffer.references -= 1;
            if buffer.references == 0 {
                self.shorts -= 1;
                self.free.push(place);
            }
            return Some(());
        }
        let packet = buffer.packet.as_ref()?;
        let (places, count) = (packet.places, packet.count);
        for place in places.iter().take(count) {
            // One that the program has freed by itself is not there any more.
            if let Some((_, Some(packet))) = self.release(*place) {
                packet.return_loan();
            }
        }
        Some(())
    }

    /// One reference less. Returns how many are left, and the packet if that was the last one to it.
    #[inline]
    fn release(&mut self, place: usize) -> Option<(u32, Option<Packet>)> {
        let buffer = self.buffer(place)?;
        buffer.references = buffer.references.checked_sub(1)?;
        let (left, first) = (buffer.references, buffer.first);
        let is_short = buffer.is_short(place);
        if left > 0 {
            return Some((left, None));
        }
        if is_short {
            self.shorts -= 1;
            self.free.push(place);
            return Some((0, None));
        }
        let holder = &mut self.buffer(first)?.packet;
        let packet = holder.as_mut()?;
        packet.alive = packet.alive.saturating_sub(1);
        if packet.alive > 0 {
            return Some((0, None));
        }
        let packet = holder.take()?;
        self.free.extend(packet.places.iter().take(packet.count));
        Some((0, Some(packet)))
    }
}

/// A buffer that nothing refers to, and whose owner may write its bytes.
#[derive(Debug)]
pub(crate) struct Blank {
    place: usize,
    own: *mut u8,
}

// SAFETY: the bytes are its own.
unsafe impl Send for Blank {}

impl Blank {
    /// Room for [`SHORT`] bytes.
    pub(crate) fn part(&self) -> libc::iovec {
        libc::iovec { iov_base: self.own.cast(), iov_len: SHORT }
    }
}

impl Packet {
    /// Nothing refers to it any more.
    fn return_loan(self) {
        let (socket, fd, id) = self.loan;
        let _ = give_back(&socket, fd, id);
    }
}
