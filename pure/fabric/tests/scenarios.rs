//! What happens when something goes wrong, one thing at a time, told by traces.
//!
//! Start PSNs are 0xfffffe and 0xfffffd, so that nearly every scenario crosses the wrap.

use adverb_engine::{Access, AckTimeout, QpState, RetryCount, RnrRetry, Time, WcOpcode, WcStatus};
use adverb_fabric::{A, A_TO_B, B, B_TO_A, Fault, Net, NodeId, Setup, Target, Work};
use adverb_wire::{PathMtu, Rkey, RnrTimer};

/// A pattern that no shift of itself equals.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at * 7 + at / 256) % 256).expect("below 256")).collect()
}

fn pair(setup: Setup) -> Net {
    let mut net = Net::pair(1, &setup);
    let bytes = pattern(net.node(B).memory(0).len());
    net.node_mut(B).region_mut(0).bytes = bytes;
    net
}

fn statuses(net: &Net, node: NodeId) -> Vec<WcStatus> {
    net.node(node).sent().iter().map(|done| done.status).collect()
}

fn received(net: &Net, node: NodeId) -> Vec<WcStatus> {
    net.node(node).received().iter().map(|done| done.status).collect()
}

fn state(net: &Net, node: NodeId) -> QpState {
    net.node(node).qp().state()
}

fn exponent(exponent: u8) -> AckTimeout {
    AckTimeout::from_exponent(exponent).expect("fits five bits")
}

fn retries(count: u8) -> RetryCount {
    RetryCount::new(count).expect("fits three bits")
}

fn rnr(count: u8) -> RnrRetry {
    RnrRetry::new(count).expect("fits three bits")
}

/// Target in memory that is the pattern; WRITEs in these tests write zeros or ones.
fn target(net: &Net) -> Target {
    net.region(B, 0)
}

#[test]
fn a_lost_first_packet_is_sent_again_once_and_lands_once() {
    let mut net = pair(Setup::default());
    net.script(A_TO_B, Fault::Drop, 1..=1);
    net.post(A, Work::write(target(&net), vec![1; 4096]));
    net.drive().expect("an end");

    assert_eq!(net.trace(A_TO_B), "1x 2 3 4 | 1 2 3 4");
    assert_eq!(net.trace(B_TO_A), "N1 A2 A4");
    assert_eq!(statuses(&net, A), [WcStatus::Success]);
    assert_eq!(net.node(B).memory(0)[..4096], [1; 4096]);
    assert_eq!(net.node(B).memory(0)[4096..], pattern(16 << 10)[4096..]);
}

#[test]
fn a_lost_middle_packet_is_sent_again_once_and_lands_once() {
    let mut net = pair(Setup::default());
    net.script(A_TO_B, Fault::Drop, 2..=2);
    net.post(A, Work::write(target(&net), vec![1; 4096]));
    net.drive().expect("an end");

    assert_eq!(net.trace(A_TO_B), "1 2x 3 4 | 2 3 4");
    assert_eq!(net.trace(B_TO_A), "N2 A3 A4");
    assert_eq!(statuses(&net, A), [WcStatus::Success]);
    assert_eq!(net.node(B).memory(0)[..4096], [1; 4096]);
}

/// Goal: the peer cannot miss a last packet, so it is asked long before the ACK time-out.
#[test]
fn a_lost_last_packet_is_noticed_by_a_probe() {
    let mut net = pair(Setup::default());
    net.post_receive(B, 4096);
    net.script(A_TO_B, Fault::Drop, 4..=4);
    net.post(A, Work::send(pattern(4096)));
    net.drive().expect("an end");

    assert_eq!(net.trace(A_TO_B), "1 2 3 4x | 1 4");
    assert_eq!(net.trace(B_TO_A), "A3 A4");
    assert_eq!(
        (net.node(A).qp().counters().probes, net.node(A).qp().counters().ack_timeout),
        (1, 0)
    );
    assert_eq!(statuses(&net, A), [WcStatus::Success]);
    assert_eq!(received(&net, B), [WcStatus::Success]);
    assert_eq!(net.node(B).receive_bytes(0), pattern(4096));
}

