//! One end of a conversation with Linux's own software RoCE, operation by operation.
//!
//! The other end is `vx`, a C program on libibverbs that posts a named list of verbs with fixed
//! data, running where a kernel with `rdma_rxe` has the interface (in a virtual machine, say). Both
//! ends exchange 40 bytes over TCP: GID, address, queue pair, first PSN, key, number of receives.
//! This needs such a machine and is no part of the test suite.
//!
//! ```text
//! there:  vx -d rxe0 -g 1                         # serves
//! here:   rxe_peer -d soft_eth0 -o cas,faa,send:3000,imm:16,write:3000,wimm:8,read:8000 ADDRESS
//!
//! here:   rxe_peer -d soft_eth0 -o LIST           # serves; LIST is what the other end will post
//! there:  vx -d rxe0 -g 1 -o LIST ADDRESS
//! ```
//!
//! `-t` is the transport (RC, UC or UD; at both ends), `-m` the path MTU (1024), `-g` the GID index (1),
//! `-i` the instance (1: TCP port 18991). Over UC and UD a list should end with a SEND: nobody says when
//! what came before has arrived.
//! Every byte is compared with a model of both memories; the exit code is 0 if all was right.

use adverb_verbs::{
    Access, AckTimeout, Ah, AhAttr, Context, Cq, GRH_LEN, Gid, Imm, Mr, PathMtu, Pd, Psn, Qkey, Qp,
    QpConfig, Qpn, Rc, RcConnect, Rejected, RemoteQp, RemoteSlice, Rkey, Uc, UcConnect, Ud,
    WcOpcode, Work, WorkCompletion,
};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

type Anything<T> = Result<T, Box<dyn Error>>;

const MEMORY_BYTES: usize = 1 << 20;
/// Receives land in the upper half of the memory, this far apart.
const RECEIVE_BYTES: usize = 8192;
const ATOMIC_OFFSET: usize = 64;
const COMPARE: u64 = 0x645f_5a55_504b_4641;
const SWAP: u64 = 0x0123_4567_89ab_cdef;
const ADD: u64 = 0x1122_3344_5566_7788;
const IMMEDIATE: u32 = 0xdead_be00;
const QKEY: Qkey = Qkey(0x1111_1111);

/// What both ends say of themselves.
#[derive(Clone, Copy, Debug)]
struct Card {
    gid: [u8; 16],
    addr: u64,
    qpn: u32,
    psn: u32,
    rkey: u32,
    receives: u32,
}

impl Card {
    const LEN: usize = 40;

    /// In the byte order of x86, which `vx` uses as it comes.
    fn emit(&self) -> Vec<u8> {
        let mut bytes = self.gid.to_vec();
        bytes.extend(self.addr.to_le_bytes());
        for word in [self.qpn, self.psn, self.rkey, self.receives] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let (gid, rest) = bytes.split_first_chunk()?;
        let (addr, rest) = rest.split_first_chunk()?;
        let [qpn, psn, rkey, receives] = rest.as_chunks().0 else {
            return None;
        };
        let word = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
        let addr = u64::from_le_bytes(*addr);
        let (qpn, psn, rkey) = (word(qpn), word(psn), word(rkey));
        Some(Self { gid: *gid, addr, qpn, psn, rkey, receives: word(receives) })
    }
}

#[derive(Debug)]
struct Options {
    device: String,
    gid_index: u8,
    transport: String,
    path_mtu: PathMtu,
    instance: u16,
    list: Vec<(String, usize)>,
    server: Option<String>,
}

impl Options {
    fn parse() -> Anything<Self> {
        let mut options = Self {
            device: "soft_lo".to_owned(),
            gid_index: 1,
            transport: "RC".to_owned(),
            path_mtu: PathMtu::B1024,
            instance: 1,
            list: vec![("send".to_owned(), 16)],
            server: None,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            if !word.starts_with('-') {
                options.server = Some(word);
                continue;
            }
            let value = words.next().ok_or("an option needs a value")?;
            match word.as_str() {
                "-d" => options.device = value,
                "-t" => options.transport = value,
                "-g" => options.gid_index = value.parse()?,
                "-i" => options.instance = value.parse()?,
                "-m" => {
                    options.path_mtu =
                        PathMtu::largest_below(value.parse()?).ok_or("-m: 256 to 4096")?
                }
                "-o" => options.list = value.split(',').map(operation).collect::<Anything<_>>()?,
                _ => return Err(format!("there is no option {word}").into()),
            }
        }
        Ok(options)
    }

