//! What programs beside a test do.
//!
//! # Safety
//!
//! Every pointer passed to the kernel is to a local of the length that is said.

use std::ffi::c_int;
use std::io::{BufRead, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use adverb_sys::bpf::XdpMode;
use adverb_xdp::owner::name_of;
use adverb_xdp::{Config, Interface, Owner};

use super::{soon, streams};

/// The entry of a program with a role.
#[test]
fn a_role() {
    let Ok(role) = std::env::var("ADVERB_TEST_ROLE") else { return };
    let at = std::env::var("ADVERB_TEST_AT").expect("an address");
    let at = at.parse::<SocketAddr>().expect("an address");
    match role.split_once(' ').unwrap_or((&role, "")) {
        ("owner", how) => owner(how),
        ("echo", mode) => echo(at, mode),
        ("client", how) => client(at, how == "connected"),
        ("group", device) => answer_groups(at, device),
        ("asker", device) => ask_groups(at, device),
        ("gone", _) => gone(at),
        ("renumbered", _) => renumbered(at),
        ("groups", word) => send_to_groups(at, word),
        ("witness", _) => witness(at),
        ("rebind", _) => rebind(at),
        ("glance", _) => glance(at),
        ("late", _) => late(at),
        ("workers", _) => workers(at),
        ("idle", _) => idle(at),
        ("closes", _) => closes(at),
        ("peeker", _) => peeker(at),
        ("connects", _) => connects(at),
        ("options", _) => options(at),
        ("serve", mode) => streams::serve(at, mode),
        ("heir", fd) => streams::inherit(fd.parse().expect("a number")),
        ("talk", how) => streams::talk(at, how == "accepts"),
        ("urgent", how) => crate::urgent::hear(at, how),
        ("loss", how) => {
            let (percent, device) = how.split_once(' ').unwrap_or((how, "far"));
            lose(percent.parse().expect("a number"), device);
        }
        ("end", how) => crate::ends::end(at, how),
        other => panic!("{other:?} is no role"),
    }
}

/// Owns the near end: all of it, its first queue, or behind the driver; queues of one that was before it stay busy for a moment.
/// If it stops, it does so once: as soon as a member has claimed something; when it has taken a socket out of the kernel's
/// hands, or has put one back, and has not said so.
fn owner(how: &str) {
    let all = adverb_sys::netdev::interfaces().expect("interfaces");
    let index = all.iter().find(|interface| interface.name == "near").expect("the cable").index;
    let config = match how {
        "one" => Config { queues: Some(1), ..Config::default() },
        "generic" => Config { mode: Some(XdpMode::Generic), ..Config::default() },
        _ => Config::default(),
    };
    let open = || Interface::open(index, &config);
    let mut interface = open();
    soon("the interface", || {
        interface.is_ok() || {
            interface = open();
            interface.is_ok()
        }
    });
    let interface = interface.expect("the interface");
    let mut owner = Owner::new(interface, &name_of(index), u32::MAX).expect("a name");
    std::thread::sleep(Duration::from_millis(150)); // Queues of an owner before it are busy for that long.
    println!("\nready");
    let (mut before, mut has_stopped) = (0, false);
    loop {
        owner.step(Some(Duration::from_millis(100)), |_| true).expect("a step");
        // As the daemon does.
        let all = adverb_sys::netdev::interfaces().expect("interfaces");
        if all.iter().all(|interface| interface.index != index) {
            return;
        }
        let keys = owner.by_user().values().map(|count| count.keys).sum::<usize>();
        let stops = match how {
            "stops" => keys > 0,
            "stops taking" => before > 0,
            "stops giving" => keys < before,
            _ => false,
        };
        if stops && !has_stopped {
            has_stopped = true;
            if how != "stops" {
                // Another thread has something to do still.
                std::thread::sleep(Duration::from_millis(50));
            }
            // SAFETY: no pointer.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
        before = keys;
    }
}

/// So many percent of the packets that come to an interface are lost.
fn lose(percent: u32, device: &str) {
    let all = adverb_sys::netdev::interfaces().expect("interfaces");
    let index = all.iter().find(|interface| interface.name == device).expect("it is there").index;
    let _loss = crate::faults::lose(index, percent);
    println!("\nready");
    std::thread::park();
}

fn set(socket: &UdpSocket, name: c_int) {
    set_to(socket, name, 1);
}

fn set_to(socket: &UdpSocket, name: c_int, value: c_int) {
    streams::set(socket, libc::SOL_SOCKET, name, value);
}

/// The thread that handlers interrupt: signals of a process go to whichever there is.
static INTERRUPTED: AtomicI32 = AtomicI32::new(0);

/// Whether a handler runs in that thread; if not, it is sent the signal.
fn is_in_place(signal: c_int) -> bool {
    let thread = INTERRUPTED.load(Ordering::Relaxed);
    // SAFETY: no pointer.
    if unsafe { libc::gettid() } == thread {
        return true;
    }
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, signal) };
    false
}