/// Goal: a refusal that is lost, a lost end and a lost repetition cost round trips, not time-outs.
/// Method: the time-out is over a minute; whatever is lost, the end comes in milliseconds.
#[test]
fn no_single_loss_waits_for_the_time_out() {
    let losses: [&[(adverb_fabric::LinkId, u64)]; 6] = [
        &[(A_TO_B, 70)],
        &[(A_TO_B, 3), (B_TO_A, 1)],
        &[(A_TO_B, 3), (A_TO_B, 71)],
        &[(A_TO_B, 69), (A_TO_B, 70)],
        &[(B_TO_A, 1), (B_TO_A, 2), (B_TO_A, 3)],
        &[(A_TO_B, 1), (A_TO_B, 2), (B_TO_A, 1), (B_TO_A, 2)],
    ];
    for work in [Work::write, |at, bytes: Vec<u8>| Work::read(at, bytes.len())] {
        for lost in losses {
            let setup = Setup { timeout: exponent(24), region_len: 1 << 17, ..Setup::default() };
            let mut net = pair(setup);
            for &(link, packet) in lost {
                net.script(link, Fault::Drop, packet..=packet);
            }
            net.post(A, work(target(&net), vec![1; 70 << 10]));
            net.drive().expect("an end");
            assert_eq!(statuses(&net, A), [WcStatus::Success], "{lost:?}");
            assert!(net.now().nanos() < 20_000_000, "{lost:?}: {} ns", net.now().nanos());
        }
    }
}

#[test]
fn a_lost_acknowledgement_is_asked_for_again_and_nothing_lands_twice() {
    let mut net = pair(Setup::default());
    net.post_receive(B, 4096);
    net.post_receive(B, 4096);
    net.script(B_TO_A, Fault::Drop, 1..=1);
    net.post(A, Work::send(pattern(2000)));
    net.drive().expect("an end");

    assert_eq!(net.trace(A_TO_B), "1 2 | 1 2");
    assert_eq!(net.trace(B_TO_A), "A2x A2 A2");
    assert_eq!(statuses(&net, A), [WcStatus::Success]);
    assert_eq!(received(&net, B), [WcStatus::Success]);
    assert_eq!(net.node(B).qp().counters().duplicate_request, 2);
}

/// Goal: a gap in a READ's response is seen at once, and only what is missing is asked for.
#[test]
fn a_lost_read_response_is_asked_for_again_from_the_hole() {
    let mut net = pair(Setup::default());
    net.script(B_TO_A, Fault::Drop, 2..=2);
    let read = net.post(A, Work::read(target(&net), 4000));
    net.drive().expect("an end");

    assert_eq!(net.trace(A_TO_B), "1 2");
    assert_eq!(net.trace(B_TO_A), "D1 D2x D3 D4 D2 D3 D4");
    assert_eq!(net.node(A).qp().counters().ack_timeout, 0);
    assert_eq!(statuses(&net, A), [WcStatus::Success]);
    assert_eq!(net.node(A).request_bytes(read), pattern(4000));
}

#[test]
fn a_lost_end_of_a_read_is_noticed_by_a_probe() {
    let mut net = pair(Setup::default());
    net.script(B_TO_A, Fault::Drop, 3..=4);
    let read = net.post(A, Work::read(target(&net), 4000));
    net.drive().expect("an end");

    assert_eq!(net.trace(A_TO_B), "1 3");
    assert_eq!(net.trace(B_TO_A), "D1 D2 D3x D4x D3 D4");
    assert_eq!(
        (net.node(A).qp().counters().probes, net.node(A).qp().counters().ack_timeout),
        (1, 0)
    );
    assert_eq!(net.node(A).request_bytes(read), pattern(4000));
}

/// Goal: an acknowledgement beyond a READ says that the READ's data got lost.
#[test]
fn an_acknowledgement_beyond_an_unanswered_read_sends_the_read_again() {
    let mut net = pair(Setup::default());
    net.script(B_TO_A, Fault::Drop, 1..=1);
    let read = net.post(A, Work::read(target(&net), 100));
    net.post(A, Work::write(target(&net).plus(1000), vec![1; 10]));
    net.drive().expect("an end");

    assert_eq!(net.trace(A_TO_B), "1 2 | 1 2");
    assert_eq!(net.trace(B_TO_A), "D1x A2 D1 A2");
    assert_eq!(net.node(A).qp().counters().ack_timeout, 0);
    assert_eq!(statuses(&net, A), [WcStatus::Success; 2]);
    assert_eq!(net.node(A).request_bytes(read), pattern(100));
}

/// Goal: answers to the first attempt are not mistaken for losses of the second.
/// Method: one retry; a READ of 12 packets loses its second, ten more show the same hole.
#[test]
fn a_hole_costs_one_retry_however_many_answers_show_it() {
    let mut net = pair(Setup { retry_count: retries(1), ..Setup::default() });
    net.script(B_TO_A, Fault::Drop, 2..=2);
    net.post(A, Work::read(target(&net), 12 * 1024));
    net.drive().expect("an end");

    assert_eq!(net.node(A).qp().counters().completer_retry_err, 1);
    assert_eq!(statuses(&net, A), [WcStatus::Success]);
}

