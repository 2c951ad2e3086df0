//! Every parameter there is: those of the manual, those its code has besides, and ours.
//!
//! Where the manual's text and its banner disagree about a default, the banner is right, because it
//! is what the code printed. What a parameter does here is in its last column: a row may say
//! *active* only if a test can tell the difference.

use crate::parameter::Default::{Number, Text};
use crate::parameter::Effect::{Active, Approximated, None};
use crate::parameter::{Default, Effect, Kind, Parameter};
use crate::profile::CHOICES;

const fn row(
    name: &'static str,
    label: &'static str,
    kind: Kind,
    default: Default,
    effect: Effect,
) -> Parameter {
    Parameter { name, label, kind, default, effect }
}

/// Every parameter there is, in the order of the banner.
#[rustfmt::skip]
pub const PARAMETERS: &[Parameter] = &[
    row("VMA_TRACELEVEL", "Log Level", Kind::Choice(LEVELS), Number(3), Active),
    row("VMA_LOG_DETAILS", "Log Details", Kind::Integer(0, 3), Number(0), Active),
    row("VMA_LOG_COLORS", "Log Colors", Kind::Flag, Number(1), Active),
    row("VMA_LOG_FILE", "Log File", Kind::Text, Text(""), Active),
    row("VMA_STATS_FILE", "Stats File", Kind::Text, Text(""), Active),
    row("VMA_STATS_SHMEM_DIR", "Stats shared memory directory", Kind::Text, Text("/tmp/"), Active),
    row("VMA_VMAD_NOTIFY_DIR", "VMAD output directory", Kind::Text, Text("/tmp/vma"), None("the daemon finds programs by itself")),
    row("VMA_STATS_FD_NUM", "Stats FD Num (max)", Kind::Integer(0, 1024), Number(100), Approximated("where it is set: how many sockets of a program `adverb sockets stat` shows")),
    row("VMA_CONFIG_FILE", "Conf File", Kind::Text, Text("/etc/libvma.conf"), Active),
    row("VMA_APPLICATION_ID", "Application ID", Kind::Text, Text("VMA_DEFAULT_APPLICATION_ID"), Active),
    row("VMA_CPU_USAGE_STATS", "Polling CPU usage", Kind::Flag, Number(0), Active),
    row("VMA_HANDLE_SIGINTR", "SigIntr Ctrl-C Handle", Kind::Flag, Number(0), None("nothing has to be cleaned up at the end")),
    row("VMA_HANDLE_SIGSEGV", "SegFault Backtrace", Kind::Flag, Number(0), Active),
    row("VMA_RING_ALLOCATION_LOGIC_TX", "Ring allocation logic TX", Kind::Choice(RING_LOGIC), Number(0), None("every connection has rings of its own")),
    row("VMA_RING_ALLOCATION_LOGIC_RX", "Ring allocation logic RX", Kind::Choice(RING_LOGIC), Number(0), Approximated("which sockets are polled together; memory is shared by no two connections")),
    row("VMA_RING_MIGRATION_RATIO_TX", "Ring migration ratio TX", Kind::Integer(-1, 100_000_000), Number(100), None("what a socket sends goes into its peer's memory, and no two share that: there is no ring to leave")),
    row("VMA_RING_MIGRATION_RATIO_RX", "Ring migration ratio RX", Kind::Integer(-1, 100_000_000), Number(100), None("the ring of a socket says which are polled together, and the program knows its descriptor: it does not change when threads do")),
    row("VMA_RING_LIMIT_PER_INTERFACE", "Ring limit per interface", Kind::Integer(0, 1_000_000), Number(0), Approximated("for all interfaces together")),
    row("VMA_RING_DEV_MEM_TX", "Ring On Device Memory TX", Kind::Integer(0, 262_144), Number(0), None("no hardware queue")),
    row("VMA_TCP_MAX_SYN_RATE", "TCP max syn rate", Kind::Integer(0, 100_000), Number(0), None("the kernel sets up connections")),
    row("VMA_TX_SEGS_TCP", "Tx Mem Segs TCP", Kind::Integer(1, 100_000_000), Number(1_000_000), None("no segments")),
    row("VMA_TX_BUFS", "Tx Mem Bufs", Kind::Integer(1, 100_000_000), Number(200_000), None("rings are sized by ADVERB_SOCKETS_RING_BYTES")),
    row("VMA_TX_WRE", "Tx QP WRE", Kind::Integer(1, 1_000_000), Number(2048), None("no hardware queue")),
    row("VMA_TX_WRE_BATCHING", "Tx QP WRE Batching", Kind::Integer(1, 64), Number(64), None("no hardware queue")),
    row("VMA_TX_MAX_INLINE", "Tx Max QP INLINE", Kind::Integer(0, 1000), Number(204), None("no hardware queue")),
    row("VMA_TX_MC_LOOPBACK", "Tx MC Loopback", Kind::Flag, Number(1), Active),
    row("VMA_TX_NONBLOCKED_EAGAINS", "Tx non-blocked eagains", Kind::Flag, Number(0), Approximated("of datagrams to one address, by mailboxes: the kernel drops in silence")),
    row("VMA_TX_PREFETCH_BYTES", "Tx Prefetch Bytes", Kind::Integer(0, 65_536), Number(256), None("not needed")),
    row("VMA_RX_BUFS", "Rx Mem Bufs", Kind::Integer(1, 100_000_000), Number(200_000), None("rings are sized by ADVERB_SOCKETS_RING_BYTES")),
    row("VMA_RX_WRE", "Rx QP WRE", Kind::Integer(1, 1_000_000), Number(16_000), None("no hardware queue")),
    row("VMA_RX_WRE_BATCHING", "Rx QP WRE Batching", Kind::Integer(1, 1024), Number(64), None("no hardware queue")),
    row("VMA_RX_BYTES_MIN", "Rx Byte Min Limit", Kind::Integer(0, 1_073_741_824), Number(65_536), Approximated("where it is set: by default SO_RCVBUF is what the program says")),
    row("VMA_RX_POLL", "Rx Poll Loops", Kind::Integer(-1, 100_000_000), Number(100_000), Approximated("loops; unless set by name, the time is bounded by ADVERB_SOCKETS_SPIN_USEC")),
    row("VMA_RX_POLL_INIT", "Rx Poll Init Loops", Kind::Integer(-1, 100_000_000), Number(0), Approximated("where it is set, of UDP sockets that have joined no group; they spin as others otherwise")),
    row("VMA_RX_UDP_POLL_OS_RATIO", "Rx UDP Poll OS Ratio", Kind::Integer(0, 1_000_000), Number(100), Approximated("where it is set: looks at the mailbox for each look at the kernel, while a call spins; 0 means the default")),
    row("VMA_HW_TS_CONVERSION", "HW TS Conversion", Kind::Integer(0, 4), Number(3), None("there are no hardware clocks, and software time stamps need no conversion")),
    row("VMA_RX_POLL_YIELD", "Rx Poll Yield", Kind::Flag, Number(0), Active),
    row("VMA_RX_PREFETCH_BYTES", "Rx Prefetch Bytes", Kind::Integer(32, 65_536), Number(256), None("not needed")),
    row("VMA_RX_PREFETCH_BYTES_BEFORE_POLL", "Rx Prefetch Bytes Before Poll", Kind::Integer(0, 65_536), Number(0), None("not needed")),
    row("VMA_RX_CQ_DRAIN_RATE_NSEC", "Rx CQ Drain Rate", Kind::Integer(0, 1_000_000_000), Number(0), None("no hardware queue")),
    row("VMA_RX_POLL_ON_TX_TCP", "Rx Poll On Tx TCP", Kind::Flag, Number(0), None("nothing to poll for")),
    row("VMA_GRO_STREAMS_MAX", "GRO max streams", Kind::Integer(0, 1_000_000), Number(32), None("the kernel does it")),
    row("VMA_TCP_3T_RULES", "TCP 3T rules", Kind::Flag, Number(0), None("no flow steering")),
    row("VMA_UDP_3T_RULES", "UDP 3T rules", Kind::Flag, Number(1), None("no flow steering")),
    row("VMA_ETH_MC_L2_ONLY_RULES", "ETH MC L2 only rules", Kind::Flag, Number(0), None("no flow steering")),
    row("VMA_MC_FORCE_FLOWTAG", "Force Flowtag for MC", Kind::Flag, Number(0), None("no flow steering")),
    row("VMA_SELECT_POLL", "Select Poll (usec)", Kind::Integer(-1, 100_000_000), Number(100_000), Approximated("unless set by name, bounded by ADVERB_SOCKETS_SPIN_USEC")),
    row("VMA_SELECT_POLL_OS_FORCE", "Select Poll OS Force", Kind::Flag, Number(0), None("the kernel is always looked at")),
    row("VMA_SELECT_POLL_OS_RATIO", "Select Poll OS Ratio", Kind::Integer(0, 1_000_000), Number(10), Approximated("looks at the rings for each look at the kernel; 0 means the default")),
    row("VMA_SELECT_SKIP_OS", "Select Skip OS", Kind::Integer(0, 10_000), Number(4), Approximated("calls that found a ring ready for each look at the kernel")),
    row("VMA_PROGRESS_ENGINE_INTERVAL", "CQ Drain Interval (msec)", Kind::Integer(0, 1_000_000), Number(10), None("nothing has to be drained")),
    row("VMA_PROGRESS_ENGINE_WCE_MAX", "CQ Drain WCE (max)", Kind::Integer(0, 1_000_000), Number(10_000), None("nothing has to be drained")),
    row("VMA_CQ_MODERATION_ENABLE", "CQ Interrupts Moderation", Kind::Flag, Number(1), None("no interrupts")),
    row("VMA_CQ_MODERATION_COUNT", "CQ Moderation Count", Kind::Integer(0, 1_000_000), Number(48), None("no interrupts")),
    row("VMA_CQ_MODERATION_PERIOD_USEC", "CQ Moderation Period (usec)", Kind::Integer(0, 1_000_000), Number(50), None("no interrupts")),
    row("VMA_CQ_AIM_MAX_COUNT", "CQ AIM Max Count", Kind::Integer(0, 1_000_000), Number(560), None("no interrupts")),
    row("VMA_CQ_AIM_MAX_PERIOD_USEC", "CQ AIM Max Period (usec)", Kind::Integer(0, 1_000_000), Number(250), None("no interrupts")),
    row("VMA_CQ_AIM_INTERVAL_MSEC", "CQ AIM Interval (msec)", Kind::Integer(0, 1_000_000), Number(250), None("no interrupts")),
    row("VMA_CQ_AIM_INTERRUPTS_RATE_PER_SEC", "CQ AIM Interrupts Rate (per sec)", Kind::Integer(0, 100_000_000), Number(5000), None("no interrupts")),
    row("VMA_CQ_POLL_BATCH_MAX", "CQ Poll Batch (max)", Kind::Integer(1, 128), Number(16), None("no hardware queue")),
    row("VMA_CQ_KEEP_QP_FULL", "CQ Keeps QP Full", Kind::Flag, Number(1), None("no hardware queue")),
    row("VMA_QP_COMPENSATION_LEVEL", "QP Compensation Level", Kind::Integer(1, 1_000_000), Number(256), None("no hardware queue")),
    row("VMA_OFFLOADED_SOCKETS", "Offloaded Sockets", Kind::Flag, Number(1), Active),
    row("VMA_TIMER_RESOLUTION_MSEC", "Timer Resolution (msec)", Kind::Integer(1, 1_000_000), Number(10), None("nothing wakes at intervals: calls do what is due, and the thread that carries frames wakes when something is")),
    row("VMA_TCP_TIMER_RESOLUTION_MSEC", "TCP Timer Resolution (msec)", Kind::Integer(1, 1_000_000), Number(100), None("the kernel keeps TCP's timers; those of frames know no intervals")),
    row("VMA_TCP_CTL_THREAD", "TCP control thread", Kind::Integer(0, 2), Number(0), None("the kernel makes connections")),
    row("VMA_TCP_TIMESTAMP_OPTION", "TCP timestamp option", Kind::Integer(0, 2), Number(0), None("the kernel sets up connections")),
    row("VMA_TCP_NODELAY", "TCP nodelay", Kind::Flag, Number(0), Active),
    row("VMA_TCP_QUICKACK", "TCP quickack", Kind::Flag, Number(0), Approximated("set again by each call that receives through the kernel, which forgets it; over frames each segment is acknowledged at once; rings acknowledge nothing")),
    row("VMA_TCP_CC_ALGO", "TCP CC algorithm", Kind::Choice(CONGESTION), Number(0), Approximated("where it is set: the kernel's reno, or cubic, also over frames; there 2 means none, whatever TCP_CONGESTION says. With another value TCP_CONGESTION's reno and cubic are heeded over frames, and other names count as cubic")),
    row("VMA_EXCEPTION_HANDLING", "Exception handling mode", Kind::Choice(EXCEPTIONS), Number(-1), None("what cannot be accelerated always goes to the kernel")),
    row("VMA_AVOID_SYS_CALLS_ON_TCP_FD", "Avoid sys-calls on tcp fd", Kind::Flag, Number(0), None("options go to the kernel")),
    row("VMA_ALLOW_PRIVILEGED_SOCK_OPT", "Allow privileged sock opt", Kind::Flag, Number(1), None("options go to the kernel")),
    row("VMA_WAIT_AFTER_JOIN_MSEC", "Delay after join (msec)", Kind::Integer(0, 1_000_000), Number(0), None("the kernel joins groups")),
    row("VMA_INTERNAL_THREAD_AFFINITY", "Internal Thread Affinity", Kind::Processors, Text("-1"), Approximated("of the thread that carries TCP by frames while none of the program's is in a call; there is no other")),
    row("VMA_INTERNAL_THREAD_CPUSET", "Internal Thread Cpuset", Kind::Text, Text(""), Approximated("of the thread that carries TCP by frames while none of the program's is in a call; there is no other")),
    row("VMA_INTERNAL_THREAD_ARM_CQ", "Internal Thread Arm CQ", Kind::Flag, Number(0), None("no queue of completions: a sleeper is woken by its peer, and the thread that carries frames by packets")),
    row("VMA_INTERNAL_THREAD_TCP_TIMER_HANDLING", "Internal Thread TCP Handling", Kind::Choice(TIMER_HANDLING), Number(0), None("the kernel keeps TCP's timers; those of frames are served by whichever thread is there first")),
    row("VMA_THREAD_MODE", "Thread mode", Kind::Choice(THREADS), Number(1), None("always ready for threads")),
    row("VMA_BUFFER_BATCHING_MODE", "Buffer batching mode", Kind::Choice(BATCHING), Number(1), None("no buffers")),
    row("VMA_MEM_ALLOC_TYPE", "Mem Allocate type", Kind::Choice(MEMORY), Number(1), None("rings are shared pages")),
    row("VMA_HUGETBL", "Hugetlb", Kind::Flag, Number(0), None("replaced by VMA_MEM_ALLOC_TYPE")),
    row("VMA_NEIGH_UC_ARP_QUATA", "Num of UC ARPs", Kind::Integer(0, 1000), Number(3), None("the kernel resolves addresses")),
    row("VMA_NEIGH_UC_ARP_DELAY_MSEC", "UC ARP delay (msec)", Kind::Integer(0, 10_000_000), Number(10_000), None("the kernel resolves addresses")),
    row("VMA_NEIGH_NUM_ERR_RETRIES", "Num of neigh restart retries", Kind::Integer(0, 1000), Number(1), None("the kernel resolves addresses")),
    row("VMA_IPOIB", "IPOIB support", Kind::Flag, Number(1), None("the kernel knows its links")),
    row("VMA_SOCKETXTREME", "SocketXtreme mode", Kind::Flag, Number(0), Active),
    row("VMA_BF", "BF (Blue Flame)", Kind::Flag, Number(1), None("no hardware queue")),
    row("VMA_FORK", "fork() support", Kind::Flag, Number(1), None("always there")),
    row("VMA_CLOSE_ON_DUP2", "close on dup2()", Kind::Flag, Number(1), None("dup2 is always right")),
    row("VMA_MTU", "MTU", Kind::Integer(0, 65_536), Number(0), Approximated("of TCP, where VMA_MSS is not set: segments are 40 bytes shorter; the kernel cuts datagrams")),
    row("VMA_MSS", "MSS", Kind::Integer(0, 65_536), Number(0), Approximated("of what the kernel carries: from 88 to 32,767, and no more than the way takes")),
    row("VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME", "Dummy send on getsockname()", Kind::Flag, Number(0), Active),
    row("VMA_SPEC", "Spec", Kind::Choice(CHOICES), Number(0), Active),
    row("VMA_SPEC_PARAM1", "Spec param 1", Kind::Text, Text(""), None("no profile has parameters")),
    row("VMA_SPEC_PARAM2", "Spec param 2", Kind::Text, Text(""), None("no profile has parameters")),
    row("VMA_DEFERRED_CLOSE", "Deferred close", Kind::Flag, Number(0), None("the kernel closes")),
    row("VMA_TIME_MEASURE_NUM_SAMPLES", "Time measure samples", Kind::Integer(0, 100_000_000), Number(10_000), None("not measured")),
    row("VMA_TIME_MEASURE_DUMP_FILE", "Time measure dump file", Kind::Text, Text("/tmp/VMA_inst.dump"), None("not measured")),
    row("VMA_NETLINK_TIMER", "Netlink timer (msec)", Kind::Integer(0, 1_000_000), Number(10_000), None("no routes are cached")),
    row("VMA_RX_SKIP_OS", "Rx skip OS", Kind::Integer(0, 1_000_000), Number(100), None("replaced by VMA_RX_UDP_POLL_OS_RATIO")),
    row("ADVERB_SOCKETS_PROFILE", "Profile", Kind::Choice(CHOICES), Number(0), Active),
    row("ADVERB_SOCKETS_TRANSPORT", "Transport", Kind::Choice(TRANSPORTS), Number(0), Active),
    row("ADVERB_SOCKETS_CONFIG", "TOML file", Kind::Text, Text(""), Active),
    row("ADVERB_SOCKETS_SPIN_USEC", "Spin at most (usec)", Kind::Integer(0, 100_000_000), Number(100), Active),
    row("ADVERB_SOCKETS_ADAPTIVE", "Adaptive spinning", Kind::Flag, Number(1), Active),
    row("ADVERB_SOCKETS_RING_BYTES", "Ring bytes each way", Kind::Integer(4096, 67_108_864), Number(262_144), Active),
    row("ADVERB_SOCKETS_RING_BYTES_MAX", "Ring bytes where it stays full", Kind::Integer(4096, 67_108_864), Number(4_194_304), Active),
    row("ADVERB_SOCKETS_ACROSS", "Across network namespaces", Kind::Flag, Number(1), Active),
    row("ADVERB_SOCKETS_QUIET", "No banner", Kind::Flag, Number(0), Active),
    row("ADVERB_SOCKETS_EXPLAIN", "Explain each socket", Kind::Flag, Number(0), Active),
    row("ADVERB_SOCKETS_SHM_DIR", "Rendezvous directory", Kind::Text, Text(""), Active),
];

