//! Rendezvous: how the devices of one user and network namespace find their registry.
//!
//! The registry (`registry.rs`) is a sealed file in memory without a path. Each device listens by an abstract name
//! of its slot and hands the file's descriptor to processes of the same user. Abstract names belong to the network
//! namespace, as addresses and ports do: so processes that share an address share a registry, whatever they see of
//! `/dev/shm`, of other processes' numbers, or of each other's file systems, and nothing is left when the last one
//! has gone.
//!
//! A newcomer holds the name [`founding_name`] while it looks for a registry, makes one if there is none, and takes
//! its slot: one newcomer at a time. A process that has a registry and does not answer may be stopped; its
//! descriptor is then taken by way of `/proc`.

use adverb_shm::alive;
use adverb_sys::memory::{self, Mapping};
use adverb_sys::unix::{Listener, Stream};
use adverb_sys::{netns, poll, process};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Place of the registries of one user in one network namespace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    /// The user, as this process's user namespace numbers it.
    user: u32,
    /// The user, as its names have it: whose programs share a registry may be in user namespaces of their own.
    label: u32,
    namespace: u64,
}

/// The right to look for a registry and to join it; one newcomer at a time has it.
#[derive(Debug)]
pub(crate) struct Founding {
    #[expect(dead_code, reason = "held, not used: its name is the lock")]
    name: Listener,
}

/// What a device answers: the version of its registry. The descriptor comes along.
const MAGIC: [u8; 4] = *b"advr";
const ANSWER_BYTES: usize = 8;
/// How long a device has to answer, which takes it microseconds unless it is stopped or the machine is busy.
const ANSWER_TIME: Duration = Duration::from_millis(500);
/// Parts that the time for an answer is waited in.
const ANSWER_PARTS: u32 = 10;
/// The same for the others, once one has not answered: if one is stopped, many may be.
const NEXT_ANSWER_TIME: Duration = Duration::from_millis(20);
/// Devices that do not answer, before no more are asked.
const SILENT_MAX: u32 = 32;
/// Devices that are asked by names that are not of a slot.
const UNUSUAL_MAX: usize = 4096;
/// How long another newcomer may take.
const FOUNDING_TIME: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(1);
/// Processes whose descriptors are looked at, at most.
const PROCESSES_MAX: usize = 1 << 16;

impl Place {
    /// That of this process.
    pub(crate) fn current() -> io::Result<Self> {
        let (user, label) = (process::user(), process::user_outside());
        Ok(Self { user, label, namespace: netns::current_id()? })
    }

    /// The user, as this process's user namespace numbers it.
    pub(crate) const fn user(self) -> u32 {
        self.user
    }

    /// The user, as names have it that processes of several user namespaces know.
    pub(crate) const fn label(self) -> u32 {
        self.label
    }

    /// What the file is called in `/proc/PID/fd`.
    fn file_name(self) -> String {
        format!("adverb-registry-{}-{}", self.label, self.namespace)
    }

    fn slot_name(self, slot: u32) -> String {
        format!("adverb-registry-{}-{slot}", self.label)
    }

    fn founding_name(self) -> String {
        format!("adverb-registry-{}-founding", self.label)
    }

    /// Waits until no other newcomer does the same.
    ///
    /// # Errors
    ///
    /// Another user holds the name, or a newcomer is stopped.
    pub(crate) fn found(self) -> io::Result<Founding> {
        let (name, until) = (self.founding_name(), Instant::now() + FOUNDING_TIME);
        let mut seen = None;
        loop {
            match Listener::bind(name.as_bytes()) {
                Ok(name) => return Ok(Founding { name }),
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(error),
                Err(_) => {}
            }
            // It refuses connections before it listens, and once too many have come.
            let holder = Stream::connect(name.as_bytes()).and_then(|stream| stream.peer());
            seen = holder.ok().or(seen);
            match seen {
                Some(holder) if holder.uid != self.user => {
                    let message = format!(
                        "user {} holds the name {name} in this network namespace, and keeps others from it",
                        holder.uid
                    );
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
                }
                _ if Instant::now() < until => std::thread::sleep(PAUSE),
                holder => {
                    let holder =
                        holder.map_or_else(|| "unknown".to_owned(), |one| process_name(one.pid));
                    let message = format!(
                        "the name {name}, which a process holds while it opens a device, was taken for \
                         {FOUNDING_TIME:?}, last by: {holder}. It is stopped perhaps"
                    );
                    return Err(io::Error::new(io::ErrorKind::TimedOut, message));
                }
            }
        }
    }

