//! Scripts of segments: handshakes and ends that go another way, windows that shrink, and losses that were none.

use std::time::Duration;

use adverb_tcpip::Time;
use adverb_tcpip::tcp::{
    Algorithm, Config, Connection, Departure, End, Flags, Names, Options, Piece, Seq, State, Tcp,
    TimeStamps,
};

use crate::hostile::{OURS, established, plain, segment};

type Client = Connection<Vec<u8>>;

fn none() -> Piece<Vec<u8>> {
    Piece::whole(vec![])
}

fn millis(millis: u64) -> Time {
    Time::ZERO.plus(Duration::from_millis(millis))
}

fn departures(client: &mut Client, now: Time) -> Vec<Departure> {
    std::iter::from_fn(|| client.poll_transmit(now)).collect()
}

/// Where payloads that leave now begin in our stream, the first byte of which is at 1, and how long they are.
fn places(client: &mut Client, now: Time) -> Vec<(u32, usize)> {
    let place = |departure: &Departure| {
        let at = departure.header.seq.since(Seq::new(OURS)).unsigned_abs();
        (at, departure.payload_bytes())
    };
    departures(client, now).iter().filter(|one| one.payload_bytes() > 0).map(place).collect()
}

/// The same of what leaves until `end`, with the times.
fn places_until(client: &mut Client, end: Time) -> Vec<(Time, (u32, usize))> {
    let mut sent = Vec::new();
    while let Some(now) = client.next_deadline().filter(|at| *at <= end) {
        client.on_time(now);
        sent.extend(places(client, now).into_iter().map(|place| (now, place)));
    }
    sent
}

fn ack(client: &mut Client, ack: u32, window: u16, now: Time) {
    assert_eq!(client.on_segment(&segment(1, ack, Flags::ACK, window), none(), now), None);
}

/// The peer acknowledges, and says besides what else has come.
fn sack(client: &mut Client, ack: u32, blocks: &[(u32, u32)], now: Time) {
    let mut header = segment(1, ack, Flags::ACK, 60_000);
    for (from, to) in blocks {
        header.options.sack.push(Seq::new(OURS).plus(*from), Seq::new(OURS).plus(*to));
    }
    assert_eq!(client.on_segment(&header, none(), now), None);
}

/// An end that has got a SYN and answered it, and the answer.
fn answering() -> (Client, Tcp) {
    let (first, stamp_origin) = (Seq::new(OURS), 0);
    let names = Names { local_port: 1, remote_port: 2, ip_header_bytes: 20, first, stamp_origin };
    let syn = segment(0, 0, Flags::SYN, 1000);
    let mut server = Connection::answer(&plain(), names, &syn, Time::ZERO);
    let [answer] = departures(&mut server, Time::ZERO)[..] else { panic!("one answer") };
    assert_eq!(answer.header.flags, Flags::SYN | Flags::ACK);
    (server, answer.header)
}

/// RFC 9293 §3.10.7.4, first: what is not acceptable is answered, and the SYN with it leaves again when it is due.
#[test]
fn a_syn_that_comes_twice_is_answered_and_changes_nothing() {
    let (mut server, answer) = answering();
    let syn = segment(0, 0, Flags::SYN, 1000);
    assert_eq!(server.on_segment(&syn, none(), millis(10)), None);
    let [again] = departures(&mut server, millis(10))[..] else { panic!("one answer") };
    assert_eq!((again.header.flags, again.header.ack), (Flags::ACK, answer.ack));
    assert_eq!(server.state(), State::SynReceived);
    server.on_time(millis(1000));
    let [again] = departures(&mut server, millis(1000))[..] else { panic!("one answer") };
    assert_eq!((again.header.flags, again.header.seq), (answer.flags, answer.seq));
    assert_eq!(server.on_segment(&segment(1, 1, Flags::ACK, 1000), none(), millis(1001)), None);
    assert_eq!(server.state(), State::Established);
}

/// RFC 9293 §3.10.7.4, second, and RFC 5961 §3.2.
#[test]
fn a_reset_ends_an_answered_handshake_only_at_the_exact_number() {
    for (seq, ends, answers) in [(1, true, 0), (2, false, 1), (900, false, 1), (70_000, false, 0)] {
        let (mut server, _) = answering();
        assert_eq!(server.on_segment(&segment(seq, 0, Flags::RST, 0), none(), Time::ZERO), None);
        assert_eq!(server.end() == Some(End::Refused), ends, "{seq}");
        assert_eq!(server.state() == State::Closed, ends, "{seq}");
        assert_eq!(departures(&mut server, Time::ZERO).len(), answers, "{seq}");
    }
}

