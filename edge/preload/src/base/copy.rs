//! Guarded copies from and to the program's buffers: they end with an error where a buffer is none.
//!
//! The kernel answers `EFAULT` to a buffer that is not there; a copy of ours would end the program. So
//! copies run between two marks: while one runs, its thread has noted where its stack is. A fault
//! meanwhile lands behind the copy, by way of the handler in `signal.rs`, with the answer that it
//! failed. That costs the copy a few stores.
//!
//! # Safety
//!
//! 1. [`guarded`] keeps what the calling convention wants kept on its stack, and notes the top of it.
//!    [`fault_return`] is entered with that stack, and leaves as [`guarded`] would: whatever `memcpy` has
//!    done above is given up, which is all right as it holds nothing.
//! 2. A note is there only while the thread that has written it is inside of `memcpy`, called from
//!    [`guarded`]; handlers that could come in between wait until the locks are released
//!    (`thread.rs`).

#![expect(clippy::as_conversions, reason = "a function's address is a number to the kernel")]

use std::ffi::c_void;

use crate::base::signal;
use crate::base::thread::{self, Here};

/// Copies `len` bytes, and returns whether all of them were there.
///
/// # Safety
///
/// The two do not overlap, and nothing that is mapped there may be a reference of Rust's.
#[inline]
pub(crate) unsafe fn copy(target: *mut u8, source: *const u8, len: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { copy_by(Here::find(), target, source, len) }
}

/// The same, by a caller that knows where its thread's numbers are.
///
/// # Safety
///
/// That of [`copy`].
#[inline]
pub(crate) unsafe fn copy_by(here: Here, target: *mut u8, source: *const u8, len: usize) -> bool {
    signal::guard();
    // SAFETY: the caller's promise; a fault is survived (rule 1).
    unsafe { guarded(target, source, len, here.fault_return()) == 0 }
}

/// Reads a structure of the program's, if it is there.
///
/// # Safety
///
/// Every bit pattern is a legal `T`.
pub(crate) unsafe fn read<T>(from: *const T) -> Option<T> {
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    // SAFETY: `value` is ours, and as long as a `T`.
    let is_there = unsafe { copy(value.as_mut_ptr().cast(), from.cast(), size_of::<T>()) };
    // SAFETY: filled by the copy, and any bytes are legal by the caller's promise.
    is_there.then(|| unsafe { value.assume_init() })
}

/// Writes a structure to the program's memory, and returns whether there was any.
///
/// # Safety
///
/// Nothing that is mapped there may be a reference of Rust's.
#[must_use]
pub(crate) unsafe fn write<T: Copy>(to: *mut T, value: T) -> bool {
    // SAFETY: `value` is ours, and as long as a `T`; the caller's promise for the target.
    unsafe { copy(to.cast(), (&raw const value).cast(), size_of::<T>()) }
}

/// Whether all of the program's `len` bytes from there on may be written. What they are meanwhile is
/// unspecified: the program has promised them to a call that fills them in.
pub(crate) fn is_writable(to: *mut c_void, len: usize) -> bool {
    let Some(last) = len.checked_sub(1) else { return true };
    let bytes = (0..len).step_by(PAGE_BYTES).chain([last]);
    bytes.into_iter().all(|at| {
        let at = to.cast::<u8>().wrapping_add(at);
        // SAFETY: any byte is legal.
        let byte = unsafe { read(at) };
        // SAFETY: the program's memory, in which we hold no references.
        byte.is_some_and(|byte| unsafe { write(at, byte) })
    })
}

/// Whether all of the program's `len` bytes from there on are readable.
pub(crate) fn is_readable(from: *const c_void, len: usize) -> bool {
    let Some(last) = len.checked_sub(1) else { return true };
    let bytes = (0..len).step_by(PAGE_BYTES).chain([last]);
    bytes.into_iter().all(|at| {
        let mut byte = 0_u8;
        // SAFETY: one byte into a local one.
        unsafe { copy(&raw mut byte, from.cast::<u8>().wrapping_add(at), 1) }
    })
}

/// No page is smaller.
const PAGE_BYTES: usize = 4096;

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn guarded(
    target: *mut u8,
    source: *const u8,
    len: usize,
    note: *mut usize,
) -> usize {
    std::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "mov rbx, rcx",
        "mov [rcx], rsp",
        "call {memcpy}",
        "mov qword ptr [rbx], 0",
        "xor eax, eax",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        memcpy = sym libc::memcpy,
    );
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn fault_return() {
    std::arch::naked_asm!(
        "mov eax, 1",
        "cld",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    );
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn guarded(
    target: *mut u8,
    source: *const u8,
    len: usize,
    note: *mut usize,
) -> usize {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-160]!",
        "stp x19, x20, [sp, #16]",
        "stp x21, x22, [sp, #32]",
        "stp x23, x24, [sp, #48]",
        "stp x25, x26, [sp, #64]",
        "stp x27, x28, [sp, #80]",
        "stp d8, d9, [sp, #96]",
        "stp d10, d11, [sp, #112]",
        "stp d12, d13, [sp, #128]",
        "stp d14, d15, [sp, #144]",
        "mov x19, x3",
        "mov x4, sp",
        "str x4, [x3]",
        "bl {memcpy}",
        "str xzr, [x19]",
        "mov x0, #0",
        "ldp x19, x20, [sp, #16]",
        "ldp x29, x30, [sp], #160",
        "ret",
        memcpy = sym libc::memcpy,
    );
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn fault_return() {
    std::arch::naked_asm!(
        "mov x0, #1",
        "ldp x19, x20, [sp, #16]",
        "ldp x21, x22, [sp, #32]",
        "ldp x23, x24, [sp, #48]",
        "ldp x25, x26, [sp, #64]",
        "ldp x27, x28, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "ldp x29, x30, [sp], #160",
        "ret",
    );
}

/// A fault has come: if a copy was running, it goes on behind the copy. Returns whether one was.
///
/// # Safety
///
/// `context` is what the kernel gave to the handler, and the handler returns next.
pub(crate) unsafe fn land(context: *mut c_void) -> bool {
    let stack = thread::with(|thread| thread.fault_return.replace(0));
    if stack == 0 || context.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let goes_to: unsafe extern "C" fn() = fault_return;
    set(context, (goes_to as *const ()).addr(), stack);
    true
}

#[cfg(target_arch = "x86_64")]
fn set(context: &mut libc::ucontext_t, instruction: usize, stack: usize) {
    for (register, value) in [(libc::REG_RIP, instruction), (libc::REG_RSP, stack)] {
        let at =
            usize::try_from(register).ok().and_then(|at| context.uc_mcontext.gregs.get_mut(at));
        if let Some(at) = at {
            *at = i64::from_ne_bytes(value.to_ne_bytes());
        }
    }
}

#[cfg(target_arch = "aarch64")]
fn set(context: &mut libc::ucontext_t, instruction: usize, stack: usize) {
    context.uc_mcontext.pc = u64::from_ne_bytes(instruction.to_ne_bytes());
    context.uc_mcontext.sp = u64::from_ne_bytes(stack.to_ne_bytes());
}
