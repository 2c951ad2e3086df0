//! The client of a run: orders each test, runs its active side, and collects the figures.

use std::collections::BTreeSet;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::control::{Answer, Control, Order, PROTOCOL, Watch, unexpected};
use super::floor::{self, FloorSpec};
use super::measure::{Endpoint, Link, Pattern};
use super::plan::{Job, Plan, Quantity};
use super::progress::Progress;
use super::rdma::{self, DeviceChoice};
use super::report::Findings;
use super::stats::{Percentiles, per_second};
use crate::args::{Op, Test};
use crate::failure::{Doing, Failure};

/// What one run of one job has come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Figure {
    /// Nanoseconds; of a half round trip, already halved.
    Latency(Percentiles),
    /// Bytes or messages in a second.
    PerSecond(u64),
}

/// Connects to the server and agrees on the protocol.
pub(crate) fn greet(host: &str, port: u16, pin: bool) -> Result<Control, Failure> {
    let mut control = Control::new(reach(host, port)?)?;
    let answer = control.order(&Order::Hello { protocol: PROTOCOL.to_owned(), pin })?;
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

/// Opens a TCP connection to the first address of `host` that answers.
fn reach(host: &str, port: u16) -> Result<TcpStream, Failure> {
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let addresses =
        (name, port).to_socket_addrs().doing(format_args!("looking for the host {host}"))?;
    let mut last = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_TIME) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    let why = last.map_or_else(|| "it has no address".to_owned(), |error| error.to_string());
    Err(Failure::Failed(format!(
        "connecting to {host} port {port}: {why} (is `adverb bench --server` running there?)"
    )))
}

/// Runs the whole plan. Floors and tests take turns, so that both see the same machine.
pub(crate) fn run(
    plan: &Plan,
    choice: &DeviceChoice,
    control: &mut Control,
) -> Result<Findings, Failure> {
    let mut link = rdma::connect(control, choice, &plan.tuning)?;
    let mtu = link.endpoint().mtu();
    let mut findings = Findings::of(link.endpoint().device(), mtu, link.endpoint().path());
    let mut progress = Progress::new(plan.jobs.len() * usize::try_from(plan.rounds).unwrap_or(1));
    let began = Instant::now();
    for round in 1..=plan.rounds {
        // As long as the rounds before have taken, so long will this one.
        let until_then = began.elapsed() * round;
        if round > 1 && plan.budget.is_some_and(|budget| until_then > budget * (round - 1)) {
            break;
        }
        findings.rounds = round;
        let mut seen = BTreeSet::new();
        let mut streaming = None;
        if plan.floors {
            for spec in ALWAYS {
                measure_floor(spec, plan, control, &mut findings)?;
                seen.insert(spec);
            }
        }
        for job in &plan.jobs {
            progress.step(format_args!("round {round}, {job}"));
            if let Some(spec) = plan.floor(*job, mtu) {
                // What a stream reaches depends on what else the machine does, far more than a
                // latency: each has its own floor just before it, and TCP's a few times a round.
                let kind =
                    (job.quantity.test() == Test::Bandwidth).then_some((job.op, job.quantity));
                if kind.is_some() && kind != streaming {
                    measure_floor(FloorSpec::TcpStream, plan, control, &mut findings)?;
                }
                streaming = kind;
                if spec.is_stream() || seen.insert(spec) {
                    measure_floor(spec, plan, control, &mut findings)?;
                }
            }
            let figure = run_job(&mut link, *job, plan, control);
            let figure = figure.map_err(|failure| failure.during(job))?;
            findings.add(*job, figure);
        }
    }
    Ok(findings)
}

/// Measures what plain sockets reach.
fn measure_floor(
    spec: FloorSpec,
    plan: &Plan,
    control: &mut Control,
    findings: &mut Findings,
) -> Result<(), Failure> {
    let value = floor::measure(spec, control, plan.limit.for_floor());
    findings.add_floor(spec, value.map_err(|failure| failure.during(spec))?);
    Ok(())
}

/// Runs both sides of one job.
fn run_job<E: Endpoint>(
    link: &mut Link<E>,
    job: Job,
    plan: &Plan,
    control: &mut Control,
) -> Result<Figure, Failure> {
    let bytes = link.check_length(job.bytes)?;
    link.clear_mark(bytes);
    let pattern = match (job.quantity, job.op) {
        (Quantity::HalfRoundTrip, Op::Send) => Pattern::EchoSend,
        (Quantity::HalfRoundTrip, Op::Write) => Pattern::EchoWrite,
        (_, Op::Send | Op::Write | Op::Read) => Pattern::Absorb,
    };
    control.start(&Order::Run { pattern, bytes: job.bytes })?;
    let mut watch = Watch::new(control);
    let figure = match pattern {
        Pattern::EchoSend => {
            let samples = link.send_round_trip(bytes, plan.limit, &mut watch)?;
            Figure::Latency(samples.percentiles().halved())
        }
        Pattern::EchoWrite => {
            let samples = link.write_round_trip(bytes, plan.limit, &mut watch)?;
            Figure::Latency(samples.percentiles().halved())
        }
        Pattern::Absorb => match job.quantity {
            Quantity::Completion | Quantity::HalfRoundTrip => {
                let samples = link.completion(job.op, bytes, plan.limit, &mut watch)?;
                Figure::Latency(samples.percentiles())
            }
            Quantity::Bandwidth(_) | Quantity::Rate => {
                let streamed = link.stream(plan.stream(job), plan.limit, &mut watch)?;
                let unit = if job.quantity == Quantity::Rate { 1 } else { job.bytes };
                Figure::PerSecond(per_second(streamed.messages * unit, streamed.elapsed))
            }
        },
    };
    control.stop()?;
    Ok(figure)
}

/// How long one address of a host may take to answer.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Measured at the start of every round, whatever the jobs: what the machine is like.
const ALWAYS: [FloorSpec; 3] = [
    FloorSpec::UdpPingpong(floor::Exchange { bytes: 64, reply_bytes: 64 }),
    FloorSpec::TcpPingpong(floor::Exchange { bytes: 64, reply_bytes: 64 }),
    FloorSpec::TcpStream,
];
