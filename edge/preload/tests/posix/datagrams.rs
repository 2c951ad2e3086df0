//! Cases about UDP, on sockets that have talked to each other before: with shared memory, that is
//! when their datagrams go through mailboxes.
//!
//! # Safety
//!
//! Every pointer passed to the kernel is to a local of the length that is said.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::Share;
use super::call::*;
use super::cases::Log;

/// Two UDP sockets, each bound and connected to the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mail {
    domain: c_int,
    a: c_int,
    b: c_int,
}

pub(crate) fn bound(domain: c_int) -> c_int {
    let fd = socket(domain, libc::SOCK_DGRAM);
    bind(fd, domain, 0).unwrap();
    fd
}

/// Waits until there is something to read, for a minute at most.
pub(crate) fn arrives(fd: c_int) {
    assert_eq!(poll(&[(fd, libc::POLLIN)], 60_000).unwrap().len(), 1);
}

/// So many round trips that a sender that looks for a mailbox has found it.
fn talk(a: c_int, b: c_int) {
    for _ in 0..10 {
        for (from, to) in [(a, b), (b, a)] {
            send(from, b"talk", 0).unwrap();
            assert_eq!(recv(to, 100, 0).unwrap(), "talk");
        }
    }
}

impl Mail {
    fn new(domain: c_int) -> Self {
        let (a, b) = (bound(domain), bound(domain));
        connect(a, domain, port(b)).unwrap();
        connect(b, domain, port(a)).unwrap();
        talk(a, b);
        Self { domain, a, b }
    }

    fn close(self) {
        let _ = close(self.a);
        let _ = close(self.b);
    }

    /// Which of both a port is, since numbers differ from run to run.
    fn sender(&self, found: u16) -> &'static str {
        match found {
            found if found == port(self.a) => "a",
            found if found == port(self.b) => "b",
            _ => "another",
        }
    }
}

type Case = fn(&mut Log, Mail);

/// What waits, as a text: everything that comes without waiting.
pub(crate) fn all(fd: c_int) -> Vec<String> {
    let mut got = Vec::new();
    while let Ok(text) = recv(fd, 100, libc::MSG_DONTWAIT) {
        got.push(text);
    }
    got
}

const EPOLLET_IN: c_int = libc::EPOLLIN | libc::EPOLLET;