const LEVELS: &[(i64, &str)] = &[
    (-2, "NONE"),
    (0, "PANIC"),
    (1, "ERROR"),
    (2, "WARNING"),
    (2, "WARN"),
    (3, "INFO"),
    (3, "INFORMATION"),
    (4, "DETAILS"),
    (5, "DEBUG"),
    (6, "FINE"),
    (6, "FUNC"),
    (7, "FINER"),
    (7, "FUNC_ALL"),
    (8, "ALL"),
];

const RING_LOGIC: &[(i64, &str)] = &[
    (0, "Ring per interface"),
    (1, "Ring per ip"),
    (10, "Ring per socket"),
    (20, "Ring per thread"),
    (30, "Ring per core"),
    (31, "Ring per core - attach threads"),
];

const CONGESTION: &[(i64, &str)] = &[(0, "LWIP"), (1, "CUBIC"), (2, "NONE")];

const EXCEPTIONS: &[(i64, &str)] = &[
    (-1, "just log debug message"),
    (0, "log debug and un-offload"),
    (1, "log error and un-offload"),
    (2, "log error and return error"),
    (3, "log error and abort"),
];

const TIMER_HANDLING: &[(i64, &str)] = &[(0, "deferred"), (1, "immediate")];

const THREADS: &[(i64, &str)] = &[
    (0, "Single"),
    (1, "Multi spin lock"),
    (2, "Multi mutex lock"),
    (3, "More threads than cores"),
];

