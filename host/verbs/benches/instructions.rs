//! Operations to count the instructions of: one function each, called by name.
//!
//! `cargo xtask record` runs this under callgrind, which counts what the functions called
//! `counted_…` do on their thread, kernel excluded, and compares it with `benches/record`. Both queue
//! pairs are in this process, on the loopback device; posting also drives.
//!
//! # Safety
//!
//! Raw requests are of a region that outlives them and lends no references.

mod counted;

use adverb_verbs::{
    Access, Context, Cq, Mr, Qp, QpConfig, Rc, ReceiveWork, SendData, SendKind, SendTo, SendWork,
    Sge, Srq, SrqConfig, WcStatus, WorkCompletion,
};
use counted::{Operation, Outcome, ROUNDS};
use tracing::subscriber::NoSubscriber;

const BYTES: usize = 64;
const BATCH: usize = 16;
const _: () = assert!(ROUNDS.is_multiple_of(BATCH));

/// All of them, by their names in the record.
const OPERATIONS: [Operation<Bench>; 8] = [
    ("poll_empty", counted_poll_empty),
    ("log_unheard", counted_log_unheard),
    ("send_64_inline", counted_send_64_inline),
    ("send_64_inline_srq", counted_send_64_inline_srq),
    ("send_64_inline_batch_16", counted_send_64_inline_batch_16),
    ("write_64_inline", counted_write_64_inline),
    ("read_64", counted_read_64),
    ("fetch_add", counted_fetch_add),
];

fn main() -> Outcome<()> {
    // Or else the compiler sees that there can never be a subscriber.
    tracing::subscriber::set_global_default(NoSubscriber::default())?;
    counted::run(&OPERATIONS, || {
        let bench = Bench::new()?;
        for _ in 0..2 {
            warm_up(&bench)?;
        }
        Ok(bench)
    })
}

/// Everything that happens only the first few times happens here.
#[inline(never)]
fn warm_up(bench: &Bench) -> Outcome<()> {
    for _ in 0..ROUNDS {
        bench.receive(&bench.b)?;
        bench.post(&[bench.send()])?;
        bench.wait(2)?;
        bench.post(&[bench.read()])?;
        bench.wait(1)?;
        bench.poll()?;
    }
    Ok(())
}

#[inline(never)]
fn counted_poll_empty(bench: &mut Bench) -> Outcome<()> {
    for _ in 0..ROUNDS {
        bench.poll()?;
    }
    Ok(())
}

/// A log event without a subscriber.
#[inline(never)]
fn counted_log_unheard(bench: &mut Bench) -> Outcome<()> {
    for round in 0..ROUNDS {
        tracing::debug!(round, at = bench.memory.addr(), "no subscriber");
    }
    Ok(())
}

#[inline(never)]
fn counted_send_64_inline(bench: &mut Bench) -> Outcome<()> {
    for _ in 0..ROUNDS {
        bench.receive(&bench.b)?;
        bench.post(&[bench.send()])?;
        bench.wait(2)?;
    }
    Ok(())
}

#[inline(never)]
fn counted_send_64_inline_srq(bench: &mut Bench) -> Outcome<()> {
    for _ in 0..ROUNDS {
        bench.receive_shared()?;
        // SAFETY: inline data is copied when it is posted.
        unsafe { bench.c.post_send(&[bench.send()]) }.map_err(|refused| refused.error)?;
        bench.wait(2)?;
    }
    Ok(())
}

#[inline(never)]
fn counted_send_64_inline_batch_16(bench: &mut Bench) -> Outcome<()> {
    for _ in 0..ROUNDS / BATCH {
        for _ in 0..BATCH {
            bench.receive(&bench.b)?;
        }
        bench.post(&[bench.send(); BATCH])?;
        bench.wait(2 * BATCH)?;
    }
    Ok(())
}

#[inline(never)]
fn counted_write_64_inline(bench: &mut Bench) -> Outcome<()> {
    let (va, rkey) = (bench.memory.addr(), bench.memory.rkey());
    let kind = SendKind::Write { va, rkey, imm: None };
    for _ in 0..ROUNDS {
        bench.post(&[SendWork { kind, ..bench.send() }])?;
        bench.wait(1)?;
    }
    Ok(())
}

