//! Programs that measure, and look at what they get.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::running::{
    A_MINUTE, Running, are_installed, explain, explained, ringed, succeed, until,
};
use crate::support::{Place, free_port};

#[test]
fn iperf3_sends_and_receives() {
    if !are_installed(&["iperf3"]) {
        return;
    }
    let place = Place::new("iperf3");
    for arguments in [&["-n", "200M"][..], &["-n", "50M", "-R"], &["-n", "50M", "-P", "4"]] {
        let port = free_port().to_string();
        let mut server = place.command("iperf3");
        let server = server.args(["-s", "-1", "-p", &port]).stdout(Stdio::null());
        let mut server = Running::start(explain(&place, server));
        let before = ringed(&place);
        wait_for(&port, "tcp");
        let mut client = place.command("iperf3");
        client.args(["-c", "127.0.0.1", "-p", &port]).args(arguments);
        let said = succeed(&mut client);
        assert!(said.contains("receiver"), "{said}");
        server.end();
        let lines = fs::read_to_string(explained(&place)).expect("a file");
        assert!(ringed(&place) > before, "{arguments:?} had no rings:\n{lines}");
    }
}

/// Waits until a process listens on this port, without connecting: some programs serve the first client only.
fn wait_for(port: &str, protocol: &str) {
    let port: u16 = port.parse().expect("a port");
    let port = format!(":{port:04X} ");
    let state = if protocol == "tcp" { " 0A " } else { " 07 " };
    until("a process listens", || {
        let sockets =
            ["", "6"].map(|kind| fs::read_to_string(format!("/proc/net/{protocol}{kind}")));
        let mut lines = sockets.iter().flatten().flat_map(|sockets| sockets.lines());
        lines.any(|line| line.contains(&port) && line.contains(state))
    });
}

fn sockperf_server(place: &Place, port: &str, protocol: &[&str]) -> Running {
    let mut server = place.command("sockperf");
    server.args(["sr", "-i", "127.0.0.1", "-p", port]).args(protocol);
    let running = Running::start(server.stdout(Stdio::null()));
    wait_for(port, if protocol.contains(&"--tcp") { "tcp" } else { "udp" });
    running
}

/// What sockperf says of a second in which it got to measure anything: on a busy machine, its program
/// or its server may have had none of it.
fn measured(client: &mut Command) -> String {
    let start = Instant::now();
    loop {
        let said = succeed(client);
        if !said.contains("No valid observations found") || start.elapsed() > A_MINUTE {
            return said;
        }
    }
}

#[test]
fn sockperf_finds_every_byte_in_its_place() {
    if !are_installed(&["sockperf"]) {
        return;
    }
    let place = &Place::new("sockperf");
    let measure = |protocol: &[&str]| {
        let port = free_port().to_string();
        let _server = sockperf_server(place, &port, protocol);
        let mut client = place.command("sockperf");
        client.args(["pp", "-i", "127.0.0.1", "-p", &port, "-t", "1", "-m", "200"]);
        client.args(["--data-integrity", "--mps=100000"]).args(protocol);
        let said = measured(&mut client);
        assert!(said.contains("percentile 50.0"), "{said}");
        assert!(!said.to_lowercase().contains("data integrity test failed"), "{said}");
    };
    std::thread::scope(|threads| {
        for protocol in [&["--tcp"][..], &[]] {
            threads.spawn(move || measure(protocol));
        }
    });
}

/// Goal: UDP between two accelerated programs goes through a mailbox, in order and whole, and one
/// that is not accelerated is served on the same socket.
#[test]
fn sockperf_gets_its_datagrams_in_order_through_a_mailbox() {
    if !are_installed(&["sockperf"]) {
        return;
    }
    let modes = [&["pp", "--mps=100000"][..], &["ul", "--mps=20000"], &["tp", "--mps=50000"]];
    // It mostly waits, so all modes are measured at the same time.
    std::thread::scope(|threads| {
        for mode in modes {
            threads.spawn(move || measure_mail(mode));
        }
    });
}

