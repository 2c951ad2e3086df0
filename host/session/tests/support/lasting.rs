//! A server that serves one client after the other, and what its client does.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use super::LONG;
use adverb_session::{Buffer, Channel, Config, Endpoint, RemoteBuffer, ServerSession};
use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

/// Serves one client after the other.
pub(crate) fn run(address: SocketAddr, config: Config) {
    let mut server = ServerSession::bind(address, config).expect("a server");
    let table = server.adapter().expect("one address").buffer(2, 8).expect("a buffer");
    loop {
        let Ok(endpoint) = server.accept(LONG * 10) else { continue };
        // The client of a test that has ended is not there any more.
        let _ = endpoint.advertise("table", &table);
        let _ = serve(&endpoint);
    }
}

/// Writes to the client's buffer, and then sends back what comes.
fn serve(endpoint: &Endpoint) -> Result<(), Box<dyn Error>> {
    let channel = endpoint.channel("data")?.with_timeout(LONG * 10);
    let buffer = endpoint.adapter().buffer(2, 8)?;
    channel.post_recv(buffer.at(0)?)?;
    let sink = endpoint.remote_buffer("sink")?;
    buffer.at(1)?.store_u64(0, 1)?;
    channel.write(buffer.at(1)?, sink.at(0)?)?;
    loop {
        let event = channel.recv()?;
        channel.send(event.block.clone())?;
        channel.post_recv(event.block)?;
    }
}

/// Waits until the server, which writes there once it was told of the buffer, has done so.
pub(crate) fn await_word(sink: &Buffer) {
    while sink.at(0).unwrap().load_u64(0).unwrap() == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    sink.fill(0).unwrap();
}

/// Has the server send back what it is sent, and write and read its memory.
pub(crate) fn use_all(endpoint: &Endpoint, channel: &Channel) -> RemoteBuffer {
    let buffer = endpoint.adapter().buffer(2, 8).unwrap();
    let (near, far) = (buffer.at(0).unwrap(), buffer.at(1).unwrap());
    near.store_u64(0, 7).unwrap();
    channel.post_recv(far.clone()).unwrap();
    channel.send(near.clone()).unwrap();
    assert_eq!(channel.recv().unwrap().block.load_u64(0).unwrap(), 7);
    let table = endpoint.remote_buffer("table").unwrap();
    channel.write(near, table.at(1).unwrap()).unwrap();
    far.fill(0).unwrap();
    channel.read(far.clone(), table.at(1).unwrap()).unwrap();
    assert_eq!(far.load_u64(0).unwrap(), 7);
    table
}
