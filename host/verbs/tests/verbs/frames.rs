//! Frames of an interface that another process owns: by `ADVERB_PATH=xdp`, and by `auto` where there is an owner.
//!
//! Needs root, `ip` and AF_XDP; says so and does nothing where they are missing.

use crate::agent::{Agent, Remote};
use crate::alone::program;
use crate::faults;
use crate::namespaces::{Hosts, one_way, run};
use crate::pair::{Setup, eventually};
use crate::speaker::{self, Kind, MARK};
use crate::talker::{Talker, reply, signal};
use adverb_sys::unix::{Credentials, Listener};
use adverb_verbs::{AhAttr, Context, PathMtu};
use adverb_xdp::assembler::{If, Reg, Width};
use adverb_xdp::interface::QUEUE_PATIENCE;
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
    let index = index_of("eth0");
    let interface = Interface::open(index, &Config::default()).expect("the interface");
    let mut owner = Owner::new(interface, &name_of(index), u32::MAX).expect("an owner");
    // Queues of an owner before this one are busy for a moment, in which `auto` begins with the sockets.
    std::thread::sleep(QUEUE_PATIENCE);
    reply("owns");
    let only = std::env::var("ADVERB_TEST_ADMITS").ok().map(|user| user.parse().expect("a user"));
    loop {
        let admits = |peer: Credentials| only.is_none_or(|user: u32| peer.uid == user);
        owner.step(Some(Duration::from_millis(100)), admits).expect("it goes on");
    }
}

