//! `adverb pingpong`: the test of a connection, from the greeting to the last byte.
//!
//! Both sides greet each other on the channel *control* and exchange a buffer, *sink*. Then, round by
//! round on the channel *data*: the client writes a block into the server's sink, writes another with
//! immediate data that tells of both, the server answers in the same way, and the client reads back
//! what it wrote. Every byte is compared.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use adverb::session::{
    BindError, Block, Buffer, Channel, ClientSession, Config, ConnectError, Connector,
    ConnectorError, Endpoint, PathMtu, RemoteBuffer, ServerSession, WorkMode,
};

use crate::args::{Meeting, PingpongArgs};
use crate::bench::client::addresses;
use crate::bench::stats::{self, Samples};
use crate::child::{Child, end_with_parent};
use crate::devices::asked_for;
use crate::failure::{Doing, Failure};
use crate::here;
use crate::output::json;
use crate::progress::Progress;

/// Runs the subcommand.
pub(crate) fn run(args: &PingpongArgs) -> Result<(), Failure> {
    let connection = &args.connection;
    asked_for(None)?;
    connection.choice().check()?;
    if connection.server {
        return serve(args);
    }
    let Some(host) = &connection.host else {
        let here = here::address();
        let (_server, port) = start_server(args, here)?;
        return test(connect(&[SocketAddr::new(here, port)], args)?, args);
    };
    test(connect(&addresses(host, connection.port)?, args)?, args)
}

/// The session's settings. The device is that of the connection, unless one is named.
fn config(args: &PingpongArgs) -> Result<Config, Failure> {
    let connection = &args.connection;
    let mut config = Config::default()
        .name("pingpong")
        .traffic_class(connection.traffic_class)
        .hop_limit(connection.hop_limit)
        .channels(["control", "data"])
        .work_mode(WorkMode::BusyPoll)
        .connector(match args.connector {
            Meeting::Cm => Connector::Cm,
            Meeting::Tcp => Connector::Tcp,
        })
        .connect_timeout(PATIENCE)
        .work_timeout(PATIENCE);
    if let Some(name) = &connection.device {
        asked_for(Some(name))?;
        config = config.device(name);
    }
    if let Some(index) = connection.gid_index {
        config = config.gid_index(index);
    }
    let fits = |mtu: &PathMtu| mtu.bytes() <= u32::from(connection.mtu);
    if let Some(mtu) = PathMtu::ALL.into_iter().filter(fits).max_by_key(|mtu| mtu.bytes()) {
        config = config.path_mtu(mtu);
    }
    Ok(config)
}

/// One side of the test.
struct Side {
    endpoint: Endpoint,
    control: Channel,
    data: Channel,
    /// What the peer writes into.
    sink: Buffer,
    /// What is written from, read into, and used up by immediate data.
    local: Buffer,
    remote: RemoteBuffer,
}

impl Side {
    /// Greets the peer, and exchanges sinks with it. Returns what it said.
    fn set_up(endpoint: Endpoint, asked: Option<(usize, u64)>) -> Result<(Self, String), Failure> {
        let control = endpoint.channel("control").doing("looking for a channel")?;
        let data = endpoint.channel("data").doing("looking for a channel")?;
        let words = endpoint.adapter().buffer(2, GREETING_BYTES).doing("allocating")?;
        control.post_recv(block(&words, 1)?).doing("greeting")?;
        // Each knows by the peer's greeting that it can be sent to.
        endpoint.advertise("greetings", &words).doing("greeting")?;
        endpoint.remote_buffer("greetings").doing("waiting for the peer to be greeted")?;
        let hello = match asked {
            Some((bytes, rounds)) => {
                format!("hello from the client: {rounds} rounds of blocks of {bytes} bytes")
            }
            None => "hello from the server".to_owned(),
        };
        let mine = block(&words, 0)?;
        mine.write(0, hello.as_bytes()).doing("greeting")?;
        control.send(mine.first(hello.len()).doing("greeting")?).doing("greeting")?;
        let heard = control.recv().doing("waiting for a greeting")?;
        let said = heard.block.first(heard.bytes).doing("reading a greeting")?.to_vec();
        let said = String::from_utf8_lossy(&said).into_owned();
        let told = || said.strip_suffix(" bytes")?.rsplit(' ').next()?.parse::<usize>().ok();
        let bytes = asked
            .map(|(bytes, _)| bytes)
            .or_else(told)
            .filter(|bytes| (1..=BLOCK_BYTES_MAX).contains(bytes));
        let bytes = bytes.ok_or_else(|| Failure::failed(format!("the peer said {said:?}")))?;
        let sink = endpoint.adapter().buffer(BLOCKS, bytes).doing("allocating a sink")?;
        let local = endpoint.adapter().buffer(BLOCKS, bytes).doing("allocating blocks")?;
        data.post_recv(block(&local, TOLD)?).doing("posting a receive")?;
        endpoint.advertise("sink", &sink).doing("exchanging sinks")?;
        let remote = endpoint.remote_buffer("sink").doing("exchanging sinks")?;
        Ok((Self { endpoint, control, data, sink, local, remote }, said))
    }

