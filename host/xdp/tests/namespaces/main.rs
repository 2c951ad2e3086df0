//! Frames between two network namespaces of one host, over a cable that each test lays.
//!
//! A test runs again in a namespace of its own, the near end; the far end is the namespace of a program that does
//! nothing. What is to run there, or in a process of its own here, is this binary again, with a role.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

mod hostile;
mod limits;
mod place;
mod roles;

use adverb_sys::bpf::XdpMode;
use adverb_sys::busy_poll;
use adverb_xdp::gate::GATES;
use adverb_xdp::interface::{OpenError, QUEUE_PATIENCE};
use adverb_xdp::steering::Protocol;
use adverb_xdp::{Config, Interface, Key, Membership, Socket};
use place::{FAR, FAR_6, MACS, NEAR, NEAR_6, Pair, frame, index, near_role, read, with_namespaces};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::ControlFlow;
use std::process::Command;
use std::time::{Duration, Instant};

const PORT: u16 = 7001;
const OTHER: u16 = 7002;
/// The abstract name of an owner in a role.
const OWNER: &[u8] = b"adverb-xdp-test";

fn config(mode: XdpMode) -> Config {
    Config { mode: Some(mode), ..Config::default() }
}

fn key(local: &str, port: u16) -> Key {
    let local = SocketAddr::new(local.parse().unwrap(), port);
    Key { protocol: Protocol::Udp, local, remote: None }
}

