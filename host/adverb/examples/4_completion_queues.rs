//! Exercise 4: makes two completion queues, one without and one with a completion channel.

use adverb::verbs::{Context, CqConfig};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let context = Context::open("soft_lo")?;
    let channel = context.create_comp_channel()?;
    let polled = context.create_cq(100)?;
    let config = CqConfig::new(100).channel(&channel).context(7);
    let told = context.create_cq_with(&config)?;

    println!("without a channel: {:?}", polled.req_notify(false).map_err(|e| e.to_string()));
    println!("with a channel: {:?}", told.req_notify(false));
    // Queues first, then the channel: destroy() says if something is still in use.
    polled.destroy()?;
    told.destroy()?;
    Ok(())
}
