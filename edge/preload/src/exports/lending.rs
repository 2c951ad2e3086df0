//! Reading without a copy: `recvfrom_zcopy` and `free_packets` of the extra functions.
//!
//! # Safety
//!
//! The program calls these with arguments of the types of `vma_extra.h`: buffers, arrays and structures that it
//! passes are valid for as long as the call lasts. What it passes is read, and filled in, with copies that fail
//! where there is nothing.

#![expect(clippy::as_conversions, reason = "C integers meet us here")]

use std::ffi::{c_int, c_void};

use super::bytes::{self, Wanted};
use super::int;
use crate::base::raw::{self, Errno};
use crate::base::{address, copy};
use crate::exports::extra::returning::give_back;
use crate::socket::loans::{self, Lent, Loan, PIECES_MAX, STREAM_MAX};
use crate::socket::policy::is_plain;
use crate::socket::state::Kind;
use crate::socket::table::{self, SocketRef};
use crate::transport::datagram::{self, Arrival, Request};
use crate::transport::stream::Receive;
use crate::wait::{blocking, filters};

/// Flags of `recvfrom_zcopy`: do not copy (in), nothing has been copied (out).
const ZCOPY_FORCE: c_int = 0x0100_0000;
const ZCOPY: c_int = 0x0004_0000;

/// `struct vma_packet_t`, without its pieces: what it is called, and how many pieces it has.
const PACKET_BYTES: usize = 16;
const PIECE_BYTES: usize = size_of::<libc::iovec>();
/// `struct vma_packets_t` with one packet of as many pieces as there may be, in words.
const WORDS: usize = 3 + 2 * PIECES_MAX;
/// The same with one piece: there is no smaller answer.
const LEAST_BYTES: usize = size_of::<usize>() + PACKET_BYTES + PIECE_BYTES;
const _: () = assert!(WORDS * size_of::<usize>() == LEAST_BYTES + (PIECES_MAX - 1) * PIECE_BYTES);

/// Receives one packet, and lends it.
pub(super) unsafe extern "C-unwind" fn recvfrom_zcopy(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: *mut c_int,
    from: *mut libc::sockaddr,
    from_len: *mut libc::socklen_t,
) -> c_int {
    // SAFETY: an integer, of which any is legal.
    let Some(given) = (unsafe { copy::read(flags) }) else { return int(Err(Errno::FAULT)) };
    let (is_forced, plain) = (given & ZCOPY_FORCE != 0, given & !(ZCOPY_FORCE | ZCOPY));
    let socket = table::socket(fd).filter(|socket| !is_plain(socket));
    let lends = plain & (libc::MSG_PEEK | libc::MSG_ERRQUEUE | libc::MSG_OOB) == 0;
    let Some(socket) = socket.filter(|_| lends) else {
        if is_forced {
            // What is no socket at all is told from one that nothing is lent of.
            let kind = raw::option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_TYPE);
            return int(Err(kind.err().unwrap_or(Errno(libc::EOPNOTSUPP))));
        }
        // SAFETY: an integer of the program's.
        if !unsafe { copy::write(flags, plain) } {
            return int(Err(Errno::FAULT));
        }
        // SAFETY: the program's promise about all of these.
        return unsafe { bytes::recvfrom(fd, buffer, len, plain, from, from_len) } as c_int;
    };
    if len < LEAST_BYTES {
        return int(Err(Errno(libc::ENOBUFS)));
    }
    let pieces = (1 + (len - LEAST_BYTES) / PIECE_BYTES).min(PIECES_MAX);
    let (got, lent, arrival) = match receive(&socket, fd, pieces, plain, !from.is_null()) {
        Ok(received) => received,
        Err(error) => return int(Err(error)),
    };
    let wanted = Wanted { from, len: from_len };
    // SAFETY: the program's promise: with `from` comes a length.
    let mut is_there = unsafe { wanted.fill(&arrival) }.is_ok();
    if let Some(lent) = &lent {
        // SAFETY: the program's promise: `len` bytes, which are enough for so many pieces.
        is_there &= unsafe { put(buffer, lent) };
    }
    let said = if lent.is_some() { plain | ZCOPY } else { plain };
    // SAFETY: an integer of the program's.
    is_there &= unsafe { copy::write(flags, said) };
    if !is_there {
        if let Some(lent) = lent {
            let _ = give_back(&socket, fd, lent.id);
        }
        return int(Err(Errno::FAULT));
    }
    int(Ok(got))
}

