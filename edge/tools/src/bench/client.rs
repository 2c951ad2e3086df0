//! The client of a run: orders each test, runs its active side, and collects the figures.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use super::control::{Answer, Control, Order, PROTOCOL, Watch, unexpected};
use super::floor::{self, FloorSpec, Pages};
use super::measure::{Endpoint, Link, Pattern};
use super::plan::{Job, Memory, Plan, Quantity};
use super::rdma::{self, DeviceChoice};
use super::report::screen::Screen;
use super::report::{Findings, Path};
use super::stats::{Percentiles, per_second};
use crate::args::{Op, Test};
use crate::failure::{Doing, Failure};
use crate::progress::Progress;

/// What one run of one job has come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Figure {
    /// Nanoseconds; of a half round trip, already halved.
    Latency(Percentiles),
    /// Bytes or messages in a second.
    PerSecond(u64),
}

/// Connects to the server and agrees on the protocol.
pub(crate) fn greet(
    host: &str,
    port: u16,
    patience: Option<Duration>,
    pin: bool,
) -> Result<Control, Failure> {
    let mut control = Control::new(reach(host, port, patience)?)?;
    let answer = control.order(&Order::Hello { protocol: PROTOCOL.to_owned(), pin });
    let what = format_args!("greeting {host} port {port}, is it `adverb bench --server`?");
    let answer = answer.map_err(|failure| failure.during(what))?;
    let Answer::Hello { protocol } = answer else {
        return Err(unexpected(&answer));
    };
    if protocol != PROTOCOL {
        return Err(Failure::Failed(format!(
            "this client speaks {PROTOCOL}, the server {protocol}: use the same version of adverb"
        )));
    }
    Ok(control)
}

/// All addresses of a host; those of IPv6 may stand in brackets.
pub(crate) fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let found = (name, port).to_socket_addrs();
    found.map(Iterator::collect).doing(format_args!("looking for the host {host}"))
}

/// Opens a TCP connection to the first address of `host` that answers; with `patience` it goes on until that is over.
fn reach(host: &str, port: u16, patience: Option<Duration>) -> Result<TcpStream, Failure> {
    let (start, addresses) = (Instant::now(), addresses(host, port)?);
    let mut last = None;
    loop {
        for address in &addresses {
            let left = patience.map_or(CONNECT_TIME, |all| all.saturating_sub(start.elapsed()));
            // The standard library refuses to wait for no time at all.
            match TcpStream::connect_timeout(address, left.clamp(TRY_AGAIN, CONNECT_TIME)) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        if addresses.is_empty() || patience.is_none_or(|all| start.elapsed() >= all) {
            break;
        }
        thread::sleep(TRY_AGAIN);
    }
    let why = last.map_or_else(|| "it has no address".to_owned(), |error| error.to_string());
    Err(Failure::Failed(format!(
        "connecting to {host} port {port}: {why} (is `adverb bench --server` running there?)"
    )))
}

/// Runs the whole plan, row by row of what is shown: all rounds of one, in which its floors and its tests take
/// turns, so that both see the same machine. Each is on the `screen` as soon as it is known.
pub(crate) fn run(
    plan: &Plan,
    choice: &DeviceChoice,
    control: &mut Control,
    screen: &mut Screen,
) -> Result<Findings, Failure> {
    let mut memory = Memory::Library;
    let mut link = rdma::connect(control, choice, &plan.tuning(memory))?;
    let (path, mtu) = (link.endpoint().path(), link.endpoint().mtu());
    let mut findings = Findings::of(link.endpoint().device(), mtu, path);
    if plan.is_of_neighbours() && path == Path::Udp {
        return Ok(findings); // They cannot share memory: there is nothing new to say.
    }
    let mut floors = Floors::new(plan, path, control)?;
    floors.begin(control, &mut findings)?;
    let jobs = plan.jobs_on(path);
    let (steps, later) = plan.steps_on(path);
    let mut progress = Progress::new((steps.into(), later.into()));
    findings.rounds = plan.rounds;
    let (began, mut done) = (Instant::now(), 0);
    for row in jobs.chunk_by(|one, next| one.is_in_row_of(*next)) {
        done += row.len();
        let end = plan.budget.map(|budget| share(budget, done, jobs.len()));
        let mut last = Duration::ZERO;
        for round in 0..plan.rounds {
            let start = began.elapsed();
            // It will take as long as the one before.
            if round > 0 && end.is_some_and(|end| start + last > end) {
                findings.rounds = findings.rounds.min(round);
                progress.skip((plan.rounds - round) * u32::try_from(row.len()).unwrap_or(1));
                break;
            }
            for job in row {
                progress.step(job);
                if job.memory != memory {
                    memory = job.memory;
                    link = rdma::connect(control, choice, &plan.tuning(memory))?;
                }
                floors.measure_for(*job, mtu, control, &mut findings)?;
                let figure = run_job(&mut link, *job, path, plan, control);
                findings.add(*job, figure.map_err(|failure| failure.during(job))?);
            }
            last = began.elapsed() - start;
        }
        progress.clear();
        screen.show(&findings, row, plan)?;
    }
    Ok(findings)
}

/// When so many of all jobs are to be done, if each has as much of the budget.
fn share(budget: Duration, done: usize, all: usize) -> Duration {
    let part = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    budget * part(done) / part(all).max(1)
}

/// Floors between the tests.
#[derive(Debug)]
struct Floors<'a> {
    plan: &'a Plan,
    path: Path,
    pages: Option<Pages>,
    /// Of which streams TCP's floor was measured last.
    streaming: Option<(Op, Quantity, Memory)>,
}

