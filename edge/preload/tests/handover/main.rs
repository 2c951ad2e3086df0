//! Connections that change hands while bytes are on their way: to programs with the library in front of
//! them, and to programs without.
//!
//! The programs are in C, because a program without the library is best one that is linked statically.
//! Where there is no compiler, the tests are skipped, and say so.
//!
//! # Safety
//!
//! System calls are made for the calling thread, with memory of its own.

#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::Place;

/// The programs, one that loads the library and one that is static; `None` without a compiler.
fn programs(place: &Place) -> Option<(PathBuf, PathBuf)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/handover/talk.c");
    let build = |name: &str, flags: &[&str]| {
        let program = place.0.join(name);
        let mut command = Command::new("cc");
        command.args(["-O1", "-w", "-pthread"]).args(flags).arg("-o").arg(&program);
        built(command.arg(&source)).then_some(program)
    };
    build("talk", &[]).zip(build("talk-static", &["-static"]))
}

/// Runs a compiler. Returns false, and says so, if there is none.
fn built(command: &mut Command) -> bool {
    let Ok(status) = command.status() else {
        eprintln!("skipped: there is no compiler for C");
        return false;
    };
    assert!(status.success(), "{command:?}");
    true
}

/// A command that says what becomes of its connections.
fn explaining(place: &Place, program: &Path) -> Command {
    let mut command = place.command(program);
    command.env("ADVERB_SOCKETS_EXPLAIN", "1");
    command
}

/// One conversation.
#[derive(Clone, Copy, Debug)]
struct Talk<'a> {
    how: &'a str,
    way: &'a str,
    /// What the first server reads and sends before it hands over, and all there is.
    read: usize,
    sent: usize,
    to_server: usize,
    to_client: usize,
}

/// A program of one file; `None` without a compiler.
fn program(place: &Place, name: &str) -> Option<PathBuf> {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/handover").join(format!("{name}.c"));
    let program = place.0.join(name);
    let mut command = Command::new("cc");
    let command = command.args(["-O1", "-w", "-pthread", "-o"]).arg(&program).arg(source);
    built(command).then_some(program)
}

/// With rings and without; with waits that spin for ever; and with waits that do not spin.
const SHARED: [(&str, &str); 1] = [("ADVERB_SOCKETS_TRANSPORT", "shm")];
const SPINNING: [(&str, &str); 1] = [("ADVERB_SOCKETS_TRANSPORT", "spin")];
const SLEEPING: [(&str, &str); 2] =
    [("ADVERB_SOCKETS_TRANSPORT", "shm"), ("ADVERB_SOCKETS_PROFILE", "frugal")];
const PATIENT: [(&str, &str); 2] =
    [("ADVERB_SOCKETS_TRANSPORT", "shm"), ("ADVERB_SOCKETS_PROFILE", "latency")];

/// Runs a program of one file in several modes and with several arguments, all at the same time; each says
/// by its status whether all was well.
fn succeeds(name: &str, modes: &[&[(&str, &str)]], arguments: &[&str]) {
    for said in say(name, modes, arguments) {
        said.lines()
            .filter(|line| line.starts_with("skipped: "))
            .for_each(|line| eprintln!("{line}"));
    }
}

/// The same. Returns what each has said; nothing without a compiler.
fn say(name: &str, modes: &[&[(&str, &str)]], arguments: &[&str]) -> Vec<String> {
    let place = Place::new(name);
    let Some(program) = program(&place, name) else { return Vec::new() };
    let start = |mode: &[(&str, &str)], argument: &&str| {
        let mut command = place.command(&program);
        command.args(argument.split_whitespace()).envs(mode.iter().copied());
        let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("a program")
    };
    let each = modes.iter().flat_map(|mode| arguments.iter().map(move |argument| (mode, argument)));
    let running: Vec<_> = each.map(|(mode, what)| (mode, what, start(mode, what))).collect();
    let ended: Vec<_> = running
        .into_iter()
        .map(|(mode, what, child)| (mode, what, end(child, Duration::from_secs(120))))
        .collect();
    let said = |(mode, what, said): (_, _, Result<String, String>)| {
        said.unwrap_or_else(|why| panic!("{mode:?}, {what}: {why}"))
    };
    ended.into_iter().map(said).collect()
}