/// Has a function run when there is SIGUSR1, within whatever call of this thread that interrupts.
fn on_signal(handler: extern "C" fn(c_int)) {
    // SAFETY: no pointer.
    INTERRUPTED.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    // SAFETY: all zeros is a legal value of this structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    #[expect(clippy::as_conversions, reason = "the C library takes a function as a number")]
    let handler = handler as libc::sighandler_t;
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: a structure, which is ours, with a function that handlers may call.
    let set = unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) };
    assert_eq!(set, 0);
}

/// Forks; the child says so, and ends with its parent.
extern "C" fn fork(signal: c_int) {
    if !is_in_place(signal) {
        return;
    }
    // SAFETY: no pointer; both go on where the parent was.
    if unsafe { libc::fork() } == 0 {
        // SAFETY: no pointer.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let said = b"\nsaid forked\n";
        // SAFETY: bytes of ours.
        unsafe { libc::write(1, said.as_ptr().cast(), said.len()) };
    }
}

/// What the handler of [`closes`] closes.
static TO_CLOSE: AtomicI32 = AtomicI32::new(-1);

extern "C" fn close(signal: c_int) {
    if is_in_place(signal) {
        // SAFETY: no pointer.
        unsafe { libc::close(TO_CLOSE.load(Ordering::Relaxed)) };
    }
}

/// Connects a socket with frames, and has a handler that closes another one.
fn closes(at: SocketAddr) {
    let sockets = [at, SocketAddr::new(at.ip(), at.port() + 1)].map(|at| {
        let socket = UdpSocket::bind(at).expect("a port");
        socket.set_nonblocking(true).expect("an option");
        assert!(socket.recv(&mut [0; 64]).is_err());
        socket
    });
    let [stays, goes] = sockets;
    TO_CLOSE.store(goes.into_raw_fd(), Ordering::Relaxed);
    on_signal(close);
    // SAFETY: no pointer: a program that waits for itself ends.
    unsafe { libc::alarm(20) };
    println!("\nready");
    for _line in std::io::stdin().lock().lines() {
        stays.connect(SocketAddr::new(at.ip(), 9)).expect("a peer");
        println!("\nsaid connected");
    }
}

