//! Random work over random networks, for transports that lose messages and for queue pairs that
//! share receives: what is delivered is whole and in order, what is lost leaves no trace.
//!
//! Every message carries its number as immediate data, so that it is known wherever it arrives. A
//! failing run prints its seed; `ADVERB_SEED=0x…` runs that one again in every test.

#![expect(clippy::disallowed_methods, reason = "what to run is asked outside")]
#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test may panic")]

use adverb_engine::{GRH_LEN, QpState, QpType, ReceiveDone, WcOpcode, WcStatus};
use adverb_fabric::{A, B, Link, Net, NodeId, Random, Setup, Work};
use adverb_wire::{PathMtu, Psn, Qkey, Qpn};

/// Seeds of each test.
const SEEDS: u64 = 150;

/// Runs every seed, or the one that the environment names.
fn for_each_seed(run: fn(u64) -> Result<u64, String>) {
    let one = std::env::var("ADVERB_SEED").ok().map(|text| {
        let hex = text.strip_prefix("0x").unwrap_or(&text);
        u64::from_str_radix(hex, 16).unwrap()
    });
    let seeds = one.map_or(0..SEEDS, |seed| seed..seed + 1);
    let mut interesting = 0;
    for seed in seeds {
        match run(seed) {
            Ok(count) => interesting += count,
            Err(reason) => panic!("seed {seed:#018x}: {reason}"),
        }
    }
    assert!(interesting > 0 || one.is_some(), "nothing was lost, so nothing was shown");
}

/// Fails the run unless `$holds`.
macro_rules! ensure {
    ($holds:expr, $($reason:tt)*) => {
        if !$holds {
            return Err(format!($($reason)*));
        }
    };
}

fn link(random: &mut Random, calm: bool) -> Link {
    let mut chance = |most: u32| {
        let rate = random.pick(&[0, 2_000, 10_000, 100_000]).min(most);
        if calm { 0 } else { rate }
    };
    Link {
        loss_ppm: chance(100_000),
        duplication_ppm: chance(100_000),
        reordering_ppm: chance(100_000),
        corruption_ppm: chance(10_000),
        delay_ns: random.below(20_000),
        spacing_ns: random.between(1, 200),
        detour_ns: random.between(1, 50_000),
        ..Link::default()
    }
}

/// Bytes of each message's place in the peer's region.
const PLACE: usize = 6000;
const MESSAGES_MAX: usize = 60;

fn setup(kinds: [QpType; 2], random: &mut Random, calm: bool) -> Setup {
    let links = [link(random, calm), link(random, calm)];
    let mut psn = || Psn::new(0).minus(low(random.below(100)));
    let first_psns = [psn(), psn()];
    Setup {
        kinds,
        path_mtu: random.pick(&PathMtu::ALL),
        v6: random.below(4) == 0,
        first_psns,
        links,
        send_capacity: random.pick(&[1, 7, 64]),
        room: random.pick(&[1, 3, 16]),
        trains: random.below(2) == 0,
        keeps_early: [(); 2].map(|()| random.below(3) > 0),
        region_len: PLACE * MESSAGES_MAX,
        ..Setup::default()
    }
}

/// The bytes of a message.
fn bytes_of(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at * 7 + at / 251 + number * 31) % 256).unwrap()).collect()
}

/// A message that carries its number.
fn message(net: &Net, kind: QpType, number: usize, len: usize, random: &mut Random) -> Work {
    let (bytes, imm) = (bytes_of(number, len), u32::try_from(number).unwrap());
    match kind {
        QpType::Ud => Work::send_imm(bytes, imm).to(net.datagram(A, Qkey(0x1111_1111))),
        QpType::Uc if random.below(2) == 0 => {
            let place = u64::try_from(number * PLACE).unwrap();
            Work::write_imm(net.region(B, 0).plus(place), bytes, imm)
        }
        QpType::Rc | QpType::Uc => Work::send_imm(bytes, imm),
        QpType::XrcInitiator | QpType::XrcTarget => Work::send_imm(bytes, imm).into_srq(SRQ),
    }
}

