//! What tests with programs share.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// A port that is free now, and not among those that the system gives to whoever wants any: a program
/// that looks whether somebody listens there would meet itself now and then.
pub(crate) fn free_port() -> u16 {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id().wrapping_mul(37);
    loop {
        let tried = u32::from(TRIED.fetch_add(1, Ordering::Relaxed));
        let place = first.wrapping_add(tried) % u32::from(PORT_COUNT);
        let port = FIRST_PORT + u16::try_from(place).expect("fewer than 2^16");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Below `ip_local_port_range` (ip(7)).
const FIRST_PORT: u16 = 20_000;
const PORT_COUNT: u16 = 12_000;
