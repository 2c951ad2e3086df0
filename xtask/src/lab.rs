//! The lab: the software device against the RoCE driver of a Linux kernel (`rdma_rxe`), packet by packet.
//!
//! A virtual machine (qemu, no acceleration needed) runs a kernel of Debian's with `rxe`; on it, and here, runs
//! the example `lab_peer`: there over the `hw` provider, here over the software device, joined by a tap in a
//! network namespace of the lab's own. Each case is one conversation, and every byte is compared. Programs that meet by
//! connection management are in `lab/pings.rs`. Needs root.

mod pings;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use self::pings::Part;
use crate::Failure;
use crate::program::{among_others, run, target};

const NAMESPACE: &str = "adverb-lab";
const TAP: &str = "alab0";
const DEVICE: &str = "soft_alab0";
/// Families of addresses, and addresses: of this side, and of the machine.
const HOST: [(&str, &str); 2] = [("4", "10.77.0.1"), ("6", "fd77::1")];
const GUEST: [(&str, &str); 2] = [("4", "10.77.0.2"), ("6", "fd77::2")];
/// Longest time until the machine serves; the start of an emulated one takes about 30 s.
const BOOT_MAX: Duration = Duration::from_secs(180);
/// Longest time for one conversation.
const CASE_SECONDS_MAX: &str = "180";

/// What is asked of one conversation.
#[derive(Debug)]
struct Case {
    name: String,
    family: usize,
    loss_percent: u32,
    talk: Talk,
}

#[derive(Clone, Debug)]
enum Talk {
    /// `rping` in the machine, on a software device and on the kernel's at once, so many times.
    Beside(u32),
    /// `rping`, so many times.
    Ping(Part, u32),
    /// `lab_peer`, with these words.
    Verbs(String),
}

/// Boots the machine, holds all conversations, says how each went.
/// Those whose name has `only` in it, `times` each.
pub(crate) fn lab(root: &Path, only: &str, times: u64) -> Result<(), Failure> {
    if let Some(reason) = lacking() {
        println!("skipped: no lab: {reason}");
        return Ok(());
    }
    let target = target(root);
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root);
    cargo.args(["build", "--workspace", "--lib", "--example", "lab_peer"]);
    run(cargo)?;
    let program = target.join("debug/examples/lab_peer");
    let library = target.join("debug/libadverb_ibverbs.so");
    let dir = target.join("lab");
    let mut image = Command::new(root.join("xtask/lab/image"));
    image.arg(&dir).arg(&program).arg(&library);
    run(image)?;
    let start = Instant::now();
    let machine = Machine::boot(&dir, &program, &library)?;
    println!("the machine serves after {:.0} s", start.elapsed().as_secs_f64());
    let mut cases: Vec<_> = cases().into_iter().chain(pings::cases()).collect();
    cases.retain(|case| case.name.contains(only));
    let mut failed = 0;
    for case in &cases {
        for _ in 0..times {
            let start = Instant::now();
            let outcome = machine.hold(case);
            let seconds = start.elapsed().as_secs_f64();
            match &outcome {
                Ok(said) => println!("pass {seconds:5.1} s  {}: {}", case.name, said.trim()),
                Err(failure) => {
                    failed += 1;
                    println!("FAIL {seconds:5.1} s  {}: {}", case.name, failure.trim());
                    println!("  {:?}", case.talk);
                }
            }
        }
    }
    println!(
        "{} conversations with rxe, {failed} failed, {:.0} s",
        cases.len(),
        start.elapsed().as_secs_f64()
    );
    match failed {
        0 => Ok(()),
        _ => Err(format!(
            "{failed} conversations failed; the machine's console: {}",
            machine.console.display()
        )),
    }
}

/// What this machine has not and the lab needs.
fn lacking() -> Option<String> {
    if !run(among_others(&["id", "-u"])).is_ok_and(|id| id.stdout == b"0\n") {
        return Some("it needs root".to_owned());
    }
    if !Path::new("/dev/net/tun").exists() {
        return Some("it needs /dev/net/tun".to_owned());
    }
    let tools = [
        "qemu-system-x86_64",
        "apt-get",
        "modprobe",
        "cpio",
        "busybox",
        "rdma",
        "tc",
        "iptables",
        "rping",
    ];
    let is_missing =
        |tool: &&&str| run(among_others(&["sh", "-c", &format!("command -v {tool}")])).is_err();
    tools.iter().find(is_missing).map(|tool| format!("it needs {tool}"))
}

