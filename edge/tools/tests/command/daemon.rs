//! `adverb sockets daemon`: programs that end and are killed beside it, and its own end.

#![expect(clippy::indexing_slicing, reason = "a test may panic")]

use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::stat::{Talker, library};
use super::{adverb, stderr, stdout};

/// A daemon that watches one directory, and ends with the test.
pub(crate) struct Daemon(pub(crate) Child);

impl Daemon {
    pub(crate) fn start(place: &Path, state: &Path) -> Self {
        let mut command = Self::command(place, state);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("a daemon"))
    }

    /// Starts one by a command that has all its words. What it says is in `log`.
    pub(crate) fn start_by(mut command: Command, log: &Path) -> Self {
        std::fs::create_dir_all(log.parent().expect("a directory")).expect("a directory");
        let log = std::fs::File::create(log).expect("a file");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Self(command.spawn().expect("a daemon"))
    }

    pub(crate) fn command(place: &Path, state: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
        Self::words(&mut command, place, state);
        command
    }

    pub(crate) fn words(command: &mut Command, place: &Path, state: &Path) {
        command.args(["sockets", "daemon", "-k"]).arg(place).arg("--state").arg(state);
        command.arg("--library").arg(library::library());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where one test's programs meet, and where its daemon keeps totals.
pub(crate) struct Places {
    pub(crate) place: PathBuf,
    pub(crate) state: PathBuf,
}

impl Places {
    pub(crate) fn new(name: &str) -> Self {
        let place = format!("/dev/shm/adverb-daemon-{name}-{}", std::process::id());
        let state =
            std::env::temp_dir().join(format!("adverb-totals-{name}-{}", std::process::id()));
        Self { place: PathBuf::from(place), state }
    }

    pub(crate) fn text(&self) -> &str {
        self.place.to_str().expect("a path in Unicode")
    }

    pub(crate) fn talker(&self) -> Talker {
        Talker::start_in(self.text().to_owned())
    }

    /// What the daemon says, once `is_it` is true of that.
    pub(crate) fn await_stat(&self, what: &str, is_it: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let since = Instant::now();
        loop {
            let output = adverb(&["sockets", "stat", "--daemon", "--json", "-k", self.text()]);
            let text = stdout(&output);
            let all = text.lines().map(|line| serde_json::from_str(line).expect("valid JSON"));
            let all: Vec<Value> = all.collect();
            if output.status.success() && is_it(&all) {
                return all;
            }
            let waited = since.elapsed() < Duration::from_secs(60);
            assert!(waited, "{what}: {text}{}", stderr(&output));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.place).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.place);
        let _ = std::fs::remove_dir_all(&self.state);
    }
}

pub(crate) fn counts(what: &Value) -> u64 {
    let count = |name: &str| what["counters"][name].as_u64().unwrap_or(0);
    count("tx_packets").saturating_add(count("tx_os_packets"))
}

pub(crate) fn of<'a>(all: &'a [Value], process: &Talker) -> Option<&'a Value> {
    all.iter().find(|what| what["pid"] == process.0.id())
}

/// How many have ended, and what they had sent.
pub(crate) fn ended(all: &[Value]) -> (u64, u64) {
    let ended = all.iter().filter(|what| what["ended"].is_u64());
    ended.fold((0, 0), |(number, sent), what| {
        let here = what["ended"].as_u64().unwrap_or(0);
        (number.saturating_add(here), sent.saturating_add(counts(what)))
    })
}

/// Goal: of programs that run the daemon knows what they count, of those that were killed or have ended what they
/// had; peers of the killed learn of it, nothing of them is left; totals survive the daemon, which may be
/// killed itself at any time, while programs go on.
#[test]
fn the_daemon_outlives_programs_and_programs_the_daemon() {
    let places = Places::new("outlives");
    let (mut server, mut client) = (places.talker(), places.talker());
    let port = server.ask("listen");
    client.ask(&format!("dial {port}"));
    server.ask("accept");
    let exchange = |server: &mut Talker, client: &mut Talker| {
        client.ask("say");
        server.ask("hear");
        server.ask("say");
        client.ask("hear");
    };
    (0..20).for_each(|_| exchange(&mut server, &mut client));
    let daemon = Daemon::start(&places.place, &places.state);
    places.await_stat("both run", |all| {
        [&server, &client].iter().all(|one| of(all, one).map(counts) == Some(20))
    });
    drop(daemon);
    (0..5).for_each(|_| exchange(&mut server, &mut client));
    let daemon = Daemon::start(&places.place, &places.state);
    places.await_stat("both run on", |all| of(all, &server).map(counts) == Some(25));
    server.0.kill().expect("a process");
    assert_eq!(client.ask("outlive"), "end");
    let all = places.await_stat("one has ended", |all| ended(all).0 == 1);
    assert_eq!(ended(&all), (1, 25));
    assert!(of(&all, &client).is_some() && of(&all, &server).is_none());
    let file = format!("stat.{}.", server.0.id());
    assert!(!places.names().iter().any(|name| name.starts_with(&file)), "{:?}", places.names());
    drop(daemon);
    let _daemon = Daemon::start(&places.place, &places.state);
    let all = places.await_stat("totals are there", |all| !all.is_empty());
    assert_eq!(ended(&all), (1, 25));
    // This one ends by itself.
    drop(client.0.stdin.take());
    places.await_stat("both have ended", |all| ended(all) == (2, 50));
    let text =
        adverb(&["sockets", "stat", "--daemon", "-k", places.place.to_str().expect("Unicode")]);
    assert!(stdout(&text).contains("2 ended"), "{}", stdout(&text));
}

