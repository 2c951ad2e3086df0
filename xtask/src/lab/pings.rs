//! Conversations of the connection manager: `rping` of rdma-core, here on the software device by the library in front
//! of libibverbs, there on the kernel's `rdma_cm`.
//!
//! The machine starts two servers that stay, one for each version of IP (`xtask/lab/init`). A server here lives for one
//! conversation.

use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{Case, GUEST, HOST, Machine, Talk, inside};
use crate::Failure;
use crate::program::run;

/// Part of this side in one run of `rping`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// The client is here.
    Client,
    /// The client is here, and asks for a port of the machine that no program listens to.
    ClientOfNothing,
    /// The server is here.
    Server,
    /// The client is there, and asks for a port that no program here listens to.
    ServerOfNothing,
}

/// All runs of `rping`: both parts, both versions of IP, with loss, and where nothing listens.
pub(super) fn cases() -> impl Iterator<Item = Case> {
    let lossless = [Part::Client, Part::Server, Part::ClientOfNothing, Part::ServerOfNothing];
    let lossless = lossless.into_iter().flat_map(|part| [(part, 0, 0, 20), (part, 1, 0, 20)]);
    let lossy = [Part::Client, Part::Server].map(|part| (part, 0, 1, 100));
    let beside = Case {
        name: "rping, both sides there, on a software device and on the kernel's at once"
            .to_owned(),
        family: 0,
        loss_percent: 0,
        talk: Talk::Beside(200),
    };
    let with_the_kernel = lossless.chain(lossy).map(|(part, family, loss_percent, count)| {
        let ip = ["IPv4", "IPv6"].get(family).copied().unwrap_or_default();
        let what = match part {
            Part::Client => format!("client here, {count} pings"),
            Part::Server => format!("server here, {count} pings"),
            Part::ClientOfNothing => "client here, nothing listens there".to_owned(),
            Part::ServerOfNothing => "client there, nothing listens here".to_owned(),
        };
        let name = format!("rping, {what}, {ip}, {loss_percent} % loss");
        Case { name, family, loss_percent, talk: Talk::Ping(part, count) }
    });
    with_the_kernel.chain([beside])
}

/// Has the machine run programs on the kernel's device and on a software one at the same time, all with the library in
/// front: `ADVERB_DEVICES` says whose connection manager a program has. In the machine's own network namespace port 4791
/// is the kernel's, so the software device has one of its own.
pub(super) fn beside(machine: &Machine, count: u32) -> Result<String, Failure> {
    let on = |devices: &str, line: &str| {
        format!("env LD_PRELOAD={LIBRARY} ADVERB_DEVICES={devices} {line}")
    };
    let meets = |devices, address| {
        let server = on(devices, &format!("rping -s -P -a {address} -p {OWN_PORT}"));
        let first = on(devices, &client(address, OWN_PORT, "-C 1"));
        let all = on(devices, &client(address, OWN_PORT, &format!("-C {count}")));
        // The last line of a client that has pinged as often as it should.
        let last = format!("grep -q rdma-ping-{}", count - 1);
        format!(
            "{server} >/dev/null 2>&1 & server=$!; \
             tries=0; until {first} >/dev/null 2>&1; do tries=$((tries + 1)); test $tries -lt 50; sleep 0.2; done; \
             {all} | {last}; kill $server"
        )
    };
    let software = meets("soft,hw", "127.0.0.1");
    let kernels = meets("hw,soft", GUEST[0].1);
    machine.shell(
        SECONDS_MAX,
        &format!(
            "unshare -n sh -ec '/tools/ip link set lo up; {software}' & software=$!; \
             sh -ec '{kernels}' && wait $software"
        ),
    )?;
    Ok("right".to_owned())
}

/// Holds one of them.
pub(super) fn hold(
    machine: &Machine,
    case: &Case,
    part: Part,
    count: u32,
) -> Result<String, Failure> {
    let address =
        |of: [(_, &'static str); 2]| of.get(case.family).map_or("", |(_, address)| address);
    let (here, there) = (address(HOST), address(GUEST));
    let count = format!("-C {count}");
    match part {
        Part::Client => machine.ping(&client(there, PORT, &count))?,
        Part::ClientOfNothing => refused(machine.ping(&client(there, NO_PORT, &count)))?,
        Part::Server => {
            let _server = Server::start(machine, here)?;
            machine.shell(SECONDS_MAX, &client(here, PORT, &count))?;
        }
        Part::ServerOfNothing => {
            // A process has the address, and says that it does not have the port.
            let _server = Server::start(machine, here)?;
            let line = client(here, NO_PORT, &count);
            let line = format!("! {line} 2>/tmp/refused && grep -q '{REFUSAL}' /tmp/refused");
            machine.shell(SECONDS_MAX, &line)?;
        }
    }
    Ok("right".to_owned())
}

fn client(address: &str, port: &str, more: &str) -> String {
    format!("rping -c -a {address} -p {port} -v -V {more}")
}

fn refused(outcome: Result<(), Failure>) -> Result<(), Failure> {
    match outcome {
        Err(said) if said.contains(REFUSAL) => Ok(()),
        Err(said) => Err(format!("it was not refused: {said}")),
        Ok(()) => Err("it was not refused: it has pinged".to_owned()),
    }
}

impl Machine {
    /// Runs a line of `rping` here.
    fn ping(&self, line: &str) -> Result<(), Failure> {
        let mut command = inside("timeout");
        command.arg(SECONDS_MAX.to_string()).args(self.on_device(line));
        command.stdin(Stdio::null());
        run(command).map(|_| ())
    }

    /// The words of a command on the software device.
    fn on_device(&self, line: &str) -> Vec<String> {
        let preload = format!("LD_PRELOAD={}", self.library.display());
        ["env", &preload].into_iter().chain(line.split(' ')).map(str::to_owned).collect()
    }
}

/// A server of `rping` here, for as many clients as come.
struct Server(Child);

impl Server {
    fn start(machine: &Machine, address: &str) -> Result<Self, Failure> {
        let words = machine.on_device(&format!("rping -s -P -a {address} -p {PORT}"));
        let mut command = inside(words.first().map_or("", String::as_str));
        command.args(words.iter().skip(1));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = command.spawn().map_err(|error| format!("cannot run rping: {error}"))?;
        let mut server = Self(server);
        let end = Instant::now() + START_MAX;
        while let Err(said) = machine.ping(&client(address, PORT, "-C 1")) {
            if Instant::now() > end || !matches!(server.0.try_wait(), Ok(None)) {
                return Err(format!("the server here does not serve: {said}"));
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill(); // It may have ended.
        let _ = self.0.wait();
    }
}

/// Where the machine has the library.
const LIBRARY: &str = "/lib/libadverb_ibverbs.so";
/// Port of the servers, here and there, and one that has none.
const PORT: &str = "7174";
const NO_PORT: &str = "7175";
/// Port of the servers of a conversation within the machine.
const OWN_PORT: &str = "7176";
/// What a client says that was refused because nothing listens: IBTA Vol. 1 §12.6.7.2, reason 8.
const REFUSAL: &str = "RDMA_CM_EVENT_REJECTED, error 8";
/// Longest time until a server here serves.
const START_MAX: Duration = Duration::from_secs(20);
/// Longest time for one run.
const SECONDS_MAX: u32 = 40;
