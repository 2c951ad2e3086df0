//! Another process that opens XRC domains by a file and does what it is told: one line asks, one line
//! answers. The process is this test program itself, started again to run nothing but [`sharer`].

use crate::alone::program;
use crate::pair::{pattern, wait};
use crate::talker::{Talker, reply};
use adverb_verbs::{
    Access, AsyncEvents, Buf, CompChannel, Context, Cq, CqConfig, Gid, Memory, Mr, OpenXrcd, Pd,
    Psn, Qp, Qpn, RemoteQp, RemoteSlice, Rkey, Srq, SrqConfig, Work, XrcTarget, Xrcd,
};
use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::process::Command;
use std::time::Duration;

/// Set in the environment of the process that is to serve.
const VARIABLE: &str = "ADVERB_TEST_SHARER";

/// The other process. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Sharer(Talker);

/// A completion there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Done {
    pub(crate) wr_id: u64,
    pub(crate) status: String,
    pub(crate) opcode: String,
    pub(crate) len: usize,
    pub(crate) imm: Option<u32>,
    pub(crate) srq: u32,
    pub(crate) qp: u32,
    /// Of the bytes that came.
    pub(crate) digest: u64,
}

impl Sharer {
    /// Starts a process that has the domain of this file open.
    pub(crate) fn start(path: &str) -> Self {
        let mut sharer = Self::idle();
        assert_eq!(sharer.ask(&format!("open {path} create")), "opened");
        sharer
    }

    /// Starts a process that has nothing open but the device.
    pub(crate) fn idle() -> Self {
        let command = Command::new(program());
        let mut sharer = Self(Talker::start(command, "sharer::sharer", VARIABLE));
        assert_eq!(sharer.ask("hello"), "hello");
        sharer
    }

    /// Makes a target in RESET.
    pub(crate) fn target(&mut self) -> (usize, RemoteQp) {
        let answer = self.ask("target");
        let words: Vec<_> = answer.split(' ').collect();
        let [index, gid, qpn, psn] = words[..] else { panic!("{answer}") };
        let gid = Gid(gid.parse::<u128>().expect("a number").to_be_bytes());
        let (qpn, psn) = (Qpn::new(number(qpn)), Psn::new(number(psn)));
        (number(index), RemoteQp { gid, qpn, psn })
    }

    pub(crate) fn connect(&mut self, index: usize, peer: RemoteQp) {
        let RemoteQp { gid, qpn, psn } = peer;
        let (gid, qpn, psn) = (u128::from_be_bytes(gid.0), qpn.get(), psn.get());
        assert_eq!(self.ask(&format!("connect {index} {gid} {qpn} {psn}")), "connected");
    }

    /// Makes a queue and says its number.
    pub(crate) fn srq(&mut self) -> u32 {
        number(&self.ask("srq"))
    }

    pub(crate) fn recv(&mut self, srq: u32, len: usize, wr_id: u64) {
        assert_eq!(self.ask(&format!("recv {srq} {len} {wr_id}")), "posted");
    }

    pub(crate) fn wait(&mut self) -> Done {
        self.tell("wait");
        self.done()
    }

    /// The answer to `wait`, told before.
    pub(crate) fn done(&mut self) -> Done {
        let answer = self.answer();
        let words: Vec<_> = answer.split(' ').collect();
        let [wr_id, status, opcode, len, imm, srq, qp, digest] = words[..] else {
            panic!("{answer}")
        };
        Done {
            wr_id: number(wr_id),
            status: status.to_owned(),
            opcode: opcode.to_owned(),
            len: number(len),
            imm: imm.parse().ok(),
            srq: number(srq),
            qp: number(qp),
            digest: number(digest),
        }
    }

    /// Nothing has completed there.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.ask("quiet") == "true"
    }

    /// Makes a region of this length that holds a pattern.
    pub(crate) fn memory(&mut self, len: usize, seed: u64) -> RemoteSlice {
        let answer = self.ask(&format!("memory {len} {seed}"));
        let (addr, rkey) = answer.split_once(' ').expect("two words");
        RemoteSlice { addr: number(addr), rkey: Rkey(number(rkey)) }
    }

    /// Digest of the first bytes of the last region made.
    pub(crate) fn digest(&mut self, len: usize) -> u64 {
        number(&self.ask(&format!("digest {len}")))
    }

    pub(crate) fn kill(self) {
        self.0.kill();
    }

    /// Nothing completes there now; what does is taken.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.ask("look") == "nothing"
    }
}

impl Deref for Sharer {
    type Target = Talker;

    fn deref(&self) -> &Talker {
        &self.0
    }
}

impl DerefMut for Sharer {
    fn deref_mut(&mut self) -> &mut Talker {
        &mut self.0
    }
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("a number, not {word}"))
}

/// A number that is another one for other bytes.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Serves, if this process was started to; nothing otherwise.
#[test]
#[ignore = "the child of another test"]
fn sharer() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let mut servant = Servant::new();
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let words: Vec<_> = line.split(' ').collect();
        let answer = servant.obey(&words);
        reply(&answer);
    }
}

struct Servant {
    context: Context,
    events: AsyncEvents,
    channel: CompChannel,
    pd: Pd,
    cq: Cq,
    xrcd: Option<Xrcd>,
    targets: Vec<Option<Qp<XrcTarget>>>,
    srqs: Vec<Srq>,
    memory: Vec<Mr>,
}

