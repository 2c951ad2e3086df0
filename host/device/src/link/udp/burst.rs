//! Packets on their way out: gathered into bursts that leave in one system call.
//!
//! A burst is a run of packets of one queue pair that are equally long, but for the last, which
//! may be shorter: the kernel cuts it into datagrams (UDP_SEGMENT), and numbers them 0, 1, 2 … in
//! the IP ID, which the ICRC covers. Headers, small payloads and ICRCs lie in a staging area;
//! large payloads are gathered straight from registered memory.
//!
//! # Safety
//!
//! 1. The staging area is one allocation that never moves. Pointers into it are pushed to the
//!    gather list; bytes that a pointer covers are not written again before the burst is sent.
//! 2. Pointers into regions are pushed only while the region is pinned, and pins are given up only
//!    after the burst was sent or forgotten. The table of regions outlives the burst (`regions`).
//! 3. Registered bytes are copied by pointer and never borrowed (`region.rs`, rule 1).

use crate::link::address_vector::AddressVector;
use crate::link::udp::endpoint::Endpoint;
use crate::link::xdp::{NextHop, Way};
use crate::memory::copying::{copy_long, copy_short};
use crate::memory::local::Source;
use crate::memory::region::{RawPin, Regions};
use crate::registry::counters::Counters;
use adverb_engine::AccessError;
use adverb_sys::udp::{
    BURST_BYTES_MAX, Destination, Gather, GatherBuffer, SEGMENTS_MAX, lacks_buffers,
    refuses_bursts, tells_of_others,
};
use adverb_wire::{Flow, HeaderBytes, Headers, ICRC_LEN, Icrc, Marks, Transport};
use std::cell::RefCell;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

/// Payloads up to this length, that of the longest packet, are copied next to their headers. They are copied for their
/// ICRC anyhow, and a burst that lies in one place is cheaper for the kernel than one of many.
const COPY_BYTES_MAX: usize = 4096;
/// Registered bytes are copied through a block of this size for their ICRC.
const ICRC_BLOCK_BYTES: usize = 2048;
/// Pieces of one packet's payload: as many as a request has scatter/gather entries.
pub(crate) const PIECES_MAX: usize = 32;
/// Bursts of so many packets go by the socket also where there are frames: one call costs less than as many frames.
const BULK_PACKETS: usize = 8;
/// Regions pinned by one burst.
const PINS_MAX: usize = 1024;
/// How long to wait at a time for room in the network's queue, and before a burst counts as lost of a queue pair that
/// sends it again.
const WRITABLE_TIMEOUT: Duration = Duration::from_millis(1);
/// The same of one that does not: a line of 10 Mbit/s makes room for a burst in half the time.
const WRITABLE_TIMEOUT_UNRELIABLE: Duration = Duration::from_millis(100);
/// How long to wait where nothing tells when there is room.
const NO_BUFFERS_WAIT: Duration = Duration::from_micros(100);
/// Errors of earlier packets that one burst takes note of.
const NEWS_MAX: u32 = 16;

/// Memory for bursts, one a thread.
struct Scratch {
    staging: Box<[u8]>,
    gather: GatherBuffer,
    pins: Vec<(u32, RawPin)>,
    /// Where the payload of the packet at hand is.
    pieces: Vec<Piece>,
    linear: Box<[u8]>,
}

impl Scratch {
    fn new() -> Self {
        Self {
            staging: vec![0; BURST_BYTES_MAX].into(),
            gather: GatherBuffer::new(),
            pins: Vec::with_capacity(PINS_MAX),
            pieces: Vec::with_capacity(PIECES_MAX),
            linear: Box::default(),
        }
    }

