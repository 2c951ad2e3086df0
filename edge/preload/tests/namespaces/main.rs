//! Connections and datagrams between network namespaces of one host: unmodified programs, accelerated or not, at
//! the ends of cables that the tests lay.
//!
//! # Safety
//!
//! Every pointer passed to the kernel is to a local of the length that is said.

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{Place, library};

/// Runs a test again as the user and in the namespaces that may make others; says so where none can be
/// had.
fn with_namespaces(name: &str, test: impl FnOnce()) {
    with(&["-n", "-rn"], name, test);
}

/// The same, by one of these ways.
fn with(ways: &[&str], name: &str, test: impl FnOnce()) {
    if std::env::var_os("ADVERB_TEST_NAMESPACES").is_some() {
        return test();
    }
    for flags in ways {
        let mut command = Command::new("unshare");
        command.arg(flags).arg(myself()).args(["--exact", name, "--nocapture"]);
        let Ok(output) = command.env("ADVERB_TEST_NAMESPACES", "1").output() else { break };
        let text = String::from_utf8_lossy(&output.stdout);
        if text.contains("running 1 test") {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{text}\n{errors}");
            return;
        }
    }
    eprintln!("skipped: no namespace to be had");
}

fn myself() -> PathBuf {
    std::env::current_exe().expect("a path of this test")
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A network namespace: that of a program that does nothing.
struct Space(Running);

impl Space {
    fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", "ip link set lo up && echo up && exec cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a namespace");
        let mut line = String::new();
        let said = child.stdout.take().expect("a pipe");
        BufReader::new(said).read_line(&mut line).expect("a line");
        assert_eq!(line, "up\n");
        Self(Running(child))
    }

    fn id(&self) -> String {
        self.0.0.id().to_string()
    }

    /// A program in it.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-n", "-t", &self.id(), "--"]).arg(program);
        command
    }

    fn ip(&self, words: &str) {
        run(self.command("ip").args(words.split(' ')));
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("a program");
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// Two namespaces and a cable between them.
struct Pair {
    near: Space,
    far: Space,
}

const NEAR: &str = "10.99.0.1";
const FAR: &str = "10.99.0.2";
const PORT: u16 = 7471;

impl Pair {
    fn new() -> Self {
        let (near, far) = (Space::new(), Space::new());
        let (near_id, far_id) = (near.id(), far.id());
        let cable = format!("link add near netns {near_id} type veth peer name far netns {far_id}");
        run(Command::new("ip").args(cable.split(' ')));
        for (space, device, v4, v6) in
            [(&near, "near", NEAR, "fd99::1"), (&far, "far", FAR, "fd99::2")]
        {
            space.ip(&format!("address add {v4}/24 dev {device}"));
            space.ip(&format!("address add {v6}/64 dev {device} nodad"));
            space.ip(&format!("link set {device} up"));
        }
        Self { near, far }
    }
}

/// A program of these tests, in a namespace.
struct Program<'a> {
    space: &'a Space,
    /// Where its rings meet, if it is accelerated.
    place: Option<&'a Place>,
    /// What is added to the lines of its answers.
    tag: &'a str,
    at: SocketAddr,
}

