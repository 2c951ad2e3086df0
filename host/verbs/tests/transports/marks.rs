//! GRH fields of packets: traffic class, hop limit and flow label, from the address handle to the wire
//! and on to the receiver.

#![expect(clippy::indexing_slicing, reason = "a test may panic")]

use crate::alone::{alone, over_udp};
use crate::datagram::{QKEY, Side};
use crate::pair::{Setup, wait};
use crate::path::{Path, on_every_path};
use crate::tap::Tap;
use adverb_verbs::{
    Ah, AhAttr, ConnectError, Connected, Context, GRH_LEN, Marks, Modify, Qp, QpConfig, QpState,
    Qpn, RcConnect, RemoteQp, Uc, UcConnect, Work,
};
use adverb_wire::Grh;

on_every_path! {
    a_batch_of_several_marks_arrives_with_each_as_it_was,
    a_datagram_shows_how_it_was_marked_and_is_answered_alike,
}

/// A class that asks for expedited forwarding, and a congestion field that was not touched.
const MARKS: Marks = Marks { traffic_class: 0xb8, hop_limit: 17, flow_label: 0xa_bcde };

/// As IPv4 has it, which has no labels, or IPv6.
fn of(gid_index: u8, marks: Marks) -> Marks {
    Marks { flow_label: if gid_index == 0 { marks.flow_label } else { 0 }, ..marks }
}

fn ah([side, other]: [&Side; 2], gid_index: u8, marks: Marks) -> Ah {
    let gid = other.gid(gid_index);
    side.pd.create_ah(&AhAttr::new(gid).gid_index(gid_index).marked(marks)).expect("a way")
}

fn pair(path: Path) -> [Side; 2] {
    path.contexts().map(|context| Side::of(context, QKEY))
}

fn a_datagram_shows_how_it_was_marked_and_is_answered_alike(path: Path) {
    let [a, b] = pair(path);
    for gid_index in [0, 1] {
        b.recv(5);
        a.send(b"plain", &a.to(&b, gid_index), b.qp.number(), QKEY);
        let shown = Grh::parse(&b.received().1).expect("a header").marks;
        assert_eq!((shown.traffic_class, shown.hop_limit), (0, 64));

        b.recv(6);
        a.send(b"marked", &ah([&a, &b], gid_index, MARKS), b.qp.number(), QKEY);
        let (done, grh, message) = b.received();
        let expected = of(gid_index, MARKS);
        assert_eq!(message, b"marked");
        assert_eq!(Grh::parse(&grh).expect("a header").marks, expected);
        let attr = b.pd.ah_attr_from(&done.wc, &grh).expect("an address");
        assert_eq!(attr.marks(), expected);

        let back = b.pd.create_ah_from(&done.wc, &grh).expect("a way");
        assert_eq!(back.attr(), attr);
        a.recv(6);
        b.send(b"answer", &back, done.wc.src_qp, QKEY);
        let (_, grh, message) = a.received();
        assert_eq!(
            (Grh::parse(&grh).expect("a header").marks, &message[..]),
            (expected, &b"answer"[..])
        );
    }
}

/// Goal: packets that are marked differently never leave in one call, nor borrow from their neighbours.
/// Method: what waits in SQD leaves at once.
fn a_batch_of_several_marks_arrives_with_each_as_it_was(path: Path) {
    let [a, b] = pair(path);
    for gid_index in [0, 1] {
        let marks = |n: u8| match n / 4 % 3 {
            0 => Marks { traffic_class: 0, hop_limit: 64, flow_label: 5 },
            1 => Marks { traffic_class: 0x20, ..MARKS },
            _ => Marks { hop_limit: 3, ..MARKS },
        };
        let ways = [0, 4, 8].map(|n| ah([&a, &b], gid_index, marks(n)));
        a.qp.modify(&Modify::to(QpState::Sqd)).expect("SQD");
        for n in 0..60 {
            b.recv(1);
            let way = &ways[usize::from(n / 4 % 3)];
            a.qp.post(Work::send_to(a.buffer(&[n]), way, b.qp.number(), QKEY)).expect("room");
        }
        a.qp.modify(&Modify::to(QpState::Rts)).expect("RTS");
        for n in 0..60 {
            wait(&a.cq).ok().expect("sent");
            let (_, grh, message) = b.received();
            assert_eq!(message, [n]);
            let shown = Grh::parse(&grh).expect("a header").marks;
            assert_eq!(shown, of(gid_index, marks(n)), "number {n}");
        }
    }
}

