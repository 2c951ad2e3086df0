//! What a session adds to raw verbs, in instructions: the same operation on a channel and on a queue
//! pair, one function each, called by name.
//!
//! Without a name it says what there is. With one it runs that operation, for callgrind to count:
//! `valgrind --tool=callgrind --toggle-collect='*counted_NAME*' PROGRAM NAME`. Both ends are in this
//! process, on the loopback device; a post also drives the device. `adverb bench --layers` says the same in
//! time.
//!
//! # Safety
//!
//! Raw requests are of a region that outlives them and lends no references.

#![expect(clippy::indexing_slicing, reason = "a benchmark may fail")]

#[path = "../../verbs/benches/counted/mod.rs"]
mod counted;

use adverb_session::{
    Access, Block, Buffer, Channel, ClientSession, Config, Endpoint, Event, RemoteBuffer,
    ServerSession, WcStatus, WorkMode,
};
use adverb_verbs::{
    Context, ContextConfig, Cq, Mr, PathChoice, Qp, QpConfig, Rc, RcConnect, ReceiveWork, SendData,
    SendKind, SendTo, SendWork, Sge, WcOpcode, WorkCompletion,
};
use counted::{Operation, Outcome, ROUNDS};
use std::array::from_fn;
use std::thread;
use std::time::Duration;

const SHORT_BYTES: usize = 64;
const LONG_BYTES: usize = 64 << 10;
const BATCH: usize = 16;
const _: () = assert!(ROUNDS.is_multiple_of(BATCH));

/// All of them, by their names.
const OPERATIONS: [Operation<Bench>; 9] = [
    ("turns", counted_turns),
    ("stream", counted_stream),
    ("puts", counted_puts),
    ("raw_poll", counted_raw_poll),
    ("session_poll", counted_session_poll),
    ("raw_send", counted_raw_send),
    ("session_send", counted_session_send),
    ("raw_write_batch", counted_raw_write_batch),
    ("session_write_batch", counted_session_write_batch),
];

fn main() -> Outcome<()> {
    counted::run(&OPERATIONS, || {
        let mut bench = Bench::new()?;
        for _ in 0..ROUNDS {
            bench.raw.send()?;
            bench.session.send()?;
        }
        bench.raw.write()?;
        bench.session.write()?;
        let [a, b] = &mut bench.throwers;
        for _ in 0..ROUNDS {
            a.put(&b.mr)?;
        }
        let [a, b] = &mut bench.streamers;
        for _ in 0..ROUNDS / BATCH {
            a.stream_to(b)?;
        }
        Ok(bench)
    })
}

/// A SEND there and one back, as between two processes that spin: each looks once more after it has
/// answered.
#[inline(never)]
fn counted_turns(bench: &mut Bench) -> Outcome<()> {
    let [a, b] = &mut bench.players;
    for _ in 0..ROUNDS / 2 {
        a.play()?;
        b.play()?;
    }
    Ok(())
}

/// SENDs to the other device, [`BATCH`] in a post, of which the last is signaled.
#[inline(never)]
fn counted_stream(bench: &mut Bench) -> Outcome<()> {
    let [a, b] = &mut bench.streamers;
    (0..ROUNDS / BATCH).try_for_each(|_| a.stream_to(b))
}

/// WRITEs to the other device, one at a time.
#[inline(never)]
fn counted_puts(bench: &mut Bench) -> Outcome<()> {
    let [a, b] = &mut bench.throwers;
    (0..ROUNDS).try_for_each(|_| a.put(&b.mr))
}

#[inline(never)]
fn counted_raw_poll(bench: &mut Bench) -> Outcome<()> {
    (0..ROUNDS).try_for_each(|_| bench.raw.poll(0).map(drop))
}

#[inline(never)]
fn counted_session_poll(bench: &mut Bench) -> Outcome<()> {
    (0..ROUNDS).try_for_each(|_| bench.session.poll(0).map(drop))
}

#[inline(never)]
fn counted_raw_send(bench: &mut Bench) -> Outcome<()> {
    (0..ROUNDS).try_for_each(|_| bench.raw.send())
}

#[inline(never)]
fn counted_session_send(bench: &mut Bench) -> Outcome<()> {
    (0..ROUNDS).try_for_each(|_| bench.session.send())
}

#[inline(never)]
fn counted_raw_write_batch(bench: &mut Bench) -> Outcome<()> {
    (0..ROUNDS / BATCH).try_for_each(|_| bench.raw.write())
}

#[inline(never)]
fn counted_session_write_batch(bench: &mut Bench) -> Outcome<()> {
    (0..ROUNDS / BATCH).try_for_each(|_| bench.session.write())
}

struct Bench {
    players: [Player; 2],
    throwers: [Player; 2],
    streamers: [Player; 2],
    raw: Raw,
    session: Session,
}

