//! A member's end: one AF_XDP socket on one queue of an interface.
//!
//! Frames arrive in the receive ring and go back to the queue's fill ring; frames to send go to the transmit ring, and
//! come back by the queue's completion ring, to whichever member looks there first. Both rings of the queue are used
//! under the UMEM's lock (`umem.rs`), a batch at a time.

#[cfg(any(test, feature = "hostile"))]
pub mod hostile;

use crate::ring::{Descriptor, Entry, Ring};
use crate::umem::{Holder, Locked, Umem, Writer, to_usize};
use adverb_sys::busy_poll;
use adverb_sys::fork::KeptFd;
use rustix::io::Errno;
use rustix::net::sockopt::{self, set_xdp_rx_ring_size, set_xdp_tx_ring_size, xdp_mmap_offsets};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING,
    XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Why a frame was not sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NotSent {
    /// There is no frame, or no room in the ring: earlier ones are still on their way.
    Full,
    /// What was written does not fit a frame, or is nothing.
    Size,
}

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "earlier frames are still on their way",
            Self::Size => "the packet does not fit a frame",
        })
    }
}

impl std::error::Error for NotSent {}

/// What the kernel has counted of a socket.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Statistics {
    /// Packets dropped on arrival, for all reasons.
    pub dropped: u64,
    /// Of these, those for which the receive ring had no room.
    pub ring_full: u64,
    /// How often the fill ring was empty when a packet came.
    pub no_frames: u64,
    /// Descriptors that the kernel did not take.
    pub invalid: u64,
}

/// A member's end of a queue: two halves, for threads that receive and that send.
#[derive(Debug)]
pub struct Socket {
    /// What arrives.
    pub incoming: Incoming,
    /// What is sent.
    pub outgoing: Outgoing,
}

impl Socket {
    /// Takes over a socket that is bound.
    pub(crate) fn adopt(fd: OwnedFd, umem: Arc<Umem>, place: u32, queue: u32) -> io::Result<Self> {
        let fd = Arc::new(KeptFd::new(fd)?);
        let at = xdp_mmap_offsets(&*fd)?;
        let (address, descriptor) = (Entry::Address, Entry::Descriptor);
        let rx = Ring::map(&*fd, XDP_PGOFF_RX_RING, &at.rx, RX_ENTRIES, descriptor)?;
        let tx = Ring::map(&*fd, XDP_PGOFF_TX_RING, &at.tx, TX_ENTRIES, descriptor)?;
        let fill = Ring::map(&*fd, XDP_UMEM_PGOFF_FILL_RING, &at.fr, QUEUE_ENTRIES, address)?;
        let completion =
            Ring::map(&*fd, XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr, QUEUE_ENTRIES, address)?;
        let incoming = Incoming {
            fd: Arc::clone(&fd),
            umem: Arc::clone(&umem),
            place,
            queue,
            rx,
            fill,
            read: Vec::with_capacity(BATCH),
            room: Vec::new(),
            idle: 0,
            coming: 0,
            polls: busy_poll::is_set(&*fd),
        };
        let written = tx.next_produced();
        let spare = Vec::with_capacity(2 * BATCH);
        let outgoing = Outgoing { fd, umem, place, tx, completion, written, spare };
        Ok(Self { incoming, outgoing })
    }
}

/// What arrives on a queue.
#[derive(Debug)]
pub struct Incoming {
    fd: Arc<KeptFd>,
    umem: Arc<Umem>,
    place: u32,
    queue: u32,
    rx: Ring,
    fill: Ring,
    /// Frames that were read.
    read: Vec<u32>,
    /// Where bytes of a shared UMEM are copied to.
    room: Vec<u8>,
    /// Calls in a row that have found nothing.
    idle: u32,
    /// Position in the fill ring of the frame that comes next, unless another member gets it.
    coming: u32,
    /// Calls have the driver look for packets.
    polls: bool,
}

impl Incoming {
    /// The number of its queue.
    #[must_use]
    pub const fn queue(&self) -> u32 {
        self.queue
    }

    /// The UMEM of its group.
    #[must_use]
    pub fn umem(&self) -> &Umem {
        &self.umem
    }

    /// Frames have arrived.
    #[inline]
    #[must_use]
    pub fn has_any(&self) -> bool {
        let has_any = self.rx.filled() > 0;
        if !has_any {
            self.expect();
        }
        has_any
    }

