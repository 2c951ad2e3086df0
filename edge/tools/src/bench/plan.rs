//! What a run measures: from the command line to a list of jobs, each with the floor it stands on.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::floor::{Exchange, FloorSpec};
use super::measure::{Layout, Stream, stride};
use super::pace::Limit;
use super::report::Path;
use crate::args::{BenchArgs, Meeting, Op, Test};
use crate::failure::Failure;

/// Everything the client will do.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// In the order in which they run and are shown; `None`: the main figures of each path.
    jobs: Option<Vec<Job>>,
    /// How often the whole list is run.
    pub(crate) rounds: u32,
    /// No job has another round if the run would then take longer, were all as slow.
    pub(crate) budget: Option<Duration>,
    /// How long each job goes on.
    pub(crate) limit: Limit,
    /// Measure floors.
    pub(crate) floors: bool,
    /// Bind both ends to a processor each.
    pub(crate) pin: bool,
    /// The rounds of neighbours that share memory, if they follow those over UDP.
    neighbours: (u32, Option<Duration>, Limit),
    turn: Turn,
    /// What the queue pair is like.
    pub(crate) tuning: Tuning,
    /// How streams are posted.
    pub(crate) posting: Posting,
}

/// Where a run stands beside that of neighbours that share memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Turn {
    /// There is one run.
    Only,
    /// Theirs follows.
    Before,
    /// It is theirs.
    Neighbours,
}

/// One figure to find.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Job {
    /// What is done.
    pub(crate) op: Op,
    /// With messages of this length.
    pub(crate) bytes: u64,
    /// What is found out.
    pub(crate) quantity: Quantity,
    /// In whose memory.
    pub(crate) memory: Memory,
}

/// Whose memory it is that both ends have registered.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Memory {
    /// Allocated by the library: neighbours can map it.
    Library,
    /// The caller's own, from anywhere: neighbours cannot.
    Caller,
}

/// What is found out.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Quantity {
    /// Latency, from the post to the completion.
    Completion,
    /// Latency, half of a ping-pong.
    HalfRoundTrip,
    /// Bytes a second.
    Bandwidth(Buffers),
    /// Messages a second.
    Rate {
        /// Requests in one post.
        list: u32,
    },
}

/// Where the messages of a stream lie.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Buffers {
    /// Each in a place of its own, in turn.
    RoundRobin,
    /// All in the same place.
    One,
}

/// What the queue pair is like. The client sends this to the server.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Tuning {
    /// Path MTU, at most.
    pub(crate) mtu: u16,
    /// Requests in the send queue, at most.
    pub(crate) tx_depth: u32,
    /// Largest message that is copied into the request.
    pub(crate) inline_bytes: u32,
    /// Whose memory messages lie in.
    pub(crate) memory: Memory,
    /// What the queue pairs meet over.
    #[serde(default)]
    pub(crate) connector: Meeting,
    /// Traffic class of all packets, both ways.
    #[serde(default)]
    pub(crate) traffic_class: u8,
    /// How many routers they may pass; 0: as many as the system says.
    #[serde(default)]
    pub(crate) hop_limit: u8,
    /// Use of the registered memory.
    pub(crate) layout: Layout,
}

/// How streams are posted, as far as the user has said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posting {
    tx_depth: Option<u32>,
    list: u32,
    signal_every: Option<u32>,
}

impl Plan {
    /// Reads the command line.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`] if two options contradict each other.
    pub(crate) fn new(args: &BenchArgs) -> Result<Self, Failure> {
        let posting = Posting::new(args)?;
        if args.connector == Meeting::Cm && !args.connection.has_usual_path() {
            return Err(Failure::usage(
                "with --connector cm, MTU and hop limit are those of the path: leave out -m and --hop-limit",
            ));
        }
        let is_summary = is_summary(args);
        let sizes = sizes(args);
        let largest = sizes.iter().copied().max().unwrap_or(1);
        let largest = usize::try_from(largest).map_err(|_| Failure::usage("-s is too large"))?;
        let timed = args.iters.is_some() || args.duration.is_some();
        let tempo =
            |[rounds, quick_rounds]: [u32; 2], [budget, quick_budget]: [Duration; 2], limit| {
                let (usual, budget) =
                    if args.quick { (quick_rounds, quick_budget) } else { (rounds, budget) };
                let rounds = args.rounds.unwrap_or(if timed { 1 } else { usual });
                (rounds, (args.rounds.is_none() && !timed).then_some(budget), limit)
            };
        let limits = limit(args);
        let short = if timed { limits } else { Limit::time(NEIGHBOURS_TIME) };
        let usual = if is_summary { SUMMARY_ROUNDS } else { [ROUNDS; 2] };
        let (rounds, budget, limit) = tempo(usual, [BUDGET, QUICK_BUDGET], limits);
        let usual = if is_summary { SUMMARY_NEIGHBOURS_ROUNDS } else { NEIGHBOURS_ROUNDS };
        let neighbours = tempo(usual, NEIGHBOURS_BUDGETS, short);
        Ok(Self {
            jobs: (!is_summary).then(|| jobs(args, &sizes)),
            rounds,
            budget,
            limit,
            neighbours,
            turn: Turn::Only,
            floors: !args.no_floor,
            pin: !args.no_pin,
            tuning: Tuning {
                mtu: args.connection.mtu,
                tx_depth: args.tx_depth.unwrap_or(TX_DEPTH),
                inline_bytes: args.inline,
                memory: Memory::Library,
                connector: args.connector,
                traffic_class: args.connection.traffic_class,
                hop_limit: args.connection.hop_limit,
                layout: Layout::new(largest, args.rx_depth),
            },
            posting,
        })
    }

