//! Routes, addresses and interfaces that change while programs use them.

use std::process::Command;

use super::streams::talker;
use super::{
    FAR, FAR_6, NEAR, NEAR_6, Pair, Running, at, came_by_kernel, left_by_kernel, run, soon,
    streams, with_namespaces,
};

/// An address of the far end behind the cable.
const BEHIND: &str = "10.97.0.2";

/// `ip` at the near end, or at the far one.
fn ip(pair: &Pair, is_far: bool, words: &str) {
    let mut ip = if is_far { pair.far("ip") } else { Command::new("ip") };
    run(ip.args(words.split(' ')));
}

/// The far end answers for the addresses of each of its interfaces by that interface alone, and takes what comes by any.
fn settle(pair: &Pair, devices: &[&str]) {
    run(pair.far("sysctl").args(["-qw", "net.ipv4.conf.all.arp_ignore=1"]));
    for device in [&["all"], devices].concat() {
        run(pair.far("sysctl").arg("-qw").arg(format!("net.ipv4.conf.{device}.rp_filter=0")));
    }
    ip(pair, true, "link set lo up");
    ip(pair, true, &format!("address add {BEHIND}/32 dev lo"));
}

/// Another router at the far end, by the interface `other`: its addresses.
fn add_router(pair: &Pair) -> [&'static str; 2] {
    let addresses = ["10.95.0.3", "fd95::3"];
    ip(pair, true, "link add link far name other type macvlan mode bridge");
    ip(pair, true, &format!("address add {}/32 dev other", addresses[0]));
    ip(pair, true, &format!("address add {}/128 dev other nodad", addresses[1]));
    ip(pair, true, "link set other up");
    settle(pair, &["far", "other"]);
    addresses
}

/// Packets that an interface of the far end has got.
fn got(pair: &Pair, device: &str) -> u64 {
    packets(pair, device, "RX:")
}

/// The same, or those that have left by it.
fn packets(pair: &Pair, device: &str, what: &str) -> u64 {
    let output = pair.far("ip").args(["-s", "link", "show", device]).output().expect("a program");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines().skip_while(|line| !line.trim().starts_with(what));
    let line = lines.nth(1).expect("a line");
    line.split_whitespace().nth(1).expect("a column").parse().expect("a number")
}

/// Programs with frames that have a connection and a UDP socket to those behind the router, which come last.
fn behind(pair: &Pair) -> (Running, Running, [Running; 2]) {
    let far = ["serve block", "echo block"]
        .map(|role| Running::start(&mut pair.role(true, role, at(BEHIND))));
    let talker = pair.framed("talk", at(BEHIND), None);
    (talker, pair.framed("client", at(BEHIND), Some("latency")), far)
}

/// Goal: a connection and a UDP socket go on by frames by another router once the route to their peer is by that one.
#[test]
fn a_route_by_another_router_is_followed() {
    with_namespaces("changes::a_route_by_another_router_is_followed", || {
        let pair = Pair::new();
        let [second, _] = add_router(&pair);
        ip(&pair, false, "route add 10.97.0.0/24 via 10.95.0.2");
        let _owner = pair.owner();
        let (mut talker, mut client, _far) = behind(&pair);
        let mut exchange = || {
            let before = streams::by_kernel();
            assert_eq!(talker.ask("exchange 50 64 0"), "said 50");
            assert!(streams::by_kernel() - before < 25, "{}", talker.explained());
            assert_eq!(client.ask("insist 50 64 0"), "said 50");
            assert!(client.has_frames(), "{}", client.explained());
        };
        exchange();
        assert!(got(&pair, "other") < 50);
        ip(&pair, false, &format!("route replace 10.97.0.0/24 via {second}"));
        // What is known of routes counts for a moment longer.
        soon("they go by the other one", || {
            let before = [got(&pair, "other"), got(&pair, "far")];
            exchange();
            got(&pair, "other") - before[0] > 100
        });
    });
}

