//! Packets that should not have been sent, to queue pairs of every transport.

use crate::alone::over_udp;
use crate::datagram::{QKEY, Side};
use crate::pair::{eventually, pattern, wait};
use crate::stranger::{ANOTHERS, PEERS, Stranger, headers_of as headers};
use adverb_verbs::{
    Context, Pkey, Psn, Qkey, Qp, QpConfig, Qpn, SrqConfig, Uc, WcStatus, Work, XrcInitiator,
};
use adverb_wire::{Deth, Headers, Opcode, Operation, XrcEth};

fn opcode(transport: adverb_wire::Transport, operation: Operation) -> Opcode {
    Opcode::of(transport, operation).expect("it exists")
}

#[test]
fn a_datagram_queue_pair_takes_what_shows_its_key_and_nothing_else() {
    over_udp(
        "strangers::a_datagram_queue_pair_takes_what_shows_its_key_and_nothing_else",
        keys_and_packets,
    );
}

fn keys_and_packets() {
    let side = Side::new(QKEY);
    let stranger = Stranger::at(ANOTHERS);
    let ud = opcode(adverb_wire::Transport::Ud, Operation::SendOnly);
    let packet = |headers: Headers, qkey: Qkey, payload: &[u8]| {
        let deth = Some(Deth { qkey, src_qp: Qpn::new(0x77) });
        stranger.packet(Headers { deth, ..headers }, payload)
    };
    let to = side.qp.number();
    let good = |len| headers(ud, to, Psn::new(5), len);
    side.recv(4096);
    let dropped = |what: &str, datagram: &[u8]| {
        let before = side.qp.counters().dropped_pkts
            + side.context.counters().icrc_errors
            + side.context.counters().malformed;
        stranger.send(datagram);
        eventually(what, || {
            side.context.drive();
            let counters = side.context.counters();
            let after = side.qp.counters().dropped_pkts + counters.icrc_errors + counters.malformed;
            after > before // Others may be heard here too.
        });
    };
    dropped("a wrong key", &packet(good(4), Qkey(1), b"evil"));
    let mut bth = good(4);
    bth.bth.pkey = Pkey(0x1234);
    dropped("another partition", &packet(bth, QKEY, b"evil"));
    let mut torn = packet(good(4), QKEY, b"evil");
    *torn.last_mut().expect("an ICRC") ^= 1;
    *torn.get_mut(21).expect("a payload") ^= 1;
    dropped("a broken sum", &torn);
    // A packet of another transport, for this queue pair.
    let rc = opcode(adverb_wire::Transport::Rc, Operation::SendOnly);
    dropped("another transport", &stranger.packet(headers(rc, to, Psn::new(5), 4), b"evil"));
    // Too long for what the port carries.
    dropped("a long one", &packet(good(8192), QKEY, &[0; 8192]));
    assert!(side.is_quiet());
    // What is right is taken, from any sender, with whatever sequence number.
    stranger.send(&packet(good(4), QKEY, b"good"));
    let (done, grh, message) = side.received();
    assert_eq!((message, done.wc.src_qp), (b"good".to_vec(), Qpn::new(0x77)));
    assert_eq!(grh.get(32..36), Some(&[127, 0, 0, 2][..]));
}

#[test]
fn noise_with_a_sound_sum_harms_no_datagram_queue_pair() {
    over_udp("strangers::noise_with_a_sound_sum_harms_no_datagram_queue_pair", noise);
}

fn noise() {
    let side = Side::new(QKEY);
    let stranger = Stranger::at(PEERS);
    for _ in 0..100 {
        side.recv(100);
    }
    for seed in 0..3000_u64 {
        let len = 24 + usize::try_from(seed % 90).expect("small");
        let mut datagram = pattern(seed, len);
        // Half of it finds the queue pair.
        let [_, a, b, c] = side.qp.number().get().to_be_bytes();
        if let Some(place) = datagram.get_mut(5..8).filter(|_| seed % 2 == 0) {
            place.copy_from_slice(&[a, b, c]);
        }
        if let Some(first) = datagram.first_mut().filter(|_| seed % 3 == 0) {
            *first = 0x64 + u8::from(seed % 2 == 0); // A datagram's opcodes.
        }
        stranger.seal(&mut datagram);
        stranger.send(&datagram);
        side.context.drive();
    }
    let sender = Side::new(QKEY);
    eventually("a datagram after the noise", || {
        sender.send(b"fine", &sender.ah(1), side.qp.number(), QKEY);
        (0..100).any(|_| {
            let done = side.cq.next().expect("no overrun");
            done.is_some_and(|done| done.wc.src_qp == sender.qp.number())
        })
    });
}

/// A connected queue pair whose peer is a stranger.
fn victim<T: adverb_verbs::InDomain>(
    connect: impl Fn(&Qp<T>, adverb_verbs::RemoteQp, adverb_verbs::RemoteQp),
) -> (Context, adverb_verbs::Pd, adverb_verbs::Cq, Qp<T>) {
    let context = Context::open("soft_lo").expect("the loopback device");
    let (pd, cq) = (context.alloc_pd(), context.create_cq(64).expect("a queue"));
    let qp = pd.create_qp_of::<T>(&QpConfig::new(&cq)).expect("a queue pair");
    let own = qp.address().expect("an address");
    let peer = adverb_verbs::RemoteQp { qpn: Qpn::new(0x55), psn: Psn::new(100), ..own };
    connect(&qp, own, peer);
    (context, pd, cq, qp)
}

