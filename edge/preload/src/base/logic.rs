//! Ring allocation logic: which sockets share a ring, by a parameter, or by an option of one socket.

/// Which sockets share a ring: `ring_logic_t` of `vma_extra.h`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Logic {
    Interface,
    Address,
    Socket,
    User(u32),
    Thread,
    Core,
}

impl Logic {
    /// The logic of that number; `user` is the program's number for [`Logic::User`].
    pub(crate) fn of(number: i64, user: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Interface,
            1 => Self::Address,
            10 => Self::Socket,
            11 => Self::User(user),
            20 => Self::Thread,
            30 | 31 => Self::Core,
            _ => return None,
        })
    }

    /// As a word of a socket's; 0 is none.
    pub(crate) fn word(self) -> u64 {
        match self {
            Self::Interface => 1,
            Self::Address => 2,
            Self::Socket => 3,
            Self::User(user) => 4 | u64::from(user) << 32,
            Self::Thread => 5,
            Self::Core => 6,
        }
    }

    /// The logic of such a word.
    pub(crate) fn of_word(word: u64) -> Option<Self> {
        Some(match word & u64::from(u32::MAX) {
            1 => Self::Interface,
            2 => Self::Address,
            3 => Self::Socket,
            4 => Self::User(u32::try_from(word >> 32).unwrap_or(0)),
            5 => Self::Thread,
            6 => Self::Core,
            _ => return None,
        })
    }
}