#[test]
fn datagrams_are_on_the_wire_as_they_were_marked() {
    over_udp("marks::datagrams_are_on_the_wire_as_they_were_marked", || {
        let Some(tap) = Tap::new() else { return };
        let [a, b] = pair(Path::Udp);
        for gid_index in [0, 1] {
            for marks in [MARKS, Marks { hop_limit: 0, ..MARKS }, Marks::default()] {
                b.recv(2);
                a.send(b"ok", &ah([&a, &b], gid_index, marks), b.qp.number(), QKEY);
                b.received();
                let found = tap.marks_to(b.qp.number());
                assert!(!found.is_empty());
                for shown in found {
                    let hop_limit = if marks.hop_limit == 0 { 64 } else { marks.hop_limit };
                    let mut expected = Marks { hop_limit, ..of(gid_index, marks) };
                    if marks.flow_label == 0 {
                        expected.flow_label = shown.flow_label; // The system's choice.
                    }
                    assert_eq!(shown, expected);
                }
            }
        }
    });
}

#[test]
fn connections_send_as_each_side_was_told() {
    over_udp("marks::connections_send_as_each_side_was_told", || {
        let Some(tap) = Tap::new() else { return };
        for gid_index in [0, 1] {
            let setup = Setup { gid_index, ..Setup::default() };
            let context = Context::open("soft_lo").expect("the device");
            let [a, b] = [setup.side(&context), setup.side(&context)];
            let address = |qp: &Qp<_>| qp.address_at(gid_index).expect("an address");
            let marked = |usual: RcConnect, marks: Marks| {
                let Marks { traffic_class, hop_limit, flow_label } = marks;
                setup
                    .to(usual)
                    .traffic_class(traffic_class)
                    .hop_limit(hop_limit)
                    .flow_label(flow_label)
            };
            let other = Marks { traffic_class: 0x28, hop_limit: 99, flow_label: 0x12 };
            let [here, there] = [address(&a.qp), address(&b.qp)];
            a.qp.connect(marked(RcConnect::new(there), MARKS)).expect("connected");
            b.qp.connect(marked(RcConnect::new(here), other)).expect("connected");
            assert_eq!(a.qp.query().ah.expect("an address").marks(), MARKS);
            assert_eq!(b.qp.query().ah.expect("an address").marks(), other);
            // Long enough for bursts; the acknowledgements are the other side's to mark.
            let bytes = 20_000;
            b.qp.post(Work::recv(b.pd.buffer(bytes).expect("memory"))).expect("room");
            a.qp.post(Work::send(a.pd.buffer(bytes).expect("memory"))).expect("room");
            wait(&b.cq).ok().expect("received");
            wait(&a.cq).ok().expect("sent");
            for (to, marks) in [(&b.qp, MARKS), (&a.qp, other)] {
                let found = tap.marks_to(to.number());
                assert!(!found.is_empty());
                assert!(found.iter().all(|shown| *shown == of(gid_index, marks)), "{found:?}");
                // Both were read; what comes next is the other's.
                b.qp.post(Work::recv(b.pd.buffer(0).expect("memory"))).expect("room");
                a.qp.post(Work::send(a.pd.buffer(0).expect("memory"))).expect("room");
                wait(&a.cq).ok().expect("sent");
                wait(&b.cq).ok().expect("received");
            }
        }
    });
}

