//! Exercise 8: unreliable datagrams. The sender says with each message where it goes; the receiver
//! finds out where it came from, and answers. Then one message goes to a multicast group.

use adverb::verbs::{
    Ah, AhAttr, Completion, Context, Cq, GRH_LEN, Gid, GlobalRoute, Pd, Qkey, Qp, QpConfig, Qpn,
    Ud, Work,
};
use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A sender that shows this key is heard.
const QKEY: Qkey = Qkey(0x1111_1111);

struct Side {
    pd: Pd,
    sent: Cq,
    received: Cq,
    qp: Qp<Ud>,
}

impl Side {
    fn new(context: &Context) -> Result<Self> {
        let pd = context.alloc_pd();
        let (sent, received) = (context.create_cq(16)?, context.create_cq(16)?);
        let config = QpConfig::new(&sent).recv_cq(&received);
        let qp = pd.create_qp_of::<Ud>(&config)?;
        qp.activate(QKEY)?;
        for _ in 0..4 {
            // The message starts after the network header.
            qp.post(Work::recv(pd.buffer(GRH_LEN + 64)?))?;
        }
        Ok(Self { pd, sent, received, qp })
    }

    fn send(&self, text: &str, ah: &Ah, to: Qpn) -> Result<()> {
        let mut buffer = self.pd.buffer(text.len())?;
        buffer.copy_from_slice(text.as_bytes());
        self.qp.post(Work::send_to(buffer, ah, to, QKEY))?;
        self.sent.wait()?.ok()?; // It has left; it may arrive or not.
        Ok(())
    }

    fn receive(&self) -> Result<(Completion, GlobalRoute, String)> {
        let mut done = self.received.wait()?.ok()?;
        let buffer = done.memory.take().and_then(|memory| memory.into_buf()).ok_or("no buffer")?;
        let bytes = buffer.get(..usize::try_from(done.wc.byte_len)?).ok_or("too long")?;
        let (header, message) = bytes.split_first_chunk::<GRH_LEN>().ok_or("no header")?;
        Ok((done, *header, String::from_utf8_lossy(message).into_owned()))
    }
}

fn main() -> Result<()> {
    let context = Context::open("soft_lo")?;
    let (client, server) = (Side::new(&context)?, Side::new(&context)?);

    // The server's address and number: told by other means.
    let there = server.qp.address()?;
    let ah = client.pd.create_ah(&AhAttr::new(there.gid))?;
    client.send("who is there?", &ah, there.qpn)?;

    let (question, header, text) = server.receive()?;
    println!("server: {text} (from queue pair {:#x})", question.wc.src_qp.get());
    let back = server.pd.create_ah_from(&question.wc, &header)?;
    server.send("me", &back, question.wc.src_qp)?;
    println!("client: {}", client.receive()?.2);

    let group = Gid::from_v4([239, 1, 2, 3]);
    client.qp.attach_mcast(group)?;
    server.qp.attach_mcast(group)?;
    let ah = client.pd.create_ah(&AhAttr::new(group))?;
    client.send("to everybody", &ah, Qpn::MULTICAST)?;
    println!("server: {}", server.receive()?.2);
    println!("client: {}", client.receive()?.2);
    Ok(())
}
