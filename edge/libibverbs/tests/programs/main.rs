//! Programs that are compiled against rdma-core's libibverbs run on the software device, unmodified.
//!
//! Each is run between two processes of this host, through shared memory and over UDP. A program that is not
//! installed is skipped.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

mod addresses;
mod boundary;
mod clock;
mod cm;
mod compiled;
mod drop_in;
#[path = "../../src/message.rs"]
mod message;
mod newer;
mod others;
#[path = "../../src/shared_tree.rs"]
mod shared_tree;
#[path = "../../../../host/verbs/tests/verbs/stranger.rs"]
mod stranger;
mod support;
mod table;

use clock::Clock;
use support::{Hosts, PATHS, Place, is_installed, pair};
use table::{ALL_SIZES, PERFTEST, PERFTEST_MORE, UCX, UCX_TRANSPORTS};

/// The rdma-core test programs that a pair of processes runs.
const PINGPONGS: [&str; 21] = [
    "ibv_rc_pingpong",
    "ibv_rc_pingpong -e",
    "ibv_rc_pingpong -t",
    "ibv_rc_pingpong -N",
    "ibv_rc_pingpong -o",
    "ibv_rc_pingpong -o -P",
    "ibv_rc_pingpong -O -c",
    "ibv_rc_pingpong -j",
    "ibv_rc_pingpong -N -t",
    "ibv_rc_pingpong -s 1000000 -m 4096 -n 50",
    "ibv_uc_pingpong",
    "ibv_uc_pingpong -e",
    "ibv_ud_pingpong",
    "ibv_ud_pingpong -e",
    "ibv_srq_pingpong",
    "ibv_srq_pingpong -e",
    "ibv_srq_pingpong -q 3 -r 100",
    "ibv_srq_pingpong -o -c",
    "ibv_xsrq_pingpong",
    "ibv_xsrq_pingpong -e",
    "ibv_xsrq_pingpong -o",
];

#[test]
fn the_software_devices_are_listed_and_described() {
    if !is_installed("ibv_devices") {
        return;
    }
    listed(Place::Here("shm"));
    let described = described(Place::Here("shm"));
    for fact in ["PORT_ACTIVE (4)", "Ethernet", "::ffff:127.0.0.1, RoCE v2"] {
        assert!(described.contains(fact), "{fact}: {described}");
    }
}

/// What a program prints that runs by itself, and ends well with this in what it says.
fn says(line: &str, place: Place<'_>, words: &[&str]) -> String {
    let output = place.command(0, line).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_there = words.iter().all(|word| said.contains(word));
    assert!(output.status.success() && is_there, "{line}: {words:?}: {output:?}");
    said
}

fn listed(place: Place<'_>) -> String {
    says("ibv_devices", place, &[place.device()])
}

fn described(place: Place<'_>) -> String {
    let device = place.device();
    says(&format!("ibv_devinfo -v -d {device}"), place, &[&format!("hca_id:\t{device}")])
}

/// What UCX says of the devices.
fn seen_by_ucx(place: Place<'_>) -> String {
    says("ucx_info -d", place, &["rc_verbs", "ud_verbs", place.device()])
}

/// Goal: `ibstat` and other programs of libibumad, which refuse a device if one of the files is not there, describe ours.
#[test]
fn the_files_that_the_kernel_shows_of_a_device_are_there() {
    let file = |name: &str| format!("/sys/class/infiniband/soft_lo/{name}");
    let read = |name: &str| support::alone("cat", &[&file(name)], &[]).trim_end().to_owned();
    assert_eq!(read("sys_image_guid"), read("node_guid"));
    assert_eq!(read("node_desc"), "soft_lo");
    for (name, text) in [
        ("node_type", "1: CA"),
        ("ports/1/lid", "0x0"),
        ("ports/1/lid_mask_count", "0"),
        ("ports/1/sm_lid", "0x0"),
        ("ports/1/sm_sl", "0"),
        ("ports/1/cap_mask", "0x00010000"),
        ("ports/1/state", "4: ACTIVE"),
        ("ports/1/link_layer", "Ethernet"),
    ] {
        assert_eq!(read(name), text, "{name}");
    }
    if is_installed("ibstat") {
        let said = support::alone("ibstat", &["soft_lo"], &[]);
        assert!(said.contains("State: Active") && said.contains("Link layer: Ethernet"), "{said}");
    }
}