    /// Writes two blocks, and tells the peer of both with `imm`.
    fn write(&self, seed: u64, imm: u32) -> Result<(), Failure> {
        for (at, seed) in [(0, seed), (1, seed + 1)] {
            let from = block(&self.local, at)?;
            from.write(0, &pattern(seed, from.len())).doing("filling a block")?;
            let to = self.remote.at(at).doing("finding the peer's block")?;
            match at {
                0 => self.data.write(from, to).doing("WRITE")?,
                _ => self.data.write_with_imm(from, to, imm).doing("WRITE with immediate")?,
            }
        }
        Ok(())
    }

    /// Waits to be told of two blocks, and compares them.
    fn expect(&self, seed: u64, imm: u32) -> Result<(), Failure> {
        let event = self.data.recv().doing("waiting for a WRITE with immediate")?;
        if event.imm != Some(imm) {
            return Err(Failure::failed(format!("immediate {:?}, and {imm} was due", event.imm)));
        }
        for (at, seed) in [(0, seed), (1, seed + 1)] {
            compare("what the peer wrote", &block(&self.sink, at)?, seed)?;
        }
        self.data.post_recv(block(&self.local, TOLD)?).doing("posting a receive")?;
        Ok(())
    }

    /// Reads both blocks back.
    fn read_back(&self, seed: u64) -> Result<(), Failure> {
        for (at, seed) in [(0, seed), (1, seed + 1)] {
            let to = block(&self.local, READ)?;
            let from = self.remote.at(at).doing("finding the peer's block")?;
            self.data.read(to.clone(), from).doing("READ")?;
            compare("what was read back", &to, seed)?;
        }
        Ok(())
    }
}

/// Connects to the first of a host's addresses where a server is; they share the time there is.
fn connect(addresses: &[SocketAddr], args: &PingpongArgs) -> Result<Endpoint, Failure> {
    let patience = args.connection.connect_timeout.map_or(CONNECT_TIME, Duration::from_secs_f64);
    let patience = patience / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
    let mut errors = Vec::new();
    for to in addresses {
        let config = config(args)?.connect_timeout(patience);
        let session = ClientSession::new(config).doing("opening the device")?;
        let connected = say_if_no_server_answers(*to, patience);
        let outcome = session.connect(*to);
        drop(connected);
        match outcome {
            Ok(endpoint) => return Ok(endpoint),
            Err(error) => errors.push(format!("{error}{}", hint(&error))),
        }
    }
    Err(Failure::failed(if errors.is_empty() {
        "no address".to_owned()
    } else {
        errors.join("; ")
    }))
}

/// Says after a while that there is no server, and what is done about it, unless what it returns is dropped before.
fn say_if_no_server_answers(to: SocketAddr, patience: Duration) -> mpsc::Sender<()> {
    let (connected, hears) = mpsc::channel();
    thread::spawn(move || {
        let heard = hears.recv_timeout(SILENCE.min(patience));
        if heard == Err(mpsc::RecvTimeoutError::Timeout) && patience > SILENCE {
            eprintln!(
                "adverb: no answer from {to} yet; going on for {patience:?} (--connect-timeout)"
            );
        }
    });
    connected
}

/// What to do about a server that is there and does not do as ours.
fn hint(error: &ConnectError) -> &'static str {
    let ConnectError::Handshake { error, .. } = error else {
        return "";
    };
    let is_another = matches!(
        error,
        ConnectorError::Timeout { .. } | ConnectorError::Closed | ConnectorError::Frame(_)
    );
    if is_another { "; is it `adverb pingpong --server`?" } else { "" }
}

