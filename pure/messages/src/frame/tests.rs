//! Tests of the connectors' protocol.

use super::*;
use alloc::string::ToString;
use alloc::{format, vec};
use proptest::prelude::*;

fn name() -> impl Strategy<Value = Name> {
    "[a-zA-Z0-9 äß_./-]{1,30}".prop_map(|text| Name::new(&text).unwrap())
}

fn channel(number: usize) -> impl Strategy<Value = ChannelHello> {
    let numbers = (2..0xff_ffff_u32, 0..0x100_0000_u32, any::<u32>(), any::<u32>());
    numbers.prop_map(move |(qpn, psn, send_depth, receive_depth)| ChannelHello {
        name: Name::new(&format!("channel {number}")).unwrap(),
        qpn: Qpn::new(qpn),
        psn: Psn::new(psn),
        send_depth,
        receive_depth,
    })
}

fn channels() -> impl Strategy<Value = Vec<ChannelHello>> {
    (1..=CHANNELS_MAX).prop_flat_map(|count| (0..count).map(channel).collect::<Vec<_>>())
}

fn hello() -> impl Strategy<Value = Hello> {
    let facts = (name(), name(), any::<u64>(), any::<[u8; 16]>(), any::<[u8; 32]>());
    let numbers = (1..=5_u8, any::<u8>(), any::<u64>());
    (facts, numbers, channels()).prop_map(
        |((session, device, node_guid, gid, nonce), (mtu, reads, features), channels)| Hello {
            session,
            device,
            node_guid,
            gid: Gid(gid),
            path_mtu: PathMtu::from_code(mtu).unwrap(),
            reads,
            features: Features(features),
            nonce,
            channels,
        },
    )
}

fn advertisement() -> impl Strategy<Value = Advertisement> {
    let place = (0..u64::MAX / 2, any::<u32>(), 0..16_u32);
    let size = (1..1_u64 << 31, 1..1_u64 << 31);
    (name(), place, size).prop_map(|(name, (addr, rkey, bits), (block_bytes, blocks))| {
        Advertisement {
            name,
            addr,
            rkey: Rkey(rkey),
            access: Access::from_bits(bits),
            block_bytes,
            blocks,
        }
    })
}

fn refusal() -> impl Strategy<Value = Refusal> {
    let reason = prop::sample::select(Reason::ALL.to_vec());
    (reason, ".{0,300}").prop_map(|(reason, text)| Refusal::new(reason, &text))
}

fn frame() -> impl Strategy<Value = Frame> {
    prop_oneof![
        hello().prop_map(Frame::Hello),
        hello().prop_map(Frame::Welcome),
        Just(Frame::Ready),
        advertisement().prop_map(Frame::Advertise),
        Just(Frame::Bye),
        Just(Frame::Ping),
        Just(Frame::Pong),
        any::<([u8; 32], [u8; 32])>().prop_map(|(nonce, proof)| Frame::Challenge { nonce, proof }),
        any::<[u8; 32]>().prop_map(Frame::Proof),
        refusal().prop_map(Frame::Refuse),
    ]
}

proptest! {
    #[test]
    fn what_is_emitted_parses_to_the_same_and_leaves_what_follows(
        frame in frame(),
        more in any::<Vec<u8>>(),
    ) {
        let bytes = frame.emit();
        let joined = [bytes.as_slice(), &more].concat();
        prop_assert_eq!(Frame::parse(&joined), Ok(Some((frame, bytes.len()))));
    }

    #[test]
    fn a_part_of_a_frame_is_never_a_frame_and_never_wrong(frame in frame(), cut in any::<usize>()) {
        let bytes = frame.emit();
        let cut = cut % bytes.len();
        prop_assert_eq!(Frame::parse(&bytes[..cut]), Ok(None));
    }

    #[test]
    fn any_bytes_behind_a_good_header_are_a_frame_or_an_error(
        kind in 0..12_u8,
        body in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let bytes = with_header(kind, &body);
        match Frame::parse(&bytes) {
            Ok(Some((frame, len))) => {
                prop_assert_eq!(len, bytes.len());
                prop_assert_eq!(frame.emit(), bytes);
            }
            Ok(None) => prop_assert!(false, "the frame was all there"),
            Err(_) => {}
        }
    }

    #[test]
    fn a_body_with_a_byte_more_or_less_is_refused(frame in frame()) {
        let bytes = frame.emit();
        let kind = bytes[6];
        let body = &bytes[HEADER_BYTES..];
        let more = [body, &[0]].concat();
        prop_assert!(Frame::parse(&with_header(kind, &more)).is_err());
        if let Some((_, less)) = body.split_last() {
            prop_assert!(Frame::parse(&with_header(kind, less)).is_err());
        }
    }
}

fn with_header(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len()).unwrap().to_be_bytes();
    [b"ADVB\x00\x02", [kind, 0].as_slice(), &len, body].concat()
}

