//! `adverb sockets daemon` and `stat` at their borders: programs and helpers that are stopped, files that hold nonsense,
//! totals that cannot be kept, and shared memory that is full.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::daemon::{Daemon, Places, counts, ended, of};
use super::stat::Talker;
use super::{adverb, stderr, stdout, until};

pub(crate) fn signal(name: &str, process: u32) {
    let status = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(status.expect("kill(1)").success());
}

/// Where a program publishes what it counts.
fn counters_of(places: &Places, process: u32) -> PathBuf {
    let start = format!("stat.{process}.");
    let name = places.names().into_iter().find(|name| name.starts_with(&start));
    places.place.join(name.expect("a file of counters"))
}

/// The helper of a daemon.
fn helper_of(daemon: &Daemon) -> Option<u32> {
    let parent = format!("PPid:\t{}\n", daemon.0.id());
    let is_it = |number: &u32| {
        let status = fs::read_to_string(format!("/proc/{number}/status"));
        status.is_ok_and(|status| status.contains(&parent) && !status.contains("State:\tZ"))
    };
    let names = fs::read_dir("/proc").expect("processes").flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.to_str()?.parse().ok()).find(is_it)
}

/// Goal: a program that is stopped holds nothing up: it is seen, the peers of one that is killed beside it learn of
/// that, and it goes on as if nothing had been.
#[test]
fn a_stopped_program_holds_no_other_up() {
    let places = Places::new("stopped");
    let (mut stopped, mut server) = (places.talker(), places.talker());
    let mut client = places.talker();
    stopped.ask("connect");
    stopped.ask("exchange 20");
    let port = server.ask("listen");
    client.ask(&format!("dial {port}"));
    server.ask("accept");
    for _ in 0..20 {
        client.ask("say");
        server.ask("hear");
    }
    signal("STOP", stopped.0.id());
    let _daemon = Daemon::start(&places.place, &places.state);
    places.await_stat("all are seen", |all| {
        of(all, &stopped).map(counts) == Some(40) && of(all, &server).is_some()
    });
    server.0.kill().expect("a process");
    assert_eq!(client.ask("outlive"), "end");
    places.await_stat("one has ended", |all| ended(all).0 == 1 && of(all, &stopped).is_some());
    signal("CONT", stopped.0.id());
    stopped.ask("exchange 5");
    places.await_stat("it goes on", |all| of(all, &stopped).map(counts) == Some(50));
}

/// Goal: a helper that its user has stopped holds no caller up for long, and totals are told without it; when it goes on,
/// or is killed and another one starts, all is as before.
#[test]
fn a_stopped_helper_holds_no_caller_up() {
    let places = Places::new("helper");
    let mut program = places.talker();
    program.ask("connect");
    let mut other = places.talker();
    other.ask("connect");
    let daemon = Daemon::start(&places.place, &places.state);
    places.await_stat("both run", |all| of(all, &program).is_some() && of(all, &other).is_some());
    other.0.kill().expect("a process");
    places.await_stat("one has ended", |all| ended(all).0 == 1);
    let helper = helper_of(&daemon).expect("a helper");
    signal("STOP", helper);
    for _ in 0..2 {
        places.await_stat("totals alone", |all| all.len() == 1 && ended(all).0 == 1);
    }
    signal("CONT", helper);
    places.await_stat("it answers again", |all| of(all, &program).is_some());
    signal("STOP", helper);
    signal("KILL", helper);
    places.await_stat("another one answers", |all| of(all, &program).is_some());
    assert_ne!(helper_of(&daemon), Some(helper));
}

