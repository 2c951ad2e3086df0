//! Queue pairs that meet by address and port.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

use adverb_verbs::cm::{self, IdTransport, Listener, MeetError, Route};
use adverb_verbs::{Access, Connected, Context, Cq, InDomain, Pd, Qp, QpConfig, QpState, Rc, Uc};
use adverb_verbs::{RemoteSlice, Supports, Work, op};
use std::net::SocketAddr;

struct End<T: adverb_verbs::Transport> {
    pd: Pd,
    cq: Cq,
    qp: Qp<T>,
}

fn end<T: InDomain>(context: &Context) -> End<T> {
    let (pd, cq) = (context.alloc_pd(), context.create_cq(16).unwrap());
    let qp = pd.create_qp_of(&QpConfig::new(&cq)).unwrap();
    End { pd, cq, qp }
}

fn listener(address: &str) -> Listener {
    Listener::bind(address.parse().unwrap(), 8).unwrap()
}

/// Connects, sends a message each way, and parts.
fn meet<T>(address: &str, transport: IdTransport)
where
    T: InDomain + Connected + Supports<op::Send> + Supports<op::Receive>,
{
    let listener = listener(address);
    let to = listener.local();
    let client = std::thread::spawn(move || {
        let route = Route::resolve_for(transport, to).unwrap();
        let End::<T> { pd, cq, qp } = end(&route.context().unwrap());
        route.prepare(&qp).unwrap();
        qp.post(Work::recv(pd.buffer(8).unwrap())).unwrap();
        let connection = route.connect(qp, b"from a client").unwrap();
        assert_eq!(&connection.private()[..6], b"served");
        connection.qp().post(Work::send(pd.buffer(8).unwrap())).unwrap();
        for _ in 0..2 {
            cq.wait().unwrap().ok().unwrap();
        }
        connection.wait_until_over().unwrap();
        assert_eq!(connection.qp().state(), QpState::Err);
    });
    let request = listener.next().unwrap();
    assert_eq!(&request.private()[..13], b"from a client");
    assert_eq!(
        (request.transport(), request.peer().map(|peer| peer.ip())),
        (transport, Some(to.ip()))
    );
    let End::<T> { pd, cq, qp } = end(&request.context().unwrap());
    request.prepare(&qp).unwrap();
    qp.post(Work::recv(pd.buffer(8).unwrap())).unwrap();
    let connection = request.accept(qp, b"served").unwrap();
    connection.qp().post(Work::send(pd.buffer(8).unwrap())).unwrap();
    for _ in 0..2 {
        cq.wait().unwrap().ok().unwrap();
    }
    connection.disconnect().unwrap();
    connection.wait_until_over().unwrap();
    client.join().unwrap();
}

#[test]
fn reliable_queue_pairs_meet_over_both_versions_of_ip() {
    meet::<Rc>("127.0.0.1:0", IdTransport::Rc);
    meet::<Rc>("[::1]:0", IdTransport::Rc);
}

#[test]
fn unreliable_queue_pairs_meet() {
    meet::<Uc>("127.0.0.1:0", IdTransport::Uc);
}

#[test]
fn what_is_written_by_a_peer_that_has_met_arrives() {
    let listener = listener("127.0.0.1:0");
    let to = listener.local();
    let client = std::thread::spawn(move || {
        let route = Route::resolve(to).unwrap();
        let End::<Rc> { pd, cq, qp } = end(&route.context().unwrap());
        let connection = route.connect(qp, b"").unwrap();
        let remote = RemoteSlice::from_bytes(*connection.private().first_chunk().unwrap());
        let mut bytes = pd.buffer(8).unwrap();
        bytes.copy_from_slice(b"12345678");
        connection.qp().post(Work::write(bytes, remote)).unwrap();
        cq.wait().unwrap().ok().unwrap();
    });
    let request = listener.next().unwrap();
    let End::<Rc> { pd, qp, .. } = end(&request.context().unwrap());
    let target = pd.allocate(8, Access::ALL).unwrap();
    let said = RemoteSlice { addr: target.addr(), rkey: target.rkey() }.to_bytes();
    let connection = request.accept(qp, &said).unwrap();
    connection.wait_until_over().unwrap();
    client.join().unwrap();
    let mut bytes = [0; 8];
    target.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"12345678");
}

#[test]
fn a_refusal_and_an_empty_port_are_told_apart() {
    let listener = listener("127.0.0.1:0");
    let to = listener.local();
    let ask = move || {
        let route = Route::resolve(to).unwrap();
        let End::<Rc> { qp, .. } = end(&route.context().unwrap());
        route.connect(qp, b"").map(drop)
    };
    let client = std::thread::spawn(ask);
    listener.next().unwrap().reject(b"full").unwrap();
    match client.join().unwrap() {
        Err(MeetError::Rejected { reason: 28, private }) => {
            assert_eq!(&private.as_slice()[..4], b"full")
        }
        other @ (Ok(_) | Err(_)) => panic!("{other:?}"),
    }
    let client = std::thread::spawn(ask);
    drop(listener.next().unwrap()); // As good as a refusal.
    assert!(matches!(client.join().unwrap(), Err(MeetError::Rejected { reason: 28, .. })));
    drop(listener);
    assert!(matches!(ask(), Err(MeetError::Rejected { reason: 8, .. })));
}

#[test]
fn an_address_that_no_device_leads_to_is_no_route() {
    let nowhere: SocketAddr = "[2001:db8::1]:1".parse().unwrap();
    // Where there is a route after all, it leads to a device.
    match Route::resolve(nowhere) {
        Err(MeetError::Unreachable { status }) => assert!(status < 0),
        Ok(route) => assert!(route.id().device().is_some()),
        Err(other) => panic!("{other}"),
    }
    let route = Route::resolve("127.0.0.1:1".parse().unwrap()).unwrap();
    assert!(cm::context(route.id()).is_ok());
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn tasks_wait_for_events() {
    use adverb_verbs::cm::{AsyncEventQueue, EventKind, EventQueue, Id, Space};
    let queue = AsyncEventQueue::new(EventQueue::new().unwrap()).unwrap();
    let listener = listener("127.0.0.1:0");
    let id = Id::new(queue.queue(), Space::Tcp, IdTransport::Rc, 0).unwrap();
    id.resolve_addr(None, listener.local()).unwrap();
    assert_eq!(queue.next().await.unwrap().kind, EventKind::AddrResolved);
    id.resolve_route().unwrap();
    assert_eq!(queue.next().await.unwrap().kind, EventKind::RouteResolved);
    id.connect(&cm::Parameters { qpn: 17, ..cm::Parameters::default() }).unwrap();
    drop(tokio::task::spawn_blocking(move || listener.next().unwrap()).await.unwrap());
    assert_eq!(queue.next().await.unwrap().kind, EventKind::Rejected);
}