type Received = Result<(usize, Option<Lent>, Arrival), Errno>;

/// Receives, and lends what comes: where it lies in shared memory, if it lies there in so few pieces, else from
/// memory of ours. Of a connection, the peer's name is asked for only if it is wanted.
fn receive(
    socket: &SocketRef,
    fd: c_int,
    pieces: usize,
    flags: c_int,
    wants_name: bool,
) -> Received {
    let loan = Loan::new(socket, STREAM_MAX, pieces);
    let mut spare = loans::Spare::take();
    let now = flags & libc::MSG_DONTWAIT != 0;
    let (got, arrival) = if socket.kind() == Kind::Datagram {
        let (control, control_len) = (std::ptr::null_mut(), 0);
        let parts = &[spare.part()];
        let request = Request { parts, control, control_len, flags, loan: Some(&loan) };
        let arrival = match filters::has(socket) {
            false => datagram::receive_one(socket, fd, request),
            true => filters::receive_one(socket, fd, request),
        }?;
        (arrival.len, arrival)
    } else {
        let how = Receive { now, loan: Some(&loan), ..Receive::default() };
        let got = match filters::has(socket) {
            false => blocking::receive(socket, fd, &[spare.part()], how),
            true => filters::receive_lent(socket, fd, &[spare.part()], how),
        };
        (got?, if wants_name { of_peer(fd) } else { Arrival::empty() })
    };
    let is_whole = got > 0 || socket.kind() == Kind::Datagram;
    let lent = loan.lent().or_else(|| is_whole.then(|| spare.lend(socket, got)));
    Ok((got, lent, arrival))
}

/// What a connection's bytes come from.
fn of_peer(fd: c_int) -> Arrival {
    let mut arrival = Arrival::empty();
    if let Some(peer) = address::name(fd, true) {
        let domain = if peer.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        (arrival.from, arrival.from_len) = address::write_name(peer, domain);
    }
    arrival
}

/// Fills in `struct vma_packets_t`, with one packet. Returns false if nothing is there.
///
/// # Safety
///
/// If anything is there, there is room for a packet of as many pieces as have been lent.
unsafe fn put(at: *mut c_void, lent: &Lent) -> bool {
    let mut words = [0_usize; WORDS];
    let pieces = lent.pieces.iter().take(lent.count);
    let said = [1, lent.id as usize, lent.count];
    let said = said.into_iter().chain(pieces.flat_map(|p| [p.iov_base as usize, p.iov_len]));
    words.iter_mut().zip(said).for_each(|(word, value)| *word = value);
    let len = size_of::<usize>() + PACKET_BYTES + lent.count * PIECE_BYTES;
    // SAFETY: as many bytes of ours; the caller's promise for the target.
    unsafe { copy::copy(at.cast(), words.as_ptr().cast(), len) }
}

/// Takes packets back that were lent by `recvfrom_zcopy`, or held by a callback.
pub(super) unsafe extern "C-unwind" fn free_packets(
    fd: c_int,
    packets: *const c_void,
    count: usize,
) -> c_int {
    let Some(socket) = table::socket(fd) else { return int(Err(Errno(libc::EINVAL))) };
    let mut at = packets.cast::<[usize; 2]>();
    for _ in 0..count {
        // SAFETY: two integers, of which any are legal.
        let Some([id, pieces]) = (unsafe { copy::read(at) }) else {
            return int(Err(Errno::FAULT));
        };
        if let Err(error) = give_back(&socket, fd, id as u64) {
            return int(Err(error));
        }
        at = at.wrapping_byte_add(PACKET_BYTES + pieces.wrapping_mul(PIECE_BYTES));
    }
    int(Ok(0))
}
