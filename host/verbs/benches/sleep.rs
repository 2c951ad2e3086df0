//! What sleeping on a completion channel costs: half the round trip of 64 bytes between two
//! processes that block, beside that of plain blocking UDP sockets in the same run.
//!
//! Run with `cargo bench -p adverb-verbs --bench sleep`. Sockets and verbs take turns; the median
//! of the rounds' medians counts. Where the processes run is fixed, all their threads with them: on
//! one processor, and on two, where the machine has them. A wake-up on the same processor is a
//! switch; one on another has to rouse it first, which may take longer than all the rest.
//!
//! # Safety
//!
//! The raw requests are of a region that lives as long as its queue pair and lends no references.

use adverb_sys::affinity;
use adverb_sys::epoll::{Epoll, Events, Interest};
use adverb_verbs::{
    Access, CompChannel, Context, Cq, CqConfig, Mr, Psn, Qp, QpConfig, Qpn, Rc, ReceiveWork,
    RemoteQp, SendData, SendKind, SendTo, SendWork, WcOpcode, WcStatus, WorkCompletion,
};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const BYTES: usize = 64;
const ROUND_TRIPS: usize = 4_000;
const ROUNDS: usize = 7;
const PEER: &str = "peer";

fn main() -> Result<()> {
    let kinds =
        [("get_event", Wait::Get), ("epoll, as_fd", Wait::Fd), ("epoll, event_fd", Wait::EventFd)];
    let mut child = std::env::args().skip_while(|arg| arg != PEER).skip(1);
    if let (Some(name), Some(cpu)) = (child.next(), child.next()) {
        affinity::pin_to_cpu(cpu.parse()?)?;
        let kind = kinds.into_iter().find(|(known, _)| *known == name).ok_or("no such kind")?;
        return peer(kind.1);
    }
    let cpus = affinity::cpus()?;
    let one = *cpus.first().ok_or("no processor")?;
    affinity::pin_to_cpu(one)?;
    for other in cpus.into_iter().take(2) {
        println!("{}", if other == one { "on one processor:" } else { "on two processors:" });
        // One after the other: a channel that is watched keeps the helper busy for its device.
        for (name, wait) in kinds {
            let [plain, slept] = measure(name, wait, other)?;
            let ratio = slept / plain;
            println!(
                "udp, blocking {plain:>6.2} us   rc send, {name:<16}{slept:>6.2} us  {ratio:.2} x"
            );
        }
    }
    Ok(())
}

/// The medians of both, in turns; the other process runs on processor `cpu`.
fn measure(name: &str, wait: Wait, cpu: usize) -> Result<[f64; 2]> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([PEER, name, &cpu.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let mut to = child.stdin.take().ok_or("no pipe")?;
    let mut from = BufReader::new(child.stdout.take().ok_or("no pipe")?).lines();
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let side = Side::new(wait)?;
    let mut ask = |line: &str| -> Result<String> {
        writeln!(to, "{line}")?;
        Ok(from.next().ok_or("the peer has gone")??)
    };
    let port = ask(&socket.local_addr()?.port().to_string())?;
    socket.connect(("127.0.0.1", port.parse()?))?;
    side.connect(&ask(&side.address()?)?)?;
    let (mut plain, mut slept) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ask("udp")?;
        plain.push(median(|| {
            let mut buffer = [0; BYTES];
            socket.send(&buffer)?;
            socket.recv(&mut buffer)?;
            Ok(())
        })?);
        ask("rdma")?;
        slept.push(median(|| {
            side.send()?;
            side.receive()
        })?);
    }
    drop(to);
    child.wait()?;
    Ok([middle(plain), middle(slept)])
}

/// The other process: echoes in the way that a line of its input says.
fn peer(wait: Wait) -> Result<()> {
    let mut lines = std::io::stdin().lines();
    let mut line = || lines.next().transpose();
    let answer = |line: &str| -> Result<()> {
        println!("{line}");
        Ok(std::io::stdout().flush()?)
    };
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let side = Side::new(wait)?;
    socket.connect(("127.0.0.1", line()?.ok_or("no port")?.parse()?))?;
    answer(&socket.local_addr()?.port().to_string())?;
    side.connect(&line()?.ok_or("no address")?)?;
    answer(&side.address()?)?;
    while let Some(line) = line()? {
        answer("ready")?;
        for _ in 0..ROUND_TRIPS {
            if line == "rdma" {
                side.receive()?;
                side.send()?;
            } else {
                let mut buffer = [0; BYTES];
                socket.recv(&mut buffer)?;
                socket.send(&buffer)?;
            }
        }
    }
    Ok(())
}

