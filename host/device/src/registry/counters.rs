//! Counters of a port.

use adverb_engine::QpCounters;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that many threads may bump.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// As [`Counter::add`], where a lock sees to it that no other thread adds to it.
    pub(crate) fn add_alone(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Ordering::Relaxed);
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
        #[non_exhaustive]
        pub struct PortCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> PortCounters {
                PortCounters { $($name: self.$name.get(),)* }
            }
        }

        impl PortCounters {
            /// How many there are.
            pub(crate) const COUNT: usize = [$(stringify!($name)),*].len();

            pub(crate) const fn to_array(self) -> [u64; Self::COUNT] {
                [$(self.$name),*]
            }

            pub(crate) const fn from_array(array: [u64; Self::COUNT]) -> Self {
                let [$($name),*] = array;
                Self { $($name),* }
            }

            /// Names and values, in the order of declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

impl std::ops::AddAssign for PortCounters {
    fn add_assign(&mut self, other: Self) {
        let (mut sum, other) = (self.to_array(), other.to_array());
        sum.iter_mut().zip(other).for_each(|(sum, more)| *sum = sum.wrapping_add(more));
        *self = Self::from_array(sum);
    }
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
    /// Packets for a queue pair that does not exist.
    unknown_qp,
    /// Management datagrams that nothing took: none of the host manages connections, they had no such form, or too
    /// many waited.
    dropped_management,
    /// Packets to a multicast group that are not as such packets have to be.
    bad_multicast,
    /// Datagrams that were cut short by the network.
    truncated,
    /// Packets for another process on this address that came here and were passed on.
    forwarded,
    /// Packets that other processes passed on to this one.
    relayed,
    /// Processes of this host that posed as another one's device, or asked for too many shared-memory links.
    refused_neighbours,
    /// Shared-memory links from other processes of this host that were cut, because what they wrote makes no sense.
    broken_links,
    /// Places in the registry where other processes of this user had written nonsense, and that were put right.
    registry_repairs,
    /// Completion queues that have overrun.
    num_cqovf,
    /// Asynchronous events that found their queue full.
    num_eqovf,
    /// Times the interface went down while a program listened for asynchronous events.
    link_downed,
}

/// A device's counters under the names of `diag_counters`, in their order: those of its queue pairs,
/// and of the queues that the device itself fills.
pub fn diag_counters(port: &PortCounters, qps: &QpCounters) -> Vec<(&'static str, u64)> {
    let overflows = [("num_cqovf", port.num_cqovf), ("num_eqovf", port.num_eqovf)];
    // Between those of the receive queues and those of the send queues.
    let all = qps.diagnostics();
    let (first, last) = all.split_at(all.partition_point(|(name, _)| name.starts_with("rq_")));
    [first, &overflows, last].concat()
}

/// A device's counters under the names of rxe's `hw_counters`, and the few that it lacks after them.
pub fn hw_counters(port: &PortCounters, qps: &QpCounters) -> Vec<(&'static str, u64)> {
    let all = qps.hardware();
    let place = all.iter().position(|(name, _)| *name == "rdma_sends").unwrap_or(all.len());
    let (first, last) = all.split_at(place);
    [first, &[("link_downed", port.link_downed)], last].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_own_counts_stand_where_drivers_have_them() {
        let port =
            PortCounters { num_cqovf: 1, num_eqovf: 2, link_downed: 3, ..Default::default() };
        let qps = QpCounters::default();
        let around = |list: Vec<(&'static str, u64)>, name: &str| {
            let at = list.iter().position(|(known, _)| *known == name).unwrap();
            (list[at - 1].0, list[at], list[at + 1].0)
        };
        let diag = diag_counters(&port, &qps);
        assert_eq!(diag.len(), 37);
        let (before, found, after) = around(diag.clone(), "num_cqovf");
        assert_eq!((before, found, after), ("rq_num_rsync", ("num_cqovf", 1), "num_eqovf"));
        assert_eq!(around(diag, "num_eqovf").2, "sq_num_lle");
        let (before, found, after) = around(hw_counters(&port, &qps), "link_downed");
        assert_eq!((before, found, after), ("send_err", ("link_downed", 3), "rdma_sends"));
    }
}
