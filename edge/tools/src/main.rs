//! The `adverb` command: what a person types to see, measure and check RDMA on this machine.
//!
//! One room for each subcommand, and `args.rs` in front of them. A subcommand ends with nothing or
//! with a [`Failure`], whose kind decides the exit code; this file is the only one that exits.

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};

mod args;
mod bench;
mod devices;
mod failure;
mod pingpong;

fn main() -> ExitCode {
    let args = Args::parse();
    let ended = match args.command {
        Command::Bench(args) => bench::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Pingpong(args) => pingpong::run(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("adverb: {failure}");
            failure.exit_code()
        }
    }
}
