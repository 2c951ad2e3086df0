//! Bounds of what can be made.

/// Bounds of what a queue pair can be made of.
#[derive(Clone, Copy, Debug)]
pub struct QpLimits;

impl QpLimits {
    /// Requests outstanding in one queue.
    pub const WR_MAX: u32 = 1 << 20;
    /// Pieces of one buffer.
    pub const SGE_MAX: u32 = 32;
    /// Bytes inline.
    pub const INLINE_MAX: u32 = 4096;
    /// READs and atomics under way, each way.
    pub const RD_ATOMIC_MAX: u8 = 128;
}