/// Goal: a thread that sleeps in memory learns from the daemon that its peer has been killed, sooner than it looks by itself,
/// which is after 20 ms. Method: lower quartiles of some connections each, in turn: a busy machine makes either later.
#[test]
fn peers_of_the_killed_are_told_at_once() {
    let mut waits = [Vec::new(), Vec::new()];
    let places = Places::new("at-once");
    for _ in 0..ROUNDS_MAX {
        if waits[1].len() == 9 {
            break;
        }
        let is_watched = waits[1].len() < waits[0].len();
        let daemon = is_watched.then(|| Daemon::start(&places.place, &places.state));
        let (mut server, mut client) = (places.talker(), places.talker());
        let port = server.ask("listen");
        client.ask(&format!("dial {port}"));
        server.ask("accept");
        for _ in 0..20 {
            client.ask("say");
            server.ask("hear");
            server.ask("say");
            client.ask("hear");
        }
        if daemon.is_some() {
            places.await_stat("both are seen", |all| of(all, &server).is_some());
        }
        client.tell("outlive");
        // It sleeps by then. If this takes at most 8 ms, 12 ms are left until it looks by itself.
        let slept = Instant::now();
        std::thread::sleep(Duration::from_millis(4));
        if slept.elapsed() > Duration::from_millis(8) {
            continue;
        }
        let since = Instant::now();
        server.0.kill().expect("a process");
        assert_eq!(client.await_line("done "), "end");
        waits[usize::from(is_watched)].push(since.elapsed());
    }
    assert_eq!(waits[1].len(), 9, "naps of 4 ms take more than 8 here");
    let [alone, told] = waits.map(|mut waits| {
        waits.sort_unstable();
        waits[waits.len() / 4]
    });
    assert!(told + Duration::from_millis(5) < alone, "told after {told:?}, alone {alone:?}");
}

/// A program in a process namespace of its own, where it has that number; `None` if there is none to be had.
fn start_apart(places: &Places, number: u32) -> Option<Talker> {
    let place = places.place.to_str().expect("a path in Unicode").to_owned();
    let ways = [&["-pf", "--kill-child"][..], &["-rpf", "--kill-child"]];
    let can = |way: &&&[&str]| {
        let status = Command::new("unshare").args(**way).arg("true").status();
        status.is_ok_and(|status| status.success())
    };
    let way = ways.iter().find(can)?;
    let script = "echo $0 > /proc/sys/kernel/ns_last_pid; \"$@\"; exit";
    let mut command = Command::new("unshare");
    command.args(*way).args(["--mount-proc", "sh", "-c", script, &(number - 1).to_string()]);
    command.arg(std::env::current_exe().expect("a path of this test"));
    Some(Talker::start_by(command, place))
}

/// Goal: of a program in another process namespace, whose number says nothing here, nothing is told or removed.
#[test]
fn programs_of_another_process_namespace_are_left_alone() {
    let places = Places::new("apart");
    // It has a number that no process has here.
    let is_free = |number: &u32| !Path::new(&format!("/proc/{number}")).exists();
    let number = (20_000..30_000).find(is_free).expect("a number");
    let Some(mut apart) = start_apart(&places, number) else {
        return eprintln!("skipped: no process namespace to be had");
    };
    apart.ask("connect");
    apart.ask("exchange 50");
    let before = places.names();
    assert!(before.iter().filter(|name| *name != "log").count() > 2, "{before:?}");
    let _daemon = Daemon::start(&places.place, &places.state);
    let mut here = places.talker();
    here.ask("connect");
    here.ask("exchange 20");
    let all = places.await_stat("the one here is seen", |all| of(all, &here).is_some());
    assert_eq!((all.len(), ended(&all)), (1, (0, 0)), "{all:?}");
    here.0.kill().expect("a process");
    places.await_stat("the one here has ended", |all| ended(all).0 == 1);
    let after = places.names();
    assert!(before.iter().all(|name| after.contains(name)), "{before:?}, then {after:?}");
    apart.ask("exchange 50");
}