const SRQ: Qpn = Qpn::new(0x99);

fn number_of(done: &ReceiveDone) -> Option<usize> {
    usize::try_from(done.imm?.0).ok()
}

/// Sends messages over an unreliable transport; returns how many got lost.
fn lossy(kind: QpType, seed: u64) -> Result<u64, String> {
    let mut random = Random::new(seed);
    let calm = random.below(4) == 0;
    let setup = setup([kind; 2], &mut random, calm);
    let mut net = Net::pair(random.bits(), &setup);
    let most = if kind == QpType::Ud { setup.path_mtu.bytes() } else { 5000 };
    let lens: Vec<usize> = (0..random.between(1, 60))
        .map(|_| usize::try_from(random.between(0, u64::from(most))).unwrap())
        .collect();
    // Some receives are too short for some messages, and there may be too few.
    let short = !calm && random.below(3) == 0;
    let mut posted = 0;
    let receive_len = if short { most / 2 + GRH_LEN } else { most + GRH_LEN };
    let enough = calm || random.below(2) == 0;
    for (number, &len) in lens.iter().enumerate() {
        if enough || random.below(4) > 0 {
            net.post_receive(B, receive_len);
            posted += 1;
        }
        let work = message(&net, kind, number, len, &mut random);
        while net.try_post(A, work.clone()).is_err() {
            net.drive_until(net.now().plus_nanos(1_000));
        }
        if random.below(3) == 0 {
            net.drive_until(net.now().plus_nanos(random.below(30_000)));
        }
    }
    net.drive().map_err(|stuck| stuck.to_string())?;

    let (a, b) = (net.node(A), net.node(B));
    ensure!(a.sent().len() == lens.len(), "{} of {} ended", a.sent().len(), lens.len());
    ensure!(a.sent().iter().all(|done| done.status == WcStatus::Success), "a request failed");
    ensure!([a, b].iter().all(|node| node.qp().state() == QpState::Rts), "a queue pair fell");
    ensure!(a.received().is_empty() && b.sent().is_empty(), "an answer without a question");
    whole_and_in_order(&net, kind, &lens)?;
    let arrived = b.received().len();
    let in_use = posted - b.receives() - arrived;
    ensure!(in_use == 0 || (in_use == 1 && kind == QpType::Uc), "{in_use} receives vanished");
    ensure!(!calm || arrived == lens.len(), "lost on a calm network");
    Ok(u64::try_from(lens.len() - arrived).unwrap())
}

/// Every receive that ended holds a message that was sent, later than the one before.
fn whole_and_in_order(net: &Net, kind: QpType, lens: &[usize]) -> Result<(), String> {
    let b = net.node(B);
    let grh = if kind == QpType::Ud { 40 } else { 0 };
    let mut next = 0;
    for (token, done) in (0..).zip(b.received()) {
        ensure!(done.status == WcStatus::Success, "{done:?}");
        ensure!(done.receive.token == token, "a lost message took a receive with it: {done:?}");
        let number = number_of(done).filter(|&number| number < lens.len());
        let number = number.ok_or_else(|| format!("a message that was not sent: {done:?}"))?;
        // A datagram may overtake another; a connection keeps the order.
        ensure!(kind == QpType::Ud || number >= next, "{number} after {next}");
        next = number + 1;
        let expected = bytes_of(number, lens[number]);
        let (from, start) = match done.opcode == WcOpcode::ReceiveRdmaWithImm {
            true => (b.memory(0).to_vec(), number * PLACE),
            false => (b.receive_bytes(token), grh),
        };
        ensure!(from[start..start + expected.len()] == expected, "message {number} is spoilt");
    }
    Ok(())
}

#[test]
fn what_uc_delivers_is_whole_and_in_order_and_what_it_loses_leaves_no_trace() {
    for_each_seed(|seed| lossy(QpType::Uc, seed));
}

#[test]
fn what_ud_delivers_is_whole_and_what_it_loses_leaves_no_trace() {
    for_each_seed(|seed| lossy(QpType::Ud, seed));
}

