//! A network namespace for one test: no other process's packets, and a registry of its own.
//!
//! The test runs itself again there. Where that is not allowed, it runs among the others, which it
//! is told: counts that others can change are then not exact.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::process::Command;

/// Set in the environment of a test that runs in a namespace of its own.
const VARIABLE: &str = "ADVERB_TEST_ALONE";

/// Brings the loopback interface up and runs its arguments.
const SCRIPT: &str = r#"ip link set lo up || exit 99; exec "$@""#;

/// Runs `test`, whose full name is `name`, in a namespace of its own.
pub(crate) fn alone(name: &str, test: impl FnOnce()) {
    alone_on(None, name, test);
}

/// Runs `test`, whose full name is `name`, in a namespace of its own and over UDP: its packets are
/// what it is about.
pub(crate) fn over_udp(name: &str, test: impl FnOnce()) {
    alone_on(Some("udp"), name, test);
}

/// Runs `test`, whose full name is `name`, in a namespace of its own, where frames can be had.
pub(crate) fn over_frames(name: &str, test: impl FnOnce()) {
    let kind = adverb_sys::bpf::MapKind::XdpSockets;
    match adverb_sys::bpf::Map::create(kind, 4, 4, 1) {
        Ok(_) => alone_on(Some("xdp"), name, test),
        Err(error) => println!("skipped: no AF_XDP to be had: {error}"),
    }
}

fn alone_on(path: Option<&str>, name: &str, test: impl FnOnce()) {
    if std::env::var_os(VARIABLE).is_some() {
        return test();
    }
    for flags in ["-n", "-rn"] {
        let mut command = Command::new("unshare");
        command.args([flags, "sh", "-c", SCRIPT, "sh"]).arg(program());
        command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(VARIABLE, "1");
        if let Some(path) = path {
            command.env("ADVERB_PATH", path);
        }
        let Ok(output) = command.output() else {
            break;
        };
        let text = String::from_utf8_lossy(&output.stdout);
        if text.contains("running 1 test") {
            println!("{text}");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "in a namespace of its own:\n{errors}");
            return;
        }
        assert!(!output.status.success(), "the test has not run: {text}");
    }
    if path.is_some() && std::env::var("ADVERB_PATH").ok().as_deref() != path {
        println!("skipped: no network namespace, and the path is another");
        return;
    }
    println!("no namespace to be had: {name} runs among the others");
    test();
}

/// This test program.
pub(crate) fn program() -> std::path::PathBuf {
    std::env::current_exe().expect("we are somewhere")
}

/// Whether no other process uses the network here.
pub(crate) fn is_alone() -> bool {
    std::env::var_os(VARIABLE).is_some()
}
