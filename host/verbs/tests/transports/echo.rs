//! Datagrams between processes, over each path that leads from one to another.
//!
//! The other process is this test program, started again to run nothing but [`answerer`], which sends
//! back what it receives. It may be stopped, and it may be killed.

use crate::alone::{alone, program};
use crate::datagram::{QKEY, Side};
use crate::pair::{FOREVER, eventually, pattern};
use crate::path::Path;
use crate::talker::{Talker, reply};
use adverb_verbs::{Ah, Completion, Memory, Qpn, Work};
use std::cell::Cell;
use std::io::Read;
use std::process::Command;
use std::time::Instant;

/// Set in the environment of the process that answers, and which path it has.
const VARIABLE: &str = "ADVERB_TEST_ANSWERER";
const OWN_PATH: &str = "ADVERB_TEST_ANSWERER_PATH";
const PATHS: [Path; 3] = [Path::Ring, Path::SharedMemory, Path::Udp];
const RECEIVES: usize = 64;

/// Not a test: the other process, if the environment says that this is it.
#[test]
#[ignore = "the child of another test"]
fn answerer() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let path = std::env::var(OWN_PATH).expect("its path");
    let path = PATHS.into_iter().find(|known| format!("{known:?}") == path).expect("a path");
    let side = Side::of(path.context(), QKEY);
    (0..RECEIVES).for_each(|_| side.recv(4096));
    std::thread::spawn(|| {
        let _ = std::io::stdin().lock().read(&mut [0]);
        std::process::exit(0);
    });
    reply(&side.qp.number().get().to_string());
    loop {
        let Some(done) = side.cq.next().expect("no overrun") else {
            std::thread::yield_now();
            continue;
        };
        if done.wc.wr_id == 2 {
            continue;
        }
        let wc = done.wc;
        let buffer = done.memory.and_then(Memory::into_buf).expect("a buffer");
        let (grh, message) = buffer.split_first_chunk::<40>().expect("room for a header");
        let back = side.pd.create_ah_from(&wc, grh).expect("a way");
        let len = usize::try_from(wc.byte_len).expect("small") - grh.len();
        let message = side.buffer(message.get(..len).expect("that much was received"));
        let work = Work::send_to(message, &back, wc.src_qp, QKEY).wr_id(2);
        let _ = side.qp.post(work); // If the queue is full, it is lost.
        side.recv(4096);
    }
}

/// The other process.
struct Answerer {
    talker: Talker,
    qpn: Qpn,
}

impl Answerer {
    fn start(path: Path) -> Self {
        let mut command = Command::new(program());
        command.env(OWN_PATH, format!("{path:?}"));
        let mut talker = Talker::start(command, "echo::answerer", VARIABLE);
        let qpn = Qpn::new(talker.answer().parse().expect("its number"));
        Self { talker, qpn }
    }
}

/// A process that sends and knows how many receives it has left.
struct Caller {
    side: Side,
    receives: Cell<usize>,
}

impl Caller {
    fn new(path: Path) -> Self {
        Self { side: Side::of(path.context(), QKEY), receives: Cell::new(0) }
    }

    fn next(&self) -> Option<Completion> {
        let done = self.side.cq.next().expect("no overrun")?;
        self.receives.update(|count| count - usize::from(done.wc.wr_id == 1));
        Some(done)
    }

    /// Sends a message and waits until it has left.
    fn send(&self, message: &[u8], ah: &Ah, to: Qpn) {
        self.post(message, ah, to);
        eventually("it has left", || self.next().is_some_and(|done| done.wc.wr_id == 2));
    }

    fn post(&self, message: &[u8], ah: &Ah, to: Qpn) {
        let work = Work::send_to(self.side.buffer(message), ah, to, QKEY);
        self.side.qp.post(work.wr_id(2)).expect("room");
    }

    /// Sends messages until one is answered.
    fn reaches(&self, ah: &Ah, to: Qpn, message: &[u8]) {
        eventually("an answer", || {
            // Answers to what was sent before come too, perhaps late, and take a receive each.
            if self.receives.get() < RECEIVES / 2 {
                self.side.recv(4096);
                self.receives.update(|count| count + 1);
            }
            self.post(message, ah, to);
            std::iter::from_fn(|| self.next()).any(|done| {
                let len = usize::try_from(done.wc.byte_len).expect("small");
                let buffer = done.memory.and_then(Memory::into_buf).expect("a buffer");
                done.wc.wr_id == 1 && buffer.get(40..len) == Some(message)
            })
        });
    }
}

/// Goal: every length arrives there and is answered to where it came from; where there is a ring, no
/// packet is made of it.
#[test]
fn processes_answer_one_another_over_every_path() {
    alone("echo::processes_answer_one_another_over_every_path", || {
        for path in PATHS {
            let side = Side::of(path.context(), QKEY);
            let other = Answerer::start(path);
            for gid_index in [0, 1] {
                let ah = side.ah(gid_index);
                for (seed, len) in (1..).zip([0, 1, 63, 64, 1000, 4095, 4096]) {
                    let data = pattern(seed, len);
                    side.recv(len);
                    side.send(&data, &ah, other.qpn, QKEY);
                    let (done, _, message) = side.received();
                    assert!(message == data, "{len} bytes");
                    assert_eq!(done.wc.src_qp, other.qpn);
                }
            }
            let packets = side.context.counters().rcvd_pkts;
            assert_eq!(packets > 0, path == Path::Udp, "{packets} packets over {path:?}");
        }
    });
}

/// Goal: a process that is stopped is not waited for, and it goes on where it was.
/// Method: far more than a ring holds, of which each one completes in bounded time.
#[test]
fn a_process_that_is_stopped_holds_up_no_other() {
    alone("echo::a_process_that_is_stopped_holds_up_no_other", || {
        for path in PATHS {
            let caller = Caller::new(path);
            let (other, third) = (Answerer::start(path), Answerer::start(path));
            let ah = caller.side.ah(1);
            caller.reaches(&ah, other.qpn, b"before");
            other.talker.signal("-STOP");
            let data = pattern(1, 4096);
            let end = Instant::now() + FOREVER;
            for _ in 0..500 {
                caller.send(&data, &ah, other.qpn);
                assert!(Instant::now() < end, "it is waited for");
            }
            caller.reaches(&ah, third.qpn, b"another");
            other.talker.signal("-CONT");
            caller.reaches(&ah, other.qpn, b"after");
        }
    });
}

/// Goal: what is sent to the dead is lost, and the next process is met anew.
/// Method: the sender never stops.
#[test]
fn a_process_that_is_killed_is_no_peer_any_more() {
    alone("echo::a_process_that_is_killed_is_no_peer_any_more", || {
        for path in PATHS {
            let caller = Caller::new(path);
            let ah = caller.side.ah(1);
            for _ in 0..5 {
                let other = Answerer::start(path);
                caller.reaches(&ah, other.qpn, b"alive");
                let qpn = other.qpn;
                other.talker.signal("-KILL");
                for _ in 0..200 {
                    caller.send(&[7; 4096], &ah, qpn);
                }
            }
        }
    });
}
