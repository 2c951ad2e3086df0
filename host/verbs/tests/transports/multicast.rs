//! Multicast groups, within a process and between two.

use crate::alone::{alone, is_alone, program};
use crate::datagram::{QKEY, Side};
use crate::pair::eventually;
use crate::talker::{Talker, reply};
use adverb_verbs::{Ah, AhAttr, AhError, Gid, GroupError, GroupLimits, Qkey, Qpn};
use std::io::BufRead;
use std::process::Command;

fn group(n: u8) -> Gid {
    Gid::from_v4([239, 7, 7, n])
}

/// A group of IPv6's that stays on its link.
fn group_v6(n: u8) -> Gid {
    let mut octets = [0; 16];
    [octets[0], octets[1], octets[15]] = [0xff, 0x02, n];
    Gid(octets)
}

fn way(side: &Side, gid: Gid, gid_index: u8) -> Ah {
    side.pd.create_ah(&AhAttr::new(gid).gid_index(gid_index)).expect("a way")
}

/// Makes a device that knows groups of both families.
fn another_interface() -> bool {
    let script = "ip link add groups type veth peer name other && ip link set other up \
                  && ip link set groups up multicast on \
                  && ip addr add 192.0.2.1/24 dev groups \
                  && ip addr add fd00::1/64 dev groups nodad \
                  && ip -6 addr flush dev groups scope link";
    Command::new("sh").args(["-c", script]).status().is_ok_and(|status| status.success())
}

#[test]
fn every_attached_queue_pair_gets_a_copy_the_senders_own_included() {
    alone("multicast::every_attached_queue_pair_gets_a_copy_the_senders_own_included", || {
        let other = is_alone() && another_interface();
        println!("an interface besides the loopback one: {other}");
        let v6 = (group_v6(0x71), 0, "soft_groups");
        let scenes = [(group(1), 1, "soft_lo"), (group(4), 1, "soft_groups"), v6];
        for (gid, gid_index, device) in scenes.into_iter().take(if other { 3 } else { 1 }) {
            let [a, b, c, outsider] = [(); 4].map(|()| Side::on(device, QKEY));
            for side in [&a, &b, &c] {
                side.qp.attach_mcast(gid).expect("attached");
                side.qp.attach_mcast(gid).expect("once more is no mistake");
                side.recv(5);
            }
            outsider.recv(5);
            let ah = way(&a, gid, gid_index);
            a.qp.post(adverb_verbs::Work::send_to(a.buffer(b"hello"), &ah, Qpn::MULTICAST, QKEY))
                .expect("room");
            // The sender has two completions, in any order.
            let mut own = [crate::pair::wait(&a.cq), crate::pair::wait(&a.cq)];
            own.sort_by_key(|done| done.wc.wr_id);
            assert_eq!(own.map(|done| done.ok().expect("success").wc.wr_id), [0, 1]);
            for side in [&b, &c] {
                let (done, grh, message) = side.received();
                assert_eq!(message, b"hello");
                assert_eq!(done.wc.src_qp, a.qp.number());
                let refused = side.pd.ah_attr_from(&done.wc, &grh).expect_err("to a group");
                assert!(matches!(refused, AhError::Multicast { gid: to } if to == gid));
            }
            assert!(outsider.is_quiet());

            // A member that has left hears nothing, nor one with another key.
            b.qp.detach_mcast(gid).expect("it was attached");
            assert!(matches!(b.qp.detach_mcast(gid), Err(GroupError::NotAttached { .. })));
            b.recv(5);
            c.recv(5);
            outsider.send(b"again", &way(&outsider, gid, gid_index), Qpn::MULTICAST, QKEY);
            assert_eq!(c.received().2, b"again");
            assert!(b.is_quiet());
            outsider.send(b"wrong", &way(&outsider, gid, gid_index), Qpn::MULTICAST, Qkey(1));
            eventually("a violation", || {
                c.context.drive();
                c.qp.counters().qkey_viol == 1
            });
        }
    });
}

#[test]
fn a_group_that_all_have_left_is_joined_again() {
    alone("multicast::a_group_that_all_have_left_is_joined_again", || {
        let sender = Side::new(QKEY);
        let ah = way(&sender, group(2), 1);
        for round in 0..5 {
            let side = Side::new(QKEY);
            side.qp.attach_mcast(group(2)).expect("attached");
            side.recv(1);
            sender.send(&[round], &ah, Qpn::MULTICAST, QKEY);
            assert_eq!(side.received().2, [round]);
            drop(side); // Which detaches it.
            sender.send(&[round], &ah, Qpn::MULTICAST, QKEY);
            assert!(sender.is_quiet());
        }
        let unknown = sender.context.counters().unknown_qp;
        assert!(unknown == 0 || !is_alone(), "{unknown}");
    });
}

