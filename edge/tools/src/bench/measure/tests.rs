//! The loops over an endpoint made of two vectors, with a real control connection beside it.

use std::collections::VecDeque;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use std::time::Duration;

use super::stream::Streamed;
use super::*;
use crate::bench::control::{ANSWER_TIME, Answer, Control, Order, Received};
use crate::bench::pace::Limit;

/// A queue pair whose wire is the other one's memory. Checks what a real one would refuse.
struct Fake {
    memory: Arc<Vec<AtomicU8>>,
    peer_memory: Arc<Vec<AtomicU8>>,
    /// Receives that this side has posted.
    receives: Arc<Mutex<VecDeque<(usize, usize)>>>,
    peer_receives: Arc<Mutex<VecDeque<(usize, usize)>>>,
    /// Messages that have arrived here and are not yet reported.
    arrived: Arc<Mutex<u32>>,
    peer_arrived: Arc<Mutex<u32>>,
    completions: u32,
    in_queue: u32,
    /// Of those in the queue: how many the next poll retires.
    retired: u32,
    depth: u32,
    posted: Vec<Request>,
}

impl Fake {
    fn pair(bytes: usize, depth: u32) -> (Self, Self) {
        let memory = || Arc::new((0..bytes).map(|_| AtomicU8::new(0)).collect::<Vec<_>>());
        let (one, other) = (memory(), memory());
        let receives = || Arc::new(Mutex::new(VecDeque::new()));
        let (mine, yours) = (receives(), receives());
        let (here, there) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
        let end = |memory: &Arc<_>,
                   peer: &Arc<_>,
                   own: &Arc<_>,
                   others: &Arc<_>,
                   a: &Arc<_>,
                   b: &Arc<_>| Self {
            memory: Arc::clone(memory),
            peer_memory: Arc::clone(peer),
            receives: Arc::clone(own),
            peer_receives: Arc::clone(others),
            arrived: Arc::clone(a),
            peer_arrived: Arc::clone(b),
            completions: 0,
            in_queue: 0,
            retired: 0,
            depth,
            posted: Vec::new(),
        };
        (
            end(&one, &other, &mine, &yours, &here, &there),
            end(&other, &one, &yours, &mine, &there, &here),
        )
    }

    fn copy(from: &[AtomicU8], to: &[AtomicU8]) {
        assert_eq!(from.len(), to.len());
        for (from, to) in from.iter().zip(to) {
            to.store(from.load(Ordering::Relaxed), Ordering::Release);
        }
    }
}

impl Endpoint for Fake {
    fn post(&mut self, list: &[Request]) -> Result<(), Failure> {
        for request in list {
            self.in_queue += 1;
            assert!(self.in_queue <= self.depth, "the send queue holds {}", self.depth);
            let local = request.local..request.local + request.bytes;
            let remote = request.remote..request.remote + request.bytes;
            match request.op {
                Op::Send => {
                    // A real one would be told to try again later.
                    let (offset, room) = loop {
                        let receive = self.peer_receives.lock().unwrap().pop_front();
                        match receive {
                            Some(receive) => break receive,
                            None => thread::yield_now(),
                        }
                    };
                    assert!(request.bytes <= room, "the receive is long enough");
                    let remote = offset..offset + request.bytes;
                    Self::copy(&self.memory[local], &self.peer_memory[remote]);
                    *self.peer_arrived.lock().unwrap() += 1;
                }
                Op::Write => Self::copy(&self.memory[local], &self.peer_memory[remote]),
                Op::Read => Self::copy(&self.peer_memory[remote], &self.memory[local]),
            }
            if request.signaled {
                self.completions += 1;
                self.retired = self.in_queue;
            }
            self.posted.push(*request);
        }
        Ok(())
    }

    fn post_receives(&mut self, offset: usize, bytes: usize, count: u32) -> Result<(), Failure> {
        let mut receives = self.receives.lock().unwrap();
        (0..count).for_each(|_| receives.push_back((offset, bytes)));
        Ok(())
    }

    fn poll(&mut self) -> Result<Reaped, Failure> {
        self.in_queue -= std::mem::take(&mut self.retired);
        let requests = std::mem::take(&mut self.completions);
        Ok(Reaped { requests, receives: std::mem::take(&mut *self.arrived.lock().unwrap()) })
    }

