//! Members that do what they should not, and what it costs others.

use super::place::{
    FAR, MACS, NEAR, Pair, apart_role, frame, index, near_role, user_role, with_namespaces,
};
use super::{OWNER, PORT, key, soon};
use adverb_sys::memory::Mapping;
use adverb_sys::poll;
use adverb_sys::unix::Stream;
use adverb_xdp::{Config, Interface, Membership, Owner};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sockopt};
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A member that knows what the record of its group looks like.
pub(crate) struct Raw {
    #[expect(dead_code, reason = "it is a member as long as this is open")]
    stream: Stream,
    record: Mapping,
    frames: usize,
}

impl Raw {
    pub(crate) fn ask() -> Self {
        let stream = Stream::connect(OWNER).unwrap();
        assert!(poll::readable(&stream, std::iter::empty(), None).unwrap());
        let (mut bytes, mut fds) = ([0; 64], Vec::new());
        assert_eq!(stream.recv(&mut bytes, &mut fds).unwrap(), 24);
        let word = |at| u32::from_ne_bytes(*bytes[at..].first_chunk::<4>().unwrap());
        let frames = usize::try_from(word(8)).unwrap();
        let record = Mapping::shared(fds[1].as_fd(), 64 + 8 * frames).unwrap();
        Self { stream, record, frames }
    }

    fn set_lock(&self, word: u32) {
        self.record.half(0).store(word, Ordering::Relaxed);
    }

    /// Writes a word of the record, but not the lock.
    pub(crate) fn scribble(&self, at: usize, word: u32) {
        self.record.half(4 + 4 * (at % (15 + 2 * self.frames))).store(word, Ordering::Relaxed);
    }

    /// How many frames are free, the kernel's, and members'.
    fn frames(&self) -> [usize; 3] {
        let mut count = [0; 3];
        for frame in 0..self.frames {
            let holder = self.record.half(64 + 4 * (self.frames + frame)).load(Ordering::Relaxed);
            count[usize::try_from(holder.min(2)).unwrap()] += 1;
        }
        count
    }
}

/// Goal: a member that keeps the lock keeps the owner from nothing but that group's frames, and from those only as long.
/// Method: another one of its group is killed meanwhile; then the lock is let go.
#[test]
fn a_lock_that_a_member_keeps_costs_no_frames() {
    with_namespaces("hostile::a_lock_that_a_member_keeps_costs_no_frames", || {
        let _pair = Pair::new(1);
        let _owner = near_role("owner", "");
        let raw = Raw::ask();
        let (third, _sockets) = Membership::ask(OWNER).unwrap();
        let writer = near_role("writer", "");
        let before = raw.frames();
        assert!(before[2] > 0, "{before:?}");
        raw.set_lock(std::process::id());
        writer.kill();
        third.release(key(NEAR, PORT)).unwrap(); // By now it has looked at the one that has ended.
        assert_eq!(raw.frames(), before);
        raw.set_lock(0);
        assert!(soon(|| raw.frames() == [raw.frames - FILLED, FILLED, 0]), "{:?}", raw.frames());
    });
}

/// Goal: a member that is killed before it has flushed what it wrote loses its group no frames.
#[test]
fn frames_that_were_written_and_not_flushed_come_back() {
    with_namespaces("hostile::frames_that_were_written_and_not_flushed_come_back", || {
        let _pair = Pair::new(1);
        let _owner = near_role("owner", "");
        let raw = Raw::ask();
        let writer = near_role("writer", "");
        assert!(raw.frames()[2] >= 900, "{:?}", raw.frames());
        writer.kill();
        assert!(soon(|| raw.frames() == [raw.frames - FILLED, FILLED, 0]), "{:?}", raw.frames());
    });
}

/// Goal: where one does not see the other by its number, the lock could not say which process has it.
#[test]
fn members_of_another_process_namespace_are_refused() {
    with_namespaces("hostile::members_of_another_process_namespace_are_refused", || {
        let _pair = Pair::new(1);
        let owner = near_role("owner", "");
        let mut foreigner = apart_role("foreigner");
        foreigner.wait_for("refused");
        owner.kill();
        let _owner = apart_role("owner");
        assert_eq!(Membership::ask(OWNER).unwrap_err().kind(), ErrorKind::PermissionDenied);
    });
}

