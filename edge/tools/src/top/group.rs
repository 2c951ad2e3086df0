//! What `adverb top` shows: groups of queue pairs or sockets, and what each has counted.

use std::time::Duration;

use serde::Serialize;

use crate::bench::stats;

/// What is counted of everything that moves packets.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub(crate) struct Flow {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) dropped: u64,
    pub(crate) resent: u64,
}

/// A device in a process, or all sockets of a process.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(crate) struct Group {
    pub(crate) pid: u32,
    pub(crate) command: String,
    /// The device, or `"sockets"`.
    pub(crate) place: String,
    /// `false`: it did not answer, and the numbers may be old.
    pub(crate) fresh: bool,
    #[serde(flatten)]
    pub(crate) flow: Flow,
    pub(crate) members: Vec<Member>,
    /// Members that are not listed.
    pub(crate) more: u64,
    /// Since the look before.
    pub(crate) sent_per_s: u64,
    pub(crate) received_per_s: u64,
}

/// A queue pair or a socket.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) state: String,
    /// Empty as long as there is none.
    pub(crate) path: String,
    #[serde(flatten)]
    pub(crate) flow: Flow,
    pub(crate) sent_per_s: u64,
    pub(crate) received_per_s: u64,
}

impl Flow {
    /// What went and came in a second.
    pub(crate) fn since(self, before: Self, elapsed: Duration) -> (u64, u64) {
        let rate = |now: u64, then: u64| stats::per_second(now.saturating_sub(then), elapsed);
        (rate(self.sent, before.sent), rate(self.received, before.received))
    }
}

/// Another process chose it: nothing in it moves the cursor.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
