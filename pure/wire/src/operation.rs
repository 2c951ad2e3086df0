//! Operations of packets, in one table.
//!
//! [`Operation::rule`] is the one table that everything else is derived from: which transports
//! have the operation, its code, its place in a message, the headers and the payload that follow,
//! and whether it uses up a posted receive. `opcode.rs` turns it round, from codes to operations;
//! `headers.rs` reads and writes what it says.
//!
//! Read IBTA Vol. 1 §9.2 (opcodes) and §9.4 (operations) before changing it.

use crate::transport::Transport;

/// Operation of a packet: the low five bits of the opcode.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Operation {
    /// First packet of a SEND.
    SendFirst,
    /// Neither first nor last packet of a SEND.
    SendMiddle,
    /// Last packet of a SEND.
    SendLast,
    /// Last packet of a SEND, with immediate data.
    SendLastImm,
    /// A SEND in one packet.
    SendOnly,
    /// A SEND in one packet, with immediate data.
    SendOnlyImm,
    /// First packet of a WRITE; says where.
    WriteFirst,
    /// Neither first nor last packet of a WRITE.
    WriteMiddle,
    /// Last packet of a WRITE.
    WriteLast,
    /// Last packet of a WRITE, with immediate data.
    WriteLastImm,
    /// A WRITE in one packet; says where.
    WriteOnly,
    /// A WRITE in one packet, with immediate data.
    WriteOnlyImm,
    /// Asks for memory.
    ReadRequest,
    /// First packet of the answer to a READ.
    ReadResponseFirst,
    /// Neither first nor last packet of the answer to a READ; the only answer without a syndrome.
    ReadResponseMiddle,
    /// Last packet of the answer to a READ.
    ReadResponseLast,
    /// The answer to a READ in one packet.
    ReadResponseOnly,
    /// Acknowledges or refuses.
    Acknowledge,
    /// Acknowledges an atomic with the value that was there before.
    AtomicAcknowledge,
    /// Asks to replace eight bytes if they have an expected value.
    CompareSwap,
    /// Asks to add to eight bytes.
    FetchAdd,
    /// Last packet of a SEND that also invalidates a key.
    SendLastInvalidate,
    /// A SEND in one packet that also invalidates a key.
    SendOnlyInvalidate,
    /// Makes sure that what was written before is there.
    Flush,
    /// Writes eight bytes at once.
    AtomicWrite,
    /// Notifies of congestion.
    Cnp,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// Low five bits of the opcode.
    pub(crate) code: u8,
    /// The transports that have the operation.
    pub(crate) on: On,
    /// Class of the packet.
    pub(crate) class: Class,
    /// Its place in a message.
    pub(crate) place: Place,
    /// Headers after the ones of the transport.
    pub(crate) layout: Layout,
    /// What follows the headers.
    pub(crate) payload: Payload,
    /// It uses up a posted receive.
    pub(crate) receive: bool,
}

/// Transports that have an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum On {
    /// RC and XRC.
    Reliable,
    /// RC, UC and XRC.
    Connected,
    /// RC, UC, UD and XRC.
    All,
    /// None of the services.
    Cnp,
}

/// Class of a packet: SEND, WRITE, another request, an answer, or neither.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Class {
    Send,
    Write,
    /// A request that is neither SEND nor WRITE.
    Ask,
    /// An answer.
    Answer,
    /// Neither request nor answer.
    Aside,
}

/// The place of a packet in its message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    First,
    Middle,
    Last,
    Only,
}

/// Headers after the ones that the transport asks for, named as [`crate::Extension`] names them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Layout {
    None,
    Reth,
    RethImm,
    Imm,
    Invalidate,
    Atomic,
    Flush,
    Aeth,
    AtomicAck,
    Cnp,
}

/// Payload that may stand between the headers and the invariant CRC.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Payload {
    /// Nothing.
    Empty,
    /// Eight bytes.
    Eight,
    /// Up to a path MTU, padded.
    Any,
}