#[test]
fn groups_have_bounds_and_names() {
    let side = Side::new(QKEY);
    let unicast = Gid::from_v4([127, 0, 0, 1]);
    let refused = side.qp.attach_mcast(unicast).expect_err("no group");
    assert!(refused.to_string().contains("is not the address of a multicast group"), "{refused}");
    let refused = side.qp.attach_mcast(group_v6(1)).expect_err("not on the loopback interface");
    assert!(refused.to_string().contains("use a group of IPv4"), "{refused}");
    for n in 0..GroupLimits::GROUPS_MAX {
        let n = u8::try_from(n).expect("few");
        match side.qp.attach_mcast(group(100 + n)) {
            Ok(()) => {}
            // The system allows fewer groups a socket only, not fewer sockets.
            Err(error) => panic!("group {n}: {error}"),
        }
    }
    let refused = side.qp.attach_mcast(group(99)).expect_err("too many");
    assert!(matches!(refused, GroupError::TooManyGroups { .. }), "{refused}");
    // The place of one that is left is another's, again and again; and messages find their way.
    let mut before = group(100);
    for n in (11..=90).chain([100]) {
        side.qp.detach_mcast(before).expect("attached");
        before = group(n);
        side.qp.attach_mcast(before).unwrap_or_else(|error| panic!("group {n}: {error}"));
    }
    side.recv(5);
    let ah = way(&side, before, 1);
    let work = adverb_verbs::Work::send_to(side.buffer(b"still"), &ah, Qpn::MULTICAST, QKEY);
    side.qp.post(work).expect("room");
    let done = [crate::pair::wait(&side.cq), crate::pair::wait(&side.cq)];
    let mut opcodes = done.map(|done| format!("{:?}", done.ok().expect("success").wc.opcode));
    opcodes.sort();
    assert_eq!(opcodes, ["Receive", "Send"]);
    let attr = side.context.query_device();
    assert_eq!(usize::try_from(attr.max_mcast_grp).ok(), Some(GroupLimits::GROUPS_MAX));
    assert_eq!(usize::try_from(attr.max_mcast_qp_attach).ok(), Some(GroupLimits::MEMBERS_MAX));
    assert_eq!(attr.max_total_mcast_qp_attach, attr.max_mcast_grp * attr.max_mcast_qp_attach);
}

/// Goal: a queue pair that does not want its own messages gets those of others, and they get its.
#[test]
fn a_queue_pair_can_be_made_not_to_hear_itself() {
    // Other tests of this process may have joined all groups that it can.
    alone("multicast::a_queue_pair_can_be_made_not_to_hear_itself", || {
        let [deaf, other] = [true, false].map(Side::deaf);
        for side in [&deaf, &other] {
            side.qp.attach_mcast(group(9)).expect("attached");
            (0..2).for_each(|_| side.recv(5));
        }
        for side in [&deaf, &other] {
            let ah = way(side, group(9), 1);
            let work =
                adverb_verbs::Work::send_to(side.buffer(b"hello"), &ah, Qpn::MULTICAST, QKEY);
            side.qp.post(work).expect("room");
        }
        // Messages to one group keep their order: the other's is the last.
        let received = |side: &Side, count: usize| {
            let mut from = Vec::new();
            while from.len() < count {
                let done = crate::pair::wait(&side.cq).ok().expect("success").wc;
                if done.opcode == adverb_verbs::WcOpcode::Receive {
                    from.push(done.src_qp);
                }
            }
            from
        };
        let [a, b] = [deaf.qp.number(), other.qp.number()];
        assert_eq!(received(&other, 2), [a, b]);
        assert_eq!(received(&deaf, 1), [b]);
    });
}

/// Set in the environment of the process that listens.
const VARIABLE: &str = "ADVERB_TEST_LISTENER";

/// Runs in another process: joins, says so, and says what it has heard.
#[test]
#[ignore = "the child of another test"]
fn listener() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let side = Side::new(QKEY);
    side.qp.attach_mcast(group(3)).expect("attached");
    side.recv(16);
    reply("joined");
    let (done, _, message) = side.received();
    reply(&format!("{} {}", String::from_utf8_lossy(&message), done.wc.src_qp.get()));
    let _ = std::io::stdin().lock().read_line(&mut String::new());
}

#[test]
fn processes_on_one_address_get_a_copy_each() {
    alone("multicast::processes_on_one_address_get_a_copy_each", || {
        let here = Side::new(QKEY);
        here.qp.attach_mcast(group(3)).expect("attached");
        here.recv(16);
        let start = |()| Talker::start(Command::new(program()), "multicast::listener", VARIABLE);
        let mut listeners = [(); 2].map(start);
        assert_eq!(listeners.each_mut().map(Talker::answer), ["joined", "joined"]);
        let ah = way(&here, group(3), 1);
        let message = b"to all of you".as_slice();
        let sender = Side::new(QKEY);
        let work = adverb_verbs::Work::send_to(
            sender.buffer(message),
            &way(&sender, group(3), 1),
            Qpn::MULTICAST,
            QKEY,
        );
        drop(ah);
        sender.qp.post(work).expect("room");
        let expected = format!("to all of you {}", sender.qp.number().get());
        assert_eq!(here.received().2, message);
        assert_eq!(listeners.each_mut().map(Talker::answer), [expected.clone(), expected]);
        for listener in &mut listeners {
            listener.tell("");
            assert!(listener.child.wait().expect("it ends").success());
        }
    });
}
