//! `adverb mesh`: every block is whole, once and in order, also when nodes die.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::{adverb, command, finish, stderr, stdout};

/// Runs a mesh on one way between processes; it has to be content. What came of it, as JSON.
fn mesh(path: &str, words: &[&str]) -> serde_json::Value {
    let mut command = command(&["mesh", "--json"]);
    command.args(words).env("ADVERB_PATH", path).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = finish(command.spawn().expect("the command starts"));
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{path} {words:?}: {}{text}", stderr(&output));
    serde_json::from_str(&text).unwrap()
}

/// Blocks that `rank` received of `peer`, which are all that it sent.
fn received(report: &serde_json::Value, rank: usize, peer: usize) -> u64 {
    let pair = &report["nodes"][rank]["peers"][peer];
    assert_eq!(pair["spoilt"], 0, "{report}");
    assert_eq!(pair["misplaced"], 0, "{report}");
    assert_eq!(pair["losses"], 0, "{report}");
    assert_eq!(pair["received"], report["nodes"][peer]["peers"][rank]["sent"], "{report}");
    pair["received"].as_u64().unwrap()
}

#[test]
fn nodes_of_one_machine_exchange_whole_blocks_and_none_is_left_behind() {
    for (path, traffic) in [("shm", "send"), ("udp", "write"), ("shm", "mixed"), ("udp", "mixed")] {
        // Other programs may keep one of the nodes from its processor: one fair run of a few shows that the mesh is.
        let fair = (0..4).any(|_| {
            let report = mesh(path, &["--local", "3", "-D", "1.5", "--traffic", traffic]);
            let pairs = (0..9).map(|pair| (pair / 3, pair % 3)).filter(|(rank, peer)| rank != peer);
            let counts: Vec<_> = pairs.map(|(rank, peer)| received(&report, rank, peer)).collect();
            let (least, most) = (*counts.iter().min().unwrap(), *counts.iter().max().unwrap());
            assert!(least > 0, "{path} {traffic}: {report}");
            // So many that some which are ahead do not matter.
            least < 1000 || most <= 2 * least
        });
        assert!(fair, "{path} {traffic}");
    }
}

#[test]
fn a_mesh_that_is_interrupted_says_what_there_was_until_then() {
    let mut command = command(&["mesh", "--json", "--local", "3", "-D", "3600"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    thread::sleep(Duration::from_secs(3));
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupt.unwrap().success());
    let output = finish(child);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}{text}", stderr(&output));
    let report = serde_json::from_str(&text).unwrap();
    for (rank, peer) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        assert!(received(&report, rank, peer) > 0, "{report}");
    }
}

#[test]
fn a_node_that_is_killed_comes_back_and_the_others_lose_nothing() {
    let picture = std::env::temp_dir().join(format!("adverb-mesh-{}.svg", std::process::id()));
    let file = picture.to_str().unwrap();
    for path in ["shm", "udp"] {
        let words = ["--local", "4", "-D", "4", "--kill-every", "1.2", "--svg", file];
        let report = mesh(path, &words);
        // The victims are 0, 1 and 2, as far as there was time.
        assert!(report["deaths"].as_u64().unwrap() >= 1, "{path}: {report}");
        assert!(fs::read_to_string(&picture).unwrap().contains("<svg"));
        fs::remove_file(&picture).unwrap();
    }
    let report = mesh("shm", &["--local", "3", "-D", "4", "--kill-every", "2.2"]);
    assert!(report["deaths"].as_u64().unwrap() <= 1, "{report}");
    assert!(received(&report, 1, 2) > 0, "{report}");
    assert!(received(&report, 2, 1) > 0, "{report}");
}

#[test]
fn what_cannot_be_a_mesh_is_refused() {
    for (words, hint) in [
        (&["mesh"][..], "--nodes"),
        (&["mesh", "--local", "1"], "2 to 64"),
        (&["mesh", "--local", "2", "-s", "8"], "24 to 262144"),
        (&["mesh", "--local", "2", "-d", "soft_lo"], "cannot be used with"),
        (&["mesh", "--local", "2", "-p", "1"], "cannot be used with"),
        (&["mesh", "--nodes", "a,b", "--kill-every", "1"], "cannot be used with"),
        (&["mesh", "--nodes", "a,b", "--rank", "2"], "0 to 1"),
        (&["mesh", "--nodes", "a,", "--rank", "0"], "without a name"),
        (&["mesh", "--nodes", "a,b", "-p", "0"], "1..=65535"),
        (&["mesh", "--nodes", "n{}", "--ranks", "99999999999", "--rank", "0"], "at most 1024"),
    ] {
        let output = adverb(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(stderr(&output).contains(hint), "{words:?}: {}", stderr(&output));
    }
}

#[test]
fn a_node_that_cannot_be_found_is_named_at_once_and_at_the_end() {
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let nodes = format!("127.0.0.1:{port},nosuch.invalid");
    let output = adverb(&["mesh", "--nodes", &nodes, "--rank", "0", "-D", "0.5"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = stderr(&output);
    let of_node =
        |line: &&str| line.starts_with("adverb: node 1") && line.contains("nosuch.invalid");
    assert_eq!(said.lines().filter(of_node).count(), 2, "at once and at the end: {said}");
    assert!(said.contains("1 node failed"), "{said}");
    assert!(stdout(&output).contains("over slowest: -"), "{}", stdout(&output));
}

#[test]
fn members_of_a_group_add_up_and_every_bit_is_right() {
    for (topology, bytes, members) in [
        ("auto", "100", "3"),
        ("mesh", "9M", "4"),
        ("ring", "1M", "3"),
        ("tree", "50000", "3"),
        ("double-tree", "3M", "5"),
    ] {
        let words = ["allreduce", "--local", members, "-s", bytes, "-n", "3"];
        let width = if topology == "tree" { &["--width", "1"][..] } else { &[] };
        let output = adverb(&[&words[..], &["--topology", topology], width].concat());
        assert_eq!(output.status.code(), Some(0), "{topology}: {}", stderr(&output));
        assert!(stdout(&output).contains("every bit right"), "{topology}: {}", stdout(&output));
    }
}
