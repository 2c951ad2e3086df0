//! `adverb bench --modes`: what each way to wait and to thread costs, in latency and in processor
//! time.
//!
//! Two processes for each mode, both with handlers on a session's channel, so that threads of the
//! session do all the work: the client's answers each message with the next, the server's with the
//! same.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use adverb::session::{
    Channel, ClientSession, Config, Departure, Endpoint, Event, Handler, PeerInfo, ServerSession,
    ThreadMode,
};
use adverb_sys::affinity;
use adverb_sys::process::usage;
use serde::Serialize;

use super::rdma::BUSY_HOST_TIMEOUT;
use super::stats::{self, Percentiles, Samples};
use crate::args::{BenchArgs, Wait};
use crate::child::{Child, end_with_parent};
use crate::failure::{Doing, Failure};
use crate::here;
use crate::output::json;

/// What one mode costs.
#[derive(Clone, Debug, Serialize)]
struct Cost {
    wait: &'static str,
    threads: &'static str,
    bytes: usize,
    /// Half of a round trip.
    half_rtt_ns: Percentiles,
    /// Processor time by elapsed time, in hundredths, of all threads.
    client_cpu_percent: f64,
    server_cpu_percent: f64,
}

/// The names of the ways to thread.
const THREADS: [(&str, ThreadMode); 2] =
    [("per-channel", ThreadMode::PerChannel), ("shared-cq", ThreadMode::SHARED)];

/// Runs all six, and prints the table.
pub(super) fn run(args: &BenchArgs) -> Result<(), Failure> {
    args.connection.choice().check()?;
    if let Some(mode) = &args.modes_child {
        return serve(mode, args);
    }
    let mut costs = Vec::new();
    for wait in [Wait::Busy, Wait::Channel, Wait::Epoll] {
        for (threads, mode) in THREADS {
            costs.push(measure(args, wait, threads, mode)?);
        }
    }
    let text = match args.json {
        true => json(serde_json::json!({ "modes": costs }))?,
        false => table(&costs),
    };
    std::io::stdout().write_all(text.as_bytes()).doing("printing the results")
}

fn table(costs: &[Cost]) -> String {
    let mut text = format!(
        "{:<8} {:<12} {:>9} {:>9} {:>9} {:>13} {:>13}\n",
        "wait", "threads", "p50 µs", "p99 µs", "99.9 µs", "client CPU %", "server CPU %"
    );
    for cost in costs {
        let us = |ns: u64| stats::to_f64(ns) / 1e3;
        let _ = writeln!(
            text,
            "{:<8} {:<12} {:>9.2} {:>9.2} {:>9.2} {:>13.0} {:>13.0}",
            cost.wait,
            cost.threads,
            us(cost.half_rtt_ns.p50),
            us(cost.half_rtt_ns.p99),
            us(cost.half_rtt_ns.p999),
            cost.client_cpu_percent,
            cost.server_cpu_percent,
        );
    }
    text
}

/// The session's settings: its threads stay on one processor, another for each end.
fn config(args: &BenchArgs, wait: Wait, threads: ThreadMode, end: usize) -> Config {
    let cpus = affinity::cpus().unwrap_or_default();
    let own = cpus.get(end).copied().filter(|_| !args.no_pin && cpus.len() > 1);
    let mut config = Config::default()
        .device(args.connection.device.clone().unwrap_or_else(here::device))
        .work_mode(wait.mode())
        .thread_mode(threads)
        .inline_bytes(args.inline)
        .cpus(own);
    config.adapter.ack_timeout = BUSY_HOST_TIMEOUT;
    config
}

fn bytes(args: &BenchArgs) -> usize {
    args.size.first().and_then(|bytes| usize::try_from(*bytes).ok()).unwrap_or(64)
}

fn measure(
    args: &BenchArgs,
    wait: Wait,
    threads: &'static str,
    mode: ThreadMode,
) -> Result<Cost, Failure> {
    let mut server = Server::start(args, wait, threads)?;
    let session = ClientSession::new(config(args, wait, mode, 0)).doing("opening the device")?;
    let endpoint = session.connect((here::address(), server.port)).doing("connecting")?;
    let channel = endpoint.channel("data").doing("looking for a channel")?;
    let bytes = bytes(args);
    let buffer = endpoint.adapter().buffer(2, bytes).doing("allocating")?;
    let (done, finished) = mpsc::channel();
    let duration = Duration::from_secs_f64(args.duration.unwrap_or(1.0));
    let asker = Asker {
        asking: Mutex::new(Asking {
            samples: Samples::new(),
            asked: Instant::now(),
            start: Instant::now() + duration / WARM_UP,
            end: Instant::now() + duration,
            done,
        }),
    };
    let asker = Arc::new(asker);
    let before = (usage().doing("asking for processor time")?.cpu(), Instant::now());
    let source = buffer.at(0).doing("taking a block")?;
    channel.post_recv(buffer.at(1).doing("taking a block")?).doing("posting a receive")?;
    endpoint.handle(Arc::<Asker>::clone(&asker)).doing("starting a thread")?;
    channel.post_send(source).doing("sending")?;
    let patience = duration + PATIENCE;
    finished.recv_timeout(patience).doing("waiting for the messages")?;
    let cpu = usage().doing("asking for processor time")?.cpu().saturating_sub(before.0);
    let elapsed = before.1.elapsed();
    endpoint.close().doing("closing")?;
    let asking = asker.asking.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Cost {
        wait: wait.name(),
        threads,
        bytes,
        half_rtt_ns: asking.samples.percentiles().halved(),
        client_cpu_percent: percent(cpu, elapsed),
        server_cpu_percent: server.finish()?,
    })
}