/// Sends everything back.
fn echo(at: SocketAddr, how: &str) {
    let mode = how.split(' ').next().expect("a word");
    if how.ends_with("forks") {
        on_signal(fork);
    }
    let mut socket = UdpSocket::bind(at).expect("a port");
    if mode == "shared" {
        set(&socket, libc::SO_REUSEPORT);
        drop(socket);
        socket = shared(at);
    }
    socket.set_nonblocking(["spin", "edge"].contains(&mode)).expect("an option");
    let mut instance = -1;
    if ["epoll", "edge"].contains(&mode) {
        instance = watch(&socket, if mode == "edge" { libc::EPOLLET } else { 0 });
    }
    println!("\nready");
    let mut buffer = vec![0; 1 << 16];
    for turn in 0_u64.. {
        match mode {
            "poll" => {
                let fd = socket.as_raw_fd();
                let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: a structure, which is ours.
                if unsafe { libc::poll(&raw mut polled, 1, -1) } != 1 {
                    let error = std::io::Error::last_os_error();
                    assert_eq!(error.kind(), ErrorKind::Interrupted);
                    continue;
                }
            }
            "epoll" | "edge" => {
                let mut event = libc::epoll_event { events: 0, u64: 0 };
                // SAFETY: an event, which is ours.
                assert_eq!(unsafe { libc::epoll_wait(instance, &raw mut event, 1, -1) }, 1);
            }
            // SAFETY: no pointer; the child goes on as its parent.
            "fork" if turn == 100 => match unsafe { libc::fork() } {
                // SAFETY: no pointer. It ends with its parent.
                0 => _ = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) },
                child => {
                    // SAFETY: a child of ours.
                    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
                }
            },
            "close" if turn == 50 => {
                for fd in 900..1100 {
                    // SAFETY: no pointer.
                    let _ = unsafe { libc::close(fd) };
                }
                // SAFETY: no pointer.
                let _ = unsafe { libc::close_range(900, u32::MAX, 0) };
            }
            _ => {}
        }
        loop {
            match socket.recv_from(&mut buffer) {
                Ok((len, from)) => _ = socket.send_to(&buffer[..len], from),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
            if mode != "edge" {
                break;
            }
        }
    }
}

/// Groups at the near end and at the far end, with the ports behind this one.
fn groups(at: SocketAddr) -> [SocketAddr; 2] {
    let [near, far] = match at {
        SocketAddr::V4(_) => ["239.95.0.1", "239.95.0.2"],
        SocketAddr::V6(_) => ["ff05::95:1", "ff05::95:2"],
    };
    [(near, at.port() + 1), (far, at.port() + 2)]
        .map(|(ip, port)| SocketAddr::new(ip.parse().expect("a group"), port))
}

/// A socket of a port that has joined a group by this interface, and sends by it, to other hosts alone.
fn member_of(group: SocketAddr, device: &str) -> UdpSocket {
    let all = adverb_sys::netdev::interfaces().expect("interfaces");
    let index = all.iter().find(|interface| interface.name == device).expect("the cable").index;
    let (any, (level, option)) = match group {
        SocketAddr::V4(_) => ("0.0.0.0", (libc::IPPROTO_IP, libc::IP_MULTICAST_IF)),
        SocketAddr::V6(_) => ("::", (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF)),
    };
    let any = SocketAddr::new(any.parse().expect("an address"), group.port());
    // The owner has a copy of one that was killed for a moment longer.
    soon("the port", || UdpSocket::bind(any).is_ok());
    let socket = UdpSocket::bind(any).expect("a port");
    let zero = libc::in_addr { s_addr: 0 };
    let imr_ifindex = c_int::try_from(index).expect("a number");
    let by = libc::ip_mreqn { imr_multiaddr: zero, imr_address: zero, imr_ifindex };
    match group {
        SocketAddr::V4(_) => streams::set(&socket, level, option, by),
        SocketAddr::V6(_) => streams::set(&socket, level, option, index),
    }
    match group.ip() {
        IpAddr::V4(ip) => {
            let own = |one: &&adverb_sys::netdev::Interface| one.index == index;
            let addresses = &all.iter().find(own).expect("the cable").addresses;
            let found = addresses.iter().find_map(|address| match address.ip {
                IpAddr::V4(ip) => Some(ip),
                IpAddr::V6(_) => None,
            });
            socket.join_multicast_v4(&ip, &found.expect("an address")).expect("it joins");
            socket.set_multicast_loop_v4(false).expect("an option");
        }
        IpAddr::V6(ip) => {
            socket.join_multicast_v6(&ip, index).expect("it joins");
            socket.set_multicast_loop_v6(false).expect("an option");
        }
    }
    socket
}

