//! Ends that are killed, have no descriptors left, or are swamped: nothing is lost, hangs or stays.
//!
//! `ADVERB_KILLS` and `ADVERB_CONNECTIONS` say how many; what they are without is for every day.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use crate::child::Role;
use crate::running::{A_MINUTE, Running, explain, ringed, succeed, until};
use crate::support::{Place, free_port};

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |value| value.parse().expect("a number"))
}

fn kills() -> u64 {
    setting("ADVERB_KILLS", 60)
}

/// Files in the place where rings meet that are of connections: their names are numbers of 128 bits.
fn ring_count(place: &Place) -> usize {
    let names =
        fs::read_dir(place.rings()).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter(|name| name.len() == 32).count()
}

/// Offers to connections of a port that count as neither taken nor withdrawn.
fn offer_count(place: &Place, port: u16) -> u16 {
    let names = fs::read_dir(place.rings()).expect("a directory").flatten();
    let ports = names.map(|entry| entry.path()).find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ports."))
    });
    let words = fs::read(ports.expect("a file of ports")).expect("a file");
    let at = 2 * usize::from(port);
    u16::from_ne_bytes([words[at], words[at + 1]]) >> 1
}

/// Descriptors that a process has, and mappings of rings.
fn held(running: &Running, place: &Place) -> (usize, usize) {
    let process = format!("/proc/{}", running.id());
    let descriptors = fs::read_dir(format!("{process}/fd")).expect("a process").count();
    let maps = fs::read_to_string(format!("{process}/maps")).expect("a process");
    let rings = place.rings();
    let rings = rings.to_str().expect("a path in Unicode");
    let is_ring = |line: &&str| {
        let name = line.split_once(rings).map(|(_, name)| name.trim_start_matches('/'));
        name.is_some_and(|name| name.split(' ').next().is_some_and(|name| name.len() == 32))
    };
    (descriptors, maps.lines().filter(is_ring).count())
}

/// Whether a process has no more than that, and the sockets by which it sends and gets bells, which it may have
/// needed since: then, a client may just have been leaving.
fn is_held(running: &Running, place: &Place, most: (usize, usize)) -> bool {
    let (descriptors, rings) = held(running, place);
    descriptors <= most.0 + BELLS && rings <= most.1
}

/// One to ring by, and one of the epoll instance.
const BELLS: usize = 2;

/// A child whose lines can be waited for.
#[derive(Debug)]
struct Speaking {
    running: Running,
    lines: mpsc::Receiver<String>,
}

impl Speaking {
    fn start(role: Role, place: &Place, port: u16) -> Self {
        let mut running = Running::start(role.command(place, port).stdout(Stdio::piped()));
        let (said, lines) = mpsc::channel();
        let spoken = running.lines();
        std::thread::spawn(move || spoken.map_while(|line| said.send(line).ok()).for_each(drop));
        Self { running, lines }
    }

    /// Waits until it says this.
    fn wait_for(&self, line: &str) {
        loop {
            match self.lines.recv_timeout(A_MINUTE) {
                Ok(said) if said == line => return,
                Ok(_) => {}
                Err(error) => panic!("it has not said {line:?}: {error}"),
            }
        }
    }
}

/// How many others there are, says the server.
fn others(port: u16) -> String {
    // This process is not accelerated.
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server");
    stream.write_all(b"?").expect("the server");
    let mut answer = [0; 10];
    let got = stream.read(&mut answer).expect("the server");
    String::from_utf8_lossy(&answer[..got]).into_owned()
}

/// A little while, another one in each round.
fn pause(round: u64) {
    std::thread::sleep(Duration::from_micros(round * 7_919 % 20_000));
}

