//! `adverb mesh`: every node writes and sends to every other at once, and every block is checked.
//!
//! `place.rs` finds out which node this is, `node.rs` is one node, `local.rs` starts many on this
//! machine, `traffic.rs` is what they send, `pace.rs` keeps them level, `board.rs` is what each knows of
//! all, `report.rs` says what came of it.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use signal_hook::consts::SIGINT;
use signal_hook::flag;

use self::node::Task;
use self::place::{Place, Told};
use self::report::Report;
use self::traffic::BLOCK_BYTES_MIN;
use crate::args::MeshArgs;
use crate::bench::rdma::DeviceChoice;
use crate::child::stop_with_parent;
use crate::devices;
use crate::failure::{Doing, Failure};
use crate::output::{Output, json};
use crate::progress::NOW_AND_THEN;

mod board;
mod local;
mod node;
mod pace;
mod place;
mod report;
mod traffic;

pub(crate) use self::local::free_ports;

/// Runs the subcommand.
pub(crate) fn run(args: &MeshArgs) -> Result<(), Failure> {
    let bytes = usize::try_from(args.size).unwrap_or(usize::MAX);
    if !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&bytes) {
        return Err(Failure::usage(format!(
            "--size {bytes}: blocks of a mesh have {BLOCK_BYTES_MIN} to {BLOCK_BYTES_MAX} bytes"
        )));
    }
    devices::asked_for(None)?;
    let stop = on_interrupt()?;
    let terminal = std::io::stderr().is_terminal();
    let mut screen = Screen {
        lines: 0,
        live: terminal && !args.child,
        said: Instant::now(),
        piped: !terminal && !args.child,
    };
    if let Some(size) = args.local {
        let files = Files::create(args)?;
        let report = local::run(args, size, &stop, |report| screen.show(report))?;
        return finish(&report, args, files);
    }
    let told =
        Told { nodes: args.nodes.clone(), rank: args.rank, size: args.ranks, port: args.port };
    let place = Place::find(&told, |name| std::env::var(name).ok())?;
    DeviceChoice { device: args.device.clone(), gid_index: args.gid_index }.check()?;
    // All know the same: of many that a launcher has started, one says it.
    let is_heard = !place.launched || place.rank == 0;
    screen.live &= is_heard;
    screen.piped &= is_heard;
    let files = if is_heard { Files::create(args)? } else { Files::default() };
    let task = Task {
        place,
        bytes,
        traffic: args.traffic,
        duration: Duration::from_secs_f64(args.duration),
        stop,
        gather: !args.child,
        device: args.device.clone(),
        gid_index: args.gid_index,
        work_mode: args.wait.mode(),
    };
    if args.child {
        return child(task);
    }
    let screen = std::sync::Mutex::new(screen);
    let report = node::run(task, |_, report| {
        if let Ok(mut screen) = screen.lock() {
            screen.show(report);
        }
    })?;
    match is_heard {
        true => finish(&report, args, files),
        false => verdict(&report),
    }
}

/// What an interrupt sets, the first time. The second one ends the program, as it always would.
fn on_interrupt() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    flag::register_conditional_default(SIGINT, Arc::clone(&stop))
        .and_then(|_| flag::register(SIGINT, Arc::clone(&stop)))
        .doing("preparing for an interrupt")?;
    Ok(stop)
}

/// One node of a local mesh: ends with its parent, and speaks in lines of JSON.
fn child(task: Task) -> Result<(), Failure> {
    stop_with_parent(&task.stop)?;
    node::run(task, |row, _| {
        if let Ok(line) = serde_json::to_string(row) {
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
    })?;
    Ok(())
}

/// What the user wants to have in files.
#[derive(Default)]
struct Files {
    svg: Option<Output>,
    json: Option<Output>,
}

impl Files {
    fn create(args: &MeshArgs) -> Result<Self, Failure> {
        Ok(Self {
            svg: args.svg.as_deref().map(Output::create).transpose()?,
            json: args.output.as_deref().map(Output::create).transpose()?,
        })
    }
}

/// Prints the report, and says whether all was well.
fn finish(report: &Report, args: &MeshArgs, files: Files) -> Result<(), Failure> {
    if let Some(svg) = files.svg {
        svg.write(&report.svg())?;
    }
    if let Some(output) = files.json {
        output.write(&json(report)?)?;
    }
    let text = match args.json {
        true => json(report)?,
        false => format!("{}\n{}", report.table(), report.matrix()),
    };
    std::io::stdout().write_all(text.as_bytes()).doing("printing the results")?;
    verdict(report)
}

/// Whether all was well.
fn verdict(report: &Report) -> Result<(), Failure> {
    match (report.errors(), report.failed()) {
        (0, 0) => Ok(()),
        (0, 1) => Err(Failure::failed("1 node failed")),
        (0, failed) => Err(Failure::failed(format!("{failed} nodes failed"))),
        (errors, _) => {
            Err(Failure::failed(format!("{errors} blocks were spoilt, lost or repeated")))
        }
    }
}

/// A table that is drawn over the last one.
struct Screen {
    lines: usize,
    live: bool,
    /// What is heard goes to no terminal: a line now and then.
    said: Instant,
    piped: bool,
}

impl Screen {
    fn show(&mut self, report: &Report) {
        if self.piped && self.said.elapsed() >= NOW_AND_THEN {
            self.said = Instant::now();
            eprintln!("adverb: {}", report.line());
        }
        if !self.live {
            return;
        }
        let table = report.table();
        let up = if self.lines > 0 { format!("\x1b[{}A", self.lines) } else { String::new() };
        self.lines = table.lines().count();
        // Lines that a narrow terminal broke would be more than what is gone up.
        let table = format!("\x1b[?7l{up}{}\x1b[?7h", table.replace('\n', "\x1b[K\n"));
        eprint!("{table}");
    }
}

/// Each channel keeps some hundred blocks.
const BLOCK_BYTES_MAX: usize = 256 << 10;
