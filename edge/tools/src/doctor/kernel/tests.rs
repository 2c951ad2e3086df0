//! What is found where the kernel refuses a feature: threads that may not make one system call any more.
//!
//! # Safety
//!
//! 1. `prctl(2)` gets numbers, and the address of a structure laid out as `struct sock_fprog` is, which lives during the
//!    call, as its lines do.

use std::ffi::c_ulong;

use super::*;

/// `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Line {
    code: u16,
    jump_if: u8,
    jump_else: u8,
    k: u32,
}

/// `struct sock_fprog`.
#[repr(C)]
struct Filter {
    len: u16,
    lines: *const Line,
}

unsafe extern "C" {
    fn prctl(option: c_int, ...) -> c_int;
}

/// Numbers of calls.
#[cfg(target_arch = "x86_64")]
mod call {
    pub(super) const SOCKET: u32 = 41;
    pub(super) const SETSOCKOPT: u32 = 54;
    pub(super) const GETSOCKOPT: u32 = 55;
    pub(super) const READV: u32 = 310;
    pub(super) const WRITEV: u32 = 311;
    pub(super) const MEMFD_CREATE: u32 = 319;
    pub(super) const BPF: u32 = 321;
    pub(super) const PIDFD_OPEN: u32 = 434;
}
#[cfg(not(target_arch = "x86_64"))]
mod call {
    pub(super) const SOCKET: u32 = 198;
    pub(super) const SETSOCKOPT: u32 = 208;
    pub(super) const GETSOCKOPT: u32 = 209;
    pub(super) const READV: u32 = 270;
    pub(super) const WRITEV: u32 = 271;
    pub(super) const MEMFD_CREATE: u32 = 279;
    pub(super) const BPF: u32 = 280;
    pub(super) const PIDFD_OPEN: u32 = 434;
}

/// What a check finds in a thread for which this call fails by `EPERM`, if its second argument is `second`, or whatever it is.
fn without(
    call: u32,
    second: Option<u32>,
    check: impl FnOnce() -> Finding + Send + 'static,
) -> Finding {
    let line = |code, jump_else, k| Line { code, jump_if: 0, jump_else, k };
    let (is_equal, is_at_least) = (0x15, 0x35);
    let (comparison, level) = second.map_or((is_at_least, 0), |second| (is_equal, second));
    let lines = [
        line(0x20, 0, 0), // The call's number,
        line(is_equal, 3, call),
        line(0x20, 0, 24), // the lower half of its second argument,
        line(comparison, 1, level),
        line(0x06, 0, 0x0005_0001), // SECCOMP_RET_ERRNO, EPERM,
        line(0x06, 0, 0x7fff_0000), // SECCOMP_RET_ALLOW.
    ];
    let confined = std::thread::spawn(move || {
        let filter = Filter { len: 6, lines: lines.as_ptr() };
        let (no_new_privileges, seccomp, mode) = (38, 22, 2);
        let zero: c_ulong = 0;
        let one: c_ulong = 1;
        // SAFETY: the option takes numbers alone (rule 1).
        assert_eq!(unsafe { prctl(no_new_privileges, one, zero, zero, zero) }, 0);
        let mode: c_ulong = mode;
        // SAFETY: `filter` and the six lines that it points to outlive the call (rule 1).
        assert_eq!(unsafe { prctl(seccomp, mode, &raw const filter) }, 0);
        check()
    });
    confined.join().unwrap()
}

fn no_frames() -> Finding {
    frames(&[])
}

/// Goal: each feature that is refused is found missing, with what that costs and what to do. Method: the call that it takes
/// fails, as by a container's filter.
#[test]
fn each_feature_that_is_refused_is_found() {
    type Check = fn() -> Finding;
    let table: [(u32, Option<u32>, Check, Grade, &str); 8] = [
        (call::MEMFD_CREATE, None, files_in_memory, Grade::Broken, "memfd_create"),
        (call::PIDFD_OPEN, None, ends_of_processes, Grade::Costs, "pidfd_open"),
        (call::READV, None, || memory_of_others_under(0), Grade::Costs, "process_vm_readv"),
        (call::WRITEV, None, || memory_of_others_under(0), Grade::Costs, "process_vm_writev"),
        // SOL_UDP alone: sockets can be bound.
        (call::SETSOCKOPT, Some(17), bursts, Grade::Costs, "UDP_GRO is"),
        (call::GETSOCKOPT, Some(17), bursts, Grade::Costs, "UDP_SEGMENT is"),
        (call::BPF, None, no_frames, Grade::Costs, "this process cannot"),
        (call::SOCKET, None, no_frames, Grade::Costs, "AF_XDP"),
    ];
    let wrong = table.into_iter().filter_map(|(call, second, check, grade, word)| {
        let finding = without(call, second, check);
        let is_told = !finding.cost.is_empty() && !finding.cure.is_empty();
        let is_right = finding.grade == grade && finding.found.contains(word) && is_told;
        (!is_right).then_some((call, finding))
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Goal: here, where nothing is refused, the same checks find nothing.
#[test]
fn features_that_are_there_are_good() {
    for check in [files_in_memory, ends_of_processes, bursts] {
        let finding = check();
        assert_eq!(finding.grade, Grade::Good, "{finding:?}");
    }
    if let Err(error) = copy_both_ways() {
        return println!("skipped: memory of processes cannot be copied: {error}");
    }
    assert_eq!(memory_of_others_under(0).grade, Grade::Good);
    assert_eq!(memory_of_others_under(1).grade, Grade::Costs);
}

#[test]
fn an_interface_of_a_daemon_s_is_found_by_its_name() {
    let devices = adverb::verbs::devices().unwrap();
    let device = devices.first().expect("a device");
    let name = |index| format!("0: 2 0 10000 5 1 77 @adverb-xdp.{index}\n");
    assert_eq!(owned(&devices, &name(device.index)), [&*device.interface]);
    assert_eq!(owned(&devices, &name(999_999)), [""; 0]);
}