impl<'a> Floors<'a> {
    fn new(plan: &'a Plan, path: Path, control: &mut Control) -> Result<Self, Failure> {
        let pages = match path {
            Path::Shm if plan.floors => Some(Pages::open(plan.tuning.layout.half_bytes, control)?),
            Path::Shm | Path::Udp | Path::Local | Path::Hw => None,
        };
        Ok(Self { plan, path, pages, streaming: None })
    }

    /// What the machine is like, whatever the jobs: at the head of tables.
    fn begin(&self, control: &mut Control, findings: &mut Findings) -> Result<(), Failure> {
        if !self.plan.floors || self.plan.is_summary() {
            return Ok(());
        }
        let more = if self.path == Path::Shm { &ON_ONE_HOST[..] } else { &[] };
        for _ in 0..self.plan.rounds {
            for spec in ALWAYS.iter().chain(more) {
                self.measure(*spec, control, findings)?;
            }
        }
        Ok(())
    }

    /// What a job stands on, just before it. Tables say more: what others use for the same.
    fn measure_for(
        &mut self,
        job: Job,
        mtu: u16,
        control: &mut Control,
        findings: &mut Findings,
    ) -> Result<(), Failure> {
        let Some(spec) = self.plan.floor(job, self.path, mtu) else {
            return Ok(());
        };
        if !self.plan.is_summary() {
            // What a stream reaches depends on what else the machine does: TCP's is measured a few times.
            let kind = (job.quantity.test() == Test::Bandwidth).then_some((
                job.op,
                job.quantity,
                job.memory,
            ));
            if kind.is_some() && kind != self.streaming {
                self.measure(FloorSpec::TcpStream, control, findings)?;
            }
            self.streaming = kind;
            for spec in self.compared(job) {
                if findings.lacks(spec, self.plan.rounds) {
                    self.measure(spec, control, findings)?;
                }
            }
        }
        // Streams, and latencies of memory, are as the machine is at the moment; a ping-pong of sockets that
        // other rows have is good for this one.
        let is_of_moment = self.path == Path::Shm || spec.is_stream() || self.plan.is_summary();
        if is_of_moment || findings.lacks(spec, self.plan.rounds) {
            self.measure(spec, control, findings)?;
        }
        Ok(())
    }

