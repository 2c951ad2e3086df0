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
    /// Packets without an Ethernet header, with their kinds and where they go: the oldest first.
    waiting: VecDeque<(IpAddr, u16, Vec<u8>)>,
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
    /// There is no way to where it goes, or too much waits to go there.
    Lost,
}

impl Link {
    pub(crate) const fn new(outgoing: Outgoing, hops: Hops, mac: Mac) -> Self {
        Self { outgoing, hops, mac, waiting: VecDeque::new(), written: false, behind: false }
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
            Hop::Sought if self.waiting.len() < WAITING_MAX => {
                let packet = headers.pieces().into_iter().chain(payload).flatten().copied();
                self.waiting.push_back((to, headers.kind, packet.collect()));
                Sent::Taken
            }
            Hop::Sought | Hop::None => Sent::Lost,
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
            Err(NotSent::Full | NotSent::Size) => Sent::Lost,
        }
    }

    /// Sends packets whose address has been found out; those to where there is no way are lost. Says how many.
    pub(crate) fn release(&mut self, now: Time) -> usize {
        let mut lost = 0;
        for _ in 0..self.waiting.len() {
            let Some((to, kind, packet)) = self.waiting.pop_front() else { break };
            match self.hops.find(to, now) {
                Hop::Sought => self.waiting.push_back((to, kind, packet)),
                Hop::Known(_) if !self.has_room() => self.waiting.push_back((to, kind, packet)),
                Hop::Known(mac) => {
                    let sent = self.emit(mac, kind, std::iter::once(packet.as_slice()));
                    lost += usize::from(sent == Sent::Lost);
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
        (self.behind || !self.waiting.is_empty()).then(|| now.plus(AGAIN))
    }
}

/// Packets that wait for addresses.
const WAITING_MAX: usize = 256;
/// Between two looks at what waits.
const AGAIN: Duration = Duration::from_micros(100);
