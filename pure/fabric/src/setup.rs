//! Set-up of a pair of connected nodes.

use crate::link::Link;
use adverb_engine::{Access, AckTimeout, QpType, RetryCount, RnrRetry};
use adverb_wire::{PathMtu, Psn, Qkey, RnrTimer};

/// Everything that can be chosen about a pair; [`Setup::default`] is a good network and a start
/// shortly before the PSN wraps.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Types of the queue pairs of A and of B.
    pub kinds: [QpType; 2],
    /// Receives are those of a shared queue.
    pub shared_receives: bool,
    /// The queue pairs are left in INIT.
    pub in_init: bool,
    /// The key of both queue pairs, for datagrams.
    pub qkey: Qkey,
    /// Both sides cut messages into parts of this size.
    pub path_mtu: PathMtu,
    /// Addresses are IPv6's.
    pub v6: bool,
    /// PSN of the first packet of A and of B.
    pub first_psns: [Psn; 2],
    /// The way from A to B, and back.
    pub links: [Link; 2],
    /// Requests that a send queue holds.
    pub send_capacity: u32,
    /// How long to wait for acknowledgements.
    pub timeout: AckTimeout,
    /// How often to send again.
    pub retry_count: RetryCount,
    /// How often to send again when there is no receive.
    pub rnr_retry: RnrRetry,
    /// How long the peer is told to wait for one.
    pub rnr_timer: RnrTimer,
    /// READs and atomics under way at once, of each side.
    pub max_rd_atomic: u8,
    /// READs and atomics that each side serves at once.
    pub max_dest_rd_atomic: u8,
    /// Messages are cut into packets of one length, that travel together.
    pub trains: bool,
    /// Requests that come early are kept, by A and by B.
    pub keeps_early: [bool; 2],
    /// Packets under way at once.
    pub window_packets: u32,
    /// The same at first, if something is known of the path.
    pub window_first: Option<u32>,
    /// What the queue pairs allow their peers.
    pub qp_access: Access,
    /// What the regions allow.
    pub region_access: Access,
    /// Length of the one region that each node has at first, in bytes.
    pub region_len: usize,
    /// Packets that a node can emit at a time; more have to wait until these have left.
    pub room: usize,
    /// How long acknowledgements are held back, to cover more at once.
    pub ack_delay_ns: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            kinds: [QpType::Rc; 2],
            shared_receives: false,
            in_init: false,
            qkey: Qkey(0x1111_1111),
            path_mtu: PathMtu::B1024,
            v6: false,
            first_psns: [Psn::new(0xff_fffe), Psn::new(0xff_fffd)],
            links: [Link::default(), Link::default()],
            send_capacity: 64,
            timeout: AckTimeout::from_exponent(8).expect("8 fits five bits"),
            retry_count: RetryCount::MAX,
            rnr_retry: RnrRetry::FOREVER,
            rnr_timer: RnrTimer::new(12),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            trains: false,
            keeps_early: [false; 2],
            window_packets: 64,
            window_first: None,
            qp_access: Access::ALL,
            region_access: Access::ALL,
            region_len: 16 << 10,
            room: 16,
            ack_delay_ns: 0,
        }
    }
}

impl Setup {
    /// A pair of this type, and good otherwise.
    pub fn of(kind: QpType) -> Self {
        Self { kinds: [kind; 2], ..Self::default() }
    }

    /// A pair over an extended reliable connection from A to B.
    pub fn xrc() -> Self {
        Self { kinds: [QpType::XrcInitiator, QpType::XrcTarget], ..Self::default() }
    }
}
