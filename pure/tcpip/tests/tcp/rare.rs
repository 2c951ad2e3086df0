//! What connections seldom do: each test has one thing, and a peer that says what the test needs.

use std::time::Duration;

use adverb_tcpip::Time;
use adverb_tcpip::icmp::Report;
use adverb_tcpip::tcp::{
    Algorithm, Config, Connection, Departure, End, Flags, KeepAlive, Names, Piece, Seq, State, Tcp,
    TimeStamps,
};

use crate::hostile::{OURS, established, plain, segment};

fn none() -> Piece<Vec<u8>> {
    Piece::whole(vec![])
}

fn names(ip_header_bytes: u16) -> Names {
    let first = Seq::new(OURS);
    Names { local_port: 1, remote_port: 2, ip_header_bytes, first, stamp_origin: 0 }
}

fn seconds(seconds: u64) -> Time {
    Time::ZERO.plus(Duration::from_secs(seconds))
}

fn departures(connection: &mut Connection<Vec<u8>>, now: Time) -> Vec<Departure> {
    std::iter::from_fn(|| connection.poll_transmit(now)).collect()
}

/// Lets time pass until `end`, and says when segments left, and which.
fn pass(connection: &mut Connection<Vec<u8>>, end: Time) -> Vec<(Time, Tcp)> {
    let mut sent = Vec::new();
    while let Some(now) = connection.next_deadline().filter(|at| *at <= end) {
        connection.on_time(now);
        sent.extend(departures(connection, now).iter().map(|departure| (now, departure.header)));
    }
    sent
}

/// RFC 9293 §3.5, figure 8.
#[test]
fn syns_that_cross_make_one_connection() {
    for time_stamps in [false, true] {
        let config = Config { time_stamps, ..Config::default() };
        let mut ends = [(1, 2, 100), (2, 1, u32::MAX)].map(|(local_port, remote_port, first)| {
            let (first, stamp_origin) = (Seq::new(first), first);
            let names = Names { local_port, remote_port, ip_header_bytes: 20, first, stamp_origin };
            Connection::<Vec<u8>>::connect(&config, names, Time::ZERO)
        });
        for round in 0..4 {
            // All that both send is on the way before any of it arrives.
            let crossing = ends.each_mut().map(|end| departures(end, Time::ZERO));
            let count = crossing.iter().map(Vec::len).sum::<usize>();
            assert_eq!(count, [2, 2, 2, 0][round], "round {round}");
            for (from, departures) in crossing.iter().enumerate() {
                for departure in departures {
                    let reply = ends[1 - from].on_segment(&departure.header, none(), Time::ZERO);
                    assert_eq!(reply, None);
                }
            }
        }
        for from in [0, 1] {
            assert_eq!(ends[from].state(), State::Established);
            ends[from].send(vec![9; 300], Time::ZERO).unwrap();
            let [departure] = departures(&mut ends[from], Time::ZERO)[..] else {
                panic!("one segment");
            };
            let payload: Vec<u8> = ends[from].payload(&departure).flatten().copied().collect();
            ends[1 - from].on_segment(&departure.header, Piece::whole(payload), Time::ZERO);
            assert_eq!(ends[1 - from].readable_bytes(), 300);
        }
    }
}

fn asking() -> Connection<Vec<u8>> {
    let (idle, interval) = (Duration::from_secs(100), Duration::from_secs(10));
    let keep_alive = Some(KeepAlive { idle, interval, probes_max: 3 });
    established(&Config { keep_alive, ..plain() })
}

/// RFC 9293 §3.8.4.
#[test]
fn a_silent_peer_is_asked_and_then_given_up() {
    let mut client = asking();
    let sent = pass(&mut client, seconds(1000));
    let (asks, reset) = sent.split_at(3);
    for ((at, ask), expected) in asks.iter().zip([100, 110, 120]) {
        assert_eq!(*at, seconds(expected));
        assert_eq!((ask.flags, ask.seq), (Flags::ACK, Seq::new(OURS)), "before what is expected");
    }
    let [(at, reset)] = reset else {
        panic!("one segment more: {reset:?}");
    };
    assert_eq!((*at, reset.flags), (seconds(130), Flags::RST | Flags::ACK));
    assert_eq!(client.end(), Some(End::TimedOut));
}

