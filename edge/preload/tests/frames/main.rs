//! Datagrams past the kernel between two network namespaces: unmodified programs with the transport `xdp`, and the kernel
//! at the other end of a cable that each test lays.
//!
//! A test runs again in a namespace of its own, the near end, where it owns the interface. Programs are this binary
//! again, with a role. Needs root; says so and does nothing without.
//!
//! # Safety
//!
//! Every pointer passed to the kernel is to a local of the length that is said.

#![expect(clippy::indexing_slicing, reason = "a test may panic")]

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod support;

mod changes;
mod ends;
#[path = "../../../../host/netstack/tests/kernel/faults.rs"]
mod faults;
mod roles;
mod rules;
#[path = "../support/running.rs"]
mod running;
mod streams;
mod urgent;

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use adverb_sys::bpf::{Map, MapKind};
use adverb_xdp::interface::QUEUE_PATIENCE;
use running::{Running, soon};
use support::{Place, library};

const NEAR: &str = "10.95.0.1";
const FAR: &str = "10.95.0.2";
const NEAR_6: &str = "fd95::1";
const FAR_6: &str = "fd95::2";
const PORT: u16 = 7481;
/// Why the kernel has what frames carried before a fork.
const FORKED: &str = "the program has forked, and frames are for one process alone";

/// Runs a test again where it may make namespaces; says so where none can be had.
fn with_namespaces(name: &str, test: impl FnOnce()) {
    if std::env::var_os("ADVERB_TEST_NAMESPACES").is_some() {
        return test();
    }
    if Map::create(MapKind::XdpSockets, 4, 4, 1).is_err() {
        return println!("skipped: no AF_XDP to be had");
    }
    let mut command = Command::new("unshare");
    command.arg("-n").arg(myself()).args(["--exact", name, "--nocapture"]);
    let output = command.env("ADVERB_TEST_NAMESPACES", "1").output().expect("unshare");
    let text = String::from_utf8_lossy(&output.stdout);
    if !text.contains("running 1 test") {
        return println!("skipped: no namespace to be had");
    }
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
}

fn myself() -> PathBuf {
    std::env::current_exe().expect("a path of this test")
}