    /// The same for neighbours that share memory, when they follow those over UDP: what they do takes
    /// less time, and varies more from one moment to the next.
    pub(crate) fn of_neighbours(&self) -> Self {
        let (rounds, budget, limit) = self.neighbours;
        Self { rounds, budget, limit, turn: Turn::Neighbours, ..self.clone() }
    }

    /// The same over UDP, when those of neighbours follow.
    pub(crate) fn before_neighbours(&self) -> Self {
        Self { turn: Turn::Before, ..self.clone() }
    }

    /// It is worth while only between neighbours that share memory.
    pub(crate) fn is_of_neighbours(&self) -> bool {
        self.turn == Turn::Neighbours
    }

    /// Only the main figures are wanted, each as soon as it is known.
    pub(crate) const fn is_summary(&self) -> bool {
        self.jobs.is_none()
    }

    /// What there is to do on this way: only neighbours tell whose memory it is.
    pub(crate) fn jobs_on(&self, path: Path) -> Vec<Job> {
        let Some(jobs) = &self.jobs else {
            return summary(path);
        };
        let of_path = |job: &&Job| path == Path::Shm || job.memory == Memory::Library;
        jobs.iter().filter(of_path).copied().collect()
    }

    /// How often a job is run, and as how many of those what follows counts by its time.
    pub(crate) fn steps_on(&self, path: Path) -> (u32, u32) {
        let count = |path, rounds| {
            u32::try_from(self.jobs_on(path).len()).unwrap_or(u32::MAX).saturating_mul(rounds)
        };
        let (rounds, _, limit) = self.neighbours;
        let later = match (self.turn == Turn::Before, limit.duration, self.limit.duration) {
            (false, ..) => 0.0,
            (true, Some(theirs), Some(ours)) => theirs.div_duration_f64(ours),
            (true, ..) => 1.0,
        };
        let later = f64::from(count(Path::Shm, rounds)) * later;
        #[expect(clippy::as_conversions, reason = "an estimate, which saturates")]
        let later = later as u32;
        (count(path, self.rounds), later)
    }

    /// What the queue pair of a job is like.
    pub(crate) fn tuning(&self, memory: Memory) -> Tuning {
        Tuning { memory, ..self.tuning.clone() }
    }

    /// The stream that finds a bandwidth or a rate.
    pub(crate) fn stream(&self, job: Job) -> Stream {
        let bytes = usize::try_from(job.bytes).unwrap_or(usize::MAX);
        let blocks = match job.quantity {
            Quantity::Bandwidth(Buffers::RoundRobin) => self.tuning.layout.blocks(bytes),
            Quantity::Bandwidth(Buffers::One)
            | Quantity::Rate { .. }
            | Quantity::Completion
            | Quantity::HalfRoundTrip => 1,
        };
        let list = match job.quantity {
            Quantity::Rate { list } => list,
            Quantity::Bandwidth(_) | Quantity::Completion | Quantity::HalfRoundTrip => {
                self.posting.list
            }
        };
        let posting = Posting { list, ..self.posting };
        let depth = posting.depth(job.bytes);
        let signal_every = posting.signal_every(depth);
        Stream { op: job.op, bytes, blocks, depth, list, signal_every }
    }

    /// The floor that a job stands on, if the bytes go this way, and packets are as long as path MTU
    /// `mtu` says.
    pub(crate) fn floor(&self, job: Job, path: Path, mtu: u16) -> Option<FloorSpec> {
        self.floors.then(|| match path {
            Path::Shm => self.memory_floor(job),
            Path::Udp | Path::Local | Path::Hw => job.floor(mtu, self.stream(job).blocks),
        })
    }

