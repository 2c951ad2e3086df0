//! `adverb sockets stat`: every option and view of the manual, on programs that run accelerated.
//!
//! # Safety
//!
//! The C library's functions that wait get arrays of ours, of the lengths that are said.

#![expect(clippy::indexing_slicing, reason = "a test may panic")]

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use super::{adverb, stderr, stdout};

#[path = "../../../preload/tests/support/library.rs"]
pub(crate) mod library;

/// A program that does what lines tell it, and ends with the test, and the directory of its files.
pub(crate) struct Talker(pub(crate) Child, BufReader<ChildStdout>, pub(crate) PathBuf);

impl Talker {
    fn start(name: &str) -> Self {
        Self::start_in(Self::place(name))
    }

    fn place(name: &str) -> String {
        format!("/dev/shm/adverb-stat-{name}-{}", std::process::id())
    }

    /// Starts one whose files lie in that directory.
    pub(crate) fn start_in(place: String) -> Self {
        Self::start_by(Command::new(std::env::current_exe().expect("a path of this test")), place)
    }

    /// The same, by a command that starts it.
    pub(crate) fn start_by(mut command: Command, place: String) -> Self {
        std::fs::create_dir_all(&place).expect("a directory");
        command.args([
            "stat::the_child",
            "--exact",
            "--include-ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        command.env("ADVERB_TEST_STAT", "1").env("LD_PRELOAD", library::library());
        command.env("ADVERB_SOCKETS_SHM_DIR", &place).env("ADVERB_SOCKETS_QUIET", "1");
        command.env("VMA_LOG_FILE", format!("{place}/log")).env("VMA_CPU_USAGE_STATS", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a child");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut talker = Self(child, said, PathBuf::from(place));
        talker.await_line("ready");
        talker
    }

    pub(crate) fn await_line(&mut self, what: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.1.read_line(&mut line).expect("a line") > 0, "it has ended before {what}");
            if let Some((_, rest)) = line.split_once(what) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Tells it something, and returns what it has answered.
    pub(crate) fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.await_line("done ")
    }

    /// The same, without waiting for it.
    pub(crate) fn tell(&mut self, what: &str) {
        writeln!(self.0.stdin.as_mut().expect("a pipe"), "{what}").expect("a line");
    }

    fn stat(&self, words: &str) -> String {
        let directory = self.2.to_str().expect("a path in Unicode");
        let mut all = vec!["sockets", "stat", "-k", directory];
        all.extend(words.split_whitespace());
        let output = adverb(&all);
        assert_eq!(output.status.code(), Some(0), "{words}: {}", stderr(&output));
        stdout(&output)
    }

    /// Everything about one descriptor.
    fn json(&self, fd: &str) -> Value {
        let all: Value = serde_json::from_str(&self.stat("--json")).expect("valid JSON");
        super::schema::check("stat", &all);
        let sockets = all["sockets"].as_array().expect("a list");
        let is_it = |socket: &&Value| socket["fd"].as_u64() == fd.parse().ok();
        sockets.iter().find(is_it).expect("the socket").clone()
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_dir_all(&self.2);
    }
}

/// The line of a descriptor in views 1 and 2, and the one after it.
fn columns(text: &str, fd: &str) -> (Vec<String>, Vec<String>) {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut lines = text.lines();
    let is_it = |line: &&str| line.split_once("Rx:").is_some_and(|(start, _)| start.trim() == fd);
    let rx = lines.find(is_it).expect("the descriptor");
    (words(rx), words(lines.next().expect("what it sends")))
}

/// Goal: each counter is a metric with a type and a line for each socket, named by its process and descriptor.
#[test]
fn prometheus_reads_what_sockets_count() {
    let mut talker = Talker::start("prometheus");
    talker.ask("connect");
    let told = talker.ask("exchange 10");
    let text = talker.stat("--prometheus");
    let pid = talker.0.id();
    let is_sample = |line: &&str| {
        line.starts_with("adverb_sockets_tx") && line.contains(&format!("pid=\"{pid}\""))
    };
    assert!(text.contains("# TYPE adverb_sockets_tx_bytes_total counter\n"), "{told}: {text}");
    assert!(text.contains("# TYPE adverb_sockets_rx_waiting_bytes gauge\n"), "{text}");
    assert!(text.lines().find(is_sample).is_some_and(|line| line.contains("fd=\"")), "{text}");
    let names: Vec<_> = text.lines().filter(|line| line.starts_with('#')).collect();
    let mut once = names.clone();
    once.dedup();
    assert_eq!(names, once);
}

/// Goal: views 1 and 2 count what went through rings and what the kernel had, and show the transport and
/// its reason; view 5 is as netstat; `-S` and view 3 are about one socket and its rings.
#[test]
fn views_show_what_was_sent_and_received() {
    let mut program = Talker::start("views");
    let fds = program.ask("connect");
    let (client, server) = fds.split_once(' ').expect("two descriptors");
    let (client, server) = (client.to_owned(), server.to_owned());
    program.ask("exchange 100");
    for view in ["-v 1", "-v 2", ""] {
        let text = program.stat(view);
        assert!(
            text.contains("pkt") && text.contains("Kbyte") && !text.contains("pkt/s"),
            "{text}"
        );
        let (rx, tx) = columns(&text, &server);
        let count = |words: &[String], offloaded: usize, os: usize| {
            let number = |at: usize| words.get(at).and_then(|w| w.parse::<u64>().ok());
            number(offloaded).expect("a number") + number(os).expect("a number")
        };
        assert!(count(&rx, 2, 7) >= 100, "{text}");
        assert!(count(&tx, 1, 5) >= 100, "{text}");
        assert!(text.contains("shm: shared memory with the peer"), "{text}");
        assert_eq!(view == "-v 2", text.contains("bells"), "{text}");
    }
    let socket = program.json(&server);
    assert!(socket["rx_packets"].as_u64() > Some(50), "{socket}");
    // A kilobyte that was not read.
    program.ask("leave 1024");
    assert_eq!(program.json(&server)["rx_waiting_bytes"], 1024);
    let text = program.stat("-v 3");
    assert!(text.contains("Rx byte: cur 1024 / max"), "{text}");
    assert!(text.contains("RING_SHM=[0]") && text.contains("Bells:"), "{text}");
    let text = program.stat(&format!("-S {server} info"));
    assert!(text.contains(&format!("Fd=[{server}]")) && text.contains("ESTABLISHED"), "{text}");
    assert!(!text.contains(&format!("Fd=[{client}]")), "{text}");
    let all = program.stat("-S 0");
    assert!(all.contains(&format!("Fd=[{client}]")) && all.contains(&format!("Fd=[{server}]")));
    let text = program.stat("-v 5");
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("tcp")).collect();
    assert!(text.starts_with("Proto Offloaded Local Address"), "{text}");
    let is_offloaded = |line: &&&str| line.contains("Yes") && line.contains("ESTABLISHED");
    assert_eq!(lines.iter().filter(is_offloaded).count(), 2, "{text}");
    assert!(lines.iter().any(|line| line.contains("LISTEN")), "{text}");
}

/// Goal: view 4 has every group of every socket, of both families, and none that was left.
#[test]
fn the_view_of_groups_has_all_of_them() {
    let mut program = Talker::start("groups");
    let fd = program.ask("join 239.1.2.3 239.1.2.4 239.1.2.5");
    let text = program.stat("-v 4");
    assert!(text.contains("Group                fd number"), "{text}");
    for group in ["239.1.2.3", "239.1.2.4", "239.1.2.5"] {
        let line = format!("{:<20} {fd}", format!("[{group}]"));
        assert!(text.lines().any(|other| other == line), "{line} in {text}");
        assert!(program.stat("-v 3").contains(&format!("- Member of = [{group}]")));
    }
    let other = program.ask("join6 ff15::77");
    let line = format!("{:<20} {other}", "[ff15::77]");
    assert!(program.stat("-v 4").lines().any(|known| known == line), "{}", program.stat("-v 4"));
    program.ask("part 239.1.2.4");
    let text = program.stat("-v 4");
    assert!(!text.contains("239.1.2.4") && text.contains("239.1.2.5"), "{text}");
    assert!(program.stat("-v 3").contains("MC Loop Enabled"));
    assert!(program.stat("-v 3").contains("- Bound IF = [0.0.0.0:"));
    program.ask("quiet");
    assert!(program.stat("-v 3").contains("MC Loop Disabled"));
}

/// Goal: details 2 are what has come each second, and what was there before does not count; cycles and
/// intervals are as many, and as long, as asked for.
#[test]
fn deltas_are_of_each_second_and_reports_are_counted() {
    let mut program = Talker::start("deltas");
    let fds = program.ask("connect");
    let (_, server) = fds.split_once(' ').expect("two descriptors");
    program.ask("exchange 1000");
    let start = std::time::Instant::now();
    let text = program.stat("-d 2 -c 2 -i 1");
    assert!(start.elapsed() >= std::time::Duration::from_secs(2));
    assert_eq!(text.matches("pkt/s").count(), 4, "{text}");
    let (rx, tx) = columns(&text, server);
    assert_eq!((rx[2].as_str(), rx[7].as_str(), tx[1].as_str()), ("0", "0", "0"), "{text}");
    let (rx, _) = columns(&program.stat("-d 1"), server);
    assert_ne!(rx[2], "0");
    let text = program.stat("-v 3 -d 2");
    assert!(text.contains("[kilobytes/s/packets/s/eagains/s/errors/s]"), "{text}");
    assert!(text.contains("dropped/s 0"), "{text}");
    // While something comes, it is seen to.
    writeln!(program.0.stdin.as_mut().expect("a pipe"), "stream 4000").expect("a line");
    let text = program.stat("-d 2 -v 1");
    let (rx, _) = columns(&text, server);
    assert!(rx[2] != "0" || rx[7] != "0", "{text}");
    program.await_line("done ");
}

/// Goal: a program that wants no more than so many of its sockets shown has no more shown, in no view, and all counted.
#[test]
fn as_many_sockets_are_shown_as_a_program_says() {
    for (most, expected) in [(None, 3), (Some("2"), 2), (Some("0"), 0)] {
        let mut command = Command::new(std::env::current_exe().expect("a path of this test"));
        command.envs(most.map(|most| ("VMA_STATS_FD_NUM", most)));
        let mut program =
            Talker::start_by(command, Talker::place(&format!("shown-{}", most.unwrap_or("all"))));
        program.ask("connect");
        let all: Value = serde_json::from_str(&program.stat("--json")).expect("valid JSON");
        assert_eq!(all["sockets"].as_array().map(Vec::len), Some(expected), "{all}");
        let fds = program.stat("-v 3").matches("Fd=[").count();
        assert_eq!(fds, expected, "{most:?}");
        program.ask("exchange 50");
        let mut top = super::command(&["top", "--json", "-d", "0.1"]);
        top.env("ADVERB_SOCKETS_SHM_DIR", &program.2).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = super::finish(top.spawn().expect("the command starts"));
        let all: Value = serde_json::from_str(&stdout(&output)).expect("valid JSON");
        let is_it = |group: &&Value| group["pid"].as_u64() == Some(program.0.id().into());
        let group = all["groups"].as_array().expect("a list").iter().find(is_it).expect("it");
        assert_eq!((&group["sent"], &group["received"]), (&100.into(), &100.into()), "{group}");
        assert_eq!(group["members"].as_array().map(Vec::len), Some(expected), "{group}");
        assert_eq!(group["more"].as_u64(), u64::try_from(3 - expected).ok(), "{group}");
    }
}

/// Goal: a socket that is shown when another has gone counts from the last look on, as all do. Method: the listener, which
/// is the first of three, is closed after a report in which it is shown, and the first without it is looked at.
#[test]
fn what_a_socket_had_counted_before_it_is_shown_is_no_rate() {
    let mut command = Command::new(std::env::current_exe().expect("a path of this test"));
    command.env("VMA_STATS_FD_NUM", "2");
    let mut program = Talker::start_by(command, Talker::place("successor"));
    program.ask("connect");
    program.ask("exchange 1000");
    let directory = program.2.to_str().expect("a path in Unicode").to_owned();
    let words = ["sockets", "stat", "-k", &directory, "-d", "2", "-c", "60", "--json"];
    let mut stat = super::command(&words);
    let mut stat = stat.stdout(Stdio::piped()).spawn().expect("the command");
    let said = stat.stdout.take().expect("a pipe");
    let mut reports = serde_json::Deserializer::from_reader(said).into_iter::<Value>();
    let mut next = || {
        let all = reports.next().expect("a report").expect("valid JSON");
        all["sockets"].as_array().expect("a list").clone()
    };
    let fds =
        |sockets: &[Value]| -> Vec<_> { sockets.iter().map(|one| one["fd"].clone()).collect() };
    let first = fds(&next());
    program.ask("unlisten");
    let shown = loop {
        let sockets = next();
        if fds(&sockets) != first {
            break sockets;
        }
    };
    let _ = stat.kill();
    let _ = stat.wait();
    assert_eq!(shown.len(), 2, "{shown:?}");
    for socket in shown {
        let counted = ["rx_packets", "rx_os_packets"].map(|name| socket[name].as_u64());
        assert_eq!(counted, [Some(0); 2], "{socket}");
    }
}

/// Goal: what the library's own thread costs is shown in each form, and nothing where there is none.
#[test]
fn what_the_internal_thread_costs_is_shown() {
    let mut program = Talker::start("internal");
    program.ask("connect");
    let json = |program: &Talker| {
        let all: Value = serde_json::from_str(&program.stat("--json")).expect("valid JSON");
        super::schema::check("stat", &all);
        all["internal_thread"].clone()
    };
    assert!(json(&program).is_null());
    assert!(!program.stat("-v 1").contains("Internal thread"));
    program.ask("thread");
    let own = json(&program);
    assert!(own["cpu_ns"].as_u64() > Some(0), "{own}");
    // It sleeps at the end of its work, from then on for good.
    let slept = || json(&program)["sleeps"].as_u64() > Some(0);
    while !slept() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let text = program.stat("-d 2 -v 1");
    assert!(text.contains("Internal thread: CPU 0 us/s, sleeps 0/s"), "{text}");
    for view in ["-v 1", "-v 3"] {
        let text = program.stat(view);
        assert!(text.contains("Internal thread: CPU "), "{text}");
    }
    let text = program.stat("--prometheus");
    assert!(text.contains("adverb_sockets_internal_thread_cpu_ns_total{"), "{text}");
}

/// Goal: counters begin anew with `-z`, programs and sockets are chosen by `-p`, `-n` and `-s`, and found
/// with `-f`; `-F` leaves files of the dead, which otherwise go; `-V` and `-h` say what they say.
#[test]
fn programs_and_sockets_are_chosen() {
    let mut program = Talker::start("chosen");
    let fds = program.ask("connect");
    let (client, server) = fds.split_once(' ').expect("two descriptors");
    program.ask("exchange 100");
    let pid = program.0.id();
    assert!(program.stat(&format!("-p {pid}")).contains(&format!("pid {pid} ")));
    assert!(program.stat("-f -n the_child").contains(&format!("pid {pid} ")));
    let directory = program.2.to_str().expect("a path in Unicode");
    for nobody in [["-p", "1"], ["-n", "nobody-is-called-so"]] {
        let output = adverb(&[&["sockets", "stat", "-k", directory][..], &nobody].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("Failed to identify process"));
    }
    let text = program.stat(&format!("-v 3 -s {server}"));
    assert!(text.contains(&format!("Fd=[{server}]")) && !text.contains(&format!("Fd=[{client}]")));
    program.stat("-z");
    let socket = program.json(server);
    assert_eq!((&socket["rx_packets"], &socket["tx_bytes"]), (&0.into(), &0.into()), "{socket}");
    // A process of that number has never been.
    let dead = program.2.join("stat.4194305");
    std::fs::write(&dead, "nothing").expect("a file");
    program.stat("-F");
    assert!(dead.exists());
    program.stat("");
    assert!(!dead.exists());
    let said = adverb(&["sockets", "stat", "--help"]);
    for option in ["--pid", "--name", "--find-pid", "--zero", "--fd-dump", "--forbid-clean"] {
        assert!(stdout(&said).contains(option), "{option}");
    }
    let version = adverb(&["sockets", "stat", "-V"]);
    assert!(stdout(&version).contains(env!("CARGO_PKG_VERSION")), "{}", stderr(&version));
}

/// Goal: `-l` and `-D` change how much a program that runs says, and in how much detail.
#[test]
fn the_log_of_a_program_that_runs_is_changed() {
    let mut program = Talker::start("log");
    program.ask("connect");
    let log = program.2.join("log");
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    assert!(!said().contains("VMA DEBUG"), "{}", said());
    program.stat("-l debug -D 2");
    program.ask("connect");
    let said = said();
    assert!(said.contains("VMA DEBUG"), "{said}");
    let line = said.lines().find(|line| line.contains("VMA DEBUG")).expect("a line");
    assert!(line.contains(&format!("{}", program.0.id())), "{line}");
    let output = adverb(&["sockets", "stat", "-l", "loud"]);
    assert_eq!(output.status.code(), Some(2));
}

/// Goal: `-S` with a level has the program describe that socket in its own log, at that level, once.
#[test]
fn a_socket_is_described_in_the_log_at_the_level_that_is_asked_for() {
    let mut program = Talker::start("subject");
    let fds = program.ask("connect");
    let (client, server) = fds.split_once(' ').expect("two descriptors");
    program.ask("exchange 20");
    let log = program.2.join("log");
    let count = |what: &str| {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        said.lines().filter(|line| line.contains(what)).count()
    };
    let described = |level: &str, fd: &str| format!("VMA {level}: [fd={fd}] Stream");
    // Not without a level, and not at one that the log is without.
    for words in [format!("-S {server}"), format!("-S {server} debug")] {
        let text = program.stat(&words);
        assert!(text.contains(&format!("Fd=[{server}]")), "{text}");
        program.ask("connect");
        assert_eq!(count("[fd="), 0, "{words}");
    }
    program.stat(&format!("-S {server} info"));
    program.ask("connect");
    program.ask("connect");
    assert_eq!(count(&described("INFO", server)), 1);
    assert_eq!(count(&described("INFO", client)), 0);
    assert!(count("Rx Offload:") > 0 && count("shared memory with the peer") > 0);
    program.stat("-l debug -S 0 debug");
    program.ask("connect");
    for fd in [client, server] {
        assert_eq!(count(&described("DEBUG", fd)), 1, "{fd}");
    }
    for words in [["-S", "4", "loud"], ["-S", "four", "info"]] {
        let output = adverb(&[&["sockets", "stat"], &words[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}");
    }
}

/// Goal: what a full socket drops is counted while it is open, in every view that has the column.
#[test]
fn what_is_dropped_is_counted() {
    let mut program = Talker::start("drops");
    let fd = program.ask("flood");
    let socket = program.json(&fd);
    let dropped = socket["rx_dropped_packets"].as_u64().expect("a number");
    assert!(dropped > 0, "{socket}");
    assert!(socket["rx_limit_bytes"].as_u64() > Some(0), "{socket}");
    assert!(socket["rx_waiting_bytes"].as_u64() > Some(0), "{socket}");
    assert!(program.stat("-v 3").contains(&format!("dropped {dropped}")));
    assert!(program.stat("-v 2").contains(&format!("dropped {dropped}")));
}

/// Goal: what `select`, `poll` and `epoll_wait` find, by rings and by the kernel, their time-outs and how much
/// they spin are counted, each for itself, in every format; `-z` begins anew, `-d 2` is of each second.
#[test]
fn calls_that_wait_are_counted() {
    let mut program = Talker::start("waits");
    program.ask("connect");
    program.ask("exchange 100");
    let count = |program: &Talker, call: &str, name: &str| {
        let all: Value = serde_json::from_str(&program.stat("--json")).expect("valid JSON");
        all["waits"][call][name].as_u64().expect("a number")
    };
    for call in ["poll", "epoll", "select"] {
        program.ask(&format!("await {call} 50"));
        assert_eq!(count(&program, call, "ready_rings"), 50, "{call}");
        assert_eq!(count(&program, call, "timeouts"), 0, "{call}");
        let polls = count(&program, call, "poll_hit") + count(&program, call, "poll_miss");
        assert_eq!(polls, 50, "{call}");
        program.ask(&format!("outlast {call} 3"));
        assert_eq!(count(&program, call, "timeouts"), 3, "{call}");
        assert!(count(&program, call, "polling_ns") > 0, "{call}");
    }
    program.ask("await pipe 7");
    assert_eq!(count(&program, "poll", "ready_os"), 7);
    let text = program.stat("-v 1");
    assert!(text.contains("select() Rx Ready: 0/50 [os/offload]\n"), "{text}");
    assert!(text.contains("epoll_wait() Timeouts: 3, Errors: 0\n"), "{text}");
    assert!(program.stat("-v 3").contains("poll() Polling CPU: "), "{text}");
    let text = program.stat("--prometheus");
    let is_it = |line: &&str| {
        line.starts_with("adverb_sockets_wait_ready_os_total{") && line.contains("call=\"poll\"")
    };
    assert!(text.lines().find(is_it).is_some_and(|line| line.ends_with(" 7")), "{text}");
    let text = program.stat("-d 2 -i 1");
    assert!(!text.contains("Rx Ready"), "{text}");
    program.stat("-z");
    assert_eq!(count(&program, "epoll", "ready_rings"), 0);
}

#[repr(C)]
struct Polled(i32, i16, i16);

#[repr(C, packed)]
struct Event(u32, u64);

unsafe extern "C" {
    fn poll(fds: *mut Polled, count: u64, limit_ms: i32) -> i32;
    fn select(
        count: i32,
        read: *mut u64,
        write: *mut u64,
        except: *mut u64,
        limit: *mut i64,
    ) -> i32;
    fn epoll_create1(flags: i32) -> i32;
    fn epoll_ctl(instance: i32, operation: i32, fd: i32, event: *mut Event) -> i32;
    fn epoll_wait(instance: i32, events: *mut Event, most: i32, limit_ms: i32) -> i32;
    fn close(fd: i32) -> i32;
}

/// Waits until a descriptor may be read, for so many milliseconds at most, by a call of that name. Returns
/// whether it may be.
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "an instance in four calls")]
fn awaits(call: &str, fd: i32, limit_ms: i32) -> bool {
    let found = match call {
        "select" => {
            let mut set = [0_u64; 16];
            let bit = usize::try_from(fd).expect("a descriptor");
            set[bit / 64] |= 1 << (bit % 64);
            let mut limit = [0, i64::from(limit_ms) * 1000];
            let null = std::ptr::null_mut();
            // SAFETY: a set of 1,024 bits and a time, both ours.
            unsafe { select(fd + 1, set.as_mut_ptr(), null, null, limit.as_mut_ptr()) }
        }
        "epoll" => {
            let mut event = Event(1, 7);
            // SAFETY: the event is ours, and the instance closed again.
            unsafe {
                let instance = epoll_create1(0);
                assert_eq!(epoll_ctl(instance, 1, fd, &raw mut event), 0);
                let found = epoll_wait(instance, &raw mut event, 1, limit_ms);
                close(instance);
                found
            }
        }
        _ => {
            let mut polled = Polled(fd, 1, 0);
            // SAFETY: one element, which is ours.
            unsafe { poll(&raw mut polled, 1, limit_ms) }
        }
    };
    assert!(found >= 0, "{call}: {}", std::io::Error::last_os_error());
    found > 0
}

/// The program of these tests' own children.
#[test]
#[ignore = "the child of another test"]
fn the_child() {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    if std::env::var_os("ADVERB_TEST_STAT").is_none() {
        return;
    }
    println!("ready");
    let mut kept: Vec<(TcpListener, TcpStream, TcpStream)> = Vec::new();
    let mut datagrams = Vec::new();
    let (mut listeners, mut ends) = (Vec::new(), Vec::<TcpStream>::new());
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let (what, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match what {
            "connect" => {
                let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
                let at = listener.local_addr().expect("an address");
                let client = TcpStream::connect(at).expect("a connection");
                let (server, _) = listener.accept().expect("a connection");
                println!("done {} {}", client.as_raw_fd(), server.as_raw_fd());
                kept.push((listener, client, server));
            }
            // The listener of the last connection is closed.
            "unlisten" => {
                let (listener, client, server) = kept.pop().expect("a connection");
                drop(listener);
                ends.extend([client, server]);
                println!("done listening");
            }
            // One by the name of the library's that carries frames, which needs an owner of an interface.
            "thread" => {
                let (go, told) = std::sync::mpsc::channel();
                let works = move || {
                    let start = std::time::Instant::now();
                    while start.elapsed() < std::time::Duration::from_millis(20) {}
                    go.send(()).expect("it is awaited");
                    std::thread::sleep(std::time::Duration::from_secs(600));
                };
                let named = std::thread::Builder::new().name("adverb-frames".to_owned());
                drop(named.spawn(works).expect("a thread"));
                told.recv().expect("it has worked");
                println!("done working");
            }
            "exchange" | "stream" => {
                let (_, client, server) = kept.last_mut().expect("a connection");
                for _ in 0..rest.parse().expect("a number") {
                    let mut buffer = [7; 100];
                    client.write_all(&buffer).expect("a connection");
                    server.read_exact(&mut buffer).expect("a connection");
                    server.write_all(&buffer).expect("a connection");
                    client.read_exact(&mut buffer).expect("a connection");
                    if what == "stream" {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                }
                println!("done exchanging");
            }
            "await" if rest.starts_with("pipe") => {
                let (reader, mut writer) = std::io::pipe().expect("a pipe");
                writer.write_all(b"x").expect("a pipe");
                let (_, count) = rest.split_once(' ').expect("a number");
                for _ in 0..count.parse().expect("a number") {
                    assert!(awaits("poll", reader.as_raw_fd(), 1000));
                }
                println!("done waiting");
            }
            "await" | "outlast" => {
                let (_, client, server) = kept.last_mut().expect("a connection");
                let (call, count) = rest.split_once(' ').expect("a call and a number");
                for _ in 0..count.parse().expect("a number") {
                    let mut buffer = [7; 100];
                    if what == "outlast" {
                        assert!(!awaits(call, server.as_raw_fd(), 20));
                        continue;
                    }
                    client.write_all(&buffer).expect("a connection");
                    assert!(awaits(call, server.as_raw_fd(), 30_000));
                    server.read_exact(&mut buffer).expect("a connection");
                }
                println!("done waiting");
            }
            "listen" => {
                listeners.push(TcpListener::bind("127.0.0.1:0").expect("a port"));
                println!("done {}", listeners[0].local_addr().expect("an address").port());
            }
            "accept" => {
                ends.push(listeners[0].accept().expect("a connection").0);
                println!("done accepting");
            }
            "dial" => {
                let port = rest.parse().expect("a port");
                ends.push(TcpStream::connect(("127.0.0.1", port)).expect("a connection"));
                println!("done dialling");
            }
            "say" => {
                ends[0].write_all(&[7; 100]).expect("a connection");
                println!("done saying");
            }
            "hear" => {
                ends[0].read_exact(&mut [0; 100]).expect("a connection");
                println!("done hearing");
            }
            "outlive" => {
                let end = ends[0].read_to_end(&mut Vec::new());
                println!(
                    "done {}",
                    end.map_or_else(|error| error.to_string(), |_| "end".to_owned())
                );
            }
            "leave" => {
                let (_, client, _) = kept.last_mut().expect("a connection");
                let count = rest.parse().expect("a number");
                client.write_all(&vec![1; count]).expect("a connection");
                println!("done leaving");
            }
            "join" => {
                let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
                for group in rest.split(' ') {
                    let group = group.parse().expect("an address");
                    socket.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST).expect("a group");
                }
                println!("done {}", socket.as_raw_fd());
                datagrams.push(socket);
            }
            "join6" => {
                let socket = UdpSocket::bind("[::]:0").expect("a port");
                socket.join_multicast_v6(&rest.parse().expect("an address"), 1).expect("a group");
                println!("done {}", socket.as_raw_fd());
                datagrams.push(socket);
            }
            "part" => {
                let (socket, group) = (&datagrams[0], rest.parse().expect("an address"));
                socket.leave_multicast_v4(&group, &Ipv4Addr::LOCALHOST).expect("a group");
                println!("done parting");
            }
            "quiet" => {
                datagrams[0].set_multicast_loop_v4(false).expect("an option");
                println!("done quiet");
            }
            "flood" => {
                let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
                let sender = UdpSocket::bind("127.0.0.1:0").expect("a port");
                for _ in 0..10_000 {
                    let to = socket.local_addr().expect("an address");
                    let _ = sender.send_to(&[1; 100], to);
                }
                println!("done {}", socket.as_raw_fd());
                datagrams.push(socket);
            }
            other => panic!("{other}"),
        }
    }
}
