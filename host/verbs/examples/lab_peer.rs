//! One end of conversations with another RDMA device, operation by operation, each byte compared.
//!
//! `cargo xtask lab` runs it at both ends: here over the software device, in a virtual machine over the `hw`
//! provider and the RoCE driver of its kernel (`rdma_rxe`). By hand:
//!
//! ```text
//! there:  lab_peer serve DEVICE                   # serves one conversation after the other, on TCP port 18990
//! here:   lab_peer ADDRESS DEVICE transport=RC mtu=1024 ops=send:3000,imm:16,write:8,read:70000,cas,faa
//! here:   lab_peer ADDRESS sh COMMAND             # has the other end run a command of its shell
//! ```
//!
//! The words of a conversation: `transport=` RC, UC or UD; `mtu=` the path MTU; `family=` 4 or 6; `active=`
//! here or there: which end posts the operations; `receives=` srq: the passive end receives from a shared
//! receive queue; `loss=yes`: UC and UD may lose messages; `ops=` NAME:BYTES,...: `send`, `imm`, `write`,
//! `wimm`, `read`, `cas`, `faa`, and `inv`, a WRITE through a memory window that a SEND then invalidates.
//! All operations are posted at once, as far as the send queue has room. The exit code is 0 if all was right.

use adverb_verbs::{
    Access, AckTimeout, Ah, AhAttr, Context, Cq, GidEntry, GidKind, Imm, Mr, Mw, MwBind, MwKind,
    PathMtu, Pd, Qkey, Qp, QpConfig, Rc, RcConnect, Rejected, RemoteQp, RemoteSlice, Rkey, Srq,
    SrqConfig, Uc, UcConnect, Ud, WcOpcode, Work, WorkCompletion,
};
use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::{Command, ExitCode, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

type Anything<T> = Result<T, Box<dyn Error>>;

const PORT: u16 = 18_990;
/// Work that is posted at once.
const DEPTH: usize = 16;
/// Beside the data of an operation: the header of a datagram, or the receive of a WRITE with immediate data.
const ROOM: usize = 128;
const ADD: u64 = 0x1122_3344_5566_7788;
const SWAP: u64 = 0x0123_4567_89ab_cdef;
const QKEY: Qkey = Qkey(0x1111_1111);
/// Longest wait for the next completion. An emulated machine that loses packets, or has a processor for a part of the time, takes
/// half a minute for 16 MiB.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for a message that may be lost.
const LOSS_TIMEOUT: Duration = Duration::from_millis(300);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["serve", device] => serve(device),
        [server, "sh", command] => ask_shell(server, command),
        [server, device, plan @ ..] => converse(server, device, &plan.join(" ")),
        _ => Err("see the words at the head of lab_peer.rs".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab_peer: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What both ends do in a conversation.
#[derive(Clone, Debug)]
struct Plan {
    transport: String,
    mtu: PathMtu,
    ipv6: bool,
    here_is_active: bool,
    shares_receives: bool,
    is_lossy: bool,
    ops: Vec<Op>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    Invalidate,
}

/// An operation, and the place in the memories of both ends that is its own.
#[derive(Clone, Copy, Debug)]
struct Op {
    kind: Kind,
    len: usize,
    at: usize,
}

impl Op {
    /// Whether the passive end has a receive for it.
    fn is_received(self) -> bool {
        matches!(self.kind, Kind::Send | Kind::SendImm | Kind::WriteImm | Kind::Invalidate)
    }

    /// Whether bytes of it lie in the receive.
    fn has_message(self) -> bool {
        matches!(self.kind, Kind::Send | Kind::SendImm)
    }

    fn end(self) -> usize {
        (self.at + self.len).next_multiple_of(64) + ROOM
    }
}

impl FromStr for Plan {
    type Err = Box<dyn Error>;

    fn from_str(text: &str) -> Anything<Self> {
        let mut words: HashMap<&str, &str> =
            text.split_whitespace().filter_map(|word| word.split_once('=')).collect();
        let mut word = |name, default| words.remove(name).unwrap_or(default);
        let mut ops: Vec<Op> = Vec::new();
        for text in word("ops", "send:16").split(',') {
            let (name, len) = text.split_once(':').unwrap_or((text, "8"));
            let kind = match name {
                "send" => Kind::Send,
                "imm" => Kind::SendImm,
                "write" => Kind::Write,
                "wimm" => Kind::WriteImm,
                "read" => Kind::Read,
                "cas" => Kind::CompareSwap,
                "faa" => Kind::FetchAdd,
                "inv" => Kind::Invalidate,
                _ => return Err(format!("there is no operation {name}").into()),
            };
            let at = ops.last().map_or(0, |op| op.end());
            ops.push(Op { kind, len: len.parse()?, at });
        }
        let mtu = PathMtu::largest_below(word("mtu", "1024").parse()?).ok_or("mtu: 256 to 4096")?;
        let plan = Self {
            transport: word("transport", "RC").to_owned(),
            mtu,
            ipv6: word("family", "4") == "6",
            here_is_active: word("active", "here") == "here",
            shares_receives: word("receives", "own") == "srq",
            is_lossy: word("loss", "no") == "yes",
            ops,
        };
        match words.keys().next() {
            Some(name) => Err(format!("there is no word {name}").into()),
            None => Ok(plan),
        }
    }
}

/// What an end says of itself: a line of words.
struct Card {
    qp: RemoteQp,
    memory: RemoteSlice,
    windows: Vec<Rkey>,
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.qp, self.memory)?;
        self.windows.iter().try_for_each(|rkey| write!(f, " {:x}", rkey.0))
    }
}

