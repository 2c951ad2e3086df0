//! Many queue pairs in one process: all of them work, and an idle one is small.
//!
//! `cargo bench -p adverb-verbs --bench scale` does the same with 10,000, and looks at the time.

#[path = "../verbs/alone.rs"]
mod alone;
#[path = "../allocations/counting.rs"]
mod counting;
mod field;

use field::Field;

const COUNT: usize = 1000;
/// What an idle queue pair may take besides its rings.
const BYTES_MAX: usize = 4224;

/// Bytes that are allocated once the helper of the device has started, too: its memory for bursts is no queue pair's.
fn settled() -> usize {
    loop {
        let (_, before) = counting::counts();
        std::thread::sleep(START);
        if counting::counts().1 == before {
            return before;
        }
    }
}

/// In this time the helper has begun.
const START: std::time::Duration = std::time::Duration::from_millis(200);

#[test]
fn a_thousand_queue_pairs_exchange_messages_and_are_small() {
    alone::alone("a_thousand_queue_pairs_exchange_messages_and_are_small", || {
        let mut field = Field::new();
        field.grow(2);
        let before = settled();
        field.grow(COUNT);
        let bytes = (counting::counts().1 - before) / COUNT;
        println!("{bytes} bytes for each of {COUNT} queue pairs, rings included");
        field.exchange();
        field.exchange();
        let after = (counting::counts().1 - before) / COUNT;
        println!("{after} bytes after they have exchanged messages");
        assert!(after <= BYTES_MAX, "{after}");
    });
}
