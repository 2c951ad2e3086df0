//! Segments by the shorter way of header prediction: the same as by the way of all others.

use std::time::Duration;

use adverb_fabric::Random;
use adverb_tcpip::Time;
use adverb_tcpip::tcp::{Answer, Config, Connection, Events, Flags, Piece, Seq, Tcp, TimeStamps};

use crate::hostile::{OURS, established, segment};

/// One connection, twice: what comes to the first goes by the way of all segments, what comes to the second by the short
/// one where it may.
struct Twins {
    general: Connection<Vec<u8>>,
    short: Connection<Vec<u8>>,
    now: Time,
    expected: u32,
    later: Option<Answer>,
    delayed: u32,
    read: [Vec<u8>; 2],
}

impl Twins {
    /// Takes what has been left.
    fn catch_up(&mut self) {
        if let Some(answer) = self.later.take() {
            self.delayed += 1;
            self.short.take_answer(&answer);
            let events = self.short.take_events();
            assert!(!events.writable && !events.readable);
            self.compare();
        }
    }

    fn on_segment(&mut self, header: &Tcp, payload: &[u8], reads: bool) {
        let piece = || Piece::whole(payload.to_vec());
        let reset = self.general.on_segment(header, piece(), self.now);
        let is_expected = reads && self.short.expects(header, payload.len(), self.now);
        if is_expected {
            self.expected += 1;
            let answer = self.short.take_payload(header, payload.len(), self.now);
            match self.short.may_answer_later(&answer) {
                true => self.later = Some(answer),
                false => self.short.take_answer(&answer),
            }
            self.read[1].extend_from_slice(payload);
        } else {
            assert_eq!(self.short.on_segment(header, piece(), self.now), reset);
        }
        if reads {
            for (connection, read) in
                [&mut self.general, &mut self.short].into_iter().zip(&mut self.read)
            {
                while let Some(received) = connection.receive() {
                    read.extend_from_slice(received.as_ref());
                }
            }
        }
        let had_room = self.general.send_room() > 0;
        let [one, other] = [&mut self.general, &mut self.short].map(Connection::take_events);
        // What is read at once is not told of, nor is more room.
        let left_out = Events { readable: is_expected, writable: is_expected, ..Events::default() };
        assert!(other.readable == one.readable || left_out.readable && one.readable);
        assert!(other.writable == one.writable || left_out.writable && one.writable && had_room);
        assert_eq!((other.connected, other.closed), (one.connected, one.closed));
        match self.later {
            // Nothing is to leave meanwhile.
            Some(_) => assert!(self.general.is_calm(self.now) && self.short.is_calm(self.now)),
            None => self.compare(),
        }
    }

    fn compare(&self) {
        assert_eq!(format!("{:?}", self.short), format!("{:?}", self.general));
        assert_eq!(self.read[0], self.read[1]);
    }

    /// Lets leave what may; the distance from the SYN to the end of the last segment that did.
    fn transmit(&mut self) -> Option<u32> {
        let mut last = None;
        loop {
            let [one, other] = [&mut self.general, &mut self.short].map(|connection| {
                let departure = connection.poll_transmit(self.now)?;
                let payload: Vec<_> = connection.payload(&departure).flatten().copied().collect();
                let whole = connection.whole_payload(&departure);
                assert!(whole.is_none_or(|whole| whole == payload));
                Some((departure.header, payload))
            });
            assert_eq!(one, other);
            let Some((header, payload)) = one else { return last };
            let end = header.seq.plus(u32::try_from(payload.len()).unwrap());
            last = u32::try_from(end.since(Seq::new(OURS))).ok();
        }
    }
}