/// Polls until it is true; false if it does not become so in several seconds.
fn soon(mut is: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        if is() {
            return true;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    false
}

/// Goal: frames go out and come in without a socket of the kernel's, in both modes and families, and more of them than
/// there are frames.
#[test]
fn frames_reach_a_kernel_socket_and_come_back() {
    with_namespaces("frames_reach_a_kernel_socket_and_come_back", || {
        for mode in [XdpMode::Native, XdpMode::Generic] {
            let pair = Pair::new(1);
            let mut interface = Interface::open(index("near"), &config(mode)).unwrap();
            assert_eq!((interface.mode(), interface.reason()), (mode, None));
            let mut group = interface.group(1, false, QUEUE_PATIENCE).unwrap();
            let member = interface.join(&mut group).unwrap();
            let place = member.place();
            let mut sockets = member.into_sockets(&group).unwrap();
            let socket = &mut sockets[0];
            for (near, far) in [(NEAR, FAR), (NEAR_6, FAR_6)] {
                let _echo = pair.far_role("echo", &format!("{far} {PORT}"));
                interface.claim(key(near, PORT), place).unwrap();
                for round in 0..300_u32 {
                    let mut due: Vec<_> = (0..32).map(|n| (round << 8 | n).to_be_bytes()).collect();
                    for payload in &due {
                        let bytes = frame(MACS, (near, PORT), (far, PORT), payload);
                        socket.outgoing.send(|writer| writer.push(&bytes)).unwrap();
                    }
                    socket.outgoing.flush().unwrap();
                    assert!(
                        soon(|| {
                            while socket.incoming.receive(64, |bytes| {
                                let (from, to, payload) = read(bytes).unwrap();
                                assert_eq!(from, SocketAddr::new(far.parse().unwrap(), PORT));
                                assert_eq!(to, SocketAddr::new(near.parse().unwrap(), PORT));
                                due.retain(|due| due != payload);
                                ControlFlow::Continue(())
                            }) > 0
                            {}
                            due.is_empty()
                        }),
                        "{mode:?} {near} round {round}: {due:?} {:?}",
                        socket.incoming.statistics()
                    );
                }
            }
            assert_eq!(socket.incoming.umem().nonsense(), 0);
        }
    });
}

/// Goal: sockets that are to poll do, and get packets by that: a system call for each look that finds nothing.
#[test]
fn a_socket_that_polls_the_driver_gets_what_comes() {
    with_namespaces("a_socket_that_polls_the_driver_gets_what_comes", || {
        let pair = Pair::new(1);
        let _echo = pair.far_role("echo", &format!("{FAR} {PORT}"));
        for packets in [None, Some(64)] {
            let config = Config { busy_poll: packets, ..Config::default() };
            let mut interface = Interface::open(index("near"), &config).unwrap();
            let mut group = interface.group(1, false, QUEUE_PATIENCE).unwrap();
            let member = interface.join(&mut group).unwrap();
            interface.claim(key(NEAR, PORT), member.place()).unwrap();
            let mut sockets = member.into_sockets(&group).unwrap();
            assert_eq!(busy_poll::is_set(&sockets[0].incoming), packets.is_some());
            for round in 0..50_u32 {
                let bytes = frame(MACS, (NEAR, PORT), (FAR, PORT), &round.to_be_bytes());
                sockets[0].outgoing.send(|writer| writer.push(&bytes)).unwrap();
                sockets[0].outgoing.flush().unwrap();
                assert!(soon(|| receive(&mut sockets) == [(PORT, round.to_be_bytes().to_vec())]));
            }
        }
    });
}

/// Takes what has arrived; says what datagrams carried, and by which ports they came.
fn receive(sockets: &mut [Socket]) -> Vec<(u16, Vec<u8>)> {
    let mut came = Vec::new();
    for socket in sockets {
        while socket.incoming.receive(64, |bytes| {
            let (_, to, payload) = read(bytes).unwrap();
            came.push((to.port(), payload.to_vec()));
            ControlFlow::Continue(())
        }) > 0
        {}
    }
    came
}

/// What a socket of the kernel's has within a moment.
fn kernel_has(socket: &UdpSocket) -> Option<Vec<u8>> {
    let mut buffer = [0; 4096];
    socket.set_nonblocking(true).unwrap();
    let mut len = None;
    soon(|| {
        len = socket.recv(&mut buffer).ok();
        len.is_some()
    })
    .then(|| buffer[..len.unwrap()].to_vec())
}

/// Goal: what matches a key comes here, and everything else is the kernel's: other ports, other sources, fragments,
/// another protocol, and all once a key is given back.
#[test]
fn packets_that_match_no_key_are_the_kernels() {
    with_namespaces("packets_that_match_no_key_are_the_kernels", || {
        for (near, far, long) in [(NEAR, FAR, 3000), (NEAR_6, FAR_6, 3000)] {
            let pair = Pair::new(1);
            let _echo = pair.far_role("echo", &format!("{far} {PORT}"));
            let mut interface = Interface::open(index("near"), &Config::default()).unwrap();
            let mut group = interface.group(4, false, QUEUE_PATIENCE).unwrap();
            assert_eq!(group.queues().collect::<Vec<_>>(), [0]);
            let member = interface.join(&mut group).unwrap();
            let place = member.place();
            let mut sockets = member.into_sockets(&group).unwrap();
            let to = SocketAddr::new(far.parse().unwrap(), PORT);
            let twin = UdpSocket::bind((near, PORT)).unwrap();
            let other = UdpSocket::bind((near, OTHER)).unwrap();
            let comes = |sockets: &mut [Socket]| {
                let mut came = Vec::new();
                soon(|| {
                    came.extend(receive(sockets));
                    !came.is_empty()
                });
                came
            };

            interface.claim(key(near, PORT), place).unwrap();
            twin.send_to(b"ours", to).unwrap();
            assert_eq!(comes(&mut sockets), [(PORT, b"ours".to_vec())]);
            other.send_to(b"another port", to).unwrap();
            assert_eq!(kernel_has(&other).unwrap(), b"another port");
            twin.send_to(&vec![7; long], to).unwrap();
            assert_eq!(kernel_has(&twin).unwrap().len(), long);
            let listener = TcpListener::bind((near, PORT)).unwrap();
            let refused = TcpStream::connect(to).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            drop(listener);

            interface.release(&key(near, PORT), place);
            twin.send_to(b"given back", to).unwrap();
            assert_eq!(kernel_has(&twin).unwrap(), b"given back");
            let from =
                |port| Key { remote: Some(SocketAddr::new(to.ip(), port)), ..key(near, PORT) };
            interface.claim(from(OTHER), place).unwrap();
            twin.send_to(b"from another", to).unwrap();
            assert_eq!(kernel_has(&twin).unwrap(), b"from another");
            interface.claim(from(PORT), place).unwrap();
            twin.send_to(b"from this one", to).unwrap();
            assert_eq!(comes(&mut sockets), [(PORT, b"from this one".to_vec())]);

            assert_eq!(receive(&mut sockets), []);
            interface.leave(&mut group, place);
            // The next member has the place of the last, and not its keys.
            let member = interface.join(&mut group).unwrap();
            assert_eq!(member.place(), place);
            sockets.extend(member.into_sockets(&group).unwrap());
            twin.send_to(b"left", to).unwrap();
            assert_eq!(kernel_has(&twin).unwrap(), b"left");
            assert!(receive(&mut sockets).is_empty());
        }
    });
}

/// Goal: of two keys that a packet matches, the one with its source counts, and each ends alone; a key that was claimed
/// again ends at once.
#[test]
fn a_key_with_the_source_comes_first() {
    with_namespaces("a_key_with_the_source_comes_first", || {
        let pair = Pair::new(1);
        let mut interface = Interface::open(index("near"), &Config::default()).unwrap();
        let mut group = interface.group(1, false, QUEUE_PATIENCE).unwrap();
        let members = [(); 2].map(|()| interface.join(&mut group).unwrap());
        let [any, one] = [0, 1].map(|at: usize| members[at].place());
        let mut sockets = members.map(|member| member.into_sockets(&group).unwrap());
        for (near, far) in [(NEAR, FAR), (NEAR_6, FAR_6)] {
            let _echo = pair.far_role("echo", &format!("{far} {PORT}"));
            let to = SocketAddr::new(far.parse().unwrap(), PORT);
            let twin = UdpSocket::bind((near, PORT)).unwrap();
            // Which member gets an answer; `None`: the kernel does.
            let mut whose = || {
                twin.send_to(b"whose", to).unwrap();
                twin.set_nonblocking(true).unwrap();
                let mut whose = None;
                assert!(soon(|| {
                    let got = |sockets: &mut Vec<Socket>| !receive(sockets).is_empty();
                    whose = sockets.iter_mut().position(got);
                    whose.is_some() || twin.recv(&mut [0; 64]).is_ok()
                }));
                whose
            };
            let all = key(near, PORT);
            let from = Key { remote: Some(to), ..all };
            assert_eq!(whose(), None);
            interface.claim(from, one).unwrap();
            assert_eq!(whose(), Some(1));
            interface.claim(all, any).unwrap();
            assert_eq!(whose(), Some(1));
            interface.release(&from, one);
            assert_eq!(whose(), Some(0));
            interface.claim(from, one).unwrap();
            interface.claim(from, one).unwrap();
            interface.release(&all, any);
            assert_eq!(whose(), Some(1));
            interface.release(&from, one);
            assert_eq!(whose(), None);
            // Another protocol's key of this port, and one of a port that has the same counts on most machines.
            let others = [Key { protocol: Protocol::Tcp, ..all }, key(near, PORT ^ 0x700)];
            others.iter().for_each(|key| interface.claim(*key, one).unwrap());
            assert_eq!(whose(), None);
            interface.claim(all, any).unwrap();
            others.iter().for_each(|key| interface.release(key, one));
            assert_eq!(whose(), Some(0));
            interface.release(&all, any);
        }
    });
}

/// Goal: packets that come on different queues reach the sockets of those queues, and others leave, however many there are.
#[test]
fn every_queue_has_its_socket() {
    with_namespaces("every_queue_has_its_socket", || {
        for queues in [4_u16, 16] {
            let pair = Pair::new(queues.into());
            let _echo = pair.far_role("echo", &format!("{FAR} {PORT}"));
            let mut interface = Interface::open(index("near"), &Config::default()).unwrap();
            let mut group = interface.group(64, false, QUEUE_PATIENCE).unwrap();
            assert_eq!(
                group.queues().collect::<Vec<_>>(),
                (0..u32::from(queues)).collect::<Vec<_>>()
            );
            let member = interface.join(&mut group).unwrap();
            let place = member.place();
            let mut sockets = member.into_sockets(&group).unwrap();
            for port in 8000..8064 {
                interface.claim(key(NEAR, port), place).unwrap();
                let bytes = frame(MACS, (NEAR, port), (FAR, PORT), b"which queue?");
                let at = usize::from(port % queues);
                sockets[at].outgoing.send(|writer| writer.push(&bytes)).unwrap();
                sockets[at].outgoing.flush().unwrap();
            }
            let mut came = vec![Vec::new(); sockets.len()];
            assert!(
                soon(|| {
                    for (socket, came) in sockets.iter_mut().zip(&mut came) {
                        came.extend(receive(std::slice::from_mut(socket)));
                    }
                    came.iter().map(Vec::len).sum::<usize>() == 64
                }),
                "{came:?}"
            );
            assert!(came.iter().filter(|came| !came.is_empty()).count() > 1, "{came:?}");
        }
    });
}

/// Goal: keys that are one in the kernel's table are one here.
#[test]
fn a_key_with_an_unspecified_source_is_one_without() {
    with_namespaces("a_key_with_an_unspecified_source_is_one_without", || {
        let _pair = Pair::new(1);
        let mut interface = Interface::open(index("near"), &Config::default()).unwrap();
        let all = key(NEAR, PORT);
        let same = Key { remote: Some("0.0.0.0:0".parse().unwrap()), ..all };
        interface.claim(all, 0).unwrap();
        assert_eq!(interface.claim(same, 1).unwrap_err().kind(), ErrorKind::AlreadyExists);
        interface.release(&same, 0);
        interface.claim(all, 1).unwrap();
    });
}

/// Goal: an interface has one owner, and a queue one group.
#[test]
fn what_is_taken_is_refused_with_the_reason() {
    with_namespaces("what_is_taken_is_refused_with_the_reason", || {
        let _pair = Pair::new(1);
        let mut interface = Interface::open(index("near"), &Config::default()).unwrap();
        assert_eq!((interface.mode(), interface.reason()), (XdpMode::Native, None));
        let group = interface.group(1, false, QUEUE_PATIENCE).unwrap();
        assert_eq!(
            interface.group(1, true, QUEUE_PATIENCE).unwrap_err().kind(),
            ErrorKind::ResourceBusy
        );
        let second = Interface::open(index("near"), &Config::default()).unwrap_err();
        assert!(matches!(second, OpenError::Occupied), "{second:?}");
        let none = Interface::open(99, &Config::default()).unwrap_err();
        assert!(matches!(none, OpenError::NotFound), "{none:?}");
        interface.disband(group);
        interface.group(1, true, QUEUE_PATIENCE).unwrap();
        drop(interface);
        // An interface whose driver takes no program.
        let interface = Interface::open(index("lo"), &Config::default());
        match interface {
            Ok(lo) => assert!(lo.mode() == XdpMode::Generic && lo.reason().is_some(), "{lo:?}"),
            Err(OpenError::System { doing, .. }) => assert!(doing.contains("frames"), "{doing}"),
            Err(error) => panic!("{error}"),
        }
    });
}

/// Goal: a queue that stays busy is no reason to refuse those behind it, nor to wait.
#[test]
fn a_busy_queue_is_passed_over() {
    with_namespaces("a_busy_queue_is_passed_over", || {
        let _pair = Pair::new(2);
        let mut interface = Interface::open(index("near"), &Config::default()).unwrap();
        let mut first = interface.group(1, true, QUEUE_PATIENCE).unwrap();
        let stays = interface.join(&mut first).unwrap();
        interface.disband(first);
        let second = interface.group(2, true, Duration::ZERO).unwrap();
        assert_eq!(second.queues().collect::<Vec<_>>(), [1]);
        let none = interface.group(1, true, Duration::ZERO).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::ResourceBusy);
        drop(stays);
        let third = interface.group(1, true, QUEUE_PATIENCE).unwrap();
        assert_eq!(third.queues().collect::<Vec<_>>(), [0]);
    });
}

