//! What a thousand endpoints cost a server with one shared completion queue: memory of each, and the
//! latency of one that is active while the others are there.
//!
//! Two processes over `soft_lo`. Run with `cargo bench -p adverb-session --bench many`; a number of
//! endpoints may follow `--`.

use adverb_session::{
    Channel, ClientSession, Config, Endpoint, Operation, ServerSession, ThreadMode, WorkMode,
};
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

const BYTES: usize = 64;
const TRIPS: usize = 4000;
const ROUNDS: usize = 7;
const LONG: Duration = Duration::from_secs(60);

fn config() -> Config {
    let polled = Config::default().work_mode(WorkMode::BusyPoll);
    polled.thread_mode(ThreadMode::SHARED).connect_timeout(LONG).work_timeout(LONG)
}

fn main() -> Outcome<()> {
    let words: Vec<_> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let [role, address, count] = words.as_slice()
        && role == "client"
    {
        return client(address.parse()?, count.parse()?);
    }
    let count = words.first().map_or(Ok(1000), |word| word.parse())?;
    let mut server = ServerSession::bind("127.0.0.1:0", config())?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["client", &server.local_addr().to_string(), &count.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let first = server.accept(LONG)?;
    let channel = first.channel("data")?;
    let buffer = first.adapter().buffer(2, BYTES)?;
    let trip = || -> Outcome<()> {
        channel.post_recv(buffer.at(1)?)?;
        channel.post_send(buffer.at(0)?)?;
        channel.recv()?;
        // The events of what was sent.
        while channel.poll()?.is_some() {}
        Ok(())
    };
    let alone = best(&trip)?;
    let before = resident_bytes()?;
    let mut said = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    child.stdin.as_mut().ok_or("no input")?.write_all(b"more\n")?;
    let others = (1..count).map(|_| server.accept(LONG)).collect::<Result<Vec<Endpoint>, _>>()?;
    said.next().ok_or("the client went")??;
    let each = (resident_bytes()? - before) / others.len().max(1);
    let among = best(&trip)?;
    println!("{count} endpoints, one completion queue: {each} bytes each");
    println!(
        "a round trip of {BYTES} bytes, median: {alone:?} alone, {among:?} among them, ratio {:.2}",
        among.as_secs_f64() / alone.as_secs_f64()
    );
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// The best of some medians, because noise only ever adds.
fn best(trip: &impl Fn() -> Outcome<()>) -> Outcome<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let mut times = Vec::with_capacity(TRIPS);
        for _ in 0..TRIPS {
            let start = Instant::now();
            trip()?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        best = best.min(times.get(TRIPS / 2).copied().unwrap_or(best));
    }
    Ok(best)
}

/// Memory of this process that is there.
fn resident_bytes() -> Outcome<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? * 1024)
}

/// Echoes on the first endpoint, and has the others when it is told to.
fn client(address: SocketAddr, count: usize) -> Outcome<()> {
    let session = ClientSession::new(config())?;
    let first = session.connect(address)?;
    let channel = first.channel("data")?;
    let buffer = first.adapter().buffer(4, BYTES)?;
    channel.post_recv(buffer.next()?)?;
    thread::spawn(move || echo(&channel, &buffer).map_err(|error| error.to_string()));
    std::io::stdin().read_exact(&mut [0; 5])?;
    let others = (1..count).map(|_| session.connect(address)).collect::<Result<Vec<_>, _>>()?;
    println!("{} more", others.len());
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn echo(channel: &Channel, buffer: &adverb_session::Buffer) -> Outcome<()> {
    loop {
        let Some(event) = channel.poll()? else {
            continue;
        };
        if event.operation == Operation::Receive {
            channel.post_recv(buffer.next()?)?;
            channel.post_send(event.block)?;
        }
    }
}
