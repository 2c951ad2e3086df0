//! Watching whether some process takes the requests for connections to this port's addresses, and taking over where
//! none does.
//!
//! The kernel gives requests for an address to one process, which passes them on (`management.rs`, `serving.rs`). One that
//! is stopped does not. Processes that wait for requests therefore ask now and then, by a datagram that goes where requests go;
//! when several in turn stay without an answer, they have the kernel give requests to them. What then waits in the
//! socket of the stopped process its senders repeat: when it goes on, it passes none of that on, lest a connection that is over
//! be asked for once more.

use super::Port;
use super::rx_sockets::{MISLED_MAX, send_to};
use crate::link::udp::endpoint::{Endpoint, gid_of};
use crate::link::udp::steering::{scope, steer};
use crate::registry::probe;
use crate::registry::serving::Seen;
use crate::sync::Mutex;
use adverb_sys::clock;
use adverb_sys::udp::Destination;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

/// What is known of the addresses of a port.
#[derive(Debug, Default)]
pub(super) struct Watch(Mutex<HashMap<IpAddr, Watched>>);

/// What is known of one that serves an address.
#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    seen: Seen,
    /// A question has been asked since it was seen.
    asked: bool,
    /// Questions in turn without an answer.
    unanswered: u32,
    /// Requests for others that come until then, in nanoseconds, have waited while this process was stopped.
    deaf_until: u64,
}

impl Watched {
    /// One more look; the one that serves is silent.
    fn look(&mut self, answered: u32) -> bool {
        let silent = self.asked && self.seen.answered == answered;
        self.unanswered = if silent { self.unanswered + 1 } else { 0 };
        (self.seen.answered, self.asked) = (answered, true);
        self.unanswered >= UNANSWERED_MAX
    }

    /// What was not taken by others comes late.
    fn has_waited(&mut self, takeovers: u32, now: u64) -> bool {
        if self.seen.takeovers != takeovers {
            self.seen.takeovers = takeovers;
            self.deaf_until = now.saturating_add(DEAF_NS);
        }
        now < self.deaf_until
    }
}

impl Port {
    /// Looks whether requests to the addresses of this port that it has opened are taken; takes them from now on where
    /// they are not. For a program that waits for some: every [`Port::REQUESTS_LOOK_MS`].
    pub fn look_after_requests(&self) {
        // While a socket is opened they are looked at another time: that may take long.
        let Some(endpoints) = self.endpoints.try_lock() else { return };
        let endpoints: Vec<_> = endpoints.values().cloned().collect();
        for endpoint in endpoints {
            // What fails now may be done at the next look.
            let _ = self.look_after_requests_to(&endpoint);
        }
    }

    /// From one look to the next, in milliseconds.
    pub const REQUESTS_LOOK_MS: u64 = 250;

    fn look_after_requests_to(&self, endpoint: &Endpoint) -> io::Result<()> {
        let (addr, registry) = (endpoint.addr, &self.links.registry);
        let (address, scope) = (gid_of(addr.ip()).0, scope(addr));
        let seen = registry.seen(address, scope);
        let mut watch = self.desk.watch.0.lock();
        let watched = watch.entry(addr.ip()).or_default();
        if !registry.has_company(address, scope) {
            watched.asked = false;
            return Ok(());
        }
        let is_silent = watched.look(seen.answered);
        drop(watch);
        if is_silent && self.serve(endpoint)?.is_some() {
            let Seen { takeovers, .. } = registry.seen(address, scope);
            let mut watch = self.desk.watch.0.lock();
            let watched = watch.entry(addr.ip()).or_default();
            (watched.seen.takeovers, watched.unanswered) = (takeovers, 0);
        }
        let question = probe::question(seen.answered.wrapping_add(1));
        send_to(endpoint, &Destination::new(addr), &question)
    }

    /// Has the kernel give requests to this port, unless another process changes things now.
    fn serve(&self, endpoint: &Endpoint) -> io::Result<Option<()>> {
        let (address, scope) = (gid_of(endpoint.addr.ip()).0, scope(endpoint.addr));
        self.links.registry.try_with_group(address, scope, |registry, members| {
            self.keep_place(members);
            if registry.serves(address, scope, members) {
                // It has taken over already: its place is not what the registry says.
                self.misled.store(MISLED_MAX, Ordering::Relaxed);
            }
            registry.take_over(address, scope);
            steer(endpoint, registry, members)
        })
    }

    /// The watch of an address that was opened begins.
    pub(super) fn begin_watch(&self, addr: SocketAddr) {
        let seen = self.links.registry.seen(gid_of(addr.ip()).0, scope(addr));
        self.desk.watch.0.lock().insert(addr.ip(), Watched { seen, ..Watched::default() });
    }

    /// Requests to this address that come to this process now may have waited while it was stopped, and another one took
    /// over.
    pub(super) fn has_waited(&self, address: IpAddr) -> bool {
        let gids = self.links.gids.entries();
        let Some(entry) = gids.iter().find(|entry| entry.addr.ip() == address) else {
            return false;
        };
        let seen = self.links.registry.seen(gid_of(address).0, scope(entry.addr));
        let mut watch = self.desk.watch.0.lock();
        watch.entry(address).or_default().has_waited(seen.takeovers, clock::now_ns())
    }
}

/// Questions in turn without an answer before another process takes over: one may wait for a processor.
const UNANSWERED_MAX: u32 = 2;
/// How long a process takes at most to look at all that has come while it was stopped; less than a sender waits.
const DEAF_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_several_questions_without_an_answer() {
        let mut watched = Watched::default();
        let answers = [5, 5, 6, 6, 7, 7, 7, 7, 8];
        let silent = answers.map(|answered| watched.look(answered));
        assert_eq!(silent, [false, false, false, false, false, false, true, true, false]);
    }

    #[test]
    fn what_comes_after_a_takeover_has_waited_for_a_while() {
        let mut watched = Watched::default();
        assert!(!watched.has_waited(0, 5));
        assert!(watched.has_waited(1, 10) && watched.has_waited(1, 9 + DEAF_NS));
        assert!(!watched.has_waited(1, 10 + DEAF_NS));
    }
}
