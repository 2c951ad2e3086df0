//! The examples, run as a reader would run them.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// An example, which cargo has built beside this test.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let target = test.parent().and_then(|deps| deps.parent()).expect("in target/…/deps");
    target.join("examples").join(name)
}

fn run(name: &str) -> Output {
    let example = example(name);
    Command::new(&example).output().unwrap_or_else(|error| panic!("{}: {error}", example.display()))
}

/// What an example prints, line by line.
fn lines(name: &str) -> Vec<String> {
    let output = run(name);
    assert!(output.status.success(), "{name}: {output:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn exercise_1_lists_devices_with_their_node_types() {
    let lines = lines("1_devices");
    assert!(lines.iter().any(|line| line.starts_with("soft_lo: InfiniBand channel adapter")));
}

#[test]
fn exercise_2_prints_a_gid_of_each_device() {
    let lines = lines("2_gids");
    assert!(
        lines.iter().any(|line| line.starts_with("soft_lo port 1 (active): GID[")),
        "{lines:?}"
    );
}

#[test]
fn exercise_3_registers_memory_three_ways() {
    let lines = lines("3_memory");
    let starts = ["4096 bytes, local read:", "4096 bytes, local write:"];
    for start in starts {
        assert!(lines.iter().any(|line| line.starts_with(start)), "{lines:?}");
    }
    assert!(lines.iter().any(|line| line.contains("local write, remote write")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("need local write access")), "{lines:?}");
}

#[test]
fn exercise_4_makes_completion_queues_with_and_without_a_channel() {
    let lines = lines("4_completion_queues");
    assert!(lines.iter().any(|line| line == "with a channel: Ok(())"), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("CqConfig::channel")), "{lines:?}");
}

#[test]
fn exercise_6_listens() {
    let target = std::env::current_exe().expect("this test has a path");
    let target = target.parent().and_then(|deps| deps.parent()).expect("in target/…/deps");
    let output =
        Command::new(target.join("examples/6_async_events")).args(["soft_lo", "0"]).output();
    let output = output.expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "listening on soft_lo\n");
}

#[test]
fn exercise_7_shares_receives_and_hears_that_they_run_low() {
    let lines = lines("7_srq");
    for number in 0..4 {
        let message = format!("message {number}");
        assert!(lines.iter().any(|line| line.ends_with(&message)), "{lines:?}");
    }
    assert!(lines.iter().any(|line| line.contains("SRQ_LIMIT_REACHED")), "{lines:?}");
}

#[test]
fn exercise_5_transfers_with_every_operation_over_rc_then_uc() {
    let lines = lines("5_transfer");
    for operation in ["SEND", "SEND with immediate", "WRITE", "WRITE with immediate"] {
        for transport in ["Rc", "Uc"] {
            let start = format!("{transport}: {operation}: ");
            assert!(lines.iter().any(|line| line.starts_with(&start)), "{start} in {lines:?}");
        }
    }
    for operation in ["READ", "FETCH AND ADD", "COMPARE AND SWAP", "ATOMIC WRITE"] {
        let start = format!("Rc: {operation}: ");
        assert!(lines.iter().any(|line| line.starts_with(&start)), "{start} in {lines:?}");
    }
    assert!(lines.iter().any(|line| line == "  there: 42"), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| *line == "  there: Written").count(), 2, "{lines:?}");
}

#[test]
fn exercise_8_answers_a_datagram_and_sends_one_to_a_group() {
    let lines = lines("8_datagrams");
    assert!(lines.iter().any(|line| line.starts_with("server: who is there? (from queue pair")));
    assert!(lines.iter().any(|line| line == "client: me"), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| line.ends_with(": to everybody")).count(), 2);
}

#[test]
fn a_session_echoes_what_it_is_sent() {
    let lines = lines("session_echo");
    for text in ["echo: hello", "echo: how are you?", "echo: goodbye"] {
        assert!(lines.iter().any(|line| line == text), "{lines:?}");
    }
}

/// Two hosts on one cable, and the server on the first of them; gone when the test is over.
struct Hosts {
    names: [String; 2],
    server: Option<Child>,
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill().and_then(|()| server.wait());
        }
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// Goal: what the example's header says about two machines is so: no word about devices.
#[test]
fn a_session_echoes_between_two_hosts() {
    const AT: &str = "10.9.5.1:9000";
    let names = [0, 1].map(|host| format!("adverb-echo-{host}-{}", std::process::id()));
    let [near, far] = &names;
    let ip = |words: &str| {
        Command::new("ip").args(words.split(' ')).output().is_ok_and(|o| o.status.success())
    };
    let made = ip(&format!("netns add {near}")) && ip(&format!("netns add {far}"));
    let mut hosts = Hosts { names: names.clone(), server: None };
    if !made {
        println!("skipped: no network namespaces");
        return;
    }
    assert!(ip(&format!("-n {near} link add eth0 type veth peer name eth0 netns {far}")));
    for (host, name) in (1..).zip(&names) {
        for words in
            ["link set lo up", "link set eth0 up", &format!("addr add 10.9.5.{host}/24 dev eth0")]
        {
            assert!(ip(&format!("-n {name} {words}")), "{words}");
        }
    }
    let on = |name: &str, role: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", name]).arg(example("session_echo")).args([role, AT]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    };
    hosts.server = Some(on(near, "server").spawn().expect("a server"));
    let limit = Instant::now() + Duration::from_secs(30);
    let client = loop {
        let mut running = on(far, "client").spawn().expect("a client");
        drop(running.stdin.take());
        while running.try_wait().expect("a child of ours").is_none() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = running.kill(); // It may have ended in the meantime.
        let client = running.wait_with_output().expect("a child of ours");
        if client.status.success() || Instant::now() > limit {
            break client; // Else the server does not listen yet.
        }
    };
    let said = String::from_utf8_lossy(&client.stdout);
    assert!(client.status.success() && said.ends_with("echo: goodbye\n"), "{client:?}");
}

#[test]
fn values_are_read_out_of_the_servers_table() {
    let expected = ["1: Some(\"one\")", "42: Some(\"the answer\")", "7: None"];
    assert_eq!(lines("session_kv"), expected);
}

#[test]
fn members_of_a_group_all_have_the_sum() {
    let sum = "[0.0, 10.0, 20.0] … Some(9990.0)"; // 1 + 2 + 3 + 4 of each.
    let expected: Vec<_> = (0..4).map(|rank| format!("member {rank}: {sum}")).collect();
    assert_eq!(lines("session_allreduce"), expected);
}

#[test]
fn examples_of_sessions_are_short() {
    for name in ["allreduce", "echo", "kv"] {
        let path = format!("{}/examples/session_{name}.rs", env!("CARGO_MANIFEST_DIR"));
        let lines = std::fs::read_to_string(path).expect("the example").lines().count();
        assert!(lines <= 80, "{name} has {lines} lines");
    }
}
