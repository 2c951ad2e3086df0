//! `adverb run`, `adverb env` and `adverb doctor`.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

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
}

/// As shells and `env(1)` have it, so that scripts can tell.
#[test]
fn a_program_that_is_not_there_is_127_and_one_that_cannot_be_started_126() {
    for command in ["run", "sockets"] {
        for (program, code) in [("/nowhere/program", 127), ("no-such-program", 127), ("/", 126)] {
            let output = adverb(&[command, "--quiet", "--", program]);
            assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
            assert!(stderr(&output).contains(&format!("starting {program}: ")));
        }
    }
}

/// Goal: where files may not be as long as shared memory is, that is an error and not the end by a signal.
#[test]
fn a_limit_of_files_is_said_to_be_what_it_is() {
    for path in ["shm", "udp"] {
        let script = format!("ulimit -f 1; ADVERB_PATH={path} exec \"$0\" pingpong -n 10");
        let mut command = Command::new("sh");
        let output = command.args(["-c", &script, env!("CARGO_BIN_EXE_adverb")]).output();
        let output = output.expect("a shell");
        assert_eq!(output.status.code(), Some(1), "{:?} {}", output.status, stderr(&output));
        let said = stderr(&output);
        assert!(said.contains("File too large") && said.contains("adverb doctor"), "{said}");
    }
    let mut doctor = Command::new("sh");
    doctor.args(["-c", "ulimit -f 1; exec \"$0\" doctor", env!("CARGO_BIN_EXE_adverb")]);
    let said = stdout(&doctor.output().expect("a shell"));
    assert!(said.contains("file sizes: at most"), "{said}");
}

