//! Neighbours, two processes of one host: how they meet, what is ordered, and what happens
//! when one of them goes, or its memory.

use crate::agent::{Agent, CANARY, MEMORY_BYTES};
use crate::alone::{alone, over_udp};
use crate::pair::{FOREVER, Setup, assert_same, bytes_of, eventually, pattern, remote};
use crate::path::{Path, between_processes};
use adverb_verbs::{Access, Context, DataPath, Modify, QpState, WcStatus, Work};
use std::time::{Duration, Instant};

between_processes! {
    a_read_brings_what_the_write_before_it_wrote,
    a_write_is_seen_with_the_send_after_it_and_not_before_the_one_before_it,
    every_operation_reaches_every_kind_of_memory,
    messages_of_all_lengths_wait_for_receives_and_keep_their_order,
    neighbours_may_be_killed_at_any_moment,
    nothing_is_written_after_a_region_is_dropped,
    a_queue_pair_connected_anew_reaches_its_new_neighbour,
    what_a_dropped_region_had_can_be_used_again_at_once,
}

/// Around a cache line, around what is lent, around what goes through the shared-memory link whole, and much more.
const LENGTHS: [usize; 12] = [1, 36, 64, 100, 511, 512, 513, 8191, 8192, 8193, 100_000, 3 << 20];

#[test]
fn neighbours_use_memory() {
    alone("neighbours::neighbours_use_memory", || {
        let (context, setup) = (Context::open("soft_lo").expect("loopback"), Setup::default());
        let (side, mut agent) = (setup.side(&context), Agent::start("soft_lo", 1));
        assert_eq!(side.qp.path(), None);
        let _ = agent.connect_to(&side.qp, &setup);
        assert_eq!(side.qp.path(), Some(DataPath::SharedMemory));
        let pair = setup.pair_on(context);
        assert_eq!(pair.a.qp.path(), Some(DataPath::InProcess));
    });
}

#[test]
fn a_device_that_asks_for_udp_gets_it_and_so_do_its_neighbours() {
    over_udp("neighbours::a_device_that_asks_for_udp_gets_it_and_so_do_its_neighbours", || {
        let (context, setup) = (Context::open("soft_lo").expect("loopback"), Setup::default());
        let side = setup.side(&context);
        let mut command = std::process::Command::new(crate::alone::program());
        command.env("ADVERB_PATH", "auto");
        let mut agent = Agent::start_by(command, "soft_lo", 1);
        let _ = agent.connect_to(&side.qp, &setup);
        assert_eq!(side.qp.path(), Some(DataPath::Udp));
        let far = agent.memory();
        side.qp.post(Work::write(side.buffer(&[7; 64]), far)).expect("room");
        assert_eq!(side.status(), WcStatus::Success);
    });
}

/// For two processes that poll, of which either may be kept from its processor for longer than the
/// retries of a short time-out take: on a busy machine the scheduler takes a second from a thread that yields a
/// lot, and none drives for a thread that was stopped while it did. Packets do get lost then, and
/// records do not.
fn patient(path: Path) -> Setup {
    Setup { timeout: path.timeout(), ..Setup::default() }
}

