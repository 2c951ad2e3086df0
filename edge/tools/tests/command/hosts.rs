//! `adverb mesh` among hosts: network namespaces that a bridge connects, and ranks of a launcher.
//!
//! Needs root and `ip`, or Open MPI; says so and does nothing where they are missing.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::{finish, stderr, stdout};

/// Namespaces on one bridge, gone when the test is over.
struct Hosts {
    bridge: String,
    names: Vec<String>,
}

impl Hosts {
    /// `None`, after it has said why, if this cannot be had here.
    fn new(count: usize) -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        // Other tests of this process have hosts too.
        let id = format!("{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let name = |host: usize| format!("adverb-mesh-{host}-{id}");
        let hosts = Self {
            bridge: format!("adverb-mesh-bridge-{id}"),
            names: (0..count).map(name).collect(),
        };
        let bridge = &hosts.bridge;
        if let Err(reason) = run(&format!("ip netns add {bridge}")) {
            println!("skipped: no network namespaces: {reason}");
            return None;
        }
        let must = |command: String| run(&command).expect("it worked a moment ago");
        if let Err(reason) = run(&format!("ip -n {bridge} link add br0 type bridge")) {
            println!("skipped: no bridge: {reason}");
            return None;
        }
        must(format!("ip -n {bridge} link set br0 up"));
        for (host, name) in hosts.names.iter().enumerate() {
            must(format!("ip netns add {name}"));
            must(format!("ip -n {name} link add eth0 type veth peer name p{host} netns {bridge}"));
            must(format!("ip -n {bridge} link set p{host} master br0 up"));
            must(format!("ip -n {name} link set lo up"));
            must(format!("ip -n {name} link set eth0 up"));
            must(format!("ip -n {name} addr add {}/24 dev eth0", address(host)));
            must(format!("ip -n {name} addr add {}/64 dev eth0 nodad", link_local(host)));
        }
        Some(hosts)
    }

