//! Cases about ends, resets, and calls that few programs make.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::ffi::c_int;
use std::thread;
use std::time::Duration;

use super::call::*;
use super::cases::{Case, Log, Pair, listener};

/// Messages both ways, so that both ends have rings where there are any, and no acknowledgement is left out.
fn warm(Pair { c, s }: Pair) {
    for (from, to) in [(c, s), (s, c), (c, s), (s, c)] {
        send(from, b"w", 0).unwrap();
        recv(to, 1, 0).unwrap();
    }
    settle();
    settle();
}

/// Two sockets for datagrams that are connected to each other, after so many that they have mailboxes where there are any.
fn datagrams(domain: c_int) -> (c_int, c_int) {
    let (a, b) = (socket(domain, libc::SOCK_DGRAM), socket(domain, libc::SOCK_DGRAM));
    bind(a, domain, 0).unwrap();
    bind(b, domain, 0).unwrap();
    connect(a, domain, port(b)).unwrap();
    connect(b, domain, port(a)).unwrap();
    for _ in 0..20 {
        for (from, to) in [(a, b), (b, a)] {
            send(from, b"w", 0).unwrap();
            recv(to, 1, 0).unwrap();
        }
    }
    (a, b)
}

/// Everything that `poll`, `epoll` and `select` say of a connection.
fn events(fd: c_int) -> (i16, Vec<u32>, (bool, bool)) {
    let all = libc::POLLIN
        | libc::POLLOUT
        | libc::POLLRDHUP
        | libc::POLLPRI
        | libc::POLLRDNORM
        | libc::POLLWRNORM;
    let e = epoll_create();
    epoll_ctl(e, libc::EPOLL_CTL_ADD, fd, c_int::from(all), 1).unwrap();
    let found = epoll_wait(e, 0).unwrap().into_iter().map(|(_, events)| events).collect();
    close(e).unwrap();
    let polled = poll(&[(fd, all)], 0).unwrap()[0];
    let (read, written) = select(&[fd], &[fd], 0).unwrap();
    (polled, found, (read.is_empty(), written.is_empty()))
}

fn now(fd: c_int) -> Result<String, String> {
    recv(fd, 10, libc::MSG_DONTWAIT)
}

fn say(fd: c_int, text: &[u8]) -> Result<i64, String> {
    send(fd, text, libc::MSG_NOSIGNAL)
}

fn error(fd: c_int) -> Result<i64, String> {
    option(fd, libc::SOL_SOCKET, libc::SO_ERROR)
}

/// `SO_LINGER` for no time.
fn abort(fd: c_int) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, linger).unwrap();
    close(fd).unwrap();
}

/// What an edge-triggered instance reports now, and what it reports after that.
fn edges(e: c_int) -> (Vec<u32>, usize) {
    let found = epoll_wait(e, 0).unwrap().into_iter().map(|(_, events)| events).collect();
    (found, epoll_wait(e, 0).unwrap().len())
}

