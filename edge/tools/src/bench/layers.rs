//! `adverb bench --layers`: what the session layer adds to raw verbs.
//!
//! One thread plays both sides, so that no scheduler is measured: what is left is the work that both
//! layers do. The layers take turns, because a machine has faster and slower moments, and of each the
//! best turn counts, because noise only ever adds.
//!
//! # Safety
//!
//! 1. The raw requests are of regions that live as long as their queue pair, in the same `Side`, and
//!    that lend no references.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use adverb::session::{
    Buffer, Channel, ClientSession, Config, Endpoint, Event, Operation, RemoteBuffer, ServerSession,
};
use adverb::verbs::{
    Access, Context, Cq, Mr, Qp, QpConfig, Rc, RcConnect, ReceiveWork, SendData, SendKind, SendTo,
    SendWork, WcOpcode, WorkCompletion,
};
use serde::Serialize;

use super::{LOCAL_DEVICE, stats};
use crate::args::BenchArgs;
use crate::failure::{Doing, Failure};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// What one layer costs.
#[derive(Clone, Debug, Serialize)]
struct Cost {
    layer: &'static str,
    /// A round trip of messages of [`SHORT_BYTES`].
    round_trip_ns: f64,
    /// That, by the raw verbs'.
    round_trip_ratio: f64,
    /// A WRITE of [`LONG_BYTES`], of many.
    write_ns: f64,
    /// That, by the raw verbs'.
    write_ratio: f64,
}

/// What came out.
#[derive(Clone, Debug, Serialize)]
struct Report {
    device: String,
    /// How the bytes went.
    path: String,
    short_bytes: usize,
    long_bytes: usize,
    layers: Vec<Cost>,
}

/// A way to move bytes.
trait Layer {
    /// A message there, and one back.
    fn trip(&mut self) -> Outcome<()>;

    /// Starts a long WRITE.
    fn post(&mut self) -> Outcome<()>;

    /// How many of them have ended since the last call.
    fn poll(&mut self) -> Outcome<u32>;
}

/// Measures all layers, and prints the table.
pub(super) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let report = measure(args).doing("measuring layers")?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&report).doing("writing JSON")? + "\n",
        false => table(&report),
    };
    std::io::stdout().write_all(text.as_bytes()).doing("printing the results")
}