/// The client: greets, tests, and says what came of it.
fn test(endpoint: Endpoint, args: &PingpongArgs) -> Result<(), Failure> {
    let bytes = usize::try_from(args.size).doing("allocating a block")?;
    if !args.json {
        println!("connected to {}", who(&endpoint));
    }
    let (side, said) = Side::set_up(endpoint, Some((bytes, args.iters)))?;
    if !args.json {
        println!("the peer says: {said}; its sink is {BLOCKS} blocks of {bytes} bytes");
    }
    let mut samples = Samples::new();
    let mut progress = Progress::new((args.iters, 0));
    for round in 0..args.iters {
        progress.short_step("rounds");
        let seed = round * 4;
        let start = Instant::now();
        side.write(seed, imm(round))?;
        side.expect(seed + 2, imm(round))?;
        samples.record(start.elapsed());
        side.read_back(seed)?;
    }
    drop(progress);
    let resent = side.data.counters().completer_retry_err;
    let Side { endpoint, control, .. } = side;
    let (peer, path) = (endpoint.peer(), endpoint.path().map(|path| path.to_string()));
    control.drain().doing("closing")?;
    endpoint.close().doing("closing")?;
    let took = samples.percentiles();
    if args.json {
        let found = serde_json::json!({
            "address": peer.addr.to_string(), "device": peer.device.as_str(), "gid": peer.gid.to_string(),
            "mtu": peer.path_mtu.bytes(), "path": path, "bytes": bytes, "rounds": args.iters,
            "round_ns": took, "resent": resent,
        });
        print!("{}", json(found)?);
        return Ok(());
    }
    let [p50, p99] = [took.p50, took.p99].map(|ns| stats::to_f64(ns) / 1e3);
    println!(
        "{} rounds of WRITE, WRITE with immediate and READ of {bytes} bytes, both ways: every byte \
         right; a round {p50:.1} µs (99 % {p99:.1}); {resent} packets sent again",
        args.iters,
    );
    Ok(())
}

/// What to do if there is no server.
fn not_listening(error: &BindError) -> Failure {
    let BindError::Listen { error: cause, .. } = error else {
        return Failure::failed(error.to_string()); // It is not about the address.
    };
    let kind = cause.kind();
    let hint = if matches!(kind, ErrorKind::AddrInUse | ErrorKind::PermissionDenied) {
        ": choose another with --port"
    } else if kind == ErrorKind::AddrNotAvailable {
        ": choose an address of this machine with --bind"
    } else {
        ""
    };
    Failure::failed(format!("{error}{hint}"))
}

/// The server: one client after another.
fn serve(args: &PingpongArgs) -> Result<(), Failure> {
    let any = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    let (port, child) = (args.connection.port, args.connection.child);
    let bind = args.connection.bind.unwrap_or(any);
    let config = config(args)?;
    let mut server = ServerSession::bind((bind, port), config.clone());
    if args.connection.bind.is_none() && server.is_err() {
        server = ServerSession::bind(("0.0.0.0", port), config);
    }
    let mut server = server.map_err(|error| not_listening(&error))?;
    let address = server.local_addr();
    if child {
        println!("{}", address.port());
        end_with_parent()?;
    } else {
        println!("listening on {address}; run `adverb pingpong HOST` elsewhere");
    }
    let _ = std::io::stdout().flush();
    loop {
        let endpoint = match server.accept(FOR_EVER) {
            Ok(endpoint) => endpoint,
            Err(error) => {
                eprintln!("{error}");
                continue;
            }
        };
        let client = who(&endpoint);
        match answer(endpoint) {
            Ok(rounds) if child => return if rounds > 0 { Ok(()) } else { nothing() },
            Ok(rounds) => println!("{client}: {rounds} rounds, every byte right"),
            Err(failure) => eprintln!("{client}: {failure}"),
        }
        let _ = std::io::stdout().flush();
    }
}

fn nothing() -> Result<(), Failure> {
    Err(Failure::failed("the client went before the first round"))
}

/// Answers one client until it goes; says how many rounds there were.
fn answer(endpoint: Endpoint) -> Result<u64, Failure> {
    let (side, said) = Side::set_up(endpoint, None)?;
    let due = rounds_of(&said);
    let mut round = 0;
    loop {
        let seed = round * 4;
        if let Err(failure) = side.expect(seed, imm(round)) {
            use adverb::session::Departure;
            return match side.endpoint.departure() {
                Some(Departure::Closed) if due.is_some_and(|due| round < due) => {
                    let due = due.unwrap_or_default();
                    Err(Failure::failed(format!(
                        "the client has ended after {round} of {due} rounds"
                    )))
                }
                Some(Departure::Closed) => Ok(round),
                Some(_) | None => Err(failure),
            };
        }
        side.write(seed + 2, imm(round))?;
        round += 1;
    }
}

/// How many rounds the client will have, if its greeting says so.
fn rounds_of(greeting: &str) -> Option<u64> {
    greeting.split_once(" rounds of ")?.0.rsplit(' ').next()?.parse().ok()
}