/// Goal: every operation moves the right bytes. Method: with memory that both map, and with memory
/// of a vector, which they do not.
fn every_operation_reaches_every_kind_of_memory(path: Path) {
    let (context, setup) = (path.context(), patient(path));
    let (side, mut agent) = (setup.side(&context), Agent::start_over(path));
    let there = agent.connect_to(&side.qp, &setup);
    assert_eq!(side.qp.path(), Some(path.expected()));
    assert_eq!(agent.ask(&format!("path {}", there.index)), path.expected().to_string());
    let (index, far) = (there.index, agent.memory());
    let shared = side.region(&vec![0; 4 << 20]);
    let private = side.pd.register_vec(vec![0; 4 << 20], Access::ALL).expect("memory");
    for (round, mr) in (0..).zip([&shared, &private, &shared, &private]) {
        for (seed, len) in (100 * round + 1..).zip(LENGTHS) {
            let here = remote(mr);
            agent.fill(0, len, seed);
            let (addr, rkey) = (here.addr, here.rkey.0);
            assert_eq!(agent.ask(&format!("write {index} 0 {len} {addr} {rkey}")), "Success");
            assert_same(&bytes_of(mr, 0, len), &pattern(seed, len), "written");
            mr.write(0, &pattern(seed + 50, len)).expect("it fits");
            assert_eq!(agent.ask(&format!("read {index} 0 {len} {addr} {rkey}")), "Success");
            assert!(agent.has(0, len, seed + 50), "{len} bytes read");

            let slice = mr.slice(0, len).expect("it fits");
            agent.ask(&format!("recv {index} {} {len}", MEMORY_BYTES / 2));
            side.qp.post(Work::send(slice)).expect("room");
            assert_eq!(side.status(), WcStatus::Success);
            assert_eq!(agent.ask("wait"), format!("Success Receive {len}"));
            assert!(agent.has(MEMORY_BYTES / 2, len, seed + 50), "{len} bytes sent");

            side.qp.post(Work::recv(mr.slice(0, 4 << 20).expect("all"))).expect("room");
            agent.fill(0, len, seed + 60);
            assert_eq!(agent.ask(&format!("send {index} 0 {len}")), "Success");
            assert_eq!(side.wait().wc.byte_len, u32::try_from(len).expect("short"));
            assert_same(&bytes_of(mr, 0, len), &pattern(seed + 60, len), "received");
        }
        mr.store_u64(8, 40).expect("aligned");
        let (addr, rkey) = (mr.addr() + 8, mr.rkey().0);
        assert_eq!(agent.ask(&format!("add {index} {addr} {rkey} 2")), "Success");
        assert_eq!(mr.load_u64(8), Ok(42));
    }
    let _ = far;
}

/// Goal: messages that are copied into the shared-memory link and messages that are lent, one upon the other, come
/// whole and in the order of posting, also those for which there was no receive at first.
fn messages_of_all_lengths_wait_for_receives_and_keep_their_order(path: Path) {
    let (context, setup) = (path.context(), patient(path));
    let (side, mut agent) = (setup.side(&context), Agent::start_over(path));
    let index = agent.connect_to(&side.qp, &setup).index;
    let lengths = [600, 8, 511, 512, 8192, 513, 8193, 4096, 1, 0, 5000];
    // Neighbours map memory on first use, and by the way: before and after.
    for round in 0..4 {
        let seed = |n: usize| u64::try_from(100 * round + n).expect("small");
        let regions: Vec<_> =
            (0..).zip(lengths).map(|(n, len)| side.region(&pattern(seed(n), len.max(1)))).collect();
        for (mr, len) in regions.iter().zip(lengths) {
            side.qp.post(Work::send(mr.slice(0, len).expect("it fits"))).expect("room");
        }
        for (n, _) in lengths.iter().enumerate() {
            agent.ask(&format!("recv {index} {} 10000", 10_000 * n));
        }
        for (n, len) in lengths.into_iter().enumerate() {
            assert_eq!(side.status(), WcStatus::Success, "round {round}, {len} bytes");
            assert_eq!(agent.ask("wait"), format!("Success Receive {len}"), "round {round}");
            assert!(agent.has(10_000 * n, len, seed(n)), "round {round}, {len} bytes");
        }
    }
}

/// Goal: what a queue pair remembers of one neighbour's memory is not taken for the next one's.
/// Method: two neighbours alike, down to the names and places of their memory.
fn a_queue_pair_connected_anew_reaches_its_new_neighbour(path: Path) {
    let (context, setup) = (path.context(), patient(path));
    let side = setup.side(&context);
    let mut agents = [Agent::start_over(path), Agent::start_over(path)];
    let mr = side.region(&[0; 4096]);
    for (seed, which) in (1..).zip([0, 1, 0]) {
        let Some(agent) = agents.get_mut(which) else { panic!("there are two") };
        side.qp.modify(&Modify::to(QpState::Reset)).expect("RESET");
        let there = agent.connect_to(&side.qp, &setup);
        let far = agent.memory();
        for round in 0..20 {
            let seed = 100 * seed + round;
            mr.write(0, &pattern(seed, 4096)).expect("it fits");
            side.qp.post(Work::write(mr.slice(0, 4096).expect("all"), far)).expect("room");
            assert_eq!(side.status(), WcStatus::Success);
            assert!(agent.has(0, 4096, seed), "written, {which} {round}");
            agent.ask(&format!("recv {} 8192 4096", there.index));
            side.qp.post(Work::send(mr.slice(0, 4096).expect("all"))).expect("room");
            assert_eq!(side.status(), WcStatus::Success);
            assert_eq!(agent.ask("wait"), "Success Receive 4096");
            assert!(agent.has(8192, 4096, seed), "sent, {which} {round}");
        }
    }
}