#[test]
fn the_bytes_are_those_that_the_header_of_the_file_draws() {
    let frame = Frame::Advertise(Advertisement {
        name: Name::new("sink").unwrap(),
        addr: 0x1122_3344_5566_7788,
        rkey: Rkey(0x99aa_bbcc),
        access: Access::REMOTE_WRITE,
        block_bytes: 4096,
        blocks: 3,
    });
    let expected = b"ADVB\x00\x02\x04\x00\x00\x00\x00\x22\
        \x04sink\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\x02\
        \x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x03";
    assert_eq!(frame.emit(), expected);
}

#[test]
fn other_protocols_are_known_by_their_first_byte() {
    assert_eq!(Frame::parse(b"GET / HTTP/1.1"), Err(FrameError::Magic));
    assert_eq!(Frame::parse(b"G"), Err(FrameError::Magic));
    assert_eq!(Frame::parse(b"ADVERB"), Err(FrameError::Magic));
    assert_eq!(Frame::parse(b"ADV"), Ok(None));
}

#[test]
fn another_version_is_named_before_anything_else_is_read() {
    let bytes = b"ADVB\x00\x03\xff\xff\xff\xff\xff\xff";
    assert_eq!(Frame::parse(bytes), Err(FrameError::Version { theirs: 3 }));
}

#[test]
fn a_length_past_the_bound_is_refused_before_the_bytes_come() {
    let bytes = b"ADVB\x00\x02\x01\x00\xff\xff\xff\xff";
    let error = Frame::parse(bytes).unwrap_err();
    assert_eq!(error, FrameError::TooLong { len: u32::MAX });
    assert_eq!(error.to_string(), "a frame of 4294967295 bytes, but the longest has 16384");
}

#[test]
fn the_longest_hello_fits_a_frame() {
    let long = |number: usize| Name::new(&format!("{number:0>64}")).unwrap();
    let channels = (0..CHANNELS_MAX).map(|number| ChannelHello {
        name: long(number),
        qpn: Qpn::new(0xff_fffe),
        psn: Psn::new(0xff_ffff),
        send_depth: u32::MAX,
        receive_depth: u32::MAX,
    });
    let frame = Frame::Hello(Hello {
        session: long(1),
        device: long(2),
        node_guid: u64::MAX,
        gid: Gid([0xff; 16]),
        path_mtu: PathMtu::B4096,
        reads: u8::MAX,
        features: Features(u64::MAX),
        nonce: [0xff; 32],
        channels: channels.collect(),
    });
    let bytes = frame.emit();
    assert_eq!(Frame::parse(&bytes), Ok(Some((frame, bytes.len()))));
}

#[test]
fn two_channels_of_one_name_are_refused() {
    let channel = ChannelHello {
        name: Name::new("data").unwrap(),
        qpn: Qpn::new(17),
        psn: Psn::new(0xff_ffff),
        send_depth: 1,
        receive_depth: 1,
    };
    let frame = Frame::Hello(Hello {
        session: Name::new("a").unwrap(),
        device: Name::new("soft_lo").unwrap(),
        node_guid: 1,
        gid: Gid([0; 16]),
        path_mtu: PathMtu::B1024,
        reads: 1,
        features: Features::OURS,
        nonce: [7; 32],
        channels: vec![channel.clone(), channel],
    });
    assert!(Frame::parse(&frame.emit()).is_err());
}

#[test]
fn a_buffer_that_wraps_around_is_refused() {
    let frame = |addr, block_bytes, blocks| {
        let advertisement = Advertisement {
            name: Name::new("sink").unwrap(),
            addr,
            rkey: Rkey(1),
            access: Access::ALL,
            block_bytes,
            blocks,
        };
        Frame::parse(&Frame::Advertise(advertisement).emit())
    };
    assert!(frame(1, u64::MAX - 1, 1).is_ok());
    for (addr, block_bytes, blocks) in
        [(2, u64::MAX - 1, 1), (0, 1 << 32, 1 << 32), (0, 0, 1), (0, 1, 0)]
    {
        let error = frame(addr, block_bytes, blocks).unwrap_err();
        let what = "buffer size";
        assert_eq!(error, FrameError::Field { what });
    }
}

#[test]
fn names_are_short_and_printable() {
    assert!(Name::new("control").is_ok());
    assert!(Name::new("").is_err());
    assert!(Name::new("a\nb").is_err());
    assert!(Name::new(&"x".repeat(64)).is_ok());
    let error = Name::new(&"x".repeat(65)).unwrap_err();
    assert!(error.to_string().contains("(this has 65)"), "{error}");
}

#[test]
fn refusals_are_cut_between_characters() {
    let refusal = Refusal::new(Reason::Failure, &"ä".repeat(200));
    assert_eq!(refusal.text, "ä".repeat(128));
    let refusal = Refusal::new(Reason::Failure, &format!("a{}", "ä".repeat(200)));
    assert_eq!(refusal.text.len(), 255);
}
