//! Steering: which of several sockets on one port gets a datagram.
//!
//! The kernel runs a small program over the payload of each datagram and delivers to the socket at
//! the index that it returns: the first socket bound has index 0. The program here looks at the
//! destination queue pair of a Base Transport Header (IBTA Vol. 1 §9.2) and finds its *block*, the
//! number without its lowest bits. Closing a socket moves the last index of the group into the
//! hole, and a program may be out of date: steering is a hint, and a process that gets a datagram by
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

/// Where messages of connection management go that name a connection of the receiver: the upper `prefix_bits` bits of
/// that name take the place of the block.
#[derive(Clone, Copy, Debug)]
pub struct Connections<'a> {
    /// How many bits those are: 1 to 32.
    pub prefix_bits: u32,
    /// The sockets by those bits.
    pub routes: &'a [Route],
}

impl Connections<'_> {
    /// None are known.
    pub const NONE: Self = Self { prefix_bits: 1, routes: &[] };
}

/// The program that sends each datagram to the socket its queue pair's block belongs to, one of connection management
/// to queue pair 1 to the socket its connection belongs to, and datagrams without a route to index `others`; those too
/// short to tell to index 0.
///
/// Numbers of the block `probe` stand for the index in their lowest eight bits: a datagram to such a number tells
/// which socket has an index.
///
/// # Errors
///
/// `InvalidInput` if `block_bits` is more than 23, `prefix_bits` is not 1 to 32, or there are more than [`ROUTES_MAX`]
/// routes of both kinds together.
pub fn program(
    block_bits: u32,
    probe: u32,
    routes: &[Route],
    connections: &Connections<'_>,
    others: u32,
) -> io::Result<Vec<SockFilter>> {
    let known = routes.len().saturating_add(connections.routes.len());
    let bits = 1..=CONNECTION_NAME_BITS;
    if block_bits >= QPN_BITS || !bits.contains(&connections.prefix_bits) || known > ROUTES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let skipped = 2 * routes.len() + PROBE_INSTRUCTIONS + 1;
    let mut program = vec![
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, QPN_WORD_OFFSET)?,
        instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, QPN_MASK)?,
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, QPN_GSI)?,
        instruction(libc::BPF_JMP | libc::BPF_JA, 0, u32::try_from(skipped).unwrap_or(0))?,
        instruction(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, block_bits)?,
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 3, probe)?,
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, QPN_WORD_OFFSET)?,
        instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, PROBE_INDEX_MASK)?,
        instruction(libc::BPF_RET | libc::BPF_A, 0, 0)?,
    ];
    choose(&mut program, routes, others)?;
    program.extend([
        instruction(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0, ATTRIBUTE_OFFSET)?,
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, ATTRIBUTE_REQ)?,
        instruction(libc::BPF_RET | libc::BPF_K, 0, others)?,
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, ATTRIBUTE_SIDR_REQ)?,
        instruction(libc::BPF_RET | libc::BPF_K, 0, others)?,
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 2, ATTRIBUTE_SIDR_REP)?,
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, REQUEST_NAME_OFFSET)?,
        instruction(libc::BPF_JMP | libc::BPF_JA, 0, 1)?,
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, REMOTE_NAME_OFFSET)?,
    ]);
    let shift = CONNECTION_NAME_BITS - connections.prefix_bits;
    program.push(instruction(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, shift)?);
    choose(&mut program, connections.routes, others)?;
    Ok(program)
}

/// The index whose block the accumulator is, or `others`.
fn choose(program: &mut Vec<SockFilter>, routes: &[Route], others: u32) -> io::Result<()> {
    for &Route { block, index } in routes {
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, block)?);
        program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, index)?);
    }
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, others)?);
    Ok(())
}

/// One instruction; a comparison goes on with the next if it holds, else skips `skip` of them.
fn instruction(code: libc::c_uint, skip: u8, k: u32) -> io::Result<SockFilter> {
    let code = u16::try_from(code).map_err(io::Error::other)?;
    Ok(SockFilter(libc::sock_filter { code, jt: 0, jf: skip, k }))
}

/// The most routes that a program can hold: the kernel takes 4096 instructions.
pub const ROUTES_MAX: usize = (INSTRUCTIONS_MAX - 24) / 2;

/// Indices that a probe can name.
pub const PROBES_MAX: usize = 1 << 8;

const INSTRUCTIONS_MAX: usize = 4096;
/// Those that shift the number, compare it with a probe's, and answer that.
const PROBE_INSTRUCTIONS: usize = 5;
const QPN_BITS: u32 = 24;
const QPN_GSI: u32 = 1;
/// The attribute of a management datagram and the names of connections in it, behind the two transport headers of a
/// datagram. IBTA Vol. 1 §13.4.2 and §12.6.
const ATTRIBUTE_OFFSET: u32 = 36;
const ATTRIBUTE_REQ: u32 = 0x10;
const ATTRIBUTE_SIDR_REQ: u32 = 0x17;
const ATTRIBUTE_SIDR_REP: u32 = 0x18;
const REQUEST_NAME_OFFSET: u32 = 44;
const REMOTE_NAME_OFFSET: u32 = 48;
const CONNECTION_NAME_BITS: u32 = 32;
const PROBE_INDEX_MASK: u32 = 0xff;
const QPN_MASK: u32 = 0x00ff_ffff;
const QPN_WORD_OFFSET: u32 = 4; // The word whose lowest 24 bits are the queue pair number.
const _: () = assert!(size_of::<c_int>() == 4);
