//! Exercise 6: listens for asynchronous events and prints them.
//!
//! Takes the device's name and how many events to wait for; by default `soft_lo`, for ever. Take the
//! interface down and up again to see some.

use adverb::verbs::Context;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "soft_lo".to_owned());
    let count = args.next().map_or(Ok(usize::MAX), |count| count.parse())?;

    let context = Context::open(&name)?;
    let events = context.async_events()?;
    println!("listening on {name}");
    for _ in 0..count {
        let event = events.get()?;
        println!("{event}");
        event.acknowledge();
    }
    Ok(())
}
