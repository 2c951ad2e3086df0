//! `adverb run`, `adverb env` and `adverb doctor`.

use serde_json::Value;

use super::{adverb, stderr, stdout};

/// Any file will do as a library: what counts is what the program finds in its environment.
#[test]
fn the_program_gets_what_was_asked_for_and_its_status_is_the_answer() {
    let words = "run --path udp --devices soft_lo,hw -- sh -c";
    let mut words: Vec<_> = words.split(' ').collect();
    words.push("echo $ADVERB_PATH $ADVERB_DEVICES $LD_PRELOAD; exit 7");
    let output = adverb(&words);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    let said = stdout(&output);
    assert!(said.starts_with("udp soft_lo,hw /"), "{said}");
    assert!(said.contains("libadverb_ibverbs.so"), "{said}");
    assert_eq!(adverb(&["run"]).status.code(), Some(2));
    assert_eq!(adverb(&["run", "--", "/nowhere/program"]).status.code(), Some(1));
}

#[test]
fn the_environment_is_printed_for_a_shell() {
    let output = adverb(&["env", "--path", "shm"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = stdout(&output);
    assert!(said.contains("export LD_PRELOAD='/"), "{said}");
    assert!(said.contains("export ADVERB_PATH='shm'"), "{said}");
}

#[test]
fn the_doctor_says_of_each_fault_what_it_costs_and_what_to_do() {
    let output = adverb(&["doctor", "--json"]);
    let all: Value = serde_json::from_slice(&output.stdout).expect("valid JSON");
    let all = all["findings"].as_array().expect("a list");
    assert!(all.len() > 8, "{all:?}");
    for finding in all {
        let good = finding["grade"] == "good";
        assert_eq!(good, finding["cost"] == "" && finding["cure"] == "", "{finding}");
        assert_ne!(finding["found"], "", "{finding}");
    }
}
