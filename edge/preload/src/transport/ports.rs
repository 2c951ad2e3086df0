//! Ports of a network namespace: where accelerated programs listen, and how many offers wait there.

use std::sync::atomic::{AtomicU16, Ordering};

use crate::socket::state::Socket;
use crate::transport::rendezvous::{self, Reach, Table};

/// What is known of ports, shared by all of a namespace: whether accelerated programs listen there, and how many offers
/// to connections within the namespace have been neither taken nor withdrawn.
///
/// Words that another process has spoilt cost rings, or looks in vain, and nothing else.
fn ports() -> Option<&'static [AtomicU16; PORTS]> {
    static TABLE: Table<[AtomicU16; PORTS]> = Table::new();
    TABLE.get_or_map(|| rendezvous::shared("ports", Reach::Network))
}

fn port(port: u16) -> Option<&'static AtomicU16> {
    ports()?.get(usize::from(port))
}

const PORTS: usize = 65_536;
/// Of a port: an accelerated program has ever listened there.
const LISTENS: u16 = 1;
/// Of a port: one offer.
const OFFER: u16 = 2;

/// Says that this program listens on a port, and looks for offers.
pub(crate) fn announce(number: u16) {
    if let Some(port) = port(number) {
        port.fetch_or(LISTENS, Ordering::AcqRel);
    }
}

/// Whether an accelerated program has ever listened on that port. If it no longer does, an offer
/// is in vain and nothing else.
pub(crate) fn listens(number: u16) -> bool {
    port(number).is_some_and(|port| port.load(Ordering::Acquire) & LISTENS != 0)
}

/// Whether there may be offers to connections that a port has accepted.
pub(crate) fn has_offers(number: u32) -> bool {
    let number = u16::try_from(number).unwrap_or(0);
    port(number).is_none_or(|port| port.load(Ordering::Acquire) >= OFFER)
}

/// An offer is about to be made to a port, and `socket` answers for it.
pub(crate) fn count_offer(socket: &Socket, number: u16) {
    socket.rendezvous.port.store(u32::from(number), Ordering::Relaxed);
    if let Some(port) = port(number) {
        let more = |word: u16| word.checked_add(OFFER);
        let _ = port.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
    }
}

/// The offer of a socket is there no more, and has not been taken.
pub(crate) fn discount_offer(socket: &Socket) {
    if let Ok(number @ 1..) = u16::try_from(socket.rendezvous.port.swap(0, Ordering::AcqRel)) {
        discount(number);
    }
}

pub(crate) fn discount(number: u16) {
    if let Some(port) = port(number) {
        let fewer = |word: u16| word.checked_sub(OFFER);
        let _ = port.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer);
    }
}