/// Goal: without a timeout, a hole that was seen twice is not waited on for ever.
#[test]
fn a_hole_that_opens_twice_is_mended_even_without_a_timeout() {
    let mut net = pair(Setup { timeout: AckTimeout::FOREVER, ..Setup::default() });
    net.script(B_TO_A, Fault::Drop, 2..=2);
    net.script(B_TO_A, Fault::Drop, 5..=5);
    let read = net.post(A, Work::read(target(&net), 4000));
    net.drive().expect("an end");

    assert_eq!(net.trace(B_TO_A), "D1 D2x D3 D4 D2x D3 D4 D2 D3 D4");
    assert_eq!(net.node(A).request_bytes(read), pattern(4000));
    assert_eq!(statuses(&net, A), [WcStatus::Success]);
}

#[test]
fn a_lost_answer_to_an_atomic_is_given_again_without_executing_it() {
    let mut net = pair(Setup::default());
    net.node_mut(B).region_mut(0).bytes[..8].copy_from_slice(&40_u64.to_ne_bytes());
    net.script(B_TO_A, Fault::Drop, 1..=1);
    let add = net.post(A, Work::fetch_add(target(&net), 2));
    net.drive().expect("an end");

    assert_eq!(net.trace(A_TO_B), "1 | 1");
    assert_eq!(net.trace(B_TO_A), "D1x D1");
    assert_eq!(net.node(B).atomics(), 1);
    assert_eq!(net.node(A).request_bytes(add), 40_u64.to_ne_bytes());
    assert_eq!(net.node(B).memory(0)[..8], 42_u64.to_ne_bytes());
}

#[test]
fn a_duplicated_atomic_executes_once() {
    let mut net = pair(Setup::default());
    net.node_mut(B).region_mut(0).bytes[..8].copy_from_slice(&7_u64.to_ne_bytes());
    net.script(A_TO_B, Fault::Duplicate, 1..=u64::MAX);
    let swap = net.post(A, Work::compare_swap(target(&net), 7, 8));
    let fail = net.post(A, Work::compare_swap(target(&net), 7, 9));
    net.drive().expect("an end");

    assert_eq!(net.node(B).atomics(), 2);
    assert_eq!(net.node(A).request_bytes(swap), 7_u64.to_ne_bytes());
    assert_eq!(net.node(A).request_bytes(fail), 8_u64.to_ne_bytes());
    assert_eq!(net.node(B).memory(0)[..8], 8_u64.to_ne_bytes());
}

#[test]
fn packets_that_overtake_one_another_cost_time_and_nothing_else() {
    let mut net = pair(Setup::default());
    net.script(A_TO_B, Fault::Delay(5_000), 2..=2);
    net.post(A, Work::write(target(&net), vec![1; 4096]));
    net.drive().expect("an end");

    assert_eq!(net.trace(A_TO_B), "1 2~ 3 4 | 2 3 4");
    assert_eq!(statuses(&net, A), [WcStatus::Success]);
    assert_eq!(net.node(B).memory(0)[..4096], [1; 4096]);
}

#[test]
fn damaged_packets_are_dropped_and_sent_again() {
    let mut net = pair(Setup { v6: true, ..Setup::default() });
    net.script(A_TO_B, Fault::Corrupt, 2..=3);
    net.post(A, Work::write(target(&net), vec![1; 4096]));
    net.drive().expect("an end");

    assert_eq!(net.trace(A_TO_B), "1 2c 3c 4 | 2 3 4");
    assert_eq!(net.node(B).refused_datagrams(), 2);
    assert_eq!(net.node(B).memory(0)[..4096], [1; 4096]);
}

#[test]
fn a_path_that_swallows_long_datagrams_ends_in_retry_exceeded() {
    let mut net = pair(Setup { path_mtu: PathMtu::B4096, ..Setup::default() });
    net.link_mut(A_TO_B).datagram_max = 1500;
    net.post(A, Work::write(target(&net), vec![1; 1400]));
    net.post(A, Work::write(target(&net), vec![1; 4096]));
    net.drive().expect("an end");

    assert_eq!(statuses(&net, A), [WcStatus::Success, WcStatus::RetryExceeded]);
}

