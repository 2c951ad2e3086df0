//! Programs that meet by the connection manager: those of rdma-core, and others on librdmacm.

use crate::clock::Clock;
use crate::compiled::Compiled;
use crate::support::{self, Ended, Hosts, PATHS, Place, is_installed};
use crate::table::UCX_TRANSPORTS;
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

/// Server and client of a program. `{h}` stands for the server's address, `{p}` for a port, `{l}` for the
/// address of the side itself, `{t}` for a file that is gone afterwards.
#[derive(Clone, Copy)]
pub(crate) struct Line {
    /// What it is called on the page.
    pub(crate) name: &'static str,
    server: &'static str,
    client: &'static str,
    /// Whether the server goes on after the client, and is killed.
    stays: bool,
}

pub(crate) const fn line(name: &'static str, server: &'static str, client: &'static str) -> Line {
    Line { name, server, client, stays: false }
}

const fn stays(name: &'static str, server: &'static str, client: &'static str) -> Line {
    Line { name, server, client, stays: true }
}

macro_rules! qperf {
    ($test:literal) => {
        stays(
            concat!("qperf -cm 1 ", $test),
            "qperf -lp {p}",
            concat!("qperf {h} -lp {p} -cm 1 -t 1 ", $test),
        )
    };
}

/// The test programs of librdmacm.
pub(crate) const RDMACM: [Line; 12] = [
    line("rping -v -V", "rping -s -a {h} -p {p} -v -V -C 10", "rping -c -a {h} -p {p} -v -V -C 10"),
    line("rping -q", "rping -s -q -a {h} -p {p} -C 10", "rping -c -q -a {h} -p {p} -C 10"),
    stays("rping -P", "rping -s -P -a {h} -p {p}", "rping -c -a {h} -p {p} -v -V -C 100"),
    line("ucmatose -c 100", "ucmatose -b {h} -p {p} -c 100", "ucmatose -s {h} -p {p} -c 100"),
    line("ucmatose -m", "ucmatose -m -b {h} -p {p} -c 10", "ucmatose -m -s {h} -p {p} -c 10"),
    line("udaddy", "udaddy -b {h} -c 2", "udaddy -s {h} -c 2"),
    line("rdma_client", "rdma_server -s {h} -p {p}", "rdma_client -s {h} -p {p}"),
    line("rdma_xclient", "rdma_xserver -p {p}", "rdma_xclient -s {h} -p {p}"),
    line("rdma_xclient -c x", "rdma_xserver -p {p} -c x", "rdma_xclient -s {h} -p {p} -c x"),
    stays("cmtime -c 1000", "cmtime -b {h} -p {p} -c 1000", "cmtime -s {h} -p {p} -c 1000"),
    line("mckey", "mckey -m 239.1.2.3 -b {l}", "mckey -m 239.1.2.3 -b {l} -s"),
    line("mckey -c 4", "mckey -m 239.1.2.4 -b {l} -c 4", "mckey -m 239.1.2.4 -b {l} -s -c 4"),
];

/// The programs of librdmacm's sockets.
pub(crate) const RSOCKETS: [Line; 5] = [
    line("rstream", "rstream -b {h} -p {p} -S 4096 -C 100", "rstream -s {h} -p {p} -S 4096 -C 100"),
    line(
        "rstream -T r",
        "rstream -b {h} -p {p} -T r -S 4096 -C 100",
        "rstream -s {h} -p {p} -T r -S 4096 -C 100",
    ),
    line(
        "rstream -T b -T v",
        "rstream -b {h} -p {p} -T b -T v -S 4096 -C 100",
        "rstream -s {h} -p {p} -T b -T v -S 4096 -C 100",
    ),
    line(
        "riostream -T v",
        "riostream -b {h} -p {p} -S 4096 -C 100 -T v",
        "riostream -s {h} -p {p} -S 4096 -C 100 -T v",
    ),
    stays("rcopy", "rcopy -p {p}", "rcopy /usr/bin/rcopy {h}:{t} -p {p}"),
];

/// perftest over the connection manager: options of both sides, as for `PERFTEST`.
pub(crate) const PERFTEST_CM: [&str; 12] = [
    "ib_send_lat -R",
    "ib_send_bw -R",
    "ib_write_lat -R",
    "ib_write_bw -R",
    "ib_read_lat -R",
    "ib_read_bw -R",
    "ib_atomic_lat -R",
    "ib_atomic_bw -R",
    "ib_send_bw -R -c UD",
    "ib_send_lat -R -c UD",
    "ib_send_bw -R -e -b",
    "ib_write_bw -R -q 4",
];