/// All conversations. Sizes lie around the ends of packets. Where messages may be lost, one receive fits all.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |family: usize, loss_percent, words: String, ops: &str, what: &str| {
        let ip = ["IPv4", "IPv6"].get(family).copied().unwrap_or_default();
        let loss =
            if loss_percent > 0 { format!(", {loss_percent} % loss") } else { String::new() };
        let name = format!("{what}, {words}, {ip}{loss}");
        let talk = Talk::Verbs(format!("{words} ops={ops}"));
        cases.push(Case { name, family, loss_percent, talk });
    };
    for family in [0, 1] {
        for mtu in [256_usize, 1024, 4096] {
            let sizes = [0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 5];
            let mut reliable = each(&["send", "imm", "write", "wimm", "read"], &sizes);
            reliable.push_str(",cas,faa,cas,faa");
            let unreliable = each(&["send", "imm", "write", "wimm"], &sizes);
            let datagrams = each(&["send", "imm"], &[0, 1, mtu - 1, mtu]);
            for active in ["here", "there"] {
                for (transport, ops) in [("RC", &reliable), ("UC", &unreliable), ("UD", &datagrams)]
                {
                    let words = format!("transport={transport} mtu={mtu} active={active}");
                    add(family, 0, words, ops, "every operation");
                }
            }
        }
    }
    for active in ["here", "there"] {
        for transport in ["RC", "UD"] {
            let words = format!("transport={transport} active={active} receives=srq");
            add(0, 0, words, "send:100,imm:1024,send:0,send:7", "shared receive queue");
        }
        for ops in ["send:16777216", "write:16777216", "read:16777216"] {
            add(0, 0, format!("mtu=4096 active={active}"), ops, &format!("16 MiB, {ops}"));
        }
        let mixed = ["send:3000,write:70001,read:50000,wimm:2500,imm:9,faa,cas"; 4].join(",");
        for loss in [1, 5] {
            for (family, mtu) in [(0, 1024), (0, 4096), (1, 1024)] {
                add(family, loss, format!("mtu={mtu} active={active}"), &mixed, "mixed");
            }
            for (transport, ops) in [("UC", "send:3000,imm:3000"), ("UD", "send:1000,imm:1000")] {
                let words = format!("transport={transport} loss=yes active={active}");
                add(0, loss, words, &[ops; 16].join(","), "mixed");
            }
        }
    }
    add(0, 0, "active=there".to_owned(), "inv:700,inv:5000", "memory windows");
    cases
}

/// Each operation at each size.
fn each(names: &[&str], sizes: &[usize]) -> String {
    let each = names.iter().flat_map(|name| sizes.iter().map(move |size| format!("{name}:{size}")));
    each.collect::<Vec<_>>().join(",")
}

/// The running machine, the namespace that it is in, and the program here.
struct Machine {
    qemu: Child,
    console: PathBuf,
    program: PathBuf,
    /// In front of libibverbs, for programs here.
    library: PathBuf,
}