    /// Asks for the lines that the kernel writes next, most likely: they are near before its position says that it has.
    #[inline]
    fn expect(&self) {
        self.rx.prefetch(self.rx.next_consumed());
        self.umem.prefetch(self.fill.address(self.coming));
    }

    /// Gives at most `budget` frames that have arrived to `take`, from their Ethernet headers on, until it breaks off;
    /// says how many there were. Where there are none and the socket polls, the driver looks for some, for the next call.
    #[inline]
    pub fn receive(
        &mut self,
        budget: usize,
        mut take: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> usize {
        let filled = self.rx.filled();
        if filled == 0 {
            self.idle = self.idle.wrapping_add(1);
            if self.polls {
                self.poll_driver();
            }
            self.expect();
            // Another member may have all frames of the fill ring in its own.
            if self.idle.is_multiple_of(IDLE_CALLS) && is_low(&self.fill, &self.umem) {
                self.refill();
            }
            return 0;
        }
        self.idle = 0;
        let count = filled.min(u32::try_from(budget.min(BATCH)).unwrap_or(u32::MAX));
        let first = self.rx.next_consumed();
        let me = Holder::Member(self.place);
        let mut position = first;
        while position != first.wrapping_add(count) {
            let Descriptor { addr, len, options } = self.rx.descriptor(position);
            position = position.wrapping_add(1);
            // More than one frame to a packet was not asked for.
            let frame = self.umem.frame_of(addr, len).filter(|_| options == 0);
            let Some(frame) = frame.filter(|frame| self.umem.is_held_by(*frame, Holder::Kernel))
            else {
                self.umem.count_nonsense();
                continue;
            };
            self.umem.give(frame, me);
            self.read.push(frame);
            if let Some(ControlFlow::Break(())) =
                self.umem.lend(addr, len, &mut self.room, &mut take)
            {
                break;
            }
        }
        self.rx.consumed(position);
        self.coming = self.coming.wrapping_add(position.wrapping_sub(first));
        // How full the fill ring is, is in another processor's cache.
        if self.read.len() >= REFILL_MIN {
            self.refill();
        }
        to_usize(position.wrapping_sub(first))
    }

    /// Gives the frames that were read to the kernel, and free ones if it has few.
    fn refill(&mut self) {
        self.coming = self.fill.next_consumed();
        let Self { umem, fill, read, .. } = self;
        let Some(mut locked) = umem.lock() else { return };
        give_to(fill, umem, &mut locked, read);
        read.drain(..).for_each(|frame| locked.put_back(frame));
        drop(locked);
        if self.fill.needs_wakeup() {
            self.poll_driver();
        }
    }

    /// Lets the interface's driver look for packets now: the kernel waits for that, or the socket polls.
    fn poll_driver(&self) {
        let _ = rustix::net::recv(&*self.fd, &mut [0_u8; 0][..], RecvFlags::DONTWAIT);
    }

    /// What the kernel has counted of the socket.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn statistics(&self) -> io::Result<Statistics> {
        let counted = sockopt::xdp_statistics(&*self.fd)?;
        Ok(Statistics {
            dropped: counted.rx_dropped,
            ring_full: counted.rx_ring_full.unwrap_or(0),
            no_frames: counted.rx_fill_ring_empty_descs.unwrap_or(0),
            invalid: counted.rx_invalid_descs + counted.tx_invalid_descs,
        })
    }
}

impl AsFd for Incoming {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What is sent on a queue.
#[derive(Debug)]
pub struct Outgoing {
    fd: Arc<KeptFd>,
    umem: Arc<Umem>,
    place: u32,
    tx: Ring,
    completion: Ring,
    /// Position in the transmit ring behind the last frame that was written.
    written: u32,
    /// Frames to write to.
    spare: Vec<u32>,
}

impl Outgoing {
    /// The longest frame that others of the group can receive, from the Ethernet header on, in bytes.
    #[must_use]
    pub fn packet_bytes_max(&self) -> u32 {
        self.umem.shape().packet_bytes_max()
    }

