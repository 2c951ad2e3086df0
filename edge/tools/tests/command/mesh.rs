//! `adverb mesh`: every block is whole, once and in order, also when nodes die.

use std::fs;

use super::{adverb, stderr, stdout};

#[test]
fn nodes_of_one_machine_exchange_whole_blocks() {
    for traffic in ["send", "write", "mixed"] {
        let words = ["mesh", "--local", "3", "-D", "1.5", "--traffic", traffic, "--json"];
        let output = adverb(&words);
        assert_eq!(output.status.code(), Some(0), "{traffic}: {}", stderr(&output));
        let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        for rank in 0..3 {
            for peer in (0..3).filter(|peer| *peer != rank) {
                let pair = &report["nodes"][rank]["peers"][peer];
                assert!(pair["received"].as_u64().unwrap() > 0, "{traffic}: {report}");
                assert_eq!(pair["spoilt"], 0, "{traffic}: {report}");
                assert_eq!(pair["misplaced"], 0, "{traffic}: {report}");
                // What one has sent the other has received.
                let back = &report["nodes"][peer]["peers"][rank];
                assert_eq!(pair["sent"], back["received"], "{traffic}: {report}");
            }
        }
    }
}

#[test]
fn a_node_that_is_killed_comes_back_and_the_others_lose_nothing() {
    let picture = std::env::temp_dir().join(format!("adverb-mesh-{}.svg", std::process::id()));
    let path = picture.to_str().unwrap();
    let words = ["mesh", "--local", "3", "-D", "4", "--kill-every", "2", "--svg", path];
    let output = adverb(&words);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}{text}", stderr(&output));
    assert!(text.contains("0 spoilt, lost or repeated"), "{text}");
    assert!(fs::read_to_string(&picture).unwrap().contains("<svg"));
    fs::remove_file(&picture).unwrap();
}

#[test]
fn what_cannot_be_a_mesh_is_refused() {
    for (words, hint) in [
        (&["mesh"][..], "--nodes"),
        (&["mesh", "--local", "1"], "2 to 64"),
        (&["mesh", "--local", "2", "-s", "8"], "24 to 262144"),
        (&["mesh", "--nodes", "a,b", "--rank", "2"], "0 to 1"),
    ] {
        let output = adverb(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(stderr(&output).contains(hint), "{words:?}: {}", stderr(&output));
    }
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
        let output = adverb(&[&words[..], &["--topology", topology, "--width", "1"]].concat());
        assert_eq!(output.status.code(), Some(0), "{topology}: {}", stderr(&output));
        assert!(stdout(&output).contains("every bit right"), "{topology}: {}", stdout(&output));
    }
}