/// Sends to the group of the far end what comes for that of the near end.
fn answer_groups(at: SocketAddr, device: &str) {
    let [near, far] = groups(at);
    let socket = member_of(near, device);
    socket.set_nonblocking(true).expect("an option");
    println!("\nready");
    let mut buffer = [0; 2000];
    loop {
        match socket.recv(&mut buffer) {
            Ok(len) => _ = socket.send_to(&buffer[..len], far).expect("it is sent"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Sends so many to the group of the near end, each when the one before has come back.
fn ask_groups(at: SocketAddr, device: &str) {
    let [near, far] = groups(at);
    let socket = member_of(far, device);
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("an option");
    println!("\nready");
    for line in std::io::stdin().lock().lines() {
        let count: u64 = line.expect("a line").parse().expect("a number");
        let mut buffer = [0; 64];
        let back = (0..count).take_while(|n| {
            socket.send_to(&n.to_be_bytes(), near).expect("it is sent");
            socket.recv(&mut buffer).is_ok_and(|len| buffer[..len] == n.to_be_bytes())
        });
        println!("\nsaid {}", back.count());
    }
}

/// Sends one datagram back, closes its socket, and says how often an instance tells of that.
fn gone(at: SocketAddr) {
    let socket = UdpSocket::bind(at).expect("a port");
    socket.set_nonblocking(true).expect("an option");
    let mut buffer = [0; 64];
    let _ = socket.recv_from(&mut buffer);
    println!("\nready");
    let (len, from) = loop {
        match socket.recv_from(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            got => break got.expect("a datagram"),
        }
    };
    socket.send_to(&buffer[..len], from).expect("the way back");
    let instance = watch(&socket, 0);
    let mut socket = Some(socket);
    for _line in std::io::stdin().lock().lines() {
        drop(socket.take());
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: an event, which is ours.
        let told = unsafe { libc::epoll_wait(instance, &raw mut event, 1, 300) };
        println!("\nsaid {told}");
    }
}

/// Has a pipe get the number by which a socket is watched, and watches it too, before the last descriptor of the socket is
/// closed; says what the instance tells of the pipe.
fn renumbered(at: SocketAddr) {
    let socket = UdpSocket::bind(at).expect("a port");
    socket.set_nonblocking(true).expect("an option");
    assert!(socket.recv(&mut [0; 64]).is_err());
    println!("\nready");
    std::io::stdin().lock().lines().next();
    let instance = watch(&socket, 0);
    let copy = socket.try_clone().expect("a copy");
    let fd = socket.as_raw_fd();
    let mut pipe = [0; 2];
    // SAFETY: room for two numbers.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // The socket is closed by that: its number is the pipe's from now on.
    // SAFETY: numbers alone.
    assert_eq!(unsafe { libc::dup2(pipe[0], fd) }, fd);
    let mut event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 2 };
    // SAFETY: an event, which is ours.
    let added = unsafe { libc::epoll_ctl(instance, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    assert_eq!(added, 0);
    drop(copy);
    // SAFETY: bytes of ours.
    assert_eq!(unsafe { libc::write(pipe[1], b"x".as_ptr().cast(), 1) }, 1);
    // SAFETY: an event, which is ours.
    let told = unsafe { libc::epoll_wait(instance, &raw mut event, 1, 10_000) };
    let mark = event.u64;
    println!("\nsaid {told} {mark}");
    // It is the pipe's by now.
    std::mem::forget(socket);
}

/// Sends a datagram to a group of the far end each time it is told to, by the near end, as it is told: from that address, with
/// that many hops, or to a group of the link.
fn send_to_groups(at: SocketAddr, how: &str) {
    let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).expect("a port");
    let all = adverb_sys::netdev::interfaces().expect("interfaces");
    let index = all.iter().find(|interface| interface.name == "near").expect("the cable").index;
    let mut to = groups(at)[1];
    let set = |level, name, value: u32| streams::set(&socket, level, name, value);
    let (v4, v6) = (libc::IPPROTO_IP, libc::IPPROTO_IPV6);
    if at.is_ipv4() {
        set(v4, libc::IP_MULTICAST_LOOP, 0);
        let ip: std::net::Ipv4Addr = how.parse().unwrap_or([10, 95, 0, 1].into());
        set(v4, libc::IP_MULTICAST_IF, u32::from_ne_bytes(ip.octets()));
        set(v4, libc::IP_MULTICAST_TTL, u32::from(how != "hopless"));
    } else {
        set(v6, libc::IPV6_MULTICAST_LOOP, 0);
        set(v6, libc::IPV6_MULTICAST_IF, index);
        if how == "link" {
            let group = std::net::Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0x95, 2);
            to = SocketAddr::V6(std::net::SocketAddrV6::new(group, to.port(), 0, index));
        }
    }
    println!("\nready");
    for line in std::io::stdin().lock().lines() {
        let number: u64 = line.expect("a line").parse().expect("a number");
        for number in 0..number {
            socket.send_to(&number.to_be_bytes(), to).expect("it is sent");
        }
        println!("\nsaid sent");
    }
}

/// Says where the last datagram has come from that came to the group of the far end, and how many have, once there are as
/// many as asked for.
fn witness(at: SocketAddr) {
    let socket = member_of(groups(at)[1], "far");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("an option");
    println!("\nready");
    for line in std::io::stdin().lock().lines() {
        let count: usize = line.expect("a line").parse().expect("a number");
        let mut buffer = [0; 64];
        let mut receive = || socket.recv_from(&mut buffer).ok();
        let mut all: Vec<_> = std::iter::from_fn(&mut receive).take(count).collect();
        socket.set_nonblocking(true).expect("an option");
        all.extend(std::iter::from_fn(receive));
        socket.set_nonblocking(false).expect("an option");
        let from = all.last().map_or("nowhere".to_owned(), |(_, from)| from.ip().to_string());
        println!("\nsaid {} {from}", all.len());
    }
}

/// A socket that shares its port.
fn shared(at: SocketAddr) -> UdpSocket {
    use std::os::fd::FromRawFd;
    // SAFETY: no pointer.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0) };
    // SAFETY: it has just been made.
    let socket = unsafe { UdpSocket::from_raw_fd(fd) };
    set(&socket, libc::SO_REUSEPORT);
    let SocketAddr::V4(v4) = at else { panic!("{at}") };
    let name = libc::sockaddr_in {
        sin_family: libc::AF_INET.try_into().expect("a family"),
        sin_port: v4.port().to_be(),
        sin_addr: libc::in_addr { s_addr: v4.ip().to_bits().to_be() },
        sin_zero: [0; 8],
    };
    let len = libc::socklen_t::try_from(size_of_val(&name)).expect("a length");
    // SAFETY: a structure, which is ours.
    assert_eq!(unsafe { libc::bind(fd, (&raw const name).cast(), len) }, 0);
    socket
}

/// Sends datagrams, each when the one before has come back, and looks at what comes back.
fn client(to: SocketAddr, is_connected: bool) {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).expect("a port");
    if is_connected {
        socket.connect(to).expect("a peer");
    }
    println!("\nready");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let mut words = line.split(' ');
        let what = words.next().expect("a word");
        let numbers: Vec<u64> = words.map(|word| word.parse().expect("a number")).collect();
        match what {
            "refused" => println!("\nsaid {}", until_refused(&socket)),
            "shower" => println!("\nsaid {}", shower(&socket, to, numbers[0])),
            "mix" => println!("\nsaid {}", mix(&socket, to, numbers[0], numbers[1])),
            "stream" => println!("\nsaid {}", stream(&socket, to, numbers[0])),
            "errors" => println!("\nsaid {}", errors(&socket, to)),
            "send" => {
                let sent = socket.send_to(b"?", to).map_err(|error| error.kind());
                println!("\nsaid {sent:?}");
            }
            what => {
                let peer = if is_connected { None } else { Some(to) };
                let [count, len, pause_us] = numbers[..] else { panic!("{line}") };
                println!(
                    "\nsaid {}",
                    exchange(&socket, peer, [count, len, pause_us], what == "insist")
                );
            }
        }
    }
}

/// How many have come back before one has not; if it `insists`, each is sent again until it does.
fn exchange(
    socket: &UdpSocket,
    to: Option<SocketAddr>,
    [count, len, pause_us]: [u64; 3],
    insists: bool,
) -> u64 {
    let patience = Duration::from_millis(if insists { 200 } else { 10_000 });
    socket.set_read_timeout(Some(patience)).expect("an option");
    let mut buffer = vec![0; 1 << 16];
    for n in 0..count {
        let mut datagram: Vec<u8> = (0..len).map(|at| byte(at * 7 + n)).collect();
        datagram[..8].copy_from_slice(&n.to_be_bytes());
        let since = Instant::now();
        let send = || match to {
            Some(to) => socket.send_to(&datagram, to),
            None => socket.send(&datagram),
        };
        let mut sent = send();
        loop {
            if let Err(error) = &sent {
                assert!(insists, "{error}");
            }
            match socket.recv_from(&mut buffer) {
                // An answer to one that was sent twice.
                Ok((got, _)) if got >= 8 && insists && buffer[..8] < datagram[..8] => {}
                Ok((got, from)) => {
                    assert!(buffer[..got] == datagram, "{n}: {got} of {len} bytes");
                    assert!(to.is_none_or(|to| to == from), "{from}");
                    break;
                }
                Err(_) if insists && since.elapsed() < Duration::from_secs(20) => sent = send(),
                Err(error) => {
                    eprintln!("{n} of {count}: {error}");
                    return n;
                }
            }
        }
        if pause_us > 0 {
            std::thread::sleep(Duration::from_micros(pause_us));
        }
    }
    count
}

fn byte(number: u64) -> u8 {
    let [low, ..] = number.to_le_bytes();
    low
}

/// Sends until it hears that there is nothing at the other end.
fn until_refused(socket: &UdpSocket) -> &'static str {
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("an option");
    for _ in 0..100 {
        let sent = socket.send(b"is anything there?");
        for outcome in [sent, socket.recv(&mut [0; 64])] {
            if outcome.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
                return "refused";
            }
        }
    }
    "nothing"
}

