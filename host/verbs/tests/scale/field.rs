//! Many queue pairs of one process, connected two by two.
//!
//! # Safety
//!
//! Raw requests are of one region that outlives them and lends no references.

#![allow(dead_code, reason = "the test and the bench each use a part of it")]

use adverb_verbs::{
    Access, Context, Cq, Mr, Pd, Qp, QpConfig, Rc, ReceiveWork, SendData, SendKind, SendTo,
    SendWork, WcOpcode, WcStatus, WorkCompletion,
};
use std::time::{Duration, Instant};

const LEN: usize = 8;
/// Pairs that exchange at once: as many messages as fit a socket's buffer.
const AT_ONCE: usize = 64;
/// Nothing on one machine takes this long.
const FOREVER: Duration = Duration::from_secs(120);

/// The queue pairs, and what they share.
pub(crate) struct Field {
    context: Context,
    pd: Pd,
    cq: Cq,
    memory: Mr,
    pub(crate) pairs: Vec<[Qp<Rc>; 2]>,
}

impl Field {
    pub(crate) fn new() -> Self {
        let context = Context::open("soft_lo").expect("the loopback device");
        let pd = context.alloc_pd();
        let cq = context.create_cq(4096).expect("a completion queue");
        let memory = pd.allocate(LEN, Access::ALL).expect("memory");
        Self { context, pd, cq, memory, pairs: Vec::new() }
    }

    /// The smallest queue pair that can exchange a message.
    pub(crate) fn config(&self) -> QpConfig<'_> {
        let usual = QpConfig::new(&self.cq);
        usual.max_send_wr(1).max_recv_wr(1).max_inline(0)
    }

    /// Makes and connects `count` queue pairs more.
    pub(crate) fn grow(&mut self, count: usize) {
        let config = self.config();
        let mut pairs = Vec::with_capacity(count / 2);
        for _ in 0..count / 2 {
            let pair = [(); 2].map(|()| self.pd.create_qp(&config).expect("a queue pair"));
            let [a, b] = &pair;
            let (here, there) = (a.address().expect("a GID"), b.address().expect("a GID"));
            a.connect(there).expect("connected");
            b.connect(here).expect("connected");
            pairs.push(pair);
        }
        self.pairs.append(&mut pairs);
    }

    /// Every queue pair sends a message to its peer and gets one.
    pub(crate) fn exchange(&self) {
        for some in self.pairs.chunks(AT_ONCE) {
            for [a, b] in some {
                self.receive(a);
                self.receive(b);
            }
            for [a, b] in some {
                self.send(a);
                self.send(b);
            }
            self.take(4 * some.len());
        }
    }

    /// A message from the first queue pair to the second and back, `rounds` times; the time of one.
    pub(crate) fn round_trips(&self, rounds: u32) -> Duration {
        let [a, b] = self.pairs.first().expect("there are some");
        let start = Instant::now();
        for _ in 0..rounds {
            for (from, to) in [(a, b), (b, a)] {
                self.receive(to);
                self.send(from);
                self.take(2);
            }
        }
        start.elapsed() / rounds
    }

    /// Looks at the empty completion queue, `rounds` times; the time of one.
    pub(crate) fn empty_polls(&self, rounds: u32) -> Duration {
        let mut out = [WorkCompletion::EMPTY; 16];
        let start = Instant::now();
        for _ in 0..rounds {
            assert_eq!(self.cq.poll(&mut out), Ok(0));
        }
        start.elapsed() / rounds
    }

    fn receive(&self, at: &Qp<Rc>) {
        let sges = [self.memory.sge(0, LEN).expect("in there")];
        let work = ReceiveWork { wr_id: u64::from(at.number().get()), sges: &sges, buffer: None };
        // SAFETY: the region lives as long as its queue pairs and lends no references.
        unsafe { at.post_recv(&[work]) }.expect("room");
    }

    fn send(&self, from: &Qp<Rc>) {
        let sges = [self.memory.sge(0, LEN).expect("in there")];
        let work = SendWork {
            to: SendTo::Peer,
            wr_id: u64::from(from.number().get()),
            kind: SendKind::Send { imm: None },
            data: SendData::Gather(&sges),
            signaled: true,
            solicited: false,
            fence: false,
            buffer: None,
        };
        // SAFETY: the region lives as long as its queue pairs and lends no references.
        unsafe { from.post_send(&[work]) }.expect("room");
    }

    /// Takes this many completions, half of them receives; all are good and say whose they are.
    fn take(&self, count: usize) {
        let end = Instant::now() + FOREVER;
        let (mut seen, mut received) = (0, 0);
        let mut out = [WorkCompletion::EMPTY; 64];
        while seen < count {
            let taken = self.cq.poll(&mut out).expect("no overrun");
            for wc in out.iter().take(taken) {
                assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, u64::from(wc.qp.get())));
                received += usize::from(wc.opcode == WcOpcode::Receive);
            }
            seen += taken;
            assert!(taken > 0 || Instant::now() < end, "{seen} of {count} have completed");
        }
        assert_eq!((seen, received), (count, count / 2));
    }
}
