//! Files and sockets meet: `sendfile`, `splice`, and streams of the C library.
//!
//! The kernel cannot move bytes between a file and our rings, so they are copied here. A stream
//! made of a connection reads and writes past us, inside of the C library; so it is made of
//! functions of ours.
//!
//! # Safety
//!
//! 1. The program calls these under the contracts of the C library's functions of the same names.
//! 2. A stream's cookie is the number of its descriptor, and never followed as a pointer.

#![expect(clippy::as_conversions, reason = "C integers meet us here")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{bytes, has_rings, size};
use crate::base::forks::{self, Rank};
use crate::base::lock::Guarded;
use crate::base::raw::{self, Answer, Errno};
use crate::base::real::real;
use crate::share::sockets;
use crate::socket::table;
use crate::transport::{datagram, stream};
use crate::wait::blocking;

const CHUNK: usize = 65_536;

/// Sends bytes of ours on a connection with rings.
fn send_all(fd: c_int, bytes: &[u8], how: blocking::Send) -> Answer {
    let Some(socket) = table::socket(fd) else { return Err(Errno(libc::EBADF)) };
    let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    blocking::send(&socket, fd, &[part], how)
}

fn read_at(fd: c_int, buffer: &mut [u8], at: Option<i64>) -> Answer {
    let (base, len) = (buffer.as_mut_ptr() as usize, buffer.len());
    let fd = fd as isize as usize;
    match at {
        // SAFETY: the buffer is borrowed, and the kernel fills at most `len` bytes.
        None => unsafe { raw::syscall(libc::SYS_read, [fd, base, len, 0, 0, 0]) },
        Some(at) => {
            let args = [fd, base, len, at as usize, 0, 0];
            // SAFETY: as above.
            unsafe { raw::syscall(libc::SYS_pread64, args) }
        }
    }
}

/// `sendfile(2)` to a connection with rings.
fn send_file(to: c_int, from: c_int, offset: Option<&mut i64>, count: usize) -> Answer {
    let mut chunk = vec![0; CHUNK.min(count)];
    // Read by position, so that what could not be sent has not been read.
    let own = |by: i64| -> Result<i64, Errno> {
        let args = [from as isize as usize, by as usize, libc::SEEK_CUR as usize, 0, 0, 0];
        // SAFETY: no pointer.
        unsafe { raw::syscall(libc::SYS_lseek, args) }.map(|at| at as i64)
    };
    let start = match &offset {
        Some(at) => **at,
        None => own(0)?,
    };
    let mut done = 0;
    let mut failed = None;
    while done < count {
        let most = chunk.len().min(count - done);
        let part = chunk.get_mut(..most).unwrap_or(&mut []);
        let got = match read_at(from, part, Some(start.wrapping_add(done as i64))) {
            Ok(0) => break,
            Ok(got) => got,
            Err(error) => {
                failed = Some(error);
                break;
            }
        };
        match send_all(to, chunk.get(..got).unwrap_or(&[]), blocking::Send::default()) {
            Ok(sent) => {
                done += sent;
                if sent < got {
                    break;
                }
            }
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    match offset {
        Some(at) => *at = start.wrapping_add(done as i64),
        None => _ = own(done as i64)?,
    }
    match failed {
        Some(error) if done == 0 => Err(error),
        Some(_) | None => Ok(done),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut libc::off_t,
    count: usize,
) -> libc::ssize_t {
    if has_rings(to) {
        // SAFETY: the program's promise: null, or a position.
        return size(send_file(to, from, unsafe { offset.as_mut() }, count));
    }
    sockets::keep_to_kernel(to);
    real!(sendfile(to, from, offset, count))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut libc::off64_t,
    count: usize,
) -> libc::ssize_t {
    // SAFETY: the program's promise; both positions are 64 bits wide.
    unsafe { sendfile(to, from, offset, count) }
}

/// `splice(2)` where one side is a connection with rings, and the other a pipe.
fn splice_rings(from: c_int, to: c_int, count: usize) -> Answer {
    // That the pipe is not to be waited for says nothing of the socket.
    let mut chunk = vec![0_u8; CHUNK.min(count)];
    if has_rings(to) {
        // What a pipe has given cannot be put back: wait for room rather than lose it.
        let got = read_at(from, &mut chunk, None)?;
        let mut done = 0;
        while done < got {
            let rest = chunk.get(done..got).unwrap_or(&[]);
            match send_all(to, rest, blocking::Send { now: false, more: false, quiet: false }) {
                Ok(sent) => done += sent,
                Err(Errno::AGAIN) => raw::nap(50_000),
                Err(error) => return if done > 0 { Ok(done) } else { Err(error) },
            }
        }
        return Ok(done);
    }
    let Some(socket) = table::socket(from) else { return Err(Errno(libc::EBADF)) };
    let part = libc::iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: chunk.len() };
    let got = blocking::receive(&socket, from, &[part], stream::Receive::default())?;
    into_pipe(to, chunk.get(..got).unwrap_or(&[]))
}

/// Writes to a pipe what cannot be put back where it was: waits until there is room.
fn into_pipe(to: c_int, bytes: &[u8]) -> Answer {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match raw::write(to, rest) {
            Ok(written) => done += written,
            Err(Errno::AGAIN | Errno::INTR) => raw::nap(50_000),
            Err(error) => return if done > 0 { Ok(done) } else { Err(error) },
        }
    }
    Ok(done)
}

/// The same from a mailbox.
fn splice_datagram(from: c_int, to: c_int, count: usize) -> Answer {
    let mut chunk = vec![0_u8; CHUNK.min(count)];
    // SAFETY: the buffer is borrowed, and has room for so many bytes.
    let got = unsafe { bytes::read(from, chunk.as_mut_ptr().cast(), chunk.len()) };
    let got = super::answer(got)?;
    into_pipe(to, chunk.get(..got).unwrap_or(&[]))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_offset: *mut libc::loff_t,
    to: c_int,
    to_offset: *mut libc::loff_t,
    count: usize,
    flags: c_uint,
) -> libc::ssize_t {
    if has_rings(from) || has_rings(to) {
        return size(splice_rings(from, to, count));
    }
    if table::socket(from).is_some_and(|socket| datagram::next_len(&socket, from).is_some()) {
        return size(splice_datagram(from, to, count));
    }
    sockets::keep_to_kernel(from);
    sockets::keep_to_kernel(to);
    real!(splice(from, from_offset, to, to_offset, count, flags))
}

/// The functions of a stream, as the C library takes them.
#[derive(Debug)]
#[repr(C)]
struct Functions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, usize) -> libc::ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, usize) -> libc::ssize_t,
    seek: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, io: Functions) -> *mut libc::FILE;
}

