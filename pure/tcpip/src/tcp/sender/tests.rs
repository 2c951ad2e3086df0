//! Acknowledgements by the shorter way.

extern crate std;

use super::*;
use std::format;
use std::vec;
use std::vec::Vec;

/// Goal: an answer to all that is on its way has the same effect by both ways, whatever was sent, lost or acknowledged before.
/// Method: two halves do the same, from seeds; one of them takes all acknowledgements by the general way.
#[test]
fn an_answer_has_the_same_effect_by_both_ways() {
    let mut answers = 0;
    for seed in 0..150 {
        let mut random = adverb_fabric::Random::new(seed);
        let algorithm = random.pick(&[Algorithm::Cubic, Algorithm::NewReno, Algorithm::None]);
        let config = Config { congestion: algorithm, no_delay: seed % 3 != 0, ..Config::default() };
        let mut halves: [Sender<Vec<u8>>; 2] = core::array::from_fn(|_| {
            let mut sender = Sender::new(&config, 100, Time::ZERO);
            sender.agree(100, seed % 2 == 0);
            sender.resume(3000, Duration::from_secs(9000));
            sender
        });
        let mut now = Time::ZERO;
        for _ in 0..300 {
            let most = random.pick(&[10_000, 1_000_000, 300_000_000]);
            now = now.plus(Duration::from_nanos(random.below(most)));
            let len = usize::try_from(random.below(250)).unwrap();
            let (choices, event) = (random.below(5), random.below(10));
            let (unacked, next) = (halves[0].unacked(), halves[0].next());
            let len = if halves[0].queued() < 2000 { len } else { 0 };
            let position = if event < 6 { next } else { random.between(unacked, next) };
            let from = random.between(unacked, next);
            let sacked = (event == 9 && from > position).then_some((from, next));
            let limit = position + random.pick(&[3000, 3000, 100, 0]);
            for (at, half) in halves.iter_mut().enumerate() {
                half.on_time(now);
                half.push(Piece::whole(vec![7; len]), now);
                for _ in 0..choices {
                    half.choose(now);
                }
                half.on_window(limit, limit - position, (0, position));
                if at == 1 && sacked.is_none() && half.is_answered_by(position) {
                    answers += 1;
                    assert_eq!(half.on_answer(position, now), position - unacked);
                } else {
                    let sacked = sacked.into_iter();
                    let (twice, repeated, echoed) = (false, position == unacked, None);
                    half.on_ack(Ack { position, sacked, twice, repeated, echoed }, now);
                }
            }
            let [one, other] = &halves;
            assert_eq!(format!("{one:?}"), format!("{other:?}"), "seed {seed}");
        }
    }
    assert!(answers > 5000, "{answers} answers went the short way");
}