/// RFC 9293 §3.10.7.4, fifth: an acknowledgement of what was not sent is answered with a reset of that number.
#[test]
fn a_handshake_outlives_an_acknowledgement_of_what_was_not_sent() {
    for wrong in [0, 2, 5000] {
        let (mut server, _) = answering();
        let header = segment(1, wrong, Flags::ACK, 1000);
        let reset = server.on_segment(&header, none(), Time::ZERO).expect("a reset");
        assert_eq!((reset.flags, reset.seq), (Flags::RST, header.ack));
        assert_eq!(server.state(), State::SynReceived);
        assert_eq!(server.on_segment(&segment(1, 1, Flags::ACK, 1000), none(), Time::ZERO), None);
        assert_eq!(server.state(), State::Established);
    }
}

/// RFC 9293 §3.6, figure 13: both FINs are on their way before either arrives.
#[test]
fn ends_that_cross_wait_for_the_acknowledgement_and_then_for_late_segments() {
    for unread in [0, 100] {
        let mut client = established(&plain());
        client.shut_down();
        let [fin] = departures(&mut client, Time::ZERO)[..] else { panic!("one segment") };
        assert_eq!(fin.header.flags, Flags::FIN | Flags::ACK);
        assert_eq!(client.state(), State::FinWait1);
        let theirs = segment(1, 1, Flags::FIN | Flags::ACK, 1000);
        client.on_segment(&theirs, Piece::whole(vec![7; unread]), Time::ZERO);
        assert_eq!(client.state(), State::Closing);
        let [answer] = departures(&mut client, Time::ZERO)[..] else { panic!("one segment") };
        let next = segment(2 + u32::try_from(unread).unwrap(), 2, Flags::ACK, 1000);
        assert_eq!((answer.header.flags, answer.header.ack), (Flags::ACK, next.seq));
        assert_eq!(client.readable_bytes(), u64::try_from(unread).unwrap());
        client.on_segment(&next, none(), millis(5));
        assert_eq!(client.state(), State::TimeWait);
        client.on_time(millis(60_004));
        assert_eq!(client.state(), State::TimeWait);
        client.on_time(millis(60_005));
        assert_eq!((client.state(), client.end()), (State::Closed, None));
    }
}

/// Goal: our FIN leaves again until it is acknowledged, also after the peer's has come.
#[test]
fn an_end_that_is_lost_while_ends_cross_leaves_again() {
    let mut client = established(&plain());
    client.shut_down();
    departures(&mut client, Time::ZERO);
    client.on_segment(&segment(1, 1, Flags::FIN | Flags::ACK, 1000), none(), Time::ZERO);
    departures(&mut client, Time::ZERO);
    let at = client.next_deadline().unwrap();
    client.on_time(at);
    let [again] = departures(&mut client, at)[..] else { panic!("one segment") };
    assert_eq!(
        (again.header.flags, again.header.seq),
        (Flags::FIN | Flags::ACK, Seq::new(OURS).plus(1))
    );
    assert_eq!(client.state(), State::Closing);
}

/// A connection with ten full segments on their way, the peer's window as it was said last: 60,000 bytes.
fn with_ten_segments(config: &Config) -> Client {
    let mut client = established(config);
    ack(&mut client, 1, 60_000, Time::ZERO);
    client.send(vec![1; 20_000], Time::ZERO).unwrap();
    assert_eq!(places(&mut client, Time::ZERO).len(), 10);
    client
}

