//! An echo server of any number of clients, and one client, in one program.
//!
//! Or, on two machines: `session_echo server ADDRESS` and `session_echo client ADDRESS`.

use adverb::session::{
    Channel, ClientSession, Config, Departure, Endpoint, Event, Handler, PeerInfo, ServerSession,
    Service, WorkMode,
};
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

struct Echo;

impl Handler for Echo {
    fn established(&self, endpoint: &Endpoint) {
        println!("{} has come", endpoint.peer().addr);
        welcome(endpoint).unwrap_or_else(|error| eprintln!("{error}"));
    }

    fn received(&self, channel: &Channel, event: Event) {
        let Ok(message) = event.block.first(event.bytes) else { return };
        let _ = channel.post_send(message); // A peer that is gone needs no answer.
    }

    /// The block is free again: for the next message.
    fn sent(&self, channel: &Channel, event: Event) {
        if let Ok(whole) = event.block.buffer().at(event.block.index()) {
            let _ = channel.post_recv(whole);
        }
    }

    fn gone(&self, peer: &PeerInfo, how: Departure) {
        println!("{}: {how}", peer.addr);
    }
}

fn welcome(endpoint: &Endpoint) -> Result<(), Box<dyn Error>> {
    let buffer = endpoint.adapter().buffer(8, 4096)?;
    for channel in endpoint.channels() {
        for _ in 0..4 {
            channel.post_recv(buffer.next()?)?;
        }
    }
    Ok(())
}

fn server(address: SocketAddr) -> Result<Service, Box<dyn Error>> {
    let config = Config::default().work_mode(WorkMode::Epoll);
    Ok(ServerSession::bind(address, config)?.serve(Arc::new(Echo))?)
}

fn client(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let endpoint = ClientSession::new(Config::default())?.connect(address)?;
    let channel = endpoint.channel("data")?;
    let buffer = endpoint.adapter().buffer(2, 4096)?;
    for text in ["hello", "how are you?", "goodbye"] {
        channel.post_recv(buffer.at(1)?)?;
        buffer.at(0)?.write(0, text.as_bytes())?;
        channel.send(buffer.at(0)?.first(text.len())?)?;
        let event = channel.recv()?;
        println!("echo: {}", String::from_utf8(event.block.first(event.bytes)?.to_vec())?);
    }
    Ok(endpoint.close()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["server", address] => {
            let service = server(address.parse()?)?;
            println!("listening on {}; press return to stop", service.local_addr());
            std::io::stdin().read_line(&mut String::new())?;
            service.stop();
            Ok(())
        }
        ["client", address] => client(address.parse()?),
        _ => client(server("127.0.0.1:0".parse()?)?.local_addr()),
    }
}