#[test]
fn the_environment_chooses_and_orders_devices() {
    if !is_installed("ibv_devices") {
        return;
    }
    let names = |choice: &str| {
        let listed = support::alone("ibv_devices", &[], &[("ADVERB_DEVICES", choice)]);
        listed
            .lines()
            .skip(2)
            .map(|line| line.split_whitespace().next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("soft_lo"), ["soft_lo"]);
    assert!(names("hw,no_such_device").iter().all(|name| !name.starts_with("soft_")));
    assert_eq!(names("soft_lo,soft")[0], "soft_lo");
}

#[test]
fn the_pingpongs_of_rdma_core_run() {
    if !is_installed("ibv_rc_pingpong") {
        return;
    }
    for path in PATHS {
        for command in PINGPONGS {
            must(pair(&pingpong(command, Place::Here(path)), Place::Here(path), &[]));
        }
    }
}

fn must(ended: Result<String, String>) -> String {
    ended.unwrap_or_else(|why| panic!("{why}"))
}

fn pingpong(command: &str, place: Place<'_>) -> String {
    format!("{command} -g {} -d {}", gid_index(place), place.device())
}

/// The place of the IPv4 address.
fn gid_index(_place: Place<'_>) -> u8 {
    1
}

/// A line of perftest: few iterations, and patience (half a second before a request is sent again): the machine may be
/// busy.
fn perftest(command: &str, place: Place<'_>) -> String {
    // The last word on something counts: options of a line come last.
    let (program, options) = command.split_once(' ').unwrap_or((command, ""));
    format!("{program} -F -n 200 -u 17 -d {} {options}", place.device())
}

/// Runs a line of perftest. It sends inline only on parts that it knows, and else says so and goes on.
fn run_perftest(command: &str, place: Place<'_>, clock: &Clock) -> Result<String, String> {
    let inline = command.split_once(" -I ").and_then(|(_, rest)| rest.split(' ').next());
    let part = inline.map(|_| ("ADVERB_PART_ID", "25408"));
    let set: Vec<_> = part.into_iter().chain([clock.set()]).collect();
    let said = pair(&perftest(command, place), place, &set)?;
    match inline {
        Some(bytes) if !said.contains(&format!("Max inline data : {bytes}[B]")) => {
            Err(format!("{command}: not inline:\n{said}"))
        }
        Some(_) | None => Ok(said),
    }
}

/// What runs in one of three places: the usual tests of perftest, and every third of the others.
fn in_turn(place: usize) -> impl Iterator<Item = &'static str> {
    PERFTEST.into_iter().chain(PERFTEST_MORE.into_iter().skip(place).step_by(3))
}

#[test]
fn the_tests_of_perftest_run_through_shared_memory() {
    if is_installed("ib_send_bw") {
        let clock = Clock::fast();
        for command in in_turn(0) {
            must(run_perftest(command, Place::Here("shm"), &clock));
        }
    }
}

#[test]
fn the_tests_of_perftest_run_over_udp() {
    if is_installed("ib_send_bw") {
        let clock = Clock::fast();
        for command in in_turn(1) {
            must(run_perftest(command, Place::Here("udp"), &clock));
        }
    }
}

#[test]
fn perftest_runs_with_all_sizes_through_shared_memory() {
    if is_installed("ib_write_bw") {
        let clock = Clock::fast();
        for command in ALL_SIZES.iter().step_by(2) {
            must(run_perftest(command, Place::Here("shm"), &clock));
        }
    }
}

#[test]
fn perftest_runs_with_all_sizes_between_two_network_namespaces() {
    if is_installed("ib_write_bw")
        && let Some(hosts) = Hosts::new()
    {
        let clock = Clock::fast();
        for command in ALL_SIZES.iter().skip(1).step_by(2) {
            must(run_perftest(command, Place::Apart(&hosts), &clock));
        }
    }
}

#[test]
fn programs_in_two_network_namespaces_talk_over_udp() {
    if !is_installed("ib_send_bw") || !is_installed("ibv_rc_pingpong") {
        return;
    }
    let Some(hosts) = Hosts::new() else {
        return;
    };
    let place = Place::Apart(&hosts);
    for command in PINGPONGS {
        must(pair(&pingpong(command, place), place, &[]));
    }
    let clock = Clock::fast();
    for command in in_turn(2) {
        must(run_perftest(command, place, &clock));
    }
    if is_installed("ucx_perftest") {
        for transports in UCX_TRANSPORTS {
            for test in UCX {
                must(ucx(test, transports, place));
            }
        }
    }
}

#[test]
fn ucx_sees_the_devices_and_runs_over_them() {
    if !is_installed("ucx_perftest") || !is_installed("ucx_info") {
        return;
    }
    seen_by_ucx(Place::Here("shm"));
    for path in PATHS {
        for transports in UCX_TRANSPORTS {
            for test in UCX {
                must(ucx(test, transports, Place::Here(path)));
            }
        }
    }
}

fn ucx(test: &str, transports: &str, place: Place<'_>) -> Result<String, String> {
    ucx_with(test, transports, place, &[])
}

/// The same, with these variables.
fn ucx_with(
    test: &str,
    transports: &str,
    place: Place<'_>,
    set: &[(&str, &str)],
) -> Result<String, String> {
    let device = format!("{}:1", place.device());
    let set = [set, &[("UCX_TLS", transports), ("UCX_NET_DEVICES", &device)]].concat();
    pair(&format!("ucx_perftest -t {test} -n 100 -w 10"), place, &set)
}

