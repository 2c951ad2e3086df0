//! A host full of processes: how long the last of 1,000 takes to open the device, what waiting ones
//! cost, and what two that poll cost one another on one processor.
//!
//! Run with `cargo bench -p adverb-verbs --bench crowd`, which runs in a network namespace of its own
//! where it may. Each process opens the loopback device, has one queue pair and waits. What a device
//! costs to open, and a queue pair to make and to connect, is the best of some rounds with so many
//! others there; over UDP, where all of them share the address's port. The bench fails if the last one
//! takes more than 5 ms to open the device.
//!
//! The pollers bounce a message, the best of some rounds, with `sched_yield(2)` and without: a filter in
//! front of the system calls then makes it do nothing.
//!
//! # Safety
//!
//! `prctl(2)` with `PR_SET_SECCOMP` reads a program from memory, which is a local that outlives the call.

use adverb_sys::{affinity, process};
use adverb_verbs::{
    Access, AckTimeout, Context, ContextConfig, Cq, Mr, Psn, Qp, QpConfig, Qpn, Rc, RcConnect,
    RemoteQp, WcOpcode, WcStatus, Work,
};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Others, when it is full.
const COUNT: usize = 999;
const STEPS: [usize; 4] = [0, 99, 499, COUNT];
const ROUNDS: usize = 15;
const ATTACH_MAX: Duration = Duration::from_millis(5);
const IDLE: Duration = Duration::from_secs(5);
const TRIPS: u32 = 2_000;
/// So few take a second where no process yields.
const TRIPS_WITHOUT: u32 = 100;
const BOUNCES: usize = 5;

fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match *args.as_slice() {
        ["guest"] => guest(),
        ["pollers", yields] => pollers(yields == "yield"),
        ["bouncer"] => bouncer(),
        ["alone", ..] => bench(),
        _ => alone(),
    }
}

fn this(args: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(args);
    Ok(command)
}

/// Runs all of it again where no other process is, if that is to be had.
fn alone() -> Result<()> {
    let script = "ip link set lo up && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c", script, "sh"]).arg(std::env::current_exe()?).arg("alone");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("in a namespace of its own: {status}").into()),
        Err(_) => bench(),
    }
}

fn bench() -> Result<()> {
    for yields in ["yield", "stay"] {
        // The filter stays for good: a process of its own has it.
        let status = this(&["pollers", yields])?.status()?;
        assert!(status.success(), "{yields}: {status}");
    }
    let last = crowd("auto")?.max(crowd("udp")?);
    assert!(last <= ATTACH_MAX, "the last one took {last:.2?}");
    Ok(())
}

/// The time that the last one needs to open the device.
fn crowd(path: &str) -> Result<Duration> {
    println!("path {path}:");
    let mut guests: Vec<Other> = Vec::new();
    let mut last = Duration::ZERO;
    for count in STEPS {
        while guests.len() < count {
            let mut command = this(&["guest"])?;
            command.env("ADVERB_PATH", path);
            guests.push(Other::start(command)?);
            if let Some(guest) = guests.last_mut() {
                assert_eq!(guest.answer()?, "here");
            }
        }
        let [open, create, connect] = rounds(path)?;
        println!(
            "  {count:>4} others: open {open:>9.2?}, queue pair {create:>9.2?}, connect \
             {connect:>9.2?}"
        );
        last = open;
    }
    std::thread::sleep(IDLE / 5);
    let cpu = |guests: &[Other]| guests.iter().map(Other::cpu).sum::<Duration>();
    let (before, start) = (cpu(&guests), Instant::now());
    std::thread::sleep(IDLE);
    let used = cpu(&guests).saturating_sub(before);
    let share = used.as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
    println!("  {COUNT} that wait: {share:.3} % of a processor, all together");
    Ok(last)
}

/// The best times: to open the device, to make a queue pair, to connect it.
fn rounds(path: &str) -> Result<[Duration; 3]> {
    let mut best = [Duration::MAX; 3];
    let path = if path == "udp" { adverb_verbs::PathChoice::Udp } else { Default::default() };
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let config = ContextConfig::default().path(path).exclusive(true);
        let context = Context::open_with("soft_lo", &config)?;
        let opened = start.elapsed();
        let cq = context.create_cq(16)?;
        let start = Instant::now();
        let qp = context.alloc_pd().create_qp(&QpConfig::new(&cq))?;
        let created = start.elapsed();
        let start = Instant::now();
        let here = qp.address_at(GID_INDEX)?;
        qp.connect(here)?;
        let connected = start.elapsed();
        for (best, time) in best.iter_mut().zip([opened, created, connected]) {
            *best = time.min(*best);
        }
    }
    Ok(best)
}

/// A process with a queue pair that waits for its input to end.
fn guest() -> Result<()> {
    let context = Context::open("soft_lo")?;
    let cq = context.create_cq(16)?;
    let qp = context.alloc_pd().create_qp(&QpConfig::new(&cq))?;
    let here = qp.address_at(GID_INDEX)?;
    qp.connect(here)?;
    println!("here");
    std::io::stdin().lines().for_each(drop);
    Ok(())
}

