//! An echo over RDMA in a tokio runtime: one task sends, another sends back what it receives.
//!
//! Run with `cargo run -p adverb-verbs --features tokio --example async_echo`.

use adverb_verbs::{
    AsyncCompChannel, Context, CqConfig, Pd, Qp, QpConfig, Rc, WcOpcode, Work, WorkCompletion,
};
use std::error::Error;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const ROUNDS: usize = 3;

/// One end of the connection.
struct Side {
    pd: Pd,
    qp: Qp<Rc>,
    channel: AsyncCompChannel,
}

fn main() -> Outcome<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let context = Context::open("soft_lo")?;
        let (client, server) = (Side::new(&context)?, Side::new(&context)?);
        let (here, there) = (client.qp.address()?, server.qp.address()?);
        client.qp.connect(there)?;
        server.qp.connect(here)?;
        for side in [&client, &server] {
            for _ in 0..ROUNDS {
                side.qp.post(Work::recv(side.pd.buffer(64)?))?;
            }
        }
        let echo = tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let text = server.receive().await?;
                server.send(&text)?;
            }
            // The last answer is under way until it is acknowledged.
            server.sent(ROUNDS).await
        });
        for round in 0..ROUNDS {
            client.send(&format!("round {round}"))?;
            println!("echo: {}", client.receive().await?);
        }
        echo.await?
    })
}

impl Side {
    fn new(context: &Context) -> Outcome<Self> {
        let channel = context.create_comp_channel()?;
        let pd = context.alloc_pd();
        // A queue and a channel for each direction would do as well.
        let config = CqConfig::new(64).channel(&channel);
        let receives = context.create_cq_with(&config)?;
        let sends = context.create_cq(64)?;
        let config = QpConfig::new(&receives).send_cq(&sends);
        let qp = pd.create_qp(&config)?;
        Ok(Self { pd, qp, channel: AsyncCompChannel::new(channel)? })
    }

    fn send(&self, text: &str) -> Outcome<()> {
        let mut buffer = self.pd.buffer(text.len())?;
        buffer.copy_from_slice(text.as_bytes());
        Ok(self.qp.post(Work::send(buffer))?)
    }

    async fn receive(&self) -> Outcome<String> {
        let cq = self.qp.recv_cq();
        let mut one = [WorkCompletion::EMPTY];
        self.channel.poll(cq, &mut one).await?;
        let [wc] = one;
        if wc.opcode != WcOpcode::Receive {
            return Err("only receives complete here".into());
        }
        let buffer = cq.take(&wc).and_then(|memory| memory.into_buf()).ok_or("no buffer")?;
        let len = usize::try_from(wc.byte_len)?;
        let bytes = buffer.get(..len).ok_or("longer than its buffer")?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    async fn sent(&self, count: usize) -> Outcome<()> {
        let mut done = 0;
        while done < count {
            match self.qp.send_cq().next()? {
                Some(completion) => {
                    completion.ok()?;
                    done += 1;
                }
                None => tokio::task::yield_now().await,
            }
        }
        Ok(())
    }
}