/// Binds and closes as often, with frames each time.
fn rebind(at: SocketAddr) {
    println!("\nready");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let count = line.split(' ').nth(1).expect("a word").parse::<u32>().expect("a number");
        for _ in 0..count {
            let socket = UdpSocket::bind(at).expect("the port is free");
            socket.set_nonblocking(true).expect("an option");
            let _ = socket.recv_from(&mut [0; 64]);
        }
        println!("\nsaid {count}");
    }
}

/// What the kernel says to the address of all hosts of the cable, without `SO_BROADCAST`, and to one of the other family.
fn errors(socket: &UdpSocket, to: SocketAddr) -> String {
    let all = SocketAddr::new([10, 95, 0, 255].into(), to.port());
    let strange = SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), to.port());
    let mapped =
        SocketAddr::new(std::net::Ipv4Addr::new(10, 95, 0, 2).to_ipv6_mapped().into(), to.port());
    let code =
        |to| socket.send_to(b"0123456789", to).map_or_else(|error| error.raw_os_error(), |_| None);
    [all, strange, mapped].map(|to| format!("{:?}", code(to))).join(" ")
}

/// Looks once, without waiting, each time it is told to.
fn glance(at: SocketAddr) {
    let socket = UdpSocket::bind(at).expect("a port");
    socket.set_nonblocking(true).expect("an option");
    let mut buffer = vec![0; 1 << 16];
    let mut look = || {
        socket
            .recv(&mut buffer)
            .map_or_else(|error| error.kind().to_string(), |len| len.to_string())
    };
    println!("\nready");
    for _line in std::io::stdin().lock().lines() {
        println!("\nsaid {}", look());
    }
}

