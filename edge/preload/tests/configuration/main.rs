//! What rules, parameters and files say comes to pass in a program that runs: each test looks at what the
//! library tells of one connection.

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod support;

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::{Place, library};

const SHARED: &str = "shared memory with the peer";
const RULED: &str = "a rule says os";

/// A program that talks to itself over one connection, in this environment, and what is in its log; `%` in
/// values is the test's directory.
fn said(name: &str, environment: &[(&str, &str)]) -> String {
    said_in(&Place::new(name), environment).log.expect("a log of that name")
}

/// What there is of such a program.
struct Said {
    /// The file that `VMA_LOG_FILE` names, unless the environment says another.
    log: Option<String>,
    /// The standard error.
    error: String,
}

fn said_in(place: &Place, environment: &[(&str, &str)]) -> Said {
    finish(the_command(place, environment), place, environment)
}

fn the_command(place: &Place, environment: &[(&str, &str)]) -> Command {
    fs::write(place.0.join("rules"), RULES).expect("a file");
    fs::write(place.0.join("groups"), GROUPS).expect("a file");
    fs::write(place.0.join("toml"), TOML).expect("a file");
    let directory = place.0.to_str().expect("a path in Unicode");
    let mut command = Command::new(std::env::current_exe().expect("a path of this test"));
    command.args(["the_child", "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
    command.env("ADVERB_TEST_CHILD", "1").env("LD_PRELOAD", library::library());
    command.env("ADVERB_SOCKETS_SHM_DIR", place.rings()).env("ADVERB_SOCKETS_EXPLAIN", "1");
    command.env("VMA_LOG_FILE", format!("{directory}/log-%d"));
    for (variable, value) in environment {
        command.env(variable, value.replace('%', directory));
    }
    command
}

fn finish(mut command: Command, place: &Place, environment: &[(&str, &str)]) -> Said {
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("a child");
    let until = Instant::now() + TIME_LIMIT;
    while child.try_wait().expect("a child").is_none() {
        if Instant::now() > until {
            child.kill().expect("a child");
            panic!("the child has not ended: {environment:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let id = child.id();
    let output = child.wait_with_output().expect("a child");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{environment:?}: {error}");
    // The manual's `%d` is the number of the process.
    Said { log: fs::read_to_string(place.0.join(format!("log-{id}"))).ok(), error }
}

/// How long a child may take, so that one that hangs is a failure.
const TIME_LIMIT: Duration = Duration::from_secs(60);

const RULES: &str = "# Everything is the kernel's.\nuse os tcp_server *:*\nuse os tcp_client *:*\n";
const GROUPS: &str = "application-id configuration* mine\nuse os tcp_server *:*\nuse os tcp_client *:*\n\
                      application-id other *\nuse os tcp_server 10.0.0.0/8:*\n";
const TOML: &str = "quiet = true\nrules = [\"use os tcp_client 127.0.0.0/8:1-65535\"]\n\
                    [vma]\ntracelevel = \"DEBUG\"\n";

#[test]
fn without_a_word_a_connection_has_rings() {
    let said = said("plain", &[]);
    assert!(said.contains(SHARED), "{said}");
    assert!(!said.contains(RULED) && !said.contains("WARNING"), "{said}");
    // The banner, in the manual's form.
    assert!(said.contains("VMA INFO: ") && said.contains("VERSION"), "{said}");
}

#[test]
fn rules_of_the_manuals_file_hold() {
    let said = said("rules", &[("VMA_CONFIG_FILE", "%/rules")]);
    assert!(said.contains(RULED) && !said.contains(SHARED), "{said}");
}

#[test]
fn a_group_is_for_its_program_and_its_id_alone() {
    let file = ("VMA_CONFIG_FILE", "%/groups");
    let mine = said("mine", &[file, ("VMA_APPLICATION_ID", "mine")]);
    assert!(mine.contains(RULED) && !mine.contains(SHARED), "{mine}");
    let another = said("another", &[file, ("VMA_APPLICATION_ID", "another")]);
    assert!(another.contains(SHARED) && !another.contains(RULED), "{another}");
}

#[test]
fn our_own_file_has_parameters_and_rules() {
    let said = said("toml", &[("ADVERB_SOCKETS_CONFIG", "%/toml")]);
    assert!(said.contains(RULED) && !said.contains(SHARED), "{said}");
    assert!(!said.contains("VERSION"), "it is quiet: {said}");
}

#[test]
fn slips_warn_and_name_the_nearest() {
    let said = said("slips", &[("VMA_RX_POL", "1"), ("VMA_STATS_FD_NUM", "5000")]);
    assert!(said.contains("VMA WARNING: ") && said.contains("VMA_RX_POLL"), "{said}");
    assert!(said.contains("VMA_STATS_FD_NUM=5000 is not a number from 0 to 1024"), "{said}");
    assert!(said.contains(SHARED), "{said}");
}

#[test]
fn profiles_and_levels_show_in_the_banner() {
    let said = said("profile", &[("VMA_SPEC", "latency"), ("VMA_TRACELEVEL", "DEBUG")]);
    assert!(said.to_lowercase().contains("latency"), "{said}");
    // With details every parameter is printed.
    assert!(said.contains("VMA_RX_POLL"), "{said}");
}

#[test]
fn details_say_who_and_when() {
    let plain = said("plain-log", &[]);
    let detailed = said("details", &[("VMA_LOG_DETAILS", "3")]);
    let line = |text: &str| text.lines().find(|line| line.contains(SHARED)).map(str::to_owned);
    let (plain, detailed) = (line(&plain).expect("a line"), line(&detailed).expect("a line"));
    assert!(plain.starts_with("VMA INFO: "), "{plain}");
    assert!(detailed.starts_with("Time: ") && detailed.contains(" Tid: "), "{detailed}");
}

#[test]
fn a_transport_is_the_most_that_a_program_gets() {
    for (transport, shares) in [("os", false), ("spin", false), ("shm", true), ("best", true)] {
        let said = said(transport, &[("ADVERB_SOCKETS_TRANSPORT", transport)]);
        assert_eq!(said.contains(SHARED), shares, "{transport}: {said}");
    }
}

#[test]
fn nothing_is_accelerated_if_so_said_and_that_is_explained() {
    let said = said("off", &[("VMA_OFFLOADED_SOCKETS", "0")]);
    assert!(!said.contains(SHARED), "{said}");
    // Of the listener and of the client, which are all sockets that the program makes.
    assert_eq!(said.matches("acceleration is off").count(), 2, "{said}");
}

/// How often a text warns of something.
fn warnings(said: &str, of: &str) -> usize {
    said.lines().filter(|line| line.contains("VMA WARNING: ") && line.contains(of)).count()
}

#[test]
fn a_file_of_rules_that_cannot_be_one_is_warned_of_once_and_not_waited_for() {
    let place = Place::new("bad-rules");
    fs::create_dir(place.0.join("directory")).expect("a directory");
    fs::write(place.0.join("random"), [0xff, 0xfe, 0, 0x80]).expect("a file");
    fs::write(place.0.join("long"), vec![b'#'; (1 << 20) + 1]).expect("a file");
    let fifo = Command::new("mkfifo").arg(place.0.join("fifo")).status().expect("mkfifo");
    assert!(fifo.success());
    for (file, why) in [
        ("directory", "not an ordinary file"),
        ("fifo", "not an ordinary file"),
        ("random", "not UTF-8"),
        ("long", "longer than 1 MiB"),
        ("absent", "No such file"),
    ] {
        for variable in ["VMA_CONFIG_FILE", "ADVERB_SOCKETS_CONFIG"] {
            let path = format!("%/{file}");
            let said = said_in(&place, &[(variable, &path)]).log.expect("a log");
            assert_eq!(warnings(&said, why), 1, "{variable} {file}: {said}");
            assert!(said.contains(SHARED), "{variable} {file}: {said}");
        }
    }
}

#[test]
fn files_that_cannot_be_written_are_warned_of_once() {
    for variable in ["VMA_LOG_FILE", "VMA_STATS_FILE"] {
        for path in ["%/nowhere/file", "%"] {
            let place = Place::new("unwritable");
            let Said { log, error } = said_in(&place, &[(variable, path)]);
            let said = log.unwrap_or(error);
            assert_eq!(warnings(&said, variable), 1, "{variable} {path}: {said}");
            assert!(said.contains(SHARED), "{variable} {path}: {said}");
        }
    }
}

#[test]
fn a_meeting_place_that_cannot_be_one_is_warned_of_once() {
    let long = format!("/dev/shm/{}", "x".repeat(300));
    let file = "%/rules";
    for (path, why) in [
        ("somewhere", "not an absolute path"),
        (long.as_str(), "cannot be opened as a directory"),
        (file, "cannot be opened as a directory"),
        ("/proc/self", "cannot be opened as a directory"),
    ] {
        let said = said("no-place", &[("ADVERB_SOCKETS_SHM_DIR", path)]);
        assert_eq!(warnings(&said, why), 1, "{path}: {said}");
        assert!(!said.contains(SHARED), "{path}: {said}");
    }
}

#[test]
fn values_that_mean_nothing_are_warned_of_once() {
    let said = said("affinity", &[("VMA_INTERNAL_THREAD_AFFINITY", "0-99,zz")]);
    assert_eq!(warnings(&said, "VMA_INTERNAL_THREAD_AFFINITY=0-99,zz is not"), 1, "{said}");
    let place = Place::new("no-text");
    let mut command = the_command(&place, &[]);
    command.env("VMA_RX_POLL", OsString::from_vec(vec![b'1', 0xff]));
    let said = finish(command, &place, &[]).log.expect("a log");
    assert_eq!(warnings(&said, "the value of VMA_RX_POLL is not UTF-8"), 1, "{said}");
    assert!(said.contains(SHARED), "{said}");
}

/// The program of these tests' own children.
#[test]
#[ignore = "the child of another test"]
fn the_child() {
    if std::env::var_os("ADVERB_TEST_CHILD").is_none() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    let mut client = TcpStream::connect(at).expect("a connection");
    let (mut server, _) = listener.accept().expect("a connection");
    let mut buffer = [0; 5];
    for _ in 0..10 {
        client.write_all(b"hello").expect("a connection");
        server.read_exact(&mut buffer).expect("a connection");
        server.write_all(&buffer).expect("a connection");
        client.read_exact(&mut buffer).expect("a connection");
    }
    assert_eq!(&buffer, b"hello");
}
