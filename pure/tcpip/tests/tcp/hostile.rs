//! A peer that says anything: segments about the window, in any state.

use std::time::Duration;

use adverb_tcpip::Time;
use adverb_tcpip::tcp::{
    Config, Connection, End, Flags, Names, Options, Piece, Seq, State, Tcp, TimeStamps,
};
use proptest::collection::vec;
use proptest::prelude::*;

pub(crate) const OURS: u32 = 0xffff_fff0;
pub(crate) const THEIRS: u32 = 0xffff_ff00;

fn client(config: &Config) -> Connection<Vec<u8>> {
    let (first, stamp_origin) = (Seq::new(OURS), 0);
    let names = Names { local_port: 1, remote_port: 2, ip_header_bytes: 20, first, stamp_origin };
    let mut client = Connection::connect(config, names, Time::ZERO);
    assert!(client.poll_transmit(Time::ZERO).is_some());
    client
}

/// A segment whose numbers are these distances from both SYNs.
pub(crate) fn segment(seq: u32, ack: u32, flags: Flags, window: u16) -> Tcp {
    let (seq, ack) = (Seq::new(THEIRS).plus(seq), Seq::new(OURS).plus(ack));
    let (src_port, dst_port, urgent, options) = (2, 1, 0, Options::default());
    Tcp { src_port, dst_port, seq, ack, flags, window, urgent, options }
}

pub(crate) fn plain() -> Config {
    Config { time_stamps: false, sack: true, receive_bytes_max: 5000, ..Config::default() }
}

pub(crate) fn established(config: &Config) -> Connection<Vec<u8>> {
    let mut client = client(config);
    let mut syn = segment(0, 1, Flags::SYN | Flags::ACK, 1000);
    syn.options.sack_permitted = true;
    syn.options.mss = Some(1460);
    syn.options.time_stamps = config.time_stamps.then_some(TimeStamps { value: 1, echo: 0 });
    assert!(client.on_segment(&syn, Piece::whole(vec![]), Time::ZERO).is_none());
    while client.poll_transmit(Time::ZERO).is_some() {}
    assert_eq!(client.state(), State::Established);
    client
}

/// RFC 5961 §3.2 and §4.2.
#[test]
fn only_a_reset_at_the_exact_number_resets_and_others_are_challenged() {
    for (seq, flags, reset, answers) in [
        (1, Flags::RST, true, 0),
        (2, Flags::RST, false, 1),
        (4999, Flags::RST, false, 1),
        (0, Flags::RST, false, 0),
        (6000, Flags::RST, false, 0),
        (1, Flags::SYN, false, 1),
        (6000, Flags::SYN | Flags::ACK, false, 1),
    ] {
        let mut client = established(&plain());
        client.on_segment(&segment(seq, 1, flags, 0), Piece::whole(vec![]), Time::ZERO);
        assert_eq!(client.end() == Some(End::Reset), reset, "{seq} {flags:?}");
        let mut sent = 0;
        while let Some(departure) = client.poll_transmit(Time::ZERO) {
            assert_eq!(departure.header.flags, Flags::ACK);
            sent += 1;
        }
        assert_eq!(sent, answers, "{seq} {flags:?}");
    }
}

/// RFC 5961 §7.
#[test]
fn challenges_are_bounded() {
    let mut client = established(&plain());
    let mut sent = 0;
    for _ in 0..1000 {
        let stray = segment(3000, 1, Flags::RST, 0);
        client.on_segment(&stray, Piece::whole(vec![]), Time::ZERO);
        sent += usize::from(client.poll_transmit(Time::ZERO).is_some());
    }
    assert_eq!(sent, 10);
}

proptest! {
    #[test]
    fn any_segments_leave_a_connection_bounded_and_its_deadlines_ahead(
        steps in vec(
            (
                prop_oneof![0_u32..5, 0_u32..6000, any::<u32>()],
                prop_oneof![0_u32..5, 0_u32..3000, any::<u32>()],
                prop_oneof![Just(Flags::ACK.bits()), any::<u8>()],
                prop_oneof![Just(0_u16), 0_u16..1500, any::<u16>()],
                0_usize..600,
                vec((0_u32..3000, 0_u32..3000), 0..4),
                0_u8..8,
            ),
            0..80,
        ),
        (up, sack) in any::<(bool, bool)>(),
    ) {
        let config = Config { receive_bytes_max: 500, sack, ..plain() };
        let mut client = if up { established(&config) } else { client(&config) };
        let mut now = Time::ZERO;
        for (seq, ack, flags, window, bytes, blocks, call) in steps {
            let mut header = segment(seq, ack, Flags::from_bits(flags), window);
            for (from, to) in blocks {
                header.options.sack.push(Seq::new(OURS).plus(from), Seq::new(OURS).plus(to));
            }
            client.on_segment(&header, Piece::whole(vec![7; bytes]), now);
            match call {
                0 => _ = client.send(vec![1; 700], now),
                1 => _ = client.receive(),
                2 => client.shut_down(),
                3 => now = now.plus(Duration::from_millis(300)),
                _ => {}
            }
            if client.next_deadline().is_some_and(|at| at <= now) {
                client.on_time(now);
            }
            let mut sent = 0;
            while client.poll_transmit(now).is_some() {
                sent += 1;
                prop_assert!(sent < 500, "segments without end");
            }
            prop_assert!(client.readable_bytes() <= 500);
            prop_assert!(client.remembered() < 200);
            prop_assert!(client.next_deadline().is_none_or(|at| at > now), "a deadline that stays");
        }
    }
}