/// All tests of qperf that have `-cm`.
pub(crate) const OTHERS: [Line; 12] = [
    qperf!("rc_lat"),
    qperf!("rc_bw"),
    qperf!("rc_bi_bw"),
    qperf!("rc_rdma_read_lat"),
    qperf!("rc_rdma_read_bw"),
    qperf!("rc_rdma_write_lat"),
    qperf!("rc_rdma_write_bw"),
    qperf!("rc_rdma_write_poll_lat"),
    qperf!("rc_compare_swap_mr"),
    qperf!("rc_fetch_add_mr"),
    qperf!("ver_rc_compare_swap"),
    qperf!("ver_rc_fetch_add"),
];

/// UCX, whose connections are made by rdmacm.
pub(crate) const UCX_CM: [Line; 1] =
    [stays("io_demo", "io_demo -p {p}", "io_demo -p {p} {h} -i 100 -l 5")];

/// libfabric over its provider of verbs, on [`Hosts`] that have names.
pub(crate) const LIBFABRIC: [Line; 3] = [
    line(
        "fi_pingpong -p verbs -e dgram",
        "fi_pingpong -p verbs -e dgram -d soft_eth0-dgram -B {p}",
        "fi_pingpong -p verbs -e dgram -d soft_eth0-dgram -P {p} {h}",
    ),
    line(
        "fi_pingpong -p verbs -e msg",
        "fi_pingpong -p verbs -e msg -B {p}",
        "fi_pingpong -p verbs -e msg -P {p} {h}",
    ),
    line(
        "fi_pingpong -p verbs;ofi_rxm -e rdm",
        "fi_pingpong -p verbs;ofi_rxm -e rdm -B {p}",
        "fi_pingpong -p verbs;ofi_rxm -e rdm -P {p} {h}",
    ),
];

/// Runs server and client; answers with what the client printed, or with why it went wrong.
pub(crate) fn run(line: &Line, place: Place<'_>) -> Result<String, String> {
    run_with(line, place, &[])
}

/// The same with something set in the environment.
pub(crate) fn run_with(
    line: &Line,
    place: Place<'_>,
    set: &[(&str, &str)],
) -> Result<String, String> {
    run_from("", line, place, set)
}

/// The same with programs of a directory, whose name ends with a slash.
pub(crate) fn run_from(
    directory: &str,
    line: &Line,
    place: Place<'_>,
    set: &[(&str, &str)],
) -> Result<String, String> {
    let port = support::port().to_string();
    let file = std::env::temp_dir().join(format!("adverb-cm-{}-{port}", std::process::id()));
    let file = file.to_str().expect("a path of letters");
    let filled = |text: &str, host: usize| {
        let text = text.replace("{h}", place.address(0)).replace("{p}", &port);
        format!("{directory}{}", text.replace("{l}", place.address(host)).replace("{t}", file))
    };
    let end = if line.stays { Ended::Killed } else { Ended::Itself };
    // UCX would use the loopback interface's device, too, although no other host is behind it.
    let device = format!("{}:1", place.device());
    let set = [&[("UCX_NET_DEVICES", device.as_str())], set].concat();
    let ended = support::meet(&filled(line.server, 0), &filled(line.client, 1), place, &set, end);
    let _ = std::fs::remove_file(file);
    ended
}

/// Runs a line of [`PERFTEST_CM`].
pub(crate) fn perftest(options: &str, place: Place<'_>, clock: &Clock) -> Result<String, String> {
    let line = format!("{options} -F -n 200 -u 17 -d {} -p {}", place.device(), support::port());
    let client = format!("{line} {}", place.address(0));
    support::meet(&line, &client, place, &[clock.set()], Ended::Itself)
}

