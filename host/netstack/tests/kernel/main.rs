//! TCP over frames, with the kernel of another network namespace as peer, over a cable that each test lays.
//!
//! The near end is the test itself; what is to run at the far end is this binary again, with a role.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

mod faults;
mod near;
#[path = "../../../xdp/tests/namespaces/place.rs"]
#[expect(dead_code, reason = "part of it is for tests of frames")]
mod place;
mod roles;

use adverb_netstack::Netstack;
use adverb_sys::bpf::XdpMode;
use adverb_tcpip::stack::Listen;
use adverb_tcpip::tcp::{Config, End, KeepAlive, State};
use near::Near;
use place::{
    FAR, FAR_6, NEAR, NEAR_6, Pair, Running, command_in, namespace, near_role, role_in, run,
    with_namespaces,
};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

const PORT: u16 = 7001;
/// Addresses of the namespace behind the far end.
const BEYOND: &str = "10.99.0.2";
const BEYOND_6: &str = "fd99::2";
const BOTH: [(&str, &str); 2] = [(NEAR, FAR), (NEAR_6, FAR_6)];

/// Polls until it is true; false if it does not become so in several seconds.
fn soon(mut is: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        if is() {
            return true;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    false
}

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

fn listen(config: Config) -> Listen {
    Listen { config, backlog: 2000, half_open_max: 2000, syn_rate: None }
}

/// Sets the MTU of both ends.
fn set_mtu(pair: &Pair, mtu: u32) {
    for (mut command, device) in [(Command::new("ip"), "near"), (pair.far_command("ip"), "far")] {
        run(command.args(format!("link set {device} mtu {mtu}").split(' ')));
    }
}

/// Goal: a stream goes to a server of the kernel's and comes back, byte by byte, and each end ends its own half.
#[test]
fn bytes_go_to_a_kernel_server_and_come_back() {
    with_namespaces("bytes_go_to_a_kernel_server_and_come_back", || {
        for mtu in [1500, 3000] {
            for mode in [XdpMode::Native, XdpMode::Generic] {
                let pair = Pair::new(1);
                set_mtu(&pair, mtu);
                if mode == XdpMode::Generic {
                    // Behind the driver, packets that the far kernel leaves to be cut would not fit frames.
                    run(pair.far_command("ip").args("link set far gso_max_segs 1".split(' ')));
                }
                for (near_ip, far_ip) in BOTH {
                    let _echo = pair.far_role("echo", &format!("{far_ip} {PORT}"));
                    let mut near = Near::new(Some(mode));
                    let id = near.connect(at(near_ip, 9000), at(far_ip, PORT), None);
                    near.echo_through(id, 3_000_000);
                    assert_eq!(near.counters().damaged, 0);
                }
            }
        }
    });
}

/// Goal: clients of the kernel's connect, and get back what they send.
#[test]
fn kernel_clients_get_their_bytes_back() {
    with_namespaces("kernel_clients_get_their_bytes_back", || {
        for (near_ip, _) in BOTH {
            let pair = Pair::new(2);
            let mut near = Near::new(None);
            near.listen(at(near_ip, PORT), None);
            let mut client = pair.far_role("client", &format!("{near_ip} {PORT} 3 2000000"));
            near.serve_echo(PORT, 3);
            client.wait_for("done");
        }
    });
}

/// Goal: a thousand connections of the kernel's at once, each with bytes of its own.
#[test]
fn a_thousand_kernel_clients_are_served_at_once() {
    with_namespaces("a_thousand_kernel_clients_are_served_at_once", || {
        let pair = Pair::new(1);
        let mut near = Near::new(None);
        near.listen(at(NEAR, PORT), None);
        let mut client = pair.far_role("client", &format!("{NEAR} {PORT} 1000 3000"));
        near.serve_echo(PORT, 1000);
        client.wait_for("done");
    });
}

/// Goal: ten thousand connections are there at once, and each has its bytes back.
#[test]
fn ten_thousand_kernel_clients_are_served_at_once() {
    with_namespaces("ten_thousand_kernel_clients_are_served_at_once", || {
        let pair = Pair::new(1);
        let mut near = Near::new(None);
        near.listen(at(NEAR, PORT), None);
        let mut client = pair.far_role("crowd", &format!("{NEAR} {PORT} 10000"));
        near.serve_crowd(PORT, 10_000);
        client.wait_for("done");
    });
}

/// Goal: streams survive packets that the far end loses, in both roles.
#[test]
fn streams_survive_loss() {
    with_namespaces("streams_survive_loss", || {
        for percent in [1, 5] {
            let pair = Pair::new(1);
            let _loss = pair.far_role("loss", &format!("far {percent}"));
            for (near_ip, far_ip) in BOTH {
                let _echo = pair.far_role("echo", &format!("{far_ip} {PORT}"));
                let mut near = Near::new(None);
                let id = near.connect(at(near_ip, 9000), at(far_ip, PORT), None);
                near.echo_through(id, 2_000_000);
                near.listen(at(near_ip, PORT), None);
                let mut client = pair.far_role("client", &format!("{near_ip} {PORT} 4 300000"));
                near.serve_echo(PORT, 4);
                client.wait_for("done");
            }
        }
    });
}

/// The far end is a router, behind which there is a namespace whose link takes packets of `mtu` bytes, and which says that it
/// takes longer ones.
fn route_beyond(pair: &Pair, mtu: u32) -> Running {
    let beyond = namespace();
    let far = |words: String| run(pair.far_command("ip").args(words.split(' ')));
    far(format!("link add middle type veth peer name beyond netns {}", beyond.id()));
    let there = |words: String| run(command_in(&beyond, "ip").args(words.split(' ')));
    for (address, own, router, here) in [
        ("10.99.0.1/24", format!("{BEYOND}/24"), "10.99.0.1", FAR),
        ("fd99::1/64", format!("{BEYOND_6}/64 nodad"), "fd99::1", FAR_6),
    ] {
        far(format!("address add {address} dev middle"));
        far(format!("link set middle up mtu {mtu}"));
        there(format!("address add {own} dev beyond"));
        there(format!("link set beyond up mtu {mtu}"));
        there(format!("route add default via {router} advmss 1400"));
        let net = if router.contains('.') { "10.99.0.0/24" } else { "fd99::/64" };
        run(Command::new("ip").args(format!("route add {net} via {here}").split(' ')));
    }
    run(pair.far_command("sysctl").args(["-q", "net.ipv4.ip_forward=1"]));
    run(pair.far_command("sysctl").args(["-q", "net.ipv6.conf.all.forwarding=1"]));
    beyond
}

/// Goal: a connection hears of a router that takes shorter packets, from the first one that was too long. The kernel, which knows
/// of no such connection, does not.
#[test]
fn a_router_that_takes_shorter_packets_is_heard() {
    with_namespaces("a_router_that_takes_shorter_packets_is_heard", || {
        let pair = Pair::new(1);
        let beyond = route_beyond(&pair, 1300);
        for (here, there, [file, came, left]) in [
            (NEAR, BEYOND, ["/proc/net/snmp", "InDestUnreachs", "OutDestUnreachs"]),
            (NEAR_6, BEYOND_6, ["/proc/net/snmp6", "Icmp6InPktTooBigs", "Icmp6OutPktTooBigs"]),
        ] {
            let _echo = role_in(&beyond, "echo", &format!("{there} {PORT}"));
            let mut near = Near::new(None);
            let id = near.connect(at(here, 9000), at(there, PORT), None);
            near.echo_through(id, 300_000);
            assert_eq!(near.counters().unknown, 0, "{there}");
            assert_eq!(reports(&std::fs::read_to_string(file).unwrap(), came), 0, "{there}");
            let routers = pair.far_command("cat").arg(file).output().unwrap().stdout;
            assert!(reports(&String::from_utf8(routers).unwrap(), left) > 0, "{there}");
        }
    });
}

/// A number of ICMP, as a kernel counts: in a row with its name, or below it.
fn reports(text: &str, name: &str) -> u64 {
    let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let below = lines.windows(2).filter(|pair| pair[0][0] == "Icmp:").find_map(|pair| {
        let at = pair[0].iter().position(|word| *word == name)?;
        Some(pair[1][at])
    });
    let beside = || lines.iter().find(|words| words[0] == name).map(|words| words[1]);
    below.or_else(beside).unwrap().parse().unwrap()
}

/// Goal: streams survive loss in both directions, behind a router, and in both roles.
#[test]
fn streams_survive_loss_both_ways_behind_a_router() {
    with_namespaces("streams_survive_loss_both_ways_behind_a_router", || {
        let pair = Pair::new(1);
        let beyond = route_beyond(&pair, 1500);
        for percent in [1, 5] {
            let _losses =
                ["far", "middle"].map(|from| pair.far_role("loss", &format!("{from} {percent}")));
            let _echo = role_in(&beyond, "echo", &format!("{BEYOND} {PORT}"));
            let mut near = Near::new(None);
            let id = near.connect(at(NEAR, 9000), at(BEYOND, PORT), None);
            near.echo_through(id, 2_000_000);
            near.listen(at(NEAR, PORT), None);
            let mut client = role_in(&beyond, "client", &format!("{NEAR} {PORT} 4 300000"));
            near.serve_echo(PORT, 4);
            client.wait_for("done");
        }
    });
}

/// Goal: either end can end a connection at once, and a port without a listener refuses.
#[test]
fn resets_go_both_ways() {
    with_namespaces("resets_go_both_ways", || {
        let pair = Pair::new(1);
        let mut near = Near::new(None);
        let id = near.connect(at(NEAR, 9000), at(FAR, PORT), None);
        assert!(near.until(|net| net.tcp().get(id).unwrap().state() == State::Closed));
        assert_eq!(near.end(id), Some(End::Refused));

        // The kernel's end closes with bytes unread.
        let _deaf = pair.far_role("deaf", &format!("{FAR} {PORT}"));
        let id = near.connect(at(NEAR, 9001), at(FAR, PORT), None);
        near.send_all(id, &[7; 5000]);
        assert!(near.until(|net| net.tcp().get(id).unwrap().state() == State::Closed));
        assert_eq!(near.end(id), Some(End::Reset));

        // The near end aborts.
        let mut reader = pair.far_role("reader", &format!("{FAR} {}", PORT + 1));
        let id = near.connect(at(NEAR, 9002), at(FAR, PORT + 1), None);
        near.send_all(id, &[7; 5000]);
        near.net.tcp().with(id, |connection| connection.abort());
        assert!(near.until(|net| net.tcp().get(id).is_none()));
        reader.wait_for("ConnectionReset");

        // A claimed port that nothing listens on.
        near.claim_tcp(at(NEAR, PORT), None);
        let mut client = pair.far_role("refused", &format!("{NEAR} {PORT}"));
        near.run_until_says(&mut client, "ConnectionRefused");
    });
}

/// Goal: the peers of a process that is killed get a reset, though nothing of it is left to send one.
#[test]
fn peers_of_a_killed_process_get_a_reset() {
    with_namespaces("peers_of_a_killed_process_get_a_reset", || {
        let pair = Pair::new(1);
        let server = near_role("netstack-server", &format!("{NEAR} {PORT}"));
        let mut client = pair.far_role("talker", &format!("{NEAR} {PORT}"));
        client.wait_for("talking");
        server.kill();
        client.wait_for("ConnectionReset");
    });
}

/// Goal: ends that stop reading stop their peers, and let them go on.
#[test]
fn a_window_that_closes_opens_again() {
    with_namespaces("a_window_that_closes_opens_again", || {
        let pair = Pair::new(1);
        // The kernel's end reads nothing for a second.
        let _slow = pair.far_role("slow", &format!("{FAR} {PORT}"));
        let mut near = Near::new(None);
        let id = near.connect(at(NEAR, 9000), at(FAR, PORT), None);
        near.echo_through(id, 9_000_000);

        // The near end reads nothing until the kernel's end has been stopped for a while.
        near.listen(at(NEAR, PORT), None);
        let mut client = pair.far_role("client", &format!("{NEAR} {PORT} 1 6000000"));
        let mut accepted = None;
        assert!(near.until(|net| {
            accepted = accepted.or_else(|| net.tcp().accept(near::listener(PORT)));
            let connection = accepted.and_then(|id| net.tcp().get(id));
            let full = u64::from(Config::default().receive_bytes_max) - 3000;
            connection.is_some_and(|connection| connection.readable_bytes() > full)
        }));
        let begun = Instant::now();
        near.until(|_| begun.elapsed() > Duration::from_millis(700));
        near.echo_connections(vec![(accepted.unwrap(), Vec::new())]);
        client.wait_for("done");
    });
}

/// Goal: what the kernel calls urgent comes in its place in the stream, and a connection that is asked whether it is there
/// says so; the kernel answers such questions, too.
#[test]
fn urgent_data_comes_in_line_and_idle_ends_answer() {
    with_namespaces("urgent_data_comes_in_line_and_idle_ends_answer", || {
        let pair = Pair::new(1);
        let mut near = Near::new(None);
        near.listen(at(NEAR, PORT), None);
        let mut client = pair.far_role("urgent", &format!("{NEAR} {PORT}"));
        let mut id = None;
        assert!(near.until(|net| {
            id = id.or_else(|| net.tcp().accept(near::listener(PORT)));
            id.is_some()
        }));
        let id = id.unwrap();
        let ask = KeepAlive {
            // The kernel answers one such question in half a second.
            idle: Duration::from_millis(400),
            interval: Duration::from_millis(400),
            probes_max: 3,
        };
        near.net.tcp().with(id, |connection| connection.set_keep_alive(Some(ask)));
        // The kernel's end asks after one second of silence, and again after another: it would end after three.
        let begun = Instant::now();
        near.until(|_| begun.elapsed() > Duration::from_millis(4500));
        assert_eq!(near.net.tcp().get(id).unwrap().state(), State::Established);
        near.send_all(id, b"go on");
        let mut bytes = Vec::new();
        assert!(near.read_until_end(id, &mut bytes), "{bytes:?}");
        assert_eq!(bytes, b"before!after");
        near.net.tcp().with(id, |connection| connection.shut_down());
        near.run_until_says(&mut client, "done");
    });
}

/// Goal: both ends connect to each other at once, and have one connection.
#[test]
fn a_simultaneous_open_makes_one_connection() {
    with_namespaces("a_simultaneous_open_makes_one_connection", || {
        let pair = Pair::new(1);
        for attempt in 0..20 {
            let mut near = Near::new(None);
            let (here, there) = (9000 + attempt, 9500 + attempt);
            near.claim_tcp(at(NEAR, here), None);
            let mut client = pair.far_role("crossing", &format!("{FAR} {there} {NEAR} {here}"));
            let id = near.connect_unclaimed(at(NEAR, here), at(FAR, there), None);
            // The kernel's SYN comes while ours is on its way, or ours is refused before: then there was no crossing.
            near.until(|net| net.tcp().get(id).unwrap().state() != State::SynSent);
            if near.end(id) == Some(End::Refused) {
                continue;
            }
            near.send_all(id, b"crossed");
            near.run_until_says(&mut client, "crossed");
            return;
        }
    });
}

/// Goal: neighbours that the kernel does not know are found out, and one whose hardware address changes is found again;
/// a route that is added is used.
#[test]
fn neighbours_and_routes_are_followed() {
    with_namespaces("neighbours_and_routes_are_followed", || {
        let pair = Pair::new(1);
        let ip = |words: String| run(Command::new("ip").args(words.split(' ')));
        let far_ip = |words: String| run(pair.far_command("ip").args(words.split(' ')));
        for (near_ip, far_address, gateway) in
            [(NEAR, FAR, "10.98.0.1/32"), (NEAR_6, FAR_6, "fd98::1/128")]
        {
            let _echo = pair.far_role("echo", &format!("{far_address} {PORT}"));
            let is_soon = |port| {
                ip(format!("neighbour del {far_address} dev near"));
                let mut near = Near::new(None);
                let begun = Instant::now();
                let id = near.connect(at(near_ip, port), at(far_address, PORT), None);
                near.echo_through(id, 10_000);
                begun.elapsed() < Duration::from_millis(900)
            };
            // A SYN that was lost for want of the address would be sent again after a second, each time.
            assert!((8000..8003).any(is_soon), "{far_address}");
            let mut near = Near::new(None);

            // An address behind the neighbour, without a route and with one.
            let behind = gateway.split('/').next().unwrap();
            let [here, there, beyond] =
                [near_ip, far_address, behind].map(|ip| ip.parse().unwrap());
            assert_eq!(near.net.source_for(there, None), Some(here));
            assert_eq!(near.net.source_for(beyond, None), None);
            far_ip(format!("address add {gateway} dev lo"));
            let _behind = pair.far_role("echo", &format!("{behind} {PORT}"));
            ip(format!("route add {gateway} via {far_address}"));
            let id = near.connect(at(near_ip, 9001), at(behind, PORT), None);
            near.echo_through(id, 10_000);
        }
        // The neighbour gets another hardware address, and tells so.
        let _echo = pair.far_role("echo", &format!("{FAR} {}", PORT + 1));
        let mut near = Near::new(None);
        let id = near.connect(at(NEAR, 9003), at(FAR, PORT + 1), None);
        near.send_all(id, b"before");
        far_ip("link set far address 02:00:00:00:00:09".into());
        ip(format!("neighbour replace {FAR} lladdr 02:00:00:00:00:09 dev near"));
        near.echo_through_after(id, b"before", 10_000);
    });
}

/// Goal: an interface that takes longer packets by now than its frames hold is used with those that fit.
#[test]
fn packets_stay_as_long_as_frames_when_the_interface_takes_longer_ones() {
    with_namespaces("packets_stay_as_long_as_frames_when_the_interface_takes_longer_ones", || {
        let pair = Pair::new(1);
        let _echo = pair.far_role("echo", &format!("{FAR} {PORT}"));
        let mut near = Near::new(None);
        set_mtu(&pair, 3000);
        assert!(near.until(|net| net.config().mtu > 1500));
        let id = near.connect(at(NEAR, 9000), at(FAR, PORT), None);
        near.echo_through(id, 1_000_000);
        assert_eq!(near.counters().lost, 0);
    });
}

/// Goal: a connection that was told of longer packets than frames hold sends shorter ones at once, not after time-outs.
#[test]
fn a_connection_learns_how_long_frames_are() {
    with_namespaces("a_connection_learns_how_long_frames_are", || {
        let pair = Pair::new(1);
        let _echo = pair.far_role("echo", &format!("{FAR} {PORT}"));
        let mut near = Near::new(None);
        set_mtu(&pair, 3000);
        assert!(near.until(|net| net.config().mtu > 1500));
        let config = Config { mtu: 3000, ..near.net.config() };
        let id = near.connect(at(NEAR, 9000), at(FAR, PORT), Some(config));
        let is_made = |net: &mut Netstack| {
            net.tcp().get(id).is_some_and(|one| one.state() == State::Established)
        };
        assert!(near.until(is_made));
        let before = near.counters();
        let now = near.now();
        near.net.send(id, &[7; 100_000], now).unwrap();
        near.net.step(now);
        near.net.step(now);
        let after = near.counters();
        assert!(after.lost > before.lost && after.sent > before.sent, "{before:?} {after:?}");
    });
}

/// Goal: what had no free frame is sent once there is one, though nothing else happens.
#[test]
fn a_connection_begins_once_there_are_frames_again() {
    with_namespaces("a_connection_begins_once_there_are_frames_again", || {
        let pair = Pair::new(1);
        let _echo = pair.far_role("echo", &format!("{FAR} {PORT}"));
        let mut near = Near::new(None);
        let mut hoard = Some(near.hoard());
        let id = near.connect(at(NEAR, 9000), at(FAR, PORT), None);
        let begun = Instant::now();
        let is_open = near.until_by_deadlines(|near| {
            if begun.elapsed() > Duration::from_millis(100)
                && let Some(hoard) = hoard.take()
            {
                assert_eq!(near.counters().sent, 0, "there is a frame");
                near.free(hoard);
            }
            near.net.tcp().get(id).unwrap().state() == State::Established
        });
        assert!(is_open);
        near.echo_through(id, 10_000);
    });
}

/// Goal: a connection that the kernel has goes on after its port has been claimed, and new ones are had here.
#[test]
fn a_connection_of_the_kernels_goes_on_when_its_port_is_claimed() {
    with_namespaces("a_connection_of_the_kernels_goes_on_when_its_port_is_claimed", || {
        for near_ip in [NEAR, NEAR_6] {
            let pair = Pair::new(1);
            let listener = std::net::TcpListener::bind(at(near_ip, PORT)).unwrap();
            let mut talker = pair.far_role("talker", &format!("{near_ip} {PORT}"));
            let (mut stream, _) = listener.accept().unwrap();
            std::thread::spawn(move || {
                std::io::copy(&mut stream.try_clone().unwrap(), &mut stream)
            });
            talker.wait_for("talking");
            let mut near = Near::new(None);
            near.listen(at(near_ip, PORT), None);
            near.run_until_says(&mut talker, "talking");
            let mut client = pair.far_role("client", &format!("{near_ip} {PORT} 1 100000"));
            near.serve_echo(PORT, 1);
            client.wait_for("done");
            near.run_until_says(&mut talker, "talking");
        }
    });
}

/// Goal: a client whose connection the kernel has had, and closed first, begins another from the same port here.
#[test]
fn a_client_comes_back_whose_connection_the_kernel_has_closed() {
    with_namespaces("a_client_comes_back_whose_connection_the_kernel_has_closed", || {
        let pair = Pair::new(1);
        let listener = std::net::TcpListener::bind(at(NEAR, PORT)).unwrap();
        let ends = format!("{FAR} 7000 {NEAR} {PORT}");
        let mut client = pair.far_role("closed", &ends);
        drop(listener.accept().unwrap());
        client.wait_for("over");
        let mut near = Near::new(None);
        near.listen(at(NEAR, PORT), None);
        let mut client = pair.far_role("again", &ends);
        near.serve_echo(PORT, 1);
        client.wait_for("again");
    });
}
