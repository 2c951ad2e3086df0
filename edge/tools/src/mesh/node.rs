//! One node: a server session that takes blocks of all others, and a client session to each of them.
//!
//! A thread for each peer sends, one for each client receives; all sleep while they wait. A peer that
//! goes is connected to again until the time is over, which begins when all are here. Among the blocks
//! go rows (`board.rs`); the last one goes when this node has sent and received all that it will.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use adverb::session::{
    AckTimeout, Adapter, Block, ChannelError, ClientSession, Config, Departure, Endpoint, Message,
    MessageError, Messenger, MessengerConfig, ServerSession, WorkMode,
};
use serde::{Deserialize, Serialize};

use super::board::{self, Board};
use super::pace::Pace;
use super::place::Place;
use super::report::Report;
use super::traffic::{self, BLOCK_BYTES_MIN, NOTICE_BYTES, Notice};
use crate::args::MeshTraffic;
use crate::bench::stats::Samples;
use crate::devices::device_names;
use crate::failure::{Doing, Failure};

/// What a node does.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) place: Place,
    pub(crate) bytes: usize,
    pub(crate) traffic: MeshTraffic,
    pub(crate) duration: Duration,
    /// Ends it before that.
    pub(crate) stop: Arc<AtomicBool>,
    /// Wait for all nodes before the time begins.
    pub(crate) gather: bool,
    pub(crate) device: Option<String>,
    pub(crate) gid_index: Option<u8>,
    pub(crate) work_mode: WorkMode,
}

/// What a node says of itself, now and then and at its end.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Row {
    /// Which node.
    pub(crate) rank: usize,
    /// When it began, in milliseconds since 1970: a node that comes back does so later.
    pub(crate) born_ms: u64,
    /// Milliseconds since then.
    pub(crate) elapsed_ms: u64,
    /// It will say no more.
    pub(crate) last: bool,
    /// What passed between it and each node; nothing in its own place.
    pub(crate) peers: Vec<Pair>,
}

/// What passed between two nodes, as one of them saw it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Pair {
    /// Blocks sent, and their bytes.
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    /// Blocks received whole and in order, and their bytes.
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// Blocks that were not whole.
    pub(crate) spoilt: u64,
    /// Blocks that were lost, repeated or out of order.
    pub(crate) misplaced: u64,
    /// Times that it was sent something again, because nothing was heard or something was missing.
    pub(crate) resent: u64,
    /// It is connected to.
    pub(crate) up: bool,
    /// Times that it went and was not expected to.
    pub(crate) losses: u64,
    /// Of a hundred blocks, ninety-nine were with the peer within this time.
    pub(crate) p99_ns: u64,
}

/// The numbers of one peer, while they change.
#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
    spoilt: AtomicU64,
    misplaced: AtomicU64,
    up: AtomicBool,
    losses: AtomicU64,
    resent: AtomicU64,
    samples: Mutex<Option<Samples>>,
}

struct Node {
    task: Task,
    counts: Vec<Counts>,
    /// Clients that are here, and those of them that have more blocks.
    guests: AtomicUsize,
    serving: AtomicUsize,
    /// Threads that have blocks to send.
    sending: AtomicUsize,
    /// What is known of all, and what this node last said of itself.
    board: Board,
    said: Mutex<Vec<u8>>,
    born_ms: u64,
    born: Instant,
    /// Keeps those that are sent to, and those that send, level.
    outward: Pace,
    inward: Pace,
    /// Why each peer could not be reached, when that was tried last.
    trouble: Mutex<BTreeMap<usize, String>>,
    /// When blocks began to be sent.
    start: OnceLock<Instant>,
    /// When it was asked to end.
    stopped: OnceLock<Duration>,
    adapter: Adapter,
}