fn run(command: &mut Command) {
    let output = command.output().expect("a program");
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// The near end of a cable, which is this namespace, and the far end.
struct Pair {
    far: Running,
    place: Place,
}

impl Pair {
    fn new() -> Self {
        Self::with_each_end("")
    }

    /// What is said of each end of the cable when it is laid.
    fn with_each_end(each: &str) -> Self {
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", "ip link set lo up && echo ready && exec cat"]);
        let pair = Self { far: Running::start(&mut command), place: Place::new("frames") };
        let _ = Command::new("ip").args(["link", "delete", "near"]).stderr(Stdio::null()).status();
        let far = pair.far.child.id();
        let cable = format!("link add near {each} type veth peer name far {each} netns {far}");
        run(Command::new("ip").args(cable.split_whitespace()));
        run(Command::new("ip").args(["link", "set", "lo", "up"]));
        for (is_far, device, v4, v6) in [(false, "near", NEAR, NEAR_6), (true, "far", FAR, FAR_6)] {
            for words in [
                format!("address add {v4}/24 dev {device}"),
                format!("address add {v6}/64 dev {device} nodad"),
                format!("link set {device} up"),
            ] {
                let mut ip = if is_far { pair.far("ip") } else { Command::new("ip") };
                run(ip.args(words.split(' ')));
            }
        }
        for (is_far, device) in [(false, "near"), (true, "far")] {
            soon("the cable", || {
                let mut ip = if is_far { pair.far("ip") } else { Command::new("ip") };
                let output = ip.args(["link", "show", device]).output().expect("a program");
                String::from_utf8_lossy(&output.stdout).contains("state UP")
            });
        }
        pair
    }

    /// What the far end sends passes a bridge in its namespace, at whose port `inner` it can be lost.
    fn put_bridge_before_far(&self) {
        for words in [
            "link add bridge type bridge".to_owned(),
            "link add inner type veth peer name inmost".to_owned(),
            "link set far master bridge".to_owned(),
            "link set inner master bridge".to_owned(),
            "address flush dev far".to_owned(),
            format!("address add {FAR}/24 dev inmost"),
            format!("address add {FAR_6}/64 dev inmost nodad"),
            "link set bridge up".to_owned(),
            "link set inner up".to_owned(),
            "link set inmost up".to_owned(),
        ] {
            run(self.far("ip").args(words.split(' ')));
        }
    }

    /// A program at the far end.
    fn far(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-n", "-t", &self.far.child.id().to_string(), "--"]).arg(program);
        command
    }

    /// This binary in a role; at the near end, unless it is to be at the far one.
    fn role(&self, is_far: bool, role: &str, at: SocketAddr) -> Command {
        let mut command = if is_far { self.far(myself()) } else { Command::new(myself()) };
        command.args(["--exact", "roles::a_role", "--nocapture", "--test-threads=1"]);
        command.env("ADVERB_TEST_ROLE", role).env("ADVERB_TEST_AT", at.to_string());
        command
    }

    /// The same with the transport `xdp`, at the near end.
    fn framed(&self, role: &str, at: SocketAddr, profile: Option<&str>) -> Running {
        self.framed_by(&[], role, at, profile)
    }

    /// The same, started by another program, whose name and arguments these are.
    fn framed_by(
        &self,
        front: &[&str],
        role: &str,
        at: SocketAddr,
        profile: Option<&str>,
    ) -> Running {
        let name = role.replace(' ', "-");
        let log = self.place.0.join(format!("{name}.log"));
        let _ = fs::remove_file(&log);
        let plain = self.role(false, role, at);
        let mut command = match front {
            [] => plain,
            [program, rest @ ..] => {
                let mut command = Command::new(program);
                command.args(rest).arg(plain.get_program()).args(plain.get_args());
                let set = plain.get_envs().filter_map(|(name, value)| Some((name, value?)));
                command.envs(set);
                command
            }
        };
        command.env("LD_PRELOAD", library::library());
        command.env("ADVERB_SOCKETS_SHM_DIR", self.place.rings());
        command.env("ADVERB_SOCKETS_QUIET", "1").env("ADVERB_SOCKETS_EXPLAIN", "1");
        command.env("ADVERB_SOCKETS_TRANSPORT", "xdp").env("VMA_LOG_FILE", &log);
        profile.into_iter().for_each(|profile| _ = command.env("ADVERB_SOCKETS_PROFILE", profile));
        await_port(at);
        let mut running = Running::start(&mut command);
        running.log = log;
        running
    }

    /// Waits until all has come that the far end has sent so far: what it sends then, by the same cable, comes after that.
    fn await_all(&self) {
        let socket = UdpSocket::bind(SocketAddr::new(at(NEAR).ip(), 0)).expect("a port");
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("an option");
        let here = socket.local_addr().expect("a port");
        let mut last = Running::start(&mut self.role(true, "client", here));
        assert_eq!(last.ask("shower 1"), "said 1");
        socket.recv(&mut [0; 64]).expect("it comes");
    }

    /// The owner of the near end.
    fn owner(&self) -> Running {
        Running::start(&mut self.role(false, "owner", at(NEAR)))
    }
}

fn at(ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse::<IpAddr>().expect("an address"), PORT)
}

/// Waits until a port of this namespace is free: the owner notices only after a program has been killed.
fn await_port(at: SocketAddr) {
    let is_far = |error: std::io::Error| error.kind() == std::io::ErrorKind::AddrNotAvailable;
    soon("the port is free", || UdpSocket::bind(at).map_or_else(is_far, |_| true));
}

/// Datagrams that the kernel of the near end has brought to sockets and taken from them, of both families.
fn by_kernel() -> u64 {
    came_by_kernel() + left_by_kernel()
}

fn came_by_kernel() -> u64 {
    counted("InDatagrams")
}

fn left_by_kernel() -> u64 {
    counted("OutDatagrams")
}

fn counted(name: &str) -> u64 {
    running::by_kernel("Udp", name)
}

/// Datagrams that the kernel has brought to a program and taken from it so far, and how often the program has slept.
fn kernels(program: &Running) -> [u64; 3] {
    [came_by_kernel(), left_by_kernel(), program.sleeps()]
}