const BATCHING: &[(i64, &str)] =
    &[(0, "No batching"), (1, "Batch and reclaim buffers"), (2, "Batch without reclaim")];

const MEMORY: &[(i64, &str)] = &[(0, "Malloc"), (1, "Contig Pages"), (2, "Huge Pages")];

const TRANSPORTS: &[(i64, &str)] = &[(0, "best"), (1, "os"), (2, "spin"), (3, "shm"), (4, "xdp")];

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_defaults_are_allowed() {
        let mut names = BTreeSet::new();
        for parameter in PARAMETERS {
            assert!(names.insert(parameter.name), "{} twice", parameter.name);
            let default = alloc::format!("{}", parameter.default());
            assert_eq!(parameter.parse(&default), Some(parameter.default()), "{}", parameter.name);
        }
    }

    /// The documented parameters whose defaults people rely on, typed in by hand from the manual's
    /// banner.
    #[test]
    fn defaults_are_those_of_the_manuals_banner() {
        for (name, default) in [
            ("VMA_TRACELEVEL", "3"),
            ("VMA_STATS_SHMEM_DIR", "/tmp/"),
            ("VMA_STATS_FD_NUM", "100"),
            ("VMA_CONFIG_FILE", "/etc/libvma.conf"),
            ("VMA_TX_WRE", "2048"),
            ("VMA_RX_POLL", "100000"),
            ("VMA_RX_UDP_POLL_OS_RATIO", "100"),
            ("VMA_SELECT_POLL", "100000"),
            ("VMA_PROGRESS_ENGINE_WCE_MAX", "10000"),
            ("VMA_TCP_NODELAY", "0"),
            ("VMA_EXCEPTION_HANDLING", "-1"),
            ("VMA_MEM_ALLOC_TYPE", "1"),
        ] {
            let parameter = PARAMETERS.iter().find(|p| p.name == name).expect(name);
            assert_eq!(alloc::format!("{}", parameter.default()), default, "{name}");
        }
    }

    #[test]
    fn what_is_not_active_says_why() {
        for parameter in PARAMETERS {
            let silent = parameter.effect.note().is_empty();
            assert_eq!(silent, parameter.effect == Active, "{}", parameter.name);
        }
    }
}