#[test]
fn unreliable_connections_send_as_they_were_told() {
    over_udp("marks::unreliable_connections_send_as_they_were_told", || {
        let Some(tap) = Tap::new() else { return };
        let context = Context::open("soft_lo").expect("the device");
        let (pd, cq) = (context.alloc_pd(), context.create_cq(16).expect("a queue"));
        for gid_index in [0, 1] {
            let [a, b] = [(); 2].map(|()| pd.create_qp_of::<Uc>(&QpConfig::new(&cq)).expect("one"));
            let address = |qp: &Qp<Uc>| qp.address_at(gid_index).expect("an address");
            let how = |remote: RemoteQp| -> <Uc as Connected>::Connect {
                let Marks { traffic_class, hop_limit, flow_label } = MARKS;
                let usual = UcConnect::new(remote);
                usual
                    .gid_index(gid_index)
                    .traffic_class(traffic_class)
                    .hop_limit(hop_limit)
                    .flow_label(flow_label)
            };
            a.connect(how(address(&b))).expect("connected");
            b.connect(how(address(&a))).expect("connected");
            b.post(Work::recv(pd.buffer(5000).expect("memory"))).expect("room");
            a.post(Work::send(pd.buffer(5000).expect("memory"))).expect("room");
            for _ in 0..2 {
                wait(&cq).ok().expect("sent and received");
            }
            let found = tap.marks_to(b.number());
            assert!(!found.is_empty());
            assert!(found.iter().all(|shown| *shown == of(gid_index, MARKS)), "{found:?}");
        }
    });
}

#[test]
fn a_label_longer_than_20_bits_is_refused_before_anything_changes() {
    let name = "marks::a_label_longer_than_20_bits_is_refused_before_anything_changes";
    alone(name, || {
        let a = Side::new(QKEY);
        let gid = a.qp.address_at(0).expect("an address").gid;
        let most = Marks::FLOW_LABEL_MAX;
        let attr = AhAttr::new(gid).gid_index(0).flow_label(most + 1);
        let refused = a.pd.create_ah(&attr).expect_err("too long").to_string();
        assert_eq!(refused, "flow_label = 1048576, but it must be from 0 to 1048575");
        let setup = Setup { gid_index: 0, ..Setup::default() };
        let context = Context::open("soft_lo").expect("the device");
        let side = setup.side(&context);
        let own = side.qp.address_at(0).expect("an address");
        let how = setup.to(RcConnect::new(own)).flow_label(most + 1);
        let refused = side.qp.connect(how).expect_err("too long");
        assert!(matches!(refused, ConnectError::Attribute { what: "flow_label", .. }));
        assert_eq!(side.qp.state(), QpState::Reset);
    });
}

/// Goal: groups stay on their link unless the handle says otherwise.
#[test]
fn messages_to_a_group_pass_no_router_unless_they_may() {
    alone("marks::messages_to_a_group_pass_no_router_unless_they_may", || {
        let group = adverb_verbs::Gid::from_v4([239, 7, 7, 77]);
        let side = Side::new(QKEY);
        side.qp.attach_mcast(group).expect("attached");
        for (asked, shown) in [(0, 1), (1, 1), (2, 2), (64, 64)] {
            let attr = AhAttr::new(group).hop_limit(asked).traffic_class(0x48);
            let ah = side.pd.create_ah(&attr).expect("a way");
            side.recv(1);
            let work = Work::send_to(side.buffer(&[1]), &ah, Qpn::MULTICAST, QKEY);
            side.qp.post(work).expect("room");
            for _ in 0..2 {
                let done = wait(&side.cq).ok().expect("sent and received");
                let Some(buffer) = done.memory.and_then(adverb_verbs::Memory::into_buf) else {
                    continue;
                };
                if buffer.len() > GRH_LEN {
                    let grh = buffer[..GRH_LEN].try_into().expect("40 bytes");
                    let marks = Grh::parse(&grh).expect("a header").marks;
                    assert_eq!((marks.traffic_class, marks.hop_limit), (0x48, shown));
                }
            }
        }
    });
}