    /// A new registry file of so many bytes: its memory is there, and its length is fixed.
    pub(crate) fn make(self, len: usize) -> io::Result<File> {
        let file = memory::memfd(&self.file_name(), len)?;
        memory::reserve(&file, len)?;
        memory::seal(&file)?;
        reopen(&file)
    }

    /// Listens by the name of a slot, or if another user has that, by one that cannot be guessed.
    pub(crate) fn listen(self, slot: u32) -> io::Result<Listener> {
        match Listener::bind(self.slot_name(slot).as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let name =
                    format!("{}{:016x}", self.unusual_prefix(), adverb_sys::random::number());
                Listener::bind(name.as_bytes())
            }
            result => result,
        }
    }

    /// How names begin that are not of a slot.
    fn unusual_prefix(self) -> String {
        format!("adverb-registry-{}-x", self.label)
    }

    /// Names by which devices listen whose usual ones another user has.
    fn unusual_names(self) -> io::Result<Vec<String>> {
        let all = std::fs::read_to_string("/proc/thread-self/net/unix")?;
        let names = all.lines().filter_map(|line| line.rsplit(' ').next()?.strip_prefix('@'));
        let unusual = names.filter(|name| name.starts_with(&self.unusual_prefix()));
        Ok(unusual.take(UNUSUAL_MAX).map(str::to_owned).collect())
    }

    /// The registry of the devices that are open, whose slots are below `slots`; `None` if there is none.
    ///
    /// # Errors
    ///
    /// The registry is of another version, or the processes that have it neither answer nor show it.
    pub(crate) fn find(self, version: u32, len: usize, slots: u32) -> io::Result<Option<File>> {
        let mut search =
            Search { place: self, version, len, others: false, silent: None, left: SILENT_MAX };
        for slot in 0..slots {
            if let Some(file) = search.ask(&self.slot_name(slot))? {
                return Ok(Some(file));
            }
        }
        if search.others {
            for name in self.unusual_names()? {
                if let Some(file) = search.ask(&name)? {
                    return Ok(Some(file));
                }
            }
        }
        match search.silent {
            None => Ok(None),
            Some(pid) => match self.find_in_proc(len) {
                Some(file) => Ok(Some(file)),
                None if pid != 0 && alive::is_missing(pid) => Ok(None),
                None => Err(unanswered(pid)),
            },
        }
    }

    /// The file, from the descriptors of a process that has it open.
    fn find_in_proc(self, len: usize) -> Option<File> {
        let wanted = PathBuf::from(format!("/memfd:{} (deleted)", self.file_name()));
        let is_number = |name: &std::ffi::OsStr| {
            name.to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        };
        let entries = std::fs::read_dir("/proc").ok()?;
        let processes =
            entries.filter_map(Result::ok).filter(|entry| is_number(&entry.file_name()));
        let descriptors = processes
            .take(PROCESSES_MAX)
            .filter_map(|process| std::fs::read_dir(process.path().join("fd")).ok())
            .flatten()
            .filter_map(Result::ok);
        let same = descriptors
            .filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|name| name == wanted));
        same.filter_map(|entry| open(&entry.path()).ok()).find(|file| {
            fits(file, len) && file.metadata().is_ok_and(|found| found.uid() == self.user)
        })
    }
}

/// A newcomer's questions.
#[derive(Debug)]
struct Search {
    place: Place,
    version: u32,
    len: usize,
    /// Other users listen by names of this one's.
    others: bool,
    /// The first process that has not answered; 0 if it cannot be seen.
    silent: Option<u32>,
    /// Processes that need not answer, before no more are asked.
    left: u32,
}

