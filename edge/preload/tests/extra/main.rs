//! What goes beyond plain sockets, used by programs in C as other people's programs use it.
//!
//! Where there is no compiler, the tests are skipped, and say so.

#[path = "../support/mod.rs"]
mod support;

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::Place;

/// With shared memory, and without.
const SHARED: [(&str, &str); 2] = [("ADVERB_SOCKETS_TRANSPORT", "shm"), ("WANT_RINGS", "1")];
const SPINNING: [(&str, &str); 1] = [("ADVERB_SOCKETS_TRANSPORT", "spin")];

/// Builds a program of this directory; `None`, and said so, without a compiler.
fn built(place: &Place, name: &str) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = place.0.join(name);
    let mut command = Command::new("cc");
    command
        .args(["-O1", "-Wall", "-Wno-unused-function", "-pthread", "-I"])
        .arg(here.join("include"));
    command.arg("-o").arg(&program).arg(here.join("tests/extra").join(format!("{name}.c")));
    let Ok(status) = command.status() else {
        eprintln!("skipped: there is no compiler for C");
        return None;
    };
    assert!(status.success(), "{command:?}");
    Some(program)
}

/// Runs a program in several modes and with several arguments; each says by its status whether all was well.
fn succeeds(name: &str, modes: &[&[(&str, &str)]], arguments: &[&str]) {
    let place = Place::new(name);
    let Some(program) = built(&place, name) else { return };
    for mode in modes {
        for argument in arguments {
            let mut command = place.command(&program);
            command.args(argument.split_whitespace()).envs(mode.iter().copied());
            command.env("PORT", support::free_port().to_string());
            ends_well(&mut command);
        }
    }
}

