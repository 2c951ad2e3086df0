//! What two hosts get from one another: `adverb bench` between two network namespaces, over links of all kinds.
//!
//! Each line is a link: an Ethernet of an MTU, with a share of packets lost at both receivers (iptables), with a
//! delay, or out of order (the example `lab_relay`, in a namespace between the two). Its figures stand beside those
//! of the same link without faults. A benchmark: it asserts nothing. Needs root, iproute2, iptables and ethtool.

use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::Failure;
use crate::program::{among_others, run, target};

const CLIENT: &str = "anet-a";
const SERVER: &str = "anet-b";
const RELAY: &str = "anet-r";
const SERVER_ADDRESS: &str = "10.78.0.2";

/// Longest run of a client.
const CLIENT_SECONDS_MAX: &str = "120";

/// A link between the two hosts.
#[derive(Clone, Copy, Debug)]
struct Link {
    mtu: u32,
    /// Packets that are lost at each receiver, of 1,000.
    lost: u32,
    /// Through the relay, with this delay in microseconds and so many packets that may overtake one.
    relay: Option<(u32, u32)>,
}

impl Link {
    fn name(self) -> String {
        let mut name = format!("MTU {}", self.mtu);
        if self.lost > 0 {
            name += &format!(", {}.{} % lost", self.lost / 10, self.lost % 10);
        }
        match self.relay {
            None => {}
            Some((0, 0)) => name += ", relay",
            Some((delay, 0)) => name += &format!(", relay, {delay} us"),
            Some((_, reorder)) => name += &format!(", relay, out of order by up to {reorder}"),
        }
        name
    }

    /// The same without faults.
    fn sound(self) -> Self {
        Self { lost: 0, relay: self.relay.map(|_| (0, 0)), ..self }
    }

    fn measure(self, adverb: &Path, relay: &Path) -> Result<Figures, Failure> {
        Hosts::join(self, relay)?.measure(adverb)
    }
}

const LINKS: [Link; 11] = [
    Link { mtu: 1500, lost: 0, relay: None },
    Link { mtu: 1500, lost: 1, relay: None },
    Link { mtu: 1500, lost: 10, relay: None },
    Link { mtu: 1500, lost: 50, relay: None },
    Link { mtu: 9000, lost: 0, relay: None },
    Link { mtu: 9000, lost: 1, relay: None },
    Link { mtu: 9000, lost: 10, relay: None },
    Link { mtu: 9000, lost: 50, relay: None },
    Link { mtu: 1500, lost: 0, relay: Some((0, 0)) },
    Link { mtu: 1500, lost: 0, relay: Some((0, 8)) },
    Link { mtu: 1500, lost: 0, relay: Some((1000, 0)) },
];

/// Measures over all links, or over those whose name has `only` in it.
pub(crate) fn net(root: &Path, only: &str) -> Result<(), Failure> {
    // Without it frames are not what the table says: a loss would take a train of packets, not one.
    let mut ethtool = Command::new("ethtool");
    ethtool.arg("--version").stdout(Stdio::null());
    run(ethtool)?;
    let target = target(root);
    for words in [
        &["build", "--profile", "gate", "--bin", "adverb"][..],
        &["build", "--profile", "gate", "-p", "adverb-verbs", "--example", "lab_relay"],
    ] {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(root).args(words);
        run(cargo)?;
    }
    let (adverb, relay) = (target.join("gate/adverb"), target.join("gate/examples/lab_relay"));
    println!(
        "1 MiB, MB/s, and share of the same link without faults, in turn with it; 64 B SEND, half a round trip; medians of \
         {ROUNDS} rounds\n"
    );
    println!(
        "{:<42} {:>14} {:>14} {:>14} {:>10} {:>10}",
        "link", "SEND", "WRITE", "READ", "p50 us", "p99.9 us"
    );
    for link in LINKS.iter().filter(|link| link.name().contains(only)) {
        let rounds: Result<Vec<_>, Failure> = (0..ROUNDS)
            .map(|_| Ok((link.sound().measure(&adverb, &relay)?, link.measure(&adverb, &relay)?)))
            .collect();
        let rounds = match rounds {
            Ok(rounds) => rounds,
            Err(failure) => {
                println!("{:<42} {failure}", link.name());
                continue;
            }
        };
        let mut line = format!("{:<42}", link.name());
        for at in 0..OPS.len() {
            let of = |figures: &Figures| figures.bandwidth.get(at).copied().unwrap_or(f64::NAN);
            let bandwidth = median(rounds.iter().map(|(_, link)| of(link)));
            let share = median(rounds.iter().map(|(sound, link)| of(link) / of(sound)));
            line += &format!(" {:>8.0} {share:>5.2}", bandwidth / 1e6);
        }
        for at in 0..PERCENTILES.len() {
            let of = |figures: &Figures| figures.latency.get(at).copied().unwrap_or(f64::NAN);
            let nanoseconds = median(rounds.iter().map(|(_, link)| of(link)));
            line += &format!(" {:>10.1}", nanoseconds / 1e3);
        }
        println!("{line}");
    }
    Ok(())
}

