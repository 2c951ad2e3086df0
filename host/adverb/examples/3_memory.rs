//! Exercise 3: registers memory three ways: for local reading, for local writing, and for peers to
//! write to.

use adverb::verbs::{Access, Context};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let pd = Context::open("soft_lo")?.alloc_pd();
    let local_read = Access::NONE;
    let local_write = Access::LOCAL_WRITE;
    let remote_write = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    for access in [local_read, local_write, remote_write] {
        let mr = pd.allocate(4096, access)?;
        println!("{} bytes, {access}: lkey {:#x}, rkey {:#x}", mr.len(), mr.lkey(), mr.rkey().0);
    }

    // A peer could not write to it without the right to write here: the device says so.
    let refused = pd.allocate(4096, Access::REMOTE_WRITE).err();
    println!("remote write alone: {}", refused.ok_or("it should be refused")?);
    Ok(())
}
