//! Sessions that meet by connection management, without a TCP connection.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "../../verbs/tests/verbs/alone.rs"]
mod alone;
#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::{
    ClientSession, Config, ConnectError, Connector, ConnectorError, Departure, Endpoint, Reconnect,
    Secret, ServerSession, ThreadMode, WorkMode,
};
use adverb_verbs::QpConfig;
use adverb_verbs::cm::{MeetError, Route};
use std::io::ErrorKind;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;
use support::lasting::{self, await_word, use_all};
use support::process::{Process, address, free_address};
use support::{LONG, departure, pair, pair_of, pattern};

fn config() -> Config {
    Config::default().connector(Connector::Cm)
}

/// A message, a buffer by name, a WRITE and a READ.
fn exchange(client: &Endpoint, server: &Endpoint, mode: &str) {
    let (near, far) = (client.channel("data").unwrap(), server.channel("data").unwrap());
    let (mine, theirs) =
        (client.adapter().buffer(2, 5000).unwrap(), server.adapter().buffer(2, 5000).unwrap());
    server.advertise("table", &theirs).unwrap();
    far.post_recv(theirs.at(1).unwrap()).unwrap();
    let from = mine.at(0).unwrap();
    from.write(0, &pattern(3, 5000)).unwrap();
    near.send(from.clone()).unwrap();
    assert_eq!(far.recv().unwrap().block.to_vec(), pattern(3, 5000), "{mode}");
    let table = client.remote_buffer("table").unwrap();
    near.write(from, table.at(0).unwrap()).unwrap();
    near.read(mine.at(1).unwrap(), table.at(0).unwrap()).unwrap();
    assert_eq!(mine.at(1).unwrap().to_vec(), pattern(3, 5000), "{mode}");
}

fn every_mode() {
    for work in [WorkMode::BusyPoll, WorkMode::CompletionChannel, WorkMode::Epoll] {
        for threads in [ThreadMode::PerChannel, ThreadMode::SHARED] {
            let mode = format!("{work:?} {threads:?}");
            let config = config().work_mode(work).thread_mode(threads);
            let (client, server) = pair(config.channels(["control", "data"]));
            exchange(&client, &server, &mode);
            client.close().unwrap();
            assert_eq!(departure(&server), Departure::Closed, "{mode}");
        }
    }
}

#[test]
fn sessions_meet_in_every_mode_over_shared_memory() {
    every_mode();
}

#[test]
fn sessions_meet_in_every_mode_over_udp() {
    alone::over_udp("sessions_meet_in_every_mode_over_udp", every_mode);
}

/// Goal: no TCP is spoken. Method: the port of a server has no TCP listener.
#[test]
fn a_server_listens_on_a_port_of_connection_management_alone() {
    let server = ServerSession::bind("127.0.0.1:0", config()).unwrap();
    let error = TcpStream::connect(server.local_addr()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    ServerSession::bind(server.local_addr(), config()).unwrap_err();
}

#[test]
fn a_server_on_all_addresses_serves_several_clients() {
    let mut server = ServerSession::bind("0.0.0.0:0", config()).unwrap();
    let port = server.local_addr().port();
    let accepting = thread::spawn(move || [(); 3].map(|()| server.accept(LONG).unwrap()));
    let session = ClientSession::new(config().connect_timeout(LONG)).unwrap();
    let clients = [(); 3].map(|()| session.connect(("127.0.0.1", port)).unwrap());
    let servers = accepting.join().unwrap();
    for (client, server) in clients.iter().zip(&servers) {
        exchange(client, server, "all addresses");
    }
}

#[test]
fn a_client_that_comes_first_waits_for_its_server_and_not_for_ever() {
    let at = free_address();
    let waiting = thread::spawn(move || {
        ClientSession::new(config().connect_timeout(LONG)).unwrap().connect(at).unwrap()
    });
    thread::sleep(Duration::from_millis(100));
    let mut server = ServerSession::bind(at, config()).unwrap();
    let server = server.accept(LONG).unwrap();
    exchange(&waiting.join().unwrap(), &server, "early");

    let session = ClientSession::new(config().connect_timeout(Duration::from_millis(50))).unwrap();
    let error = session.connect(free_address()).unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
}

#[test]
fn a_wrong_secret_is_refused_and_a_right_one_is_not() {
    let secret = |text: &str| config().secret(Secret::from(text));
    let (client, server) = pair_of(secret("one"), secret("one"));
    exchange(&client, &server, "a secret");
    let mut server = ServerSession::bind("127.0.0.1:0", secret("one")).unwrap();
    let at = server.local_addr();
    let accepting = thread::spawn(move || server.accept(LONG));
    let error = ClientSession::new(secret("two")).unwrap().connect(at).unwrap_err();
    let ConnectError::Handshake { error: ConnectorError::Secret(_), .. } = &error else {
        panic!("{error}")
    };
    accepting.join().unwrap().unwrap_err();
}

/// Goal: numbers of queue pairs that come back soon do not stand in the way of new sessions.
/// Method: more sessions than the device has numbers in a block, one after the other and side by side.
#[test]
fn many_sessions_come_and_go() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 12;
    let settings = || config().handshake_timeout(LONG).connect_timeout(LONG);
    let mut server = ServerSession::bind("127.0.0.1:0", settings()).unwrap();
    let at = server.local_addr();
    let serving = thread::spawn(move || {
        for _ in 0..CLIENTS * ROUNDS {
            let endpoint = server.accept(LONG).unwrap();
            thread::spawn(move || assert_eq!(departure(&endpoint), Departure::Closed));
        }
    });
    let clients = [(); CLIENTS].map(|()| {
        thread::spawn(move || {
            let session = ClientSession::new(settings()).unwrap();
            for _ in 0..ROUNDS {
                session.connect(at).unwrap().close().unwrap();
            }
        })
    });
    clients.into_iter().for_each(|client| client.join().unwrap());
    serving.join().unwrap();
}