/// One of those that are counted, until it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Runs a node to its end, and has `say` called now and then, with its own row and what it knows of
/// all. Returns that.
pub(crate) fn run(task: Task, say: impl Fn(&Row, &Report)) -> Result<Report, Failure> {
    let own = task.place.address(task.place.rank)?;
    let adapter = Adapter::open(config(&task, own)?).doing("opening the device")?;
    let server =
        ServerSession::bind_on(own, adapter.clone()).doing(format_args!("listening on {own}"))?;
    let node = Arc::new(Node {
        counts: task.place.nodes.iter().map(|_| Counts::default()).collect(),
        guests: AtomicUsize::new(0),
        serving: AtomicUsize::new(0),
        sending: AtomicUsize::new(0),
        board: Board::new(task.place.nodes.len()),
        said: Mutex::default(),
        born_ms: now_ms(),
        born: Instant::now(),
        outward: Pace::new(task.place.nodes.len()),
        inward: Pace::new(task.place.nodes.len()),
        trouble: Mutex::default(),
        start: OnceLock::new(),
        stopped: OnceLock::new(),
        adapter,
        task,
    });
    if !node.task.gather {
        node.begin();
    }
    node.speak(false); // Before a node may want to pass it on.
    let listening = Arc::clone(&node);
    thread::spawn(move || listening.listen(server));
    let senders: Vec<_> = (0..node.counts.len())
        .filter(|rank| *rank != node.task.place.rank)
        .map(|rank| {
            let node = Arc::clone(&node);
            thread::spawn(move || node.send_to(rank))
        })
        .collect();
    let mut said = Instant::now();
    loop {
        let sending = senders.iter().any(|sender| !sender.is_finished());
        let serving = node.guests.load(Ordering::Acquire) > 0;
        if node.is_late() || (!sending && !serving && node.is_over()) {
            break;
        }
        thread::sleep(TICK);
        if node.born.elapsed() >= GATHER || node.is_stopped() {
            node.begin();
        }
        if said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            say(&node.speak(false), &node.board.report(node.elapsed()));
        }
    }
    for (rank, why) in &*node.trouble() {
        // A peer that was reached may have ended first.
        let was_reached = |counts: &Counts| counts.sent.load(Ordering::Relaxed) > 0;
        if !node.counts.get(*rank).is_some_and(was_reached) {
            eprintln!("adverb: node {rank} was not reached: {why}");
        }
    }
    let row = node.speak(true);
    let report = node.board.last_report(node.elapsed());
    say(&row, &report);
    Ok(report)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The session's settings: sleepers, for there are more threads than processors.
fn config(task: &Task, own: SocketAddr) -> Result<Config, Failure> {
    let devices = adverb::verbs::devices().doing("listing the RDMA devices")?;
    let holds = |d: &&adverb::verbs::Device| d.gids.iter().any(|gid| gid.ip() == own.ip());
    let device = match &task.device {
        Some(name) => devices.iter().find(|device| device.name == *name),
        None => devices.iter().find(holds),
    };
    let device = device.ok_or_else(|| {
        let names = device_names(&devices);
        Failure::failed(format!(
            "no device has the address {}; there are: {names}. Choose one with --device",
            own.ip()
        ))
    })?;
    let same = device.gids.iter().find(|gid| gid.ip() == own.ip());
    let index = task.gid_index.or(same.map(|gid| gid.index)).unwrap_or(1);
    let mut config = Config::default()
        .name(format!("mesh node {}", task.place.rank))
        .device(device.name.clone())
        .gid_index(index)
        .send_depth(DEPTH + SPARE)
        .receive_depth(DEPTH)
        .work_mode(task.work_mode)
        .connect_timeout(TRY)
        .work_timeout(PATIENCE)
        .silence_timeout(SILENCE);
    if !task.gather {
        config.adapter.ack_timeout = LOCAL_ACK_TIMEOUT;
    }
    Ok(config)
}

