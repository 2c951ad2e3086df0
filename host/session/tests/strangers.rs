//! Strangers at a server's port, and at an address that a client connects to: each gets an error and, where
//! it listens, a short refusal; no call hangs, and the server goes on.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::frame::{
    Access, Advertisement, ChannelHello, Features, Frame, FrameError, Hello, Name, Reason, Refusal,
};
use adverb_session::{
    AcceptError, ChannelError, ClientSession, Config, ConnectError, ConnectorError, Departure,
    PathMtu, Rkey, ServerSession,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use support::LONG;

/// A server that accepts for ever and tells what came of it.
fn server(config: Config) -> (SocketAddr, mpsc::Receiver<Result<(), AcceptError>>) {
    let mut server = ServerSession::bind("127.0.0.1:0", config).expect("a server");
    let address = server.local_addr();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut endpoints = Vec::new();
        loop {
            let result = server.accept(LONG).map(|endpoint| endpoints.push(endpoint));
            if sender.send(result).is_err() {
                return;
            }
        }
    });
    (address, receiver)
}

/// For strangers that say nothing.
fn impatient() -> Config {
    Config::default().handshake_timeout(Duration::from_millis(150))
}

/// For strangers that say something, and on a busy machine not at once.
fn patient() -> Config {
    Config::default().handshake_timeout(LONG)
}

/// Everything that the other side says until it hangs up.
fn hear(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(LONG)).expect("a limit");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("it hangs up");
    bytes
}

fn refusal(bytes: &[u8]) -> Refusal {
    match Frame::parse(bytes) {
        Ok(Some((Frame::Refuse(refusal), len))) if len == bytes.len() => refusal,
        other => panic!("{other:?}"),
    }
}

fn hello(channel: &str) -> Hello {
    let name = |text| Name::new(text).expect("a name");
    Hello {
        session: name("stranger"),
        device: name("soft_lo"),
        node_guid: 1,
        gid: adverb_session::Gid::from_v4([127, 0, 0, 1]),
        path_mtu: PathMtu::B1024,
        reads: 1,
        features: Features::default(),
        nonce: [7; 32],
        channels: vec![ChannelHello {
            name: name(channel),
            qpn: adverb_verbs::Qpn::new(0x1234),
            psn: adverb_verbs::Psn::new(0xff_fffe),
            send_depth: 1,
            receive_depth: 1,
        }],
    }
}

fn connects(address: SocketAddr) {
    let session = ClientSession::new(Config::default()).expect("a client");
    session.connect(address).expect("the server goes on");
}

#[test]
fn strangers_are_told_so_and_the_server_goes_on() {
    let whole = Frame::Hello(hello("data")).emit();
    let mut other_version = whole.clone();
    other_version[5] = 9;
    let mut oversize = whole.clone();
    oversize[8..12].copy_from_slice(&[0xff; 4]);
    let mut no_channels = whole.clone();
    let count = no_channels.len() - (1 + 4 + 16) - 1;
    no_channels[count] = 0;
    let surplus = {
        let mut bytes = whole.clone();
        let len = u32::try_from(bytes.len() - 12 + 1).unwrap();
        bytes[8..12].copy_from_slice(&len.to_be_bytes());
        [bytes.as_slice(), &[0]].concat()
    };
    let cases: [(&[u8], Reason, &str); 9] = [
        (b"", Reason::Silence, "did not say Hello"),
        (&whole[..whole.len() - 1], Reason::Silence, "did not say Hello"),
        (b"GET / HTTP/1.1\r\n\r\n", Reason::Garbage, "not the protocol"),
        (&[0; 5000], Reason::Garbage, "not the protocol"),
        (&other_version, Reason::Version, "version 9"),
        (&oversize, Reason::Garbage, "4294967295 bytes"),
        (&no_channels, Reason::Garbage, "number of channels"),
        (&surplus, Reason::Garbage, "1 bytes more"),
        (&Frame::Ready.emit(), Reason::Garbage, "said Ready where Hello was due"),
    ];
    let (hasty, servers) = (server(impatient()), server(patient()));
    for (bytes, reason, text) in cases {
        let (address, results) = if reason == Reason::Silence { &hasty } else { &servers };
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(bytes).unwrap();
        let refusal = refusal(&hear(&mut stream));
        assert_eq!(refusal.reason, reason, "{refusal}");
        assert!(refusal.text.contains(text), "{refusal}");
        let error = results.recv_timeout(LONG).unwrap().unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        assert!(
            matches!(error, AcceptError::Stranger { from, .. } if from == stream.local_addr().unwrap())
        );
    }
    let (address, results) = servers;
    connects(address);
    results.recv_timeout(LONG).unwrap().unwrap();
}