#[test]
fn broken_messages_over_an_unreliable_connection_are_dropped_whole() {
    over_udp(
        "strangers::broken_messages_over_an_unreliable_connection_are_dropped_whole",
        broken_messages,
    );
}

fn broken_messages() {
    let (context, pd, cq, qp) = victim::<Uc>(|qp, _, peer| {
        qp.connect(peer).expect("connected");
    });
    let stranger = Stranger::at(PEERS);
    let send = |operation, psn, payload: &[u8]| {
        let opcode = opcode(adverb_wire::Transport::Uc, operation);
        let headers = headers(opcode, qp.number(), Psn::new(psn), payload.len());
        stranger.send(&stranger.packet(headers, payload));
    };
    let full = [7; 1024];
    for wr_id in 1..=3 {
        let room = pd.buffer(4000).expect("memory");
        qp.post(Work::recv(room).wr_id(wr_id)).expect("room");
    }
    send(Operation::SendMiddle, 100, &full); // Without a beginning.
    send(Operation::SendFirst, 101, &full);
    send(Operation::SendLast, 103, b"a hole before it");
    send(Operation::SendFirst, 104, &full);
    send(Operation::SendFirst, 105, &full); // Another, before the first has ended.
    send(Operation::SendLast, 106, b"whole");
    let done = wait(&cq).ok().expect("received");
    assert_eq!((done.wc.wr_id, done.wc.byte_len), (1, 1029));
    send(Operation::SendOnly, 106, b"late"); // A duplicate.
    send(Operation::SendOnly, 200, b"far ahead");
    let done = wait(&cq).ok().expect("received");
    assert_eq!((done.wc.wr_id, done.wc.byte_len), (2, 9));
    send(Operation::SendFirst, 201, b"shorter than the path MTU");
    send(Operation::SendOnly, 202, &[0; 2000]); // Longer than the path MTU.
    send(Operation::SendOnly, 203, b"end");
    let done = wait(&cq).ok().expect("received");
    assert_eq!((done.wc.wr_id, done.wc.byte_len), (3, 3));
    // From another address, with the right numbers.
    let other = Stranger::at(ANOTHERS);
    qp.post(Work::recv(pd.buffer(10).expect("memory"))).expect("room");
    let only = opcode(adverb_wire::Transport::Uc, Operation::SendOnly);
    other.send(&other.packet(headers(only, qp.number(), Psn::new(204), 4), b"evil"));
    // An answer that was not asked for.
    for _ in 0..1000 {
        context.drive();
    }
    assert!(cq.next().expect("no overrun").is_none());
    assert!(qp.counters().dropped_pkts >= 5);
}

#[test]
fn a_target_refuses_what_makes_no_sense_and_others_go_on() {
    over_udp(
        "strangers::a_target_refuses_what_makes_no_sense_and_others_go_on",
        nonsense_for_a_target,
    );
}

fn nonsense_for_a_target() {
    let context = Context::open("soft_lo").expect("the loopback device");
    let (pd, cq) = (context.alloc_pd(), context.create_cq(64).expect("a queue"));
    let xrcd = context.open_xrcd();
    let srq = pd.create_xrc_srq(&SrqConfig::new(16), &xrcd, &cq).expect("a queue");
    let stranger = Stranger::at(PEERS);
    let xrc = |operation| opcode(adverb_wire::Transport::Xrc, operation);
    for (operation, srqn, len) in [
        (Operation::SendOnly, Qpn::new(0x00ff_fff0), 4), // No such queue.
        (Operation::SendMiddle, Qpn::new(srq.number()), 1024), // Without a beginning.
        (Operation::SendOnly, Qpn::new(srq.number()), 2000), // Longer than the path MTU.
    ] {
        let target = xrcd.create_target(0).expect("a target");
        let own = target.address().expect("an address");
        let peer = adverb_verbs::RemoteQp { qpn: Qpn::new(0x55), psn: Psn::new(1), ..own };
        target.connect(peer).expect("connected");
        let headers = headers(xrc(operation), target.number(), Psn::new(1), len);
        let headers = Headers { xrceth: Some(XrcEth { srqn }), ..headers };
        stranger.send(&stranger.packet(headers, &vec![0; len]));
        eventually("a refusal", || {
            context.drive();
            target.state() == adverb_verbs::QpState::Err
        });
    }
    // An initiator serves no requests.
    let initiator = pd.create_qp_of::<XrcInitiator>(&QpConfig::new(&cq)).expect("an initiator");
    let target = xrcd.create_target(0).expect("a target");
    let [here, there] =
        [initiator.address().expect("an address"), target.address().expect("an address")];
    initiator.connect(there).expect("connected");
    target.connect(here).expect("connected");
    let headers = headers(xrc(Operation::SendOnly), initiator.number(), there.psn, 4);
    let srqn = Qpn::new(srq.number());
    let headers = Headers { xrceth: Some(XrcEth { srqn }), ..headers };
    stranger.send(&stranger.packet(headers, b"evil"));
    eventually("a drop", || {
        context.drive();
        initiator.counters().dropped_pkts == 1
    });
    srq.post(Work::recv(pd.buffer(4).expect("memory"))).expect("room");
    initiator.post(Work::send(pd.buffer(4).expect("memory")).to_srq(srq.number())).expect("room");
    for _ in 0..2 {
        assert_eq!(wait(&cq).wc.status, WcStatus::Success);
    }
}
