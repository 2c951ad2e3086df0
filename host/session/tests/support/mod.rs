//! What the tests share: pairs of endpoints, and limits that no healthy test comes near.

pub(crate) mod lasting;
pub(crate) mod process;

use adverb_session::{ClientSession, Config, Departure, Endpoint, ServerSession};
use std::thread;
use std::time::{Duration, Instant};

/// Long enough for anything that works.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A client's and a server's endpoint of this process.
pub(crate) fn pair(config: Config) -> (Endpoint, Endpoint) {
    pair_of(config.clone(), config)
}

/// A client's and a server's endpoint, with settings of their own.
pub(crate) fn pair_of(client: Config, server: Config) -> (Endpoint, Endpoint) {
    // On a busy machine it takes what it takes.
    let (client, server) = (client.connect_timeout(LONG), server.handshake_timeout(LONG));
    let mut server = ServerSession::bind("127.0.0.1:0", server).expect("a server");
    let address = server.local_addr();
    let accepting = thread::spawn(move || server.accept(LONG));
    let client = ClientSession::new(client).expect("a client");
    let client = client.connect(address).expect("an endpoint");
    let server = accepting.join().expect("no panic").expect("an endpoint");
    (client, server)
}

/// How the peer goes, which the keeper notices when it has its turn.
pub(crate) fn departure(endpoint: &Endpoint) -> Departure {
    let limit = Instant::now() + LONG;
    loop {
        if let Some(how) = endpoint.departure() {
            return how;
        }
        assert!(Instant::now() < limit, "it was not noticed");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A pattern that differs from byte to byte and from seed to seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + size_of::<u64>());
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