#[test]
fn who_answers_no_more_after_the_welcome_is_given_up_on() {
    // Long enough to say Hello.
    let (address, results) = server(Config::default().handshake_timeout(Duration::from_secs(2)));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&Frame::Hello(hello("data")).emit()).unwrap();
    let bytes = hear(&mut stream);
    let (welcome, len) = Frame::parse(&bytes).unwrap().unwrap();
    assert!(matches!(welcome, Frame::Welcome(_)));
    assert_eq!(refusal(&bytes[len..]).reason, Reason::Silence);
    let error = results.recv_timeout(LONG).unwrap().unwrap_err();
    assert!(error.to_string().contains("did not say Ready"), "{error}");

    let (address, results) = server(patient());
    let mut stream = TcpStream::connect(address).unwrap();
    let twice = Frame::Hello(hello("data")).emit().repeat(2);
    stream.write_all(&twice).unwrap();
    let error = results.recv_timeout(LONG).unwrap().unwrap_err();
    assert!(error.to_string().contains("said Hello where Ready"), "{error}");

    drop(TcpStream::connect(address).unwrap());
    let error = results.recv_timeout(LONG).unwrap().unwrap_err();
    assert!(error.to_string().contains("without a word"), "{error}");
    connects(address);
}

/// Goal: strangers that say nothing keep no client waiting.
/// Method: their patience is longer than the test's.
#[test]
fn silent_strangers_do_not_hold_up_clients() {
    let (address, results) = server(Config::default().handshake_timeout(10 * LONG));
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    connects(address);
    results.recv_timeout(LONG).unwrap().unwrap();
    drop(silent);
    for _ in 0..20 {
        results.recv_timeout(LONG).unwrap().unwrap_err();
    }
}

/// Goal: neither do more than a server has places for.
#[test]
fn a_crowd_of_silent_strangers_does_not_hold_up_clients() {
    let (address, results) = server(Config::default().handshake_timeout(10 * LONG));
    let mut silent: Vec<_> = (0..300).map(|_| TcpStream::connect(address).unwrap()).collect();
    connects(address);
    results.recv_timeout(LONG).unwrap().unwrap();
    // Those that came first have gone for it.
    assert_eq!(refusal(&hear(&mut silent[0])).reason, Reason::Busy);
    connects(address);
    drop(silent);
}

/// As many as a server has places for, each of which it has answered.
fn newcomers(address: SocketAddr) -> Vec<TcpStream> {
    let newcomer = |_| {
        let mut stream = TcpStream::connect(address).expect("the server");
        stream.write_all(&Frame::Hello(hello("data")).emit()).expect("the server listens");
        stream.read_exact(&mut [0]).expect("it says Welcome");
        stream
    };
    (0..64).map(newcomer).collect()
}

/// Method: a newcomer keeps its place for a second, so a try in which a busy machine took half of that says nothing.
#[test]
fn more_newcomers_than_a_server_serves_are_told_to_come_again() {
    let soon = Duration::from_millis(500);
    let is_told = |_| {
        let begun = Instant::now();
        let (address, results) = server(Config::default().handshake_timeout(10 * LONG));
        let crowd = newcomers(address);
        let mut late = TcpStream::connect(address).unwrap();
        late.set_read_timeout(Some(soon)).unwrap();
        let mut bytes = Vec::new();
        let heard = late.read_to_end(&mut bytes);
        if begun.elapsed() > soon {
            return false;
        }
        heard.unwrap();
        assert_eq!(refusal(&bytes).reason, Reason::Busy);
        // A client comes again by itself.
        let client = thread::spawn(move || connects(address));
        thread::sleep(Duration::from_millis(100));
        drop(crowd);
        let is_soon = begun.elapsed() < soon;
        client.join().unwrap();
        if is_soon {
            let served = (0..65).filter(|_| results.recv_timeout(LONG).unwrap().is_ok());
            assert_eq!(served.count(), 1);
        }
        is_soon
    };
    assert!((0..20).any(is_told), "it is not told at once");
}

