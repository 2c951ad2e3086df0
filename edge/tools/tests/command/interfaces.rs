//! `adverb sockets daemon --interface`: programs of other users that have frames, and what is left when one is killed.
//!
//! A test runs again in a network namespace of its own, with a cable to another one. Needs root; says so and does
//! nothing without.

mod devices;
mod programs;
#[path = "../../../preload/tests/support/running.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod running;

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, UdpSocket};
use std::ops::ControlFlow;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use adverb_xdp::owner::name_of;
use adverb_xdp::steering::Protocol;
use adverb_xdp::{Key, Membership};
use serde_json::Value;

use running::{Running, soon};

use super::daemon::Places;
use super::stat::library;
use super::{adverb, stderr, stdout};

const NEAR: &str = "10.96.0.1";
const FAR: &str = "10.96.0.2";
const PORT: u16 = 7001;
const MEMBER: u32 = 65_534;
const STRANGER: u32 = 65_533;

/// Runs a test again in a network of its own, in which `near` is one end of a cable; what it mounts is its own, too.
fn with_cable(name: &str, test: impl FnOnce(&Running)) {
    if std::env::var_os("ADVERB_TEST_NAMESPACES").is_none() {
        let mut command = Command::new("unshare");
        command.arg("-nm").arg(myself()).args(["--exact", name, "--nocapture"]);
        let output = command.env("ADVERB_TEST_NAMESPACES", "1").output().expect("unshare");
        let text = stdout(&output);
        if !text.contains("running 1 test") || text.contains("skipped:") {
            return println!("skipped: no namespace, or no AF_XDP, to be had");
        }
        assert!(output.status.success(), "{text}\n{}", stderr(&output));
        return;
    }
    use adverb_sys::bpf::{Map, MapKind};
    if Map::create(MapKind::XdpSockets, 4, 4, 1).is_err() {
        return println!("skipped: no AF_XDP");
    }
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", "echo ready && exec cat"]);
    let far = Running::start(&mut command);
    let id = far.child.id();
    run(&format!("ip link add near type veth peer name far netns {id}"));
    run(&format!("ip address add {NEAR}/24 dev near"));
    run("ip link set near up");
    run(&format!("nsenter -n -t {id} ip address add {FAR}/24 dev far"));
    run(&format!("nsenter -n -t {id} ip link set far up"));
    soon("the cable", || run("ip link show near").contains("state UP"));
    test(&far);
}

fn myself() -> PathBuf {
    std::env::current_exe().expect("a path of this test")
}

fn run(command: &str) -> String {
    let mut words = command.split(' ');
    let output = Command::new(words.next().expect("a word")).args(words).output();
    let output = output.expect("a program");
    assert!(output.status.success(), "{command}: {}", stderr(&output));
    stdout(&output)
}

fn index() -> u32 {
    let all = adverb_sys::netdev::interfaces().expect("interfaces");
    all.iter().find(|interface| interface.name == "near").expect("the cable").index
}