/// Goal: calls that a handler may make ask the program's `malloc` for nothing, which the handler may have
/// interrupted.
#[test]
fn a_handler_may_interrupt_malloc() {
    succeeds("handlers", &[&SHARED, &SPINNING, &SLEEPING], &["first", "again", "count"]);
}

/// Goal: epoll instances come and go, as one for each request does, and cost no memory; one that is closed while a
/// thread waits there is no other one's meanwhile.
#[test]
fn an_instance_that_is_closed_is_used_again() {
    succeeds("instances", &[&SHARED, &SPINNING, &SLEEPING], &["requests", "inner", "closed"]);
}

/// Goal: how much there is to read is what has been sent, and to ask for it changes nothing.
#[test]
fn what_is_there_to_read_is_counted_by_any_thread() {
    succeeds("counted", &[&SHARED, &SPINNING], &[""]);
}

/// Goal: a sender's datagrams come in their order while they change over to a mailbox, however many its receiver has still to
/// read then.
#[test]
fn datagrams_stay_in_order_when_a_mailbox_takes_over() {
    succeeds("order", &[&SHARED, &SLEEPING], &[""]);
}

/// Goal: a program that waits for short times only hears of what memory does not say.
#[test]
fn short_waits_hear_what_only_the_kernel_knows() {
    succeeds("limits", &[&PATIENT], &["poll", "select"]);
}

/// Goal: the same where what was to wake it has been lost, also if something else ends each wait.
#[test]
fn waits_make_good_for_bells_that_were_lost() {
    succeeds(
        "limits",
        &[&SHARED, &SLEEPING, &PATIENT],
        &["limit", "look", "none", "timer", "busy", "signal"],
    );
}

/// Goal: a sender that never lets its receiver catch up gets to its mailbox as well.
#[test]
fn a_flood_of_datagrams_gets_to_the_mailbox() {
    succeeds("flood", &[&SHARED], &[""]);
}

/// Goal: two ends that send more than rings hold before they read get on, as with the kernel, whose queues hold more, however
/// they wait for room; and every byte arrives.
#[test]
fn ends_that_send_before_they_read_do_not_wait_for_each_other() {
    let ways =
        ["block", "limit", "poll", "select", "epoll", "edge", "nested", "asked", "look", "busy"];
    let alike = ways.map(|way| format!("{way} {way}"));
    let alike = alike.each_ref().map(String::as_str);
    let mixed = ["block poll", "limit edge", "select busy", "look epoll"];
    succeeds("knot", &[&SHARED], &alike);
    succeeds("knot", &[&SHARED, &SPINNING, &SLEEPING], &mixed);
    // As few as that at once, since they never rest.
    succeeds("knot", &[&PATIENT], &alike);
}

/// Goal: what is seen of a peer that has ended, with bytes unread and without, by itself or killed, is what the kernel shows.
/// Method: the program prints what it sees, with the library in front of it and without.
#[test]
fn the_end_of_a_peer_looks_as_by_the_kernel() {
    let place = Place::new("resets");
    let Some(program) = program(&place, "resets") else { return };
    let whens = [
        "later", "recv", "spin", "poll", "epoll", "edge", "error", "full", "part", "send", "pipe",
        "many",
    ];
    let start = |mut command: Command, when: &str| {
        let command = command.arg(when).stdout(Stdio::piped()).stderr(Stdio::inherit());
        command.spawn().expect("a program")
    };
    let with = |mode: &[(&str, &str)], when| {
        let mut command = place.command(&program);
        command.envs(mode.iter().copied());
        start(command, when)
    };
    let all: Vec<_> = whens
        .into_iter()
        .map(|when| {
            let without = start(Command::new(&program), when);
            [without, with(&SPINNING, when), with(&SHARED, when), with(&SLEEPING, when)]
        })
        .collect();
    for children in all {
        let [without, with @ ..] = children.map(|child| {
            let output = child.wait_with_output().expect("what it has printed");
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).expect("text")
        });
        for with in with {
            assert_eq!(with, without);
        }
    }
}

