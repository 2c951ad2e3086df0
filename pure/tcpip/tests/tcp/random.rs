//! Random programs over random networks: every byte once and in order, and both ends close.

use std::time::Duration;

use adverb_tcpip::tcp::{Algorithm, Config};
use proptest::prelude::*;

use crate::pair::{Pair, Path, Plan, Weather};

fn millis(range: std::ops::RangeInclusive<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_millis)
}

fn plan() -> impl Strategy<Value = Plan> {
    let pause = prop_oneof![millis(0..=5), millis(5..=100), millis(500..=3000)];
    let bytes = prop_oneof![0_u64..2000, 2000_u64..200_000];
    (bytes, prop_oneof![1_u64..20, 100_u64..9000], pause, 1_u64..20).prop_map(
        |(bytes, chunk_max, pause, reads)| Plan {
            bytes: bytes.min(chunk_max * 3000),
            chunk_max,
            pause,
            reads,
        },
    )
}

fn config() -> impl Strategy<Value = Config> {
    let algorithm =
        prop_oneof![Just(Algorithm::Cubic), Just(Algorithm::NewReno), Just(Algorithm::None)];
    let window = prop_oneof![1_u32..300, 300_u32..10_000, Just(65_535), Just(1 << 20)];
    let packets = prop_oneof![1_usize..10, Just(1000)];
    let flags = any::<(bool, bool, bool, bool, bool)>();
    let mtu = prop_oneof![Just(1500_u16), Just(576), Just(9000)];
    (algorithm, window, packets, flags, mtu).prop_map(
        |(congestion, window, packets, flags, mtu)| {
            let (time_stamps, sack, window_scaling, no_delay, quick_ack) = flags;
            Config {
                mtu,
                receive_bytes_max: window,
                receive_packets_max: packets,
                send_bytes_max: 100_000,
                time_stamps,
                sack,
                window_scaling,
                congestion,
                no_delay,
                quick_ack,
                user_timeout: Duration::from_secs(30_000), // A reader may be slow; giving up is asked for elsewhere.
                ..Config::default()
            }
        },
    )
}

fn weather() -> impl Strategy<Value = Weather> {
    let chance = || prop_oneof![Just(0_u32), 0_u32..20_000, 50_000_u32..150_000];
    (chance(), chance(), chance(), chance()).prop_map(|(lost, twice, overtaken, flipped)| Weather {
        lost,
        twice,
        overtaken,
        flipped,
    })
}

fn path() -> impl Strategy<Value = Path> {
    let rate = prop_oneof![Just(0_u64), 20_000_u64..10_000_000];
    (millis(0..=100), rate, millis(1..=200), weather()).prop_map(|(delay, rate, late, weather)| {
        let queue_bytes = if rate == 0 { u64::MAX } else { 20_000 };
        Path { delay, rate, queue_bytes, late, weather, mtu: usize::MAX, cut_to: None }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_arrives_once_and_in_order_and_both_ends_close(
        seed in any::<u64>(),
        configs in [config(), config()],
        plans in [plan(), plan()],
        path in path(),
    ) {
        // A peer with a window of one byte, which it reads after a pause, takes seconds for each.
        let plans = [0, 1].map(|at| {
            let windows = WINDOWS_MAX * u64::from(configs[1 - at].receive_bytes_max);
            Plan { bytes: plans[at].bytes.min(windows), ..plans[at] }
        });
        let mut pair = Pair::new(seed, configs, plans, path);
        pair.run(Duration::from_secs(30_000));
        pair.assert_complete();
    }
}

/// Full windows in a stream, at most.
const WINDOWS_MAX: u64 = 3000;