/// Goal: a receiver of a SEND sees the WRITE before it; and sees no WRITE that comes after a
/// SEND for which there was no receive. Method: the first with requests one upon the other, the
/// second by not posting a receive.
fn a_write_is_seen_with_the_send_after_it_and_not_before_the_one_before_it(path: Path) {
    let (context, setup) = (path.context(), patient(path));
    let (side, mut agent) = (setup.side(&context), Agent::start_over(path));
    let there = agent.connect_to(&side.qp, &setup);
    let flag = side.region(&[0; 64]);
    let (index, addr, rkey) = (there.index, flag.addr(), flag.rkey().0);
    let rounds = 20_000;
    for _ in 0..64 {
        side.qp.post(Work::recv(side.buffer(&[0; 8]))).expect("room");
    }
    agent.tell(&format!("announce {index} {rounds} {addr} {rkey}"));
    for n in 1..=rounds {
        assert_eq!(side.status(), WcStatus::Success);
        let seen = flag.load_u64(0).expect("aligned");
        assert!(seen >= n, "message {n} came before its write: {seen}");
        side.qp.post(Work::recv(side.buffer(&[0; 8]))).expect("room");
    }
    assert_eq!(agent.answer(), "Success");

    let side = setup.side(&context);
    let there = agent.connect_to(&side.qp, &setup);
    flag.store_u64(0, 0).expect("aligned");
    let flag = side.region(&[0; 64]);
    let (index, addr, rkey) = (there.index, flag.addr(), flag.rkey().0);
    agent.tell(&format!("late {index} {addr} {rkey}"));
    let end = Instant::now() + Duration::from_millis(100);
    while Instant::now() < end {
        assert!(side.cq.next().expect("no overrun").is_none());
        assert_eq!(flag.load_u64(0), Ok(0), "the write has overtaken the message");
    }
    side.qp.post(Work::recv(side.buffer(&[0; 8]))).expect("room");
    assert_eq!(side.status(), WcStatus::Success);
    assert_eq!(agent.answer(), "Success");
    assert_eq!(flag.load_u64(0), Ok(7));
}

/// Goal: a READ brings what the WRITE before it wrote, and a fenced request comes after the READs
/// and atomics before it, whichever way either goes. Method: posted together, a small WRITE after
/// a SEND goes through the shared-memory link, and the READ directly.
fn a_read_brings_what_the_write_before_it_wrote(path: Path) {
    let (context, setup) = (path.context(), patient(path));
    let (side, mut agent) = (setup.side(&context), Agent::start_over(path));
    let there = agent.connect_to(&side.qp, &setup);
    let word = side.region(&[0; 64]);
    let (index, addr, rkey) = (there.index, word.addr(), word.rkey().0);
    // By packets a round takes a few milliseconds.
    let rounds = if path == Path::Udp { 200 } else { 5_000 };
    for _ in 0..64 {
        side.qp.post(Work::recv(side.buffer(&[0; 8]))).expect("room");
    }
    agent.tell(&format!("echo {index} {rounds} {addr} {rkey}"));
    for _ in 0..rounds {
        assert_eq!(side.status(), WcStatus::Success);
        side.qp.post(Work::recv(side.buffer(&[0; 8]))).expect("room");
    }
    assert_eq!(agent.answer(), "Success");
}

/// Goal: once a region is dropped nothing is written to its memory any more, and the peer is refused.
/// Method: the memory is registered anew, so that it outlives the registration which the peer knows.
fn nothing_is_written_after_a_region_is_dropped(path: Path) {
    let (context, setup) = (path.context(), patient(path));
    for round in 0..20 {
        let (side, mut agent) = (setup.side(&context), Agent::start_over(path));
        let there = agent.connect_to(&side.qp, &setup);
        let mr = side.region(&vec![0; 1 << 16]);
        let (index, addr, rkey) = (there.index, mr.addr(), mr.rkey().0);
        agent.tell(&format!("stream {index} 65536 {addr} {rkey}"));
        std::thread::sleep(Duration::from_micros(500 * round));
        let keep = mr.reregister(&side.pd, Access::ALL).expect("it is not shared");
        keep.fill(0, 1 << 16, 0xee).expect("it is writable");
        assert_eq!(agent.answer(), "RemoteAccess", "round {round}");
        assert_same(&bytes_of(&keep, 0, 1 << 16), &[0xee; 1 << 16], "after the end");
    }
}