#[test]
fn a_message_without_a_receive_waits_as_long_as_the_peer_says() {
    let timer = RnrTimer::new(14); // 1.28 ms.
    let mut net = pair(Setup { rnr_timer: timer, ..Setup::default() });
    net.post(A, Work::send(pattern(2000)));
    net.drive_until(Time::from_nanos(timer.nanos()));
    assert_eq!(net.trace(A_TO_B), "1 2");
    assert_eq!(net.trace(B_TO_A), "R1");

    net.post_receive(B, 2000);
    net.drive().expect("an end");
    assert_eq!(net.trace(A_TO_B), "1 2 | 1 2");
    assert_eq!(net.trace(B_TO_A), "R1 A2");
    assert_eq!(net.node(A).qp().counters().ack_timeout, 0);
    assert_eq!(statuses(&net, A), [WcStatus::Success]);
    assert_eq!(net.node(B).receive_bytes(0), pattern(2000));
}

#[test]
fn rnr_retry_7_waits_for_ever() {
    let mut net = pair(Setup { rnr_timer: RnrTimer::new(0), ..Setup::default() });
    net.post(A, Work::send(pattern(1)));
    net.drive_until(Time::from_nanos(100_000_000_000));
    assert!(net.node(A).qp().counters().rcvd_rnr_err > 100);
    assert!(statuses(&net, A).is_empty());

    net.post_receive(B, 1);
    net.drive().expect("an end");
    assert_eq!(statuses(&net, A), [WcStatus::Success]);
}

#[test]
fn rnr_retry_0_fails_at_once_and_rnr_retry_2_at_the_third_refusal() {
    for (count, trace) in [(0, "1 2"), (2, "1 2 | 1 2 | 1 2")] {
        let mut net = pair(Setup { rnr_retry: rnr(count), ..Setup::default() });
        net.post(A, Work::send(pattern(1)));
        net.post(A, Work::fetch_add(target(&net), 1));
        net.drive().expect("an end");

        assert_eq!(net.trace(A_TO_B), trace, "rnr_retry {count}");
        let expected = [WcStatus::RnrRetryExceeded, WcStatus::WorkRequestFlushed];
        assert_eq!(statuses(&net, A), expected, "rnr_retry {count}");
        assert_eq!(state(&net, A), QpState::Err);
        assert_eq!(net.node(B).atomics(), 0);
    }
}

/// Goal: a copy of a refusal is not a second refusal.
#[test]
fn a_duplicated_rnr_nak_counts_once() {
    let mut net = pair(Setup { rnr_retry: rnr(1), ..Setup::default() });
    net.script(B_TO_A, Fault::Duplicate, 1..=1);
    net.post(A, Work::send(pattern(1)));
    net.drive_until(Time::from_nanos(100_000));
    net.post_receive(B, 1);
    net.drive().expect("an end");

    assert_eq!(net.trace(B_TO_A), "R1d A1");
    assert_eq!(statuses(&net, A), [WcStatus::Success]);
}

#[test]
fn a_write_with_immediate_data_needs_a_receive_and_writes_only_with_one() {
    let mut net = pair(Setup::default());
    net.post(A, Work::write_imm(target(&net), vec![1; 10], 0xdead_beef).solicited());
    net.drive_until(Time::from_nanos(50_000));
    assert_eq!(net.trace(B_TO_A), "R1");
    assert_eq!(net.node(B).memory(0)[..10], pattern(10));

    net.post_receive(B, 0);
    net.drive().expect("an end");
    let done = net.node(B).received()[0];
    assert_eq!((done.status, done.opcode), (WcStatus::Success, WcOpcode::ReceiveRdmaWithImm));
    assert_eq!((done.byte_len, done.imm.map(|imm| imm.0)), (10, Some(0xdead_beef)));
    assert!(done.solicited);
    assert_eq!(net.node(B).memory(0)[..10], [1; 10]);
}

#[test]
fn a_silent_peer_ends_in_retry_exceeded_after_as_many_attempts_as_agreed() {
    for count in [0, 1, 7] {
        let mut net = pair(Setup { retry_count: retries(count), ..Setup::default() });
        net.script(A_TO_B, Fault::Drop, 1..=u64::MAX);
        net.post(A, Work::write(target(&net), vec![1; 1]));
        net.post(A, Work::read(target(&net), 1));
        net.drive().expect("an end");

        let counters = net.node(A).qp().counters();
        assert_eq!(counters.completer_retry_err, u64::from(count), "probes cost no retries");
        assert!(counters.probes > 0);
        assert_eq!(statuses(&net, A), [WcStatus::RetryExceeded, WcStatus::WorkRequestFlushed]);
        assert_eq!(state(&net, A), QpState::Err);
        assert_eq!(net.node(A).qp().counters().retry_exceeded_err, 1);
    }
}

