//! Two hosts, as far as the network can tell: two network namespaces and a cable between them.
//!
//! Needs root and `ip`; says so and does nothing where they are missing.

use crate::agent::{Agent, Remote};
use crate::alone::program;
use crate::pair::Setup;
use adverb_verbs::PathMtu;
use std::process::Command;

const MB: usize = 1 << 20;

/// Two namespaces that are gone when the test is over.
pub(crate) struct Hosts {
    pub(crate) names: [String; 2],
}

impl Hosts {
    /// `None`, after it has said why, if this cannot be had here.
    pub(crate) fn new(tag: &str, mtu: u32) -> Option<Self> {
        let names = ["a", "b"].map(|end| format!("adverb-{tag}-{end}-{}", std::process::id()));
        let hosts = Self { names };
        let [a, b] = &hosts.names;
        if let Err(reason) = run(&format!("ip netns add {a}")) {
            println!("skipped: no network namespaces: {reason}");
            return None;
        }
        let must = |command: String| run(&command).expect("it worked a moment ago");
        must(format!("ip netns add {b}"));
        must(format!("ip -n {a} link add eth0 type veth peer name eth0 netns {b}"));
        for (name, host) in [(a, 1), (b, 2)] {
            must(format!("ip -n {name} link set lo up"));
            must(format!("ip -n {name} link set eth0 addrgenmode none mtu {mtu} up"));
            must(format!("ip -n {name} addr add 10.9.8.{host}/24 dev eth0"));
            must(format!("ip -n {name} addr add fe80::{host}/64 dev eth0 nodad"));
        }
        Some(hosts)
    }

    /// What one end sends passes a bridge in the namespace of the other, and can be lost at its ports: at `outer` what the first
    /// sends, at `inner` what the second does.
    pub(crate) fn put_bridge_between(&self) {
        let [_, there] = &self.names;
        for words in [
            "link set eth0 down",
            "link set eth0 name outer",
            "addr flush dev outer",
            "link add inner type veth peer name eth0",
            "link add bridge type bridge mcast_snooping 0",
            "link set outer master bridge up",
            "link set inner master bridge addrgenmode none up",
            // The kernel would answer there for the address of `eth0`.
            "link set bridge addrgenmode none arp off up",
            "link set eth0 addrgenmode none up",
            "addr add 10.9.8.2/24 dev eth0",
            "addr add fe80::2/64 dev eth0 nodad",
        ] {
            run(&format!("ip -n {there} {words}")).expect("a bridge");
        }
    }

    fn agents(&self, gid_index: u8) -> [Agent; 2] {
        self.agents_over(["udp"; 2], gid_index)
    }

    /// One at each end, which takes this path.
    pub(crate) fn agents_over(&self, paths: [&str; 2], gid_index: u8) -> [Agent; 2] {
        let [path, other] = paths;
        [(0, path), (1, other)].map(|(end, path)| self.agent(end, "root", path, gid_index))
    }

    /// One at an end, as this user, which takes this path.
    pub(crate) fn agent(&self, end: usize, user: &str, path: &str, gid_index: u8) -> Agent {
        let mut command = self.command(end);
        if user != "root" {
            command.args(["setpriv", &format!("--reuid={user}"), "--clear-groups"]);
        }
        command.arg(program()).env("ADVERB_PATH", path);
        Agent::start_by(command, "soft_eth0", gid_index)
    }

    /// What runs its arguments at an end.
    pub(crate) fn command(&self, end: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec"]).args(self.names.get(end));
        command
    }

    /// Datagrams that the kernel has given to sockets, in both.
    pub(crate) fn datagrams(&self) -> u64 {
        let of = |name: &String, table: &str, word: &str, field: usize| {
            let text =
                run(&format!("ip netns exec {name} cat /proc/net/{table}")).expect("a table");
            let last = text.lines().rfind(|line| line.starts_with(word)).expect("a line");
            last.split_whitespace().nth(field).expect("a field").parse::<u64>().expect("a number")
        };
        let both = |name| of(name, "snmp", "Udp: ", 1) + of(name, "snmp6", "Udp6InDatagrams", 1);
        self.names.iter().map(both).sum()
    }

    /// Frames that have left the interfaces of both.
    pub(crate) fn frames(&self) -> u64 {
        let of = |name: &String| {
            let text = run(&format!("ip netns exec {name} cat /proc/net/dev")).expect("a table");
            let behind = text.lines().filter_map(|line| line.split_once(':'));
            let sent = behind.filter_map(|(_, numbers)| numbers.split_whitespace().nth(9));
            sent.filter_map(|number| number.parse::<u64>().ok()).sum::<u64>()
        };
        self.names.iter().map(of).sum()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = run(&format!("ip netns del {name}"));
        }
    }
}