#[test]
fn an_answer_ends_the_questions_until_the_peer_is_silent_again() {
    let mut client = asking();
    assert_eq!(pass(&mut client, seconds(115)).len(), 2);
    client.on_segment(&segment(1, 1, Flags::ACK, 1000), none(), seconds(115));
    assert_eq!(departures(&mut client, seconds(115)).len(), 0);
    assert_eq!(pass(&mut client, seconds(214)).len(), 0);
    assert_eq!(pass(&mut client, seconds(239)).len(), 3);
    assert_eq!(client.end(), None);
}

/// RFC 5482.
#[test]
fn a_peer_that_owes_an_answer_has_the_time_that_the_program_gives_it() {
    let mut client = established(&plain());
    client.set_user_timeout(Duration::from_secs(30));
    assert_eq!(pass(&mut client, seconds(1000)).len(), 0, "it owes nothing");
    client.send(vec![1; 100], seconds(1000)).unwrap();
    assert_eq!(departures(&mut client, seconds(1000)).len(), 1);
    pass(&mut client, seconds(1029));
    assert_eq!(client.end(), None);
    pass(&mut client, seconds(1030));
    assert_eq!(client.end(), Some(End::TimedOut));
}

/// RFC 9293 §3.10.5.
#[test]
fn an_abort_drops_what_waits_and_sends_one_reset() {
    let mut client = established(&plain());
    client.send(vec![1; 5000], Time::ZERO).unwrap();
    let sent =
        departures(&mut client, Time::ZERO).iter().map(Departure::payload_bytes).sum::<usize>();
    client.abort();
    let [reset] = departures(&mut client, Time::ZERO)[..] else {
        panic!("one segment");
    };
    let next = Seq::new(OURS).plus(1).plus(u32::try_from(sent).unwrap());
    assert_eq!((reset.header.flags, reset.header.seq), (Flags::RST | Flags::ACK, next));
    assert_eq!((client.state(), client.end()), (State::Closed, Some(End::Aborted)));
    assert_eq!((client.remembered(), client.next_deadline()), (0, None));
}

/// RFC 9293 §3.6.1, RFC 2525 §2.17.
#[test]
fn a_close_with_unread_bytes_resets_and_one_without_ends_in_order() {
    for (unread, flags) in [(true, Flags::RST | Flags::ACK), (false, Flags::FIN | Flags::ACK)] {
        let mut client = established(&plain());
        let data = segment(1, 1, Flags::ACK, 1000);
        client.on_segment(&data, Piece::whole(vec![7; 100]), Time::ZERO);
        departures(&mut client, Time::ZERO);
        if !unread {
            client.receive().unwrap();
        }
        client.close(Time::ZERO);
        let sent = departures(&mut client, Time::ZERO);
        assert_eq!(sent.last().unwrap().header.flags, flags);
    }
}

/// RFC 1191, RFC 5927 §4: only what is in flight can be too long.
#[test]
fn a_router_that_takes_less_shortens_what_is_sent_again() {
    let config = Config { mtu: 1500, ..plain() };
    for (at, mtu, longest) in [(1, 900, 860), (1, 0, 536), (1, 9000, 1460), (50_000, 900, 1460)] {
        let mut client = established(&config);
        client.on_segment(&segment(1, 1, Flags::ACK, 60_000), none(), Time::ZERO);
        client.send(vec![1; 20_000], Time::ZERO).unwrap();
        departures(&mut client, Time::ZERO);
        client.on_icmp(Report::TooBig { mtu }, Seq::new(OURS).plus(at));
        let mut sent = departures(&mut client, Time::ZERO);
        let first = sent.first().map(|departure| departure.header.seq);
        let again = (longest < 1460).then(|| Seq::new(OURS).plus(1));
        assert_eq!(first, again, "{at} {mtu}: lost segments leave again");
        client.on_segment(&segment(1, 1461, Flags::ACK, 60_000), none(), Time::ZERO);
        sent.extend(departures(&mut client, Time::ZERO));
        let most = sent.iter().map(Departure::payload_bytes).max();
        assert_eq!(most, Some(longest), "{at} {mtu}");
    }
}

