//! Connections that go from one implementation to another while both programs go on.

use std::time::Duration;

use adverb_fabric::Random;
use adverb_tcpip::Time;
use adverb_tcpip::tcp::{Config, Connection, Flags, Names, Piece, Seq, State, Tcp};

use crate::hostile::{established, plain, segment};
use crate::pair::{Pair, Path, Plan, Weather};

fn plan(bytes: u64) -> Plan {
    Plan { bytes, chunk_max: 4000, pause: Duration::from_millis(60), reads: 10 }
}

/// What is not part of the handover: the rest is.
fn names(at: usize) -> Names {
    let (local_port, remote_port) = if at == 0 { (1000, 80) } else { (80, 1000) };
    Names { local_port, remote_port, ip_header_bytes: 20, first: Seq::new(0), stamp_origin: 0 }
}

/// Goal: bytes come once and in order although ends are let go of and taken over whenever nothing of theirs is in flight,
/// whatever the network does and whatever was agreed upon.
#[test]
fn a_connection_survives_that_its_ends_are_taken_over() {
    let mut taken_over = 0;
    for seed in 0..60_u64 {
        let config = Config {
            time_stamps: seed % 2 == 0,
            sack: seed % 3 != 0,
            window_scaling: seed % 5 != 0,
            receive_bytes_max: if seed % 7 == 0 { 3000 } else { 200_000 },
            send_bytes_max: 20_000,
            user_timeout: Duration::from_secs(30_000),
            ..Config::default()
        };
        let weather = match seed % 4 {
            0 => Weather::default(),
            _ => Weather { lost: 30_000, twice: 20_000, overtaken: 50_000, flipped: 0 },
        };
        let plans = [plan(150_000), plan(90_000)];
        let mut pair = Pair::new(seed, [config; 2], plans, Path { weather, ..Path::default() });
        let mut random = Random::new(seed);
        for _ in 0..1_000_000 {
            pair.step();
            let at = random.index(2);
            let (now, side) = (pair.now, &mut pair.sides[at]);
            // What takes it over here knows of no FIN.
            let is_open = side.connection.state() == State::Established;
            let found = side.connection.hand_over(now).filter(|_| is_open);
            let Some((handover, unsent)) =
                found.filter(|(_, unsent)| unsent.flying.is_empty() && random.index(3) == 0)
            else {
                if pair.sides.iter().all(|side| side.connection.is_orphaned()) {
                    break;
                }
                continue;
            };
            if side.connection.readable_bytes() > 0 {
                continue;
            }
            let mut next = Connection::resume(&config, names(at), &handover, now);
            if !unsent.waiting.is_empty() {
                next.send(unsent.waiting, now).unwrap();
            }
            side.connection = next;
            taken_over += 1;
        }
        pair.run(Duration::from_secs(100_000));
        pair.assert_complete();
    }
    assert!(taken_over > 100, "{taken_over}");
}

/// Goal: an end whose peer has ended its stream can be let go of, before and after it ends its own: what it has to send is
/// there, and the peer's FIN counts as come. One that has ended first cannot.
#[test]
fn a_connection_can_be_let_go_of_after_its_peer_has_ended() {
    let now = Time::ZERO;
    let found = |end: &Connection<Vec<u8>>| {
        let (handover, unsent) = end.hand_over(now).expect("it can");
        (handover.unacknowledged, handover.expected, unsent.flying, unsent.waiting)
    };
    let mut end = established(&plain());
    let (first, expected, ..) = found(&end);
    for byte in [1, 2] {
        end.send(vec![byte; 800], now).unwrap();
        assert_eq!(end.poll_transmit(now).is_some(), byte == 1, "the window has room for one");
    }
    let fin = segment(1, 1, Flags::FIN | Flags::ACK, 1000);
    end.on_segment(&fin, Piece::whole(vec![]), now);
    assert_eq!(end.state(), State::CloseWait);
    let rest = (first, expected.plus(1), vec![1; 800], vec![2; 800]);
    assert_eq!(found(&end), rest);
    end.shut_down();
    assert_eq!((end.state(), found(&end)), (State::LastAck, rest));
    // All of it leaves, and the FIN.
    end.on_segment(&segment(2, 801, Flags::ACK, 1000), Piece::whole(vec![]), now);
    while end.poll_transmit(now).is_some() {}
    assert_eq!(found(&end), (first.plus(800), expected.plus(1), vec![2; 800], vec![]));
    let mut end = established(&plain());
    end.shut_down();
    assert_eq!((end.state(), end.hand_over(now).is_none()), (State::FinWait1, true));
}

/// Goal: what the peer has marked as urgent, and what comes behind it, is left to the implementation that carries the
/// connection on: it is neither taken nor acknowledged, whatever else comes and goes meanwhile. If none does, it comes in line
/// when the peer sends it again; for a program that has closed, it is as everything that comes.
#[test]
fn what_is_urgent_is_left_to_another_implementation() {
    let now = Time::ZERO;
    let leaves = Config { may_leave: true, ..plain() };
    let bytes = |byte: u8, len| Piece::whole(vec![byte; len]);
    for closes in [false, true] {
        let mut end = established(&leaves);
        end.send(vec![1; 100], now).unwrap();
        while end.poll_transmit(now).is_some() {}
        end.on_segment(&segment(1, 1, Flags::ACK, 1000), bytes(7, 10), now);
        while end.poll_transmit(now).is_some() {}
        assert_eq!((end.readable_bytes(), end.is_left()), (10, false));
        if closes {
            while end.receive().is_some() {}
            end.close(now);
            let urgent = segment(11, 101, Flags::ACK | Flags::URG, 1000);
            assert_eq!(
                end.on_segment(&urgent, bytes(8, 5), now).map(|one| one.flags),
                Some(Flags::RST)
            );
            assert_eq!(end.state(), State::Closed);
            continue;
        }
        end.take_events();
        let expected = end.hand_over(now).unwrap().0.expected;
        let urgent = Tcp { urgent: 5, ..segment(11, 101, Flags::ACK | Flags::URG, 1000) };
        assert!(!end.expects(&urgent, 5, now));
        assert_eq!(end.on_segment(&urgent, bytes(8, 5), now), None);
        assert_eq!((end.is_left(), end.take_events().left), (true, true));
        assert_eq!(end.unacknowledged_bytes(), 0, "what it acknowledges counts");
        let next = segment(11, 101, Flags::ACK, 1000);
        assert!(!end.expects(&next, 5, now));
        for header in [next, segment(16, 101, Flags::ACK | Flags::FIN, 1000)] {
            assert_eq!(end.on_segment(&header, bytes(8, 5), now), None);
        }
        assert!(end.poll_transmit(now).is_none(), "nothing of it is acknowledged");
        assert_eq!((end.readable_bytes(), end.state()), (10, State::Established));
        assert_eq!(end.hand_over(now).unwrap().0.expected, expected);
        end.keep();
        assert_eq!(end.on_segment(&urgent, bytes(8, 5), now), None);
        assert_eq!((end.readable_bytes(), end.is_left()), (15, false));
        end.leave();
        assert!(end.is_left(), "for another reason");
    }
    let mut end = established(&plain());
    end.on_segment(&segment(1, 1, Flags::ACK | Flags::URG, 1000), bytes(7, 10), now);
    assert_eq!((end.readable_bytes(), end.is_left()), (10, false), "in line, as usual");
    end.take_events();
    end.leave();
    assert_eq!((end.is_left(), end.take_events().left), (false, false), "there is no other one");
}
