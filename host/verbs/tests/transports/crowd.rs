//! Multicast groups of several processes, over each path: each member gets each message once.
//!
//! The other processes are this test program, started again to run nothing but [`listener`].

use crate::alone::{alone, program};
use crate::datagram::{QKEY, Side};
use crate::pair::{FOREVER, eventually, wait};
use crate::path::Path;
use crate::talker::{Talker, reply};
use adverb_sys::process;
use adverb_verbs::{Ah, AhAttr, Buf, Gid, Memory, Qpn, Work};
use std::process::Command;
use std::time::Instant;

/// Set in the environment of a process that listens; and which path is its own.
const VARIABLE: &str = "ADVERB_TEST_CROWD";
const OWN_PATH: &str = "ADVERB_TEST_CROWD_PATH";
const PATHS: [Path; 3] = [Path::Ring, Path::SharedMemory, Path::Udp];
const GROUP: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 7, 8, 9]);
/// Receives of a listener: more than there are messages.
const RECEIVES: usize = 120;

fn way(side: &Side) -> Ah {
    side.pd.create_ah(&AhAttr::new(GROUP)).expect("a way")
}

/// Not a test: the other process, if the environment says that this is it.
#[test]
#[ignore = "the child of another test"]
fn listener() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let path = std::env::var(OWN_PATH).expect("a path");
    let path = PATHS.into_iter().find(|known| format!("{known:?}") == path).expect("a path");
    let side = Side::of(path.context(), QKEY);
    (0..RECEIVES).for_each(|_| side.recv(16));
    let mut heard = Vec::new();
    let listen = |wanted: usize, heard: &mut Vec<String>| {
        let end = Instant::now() + FOREVER;
        while heard.len() < wanted {
            let Some(done) = side.cq.next().expect("no overrun") else {
                assert!(Instant::now() < end, "{wanted} are wanted, and {heard:?} were heard");
                std::thread::yield_now();
                continue;
            };
            let wc = done.ok().expect("success");
            let len = usize::try_from(wc.wc.byte_len).expect("small");
            let buffer: Option<Buf> = wc.memory.and_then(Memory::into_buf);
            let buffer = buffer.expect("a buffer");
            let text = buffer.get(40..len).map(String::from_utf8_lossy).expect("a message");
            heard.push(text.into_owned());
            side.recv(16);
        }
    };
    for line in std::io::stdin().lines() {
        let line = line.expect("text");
        match *line.split(' ').collect::<Vec<_>>() {
            ["join"] => side.qp.attach_mcast(GROUP).expect("attached"),
            ["leave"] => side.qp.detach_mcast(GROUP).expect("it was attached"),
            ["hear", count] => listen(count.parse().expect("a number"), &mut heard),
            ["quiet"] => assert!(side.is_quiet()),
            ["packets"] => {
                reply(&side.context.counters().rcvd_pkts.to_string());
                continue;
            }
            _ => panic!("an unknown command: {line}"),
        }
        reply(&format!("done {}", std::mem::take(&mut heard).join(" ")));
    }
}

struct Listener(Talker);

impl Listener {
    fn start(path: Path) -> Self {
        let mut command = Command::new(program());
        command.env(OWN_PATH, format!("{path:?}"));
        let mut listener = Self(Talker::start(command, "crowd::listener", VARIABLE));
        listener.does("join");
        listener
    }

    /// Has it do something; says what it has heard meanwhile.
    fn does(&mut self, what: &str) -> Vec<String> {
        let answer = self.0.ask(what);
        let heard = answer.strip_prefix("done").expect("it is done");
        heard.split_whitespace().map(str::to_owned).collect()
    }

    fn packets(&mut self) -> usize {
        self.0.ask("packets").parse().expect("a number")
    }
}

/// A process that sends and does not listen.
struct Speaker {
    side: Side,
    ah: Ah,
}

impl Speaker {
    fn new(path: Path) -> Self {
        let side = Side::of(path.context(), QKEY);
        let ah = way(&side);
        Self { side, ah }
    }

    fn says(&self, text: &str) {
        self.side.send(text.as_bytes(), &self.ah, Qpn::MULTICAST, QKEY);
    }
}