/// Goal: a program in another process namespace that has the number of one here takes nothing away from that: the
/// daemon sees the one here, also when the other has ended, which had a file of its own.
#[test]
fn programs_with_one_number_in_two_process_namespaces_are_two() {
    let places = Places::new("namesakes");
    let mut here = places.talker();
    here.ask("connect");
    here.ask("exchange 20");
    let before = places.names();
    let Some(mut apart) = start_apart(&places, here.0.id()) else {
        return eprintln!("skipped: no process namespace to be had");
    };
    apart.ask("connect");
    apart.ask("exchange 50");
    let is_counters = |name: &&String| name.starts_with(&format!("stat.{}", here.0.id()));
    assert_eq!(places.names().iter().filter(is_counters).count(), 2, "{:?}", places.names());
    let _daemon = Daemon::start(&places.place, &places.state);
    let sees_it = |all: &[Value]| {
        all.len() == 1 && all.iter().all(|one| counts(one) == 40 && one["pid"] == here.0.id())
    };
    places.await_stat("the one here is seen", sees_it);
    drop(apart.0.stdin.take());
    assert!(apart.0.wait().expect("a process").success());
    places.await_stat("the one here is still seen", sees_it);
    let after = places.names();
    assert!(before.iter().all(|name| after.contains(name)), "{before:?}, then {after:?}");
    assert_eq!(after.iter().filter(is_counters).count(), 1, "{after:?}");
}

/// Connections of which it is measured how soon their ends are noticed, at most.
const ROUNDS_MAX: u32 = 200;
/// Another user, and the words that start a program as that.
const OTHER: u32 = 65_534;
const AS_OTHER: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

/// Goal: systemd takes the unit of the package, and the daemon of root does all that it does for another user with the
/// capabilities that the unit leaves it, and without new ones.
#[test]
fn the_unit_of_the_package_grants_what_the_daemon_takes() {
    let places = Places::new("unit");
    let at = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/adverb-sockets.service");
    let unit = std::fs::read_to_string(at).expect("a unit");
    std::fs::create_dir_all(&places.state).expect("a directory");
    let copy = places.state.join("adverb-sockets.service");
    let adverb = env!("CARGO_BIN_EXE_adverb");
    std::fs::write(&copy, unit.replace("/usr/bin/adverb", adverb)).expect("a file");
    match Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output() {
        Ok(output) => {
            let said = stderr(&output);
            assert!(output.status.success() && !said.contains("adverb"), "{said}");
        }
        Err(_) => eprintln!("skipped: no systemd-analyze"),
    }
    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let granted = line.expect("capabilities").to_lowercase().replace("cap_", "+");
    let bounds = format!("--bounding-set=-all,{}", granted.replace(' ', ","));
    assert!(unit.lines().any(|line| line == "NoNewPrivileges=yes"));

    let library = library::library();
    let can = Command::new("setpriv").args(AS_OTHER).args(["test", "-r"]).arg(&library).status();
    if !can.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: no other user can read the library");
    }
    std::fs::DirBuilder::new().mode(0o700).create(&places.place).expect("a directory");
    std::os::unix::fs::chown(&places.place, Some(OTHER), Some(OTHER)).expect("root may");
    let mut command = Command::new("setpriv");
    command.args(AS_OTHER).arg(std::env::current_exe().expect("a path of this test"));
    let place = places.place.to_str().expect("a path in Unicode").to_owned();
    let mut program = Talker::start_by(command, place);
    program.ask("connect");
    program.ask("exchange 20");
    let mut command = Command::new("setpriv");
    command.args(["--no-new-privs", "--inh-caps=-all", &bounds, adverb, "sockets", "daemon", "-k"]);
    command.arg(&places.place).arg("--state").arg(&places.state).arg("--library").arg(library);
    let _daemon = Daemon(command.stdin(Stdio::null()).spawn().expect("a daemon"));
    places.await_stat("it is seen", |all| of(all, &program).map(counts) == Some(40));
    // By that user as well.
    let mut command = Command::new("setpriv");
    command.args(AS_OTHER).args([adverb, "sockets", "stat", "--daemon", "--json", "-k"]);
    let output = command.arg(&places.place).output().expect("a command");
    let own: Value = serde_json::from_str(&stdout(&output)).expect("one program");
    assert_eq!((&own["pid"], &own["uid"]), (&program.0.id().into(), &OTHER.into()), "{own}");
    program.0.kill().expect("a process");
    let all = places.await_stat("it has ended", |all| ended(all) == (1, 40));
    assert_eq!(all[0]["uid"], OTHER, "{all:?}");
    assert!(!places.names().iter().any(|name| name.starts_with("stat.")), "{:?}", places.names());
}

/// Goal: there is one daemon for a directory, and another user sees nothing of this one's programs.
#[test]
fn another_daemon_is_refused_and_another_user_sees_nothing() {
    let places = Places::new("others");
    let mut program = places.talker();
    program.ask("connect");
    let _daemon = Daemon::start(&places.place, &places.state);
    places.await_stat("it runs", |all| of(all, &program).is_some());
    let place = places.place.to_str().expect("a path in Unicode");
    let state = places.state.to_str().expect("a path in Unicode");
    let library = library::library();
    let library = library.to_str().expect("a path in Unicode");
    let words = ["sockets", "daemon", "-k", place, "--state", state, "--library", library];
    let second = adverb(&words);
    assert_eq!(second.status.code(), Some(1));
    assert!(stderr(&second).contains("watches that already"), "{}", stderr(&second));
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.args(["sockets", "stat", "--daemon", "--json", "-k", place]).uid(OTHER).gid(OTHER);
    // Where this is another user's already, it cannot become one.
    if let Ok(output) = command.output() {
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
}
