//! Transports other than RC, one thing at a time: what gets lost is lost, what arrives is whole.

use adverb_engine::{
    Datagram, GRH_LEN, QpEvent, QpState, QpType, RequestError, Route, WcOpcode, WcStatus,
};
use adverb_fabric::{A, A_TO_B, B, B_TO_A, Fault, Net, NodeId, Setup, Target, Work};
use adverb_wire::{Grh, Qkey, Qpn, Rkey};

const KEY: Qkey = Qkey(0x1111_1111);
const SRQ: Qpn = Qpn::new(0x77);

/// A pattern that no shift of itself equals.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at * 7 + at / 256) % 256).expect("below 256")).collect()
}

fn statuses(net: &Net, node: NodeId) -> Vec<WcStatus> {
    net.node(node).sent().iter().map(|done| done.status).collect()
}

/// Names and lengths of the receives that ended, all well.
fn received(net: &Net, node: NodeId) -> Vec<(u32, u32)> {
    let received = net.node(node).received();
    assert!(received.iter().all(|done| done.status == WcStatus::Success));
    received.iter().map(|done| (done.receive.token, done.byte_len)).collect()
}

fn uc() -> Net {
    Net::pair(1, &Setup::of(QpType::Uc))
}

fn ud() -> Net {
    Net::pair(1, &Setup::of(QpType::Ud))
}

fn datagram(net: &Net, bytes: Vec<u8>) -> Work {
    Work::send(bytes).to(net.datagram(A, KEY))
}

#[test]
fn a_message_over_uc_is_done_when_it_is_out_without_an_answer() {
    let mut net = uc();
    net.post_receive(B, 4096);
    net.post(A, Work::send(pattern(4000)));
    net.post(A, Work::write(net.region(B, 0), vec![9; 3000]));
    net.drive().expect("an end");

    assert_eq!((net.trace(A_TO_B).as_str(), net.trace(B_TO_A).as_str()), ("1 2 3 4 5 6 7", ""));
    assert_eq!(statuses(&net, A), [WcStatus::Success; 2]);
    assert_eq!(received(&net, B), [(0, 4000)]);
    assert_eq!(net.node(B).receive_bytes(0)[..4000], pattern(4000));
    assert_eq!(net.node(B).memory(0)[..3000], [9; 3000]);
}

/// Goal: whichever packet of a message gets lost, the message leaves no completion, and its receive
/// takes the next one.
#[test]
fn a_message_over_uc_that_lost_a_packet_leaves_no_trace() {
    for lost in 1..=4 {
        let mut net = uc();
        net.post_receive(B, 4096);
        net.post_receive(B, 4096);
        net.script(A_TO_B, Fault::Drop, lost..=lost);
        net.post(A, Work::send(vec![1; 4096]));
        net.post(A, Work::send_imm(pattern(2000), 5));
        net.drive().expect("an end");

        assert_eq!(statuses(&net, A), [WcStatus::Success; 2], "packet {lost}");
        assert_eq!(received(&net, B), [(0, 2000)], "packet {lost}");
        assert_eq!(net.node(B).receive_bytes(0)[..2000], pattern(2000));
        assert_eq!(net.node(B).receives(), 1);
    }
}

#[test]
fn a_write_over_uc_that_may_not_be_done_is_dropped_without_a_word() {
    let mut net = uc();
    net.post_receive(B, 10);
    let wrong = Target { rkey: Rkey(0xbad), ..net.region(B, 0) };
    net.post(A, Work::write(wrong, vec![1; 3000]));
    net.post(A, Work::write_imm(wrong, vec![1; 3000], 1));
    net.post(A, Work::write_imm(net.region(B, 0), vec![2; 3000], 2));
    net.drive().expect("an end");

    assert_eq!(statuses(&net, A), [WcStatus::Success; 3]);
    assert_eq!(received(&net, B), [(0, 3000)]);
    let done = net.node(B).received()[0];
    assert_eq!((done.opcode, done.imm.map(|imm| imm.0)), (WcOpcode::ReceiveRdmaWithImm, Some(2)));
    assert_eq!(net.node(B).memory(0)[..3000], [2; 3000]);
    assert_eq!((net.trace(B_TO_A).as_str(), net.node(B).events()), ("", &[][..]));
    assert_eq!(net.node(B).qp().state(), QpState::Rts);
}

#[test]
fn copies_and_late_packets_over_uc_are_dropped() {
    let mut net = uc();
    for _ in 0..9 {
        net.post_receive(B, 100);
    }
    net.script(A_TO_B, Fault::Duplicate, 1..=3);
    for byte in 0..3 {
        net.post(A, Work::send(vec![byte; 10]));
    }
    net.drive().expect("an end");
    assert_eq!(received(&net, B), [(0, 10), (1, 10), (2, 10)]);
    assert_eq!(net.node(B).qp().counters().duplicate_request, 3);
}