/// RFC 7323 §5.
#[test]
fn a_segment_with_an_older_time_stamp_is_answered_and_not_taken() {
    let mut client = established(&Config { time_stamps: true, ..plain() });
    let mut step = |seq, value, now| {
        let mut data = segment(seq, 1, Flags::ACK, 1000);
        data.options.time_stamps = Some(TimeStamps { value, echo: 0 });
        client.on_segment(&data, Piece::whole(vec![7; 10]), now);
        let sent = departures(&mut client, now);
        assert_eq!(sent.len(), 1);
        let echo = sent[0].header.options.time_stamps.unwrap().echo;
        (client.readable_bytes(), echo)
    };
    // What the SYN says is in `established`.
    assert_eq!(step(1, 5, Time::ZERO), (10, 5));
    assert_eq!(step(11, 4, Time::ZERO), (10, 5));
    assert_eq!(step(11, 0xf000_0000, Time::ZERO), (10, 5));
    assert_eq!(step(11, 5, Time::ZERO), (20, 5));
    // After 24 days the clock may have run half its round.
    let late = seconds(25 * 24 * 3600);
    assert_eq!(step(21, 4, late), (30, 4));
}

/// Goal: a thread that waited for its turn with an earlier time in hand sends nothing that the peer would drop.
#[test]
fn time_stamps_do_not_go_back() {
    let mut client = established(&Config { time_stamps: true, ..plain() });
    let mut opening = segment(1, 1, Flags::ACK, 1000);
    opening.options.time_stamps = Some(TimeStamps { value: 5, echo: 0 });
    client.on_segment(&opening, none(), Time::ZERO);
    client.set_no_delay(true);
    let mut stamp = |now| {
        client.send(vec![1; 10], now).unwrap();
        departures(&mut client, now)[0].header.options.time_stamps.unwrap().value
    };
    let later = Time::ZERO.plus(Duration::from_millis(7));
    assert_eq!([stamp(Time::ZERO), stamp(later), stamp(Time::ZERO)], [0, 7, 7]);
    let (handover, _) = client.hand_over(Time::ZERO).unwrap();
    assert_eq!(handover.stamp, Some(7));
}

/// Goal: segments that a router refused leave again although the congestion window holds them back for a while.
/// Method: the window shrinks with the segment, so that some wait; then time for a tail loss probe passes.
#[test]
fn segments_that_were_too_long_all_leave_again() {
    let mut client = established(&plain());
    client.on_segment(&segment(1, 1, Flags::ACK, 60_000), none(), Time::ZERO);
    client.send(vec![1; 14_600], Time::ZERO).unwrap();
    assert_eq!(departures(&mut client, Time::ZERO).len(), 10);
    client.on_icmp(Report::TooBig { mtu: 900 }, Seq::new(OURS).plus(1));
    let mut arrived = vec![false; 14_600];
    for round in 0..10 {
        let now = Time::ZERO.plus(Duration::from_millis(100) * round);
        let later = now.plus(Duration::from_millis(100));
        let mut sent = departures(&mut client, now);
        while let Some(at) = client.next_deadline().filter(|at| *at <= later) {
            client.on_time(at);
            sent.extend(departures(&mut client, at));
        }
        for departure in sent {
            let at = departure.header.seq.since(Seq::new(OURS).plus(1));
            let at = usize::try_from(at).unwrap();
            arrived[at..at + departure.payload_bytes()].fill(true);
        }
        let acked = arrived.iter().take_while(|arrived| **arrived).count();
        let acked = u32::try_from(acked).unwrap();
        client.on_segment(&segment(1, 1 + acked, Flags::ACK, 60_000), none(), later);
    }
    assert_eq!(client.unacknowledged_bytes(), 0);
}