/// Goal: frames of connections and of UDP sockets go by the router that a rule has for the address that they come from, and those
/// from another address of this host by theirs, also where one program sends both to one peer.
#[test]
fn a_route_for_one_source_is_followed() {
    with_namespaces("changes::a_route_for_one_source_is_followed", || {
        let pair = Pair::new();
        let routers = add_router(&pair);
        let _owner = pair.owner();
        for (router, any, peer, ends, version) in [
            (routers[0], "0.0.0.0", FAR, [NEAR, "10.95.0.17"], 4),
            (routers[1], "::", FAR_6, [NEAR_6, "fd95::17"], 6),
        ] {
            let bits = if version == 4 { "24" } else { "64 nodad" };
            for words in [
                format!("address add {} dev near", ends[1].to_owned() + "/" + bits),
                format!("-{version} route add {peer} via {router} dev near table 100"),
                format!("-{version} rule add from {} lookup 100", ends[1]),
            ] {
                ip(&pair, false, &words);
            }
            let server = pair.framed("serve block", at(any), None);
            let mut talkers = ends.map(|end| talker(&pair, end));
            // Those to each of the two addresses are the other's neighbours in the tables of routes.
            let mut by_other = |turn: usize, ask: &str| {
                let before = [got(&pair, "other"), streams::by_kernel()];
                assert_eq!(talkers[turn].ask(ask), "said 50", "{}", ends[turn]);
                assert!(streams::by_kernel() - before[1] < 25, "{}", server.explained());
                got(&pair, "other") - before[0]
            };
            ends.iter().enumerate().for_each(|(turn, _)| _ = by_other(turn, "exchange 50 64 0"));
            for turn in [0, 1, 0, 1] {
                let others = by_other(turn, "exchange 50 64 0");
                assert_eq!(others >= 50, turn == 1, "{}: {others} by the other", ends[turn]);
            }
            for (turn, end) in ends.iter().enumerate() {
                let server = pair.framed("echo spin", at(end), Some("latency"));
                let mut client = Running::start(&mut pair.role(true, "client", at(end)));
                assert_eq!(client.ask("exchange 50 64 0"), "said 50");
                let before = [got(&pair, "other"), left_by_kernel()];
                assert_eq!(client.ask("exchange 50 64 0"), "said 50", "{end}");
                assert!(left_by_kernel() - before[1] < 25, "{end}: {}", server.explained());
                let others = got(&pair, "other") - before[0];
                assert_eq!(others >= 50, turn == 1, "{end}: {others} by the other");
            }
        }
    });
}

/// Goal: a connection and a UDP socket whose packets are to leave by an interface without an owner go on by the kernel.
#[test]
fn a_route_by_another_interface_is_followed() {
    with_namespaces("changes::a_route_by_another_interface_is_followed", || {
        let pair = Pair::new();
        let far = pair.far.child.id();
        ip(&pair, false, &format!("link add near2 type veth peer name far2 netns {far}"));
        for (is_far, device, address) in
            [(false, "near2", "10.98.0.1"), (true, "far2", "10.98.0.2")]
        {
            ip(&pair, is_far, &format!("address add {address}/24 dev {device}"));
            ip(&pair, is_far, &format!("link set {device} up"));
        }
        settle(&pair, &["far", "far2"]);
        ip(&pair, false, "route add 10.97.0.0/24 via 10.95.0.2");
        let _owner = pair.owner();
        let (mut talker, mut client, _far) = behind(&pair);
        assert_eq!(talker.ask("exchange 50 64 0"), "said 50");
        assert_eq!(client.ask("exchange 50 64 0"), "said 50");
        assert!(talker.has_frames() && client.has_frames());
        ip(&pair, false, "route replace 10.97.0.0/24 via 10.98.0.2 dev near2 src 10.95.0.1");
        // The change is noticed a moment later.
        soon("it is the kernel's, and goes by the other interface", || {
            let before = [streams::by_kernel(), got(&pair, "far2")];
            assert_eq!(talker.ask("exchange 50 64 0"), "said 50");
            streams::by_kernel() - before[0] >= 50 && got(&pair, "far2") - before[1] >= 50
        });
        assert_eq!(client.ask("insist 50 64 0"), "said 50");
    });
}