    fn receives(&self) -> usize {
        self.list.iter().filter(|(name, _)| is_received(name)).count()
    }
}

/// A queue pair of any transport, and where it sends to if nothing else says that.
enum Peer {
    Rc(Qp<Rc>),
    Uc(Qp<Uc>),
    Ud(Qp<Ud>, Option<(Ah, Qpn)>),
}

impl Peer {
    fn new(options: &Options, pd: &Pd, cq: &Cq) -> Anything<Self> {
        let config = QpConfig::new(cq);
        Ok(match options.transport.as_str() {
            "RC" => Self::Rc(pd.create_qp_of(&config)?),
            "UC" => Self::Uc(pd.create_qp_of(&config)?),
            "UD" => Self::Ud(pd.create_qp_of(&config)?, None),
            other => return Err(format!("there is no transport {other} here").into()),
        })
    }

    fn address(&self, gid_index: u8) -> Anything<RemoteQp> {
        Ok(match self {
            Self::Rc(qp) => qp.address_at(gid_index),
            Self::Uc(qp) => qp.address_at(gid_index),
            Self::Ud(qp, _) => qp.address_at(gid_index),
        }?)
    }

    fn connect(&mut self, options: &Options, pd: &Pd, remote: RemoteQp) -> Anything<()> {
        let (gid_index, path_mtu) = (options.gid_index, options.path_mtu);
        match self {
            Self::Rc(qp) => qp.connect(
                RcConnect::new(remote)
                    .gid_index(gid_index)
                    .path_mtu(path_mtu)
                    .timeout(AckTimeout::from_exponent(17)?)
                    .max_rd_atomic(1)
                    .max_dest_rd_atomic(1),
            )?,
            Self::Uc(qp) => {
                qp.connect(UcConnect::new(remote).gid_index(gid_index).path_mtu(path_mtu))?;
            }
            Self::Ud(qp, far) => {
                qp.activate(QKEY)?;
                let ah = pd.create_ah(&AhAttr { gid_index, ..AhAttr::new(remote.gid) })?;
                *far = Some((ah, remote.qpn));
            }
        }
        Ok(())
    }

    /// Posts work of any kind; a SEND goes to the peer.
    fn post(&self, work: Work) -> Result<(), Rejected> {
        match self {
            Self::Rc(qp) => qp.post(work),
            Self::Uc(qp) => qp.post(work),
            Self::Ud(qp, _) => qp.post(work),
        }
    }

    fn send(&self, work: Work<adverb_verbs::op::Send>) -> Work {
        match self {
            Self::Ud(_, Some((ah, remote))) => work.to(ah, *remote, QKEY).any(),
            Self::Rc(_) | Self::Uc(_) | Self::Ud(..) => work.any(),
        }
    }

    /// Bytes in front of a message in its receive.
    fn front(&self) -> usize {
        if matches!(self, Self::Ud(..)) { GRH_LEN } else { 0 }
    }

    fn counters(&self) -> adverb_verbs::QpCounters {
        match self {
            Self::Rc(qp) => qp.counters(),
            Self::Uc(qp) => qp.counters(),
            Self::Ud(qp, _) => qp.counters(),
        }
    }
}

fn is_received(name: &str) -> bool {
    matches!(name, "send" | "imm" | "wimm")
}

fn operation(text: &str) -> Anything<(String, usize)> {
    let (name, len) = text.split_once(':').unwrap_or((text, "8"));
    Ok((name.to_owned(), len.parse()?))
}

/// What the memory of the client or the server holds at first.
fn initial(client: bool) -> Vec<u8> {
    let (step, start) = if client { (7, 3) } else { (5, 1) };
    (0..MEMORY_BYTES).map(|at| u8::try_from((at * step + start) % 256).unwrap_or(0)).collect()
}