/// Goal: a socket that lingers when it is closed keeps the owner from nothing, shown as a twin, as one descriptor too
/// many, or left in a connection that was closed.
/// Method: the owner's is the last descriptor of it, since it is stopped until the member has closed its own.
#[test]
fn sockets_that_linger_keep_no_other_waiting() {
    with_namespaces("hostile::sockets_that_linger_keep_no_other_waiting", || {
        let pair = Pair::new(1);
        let _deaf = pair.far_role("deaf", &format!("{FAR} {PORT}"));
        let owner = near_role("owner", "");
        let raw = Raw::ask();
        for (count, stays) in [(1, true), (8, true), (1, false), (1, true)] {
            let stream = Stream::connect(OWNER).unwrap();
            owner.stop();
            let sockets: Vec<_> = (0..count).map(|_| lingering()).collect();
            let fds: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            send(&stream, &fds);
            drop(fds);
            drop(sockets);
            let _stays = stays.then_some(stream);
            owner.go_on();
            assert!(soon(|| Membership::ask(OWNER).is_ok()), "{count} {stays}");
        }
        drop(raw);
    });
}

/// A connection with bytes that its peer does not take, which waits for them when it is closed.
fn lingering() -> TcpStream {
    let mut socket = TcpStream::connect((FAR, PORT)).unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 1 << 16]).is_ok() {}
    sockopt::set_socket_linger(&socket, Some(Duration::from_secs(60))).unwrap();
    socket
}

