//! `adverb sockets`: runs a program with its sockets accelerated.
//!
//! All it does is to set environment variables and become the program; the library
//! `libadverb_sockets.so` does the rest, and `LD_PRELOAD` by hand does the same. `sockets/stat.rs`
//! looks at programs that run so, and `parameters` lists what can be set.

mod daemon;
mod helper;
mod interfaces;
mod source;
pub(crate) mod stat;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use adverb_sockconf::{PARAMETERS, Settings};
use clap::{Parser, Subcommand, ValueEnum};
use serde_json::json;

use crate::failure::Failure;
use crate::output::json_line;
use crate::program;

/// Options of `adverb sockets`.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct SocketsArgs {
    /// Something else than running a program
    #[command(subcommand)]
    action: Option<Action>,

    /// What matters most; none: waits that spin for as long as it pays
    #[arg(long, value_enum)]
    profile: Option<Profile>,

    /// How bytes may travel at most
    #[arg(long, value_enum)]
    transport: Option<Transport>,

    /// Say of every connection what has become of it
    #[arg(long)]
    explain: bool,

    /// Do not print version, command and settings
    #[arg(short, long)]
    quiet: bool,

    /// The library, if it is not beside this command
    #[arg(long, value_name = "FILE", env = "ADVERB_SOCKETS_LIBRARY")]
    library: Option<PathBuf>,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What matters most.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Profile {
    /// Spin for ever: a processor for each waiting thread.
    Latency,
    /// Large rings, short spins.
    Throughput,
    /// Never spin.
    Frugal,
    /// Frames of interfaces that a daemon owns.
    Frames,
}

/// How bytes may travel at most.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transport {
    /// The best there is for each connection.
    Best,
    /// The kernel, untouched.
    Os,
    /// The kernel, with waits that spin.
    Spin,
    /// Shared memory.
    Shm,
    /// Frames of interfaces that a daemon owns, past the kernel.
    Xdp,
}

/// Something else than running a program.
#[derive(Debug, Subcommand)]
enum Action {
    /// List every parameter with value, default, origin and effect
    Parameters {
        /// Print JSON
        #[arg(long)]
        json: bool,

        /// Print the table of the documentation
        #[arg(long, hide = true, conflicts_with = "json")]
        markdown: bool,
    },
    /// Show what accelerated programs count; the options are those of vma_stats
    Stat(stat::StatArgs),
    /// Watch accelerated programs: tell peers of those that are killed, clean up, keep totals
    Daemon(daemon::DaemonArgs),
}

pub(crate) fn run(args: &SocketsArgs) -> Result<(), Failure> {
    match &args.action {
        Some(Action::Parameters { markdown: true, .. }) => {
            print!("{}", table());
            Ok(())
        }
        Some(Action::Parameters { json, .. }) => parameters(*json),
        Some(Action::Stat(args)) => stat::run(args),
        Some(Action::Daemon(args)) => daemon::run(args),
        None => become_program(args),
    }
}

fn become_program(args: &SocketsArgs) -> Result<(), Failure> {
    let library = library_at(args.library.as_deref())?;
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(Failure::Usage("a command to run is missing".to_owned()));
    };
    if !args.quiet
        && let Some(why) = program::obstacle(program)
    {
        eprintln!("adverb: {why}; its sockets are the kernel's");
    }
    let mut command = Command::new(program);
    command.args(arguments);
    let mut preload = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    command.env("LD_PRELOAD", preload);
    if let Some(profile) = args.profile {
        let name = match profile {
            Profile::Latency => "latency",
            Profile::Throughput => "throughput",
            Profile::Frugal => "frugal",
            Profile::Frames => "frames",
        };
        command.env("ADVERB_SOCKETS_PROFILE", name);
    }
    if let Some(transport) = args.transport {
        let name = match transport {
            Transport::Best => "best",
            Transport::Os => "os",
            Transport::Spin => "spin",
            Transport::Shm => "shm",
            Transport::Xdp => "xdp",
        };
        command.env("ADVERB_SOCKETS_TRANSPORT", name);
    }
    if args.explain {
        command.env("ADVERB_SOCKETS_EXPLAIN", "1");
    }
    if args.quiet {
        command.env("ADVERB_SOCKETS_QUIET", "1");
    }
    let error = command.exec();
    Err(Failure::not_started(program, &error))
}

/// Finds the library: where the user says, or beside this command, or where packages put it.
fn library_at(named: Option<&Path>) -> Result<PathBuf, Failure> {
    const NAME: &str = "libadverb_sockets.so";
    if let Some(library) = named {
        return match library.canonicalize() {
            Ok(library) => Ok(library),
            Err(error) => Err(Failure::Failed(format!("{}: {error}", library.display()))),
        };
    }
    program::library(NAME).ok_or_else(|| {
        Failure::Failed(format!(
            "{NAME} is not beside this command: build it (cargo build --release -p adverb-sockets), or name it \
             with --library"
        ))
    })
}

/// All parameters, as `docs/parameters.md` has them.
fn table() -> String {
    let mut table = "# Parameters of accelerated sockets\n\nMade by `adverb sockets parameters --markdown`: every \
                     parameter of the manual, and ours. What each does here is its\neffect: `active` is what the \
                     manual says, `approximated` something close to it, `none` nothing, for the reason given.\n\n\
                     | parameter | default | values | effect |\n|---|---|---|---|\n"
        .to_owned();
    for parameter in PARAMETERS {
        let note = match parameter.effect.note() {
            "" => String::new(),
            note => format!(": {note}"),
        };
        let default = match parameter.default().to_string() {
            none if none.is_empty() => none,
            default => format!("`{default}`"),
        };
        let (name, allowed, effect) =
            (parameter.name, parameter.allowed(), parameter.effect.word());
        table.push_str(&format!("| `{name}` | {default} | {allowed} | {effect}{note} |\n"));
    }
    table
}

fn parameters(json: bool) -> Result<(), Failure> {
    let environment = std::env::vars_os().map(|(name, value)| (name.into_vec(), value.into_vec()));
    let (settings, warnings) = Settings::resolve([], environment);
    for warning in warnings {
        eprintln!("adverb: {warning}");
    }
    if json {
        let all: Vec<_> = settings
            .iter()
            .map(|setting| {
                json!({
                    "name": setting.parameter.name,
                    "value": setting.value.to_string(),
                    "default": setting.parameter.default().to_string(),
                    "origin": setting.origin.to_string(),
                    "effect": setting.parameter.effect.word(),
                    "note": setting.parameter.effect.note(),
                })
            })
            .collect();
        print!("{}", json_line(json!({ "parameters": all }))?);
        return Ok(());
    }
    println!("{:<38} {:<26} {:<26} {:<12} effect", "parameter", "value", "default", "origin");
    for setting in settings.iter() {
        let parameter = setting.parameter;
        let (value, default) = (setting.value.to_string(), parameter.default().to_string());
        let (origin, effect) = (setting.origin.to_string(), parameter.effect);
        let note = match effect.note() {
            "" => String::new(),
            note => format!(": {note}"),
        };
        let name = parameter.name;
        println!("{name:<38} {value:<26} {default:<26} {origin:<12} {}{note}", effect.word());
    }
    Ok(())
}
