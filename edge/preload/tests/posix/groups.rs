//! Cases about multicast groups on the loopback device: which sockets get what, and how often.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::ffi::c_int;
use std::thread;

use super::Share;
use super::call::*;
use super::cases::Log;
use super::datagrams::{all, arrives, bound};

const GROUP: [u8; 4] = [239, 1, 2, 3];
const OTHER: [u8; 4] = [239, 1, 2, 4];
const LOOPBACK: [u8; 4] = [127, 0, 0, 1];
const ANY_ADDRESS: [u8; 4] = [0; 4];
const UNUSED: [u8; 4] = [10, 9, 8, 7];

fn addr(address: [u8; 4]) -> libc::in_addr {
    libc::in_addr { s_addr: u32::from_ne_bytes(address) }
}

/// Three sockets on one port, the first two of which are members, and one that sends to the group.
#[derive(Clone, Copy, Debug)]
struct Party {
    members: [c_int; 3],
    sender: c_int,
    port: u16,
}

fn one_of(port: u16, address: [u8; 4]) -> c_int {
    share(socket(libc::AF_INET, libc::SOCK_DGRAM), port, address)
}

fn share(fd: c_int, port: u16, address: [u8; 4]) -> c_int {
    set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1_i32).unwrap();
    bind_to(fd, address, port).unwrap();
    fd
}

fn sender() -> c_int {
    let fd = bound(libc::AF_INET);
    set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, addr(LOOPBACK)).unwrap();
    fd
}

fn membership(fd: c_int, name: c_int, group: [u8; 4]) -> Answer {
    let join = libc::ip_mreq { imr_multiaddr: addr(group), imr_interface: addr(LOOPBACK) };
    set_option(fd, libc::IPPROTO_IP, name, join)
}

fn join(fd: c_int, group: [u8; 4]) -> Answer {
    membership(fd, libc::IP_ADD_MEMBERSHIP, group)
}

fn leave(fd: c_int, group: [u8; 4]) -> Answer {
    membership(fd, libc::IP_DROP_MEMBERSHIP, group)
}

fn filter(fd: c_int, name: c_int, source: [u8; 4]) -> Answer {
    let filter = libc::ip_mreq_source {
        imr_multiaddr: addr(GROUP),
        imr_interface: addr(LOOPBACK),
        imr_sourceaddr: addr(source),
    };
    set_option(fd, libc::IPPROTO_IP, name, filter)
}

/// An address as the newer options have it.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
struct Place {
    family: u16,
    port: u16,
    address: [u8; 4],
    rest: [u8; 120],
}

fn place(address: [u8; 4]) -> Place {
    let family = u16::try_from(libc::AF_INET).unwrap();
    Place { family, port: 0, address, rest: [0; 120] }
}

/// `MCAST_JOIN_GROUP` and its kin: the loopback device is the first.
fn newer(fd: c_int, name: c_int) -> Answer {
    #[repr(C)]
    struct Wish {
        interface: u32,
        group: Place,
    }
    set_option(fd, libc::IPPROTO_IP, name, Wish { interface: 1, group: place(GROUP) })
}

fn newer_with_source(fd: c_int, name: c_int, source: [u8; 4]) -> Answer {
    #[repr(C)]
    struct Wish {
        interface: u32,
        group: Place,
        source: Place,
    }
    let wish = Wish { interface: 1, group: place(GROUP), source: place(source) };
    set_option(fd, libc::IPPROTO_IP, name, wish)
}

const MCAST_JOIN_GROUP: c_int = 42;
const MCAST_BLOCK_SOURCE: c_int = 43;
const MCAST_UNBLOCK_SOURCE: c_int = 44;
const MCAST_LEAVE_GROUP: c_int = 45;
const MCAST_JOIN_SOURCE_GROUP: c_int = 46;
const MCAST_LEAVE_SOURCE_GROUP: c_int = 47;

/// Only groups that the socket itself has joined.
fn only_own_groups(fd: c_int) {
    set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0_i32).unwrap();
}