    /// There is room for one more frame, so that the next [`Outgoing::send`] does not fail for want of it. What was
    /// written may leave for that.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        if self.spare.is_empty() && !self.find_spares() {
            return false;
        }
        if self.tx.room() <= self.written.wrapping_sub(self.tx.next_produced()) {
            let _ = self.flush();
            return self.tx.room() > 0;
        }
        true
    }

    /// Writes one frame, from its Ethernet header on, to be sent by the next [`Outgoing::flush`], or before.
    ///
    /// # Errors
    ///
    /// [`NotSent`] says why it was not taken.
    #[inline]
    pub fn send(&mut self, write: impl FnOnce(&mut Writer<'_>)) -> Result<(), NotSent> {
        if !self.has_room() {
            return Err(NotSent::Full);
        }
        let frame = self.spare.pop().ok_or(NotSent::Full)?;
        let mut writer = self.umem.writer(frame);
        write(&mut writer);
        let Some(len) = writer.finish() else {
            self.spare.push(frame);
            return Err(NotSent::Size);
        };
        let addr = self.umem.address_of(frame);
        self.tx.set_descriptor(self.written, Descriptor { addr, len, options: 0 });
        self.written = self.written.wrapping_add(1);
        Ok(())
    }

    /// Finds frames to write to, of those that were sent, or free ones. Says whether there are any.
    #[cold]
    fn find_spares(&mut self) -> bool {
        self.take_spares();
        if self.spare.is_empty() {
            // Those that wait for a call may be all there are.
            let _ = self.flush();
            self.take_spares();
        }
        !self.spare.is_empty()
    }

    fn take_spares(&mut self) {
        let Self { umem, completion, spare, .. } = self;
        let me = Holder::Member(self.place);
        let Some(mut locked) = umem.lock() else { return };
        let (first, count) = (completion.next_consumed(), completion.filled());
        for position in (0..count).map(|n| first.wrapping_add(n)) {
            let frame = umem.frame_at(completion.address(position));
            // Before it is another's: a frame that stays there after a kill would be taken twice.
            completion.consumed(position.wrapping_add(1));
            match frame.filter(|frame| umem.is_held_by(*frame, Holder::Kernel)) {
                Some(frame) if spare.len() < BATCH => {
                    umem.give(frame, me);
                    spare.push(frame);
                }
                Some(frame) => locked.put_back(frame),
                None => umem.count_nonsense(),
            }
        }
        while spare.len() < SPARE_MIN {
            let Some(frame) = locked.take(me) else { break };
            spare.push(frame);
        }
    }

    /// Gives the kernel what was written, in steps: a process that is killed in the midst of one loses its frames.
    fn publish(&self) {
        let Self { umem, tx, written, .. } = self;
        let mut position = tx.next_produced();
        while position != *written {
            if let Some(frame) = umem.frame_at(tx.descriptor(position).addr) {
                umem.give(frame, Holder::Kernel);
            }
            position = position.wrapping_add(1);
            if position.is_multiple_of(STEP) {
                tx.produced(position);
            }
        }
        tx.produced(position);
    }

    /// Sends what was written: one call for up to 32 frames, as many as the kernel takes at a time.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if the kernel does not take all of it now: the rest stays in the ring, and leaves with the next
    /// call. Those of the interface, such as `ENETDOWN`.
    pub fn flush(&mut self) -> io::Result<()> {
        self.publish();
        if !self.tx.needs_wakeup() {
            return Ok(());
        }
        let mut patience = PATIENCE;
        loop {
            let before = self.tx.filled();
            if before == 0 {
                return Ok(());
            }
            let error = match rustix::net::send(&*self.fd, &[], SendFlags::DONTWAIT) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            if !matches!(error, Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) {
                return Err(error.into());
            }
            if self.tx.filled() == before {
                patience -= 1;
                if patience == 0 {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                // Frames on their way are charged to the socket until they have arrived.
                std::thread::yield_now();
            }
        }
    }
}

/// A new socket that shares the UMEM and the queue of another. It receives nothing before it is installed.
pub(crate) fn on_queue_of(
    base: BorrowedFd<'_>,
    interface: u32,
    queue: u32,
    polled: Option<u16>,
) -> io::Result<OwnedFd> {
    let fd = open()?;
    set_xdp_rx_ring_size(&fd, RX_ENTRIES)?;
    set_xdp_tx_ring_size(&fd, TX_ENTRIES)?;
    // As much as the ring holds; without the privilege, what there is.
    let _ = sockopt::set_socket_send_buffer_size_force(&fd, SEND_BUFFER_BYTES);
    if let Some(packets) = polled {
        busy_poll::set(&fd, packets)?;
    }
    let addr = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, interface, queue);
    rustix::net::bind(&fd, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd: base })?;
    Ok(fd)
}