const CASES: &[(&str, Case)] = &[
    ("datagrams keep their boundaries", |log, m| {
        for text in ["one", "", "three", "a bit longer than the others"] {
            log.see("sent", send(m.a, text.as_bytes(), 0));
        }
        arrives(m.b);
        for _ in 0..4 {
            log.see("got", recv(m.b, 100, 0));
        }
        log.see("nothing", recv(m.b, 100, libc::MSG_DONTWAIT));
    }),
    ("what does not fit is cut off", |log, m| {
        for _ in 0..4 {
            send(m.a, b"rather long", 0).unwrap();
        }
        arrives(m.b);
        log.see("cut", recv(m.b, 4, 0));
        let mut four = [0; 4];
        log.see("whole length", recv_into(m.b, &mut four, libc::MSG_TRUNC));
        let cut = recvmsg(m.b, 6, 0).unwrap();
        log.see("flagged", (cut.text, cut.flags, cut.name_len, cut.passed));
        log.see("none of it", recv(m.b, 0, 0));
        log.see("nothing", recv(m.b, 100, libc::MSG_DONTWAIT));
    }),
    ("the queue of errors is not waited for", |log, m| {
        let u = bound(m.domain);
        for fd in [m.b, u] {
            log.see("none", recv(fd, 100, libc::MSG_ERRQUEUE));
            log.see("none", recvmsg(fd, 100, libc::MSG_ERRQUEUE).map(|got| got.text));
        }
        log.see("closed", close(u));
    }),
    ("a probe of the way alone", |log, m| {
        for _ in 0..20 {
            log.see("probe", send(m.a, b"", libc::MSG_CONFIRM | 0x10));
            send(m.a, b"behind it", 0).unwrap();
            // It waits for nothing that was not sent.
            log.see("got", recv(m.b, 100, libc::MSG_DONTWAIT));
        }
        log.see("probe with bytes", send(m.a, b"bytes", 0x10));
        log.see("got", recv(m.b, 100, libc::MSG_DONTWAIT));
    }),
    ("peeking", |log, m| {
        send(m.a, b"first", 0).unwrap();
        send(m.a, b"second one", 0).unwrap();
        arrives(m.b);
        log.see("next", ioctl(m.b, libc::FIONREAD, 0));
        log.see("peek", recv(m.b, 100, libc::MSG_PEEK));
        log.see("peek", recv(m.b, 2, libc::MSG_PEEK));
        let mut two = [0; 2];
        log.see("length", recv_into(m.b, &mut two, libc::MSG_PEEK | libc::MSG_TRUNC));
        log.see("got", recv(m.b, 100, 0));
        log.see("next", ioctl(m.b, libc::FIONREAD, 0));
        log.see("got", recv(m.b, 100, libc::MSG_WAITALL));
        log.see("next", ioctl(m.b, libc::FIONREAD, 0));
    }),
    ("calls by their numbers", |log, m| {
        log.see("saw", by_number(m.a, m.b));
        log.see("left", all(m.b));
    }),
    ("places that are not there", |log, m| {
        for text in ["one", "two", "three", "four"] {
            send(m.a, text.as_bytes(), 0).unwrap();
        }
        arrives(m.b);
        log.see("faults", bad_places(m.b));
        log.see("left", all(m.b));
    }),
    ("where it came from", |log, m| {
        send(m.a, b"x", 0).unwrap();
        let (text, from) = recvfrom(m.b, 10).unwrap();
        log.see("connected", (text, m.sender(from)));
        let c = bound(m.domain);
        for _ in 0..10 {
            sendto(c, b"to c", m.domain, port(c)).unwrap();
            let (text, from) = recvfrom(c, 10).unwrap();
            log.see("itself", (text, from == port(c)));
        }
        close(c).unwrap();
    }),
    ("an address of the other family", |log, m| {
        let near = bound(libc::AF_INET);
        let (plain, both) = (bound(libc::AF_INET), socket(libc::AF_INET6, libc::SOCK_DGRAM));
        for from in [plain, both] {
            for round in 0..10 {
                let is_mapped = from == both && round % 2 == 0;
                let [sent, ..] = to_v4(from, is_mapped, port(near));
                log.see("sent", sent);
                arrives(near);
                log.see("got", all(near).len());
                unconnect(from).unwrap();
            }
            log.see("mapped", to_v4(from, true, port(near)));
            settle();
            log.see("got", all(near));
            unconnect(from).unwrap();
            log.see("plain", to_v4(from, false, port(near)));
            settle();
            log.see("got", all(near));
        }
        for fd in [near, plain, both] {
            close(fd).unwrap();
        }
        log.see("there", send(m.a, b"x", 0));
    }),
    ("one socket for many", |log, m| {
        let server = bound(m.domain);
        let clients: Vec<c_int> = (0..10).map(|_| bound(m.domain)).collect();
        for round in 0..6_u8 {
            for client in &clients {
                sendto(*client, &[b'a' + round], m.domain, port(server)).unwrap();
            }
            for _ in &clients {
                let (text, from) = recvfrom(server, 10).unwrap();
                sendto(server, text.as_bytes(), m.domain, from).unwrap();
            }
            let got: Vec<_> = clients.iter().map(|client| recv(*client, 10, 0)).collect();
            log.see("echoes", got);
        }
        for fd in clients {
            close(fd).unwrap();
        }
        close(server).unwrap();
    }),
    ("parts and plain calls", |log, m| {
        log.see("wrote", writev(m.a, &["ab", "", "cde"]));
        log.see("wrote", write(m.a, b"plain"));
        log.see("wrote", write(m.a, b""));
        log.see("message", sendmsg(m.a, "message", None));
        arrives(m.b);
        log.see("read none", read(m.b, 0));
        log.see("parts", readv(m.b, &[1, 2, 10]));
        log.see("read", read(m.b, 100));
        log.see("read", read(m.b, 100));
        log.see("read", read(m.b, 100));
    }),
    ("many at once", |log, m| {
        log.see("sent", many(m.a, &[1, 0, 100], true));
        arrives(m.b);
        log.see("got", many(m.b, &[10, 10, 10, 10], false));
        set_nonblocking(m.b, true);
        log.see("none", many(m.b, &[10, 10], false));
        set_nonblocking(m.b, false);
    }),
    ("large ones", |log, m| {
        for len in [1400, 9000, 60_000, 65_507] {
            let bytes: Vec<u8> = (0..len).map(|n| u8::try_from(n % 251).unwrap()).collect();
            let mut into = vec![0; 70_000];
            log.see("sent", send(m.a, &bytes, 0));
            arrives(m.b);
            log.see("got", recv_into(m.b, &mut into, 0));
            log.see("equal", into[..len] == bytes);
        }
        log.see("too large", send(m.a, &[0; 65_508], 0).is_err());
    }),
    ("time limits and no waiting", |log, m| {
        log.see("nothing", recv(m.b, 1, libc::MSG_DONTWAIT));
        let limit = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
        set_option(m.b, libc::SOL_SOCKET, libc::SO_RCVTIMEO, limit).unwrap();
        log.see("in time", recv(m.b, 1, 0));
        set_nonblocking(m.b, true);
        log.see("nothing", recv(m.b, 1, 0));
        send(m.a, b"x", 0).unwrap();
        arrives(m.b);
        log.see("got", recv(m.b, 10, 0));
        set_nonblocking(m.b, false);
    }),
    ("poll and select", |log, m| {
        let both = libc::POLLIN | libc::POLLOUT;
        log.see("writable", poll(&[(m.b, both)], 10));
        log.see("quiet", poll(&[(m.b, libc::POLLIN)], 10));
        send(m.a, b"x", 0).unwrap();
        arrives(m.b);
        log.see("readable", poll(&[(m.b, both), (m.a, libc::POLLIN)], 1000));
        let (r, w) = select(&[m.a, m.b], &[m.a], 1000).unwrap();
        log.see("select", (r == [m.b], w == [m.a]));
        recv(m.b, 1, 0).unwrap();
        log.see("quiet", poll(&[(m.b, libc::POLLIN)], 10));
        let (r, w) = select(&[m.a, m.b], &[], 10).unwrap();
        log.see("select", (r.len(), w.len()));
    }),
    ("epoll, by level and by edge", |log, m| {
        for events in [libc::EPOLLIN, EPOLLET_IN, libc::EPOLLIN | libc::EPOLLOUT] {
            let e = epoll_create();
            epoll_ctl(e, libc::EPOLL_CTL_ADD, m.b, events, 7).unwrap();
            log.see("first", epoll_wait(e, 10));
            send(m.a, b"x", 0).unwrap();
            arrives(m.b);
            log.see("one", epoll_wait(e, 1000));
            log.see("again", epoll_wait(e, 10));
            send(m.a, b"y", 0).unwrap();
            settle();
            log.see("two", epoll_wait(e, 10));
            log.see("all", all(m.b));
            log.see("empty", epoll_wait(e, 10));
            close(e).unwrap();
        }
    }),
    ("epoll once", |log, m| {
        let e = epoll_create();
        let once = libc::EPOLLIN | libc::EPOLLONESHOT;
        epoll_ctl(e, libc::EPOLL_CTL_ADD, m.b, once, 1).unwrap();
        for _ in 0..3 {
            send(m.a, b"x", 0).unwrap();
            arrives(m.b);
            log.see("one", epoll_wait(e, 1000));
            send(m.a, b"x", 0).unwrap();
            settle();
            log.see("no more", epoll_wait(e, 10));
            log.see("all", all(m.b));
            epoll_ctl(e, libc::EPOLL_CTL_MOD, m.b, once, 1).unwrap();
        }
        close(e).unwrap();
    }),
    ("two instances, and one within another", |log, m| {
        let (e, f) = (epoll_create(), epoll_create());
        epoll_ctl(e, libc::EPOLL_CTL_ADD, m.b, libc::EPOLLIN, 1).unwrap();
        epoll_ctl(f, libc::EPOLL_CTL_ADD, e, libc::EPOLLIN, 2).unwrap();
        epoll_ctl(f, libc::EPOLL_CTL_ADD, m.b, libc::EPOLLIN, 3).unwrap();
        for _ in 0..5 {
            send(m.a, b"x", 0).unwrap();
            arrives(m.b);
            log.see("inner", epoll_wait(e, 1000));
            log.see("outer", epoll_wait(f, 1000));
            log.see("poll", poll(&[(e, libc::POLLIN), (f, libc::POLLIN)], 1000));
            recv(m.b, 1, 0).unwrap();
            log.see("inner", epoll_wait(e, 5));
            log.see("outer", epoll_wait(f, 5));
            log.see("poll", poll(&[(e, libc::POLLIN), (f, libc::POLLIN)], 5));
        }
        close(e).unwrap();
        close(f).unwrap();
    }),
    ("sleepers are woken, whatever they sleep in", |log, m| {
        for pause in [0, 1, 30] {
            for way in 0..4 {
                let reader = thread::spawn(move || {
                    let e = epoll_create();
                    epoll_ctl(e, libc::EPOLL_CTL_ADD, m.b, libc::EPOLLIN, 1).unwrap();
                    match way {
                        0 => {}
                        1 => arrives(m.b),
                        2 => assert_eq!(select(&[m.b], &[], 60_000).unwrap().0.len(), 1),
                        _ => assert_eq!(epoll_wait(e, 60_000).unwrap().len(), 1),
                    }
                    close(e).unwrap();
                    recv(m.b, 100, 0)
                });
                thread::sleep(Duration::from_millis(pause));
                send(m.a, b"wake", 0).unwrap();
                log.see("got", reader.join().unwrap());
            }
        }
    }),
    ("what woke a sleeper comes before what came after", |log, m| {
        for _ in 0..3 {
            let sleeper = thread::spawn(move || arrives(m.b));
            settle();
            send(m.a, b"first", 0).unwrap();
            sleeper.join().unwrap();
            send(m.a, b"second", 0).unwrap();
            send(m.a, b"third", 0).unwrap();
            log.see("got", [(); 3].map(|()| recv(m.b, 100, 0)));
        }
    }),
    ("what was to wake a sleeper is lost", |log, m| {
        let is_over = AtomicBool::new(false);
        thread::scope(|threads| {
            threads.spawn(|| {
                settle();
                drop_all(m.b, true);
                send(m.a, b"lost", 0).unwrap();
                drop_all(m.b, false);
                for number in (1..1000).take_while(|_| !is_over.load(Ordering::SeqCst)) {
                    thread::sleep(Duration::from_millis(10));
                    send(m.a, format!("{number}").as_bytes(), 0).unwrap();
                }
            });
            let got = recv(m.b, 100, 0).unwrap();
            is_over.store(true, Ordering::SeqCst);
            // It may not have been asleep yet.
            log.see("the next one comes", ["lost", "1"].contains(&got.as_str()));
        });
    }),
    ("a reader at an edge beside one that sleeps", |log, m| {
        let sleeper_got = AtomicBool::new(false);
        thread::scope(|threads| {
            threads.spawn(|| {
                settle();
                drop_all(m.b, true);
                send(m.a, b"lost", 0).unwrap();
                drop_all(m.b, false);
                send(m.a, b"kept", 0).unwrap();
                let e = epoll_create();
                epoll_ctl(e, libc::EPOLL_CTL_ADD, m.b, EPOLLET_IN, 1).unwrap();
                let takes = || {
                    let is_told = !epoll_wait(e, 100).unwrap().is_empty();
                    is_told && recv(m.b, 100, libc::MSG_DONTWAIT).is_ok()
                };
                let is_read = (0..10).any(|_| takes() || sleeper_got.load(Ordering::SeqCst));
                log.see("one of them has it", is_read);
                send(m.a, b"end", 0).unwrap();
                close(e).unwrap();
            });
            recv(m.b, 100, 0).unwrap();
            sleeper_got.store(true, Ordering::SeqCst);
        });
    }),
    ("several readers share", |log, m| {
        let readers: Vec<_> = (0..4)
            .map(|_| thread::spawn(move || (0..50).map(|_| recv(m.b, 100, 0).unwrap().len()).sum()))
            .collect();
        for _ in 0..200 {
            send(m.a, b"12345", 0).unwrap();
            thread::sleep(Duration::from_micros(200));
        }
        let got: usize = readers.into_iter().map(|r| -> usize { r.join().unwrap() }).sum();
        log.see("all", got);
        log.see("nothing", recv(m.b, 1, libc::MSG_DONTWAIT));
    }),
    ("a long conversation in order, with pauses", |log, m| {
        let reader = thread::spawn(move || {
            for expected in 0..20_000_u32 {
                let mut bytes = [0; 4];
                recv_into(m.b, &mut bytes, 0).unwrap();
                assert_eq!(u32::from_le_bytes(bytes), expected);
                if expected % 8 == 7 {
                    send(m.b, b"go on", 0).unwrap();
                }
            }
        });
        for number in 0..20_000_u32 {
            send(m.a, &number.to_le_bytes(), 0).unwrap();
            if number % 8 == 7 {
                recv(m.a, 10, 0).unwrap();
            }
            if number % 3000 == 0 {
                settle();
            }
        }
        log.see("in order", reader.join().is_ok());
    }),
    ("a full buffer drops", |log, m| {
        set_option(m.b, libc::SOL_SOCKET, libc::SO_RCVBUF, 20_000_i32).unwrap();
        for number in 0..500_u32 {
            let mut bytes = [0; 1000];
            bytes[..4].copy_from_slice(&number.to_le_bytes());
            assert_eq!(send(m.a, &bytes, 0), Ok(1000));
        }
        settle();
        let mut got = Vec::new();
        let mut bytes = [0; 1000];
        while recv_into(m.b, &mut bytes, libc::MSG_DONTWAIT).is_ok() {
            got.push(u32::from_le_bytes(bytes[..4].try_into().unwrap()));
        }
        log.see("the first", got[0]);
        log.see("in order", got.is_sorted());
        log.see("some, not all", (5..100).contains(&got.len()));
        send(m.a, b"room again", 0).unwrap();
        arrives(m.b);
        log.see("got", recv(m.b, 100, 0));
    }),
    ("what the kernel drops is told when it is asked about", |log, m| {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_RXQ_OVFL);
        set_option(m.b, level, libc::SO_RCVBUF, 20_000_i32).unwrap();
        // By the kernel, whatever else there is.
        let by_kernel = |text: &[u8]| send(m.a, text, libc::MSG_DONTROUTE).unwrap();
        for round in 0..2 {
            (0..100).for_each(|_| _ = by_kernel(&[b'x'; 1000]));
            log.see("some come", !all(m.b).is_empty());
            by_kernel(b"behind them");
            let message = recvmsg(m.b, 100, 0).unwrap();
            log.see("told", (message.text, message.passed.is_some_and(|count| count > 0)));
            log.see("asked", option(m.b, level, name));
            set_option(m.b, level, name, 1 - round).unwrap();
        }
    }),
    ("the peer has gone", |log, m| {
        close(m.b).unwrap();
        log.see("sent", send(m.a, b"x", 0));
        settle();
        log.see("refused", recv(m.a, 1, libc::MSG_DONTWAIT));
        log.see("sent", send(m.a, b"x", 0));
        arrives(m.a);
        log.see("refused", send(m.a, b"x", 0));
        log.see("nothing", recv(m.a, 1, libc::MSG_DONTWAIT));
    }),
    ("another one on the same port", |log, m| {
        let number = port(m.b);
        for _ in 0..3 {
            let _ = close(m.b);
            let new = socket(m.domain, libc::SOCK_DGRAM);
            bind(new, m.domain, number).unwrap();
            connect(new, m.domain, port(m.a)).unwrap();
            for _ in 0..10 {
                send(m.a, b"to the new one", 0).unwrap();
                log.see("got", recv(new, 100, 0));
                send(new, b"and back", 0).unwrap();
                log.see("got", recv(m.a, 100, 0));
            }
            close(new).unwrap();
        }
    }),
    ("connected to another", |log, m| {
        let c = bound(m.domain);
        connect(m.b, m.domain, port(c)).unwrap();
        log.see("sent", send(m.a, b"stranger", 0));
        settle();
        log.see("refused", send(m.a, b"stranger", 0));
        log.see("nothing", recv(m.b, 100, libc::MSG_DONTWAIT));
        connect(c, m.domain, port(m.b)).unwrap();
        talk(c, m.b);
        connect(m.b, m.domain, port(m.a)).unwrap();
        talk(m.a, m.b);
        log.see("sent", send(c, b"stranger", 0));
        settle();
        log.see("nothing", recv(m.b, 100, libc::MSG_DONTWAIT));
        close(c).unwrap();
    }),
    ("connected to no peer", |log, m| {
        log.see("undone", unconnect(m.b));
        log.see("nowhere", send(m.b, b"x", 0));
        let c = bound(m.domain);
        for _ in 0..5 {
            for fd in [m.a, c] {
                sendto(fd, b"to b", m.domain, port(m.b)).unwrap();
                let (text, from) = recvfrom(m.b, 10).unwrap();
                log.see("got", (text, from == port(fd)));
            }
        }
        close(c).unwrap();
    }),
    ("shut down", |log, m| {
        send(m.a, b"before", 0).unwrap();
        log.see("shut", shutdown(m.a, libc::SHUT_WR));
        log.see("pipe", send(m.a, b"x", libc::MSG_NOSIGNAL));
        log.see("got", recv(m.b, 100, 0));
        log.see("back", send(m.b, b"back", 0));
        log.see("got", recv(m.a, 100, 0));
        log.see("shut", shutdown(m.b, libc::SHUT_RD));
        log.see("end", recv(m.b, 100, 0));
    }),
    ("copies of a descriptor", |log, m| {
        let copy = dup(m.b).unwrap().try_into().unwrap();
        send(m.a, b"one", 0).unwrap();
        send(m.a, b"two", 0).unwrap();
        log.see("copy", recv(copy, 10, 0));
        close(m.b).unwrap();
        log.see("copy", recv(copy, 10, 0));
        log.see("closed", recv(m.b, 10, 0));
        for _ in 0..5 {
            send(m.a, b"more", 0).unwrap();
            log.see("copy", recv(copy, 10, 0));
        }
        close(copy).unwrap();
    }),
    ("parent and child", |log, m| {
        let child = fork(|| {
            for _ in 0..20 {
                let got = recv(m.b, 100, 0).unwrap();
                send(m.b, got.as_bytes(), 0).unwrap();
            }
        });
        for number in 0..20_u8 {
            send(m.a, &[b'a' + number], 0).unwrap();
            log.see("echo", recv(m.a, 100, 0));
        }
        log.see("ended", wait(child));
        send(m.a, b"to the parent", 0).unwrap();
        log.see("got", recv(m.b, 100, 0));
        let child = fork(|| {
            for _ in 0..20 {
                send(m.a, b"from the child", 0).unwrap();
                recv(m.a, 100, 0).unwrap();
            }
        });
        for _ in 0..20 {
            log.see("got", recv(m.b, 100, 0));
            send(m.b, b"thanks", 0).unwrap();
        }
        log.see("ended", wait(child));
    }),
    ("a killed receiver", |log, m| {
        let (own, back) = pipe();
        let child = fork(|| {
            let fd = bound(m.domain);
            write(back, &port(fd).to_le_bytes()).unwrap();
            loop {
                let (text, from) = recvfrom(fd, 100).unwrap();
                sendto(fd, text.as_bytes(), m.domain, from).unwrap();
            }
        });
        let mut bytes = [0; 2];
        // SAFETY: a local buffer.
        assert_eq!(unsafe { libc::read(own, bytes.as_mut_ptr().cast(), 2) }, 2);
        let c = bound(m.domain);
        connect(c, m.domain, u16::from_le_bytes(bytes)).unwrap();
        for _ in 0..20 {
            send(c, b"alive", 0).unwrap();
            log.see("echo", recv(c, 100, 0));
        }
        kill(child);
        wait(child);
        log.see("sent", send(c, b"dead", 0));
        log.see("refused", recv(c, 100, 0));
        for fd in [c, own, back] {
            close(fd).unwrap();
        }
    }),
    ("control data", |log, m| {
        send(m.a, b"before", 0).unwrap();
        log.see("none", recvmsg(m.b, 100, 0).unwrap().passed.is_some());
        set_option(m.b, libc::SOL_SOCKET, libc::SO_TIMESTAMP, 1_i32).unwrap();
        for _ in 0..5 {
            send(m.a, b"stamped", 0).unwrap();
            let message = recvmsg(m.b, 100, 0).unwrap();
            log.see("stamp", (message.text, message.passed.is_some()));
        }
        let (level, name) = if m.domain == libc::AF_INET {
            (libc::IPPROTO_IP, libc::IP_RECVTTL)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT)
        };
        set_option(m.a, level, name, 1_i32).unwrap();
        for _ in 0..5 {
            send(m.b, b"hops", 0).unwrap();
            log.see("hops", recvmsg(m.a, 100, 0).unwrap().passed);
        }
    }),
    ("one group, two members", |log, m| {
        let group: Vec<c_int> = (0..2).map(|_| socket(m.domain, libc::SOCK_DGRAM)).collect();
        for fd in &group {
            set_option(*fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1_i32).unwrap();
        }
        bind(group[0], m.domain, 0).unwrap();
        bind(group[1], m.domain, port(group[0])).unwrap();
        let c = bound(m.domain);
        let mut members = std::collections::BTreeSet::new();
        for _ in 0..20 {
            sendto(c, b"x", m.domain, port(group[0])).unwrap();
            let ready = poll(&[(group[0], libc::POLLIN), (group[1], libc::POLLIN)], 60_000);
            let at = usize::from(ready.unwrap()[0] == 0);
            recv(group[at], 10, 0).unwrap();
            sendto(group[at], b"back", m.domain, port(c)).unwrap();
            log.see("got", recv(c, 10, 0));
            members.insert(at);
        }
        log.see("always the same", members.len());
        let at = *members.first().unwrap();
        close(group[at]).unwrap();
        for _ in 0..10 {
            sendto(c, b"y", m.domain, port(group[1 - at])).unwrap();
            log.see("the other", recv(group[1 - at], 10, 0));
        }
        close(group[1 - at]).unwrap();
        close(c).unwrap();
    }),
    ("signals", |log, m| {
        handle(libc::SIGUSR1, 0);
        let pester = Pester::start(libc::SIGUSR1);
        log.see("recv", recv(m.b, 1, 0));
        log.see("poll", poll(&[(m.b, libc::POLLIN)], 60_000));
        let e = epoll_create();
        epoll_ctl(e, libc::EPOLL_CTL_ADD, m.b, libc::EPOLLIN, 1).unwrap();
        log.see("epoll", epoll_wait(e, 60_000));
        drop(pester);
        close(e).unwrap();
        handle(libc::SIGUSR1, libc::SA_RESTART);
        let pester = Pester::start(libc::SIGUSR1);
        let sender = thread::spawn(move || {
            settle();
            send(m.a, b"restarted", 0).unwrap();
        });
        log.see("recv", recv(m.b, 100, 0));
        sender.join().unwrap();
        drop(pester);
    }),
];

/// Runs every case, and prints what it saw.
pub(crate) fn run(share: &mut Share) {
    for (family, domain) in [("v4", libc::AF_INET), ("v6", libc::AF_INET6)] {
        for (name, case) in CASES {
            for (way, swap) in [("", false), (" the other way", true)] {
                if !share.has_next() {
                    continue;
                }
                let m = Mail::new(domain);
                let m = if swap { Mail { a: m.b, b: m.a, ..m } } else { m };
                let mut log = Log::default();
                case(&mut log, m);
                m.close();
                println!("{family} mail, {name}{way} => {}", log.0);
            }
        }
    }
}