fn measure(args: &BenchArgs) -> Outcome<Report> {
    let device = args.device.clone().unwrap_or_else(|| LOCAL_DEVICE.to_owned());
    let config = Config::default().device(&device);
    let inline = config.clone().inline_bytes(u32::try_from(SHORT_BYTES)?);
    let raw = Raw::new(&device)?;
    let path = raw.near.qp.path().map(|path| path.to_string()).unwrap_or_default();
    let mut layers: [(_, Box<dyn Layer>); 3] = [
        ("verbs", Box::new(raw)),
        ("session", Box::new(Session::new(config)?)),
        ("session, inline", Box::new(Session::new(inline)?)),
    ];
    let mut best = [[Duration::MAX; 2]; 3];
    let end = Instant::now() + Duration::from_secs_f64(args.duration.unwrap_or(3.0));
    let mut rounds = 0;
    while rounds < ROUNDS_MIN || Instant::now() < end {
        for ((_, layer), [trips, writes]) in layers.iter_mut().zip(&mut best) {
            *trips = time_trips(layer.as_mut())?.min(*trips);
            *writes = time_writes(layer.as_mut())?.min(*writes);
        }
        rounds += 1;
    }
    let [floor, ..] = best;
    let cost = |((layer, _), [trips, writes]): ((&'static str, _), [Duration; 2])| Cost {
        layer,
        round_trip_ns: trips.as_secs_f64() * 1e9 / f64::from(TRIPS),
        round_trip_ratio: trips.as_secs_f64() / floor[0].as_secs_f64(),
        write_ns: writes.as_secs_f64() * 1e9 / f64::from(WRITES),
        write_ratio: writes.as_secs_f64() / floor[1].as_secs_f64(),
    };
    let layers = layers.into_iter().zip(best).map(cost).collect();
    Ok(Report { device, path, short_bytes: SHORT_BYTES, long_bytes: LONG_BYTES, layers })
}

fn table(report: &Report) -> String {
    let Report { device, path, layers, .. } = report;
    let mut text = format!(
        "{device} ({path}), both sides in one thread, best of many turns\n\
         {:<16} {:>20} {:>8}   {:>20} {:>8}\n",
        "layer", "64 B round trip, µs", "adds", "64 KiB WRITE, GB/s", "costs"
    );
    for cost in layers {
        let rate = stats::to_f64(u64::try_from(LONG_BYTES).unwrap_or(0)) / cost.write_ns;
        let _ = writeln!(
            text,
            "{:<16} {:>20.3} {:>6.1} %   {:>20.2} {:>6.1} %",
            cost.layer,
            cost.round_trip_ns / 1e3,
            (cost.round_trip_ratio - 1.0) * 100.0,
            rate,
            (1.0 - 1.0 / cost.write_ratio) * 100.0,
        );
    }
    let _ = writeln!(text, "{:<16} {:>20} {:>8}   {:>20} {:>8}", "allowed", "", "10 %", "", "3 %");
    text
}

fn time_trips(layer: &mut dyn Layer) -> Outcome<Duration> {
    let start = Instant::now();
    for _ in 0..TRIPS {
        layer.trip()?;
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

/// One side of the raw layer.
struct Side {
    qp: Qp<Rc>,
    cq: Cq,
    /// Half of it sends, half receives; WRITEs use all of it.
    mr: Mr,
    completions: [WorkCompletion; 16],
}

/// Verbs as C has them.
struct Raw {
    near: Side,
    far: Side,
}

impl Raw {
    fn new(device: &str) -> Outcome<Self> {
        let context = Context::open(device)?;
        let pd = context.alloc_pd();
        let side = || -> Outcome<Side> {
            let cq = context.create_cq(256)?;
            Ok(Side {
                qp: pd.create_qp(&QpConfig::new(&cq))?,
                cq,
                mr: pd.allocate(LONG_BYTES, Access::ALL)?,
                completions: [WorkCompletion::EMPTY; 16],
            })
        };
        let (near, far) = (side()?, side()?);
        let gid = Config::default().adapter.gid_index;
        for (one, other) in [(&near, &far), (&far, &near)] {
            let how = RcConnect {
                path_mtu: context.query_port().active_mtu,
                ..RcConnect::new(one.qp.address(gid)?, other.qp.address(gid)?)
            };
            one.qp.connect(&how)?;
        }
        Ok(Self { near, far })
    }

    fn half(from: &mut Side, to: &mut Side) -> Outcome<()> {
        let sges = [to.mr.sge(SHORT_BYTES, SHORT_BYTES)?];
        let receive = ReceiveWork { wr_id: 0, sges: &sges, buffer: None };
        // SAFETY: the range is of the region beside the queue pair (rule 1).
        unsafe { to.qp.post_recv(&[receive]) }.map_err(|(_, error)| error)?;
        let sges = [from.mr.sge(0, SHORT_BYTES)?];
        let send = request(SendKind::Send { imm: None }, SendData::Gather(&sges));
        // SAFETY: the range is of the region beside the queue pair (rule 1).
        unsafe { from.qp.post_send(&[send]) }.map_err(|(_, error)| error)?;
        loop {
            let count = to.cq.poll(&mut to.completions)?;
            let mut taken = to.completions.iter().take(count);
            if taken.any(|completion| completion.opcode == WcOpcode::Receive) {
                return Ok(());
            }
        }
    }
}

impl Layer for Raw {
    fn trip(&mut self) -> Outcome<()> {
        Self::half(&mut self.near, &mut self.far)?;
        Self::half(&mut self.far, &mut self.near)
    }

    fn post(&mut self) -> Outcome<()> {
        let Self { near, far } = self;
        let sges = [near.mr.sge(0, LONG_BYTES)?];
        let kind = SendKind::Write { va: far.mr.addr(), rkey: far.mr.rkey(), imm: None };
        let write = request(kind, SendData::Gather(&sges));
        // SAFETY: the range is of the region beside the queue pair (rule 1).
        unsafe { near.qp.post_send(&[write]) }.map_err(|(_, error)| error)?;
        Ok(())
    }

    fn poll(&mut self) -> Outcome<u32> {
        let near = &mut self.near;
        let count = near.cq.poll(&mut near.completions)?;
        // The last trip's message may complete only now.
        let taken = near.completions.iter().take(count);
        let writes = taken.filter(|completion| completion.opcode == WcOpcode::RdmaWrite);
        Ok(u32::try_from(writes.count())?)
    }
}

fn request<'a>(kind: SendKind, data: SendData<'a>) -> SendWork<'a> {
    SendWork {
        to: SendTo::Peer,
        wr_id: 0,
        kind,
        data,
        signaled: true,
        solicited: false,
        fence: false,
        buffer: None,
    }
}

/// Channels of a session.
struct Session {
    near: (Channel, Buffer),
    far: (Channel, Buffer),
    source: Buffer,
    sink: RemoteBuffer,
    _ends: [Endpoint; 2],
}

impl Session {
    fn new(config: Config) -> Outcome<Self> {
        let mut server = ServerSession::bind("127.0.0.1:0", config.clone())?;
        let address = server.local_addr();
        let accepting = thread::spawn(move || server.accept(PATIENCE));
        let client = ClientSession::new(config)?.connect(address)?;
        let server = accepting.join().map_err(|_| "the server panicked")??;
        let end = |endpoint: &Endpoint| -> Outcome<_> {
            Ok((endpoint.channel("data")?, endpoint.adapter().buffer(2, SHORT_BYTES)?))
        };
        server.advertise("sink", &server.adapter().buffer(1, LONG_BYTES)?)?;
        Ok(Self {
            near: end(&client)?,
            far: end(&server)?,
            source: client.adapter().buffer(1, LONG_BYTES)?,
            sink: client.remote_buffer("sink")?,
            _ends: [client, server],
        })
    }

    fn half(from: &(Channel, Buffer), to: &(Channel, Buffer)) -> Outcome<()> {
        to.0.post_recv(to.1.at(1)?)?;
        from.0.post_send(from.1.at(0)?)?;
        loop {
            if let Some(Event { operation: Operation::Receive, .. }) = to.0.poll()? {
                return Ok(());
            }
        }
    }
}

impl Layer for Session {
    fn trip(&mut self) -> Outcome<()> {
        Self::half(&self.near, &self.far)?;
        Self::half(&self.far, &self.near)
    }

    fn post(&mut self) -> Outcome<()> {
        self.near.0.post_write(self.source.at(0)?, self.sink.at(0)?)?;
        Ok(())
    }

    fn poll(&mut self) -> Outcome<u32> {
        let event = self.near.0.poll()?;
        Ok(u32::from(event.is_some_and(|event| event.operation == Operation::Write)))
    }
}

const SHORT_BYTES: usize = 64;
const LONG_BYTES: usize = 64 << 10;
const _: () = assert!(2 * SHORT_BYTES <= LONG_BYTES);
/// Round trips of a turn.
const TRIPS: u32 = 2_000;
/// WRITEs of a turn.
const WRITES: u32 = 300;
/// WRITEs at once.
const IN_FLIGHT: u32 = 16;
const ROUNDS_MIN: u32 = 10;
const PATIENCE: Duration = Duration::from_secs(20);
