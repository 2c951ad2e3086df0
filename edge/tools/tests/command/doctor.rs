//! `adverb doctor` on machines that lack something: a limit, a port, room, and with what was left behind.
//!
//! Each is provoked for one process, by limits and namespaces of its own. What the kernel refuses is tested beside the
//! command's `doctor/kernel.rs`.

use std::fs;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use adverb_sys::udp::{BindOptions, Socket};
use serde_json::Value;

use super::{adverb, stderr, stdout};

/// What `adverb doctor` finds after a script, or `None` where that exits with 99, as it cannot do what it is to. Both have
/// namespaces of their own, which `unshare` names.
fn doctor_after(script: &str, unshare: &str, set: &[(&str, &str)]) -> Option<(Output, Vec<Value>)> {
    let mut command = Command::new("unshare");
    command.args([unshare, "sh", "-c", &format!("{script}\nexec \"$0\" doctor --json")]);
    command.arg(env!("CARGO_BIN_EXE_adverb")).env_remove("TMPDIR");
    command.env_remove("XDG_RUNTIME_DIR").env_remove("ADVERB_SOCKETS_SHM_DIR");
    let output = command.envs(set.iter().copied()).output().expect("unshare(1)");
    if output.status.code() == Some(99) || stderr(&output).contains("unshare:") {
        println!("skipped: no namespaces to be had: {}", stderr(&output));
        return None;
    }
    let all: Value = serde_json::from_slice(&output.stdout).expect("valid JSON");
    let all = all.get("findings").and_then(Value::as_array).expect("a list").clone();
    Some((output, all))
}

/// The finding of this check has this grade, and says that.
#[track_caller]
fn is_found(all: &[Value], check: &str, grade: &str, word: &str) {
    let finding = all.iter().find(|finding| finding["check"] == check).expect("a check");
    assert_eq!(finding["grade"], grade, "{finding}");
    let text = format!("{} {} {}", finding["found"], finding["cost"], finding["cure"]);
    assert!(text.contains(word), "{word}: {finding}");
}

#[test]
fn the_doctor_finds_a_low_limit_of_descriptors() {
    let Some((output, all)) = doctor_after("ulimit -n 200", "-n", &[]) else { return };
    is_found(&all, "descriptors", "costs", "200");
    // There is no interface either.
    is_found(&all, "devices", "broken", "ip link set lo up");
    assert_eq!(output.status.code(), Some(1));
    let Some((_, all)) = doctor_after("ulimit -n 4096", "-n", &[]) else { return };
    is_found(&all, "descriptors", "good", "4096");
}

/// Goal: the doctor names the address on which the port is taken, on whichever interface that is, and none that devices share.
/// Method: this test runs again in a network namespace of its own, where sockets take the port as other programs do, and as
/// devices.
#[test]
fn the_doctor_finds_a_port_that_is_taken_on_any_address() {
    if std::env::var_os("ADVERB_TEST_NAMESPACES").is_none() {
        let name = "doctor::the_doctor_finds_a_port_that_is_taken_on_any_address";
        let script = format!("{CABLE}\nexec \"$0\" --exact {name} --nocapture");
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", &script]).env("ADVERB_TEST_NAMESPACES", "1");
        let output = command.arg(std::env::current_exe().expect("a path of this test")).output();
        let output = output.expect("unshare(1)");
        if output.status.code() == Some(99) || stderr(&output).contains("unshare:") {
            return println!("skipped: no namespaces to be had: {}", stderr(&output));
        }
        assert!(output.status.success(), "{}\n{}", stdout(&output), stderr(&output));
        return assert!(stdout(&output).contains("1 passed"), "{}", stdout(&output));
    }
    let look = |grade, words: &[&str]| {
        let output = adverb(&["doctor", "--json"]);
        let all: Value = serde_json::from_slice(&output.stdout).expect("valid JSON");
        for word in words {
            is_found(all["findings"].as_array().expect("a list"), "UDP port 4791", grade, word);
        }
        assert_eq!(output.status.code(), Some(i32::from(grade == "broken")));
    };
    let other = |address: &str| UdpSocket::bind((address, 4791)).expect("a free port");
    look("good", &["free on 3 addresses"]);
    let holder = other("10.9.5.1");
    look("broken", &["taken on 10.9.5.1 (", "in use"]);
    drop(holder);
    let holder = other("0.0.0.0");
    look("broken", &["127.0.0.1 (", "10.9.5.1 ("]);
    drop(holder);
    let mut options = BindOptions::new("10.9.5.1:4791".parse().expect("an address"));
    options.reuse_port = true;
    let _device = Socket::bind(&options).expect("a free port");
    look("good", &["used on 1 by devices of this user"]);
    let _holder = other("::1");
    look("broken", &["taken on ::1 ("]);
}

