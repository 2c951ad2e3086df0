//! Two processes that exchange the addresses of their queue pairs over TCP, and a message over RDMA.

use adverb::verbs::{Access, Context, Cq, Pd, Qp, QpConfig, Rc, RemoteQp, Work};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().collect();
    match words.get(1..).unwrap_or_default() {
        [role, address, device] if role == "server" => server(address, device),
        [role, address, device] if role == "client" => client(address, device),
        _ => Err("usage: server|client ADDRESS:PORT DEVICE".into()),
    }
}

/// Receives one message, and prints it.
fn server(address: &str, device: &str) -> Result<(), Box<dyn Error>> {
    let (pd, cq, qp) = queue_pair(device)?;
    qp.init()?; // Receives can be posted from now on, so that no message finds none.
    let memory = pd.allocate(64, Access::LOCAL_WRITE)?;
    qp.post(Work::recv(memory.slice(0, 64)?))?;

    let (mut client, _) = TcpListener::bind(address)?.accept()?;
    qp.connect(receive(&mut client)?)?; // Ready, before the client knows the way.
    client.write_all(&qp.address()?.to_bytes())?;

    let done = cq.wait()?.ok()?;
    let mut text = vec![0; usize::try_from(done.wc.byte_len)?];
    memory.read(0, &mut text)?;
    println!("{}", String::from_utf8(text)?);
    Ok(())
}

fn client(address: &str, device: &str) -> Result<(), Box<dyn Error>> {
    let (pd, cq, qp) = queue_pair(device)?;
    let mut server = TcpStream::connect(address)?;
    server.write_all(&qp.address()?.to_bytes())?;
    qp.connect(receive(&mut server)?)?;

    let mut message = pd.buffer(5)?;
    message.copy_from_slice(b"hello");
    qp.post(Work::send(message))?;
    cq.wait()?.ok()?; // The server has it.
    Ok(())
}

fn queue_pair(device: &str) -> Result<(Pd, Cq, Qp<Rc>), Box<dyn Error>> {
    let context = Context::open(device)?;
    let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
    let qp = pd.create_qp(&QpConfig::new(&cq))?;
    Ok((pd, cq, qp))
}

fn receive(peer: &mut TcpStream) -> Result<RemoteQp, Box<dyn Error>> {
    let mut bytes = [0; RemoteQp::BYTES];
    peer.read_exact(&mut bytes)?;
    Ok(RemoteQp::from_bytes(bytes))
}