impl Bench {
    fn new() -> Outcome<Self> {
        let config = Config::default().work_mode(WorkMode::BusyPoll);
        let config = config.silence_timeout(Duration::from_secs(3600));
        let mut server = ServerSession::bind("127.0.0.1:0", config.clone())?;
        let address = server.local_addr();
        let accepting = thread::spawn(move || server.accept(Duration::from_secs(60)));
        let client = ClientSession::new(config)?.connect(address)?;
        let server = accepting.join().map_err(|_| "the server has panicked")??;
        let (players, throwers) = (Player::rally()?, Player::two()?);
        let streamers = Player::two()?;
        Ok(Self {
            players,
            throwers,
            streamers,
            raw: Raw::new(&client)?,
            session: Session::new(client, server)?,
        })
    }
}

/// One of two devices of this process that play ping-pong.
struct Player {
    qp: Qp<Rc>,
    cq: Cq,
    mr: Mr,
    completions: [WorkCompletion; BATCH],
}

impl Player {
    fn new() -> Outcome<Self> {
        let config = ContextConfig::default().path(PathChoice::SharedMemory).exclusive(true);
        let context = Context::open_with("soft_lo", &config)?;
        let (pd, cq) = (context.alloc_pd(), context.create_cq(256)?);
        let mr = pd.allocate(2 * SHORT_BYTES, Access::ALL)?;
        let qp = pd.create_qp(&QpConfig::new(&cq))?;
        Ok(Self { qp, cq, mr, completions: [WorkCompletion::EMPTY; BATCH] })
    }

    fn two() -> Outcome<[Self; 2]> {
        let players = [Self::new()?, Self::new()?];
        let [a, b] = [players[0].qp.address()?, players[1].qp.address()?];
        players[0].qp.connect(b)?;
        players[1].qp.connect(a)?;
        Ok(players)
    }

    /// Two endpoints with a message under way.
    fn rally() -> Outcome<[Self; 2]> {
        let mut players = Self::two()?;
        players[0].receive()?;
        players[1].receive()?;
        players[1].send()?;
        for _ in 0..ROUNDS {
            players.iter_mut().try_for_each(Self::play)?;
        }
        Ok(players)
    }

    fn receive(&self) -> Outcome<()> {
        let sges = [self.mr.sge(SHORT_BYTES, SHORT_BYTES)?];
        let receive = ReceiveWork { wr_id: 2, sges: &sges, buffer: None };
        // SAFETY: the region lives as long as the queue pair and lends no references.
        Ok(unsafe { self.qp.post_recv(&[receive]) }.map_err(|refused| refused.error)?)
    }

    fn send(&self) -> Outcome<()> {
        self.post(SendKind::Send { imm: None })
    }

    fn post(&self, kind: SendKind) -> Outcome<()> {
        post(&self.qp, &self.mr, kind, SHORT_BYTES)
    }

    /// Takes completions; says whether a message has come.
    fn poll(&mut self) -> Outcome<bool> {
        let count = self.cq.poll(&mut self.completions)?;
        let taken = self.completions.get(..count).unwrap_or_default();
        match taken.iter().find(|wc| wc.status != WcStatus::Success) {
            None => Ok(taken.iter().any(|wc| wc.opcode == WcOpcode::Receive)),
            Some(wc) => Err(wc.status.to_string().into()),
        }
    }

    /// WRITEs a message, and waits for its completion.
    fn put(&mut self, sink: &Mr) -> Outcome<()> {
        self.post(SendKind::Write { va: sink.addr(), rkey: sink.rkey(), imm: None })?;
        while self.cq.poll(&mut self.completions)? == 0 {}
        Ok(())
    }

    /// SENDs messages in one post, and waits until they have all come and it knows.
    fn stream_to(&mut self, sink: &mut Self) -> Outcome<()> {
        let sges = [sink.mr.sge(SHORT_BYTES, SHORT_BYTES)?];
        let receives = [ReceiveWork { wr_id: 2, sges: &sges, buffer: None }; BATCH];
        // SAFETY: the region lives as long as the queue pair and lends no references.
        unsafe { sink.qp.post_recv(&receives) }.map_err(|refused| refused.error)?;
        let sges = [self.mr.sge(0, SHORT_BYTES)?];
        let works = from_fn(|at| send_work(SendKind::Send { imm: None }, &sges, at + 1 == BATCH));
        let works: [SendWork<'_>; BATCH] = works;
        // SAFETY: as for the receives.
        unsafe { self.qp.post_send(&works) }.map_err(|refused| refused.error)?;
        let mut come = 0;
        while come < BATCH {
            come += sink.cq.poll(&mut sink.completions)?;
        }
        while self.cq.poll(&mut self.completions)? == 0 {
            sink.cq.poll(&mut sink.completions)?;
        }
        Ok(())
    }

    /// Waits for a message and answers it.
    fn play(&mut self) -> Outcome<()> {
        while !self.poll()? {}
        self.send()?;
        self.receive()?;
        self.poll().map(drop)
    }
}

/// Posts a request of the first `len` bytes of `mr`.
fn post(qp: &Qp<Rc>, mr: &Mr, kind: SendKind, len: usize) -> Outcome<()> {
    let sges = [mr.sge(0, len)?];
    let work = send_work(kind, &sges, true);
    // SAFETY: regions live as long as the queue pairs that use them, and lend no references.
    Ok(unsafe { qp.post_send(&[work]) }.map_err(|refused| refused.error)?)
}

const fn send_work(kind: SendKind, sges: &[Sge], signaled: bool) -> SendWork<'_> {
    SendWork {
        to: SendTo::Peer,
        wr_id: 1,
        kind,
        data: SendData::Gather(sges),
        signaled,
        solicited: false,
        fence: false,
        buffer: None,
    }
}