/// A parent and a child that have one socket from before the first datagram; the parent echoes, and after 50 lets its
/// child do so.
fn workers(at: SocketAddr) {
    let socket = UdpSocket::bind(at).expect("a port");
    // SAFETY: no pointer; the child goes on as its parent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no pointer. It ends with its parent.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        // SAFETY: no pointer. It sleeps until its parent says so.
        unsafe { libc::raise(libc::SIGSTOP) };
    } else {
        println!("\nready");
    }
    let mut buffer = vec![0; 1 << 16];
    for turn in 0_u64.. {
        if child != 0 && turn == 50 {
            // SAFETY: no pointer: a child of ours.
            unsafe { libc::kill(child, libc::SIGCONT) };
            // SAFETY: no pointer. What comes is its child's.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
        let (len, from) = socket.recv_from(&mut buffer).expect("a datagram");
        let _ = socket.send_to(&buffer[..len], from);
    }
}

/// Sends so many datagrams, and waits for no answer.
fn shower(socket: &UdpSocket, to: SocketAddr, count: u64) -> u64 {
    (0..count).for_each(|n| _ = socket.send_to(&n.to_be_bytes(), to).expect("it is sent"));
    count
}

/// Sends rounds of a long datagram and so many short ones, each when the one before has been received; says how many were.
fn mix(socket: &UdpSocket, to: SocketAddr, rounds: u64, shorts: u64) -> u64 {
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("an option");
    for round in 0..rounds {
        socket.send_to(&[0xff; 4096], to).expect("it is sent");
        for n in 0..shorts {
            socket.send_to(&n.to_be_bytes(), to).expect("it is sent");
        }
        let mut answer = [0; 8];
        match socket.recv(&mut answer) {
            Ok(8) if u64::from_be_bytes(answer) == shorts + 1 => {}
            _ => return round,
        }
    }
    rounds
}