#[test]
fn a_datagram_arrives_behind_its_network_header() {
    for v6 in [false, true] {
        let mut net = Net::pair(1, &Setup { v6, ..Setup::of(QpType::Ud) });
        net.post_receive(B, 1100);
        net.post(A, datagram(&net, pattern(1000)).solicited());
        net.drive().expect("an end");

        let done = net.node(B).received()[0];
        assert_eq!((done.byte_len, done.grh, done.solicited), (1000 + GRH_LEN, true, true));
        assert_eq!(done.src_qp, net.node(A).qp().number());
        let bytes = net.node(B).receive_bytes(0);
        assert_eq!(bytes[40..1040], pattern(1000));
        let grh = Grh::parse(bytes[..40].try_into().expect("40 bytes")).expect("a header");
        assert_eq!(grh.src[10..12], if v6 { [0, 0] } else { [0xff, 0xff] });
        assert_eq!((grh.src[15], grh.dst[15]), (1, 2));
        assert_eq!(statuses(&net, A), [WcStatus::Success]);
        assert_eq!(net.node(A).routes(), [Route(2)]);
        assert_eq!(net.trace(B_TO_A), "");
    }
}

#[test]
fn a_datagram_with_a_wrong_key_is_dropped_and_counted() {
    let mut net = ud();
    net.post_receive(B, 100);
    let wrong = net.datagram(A, Qkey(1));
    let own = net.datagram(A, Qkey(1 << 31)); // The queue pair's own, which fits.
    net.post(A, Work::send(vec![1; 10]).to(wrong));
    net.post(A, Work::send(vec![2; 10]).to(own));
    net.drive().expect("an end");

    assert_eq!(received(&net, B), [(0, 50)]);
    assert_eq!(net.node(B).receive_bytes(0)[40..50], [2; 10]);
    assert_eq!(net.node(B).qp().counters().qkey_viol, 1);
}

/// Goal: a datagram without a receive, or with one that is too short, is lost, and the next finds
/// the receive as it was.
#[test]
fn a_datagram_that_finds_no_room_is_lost() {
    let mut net = ud();
    net.post(A, datagram(&net, vec![1; 10]));
    net.drive().expect("an end");
    net.post_receive(B, 59);
    net.post(A, datagram(&net, vec![2; 20]));
    net.post(A, datagram(&net, vec![3; 19]));
    net.drive().expect("an end");
    assert_eq!(received(&net, B), [(0, 59)]);
    assert_eq!(net.node(B).receive_bytes(0)[40..], [3; 19]);
    assert_eq!(net.node(B).qp().counters().dropped_pkts, 2);
}

#[test]
fn a_datagram_longer_than_the_mtu_is_not_posted() {
    let mut net = ud();
    let error = net.try_post(A, datagram(&net, vec![0; 1025]));
    assert_eq!(error, Err(RequestError::Length { len: 1025, allowed: 1024 }));
    assert!(net.try_post(A, datagram(&net, vec![0; 1024])).is_ok());
}

/// Goal: one packet is delivered to every queue pair of the group. Method: the port's part is
/// played by the network, to which all belong.
#[test]
fn a_multicast_datagram_is_delivered_to_all_that_get_the_packet() {
    let mut net = ud();
    net.post_receive(B, 100);
    let to = Datagram { remote: Qpn::MULTICAST, ..net.datagram(A, KEY) };
    net.post(A, Work::send(vec![7; 10]).to(to));
    net.drive().expect("an end");
    assert_eq!(received(&net, B), [(0, 50)]);
    assert_eq!(net.node(B).receive_bytes(0)[40..50], [7; 10]);
}

#[test]
fn xrc_puts_each_message_where_it_says() {
    let other = Qpn::new(0x78);
    let mut net = Net::pair(1, &Setup::xrc());
    net.post_srq_receive(B, SRQ, 4096);
    net.post_srq_receive(B, other, 4096);
    net.post(A, Work::send(pattern(4000)).into_srq(other));
    net.post(A, Work::write_imm(net.region(B, 0), vec![9; 2000], 5).into_srq(SRQ));
    let read = net.post(A, Work::read(net.region(B, 0), 2000).into_srq(SRQ));
    let add = net.post(A, Work::fetch_add(net.region(B, 0), 1).into_srq(SRQ));
    net.drive().expect("an end");

    assert_eq!(statuses(&net, A), [WcStatus::Success; 4]);
    let done: Vec<_> =
        net.node(B).received().iter().map(|done| (done.srq, done.receive.token)).collect();
    assert_eq!(done, [(Some(other), 1), (Some(SRQ), 0)]);
    assert_eq!(net.node(B).receive_bytes(1)[..4000], pattern(4000));
    assert_eq!(net.node(A).request_bytes(read), [9; 2000]);
    assert_eq!(net.node(A).request_bytes(add), [9; 8]);
}