    /// What two processes that share memory would have to do for the same: a message crosses once.
    fn memory_floor(&self, job: Job) -> FloorSpec {
        let Job { bytes, quantity, .. } = job;
        match quantity {
            Quantity::Completion | Quantity::HalfRoundTrip => FloorSpec::ShmPingpong { bytes },
            Quantity::Rate { list } if bytes <= RING_BYTES => FloorSpec::Ring { list },
            Quantity::Bandwidth(_) | Quantity::Rate { .. } => {
                let places = u32::try_from(self.stream(job).blocks).unwrap_or(1);
                FloorSpec::Memcpy { bytes, places }
            }
        }
    }
}

impl Tuning {
    /// Whether a server can follow it. Tunings come over the network.
    pub(crate) fn is_legal(&self) -> bool {
        matches!(self.mtu, 256 | 512 | 1024 | 2048 | 4096)
            && (1..=16384).contains(&self.tx_depth)
            && self.inline_bytes <= 1024
            && self.layout.is_legal()
    }
}

impl Job {
    /// Both are figures of one row of a table.
    pub(crate) fn is_in_row_of(self, other: Self) -> bool {
        let row = |job: Self| (job.op, job.bytes, job.memory, job.quantity.test());
        row(self) == row(other) && self.quantity.test() == Test::Latency
    }

    /// What plain sockets would have to do for the same.
    ///
    /// A message that fits one packet is compared with UDP, a longer one with TCP, since it would
    /// have to be cut, acknowledged and put together. A stream is compared with UDP datagrams of the
    /// length that ours have, which go round as much memory: `blocks` messages.
    fn floor(self, mtu: u16, blocks: usize) -> FloorSpec {
        let Self { op, bytes, quantity, memory: _ } = self;
        let exchange = match (quantity, op) {
            (Quantity::HalfRoundTrip, _) => Exchange { bytes, reply_bytes: bytes },
            (Quantity::Completion, Op::Send | Op::Write) => {
                Exchange { bytes, reply_bytes: ACK_BYTES }
            }
            (Quantity::Completion, Op::Read) => {
                Exchange { bytes: READ_REQUEST_BYTES, reply_bytes: bytes }
            }
            (Quantity::Bandwidth(_) | Quantity::Rate { .. }, _) => {
                let payload = u16::try_from(bytes).unwrap_or(u16::MAX).min(mtu);
                let packet_bytes = payload.next_multiple_of(4) + HEADER_BYTES;
                let all =
                    blocks.saturating_mul(stride(usize::try_from(bytes).unwrap_or(usize::MAX)));
                let all = if all > CACHED_BYTES { all } else { 0 };
                let memory_bytes = u64::try_from(all).unwrap_or(u64::MAX);
                return FloorSpec::UdpStream { packet_bytes, memory_bytes };
            }
        };
        if bytes <= u64::from(mtu) {
            FloorSpec::UdpPingpong(exchange)
        } else {
            FloorSpec::TcpPingpong(exchange)
        }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.quantity {
            Quantity::Completion => "completion",
            Quantity::HalfRoundTrip => "half round trip",
            Quantity::Bandwidth(Buffers::RoundRobin) => "bandwidth",
            Quantity::Bandwidth(Buffers::One) => "bandwidth, one buffer",
            Quantity::Rate { list: 1 } => "message rate",
            Quantity::Rate { .. } => "message rate, many in one post",
        };
        let whose = if self.memory == Memory::Caller { ", the caller's memory" } else { "" };
        write!(f, "{} {} bytes: {what}{whose}", self.op, self.bytes)
    }
}

impl Quantity {
    /// The test that it belongs to.
    pub(crate) const fn test(self) -> Test {
        match self {
            Self::Completion | Self::HalfRoundTrip => Test::Latency,
            Self::Bandwidth(_) => Test::Bandwidth,
            Self::Rate { .. } => Test::Rate,
        }
    }
}

impl Posting {
    fn new(args: &BenchArgs) -> Result<Self, Failure> {
        let list = args.post_list.unwrap_or(1);
        let posting = Self { tx_depth: args.tx_depth, list, signal_every: args.cq_mod };
        let depth = args.tx_depth.unwrap_or(TX_DEPTH);
        if list > depth {
            return Err(Failure::Usage(format!(
                "--post-list {list} does not fit --tx-depth {depth}: it must be 1 to {depth}"
            )));
        }
        let most = depth - list + 1;
        if let Some(every) = args.cq_mod.filter(|&every| every > most) {
            return Err(Failure::Usage(format!(
                "--cq-mod {every} would leave a full queue without a completion: with --tx-depth \
                 {depth} and --post-list {list} it must be 1 to {most}"
            )));
        }
        Ok(posting)
    }