/// Goal: programs that start long after the first one find its mailboxes: the directory of them stays.
#[test]
fn the_directory_of_mailboxes_outlives_the_start_of_other_programs() {
    if !are_installed(&["python3"]) {
        return;
    }
    const RECEIVE: &str = "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); \
        s.bind((\"127.0.0.1\", 0)); s.settimeout(0.01)\ntry: s.recv(9)\nexcept TimeoutError: pass\n\
        print(\"ready\", flush=True); sys.stdin.read()";
    let place = Place::new("directory");
    let directory = || {
        let all = fs::read_dir(place.rings()).expect("a meeting place");
        let mut all = all.map(|file| file.expect("a file"));
        // A mailbox has the number of its socket behind that.
        let is_directory = |name: &str| name.starts_with("udp.") && name.matches('.').count() == 2;
        let found = all.find(|file| is_directory(file.file_name().to_str().expect("text")));
        found.expect("a directory of mailboxes").metadata().expect("its inode").ino()
    };
    let start = || {
        let mut command = place.command("python3");
        command.args(["-c", RECEIVE]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a program");
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
        lines.read_line(&mut line).expect("a line");
        child
    };
    let mut first = start();
    let before = directory();
    // By then it counts as old.
    std::thread::sleep(Duration::from_secs(4));
    let mut second = start();
    assert_eq!(directory(), before);
    for child in [&mut first, &mut second] {
        drop(child.stdin.take());
        child.wait().expect("its end");
    }
}

fn measure_mail(mode: &[&str]) {
    let place = Place::new(&format!("mail-{}", mode[0]));
    let port = free_port().to_string();
    let report = place.0.join("report");
    let _server = sockperf_server(&place, &port, &[]);
    let mut client = place.command("sockperf");
    client.args(mode).args(["-i", "127.0.0.1", "-p", &port, "-t", "1", "-m", "200"]);
    if mode[0] == "pp" {
        client.arg("--data-integrity").env("VMA_STATS_FILE", &report);
    }
    until("many packets go through a mailbox", || {
        let said = measured(&mut client);
        assert!(!said.to_lowercase().contains("data integrity test failed"), "{said}");
        if mode[0] != "tp" {
            assert!(said.contains("# duplicated messages = 0"), "{said}");
            assert!(said.contains("# out-of-order messages = 0"), "{said}");
        }
        if mode[0] != "pp" {
            return true;
        }
        // "VMA: [fd=4] Rx Offload: kilobytes / packets / errors [...]"
        let text = fs::read_to_string(&report).expect("a report");
        fs::remove_file(&report).expect("a report");
        let line = text.lines().find(|line| line.contains("Rx Offload")).expect("a line");
        let packets = line.split(" / ").nth(1).and_then(|count| count.parse().ok());
        packets.is_some_and(|packets: u64| packets > 100)
    });
    let mut plain = Command::new("sockperf");
    plain.args(["pp", "-i", "127.0.0.1", "-p", &port, "-t", "1", "--data-integrity"]);
    let said = measured(&mut plain);
    assert!(said.contains("# out-of-order messages = 0"), "{said}");
}

/// Goal: under load, in both directions at once, no message is lost, doubled or changed.
/// Method: sockperf's own pattern and numbers, over a stream, and over several sockets behind each of
/// the calls that wait for them.
#[test]
fn sockperf_under_load_verifies() {
    if !are_installed(&["sockperf"]) {
        return;
    }
    let ways = [&[][..], &["-F", "epoll"], &["-F", "poll"], &["-F", "select"]];
    // It mostly waits, so all ways are measured at the same time.
    std::thread::scope(|threads| {
        for waits in ways {
            threads.spawn(move || measure_load(waits));
        }
    });
}

fn measure_load(waits: &[&str]) {
    let place = Place::new(&format!("load{}", waits.concat()));
    let ports = [free_port(), free_port()];
    let feed = place.0.join("feed");
    let lines = ports.map(|port| format!("T:127.0.0.1:{port}\n"));
    fs::write(&feed, lines.concat()).expect("a file");
    let mut server = place.command("sockperf");
    match waits {
        [] => server.args(["sr", "--tcp", "-i", "127.0.0.1", "-p", &ports[0].to_string()]),
        waits => server.arg("sr").arg("-f").arg(&feed).args(waits),
    };
    let _server = Running::start(server.stdout(Stdio::null()));
    wait_for(&ports[0].to_string(), "tcp");
    let mut client = place.command("sockperf");
    client.args(["ul", "-t", "1", "-m", "300", "--mps=20000", "--reply-every=1"]);
    match waits {
        [] => client.args(["--tcp", "-i", "127.0.0.1", "-p", &ports[0].to_string()]),
        waits => {
            wait_for(&ports[1].to_string(), "tcp");
            client.arg("-f").arg(&feed).args(waits)
        }
    };
    let said = measured(&mut client);
    // It calls "dropped" what comes late, and "out of order" what comes on another connection.
    assert!(said.contains("# duplicated messages = 0"), "{waits:?}\n{said}");
    assert!(!waits.is_empty() || said.contains("# out-of-order messages = 0"), "{said}");
    assert!(said.contains("percentile 50.0"), "{said}");
}

/// Goal: a server that spins ends when it is told to, at whatever instant.
#[test]
fn sockperf_ends_when_it_is_interrupted() {
    if !are_installed(&["sockperf"]) {
        return;
    }
    let place = Place::new("interrupt");
    for round in 0..interrupts() {
        for transport in ["spin", "best"] {
            for protocol in [&["--tcp"][..], &[]] {
                let port = free_port().to_string();
                let mut server = place.command("sockperf");
                server.args(["sr", "-i", "127.0.0.1", "-p", &port]).args(protocol);
                server.env("ADVERB_SOCKETS_TRANSPORT", transport);
                let mut server = Running::start(server.stdout(Stdio::null()));
                wait_for(&port, if protocol.is_empty() { "udp" } else { "tcp" });
                let mut client = place.command("sockperf");
                client.args(["pp", "-i", "127.0.0.1", "-p", &port, "-t", "20"]).args(protocol);
                let client = Running::start(client.stdout(Stdio::null()));
                std::thread::sleep(Duration::from_millis(100 + round * 37 % 100));
                if round % 2 == 0 {
                    drop(client); // Nothing wakes the server but the signal.
                    std::thread::sleep(Duration::from_micros(round * 311 % 2000));
                }
                server.signal("INT");
                server.end();
            }
        }
    }
}

fn interrupts() -> u64 {
    std::env::var("ADVERB_INTERRUPTS").map_or(3, |rounds| rounds.parse().expect("a number"))
}

/// Says how much memory a connection takes whose descriptors are as high as is allowed.
const HIGH: &str = r#"
import os, resource, socket, sys
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
try:  # As high as any process may go, if we may.
    most = int(open("/proc/sys/fs/nr_open").read())
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
    hard = most
except (OSError, ValueError):
    pass
limit = 1024 if sys.argv[1] == "low" else hard
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
os.dup2(server.fileno(), limit - 1)
high = socket.socket(fileno=limit - 1)
for _ in range(100):
    client.sendall(b"x" * 100)
    assert high.recv(100) == b"x" * 100
    high.sendall(b"y" * 100)
    assert client.recv(100) == b"y" * 100
status = open("/proc/self/status").read()
print(limit, status.split("VmRSS:")[1].split()[0])
"#;

/// Goal: what a program may open costs nothing, what it opens does.
/// Method: the same connection with few descriptors allowed, and with all that there may be; a word for
/// each would be megabytes.
#[test]
fn a_high_limit_of_descriptors_costs_nothing() {
    if !are_installed(&["python3"]) {
        return;
    }
    let place = Place::new("limit");
    let run = |which: &str| {
        let mut program = place.command("python3");
        let said = succeed(program.args(["-c", HIGH, which]));
        let numbers: Vec<u64> = said.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        (numbers[0], numbers[1])
    };
    let ((_, low), (limit, high)) = (run("low"), run("high"));
    if limit > 1024 {
        assert!(high < low + 1024, "{low} KiB with 1024 descriptors, {high} with {limit}");
    }
}
