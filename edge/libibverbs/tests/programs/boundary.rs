//! What may not cross the boundary to C: panics, and what peers send.

use super::compiled::Compiled;
use super::stranger::{PEERS, Stranger};
use super::support;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// Goal: a panic becomes the failure that the function is documented to have, and the library goes on. Method: a hook
/// of builds with debug assertions makes every call of a thread panic; a program of C goes through exported functions,
/// those of tables, `ibv_wr_*` and `ibv_wc_read_*`, and then uses the same objects.
#[test]
fn a_panic_becomes_a_failure_and_the_program_goes_on() {
    let Some(program) = Compiled::new("panics", &["-libverbs", "-ldl"]) else {
        return;
    };
    let set = [("ADVERB_DEVICES", "soft_lo"), ("ADVERB_EXPLAIN", "0")];
    let output = support::command(program.path()).envs(set).output().unwrap();
    if output.status.code() == Some(77) {
        println!("skipped: no hook for panics: the library was built without debug assertions");
        return;
    }
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{said}", output.status);
}

/// Functions without a guard, because there is nothing in them that can panic: a lock, a constant, a jump, the end of the
/// program; or they call one that has a guard.
const BARE: [&str; 15] = [
    "$name", // `words.rs`: names of numbers; `forward.rs`: a jump. Those of other macros have guards.
    "$ours", // `files.rs`: the C library's function, behind a guarded look at the path.
    "abort",
    "adverb_provoke_panics",
    "dlopen",
    "end_poll",
    "fstat",
    "ibv_ack_async_event",
    "ibv_get_sysfs_path",
    "missing",
    "missing_pointer",
    "reached",
    "resolve",
    "start",
    "visit",
];

#[test]
fn every_function_that_c_calls_has_a_guard() {
    let mut unguarded = Vec::new();
    sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut |text| {
        let text = text.replace("\"C-unwind\"", "\"C\"");
        for function in text.split("extern \"C\" fn ").skip(1) {
            let name = function.split('(').next().unwrap();
            let body = function.split("\n}\n").next().unwrap();
            let has = ["guarded(", "caught(", "catch_unwind(", "until(", "step(", "received("];
            if !name.is_empty() && !has.iter().any(|guard| body.contains(guard)) {
                unguarded.push(name.to_owned());
            }
        }
    });
    unguarded.sort_unstable();
    unguarded.dedup();
    assert_eq!(unguarded, BARE);
}

fn sources(directory: &Path, each: &mut dyn FnMut(&str)) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, each),
            false => each(&std::fs::read_to_string(&path).unwrap()),
        }
    }
}

/// Datagrams of a burst.
const BURST: u64 = 20_000;
/// By how much a server may grow in all bursts but the first, in bytes.
const GROWTH_MAX: u64 = 1 << 20;

/// Goal: a server of C goes on whatever its peers send, and its memory does not grow. Method: datagrams with a sound
/// checksum and everything else by chance (opcodes of all transports, keys, addresses, lengths, sequence numbers), half of
/// them of the form that the transport has, for queue pairs of every type that wait for requests and for answers.
#[test]
fn a_server_of_c_survives_whatever_its_peers_send() {
    let Some(program) = Compiled::new("server", &["-libverbs"]) else {
        return;
    };
    let set = [("ADVERB_DEVICES", "soft_lo"), ("ADVERB_PATH", "udp"), ("ADVERB_EXPLAIN", "0")];
    let mut command = support::command(program.path());
    let mut child = command.envs(set).stdin(Stdio::piped()).spawn().unwrap();
    let mut server = Server {
        input: child.stdin.take().unwrap(),
        lines: BufReader::new(child.stdout.take().unwrap()).lines(),
        child,
    };
    let told = server.numbers();
    let (queue_pairs, memory) = told.split_at(told.len() - 3);
    let stranger = Stranger::at(PEERS);
    let mut random = Random(SEED);
    let mut resident = Vec::new();
    let mut happened = Vec::new();
    for _ in 0..4 {
        for at in 0..BURST {
            stranger.send(&nonsense(&stranger, &mut random, queue_pairs, memory));
            if at % 64 == 0 {
                server.report(); // What it has not taken would be dropped.
            }
        }
        happened = server.report();
        resident.push(happened[0]);
    }
    let [_, completions, failures, events, restarts] = happened[..] else {
        panic!("{happened:?}");
    };
    assert!(completions > 0 && failures > 0 && events > 0 && restarts > 0, "{happened:?}");
    let growth = resident[3].saturating_sub(resident[0]);
    assert!(growth < GROWTH_MAX, "seed {SEED:#x}: {resident:?} bytes");
    writeln!(server.input, "q").unwrap();
    assert_eq!(server.lines.next().unwrap().unwrap(), "sound");
    let output = support::ended(server.child);
    assert!(output.status.success(), "seed {SEED:#x}: {output:?}");
}

