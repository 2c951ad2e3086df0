//! Good inputs: the captures in the tree.

use adverb_wire::ip::Datagram;
use adverb_wire::pcap::Reader;
use adverb_wire::{Packet, Qpn};
use std::fs;
use std::path::Path;

/// All captures, as files.
pub(crate) fn files() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pure/wire/testdata/golden");
    let mut paths: Vec<_> = fs::read_dir(folder)
        .expect("the folder is in the tree")
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "pcap"))
        .collect();
    paths.sort(); // A seed must mean the same on every machine.
    paths.iter().map(|path| fs::read(path).expect("the capture can be read")).collect()
}

/// The RoCE datagrams of all captures.
pub(crate) fn datagrams() -> Vec<Vec<u8>> {
    let mut datagrams = Vec::new();
    for file in files() {
        for frame in Reader::new(&file).expect("a capture") {
            let packet = frame.expect("a whole frame").ip().expect("an IP packet");
            datagrams.push(Datagram::parse(packet).expect("a UDP datagram").payload.to_vec());
        }
    }
    datagrams
}

/// The management datagrams of all captures.
pub(crate) fn management() -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for datagram in datagrams() {
        let packet = Packet::parse(&datagram).expect("a packet");
        if packet.headers.bth.dest_qp == Qpn::GSI {
            found.push(packet.payload.to_vec());
        }
    }
    found
}