/// Claims packets, with these descriptors.
fn send(stream: &Stream, fds: &[BorrowedFd<'_>]) {
    let mut bytes = vec![1, 0, 0, 0, 4, 17, 0, 1];
    bytes.extend([10, 97, 0, 1]);
    bytes.resize(44, 0);
    bytes.extend([0xff; 4]); // No gate.
    let mut space = [MaybeUninit::uninit(); 256];
    let mut extra = SendAncillaryBuffer::new(&mut space);
    assert!(extra.push(SendAncillaryMessage::ScmRights(fds)));
    rustix::net::sendmsg(stream, &[IoSlice::new(&bytes)], &mut extra, SendFlags::empty()).unwrap();
}

/// Goal: a port is not another's as long as its packets are a member's, also if the member has closed its own socket.
#[test]
fn a_port_is_held_as_long_as_its_packets() {
    with_namespaces("hostile::a_port_is_held_as_long_as_its_packets", || {
        let _pair = Pair::new(1);
        let _owner = near_role("owner", "");
        let (member, _sockets) = Membership::ask(OWNER).unwrap();
        let bind = || UdpSocket::bind((NEAR, PORT));
        for _ in 0..2 {
            let twin = bind().unwrap();
            member.claim(key(NEAR, PORT), &twin).unwrap();
            member.claim(key(NEAR, PORT), &twin).unwrap();
            drop(twin);
            assert_eq!(bind().unwrap_err().kind(), ErrorKind::AddrInUse);
            member.release(key(NEAR, PORT)).unwrap();
            bind().unwrap();
        }
        member.claim(key(NEAR, PORT), bind().unwrap()).unwrap();
        drop(member);
        assert!(soon(|| bind().is_ok()));
    });
}

/// Goal: users have queues of their own, and one for which none is left is refused and no trouble to the others.
#[test]
fn each_user_has_its_own_queue() {
    with_namespaces("hostile::each_user_has_its_own_queue", || {
        let _pair = Pair::new(2);
        let interface = Interface::open(index("near"), &Config::default()).unwrap();
        let mut owner = Owner::new(interface, OWNER, 1).unwrap();
        // It ends with the process.
        std::thread::spawn(move || {
            loop {
                owner.step(Some(Duration::from_millis(100)), |_| true).unwrap();
            }
        });
        let (_member, sockets) = Membership::ask(OWNER).unwrap();
        assert_eq!(sockets.iter().map(|socket| socket.incoming.queue()).max(), Some(0));
        let mut second = user_role(1001, "guest", "1");
        second.wait_for("served");
        let mut third = user_role(1002, "guest", "none");
        third.wait_for("refused");
        let mut same = user_role(1001, "guest", "1");
        same.wait_for("served");
    });
}

/// Goal: no user has more keys than its part, however many members it has.
#[test]
fn keys_of_one_user_are_bounded() {
    with_namespaces("hostile::keys_of_one_user_are_bounded", || {
        let _pair = Pair::new(1);
        let _owner = near_role("owner", "");
        let members = [(); 2].map(|()| Membership::ask(OWNER).unwrap());
        let claim = |port: u16| {
            let (member, _sockets) = &members[usize::from(port % 2)];
            member.claim(key(NEAR, port), UdpSocket::bind((NEAR, port)).unwrap())
        };
        let refused = (10_000..20_000).find_map(|port| claim(port).err().zip(Some(port)));
        let (error, port) = refused.unwrap();
        assert_eq!(error.kind(), ErrorKind::ResourceBusy);
        assert_eq!(claim(port + 1).unwrap_err().kind(), ErrorKind::ResourceBusy);
        members[0].0.release(key(NEAR, 10_000)).unwrap();
        claim(port + 2).unwrap(); // Sockets of claims that were refused may still be on their way out.
        assert_eq!(claim(port + 3).unwrap_err().kind(), ErrorKind::ResourceBusy);
    });
}

/// Goal: an owner that has no descriptors left sleeps until it has some.
#[test]
fn an_owner_without_descriptors_waits_for_some() {
    with_namespaces("hostile::an_owner_without_descriptors_waits_for_some", || {
        let _pair = Pair::new(1);
        let interface = Interface::open(index("near"), &Config::default()).unwrap();
        let mut owner = Owner::new(interface, OWNER, 4).unwrap();
        let _asks = Stream::connect(OWNER).unwrap();
        let id = std::process::id().to_string();
        let limited = Command::new("prlimit").args(["--pid", &id, "--nofile=64:64"]).status();
        assert!(limited.unwrap().success());
        let mut all: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        let until = Instant::now() + Duration::from_millis(300);
        let mut steps = 0;
        while Instant::now() < until {
            owner.step(Some(Duration::from_secs(1)), |_| true).unwrap();
            steps += 1;
        }
        assert!(steps < 1000, "{steps}");
        all.truncate(all.len() / 2);
        assert!(soon(|| {
            owner.step(Some(Duration::from_secs(1)), |_| true).unwrap();
            owner.members() == 1
        }));
    });
}

/// Goal: a member that writes anything to its rings, to those of its queue, and to the record of its group harms neither the
/// owner nor members of other groups.
/// Method: a user's member does so while it receives and sends; another user's packets come back all the time.
#[test]
fn a_member_that_scribbles_over_all_it_has_harms_no_other_group() {
    with_namespaces(
        "hostile::a_member_that_scribbles_over_all_it_has_harms_no_other_group",
        || {
            let pair = Pair::new(2);
            let _echo = pair.far_role("echo", &format!("{FAR} {PORT}"));
            let interface = Interface::open(index("near"), &Config::default()).unwrap();
            let mut owner = Owner::new(interface, OWNER, 1).unwrap();
            let tends = std::thread::spawn(move || {
                while owner.step(Some(Duration::from_millis(1)), |_| true).is_ok() {}
            });
            let (member, mut sockets) = Membership::ask(OWNER).unwrap();
            // What comes on the other queue is the kernel's.
            let twin = UdpSocket::bind((NEAR, PORT)).unwrap();
            twin.set_nonblocking(true).unwrap();
            member.claim(key(NEAR, PORT), &twin).unwrap();
            let mut serve = |round: u32| {
                let mut due: Vec<_> = (0..32).map(|n| (round << 8 | n).to_be_bytes()).collect();
                for payload in &due {
                    let bytes = frame(MACS, (NEAR, PORT), (FAR, PORT), payload);
                    sockets[0].outgoing.send(|writer| writer.push(&bytes)).unwrap();
                }
                sockets[0].outgoing.flush().unwrap();
                assert!(
                    soon(|| {
                        let mut came: Vec<_> = super::receive(&mut sockets);
                        let mut room = [0; 64];
                        while let Ok(len) = twin.recv(&mut room) {
                            came.push((PORT, room[..len].to_vec()));
                        }
                        due.retain(|due| !came.iter().any(|(_, payload)| payload == due));
                        due.is_empty()
                    }),
                    "{round}: {due:?}"
                );
            };
            serve(0);
            let mut scribbler = user_role(1001, "scribbler", "");
            for round in 1..100 {
                serve(round);
            }
            scribbler.wait_for("scribbled");
            scribbler.kill();
            for round in 100..120 {
                serve(round);
            }
            assert!(!member.has_ended() && !tends.is_finished());
            assert_eq!(sockets[0].incoming.umem().nonsense(), 0);
        },
    );
}

/// Frames that are the kernel's where nothing is under way.
const FILLED: usize = 1024;