/// Goal: other programs on the port are refused, silent ones are sent away, and neither keeps a client out.
#[test]
fn strangers_do_not_keep_clients_out() {
    let patience = Duration::from_millis(300);
    let mut server =
        ServerSession::bind("127.0.0.1:0", config().handshake_timeout(patience)).unwrap();
    let at = server.local_addr();
    let stranger = move |private: &'static [u8]| {
        let route = Route::resolve(at).unwrap();
        let context = route.context().unwrap();
        let cq = context.create_cq(4).unwrap();
        let qp = context.alloc_pd().create_qp(&QpConfig::new(&cq)).unwrap();
        route.connect::<adverb_verbs::Rc>(qp, private)
    };
    let accepting = thread::spawn(move || {
        let mut refused = 0;
        loop {
            match server.accept(LONG) {
                Ok(endpoint) if refused > 0 => return (server, endpoint),
                Ok(_) => panic!("the stranger first"),
                Err(_) => refused += 1,
            }
        }
    });
    let error = stranger(b"another program").unwrap_err();
    assert!(matches!(error, MeetError::Rejected { reason: 28, .. }), "{error}");
    let silent = stranger(b"adverb session").unwrap();
    silent.wait_until_over().unwrap();
    let client = ClientSession::new(config().connect_timeout(LONG)).unwrap().connect(at).unwrap();
    let (_server, endpoint) = accepting.join().unwrap();
    exchange(&client, &endpoint, "after strangers");
}

const SILENCE: Duration = Duration::from_secs(1);

#[test]
#[ignore = "the child of another test"]
fn lasting_server() {
    let Some(address) = address() else { return };
    lasting::run(address, config().silence_timeout(SILENCE));
}

fn killed_and_started_again() {
    let (server, at) = Process::listen("lasting_server");
    let patient = Reconnect::default().attempts(1000).longest_pause(Duration::from_millis(100));
    let config = config().silence_timeout(SILENCE).reconnect(patient).connect_timeout(LONG);
    let endpoint = ClientSession::new(config).unwrap().connect(at).unwrap();
    let sink = endpoint.adapter().buffer(1, 8).unwrap();
    endpoint.advertise("sink", &sink).unwrap();
    let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
    await_word(&sink);
    use_all(&endpoint, &channel);
    channel.post_recv(sink.at(0).unwrap()).unwrap();
    server.kill();
    channel.recv().unwrap_err();
    let again = Process::start("lasting_server", at);
    endpoint.wait_until_up(LONG).unwrap();
    await_word(&sink);
    use_all(&endpoint, &channel);
    endpoint.close().unwrap();
    drop(again);
}

#[test]
fn a_client_comes_back_to_a_server_that_was_killed() {
    killed_and_started_again();
}

#[test]
fn a_client_comes_back_over_udp_to_a_server_that_was_killed() {
    alone::over_udp(
        "a_client_comes_back_over_udp_to_a_server_that_was_killed",
        killed_and_started_again,
    );
}
