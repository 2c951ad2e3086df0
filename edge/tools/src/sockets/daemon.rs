//! `adverb sockets daemon`: watches accelerated programs, though none of them needs that.
//!
//! A *helper* for each user's directory (`helper.rs`) sees when a program ends, tells the peers of one that was killed,
//! and removes what it has left behind. It runs as that user: the daemon itself opens no file of another user's. The
//! daemon keeps what programs had counted, in a file that survives it, and answers `adverb sockets stat --daemon`,
//! where each user sees its own programs, and root all of them. Interfaces that it owns for programs are in
//! `interfaces.rs`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use adverb_sys::process;
use adverb_sys::unix::{Listener, Stream};
use clap::Parser;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::helper::{self, Ended, Report};
use super::interfaces::{self, Interfaces};
use super::source::{self, Row};
use crate::failure::{Doing, Failure};
use crate::output::json_line;

/// Options of `adverb sockets daemon`.
#[derive(Debug, Parser)]
#[command(after_help = "\
Runs until it is ended by a signal. As root it watches the programs of all users.

Examples:
  adverb sockets daemon                             programs of this user
  adverb sockets daemon --state /var/lib/adverb     totals are kept there
  adverb sockets daemon --interface eth0 --members 1000
                                                    hands frames of eth0 to programs of user 1000
  adverb sockets stat --daemon                      what it has seen

Exit codes: 0 ok, 1 failure, 2 wrong usage, 77 this machine lacks what it takes.")]
pub(crate) struct DaemonArgs {
    /// Where totals are kept; without it, below the home directory
    #[arg(long, value_name = "DIRECTORY", env = "STATE_DIRECTORY")]
    state: Option<PathBuf>,

    /// Watch this directory of this user, rather than that of each user, or this user's default
    #[arg(short = 'k', long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,

    /// Own these interfaces, and hand their frames (AF_XDP) to programs whose rules name the transport xdp
    #[arg(long = "interface", value_name = "NAME", value_delimiter = ',')]
    interfaces: Vec<String>,

    /// Users, by their numbers, whose programs may have frames: they can send under any address
    #[arg(long, value_name = "USER", value_delimiter = ',', requires = "interfaces")]
    members: Vec<u32>,

    /// Queues of an interface that each of these users gets; without it, the first user gets all
    #[arg(long, value_name = "COUNT", requires = "interfaces")]
    queues: Option<NonZeroU32>,

    /// The library, if it is not beside this command
    #[arg(long, value_name = "FILE", env = "ADVERB_SOCKETS_LIBRARY")]
    library: Option<PathBuf>,

    /// Watch one directory, for a daemon that runs this
    #[arg(long, hide = true, requires = "directory")]
    helper: bool,
}

/// What programs of one name had counted that have ended.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Total {
    processes: u64,
    counters: Row,
}

/// The same of all users, by their numbers, and the names of commands.
type Totals = BTreeMap<u32, BTreeMap<String, Total>>;

/// Names of one user's programs that are told apart; all others are one.
const COMMANDS_MAX: usize = 256;
const OTHERS: &str = "(others)";
/// Callers at a time.
const CALLERS_MAX: usize = 64;
/// How long a helper may take to say what it is asked for, and a caller to take the next message of its answer, or all.
const PATIENCE: Duration = Duration::from_secs(2);
const PATIENCE_IN_ALL: Duration = Duration::from_secs(20);
/// What one helper is heard of before the others are.
const TURN: usize = 64;
/// Between two looks for directories of users.
const SCAN: Duration = Duration::from_millis(500);

/// The name by which the daemon of a user is reached that watches a directory, or each user's.
fn name(user: u32, directory: Option<&Path>) -> Vec<u8> {
    let mut name = format!("adverb-sockets-daemon.{user}").into_bytes();
    let directory = directory.map(|path| path.as_os_str().as_encoded_bytes()).unwrap_or_default();
    name.extend(directory.iter().rev().take(60).rev());
    name
}