impl Program<'_> {
    fn start(&self, role: &str, name: &str) -> Talker {
        self.start_by(&[], role, name)
    }

    /// The same, by words in front of it that start it.
    fn start_by(&self, starter: &[&str], role: &str, name: &str) -> Talker {
        let mut command = match starter {
            [] => self.space.command(myself()),
            [program, rest @ ..] => {
                let mut command = self.space.command(program);
                command.args(rest).arg(myself());
                command
            }
        };
        command.args([
            "the_child",
            "--exact",
            "--include-ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        command.env("ADVERB_TEST_ROLE", role).env("ADVERB_TEST_AT", self.at.to_string());
        command.env("ADVERB_TEST_TAG", self.tag);
        let log = std::env::temp_dir().join(format!("adverb-{name}-{}", std::process::id()));
        if let Some(place) = self.place {
            command.env("LD_PRELOAD", library::library());
            command.env("ADVERB_SOCKETS_SHM_DIR", place.rings());
            command.env("ADVERB_SOCKETS_QUIET", "1").env("ADVERB_SOCKETS_EXPLAIN", "1");
            command.env("VMA_LOG_FILE", &log);
            command.env("ADVERB_SOCKETS_ACROSS", if self.tag == "alone" { "0" } else { "1" });
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a child");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut talker = Talker { child: Running(child), said, log };
        talker.await_line("ready");
        talker
    }
}

/// A child that does what lines tell it, and answers each.
struct Talker {
    child: Running,
    said: BufReader<std::process::ChildStdout>,
    log: PathBuf,
}

impl Talker {
    fn await_line(&mut self, what: &str) -> String {
        loop {
            let mut line = String::new();
            let got = self.said.read_line(&mut line).expect("a line");
            assert!(got > 0, "it has ended: {}", self.explained());
            if let Some(at) = line.find(what) {
                return line[at..].trim_end().to_owned();
            }
        }
    }

    fn tell(&mut self, what: &str) {
        let to = self.child.0.stdin.as_mut().expect("a pipe");
        writeln!(to, "{what}").expect("a line");
    }

    /// Tells it something, and returns what it has answered.
    fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.await_line("said ")
    }

    /// What the library says has become of its sockets.
    fn explained(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether a connection of it has got rings.
    fn shares(&self) -> bool {
        self.explained().contains("shared memory with the peer")
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.log);
    }
}

fn at(ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse::<IpAddr>().expect("an address"), PORT)
}

/// Goal: both ends see one connection, of the same addresses, and its bytes go through rings from some
/// point on, whatever was sent before; a second connection too, and one over IPv6.
#[test]
fn ends_in_two_namespaces_share_memory() {
    with_namespaces("ends_in_two_namespaces_share_memory", || {
        for (any, far) in [("0.0.0.0", FAR), ("::", FAR), ("::", "fd99::2"), (FAR, FAR)] {
            let (pair, place) = (Pair::new(), Place::new("beyond"));
            let (place, tag) = (Some(&place), "a");
            let server = Program { space: &pair.far, place, tag, at: at(any) };
            let server = server.start("server", "far");
            let client = Program { space: &pair.near, place, tag, at: at(far) };
            for turn in 0..2 {
                let mut client = client.start("client", "near");
                let names = client.ask("names");
                let [ours, theirs] = names.split(' ').collect::<Vec<_>>()[1..] else {
                    panic!("{names}")
                };
                for round in 0..40 {
                    let answer = client.ask(&format!("send {round}"));
                    // The server answers with what it has got, its tag, and what it sees of the
                    // addresses, its own last.
                    assert_eq!(answer, format!("said {round} a {ours} {theirs}"), "turn {turn}");
                }
                assert!(client.ask("end").starts_with("said closed"));
            }
            assert!(server.shares(), "{any}: {}", server.explained());
            let shared = server.explained().matches("shared memory with the peer").count();
            assert_eq!(shared, 2, "{}", server.explained());
        }
    });
}

/// Goal: two pairs of namespaces with the same addresses and ports, at the same time, get their own
/// bytes, through their own rings.
#[test]
fn pairs_of_the_same_addresses_are_not_confused() {
    with_namespaces("pairs_of_the_same_addresses_are_not_confused", || {
        let (one, two, place) = (Pair::new(), Pair::new(), Place::new("twins"));
        let place = Some(&place);
        let far = at(FAR);
        let program = |space, tag| Program { space, place, tag, at: far };
        let servers = [(&one.far, "one"), (&two.far, "two")]
            .map(|(space, tag)| program(space, tag).start("server", tag));
        for turn in 0..3 {
            let mut clients = [(&one.near, "one"), (&two.near, "two")].map(|(space, tag)| {
                // Both connect from the same port.
                (program(space, tag).start("client", &format!("to-{tag}")), tag)
            });
            for round in 0..30 {
                for (client, _) in &mut clients {
                    client.tell(&format!("send {round}"));
                }
                for (client, tag) in &mut clients {
                    let answer = client.await_line("said ");
                    assert!(
                        answer.starts_with(&format!("said {round} {tag} ")),
                        "{turn}: {answer}"
                    );
                }
            }
        }
        for server in &servers {
            assert!(server.shares(), "{}", server.explained());
        }
    });
}

