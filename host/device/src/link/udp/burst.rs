//! Packets on their way out: gathered into bursts that leave in one system call.
//!
//! A burst is a run of packets of one queue pair that are equally long, but for the last, which
//! may be shorter: the kernel cuts it into datagrams (UDP_SEGMENT), and numbers them 0, 1, 2 … in
//! the IP ID, which the ICRC covers. Packets lie one behind the other in a staging area: their payload is copied there once,
//! so that the bytes that are sent are the bytes that were summed, even if their owner changes them meanwhile.
//!
//! # Safety
//!
//! Registered bytes are copied by pointer, while their region is pinned, and never borrowed (`region.rs`, rule 1).

use crate::link::address_vector::AddressVector;
use crate::link::udp::endpoint::Endpoint;
use crate::link::xdp::{NextHop, Way};
use crate::memory::local::Source;
use crate::memory::region::{Grips, Regions};
use crate::registry::counters::Counters;
use adverb_engine::AccessError;
use adverb_shm::copying::copy_short;
use adverb_shm::line::prefetch_bytes;
use adverb_sys::cancel::uncancelled;
use adverb_sys::udp::{
    BURST_BYTES_MAX, Destination, SEGMENTS_MAX, lacks_buffers, refuses_bursts, tells_of_others,
};
use adverb_wire::{Flow, HeaderBytes, Headers, ICRC_LEN, Transport};
use std::cell::Cell;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

/// Bursts of so many packets go by the socket also where there are frames: one call costs less than as many frames.
const BULK_PACKETS: usize = 8;
/// A piece of a packet, in bytes, behind which the next packet's bytes are looked for.
const FOLLOWED_MIN: usize = 512;
/// Bytes of the next packet that are asked for ahead: once they are read, the processor asks for the rest by itself.
const PREFETCHED_MAX: usize = 1024;
/// How long to wait at a time for room in the network's queue, and before a burst counts as lost of a queue pair that
/// sends it again.
const WRITABLE_TIMEOUT: Duration = Duration::from_millis(1);
/// The same of one that does not: a line of 10 Mbit/s makes room for a burst in half the time.
const WRITABLE_TIMEOUT_UNRELIABLE: Duration = Duration::from_millis(100);
/// How long to wait where nothing tells when there is room.
const NO_BUFFERS_WAIT: Duration = Duration::from_micros(100);
/// Errors of earlier packets that one burst takes note of.
const NEWS_MAX: u32 = 16;

thread_local! {
    /// Room for one burst, unless it is lent.
    static STAGING: Cell<Option<Box<[u8]>>> = Cell::new(Some(make_staging()));
}

fn make_staging() -> Box<[u8]> {
    vec![0; BURST_BYTES_MAX].into()
}

/// Room for one burst, borrowed of the thread.
struct Staging(Box<[u8]>);

impl Staging {
    /// `None` if it is lent. A thread that ends has given its memory back, and may still have an acknowledgement to send.
    #[inline]
    fn borrow() -> Option<Self> {
        STAGING.try_with(Cell::take).unwrap_or_else(|_| Some(make_staging())).map(Self)
    }
}

impl Drop for Staging {
    #[inline]
    fn drop(&mut self) {
        let _ = STAGING.try_with(|place| place.set(Some(std::mem::take(&mut self.0))));
    }
}

/// Route of bursts.
#[derive(Debug)]
pub(crate) struct Route<'a> {
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) destination: &'a Destination,
    pub(crate) flow: &'a Flow,
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
        let AddressVector { endpoint, destination, flow, next_hop, local: _ } = address_vector;
        let next_hop = next_hop.as_deref();
        Self { endpoint, destination, flow, next_hop, regions, counters }
    }
}

/// A burst being gathered.
pub(crate) struct Burst<'a> {
    route: Route<'a>,
    /// Pins of what its packets are made of.
    grips: Grips<'a>,
    staging: &'a mut [u8],
    staged: usize,
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

/// Makes this thread's memory for bursts now, and not with the first packet.
pub(crate) fn prepare() {
    let _ = STAGING.try_with(|_| ());
}

