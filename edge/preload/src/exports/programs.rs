//! Programs that take this process over, or are started by it.
//!
//! Before that happens, connections with rings are left where the new program looks for them; if it
//! fails, everything goes on, those connections through the kernel. `vfork` is not here, but its child
//! comes by when it executes something.
//!
//! # Safety
//!
//! 1. The program calls these under the contracts of the C library's functions of the same names:
//!    paths are C strings, arguments and environments arrays of them that end with a null pointer.
//! 2. `execl` and its kin take any number of arguments. Their entries put those that came in registers
//!    beside those on the stack and pass the address of the first: so it is such an array.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::base::real::real;
use crate::share::exec_target;

type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

/// A path that the program has given; `None` if there is none.
///
/// # Safety
///
/// `path` is null or a C string.
unsafe fn given<'a>(path: *const c_char) -> Option<&'a CStr> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { CStr::from_ptr(path) })
}

/// Prepares, calls, and if the call comes back, goes on.
///
/// # Safety
///
/// `environment` is null or an environment.
unsafe fn become_it(
    program: Option<&Path>,
    environment: Strings,
    call: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let prepared = unsafe { exec_target::prepare(program, environment) };
    let answer = call();
    prepared.undo();
    answer
}

fn path_of(name: Option<&CStr>) -> Option<PathBuf> {
    name.map(|name| PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execve(
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the program's promise.
    let program = path_of(unsafe { given(path) });
    let call = || real!(execve(path, arguments, environment));
    // SAFETY: the program's promise.
    unsafe { become_it(program.as_deref(), environment, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the program's promise; the C library's own variable.
    unsafe { execve(path, arguments, environ) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvpe(
    file: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the program's promise.
    let program = unsafe { given(file) }.and_then(exec_target::find);
    let call = || real!(execvpe(file, arguments, environment));
    // SAFETY: the program's promise.
    unsafe { become_it(program.as_deref(), environment, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the program's promise; the C library's own variable.
    unsafe { execvpe(file, arguments, environ) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
    let program = PathBuf::from(format!("/proc/self/fd/{fd}"));
    let call = || real!(fexecve(fd, arguments, environment));
    // SAFETY: the program's promise.
    unsafe { become_it(Some(&program), environment, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execveat(
    place: c_int,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    let call = || real!(execveat(place, path, arguments, environment, flags));
    // Which program that is has not been looked up: none of ours.
    // SAFETY: the program's promise.
    unsafe { become_it(None, environment, call) }
}

/// `execl` and `execlp`, and `execle`, whose environment comes behind the arguments.
unsafe extern "C-unwind" fn adverb_sockets_execl(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the program's promise (rule 2).
    unsafe { execv(path, arguments) }
}

unsafe extern "C-unwind" fn adverb_sockets_execlp(
    file: *const c_char,
    arguments: Strings,
) -> c_int {
    // SAFETY: the program's promise (rule 2).
    unsafe { execvp(file, arguments) }
}

unsafe extern "C-unwind" fn adverb_sockets_execle(
    path: *const c_char,
    arguments: Strings,
) -> c_int {
    let mut end = arguments;
    // SAFETY: the array ends with a null pointer (rule 2), behind which the environment comes.
    while !unsafe { end.read() }.is_null() {
        end = end.wrapping_add(1);
    }
    // SAFETY: as above.
    let environment = unsafe { end.wrapping_add(1).read() };
    // SAFETY: the program's promise.
    unsafe { execve(path, arguments, environment.cast()) }
}

/// An entry that puts its arguments from the second on into one array, and calls another function
/// with the first argument and that array.
macro_rules! gather {
    ($name:ident, $function:ident) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name() -> c_int {
            // The return address makes room for the registers, so that those on the stack follow.
            std::arch::naked_asm!(
                "pop r11",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push r11",
                "call {function}",
                "pop r11",
                "add rsp, 40",
                "push r11",
                "ret",
                function = sym $function,
            );
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name() -> c_int {
            std::arch::naked_asm!(
                "sub sp, sp, #80",
                "stp x29, x30, [sp]",
                "mov x29, sp",
                "stp x1, x2, [sp, #24]",
                "stp x3, x4, [sp, #40]",
                "stp x5, x6, [sp, #56]",
                "str x7, [sp, #72]",
                "add x1, sp, #24",
                "bl {function}",
                "ldp x29, x30, [sp]",
                "add sp, sp, #80",
                "ret",
                function = sym $function,
            );
        }
    };
}

gather!(execl, adverb_sockets_execl);
gather!(execlp, adverb_sockets_execlp);
gather!(execle, adverb_sockets_execle);

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the program's promise.
    let program = path_of(unsafe { given(path) });
    // SAFETY: the program's promise.
    let counted = unsafe { exec_target::prepare_child(program.as_deref(), environment) };
    let answer = real!(posix_spawn(pid, path, actions, attributes, arguments, environment));
    if answer != 0 {
        counted.undo();
    }
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawnp(
    pid: *mut libc::pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the program's promise.
    let program = unsafe { given(file) }.and_then(exec_target::find);
    // SAFETY: the program's promise.
    let counted = unsafe { exec_target::prepare_child(program.as_deref(), environment) };
    let answer = real!(posix_spawnp(pid, file, actions, attributes, arguments, environment));
    if answer != 0 {
        counted.undo();
    }
    answer
}

/// A program that will be started is to have a descriptor under another number: it is not known yet
/// which program.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut c_void,
    old: c_int,
    new: c_int,
) -> c_int {
    exec_target::prepare_standard(old);
    real!(posix_spawn_file_actions_adddup2(actions, old, new))
}
