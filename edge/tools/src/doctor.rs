//! `adverb doctor`: what this machine lacks, what that costs, and what to do about it.
//!
//! Each check answers with a [`Finding`]. None changes anything.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;

use clap::Parser;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::json;

/// Options of `adverb doctor`.
#[derive(Debug, Parser)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Grade {
    /// As it should be.
    Good,
    /// It works, and something costs.
    Costs,
    /// Something does not work.
    Broken,
}

impl Grade {
    const fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Costs => "costs",
            Self::Broken => "broken",
        }
    }
}

/// What a check has found.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    grade: Grade,
    /// What is so.
    found: String,
    /// What that costs; empty if nothing.
    cost: &'static str,
    /// What to do; empty if nothing.
    cure: &'static str,
}

impl Finding {
    fn good(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, grade: Grade::Good, found: found.into(), cost: "", cure: "" }
    }
}

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let findings = [
        devices(),
        port(),
        kernel_roce(),
        memory_of_others(),
        shared_memory(),
        descriptors(),
        file_sizes(),
        huge_pages(),
        processors(),
        namespaces(),
        receive_buffers(),
        hardware(),
        rdma_cm(),
        leftovers(),
    ];
    if args.json {
        print!("{}", json(serde_json::json!({ "findings": findings }))?);
    } else {
        for Finding { check, grade, found, cost, cure } in &findings {
            println!("{:<7} {check}: {found}", grade.word());
            for (what, text) in [("cost", cost), ("cure", cure)] {
                if !text.is_empty() {
                    println!("        {what}: {text}");
                }
            }
        }
    }
    match findings.iter().any(|finding| finding.grade == Grade::Broken) {
        true => Err(Failure::Told),
        false => Ok(()),
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number(path: &str) -> Option<u64> {
    read(path)?.parse().ok()
}

fn devices() -> Finding {
    const CHECK: &str = "devices";
    let names: Vec<_> = adverb::verbs::devices()
        .unwrap_or_default()
        .into_iter()
        .map(|device| device.name)
        .collect();
    if names.is_empty() {
        return Finding {
            check: CHECK,
            grade: Grade::Broken,
            found: "no network interface that is up has an address".to_owned(),
            cost: "there is no device",
            cure: "ip link set lo up",
        };
    }
    Finding::good(CHECK, names.join(", "))
}

/// The port of RoCE is free, or shared with devices of this user.
fn port() -> Finding {
    const CHECK: &str = "UDP port 4791";
    match UdpSocket::bind(("127.0.0.1", ROCE_PORT)) {
        Ok(_) => Finding::good(CHECK, "free on 127.0.0.1"),
        Err(_) if adverb::verbs::Context::open("soft_lo").is_ok() => {
            Finding::good(CHECK, "used by Adverb's devices of this user, which share it")
        }
        Err(error) => Finding {
            check: CHECK,
            grade: Grade::Broken,
            found: format!("taken: {error}"),
            cost: "no connection by UDP from this network namespace",
            cure: "unload rdma_rxe, end the other user's programs, or use another network namespace",
        },
    }
}

const ROCE_PORT: u16 = 4791;

fn kernel_roce() -> Finding {
    const CHECK: &str = "kernel's RoCE driver";
    if !Path::new("/sys/module/rdma_rxe").exists() {
        return Finding::good(CHECK, "not loaded");
    }
    Finding {
        check: CHECK,
        grade: Grade::Costs,
        found: "rdma_rxe is loaded".to_owned(),
        cost: "it owns UDP port 4791 in this network namespace, so devices on its addresses do not open",
        cure: "rmmod rdma_rxe, or run in another network namespace",
    }
}

/// Whether processes of a user may copy from and to one another's memory (process_vm_readv(2)).
fn memory_of_others() -> Finding {
    const CHECK: &str = "memory of other processes";
    match number("/proc/sys/kernel/yama/ptrace_scope") {
        None | Some(0) => Finding::good(CHECK, "a process may copy it, of the same user"),
        Some(scope) => Finding {
            check: CHECK,
            grade: Grade::Costs,
            found: format!("kernel.yama.ptrace_scope is {scope}"),
            cost: "long messages in memory of a program's own are copied through a ring: about half the bandwidth",
            cure: "sysctl kernel.yama.ptrace_scope=0",
        },
    }
}

fn shared_memory() -> Finding {
    const CHECK: &str = "shared memory";
    let place = format!("/dev/shm/adverb-doctor-{}", std::process::id());
    let bytes = [0; 4096];
    let allowed = adverb_sys::process::may_make(4096).map_err(std::io::Error::from);
    let made = allowed.and_then(|()| fs::write(&place, bytes));
    let _ = fs::remove_file(&place);
    match made {
        Ok(()) => Finding::good(CHECK, "/dev/shm can be written to"),
        Err(error) => Finding {
            check: CHECK,
            grade: Grade::Costs,
            found: format!("/dev/shm: {error}"),
            cost: "the files that programs look for in /sys/class/infiniband are not shown; devices do without it",
            cure: "mount a tmpfs at /dev/shm, or set TMPDIR",
        },
    }
}

/// Bytes of the largest file that every device makes, rounded up.
const FILE_BYTES_MIN: u64 = 128 << 20;
/// Descriptors that a process with many queues and neighbours takes.
const DESCRIPTORS_FEW: usize = 1024;

fn descriptors() -> Finding {
    const CHECK: &str = "descriptors";
    let most = adverb_sys::process::descriptors_max();
    if most > DESCRIPTORS_FEW {
        return Finding::good(CHECK, format!("{most} a process"));
    }
    Finding {
        check: CHECK,
        grade: Grade::Costs,
        found: format!("{most} a process"),
        cost: "with hundreds of neighbours or channels, connections go by UDP or fail",
        cure: "ulimit -n 65536",
    }
}

fn file_sizes() -> Finding {
    const CHECK: &str = "file sizes";
    let Some(most) = adverb_sys::process::file_bytes_max() else {
        return Finding::good(CHECK, "without a limit");
    };
    Finding {
        check: CHECK,
        grade: if most < FILE_BYTES_MIN { Grade::Broken } else { Grade::Costs },
        found: format!("at most {most} bytes"),
        cost: "shared memory is in files: no device opens, or no larger memory can be shared",
        cure: "ulimit -f unlimited",
    }
}

fn huge_pages() -> Finding {
    const CHECK: &str = "huge pages";
    let state = read("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if state.contains("[always]") || state.contains("[madvise]") {
        return Finding::good(CHECK, "given where they are asked for");
    }
    Finding {
        check: CHECK,
        grade: Grade::Costs,
        found: if state.is_empty() { "not known to this kernel".to_owned() } else { state },
        cost: "long messages between processes come at half the bandwidth",
        cure: "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    }
}

fn processors() -> Finding {
    const CHECK: &str = "processors";
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    if count > 1 {
        return Finding::good(CHECK, count.to_string());
    }
    Finding {
        check: CHECK,
        grade: Grade::Costs,
        found: "one".to_owned(),
        cost: "two programs that poll take turns: a round trip takes as long as the scheduler does",
        cure: "give the container two processors, or wait for events instead of polling",
    }
}

fn namespaces() -> Finding {
    const CHECK: &str = "network namespace";
    let (own, first) = (fs::read_link("/proc/self/ns/net"), fs::read_link("/proc/1/ns/net"));
    let found = match (own, first) {
        (Ok(own), Ok(first)) if own == first => "that of the first process",
        (Ok(_), Ok(_)) => "one of its own: peers in others are reached by UDP",
        (Ok(_), Err(_)) | (Err(_), _) => "not known: /proc/1/ns/net cannot be read",
    };
    Finding::good(CHECK, found)
}

/// Bytes of a receive buffer below which bursts are lost.
const RECEIVE_FEW: u64 = 1 << 20;

fn receive_buffers() -> Finding {
    const CHECK: &str = "receive buffers";
    let most = number("/proc/sys/net/core/rmem_max").unwrap_or(u64::MAX);
    if most >= RECEIVE_FEW {
        return Finding::good(CHECK, format!("up to {most} bytes a socket"));
    }
    Finding {
        check: CHECK,
        grade: Grade::Costs,
        found: format!("net.core.rmem_max is {most}"),
        cost: "bursts by UDP overrun a receiver that is late, and are sent again",
        cure: "sysctl net.core.rmem_max=4194304",
    }
}

fn hardware() -> Finding {
    const CHECK: &str = "RDMA of the kernel's";
    let names = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let names: Vec<_> =
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let none = "none; software devices need none".to_owned();
    Finding::good(CHECK, if names.is_empty() { none } else { names.join(", ") })
}

/// librdmacm, which programs on rdma_cm bring their calls through.
fn rdma_cm() -> Finding {
    const CHECK: &str = "librdmacm";
    let directories = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
    ];
    let mut places = directories.map(|place| Path::new(place).join("librdmacm.so.1")).into_iter();
    match places.find(|place| place.exists()) {
        Some(place) => Finding::good(CHECK, place.display().to_string()),
        None => Finding::good(CHECK, "not installed; only programs on rdma_cm need it"),
    }
}

/// Files of runs that were killed.
fn leftovers() -> Finding {
    const CHECK: &str = "leftovers";
    let files = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let count = files
        .filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.starts_with("adverb-ibverbs-") && name.contains("-new-")
        })
        .count();
    if count == 0 {
        return Finding::good(CHECK, "none");
    }
    Finding {
        check: CHECK,
        grade: Grade::Costs,
        found: format!("{count} directories in /dev/shm that no process completes"),
        cost: "a few kilobytes of memory each",
        cure: "rm -r /dev/shm/adverb-ibverbs-*-new-*",
    }
}