impl Servant {
    fn new() -> Self {
        let context = Context::open("soft_lo").expect("the loopback device");
        let channel = context.create_comp_channel().expect("a channel");
        let config = CqConfig::new(1024).channel(&channel);
        let cq = context.create_cq_with(&config).expect("a queue");
        let events = context.async_events().expect("events");
        let pd = context.alloc_pd();
        let (targets, srqs, memory) = (Vec::new(), Vec::new(), Vec::new());
        Self { context, events, channel, pd, cq, xrcd: None, targets, srqs, memory }
    }

    fn xrcd(&self) -> &Xrcd {
        self.xrcd.as_ref().expect("open")
    }

    fn obey(&mut self, words: &[&str]) -> String {
        match *words {
            ["hello"] => "hello".to_owned(),
            ["open", path, how] => {
                let how = match how {
                    "create" => OpenXrcd::Create,
                    "new" => OpenXrcd::CreateNew,
                    _ => OpenXrcd::Existing,
                };
                match self.context.open_xrcd_of(File::open(path).expect("a file"), how) {
                    Ok(xrcd) => {
                        self.xrcd = Some(xrcd);
                        "opened".to_owned()
                    }
                    Err(error) => format!("{:?}", error.kind()),
                }
            }
            ["target"] => {
                let target = self.xrcd().create_target(0).expect("a target");
                let RemoteQp { gid, qpn, psn } = target.address().expect("an address");
                self.targets.push(Some(target));
                let (index, gid) = (self.targets.len() - 1, u128::from_be_bytes(gid.0));
                format!("{index} {gid} {} {}", qpn.get(), psn.get())
            }
            ["connect", index, gid, qpn, psn] => {
                let target = self.target(index);
                let gid = Gid(number::<u128>(gid).to_be_bytes());
                let peer = RemoteQp { gid, qpn: Qpn::new(number(qpn)), psn: Psn::new(number(psn)) };
                target.connect(peer).expect("connected");
                "connected".to_owned()
            }
            ["state", index] => {
                self.context.drive();
                let target = self.target(index);
                format!("{:?}", target.state())
            }
            ["end", "target", index] => {
                *self.targets.get_mut(number::<usize>(index)).expect("it is there") = None;
                "gone".to_owned()
            }
            ["fail", index] => {
                let target = self.target(index);
                target.to_err();
                "failed".to_owned()
            }
            ["end", "srqs"] => {
                self.srqs.clear();
                "gone".to_owned()
            }
            ["end", "domain"] => {
                self.xrcd = None;
                "gone".to_owned()
            }
            ["event"] => match self.events.get_timeout(Duration::from_secs(60)) {
                Ok(Some(event)) => format!("{:?}", event.kind),
                other => format!("{other:?}"),
            },
            ["srq"] => {
                let config = SrqConfig::new(64);
                let srq = self.pd.create_xrc_srq(&config, self.xrcd(), &self.cq).expect("a queue");
                self.srqs.push(srq);
                self.srqs.last().expect("one").number().to_string()
            }
            ["posted", srq] => self.srq(srq).query().posted.to_string(),
            ["recv", srq, len, wr_id] => {
                let buffer = self.pd.buffer(number(len)).expect("memory");
                self.srq(srq).post(Work::recv(buffer).wr_id(number(wr_id))).expect("room");
                "posted".to_owned()
            }
            ["wait"] => {
                let done = wait(&self.cq);
                let wc = done.wc;
                let buffer: Option<Buf> = done.memory.and_then(Memory::into_buf);
                let len = usize::try_from(wc.byte_len).expect("small");
                let bytes = buffer.as_ref().and_then(|buffer| buffer.get(..len));
                let digest = digest(bytes.unwrap_or_default());
                let imm = wc.imm.map_or("-".to_owned(), |imm| imm.0.to_string());
                let (srq, qp) = (wc.srq.unwrap_or(0), wc.qp.get());
                let (status, opcode) = (wc.status, wc.opcode);
                let id = wc.wr_id;
                format!("{id} {status:?} {opcode:?} {len} {imm} {srq} {qp} {digest}")
            }
            ["quiet"] => {
                (0..1000).all(|_| self.cq.next().expect("no overrun").is_none()).to_string()
            }
            ["look"] => {
                let done = self.cq.next().expect("no overrun");
                done.map_or("nothing".to_owned(), |done| format!("{:?}", done.wc.status))
            }
            ["arm"] => {
                self.cq.req_notify(true).expect("a channel");
                "armed".to_owned()
            }
            ["told", ms] => {
                let wait = Duration::from_millis(number(ms));
                self.channel.get_event_timeout(wait).expect("a channel").is_some().to_string()
            }
            ["memory", len, seed] => {
                let bytes = pattern(number(seed), number(len));
                let mr = self.pd.allocate(bytes.len(), Access::ALL).expect("memory");
                mr.write(0, &bytes).expect("it fits");
                let answer = format!("{} {}", mr.addr(), mr.rkey().0);
                self.memory.push(mr);
                answer
            }
            ["digest", len] => {
                let mr = self.memory.last().expect("one");
                digest(&crate::pair::bytes_of(mr, 0, number(len))).to_string()
            }
            _ => panic!("an unknown command: {words:?}"),
        }
    }

    fn target(&self, index: &str) -> &Qp<XrcTarget> {
        let target = self.targets.get(number::<usize>(index));
        target.and_then(Option::as_ref).expect("it is there")
    }

    fn srq(&self, wanted: &str) -> &Srq {
        let wanted = number::<u32>(wanted);
        self.srqs.iter().find(|srq| srq.number() == wanted).expect("one of ours")
    }
}