impl FromStr for Card {
    type Err = Box<dyn Error>;

    fn from_str(text: &str) -> Anything<Self> {
        let mut words = text.split_whitespace();
        let mut word = || words.next().ok_or("not a card");
        let (qp, memory) = (word()?.parse()?, word()?.parse()?);
        let windows = words.map(|word| Ok(Rkey(u32::from_str_radix(word, 16)?)));
        Ok(Self { qp, memory, windows: windows.collect::<Anything<_>>()? })
    }
}

/// A queue pair of any transport.
enum Peer {
    Rc(Qp<Rc>),
    Uc(Qp<Uc>),
    Ud(Qp<Ud>),
}

impl Peer {
    fn new(transport: &str, pd: &Pd, config: &QpConfig<'_>) -> Anything<Self> {
        Ok(match transport {
            "RC" => Self::Rc(pd.create_qp_of(config)?),
            "UC" => Self::Uc(pd.create_qp_of(config)?),
            "UD" => Self::Ud(pd.create_qp_of(config)?),
            other => return Err(format!("there is no transport {other} here").into()),
        })
    }

    fn address_at(&self, index: u8) -> Anything<RemoteQp> {
        Ok(match self {
            Self::Rc(qp) => qp.address_at(index),
            Self::Uc(qp) => qp.address_at(index),
            Self::Ud(qp) => qp.address_at(index),
        }?)
    }

    fn connect(&self, plan: &Plan, index: u8, remote: RemoteQp) -> Anything<()> {
        match self {
            Self::Rc(qp) => qp.connect(
                RcConnect::new(remote)
                    .gid_index(index)
                    .path_mtu(plan.mtu)
                    .timeout(AckTimeout::from_exponent(17)?)
                    .max_rd_atomic(4)
                    .max_dest_rd_atomic(4),
            ),
            Self::Uc(qp) => qp.connect(UcConnect::new(remote).gid_index(index).path_mtu(plan.mtu)),
            Self::Ud(qp) => qp.activate(QKEY),
        }?;
        Ok(())
    }

    fn post(&self, work: Work) -> Result<(), Rejected> {
        match self {
            Self::Rc(qp) => qp.post(work),
            Self::Uc(qp) => qp.post(work),
            Self::Ud(qp) => qp.post(work),
        }
    }

    /// Bytes in front of a message in its receive.
    fn front(&self) -> usize {
        if matches!(self, Self::Ud(_)) { adverb_verbs::GRH_LEN } else { 0 }
    }
}

