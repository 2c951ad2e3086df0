//! Cost of the work that every packet pays, in nanoseconds a packet.
//!
//! Run with `cargo bench -p adverb-wire`. Prints the best of 50 rounds, because noise only ever
//! adds; a regression gate compares that number and nothing else.

#![expect(clippy::disallowed_methods, reason = "a benchmark needs a clock")]

use adverb_wire::{Bth, Flow, HeaderBytes, Headers, ICRC_LEN, Packet, Qpn, ROCE_PORT};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: u32 = 50;
const TIMES: u32 = 10_000;

fn main() {
    let v4 = Flow::v4([10, 0, 0, 1], [10, 0, 0, 2], 0xc123, ROCE_PORT);
    let v6 = Flow::v6([1; 16], [2; 16], 0xc123, ROCE_PORT);
    report("flow/icrc v4", || _ = black_box(black_box(&v4).icrc(black_box(1040), black_box(7))));
    report("flow/icrc v6", || _ = black_box(black_box(&v6).icrc(black_box(1040), black_box(7))));

    for payload in [0, 64, 1024, 4096] {
        let datagram = send_only(&v4, payload);
        let datagram = datagram.as_slice();
        assert_eq!(v4.verify(datagram, 7), Some(7));
        let (packet, _) = datagram.split_last_chunk::<ICRC_LEN>().expect("an ICRC");
        let (headers, body) = packet.split_at(Bth::LEN);
        let len = u16::try_from(datagram.len()).expect("a short datagram");
        report(&format!("library/update {payload}"), || {
            let mut hasher = crc32fast::Hasher::new();
            hasher.update(black_box(packet));
            black_box(hasher.finalize());
        });
        report(&format!("icrc/compute {payload}"), || {
            let mut icrc = v4.icrc(len, 7);
            icrc.headers(black_box(headers));
            icrc.update(black_box(body));
            black_box(icrc.finish());
        });
        report(&format!("icrc/verify {payload}, guess right"), || {
            black_box(v4.verify(black_box(datagram), black_box(7)));
        });
        report(&format!("icrc/verify {payload}, guess wrong"), || {
            black_box(v4.verify(black_box(datagram), black_box(0xbeef)));
        });
        report(&format!("packet/parse {payload}"), || {
            let _ = black_box(Packet::parse(black_box(datagram)));
        });
    }

    let datagram = send_only(&v4, 64);
    let (bth, _) = Bth::parse(&datagram).expect("a legal header");
    let (headers, _) = Headers::parse(&datagram).expect("legal headers");
    let mut out = HeaderBytes::new();
    report("bth/parse", || _ = black_box(Bth::parse(black_box(&datagram))));
    report("bth/emit", || _ = black_box(black_box(&bth).emit()));
    report("headers/emit", || black_box(&headers).emit(black_box(&mut out)));
}

/// A SEND of `len` bytes under the identification 7, as a datagram.
fn send_only(flow: &Flow, len: usize) -> Vec<u8> {
    let bytes = [0x04, 0x40, 0xff, 0xff, 0, 0, 1, 0x23, 0x80, 0xab, 0xcd, 0xef];
    let (mut headers, _) = Headers::parse(&bytes).expect("legal headers");
    headers.bth.dest_qp = Qpn::new(0x11);
    let payload = vec![0x5a; len];
    let mut datagram = Vec::new();
    Packet { headers, payload: &payload }.emit_into(flow, 7, &mut datagram);
    datagram
}

fn report(name: &str, mut work: impl FnMut()) {
    let round = |_| {
        let start = Instant::now();
        for _ in 0..TIMES {
            work();
        }
        start.elapsed().as_secs_f64()
    };
    let best = (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min);
    println!("{name:32} {:8.2} ns", best * 1e9 / f64::from(TIMES));
}
