//! Targets of `adverb-messages`.

use adverb_engine::Gid;
use adverb_messages::frame::{
    Access, Advertisement, BODY_BYTES_MAX, ChannelHello, Features, Frame, HEADER_BYTES, Hello,
    Name, Reason, Refusal,
};
use adverb_wire::{PathMtu, Psn, Qpn, Rkey};

/// A frame that parses is one that we could have sent, byte for byte; one that does not is refused
/// before more than a frame's bytes have been kept.
pub(crate) fn frame(bytes: &[u8]) {
    match Frame::parse(bytes) {
        Ok(Some((frame, len))) => assert_eq!(bytes.get(..len), Some(frame.emit().as_slice())),
        Ok(None) => assert!(bytes.len() < HEADER_BYTES + BODY_BYTES_MAX),
        Err(_) => {}
    }
    // What was refused stays refused, whatever comes after it.
    for cut in [1, 4, 6, HEADER_BYTES, bytes.len() / 2] {
        let refused = bytes.get(..cut).is_some_and(|start| Frame::parse(start).is_err());
        assert!(!refused || Frame::parse(bytes).is_err());
    }
}

/// One frame of each kind.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let name = |text| Name::new(text).expect("a name");
    let channel = |text, number| ChannelHello {
        name: name(text),
        qpn: Qpn::new(number),
        psn: Psn::new(0x00ff_fffe),
        send_depth: 128,
        receive_depth: 64,
    };
    let hello = Hello {
        session: name("session"),
        device: name("soft_lo"),
        node_guid: 0x0200_0000_0000_0001,
        gid: Gid::from_v4([127, 0, 0, 1]),
        path_mtu: PathMtu::B4096,
        reads: 16,
        features: Features::OURS,
        nonce: [0x5a; 32],
        channels: vec![channel("control", 17), channel("data", 18)],
    };
    let advertisement = Advertisement {
        name: name("sink"),
        addr: 0x7f00_0000_1000,
        rkey: Rkey(0x1234_5678),
        access: Access::ALL,
        block_bytes: 4096,
        blocks: 16,
    };
    [
        Frame::Hello(hello.clone()),
        Frame::Welcome(hello),
        Frame::Ready,
        Frame::Advertise(advertisement),
        Frame::Bye,
        Frame::Challenge { nonce: [1; 32], proof: [2; 32] },
        Frame::Proof([3; 32]),
        Frame::Ping,
        Frame::Pong,
        Frame::Refuse(Refusal::new(Reason::Busy, "the server is busy")),
    ]
    .iter()
    .map(Frame::emit)
    .collect()
}
