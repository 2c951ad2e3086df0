//! Exercise 7: many queue pairs that take their receives from one shared receive queue, which says
//! when it runs low.

use adverb::verbs::{Context, Pd, Qp, QpConfig, Rc, Srq, SrqConfig, Work};
use std::error::Error;

const PAIRS: u64 = 4;
const LIMIT: u32 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let context = Context::open("soft_lo")?;
    let events = context.async_events()?;
    let pd = context.alloc_pd();
    let (sends, receives) = (context.create_cq(64)?, context.create_cq(64)?);
    let srq = pd.create_srq(&SrqConfig::new(64))?;

    // Half as many receives as N queue pairs with N messages each would need.
    for wr_id in 0..PAIRS {
        post(&pd, &srq, wr_id)?;
    }
    srq.arm_limit(LIMIT)?;
    let shared = QpConfig::new(&receives).srq(&srq);
    let mut pairs = Vec::new();
    for _ in 0..PAIRS {
        let pair = (pd.create_qp(&QpConfig::new(&sends))?, pd.create_qp(&shared)?);
        connect(&pair.0, &pair.1)?;
        pairs.push(pair);
    }

    for (number, (sender, _)) in pairs.iter().enumerate() {
        let text = format!("message {number}");
        let mut buffer = pd.buffer(text.len())?;
        buffer.copy_from_slice(text.as_bytes());
        sender.post(Work::send(buffer))?;
    }
    for _ in 0..PAIRS {
        let done = receives.wait()?.ok()?;
        let len = usize::try_from(done.wc.byte_len)?;
        let bytes = done.memory.and_then(|memory| memory.into_buf()).ok_or("no buffer")?;
        let text = String::from_utf8_lossy(bytes.get(..len).ok_or("too long")?).into_owned();
        println!("queue pair {:#x}, receive {}: {text}", done.wc.qp.get(), done.wc.wr_id);
    }
    println!("{}", events.get()?);
    Ok(())
}

fn post(pd: &Pd, srq: &Srq, wr_id: u64) -> Result<(), Box<dyn Error>> {
    Ok(srq.post(Work::recv(pd.buffer(64)?).wr_id(wr_id))?)
}

fn connect(a: &Qp<Rc>, b: &Qp<Rc>) -> Result<(), Box<dyn Error>> {
    let (here, there) = (a.address()?, b.address()?);
    a.connect(there)?;
    Ok(b.connect(here)?)
}
