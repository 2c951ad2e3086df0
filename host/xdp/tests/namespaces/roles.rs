//! What processes beside a test do.

use super::place::{FAR, MACS, NEAR, frame, index, read};
use super::{OWNER, key, soon};
use adverb_xdp::{Config, Interface, Membership, Owner, Socket};
use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::ops::ControlFlow;

/// The entry of a process with a role.
#[test]
fn a_role() {
    let Ok(role) = std::env::var("ADVERB_TEST_ROLE") else { return };
    let with = std::env::var("ADVERB_TEST_WITH").unwrap();
    match role.as_str() {
        "echo" => echo(&with),
        "owner" => owner(),
        "member" => member(&with),
        "guest" => guest(&with),
        "hoarder" => hoarder(&with),
        "deaf" => deaf(&with),
        "foreigner" => foreigner(),
        "writer" => writer(),
        other => panic!("{other} is no role"),
    }
}

/// A socket of the kernel's that sends everything back.
fn echo(with: &str) {
    let (ip, port) = with.split_once(' ').unwrap();
    let socket = UdpSocket::bind((ip, port.parse().unwrap())).unwrap();
    println!("\nready");
    let mut buffer = [0; 4096];
    loop {
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        let _ = socket.send_to(&buffer[..len], from);
    }
}

/// Owns the interface, and serves all that ask.
fn owner() {
    let interface = Interface::open(index("near"), &Config::default()).unwrap();
    let mut owner = Owner::new(interface, OWNER, 4).unwrap();
    println!("\nready");
    loop {
        owner.step(Some(std::time::Duration::from_millis(100)), |_| true).unwrap();
    }
}

/// Asks the owner; the queues of one that was before it stay busy for a moment.
fn ask() -> (Membership, Vec<Socket>) {
    let mut asked = Membership::ask(OWNER);
    let busy = std::io::ErrorKind::ResourceBusy;
    soon(|| {
        if asked.as_ref().is_err_and(|error| error.kind() == busy) {
            asked = Membership::ask(OWNER);
        }
        asked.is_ok()
    });
    asked.unwrap()
}

/// Sends packets to an echo by its own port, until all have come back to it, that many times.
fn member(with: &str) {
    let mut words = with.split(' ').map(|word| word.parse().unwrap());
    let [own, echo, rounds] = [(); 3].map(|()| words.next().unwrap());
    let (member, mut sockets) = ask();
    let twin = UdpSocket::bind((NEAR, own)).unwrap();
    member.claim(key(NEAR, own), &twin).unwrap();
    let stolen = member.claim(key(NEAR, own + 1), &twin).unwrap_err();
    assert_eq!(stolen.kind(), std::io::ErrorKind::PermissionDenied);
    println!("\nready");
    for round in 0..rounds {
        let mut due: Vec<_> = (0..64).map(|n| u32::from(round) << 8 | n).collect();
        for n in &due {
            let bytes = frame(MACS, (NEAR, own), (FAR, echo), &n.to_be_bytes());
            sockets[0].outgoing.send(|writer| writer.push(&bytes)).unwrap();
        }
        sockets[0].outgoing.flush().unwrap();
        let came = soon(|| {
            for socket in &mut sockets {
                while socket.incoming.receive(64, |bytes| {
                    let (_, to, payload) = read(bytes).unwrap();
                    assert_eq!(to.port(), own);
                    due.retain(|due| due.to_be_bytes() != payload);
                    ControlFlow::Continue(())
                }) > 0
                {}
            }
            due.is_empty()
        });
        let counted: Vec<_> = sockets.iter().map(|socket| socket.incoming.statistics()).collect();
        assert!(came, "{own} in round {round}: {due:?} {counted:?}");
    }
    assert!(!member.has_ended());
    println!("\ndone");
    let _ = std::io::stdin().read(&mut [0]);
}

/// Has hundreds of packets sent to its port, and takes none of them.
fn hoarder(with: &str) {
    let mut words = with.split(' ').map(|word| word.parse().unwrap());
    let [own, echo] = [(); 2].map(|()| words.next().unwrap());
    let (member, mut sockets) = ask();
    let twin = UdpSocket::bind((NEAR, own)).unwrap();
    member.claim(key(NEAR, own), &twin).unwrap();
    let bytes = frame(MACS, (NEAR, own), (FAR, echo), b"to be kept");
    for _ in 0..12 {
        for _ in 0..64 {
            // Where there are no frames left, there is nothing to hoard.
            let _ = sockets[0].outgoing.send(|writer| writer.push(&bytes));
        }
        let _ = sockets[0].outgoing.flush();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    println!("\nready");
    let _ = std::io::stdin().read(&mut [0]);
}

/// Writes frames that it does not flush.
fn writer() {
    let (_member, mut sockets) = Membership::ask(OWNER).unwrap();
    for _ in 0..900 {
        sockets[0].outgoing.send(|writer| writer.push(&[0; 60])).unwrap();
    }
    println!("\nready");
    let _ = std::io::stdin().read(&mut [0]);
}

/// Asks an owner that it cannot see.
fn foreigner() {
    println!("\nready");
    let refused = Membership::ask(OWNER).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    println!("\nrefused");
}

/// A socket of the kernel's that takes connections, and nothing that comes by them.
fn deaf(with: &str) {
    let (ip, port) = with.split_once(' ').unwrap();
    let _listener = TcpListener::bind((ip, port.parse().unwrap())).unwrap();
    println!("\nready");
    let _ = std::io::stdin().read(&mut [0]);
}

/// Has the socket of one queue, or none.
fn guest(with: &str) {
    let asked = Membership::ask(OWNER);
    println!("\nready");
    match asked {
        Ok((_member, sockets)) => {
            let queues: Vec<_> = sockets.iter().map(|socket| socket.incoming.queue()).collect();
            assert_eq!(queues, [with.parse().unwrap()]);
            println!("\nserved");
            let _ = std::io::stdin().read(&mut [0]);
        }
        Err(error) => {
            assert_eq!((error.kind(), with), (std::io::ErrorKind::ResourceBusy, "none"));
            println!("\nrefused");
        }
    }
}
