//! Formatted output, `dprintf` and its kin: text made by the C library, and sent by us.
//!
//! # Safety
//!
//! 1. The program calls these under the contracts of the C library's functions of the same names.
//! 2. A list of arguments is passed on as it came: on the machines we know it is passed by its address,
//!    and read once. `dprintf` takes any number of arguments, so its entry makes such a list of those in
//!    registers and those on the stack, as the C calling convention lays it out, and passes its address.

use std::ffi::{c_char, c_int, c_void};

use super::has_rings;
use crate::base::real::real;

/// Sends what `print` makes, which answers its length and where the C library has put it.
fn send_text(fd: c_int, print: impl FnOnce(*mut *mut c_char) -> c_int) -> c_int {
    let mut text = std::ptr::null_mut();
    let len = print(&raw mut text);
    let Ok(count) = usize::try_from(len) else { return len };
    let mut done = 0;
    while done < count {
        // SAFETY: the C library has made a text of this length.
        let sent = unsafe { libc::send(fd, text.wrapping_add(done).cast(), count - done, 0) };
        match usize::try_from(sent) {
            Ok(sent) => done += sent,
            Err(_) => break,
        }
    }
    // SAFETY: the C library has made it with `malloc`.
    unsafe { libc::free(text.cast()) };
    if done < count { -1 } else { len }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn vdprintf(
    fd: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    if has_rings(fd) {
        return send_text(fd, |text| {
            real!(
                c"vasprintf" as fn(*mut *mut c_char, *const c_char, *mut c_void) -> c_int,
                text,
                format,
                arguments
            )
        });
    }
    real!(vdprintf(fd, format, arguments))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    if has_rings(fd) {
        return send_text(fd, |text| {
            real!(
                c"__vasprintf_chk"
                    as fn(*mut *mut c_char, c_int, *const c_char, *mut c_void) -> c_int,
                text,
                flag,
                format,
                arguments
            )
        });
    }
    real!(__vdprintf_chk(fd, flag, format, arguments))
}

/// An entry with any number of arguments behind the first `$named`, which are all integers or
/// pointers; `$list` is the register of the argument that the list becomes.
macro_rules! variadic {
    ($name:ident, $function:ident, $bytes:literal, $list:literal, $arm_bytes:literal, $arm:literal) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name() -> c_int {
            // A save area of 176 bytes, and the list of 24 in front of it.
            std::arch::naked_asm!(
                "sub rsp, 216",
                "mov [rsp + 32], rdi",
                "mov [rsp + 40], rsi",
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                concat!("mov dword ptr [rsp], ", $bytes),
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax",
                concat!("mov ", $list, ", rsp"),
                "call {function}",
                "add rsp, 216",
                "ret",
                function = sym $function,
            );
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name() -> c_int {
            // Registers saved one after the other, and the list of 32 bytes in front of them.
            std::arch::naked_asm!(
                "sub sp, sp, #240",
                "stp x29, x30, [sp]",
                "mov x29, sp",
                "stp q0, q1, [sp, #48]",
                "stp q2, q3, [sp, #80]",
                "stp q4, q5, [sp, #112]",
                "stp q6, q7, [sp, #144]",
                "stp x0, x1, [sp, #176]",
                "stp x2, x3, [sp, #192]",
                "stp x4, x5, [sp, #208]",
                "stp x6, x7, [sp, #224]",
                "add x9, sp, #240",
                "str x9, [sp, #16]",
                "str x9, [sp, #24]",
                "add x9, sp, #176",
                "str x9, [sp, #32]",
                concat!("mov w9, #-", $arm_bytes),
                "str w9, [sp, #40]",
                "mov w9, #-128",
                "str w9, [sp, #44]",
                concat!("add ", $arm, ", sp, #16"),
                "bl {function}",
                "ldp x29, x30, [sp]",
                "add sp, sp, #240",
                "ret",
                function = sym $function,
            );
        }
    };
}

variadic!(dprintf, vdprintf, "16", "rdx", "48", "x2");
variadic!(__dprintf_chk, __vdprintf_chk, "24", "rcx", "40", "x3");