/// Lends a burst with room for `budget` packets to `fill`, sends what is in it afterwards, and
/// says how many packets there were.
pub(crate) fn with_burst<R>(
    route: Route<'_>,
    budget: usize,
    fill: impl FnOnce(&mut Burst<'_>) -> R,
) -> Option<(R, u64)> {
    let mut staging = Staging::borrow()?;
    Some(lend(&mut staging.0, route, budget, fill))
}

fn lend<'a, R>(
    staging: &'a mut [u8],
    route: Route<'a>,
    budget: usize,
    fill: impl FnOnce(&mut Burst<'_>) -> R,
) -> (R, u64) {
    let mut burst = Burst {
        grips: Grips::new(route.regions),
        route,
        staging,
        staged: 0,
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

    /// Adds one packet.
    pub(crate) fn emit(
        &mut self,
        headers: &Headers,
        source: &Source<'_>,
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
        let id = if self.route.endpoint.gso() { self.packets } else { 0 };
        let (Ok(total16), Ok(id)) = (u16::try_from(total), u16::try_from(id)) else {
            return Err(AccessError::OutOfBounds);
        };
        let packet = self.staging.get_mut(self.staged..self.staged + total);
        let parts = packet.and_then(<[u8]>::split_last_chunk_mut::<ICRC_LEN>);
        let (covered, icrc_place) = parts.ok_or(AccessError::OutOfBounds)?;
        let (place, rest) = covered.split_at_mut(head.len());
        place.copy_from_slice(head);
        let (body, padding) = rest.split_at_mut(payload);
        copy(source, &mut self.grips, body)?;
        padding.fill(0);
        let mut icrc = self.route.flow.icrc(total16, id);
        icrc.headers(covered);
        *icrc_place = icrc.finish();
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
            && self.staged + total <= self.staging.len()
    }

    /// Counts a packet of `total` bytes that was added. Once a burst is full, a budget for less than half of another one is
    /// dropped: a short burst costs a system call on either side.
    fn account(&mut self, total: usize) {
        if self.packets == 0 {
            self.segment = total;
        } else if total < self.segment {
            self.closed = true;
        }
        self.staged += total;
        self.packets += 1;
        self.emitted += 1;
        self.budget = self.budget.saturating_sub(1);
        let full = self.packets == SEGMENTS_MAX || self.staged + self.segment > self.staging.len();
        if full && self.budget < self.packets / 2 {
            self.budget = 0;
        }
    }

    /// Ends the pins of what the packets were made of: sending may take long, and what follows may wait for pins
    /// (`region.rs`, rule 6).
    #[inline]
    pub(crate) fn let_go(&mut self) {
        self.grips.let_go();
    }

    /// Sends the burst and starts the next.
    pub(crate) fn flush(&mut self) {
        self.let_go();
        if self.packets > 0 {
            self.capture();
            self.send();
        }
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
            && let Some(way) = next_hop.way(self.segment)
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
            let bytes = self.staging.get(..self.staged).unwrap_or_default();
            let result = endpoint.socket.send(bytes, self.route.destination, segment);
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
                        true => {
                            drop(uncancelled(|| endpoint.socket.wait_writable(WRITABLE_TIMEOUT)))
                        }
                        false => uncancelled(|| std::thread::sleep(NO_BUFFERS_WAIT)),
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
        let Route { endpoint, destination, flow, counters, .. } = self.route;
        let mut sender = way.sender(flow, endpoint.as_sent(destination), self.wait_max());
        let bytes = self.staging.get(..self.staged).unwrap_or_default();
        for (id, packet) in (0..=u16::MAX).zip(bytes.chunks(self.segment.max(1))) {
            let sent = sender.send(id, packet);
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
        let Self { route, staging, staged, segment, .. } = self;
        let bytes = staging.get_mut(..*staged).unwrap_or_default();
        for (index, packet) in bytes.chunks_mut((*segment).max(1)).enumerate() {
            renumber(packet, index, route.flow);
            match route.endpoint.socket.send(packet, route.destination, None) {
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
        let bytes = self.staging.get(..self.staged).unwrap_or_default();
        let endpoint = self.route.endpoint;
        let peer = self.route.destination.addr();
        let numbered = endpoint.gso();
        let marks = endpoint.as_sent(self.route.destination);
        for (index, packet) in bytes.chunks(self.segment.max(1)).enumerate() {
            let id = if numbered { u16::try_from(index).unwrap_or(0) } else { 0 };
            capture.packet((endpoint.addr, peer), id, marks, packet);
        }
    }
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

/// Copies what a packet carries to `target`, which is as long. The bytes behind a long piece are most likely the next
/// packet's, and are asked for meanwhile.
fn copy(source: &Source<'_>, grips: &mut Grips<'_>, target: &mut [u8]) -> Result<(), AccessError> {
    let mut left = target;
    source.each_piece(grips, |start, len| {
        let (place, rest) =
            std::mem::take(&mut left).split_at_mut_checked(len).ok_or(AccessError::OutOfBounds)?;
        left = rest;
        if len >= FOLLOWED_MIN {
            prefetch_bytes(start.wrapping_add(len), len.min(PREFETCHED_MAX));
        }
        // SAFETY: the piece is inline data or pinned memory, `len` bytes of it; the place is borrowed, as long, and no
        // registered memory.
        unsafe { copy_short(start, place.as_mut_ptr(), len) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::local::Local;
    use adverb_wire::{Bth, Extension, Marks, Opcode, Operation, Pad, Pkey, Psn, Qpn};
    use std::net::{Ipv4Addr, UdpSocket};
    use std::panic;

    #[test]
    fn the_room_of_a_thread_is_lent_once_at_a_time_and_a_panic_gives_it_back() {
        let lent = Staging::borrow().unwrap();
        assert!(Staging::borrow().is_none());
        drop(lent);
        let ended = panic::catch_unwind(|| {
            let _lent = Staging::borrow().unwrap();
            panic::resume_unwind(Box::new(()));
        });
        assert!(ended.is_err());
        let lent = Staging::borrow().unwrap();
        assert_eq!(lent.0.len(), make_staging().len());
    }

    /// Goal: packets of one length leave in full bursts, and a short one only if it is the first, or more than half of one.
    #[test]
    fn a_budget_ends_with_a_full_burst() {
        for (payload, budget, emitted, bursts) in
            [(1024, 128, 124, 2), (1500, 128, 128, 3), (64, 128, 128, 2), (1024, 40, 40, 1)]
        {
            let endpoint = Endpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), 1, None).unwrap();
            let sink = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let peer = sink.local_addr().unwrap();
            let destination = endpoint.destination(peer, Marks::default());
            let flow = endpoint.flow_to(peer).unwrap();
            let (regions, counters) = (Regions::new(), Counters::default());
            let route = Route {
                endpoint: &endpoint,
                destination: &destination,
                flow: &flow,
                next_hop: None,
                regions: &regions,
                counters: &counters,
            };
            let bytes = vec![7; payload];
            let (result, count) = with_burst(route, budget, |burst| {
                while burst.room() {
                    emit(burst, &bytes)?;
                }
                Ok::<(), AccessError>(())
            })
            .unwrap();
            result.unwrap();
            assert_eq!((count, endpoint.bursts()), (emitted, bursts), "{payload} bytes");
        }
    }

    /// Adds a SEND of these bytes.
    fn emit(burst: &mut Burst<'_>, bytes: &[u8]) -> Result<(), AccessError> {
        let len = u32::try_from(bytes.len()).unwrap();
        let bth = Bth {
            opcode: Opcode::of(Transport::Rc, Operation::SendOnly).unwrap(),
            solicited: false,
            migrated: true,
            pad: Pad::for_len(bytes.len()),
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp: Qpn::new(0x11),
            ack_request: false,
            keeps_early: false,
            psn: Psn::new(0),
        };
        let headers = Headers { bth, deth: None, xrceth: None, extension: Extension::None };
        burst.emit(
            &headers,
            &Source::Local { local: Local::Inline(bytes), offset: 0, len, domain: 0 },
        )
    }
}