/// Sends messages over pairs whose receivers share a queue; returns how many were put off.
fn shared(kinds: [QpType; 2], seed: u64) -> Result<u64, String> {
    let mut random = Random::new(seed);
    let mut net = Net::new(random.bits());
    let pairs: Vec<(NodeId, NodeId)> = (0..random.between(2, 4))
        .map(|_| {
            let setup = Setup { shared_receives: true, ..setup(kinds, &mut random, false) };
            net.add_pair(&setup)
        })
        .collect();
    let (_, first) = pairs[0];
    for &(_, receiver) in &pairs[1..] {
        net.share_receives(receiver, first);
    }
    let xrc = kinds[0] == QpType::XrcInitiator;
    let mut posted = 0;
    let mut post = |net: &mut Net| {
        match xrc {
            true => net.post_srq_receive(first, SRQ, 5000),
            false => net.post_receive(first, 5000),
        };
        posted += 1;
    };
    post(&mut net);
    let lens: Vec<Vec<usize>> = (0..pairs.len())
        .map(|_| (0..random.between(1, 30)).map(|_| random.index(5001)).collect())
        .collect();
    let victim = (random.below(3) == 0).then(|| random.index(pairs.len()));
    let mut sent = vec![0; pairs.len()];
    let mut owed = 0; // Receives that are yet to be posted.
    while (0..pairs.len()).any(|at| sent[at] < lens[at].len()) {
        let at = random.index(pairs.len());
        if let Some(&len) = lens[at].get(sent[at]) {
            let work = message(&net, kinds[0], sent[at], len, &mut random);
            if net.try_post(pairs[at].0, work).is_ok() {
                sent[at] += 1;
                owed += 1;
            }
        }
        while owed > 0 && random.below(2) == 0 {
            post(&mut net);
            owed -= 1;
        }
        net.drive_until(net.now().plus_nanos(random.below(30_000)));
        if victim == Some(at) && random.below(10) == 0 {
            net.to_err(pairs[at].1);
        }
    }
    for _ in 0..owed {
        post(&mut net);
    }
    net.drive().map_err(|stuck| stuck.to_string())?;

    let mut ended = 0;
    let mut put_off = 0;
    for (at, &(_, receiver)) in pairs.iter().enumerate() {
        let node = net.node(receiver);
        let broken = node.qp().state() == QpState::Err;
        put_off += node.qp().counters().send_rnr_err;
        ended += node.received().len();
        let good = |done: &&ReceiveDone| done.status == WcStatus::Success;
        for (number, done) in node.received().iter().take_while(good).enumerate() {
            ensure!(number_of(done) == Some(number), "pair {at}: {done:?} is not {number}");
            let expected = bytes_of(number, lens[at][number]);
            let bytes = net.node(receiver).receive_bytes(done.receive.token);
            ensure!(bytes[..expected.len()] == expected, "pair {at}: {number} is spoilt");
        }
        let arrived = node.received().iter().filter(good).count();
        let flushed = node.received().len() - arrived;
        ensure!(flushed <= usize::from(broken), "pair {at}: {flushed} flushed");
        ensure!(broken || arrived == lens[at].len(), "pair {at}: {arrived} arrived");
    }
    let waiting = match xrc {
        true => net.node(first).srq_receives(SRQ),
        false => net.node(first).receives(),
    };
    ensure!(ended + waiting == posted, "{posted} posted, {ended} ended, {waiting} wait");
    Ok(put_off)
}

#[test]
fn pairs_that_share_receives_lose_none_and_mix_nothing_up() {
    for_each_seed(|seed| shared([QpType::Rc; 2], seed));
}

#[test]
fn xrc_pairs_that_share_a_queue_lose_none_and_mix_nothing_up() {
    for_each_seed(|seed| shared([QpType::XrcInitiator, QpType::XrcTarget], seed));
}

fn low(number: u64) -> u32 {
    u32::try_from(number & 0xffff_ffff).unwrap()
}
