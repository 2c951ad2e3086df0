//! UDP sockets of this network namespace, as the kernel lists them: which could get a datagram that is
//! sent to a group.
//!
//! The kernel's tables are texts, a line for each socket, which every process may read. They are the only
//! way to know of members that are not ours.
//!
//! The kernel goes through its hash table, bucket by bucket, and keeps its place within one call of `read`
//! only: the next begins after so many sockets, and skips one for each that was closed meanwhile. All
//! sockets of a port are in one bucket. So what a table says of a port is relied on only if one call has
//! gone all through that bucket.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::base::raw;

/// A table that is longer is not read to its end: then nothing is known.
const TABLE_MAX: usize = 1 << 20;
/// No line of a table is longer.
const LINE_MAX: usize = 256;
/// What the first call of `read` asks for, in turn: so it ends in other buckets the next time.
const FIRST_BYTES: [usize; 2] = [raw::PIECE_BYTES, 1792];

/// Reads the tables, again and again.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// The table that was read last, and where calls of `read` have ended in it.
    table: Vec<u8>,
    ends: Vec<usize>,
    /// What the first call has asked for.
    first_bytes: usize,
    times: usize,
}

/// What one call of `read` has gone through.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// The buckets of its first socket and of its last.
    first: Option<u32>,
    last: Option<u32>,
    /// It may have ended for want of room.
    is_full: bool,
}

impl Listing {
    /// Calls `f` with the kernel's number for each socket that could get a datagram from `source` to
    /// `group`, a group and a port: bound to that port, and neither to another address nor connected to
    /// another address. `None` if that cannot be read, or cannot be relied on this time.
    pub(super) fn each_candidate(
        &mut self,
        group: SocketAddr,
        source: SocketAddr,
        mut f: impl FnMut(u64),
    ) -> Option<()> {
        self.times = self.times.wrapping_add(1);
        let (mut bucket, mut tables) = (None, [const { Vec::new() }; 2]);
        let [v4, v6] = &mut tables;
        if group.is_ipv4() {
            self.read(c"/proc/thread-self/net/udp")?;
            *v4 = self.runs(group.port(), &mut bucket);
            self.candidates(group, source, &mut f);
        }
        // Without IPv6 there is no such table.
        if self.read(c"/proc/thread-self/net/udp6").is_some() {
            *v6 = self.runs(group.port(), &mut bucket);
            self.candidates(group, source, &mut f);
        } else if group.is_ipv6() {
            return None;
        }
        let bucket = bucket?;
        let is_whole = |table: &Vec<Run>| table.is_empty() || is_within_one(table, bucket);
        tables.iter().all(is_whole).then_some(())
    }

    fn read(&mut self, path: &CStr) -> Option<()> {
        let [this, that] = FIRST_BYTES;
        self.first_bytes = if self.times.is_multiple_of(2) { that } else { this };
        raw::read_pieces(path, self.first_bytes, TABLE_MAX, &mut self.table, &mut self.ends)?;
        (self.table.len() < TABLE_MAX).then_some(())
    }

    /// What each call of `read` has gone through. A line belongs to the call in which it begins.
    fn runs(&self, port: u16, bucket: &mut Option<u32>) -> Vec<Run> {
        let (mut runs, mut start) = (Vec::with_capacity(self.ends.len()), 0);
        let mut lines = self.table.split_inclusive(|byte| *byte == b'\n').peekable();
        for (end, wanted) in self.ends.iter().zip(self.wanted()) {
            let is_full = end.saturating_sub(start) + LINE_MAX > wanted;
            let mut run = Run { is_full, ..Run::default() };
            while start < *end
                && let Some(line) = lines.next()
            {
                start += line.len();
                let Some((of, its_port)) = place(line) else { continue };
                run.first = run.first.or(Some(of));
                run.last = Some(of);
                if its_port == port {
                    *bucket = Some(of);
                }
            }
            start = start.max(*end);
            runs.push(run);
        }
        runs
    }

