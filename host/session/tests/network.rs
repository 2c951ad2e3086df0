//! A network that goes away in the middle: two namespaces, and a cable between them.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "../../verbs/tests/verbs/alone.rs"]
mod alone;
#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::{
    ChannelError, ClientSession, Config, ConnectError, Connector, DataPath, Departure, Endpoint,
    PathMtu, Reconnect, ServerSession, SetUpError, ThreadMode, WorkMode,
};
use std::env;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;
use support::LONG;
use support::lasting::{self, await_word, use_all};
use support::process::{Process, address};

/// What the other end's namespace needs before its program can start.
const FAR_SCRIPT: &str = "
until ip link show far >/dev/null 2>&1; do sleep 0.05; done
ip link set lo up && ip link set far mtu 9000 up && ip address add 10.99.0.2/24 dev far &&
ip address add fd99::2/64 dev far nodad && ip address add fe80::99:2/64 dev far nodad && exec \"$@\"
";

/// How long a peer may be silent.
const SILENCE: Duration = Duration::from_secs(1);

fn config(device: &str) -> Config {
    Config::default().device(device).silence_timeout(SILENCE)
}

fn ip(words: &str) {
    let done = Command::new("ip").args(words.split(' ')).status().expect("ip");
    assert!(done.success(), "ip {words}");
}

/// A server behind a cable, whose near end is the interface `near`.
fn server_behind_cable(role: &str, address: &str) -> (Process, SocketAddr) {
    let address = address.parse().unwrap();
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", FAR_SCRIPT, "sh"]).arg(env::current_exe().unwrap());
    let process = Process::start_by(command, role, address);
    let id = process.0.id();
    // It is in a namespace of its own as soon as that is another than ours.
    let namespace = |id: &str| std::fs::read_link(format!("/proc/{id}/ns/net")).unwrap();
    while namespace(&id.to_string()) == namespace("self") {
        std::thread::yield_now();
    }
    ip(&format!("link add near type veth peer name far netns {id}"));
    ip("address add 10.99.0.1/24 dev near");
    ip("address add fd99::1/64 dev near nodad");
    ip("address add fe80::99:1/64 dev near nodad");
    ip("link set near mtu 9000 up");
    (process, address)
}

#[test]
#[ignore = "the child of another test"]
fn far_server() {
    let Some(address) = address() else { return };
    lasting::run(address, config("soft_far"));
}

/// Goal: in every mode, a network that is gone is noticed within the time that was set, what was under
/// way ends once, and the client comes back when the network does.
#[test]
fn a_network_that_goes_away_is_noticed_and_one_that_returns_is_used_again() {
    alone::alone(
        "a_network_that_goes_away_is_noticed_and_one_that_returns_is_used_again",
        cut_and_mend,
    );
}

fn cut_and_mend() {
    if !alone::is_alone() {
        println!(
            "skipped: no network namespace, and the interfaces of this one are not the test's"
        );
        return;
    }
    let (_server, at) = server_behind_cable("far_server", "10.99.0.2:7471");
    let patient = Reconnect::default().attempts(10_000).longest_pause(Duration::from_millis(100));
    for work in [WorkMode::BusyPoll, WorkMode::CompletionChannel, WorkMode::Epoll] {
        for threads in [ThreadMode::PerChannel, ThreadMode::SHARED] {
            let mode = format!("{work:?} {threads:?}");
            let config = config("soft_near").work_mode(work).thread_mode(threads);
            let config = config.channels(["idle", "data"]).reconnect(patient);
            let endpoint = ClientSession::new(config).unwrap().connect(at).unwrap();
            let sink = endpoint.adapter().buffer(1, 8).unwrap();
            endpoint.advertise("sink", &sink).unwrap();
            let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
            let idle = endpoint.channel("idle").unwrap().with_timeout(LONG);
            await_word(&sink);
            let table = use_all(&endpoint, &channel);

            let buffer = endpoint.adapter().buffer(8, 8).unwrap();
            idle.post_recv(buffer.at(0).unwrap()).unwrap();
            ip("link set near down");
            for index in 0..4 {
                channel.post_write(buffer.at(index).unwrap(), table.at(0).unwrap()).unwrap();
                channel.post_recv(buffer.at(4 + index).unwrap()).unwrap();
            }
            let silent = ChannelError::PeerGone(Departure::Silent);
            assert_eq!(idle.recv().unwrap_err(), silent, "{mode}");
            // What waits on the busy channel hears of it at once, or that its own work has failed.
            for _ in 0..4 {
                channel.recv().unwrap_err();
            }
            for left in (0..4).rev() {
                let event = channel.poll().unwrap().unwrap();
                event.ok().unwrap_err();
                assert_eq!(channel.in_flight().events, left, "{mode}");
            }
            assert_eq!(channel.in_flight().sends, 0, "{mode}");

            ip("link set near up");
            endpoint.wait_until_up(LONG).unwrap();
            await_word(&sink);
            use_all(&endpoint, &channel);
            endpoint.close().unwrap();
        }
    }
}

