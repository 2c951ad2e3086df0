//! Huge pages behind large buffers: used where the system has them, and not missed where it has not.

use crate::pair::{Setup, bytes_of, pattern, remote};
use crate::path::Path;
use adverb_verbs::{Access, Mr, WcStatus, Work};
use std::fs::read_to_string;

const LEN: usize = 8 << 20;
/// Buffers to try: free memory may lie in pieces.
const TRIES: usize = 4;
const SYSTEM: &str = "/sys/kernel/mm/transparent_hugepage";

/// The choice in brackets.
fn chosen(what: &str) -> String {
    let text = read_to_string(format!("{SYSTEM}/{what}")).unwrap_or_default();
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    chosen.map(|(chosen, _)| chosen.to_owned()).unwrap_or_default()
}

/// Bytes of huge pages behind a buffer, and behind those that lie next to it.
fn huge_bytes(mr: &Mr) -> usize {
    let maps = read_to_string("/proc/self/smaps").expect("proc");
    let (mut within, mut kib) = (false, 0);
    for line in maps.lines() {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        if let Some((start, end)) = first.split_once('-') {
            let address = |text| u64::from_str_radix(text, 16).expect("an address");
            within = (address(start)..address(end)).contains(&mr.addr());
        } else if within && ["AnonHugePages:", "ShmemPmdMapped:"].contains(&first) {
            kib += rest.trim().trim_end_matches(" kB").parse::<usize>().expect("a number");
        }
    }
    kib << 10
}

/// Goal: large buffers lie in huge pages where the system gives them to who asks, and work alike where it
/// does not. Method: the kernel's own account; memory of one's own, and memory that neighbours map, for
/// which systems have different settings.
#[test]
fn large_buffers_lie_in_huge_pages_where_there_are_any() {
    for (path, setting, asks) in [
        (Path::Ring, "enabled", ["always", "madvise"].as_slice()),
        (Path::SharedMemory, "shmem_enabled", &["always", "within_size", "advise", "force"]),
    ] {
        let pair = Setup { path: Some(path), ..Setup::default() }.pair();
        let allocate = || {
            let mr = pair.b.pd.allocate(LEN, Access::ALL).expect("memory");
            mr.write(0, &pattern(1, LEN)).expect("it fits");
            mr
        };
        let buffers: Vec<_> = (0..TRIES).map(|_| allocate()).collect();
        let huge = buffers.iter().map(huge_bytes).max().expect("some");
        let system = chosen(setting);
        println!("{path:?}: {setting} is {system}, {huge} bytes in huge pages");
        if asks.contains(&system.as_str()) {
            assert!(huge > 0, "the system would give them");
        }
        let data = pattern(2, LEN);
        for mr in &buffers {
            let write = Work::write(pair.a.buffer(&data), remote(mr));
            pair.a.qp.post(write).expect("room");
            assert_eq!(pair.a.status(), WcStatus::Success);
            assert!(bytes_of(mr, 0, LEN) == data);
        }
    }
}