/// Goal: where the wrong end is the only one that could be found, none is.
/// Method: of two pairs with the same addresses, one has an accelerated client alone, the other an
/// accelerated server alone.
#[test]
fn an_offer_is_not_taken_by_the_same_addresses_elsewhere() {
    with_namespaces("an_offer_is_not_taken_by_the_same_addresses_elsewhere", || {
        let (one, two, place) = (Pair::new(), Pair::new(), Place::new("crossed"));
        let (place, at) = (Some(&place), at(FAR));
        let program = |space, place, tag| Program { space, place, tag, at };
        let first_server = program(&one.far, place, "one").start("server", "one");
        let _second = program(&two.far, None, "two").start("server", "two");
        for _ in 0..3 {
            let mut clients = [
                (program(&one.near, None, "one").start("client", "to-one"), "one"),
                (program(&two.near, place, "two").start("client", "to-two"), "two"),
            ];
            for round in 0..20 {
                for (client, tag) in clients.iter_mut().rev() {
                    let answer = client.ask(&format!("send {round}"));
                    assert!(answer.starts_with(&format!("said {round} {tag} ")), "{answer}");
                }
            }
            let [_, (second, _)] = &clients;
            assert!(!second.shares(), "{}", second.explained());
        }
        assert!(!first_server.shares(), "{}", first_server.explained());
    });
}

/// Goal: ends that do not share a directory, of which one is not accelerated, or that are told not to,
/// stay with the kernel.
#[test]
fn ends_that_cannot_meet_stay_with_the_kernel() {
    with_namespaces("ends_that_cannot_meet_stay_with_the_kernel", || {
        let pair = Pair::new();
        let (here, elsewhere) = (Place::new("here"), Place::new("elsewhere"));
        let (none, here, elsewhere) = (None, Some(&here), Some(&elsewhere));
        let places = [(here, elsewhere, "a"), (here, none, "a"), (none, here, "a")];
        let alone = (here, here, "alone");
        for (turn, (server_place, client_place, tag)) in
            places.into_iter().chain([alone]).enumerate()
        {
            let at = SocketAddr::new(at(FAR).ip(), PORT + u16::try_from(turn).expect("few"));
            let server = Program { space: &pair.far, place: server_place, tag, at };
            let server = server.start("server", "far");
            let client = Program { space: &pair.near, place: client_place, tag, at };
            let mut client = client.start("client", "near");
            for round in 0..20 {
                let answer = client.ask(&format!("send {round}"));
                assert!(answer.starts_with(&format!("said {round} {tag} ")), "{answer}");
            }
            assert!(!server.shares(), "{}", server.explained());
            assert!(!client.shares(), "{}", client.explained());
            let said = client.explained();
            assert!(
                client_place.is_none() || said.contains("the peer is not on this host"),
                "{said}"
            );
        }
    });
}

/// Goal: an end that is killed ends the connection of the other, across namespaces too.
#[test]
fn an_end_that_is_killed_is_missed_in_the_other_namespace() {
    with_namespaces("an_end_that_is_killed_is_missed_in_the_other_namespace", || {
        let (pair, place) = (Pair::new(), Place::new("killed"));
        let (place, tag, at) = (Some(&place), "a", at(FAR));
        let server = Program { space: &pair.far, place, tag, at }.start("server", "far");
        let mut client = Program { space: &pair.near, place, tag, at }.start("client", "near");
        for round in 0..40 {
            client.ask(&format!("send {round}"));
        }
        assert!(server.shares(), "{}", server.explained());
        drop(server);
        let answer = client.ask("end");
        assert!(answer.starts_with("said closed") || answer.starts_with("said error"), "{answer}");
    });
}

/// Goal: a listener on one address of a namespace is found from another address of the same one.
#[test]
fn two_addresses_of_one_namespace_share_memory() {
    with_namespaces("two_addresses_of_one_namespace_share_memory", || {
        let (pair, place) = (Pair::new(), Place::new("both"));
        pair.far.ip("address add 10.99.0.3/24 dev far");
        let (place, tag, space) = (Some(&place), "a", &pair.far);
        let server = Program { space, place, tag, at: at(FAR) }.start("server", "far");
        let mut client =
            Program { space, place, tag, at: at(FAR) }.start("client from 10.99.0.3", "near");
        for round in 0..40 {
            let answer = client.ask(&format!("send {round}"));
            assert!(answer.starts_with(&format!("said {round} a 10.99.0.3:")), "{answer}");
        }
        assert!(server.shares(), "{}", server.explained());
    });
}

