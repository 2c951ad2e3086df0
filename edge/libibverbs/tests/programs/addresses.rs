//! A program whose device stays open while addresses of its interface come and go: the GID table follows, and peers
//! reach the program at the new ones.

use super::compiled::Compiled;
use super::support::{self, Hosts, PATHS, Place};
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// One of two programs, which does what it is told.
struct Told {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Told {
    fn new(program: &Compiled, place: Place<'_>, side: usize) -> Self {
        let mut command = place.command(side, program.path());
        command.env("ADVERB_DEVICES", "soft_eth0").env("ADVERB_EXPLAIN", "0");
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().and_then(Result::ok).as_deref(), Some("open"));
        Self { child, input, lines }
    }

    /// What it answers.
    fn does(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        let answer = self.lines.next().and_then(Result::ok);
        answer.unwrap_or_else(|| panic!("no answer to {line}: {:?}", self.child.wait()))
    }

    fn ends(self) {
        drop(self.input);
        let output = support::ended(self.child);
        assert!(output.status.success(), "{output:?}");
    }
}

/// Connects both over these addresses, at these places, and has the first one send.
fn exchange([one, two]: [&mut Told; 2], addresses: [&str; 2], places: [&str; 2]) -> [String; 2] {
    let numbers = [one.does("make"), two.does("make")];
    let meet = |own: usize, peer: usize| {
        format!("meet {} {} {}", addresses[peer], places[own], numbers[peer])
    };
    assert_eq!([one.does(&meet(0, 1)), two.does(&meet(1, 0))], ["met", "met"]);
    [one.does("send"), two.does("recv")]
}

/// Goal: what comes while a device is open gets the first free place, and peers reach it there; what goes leaves its place
/// empty; what comes back is as if it was new.
#[test]
fn peers_meet_at_addresses_that_came_while_their_devices_were_open() {
    let Some(program) = Compiled::new("addresses", &["-libverbs"]) else {
        return;
    };
    for path in PATHS {
        if let Some(hosts) = Hosts::new() {
            come_and_go(&program, &hosts, Place::Within(&hosts, path));
        }
    }
    if let Some(hosts) = Hosts::new() {
        come_and_go(&program, &hosts, Place::Apart(&hosts));
    }
}

fn come_and_go(program: &Compiled, hosts: &Hosts, place: Place<'_>) {
    let host = [0, usize::from(matches!(place, Place::Apart(_)))];
    let [first, second] = ["10.9.8.101", "10.9.8.102"];
    let change = |side: usize, what: &str, address: &str| {
        hosts.ip(host[side], &format!("addr {what} {address}/24 dev eth0"));
    };
    let (mut one, mut two) = (Told::new(program, place, 0), Told::new(program, place, 1));
    change(0, "add", first);
    let at_one = one.does(&format!("came {first}"));
    assert_eq!(at_one, "2", "after the link-local address and the one that was there");
    change(1, "add", second);
    let at_two = two.does(&format!("came {second}"));
    let places = [at_one.as_str(), at_two.as_str()];
    let well = ["success", "success"];
    assert_eq!(exchange([&mut one, &mut two], [first, second], places), well, "{}", place.name());

    change(0, "del", first);
    assert_eq!(one.does(&format!("went {first} {at_one}")), "gone");
    if let Place::Apart(_) = place {
        assert_eq!(one.does("send"), "transport retry counter exceeded");
    }
    assert_eq!([one.does("drop"), two.does("drop")], ["dropped", "dropped"]);

    change(0, "add", first);
    assert_eq!(one.does(&format!("came {first}")), at_one);
    assert_eq!(exchange([&mut one, &mut two], [first, second], places), well, "{}", place.name());
    assert_eq!([one.does("drop"), two.does("drop")], ["dropped", "dropped"]);
    one.ends();
    two.ends();
}