/// A process that this one has started, and ends.
struct Other {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Other {
    fn start(mut command: Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take().ok_or("no pipe")?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        Ok(Self { child, stdin, stdout })
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.stdin, "{line}")?)
    }

    /// Processor time of all its threads.
    fn cpu(&self) -> Duration {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let threads = threads.into_iter().flatten().flatten();
        let nanos = threads.filter_map(|thread| {
            let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse().ok()
        });
        nanos.map(Duration::from_nanos).sum()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two processes that poll without rest on one processor.
fn pollers(yields: bool) -> Result<()> {
    let one = *affinity::cpus()?.first().ok_or("no processor")?;
    affinity::pin_to_cpu(one)?; // And all that is started from here on.
    let trips = if yields { TRIPS } else { TRIPS_WITHOUT };
    if !yields {
        never_yield()?;
    }
    let side = Side::new()?;
    let mut other = Other::start(this(&["bouncer"])?)?;
    other.tell(&side.address()?)?;
    side.connect(&other.answer()?)?;
    let mut best = (Duration::MAX, Duration::ZERO);
    for _ in 0..BOUNCES {
        other.tell(&trips.to_string())?;
        assert_eq!(other.answer()?, "ready");
        let cpu = |other: &Other| Ok::<_, Box<dyn Error>>(process::usage()?.cpu() + other.cpu());
        let (start, before) = (Instant::now(), cpu(&other)?);
        side.qp.post(Work::send(side.memory()?))?;
        side.bounce(trips, 1)?;
        let used = cpu(&other)?.saturating_sub(before);
        best = best.min((start.elapsed(), used));
        assert_eq!(other.answer()?, "bounced");
    }
    let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(trips);
    let how = if yields { "that yield" } else { "that do not yield" };
    println!(
        "two pollers on one processor {how}: a round trip {:.1} us, processor time {:.1} us",
        each(best.0),
        each(best.1)
    );
    Ok(())
}

/// Its other side.
fn bouncer() -> Result<()> {
    let side = Side::new()?;
    let mut lines = std::io::stdin().lines();
    let mut line =
        || lines.next().ok_or("no other process is there")?.map_err(Box::<dyn Error>::from);
    let there = line()?;
    side.connect(&there)?;
    println!("{}", side.address()?);
    while let Ok(trips) = line() {
        println!("ready");
        side.bounce(trips.parse()?, 0)?;
        println!("bounced");
    }
    Ok(())
}

struct Side {
    mr: Mr,
    cq: Cq,
    qp: Qp<Rc>,
}

impl Side {
    fn new() -> Result<Self> {
        let context = Context::open("soft_lo")?;
        let pd = context.alloc_pd();
        let cq = context.create_cq(16)?;
        let qp = pd.create_qp(&QpConfig::new(&cq))?;
        Ok(Self { mr: pd.allocate(64, Access::ALL)?, cq, qp })
    }

    fn memory(&self) -> Result<adverb_verbs::MrSlice> {
        Ok(self.mr.slice(0, 8)?)
    }

    fn address(&self) -> Result<String> {
        let RemoteQp { qpn, psn, .. } = self.qp.address_at(GID_INDEX)?;
        Ok(format!("{} {}", qpn.get(), psn.get()))
    }

    /// Connects, and posts the first receive.
    fn connect(&self, there: &str) -> Result<()> {
        let (qpn, psn) = there.split_once(' ').ok_or("no address")?;
        let here = self.qp.address_at(GID_INDEX)?;
        let there =
            RemoteQp { gid: here.gid, qpn: Qpn::new(qpn.parse()?), psn: Psn::new(psn.parse()?) };
        let timeout = AckTimeout::from_exponent(20).map_err(|_| "five bits")?;
        self.qp.connect(RcConnect::new(there).timeout(timeout))?;
        self.qp.post(Work::recv(self.memory()?))?;
        Ok(())
    }

    /// Receives and sends so many messages, `opened` of which were sent before, and only polls between.
    fn bounce(&self, trips: u32, opened: u32) -> Result<()> {
        let (mut received, mut posted, mut sent) = (0, opened, 0);
        while received < trips || sent < trips {
            let Some(completion) = self.cq.next()? else {
                continue;
            };
            assert_eq!(completion.wc.status, WcStatus::Success);
            if completion.wc.opcode != WcOpcode::Receive {
                sent += 1;
                continue;
            }
            received += 1;
            self.qp.post(Work::recv(self.memory()?))?;
            if posted < trips {
                posted += 1;
                self.qp.post(Work::send(self.memory()?))?;
            }
        }
        Ok(())
    }
}

/// From now on `sched_yield(2)` does nothing in this process and those that it starts.
fn never_yield() -> Result<()> {
    let yield_call = u32::try_from(libc::SYS_sched_yield)?;
    let instruction = |code: u32, jf: u8, k: u32| -> Result<libc::sock_filter> {
        Ok(libc::sock_filter { code: u16::try_from(code)?, jt: 0, jf, k })
    };
    let mut program = [
        // The number of the call is the first word of what the filter sees.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)?,
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, yield_call)?,
        instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO)?,
        instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW)?,
    ];
    let len = u16::try_from(program.len())?;
    let filter = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    // SAFETY: the command takes numbers alone.
    let allowed = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1_u64, 0_u64, 0_u64, 0_u64) };
    assert_eq!(allowed, 0, "{}", std::io::Error::last_os_error());
    let mode = u64::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: the command reads the program that `filter` names, `len` instructions of a local.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    Ok(())
}

/// IPv4, of the loopback device.
const GID_INDEX: u8 = 1;
