//! `adverb bench`: latency, bandwidth and message rate, beside what the machine's sockets reach, or
//! its memory.
//!
//! Two processes, always. Each knows only how to be one end: `server.rs` follows orders, `client.rs`
//! gives them, `control.rs` carries them. Without a host the client starts a server of its own on
//! this machine. `plan.rs` decides what is measured, `measure.rs` and `floor.rs` do it, `report.rs`
//! says what came out. `modes.rs` and `layers.rs` are measurements of their own: the ways of a session
//! to wait, and what it adds to verbs.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use self::control::Order;
use self::local::LocalServer;
use self::machine::Machine;
use self::plan::Plan;
use self::rdma::DeviceChoice;
use self::report::screen::{Screen, Style};
use self::report::{Limits, Path, Record, Report};
use self::report::{compare, plot};
use self::server::ServerOptions;
use crate::args::BenchArgs;
use crate::devices;
use crate::failure::{Doing, Failure};
use crate::here;
use crate::output::Output;
use crate::terminal::Paint;

pub(crate) mod client;
pub(crate) mod control;
mod cpu;
mod floor;
mod layers;
pub(crate) mod local;
mod machine;
pub(crate) mod measure;
mod meeting;
mod modes;
mod pace;
pub(crate) mod plan;
pub(crate) mod rdma;
mod report;
pub(crate) mod server;
pub(crate) mod stats;

/// Runs the subcommand.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    if let [before, now] = args.compare.as_slice() {
        let (before, now) = (compare::read(before)?, compare::read(now)?);
        return compare::show(&before, &now, args.report_gbits, Paint::of_stdout());
    }
    devices::asked_for(None)?;
    if args.modes {
        return modes::run(args);
    }
    if args.layers {
        return layers::run(args);
    }
    let connection = &args.connection;
    let mut choice = connection.choice();
    if connection.server {
        let (bind, port, child) = (connection.bind, connection.port, connection.child);
        return server::run(&ServerOptions { bind, port, choice, child });
    }
    let plan = Plan::new(args)?;
    // Read before anything is measured: it may not be a report.
    let before = args.compare.first().map(|path| compare::read(path)).transpose()?;
    let pictures = Pictures::create(args)?;
    if connection.host.is_none() {
        choice.device.get_or_insert_with(here::device);
    }
    choice.check()?;
    let output = args.output.as_deref().map(Output::create).transpose()?;
    let style = match plan.is_summary() {
        true => Style::Summary,
        false if output.is_none() && (args.json || args.csv) => Style::Nothing,
        false => Style::Tables,
    };
    let paint = Paint::of_stdout();
    let mut screen = Screen::new(style, args.report_gbits, paint);
    let report = match &connection.host {
        Some(host) => {
            let patience = connection.connect_timeout.map(Duration::from_secs_f64);
            measure((host, connection.port, patience), &plan, &choice, &mut screen)?
        }
        None => measure_here(&plan, &choice, &mut screen)?,
    };
    match (style, output) {
        (Style::Summary, _) => screen.conclude(&report)?,
        (Style::Tables, None) => {}
        (Style::Nothing | Style::Tables, output) => write(&report, args, output)?,
    }
    pictures.draw(&report)?;
    if let Some(before) = before {
        compare::show(&before, &report, args.report_gbits, paint)?;
    }
    report.check(Limits { gbits: args.limit_bw, mmsgs: args.limit_msgrate, usec: args.limit_lat })
}

/// Files for pictures that the user has named.
#[derive(Debug)]
struct Pictures {
    svg: Option<Output>,
    html: Option<Output>,
}

impl Pictures {
    fn create(args: &BenchArgs) -> Result<Self, Failure> {
        let create = |path: &Option<PathBuf>| path.as_deref().map(Output::create).transpose();
        Ok(Self { svg: create(&args.svg)?, html: create(&args.html)? })
    }

    fn draw(self, report: &Report) -> Result<(), Failure> {
        if let Some(file) = self.svg {
            file.write(&plot::svg(report))?;
        }
        self.html.map_or(Ok(()), |file| file.write(&plot::html(report)))
    }
}

/// Both ends on this machine: over UDP beside what sockets do, and then through shared memory beside
/// what the memory does; or by the way that the environment asks for.
fn measure_here(
    plan: &Plan,
    choice: &DeviceChoice,
    screen: &mut Screen,
) -> Result<Report, Failure> {
    let asked = std::env::var_os(LOCAL_PATH).is_some_and(|path| !path.is_empty());
    // Before this process binds itself to a processor, which a child would inherit.
    let server = LocalServer::start(choice, (!asked).then_some("udp"))?;
    let neighbour = match asked || choice.is_hardware() {
        true => None,
        false => Some(LocalServer::start(choice, Some("auto"))?),
    };
    let here = here::address().to_string();
    let first = if neighbour.is_some() { plan.before_neighbours() } else { plan.clone() };
    let mut report = measure((&here, server.port, None), &first, choice, screen)?;
    drop(server);
    if let Some(neighbour) = neighbour {
        let more = measure((&here, neighbour.port, None), &plan.of_neighbours(), choice, screen)?;
        // Where neighbours cannot share memory there is nothing new to say.
        report.shm_rounds = more.results.iter().any(Record::is_beyond_udp).then_some(more.rounds);
        report.results.extend(more.results.into_iter().filter(Record::is_beyond_udp));
        report.floors.extend(more.floors.into_iter().filter(|floor| floor.path != Path::Udp));
    }
    Ok(report)
}

/// The client's whole run against a server at `host`, which may take so long to be there.
fn measure(
    (host, port, patience): (&str, u16, Option<Duration>),
    plan: &Plan,
    choice: &DeviceChoice,
    screen: &mut Screen,
) -> Result<Report, Failure> {
    let _ = cpu::count(); // Asked before this process is bound to one.
    let mut control = client::greet(host, port, patience, plan.pin)?;
    let pinned = plan.pin && cpu::pin(cpu::End::Client);
    screen.machine(Machine::look(pinned));
    let findings = client::run(plan, choice, &mut control, screen);
    let findings = findings.map_err(|failure| control.explain(failure))?;
    let _ = control.send(&Order::End); // What was measured is there, whether the server still is or not.
    Ok(findings.report(Machine::look(pinned), plan))
}

/// Writes the report for programs, to the file that the user has named or to the screen.
fn write(report: &Report, args: &BenchArgs, output: Option<Output>) -> Result<(), Failure> {
    let in_csv = args.csv
        || args.output.as_deref().is_some_and(|path| path.extension().is_some_and(|e| e == "csv"));
    let text = match in_csv && !args.json {
        true => report::csv::csv(report),
        false => serde_json::to_string_pretty(report).doing("writing JSON")? + "\n",
    };
    match output {
        Some(output) => output.write(&text),
        None => std::io::stdout().write_all(text.as_bytes()).doing("printing the results"),
    }
}

/// What chooses the way between two processes of one machine.
const LOCAL_PATH: &str = "ADVERB_PATH";
