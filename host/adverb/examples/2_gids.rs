//! Exercise 2: prints the first GID of the port of each device.

use adverb::verbs::{self, Context};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    for device in verbs::devices()? {
        let context = Context::open(&device.name)?;
        let port = context.query_port();
        let state = port.state;
        for entry in context.query_gid_table()?.into_iter().take(1) {
            println!("{} port 1 ({state}): GID[{}] {}", device.name, entry.index, entry.gid);
        }
    }
    Ok(())
}
