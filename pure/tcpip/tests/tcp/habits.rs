//! When small segments, acknowledgements and windows leave, and how fast: with a peer that says what the test needs.

use std::time::Duration;

use adverb_tcpip::Time;
use adverb_tcpip::tcp::{Config, Connection, Departure, Flags, Piece, Seq, Tcp};

use crate::hostile::{THEIRS, established, plain, segment};

type Client = Connection<Vec<u8>>;

fn millis(millis: u64) -> Time {
    Time::ZERO.plus(Duration::from_millis(millis))
}

fn departures(client: &mut Client, now: Time) -> Vec<Departure> {
    std::iter::from_fn(|| client.poll_transmit(now)).collect()
}

/// Payloads of what leaves now.
fn sizes(client: &mut Client, now: Time) -> Vec<usize> {
    departures(client, now).iter().map(Departure::payload_bytes).collect()
}

fn say(client: &mut Client, header: &Tcp, now: Time) {
    assert_eq!(client.on_segment(header, Piece::whole(vec![]), now), None);
}

/// The peer's bytes from `seq` on arrive; what is acknowledged at once, if anything is.
fn arrive(client: &mut Client, seq: u32, bytes: usize, now: Time) -> Option<u32> {
    let data = segment(seq, 1, Flags::ACK, 60_000);
    assert_eq!(client.on_segment(&data, Piece::whole(vec![7; bytes]), now), None);
    acknowledged(client, now)
}

/// What leaves acknowledges so much of the peer's stream, if anything leaves.
fn acknowledged(client: &mut Client, now: Time) -> Option<u32> {
    let sent = departures(client, now);
    assert!(sent.len() <= 1, "one acknowledgement: {sent:?}");
    sent.first().map(|departure| departure.header.ack.since(Seq::new(THEIRS)).unsigned_abs())
}

/// A connection whose peer has sent segments of 100 bytes until none is acknowledged at once for being early, and the number
/// of the next byte.
fn past_the_begin(config: &Config) -> (Client, u32) {
    let mut client = established(config);
    let mut next = 1;
    for count in 0..QUICK_SEGMENTS {
        let acked = arrive(&mut client, next, 100, Time::ZERO);
        next += 100;
        assert_eq!(acked, Some(next), "segment {count}");
        client.receive().unwrap();
    }
    (client, next)
}

/// RFC 5681 §4.2, RFC 9293 §3.8.6.3. The peer's window grows by acknowledgements at the begin, so that none is delayed there.
#[test]
fn the_first_segments_are_acknowledged_at_once_and_then_every_second_one() {
    let (mut client, next) = past_the_begin(&long());
    for round in 0..3 {
        let first = next + 200 * round;
        assert_eq!(arrive(&mut client, first, 100, Time::ZERO), None);
        assert_eq!(arrive(&mut client, first + 100, 100, Time::ZERO), Some(first + 200));
    }
}

#[test]
fn a_single_segment_is_acknowledged_after_the_delay() {
    let (mut client, next) = past_the_begin(&long());
    assert_eq!(arrive(&mut client, next, 100, millis(10)), None);
    assert_eq!(client.next_deadline(), Some(millis(50)));
    assert_eq!(acknowledged(&mut client, millis(49)), None);
    client.on_time(millis(50));
    assert_eq!(acknowledged(&mut client, millis(50)), Some(next + 100));
    assert_eq!(client.next_deadline(), None);
}

/// A segment that is sent anyway acknowledges what has come.
#[test]
fn payload_takes_a_delayed_acknowledgement_along() {
    let (mut client, next) = past_the_begin(&long());
    assert_eq!(arrive(&mut client, next, 100, Time::ZERO), None);
    client.send(vec![1; 10], Time::ZERO).unwrap();
    assert_eq!(acknowledged(&mut client, Time::ZERO), Some(next + 100));
    assert_eq!(acknowledged(&mut client, millis(100)), None);
}

/// RFC 5681 §4.2: what makes a hole, and what fills one, is acknowledged at once.
#[test]
fn no_acknowledgement_about_a_hole_is_delayed() {
    let (mut client, next) = past_the_begin(&long());
    assert_eq!(arrive(&mut client, next + 100, 100, Time::ZERO), Some(next));
    assert_eq!(arrive(&mut client, next, 50, Time::ZERO), Some(next + 50), "part of it");
    assert_eq!(arrive(&mut client, next + 50, 50, Time::ZERO), Some(next + 200));
}

#[test]
fn with_quick_acknowledgements_none_is_delayed() {
    let (mut client, next) = past_the_begin(&Config { quick_ack: true, ..long() });
    for count in 0..50 {
        let next = next + 100 * count;
        assert_eq!(arrive(&mut client, next, 100, Time::ZERO), Some(next + 100));
        client.receive().unwrap();
    }
}