/// Goal: clients that are killed at any instant are gone for the server, which has nothing of them
/// afterwards.
#[test]
fn clients_that_are_killed_under_load_leave_nothing_behind() {
    let (place, port) = (Place::new("kill-client"), free_port());
    let mut server = Role::Serve.command(&place, port);
    let server = Running::serve(explain(&place, &mut server), port);
    until("the server is alone", || others(port) == "0");
    let before = held(&server, &place);
    for round in 0..kills() {
        let mut client = Speaking::start(Role::Call, &place, port);
        client.wait_for("talking");
        pause(round);
        assert_eq!(client.running.has_ended(), None, "the client found something wrong");
        drop(client);
    }
    assert!(ringed(&place) > 0, "no connection had rings");
    until("the server is alone", || others(port) == "0");
    until("the rings are gone", || ring_count(&place) == 0);
    until("no offer is counted", || offer_count(&place, port) == 0);
    until("the server has what it had", || is_held(&server, &place, before));
}

/// Goal: a server that is killed at any instant is gone for its client, which has had every byte in its
/// place until then, and has nothing of it afterwards.
#[test]
fn servers_that_are_killed_under_load_leave_nothing_behind() {
    let (place, port) = (Place::new("kill-server"), free_port());
    let mut client = Speaking::start(Role::CallAgain, &place, port);
    let mut before = None;
    for round in 0..kills() {
        let mut server = Role::Serve.command(&place, port);
        let server = Running::start(explain(&place, &mut server).stdout(Stdio::null()));
        client.wait_for("talking");
        pause(round);
        server.signal("KILL");
        drop(server);
        client.wait_for("gone");
        assert_eq!(client.running.has_ended(), None, "the client found something wrong");
        before = before.or_else(|| Some(held(&client.running, &place)));
    }
    assert!(ringed(&place) > 0, "no connection had rings");
    until("the client has what it had", || {
        before.is_none_or(|before| is_held(&client.running, &place, before))
    });
    until("the rings are gone", || ring_count(&place) == 0);
    until("no offer is counted", || offer_count(&place, port) == 0);
}

/// Goal: a client of a server that is killed at any instant is refused, and nothing stays behind.
#[test]
fn servers_of_datagrams_that_are_killed_refuse() {
    let (place, port) = (Place::new("kill-udp"), free_port());
    for round in 0..kills() {
        let mut server = Role::ServeUdp.command(&place, port);
        let server = Running::start(explain(&place, &mut server).stdout(Stdio::null()));
        let mut client = Speaking::start(Role::CallUdp, &place, port);
        client.wait_for("talking");
        pause(round);
        drop(server);
        let ended = client.running.end();
        assert!(ended.success(), "the client found something wrong, round {round}");
    }
    assert!(ringed(&place) > 0, "no server had a mailbox");
    // The next program that starts cleans up after those that were killed; what one was killed over that had only just
    // been made is known for that a few seconds later.
    until("the mailboxes are gone", || {
        succeed(&mut Role::CallUdpOnce.command(&place, port));
        let names = fs::read_dir(place.rings()).expect("a directory").flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        !names.into_iter().any(|name| name.matches('.').count() == 3)
    });
}

/// Goal: a wait on an instance reports its own registrations alone, whatever is closed meanwhile.
#[test]
fn a_connection_that_is_closed_while_somebody_waits_is_not_heard_of() {
    let (place, port) = (Place::new("watched"), free_port());
    let _server = Running::serve(&mut Role::Serve.command(&place, port), port);
    let said = succeed(&mut Role::CallWatched(2000).command(&place, port));
    assert!(said.contains("right: 2000"), "{said}");
}

/// Goal: a server without a descriptor left for the next connection serves it when there is one again.
#[test]
fn a_server_without_descriptors_serves_everybody_in_turn() {
    let (place, port) = (Place::new("poor-server"), free_port());
    let server = Running::serve(&mut Role::Serve.limited(&place, port, "24"), port);
    until("the server is alone", || others(port) == "0");
    let before = held(&server, &place);
    let said = succeed(&mut Role::CallStorm(60).command(&place, port));
    assert!(said.contains("right: 600"), "{said}");
    until("the server is alone", || others(port) == "0");
    until("the server has what it had", || is_held(&server, &place, before));
    until("the rings are gone", || ring_count(&place) == 0);
}