/// Goal: what is sent to an address that the interface gets after a program has bound its socket to any comes as frames, too,
/// and an address that is taken from it goes back to the kernel's keeping.
#[test]
fn an_address_that_comes_later_has_frames() {
    with_namespaces("changes::an_address_that_comes_later_has_frames", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for (any, later, bits) in [("0.0.0.0", "10.95.0.9", 24), ("::", "fd95::9", 64)] {
            let server = pair.framed("echo spin", at(any), Some("latency"));
            let first = if any == "::" { NEAR_6 } else { NEAR };
            let mut client = Running::start(&mut pair.role(true, "client", at(first)));
            assert_eq!(client.ask("exchange 50 64 0"), "said 50");
            assert!(server.has_frames(), "{}", server.explained());
            let nodad = if any == "::" { " nodad" } else { "" };
            ip(&pair, false, &format!("address add {later}/{bits} dev near{nodad}"));
            let mut client = Running::start(&mut pair.role(true, "client", at(later)));
            // The server answers from its first address, as by the kernel.
            // The kernel counts what it has brought once that is read, some of it in the next round.
            let mut kernels = || loop {
                let before = [came_by_kernel(), packets(&pair, "far", "TX:")];
                for _ in 0..10 {
                    assert_eq!(client.ask("shower 100"), "said 100");
                    pair.await_all();
                }
                // Few leave before the neighbour is known.
                if packets(&pair, "far", "TX:") - before[1] > 1000 {
                    break came_by_kernel() - before[0];
                }
            };
            soon("they are frames", || kernels() < 300);
            ip(&pair, false, &format!("address del {later}/{bits} dev near"));
            ip(&pair, false, &format!("address add {later}/{bits} dev lo{nodad}"));
            // It is this host's still, and the kernel knows by what.
            soon("they are the kernel's", || kernels() >= 700);
            ip(&pair, false, &format!("address del {later}/{bits} dev lo"));
        }
        // Connections that are made to such an address, too.
        let server = pair.framed("serve block", at("0.0.0.0"), None);
        ip(&pair, false, "address add 10.95.0.10/24 dev near");
        soon("frames carry it", || {
            let mut client = talker(&pair, "10.95.0.10");
            assert_eq!(client.ask("exchange 50 64 0"), "said 50");
            server.has_frames()
        });
    });
}

/// Goal: when an interface is deleted under programs that it carries, their connections end, with its owner, and what they send by
/// datagrams the kernel refuses, as ever.
#[test]
fn an_interface_that_is_deleted_takes_its_connections_with_it() {
    with_namespaces("changes::an_interface_that_is_deleted_takes_its_connections_with_it", || {
        let pair = Pair::new();
        let mut owner = pair.owner();
        let mut server = pair.framed("serve block", at(NEAR), None);
        let mut far = talker(&pair, NEAR);
        assert_eq!(far.ask("exchange 50 64 0"), "said 50");
        let _far_server = Running::start(&mut pair.role(true, "serve block", at(FAR)));
        let _echo = Running::start(&mut pair.role(true, "echo block", at(FAR)));
        let mut near = pair.framed("talk", at(FAR), None);
        assert_eq!(near.ask("exchange 50 64 0"), "said 50");
        let mut client = pair.framed("client", at(FAR), Some("latency"));
        assert_eq!(client.ask("exchange 50 64 0"), "said 50");
        assert!([&server, &near, &client].iter().all(|one| one.has_frames()));
        ip(&pair, false, "link delete near");
        assert!(owner.child.wait().expect("it ends").success());
        assert!(server.await_line("said ").contains("reset"));
        assert_eq!(near.ask("resets"), "said 1");
        soon("the kernel refuses", || client.ask("send") == "said Err(NetworkUnreachable)");
    });
}
