//! The responder of an unreliable connection: delivers whole messages, and says nothing.
//!
//! A message that lost a packet, or that cannot be served, is dropped up to its end: its receive is
//! put back for the next message, and service resumes with the next FIRST or ONLY. There is no notice.
//! A datagram network may also bring packets late; those of the recent past are dropped, so that
//! messages are delivered in order and once.
//!
//! Read IBTA Vol. 1 §9.8.2 (unreliable connections) before changing this file.

use crate::assembler::{Assembler, Refusal};
use crate::attributes::Settings;
use crate::counters::QpCounters;
use crate::host::Host;
use crate::packetizer::Path;
use crate::responder::Served;
use adverb_wire::{Nak, Packet, Psn};

/// Packets that are this far behind, or less, are late; those further behind are the future of a
/// peer that was not heard for half the circle of numbers.
const LATE_PACKETS_MAX: i32 = 1 << 12;

/// The serving half of an unreliable connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectedResponder {
    assembler: Assembler,
    expected: Psn,
}

impl ConnectedResponder {
    pub(crate) fn new(path: Path, settings: &Settings) -> Self {
        let assembler = Assembler::new(path, settings.access);
        Self { assembler, expected: settings.expected_psn }
    }

    pub(crate) fn assembler_mut(&mut self) -> &mut Assembler {
        &mut self.assembler
    }

    /// Takes one packet.
    pub(crate) fn on_request(
        &mut self,
        packet: &Packet<'_>,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) -> Served {
        let bth = &packet.headers.bth;
        let ahead = bth.psn.since(self.expected);
        if (-LATE_PACKETS_MAX..0).contains(&ahead) {
            counters.duplicate_request += 1;
            counters.dropped_pkts += 1;
            return Served::Fine;
        }
        self.expected = bth.psn.plus(1);
        if ahead != 0 {
            counters.out_of_seq_request += 1;
        }
        // Whatever was on its way in can only go on with the expected packet. Without its
        // beginning, the rest of a message makes no sense, and is refused below.
        if ahead != 0 || bth.opcode.operation().is_start() {
            self.assembler.forget(host);
        }
        match self.execute(packet, counters, host) {
            Ok(()) => Served::Fine,
            Err(refusal) => self.drop_message(refusal, counters, host),
        }
    }

    fn execute(
        &mut self,
        packet: &Packet<'_>,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        self.assembler.check(packet)?;
        if packet.headers.bth.opcode.operation().is_write() {
            self.assembler.on_write(packet, counters, host)
        } else {
            self.assembler.on_send(packet, counters, host)
        }
    }

    /// Drops the message that a packet belongs to. Only the owner's own mistake is fatal.
    fn drop_message(
        &mut self,
        refusal: Refusal,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) -> Served {
        counters.dropped_pkts += 1;
        if let Refusal::Nak(Nak::RemoteOperation, status) = refusal {
            self.assembler.abandon(status, counters, host);
            return Served::Fatal(None);
        }
        self.assembler.forget(host);
        Served::Fine
    }
}

#[cfg(test)]
mod tests;