    fn lend<R>(
        &mut self,
        route: Route<'_>,
        budget: usize,
        fill: impl FnOnce(&mut Burst<'_>) -> R,
    ) -> (R, u64) {
        let Self { staging, gather, pins, pieces, linear } = self;
        let mut burst = Burst {
            route,
            gather: gather.begin(),
            staging: staging.as_mut_ptr(),
            staging_len: staging.len(),
            staged: 0,
            pins,
            pieces,
            linear,
            segment: 0,
            packets: 0,
            paced: false,
            closed: false,
            budget,
            emitted: 0,
        };
        let result = fill(&mut burst);
        burst.flush();
        (result, burst.emitted)
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new());
}

/// Route of bursts.
#[derive(Debug)]
pub(crate) struct Route<'a> {
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) destination: &'a Destination,
    pub(crate) flow: &'a Flow,
    pub(crate) marks: Marks,
    pub(crate) next_hop: Option<&'a NextHop>,
    pub(crate) regions: &'a Regions,
    pub(crate) counters: &'a Counters,
}

impl<'a> Route<'a> {
    /// Packets that go this way, with bytes of these regions.
    pub(crate) fn new(
        address_vector: &'a AddressVector,
        regions: &'a Regions,
        counters: &'a Counters,
    ) -> Self {
        let AddressVector { endpoint, destination, flow, marks, next_hop, local: _ } =
            address_vector;
        let (marks, next_hop) = (*marks, next_hop.as_ref());
        Self { endpoint, destination, flow, marks, next_hop, regions, counters }
    }
}

/// A burst being gathered.
pub(crate) struct Burst<'a> {
    route: Route<'a>,
    gather: Gather<'a>,
    staging: *mut u8,
    staging_len: usize,
    staged: usize,
    pins: &'a mut Vec<(u32, RawPin)>,
    pieces: &'a mut Vec<Piece>,
    linear: &'a mut Box<[u8]>,
    /// Length of the packets of the burst.
    segment: usize,
    packets: usize,
    /// They are not sent again.
    paced: bool,
    /// A shorter packet has ended it.
    closed: bool,
    /// Packets that may still be emitted before the caller looks at what has arrived.
    budget: usize,
    emitted: u64,
}

impl std::fmt::Debug for Burst<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Burst").field("packets", &self.packets).finish_non_exhaustive()
    }
}

/// A run of bytes somewhere in memory.
#[derive(Clone, Copy)]
struct Piece {
    start: *const u8,
    len: usize,
}

/// Makes this thread's memory for bursts now, and not with the first packet.
pub(crate) fn prepare() {
    let _ = SCRATCH.try_with(|_| ());
}