/// Goal: newcomers that say Hello and then fall silent keep a client out for a second, and not until their
/// time is over.
/// Method: they take all places, and stay; their patience is longer than the test's.
#[test]
fn newcomers_that_fall_silent_after_the_welcome_do_not_keep_a_client_out() {
    let (address, results) = server(Config::default().handshake_timeout(10 * LONG));
    let silent = newcomers(address);
    connects(address);
    results.recv_timeout(LONG).unwrap().unwrap();
    drop(silent);
}

/// A server that says these bytes to each connection, and hangs up when told.
fn impostor(bytes: Vec<u8>) -> (SocketAddr, mpsc::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a port");
    let (sender, receiver) = mpsc::channel::<()>();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the client comes");
        stream.write_all(&bytes).expect("it listens");
        let _ = receiver.recv();
    });
    (address, sender)
}

#[test]
fn clients_notice_when_the_server_is_none() {
    let connect = |bytes: Vec<u8>| {
        // Only a stranger that says nothing is waited for in vain.
        let patience = if bytes.is_empty() { Duration::from_millis(200) } else { LONG };
        let config = Config::default().connect_timeout(patience);
        let (address, _stays) = impostor(bytes);
        let session = ClientSession::new(config).unwrap();
        let error = session.connect(address).unwrap_err();
        let ConnectError::Handshake { error, .. } = error else {
            panic!("{error}");
        };
        error
    };
    let error = connect(b"SSH-2.0-OpenSSH_9.6\r\n".to_vec());
    assert!(matches!(error, ConnectorError::Frame(FrameError::Magic)), "{error}");
    let error = connect(Vec::new());
    assert!(matches!(error, ConnectorError::Timeout { due: "Welcome", .. }));
    let error = connect(Frame::Bye.emit());
    assert_eq!(error.to_string(), "the peer said Bye where Welcome was due");
    let refusal = Refusal::new(Reason::Disagreement, "not today");
    let error = connect(Frame::Refuse(refusal).emit());
    assert_eq!(error.to_string(), "the peer refused: not today");
}

#[test]
fn a_server_that_answers_with_other_channels_is_left() {
    let (address, _stays) = impostor(Frame::Welcome(hello("other")).emit());
    let session = ClientSession::new(Config::default()).unwrap();
    let error = session.connect(address).unwrap_err();
    assert!(matches!(error, ConnectError::SetUp { .. }), "{error}");
}

/// Goal: a peer that turns bad later is hung up on, and costs no memory.
/// Method: a good handshake by hand, and then each kind of bad manners.
#[test]
fn a_peer_that_turns_unruly_is_hung_up_on() {
    let advertisement = |number: usize| {
        Frame::Advertise(Advertisement {
            name: Name::new(&format!("buffer {number}")).unwrap(),
            addr: 4096,
            rkey: Rkey(1),
            access: Access::ALL,
            block_bytes: 1,
            blocks: 1,
        })
        .emit()
    };
    let flood = (0..1025).flat_map(advertisement).collect();
    let cases: [Vec<u8>; 4] = [
        b"what is this?".to_vec(),
        Frame::Ready.emit(),
        flood,
        [&Frame::Ready.emit()[..4], &[0xff; 8]].concat(),
    ];
    let mut server = ServerSession::bind("127.0.0.1:0", Config::default()).unwrap();
    for bytes in cases {
        let mut stream = TcpStream::connect(server.local_addr()).unwrap();
        let greeting = [Frame::Hello(hello("data")), Frame::Ready];
        for frame in greeting {
            stream.write_all(&frame.emit()).unwrap();
        }
        let endpoint = server.accept(LONG).unwrap();
        let channel = endpoint.channel("data").unwrap();
        let buffer = endpoint.adapter().buffer(1, 8).unwrap();
        channel.post_recv(buffer.at(0).unwrap()).unwrap();
        assert_eq!(endpoint.departure(), None);
        stream.write_all(&bytes).unwrap();
        let gone = ChannelError::PeerGone(Departure::Unruly);
        assert_eq!(channel.recv().unwrap_err(), gone);
    }
}

