//! A link between two interfaces that takes time and changes the order of packets; `cargo xtask net` uses it.
//!
//! `lab_relay IFACE IFACE DELAY_US REORDER` carries each frame from one interface to the other, DELAY_US microseconds
//! later. With REORDER above 0, one frame in ten is held back until 1 to REORDER others have overtaken it, or for a
//! millisecond. Frames must fit the interfaces: segmentation and receive offload have to be off. Needs root.
//!
//! # Safety
//!
//! What `socket` returns is an open descriptor that nothing else has; what `bind` reads is a whole address.

use std::collections::VecDeque;
use std::error::Error;
use std::fs;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::{Duration, Instant};

const HELD_MAX: Duration = Duration::from_millis(1);
/// Frames that wait in one direction.
const WAITING_MAX: usize = 1 << 16;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [a, b, delay, reorder] = words.as_slice() else {
        return Err("lab_relay IFACE IFACE DELAY_US REORDER".into());
    };
    let delay = Duration::from_micros(delay.parse()?);
    let reorder: u64 = reorder.parse()?;
    let (a, b) = (open(a)?, open(b)?);
    let (mut forth, mut back) = (Way::new(delay, reorder), Way::new(delay, reorder));
    println!("ready");
    loop {
        let moved = forth.carry(&a, &b) | back.carry(&b, &a);
        if !moved {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

/// A socket for all frames that arrive at an interface. Its `recv` and `send` are those of a UDP socket.
fn open(interface: &str) -> Result<UdpSocket, Box<dyn Error>> {
    let index = fs::read_to_string(format!("/sys/class/net/{interface}/ifindex"))?;
    let protocol = 0x0003_u16.to_be(); // ETH_P_ALL.
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: it takes integers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(protocol)) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: it was just opened.
    let socket = unsafe { UdpSocket::from_raw_fd(fd) };
    let address = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET)?,
        sll_protocol: protocol,
        sll_ifindex: index.trim().parse()?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = u32::try_from(size_of::<libc::sockaddr_ll>())?;
    // SAFETY: the address is whole, and `len` bytes long.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    let room: libc::c_int = 64 << 20;
    let room_len = u32::try_from(size_of_val(&room))?;
    // SAFETY: the option is an integer, and `room_len` bytes long.
    let grown = unsafe {
        let (level, option) = (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE);
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const room).cast(), room_len)
    };
    match (bound, grown) {
        (0, 0) => Ok(socket),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

/// One direction.
struct Way {
    delay: Duration,
    reorder: u64,
    waiting: VecDeque<(Instant, Vec<u8>)>,
    /// A frame that others overtake, how many still, and until when.
    held: Option<(Vec<u8>, u64, Instant)>,
    random: u64,
}

impl Way {
    fn new(delay: Duration, reorder: u64) -> Self {
        Self { delay, reorder, waiting: VecDeque::new(), held: None, random: 0x9e37_79b9_7f4a_7c15 }
    }

    /// Takes what has come and sends what is due. Whether there was anything.
    fn carry(&mut self, from: &UdpSocket, to: &UdpSocket) -> bool {
        let mut buffer = [0; 10_000];
        let mut moved = false;
        for _ in 0..64 {
            let Ok(len) = from.recv(&mut buffer) else {
                break;
            };
            moved = true;
            if self.waiting.len() < WAITING_MAX {
                let frame = buffer.get(..len).unwrap_or_default().to_vec();
                self.waiting.push_back((Instant::now() + self.delay, frame));
            }
        }
        while self.waiting.front().is_some_and(|(due, _)| *due <= Instant::now()) {
            let Some((_, frame)) = self.waiting.pop_front() else {
                break;
            };
            moved = true;
            if self.held.is_none() && self.reorder > 0 && self.draw().is_multiple_of(10) {
                let others = 1 + self.draw() % self.reorder;
                self.held = Some((frame, others, Instant::now() + HELD_MAX));
                continue;
            }
            let _ = to.send(&frame); // A full queue drops it, as a link does.
            if let Some((_, others, _)) = &mut self.held {
                *others -= 1;
            }
            self.release(to);
        }
        self.release(to);
        moved
    }

    /// Sends the frame that was held back, if it is its turn.
    fn release(&mut self, to: &UdpSocket) {
        let is_due = |held: &mut (Vec<u8>, u64, Instant)| held.1 == 0 || held.2 <= Instant::now();
        if let Some((frame, ..)) = self.held.take_if(is_due) {
            let _ = to.send(&frame); // As above.
        }
    }

    /// Xorshift.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
