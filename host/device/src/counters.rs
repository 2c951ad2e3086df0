//! What a port counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that many threads may bump.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of a port, as they grow.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        /// Counters of a port at one moment. They count since the process opened it.
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        pub struct PortCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> PortCounters {
                PortCounters { $($name: self.$name.get(),)* }
            }
        }

        impl PortCounters {
            /// Names and values, in the order of declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Packets handed to the network.
    sent_pkts,
    /// Packets that were not handed to the network, because it took no more.
    send_dropped,
    /// Packets that passed the ICRC.
    rcvd_pkts,
    /// Datagrams with a wrong ICRC.
    icrc_errors,
    /// Datagrams whose headers say something that does not exist.
    malformed,
    /// Packets for a queue pair that nobody has.
    unknown_qp,
    /// Packets to a multicast group that are not as such packets have to be.
    bad_multicast,
    /// Datagrams that were cut short by the network.
    truncated,
    /// Packets for another process on this address that came here and were passed on.
    forwarded,
    /// Packets that other processes passed on to this one.
    relayed,
}