fn percent(cpu: Duration, elapsed: Duration) -> f64 {
    let percent = cpu.as_secs_f64() / elapsed.as_secs_f64().max(f64::MIN_POSITIVE) * 100.0;
    (percent * 10.0).round() / 10.0
}

/// The client's handler: answers each message with the next.
struct Asker {
    asking: Mutex<Asking>,
}

struct Asking {
    samples: Samples,
    asked: Instant,
    /// Samples before this are not counted.
    start: Instant,
    end: Instant,
    done: Sender<()>,
}

impl Handler for Asker {
    fn received(&self, channel: &Channel, event: Event) {
        let asking = &mut *self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now >= asking.start {
            asking.samples.record(now - asking.asked);
        }
        if now >= asking.end {
            let _ = asking.done.send(());
            return;
        }
        asking.asked = now;
        let source = event.block.buffer().at(0);
        // A channel that has failed says so to `failed`.
        let _ = channel.post_recv(event.block);
        let _ = source.map(|source| channel.post_send(source));
    }

    fn failed(&self, _channel: &Channel, _event: Event) {
        // The other side waits for the end in vain, and says so.
    }
}

/// The server's handler: answers each message with the same.
struct Answerer {
    bytes: usize,
    started: Mutex<Option<(Duration, Instant)>>,
    gone: Mutex<Sender<f64>>,
}

impl Handler for Answerer {
    fn established(&self, endpoint: &Endpoint) {
        let cpu = usage().map(|usage| usage.cpu()).unwrap_or_default();
        *self.started.lock().unwrap_or_else(PoisonError::into_inner) = Some((cpu, Instant::now()));
        let Ok(buffer) = endpoint.adapter().buffer(4, self.bytes) else {
            return;
        };
        for channel in endpoint.channels() {
            // Two more than are ever on their way.
            for block in (0..3).map_while(|_| buffer.next().ok()) {
                let _ = channel.post_recv(block);
            }
        }
    }

    fn received(&self, channel: &Channel, event: Event) {
        let _ = channel.post_send(event.block);
    }

    fn sent(&self, channel: &Channel, event: Event) {
        let _ = channel.post_recv(event.block);
    }

    fn gone(&self, _peer: &PeerInfo, _how: Departure) {
        let started = self.started.lock().unwrap_or_else(PoisonError::into_inner).take();
        let now = usage().map(|usage| usage.cpu()).unwrap_or_default();
        let used = started.map_or(0.0, |(cpu, at)| percent(now.saturating_sub(cpu), at.elapsed()));
        let _ = self.gone.lock().unwrap_or_else(PoisonError::into_inner).send(used);
    }
}

/// The server's process: serves one client, and says what that took.
fn serve(mode: &str, args: &BenchArgs) -> Result<(), Failure> {
    let unknown = || Failure::usage(format!("no mode {mode}"));
    let (wait, threads) = mode.split_once(',').ok_or_else(unknown)?;
    let waits = [Wait::Busy, Wait::Channel, Wait::Epoll];
    let wait = waits.into_iter().find(|known| known.name() == wait).ok_or_else(unknown)?;
    let threads = THREADS.iter().find(|(name, _)| *name == threads).ok_or_else(unknown)?;
    let config = config(args, wait, threads.1, 1);
    let server = ServerSession::bind((here::address(), 0), config).doing("listening")?;
    println!("{}", server.local_addr().port());
    std::io::stdout().flush().doing("saying the port")?;
    let (gone, finished) = mpsc::channel();
    let answerer =
        Answerer { bytes: bytes(args), started: Mutex::default(), gone: Mutex::new(gone) };
    let service = server.serve(Arc::new(answerer)).doing("serving")?;
    end_with_parent()?;
    let used = finished.recv().doing("waiting for the client")?;
    println!("{used}");
    service.stop();
    Ok(())
}

/// The server as a child.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(args: &BenchArgs, wait: Wait, threads: &str) -> Result<Self, Failure> {
        let mut command = Child::command()?;
        let mode = format!("{},{threads}", wait.name());
        command.args(["bench", "--modes", "--modes-child", &mode]);
        command.args(["--size", &bytes(args).to_string(), "--inline", &args.inline.to_string()]);
        if let Some(device) = &args.connection.device {
            command.args(["--device", device]);
        }
        if args.no_pin {
            command.arg("--no-pin");
        }
        let (child, port) = Child::listen(command)?;
        Ok(Self { child, port })
    }

    /// The processor time that it has used, in hundredths of the time.
    fn finish(&mut self) -> Result<f64, Failure> {
        self.child.line()?.trim().parse().doing("reading what the server used")
    }
}

/// The part of the time, one in so many, that is not counted.
const WARM_UP: u32 = 5;
const PATIENCE: Duration = Duration::from_secs(20);
