//! What a run has found, in the shape in which it leaves the program.
//!
//! The types here are the JSON that `docs/json.md` promises: a change of a name is a change of
//! an interface. `csv.rs` prints the same for spreadsheets, `screen.rs` for people as it comes: in tables
//! (`table.rs`) or as the main figures (`summary.rs`).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::client::Figure;
use super::floor::{FloorSpec, FloorValue};
use super::machine::Machine;
use super::plan::{Buffers, Job, Memory, Plan, Quantity};
use super::stats::{Percentiles, median, ratio};
use crate::args::{Op, Test};
use crate::failure::Failure;
use crate::output::SCHEMA_VERSION;
use adverb::verbs::DataPath;

pub(crate) mod compare;
pub(crate) mod csv;
pub(crate) mod plot;
pub(crate) mod screen;
mod summary;
mod table;

/// Everything that a run has found.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Report {
    /// [`SCHEMA_VERSION`] of the command that has written it.
    pub(crate) schema_version: u32,
    /// Where it was measured.
    pub(crate) machine: Machine,
    /// How often everything was measured.
    pub(crate) rounds: u32,
    /// The same of what went through shared memory, after the rest.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) shm_rounds: Option<u32>,
    /// What plain sockets and shared pages reach.
    pub(crate) floors: Vec<FloorRecord>,
    /// What RDMA reaches.
    pub(crate) results: Vec<Record>,
}

/// One result.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Record {
    /// What was measured.
    pub(crate) test: Test,
    /// Of which operation.
    pub(crate) op: Op,
    /// By which way the bytes went.
    pub(crate) path: Path,
    /// Message length.
    pub(crate) bytes: u64,
    /// Of a bandwidth: where the messages lie.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) buffers: Option<Buffers>,
    /// Of neighbours: the messages lie in memory of the caller's own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) memory: Option<Memory>,
    /// Of a rate: requests in one post.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) post_list: Option<u32>,
    /// The figure.
    #[serde(flatten)]
    pub(crate) value: Value,
    /// What plain sockets, or shared pages, reach for the same length.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) floor: Option<Floor>,
    /// The figure divided by the floor's; of a latency, the medians.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) ratio: Option<f64>,
    /// Of a bandwidth: the figure divided by that of a stream over TCP.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) tcp_ratio: Option<f64>,
}

/// A figure with its unit.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) enum Value {
    /// From the post of a request to its completion.
    #[serde(rename = "completion_ns")]
    Completion(Percentiles),
    /// Half of a ping-pong.
    #[serde(rename = "half_rtt_ns")]
    HalfRoundTrip(Percentiles),
    /// Payload that has arrived.
    #[serde(rename = "bytes_per_s")]
    BytesPerSecond(u64),
    /// Messages that have arrived.
    #[serde(rename = "messages_per_s")]
    MessagesPerSecond(u64),
}

/// What the machine reaches, in the unit of the result it stands beside.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Floor {
    /// How it was measured.
    pub(crate) name: String,
    /// In nanoseconds (the median), bytes a second, packets or messages a second.
    pub(crate) value: u64,
}

/// What the machine reaches, by itself.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct FloorRecord {
    /// How it was measured.
    pub(crate) name: String,
    /// Which way the bytes of the results went beside which it was measured.
    pub(crate) path: Path,
    /// Length of a message, a packet or a write.
    pub(crate) bytes: u64,
    /// Of a ping-pong: length of the answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) reply_bytes: Option<u64>,
    /// Of copies: where they lie.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) buffers: Option<Buffers>,
    /// Of a ring: messages at a time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) post_list: Option<u32>,
    /// Of packets: the memory that they come from and go to, if it is more than that of one burst.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) memory_bytes: Option<u64>,
    /// The figure.
    #[serde(flatten)]
    pub(crate) value: FloorFigure,
}

/// A floor's figure with its unit.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) enum FloorFigure {
    /// There and back.
    #[serde(rename = "rtt_ns")]
    RoundTrip(Percentiles),
    /// Bytes that have arrived.
    #[serde(rename = "bytes_per_s")]
    BytesPerSecond(u64),
    /// Messages that have arrived.
    #[serde(rename = "messages_per_s")]
    MessagesPerSecond(u64),
}

/// By which way the bytes went.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Path {
    /// RoCEv2 packets through UDP sockets.
    Udp,
    /// Shared memory between two processes.
    Shm,
    /// Within one process.
    Local,
    /// An RDMA NIC.
    Hw,
}

impl Path {
    /// Of a queue pair's.
    pub(crate) fn of(path: Option<DataPath>) -> Self {
        match path {
            Some(DataPath::SharedMemory) => Self::Shm,
            Some(DataPath::InProcess) => Self::Local,
            Some(_) | None => Self::Udp,
        }
    }
}

impl Record {
    /// How much of the floor's speed it has: 1 is as fast.
    pub(crate) fn share(&self) -> Option<f64> {
        let ratio = self.ratio.filter(|ratio| *ratio > 0.0)?;
        Some(match self.test {
            Test::Latency => 1.0 / ratio,
            Test::Bandwidth | Test::Rate => ratio,
        })
    }