    /// Requests in flight. Where the user has not said, long messages are fewer, so that the last
    /// ones do not outlast the test.
    fn depth(self, bytes: u64) -> u32 {
        self.tx_depth.unwrap_or_else(|| {
            let fitting = u32::try_from(IN_FLIGHT_BYTES / bytes.max(1)).unwrap_or(TX_DEPTH);
            let least = self.signal_every.unwrap_or(1) + self.list - 1;
            fitting.clamp(2, TX_DEPTH).max(least)
        })
    }

    /// Every so manyeth request is signaled: by default four times in a full queue.
    fn signal_every(self, depth: u32) -> u32 {
        self.signal_every.unwrap_or_else(|| (depth / 4).clamp(1, depth - self.list + 1))
    }
}

/// The user wants the main figures, and has not said which others.
fn is_summary(args: &BenchArgs) -> bool {
    let wants_data = args.json || args.csv || args.output.is_some();
    let wants_data = wants_data || args.svg.is_some() || args.html.is_some();
    let chooses = !(args.size.is_empty() && args.op.is_empty() && args.test.is_empty());
    let tunes = args.tx_depth.is_some() || args.post_list.is_some() || args.cq_mod.is_some();
    !(args.tables || args.all || wants_data || chooses || tunes)
}

/// The main figures of a path, in the order in which they are printed.
fn summary(path: Path) -> Vec<Job> {
    use Quantity::{Bandwidth, Completion, HalfRoundTrip, Rate};
    let job = |op, bytes, quantity| Job { op, bytes, quantity, memory: Memory::Library };
    let mut jobs = vec![
        job(Op::Send, RATE_BYTES, HalfRoundTrip),
        job(Op::Write, RATE_BYTES, HalfRoundTrip),
        job(Op::Read, RATE_BYTES, Completion),
    ];
    if path == Path::Shm {
        let long = job(Op::Write, CALLER_BYTES_MIN, Bandwidth(Buffers::RoundRobin));
        jobs.extend([
            job(Op::Send, RATE_BYTES, Rate { list: 1 }),
            job(Op::Send, RATE_BYTES, Rate { list: RATE_LIST }),
            job(Op::Write, RATE_BYTES, Rate { list: RATE_LIST }),
            long,
            job(Op::Write, CALLER_BYTES_MIN, Bandwidth(Buffers::One)),
            Job { memory: Memory::Caller, ..long },
        ]);
    } else {
        jobs.extend([
            job(Op::Write, STREAM_BYTES, Bandwidth(Buffers::RoundRobin)),
            job(Op::Read, STREAM_BYTES, Bandwidth(Buffers::RoundRobin)),
            job(Op::Send, RATE_BYTES, Rate { list: 1 }),
        ]);
    }
    jobs
}

/// Message sizes to measure.
fn sizes(args: &BenchArgs) -> Vec<u64> {
    if !args.size.is_empty() {
        return args.size.clone();
    }
    match (args.all, args.quick) {
        (true, _) => (0..=LARGEST_EXPONENT).map(|exponent| 1 << exponent).collect(),
        (false, true) => QUICK_SIZES.into(),
        (false, false) => SIZES.into(),
    }
}

/// How long each job goes on.
fn limit(args: &BenchArgs) -> Limit {
    match (args.iters, args.duration) {
        (None, None) => Limit::time(if args.quick { QUICK_TIME } else { TIME }),
        (iters, duration) => Limit { iters, duration: duration.map(Duration::from_secs_f64) },
    }
}

