//! Other people's programs, unmodified, under the library; and programs that are killed.
//!
//! A program that is not installed is skipped, and said so.

#![expect(clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::free_port;

/// Where the library is: beside this test, or one up.
fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a path of this test");
    let deps = exe.parent().expect("a directory");
    let places = [deps.to_owned(), deps.parent().expect("a directory").to_owned()];
    let files = places.map(|place| place.join("libadverb_sockets.so"));
    files.into_iter().find(|file| file.exists()).expect("the library has been built")
}

/// A directory of this test's own, where rings meet and files lie. It is gone afterwards.
#[derive(Debug)]
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/adverb-test-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    /// A command that runs with the library in front of it, and leads a process group.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", library());
        command.env("ADVERB_SOCKETS_SHM_DIR", &self.0);
        command.env("ADVERB_SOCKETS_QUIET", "1");
        command.stdin(Stdio::null()).process_group(0);
        command
    }

    /// Rings that lie there.
    fn rings(&self) -> usize {
        let entries = fs::read_dir(&self.0).expect("a directory");
        let names = entries.flatten().map(|entry| entry.file_name());
        names.filter(|name| name.len() == 32).count()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A program that runs until this is dropped, with all that it starts.
#[derive(Debug)]
struct Running(Child);

impl Running {
    fn start(command: &mut Command, port: u16) -> Self {
        let child = command.stdout(Stdio::null()).spawn().expect("a program");
        let running = Self(child);
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(20), "nobody listens on {port}");
            std::thread::sleep(Duration::from_millis(20));
        }
        running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_installed(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("a program");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    format!("{stdout}{stderr}")
}

#[test]
fn redis_serves_its_benchmark() {
    if !is_installed("redis-server") || !is_installed("redis-benchmark") {
        return;
    }
    let (place, port) = (Place::new("redis"), free_port().to_string());
    let mut server = place.command("redis-server");
    server.args(["--port", &port, "--bind", "127.0.0.1", "--save", ""]).current_dir(&place.0);
    let _server = Running::start(&mut server, port.parse().expect("a port"));
    let mut benchmark = place.command("redis-benchmark");
    benchmark.args([
        "-p",
        &port,
        "-n",
        "20000",
        "-c",
        "50",
        "-q",
        "-t",
        "set,get,lpush,lrange_100",
    ]);
    let said = succeed(benchmark.env("ADVERB_SOCKETS_EXPLAIN", "1"));
    assert!(said.contains("requests per second"), "{said}");
    let mut pipelined = place.command("redis-benchmark");
    succeed(
        pipelined
            .args(["-p", &port, "-n", "50000", "-P", "16", "-q", "-t", "set,get", "-d", "3000"]),
    );
    // A client that is not accelerated is served on the same socket.
    let mut client =
        TcpStream::connect(("127.0.0.1", port.parse().expect("a port"))).expect("redis");
    client.write_all(b"PING\r\n").expect("redis");
    let mut answer = [0; 7];
    client.read_exact(&mut answer).expect("redis");
    assert_eq!(&answer, b"+PONG\r\n");
}

#[test]
fn nginx_serves_files_from_several_workers() {
    if !is_installed("nginx") || !is_installed("curl") {
        return;
    }
    let (place, port) = (Place::new("nginx"), free_port());
    let root = place.0.join("root");
    fs::create_dir_all(root.join("logs")).expect("a directory");
    let page: Vec<u8> =
        (0..300_000_u32).map(|n| b'a' + u8::try_from(n % 23).expect("small")).collect();
    fs::write(root.join("page"), &page).expect("a file");
    let (place_dir, root_dir) = (place.0.display(), root.display());
    let user = if is_root() { "user root;" } else { "" };
    let config = format!(
        "{user} worker_processes 2; pid {place_dir}/pid; error_log {place_dir}/log; daemon off;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; server {{ listen 127.0.0.1:{port}; root {root_dir}; sendfile on; }} }}\n"
    );
    let file = place.0.join("nginx.conf");
    fs::write(&file, config).expect("a file");
    let mut server = place.command("nginx");
    server.arg("-c").arg(&file).arg("-p").arg(&root);
    let _server = Running::start(&mut server, port);
    for _ in 0..5 {
        let mut curl = place.command("curl");
        curl.args(["-s", "-f", &format!("http://127.0.0.1:{port}/page")]);
        let Output { status, stdout, .. } = curl.output().expect("curl");
        assert!(status.success(), "{status}");
        assert_eq!(stdout, page);
    }
    if is_installed("wrk") {
        let mut wrk = place.command("wrk");
        let url = format!("http://127.0.0.1:{port}/page");
        let said = succeed(wrk.args(["-t1", "-c20", "-d1s", &url]));
        assert!(!said.contains("Socket errors") && !said.contains("Non-2xx"), "{said}");
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0)
}

#[test]
fn iperf3_sends_and_receives() {
    if !is_installed("iperf3") {
        return;
    }
    let place = Place::new("iperf3");
    for arguments in [&["-n", "200M"][..], &["-n", "50M", "-R"], &["-n", "50M", "-P", "4"]] {
        let port = free_port().to_string();
        let mut server = place.command("iperf3");
        let server = server.args(["-s", "-1", "-p", &port]).stdout(Stdio::null());
        let mut server = server.spawn().expect("iperf3");
        std::thread::sleep(Duration::from_millis(500));
        let mut client = place.command("iperf3");
        client.args(["-c", "127.0.0.1", "-p", &port]).args(arguments);
        let said = succeed(&mut client);
        assert!(said.contains("receiver"), "{said}");
        server.wait().expect("iperf3");
    }
}

#[test]
fn sockperf_finds_every_byte_in_its_place() {
    if !is_installed("sockperf") {
        return;
    }
    let place = Place::new("sockperf");
    for protocol in [&["--tcp"][..], &[]] {
        let port = free_port().to_string();
        let mut server = place.command("sockperf");
        server.args(["sr", "-i", "127.0.0.1", "-p", &port]).args(protocol);
        let _server = Running(server.stdout(Stdio::null()).spawn().expect("sockperf"));
        std::thread::sleep(Duration::from_millis(500));
        let mut client = place.command("sockperf");
        client.args(["pp", "-i", "127.0.0.1", "-p", &port, "-t", "1", "-m", "200"]);
        client.args(["--data-integrity", "--mps=100000"]).args(protocol);
        let said = succeed(&mut client);
        assert!(said.contains("percentile 50.0"), "{said}");
        assert!(!said.to_lowercase().contains("data integrity test failed"), "{said}");
    }
}

/// Goal: UDP between two accelerated programs goes through a mailbox, in order and whole, and one
/// that is not accelerated is served on the same socket.
#[test]
fn sockperf_gets_its_datagrams_in_order_through_a_mailbox() {
    if !is_installed("sockperf") {
        return;
    }
    let place = Place::new("mail");
    for mode in [&["pp", "--mps=100000"][..], &["ul", "--mps=20000"], &["tp", "--mps=50000"]] {
        let port = free_port().to_string();
        let report = place.0.join("report");
        let mut server = place.command("sockperf");
        server.args(["sr", "-i", "127.0.0.1", "-p", &port]);
        let _server = Running(server.stdout(Stdio::null()).spawn().expect("sockperf"));
        std::thread::sleep(Duration::from_millis(500));
        let mut client = place.command("sockperf");
        client.args(mode).args(["-i", "127.0.0.1", "-p", &port, "-t", "1", "-m", "200"]);
        if mode[0] == "pp" {
            client.arg("--data-integrity").env("VMA_STATS_FILE", &report);
        }
        let said = succeed(&mut client);
        assert!(!said.to_lowercase().contains("data integrity test failed"), "{said}");
        if mode[0] != "tp" {
            assert!(said.contains("# duplicated messages = 0"), "{said}");
            assert!(said.contains("# out-of-order messages = 0"), "{said}");
        }
        if mode[0] == "pp" {
            // "VMA: [fd=4] Rx Offload: kilobytes / packets / errors [...]"
            let report = fs::read_to_string(&report).expect("a report");
            let line = report.lines().find(|line| line.contains("Rx Offload")).expect("a line");
            let packets = line.split(" / ").nth(1).and_then(|count| count.parse().ok());
            assert!(packets.is_some_and(|packets: u64| packets > 100), "{report}");
        }
        let mut plain = Command::new("sockperf");
        plain.args(["pp", "-i", "127.0.0.1", "-p", &port, "-t", "1", "--data-integrity"]);
        let said = succeed(&mut plain);
        assert!(said.contains("# out-of-order messages = 0"), "{said}");
    }
}

/// Goal: whoever asks a server that is killed at any instant is refused, and nothing stays behind.
#[test]
fn servers_of_datagrams_that_are_killed_refuse() {
    let (place, port) = (Place::new("kill-udp"), free_port());
    let myself = std::env::current_exe().expect("a path of this test");
    let myself = myself.to_str().expect("a path in Unicode");
    let child = |variable: &str| {
        let mut command = place.command(myself);
        command.args(["the_child", "--exact"]).env(variable, port.to_string());
        command.stdout(Stdio::null());
        command
    };
    for round in 0..40_u64 {
        let server = Running(child("ADVERB_TEST_SERVE_UDP").spawn().expect("a server"));
        let mut client = Running(child("ADVERB_TEST_CALL_UDP").spawn().expect("a client"));
        std::thread::sleep(Duration::from_millis(60 + round * 7 % 40));
        drop(server);
        let start = Instant::now();
        let ended = loop {
            if let Some(ended) = client.0.try_wait().expect("a client") {
                break ended;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "the client hangs, round {round}");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(ended.success(), "the client found something wrong, round {round}");
    }
    // The next program that starts cleans up after those that were killed.
    succeed(child("ADVERB_TEST_CALL_UDP").env("ADVERB_TEST_ONCE", "1"));
    let names = fs::read_dir(&place.0).expect("a directory").flatten();
    let names: Vec<_> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let boxes = names.iter().filter(|name| name.matches('.').count() == 3).count();
    assert_eq!(boxes, 0, "{names:?}");
}

/// Echoes datagrams for ever.
fn serve_datagrams(port: u16) {
    let socket = UdpSocket::bind(("127.0.0.1", port)).expect("a port");
    let mut buffer = [0; 2000];
    while let Ok((got, from)) = socket.recv_from(&mut buffer) {
        let _ = socket.send_to(&buffer[..got], from);
    }
}

/// Asks until it is refused, and asks again where no answer comes: what a server that dies has in its
/// queue is lost.
fn call_datagrams(port: u16) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.connect(("127.0.0.1", port)).expect("an address");
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a limit");
    let mut answers = 0_u64;
    let mut buffer = [0; 2000];
    let start = Instant::now();
    loop {
        let asked = socket.send(&answers.to_le_bytes());
        let answered = asked.and_then(|_| socket.recv(&mut buffer));
        match answered {
            Ok(got) => {
                let answer = u64::from_le_bytes(buffer[..got].try_into().expect("eight bytes"));
                assert!(answer <= answers, "{answer} when asked {answers}");
                answers += u64::from(answer == answers);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
                let once = std::env::var_os("ADVERB_TEST_ONCE").is_some();
                if once || answers > 0 || start.elapsed() > Duration::from_secs(30) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// The program of this test's own children: what it does stands in the environment.
#[test]
fn the_child() {
    match (std::env::var("ADVERB_TEST_SERVE"), std::env::var("ADVERB_TEST_CALL")) {
        (Ok(port), _) => serve(port.parse().expect("a port")),
        (_, Ok(port)) => call(port.parse().expect("a port")),
        _ => {}
    }
    let udp =
        ["ADVERB_TEST_SERVE_UDP", "ADVERB_TEST_CALL_UDP"].map(|name| std::env::var(name).ok());
    let port = |port: &String| port.parse().expect("a port");
    match udp.each_ref().map(Option::as_ref) {
        [Some(at), _] => serve_datagrams(port(at)),
        [None, Some(at)] => call_datagrams(port(at)),
        [None, None] => {}
    }
}

/// Echoes to everybody at once. Whoever sends a `?` first is told how many others are there.
fn serve(port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("a port");
    let there = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        let there = std::sync::Arc::clone(&there);
        std::thread::spawn(move || {
            there.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let mut buffer = [0; 5000];
            while let Ok(got @ 1..) = stream.read(&mut buffer) {
                let others = there.load(std::sync::atomic::Ordering::SeqCst) - 1;
                let count = others.to_string();
                let answer = if buffer[0] == b'?' { count.as_bytes() } else { &buffer[..got] };
                if stream.write_all(answer).is_err() {
                    break;
                }
            }
            there.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
        });
    }
}

/// Talks for ever, and checks what comes back.
fn call(port: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server");
    let mut writer = stream.try_clone().expect("a copy");
    std::thread::spawn(move || {
        let block: Vec<u8> = (0..251).collect();
        while writer.write_all(&block).is_ok() {}
    });
    let mut at = 0_usize;
    let mut buffer = [0; 4000];
    while let Ok(got @ 1..) = stream.read(&mut buffer) {
        for byte in &buffer[..got] {
            assert_eq!(usize::from(*byte), at % 251, "at {at}");
            at += 1;
        }
    }
}

/// Goal: a peer that is killed at any instant is gone for the other end, and nothing stays behind.
#[test]
fn clients_that_are_killed_under_load_leave_nothing_behind() {
    let (place, port) = (Place::new("kill"), free_port());
    let myself = std::env::current_exe().expect("a path of this test");
    let myself = myself.to_str().expect("a path in Unicode");
    let child = |variable: &str| {
        let mut command = place.command(myself);
        command.args(["the_child", "--exact"]).env(variable, port.to_string());
        command.stdout(Stdio::null());
        command
    };
    let _server = Running::start(&mut child("ADVERB_TEST_SERVE"), port);
    for round in 0..60_u64 {
        let mut client = child("ADVERB_TEST_CALL").spawn().expect("a client");
        std::thread::sleep(Duration::from_millis(15 + round * 7 % 40));
        let ended = client.try_wait().expect("a client");
        assert!(ended.is_none(), "the client found something wrong");
        client.kill().expect("a client");
        client.wait().expect("a client");
    }
    // This process is not accelerated, and asks.
    let start = Instant::now();
    loop {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server");
        stream.write_all(b"?").expect("the server");
        let mut answer = [0; 10];
        let got = stream.read(&mut answer).expect("the server");
        if &answer[..got] == b"0" && place.rings() == 0 {
            return;
        }
        let left = String::from_utf8_lossy(&answer[..got]).into_owned();
        assert!(start.elapsed() < Duration::from_secs(10), "{left} left, {} rings", place.rings());
        std::thread::sleep(Duration::from_millis(50));
    }
}
