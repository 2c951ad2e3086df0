//! Frames of an interface that another process owns: by `ADVERB_PATH=xdp`, and by `auto` where there is an owner.
//!
//! Needs root, `ip` and AF_XDP; says so and does nothing where they are missing.

use crate::agent::Agent;
use crate::alone::program;
use crate::namespaces::{Hosts, one_way, run};
use crate::pair::{Setup, eventually};
use crate::talker::{Talker, reply};
use adverb_sys::unix::Credentials;
use adverb_verbs::{Context, PathMtu};
use adverb_xdp::owner::name_of;
use adverb_xdp::{Config, Interface, Owner};
use std::time::Duration;

/// Set in the environment of the process that owns `eth0`.
const VARIABLE: &str = "ADVERB_TEST_OWNER";
const UNPRIVILEGED: &str = "65534";

/// Not a test: the owner of `eth0`, if the environment says that this is it.
#[test]
#[ignore = "the child of another test"]
fn owner() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let all = adverb_sys::netdev::interfaces().expect("interfaces");
    let index = all.iter().find(|one| one.name == "eth0").expect("it was made").index;
    let interface = Interface::open(index, &Config::default()).expect("the interface");
    let mut owner = Owner::new(interface, &name_of(index), u32::MAX).expect("an owner");
    reply("owns");
    let only = std::env::var("ADVERB_TEST_ADMITS").ok().map(|user| user.parse().expect("a user"));
    loop {
        let admits = |peer: Credentials| only.is_none_or(|user: u32| peer.uid == user);
        owner.step(Some(Duration::from_millis(100)), admits).expect("it goes on");
    }
}

/// Two hosts at which frames can be had, or why not.
pub(crate) fn hosts(tag: &str) -> Option<Hosts> {
    let kind = adverb_sys::bpf::MapKind::XdpSockets;
    if let Err(error) = adverb_sys::bpf::Map::create(kind, 4, 4, 1) {
        println!("skipped: no AF_XDP to be had: {error}");
        return None;
    }
    Hosts::new(tag, 1500)
}

/// Starts the owner of the interface at one end.
fn own(hosts: &Hosts, end: usize) -> Talker {
    let mut command = hosts.command(end);
    command.arg(program());
    let mut owner = Talker::start(command, "frames::owner", VARIABLE);
    assert_eq!(owner.answer(), "owns");
    owner
}

fn setup(gid_index: u8) -> Setup {
    Setup { gid_index, path_mtu: PathMtu::B1024, ..Setup::default() }
}

/// What the kernel gives to sockets while a writes to b many times: four packets and an acknowledgement each.
fn datagrams(hosts: &Hosts, a: &mut Agent, b: &mut Agent, gid_index: u8) -> u64 {
    let (here, _) = Agent::introduce(a, b, &setup(gid_index));
    let far = b.memory();
    let write = format!("write {} 0 4000 {} {}", here.index, far.addr, far.rkey.0);
    let before = hosts.datagrams();
    for _ in 0..200 {
        assert_eq!(a.ask(&write), "Success");
    }
    hosts.datagrams() - before
}

/// A few go by the sockets, while neighbours are not known.
const FEW: u64 = 100;
const MANY: u64 = 399;

/// Goal: with an owner at both ends, processes of a user without rights send and receive frames, asked for or not; without
/// one, `auto` uses sockets.
#[test]
fn an_owner_gives_frames_to_devices_without_rights() {
    let Some(hosts) = hosts("offer") else {
        return;
    };
    for (owned, path) in
        [(false, "auto"), (true, "auto"), (true, "ring"), (true, "xdp"), (true, "udp")]
    {
        let _owners = owned.then(|| [own(&hosts, 0), own(&hosts, 1)]);
        for gid_index in [0, 1] {
            let [mut a, mut b] = [0, 1].map(|end| hosts.agent(end, UNPRIVILEGED, path, gid_index));
            let (x, y) = Agent::introduce(&mut a, &mut b, &setup(gid_index));
            one_way(&mut a, &mut b, x, y);
            one_way(&mut b, &mut a, y, x);
            let found = datagrams(&hosts, &mut a, &mut b, gid_index);
            let is_right = if owned && path != "udp" { found < FEW } else { found > MANY };
            assert!(is_right, "{path}, owned: {owned}, {gid_index}: {found}");
            for agent in [&mut a, &mut b] {
                assert_eq!((agent.counter("icrc_errors"), agent.counter("malformed")), (0, 0));
            }
        }
    }
}