#[test]
fn xrc_is_reliable() {
    let mut net = Net::pair(1, &Setup::xrc());
    net.script(A_TO_B, Fault::Drop, 2..=2);
    net.script(B_TO_A, Fault::Drop, 1..=1);
    net.post(A, Work::send(pattern(4000)).into_srq(SRQ));
    net.post_srq_receive(B, SRQ, 4096);
    net.drive().expect("an end");
    assert_eq!(statuses(&net, A), [WcStatus::Success]);
    assert_eq!(received(&net, B), [(0, 4000)]);
    assert_eq!(net.node(B).receive_bytes(0)[..4000], pattern(4000));
}

#[test]
fn an_empty_xrc_queue_puts_off_and_a_missing_one_refuses() {
    let mut net = Net::pair(1, &Setup::xrc());
    net.post_srq_receive(B, SRQ, 100);
    net.post(A, Work::send(vec![1; 1]).into_srq(SRQ));
    net.post(A, Work::send(vec![1; 1]).into_srq(SRQ));
    net.drive_until(net.now().plus_nanos(100_000));
    assert_eq!(net.trace(B_TO_A), "A1 R2");
    net.post_srq_receive(B, SRQ, 100);
    net.drive().expect("an end");
    assert_eq!(statuses(&net, A), [WcStatus::Success; 2]);

    net.post(A, Work::send(vec![1; 1]).into_srq(Qpn::new(1)));
    net.drive().expect("an end");
    assert_eq!(statuses(&net, A)[2], WcStatus::RemoteInvalidRequest);
    assert_eq!(net.node(B).events(), [QpEvent::QpReqErr, QpEvent::LastWqeReached]);
}

#[test]
fn the_ends_of_xrc_know_which_way_it_goes() {
    let mut net = Net::pair(1, &Setup::xrc());
    let error = net.try_post(B, Work::send(vec![1; 1]).into_srq(SRQ));
    assert!(matches!(error, Err(RequestError::Operation { kind: QpType::XrcTarget, .. })));
    let error = net.try_post(A, Work::send(vec![1; 1]));
    assert_eq!(error, Err(RequestError::Address { kind: QpType::XrcInitiator }));
}

/// Goal: several queue pairs take from one queue, each keeps what it has begun, and one that fails
/// takes nothing but that with it.
#[test]
fn queue_pairs_share_receives() {
    let mut net = Net::new(3);
    let setup = Setup { shared_receives: true, ..Setup::default() };
    let pairs = [net.add_pair(&setup), net.add_pair(&setup)];
    let [(a, b), (c, d)] = pairs;
    net.share_receives(d, b);
    for _ in 0..4 {
        net.post_receive(b, 4096);
    }
    net.post(a, Work::send(vec![1; 3000]));
    net.post(c, Work::send(vec![2; 2000]));
    net.drive().expect("an end");
    for (node, byte, len) in [(b, 1, 3000), (d, 2, 2000)] {
        let done = net.node(node).received()[0];
        assert_eq!(done.byte_len, len);
        let len = usize::try_from(len).expect("short");
        assert_eq!(net.node(b).receive_bytes(done.receive.token)[..len], vec![byte; len]);
    }
    net.to_err(b);
    assert_eq!((net.node(b).received().len(), net.node(d).receives()), (1, 2));
    assert_eq!(net.node(b).events(), [QpEvent::LastWqeReached]);
    net.post(c, Work::send(vec![3; 10]));
    net.drive().expect("an end");
    assert_eq!(received(&net, d).len(), 2);
}

#[test]
fn an_empty_shared_queue_puts_both_peers_off() {
    let mut net = Net::new(3);
    let setup = Setup { shared_receives: true, ..Setup::default() };
    let pairs = [net.add_pair(&setup), net.add_pair(&setup)];
    let [(a, b), (c, d)] = pairs;
    net.share_receives(d, b);
    net.post(a, Work::send(vec![1; 10]));
    net.post(c, Work::send(vec![2; 10]));
    net.drive_until(net.now().plus_nanos(100_000));
    assert_eq!([b, d].map(|node| net.node(node).qp().counters().send_rnr_err), [1, 1]);
    net.post_receive(d, 10);
    net.post_receive(d, 10);
    net.drive().expect("an end");
    assert_eq!(
        (statuses(&net, a), statuses(&net, c)),
        ([WcStatus::Success].into(), [WcStatus::Success].into())
    );
    assert_eq!((received(&net, b).len(), received(&net, d).len()), (1, 1));
}