/// Goal: a program gets as many connections out of its limit as without the library, and they work.
#[test]
fn a_client_without_descriptors_has_as_many_as_without_the_library() {
    let (place, port) = (Place::new("poor-client"), free_port());
    let _server = Running::serve(&mut Role::Serve.command(&place, port), port);
    let count = |command: &mut std::process::Command| -> Vec<String> {
        let said = succeed(command);
        said.lines().filter(|line| line.starts_with("had ")).map(str::to_owned).collect()
    };
    let plain = count(Role::CallMost.limited(&place, port, "100").env_remove("LD_PRELOAD"));
    let ours = count(&mut Role::CallMost.limited(&place, port, "100"));
    assert_eq!(plain.len(), 3);
    assert_eq!(ours, plain);
    until("the rings are gone", || ring_count(&place) == 0);
}

/// Goal: a child for each of hundreds of short connections: each is answered, and none stays.
#[test]
fn a_child_for_each_of_a_storm_of_connections() {
    let (place, port) = (Place::new("storm"), free_port());
    let server = Running::serve(&mut Role::ServeForking.command(&place, port), port);
    // The first round is for what a process opens once; a probe that has not been received yet, too.
    let mut before = None;
    for _ in 0..2 {
        let said = succeed(&mut Role::CallStorm(30).command(&place, port));
        assert!(said.contains("right: 300"), "{said}");
        until("the children have ended", || children(&server) == 0);
        until("the rings are gone", || ring_count(&place) == 0);
        let before = *before.get_or_insert_with(|| held(&server, &place));
        until("the server has what it had", || is_held(&server, &place, before));
    }
}

/// Children of all threads of a process.
fn children(running: &Running) -> usize {
    let threads =
        fs::read_dir(format!("/proc/{}/task", running.id())).expect("a process").flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.map(|list| list.split_whitespace().count()).sum()
}

/// Goal: ten thousand connections at once, all of them in use, and afterwards none; and each costs about
/// what it costs where there are few.
#[test]
fn ten_thousand_connections_at_once() {
    let (place, port) = (Place::new("many"), free_port());
    let most = setting("ADVERB_CONNECTIONS", 10_000).min(descriptors_max().saturating_sub(300));
    let mut server = Role::ServeTokio.command(&place, port);
    let mut server = Running::serve(explain(&place, &mut server), port);
    // What a runtime opens with its first connection it keeps.
    succeed(&mut Role::CallTokio(1).command(&place, port));
    until("the rings are gone", || ring_count(&place) == 0);
    let before = held(&server, &place);
    let call = |count: u64| {
        let (start_us, connections) = (used_us(&server), usize::try_from(count).expect("a number"));
        let said = succeed(&mut Role::CallTokio(connections).command(&place, port));
        assert!(said.contains(&format!("right: {count}")), "{said}");
        until("the rings are gone", || ring_count(&place) == 0);
        until("the server has what it had", || is_held(&server, &place, before));
        let line = said.lines().find_map(|line| line.strip_prefix("used us: "));
        let client_us: u64 = line.expect("a line").parse().expect("a number");
        (client_us + used_us(&server) - start_us) / count
    };
    let (few_us, many_us) = (call(most / 10), call(most));
    println!("{few_us} us for each of {}, {many_us} us of {most}", most / 10);
    assert!(many_us <= 3 * few_us, "{few_us} us for each of {}, {many_us} us of {most}", most / 10);
    assert_eq!(offer_count(&place, port), 0);
    let ringed = ringed(&place);
    let all = usize::try_from(most + most / 10).expect("a number");
    assert!(ringed > all / 2, "only {ringed} of {all} had rings");
    assert!(server.has_ended().is_none());
}

/// How many descriptors a process may have, at most.
fn descriptors_max() -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").expect("limits");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line");
    line.split_whitespace().nth(4).and_then(|most| most.parse().ok()).unwrap_or(u64::MAX)
}

/// How long a process has had a processor, in microseconds.
fn used_us(running: &Running) -> u64 {
    let line = fs::read_to_string(format!("/proc/{}/stat", running.id())).expect("a process");
    let (_, fields) = line.rsplit_once(')').expect("a name");
    let ticks = fields.split_whitespace().skip(11).take(2);
    // The kernel counts hundredths of a second here, whatever it counts in elsewhere.
    ticks.map(|ticks| ticks.parse::<u64>().expect("a number") * 10_000).sum()
}