fn who(endpoint: &Endpoint) -> String {
    let peer = endpoint.peer();
    let path = endpoint.path().map(|path| format!(", path {path}")).unwrap_or_default();
    format!(
        "{} (device {}, GID {}, path MTU {}{path})",
        peer.addr,
        peer.device,
        peer.gid,
        peer.path_mtu.bytes()
    )
}

fn block(buffer: &Buffer, index: usize) -> Result<Block, Failure> {
    buffer.at(index).doing("taking a block")
}

/// Bytes that differ from round to round and from place to place.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + size_of::<u64>());
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn compare(what: &str, block: &Block, seed: u64) -> Result<(), Failure> {
    let (found, due) = (block.to_vec(), pattern(seed, block.len()));
    if found == due {
        return Ok(());
    }
    let at = found.iter().zip(&due).take_while(|(found, due)| found == due).count();
    Err(Failure::failed(format!("{what}: byte {at} of {} is wrong", due.len())))
}

fn imm(round: u64) -> u32 {
    u32::try_from(round % (1 << 31)).unwrap_or(0)
}

/// Starts this same program as a server for one client.
fn start_server(args: &PingpongArgs, here: IpAddr) -> Result<(Child, u16), Failure> {
    let connection = &args.connection;
    let mut command = Child::command()?;
    command.args(["pingpong", "--server", "--child", "--port", "0"]);
    command.args(["--bind", &here.to_string()]);
    command.args(["--mtu", &connection.mtu.to_string()]);
    command.args(["--tclass", &connection.traffic_class.to_string()]);
    command.args(["--hop-limit", &connection.hop_limit.to_string()]);
    command.args(["--connector", args.connector.name()]);
    if let Some(device) = &connection.device {
        command.args(["--device", device]);
    }
    if let Some(index) = connection.gid_index {
        command.args(["--gid-index", &index.to_string()]);
    }
    Child::listen(command)
}

const GREETING_BYTES: usize = 128;
/// Two that are written, one to read into, one that immediate data uses up.
const BLOCKS: usize = 4;
const READ: usize = 2;
const TOLD: usize = 3;
const BLOCK_BYTES_MAX: usize = 1 << 30;
/// How long all addresses of a server may take to answer, unless the user says.
const CONNECT_TIME: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to look for the server before a word about that.
const SILENCE: Duration = Duration::from_millis(500);
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    /// Goal: a client that says goodbye before its rounds are over has failed for the server too.
    #[test]
    fn a_client_that_ends_early_is_a_failure() {
        let words = ["adverb", "pingpong"];
        let Ok(Args { command: Command::Pingpong(args) }) = Args::try_parse_from(words) else {
            panic!("`pingpong` was asked for");
        };
        let mut server = ServerSession::bind("127.0.0.1:0", config(&args).unwrap()).unwrap();
        let address = server.local_addr();
        thread::scope(|scope| {
            let serving = scope.spawn(move || answer(server.accept(PATIENCE * 6).unwrap()));
            let endpoint = connect(&[address], &args).unwrap();
            let (side, _) = Side::set_up(endpoint, Some((64, 10))).unwrap();
            drop(side);
            let error = serving.join().unwrap().unwrap_err();
            assert!(error.to_string().contains("after 0 of 10 rounds"), "{error}");
        });
    }

    /// Goal: a host of which one address does not answer is reached at another.
    /// Method: the one that does not comes first; the other gets almost all of a minute, in many parts.
    #[test]
    fn every_address_of_a_host_is_tried() {
        let words = ["adverb", "pingpong", "--connect-timeout", "60"];
        let Ok(Args { command: Command::Pingpong(args) }) = Args::try_parse_from(words) else {
            panic!("`pingpong` was asked for");
        };
        let here = IpAddr::from([127, 0, 0, 1]);
        let server = ServerSession::bind((here, 0), config(&args).unwrap());
        let mut server = server.unwrap();
        // Nothing listens at port 1.
        let mut addresses = [server.local_addr(); 60];
        addresses[0] = SocketAddr::new(here, 1);
        thread::scope(|scope| {
            let accepting = scope.spawn(move || server.accept(PATIENCE * 6));
            let endpoint = connect(&addresses, &args).unwrap();
            assert_eq!(endpoint.peer().addr, addresses[1]);
            assert!(accepting.join().unwrap().is_ok());
        });
        let error = connect(&[], &args).unwrap_err();
        assert!(error.to_string().contains("no address"), "{error}");
    }
}