/// Packets that have come by a cable's end, as the kernel counts them.
fn packets(space: &Space, device: &str) -> u64 {
    let path = format!("/proc/{}/net/dev", space.id());
    let text = fs::read_to_string(path).expect("a table");
    let line = text.lines().find_map(|line| line.trim().strip_prefix(&format!("{device}:")));
    let count = line.expect("a device").split_whitespace().nth(1).expect("a column");
    count.parse().expect("a number")
}

/// Goal: datagrams go through memory in both directions between namespaces, over both families, whether the
/// receiver is bound to one address or to any, and come from where the kernel says that they come from.
#[test]
fn datagrams_between_namespaces_go_through_memory() {
    with_namespaces("datagrams_between_namespaces_go_through_memory", || {
        for (any, far) in [("0.0.0.0", FAR), (FAR, FAR), ("::", FAR), ("::", "fd99::2")] {
            let (pair, place) = (Pair::new(), Place::new("posted"));
            let (place, tag) = (Some(&place), "a");
            let server = Program { space: &pair.far, place, tag, at: at(any) };
            let server = server.start("echo", "far");
            let client = Program { space: &pair.near, place, tag, at: at(far) };
            let mut client = client.start("post", "near");
            client.ask("post 500");
            let before = packets(&pair.far, "far") + packets(&pair.near, "near");
            assert_eq!(client.ask("post 2000"), "said 2000 a");
            let by_cable = packets(&pair.far, "far") + packets(&pair.near, "near") - before;
            assert!(by_cable < 1000, "{any}: {by_cable} of 4000 datagrams");
            assert!(server.shares() && client.shares(), "{any}: {}", server.explained());
        }
    });
}

/// Goal: where two pairs of namespaces have the same addresses and ports, each gets its own datagrams, through its
/// own memory; and a sender whose receiver is not accelerated does not reach the other pair's.
#[test]
fn datagrams_of_the_same_addresses_are_not_confused() {
    with_namespaces("datagrams_of_the_same_addresses_are_not_confused", || {
        let (one, two, place) = (Pair::new(), Pair::new(), Place::new("doubles"));
        let place = Some(&place);
        let program = |space, place, tag| Program { space, place, tag, at: at(FAR) };
        let servers = [(&one.far, "one"), (&two.far, "two")]
            .map(|(space, tag)| program(space, place, tag).start("echo", tag));
        let mut clients = [(&one.near, "one"), (&two.near, "two")].map(|(space, tag)| {
            (program(space, place, tag).start("post", &format!("to-{tag}")), tag)
        });
        for _ in 0..3 {
            for (client, _) in &mut clients {
                client.tell("post 700");
            }
            for (client, tag) in &mut clients {
                assert_eq!(client.await_line("said "), format!("said 700 {tag}"));
            }
        }
        let before = packets(&one.far, "far") + packets(&two.far, "far");
        for (client, tag) in &mut clients {
            assert_eq!(client.ask("post 1000"), format!("said 1000 {tag}"));
        }
        let by_cable = packets(&one.far, "far") + packets(&two.far, "far") - before;
        assert!(by_cable < 700, "{by_cable} of 2000 datagrams");
        drop((servers, clients));
        // The one that is not accelerated is the only one that is reached.
        let _plain = program(&one.far, None, "plain").start("echo", "plain");
        let other = program(&two.far, place, "other").start("echo", "other");
        let mut near = [(&one.near, "plain"), (&two.near, "other")]
            .map(|(space, tag)| (program(space, place, tag).start("post", tag), tag));
        for _ in 0..3 {
            for (client, tag) in near.iter_mut().rev() {
                assert_eq!(client.ask("post 300"), format!("said 300 {tag}"));
            }
        }
        assert!(other.shares());
    });
}

/// Four namespaces at the ports of a bridge in a fifth, which none of them can see into.
struct Bridged {
    bridge: Space,
    spaces: [Space; 4],
}

impl Bridged {
    fn new() -> Self {
        let bridge = Space::new();
        bridge.ip("link add bridge type bridge");
        bridge.ip("link set bridge up");
        let spaces = [1, 2, 3, 4].map(|number| {
            let (space, id) = (Space::new(), bridge.id());
            space.ip(&format!("link add near type veth peer name port{number} netns {id}"));
            space.ip(&format!("address add 10.99.0.{number}/24 dev near"));
            space.ip("link set near up");
            bridge.ip(&format!("link set port{number} master bridge up"));
            space
        });
        Self { bridge, spaces }
    }
}

