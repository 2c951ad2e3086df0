//! Two hosts, as far as the network can tell: two network namespaces and a cable between them.

use crate::alone::program;
use crate::child::Child;
use std::process::Command;

/// Two namespaces that are gone when the test is over.
struct Hosts([String; 2]);

impl Hosts {
    /// `None`, after it has said why, if this cannot be had here.
    fn new(tag: &str) -> Option<Self> {
        let names = ["a", "b"].map(|end| format!("adverb-cm-{tag}-{end}-{}", std::process::id()));
        let hosts = Self(names);
        let [a, b] = &hosts.0;
        if !ip(&format!("netns add {a}")) {
            println!("skipped: no network namespaces");
            return None;
        }
        assert!(ip(&format!("netns add {b}")));
        assert!(ip(&format!("-n {a} link add eth0 type veth peer name eth0 netns {b}")));
        for (name, host) in [(a, 1), (b, 2)] {
            assert!(ip(&format!("-n {name} link set lo up")));
            assert!(ip(&format!("-n {name} link set eth0 addrgenmode none mtu 1500 up")));
            assert!(ip(&format!("-n {name} addr add 10.9.8.{host}/24 dev eth0")));
            assert!(ip(&format!("-n {name} addr add fd09::{host}/64 dev eth0 nodad")));
        }
        Some(hosts)
    }

    fn at(&self, host: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[host]]).arg(program());
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.0.iter().map(|name| ip(&format!("netns del {name}"))).for_each(|_| {});
    }
}

fn ip(words: &str) -> bool {
    Command::new("ip").args(words.split(' ')).output().is_ok_and(|output| output.status.success())
}

/// A server at one host, a client at the other; what the client has printed of its connections.
fn meet(hosts: &Hosts, listen: &str, what: &str) -> Vec<String> {
    let mut server = Child::start(hosts.at(0), &format!("serve {listen}"));
    let port = server.line().split_once(' ').unwrap().1.to_owned();
    let host = listen.rsplit_once(':').unwrap().0;
    let mut client = Child::start(hosts.at(1), &format!("connect {host}:{port} {what}"));
    let words = client.words();
    client.say("part");
    let count = &words[1];
    assert_eq!(client.line(), format!("parted {count}"));
    server.say("end");
    assert_eq!(server.line(), format!("served {count} parted {count}"));
    words
}

#[test]
fn hosts_connect_over_both_versions_of_ip() {
    let Some(hosts) = Hosts::new("both") else { return };
    for listen in ["10.9.8.1:0", "[fd09::1]:0"] {
        assert_eq!(meet(&hosts, listen, "50 10")[..2], ["established", "50"]);
    }
}

/// Goal: the peer on another host learns of the end of a process that calls `exit`.
#[test]
fn a_process_that_exits_tells_its_peer_on_another_host() {
    let Some(hosts) = Hosts::new("exit") else { return };
    let mut server = Child::start(hosts.at(0), "serve 10.9.8.1:0");
    let port = server.line().split_once(' ').unwrap().1.to_owned();
    let mut client = Child::start(hosts.at(1), &format!("connect 10.9.8.1:{port} 50 20 leave"));
    assert_eq!(client.words()[..2], ["established", "50"]);
    client.say("leave");
    server.say("end");
    assert_eq!(server.line(), "served 50 parted 50");
}

/// Goal: the peer on another host learns of the end of a process that is killed, from another process of that host, also
/// when a third one has taken its place in the registry at once.
#[test]
fn a_killed_processes_peer_on_another_host_is_told_by_another_process() {
    let Some(hosts) = Hosts::new("killed") else { return };
    let mut heir = Child::start(hosts.at(1), "serve 10.9.8.2:0");
    heir.line();
    let mut server = Child::start(hosts.at(0), "serve 10.9.8.1:0");
    let port = server.line().split_once(' ').unwrap().1.to_owned();
    let mut next = None;
    for _ in 0..2 {
        let mut client = Child::start(hosts.at(1), &format!("connect 10.9.8.1:{port} 50 20 leave"));
        assert_eq!(client.words()[..2], ["established", "50"]);
        client.kill();
        next.get_or_insert_with(|| Child::start(hosts.at(1), "serve 10.9.8.2:0"));
    }
    server.say("end");
    assert_eq!(server.line(), "served 100 parted 100");
}

/// Goal: a lost message costs a retry and no connection.
#[test]
fn hosts_connect_over_a_network_that_loses_packets() {
    let Some(hosts) = Hosts::new("lossy") else { return };
    if !hosts.0.iter().all(|name| lose(name)) {
        println!("skipped: no iptables to lose packets with");
        return;
    }
    assert_eq!(meet(&hosts, "10.9.8.1:0", "200 50")[..2], ["established", "200"]);
}

/// From now on 5 % of what comes to a host is lost.
fn lose(name: &str) -> bool {
    ip(&format!(
        "netns exec {name} iptables -A INPUT -p udp --dport 4791 -m statistic --mode random \
         --probability 0.05 -j DROP"
    ))
}

/// Goal: ten thousand connections are there at once. Says how many were made in a second.
#[test]
fn ten_thousand_connections_at_once() {
    let Some(hosts) = Hosts::new("many") else { return };
    let words = meet(&hosts, "10.9.8.1:0", "10000 200");
    assert_eq!(words[..2], ["established", "10000"]);
    println!("{} connections in {} ms: {} a second", words[1], words[2], words[3]);
}