/// Goal: whatever the file of a program says, the daemon goes on and sees the others, and no view of `stat` fails.
/// Method: another program's file is copied over and over, under the number of a process that lives, with one thing
/// changed at a time: each number of the text to one that is too large, counters to the largest that there are.
#[test]
fn nonsense_in_files_of_counters_harms_no_one() {
    let places = Places::new("nonsense");
    let mut sound = places.talker();
    sound.ask("connect");
    sound.ask("exchange 20");
    let file = counters_of(&places, sound.0.id());
    let whole = fs::File::open(&file).expect("a file");
    let mut original = vec![0; 1 << 18];
    whole.read_exact_at(&mut original, 0).expect("its beginning");
    let end = original.iter().position(|byte| *byte == 0).expect("an end of the text");
    let text = String::from_utf8(original[..end].to_vec()).expect("a text");
    let mut all: Vec<Vec<u8>> = Vec::new();
    let mut with_text = |text: &str| {
        let mut bytes = original.clone();
        bytes[..4096].fill(0);
        bytes[..text.len().min(4095)].copy_from_slice(&text.as_bytes()[..text.len().min(4095)]);
        all.push(bytes);
    };
    for large in [u64::MAX, 1 << 45] {
        let mut rest = text.as_str();
        let mut before = String::new();
        while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
            let digits = rest[start..].chars().take_while(char::is_ascii_digit).count();
            before.push_str(&rest[..start]);
            with_text(&format!("{before}{large}{}", &rest[start + digits..]));
            before.push_str(&rest[start..start + digits]);
            rest = &rest[start + digits..];
        }
    }
    with_text(&text.replace("tx_packets", "x{\x1b[2J}"));
    with_text("adverb-sockets 1 pid=1 layout= why= command=");
    let mut counters = original.clone();
    counters[4096..].fill(0xff);
    all.push(counters);
    all.push(vec![0xff; 8192]);
    all.push(Vec::new());

    let name = file.file_name().expect("a name").to_str().expect("Unicode");
    let space = name.rsplit('.').next().expect("a namespace");
    let fake = places.place.join(format!("stat.{}.{space}", std::process::id()));
    let _daemon = Daemon::start(&places.place, &places.state);
    let place = places.place.to_str().expect("a path in Unicode");
    assert!(all.len() > 100, "{}", all.len());
    for (turn, bytes) in all.iter().enumerate() {
        fs::write(&fake, bytes).expect("a file");
        let views = ["-v 1", "-v 3", "-v 4", "--json", "--prometheus", "-S 0", "-z"];
        // Each takes a process: all views of every 25th and of the last five, which differ in kind; one of the others.
        let is_whole = turn % 25 == 0 || turn + 5 >= all.len();
        let count = if is_whole { views.len() } else { 1 };
        for view in views.iter().cycle().skip(turn % views.len()).take(count) {
            let id = std::process::id().to_string();
            let mut words = vec!["sockets", "stat", "-k", place, "-p", &id];
            words.extend(view.split(' '));
            let output = adverb(&words);
            let said = stderr(&output);
            assert!(matches!(output.status.code(), Some(0 | 1)), "{turn} {view}: {said}");
            assert!(!said.contains("panicked"), "{turn} {view}: {said}");
            assert!(!stdout(&output).contains('\x1b'), "{turn} {view}");
        }
        if is_whole {
            places.await_stat("the other is seen", |all| of(all, &sound).map(counts) == Some(40));
        }
    }
    // What is no file of a program stays where it is.
    let strange = places.place.join("stat.h");
    fs::write(&strange, "a header").expect("a file");
    adverb(&["sockets", "stat", "-k", place]);
    assert!(strange.exists());
}

/// Goal: where totals cannot be written the daemon says so once, goes on, and keeps them as soon as it can.
#[test]
fn totals_that_cannot_be_written_are_kept_later() {
    let places = Places::new("unwritable");
    // As root may write anywhere, the name of the new file is taken.
    let obstacle = places.state.join("totals.new");
    fs::create_dir_all(&obstacle).expect("a directory");
    let log = places.state.join("log");
    let _daemon = Daemon::start_by(Daemon::command(&places.place, &places.state), &log);
    for turn in 1..=3 {
        let mut program = places.talker();
        program.ask("connect");
        program.ask("exchange 10");
        places.await_stat("it is seen", |all| of(all, &program).is_some());
        program.0.kill().expect("a process");
        places.await_stat("it has ended", |all| ended(all) == (turn, 20 * turn));
    }
    std::thread::sleep(Duration::from_secs(1)); // Time for some more attempts.
    let said = || fs::read_to_string(&log).expect("a log");
    assert_eq!(said().matches("it is tried again").count(), 1, "{}", said());
    let file = places.state.join("totals.json");
    assert!(!file.exists());
    fs::remove_dir(&obstacle).expect("a directory");
    until("they are kept again", || said().contains("totals are kept again"));
    let kept: Value = serde_json::from_slice(&fs::read(&file).expect("a file")).expect("JSON");
    let user = kept.as_object().and_then(|all| all.values().next()).expect("a user");
    let command = user.as_object().and_then(|all| all.values().next()).expect("a command");
    assert_eq!(command["processes"], 3, "{kept}");
}