/// Looks how long each datagram is, receives it with as much room, and answers each round when all of it is there: 51, or
/// nonsense if one was another than it had looked at.
fn peeker(at: SocketAddr) {
    let socket = UdpSocket::bind(at).expect("a port");
    println!("\nready");
    let mut room = vec![0_u8; 1 << 16];
    let mut receive = |len: usize, flags: c_int| {
        // SAFETY: a buffer of ours that is longer than that.
        let got = unsafe {
            libc::recv(socket.as_raw_fd(), room.as_mut_ptr().cast(), len, flags | libc::MSG_TRUNC)
        };
        usize::try_from(got).expect("a datagram")
    };
    let mut from = None;
    for count in 1_u64.. {
        let from = *from.get_or_insert_with(|| socket.peek_from(&mut [0; 8]).expect("a peer").1);
        let len = receive(1, libc::MSG_PEEK);
        let is_same = receive(len, 0) == len && len != 1;
        let said = if is_same { count % 51 } else { 1000 };
        if said == 0 || !is_same {
            let answer = if is_same { 51 } else { said };
            socket.send_to(&answer.to_be_bytes(), from).expect("the way back");
        }
    }
}

/// Sends numbered datagrams, a few at a time.
fn stream(socket: &UdpSocket, to: SocketAddr, count: u64) -> u64 {
    for n in 0..count {
        socket.send_to(&[n, count].map(u64::to_be_bytes).concat(), to).expect("it is sent");
        if n % 4 == 0 {
            std::thread::sleep(Duration::from_micros(300));
        }
    }
    count
}

/// Receives those, connects again to where they come from after each 40, and says whether they came in order.
fn connects(at: SocketAddr) {
    let socket = UdpSocket::bind(at).expect("a port");
    set_to(&socket, libc::SO_RCVBUFFORCE, 8 << 20);
    // It never sleeps: while it did, a frame on its way could be overtaken by what the kernel gets.
    socket.set_nonblocking(true).expect("an option");
    println!("\nready");
    let mut bytes = [0; 16];
    let (mut next, mut last) = (0, Instant::now());
    loop {
        let (len, from) = match socket.recv_from(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && next == 0 => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                assert!(last.elapsed() < Duration::from_secs(20), "{next} has not come");
                continue;
            }
            got => got.expect("a datagram"),
        };
        last = Instant::now();
        assert_eq!(len, 16);
        let [number, count] =
            [0, 8].map(|at| u64::from_be_bytes(*bytes[at..].first_chunk().expect("a number")));
        assert_eq!(number, next, "it is the next");
        next += 1;
        if next == count {
            println!("\nsaid in order");
        } else if next % 40 == 0 {
            socket.connect(from).expect("a peer");
        }
    }
}

