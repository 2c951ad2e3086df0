//! Sets of parameters under one name: what `VMA_SPEC` and `--profile` choose.
//!
//! A profile changes defaults. Whatever is set by name, in the environment or a file, wins over it.

/// A named set of parameters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Profile {
    /// The number that `VMA_SPEC` may have instead of a name.
    pub number: i64,
    /// What `VMA_SPEC` and `--profile` call it.
    pub name: &'static str,
    /// Which parameters it changes, and to what.
    pub values: &'static [(&'static str, &'static str)],
}

impl Profile {
    /// The profile of that number, if there is one.
    #[must_use]
    pub fn of(number: i64) -> Option<&'static Self> {
        PROFILES.iter().find(|profile| profile.number == number)
    }
}

/// Spin for as long as it takes, look at nothing else, and keep out of the way.
const LATENCY: &[(&str, &str)] = &[
    ("VMA_TX_WRE", "256"),
    ("VMA_TX_WRE_BATCHING", "4"),
    ("VMA_RX_WRE", "256"),
    ("VMA_RX_WRE_BATCHING", "4"),
    ("VMA_RX_POLL", "-1"),
    ("VMA_RX_PREFETCH_BYTES_BEFORE_POLL", "256"),
    ("VMA_SELECT_POLL", "-1"),
    ("VMA_AVOID_SYS_CALLS_ON_TCP_FD", "1"),
    ("VMA_GRO_STREAMS_MAX", "0"),
    ("VMA_CQ_KEEP_QP_FULL", "0"),
    ("VMA_THREAD_MODE", "0"),
    ("VMA_MEM_ALLOC_TYPE", "2"),
    ("VMA_INTERNAL_THREAD_AFFINITY", "0"),
    ("VMA_PROGRESS_ENGINE_INTERVAL", "100"),
    ("VMA_SELECT_POLL_OS_RATIO", "1"),
    ("VMA_SELECT_SKIP_OS", "1"),
    ("VMA_TCP_NODELAY", "1"),
    ("VMA_RING_DEV_MEM_TX", "16384"),
];

/// For programs whose threads each have connections that only send or only receive.
const MULTI_RING_LATENCY: &[(&str, &str)] = &[
    ("VMA_MEM_ALLOC_TYPE", "2"),
    ("VMA_SELECT_POLL", "-1"),
    ("VMA_RX_POLL", "-1"),
    ("VMA_RING_ALLOCATION_LOGIC_TX", "20"),
    ("VMA_RING_ALLOCATION_LOGIC_RX", "20"),
    ("VMA_SELECT_POLL_OS_RATIO", "0"),
    ("VMA_SELECT_SKIP_OS", "0"),
    ("VMA_RX_POLL_ON_TX_TCP", "1"),
    ("VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME", "1"),
];

/// Rings larger than what a processor keeps near itself, short spins.
const THROUGHPUT: &[(&str, &str)] = &[
    ("ADVERB_SOCKETS_RING_BYTES", "4194304"),
    ("ADVERB_SOCKETS_SPIN_USEC", "50"),
    ("ADVERB_SOCKETS_ADAPTIVE", "1"),
];

/// Sleep at once: processors are dearer than microseconds.
const FRUGAL: &[(&str, &str)] = &[
    ("VMA_RX_POLL", "0"),
    ("VMA_SELECT_POLL", "0"),
    ("ADVERB_SOCKETS_SPIN_USEC", "0"),
    ("ADVERB_SOCKETS_RING_BYTES", "65536"),
    ("ADVERB_SOCKETS_RING_BYTES_MAX", "65536"),
];

/// Frames of interfaces that a daemon owns.
const FRAMES: &[(&str, &str)] = &[("ADVERB_SOCKETS_TRANSPORT", "xdp")];

/// Every profile there is. Those that the manual does not describe are known by number and change
/// nothing.
pub(crate) const PROFILES: &[Profile] = &[
    Profile { number: 0, name: "none", values: &[] },
    Profile { number: 10, name: "ultra-latency", values: LATENCY },
    Profile { number: 15, name: "latency", values: LATENCY },
    Profile { number: 29, name: "29west", values: &[] },
    Profile { number: 554, name: "wombat_fh", values: &[] },
    Profile { number: 623, name: "mcd", values: &[] },
    Profile { number: 624, name: "mcd-irq", values: &[] },
    Profile { number: 784, name: "rti", values: &[] },
    Profile { number: 7750, name: "7750", values: &[] },
    Profile { number: 10_001, name: "multi_ring_latency", values: MULTI_RING_LATENCY },
    Profile { number: 10_002, name: "throughput", values: THROUGHPUT },
    Profile { number: 10_003, name: "frugal", values: FRUGAL },
    Profile { number: 10_004, name: "frames", values: FRAMES },
];

/// The same, as a parameter's choices.
pub(crate) const CHOICES: &[(i64, &str)] = &[
    (0, "none"),
    (10, "ultra-latency"),
    (15, "latency"),
    (29, "29west"),
    (554, "wombat_fh"),
    (623, "mcd"),
    (624, "mcd-irq"),
    (784, "rti"),
    (7750, "7750"),
    (10_001, "multi_ring_latency"),
    (10_002, "throughput"),
    (10_003, "frugal"),
    (10_004, "frames"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PARAMETERS;

    #[test]
    fn every_profile_sets_values_that_its_parameters_allow() {
        for profile in PROFILES {
            for (name, value) in profile.values {
                let parameter = PARAMETERS.iter().find(|p| p.name == *name).expect(name);
                assert!(parameter.parse(value).is_some(), "{} {name} {value}", profile.name);
            }
        }
    }

    #[test]
    fn every_choice_is_a_profile() {
        let profiles: alloc::vec::Vec<_> = PROFILES.iter().map(|p| (p.number, p.name)).collect();
        assert_eq!(profiles, CHOICES);
    }
}
