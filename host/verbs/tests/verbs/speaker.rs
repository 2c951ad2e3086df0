//! Another process that has one queue pair of an unreliable transport, sends messages and says which have come.
//!
//! Each packet of a message begins with a byte that says whether the network is to lose it.

use crate::alone::program;
use crate::namespaces::Hosts;
use crate::pair::FOREVER;
use crate::talker::{Talker, reply};
use adverb_verbs::{
    Ah, AhAttr, Buf, Context, Cq, GRH_LEN, Gid, Memory, PathMtu, Pd, Qkey, Qp, QpConfig, Qpn,
    RemoteQp, Uc, UcConnect, Ud, WcStatus, Work,
};
use std::time::Instant;

/// Set in the environment of the process that is to speak.
const VARIABLE: &str = "ADVERB_TEST_SPEAKER";
/// Its transport, and the place of its address in the table of GIDs.
const KIND: &str = "ADVERB_TEST_KIND";
/// Bytes of a packet.
const PACKET_BYTES: usize = 1024;
const QKEY: Qkey = Qkey(7);

/// The first byte of a packet that is to be lost.
pub(crate) const MARK: u8 = 0xaa;

/// The transport.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Uc,
    Ud,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Uc, Self::Ud];

    const fn packets(self) -> usize {
        match self {
            Self::Uc => 3,
            Self::Ud => 1,
        }
    }

    /// Where in its packets the payload is, from the BTH on.
    pub(crate) const fn payload_at(self) -> usize {
        match self {
            Self::Uc => 12,
            Self::Ud => 12 + 8,
        }
    }

    /// Of so many messages, those of which the network loses nothing.
    pub(crate) fn whole(self, count: usize) -> String {
        let is_whole = |message: &usize| {
            (0..self.packets()).all(|packet| !is_marked(message * self.packets() + packet))
        };
        let whole: Vec<_> = (0..count).filter(is_whole).map(|n| n.to_string()).collect();
        whole.join(" ")
    }

    /// A message's bytes.
    fn message(self, number: usize) -> Vec<u8> {
        let packets = number * self.packets()..(number + 1) * self.packets();
        let bytes = packets.flat_map(|packet| {
            let mark = if is_marked(packet) { MARK } else { 0 };
            let number = u64::try_from(packet).expect("few").to_le_bytes();
            let rest = number.into_iter().cycle().take(PACKET_BYTES - 1);
            std::iter::once(mark).chain(rest)
        });
        bytes.collect()
    }
}

/// Which packets are to be lost: never the first nor the last of a multiple of seven.
const fn is_marked(packet: usize) -> bool {
    packet % 7 == 3
}

/// A speaker at an end, whose device takes this path.
pub(crate) fn start(hosts: &Hosts, end: usize, kind: Kind, path: &str, gid_index: u8) -> Speaker {
    let mut command = hosts.command(end);
    command.arg(program()).env("ADVERB_PATH", path).env(KIND, format!("{kind:?} {gid_index}"));
    let mut talker = Talker::start(command, "speaker::speaker", VARIABLE);
    let address = talker.answer();
    Speaker { talker, address }
}

/// Such a process, seen from the one that tells it what to do.
pub(crate) struct Speaker {
    talker: Talker,
    pub(crate) address: String,
}

impl Speaker {
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.talker.ask(line)
    }
}

/// Not a test: such a process, if the environment says that this is it.
#[test]
#[ignore = "the child of another test"]
fn speaker() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let what = std::env::var(KIND).expect("a kind");
    let (kind, gid_index) = what.split_once(' ').expect("two words");
    let kind = Kind::ALL.into_iter().find(|one| format!("{one:?}") == kind).expect("a kind");
    let mut servant = Servant::open(kind, gid_index.parse().expect("a number"));
    reply(&servant.address().to_string());
    for line in std::io::stdin().lines() {
        let line = line.expect("text");
        let words: Vec<_> = line.split(' ').collect();
        let number = |word: &str| word.parse::<usize>().expect("a number");
        match *words {
            ["to", address] => servant.find(address.parse().expect("an address")),
            ["join", group] => servant.join(group.parse().expect("a group")),
            ["expect", count] => (0..number(count)).for_each(|_| servant.expect()),
            ["send", count] => (0..number(count)).for_each(|number| servant.send(number)),
            ["came", last] => {
                reply(&servant.came(number(last)));
                continue;
            }
            _ => panic!("{line}"),
        }
        reply("done");
    }
}