/// Goal: an end that is shut to reading before its connection has rings is not taken for its peer's end.
#[test]
fn what_is_sent_by_an_end_that_reads_nothing_arrives() {
    succeeds("early", &[&SHARED, &SPINNING], &[""]);
}

/// Goal: an end that does something else after it has sent what there was room for, or watches for something else, is not taken
/// for one that waits for room, as the other one does: the connection keeps its rings.
#[test]
fn an_end_that_may_read_next_keeps_its_rings() {
    let traced: Vec<_> = SHARED.into_iter().chain([("VMA_TRACELEVEL", "5")]).collect();
    for said in say("knot", &[&traced], &["late block", "watch block", "both block"]) {
        assert!(said.contains("shared memory with the peer"), "{said}");
        assert!(!said.contains("both ends send more"), "{said}");
    }
}

/// Goal: a child that only serves a connection of its parent's is spared what others need.
#[test]
fn a_child_for_one_connection_makes_nothing_ready_for_others() {
    succeeds("room", &[&SHARED, &SPINNING], &["1"]);
}

/// Goal: to become another program takes no longer than a bounded time, whatever a parent is in the midst of, and with
/// however many connections. What that costs is said as what it is: no peer has written nonsense.
#[test]
fn a_parent_that_is_stuck_keeps_no_child_from_becoming_another_program() {
    if !has_faults() {
        return;
    }
    for said in say("stuck", &[&SHARED], &[""]) {
        assert!(said.contains("could not go back from shared memory to the kernel"), "{said}");
        assert!(!said.contains("nonsense"), "{said}");
    }
}

/// Goal: a thread that takes long in the midst of a send costs its process no connection whose other end leaves.
#[test]
fn a_connection_waits_for_a_slow_thread_of_its_own_process() {
    if has_faults() {
        succeeds("slow", &[&SHARED], &[""]);
    }
}

/// Goal: a thread that sends an urgent byte while another is stuck in the midst of a send keeps none from receiving, and waits
/// no longer than the socket says.
#[test]
fn an_urgent_byte_keeps_no_thread_from_receiving() {
    if has_faults() {
        succeeds("urgent", &[&SHARED], &[""]);
    }
}

fn has_faults() -> bool {
    // SAFETY: no pointer; the descriptor goes with the process.
    let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_FAULTS) };
    if faults < 0 {
        eprintln!("skipped: no userfaultfd: {}", io::Error::last_os_error());
    }
    faults >= 0
}

/// `UFFD_USER_MODE_ONLY`.
const USER_FAULTS: i32 = 1;

/// Goal: a thread that wants what one of lower real-time priority has, on the same processor, lets it run.
#[test]
fn a_thread_of_high_priority_lets_a_lower_one_finish() {
    if let Some(error) = refuses_real_time() {
        eprintln!("skipped: no SCHED_FIFO: {error}");
        return;
    }
    succeeds("priorities", &[&SHARED], &[""]);
}

/// Whether this process may have threads that others do not interrupt: why not, if so.
fn refuses_real_time() -> Option<io::Error> {
    let attempt = || {
        let param = libc::sched_param { sched_priority: 1 };
        // SAFETY: the calling thread, and a structure of ours.
        let answer = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) };
        (answer < 0).then(io::Error::last_os_error)
    };
    std::thread::spawn(attempt).join().expect("a thread")
}

/// Goal: what a process had that was killed is not kept by another one that has its number by now.
#[test]
fn a_number_is_another_process_s_after_a_while() {
    succeeds("numbers", &[&SHARED], &[""]);
}

/// Goal: a thread that is cancelled while it waits ends there, and nothing is left in disorder.
#[test]
fn a_thread_that_is_cancelled_leaves_everything_usable() {
    let parts = ["ways 0 4", "ways 1 4", "ways 2 4", "ways 3 4", "connect", "again", "poll"];
    succeeds("cancel", &[&SHARED, &SPINNING, &PATIENT], &parts);
}

