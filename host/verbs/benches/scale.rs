//! What 10,000 queue pairs cost: memory for each, and time for users of two of them.
//!
//! Run with `cargo bench -p adverb-verbs --bench scale`. A pair is measured alone and among the
//! others in turns, in one process; the medians count, and the bench fails if the time of a poll or
//! of a round trip has grown by more than 1.3 times, or a queue pair takes more than 4 KiB besides
//! its rings.

#[path = "../tests/allocations/counting.rs"]
mod counting;
#[path = "../tests/scale/field.rs"]
mod field;

use field::Field;
use std::time::{Duration, Instant};

const COUNT: usize = 10_000;
const ROUNDS: usize = 5;
const POLLS: u32 = 100_000;
const TRIPS: u32 = 5_000;
const RATIO_MAX: f64 = 1.3;
const BYTES_MAX: usize = 4096;

fn main() {
    let mut field = Field::new();
    field.grow(2);
    field.round_trips(TRIPS);
    let (mut alone, mut among) = (Times::default(), Times::default());
    for round in 0..ROUNDS {
        alone.measure(&field);
        let (_, bytes) = counting::counts();
        let pages = resident_bytes();
        let start = Instant::now();
        field.grow(COUNT);
        let grown = start.elapsed();
        let start = Instant::now();
        field.exchange();
        let exchanged = start.elapsed();
        if round == 0 {
            let each = (counting::counts().1 - bytes) / COUNT;
            let resident = resident_bytes().saturating_sub(pages) / COUNT;
            println!("{COUNT} queue pairs: {each} bytes each allocated, {resident} resident");
            println!("made and connected in {grown:.2?}, a message each in {exchanged:.2?}");
            assert!(each <= BYTES_MAX, "{each} bytes");
        }
        among.measure(&field);
        field.pairs.truncate(1);
    }
    for (what, alone, among) in
        [("empty poll", alone.polls, among.polls), ("round trip", alone.trips, among.trips)]
    {
        let (alone, among) = (median(alone), median(among));
        let ratio = among.as_secs_f64() / alone.as_secs_f64();
        println!("{what}: {alone:.2?} with 2 queue pairs, {among:.2?} with {COUNT}: {ratio:.2} x");
        assert!(ratio <= RATIO_MAX, "{what}: {ratio:.2} x");
    }
}

#[derive(Default)]
struct Times {
    polls: Vec<Duration>,
    trips: Vec<Duration>,
}

impl Times {
    fn measure(&mut self, field: &Field) {
        self.polls.push(field.empty_polls(POLLS));
        self.trips.push(field.round_trips(TRIPS));
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// What the process has in memory.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * adverb_sys::memory::page_bytes()
}