#[inline(never)]
fn counted_read_64(bench: &mut Bench) -> Outcome<()> {
    for _ in 0..ROUNDS {
        bench.post(&[bench.read()])?;
        bench.wait(1)?;
    }
    Ok(())
}

#[inline(never)]
fn counted_fetch_add(bench: &mut Bench) -> Outcome<()> {
    let (va, rkey) = (bench.memory.addr(), bench.memory.rkey());
    let kind = SendKind::FetchAdd { va, rkey, add: 1 };
    let data = SendData::Gather(&bench.word);
    for _ in 0..ROUNDS {
        bench.post(&[SendWork { kind, data, ..bench.send() }])?;
        bench.wait(1)?;
    }
    Ok(())
}

/// A pair, and another whose receives are shared.
struct Bench {
    cq: Cq,
    memory: Mr,
    whole: [Sge; 1],
    word: [Sge; 1],
    a: Qp<Rc>,
    b: Qp<Rc>,
    c: Qp<Rc>,
    _d: Qp<Rc>,
    srq: Srq,
}

impl Bench {
    fn new() -> Outcome<Self> {
        let context = Context::open("soft_lo")?;
        let (pd, cq) = (context.alloc_pd(), context.create_cq(256)?);
        let memory = pd.allocate(BYTES, Access::ALL)?;
        let (whole, word) = ([memory.sge(0, BYTES)?], [memory.sge(0, 8)?]);
        let srq = pd.create_srq(&SrqConfig::new(64))?;
        let usual = QpConfig::new(&cq);
        let shared = usual.clone().srq(&srq);
        let (a, b) = (pd.create_qp(&usual)?, pd.create_qp(&usual)?);
        let (c, d) = (pd.create_qp(&usual)?, pd.create_qp(&shared)?);
        for (one, other) in [(&a, &b), (&c, &d)] {
            let (here, there) = (one.address()?, other.address()?);
            one.connect(there)?;
            other.connect(here)?;
        }
        Ok(Self { cq, memory, whole, word, a, b, c, _d: d, srq })
    }

    fn send(&self) -> SendWork<'static> {
        SendWork {
            to: SendTo::Peer,
            wr_id: 1,
            kind: SendKind::Send { imm: None },
            data: SendData::Inline(&[7; BYTES]),
            signaled: true,
            solicited: false,
            fence: false,
            buffer: None,
        }
    }

    fn read(&self) -> SendWork<'_> {
        let (va, rkey) = (self.memory.addr(), self.memory.rkey());
        let data = SendData::Gather(&self.whole);
        SendWork { kind: SendKind::Read { va, rkey }, data, ..self.send() }
    }

    fn post(&self, batch: &[SendWork<'_>]) -> Outcome<()> {
        // SAFETY: the region lives as long as the queue pairs and lends no references.
        Ok(unsafe { self.a.post_send(batch) }.map_err(|refused| refused.error)?)
    }

    fn receive(&self, at: &Qp<Rc>) -> Outcome<()> {
        let work = ReceiveWork { wr_id: 2, sges: &self.whole, buffer: None };
        // SAFETY: the region lives as long as the queue pairs and lends no references.
        Ok(unsafe { at.post_recv(&[work]) }.map_err(|refused| refused.error)?)
    }

    fn receive_shared(&self) -> Outcome<()> {
        let work = ReceiveWork { wr_id: 2, sges: &self.whole, buffer: None };
        // SAFETY: the region lives as long as the queue pairs and lends no references.
        Ok(unsafe { self.srq.post_recv(&[work]) }.map_err(|refused| refused.error)?)
    }

    fn poll(&self) -> Outcome<usize> {
        let mut out = [WorkCompletion::EMPTY; BATCH];
        let taken = self.cq.poll(&mut out)?;
        match out.iter().take(taken).find(|wc| wc.status != WcStatus::Success) {
            None => Ok(taken),
            Some(wc) => Err(wc.status.to_string().into()),
        }
    }

    fn wait(&self, count: usize) -> Outcome<()> {
        let mut seen = 0;
        while seen < count {
            seen += self.poll()?;
        }
        Ok(())
    }
}
