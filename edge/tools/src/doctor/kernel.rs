//! What the paths ask of the kernel: each feature is tried, as old kernels, containers' filters of system calls
//! (seccomp) and sysctls take it away alike.
//!
//! # Safety
//!
//! 1. A copy between places of this process has one piece, an array of ours that no other code uses meanwhile.
//! 2. A descriptor that `socket(2)` has just returned belongs to no other owner.

use std::ffi::c_int;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{FromRawFd, OwnedFd};

use adverb::verbs::Device;
use adverb_sys::bpf::{Map, MapKind, Program};
use adverb_sys::memory;
use adverb_sys::udp::{BindOptions, Socket};
use adverb_sys::vm::{self, Direction, Piece};
use adverb_xdp::owner::name_of;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::{Finding, Grade, number};

/// Files in memory, sealed: what processes of one host share.
pub(super) fn files_in_memory() -> Finding {
    const CHECK: &str = "files in memory";
    let tried = memory::memfd("adverb-doctor", 0).and_then(memory::seal_for_readers);
    match tried {
        Ok(()) => Finding::good(CHECK, "memfd_create(2) makes them, and seals hold"),
        Err(error) => Finding {
            check: CHECK,
            grade: Grade::Broken,
            found: error.to_string(),
            cost: "no device opens: processes share memory by such files",
            cure: "Linux 5.1 or newer, and memfd_create(2) allowed by seccomp (the container's profile) and by vm.memfd_noexec".into(),
        },
    }
}

/// Bursts that the kernel cuts into datagrams, and puts together again.
pub(super) fn bursts() -> Finding {
    const CHECK: &str = "bursts by UDP";
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let (grade, found) = match Socket::bind(&BindOptions::new(any)) {
        Err(error) => (Grade::Broken, format!("no UDP socket: {error}")),
        Ok(socket) => match (socket.gso(), socket.gro()) {
            (true, true) => {
                return Finding::good(
                    CHECK,
                    "leave and arrive in one piece (UDP_SEGMENT, UDP_GRO)",
                );
            }
            (true, false) => (Grade::Costs, "UDP_GRO is not to be had".to_owned()),
            (false, true) => (Grade::Costs, "UDP_SEGMENT is not to be had".to_owned()),
            (false, false) => {
                (Grade::Costs, "UDP_SEGMENT and UDP_GRO are not to be had".to_owned())
            }
        },
    };
    Finding {
        check: CHECK,
        grade,
        found,
        cost: "the path udp takes a system call for each packet: a fraction of its bandwidth",
        cure: "Linux 5.0 or newer, and socket options of UDP allowed by the container's runtime"
            .into(),
    }
}

/// Descriptors of processes, by which it is noticed that one has ended.
pub(super) fn ends_of_processes() -> Finding {
    const CHECK: &str = "ends of processes";
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(_) => Finding::good(CHECK, "pidfd_open(2) tells them"),
        Err(error) => Finding {
            check: CHECK,
            grade: Grade::Costs,
            found: format!("pidfd_open(2): {error}"),
            cost: "a peer that was killed counts as running until its parent has waited for it; the daemon of adverb sockets takes programs that run for ended",
            cure:
                "Linux 5.3 or newer, and pidfd_open(2) allowed by the container's seccomp profile"
                    .into(),
        },
    }
}

/// Whether processes of a user may copy from and to one another's memory.
pub(super) fn memory_of_others() -> Finding {
    let scope = number("/proc/sys/kernel/yama/ptrace_scope").unwrap_or(0);
    memory_of_others_under(scope)
}

