//! What two processes of one host pay, beside what the machine itself takes in the same run: half
//! the round trip of 64 bytes beside that of a cache line, bandwidth beside `memcpy` between pages
//! that both processes map.
//!
//! Run with `cargo bench -p adverb-verbs --bench neighbours`; `ADVERB_PATH=udp` measures the other
//! way. Both spin, each on a processor of its own. Floor and measurement take turns; the median of
//! the rounds counts. `NEIGHBOURS=send` measures nothing but the latency of SENDs, for profiles.
//!
//! # Safety
//!
//! 1. The raw requests are of regions that live as long as their queue pair and lend no references.
//! 2. The floor's pages are mapped for the whole run, and touched as atomics or copied by pointer.

#![expect(clippy::indexing_slicing, reason = "a benchmark may fail")]

use adverb_sys::affinity::{cpus, pin_to_cpu};
use adverb_sys::memory::Mapping;
use adverb_verbs::{
    Access, Context, Cq, DataPath, Mr, Psn, Qp, QpConfig, Qpn, Rc, RcConnect, ReceiveWork,
    RemoteQp, Rkey, SendData, SendKind, SendTo, SendWork, WcOpcode, WcStatus, WorkCompletion,
};
use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PEER: &str = "peer";
const SMALL: usize = 64;
const ROUND_TRIPS: u64 = 20_000;
const ROUNDS: usize = 7;
const MEMORY: usize = 8 << 20;
/// Where the other writes the words that this side waits for.
const FLAG: usize = MEMORY / 2;
const DEPTH: u32 = 256;
/// Requests, and receives, posted at once where many are.
const BATCH: usize = 16;
/// Places of the bare ring.
const SLOTS: usize = 1024;

fn main() -> Result<()> {
    if let Some(file) = std::env::args().skip_while(|arg| arg != PEER).nth(1) {
        return peer(&file);
    }
    let all = cpus()?;
    let (pages, file) = Mapping::memfd("floor", 2 * MEMORY)?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut command = Command::new(std::env::current_exe()?);
    command.args([PEER, &path]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    pin_to_cpu(all[0])?;
    let mut to = child.stdin.take().ok_or("no pipe")?;
    let mut from = BufReader::new(child.stdout.take().ok_or("no pipe")?).lines();
    let mut ask = |line: &str| -> Result<String> {
        writeln!(to, "{line}")?;
        Ok(from.next().ok_or("the peer has gone")??)
    };
    let mut side = Side::new()?;
    side.connect(&ask(&side.address()?)?)?;
    println!("path: {:?}", side.qp.path());

    let mut rows: Vec<(&str, Vec<f64>)> = Vec::new();
    let mut note = |name: &'static str, value: f64| match rows.iter_mut().find(|r| r.0 == name) {
        Some((_, values)) => values.push(value),
        None => rows.push((name, vec![value])),
    };
    if std::env::var("NEIGHBOURS").as_deref() == Ok("send") {
        for _ in 0..20 * ROUNDS {
            ask("floor")?;
            note("floor: cache line, half round trip, ns", half(|n| floor_ping(&pages, n)));
            ask("send")?;
            note("send 64 B, half round trip, ns", try_half(|_| side.send_receive())?);
        }
        print(rows);
        drop(to);
        child.wait()?;
        return Ok(());
    }
    for _ in 0..ROUNDS {
        ask("floor")?;
        note("floor: cache line, half round trip, ns", half(|n| floor_ping(&pages, n)));
        ask("send")?;
        note("send 64 B, half round trip, ns", try_half(|_| side.send_receive())?);
        ask("write")?;
        note("write 64 B, half round trip, ns", try_half(|n| side.write_ping(n))?);
        ask("idle")?;
        note("read 64 B, post to completion, ns", 2.0 * try_half(|_| side.read(SMALL))?);
        for (size, name) in [(64 << 10, "64 KiB"), (1 << 20, "1 MiB")] {
            let count = (1 << 30) / size;
            let gigabytes = |start: Instant| {
                f64::from(u32::try_from(count * size).unwrap_or(0))
                    / start.elapsed().as_secs_f64()
                    / 1e9
            };
            let start = Instant::now();
            for _ in 0..count {
                copy(&pages, size);
            }
            note(leak("floor: memcpy", name), gigabytes(start));
            for (what, kind) in [("write", 0), ("read", 1)] {
                let start = Instant::now();
                side.stream(count, size, kind == 1)?;
                note(leak(what, name), gigabytes(start));
            }
            ask(&format!("take {count}"))?;
            let start = Instant::now();
            side.stream_sends(count, size)?;
            ask("taken")?;
            note(leak("send", name), gigabytes(start));
        }
        let count = 1_000_000;
        let rate = |start: Instant| 1e-6 * 1_000_000.0 / start.elapsed().as_secs_f64();
        ask(&format!("slots {count}"))?;
        let start = Instant::now();
        fill_slots(&pages, count);
        ask("taken")?;
        note("floor: ring of 64 B, million a second", rate(start));
        for (batch, name) in [(1, "one by one"), (BATCH, "16 at once")] {
            ask(&format!("take {count}"))?;
            let start = Instant::now();
            side.stream_batches(count, batch)?;
            ask("taken")?;
            note(leak_rate(name), rate(start));
        }
    }
    print(rows);
    drop(to);
    child.wait()?;
    Ok(())
}