#[test]
#[ignore = "the child of another test"]
fn far_server_everywhere() {
    let Some(address) = address() else { return };
    let mut server = ServerSession::bind(address, Config::default()).unwrap();
    let mut endpoints = Vec::new();
    loop {
        let Ok(endpoint) = server.accept(LONG) else { continue };
        endpoint.advertise("sink", &endpoint.adapter().buffer(1, LEN).unwrap()).unwrap();
        endpoints.push(endpoint);
    }
}

#[test]
#[ignore = "the child of another test"]
fn far_server_without_tcp() {
    let Some(address) = address() else { return };
    lasting::run(address, config("soft_far").connector(Connector::Cm));
}

/// Goal: sessions that meet by connection management need no TCP, and notice a network that has gone.
/// Method: the far namespace has UDP alone; the cable is cut, and mended.
#[test]
fn sessions_that_meet_by_connection_management_cross_namespaces() {
    alone::alone("sessions_that_meet_by_connection_management_cross_namespaces", without_tcp);
}

fn without_tcp() {
    if !alone::is_alone() {
        println!("skipped: no network namespaces");
        return;
    }
    let (_server, at) = server_behind_cable("far_server_without_tcp", "10.99.0.2:7475");
    let patient = Reconnect::default().attempts(10_000).longest_pause(Duration::from_millis(100));
    let config = config("soft_near").connector(Connector::Cm).reconnect(patient);
    let session = ClientSession::new(config.connect_timeout(LONG)).unwrap();
    let endpoint = session.connect(at).unwrap();
    assert_eq!(endpoint.path(), Some(DataPath::Udp));
    let sink = endpoint.adapter().buffer(1, 8).unwrap();
    endpoint.advertise("sink", &sink).unwrap();
    let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
    await_word(&sink);
    use_all(&endpoint, &channel);
    channel.post_recv(sink.at(0).unwrap()).unwrap();
    ip("link set near down");
    let gone = channel.recv().unwrap_err();
    assert!(matches!(gone, ChannelError::PeerGone(_)), "{gone}");
    ip("link set near up");
    endpoint.wait_until_up(LONG).unwrap();
    await_word(&sink);
    use_all(&endpoint, &channel);
    endpoint.close().unwrap();
}

/// Bytes of more than one packet.
const LEN: usize = 20_000;

/// Goal: without a word about devices, both sides use that of the connection's addresses: over IPv4,
/// IPv6, and a link-local address with its zone. The path MTU is that of the moment of connecting.
/// Method: one server on all addresses in another namespace; everything is written and read back.
#[test]
fn sessions_use_the_device_and_the_path_mtu_of_each_connection() {
    alone::alone("sessions_use_the_device_and_the_path_mtu_of_each_connection", follow);
}

fn follow() {
    if !alone::is_alone() {
        println!("skipped: no network namespaces");
        return;
    }
    let (server, _) = server_behind_cable("far_server_everywhere", "[::]:7472");
    let session = ClientSession::new(Config::default().connect_timeout(LONG)).unwrap();
    session.adapter().unwrap_err();
    let zone = adverb_verbs::devices().unwrap();
    let zone = zone.iter().find(|device| device.name == "soft_near").unwrap().index;
    let link_local = format!("[fe80::99:2%{zone}]:7472");
    for at in ["10.99.0.2:7472", "[fd99::2]:7472", &link_local] {
        let at: SocketAddr = at.parse().unwrap();
        let endpoint = session.connect(at).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!(endpoint.adapter().context().device().name, "soft_near", "{at}");
        assert_eq!(endpoint.peer().device.as_str(), "soft_far", "{at}");
        assert_eq!(endpoint.peer().path_mtu, PathMtu::B4096, "{at}");
        there_and_back(&endpoint);
    }
    let id = server.0.id().to_string();
    for (far, near, due) in [
        ("1500", "9000", PathMtu::B1024),
        ("9000", "1500", PathMtu::B1024),
        ("9000", "9000", PathMtu::B4096),
    ] {
        let far = ["-t", &id, "-n", "ip", "link", "set", "far", "mtu", far];
        assert!(Command::new("nsenter").args(far).status().unwrap().success());
        ip(&format!("link set near mtu {near}"));
        let endpoint = session.connect("10.99.0.2:7472").unwrap();
        assert_eq!(endpoint.peer().path_mtu, due, "{far:?} {near}");
        there_and_back(&endpoint);
    }
}

/// Goal: connections over an address that came later share the adapter that is open, as those over the others do.
#[test]
fn an_address_that_comes_later_has_the_adapter_of_its_interface() {
    alone::alone("an_address_that_comes_later_has_the_adapter_of_its_interface", come_later);
}

