//! Time stamps: when something was received, as control data of `recvmsg`.
//!
//! What comes through the kernel is stamped there. What comes through shared memory is stamped when it is
//! taken out: in software, by the system's clock. There is no hardware that could stamp it, and its fields are
//! left empty. The options and the control data are those of socket(7) and of the kernel's
//! `timestamping.rst`.
//!
//! # Safety
//!
//! Control data is copied to where the program has said that there is room for it, with copies that fail where
//! there is none (`copy.rs`). What the kernel has written is read within the length that it has given.

use std::ffi::{c_int, c_void};

use crate::base::{copy, raw};

/// `SO_TIMESTAMP`, `SO_TIMESTAMPNS`, `SO_TIMESTAMPING` with software stamps of what is received.
const MICROSECONDS: u32 = 1;
const NANOSECONDS: u32 = 2;
const SOFTWARE: u32 = 4;
/// By the options' newer numbers, whose stamps look the same here, and have these numbers, too.
const NEW: u32 = 8;

/// Flags of `SO_TIMESTAMPING` about what is received, and about how stamps are reported.
const RECEIVING: u32 = libc::SOF_TIMESTAMPING_RX_HARDWARE
    | libc::SOF_TIMESTAMPING_RX_SOFTWARE
    | libc::SOF_TIMESTAMPING_SOFTWARE
    | libc::SOF_TIMESTAMPING_SYS_HARDWARE
    | libc::SOF_TIMESTAMPING_RAW_HARDWARE;
const SOFTWARE_FLAGS: u32 = libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;

/// The options of these stamps, by their older and newer numbers: microseconds, nanoseconds, software.
const OLD_OPTIONS: [c_int; 3] = [libc::SO_TIMESTAMP, libc::SO_TIMESTAMPNS, libc::SO_TIMESTAMPING];
const NEW_OPTIONS: [c_int; 3] = [63, 64, 65];
const TIMESTAMPING_NEW: c_int = 65;

/// Whether an option of the socket's level is about stamps.
pub(crate) fn is_one(name: c_int) -> bool {
    OLD_OPTIONS.contains(&name) || NEW_OPTIONS.contains(&name)
}

/// Whether it is that of stamps of several kinds.
fn is_of_kinds(name: c_int) -> bool {
    [libc::SO_TIMESTAMPING, TIMESTAMPING_NEW].contains(&name)
}

/// Whether an option of the socket's level is one of those that we know, with a value that shared memory can
/// give: stamps of what is *sent* come through the kernel's queue of errors, and only the kernel has them.
pub(crate) fn is_known(fd: c_int, name: c_int) -> bool {
    let flags = || raw::option::<u32>(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING);
    match is_of_kinds(name) {
        true => flags().is_ok_and(|flags| flags & !RECEIVING == 0),
        false => is_one(name),
    }
}

/// The stamps that the program wants of what a socket receives, as bits of our own; 0 is none.
pub(crate) fn wanted(fd: c_int) -> u32 {
    let is_on = |name| raw::option::<c_int>(fd, libc::SOL_SOCKET, name).is_ok_and(|on| on != 0);
    let flags = raw::option::<u32>(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING).unwrap_or(0);
    let mut wanted = 0;
    let [micro, nano, _] = OLD_OPTIONS.map(is_on);
    // The kernel knows one set of numbers at a time.
    let [new_micro, new_nano, new_kinds] = NEW_OPTIONS.map(is_on);
    for (is_wanted, bit) in [
        (micro || new_micro, MICROSECONDS),
        (nano || new_nano, NANOSECONDS),
        (flags & SOFTWARE_FLAGS == SOFTWARE_FLAGS, SOFTWARE),
        (new_micro || new_nano || new_kinds, NEW),
    ] {
        if is_wanted {
            wanted |= bit;
        }
    }
    wanted
}

/// Control data on its way to the program: as many messages as there is room for.
#[derive(Debug)]
pub(crate) struct Control {
    at: *mut u8,
    room: usize,
    /// Bytes written so far.
    pub(crate) len: usize,
    /// [`libc::MSG_CTRUNC`] if there was too little room.
    pub(crate) flags: c_int,
}