const SEED: u64 = 0x5eed_0024;

/// The server, with its standard input and output.
struct Server {
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    child: Child,
}

impl Server {
    fn numbers(&mut self) -> Vec<u64> {
        let Some(line) = self.lines.next() else { self.has_ended() };
        line.unwrap().split_whitespace().map(|number| number.parse().unwrap()).collect()
    }

    fn report(&mut self) -> Vec<u64> {
        match write!(self.input, "r") {
            Ok(()) => self.numbers(),
            Err(_) => self.has_ended(),
        }
    }

    fn has_ended(&mut self) -> ! {
        let mut said = String::new();
        let stderr = self.child.stderr.take();
        let _ = stderr.map(|mut stderr| stderr.read_to_string(&mut said)); // It may not be text.
        panic!("seed {SEED:#x}: {:?}\n{said}", self.child.wait());
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Number of the transport in an opcode, for the server's queue pairs in their order.
const TRANSPORTS: [u8; 5] = [0b000, 0b000, 0b001, 0b011, 0b101];

/// A datagram: RoCE's headers, then bytes that mean an address, a key and a length in most of them.
fn nonsense(stranger: &Stranger, random: &mut Random, pairs: &[u64], memory: &[u64]) -> Vec<u8> {
    let at = usize::try_from(random.below(5)).unwrap();
    let operation = u8::try_from(random.below(32)).unwrap();
    let transport = match random.below(8) {
        0 => u8::try_from(random.below(8)).unwrap(),
        _ => TRANSPORTS[at],
    };
    let qpn = u32::try_from(pairs[at]).unwrap().to_be_bytes();
    let near = u32::try_from(random.below(16)).unwrap().wrapping_sub(4).to_be_bytes();
    let psn = match random.below(4) {
        0 => u32::try_from(random.next() >> 32).unwrap().to_be_bytes(),
        _ => near,
    };
    let mut datagram = vec![transport << 5 | operation, 0x40, 0xff, 0xff];
    datagram.extend([0, qpn[1], qpn[2], qpn[3], 0x80, psn[1], psn[2], psn[3]]);
    match transport {
        0b011 => datagram.extend([0x11, 0x11, 0x11, 0x11, 0, 0, 0, 0x55]),
        0b101 => datagram.extend(u32::try_from(memory[2]).unwrap().to_be_bytes()),
        _ => {}
    }
    match random.below(3) {
        0 => {} // No more headers.
        1 => datagram.extend(u32::try_from(random.next() >> 32).unwrap().to_be_bytes()), // As an AETH.
        _ => {
            let va = memory[0].wrapping_add(random.below(1 << 17)).wrapping_sub(1 << 14);
            datagram.extend(va.to_be_bytes());
            datagram.extend(u32::try_from(memory[1]).unwrap().to_be_bytes());
            datagram.extend(u32::try_from(random.below(1 << 14)).unwrap().to_be_bytes());
        }
    }
    let len = [0, 4, 16, 64, 256, 1024, 4096, 4500][usize::try_from(random.below(8)).unwrap()];
    datagram.extend((0..len).map(|at: u64| at.to_le_bytes()[0]));
    for _ in 0..random.below(3) {
        let at = usize::try_from(random.below(24)).unwrap();
        if let Some(byte) = datagram.get_mut(at).filter(|_| !(5..8).contains(&at)) {
            *byte = random.next().to_le_bytes()[0];
        }
    }
    datagram.extend([0; 4]);
    stranger.seal(&mut datagram);
    datagram
}