/// Lends a burst with room for `budget` packets to `fill`, sends what is in it afterwards, and
/// says how many packets there were.
pub(crate) fn with_burst<R>(
    route: Route<'_>,
    budget: usize,
    fill: impl FnOnce(&mut Burst<'_>) -> R,
) -> Option<(R, u64)> {
    let mut parts = Some((route, fill));
    let lent = SCRATCH.try_with(|scratch| {
        let (route, fill) = parts.take()?;
        Some(scratch.try_borrow_mut().ok()?.lend(route, budget, fill))
    });
    // A thread that ends has given its memory back, and may still have an acknowledgement to send.
    lent.unwrap_or_else(|_| {
        let (route, fill) = parts.take()?;
        Some(Scratch::new().lend(route, budget, fill))
    })
}

impl Burst<'_> {
    /// One more packet may be emitted.
    #[inline]
    pub(crate) fn room(&self) -> bool {
        self.budget > 0
    }

    /// Packets in the burst so far.
    pub(crate) fn packets(&self) -> usize {
        self.packets
    }

    /// Adds one packet. If `copy`, its bytes are copied however many they are.
    pub(crate) fn emit(
        &mut self,
        headers: &Headers,
        source: &Source<'_>,
        copy: bool,
    ) -> Result<(), AccessError> {
        let mut bytes = HeaderBytes::default();
        headers.emit(&mut bytes);
        let head = bytes.as_slice();
        let payload = source.len();
        let pad = headers.bth.pad.len();
        let total = head.len() + payload + pad + ICRC_LEN;
        if !self.fits(total) {
            self.flush();
        }
        let mut copy = copy || payload <= COPY_BYTES_MAX;
        let Self { route, pins, pieces, .. } = self;
        pieces.clear();
        source.each_piece(route.regions, |start, len, pinned| {
            if pieces.len() == PIECES_MAX {
                return Err(AccessError::OutOfBounds);
            }
            pieces.push(Piece { start, len });
            match pinned {
                // Bursts read from few regions: one pin each is enough, and cheap to find again.
                Some((key, pin)) if pins.last().is_none_or(|(known, _)| *known != key) => {
                    pins.push((key, pin.into_raw()));
                }
                Some(_) => {}
                None => copy = true,
            }
            Ok(())
        })?;
        let id = if self.route.endpoint.gso() { self.packets } else { 0 };
        let (Ok(total16), Ok(id)) = (u16::try_from(total), u16::try_from(id)) else {
            return Err(AccessError::OutOfBounds);
        };
        let mut icrc = self.route.flow.icrc(total16, id);
        icrc.headers(head);
        self.stage(head);
        for at in 0..self.pieces.len() {
            let Some(&piece) = self.pieces.get(at) else { break };
            if copy {
                self.stage_piece(piece, &mut icrc);
            } else {
                update_from_memory(&mut icrc, piece);
                // SAFETY: the piece is pinned until the burst is sent (rule 2).
                let pushed = unsafe { self.gather.push_raw(piece.start, piece.len) };
                debug_assert!(pushed.is_ok(), "`fits` has left room for the pieces");
            }
        }
        let zeros = [0; 3];
        let pad = zeros.get(..pad).unwrap_or(&[]);
        icrc.update(pad);
        self.stage(pad);
        self.stage(&icrc.finish());
        self.paced |= matches!(headers.bth.opcode.transport(), Transport::Uc | Transport::Ud);
        self.account(total);
        Ok(())
    }

    /// A packet of `total` bytes can join the burst.
    fn fits(&self, total: usize) -> bool {
        if self.packets == 0 {
            return true;
        }
        !self.closed
            && total <= self.segment
            && self.packets < SEGMENTS_MAX
            && self.route.endpoint.gso()
            && self.gather.len() + total <= BURST_BYTES_MAX
            && self.gather.room() > PIECES_MAX + 2
            && self.pins.len() + PIECES_MAX < PINS_MAX
    }

    fn account(&mut self, total: usize) {
        if self.packets == 0 {
            self.segment = total;
        } else if total < self.segment {
            self.closed = true;
        }
        self.packets += 1;
        self.emitted += 1;
        self.budget = self.budget.saturating_sub(1);
    }

    /// Copies bytes to the staging area and queues them.
    fn stage(&mut self, bytes: &[u8]) {
        let piece = Piece { start: bytes.as_ptr(), len: bytes.len() };
        if let Some(start) = self.copy_to_staging(piece) {
            // SAFETY: bytes of the staging area that are not written again (rule 1).
            let pushed = unsafe { self.gather.push_raw(start, bytes.len()) };
            debug_assert!(pushed.is_ok(), "`fits` has left room");
        }
    }

    /// Copies a piece of payload to the staging area, and takes its ICRC from there: the bytes that
    /// are sent are the bytes that were summed, even if their owner changes them meanwhile.
    fn stage_piece(&mut self, piece: Piece, icrc: &mut Icrc) {
        let Some(start) = self.copy_to_staging(piece) else {
            return;
        };
        // SAFETY: the bytes were just written, belong to this thread's staging area, and nothing
        // writes to them during the borrow (rule 1).
        icrc.update(unsafe { std::slice::from_raw_parts(start, piece.len) });
        // SAFETY: bytes of the staging area that are not written again (rule 1).
        let pushed = unsafe { self.gather.push_raw(start, piece.len) };
        debug_assert!(pushed.is_ok(), "`fits` has left room");
    }

    fn copy_to_staging(&mut self, piece: Piece) -> Option<*const u8> {
        let end = self.staged.checked_add(piece.len)?;
        if end > self.staging_len {
            debug_assert!(false, "a burst is never longer than the staging area");
            return None;
        }
        // SAFETY: `staged <= staging_len` (rule 1).
        let target = unsafe { self.staging.add(self.staged) };
        // SAFETY: `piece` is a borrowed slice, inline data, or pinned registered memory (rules 2
        // and 3); the target has room, and nothing else lies in the staging area's free part.
        unsafe { copy_short(piece.start, target, piece.len) };
        self.staged = end;
        Some(target)
    }

    /// Sends the burst, gives up its pins and starts the next.
    pub(crate) fn flush(&mut self) {
        if self.packets > 0 {
            self.capture();
            self.send();
        }
        for (_, pin) in self.pins.drain(..) {
            // SAFETY: the table outlives the burst, and each pin is drained once (rule 2).
            unsafe { pin.unpin() };
        }
        self.gather.clear();
        self.staged = 0;
        self.packets = 0;
        (self.paced, self.closed) = (false, false);
    }

    /// Sends the burst. Where packets are not sent again and earlier ones still wait for the network, it is told if the
    /// interface's queue has no room: otherwise that loses them without a word.
    fn send(&mut self) {
        let endpoint = self.route.endpoint;
        endpoint.count_burst();
        if let Some(next_hop) = self.route.next_hop
            && (self.packets < BULK_PACKETS || !endpoint.gso())
            && let Some(way) = next_hop.way()
        {
            return self.send_frames(&way);
        }
        let told = self.paced
            && endpoint.socket.unsent_bytes() > 0
            && endpoint.socket.tell_of_full_queues(true).is_ok();
        self.send_in_time(told);
        if told {
            let _ = endpoint.socket.tell_of_full_queues(false);
        }
    }

    fn send_in_time(&mut self, told: bool) {
        let endpoint = self.route.endpoint;
        let segment = match self.packets {
            1 => None,
            _ => u16::try_from(self.segment).ok(),
        };
        let (mut until, mut news) = (None, NEWS_MAX);
        let packets = u64::try_from(self.packets).unwrap_or(u64::MAX);
        loop {
            let result = endpoint.socket.send(&self.gather, self.route.destination, segment);
            let Err(error) = result else {
                self.route.counters.sent_pkts.add(packets);
                return;
            };
            let kind = error.kind();
            if kind == ErrorKind::Interrupted {
                continue;
            }
            if told && news > 0 && tells_of_others(&error) {
                news -= 1;
                continue;
            }
            let full = kind == ErrorKind::WouldBlock;
            if full || lacks_buffers(&error) {
                let now = Instant::now();
                if now < *until.get_or_insert_with(|| now + self.wait_max()) {
                    match full {
                        true => drop(endpoint.socket.wait_writable(WRITABLE_TIMEOUT)),
                        false => std::thread::sleep(NO_BUFFERS_WAIT),
                    }
                    continue;
                }
            }
            if segment.is_some() && refuses_bursts(&error) {
                self.send_singly();
            } else {
                self.route.counters.send_dropped.add(packets);
            }
            return;
        }
    }

    /// Sends the burst as frames.
    fn send_frames(&self, way: &Way<'_>) {
        let Route { endpoint, flow, marks, counters, .. } = self.route;
        let mut sender = way.sender(flow, endpoint.as_sent(marks), self.wait_max());
        let (mut cursor, mut left) = (self.gather.cursor(), self.gather.len());
        for id in (0..=u16::MAX).take(self.packets) {
            let len = left.min(self.segment);
            left -= len;
            let sent = sender.send(id, len, |frame| {
                let mut missing = len;
                while let Some((start, part)) = cursor.take(missing).filter(|_| missing > 0) {
                    missing -= part;
                    // SAFETY: gathered: of the staging area, or pinned (rules 1 and 2); and no frame.
                    unsafe { frame.push_raw(start, part) };
                }
            });
            let counter = if sent { &counters.sent_pkts } else { &counters.send_dropped };
            counter.add(1);
        }
    }

    /// The longest wait for room: longer for a burst that is not sent again.
    const fn wait_max(&self) -> Duration {
        if self.paced { WRITABLE_TIMEOUT_UNRELIABLE } else { WRITABLE_TIMEOUT }
    }

    /// The route does not cut bursts: cuts this one by hand, and from now on makes none.
    ///
    /// Each datagram then leaves with IP ID 0, so the ICRCs of all but the first change. A CRC is
    /// linear: the change is that of a packet of zeros.
    fn send_singly(&mut self) {
        let segment = self.segment;
        let Self { route, linear, .. } = self;
        let total = self.gather.copy_to(linear_of(linear));
        for (index, packet) in
            linear.get_mut(..total).unwrap_or_default().chunks_mut(segment.max(1)).enumerate()
        {
            renumber(packet, index, route.flow);
            let mut buffer = GatherBuffer::new(); // Once in the life of an endpoint.
            let mut gather = buffer.begin();
            let _ = gather.push(packet);
            match route.endpoint.socket.send(&gather, route.destination, None) {
                Ok(_) => {
                    // Where not even single packets pass, bursts were not what was wrong.
                    route.endpoint.give_up_gso();
                    route.counters.sent_pkts.add(1);
                }
                Err(_) => route.counters.send_dropped.add(1),
            }
        }
    }

    /// Writes the burst to the capture file, if there is one.
    fn capture(&mut self) {
        let Some(capture) = self.route.endpoint.capture.as_deref() else {
            return;
        };
        let total = self.gather.copy_to(linear_of(self.linear));
        let bytes = self.linear.get(..total).unwrap_or_default();
        let endpoint = self.route.endpoint;
        let peer = self.route.destination.addr();
        let numbered = endpoint.gso();
        let marks = endpoint.as_sent(self.route.marks);
        for (index, packet) in bytes.chunks(self.segment.max(1)).enumerate() {
            let id = if numbered { u16::try_from(index).unwrap_or(0) } else { 0 };
            capture.packet((endpoint.addr, peer), id, marks, packet);
        }
    }
}