/// This end of a conversation.
struct End<'a> {
    plan: &'a Plan,
    is_active: bool,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    srq: Option<Srq>,
    qp: Peer,
    index: u8,
    windows: Vec<Mw>,
}

impl<'a> End<'a> {
    fn new(context: &Context, plan: &'a Plan, is_active: bool) -> Anything<Self> {
        let pd = context.alloc_pd();
        let cq = context.create_cq(512)?;
        let srq = match plan.shares_receives && !is_active {
            true => Some(pd.create_srq(&SrqConfig::new(256))?),
            false => None,
        };
        let config = QpConfig::new(&cq).srq(srq.as_ref()).max_recv_wr(256).max_send_wr(64);
        let qp = Peer::new(&plan.transport, &pd, &config)?;
        let len = plan.ops.last().map_or(0, |op| op.end());
        let mr = pd.allocate(len, Access::ALL | Access::MW_BIND)?;
        mr.write(0, &initial(is_active, 0, len))?;
        let index = index_of(context, plan.ipv6)?;
        Ok(Self { plan, is_active, pd, cq, mr, srq, qp, index, windows: Vec::new() })
    }

    /// Exchanges cards over the stream, connects, posts the receives.
    fn meet(&mut self, stream: &mut Stream) -> Anything<Card> {
        let memory = RemoteSlice { addr: self.mr.addr(), rkey: self.mr.rkey() };
        let qp = self.qp.address_at(self.index)?;
        stream.say(&Card { qp, memory, windows: Vec::new() }.to_string())?;
        let far: Card = stream.hear()?.parse()?;
        self.qp.connect(self.plan, self.index, far.qp)?;
        let mut windows = Vec::new();
        if !self.is_active {
            self.post_receives()?;
            windows = self.bind_windows()?;
        }
        stream.say(&Card { qp, memory, windows }.to_string())?;
        stream.hear()?.parse()
    }

    fn post_receives(&self) -> Anything<()> {
        for (k, op) in (0_u64..).zip(&self.plan.ops).filter(|(_, op)| op.is_received()) {
            let slice = if op.has_message() {
                self.mr.slice(op.at, op.len + self.qp.front())?
            } else {
                self.mr.slice(op.end() - 64, 64)?
            };
            let work = Work::recv(slice).wr_id(k);
            match &self.srq {
                Some(srq) => srq.post(work)?,
                None => self.qp.post(work.any())?,
            }
        }
        Ok(())
    }

    fn bind_windows(&mut self) -> Anything<Vec<Rkey>> {
        let mut rkeys = Vec::new();
        for op in self.plan.ops.iter().filter(|op| op.kind == Kind::Invalidate) {
            let mw = self.pd.alloc_mw(MwKind::Type2)?;
            let rkey = mw.rkey().incremented();
            let to = MwBind::new(&self.mr, op.at, op.len, Access::REMOTE_WRITE);
            self.qp.post(Work::bind_mw(&mw, rkey, &to)?.any())?;
            self.next(TIMEOUT)?.ok_or("the binding of a window has not completed")?;
            rkeys.push(rkey);
            self.windows.push(mw);
        }
        Ok(rkeys)
    }

    /// The next completion, which has to be a success.
    fn next(&self, timeout: Duration) -> Anything<Option<WorkCompletion>> {
        let end = Instant::now() + timeout;
        while Instant::now() < end {
            if let Some(completion) = self.cq.next()? {
                return Ok(Some(completion.ok()?.wc));
            }
        }
        Ok(None)
    }

    /// Posts all operations, some at a time, and waits for all.
    fn act(&self, far: &Card) -> Anything<()> {
        let ah = match &self.qp {
            Peer::Ud(_) => {
                let attr = AhAttr::new(far.qp.gid).gid_index(self.index);
                Some(self.pd.create_ah(&attr)?)
            }
            Peer::Rc(_) | Peer::Uc(_) => None,
        };
        let mut windows = far.windows.iter();
        let mut open = 0;
        for (k, op) in (0..).zip(&self.plan.ops) {
            let window = (op.kind == Kind::Invalidate).then(|| windows.next().copied()).flatten();
            for work in self.work(k, *op, far, ah.as_ref(), window)? {
                self.qp.post(work.wr_id(u64::from(k)))?;
                open += 1;
            }
            while open >= DEPTH {
                open -= self.completed()?;
            }
        }
        while open > 0 {
            open -= self.completed()?;
        }
        Ok(())
    }

