//! Namespaces, the cable between them, and frames as bytes.

use std::io::{BufRead, BufReader, Lines};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Runs a test again as the user and in the namespace that may make others; says so where none can be had.
pub(crate) fn with_namespaces(name: &str, test: impl FnOnce()) {
    if std::env::var_os("ADVERB_TEST_NAMESPACES").is_some() {
        return test();
    }
    let probe = adverb_sys::bpf::Map::create(adverb_sys::bpf::MapKind::XdpSockets, 4, 4, 1);
    if let Err(error) = probe {
        return println!("skipped: no AF_XDP to be had: {error}");
    }
    let mut command = Command::new("unshare");
    command.arg("-n").arg(myself()).args(["--exact", name, "--nocapture"]);
    let Ok(output) = command.env("ADVERB_TEST_NAMESPACES", "1").output() else {
        return println!("skipped: no unshare");
    };
    let text = String::from_utf8_lossy(&output.stdout);
    if !text.contains("running 1 test") {
        return println!("skipped: no namespace to be had");
    }
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
}

fn myself() -> std::path::PathBuf {
    std::env::current_exe().expect("a path of this test")
}

/// A program that ends with the test.
pub(crate) struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    /// Starts a program, and waits for the line by which it says that it is ready.
    fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a program");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut running = Self { child, lines };
        running.wait_for("ready");
        running
    }

    /// This binary in a role.
    fn start_role(command: &mut Command, role: &str, with: &str) -> Self {
        command.args(["--exact", "roles::a_role", "--nocapture"]);
        Self::start(command.env("ADVERB_TEST_ROLE", role).env("ADVERB_TEST_WITH", with))
    }

    /// Waits until it says this.
    pub(crate) fn wait_for(&mut self, said: &str) {
        let found = self.lines.by_ref().any(|line| line.is_ok_and(|line| line.ends_with(said)));
        assert!(found, "it ended before it was {said}");
    }

    pub(crate) fn id(&self) -> String {
        self.child.id().to_string()
    }

    /// Stops it: none of its threads does anything more.
    pub(crate) fn stop(&self) {
        run(Command::new("kill").args(["-STOP", &self.id()]));
        assert!(super::soon(|| adverb_sys::process::is_stopped(self.child.id())), "it goes on");
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self) {
        run(Command::new("kill").args(["-CONT", &self.id()]));
    }

    /// Ends it as `kill -9` does.
    pub(crate) fn kill(self) {
        drop(self);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This binary in a role, in the namespace of the caller.
pub(crate) fn near_role(role: &str, with: &str) -> Running {
    Running::start_role(&mut Command::new(myself()), role, with)
}

/// The same in a process namespace of its own.
pub(crate) fn apart_role(role: &str) -> Running {
    let mut command = Command::new("unshare");
    command.args(["-p", "-f", "--kill-child"]).arg(myself());
    Running::start_role(&mut command, role, "")
}

/// The same as another user.
pub(crate) fn user_role(user: u32, role: &str, with: &str) -> Running {
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={user}"), "--clear-groups"]).arg(myself());
    Running::start_role(&mut command, role, with)
}

/// An owner as that user, with these capabilities and no others, that may lock so many bytes of memory: by the soft limit and by
/// the hard one.
pub(crate) fn limited_owner(
    user: u32,
    caps: &str,
    (soft, hard): (u64, u64),
    with: &str,
) -> Running {
    let mut command = Command::new("prlimit");
    command.args([format!("--memlock={soft}:{hard}"), "setpriv".to_owned()]);
    command.args([format!("--reuid={user}"), "--clear-groups".to_owned()]);
    let sets = ["--inh-caps", "--ambient-caps", "--bounding-set"];
    command.args(sets.map(|set| format!("{set}=-all,{caps}"))).arg(myself());
    Running::start_role(&mut command, "owner", with)
}

/// The near end of a cable, which is this namespace, and the far end.
pub(crate) struct Pair {
    far: Running,
}

pub(crate) const NEAR: &str = "10.97.0.1";
pub(crate) const FAR: &str = "10.97.0.2";
pub(crate) const NEAR_6: &str = "fd97::1";
pub(crate) const FAR_6: &str = "fd97::2";
/// Hardware addresses of packets from near to far.
pub(crate) const MACS: ([u8; 6], [u8; 6]) = (NEAR_MAC, FAR_MAC);
const NEAR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const FAR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

impl Pair {
    /// A cable with that many queues; neighbours know each other.
    pub(crate) fn new(queues: u32) -> Self {
        let pair = Self { far: namespace() };
        let _ = Command::new("ip").args(["link", "delete", "near"]).stderr(Stdio::null()).status();
        let queues = format!("numtxqueues {queues} numrxqueues {queues}");
        let far = pair.far.id();
        run(Command::new("ip").args(
            format!("link add near {queues} type veth peer name far netns {far} {queues}")
                .split(' '),
        ));
        for (far, device, mac, v4, v6, other, v4_other, v6_other) in [
            (false, "near", NEAR_MAC, NEAR, NEAR_6, FAR_MAC, FAR, FAR_6),
            (true, "far", FAR_MAC, FAR, FAR_6, NEAR_MAC, NEAR, NEAR_6),
        ] {
            for words in [
                format!("link set {device} address {} up", text(mac)),
                format!("address add {v4}/24 dev {device}"),
                format!("address add {v6}/64 dev {device} nodad"),
                format!("neighbour replace {v4_other} lladdr {} dev {device}", text(other)),
                format!("neighbour replace {v6_other} lladdr {} dev {device}", text(other)),
            ] {
                let mut command = if far { pair.far_command("ip") } else { Command::new("ip") };
                run(command.args(words.split(' ')));
            }
        }
        pair.wait_until_up();
        pair
    }

    /// The kernel drops packets until it has noticed that both ends of the cable are there.
    fn wait_until_up(&self) {
        for (mut command, device) in [(Command::new("ip"), "near"), (self.far_command("ip"), "far")]
        {
            command.args(["link", "show", device]);
            let is_up = || {
                let output = command.output().expect("a program");
                String::from_utf8_lossy(&output.stdout).contains("state UP")
            };
            assert!(super::soon(is_up), "{device} stays down");
        }
    }

    pub(crate) fn far_command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        command_in(&self.far, program)
    }

    /// This binary in a role at the far end.
    pub(crate) fn far_role(&self, role: &str, with: &str) -> Running {
        role_in(&self.far, role, with)
    }
}

