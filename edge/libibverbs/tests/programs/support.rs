//! Programs with the library in front of them: one alone, and pairs of server and client.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How two processes of a host may reach each other.
pub(crate) const PATHS: [&str; 2] = ["shm", "udp"];

/// How long one program may take. perftest measures the processor's clock for each size, and that long on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The library, which Cargo has built beside this test.
pub(crate) fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a program has a path");
    let deps = exe.parent().expect("a directory");
    let places = [deps.join("libadverb_ibverbs.so"), deps.join("../libadverb_ibverbs.so")];
    places.into_iter().find(|path| path.exists()).expect("Cargo builds the library for this test")
}

/// A program is there; says so if it is not.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|place| place.join(program).is_file());
    if !found {
        println!("skipped: no {program}: it is not installed");
    }
    found
}

/// A command that runs with the library in front of it.
pub(crate) fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words);
    command.env("LD_PRELOAD", library()).env("ADVERB_EXPLAIN", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a program prints that ends well.
pub(crate) fn alone(program: &str, more: &[&str], set: &[(&str, &str)]) -> String {
    let output = command(program).args(more).envs(set.iter().copied()).output().expect("it starts");
    assert!(output.status.success(), "{program}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Two network namespaces with a cable between them, gone when the test is over.
pub(crate) struct Hosts([String; 2]);

impl Hosts {
    /// `None`, after it has said why, if this cannot be had here.
    pub(crate) fn new() -> Option<Self> {
        Self::made().map_err(|reason| println!("skipped: no network namespaces: {reason}")).ok()
    }

    /// The same for a test that goes on without.
    pub(crate) fn made() -> Result<Self, String> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let names = [0, 1].map(|host| format!("adverb-ibv-{id}-{host}"));
        let [one, two] = &names;
        ip(&format!("netns add {one}"))?;
        let hosts = Self(names.clone());
        let must = |line: String| ip(&line).expect("it worked a moment ago");
        must(format!("netns add {two}"));
        must(format!("-n {one} link add eth0 type veth peer name eth0 netns {two}"));
        for (host, name) in names.iter().enumerate() {
            must(format!("-n {name} link set lo up"));
            must(format!("-n {name} link set eth0 mtu 9000 up"));
            must(format!("-n {name} addr add 10.9.8.{}/24 dev eth0", host + 1));
        }
        Ok(hosts)
    }

    /// Has `localhost` be the address of each host's interface.
    pub(crate) fn name_them(&self) -> std::io::Result<()> {
        for (host, name) in self.0.iter().enumerate() {
            std::fs::create_dir_all(Self::files_of(name))?;
            let file = Self::files_of(name).join("hosts");
            std::fs::write(file, format!("10.9.8.{} localhost\n", host + 1))?;
        }
        Ok(())
    }

    /// What `ip netns exec` puts over files of `/etc`.
    fn files_of(name: &str) -> PathBuf {
        PathBuf::from("/etc/netns").join(name)
    }

    /// Changes something of a host's interfaces.
    pub(crate) fn ip(&self, host: usize, line: &str) {
        ip(&format!("-n {} {line}", self.0[host])).expect("it worked a moment ago");
    }

    pub(crate) fn on(&self, host: usize, line: &str) -> Command {
        command(&format!("{} {line}", self.within(host)))
    }

    /// What comes before a command that is to run on a host.
    pub(crate) fn within(&self, host: usize) -> String {
        format!("ip netns exec {}", self.0[host])
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = ip(&format!("netns del {name}"));
            let _ = std::fs::remove_dir_all(Self::files_of(name));
        }
    }
}

fn ip(line: &str) -> Result<(), String> {
    let output = Command::new("ip").args(line.split_whitespace()).output();
    let output = output.map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Where both sides of a pair run.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// On this host, by this way.
    Here(&'static str),
    /// In the first of two network namespaces, by this way.
    Within(&'a Hosts, &'static str),
    /// In two network namespaces.
    Apart(&'a Hosts),
}

impl Place<'_> {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Here(path) | Self::Within(_, path) => path,
            Self::Apart(_) => "udp, namespaces",
        }
    }

    /// The device of both sides.
    pub(crate) fn device(&self) -> &'static str {
        match self {
            Self::Here(_) => "soft_lo",
            Self::Within(..) | Self::Apart(_) => "soft_eth0",
        }
    }

    pub(crate) fn command(&self, host: usize, line: &str) -> Command {
        match self {
            Self::Here(path) => {
                let mut command = command(line);
                command.env("ADVERB_PATH", path);
                command
            }
            Self::Within(hosts, path) => {
                let mut command = hosts.on(0, line);
                command.env("ADVERB_PATH", path);
                command
            }
            Self::Apart(hosts) => hosts.on(host, line),
        }
    }

    fn server(&self) -> &'static str {
        self.address(0)
    }

    /// The address of a side: 0 is the server.
    pub(crate) fn address(&self, host: usize) -> &'static str {
        match (self, host) {
            (Self::Here(_), _) => "127.0.0.1",
            (Self::Within(..), _) | (Self::Apart(_), 0) => "10.9.8.1",
            (Self::Apart(_), _) => "10.9.8.2",
        }
    }
}