/// How many there were since then, of 500 or so each, but for those that may have woken the program: what comes while it
/// sleeps is the kernel's, and a machine with others to run lets it go to sleep, but not for most of them.
fn kernels_while_awake(before: [u64; 3], program: &Running) -> [u64; 2] {
    let after = kernels(program);
    let [came, left, slept] = [0, 1, 2].map(|at| after[at] - before[at]);
    assert!(slept < 300, "it has slept {slept} times");
    [came.saturating_sub(slept), left]
}

/// Goal: a program that never sleeps has its datagrams past the kernel, both ways, whatever call it receives by and
/// however it is bound; each comes once, whole, and from where it was sent.
#[test]
fn datagrams_of_a_program_that_spins_pass_the_kernel() {
    with_namespaces("datagrams_of_a_program_that_spins_pass_the_kernel", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let all = [(NEAR, NEAR), ("0.0.0.0", NEAR), (NEAR_6, NEAR_6), ("::", NEAR_6), ("::", NEAR)];
        for (any, to) in all {
            for mode in ["block", "spin", "poll", "epoll", "edge"] {
                let server = pair.framed(&format!("echo {mode}"), at(any), Some("latency"));
                let mut client = Running::start(&mut pair.role(true, "client", at(to)));
                assert_eq!(client.ask("exchange 50 64 0"), "said 50");
                // A call that waits goes to sleep where the machine does not let both programs run: what comes then is
                // the kernel's, which gets one of the two of each exchange. One that does not wait never sleeps.
                let most = if mode == "spin" { 600 } else { 1300 };
                let mut least = u64::MAX;
                for _ in 0..5 {
                    let before = by_kernel();
                    assert_eq!(client.ask("exchange 1000 64 0"), "said 1000", "{mode} {any}");
                    assert_eq!(client.ask("exchange 300 1400 0"), "said 300", "{mode} {any}");
                    least = least.min(by_kernel() - before);
                    // None, unless one sleeps.
                    if least < 600 {
                        break;
                    }
                }
                assert!(server.has_frames(), "{mode} {any}: {}", server.explained());
                assert!(least < most, "{mode} {any}: {least} of 2600 at best");
            }
        }
    });
}

/// Goal: what is sent to a group comes as frames to a program that has joined it and has the port alone, and what it sends to
/// a group leaves as frames, if it is not for this host.
#[test]
fn datagrams_of_groups_pass_the_kernel() {
    with_namespaces("datagrams_of_groups_pass_the_kernel", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for ip in [NEAR, NEAR_6] {
            let server = pair.framed("group near", at(ip), Some("latency"));
            let mut client = Running::start(&mut pair.role(true, "asker far", at(ip)));
            assert_eq!(client.ask("50"), "said 50");
            let before = by_kernel();
            assert_eq!(client.ask("1000"), "said 1000");
            let kernels = by_kernel() - before;
            assert!(server.has_frames(), "{ip}: {}", server.explained());
            assert!(kernels < 300, "{ip}: {kernels} of 2000");
        }
    });
}

/// Goal: a program that sleeps between datagrams is woken by each, however it waits, and misses none; nor one of those
/// that the kernel alone can bring, as they come in pieces.
#[test]
fn a_program_that_sleeps_is_woken() {
    with_namespaces("a_program_that_sleeps_is_woken", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for mode in ["block", "poll", "epoll", "edge"] {
            for profile in [Some("frugal"), None] {
                let server = pair.framed(&format!("echo {mode}"), at(NEAR), profile);
                let mut client = Running::start(&mut pair.role(true, "client", at(NEAR)));
                for (count, len, pause_us) in
                    [(200, 64, 0), (100, 64, 300), (30, 1000, 3000), (50, 8000, 100), (200, 64, 0)]
                {
                    let answer = client.ask(&format!("exchange {count} {len} {pause_us}"));
                    assert_eq!(answer, format!("said {count}"), "{mode} {profile:?} {len}");
                }
                assert!(server.has_frames(), "{mode}: {}", server.explained());
                // It may not have got to sleep where it waits for a processor.
                let mut is_woken = || {
                    let before = came_by_kernel();
                    assert_eq!(client.ask("exchange 30 64 3000"), "said 30");
                    came_by_kernel() - before >= 20
                };
                assert!(profile.is_none() || (0..5).any(|_| is_woken()), "{mode}: few wake it");
            }
        }
    });
}