/// As with the kernel's `TCP_QUICKACK`, which is forgotten after a while.
#[test]
fn a_program_asks_for_quick_acknowledgements_for_a_while() {
    let (mut client, mut next) = past_the_begin(&long());
    assert_eq!(arrive(&mut client, next, 100, Time::ZERO), None);
    client.set_quick_ack(true);
    assert_eq!(acknowledged(&mut client, Time::ZERO), Some(next + 100), "what was owed");
    for _ in 0..QUICK_SEGMENTS {
        next += 100;
        assert_eq!(arrive(&mut client, next, 100, Time::ZERO), Some(next + 100));
        client.receive().unwrap();
    }
    next += 100;
    assert_eq!(arrive(&mut client, next, 100, Time::ZERO), None);
    let mut fresh = established(&long());
    fresh.set_quick_ack(false);
    assert_eq!(arrive(&mut fresh, 1, 100, Time::ZERO), None);
}

/// A connection of which all that was sent is acknowledged, and whose peer takes 60,000 bytes.
fn open(config: &Config) -> Client {
    let mut client = established(config);
    say(&mut client, &segment(1, 1, Flags::ACK, 60_000), Time::ZERO);
    client
}

/// RFC 9293 §3.7.4, RFC 896: a small segment waits while others are in flight.
#[test]
fn small_segments_wait_for_the_acknowledgement_of_those_before() {
    let mut client = open(&plain());
    client.send(vec![1; 100], Time::ZERO).unwrap();
    assert_eq!(sizes(&mut client, Time::ZERO), [100], "nothing is in flight");
    for _ in 0..3 {
        client.send(vec![1; 200], Time::ZERO).unwrap();
        assert_eq!(sizes(&mut client, Time::ZERO), [0_usize; 0]);
    }
    client.send(vec![1; 1460], Time::ZERO).unwrap();
    assert_eq!(sizes(&mut client, Time::ZERO), [1460], "a full segment does not wait");
    say(&mut client, &segment(1, 101, Flags::ACK, 60_000), Time::ZERO);
    assert_eq!(sizes(&mut client, Time::ZERO), [0_usize; 0], "not all is acknowledged");
    say(&mut client, &segment(1, 1561, Flags::ACK, 60_000), Time::ZERO);
    assert_eq!(sizes(&mut client, Time::ZERO), [600]);
}

#[test]
fn small_segments_leave_at_once_if_the_program_says_so() {
    let mut from_the_begin = open(&Config { no_delay: true, ..plain() });
    let mut later = open(&plain());
    later.set_no_delay(true);
    for client in [&mut from_the_begin, &mut later] {
        for _ in 0..3 {
            client.send(vec![1; 100], Time::ZERO).unwrap();
            assert_eq!(sizes(client, Time::ZERO), [100]);
        }
    }
    // What waits leaves as soon as the program says so.
    let mut client = open(&plain());
    client.send(vec![1; 100], Time::ZERO).unwrap();
    client.send(vec![1; 1500], Time::ZERO).unwrap();
    assert_eq!(sizes(&mut client, Time::ZERO), [1460]);
    client.set_no_delay(true);
    assert_eq!(sizes(&mut client, Time::ZERO), [140]);
}

/// The last bytes of a stream do not wait.
#[test]
fn a_small_segment_with_the_end_of_the_stream_leaves_at_once() {
    let mut client = open(&plain());
    client.send(vec![1; 100], Time::ZERO).unwrap();
    assert_eq!(sizes(&mut client, Time::ZERO), [100]);
    client.send(vec![1; 100], Time::ZERO).unwrap();
    client.shut_down();
    assert_eq!(sizes(&mut client, Time::ZERO), [100]);
}

/// RFC 9293 §3.8.6.2.1: a small part of what the peer ever took is not filled at once, but after a while.
#[test]
fn a_small_window_is_not_filled_before_a_while_has_passed() {
    for (window, leaves) in [(1, false), (499, false), (500, true), (999, true)] {
        let mut client = established(&plain()); // The peer takes 1000 bytes.
        say(&mut client, &segment(1, 1, Flags::ACK, window), Time::ZERO);
        client.send(vec![1; 5000], Time::ZERO).unwrap();
        let whole = usize::from(window);
        let at_once = if leaves { vec![whole] } else { vec![] };
        assert_eq!(sizes(&mut client, Time::ZERO), at_once, "{window}");
        if !leaves {
            assert_eq!(client.next_deadline(), Some(millis(200)), "{window}");
            client.on_time(millis(200));
            assert_eq!(sizes(&mut client, millis(200)), [whole]);
        }
    }
    // What is in flight brings an acknowledgement, and with it more of the window.
    let mut client = open(&plain());
    client.send(vec![1; 5000], Time::ZERO).unwrap();
    assert_eq!(sizes(&mut client, Time::ZERO).len(), 3);
    say(&mut client, &segment(1, 1 + 1460, Flags::ACK, 2920 + 300), Time::ZERO);
    assert_eq!(sizes(&mut client, Time::ZERO), [0_usize; 0]);
    say(&mut client, &segment(1, 1 + 2920, Flags::ACK, 60_000), Time::ZERO);
    say(&mut client, &segment(1, 1 + 4380, Flags::ACK, 60_000), Time::ZERO);
    assert_eq!(sizes(&mut client, Time::ZERO), [620]);
}

