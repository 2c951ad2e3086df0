//! What has a socket's frames carried: rules, and a profile that names the transport.

use std::fs;
use std::path::Path;

use super::streams::talker;
use super::{FAR, NEAR, Pair, Running, at, with_namespaces};

/// The program that starts others with these settings, and without the transport that tests have otherwise.
fn front(settings: &[String]) -> Vec<&str> {
    let front = ["env", "-u", "ADVERB_SOCKETS_TRANSPORT"];
    front.into_iter().chain(settings.iter().map(String::as_str)).collect()
}

/// Which of four sockets have frames: of a connection that is accepted, of one that is made, of UDP that receives, and of UDP that
/// sends first.
fn carried(pair: &Pair, settings: &[String]) -> [bool; 4] {
    let front = front(settings);
    let server = pair.framed_by(&front, "serve block", at(NEAR), None);
    let mut client = talker(pair, NEAR);
    assert_eq!(client.ask("exchange 50 64 0"), "said 50");
    let accepted = server.has_frames();
    drop(server);
    let _far = Running::start(&mut pair.role(true, "serve block", at(FAR)));
    let mut client = pair.framed_by(&front, "talk", at(FAR), None);
    assert_eq!(client.ask("exchange 50 64 0"), "said 50");
    let made = client.has_frames();
    let server = pair.framed_by(&front, "echo block", at(NEAR), None);
    let mut client = Running::start(&mut pair.role(true, "client", at(NEAR)));
    assert_eq!(client.ask("exchange 50 64 0"), "said 50");
    let received = server.has_frames();
    let _far = Running::start(&mut pair.role(true, "echo block", at(FAR)));
    let mut client = pair.framed_by(&front, "client connected", at(FAR), None);
    assert_eq!(client.ask("exchange 50 64 0"), "said 50");
    [accepted, made, received, client.has_frames()]
}

fn settings(place: &Path, rules: &str) -> [String; 1] {
    let file = place.join("rules");
    fs::write(&file, rules).expect("a file");
    [format!("VMA_CONFIG_FILE={}", file.display())]
}

/// Goal: sockets have frames that a rule names, by its role, address and port, and no others.
#[test]
fn rules_say_which_sockets_have_frames() {
    with_namespaces("rules::rules_say_which_sockets_have_frames", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for (rules, expected) in [
            ("use xdp tcp_server *:7481\n", [true, false, false, false]),
            ("use xdp tcp_client 10.95.0.2:7481\n", [false, true, false, false]),
            ("use xdp udp_receiver 10.95.0.0/24:7481\n", [false, false, true, false]),
            ("use xdp udp_connect *:7481\n", [false, false, false, true]),
            ("use xdp tcp_server *:7482\nuse xdp udp_receiver 10.95.1.1:*\n", [false; 4]),
            ("use os tcp_server *:7481\nuse xdp tcp_server *:*\n", [false; 4]),
        ] {
            let settings = settings(&pair.place.0, rules);
            assert_eq!(carried(&pair, &settings), expected, "{rules}");
        }
    });
}

/// Goal: the profile that names the transport has all of them carried; what is set by name wins over it.
#[test]
fn a_profile_names_the_transport() {
    with_namespaces("rules::a_profile_names_the_transport", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let profile = "ADVERB_SOCKETS_PROFILE=frames".to_owned();
        assert_eq!(carried(&pair, std::slice::from_ref(&profile)), [true; 4]);
        let named = [profile, "ADVERB_SOCKETS_TRANSPORT=spin".to_owned()];
        assert_eq!(carried(&pair, &named), [false; 4]);
    });
}
