//! Processes that are stopped in the midst of something: none is waited for for ever, newcomers come in,
//! and a process that goes on either works on, or sees that its queue pair works no more.

use crate::agent::{Agent, Remote, registry_of};
use crate::alone::{alone, program};
use crate::pair::{FOREVER, Setup, eventually, pattern};
use crate::path::{Path, between_processes};
use crate::talker::{Talker, signal};
use adverb_sys::lock::FileLock;
use adverb_sys::process;
use adverb_verbs::{Access, Context, Memory, Mr, QpState, WcStatus, Work};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::{Duration, Instant};

between_processes! {
    a_process_stopped_before_it_was_met_fails_what_connects_to_it,
    a_process_stopped_while_it_opens_keeps_no_other_out,
    a_process_stopped_in_the_midst_of_a_stream_keeps_neither_others_nor_memory,
}

/// A process that was stopped while it copied to memory by a system call goes on with the address that it has. So
/// that memory never has another use.
///
/// Goal: a thread that lets go of a vector or of a queue pair waits for such a process for a while, holds up no other, and the
/// vector is not freed then. Method: at other moments, until one is in the midst of a copy; the wait tells, unless
/// letting go took so long for want of a processor.
#[test]
fn memory_that_a_stopped_process_may_write_to_is_never_freed() {
    alone("frozen::memory_that_a_stopped_process_may_write_to_is_never_freed", || {
        // glibc maps what is longer than 32 MiB by itself, however much was freed before (`M_MMAP_THRESHOLD`, mallopt(3)).
        const LEN: usize = 33 << 20;
        let path = Path::SharedMemory;
        let context = path.context();
        for round in 0..60 {
            let side = setup().side(&context);
            let mut frozen = Agent::start_over(path);
            let there = frozen.connect_to(&side.qp, &setup());
            let mr = side.pd.register_vec(vec![0; LEN], Access::ALL).expect("memory");
            stream(&mut frozen, there, &mr, 0);
            std::thread::sleep(Duration::from_millis(20 + round % 12));
            stop(frozen.pid());
            let start = usize::try_from(mr.addr()).expect("an address");
            assert!(is_mapped(start, LEN));
            let begun = Instant::now();
            let mut looks = 0;
            std::thread::scope(|scope| {
                let dropping = scope.spawn(move || drop((side, mr)));
                while !dropping.is_finished() {
                    let _ = context.qp_counters();
                    looks += 1;
                }
                dropping.join().expect("no panic");
            });
            let waited = begun.elapsed();
            let gave_up = is_mapped(start, LEN);
            if gave_up {
                assert!(waited >= VISIT_MAX, "round {round}: kept after {waited:?}");
                assert!(looks > 10, "counters waited for it: {looks} looks in {waited:?}");
            }
            signal(frozen.pid(), "-CONT");
            assert_ne!(frozen.answer(), "Success", "what it wrote to has gone");
            if gave_up {
                talk(&context, &mut frozen);
                return;
            }
        }
        panic!("no process of 60 was stopped in the midst of a copy");
    });
}

/// How long a device waits for a neighbour that is at its memory.
const VISIT_MAX: Duration = Duration::from_millis(500);

/// All of these bytes are mapped here.
fn is_mapped(start: usize, len: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc");
    let mut at = start;
    for line in maps.lines() {
        let (range, _) = line.split_once(' ').expect("a range");
        let (from, to) = range.split_once('-').expect("two addresses");
        let [from, to] = [from, to].map(|word| usize::from_str_radix(word, 16).expect("hex"));
        if from <= at && at < to {
            at = to;
        }
    }
    at >= start + len
}

/// Gives up within some seconds.
fn setup() -> Setup {
    Setup { timeout: 16, retry_count: 3, ..Setup::default() }
}

fn stop(pid: u32) {
    signal(pid, "-STOP");
    eventually("it stops", || process::is_stopped(pid));
}

/// Another process, which runs, and this one reach one another.
fn talk(context: &Context, other: &mut Agent) {
    // A process that binds the address again may be given packets of one that is stopped.
    let setup = Setup { timeout: 16, ..Setup::default() };
    let side = setup.side(context);
    let there = other.connect_to(&side.qp, &setup);
    let far = other.memory();
    side.qp.post(Work::write(side.buffer(&pattern(5, 10_000)), far)).expect("room");
    assert_eq!(side.status(), WcStatus::Success);
    assert!(other.has(0, 10_000, 5));
    other.ask(&format!("recv {} 0 64", there.index));
    side.qp.post(Work::send(side.buffer(&[7; 64]))).expect("room");
    assert_eq!(side.status(), WcStatus::Success);
    // What was flushed when an earlier queue pair failed comes before it.
    let mut ended = std::iter::from_fn(|| Some(other.ask("wait")));
    let ended = ended.find(|answer| !answer.starts_with("WorkRequestFlushed"));
    assert_eq!(ended.as_deref(), Some("Success Receive 64"));
    assert_eq!(other.ask(&format!("drop {}", there.index)), "dropped");
}

