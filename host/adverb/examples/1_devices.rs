//! Exercise 1: goes over all RDMA devices and prints what kind of node each is.

use adverb::verbs;

fn main() -> std::io::Result<()> {
    for device in verbs::devices()? {
        println!("{}: {} (GUID {:016x})", device.name, device.node_type(), device.guid);
    }
    Ok(())
}