    fn completed(&self) -> Anything<usize> {
        let late = || format!("nothing has completed for {TIMEOUT:?}");
        self.next(TIMEOUT)?.map(|_| 1).ok_or_else(|| late().into())
    }

    fn work(
        &self,
        k: u32,
        op: Op,
        far: &Card,
        ah: Option<&Ah>,
        window: Option<Rkey>,
    ) -> Anything<Vec<Work>> {
        let slice = self.mr.slice(op.at, op.len)?;
        let to = far.memory.plus(u64::try_from(op.at)?);
        let addressed = |work: Work<adverb_verbs::op::Send>| match ah {
            Some(ah) => work.to(ah, far.qp.qpn, QKEY).any(),
            None => work.any(),
        };
        Ok(vec![match op.kind {
            Kind::Send => addressed(Work::send(slice)),
            Kind::SendImm => addressed(Work::send_with_imm(slice, k)),
            Kind::Write => Work::write(slice, to).any(),
            Kind::WriteImm => Work::write_with_imm(slice, to, k).any(),
            Kind::Read => Work::read(slice, to).any(),
            Kind::CompareSwap => Work::compare_swap(slice, to, word(false, op.at), SWAP).any(),
            Kind::FetchAdd => Work::fetch_add(slice, to, ADD).any(),
            Kind::Invalidate => {
                let rkey = window.ok_or("the other end has bound no window for this")?;
                let write = Work::write(slice, RemoteSlice { rkey, ..to }).any();
                let nothing = self.mr.slice(op.at, 0)?;
                return Ok(vec![write, Work::send_with_invalidate(nothing, rkey).any()]);
            }
        }])
    }

    /// Takes what the active end sends, and compares each completion. How many of the messages came.
    fn receive(&self, far: &mut Stream) -> Anything<(usize, Vec<bool>)> {
        let may_lose = self.plan.is_lossy && !matches!(self.qp, Peer::Rc(_));
        let mut expected =
            (0_u64..).zip(&self.plan.ops).filter(|(_, op)| op.is_received()).peekable();
        let mut came = vec![false; self.plan.ops.len()];
        let mut receives = expected.clone();
        let mut is_over = false;
        let mut last = Instant::now();
        while expected.peek().is_some() {
            let Some(done) = self.next(Duration::from_millis(50))? else {
                is_over = is_over || far.has_something()?;
                match may_lose && is_over && last.elapsed() > LOSS_TIMEOUT {
                    true => break,
                    false if last.elapsed() > TIMEOUT * 2 => {
                        return Err(format!("no message for {:?}", TIMEOUT * 2).into());
                    }
                    false => continue,
                }
            };
            last = Instant::now();
            // Receives complete in their order; messages that were lost took none.
            let (receive, at) = receives.next().ok_or("more messages than receives")?;
            if done.wr_id != receive {
                return Err(format!("receive {} completed, not {receive}", done.wr_id).into());
            }
            let message = loop {
                let (k, op) = expected.next().ok_or("a message that was not sent")?;
                if self.fits(k, *op, &done)? && (!may_lose || self.holds(*at, *op)?) {
                    break k;
                }
                if !may_lose {
                    return Err(format!("{op:?} completed as {done:?}").into());
                }
            };
            *came.get_mut(usize::try_from(message)?).ok_or("no such operation")? = true;
        }
        Ok((came.iter().filter(|&&came| came).count(), came))
    }

