//! Packets that are overtaken, and packets that are lost: what that costs a stream, in exact figures.

use adverb_engine::{AckTimeout, WcStatus};
use adverb_fabric::{A, A_TO_B, B, B_TO_A, Fault, Link, Net, Setup, Work};
use adverb_wire::PathMtu;

const SPACING_NS: u64 = 1_000;
const MESSAGE_BYTES: usize = 256 << 10;
const MESSAGES: usize = 16;

#[derive(Clone, Copy, Debug)]
enum Stream {
    Send,
    Write,
    Read,
}

const STREAMS: [Stream; 3] = [Stream::Send, Stream::Write, Stream::Read];

fn setup(link: Link) -> Setup {
    Setup {
        path_mtu: PathMtu::B1024,
        links: [link.clone(), link],
        region_len: MESSAGE_BYTES,
        send_capacity: 32,
        window_packets: 256,
        trains: true,
        keeps_early: [true; 2],
        timeout: AckTimeout::from_exponent(14).expect("fits five bits"),
        ..Setup::default()
    }
}

/// A link on which packets are `spacing` apart.
fn link() -> Link {
    Link { delay_ns: 10_000, spacing_ns: SPACING_NS, ..Link::default() }
}

fn bytes(at: usize) -> Vec<u8> {
    (0..MESSAGE_BYTES)
        .map(|byte| u8::try_from((byte * 7 + byte / 256 + at) % 251).expect("fits"))
        .collect()
}

/// Has A carry out all messages of a stream; returns how long that took, in nanoseconds, and how many packets.
fn run(stream: Stream, net: &mut Net) -> (u64, usize) {
    net.node_mut(B).region_mut(0).bytes = bytes(0);
    let mut receives = Vec::new();
    for at in 0..MESSAGES {
        let target = net.region(B, 0);
        let len = u32::try_from(MESSAGE_BYTES).expect("fits");
        match stream {
            Stream::Send => {
                receives.push(net.post_receive(B, len));
                net.post(A, Work::send(bytes(at)))
            }
            Stream::Write => net.post(A, Work::write(target, bytes(at))),
            Stream::Read => net.post(A, Work::read(target, MESSAGE_BYTES)),
        };
    }
    net.drive().expect("an end");
    let done = net.node(A).sent();
    assert_eq!(done.len(), MESSAGES);
    assert!(done.iter().all(|done| done.status == WcStatus::Success));
    for (at, receive) in receives.into_iter().enumerate() {
        assert_eq!(net.node(B).receive_bytes(receive), bytes(at));
    }
    match stream {
        Stream::Send => {}
        Stream::Write => assert_eq!(net.node(B).memory(0), bytes(MESSAGES - 1)),
        Stream::Read => {
            (0..16).for_each(|index| assert_eq!(net.node(A).request_bytes(index), bytes(0)));
        }
    }
    (net.now().nanos(), net.packets())
}

/// Goal: packets that up to eight others overtake cost a stream no more than a tenth.
#[test]
fn what_up_to_eight_packets_overtake_costs_at_most_a_tenth() {
    for stream in STREAMS {
        let (usual, packets) = run(stream, &mut Net::pair(1, &setup(link())));
        for ppm in [1_000, 10_000, 50_000] {
            let reordering = Link { reordering_ppm: ppm, detour_ns: 8 * SPACING_NS, ..link() };
            let (nanos, more) = run(stream, &mut Net::pair(1, &setup(reordering)));
            println!("{stream:?}, {ppm} ppm: {nanos} for {usual} ns, {more} for {packets} packets");
            assert!(nanos <= usual + usual / 10, "{stream:?}, {ppm} ppm: {nanos} for {usual} ns");
        }
    }
}

/// Goal: of a stream, only what was lost is sent again. What that costs in time is the smaller window's.
#[test]
fn only_what_was_lost_is_sent_again() {
    for stream in STREAMS {
        let (usual, packets) = run(stream, &mut Net::pair(1, &setup(link())));
        for (ppm, percent) in [(1_000, 110), (10_000, 150), (50_000, 340)] {
            let lossy = Link { loss_ppm: ppm, ..link() };
            let (nanos, more) = run(stream, &mut Net::pair(1, &setup(lossy)));
            println!("{stream:?}, {ppm} ppm: {nanos} for {usual} ns, {more} for {packets} packets");
            assert!(
                nanos <= usual * percent / 100,
                "{stream:?}, {ppm} ppm: {nanos} for {usual} ns"
            );
        }
    }
}

