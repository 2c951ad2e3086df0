//! Frames that leave, and packets that wait for the hardware address they go to.

use crate::hops::{Ends, Hop, Hops};
use crate::packet::Headers;
use adverb_tcpip::Time;
use adverb_tcpip::ethernet::{Ethernet, Mac};
use adverb_xdp::socket::{NotSent, Outgoing};
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

/// The sending end of an interface.
#[derive(Debug)]
pub(crate) struct Link {
    outgoing: Outgoing,
    pub(crate) hops: Hops,
    mac: Mac,
    waiting: Waiting,
    /// Frames that were written since the last flush.
    written: usize,
    /// The kernel did not take all that was written.
    behind: bool,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sent {
    /// It is in a frame, or waits for the address that it goes to.
    Taken,
    /// Too much waits.
    Full,
    /// It is to leave by another interface.
    Elsewhere,
    /// There is no way to where it goes.
    NoWay,
    /// It is longer than a frame.
    Size,
}

/// Packets that wait for hardware addresses, or behind others that do.
#[derive(Debug, Default)]
struct Waiting {
    /// The oldest first.
    packets: VecDeque<Packet>,
    /// Those that were lost, of which nothing has been said.
    lost: usize,
}

/// A packet without an Ethernet header.
#[derive(Debug)]
struct Packet {
    ends: Ends,
    /// The neighbour that it goes to first.
    by: IpAddr,
    kind: u16,
    bytes: Vec<u8>,
}

impl Waiting {
    /// Keeps a packet. Those to one neighbour push out each other, the oldest first: RFC 1122 §2.3.2.2. Where there are too
    /// many neighbours, the one with the most packets loses its oldest, so that dead ones do not keep a new one out.
    fn push(&mut self, packet: Packet) {
        let mut same = self.packets.iter().enumerate().filter(|(_, other)| other.by == packet.by);
        let oldest = same.next().map(|(at, _)| at);
        let pushed_out = match oldest {
            Some(oldest) if same.count() + 1 >= WAITING_EACH => Some(oldest),
            Some(_) | None if self.packets.len() >= WAITING_MAX => self.oldest_of_most(),
            Some(_) | None => None,
        };
        self.lost += pushed_out.map_or(0, |at| usize::from(self.packets.remove(at).is_some()));
        self.packets.push_back(packet);
    }

    /// The oldest packet to the neighbour that most wait for.
    fn oldest_of_most(&self) -> Option<usize> {
        let mut counts = HashMap::new();
        for (at, packet) in self.packets.iter().enumerate() {
            counts.entry(packet.by).or_insert((0_usize, Reverse(at))).0 += 1;
        }
        counts.into_values().max().map(|(_, Reverse(at))| at)
    }

    /// The neighbour that a packet between these ends waits for.
    fn by(&self, ends: Ends) -> Option<IpAddr> {
        self.packets.iter().find(|packet| packet.ends == ends).map(|packet| packet.by)
    }
}

impl Link {
    pub(crate) fn new(outgoing: Outgoing, hops: Hops, mac: Mac) -> Self {
        Self { outgoing, hops, mac, waiting: Waiting::default(), written: 0, behind: false }
    }

    pub(crate) const fn set_mac(&mut self, mac: Mac) {
        self.mac = mac;
    }

    /// The longest IP packet that fits a frame, in bytes.
    pub(crate) fn packet_bytes_max(&self) -> u32 {
        self.outgoing.packet_bytes_max().saturating_sub(ETHERNET_BYTES)
    }

    /// There is room for one more frame.
    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        let room = self.outgoing.has_room();
        self.behind |= !room;
        room
    }

