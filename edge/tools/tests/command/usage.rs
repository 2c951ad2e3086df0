//! What may be typed, and what is refused before anything happens.

use super::{adverb, stderr, stdout};

#[test]
fn the_version_is_printed() {
    let output = adverb(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).starts_with("adverb "), "{output:?}");
}

#[test]
fn help_names_every_subcommand_and_none_of_the_hidden_options() {
    let help = stdout(&adverb(&["--help"]));
    for word in ["bench", "devices", "pingpong"] {
        assert!(help.contains(word), "{help}");
    }
    assert!(!stdout(&adverb(&["bench", "--help"])).contains("--child"));
}

#[test]
fn wrong_usage_ends_with_2_and_says_what_is_allowed() {
    for (words, hint) in [
        (&[][..], "bench"),
        (&["bnech"], "bench"),
        (&["bench", "--no-such-flag"], "--help"),
        (&["bench", "-m", "1500"], "256, 512, 1024, 2048 or 4096"),
        (&["bench", "-s", "0"], "1 to 1024M"),
        (&["bench", "-n", "x"], "invalid value 'x'"),
        (&["bench", "-n", "5", "-D", "1"], "cannot be used with"),
        (&["bench", "--op", "atomic"], "send, write, read"),
        (&["bench", "-l", "200"], "1 to 128"),
        (&["bench", "-t", "8", "-Q", "9"], "1 to 8"),
        (&["bench", "--bind", "127.0.0.1"], "--server"),
        (&["bench", "--server", "--bind", "nowhere"], "invalid value 'nowhere'"),
        (&["bench", "-p", "65536"], "0..=65535"),
        (&["pingpong", "-s", "-1"], "--help"),
        (&["devices", "soft_lo"], "--help"),
    ] {
        let output = adverb(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
        assert!(stderr(&output).contains(hint), "{words:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_noticed_before_anything_is_measured() {
    let output = adverb(&["bench", "-o", "/no/such/directory/file.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("creating /no/such/directory/file.json"), "{output:?}");
}