/// Goal: RFC 9293 §3.8.6, a peer that takes back what it has allowed harms nothing: no more is sent than it takes now, what
/// was sent leaves again if it is lost, and the rest when the window opens.
#[test]
fn a_window_that_shrinks_is_kept_and_nothing_is_forgotten() {
    let mut client = with_ten_segments(&plain());
    ack(&mut client, 1 + 1460, 500, millis(10));
    assert_eq!(places(&mut client, millis(10)), []);
    // The peer has dropped the nine others.
    let again = places_until(&mut client, millis(400));
    assert!(again.iter().any(|(_, (at, _))| *at == 1 + 1460), "{again:?}");
    assert!(again.iter().all(|(_, (at, _))| *at <= 13_141), "beyond what was sent: {again:?}");
    ack(&mut client, 1 + 1460 + 500, 60_000, millis(400));
    let (mut now, mut acked) = (millis(400), 1 + 1460 + 500);
    while acked < 20_001 {
        let sent = places(&mut client, now);
        let sent = if sent.is_empty() {
            now = client.next_deadline().expect("it goes on");
            client.on_time(now);
            places(&mut client, now)
        } else {
            sent
        };
        for (at, bytes) in sent {
            let end = at + u32::try_from(bytes).unwrap();
            acked = if at <= acked { acked.max(end) } else { acked };
        }
        ack(&mut client, acked, 60_000, now);
        assert!(now < millis(60_000), "{acked}");
    }
    assert_eq!((client.unacknowledged_bytes(), client.end()), (0, None));
}

/// Goal: RFC 2018 §8, a peer may forget what it has said to have, and gets it again after a time-out.
#[test]
fn what_a_peer_has_said_to_have_leaves_again_if_it_forgets_it() {
    let mut client = with_ten_segments(&plain());
    sack(&mut client, 1, &[(1 + 1460, 14_601)], millis(20));
    let again = places(&mut client, millis(20));
    assert_eq!(again.first(), Some(&(1, 1460)), "the first was lost");
    // It has arrived, and the peer has nothing of what follows.
    ack(&mut client, 1461, 60_000, millis(40));
    let before = places(&mut client, millis(40));
    assert!(before.iter().all(|(at, _)| *at >= 14_601), "it believes the peer: {before:?}");
    let (mut acked, mut repeated) = (1461, 0);
    while acked < 14_601 {
        let now = client.next_deadline().expect("it goes on");
        assert!(now < millis(60_000), "{acked}");
        client.on_time(now);
        for _ in 0..2 {
            for (at, bytes) in places(&mut client, now) {
                if at == acked {
                    acked += u32::try_from(bytes).unwrap();
                    repeated += 1;
                }
            }
            ack(&mut client, acked, 60_000, now);
        }
    }
    assert!(repeated >= 9, "{repeated} of nine");
    assert_eq!(client.end(), None);
}

/// A connection whose round trip is known to be 20 ms, and which sends small segments at once.
fn with_round_trip(config: &Config) -> Client {
    let (first, stamp_origin) = (Seq::new(OURS), 0);
    let names = Names { local_port: 1, remote_port: 2, ip_header_bytes: 20, first, stamp_origin };
    let mut client = Connection::connect(&Config { no_delay: true, ..*config }, names, Time::ZERO);
    departures(&mut client, Time::ZERO);
    let mut syn = segment(0, 1, Flags::SYN | Flags::ACK, 60_000);
    (syn.options.sack_permitted, syn.options.mss) = (true, Some(1460));
    client.on_segment(&syn, none(), millis(20));
    departures(&mut client, millis(20));
    client.send(vec![1; 100], millis(20)).unwrap();
    assert_eq!(places(&mut client, millis(20)), [(1, 100)]);
    ack(&mut client, 101, 60_000, after(0));
    assert_eq!(client.round_trip(), Some(Duration::from_millis(20)));
    client
}

/// So long after such a connection has got its first answer.
fn after(milliseconds: u64) -> Time {
    millis(40 + milliseconds)
}

/// RFC 8985 §7.2 and §7.3: after two round trips without an answer the last segment leaves again, once.
#[test]
fn a_probe_for_the_tail_leaves_after_two_round_trips_and_once() {
    let mut client = with_round_trip(&plain());
    for _ in 0..2 {
        client.send(vec![1; 1460], after(0)).unwrap();
    }
    assert_eq!(places(&mut client, after(0)), [(101, 1460), (1561, 1460)]);
    let sent = places_until(&mut client, after(180));
    assert_eq!(sent, [(after(42), (1561, 1460))]);
}

/// RFC 8985 §7.3: new bytes are a better probe.
#[test]
fn a_probe_for_the_tail_takes_new_bytes_if_there_are_any() {
    let mut client = with_round_trip(&Config { congestion: Algorithm::NewReno, ..plain() });
    client.send(vec![1; 40_000], after(0)).unwrap();
    let sent = places(&mut client, after(0));
    let (last, bytes) = *sent.last().unwrap();
    let next = last + u32::try_from(bytes).unwrap();
    assert!(next < 40_101, "the congestion window holds some back");
    let probes = places_until(&mut client, after(80));
    assert_eq!(probes, [(after(42), (next, 1460))]);
}