    /// Its bytes did not go through UDP sockets.
    pub(crate) fn is_beyond_udp(&self) -> bool {
        self.path != Path::Udp
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Udp => "udp (RoCEv2)",
            Self::Shm => "shm (shared memory)",
            Self::Local => "local (one process)",
            Self::Hw => "hw (RDMA NIC)",
        })
    }
}

/// Limits that the user has set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// Bandwidth at least, Gbit/s.
    pub(crate) gbits: Option<f64>,
    /// Rate at least, million messages a second.
    pub(crate) mmsgs: Option<f64>,
    /// Median latency at most, µs.
    pub(crate) usec: Option<f64>,
}

/// Figures of all rounds.
#[derive(Debug)]
pub(crate) struct Findings {
    device: String,
    mtu: u16,
    path: Path,
    /// How often everything was measured, at least.
    pub(crate) rounds: u32,
    jobs: Vec<(Job, Vec<Figure>)>,
    floors: BTreeMap<FloorSpec, Vec<FloorValue>>,
}

impl Findings {
    /// None yet, of `device` with path MTU `mtu`, by this way.
    pub(crate) fn of(device: &str, mtu: u16, path: Path) -> Self {
        Self {
            device: device.to_owned(),
            mtu,
            path,
            rounds: 0,
            jobs: Vec::new(),
            floors: BTreeMap::new(),
        }
    }

    /// A job has been run once.
    pub(crate) fn add(&mut self, job: Job, figure: Figure) {
        match self.jobs.iter_mut().find(|(known, _)| *known == job) {
            Some((_, figures)) => figures.push(figure),
            None => self.jobs.push((job, vec![figure])),
        }
    }

    /// A floor has been measured once.
    pub(crate) fn add_floor(&mut self, spec: FloorSpec, value: FloorValue) {
        self.floors.entry(spec).or_default().push(value);
    }

    /// A floor has not been measured as often as this.
    pub(crate) fn lacks(&self, spec: FloorSpec, rounds: u32) -> bool {
        let count = self.floors.get(&spec).map_or(0, Vec::len);
        u32::try_from(count).is_ok_and(|count| count < rounds)
    }

    /// Medians over the rounds, each result beside its floor.
    pub(crate) fn report(&self, machine: Machine, plan: &Plan) -> Report {
        Report {
            schema_version: SCHEMA_VERSION,
            machine: self.machine(machine),
            rounds: self.rounds,
            shm_rounds: None,
            results: self.jobs.iter().filter_map(|(job, _)| self.record(*job, plan)).collect(),
            floors: self.floors(),
        }
    }

    /// Medians of all floors over the rounds.
    fn floors(&self) -> Vec<FloorRecord> {
        let record = |(&spec, values): (&FloorSpec, &Vec<FloorValue>)| {
            Some(FloorRecord::new(spec, self.path, median_floor(values)?))
        };
        self.floors.iter().filter_map(record).collect()
    }

    /// The machine, with the device that was used.
    fn machine(&self, machine: Machine) -> Machine {
        Machine { device: self.device.clone(), mtu: self.mtu, ..machine }
    }

    /// The median over the rounds of one job, beside that of its floor; `None` if it was not run.
    fn record(&self, job: Job, plan: &Plan) -> Option<Record> {
        let (_, figures) = self.jobs.iter().find(|(known, _)| *known == job)?;
        let floor = |spec| median_floor(self.floors.get(&spec)?);
        let value = median_value(job.quantity, figures)?;
        let beside = |spec| beside(value, spec, floor(spec)?);
        let floor_of_job = plan.floor(job, self.path, self.mtu).and_then(beside);
        Some(Record {
            test: job.quantity.test(),
            op: job.op,
            path: self.path,
            bytes: job.bytes,
            buffers: match job.quantity {
                Quantity::Bandwidth(buffers) => Some(buffers),
                Quantity::Completion | Quantity::HalfRoundTrip | Quantity::Rate { .. } => None,
            },
            memory: (job.memory == Memory::Caller).then_some(job.memory),
            post_list: match job.quantity {
                Quantity::Rate { list } => Some(list),
                Quantity::Completion | Quantity::HalfRoundTrip | Quantity::Bandwidth(_) => None,
            },
            value,
            ratio: floor_of_job.as_ref().and_then(|floor| ratio(value.compared(), floor.value)),
            floor: floor_of_job,
            tcp_ratio: floor(FloorSpec::TcpStream).and_then(|floor| value.to_tcp(floor)),
        })
    }
}

impl Value {
    /// The number that is compared with a floor and with a limit.
    pub(crate) const fn compared(self) -> u64 {
        match self {
            Self::Completion(percentiles) | Self::HalfRoundTrip(percentiles) => percentiles.p50,
            Self::BytesPerSecond(rate) | Self::MessagesPerSecond(rate) => rate,
        }
    }

    /// A bandwidth divided by that of a stream over TCP.
    fn to_tcp(self, stream: FloorFigure) -> Option<f64> {
        match (self, stream) {
            (Self::BytesPerSecond(ours), FloorFigure::BytesPerSecond(tcp)) => ratio(ours, tcp),
            (
                _,
                FloorFigure::RoundTrip(_)
                | FloorFigure::BytesPerSecond(_)
                | FloorFigure::MessagesPerSecond(_),
            ) => None,
        }
    }
}