fn come_later() {
    if !alone::is_alone() {
        println!("skipped: no network namespaces");
        return;
    }
    let (_server, _) = server_behind_cable("far_server_everywhere", "[::]:7476");
    let session = ClientSession::new(Config::default().connect_timeout(LONG)).unwrap();
    let connect = |at: &str| session.connect(at).unwrap();
    let first = connect("10.99.0.2:7476");
    ip("address del 10.99.0.1/24 dev near");
    ip("address add 10.99.0.3/24 dev near");
    for _ in 0..2 {
        let next = connect("10.99.0.2:7476");
        assert!(std::ptr::eq(next.adapter().context(), first.adapter().context()));
        there_and_back(&next);
    }
}

/// Goal: a network that does not carry the packets of queue pairs is found when connecting, and said to be
/// what it is, on both sides.
/// Method: the far namespace lets in TCP, and no UDP to port 4791.
#[test]
fn a_closed_port_of_queue_pairs_is_found_when_connecting() {
    alone::alone("a_closed_port_of_queue_pairs_is_found_when_connecting", closed);
}

fn closed() {
    if !alone::is_alone() {
        println!("skipped: no network namespaces");
        return;
    }
    let (server, at) = server_behind_cable("far_server_everywhere", "10.99.0.2:7473");
    let id = server.0.id().to_string();
    // The rule comes before the one for local addresses, which is the first of all.
    let wall = "ip rule add pref 10 iif far ipproto udp dport 4791 blackhole &&
        ip rule add pref 20 lookup local && ip rule del pref 0";
    let wall = ["-t", &id, "-n", "sh", "-c", wall];
    if !Command::new("nsenter").args(wall).status().is_ok_and(|status| status.success()) {
        println!("skipped: no rules for packets");
        return;
    }
    let session = ClientSession::new(Config::default().connect_timeout(LONG)).unwrap();
    let error = session.connect(at).unwrap_err();
    let ConnectError::SetUp { error: SetUpError::Unanswered(route), .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(route.path, Some(DataPath::Udp));
    assert!(error.to_string().contains("UDP port 4791"), "{error}");
}

/// Goal: such a network is found by a client that comes back, too, which goes on trying.
/// Method: the network goes away, returns without the packets of queue pairs, and is then mended.
#[test]
fn a_client_comes_back_when_the_packets_of_queue_pairs_do() {
    alone::alone("a_client_comes_back_when_the_packets_of_queue_pairs_do", close_and_open);
}

fn close_and_open() {
    if !alone::is_alone() {
        println!("skipped: no network namespaces");
        return;
    }
    let (server, at) = server_behind_cable("far_server", "10.99.0.2:7474");
    let id = server.0.id().to_string();
    let far = |script: &str| {
        let words = ["-t", &id, "-n", "sh", "-c", script];
        Command::new("nsenter").args(words).status().is_ok_and(|status| status.success())
    };
    let wall = "ip rule add pref 10 iif far ipproto udp dport 4791 blackhole";
    if !far("ip rule add pref 20 lookup local && ip rule del pref 0") || !far(wall) {
        println!("skipped: no rules for packets");
        return;
    }
    let mend = "ip rule del pref 10";
    let patient = Reconnect::default().attempts(10_000).longest_pause(Duration::from_millis(100));
    for (work, threads) in [
        (WorkMode::BusyPoll, ThreadMode::PerChannel),
        (WorkMode::Epoll, ThreadMode::PerChannel),
        (WorkMode::Epoll, ThreadMode::SHARED),
    ] {
        assert!(far(mend));
        let config = config("soft_near").work_mode(work).thread_mode(threads).reconnect(patient);
        let endpoint = ClientSession::new(config).unwrap().connect(at).unwrap();
        let sink = endpoint.adapter().buffer(1, 8).unwrap();
        endpoint.advertise("sink", &sink).unwrap();
        let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
        await_word(&sink);
        channel.post_recv(sink.at(0).unwrap()).unwrap();
        ip("link set near down");
        let silent = ChannelError::PeerGone(Departure::Silent);
        assert_eq!(channel.recv().unwrap_err(), silent, "{work:?} {threads:?}");
        assert!(far(wall));
        ip("link set near up");
        // As long as they do not pass, which is no fault of the channel's, nothing is posted.
        let error = endpoint.wait_until_up(2 * SILENCE).unwrap_err();
        assert!(matches!(error, ChannelError::Timeout { .. }), "{work:?} {threads:?}: {error}");
        assert_eq!(channel.failure(), Some(silent), "{work:?} {threads:?}");
        assert!(far(mend));
        endpoint.wait_until_up(LONG).unwrap();
        await_word(&sink);
        use_all(&endpoint, &channel);
        endpoint.close().unwrap();
        assert!(far(wall));
    }
}

fn there_and_back(endpoint: &Endpoint) {
    let local = endpoint.adapter().buffer(2, LEN).unwrap();
    let (from, to) = (local.at(0).unwrap(), local.at(1).unwrap());
    from.write(0, &support::pattern(7, LEN)).unwrap();
    let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
    let sink = endpoint.remote_buffer("sink").unwrap();
    channel.write(from.clone(), sink.at(0).unwrap()).unwrap();
    channel.read(to.clone(), sink.at(0).unwrap()).unwrap();
    assert_eq!(from.to_vec(), to.to_vec());
}
