//! What the session layer adds to a round trip of 64-byte messages, in nanoseconds a round trip, and
//! to a stream of WRITEs of 64 KiB, in nanoseconds a WRITE.
//!
//! One thread plays both sides, over `soft_lo`, so that no scheduler is measured: what is left is
//! the work that both layers do. Run with `cargo bench -p adverb-session --bench layers`. Prints the
//! best of some rounds, because noise only ever adds.
//!
//! # Safety
//!
//! The raw requests are of regions that live to the end of their measurement, and that lend no
//! references.

use adverb_session::{
    Channel, ClientSession, Config, Endpoint, Event, Operation, RemoteBuffer, ServerSession,
};
use adverb_verbs::{
    Access, Context, Cq, Mr, Qp, QpConfig, Rc, RcConnect, ReceiveWork, SendData, SendKind, SendTo,
    SendWork, WcOpcode, Work, WorkCompletion,
};
use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

type Outcome = Result<(), Box<dyn Error>>;

const BYTES: usize = 64;
const TRIPS: u32 = 5_000;
const ROUNDS: u32 = 15;
const LONG_BYTES: usize = 64 << 10;
const WRITES: u32 = 500;
const IN_FLIGHT: u32 = 16;

fn main() -> Outcome {
    let raw = verbs(raw_trip)?;
    report("verbs, raw", raw, raw);
    report("verbs, owned", verbs(owned_trip)?, raw);
    report("session", session(Config::default())?, raw);
    let inline = Config::default().inline_bytes(64);
    report("session, inline", session(inline)?, raw);
    // Side by side, because a machine has faster and slower moments.
    let mut writes = [Stream::raw()?, Stream::session()?];
    let mut best = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        for (stream, best) in writes.iter_mut().zip(&mut best) {
            *best = stream.time()?.min(*best);
        }
    }
    let [raw, session] = best.map(|best| best * TRIPS / WRITES);
    report("verbs, 64 KiB", raw, raw);
    report("session, 64 KiB", session, raw);
    Ok(())
}

/// WRITEs of 64 KiB, some in flight.
#[expect(clippy::large_enum_variant, reason = "there is one of each")]
enum Stream {
    Raw {
        sides: Box<(Side, Side)>,
    },
    Session {
        near: Channel,
        source: adverb_session::Buffer,
        sink: RemoteBuffer,
        _far: [Endpoint; 2],
    },
}

impl Stream {
    fn raw() -> Result<Self, Box<dyn Error>> {
        Ok(Self::Raw { sides: Box::new(sides(LONG_BYTES)?) })
    }

    fn session() -> Result<Self, Box<dyn Error>> {
        let (client, server) = pair(Config::default())?;
        let near = client.channel("data")?;
        let source = client.adapter().buffer(1, LONG_BYTES)?;
        server.advertise("sink", &server.adapter().buffer(1, LONG_BYTES)?)?;
        let sink = client.remote_buffer("sink")?;
        Ok(Self::Session { near, source, sink, _far: [client, server] })
    }

    /// How long [`WRITES`] of them take.
    fn time(&mut self) -> Result<Duration, Box<dyn Error>> {
        let start = Instant::now();
        let (mut posted, mut done) = (0, 0);
        while done < WRITES {
            let more = posted < WRITES && posted - done < IN_FLIGHT;
            posted += u32::from(more);
            match self {
                Self::Raw { sides } => {
                    let (near, far) = &mut **sides;
                    if more {
                        raw_write(near, far)?;
                        continue;
                    }
                    done += u32::try_from(near.cq.poll(&mut near.completions)?)?;
                }
                Self::Session { near, source, sink, .. } => {
                    if more {
                        near.post_write(source.at(0)?, sink.at(0)?)?;
                        continue;
                    }
                    done += u32::from(near.poll()?.is_some());
                }
            }
        }
        Ok(start.elapsed())
    }
}

fn raw_write(near: &Side, far: &Side) -> Outcome {
    let sges = [near.mr.sge(0, LONG_BYTES)?];
    let write = SendWork {
        kind: SendKind::Write { va: far.mr.addr(), rkey: far.mr.rkey(), imm: None },
        ..raw_send(SendData::Gather(&sges))
    };
    // SAFETY: as the header says.
    unsafe { near.qp.post_send(&[write]) }.map_err(|(_, error)| error)?;
    Ok(())
}

fn report(name: &str, best: Duration, floor: Duration) {
    let ratio = best.as_secs_f64() / floor.as_secs_f64();
    let nanos = best.as_nanos() / u128::from(TRIPS);
    println!("{name:>16}: {nanos:>6} ns  {ratio:.3}");
}

fn best_of(mut trip: impl FnMut() -> Outcome) -> Result<Duration, Box<dyn Error>> {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..TRIPS {
            trip()?;
        }
        best = best.min(start.elapsed());
    }
    Ok(best)
}