    /// Whether a completion is what this operation makes of a receive.
    fn fits(&self, k: u64, op: Op, done: &WorkCompletion) -> Anything<bool> {
        let has_imm = matches!(op.kind, Kind::SendImm | Kind::WriteImm);
        let imm = if has_imm { Some(Imm(u32::try_from(k)?)) } else { None };
        let is_write = op.kind == Kind::WriteImm;
        let opcode = if is_write { WcOpcode::ReceiveRdmaWithImm } else { WcOpcode::Receive };
        let len = match op.kind {
            Kind::Invalidate => 0,
            Kind::WriteImm => op.len,
            Kind::Send | Kind::SendImm => op.len + self.qp.front(),
            Kind::Write | Kind::Read | Kind::CompareSwap | Kind::FetchAdd => return Ok(false),
        };
        let invalidates = done.invalidated.is_some() == (op.kind == Kind::Invalidate);
        let same = (done.imm, done.opcode) == (imm, opcode) && invalidates;
        Ok(same && usize::try_from(done.byte_len)? == len)
    }

    /// Whether the place of a receive holds the message of an operation.
    fn holds(&self, receive: Op, op: Op) -> Anything<bool> {
        if !op.has_message() {
            return Ok(true);
        }
        let mut bytes = vec![0; op.len];
        self.mr.read(receive.at + self.qp.front(), &mut bytes)?;
        Ok(bytes == initial(true, op.at, op.len))
    }

    /// Compares the memory with what the operations make of it. `came` says which messages are here.
    fn compare(&self, came: &[bool]) -> Anything<()> {
        let is_lossy = self.plan.is_lossy && !matches!(self.qp, Peer::Rc(_));
        for (op, came) in self.plan.ops.iter().zip(came.iter().chain(std::iter::repeat(&true))) {
            let front = if op.is_received() && !self.is_active { self.qp.front() } else { 0 };
            let mut bytes = vec![0; op.len];
            self.mr.read(op.at + front, &mut bytes)?;
            let own = initial(self.is_active, op.at, op.len);
            let theirs = initial(!self.is_active, op.at, op.len);
            let right = match (op.kind, self.is_active) {
                (Kind::Read, true) => theirs,
                (Kind::CompareSwap | Kind::FetchAdd, true) => {
                    word(false, op.at).to_ne_bytes().to_vec()
                }
                (Kind::CompareSwap, false) => SWAP.to_ne_bytes().to_vec(),
                (Kind::FetchAdd, false) => {
                    word(false, op.at).wrapping_add(ADD).to_ne_bytes().to_vec()
                }
                (Kind::Read, false) | (_, true) => own,
                // A message that comes late takes the receive of one that was lost.
                _ if is_lossy || !came => continue,
                _ => theirs,
            };
            if bytes != right {
                let wrong = bytes.iter().zip(&right).position(|(a, b)| a != b);
                let [bytes, right] = [&bytes, &right].map(|bytes| bytes.get(..8).unwrap_or(bytes));
                let begin = format!("it begins {bytes:x?}, and should {right:x?}");
                return Err(format!("{op:?}: wrong from byte {wrong:?}; {begin}").into());
            }
        }
        Ok(())
    }
}

/// What the memory of an end holds at first. Only the first period is computed: this program is not optimized, and the
/// processor may be an emulated one.
fn initial(active: bool, at: usize, len: usize) -> Vec<u8> {
    const ROW: usize = 251;
    const PERIOD: usize = ROW * 256;
    let (step, start) = if active { (7, 3) } else { (5, 1) };
    let byte = |at: usize| (at * step + at / ROW + start).to_le_bytes()[0];
    let mut bytes: Vec<u8> = (at..at + len.min(PERIOD)).map(byte).collect();
    while bytes.len() < len {
        bytes.extend_from_within(..bytes.len().min(len - bytes.len()));
    }
    bytes
}