pub(super) fn run(args: &DaemonArgs) -> Result<(), Failure> {
    if let Some(directory) = args.directory.as_deref().filter(|_| args.helper) {
        return helper::run(directory);
    }
    let me = process::user();
    let listener = Listener::bind(&name(me, args.directory.as_deref())).map_err(|error| {
        let is_taken = error.kind() == ErrorKind::AddrInUse;
        let taken = "a daemon of this user watches that already".to_owned();
        Failure::Failed(if is_taken { taken } else { format!("the daemon's address: {error}") })
    })?;
    let state = state_directory(args, me)?;
    let totals = Totals::default();
    let library = super::library_at(args.library.as_deref())?;
    let interfaces = Interfaces::own(&args.interfaces, &args.members, args.queues)?;
    let file = state.join("totals.json");
    let helpers = Vec::new();
    let mut daemon = Daemon { file, totals, is_kept: true, library, helpers, interfaces };
    daemon.load()?;
    eprintln!("adverb: the daemon watches; totals are in {}", daemon.file.display());
    let mut callers: Vec<Caller> = Vec::new();
    loop {
        daemon.find_users(me, args.directory.as_deref());
        daemon.wait(&listener, &callers);
        while let Ok(stream) = listener.accept() {
            callers.truncate(CALLERS_MAX - 1);
            let (until, answer) = (None, VecDeque::new());
            callers.insert(0, Caller { stream, since: Instant::now(), until, answer });
        }
        daemon.hear();
        callers.retain_mut(|caller| daemon.serve(caller));
    }
}

/// One that asks what runs.
#[derive(Debug)]
struct Caller {
    stream: Stream,
    /// It has called.
    since: Instant,
    /// Once it has asked: when it is answered, even if helpers have not said by then what they were asked for. While it
    /// is answered: when that ends, unless it takes something before.
    until: Option<Instant>,
    /// What it has not been sent yet.
    answer: VecDeque<String>,
}

impl Caller {
    /// Sends what there is room for. Returns whether there is more to send.
    fn send(&mut self) -> bool {
        while let Some(what) = self.answer.front() {
            match self.stream.send(what.as_bytes(), &[]) {
                Ok(()) => self.until = Some(Instant::now() + PATIENCE),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return self.until.is_some_and(|until| Instant::now() < until);
                }
                // That one is too long for a message; others may not be.
                Err(error) if error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error()) => {}
                Err(_) => return false,
            }
            self.answer.pop_front();
        }
        false
    }
}

/// Where totals are kept.
fn state_directory(args: &DaemonArgs, me: u32) -> Result<PathBuf, Failure> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/state"));
    let state = match (&args.state, me) {
        (Some(state), _) => state.clone(),
        (None, 0) => PathBuf::from("/var/lib/adverb-sockets"),
        (None, _) => std::env::var_os("XDG_STATE_HOME")
            .map(PathBuf::from)
            .or_else(home)
            .map(|above| above.join("adverb-sockets"))
            .ok_or_else(|| Failure::Usage("no home directory: name one with --state".to_owned()))?,
    };
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(&state).doing("the directory of totals")?;
    Ok(state)
}

/// One directory's helper.
#[derive(Debug)]
struct Helper {
    user: u32,
    directory: PathBuf,
    child: Child,
    /// `None`: it is to end, and the next one starts when it has.
    talk: Option<Talk>,
    /// It has been asked what runs, and has not answered.
    is_asked: bool,
    /// What it has said runs, as much of that as is kept, and how many programs more.
    running: Vec<Ended>,
    left_out: usize,
}

/// Lines to and from a helper, none of which is waited for: its user may have stopped it.
#[derive(Debug)]
struct Talk {
    to: ChildStdin,
    from: ChildStdout,
    /// What it has said of the next lines, and how much of that has no end of a line.
    said: Vec<u8>,
    searched: usize,
}

impl Helper {
    /// Starts one, as the user that the directory belongs to.
    fn start(directory: &Path, library: &Path, me: u32) -> Option<Self> {
        let about = fs::symlink_metadata(directory).ok().filter(fs::Metadata::is_dir)?;
        let mut command = Command::new(std::env::current_exe().ok()?);
        command.args(["sockets", "daemon", "--helper", "-k"]).arg(directory);
        command.env_clear().env("LD_PRELOAD", library).env("ADVERB_SOCKETS_QUIET", "1");
        command.env("ADVERB_SOCKETS_SHM_DIR", directory).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if about.uid() != me {
            command.uid(about.uid()).gid(about.gid());
        }
        let mut child = command.spawn().ok()?;
        let talk = child.stdin.take().zip(child.stdout.take()).and_then(|(to, from)| {
            rustix::io::ioctl_fionbio(&to, true).ok()?;
            rustix::io::ioctl_fionbio(&from, true).ok()?;
            Some(Talk { to, from, said: Vec::new(), searched: 0 })
        });
        let directory = directory.to_owned();
        Some(Self {
            user: about.uid(),
            directory,
            child,
            talk,
            is_asked: false,
            running: Vec::new(),
            left_out: 0,
        })
    }