/// Goal: children that are forked while other threads make and close connections get everything in order.
#[test]
fn a_child_forked_at_any_instant_can_close_what_it_has() {
    succeeds("forks", &[&SHARED, &SPINNING], &[""]);
}

/// Goal: children that are forked while other threads use what they inherit, and change it, neither hang
/// nor leave anything behind.
#[test]
fn a_child_forked_at_any_instant_can_use_what_it_has() {
    succeeds("children", &[&SHARED, &SPINNING], &[""]);
}

/// Goal: children that are killed leave nothing behind but what others have too, which lacks nothing.
#[test]
fn children_that_are_killed_leave_nothing_behind() {
    let parts = ["instant", "families", "last", "written", "namespace", "program"];
    succeeds("killed", &[&SHARED, &SPINNING], &parts);
}

/// Goal: files by which two ends meet are there for as long as one of them lives, whichever made them.
#[test]
fn rings_are_found_when_their_maker_has_been_killed() {
    succeeds("killed", &[&SHARED], &["maker"]);
}

/// Goal: one datagram through the kernel wakes a receiver that sleeps, and those that follow wait in its mailbox, until that
/// is too long; none is left there that another one reads first, or a handler, or that its sleeper does not see, and none when
/// a handler has left the sleep for good.
#[test]
fn a_sleeper_is_woken_once_and_gets_all() {
    let parts = ["recv", "poll", "many", "other", "handler", "jump", "insist"];
    succeeds("sleepers", &[&SHARED, &SLEEPING], &parts);
}

/// Goal: while one of many threads is busy with its event, the others hear of theirs.
#[test]
fn a_busy_thread_keeps_no_event_from_the_others() {
    succeeds("crowd", &[&SHARED, &SPINNING], &["level", "oneshot", "edge"]);
}

/// Goal: a thread that sleeps on several connections is woken in time, and not by way of the kernel's streams; also in a
/// program that closes descriptors which it has not opened, of which nothing else suffers.
#[test]
fn who_sleeps_is_rung_for() {
    let rung = ["poll rung", "select rung", "epoll rung", "fresh rung", "threads rung"];
    let ringing = ["poll client", "select client", "epoll client"];
    succeeds("bells", &[&SLEEPING], &[&rung[..], &ringing[..]].concat());
    let ends = ["poll ends", "select ends", "poll killed", "select killed"];
    succeeds("bells", &[&SLEEPING, &SHARED, &SPINNING], &ends);
    let closing = ["poll server", "select server", "epoll server"];
    succeeds("bells", &[&SLEEPING, &SHARED, &SPINNING], &closing);
}

/// Goal: a program that confines itself to some system calls makes no others because of us.
#[test]
fn a_program_that_confines_itself_goes_on() {
    let ways = ["prctl poll", "prctl epoll", "seccomp poll", "seccomp epoll"];
    succeeds("confined", &[&SHARED, &SPINNING, &PATIENT], &ways);
}

fn free_port() -> String {
    support::free_port().to_string()
}

