//! How a function gets its name and its version, and how calls that are not ours go on.
//!
//! [`export`] writes three things: the function; a symbol `name@@node`, which is a jump to it, because the compiler
//! has no way to say a version; and what happens to an object of another library, which goes to the function of
//! the same name behind us.
//!
//! # Safety
//!
//! 1. The functions are called by programs under the contracts of the manual pages: a pointer is null, or to what its
//!    type says, for the length of the call at least; an object is one that was given and not destroyed
//!    (`boxed.rs`). Objects that a provider of the real library has made go there untouched.
//! 2. The symbols that are written in assembly are the functions: a jump leaves registers and stack as they are.
//! 3. Every object of libibverbs, ours or not, begins with a pointer to its context, but for contexts themselves and
//!    devices.
//! 4. The function behind us has the type that the header gives it (`real.rs`).

use crate::context;
use adverb_device::uncancelled;
use adverb_ibv::layout;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::errno::{Answer, Errno};

/// Calls, turns a panic into `EIO` as [`caught`] does, and lets nothing cancel the thread meanwhile: the standard library
/// opens, reads, writes and closes files by functions of the C library at which threads are cancelled.
#[inline]
pub(crate) fn guarded<T>(call: impl FnOnce() -> Answer<T>) -> Answer<T> {
    uncancelled(|| caught(call))
}

/// Calls, and turns a panic into `EIO`: a panic that crosses into C ends the program. For calls that are made for every
/// message, which reach no function at which a thread is cancelled.
#[inline]
pub(crate) fn caught<T>(call: impl FnOnce() -> Answer<T>) -> Answer<T> {
    let call = || {
        provoked();
        call()
    };
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Errno(libc::EIO)))
}

/// Panics while the calling thread has asked for it; in builds without debug assertions there is no way to ask.
#[cfg(debug_assertions)]
fn provoked() {
    assert!(!PROVOKED.get(), "provoked by a test");
}

#[cfg(not(debug_assertions))]
const fn provoked() {}