/// A daemon's command, and its places.
fn daemon(name: &str, interface: &str) -> (Command, Places) {
    let places = Places::new(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.args(["sockets", "daemon", "--interface", interface]);
    command.arg("-k").arg(&places.place).arg("--state").arg(&places.state);
    command.arg("--library").arg(library::library());
    (command, places)
}

/// This binary as a member of that user.
fn member(user: u32) -> Running {
    let mut command = Command::new(myself());
    command.args(["--exact", "interfaces::a_member", "--nocapture"]).uid(user).gid(user);
    Running::begin(command.env("ADVERB_TEST_ROLE", "member"))
}

/// The entry of that process: takes the frames for a port, and says what becomes of it.
#[test]
fn a_member() {
    if std::env::var("ADVERB_TEST_ROLE").is_err() {
        return;
    }
    let (member, mut sockets) = match Membership::ask(&name_of(index())) {
        Ok(joined) => joined,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return println!("\nrefused"),
        Err(error) if error.kind() == ErrorKind::QuotaExceeded => return println!("\n{error}"),
        Err(error) => panic!("{error}"),
    };
    let twin = UdpSocket::bind((NEAR, PORT)).expect("a port");
    let local = SocketAddr::new(NEAR.parse().expect("an address"), PORT);
    let key = Key { protocol: Protocol::Udp, local, remote: None };
    member.claim(key, &twin).expect("the packets of a port of its own");
    println!("\nready");
    let mut has_told = false;
    while !member.has_ended() {
        let mut take = |bytes: &[u8]| {
            if bytes.ends_with(b"hello\n") && !has_told {
                println!("\nframe");
                has_told = true;
            }
            ControlFlow::Continue(())
        };
        sockets.iter_mut().for_each(|socket| _ = socket.incoming.receive(64, &mut take));
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("\nended");
}

/// Sends a datagram from the other end of the cable.
fn send(far: &Running) {
    let id = far.child.id();
    let script = format!("echo hello > /dev/udp/{NEAR}/{PORT}");
    let mut command = Command::new("nsenter");
    command.args(["-n", "-t", &id.to_string(), "bash", "-c", &script]);
    let _ = command.status();
}

/// What the daemon says of the interface.
fn described(places: &Places) -> Option<Value> {
    let output = adverb(&["sockets", "stat", "--daemon", "--json", "-k", places.text()]);
    let text = stdout(&output);
    let all = text.lines().map(|line| serde_json::from_str(line).expect("valid JSON"));
    all.into_iter().find(|what: &Value| what["interface"] == "near")
}

/// Goal: programs of users that the daemon was told of have frames without privilege, and others have none; what is
/// killed, program or daemon, leaves the kernel's packets to the kernel.
#[test]
fn unprivileged_programs_have_frames_and_leave_nothing() {
    let name = "interfaces::unprivileged_programs_have_frames_and_leave_nothing";
    with_cable(name, |far| {
        let (mut command, places) = daemon("interfaces", "near");
        command.args(["--members", &MEMBER.to_string()]).stderr(Stdio::null());
        let mut running = Running::begin(&mut command);
        soon("the daemon", || described(&places).is_some());
        member(STRANGER).await_line("refused");
        for _ in 0..3 {
            let mut one = member(MEMBER);
            one.await_line("ready");
            let what = described(&places).expect("it is owned");
            let users = what["users"].as_array().expect("a list");
            assert_eq!(users.len(), 1, "{what}");
            let of = |field| users[0][field].as_u64().expect("a number");
            assert_eq!([of("uid"), of("members"), of("keys")], [MEMBER.into(), 1, 1], "{what}");
            assert_eq!(what["mode"], "native");
            send(far);
            one.await_line("frame");
            let text = stdout(&adverb(&["sockets", "stat", "--daemon", "-k", places.text()]));
            assert!(text.contains("near") && text.contains("1 programs, 1 keys"), "{text}");
            drop(one);
            soon("it is forgotten", || {
                described(&places)
                    .is_some_and(|what| what["users"].as_array().is_some_and(Vec::is_empty))
            });
            let mut socket = None;
            soon("the port is free", || {
                socket = UdpSocket::bind((NEAR, PORT)).ok();
                socket.is_some()
            });
            let socket = socket.expect("a socket");
            socket.set_read_timeout(Some(Duration::from_secs(5))).expect("an option");
            send(far);
            assert_eq!(socket.recv(&mut [0; 64]).expect("the kernel's"), 6);
        }
        let mut last = member(MEMBER);
        last.await_line("ready");
        assert!(run("ip link show near").contains("xdp"));
        running.child.kill().expect("a process");
        last.await_line("ended");
        soon("the program leaves", || !run("ip link show near").contains("xdp"));
    });
}

/// Goal: a daemon that may not lock the memory of frames says so once, with what it takes; its members say that it may not.
#[test]
fn a_daemon_that_may_not_lock_memory_says_what_it_takes() {
    with_cable("interfaces::a_daemon_that_may_not_lock_memory_says_what_it_takes", |_| {
        let (adverb, places) = daemon("unlocked", "near");
        let mut command = Command::new("prlimit");
        command.args(["--memlock=65536:1048576", "setpriv", "--inh-caps=-all"]);
        command.arg("--bounding-set=-all,+net_admin,+bpf,+net_raw");
        command.arg(adverb.get_program()).args(adverb.get_args());
        command.args(["--members", &MEMBER.to_string()]).stderr(Stdio::piped());
        let mut running = Running::begin(&mut command);
        soon("the daemon", || described(&places).is_some());
        for _ in 0..3 {
            member(MEMBER).await_line("owner may not lock the memory");
        }
        let mut said = running.child.stderr.take().expect("a pipe");
        drop(running);
        let mut text = String::new();
        said.read_to_string(&mut text).expect("text");
        let refusals: Vec<_> = text.lines().filter(|line| line.contains("refused")).collect();
        let [refusal] = *refusals else { panic!("one line, not {text}") };
        for part in ["near", "user 65534", "16384 KiB", "1024 KiB", "CAP_IPC_LOCK", "LimitMEMLOCK="]
        {
            assert!(refusal.contains(part), "{part}: {refusal}");
        }
    });
}

/// Goal: what is in the way is said.
#[test]
fn an_interface_that_cannot_be_owned_is_refused_with_the_reason() {
    let name = "interfaces::an_interface_that_cannot_be_owned_is_refused_with_the_reason";
    with_cable(name, |_| {
        let (mut command, _places) = daemon("refused", "nowhere");
        let output = command.output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains("nowhere: there is no such interface"));
        let (mut command, _places) = daemon("unprivileged", "near");
        let output = command.uid(MEMBER).gid(MEMBER).output().expect("it runs");
        assert_eq!(output.status.code(), Some(77), "{}", stderr(&output));
        assert!(stderr(&output).contains("CAP_NET_ADMIN"), "{}", stderr(&output));
        let (mut first, places) = daemon("first", "near");
        let _first = Running::begin(first.stderr(Stdio::null()));
        soon("the daemon", || described(&places).is_some());
        let (mut second, _places) = daemon("second", "near");
        let output = second.output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains("another process"), "{}", stderr(&output));
    });
}
