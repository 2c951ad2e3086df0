//! What processes beside a test do.

use super::hostile::Raw;
use super::place::{FAR, MACS, NEAR, frame, index, read};
use super::{OWNER, key, soon};
use adverb_sys::bpf::XdpMode;
use adverb_sys::memory::Mapping;
use adverb_xdp::{Config, Interface, Membership, Owner, Socket};
use rustix::net::sockopt;
use rustix::net::xdp::{
    XDP_PGOFF_RX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpRingOffset,
};
use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// The entry of a process with a role.
#[test]
fn a_role() {
    let Ok(role) = std::env::var("ADVERB_TEST_ROLE") else { return };
    let with = std::env::var("ADVERB_TEST_WITH").unwrap();
    match role.as_str() {
        "echo" => echo(&with),
        "owner" => owner(&with),
        "member" => member(&with),
        "idle" => idle(),
        "unlucky" => unlucky(),
        "guest" => guest(&with),
        "hoarder" => hoarder(&with),
        "deaf" => deaf(&with),
        "foreigner" => foreigner(),
        "writer" => writer(),
        "scribbler" => scribbler(),
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

/// Owns the interface, and serves all that ask: with as many frames and queues each, if that is said.
fn owner(with: &str) {
    let words = with.split_once(' ').map(|(frames, queues)| [frames, queues].map(str::parse));
    let [frames, queues] = words.map_or([None, Some(4)], |words| words.map(|word| word.ok()));
    let config = Config { frames, ..Config::default() };
    let interface = Interface::open(index("near"), &config).unwrap();
    let mut owner = Owner::new(interface, OWNER, queues.unwrap()).unwrap();
    println!("\nready");
    let mut has_told = false;
    loop {
        owner.step(Some(std::time::Duration::from_millis(100)), |_| true).unwrap();
        if !has_told && let Some(refusal) = owner.refusal() {
            println!("\n{refusal}");
            has_told = true;
        }
    }
}

/// Asks the owner; the queues of one that was before it stay busy for a moment.
fn ask() -> (Membership, Vec<Socket>) {
    ask_patiently().unwrap()
}

fn ask_patiently() -> std::io::Result<(Membership, Vec<Socket>)> {
    let mut asked = Membership::ask(OWNER);
    let busy = std::io::ErrorKind::ResourceBusy;
    soon(|| {
        if asked.as_ref().is_err_and(|error| error.kind() == busy) {
            asked = Membership::ask(OWNER);
        }
        !asked.as_ref().is_err_and(|error| error.kind() == busy)
    });
    asked
}

/// Is a member, and does nothing.
fn idle() {
    let _member = ask();
    println!("\nready");
    let _ = std::io::stdin().read(&mut [0]);
}

/// Asks an owner that cannot lock the memory.
fn unlucky() {
    let refused = ask_patiently().unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::QuotaExceeded, "{refused}");
    assert!(refused.to_string().contains("owner may not lock the memory"), "{refused}");
    println!("\nready\nrefused");
}

/// Sends packets to an echo by its own port, until all have come back to it, that many times.
fn member(with: &str) {
    let mut words = with.split(' ').map(|word| word.parse().unwrap());
    let [own, echo, rounds] = [(); 3].map(|()| words.next().unwrap());
    let (member, mut sockets) = ask();
    assert_eq!(member.mode(), XdpMode::Native);
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

/// Writes anything to all rings and to the record, but for the lock, and goes on receiving and sending.
fn scribbler() {
    let raw = Raw::ask();
    let (_member, mut sockets) = ask();
    let socket = &mut sockets[0];
    let at = sockopt::xdp_mmap_offsets(&socket.incoming).unwrap();
    let map = |page, offsets: &XdpRingOffset, bytes: usize| {
        let len = usize::try_from(offsets.desc).unwrap() + bytes;
        (Mapping::shared_at(&socket.incoming, page, len).unwrap(), len / 4)
    };
    let rings = [
        map(XDP_PGOFF_RX_RING, &at.rx, 16 * 1024),
        map(XDP_UMEM_PGOFF_FILL_RING, &at.fr, 8 * 4096),
        map(XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr, 8 * 4096),
    ];
    println!("\nready");
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 33).unwrap() % below
    };
    for round in 0..50_000 {
        let word = u32::try_from(random(1 << 20)).unwrap() << random(12);
        let (memory, words) = &rings[random(rings.len())];
        // Positions are among the first words.
        let at = if round % 2 == 0 { random(96) } else { random(*words) };
        memory.half(4 * at).store(word, Ordering::Relaxed);
        raw.scribble(random(1 << 20), word % 5);
        if round % 16 == 0 {
            socket.incoming.receive(64, |_| ControlFlow::Continue(()));
            let _ = socket.outgoing.send(|writer| writer.push(&[0; 60]));
            let _ = socket.outgoing.flush();
        }
    }
    println!("\nscribbled");
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