/// The members that are reached, or those that are not.
fn pick(
    members: &mut [Talker; 4],
    are_reached: [bool; 4],
    wanted: bool,
) -> impl Iterator<Item = &mut Talker> {
    let each = members.iter_mut().zip(are_reached);
    each.filter_map(move |(member, is_reached)| (is_reached == wanted).then_some(member))
}

/// Goal: members of a group beyond a bridge, accelerated or not, get each datagram once and in order; and one gets none
/// while the bridge lets nothing pass to its port, which its peers cannot see, as a datagram through memory would not.
#[test]
fn groups_beyond_a_bridge_are_the_bridges() {
    with_namespaces("groups_beyond_a_bridge_are_the_bridges", || {
        let (Bridged { bridge, spaces }, place) = (Bridged::new(), Place::new("bridged"));
        let [first, second, third, fourth] = &spaces;
        let (place, tag) = (Some(&place), "a");
        let group = at("239.99.0.1");
        let program = |space, place| Program { space, place, tag, at: group };
        let mut sender = program(first, place).start("group from 10.99.0.1", "sender");
        let mut members = [
            program(first, place).start("member from 10.99.0.1", "same"),
            program(second, place).start("member from 10.99.0.2", "second"),
            program(third, place).start("member from 10.99.0.3", "third"),
            program(fourth, None).start("member from 10.99.0.4", "plain"),
        ];
        let mut get = |numbers: std::ops::Range<u32>, are_reached: [bool; 4]| {
            let (start, end) = (numbers.start, numbers.end);
            for member in pick(&mut members, are_reached, true) {
                member.tell(&format!("take {start} {}", end - start));
            }
            assert_eq!(sender.ask(&format!("send {start} {end}")), format!("said {end}"));
            for member in pick(&mut members, are_reached, true) {
                assert_eq!(
                    member.await_line("said "),
                    format!("said {} from {start}", end - start)
                );
            }
            for member in pick(&mut members, are_reached, false) {
                assert_eq!(member.ask(&format!("take {start} 0")), format!("said 0 from {start}"));
            }
        };
        get(0..1500, [true; 4]);
        let isolate = |how: &str| {
            for port in ["port1", "port3", "port4"] {
                bridge.ip(&format!("link set {port} type bridge_slave isolated {how}"));
            }
        };
        isolate("on");
        get(1500..2000, [true, true, false, false]);
        isolate("off");
        get(2000..3000, [true; 4]);
    });
}

/// Goal: a receiver that is killed is followed by the next one on its port, by memory as well.
#[test]
fn a_receiver_that_is_killed_is_followed_by_the_next() {
    with_namespaces("a_receiver_that_is_killed_is_followed_by_the_next", || {
        let (pair, place) = (Pair::new(), Place::new("followed"));
        let place = Some(&place);
        let server = |tag| Program { space: &pair.far, place, tag, at: at(FAR) };
        let first = server("first").start("echo", "first");
        let client = Program { space: &pair.near, place, tag: "any", at: at(FAR) };
        let mut client = client.start("post", "near");
        assert_eq!(client.ask("post 1000"), "said 1000 first");
        drop(first);
        let second = server("second").start("echo", "second");
        assert_eq!(client.ask("post 1000"), "said 1000 second");
        // On a busy machine what the first had not read may come late.
        let is_by_memory = (0..20).any(|_| {
            let before = packets(&pair.far, "far");
            assert_eq!(client.ask("post 1000"), "said 1000 second");
            packets(&pair.far, "far") - before < 500
        });
        assert!(is_by_memory, "{}", second.explained());
        assert!(second.shares());
    });
}

/// What befalls the receiver of datagrams in another namespace, or the memory that both use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mishap {
    Stopped,
    OtherUser,
    OtherProcesses,
    Nonsense,
    Small,
    Full,
    Filled,
}

