//! The cases. Each is a function that says what it saw.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::ffi::c_int;
use std::fmt::Write;
use std::thread;
use std::time::{Duration, Instant};

use super::call::*;
use super::{Share, ends};

/// What a case has seen so far.
#[derive(Debug, Default)]
pub(crate) struct Log(pub(crate) String);

impl Log {
    pub(crate) fn see(&mut self, what: &str, saw: impl std::fmt::Debug) {
        write!(self.0, "{what}={saw:?}; ").expect("a string");
    }
}

/// Two ends of one TCP connection: the one that connected, and the one that accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) c: c_int,
    pub(crate) s: c_int,
}

impl Pair {
    fn new(domain: c_int) -> Self {
        let l = listener(domain);
        let c = socket(domain, libc::SOCK_STREAM);
        connect(c, domain, port(l)).unwrap();
        let s = accept(l, 0).unwrap();
        close(l).unwrap();
        Self { c, s: s.try_into().unwrap() }
    }

    fn close(self) {
        let _ = close(self.c);
        let _ = close(self.s);
    }
}

pub(crate) fn listener(domain: c_int) -> c_int {
    let l = socket(domain, libc::SOCK_STREAM);
    bind(l, domain, 0).unwrap();
    listen(l).unwrap();
    l
}

/// Waits until a thread sleeps, for a minute at most: it is found asleep several times in a row.
fn sleeps(thread: &std::path::Path) {
    let mut times = 0;
    for _ in 0..60_000 {
        let stat = std::fs::read_to_string(std::path::Path::new("/proc").join(thread).join("stat"));
        let is_asleep = stat.unwrap().rsplit_once(") ").unwrap().1.starts_with('S');
        times = if is_asleep { times + 1 } else { 0 };
        if times == 5 {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("{} does not sleep", thread.display());
}

/// Bytes that tell where they are.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

/// Reads until the end, and says how much came, and whether it was the pattern.
fn drain(fd: c_int) -> (usize, bool, Option<String>) {
    let mut all = Vec::new();
    let mut buffer = vec![0; 50_000];
    loop {
        match recv_into(fd, &mut buffer, 0) {
            Ok(0) => return (all.len(), all == pattern(all.len()), None),
            Ok(got) => all.extend_from_slice(&buffer[..got.try_into().unwrap()]),
            Err(error) => return (all.len(), all == pattern(all.len()), Some(error)),
        }
    }
}

fn send_all(fd: c_int, bytes: &[u8]) -> Result<(), String> {
    let mut at = 0;
    while at < bytes.len() {
        at += usize::try_from(send(fd, &bytes[at..], libc::MSG_NOSIGNAL)?).unwrap();
    }
    Ok(())
}

pub(crate) type Case = fn(&mut Log, Pair);

/// Cases on one connection, run over IPv4 and IPv6, in both directions.
const ON_A_CONNECTION: &[(&str, Case)] = &[
    ("a message and its answer", |log, p| {
        log.see("sent", send(p.c, b"hello", 0));
        log.see("got", recv(p.s, 100, 0));
        log.see("answered", send(p.s, b"world!", 0));
        log.see("got", recv(p.c, 3, 0));
        log.see("rest", recv(p.c, 100, 0));
    }),
    ("read and write", |log, p| {
        log.see("wrote", write(p.c, b"abc"));
        log.see("read", read(p.s, 2));
        log.see("read", read(p.s, 2));
        log.see("none", read(p.s, 0));
        log.see("none", write(p.s, b""));
    }),
    ("many parts", |log, p| {
        log.see("wrote", writev(p.c, &["ab", "", "cdef", "g"]));
        log.see("read", readv(p.s, &[1, 0, 3, 10]));
    }),
    ("lengths that the kernel refuses, and none", |log, p| {
        log.see("saw", odd_lengths(p.c, p.s));
        log.see("delay", option_in_rooms(p.c, libc::IPPROTO_TCP, libc::TCP_NODELAY));
        log.see("left", recv(p.s, 100, libc::MSG_DONTWAIT));
    }),
    ("buffers that are not there", |log, p| {
        log.see("before", bad_buffers(p.c, p.s));
        recv(p.s, 4, 0).unwrap();
        log.see("again", bad_buffers(p.c, p.s));
        log.see("the other way", bad_buffers(p.s, p.c));
        log.see("faults", faults());
    }),
    ("calls by their numbers", |log, p| {
        log.see("saw", by_number(p.c, p.s));
        log.see("left", recv(p.s, 100, 0));
        log.see("back", by_number(p.s, p.c));
        log.see("left", recv(p.c, 100, 0));
    }),
    ("an io_uring", |log, p| {
        let l = listener(libc::AF_INET);
        let ended = wait(fork(|| {
            let Pair { c, s } = p;
            send(c, b"before", 0).unwrap();
            recv(s, 100, 0).unwrap();
            ask_for_uring();
            // The kernel's own calls see what is sent from now on.
            for _ in 0..3 {
                send(c, b"there", 0).unwrap();
                assert_eq!(plain_read(s), "there");
                send(s, b"back", 0).unwrap();
                assert_eq!(plain_read(c), "back");
            }
            let new = socket(libc::AF_INET, libc::SOCK_STREAM);
            connect(new, libc::AF_INET, port(l)).unwrap();
            let other = accept(l, 0).unwrap().try_into().unwrap();
            send(new, b"new", 0).unwrap();
            assert_eq!(plain_read(other), "new");
        }));
        log.see("ended", ended);
        close(l).unwrap();
    }),
    ("places that are not there", |log, p| {
        send(p.c, b"one two three four", 0).unwrap();
        settle();
        log.see("faults", bad_places(p.s));
        send(p.c, b" five", 0).unwrap();
        settle();
        log.see("left", recv(p.s, 100, 0));
    }),
    ("printing", |log, p| {
        log.see("printed", print(p.c));
        settle();
        log.see("got", recv(p.s, 500, 0));
        log.see("printed back", print(p.s));
        settle();
        log.see("got", recv(p.c, 500, 0));
    }),
    ("ranges of descriptors", |log, p| {
        let copy = fcntl(p.c, libc::F_DUPFD, 900).unwrap();
        log.see("wrong", close_range_with(p.c, p.c, 1 << 20));
        log.see("wrong way round", close_range_with(p.c, p.c - 1, 0));
        log.see("on exec", close_range_with(p.c, p.c, libc::CLOSE_RANGE_CLOEXEC));
        send(p.c, b"still", 0).unwrap();
        log.see("got", recv(p.s, 10, 0));
        let copy = c_int::try_from(copy).unwrap();
        let child = fork(|| {
            close_range_with(p.c, p.c, libc::CLOSE_RANGE_UNSHARE).unwrap();
            assert!(send(p.c, b"x", 0).is_err());
            send(copy, b"copy", 0).unwrap();
        });
        log.see("status", wait(child));
        log.see("got", recv(p.s, 10, 0));
        log.see("closed", close_range_with(p.c, p.c, 0));
        send(copy, b"copy", 0).unwrap();
        log.see("got", recv(p.s, 10, 0));
        log.see("closed", close_range_with(copy, copy, 0));
        log.see("end", recv(p.s, 10, 0));
    }),
    ("a child that ends on the spot", |log, p| {
        let Pair { c, s } = p;
        let child = fork(|| {
            send(c, b"last words", 0).unwrap();
        });
        close(c).unwrap();
        log.see("status", wait(child));
        log.see("got", recv(s, 100, libc::MSG_WAITALL));
        log.see("end", recv(s, 100, 0));
    }),
    ("bytes are a stream", |log, p| {
        for _ in 0..10 {
            send(p.c, b"0123456789", 0).unwrap();
        }
        settle();
        log.see("got", recv(p.s, 1000, 0));
    }),
    ("peeking leaves", |log, p| {
        send(p.c, b"peek", 0).unwrap();
        settle();
        log.see("peeked", recv(p.s, 2, libc::MSG_PEEK));
        log.see("peeked", recv(p.s, 9, libc::MSG_PEEK));
        log.see("got", recv(p.s, 9, 0));
        log.see("nothing", recv(p.s, 9, libc::MSG_PEEK | libc::MSG_DONTWAIT));
    }),
    ("peeking and counting across the way that bytes take", |log, _| {
        let (l, (told, tell), (ready, go)) = (listener(libc::AF_INET), pipe(), pipe());
        let number = port(l);
        let child = fork(|| {
            let c = socket(libc::AF_INET, libc::SOCK_STREAM);
            connect(c, libc::AF_INET, number).unwrap();
            let next = || {
                write(tell, b"x").unwrap();
                read(ready, 1).unwrap();
            };
            // The first bytes come before the peer is known to be near, the later ones after.
            send(c, b"abcd", 0).unwrap();
            next();
            send(c, &pattern(102), 0).unwrap();
            next();
            // And back, as it sets what only the kernel has.
            send(c, b"ring", 0).unwrap();
            set_option(c, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1).unwrap();
            recv(c, 1, 0).unwrap();
            send(c, b"kernel", 0).unwrap();
            next();
        });
        let s: c_int = accept(l, 0).unwrap().try_into().unwrap();
        let sent = || {
            read(told, 1).unwrap();
            settle();
        };
        let mut buffer = [0; 1000];
        sent();
        send(s, b"1", 0).unwrap();
        write(go, b"x").unwrap();
        sent();
        log.see("count", ioctl(s, libc::FIONREAD, 0));
        log.see("peeked", recv_into(s, &mut buffer, libc::MSG_PEEK));
        log.see("bytes", buffer[..4] == *b"abcd" && buffer[4..106] == pattern(102)[..]);
        log.see("all", recv_into(s, &mut buffer[..50], libc::MSG_PEEK | libc::MSG_WAITALL));
        log.see("got", recv_into(s, &mut buffer[..106], libc::MSG_WAITALL));
        write(go, b"x").unwrap();
        sent();
        log.see("count", ioctl(s, libc::FIONREAD, 0));
        log.see("peeked", recv(s, 100, libc::MSG_PEEK));
        log.see("all", recv(s, 8, libc::MSG_PEEK | libc::MSG_WAITALL));
        log.see("got", recv(s, 10, libc::MSG_WAITALL));
        write(go, b"x").unwrap();
        log.see("ended", wait(child));
        for fd in [l, s, told, tell, ready, go] {
            close(fd).unwrap();
        }
    }),
    ("an end that was said before its reader set what only the kernel has", |log, p| {
        for _ in 0..4 {
            send(p.c, b"to", 0).unwrap();
            recv(p.s, 2, 0).unwrap();
            send(p.s, b"fro", 0).unwrap();
            recv(p.c, 3, 0).unwrap();
        }
        send(p.c, &pattern(4000), 0).unwrap();
        set_nonblocking(p.s, true);
        set_option(p.s, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 5).unwrap();
        shutdown(p.c, libc::SHUT_WR).unwrap();
        settle();
        log.see("ready", poll(&[(p.s, libc::POLLIN)], 1000));
        let mut buffer = [0; 9999];
        log.see("got", recv_into(p.s, &mut buffer, 0));
        log.see("ready", poll(&[(p.s, libc::POLLIN)], 1000));
        log.see("end", recv_into(p.s, &mut buffer, 0));
    }),
    ("all or nothing waits for all", |log, p| {
        let Pair { c, s } = p;
        let writer = thread::spawn(move || {
            for part in [&b"one "[..], b"two ", b"three"] {
                send(c, part, 0).unwrap();
                settle();
            }
        });
        log.see("got", recv(s, 13, libc::MSG_WAITALL));
        writer.join().unwrap();
    }),
    ("all or nothing ends with the stream", |log, p| {
        send(p.c, b"short", 0).unwrap();
        shutdown(p.c, libc::SHUT_WR).unwrap();
        log.see("got", recv(p.s, 100, libc::MSG_WAITALL));
        log.see("end", recv(p.s, 100, libc::MSG_WAITALL));
    }),
    ("throwing away", |log, p| {
        send(p.c, b"0123456789", 0).unwrap();
        settle();
        let mut none = [b'?'; 4];
        log.see("thrown", recv_into(p.s, &mut none, libc::MSG_TRUNC));
        log.see("untouched", none);
        log.see("rest", recv(p.s, 10, 0));
    }),
    ("nothing to read", |log, p| {
        log.see("dontwait", recv(p.s, 1, libc::MSG_DONTWAIT));
        set_nonblocking(p.s, true);
        log.see("nonblocking", recv(p.s, 1, 0));
        log.see("read", read(p.s, 1));
        set_nonblocking(p.s, false);
        ioctl(p.s, libc::FIONBIO, 1).unwrap();
        log.see("by ioctl", recv(p.s, 1, 0));
        log.see("flag", fcntl(p.s, libc::F_GETFL, 0).unwrap() & i64::from(libc::O_NONBLOCK) != 0);
    }),
    ("how many wait", |log, p| {
        log.see("none", ioctl(p.s, libc::FIONREAD, -1));
        send(p.c, b"12345", 0).unwrap();
        settle();
        log.see("some", ioctl(p.s, libc::FIONREAD, -1));
        recv(p.s, 2, 0).unwrap();
        log.see("fewer", ioctl(p.s, libc::FIONREAD, -1));
    }),
    ("a reader is woken", |log, p| {
        let Pair { c, s } = p;
        let reader = thread::spawn(move || recv(s, 10, 0));
        settle();
        send(c, b"wake", 0).unwrap();
        log.see("got", reader.join().unwrap());
    }),
    ("a reader is woken again and again", |log, p| {
        let Pair { c, s } = p;
        let echo = thread::spawn(move || {
            for _ in 0..5 {
                let text = recv(s, 10, 0).unwrap();
                send(s, text.as_bytes(), 0).unwrap();
            }
        });
        for pause in [0, 1, 5, 20, 50] {
            thread::sleep(Duration::from_millis(pause));
            send(c, b"ping", 0).unwrap();
            log.see("pong", recv(c, 10, 0));
        }
        echo.join().unwrap();
    }),
    ("the peer closes", |log, p| {
        send(p.c, b"last", 0).unwrap();
        close(p.c).unwrap();
        settle();
        log.see("got", recv(p.s, 10, 0));
        log.see("end", recv(p.s, 10, 0));
        log.see("end again", recv(p.s, 10, libc::MSG_DONTWAIT));
    }),
    ("sending to a peer that has closed", |log, p| {
        close(p.c).unwrap();
        settle();
        log.see("first", send(p.s, b"x", libc::MSG_NOSIGNAL));
        settle();
        log.see("second", send(p.s, b"x", libc::MSG_NOSIGNAL));
    }),
    ("closing with bytes unread is a reset", |log, p| {
        send(p.s, b"unread", 0).unwrap();
        settle();
        close(p.c).unwrap();
        settle();
        log.see("got", recv(p.s, 10, 0));
        log.see("then", recv(p.s, 10, 0));
    }),
    ("lingering for no time is a reset", |log, p| {
        set_option(
            p.c,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            libc::linger { l_onoff: 1, l_linger: 0 },
        )
        .unwrap();
        close(p.c).unwrap();
        settle();
        log.see("got", recv(p.s, 10, 0));
        log.see("then", recv(p.s, 10, 0));
    }),
    ("half a connection goes on", |log, p| {
        shutdown(p.c, libc::SHUT_WR).unwrap();
        log.see("end", recv(p.s, 10, 0));
        log.see("sent", send(p.s, b"still here", 0));
        log.see("got", recv(p.c, 100, 0));
        log.see("refused", send(p.c, b"x", libc::MSG_NOSIGNAL));
        close(p.s).unwrap();
        settle();
        log.see("end", recv(p.c, 10, 0));
    }),
    ("half a connection carries a lot", |log, p| {
        let Pair { c, s } = p;
        shutdown(c, libc::SHUT_WR).unwrap();
        let writer = thread::spawn(move || {
            assert_eq!(recv(s, 1, 0).unwrap(), "");
            send_all(s, &pattern(3_000_000)).unwrap();
            close(s).unwrap();
        });
        settle();
        log.see("got", drain(c));
        writer.join().unwrap();
    }),
    ("reading shut", |log, p| {
        shutdown(p.s, libc::SHUT_RD).unwrap();
        log.see("end", recv(p.s, 10, 0));
        log.see("sent", send(p.s, b"out", 0));
        log.see("got", recv(p.c, 10, 0));
    }),
    ("both directions shut", |log, p| {
        send(p.c, b"bye", 0).unwrap();
        shutdown(p.c, libc::SHUT_RDWR).unwrap();
        log.see("own end", recv(p.c, 10, 0));
        log.see("refused", send(p.c, b"x", libc::MSG_NOSIGNAL));
        settle();
        log.see("got", recv(p.s, 10, 0));
        log.see("end", recv(p.s, 10, 0));
    }),
    ("sending to an end that is shut both ways", |log, p| {
        shutdown(p.c, libc::SHUT_RDWR).unwrap();
        settle();
        log.see("first", send(p.s, b"a", libc::MSG_NOSIGNAL));
        settle();
        log.see("next", send(p.s, b"b", libc::MSG_NOSIGNAL));
    }),
    ("shutting wakes a reader", |log, p| {
        let Pair { c, .. } = p;
        let reader = thread::spawn(move || recv(c, 10, 0));
        settle();
        shutdown(p.c, libc::SHUT_RDWR).unwrap();
        log.see("end", reader.join().unwrap());
    }),
    ("shutting again, and nonsense", |log, p| {
        log.see("wr", shutdown(p.c, libc::SHUT_WR));
        log.see("wr", shutdown(p.c, libc::SHUT_WR));
        log.see("nonsense", shutdown(p.c, 7));
    }),
    ("a time limit for reading", |log, p| {
        let limit = libc::timeval { tv_sec: 0, tv_usec: 30_000 };
        set_option(p.s, libc::SOL_SOCKET, libc::SO_RCVTIMEO, limit).unwrap();
        let start = Instant::now();
        log.see("nothing", recv(p.s, 1, 0));
        log.see("waited", start.elapsed() >= Duration::from_millis(25));
        send(p.c, b"x", 0).unwrap();
        log.see("got", recv(p.s, 1, 0));
    }),
    ("a time limit for writing", |log, p| {
        let limit = libc::timeval { tv_sec: 0, tv_usec: 30_000 };
        set_option(p.c, libc::SOL_SOCKET, libc::SO_SNDTIMEO, limit).unwrap();
        let block = pattern(100_000);
        let mut last = Ok(0);
        for _ in 0..1000 {
            last = send(p.c, &block, 0);
            if last.is_err() {
                break;
            }
        }
        log.see("full", last);
    }),
    ("filling and emptying without waiting", |log, p| {
        set_nonblocking(p.c, true);
        let all = pattern(20_000_000);
        let mut at = 0;
        // What has been sent may still be on its way from one buffer to the next, which makes room.
        let full = loop {
            while let Ok(sent) = send(p.c, &all[at..], 0) {
                at += usize::try_from(sent).unwrap();
            }
            settle();
            match send(p.c, &all[at..], 0) {
                Ok(sent) => at += usize::try_from(sent).unwrap(),
                full @ Err(_) => break full,
            }
        };
        log.see("took some", at > 10_000);
        log.see("full", full);
        log.see("not writable", poll(&[(p.c, libc::POLLOUT)], 0));
        let mut buffer = vec![0; 100_000];
        let mut back = Vec::new();
        while back.len() < at {
            let got = recv_into(p.s, &mut buffer, 0).unwrap();
            back.extend_from_slice(&buffer[..got.try_into().unwrap()]);
        }
        log.see("same", back == all[..at]);
        log.see("writable", poll(&[(p.c, libc::POLLOUT)], 1000));
        log.see("sent", send(p.c, b"x", 0));
    }),
    ("a lot, with a slow reader", |log, p| {
        let Pair { c, s } = p;
        let writer = thread::spawn(move || {
            send_all(c, &pattern(5_000_000)).unwrap();
            close(c).unwrap();
        });
        thread::sleep(Duration::from_millis(50));
        log.see("got", drain(s));
        writer.join().unwrap();
    }),
    ("odd sizes come out right", |log, p| {
        let Pair { c, s } = p;
        let writer = thread::spawn(move || {
            let all = pattern(700_000);
            let mut at = 0;
            for len in (1..).map(|n: usize| n * 977 % 40_000 + 1) {
                let end = (at + len).min(all.len());
                send_all(c, &all[at..end]).unwrap();
                at = end;
                if at == all.len() {
                    break;
                }
            }
            close(c).unwrap();
        });
        log.see("got", drain(s));
        writer.join().unwrap();
    }),
    ("both ends send a lot at once", |log, p| {
        let Pair { c, s } = p;
        let end = |fd: c_int| {
            thread::spawn(move || {
                let writer = thread::spawn(move || {
                    send_all(fd, &pattern(2_000_000)).unwrap();
                    shutdown(fd, libc::SHUT_WR).unwrap();
                });
                let got = drain(fd);
                writer.join().unwrap();
                got
            })
        };
        let (a, b) = (end(c), end(s));
        log.see("c got", a.join().unwrap());
        log.see("s got", b.join().unwrap());
    }),
    ("poll says what there is", |log, p| {
        let all = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
        log.see("idle", poll(&[(p.s, all)], 0));
        log.see("idle in", poll(&[(p.s, libc::POLLIN)], 10));
        send(p.c, b"x", 0).unwrap();
        log.see("in", poll(&[(p.s, libc::POLLIN)], 1000));
        log.see("both", poll(&[(p.s, all)], 0));
        log.see("still", poll(&[(p.s, libc::POLLIN)], 0));
        recv(p.s, 1, 0).unwrap();
        log.see("idle", poll(&[(p.s, libc::POLLIN)], 0));
        shutdown(p.c, libc::SHUT_WR).unwrap();
        settle();
        log.see("half", poll(&[(p.s, all)], 1000));
        close(p.c).unwrap();
        settle();
        log.see("closed", poll(&[(p.s, all)], 1000));
        shutdown(p.s, libc::SHUT_WR).unwrap();
        settle();
        log.see("over", poll(&[(p.s, all)], 1000));
    }),
    ("poll is woken", |log, p| {
        let Pair { c, s } = p;
        let poller = thread::spawn(move || poll(&[(s, libc::POLLIN)], 5000));
        settle();
        send(c, b"x", 0).unwrap();
        log.see("in", poller.join().unwrap());
        recv(s, 1, 0).unwrap();
        let poller = thread::spawn(move || poll(&[(s, libc::POLLIN | libc::POLLRDHUP)], 5000));
        settle();
        close(c).unwrap();
        log.see("end", poller.join().unwrap());
    }),
    ("poll on a mixture", |log, p| {
        let (r, w) = pipe();
        let e = eventfd();
        let set = [(p.s, libc::POLLIN), (r, libc::POLLIN), (e, libc::POLLIN), (-1, libc::POLLIN)];
        log.see("none", poll(&set, 0));
        write(w, b"x").unwrap();
        log.see("pipe", poll(&set, 1000));
        send(p.c, b"x", 0).unwrap();
        settle();
        log.see("both", poll(&set, 1000));
        write(e, &1_u64.to_ne_bytes()).unwrap();
        log.see("all", poll(&set, 1000));
        recv(p.s, 1, 0).unwrap();
        log.see("others", poll(&set, 1000));
        for fd in [r, w, e] {
            close(fd).unwrap();
        }
    }),
    ("a closed descriptor in a poll", |log, p| {
        close(p.c).unwrap();
        log.see("nval", poll(&[(p.c, libc::POLLIN)], 0));
    }),
    ("select says what there is", |log, p| {
        let pick = |saw: Result<(Vec<c_int>, Vec<c_int>), String>| {
            saw.map(|(r, w)| (r.contains(&p.s), w.contains(&p.s)))
        };
        log.see("idle", pick(select(&[p.s], &[p.s], 0)));
        log.see("nothing", pick(select(&[p.s], &[], 10)));
        send(p.c, b"x", 0).unwrap();
        log.see("in", pick(select(&[p.s], &[], 1000)));
        recv(p.s, 1, 0).unwrap();
        close(p.c).unwrap();
        log.see("end", pick(select(&[p.s], &[], 1000)));
    }),
    ("select of what is urgent goes on at an end", |log, p| {
        let found = |w: c_int, fds: [&[c_int]; 3]| {
            let writer = thread::spawn(move || {
                settle();
                write(w, b"x").unwrap();
            });
            let found = select_all(fds, 60_000).map(|all| all.map(|fds| fds.len()));
            writer.join().unwrap();
            found
        };
        let (r, w) = pipe();
        close(p.c).unwrap();
        log.see("ended", found(w, [&[r], &[], &[p.s]]));
        read(r, 1).unwrap();
        shutdown(p.s, libc::SHUT_RDWR).unwrap();
        log.see("hung up", found(w, [&[r], &[], &[p.s]]));
        read(r, 1).unwrap();
        log.see(
            "to be read",
            select_all([&[p.s], &[], &[p.s]], 1000).map(|all| all.map(|fds| fds.len())),
        );
        log.see("over", select_all([&[], &[], &[p.s]], 300));
        log.see("now", select_all([&[], &[], &[p.s]], 0));
        for fd in [r, w] {
            close(fd).unwrap();
        }
    }),
    ("epoll by level", |log, p| {
        let e = epoll_create();
        log.see("add", epoll_ctl(e, libc::EPOLL_CTL_ADD, p.s, libc::EPOLLIN, 7));
        log.see("twice", epoll_ctl(e, libc::EPOLL_CTL_ADD, p.s, libc::EPOLLIN, 7));
        log.see("none", epoll_wait(e, 0));
        send(p.c, b"xy", 0).unwrap();
        log.see("in", epoll_wait(e, 1000));
        recv(p.s, 1, 0).unwrap();
        log.see("still", epoll_wait(e, 1000));
        recv(p.s, 1, 0).unwrap();
        log.see("none", epoll_wait(e, 5));
        let both = libc::EPOLLIN | libc::EPOLLOUT;
        log.see("mod", epoll_ctl(e, libc::EPOLL_CTL_MOD, p.s, both, 8));
        log.see("out", epoll_wait(e, 1000));
        log.see("out", epoll_wait(e, 1000));
        log.see("del", epoll_ctl(e, libc::EPOLL_CTL_DEL, p.s, 0, 0));
        log.see("none", epoll_wait(e, 5));
        log.see("del", epoll_ctl(e, libc::EPOLL_CTL_DEL, p.s, 0, 0));
        log.see("mod", epoll_ctl(e, libc::EPOLL_CTL_MOD, p.s, both, 8));
        close(e).unwrap();
    }),
    ("epoll changes nothing that one waiter of many has, nor makes it so", |log, p| {
        let epfd = epoll_create();
        let exclusive = libc::EPOLLIN | libc::EPOLLEXCLUSIVE;
        log.see("added", epoll_ctl(epfd, libc::EPOLL_CTL_ADD, p.s, libc::EPOLLIN, 1));
        log.see("added", epoll_ctl(epfd, libc::EPOLL_CTL_ADD, p.c, exclusive, 2));
        for _ in 0..4 {
            send(p.c, b"to", 0).unwrap();
            recv(p.s, 2, 0).unwrap();
            send(p.s, b"fro", 0).unwrap();
            recv(p.c, 3, 0).unwrap();
        }
        log.see("made", epoll_ctl(epfd, libc::EPOLL_CTL_MOD, p.s, exclusive, 3));
        log.see("changed", epoll_ctl(epfd, libc::EPOLL_CTL_MOD, p.c, libc::EPOLLIN, 4));
        send(p.c, b"x", 0).unwrap();
        settle();
        log.see("as before", epoll_wait(epfd, 1000));
        close(epfd).unwrap();
    }),
    ("epoll removed and added again", |log, p| {
        let e = epoll_create();
        for round in 0..3 {
            log.see("add", epoll_ctl(e, libc::EPOLL_CTL_ADD, p.s, libc::EPOLLIN, round));
            send(p.c, b"x", 0).unwrap();
            log.see("in", epoll_wait(e, 1000));
            recv(p.s, 1, 0).unwrap();
            log.see("del", epoll_ctl(e, libc::EPOLL_CTL_DEL, p.s, 0, 0));
            send(p.c, b"y", 0).unwrap();
            log.see("none", epoll_wait(e, 5));
            log.see("mod", epoll_ctl(e, libc::EPOLL_CTL_MOD, p.s, libc::EPOLLIN, 8));
            log.see("del", epoll_ctl(e, libc::EPOLL_CTL_DEL, p.s, 0, 0));
            log.see("blocked", recv(p.s, 1, 0));
        }
        // A removed connection whose number goes to another is not mistaken for it.
        let kept = c_int::try_from(dup(p.s).unwrap()).unwrap();
        close(p.s).unwrap();
        let again = fcntl(kept, libc::F_DUPFD, p.s).unwrap();
        let again = c_int::try_from(again).unwrap();
        log.see("add", epoll_ctl(e, libc::EPOLL_CTL_ADD, again, libc::EPOLLIN, 9));
        send(p.c, b"z", 0).unwrap();
        log.see("in", epoll_wait(e, 1000));
        close(e).unwrap();
        close(kept).unwrap();
    }),
    ("closed while a thread waits, and its number is another one's", |log, p| {
        let (announce, announced) = std::sync::mpsc::channel();
        let waiter = thread::spawn(move || {
            announce.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
            recv(p.s, 100, 0)
        });
        sleeps(&announced.recv().unwrap());
        let (ours, theirs) = socketpair();
        send(theirs, b"precious", 0).unwrap();
        close(p.s).unwrap();
        dup2(ours, p.s).unwrap();
        // The kernel gives this to the thread that waits; here it may be told that its descriptor has gone.
        let _ = send(p.c, b"x", 0);
        let got = waiter.join().unwrap();
        let is_allowed = got.as_deref() == Ok("x") || got == Err("EBADF".to_owned());
        log.see("waiter", is_allowed.then_some("as allowed").ok_or(got));
        log.see("precious", recv(p.s, 100, libc::MSG_DONTWAIT));
        for fd in [ours, theirs] {
            close(fd).unwrap();
        }
    }),
    ("epoll watches what a copy keeps, and not what has its number now", |log, p| {
        let e = epoll_create();
        for _ in 0..3 {
            send(p.c, b"x", 0).unwrap();
            recv(p.s, 1, 0).unwrap();
        }
        epoll_ctl(e, libc::EPOLL_CTL_ADD, p.s, libc::EPOLLIN, 1).unwrap();
        let copy = c_int::try_from(dup(p.s).unwrap()).unwrap();
        let (ours, theirs) = socketpair();
        close(p.s).unwrap();
        log.see("in its place", dup2(ours, p.s).unwrap() == i64::from(p.s));
        for round in 0..5 {
            send(theirs, b"precious", 0).unwrap();
            let waiter = thread::spawn(move || epoll_wait(e, 5000));
            settle();
            send(p.c, b"x", 0).unwrap();
            log.see("in", waiter.join().unwrap());
            log.see("got", recv(copy, 1, 0));
            log.see("none", epoll_wait(e, 5));
            log.see("precious", recv(p.s, 100, libc::MSG_DONTWAIT));
            if round == 3 {
                // Of two copies the other stays.
                let other = dup(copy).unwrap();
                log.see("again", dup2(other.try_into().unwrap(), copy).is_ok());
                close(other.try_into().unwrap()).unwrap();
            }
        }
        for fd in [e, copy, ours, theirs] {
            close(fd).unwrap();
        }
    }),
    ("epoll watches what a copy keeps, and gets rings only then", |log, _| {
        for edge in [0, libc::EPOLLET] {
            let l = listener(libc::AF_INET);
            let c = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
            log.see("on its way", connect(c, libc::AF_INET, port(l)));
            let s = c_int::try_from(accept(l, 0).unwrap()).unwrap();
            set_nonblocking(c, false);
            let (e, f) = (epoll_create(), epoll_create());
            epoll_ctl(e, libc::EPOLL_CTL_ADD, s, libc::EPOLLIN | edge, 1).unwrap();
            epoll_ctl(f, libc::EPOLL_CTL_ADD, c, libc::EPOLLIN | edge, 2).unwrap();
            let [s, c] = [s, c].map(|fd| {
                let copy = c_int::try_from(dup(fd).unwrap()).unwrap();
                close(fd).unwrap();
                copy
            });
            log.see("nothing", (epoll_wait(e, 0), epoll_wait(f, 0)));
            for (from, to, watch) in [(c, s, e), (s, c, f)].repeat(6) {
                let waiter = thread::spawn(move || epoll_wait(watch, 60_000));
                settle();
                send(from, b"x", 0).unwrap();
                log.see("in", waiter.join().unwrap());
                log.see("got", recv(to, 10, 0));
                log.see("none", epoll_wait(watch, 20));
            }
            // A thread that waits is not woken again and again, nor is one that does not.
            let waiter = thread::spawn(move || epoll_wait(e, 300));
            send(s, b"y", 0).unwrap();
            log.see("nothing", waiter.join().unwrap());
            log.see("in", epoll_wait(f, 60_000));
            shutdown(c, libc::SHUT_WR).unwrap();
            log.see("end", epoll_wait(e, 60_000));
            log.see("end", recv(s, 10, 0));
            for fd in [l, c, s, e, f] {
                close(fd).unwrap();
            }
        }
    }),
    ("epoll asleep, and many have something", |log, p| {
        let e = epoll_create();
        let pairs: Vec<Pair> = (0..8).map(|_| Pair::new(libc::AF_INET)).collect();
        let all = || pairs.iter().chain([&p]);
        for (at, pair) in all().enumerate() {
            epoll_ctl(e, libc::EPOLL_CTL_ADD, pair.s, libc::EPOLLIN, at.try_into().unwrap())
                .unwrap();
        }
        for round in 0..4 {
            let ends: Vec<Pair> = all().copied().collect();
            let waiter = thread::spawn(move || {
                // Each has one byte for us: one that has not been reported by then is lost.
                let mut heard = vec![0; ends.len()];
                while heard.contains(&0) {
                    for (at, _) in epoll_wait(e, 5000).unwrap() {
                        let at = usize::try_from(at).unwrap();
                        heard[at] += recv(ends[at].s, 1, libc::MSG_DONTWAIT).unwrap().len();
                    }
                }
                heard
            });
            if round % 2 == 1 {
                settle();
            }
            for pair in all() {
                send(pair.c, b"x", 0).unwrap();
            }
            log.see("heard", waiter.join().unwrap());
        }
        pairs.into_iter().for_each(Pair::close);
        close(e).unwrap();
    }),
    ("epoll asleep, and another thread registers what has something", |log, p| {
        // What is there by then was notified, if at all, before it was watched.
        let fill = |text: &[u8]| {
            for _ in 0..3 {
                send(p.c, b"x", 0).unwrap();
                recv(p.s, 1, 0).unwrap();
            }
            send(p.c, text, 0).unwrap();
            settle();
        };
        let wait = |e: c_int| {
            let waiter = thread::spawn(move || epoll_wait(e, 20_000));
            settle();
            waiter
        };
        let e = epoll_create();
        fill(b"a");
        let waiter = wait(e);
        epoll_ctl(e, libc::EPOLL_CTL_ADD, p.s, libc::EPOLLIN, 1).unwrap();
        log.see("added", waiter.join().unwrap());
        recv(p.s, 1, 0).unwrap();
        epoll_ctl(e, libc::EPOLL_CTL_MOD, p.s, 0, 2).unwrap();
        fill(b"b");
        let waiter = wait(e);
        epoll_ctl(e, libc::EPOLL_CTL_MOD, p.s, libc::EPOLLIN, 3).unwrap();
        log.see("changed", waiter.join().unwrap());
        recv(p.s, 1, 0).unwrap();
        epoll_ctl(e, libc::EPOLL_CTL_DEL, p.s, 0, 0).unwrap();
        fill(b"c");
        let waiter = wait(e);
        epoll_ctl(e, libc::EPOLL_CTL_ADD, p.s, libc::EPOLLIN, 4).unwrap();
        log.see("added again", waiter.join().unwrap());
        close(e).unwrap();
    }),
    ("epoll into an array that ends early", |log, p| {
        let e = epoll_create();
        let copies: Vec<c_int> =
            (0..70).map(|_| c_int::try_from(dup(p.s).unwrap()).unwrap()).collect();
        for (fd, number) in copies.iter().zip(0..) {
            epoll_ctl(e, libc::EPOLL_CTL_ADD, *fd, libc::EPOLLIN, number).unwrap();
        }
        send(p.c, b"x", 0).unwrap();
        settle();
        for room in [0, 1, 2, 66] {
            log.see("as many as there is room for", epoll_wait_in(e, room, 128).0);
        }
        let heard: std::collections::BTreeSet<u64> =
            (0..3).flat_map(|_| epoll_wait_in(e, 66, 128).1).collect();
        log.see("all of them", heard.len());
        copies.into_iter().for_each(|fd| close(fd).map(drop).unwrap());
        close(e).unwrap();
    }),
    ("epoll by edge", |log, p| {
        let e = epoll_create();
        let edge = libc::EPOLLIN | libc::EPOLLET;
        epoll_ctl(e, libc::EPOLL_CTL_ADD, p.s, edge, 1).unwrap();
        send(p.c, b"ab", 0).unwrap();
        log.see("in", epoll_wait(e, 1000));
        log.see("once", epoll_wait(e, 5));
        recv(p.s, 1, 0).unwrap();
        log.see("not for the rest", epoll_wait(e, 5));
        send(p.c, b"c", 0).unwrap();
        log.see("for more", epoll_wait(e, 1000));
        epoll_ctl(e, libc::EPOLL_CTL_MOD, p.s, edge, 2).unwrap();
        log.see("for a change", epoll_wait(e, 1000));
        log.see("once", epoll_wait(e, 5));
        close(p.c).unwrap();
        settle();
        log.see("end", epoll_wait(e, 1000).map(|all| all.len()));
        close(e).unwrap();
    }),
    ("epoll edge of both", |log, p| {
        let e = epoll_create();
        let edge = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET | libc::EPOLLRDHUP;
        epoll_ctl(e, libc::EPOLL_CTL_ADD, p.s, edge, 1).unwrap();
        log.see("out", epoll_wait(e, 1000));
        log.see("once", epoll_wait(e, 5));
        send(p.c, b"x", 0).unwrap();
        log.see("both", epoll_wait(e, 1000));
        shutdown(p.c, libc::SHUT_WR).unwrap();
        settle();
        log.see("half", epoll_wait(e, 1000));
        close(e).unwrap();
    }),
    ("epoll edge of room", |log, p| {
        let e = epoll_create();
        set_nonblocking(p.c, true);
        let edge = libc::EPOLLOUT | libc::EPOLLET;
        epoll_ctl(e, libc::EPOLL_CTL_ADD, p.c, edge, 1).unwrap();
        log.see("room", epoll_wait(e, 1000));
        let block = pattern(200_000);
        while send(p.c, &block, 0).is_ok() {}
        log.see("none", epoll_wait(e, 5));
        let mut buffer = vec![0; 200_000];
        set_nonblocking(p.s, true);
        settle();
        while recv_into(p.s, &mut buffer, 0).is_ok() {
            while recv_into(p.s, &mut buffer, 0).is_ok() {}
            settle();
        }
        log.see("room", epoll_wait(e, 1000));
        log.see("once", epoll_wait(e, 5));
        close(e).unwrap();
    }),
    ("epoll once", |log, p| {
        let e = epoll_create();
        let once = libc::EPOLLIN | libc::EPOLLONESHOT;
        epoll_ctl(e, libc::EPOLL_CTL_ADD, p.s, once, 1).unwrap();
        send(p.c, b"x", 0).unwrap();
        log.see("in", epoll_wait(e, 1000));
        send(p.c, b"y", 0).unwrap();
        log.see("spent", epoll_wait(e, 10));
        epoll_ctl(e, libc::EPOLL_CTL_MOD, p.s, once, 2).unwrap();
        log.see("again", epoll_wait(e, 1000));
        close(e).unwrap();
    }),
    ("epoll is woken", |log, p| {
        let Pair { c, s } = p;
        let e = epoll_create();
        epoll_ctl(e, libc::EPOLL_CTL_ADD, s, libc::EPOLLIN | libc::EPOLLRDHUP, 1).unwrap();
        for what in ["first", "second"] {
            let waiter = thread::spawn(move || epoll_wait(e, 5000));
            settle();
            send(c, b"x", 0).unwrap();
            log.see(what, waiter.join().unwrap());
            recv(s, 1, 0).unwrap();
        }
        let waiter = thread::spawn(move || epoll_wait(e, 5000));
        settle();
        close(c).unwrap();
        log.see("end", waiter.join().unwrap());
        close(e).unwrap();
    }),
    ("one socket in several epolls", |log, p| {
        let (a, b) = (epoll_create(), epoll_create());
        epoll_ctl(a, libc::EPOLL_CTL_ADD, p.s, libc::EPOLLIN, 1).unwrap();
        epoll_ctl(b, libc::EPOLL_CTL_ADD, p.s, libc::EPOLLIN | libc::EPOLLET, 2).unwrap();
        send(p.c, b"x", 0).unwrap();
        log.see("a", epoll_wait(a, 1000));
        log.see("b", epoll_wait(b, 1000));
        log.see("a", epoll_wait(a, 1000));
        log.see("b", epoll_wait(b, 5));
        close(a).unwrap();
        log.see("kept", send(p.c, b"y", 0));
        log.see("b", epoll_wait(b, 1000));
        close(b).unwrap();
    }),
    ("epoll within epoll", |log, p| {
        let (outer, inner) = (epoll_create(), epoll_create());
        epoll_ctl(inner, libc::EPOLL_CTL_ADD, p.s, libc::EPOLLIN, 1).unwrap();
        epoll_ctl(outer, libc::EPOLL_CTL_ADD, inner, libc::EPOLLIN, 2).unwrap();
        log.see("none", epoll_wait(outer, 5));
        send(p.c, b"x", 0).unwrap();
        log.see("outer", epoll_wait(outer, 1000));
        log.see("inner", epoll_wait(inner, 1000));
        log.see("polled", poll(&[(inner, libc::POLLIN)], 1000));
        log.see("selected", select(&[inner], &[], 1000).map(|(r, _)| r.len()));
        recv(p.s, 1, 0).unwrap();
        log.see("outer", epoll_wait(outer, 5));
        log.see("polled", poll(&[(inner, libc::POLLIN)], 5));
        let waiter = thread::spawn(move || epoll_wait(outer, 5000));
        settle();
        send(p.c, b"y", 0).unwrap();
        log.see("woken", waiter.join().unwrap());
        close(outer).unwrap();
        close(inner).unwrap();
    }),
    ("poll sleeps on an epoll", |log, p| {
        let e = epoll_create();
        epoll_ctl(e, libc::EPOLL_CTL_ADD, p.s, libc::EPOLLIN, 1).unwrap();
        let poller = thread::spawn(move || poll(&[(e, libc::POLLIN)], 5000));
        settle();
        send(p.c, b"x", 0).unwrap();
        log.see("woken", poller.join().unwrap());
        log.see("in", epoll_wait(e, 1000));
        close(e).unwrap();
    }),
    ("epoll on a mixture", |log, p| {
        let e = epoll_create();
        let (r, w) = pipe();
        let event = eventfd();
        for (fd, data) in [(p.s, 1), (r, 2), (event, 3)] {
            epoll_ctl(e, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, data).unwrap();
        }
        write(w, b"x").unwrap();
        log.see("pipe", epoll_wait(e, 1000));
        read(r, 1).unwrap();
        send(p.c, b"x", 0).unwrap();
        log.see("socket", epoll_wait(e, 1000));
        recv(p.s, 1, 0).unwrap();
        write(event, &1_u64.to_ne_bytes()).unwrap();
        log.see("event", epoll_wait(e, 1000));
        for fd in [e, r, w, event] {
            close(fd).unwrap();
        }
    }),
    ("closing leaves the epoll", |log, p| {
        let e = epoll_create();
        epoll_ctl(e, libc::EPOLL_CTL_ADD, p.s, libc::EPOLLIN, 1).unwrap();
        send(p.c, b"x", 0).unwrap();
        settle();
        close(p.s).unwrap();
        log.see("none", epoll_wait(e, 5));
        close(e).unwrap();
    }),
    ("a copy keeps the connection", |log, p| {
        let copy = c_int::try_from(dup(p.s).unwrap()).unwrap();
        close(p.s).unwrap();
        log.see("sent", send(p.c, b"one", 0));
        log.see("got", recv(copy, 10, 0));
        let other = c_int::try_from(fcntl(copy, libc::F_DUPFD_CLOEXEC, 100).unwrap()).unwrap();
        log.see("at least", other >= 100);
        close(copy).unwrap();
        log.see("sent", send(other, b"two", 0));
        log.see("got", recv(p.c, 10, 0));
        close(other).unwrap();
        settle();
        log.see("end", recv(p.c, 10, 0));
    }),
    ("copies share what they share", |log, p| {
        let copy = c_int::try_from(dup(p.s).unwrap()).unwrap();
        set_nonblocking(copy, true);
        log.see("nothing", recv(p.s, 1, 0));
        send(p.c, b"ab", 0).unwrap();
        settle();
        log.see("one", recv(p.s, 1, 0));
        log.see("other", recv(copy, 1, 0));
        close(copy).unwrap();
    }),
    ("a copy in place of another", |log, p| {
        let (r, w) = pipe();
        log.see("dup2", dup2(p.s, r).unwrap() == i64::from(r));
        close(p.s).unwrap();
        send(p.c, b"x", 0).unwrap();
        log.see("got", read(r, 10));
        log.see("dup2 over it", dup2(w, r).unwrap() == i64::from(r));
        settle();
        log.see("end", recv(p.c, 1, 0));
        log.see("bad", dup2(-1, w));
        log.see("dup3", dup3(p.c, r).unwrap() == i64::from(r));
        for fd in [r, w] {
            close(fd).unwrap();
        }
    }),
    ("a range is closed", |log, p| {
        let high = c_int::try_from(fcntl(p.s, libc::F_DUPFD, 500).unwrap()).unwrap();
        close(p.s).unwrap();
        log.see("closed", close_range(500, high + 10));
        settle();
        log.see("end", recv(p.c, 1, 0));
        log.see("bad", send(high, b"x", 0));
    }),
    ("a child goes on with the connection", |log, p| {
        let pid = fork(|| {
            let text = recv(p.s, 10, 0).unwrap();
            send(p.s, text.to_uppercase().as_bytes(), 0).unwrap();
        });
        close(p.s).unwrap();
        log.see("sent", send(p.c, b"child", 0));
        log.see("got", recv(p.c, 10, 0));
        log.see("status", wait(pid));
        settle();
        log.see("end", recv(p.c, 10, 0));
    }),
    ("parent and child share the connection", |log, p| {
        let pid = fork(|| {
            send(p.s, b"from the child", 0).unwrap();
        });
        log.see("status", wait(pid));
        log.see("got", recv(p.c, 100, 0));
        send(p.s, b"from the parent", 0).unwrap();
        log.see("got", recv(p.c, 100, 0));
        send(p.c, b"to one of them", 0).unwrap();
        log.see("got", recv(p.s, 100, 0));
    }),
    ("a child of the C library closes its copies", |log, p| {
        let pid = forkpty(|| {
            close(p.c).unwrap();
            close(p.s).unwrap();
        });
        if pid > 0 {
            wait(pid);
        }
        settle();
        log.see("sent", send(p.c, b"still here", 0));
        log.see("got", recv(p.s, 100, 0));
        log.see("sent", send(p.s, b"both of us", 0));
        log.see("got", recv(p.c, 100, 0));
    }),
    ("the peer is killed", |log, p| {
        let pid = fork(|| {
            close(p.s).unwrap();
            send(p.c, b"still alive", 0).unwrap();
            thread::sleep(Duration::from_secs(100));
        });
        close(p.c).unwrap();
        log.see("got", recv(p.s, 100, 0));
        kill(pid);
        wait(pid);
        settle();
        log.see("end", recv(p.s, 100, 0));
        log.see("poll", poll(&[(p.s, libc::POLLIN | libc::POLLRDHUP)], 1000));
    }),
    ("a peer that computes has room for what comes meanwhile", |log, p| {
        for round in 0..20 {
            // All of it is read, and the next bytes find nothing before them.
            log.see("sent", send(p.c, &pattern(10_000 + round), 0));
            log.see("read", recv(p.s, 10_000 + round, libc::MSG_WAITALL).map(|read| read.len()));
            let send_one = || send(p.c, &[1; 4000], libc::MSG_DONTWAIT);
            let taken = (0..12).map_while(|_| send_one().ok()).sum::<i64>();
            log.see("taken", taken);
            log.see(
                "to read",
                recv(p.s, taken.try_into().unwrap(), libc::MSG_WAITALL).map(|read| read.len()),
            );
        }
    }),
    ("the peer is killed while we wait", |log, p| {
        let pid = fork(|| {
            close(p.s).unwrap();
            thread::sleep(Duration::from_millis(60));
            kill(std::process::id().try_into().unwrap());
        });
        close(p.c).unwrap();
        log.see("end", recv(p.s, 100, 0));
        wait(pid);
    }),
    ("the peer is killed while we write", |log, p| {
        let pid = fork(|| {
            close(p.c).unwrap();
            thread::sleep(Duration::from_millis(60));
            kill(std::process::id().try_into().unwrap());
        });
        close(p.s).unwrap();
        let block = pattern(100_000);
        let mut last = Ok(0);
        while last.is_ok() {
            last = send(p.c, &block, libc::MSG_NOSIGNAL);
        }
        log.see("failed", matches!(last.unwrap_err().as_str(), "ECONNRESET" | "EPIPE"));
        wait(pid);
    }),
    ("a handler interrupts a reader", |log, p| {
        handle(libc::SIGUSR1, 0);
        let pester = Pester::start(libc::SIGUSR1);
        log.see("interrupted", recv(p.s, 1, 0));
        drop(pester);
    }),
    ("a handler that restarts does not", |log, p| {
        let Pair { c, s } = p;
        handle(libc::SIGUSR1, libc::SA_RESTART);
        let pester = Pester::start(libc::SIGUSR1);
        let writer = thread::spawn(move || {
            settle();
            send(c, b"x", 0).unwrap();
        });
        log.see("got", recv(s, 1, 0));
        drop(pester);
        writer.join().unwrap();
    }),
    ("every handler interrupts poll and epoll", |log, p| {
        handle(libc::SIGUSR1, libc::SA_RESTART);
        let e = epoll_create();
        epoll_ctl(e, libc::EPOLL_CTL_ADD, p.s, libc::EPOLLIN, 1).unwrap();
        let pester = Pester::start(libc::SIGUSR1);
        log.see("poll", poll(&[(p.s, libc::POLLIN)], 5000));
        log.see("epoll", epoll_wait(e, 5000));
        log.see("select", select(&[p.s], &[], 5000));
        drop(pester);
        close(e).unwrap();
    }),
    ("what is set for a signal", |log, _| {
        handle(libc::SIGUSR2, libc::SA_RESTART);
        log.see("ours", handled(libc::SIGUSR2));
        handle(libc::SIGUSR2, 0);
        log.see("ours", handled(libc::SIGUSR2));
        ignore(libc::SIGUSR2, true);
        log.see("ignored", handled(libc::SIGUSR2));
    }),
    ("a broken pipe is a signal", |log, p| {
        let pid = fork(|| {
            ignore(libc::SIGPIPE, false);
            shutdown(p.c, libc::SHUT_WR).unwrap();
            let _ = send(p.c, b"x", 0);
        });
        log.see("died of", wait(pid) & 0x7f == libc::SIGPIPE);
    }),
    ("options are what they were set to", |log, p| {
        for value in [1, 0, 1] {
            set_option(p.c, libc::IPPROTO_TCP, libc::TCP_NODELAY, value).unwrap();
            let now = option(p.c, libc::IPPROTO_TCP, libc::TCP_NODELAY).unwrap();
            log.see("nodelay", (now != 0) == (value != 0));
        }
        log.see("error", option(p.c, libc::SOL_SOCKET, libc::SO_ERROR));
        log.see("type", option(p.c, libc::SOL_SOCKET, libc::SO_TYPE));
        log.see("nonsense", option(p.c, libc::SOL_SOCKET, 9999));
        set_option(p.c, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1).unwrap();
        log.see("keepalive", option(p.c, libc::SOL_SOCKET, libc::SO_KEEPALIVE));
    }),
    ("no delay has not been asked for", |log, p| {
        log.see("client", option(p.c, libc::IPPROTO_TCP, libc::TCP_NODELAY));
        log.see("server", option(p.s, libc::IPPROTO_TCP, libc::TCP_NODELAY));
    }),
    ("addresses are the kernel's", |log, p| {
        log.see("peer", peer_port(p.c).unwrap() == port(p.s));
        log.see("own", peer_port(p.s).unwrap() == port(p.c));
    }),
    ("messages with headers", |log, p| {
        log.see("sent", sendmsg(p.c, "header", None));
        let got = recvmsg(p.s, 100, 0).unwrap();
        log.see("got", (got.text, got.flags, got.name_len, got.passed));
        log.see("nothing", recvmsg(p.s, 1, libc::MSG_DONTWAIT).map(|m| m.text));
    }),
    ("several messages at once", |log, p| {
        log.see("sent", many(p.c, &[3, 4, 5], true));
        settle();
        log.see("got", many(p.s, &[3, 4, 5], false));
    }),
    ("a descriptor is passed on", |log, p| {
        let (a, b) = socketpair();
        sendmsg(a, "take it", Some(p.s)).unwrap();
        close(p.s).unwrap();
        let got = recvmsg(b, 100, 0).unwrap();
        let s = got.passed.unwrap();
        log.see("sent", send(p.c, b"hello", 0));
        log.see("got", recv(s, 100, 0));
        log.see("sent", send(s, b"back", 0));
        log.see("got", recv(p.c, 100, 0));
        for fd in [a, b, s] {
            close(fd).unwrap();
        }
        settle();
        log.see("end", recv(p.c, 1, 0));
    }),
    ("a file is sent", |log, p| {
        let path = std::env::temp_dir().join(format!("adverb-file-{}", std::process::id()));
        std::fs::write(&path, pattern(150_000)).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let Pair { c, s } = p;
        let reader = thread::spawn(move || drain(s));
        let mut all = 0;
        while let Ok(sent @ 1..) = sendfile(c, fd, 1_000_000) {
            all += sent;
        }
        log.see("sent", all);
        close(c).unwrap();
        log.see("got", reader.join().unwrap());
    }),
    ("bytes are spliced", |log, p| {
        let (r, w) = pipe();
        write(w, b"through a pipe").unwrap();
        log.see("in", splice(r, p.c, 100));
        settle();
        log.see("out", splice(p.s, w, 100));
        log.see("got", read(r, 100));
        close(r).unwrap();
        close(w).unwrap();
    }),
    ("streams of the C library", |log, p| {
        let Pair { c, s } = p;
        let echo = thread::spawn(move || {
            let text = recv(s, 100, 0).unwrap();
            send(s, format!("{}\n", text.trim().to_uppercase()).as_bytes(), 0).unwrap();
        });
        log.see("line", through_stream(c, "a line\n"));
        echo.join().unwrap();
        log.see("kept", send(c, b"after", 0));
        log.see("got", recv(s, 10, 0));
    }),
    ("urgent bytes that are not there", |log, p| {
        log.see("none", recv(p.s, 1, libc::MSG_OOB | libc::MSG_DONTWAIT));
    }),
    ("two readers, two messages", |log, p| {
        let Pair { c, s } = p;
        let reader = move || thread::spawn(move || recv(s, 1, 0).unwrap());
        let (a, b) = (reader(), reader());
        settle();
        send(c, b"ab", 0).unwrap();
        let mut got = [a.join().unwrap(), b.join().unwrap()];
        got.sort();
        log.see("got", got);
    }),
    ("many small messages", |log, p| {
        let Pair { c, s } = p;
        let writer = thread::spawn(move || {
            for number in 0..20_000_u32 {
                send(c, &number.to_le_bytes(), 0).unwrap();
            }
            close(c).unwrap();
        });
        let mut sum = 0_u64;
        let mut count = 0;
        let mut number = [0; 4];
        while let Ok(4) = recv_into(s, &mut number, libc::MSG_WAITALL) {
            sum += u64::from(u32::from_le_bytes(number));
            count += 1;
        }
        log.see("sum", (count, sum));
        writer.join().unwrap();
    }),
    ("signals say which process has sent them, and none is lost", |log, p| {
        send(p.c, b"x", 0).unwrap();
        recv(p.s, 1, 0).unwrap();
        log.see("told", queue_signals(p.c, p.s, 3000));
    }),
    ("handlers for one signal only", |log, p| {
        send(p.c, b"x", 0).unwrap();
        recv(p.s, 1, 0).unwrap();
        handle(libc::SIGUSR2, libc::SA_RESETHAND);
        log.see("flags", handled(libc::SIGUSR2).1 & libc::SA_RESETHAND != 0);
        log.see("ran", handle_once(p.c, p.s, 500));
    }),
    ("a full connection with unread bytes hides nothing else", |log, p| {
        send(p.c, b"x", 0).unwrap();
        recv(p.s, 1, 0).unwrap();
        let (reader, writer) = pipe();
        let e = epoll_create();
        epoll_ctl(e, libc::EPOLL_CTL_ADD, p.c, libc::EPOLLOUT, 1).unwrap();
        epoll_ctl(e, libc::EPOLL_CTL_ADD, reader, libc::EPOLLIN, 2).unwrap();
        for round in 0..3 {
            while send(p.c, &[1; 10_000], libc::MSG_DONTWAIT).is_ok() {}
            send(p.s, b"unread", 0).unwrap();
            settle();
            let late = thread::spawn(move || {
                settle();
                write(writer, b"x").unwrap();
            });
            let fds = [(p.c, libc::POLLOUT), (reader, libc::POLLIN)];
            match round {
                0 => log.see("poll", poll(&fds, 3000)),
                1 => {
                    let found = select(&[reader], &[p.c], 3000);
                    log.see("select", found.map(|(read, write)| (read == [reader], write)));
                }
                _ => log.see("epoll", epoll_wait(e, 3000)),
            }
            late.join().unwrap();
            log.see("read", read(reader, 10));
        }
        close(e).unwrap();
        close(reader).unwrap();
        close(writer).unwrap();
    }),
    ("a sleeper is told of room that another has used up", |log, p| {
        send(p.c, b"x", 0).unwrap();
        recv(p.s, 1, 0).unwrap();
        let e = epoll_create();
        let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
        epoll_ctl(e, libc::EPOLL_CTL_ADD, p.c, events, 1).unwrap();
        // Shorter than the sleep of one that looks for itself in the end.
        let mut wakes = 0;
        for _ in 0..5 {
            while !epoll_wait(e, 5).unwrap().is_empty() {}
            let sleeper = thread::spawn(move || epoll_wait(e, 200).unwrap());
            settle();
            while send(p.c, &[1; 10_000], libc::MSG_DONTWAIT).is_ok() {}
            while recv_into(p.s, &mut [0; 100_000], libc::MSG_DONTWAIT).is_ok() {}
            wakes += sleeper.join().unwrap().len();
        }
        log.see("wakes", wakes > 0);
        close(e).unwrap();
    }),
];

type Plain = fn(&mut Log, c_int);

/// Cases that make their own sockets, run for IPv4 and IPv6.
const ON_NOTHING: &[(&str, Plain)] = &[
    ("no listener", |log, domain| {
        let l = listener(domain);
        let port = port(l);
        close(l).unwrap();
        let c = socket(domain, libc::SOCK_STREAM);
        log.see("refused", connect(c, domain, port));
        close(c).unwrap();
    }),
    ("not connected", |log, domain| {
        let c = socket(domain, libc::SOCK_STREAM);
        log.see("send", send(c, b"x", libc::MSG_NOSIGNAL));
        log.see("recv", recv(c, 1, 0));
        log.see("shutdown", shutdown(c, libc::SHUT_WR));
        log.see("peer", peer_port(c));
        log.see("poll", poll(&[(c, libc::POLLIN | libc::POLLOUT)], 0));
        log.see("accept", accept(c, 0));
        close(c).unwrap();
        log.see("closed", close(c));
        log.see("send", send(c, b"x", 0));
        log.see("recv", recv(c, 1, 0));
    }),
    ("connecting without waiting", |log, domain| {
        let l = listener(domain);
        let c = socket(domain, libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
        let started = connect(c, domain, port(l));
        log.see("started", matches!(&started, Err(e) if e == "EINPROGRESS") || started.is_ok());
        log.see("writable", poll(&[(c, libc::POLLOUT)], 1000));
        log.see("error", option(c, libc::SOL_SOCKET, libc::SO_ERROR));
        log.see("again", connect(c, domain, port(l)).is_ok());
        log.see("sent", send(c, b"first", 0));
        let s = c_int::try_from(accept(l, libc::SOCK_NONBLOCK).unwrap()).unwrap();
        settle();
        log.see("got", recv(s, 10, 0));
        log.see("nothing", recv(s, 10, 0));
        send(s, b"answer", 0).unwrap();
        settle();
        log.see("got", recv(c, 10, 0));
        for fd in [l, c, s] {
            close(fd).unwrap();
        }
    }),
    ("connecting under an epoll", |log, domain| {
        let l = listener(domain);
        let e = epoll_create();
        let c = socket(domain, libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
        let _ = connect(c, domain, port(l));
        let all = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
        epoll_ctl(e, libc::EPOLL_CTL_ADD, c, all, 5).unwrap();
        log.see("out", epoll_wait(e, 1000));
        let s = c_int::try_from(accept(l, 0).unwrap()).unwrap();
        send(c, b"hello", 0).unwrap();
        log.see("got", recv(s, 10, 0));
        send(s, b"world", 0).unwrap();
        settle();
        let saw = epoll_wait(e, 1000).unwrap();
        log.see("in", saw.iter().any(|(data, mask)| *data == 5 && mask & 1 != 0));
        log.see("got", recv(c, 10, 0));
        for fd in [l, e, c, s] {
            close(fd).unwrap();
        }
    }),
    ("an edge before an accept", |log, domain| {
        let (e, l) = (epoll_create(), listener(domain));
        let c = socket(domain, libc::SOCK_STREAM);
        connect(c, domain, port(l)).unwrap();
        set_nonblocking(c, true);
        let all = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        epoll_ctl(e, libc::EPOLL_CTL_ADD, c, all, 1).unwrap();
        log.see("room", epoll_wait(e, 1000));
        log.see("once", epoll_wait(e, 20));
        log.see("sent", send(c, b"early", 0));
        log.see("nothing new", epoll_wait(e, 20));
        epoll_ctl(e, libc::EPOLL_CTL_MOD, c, all, 2).unwrap();
        log.see("asked again", epoll_wait(e, 1000));
        log.see("once", epoll_wait(e, 20));
        let s = c_int::try_from(accept(l, 0).unwrap()).unwrap();
        log.see("got", recv(s, 10, 0));
        send(s, b"answer", 0).unwrap();
        let (_, seen) = epoll_wait(e, 1000).unwrap()[0];
        log.see("answer", seen & libc::EPOLLIN.unsigned_abs() != 0);
        log.see("got", recv(c, 10, 0));
        for fd in [e, l, c, s] {
            close(fd).unwrap();
        }
    }),
    ("the server speaks first", |log, domain| {
        let l = listener(domain);
        let address = port(l);
        let server = thread::spawn(move || {
            let s = c_int::try_from(accept(l, 0).unwrap()).unwrap();
            for _ in 0..200 {
                send(s, b"banner ", 0).unwrap();
            }
            let name = recv(s, 100, 0).unwrap();
            send(s, name.as_bytes(), 0).unwrap();
            close(s).unwrap();
            close(l).unwrap();
        });
        let c = socket(domain, libc::SOCK_STREAM);
        connect(c, domain, address).unwrap();
        let mut buffer = [0; 1400];
        log.see("banner", recv_into(c, &mut buffer, libc::MSG_WAITALL));
        log.see("right", buffer.chunks(7).all(|word| word == b"banner "));
        send(c, b"name", 0).unwrap();
        log.see("name", recv(c, 100, 0));
        log.see("end", recv(c, 100, 0));
        server.join().unwrap();
        close(c).unwrap();
    }),
    ("a backlog of connections", |log, domain| {
        let l = listener(domain);
        let clients: Vec<c_int> = (0..50)
            .map(|n: u8| {
                let c = socket(domain, libc::SOCK_STREAM);
                connect(c, domain, port(l)).unwrap();
                send(c, &[n], 0).unwrap();
                c
            })
            .collect();
        let servers: Vec<c_int> =
            clients.iter().map(|_| accept(l, 0).unwrap().try_into().unwrap()).collect();
        let mut seen: Vec<String> = servers.iter().map(|s| recv(*s, 1, 0).unwrap()).collect();
        seen.sort();
        log.see("all", seen == (0..50).map(|n: u8| char::from(n).to_string()).collect::<Vec<_>>());
        for fd in clients.into_iter().chain(servers) {
            close(fd).unwrap();
        }
        close(l).unwrap();
    }),
    ("nothing to accept", |log, domain| {
        let l = listener(domain);
        set_nonblocking(l, true);
        log.see("none", accept(l, 0));
        log.see("poll", poll(&[(l, libc::POLLIN)], 5));
        let c = socket(domain, libc::SOCK_STREAM);
        connect(c, domain, port(l)).unwrap();
        log.see("poll", poll(&[(l, libc::POLLIN)], 1000));
        let s = accept(l, 0).unwrap();
        log.see("inherits nothing", fcntl(s.try_into().unwrap(), libc::F_GETFL, 0).unwrap() & 2048);
        for fd in [l, c, s.try_into().unwrap()] {
            close(fd).unwrap();
        }
    }),
    ("an acceptor is woken", |log, domain| {
        let l = listener(domain);
        let acceptor = thread::spawn(move || accept(l, 0));
        settle();
        let c = socket(domain, libc::SOCK_STREAM);
        connect(c, domain, port(l)).unwrap();
        let s = acceptor.join().unwrap();
        log.see("accepted", s.is_ok());
        for fd in [l, c, s.unwrap().try_into().unwrap()] {
            close(fd).unwrap();
        }
    }),
    ("a child per connection", |log, domain| {
        let l = listener(domain);
        let address = port(l);
        let server = fork(|| {
            for _ in 0..5 {
                let s = c_int::try_from(accept(l, 0).unwrap()).unwrap();
                let pid = fork(|| {
                    let text = recv(s, 100, 0).unwrap();
                    send(s, format!("<{text}>").as_bytes(), 0).unwrap();
                });
                close(s).unwrap();
                wait(pid);
            }
        });
        close(l).unwrap();
        for number in 0..5 {
            let c = socket(domain, libc::SOCK_STREAM);
            connect(c, domain, address).unwrap();
            send(c, format!("{number}").as_bytes(), 0).unwrap();
            log.see("got", recv(c, 100, 0));
            log.see("end", recv(c, 100, 0));
            close(c).unwrap();
        }
        log.see("status", wait(server));
    }),
    ("children that accept", |log, domain| {
        let l = listener(domain);
        let address = port(l);
        let workers: Vec<libc::pid_t> = (0..3)
            .map(|_| {
                fork(|| {
                    for _ in 0..4 {
                        let s = c_int::try_from(accept(l, 0).unwrap()).unwrap();
                        let text = recv(s, 100, 0).unwrap();
                        send(s, text.as_bytes(), 0).unwrap();
                        close(s).unwrap();
                    }
                })
            })
            .collect();
        close(l).unwrap();
        let mut right = 0;
        for number in 0..12 {
            let c = socket(domain, libc::SOCK_STREAM);
            connect(c, domain, address).unwrap();
            let text = format!("request {number}");
            send(c, text.as_bytes(), 0).unwrap();
            right += i32::from(recv(c, 100, 0) == Ok(text));
            close(c).unwrap();
        }
        log.see("right", right);
        for pid in workers {
            log.see("status", wait(pid));
        }
    }),
    ("numbers are used again", |log, domain| {
        let mut right = 0;
        for round in 0..200_u32 {
            let p = Pair::new(domain);
            let text = round.to_string();
            send(p.c, text.as_bytes(), 0).unwrap();
            right += i32::from(recv(p.s, 10, 0) == Ok(text));
            if round % 2 == 0 {
                shutdown(p.c, libc::SHUT_WR).unwrap();
                right += i32::from(recv(p.s, 1, 0) == Ok(String::new()));
            }
            p.close();
        }
        log.see("right", right);
    }),
    ("many connections at once", |log, domain| {
        let e = epoll_create();
        let pairs: Vec<Pair> = (0..200).map(|_| Pair::new(domain)).collect();
        for (number, p) in (0..).zip(&pairs) {
            epoll_ctl(e, libc::EPOLL_CTL_ADD, p.s, libc::EPOLLIN, number).unwrap();
        }
        for p in &pairs {
            send(p.c, b"x", 0).unwrap();
        }
        let mut seen = std::collections::BTreeSet::new();
        while seen.len() < pairs.len() {
            let found = epoll_wait(e, 1000).unwrap();
            assert!(!found.is_empty(), "{} of {}", seen.len(), pairs.len());
            for (number, _) in found {
                let number = usize::try_from(number).unwrap();
                recv(pairs[number].s, 1, 0).unwrap();
                seen.insert(number);
            }
        }
        log.see("all", seen.len());
        log.see("none", epoll_wait(e, 5));
        for p in pairs {
            p.close();
        }
        close(e).unwrap();
    }),
    ("datagrams", |log, domain| {
        let (a, b) = (socket(domain, libc::SOCK_DGRAM), socket(domain, libc::SOCK_DGRAM));
        bind(a, domain, 0).unwrap();
        bind(b, domain, 0).unwrap();
        log.see("connect", connect(a, domain, port(b)));
        log.see("sent", send(a, b"datagram", 0));
        log.see("sent", send(a, b"", 0));
        log.see("sent", send(a, b"long one", 0));
        settle();
        log.see("got", recv(b, 100, 0));
        log.see("empty", recv(b, 100, 0));
        let cut = recvmsg(b, 4, 0).unwrap();
        log.see("cut", (cut.text, cut.flags & libc::MSG_TRUNC != 0));
        log.see("nothing", recv(b, 100, libc::MSG_DONTWAIT));
        send(a, b"whole length", 0).unwrap();
        settle();
        let mut four = [0; 4];
        log.see("length", recv_into(b, &mut four, libc::MSG_TRUNC));
        let limit = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
        set_option(b, libc::SOL_SOCKET, libc::SO_RCVTIMEO, limit).unwrap();
        log.see("in time", recv(b, 100, 0));
        log.see("too long", send(a, &vec![0; 100_000], 0));
        close(b).unwrap();
        settle();
        log.see("sent", send(a, b"x", 0).is_ok());
        settle();
        log.see("refused", recv(a, 1, libc::MSG_DONTWAIT));
        close(a).unwrap();
    }),
    ("a datagram wakes", |log, domain| {
        let (a, b) = (socket(domain, libc::SOCK_DGRAM), socket(domain, libc::SOCK_DGRAM));
        bind(b, domain, 0).unwrap();
        connect(a, domain, port(b)).unwrap();
        for pause in [0, 1, 30] {
            let reader = thread::spawn(move || recv(b, 100, 0));
            thread::sleep(Duration::from_millis(pause));
            send(a, b"wake", 0).unwrap();
            log.see("got", reader.join().unwrap());
        }
        log.see("many", many(a, &[10, 20, 30], true));
        settle();
        log.see("many", many(b, &[100, 100, 100], false));
        handle(libc::SIGUSR1, 0);
        let pester = Pester::start(libc::SIGUSR1);
        log.see("interrupted", recv(b, 1, 0));
        drop(pester);
        close(a).unwrap();
        close(b).unwrap();
    }),
    ("room is reported in spite of bytes that are not read", |log, domain| {
        let l = listener(domain);
        let c = socket(domain, libc::SOCK_STREAM);
        connect(c, domain, port(l)).unwrap();
        while send(c, &[1; 10_000], libc::MSG_DONTWAIT).is_ok() {}
        settle();
        while send(c, &[1; 10_000], libc::MSG_DONTWAIT).is_ok() {}
        let s = c_int::try_from(accept(l, 0).unwrap()).unwrap();
        let e = epoll_create();
        epoll_ctl(e, libc::EPOLL_CTL_ADD, s, libc::EPOLLOUT, 1).unwrap();
        // Shorter than the sleep of one that looks for itself in the end.
        let mut wakes = 0;
        for _ in 0..5 {
            while send(s, &[1; 10_000], libc::MSG_DONTWAIT).is_ok() {}
            settle();
            let sleeper = thread::spawn(move || epoll_wait(e, 200).unwrap());
            settle();
            while recv_into(c, &mut [0; 100_000], libc::MSG_DONTWAIT).is_ok() {}
            wakes += sleeper.join().unwrap().len();
        }
        // The first may be about what was so before.
        log.see("wakes", wakes > 1);
        for fd in [e, s, c, l] {
            close(fd).unwrap();
        }
    }),
];

/// Runs its share of the cases, and prints what they saw.
pub(crate) fn run(share: &mut Share) {
    for (family, domain) in [("v4", libc::AF_INET), ("v6", libc::AF_INET6)] {
        for (name, case) in ON_A_CONNECTION.iter().chain(ends::ON_A_CONNECTION) {
            for (way, swap) in [("", false), (" the other way", true)] {
                if !share.has_next() {
                    continue;
                }
                let p = Pair::new(domain);
                let p = if swap { Pair { c: p.s, s: p.c } } else { p };
                let mut log = Log::default();
                case(&mut log, p);
                p.close();
                println!("{family} {name}{way} => {}", log.0);
            }
        }
        for (name, case) in ON_NOTHING.iter().chain(ends::ON_NOTHING) {
            if !share.has_next() {
                continue;
            }
            let mut log = Log::default();
            case(&mut log, domain);
            println!("{family} {name} => {}", log.0);
        }
    }
}
