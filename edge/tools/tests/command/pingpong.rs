//! `adverb pingpong`: every byte is right, whatever the length.

use super::{Server, adverb, command, stderr, stdout};

#[test]
fn both_ends_on_one_machine() {
    for (bytes, rounds) in [("1", "20"), ("4097", "20"), ("1M", "3")] {
        let output = adverb(&["pingpong", "-s", bytes, "-n", rounds]);
        assert_eq!(output.status.code(), Some(0), "{bytes}: {}", stderr(&output));
        let text = stdout(&output);
        for said in ["connected to 127.0.0.1", "hello from the server", "every byte right"] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }
}

#[test]
fn both_ends_meet_by_connection_management_if_they_are_told_to() {
    let output = adverb(&["pingpong", "--connector", "cm", "-n", "20"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("every byte right"), "{}", stdout(&output));
}

#[test]
fn one_server_answers_client_after_client() {
    let mut server = Server::start("pingpong", "127.0.0.1");
    // An address may stand in brackets.
    for (host, mtu) in [("127.0.0.1", "256"), ("[127.0.0.1]", "4096")] {
        let words = ["pingpong", host, "-p", &server.port, "-n", "20", "-m", mtu];
        let output = adverb(&words);
        assert_eq!(output.status.code(), Some(0), "{mtu}: {}", stderr(&output));
        assert!(stdout(&output).contains(&format!("path MTU {mtu}")), "{}", stdout(&output));
        let line = server.says();
        assert!(line.contains("20 rounds, every byte right"), "{line}");
    }
}

/// Goal: the class and the hops that are asked for are those of both ends' adapters.
#[test]
fn both_ends_have_the_traffic_class_that_is_asked_for() {
    let words = ["pingpong", "-n", "1", "--tclass", "0x68", "--hop-limit", "9"];
    let output = command(&words).env("ADVERB_LOG", "info").output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let told = stderr(&output).matches("traffic_class=104 hop_limit=9").count();
    assert_eq!(told, 2, "{}", stderr(&output));
}

/// Goal: an index into the table of GIDs is for both ends, here that of an IPv6 address where there is
/// one.
#[test]
fn both_ends_have_the_gid_that_is_asked_for() {
    for index in ["0", "1"] {
        let output = adverb(&["pingpong", "-n", "1", "-x", index]);
        assert_eq!(output.status.code(), Some(0), "{index}: {}", stderr(&output));
    }
}

/// Goal: each command says that it has met another program.
#[test]
fn a_server_of_another_kind_is_a_failure_that_says_so() {
    let server = Server::start("pingpong", "127.0.0.1");
    let output = adverb(&["bench", "127.0.0.1", "-p", &server.port, "-n", "1"]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains(&server.port) && said.contains("adverb bench --server"), "{said}");
    let server = Server::start("bench", "127.0.0.1");
    let output = adverb(&["pingpong", "127.0.0.1", "-p", &server.port, "-n", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("another program"), "{}", stderr(&output));
    assert!(stderr(&output).contains("adverb pingpong --server"), "{}", stderr(&output));
}

#[test]
fn a_server_that_is_not_there_is_a_failure() {
    let output = adverb(&["pingpong", "127.0.0.1", "-p", "1", "--connect-timeout", "0.5"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no server at 127.0.0.1:1 "), "{}", stderr(&output));
}

/// Goal: a server that cannot listen is told what to change, and nothing that would not help.
#[test]
fn a_server_that_cannot_listen_says_what_to_change() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    for (words, helps, does_not) in [
        (&["pingpong", "-n", "1", "-x", "77"][..], "no GID with index 77", "--port"),
        (&["pingpong", "--server", "--bind", "192.0.2.1"], "--bind", "--port"),
        (&["pingpong", "--server", "--bind", "127.0.0.1", "-p", &port], "--port", "--bind"),
    ] {
        let output = adverb(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        let said = stderr(&output);
        assert!(said.contains(helps) && !said.contains(does_not), "{words:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{words:?}: {said}");
    }
}