/// Runs a command that has to end well before long.
fn ends_well(command: &mut Command) {
    let mut child = command.stdout(Stdio::null()).spawn().expect("a program");
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return assert!(status.success(), "{command:?}: {status}");
        }
        if Instant::now() > until {
            let _ = child.kill();
            panic!("{command:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_comes_through_shared_memory_is_stamped() {
    succeeds("stamps", &[&SHARED, &SPINNING], &[""]);
}

/// Goal: what is lent is what was sent, comes back in any order, and holds the sender back, not the other way round.
#[test]
fn what_is_read_without_a_copy_stays_until_it_is_given_back() {
    succeeds("zcopy", &[&SHARED, &SPINNING], &[""]);
}

/// Goal: a stream that is lent, and given back, stays in the ring that fits into the sender's cache. One that is copied, or
/// kept until there is little room, gets a larger one, where there is memory for it.
#[test]
fn a_ring_that_is_lent_grows_only_for_a_program_that_keeps_much() {
    let place = Place::new("grows");
    let Some(program) = built(&place, "zcopy") else { return };
    let grows = |how| {
        let mut command = place.command(&program);
        command.args(["pass", how]).envs(SHARED).env("VMA_TRACELEVEL", "debug");
        let output = command.output().expect("a program");
        assert!(output.status.success(), "{how}: {output:?}");
        String::from_utf8_lossy(&output.stderr).contains("sends through a larger ring")
    };
    assert!(!grows("lent"));
    assert!(grows("recv") && grows("kept"));
}

#[test]
fn the_extra_functions_do_what_their_mask_says() {
    let [shared, wants_rings] = SHARED;
    let polled = [shared, wants_rings, ("VMA_SOCKETXTREME", "1")];
    succeeds("api", &[&SHARED, &SPINNING, &polled], &[""]);
}

/// Goal: every packet is seen once, in order, and goes where the program says, however it is waited for.
#[test]
fn a_callback_has_packets_received_dropped_or_held() {
    succeeds("callback", &[&SHARED, &SPINNING], &[""]);
}

/// Goal: connections, packets, ends and errors of all sockets of a ring come by one call, and packets stay until they
/// are freed.
#[test]
fn what_happens_to_the_sockets_of_a_ring_is_said_by_one_call() {
    let xtreme = ("VMA_SOCKETXTREME", "1");
    let [shared, wants_rings] = SHARED;
    let [spinning] = SPINNING;
    let modes: [&[(&str, &str)]; 3] =
        [&[shared, wants_rings, xtreme], &[spinning, xtreme], &[shared, wants_rings]];
    succeeds("xtreme", &modes, &[""]);
}

/// Goal: a program that loads the library by itself, and calls its functions by pointers and macros of their names, has all of
/// it. A signal whose handler the library does not know ends a wait.
#[test]
fn a_program_that_loads_the_library_has_its_extra_functions() {
    let place = Place::new("loaded");
    let Some(program) = built(&place, "loaded") else { return };
    for mode in [SHARED.as_slice(), SPINNING.as_slice()] {
        let mut command = place.command(&program);
        command
            .arg(support::library::library())
            .env_remove("LD_PRELOAD")
            .envs(mode.iter().copied());
        ends_well(&mut command);
    }
}

/// Goal: room, errors, copies, children and threads: what there is to be told is told once, to each.
#[test]
fn what_else_happens_is_said_by_the_same_call() {
    let xtreme = ("VMA_SOCKETXTREME", "1");
    let [shared, wants_rings] = SHARED;
    let [spinning] = SPINNING;
    succeeds("told", &[&[shared, wants_rings, xtreme], &[spinning, xtreme], &[xtreme]], &[""]);
}

/// Goal: what is lent is received as anything else is. Method: the same program with the ordinary call, too.
#[test]
fn what_is_lent_is_received_as_by_the_kernels_calls() {
    succeeds("lent", &[&SHARED, &SPINNING], &["recv", "zcopy", "force"]);
}

#[test]
fn callbacks_dummies_and_options_hold_in_all_calls() {
    succeeds("corners", &[&SHARED, &SPINNING], &[""]);
}

#[test]
fn sockets_share_rings_by_the_logic_that_was_asked_for() {
    let by = |logic| [("VMA_RING_ALLOCATION_LOGIC_RX", logic), ("LOGIC", logic)];
    let [logic, said] = by("0");
    let polled = [logic, said, ("VMA_SOCKETXTREME", "1")];
    let logics = [by("0"), by("1"), by("10"), by("20"), by("30")];
    logics.iter().for_each(|by| succeeds("rings", &[by], &[""]));
    succeeds("rings", &[&polled], &[""]);
}

/// Goal: no more is sent than a rate allows, whether calls wait or not.
#[test]
fn a_rate_is_kept() {
    succeeds("pacing", &[&SHARED, &SPINNING], &[""]);
}

/// Goal: what is sent to a group by an interface comes to those that have joined it there, once each, and to no others, by
/// IPv6 as by IPv4; a group of IPv4 reaches sockets of IPv6, by shared memory as well, from addresses that are mapped.
#[test]
fn groups_are_joined_by_interface_in_both_families() {
    const CABLES: &str = "ip link set lo up && \
        for name in one two; do \
            ip link add $name type veth peer name $name-far && \
            ip link set $name up && ip link set $name-far up || exit; \
        done && \
        ip addr add 10.98.1.1/24 dev one && ip addr add 10.98.2.1/24 dev two && \
        ip addr add fd98:1::1/64 dev one nodad && ip addr add fd98:2::1/64 dev two nodad && exec \"$0\"";
    let place = Place::new("groups6");
    let Some(program) = built(&place, "groups6") else { return };
    let can = |flag: &&str| {
        let status = Command::new("unshare").args([flag, "true"]).status();
        status.is_ok_and(|status| status.success())
    };
    let Some(flag) = ["-n", "-rn"].into_iter().find(can) else {
        return eprintln!("skipped: no namespace to be had");
    };
    for mode in [SHARED.as_slice(), SPINNING.as_slice()] {
        let mut command = place.command(Path::new("unshare"));
        command.args([flag, "sh", "-c", CABLES]).arg(&program).envs(mode.iter().copied());
        ends_well(&mut command);
    }
}

/// Goal: what programs get wrong is an error, and harms nothing.
#[test]
fn mistakes_are_errors() {
    let xtreme = ("VMA_SOCKETXTREME", "1");
    let [shared, wants_rings] = SHARED;
    succeeds("wrongs", &[&SHARED, &SPINNING, &[shared, wants_rings, xtreme]], &[""]);
}

/// What one parameter changes: what is looked at, the settings, and what is seen.
type Effect = (&'static str, &'static [(&'static str, &'static str)], &'static str);

/// Goal: parameters that say that they do something do it, and nothing without being set. Each thing is looked at
/// without them first, then with each of them.
#[test]
fn parameters_do_what_their_table_says() {
    const ADAPTIVE: (&str, &str) = ("ADVERB_SOCKETS_ADAPTIVE", "0");
    let effects: &[Effect] = &[
        ("nodelay", &[], "0 0 0"),
        ("nodelay", &[("VMA_TCP_NODELAY", "1")], "1 1 1"),
        ("quick", &[("ADVERB_SOCKETS_TRANSPORT", "spin")], "0"),
        ("quick", &[("ADVERB_SOCKETS_TRANSPORT", "spin"), ("VMA_TCP_QUICKACK", "1")], "1"),
        ("algorithm", &[("VMA_TCP_CC_ALGO", "0")], "reno"),
        ("algorithm", &[("VMA_TCP_CC_ALGO", "1")], "cubic"),
        ("segment", &[], "0 0"),
        ("segment", &[("VMA_MSS", "1000")], "1 1"),
        ("segment", &[("VMA_MTU", "1040")], "1 1"),
        ("segment", &[("VMA_MTU", "1040"), ("VMA_MSS", "9000")], "0 0"),
        ("loop", &[], "1 1"),
        ("loop", &[("VMA_TX_MC_LOOPBACK", "0")], "0 0"),
        ("buffer", &[], "8192"),
        ("buffer", &[("VMA_RX_BYTES_MIN", "50000")], "100000"),
        ("receive", &[("VMA_RX_POLL", "-1")], "spins"),
        ("receive", &[("VMA_RX_POLL", "0")], "sleeps"),
        ("receive", &[("ADVERB_SOCKETS_SPIN_USEC", "50000"), ADAPTIVE], "spins"),
        ("receive", &[("ADVERB_SOCKETS_SPIN_USEC", "50000")], "sleeps"),
        ("receive", &[("ADVERB_SOCKETS_SPIN_USEC", "10"), ADAPTIVE], "sleeps"),
        ("poll", &[("VMA_SELECT_POLL", "-1")], "spins"),
        ("poll", &[("VMA_SELECT_POLL", "0")], "sleeps"),
        ("group", &[("VMA_RX_POLL", "-1")], "spins spins"),
        ("group", &[("VMA_RX_POLL", "-1"), ("VMA_RX_POLL_INIT", "0")], "sleeps spins"),
        ("group", &[("VMA_RX_POLL", "0"), ("VMA_RX_POLL_INIT", "-1")], "spins sleeps"),
        ("yields", &[("VMA_RX_POLL", "-1")], "takes"),
        ("yields", &[("VMA_RX_POLL", "-1"), ("VMA_RX_POLL_YIELD", "1")], "yields"),
        ("rings", &[("VMA_RING_ALLOCATION_LOGIC_RX", "10")], "5"),
        (
            "rings",
            &[("VMA_RING_ALLOCATION_LOGIC_RX", "10"), ("VMA_RING_LIMIT_PER_INTERFACE", "2")],
            "2",
        ),
        ("ratio", &[("VMA_SELECT_POLL", "-1")], "soon"),
        ("ratio", &[("VMA_SELECT_POLL", "-1"), ("VMA_SELECT_POLL_OS_RATIO", "1000000")], "late"),
        ("ratio", &[("VMA_SELECT_POLL", "-1"), ("VMA_SELECT_POLL_OS_RATIO", "0")], "soon"),
        ("skips", &[], "soon"),
        ("skips", &[("VMA_SELECT_SKIP_OS", "1")], "at once"),
        ("skips", &[("VMA_SELECT_SKIP_OS", "1000")], "late"),
        ("full", &[], "silent"),
        ("full", &[("VMA_TX_NONBLOCKED_EAGAINS", "1")], "said"),
        ("colours", &[], "coloured"),
        ("colours", &[("VMA_LOG_COLORS", "0")], "plain"),
    ];
    let place = Place::new("effects");
    let Some(program) = built(&place, "effects") else { return };
    for (what, settings, expected) in effects {
        if *what == "algorithm" && !is_allowed(expected) {
            eprintln!("skipped: the kernel does not let this user have {expected}");
            continue;
        }
        assert_eq!(said(&place, &program, what, settings), *expected, "{what} {settings:?}");
    }
    let usual = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    let usual = usual.expect("the kernel's choice");
    assert_eq!(said(&place, &program, "algorithm", &[]), usual.trim(), "without being set");
}

/// Whether the kernel lets a program choose that algorithm of congestion control.
fn is_allowed(name: &str) -> bool {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let list = if is_root { "available" } else { "allowed" };
    let list = std::fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{list}_congestion_control"));
    list.is_ok_and(|list| list.split_whitespace().any(|known| known == name))
}

/// What the program says on its standard output.
fn said(place: &Place, program: &Path, what: &str, settings: &[(&str, &str)]) -> String {
    let mut command = place.command(program);
    let output = command.arg(what).envs(settings.iter().copied()).output().expect("a program");
    assert!(output.status.success(), "{what} {settings:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Goal: a mailbox is looked at as often as the ratio says for each look at the kernel; 0 is the default. Method: the log
/// tells of a call that has spun in vain.
#[test]
fn the_kernel_is_looked_at_as_often_as_its_ratio_says() {
    let place = Place::new("ratios");
    let Some(program) = built(&place, "effects") else { return };
    let looks = |value: Option<_>| -> (u32, u32) {
        let ratio = value.map(|value| ("VMA_RX_UDP_POLL_OS_RATIO", value));
        let settings = [("VMA_RX_POLL", "-1"), ("VMA_TRACELEVEL", "finer")];
        let mut command = place.command(&program);
        command.arg("looks").envs(settings.into_iter().chain(ratio));
        let output = command.output().expect("a program");
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        let (_, last) = said.rsplit_once(" has been looked at ").expect("a line");
        let mut numbers = last.split(' ').filter_map(|word| word.parse().ok());
        (numbers.next().expect("a number"), numbers.next().expect("another"))
    };
    for (value, ratio) in [(Some("1"), 1), (Some("7"), 7), (Some("0"), 64), (None, 64)] {
        let (all, by_kernel) = looks(value);
        assert!(all > ratio, "{value:?}: {all}");
        assert_eq!(by_kernel, all / ratio, "{value:?}: {all}");
    }
}

/// Goal: a segmentation fault that ends the program is traced where that was asked for, and ends it as ever.
#[test]
fn a_fault_is_traced_if_that_was_asked_for() {
    let place = Place::new("faults");
    let Some(program) = built(&place, "effects") else { return };
    for (value, is_traced) in [("1", true), ("0", false)] {
        let mut command = place.command(&program);
        let output =
            command.arg("crash").env("VMA_HANDLE_SIGSEGV", value).output().expect("a program");
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV));
        let said = String::from_utf8_lossy(&output.stderr);
        let traces = ["effects(", "segmentation fault"].map(|part| said.contains(part));
        assert_eq!(traces, [is_traced; 2], "{said}");
    }
}

/// Goal: dummies are counted, those that a question for a socket's name sends as well, and only where that was asked
/// for; a report of each socket goes to the file that is named, and its counters lie in the directory that is named.
#[test]
fn dummies_and_reports_are_where_they_are_asked_for() {
    let place = Place::new("reports");
    let Some(program) = built(&place, "effects") else { return };
    for (value, dummies) in [("1", 7), ("0", 0)] {
        let report = place.0.join(format!("report-{value}"));
        let shown = place.0.join(format!("shown-{value}"));
        std::fs::create_dir(&shown).expect("a directory");
        let report_path = report.to_str().expect("a path in Unicode");
        let settings = [
            ("VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME", value),
            ("VMA_STATS_FILE", report_path),
            ("VMA_STATS_SHMEM_DIR", shown.to_str().expect("a path in Unicode")),
        ];
        let said = said(&place, &program, "name", &settings);
        assert!(said.contains("adverb-sockets."), "{said}");
        let report = std::fs::read_to_string(report).expect("a report");
        let expected = format!("Tx Dummy messages: {dummies}\n");
        assert!(report.contains(&expected), "{report}");
    }
}
