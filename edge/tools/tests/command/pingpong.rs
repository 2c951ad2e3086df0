//! `adverb pingpong`: every byte is right, whatever the length.

use super::{Server, adverb, stderr, stdout};

#[test]
fn both_ends_on_one_machine() {
    for bytes in ["1", "4097", "1M"] {
        let output = adverb(&["pingpong", "-s", bytes, "-n", "20"]);
        assert_eq!(output.status.code(), Some(0), "{bytes}: {}", stderr(&output));
        assert!(stdout(&output).starts_with("20 SENDs of "), "{}", stdout(&output));
        assert!(stdout(&output).contains("every byte right"), "{}", stdout(&output));
    }
}

#[test]
fn one_server_answers_client_after_client() {
    let mut server = Server::start("127.0.0.1");
    for mtu in ["256", "4096"] {
        let words = ["pingpong", "127.0.0.1", "-p", &server.port, "-n", "20", "-m", mtu];
        let output = adverb(&words);
        assert_eq!(output.status.code(), Some(0), "{mtu}: {}", stderr(&output));
        assert!(server.says().contains("127.0.0.1"), "the server names its client");
    }
}

#[test]
fn a_server_that_is_not_there_is_a_failure() {
    let output = adverb(&["pingpong", "127.0.0.1", "-p", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("connecting to 127.0.0.1 port 1"), "{}", stderr(&output));
}