/// Goal: progress refills the budget. Method: one retry, and every message is lost once.
#[test]
fn progress_refills_the_retries() {
    let mut net = pair(Setup { retry_count: retries(1), ..Setup::default() });
    for packet in [1, 3, 5] {
        net.script(A_TO_B, Fault::Drop, packet..=packet);
    }
    for _ in 0..3 {
        net.post(A, Work::write(target(&net), vec![1; 1]));
        net.drive().expect("an end");
    }
    assert_eq!(net.trace(A_TO_B), "1x | 1 2x | 2 3x | 3");
    assert_eq!(statuses(&net, A), [WcStatus::Success; 3]);
}

#[test]
fn timeout_0_waits_for_ever_and_a_refusal_still_helps() {
    let mut net = pair(Setup { timeout: AckTimeout::FOREVER, ..Setup::default() });
    net.script(A_TO_B, Fault::Drop, 1..=1);
    net.post(A, Work::write(target(&net), vec![1; 1]));
    net.drive().expect("an end");
    assert!(statuses(&net, A).is_empty() && net.is_idle());

    net.post(A, Work::write(target(&net), vec![1; 1]));
    net.drive().expect("an end");
    assert_eq!(net.trace(A_TO_B), "1x 2 | 1 2");
    assert_eq!(statuses(&net, A), [WcStatus::Success; 2]);
}

#[test]
fn a_fenced_request_waits_for_the_reads_before_it() {
    for (fence, expected) in [(false, 1), (true, 0)] {
        let mut net = pair(Setup::default());
        net.post(A, Work::read(target(&net), 1));
        let write = Work::write(target(&net), vec![1; 1]);
        net.post(A, if fence { write.fenced() } else { write });
        let at_once = net.trace(A_TO_B).matches('2').count();
        assert_eq!(at_once, expected, "fence {fence}");
        net.drive().expect("an end");
        assert_eq!(net.trace(A_TO_B), "1 2");
        assert_eq!(statuses(&net, A), [WcStatus::Success; 2]);
    }
}

#[test]
fn no_more_reads_and_atomics_than_agreed_are_under_way() {
    let mut net = pair(Setup { max_rd_atomic: 2, max_dest_rd_atomic: 2, ..Setup::default() });
    for at in 0..4 {
        net.post(A, Work::read(target(&net).plus(at), 1));
    }
    net.post(A, Work::fetch_add(target(&net), 0));
    assert_eq!(net.trace(A_TO_B), "1 2");
    net.drive().expect("an end");
    assert_eq!(net.trace(A_TO_B), "1 2 3 4 5");
    assert_eq!(statuses(&net, A), [WcStatus::Success; 5]);
}

/// Goal: a peer that asks for more at once than was agreed on is refused.
/// Method: none were agreed on; that more than some are refused is shown where packets are made.
#[test]
fn more_reads_than_max_dest_rd_atomic_are_an_invalid_request() {
    let setup = Setup { max_rd_atomic: 3, max_dest_rd_atomic: 0, ..Setup::default() };
    let mut net = pair(setup);
    net.post(A, Work::read(target(&net), 1));
    net.drive().expect("an end");
    assert_eq!(net.trace(B_TO_A), "E1");
    assert_eq!(statuses(&net, A), [WcStatus::RemoteInvalidRequest]);
    assert_eq!(state(&net, B), QpState::Err);
}

/// Goal: a requester that may not ask at all learns it, instead of waiting for ever.
#[test]
fn a_read_without_max_rd_atomic_fails_after_what_was_before_it() {
    let mut net = pair(Setup { max_rd_atomic: 0, ..Setup::default() });
    net.post(A, Work::write(target(&net), vec![1; 1]));
    net.post(A, Work::read(target(&net), 1));
    net.drive().expect("an end");
    assert_eq!(statuses(&net, A), [WcStatus::Success, WcStatus::LocalQpOperation]);
}