/// Goal: every datagram that is asked again gets its answer, and no call of a sender's hangs, whatever befalls.
#[test]
fn datagrams_between_namespaces_arrive_whatever_befalls() {
    let name = "datagrams_between_namespaces_arrive_whatever_befalls";
    with(&["-nm", "-rnm"], name, || {
        use Mishap::{Filled, Full, Nonsense, OtherProcesses, OtherUser, Small, Stopped};
        for mishap in [Stopped, OtherUser, OtherProcesses, Nonsense, Small, Full, Filled] {
            eprintln!("{mishap:?}");
            befalls(mishap);
        }
    });
}

/// Starts a program as another user, and in another process namespace.
const OTHER_USER: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
const OTHER_PROCESSES: [&str; 3] = ["unshare", "-pf", "--kill-child"];

fn befalls(mishap: Mishap) {
    let (pair, place) = (Pair::new(), Place::new("befalls"));
    let rings = place.rings();
    let size = match mishap {
        Mishap::Small | Mishap::Filled => Some("size=64m"),
        Mishap::Full => Some("size=1m"),
        Mishap::Stopped | Mishap::OtherUser | Mishap::OtherProcesses | Mishap::Nonsense => None,
    };
    if let Some(size) = size {
        fs::create_dir(&rings).expect("a directory");
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", size, "-o", "mode=700", "none"])
            .arg(&rings));
    }
    if mishap == Mishap::Full {
        fill(&rings);
    }
    let starter: &[&str] = match mishap {
        Mishap::OtherUser => &OTHER_USER,
        Mishap::OtherProcesses => &OTHER_PROCESSES,
        Mishap::Stopped | Mishap::Nonsense | Mishap::Small | Mishap::Full | Mishap::Filled => &[],
    };
    let can = starter.split_first().is_none_or(|(program, rest)| {
        Command::new(program).args(rest).arg("true").status().is_ok_and(|status| status.success())
    });
    if !can {
        return eprintln!("skipped: {mishap:?} cannot be had");
    }
    let tag = if mishap == Mishap::Nonsense { "wary" } else { "a" };
    let (place, at) = (Some(&place), at(FAR));
    let server = Program { space: &pair.far, place, tag, at }.start_by(starter, "echo", "far");
    let mut client = Program { space: &pair.near, place, tag, at }.start("post", "near");
    assert_eq!(client.ask("post 600"), format!("said 600 {tag}"));
    let shares = match mishap {
        Mishap::Stopped | Mishap::Nonsense | Mishap::Small | Mishap::Filled => true,
        Mishap::OtherUser | Mishap::OtherProcesses | Mishap::Full => false,
    };
    assert_eq!(client.shares(), shares, "{mishap:?}: {}", client.explained());
    let id = libc::pid_t::try_from(server.child.0.id()).expect("a number");
    // SAFETY: numbers alone; the process is a child of this one, and has not been waited for.
    let signal = |signal| assert_eq!(unsafe { libc::kill(id, signal) }, 0);
    match mishap {
        Mishap::Stopped => signal(libc::SIGSTOP),
        Mishap::Nonsense => scribble(&rings),
        Mishap::Filled => fill(&rings),
        Mishap::OtherUser | Mishap::OtherProcesses | Mishap::Small | Mishap::Full => {}
    }
    assert_eq!(client.ask("flood 20000"), "said 20000 sent");
    if mishap == Mishap::Stopped {
        signal(libc::SIGCONT);
    }
    assert_eq!(client.ask("post 600"), format!("said 600 {tag}"));
    drop((server, client));
    if size.is_some() {
        run(Command::new("umount").arg(&rings));
    }
}