pub(crate) const ON_A_CONNECTION: &[(&str, Case)] = &[
    ("what is sent to an end that is shut both ways resets it", |log, p| {
        warm(p);
        shutdown(p.c, libc::SHUT_RDWR).unwrap();
        settle();
        log.see("shut", (events(p.c), events(p.s)));
        log.see("sent", say(p.s, b"a"));
        settle();
        log.see("events", (events(p.c), events(p.s)));
        log.see("got", (now(p.c), now(p.s)));
        log.see("sent", (say(p.s, b"b"), say(p.c, b"c")));
        log.see("later", (events(p.c), events(p.s)));
        log.see("errors", (error(p.c), error(p.s)));
        log.see("states", (tcp_state(p.c), tcp_state(p.s)));
    }),
    ("a peer that closes with bytes unread", |log, p| {
        warm(p);
        send(p.s, b"left", 0).unwrap();
        send(p.c, b"unread", 0).unwrap();
        settle();
        close(p.s).unwrap();
        settle();
        log.see("events", events(p.c));
        log.see("got", (now(p.c), now(p.c), now(p.c)));
        log.see("sent", say(p.c, b"x"));
        log.see("events", events(p.c));
        log.see("error", error(p.c));
    }),
    ("a reset that is asked for", |log, p| {
        warm(p);
        abort(p.s);
        settle();
        log.see("events", events(p.c));
        log.see("errors", (error(p.c), error(p.c)));
        log.see("events", events(p.c));
        log.see("got", now(p.c));
        log.see("sent", say(p.c, b"x"));
    }),
    ("a reset after the peer's last word", |log, p| {
        warm(p);
        shutdown(p.s, libc::SHUT_WR).unwrap();
        settle();
        log.see("end", now(p.c));
        send(p.c, b"unread", 0).unwrap();
        settle();
        close(p.s).unwrap();
        settle();
        log.see("events", events(p.c));
        log.see("error", error(p.c));
        log.see("got", now(p.c));
        log.see("sent", say(p.c, b"x"));
    }),
    ("a send after the peer has closed, and nothing", |log, p| {
        warm(p);
        close(p.s).unwrap();
        settle();
        log.see("nothing", send(p.c, b"", libc::MSG_NOSIGNAL));
        log.see("sent", say(p.c, b"x"));
        settle();
        log.see("events", events(p.c));
        log.see("nothing", send(p.c, b"", libc::MSG_NOSIGNAL));
        log.see("got", (now(p.c), error(p.c)));
    }),
    ("sleepers are told of a reset", |log, p| {
        warm(p);
        let Pair { c, s } = p;
        send(c, b"unread", 0).unwrap();
        let e = epoll_create();
        epoll_ctl(e, libc::EPOLL_CTL_ADD, c, libc::EPOLLIN, 1).unwrap();
        let waiter = thread::spawn(move || epoll_wait(e, 5000).unwrap().len());
        let poller = thread::spawn(move || poll(&[(c, libc::POLLIN)], 5000).unwrap()[0] != 0);
        settle();
        close(s).unwrap();
        log.see("woken", (waiter.join().unwrap(), poller.join().unwrap()));
        settle();
        log.see("events", (epoll_wait(e, 0), poll(&[(c, 0)], 0)));
        close(e).unwrap();
    }),
    ("an end is an edge once", |log, p| {
        warm(p);
        let (input, edge) = (libc::EPOLLIN, libc::EPOLLET);
        let (plain, all) = (epoll_create(), epoll_create());
        epoll_ctl(plain, libc::EPOLL_CTL_ADD, p.c, input | edge, 1).unwrap();
        let every = input | libc::EPOLLOUT | libc::EPOLLRDHUP | edge;
        epoll_ctl(all, libc::EPOLL_CTL_ADD, p.c, every, 1).unwrap();
        log.see("before", (edges(plain), edges(all)));
        shutdown(p.s, libc::SHUT_WR).unwrap();
        settle();
        log.see("end", (edges(plain), edges(all)));
        close(plain).unwrap();
        close(all).unwrap();
    }),
    ("a reset is an edge once", |log, p| {
        let e = epoll_create();
        let every = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        epoll_ctl(e, libc::EPOLL_CTL_ADD, p.c, every, 1).unwrap();
        log.see("before", edges(e));
        abort(p.s);
        settle();
        log.see("reset", edges(e));
        close(e).unwrap();
    }),
    ("states and names of what is over", |log, p| {
        warm(p);
        log.see("open", (tcp_state(p.c), tcp_state(p.s)));
        shutdown(p.c, libc::SHUT_WR).unwrap();
        settle();
        settle();
        log.see("half", (tcp_state(p.c), tcp_state(p.s)));
        shutdown(p.s, libc::SHUT_WR).unwrap();
        settle();
        settle();
        log.see("over", tcp_state(p.s));
        log.see("peer", (peer_port(p.c), peer_port(p.s)));
        log.see("again", (shutdown(p.c, libc::SHUT_RDWR), shutdown(p.s, libc::SHUT_WR)));
    }),
    ("peeking at all of it", |log, p| {
        warm(p);
        send(p.c, b"abc", 0).unwrap();
        let Pair { c, s } = p;
        let writer = thread::spawn(move || {
            settle();
            send(c, b"def", 0).unwrap();
        });
        log.see("peeked", recv(s, 6, libc::MSG_PEEK | libc::MSG_WAITALL));
        writer.join().unwrap();
        let limit = libc::timeval { tv_sec: 0, tv_usec: 40_000 };
        set_option(s, libc::SOL_SOCKET, libc::SO_RCVTIMEO, limit).unwrap();
        log.see("limit", recv(s, 9, libc::MSG_PEEK | libc::MSG_WAITALL));
        let mut buffer = *b"....";
        log.see("len", recv_into(s, &mut buffer, libc::MSG_PEEK | libc::MSG_TRUNC));
        log.see("untouched", buffer);
        shutdown(c, libc::SHUT_WR).unwrap();
        log.see("end", recv(s, 9, libc::MSG_PEEK | libc::MSG_WAITALL));
        log.see("all", recv(s, 9, libc::MSG_WAITALL));
    }),
    ("urgent bytes", |log, p| {
        warm(p);
        log.see("sent", send(p.c, b"ab!", libc::MSG_OOB));
        settle();
        log.see("events", events(p.s));
        log.see("before", now(p.s));
        log.see("urgent", recv(p.s, 1, libc::MSG_OOB));
        log.see("none", recv(p.s, 1, libc::MSG_OOB));
        send(p.c, b"after", 0).unwrap();
        send(p.s, b"back", 0).unwrap();
        settle();
        log.see("after", (now(p.s), now(p.c)));
    }),
    ("urgent bytes behind others that were not read", |log, p| {
        warm(p);
        send(p.c, b"ab", 0).unwrap();
        log.see("sent", send(p.c, b"!", libc::MSG_OOB));
        settle();
        log.see("events", events(p.s));
        log.see("urgent", recv(p.s, 1, libc::MSG_OOB));
        log.see("before", now(p.s));
        log.see("none", recv(p.s, 1, libc::MSG_OOB));
    }),
    ("a least number of bytes", |log, p| {
        warm(p);
        set_option(p.s, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 4).unwrap();
        send(p.c, b"ab", 0).unwrap();
        settle();
        log.see("few", events(p.s));
        let Pair { c, s } = p;
        let writer = thread::spawn(move || {
            settle();
            send(c, b"cdef", 0).unwrap();
        });
        log.see("got", recv(s, 10, 0));
        writer.join().unwrap();
        send(p.c, b"gh", 0).unwrap();
        settle();
        log.see("now", now(p.s));
        set_option(p.s, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1).unwrap();
        send(p.c, b"i", 0).unwrap();
        log.see("one", recv(p.s, 10, 0));
    }),
    ("where peeks are", |log, p| {
        warm(p);
        log.see("set", set_option(p.s, libc::SOL_SOCKET, libc::SO_PEEK_OFF, 0));
        send(p.c, b"abcdef", 0).unwrap();
        settle();
        let peek = || recv(p.s, 2, libc::MSG_PEEK);
        log.see("peeked", (peek(), peek()));
        log.see("at", option(p.s, libc::SOL_SOCKET, libc::SO_PEEK_OFF));
        log.see("got", (recv(p.s, 1, 0), peek()));
    }),
    ("signals of a connection", |log, p| {
        warm(p);
        handle(libc::SIGIO, libc::SA_RESTART);
        let me = c_int::try_from(std::process::id()).unwrap();
        fcntl(p.s, libc::F_SETOWN, me).unwrap();
        fcntl(p.s, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK).unwrap();
        let before = handled(libc::SIGIO).1;
        send(p.c, b"x", 0).unwrap();
        settle();
        log.see("signal", handled(libc::SIGIO).1 > before);
        log.see("got", now(p.s));
    }),
    ("connected to no peer, and again", |log, p| {
        warm(p);
        send(p.c, b"unread", 0).unwrap();
        settle();
        log.see("none", unconnect(p.c));
        settle();
        log.see("peer", (now(p.s), now(p.s), say(p.s, b"x")));
        log.see("own", (peer_port(p.c), say(p.c, b"x")));
        let l = listener(libc::AF_INET);
        let c = socket(libc::AF_INET, libc::SOCK_STREAM);
        connect(c, libc::AF_INET, port(l)).unwrap();
        let s = accept(l, 0).unwrap().try_into().unwrap();
        warm(Pair { c, s });
        unconnect(c).unwrap();
        log.see("again", connect(c, libc::AF_INET, port(l)));
        let new = accept(l, 0).unwrap().try_into().unwrap();
        send(c, b"again", 0).unwrap();
        send(new, b"back", 0).unwrap();
        log.see("got", (recv(new, 10, 0), recv(c, 10, 0)));
        for fd in [new, c, s, l] {
            close(fd).unwrap();
        }
    }),
    ("flags that mean nothing", |log, p| {
        warm(p);
        for flag in [0x400, 0x200, 0x10, 0x1000, 0x80_0000] {
            log.see("sent", send(p.c, b"abc", flag));
            settle();
            log.see("got", now(p.s));
        }
    }),
    ("what a connection is not told", |log, p| {
        warm(p);
        log.see("fast", send(p.c, b"abc", libc::MSG_FASTOPEN));
        for kind in [2900, libc::SCM_RIGHTS] {
            log.see("beside", send_beside(p.c, "abc", Some((kind, 0))));
            settle();
            log.see("got", now(p.s));
        }
        let entitled = without_rights();
        log.see("not allowed", send_beside(p.c, "abc", Some((libc::SO_MARK, 1))));
        with_rights(entitled);
        settle();
        log.see("got", now(p.s));
    }),
    ("a reset that is heard of by a send with control data", |log, p| {
        warm(p);
        abort(p.s);
        settle();
        log.see("beside", send_beside(p.c, "abc", Some((libc::SCM_RIGHTS, p.c))));
        log.see("error", error(p.c));
        log.see("sent", say(p.c, b"x"));
    }),
    ("a reset after an end that is heard of by a send with control data", |log, p| {
        warm(p);
        shutdown(p.s, libc::SHUT_WR).unwrap();
        settle();
        log.see("end", now(p.c));
        send(p.c, b"unread", 0).unwrap();
        settle();
        close(p.s).unwrap();
        settle();
        log.see("beside", send_beside(p.c, "abc", Some((libc::SCM_RIGHTS, p.c))));
        log.see("error", error(p.c));
        log.see("sent", say(p.c, b"x"));
    }),
    ("more descriptors than there can be", |log, p| {
        warm(p);
        send(p.c, b"x", 0).unwrap();
        settle();
        for count in [1024, 4096, 1 << 16, 1 << 30] {
            log.see("found", select_far(p.s, count));
        }
    }),
    ("no position", |log, p| {
        warm(p);
        log.see("moved", at_no_position(p.c, p.s));
        log.see("left", now(p.s));
    }),
    ("small buffers are what was asked for", |log, p| {
        for name in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
            log.see("set", set_option(p.s, libc::SOL_SOCKET, name, 4096));
            log.see("is", option(p.s, libc::SOL_SOCKET, name));
        }
    }),
];

