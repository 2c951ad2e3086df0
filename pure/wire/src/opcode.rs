//! Opcodes: a transport and an operation that it has.

use crate::operation::Operation;
use crate::transport::Transport;

/// Operation and transport of a packet: an opcode that exists is one that may be sent.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Opcode {
    transport: Transport,
    operation: Operation,
}

impl Opcode {
    /// The opcode with this code on the wire; `None` if the specification defines none, and for
    /// reliable datagrams, which RoCE does not carry.
    #[inline]
    pub fn new(code: u8) -> Option<Self> {
        CODES.get(usize::from(code)).copied().flatten()
    }

    /// `operation` over `transport`; `None` if the transport does not have it.
    #[inline]
    pub const fn of(transport: Transport, operation: Operation) -> Option<Self> {
        if operation.is_on(transport) { Some(Self { transport, operation }) } else { None }
    }

    /// The code on the wire.
    #[inline]
    pub const fn code(self) -> u8 {
        self.transport.bits() | self.operation.rule().code
    }

    /// The transport.
    #[inline]
    pub const fn transport(self) -> Transport {
        self.transport
    }

    /// The operation.
    #[inline]
    pub const fn operation(self) -> Operation {
        self.operation
    }

    /// A datagram header follows.
    #[inline]
    pub(crate) const fn has_deth(self) -> bool {
        matches!(self.transport, Transport::Ud)
    }

    /// The number of a shared receive queue follows.
    #[inline]
    pub(crate) const fn has_xrceth(self) -> bool {
        matches!(self.transport, Transport::Xrc) && self.operation.is_request()
    }
}

/// The opcode of every code.
static CODES: [Option<Opcode>; 256] = codes();

const fn codes() -> [Option<Opcode>; 256] {
    let mut table = [None; 256];
    let mut rest = table.as_mut_slice();
    let mut code: u8 = 0;
    while let Some((slot, tail)) = rest.split_first_mut() {
        *slot = find(code);
        rest = tail;
        code = code.wrapping_add(1);
    }
    table
}

const fn find(code: u8) -> Option<Opcode> {
    let mut transports = Transport::ALL.as_slice();
    while let Some((transport, other)) = transports.split_first() {
        let mut operations = Operation::ALL.as_slice();
        while let Some((operation, others)) = operations.split_first() {
            if let Some(opcode) = Opcode::of(*transport, *operation)
                && opcode.code() == code
            {
                return Some(opcode);
            }
            operations = others;
        }
        transports = other;
    }
    None
}

#[cfg(test)]
mod tests;