    /// What it says next, if it has said that to its end; it is to end if that makes no sense.
    fn hear(&mut self) -> Option<Report> {
        match self.talk.as_mut()?.hear() {
            Ok(report) => report,
            Err(_) => {
                self.end();
                None
            }
        }
    }

    fn tell(&mut self, what: &str) {
        let told = self.talk.as_mut().map(|talk| writeln!(talk.to, "{what}"));
        if !matches!(told, Some(Ok(()))) {
            self.end();
        }
    }

    /// It has nothing more to say. Where it may not be killed it ends by itself, unless its user has stopped it.
    fn end(&mut self) {
        self.talk = None;
        self.is_asked = false;
        self.running.clear();
        self.left_out = 0;
        let _ = self.child.kill();
    }

    fn has_ended(&mut self) -> bool {
        self.talk.is_none() && !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Talk {
    fn hear(&mut self) -> std::io::Result<Option<Report>> {
        loop {
            let new = self.said.get(self.searched..).unwrap_or_default();
            if let Some(at) = new.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.said.drain(..=self.searched + at).collect();
                self.searched = 0;
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            self.searched = self.said.len();
            if self.searched > helper::LINE_MAX {
                return Err(ErrorKind::InvalidData.into());
            }
            let mut part = [0; 1 << 14];
            match self.from.read(&mut part) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.said.extend_from_slice(part.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

#[derive(Debug)]
struct Daemon {
    file: PathBuf,
    totals: Totals,
    /// They are in the file as well.
    is_kept: bool,
    library: PathBuf,
    helpers: Vec<Helper>,
    interfaces: Interfaces,
}

impl Daemon {
    fn load(&mut self) -> Result<(), Failure> {
        match fs::read(&self.file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Failure::Failed(format!("{}: {error}", self.file.display()))),
            Ok(bytes) => {
                let broken = |error| {
                    let file = self.file.display();
                    Failure::Failed(format!("{file}: {error}: move it away to begin anew"))
                };
                self.totals = serde_json::from_slice(&bytes).map_err(broken)?;
                Ok(())
            }
        }
    }

    /// Keeps the totals. Where that fails it is tried again: a file system may be full for a while.
    fn keep(&mut self) {
        let kept = self.write();
        match &kept {
            Ok(()) if !self.is_kept => eprintln!("adverb: totals are kept again"),
            Err(error) if self.is_kept => eprintln!("adverb: {error}; it is tried again"),
            Ok(()) | Err(_) => {}
        }
        self.is_kept = kept.is_ok();
    }

    /// Writes the totals, whole or not at all.
    fn write(&self) -> Result<(), Failure> {
        let new = self.file.with_extension("new");
        let bytes =
            serde_json::to_vec(&self.totals).map_err(|error| Failure::Failed(error.to_string()))?;
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let write = || {
            options.open(&new)?.write_all(&bytes)?;
            fs::rename(&new, &self.file)
        };
        write().doing("keeping totals")
    }

    /// Starts helpers for directories that have none.
    fn find_users(&mut self, me: u32, directory: Option<&Path>) {
        let directories = match directory {
            Some(directory) => vec![directory.to_owned()],
            None if me == 0 => users_directories(),
            None => vec![source::meeting_of(me)],
        };
        for directory in directories {
            if !self.helpers.iter().any(|helper| helper.directory == directory) {
                self.helpers.extend(Helper::start(&directory, &self.library, me));
            }
        }
    }

    /// Waits until there is something to hear.
    fn wait(&self, listener: &Listener, callers: &[Caller]) {
        let callers = callers.iter().map(|caller| {
            let out = if caller.answer.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            PollFd::from_borrowed_fd(caller.stream.as_fd(), PollFlags::IN | out)
        });
        let talks = self.helpers.iter().filter_map(|helper| helper.talk.as_ref());
        let readers = std::iter::once(listener.as_fd()).chain(talks.map(|talk| talk.from.as_fd()));
        wait_for(readers.map(readable).chain(callers), SCAN);
    }

    /// Takes what helpers say, and lets those go that have ended themselves.
    fn hear(&mut self) {
        let mut helpers = std::mem::take(&mut self.helpers);
        for helper in &mut helpers {
            for _ in 0..TURN {
                match helper.hear() {
                    Some(Report::Ended(ended)) => {
                        self.add(helper.user, bounded(ended));
                        helper.tell("kept");
                    }
                    Some(Report::Running(all)) => {
                        helper.left_out = all.len().saturating_sub(RUNNING_MAX);
                        helper.running = all.into_iter().take(RUNNING_MAX).map(bounded).collect();
                        helper.is_asked = false;
                    }
                    None => break,
                }
            }
        }
        helpers.retain_mut(|helper| !helper.has_ended());
        self.helpers = helpers;
        if !self.is_kept {
            self.keep();
        }
    }

    fn add(&mut self, user: u32, ended: Ended) {
        let commands = self.totals.entry(user).or_default();
        let is_other = !commands.contains_key(&ended.command) && commands.len() >= COMMANDS_MAX;
        let name = if is_other { OTHERS.to_owned() } else { ended.command };
        let total = commands.entry(name).or_default();
        total.processes = total.processes.saturating_add(1);
        for (name, count) in ended.counters {
            if total.counters.len() >= COUNTERS_MAX && !total.counters.contains_key(&name) {
                continue;
            }
            let sum = total.counters.entry(name).or_default();
            *sum = sum.saturating_add(count);
        }
        self.keep();
    }

    /// Hears what a caller asks, has helpers asked, and answers once they have, or have not for long. Returns whether
    /// there is more to do.
    fn serve(&mut self, caller: &mut Caller) -> bool {
        let Ok(peer) = caller.stream.peer() else { return false };
        if caller.since.elapsed() > PATIENCE_IN_ALL {
            return false;
        }
        let may_see = |other: u32| peer.uid == 0 || peer.uid == other;
        match caller.stream.recv(&mut [0; 64], &mut Vec::new()) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(count) if count > 0 && caller.until.is_none() => {
                caller.until = Some(Instant::now() + PATIENCE);
                let helpers = self.helpers.iter_mut().filter(|helper| may_see(helper.user));
                for helper in helpers.filter(|helper| helper.talk.is_some() && !helper.is_asked) {
                    helper.is_asked = true;
                    helper.tell("stat");
                }
            }
            Ok(_) | Err(_) => return false,
        }
        let Some(until) = caller.until else { return true };
        if caller.answer.is_empty() {
            let mut asked = self.helpers.iter().filter(|helper| helper.is_asked);
            if Instant::now() < until && asked.any(|helper| may_see(helper.user)) {
                return true;
            }
            caller.answer = self.answer(may_see);
        }
        caller.send()
    }

    /// What a caller is answered.
    fn answer(&self, may_see: impl Fn(u32) -> bool + Copy) -> VecDeque<String> {
        let seen = || self.helpers.iter().filter(|one| may_see(one.user));
        let left_out = seen().map(|helper| helper.left_out).sum();
        let users = self.totals.keys().copied().filter(|user| may_see(*user));
        let users: BTreeSet<u32> = users.chain(seen().map(|helper| helper.user)).collect();
        let interfaces = self.interfaces.describe(may_see).into_iter().map(Shown::Interface);
        let each = users.into_iter().map(|user| self.programs_of(user).collect());
        with_room([interfaces.collect()].into_iter().chain(each).collect(), left_out)
    }

    /// A user's programs: those that run, and those that have ended.
    fn programs_of(&self, user: u32) -> impl Iterator<Item = Shown<'_>> {
        let helpers = self.helpers.iter().filter(move |one| one.user == user && !one.is_asked);
        let running = helpers.flat_map(|helper| &helper.running);
        let ended = self.totals.get(&user).into_iter().flatten();
        let running = running.map(move |program| Shown::Running(user, program));
        running.chain(ended.map(move |(command, total)| Shown::Ended(user, command, total)))
    }
}

/// One thing that a caller is told.
#[derive(Debug)]
enum Shown<'a> {
    Interface(Value),
    Running(u32, &'a Ended),
    Ended(u32, &'a str, &'a Total),
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(said) => said.fmt(f),
            Self::Running(user, Ended { pid, command, counters }) => {
                json!({ "uid": user, "pid": pid, "command": command, "counters": counters }).fmt(f)
            }
            Self::Ended(user, command, Total { processes, counters }) => {
                let command = *command;
                json!({ "uid": user, "ended": processes, "command": command, "counters": counters })
                    .fmt(f)
            }
        }
    }
}

/// What a helper says of a program, as much of it as is kept: its user may have it say anything.
fn bounded(said: Ended) -> Ended {
    let Ended { pid, command, counters } = said;
    let is_short = command.len() <= COMMAND_BYTES_MAX;
    let command = if is_short { command } else { OTHERS.to_owned() };
    let counters = counters.into_iter().filter(|(name, _)| name.len() <= NAME_MAX);
    Ended { pid, command, counters: counters.take(COUNTERS_MAX).collect() }
}

/// As much as one caller is answered, and how much more there is, `left_out` of which is known already. Each user has a
/// share of the room, and what those before it have left of theirs: none hides another.
fn with_room(users: Vec<Vec<impl ToString>>, mut left_out: usize) -> VecDeque<String> {
    let mut room = ANSWER_BYTES_MAX;
    let mut answer = VecDeque::new();
    for (others, all) in (0..users.len()).rev().zip(users) {
        let share = room / (others + 1);
        let (mut left, mut more) = (share, all.len());
        for what in all.iter().map(ToString::to_string) {
            let Some(rest) = left.checked_sub(what.len()) else { break };
            (left, more) = (rest, more - 1);
            answer.push_back(what);
        }
        room -= share - left;
        left_out = left_out.saturating_add(more);
    }
    if left_out > 0 {
        answer.push_back(json!({ "left_out": left_out }).to_string());
    }
    answer
}

/// No program has more counters than that.
const COUNTERS_MAX: usize = 64;
/// Nor longer names of them, or of itself, in bytes.
const NAME_MAX: usize = 64;
const COMMAND_BYTES_MAX: usize = 256;
/// Programs that one helper says run, as many of them as are kept.
const RUNNING_MAX: usize = 4096;
/// What one caller is answered.
const ANSWER_BYTES_MAX: usize = 2 << 20;

/// Directories in which programs meet, each of the user whose number it is named after.
fn users_directories() -> Vec<PathBuf> {
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.path()) {
        let Ok(about) = fs::symlink_metadata(&path) else { continue };
        if about.is_dir() && path == source::meeting_of(about.uid()) && about.mode() & 0o077 == 0 {
            found.push(path);
        }
    }
    found
}