/// Goal: sleeping is cut short for sockets with frames alone, whatever the process has besides.
#[test]
fn a_wait_without_frames_is_one_sleep() {
    with_namespaces("a_wait_without_frames_is_one_sleep", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let mut program = pair.framed("idle", at(NEAR), Some("frugal"));
        let mut client = Running::start(&mut pair.role(true, "client", at(NEAR)));
        for call in ["poll", "epoll"] {
            let mut sleeps = |socket| {
                program.tell(&format!("{call} {socket}"));
                assert_eq!(client.ask("exchange 1 64 0"), "said 1");
                let said = program.await_line("said ");
                said.trim_start_matches("said ").parse::<u32>().expect("a number")
            };
            soon("a frame is recent", || sleeps("framed") >= 5);
            for _ in 0..5 {
                let plain = sleeps("plain");
                assert!(plain <= 2, "{call}: {plain}");
            }
        }
        assert!(program.has_frames(), "{}", program.explained());
    });
}

/// Goal: a program that sends first has its answers, connected or not, and what it sends passes the kernel.
#[test]
fn a_program_that_sends_first_has_frames() {
    with_namespaces("a_program_that_sends_first_has_frames", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for to in [FAR, FAR_6] {
            let _server = Running::start(&mut pair.role(true, "echo block", at(to)));
            for role in ["client", "client connected"] {
                let mut client = pair.framed(role, at(to), Some("latency"));
                assert_eq!(client.ask("exchange 50 64 0"), "said 50");
                let before = kernels(&client);
                assert_eq!(client.ask("exchange 500 64 0"), "said 500");
                assert_eq!(client.ask("exchange 20 4000 0"), "said 20");
                let [came, left] = kernels_while_awake(before, &client);
                assert!(client.has_frames(), "{role}: {}", client.explained());
                assert!(came < 150 && left < 150, "{role} {to}: {came} and {left} of 520 each");
            }
        }
    });
}

/// Goal: what ICMP says of what was sent as a frame, the program hears.
#[test]
fn an_error_comes_back_by_the_kernel() {
    with_namespaces("an_error_comes_back_by_the_kernel", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let mut server = Running::start(&mut pair.role(true, "echo block", at(FAR)));
        let mut client = pair.framed("client connected", at(FAR), None);
        assert_eq!(client.ask("exchange 100 64 0"), "said 100");
        assert!(client.has_frames(), "{}", client.explained());
        let _ = server.child.kill();
        let _ = server.child.wait();
        assert_eq!(client.ask("refused"), "said refused");
    });
}

/// Goal: a child has its parent's socket as ever, and so has the parent.
#[test]
fn a_child_receives_by_its_parents_socket() {
    with_namespaces("a_child_receives_by_its_parents_socket", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let server = pair.framed("echo fork", at(NEAR), None);
        let mut client = Running::start(&mut pair.role(true, "client", at(NEAR)));
        assert_eq!(client.ask("insist 400 64 0"), "said 400");
        assert_eq!(client.ask("exchange 30 64 1000"), "said 30");
        assert!(server.has_frames(), "{}", server.explained());
        assert!(server.explained().contains(FORKED), "{}", server.explained());
    });
}

/// Goal: a handler that forks in the midst of a call that waits leaves two processes that go on with that call.
/// Method: the parent is stopped, so that the child alone can answer.
#[test]
fn a_child_of_a_handler_goes_on_where_its_parent_was() {
    with_namespaces("a_child_of_a_handler_goes_on_where_its_parent_was", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for (mode, profile) in [("block", "frugal"), ("poll", "frugal"), ("block", "latency")] {
            let mut server = pair.framed(&format!("echo {mode} forks"), at(NEAR), Some(profile));
            let mut client = Running::start(&mut pair.role(true, "client", at(NEAR)));
            assert_eq!(client.ask("exchange 50 64 0"), "said 50");
            assert!(server.has_frames(), "{}", server.explained());
            server.signal("USR1");
            server.await_line("said forked");
            assert_eq!(client.ask("insist 50 64 0"), "said 50", "{mode} {profile}");
            server.signal("STOP");
            assert_eq!(client.ask("insist 50 64 0"), "said 50", "{mode} {profile}: the child");
        }
    });
}