/// The median of each row, its least and its greatest value.
fn print(rows: Vec<(&str, Vec<f64>)>) {
    for (name, values) in rows {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        println!("{name:<44}{:>9.2}   ({least:.2} to {most:.2})", middle(values));
    }
}

fn leak_rate(how: &str) -> &'static str {
    Box::leak(format!("send 64 B, {how}, million a second").into_boxed_str())
}

fn leak(what: &str, size: &str) -> &'static str {
    Box::leak(format!("{what} {size}, GB/s").into_boxed_str())
}

/// The other process: does its part of what a line of its input says.
fn peer(file: &str) -> Result<()> {
    let all = cpus()?;
    pin_to_cpu(all[all.len() - 1])?;
    let pages = Mapping::shared(File::options().read(true).write(true).open(file)?, 2 * MEMORY)?;
    let mut lines = std::io::stdin().lines();
    let mut line = || lines.next().transpose();
    let answer = |line: &str| -> Result<()> {
        println!("{line}");
        Ok(std::io::stdout().flush()?)
    };
    let mut side = Side::new()?;
    let other = line()?.ok_or("no address")?;
    side.connect(&other)?;
    answer(&side.address()?)?;
    let mut rounds = 0;
    while let Some(line) = line()? {
        if line != "taken" {
            answer("ready")?;
        }
        match line.split_once(' ') {
            Some(("slots", count)) => {
                empty_slots(&pages, count.parse()?);
                answer("taken")?;
            }
            Some((_, count)) => {
                let count: usize = count.parse()?;
                for _ in 0..count {
                    side.receive()?;
                }
                answer("taken")?;
            }
            None if line == "floor" => floor_pong(&pages),
            None if line == "send" => {
                for _ in 0..ROUND_TRIPS {
                    side.receive()?;
                    side.send(SMALL, false)?;
                }
            }
            None if line == "write" => {
                rounds += 1;
                for n in 0..ROUND_TRIPS {
                    side.await_flag(rounds * ROUND_TRIPS + n)?;
                    side.write_flag(rounds * ROUND_TRIPS + n)?;
                }
            }
            None => {}
        }
    }
    Ok(())
}

/// Nanoseconds for half of one of many round trips.
fn half(mut run: impl FnMut(u64)) -> f64 {
    let start = Instant::now();
    (0..ROUND_TRIPS).for_each(&mut run);
    start.elapsed().as_secs_f64() * 1e9 / 2.0 / f64::from(u32::try_from(ROUND_TRIPS).unwrap_or(1))
}

