//! The daemon's helper for one directory: sees when accelerated programs end, tells their peers, and cleans up.
//!
//! It runs as the user that the directory belongs to, with the library in front of the C library's functions as any
//! accelerated program, and has that do what it does when a program starts: tell the ends that have lost their peer,
//! and remove files of the dead. By lines on its standard output it says what has ended, and what runs if it is asked
//! for that; it ends when its standard input does.
//!
//! # Safety
//!
//! The library is called by `getsockopt` with a descriptor that is none, and an integer and a length of ours.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use adverb_sys::poll;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::daemon::{readable, wait_for};
use super::source::{Dead, Row, Source, sources_in};
use crate::failure::{Doing, Failure};
use crate::top::group::printable;

/// What a program has counted, or had.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Ended {
    pub(super) pid: u32,
    pub(super) command: String,
    pub(super) counters: Row,
}

/// One line of a helper's.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Report {
    Ended(Ended),
    Running(Vec<Ended>),
}

/// A longer line none has.
pub(super) const LINE_MAX: usize = 16 << 20;
/// Between two looks for programs that have started.
const SCAN: Duration = Duration::from_millis(100);
/// Letters of a command's name that are kept.
const COMMAND_MAX: usize = 64;

/// A program that is watched.
struct Watched {
    source: Source,
    /// `None`: it had ended when it was found.
    process: Option<OwnedFd>,
}

impl Watched {
    fn new(source: Source) -> Self {
        let pid = i32::try_from(source.pid).ok().and_then(Pid::from_raw);
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { source, process }
    }

    fn has_ended(&self) -> bool {
        let now = Some(Duration::ZERO);
        self.process
            .as_ref()
            .is_none_or(|process| poll::readable(process, std::iter::empty(), now).unwrap_or(false))
    }

    fn counted(&self) -> Ended {
        let name = self.source.command.split(' ').next().unwrap_or_default();
        let name = printable(name.rsplit('/').next().unwrap_or_default());
        let command = name.chars().take(COMMAND_MAX).collect();
        Ended { pid: self.source.pid, command, counters: self.source.totals() }
    }
}

/// The kernel's numbers for the file of a program: a child goes on with its parent's.
fn file_of(source: &Source) -> Option<(u64, u64)> {
    source.file.metadata().ok().map(|about| (about.dev(), about.ino()))
}

pub(super) fn run(directory: &Path) -> Result<(), Failure> {
    let mut known = BTreeMap::new();
    let input = std::io::stdin().as_fd().try_clone_to_owned().doing("the standard input")?;
    let mut input = BufReader::new(File::from(input));
    // What the dead have left behind is read before it is removed.
    look(directory, &mut known);
    if !clean_up() {
        eprintln!("adverb: the helper for {} is without the library", directory.display());
    }
    loop {
        if !fs::symlink_metadata(directory).is_ok_and(|about| about.is_dir()) && known.is_empty() {
            return Ok(()); // The last program has removed it.
        }
        let mut ended = Vec::new();
        known.retain(|file, watched: &mut Watched| {
            let has_ended = watched.has_ended();
            if has_ended {
                ended.push((*file, watched.counted()));
            }
            !has_ended
        });
        // Peers first: they wait. What the dead had counted is in memory here.
        if !ended.is_empty() {
            clean_up();
        }
        look(directory, &mut known);
        let mut is_asked = false;
        for (file, ended) in ended {
            // One that goes on with a file of one that has ended counts on where that has.
            if !known.contains_key(&file) {
                say(&Report::Ended(ended))?;
                while hear(&mut input)? != "kept" {
                    is_asked = true;
                }
            }
        }
        let processes = known.values().filter_map(|watched| watched.process.as_ref());
        let fds = std::iter::once(input.get_ref().as_fd()).chain(processes.map(AsFd::as_fd));
        if !is_asked && input.buffer().is_empty() {
            wait_for(fds.map(readable), SCAN);
        }
        let has_input =
            || poll::readable(input.get_ref(), std::iter::empty(), Some(Duration::ZERO));
        if !is_asked && (!input.buffer().is_empty() || has_input().unwrap_or(false)) {
            hear(&mut input)?;
            is_asked = true;
        }
        if is_asked {
            say(&Report::Running(known.values().map(Watched::counted).collect()))?;
        }
    }
}

/// Looks for programs that have started, or have ended without having been seen.
fn look(directory: &Path, known: &mut BTreeMap<(u64, u64), Watched>) {
    for source in sources_in(Some(directory), Dead::Listed) {
        if let Some(file) = file_of(&source)
            && known.get(&file).is_none_or(|watched| watched.source.pid != source.pid)
        {
            known.insert(file, Watched::new(source));
        }
    }
}

fn say(report: &Report) -> Result<(), Failure> {
    let line = serde_json::to_string(report).map_err(|error| Failure::Failed(error.to_string()))?;
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush()).doing("telling the daemon")
}

/// Waits for a word of the daemon's: `kept` when it has kept what has ended, or `stat`. This ends where it does.
fn hear(input: &mut impl BufRead) -> Result<String, Failure> {
    let mut line = String::new();
    let got = input.read_line(&mut line).doing("hearing the daemon")?;
    if got == 0 {
        std::process::exit(0);
    }
    Ok(line.trim().to_owned())
}

unsafe extern "C" {
    fn getsockopt(fd: i32, level: i32, name: i32, value: *mut i32, len: *mut u32) -> i32;
}

/// Has the library tell the ends that have lost their peer, and remove what the dead have left behind. Returns
/// whether there is one.
fn clean_up() -> bool {
    let (mut value, mut len) = (0_i32, 4_u32);
    // SAFETY: an integer and its length, both ours.
    unsafe { getsockopt(-1, SOL_SOCKET, CLEAN_UP, &raw mut value, &raw mut len) == 0 }
}

const SOL_SOCKET: i32 = 1;
/// The library's option for that, which no socket has.
const CLEAN_UP: i32 = 2899;