/// Goal: a handler that asks the owner, as to close a socket does, waits for the question that it has interrupted.
#[test]
fn a_handler_closes_a_socket_while_its_thread_asks() {
    with_namespaces("a_handler_closes_a_socket_while_its_thread_asks", || {
        let pair = Pair::new();
        let owner = pair.owner();
        let mut program = pair.framed("closes", at(NEAR), None);
        assert!(program.has_frames(), "{}", program.explained());
        owner.signal("STOP");
        program.tell("connect");
        std::thread::sleep(Duration::from_millis(300));
        program.signal("USR1");
        std::thread::sleep(Duration::from_millis(300));
        owner.signal("CONT");
        assert_eq!(program.await_line("said "), "said connected");
    });
}

/// Goal: what comes to a socket that two processes have from before its first datagram, either of them receives.
#[test]
fn a_child_receives_what_comes_after_the_fork() {
    with_namespaces("a_child_receives_what_comes_after_the_fork", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let server = pair.framed("workers", at(NEAR), None);
        let mut client = Running::start(&mut pair.role(true, "client", at(NEAR)));
        assert_eq!(client.ask("exchange 100 64 0"), "said 100", "{}", server.explained());
        assert!(!server.has_frames(), "{}", server.explained());
    });
}

/// Goal: what had come before a socket went back to the kernel is received.
#[test]
fn what_had_come_before_a_fork_is_received() {
    with_namespaces("what_had_come_before_a_fork_is_received", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let mut server = pair.framed("late", at(NEAR), None);
        assert!(server.has_frames(), "{}", server.explained());
        let mut client = Running::start(&mut pair.role(true, "client", at(NEAR)));
        let before = by_kernel();
        assert_eq!(client.ask("shower 200"), "said 200");
        pair.await_all();
        assert_eq!(server.ask("look"), "said 200");
        assert!(by_kernel() - before < 100, "they came as frames");
    });
}

/// Goal: what a program peeks at is what it receives next, though the kernel and frames bring datagrams at once.
/// Method: long ones come in pieces, by the kernel, in front of many short ones.
#[test]
fn what_was_peeked_at_is_received() {
    with_namespaces("what_was_peeked_at_is_received", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let server = pair.framed("peeker", at(NEAR), Some("latency"));
        let mut client = Running::start(&mut pair.role(true, "client", at(NEAR)));
        assert_eq!(client.ask("mix 200 50"), "said 200");
        assert!(server.has_frames(), "{}", server.explained());
    });
}

/// Goal: datagrams come once and in order while a socket is connected anew, again and again.
#[test]
fn nothing_is_lost_while_a_socket_connects_again() {
    with_namespaces("nothing_is_lost_while_a_socket_connects_again", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let mut server = pair.framed("connects", at(NEAR), None);
        let mut client = Running::start(&mut pair.role(true, "client", at(NEAR)));
        assert_eq!(client.ask("stream 4000"), "said 4000");
        assert_eq!(server.await_line("said "), "said in order");
        assert!(server.has_frames(), "{}", server.explained());
    });
}

/// Goal: options that are set after a socket has frames count for them: room is what was asked for, and a port that may be
/// shared is the kernel's.
#[test]
fn options_count_for_frames_too() {
    with_namespaces("options_count_for_frames_too", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let mut server = pair.framed("options", at(NEAR), None);
        assert!(server.has_frames(), "{}", server.explained());
        let mut client = Running::start(&mut pair.role(true, "client", at(NEAR)));
        let before = by_kernel();
        assert_eq!(client.ask("shower 900"), "said 900");
        pair.await_all();
        assert_eq!(server.ask("look"), "said 900");
        assert!(by_kernel() - before < 100, "they came as frames");
        assert_eq!(server.ask("share"), "said 0");
        assert!(server.explained().contains("no frames:"), "{}", server.explained());
        let before = by_kernel();
        assert_eq!(client.ask("shower 50"), "said 50");
        pair.await_all();
        assert_eq!(server.ask("look"), "said 50");
        // And the last, by which it is known that all are there.
        assert_eq!(by_kernel() - before, 51, "they came by the kernel");
    });
}

