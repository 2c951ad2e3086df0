//! Connections that go from one implementation to another while both programs go on.

use std::time::Duration;

use adverb_fabric::Random;
use adverb_tcpip::tcp::{Config, Connection, Names, Seq};

use crate::pair::{Pair, Path, Plan, Weather};

fn plan(bytes: u64) -> Plan {
    Plan { bytes, chunk_max: 4000, pause: Duration::from_millis(60), reads: 10 }
}

/// What is not part of the handover: the rest is.
fn names(at: usize) -> Names {
    let (local_port, remote_port) = if at == 0 { (1000, 80) } else { (80, 1000) };
    Names { local_port, remote_port, ip_header_bytes: 20, first: Seq::new(0), stamp_origin: 0 }
}

/// Goal: bytes come once and in order although ends are let go of and taken over whenever nothing of theirs is in flight,
/// whatever the network does and whatever was agreed upon.
#[test]
fn a_connection_survives_that_its_ends_are_taken_over() {
    let mut taken_over = 0;
    for seed in 0..60_u64 {
        let config = Config {
            time_stamps: seed % 2 == 0,
            sack: seed % 3 != 0,
            window_scaling: seed % 5 != 0,
            receive_bytes_max: if seed % 7 == 0 { 3000 } else { 200_000 },
            send_bytes_max: 20_000,
            user_timeout: Duration::from_secs(30_000),
            ..Config::default()
        };
        let weather = match seed % 4 {
            0 => Weather::default(),
            _ => Weather { lost: 30_000, twice: 20_000, overtaken: 50_000, flipped: 0 },
        };
        let plans = [plan(150_000), plan(90_000)];
        let mut pair = Pair::new(seed, [config; 2], plans, Path { weather, ..Path::default() });
        let mut random = Random::new(seed);
        for _ in 0..1_000_000 {
            pair.step();
            let at = random.index(2);
            let (now, side) = (pair.now, &mut pair.sides[at]);
            let found = side.connection.hand_over(now);
            let Some((handover, unsent)) =
                found.filter(|(_, unsent)| unsent.flying.is_empty() && random.index(3) == 0)
            else {
                if pair.sides.iter().all(|side| side.connection.is_orphaned()) {
                    break;
                }
                continue;
            };
            if side.connection.readable_bytes() > 0 {
                continue;
            }
            let mut next = Connection::resume(&config, names(at), &handover, now);
            if !unsent.waiting.is_empty() {
                next.send(unsent.waiting, now).unwrap();
            }
            side.connection = next;
            taken_over += 1;
        }
        pair.run(Duration::from_secs(100_000));
        pair.assert_complete();
    }
    assert!(taken_over > 100, "{taken_over}");
}