/// Goal: between a queue pair that keeps what comes early and one that does not, packets are what they were: the one
/// goes back, and the other is never told of a hole.
#[test]
fn a_peer_that_does_not_keep_what_comes_early_goes_back() {
    for keeps_early in [[true, false], [false, true]] {
        let mut net = Net::pair(1, &Setup { keeps_early, trains: false, ..setup(link()) });
        net.script(A_TO_B, Fault::Drop, 3..=3);
        net.post(A, Work::write(net.region(B, 0), vec![1; 5 << 10]));
        net.drive().expect("an end");
        assert_eq!(net.trace(A_TO_B), "1 2 3x 4 5 | 3 4 5");
        assert_eq!(net.trace(B_TO_A), "N3 A4 A5");
    }
}

/// Goodput of a stream in thousandths of what it is without loss.
fn goodput(stream: Stream, ppm: u32, keeps: bool) -> u64 {
    let setup = |loss_ppm| Setup { keeps_early: [keeps; 2], ..setup(Link { loss_ppm, ..link() }) };
    let nanos =
        |ppm| (1..=2).map(|seed| stream_of(stream, &mut Net::pair(seed, &setup(ppm)))).sum::<u64>();
    nanos(0) * 1000 / nanos(ppm)
}

/// Has A carry out messages of 64 KiB, always with some more posted; returns how long that took.
fn stream_of(stream: Stream, net: &mut Net) -> u64 {
    const BYTES: usize = 64 << 10;
    const DEPTH: u64 = 16;
    net.stop_tracing();
    let mut left = 400_u64;
    let start = net.now().nanos();
    while left > 0 || net.node(A).qp().outstanding() > 0 {
        net.node_mut(A).forget_ended();
        while left > 0 && net.node(A).qp().outstanding() < DEPTH {
            let target = net.region(B, 0);
            match stream {
                Stream::Send => {
                    net.post_receive(B, 64 << 10);
                    net.post(A, Work::send(vec![7; BYTES]))
                }
                Stream::Write => net.post(A, Work::write(target, vec![7; BYTES])),
                Stream::Read => net.post(A, Work::read(target, BYTES)),
            };
            left -= 1;
        }
        let next = net.now().plus_nanos(20_000);
        net.drive_until(next);
    }
    net.now().nanos() - start
}

/// Goal: a stream of messages of 64 KiB keeps most of its goodput, and more of it where what comes early is kept. Method:
/// thousandths of what it is without loss, over a line that ten packets fill each way; the window's answer to a loss,
/// which is no sign of congestion here, costs the most.
#[test]
fn loss_costs_a_stream_no_more_than_the_smaller_window() {
    let loss = [1_000, 5_000, 10_000, 20_000, 50_000];
    for (stream, least) in [
        (Stream::Send, [990, 980, 970, 900, 480]),
        (Stream::Write, [990, 980, 970, 900, 480]),
        (Stream::Read, [980, 890, 760, 570, 340]),
    ] {
        for (ppm, least) in loss.into_iter().zip(least) {
            let (kept, dropped) = (goodput(stream, ppm, true), goodput(stream, ppm, false));
            println!("{stream:?}, {ppm} ppm: {kept} thousandths, {dropped} if nothing is kept");
            assert!(kept >= least && kept > dropped, "{stream:?}, {ppm} ppm: {kept}, {dropped}");
        }
    }
}

/// READs of 64 KiB, one after the other, from a responder that is stopped for five milliseconds in each `every` of them;
/// returns how often data were asked for that were under way already.
fn needless_repeats(reads: u64, every: u64) -> u64 {
    const STOP_NS: u64 = 5_000_000;
    let mut net = Net::pair(1, &setup(link()));
    net.stop_tracing();
    for read in 0..reads {
        if read % every == every / 2 {
            let end = net.now().plus_nanos(STOP_NS);
            net.stop(B, end);
        }
        net.post(A, Work::read(net.region(B, 0), 64 << 10));
        net.drive().expect("an end");
        net.node_mut(A).forget_ended();
    }
    net.node(A).qp().counters().probes
}

/// Goal: a responder that is not scheduled now and then is not asked again and again for answers that come as soon as it
/// is; nothing is lost here.
#[test]
fn a_responder_that_is_stopped_for_a_while_is_not_asked_again_each_time() {
    for every in [4, 32] {
        let repeats = needless_repeats(640, every);
        println!("stopped in each {every} of 640: {repeats} needless repeats");
        assert!(repeats <= 8, "{repeats}");
    }
}