fn index_of(interface: &str) -> u32 {
    let all = adverb_sys::netdev::interfaces().expect("interfaces");
    all.iter().find(|one| one.name == interface).expect("it was made").index
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

/// Not a test: loses frames at the ports of a bridge, if the environment says how.
#[test]
#[ignore = "the child of another test"]
fn loser() {
    let Ok(how) = std::env::var(LOSS) else { return };
    let number = |word: &str| word.parse::<u16>().expect("a number");
    let lose = |port: &str| {
        let index = index_of(port);
        match *how.split(' ').collect::<Vec<_>>() {
            ["percent", percent] => faults::lose(index, number(percent).into()),
            ["marked", at] => {
                let at = i16::try_from(number(at)).expect("in a frame");
                faults::lose_by(index, |asm, pass| {
                    let (all, start, end, byte) = (Reg(1), Reg(2), Reg(3), Reg(4));
                    asm.load(Width::Word, start, all, 0);
                    asm.load(Width::Word, end, all, 4);
                    asm.set(byte, start);
                    asm.add(byte, i32::from(at) + LONG);
                    asm.jump(If::Greater, byte, end, pass);
                    asm.load(Width::Byte, byte, start, at);
                    asm.jump(If::Unequal, byte, i32::from(MARK), pass);
                })
            }
            _ => panic!("{how}"),
        }
    };
    let _losses = ["outer", "inner"].map(lose);
    reply("loses");
    let _ = std::io::stdin().lines().count();
}

/// How frames are lost.
const LOSS: &str = "ADVERB_TEST_LOSS";
/// Frames that may be marked have at least so many bytes behind the mark; no others on the cable have.
const LONG: i32 = 256;

/// Loses frames between two hosts with a bridge, in both directions.
fn lose(hosts: &Hosts, how: &str) -> Talker {
    let mut command = hosts.command(1);
    command.arg(program()).env(LOSS, how);
    let mut loser = Talker::start(command, "frames::loser", "ADVERB_TEST_LOSER");
    assert_eq!(loser.answer(), "loses");
    loser
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

/// Goal: frames of a device go by the router that a rule has for the address that they come from.
#[test]
fn a_rule_for_the_source_is_followed() {
    let Some(hosts) = hosts("rule") else {
        return;
    };
    let [here, there] = &hosts.names;
    for words in [
        format!("ip netns exec {there} sysctl -qw net.ipv4.conf.all.arp_ignore=1"),
        format!("ip netns exec {there} sysctl -qw net.ipv4.conf.all.rp_filter=0"),
        format!("ip -n {there} link add link eth0 name other type macvlan mode bridge"),
        format!("ip netns exec {there} sysctl -qw net.ipv4.conf.other.rp_filter=0"),
        format!("ip -n {there} addr add 10.9.8.3/32 dev other"),
        format!("ip -n {there} link set other up"),
        format!("ip -n {here} route add 10.9.8.2/32 via 10.9.8.3 dev eth0 table 100"),
        format!("ip -n {here} rule add from 10.9.8.1 lookup 100"),
    ] {
        run(&words).expect("another router");
    }
    let _owner = own(&hosts, 0);
    let [mut a, mut b] =
        [(0, "xdp"), (1, "udp")].map(|(end, path)| hosts.agent(end, "root", path, 1));
    // The far end has all packets by its socket, four of each, and the near one no acknowledgement.
    let found = datagrams(&hosts, &mut a, &mut b, 1);
    assert!(found < 800 + FEW, "{found}");
    let text = run(&format!("ip netns exec {there} cat /proc/net/dev")).expect("a table");
    let line = text.lines().find(|line| line.trim().starts_with("other:")).expect("a line");
    let got = line.split_whitespace().nth(2).map(|count| count.parse::<u64>().expect("a number"));
    assert!(got >= Some(MANY), "{got:?} by the other router");
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

/// Goal: a device that finds all queues another user's has frames once they are free, and sends by the kernel meanwhile.
#[test]
fn a_device_has_frames_once_a_queue_is_free() {
    let Some(hosts) = hosts("free") else {
        return;
    };
    let _owners = [own(&hosts, 0), own(&hosts, 1)];
    let agent = |end, user, gid_index| hosts.agent(end, user, "auto", gid_index);
    let [mut first, mut far] = [agent(0, "0", 0), agent(1, UNPRIVILEGED, 0)];
    assert!(datagrams(&hosts, &mut first, &mut far, 0) < FEW);
    let [mut second, mut other] = [agent(0, UNPRIVILEGED, 1), agent(1, UNPRIVILEGED, 1)];
    let (x, y) = Agent::introduce(&mut second, &mut other, &setup(1));
    one_way(&mut second, &mut other, x, y);
    assert!(is_member(&first) && !is_member(&second));
    drop(first);
    eventually("there are frames", || datagrams(&hosts, &mut second, &mut other, 1) < FEW);
    one_way(&mut other, &mut second, y, x);
}

/// Goal: frames that are lost are sent again: all of every operation arrives, once.
#[test]
fn reliable_connections_bring_everything_though_frames_are_lost() {
    let Some(hosts) = hosts("loss") else {
        return;
    };
    hosts.put_bridge_between();
    let _owners = [own(&hosts, 0), own(&hosts, 1)];
    let _loser = lose(&hosts, "percent 1");
    for (path, gid_index) in [("xdp", 0), ("xdp", 1), ("auto", 1)] {
        let [mut a, mut b] = hosts.agents_over([path; 2], gid_index);
        let (x, y) = Agent::introduce(&mut a, &mut b, &setup(gid_index));
        one_way(&mut a, &mut b, x, y); // Its long bursts are the sockets'.
        one_way(&mut b, &mut a, y, x);
        let before = hosts.datagrams();
        short_messages(&mut a, &mut b, x, y);
        short_messages(&mut b, &mut a, y, x);
        let found = hosts.datagrams() - before;
        assert!(found < FEW, "{path}, {gid_index}: {found}");
        let count = |a: &mut Agent, b: &mut Agent, name| a.counter(name) + b.counter(name);
        let [sent, received, wrong] =
            ["sent_pkts", "rcvd_pkts", "icrc_errors"].map(|name| count(&mut a, &mut b, name));
        assert!(sent > received && wrong == 0, "{sent} sent, {received} received, {wrong} wrong");
    }
}

/// WRITE, READ, SEND of some packets each, and an atomic, many times.
fn short_messages(from: &mut Agent, to: &mut Agent, here: Remote, there: Remote) {
    const LEN: usize = 4000;
    const ROUNDS: u64 = 100;
    const SUM_AT: u64 = 15 << 20;
    let far = to.memory();
    let (qp, addr, rkey) = (here.index, far.addr, far.rkey.0);
    let before = to.ask(&format!("value {SUM_AT}")).parse::<u64>().expect("a number");
    for seed in 0..ROUNDS {
        from.fill(0, LEN, seed);
        assert_eq!(from.ask(&format!("write {qp} 0 {LEN} {addr} {rkey}")), "Success");
        assert!(to.has(0, LEN, seed), "WRITE {seed}");
        to.fill(0, LEN, seed + ROUNDS);
        assert_eq!(from.ask(&format!("read {qp} 0 {LEN} {addr} {rkey}")), "Success");
        assert!(from.has(0, LEN, seed + ROUNDS), "READ {seed}");
        assert_eq!(to.ask(&format!("recv {} {LEN} {LEN}", there.index)), "posted");
        assert_eq!(from.ask(&format!("send {qp} 0 {LEN}")), "Success");
        assert_eq!(to.ask("wait"), format!("Success Receive {LEN}"));
        assert!(to.has(LEN, LEN, seed + ROUNDS), "SEND {seed}");
        assert_eq!(from.ask(&format!("add {qp} {} {rkey} 5", addr + SUM_AT)), "Success");
    }
    let sum = to.ask(&format!("value {SUM_AT}"));
    assert_eq!(sum, (before + 5 * ROUNDS).to_string(), "each is added once");
}

/// Goal: unreliable transports lose what the network loses and nothing else, also where packets are frames. Those to groups are
/// the kernel's. Method: a bridge loses packets by a byte of theirs.
#[test]
fn unreliable_transports_lose_what_the_network_loses() {
    let Some(hosts) = hosts("unreliable") else {
        return;
    };
    hosts.put_bridge_between();
    let _owners = [own(&hosts, 0), own(&hosts, 1)];
    for (gid_index, ip_bytes, group) in [(1, 20, "239.7.7.1"), (0, 40, "ff02::71")] {
        for (kind, group) in [(Kind::Uc, None), (Kind::Ud, None), (Kind::Ud, Some(group))] {
            let _loser = lose(&hosts, &format!("marked {}", 14 + ip_bytes + 8 + kind.payload_at()));
            let [mut a, mut b] =
                [0, 1].map(|end| speaker::start(&hosts, end, kind, "xdp", gid_index));
            a.ask(&format!("to {}", b.address));
            b.ask(&format!("to {}", a.address));
            for _ in 0..2 {
                if let Some(group) = group {
                    a.ask(&format!("to {group}/0xffffff/0x0"));
                    b.ask(&format!("join {group}"));
                }
                // The kernel has the first ones, which find the way.
                let mut run = |count: usize| {
                    b.ask(&format!("expect {count}"));
                    let before = hosts.datagrams();
                    a.ask(&format!("send {count}"));
                    let came = b.ask(&format!("came {}", count - 1));
                    assert_eq!(came, kind.whole(count), "{kind:?} {group:?} {gid_index}");
                    hosts.datagrams() - before
                };
                run(7);
                let found = run(210);
                let is_right = if group.is_some() { found > FEW } else { found < FEW };
                assert!(is_right, "{kind:?} {group:?} {gid_index}: {found}");
                std::mem::swap(&mut a, &mut b);
            }
        }
    }
}

/// Goal: where processes share an address, `auto` leaves its packets to the kernel, which knows whose they are; also where some
/// are lost on their way.
#[test]
fn processes_that_share_an_address_pass_on_no_frames() {
    for how in [None, Some("percent 1")] {
        let Some(hosts) = hosts("share") else {
            return;
        };
        let _loser = how.map(|how| {
            hosts.put_bridge_between();
            lose(&hosts, how)
        });
        pass_on_no_frames(&hosts);
    }
}

fn pass_on_no_frames(hosts: &Hosts) {
    let _owners = [own(hosts, 0), own(hosts, 1)];
    let agent = |end| hosts.agent(end, UNPRIVILEGED, "auto", 1);
    let [mut one, mut far] = [agent(0), agent(1)];
    assert!(datagrams(hosts, &mut one, &mut far, 1) < FEW);
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
    let found = datagrams(hosts, &mut one, &mut far, 1);
    assert!(found >= 200, "the first one has its answers from the kernel, too: {found}");
    // Its place at the owner is another's.
    assert!(is_member(&far) && !is_member(&two));
    eventually("it is no member", || !is_member(&one));
    one_way(&mut two, &mut far, x, y);
    datagrams(hosts, &mut one, &mut far, 1);
}

/// Whether a process has what members have.
fn is_member(agent: &Agent) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", agent.pid())).expect("it lives");
    maps.contains("adverb-xdp-frames")
}

/// Goal: an owner that is stopped changes nothing, and one that is killed costs no message, though its end comes in the midst
/// of them: each arrives once, in order. The next owner gets the queues, while the devices live.
#[test]
fn messages_outlive_the_owners() {
    let Some(hosts) = hosts("outlive") else {
        return;
    };
    for path in ["xdp", "auto"] {
        let mut owners = vec![own(&hosts, 0), own(&hosts, 1)];
        let [mut a, mut b] = [0, 1].map(|end| hosts.agent(end, UNPRIVILEGED, path, 1));
        let (here, there) = Agent::introduce(&mut a, &mut b, &setup(1));
        let sender = a.pid();
        let mut messages = |hosts: &Hosts, count: u64, meanwhile: &mut dyn FnMut()| {
            let before = hosts.datagrams();
            b.tell(&format!("follow {} {count}", there.index));
            a.tell(&format!("number {} {count}", here.index));
            meanwhile();
            assert_eq!((a.answer(), b.answer()), ("Success".into(), "in order".into()));
            hosts.datagrams() - before
        };
        assert!(messages(&hosts, MESSAGES, &mut || ()) < FEW);
        let mut stop = || owners.iter().for_each(|one| one.signal("-STOP"));
        let stopped = messages(&hosts, MESSAGES, &mut stop);
        assert!(stopped < FEW, "{stopped}");
        owners.iter().for_each(|one| one.signal("-CONT"));
        let (before, sent, many) = (hosts.datagrams(), hosts.frames(), 4 * MESSAGES);
        let killed = messages(&hosts, many, &mut || {
            eventually("messages are under way", || hosts.frames() > sent + 2 * FEW);
            // It does not come to an end while it is looked at.
            signal(sender, "-STOP");
            let found = hosts.datagrams() - before;
            assert!(found < FEW, "{found} are not frames");
            signal(sender, "-CONT");
            owners.drain(..).for_each(Talker::kill);
        });
        let after = messages(&hosts, MESSAGES, &mut || ());
        // 0 where so much else runs that the messages were over before the kill.
        println!("{path}: {killed} datagrams with a kill among {many} messages");
        assert!(after > 2 * MESSAGES - FEW, "{after}");
        let _owners = [own(&hosts, 0), own(&hosts, 1)];
        let [mut c, mut d] = [0, 1].map(|end| hosts.agent(end, UNPRIVILEGED, "xdp", 0));
        let found = datagrams(&hosts, &mut c, &mut d, 0);
        assert!(found < FEW, "{found}");
    }
}

const MESSAGES: u64 = 5000;

/// Goal: a device whose owner has ended has frames again once there is another one, also for what it was connected to before;
/// meanwhile it goes on by its sockets, and each message arrives once, in order.
#[test]
fn a_device_has_frames_by_the_next_owner() {
    let Some(hosts) = hosts("again") else {
        return;
    };
    for path in ["xdp", "auto"] {
        let mut owners = Some([own(&hosts, 0), own(&hosts, 1)]);
        let [mut a, mut b] = [0, 1].map(|end| hosts.agent(end, UNPRIVILEGED, path, 1));
        let (here, there) = Agent::introduce(&mut a, &mut b, &setup(1));
        let mut messages = || {
            let before = hosts.datagrams();
            b.tell(&format!("follow {} {MESSAGES}", there.index));
            a.tell(&format!("number {} {MESSAGES}", here.index));
            assert_eq!((a.answer(), b.answer()), ("Success".into(), "in order".into()));
            hosts.datagrams() - before
        };
        assert!(messages() < FEW, "{path}");
        for _ in 0..2 {
            owners.take().into_iter().flatten().for_each(Talker::kill);
            eventually("the sockets have all", || messages() > MESSAGES);
            owners = Some([own(&hosts, 0), own(&hosts, 1)]);
            eventually("there are frames again", || messages() < FEW);
        }
    }
}

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

/// Goal: an owner that does not answer keeps a process waiting once, and a device that only is open not at all: nor does it take
/// a place at an owner that would.
#[test]
fn a_silent_owner_is_asked_once_and_not_before_an_address_is_used() {
    let Some(hosts) = Hosts::new("silent", 1500) else {
        return;
    };
    let mut command = hosts.command(0);
    command.arg(program()).env("ADVERB_PATH", "auto");
    let mut asker = Talker::start(command, "frames::asker", "ADVERB_TEST_ASKER");
    assert_eq!(asker.answer(), "0, 1, 1");
}

/// Not a test: has the name of the owner of `eth0`, and says how often its own device has asked there once it is open, has used
/// one address, and another.
#[test]
#[ignore = "the child of another test"]
fn asker() {
    if std::env::var_os("ADVERB_TEST_ASKER").is_none() {
        return;
    }
    let index = index_of("eth0");
    let owner = Listener::bind(&name_of(index)).expect("a name");
    let mut asked = Vec::new();
    let mut count = || {
        asked.extend(std::iter::from_fn(|| owner.accept().ok()));
        asked.len()
    };
    let context = Context::open("soft_eth0").expect("the device");
    let pd = context.alloc_pd();
    let opened = count();
    let used = [(1, "10.9.8.2"), (0, "fe80::2")].map(|(gid_index, peer)| {
        let peer = AhAttr::new(peer.parse().expect("an address")).gid_index(gid_index);
        let _way = pd.create_ah(&peer).expect("a way");
        count()
    });
    let [one, both] = used;
    reply(&format!("{opened}, {one}, {both}"));
}
