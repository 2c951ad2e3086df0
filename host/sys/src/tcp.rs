//! The one thing we ask of TCP that the standard library does not offer.

use std::io;
use std::os::fd::AsFd;

use rustix::net::sockopt;

/// Chooses how a connection shares the network with others: `"cubic"`, `"reno"`, `"bbr"`, ….
///
/// # Errors
///
/// `ENOENT` if the kernel has no algorithm of that name, `EPERM` if it keeps it for the privileged;
/// the socket keeps the one it had.
pub fn set_congestion_control(socket: impl AsFd, name: &str) -> io::Result<()> {
    Ok(sockopt::set_tcp_congestion(socket, name)?)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn reno_is_always_there_and_a_name_made_up_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_congestion_control(&listener, "reno").unwrap();
        assert_eq!(sockopt::tcp_congestion(&listener).unwrap(), "reno");
        assert!(set_congestion_control(&listener, "no-such-thing").is_err());
        assert_eq!(sockopt::tcp_congestion(&listener).unwrap(), "reno");
    }
}