/// Goal: whatever a peer says, the shorter way has the same effect as reading at once what came by the longer one.
/// Method: a peer that mostly talks as peers do, and now and then says something else, from seeds.
#[test]
fn a_segment_that_is_expected_has_the_same_effect_by_both_ways() {
    let (mut expected, mut delayed) = (0, 0);
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let config = Config {
            time_stamps: seed % 2 == 0,
            sack: seed % 3 != 0,
            no_delay: seed % 5 != 0,
            quick_ack: seed % 7 == 0,
            send_bytes_max: random.pick(&[300, 4 << 20]),
            receive_bytes_max: random.pick(&[200, 5000, 1 << 20]),
            ..Config::default()
        };
        let (general, short) = (established(&config), established(&config));
        let read = [Vec::new(), Vec::new()];
        let later = None;
        let mut twins =
            Twins { general, short, now: Time::ZERO, expected: 0, later, delayed: 0, read };
        // Distances from both SYNs: what the peer sends next, and what it has got.
        let (mut theirs, mut ours, mut stamp) = (1_u32, 1_u32, 2_u32);
        for _ in 0..300 {
            let step = random.pick(&[0, 1000, 100_000, 50_000_000, 300_000_000]);
            twins.now = twins.now.plus(Duration::from_nanos(random.below(step + 1)));
            let now = twins.now;
            twins.catch_up();
            for connection in [&mut twins.general, &mut twins.short] {
                connection.on_time(now);
            }
            if random.chance(600_000) {
                let len = usize::try_from(random.between(1, 100)).unwrap();
                let taken = [&mut twins.general, &mut twins.short]
                    .map(|connection| connection.send(vec![7; len], now).is_ok());
                assert_eq!(taken[0], taken[1]);
            }
            if let Some(end) = twins.transmit()
                && random.chance(900_000)
            {
                ours = end;
            }
            let any = u32::try_from(random.between(0, 120)).unwrap();
            let len = random.pick(&[any, 1, 50, 64]);
            let odd = random.chance(150_000);
            let at = if odd {
                theirs.wrapping_add(random.pick(&[1, 50, u32::MAX, 9000]))
            } else {
                theirs
            };
            let ack = if random.chance(50_000) {
                ours.wrapping_add(random.pick(&[1, 500, 0x8000_0000, u32::MAX]))
            } else {
                ours
            };
            let flags = match random.below(400) {
                0 => Flags::ACK | Flags::FIN,
                6..=60 if odd => Flags::ACK | Flags::FIN,
                1 => Flags::SYN,
                2 => Flags::ACK | Flags::URG,
                3 => Flags::default(),
                4 => Flags::ACK | Flags::SYN,
                5 if odd => Flags::RST,
                6..=200 => Flags::ACK | Flags::PSH,
                _ => Flags::ACK,
            };
            // An end that comes early waits for what is before it.
            let len = if odd && flags.has(Flags::FIN) { 0 } else { len };
            let window = random.pick(&[1000, 1000, 1000, 0, 20, u16::MAX]);
            let mut header = segment(at, ack, flags, window);
            let has_stamps = config.time_stamps != random.chance(20_000);
            let value = if random.chance(50_000) { stamp.wrapping_sub(9) } else { stamp };
            let echo = u32::try_from(now.nanos() / 1_000_000).unwrap();
            header.options.time_stamps = has_stamps.then_some(TimeStamps { value, echo });
            stamp += 1;
            if random.chance(30_000) {
                header.options.sack.push(Seq::new(OURS).plus(ours), Seq::new(OURS).plus(ours + 10));
            }
            let payload: Vec<u8> = (0..len).map(|byte| byte.to_le_bytes()[0]).collect();
            let before =
                twins.general.readable_bytes() + u64::try_from(twins.read[0].len()).unwrap();
            twins.on_segment(&header, &payload, !random.chance(100_000));
            let after =
                twins.general.readable_bytes() + u64::try_from(twins.read[0].len()).unwrap();
            theirs += u32::try_from(after - before).unwrap();
        }
        twins.catch_up();
        twins.transmit();
        twins.compare();
        expected += twins.expected;
        delayed += twins.delayed;
    }
    assert!(expected > 2000, "{expected} segments went the short way");
    assert!(delayed > 500, "{delayed} segments were taken in two steps");
}

/// Goal: what a program sends in between leaves as if all of the segment had been taken before, and all is the same afterwards.
#[test]
fn what_is_sent_before_an_answer_is_taken_leaves_as_after_it() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let config = Config {
            time_stamps: seed % 2 == 0,
            sack: seed % 3 != 0,
            no_delay: true,
            receive_bytes_max: 50_000,
            ..Config::default()
        };
        let (general, short) = (established(&config), established(&config));
        let read = [Vec::new(), Vec::new()];
        let later = None;
        let mut twins =
            Twins { general, short, now: Time::ZERO, expected: 0, later, delayed: 0, read };
        let (mut theirs, mut ours, mut in_between) = (1_u32, 1_u32, 0);
        for round in 1..200_u32 {
            twins.now = twins.now.plus(Duration::from_micros(random.between(1, 2000)));
            twins.catch_up();
            let now = twins.now;
            let len = random.between(1, 100);
            let payload = vec![1; usize::try_from(len).unwrap()];
            let mut header = segment(theirs, ours, Flags::ACK | Flags::PSH, u16::MAX);
            let stamps = TimeStamps { value: round, echo: 0 };
            header.options.time_stamps = config.time_stamps.then_some(stamps);
            twins.on_segment(&header, &payload, true);
            theirs += u32::try_from(len).unwrap();
            if random.chance(200_000) {
                continue;
            }
            let len = usize::try_from(random.between(1, 100)).unwrap();
            for connection in [&mut twins.general, &mut twins.short] {
                connection.send(vec![7; len], now).unwrap();
            }
            ours = twins.transmit().unwrap();
            in_between += u32::from(twins.later.is_some());
            twins.catch_up();
        }
        assert!(in_between > 50, "{in_between} segments were sent in between");
    }
}