    /// Runs the command on one of them.
    fn on(&self, host: usize, words: &[&str]) -> Command {
        let name = self.names.get(host).expect("a host");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", name, env!("CARGO_BIN_EXE_adverb")]);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Waits until one of them sends and receives, which is more than it takes to begin.
    fn await_traffic(&self, host: usize) {
        let statistics = || {
            let name = self.names.get(host).expect("a host");
            let all = run(&format!("ip netns exec {name} cat /proc/net/dev")).expect("a table");
            let line = all.lines().find_map(|line| line.trim().strip_prefix("eth0:"));
            let fields: Vec<_> = line.expect("an interface").split_whitespace().collect();
            let packets = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
            packets(1).min(packets(9)).expect("numbers")
        };
        let (before, since) = (statistics(), Instant::now());
        while statistics() < before + 500 {
            assert!(since.elapsed() < Duration::from_secs(60), "it sends nothing");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in self.names.iter().chain([&self.bridge]) {
            let _ = run(&format!("ip netns del {name}"));
        }
    }
}

fn address(host: usize) -> String {
    format!("10.9.7.{}", host + 1)
}

fn link_local(host: usize) -> String {
    format!("fe80::9:7:{}", host + 1)
}

/// Runs a command and returns what it printed, or why it failed.
fn run(command: &str) -> Result<String, String> {
    let mut words = command.split(' ');
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Goal: two hosts need no word about devices, and each side is told how packets go; a client that ends
/// too early is not a success for the server.
#[test]
fn a_pingpong_between_hosts_needs_no_options() {
    let Some(hosts) = Hosts::new(2) else {
        return;
    };
    let mut server = hosts.on(0, &["pingpong", "--server"]).spawn().expect("the command starts");
    let output = hosts.on(1, &["pingpong", &address(0), "-n", "5"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = stdout(&output);
    assert!(said.contains("device soft_eth0") && said.contains("path udp"), "{said}");
    let words = ["pingpong", &address(0), "-n", "100000000"];
    let mut client = hosts.on(1, &words).spawn().expect("the command starts");
    std::thread::sleep(Duration::from_secs(1));
    client.kill().expect("a child of ours");
    client.wait().expect("a child of ours");
    // What became of a client is told before the next is served.
    for _ in 0..2 {
        let output = hosts.on(1, &["pingpong", &address(0), "-n", "1"]).output().expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    server.kill().expect("a child of ours");
    let output = server.wait_with_output().expect("a child of ours");
    let right = stdout(&output).matches("every byte right").count();
    assert!((2..=3).contains(&right), "{}", stdout(&output));
    assert!(!stderr(&output).is_empty());
}

/// Goal: a link-local address with its zone does for every command, without a word about devices.
#[test]
fn link_local_addresses_with_their_zones_do_for_every_command() {
    let Some(hosts) = Hosts::new(2) else {
        return;
    };
    let there = format!("{}%eth0", link_local(0));
    let test = ["--op", "write", "--test", "latency", "-s", "3000", "-n", "20", "--no-floor"];
    let bench = [&["bench", &there, "--connect-timeout", "30"][..], &test].concat();
    for words in [&["pingpong", &there, "-n", "5"][..], &bench] {
        let mut server = hosts.on(0, &[words[0], "--server"]).spawn().expect("the command starts");
        let output = hosts.on(1, words).output().expect("it runs");
        server.kill().expect("a child of ours");
        server.wait().expect("a child of ours");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let said = stdout(&output);
        assert!(said.contains("device soft_eth0") && said.contains("path udp"), "{said}");
    }
    let nodes = format!("{there},[{}%eth0]", link_local(1));
    let node = |host| hosts.on(host, &["mesh", "--nodes", &nodes, "-D", "1"]).spawn();
    let both = [0, 1].map(|host| node(host).expect("the command starts"));
    for output in both.map(finish) {
        assert_eq!(output.status.code(), Some(0), "{}{}", stderr(&output), stdout(&output));
    }
}

/// Goal: a server of `bench` asks its interface for each client what it carries by now.
#[test]
fn a_bench_between_hosts_has_the_path_mtu_of_its_moment() {
    let Some(hosts) = Hosts::new(2) else {
        return;
    };
    let must = |command: String| run(&command).expect("a setting of an interface");
    for port in ["p0", "p1", "br0"] {
        must(format!("ip -n {} link set {port} mtu 9000", hosts.bridge));
    }
    let mut server = hosts.on(0, &["bench", "--server"]).spawn().expect("the command starts");
    let test = ["--op", "write", "--test", "latency", "-s", "3000", "-n", "20", "--no-floor"];
    let server_at = address(0);
    let words = [&["bench", &server_at, "--connect-timeout", "30", "--json"][..], &test].concat();
    for (far, near, due) in
        [(9000, 9000, 4096), (1500, 9000, 1024), (9000, 1500, 1024), (9000, 9000, 4096)]
    {
        for (name, mtu) in hosts.names.iter().zip([far, near]) {
            must(format!("ip -n {name} link set eth0 mtu {mtu}"));
        }
        let output = hosts.on(1, &words).output().expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{far}, {near}: {}", stderr(&output));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(json["machine"]["mtu"], due, "{far}, {near}");
    }
    server.kill().expect("a child of ours");
    server.wait().expect("a child of ours");
}

/// Runs the command on a host of its own, after a script.
fn inside(script: &str, words: &[&str]) -> Output {
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", &format!("{script}\nexec \"$@\""), "sh"]);
    command.arg(env!("CARGO_BIN_EXE_adverb")).args(words).output().expect("unshare")
}

const NO_IPV4: &str = "ip link set lo up || exit 99; ip addr del 127.0.0.1/8 dev lo || exit 99";
const NO_LOOPBACK: &str = "ip link add one type veth peer name two || exit 99
    ip link set one up; ip link set two up; ip addr add 10.9.6.1/24 dev one; ip link set lo up
    ip addr del 127.0.0.1/8 dev lo || exit 99; ip addr del ::1/128 dev lo || exit 99";
/// Everything that runs on one machine.
const LOCAL_RUNS: &[&[&str]] = &[
    &["pingpong", "-n", "2"],
    &["bench", "-s", "64", "--op", "send", "-n", "10", "--rounds", "1"],
    &["bench", "--modes", "-D", "0.1"],
    &["bench", "--layers", "-D", "0.1"],
    &["mesh", "--local", "2", "-D", "1"],
    &["allreduce", "--local", "2", "-n", "2"],
];

/// Goal: a host without IPv4, or without any loopback address, tests itself by the addresses it has; one without any
/// hears what to do.
#[test]
fn a_run_on_one_host_takes_the_addresses_there_are() {
    for (script, here) in [(NO_IPV4, "[::1]"), (NO_LOOPBACK, "10.9.6.1")] {
        for words in LOCAL_RUNS {
            let output = inside(script, words);
            if output.status.code() == Some(99) || stderr(&output).contains("unshare") {
                println!("skipped: no network namespaces: {}", stderr(&output));
                return;
            }
            assert_eq!(output.status.code(), Some(0), "{here} {words:?}: {}", stderr(&output));
            let said = stdout(&output);
            assert!(
                words[0] != "pingpong" || said.contains(&format!("connected to {here}")),
                "{said}"
            );
        }
    }
    for words in LOCAL_RUNS.iter().copied().chain([&["devices"][..], &["counters"]]) {
        let output = inside("", words);
        assert_eq!(output.status.code(), Some(77), "{words:?}");
        assert!(stderr(&output).contains("ip link set lo up"), "{words:?}: {}", stderr(&output));
    }
}

/// Goal: a network that carries no packets of queue pairs is named as such by each command, with both addresses.
#[test]
fn a_closed_port_of_queue_pairs_is_said_by_each_command() {
    let Some(hosts) = Hosts::new(2) else {
        return;
    };
    // The rule comes before the one for local addresses, which is the first of all.
    let rules = [
        "rule add pref 10 iif eth0 ipproto udp dport 4791 blackhole",
        "rule add pref 20 lookup local",
        "rule del pref 0",
    ];
    for rule in rules {
        if let Err(reason) = run(&format!("ip -n {} {rule}", hosts.names[0])) {
            println!("skipped: no rules for packets: {reason}");
            return;
        }
    }
    for command in ["pingpong", "bench"] {
        let mut server = hosts.on(0, &[command, "--server"]).spawn().expect("the command starts");
        let words = [command, &address(0), "-n", "5"];
        let deadline = Instant::now() + Duration::from_secs(30);
        let output = loop {
            let output = hosts.on(1, &words).output().expect("it runs");
            // A server that has only just started may not listen yet.
            if !stderr(&output).contains("refused") || Instant::now() > deadline {
                break output;
            }
        };
        server.kill().expect("a child of ours");
        server.wait().expect("a child of ours");
        assert_eq!(output.status.code(), Some(1), "{command}");
        let said = stderr(&output);
        for fact in [
            "GID ::ffff:10.9.7.1",
            "GID ::ffff:10.9.7.2",
            "over udp",
            "UDP port 4791",
            "`adverb doctor`",
        ] {
            assert!(said.contains(fact), "{command}: {said}");
        }
    }
}

/// Goal: what each command says of a network that is away is so: a run between two hosts ends with an error, and a mesh connects
/// anew. Method: an interface that is down in their midst until after the last retry, which comes after 1.5 s.
#[test]
fn a_network_that_is_away_ends_runs_and_no_mesh() {
    let Some(hosts) = Hosts::new(2) else {
        return;
    };
    let away = |millis| {
        hosts.await_traffic(1);
        for state in ["down", "up"] {
            run(&format!("ip -n {} link set p0 {state}", hosts.bridge)).expect("an interface");
            std::thread::sleep(Duration::from_millis(millis));
        }
    };
    let (bench, pingpong) = (
        &["-D", "600", "--op", "write", "--test", "bandwidth", "--no-floor"][..],
        &["-n", "100000000"][..],
    );
    for (command, long, seconds, endless) in
        [("bench", "five", 5, bench), ("pingpong", "two", 2, pingpong)]
    {
        let sentence = format!(
            "A network that is away for {long} seconds ends the run; `adverb mesh` goes on."
        );
        let help = hosts.on(1, &[command, "--help"]).output().expect("it runs");
        assert!(stdout(&help).contains(&sentence), "{command}: {}", stdout(&help));
        let mut server = hosts.on(0, &[command, "--server"]).spawn().expect("the command starts");
        let there = address(0);
        let words = [&[command, &there, "--connect-timeout", "30"], endless].concat();
        let client = hosts.on(1, &words).spawn().expect("the command starts");
        away(seconds * 1000);
        let output = finish(client);
        assert_eq!(output.status.code(), Some(1), "{command}: {}", stdout(&output));
        server.kill().expect("a child of ours");
        server.wait().expect("a child of ours");
    }
    let nodes = format!("{},{}", address(0), address(1));
    let node = |host| hosts.on(host, &["mesh", "--nodes", &nodes, "-D", "10", "--json"]).spawn();
    let both = [0, 1].map(|host| node(host).expect("the command starts"));
    away(2000);
    for output in both.map(finish) {
        assert_eq!(output.status.code(), Some(0), "{}{}", stderr(&output), stdout(&output));
    }
}

/// Goal: a client that finds no server says so at once, and what it does about it.
#[test]
fn a_pingpong_without_a_server_says_so_before_it_gives_up() {
    let words = ["pingpong", "127.0.0.1", "-p", "1", "--connect-timeout", "3"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    let mut client = command.args(words).stderr(Stdio::piped()).spawn().expect("it starts");
    let said = BufReader::new(client.stderr.take().expect("a pipe"));
    let mut lines = said.lines().map_while(Result::ok);
    let first = lines.next().expect("a line");
    assert!(first.contains("no answer from 127.0.0.1:1 yet"), "{first}");
    assert!(client.try_wait().expect("a child of ours").is_none(), "it goes on");
    assert!(lines.next().is_some_and(|line| line.contains("no server at")), "it gives up");
    assert_eq!(client.wait().expect("a child of ours").code(), Some(1));
}

#[test]
fn every_host_of_a_mesh_has_the_whole_matrix() {
    let Some(hosts) = Hosts::new(3) else {
        return;
    };
    let nodes = (0..3).map(address).collect::<Vec<_>>().join(",");
    let picture = std::env::temp_dir().join(format!("adverb-hosts-{}.svg", std::process::id()));
    let path = picture.to_str().unwrap();
    let words = ["mesh", "--nodes", &nodes, "-D", "2", "--json", "--svg"];
    let children: Vec<_> = (0..3)
        .map(|host| {
            let own = format!("{path}.{host}");
            let mut command = hosts.on(host, &words);
            command.arg(&own).spawn().expect("the command starts")
        })
        .collect();
    let outputs: Vec<_> = children.into_iter().map(finish).collect();
    for (host, output) in outputs.iter().enumerate() {
        assert_eq!(output.status.code(), Some(0), "{}{}", stderr(output), stdout(output));
        let report: serde_json::Value = serde_json::from_str(&stdout(output)).unwrap();
        for rank in 0..3 {
            assert_eq!(report["nodes"][rank]["life"], "done", "seen by {host}: {report}");
            for peer in (0..3).filter(|peer| *peer != rank) {
                // What one has sent the other has received, whichever tells it.
                let (there, back) =
                    (&report["nodes"][rank]["peers"][peer], &report["nodes"][peer]["peers"][rank]);
                assert!(there["received"].as_u64().unwrap() > 0, "seen by {host}: {report}");
                assert_eq!(there["sent"], back["received"], "seen by {host}: {report}");
            }
        }
        let own = format!("{path}.{host}");
        let drawn = std::fs::read_to_string(&own).unwrap();
        assert_eq!(drawn.matches(" to ").count(), 9, "{drawn}");
        std::fs::remove_file(&own).unwrap();
    }
}

/// Goal: a host that dies is shown as such to the others, which lose nothing and say so at their end.
#[test]
fn a_host_that_dies_is_missed_by_the_others() {
    let Some(hosts) = Hosts::new(3) else {
        return;
    };
    let nodes = (0..3).map(address).collect::<Vec<_>>().join(",");
    let words = ["mesh", "--nodes", &nodes, "-D", "4", "--json"];
    let mut children: Vec<_> =
        (0..3).map(|host| hosts.on(host, &words).spawn().expect("the command starts")).collect();
    (0..3).for_each(|host| hosts.await_traffic(host));
    let mut victim = children.pop().expect("three");
    victim.kill().expect("a child of ours");
    victim.wait().expect("a child of ours");
    for output in children.into_iter().map(finish) {
        assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
        assert!(stderr(&output).contains("1 node failed"), "{}", stderr(&output));
        let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        let lives = [0, 1, 2].map(|rank| report["nodes"][rank]["life"].as_str().unwrap());
        assert_eq!(lives, ["done", "done", "failed"], "{report}");
        let (there, back) = (&report["nodes"][0]["peers"][1], &report["nodes"][1]["peers"][0]);
        assert_eq!(there["sent"], back["received"], "{report}");
    }
}

/// Goal: ranks that Open MPI starts find one another by what it tells them, and one of them speaks.
#[test]
fn ranks_of_mpirun_are_a_mesh() {
    if let Err(reason) = run("mpirun --version") {
        println!("skipped: no mpirun: {reason}");
        return;
    }
    let port = (20_000 + std::process::id() % 10_000).to_string();
    let mut command = Command::new("mpirun");
    command.args(["-np", "3", "--allow-run-as-root", "--oversubscribe"]);
    command.args([env!("CARGO_BIN_EXE_adverb"), "mesh", "-D", "1.5", "--port", &port, "--json"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = finish(command.spawn().expect("mpirun starts"));
    assert_eq!(output.status.code(), Some(0), "{}{}", stderr(&output), stdout(&output));
    let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    for rank in 0..3 {
        assert_eq!(report["nodes"][rank]["life"], "done", "{report}");
        assert_eq!(report["nodes"][rank]["peers"].as_array().map(Vec::len), Some(3), "{report}");
    }
}
