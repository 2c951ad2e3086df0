//! Transport services.

/// A transport service, as the top three bits of the opcode name it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram. It has a place among the codes but no opcode, and no implementations.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection: the packet names a shared receive queue.
    Xrc,
    /// Congestion notification, which belongs to no service and has a code of its own.
    Cnp,
}

impl Transport {
    /// All of them, in the order of their codes but for [`Transport::Cnp`], which is last.
    pub const ALL: [Self; 6] = [Self::Rc, Self::Uc, Self::Rd, Self::Ud, Self::Xrc, Self::Cnp];

    /// The top three bits of the opcode, in place.
    #[inline]
    pub(crate) const fn bits(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Rd => 0x40,
            Self::Ud => 0x60,
            Self::Xrc => 0xa0,
            Self::Cnp => 0x80,
        }
    }
}