impl Search {
    /// The registry that the device of this name has; `None` if nothing comes of it.
    fn ask(&mut self, name: &str) -> io::Result<Option<File>> {
        if self.left == 0 {
            return Ok(None);
        }
        let stream = match Stream::connect(name.as_bytes()) {
            Ok(stream) => stream,
            Err(error) => {
                // Too many wait for an answer: its process is stopped.
                if error.kind() == io::ErrorKind::WouldBlock {
                    self.silent = self.silent.or(Some(0));
                }
                return Ok(None);
            }
        };
        let peer = stream.peer()?;
        if peer.uid != self.place.user {
            self.others = true;
            return Ok(None);
        }
        let time = if self.left == SILENT_MAX { ANSWER_TIME } else { NEXT_ANSWER_TIME };
        match take_answer(&stream, time)? {
            Answer::Registry { version, .. } if version != self.version => Err(foreign(version)),
            Answer::Registry { file, .. } if fits(&file, self.len) => reopen(&file).map(Some),
            Answer::Registry { .. } | Answer::Nonsense => Ok(None),
            Answer::Nothing => {
                self.silent = self.silent.or(Some(peer.pid));
                self.left -= 1;
                Ok(None)
            }
        }
    }
}

/// Hands the registry to all that wait for it at `listener`, if they are of the same user.
pub(crate) fn answer(listener: &Listener, user: u32, version: u32, file: &File) {
    let mut bytes = [0; ANSWER_BYTES];
    let parts = MAGIC.into_iter().chain(version.to_ne_bytes());
    bytes.iter_mut().zip(parts).for_each(|(place, byte)| *place = byte);
    for _ in 0..ANSWERS_MAX {
        let Ok(stream) = listener.accept() else {
            return;
        };
        if stream.peer().is_ok_and(|peer| peer.uid == user) {
            let _ = stream.send(&bytes, &[file.as_fd()]); // One that has gone needs no answer.
        }
    }
}

/// Newcomers that are answered at once.
const ANSWERS_MAX: usize = 64;

/// Outcome of a question.
#[derive(Debug)]
enum Answer {
    /// The file, and the version of its layout.
    Registry { version: u32, file: OwnedFd },
    /// The device has gone meanwhile, or it is none.
    Nonsense,
    /// The time is over.
    Nothing,
}

fn take_answer(stream: &Stream, time: Duration) -> io::Result<Answer> {
    // In parts: a machine that stands still for longer than the whole time takes away one of them.
    let mut answered = false;
    for _ in 0..ANSWER_PARTS {
        answered =
            answered || poll::readable(stream, std::iter::empty(), Some(time / ANSWER_PARTS))?;
    }
    if !answered {
        return Ok(Answer::Nothing);
    }
    let (mut bytes, mut fds) = ([0; ANSWER_BYTES + 1], Vec::new());
    let len = stream.recv(&mut bytes, &mut fds).unwrap_or(0);
    let [m0, m1, m2, m3, v0, v1, v2, v3, _] = bytes;
    let is_answer = len == ANSWER_BYTES && [m0, m1, m2, m3] == MAGIC && fds.len() == 1;
    let version = u32::from_ne_bytes([v0, v1, v2, v3]);
    let file = fds.pop().filter(|_| is_answer);
    Ok(file.map_or(Answer::Nonsense, |file| Answer::Registry { version, file }))
}

/// The file has the length of a registry, and keeps it.
fn fits(file: impl AsFd, len: usize) -> bool {
    let found = memory::file_len(&file);
    memory::is_sealed(&file) && found.is_ok_and(|found| found == Mapping::whole(len))
}

/// The same file by an open file description of its own: locks belong to descriptions, and one that was handed over
/// is the giver's, too.
fn reopen(file: impl AsFd) -> io::Result<File> {
    open(&path_of(file))
}

/// A path by which this process can open a file again that it has open.
pub(crate) fn path_of(file: impl AsFd) -> PathBuf {
    Path::new("/proc/self/fd").join(file.as_fd().as_raw_fd().to_string())
}

fn open(path: &Path) -> io::Result<File> {
    memory::open_again(path, true)
}

fn foreign(version: u32) -> io::Error {
    io::Error::other(format!(
        "programs with another version of this software (registry version {version}) have devices open: stop them \
         first"
    ))
}

fn unanswered(pid: u32) -> io::Error {
    let name = process_name(pid);
    let message = format!("{name} has devices open and does not answer: it is stopped perhaps");
    io::Error::new(io::ErrorKind::TimedOut, message)
}