/// RFC 8985 §7.4: the answer shows whether the probe has repaired a loss, for which the window shrinks, or has arrived
/// twice.
#[test]
fn a_loss_that_a_probe_has_repaired_counts_and_one_that_was_none_does_not() {
    // Nothing says that the probe was needless, or an answer of its own, or one that is of more.
    for (alone, with_more) in [(false, false), (true, false), (false, true)] {
        let mut client = with_round_trip(&plain());
        client.send(vec![1; 2920], after(0)).unwrap();
        assert_eq!(places(&mut client, after(0)), [(101, 1460), (1561, 1460)]);
        assert_eq!(places_until(&mut client, after(60)), [(after(42), (1561, 1460))]);
        let before = client.congestion_window();
        ack(&mut client, 3021, 60_000, after(62));
        // An answer to what has left after the probe: a copy would have come before it.
        client.send(vec![1; 1460], after(62)).unwrap();
        assert_eq!(places(&mut client, after(62)), [(3021, 1460)]);
        if alone {
            sack(&mut client, 3021, &[(1561, 3021)], after(63));
        }
        let blocks = [(1561, 3021)];
        sack(&mut client, 4481, &blocks[..usize::from(with_more)], after(82));
        let shrinks = client.congestion_window() < before;
        assert_eq!(shrinks, !alone && !with_more, "{alone} {with_more}");
    }
}

/// Goal: RFC 2883, RFC 8985 §6.2: where segments that were only late have been sent again, the next that are as late are
/// waited for.
/// Method: a segment arrives half a round trip behind those that follow it, again and again.
#[test]
fn what_arrived_twice_teaches_to_wait_for_what_is_late() {
    let mut client = with_round_trip(&Config { congestion: Algorithm::None, ..plain() });
    let (mut from, mut now) = (101_u32, after(0));
    // How many leave again of three segments, the first of which comes so late.
    let mut needless = |late: u64, client: &mut Client| {
        client.send(vec![1; 3 * 1460], now).unwrap();
        assert_eq!(places(client, now).len(), 3);
        let end = from + 3 * 1460;
        now = now.plus(Duration::from_millis(20));
        sack(client, from, &[(from + 1460, end)], now);
        let mut again = places(client, now).len();
        now = now.plus(Duration::from_millis(late));
        again += places_until(client, now).len();
        sack(client, end, &[], now);
        // What was sent again arrives, and is reported.
        now = now.plus(Duration::from_millis(10));
        if again > 0 {
            sack(client, end, &[(from, from + 1460)], now);
        }
        assert_eq!(places_until(client, now), []);
        from = end;
        again
    };
    assert_eq!(needless(3, &mut client), 0, "less than a quarter of a round trip");
    let counts = [10, 10, 10, 10].map(|late| needless(late, &mut client));
    assert_eq!((counts[0], counts[3]), (1, 0), "{counts:?}");
}

/// RFC 6191 §2: a SYN with a later time stamp begins anew although its number is an old one, and one with an earlier time
/// stamp does not whatever its number is.
#[test]
fn time_stamps_alone_say_whether_time_wait_yields() {
    for (stamps, seq, stamp, yields) in [
        (true, 0x8000_0010, 100, true),
        (true, 0x8000_0010, 6, true),
        (true, 0x8000_0010, 5, false),
        (true, 100, 5, true),
        (true, 100, 4, false),
        (true, 0x8000_0010, 0x8000_0006, false),
        (false, 0x8000_0010, 100, false),
        (false, 100, 4, true),
    ] {
        let mut client = established(&Config { time_stamps: stamps, ..plain() });
        client.shut_down();
        departures(&mut client, Time::ZERO);
        let mut fin = segment(1, 2, Flags::FIN | Flags::ACK, 1000);
        fin.options.time_stamps = stamps.then_some(TimeStamps { value: 5, echo: 0 });
        client.on_segment(&fin, none(), Time::ZERO);
        assert_eq!(client.state(), State::TimeWait);
        let mut syn = segment(seq, 0, Flags::SYN, 1000);
        syn.options = Options {
            time_stamps: Some(TimeStamps { value: stamp, echo: 0 }),
            ..Options::default()
        };
        assert_eq!(client.yields_to(&syn), yields, "{stamps} {seq:#x} {stamp:#x}");
    }
}