/// A program that does nothing, in a network namespace of its own.
pub(crate) fn namespace() -> Running {
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", "ip link set lo up && echo ready && exec cat"]);
    Running::start(&mut command)
}

/// A program in the network namespace of another.
pub(crate) fn command_in(other: &Running, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["-n", "-t", &other.id(), "--"]).arg(program);
    command
}

/// This binary in a role in the network namespace of another program.
pub(crate) fn role_in(other: &Running, role: &str, with: &str) -> Running {
    Running::start_role(&mut command_in(other, myself()), role, with)
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

pub(crate) fn run(command: &mut Command) {
    let output = command.output().expect("a program");
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// The number of an interface of this namespace.
pub(crate) fn index(name: &str) -> u32 {
    let all = adverb_sys::netdev::interfaces().unwrap();
    all.into_iter().find(|interface| interface.name == name).unwrap().index
}

/// An Ethernet frame with a UDP datagram.
pub(crate) fn frame(
    (from_mac, to_mac): ([u8; 6], [u8; 6]),
    (from, from_port): (&str, u16),
    (to, to_port): (&str, u16),
    payload: &[u8],
) -> Vec<u8> {
    let udp_len = u16::try_from(payload.len() + 8).unwrap().to_be_bytes();
    let udp = [from_port.to_be_bytes(), to_port.to_be_bytes(), udp_len, [0; 2]].concat();
    let mut udp = [udp.as_slice(), payload].concat();
    let ip = match (from.parse().unwrap(), to.parse().unwrap()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let [l0, l1] = u16::try_from(udp.len() + 20).unwrap().to_be_bytes();
            let mut ip = vec![0x45, 0, l0, l1, 0, 1, 0x40, 0, 64, 17, 0, 0];
            ip.extend([from.octets(), to.octets()].concat());
            let sum = sum(&ip).to_be_bytes();
            ip[10..12].copy_from_slice(&sum);
            [&[0x08, 0x00], ip.as_slice()].concat()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let addresses = [from.octets(), to.octets()].concat();
            let pseudo = [addresses.as_slice(), &[0, 0], &udp_len, &[0, 0, 0, 17]].concat();
            let sum = sum(&[pseudo.as_slice(), &udp].concat()).to_be_bytes();
            udp[6..8].copy_from_slice(&sum);
            let [l0, l1] = udp_len;
            [&[0x86, 0xdd, 0x60, 0, 0, 0, l0, l1, 17, 64], addresses.as_slice()].concat()
        }
        _ => panic!("two families"),
    };
    [to_mac.as_slice(), &from_mac, &ip, &udp].concat()
}

/// The internet check sum.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |byte| u32::from(*byte)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}

/// Where the UDP datagram in a frame comes from and goes to, and what it carries.
pub(crate) fn read(frame: &[u8]) -> Option<(SocketAddr, SocketAddr, &[u8])> {
    let ip = frame.get(14..)?;
    let (from, to, udp): (IpAddr, IpAddr, _) = match frame.get(12..14)? {
        [0x08, 0x00] => {
            let octets = |at: usize| ip.get(at..at + 4)?.first_chunk::<4>().copied();
            (octets(12)?.into(), octets(16)?.into(), ip.get(20..)?)
        }
        [0x86, 0xdd] => {
            let octets = |at: usize| ip.get(at..at + 16)?.first_chunk::<16>().copied();
            (octets(8)?.into(), octets(24)?.into(), ip.get(40..)?)
        }
        _ => return None,
    };
    let half = |at: usize| Some(u16::from_be_bytes(*udp.get(at..at + 2)?.first_chunk()?));
    let payload = udp.get(8..usize::from(half(4)?))?;
    Some((SocketAddr::new(from, half(0)?), SocketAddr::new(to, half(2)?), payload))
}