/// Goal: the handshake of a shared-memory link, with a process that does not answer. Method: what is connected to it fails as
/// if no process was there, another process is met and reached meanwhile, and it can be met once it goes on.
fn a_process_stopped_before_it_was_met_fails_what_connects_to_it(path: Path) {
    let context = path.context();
    let (mut frozen, mut other) = (Agent::start_over(path), Agent::start_over(path));
    let there = frozen.qp();
    stop(frozen.pid());
    let side = setup().side(&context);
    let usual = adverb_verbs::RcConnect::new(there.qp);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| side.qp.connect(setup().to(usual)));
        talk(&context, &mut other);
        connecting.join().expect("no panic").expect("a cable without an end");
    });
    side.qp.post(Work::send(side.buffer(&[1; 8]))).expect("room");
    assert_eq!(side.status(), WcStatus::RetryExceeded);
    assert_eq!(side.qp.state(), QpState::Err);
    talk(&context, &mut Agent::start_over(path));
    signal(frozen.pid(), "-CONT");
    talk(&context, &mut frozen);
}

/// Goal: a process that is stopped while it opens its device, at whatever step, keeps no other out. Method: a
/// little later each time; it is there when it goes on.
fn a_process_stopped_while_it_opens_keeps_no_other_out(path: Path) {
    let context = path.context();
    for round in 0..12 {
        let mut command = Command::new(program());
        command.env("ADVERB_PATH", path.variable());
        let mut talker = Talker::start(command, "agent::agent", "ADVERB_TEST_AGENT");
        talker.tell("open soft_lo 1");
        std::thread::sleep(Duration::from_micros(900 * round));
        stop(talker.pid());
        // Not while it has the registry for itself: what happens then, a test of the registry tells.
        while !is_registry_free() {
            signal(talker.pid(), "-CONT");
            stop(talker.pid());
        }
        let mut newcomer = Agent::start_over(path);
        talk(&context, &mut newcomer);
        signal(talker.pid(), "-CONT");
        assert_eq!(talker.answer(), "open", "round {round}");
    }
}

/// No newcomer looks for the registry, or has its lock.
fn is_registry_free() -> bool {
    let file = registry_of(std::process::id()).expect("we have a place in it");
    let user = file.metadata().expect("it is open").uid();
    let founding = format!("@adverb-registry-{user}-founding");
    // Not by connecting: that is refused as long as the newcomer has the name and does not listen yet.
    let sockets = std::fs::read_to_string("/proc/net/unix").expect("proc");
    if sockets.lines().any(|line| line.ends_with(&founding)) {
        return false;
    }
    let lock = FileLock::try_lock(file);
    lock.expect("it can be locked").is_some()
}

/// Goal: a process that is stopped in the midst of SENDs, WRITEs or READs, in both directions, holds up neither
/// traffic of others, nor memory that is let go. Method: at other moments each time.
fn a_process_stopped_in_the_midst_of_a_stream_keeps_neither_others_nor_memory(path: Path) {
    let context = path.context();
    let mut other = Agent::start_over(path);
    for round in 0..6 {
        let side = setup().side(&context);
        let mut frozen = Agent::start_over(path);
        let there = frozen.connect_to(&side.qp, &setup());
        let far = frozen.memory();
        let mr = side.region(&pattern(1, 1 << 16));
        stream(&mut frozen, there, &mr, round);
        let mut stop_at = Some(Instant::now() + Duration::from_micros(500 + round * 470));
        let own = side.region(&pattern(2, 1 << 16));
        let end = Instant::now() + FOREVER;
        // Our requests, before and after: they end well or as if the cable was cut, and do end.
        let (mut posted, mut ended) = (0, 0);
        while posted < 400 || ended < posted {
            let part: Memory = own.slice(0, 30_000).expect("in there").into();
            let work = match round % 3 {
                0 => side.qp.post(Work::send(part)),
                1 => side.qp.post(Work::write(part, far)),
                _ => side.qp.post(Work::read(part, far)),
            };
            posted += u32::from(posted < 400 && work.is_ok());
            if stop_at.is_some_and(|at| Instant::now() > at) {
                stop(frozen.pid());
                stop_at = None;
            }
            while let Some(done) = side.cq.next().expect("no overrun") {
                ended += 1;
                let status = done.wc.status;
                let cut =
                    [WcStatus::Success, WcStatus::RetryExceeded, WcStatus::WorkRequestFlushed];
                assert!(cut.contains(&status), "round {round}: {status:?}");
            }
            if side.qp.state() == QpState::Err && ended >= posted {
                break;
            }
            assert!(Instant::now() < end, "round {round}: {ended} of {posted} have ended");
        }
        if stop_at.is_some() {
            stop(frozen.pid());
        }
        talk(&context, &mut other);
        // It may have been within a visit of this memory.
        drop(mr);
        drop(side);
        talk(&context, &mut Agent::start_over(path));
        signal(frozen.pid(), "-CONT");
        let answer = frozen.answer();
        assert_ne!(answer, "Success", "what it wrote to has gone");
        talk(&context, &mut frozen);
    }
}

/// It writes to `mr`, or writes and reads, until that fails.
fn stream(agent: &mut Agent, there: Remote, mr: &Mr, round: u64) {
    let (index, addr, rkey) = (there.index, mr.addr(), mr.rkey().0);
    let how = if round.is_multiple_of(2) { "stream" } else { "hammer" };
    agent.tell(&format!("{how} {index} 65536 {addr} {rkey}"));
}