impl Machine {
    fn boot(dir: &Path, program: &Path, library: &Path) -> Result<Self, Failure> {
        forget_namespace();
        let tap = format!(
            "ip netns add {NAMESPACE} && ip netns exec {NAMESPACE} sh -ec '
                ip link set lo up
                ip tuntap add {TAP} mode tap vnet_hdr
                echo 0 >/proc/sys/net/ipv6/conf/{TAP}/accept_dad
                ip link set {TAP} mtu 9000 up
                ip address add 10.77.0.1/24 dev {TAP}
                ip address add fd77::1/64 dev {TAP}
                for tables in iptables ip6tables; do $tables -N loss; $tables -A INPUT -p udp --dport 4791 -j loss; done'"
        );
        run(among_others(&["sh", "-ec", &tap]))?;
        let console = dir.join("console.log");
        let mut command = inside("qemu-system-x86_64");
        command.args("-accel tcg,thread=multi -cpu max -machine q35 -smp 2 -m 1G -nodefaults -no-user-config".split(' '));
        command.args("-display none -no-reboot".split(' '));
        command.arg("-kernel").arg(dir.join("vmlinuz")).arg("-initrd").arg(dir.join("initrd"));
        command.args(["-append", "console=ttyS0 quiet panic=-1 mitigations=off rdinit=/init"]);
        command.args(["-netdev", &format!("tap,id=n0,ifname={TAP},script=no,downscript=no")]);
        command.args("-device virtio-net-pci,netdev=n0 -device virtio-rng-pci".split(' '));
        command.arg("-serial").arg(format!("file:{}", console.display()));
        command.stdin(Stdio::null());
        let qemu = command.spawn().map_err(|error| format!("cannot run qemu: {error}"))?;
        let mut machine =
            Self { qemu, console, program: program.to_owned(), library: library.to_owned() };
        let end = Instant::now() + BOOT_MAX;
        while machine.shell(20, "true").is_err() {
            let has_ended = !matches!(machine.qemu.try_wait(), Ok(None));
            if has_ended || Instant::now() > end {
                let console = fs::read_to_string(&machine.console).unwrap_or_default();
                return Err(format!("the machine does not serve; its console says:\n{console}"));
            }
            thread::sleep(Duration::from_millis(500));
        }
        Ok(machine)
    }

    /// Holds one conversation, under its loss of packets at both receivers.
    fn hold(&self, case: &Case) -> Result<String, Failure> {
        self.lose(case.loss_percent)?;
        let words = match &case.talk {
            Talk::Beside(count) => return pings::beside(self, *count),
            Talk::Ping(part, count) => return pings::hold(self, case, *part, *count),
            Talk::Verbs(words) => words,
        };
        let (family, guest) = GUEST.get(case.family).ok_or("there are two families")?;
        let mut command = inside("timeout");
        command.arg(CASE_SECONDS_MAX).arg(&self.program).args([guest, DEVICE]);
        command.arg(format!("family={family}")).args(words.split(' '));
        let output = run(command)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// From now on this share of the packets to port 4791 is lost on their arrival, here and there.
    fn lose(&self, percent: u32) -> Result<(), Failure> {
        let (here, there) = match percent {
            0 => (String::new(), String::new()),
            _ => {
                let here = format!(
                    "$tables -A loss -m statistic --mode random --probability 0.{percent:02} -j DROP"
                );
                let every = 100 / percent;
                let filter = |protocol, prio| {
                    format!(
                        "/tools/tc filter add dev eth0 ingress protocol {protocol} prio {prio} u32 \
                         match {protocol} dport 4791 0xffff action ok random netrand drop {every} &&"
                    )
                };
                (
                    here,
                    format!(
                        "{}{}",
                        filter("ip", 1),
                        filter("ipv6", 2).replace("match ipv6", "match ip6")
                    ),
                )
            }
        };
        let script = format!("for tables in iptables ip6tables; do $tables -F loss; {here}; done")
            .replace("; ;", ";");
        let mut command = inside("sh");
        command.args(["-ec", &script]);
        run(command)?;
        self.shell(20, &format!("/tools/tc filter delete dev eth0 ingress; {there} true"))
    }

    /// Has the machine run a command, which may take so many seconds.
    fn shell(&self, seconds: u32, line: &str) -> Result<(), Failure> {
        let mut command = inside("timeout");
        command.arg(seconds.to_string()).arg(&self.program).args([GUEST[0].1, "sh", line]);
        run(command).map(|_| ())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.qemu.kill(); // It may have ended.
        let _ = self.qemu.wait();
        forget_namespace();
    }
}

fn forget_namespace() {
    let _ = run(among_others(&["ip", "netns", "delete", NAMESPACE])); // There may be none.
}

/// A program in the lab's network namespace.
fn inside(program: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", NAMESPACE, program]);
    command
}