/// Everything to find out.
fn jobs(args: &BenchArgs, sizes: &[u64]) -> Vec<Job> {
    let wanted = |test| args.test.is_empty() || args.test.contains(&test);
    let ops = [Op::Send, Op::Write, Op::Read];
    let ops = ops.into_iter().filter(|op| args.op.is_empty() || args.op.contains(op));
    let rate_sizes = if args.size.is_empty() { &[RATE_BYTES][..] } else { sizes };
    let mut jobs = Vec::new();
    let mut add = |op, sizes: &[u64], quantities: &[Quantity], memory| {
        for &bytes in sizes {
            jobs.extend(quantities.iter().map(|&quantity| Job { op, bytes, quantity, memory }));
        }
    };
    let library = Memory::Library;
    if wanted(Test::Latency) {
        for op in ops.clone() {
            let both = [Quantity::Completion, Quantity::HalfRoundTrip];
            match op {
                Op::Send | Op::Write => add(op, sizes, &both, library),
                Op::Read => add(op, sizes, &[Quantity::Completion], library),
            }
        }
    }
    if wanted(Test::Bandwidth) {
        for op in ops.clone() {
            add(op, sizes, &[Quantity::Bandwidth(Buffers::RoundRobin)], library);
            if op != Op::Send {
                add(op, sizes, &[Quantity::Bandwidth(Buffers::One)], library);
            }
        }
    }
    if wanted(Test::Bandwidth) {
        let asked = !args.size.is_empty();
        let long: Vec<_> =
            sizes.iter().copied().filter(|&bytes| asked || bytes >= CALLER_BYTES_MIN).collect();
        let quantities = [Quantity::Bandwidth(Buffers::RoundRobin)];
        ops.clone().for_each(|op| add(op, &long, &quantities, Memory::Caller));
    }
    if wanted(Test::Rate) {
        for op in ops {
            for list in post_lists(args) {
                add(op, rate_sizes, &[Quantity::Rate { list }], library);
            }
        }
    }
    jobs
}

/// Requests in one post, of rates: as asked for, or one and many, as far as the queue allows.
fn post_lists(args: &BenchArgs) -> Vec<u32> {
    let depth = args.tx_depth.unwrap_or(TX_DEPTH);
    let most = depth - args.cq_mod.unwrap_or(1).min(depth) + 1;
    match args.post_list {
        Some(list) => vec![list],
        None if most >= RATE_LIST => vec![1, RATE_LIST],
        None => vec![1],
    }
}

/// The largest size measured by default is two to this power: 8 MiB.
const LARGEST_EXPONENT: u32 = 23;
/// Sizes of a quick run: each a few times the one before. Some are no power of two, and have a packet or a segment
/// that is not full.
const QUICK_SIZES: [u64; 9] = [1, 64, 1500, 4096, 6 << 10, 100_000, 256 << 10, 1 << 20, 8 << 20];
/// Sizes of tables: as many as there are powers of two, three of which make room for those that are none.
#[rustfmt::skip]
const SIZES: [u64; 24] = [
    1, 4, 8, 16, 64, 128, 256, 512, 1024, 1500, 2048, 4096, 6 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10,
    100_000, 128 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20,
];
/// Message length for rates, where the user has not said.
const RATE_BYTES: u64 = 64;
/// Requests in one post, for rates, beside one.
const RATE_LIST: u32 = 32;
/// Memory that a stream goes round and that a processor's own caches hold: the floor uses that of one burst.
const CACHED_BYTES: usize = 1 << 20;
/// Longest message that the floor's ring has slots for.
const RING_BYTES: u64 = 64;
/// Shortest message measured in the caller's memory, where the user has not said.
const CALLER_BYTES_MIN: u64 = 64 << 10;
/// Message length of the main figures' streams of packets.
const STREAM_BYTES: u64 = 1 << 20;
/// How often each of the main figures is measured over packets; the same for a quick run.
const SUMMARY_ROUNDS: [u32; 2] = [9, 3];
/// The same for neighbours.
const SUMMARY_NEIGHBOURS_ROUNDS: [u32; 2] = [15, 5];
/// How often each job of neighbours is run, where the user has not said; the same for a quick run.
const NEIGHBOURS_ROUNDS: [u32; 2] = [5, 3];
/// How long their run may take; the same for a quick run.
const NEIGHBOURS_BUDGETS: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(10)];
/// How long each of their jobs goes on.
const NEIGHBOURS_TIME: Duration = Duration::from_millis(10);
/// How often each job is run, where the user has not said.
const ROUNDS: u32 = 3;
/// How long a run may take, where the user has not said: a busy machine gets fewer rounds.
const BUDGET: Duration = Duration::from_secs(55);
/// The same for a quick run.
const QUICK_BUDGET: Duration = Duration::from_secs(15);
/// How long each job goes on, where the user has not said.
const TIME: Duration = Duration::from_millis(25);
/// The same for a quick run.
const QUICK_TIME: Duration = Duration::from_millis(20);
/// Requests in flight, where the user has not said.
const TX_DEPTH: u32 = 128;
/// Bytes in flight, where the user has not said: several times what the device keeps under way.
const IN_FLIGHT_BYTES: u64 = 16 << 20;
/// An acknowledgement: BTH, AETH, ICRC.
const ACK_BYTES: u64 = 20;
/// A READ request: BTH, RETH, ICRC.
const READ_REQUEST_BYTES: u64 = 32;
/// What the first packet of a WRITE carries beside the payload: BTH, RETH, ICRC.
const HEADER_BYTES: u16 = 32;

#[cfg(test)]
mod tests;
