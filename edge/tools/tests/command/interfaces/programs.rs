//! Unmodified programs of another user than the daemon's: the kernel is at the other end of the cable.

#![expect(clippy::indexing_slicing, reason = "a test may panic")]

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::library::library;
use super::running::by_kernel;
use super::{FAR, MEMBER, NEAR, PORT, Running, daemon, described, myself, soon, with_cable};

/// The entry of such a program. It serves, or talks to what serves.
#[test]
fn a_program() {
    let Ok(role) = std::env::var("ADVERB_TEST_PROGRAM") else { return };
    let (role, ip) = role.split_once(' ').expect("a role and an address");
    let at = SocketAddr::new(ip.parse().expect("an address"), PORT);
    match role {
        "serve" => serve(at),
        _ => talk(at),
    }
}

/// Sends back what comes.
fn serve(at: SocketAddr) {
    let listener = TcpListener::bind(at).expect("a port");
    let socket = UdpSocket::bind(at).expect("a port");
    println!("\nready");
    std::thread::spawn(move || {
        let mut room = [0; 2000];
        while let Ok((len, from)) = socket.recv_from(&mut room) {
            socket.send_to(&room[..len], from).expect("it is sent");
        }
    });
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        std::thread::spawn(move || {
            let mut room = [0; 2000];
            let end = loop {
                match stream.read(&mut room) {
                    Ok(0) => break None,
                    Ok(len) => stream.write_all(&room[..len]).expect("it is sent"),
                    Err(error) => break Some(error.kind()),
                }
            };
            println!("ended {end:?}");
        });
    }
}

/// Has so many messages come back, as lines say, and says how many have; or waits for the end, and says what that is.
fn talk(at: SocketAddr) {
    let patience = Some(Duration::from_secs(20));
    let mut stream = TcpStream::connect(at).expect("a connection");
    stream.set_read_timeout(patience).expect("an option");
    let socket = UdpSocket::bind(SocketAddr::new([0, 0, 0, 0].into(), 0)).expect("a port");
    socket.connect(at).expect("an address");
    socket.set_read_timeout(patience).expect("an option");
    println!("\nready");
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let (what, count) = line.split_once(' ').unwrap_or((&line, "0"));
        let turns = 0..count.parse::<u32>().expect("a number");
        let mut back = [0; 4];
        match what {
            "tcp" => {
                let done = turns.filter(|turn| {
                    stream.write_all(&turn.to_be_bytes()).expect("it is sent");
                    stream.read_exact(&mut back).expect("it comes back");
                    back == turn.to_be_bytes()
                });
                println!("said {}", done.count());
            }
            "udp" => {
                let done = turns.filter(|turn| {
                    socket.send(&turn.to_be_bytes()).expect("it is sent");
                    assert_eq!(socket.recv(&mut back).expect("it comes back"), 4);
                    back == turn.to_be_bytes()
                });
                println!("said {}", done.count());
            }
            _ => {
                let end = stream.read(&mut [0]).map_err(|error| error.kind());
                println!("said {end:?}");
            }
        }
    }
}

/// This binary as such a program, at the other end of the cable.
fn far_program(far: &Running, role: &str) -> Running {
    let mut command = Command::new("nsenter");
    command.args(["-n", "-t", &far.child.id().to_string(), "--"]).arg(myself());
    start(command, role)
}

/// The same at this end, with the command in front of it that accelerates it, and what it explains.
fn framed(role: &str) -> Running {
    let name = format!("adverb-framed-{}-{}", role.replace(' ', "-"), std::process::id());
    let log = std::env::temp_dir().join(name);
    let _ = fs::remove_file(&log);
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.args(["sockets", "--transport", "xdp", "--profile", "latency", "--explain"]);
    command.arg("--library").arg(library()).arg("--").arg(myself()).uid(MEMBER).gid(MEMBER);
    command.env("ADVERB_SOCKETS_SHM_DIR", rings()).env("VMA_LOG_FILE", &log);
    let mut running = start(command, role);
    running.log = log;
    running
}

fn start(mut command: Command, role: &str) -> Running {
    command.args(["--exact", "interfaces::programs::a_program", "--nocapture"]);
    command.env("ADVERB_TEST_PROGRAM", role).stderr(Stdio::null());
    Running::start(&mut command)
}

/// Where the programs of that user meet.
fn rings() -> PathBuf {
    PathBuf::from(format!("/dev/shm/adverb-framed-{}", std::process::id()))
}

/// How much of each the kernel has brought while `talker` has had 300 messages come back by each.
fn exchange(talker: &mut Running) -> [u64; 2] {
    let count = || [by_kernel("Tcp", "InSegs"), by_kernel("Udp", "InDatagrams")];
    let before = count();
    assert_eq!([talker.ask("tcp 300"), talker.ask("udp 300")], ["said 300", "said 300"]);
    let after = count();
    [0, 1].map(|at| after[at] - before[at])
}

/// Whether most of that is frames: a datagram for a program that sleeps comes by the kernel.
fn is_by_frames(talker: &mut Running) -> bool {
    (0..10).any(|_| {
        let [segments, datagrams] = exchange(talker);
        segments < 20 && datagrams < 200
    })
}

/// Goal: a program without privilege, that knows nothing of frames, has its connections of both roles and its datagrams carried
/// by those that a daemon hands out; when the daemon is killed, both ends of a connection learn that it is reset, datagrams and
/// new connections are the kernel's, and nothing is left on the interface.
#[test]
fn unmodified_programs_of_other_users_are_carried_by_frames() {
    let name = "interfaces::programs::unmodified_programs_of_other_users_are_carried_by_frames";
    with_cable(name, |far| {
        let (mut command, places) = daemon("programs", "near");
        command.args(["--members", &MEMBER.to_string()]).stderr(Stdio::null());
        let mut running = Running::begin(&mut command);
        soon("the daemon", || described(&places).is_some());

        let near_server = framed(&format!("serve {NEAR}"));
        let mut far_talker = far_program(far, &format!("talk {NEAR}"));
        let _far_server = far_program(far, &format!("serve {FAR}"));
        let mut near_talker = framed(&format!("talk {FAR}"));
        for talker in [&mut far_talker, &mut near_talker] {
            exchange(talker);
            assert!(is_by_frames(talker), "{:?}", exchange(talker));
        }
        for program in [&near_server, &near_talker] {
            let log = program.explained();
            let framed = log.matches("frames of the interface, past the kernel").count();
            assert_eq!(framed, 2, "a connection and a UDP socket: {log}");
        }
        let what = described(&places).expect("it is owned");
        assert_eq!(what["users"][0]["uid"], MEMBER, "{what}");
        assert_eq!(what["users"][0]["members"].as_u64().map(|members| members >= 2), Some(true));

        running.child.kill().expect("a process");
        let reset = format!("said {:?}", Err::<usize, _>(ErrorKind::ConnectionReset));
        for talker in [&mut far_talker, &mut near_talker] {
            assert_eq!(talker.ask("end"), reset);
            assert_eq!(talker.ask("udp 300"), "said 300");
        }
        soon("the program leaves", || !super::run("ip link show near").contains("xdp"));
        for mut talker in
            [far_program(far, &format!("talk {NEAR}")), framed(&format!("talk {FAR}"))]
        {
            let [segments, datagrams] = exchange(&mut talker);
            assert!(segments >= 300 && datagrams >= 300, "{segments} {datagrams}");
        }
        let _ = fs::remove_dir_all(rings());
    });
}