/// The same, with yama's setting.
fn memory_of_others_under(ptrace_scope: u64) -> Finding {
    let (found, cure) = match (copy_both_ways(), ptrace_scope) {
        (Ok(()), 0) => {
            return Finding::good(
                "memory of other processes",
                "a process may copy it, of the same user",
            );
        }
        (Ok(()), scope) => {
            (format!("kernel.yama.ptrace_scope is {scope}"), "sysctl kernel.yama.ptrace_scope=0")
        }
        (Err(error), _) => (
            format!("process_vm_readv(2) and process_vm_writev(2): {error}"),
            "allow both calls in the container's seccomp profile; a kernel with CONFIG_CROSS_MEMORY_ATTACH",
        ),
    };
    Finding {
        check: "memory of other processes",
        grade: Grade::Costs,
        found,
        cost: "long messages in memory of a program's own are copied through a ring: about half the bandwidth",
        cure: cure.into(),
    }
}

/// Copies a few bytes of this process from one place to another by the calls for other processes, and back. Yama asks
/// nothing of a process that looks at itself.
fn copy_both_ways() -> io::Result<()> {
    let mut there = [7_u8; 8];
    let mut here = [0_u8; 8];
    let address = u64::try_from(there.as_mut_ptr().expose_provenance()).unwrap_or(0);
    let pieces = [Piece { start: here.as_mut_ptr(), len: here.len() }];
    // SAFETY: `here` is written to, an array of this function that is not looked at meanwhile (rule 1).
    unsafe { vm::copy(std::process::id(), Direction::Read, &pieces, address) }?;
    // SAFETY: `here` is read, and `there` is not looked at any more (rule 1).
    unsafe { vm::copy(std::process::id(), Direction::Write, &pieces, address) }
}

/// Frames past the kernel: the path and the transport xdp.
pub(super) fn frames(devices: &[Device]) -> Finding {
    const CHECK: &str = "frames (path xdp)";
    let names = super::read("/proc/thread-self/net/unix").unwrap_or_default();
    let owned = owned(devices, &names);
    if !owned.is_empty() {
        return Finding::good(CHECK, format!("a daemon hands out those of {}", owned.join(", ")));
    }
    match take_frames() {
        Ok(()) => Finding::good(CHECK, "this process may take those of an interface"),
        Err((what, error)) => Finding {
            check: CHECK,
            grade: Grade::Costs,
            found: format!("no daemon owns an interface, and this process cannot: {what}: {error}"),
            cost: "there is no path xdp: short messages to other hosts go by the kernel's UDP",
            cure: "adverb sockets daemon --interface NAME by root, or CAP_NET_ADMIN, CAP_BPF and CAP_NET_RAW; a kernel with CONFIG_XDP_SOCKETS"
                .into(),
        },
    }
}

/// Interfaces that a daemon has, by the names of its sockets in `/proc/net/unix`.
fn owned<'a>(devices: &'a [Device], names: &str) -> Vec<&'a str> {
    let is_owned = |device: &&Device| {
        let name = name_of(device.index);
        names
            .lines()
            .any(|line| line.rsplit_once('@').is_some_and(|(_, found)| found.as_bytes() == &*name))
    };
    devices.iter().filter(is_owned).map(|device| &*device.interface).collect()
}

/// Makes what it takes to have frames, without an interface, and drops it.
fn take_frames() -> Result<(), (&'static str, io::Error)> {
    // SAFETY: the call takes three numbers, and touches no memory of this process.
    let fd = unsafe { socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(("an AF_XDP socket", io::Error::last_os_error()));
    }
    // SAFETY: the call has just returned it, and nothing else closes it (rule 2).
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Map::create(MapKind::XdpSockets, 4, 4, 1).map_err(|error| ("a table of bpf(2)", error))?;
    Program::load_xdp(&PASS_ALL).map_err(|error| ("a program of bpf(2)", error))?;
    Ok(())
}

unsafe extern "C" {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
}

const AF_XDP: c_int = 44;
const SOCK_RAW: c_int = 3;
const SOCK_CLOEXEC: c_int = 0o2_000_000;
/// `r0 = XDP_PASS; exit` (RFC 9669).
const PASS_ALL: [u64; 2] = [0x0000_0002_0000_00b7, 0x95];

#[cfg(test)]
mod tests;