/// Sets options after it has got frames, and says how many datagrams have come.
fn options(at: SocketAddr) {
    let socket = UdpSocket::bind(at).expect("a port");
    socket.set_nonblocking(true).expect("an option");
    let mut buffer = [0; 64];
    assert!(socket.recv(&mut buffer).is_err());
    set_to(&socket, libc::SO_RCVBUFFORCE, 8 << 20);
    println!("\nready");
    for line in std::io::stdin().lock().lines() {
        if line.expect("a line") == "share" {
            set(&socket, libc::SO_REUSEPORT);
            println!("\nsaid 0");
        } else {
            println!("\nsaid {}", std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count());
        }
    }
}

/// Looks when it is told to, after a fork: how many have come.
fn late(at: SocketAddr) {
    let socket = UdpSocket::bind(at).expect("a port");
    socket.set_nonblocking(true).expect("an option");
    let mut buffer = [0; 64];
    assert!(socket.recv(&mut buffer).is_err());
    println!("\nready");
    for _line in std::io::stdin().lock().lines() {
        // SAFETY: no pointer; the child ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no pointer.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: no pointer: a child of ours.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        let mut count = 0;
        while socket.recv(&mut buffer).is_ok() {
            count += 1;
        }
        println!("\nsaid {count}");
    }
}

/// Sends a frame back, and waits then for more at that socket, or at one without frames, to which nothing comes; says how
/// often it has slept.
fn idle(at: SocketAddr) {
    let framed = UdpSocket::bind(at).expect("a port");
    framed.set_nonblocking(true).expect("an option");
    let mut buffer = [0; 64];
    let _ = framed.recv_from(&mut buffer);
    let plain = UdpSocket::bind("127.0.0.1:0").expect("a port");
    println!("\nready");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let (call, socket) = line.split_once(' ').expect("two words");
        let socket = if socket == "framed" { &framed } else { &plain };
        let (len, from) = loop {
            match framed.recv_from(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                got => break got.expect("a datagram"),
            }
        };
        framed.send_to(&buffer[..len], from).expect("the way back");
        let before = sleeps();
        match call {
            "poll" => {
                let fd = socket.as_raw_fd();
                let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: a structure, which is ours.
                assert_eq!(unsafe { libc::poll(&raw mut polled, 1, IDLE_MS) }, 0);
            }
            _ => {
                let instance = watch(socket, 0);
                let mut event = libc::epoll_event { events: 0, u64: 0 };
                // SAFETY: an event, which is ours.
                assert_eq!(unsafe { libc::epoll_wait(instance, &raw mut event, 1, IDLE_MS) }, 0);
                // SAFETY: no pointer.
                assert_eq!(unsafe { libc::close(instance) }, 0);
            }
        }
        println!("\nsaid {}", sleeps() - before);
    }
}

/// Long enough for a few short sleeps, and within one that is cut short by signal handlers alone.
const IDLE_MS: c_int = 80;

/// How often this thread has slept so far.
fn sleeps() -> i64 {
    // SAFETY: all zeros is a legal value of this structure of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a structure, which is ours.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
    usage.ru_nvcsw
}

/// An instance that watches a socket.
fn watch(socket: &UdpSocket, how: c_int) -> c_int {
    // SAFETY: no pointer.
    let instance = unsafe { libc::epoll_create1(0) };
    let events = (libc::EPOLLIN | how).cast_unsigned();
    let mut event = libc::epoll_event { events, u64: 1 };
    let fd = socket.as_raw_fd();
    // SAFETY: an event, which is ours.
    let added = unsafe { libc::epoll_ctl(instance, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    assert_eq!(added, 0);
    instance
}
