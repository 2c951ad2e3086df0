//! Packets of a session are marked on the wire as its side was told: those of queue pairs, and those of
//! the connection between them.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

#[path = "../../verbs/tests/verbs/alone.rs"]
mod alone;
#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;
#[path = "../../verbs/tests/transports/tap.rs"]
mod tap;

use adverb_session::Config;
use support::pair_of;
use tap::{Tap, marks_to};

/// The type of service of each TCP packet over IPv4 to `port`.
fn services_to(packets: &[Vec<u8>], port: u16) -> Vec<u8> {
    let service = |packet: &Vec<u8>| {
        let is_tcp = packet.len() > 40 && packet[0] >> 4 == 4 && packet[9] == 6;
        let header = usize::from(packet[0] & 15) * 4;
        let to = is_tcp.then(|| u16::from_be_bytes([packet[header + 2], packet[header + 3]]))?;
        (to == port).then_some(packet[1])
    };
    packets.iter().filter_map(service).collect()
}

#[test]
fn each_side_marks_its_packets_as_it_was_told() {
    alone::over_udp("each_side_marks_its_packets_as_it_was_told", || {
        let Some(tap) = Tap::new() else { return };
        let config = |class, routers| Config::default().traffic_class(class).hop_limit(routers);
        let (client, server) = pair_of(config(0xb8, 17), config(0x28, 99));
        let (near, far) = (client.channel("data").unwrap(), server.channel("data").unwrap());
        // Long enough for many packets; the acknowledgements are the other side's to mark.
        let [source, sink] = [&client, &server].map(|e| e.adapter().buffer(1, 20_000).unwrap());
        far.post_recv(sink.at(0).unwrap()).unwrap();
        near.send(source.at(0).unwrap()).unwrap();
        far.recv().unwrap();
        let ports = [&server, &client].map(|endpoint| endpoint.peer().addr.port());
        let packets = tap.packets();
        let told = [(&near, ports[0], 0x28, 99), (&far, ports[1], 0xb8, 17)];
        for (to, port, class, routers) in told {
            let found = marks_to(&packets, to.qpn());
            assert!(!found.is_empty());
            let as_told =
                |m: &adverb_verbs::Marks| m.traffic_class == class && m.hop_limit == routers;
            assert!(found.iter().all(as_told), "{found:?}");
            // TCP makes its connection before it is told, and has the lower two bits for itself.
            let services = services_to(&packets, port);
            assert!(services.iter().any(|service| service & 0xfc == class), "{services:?}");
        }
    });
}