#[test]
fn a_wrong_key_is_refused_and_nothing_is_touched() {
    let wrong = |net: &Net| Target { rkey: Rkey(0xbad), ..target(net) };
    let makers: [fn(Target) -> Work; 3] = [
        |at| Work::write(at, vec![1; 5000]),
        |at| Work::read(at, 5000),
        |at| Work::fetch_add(at, 1),
    ];
    for make in makers {
        let mut net = pair(Setup::default());
        net.post_receive(B, 10);
        net.post(A, make(wrong(&net)));
        net.post(A, Work::send(vec![1; 1]));
        net.drive().expect("an end");

        assert!(net.trace(B_TO_A).starts_with("E1"), "{}", net.trace(B_TO_A));
        assert_eq!(statuses(&net, A), [WcStatus::RemoteAccess, WcStatus::WorkRequestFlushed]);
        assert_eq!(received(&net, B), [WcStatus::WorkRequestFlushed]);
        assert_eq!((state(&net, A), state(&net, B)), (QpState::Err, QpState::Err));
        assert_eq!(net.node(B).memory(0), pattern(16 << 10));
    }
}

#[test]
fn ranges_that_leave_the_region_are_refused() {
    let len = 16 << 10;
    for (offset, bytes) in [(len - 9, 10), (len, 1), (u64::MAX, 2), (len - 4000, 5000)] {
        let size = usize::try_from(bytes).expect("small");
        for work in [Work::write, |at, bytes: Vec<u8>| Work::read(at, bytes.len())] {
            let mut net = pair(Setup::default());
            net.post(A, work(target(&net).plus(offset), vec![1; size]));
            net.drive().expect("an end");
            assert_eq!(statuses(&net, A), [WcStatus::RemoteAccess], "{bytes} at {offset:#x}");
            assert_eq!(net.node(B).memory(0), pattern(16 << 10));
        }
    }
}

#[test]
fn rights_are_those_of_the_queue_pair_and_of_the_region() {
    let lack = [
        (Access::REMOTE_READ | Access::REMOTE_ATOMIC, 0),
        (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC, 1),
        (Access::REMOTE_WRITE | Access::REMOTE_READ, 2),
    ];
    for (rights, which) in lack {
        for of_region in [false, true] {
            let (qp_access, region_access, status) = match of_region {
                true => (Access::ALL, rights, WcStatus::RemoteAccess),
                false => (rights, Access::ALL, WcStatus::RemoteInvalidRequest),
            };
            let mut net = pair(Setup { qp_access, region_access, ..Setup::default() });
            let at = target(&net);
            let work = [Work::write(at, vec![1; 1]), Work::read(at, 1), Work::fetch_add(at, 1)];
            net.post(A, work[which].clone());
            net.drive().expect("an end");
            assert_eq!(statuses(&net, A), [status], "{which} without the right");
            assert_eq!(net.node(B).memory(0), pattern(16 << 10));
        }
    }
}

#[test]
fn an_atomic_at_an_odd_address_is_an_invalid_request() {
    let mut net = pair(Setup::default());
    net.post(A, Work::fetch_add(target(&net).plus(4), 1));
    net.drive().expect("an end");
    assert_eq!(statuses(&net, A), [WcStatus::RemoteInvalidRequest]);
    assert_eq!(net.node(B).atomics(), 0);
}

/// Goal: both sides learn of a message that does not fit, whether it is noticed early or late.
#[test]
fn a_send_longer_than_its_receive_fails_on_both_sides() {
    for (receive, len) in [(10, 11), (1500, 2000), (0, 1)] {
        let mut net = pair(Setup::default());
        net.post_receive(B, receive);
        net.post_receive(B, 4096);
        net.post(A, Work::send(pattern(len)));
        net.drive().expect("an end");

        assert_eq!(statuses(&net, A), [WcStatus::RemoteInvalidRequest]);
        assert_eq!(received(&net, B), [WcStatus::LocalLength, WcStatus::WorkRequestFlushed]);
        assert_eq!((state(&net, A), state(&net, B)), (QpState::Err, QpState::Err));
    }
}

#[test]
fn messages_without_bytes_arrive_and_need_no_memory() {
    let mut net = pair(Setup::default());
    let nowhere = Target { rkey: Rkey(0), va: 0 };
    net.post_receive(B, 0);
    net.post_receive(B, 0);
    net.post(A, Work::send(vec![]));
    net.post(A, Work::send_imm(vec![], 5));
    net.post(A, Work::write(nowhere, vec![]));
    net.post(A, Work::read(nowhere, 0));
    net.drive().expect("an end");

    assert_eq!(net.trace(A_TO_B), "1 2 3 4");
    assert_eq!(statuses(&net, A), [WcStatus::Success; 4]);
    assert_eq!(received(&net, B), [WcStatus::Success; 2]);
}

