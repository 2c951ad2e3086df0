//! Both sides of each floor in one process, over real sockets.

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::*;
use crate::bench::control::ANSWER_TIME;

/// Runs `spec` for `iters` iterations against a passive side in another thread.
fn run(spec: FloorSpec, limit: Limit) -> Result<FloorValue, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Control::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap())?;
    let mut server = Control::new(listener.accept().unwrap().0)?;
    let server = thread::spawn(move || {
        let mut pages = None;
        while let Ok(Some(order)) = server.receive_or_end(ANSWER_TIME) {
            let served = match order {
                Order::Share { half_bytes } => {
                    Pages::offer(half_bytes, &mut server).map(|offered| pages = Some(offered))
                }
                Order::Floor(spec) => serve(spec, pages.as_ref(), &mut server),
                Order::Hello { .. }
                | Order::Open { .. }
                | Order::Run { .. }
                | Order::Stop
                | Order::End => break,
            };
            if let Err(failure) = served {
                let _ = server.send(&Answer::Refused { why: failure.to_string() });
            }
        }
    });
    let pages = Pages::open(HALF_BYTES, &mut client)?;
    let value = measure(spec, Some(&pages), &mut client, limit);
    // The same connection serves a second floor: nothing of the first is left behind.
    let again = value.is_ok().then(|| measure(spec, Some(&pages), &mut client, limit));
    drop(client);
    server.join().unwrap();
    again.unwrap_or(value)
}

const HALF_BYTES: usize = 1 << 20;
const FEW: Limit = Limit { iters: Some(20), duration: Some(Duration::from_secs(5)) };

#[test]
fn ping_pongs_of_any_length_there_and_back_take_time() {
    for (bytes, reply_bytes) in [(1, 1), (64, 20), (32, 4096), (65_507, 65_507)] {
        let exchange = Exchange { bytes, reply_bytes };
        for spec in [
            FloorSpec::UdpPingpong(exchange),
            FloorSpec::TcpPingpong(exchange),
            FloorSpec::UnixPingpong(exchange),
            FloorSpec::ShmPingpong { bytes },
        ] {
            let value = run(spec, FEW).unwrap();
            let FloorValue::RoundTrip(rtt) = value else { panic!("{spec:?}: {value:?}") };
            assert!(rtt.p50 > 0 && rtt.p50 <= rtt.p99 && rtt.p99 <= rtt.p999, "{rtt:?}");
        }
    }
}

/// Messages that do not fit the sockets' buffers must not lock up both sides.
#[test]
fn a_ping_pong_of_many_megabytes_ends() {
    let exchange = Exchange { bytes: 16 << 20, reply_bytes: 16 << 20 };
    let limit = Limit { iters: Some(2), duration: None };
    let less = Exchange { bytes: 2 << 20, reply_bytes: 2 << 20 }; // Its buffers are smaller.
    for spec in [FloorSpec::TcpPingpong(exchange), FloorSpec::UnixPingpong(less)] {
        assert!(matches!(run(spec, limit), Ok(FloorValue::RoundTrip(_))), "{spec:?}");
    }
}

#[test]
fn streams_arrive() {
    let limit = Limit::time(Duration::from_millis(50));
    let packets = [(1, 0), (96, 0), (1056, 1 << 20), (4128, 100_000), (9000, 1), (65_507, 1 << 24)];
    let packets = packets
        .map(|(packet_bytes, memory_bytes)| FloorSpec::UdpStream { packet_bytes, memory_bytes });
    let copies = [(1, 3), (100, 8), (1 << 20, 1)];
    let copies = copies.map(|(bytes, places)| FloorSpec::Memcpy { bytes, places });
    let more = [FloorSpec::TcpStream, FloorSpec::UnixStream];
    for spec in packets.into_iter().chain(more).chain(copies) {
        let value = run(spec, limit).unwrap();
        assert!(matches!(value, FloorValue::BytesPerSecond(1..)), "{spec:?}: {value:?}");
    }
    for list in [1, 32, 5000] {
        let value = run(FloorSpec::Ring { list }, limit).unwrap();
        assert!(matches!(value, FloorValue::MessagesPerSecond(1..)), "{list}: {value:?}");
    }
}

#[test]
fn a_specification_from_the_network_is_checked_before_memory_is_taken() {
    let exchange = |bytes, reply_bytes| Exchange { bytes, reply_bytes };
    for spec in [
        FloorSpec::UdpPingpong(exchange(0, 1)),
        FloorSpec::UdpPingpong(exchange(65_508, 1)),
        FloorSpec::TcpPingpong(exchange(1, 0)),
        FloorSpec::TcpPingpong(exchange(1, u64::MAX)),
        FloorSpec::UdpStream { packet_bytes: 0, memory_bytes: 0 },
        FloorSpec::UdpStream { packet_bytes: 96, memory_bytes: (1 << 30) + 1 },
        FloorSpec::UnixPingpong(exchange(0, 1)),
        FloorSpec::ShmPingpong { bytes: 0 },
        FloorSpec::ShmPingpong { bytes: (1 << 20) + 1 },
        FloorSpec::Memcpy { bytes: 64, places: 0 },
        FloorSpec::Memcpy { bytes: 64, places: 1 << 20 },
        FloorSpec::Memcpy { bytes: u64::MAX, places: u32::MAX },
        FloorSpec::Ring { list: 0 },
    ] {
        assert!(run(spec, FEW).is_err(), "{spec:?}");
    }
}

#[test]
fn arrivals_count_from_the_end_of_the_first() {
    let mut arrivals = Arrivals::default();
    assert_eq!(arrivals.received().elapsed_ns, 0);
    arrivals.add(1000);
    assert_eq!(arrivals.received().bytes, 0);
    thread::sleep(Duration::from_millis(1));
    arrivals.add(10);
    assert_eq!(arrivals.received().bytes, 10);
    assert!(arrivals.received().elapsed_ns >= 1_000_000);
}