/// Something can be read from it.
pub(super) fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

/// Waits until one of these is so, for so long at most.
pub(super) fn wait_for<'a>(polled: impl Iterator<Item = PollFd<'a>>, most: Duration) {
    let mut polled: Vec<_> = polled.collect();
    let most = Timespec::try_from(most).ok();
    // A signal ends it early.
    let _ = rustix::event::poll(&mut polled, most.as_ref());
}

/// Shows what the daemon knows: `adverb sockets stat --daemon`.
pub(super) fn ask(directory: Option<&Path>, as_json: bool) -> Result<(), Failure> {
    let me = process::user();
    let mut users = vec![0, me];
    users.dedup();
    let none = || Failure::Failed("no daemon answers: adverb sockets daemon".to_owned());
    // A name may be taken by any process.
    let connect = |user: u32| {
        let stream = Stream::connect(&name(user, directory)).ok()?;
        stream.peer().is_ok_and(|peer| peer.uid == user).then_some(stream)
    };
    let stream = users.into_iter().find_map(connect).ok_or_else(none)?;
    stream.send(b"stat", &[]).doing("asking the daemon")?;
    if !as_json {
        println!(
            "{:<12} {:>14} {:>14} {:>14} {:>14}  command",
            "", "Tx pkt", "Tx Kbyte", "Rx pkt", "Rx Kbyte"
        );
    }
    let mut message = vec![0; 1 << 16];
    loop {
        wait_for(std::iter::once(readable(stream.as_fd())), Duration::from_secs(5));
        let got = stream.recv(&mut message, &mut Vec::new()).doing("hearing the daemon")?;
        let Some(bytes) = message.get(..got).filter(|bytes| !bytes.is_empty()) else {
            return Ok(());
        };
        let what: Value = serde_json::from_slice(bytes).map_err(|_| none())?;
        if as_json {
            print!("{}", json_line(what)?);
            continue;
        }
        let count =
            |name: &str| what.pointer(&format!("/counters/{name}")).and_then(|n| n.as_u64());
        let both = |one, other| count(one).unwrap_or(0).saturating_add(count(other).unwrap_or(0));
        if let Some(text) = interfaces::text_of(&what) {
            println!("{text}");
            continue;
        }
        if let Some(more) = what.get("left_out") {
            println!("{more} more are not shown");
            continue;
        }
        let label = match (what.get("pid"), what.get("ended")) {
            (Some(pid), _) => format!("pid {pid}"),
            (None, ended) => format!("{} ended", ended.and_then(|n| n.as_u64()).unwrap_or(0)),
        };
        println!(
            "{label:<12} {:>14} {:>14} {:>14} {:>14}  {}",
            both("tx_packets", "tx_os_packets"),
            both("tx_bytes", "tx_os_bytes") / 1024,
            both("rx_packets", "rx_os_packets"),
            both("rx_bytes", "rx_os_bytes") / 1024,
            what.get("command").and_then(|name| name.as_str()).unwrap_or_default()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_a_helper_says_only_so_much_is_kept() {
        let long = "x".repeat(LINE);
        let counters = (0..1000).map(|number| (format!("rx_{number}"), 1));
        let counters = counters.chain([(long.clone(), 1)]).collect();
        let kept = bounded(Ended { pid: 1, command: long, counters });
        assert_eq!((kept.command.as_str(), kept.counters.len()), (OTHERS, COUNTERS_MAX));
        assert!(kept.counters.keys().all(|name| name.len() <= NAME_MAX));
        let sound = Ended { pid: 1, command: "x".to_owned(), counters: kept.counters.clone() };
        let kept = bounded(sound);
        assert_eq!((kept.command.as_str(), kept.counters.len()), ("x", COUNTERS_MAX));
    }

    #[test]
    fn an_answer_has_a_bound_and_says_what_it_lacks() {
        let all: Vec<_> = (0..10).map(|number| json!({ "uid": number })).collect();
        assert_eq!(with_room(vec![all], 0).len(), 10);
        let long = json!({ "command": "x".repeat(ANSWER_BYTES_MAX / 4) });
        let answer = with_room(vec![vec![long; 10]], 5);
        assert!(answer.iter().map(String::len).sum::<usize>() <= ANSWER_BYTES_MAX + LINE);
        assert_eq!(answer.len(), 4);
        assert_eq!(answer.back().map(String::as_str), Some("{\"left_out\":12}"));
    }

    #[test]
    fn a_user_of_many_programs_hides_no_other_from_root() {
        let long = json!({ "command": "x".repeat(LINE) });
        let short = || vec![json!({ "uid": 7 })];
        let answer = with_room(vec![short(), vec![long.clone(); 10_000], short(), vec![long]], 0);
        let count = |len| answer.iter().filter(|what| what.len() == len).count();
        assert_eq!(count(json!({ "uid": 7 }).to_string().len()), 2);
        assert!(answer.get(answer.len() - 2).is_some_and(|last| last.len() > LINE));
        assert!(count(json!({ "command": "x".repeat(LINE) }).to_string().len()) > 100);
    }

    #[test]
    fn what_is_too_long_for_a_message_costs_the_caller_no_other() {
        let [stream, other] = Stream::one_way().expect("two ends");
        let answer = VecDeque::from(["x".repeat(1 << 22), "short".to_owned()]);
        let mut caller = Caller { stream, since: Instant::now(), until: None, answer };
        assert!(!caller.send());
        let mut bytes = [0; 64];
        let got = other.recv(&mut bytes, &mut Vec::new()).expect("a message");
        assert_eq!(bytes.get(..got), Some(&b"short"[..]));
    }

    const LINE: usize = 4096;
}