fn main() -> Anything<()> {
    let options = Options::parse()?;
    let context = Context::open(&options.device)?;
    let pd = context.alloc_pd();
    let cq = context.create_cq(128)?;
    let mut qp = Peer::new(&options, &pd, &cq)?;
    let client = options.server.is_some();
    let mr = pd.allocate(MEMORY_BYTES, Access::ALL)?;
    mr.write(0, &initial(client))?;

    let mut stream = side_channel(&options)?;
    let own = qp.address(options.gid_index)?;
    let receives = if client { u32::try_from(options.receives())? } else { 0 };
    let (addr, rkey) = (mr.addr(), mr.rkey().0);
    let (qpn, psn) = (own.qpn.get(), own.psn.get());
    let card = Card { gid: own.gid.0, addr, qpn, psn, rkey, receives };
    let theirs: [u8; Card::LEN] = swap(&mut stream, &card.emit())?;
    let theirs = Card::parse(&theirs).ok_or("not a card")?;
    println!("here {card:x?}\nthere {theirs:x?}");

    let (qpn, psn) = (Qpn::new(theirs.qpn), Psn::new(theirs.psn));
    let remote = RemoteQp { gid: Gid(theirs.gid), qpn, psn };
    qp.connect(&options, &pd, remote)?;
    let received = usize::try_from(theirs.receives)?;
    for n in 0..received {
        let slice = mr.slice(place_of(n), RECEIVE_BYTES)?;
        qp.post(Work::recv(slice).wr_id(u64::try_from(n)?).any())?;
    }
    let _: [u8; 4] = swap(&mut stream, &[0; 4])?;
    if client {
        let far = RemoteSlice { addr: theirs.addr, rkey: Rkey(theirs.rkey) };
        run(&options, &qp, &cq, &mr, far)?;
        let _: [u8; 4] = swap(&mut stream, &[0; 4])?;
    } else {
        serve(&options, &context, qp.front(), &cq, &mr, &mut stream)?;
    }
    println!("all as it should be; {:?}", qp.counters());
    Ok(())
}

fn place_of(receive: usize) -> usize {
    MEMORY_BYTES / 2 + receive * RECEIVE_BYTES
}

