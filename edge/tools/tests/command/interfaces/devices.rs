//! RDMA devices of two users that have frames of the daemon's: what becomes of them when it is killed.

#![expect(clippy::indexing_slicing, reason = "a test may panic")]

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::running::by_kernel;
use super::{FAR, MEMBER, Running, STRANGER, daemon, described, run, soon, with_cable};
use crate::borders::signal;
use crate::{Server, command, finish, stderr, stdout};

/// The daemon's user and another, each with the interface that it uses, and what it talks to there: a device has the frames
/// of an interface for one user's address.
const USERS: [(u32, &str, &str); 2] = [(0, "near", "10.96.0.2"), (MEMBER, "second", "10.97.0.2")];

/// A client of a server at the far end. A message takes four packets, so that a thousand rounds are not over when the first
/// few hundred packets have been seen.
fn client(user: u32, server: &str, port: &str, rounds: u32) -> Child {
    let words = ["pingpong", server, "-p", port, "-s", "4000", "-n", &rounds.to_string()];
    let mut client = command(&words);
    client.uid(user).gid(user).env("ADVERB_LOG", "info");
    client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a client")
}

/// Waits until it has seen every byte, and returns its log.
fn finished(client: Child) -> String {
    let output = finish(client);
    let (said, log) = (stdout(&output), stderr(&output));
    assert!(output.status.success() && said.contains("every byte right"), "{said}\n{log}");
    log
}

/// Packets that have left by an interface.
fn sent(interface: &str) -> u64 {
    let table = fs::read_to_string("/proc/self/net/dev").expect("a table");
    let lines = table.lines().filter_map(|line| line.trim_start().split_once(':'));
    let line = lines.filter(|(name, _)| *name == interface).map(|(_, fields)| fields).next();
    let field = line.expect("an interface").split_whitespace().nth(9);
    field.expect("a column").parse().expect("a number")
}

fn datagrams() -> u64 {
    by_kernel("Udp", "InDatagrams")
}

/// How many of two clients' packets the kernel gives to sockets at this end.
fn exchange(servers: &[Server; 2]) -> u64 {
    let before = datagrams();
    for ((user, _, address), server) in USERS.into_iter().zip(servers) {
        finished(client(user, address, &server.port, 100));
    }
    datagrams() - before
}

/// While neighbours are not known, some.
const FEW: u64 = 100;

/// Goal: a daemon that is killed costs devices of its own user and of another no message, nor does it leave a program behind;
/// the next one serves those that come then. Where it does not serve, the log says why. It takes no room in `/dev/shm`.
#[test]
fn devices_outlive_the_daemon() {
    with_cable("interfaces::devices::devices_outlive_the_daemon", |far| {
        let id = far.child.id();
        run(&format!("ip link add second type veth peer name last netns {id}"));
        run("ip address add 10.97.0.1/24 dev second");
        run("ip link set second up");
        run(&format!("nsenter -n -t {id} ip address add 10.97.0.2/24 dev last"));
        run(&format!("nsenter -n -t {id} ip link set last up"));
        soon("the cable", || run("ip link show second").contains("state UP"));
        let servers = USERS.map(|(_, _, address)| {
            let mut server = Command::new("nsenter");
            server.args(["-n", "-t", &id.to_string(), "--", env!("CARGO_BIN_EXE_adverb")]);
            server.args(["pingpong", "--server", "--bind", address, "--port", "0"]);
            Server::start_by(server)
        });
        for shm in ["as it is", "small", "full"] {
            if shm != "as it is" {
                run("mount -t tmpfs -o size=64m,mode=1777 none /dev/shm");
            }
            if shm == "full" {
                run("fallocate -l 64M /dev/shm/all");
            }
            outlive(&servers, shm);
        }
    });
}

/// Goal: a device whose daemon is killed has frames again by the next one, and costs its connection no message.
#[test]
fn a_device_has_frames_by_the_next_daemon() {
    with_cable("interfaces::devices::a_device_has_frames_by_the_next_daemon", |far| {
        let mut server = Command::new("nsenter");
        let id = far.child.id().to_string();
        server.args(["-n", "-t", &id, "--", env!("CARGO_BIN_EXE_adverb")]);
        server.args(["pingpong", "--server", "--bind", FAR, "--port", "0"]);
        let server = Server::start_by(server);
        let start = || {
            let (mut command, places) = daemon("again", "near");
            let running = Running::begin(command.stderr(Stdio::null()));
            soon("the daemon", || described(&places).is_some());
            (places, running)
        };
        let (_places, mut running) = start();
        // The kernel's share of a thousand packets that the client sends.
        let share = || {
            let (before, began) = (datagrams(), sent("near"));
            soon("traffic", || sent("near") > began + 1000);
            datagrams() - before
        };
        let mut client = client(0, FAR, &server.port, 10_000_000);
        soon("there are frames", || share() < FEW);
        running.child.kill().expect("a process");
        soon("the sockets have all", || share() > 500);
        let (_places, _running) = start();
        soon("there are frames again", || share() < FEW);
        assert!(client.try_wait().expect("a process").is_none(), "it goes on");
        client.kill().expect("a process");
        client.wait().expect("a process");
    });
}

fn outlive(servers: &[Server; 2], shm: &str) {
    let start = || {
        let (mut command, places) = daemon("devices", "near,second");
        command.args(["--members", &MEMBER.to_string()]).stderr(Stdio::null());
        let running = Running::begin(&mut command);
        soon("the daemon", || described(&places).is_some());
        // The kernel may keep a queue of a daemon that was killed for a moment.
        soon("frames by the daemon", || exchange(servers) < FEW);
        (places, running)
    };
    let (_places, mut running) = start();
    let before = datagrams();
    // Each is stopped in the midst of its messages: none ends before the daemon, however long the others take.
    let clients = USERS.into_iter().zip(servers).map(|((user, interface, address), server)| {
        let began = sent(interface);
        let client = client(user, address, &server.port, 1000);
        soon("traffic", || sent(interface) > began + 500);
        signal("STOP", client.id());
        client
    });
    let mut clients: Vec<_> = clients.collect();
    let found = datagrams() - before;
    assert!(found < FEW, "/dev/shm {shm}: {found} are not frames");
    running.child.kill().expect("a process");
    for client in &mut clients {
        assert!(client.try_wait().expect("a process").is_none(), "it has ended before");
        signal("CONT", client.id());
    }
    let has_program = |(_, interface, _)| run(&format!("ip link show {interface}")).contains("xdp");
    soon("the programs leave", || !USERS.into_iter().any(has_program));
    clients.into_iter().map(finished).for_each(drop);
    let found = datagrams() - before;
    assert!(found > 1000, "/dev/shm {shm}: {found} by the kernel");
    let (places, _running) = start();
    let what = described(&places).expect("it is owned");
    assert_eq!(what["mode"], "native", "{what}");
    soon("they are forgotten", || {
        described(&places).is_some_and(|what| what["users"].as_array().is_some_and(Vec::is_empty))
    });
    let [(_, _, address), _] = USERS;
    let [server, _] = servers;
    let log = finished(client(STRANGER, address, &server.port, 10));
    assert!(log.contains("no frames: near: its owner does not admit this process"), "{log}");
}
