//! `adverb doctor`: what this machine lacks, what that costs, and what to do about it.
//!
//! Each check answers with a [`Finding`]. None changes anything.
//!
//! ```text
//! kernel         features that paths use, each of them tried
//! leftovers      files that no process uses
//! ports          UDP port 4791 of all addresses
//! shared_memory  /dev/shm
//! ```

mod kernel;
mod leftovers;
mod ports;
mod shared_memory;

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::Path;

use adverb::verbs::Device;
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
    cure: Cow<'static, str>,
}

impl Finding {
    fn good(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, grade: Grade::Good, found: found.into(), cost: "", cure: "".into() }
    }
}

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let all = adverb::verbs::devices().unwrap_or_default();
    let port = ports::Port::look(&all);
    let findings = [
        devices(&all),
        port.finding(),
        port.kernel_roce(Path::new("/sys/module/rdma_rxe")),
        kernel::files_in_memory(),
        kernel::bursts(),
        kernel::memory_of_others(),
        kernel::ends_of_processes(),
        kernel::frames(&all),
        shared_memory::tree(),
        shared_memory::room(),
        descriptors(),
        file_sizes(),
        huge_pages(),
        processors(),
        namespaces(),
        receive_buffers(),
        hardware(),
        rdma_cm(),
        leftovers::leftovers(),
    ];
    if args.json {
        print!("{}", json(serde_json::json!({ "findings": findings }))?);
    } else {
        for Finding { check, grade, found, cost, cure } in &findings {
            println!("{:<7} {check}: {found}", grade.word());
            for (what, text) in [("cost", *cost), ("cure", cure)] {
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

fn devices(all: &[Device]) -> Finding {
    const CHECK: &str = "devices";
    let names: Vec<_> = all.iter().map(|device| &*device.name).collect();
    if names.is_empty() {
        return Finding {
            check: CHECK,
            grade: Grade::Broken,
            found: "no network interface that is up has an address".to_owned(),
            cost: "there is no device",
            cure: "ip link set lo up".into(),
        };
    }
    Finding::good(CHECK, names.join(", "))
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
        cure: "ulimit -n 65536".into(),
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
        cure: "ulimit -f unlimited".into(),
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
        cure: "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled".into(),
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
        cure: "give the container two processors, or wait for events instead of polling".into(),
    }
}

fn namespaces() -> Finding {
    let [own, first] = ["/proc/self/ns/net", "/proc/1/ns/net"].map(fs::read_link);
    namespace(own.and_then(|own| Ok(own == first?)))
}

/// Whether the network namespace is that of the first process.
fn namespace(is_first: io::Result<bool>) -> Finding {
    const CHECK: &str = "network namespace";
    let (found, cure) = match is_first {
        Ok(true) => return Finding::good(CHECK, "that of the first process"),
        Ok(false) => (
            "one of its own".to_owned(),
            "run both in one namespace if they are to share memory: --network of containers, nsenter -n",
        ),
        Err(error) => (
            format!("not known whether it is one of its own: /proc/1/ns/net: {error}"),
            "readlink /proc/PID/ns/net says of each program which one it has; this check takes CAP_SYS_PTRACE",
        ),
    };
    Finding {
        check: CHECK,
        grade: Grade::Costs,
        found,
        cost: "peers in other network namespaces are reached by UDP, and not by shared memory",
        cure: cure.into(),
    }
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
        cure: "sysctl net.core.rmem_max=4194304".into(),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what cannot be seen is not said to be good.
    #[test]
    fn a_namespace_that_is_not_known_is_not_good() {
        let unknown = namespace(Err(io::ErrorKind::PermissionDenied.into()));
        let [own, first] = [false, true].map(|is_first| namespace(Ok(is_first)));
        assert_eq!(
            [unknown.grade, own.grade, first.grade],
            [Grade::Costs, Grade::Costs, Grade::Good]
        );
        assert!(unknown.found.contains("not known"), "{unknown:?}");
    }
}