impl Operation {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 26] = [
        Self::SendFirst,
        Self::SendMiddle,
        Self::SendLast,
        Self::SendLastImm,
        Self::SendOnly,
        Self::SendOnlyImm,
        Self::WriteFirst,
        Self::WriteMiddle,
        Self::WriteLast,
        Self::WriteLastImm,
        Self::WriteOnly,
        Self::WriteOnlyImm,
        Self::ReadRequest,
        Self::ReadResponseFirst,
        Self::ReadResponseMiddle,
        Self::ReadResponseLast,
        Self::ReadResponseOnly,
        Self::Acknowledge,
        Self::AtomicAcknowledge,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::SendLastInvalidate,
        Self::SendOnlyInvalidate,
        Self::Flush,
        Self::AtomicWrite,
        Self::Cnp,
    ];

    /// The table. Columns: code, transports, class, place, headers, payload, uses up a receive.
    #[inline]
    #[rustfmt::skip]
    pub(crate) const fn rule(self) -> Rule {
        use Payload::{Any, Eight, Empty};
        use Place::{First, Last, Middle, Only};
        use Class::{Answer, Aside, Ask, Send, Write};
        match self {
            Self::SendFirst          => row(0x00, On::Connected, Send,   First,  Layout::None,       Any,   true),
            Self::SendMiddle         => row(0x01, On::Connected, Send,   Middle, Layout::None,       Any,   true),
            Self::SendLast           => row(0x02, On::Connected, Send,   Last,   Layout::None,       Any,   true),
            Self::SendLastImm        => row(0x03, On::Connected, Send,   Last,   Layout::Imm,        Any,   true),
            Self::SendOnly           => row(0x04, On::All,       Send,   Only,   Layout::None,       Any,   true),
            Self::SendOnlyImm        => row(0x05, On::All,       Send,   Only,   Layout::Imm,        Any,   true),
            Self::WriteFirst         => row(0x06, On::Connected, Write,  First,  Layout::Reth,       Any,   false),
            Self::WriteMiddle        => row(0x07, On::Connected, Write,  Middle, Layout::None,       Any,   false),
            Self::WriteLast          => row(0x08, On::Connected, Write,  Last,   Layout::None,       Any,   false),
            Self::WriteLastImm       => row(0x09, On::Connected, Write,  Last,   Layout::Imm,        Any,   true),
            Self::WriteOnly          => row(0x0a, On::Connected, Write,  Only,   Layout::Reth,       Any,   false),
            Self::WriteOnlyImm       => row(0x0b, On::Connected, Write,  Only,   Layout::RethImm,    Any,   true),
            Self::ReadRequest        => row(0x0c, On::Reliable,  Ask,    Only,   Layout::Reth,       Empty, false),
            Self::ReadResponseFirst  => row(0x0d, On::Reliable,  Answer, First,  Layout::Aeth,       Any,   false),
            Self::ReadResponseMiddle => row(0x0e, On::Reliable,  Answer, Middle, Layout::None,       Any,   false),
            Self::ReadResponseLast   => row(0x0f, On::Reliable,  Answer, Last,   Layout::Aeth,       Any,   false),
            Self::ReadResponseOnly   => row(0x10, On::Reliable,  Answer, Only,   Layout::Aeth,       Any,   false),
            Self::Acknowledge        => row(0x11, On::Reliable,  Answer, Only,   Layout::Aeth,       Empty, false),
            Self::AtomicAcknowledge  => row(0x12, On::Reliable,  Answer, Only,   Layout::AtomicAck,  Empty, false),
            Self::CompareSwap        => row(0x13, On::Reliable,  Ask,    Only,   Layout::Atomic,     Empty, false),
            Self::FetchAdd           => row(0x14, On::Reliable,  Ask,    Only,   Layout::Atomic,     Empty, false),
            Self::SendLastInvalidate => row(0x16, On::Reliable,  Send,   Last,   Layout::Invalidate, Any,   true),
            Self::SendOnlyInvalidate => row(0x17, On::Reliable,  Send,   Only,   Layout::Invalidate, Any,   true),
            Self::Flush              => row(0x1c, On::Reliable,  Ask,    Only,   Layout::Flush,      Empty, false),
            Self::AtomicWrite        => row(0x1d, On::Reliable,  Ask,    Only,   Layout::Reth,       Eight, false),
            Self::Cnp                => row(0x01, On::Cnp,       Aside,  Only,   Layout::Cnp,        Empty, false),
        }
    }

    /// Asks something of the peer.
    #[inline]
    pub const fn is_request(self) -> bool {
        matches!(self.rule().class, Class::Send | Class::Write | Class::Ask)
    }

    /// Answers a request.
    #[inline]
    pub const fn is_response(self) -> bool {
        matches!(self.rule().class, Class::Answer)
    }

    /// Is one packet of a SEND.
    #[inline]
    pub const fn is_send(self) -> bool {
        matches!(self.rule().class, Class::Send)
    }

    /// Is one packet of a WRITE; an atomic write is not.
    #[inline]
    pub const fn is_write(self) -> bool {
        matches!(self.rule().class, Class::Write)
    }

    /// Is one packet of the answer to a READ.
    #[inline]
    pub const fn is_read_response(self) -> bool {
        matches!(self.rule().class, Class::Answer) && self.has_payload()
    }

    /// Asks for a value and changes it: compare-and-swap or fetch-and-add.
    #[inline]
    pub const fn is_atomic(self) -> bool {
        matches!(self.rule().layout, Layout::Atomic)
    }

    /// Starts a message: first or only packet.
    #[inline]
    pub const fn is_start(self) -> bool {
        matches!(self.rule().place, Place::First | Place::Only)
    }

    /// Ends a message: last or only packet.
    #[inline]
    pub const fn is_end(self) -> bool {
        matches!(self.rule().place, Place::Last | Place::Only)
    }

    /// Belongs to a message that uses up a posted receive: any part of a SEND, and the packet of a
    /// WRITE that carries immediate data.
    #[inline]
    pub const fn needs_receive(self) -> bool {
        self.rule().receive
    }

    /// May carry bytes after its headers.
    #[inline]
    pub const fn has_payload(self) -> bool {
        !matches!(self.rule().payload, Payload::Empty)
    }

    /// Carries immediate data.
    #[inline]
    pub const fn has_immediate(self) -> bool {
        matches!(self.rule().layout, Layout::Imm | Layout::RethImm)
    }

    /// Whether `transport` has this operation.
    pub(crate) const fn is_on(self, transport: Transport) -> bool {
        match transport {
            Transport::Rc | Transport::Xrc => !matches!(self.rule().on, On::Cnp),
            Transport::Uc => matches!(self.rule().on, On::Connected | On::All),
            Transport::Ud => matches!(self.rule().on, On::All),
            Transport::Cnp => matches!(self.rule().on, On::Cnp),
            Transport::Rd => false,
        }
    }
}

/// Writes one row in one line.
const fn row(
    code: u8,
    on: On,
    class: Class,
    place: Place,
    layout: Layout,
    payload: Payload,
    receive: bool,
) -> Rule {
    Rule { code, on, class, place, layout, payload, receive }
}