    /// Sends a packet: its headers, and its payload in pieces.
    #[inline]
    pub(crate) fn send<'a>(
        &mut self,
        ends: Ends,
        headers: &Headers,
        payload: impl Iterator<Item = &'a [u8]>,
        now: Time,
    ) -> Sent {
        match (self.hops.find(ends, now), self.behind_which(ends, now)) {
            (Hop::Known(mac), None) => self.emit(mac, headers.kind, headers.as_slice(), payload),
            (Hop::Sought(by), _) | (Hop::Known(_), Some(by)) => {
                let (kind, mut bytes) = (headers.kind, headers.as_slice().to_vec());
                payload.for_each(|piece| bytes.extend_from_slice(piece));
                self.waiting.push(Packet { ends, by, kind, bytes });
                Sent::Taken
            }
            (Hop::Elsewhere, _) => Sent::Elsewhere,
            (Hop::None, _) => Sent::NoWay,
        }
    }

    /// The neighbour that an earlier packet between these ends waits for, if it still does, or if it has just taken the last
    /// frame.
    #[inline]
    fn behind_which(&mut self, ends: Ends, now: Time) -> Option<IpAddr> {
        if self.waiting.packets.is_empty() {
            return None;
        }
        let by = self.waiting.by(ends)?;
        self.release(now);
        self.waiting.by(ends).or_else(|| (!self.has_room()).then_some(by))
    }

    #[inline]
    fn emit<'a>(
        &mut self,
        dst: Mac,
        kind: u16,
        head: &[u8],
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Sent {
        let ethernet = Ethernet { dst, src: self.mac, kind };
        let sent = self.outgoing.send(|writer| {
            writer.push(&ethernet.emit());
            writer.push(head);
            pieces.for_each(|piece| writer.push(piece));
        });
        match sent {
            Ok(()) => {
                self.written += 1;
                Sent::Taken
            }
            Err(NotSent::Full) => Sent::Full,
            Err(NotSent::Size) => Sent::Size,
        }
    }

    /// Sends packets whose address has been found out; those to where there is no way are lost.
    pub(crate) fn release(&mut self, now: Time) {
        let mut has_room = true;
        for _ in 0..self.waiting.packets.len() {
            let Some(packet) = self.waiting.packets.pop_front() else { break };
            match self.hops.find(packet.ends, now) {
                Hop::Sought(by) => self.waiting.packets.push_back(Packet { by, ..packet }),
                Hop::Known(mac) => {
                    // None overtakes one for which there was no room.
                    has_room = has_room && self.has_room();
                    if !has_room {
                        self.waiting.packets.push_back(packet);
                        continue;
                    }
                    let sent = self.emit(mac, packet.kind, &packet.bytes, std::iter::empty());
                    self.waiting.lost += usize::from(sent != Sent::Taken);
                }
                Hop::Elsewhere | Hop::None => self.waiting.lost += 1,
            }
        }
    }

    /// How many packets that waited have been lost since the last call.
    pub(crate) fn take_lost(&mut self) -> usize {
        std::mem::take(&mut self.waiting.lost)
    }

    /// Hands what was written to the kernel, in one call.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.written) > 0 || self.behind {
            // What the kernel does not take now leaves with the next call, and so does what had no room.
            let is_left = self.outgoing.flush().is_err();
            self.behind = is_left || self.behind && !self.outgoing.has_room();
        }
    }

    /// Frames that were written and that the kernel has not been told of.
    #[inline]
    pub(crate) const fn written(&self) -> usize {
        self.written
    }

    /// When it is to be called again.
    pub(crate) fn next_deadline(&self, now: Time) -> Option<Time> {
        (self.behind || self.written > 0 || !self.waiting.packets.is_empty())
            .then(|| now.plus(AGAIN))
    }
}

/// Packets that wait for addresses.
const WAITING_MAX: usize = 256;
/// Those that wait for one.
const WAITING_EACH: usize = 16;
const _: () = assert!(WAITING_EACH < WAITING_MAX);
const ETHERNET_BYTES: u32 = 14;
/// Between two looks at what waits.
pub(crate) const AGAIN: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn packet(by: u32, number: u8) -> Packet {
        let by = packet_by(by);
        Packet { ends: Ends { from: by, to: by }, by, kind: 0, bytes: vec![number] }
    }

    /// Goal: a neighbour that does not answer costs packets to others nothing, and the newest to it are kept.
    #[test]
    fn packets_to_a_dead_neighbour_push_out_each_other_only() {
        let mut waiting = Waiting::default();
        waiting.push(packet(2, 0));
        for number in 0..200 {
            waiting.push(packet(1, number));
        }
        let numbers: Vec<_> = waiting.packets.iter().map(|packet| packet.bytes[0]).collect();
        assert_eq!(numbers, [vec![0], (184..200).collect()].concat());
        assert_eq!(waiting.lost, 184);
    }

    /// Goal: however many neighbours are dead, there is room for packets to another; and what waits does not grow.
    #[test]
    fn dead_neighbours_do_not_keep_a_new_one_out() {
        let mut waiting = Waiting::default();
        for by in 0..16 {
            (0..16).for_each(|number| waiting.push(packet(by, number)));
        }
        assert_eq!((waiting.packets.len(), waiting.lost), (WAITING_MAX, 0));
        for by in 16..1000 {
            waiting.push(packet(by, 0));
            assert_eq!(waiting.packets.len(), WAITING_MAX);
            assert_eq!(waiting.packets.back().map(|packet| packet.by), Some(packet(by, 0).by));
        }
        // The first to lose are those that had many.
        let mut waiting = Waiting::default();
        (0..16).for_each(|number| waiting.push(packet(1, number)));
        (2..242).for_each(|by| waiting.push(packet(by, 0)));
        (242..257).for_each(|by| waiting.push(packet(by, 0)));
        let alone = waiting.packets.iter().filter(|packet| packet.by != packet_by(1)).count();
        assert_eq!((alone, waiting.lost), (255, 15));
        assert_eq!(waiting.packets.front().map(|packet| packet.bytes[0]), Some(15));
    }

    fn packet_by(by: u32) -> IpAddr {
        Ipv4Addr::from(by).into()
    }
}
