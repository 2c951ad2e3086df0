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

#[test]
fn a_thousand_queue_pairs_exchange_messages_and_are_small() {
    alone::alone("a_thousand_queue_pairs_exchange_messages_and_are_small", || {
        let mut field = Field::new();
        field.grow(2);
        let (_, before) = counting::counts();
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