/// One side of the raw measurement: half of the region sends, half receives.
struct Side {
    qp: Qp<Rc>,
    cq: Cq,
    mr: Mr,
    /// The layer above keeps these too.
    completions: [WorkCompletion; 16],
}

fn verbs(trip: fn(&mut Side, &mut Side) -> Outcome) -> Result<Duration, Box<dyn Error>> {
    let (mut a, mut b) = sides(2 * BYTES)?;
    best_of(|| trip(&mut a, &mut b))
}

/// Two sides that are connected, each with so many bytes.
fn sides(bytes: usize) -> Result<(Side, Side), Box<dyn Error>> {
    let context = Context::open("soft_lo")?;
    let pd = context.alloc_pd();
    let side = || -> Result<Side, Box<dyn Error>> {
        let cq = context.create_cq(256)?;
        Ok(Side {
            qp: pd.create_qp(&QpConfig::new(&cq))?,
            cq,
            mr: pd.allocate(bytes, Access::ALL)?,
            completions: [WorkCompletion::EMPTY; 16],
        })
    };
    let (a, b) = (side()?, side()?);
    for (near, far) in [(&a, &b), (&b, &a)] {
        let how = RcConnect {
            path_mtu: context.query_port().active_mtu,
            ..RcConnect::new(near.qp.address(1)?, far.qp.address(1)?)
        };
        near.qp.connect(&how)?;
    }
    Ok((a, b))
}

fn raw_trip(a: &mut Side, b: &mut Side) -> Outcome {
    raw_half(a, b)?;
    raw_half(b, a)
}

fn raw_half(from: &mut Side, to: &mut Side) -> Outcome {
    let sges = [to.mr.sge(BYTES, BYTES)?];
    let receive = ReceiveWork { wr_id: 0, sges: &sges, buffer: None };
    // SAFETY: as the header says.
    unsafe { to.qp.post_recv(&[receive]) }.map_err(|(_, error)| error)?;
    let sges = [from.mr.sge(0, BYTES)?];
    let send = raw_send(SendData::Gather(&sges));
    // SAFETY: as the header says.
    unsafe { from.qp.post_send(&[send]) }.map_err(|(_, error)| error)?;
    loop {
        let count = to.cq.poll(&mut to.completions)?;
        let mut taken = to.completions.iter().take(count);
        if taken.any(|completion| completion.opcode == WcOpcode::Receive) {
            return Ok(());
        }
    }
}

fn raw_send(data: SendData<'_>) -> SendWork<'_> {
    SendWork {
        to: SendTo::Peer,
        wr_id: 0,
        kind: SendKind::Send { imm: None },
        data,
        signaled: true,
        solicited: false,
        fence: false,
        buffer: None,
    }
}

fn owned_trip(a: &mut Side, b: &mut Side) -> Outcome {
    owned_half(a, b)?;
    owned_half(b, a)
}

fn owned_half(from: &Side, to: &Side) -> Outcome {
    to.qp.post(Work::recv(to.mr.slice(BYTES, BYTES)?))?;
    from.qp.post(Work::send(from.mr.slice(0, BYTES)?))?;
    loop {
        if let Some(completion) = to.cq.next()?
            && completion.wc.opcode == WcOpcode::Receive
        {
            return Ok(());
        }
    }
}

fn pair(config: Config) -> Result<(Endpoint, Endpoint), Box<dyn Error>> {
    let mut server = ServerSession::bind("127.0.0.1:0", config.clone())?;
    let address = server.local_addr();
    let accepting = thread::spawn(move || server.accept(Duration::from_secs(10)));
    let client = ClientSession::new(config)?.connect(address)?;
    let accepted = accepting.join().map_err(|_| "the server panicked")?;
    Ok((client, accepted?))
}

fn session(config: Config) -> Result<Duration, Box<dyn Error>> {
    let (client, server) = pair(config)?;
    let side = |endpoint: &Endpoint| -> Result<_, Box<dyn Error>> {
        Ok((endpoint.channel("data")?, endpoint.adapter().buffer(2, BYTES)?))
    };
    let (a, a_buffer) = side(&client)?;
    let (b, b_buffer) = side(&server)?;
    let half = |from: &Channel, source: &adverb_session::Buffer, to: &Channel, sink| -> Outcome {
        to.post_recv(sink)?;
        from.post_send(source.at(0)?)?;
        loop {
            if let Some(Event { operation: Operation::Receive, .. }) = to.poll()? {
                return Ok(());
            }
        }
    };
    best_of(|| {
        half(&a, &a_buffer, &b, b_buffer.at(1)?)?;
        half(&b, &b_buffer, &a, a_buffer.at(1)?)
    })
}
