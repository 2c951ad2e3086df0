//! `ADVERB_PCAP`: the file is sound, and other programs can read it.

use crate::agent::Agent;
use crate::alone::{alone, program};
use crate::pair::Setup;
use adverb_wire::ip::Datagram;
use adverb_wire::{Operation, Packet};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file that is gone when the test is over.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let file = format!("adverb-test-{name}-{}.pcapng", std::process::id());
        Self(std::env::temp_dir().join(file))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The traffic class of all packets.
const CLASS: u8 = 0x28;

/// Two processes do one of everything; the first one's traffic is captured.
fn record(path: &Path, gid_index: u8) {
    let mut command = Command::new(program());
    command.env("ADVERB_PCAP", path);
    let setup = Setup { gid_index, traffic_class: CLASS, ..Setup::default() };
    let mut a = Agent::start_by(command, "soft_lo", gid_index);
    let mut b = Agent::start("soft_lo", gid_index);
    let (x, y) = Agent::introduce(&mut a, &mut b, &setup);
    let far = b.memory();
    let (qp, addr, rkey) = (x.index, far.addr, far.rkey.0);
    for len in [0, 1, 4096, 100_000] {
        assert_eq!(a.ask(&format!("write {qp} 0 {len} {addr} {rkey}")), "Success");
        // Each to a place of its own: what is sent once more on a busy machine has not changed meanwhile.
        assert_eq!(a.ask(&format!("read {qp} {} {len} {addr} {rkey}", 4 << 20)), "Success");
        assert_eq!(b.ask(&format!("recv {} {} {len}", y.index, 8 << 20)), "posted");
        assert_eq!(a.ask(&format!("send {qp} 0 {len}")), "Success");
        assert_eq!(b.ask("wait"), format!("Success Receive {len}"));
    }
    assert_eq!(a.ask(&format!("add {qp} {addr} {rkey} 1")), "Success");
}

fn word(bytes: &[u8], at: usize) -> usize {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).expect("in there");
    usize::try_from(u32::from_le_bytes(word)).expect("32 bits")
}

/// The packets of a pcapng file, which has to be sound.
fn packets(file: &[u8]) -> Vec<Vec<u8>> {
    let (mut at, mut packets, mut kinds) = (0, Vec::new(), Vec::new());
    while at < file.len() {
        let (kind, len) = (word(file, at), word(file, at + 4));
        assert!(len >= 12 && len % 4 == 0, "block of {len} bytes at {at}");
        assert_eq!(word(file, at + len - 4), len, "the length is there twice");
        kinds.push(kind);
        if kind == 6 {
            assert_eq!(word(file, at + 8), 0, "the only interface");
            let captured = word(file, at + 20);
            assert_eq!(captured, word(file, at + 24), "packets are kept whole");
            packets.push(file.get(at + 28..at + 28 + captured).expect("in there").to_vec());
        }
        at += len;
    }
    assert_eq!(kinds.get(..2), Some(&[0x0a0d_0d0a, 1][..]), "a section, an interface");
    assert!(kinds.iter().skip(2).all(|kind| *kind == 6), "then packets");
    packets
}

#[test]
fn a_capture_shows_all_packets_with_their_headers() {
    alone("capture::a_capture_shows_all_packets_with_their_headers", || {
        for gid_index in [1, 0] {
            let file = Scratch::new(&format!("headers{gid_index}"));
            record(&file.0, gid_index);
            let packets = packets(&std::fs::read(&file.0).expect("the file"));
            let mut seen: BTreeMap<String, usize> = BTreeMap::new();
            for packet in &packets {
                let datagram = Datagram::parse(packet).expect("IP and UDP");
                let fits = datagram.flow.verify(datagram.payload, datagram.id);
                assert_eq!(fits, Some(datagram.id), "the ICRC fits the headers that are shown");
                let marks = (datagram.marks.traffic_class, datagram.marks.hop_limit);
                assert_eq!(marks, (CLASS, 64), "those that leave and those that come");
                let inner = Packet::parse(datagram.payload).expect("RoCE");
                let operation: Operation = inner.headers.bth.opcode.operation();
                *seen.entry(format!("{operation:?}")).or_default() += 1;
            }
            println!("{seen:?}");
            let least = [
                ("WriteOnly", 3 + 25),
                ("SendOnly", 3),
                ("SendMiddle", 23),
                ("ReadRequest", 4),
                ("ReadResponseOnly", 3),
                ("ReadResponseMiddle", 23),
                ("Acknowledge", 8),
                ("FetchAdd", 1),
                ("AtomicAcknowledge", 1),
            ];
            for (name, count) in least {
                assert!(seen.get(name).is_some_and(|seen| *seen >= count), "{name}: {seen:?}");
            }
        }
    });
}

#[test]
fn tshark_reads_a_capture_as_roce() {
    alone("capture::tshark_reads_a_capture_as_roce", || {
        let file = Scratch::new("tshark");
        record(&file.0, 1);
        let bytes = std::fs::read(&file.0).expect("the file");
        let expected: Vec<_> = packets(&bytes)
            .iter()
            .map(|packet| {
                let datagram = Datagram::parse(packet).expect("IP and UDP");
                datagram.payload.first().map(u8::to_string).unwrap_or_default()
            })
            .collect();
        let mut tshark = Command::new("tshark");
        tshark.arg("-r").arg(&file.0).args(["-T", "fields", "-e", "infiniband.bth.opcode"]);
        let Ok(output) = tshark.output() else {
            println!("skipped: tshark is not installed");
            return;
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let decoded: Vec<_> = text.lines().map(str::to_owned).collect();
        assert_eq!(decoded, expected, "{}", String::from_utf8_lossy(&output.stderr));
        assert!(expected.len() > 80);
    });
}

/// Goal: two processes that are told the same file do not write into one another's, and both have names that tell other
/// programs what is in them.
#[test]
fn a_file_that_is_in_use_is_left_alone() {
    alone("capture::a_file_that_is_in_use_is_left_alone", || {
        let file = Scratch::new("shared");
        let start = || {
            let mut command = Command::new(program());
            command.env("ADVERB_PCAP", &file.0);
            Agent::start_by(command, "soft_lo", 1)
        };
        let (mut a, mut b) = (start(), start());
        let (x, _) = Agent::introduce(&mut a, &mut b, &Setup::default());
        let far = b.memory();
        let (addr, rkey) = (far.addr, far.rkey.0);
        assert_eq!(a.ask(&format!("write {} 0 5000 {addr} {rkey}", x.index)), "Success");
        let other = Scratch(file.0.with_extension(format!("{}.pcapng", b.pid())));
        drop((a, b));
        for path in [&file.0, &other.0] {
            let packets = packets(&std::fs::read(path).expect("the file"));
            assert!(packets.len() >= 3, "two of data, one acknowledgement: {}", packets.len());
        }
    });
}