/// Goal: only a client that knows the secret becomes an endpoint, and only of a server that knows it.
#[test]
fn both_sides_need_the_same_secret() {
    let with = |secret: Option<&str>| match secret {
        Some(secret) => patient().secret(secret),
        None => patient(),
    };
    let cases = [
        (None, Some("swordfish"), "the server asks for a secret"),
        (Some("swordfish"), None, "does not ask for a secret"),
        (Some("swordfish"), Some("swordfisH"), "does not know the secret"),
    ];
    for (ours, theirs, text) in cases {
        let (address, results) = server(with(theirs));
        let error = ClientSession::new(with(ours)).unwrap().connect(address).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        assert!(matches!(error, ConnectError::Handshake { error: ConnectorError::Secret(_), .. }));
        assert!(results.recv_timeout(LONG).unwrap().is_err());
        // The server goes on with clients that know it.
        ClientSession::new(with(theirs)).unwrap().connect(address).unwrap();
        results.recv_timeout(LONG).unwrap().unwrap();
    }
}

/// Goal: neither silence, nor a guess, nor a proof that was heard elsewhere opens the door.
#[test]
fn a_stranger_without_the_secret_gets_no_queue_pairs() {
    let (address, results) = server(patient().secret("swordfish"));
    let hello = Frame::Hello(hello("data")).emit();
    let mut old_proof = [0; 32];
    for case in 0..3 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&hello).unwrap();
        let mut challenge = vec![0; 12 + 64];
        stream.read_exact(&mut challenge).unwrap();
        let Ok(Some((Frame::Challenge { proof, .. }, _))) = Frame::parse(&challenge) else {
            panic!("a challenge was due");
        };
        let (answer, reason) = match case {
            0 => (Frame::Ready, Reason::Garbage),
            // What the server said itself, in this connection and in the last.
            1 => (Frame::Proof(proof), Reason::Secret),
            _ => (Frame::Proof(old_proof), Reason::Secret),
        };
        old_proof = proof;
        stream.write_all(&answer.emit()).unwrap();
        assert_eq!(refusal(&hear(&mut stream)).reason, reason);
        assert!(results.recv_timeout(LONG).unwrap().is_err());
    }
}

/// Goal: what a client says in one breath with the end of its handshake is heard.
#[test]
fn words_that_come_with_the_end_of_the_handshake_are_heard() {
    let config = patient().work_timeout(LONG);
    let mut server = ServerSession::bind("127.0.0.1:0", config).unwrap();
    let mut stream = TcpStream::connect(server.local_addr()).unwrap();
    let said = thread::spawn(move || {
        stream.write_all(&Frame::Hello(hello("data")).emit()).unwrap();
        let mut header = [0; 12];
        stream.read_exact(&mut header).unwrap();
        let rest = usize::from(header[10]) << 8 | usize::from(header[11]);
        stream.read_exact(&mut vec![0; rest]).unwrap();
        let sink = Frame::Advertise(Advertisement {
            name: Name::new("sink").unwrap(),
            addr: 0x1000,
            rkey: Rkey(1),
            access: Access::ALL,
            block_bytes: 8,
            blocks: 1,
        });
        stream.write_all(&[Frame::Ready.emit(), sink.emit()].concat()).unwrap();
        stream
    });
    let endpoint = server.accept(LONG).unwrap();
    endpoint.remote_buffer("sink").unwrap();
    drop(said.join().unwrap());
}
