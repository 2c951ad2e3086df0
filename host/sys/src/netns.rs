//! Network namespace of this process.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use crate::sockopt;

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

/// The network namespace of a socket, as the kernel numbers them: no two that ever were have the same number.
///
/// # Errors
///
/// A descriptor that is no socket; a kernel older than 5.14.
pub fn cookie_of(socket: impl AsFd) -> io::Result<u64> {
    let halves = sockopt::get_all::<2>(socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE)?;
    let [[a, b, c, d], [e, f, g, h]] = halves.map(i32::to_ne_bytes);
    Ok(u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_one_process_are_of_one_namespace() {
        let [one, two] = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        assert_eq!(cookie_of(&one).unwrap(), cookie_of(&two).unwrap());
        assert!(cookie_of(std::fs::File::open("/dev/null").unwrap()).is_err());
    }

    #[test]
    fn threads_of_one_process_see_the_same_network() {
        let ours = current_id().unwrap();
        let theirs = std::thread::spawn(current_id).join().unwrap().unwrap();
        assert_ne!(ours, 0);
        assert_eq!(ours, theirs);
    }
}
