//! Many senders, one line; long lines; what they get of it, in exact figures.

use adverb_engine::AckTimeout;
use adverb_fabric::{Bottleneck, Link, Net, NodeId, Passage, Setup, Work};
use adverb_wire::PathMtu;

const MILLISECOND: u64 = 1_000_000;
const LINE: u64 = 10_000_000_000;

/// A line of 10 Gbit/s at which `senders` pairs meet, each of which always has something to write or read.
struct Incast {
    net: Net,
    pairs: Vec<(NodeId, NodeId)>,
    bottleneck: usize,
    stream: Stream,
    depth: u64,
}

/// What each pair does all the time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stream {
    Read,
    Write,
}

impl Stream {
    fn work(self, net: &Net, with: NodeId) -> Work {
        match self {
            Self::Read => Work::read(net.region(with, 0), 64 << 10),
            Self::Write => Work::write(net.region(with, 0), vec![7; 64 << 10]),
        }
    }
}

impl Incast {
    fn new(senders: usize, setup: &Setup, bottleneck: Bottleneck, stream: Stream) -> Self {
        let mut net = Net::new(5);
        net.stop_tracing();
        let pairs: Vec<_> = (0..senders).map(|_| net.add_pair(setup)).collect();
        let data_from = |&(a, b)| if stream == Stream::Read { b } else { a };
        let links: Vec<_> = pairs.iter().map(|pair| net.link_from(data_from(pair))).collect();
        let bottleneck = net.join(&links, bottleneck);
        Self { net, pairs, bottleneck, stream, depth: u64::from(setup.send_capacity) / 2 }
    }

    /// Lets all send for so long; returns what each got done, in bytes.
    fn run(&mut self, nanos: u64) -> Vec<u64> {
        let end = self.net.now().nanos() + nanos;
        let mut done = vec![0; self.pairs.len()];
        while self.net.now().nanos() < end {
            for (&(a, b), done) in self.pairs.iter().zip(&mut done) {
                *done += self.net.node_mut(a).forget_ended();
                while self.net.node(a).qp().outstanding() < self.depth {
                    let work = self.stream.work(&self.net, b);
                    self.net.post(a, work);
                }
            }
            let next = self.net.now().plus_nanos(50_000);
            self.net.drive_until(next);
        }
        done
    }

    fn passage(&self) -> Passage {
        self.net.passage(self.bottleneck)
    }
}

/// Share of the line that these bytes are, in so many nanoseconds, in thousandths.
fn share(bytes: &[u64], nanos: u64) -> u64 {
    let bits = bytes.iter().sum::<u64>() * 8;
    bits * 1000 / (LINE / 1000 * nanos / 1_000_000)
}

/// Jain's index of fairness, in thousandths: all of them if all have the same, 1/n if one has everything.
fn jain(shares: &[u64]) -> u128 {
    let shares = shares.iter().map(|&share| u128::from(share));
    let (sum, squares): (u128, u128) =
        (shares.clone().sum(), shares.clone().map(|share| share * share).sum());
    let count: u128 = shares.map(|_| 1).sum();
    sum * sum * 1000 / (count * squares).max(1)
}

fn setup() -> Setup {
    let link = Link { delay_ns: 5_000, spacing_ns: 3_300, ..Link::default() };
    Setup {
        path_mtu: PathMtu::B4096,
        links: [link.clone(), Link { spacing_ns: 50, ..link }],
        region_len: 1 << 20,
        send_capacity: 16,
        window_packets: 256,
        timeout: AckTimeout::from_exponent(14).expect("fits five bits"),
        ..Setup::default()
    }
}

/// Goal: 64 senders at one line share it evenly, and fill it where the switch marks. Where it drops instead, what
/// comes after a lost packet is sent twice, which takes a third of the line.
#[test]
fn an_incast_of_64_fills_the_line_evenly() {
    for (mark_bytes, least) in [(200 << 10, 900), (u64::MAX, 600)] {
        let bottleneck = Bottleneck { bits_per_second: LINE, queue_bytes: 4 << 20, mark_bytes };
        let mut incast = Incast::new(64, &setup(), bottleneck, Stream::Write);
        incast.run(20 * MILLISECOND);
        let before = incast.passage();
        let shares = incast.run(100 * MILLISECOND);
        let (share, jain) = (share(&shares, 100 * MILLISECOND), jain(&shares));
        println!(
            "marks {mark_bytes}: {share} thousandths of the line, Jain {jain}, {before:?} {:?}",
            incast.passage()
        );
        assert!(share >= least, "{share} thousandths of the line");
        assert!(jain >= 950, "Jain's index {jain}");
    }
}

/// Goal: the same of READs, whose data the readers bound.
#[test]
fn an_incast_of_64_reads_fills_the_line_evenly() {
    let bottleneck =
        Bottleneck { bits_per_second: LINE, queue_bytes: 4 << 20, mark_bytes: 200 << 10 };
    let [requests, data] = setup().links;
    let setup = Setup { links: [data, requests], keeps_early: [true; 2], ..setup() };
    let mut incast = Incast::new(64, &setup, bottleneck, Stream::Read);
    incast.run(20 * MILLISECOND);
    let before = incast.passage();
    let shares = incast.run(100 * MILLISECOND);
    let (share, jain) = (share(&shares, 100 * MILLISECOND), jain(&shares));
    println!("READs: {share} thousandths, Jain {jain}, {before:?} {:?}", incast.passage());
    assert!(share >= 900 && jain >= 950, "{share} thousandths of the line, Jain {jain}");
}