/// RFC 5961 §7 bounds challenges. A stranger that provokes them does not silence the answers to what the peer repeats.
#[test]
fn strays_do_not_use_up_the_answers_to_what_comes_twice() {
    let mut client = established(&plain());
    let data = segment(1, 1, Flags::ACK, 1000);
    client.on_segment(&data, Piece::whole(vec![7; 100]), Time::ZERO);
    departures(&mut client, Time::ZERO);
    let mut answers = |header: &Tcp, bytes, count| {
        let answered = (0..count).filter(|_| {
            client.on_segment(header, Piece::whole(vec![7; bytes]), Time::ZERO);
            departures(&mut client, Time::ZERO).len() == 1
        });
        answered.count()
    };
    // A reset and a SYN in the window, old bytes from far away, and old bytes without a right acknowledgement.
    assert_eq!(answers(&segment(3000, 1, Flags::RST, 0), 0, 5), 5);
    assert_eq!(answers(&segment(101, 1, Flags::SYN, 0), 0, 2), 2);
    assert_eq!(answers(&segment(0x1000_0000, 1, Flags::ACK, 0), 100, 2), 2);
    assert_eq!(answers(&segment(1, 70_000, Flags::ACK, 0), 100, 20), 1);
    assert_eq!(answers(&data, 100, 5000), 1000);
}

#[test]
fn strays_do_not_put_off_the_questions_to_a_silent_peer() {
    let mut client = asking();
    for (seq, ack) in [(0x1000_0000, 1), (1, 70_000)] {
        client.on_segment(&segment(seq, ack, Flags::ACK, 0), none(), seconds(90));
    }
    departures(&mut client, seconds(90));
    assert_eq!(pass(&mut client, seconds(105)).len(), 1);
    // A question of the peer's own shows that it is there.
    client.on_segment(&segment(0, 1, Flags::ACK, 1000), none(), seconds(106));
    assert_eq!(departures(&mut client, seconds(106)).len(), 1);
    assert_eq!(pass(&mut client, seconds(205)).len(), 0);
}

/// RFC 9293 §3.10.7.4.
#[test]
fn only_the_peers_fin_once_more_lengthens_time_wait() {
    for (seq, ack, again) in [(1, 2, true), (0, 2, false), (0x1000_0000, 2, false), (1, 9, false)] {
        let mut client = established(&plain());
        client.close(Time::ZERO);
        departures(&mut client, Time::ZERO);
        client.on_segment(&segment(1, 2, Flags::FIN | Flags::ACK, 1000), none(), Time::ZERO);
        departures(&mut client, Time::ZERO);
        assert_eq!(client.state(), State::TimeWait);
        client.on_segment(&segment(seq, ack, Flags::FIN | Flags::ACK, 0), none(), seconds(50));
        departures(&mut client, seconds(50));
        pass(&mut client, seconds(61));
        assert_eq!(client.state() == State::TimeWait, again, "{seq} {ack}");
        pass(&mut client, seconds(111));
        assert_eq!(client.state(), State::Closed);
    }
}

/// RFC 9293 §3.8.6.1 has a peer hold its window at 0 for as long as it likes; but not one that nothing waits for.
#[test]
fn a_window_that_stays_closed_is_borne_until_the_program_has_closed() {
    let mut client = established(&plain());
    client.set_user_timeout(Duration::from_secs(30));
    let answer = segment(1, 1, Flags::ACK, 0);
    client.on_segment(&answer, none(), Time::ZERO);
    client.send(vec![1; 100], Time::ZERO).unwrap();
    assert_eq!(departures(&mut client, Time::ZERO).len(), 0);
    let closes = seconds(3600);
    let mut probes = 0;
    while let Some(now) = client.next_deadline().filter(|at| *at <= seconds(7200)) {
        client.on_time(now);
        for _ in departures(&mut client, now) {
            client.on_segment(&answer, none(), now);
            probes += 1;
        }
        if now < closes {
            assert_eq!(client.end(), None);
        } else {
            client.close(now);
        }
        if client.state() == State::Closed {
            assert!(now.since(closes) < Duration::from_secs(300), "{now:?}");
        }
    }
    assert_eq!(client.end(), Some(End::TimedOut));
    assert!(probes > 30, "{probes}");
}