impl Control {
    pub(crate) fn new(at: *mut c_void, room: usize) -> Self {
        let room = if at.is_null() { 0 } else { room };
        Self { at: at.cast(), room, len: 0, flags: 0 }
    }

    /// Adds a message, as the kernel would: cut short if there is less room.
    fn put(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let room = self.room - self.len;
        if room < HEADER_BYTES {
            self.flags |= libc::MSG_CTRUNC;
            return;
        }
        let whole = HEADER_BYTES + data.len();
        let len = whole.min(room);
        if len < whole {
            self.flags |= libc::MSG_CTRUNC;
        }
        let mut bytes = [0; MESSAGE_MAX];
        let [l0, l1, l2, l3, l4, l5, l6, l7] = len.to_ne_bytes();
        let [v0, v1, v2, v3] = level.to_ne_bytes();
        let [k0, k1, k2, k3] = kind.to_ne_bytes();
        let header = [l0, l1, l2, l3, l4, l5, l6, l7, v0, v1, v2, v3, k0, k1, k2, k3];
        for (to, from) in bytes.iter_mut().zip(header.iter().chain(data)) {
            *to = *from;
        }
        let len = len.min(MESSAGE_MAX);
        let to = self.at.wrapping_add(self.len);
        // SAFETY: `len` of our bytes, to where the program has said that there is room for them.
        if !unsafe { copy::copy(to, bytes.as_ptr(), len) } {
            self.flags |= libc::MSG_CTRUNC;
            self.room = self.len;
            return;
        }
        self.len += whole.next_multiple_of(ALIGNMENT).min(room);
    }

    /// Adds the stamps that are [`wanted`] of something that is received now.
    pub(crate) fn stamp(&mut self, wanted: u32) {
        if wanted == 0 {
            return;
        }
        let (seconds, nanoseconds) = raw::real_time();
        let pair = |second: i64| {
            let mut bytes = [0; 16];
            let words = seconds.to_ne_bytes().into_iter().chain(second.to_ne_bytes());
            bytes.iter_mut().zip(words).for_each(|(to, from)| *to = from);
            bytes
        };
        let [of_micro, of_nano, of_kinds] =
            if wanted & NEW != 0 { NEW_OPTIONS } else { OLD_OPTIONS };
        if wanted & NANOSECONDS != 0 {
            self.put(libc::SOL_SOCKET, of_nano, &pair(nanoseconds));
        } else if wanted & MICROSECONDS != 0 {
            self.put(libc::SOL_SOCKET, of_micro, &pair(nanoseconds / 1000));
        }
        if wanted & SOFTWARE != 0 {
            // Software, then two that hardware would fill in.
            let mut three = [0; 48];
            three.iter_mut().zip(pair(nanoseconds)).for_each(|(to, from)| *to = from);
            self.put(libc::SOL_SOCKET, of_kinds, &three);
        }
    }

    /// Adds what the kernel has said at the socket's own level, in a message that it has filled in.
    ///
    /// # Safety
    ///
    /// `message` is the kernel's answer about a buffer that is still there.
    pub(crate) unsafe fn pass_on(&mut self, message: &libc::msghdr) {
        // SAFETY: the caller's promise.
        let mut at = unsafe { libc::CMSG_FIRSTHDR(message) };
        while !at.is_null() {
            // SAFETY: not null, and within the control data.
            let header = unsafe { at.read() };
            // How many datagrams were dropped is said to us alone.
            if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type != libc::SO_RXQ_OVFL {
                // SAFETY: as above.
                let data = unsafe { libc::CMSG_DATA(at) };
                let len = header.cmsg_len.saturating_sub(HEADER_BYTES).min(MESSAGE_MAX);
                // SAFETY: so many bytes lie there, which the kernel has written into a buffer of ours.
                let data = unsafe { std::slice::from_raw_parts(data, len) };
                self.put(header.cmsg_level, header.cmsg_type, data);
            }
            // SAFETY: the header and one of its control messages.
            at = unsafe { libc::CMSG_NXTHDR(message, at) };
        }
    }
}

const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
const ALIGNMENT: usize = align_of::<libc::cmsghdr>();
/// The longest message that is put together here: three times, and a header.
const MESSAGE_MAX: usize = 64;