/// Goal: a call that does not wait finds what the kernel has got, at the first look.
#[test]
fn a_look_finds_what_the_kernel_has() {
    with_namespaces("a_look_finds_what_the_kernel_has", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let mut server = pair.framed("glance", at(NEAR), None);
        assert_eq!(server.ask("look"), "said operation would block");
        assert!(server.has_frames(), "{}", server.explained());
        let peer = UdpSocket::bind(SocketAddr::new(at(NEAR).ip(), 0)).expect("a port");
        for _ in 0..10 {
            // From this host: by the kernel.
            peer.send_to(&[7; 123], at(NEAR)).expect("it is sent");
            soon("it is queued", is_any_queued);
            assert_eq!(server.ask("look"), "said 123");
        }
    });
}

/// The kernel has something for the socket of the port.
fn is_any_queued() -> bool {
    let sockets = fs::read_to_string("/proc/self/net/udp").expect("a table");
    let mut lines = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|fields| fields[1].ends_with(&format!(":{PORT:04X}")));
    line.expect("a socket")[4].split_once(':').expect("two numbers").1 != "00000000"
}

/// Goal: what the kernel refuses is not sent as a frame.
#[test]
fn what_the_kernel_refuses_is_refused() {
    with_namespaces("what_the_kernel_refuses_is_refused", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let _server = Running::start(&mut pair.role(true, "echo block", at(FAR)));
        // The kernel knows the hardware address of all hosts from now on.
        let all = UdpSocket::bind("0.0.0.0:0").expect("a port");
        all.set_broadcast(true).expect("an option");
        all.send_to(b"all of you", SocketAddr::new([10, 95, 0, 255].into(), PORT))
            .expect("it is sent");
        let mut client = pair.framed("client", at(FAR), None);
        assert_eq!(client.ask("exchange 100 64 0"), "said 100");
        assert!(client.has_frames(), "{}", client.explained());
        let (access, family) = (Some(libc::EACCES), Some(libc::EAFNOSUPPORT));
        assert_eq!(client.ask("errors"), format!("said {access:?} {family:?} {family:?}"));
    });
}

/// Goal: a port is free as soon as its socket has been closed, and frames end with it.
#[test]
fn a_port_is_free_after_close() {
    with_namespaces("a_port_is_free_after_close", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let mut server = pair.framed("rebind", at(NEAR), None);
        assert_eq!(server.ask("rebind 30"), "said 30");
        assert_eq!(server.explained().matches("frames of the interface").count(), 30);
        UdpSocket::bind(at(NEAR)).expect("it is free");
    });
}

/// Goal: a program goes on with the kernel when the owner is killed, and has frames from the next owner by its next
/// socket; a program that is killed leaves its port to the kernel.
#[test]
fn owners_and_programs_that_are_killed_leave_nothing() {
    with_namespaces("owners_and_programs_that_are_killed_leave_nothing", || {
        let pair = Pair::new();
        for mode in ["block", "epoll"] {
            let owner = pair.owner();
            let server = pair.framed(&format!("echo {mode}"), at(NEAR), None);
            let mut client = Running::start(&mut pair.role(true, "client", at(NEAR)));
            assert_eq!(client.ask("exchange 200 64 0"), "said 200");
            assert!(server.has_frames(), "{}", server.explained());
            drop(owner);
            assert_eq!(client.ask("insist 200 64 0"), "said 200", "{mode}");
            drop(server);
            std::thread::sleep(QUEUE_PATIENCE); // An owner refuses what asks while its queue is another's still.
            let owner = pair.owner();
            let server = pair.framed(&format!("echo {mode}"), at(NEAR), None);
            assert_eq!(client.ask("exchange 200 64 0"), "said 200");
            assert!(server.has_frames(), "{}", server.explained());
            drop(server);
            await_port(at(NEAR));
            let _plain = Running::start(&mut pair.role(false, "echo block", at(NEAR)));
            assert_eq!(client.ask("insist 100 64 0"), "said 100");
            drop(owner);
            std::thread::sleep(QUEUE_PATIENCE);
        }
    });
}

