//! Tally of a run: how often each kind of event has happened.

use alloc::vec::Vec;

/// A row of counters, and what can be done with all of them.
macro_rules! tally {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Tally of a run.
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        pub struct Tally {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Tally {
            /// What has not happened at all.
            pub fn unseen(&self) -> Vec<&'static str> {
                let all = [$((stringify!($name), self.$name)),*];
                all.into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
            }
        }

        impl core::ops::AddAssign for Tally {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

tally! {
    /// Requests that have ended well.
    succeeded,
    /// Requests that have failed, or were flushed.
    failed,
    /// Messages that have arrived.
    received,
    /// Steps that processes have taken.
    steps,
    /// Messages that were taken eagerly without the general machinery.
    plain,
    /// Requests that were carried out on the peer's memory.
    direct,
    /// Messages whose bytes were fetched from where they were.
    fetched,
    /// Acknowledgements that waited for company.
    deferred,
    /// Connections that were made anew.
    again,
    /// Steps of a short way that were held against the general one.
    compared,
    /// Processes that were killed, half of a step done.
    killed,
    /// Devices that were closed and opened again, under the same numbers and keys.
    reopened,
    /// Processes that were stopped, half of a step done.
    stopped,
    /// Regions that were deregistered.
    deregistered,
    /// Requests that were refused as not granted.
    refused,
    /// Records that were written over.
    spoiled,
    /// Records that came twice.
    twice,
    /// Records that a process was killed in the midst of writing.
    torn,
    /// Rings that were given up because of nonsense.
    cut,
    /// Packets that got lost.
    lost,
    /// Packets that came twice.
    duplicated,
    /// Packets that were overtaken.
    reordered,
    /// Times that an acknowledgement was waited for in vain.
    timeouts,
    /// Times that a receiver was not ready.
    not_ready,
}