/// Two queue pairs, each with a completion queue, as the session's channels have.
struct Raw {
    ends: [(Qp<Rc>, Cq); 2],
    mr: Mr,
    completions: [WorkCompletion; BATCH],
}

impl Raw {
    fn new(endpoint: &Endpoint) -> Outcome<Self> {
        let adapter = endpoint.adapter();
        let mr = adapter.pd().allocate(2 * LONG_BYTES, Access::ALL)?;
        let end = || -> Outcome<_> {
            let cq = adapter.context().create_cq(256)?;
            Ok((adapter.pd().create_qp(&QpConfig::new(&cq))?, cq))
        };
        let ends = [end()?, end()?];
        let [a, b] = [ends[0].0.address()?, ends[1].0.address()?];
        let path_mtu = adapter.path_mtu();
        ends[0].0.connect(RcConnect::new(b).path_mtu(path_mtu))?;
        ends[1].0.connect(RcConnect::new(a).path_mtu(path_mtu))?;
        Ok(Self { ends, mr, completions: [WorkCompletion::EMPTY; BATCH] })
    }

    fn post(&self, kind: SendKind, len: usize) -> Outcome<()> {
        post(&self.ends[0].0, &self.mr, kind, len)
    }

    fn poll(&mut self, end: usize) -> Outcome<usize> {
        let count = self.ends[end].1.poll(&mut self.completions)?;
        let mut taken = self.completions.iter().take(count);
        match taken.find(|wc| wc.status != WcStatus::Success) {
            None => Ok(count),
            Some(wc) => Err(wc.status.to_string().into()),
        }
    }

    fn send(&mut self) -> Outcome<()> {
        let sges = [self.mr.sge(LONG_BYTES, SHORT_BYTES)?];
        let receive = ReceiveWork { wr_id: 2, sges: &sges, buffer: None };
        // SAFETY: the region lives as long as the queue pairs and lends no references.
        unsafe { self.ends[1].0.post_recv(&[receive]) }.map_err(|refused| refused.error)?;
        self.post(SendKind::Send { imm: None }, SHORT_BYTES)?;
        while self.poll(1)? == 0 {}
        while self.poll(0)? == 0 {}
        Ok(())
    }

    fn write(&mut self) -> Outcome<()> {
        let (va, rkey) = (self.mr.addr() + u64::try_from(LONG_BYTES)?, self.mr.rkey());
        for _ in 0..BATCH {
            self.post(SendKind::Write { va, rkey, imm: None }, LONG_BYTES)?;
        }
        let mut done = 0;
        while done < BATCH {
            done += self.poll(0)?;
        }
        Ok(())
    }
}

/// Two channels.
struct Session {
    ends: [Channel; 2],
    sent: Option<Block>,
    received: Option<Block>,
    source: Buffer,
    sink: RemoteBuffer,
    events: Vec<Event>,
    _endpoints: [Endpoint; 2],
}

impl Session {
    fn new(client: Endpoint, server: Endpoint) -> Outcome<Self> {
        let short = client.adapter().buffer(1, SHORT_BYTES)?;
        let receives = server.adapter().buffer(1, SHORT_BYTES)?;
        server.advertise("sink", &server.adapter().buffer(1, LONG_BYTES)?)?;
        Ok(Self {
            ends: [client.channel("data")?, server.channel("data")?],
            sent: Some(short.at(0)?),
            received: Some(receives.at(0)?),
            source: client.adapter().buffer(1, LONG_BYTES)?,
            sink: client.remote_buffer("sink")?,
            events: Vec::with_capacity(BATCH),
            _endpoints: [client, server],
        })
    }

    fn poll(&mut self, end: usize) -> Outcome<usize> {
        let count = self.ends[end].poll_many(&mut self.events)?;
        match self.events.iter().find(|event| event.status != WcStatus::Success) {
            None => Ok(count),
            Some(event) => Err(event.status.to_string().into()),
        }
    }

    fn send(&mut self) -> Outcome<()> {
        self.ends[1].post_recv(self.received.take().ok_or("no block")?)?;
        self.ends[0].post_send(self.sent.take().ok_or("no block")?)?;
        while self.poll(1)? == 0 {}
        self.received = self.events.pop().map(|event| event.block);
        while self.poll(0)? == 0 {}
        self.sent = self.events.pop().map(|event| event.block);
        Ok(())
    }

    fn write(&mut self) -> Outcome<()> {
        for _ in 0..BATCH {
            self.ends[0].post_write(self.source.at(0)?, self.sink.at(0)?)?;
        }
        let mut done = 0;
        while done < BATCH {
            done += self.poll(0)?;
            self.events.clear();
        }
        Ok(())
    }
}