fn has_program() -> bool {
    let output = Command::new("ip").args(["link", "show", "near"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("xdp")
}

/// Goal: processes share an interface by an owner's hand, each with its own packets, and the kernel keeps the rest.
#[test]
fn two_processes_share_an_interface() {
    with_namespaces("two_processes_share_an_interface", || {
        let pair = Pair::new(2);
        let _echo = pair.far_role("echo", &format!("{FAR} {PORT}"));
        assert_eq!(Membership::ask(OWNER).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let _owner = near_role("owner", "");
        let mut members =
            [8000, 8010].map(|port| near_role("member", &format!("{port} {PORT} 200")));
        let other = UdpSocket::bind((NEAR, OTHER)).unwrap();
        for _ in 0..20 {
            other.send_to(b"the kernel's", (FAR, PORT)).unwrap();
            assert_eq!(kernel_has(&other).unwrap(), b"the kernel's");
        }
        members.iter_mut().for_each(|member| member.wait_for("done"));
    });
}

/// Goal: while a gate is shut, packets are the kernel's, and it says how many it has let through; an owner does not take a gate that there is not.
#[test]
fn a_gate_says_whose_packets_are() {
    with_namespaces("a_gate_says_whose_packets_are", || {
        let pair = Pair::new(1);
        let _echo = pair.far_role("echo", &format!("{FAR} {PORT}"));
        let _owner = near_role("owner", "");
        let (member, mut sockets) = Membership::ask(OWNER).unwrap();
        let twin = UdpSocket::bind((NEAR, PORT)).unwrap();
        member.claim_by(key(NEAR, PORT), GATES - 1, &twin).unwrap();
        for round in 0..20_u8 {
            let is_open = round % 2 == 1;
            member.gates().set(GATES - 1, is_open);
            member.gates().set(GATES - 2, !is_open);
            member.gates().set(GATES, !is_open);
            twin.send_to(&[round], (FAR, PORT)).unwrap();
            if is_open {
                let mut came = Vec::new();
                assert!(soon(|| {
                    came.extend(receive(&mut sockets));
                    !came.is_empty()
                }));
                assert_eq!(came, [(PORT, vec![round])]);
            } else {
                assert_eq!(kernel_has(&twin).unwrap(), [round]);
            }
            assert_eq!(member.gates().let_through(GATES - 1), u32::from(round).div_ceil(2));
        }
        assert!(member.claim_by(key(NEAR, PORT), GATES, &twin).is_err());
        assert!(soon(|| member.has_ended()));
    });
}

/// Goal: members that are killed lose their group no frames, and their packets are the kernel's again.
/// Method: each has hundreds of frames in its rings and its hands, and together they would have all several times over.
#[test]
fn members_that_are_killed_leave_nothing() {
    with_namespaces("members_that_are_killed_leave_nothing", || {
        let pair = Pair::new(1);
        let _echo = pair.far_role("echo", &format!("{FAR} {PORT}"));
        let _owner = near_role("owner", "");
        let _stays = near_role("member", &format!("8000 {PORT} 20"));
        for round in 0..30 {
            let role = if round % 3 == 0 { "member" } else { "hoarder" };
            let member = near_role(role, &format!("8010 {PORT} 60000"));
            member.kill();
            let mut twin = Err(ErrorKind::AddrInUse.into());
            assert!(soon(|| {
                twin = UdpSocket::bind((NEAR, 8010)); // The owner may still look at the last one.
                twin.is_ok()
            }));
            let twin = twin.unwrap();
            twin.set_nonblocking(true).unwrap();
            assert!(soon(|| {
                let _ = twin.send_to(b"the kernel's", (FAR, PORT));
                let mut buffer = [0; 64];
                std::iter::from_fn(|| Some(twin.recv(&mut buffer).ok()? == 12)).any(|ours| ours)
            }));
        }
        let mut last = near_role("member", &format!("8010 {PORT} 200"));
        last.wait_for("done");
    });
}

/// Goal: a member whose membership has ended, and that writes on, writes to no frames of others.
/// Method: it has frames in its hands, and writes to them after another has taken hundreds.
#[test]
fn a_member_that_lives_on_does_not_write_to_frames_of_others() {
    with_namespaces("a_member_that_lives_on_does_not_write_to_frames_of_others", || {
        let pair = Pair::new(1);
        let _echo = pair.far_role("echo", &format!("{FAR} {PORT}"));
        let _owner = near_role("owner", "");
        let (ended, mut old) = Membership::ask(OWNER).unwrap();
        let (member, mut sockets) = Membership::ask(OWNER).unwrap();
        let twin = UdpSocket::bind((NEAR, OTHER)).unwrap();
        member.claim(key(NEAR, OTHER), &twin).unwrap();
        let write = |socket: &mut Socket, payload: [u8; 4]| {
            let bytes = frame(MACS, (NEAR, OTHER), (FAR, PORT), &payload);
            socket.outgoing.send(|writer| writer.push(&bytes)).unwrap();
        };
        write(&mut old[0], [0xff; 4]);
        assert!(ended.claim_by(key(NEAR, PORT), GATES, &twin).is_err());
        assert!(soon(|| ended.has_ended()));
        std::thread::sleep(Duration::from_millis(200)); // The owner does what it is to do meanwhile.
        let mut due: Vec<_> = (0..200_u32).map(u32::to_be_bytes).collect();
        due.iter().for_each(|payload| write(&mut sockets[0], *payload));
        (0..20).for_each(|_| write(&mut old[0], [0xff; 4]));
        sockets[0].outgoing.flush().unwrap();
        let mut strange = 0;
        soon(|| {
            for (_, payload) in receive(&mut sockets) {
                let before = due.len();
                due.retain(|due| *due != *payload);
                strange += usize::from(due.len() == before);
            }
            due.is_empty()
        });
        assert_eq!((due.len(), strange), (0, 0));
    });
}

/// Goal: a user has all queues of an interface once they are free, though some were busy when it first asked an owner.
/// Method: a member of an owner that was killed has the socket of one queue for a while.
#[test]
fn a_group_gets_queues_that_were_busy_at_first() {
    with_namespaces("a_group_gets_queues_that_were_busy_at_first", || {
        let _pair = Pair::new(2);
        let before = near_role("owner", "");
        let (ended, mut old) = Membership::ask(OWNER).unwrap();
        assert_eq!(old.len(), 2);
        before.kill();
        drop((ended, old.remove(0)));
        std::thread::sleep(Duration::from_millis(150)); // That queue is free by then.
        let _owner = near_role("owner", "");
        assert_eq!(Membership::ask(OWNER).unwrap_err().kind(), ErrorKind::ResourceBusy);
        drop(old);
        let mut asked = Membership::ask(OWNER);
        assert!(soon(|| {
            if asked.is_err() {
                asked = Membership::ask(OWNER);
            }
            asked.is_ok()
        }));
        assert_eq!(asked.unwrap().1.len(), 2);
    });
}

/// Goal: a process that is a member again and again, as one whose program begins anew, is let in each time.
#[test]
fn a_process_that_lives_on_can_be_a_member_again_and_again() {
    with_namespaces("a_process_that_lives_on_can_be_a_member_again_and_again", || {
        let _pair = Pair::new(1);
        let _owner = near_role("owner", "");
        for _ in 0..100 {
            let mut asked = Membership::ask(OWNER);
            // The owner looks now and then whether it has the memory of the last times no more.
            assert!(soon(|| {
                if asked.is_err() {
                    asked = Membership::ask(OWNER);
                }
                asked.is_ok()
            }));
            let (membership, sockets) = asked.unwrap();
            assert!(!membership.has_ended() && !sockets.is_empty());
        }
    });
}

/// Goal: an owner that is killed leaves neither program nor busy queue, and its members notice.
#[test]
fn an_owner_that_is_killed_leaves_nothing() {
    with_namespaces("an_owner_that_is_killed_leaves_nothing", || {
        let pair = Pair::new(1);
        let _echo = pair.far_role("echo", &format!("{FAR} {PORT}"));
        for _ in 0..3 {
            let owner = near_role("owner", "");
            let mut member = near_role("member", &format!("8000 {PORT} 20"));
            member.wait_for("done");
            let (membership, sockets) = Membership::ask(OWNER).unwrap();
            assert!(has_program() && !membership.has_ended());
            owner.kill();
            assert!(soon(|| membership.has_ended() && !has_program()));
            let twin = UdpSocket::bind((NEAR, OTHER)).unwrap();
            twin.send_to(b"the kernel's", (FAR, PORT)).unwrap();
            assert_eq!(kernel_has(&twin).unwrap(), b"the kernel's");
            member.kill();
            drop(sockets);
        }
        let mut interface = Interface::open(index("near"), &Config::default()).unwrap();
        interface.group(1, false, QUEUE_PATIENCE).unwrap();
    });
}