fn word(active: bool, at: usize) -> u64 {
    let bytes = initial(active, at, 8);
    bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// The first address of this family that is not of the link alone.
fn index_of(context: &Context, ipv6: bool) -> Anything<u8> {
    let fits = |entry: &GidEntry| match entry.ip() {
        _ if entry.kind != GidKind::RoceV2 => false,
        IpAddr::V4(_) => !ipv6,
        IpAddr::V6(addr) => ipv6 && !addr.is_unicast_link_local(),
    };
    let found = context.query_gid_table()?.into_iter().find(fits);
    Ok(found.ok_or("no address of this family")?.index)
}

/// Lines in both directions.
struct Stream(BufReader<TcpStream>);

impl Stream {
    fn say(&mut self, line: &str) -> Anything<()> {
        Ok(self.0.get_mut().write_all(format!("{line}\n").as_bytes())?)
    }

    fn hear(&mut self) -> Anything<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Err("the other end has closed the stream".into()),
            _ if line.starts_with("wrong") => Err(format!("there: {}", line.trim_end()).into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// Whether a line has come, or the end of the stream.
    fn has_something(&mut self) -> Anything<bool> {
        if !self.0.buffer().is_empty() {
            return Ok(true);
        }
        self.0.get_ref().set_nonblocking(true)?;
        let peeked = self.0.get_ref().peek(&mut [0]);
        self.0.get_ref().set_nonblocking(false)?;
        Ok(peeked.is_ok())
    }
}

/// Both ends' part, after the plan is known.
fn run(context: &Context, plan: &Plan, is_active: bool, stream: &mut Stream) -> Anything<String> {
    let mut end = End::new(context, plan, is_active)?;
    let far = end.meet(stream)?;
    if is_active {
        end.act(&far)?;
        stream.say("done")?;
        let verdict = stream.hear()?;
        end.compare(&[])?;
        return Ok(verdict);
    }
    let (count, came) = end.receive(stream)?;
    // All work of the active end has completed when it says so.
    while !stream.has_something()? {
        context.drive();
    }
    stream.hear()?;
    end.compare(&came)?;
    let sent = plan.ops.iter().filter(|op| op.is_received()).count();
    let verdict = format!("right: {count} of {sent} messages came");
    stream.say(&verdict)?;
    Ok(verdict)
}

fn serve(device: &str) -> Anything<()> {
    let context = Context::open(device)?;
    let listener = TcpListener::bind(("::", PORT))?;
    println!("serving {device}");
    loop {
        let mut stream = Stream(BufReader::new(listener.accept()?.0));
        let outcome = answer(&context, &mut stream);
        let said = outcome.unwrap_or_else(|error| format!("wrong: {error}"));
        println!("{said}");
        let _ = stream.say(&said); // The other end may have gone.
    }
}

fn answer(context: &Context, stream: &mut Stream) -> Anything<String> {
    let line = stream.hear()?;
    if let Some(command) = line.strip_prefix("sh ") {
        let mut shell = Command::new("/bin/sh");
        let output =
            shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).output()?;
        let verdict = if output.status.success() { "right" } else { "wrong" };
        let said = String::from_utf8_lossy(&output.stderr).replace('\n', " ");
        return Ok(format!("{verdict}: {}: {said}", output.status));
    }
    let plan: Plan = line.parse()?;
    run(context, &plan, !plan.here_is_active, stream)
}

fn connect(server: &str) -> Anything<Stream> {
    let stream = TcpStream::connect((server, PORT))?;
    stream.set_read_timeout(Some(TIMEOUT * 3))?;
    Ok(Stream(BufReader::new(stream)))
}

fn ask_shell(server: &str, command: &str) -> Anything<()> {
    let mut stream = connect(server)?;
    stream.say(&format!("sh {command}"))?;
    judged(&stream.hear()?)
}

fn converse(server: &str, device: &str, text: &str) -> Anything<()> {
    let plan: Plan = text.parse()?;
    let context = Context::open(device)?;
    let mut stream = connect(server)?;
    stream.say(text)?;
    let outcome = run(&context, &plan, plan.here_is_active, &mut stream);
    // What the other end says of itself comes before what its silence does here.
    let theirs = match outcome {
        Ok(_) if !plan.here_is_active => stream.hear()?,
        Ok(verdict) => verdict,
        Err(error) => match stream.has_something()?.then(|| stream.hear()) {
            Some(Err(theirs)) => return Err(format!("here: {error}; {theirs}").into()),
            _ => return Err(error),
        },
    };
    println!("{theirs}");
    judged(&theirs)
}

fn judged(verdict: &str) -> Anything<()> {
    match verdict.starts_with("right") {
        true => Ok(()),
        false => Err(verdict.into()),
    }
}
