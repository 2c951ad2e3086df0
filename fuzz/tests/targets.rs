//! Runs every target for a while, each on new inputs.

use adverb_fuzz::{INPUTS_MIN, PATIENCE, TARGETS, Target, replay, run};
use std::env;
use std::panic::catch_unwind;
use std::time::{Duration, SystemTime};

/// How long each target runs.
fn budget() -> Duration {
    let seconds = env::var("ADVERB_FUZZ_SECONDS").ok();
    let seconds = seconds.map(|seconds| seconds.parse().expect("ADVERB_FUZZ_SECONDS is a number"));
    Duration::from_secs(seconds.unwrap_or(2))
}

/// The one seed to run, if there is one.
fn one_seed() -> Option<u64> {
    let seed = env::var("ADVERB_FUZZ_SEED").ok()?;
    let digits = seed.strip_prefix("0x").expect("ADVERB_FUZZ_SEED starts with 0x");
    Some(u64::from_str_radix(digits, 16).expect("ADVERB_FUZZ_SEED is a hexadecimal number"))
}

fn run_named(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target's name");
    if let Some(seed) = one_seed() {
        return replay(target, seed);
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let seed = now.as_secs().wrapping_mul(1 << 24);
    let count = run(target, seed, budget());
    println!("{name}: {count} inputs, the first from seed {seed:#x}");
}

#[test]
fn wire_parse_finds_nothing() {
    run_named("wire_parse");
}

#[test]
fn wire_icrc_finds_nothing() {
    run_named("wire_icrc");
}

#[test]
fn wire_capture_finds_nothing() {
    run_named("wire_capture");
}

#[test]
fn wire_management_finds_nothing() {
    run_named("wire_management");
}

#[test]
fn rdma_cm_command_finds_nothing() {
    run_named("rdma_cm_command");
}

#[test]
fn session_frame_finds_nothing() {
    run_named("session_frame");
}

#[test]
fn sockets_rules_finds_nothing() {
    run_named("sockets_rules");
}

#[test]
fn tcpip_frame_finds_nothing() {
    run_named("tcpip_frame");
}

#[test]
fn tcpip_segments_finds_nothing() {
    run_named("tcpip_segments");
}

#[test]
fn xdp_rings_finds_nothing() {
    run_named("xdp_rings");
}

#[test]
fn xdp_grant_finds_nothing() {
    run_named("xdp_grant");
}

/// Goal: the tests above can fail.
/// Method: a target with a bug that a few thousand mutations must meet.
#[test]
fn a_bug_is_found_and_its_seed_finds_it_again() {
    const BUGGY: Target = Target {
        name: "buggy, its failures are expected",
        corpus: || vec![vec![7; 8]],
        feed: |bytes| assert!(bytes.len() < 4 || bytes.contains(&7)),
    };
    let fails = |seed: &u64| catch_unwind(|| replay(&BUGGY, *seed)).is_err();
    let seed = (0..100_000).find(fails).expect("the bug is found");
    assert!(fails(&seed));
    assert!(catch_unwind(|| run(&BUGGY, seed, Duration::ZERO)).is_err());
}

/// Goal: a run on a busy machine has inputs enough.
/// Method: a target that takes a hundredth of the budget for each.
#[test]
fn a_slow_run_goes_on_for_more_inputs_and_not_for_ever() {
    const BUDGET: Duration = Duration::from_millis(20);
    const SLOW: Target = Target {
        name: "slow",
        corpus: || vec![vec![7; 8]],
        feed: |_| std::thread::sleep(BUDGET / 100),
    };
    let begun = std::time::Instant::now();
    assert!(run(&SLOW, 1, BUDGET) < INPUTS_MIN);
    assert!(begun.elapsed() >= PATIENCE * BUDGET);
}