    /// What a program on one host would use instead of SEND.
    fn compared(&self, job: Job) -> impl Iterator<Item = FloorSpec> + use<> {
        let Job { bytes, .. } = job;
        let exchange = floor::Exchange { bytes, reply_bytes: bytes };
        let specs = [FloorSpec::UnixPingpong(exchange), FloorSpec::TcpPingpong(exchange)];
        let trip = (job.op, job.quantity) == (Op::Send, Quantity::HalfRoundTrip);
        specs.into_iter().filter({
            let wanted = trip && self.path == Path::Shm;
            move |_| wanted
        })
    }

    fn measure(
        &self,
        spec: FloorSpec,
        control: &mut Control,
        findings: &mut Findings,
    ) -> Result<(), Failure> {
        let limit = self.plan.limit.for_floor();
        let value = floor::measure(spec, self.pages.as_ref(), control, limit);
        findings.add_floor(spec, value.map_err(|failure| failure.during(spec))?);
        Ok(())
    }
}

/// Runs both sides of one job.
fn run_job<E: Endpoint>(
    link: &mut Link<E>,
    job: Job,
    path: Path,
    plan: &Plan,
    control: &mut Control,
) -> Result<Figure, Failure> {
    let bytes = link.check_length(job.bytes)?;
    link.clear_mark(bytes);
    let pattern = match (job.quantity, job.op) {
        (Quantity::HalfRoundTrip, Op::Send) => Pattern::EchoSend,
        (Quantity::HalfRoundTrip, Op::Write) => Pattern::EchoWrite,
        (_, Op::Write | Op::Read) if path == Path::Shm => Pattern::Rest,
        (_, Op::Send | Op::Write | Op::Read) => Pattern::Absorb,
    };
    control.start(&Order::Run { pattern, bytes: job.bytes })?;
    let figure = measure_job(link, job, pattern, plan, &mut Watch::new(control))?;
    control.stop()?;
    Ok(figure)
}

/// Runs this side of one job.
fn measure_job<E: Endpoint>(
    link: &mut Link<E>,
    job: Job,
    pattern: Pattern,
    plan: &Plan,
    watch: &mut Watch<'_>,
) -> Result<Figure, Failure> {
    let bytes = link.check_length(job.bytes)?;
    Ok(match pattern {
        Pattern::EchoSend => {
            let samples = link.send_round_trip(bytes, plan.limit, watch)?;
            Figure::Latency(samples.percentiles().halved())
        }
        Pattern::EchoWrite => {
            let samples = link.write_round_trip(bytes, plan.limit, watch)?;
            Figure::Latency(samples.percentiles().halved())
        }
        Pattern::Rest | Pattern::Absorb => match job.quantity {
            Quantity::Completion | Quantity::HalfRoundTrip => {
                let samples = link.completion(job.op, bytes, plan.limit, watch)?;
                Figure::Latency(samples.percentiles())
            }
            Quantity::Bandwidth(_) | Quantity::Rate { .. } => {
                let streamed = link.stream(plan.stream(job), plan.limit, watch)?;
                let unit = if job.quantity.test() == Test::Rate { 1 } else { job.bytes };
                Figure::PerSecond(per_second(streamed.messages * unit, streamed.elapsed))
            }
        },
    })
}

/// How long one address of a host may take to answer.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// How long to wait before a server is looked for again.
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// Measured before the jobs, whatever they are: what the machine is like.
const ALWAYS: [FloorSpec; 3] = [
    FloorSpec::UdpPingpong(floor::Exchange { bytes: 64, reply_bytes: 64 }),
    FloorSpec::TcpPingpong(floor::Exchange { bytes: 64, reply_bytes: 64 }),
    FloorSpec::TcpStream,
];
/// The same between two processes of one host.
const ON_ONE_HOST: [FloorSpec; 2] = [
    FloorSpec::UnixPingpong(floor::Exchange { bytes: 64, reply_bytes: 64 }),
    FloorSpec::UnixStream,
];