impl Party {
    fn new() -> Self {
        let first = socket(libc::AF_INET, libc::SOCK_DGRAM);
        bind_any(first, 0).unwrap();
        // No other socket is given this port.
        set_option(first, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1_i32).unwrap();
        let port = port(first);
        let members = [first, one_of(port, ANY_ADDRESS), one_of(port, [127, 0, 0, 9])];
        let party = Self { members, sender: sender(), port };
        for fd in &members[..2] {
            only_own_groups(*fd);
            join(*fd, GROUP).unwrap();
        }
        party.talk();
        party
    }

    fn close(self) {
        for fd in self.members {
            let _ = close(fd);
        }
        let _ = close(self.sender);
    }

    fn send(&self, text: &str) -> Answer {
        sendto_group(self.sender, text.as_bytes(), GROUP, self.port)
    }

    /// So many datagrams that a sender that looks for mailboxes has found them.
    fn talk(&self) {
        for _ in 0..10 {
            self.send("talk").unwrap();
            for fd in &self.members[..2] {
                assert_eq!(recv(*fd, 100, 0).unwrap(), "talk");
            }
        }
    }

    /// What each member has got of what was sent so far.
    fn got(&self) -> [Vec<String>; 3] {
        // What is sent by loopback has arrived when a datagram sent after it has.
        settle();
        self.members.map(all)
    }
}

type Case = fn(&mut Log, Party);