impl Drop for Burst<'_> {
    fn drop(&mut self) {
        self.packets = 0; // After a panic nothing is sent, but pins are given up.
        self.flush();
    }
}

/// The linear buffer, which only captures and refused bursts need.
fn linear_of(linear: &mut Box<[u8]>) -> &mut [u8] {
    if linear.is_empty() {
        *linear = vec![0; BURST_BYTES_MAX].into();
    }
    linear
}

/// Replaces the ICRC of a packet made for IP ID `id` by that for ID 0.
fn renumber(packet: &mut [u8], id: usize, flow: &Flow) {
    let (Ok(len), Ok(id)) = (u16::try_from(packet.len()), u16::try_from(id)) else {
        return;
    };
    let covered = packet.len().saturating_sub(ICRC_LEN);
    let of_zeros = |id| {
        let mut icrc = flow.icrc(len, id);
        for _ in 0..covered {
            icrc.update(&[0]);
        }
        icrc.finish()
    };
    let (made, wanted) = (of_zeros(id), of_zeros(0));
    let icrc = packet.get_mut(covered..).unwrap_or_default();
    for ((byte, made), wanted) in icrc.iter_mut().zip(made).zip(wanted) {
        *byte ^= made ^ wanted;
    }
}

/// Adds registered bytes to an ICRC, through a block that is not shared (rule 3).
fn update_from_memory(icrc: &mut Icrc, piece: Piece) {
    let mut block = [0_u8; ICRC_BLOCK_BYTES];
    let mut done = 0;
    while done < piece.len {
        let part = (piece.len - done).min(ICRC_BLOCK_BYTES);
        // SAFETY: `done < piece.len`, so the address is in the piece.
        let start = unsafe { piece.start.add(done) };
        // SAFETY: `part` bytes from there are in the piece, which is pinned (rule 2), and in the
        // block, which is on the stack.
        unsafe { copy_long(start, block.as_mut_ptr(), part) };
        icrc.update(block.get(..part).unwrap_or_default());
        done += part;
    }
}
