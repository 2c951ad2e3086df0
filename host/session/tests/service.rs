//! Services: no client and no handler holds up the others, and nothing is lost in silence.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::{
    Channel, ClientSession, Config, Endpoint, Event, Handler, RemoteBlock, ServerSession, Service,
};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use support::LONG;

fn serve(config: Config, handler: Arc<dyn Handler>) -> Service {
    let server =
        ServerSession::bind("127.0.0.1:0", config.handshake_timeout(LONG)).expect("a server");
    server.serve(handler).expect("a service")
}

fn connect(address: SocketAddr) -> Endpoint {
    let session = ClientSession::new(Config::default().connect_timeout(LONG)).expect("a client");
    session.connect(address).expect("an endpoint")
}

/// Its first peer is not let in before it is told.
struct Slow {
    come: mpsc::Sender<u32>,
    count: AtomicU32,
    go: Mutex<mpsc::Receiver<()>>,
}

impl Handler for Slow {
    fn established(&self, _endpoint: &Endpoint) {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        if count == 0 {
            let told = self.go.lock().expect("no panic").recv_timeout(LONG);
            told.expect("it is told");
        }
        self.come.send(count).expect("the test listens");
    }

    fn received(&self, channel: &Channel, event: Event) {
        channel.post_send(event.block).expect("there is room");
    }
}

/// Goal: a handler that takes its time over one client does not hold up the next.
#[test]
fn a_slow_welcome_holds_up_that_client_alone() {
    let ((come, coming), (go, told)) = (mpsc::channel(), mpsc::channel());
    let slow = Slow { come, count: AtomicU32::new(0), go: Mutex::new(told) };
    let service = serve(Config::default(), Arc::new(slow));
    let _first = connect(service.local_addr());
    let _second = connect(service.local_addr());
    assert_eq!(coming.recv_timeout(LONG / 4), Ok(1));
    assert_eq!(service.endpoints().len(), 2);
    go.send(()).unwrap();
    assert_eq!(coming.recv_timeout(LONG), Ok(0));
    service.stop();
}

/// Goal: a handler that fails over one client costs that client, and no other.
#[test]
fn a_panic_over_one_client_costs_that_client() {
    let ((come, coming), (go, told)) = (mpsc::channel(), mpsc::channel());
    let slow = Slow { come, count: AtomicU32::new(0), go: Mutex::new(told) };
    let service = serve(Config::default(), Arc::new(slow));
    let first = connect(service.local_addr());
    drop(go); // The first one's handler panics.
    support::departure(&first);
    let _second = connect(service.local_addr());
    assert_eq!(coming.recv_timeout(LONG), Ok(1));
    service.stop();
}

/// Posts a few receives and says nothing about WRITEs.
struct Plain;

const RECEIVES: usize = 2;

impl Handler for Plain {
    fn established(&self, endpoint: &Endpoint) {
        let buffer = endpoint.adapter().buffer(RECEIVES + 1, 8).expect("memory");
        for channel in endpoint.channels() {
            for index in 0..RECEIVES {
                channel.post_recv(buffer.at(index).expect("it has it")).expect("room");
            }
        }
        endpoint.advertise("sink", &buffer).expect("the peer is told");
    }

    fn received(&self, channel: &Channel, event: Event) {
        channel.post_recv(event.block).expect("there is room");
    }
}

/// Goal: events that a handler says nothing about use up no receives.
#[test]
fn what_has_no_handler_costs_no_receive() {
    let service = serve(Config::default(), Arc::new(Plain));
    let endpoint = connect(service.local_addr());
    let sink: RemoteBlock = endpoint.remote_buffer("sink").unwrap().at(RECEIVES).unwrap();
    let block = endpoint.adapter().buffer(1, 8).unwrap().at(0).unwrap();
    let channel = endpoint.channel("data").unwrap().with_timeout(LONG / 4);
    for imm in 0..10 {
        channel.write_with_imm(block.clone(), sink, imm).unwrap();
        channel.send(block.clone()).unwrap();
    }
    service.stop();
}

/// Sends to each client, none of which has a receive.
struct Talker(mpsc::Sender<()>);

impl Handler for Talker {
    fn established(&self, endpoint: &Endpoint) {
        let block = endpoint.adapter().buffer(1, 8).expect("memory").at(0).expect("it has it");
        endpoint.channels().iter().for_each(|channel| {
            channel.post_send(block.clone()).expect("room");
        });
        self.0.send(()).expect("the test listens");
    }

    fn received(&self, _channel: &Channel, _event: Event) {}
}

/// Goal: a service with many clients that take nothing stops as soon as one with a single one. Method: a service for each, one
/// after the other.
#[test]
fn a_service_stops_in_the_time_of_one_client() {
    const CLIENTS: u32 = 8;
    const TIME: Duration = Duration::from_secs(1);
    let stops_in = |clients| {
        let (told, tells) = mpsc::channel();
        let config = Config::default().work_timeout(TIME);
        let service = serve(config, Arc::new(Talker(told)));
        let clients: Vec<_> = (0..clients).map(|_| connect(service.local_addr())).collect();
        clients.iter().for_each(|_| tells.recv_timeout(LONG).unwrap());
        let start = Instant::now();
        service.stop();
        start.elapsed()
    };
    let (one, many) = (stops_in(1), stops_in(CLIENTS));
    println!("one client {one:?}, {CLIENTS} clients {many:?}, with {TIME:?} for one");
    assert!(one >= TIME / 2, "it took what it was sent: {one:?}");
    assert!(many < one * CLIENTS / 2, "one after the other: {many:?}, and {one:?} for one");
}