/// Runs server and client of a program; answers with what the client printed, or with why it went wrong.
pub(crate) fn pair(line: &str, place: Place<'_>, set: &[(&str, &str)]) -> Result<String, String> {
    let port = port();
    let line = format!("{line} -p {port}");
    let start = |host, line: &str| {
        let mut command = place.command(host, line);
        command.envs(set.iter().copied()).spawn().expect("it starts")
    };
    let mut server = start(0, &line);
    until_it_listens(port, &mut server, place);
    let client = start(1, &format!("{line} {}", place.server()));
    let (client, server) = (ended(client), ended(server));
    match client.status.success() && server.status.success() {
        true => Ok(String::from_utf8_lossy(&client.stdout).into_owned()),
        false => Err(format!(
            "{line} ({}):\nclient {}\nserver {}",
            place.name(),
            text(&client),
            text(&server)
        )),
    }
}

/// How the server of a pair ends.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Ended {
    /// By itself, well, after its client.
    Itself,
    /// It goes on, and is killed.
    Killed,
}

/// Runs a server and its client; answers with what the client printed, or with why it went wrong.
///
/// Where a server listens by the connection manager alone, nothing outside shows when it does: a client that is
/// refused is too early, and both are started again with more time between them. (perftest listens a second time,
/// and its client does not wait for that.)
pub(crate) fn meet(
    server: &str,
    client: &str,
    place: Place<'_>,
    set: &[(&str, &str)],
    end: Ended,
) -> Result<String, String> {
    let (mut result, mut hung) = (Err(String::new()), 0);
    let hung_max = if client.starts_with("fi_") { HUNG_MAX } else { 0 };
    for more in 0..MEETINGS {
        let patience = if hung < hung_max { PATIENCE / 3 } else { PATIENCE };
        let head_start = HEAD_START * (more + 1).min(5);
        result = meet_once([server, client], place, set, end, [head_start, patience]);
        let Err(why) = &result else { break };
        hung += u32::from(why.contains(HUNG));
        if hung > hung_max {
            break;
        }
    }
    result
}

fn meet_once(
    [server, client]: [&str; 2],
    place: Place<'_>,
    set: &[(&str, &str)],
    end: Ended,
    [head_start, patience]: [Duration; 2],
) -> Result<String, String> {
    let begin = |host, line| {
        let mut command = place.command(host, line);
        command.envs(set.iter().copied()).spawn().expect("it starts")
    };
    let mut running = begin(0, server);
    std::thread::sleep(head_start);
    let client = ended_within(begin(1, client), patience);
    let is_running = running.try_wait().expect("a child of ours").is_none();
    let stayed = end == Ended::Killed && is_running;
    if stayed || !client.status.success() {
        let _ = running.kill(); // It may have ended in the meantime.
    }
    let running = ended(running);
    match client.status.success() && (stayed || running.status.success()) {
        true => Ok(String::from_utf8_lossy(&client.stdout).into_owned()),
        false => Err(format!(
            "{server} ({}):\nclient {}\nserver {}",
            place.name(),
            text(&client),
            text(&running)
        )),
    }
}

/// What is printed of a client that was killed because it took too long.
const HUNG: &str = "client signal: 9";

/// How often a client of libfabric's may: when a peer has ended the connection, it destroys the queue pair (`vrb_ep_close`
/// calls `rdma_destroy_ep`) before it polls for the last messages (`vrb_cleanup_cq`). Their completions are gone then, here as
/// with libmlx5. fi_pingpong of endpoints of kind rdm waits for such a message for ever if it lost its processor between its poll
/// and its look at the events. The last of them has as long as any program, the ones before it less.
const HUNG_MAX: u32 = 3;

/// How often a server and its client are started.
const MEETINGS: u32 = 12;

/// How much sooner the server is started, the first time.
const HEAD_START: Duration = Duration::from_millis(200);

fn text(output: &Output) -> String {
    let [out, error] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}\n{out}{error}", output.status)
}

/// Waits for the end of a program, and kills one that takes too long.
pub(crate) fn ended(child: Child) -> Output {
    ended_within(child, PATIENCE)
}

fn ended_within(mut child: Child, patience: Duration) -> Output {
    let start = Instant::now();
    while start.elapsed() < patience {
        if child.try_wait().expect("a child of ours").is_some() {
            return child.wait_with_output().expect("it has ended");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("a child of ours");
    child.wait_with_output().expect("it was killed")
}

/// A TCP port without a listener.
pub(crate) fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes that are started together have numbers that follow one another, and take several ports each.
    let spread = std::process::id().wrapping_mul(61) % 10_000;
    let base = 20_000 + u16::try_from(spread).expect("it is small");
    loop {
        let port = base + NEXT.fetch_add(1, Ordering::Relaxed) % 2_000;
        if !listens(port, "self") {
            return port;
        }
    }
}

/// This port has a listener, in the namespace of this process. Reading the table takes the kernel milliseconds.
fn listens(port: u16, process: &str) -> bool {
    let list = |file| std::fs::read_to_string(file).unwrap_or_default();
    let address = format!(":{port:04X} ");
    ["tcp", "tcp6"]
        .map(|kind| list(format!("/proc/{process}/net/{kind}")))
        .iter()
        .any(|list| list.contains(&address))
}

pub(crate) fn until_it_listens(port: u16, server: &mut Child, place: Place<'_>) {
    let process = match place {
        Place::Here(_) => "self".to_owned(),
        Place::Within(..) | Place::Apart(_) => server.id().to_string(),
    };
    let start = Instant::now();
    while !listens(port, &process) && start.elapsed() < PATIENCE {
        if server.try_wait().expect("a child of ours").is_some() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
