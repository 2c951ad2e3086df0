//! What rules, parameters and files say comes to pass in a program that runs: each test looks at what the
//! library tells of one connection.

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use support::{Place, library};

const SHARED: &str = "shared memory with the peer";
const RULED: &str = "a rule says os";

/// A program that talks to itself over one connection, in this environment, and what is in its log; `%` in
/// values is the test's directory.
fn said(name: &str, environment: &[(&str, &str)]) -> String {
    let place = Place::new(name);
    fs::write(place.0.join("rules"), RULES).expect("a file");
    fs::write(place.0.join("groups"), GROUPS).expect("a file");
    fs::write(place.0.join("toml"), TOML).expect("a file");
    let directory = place.0.to_str().expect("a path in Unicode");
    let mut command = Command::new(std::env::current_exe().expect("a path of this test"));
    command.args(["the_child", "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
    command.env("ADVERB_TEST_CHILD", "1").env("LD_PRELOAD", library::library());
    command.env("ADVERB_SOCKETS_SHM_DIR", place.rings()).env("ADVERB_SOCKETS_EXPLAIN", "1");
    command.env("VMA_LOG_FILE", format!("{directory}/log-%d"));
    for (variable, value) in environment {
        command.env(variable, value.replace('%', directory));
    }
    let child = command.stdout(std::process::Stdio::null()).spawn().expect("a child");
    let id = child.id();
    let output = child.wait_with_output().expect("a child");
    assert!(output.status.success(), "{environment:?}");
    // The manual's `%d` is the number of the process.
    fs::read_to_string(place.0.join(format!("log-{id}"))).expect("a log of that name")
}

const RULES: &str = "# Everything is the kernel's.\nuse os tcp_server *:*\nuse os tcp_client *:*\n";
const GROUPS: &str = "application-id configuration* mine\nuse os tcp_server *:*\nuse os tcp_client *:*\n\
                      application-id other *\nuse os tcp_server 10.0.0.0/8:*\n";
const TOML: &str = "quiet = true\nrules = [\"use os tcp_client 127.0.0.0/8:1-65535\"]\n\
                    [vma]\ntracelevel = \"DEBUG\"\n";

#[test]
fn without_a_word_a_connection_has_rings() {
    let said = said("plain", &[]);
    assert!(said.contains(SHARED), "{said}");
    assert!(!said.contains(RULED) && !said.contains("WARNING"), "{said}");
    // The banner, in the manual's form.
    assert!(said.contains("VMA INFO: ") && said.contains("VERSION"), "{said}");
}

#[test]
fn rules_of_the_manuals_file_hold() {
    let said = said("rules", &[("VMA_CONFIG_FILE", "%/rules")]);
    assert!(said.contains(RULED) && !said.contains(SHARED), "{said}");
}

#[test]
fn a_group_is_for_its_program_and_its_id_alone() {
    let file = ("VMA_CONFIG_FILE", "%/groups");
    let mine = said("mine", &[file, ("VMA_APPLICATION_ID", "mine")]);
    assert!(mine.contains(RULED) && !mine.contains(SHARED), "{mine}");
    let another = said("another", &[file, ("VMA_APPLICATION_ID", "another")]);
    assert!(another.contains(SHARED) && !another.contains(RULED), "{another}");
}

#[test]
fn our_own_file_has_parameters_and_rules() {
    let said = said("toml", &[("ADVERB_SOCKETS_CONFIG", "%/toml")]);
    assert!(said.contains(RULED) && !said.contains(SHARED), "{said}");
    assert!(!said.contains("VERSION"), "it is quiet: {said}");
}

#[test]
fn slips_warn_and_name_the_nearest() {
    let said = said("slips", &[("VMA_RX_POL", "1"), ("VMA_STATS_FD_NUM", "5000")]);
    assert!(said.contains("VMA WARNING: ") && said.contains("VMA_RX_POLL"), "{said}");
    assert!(said.contains("VMA_STATS_FD_NUM=5000 is not a number from 0 to 1024"), "{said}");
    assert!(said.contains(SHARED), "{said}");
}

#[test]
fn profiles_and_levels_show_in_the_banner() {
    let said = said("profile", &[("VMA_SPEC", "latency"), ("VMA_TRACELEVEL", "DEBUG")]);
    assert!(said.to_lowercase().contains("latency"), "{said}");
    // With details every parameter is printed.
    assert!(said.contains("VMA_RX_POLL"), "{said}");
}

#[test]
fn details_say_who_and_when() {
    let plain = said("plain-log", &[]);
    let detailed = said("details", &[("VMA_LOG_DETAILS", "3")]);
    let line = |text: &str| text.lines().find(|line| line.contains(SHARED)).map(str::to_owned);
    let (plain, detailed) = (line(&plain).expect("a line"), line(&detailed).expect("a line"));
    assert!(plain.starts_with("VMA INFO: "), "{plain}");
    assert!(detailed.starts_with("Time: ") && detailed.contains(" Tid: "), "{detailed}");
}

#[test]
fn a_transport_is_the_most_that_a_program_gets() {
    for (transport, shares) in [("os", false), ("spin", false), ("shm", true), ("best", true)] {
        let said = said(transport, &[("ADVERB_SOCKETS_TRANSPORT", transport)]);
        assert_eq!(said.contains(SHARED), shares, "{transport}: {said}");
    }
}

#[test]
fn nothing_is_accelerated_if_so_said() {
    let said = said("off", &[("VMA_OFFLOADED_SOCKETS", "0")]);
    assert!(!said.contains(SHARED), "{said}");
}

/// The program of these tests' own children.
#[test]
#[ignore = "the child of another test"]
fn the_child() {
    if std::env::var_os("ADVERB_TEST_CHILD").is_none() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    let mut client = TcpStream::connect(at).expect("a connection");
    let (mut server, _) = listener.accept().expect("a connection");
    let mut buffer = [0; 5];
    for _ in 0..10 {
        client.write_all(b"hello").expect("a connection");
        server.read_exact(&mut buffer).expect("a connection");
        server.write_all(&buffer).expect("a connection");
        client.read_exact(&mut buffer).expect("a connection");
    }
    assert_eq!(&buffer, b"hello");
}