/// What it has.
struct Servant {
    kind: Kind,
    gid_index: u8,
    pd: Pd,
    cq: Cq,
    end: End,
}

enum End {
    Uc(Qp<Uc>),
    Ud(Qp<Ud>, Option<(Ah, Qpn)>),
}

impl Servant {
    fn open(kind: Kind, gid_index: u8) -> Self {
        let context = Context::open("soft_eth0").expect("the device");
        let (pd, cq) = (context.alloc_pd(), context.create_cq(1024).expect("a queue"));
        let config = QpConfig::new(&cq).max_recv_wr(512);
        let end = match kind {
            Kind::Uc => End::Uc(pd.create_qp_of(&config).expect("a queue pair")),
            Kind::Ud => {
                let qp = pd.create_qp_of::<Ud>(&config).expect("a queue pair");
                qp.activate(QKEY).expect("ready");
                End::Ud(qp, None)
            }
        };
        Self { kind, gid_index, pd, cq, end }
    }

    fn address(&self) -> RemoteQp {
        let address = match &self.end {
            End::Uc(qp) => qp.address_at(self.gid_index),
            End::Ud(qp, _) => qp.address_at(self.gid_index),
        };
        address.expect("an address")
    }

    fn find(&mut self, peer: RemoteQp) {
        match &mut self.end {
            End::Uc(qp) => {
                let how = UcConnect::new(peer).gid_index(self.gid_index).path_mtu(PathMtu::B1024);
                qp.connect(how).expect("connected");
            }
            End::Ud(_, to) => {
                let ah = AhAttr::new(peer.gid).gid_index(self.gid_index);
                *to = Some((self.pd.create_ah(&ah).expect("a way"), peer.qpn));
            }
        }
    }

    fn join(&self, group: Gid) {
        let End::Ud(qp, _) = &self.end else { panic!("datagrams alone") };
        qp.attach_mcast(group).expect("attached");
    }

    fn expect(&self) {
        let (more, len) = match self.kind {
            Kind::Uc => (0, self.kind.packets() * PACKET_BYTES),
            Kind::Ud => (GRH_LEN, PACKET_BYTES),
        };
        let room = Work::recv(self.pd.buffer(more + len).expect("memory"));
        match &self.end {
            End::Uc(qp) => qp.post(room).expect("room"),
            End::Ud(qp, _) => qp.post(room).expect("room"),
        }
    }

    fn send(&self, number: usize) {
        let bytes = self.kind.message(number);
        let mut buffer: Buf = self.pd.buffer(bytes.len()).expect("memory");
        buffer.copy_from_slice(&bytes);
        match &self.end {
            End::Uc(qp) => qp.post(Work::send(buffer)).expect("room"),
            End::Ud(qp, to) => {
                let (ah, number) = to.as_ref().expect("it was told where to");
                qp.post(Work::send_to(buffer, ah, *number, QKEY)).expect("room");
            }
        }
        crate::pair::wait(&self.cq).ok().expect("sent");
    }

    /// Waits for a message, and says which have come until then.
    fn came(&self, last: usize) -> String {
        let end = Instant::now() + FOREVER;
        let mut came = Vec::new();
        while came.last() != Some(&last) {
            let Some(done) = self.cq.next().expect("no overrun") else {
                assert!(Instant::now() < end, "{came:?} without {last}");
                continue;
            };
            assert_eq!(done.wc.status, WcStatus::Success);
            let len = usize::try_from(done.wc.byte_len).expect("small");
            let buffer = done.memory.and_then(Memory::into_buf).expect("a buffer");
            let head = if self.kind == Kind::Ud { GRH_LEN } else { 0 };
            let bytes = buffer.get(head..len).expect("as long as is said");
            let number = bytes.get(1..9).and_then(<[u8]>::first_chunk).expect("a number");
            let packet = usize::try_from(u64::from_le_bytes(*number)).expect("a number");
            let number = packet / self.kind.packets();
            assert!(bytes == self.kind.message(number), "message {number} is not whole");
            came.push(number);
        }
        let came: Vec<_> = came.iter().map(ToString::to_string).collect();
        came.join(" ")
    }
}