unsafe extern "C-unwind" fn stream_read(
    cookie: *mut c_void,
    buffer: *mut c_char,
    len: usize,
) -> libc::ssize_t {
    let fd = cookie.addr() as c_int;
    // SAFETY: the C library's promise: room for `len` bytes.
    unsafe { libc::recv(fd, buffer.cast(), len, 0) }
}

unsafe extern "C-unwind" fn stream_write(
    cookie: *mut c_void,
    bytes: *const c_char,
    len: usize,
) -> libc::ssize_t {
    let fd = cookie.addr() as c_int;
    // SAFETY: the C library's promise: `len` bytes.
    let sent = unsafe { libc::send(fd, bytes.cast(), len, 0) };
    sent.max(0)
}

unsafe extern "C-unwind" fn stream_close(cookie: *mut c_void) -> c_int {
    let fd = cookie.addr() as c_int;
    STREAMS.with(|streams| streams.retain(|(_, known)| *known != fd));
    // SAFETY: the stream owned the descriptor.
    unsafe { libc::close(fd) }
}

/// Streams of ours and their descriptors.
static STREAMS: Guarded<Vec<(usize, c_int)>> = Guarded::new(Vec::new());

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    if has_rings(fd) {
        let io =
            Functions { read: stream_read, write: stream_write, seek: None, close: stream_close };
        let cookie = std::ptr::without_provenance_mut(fd as usize);
        // SAFETY: the mode is the program's, the functions are of the right types, and the cookie
        // is theirs alone (rule 2).
        let file = unsafe { fopencookie(cookie, mode, io) };
        if !file.is_null() {
            forks::join(Rank::Streams, STREAMS.lock());
            STREAMS.with(|streams| streams.push((file.addr(), fd)));
        }
        return file;
    }
    sockets::keep_to_kernel(fd);
    static NEXT: crate::base::real::Next = crate::base::real::Next::new(c"fdopen");
    let address = NEXT.address();
    // SAFETY: the function of that name has this type in the C library (rule 1 of `real`).
    let call: unsafe extern "C-unwind" fn(c_int, *const c_char) -> *mut libc::FILE =
        unsafe { std::mem::transmute(address) };
    // SAFETY: the program's own arguments.
    unsafe { call(fd, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fileno(file: *mut libc::FILE) -> c_int {
    let is_it = |(known, _): &&(usize, c_int)| *known == file.addr();
    let known = STREAMS.with(|streams| streams.iter().find(is_it).map(|(_, fd)| *fd));
    known.unwrap_or_else(|| real!(fileno(file)))
}
