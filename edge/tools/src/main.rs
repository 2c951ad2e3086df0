//! The `adverb` command: what a person types to see, measure and check RDMA on this machine.
//!
//! One room for each subcommand, and `args.rs` in front of them. A subcommand ends with nothing or
//! with a [`Failure`], whose kind decides the exit code; this file is the only one that exits.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use signal_hook::consts::SIGTERM;

use crate::args::{Args, Command};

mod allreduce;
mod args;
mod bench;
mod child;
mod counters;
mod devices;
mod devinfo;
mod doctor;
mod drop_in;
mod failure;
mod generate;
mod help;
mod here;
mod mesh;
mod output;
mod panics;
mod pingpong;
mod program;
mod progress;
mod prometheus;
mod run;
mod sockets;
mod terminal;
mod top;

fn main() -> ExitCode {
    panics::report_them();
    // With a stack of its own: what the system gives the first thread (`ulimit -s`) may be too small for the
    // command line.
    let command =
        thread::Builder::new().name("adverb".to_owned()).stack_size(STACK_BYTES).spawn(run);
    match command.map(thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        Ok(Err(_)) => ExitCode::from(PANICKED),
        Err(error) => {
            complain(&failure::Failure::failed(format!("no memory for a thread: {error}")));
            ExitCode::FAILURE
        }
    }
}

/// What the main thread mostly has.
const STACK_BYTES: usize = 8 << 20;
const DOCTOR: &str =
    "adverb: `adverb doctor` looks for the cause on this machine, and says what to do\n";
/// What Rust programs end with after a panic.
const PANICKED: u8 = 101;

fn run() -> ExitCode {
    let args = Args::read();
    end_on_sigterm();
    if let Err(error) = adverb::log_to_stderr() {
        let failure = failure::Failure::usage(error.to_string());
        complain(&failure);
        return failure.exit_code();
    }
    let ended = match args.command {
        Command::Allreduce(args) => allreduce::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Counters(args) => counters::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Devinfo(args) => devinfo::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Env(args) => run::env(&args),
        Command::Generate(args) => generate::run(&args, Args::definition()),
        Command::Mesh(args) => mesh::run(&args),
        Command::Pingpong(args) => pingpong::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Sockets(args) => sockets::run(&args),
        Command::Top(args) => top::run(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_closed_output() => ExitCode::SUCCESS,
        Err(failure) => {
            complain(&failure);
            failure.exit_code()
        }
    }
}

/// The kernel gives the first process of a container no signal that it has not asked for.
fn end_on_sigterm() {
    if std::process::id() == 1 {
        let at_once = Arc::new(AtomicBool::new(true));
        // Without a handler it ends as before: by SIGKILL.
        let _ = signal_hook::flag::register_conditional_shutdown(SIGTERM, 128 + SIGTERM, at_once);
    }
}

/// Says why, in one piece: other processes may write to the same place.
fn complain(failure: &failure::Failure) {
    if matches!(failure, failure::Failure::Told) {
        return;
    }
    let hint = if failure.is_for_the_doctor() { DOCTOR } else { "" };
    let line = format!("adverb: {failure}\n{hint}");
    eprint!("{line}");
}
