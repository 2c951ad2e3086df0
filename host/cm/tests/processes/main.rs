//! Processes that share an address, and hosts with a cable between them: connections by the hundred,
//! also while one of the processes is killed, and what strangers send meanwhile.
//!
//! Needs `unshare` or root and `ip`; says so where they are missing.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]
#![allow(clippy::wildcard_enum_match_arm, reason = "every other event is a failure")]

#[path = "../../../verbs/tests/verbs/alone.rs"]
mod alone;
mod attack;
mod child;
mod hostile;
mod hosts;

use child::Child;
use std::process::Command;
use std::time::Duration;

fn here() -> Command {
    Command::new(alone::program())
}

/// Goal: two processes of one host connect at the same address, and part.
#[test]
fn processes_of_one_address_connect() {
    alone::alone("processes_of_one_address_connect", || {
        let mut server = Child::start(here(), "serve 127.0.0.1:0");
        let port = server.line().split_once(' ').unwrap().1.to_owned();
        let mut client = Child::start(here(), &format!("connect 127.0.0.1:{port} 200 20"));
        assert_eq!(client.words()[..2], ["established", "200"]);
        client.say("part");
        assert_eq!(client.line(), "parted 200");
        server.say("end");
        assert_eq!(server.line(), "served 200 parted 200");
    });
}

/// Goal: no process serves queue pair 1 for the others, so none of their connections is lost when the one that
/// has got its packets is killed.
/// Method: the first process of the address gets them, by the kernel's rule. It is killed while two other ones
/// connect a thousand times, and so is the next one that has become the first.
#[test]
fn connections_survive_the_death_of_the_process_that_gets_the_packets() {
    let name = "connections_survive_the_death_of_the_process_that_gets_the_packets";
    alone::alone(name, || {
        let mut bystanders = [(); 2].map(|()| {
            let mut bystander = Child::start(here(), "serve 127.0.0.1:0");
            bystander.line();
            bystander
        });
        let mut server = Child::start(here(), "serve 127.0.0.1:0");
        let port = server.line().split_once(' ').unwrap().1.to_owned();
        let mut client = Child::start(here(), &format!("connect 127.0.0.1:{port} 1000 20 talk"));
        for (bystander, until) in bystanders.iter_mut().zip([200, 500]) {
            while client.line() != format!("up {until}") {}
            bystander.kill();
        }
        let mut line = client.line();
        while line.starts_with("up ") {
            line = client.line();
        }
        assert!(line.starts_with("established 1000 "), "{line}");
        client.say("part");
        assert_eq!(client.line(), "parted 1000");
        server.say("end");
        assert_eq!(server.line(), "served 1000 parted 1000");
    });
}

/// Goal: a process that is stopped keeps no other one from connecting, and what came to it meanwhile is no request any
/// more when it goes on.
/// Method: the first process of the address gets requests, by the kernel's rule. It goes on when the connections that
/// they asked for are over and forgotten.
#[test]
fn a_process_that_is_stopped_keeps_no_other_from_connecting() {
    alone::alone("a_process_that_is_stopped_keeps_no_other_from_connecting", || {
        let [(first, near), (server, far)] = [(); 2].map(|()| {
            let mut server = Child::start(here(), "serve 127.0.0.1:0");
            let port = server.line().split_once(' ').unwrap().1.to_owned();
            (server, port)
        });
        let meet = |port: &str| {
            let mut client = Child::start(here(), &format!("connect 127.0.0.1:{port} 20 20"));
            let words = client.words();
            assert_eq!(words[..2], ["established", "20"]);
            client.say("part");
            assert_eq!(client.line(), "parted 20");
        };
        first.signal("STOP");
        meet(&far);
        std::thread::sleep(FORGOTTEN);
        first.signal("CONT");
        meet(&near);
        for mut served in [first, server] {
            served.say("end");
            assert_eq!(served.line(), "served 20 parted 20");
        }
    });
}

/// Longer than connections that are over are remembered.
const FORGOTTEN: Duration = Duration::from_secs(3);

/// Goal: connections to a process that was killed are known to no process, and their ends are agreed to by another
/// process of the address, as soon as a peer asks.
#[test]
fn the_end_of_a_dead_processes_connections_is_agreed_to_by_another_one() {
    let name = "the_end_of_a_dead_processes_connections_is_agreed_to_by_another_one";
    alone::alone(name, || {
        let mut server = Child::start(here(), "serve 127.0.0.1:0");
        let port = server.line().split_once(' ').unwrap().1.to_owned();
        let mut client = Child::start(here(), &format!("connect 127.0.0.1:{port} 20 20"));
        assert_eq!(client.words()[..2], ["established", "20"]);
        server.kill();
        client.say("part");
        assert_eq!(client.line(), "parted 20");
    });
}

/// Goal: peers learn of the end of a process that does not end its connections, whether it calls `exit` or is killed.
#[test]
fn the_peers_of_a_process_that_ends_without_a_word_are_told() {
    alone::alone("the_peers_of_a_process_that_ends_without_a_word_are_told", || {
        for ends_by_exit in [true, false] {
            let mut server = Child::start(here(), "serve 127.0.0.1:0");
            let port = server.line().split_once(' ').unwrap().1.to_owned();
            let mut client = Child::start(here(), &format!("connect 127.0.0.1:{port} 50 20 leave"));
            assert_eq!(client.words()[..2], ["established", "50"]);
            if ends_by_exit {
                client.say("leave");
            } else {
                client.kill();
            }
            server.say("end");
            assert_eq!(server.line(), "served 50 parted 50");
        }
    });
}
