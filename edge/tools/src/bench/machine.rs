//! The machine that figures belong to.

use serde::{Deserialize, Serialize};

use super::cpu;

/// What a reader of figures has to know about where they come from.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Machine {
    /// The processor's own name.
    pub(crate) cpu: String,
    /// Processors that this process may use.
    pub(crate) cpus: usize,
    /// Release of the kernel.
    pub(crate) kernel: String,
    /// Memory of the machine, in bytes.
    pub(crate) memory_bytes: u64,
    /// Version of this program.
    pub(crate) adverb: String,
    /// Whether each end was bound to one processor.
    pub(crate) pinned: bool,
    /// RDMA device.
    pub(crate) device: String,
    /// Path MTU in bytes.
    pub(crate) mtu: u16,
}

impl Machine {
    /// Asks the kernel. What it does not tell is "unknown" or 0, as are device and MTU until
    /// one was opened.
    pub(crate) fn look(pinned: bool) -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let memory_kib = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|text| text.trim_end_matches("kB").trim().parse::<u64>().ok());
        let release = read("/proc/sys/kernel/osrelease");
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(unknown),
            cpus: cpu::count(),
            kernel: Some(release.trim().to_owned())
                .filter(|r| !r.is_empty())
                .unwrap_or_else(unknown),
            memory_bytes: memory_kib.unwrap_or(0).saturating_mul(1024),
            adverb: env!("CARGO_PKG_VERSION").to_owned(),
            pinned,
            device: String::new(),
            mtu: 0,
        }
    }
}

/// The value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn unknown() -> String {
    "unknown".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_name_counts() {
        let text = "processor\t: 0\nmodel name\t: A: fast one\nmodel name\t: another\n";
        assert_eq!(field(text, "model name").as_deref(), Some("A: fast one"));
        assert_eq!(field(text, "model"), None);
        assert_eq!(field("", "model"), None);
    }

    #[test]
    fn this_machine_has_processors_memory_and_a_kernel() {
        let machine = Machine::look(false);
        assert!(machine.cpus > 0 && machine.memory_bytes > 0, "{machine:?}");
        assert_ne!(machine.kernel, "unknown");
    }
}
