//! Which of several sockets on one port gets a datagram.
//!
//! The kernel runs a small program over the payload of each datagram and delivers to the socket at
//! the index that it returns: the first socket bound has index 0. The program here looks at the
//! destination queue pair of a Base Transport Header (IBTA Vol. 1 §9.2) and finds its *block*, the
//! number without its lowest bits. Closing a socket moves the last index of the group into the
//! hole, and a program may be out of date: steering is a hint, and whoever gets a datagram by
//! mistake passes it on.

use std::ffi::c_int;
use std::io;

/// One instruction of a classic packet filter.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct SockFilter(libc::sock_filter);

impl std::fmt::Debug for SockFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let libc::sock_filter { code, jt, jf, k } = self.0;
        write!(f, "{{ {code:#04x}, {jt}, {jf}, {k:#010x} }}")
    }
}

/// The queue pairs whose number, without its lowest bits, is `block` belong to the socket at
/// `index` of the group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Route {
    /// The queue pair number, shifted right by the width of a block.
    pub block: u32,
    /// The socket's place in its group, counted from 0 in the order of binding.
    pub index: u32,
}

/// The program that sends each datagram to the socket its queue pair's block belongs to, and
/// datagrams without a route, or too short to tell, to index 0.
///
/// Numbers of the block `probe` stand for the index in their lowest eight bits: whoever wants to
/// know which socket has an index sends a datagram to it.
///
/// # Errors
///
/// `InvalidInput` if `block_bits` is more than 23, or there are more than [`ROUTES_MAX`] routes.
pub fn program(block_bits: u32, probe: u32, routes: &[Route]) -> io::Result<Vec<SockFilter>> {
    if block_bits >= QPN_BITS || routes.len() > ROUTES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut program = vec![
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, QPN_WORD_OFFSET)?,
        instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, QPN_MASK)?,
        instruction(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, block_bits)?,
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 3, probe)?,
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, QPN_WORD_OFFSET)?,
        instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, PROBE_INDEX_MASK)?,
        instruction(libc::BPF_RET | libc::BPF_A, 0, 0)?,
    ];
    for &Route { block, index } in routes {
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, block)?);
        program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, index)?);
    }
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0)?);
    Ok(program)
}

/// One instruction; a comparison goes on with the next if it holds, else skips `skip` of them.
fn instruction(code: libc::c_uint, skip: u8, k: u32) -> io::Result<SockFilter> {
    let code = u16::try_from(code).map_err(io::Error::other)?;
    Ok(SockFilter(libc::sock_filter { code, jt: 0, jf: skip, k }))
}

/// The most routes that a program can hold: the kernel takes 4096 instructions.
pub const ROUTES_MAX: usize = (INSTRUCTIONS_MAX - 8) / 2;

/// Indices that a probe can name.
pub const PROBES_MAX: usize = 1 << 8;

const INSTRUCTIONS_MAX: usize = 4096;
const QPN_BITS: u32 = 24;
const PROBE_INDEX_MASK: u32 = 0xff;
const QPN_MASK: u32 = 0x00ff_ffff;
const QPN_WORD_OFFSET: u32 = 4; // The word whose lowest 24 bits are the queue pair number.
const _: () = assert!(size_of::<c_int>() == 4);