fn process_name(pid: u32) -> String {
    match pid {
        0 => "a process that cannot be seen from this process namespace".to_owned(),
        pid => format!("process {pid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place that no other test has.
    fn place() -> Place {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(1);
        // Numbers of processes have 22 bits at most.
        let label = NEXT.fetch_add(1, Ordering::Relaxed) << 22 | std::process::id();
        Place { label, namespace: u64::from(label), ..Place::current().unwrap() }
    }

    #[test]
    fn one_newcomer_at_a_time_looks_for_a_registry() {
        let place = place();
        let founding = place.found().unwrap();
        let waits = std::thread::spawn(move || place.found().map(drop));
        std::thread::sleep(PAUSE * 20);
        assert!(!waits.is_finished());
        drop(founding);
        waits.join().unwrap().unwrap();
    }

    #[test]
    fn a_registry_is_reserved_sealed_and_locked_by_each_that_has_it() {
        let place = place();
        let file = place.make(1 << 16).unwrap();
        assert!(fits(&file, 1 << 16) && !fits(&file, 1 << 17));
        assert_eq!(file.metadata().unwrap().blocks() * 512, 1 << 16);
        let again = reopen(&file).unwrap();
        assert!(adverb_sys::lock::lock_byte(&file, 1 << 32).unwrap());
        assert!(!adverb_sys::lock::lock_byte(&again, 1 << 32).unwrap());
    }

    /// Goal: a registry whose process does not answer is found all the same. Method: no process answers here at all.
    #[test]
    fn a_file_is_found_by_the_descriptors_of_its_process() {
        let place = place();
        assert!(place.find_in_proc(1 << 16).is_none());
        let file = place.make(1 << 16).unwrap();
        let found = place.find_in_proc(1 << 16).unwrap();
        assert_eq!(found.metadata().unwrap().ino(), file.metadata().unwrap().ino());
        assert!(place.find_in_proc(1 << 17).is_none());
    }

    #[test]
    fn a_registry_of_another_version_is_refused_with_advice() {
        let (place, len) = (place(), 1 << 12);
        let listener = Listener::bind(place.slot_name(0).as_bytes()).unwrap();
        let file = place.make(len).unwrap();
        let find = |version| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let time = Some(ANSWER_TIME);
                    assert!(poll::readable(&listener, std::iter::empty(), time).unwrap());
                    answer(&listener, place.user, 7, &file);
                });
                place.find(version, len, 1)
            })
        };
        let refused = find(8).unwrap_err().to_string();
        assert!(refused.contains("version 7") && refused.contains("stop them first"), "{refused}");
        assert!(find(7).unwrap().is_some());
    }

    #[test]
    fn an_answer_brings_the_file_and_nonsense_is_none() {
        let place = place();
        let name = format!("adverb-test-answer-{}", std::process::id());
        let listener = Listener::bind(name.as_bytes()).unwrap();
        let file = place.make(1 << 12).unwrap();
        let newcomer = Stream::connect(name.as_bytes()).unwrap();
        answer(&listener, place.user, 7, &file);
        let got = take_answer(&newcomer, ANSWER_TIME).unwrap();
        assert!(
            matches!(&got, Answer::Registry { version: 7, file } if fits(file, 1 << 12)),
            "{got:?}"
        );
        for nonsense in [&b""[..], b"advr", b"advr00000", b"xdvr0000", b"advr0000"] {
            let newcomer = Stream::connect(name.as_bytes()).unwrap();
            listener.accept().unwrap().send(nonsense, &[]).unwrap();
            let got = take_answer(&newcomer, ANSWER_TIME).unwrap();
            assert!(matches!(got, Answer::Nonsense), "{nonsense:?}: {got:?}");
        }
        let newcomer = Stream::connect(name.as_bytes()).unwrap();
        answer(&listener, place.user + 1, 7, &file);
        assert!(
            matches!(take_answer(&newcomer, ANSWER_TIME).unwrap(), Answer::Nonsense),
            "of another user"
        );
        // The device goes while another one waits.
        let newcomer = Stream::connect(name.as_bytes()).unwrap();
        drop(listener);
        assert!(matches!(take_answer(&newcomer, ANSWER_TIME).unwrap(), Answer::Nonsense));
    }
}