#[test]
fn unsignaled_requests_are_reported_only_when_they_fail() {
    let mut net = pair(Setup::default());
    net.post(A, Work::write(target(&net), vec![1; 1]).unsignaled());
    net.post(A, Work::write(target(&net), vec![1; 1]));
    net.post(A, Work::read(target(&net).plus(1 << 20), 1).unsignaled());
    net.post(A, Work::write(target(&net), vec![1; 1]).unsignaled());
    net.drive().expect("an end");

    let reports: Vec<_> =
        net.node(A).sent().iter().map(|done| (done.status, done.report)).collect();
    let expected = [
        (WcStatus::Success, false),
        (WcStatus::Success, true),
        (WcStatus::RemoteAccess, true),
        (WcStatus::WorkRequestFlushed, true),
    ];
    assert_eq!(reports, expected);
}

#[test]
fn going_to_err_flushes_everything_in_order_and_is_silent() {
    let mut net = pair(Setup::default());
    net.post_receive(A, 1);
    net.post_receive(A, 1);
    for _ in 0..3 {
        net.post(A, Work::write(target(&net), vec![1; 5000]));
    }
    net.to_err(A);
    let packets = net.trace(A_TO_B);
    assert_eq!(statuses(&net, A), [WcStatus::WorkRequestFlushed; 3]);
    assert_eq!(received(&net, A), [WcStatus::WorkRequestFlushed; 2]);

    net.post(A, Work::send(vec![1; 1]));
    net.post_receive(A, 1);
    assert_eq!(statuses(&net, A), [WcStatus::WorkRequestFlushed; 4]);
    assert_eq!(received(&net, A), [WcStatus::WorkRequestFlushed; 3]);
    net.drive().expect("an end");
    assert_eq!(net.trace(A_TO_B), packets);
}

/// Goal: a peer that fell silent is noticed by the side that has work, and only by that one.
#[test]
fn a_peer_in_err_answers_nothing() {
    let mut net = pair(Setup::default());
    net.to_err(B);
    net.post(A, Work::read(target(&net), 1));
    net.drive().expect("an end");
    assert_eq!(net.trace(B_TO_A), "");
    assert_eq!(statuses(&net, A), [WcStatus::RetryExceeded]);
}

#[test]
fn local_bytes_that_no_region_covers_fail_after_what_was_before_them() {
    let mut net = pair(Setup::default());
    net.post_receive(B, 4096);
    net.post(A, Work::write(target(&net), vec![1; 100]));
    net.post(A, Work::send(pattern(4096)).unreadable_from(2000));
    net.post(A, Work::write(target(&net), vec![1; 100]));
    net.drive().expect("an end");

    let expected = [WcStatus::Success, WcStatus::LocalProtection, WcStatus::WorkRequestFlushed];
    assert_eq!(statuses(&net, A), expected);
    assert!(received(&net, B).is_empty(), "half a message is no message");
}

#[test]
fn a_read_that_has_nowhere_to_land_fails_here_and_does_no_harm() {
    let mut net = pair(Setup::default());
    net.post(A, Work::read(target(&net), 4096).unreadable_from(2000));
    net.drive().expect("an end");
    assert_eq!(statuses(&net, A), [WcStatus::LocalProtection]);
    assert_eq!(state(&net, B), QpState::Rts);
}

/// Goal: a region that goes away between request and answer becomes a refusal, not stale bytes.
/// Method: B can emit one packet at a time, so that it still owes most of them.
#[test]
fn a_region_that_vanishes_during_a_read_is_refused() {
    let mut net = pair(Setup { room: 1, ..Setup::default() });
    net.post_receive(B, 1);
    net.post(A, Work::read(target(&net), 12 << 10));
    net.drive_until(Time::from_nanos(2_450));
    assert_eq!(net.trace(B_TO_A), "D1 D2 D3 D4");
    net.node_mut(B).region_mut(0).gone = true;
    net.drive().expect("an end");

    assert_eq!(net.trace(B_TO_A), "D1 D2 D3 D4 E5");
    assert_eq!(statuses(&net, A), [WcStatus::RemoteAccess]);
    assert_eq!(received(&net, B), [WcStatus::WorkRequestFlushed]);
    assert_eq!(state(&net, B), QpState::Err);
}

/// Goal: a repetition of a READ that may no longer be answered is not answered.
#[test]
fn a_region_that_vanishes_before_a_read_is_repeated_ends_in_silence() {
    let mut net = pair(Setup::default());
    net.script(B_TO_A, Fault::Drop, 1..=1);
    net.post(A, Work::read(target(&net), 10));
    net.drive_until(Time::from_nanos(50_000));
    net.node_mut(B).region_mut(0).gone = true;
    net.drive().expect("an end");

    assert_eq!(net.trace(B_TO_A), "D1x");
    assert_eq!(statuses(&net, A), [WcStatus::RetryExceeded]);
    assert_eq!(state(&net, B), QpState::Rts);
}

