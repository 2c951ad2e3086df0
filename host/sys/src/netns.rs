//! Network namespace of this process.

use std::io;
use std::os::unix::fs::MetadataExt;

/// A number that two threads of one machine share exactly if they see the same network.
///
/// It is the inode of the calling thread's network namespace: unique while the namespace exists.
///
/// # Errors
///
/// `/proc` is not mounted.
pub fn current_id() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/thread-self/ns/net")?.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_one_process_see_the_same_network() {
        let ours = current_id().unwrap();
        let theirs = std::thread::spawn(current_id).join().unwrap().unwrap();
        assert_ne!(ours, 0);
        assert_eq!(ours, theirs);
    }
}
