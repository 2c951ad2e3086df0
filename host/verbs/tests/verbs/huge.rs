//! Huge pages behind large buffers: used where the system has them, and not missed where it has not.
//!
//! # Safety
//!
//! Registered pages are mapped until their region is gone, and only regions are used to look at them.

use crate::pair::{Setup, bytes_of, pattern, remote};
use crate::path::Path;
use adverb_sys::memory::Mapping;
use adverb_verbs::{Access, Mr, Pd, WcStatus, Work};
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

/// Registered memory that was not touched.
type Make = fn(&Pd) -> (Mr, Option<Mapping>);

fn allocated(pd: &Pd) -> (Mr, Option<Mapping>) {
    (pd.allocate(LEN, Access::ALL).expect("memory"), None)
}

/// The caller's, which keeps it.
fn registered(pd: &Pd) -> (Mr, Option<Mapping>) {
    let pages = Mapping::anonymous(LEN).expect("memory");
    // SAFETY: the caller drops the pages after the region, and has but their address.
    let mr = unsafe { pd.register(pages.as_ptr(), LEN, Access::ALL) };
    (mr.expect("room for a region"), Some(pages))
}

/// Goal: large buffers lie in huge pages where the system gives them on request, and work alike where it
/// does not. Method: the kernel's own account; memory of one's own, memory that neighbours map, for which
/// systems have different settings, and the caller's memory, registered before it is touched.
#[test]
fn large_buffers_lie_in_huge_pages_where_there_are_any() {
    let own = ("enabled", ["always", "madvise"].as_slice());
    let mapped = ("shmem_enabled", ["always", "within_size", "advise", "force"].as_slice());
    let cases: [(Path, _, Make); 3] = [
        (Path::Ring, own, allocated),
        (Path::SharedMemory, mapped, allocated),
        (Path::SharedMemory, own, registered),
    ];
    for (path, (setting, asks), make) in cases {
        let pair = Setup { path: Some(path), ..Setup::default() }.pair();
        let buffer = |_| {
            let (mr, pages) = make(&pair.b.pd);
            mr.write(0, &pattern(1, LEN)).expect("it fits");
            (mr, pages)
        };
        let buffers: Vec<_> = (0..TRIES).map(buffer).collect();
        let huge = buffers.iter().map(|(mr, _)| huge_bytes(mr)).max().expect("some");
        let system = chosen(setting);
        println!("{path:?}: {setting} is {system}, {huge} bytes in huge pages");
        if asks.contains(&system.as_str()) {
            assert!(huge > 0, "the system would give them");
        }
        let data = pattern(2, LEN);
        for (mr, _) in &buffers {
            let write = Work::write(pair.a.buffer(&data), remote(mr));
            pair.a.qp.post(write).expect("room");
            assert_eq!(pair.a.status(), WcStatus::Success);
            assert!(bytes_of(mr, 0, LEN) == data);
        }
    }
}