type Plain = fn(&mut Log, c_int);

pub(crate) const ON_NOTHING: &[(&str, Plain)] = &[
    ("accepting with nonsense", |log, domain| {
        let l = listener(domain);
        log.see("flags", accept(l, 1));
        close(l).unwrap();
    }),
    ("what a listener has, connections have", |log, domain| {
        let l = listener(domain);
        set_option(l, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 3).unwrap();
        let c = socket(domain, libc::SOCK_STREAM);
        connect(c, domain, port(l)).unwrap();
        let s = accept(l, 0).unwrap().try_into().unwrap();
        send(c, b"ab", 0).unwrap();
        settle();
        log.see("few", events(s));
        send(c, b"c", 0).unwrap();
        settle();
        log.see("enough", events(s));
        log.see("got", now(s));
        for fd in [s, c, l] {
            close(fd).unwrap();
        }
    }),
    ("a connection that has just arrived", |log, domain| {
        let l = listener(domain);
        let c = socket(domain, libc::SOCK_STREAM);
        set_nonblocking(c, true);
        log.see("on its way", connect(c, domain, port(l)));
        settle();
        log.see("there", events(c));
        log.see("again", (connect(c, domain, port(l)), connect(c, domain, port(l))));
        close(c).unwrap();
        close(l).unwrap();
    }),
    ("what has ended a connection is none of the next one's business", |log, domain| {
        let l = listener(domain);
        let c = socket(domain, libc::SOCK_STREAM);
        set_nonblocking(c, true);
        log.see("on its way", connect(c, domain, port(l)));
        let s = accept(l, 0).unwrap().try_into().unwrap();
        send(s, b"few", 0).unwrap();
        settle();
        abort(s);
        settle();
        set_nonblocking(c, false);
        log.see("got", recv(c, 10, libc::MSG_WAITALL));
        let _ = connect(c, domain, port(l));
        log.see("again", connect(c, domain, port(l)));
        let s = accept(l, 0).unwrap().try_into().unwrap();
        send(s, b"more", 0).unwrap();
        log.see("got", recv(c, 10, 0));
        for fd in [s, c, l] {
            close(fd).unwrap();
        }
    }),
    ("a listener goes with what waits in it", |log, domain| {
        let l = listener(domain);
        let c = socket(domain, libc::SOCK_STREAM);
        connect(c, domain, port(l)).unwrap();
        send(c, b"abc", 0).unwrap();
        close(l).unwrap();
        settle();
        log.see("events", events(c));
        log.see("got", (now(c), say(c, b"x")));
        close(c).unwrap();
    }),
    ("datagrams are edges, each of them", |log, domain| {
        let (a, b) = datagrams(domain);
        let e = epoll_create();
        epoll_ctl(e, libc::EPOLL_CTL_ADD, b, libc::EPOLLIN | libc::EPOLLET, 1).unwrap();
        for text in [&b"1"[..], b"2", b"3"] {
            send(a, text, 0).unwrap();
            settle();
            log.see("edge", edges(e));
        }
        log.see("got", (now(b), now(b), now(b), now(b)));
        close(e).unwrap();
        close(a).unwrap();
        close(b).unwrap();
    }),
    ("datagrams are spliced", |log, domain| {
        let (a, b) = datagrams(domain);
        let (from, to) = pipe();
        send(a, b"spliced", 0).unwrap();
        thread::sleep(Duration::from_millis(30));
        log.see("in", splice(b, to, 100));
        log.see("out", read(from, 100));
        for fd in [a, b, from, to] {
            close(fd).unwrap();
        }
    }),
];