/// Goal: devices with addresses of their own have frames of one interface at the same time. One that asks for those of an
/// address that another has is told so.
#[test]
fn two_processes_have_frames_of_one_interface() {
    let Some(hosts) = hosts("two") else {
        return;
    };
    let _owners = [own(&hosts, 0), own(&hosts, 1)];
    let [near, _] = &hosts.names;
    run(&format!("ip -n {near} addr add 10.9.8.11/24 dev eth0")).expect("an address");
    let agent = |end, gid_index| hosts.agent(end, UNPRIVILEGED, "xdp", gid_index);
    let [mut one, mut two, mut far] = [agent(0, 1), agent(0, 2), agent(1, 1)];
    let (x, y) = Agent::introduce(&mut one, &mut far, &setup(1));
    let (u, v) = Agent::introduce(&mut two, &mut far, &setup(1));
    for _ in 0..2 {
        one_way(&mut one, &mut far, x, y);
        one_way(&mut far, &mut two, v, u);
    }
    for near in [&mut one, &mut two] {
        let found = datagrams(&hosts, near, &mut far, 1);
        assert!(found < FEW, "{found}");
        assert_eq!(near.counter("relayed"), 0);
    }
    let mut third = agent(0, 1);
    let (own, peer) = (third.qp(), far.qp());
    let refused = third.refused(&own, peer.qp, &setup(1));
    assert!(refused.contains("10.9.8.1: another process has them"), "{refused}");
}

/// Goal: where processes share an address, `auto` leaves its packets to the kernel, which knows whose they are.
#[test]
fn processes_that_share_an_address_pass_on_no_frames() {
    let Some(hosts) = hosts("share") else {
        return;
    };
    let _owners = [own(&hosts, 0), own(&hosts, 1)];
    let agent = |end| hosts.agent(end, UNPRIVILEGED, "auto", 1);
    let [mut one, mut far] = [agent(0), agent(1)];
    assert!(datagrams(&hosts, &mut one, &mut far, 1) < FEW);
    let mut two = agent(0);
    let (x, y) = Agent::introduce(&mut two, &mut far, &setup(1));
    let memory = far.memory();
    let write = format!("write {} 0 4000 {} {}", x.index, memory.addr, memory.rkey.0);
    eventually("frames are passed on", || {
        let before = two.counter("relayed");
        (0..50).for_each(|_| assert_eq!(two.ask(&write), "Success"));
        two.counter("relayed") == before
    });
    one_way(&mut two, &mut far, x, y);
    let found = datagrams(&hosts, &mut one, &mut far, 1);
    assert!(found >= 200, "the first one has its answers from the kernel, too: {found}");
}