const CASES: &[(&str, Case)] = &[
    ("once to each", |log, p| {
        for round in 0..20_u8 {
            let text = String::from(char::from(b'a' + round));
            log.see("sent", p.send(&text));
            for fd in &p.members[..2] {
                arrives(*fd);
                log.see("got", recv(*fd, 10, 0));
            }
            log.see("no more", p.members.map(all));
        }
        for round in 0..20_u8 {
            p.send(&String::from(char::from(b'A' + round))).unwrap();
        }
        log.see("many", p.got());
    }),
    ("boundaries, cuts and peeks", |log, p| {
        for text in ["one", "", "rather long", "four"] {
            log.see("sent", p.send(text));
        }
        let [a, b, _] = p.members;
        arrives(a);
        arrives(b);
        log.see("next", ioctl(a, libc::FIONREAD, 0));
        log.see("peek", recv(a, 100, libc::MSG_PEEK));
        log.see("a", [recv(a, 100, 0), recv(a, 100, 0), recv(a, 4, 0), recv(a, 100, 0)]);
        let mut four = [0; 2];
        log.see("length", recv_into(b, &mut four, libc::MSG_TRUNC));
        let empty = recvmsg(b, 10, 0).unwrap();
        log.see("empty", (empty.text, empty.flags, empty.name_len, empty.passed));
        let cut = recvmsg(b, 6, 0).unwrap();
        log.see("flagged", (cut.text, cut.flags, cut.name_len, cut.passed));
        log.see("rest", p.got());
    }),
    ("where it came from", |log, p| {
        for _ in 0..3 {
            p.send("x").unwrap();
            for fd in &p.members[..2] {
                let (text, from) = recvfrom(*fd, 10).unwrap();
                log.see("from", (text, from == port(p.sender)));
                sendto(*fd, b"back", libc::AF_INET, from).unwrap();
                log.see("answer", recv(p.sender, 10, 0));
            }
        }
        log.see("unasked", option(p.members[0], libc::IPPROTO_IP, libc::IP_PKTINFO));
    }),
    ("large ones", |log, p| {
        for len in [1400, 9000, 65_507] {
            let bytes: Vec<u8> = (0..len).map(|n| u8::try_from(n % 251).unwrap()).collect();
            log.see("sent", sendto_group(p.sender, &bytes, GROUP, p.port));
            for fd in &p.members[..2] {
                let mut into = vec![0; 70_000];
                log.see("got", recv_into(*fd, &mut into, 0));
                log.see("equal", into[..len] == bytes);
            }
        }
        log.see("too large", sendto_group(p.sender, &[0; 65_508], GROUP, p.port));
    }),
    ("a buffer that is not there", |log, p| {
        log.see("fault", sendto_nothing(p.sender, GROUP, p.port));
        p.send("after it").unwrap();
        log.see("got", p.got());
    }),
    ("connected to the group", |log, p| {
        log.see("connected", connect_to(p.sender, GROUP, p.port));
        for _ in 0..10 {
            log.see("sent", send(p.sender, b"x", 0));
            log.see("wrote", write(p.sender, b"y"));
            log.see("parts", writev(p.sender, &["a", "b"]));
        }
        log.see("got", p.got());
        log.see("many", many(p.sender, &[1, 0, 100], true));
        log.see("got", p.got().map(|texts| texts.len()));
    }),
    ("joins and leaves in between", |log, p| {
        for round in 0..6 {
            p.send("both").unwrap();
            log.see("left", leave(p.members[1], GROUP));
            p.send("first").unwrap();
            log.see("left twice", leave(p.members[1], GROUP));
            log.see("got", p.got());
            log.see("joined", join(p.members[1], GROUP));
            log.see("joined twice", join(p.members[1], GROUP));
            p.send("again").unwrap();
            log.see("got", p.got());
            if round % 2 == 0 {
                p.talk();
            }
        }
        leave(p.members[0], GROUP).unwrap();
        leave(p.members[1], GROUP).unwrap();
        log.see("to no member", p.send("no one"));
        log.see("got", p.got());
    }),
    ("a third one", |log, p| {
        let port = p.port;
        for _ in 0..3 {
            let third = one_of(port, ANY_ADDRESS);
            p.send("not yet").unwrap();
            log.see("as all", (p.got(), all(third)));
            only_own_groups(third);
            p.send("not yet").unwrap();
            log.see("not a member", (p.got(), all(third)));
            join(third, GROUP).unwrap();
            for _ in 0..10 {
                p.send("to three").unwrap();
                log.see("third", recv(third, 100, 0));
                log.see("got", p.got());
            }
            close(third).unwrap();
            p.send("to two").unwrap();
            log.see("got", p.got());
        }
    }),
    ("a third one that is not known", |log, p| {
        let third = share(unseen_socket(), p.port, ANY_ADDRESS);
        only_own_groups(third);
        join(third, GROUP).unwrap();
        for _ in 0..10_000 {
            p.talk();
            if poll(&[(third, libc::POLLIN)], 1).unwrap()[0] != 0 {
                break;
            }
        }
        p.talk();
        log.see("it gets something", !all(third).is_empty());
        for _ in 0..20 {
            p.send("to three").unwrap();
            arrives(third);
            log.see("got", (recv(third, 100, 0), p.members.map(all)));
        }
        close(third).unwrap();
        p.talk();
    }),
    ("sources that are wanted, and others", |log, p| {
        let b = p.members[1];
        for _ in 0..2 {
            log.see("blocked", filter(b, libc::IP_BLOCK_SOURCE, LOOPBACK));
            p.send("blocked").unwrap();
            log.see("got", p.got());
            log.see("unblocked", filter(b, libc::IP_UNBLOCK_SOURCE, LOOPBACK));
            p.talk();
            log.see("other", filter(b, libc::IP_BLOCK_SOURCE, UNUSED));
            p.send("another is blocked").unwrap();
            log.see("got", p.got());
            log.see("other", filter(b, libc::IP_UNBLOCK_SOURCE, UNUSED));
        }
        leave(b, GROUP).unwrap();
        log.see("other", filter(b, libc::IP_ADD_SOURCE_MEMBERSHIP, UNUSED));
        p.send("not wanted").unwrap();
        log.see("got", p.got());
        log.see("ours", filter(b, libc::IP_ADD_SOURCE_MEMBERSHIP, LOOPBACK));
        p.talk();
        p.send("wanted").unwrap();
        log.see("got", p.got());
        log.see("dropped", filter(b, libc::IP_DROP_SOURCE_MEMBERSHIP, LOOPBACK));
        p.send("not wanted").unwrap();
        log.see("got", p.got());
    }),
    ("the newer options", |log, p| {
        let b = p.members[1];
        leave(b, GROUP).unwrap();
        for _ in 0..2 {
            log.see("joined", newer(b, MCAST_JOIN_GROUP));
            p.talk();
            log.see("blocked", newer_with_source(b, MCAST_BLOCK_SOURCE, LOOPBACK));
            p.send("blocked").unwrap();
            log.see("got", p.got());
            log.see("unblocked", newer_with_source(b, MCAST_UNBLOCK_SOURCE, LOOPBACK));
            p.send("unblocked").unwrap();
            log.see("got", p.got());
            log.see("left", newer(b, MCAST_LEAVE_GROUP));
            p.send("left").unwrap();
            log.see("got", p.got());
            log.see("joined", newer_with_source(b, MCAST_JOIN_SOURCE_GROUP, LOOPBACK));
            p.talk();
            p.send("wanted").unwrap();
            log.see("got", p.got());
            log.see("left", newer_with_source(b, MCAST_LEAVE_SOURCE_GROUP, LOOPBACK));
            p.send("left").unwrap();
            log.see("got", p.got());
        }
    }),
    ("bound to the group, to another, to neither", |log, p| {
        let (here, there) = (one_of(p.port, GROUP), one_of(p.port, OTHER));
        for fd in [here, there] {
            only_own_groups(fd);
            join(fd, GROUP).unwrap();
            join(fd, OTHER).unwrap();
        }
        for _ in 0..10 {
            p.send("one group").unwrap();
            log.see("got", (p.got(), all(here), all(there)));
        }
        for _ in 0..10 {
            sendto_group(p.sender, b"the other", OTHER, p.port).unwrap();
            log.see("got", (p.got(), all(here), all(there)));
        }
        for _ in 0..5 {
            sendto_group(p.sender, b"the other", OTHER, p.port).unwrap();
            p.send("one group").unwrap();
            log.see("got", (p.got(), all(here), all(there)));
        }
        close(here).unwrap();
        close(there).unwrap();
    }),
    ("members of all groups", |log, p| {
        let third = one_of(p.port, ANY_ADDRESS);
        for _ in 0..10 {
            p.send("to all").unwrap();
            log.see("got", (p.got(), all(third)));
        }
        only_own_groups(third);
        for _ in 0..3 {
            p.send("to members").unwrap();
            log.see("got", (p.got(), all(third)));
        }
        close(third).unwrap();
    }),
    ("to the group and to one of it", |log, p| {
        for round in 0..10_u8 {
            let text = String::from(char::from(b'a' + round));
            p.send(&text).unwrap();
            sendto(p.sender, b"to one", libc::AF_INET, p.port).unwrap();
            p.send(&text.to_uppercase()).unwrap();
            log.see("got", p.got());
        }
    }),
    ("connected receivers", |log, p| {
        let [a, b, _] = p.members;
        let c = bound(libc::AF_INET);
        connect(a, libc::AF_INET, port(p.sender)).unwrap();
        connect(b, libc::AF_INET, port(c)).unwrap();
        for _ in 0..5 {
            p.send("from one a wants").unwrap();
            log.see("got", p.got());
        }
        set_option(c, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, addr(LOOPBACK)).unwrap();
        for _ in 0..5 {
            sendto_group(c, b"from one b wants", GROUP, p.port).unwrap();
            log.see("got", p.got());
        }
        close(c).unwrap();
    }),
    ("several senders", |log, p| {
        let more: Vec<c_int> = (0..3).map(|_| sender()).collect();
        for round in 0..10_u8 {
            for fd in &more {
                sendto_group(*fd, &[b'a' + round], GROUP, p.port).unwrap();
            }
            p.send("first").unwrap();
            let mut got = p.got();
            got.iter_mut().for_each(|texts| texts.sort());
            log.see("got", got);
        }
        more.into_iter().for_each(|fd| _ = close(fd));
    }),
    ("a sender that is a member", |log, p| {
        let a = p.members[0];
        set_option(a, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, addr(LOOPBACK)).unwrap();
        for round in 0..10_u8 {
            log.see("sent", sendto_group(a, &[b'a' + round], GROUP, p.port));
            log.see("got", p.got());
        }
    }),
    ("a sender that does not want it back", |log, p| {
        let name = libc::IP_MULTICAST_LOOP;
        for on in [0_i32, 1, 0] {
            set_option(p.sender, libc::IPPROTO_IP, name, on).unwrap();
            log.see("is", option(p.sender, libc::IPPROTO_IP, name));
            for _ in 0..5 {
                p.send("back?").unwrap();
                log.see("got", p.got());
            }
        }
        set_option(p.sender, libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, 0_i32).unwrap();
        for _ in 0..5 {
            p.send("no further").unwrap();
            log.see("got", p.got());
        }
    }),
    ("to which group it was sent", |log, p| {
        let a = p.members[0];
        set_option(a, libc::IPPROTO_IP, libc::IP_PKTINFO, 1_i32).unwrap();
        log.see("asked", option(a, libc::IPPROTO_IP, libc::IP_PKTINFO));
        for _ in 0..5 {
            p.send("told").unwrap();
            let message = recvmsg(a, 100, 0).unwrap();
            log.see("by the loopback device", (message.text, message.passed));
            log.see("got", p.got());
        }
        set_option(a, libc::IPPROTO_IP, libc::IP_PKTINFO, 0_i32).unwrap();
        p.send("not told").unwrap();
        log.see("told nothing", recvmsg(a, 100, 0).unwrap().passed);
        // The other one is asked what it would say of errors.
        set_option(p.members[1], libc::IPPROTO_IP, libc::IP_RECVERR, 1_i32).unwrap();
        for _ in 0..3 {
            p.send("after it").unwrap();
            log.see("got", p.got());
        }
    }),
    ("one that is full does not hold the other up", |log, p| {
        let [a, b, _] = p.members;
        set_option(a, libc::SOL_SOCKET, libc::SO_RCVBUF, 20_000_i32).unwrap();
        for number in 0..500_u32 {
            let mut bytes = [0; 1000];
            bytes[..4].copy_from_slice(&number.to_le_bytes());
            sendto_group(p.sender, &bytes, GROUP, p.port).unwrap();
            log.see("b", recv_into(b, &mut bytes, 0).unwrap());
            assert_eq!(bytes[..4], number.to_le_bytes());
        }
        settle();
        let mut bytes = [0; 1000];
        let mut got = Vec::new();
        while recv_into(a, &mut bytes, libc::MSG_DONTWAIT).is_ok() {
            got.push(u32::from_le_bytes(bytes[..4].try_into().unwrap()));
        }
        log.see("the first", got[0]);
        log.see("in order", got.is_sorted());
        log.see("some, not all", (5..100).contains(&got.len()));
        p.send("room again").unwrap();
        log.see("got", p.got());
    }),
    ("sleepers are woken, whatever they sleep in", |log, p| {
        for way in 0..4 {
            let readers = [p.members[0], p.members[1]].map(|fd| {
                thread::spawn(move || {
                    let e = epoll_create();
                    epoll_ctl(e, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, 1).unwrap();
                    let mut got = Vec::new();
                    for _ in 0..20 {
                        match way {
                            0 => {}
                            1 => arrives(fd),
                            2 => assert_eq!(select(&[fd], &[], 60_000).unwrap().0.len(), 1),
                            _ => assert_eq!(epoll_wait(e, 60_000).unwrap().len(), 1),
                        }
                        got.push(recv(fd, 100, 0).unwrap());
                    }
                    close(e).unwrap();
                    got
                })
            });
            for round in 0..20_u8 {
                if round % 5 == 0 {
                    settle();
                }
                p.send(&String::from(char::from(b'a' + round))).unwrap();
            }
            log.see("got", readers.map(|reader| reader.join().unwrap()));
        }
    }),
    ("one sleeps, the other does not", |log, p| {
        for sleeper in [0, 1, 0, 1] {
            for _ in 0..3 {
                // Both are awake, and the sender knows of both.
                p.talk();
                let fd = p.members[sleeper];
                let reader = thread::spawn(move || recv(fd, 100, 0));
                settle();
                p.send("wake").unwrap();
                p.send("and on").unwrap();
                log.see("woken", reader.join().unwrap());
                log.see("got", p.got());
            }
        }
    }),
    ("a long conversation in order, with pauses", |log, p| {
        let readers = [p.members[0], p.members[1]].map(|fd| {
            thread::spawn(move || {
                for expected in 0..4000_u32 {
                    let mut bytes = [0; 4];
                    recv_into(fd, &mut bytes, 0).unwrap();
                    assert_eq!(u32::from_le_bytes(bytes), expected);
                    if expected % 8 == 7 {
                        sendto(fd, b"go on", libc::AF_INET, port(p.sender)).unwrap();
                    }
                }
            })
        });
        for number in 0..4000_u32 {
            sendto_group(p.sender, &number.to_le_bytes(), GROUP, p.port).unwrap();
            if number % 8 == 7 {
                recv(p.sender, 10, 0).unwrap();
                recv(p.sender, 10, 0).unwrap();
            }
            if number % 1000 == 0 {
                settle();
            }
        }
        log.see("in order", readers.map(|reader| reader.join().is_ok()));
        log.see("no more", p.got());
    }),
    ("a member that is killed", |log, p| {
        let (own, back) = pipe();
        let child = fork(|| {
            let fd = one_of(p.port, ANY_ADDRESS);
            only_own_groups(fd);
            join(fd, GROUP).unwrap();
            write(back, b"!").unwrap();
            while recv(fd, 100, 0).is_ok() {
                write(back, b"!").unwrap();
            }
        });
        let mut byte = [0];
        assert_eq!(read_into(own, &mut byte), Ok(1));
        for _ in 0..20 {
            p.send("alive").unwrap();
            assert_eq!(read_into(own, &mut byte), Ok(1));
        }
        log.see("got", p.got());
        kill(child);
        wait(child);
        for _ in 0..200 {
            p.send("and on").unwrap();
            for fd in &p.members[..2] {
                assert_eq!(recv(*fd, 100, 0).unwrap(), "and on");
            }
        }
        log.see("no more", p.got());
        close(own).unwrap();
        close(back).unwrap();
    }),
    ("a child that sends, and one that receives", |log, p| {
        let child = fork(|| {
            for _ in 0..10 {
                p.send("from the child").unwrap();
                recv(p.sender, 10, 0).unwrap();
            }
        });
        for _ in 0..10 {
            for fd in &p.members[..2] {
                log.see("got", recv(*fd, 100, 0));
            }
            sendto(p.members[0], b"go on", libc::AF_INET, port(p.sender)).unwrap();
        }
        log.see("ended", wait(child));
        p.talk();
        let child = fork(|| {
            for _ in 0..10 {
                recv(p.members[0], 100, 0).unwrap();
                sendto(p.members[0], b"go on", libc::AF_INET, port(p.sender)).unwrap();
            }
        });
        for _ in 0..10 {
            p.send("to the child").unwrap();
            recv(p.sender, 10, 0).unwrap();
            log.see("got", recv(p.members[1], 100, 0));
        }
        log.see("ended", wait(child));
        p.send("back").unwrap();
        log.see("got", p.got());
    }),
];

/// Runs every case, and prints what it saw.
pub(crate) fn run(share: &mut Share) {
    for (name, case) in CASES {
        if !share.has_next() {
            continue;
        }
        let party = Party::new();
        let mut log = Log::default();
        case(&mut log, party);
        party.close();
        println!("group, {name} => {}", log.0);
    }
}
