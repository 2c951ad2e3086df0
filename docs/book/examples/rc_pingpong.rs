//! What `ibv_rc_pingpong` does, step by step: the comments name the calls in C.

use adverb::verbs::{Access, Context, CqConfig, Mr, Qp, QpConfig, Rc, RemoteQp, WcOpcode, Work};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const SIZE: usize = 4096;
const ITERATIONS: u32 = 1000;
const RECEIVES: u32 = 500;

/// What a side waits for before it sends again.
#[derive(Clone, Copy, PartialEq)]
struct Pending {
    send: bool,
    receive: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, role, address, device] = words.as_slice() else {
        return Err("usage: server|client ADDRESS:PORT DEVICE".into());
    };
    let is_client = role == "client";

    let context = Context::open(device)?; // ibv_get_device_list, ibv_open_device
    let channel = context.create_comp_channel()?; // ibv_create_comp_channel
    let pd = context.alloc_pd(); // ibv_alloc_pd
    let memory = pd.allocate(SIZE, Access::LOCAL_WRITE)?; // memalign, ibv_reg_mr
    let config = CqConfig::new(RECEIVES + 1).channel(&channel);
    let cq = context.create_cq_with(&config)?; // ibv_create_cq
    let config = QpConfig::new(&cq).max_send_wr(1).max_recv_wr(RECEIVES);
    let qp = pd.create_qp(&config)?; // ibv_create_qp
    qp.init()?; // ibv_modify_qp to INIT
    let mut posted = post_receives(&qp, &memory, RECEIVES)?;
    cq.req_notify(false)?; // ibv_req_notify_cq

    println!("local address:  {}", qp.address()?);
    let remote = meet(&qp, is_client, address)?; // … to RTR, to RTS
    println!("remote address: {remote}");

    let start = Instant::now();
    let mut pending = Pending { send: false, receive: true };
    if is_client {
        post_send(&qp, &memory)?;
        pending.send = true;
    }
    let (mut sent, mut received) = (0, 0);
    while sent < ITERATIONS || received < ITERATIONS {
        channel.get_event()?; // ibv_get_cq_event; dropping it is ibv_ack_cq_events
        cq.req_notify(false)?;
        while let Some(done) = cq.next()? {
            let done = done.ok()?; // ibv_poll_cq, and its status
            if done.wc.opcode == WcOpcode::Send {
                sent += 1;
                pending.send = false;
            } else {
                received += 1;
                posted -= 1;
                if posted <= 1 {
                    posted += post_receives(&qp, &memory, RECEIVES - posted)?;
                }
                pending.receive = false;
            }
            if sent < ITERATIONS && pending == (Pending { send: false, receive: false }) {
                post_send(&qp, &memory)?;
                pending = Pending { send: true, receive: true };
            }
        }
    }

    let elapsed = start.elapsed();
    let microseconds = elapsed.as_secs_f64() * 1e6 / f64::from(ITERATIONS);
    println!("{ITERATIONS} round trips of {SIZE} bytes: {microseconds:.2} µs each");
    Ok(()) // Handles end in whatever order they are dropped.
}

/// ibv_post_recv, many times.
fn post_receives(qp: &Qp<Rc>, memory: &Mr, count: u32) -> Result<u32, Box<dyn Error>> {
    for _ in 0..count {
        qp.post(Work::recv(memory.slice(0, SIZE)?))?;
    }
    Ok(count)
}

/// ibv_post_send.
fn post_send(qp: &Qp<Rc>, memory: &Mr) -> Result<(), Box<dyn Error>> {
    Ok(qp.post(Work::send(memory.slice(0, SIZE)?))?)
}

/// Exchanges addresses over TCP, and connects: GID, queue pair number and first sequence number.
fn meet(qp: &Qp<Rc>, is_client: bool, address: &str) -> Result<RemoteQp, Box<dyn Error>> {
    let mine = qp.address()?.to_bytes();
    let mut theirs = [0; RemoteQp::BYTES];
    let mut peer;
    if is_client {
        peer = TcpStream::connect(address)?;
        peer.write_all(&mine)?;
    } else {
        peer = TcpListener::bind(address)?.accept()?.0;
    }
    peer.read_exact(&mut theirs)?;
    let remote = RemoteQp::from_bytes(theirs);
    qp.connect(remote)?;
    if !is_client {
        peer.write_all(&mine)?; // Ready, before the client knows where to send to.
    }
    Ok(remote)
}
