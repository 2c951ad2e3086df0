//! Targets of `adverb-ibv`: what librdmacm writes.

use adverb_ibv::rdma_cm::{Command, Request};

/// No bytes are worse than a refusal; a command that is understood means the same whatever follows it.
pub(crate) fn command(bytes: &[u8]) {
    let Ok(request) = Request::parse(bytes) else {
        return;
    };
    let mut longer = bytes.to_vec();
    longer.extend([0xa5; 16]);
    assert_eq!(Request::parse(&longer), Ok(request.clone()));
    if let Command::Connect { parameters, .. } = request.command {
        assert!(parameters.private.len() <= usize::from(u8::MAX));
    }
}

/// A command of each number, with fields that are legal.
pub(crate) fn commands() -> Vec<Vec<u8>> {
    let address: [u8; 8] = [2, 0, 0x4e, 0x20, 127, 0, 0, 1];
    (0..=24_u16)
        .map(|number| {
            let mut body = [1; 320];
            // Where some structures have an address, some a length, or what has to be zero.
            for (at, bytes) in [(0, &[0; 8][..]), (6, &[0, 0]), (8, &address), (36, &address)] {
                if let Some(place) = body.get_mut(at..at + bytes.len()) {
                    place.copy_from_slice(bytes);
                }
            }
            let [a, b] = number.to_ne_bytes();
            let [c, d] = 320_u16.to_ne_bytes();
            [&[a, b, 0, 0, c, d, 0x50, 1], &body[..]].concat()
        })
        .collect()
}
