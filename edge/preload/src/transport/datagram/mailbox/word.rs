//! The word of a mailbox: how far senders have got, and how many owners are asleep, which are changed in one step.

/// Cursors have so many bits; the others of the word are about sleepers.
const CURSOR_BITS: u32 = 42;
pub(super) const CURSOR_MASK: u64 = (1 << CURSOR_BITS) - 1;
pub(super) const SLEEPERS_SHIFT: u32 = 22;
pub(super) const SLEEPERS: u64 = 0x3ff;
/// In the word: one of the sleepers is a thread that reads the mailbox when the kernel brings something, and the number
/// of its sleep. A sender that has woken it may put more there.
pub(super) const KNOCKABLE: u64 = 1 << 10;
const SLEEP_SHIFT: u32 = 11;
pub(super) const SLEEP: u64 = 0x1ff << SLEEP_SHIFT;
/// In the word: a datagram for several mailboxes is about to be published, and no owner goes to sleep.
pub(super) const COMING: u64 = 1 << 20;
/// In the word: the socket is closed.
pub(super) const GONE: u64 = 1 << 21;
const _: () = assert!(
    GONE < 1 << SLEEPERS_SHIFT
        && (SLEEPERS | KNOCKABLE | SLEEP | COMING) + 1 == GONE
        && CURSOR_BITS + SLEEPERS_SHIFT == u64::BITS
);

/// A sleep: the mailbox, by its socket; what the word says, which has room for the end of its number; and the number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Sleep {
    mailbox: u64,
    bits: u64,
    number: u32,
}

impl Sleep {
    /// That of the only sleeper, if the word says so of the sleep of that number.
    pub(super) fn of_one(mailbox: u64, bits: u64, number: u32) -> Option<Self> {
        (bits == marked(number) | 1).then_some(Self { mailbox, bits, number })
    }

    /// The mailbox, by the kernel's number for its socket.
    pub(crate) fn mailbox(self) -> u64 {
        self.mailbox
    }

    /// Whether that is what a word says, besides how far senders have got.
    pub(super) fn is(self, word: u64) -> bool {
        word & (GONE | SLEEPERS | KNOCKABLE | SLEEP) == self.bits
    }

    /// The lower part of the word.
    pub(super) fn bits(self) -> u64 {
        self.bits
    }
}

/// What the word has of the sleep of that number.
pub(super) fn marked(number: u32) -> u64 {
    KNOCKABLE | u64::from(number) << SLEEP_SHIFT & SLEEP
}
