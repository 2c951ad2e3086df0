//! `adverb allreduce`: processes of this machine add up a vector, and the result is checked.
//!
//! Each process is a member of a session's group. The numbers are small integers as `f32`, whose sums
//! are exact in any order, so that every bit of the result is known.

use std::io::Read;
use std::time::{Duration, Instant};

use adverb::session::{
    Adapter, ClientSession, Config, Endpoint, Group, Messenger, MessengerConfig, Reduction,
    ServerSession, Topology,
};

use crate::args::{AllreduceArgs, Shape};
use crate::bench::stats::{self, Samples};
use crate::child::{Child, end_with_parent};
use crate::devices;
use crate::failure::{Doing, Failure};
use crate::here;
use crate::mesh::free_ports;
use crate::output::json;
use crate::progress::Progress;

/// Runs the subcommand.
pub(crate) fn run(args: &AllreduceArgs) -> Result<(), Failure> {
    if let Some(rank) = args.rank {
        return member(args, rank);
    }
    if !args.size.is_multiple_of(NUMBER_BYTES) {
        let why = format!("--size {}: a vector of f32 has a multiple of 4 bytes", args.size);
        return Err(Failure::usage(why));
    }
    if args.width.is_some() && args.topology != Shape::Tree {
        return Err(Failure::usage("--width is for --topology tree: nothing else has one"));
    }
    devices::asked_for(None)?;
    let ports = free_ports(args.local)?;
    let ports = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    let members = (0..args.local).map(|rank| start(args, rank, &ports));
    let mut members = members.collect::<Result<Vec<_>, _>>()?;
    for (rank, child) in members.iter_mut().enumerate() {
        let mut said = String::new();
        // To its end, for waiting closes the pipe that keeps it alive.
        if let Some(mut stdout) = child.take_stdout() {
            stdout.read_to_string(&mut said).doing("waiting for a member")?;
        }
        let ended = child.wait().doing("waiting for a member")?;
        if !ended.success() {
            return Err(Failure::failed(format!("member {rank} failed")));
        }
        if rank == 0 {
            print!("{said}");
        }
    }
    Ok(())
}

fn start(args: &AllreduceArgs, rank: usize, ports: &str) -> Result<Child, Failure> {
    let mut command = Child::command()?;
    command.args(["allreduce", "--rank", &rank.to_string(), "--ports", ports]);
    command.args(["--local", &args.local.to_string(), "--size", &args.size.to_string()]);
    command.args(["--iters", &args.iters.to_string(), "--wait", args.wait.name()]);
    command.args(["--topology", args.topology.name()]);
    if args.json {
        command.arg("--json");
    }
    if let Some(width) = args.width {
        command.args(["--width", &width.to_string()]);
    }
    Child::start(command, "a member")
}

/// One member: joins the others, adds up, checks, and, if it is the first, says how long that took.
fn member(args: &AllreduceArgs, rank: usize) -> Result<(), Failure> {
    end_with_parent()?;
    let group = join(args, rank)?;
    let (size, mut group) = (group.size(), group.topology(topology(args)));
    let bytes = usize::try_from(args.size).doing("allocating the vector")?;
    let len = bytes.div_ceil(size_of::<f32>());
    let fresh: Vec<f32> = (0..len).map(|place| value(rank, place)).collect();
    let mut samples = Samples::new();
    let mut data = fresh.clone();
    let mut progress = (rank == 0).then(|| Progress::new((args.iters + 1, 0)));
    for round in 0..=args.iters {
        if let Some(progress) = &mut progress {
            progress.short_step("rounds");
        }
        data.copy_from_slice(&fresh);
        group.barrier().doing("waiting for the others")?;
        let start = Instant::now();
        group.allreduce(&mut data, Reduction::Sum).doing("adding up")?;
        if round > 0 {
            samples.record(start.elapsed()); // The first is to get acquainted.
        }
        for (place, sum) in data.iter().enumerate() {
            let due: f32 = (0..size).map(|rank| value(rank, place)).sum();
            if sum.to_bits() != due.to_bits() {
                return Err(Failure::failed(format!("number {place} is {sum}, not {due}")));
            }
        }
    }
    drop(progress);
    group.close().doing("parting from the others")?;
    if rank > 0 {
        return Ok(());
    }
    let took = samples.percentiles();
    let rate = stats::per_second(args.size, Duration::from_nanos(took.p50));
    let topology = args.topology.name();
    if args.json {
        let found = serde_json::json!({
            "members": size, "bytes": args.size, "topology": topology, "rounds": args.iters,
            "allreduce_ns": took, "bytes_per_s": rate,
        });
        print!("{}", json(found)?);
        return Ok(());
    }
    println!(
        "{size} members, {} bytes of f32, {topology}: every bit right; {:.3} ms, {:.3} GB/s",
        args.size,
        stats::to_f64(took.p50) / 1e6,
        stats::to_f64(rate) / 1e9,
    );
    Ok(())
}

/// Small integers, whose sums are exact.
fn value(rank: usize, place: usize) -> f32 {
    let mixed = (rank + 1).wrapping_mul(place % 977 + 1) % 1000;
    f32::from(u16::try_from(mixed).unwrap_or(0))
}

fn topology(args: &AllreduceArgs) -> Topology {
    match args.topology {
        Shape::Auto => Topology::Auto,
        Shape::Mesh => Topology::Mesh,
        Shape::Ring => Topology::Ring,
        Shape::Tree => Topology::Tree { width: usize::from(args.width.unwrap_or(WIDTH)) },
        Shape::DoubleTree => Topology::DoubleTree,
    }
}

/// Connects to those before, and waits for those after.
fn join(args: &AllreduceArgs, rank: usize) -> Result<Group, Failure> {
    let config = Config::default()
        .name(rank.to_string())
        .device(here::device())
        .work_mode(args.wait.mode())
        // There may be far more members than processors.
        .connect_timeout(PATIENCE)
        .handshake_timeout(PATIENCE)
        .work_timeout(PATIENCE);
    let adapter = Adapter::open(config).doing("opening the device")?;
    let port = args.ports.get(rank).copied().ok_or(Failure::usage("--ports has too few"))?;
    let server = ServerSession::bind_on((here::address(), port), adapter.clone());
    let mut server = server.doing("listening")?;
    let session = ClientSession::on(adapter);
    let open = |endpoint: &Endpoint| {
        Messenger::open(endpoint, "data", MessengerConfig::default()).doing("opening a messenger")
    };
    let mut peers: Vec<Option<Messenger>> = args.ports.iter().map(|_| None).collect();
    for (before, port) in args.ports.iter().enumerate().take(rank) {
        let endpoint = session.connect((here::address(), *port)).doing("connecting")?;
        if let Some(peer) = peers.get_mut(before) {
            *peer = Some(open(&endpoint)?);
        }
    }
    for _ in rank + 1..args.ports.len() {
        let endpoint = server.accept(PATIENCE).doing("waiting for a member")?;
        let from = endpoint.peer().name.as_str().parse::<usize>().doing("reading a rank")?;
        if let Some(peer) = peers.get_mut(from) {
            *peer = Some(open(&endpoint)?);
        }
    }
    Group::new(rank, peers).doing("making a group")
}

/// Bytes of an `f32`.
const NUMBER_BYTES: u64 = 4;
/// Members below each in a tree, unless told.
const WIDTH: u16 = 2;
const PATIENCE: Duration = Duration::from_secs(30);