/// Goal: what was promised before a refusal is delivered before it.
#[test]
fn a_refusal_waits_for_the_data_before_it() {
    let mut net = pair(Setup { room: 2, ..Setup::default() });
    let read = net.post(A, Work::read(target(&net), 6 << 10));
    net.post(A, Work::write(Target { rkey: Rkey(0xbad), va: 0 }, vec![1; 1]));
    net.drive().expect("an end");

    assert_eq!(net.trace(B_TO_A), "D1 D2 D3 D4 D5 D6 E7");
    assert_eq!(statuses(&net, A), [WcStatus::Success, WcStatus::RemoteAccess]);
    assert_eq!(net.node(A).request_bytes(read), pattern(6 << 10));
}

/// Goal: a busy responder sends requests of its own, too.
/// Method: B can emit one packet at a time and owes many; its WRITE must not wait for the last.
#[test]
fn answers_do_not_starve_requests() {
    let mut net = pair(Setup { room: 1, ..Setup::default() });
    net.post(A, Work::read(target(&net), 15 << 10));
    net.drive_until(Time::from_nanos(2_300));
    net.post(B, Work::write(net.region(A, 0), vec![1; 10]));
    net.drive().expect("an end");
    assert!(net.trace(B_TO_A).ends_with("D15"), "{}", net.trace(B_TO_A));
    assert_eq!(statuses(&net, B), [WcStatus::Success]);
}

#[test]
fn large_messages_of_all_kinds_cross_a_small_mtu() {
    let len = 300_000;
    let setup = Setup { path_mtu: PathMtu::B256, region_len: len, ..Setup::default() };
    let mut net = pair(setup);
    net.post_receive(B, 300_000);
    let read = net.post(A, Work::read(target(&net), len));
    net.post(A, Work::send(pattern(len)));
    net.post(A, Work::write(target(&net), vec![3; len]).fenced());
    net.drive().expect("an end");

    assert_eq!(statuses(&net, A), [WcStatus::Success; 3]);
    assert_eq!(net.node(A).qp().counters().completer_retry_err, 0);
    assert_eq!(net.node(A).request_bytes(read), pattern(len));
    assert_eq!(net.node(B).receive_bytes(0), pattern(len));
    assert_eq!(net.node(B).memory(0), vec![3; len]);
}

#[test]
fn two_pairs_on_one_network_do_not_meet() {
    let mut net = Net::new(7);
    let pairs = [net.add_pair(&Setup::default()), net.add_pair(&Setup::default())];
    for (at, (a, b)) in (1..).zip(pairs) {
        net.post(a, Work::write(net.region(b, 0), vec![at; 3000]));
    }
    net.drive().expect("an end");
    for (at, (a, b)) in (1..).zip(pairs) {
        assert_eq!(statuses(&net, a), [WcStatus::Success]);
        assert_eq!(net.node(b).memory(0)[..3000], [at; 3000]);
    }
}

/// Goal: what is no packet for this queue pair changes nothing.
/// Method: random bytes of all lengths amid a transfer.
#[test]
fn garbage_does_not_disturb() {
    let mut net = pair(Setup { v6: true, ..Setup::default() });
    let mut random = adverb_fabric::Random::new(5);
    let read = net.post(A, Work::read(target(&net), 12 << 10));
    net.post(A, Work::write(target(&net).plus(12 << 10), vec![1; 4096]));
    for len in 0..300 {
        for to in [A, B] {
            let bytes = (0..len).map(|_| random.pick(&[0, 1, 0x64, 0x11, 0xff])).collect();
            net.inject(to, bytes);
        }
        net.drive_until(net.now().plus_nanos(50));
    }
    net.drive().expect("an end");

    assert_eq!(statuses(&net, A), [WcStatus::Success; 2]);
    assert_eq!(net.node(A).qp().counters().completer_retry_err, 0);
    assert_eq!(net.node(A).refused_datagrams() + net.node(B).refused_datagrams(), 600);
    assert_eq!(net.node(A).request_bytes(read), &pattern(12 << 10)[..]);
}

#[test]
fn the_shortest_timeouts_only_cost_packets() {
    let mut net = pair(Setup { timeout: exponent(1), ..Setup::default() });
    net.script(A_TO_B, Fault::Delay(30_000), 1..=1);
    net.post(A, Work::write(target(&net), vec![1; 1]));
    net.drive().expect("an end");
    assert_eq!(statuses(&net, A), [WcStatus::Success]);
}
