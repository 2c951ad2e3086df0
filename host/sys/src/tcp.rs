//! TCP options that the standard library does not offer.

use std::io;
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, sockopt};

/// Chooses how a connection shares the network with others: `"cubic"`, `"reno"`, `"bbr"`, ….
///
/// # Errors
///
/// `ENOENT` if the kernel has no algorithm of that name, `EPERM` if it keeps it for the privileged;
/// the socket keeps the one it had.
pub fn set_congestion_control(socket: impl AsFd, name: &str) -> io::Result<()> {
    Ok(sockopt::set_tcp_congestion(socket, name)?)
}

/// Sets the traffic class of packets sent from now on: the DSCP, for the two bits below belong to TCP.
/// Connections that a listener accepts inherit it. The kernel takes the priority in queues of this host
/// from it, as it does for connections of the RDMA connection manager, but for this very socket alone.
///
/// # Errors
///
/// `EPERM` for a class that the kernel keeps for the privileged.
pub fn set_traffic_class(socket: impl AsFd, class: u8) -> io::Result<()> {
    // Sockets of IPv6 carry connections of both families, and have a setting for each.
    sockopt::set_ip_tos(&socket, class)?;
    if sockopt::socket_domain(&socket)? == AddressFamily::INET6 {
        sockopt::set_ipv6_tclass(&socket, u32::from(class))?;
    }
    Ok(())
}

/// Sets how many routers packets sent from now on may pass.
///
/// # Errors
///
/// `EINVAL` for 0.
pub fn set_hop_limit(socket: impl AsFd, limit: u8) -> io::Result<()> {
    sockopt::set_ip_ttl(&socket, u32::from(limit))?;
    if sockopt::socket_domain(&socket)? == AddressFamily::INET6 {
        sockopt::set_ipv6_unicast_hops(&socket, Some(limit))?;
    }
    Ok(())
}

/// The traffic class of packets to a peer of IPv4, or of IPv6.
///
/// # Errors
///
/// The socket is of IPv4, and IPv6 was asked for.
pub fn traffic_class(socket: impl AsFd, v6: bool) -> io::Result<u8> {
    match v6 {
        false => Ok(sockopt::ip_tos(socket)?),
        true => u8::try_from(sockopt::ipv6_tclass(socket)?).map_err(io::Error::other),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn reno_is_always_there_and_a_name_made_up_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_congestion_control(&listener, "reno").unwrap();
        assert_eq!(sockopt::tcp_congestion(&listener).unwrap(), "reno");
        assert!(set_congestion_control(&listener, "no-such-thing").is_err());
        assert_eq!(sockopt::tcp_congestion(&listener).unwrap(), "reno");
    }

    #[test]
    fn connections_have_the_class_and_hops_of_their_listener_in_both_families() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                continue; // There is no IPv6 here.
            };
            set_traffic_class(&listener, 0x68).unwrap();
            set_hop_limit(&listener, 7).unwrap();
            let port = listener.local_addr().unwrap().port();
            // A listener on all addresses accepts IPv4 on a socket of IPv6.
            let client = match address.starts_with("[::1]") {
                true => TcpStream::connect(("::1", port)).unwrap(),
                false => TcpStream::connect(("127.0.0.1", port)).unwrap(),
            };
            let (accepted, _) = listener.accept().unwrap();
            assert_eq!(traffic_class(&accepted, false).unwrap(), 0x68, "{address}");
            assert_eq!(sockopt::ip_ttl(&accepted).unwrap(), 7, "{address}");
            if address.starts_with('[') {
                assert_eq!(traffic_class(&accepted, true).unwrap(), 0x68, "{address}");
                assert_eq!(sockopt::ipv6_unicast_hops(&accepted).unwrap(), 7, "{address}");
            }
            // That of bulk data: see tc-prio(8) for the table.
            let priority = crate::sockopt::get(&listener, libc::SOL_SOCKET, libc::SO_PRIORITY);
            assert_eq!(priority.unwrap(), 2, "{address}");
            assert_eq!(traffic_class(&client, false).unwrap(), 0, "{address}");
            assert!(set_hop_limit(&accepted, 0).is_err());
        }
    }
}