/// Goal: memory of a region that is dropped in the midst of a peer's writing and reading is used for
/// something else, and the peer neither changes nor sees that.
/// Method: buffers that are let go come back with the next allocation; small ones and ones that have a
/// file of their own, next to others that stay.
fn what_a_dropped_region_had_can_be_used_again_at_once(path: Path) {
    let (context, setup) = (path.context(), Setup::default());
    let mut agent = Agent::start_over(path);
    let pd = context.alloc_pd();
    let lengths = [4096, 8192, 1 << 16, 1 << 19].into_iter().cycle().take(30);
    for (round, len) in lengths.enumerate() {
        let side = setup.side(&context);
        let there = agent.connect_to(&side.qp, &setup);
        let mr = side.pd.allocate(len, Access::ALL).expect("memory");
        let (index, addr, rkey) = (there.index, mr.addr(), mr.rkey().0);
        agent.tell(&format!("hammer {index} {len} {addr} {rkey}"));
        eventually("it writes", || mr.load_u64(len - 8) == Ok(0x0101_0101_0101_0101));
        drop(mr);
        let others: Vec<_> = (0..4)
            .map(|_| {
                let other = pd.allocate(len, Access::LOCAL_WRITE).expect("memory");
                assert!(bytes_of(&other, 0, len).iter().all(|byte| *byte == 0), "not zeros");
                other.fill(0, len, CANARY).expect("it is writable");
                other
            })
            .collect();
        assert_eq!(agent.answer(), "RemoteAccess", "round {round}");
        for other in &others {
            assert_same(&bytes_of(other, 0, len), &vec![CANARY; len], "of another region");
        }
        agent.ask(&format!("drop {index}"));
    }
}

/// Goal: the survivor learns of it in bounded time, and what the dead had comes back: places,
/// numbers, descriptors. Method: both stream at one another, by SEND and WRITE; `ADVERB_KILLS` says
/// how often one of them dies, each time a little later.
fn neighbours_may_be_killed_at_any_moment(path: Path) {
    let setup = Setup { timeout: 10, retry_count: 3, ..Setup::default() };
    let context = path.context();
    let kills = std::env::var("ADVERB_KILLS").ok().and_then(|text| text.parse().ok());
    let kills: u64 = kills.unwrap_or(30);
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("proc").count();
    let mut at_first = None;
    for round in 0..kills {
        let side = setup.side(&context);
        let data = side.region(&pattern(1, 1 << 16));
        let mut agent = Agent::start_over(path);
        let there = agent.connect_to(&side.qp, &setup);
        let far = agent.memory();
        let (index, addr, rkey) = (there.index, data.addr(), data.rkey().0);
        agent.tell(&format!("stream {index} 3000 {addr} {rkey}"));
        let kill_at = Instant::now() + Duration::from_micros(round * 137 % 4000);
        let mut victim = Some(agent);
        let end = Instant::now() + FOREVER;
        let mut ended = None;
        while ended.is_none() {
            let slice = data.slice(0, 20_000).expect("in there");
            match round % 2 {
                0 => drop(side.qp.post(Work::write(slice, far))),
                _ => drop(side.qp.post(Work::send(slice))), // For which there is no receive.
            }
            if Instant::now() > kill_at
                && let Some(agent) = victim.take()
            {
                agent.kill();
            }
            while let Some(done) = side.cq.next().expect("no overrun") {
                if done.wc.status != WcStatus::Success {
                    ended = ended.or(Some(done.wc.status));
                }
            }
            assert!(Instant::now() < end, "it was not noticed");
        }
        assert_eq!(ended, Some(WcStatus::RetryExceeded), "round {round}");
        assert_eq!(side.qp.state(), QpState::Err);
        drop((side, data));
        // Some are opened when first needed.
        let now = descriptors();
        at_first = at_first.filter(|_| round > 2).or(Some(now));
    }
    let at_first = at_first.expect("one at least");
    eventually("descriptors come back", || descriptors() <= at_first + 4);
}
