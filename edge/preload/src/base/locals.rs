//! Local addresses: those of this network namespace, as the kernel lists them (rtnetlink(7)).
//!
//! The C library's list would come from the program's `malloc`, and `listen` may be called where that is forbidden
//! (signal-safety(7)).

use std::ffi::c_int;
use std::net::IpAddr;

use crate::base::raw;

/// At most so many addresses that mean something in other namespaces, too: those of the loopback interface do not.
pub(crate) fn addresses(most: usize) -> Vec<IpAddr> {
    let mut found = Vec::new();
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    let Ok(fd) = raw::socket(libc::AF_NETLINK, kind) else { return found };
    if raw::send(fd, &question()).is_ok() {
        let mut answer = [0; ANSWER_BYTES];
        // The kernel goes on with its list whenever some of it is taken: it never has to be waited for.
        for _ in 0..ANSWERS_MAX {
            let Ok(got @ 1..) = raw::recv(fd, &mut answer, 0) else { break };
            if !read(answer.get(..got).unwrap_or(&[]), most, &mut found) {
                break;
            }
        }
    }
    raw::close(fd);
    found
}

/// Length, kind and flags of the message, two numbers that come back, and a family: any.
fn question() -> [u8; QUESTION_BYTES] {
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_DUMP).unwrap_or(0);
    let [l0, l1, l2, l3] = u32::try_from(QUESTION_BYTES).unwrap_or(0).to_ne_bytes();
    let ([k0, k1], [f0, f1]) = (libc::RTM_GETADDR.to_ne_bytes(), flags.to_ne_bytes());
    let mut question = [0; QUESTION_BYTES];
    let head = [l0, l1, l2, l3, k0, k1, f0, f1];
    question.iter_mut().zip(head).for_each(|(place, byte)| *place = byte);
    question
}

/// Takes the addresses from one piece of the answer; false if there is nothing to come, or nothing wanted.
fn read(mut rest: &[u8], most: usize, found: &mut Vec<IpAddr>) -> bool {
    while let Some(message) = cut(&mut rest, |head: [u8; 6]| {
        let [l0, l1, l2, l3, k0, k1] = head;
        let len = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).ok()?;
        Some((len, u16::from_ne_bytes([k0, k1])))
    }) {
        if message.1 != libc::RTM_NEWADDR {
            return false; // The end, or an error.
        }
        let body = message.0.get(HEAD_BYTES..).unwrap_or(&[]);
        let ip = ip_of(body).filter(|ip| !ip.is_loopback());
        found.extend(ip.filter(|_| found.len() < most));
    }
    found.len() < most
}

/// The address that a message is about: the local one, where it has another at the far end of a line.
fn ip_of(body: &[u8]) -> Option<IpAddr> {
    let family = c_int::from(*body.first()?);
    let mut rest = body.get(ABOUT_BYTES..)?;
    let mut known = None;
    while let Some((part, kind)) = cut(&mut rest, |head: [u8; 4]| {
        let [l0, l1, k0, k1] = head;
        Some((usize::from(u16::from_ne_bytes([l0, l1])), u16::from_ne_bytes([k0, k1])))
    }) {
        let value = part.get(PART_HEAD_BYTES..).unwrap_or(&[]);
        let ip = match family {
            libc::AF_INET => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
            libc::AF_INET6 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
            _ => None,
        };
        match kind {
            libc::IFA_LOCAL => return ip,
            libc::IFA_ADDRESS => known = ip,
            _ => {}
        }
    }
    known
}

/// Takes what comes next, whose head says how long it is; the one after it begins at a multiple of four.
fn cut<'a, const HEAD: usize>(
    rest: &mut &'a [u8],
    parse: impl FnOnce([u8; HEAD]) -> Option<(usize, u16)>,
) -> Option<(&'a [u8], u16)> {
    let (len, kind) = parse(*rest.first_chunk()?)?;
    let taken = rest.get(..len).filter(|taken| taken.len() >= HEAD)?;
    *rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    Some((taken, kind))
}

/// A `struct nlmsghdr`, a `struct ifaddrmsg`, a `struct rtattr`.
const HEAD_BYTES: usize = 16;
const ABOUT_BYTES: usize = 8;
const PART_HEAD_BYTES: usize = 4;
const QUESTION_BYTES: usize = HEAD_BYTES + ABOUT_BYTES;
/// The kernel makes no longer piece unless it is asked for one, and no more of them for a host of many addresses.
const ANSWER_BYTES: usize = 16 << 10;
const ANSWERS_MAX: usize = 1024;
