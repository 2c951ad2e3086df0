//! Frames that have come past the sockets: `link/xdp`.
//!
//! The bytes of a frame are looked at where they lie, and copied once, to where they belong. What the steering program
//! has sent here is for an address of this port, or was until a moment ago.

use super::driving::LITTLE_BYTES;
use super::{Arrival, Clock, Port, Receiver, RxSocket};
use crate::link::xdp::frame;
use crate::registry::relay::Passed;
use adverb_engine::Driver;
use adverb_wire::ip::Envelope;
use std::ops::ControlFlow;

impl Port {
    /// Takes the frames there are; says whether there were some, and whether that completed work.
    pub(super) fn receive_frames(
        &self,
        receiver: &mut Receiver,
        clock: &mut Clock,
        driver: Driver,
    ) -> (bool, bool) {
        let Receiver { rx_sockets, frames, waiting, parked, quiet, steps, .. } = receiver;
        if *steps == 0
            && let Some(link) = self.xdp_link.get()
            && link.looks_over(clock.now().nanos())
        {
            link.end(frames);
        }
        // A thread that sleeps would leave it there.
        let mut busy = self.xdp_link.get().is_some_and(|link| link.catch_up());
        let mut published = false;
        for incoming in frames {
            let count = incoming.receive(FRAMES_MAX, |bytes| {
                let Some(Envelope { from, to, id, marks, payload }) =
                    frame::parse(bytes).filter(|envelope| !envelope.payload.is_empty())
                else {
                    self.links.counters.malformed.add(1);
                    return ControlFlow::Continue(());
                };
                let Some(RxSocket { endpoint, flows, .. }) = rx_sockets
                    .iter_mut()
                    .find(|socket| socket.group.is_none() && socket.endpoint.addr.ip() == to.ip())
                else {
                    self.links.counters.malformed.add(1);
                    return ControlFlow::Continue(());
                };
                let target = to.ip();
                let passed = Passed { source: from, target, marks, segment: None, bytes: payload };
                let (now, id) = (clock.now(), Some(id));
                let arrival =
                    Arrival { passed, endpoint, group: None, now, driver, relayed: false, id };
                let completed = self.take(&arrival, flows, waiting, parked) > 0;
                published |= completed;
                // The program has something to look at: completions, or a little in its memory.
                let little = payload.len() <= LITTLE_BYTES;
                match driver == Driver::Program && (completed || little) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            busy |= count > 0;
        }
        *quiet = if busy { 0 } else { quiet.saturating_add(1) };
        (busy, published)
    }
}

/// Frames taken from one queue before others have their turn.
const FRAMES_MAX: usize = 64;
