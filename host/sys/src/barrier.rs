//! A barrier that one thread makes for all threads of its process (`membarrier(2)`).
//!
//! Of two threads that each write a word and then read the other's, one has to see what the other wrote,
//! if both have a barrier between the two. Where one of them does so all the time and the other almost
//! never, the rare one can pay for both.

use rustix::thread::{MembarrierCommand, membarrier};

/// Whether [`everywhere`] works in this process. To be asked once at least before that.
#[must_use]
pub fn prepare() -> bool {
    membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

/// Every thread of this process passes a full barrier before this returns: what it wrote before that
/// is seen by the caller, and what the caller has written is seen by what it reads after that.
///
/// False if the kernel refuses, which it does not after [`prepare`] was true, unless the process has
/// confined itself since (`seccomp(2)`).
#[must_use]
pub fn everywhere() -> bool {
    membarrier(MembarrierCommand::PrivateExpedited).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_that_was_prepared_can_be_had() {
        // As old as Linux 4.14.
        assert!(prepare());
        assert!(everywhere());
    }
}