impl FloorRecord {
    fn new(spec: FloorSpec, path: Path, value: FloorFigure) -> Self {
        Self {
            name: spec.name().to_owned(),
            path,
            bytes: spec.bytes(),
            reply_bytes: spec.reply_bytes(),
            buffers: spec.buffers(),
            post_list: spec.post_list(),
            memory_bytes: spec.memory_bytes(),
            value,
        }
    }
}

impl Report {
    /// Whether every result is within the limits.
    ///
    /// # Errors
    ///
    /// [`Failure::LimitNotMet`] with the first that is not.
    pub(crate) fn check(&self, limits: Limits) -> Result<(), Failure> {
        self.results.iter().try_for_each(|record| record.check(limits))
    }
}

impl Record {
    fn check(&self, limits: Limits) -> Result<(), Failure> {
        let number = super::stats::to_f64(self.value.compared());
        let (limit, got, worse, unit) = match self.value {
            Value::Completion(_) | Value::HalfRoundTrip(_) => {
                let usec = number / 1e3;
                (limits.usec, usec, limits.usec.is_some_and(|limit| usec > limit), "µs")
            }
            Value::BytesPerSecond(_) => {
                let gbits = number * 8.0 / 1e9;
                (limits.gbits, gbits, limits.gbits.is_some_and(|limit| gbits < limit), "Gbit/s")
            }
            Value::MessagesPerSecond(_) => {
                let rate = number / 1e6;
                let worse = limits.mmsgs.is_some_and(|limit| rate < limit);
                (limits.mmsgs, rate, worse, "million messages/s")
            }
        };
        match limit {
            Some(limit) if worse => Err(Failure::LimitNotMet(format!(
                "{} of {} bytes: {got:.3} {unit}, the limit is {limit}",
                self.op, self.bytes
            ))),
            Some(_) | None => Ok(()),
        }
    }
}

/// The median of what a floor has come to in each round.
fn median_floor(values: &[FloorValue]) -> Option<FloorFigure> {
    let mut round_trips = Vec::new();
    let (mut bytes, mut messages) = (Vec::new(), Vec::new());
    for value in values {
        match value {
            FloorValue::RoundTrip(percentiles) => round_trips.push(*percentiles),
            FloorValue::BytesPerSecond(rate) => bytes.push(*rate),
            FloorValue::MessagesPerSecond(rate) => messages.push(*rate),
        }
    }
    let round_trip = Percentiles::median(&round_trips).map(FloorFigure::RoundTrip);
    round_trip
        .or_else(|| median(bytes).map(FloorFigure::BytesPerSecond))
        .or_else(|| median(messages).map(FloorFigure::MessagesPerSecond))
}

/// The median of what a job has come to in each round.
fn median_value(quantity: Quantity, figures: &[Figure]) -> Option<Value> {
    let mut latencies = Vec::new();
    let mut rates = Vec::new();
    for figure in figures {
        match figure {
            Figure::Latency(percentiles) => latencies.push(*percentiles),
            Figure::PerSecond(rate) => rates.push(*rate),
        }
    }
    match quantity {
        Quantity::Completion => Percentiles::median(&latencies).map(Value::Completion),
        Quantity::HalfRoundTrip => Percentiles::median(&latencies).map(Value::HalfRoundTrip),
        Quantity::Bandwidth(_) => median(rates).map(Value::BytesPerSecond),
        Quantity::Rate { .. } => median(rates).map(Value::MessagesPerSecond),
    }
}

/// A floor in the unit of the value it stands beside.
fn beside(value: Value, spec: FloorSpec, floor: FloorFigure) -> Option<Floor> {
    let crosses_once = matches!(spec, FloorSpec::ShmPingpong { .. });
    let value = match (value, floor) {
        (Value::HalfRoundTrip(_), FloorFigure::RoundTrip(rtt)) => rtt.halved().p50,
        (Value::Completion(_), FloorFigure::RoundTrip(rtt)) if crosses_once => rtt.halved().p50,
        (Value::Completion(_), FloorFigure::RoundTrip(rtt)) => rtt.p50,
        (Value::BytesPerSecond(_), FloorFigure::BytesPerSecond(rate))
        | (Value::MessagesPerSecond(_), FloorFigure::MessagesPerSecond(rate)) => rate,
        (Value::MessagesPerSecond(_), FloorFigure::BytesPerSecond(rate)) => {
            rate.checked_div(spec.bytes())?
        }
        (
            Value::HalfRoundTrip(_) | Value::Completion(_),
            FloorFigure::BytesPerSecond(_) | FloorFigure::MessagesPerSecond(_),
        )
        | (Value::BytesPerSecond(_) | Value::MessagesPerSecond(_), FloorFigure::RoundTrip(_))
        | (Value::BytesPerSecond(_), FloorFigure::MessagesPerSecond(_)) => {
            return None;
        }
    };
    Some(Floor { name: spec.name().to_owned(), value })
}

#[cfg(test)]
mod tests;