/// Runs a command and returns what it printed, or why it failed.
pub(crate) fn run(command: &str) -> Result<String, String> {
    let mut words = command.split(' ');
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn both_ways(hosts: &Hosts, setup: Setup) {
    both_ways_over(hosts, ["udp"; 2], setup);
}

fn both_ways_over(hosts: &Hosts, paths: [&str; 2], setup: Setup) {
    let [mut a, mut b] = hosts.agents_over(paths, setup.gid_index);
    let (x, y) = Agent::introduce(&mut a, &mut b, &setup);
    one_way(&mut a, &mut b, x, y);
    one_way(&mut b, &mut a, y, x);
    for agent in [&mut a, &mut b] {
        assert_eq!(agent.counter("icrc_errors"), 0);
        assert_eq!(agent.counter("malformed"), 0);
    }
}

/// By sockets at both ends, and by frames at one, where they can be had: what the other end sends passes its queue, and is lost
/// there as before; frames leave past that of their own.
fn over_sockets_and_frames(hosts: &Hosts) {
    let setup = Setup { path_mtu: PathMtu::B1024, ..Setup::default() };
    both_ways(hosts, setup);
    match adverb_sys::bpf::Map::create(adverb_sys::bpf::MapKind::XdpSockets, 4, 4, 1) {
        Ok(_) => both_ways_over(hosts, ["xdp", "udp"], setup),
        Err(error) => println!("without frames: no AF_XDP to be had: {error}"),
    }
}

/// Data of many sizes by WRITE, READ, SEND and an atomic.
pub(crate) fn one_way(from: &mut Agent, to: &mut Agent, here: Remote, there: Remote) {
    let far = to.memory();
    let (qp, addr, rkey) = (here.index, far.addr, far.rkey.0);
    for (seed, len) in (1..).zip([1, 1500, 9001, MB + 3, 8 * MB]) {
        from.fill(0, len, seed);
        let done = from.ask(&format!("write {qp} 0 {len} {addr} {rkey}"));
        assert_eq!(done, "Success", "write {len}");
        assert!(to.has(0, len, seed), "WRITE of {len}");
        to.fill(0, len, seed + 100);
        let done = from.ask(&format!("read {qp} 0 {len} {addr} {rkey}"));
        assert_eq!(done, "Success", "read {len}");
        assert!(from.has(0, len, seed + 100), "READ of {len}");
        assert_eq!(to.ask(&format!("recv {} 3 {len}", there.index)), "posted");
        assert_eq!(from.ask(&format!("send {qp} 0 {len}")), "Success");
        assert_eq!(to.ask("wait"), format!("Success Receive {len}"));
        assert!(to.has(3, len, seed + 100), "SEND of {len}");
    }
    assert_eq!(from.ask(&format!("add {qp} {addr} {rkey} 5")), "Success");
}

#[test]
fn two_hosts_reach_each_other_over_ipv4_and_link_local_ipv6() {
    for (tag, mtu, path_mtu) in [("small", 1500, PathMtu::B1024), ("jumbo", 9000, PathMtu::B4096)] {
        let Some(hosts) = Hosts::new(tag, mtu) else {
            return;
        };
        for gid_index in [0, 1] {
            let [mut a, _] = hosts.agents(gid_index);
            assert_eq!(a.ask("mtu"), path_mtu.bytes().to_string(), "what fits {mtu}");
            both_ways(&hosts, Setup { gid_index, path_mtu, ..Setup::default() });
        }
    }
}

/// Goal: packets that go past the sockets at one end or at both are those that the sockets' would be.
#[test]
fn frames_and_sockets_reach_each_other_over_ipv4_and_link_local_ipv6() {
    let Some(hosts) = Hosts::new("frames", 1500) else {
        return;
    };
    if let Err(error) = adverb_sys::bpf::Map::create(adverb_sys::bpf::MapKind::XdpSockets, 4, 4, 1)
    {
        return println!("skipped: no AF_XDP to be had: {error}");
    }
    for paths in [["xdp", "xdp"], ["xdp", "udp"]] {
        for gid_index in [0, 1] {
            let setup = Setup { gid_index, path_mtu: PathMtu::B1024, ..Setup::default() };
            both_ways_over(&hosts, paths, setup);
            let [mut a, mut b] = hosts.agents_over(paths, gid_index);
            let (here, _) = Agent::introduce(&mut a, &mut b, &setup);
            let far = b.memory();
            let write = format!("write {} 0 4000 {} {}", here.index, far.addr, far.rkey.0);
            let before = hosts.datagrams();
            for _ in 0..200 {
                assert_eq!(a.ask(&write), "Success");
            }
            // Four packets and an acknowledgement each; few go by the sockets, while neighbours are not known.
            let datagrams = hosts.datagrams() - before;
            assert_eq!(paths == ["xdp", "xdp"], datagrams < 100, "{paths:?}: {datagrams}");
        }
    }
}

/// Goal: a mark of congestion on a frame is seen, and answered. Method: the sender marks its packets itself.
#[test]
fn marks_on_frames_are_seen() {
    let Some(hosts) = Hosts::new("marks", 1500) else {
        return;
    };
    if let Err(error) = adverb_sys::bpf::Map::create(adverb_sys::bpf::MapKind::XdpSockets, 4, 4, 1)
    {
        return println!("skipped: no AF_XDP to be had: {error}");
    }
    for (traffic_class, marked) in [(2, false), (3, true)] {
        for gid_index in [0, 1] {
            let [mut a, mut b] = hosts.agents_over(["xdp"; 2], gid_index);
            let setup =
                Setup { gid_index, traffic_class, path_mtu: PathMtu::B1024, ..Setup::default() };
            let (_, notified) = answers(&mut a, &mut b, &setup);
            assert_eq!(notified > 0, marked, "{traffic_class}: {notified}");
        }
    }
}

/// Packets that have come back, and notifications of congestion among them, while a writes 4 MiB to b.
fn answers(a: &mut Agent, b: &mut Agent, setup: &Setup) -> (u64, u64) {
    let (here, _) = Agent::introduce(a, b, setup);
    let far = b.memory();
    let (qp, addr, rkey) = (here.index, far.addr, far.rkey.0);
    for _ in 0..4 {
        assert_eq!(a.ask(&format!("write {qp} 0 {MB} {addr} {rkey}")), "Success");
    }
    let heard = a.ask(&format!("heard {qp}"));
    let (packets, notifications) = heard.split_once(' ').expect("two numbers");
    let number = |word: &str| word.parse().expect("a number");
    (number(packets), number(notifications))
}

/// Goal: what a switch marks on its way, because the sender says that it may, closes the sender's window: neither process
/// has anything but reliable connections. Method: a window asks for acknowledgements four times; the smaller it is, the
/// more come back.
#[test]
fn marks_of_a_switch_close_the_window_of_a_connection() {
    let Some(hosts) = Hosts::new("ecn", 1500) else {
        return;
    };
    for (gid_index, tables) in [(0, "ip6tables"), (1, "iptables")] {
        let [mut a, mut b] = hosts.agents(gid_index);
        let setup = Setup { gid_index, path_mtu: PathMtu::B1024, ..Setup::default() };
        let (usual, notified) = answers(&mut a, &mut b, &setup);
        assert_eq!(notified, 0, "nothing is marked yet");
        let [_, there] = &hosts.names;
        let rule =
            "-t mangle -A PREROUTING -p udp --dport 4791 -m tos --tos 2/3 -j TOS --set-tos 3/3";
        if let Err(reason) = run(&format!("ip netns exec {there} {tables} {rule}")) {
            println!("skipped: no rule that marks: {reason}");
            return;
        }
        let (marked, notified) = answers(&mut a, &mut b, &setup);
        println!("{tables}: {usual} packets came back, {marked} with {notified} notifications");
        assert!(notified > 0);
        assert!(2 * (marked - notified) > 3 * usual, "{marked}, {notified}, {usual}");
    }
}

#[test]
fn a_path_mtu_larger_than_the_link_fails_and_says_why() {
    let Some(hosts) = Hosts::new("large", 1500) else {
        return;
    };
    let setup = Setup { timeout: 10, retry_count: 2, path_mtu: PathMtu::B4096, ..Setup::default() };
    let [mut a, mut b] = hosts.agents(1);
    let (x, _) = Agent::introduce(&mut a, &mut b, &setup);
    let far = b.memory();
    let write = format!("write {} 0 20000 {} {}", x.index, far.addr, far.rkey.0);
    assert_eq!(a.ask(&write), "RetryExceeded");
    assert!(a.counter("send_dropped") > 0);
}

/// Goal: a link that drops what exceeds its rate costs time and nothing else.
/// Method: a token bucket with a short queue: every burst loses its end.
#[test]
fn a_link_that_drops_packets_still_carries_all_data() {
    let Some(hosts) = Hosts::new("lossy", 1500) else {
        return;
    };
    for name in &hosts.names {
        let limit = "dev eth0 root tbf rate 400mbit burst 15000 limit 30000";
        if let Err(reason) = run(&format!("tc -n {name} qdisc add {limit}")) {
            println!("skipped: no token bucket: {reason}");
            return;
        }
    }
    over_sockets_and_frames(&hosts);
    let [name, _] = &hosts.names;
    println!("{}", run(&format!("tc -s -n {name} qdisc show dev eth0")).unwrap_or_default());
}

/// Goal: the same with loss at random, where the kernel can do it.
#[test]
fn a_link_that_loses_packets_at_random_still_carries_all_data() {
    let Some(hosts) = Hosts::new("random", 1500) else {
        return;
    };
    for name in &hosts.names {
        let loss = "dev eth0 root netem loss 0.5% reorder 1% delay 100us";
        if let Err(reason) = run(&format!("tc -n {name} qdisc add {loss}")) {
            println!("skipped: no netem: {reason}");
            return;
        }
    }
    over_sockets_and_frames(&hosts);
}
