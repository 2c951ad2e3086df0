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
        while let Ok(Some(Order::Floor(spec))) = server.receive_or_end(ANSWER_TIME) {
            if let Err(failure) = serve(spec, &mut server) {
                let _ = server.send(&Answer::Refused { why: failure.to_string() });
            }
        }
    });
    let value = measure(spec, &mut client, limit);
    // The same connection serves a second floor: nothing of the first is left behind.
    let again = value.is_ok().then(|| measure(spec, &mut client, limit));
    drop(client);
    server.join().unwrap();
    again.unwrap_or(value)
}

const FEW: Limit = Limit { iters: Some(20), duration: Some(Duration::from_secs(5)) };

#[test]
fn ping_pongs_of_any_length_there_and_back_take_time() {
    for (bytes, reply_bytes) in [(1, 1), (64, 20), (32, 4096), (65_507, 65_507)] {
        let exchange = Exchange { bytes, reply_bytes };
        for spec in [FloorSpec::UdpPingpong(exchange), FloorSpec::TcpPingpong(exchange)] {
            match run(spec, FEW).unwrap() {
                FloorValue::RoundTrip(rtt) => {
                    assert!(rtt.p50 > 0 && rtt.p50 <= rtt.p99 && rtt.p99 <= rtt.p999, "{rtt:?}");
                }
                FloorValue::BytesPerSecond(rate) => panic!("{spec:?} is no stream: {rate}"),
            }
        }
    }
}

/// Messages that do not fit the sockets' buffers must not lock up both sides.
#[test]
fn a_tcp_ping_pong_of_many_megabytes_ends() {
    let exchange = Exchange { bytes: 16 << 20, reply_bytes: 16 << 20 };
    let limit = Limit { iters: Some(2), duration: None };
    assert!(matches!(run(FloorSpec::TcpPingpong(exchange), limit), Ok(FloorValue::RoundTrip(_))));
}

#[test]
fn streams_arrive() {
    let limit = Limit::time(Duration::from_millis(50));
    let packets =
        [1, 96, 1056, 4128, 9000, 65_507].map(|n| FloorSpec::UdpStream { packet_bytes: n });
    for spec in packets.into_iter().chain([FloorSpec::TcpStream]) {
        match run(spec, limit).unwrap() {
            FloorValue::BytesPerSecond(rate) => assert!(rate > 0, "{spec:?}"),
            FloorValue::RoundTrip(rtt) => panic!("{spec:?} is no ping-pong: {rtt:?}"),
        }
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
        FloorSpec::UdpStream { packet_bytes: 0 },
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