/// RFC 6582 §3.2, step 3.
#[test]
fn without_selective_acknowledgements_a_partial_one_sends_the_next_hole_at_once() {
    let config = Config { congestion: Algorithm::NewReno, sack: false, ..plain() };
    let mut client = established(&config);
    client.on_segment(&segment(1, 1, Flags::ACK, 60_000), none(), Time::ZERO);
    client.send(vec![1; 14_600], Time::ZERO).unwrap();
    assert_eq!(departures(&mut client, Time::ZERO).len(), 10);
    let mut step = |ack| {
        client.on_segment(&segment(1, ack, Flags::ACK, 60_000), none(), Time::ZERO);
        let sent = departures(&mut client, Time::ZERO);
        sent.iter().map(|departure| departure.header.seq.since(Seq::new(OURS))).collect::<Vec<_>>()
    };
    // The first and two more segments of ten are lost; few of the repeated acknowledgements arrive.
    assert_eq!([step(1), step(1), step(1)], [vec![], vec![], vec![1]]);
    assert_eq!(step(1 + 4 * 1460), [1 + 4 * 1460]);
    assert_eq!(step(1 + 6 * 1460), [1 + 6 * 1460]);
    assert_eq!(step(1 + 10 * 1460), []);
}

/// Goal: time-outs of the connection come when they are due, not with the next retransmission.
#[test]
fn a_silent_peer_is_given_up_at_the_moment_that_the_program_has_chosen() {
    let config = Config {
        handshake_timeout: Duration::from_secs(10),
        user_timeout: Duration::from_secs(20),
        ..plain()
    };
    let mut lonely = Connection::connect(&config, names(20), Time::ZERO);
    let mut left = established(&config);
    left.send(vec![1; 100], Time::ZERO).unwrap();
    for (connection, limit) in [(&mut lonely, 10), (&mut left, 20)] {
        departures(connection, Time::ZERO);
        let before = Time::from_nanos(seconds(limit).nanos() - 1);
        pass(connection, before);
        assert_eq!(connection.end(), None);
        assert_eq!(connection.next_deadline(), Some(seconds(limit)));
        pass(connection, seconds(limit));
        assert_eq!(connection.end(), Some(End::TimedOut));
    }
}

/// RFC 6298 §2 and §5.5: from one second on, the wait doubles.
#[test]
fn what_a_program_sends_before_the_handshake_does_not_change_when_syns_leave() {
    for corked in [false, true] {
        let mut client = Connection::connect(&plain(), names(20), Time::ZERO);
        client.set_corked(corked);
        client.send(vec![1; 100], Time::ZERO).unwrap();
        assert_eq!(departures(&mut client, Time::ZERO).len(), 1);
        let sent = pass(&mut client, seconds(60));
        assert!(sent.iter().all(|(_, header)| header.flags == Flags::SYN));
        let at: Vec<_> = sent.iter().map(|(at, _)| *at).collect();
        assert_eq!(at, [1, 3, 7, 15, 31].map(seconds), "{corked}");
    }
}

/// RFC 9293 §3.7.1.
#[test]
fn a_peer_that_does_not_say_its_longest_segment_gets_the_default_of_its_protocol() {
    for (ip_header_bytes, longest) in [(20, 536), (40, 1220)] {
        let mut client = Connection::connect(&plain(), names(ip_header_bytes), Time::ZERO);
        departures(&mut client, Time::ZERO);
        client.on_segment(&segment(0, 1, Flags::SYN | Flags::ACK, 9000), none(), Time::ZERO);
        client.send(vec![1; 9000], Time::ZERO).unwrap();
        let sent = departures(&mut client, Time::ZERO);
        assert_eq!(sent.iter().map(Departure::payload_bytes).max(), Some(longest));
    }
}

/// Goal: a whole window of full segments is kept while the first is missing, however large the window is.
#[test]
fn a_hole_costs_one_segment_whatever_the_window_is() {
    for receive_bytes_max in [5000, 60_000, 8 << 20] {
        let config = Config { receive_bytes_max, ..plain() };
        let mut client = Connection::connect(&config, names(20), Time::ZERO);
        departures(&mut client, Time::ZERO);
        let mut syn = segment(0, 1, Flags::SYN | Flags::ACK, 1000);
        syn.options.window_scale = Some(0);
        client.on_segment(&syn, none(), Time::ZERO);
        departures(&mut client, Time::ZERO);
        let segments = receive_bytes_max / 536;
        for number in (1..segments).chain([0]) {
            let data = segment(1 + number * 536, 1, Flags::ACK, 1000);
            client.on_segment(&data, Piece::whole(vec![7; 536]), Time::ZERO);
            departures(&mut client, Time::ZERO);
        }
        assert_eq!(client.readable_bytes(), u64::from(segments * 536));
    }
}
