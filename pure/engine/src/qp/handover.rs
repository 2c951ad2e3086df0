//! XRC target whose requests another process may serve, where the queue that a request names can belong
//! to another process.
//!
//! The responder's part of a queue pair can then live in several places, one of which is at work at a
//! time: it starts where the one before has come to ([`Standing`]), and only when that has nothing left
//! to send. The host decides which responder is at work, between [`Qp::admit`] and [`Qp::on_admitted`]; this is what
//! else it needs for that.
//!
//! Read IBTA Vol. 1 Annex A14 (extended reliable connection) before changing this file.

use super::Qp;
use crate::access::Access;
use crate::host::Host;
use crate::responder::{Responder, Served, Standing};
use crate::status::QpEvent;
use adverb_wire::{Packet, RnrTimer};

impl Qp {
    fn responder_mut(&mut self) -> Option<&mut Responder> {
        self.peer.as_mut()?.receiver.as_mut()?.debtor_mut()
    }

    /// How far its responder has come; `None` before RTR.
    pub fn standing(&self) -> Option<Standing> {
        self.debtor().map(Responder::standing)
    }

    /// Its responder goes on where another has come to.
    pub fn resume(&mut self, standing: Standing, host: &mut impl Host) {
        if let Some(responder) = self.responder_mut() {
            responder.resume(standing, host);
        }
    }

    /// The beginning of a message has arrived, and not its end.
    pub fn is_mid_message(&self) -> bool {
        self.debtor().is_some_and(|responder| responder.assembler().is_busy())
    }

    /// Answers that carry data are owed: no other answer may overtake them.
    pub fn owes_data(&self) -> bool {
        self.debtor().is_some_and(Responder::owes_data)
    }

    /// Sequence numbers that a request packet takes.
    pub fn span(&self, packet: &Packet<'_>) -> u32 {
        self.debtor().map_or(1, |responder| responder.span(packet))
    }

    /// Takes over what the owner may change while it works.
    pub fn adjust(&mut self, access: Access, rnr_timer: RnrTimer) {
        if let Some(responder) = self.responder_mut() {
            responder.assembler_mut().set_access(access);
            responder.set_rnr_timer(rnr_timer);
        }
    }

    /// Another responder has refused a request for good, and told the peer.
    pub fn on_refused_elsewhere(&mut self, event: Option<QpEvent>, host: &mut impl Host) {
        self.settle(Served::Fatal(event), host);
    }
}
