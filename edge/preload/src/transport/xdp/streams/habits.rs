//! What a program has said of a connection's socket, for the one that frames carry.
//!
//! The kernel keeps options, and answers what they are. It is told nothing of silent peers: it would ask them in vain,
//! and end the socket.

use std::ffi::c_int;
use std::time::Duration;

use adverb_tcpip::tcp::{Algorithm, KeepAlive};

use crate::base::raw;

/// What the program has said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    /// As it was when the connection was taken over.
    pub(super) no_delay: bool,
    /// `TCP_CORK`.
    pub(super) corked: bool,
    /// The last bytes came with `MSG_MORE`.
    pub(super) holds: bool,
    /// Silent peers are asked.
    pub(super) keeps_alive: bool,
    /// `SO_REUSEADDR`, which a socket in repair forgets.
    pub(super) reuse: c_int,
}

impl Habits {
    pub(super) fn of(fd: c_int, reuse: c_int) -> Self {
        let is_on = |level, name| raw::option::<c_int>(fd, level, name).is_ok_and(|on| on != 0);
        Self {
            no_delay: is_on(libc::IPPROTO_TCP, libc::TCP_NODELAY),
            corked: is_on(libc::IPPROTO_TCP, libc::TCP_CORK),
            holds: false,
            keeps_alive: is_on(libc::SOL_SOCKET, libc::SO_KEEPALIVE),
            reuse,
        }
    }

    /// Small segments wait for more.
    pub(super) const fn is_corked(&self) -> bool {
        self.corked || self.holds
    }

    /// How silent peers are asked, if they are. As with the kernel, `TCP_USER_TIMEOUT` says when they are given up, and
    /// without it the number of questions does; one is asked in any case.
    pub(super) fn keep_alive(&self, fd: c_int) -> Option<KeepAlive> {
        let tcp = |name| seconds(raw::option(fd, libc::IPPROTO_TCP, name).unwrap_or(1));
        let (idle, interval) = (tcp(libc::TCP_KEEPIDLE), tcp(libc::TCP_KEEPINTVL));
        let probes_max = match user_timeout(fd) {
            Some(limit) => questions(limit.saturating_sub(idle), interval),
            None => raw::option::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT)
                .map_or(1, c_int::unsigned_abs),
        };
        self.keeps_alive.then_some(KeepAlive { idle, interval, probes_max })
    }
}

/// How many questions, so far apart, take so long.
fn questions(limit: Duration, interval: Duration) -> u32 {
    let each = interval.as_millis().max(1);
    u32::try_from(limit.as_millis().div_ceil(each)).unwrap_or(u32::MAX).max(1)
}

fn seconds(value: c_int) -> Duration {
    Duration::from_secs(value.unsigned_abs().into())
}

/// How long the peer may owe an answer, if the program has said so.
pub(super) fn user_timeout(fd: c_int) -> Option<Duration> {
    let set = raw::option::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT).ok()?;
    (set > 0).then(|| Duration::from_millis(set.unsigned_abs().into()))
}

/// How the load of the network is guessed: by what the kernel has for it, if that is known here. Not at all, if parameters
/// say so.
pub(super) fn congestion(fd: c_int, is_uncontrolled: bool) -> Algorithm {
    if is_uncontrolled {
        return Algorithm::None;
    }
    let name = raw::option::<[u8; NAME_BYTES]>(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION);
    let name = name.unwrap_or_default();
    let text = name.split(|byte| *byte == 0).next().and_then(|name| str::from_utf8(name).ok());
    text.and_then(Algorithm::named).unwrap_or(Algorithm::Cubic)
}

/// Most bytes a second, if the program has said so.
pub(super) fn pacing(fd: c_int) -> Option<u64> {
    let rate = raw::option::<u64>(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE).unwrap_or(0);
    Some(rate).filter(|rate| ![0, u64::MAX, u64::from(u32::MAX)].contains(rate))
}

/// The kernel's `TCP_CA_NAME_MAX`.
const NAME_BYTES: usize = 16;

/// Whether the kernel would give the socket's packets the headers that frames have: no class of service, and so many hops.
pub(crate) fn has_usual_headers(fd: c_int) -> bool {
    let is =
        |level, name, usual| raw::option::<c_int>(fd, level, name).is_ok_and(|set| set == usual);
    let is_v6 = raw::option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Ok(libc::AF_INET6);
    let is_usual_v6 = || {
        is(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 0)
            && is(libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, HOPS)
    };
    is(libc::IPPROTO_IP, libc::IP_TOS, 0)
        && is(libc::IPPROTO_IP, libc::IP_TTL, HOPS)
        && (!is_v6 || is_usual_v6())
}

/// Whether the socket's packets have a mark, by which rules may have another route for them than for frames.
pub(super) fn has_mark(fd: c_int) -> bool {
    raw::option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_MARK).is_ok_and(|mark| mark != 0)
}

/// The kernel asks no peer that is silent to it.
pub(super) fn silence(fd: c_int) {
    let _ = raw::set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 0);
}

/// Routers that a packet may pass, as the kernel has it unless it has been told otherwise.
const HOPS: c_int = 64;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn the_network_is_treated_as_the_socket_or_the_parameter_says() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = socket.as_raw_fd();
        let mut seen = Vec::new();
        for (name, expected) in [(b"reno\0", Algorithm::NewReno), (b"cubic", Algorithm::Cubic)] {
            // Not every kernel has every algorithm.
            if raw::set_option_as(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name).is_ok() {
                assert_eq!(congestion(fd, false), expected);
                assert_eq!(congestion(fd, true), Algorithm::None);
                seen.push(expected);
            }
        }
        assert!(seen.contains(&Algorithm::NewReno), "every kernel has it");
        assert_eq!(congestion(-1, false), Algorithm::Cubic, "of what is not known");
    }

    #[test]
    fn a_user_time_out_is_as_many_questions_as_it_takes() {
        for (limit, interval, expected) in
            [(0, 75, 1), (1, 75, 1), (75, 75, 1), (76, 75, 2), (9, 0, 9000)]
        {
            assert_eq!(
                questions(seconds(limit), seconds(interval)),
                expected,
                "{limit} {interval}"
            );
        }
    }
}