    fn load(&self, offset: usize) -> u8 {
        self.memory[offset].load(Ordering::Acquire)
    }

    fn store(&mut self, offset: usize, byte: u8) {
        self.memory[offset].store(byte, Ordering::Relaxed);
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            self.store(offset + index, *byte);
        }
    }
}

const LAYOUT: Layout = Layout { half_bytes: 1024, message_bytes_max: 300, receives: 64 };
const DEPTH: u32 = 16;

/// Runs `active` against a passive side with `pattern` in another thread. Returns both endpoints.
fn run<R>(
    pattern: Pattern,
    bytes: usize,
    active: impl FnOnce(&mut Link<Fake>, &mut Watch<'_>) -> R,
) -> (R, Fake, Fake) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut control =
        Control::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap()).unwrap();
    let mut there = Control::new(listener.accept().unwrap().0).unwrap();
    let (one, other) = Fake::pair(2 * LAYOUT.half_bytes, DEPTH);
    let mut link = Link::new(one, LAYOUT).unwrap();
    let mut peer = Link::new(other, LAYOUT).unwrap();
    let passive = thread::spawn(move || {
        let order: Order = there.receive(ANSWER_TIME).unwrap();
        assert!(matches!(order, Order::Run { .. }));
        peer.clear_mark(bytes);
        there.send(&Answer::Ready { port: 0 }).unwrap();
        peer.serve(pattern, bytes, &mut Watch::new(&mut there)).unwrap();
        there.send(&Answer::Done(Received::default())).unwrap();
        peer.endpoint
    });
    link.clear_mark(bytes);
    let bytes = u64::try_from(bytes).unwrap();
    control.start(&Order::Run { pattern, bytes }).unwrap();
    let result = active(&mut link, &mut Watch::new(&mut control));
    control.stop().unwrap();
    (result, link.endpoint, passive.join().unwrap())
}

fn iters(iters: u64) -> Limit {
    Limit { iters: Some(iters), duration: None }
}

#[test]
fn completions_are_timed_one_by_one() {
    for op in [Op::Send, Op::Write, Op::Read] {
        let (samples, here, there) =
            run(Pattern::Absorb, 64, |link, watch| link.completion(op, 64, iters(100), watch));
        assert_eq!(samples.unwrap().len(), 100, "{op}");
        assert_eq!(here.posted.len(), 110, "{op}: a tenth more to warm up");
        assert!(here.posted.iter().all(|request| request.signaled && request.bytes == 64));
        assert!(there.posted.is_empty());
        assert_eq!(there.receives.lock().unwrap().len(), 64, "{op}: receives are replaced");
    }
}

/// Goal: the answering side has receives for what comes meanwhile, and posts others when it has answered.
#[test]
fn receives_are_replaced_after_the_answer_unless_none_is_left() {
    for (receives, left) in [(2, 1), (1, 1)] {
        let (one, mut other) = Fake::pair(2 * LAYOUT.half_bytes, DEPTH);
        let mut link = Link::new(one, Layout { receives, ..LAYOUT }).unwrap();
        let request = Request { op: Op::Send, local: 0, remote: 0, bytes: 64, signaled: true };
        other.post(&[request]).unwrap();
        assert_eq!(link.take().unwrap().receives, 1);
        assert_eq!(other.peer_receives.lock().unwrap().len(), left);
        link.refill().unwrap();
        assert_eq!(u32::try_from(other.peer_receives.lock().unwrap().len()), Ok(receives));
    }
}

/// More than 256 turns, so that the counter in the last byte wraps.
#[test]
fn ping_pongs_come_back_as_often_as_they_go() {
    for bytes in [1, 2, 300] {
        let (samples, here, there) = run(Pattern::EchoSend, bytes, |link, watch| {
            link.send_round_trip(bytes, iters(600), watch)
        });
        assert_eq!(samples.unwrap().len(), 600);
        assert_eq!((here.posted.len(), there.posted.len()), (660, 660));
        let receives = [here, there].map(|end| end.receives.lock().unwrap().len());
        assert_eq!(receives, [64, 64], "receives are replaced");

        let (samples, here, there) = run(Pattern::EchoWrite, bytes, |link, watch| {
            link.write_round_trip(bytes, iters(600), watch)
        });
        assert_eq!(samples.unwrap().len(), 600);
        assert_eq!((here.posted.len(), there.posted.len()), (660, 660));
        assert!(there.posted.iter().all(|r| r.op == Op::Write && r.remote == LAYOUT.half_bytes));
    }
}

