//! `adverb bench --layers`: what the session layer adds to raw verbs, in latency and bandwidth.
//!
//! Two processes, and between them a queue pair of raw verbs and two channels of sessions. They take
//! turns in short rounds, because a machine has faster and slower moments, and of each the best turn
//! counts, because noise only ever adds.
//!
//! # Safety
//!
//! 1. The raw requests are of the region that lives beside their queue pair, and that lends no
//!    references.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

use adverb::session::{
    Block, Buffer, Channel, ClientSession, Config, Endpoint, Event, Operation, RemoteBuffer,
    ServerSession, WorkMode,
};
use adverb::verbs::{
    Access, Cq, Mr, Psn, Qp, QpConfig, Qpn, Rc, RcConnect, ReceiveWork, RemoteQp, Rkey, SendData,
    SendKind, SendWork, WcOpcode, WorkCompletion,
};
use serde::Serialize;

use super::local::LocalServer;
use super::rdma::{BUSY_HOST_TIMEOUT, NO_WORK};
use super::{LOCAL_PATH, cpu, stats};
use crate::args::BenchArgs;
use crate::child::end_with_parent;
use crate::failure::{Doing, Failure};
use crate::here;
use crate::output::json;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// What one layer costs.
#[derive(Clone, Debug, Serialize)]
struct Cost {
    layer: &'static str,
    /// Half a round trip of messages of [`SHORT_BYTES`].
    half_rtt_ns: f64,
    /// That, by the raw verbs'.
    half_rtt_ratio: f64,
    /// A WRITE of [`LONG_BYTES`], of many.
    write_ns: f64,
    /// That, by the raw verbs'.
    write_ratio: f64,
}

/// What came out on one way between the processes.
#[derive(Clone, Debug, Serialize)]
struct Report {
    device: String,
    path: String,
    short_bytes: usize,
    long_bytes: usize,
    layers: Vec<Cost>,
}

/// A way to move bytes to the other process.
trait Layer {
    fn name(&self) -> &'static str;

    /// Makes a receive ready for the next message.
    fn prepare(&mut self) -> Outcome<()>;

    /// Sends a message.
    fn send(&mut self) -> Outcome<()>;

    /// Waits for a message.
    fn receive(&mut self) -> Outcome<()>;

    /// Starts a long WRITE.
    fn post(&mut self) -> Outcome<()>;

    /// How many of them have ended since the last call.
    fn poll(&mut self) -> Outcome<u32>;
}

/// Measures all layers on each way there is, and prints the tables.
pub(super) fn run(args: &BenchArgs) -> Result<(), Failure> {
    args.connection.choice().check()?;
    if args.layers_child {
        end_with_parent()?;
        return serve(args).doing("answering");
    }
    let asked = std::env::var_os(LOCAL_PATH).is_some_and(|path| !path.is_empty());
    let paths = if asked { &[None][..] } else { &[Some("udp"), Some("auto")] };
    let _ = cpu::count(); // Asked before this process is bound to one.
    // Started before that, too: children inherit it.
    let servers: Vec<_> = paths.iter().map(|path| start(args, *path)).collect::<Result<_, _>>()?;
    if !args.no_pin {
        cpu::pin(cpu::End::Client);
    }
    let mut reports: Vec<Report> = Vec::new();
    for server in servers {
        let report = measure(args, &server).doing("measuring layers")?;
        // Where neighbours cannot share memory there is nothing new to say.
        if reports.iter().all(|known| known.path != report.path) {
            reports.push(report);
        }
    }
    let text = match args.json {
        true => json(serde_json::json!({ "paths": reports }))?,
        false => reports.iter().map(table).collect::<Vec<_>>().join("\n"),
    };
    std::io::stdout().write_all(text.as_bytes()).doing("printing the results")
}

fn config(args: &BenchArgs) -> Config {
    let mut config = Config::default()
        .device(args.connection.device.clone().unwrap_or_else(here::device))
        .work_mode(WorkMode::BusyPoll)
        .channels(["control", "plain"]);
    config.adapter.ack_timeout = BUSY_HOST_TIMEOUT;
    config
}