/// Goal: an owner that is stopped changes nothing, and one that is killed costs no message, though its end comes in the midst
/// of them: each arrives once, in order. The next owner gets the queues, while the devices live.
#[test]
fn messages_outlive_the_owners() {
    let Some(hosts) = hosts("outlive") else {
        return;
    };
    let [near, _] = &hosts.names;
    for path in ["xdp", "auto"] {
        let mut owners = vec![own(&hosts, 0), own(&hosts, 1)];
        let [mut a, mut b] = [0, 1].map(|end| hosts.agent(end, UNPRIVILEGED, path, 1));
        let (here, there) = Agent::introduce(&mut a, &mut b, &setup(1));
        let mut messages = |hosts: &Hosts, meanwhile: &mut dyn FnMut()| {
            let before = hosts.datagrams();
            b.tell(&format!("follow {} {MESSAGES}", there.index));
            a.tell(&format!("number {} {MESSAGES}", here.index));
            meanwhile();
            assert_eq!((a.answer(), b.answer()), ("Success".into(), "in order".into()));
            hosts.datagrams() - before
        };
        assert!(messages(&hosts, &mut || ()) < FEW);
        let stopped = messages(&hosts, &mut || owners.iter().for_each(|one| one.signal("-STOP")));
        assert!(stopped < FEW, "{stopped}");
        owners.iter().for_each(|one| one.signal("-CONT"));
        let killed = messages(&hosts, &mut || {
            let sent = || run(&format!("ip netns exec {near} cat {SENT}")).expect("a number");
            let sent = || sent().trim().parse::<u64>().expect("a number");
            let first = sent();
            eventually("messages are on their way", || sent() > first + 2 * FEW);
            owners.drain(..).for_each(Talker::kill);
        });
        let after = messages(&hosts, &mut || ());
        println!(
            "{path}: {killed} datagrams with a kill among {MESSAGES} messages, {after} after it"
        );
        assert!(killed > FEW && killed + FEW < after, "not in the midst of them");
        assert!(after > 2 * MESSAGES - FEW, "{after}");
        let _owners = [own(&hosts, 0), own(&hosts, 1)];
        let [mut c, mut d] = [0, 1].map(|end| hosts.agent(end, UNPRIVILEGED, "xdp", 0));
        let found = datagrams(&hosts, &mut c, &mut d, 0);
        assert!(found < FEW, "{found}");
    }
}

const MESSAGES: u64 = 5000;
const SENT: &str = "/sys/class/net/eth0/statistics/tx_packets";

/// Goal: a device that is killed leaves nothing behind, whether it has the interface itself or is a member: the next one has
/// frames at the same address.
#[test]
fn a_killed_device_leaves_the_interface_to_the_next() {
    let Some(hosts) = hosts("next") else {
        return;
    };
    for owned in [false, true] {
        let _owners = owned.then(|| [own(&hosts, 0), own(&hosts, 1)]);
        for _ in 0..3 {
            let [mut a, mut b] = hosts.agents_over(["xdp"; 2], 1);
            let found = datagrams(&hosts, &mut a, &mut b, 1);
            assert!(found < FEW, "owned: {owned}: {found}");
            let (here, there) = Agent::introduce(&mut a, &mut b, &setup(1));
            b.tell(&format!("follow {} {MESSAGES}", there.index));
            a.tell(&format!("number {} {MESSAGES}", here.index));
            a.kill();
            b.kill();
        }
    }
    let programs = hosts.names.each_ref().map(|name| run(&format!("ip -n {name} link show eth0")));
    let is_free = |text: &Result<String, String>| matches!(text, Ok(text) if !text.contains("xdp"));
    assert!(programs.iter().all(is_free), "{programs:?}");
}

/// Goal: an owner's refusal is named where frames were asked for, and `auto` does without them.
#[test]
fn a_refusal_is_named() {
    let Some(hosts) = hosts("refusal") else {
        return;
    };
    let mut command = hosts.command(0);
    command.arg(program()).env("ADVERB_TEST_ADMITS", "0");
    let mut owner = Talker::start(command, "frames::owner", VARIABLE);
    assert_eq!(owner.answer(), "owns");
    let open = |path: &str| {
        let mut command = hosts.command(0);
        command.args(["setpriv", &format!("--reuid={UNPRIVILEGED}"), "--clear-groups"]);
        command.arg(program()).env("ADVERB_PATH", path);
        let mut opener = Talker::start(command, "frames::opener", "ADVERB_TEST_OPENER");
        opener.answer()
    };
    assert_eq!(open("auto"), "open");
    let refused = open("xdp");
    assert!(refused.contains("eth0: its owner does not admit this process"), "{refused}");
}

/// Not a test: opens `soft_eth0` and says whether that worked.
#[test]
#[ignore = "the child of another test"]
fn opener() {
    if std::env::var_os("ADVERB_TEST_OPENER").is_some() {
        let opened = Context::open("soft_eth0")
            .map_or_else(|error| error.to_string(), |_| "open".to_owned());
        reply(&opened);
    }
}