#[test]
fn a_stream_counts_what_has_completed_and_asks_for_a_completion_now_and_then() {
    for (depth, list, signal_every) in [(1, 1, 1), (16, 1, 4), (16, 4, 5), (4, 3, 2), (16, 16, 1)] {
        for op in [Op::Send, Op::Write, Op::Read] {
            let stream = Stream { op, bytes: 64, blocks: 3, depth, list, signal_every };
            let (streamed, here, _) =
                run(Pattern::Absorb, 64, |link, watch| link.stream(stream, iters(1000), watch));
            let messages = streamed.unwrap().messages;
            assert!(
                (1000..1000 + u64::from(depth + list)).contains(&messages),
                "{stream:?}: {messages}"
            );
            let signaled = here.posted.iter().filter(|request| request.signaled).count();
            let every = usize::try_from(signal_every).unwrap();
            assert_eq!(signaled * every, here.posted.len(), "{stream:?}");
        }
    }
}

#[test]
fn a_stream_goes_round_its_blocks_and_stays_within_its_half() {
    let blocks = LAYOUT.blocks(100);
    assert_eq!(blocks, 8, "1024 bytes hold 8 places of 128");
    let stream = Stream { op: Op::Write, bytes: 100, blocks, depth: 8, list: 1, signal_every: 2 };
    let (_, here, _) =
        run(Pattern::Absorb, 100, |link, watch| link.stream(stream, iters(50), watch));
    for request in &here.posted {
        assert_eq!(request.remote, LAYOUT.half_bytes + request.local);
        assert!(request.local + request.bytes <= LAYOUT.half_bytes);
    }
    let mut places: Vec<_> = here.posted.iter().map(|request| request.local).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), blocks);
}

#[test]
fn a_stream_ends_by_time() {
    let stream = Stream { op: Op::Write, bytes: 8, blocks: 1, depth: 16, list: 1, signal_every: 4 };
    let limit = Limit::time(Duration::from_millis(20));
    let (streamed, ..) = run(Pattern::Absorb, 8, |link, watch| link.stream(stream, limit, watch));
    let Streamed { messages, elapsed } = streamed.unwrap();
    assert!(messages > 0 && elapsed >= Duration::from_millis(20));
}

/// An endpoint to which nothing ever happens, as if the peer had died.
struct Silent;

impl Endpoint for Silent {
    fn post(&mut self, _: &[Request]) -> Result<(), Failure> {
        Ok(())
    }
    fn post_receives(&mut self, _: usize, _: usize, _: u32) -> Result<(), Failure> {
        Ok(())
    }
    fn poll(&mut self) -> Result<Reaped, Failure> {
        Ok(Reaped::default())
    }
    fn load(&self, _: usize) -> u8 {
        0
    }
    fn store(&mut self, _: usize, _: u8) {}
    fn write(&mut self, _: usize, _: &[u8]) {}
}

#[test]
fn an_active_side_notices_that_the_server_has_gone_or_given_up() {
    for last_words in [None, Some("the disk is on fire")] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut control = Control::new(stream).unwrap();
        let mut there = Control::new(listener.accept().unwrap().0).unwrap();
        if let Some(why) = last_words {
            there.send(&Answer::Refused { why: why.to_owned() }).unwrap();
        }
        drop(there);
        let mut link = Link::new(Silent, LAYOUT).unwrap();
        let failure = link.send_round_trip(8, iters(1), &mut Watch::new(&mut control)).unwrap_err();
        let expected = last_words.unwrap_or("closed");
        assert!(failure.to_string().contains(expected), "{failure}");
    }
}

#[test]
fn message_lengths_from_the_network_are_checked() {
    let link = Link::new(Silent, LAYOUT).unwrap();
    assert_eq!(link.check_length(300).unwrap(), 300);
    for bytes in [0, 301, u64::MAX] {
        assert!(link.check_length(bytes).is_err(), "{bytes}");
    }
}