/// Starts the other process. `path`: the way that it agrees to, if not what the environment says.
fn start(args: &BenchArgs, path: Option<&str>) -> Result<LocalServer, Failure> {
    let mut words = vec!["--layers", "--layers-child"];
    words.extend(args.no_pin.then_some("--no-pin"));
    LocalServer::start_as(&words, &args.connection.choice(), path)
}

fn measure(args: &BenchArgs, server: &LocalServer) -> Outcome<Report> {
    let config = config(args);
    let endpoint = ClientSession::new(config)?.connect((here::address(), server.port))?;
    let device = endpoint.adapter().context().device().name.clone();
    let (mut layers, way) = layers(&endpoint)?;
    let (control, word) = (endpoint.channel("control")?, endpoint.adapter().buffer(1, 8)?);
    let mut best = vec![[Duration::MAX; 2]; layers.len()];
    let end = Instant::now() + Duration::from_secs_f64(args.duration.unwrap_or(2.0));
    let mut rounds = 0;
    while rounds < ROUNDS_MIN || Instant::now() < end {
        control.send_with_imm(word.at(0)?, GO_ON)?;
        for (layer, [trips, _]) in layers.iter_mut().zip(&mut best) {
            *trips = time_trips(layer.as_mut())?.min(*trips);
        }
        for (layer, [_, writes]) in layers.iter_mut().zip(&mut best) {
            *writes = time_writes(layer.as_mut())?.min(*writes);
        }
        rounds += 1;
    }
    control.send_with_imm(word.at(0)?, STOP)?;
    let [floor_trips, floor_writes] = *best.first().ok_or("there are no layers")?;
    let cost = |(layer, [trips, writes]): (&'static str, &[Duration; 2])| Cost {
        layer,
        half_rtt_ns: trips.as_secs_f64() * 1e9 / f64::from(2 * TRIPS),
        half_rtt_ratio: trips.as_secs_f64() / floor_trips.as_secs_f64(),
        write_ns: writes.as_secs_f64() * 1e9 / f64::from(WRITES),
        write_ratio: writes.as_secs_f64() / floor_writes.as_secs_f64(),
    };
    let layers = layers.iter().map(|layer| layer.name()).zip(&best).map(cost).collect();
    Ok(Report { device, path: way, short_bytes: SHORT_BYTES, long_bytes: LONG_BYTES, layers })
}

fn table(report: &Report) -> String {
    let Report { device, path, layers, .. } = report;
    let mut text = format!(
        "{device}, {path}: two processes, the best of many turns\n\
         {:<16} {:>23} {:>8}   {:>19} {:>8}\n",
        "layer", "64 B, half a trip, µs", "adds", "64 KiB WRITE, GB/s", "costs"
    );
    for cost in layers {
        let rate = stats::to_f64(u64::try_from(LONG_BYTES).unwrap_or(0)) / cost.write_ns;
        let _ = writeln!(
            text,
            "{:<16} {:>23.3} {:>6.1} %   {:>19.2} {:>6.1} %",
            cost.layer,
            cost.half_rtt_ns / 1e3,
            (cost.half_rtt_ratio - 1.0) * 100.0,
            rate,
            (1.0 - 1.0 / cost.write_ratio) * 100.0,
        );
    }
    text
}

fn time_trips(layer: &mut dyn Layer) -> Outcome<Duration> {
    let start = Instant::now();
    for _ in 0..TRIPS {
        layer.prepare()?;
        layer.send()?;
        layer.receive()?;
    }
    Ok(start.elapsed())
}

fn time_writes(layer: &mut dyn Layer) -> Outcome<Duration> {
    let start = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < WRITES {
        if posted < WRITES && posted - done < IN_FLIGHT {
            layer.post()?;
            posted += 1;
        } else {
            done += layer.poll()?;
        }
    }
    Ok(start.elapsed())
}