    /// What each call of `read` has asked for.
    fn wanted(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.first_bytes).chain(std::iter::repeat(raw::PIECE_BYTES))
    }

    fn candidates(&self, group: SocketAddr, source: SocketAddr, f: &mut impl FnMut(u64)) {
        for line in self.table.split(|byte| *byte == b'\n') {
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
}

/// Whether one call of `read` has gone all through a bucket.
fn is_within_one(runs: &[Run], bucket: u32) -> bool {
    runs.iter().enumerate().any(|(at, run)| {
        let begins_before = at == 0 || run.first.is_some_and(|first| first < bucket);
        let is_end = at + 1 == runs.len() && !run.is_full;
        begins_before && (is_end || run.last.is_some_and(|last| last > bucket))
    })
}

/// The bucket of a line's socket, and its port.
fn place(line: &[u8]) -> Option<(u32, u16)> {
    let line = std::str::from_utf8(line).ok()?;
    let mut fields = line.split_ascii_whitespace();
    let bucket = fields.next()?.strip_suffix(':')?.parse().ok()?;
    let (_, port) = fields.next()?.rsplit_once(':')?;
    Some((bucket, u16::from_str_radix(port, 16).ok()?))
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

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 4791;
    const BUCKET: u32 = 500;

    /// A table of sockets in these buckets, those in [`BUCKET`] on [`PORT`]; each part is what one call of
    /// `read` has brought.
    fn listing(parts: &[&[u32]]) -> Listing {
        let mut listing = Listing { first_bytes: raw::PIECE_BYTES, ..Listing::default() };
        listing.table.extend_from_slice(b"  sl  local_address rem_address\n");
        for part in parts {
            for bucket in *part {
                let port = if *bucket == BUCKET { PORT } else { 1 };
                let line = format!("{bucket:5}: 00000000:{port:04X} 00000000:0000 07\n");
                listing.table.extend_from_slice(line.as_bytes());
            }
            listing.ends.push(listing.table.len());
        }
        listing
    }

    fn is_whole(listing: &Listing) -> bool {
        let mut bucket = None;
        let runs = listing.runs(PORT, &mut bucket);
        is_within_one(&runs, bucket.unwrap_or(BUCKET))
    }

    #[test]
    fn a_bucket_is_known_if_one_call_has_gone_through_it() {
        assert!(is_whole(&listing(&[&[]])), "there is no socket");
        assert!(is_whole(&listing(&[&[500]])), "the only one");
        assert!(is_whole(&listing(&[&[1, 2], &[3, 500, 501], &[600]])), "in the middle");
        assert!(is_whole(&listing(&[&[1, 2], &[3, 700], &[800]])), "no socket, in the middle");
        assert!(is_whole(&listing(&[&[1, 2], &[3, 500]])), "at the end");
    }

    #[test]
    fn a_bucket_at_the_border_of_two_calls_is_not_known() {
        assert!(!is_whole(&listing(&[&[1, 2], &[500, 501]])), "one before it may be skipped");
        assert!(!is_whole(&listing(&[&[1, 500], &[501, 502]])), "one behind it may be skipped");
        assert!(!is_whole(&listing(&[&[1, 2], &[600, 700]])), "it may be skipped itself");
        assert!(!is_whole(&listing(&[&[1, 500], &[500, 502]])), "it is in both");
        let many: Vec<u32> = (1..=150).collect();
        assert!(!is_whole(&listing(&[&[0], &many])), "there was no room for more");
    }

    #[test]
    fn a_line_belongs_to_the_call_in_which_it_begins() {
        let mut listing = listing(&[&[1, 2], &[3, 500], &[501]]);
        listing.ends.iter_mut().take(2).for_each(|end| *end -= 5);
        let runs = listing.runs(PORT, &mut None);
        let buckets: Vec<_> = runs.iter().map(|run| (run.first, run.last)).collect();
        let some = |first, last| (Some(first), Some(last));
        assert_eq!(buckets, [some(1, 2), some(3, 500), some(501, 501)]);
    }

    #[test]
    fn the_kernels_own_tables_are_understood() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let (group, source) = (([224, 0, 0, 77], port).into(), ([127, 0, 0, 1], 9).into());
        // Beside others that come and go it is known now and then.
        let mut listing = Listing::default();
        let is_known = (0..1000).any(|_| listing.each_candidate(group, source, |_| {}).is_some());
        assert!(is_known);
    }
}