/// Goal: where nothing marks, and what comes after a lost packet is kept, the line carries little twice.
#[test]
fn an_incast_of_64_that_keeps_what_comes_early_fills_the_line_without_marks() {
    for queue_bytes in [4 << 20, 1 << 20] {
        let bottleneck = Bottleneck { bits_per_second: LINE, queue_bytes, mark_bytes: u64::MAX };
        let setup = Setup { keeps_early: [true; 2], trains: true, ..setup() };
        let mut incast = Incast::new(64, &setup, bottleneck, Stream::Write);
        incast.run(20 * MILLISECOND);
        let shares = incast.run(100 * MILLISECOND);
        let (share, jain) = (share(&shares, 100 * MILLISECOND), jain(&shares));
        println!("queue {queue_bytes}: {share} thousandths, Jain {jain}, {:?}", incast.passage());
        assert!(share >= 900 && jain >= 900, "{share} thousandths of the line, Jain {jain}");
    }
}

/// Goal: where the queue is short and nothing marks, so that going back wastes what was sent, no queue pair starves.
#[test]
fn an_incast_at_a_short_queue_does_not_collapse() {
    let bottleneck =
        Bottleneck { bits_per_second: LINE, queue_bytes: 1 << 20, mark_bytes: u64::MAX };
    let mut incast = Incast::new(64, &setup(), bottleneck, Stream::Write);
    incast.run(20 * MILLISECOND);
    let shares = incast.run(100 * MILLISECOND);
    let (share, jain) = (share(&shares, 100 * MILLISECOND), jain(&shares));
    println!("short queue: {share} thousandths of the line, Jain {jain}, {:?}", incast.passage());
    assert!(share >= 400 && jain >= 900, "{share} thousandths of the line, Jain's index {jain}");
}

/// Goal: newcomers get their share of a line that others have filled.
#[test]
fn two_queue_pairs_that_meet_come_to_equal_shares() {
    let bottleneck =
        Bottleneck { bits_per_second: LINE, queue_bytes: 1 << 20, mark_bytes: 100 << 10 };
    let mut incast = Incast::new(2, &setup(), bottleneck, Stream::Write);
    let second = incast.pairs.pop().expect("two");
    incast.run(20 * MILLISECOND);
    incast.pairs.push(second);
    incast.run(50 * MILLISECOND);
    let shares = incast.run(100 * MILLISECOND);
    let (share, jain) = (share(&shares, 100 * MILLISECOND), jain(&shares));
    println!("two: {share} thousandths of the line, Jain {jain}, {:?}", incast.passage());
    assert!(share >= 900 && jain >= 950, "{share} thousandths of the line, Jain's index {jain}");
}

/// Goal: ten milliseconds each way at 10 Gbit/s, where 6000 packets are under way, leave the line full.
#[test]
fn a_long_fat_line_is_filled() {
    let link = Link { delay_ns: 10 * MILLISECOND, spacing_ns: 3_300, ..Link::default() };
    let setup = Setup {
        links: [link.clone(), link],
        send_capacity: 1024,
        window_packets: 1024,
        region_len: 64 << 10,
        ..setup()
    };
    let bottleneck =
        Bottleneck { bits_per_second: LINE, queue_bytes: 8 << 20, mark_bytes: u64::MAX };
    let mut line = Incast::new(1, &setup, bottleneck, Stream::Write);
    line.depth = 1000;
    line.run(400 * MILLISECOND);
    let bytes = line.run(400 * MILLISECOND);
    let share = share(&bytes, 400 * MILLISECOND);
    println!("long: {share} thousandths of the line, {:?}", line.passage());
    assert!(share >= 800, "{share} thousandths of the line");
}

/// Goal: what a port knows of a path saves a newcomer the round trips in which its window opens.
/// Method: the time that the first megabyte takes over a way of a millisecond.
#[test]
fn the_first_message_over_a_known_path_does_not_wait_for_a_window_to_open() {
    let first_message = |window_first| {
        let link = Link { delay_ns: MILLISECOND / 2, spacing_ns: 820, ..Link::default() };
        let setup = Setup {
            path_mtu: PathMtu::B1024,
            links: [link.clone(), link],
            window_packets: 1024,
            window_first,
            ..setup()
        };
        let mut net = Net::new(5);
        let (a, b) = net.add_pair(&setup);
        let begin = net.now().nanos();
        net.post(a, Work::write(net.region(b, 0), vec![7; 1 << 20]));
        while net.node_mut(a).forget_ended() == 0 {
            let next = net.now().plus_nanos(10_000);
            net.drive_until(next);
        }
        net.now().nanos() - begin
    };
    let (unknown, known) = (first_message(None), first_message(Some(1024)));
    println!("first megabyte: {} us, over a known path {} us", unknown / 1000, known / 1000);
    assert!(2 * known < unknown, "{known} of {unknown}");
}