/// Goal: totals that make no sense end the daemon with a word about what to do, and are left as they are; those that
/// are as large as can be stay so; and a caller gets all of them, however many there are.
#[test]
fn totals_may_be_nonsense_or_large_or_many() {
    let places = Places::new("totals");
    fs::create_dir_all(&places.state).expect("a directory");
    let file = places.state.join("totals.json");
    for nonsense in ["", "{", "[]", "{\"0\":{\"x\":{\"processes\":-1}}}", "\u{0}", "{\"a\":{}}"] {
        fs::write(&file, nonsense).expect("a file");
        let output = Daemon::command(&places.place, &places.state).output().expect("a daemon");
        assert_eq!(output.status.code(), Some(1), "{nonsense}");
        assert!(stderr(&output).contains("move it away to begin anew"), "{}", stderr(&output));
        assert_eq!(fs::read_to_string(&file).expect("a file"), nonsense);
    }
    let user = own_user();
    let large = format!(
        "{{\"processes\":{0},\"counters\":{{\"tx_packets\":{0},\"tx_os_packets\":{0}}}}}",
        u64::MAX
    );
    let many: Vec<_> = (0..250).map(|number| format!("\"command-{number}\":{large}")).collect();
    fs::write(&file, format!("{{\"{user}\":{{\"command\":{large},{}}}}}", many.join(",")))
        .expect("a file");
    let _daemon = Daemon::start(&places.place, &places.state);
    places.await_stat("all of them", |all| all.len() == 251);
    let mut program = places.talker();
    program.ask("connect");
    program.ask("exchange 10");
    places.await_stat("it is seen", |all| of(all, &program).is_some());
    program.0.kill().expect("a process");
    let name = std::env::current_exe().expect("a path of this test");
    let name = name.file_name().expect("a name").to_str().expect("Unicode").to_owned();
    let all = places.await_stat("it has ended", |all| {
        all.len() == 252 && all.iter().any(|one| one["command"] == name.as_str())
    });
    assert!(all.iter().filter(|one| one["ended"] == u64::MAX).count() == 251);
}

fn own_user() -> u32 {
    std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").expect("this process"))
}

/// Goal: where shared memory is full, programs and the daemon do without, and say what there is to be said.
/// Method: the directory is a file system of a few pages, in a mount namespace that the test's processes share.
#[test]
fn full_shared_memory_stops_neither_programs_nor_the_daemon() {
    let places = Places::new("full");
    fs::create_dir_all(&places.place).expect("a directory");
    let place = places.place.to_str().expect("a path in Unicode").to_owned();
    let script =
        "mount -t tmpfs -o size=256k,mode=700 none \"$0\" && echo ready && exec sleep 1000";
    let mut keeper = Command::new("unshare");
    keeper.args(["-m", "--propagation", "private", "sh", "-c", script, &place]);
    let Ok(mut keeper) = keeper.stdout(Stdio::piped()).stderr(Stdio::null()).spawn() else {
        return eprintln!("skipped: no unshare(1)");
    };
    let mut said = String::new();
    let mut output = std::io::BufReader::new(keeper.stdout.take().expect("a pipe"));
    let _ = std::io::BufRead::read_line(&mut output, &mut said);
    if said != "ready\n" {
        let _ = keeper.wait();
        return eprintln!("skipped: no mount namespace to be had");
    }
    let id = keeper.id().to_string();
    let inside = |program: &Path| {
        let mut command = Command::new("nsenter");
        command.args(["-t", &id, "-m"]).arg(program);
        command
    };
    let talker = || {
        let this = std::env::current_exe().expect("a path of this test");
        Talker::start_by(inside(&this), place.clone())
    };
    // It has room for one program's counters, and then the rest is filled.
    let mut first = talker();
    first.ask("connect");
    first.ask("exchange 10");
    let log = places.state.join("log");
    let mut daemon = inside(Path::new(env!("CARGO_BIN_EXE_adverb")));
    Daemon::words(&mut daemon, &places.place, &places.state);
    let _daemon = Daemon::start_by(daemon, &log);
    places.await_stat("it is seen", |all| of(all, &first).map(counts) == Some(20));
    let fill = format!("cat /dev/zero > {place}/filling");
    let full = inside(Path::new("sh")).args(["-c", &fill]).stderr(Stdio::null()).status();
    assert!(!full.expect("a shell").success(), "it is full");
    let mut second = talker();
    second.ask("connect");
    second.ask("exchange 10");
    first.ask("exchange 10");
    places.await_stat("it is seen", |all| of(all, &first).map(counts) == Some(40));
    second.0.kill().expect("a process");
    first.0.kill().expect("a process");
    places.await_stat("it has ended", |all| ended(all) == (1, 40));
    let said = fs::read_to_string(&log).expect("a log");
    assert!(!said.contains("panicked"), "{said}");
    keeper.kill().expect("a process");
    let _ = keeper.wait();
}
