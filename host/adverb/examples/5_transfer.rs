//! Exercise 5: data over a reliable connection with every operation, then over an unreliable one with
//! those that it has. What a transport lacks does not compile.

use adverb::verbs::{
    Access, Completion, Connected, Context, Cq, InDomain, Memory, Mr, Pd, Qp, QpConfig, Rc,
    RemoteSlice, Supports, Uc, Work, op,
};
use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Two connected queue pairs; what the first one does completes on `sent`.
struct Pair<T: Connected> {
    pd: Pd,
    sent: Cq,
    received: Cq,
    a: Qp<T>,
    b: Qp<T>,
}

impl<T: Connected + InDomain> Pair<T> {
    fn new(context: &Context) -> Result<Self> {
        let pd = context.alloc_pd();
        let (sent, received) = (context.create_cq(16)?, context.create_cq(16)?);
        let a = pd.create_qp_of::<T>(&QpConfig::new(&sent))?;
        let b = pd.create_qp_of::<T>(&QpConfig::new(&received))?;
        a.connect(b.address()?)?;
        b.connect(a.address()?)?;
        Ok(Self { pd, sent, received, a, b })
    }

    fn run<O>(&self, name: &str, work: Work<O>) -> Result<Completion>
    where
        T: Supports<O>,
    {
        self.a.post(work)?;
        let done = self.sent.wait()?.ok()?;
        println!("{:?}: {name}: {:?}", T::KIND, done.wc.opcode);
        Ok(done)
    }

    fn message(&self, text: &str) -> Result<Memory> {
        let mut buffer = self.pd.buffer(text.len())?;
        buffer.copy_from_slice(text.as_bytes());
        Ok(buffer.into())
    }

    /// Waits for a message and says what it was.
    fn heard(&self) -> Result<()> {
        let done = self.received.wait()?.ok()?;
        let imm = done.wc.imm.map_or(String::new(), |imm| format!(", immediate {:#x}", imm.0));
        println!("  there: {:?}, {} bytes{imm}", done.wc.opcode, done.wc.byte_len);
        Ok(())
    }

    /// What reliable and unreliable connections have in common.
    fn send_and_write(&self, target: &Mr) -> Result<()>
    where
        T: Supports<op::Send> + Supports<op::Write> + Supports<op::Receive>,
    {
        let far = RemoteSlice { addr: target.addr(), rkey: target.rkey() };
        for _ in 0..3 {
            self.b.post(Work::recv(self.pd.buffer(64)?))?;
        }
        self.run("SEND", Work::send(self.message("hello")?))?;
        self.heard()?;
        self.run("SEND with immediate", Work::send_with_imm(self.message("hello")?, 0x5e4d))?;
        self.heard()?;
        self.run("WRITE", Work::write(self.message("written")?, far))?;
        let work = Work::write_with_imm(self.message("Written")?, far, 0x3417e);
        self.run("WRITE with immediate", work)?;
        self.heard()?;
        let mut bytes = [0; 7];
        target.read(0, &mut bytes)?;
        println!("  there: {}", String::from_utf8_lossy(&bytes));
        Ok(())
    }
}

fn main() -> Result<()> {
    let context = Context::open("soft_lo")?;

    let rc = Pair::<Rc>::new(&context)?;
    let target = rc.pd.allocate(64, Access::ALL)?;
    let far = RemoteSlice { addr: target.addr(), rkey: target.rkey() };
    rc.send_and_write(&target)?;
    let read = rc.run("READ", Work::read(rc.pd.buffer(7)?, far))?;
    let read = read.memory.and_then(|memory| memory.into_buf()).ok_or("no buffer")?;
    println!("  here: {}", String::from_utf8_lossy(&read));
    let word = far.plus(8);
    rc.run("FETCH AND ADD", Work::fetch_add(rc.pd.buffer(8)?, word, 40))?;
    rc.run("COMPARE AND SWAP", Work::compare_swap(rc.pd.buffer(8)?, word, 40, 42))?;
    println!("  there: {}", target.load_u64(8)?);
    rc.run("ATOMIC WRITE", Work::atomic_write(rc.message("8 bytes!")?, word))?;

    let uc = Pair::<Uc>::new(&context)?;
    let target = uc.pd.allocate(64, Access::ALL)?;
    uc.send_and_write(&target)
}