/// Reads so many bytes.
fn read(client: &mut Client, bytes: usize) {
    assert_eq!(client.read(&mut vec![0; bytes]), bytes);
}

/// Goal: RFC 9293 §3.8.6.2.2, a window opens by a full segment, or by half of a buffer that is smaller than two.
/// Method: the window is filled, and the program reads by 100 bytes.
#[test]
fn a_window_does_not_open_by_small_steps() {
    for (receive_bytes_max, step) in [(5000_u32, 1500_usize), (2000, 1000)] {
        let mut client = established(&Config { receive_bytes_max, ..plain() });
        let mut next = 1;
        while next <= receive_bytes_max {
            arrive(&mut client, next, 500, Time::ZERO);
            next += 500;
        }
        let mut reads = 0;
        let opened = loop {
            read(&mut client, 100);
            reads += 100;
            if let [departure] = departures(&mut client, Time::ZERO)[..] {
                break usize::from(departure.header.window);
            }
        };
        assert_eq!((reads, opened), (step, step), "{receive_bytes_max}");
    }
}

/// Goal: an acknowledgement that leaves for another reason does not open a window by a small step, either.
/// Method: the peer asks, as it does while the window is shut.
#[test]
fn a_question_does_not_open_a_window_by_a_small_step() {
    let mut client = established(&plain());
    for count in 0..5 {
        arrive(&mut client, 1 + 1000 * count, 1000, Time::ZERO);
    }
    let ask = |client: &mut Client| {
        say(client, &segment(5000, 1, Flags::ACK, 60_000), Time::ZERO);
        let sent = departures(client, Time::ZERO);
        assert_eq!(sent.len(), 1);
        sent[0].header.window
    };
    assert_eq!(ask(&mut client), 0);
    read(&mut client, 1000);
    assert_eq!(ask(&mut client), 0, "less than a segment");
    read(&mut client, 1000);
    assert_eq!(ask(&mut client), 2000);
    // What was allowed stays so.
    read(&mut client, 500);
    assert_eq!(ask(&mut client), 2000);
}

/// A connection with a rate of a full segment each 10 ms, and bytes to send.
fn paced(segments: usize) -> Client {
    let mut client = open(&plain());
    client.set_pacing(Some(146_000));
    client.send(vec![1; 1460 * segments], Time::ZERO).unwrap();
    client
}

#[test]
fn a_paced_connection_sends_a_segment_when_it_is_due() {
    let mut client = paced(5);
    assert_eq!(sizes(&mut client, Time::ZERO), [1460]);
    let (mut left, mut now, mut looks) = (Vec::new(), Time::ZERO, 0);
    while left.len() < 4 {
        now = client.next_deadline().unwrap().max(now);
        client.on_time(now);
        left.extend(sizes(&mut client, now).iter().map(|bytes| (now, *bytes)));
        looks += 1;
    }
    assert_eq!(left, [10, 20, 30, 40].map(|at| (millis(at), 1460)));
    assert!(looks < 10, "{looks} looks");
}

/// Goal: a clock that is late costs nothing, and a pause is no reason for a burst.
#[test]
fn a_paced_connection_makes_good_what_a_late_clock_has_cost_and_no_more() {
    let mut client = paced(8);
    let after = |micros| Time::ZERO.plus(Duration::from_micros(micros));
    for (micros, sent) in [(0, 1), (10_900, 1), (19_999, 0), (20_000, 1), (59_000, 1), (67_999, 0)]
    {
        client.on_time(after(micros));
        assert_eq!(sizes(&mut client, after(micros)).len(), sent, "{micros}");
    }
}

#[test]
fn a_rate_holds_back_segments_and_nothing_else() {
    let mut client = paced(3);
    assert_eq!(sizes(&mut client, Time::ZERO), [1460]);
    // Acknowledgements.
    assert_eq!(arrive(&mut client, 1, 100, Time::ZERO), Some(101));
    // The same rate once more does not make room.
    client.set_pacing(Some(146_000));
    assert_eq!(sizes(&mut client, Time::ZERO), [0_usize; 0]);
    client.set_pacing(None);
    assert_eq!(sizes(&mut client, Time::ZERO), [1460, 1460]);
    let mut client = open(&Config { pacing: Some(146_000), ..plain() });
    client.send(vec![1; 2920], millis(10)).unwrap();
    assert_eq!(sizes(&mut client, millis(10)), [1460]);
}

/// A peer whose window takes all that a test sends.
fn long() -> Config {
    Config { receive_bytes_max: 60_000, ..plain() }
}

/// Segments that are acknowledged at once at the begin.
const QUICK_SEGMENTS: u32 = 16;