/// Goal: the program has this process's place: the signal that ends it is what the caller sees.
#[test]
fn a_signal_that_ends_the_program_ends_the_command() {
    let output = adverb(&["run", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(output.status.signal(), Some(15), "{}", stderr(&output));
}

/// Goal: what cannot work is said before the program runs, and what is set if that is asked for. Method: one that is linked
/// statically, which runs all the same.
#[test]
fn what_is_set_and_what_cannot_work_is_said_beforehand() {
    let base = std::env::temp_dir().join(format!("adverb-run-{}", std::process::id()));
    std::fs::create_dir(&base).expect("a place for files");
    let [source, program] = ["p.c", "p"].map(|name| base.join(name));
    std::fs::write(&source, "int main(void) { return 3; }").expect("it is written");
    let mut compiler = Command::new("cc");
    let compiled = compiler.arg("-static").arg(&source).arg("-o").arg(&program).status();
    let program = program.to_str().expect("a path of letters");
    let [said, quiet, explained] = [&[][..], &["--quiet"], &["--explain", "--path", "udp"]]
        .map(|options| adverb(&[&["run"], options, &["--", program]].concat()));
    std::fs::remove_dir_all(&base).expect("it was made");
    assert!(compiled.is_ok_and(|status| status.success()), "a C compiler");
    for output in [&said, &quiet, &explained] {
        assert_eq!(output.status.code(), Some(3), "{}", stderr(output));
    }
    assert!(stderr(&said).contains("linked statically"), "{}", stderr(&said));
    assert_eq!(stderr(&quiet), "");
    let explained = stderr(&explained);
    assert!(explained.contains("adverb: ADVERB_PATH=udp"), "{explained}");
    assert!(explained.contains("soft_lo has the GIDs"), "{explained}");
}

/// Goal: so is that the system loads no library into a program, of which it runs with the rights of another user or group.
#[test]
fn a_program_into_which_no_library_is_loaded_is_told_of() {
    let base = std::env::temp_dir().join(format!("adverb-run-set-{}", std::process::id()));
    std::fs::create_dir(&base).expect("a place for files");
    let program = base.join("p");
    std::fs::copy("/bin/true", &program).expect("a copy");
    let words = program.to_str().expect("a path of letters");
    let run = |owner: Option<u32>, mode| {
        if chown(&program, owner, None).is_err() {
            return None;
        }
        std::fs::set_permissions(&program, Permissions::from_mode(mode)).expect("a file of ours");
        let [said, quiet] =
            [&["run"][..], &["run", "--quiet"]].map(|how| adverb(&[how, &["--", words]].concat()));
        assert_eq!((said.status.code(), quiet.status.code()), (Some(0), Some(0)));
        assert_eq!(stderr(&quiet), "");
        Some(stderr(&said))
    };
    let plain = run(None, 0o755);
    let group = run(None, 0o2755);
    let user = run(Some(65_534), 0o4755);
    std::fs::remove_dir_all(&base).expect("it was made");
    assert_eq!(plain.as_deref(), Some(""));
    let is_told = |said: &str, what| said.contains(what) && said.contains("no software device");
    assert!(group.as_deref().is_some_and(|said| is_told(said, "is set-group-ID")), "{group:?}");
    match user {
        Some(said) => assert!(is_told(&said, "is set-user-ID"), "{said}"),
        None => println!("skipped: set-user-ID for another user: no right to give a file away"),
    }
}

/// Goal: a program that would end because a library is in front of it is told of before, and runs with the other way.
#[test]
fn a_program_with_a_sanitizer_is_told_of() {
    let base = std::env::temp_dir().join(format!("adverb-run-asan-{}", std::process::id()));
    std::fs::create_dir(&base).expect("a place for files");
    let [source, program] = ["p.c", "p"].map(|name| base.join(name));
    std::fs::write(&source, "int main(void) { return 3; }").expect("it is written");
    let mut compiler = Command::new("cc");
    let compiled = compiler.arg("-fsanitize=address").arg(&source).arg("-o").arg(&program).status();
    let words = program.to_str().expect("a path of letters");
    let [preloaded, dropped_in] = [&["run"][..], &["run", "--drop-in"]]
        .map(|options| adverb(&[options, &["--", words]].concat()));
    std::fs::remove_dir_all(&base).expect("it was made");
    if !compiled.is_ok_and(|status| status.success()) {
        println!("skipped: no AddressSanitizer");
        return;
    }
    assert!(stderr(&preloaded).contains("use --drop-in"), "{}", stderr(&preloaded));
    assert_eq!(dropped_in.status.code(), Some(3), "{}", stderr(&dropped_in));
    assert_eq!(stderr(&dropped_in), "");
}

#[test]
fn the_environment_is_printed_for_a_shell() {
    let output = adverb(&["env", "--path", "shm"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = stdout(&output);
    assert!(said.contains("export LD_PRELOAD='/"), "{said}");
    assert!(said.contains("export ADVERB_PATH='shm'"), "{said}");
}

/// Goal: with `--drop-in` the first directory for libraries has ours under the names of libibverbs, and nothing is preloaded.
#[test]
fn the_drop_in_is_where_libraries_are_looked_for_first() {
    let ours = |first: &str, preloaded: &str| {
        assert!(!preloaded.contains("libadverb_ibverbs"), "{preloaded}");
        let directory = first.split(':').next().expect("a directory");
        for name in ["libibverbs.so.1", "libibverbs.so"] {
            let library = std::fs::read_link(format!("{directory}/{name}")).expect("a link");
            assert!(library.ends_with("libadverb_ibverbs.so"), "{library:?}");
        }
    };
    let show = r#"echo "$LD_LIBRARY_PATH"; echo "$LD_PRELOAD""#;
    let run = stdout(&adverb(&["run", "--drop-in", "--", "sh", "-c", show]));
    let [first, preloaded] = [0, 1].map(|line| run.lines().nth(line).unwrap_or_default());
    ours(first, preloaded);

    let printed = stdout(&adverb(&["env", "--drop-in"]));
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{printed}\n{show}")]).env_remove("LD_PRELOAD");
    let shell = stdout(&shell.output().expect("a shell"));
    let [first, preloaded] = [0, 1].map(|line| shell.lines().nth(line).unwrap_or_default());
    ours(first, preloaded);
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