fn side_channel(options: &Options) -> Anything<TcpStream> {
    let port = 18_990 + options.instance;
    let Some(server) = &options.server else {
        println!("Waiting");
        return Ok(TcpListener::bind(("0.0.0.0", port))?.accept()?.0);
    };
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match TcpStream::connect((server.as_str(), port)) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > end => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn swap<const N: usize>(stream: &mut TcpStream, out: &[u8]) -> Anything<[u8; N]> {
    stream.write_all(out)?;
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The memories of both ends, as they ought to be.
struct Model {
    client: Vec<u8>,
    server: Vec<u8>,
}

impl Model {
    fn new() -> Self {
        Self { client: initial(true), server: initial(false) }
    }

    fn word(&self) -> Anything<u64> {
        let bytes = self.server.get(ATOMIC_OFFSET..).and_then(<[u8]>::first_chunk);
        Ok(u64::from_ne_bytes(*bytes.ok_or("it is in there")?))
    }

    /// Does one operation of the client to both memories.
    fn apply(&mut self, name: &str, len: usize) -> Anything<()> {
        let (from, to) = match name {
            "write" | "wimm" => (&self.client, &mut self.server),
            "read" => (&self.server, &mut self.client),
            "cas" | "faa" => return self.apply_atomic(name),
            _ => return Ok(()),
        };
        let (Some(from), Some(to)) = (from.get(..len), to.get_mut(..len)) else {
            return Err("longer than the memory".into());
        };
        to.copy_from_slice(from);
        Ok(())
    }

    fn apply_atomic(&mut self, name: &str) -> Anything<()> {
        let before = self.word()?;
        let after = match name {
            "faa" => before.wrapping_add(ADD),
            _ if before == COMPARE => SWAP,
            _ => before,
        };
        put(&mut self.client, 0, before);
        put(&mut self.server, ATOMIC_OFFSET, after);
        Ok(())
    }
}

fn put(memory: &mut [u8], at: usize, word: u64) {
    for (place, byte) in memory.iter_mut().skip(at).zip(word.to_ne_bytes()) {
        *place = byte;
    }
}

/// Waits for a completion that has to be a success.
fn wait(cq: &Cq) -> Anything<WorkCompletion> {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        if let Some(completion) = cq.next()? {
            return Ok(completion.ok()?.wc);
        }
    }
    Err("nothing has completed for 20 seconds".into())
}

/// Posts the list, one after the other, and compares what comes back.
fn run(options: &Options, qp: &Peer, cq: &Cq, mr: &Mr, far: RemoteSlice) -> Anything<()> {
    let mut model = Model::new();
    for (k, (name, len)) in (0..).zip(&options.list) {
        let len = if matches!(name.as_str(), "cas" | "faa") { 8 } else { *len };
        let (slice, imm) = (mr.slice(0, len)?, IMMEDIATE + k);
        let word = far.plus(u64::try_from(ATOMIC_OFFSET)?);
        let work = match name.as_str() {
            "send" => qp.send(Work::send(slice)),
            "imm" => qp.send(Work::send_with_imm(slice, imm)),
            "write" => Work::write(slice, far).any(),
            "wimm" => Work::write_with_imm(slice, far, imm).any(),
            "read" => Work::read(slice, far).any(),
            "cas" => Work::compare_swap(slice, word, COMPARE, SWAP).any(),
            "faa" => Work::fetch_add(slice, word, ADD).any(),
            _ => return Err(format!("there is no operation {name}").into()),
        };
        let start = Instant::now();
        qp.post(work)?;
        let done = wait(cq)?;
        model.apply(name, len)?;
        println!("{name:6} len {len:<7} {} in {:?}", done.status, start.elapsed());
        let mut memory = vec![0; MEMORY_BYTES / 2];
        mr.read(0, &mut memory)?;
        if model.client.get(..memory.len()) != Some(&memory[..]) {
            return Err(format!("{name} brought something else").into());
        }
    }
    Ok(())
}

/// Takes what the list brings, and compares the memory with the model at the end.
fn serve(
    options: &Options,
    context: &Context,
    front: usize,
    cq: &Cq,
    mr: &Mr,
    stream: &mut TcpStream,
) -> Anything<()> {
    let mut model = Model::new();
    let mut receives = 0;
    for (k, (name, len)) in (0..).zip(&options.list) {
        // A SEND carries what the client's memory holds at that moment.
        let sent = model.client.get(..*len).unwrap_or_default().to_vec();
        model.apply(name, *len)?;
        if !is_received(name) {
            continue;
        }
        let done = wait(cq)?;
        let imm = (name != "send").then_some(Imm(IMMEDIATE + k));
        let opcode = if name == "wimm" { WcOpcode::ReceiveRdmaWithImm } else { WcOpcode::Receive };
        println!("{name:6} {:?} len {} imm {:x?}", done.opcode, done.byte_len, done.imm);
        if (done.imm, done.opcode, usize::try_from(done.byte_len))
            != (imm, opcode, Ok(front + *len))
        {
            return Err(format!("{name} completed as something else").into());
        }
        let mut got = vec![0; *len];
        mr.read(place_of(receives) + front, &mut got)?;
        if name != "wimm" && got != sent {
            return Err(format!("{name} brought something else").into());
        }
        receives += 1;
    }
    stream.set_nonblocking(true)?;
    let mut last = [0; 4];
    while stream.peek(&mut last).is_err() {
        context.drive(); // The client is still at work.
    }
    stream.set_nonblocking(false)?;
    let _: [u8; 4] = swap(stream, &[0; 4])?;
    let mut memory = vec![0; MEMORY_BYTES / 2];
    mr.read(0, &mut memory)?;
    match model.server.get(..memory.len()) == Some(&memory[..]) {
        true => Ok(()),
        false => Err("the memory is not what the list makes of it".into()),
    }
}