/// Each link takes turns so often with the same without faults: a machine that is slower for some seconds is so for both.
const ROUNDS: usize = 5;
const OPS: [&str; 3] = ["send", "write", "read"];
const PERCENTILES: [&str; 2] = ["p50", "p999"];

/// Of an odd number.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What one link gives.
struct Figures {
    /// Bytes a second of SEND, WRITE, READ.
    bandwidth: [f64; 3],
    /// Nanoseconds, median and 99.9th percentile.
    latency: [f64; 2],
}

/// Two namespaces and the link between them, gone when dropped.
struct Hosts {
    relay: Option<Child>,
}

impl Hosts {
    fn join(link: Link, relay: &Path) -> Result<Self, Failure> {
        forget();
        let mut hosts = Self { relay: None };
        let mtu = link.mtu;
        let far = if link.relay.is_some() { RELAY } else { SERVER };
        let mut script = format!(
            "for n in {CLIENT} {SERVER} {RELAY}; do ip netns add $n; ip -n $n link set lo up; done
            ip link add anet0 netns {CLIENT} mtu {mtu} type veth peer name anet1 netns {far} mtu {mtu}\n"
        );
        if link.relay.is_some() {
            script += &format!(
                "ip link add anet2 netns {RELAY} mtu {mtu} type veth peer name anet1 netns {SERVER} mtu {mtu}\n"
            );
        }
        // The relay takes frames as they are: checksums have to be in them.
        let checksums = if link.relay.is_some() { "tx off" } else { "" };
        script += &format!(
            "for n in {CLIENT} {SERVER} {RELAY}; do for i in anet0 anet1 anet2; do
                ip -n $n link set $i up 2>/dev/null || continue
                ip netns exec $n ethtool -K $i gso off gro off tso off tx-udp-segmentation off {checksums} >/dev/null 2>&1 || true
            done; done
            ip -n {CLIENT} address add 10.78.0.1/24 dev anet0
            ip -n {SERVER} address add {SERVER_ADDRESS}/24 dev anet1\n"
        );
        if link.lost > 0 || link.relay.is_none() {
            // The rule itself takes up to a fifth of the bytes: a link without losses has one that drops one packet of 10^8.
            let share = match link.lost {
                0 => String::from("0.00000001"),
                lost => format!("0.{lost:03}"),
            };
            script += &format!(
                "for n in {CLIENT} {SERVER}; do
                    ip netns exec $n iptables -A INPUT -p udp --dport 4791 -m statistic --mode random --probability {share} -j DROP
                done\n"
            );
        }
        run(among_others(&["sh", "-ec", &script]))?;
        if let Some((delay, reorder)) = link.relay {
            let mut command = inside(RELAY);
            command.arg(relay).args(["anet1", "anet2", &delay.to_string(), &reorder.to_string()]);
            command.stdout(Stdio::null());
            hosts.relay =
                Some(command.spawn().map_err(|error| format!("cannot run the relay: {error}"))?);
        }
        Ok(hosts)
    }

    fn measure(&self, adverb: &Path) -> Result<Figures, Failure> {
        let mut server = inside(SERVER);
        server.arg(adverb).args(["bench", "--server"]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server =
            server.spawn().map_err(|error| format!("cannot run the server: {error}"))?;
        thread::sleep(Duration::from_millis(500));
        let bandwidth = ask(adverb, &["--test", "bandwidth", "-s", "1M", "-D", "0.3"]);
        let latency = ask(adverb, &["--test", "latency", "--op", "send", "-s", "64", "-D", "0.5"]);
        let _ = server.kill(); // It serves for ever.
        let _ = server.wait();
        let (bandwidth, latency) = (bandwidth?, latency?);
        let of = |op: &str| {
            let best = results(&bandwidth)
                .filter(|row| row["op"] == op)
                .filter_map(|row| row["bytes_per_s"].as_f64());
            best.fold(0.0, f64::max)
        };
        let percentile = |name: &str| {
            let found = results(&latency).find_map(|row| row["half_rtt_ns"].get(name)?.as_f64());
            found.unwrap_or(f64::NAN)
        };
        Ok(Figures { bandwidth: OPS.map(of), latency: PERCENTILES.map(percentile) })
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if let Some(relay) = &mut self.relay {
            let _ = relay.kill(); // It may have ended.
            let _ = relay.wait();
        }
        forget();
    }
}

fn results(document: &Value) -> impl Iterator<Item = &Value> {
    document["results"].as_array().into_iter().flatten()
}

fn ask(adverb: &Path, words: &[&str]) -> Result<Value, Failure> {
    let mut client = inside(CLIENT);
    client
        .args(["timeout", CLIENT_SECONDS_MAX])
        .arg(adverb)
        .args(["bench", SERVER_ADDRESS, "--no-floor", "--rounds", "1", "--json"])
        .args(words);
    let output = run(client)?;
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("the answer of adverb bench: {error}"))
}

fn forget() {
    for namespace in [CLIENT, SERVER, RELAY] {
        let _ = run(among_others(&["ip", "netns", "delete", namespace])); // There may be none.
    }
}

/// A command in one of the namespaces.
fn inside(namespace: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]);
    command
}