const CABLE: &str = "ip link set lo up || exit 99
    ip link add one type veth peer name two || exit 99
    echo 1 > /proc/sys/net/ipv6/conf/one/disable_ipv6
    ip link set one up; ip addr add 10.9.5.1/24 dev one || exit 99";

/// Goal: a `/dev/shm` that is small, filled, full or missing is found as such.
#[test]
fn the_doctor_finds_shared_memory_that_is_small_or_full() {
    const MOUNT: &str = "mount -t tmpfs -o size=16m none /dev/shm || exit 99";
    let fill = |mebibytes| {
        format!("{MOUNT}; dd if=/dev/zero of=/dev/shm/x bs=1M count={mebibytes} 2>/dev/null")
    };
    for (script, tree, cost) in [
        (MOUNT.to_owned(), "good", "later connections go by the kernel"),
        (fill(9), "good", "do not grow"),
        (fill(13), "good", "get no shared memory"),
        (fill(20), "costs", "0 of 16 MiB are free"),
    ] {
        let Some((_, all)) = doctor_after(&script, "-m", &[]) else { return };
        is_found(&all, "room for rings", "costs", cost);
        is_found(&all, "shared memory", tree, "/dev/shm");
    }
    let script = "mount -t tmpfs -o size=1g none /dev/shm || exit 99";
    let Some((_, all)) = doctor_after(script, "-m", &[]) else { return };
    is_found(&all, "room for rings", "good", "1024 MiB");
}

/// A directory for directories, which goes with this value.
struct Base(PathBuf);

impl Drop for Base {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Goal: leftovers in `TMPDIR` and in `/dev/shm` are named, with what removes them, and do not count as broken.
#[test]
fn the_doctor_names_what_was_left_behind() {
    let user = adverb_sys::process::user();
    let base = std::env::temp_dir().join(format!("adverb-left-{}", std::process::id()));
    fs::create_dir(&base).expect("a place for files");
    let base = Base(base);
    let tree = base.0.join(format!("adverb-ibverbs-{user}-0123"));
    fs::create_dir(&tree).expect("a directory");
    let hour_ago = SystemTime::now() - Duration::from_secs(60 * 60);
    fs::File::open(&tree)
        .and_then(|tree| tree.set_modified(hour_ago))
        .expect("a directory of ours");
    let set = [("TMPDIR", base.0.to_str().expect("a path of letters"))];
    let script = format!(
        "mount -t tmpfs none /dev/shm || exit 99
        mkdir /dev/shm/adverb-drop-in-{user}-0123 /dev/shm/adverb-sockets-{user}
        touch -d '1 hour ago' /dev/shm/adverb-drop-in-{user}-0123"
    );
    let Some((output, all)) = doctor_after(&script, "-m", &set) else { return };
    let drop_in = format!("/dev/shm/adverb-drop-in-{user}-0123");
    let tree = tree.to_str().expect("a path of letters");
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    for what in [tree, &drop_in, &format!("/dev/shm/adverb-sockets-{user}"), "rm -r /"] {
        is_found(&all, "leftovers", "costs", what);
    }
    fs::remove_dir_all(tree).expect("it is there");
    let script = "mount -t tmpfs none /dev/shm || exit 99";
    let Some((_, all)) = doctor_after(script, "-m", &set) else { return };
    is_found(&all, "leftovers", "good", "none");
}