/// All lines of a table, one after the other.
fn all(table: &[Line], place: Place<'_>) {
    let failed = table.iter().filter_map(|line| {
        let why = run(line, place).err()?;
        Some(format!("{}: {why}", line.name))
    });
    let failed: Vec<_> = failed.collect();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

fn all_of_perftest(place: Place<'_>) {
    let clock = Clock::fast();
    let failed: Vec<_> =
        PERFTEST_CM.iter().filter_map(|options| perftest(options, place, &clock).err()).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn the_programs_of_rdma_cm_run() {
    if is_installed("rping") {
        PATHS.iter().for_each(|path| all(&RDMACM, Place::Here(path)));
    }
}

/// Goal: one server has many clients at once.
#[test]
fn many_clients_ping_a_server_of_rdma_cm() {
    if !is_installed("rping") {
        return;
    }
    for path in PATHS {
        let (place, port) = (Place::Here(path), support::port());
        let line = format!("-a {} -p {port}", place.address(0));
        let mut server = place.command(0, &format!("rping -s -P {line}")).spawn().unwrap();
        let client = |count| {
            let line = format!("rping -c {line} -v -V -C {count}");
            place.command(1, &line).spawn().unwrap()
        };
        // A client that is refused is too early.
        let start = Instant::now();
        while !support::ended(client(1)).status.success() {
            let is_running = server.try_wait().unwrap().is_none();
            assert!(is_running && start.elapsed() < support::PATIENCE, "{path}: it does not serve");
        }
        let clients: Vec<_> = (0..CLIENTS).map(|_| pinging(client(PINGS))).collect();
        let ended = clients.into_iter().map(|(client, pings)| (support::ended(client), pings));
        let ended: Vec<_> = ended.map(|(output, pings)| (output, pings.join().unwrap())).collect();
        server.kill().and_then(|()| server.wait()).unwrap();
        for (output, pings) in ended {
            assert!(output.status.success() && pings == PINGS, "{path}: {pings} pings, {output:?}");
        }
    }
}

/// A client that is connected, and the thread that counts its pings: the server forgets a request that comes before it
/// has taken the one before from the place where its thread for events puts them.
fn pinging(mut client: Child) -> (Child, JoinHandle<usize>) {
    let lines = BufReader::new(client.stdout.take().expect("piped")).lines();
    let (begun, begins) = mpsc::channel();
    let count = std::thread::spawn(move || {
        let pings = lines.map_while(Result::ok).filter(|line| line.contains("rdma-ping-"));
        let ping = |_: &String| {
            let _ = begun.send(());
        };
        pings.inspect(ping).count()
    });
    begins.recv_timeout(support::PATIENCE).expect("it pings");
    (client, count)
}

/// Pings of each client: it still sends some when the next one connects.
const PINGS: usize = 1000;

/// Clients at once.
const CLIENTS: usize = 8;

#[test]
fn the_programs_of_rsockets_run() {
    if is_installed("rstream") {
        PATHS.iter().for_each(|path| all(&RSOCKETS, Place::Here(path)));
    }
}

#[test]
fn perftest_meets_by_the_connection_manager() {
    if is_installed("ib_send_bw") {
        PATHS.iter().for_each(|path| all_of_perftest(Place::Here(path)));
    }
}

#[test]
fn qperf_meets_by_the_connection_manager() {
    if is_installed("qperf") {
        PATHS.iter().for_each(|path| all(&OTHERS, Place::Here(path)));
    }
}

#[test]
fn io_demo_of_ucx_meets_by_the_connection_manager() {
    if is_installed("io_demo") {
        PATHS.iter().for_each(|path| all(&UCX_CM, Place::Here(path)));
    }
}

#[test]
fn programs_of_rdma_core_in_two_network_namespaces_meet_by_the_connection_manager() {
    if is_installed("rping")
        && let Some(hosts) = Hosts::new()
    {
        all(&RDMACM, Place::Apart(&hosts));
        all(&RSOCKETS, Place::Apart(&hosts));
    }
}

#[test]
fn programs_of_others_in_two_network_namespaces_meet_by_the_connection_manager() {
    let Some(hosts) = Hosts::new() else {
        return;
    };
    if is_installed("qperf") {
        all(&OTHERS, Place::Apart(&hosts));
    }
    if is_installed("io_demo") {
        all(&UCX_CM, Place::Apart(&hosts));
    }
    if is_installed("ib_send_bw") {
        all_of_perftest(Place::Apart(&hosts));
    }
}

/// libfabric leaves out loopback interfaces, and a server that is given no address asks for that of `localhost`.
#[test]
fn libfabric_runs_where_localhost_is_the_address_of_an_interface() {
    if !is_installed("fi_pingpong") {
        return;
    }
    if let Some(hosts) = Hosts::new() {
        hosts.name_them().expect("files in /etc/netns");
        all(&LIBFABRIC, Place::Apart(&hosts));
        PATHS.iter().for_each(|path| all(&LIBFABRIC, Place::Within(&hosts, path)));
    }
}

/// Goal: UCX's listener and endpoints are made by `rdma_cm`, and by nothing else, and messages go over them.
#[test]
fn two_programs_on_ucx_meet_by_its_listener() {
    let Some(program) = Compiled::new("listener", &["-lucp", "-lucs"]) else {
        return;
    };
    let hosts = Hosts::new();
    for place in PATHS.map(Place::Here).into_iter().chain(hosts.as_ref().map(Place::Apart)) {
        for transports in UCX_TRANSPORTS {
            let (device, port) = (format!("{}:1", place.device()), support::port());
            let set = [
                ("UCX_SOCKADDR_TLS_PRIORITY", "rdmacm"),
                ("UCX_TLS", transports),
                ("UCX_NET_DEVICES", &device),
            ];
            let server = format!("{} server {port}", program.path());
            let client = format!("{} client {} {port}", program.path(), place.address(0));
            let said = support::meet(&server, &client, place, &set, Ended::Itself);
            assert_eq!(said.as_deref().map(str::trim), Ok("5 messages came back"));
        }
    }
}

/// A program on plain sockets, which librspreload brings to rsockets.
fn preloaded(program: &str, place: Place<'_>) -> Result<String, String> {
    let library = support::library();
    let both = format!("{} {RSPRELOAD}", library.to_str().expect("a path of letters"));
    let port = support::port();
    let (server, client) = (
        format!("{program} server {port}"),
        format!("{program} client {} {port}", place.address(0)),
    );
    support::meet(&server, &client, place, &[("LD_PRELOAD", &both)], Ended::Itself)
}

/// Where Debian has it.
const RSPRELOAD: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";

#[test]
fn a_program_on_sockets_runs_over_rsockets() {
    let Some(program) = Compiled::new("sockets", &[]) else {
        return;
    };
    if !std::path::Path::new(RSPRELOAD).exists() {
        println!("skipped: no librspreload: it is not installed");
        return;
    }
    for path in PATHS {
        let ended = preloaded(program.path(), Place::Here(path));
        assert!(ended.as_ref().is_ok_and(|said| said.contains("4194304 bytes")), "{ended:?}");
    }
}

/// A library of C with the name of librdmacm, so that its calls lead where that one's do, and the program that loads it;
/// both are gone afterwards.
struct Disguised(std::path::PathBuf);

impl Disguised {
    /// `None`, after it has said why, if this cannot be had here.
    fn new(source: &str) -> Option<Self> {
        let name = format!("adverb-cm-{source}-{}", std::process::id());
        let base = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&base).expect("a place for files");
        let compile = |source: &str, out: &str, flags: &[&str]| {
            let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");
            let mut compiler = std::process::Command::new("cc");
            compiler.arg(format!("{sources}/{source}.c")).arg("-o").arg(base.join(out));
            let compiled = compiler.args(flags).arg("-ldl").output();
            compiled.map(|output| assert!(output.status.success(), "{output:?}"))
        };
        if let Err(error) = compile(source, "librdmacm.so.disguised", &["-shared", "-fPIC"]) {
            println!("skipped: no C compiler: {error}");
            return None;
        }
        compile("hostile", "program", &[]).expect("it did so a moment ago");
        Some(Self(base))
    }

    /// What the library prints that is run with two words.
    fn run(&self, words: [&str; 2]) -> String {
        let [program, library] =
            ["program", "librdmacm.so.disguised"].map(|name| self.0.join(name));
        let [program, library] =
            [&program, &library].map(|path| path.to_str().expect("a path of letters"));
        let [first, second] = words;
        support::alone(program, &[library, first, second], &[("ADVERB_EXPLAIN", "")])
    }
}

impl Drop for Disguised {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Goal: whatever is written to the device is answered or refused. Method: a library with the name of librdmacm
/// writes commands of random fields, lengths and addresses.
#[test]
fn no_command_makes_the_device_crash_or_hang() {
    let Some(library) = Disguised::new("hostile") else {
        return;
    };
    for seed in ["0x1", "0x2", "0x3", "0x4"] {
        let said = library.run([seed, "20000"]);
        let counts: Vec<u32> = said.split_whitespace().map(|word| word.parse().unwrap()).collect();
        assert!(counts[0] > 1000 && counts[1] > 10, "seed {seed}: {said}");
    }
}

/// Goal: commands are those of each release of librdmacm, also of those that are not installed here.
#[test]
fn commands_of_other_releases_do_what_they_are_for() {
    if let Some(library) = Disguised::new("commands") {
        assert_eq!(library.run(["", ""]).trim(), "20");
    }
}
