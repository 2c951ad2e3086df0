//! Processes of another user on the same host: no memory, and packets where that is possible.
//!
//! Needs root, to become another user; says so and does nothing where that is missing.

use crate::agent::Agent;
use crate::alone::{alone, is_alone, program};
use crate::pair::{Setup, pattern};
use crate::path::Path;
use adverb_verbs::{Access, Context, DataPath, RcConnect, RemoteQp, WcStatus, Work};
use std::process::Command;

/// A process of this test program as a user without rights.
fn another_user() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program());
    command
}

/// Says why not, if this test cannot become another user.
fn can_be_another_user() -> bool {
    let able = is_alone()
        && another_user().arg("--list").output().is_ok_and(|output| output.status.success());
    if !able {
        println!("skipped: no namespace, no setpriv, or not root");
    }
    able
}

/// Two addresses of this host besides the loopback one, those of `soft_one` and `soft_two`. Returns the index of their
/// GIDs.
pub(crate) fn add_addresses() -> u8 {
    let script = "ip link add one type veth peer name two && ip link set one up \
                  && ip link set two up && ip addr add 10.9.7.1/24 dev one \
                  && ip addr add 10.9.7.2/24 dev two";
    assert!(Command::new("sh").args(["-c", script]).status().expect("a shell").success());
    let context = Context::open("soft_one").expect("it was made");
    let mut gids = context.gids().iter().filter(|entry| entry.gid.v4().is_some());
    gids.next().expect("an address").index
}

/// Goal: at addresses of their own, processes of two users reach each other with every operation, and
/// by packets; memory that one of them shows to its own kind is of no use to the other.
#[test]
fn another_user_gets_packets() {
    alone("users::another_user_gets_packets", || {
        if !can_be_another_user() {
            return;
        }
        let setup = Setup { gid_index: add_addresses(), ..Setup::default() };
        let context = Context::open("soft_one").expect("it was made");
        let side = setup.side(&context);
        // A neighbour of our own, so that there is something to see.
        let kin = setup.pair_on(context.clone());
        assert_eq!(kin.a.qp.path(), Some(DataPath::InProcess));
        let mut agent = Agent::start_by(another_user(), "soft_two", setup.gid_index);
        let there = agent.connect_to(&side.qp, &setup);
        assert_eq!(side.qp.path(), Some(DataPath::Udp));
        assert_eq!(agent.ask(&format!("path {}", there.index)), "udp");
        let far = agent.memory();
        side.qp.post(Work::write(side.buffer(&pattern(1, 100_000)), far)).expect("room");
        assert_eq!(side.status(), WcStatus::Success);
        assert!(agent.has(0, 100_000, 1));
        let mr = side.pd.allocate(100_000, Access::ALL).expect("memory");
        let (index, addr, rkey) = (there.index, mr.addr(), mr.rkey().0);
        assert_eq!(agent.ask(&format!("write {index} 0 100000 {addr} {rkey}")), "Success");
        assert_eq!(agent.ask(&format!("read {index} 0 100000 {addr} {rkey}")), "Success");
        assert_eq!(agent.ask(&format!("add {index} {addr} {rkey} 1")), "Success");
        agent.ask(&format!("recv {index} 0 8"));
        side.qp.post(Work::send(side.buffer(&[9; 8]))).expect("room");
        assert_eq!(agent.ask("wait"), "Success Receive 8");
        assert_eq!(side.status(), WcStatus::Success);
        assert!(agent.counter("rcvd_pkts") > 0);
    });
}

/// Goal: an address whose port another user has is refused in words, and its holder goes on.
#[test]
fn an_address_of_another_user_is_refused_with_advice() {
    alone("users::an_address_of_another_user_is_refused_with_advice", || {
        if !can_be_another_user() {
            return;
        }
        let setup = Setup::default();
        let pair = Setup { path: Some(Path::Udp), ..setup }.pair();
        let mut agent = Agent::start_by(another_user(), "soft_lo", 1);
        let there = agent.qp();
        let here = pair.a.qp.address().expect("an address");
        let refused = agent.refused(&there, here, &setup);
        assert!(refused.contains("by a program of another user"), "{refused}");
        let target = pair.b.region(&[0; 8]);
        pair.a
            .qp
            .post(Work::write(pair.a.buffer(&[1; 8]), crate::pair::remote(&target)))
            .expect("room");
        assert_eq!(pair.a.status(), WcStatus::Success);

        // Nor does memory stand in: a program that insists on it is told.
        let strict = Context::open_with("soft_lo", &crate::path::only_memory()).expect("loopback");
        let side = setup.side(&strict);
        let RemoteQp { gid, qpn, psn } = there.qp;
        let how = RcConnect::new(RemoteQp { gid, qpn, psn });
        let refused = side.qp.connect(setup.to(how)).expect_err("of another user").to_string();
        assert!(refused.contains("not of a device of this host and user"), "{refused}");
    });
}

/// Goal: other users are not let in: the registry's file, and the socket by which neighbours
/// introduce themselves. Method: a neighbour knocks in the same way, and is let in.
#[test]
fn another_user_is_not_let_in() {
    alone("users::another_user_is_not_let_in", || {
        if !can_be_another_user() {
            return;
        }
        let context = Context::open("soft_lo").expect("loopback");
        let pair = Setup::default().pair_on(context);
        assert_eq!(pair.a.qp.path(), Some(DataPath::InProcess));
        let mut friend = Agent::start("soft_lo", 1);
        assert_eq!(friend.ask("knock 0"), "let in, and the registry is open");
        let mut stranger = Agent::start_by(another_user(), "soft_lo", 1);
        assert_eq!(stranger.ask("knock 0"), "shut out, and the registry is closed");
    });
}
