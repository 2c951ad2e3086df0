//! `adverb sockets`: becomes the program it is given, and lists what can be set.

use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::{adverb, command, stderr, stdout};

#[test]
fn every_parameter_is_listed_with_its_effect() {
    let output = adverb(&["sockets", "parameters", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let all: Value = serde_json::from_slice(&output.stdout).expect("valid JSON");
    let all = all["parameters"].as_array().expect("a list");
    assert!(all.len() > 100, "{}", all.len());
    for parameter in all {
        let effect = parameter["effect"].as_str().expect("a word");
        assert!(["active", "approximated", "none"].contains(&effect), "{parameter}");
        assert_eq!(effect == "active", parameter["note"] == "", "{parameter}");
    }
    let text = adverb(&["sockets", "parameters"]);
    assert_eq!(stdout(&text).lines().count(), all.len() + 1);
}

/// Goal: the documentation's table is the one of the code.
#[test]
fn the_table_of_parameters_is_the_documentations() {
    let page = format!("{}/../../docs/parameters.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(page).expect("a page");
    let output = adverb(&["sockets", "parameters", "--markdown"]);
    assert_eq!(stdout(&output), page, "adverb sockets parameters --markdown > docs/parameters.md");
}

#[test]
fn a_command_is_needed_and_so_is_a_library_that_exists() {
    assert_eq!(adverb(&["sockets"]).status.code(), Some(2));
    let output = adverb(&["sockets", "--library", "/nowhere/x.so", "--", "true"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/nowhere/x.so"), "{}", stderr(&output));
}

/// Any file will do as a library: what counts is what the program finds in its environment.
#[test]
fn the_program_finds_what_was_asked_for_in_its_environment() {
    let libc = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let libc = libc
        .lines()
        .find_map(|line| line.split_whitespace().nth(5).filter(|path| path.contains("libc.so")));
    let libc = libc.expect("the C library");
    let words = [
        "sockets",
        "--library",
        libc,
        "--profile",
        "frugal",
        "--transport",
        "spin",
        "--explain",
        "-q",
        "--",
        "env",
    ];
    let output = adverb(&words);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for line in [
        "ADVERB_SOCKETS_PROFILE=frugal",
        "ADVERB_SOCKETS_TRANSPORT=spin",
        "ADVERB_SOCKETS_EXPLAIN=1",
        "ADVERB_SOCKETS_QUIET=1",
        "LD_PRELOAD=/",
    ] {
        assert!(stdout(&output).contains(line), "{line} in\n{}", stdout(&output));
    }
    let failing = adverb(&["sockets", "--library", libc, "--", "/nowhere/program"]);
    assert_eq!(failing.status.code(), Some(127));
}

/// Words and variables of other programs are bytes, and theirs.
#[test]
fn what_is_not_utf8_is_passed_on_and_is_no_parameter() {
    let odd = OsStr::from_bytes(b"\xff\xfe");
    let words = ["sockets", "--library", "/dev/null", "-q", "--", "printf", "%s"];
    let output = command(&words).arg(odd).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(output.stdout, odd.as_bytes());
    let mut command = command(&["sockets", "parameters"]);
    let output = command.env("ODD", odd).env(odd, "odd").output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("parameter"), "{}", stdout(&output));
}

#[test]
fn statistics_of_nobody_are_a_failure_that_says_so() {
    let output = adverb(&["sockets", "stat", "-k", "/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("Failed to identify process"), "{}", stderr(&output));
}

/// Goal: a user that has built the command alone is told what else to build, and of a program that takes no library
/// before it runs as ever.
#[test]
fn what_stands_in_the_way_of_acceleration_is_told() {
    use std::os::unix::fs::PermissionsExt;
    let place = std::env::temp_dir().join(format!("adverb-alone-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a directory");
    let (alone, program) = (place.join("adverb"), place.join("program"));
    std::fs::copy(env!("CARGO_BIN_EXE_adverb"), &alone).expect("a copy");
    let output = std::process::Command::new(&alone).args(["sockets", "--", "true"]).output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("cargo build --release -p adverb-sockets"),
        "{}",
        stderr(&output)
    );

    std::fs::copy("/bin/true", &program).expect("a copy");
    let mode = std::fs::Permissions::from_mode(0o2755);
    std::fs::set_permissions(&program, mode).expect("a file of ours");
    let run = |words: &[&str]| {
        let output = command(words).arg(&program).output().expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stderr(&output)
    };
    let words = run(&["sockets", "--library", "/dev/null", "--"]);
    assert!(words.contains("is set-group-ID"), "{words}");
    let words = run(&["sockets", "--library", "/dev/null", "-q", "--"]);
    assert!(!words.contains("is set-group-ID"), "{words}");
    let told = || run(&["sockets", "--library", "/dev/null", "--"]);
    // A program that is set-user-ID for another user takes the right to give files away.
    if std::os::unix::fs::chown(&program, Some(NOBODY), None).is_ok() {
        let mode = std::fs::Permissions::from_mode(0o4755);
        std::fs::set_permissions(&program, mode).expect("a file of ours");
        let words = told();
        assert!(words.contains("is set-user-ID"), "{words}");
    } else {
        eprintln!("skipped: set-user-ID for another user: no right to give a file away");
    }
    let go = "__attribute__((section(\".go.buildinfo\"))) int x = 1;";
    let each =
        [("", "-static", Some("is linked statically")), (go, "-O1", Some("is a Go program"))];
    for (code, flag, reason) in each.into_iter().chain([("", "-O1", None)]) {
        let source = place.join("program.c");
        std::fs::write(&source, format!("{code} int main(void) {{ return 0; }}")).expect("a file");
        std::fs::remove_file(&program).expect("a file of ours");
        let mut built = std::process::Command::new("cc");
        let built = built.arg(flag).arg(&source).arg("-o").arg(&program);
        assert!(built.status().expect("a C compiler").success());
        let words = told();
        let is_told = words.contains("its sockets are the kernel's");
        assert_eq!(is_told, reason.is_some(), "{flag}: {words}");
        assert!(reason.is_none_or(|reason| words.contains(reason)), "{flag}: {words}");
    }
    std::fs::remove_dir_all(&place).expect("it is ours");
}

/// The user that has nothing.
const NOBODY: u32 = 65_534;
