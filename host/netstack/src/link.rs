//! Frames that leave, and packets that wait for the hardware address they go to.

use crate::hops::{Hop, Hops};
use crate::packet::Headers;
use adverb_tcpip::Time;
use adverb_tcpip::ethernet::{Ethernet, Mac};
use adverb_xdp::socket::{NotSent, Outgoing};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

/// The sending end of an interface.
#[derive(Debug)]
pub(crate) struct Link {
    outgoing: Outgoing,
    pub(crate) hops: Hops,
    mac: Mac,
    waiting: Waiting,
    /// Frames were written since the last flush.
    written: bool,
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
    /// There is no way to where it goes.
    NoWay,
}

/// Packets that wait for hardware addresses.
#[derive(Debug, Default)]
struct Waiting {
    /// The oldest first.
    packets: VecDeque<Packet>,
    /// Those that newer ones have pushed out, of which nothing has been said.
    dropped: usize,
}

/// A packet without an Ethernet header.
#[derive(Debug)]
struct Packet {
    to: IpAddr,
    /// The neighbour that it goes to first.
    by: IpAddr,
    kind: u16,
    bytes: Vec<u8>,
}

impl Waiting {
    /// Keeps a packet. Those to one neighbour push out each other, the oldest first, and those to another at no time: RFC
    /// 1122 §2.3.2.2.
    fn push(&mut self, packet: Packet) -> Sent {
        let mut same = self.packets.iter().enumerate().filter(|(_, other)| other.by == packet.by);
        let oldest = same.next().map(|(at, _)| at);
        if let (Some(oldest), true) = (oldest, same.count() + 1 >= WAITING_EACH) {
            self.packets.remove(oldest);
            self.dropped += 1;
        } else if self.packets.len() >= WAITING_MAX {
            return Sent::Full;
        }
        self.packets.push_back(packet);
        Sent::Taken
    }
}

impl Link {
    pub(crate) fn new(outgoing: Outgoing, hops: Hops, mac: Mac) -> Self {
        Self { outgoing, hops, mac, waiting: Waiting::default(), written: false, behind: false }
    }

    pub(crate) const fn set_mac(&mut self, mac: Mac) {
        self.mac = mac;
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
        to: IpAddr,
        headers: &'a Headers,
        payload: impl Iterator<Item = &'a [u8]>,
        now: Time,
    ) -> Sent {
        match self.hops.find(to, now) {
            Hop::Known(mac) => {
                self.emit(mac, headers.kind, headers.pieces().into_iter().chain(payload))
            }
            Hop::Sought(by) => {
                let bytes = headers.pieces().into_iter().chain(payload).flatten().copied();
                let (kind, bytes) = (headers.kind, bytes.collect());
                self.waiting.push(Packet { to, by, kind, bytes })
            }
            Hop::None => Sent::NoWay,
        }
    }

    #[inline]
    fn emit<'a>(&mut self, dst: Mac, kind: u16, pieces: impl Iterator<Item = &'a [u8]>) -> Sent {
        let ethernet = Ethernet { dst, src: self.mac, kind };
        let sent = self.outgoing.send(|writer| {
            writer.push(&ethernet.emit());
            pieces.for_each(|piece| writer.push(piece));
        });
        match sent {
            Ok(()) => {
                self.written = true;
                Sent::Taken
            }
            Err(NotSent::Full) => Sent::Full,
            Err(NotSent::Size) => Sent::NoWay,
        }
    }

    /// Sends packets whose address has been found out; those to where there is no way are lost. Says how
    /// many are, with those that newer ones have pushed out.
    pub(crate) fn release(&mut self, now: Time) -> usize {
        let mut lost = std::mem::take(&mut self.waiting.dropped);
        for _ in 0..self.waiting.packets.len() {
            let Some(packet) = self.waiting.packets.pop_front() else { break };
            match self.hops.find(packet.to, now) {
                Hop::Sought(by) => self.waiting.packets.push_back(Packet { by, ..packet }),
                Hop::Known(_) if !self.has_room() => self.waiting.packets.push_back(packet),
                Hop::Known(mac) => {
                    let bytes = std::iter::once(packet.bytes.as_slice());
                    lost += usize::from(self.emit(mac, packet.kind, bytes) != Sent::Taken);
                }
                Hop::None => lost += 1,
            }
        }
        lost
    }

    /// Hands what was written to the kernel, in one call.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.written) || self.behind {
            // What the kernel does not take now leaves with the next call.
            self.behind = self.outgoing.flush().is_err();
        }
    }

    /// When it is to be called again.
    pub(crate) fn next_deadline(&self, now: Time) -> Option<Time> {
        (self.behind || !self.waiting.packets.is_empty()).then(|| now.plus(AGAIN))
    }
}

/// Packets that wait for addresses.
const WAITING_MAX: usize = 256;
/// Those that wait for one.
const WAITING_EACH: usize = 16;
const _: () = assert!(WAITING_EACH < WAITING_MAX);
/// Between two looks at what waits.
const AGAIN: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn packet(by: u32, number: u8) -> Packet {
        let by = Ipv4Addr::from(by).into();
        Packet { to: by, by, kind: 0, bytes: vec![number] }
    }

    /// Goal: a neighbour that does not answer costs packets to others nothing, and the newest to it are kept.
    #[test]
    fn packets_to_a_dead_neighbour_push_out_each_other_only() {
        let mut waiting = Waiting::default();
        assert_eq!(waiting.push(packet(2, 0)), Sent::Taken);
        for number in 0..200 {
            assert_eq!(waiting.push(packet(1, number)), Sent::Taken);
        }
        let numbers: Vec<_> = waiting.packets.iter().map(|packet| packet.bytes[0]).collect();
        assert_eq!(numbers, [vec![0], (184..200).collect()].concat());
        assert_eq!(waiting.dropped, 184);
        // Neighbours without number do not make it grow.
        let sent: Vec<_> = (3..1000).map(|by| waiting.push(packet(by, 0))).collect();
        assert_eq!(sent.iter().filter(|sent| **sent == Sent::Taken).count(), WAITING_MAX - 17);
        assert_eq!((sent.last(), waiting.packets.len()), (Some(&Sent::Full), WAITING_MAX));
    }
}