/// Goal: nothing is told of a socket that is closed while the owner, which has a copy of it, does not answer.
#[test]
fn a_socket_that_is_closed_while_the_owner_is_stopped_is_gone() {
    with_namespaces("a_socket_that_is_closed_while_the_owner_is_stopped_is_gone", || {
        let pair = Pair::new();
        let owner = pair.owner();
        let mut server = pair.framed("gone", at(NEAR), None);
        let mut client = Running::start(&mut pair.role(true, "client", at(NEAR)));
        assert_eq!(client.ask("exchange 1 64 0"), "said 1");
        assert!(server.has_frames(), "{}", server.explained());
        owner.signal("STOP");
        assert_eq!(server.ask("close"), "said 0");
        assert_eq!(client.ask("shower 3"), "said 3");
        assert_eq!(server.ask("look"), "said 0");
        owner.signal("CONT");
    });
}

/// Goal: the end of a socket takes nothing from a file that has the number by now by which the socket was watched.
#[test]
fn a_file_with_the_number_of_a_socket_stays_watched() {
    with_namespaces("a_file_with_the_number_of_a_socket_stays_watched", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let mut server = pair.framed("renumbered", at(NEAR), None);
        assert!(server.has_frames(), "{}", server.explained());
        assert_eq!(server.ask("close"), "said 1 2");
    });
}

/// Goal: what is sent to a group as a frame is what the kernel would have sent: from the address that the program has said,
/// and if it may make no hop or is for one link, by the kernel. Method: the interface has a second address.
#[test]
fn datagrams_to_groups_leave_as_the_kernel_sends_them() {
    with_namespaces("datagrams_to_groups_leave_as_the_kernel_sends_them", || {
        let pair = Pair::new();
        let second = "10.95.0.17";
        run(Command::new("ip").args(format!("address add {second}/24 dev near").split(' ')));
        let _owner = pair.owner();
        let mut witness = Running::start(&mut pair.role(true, "witness far", at(NEAR)));
        let mut sends = |how: &str, leave: &str| {
            let mut sender = pair.framed(&format!("groups {how}"), at(NEAR), None);
            let before = by_kernel();
            assert_eq!(sender.ask("50"), "said sent");
            let kernels = by_kernel() - before;
            let seen = witness.ask(leave);
            assert!(sender.has_frames(), "{how}: {}", sender.explained());
            (seen, kernels)
        };
        for ip in [NEAR, second] {
            let (seen, kernels) = sends(ip, "50");
            assert_eq!(seen, format!("said 50 {ip}"));
            assert!(kernels < 25, "{kernels} of 50 by the kernel");
        }
        // Whether they leave depends on the members of the group on this host.
        let (_, kernels) = sends("hopless", "0");
        assert_eq!(kernels, 50, "what may make no hop");
        let mut sender = pair.framed("groups link", at(NEAR_6), None);
        let before = by_kernel();
        assert_eq!(sender.ask("50"), "said sent");
        assert_eq!(by_kernel() - before, 50, "a group of the link");
        assert!(sender.has_frames(), "{}", sender.explained());
    });
}

/// Goal: a program that closes all descriptors, whose numbers it does not know, closes none of the library's.
#[test]
fn a_program_that_closes_what_it_does_not_know_goes_on() {
    with_namespaces("a_program_that_closes_what_it_does_not_know_goes_on", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let server = pair.framed("echo close", at(NEAR), Some("latency"));
        let mut client = Running::start(&mut pair.role(true, "client", at(NEAR)));
        assert_eq!(client.ask("exchange 100 64 0"), "said 100");
        let before = kernels(&server);
        assert_eq!(client.ask("exchange 500 64 0"), "said 500");
        let [came, left] = kernels_while_awake(before, &server);
        assert!(server.has_frames(), "{}", server.explained());
        assert!(came < 150 && left < 150, "{came} and {left} of 500 each");
    });
}

/// Goal: without an owner, or where a port is shared, everything is the kernel's, and the reason is on record.
#[test]
fn without_an_owner_it_is_the_kernels() {
    with_namespaces("without_an_owner_it_is_the_kernels", || {
        let pair = Pair::new();
        let server = pair.framed("echo block", at(NEAR), None);
        let mut client = Running::start(&mut pair.role(true, "client", at(NEAR)));
        assert_eq!(client.ask("exchange 100 64 0"), "said 100");
        assert!(server.explained().contains("no frames:"), "{}", server.explained());
        drop(server);
        let _owner = pair.owner();
        let server = pair.framed("echo shared", at(NEAR), None);
        assert_eq!(client.ask("exchange 100 64 0"), "said 100");
        assert!(server.explained().contains("no frames:"), "{}", server.explained());
    });
}