/// The other process: answers, round after round.
fn serve(args: &BenchArgs) -> Outcome<()> {
    let _ = cpu::count();
    if !args.no_pin {
        cpu::pin(cpu::End::Server);
    }
    let mut server = ServerSession::bind((here::address(), 0), config(args))?;
    println!("{}", server.local_addr().port());
    std::io::stdout().flush()?;
    let endpoint = server.accept(PATIENCE)?;
    let control = endpoint.channel("control")?.with_timeout(PATIENCE);
    let words = endpoint.adapter().buffer(2, 8)?;
    control.post_recv(words.at(0)?)?;
    let (mut layers, _) = layers(&endpoint)?;
    for layer in &mut layers {
        layer.prepare()?;
    }
    loop {
        let event = control.recv()?;
        control.post_recv(event.block)?;
        if event.imm != Some(GO_ON) {
            return Ok(endpoint.close()?);
        }
        for layer in &mut layers {
            for _ in 0..TRIPS {
                layer.receive()?;
                layer.prepare()?;
                layer.send()?;
            }
        }
    }
}

/// All layers between the two processes, the raw one first, and the way that its bytes go.
fn layers(endpoint: &Endpoint) -> Outcome<(Vec<Box<dyn Layer>>, String)> {
    let raw = Raw::new(endpoint)?;
    let path = raw.qp.path().map(|path| path.to_string()).unwrap_or_default();
    Ok((vec![Box::new(raw), Box::new(Session::new(endpoint)?)], path))
}

/// Verbs as C has them.
struct Raw {
    qp: Qp<Rc>,
    cq: Cq,
    /// The start of it is sent, what follows receives; WRITEs use all of it.
    mr: Mr,
    remote: (u64, Rkey),
    completions: [WorkCompletion; 16],
}

impl Raw {
    /// Both sides tell one another where they are by buffers of the session.
    fn new(endpoint: &Endpoint) -> Outcome<Self> {
        let adapter = endpoint.adapter();
        let (gid_index, _) = endpoint.peer().local;
        let cq = adapter.context().create_cq(256)?;
        let qp = adapter.pd().create_qp(&QpConfig::new(&cq))?;
        let mr = adapter.pd().allocate(LONG_BYTES, Access::ALL)?;
        let local = qp.address_at(gid_index)?;
        let facts = adapter.buffer(2, FACTS * size_of::<u64>())?;
        let (qpn, psn) = (u64::from(local.qpn.get()), u64::from(local.psn.get()));
        let words = [qpn, psn, mr.addr(), u64::from(mr.rkey().0)];
        for (place, word) in words.into_iter().enumerate() {
            facts.at(0)?.store_u64(place * size_of::<u64>(), word)?;
        }
        endpoint.advertise("raw", &facts)?;
        let theirs = endpoint.remote_buffer("raw")?;
        endpoint.channel("control")?.read(facts.at(1)?, theirs.at(0)?)?;
        let word = |place: usize| facts.at(1)?.load_u64(place * size_of::<u64>());
        let remote = RemoteQp {
            gid: endpoint.peer().gid,
            qpn: Qpn::new(u32::try_from(word(0)?)?),
            psn: Psn::new(u32::try_from(word(1)?)?),
        };
        let path_mtu = endpoint.peer().path_mtu;
        let usual = RcConnect::new(remote);
        qp.connect(usual.path_mtu(path_mtu).gid_index(gid_index).timeout(BUSY_HOST_TIMEOUT))?;
        let remote = (word(2)?, Rkey(u32::try_from(word(3)?)?));
        Ok(Self { qp, cq, mr, remote, completions: [WorkCompletion::EMPTY; 16] })
    }

    /// Polls once, and counts completions of this kind.
    fn count(&mut self, kind: WcOpcode) -> Outcome<u32> {
        let count = self.cq.poll(&mut self.completions)?;
        let taken = self.completions.iter().take(count);
        Ok(u32::try_from(taken.filter(|completion| completion.opcode == kind).count())?)
    }

    fn request(&self, kind: SendKind, len: usize) -> Outcome<()> {
        let sges = [self.mr.sge(0, len)?];
        let work = SendWork { kind, data: SendData::Gather(&sges), signaled: true, ..NO_WORK };
        // SAFETY: the range is of the region beside the queue pair (rule 1).
        unsafe { self.qp.post_send(&[work]) }.map_err(|refused| refused.error)?;
        Ok(())
    }
}