impl Node {
    fn row(&self, last: bool) -> Row {
        let bytes = u64::try_from(self.task.bytes).unwrap_or(u64::MAX);
        let pair = |counts: &Counts| {
            let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
            let samples = counts.samples.lock().unwrap_or_else(PoisonError::into_inner);
            Pair {
                sent: get(&counts.sent),
                sent_bytes: get(&counts.sent) * bytes,
                received: get(&counts.received),
                received_bytes: get(&counts.received) * bytes,
                spoilt: get(&counts.spoilt),
                misplaced: get(&counts.misplaced),
                up: counts.up.load(Ordering::Relaxed),
                losses: get(&counts.losses),
                resent: get(&counts.resent),
                p99_ns: samples.as_ref().map_or(0, |samples| samples.percentiles().p99),
            }
        };
        Row {
            rank: self.task.place.rank,
            born_ms: self.born_ms,
            elapsed_ms: u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX),
            last,
            peers: self.counts.iter().map(pair).collect(),
        }
    }

    /// Says its row, for the others to be told.
    fn speak(&self, last: bool) -> Row {
        let row = self.row(last);
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = board::emit(&row);
        self.board.note(row.rank, row.clone());
        row
    }

    /// The time begins, if it has not.
    fn begin(&self) {
        self.start.get_or_init(Instant::now);
    }

    /// Since it began.
    fn elapsed(&self) -> Duration {
        self.start.get().map_or(Duration::ZERO, Instant::elapsed)
    }

    /// Waits until all nodes are here, or one of them has begun, or one has waited for long enough.
    fn gather(&self) {
        let others = self.counts.len() - 1;
        while self.start.get().is_none() {
            let up = self.counts.iter().filter(|counts| counts.up.load(Ordering::Relaxed)).count();
            let here = up >= others && self.guests.load(Ordering::Acquire) >= others;
            match here {
                true => self.begin(),
                false => thread::sleep(TICK),
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.task.stop.load(Ordering::Relaxed)
    }

    /// How long it is to run.
    fn duration(&self) -> Duration {
        match self.is_stopped() {
            true => *self.stopped.get_or_init(|| self.elapsed().min(self.task.duration)),
            false => self.task.duration,
        }
    }

    fn is_over(&self) -> bool {
        self.elapsed() >= self.duration()
    }

    /// Nodes that still send to us were served for long enough.
    fn is_late(&self) -> bool {
        self.elapsed() >= self.duration() + GRACE
    }

    /// Waits until all blocks have been sent and received.
    fn settle(&self) {
        let left = |count: &AtomicUsize| count.load(Ordering::Acquire) > 0;
        while (left(&self.sending) || left(&self.serving)) && !self.is_late() {
            thread::sleep(TICK);
        }
    }

    fn messenger(&self, endpoint: &Endpoint) -> Result<Messenger, MessageError> {
        let mut config = MessengerConfig::default();
        config.block_bytes = self.task.bytes.max(BLOCK_BYTES_LEAST);
        config.message_max = config.block_bytes.max(board::row_bytes_max(self.counts.len()));
        Messenger::open(endpoint, CHANNEL, config)
    }

    /// Accepts all that come, for as long as the process lives.
    fn listen(self: &Arc<Self>, mut server: ServerSession) {
        loop {
            let Ok(endpoint) = server.accept(PATIENCE) else {
                continue;
            };
            let node = Arc::clone(self);
            thread::spawn(move || {
                let _guest = Counted::new(&node.guests);
                // Why it went is the sender's to say.
                let _ = node.receive_from(&endpoint);
            });
        }
    }

    /// Takes what a client sends until it goes.
    fn receive_from(&self, endpoint: &Endpoint) -> Result<(), MessageError> {
        let name = endpoint.peer().name.as_str().rsplit(' ').next().and_then(|n| n.parse().ok());
        let Some((from, counts)) = name.and_then(|n: usize| Some((n, self.counts.get(n)?))) else {
            return Ok(()); // Not a node of this mesh.
        };
        let (rank, from) = (from, u64::try_from(from).unwrap_or(u64::MAX));
        let sink = endpoint.adapter().buffer(RING, self.task.bytes)?;
        let advertised = endpoint.advertise(SINK, &sink);
        advertised.map_err(MessageError::from)?;
        let messenger = self.messenger(endpoint)?;
        let mut lane = Some(self.inward.join(rank));
        let mut serving = Some(Counted::new(&self.serving));
        let mut due = 0;
        let mut bytes = vec![0; self.task.bytes];
        loop {
            let message = match messenger.recv() {
                Ok(message) => message,
                Err(MessageError::Timeout { .. }) => continue,
                Err(error) => return Err(error),
            };
            let seq = if message.len() == NOTICE_BYTES {
                let mut notice = [0; NOTICE_BYTES];
                message.read(0, &mut notice)?;
                match Notice::parse(&notice) {
                    Some(Notice::Written(seq)) => {
                        sink.at(place(seq))?.read(0, &mut bytes)?;
                        traffic::check(&bytes, from)
                    }
                    Some(Notice::End(count)) => {
                        let lost = u64::from(count != due);
                        counts.misplaced.fetch_add(lost, Ordering::Relaxed);
                        drop((lane.take(), serving.take()));
                        continue; // Its last row comes yet.
                    }
                    None => None,
                }
            } else if is_row(&message)? {
                let row = board::parse(&message.to_vec());
                match row.map(|row| (row.last, self.board.note(rank, row))) {
                    Some((true, _)) => return Ok(()),
                    Some((false, true)) => continue,
                    Some((false, false)) | None => None,
                }
            } else {
                let len = message.len().min(bytes.len());
                let whole = bytes.get_mut(..len).unwrap_or_default();
                message.read(0, whole)?;
                traffic::check(whole, from)
            };
            let counter = match seq {
                None => &counts.spoilt,
                Some(seq) if seq == due => &counts.received,
                Some(_) => &counts.misplaced,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            due = seq.map_or(due, |seq| seq) + 1;
            drop(message);
            self.begin();
            if let Some(lane) = &lane {
                lane.step();
            }
        }
    }

    /// Sends to a node until the time is over, and comes again when it has gone.
    fn send_to(&self, rank: usize) {
        let Some(counts) = self.counts.get(rank) else {
            return;
        };
        let mut sending = Some(Counted::new(&self.sending));
        while !self.is_over() {
            let address = match self.task.place.address(rank) {
                Ok(address) => address,
                Err(failure) => {
                    // Its name may become known, as that of a container that is still to start.
                    let is_first = self.note(rank, &failure);
                    if is_first {
                        eprintln!("adverb: node {rank}: {failure}; trying again");
                    }
                    thread::sleep(TRY);
                    continue;
                }
            };
            let endpoint = match ClientSession::on(self.adapter.clone()).connect(address) {
                Ok(endpoint) => endpoint,
                Err(error) => {
                    self.note(rank, &error);
                    thread::sleep(TICK);
                    continue;
                }
            };
            self.trouble().remove(&rank);
            let sent = self.send_on(&endpoint, counts, rank, &mut sending);
            counts.up.store(false, Ordering::Relaxed);
            match sent {
                Ok(()) => return,
                // It has finished before us.
                Err(MessageError::Channel(ChannelError::PeerGone(Departure::Closed))) => {}
                Err(_) => drop(counts.losses.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }

    fn trouble(&self) -> MutexGuard<'_, BTreeMap<usize, String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A peer could not be reached; true if it is the first time in a row.
    fn note(&self, rank: usize, why: &dyn fmt::Display) -> bool {
        self.trouble().insert(rank, why.to_string()).is_none()
    }

    fn send_on(
        &self,
        endpoint: &Endpoint,
        counts: &Counts,
        rank: usize,
        sending: &mut Option<Counted<'_>>,
    ) -> Result<(), MessageError> {
        let messenger = self.messenger(endpoint)?;
        let sink = endpoint.remote_buffer(SINK)?;
        let source = endpoint.adapter().buffer(RING, self.task.bytes)?;
        counts.up.store(true, Ordering::Relaxed);
        self.gather();
        let lane = self.outward.join(rank);
        let from = u64::try_from(self.task.place.rank).unwrap_or(u64::MAX);
        let mut bytes = vec![0; self.task.bytes];
        let (mut seq, mut resent_before) = (0, 0);
        let mut said = Instant::now();
        while !self.is_over() {
            traffic::fill(&mut bytes, from, seq);
            let writes = match self.task.traffic {
                MeshTraffic::Send => false,
                MeshTraffic::Write => true,
                MeshTraffic::Mixed => seq % 2 == 1,
            };
            let start = Instant::now();
            if writes {
                let block: Block = source.at(place(seq))?;
                block.write(0, &bytes)?;
                messenger.write(&block, sink.at(place(seq))?)?;
                messenger.send(&Notice::Written(seq).emit())?;
            } else {
                messenger.send(&bytes)?;
            }
            seq += 1;
            if said.elapsed() >= SAY_EVERY {
                said = Instant::now();
                let row = self.said.lock().unwrap_or_else(PoisonError::into_inner).clone();
                messenger.send(&row)?;
            }
            lane.step();
            counts.sent.fetch_add(1, Ordering::Relaxed);
            if seq % SAMPLE_EVERY == 0 {
                messenger.flush()?;
                let resent = messenger.channel().counters().completer_retry_err - resent_before;
                resent_before += resent;
                counts.resent.fetch_add(resent, Ordering::Relaxed);
                let mut samples = counts.samples.lock().unwrap_or_else(PoisonError::into_inner);
                samples.get_or_insert_with(Samples::new).record(start.elapsed());
            }
        }
        drop(lane);
        messenger.send(&Notice::End(seq).emit())?;
        drop(sending.take());
        self.settle();
        messenger.send(&board::emit(&self.row(true)))?;
        messenger.close()
    }
}

fn is_row(message: &Message) -> Result<bool, MessageError> {
    let mut start = [0; 8];
    let start = start.get_mut(..message.len().min(8)).unwrap_or_default();
    message.read(0, start)?;
    Ok(board::is_row(start))
}

/// Where in a ring block number `seq` is.
fn place(seq: u64) -> usize {
    usize::try_from(seq).unwrap_or(0) % RING
}

const CHANNEL: &str = "data";
const SINK: &str = "mesh sink";
/// Receives of a channel.
const DEPTH: u32 = 48;
/// A block and its notice for each.
const SPARE: u32 = 48;
/// Blocks that are written before the first is written again: more than can be told of.
const RING: usize = 64;
const BLOCK_BYTES_LEAST: usize = 64;
const _: () = assert!(NOTICE_BYTES < BLOCK_BYTES_MIN);
/// Blocks between two whose time is taken.
const SAMPLE_EVERY: u64 = 64;
const TICK: Duration = Duration::from_millis(20);
const SAY_EVERY: Duration = Duration::from_millis(500);
/// How long one attempt to connect takes.
const TRY: Duration = Duration::from_millis(500);
/// How long a peer that is there may keep us waiting.
const PATIENCE: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_secs(5);
/// How long the nodes of one machine wait for an acknowledgement. It comes when its sender gets a
/// processor, which dozens of others share: a timer of 67 ms sends again what has long arrived.
const LOCAL_ACK_TIMEOUT: AckTimeout = match AckTimeout::from_exponent(16) {
    Ok(timeout) => timeout, // 268 ms.
    Err(_) => AckTimeout::FOREVER,
};
/// How long nodes wait for others to be started.
const GATHER: Duration = Duration::from_secs(20);
/// How long the others are served when the time is over.
const GRACE: Duration = Duration::from_secs(20);
