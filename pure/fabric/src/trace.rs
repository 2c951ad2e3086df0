//! Traces of the packets on links, as text.

use crate::link::Fault;
use crate::net::LinkId;
use adverb_engine::Time;
use adverb_wire::{Extension, Headers, Nak, Operation, Psn, Syndrome};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{self, Write};

/// One datagram on one link.
#[derive(Clone, Copy, Debug)]
struct Event {
    at: Time,
    link: LinkId,
    headers: Headers,
    /// PSN of the first packet of the requester that this packet belongs to.
    base: Psn,
    len: usize,
    fault: Fault,
}

/// Everything that was given to a link.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    events: Vec<Event>,
}

impl Trace {
    pub(crate) fn record(
        &mut self,
        at: Time,
        link: LinkId,
        headers: Headers,
        base: Psn,
        len: usize,
        fault: Fault,
    ) {
        self.events.push(Event { at, link, headers, base, len, fault });
    }

    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// One link in short: see [`crate::Net::trace`].
    pub(crate) fn short(&self, link: LinkId) -> String {
        let mut out = String::new();
        let mut last = 0;
        for event in self.events.iter().filter(|event| event.link == link) {
            if !out.is_empty() {
                out.push(' ');
            }
            if event.headers.bth.opcode.operation().is_request() {
                if event.number() <= last {
                    out.push_str("| ");
                }
                last = event.number();
            }
            let _ = write!(out, "{event}"); // Writing to a string cannot fail.
        }
        out
    }

    /// Everything, one line a packet.
    pub(crate) fn long(&self) -> String {
        let mut out = String::new();
        for event in &self.events {
            let Event { at, link, headers, len, fault, .. } = event;
            let nanos = at.nanos();
            let (operation, psn) = (headers.bth.opcode.operation(), headers.bth.psn.get());
            let ask = if headers.bth.ack_request { " ack?" } else { "" };
            let short = event.to_string();
            let _ = writeln!(
                out,
                "{nanos:>12} link {link:?} {short:<6} {operation:?} psn {psn:#08x} {len} B{ask} \
                 {:?} {fault:?}",
                headers.extension
            );
        }
        out
    }
}

impl Event {
    /// Number of the packet, from 1.
    fn number(&self) -> i32 {
        self.headers.bth.psn.since(self.base) + 1
    }

    /// What kind of packet it is: nothing for a request.
    fn letter(&self) -> &'static str {
        let operation = self.headers.bth.opcode.operation();
        if operation.is_request() {
            return "";
        }
        match self.headers.extension {
            Extension::Aeth(aeth) if operation == Operation::Acknowledge => match aeth.syndrome {
                Syndrome::Ack { .. } => "A",
                Syndrome::RnrNak(_) => "R",
                Syndrome::Nak(Nak::SequenceError) => "N",
                Syndrome::Nak(_) => "E",
            },
            Extension::None
            | Extension::Reth(_)
            | Extension::RethImm(..)
            | Extension::Imm(_)
            | Extension::Invalidate(_)
            | Extension::Atomic(_)
            | Extension::Flush(..)
            | Extension::Aeth(_)
            | Extension::AtomicAck(..)
            | Extension::Cnp => "D",
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fate = match self.fault {
            Fault::None => "",
            Fault::Corrupt => "c",
            Fault::Delay(_) => "~",
            Fault::Drop => "x",
            Fault::Duplicate => "d",
        };
        write!(f, "{}{}{fate}", self.letter(), self.number())
    }
}