/// What the owner keeps of a member that has ended, or was ended: the rings of one of its sockets, with frames in them.
#[derive(Debug)]
pub(crate) struct Remains {
    rx: Ring,
    tx: Ring,
}

impl Remains {
    /// Of this socket. What it was about to send leaves now, if the kernel takes it.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let at = xdp_mmap_offsets(fd)?;
        let rx = Ring::map(fd, XDP_PGOFF_RX_RING, &at.rx, RX_ENTRIES, Entry::Descriptor)?;
        let tx = Ring::map(fd, XDP_PGOFF_TX_RING, &at.tx, TX_ENTRIES, Entry::Descriptor)?;
        for _ in 0..TX_ENTRIES.div_ceil(32) {
            if tx.filled() == 0 || rustix::net::send(fd, &[], SendFlags::DONTWAIT).is_ok() {
                break;
            }
        }
        Ok(Self { rx, tx })
    }

    /// Takes the frames back that are in the rings.
    pub(crate) fn reclaim(&self, umem: &Umem, locked: &mut Locked<'_>) {
        for ring in [&self.rx, &self.tx] {
            let first = ring.next_consumed();
            for position in (0..ring.filled()).map(|n| first.wrapping_add(n)) {
                let frame = umem.frame_at(ring.descriptor(position).addr);
                if let Some(frame) = frame.filter(|frame| umem.is_held_by(*frame, Holder::Kernel)) {
                    locked.put_back(frame);
                }
            }
        }
    }
}

/// Maps the fill ring of a queue. For the owner.
pub(crate) fn fill_ring(base: BorrowedFd<'_>) -> io::Result<Ring> {
    let at = xdp_mmap_offsets(base)?;
    Ring::map(base, XDP_UMEM_PGOFF_FILL_RING, &at.fr, QUEUE_ENTRIES, Entry::Address)
}

/// Gives the kernel free frames if it has few. For the owner: members may all be waiting for a packet.
pub(crate) fn top_up(fill: &Ring, umem: &Umem, locked: &mut Locked<'_>) {
    if is_low(fill, umem) {
        give_to(fill, umem, locked, &mut Vec::new());
    }
}

pub(crate) fn is_low(fill: &Ring, umem: &Umem) -> bool {
    fill.filled() < umem.filled_max().div_ceil(2)
}

/// Gives the kernel frames as long as it has few of them: these, and then free ones.
fn give_to(fill: &Ring, umem: &Umem, locked: &mut Locked<'_>, frames: &mut Vec<u32>) {
    let missing = fill.room().saturating_sub(QUEUE_ENTRIES - umem.filled_max());
    let mut position = fill.next_produced();
    for _ in 0..missing {
        let Some(frame) = frames.pop().or_else(|| locked.take(Holder::Kernel)) else { break };
        umem.give(frame, Holder::Kernel);
        fill.set_address(position, umem.address_of(frame));
        position = position.wrapping_add(1);
        if position.is_multiple_of(STEP) {
            fill.produced(position);
        }
    }
    fill.produced(position);
}

/// A new socket.
pub(crate) fn open() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?)
}

/// Entries of a socket's rings: what a member that reads nothing can withhold from its group.
const RX_ENTRIES: u32 = 1024;
const TX_ENTRIES: u32 = 1024;
/// Entries of a queue's rings: the completion ring has room for what several members send.
pub(crate) const QUEUE_ENTRIES: u32 = 4096;
/// Calls that find nothing between two looks at the fill ring.
const IDLE_CALLS: u32 = 256;
/// Frames that are received, and kept for sending, at a time.
const BATCH: usize = 64;
/// Frames that are given back together.
const REFILL_MIN: usize = 16;
/// Frames for sending below which free ones are taken.
const SPARE_MIN: usize = 32;
/// Frames that become the kernel's before it is told.
const STEP: u32 = 32;
/// Calls in a row by which the kernel takes nothing.
const PATIENCE: u32 = 16;
const SEND_BUFFER_BYTES: usize = 4 << 20;