fn end(mut child: Child, limit: Duration) -> Result<String, String> {
    let start = Instant::now();
    let mut said = String::new();
    loop {
        let status = child.try_wait().expect("a child");
        if status.is_some() || start.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            if let Some(stderr) = child.stderr.take() {
                for line in BufReader::new(stderr).lines().map_while(Result::ok).take(50) {
                    said.push_str(&line);
                    said.push('\n');
                }
            }
            return match status {
                Some(status) if status.success() => Ok(said),
                Some(status) => Err(format!("{status}\n{said}")),
                None => Err(format!("has not ended\n{said}")),
            };
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs one conversation, and returns what both ends have explained.
fn run(place: &Place, server: &Path, successor: &Path, talk: Talk<'_>) -> String {
    run_with(place, server, successor, talk, &[])
}

/// The same with settings.
fn run_with(
    place: &Place,
    server: &Path,
    successor: &Path,
    talk: Talk<'_>,
    settings: &[(&str, &str)],
) -> String {
    let Talk { how, way, read, sent, to_server, to_client } = talk;
    let port = free_port();
    let numbers = [read, sent, to_server, to_client].map(|number| number.to_string());
    let [read, sent, to_server, to_client] = &numbers;
    let mut command = explaining(place, server);
    command.envs(settings.iter().copied());
    command.args(["serve", &port, read, sent, how]).arg(successor).args([to_server, to_client]);
    let mut serving =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a server");
    let mut line = String::new();
    let stdout = serving.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    let mut command = explaining(place, server);
    command.envs(settings.iter().copied());
    command.args(["call", &port, to_client, to_server, way]);
    let calling = command.stderr(Stdio::piped()).spawn().expect("a client");
    let limit = Duration::from_secs(60);
    let (client, server) = (end(calling, limit), end(serving, limit));
    match (client, server) {
        (Ok(client), Ok(server)) => client + &server,
        (client, server) => {
            panic!("{talk:?} -> {}:\nclient: {client:?}\nserver: {server:?}", successor.display())
        }
    }
}

/// Bytes that the first server reads and sends, and all there are: nothing yet, a little, and so much
/// that rings and the kernel's buffers are full.
const AMOUNTS: [[usize; 4]; 5] = [
    [0, 0, 12, 34],
    [0, 0, 3_000_000, 3_000_000],
    [1, 100, 500_000, 400_000],
    [300_000, 200_000, 3_000_000, 2_000_000],
    [70_000, 0, 70_000, 0],
];

/// Goal: a program that knows nothing of rings gets every byte, in its place, and so does its peer.
/// Method: all ways to hand over, all ways to wait at the other end, both directions under load.
#[test]
fn a_program_without_the_library_goes_on_where_the_last_one_stopped() {
    let place = Place::new("static");
    let Some((with, without)) = programs(&place) else { return };
    let conversations = |how: &'static str| {
        let mut ringed = 0;
        for way in ["poll", "epoll", "edge", "threads", "turns"] {
            for [read, sent, to_server, to_client] in AMOUNTS {
                if way == "turns" && to_server > 1_000_000 {
                    continue; // Both ends would wait for the other to read.
                }
                let talk = Talk { how, way, read, sent, to_server, to_client };
                let said = run(&place, &with, &without, talk);
                ringed += usize::from(had_rings(&said));
            }
        }
        assert!(ringed > 10, "{how}: only {ringed} connections had rings");
    };
    // They mostly wait for one another.
    let hows =
        [["exec", "execl", "fork"], ["dup", "vfork", "spawn"], ["inherit", "scm", "scmpath"]];
    std::thread::scope(|threads| {
        for hows in hows {
            threads.spawn(move || hows.into_iter().for_each(conversations));
        }
    });
}

/// Goal: a program whose environment does not name the library is one without it.
#[test]
fn a_program_with_another_environment_is_one_without_the_library() {
    let place = Place::new("environment");
    let Some((with, _)) = programs(&place) else { return };
    for [read, sent, to_server, to_client] in AMOUNTS {
        run(
            &place,
            &with,
            &with,
            Talk { how: "execle", way: "epoll", read, sent, to_server, to_client },
        );
    }
}

/// Goal: a program with the library takes the rings over; except where the connection is where programs
/// expect their terminal (`dup`, `spawn`), where its receiver is not known (`scm`), or where another program was tried
/// before (`exec`): there it goes on in the kernel.
#[test]
fn a_program_with_the_library_goes_on_where_the_last_one_stopped() {
    let place = Place::new("dynamic");
    let Some((with, _)) = programs(&place) else { return };
    let kernels = ["exec", "dup", "spawn", "scm"].map(|how| (how, false));
    let rings = ["execl", "fork", "vfork", "inherit", "scmpath"].map(|how| (how, true));
    for (how, keeps_rings) in kernels.into_iter().chain(rings) {
        let mut ringed = 0;
        // Where others are busy, the client's offer may come late each time.
        let rounds = AMOUNTS.into_iter().enumerate().cycle().take(ROUNDS_MAX * AMOUNTS.len());
        for (at, [read, sent, to_server, to_client]) in rounds {
            if at == 0 && ringed > 0 {
                break;
            }
            let talk = Talk { how, way: "epoll", read, sent, to_server, to_client };
            let said = run_with(&place, &with, &with, talk, &[("VMA_TRACELEVEL", "5")]);
            if had_rings(&said) {
                ringed += 1;
                assert_eq!(
                    !said.contains("goes back to the kernel"),
                    keeps_rings,
                    "{talk:?}:\n{said}"
                );
            }
        }
        assert!(ringed > 0, "{how}: no connection had rings");
    }
}

/// All amounts are tried so often, until a connection has had rings.
const ROUNDS_MAX: usize = 10;

/// Whether the server accepted a connection with rings. One that is faster than the client's offer does not.
fn had_rings(said: &str) -> bool {
    said.contains("shared memory with the peer")
}

/// Goal: a ring that has grown, or grows just then, has every byte in its place, whichever program reads it next.
/// Method: rings so small that they are full at once, and grow after a while.
#[test]
fn a_ring_that_grows_has_every_byte_in_its_place() {
    let place = Place::new("grows");
    let Some((with, without)) = programs(&place) else { return };
    let settings = [
        ("ADVERB_SOCKETS_RING_BYTES", "4096"),
        ("ADVERB_SOCKETS_RING_BYTES_MAX", "32768"),
        ("VMA_TRACELEVEL", "5"),
    ];
    let (all, grown) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let converse = |how, successor| {
        for way in ["poll", "epoll", "edge", "threads"] {
            for read in [0, 60_000, 500_000] {
                let (sent, to_server, to_client) = (read / 2, 800_000, 700_000);
                let talk = Talk { how, way, read, sent, to_server, to_client };
                let said = run_with(&place, &with, successor, talk, &settings);
                let is_grown = said.contains("sends through a larger ring");
                all.fetch_add(1, Ordering::Relaxed);
                grown.fetch_add(usize::from(is_grown), Ordering::Relaxed);
            }
        }
    };
    let converse = &converse;
    std::thread::scope(|threads| {
        for (how, successor) in [("fork", &with), ("scm", &with), ("dup", &without)] {
            threads.spawn(move || converse(how, successor));
        }
    });
    let (all, grown) = (all.into_inner(), grown.into_inner());
    assert!(grown > all / 3, "only {grown} of {all} connections had rings that grew");
}

/// Goal: a process that could not become another program goes on as if nothing had been.
#[test]
fn a_program_that_could_not_be_started_changes_nothing() {
    let place = Place::new("fails");
    let Some((with, _)) = programs(&place) else { return };
    for how in ["fails", "system"] {
        let mut ringed = 0;
        for [read, sent, to_server, to_client] in AMOUNTS {
            let talk = Talk { how, way: "poll", read, sent, to_server, to_client };
            ringed += usize::from(had_rings(&run(&place, &with, &with, talk)));
        }
        assert!(ringed > 0, "{how}: no connection had rings");
    }
}

/// Goal: the last bytes of a peer that has closed are there for the next program too.
#[test]
fn a_peer_that_is_gone_leaves_its_last_bytes() {
    let place = Place::new("gone");
    let Some((with, without)) = programs(&place) else { return };
    for how in ["exec", "fork", "dup", "scm"] {
        let mut ringed = 0;
        for to_server in [5, 100_000, 200_000] {
            for read in [0, 3] {
                let talk = Talk { how, way: "leaves", read, sent: 0, to_server, to_client: 0 };
                ringed += usize::from(had_rings(&run(&place, &with, &without, talk)));
            }
        }
        assert!(ringed > 0, "{how}: no connection had rings");
    }
}

/// Goal: an end that closes waits neither for a program that has taken the connection over and does not read yet, nor
/// has it miss bytes without a word: it gets all of them, or hears that the connection is reset.
/// Method: more than the kernel holds by itself, closed by one that may ask it to hold more, and by one that may not.
#[test]
fn an_end_that_closes_neither_waits_for_a_late_reader_nor_deceives_it() {
    let place = Place::new("late");
    let Some((with, without)) = programs(&place) else { return };
    let settings = [
        ("ADVERB_SOCKETS_RING_BYTES", "33554432"),
        ("ADVERB_SOCKETS_RING_BYTES_MAX", "33554432"),
        ("TALK_WAY", "late"),
        ("TALK_PAUSE", "1500"),
    ];
    let converse = |way, to_server| {
        let talk = Talk { how: "exec", way, read: 1, sent: 0, to_server, to_client: 0 };
        let said = run_with(&place, &with, &without, talk, &settings);
        assert!(had_rings(&said), "{way}, {to_server}: {said}");
        let took = said.lines().find_map(|line| line.strip_prefix("close took ")).expect("a time");
        let took = took.trim_end_matches(" ms").parse::<u64>().expect("a number");
        (took, said)
    };
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let (took, said) = converse("closes", 20_000_000);
            let may_ask = said.contains("all came") && took < 3000;
            assert!(may_ask || !is_root(), "{took} ms: {said}");
        });
        threads.spawn(|| {
            let (took, said) = converse("closespoor", 20_000_000);
            assert!(took < 3000 && said.contains("reset after"), "{took} ms: {said}");
        });
    });
}

