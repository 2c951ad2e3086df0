//! How much of a path a stream uses, against simple bounds, in virtual time.

use std::time::Duration;

use adverb_tcpip::tcp::{Algorithm, Config};

use crate::pair::{Pair, Path, Plan, Weather};

const BYTES: u64 = 8_000_000;

/// Bytes a second of a stream of `BYTES` over this path.
fn goodput(config: Config, path: Path, seed: u64) -> f64 {
    let sender =
        Plan { bytes: BYTES, chunk_max: 60_000, pause: Duration::from_millis(1), reads: 1000 };
    let receiver = Plan { bytes: 0, ..sender };
    let mut pair = Pair::new(seed, [config; 2], [sender, receiver], path);
    while pair.sides[1].read < BYTES {
        pair.step();
    }
    let carried = pair.sides[0].payload_bytes;
    assert!(carried < BYTES + BYTES / 20, "{carried} bytes were sent for {BYTES}");
    let seconds = pair.now.since(adverb_tcpip::Time::ZERO).as_secs_f64();
    8_000_000.0 / seconds
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn config(congestion: Algorithm) -> Config {
    Config { congestion, receive_bytes_max: 4 << 20, ..Config::default() }
}

/// Goal: random loss costs what the formula of Mathis et al. says, and time-outs nothing beside it.
/// Method: a stream of that average would have MSS / RTT · √1.5 / √p; ours must reach 0.8 of it.
#[test]
fn one_loss_in_a_hundred_costs_what_the_formula_says() {
    let delay = Duration::from_millis(5);
    let weather = Weather { lost: 10_000, ..Weather::default() };
    let path = Path { delay, weather, ..Path::default() };
    let bound = 1448.0 / 0.010 * 1.5_f64.sqrt() / 0.01_f64.sqrt();
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
        let reached = median((0..5).map(|seed| goodput(config(algorithm), path, seed)).collect());
        println!("{algorithm:?}: {reached:.0} of {bound:.0} bytes/s");
        assert!(reached > 0.8 * bound, "{algorithm:?}: {reached:.0} of {bound:.0} bytes/s");
    }
    // Without a window, what is lost is sent again and nothing else changes.
    let none = goodput(config(Algorithm::None), path, 1);
    assert!(none > 10.0 * bound, "none: {none:.0} of {bound:.0} bytes/s");
}

#[test]
fn a_narrow_link_is_filled_and_reordering_does_not_slow_a_stream() {
    let delay = Duration::from_millis(5);
    let narrow = Path { delay, rate: 5_000_000, queue_bytes: 100_000, ..Path::default() };
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
        let reached = goodput(config(algorithm), narrow, 1);
        println!("{algorithm:?}: {reached:.0} of 5000000 bytes/s");
        assert!(reached > 0.85 * 5_000_000.0, "{algorithm:?}: {reached:.0} bytes/s");
    }
    let weather = Weather { overtaken: 50_000, ..Weather::default() };
    let late = Duration::from_millis(2);
    let reordering = Path { weather, late, ..narrow };
    let reached = goodput(config(Algorithm::Cubic), reordering, 1);
    println!("reordering: {reached:.0} of 5000000 bytes/s");
    assert!(reached > 0.8 * 5_000_000.0, "reordering: {reached:.0} bytes/s");
}

/// Goal: a tail loss probe asks after two round trips; no time-out, of 200 ms and more, is waited for.
/// Method: the last segments are lost, the probe is not.
#[test]
fn a_lost_tail_is_repaired_before_the_time_out() {
    let plan = Plan { bytes: 20_000, chunk_max: 20_000, pause: Duration::from_secs(5), reads: 100 };
    let peer = Plan { bytes: 0, pause: Duration::from_millis(1), ..plan };
    let delay = Duration::from_millis(10);
    let config = Config { no_delay: true, ..Config::default() };
    let mut pair = Pair::new(3, [config; 2], [plan, peer], Path { delay, ..Path::default() });
    while pair.sides[0].payload_bytes < 14_000 {
        pair.step();
    }
    // The segments that follow are lost.
    pair.path.cut_to = Some(1);
    while pair.sides[0].payload_bytes < 20_000 {
        pair.step();
    }
    pair.path.cut_to = None;
    let lost_at = pair.now;
    while pair.sides[1].read < 20_000 {
        pair.step();
    }
    let took = pair.now.since(lost_at);
    assert!(took < Duration::from_millis(200), "{took:?} for a round trip of 20 ms");
}

/// Goal: a path that takes shorter packets than the interface, and tells nothing of it, does not stop a stream.
#[test]
fn a_path_that_swallows_long_packets_gets_shorter_ones() {
    let plan =
        Plan { bytes: 200_000, chunk_max: 20_000, pause: Duration::from_millis(1), reads: 30_000 };
    let peer = Plan { bytes: 100, ..plan };
    for mtu in [1300, 600] {
        let path = Path { mtu, ..Path::default() };
        let mut pair = Pair::new(5, [Config::default(); 2], [plan, peer], path);
        pair.run(Duration::from_secs(120)); // TIME-WAIT takes a minute.
        pair.assert_complete();
    }
}

/// Goal: a path that was dead for a while, and one that takes full packets again, gets full ones again; one that swallows
/// them goes on without them, and few are tried.
/// Method: the path is cut for five seconds, which looks like a router that swallows long packets.
#[test]
fn after_an_outage_segments_are_as_long_as_before() {
    let plan =
        Plan { bytes: 40_000_000, chunk_max: 60_000, pause: Duration::from_millis(1), reads: 1000 };
    let peer = Plan { bytes: 0, ..plan };
    for (mtu, full) in [(usize::MAX, 1448), (1300, 1228)] {
        for sack in [true, false] {
            let config = Config { sack, ..config(Algorithm::Cubic) };
            let path = Path { rate: 1_000_000, queue_bytes: 100_000, ..Path::default() };
            let mut pair = Pair::new(7, [config; 2], [plan, peer], path);
            let run_for = |pair: &mut Pair, span| {
                let begun = pair.now;
                while pair.now.since(begun) < span {
                    pair.step();
                }
            };
            run_for(&mut pair, Duration::from_secs(1));
            pair.path.cut_to = Some(1);
            run_for(&mut pair, Duration::from_secs(5));
            (pair.path.cut_to, pair.path.mtu) = (None, mtu);
            run_for(&mut pair, Duration::from_secs(12));
            let (segments, bytes) = (pair.sides[0].segments, pair.sides[0].payload_bytes);
            pair.sides[0].long_from = usize::try_from(full).unwrap();
            let read = pair.sides[1].read;
            run_for(&mut pair, Duration::from_secs(10));
            let segments = pair.sides[0].segments - segments;
            let bytes = pair.sides[0].payload_bytes - bytes;
            let read = pair.sides[1].read - read;
            println!("{mtu} {sack}: {bytes} bytes in {segments} segments, {read} arrive");
            assert!(bytes > segments * (full - 20), "{mtu} {sack}: {bytes} / {segments}");
            assert!(read > 8_000_000, "{mtu} {sack}: {read} bytes in ten seconds");
            let long = pair.sides[0].long;
            assert!(long <= 8, "{mtu} {sack}: {long} segments are too long for the path");
        }
    }
}
