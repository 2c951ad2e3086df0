//! Programs of the tree that the commands build and run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::Failure;

/// Has the compiler that has clippy's lints compile the packages of a workspace, and refuse them for a warning. It is what
/// `cargo clippy` does, for any command: what one has checked is not checked again for another.
pub(crate) const LINTED: [(&str, &str); 2] =
    [("RUSTC_WORKSPACE_WRAPPER", "clippy-driver"), ("CLIPPY_ARGS", "-Dwarnings")];

/// Where `cargo` puts what it builds.
pub(crate) fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Has `cargo` build a test or bench program, without running it, and says where it is.
pub(crate) fn build(root: &Path, mut cargo: Command) -> Result<String, Failure> {
    cargo.current_dir(root).args(["--no-run", "--message-format=json"]).stderr(Stdio::inherit());
    let output = run(cargo)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().rev().find_map(|line| {
        let (_, rest) = line.split_once(r#""executable":""#)?;
        Some(rest.split_once('"')?.0.to_owned())
    });
    found.ok_or_else(|| "cargo has built no program".to_owned())
}

/// A command in a network namespace of its own: no other process's packets.
pub(crate) fn alone(words: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]).args(words);
    command
}

/// A command where we are.
pub(crate) fn among_others(words: &[&str]) -> Command {
    let (program, arguments) = words.split_first().unwrap_or((&"true", &[]));
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Runs a command to its end, which writes where we do.
pub(crate) fn watch(mut command: Command) -> Result<(), Failure> {
    let words: Vec<_> = [command.get_program()]
        .into_iter()
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect();
    let line = words.join(" ");
    let status = command.stdin(Stdio::null()).status();
    let status = status.map_err(|error| format!("cannot run {line}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{line}: {status}")) }
}

/// Runs a command to its end; what it wrote, if it succeeded.
pub(crate) fn run(mut command: Command) -> Result<Output, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot run {name}: {error}"))?;
    match output.status.success() {
        true => Ok(output),
        false => Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
