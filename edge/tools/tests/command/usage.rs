//! What may be typed, and what is refused before anything happens.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use super::{adverb, command, finish, stderr, stdout};

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
        (&["bench", "-s", "0"], "1 byte to 1G"),
        (&["bench", "-n", "x"], "invalid value 'x'"),
        (&["bench", "-n", "5", "-D", "1"], "cannot be used with"),
        (&["bench", "--op", "atomic"], "send, write, read"),
        (&["bench", "-l", "200"], "1 to 128"),
        (&["bench", "-t", "8", "-Q", "9"], "1 to 8"),
        (&["bench", "--bind", "127.0.0.1"], "--server"),
        (&["bench", "--server", "--bind", "nowhere"], "invalid value 'nowhere'"),
        (&["bench", "-p", "65536"], "0..=65535"),
        (&["bench", ""], "a value is required"),
        (&["bench", "--modes", "-o", "file"], "cannot be used with"),
        (&["bench", "--layers", "-s", "64"], "cannot be used with"),
        (&["bench", "--layers", "--bind", "127.0.0.1"], "cannot be used with"),
        (&["allreduce", "-s", "3"], "multiple of 4"),
        (&["allreduce", "--width", "3"], "--topology tree"),
        (&["pingpong", "-s", "-1"], "invalid value '-1' for '--size"),
        (&["bench", "-s", "-5"], "1 byte to 1G"),
        (&["bench", "-D", "-1"], "0.001 to 86400"),
        (&["counters", "-w", "-1"], "0.001 to 86400"),
        (&["pingpong", ""], "a value is required"),
        (&["sockets", "stat", "-s", "x"], "such as 4-16 or 1,9"),
        (&["sockets", "stat", "-S", "x"], "0 for all"),
        (&["sockets", "stat", "-i", "-1"], "1 to 86400"),
        (&["devices", "soft_lo"], "--help"),
    ] {
        let output = adverb(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
        let said = stderr(&output);
        assert!(said.contains(hint), "{words:?}: {said}");
        assert!(words.is_empty() || said.starts_with("adverb: "), "one prefix: {words:?}: {said}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn a_device_that_is_not_there_is_answered_with_those_that_are() {
    for words in [
        &["counters", "-d", "nope"][..],
        &["devinfo", "-d", "nope"],
        &["pingpong", "-d", "nope"],
        &["bench", "-d", "nope", "-n", "1"],
    ] {
        let output = adverb(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        let said = stderr(&output);
        assert!(said.contains("no device nope; there are: "), "{words:?}: {said}");
    }
}

#[test]
fn words_that_are_not_utf8_are_wrong_usage() {
    let word = OsStr::from_bytes(b"\xff\xfe");
    for words in [
        &["bench"][..],
        &["bench", "-o", "/no/such/directory/file", "-d"],
        &["pingpong"],
        &["devinfo", "-d"],
        &["mesh", "--nodes"],
    ] {
        let mut command = command(words);
        let output = command.arg(word).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
        assert!(stderr(&output).contains("UTF-8"), "{words:?}: {}", stderr(&output));
    }
}

#[test]
fn a_file_that_cannot_be_written_is_noticed_before_anything_is_measured() {
    for words in
        [&["bench", "-o"][..], &["mesh", "--local", "2", "-o"], &["mesh", "--local", "2", "--svg"]]
    {
        let output = adverb(&[words, &["/no/such/directory/file.json"]].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("creating /no/such/directory/file.json"), "{output:?}");
    }
}

#[test]
fn output_that_finds_no_room_is_a_failure_and_no_bug() {
    for words in [
        &["devices"][..],
        &["sockets", "parameters"],
        &["sockets", "parameters", "--json"],
        &["pingpong", "-n", "1"],
        &["allreduce", "--local", "2", "-n", "1"],
    ] {
        let full = File::create("/dev/full").expect("Linux has it");
        let output = command(words).stdout(full).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        assert!(stderr(&output).contains("No space left"), "{words:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("bug"), "{words:?}: {}", stderr(&output));
    }
}

#[test]
fn the_log_is_silent_unless_asked_and_tells_of_devices_pairs_and_peers_if_it_is() {
    let quiet = command(&["pingpong"]).env_remove("ADVERB_LOG").output().expect("it runs");
    assert_eq!(stderr(&quiet), "");
    let told = command(&["pingpong"]).env("ADVERB_LOG", "info,verbs=debug").output();
    let told = told.expect("it runs");
    assert_eq!(told.status.code(), Some(0), "{}", stderr(&told));
    let trace = [
        "verbs::trace: device opened device=soft_lo",
        "verbs::trace: port attributes device=soft_lo port=1 state=active",
        "verbs::trace: completion queue created",
        "verbs::trace: queue pair created",
        ": RESET to INIT pkey_index=0 port_num=1",
        ": INIT to RTR dgid=",
        ": RTR to RTS sq_psn=",
        "  queue pair  0x",
        "session::endpoint: peer has come",
        "session::buffer: buffer registered",
        "session::link: buffer advertised",
        "session::link: the peer advertises a buffer",
        // Either side may be the first to say so, and the program ends before the other does.
        " has closed the endpoint",
    ];
    for part in trace {
        assert!(stderr(&told).contains(part), "{part:?} in\n{}", stderr(&told));
    }
    assert_eq!(stdout(&quiet).lines().count(), stdout(&told).lines().count());
}

#[test]
fn a_log_level_that_does_not_exist_is_wrong_usage() {
    let output = command(&["devices"]).env("ADVERB_LOG", "loud").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("there is no level \"loud\""), "{}", stderr(&output));
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let mut command = command(&["devices", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    // Before it can have written anything that matters: what it writes then finds no reader.
    drop(child.stdout.take());
    let output = finish(child);
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_small_stack_is_enough() {
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -s 64 && exec \"$0\" devices", env!("CARGO_BIN_EXE_adverb")]);
    let output = shell.output().expect("a shell");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("soft_lo"), "{}", stdout(&output));
}