fn try_half(mut run: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let mut result = Ok(());
    let time = half(|n| {
        if let Err(error) = run(n) {
            result = Err(error);
        }
    });
    result.map(|()| time)
}

fn middle(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

fn word(pages: &Mapping, at: usize) -> &AtomicU64 {
    pages.atomic_u64(at).unwrap_or_else(|| unreachable!("it is in the pages"))
}

fn floor_ping(pages: &Mapping, n: u64) {
    if n == 0 {
        word(pages, 128).store(0, Ordering::Release);
    }
    word(pages, 0).store(n + 1, Ordering::Release);
    while word(pages, 128).load(Ordering::Acquire) != n + 1 {
        std::hint::spin_loop();
    }
    if n + 1 == ROUND_TRIPS {
        word(pages, 0).store(0, Ordering::Release);
    }
}

fn floor_pong(pages: &Mapping) {
    for n in 0..ROUND_TRIPS {
        while word(pages, 0).load(Ordering::Acquire) != n + 1 {
            std::hint::spin_loop();
        }
        word(pages, 128).store(n + 1, Ordering::Release);
    }
}

/// Where the bare ring is, after how far its reader is and the words of the ping-pong.
const RING: usize = 4096;

/// Writes so many slots: a mark, and 56 bytes. The reader says now and then how far it is.
fn fill_slots(pages: &Mapping, count: usize) {
    let read = word(pages, 256);
    read.store(0, Ordering::Relaxed);
    for n in 0..count {
        while n - usize::try_from(read.load(Ordering::Acquire)).unwrap_or(0) >= SLOTS {
            std::hint::spin_loop();
        }
        let at = RING + n % SLOTS * 64;
        for place in 1..8 {
            word(pages, at + 8 * place).store(7, Ordering::Relaxed);
        }
        word(pages, at).store(mark(n), Ordering::Release);
    }
}

fn empty_slots(pages: &Mapping, count: usize) {
    let mut sum = 0;
    for n in 0..count {
        let at = RING + n % SLOTS * 64;
        while word(pages, at).load(Ordering::Acquire) != mark(n) {
            std::hint::spin_loop();
        }
        for place in 1..8 {
            sum += word(pages, at + 8 * place).load(Ordering::Relaxed);
        }
        if (n + 1).is_multiple_of(SLOTS / 8) {
            word(pages, 256).store(mark(n), Ordering::Release);
        }
    }
    std::hint::black_box(sum);
    (0..SLOTS).for_each(|n| word(pages, RING + n * 64).store(0, Ordering::Release));
}

fn mark(n: usize) -> u64 {
    u64::try_from(n + 1).unwrap_or(0)
}

fn copy(pages: &Mapping, len: usize) {
    let source = pages.as_ptr().as_ptr();
    // SAFETY: half way into the pages.
    let target = unsafe { source.add(MEMORY) };
    // SAFETY: both halves are mapped, longer than `len`, and disjoint (rule 2).
    unsafe { target.copy_from_nonoverlapping(std::hint::black_box(source), len) };
}

/// One end of a connection.
struct Side {
    qp: Qp<Rc>,
    cq: Cq,
    memory: Mr,
    far: (u64, Rkey),
    out: [WorkCompletion; 32],
    received: u64,
    /// Receives that are to be posted again.
    spent: usize,
    sent: u64,
    rounds: u64,
    /// Packets go through sockets.
    remote: bool,
}

impl Side {
    fn new() -> Result<Self> {
        let context = Context::open("soft_lo")?;
        let cq = context.create_cq(4 * DEPTH)?;
        let pd = context.alloc_pd();
        let qp = pd.create_qp(&QpConfig {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_inline: 64,
            ..QpConfig::new(&cq)
        })?;
        let memory = pd.allocate(MEMORY, Access::ALL)?;
        memory.fill(0, MEMORY, 0)?;
        let far = (0, memory.rkey());
        let out = [WorkCompletion::EMPTY; 32];
        Ok(Self {
            qp,
            cq,
            memory,
            far,
            out,
            received: 0,
            spent: 0,
            sent: 0,
            rounds: 0,
            remote: false,
        })
    }

    fn address(&self) -> Result<String> {
        let RemoteQp { qpn, psn, .. } = self.qp.address(1)?;
        let (va, key) = (self.memory.addr(), self.memory.rkey().0);
        Ok(format!("{} {} {va} {key}", qpn.get(), psn.get()))
    }

    fn connect(&mut self, line: &str) -> Result<()> {
        let parts: Vec<u64> =
            line.split(' ').map(str::parse).collect::<std::result::Result<_, _>>()?;
        let here = self.qp.address(1)?;
        let (qpn, psn) = (Qpn::new(u32::try_from(parts[0])?), Psn::new(u32::try_from(parts[1])?));
        self.far = (parts[2], Rkey(u32::try_from(parts[3])?));
        self.qp.connect(&RcConnect::new(here, RemoteQp { gid: here.gid, qpn, psn }))?;
        self.remote = self.qp.path() == Some(DataPath::Udp);
        for _ in 0..DEPTH / 16 {
            self.post_receives()?;
        }
        Ok(())
    }

    /// Posts as many receives as a batch has.
    fn post_receives(&self) -> Result<()> {
        let sges = [self.memory.sge(0, 1 << 20)?];
        let work = ReceiveWork { wr_id: 0, sges: &sges, buffer: None };
        // SAFETY: the region outlives the queue pair's work and lends no references (rule 1).
        Ok(unsafe { self.qp.post_recv(&[work; BATCH]) }.map_err(|(_, error)| error)?)
    }

    fn post(&self, kind: SendKind, data: SendData<'_>, signaled: bool) -> Result<()> {
        let work = SendWork {
            wr_id: 0,
            kind,
            data,
            to: SendTo::Peer,
            signaled,
            solicited: false,
            fence: false,
            buffer: None,
        };
        // SAFETY: the region outlives the queue pair's work and lends no references (rule 1).
        Ok(unsafe { self.qp.post_send(&[work]) }.map_err(|(_, error)| error)?)
    }

    fn send(&mut self, len: usize, signaled: bool) -> Result<()> {
        let kind = SendKind::Send { imm: None };
        match len <= SMALL {
            true => self.post(kind, SendData::Inline(&[7; SMALL][..len]), signaled),
            false => self.post(kind, SendData::Gather(&[self.memory.sge(0, len)?]), signaled),
        }
    }

    fn poll(&mut self) -> Result<()> {
        let taken = self.cq.poll(&mut self.out)?;
        for at in 0..taken {
            let wc = &self.out[at];
            if wc.status != WcStatus::Success {
                return Err(format!("{}", wc.status).into());
            }
            match wc.opcode {
                WcOpcode::Receive => {
                    self.received += 1;
                    self.spent += 1;
                }
                WcOpcode::Send | WcOpcode::RdmaWrite | WcOpcode::RdmaRead => self.sent += 1,
                WcOpcode::CompareSwap
                | WcOpcode::FetchAdd
                | WcOpcode::AtomicWrite
                | WcOpcode::LocalInvalidate
                | WcOpcode::BindWindow
                | WcOpcode::ReceiveRdmaWithImm
                | _ => return Err("nobody asked for that".into()),
            }
        }
        while self.spent >= BATCH {
            self.spent -= BATCH;
            self.post_receives()?;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        while self.received == 0 {
            self.poll()?;
        }
        self.received -= 1;
        Ok(())
    }

    fn send_receive(&mut self) -> Result<()> {
        self.send(SMALL, false)?;
        self.receive()
    }

    fn write_flag(&mut self, value: u64) -> Result<()> {
        let mut bytes = [0; SMALL];
        bytes[SMALL - 8..].copy_from_slice(&(value + 1).to_ne_bytes());
        let (va, rkey) = self.far;
        let va = va + u64::try_from(FLAG)?;
        let signaled = value.is_multiple_of(64);
        let kind = SendKind::Write { va, rkey, imm: None };
        self.post(kind, SendData::Inline(&bytes), signaled)?;
        if signaled {
            while self.sent == 0 {
                self.poll()?;
            }
            self.sent -= 1;
        }
        Ok(())
    }

    fn await_flag(&mut self, value: u64) -> Result<()> {
        let mut looks = 0_u32;
        while self.memory.load_u64(FLAG + SMALL - 8)? != value + 1 {
            std::hint::spin_loop();
            looks += 1;
            // Over UDP, somebody has to take the packets; here, now and then is enough.
            let pause = if self.remote { 64 } else { 1024 };
            if looks.is_multiple_of(pause) {
                self.poll()?;
            }
        }
        Ok(())
    }

    fn write_ping(&mut self, n: u64) -> Result<()> {
        if n == 0 {
            self.rounds += 1;
        }
        let value = self.rounds * ROUND_TRIPS + n;
        self.write_flag(value)?;
        self.await_flag(value)
    }

    fn read(&mut self, len: usize) -> Result<()> {
        let (va, rkey) = self.far;
        self.post(
            SendKind::Read { va, rkey },
            SendData::Gather(&[self.memory.sge(0, len)?]),
            true,
        )?;
        while self.sent == 0 {
            self.poll()?;
        }
        self.sent -= 1;
        Ok(())
    }

    fn stream(&mut self, count: usize, len: usize, reads: bool) -> Result<()> {
        let (va, rkey) = self.far;
        let mut under_way = 0;
        for n in 0..count {
            let sge = [self.memory.sge(0, len)?];
            let kind = match reads {
                true => SendKind::Read { va, rkey },
                false => SendKind::Write { va, rkey, imm: None },
            };
            self.post(kind, SendData::Gather(&sge), true)?;
            under_way += 1;
            while under_way > 16 || (n + 1 == count && under_way > 0) {
                self.poll()?;
                under_way -= std::mem::take(&mut self.sent);
            }
        }
        Ok(())
    }

    /// Small messages, posted `batch` at a time.
    fn stream_batches(&mut self, count: usize, batch: usize) -> Result<()> {
        let work = SendWork {
            wr_id: 0,
            kind: SendKind::Send { imm: None },
            data: SendData::Inline(&[7; SMALL]),
            to: SendTo::Peer,
            signaled: false,
            solicited: false,
            fence: false,
            buffer: None,
        };
        let mut works = [work; BATCH];
        let mut under_way = 0;
        for n in (0..count).step_by(batch) {
            let signaled = (n + batch).is_multiple_of(2 * BATCH) || n + batch >= count;
            works[batch - 1].signaled = signaled;
            // SAFETY: inline data is copied when it is posted (rule 1).
            unsafe { self.qp.post_send(&works[..batch]) }.map_err(|(_, error)| error)?;
            under_way += u64::from(signaled);
            while under_way > 5 || (n + batch >= count && under_way > 0) {
                self.poll()?;
                under_way -= std::mem::take(&mut self.sent);
            }
        }
        Ok(())
    }

    fn stream_sends(&mut self, count: usize, len: usize) -> Result<()> {
        let mut under_way = 0;
        for n in 0..count {
            let signaled = (n + 1).is_multiple_of(16) || n + 1 == count;
            self.send(len, signaled)?;
            under_way += u64::from(signaled);
            while under_way > 8 || (n + 1 == count && under_way > 0) {
                self.poll()?;
                under_way -= std::mem::take(&mut self.sent);
            }
        }
        Ok(())
    }
}