/// Leaves no page in a file system.
fn fill(place: &Path) {
    let mut file = fs::File::create(place.join("filler")).expect("a file");
    for size in [1 << 20, 4096, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
}

/// Writes nonsense over everything that the programs share.
fn scribble(place: &Path) {
    let (mut seed, mut count) = (0x9e37_79b9_7f4a_7c15_u64, 0);
    let mut places = vec![place.to_owned()];
    while let Some(at) = places.pop() {
        if at.is_dir() {
            places.extend(
                fs::read_dir(&at).expect("a directory").flatten().map(|entry| entry.path()),
            );
            continue;
        }
        let Ok(file) = fs::OpenOptions::new().write(true).open(&at) else { continue };
        let len = file.metadata().map_or(0, |about| about.len());
        for offset in (0..len.min(1 << 17)).step_by(8) {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            file.write_all_at(&(seed >> 8).to_le_bytes(), offset).expect("a file");
        }
        count += u32::from(len > 0);
    }
    assert!(count > 2, "there is nothing to write over");
}

/// The program of these tests' own children.
#[test]
#[ignore = "the child of another test"]
fn the_child() {
    let Ok(role) = std::env::var("ADVERB_TEST_ROLE") else { return };
    let at = std::env::var("ADVERB_TEST_AT").expect("an address").parse().expect("an address");
    let tag = std::env::var("ADVERB_TEST_TAG").expect("a tag");
    match role.split_once(" from ") {
        None if role == "server" => serve(at, &tag),
        None if role == "echo" => echo(at, &tag),
        None if role == "post" => post(at),
        None => talk(None, at),
        Some(("group", from)) => send_to_group(at, from.parse().expect("an address")),
        Some(("member", from)) => join_group(at, from.parse().expect("an address")),
        Some((_, from)) => talk(Some(from.parse().expect("an address")), at),
    }
}

/// Answers lines of all connections, each in a thread.
fn serve(at: SocketAddr, tag: &str) {
    let listener = TcpListener::bind(at).expect("a port");
    println!("ready");
    for stream in listener.incoming() {
        let (mut stream, tag) = (stream.expect("a connection"), tag.to_owned());
        std::thread::spawn(move || {
            let canonical =
                |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
            let theirs = canonical(stream.peer_addr().expect("a peer"));
            let ours = canonical(stream.local_addr().expect("an address"));
            let lines = BufReader::new(stream.try_clone().expect("a descriptor"));
            for line in lines.lines().map_while(Result::ok) {
                let _ = stream.write_all(format!("{line} {tag} {theirs} {ours}\n").as_bytes());
            }
        });
    }
}

/// Answers datagrams, and never sleeps.
fn echo(at: SocketAddr, tag: &str) {
    let socket = UdpSocket::bind(at).expect("a port");
    socket.set_nonblocking(true).expect("a socket");
    println!("ready");
    let mut buffer = [0; 100];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((got, from)) => {
                let what = String::from_utf8_lossy(buffer.get(..got).expect("as many"));
                let _ = socket.send_to(format!("{what} {tag}").as_bytes(), from);
            }
            Err(_) => std::thread::yield_now(),
        }
    }
}

/// Sends so many datagrams, from a port that is always the same, each when the last has been answered, and says by
/// which receiver the last one was. Those that are not answered are sent again.
fn post(to: SocketAddr) {
    let any =
        if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 47_200)).expect("a port");
    socket.set_nonblocking(true).expect("a socket");
    println!("ready");
    let mut number = 0;
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        if let Some(count) = line.strip_prefix("flood ") {
            (0..count.parse().expect("a number")).for_each(|_: u32| _ = socket.send_to(b"0", to));
            println!("said {count} sent");
            continue;
        }
        let count: u32 = line.strip_prefix("post ").expect("a number").parse().expect("a number");
        let mut tag = String::new();
        for _ in 0..count {
            number += 1;
            tag = answer(&socket, to, number);
        }
        println!("said {count} {tag}");
    }
}

fn numbers(line: &str) -> (u32, u32) {
    let mut words = line.split(' ').skip(1).map(|word| word.parse().expect("a number"));
    (words.next().expect("a number"), words.next().expect("a number"))
}

/// Sends numbers to a group, by the device of an address, a few at a time.
fn send_to_group(group: SocketAddr, from: Ipv4Addr) {
    let socket = UdpSocket::bind((from, 0)).expect("a port");
    let interface = from.octets();
    // SAFETY: four bytes, which are an address.
    let set = unsafe {
        libc::setsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&socket),
            libc::IPPROTO_IP,
            libc::IP_MULTICAST_IF,
            interface.as_ptr().cast(),
            4,
        )
    };
    assert_eq!(set, 0);
    println!("ready");
    for line in std::io::stdin().lines() {
        let (start, end) = numbers(&line.expect("a line"));
        for number in start..end {
            socket.send_to(&number.to_be_bytes(), group).expect("a datagram");
            if number % 4 == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        println!("said {end}");
    }
}