/// Writes `docs/compatibility.md`: all of the above, with what each has measured.
///
/// `cargo test -p adverb-libibverbs --test programs -- --ignored`
#[test]
#[ignore = "writes docs/compatibility.md"]
fn the_matrix_is_written() {
    let hosts = Hosts::new();
    if let Some(hosts) = &hosts {
        hosts.name_them().expect("files in /etc/netns");
    }
    let apart = hosts.as_ref().map(Place::Apart);
    let places = PATHS.map(Place::Here).into_iter().chain(apart);
    let clock = Clock::of_the_machine();
    let mut rows = String::new();
    for place in places {
        let mut row = |program: String, ended: Result<String, String>| {
            let (result, figure) = match ended {
                Ok(said) => ("runs", figure(&said)),
                Err(_) => ("fails", String::new()),
            };
            rows += &format!("| `{program}` | {} | {result} | {figure} |\n", place.name());
        };
        for (program, ended) in by_themselves(place, hosts.as_ref()) {
            row(program, ended);
        }
        for command in PINGPONGS {
            row(command.to_owned(), pair(&pingpong(command, place), place, &[]));
        }
        for command in PERFTEST.into_iter().chain(PERFTEST_MORE).chain(ALL_SIZES) {
            row(command.to_owned(), run_perftest(command, place, &clock));
        }
        for options in cm::PERFTEST_CM {
            row(options.to_owned(), cm::perftest(options, place, &clock));
        }
        let lines = cm::RDMACM.iter().chain(&cm::RSOCKETS).chain(&cm::OTHERS).chain(&cm::UCX_CM);
        for line in lines {
            row(line.name.to_owned(), cm::run(line, place));
        }
        if let Some(hosts) = &hosts {
            for line in &cm::LIBFABRIC {
                row(line.name.to_owned(), cm::run(line, named(place, hosts)));
            }
        }
        for transports in UCX_TRANSPORTS {
            for test in UCX {
                let name = format!("ucx_perftest -t {test}, UCX_TLS={transports}");
                row(name, ucx(test, transports, place));
            }
        }
    }
    let head = include_str!("head.md");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/compatibility.md");
    std::fs::write(page, format!("{head}{rows}")).unwrap();
}

/// The same way, where `localhost` is the address of an interface.
fn named<'a>(place: Place<'a>, hosts: &'a Hosts) -> Place<'a> {
    match place {
        Place::Here(path) => Place::Within(hosts, path),
        Place::Within(..) | Place::Apart(_) => place,
    }
}

/// What runs otherwise than as a server and its client: names, and how each has ended.
fn by_themselves(place: Place<'_>, hosts: Option<&Hosts>) -> Vec<(String, Result<String, String>)> {
    let mut rows = Vec::new();
    let mut row = |name: &str, run: &dyn Fn() -> String| {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        rows.push((name.to_owned(), ended.map_err(|_| String::new())));
    };
    row("ibv_devices", &|| listed(place));
    row("ibv_devinfo -v", &|| described(place));
    row("ucx_info -d", &|| seen_by_ucx(place));
    for program in others::BANDWIDTH {
        let run = || others::run_infinitely(program, place);
        row(&format!("{program} --run_infinitely"), &run);
    }
    if let Some(program) = compiled::Compiled::new("loaded", &["-ldl"]) {
        row("loaded.c, by dlopen and dlvsym", &|| compiled::loads(&program, place));
    }
    if compiled::has_pyverbs() {
        row("traffic.py", &|| compiled::traffic(place));
        row("apart.py", &|| {
            compiled::two_of_python(&format!("apart.py {} 1", place.device()), place)
        });
        row("meets.py", &|| compiled::two_of_python("meets.py", place));
    }
    if let Some(ranks) = others::Ranks::new() {
        row("mpirun -np 4, pml ucx", &|| ranks.run(others::BY_UCX, place));
        if let Some(hosts) = hosts {
            let place = named(place, hosts);
            row("mpirun -np 4, mtl ofi", &|| ranks.run(others::BY_LIBFABRIC, place));
        }
    }
    match place {
        Place::Here(path) => row("tests of rdma-core 44", &|| {
            compiled::tests_of_rdma_core(path).expect("a package that has them")
        }),
        Place::Apart(_) | Place::Within(..) => {
            if let Some(hosts) = Hosts::new() {
                row("ibv_asyncwatch", &|| others::watch_events(&hosts));
            }
        }
    }
    rows
}

/// The last line of numbers that a program has printed, but for lines of a log.
fn figure(said: &str) -> String {
    let numbers = |line: &&str| {
        line.contains(|c: char| c.is_ascii_digit())
            && !line.starts_with("--")
            && !line.starts_with('[')
    };
    let line = said.lines().rev().find(numbers).unwrap_or_default();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}
