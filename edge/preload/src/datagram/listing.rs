//! What the kernel says of the UDP sockets of this network namespace: who could get a datagram that is
//! sent to a group.
//!
//! The kernel's tables are texts, a line for each socket, which everybody may read. They are the only
//! way to know of members that are not ours.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::raw;

/// A table that is longer is not read to its end: then nothing is known.
const TABLE_MAX: usize = 1 << 20;

/// Calls `f` with the kernel's number for each socket that could get a datagram from `source` to
/// `group`, a group and a port: bound to that port, and neither to another address nor connected to
/// somebody else. `buffer` is room for the table. `None` if it cannot be read.
pub(super) fn each_candidate(
    group: SocketAddr,
    source: SocketAddr,
    buffer: &mut Vec<u8>,
    mut f: impl FnMut(u64),
) -> Option<()> {
    if group.is_ipv4() {
        read(c"/proc/thread-self/net/udp", buffer)?;
        candidates(buffer, group, source, &mut f);
    }
    // Without IPv6 there is no such table.
    if read(c"/proc/thread-self/net/udp6", buffer).is_some() {
        candidates(buffer, group, source, &mut f);
    } else if group.is_ipv6() {
        return None;
    }
    Some(())
}

fn read(path: &CStr, buffer: &mut Vec<u8>) -> Option<()> {
    raw::read_file_into(path, TABLE_MAX, buffer).filter(|()| buffer.len() < TABLE_MAX)
}

fn candidates(table: &[u8], group: SocketAddr, source: SocketAddr, f: &mut impl FnMut(u64)) {
    for line in table.split(|byte| *byte == b'\n') {
        let Some((local, remote, inode)) = parse(line) else { continue };
        let is_bound = local.port() == group.port()
            && (local.ip().is_unspecified() || local.ip() == group.ip());
        let is_open = (remote.ip().is_unspecified() || remote.ip() == source.ip())
            && [0, source.port()].contains(&remote.port());
        if is_bound && is_open {
            f(inode);
        }
    }
}

/// A socket's own address, its peer's, and the kernel's number for it.
fn parse(line: &[u8]) -> Option<(SocketAddr, SocketAddr, u64)> {
    let line = std::str::from_utf8(line).ok()?;
    let mut fields = line.split_ascii_whitespace();
    let local = address(fields.nth(1)?)?;
    let remote = address(fields.next()?)?;
    let inode = fields.nth(6)?.parse().ok()?;
    Some((local, remote, inode))
}

/// An address as the kernel prints it: words of the machine in hexadecimal digits, and a port.
fn address(text: &str) -> Option<SocketAddr> {
    let (words, port) = text.split_once(':')?;
    let word = |at: usize| {
        let digits = words.get(at * 8..(at + 1) * 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let ip = match words.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut octets = [0; 16];
            for (at, chunk) in octets.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(octets)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}