fn is_root() -> bool {
    // SAFETY: the call has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Goal: the process that ends last leaves nothing at the rendezvous, even if others before were killed.
#[test]
fn the_last_one_clears_away() {
    let place = Place::new("clear");
    let Some((with, _)) = programs(&place) else { return };
    let rings = place.rings();
    let left = || -> Vec<_> {
        let entries = fs::read_dir(&rings).expect("a directory");
        entries.flatten().map(|entry| entry.file_name()).collect()
    };
    let talk =
        Talk { how: "fails", way: "poll", read: 0, sent: 0, to_server: 100_000, to_client: 50_000 };
    run(&place, &with, &with, talk);
    assert!(left().is_empty(), "{:?}", left());
    let mut command = explaining(&place, &with);
    command.args(["serve", &free_port(), "0", "0", "fails", "-", "0", "0"]);
    let mut killed = command.stdout(Stdio::piped()).spawn().expect("a server");
    let mut line = String::new();
    let stdout = killed.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    killed.kill().expect("a server");
    killed.wait().expect("a server");
    assert!(!left().is_empty());
    run(&place, &with, &with, talk);
    assert!(left().is_empty(), "{:?}", left());
}

/// Goal: the extra functions are where the manual has them, and do what it says or say that they do not.
#[test]
fn the_extra_functions_answer() {
    let place = Place::new("api");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/handover/api.c");
    let program = place.0.join("api");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-w", "-pthread", "-o"]).arg(&program).arg(source);
    if !built(&mut compiler) {
        return;
    }
    let output = explaining(&place, &program).output().expect("a program");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("a rule says os"), "{said}");
}

