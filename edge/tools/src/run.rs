//! `adverb run` and `adverb env`: a program on libibverbs, on the software device.
//!
//! All they do is to set environment variables; the library `libadverb_ibverbs.so` does the rest, and `LD_PRELOAD`
//! by hand does the same. The program takes this process's place: signals and exit status are its own.
//!
//! With `--drop-in` the library is found as `libibverbs.so.1` in a directory of `LD_LIBRARY_PATH`: for launchers that take
//! `LD_PRELOAD` away, and for machines without libibverbs.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::{Parser, ValueEnum};

use crate::drop_in;
use crate::failure::Failure;
use crate::program;

/// Options of `adverb run`.
#[derive(Debug, Parser)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    how: How,

    /// Do not say what cannot work
    #[arg(short, long)]
    quiet: bool,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Options of `adverb env`.
#[derive(Debug, Parser)]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    how: How,
}

/// What both have.
#[derive(Debug, Parser)]
struct How {
    /// Which way queue pairs take to peers of this host
    #[arg(long, value_enum)]
    path: Option<Way>,

    /// The devices to show, in this order: names, soft (all of Adverb's), hw (all others)
    #[arg(long, value_delimiter = ',', value_name = "DEVICE")]
    devices: Vec<String>,

    /// Put the library in the place of libibverbs.so.1 (LD_LIBRARY_PATH) rather than in front of it (LD_PRELOAD)
    #[arg(long)]
    drop_in: bool,

    /// Say what is set, and why a call is refused
    #[arg(long)]
    explain: bool,

    /// The library, if it is not beside this command
    #[arg(long, value_name = "FILE", env = "ADVERB_IBVERBS_LIBRARY")]
    library: Option<PathBuf>,
}

/// Which way queue pairs take.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Way {
    /// Memory where both sides can, else UDP.
    Auto,
    /// Shared memory, or not at all.
    Shm,
    /// UDP always.
    Udp,
}

impl How {
    /// The variables, with their values.
    fn variables(&self) -> Result<Vec<(&'static str, OsString)>, Failure> {
        let library = self.library()?;
        let mut all = vec![match self.drop_in {
            true => ("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", drop_in::directory(&library)?)),
            false => ("LD_PRELOAD", before("LD_PRELOAD", library)),
        }];
        if let Some(path) = self.path {
            let name = match path {
                Way::Auto => "auto",
                Way::Shm => "shm",
                Way::Udp => "udp",
            };
            all.push(("ADVERB_PATH", name.into()));
        }
        if !self.devices.is_empty() {
            all.push(("ADVERB_DEVICES", self.devices.join(",").into()));
        }
        if self.explain {
            all.push(("ADVERB_EXPLAIN", "1".into()));
        }
        Ok(all)
    }

    fn library(&self) -> Result<PathBuf, Failure> {
        if let Some(library) = &self.library {
            let failed = |error| Failure::failed(format!("{}: {error}", library.display()));
            return library.canonicalize().map_err(failed);
        }
        program::library("libadverb_ibverbs.so").ok_or_else(|| {
            Failure::failed(
                "libadverb_ibverbs.so is not beside this command: build it (cargo build --release -p \
                 adverb-libibverbs), or name it with --library",
            )
        })
    }
}

/// A list of paths with this one in front of what the variable has.
fn before(variable: &str, first: PathBuf) -> OsString {
    let mut list = first.into_os_string();
    if let Some(others) = std::env::var_os(variable).filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(Failure::usage("a command to run is missing"));
    };
    let variables = args.how.variables()?;
    if !args.quiet
        && let Some(why) = program::obstacle_to_loading(program)
    {
        eprintln!("adverb: {why}; it will see no software device");
    }
    if !args.quiet && !args.how.drop_in && program::has_sanitizer(program) {
        eprintln!(
            "adverb: {} has AddressSanitizer, which wants no library in front of it: use --drop-in",
            program.display()
        );
    }
    if args.how.explain {
        explain(&variables);
    }
    let error = Command::new(program).args(arguments).envs(variables).exec();
    Err(Failure::not_started(program, &error))
}

fn explain(variables: &[(&str, OsString)]) {
    for (name, value) in variables {
        eprintln!("adverb: {name}={}", value.display());
    }
    for device in adverb::verbs::devices().unwrap_or_default() {
        let gids: Vec<_> =
            device.gids.iter().map(|entry| format!("{} {}", entry.index, entry.ip())).collect();
        eprintln!("adverb: {} has the GIDs {}", device.name, gids.join(", "));
    }
}

pub(crate) fn env(args: &EnvArgs) -> Result<(), Failure> {
    for (name, value) in args.how.variables()? {
        println!("export {name}={}", quoted(&value));
    }
    Ok(())
}

/// As a shell reads it.
fn quoted(value: &OsStr) -> String {
    format!("'{}'", value.to_string_lossy().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_what_was_meant() {
        for text in ["/usr/lib/x.so", "a b", "it's", "$HOME `id` \"q\""] {
            let command = format!("printf %s {}", quoted(OsStr::new(text)));
            let output = Command::new("sh").args(["-c", &command]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), text);
        }
    }
}
