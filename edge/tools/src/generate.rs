//! `adverb generate`: manual pages and completions, from what `--help` says. Packages have them; it is not listed.

use std::path::PathBuf;

use clap::{Command, Parser};
use clap_complete::Shell;

use crate::failure::{Doing, Failure};

/// Options of `adverb generate`.
#[derive(Debug, Parser)]
pub(crate) struct GenerateArgs {
    /// Where `man` and `completions` are made
    directory: PathBuf,
}

/// Runs the subcommand, on the definition of the whole command line.
pub(crate) fn run(args: &GenerateArgs, mut command: Command) -> Result<(), Failure> {
    let [man, completions] = ["man", "completions"].map(|name| args.directory.join(name));
    for directory in [&man, &completions] {
        let making = format!("making {}", directory.display());
        std::fs::create_dir_all(directory).doing(making)?;
    }
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut command, "adverb", &completions)
            .doing("writing completions")?;
    }
    clap_mangen::generate_to(without_help(command), &man).doing("writing manual pages")
}

/// `adverb help bench` is the page of `adverb bench`: it has none of its own.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}