/// Is told how many numbers are to have come, and from which on; waits for them, and a little for more.
fn join_group(group: SocketAddr, by: Ipv4Addr) {
    let socket = UdpSocket::bind(group).expect("a port");
    let IpAddr::V4(address) = group.ip() else { panic!("{group}") };
    socket.join_multicast_v4(&address, &by).expect("a group");
    println!("ready");
    for line in std::io::stdin().lines() {
        let (start, count) = numbers(&line.expect("a line"));
        let mut got = 0;
        let mut bytes = [0; 4];
        loop {
            let limit = if got < count { 20_000 } else { 200 };
            socket.set_read_timeout(Some(Duration::from_millis(limit))).expect("a limit");
            let Ok(len) = socket.recv(&mut bytes) else { break };
            assert_eq!((len, u32::from_be_bytes(bytes)), (4, start + got));
            got += 1;
        }
        println!("said {got} from {start}");
    }
}

/// Which receiver has answered, by its tag.
fn answer(socket: &UdpSocket, to: SocketAddr, number: u32) -> String {
    let mut buffer = [0; 100];
    loop {
        let _ = socket.send_to(number.to_string().as_bytes(), to);
        let sent = Instant::now();
        while sent.elapsed() < Duration::from_millis(500) {
            let Ok((got, from)) = socket.recv_from(&mut buffer) else {
                std::thread::yield_now();
                continue;
            };
            let text = String::from_utf8_lossy(buffer.get(..got).expect("as many")).into_owned();
            let words = text.split_once(' ').filter(|_| from == to);
            let Some((what, tag)) = words else {
                // Where nonsense is written to memory, it may be received.
                let is_wary = std::env::var("ADVERB_TEST_TAG").is_ok_and(|tag| tag == "wary");
                assert!(is_wary, "{from}: {text}");
                continue;
            };
            if what == number.to_string() {
                return tag.to_owned();
            }
        }
    }
}

/// Does what the lines on its standard input say.
fn talk(from: Option<IpAddr>, to: SocketAddr) {
    let stream = connect(from, to);
    let mut answers = BufReader::new(&stream);
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("send", what) => {
                (&stream).write_all(format!("{what}\n").as_bytes()).expect("a connection");
                let mut answer = String::new();
                answers.read_line(&mut answer).expect("an answer");
                println!("said {}", answer.trim_end());
            }
            ("names", _) => {
                let ours = stream.local_addr().expect("an address");
                println!("said {ours} {}", stream.peer_addr().expect("an address"));
            }
            _ => {
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let limit = Instant::now() + Duration::from_secs(60);
                match answers.read_to_end(&mut Vec::new()) {
                    Ok(_) => println!("said closed"),
                    Err(error) => println!("said error {error}"),
                }
                assert!(Instant::now() < limit, "the end has not been noticed");
            }
        }
    }
}

/// A connection from a port that is always the same.
fn connect(from: Option<IpAddr>, to: SocketAddr) -> TcpStream {
    if from.is_none() && to.is_ipv6() {
        return TcpStream::connect(to).expect("a connection");
    }
    let from = match from {
        Some(IpAddr::V4(v4)) => v4.to_bits().to_be(),
        Some(IpAddr::V6(_)) | None => 0,
    };
    let (IpAddr::V4(to_ip), port) = (to.ip(), to.port()) else { panic!("{to}") };
    let address = |addr: u32, port: u16| libc::sockaddr_in {
        sin_family: libc::AF_INET.try_into().expect("a small number"),
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: addr },
        sin_zero: [0; 8],
    };
    let (here, there) = (address(from, 47_100), address(to_ip.to_bits().to_be(), port));
    let len = u32::try_from(size_of_val(&here)).expect("a small number");
    let on = 1_i32;
    // SAFETY: locals of the lengths that are said, and a descriptor that is ours.
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "a connection in five steps")]
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        let (level, name) = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
        assert_eq!(libc::setsockopt(fd, level, name, (&raw const on).cast(), 4), 0);
        assert_eq!(libc::bind(fd, (&raw const here).cast(), len), 0);
        // The same port again after a moment: the other end may not have forgotten it.
        let connected = (0..600).any(|_| {
            let done = libc::connect(fd, (&raw const there).cast(), len) == 0;
            if !done {
                std::thread::sleep(Duration::from_millis(100));
            }
            done
        });
        assert!(connected, "{}", std::io::Error::last_os_error());
        TcpStream::from_raw_fd(fd)
    }
}
