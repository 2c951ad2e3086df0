//! Random worlds: several processes, each with a port of several queue pairs, and whatever may happen to
//! them. See [`adverb_fabric::World`] for what has to hold.
//!
//! A failing run prints one line with its seed. `ADVERB_SEED=0x…` runs that one again;
//! `ADVERB_SIM_SECONDS=60` tries new seeds that long (`cargo xtask sim`), `ADVERB_SIM_FIRST` from this one on.

#![expect(clippy::disallowed_methods, reason = "what to run, and how long, is asked outside")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use adverb_fabric::{Medium, Plan, Random, Tally, Weather, World};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Seeds of the fixed set.
const SEEDS: u64 = 400;
/// New seeds that are tried however long they take: what a machine does that is twenty times as slow as usual.
const NEW_SEEDS_MIN: u64 = 10;

/// Anything that a world may be made of.
fn plan(random: &mut Random) -> Plan {
    let media = match random.below(5) {
        0 => vec![Medium::Network],
        1 | 2 => vec![Medium::Memory],
        3 => vec![Medium::RecordsOnly],
        _ => vec![Medium::Network, Medium::Memory, Medium::RecordsOnly],
    };
    let rough = random.below(3) == 0;
    let mut chance = |most: u64| match rough {
        true => u32::try_from(random.below(most)).unwrap(),
        false => 0,
    };
    let weather = Weather {
        loss_ppm: chance(20_000),
        duplication_ppm: chance(20_000),
        reordering_ppm: chance(20_000),
    };
    Plan {
        processes: 1 + random.index(4),
        connections: 1 + random.index(8),
        media,
        weather,
        requests: random.between(50, 400),
        accidents: random.below(4) == 0,
        deregisters: random.below(5) == 0,
        nonsense: random.below(5) == 0,
    }
}

fn check(seed: u64) -> Result<Tally, String> {
    let run = || {
        let mut random = Random::new(seed);
        let plan = plan(&mut random);
        if std::env::var("ADVERB_TRACE").is_ok() {
            eprintln!("{plan:#?}");
        }
        World::new(random.bits(), plan).run()
    };
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        format!("seed {seed:#018x}: {}", text.as_deref().unwrap_or("a panic"))
    })
}

fn number_in(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[test]
fn ports_keep_their_promises_whatever_happens_to_processes() -> Result<(), String> {
    if let Some(seed) = number_in("ADVERB_SEED") {
        return check(seed).map(|tally| println!("{tally:?}"));
    }
    std::panic::set_hook(Box::new(|_| {})); // The line with the seed says it all.
    let mut total = Tally::default();
    if let Some(seconds) = number_in("ADVERB_SIM_SECONDS") {
        let end = Instant::now() + Duration::from_secs(seconds);
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let first = u64::try_from(since_epoch.as_nanos()).unwrap_or_default();
        let mut seed = number_in("ADVERB_SIM_FIRST").unwrap_or(first);
        println!("seeds from {seed:#018x} on");
        let mut tried = 0;
        while Instant::now() < end || tried < NEW_SEEDS_MIN {
            total += check(seed)?;
            (seed, tried) = (seed.wrapping_add(1), tried + 1);
        }
        println!("{tried} seeds, {} operations", total.succeeded + total.failed);
        println!("{total:?}");
        return Ok(());
    }
    for seed in 0..SEEDS {
        total += check(seed)?;
    }
    println!("{total:?}");
    match total.unseen().as_slice() {
        [] => Ok(()),
        unseen => Err(format!("never seen: {unseen:?}")),
    }
}