impl Layer for Raw {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn prepare(&mut self) -> Outcome<()> {
        let sges = [self.mr.sge(SHORT_BYTES, SHORT_BYTES)?];
        let receive = ReceiveWork { wr_id: 0, sges: &sges, buffer: None };
        // SAFETY: the range is of the region beside the queue pair (rule 1).
        unsafe { self.qp.post_recv(&[receive]) }.map_err(|refused| refused.error)?;
        Ok(())
    }

    fn send(&mut self) -> Outcome<()> {
        self.request(SendKind::Send { imm: None }, SHORT_BYTES)
    }

    fn receive(&mut self) -> Outcome<()> {
        while self.count(WcOpcode::Receive)? == 0 {}
        Ok(())
    }

    fn post(&mut self) -> Outcome<()> {
        let (va, rkey) = self.remote;
        self.request(SendKind::Write { va, rkey, imm: None }, LONG_BYTES)
    }

    fn poll(&mut self) -> Outcome<u32> {
        self.count(WcOpcode::RdmaWrite)
    }
}

/// A channel of a session. Blocks come back with their events, and are used again.
struct Session {
    channel: Channel,
    short: Buffer,
    sent: Option<Block>,
    received: Option<Block>,
    source: Buffer,
    written: Vec<Block>,
    events: Vec<Event>,
    sink: RemoteBuffer,
}

impl Session {
    fn new(endpoint: &Endpoint) -> Outcome<Self> {
        let adapter = endpoint.adapter();
        endpoint.advertise("sink", &adapter.buffer(1, LONG_BYTES)?)?;
        Ok(Self {
            channel: endpoint.channel("plain")?,
            short: adapter.buffer(2, SHORT_BYTES)?,
            sent: None,
            received: None,
            source: adapter.buffer(1, LONG_BYTES)?,
            written: Vec::new(),
            events: Vec::with_capacity(16),
            sink: endpoint.remote_buffer("sink")?,
        })
    }

    /// Keeps the block of what has ended for the next time, and says what it was.
    #[inline(always)]
    fn end(&mut self, event: Event) -> Operation {
        let Event { operation, block, .. } = event;
        if operation == Operation::Send {
            self.sent = Some(block);
        } else if operation == Operation::Receive {
            self.received = Some(block);
        } else {
            self.written.push(block);
        }
        operation
    }
}

impl Layer for Session {
    fn name(&self) -> &'static str {
        "session"
    }

    fn prepare(&mut self) -> Outcome<()> {
        let block = match self.received.take() {
            Some(block) => block,
            None => self.short.at(1)?,
        };
        self.channel.post_recv(block)?;
        Ok(())
    }

    fn send(&mut self) -> Outcome<()> {
        let block = match self.sent.take() {
            Some(block) => block,
            None => self.short.at(0)?,
        };
        self.channel.post_send(block)?;
        Ok(())
    }

    fn receive(&mut self) -> Outcome<()> {
        loop {
            if let Some(event) = self.channel.poll()?
                && self.end(event) == Operation::Receive
            {
                return Ok(());
            }
        }
    }

    fn post(&mut self) -> Outcome<()> {
        let block = match self.written.pop() {
            Some(block) => block,
            None => self.source.at(0)?,
        };
        self.channel.post_write(block, self.sink.at(0)?)?;
        Ok(())
    }

    fn poll(&mut self) -> Outcome<u32> {
        self.channel.poll_many(&mut self.events)?;
        let mut count = 0;
        while let Some(event) = self.events.pop() {
            count += u32::from(self.end(event) == Operation::Write);
        }
        Ok(count)
    }
}

const SHORT_BYTES: usize = 64;
const LONG_BYTES: usize = 64 << 10;
const _: () = assert!(2 * SHORT_BYTES <= LONG_BYTES);
/// Words that a side tells of its raw queue pair: number, first PSN, address, key.
const FACTS: usize = 4;
/// Round trips of a turn.
const TRIPS: u32 = 1_000;
/// WRITEs of a turn.
const WRITES: u32 = 300;
/// WRITEs at once.
const IN_FLIGHT: u32 = 16;
const ROUNDS_MIN: u32 = 10;
/// What the client says before each round.
const GO_ON: u32 = 1;
const STOP: u32 = 0;
/// Longer than the other way takes, which is measured first. A server ends with its client anyway.
const PATIENCE: Duration = Duration::from_secs(600);