/// Goal: rings and packets lead to the same: each process hears each message once and each sender's in
/// order, and no packet is taken from a neighbour.
#[test]
fn everybody_hears_each_message_once_whatever_the_paths_are() {
    alone("crowd::everybody_hears_each_message_once_whatever_the_paths_are", || {
        const EACH: usize = 10;
        let mut listeners = PATHS.map(Listener::start);
        let here = PATHS.map(|path| Side::of(path.context(), QKEY));
        for side in &here {
            side.qp.attach_mcast(GROUP).expect("attached");
            (0..4 * EACH).for_each(|_| side.recv(16));
        }
        let speakers = PATHS.map(Speaker::new);
        // Listeners may speak, and hear themselves.
        for (side, path) in here.iter().zip(PATHS) {
            let work = Work::send_to(side.buffer(b"own-0"), &way(side), Qpn::MULTICAST, QKEY);
            side.qp.post(work.wr_id(7)).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        }
        for n in 0..EACH {
            for (speaker, path) in speakers.iter().zip(PATHS) {
                speaker.says(&format!("{path:?}-{n}"));
            }
        }
        let all = PATHS.len() * (EACH + 1);
        let whole = |mut heard: Vec<String>, whose: Path| {
            for path in PATHS {
                let expected = (0..EACH).map(|n| format!("{path:?}-{n}"));
                let prefix = format!("{path:?}-");
                let found = heard.iter().filter(|text| text.starts_with(&prefix)).cloned();
                assert!(found.eq(expected), "{whose:?} has heard {heard:?}");
            }
            heard.retain(|text| text == "own-0");
            assert_eq!(heard.len(), PATHS.len());
        };
        for (listener, path) in listeners.iter_mut().zip(PATHS) {
            whole(listener.does(&format!("hear {all}")), path);
            assert!(listener.does("quiet").is_empty());
            // Of senders of packets alone, or all.
            let expected = if path == Path::Udp { all } else { EACH + 1 };
            assert_eq!(listener.packets(), expected, "{path:?}");
        }
        for (side, path) in here.iter().zip(PATHS) {
            let mut heard = Vec::new();
            while heard.len() < all {
                let done = wait(&side.cq).ok().expect("success");
                if done.wc.wr_id == 7 {
                    continue; // Its own has left.
                }
                let len = usize::try_from(done.wc.byte_len).expect("small");
                let buffer = done.memory.and_then(Memory::into_buf).expect("a buffer");
                let text = buffer.get(40..len).map(String::from_utf8_lossy).expect("a message");
                heard.push(text.into_owned());
            }
            whole(heard, path);
            assert!(side.is_quiet());
        }
    });
}

/// Goal: a member that leaves hears nothing any more, one that comes back hears all, and one that is killed, or gone
/// right after it has spoken, changes nothing for the others.
#[test]
fn processes_come_and_go_and_no_message_is_heard_twice() {
    alone("crowd::processes_come_and_go_and_no_message_is_heard_twice", || {
        for path in PATHS {
            let speaker = Speaker::new(path);
            let (mut steady, mut fickle) = (Listener::start(path), Listener::start(path));
            for round in 0..4 {
                speaker.says(&format!("all-{round}"));
                assert_eq!(fickle.does("hear 1"), [format!("all-{round}")]);
                fickle.does("leave");
                speaker.says(&format!("few-{round}"));
                assert!(fickle.does("quiet").is_empty());
                fickle.does("join");
                // Its device goes as soon as it has spoken.
                let brief = Speaker::new(path);
                brief.says(&format!("brief-{round}"));
                drop(brief);
                assert_eq!(fickle.does("hear 1"), [format!("brief-{round}")]);
                // Two speakers' messages have no order.
                let mut heard = steady.does("hear 3");
                heard.sort();
                assert_eq!(heard, ["all", "brief", "few"].map(|text| format!("{text}-{round}")));
            }
            fickle.0.kill();
            for n in 0..20 {
                speaker.says(&format!("after-{n}"));
            }
            let expected: Vec<_> = (0..20).map(|n| format!("after-{n}")).collect();
            assert_eq!(steady.does("hear 20"), expected);
            assert!(steady.does("quiet").is_empty());
        }
    });
}

/// Goal: processes that are stopped before they were met are not waited for either, one after the other.
/// Method: so many that they would take more than [`FOREVER`] with the time that one has to answer.
#[test]
fn many_processes_stopped_before_they_were_met_hold_up_no_other() {
    alone("crowd::many_processes_stopped_before_they_were_met_hold_up_no_other", || {
        for path in [Path::Ring, Path::SharedMemory] {
            let speaker = Speaker::new(path);
            let mut other = Listener::start(path);
            let mut stopped: Vec<_> = (0..15).map(|_| Listener::start(path)).collect();
            stopped.iter().for_each(|listener| listener.0.signal("-STOP"));
            let is_stopped = |listener: &Listener| process::is_stopped(listener.0.pid());
            eventually("they stop", || stopped.iter().all(is_stopped));
            let end = Instant::now() + FOREVER;
            for n in 0..20 {
                speaker.says(&n.to_string());
                assert_eq!(other.does("hear 1"), [n.to_string()]);
            }
            assert!(Instant::now() < end, "they were waited for");
            // Their sockets have kept what was said.
            let all: Vec<_> = (0..20).map(|n| n.to_string()).collect();
            for listener in &mut stopped {
                listener.0.signal("-CONT");
                assert_eq!(listener.does("hear 20"), all);
            }
        }
    });
}

/// Goal: a listener that is stopped is not waited for, be it known to the speaker or not, and it hears
/// what is said once it goes on.
#[test]
fn a_listener_that_is_stopped_holds_up_no_other() {
    alone("crowd::a_listener_that_is_stopped_holds_up_no_other", || {
        for path in PATHS {
            for known in [true, false] {
                let speaker = Speaker::new(path);
                let (mut other, mut stopped) = (Listener::start(path), Listener::start(path));
                if known {
                    speaker.says("known");
                    assert_eq!([other.does("hear 1"), stopped.does("hear 1")], [["known"]; 2]);
                }
                stopped.0.signal("-STOP");
                let end = Instant::now() + FOREVER;
                for n in 0..50 {
                    speaker.says(&n.to_string());
                    assert_eq!(other.does("hear 1"), [n.to_string()]);
                    assert!(Instant::now() < end, "it is waited for");
                }
                stopped.0.signal("-CONT");
                stopped.0.tell("hear 1");
                let (told, answer) = std::sync::mpsc::channel();
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let _ = told.send(stopped.0.answer());
                    });
                    eventually("it hears something", || {
                        speaker.says("again");
                        answer.try_recv().is_ok()
                    });
                });
            }
        }
    });
}