/// Goal: datagrams that waited in the kernel's queue when their sender found the mailbox are not taken for those of a
/// stranger that uses the same address, which would keep all later ones out of the mailbox.
#[test]
fn a_burst_before_there_is_a_mailbox_does_not_keep_later_datagrams_out() {
    let place = Place::new("backlog");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/handover/backlog.c");
    let (program, report) = (place.0.join("backlog"), place.0.join("report"));
    let mut compiler = Command::new("cc");
    if !built(compiler.args(["-O1", "-w", "-o"]).arg(&program).arg(source)) {
        return;
    }
    let output =
        place.command(&program).env("VMA_STATS_FILE", &report).output().expect("a program");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    // "VMA: [fd=4] Rx Offload: kilobytes / packets / errors [...]"
    let text = fs::read_to_string(&report).expect("a report");
    let packets = |line: &str| line.split(" / ").nth(1)?.parse::<u64>().ok();
    let offload = text.lines().filter(|line| line.contains("Rx Offload")).filter_map(packets);
    assert!(offload.max() > Some(900), "{text}");
}

/// Goal: a call that succeeds leaves `errno` as it was, also if it is the first of the process.
#[test]
fn the_first_call_leaves_errno_alone() {
    let place = Place::new("first");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/handover/first.c");
    let program = place.0.join("first");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-w", "-o"]).arg(&program).arg(source);
    if !built(&mut compiler) {
        return;
    }
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW] {
        let output = place.command(&program).arg(kind.to_string()).output().expect("a program");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{kind}: {said}");
    }
}