/// Half the round trip, in microseconds: the median of one round.
fn median(mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    Ok(middle(times))
}

fn middle(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Where a side sleeps.
#[derive(Clone, Copy, Debug)]
enum Wait {
    Get,
    Fd,
    EventFd,
}

/// One end of a connection.
struct Side {
    qp: Qp<Rc>,
    cq: Cq,
    channel: CompChannel,
    /// Where it sleeps, unless in `get_event`.
    epoll: Option<Epoll>,
    memory: Mr,
}

impl Side {
    fn new(wait: Wait) -> Result<Self> {
        let context = Context::open("soft_lo")?;
        let channel = context.create_comp_channel()?;
        let config = CqConfig::new(64).channel(&channel);
        let cq = context.create_cq_with(&config)?;
        let pd = context.alloc_pd();
        let qp = pd.create_qp(&QpConfig::new(&cq))?;
        let memory = pd.allocate(BYTES, Access::LOCAL_WRITE)?;
        let set = Epoll::new()?;
        let epoll = match wait {
            Wait::Get => None,
            Wait::Fd => {
                set.add(&channel, 0, Interest::Readable)?;
                Some(set)
            }
            Wait::EventFd => {
                set.add(channel.event_fd(), 0, Interest::Readable)?;
                Some(set)
            }
        };
        Ok(Self { qp, cq, channel, epoll, memory })
    }

    fn address(&self) -> Result<String> {
        let RemoteQp { qpn, psn, .. } = self.qp.address()?;
        Ok(format!("{} {}", qpn.get(), psn.get()))
    }

    fn connect(&self, line: &str) -> Result<()> {
        let (qpn, psn) = line.split_once(' ').ok_or("no address")?;
        let here = self.qp.address()?;
        let (qpn, psn) = (Qpn::new(qpn.parse()?), Psn::new(psn.parse()?));
        self.qp.connect(RemoteQp { gid: here.gid, qpn, psn })?;
        for _ in 0..64 {
            self.post_receive()?;
        }
        Ok(self.cq.req_notify(false)?)
    }

    fn post_receive(&self) -> Result<()> {
        let sges = [self.memory.sge(0, BYTES)?];
        let work = ReceiveWork { wr_id: 0, sges: &sges, buffer: None };
        // SAFETY: the region outlives the queue pair's work and lends no references.
        Ok(unsafe { self.qp.post_recv(&[work]) }.map_err(|refused| refused.error)?)
    }

    fn send(&self) -> Result<()> {
        let work = SendWork {
            to: SendTo::Peer,
            wr_id: 0,
            kind: SendKind::Send { imm: None },
            data: SendData::Inline(&[7; BYTES]),
            signaled: false,
            solicited: false,
            fence: false,
            buffer: None,
        };
        // SAFETY: inline data is copied when it is posted.
        Ok(unsafe { self.qp.post_send(&[work]) }.map_err(|refused| refused.error)?)
    }

    /// Sleeps until a message has come.
    fn receive(&self) -> Result<()> {
        let mut events = Events::with_capacity(1);
        loop {
            match &self.epoll {
                None => drop(self.channel.get_event()?),
                Some(epoll) => {
                    epoll.wait(&mut events, None)?;
                    while self.channel.try_get_event().is_some() {}
                }
            }
            self.cq.req_notify(false)?;
            let mut out = [WorkCompletion::EMPTY; 8];
            let taken = self.cq.poll(&mut out)?;
            let mut received = false;
            for wc in out.iter().take(taken) {
                if wc.status != WcStatus::Success {
                    return Err(format!("{}", wc.status).into());
                }
                received |= wc.opcode == WcOpcode::Receive;
            }
            if received {
                return self.post_receive();
            }
        }
    }
}