#[cfg(debug_assertions)]
thread_local! {
    static PROVOKED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// For tests: every call of this thread panics from now on, or none does.
#[cfg(debug_assertions)]
#[unsafe(no_mangle)]
extern "C" fn adverb_provoke_panics(on: bool) {
    PROVOKED.set(on);
}

/// The object is one of ours; null is, and is refused there.
///
/// # Safety
///
/// Rule 1.
pub(crate) unsafe fn is_ours<C>(object: *mut C) -> bool {
    if object.is_null() {
        return true;
    }
    // SAFETY: rule 3.
    let context = unsafe { object.cast::<*mut layout::Context>().read() };
    // SAFETY: the context of an object that lives.
    unsafe { context::is_ours(context) }
}

/// How a function says that it has failed.
macro_rules! style {
    (code, $answer:expr) => {
        match $answer {
            Ok(()) => 0,
            Err($crate::errno::Errno(number)) => number,
        }
    };
    (minus, $answer:expr) => {
        match $answer {
            Ok(()) => 0,
            Err(error) => {
                $crate::errno::set(error);
                -1
            }
        }
    };
    (pointer, $answer:expr) => {
        match $answer {
            Ok(made) => made,
            Err(error) => {
                $crate::errno::set(error);
                std::ptr::null_mut()
            }
        }
    };
    (value, $answer:expr) => {
        $crate::export::Failed::or_failed($answer)
    };
}

/// Types that have a value of their own for failure.
pub(crate) trait Failed: Sized {
    const FAILED: Self;

    fn or_failed(answer: Answer<Self>) -> Self {
        answer.unwrap_or_else(|error| {
            crate::errno::set(error);
            Self::FAILED
        })
    }
}

impl Failed for u64 {
    const FAILED: Self = 0;
}

impl Failed for i32 {
    const FAILED: Self = -1;
}

impl Failed for isize {
    const FAILED: Self = -1;
}

impl Failed for u8 {
    const FAILED: Self = 0;
}

impl Failed for u16 {
    const FAILED: Self = 0;
}

impl Failed for u32 {
    const FAILED: Self = 0;
}

impl Failed for () {
    const FAILED: Self = ();
}

/// Gives a function a name in a node.
macro_rules! versioned {
    ($node:literal $name:ident) => {
        #[cfg(target_arch = "x86_64")]
        std::arch::global_asm!(
            concat!(".globl adverb_", stringify!($name)),
            concat!(".type adverb_", stringify!($name), ",@function"),
            concat!("adverb_", stringify!($name), ":"),
            "jmp {function}",
            concat!(".size adverb_", stringify!($name), ", .-adverb_", stringify!($name)),
            concat!(".symver adverb_", stringify!($name), ", ", stringify!($name), "@@", $node),
            function = sym $name,
        );
        #[cfg(target_arch = "aarch64")]
        std::arch::global_asm!(
            concat!(".globl adverb_", stringify!($name)),
            concat!(".type adverb_", stringify!($name), ",@function"),
            concat!("adverb_", stringify!($name), ":"),
            "b {function}",
            concat!(".size adverb_", stringify!($name), ", .-adverb_", stringify!($name)),
            concat!(".symver adverb_", stringify!($name), ", ", stringify!($name), "@@", $node),
            function = sym $name,
        );
    };
}

/// A function of the interface. `of object`: whose it is, by its context; `of device is check`: by this check;
/// without `of`, ours always. One that `waits` says what for ([`crate::waiting::until`]).
macro_rules! export {
    ($style:ident $node:literal
     fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty $body:block) => {
        $crate::export::versioned!($node $name);
        pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            $crate::export::style!($style, $crate::export::guarded(move || $body))
        }
    };
    ($style:ident $node:literal
     fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty,
     of $object:ident is $check:path, $body:block) => {
        $crate::export::versioned!($node $name);
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $result {
            // SAFETY: rule 1 of `export.rs`.
            if !unsafe { $check($object) } {
                type Real = unsafe extern "C-unwind" fn($($type),*) -> $result;
                static REAL: $crate::real::Function<Real> =
                    $crate::real::Function::new(stringify!($name), $node);
                if let Some(real) = REAL.get() {
                    // SAFETY: the function of this name (rule 4), with the program's arguments.
                    return unsafe { real($($arg),*) };
                }
                return $crate::export::style!($style, Err($crate::errno::Errno(libc::ENOSYS)));
            }
            $crate::export::style!($style, $crate::export::guarded(move || $body))
        }
    };
    ($style:ident waits $node:literal
     fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty,
     of $object:ident is $check:path, $body:block) => {
        $crate::export::versioned!($node $name);
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $result {
            // SAFETY: rule 1 of `export.rs`.
            if !unsafe { $check($object) } {
                type Real = unsafe extern "C-unwind" fn($($type),*) -> $result;
                static REAL: $crate::real::Function<Real> =
                    $crate::real::Function::new(stringify!($name), $node);
                if let Some(real) = REAL.get() {
                    // SAFETY: the function of this name (rule 4), with the program's arguments.
                    return unsafe { real($($arg),*) };
                }
                return $crate::export::style!($style, Err($crate::errno::Errno(libc::ENOSYS)));
            }
            $crate::export::style!($style, $crate::waiting::until(&move || $body))
        }
    };
    ($style:ident $node:literal
     fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty,
     of $object:ident $body:block) => {
        $crate::export::export!($style $node fn $name($($arg: $type),*) -> $result,
            of $object is $crate::export::is_ours, $body);
    };
}

/// A function without a name of its own in the interface: programs find it behind a pointer in one of our structures.
/// One that is `quick` is called for every message ([`caught`]).
macro_rules! entry {
    ($style:ident quick fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty $body:block) => {
        pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            $crate::export::style!($style, $crate::export::caught(move || $body))
        }
    };
    ($style:ident fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty $body:block) => {
        pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            $crate::export::style!($style, $crate::export::guarded(move || $body))
        }
    };
}

pub(crate) use {entry, export, style, versioned};
