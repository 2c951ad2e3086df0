//! Every operation over every transport that has it, with the bytes compared.
//!
//! # Safety
//!
//! Raw requests here name no memory: their lists of pieces are empty.

use crate::alone::over_udp;
use crate::datagram::slow_line;
use crate::pair::{bytes_of, pattern, remote, wait};
use crate::path::{Path, on_every_path};
use adverb_verbs::{
    Access, Buf, Context, Cq, Imm, Memory, Mr, PathMtu, Pd, PostError, Qkey, Qp, QpConfig, QpType,
    Qpn, RemoteSlice, Rkey, SendData, SendKind, SendTo, SendWork, Uc, UcConnect, Ud, WcOpcode,
    Work,
};

on_every_path! {
    an_unreliable_connection_drops_what_it_may_not_do,
    an_unreliable_connection_sends_and_writes_messages_of_any_length,
    an_unreliable_connection_works_with_every_path_mtu_and_address,
    raw_requests_that_a_transport_does_not_have_are_refused_by_name,
}

/// One end of an unreliable connection.
struct End {
    context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp<Uc>,
}

/// A pair of unreliable connections.
fn uc(path: Path, how: impl Fn(&Qp<Uc>) -> UcConnect) -> [End; 2] {
    let ends = path.contexts().map(|context| {
        let (pd, cq) = (context.alloc_pd(), context.create_cq(256).expect("a queue"));
        let qp = pd.create_qp_of::<Uc>(&QpConfig::new(&cq)).expect("a queue pair");
        End { context, pd, cq, qp }
    });
    let [a, b] = &ends;
    a.qp.connect(how(&b.qp)).expect("connected");
    b.qp.connect(how(&a.qp)).expect("connected");
    assert_eq!(a.qp.path(), Some(path.expected()));
    ends
}

fn usual(peer: &Qp<Uc>) -> UcConnect {
    UcConnect::new(peer.address().expect("an address"))
}

fn buffer(pd: &Pd, bytes: &[u8]) -> Buf {
    let mut buffer = pd.buffer(bytes.len()).expect("memory");
    buffer.copy_from_slice(bytes);
    buffer
}

fn an_unreliable_connection_sends_and_writes_messages_of_any_length(path: Path) {
    let [a, b] = uc(path, usual);
    for (seed, len) in (1..).zip([0, 1, 1023, 1024, 1025, 100_000]) {
        let data = pattern(seed, len);
        for imm in [None, Some(0xfeed_0000)] {
            b.qp.post(Work::recv(b.pd.buffer(len + 3).expect("memory")).wr_id(1)).expect("room");
            let work = match imm {
                None => Work::send(buffer(&a.pd, &data)),
                Some(imm) => Work::send_with_imm(buffer(&a.pd, &data), imm),
            };
            a.qp.post(work.wr_id(2)).expect("room");
            let done = wait(&a.cq).ok().expect("sent");
            assert_eq!((done.wc.wr_id, done.wc.opcode), (2, WcOpcode::Send));
            let done = wait(&b.cq).ok().expect("received");
            assert_eq!(done.wc.imm, imm.map(Imm));
            assert_eq!(usize::try_from(done.wc.byte_len), Ok(len));
            assert!(!done.wc.grh);
            assert_eq!((done.wc.qp, done.wc.src_qp), (b.qp.number(), a.qp.number()));
            let got = done.memory.and_then(Memory::into_buf).expect("the buffer");
            assert!(got.get(..len) == Some(&data[..]), "SEND of {len} bytes");

            let target = b.pd.allocate(len + 16, Access::ALL).expect("memory");
            let there = remote(&target).plus(8);
            let work = match imm {
                None => Work::write(buffer(&a.pd, &data), there),
                Some(imm) => Work::write_with_imm(buffer(&a.pd, &data), there, imm),
            };
            b.qp.post(Work::recv(b.pd.buffer(0).expect("memory")).wr_id(1)).expect("room");
            a.qp.post(work.wr_id(2)).expect("room");
            assert_eq!(wait(&a.cq).ok().expect("sent").wc.opcode, WcOpcode::RdmaWrite);
            if imm.is_some() {
                let done = wait(&b.cq).ok().expect("written");
                assert_eq!(done.wc.opcode, WcOpcode::ReceiveRdmaWithImm);
                assert_eq!(done.wc.imm, imm.map(Imm));
            } else {
                // Nothing says when it has arrived but the next message.
                a.qp.post(Work::send(a.pd.buffer(0).expect("memory"))).expect("room");
                wait(&a.cq).ok().expect("sent");
                wait(&b.cq).ok().expect("received");
            }
            assert!(bytes_of(&target, 8, len) == data, "WRITE of {len} bytes");
            assert_eq!(bytes_of(&target, len + 8, 8), [0; 8]);
        }
    }
    assert_eq!(
        (a.qp.counters().sent_pkts, b.qp.counters().rcvd_pkts > 0),
        (b.qp.counters().rcvd_pkts, true)
    );
}

/// What can be asked of the raw interface, and what the table says of it.
const KINDS: [SendKind; 9] = {
    let (va, rkey) = (0, Rkey(0));
    [
        SendKind::Send { imm: None },
        SendKind::Send { imm: Some(Imm(1)) },
        SendKind::SendInvalidate { rkey },
        SendKind::Write { va, rkey, imm: None },
        SendKind::Write { va, rkey, imm: Some(Imm(1)) },
        SendKind::Read { va, rkey },
        SendKind::CompareSwap { va, rkey, compare: 0, swap: 0 },
        SendKind::FetchAdd { va, rkey, add: 0 },
        SendKind::AtomicWrite { va, rkey },
    ]
};

fn raw(kind: SendKind) -> SendWork<'static> {
    SendWork {
        wr_id: 0,
        to: SendTo::Peer,
        kind,
        data: SendData::Gather(&[]),
        signaled: true,
        solicited: false,
        fence: false,
        buffer: None,
    }
}

/// Goal: what the types cannot see is refused before it is queued, by the same table.
fn raw_requests_that_a_transport_does_not_have_are_refused_by_name(path: Path) {
    let [End { context, pd, cq, qp: a }, _b] = uc(path, usual);
    for kind in KINDS {
        let operation = kind.operation();
        // SAFETY: the request names no memory (header).
        let posted = unsafe { a.post_send(&[raw(kind)]) };
        let refused = PostError::Operation { kind: QpType::Uc, operation };
        let allowed = adverb_device::allowed(QpType::Uc, operation);
        let posted = posted.map_err(|refused| (refused.posted, refused.error));
        assert_eq!(posted, if allowed { Ok(()) } else { Err((0, refused)) });
    }
    let datagram = pd.create_qp_of::<Ud>(&QpConfig::new(&cq)).expect("a queue pair");
    datagram.activate(Qkey(1)).expect("ready");
    let own = datagram.address().expect("an address").gid;
    let ah = pd.create_ah(&adverb_verbs::AhAttr::new(own)).expect("a way");
    for kind in KINDS {
        let operation = kind.operation();
        let to = SendTo::Peer;
        // SAFETY: the request names no memory (header).
        let posted = unsafe { datagram.post_send(&[SendWork { to, ..raw(kind) }]) };
        let refused = match adverb_device::allowed(QpType::Ud, operation) {
            true => PostError::Address { kind: QpType::Ud },
            false => PostError::Operation { kind: QpType::Ud, operation },
        };
        let posted = posted.map_err(|refused| (refused.posted, refused.error));
        assert_eq!(posted, Err((0, refused)), "{operation}");
    }
    let untyped = Work::read(pd.buffer(8).expect("memory"), RemoteSlice { addr: 0, rkey: Rkey(1) });
    let rejected = a.post(untyped.any()).expect_err("a UC queue pair");
    assert_eq!(rejected.to_string(), "queue pairs of type UC do not have the operation RDMA READ");
    assert_eq!(rejected.memory.len(), 1);
    // An address where none belongs, and one of another domain's.
    let strange = Work::send_to(pd.buffer(0).expect("memory"), &ah, Qpn::new(2), Qkey(1));
    let rejected = a.post(strange.any()).expect_err("connected");
    assert_eq!(rejected.error, PostError::Address { kind: QpType::Uc });
    let foreign = context.alloc_pd().create_ah(&ah.attr()).expect("a way");
    let work = Work::send_to(pd.buffer(0).expect("memory"), &foreign, Qpn::new(2), Qkey(1));
    let rejected = datagram.post(work).expect_err("foreign");
    assert_eq!(rejected.error, PostError::ForeignAddress);
}

/// Goal: what cannot be done is not done in part.
/// Method: a WRITE to a key that does not exist ends well here, changes nothing there, and the
/// connection goes on.
fn an_unreliable_connection_drops_what_it_may_not_do(path: Path) {
    let [a, b] = uc(path, usual);
    let target: Mr = b.pd.allocate(64, Access::LOCAL_WRITE).expect("memory");
    a.qp.post(Work::write(buffer(&a.pd, &[7; 64]), remote(&target))).expect("room");
    wait(&a.cq).ok().expect("it was sent, and that is all that is known");
    // Too long for its receive, which then takes the next.
    b.qp.post(Work::recv(b.pd.buffer(8).expect("memory")).wr_id(1)).expect("room");
    a.qp.post(Work::send(buffer(&a.pd, &[1; 3000])).wr_id(2)).expect("room");
    a.qp.post(Work::send(buffer(&a.pd, b"it fits!")).wr_id(3)).expect("room");
    for wr_id in [2, 3] {
        assert_eq!(wait(&a.cq).ok().expect("sent").wc.wr_id, wr_id);
    }
    let received = wait(&b.cq).ok().expect("received").memory.and_then(Memory::into_buf);
    assert_eq!(received.as_deref(), Some(&b"it fits!"[..]));
    assert_eq!(bytes_of(&target, 0, 64), [0; 64]);
    assert!(b.qp.counters().dropped_pkts > 0);
}

fn an_unreliable_connection_works_with_every_path_mtu_and_address(path: Path) {
    for gid_index in [0, 1] {
        for path_mtu in [PathMtu::B256, path.path_mtu_max()] {
            let [a, b] = uc(path, |peer| {
                let there = peer.address_at(gid_index).expect("there");
                UcConnect::new(there).gid_index(gid_index).path_mtu(path_mtu)
            });
            let data = pattern(5, 20_000);
            b.qp.post(Work::recv(b.pd.buffer(20_000).expect("memory"))).expect("room");
            a.qp.post(Work::send(buffer(&a.pd, &data))).expect("room");
            for end in [&a, &b] {
                let done = wait(&end.cq).ok().expect("success");
                let got = done.memory.and_then(Memory::into_buf).expect("a buffer");
                assert!(*got == *data);
            }
        }
    }
}

/// Goal: a long message for whose packets the interface's queue has no room waits for it, and is not lost, as nothing
/// would send it again. Method: a SEND and a WRITE of four thousand packets each, and a queue of ten before a slow line.
#[test]
fn an_unreliable_connection_waits_for_room_in_the_interfaces_queue() {
    over_udp("matrix::an_unreliable_connection_waits_for_room_in_the_interfaces_queue", || {
        if !slow_line() {
            return;
        }
        let [a, b] = uc(Path::Udp, |peer| usual(peer).path_mtu(PathMtu::B256));
        let data = pattern(7, 1 << 20);
        let target = b.pd.allocate(1 << 20, Access::ALL).expect("memory");
        for writes in [false, true] {
            b.qp.post(Work::recv(b.pd.buffer(1 << 20).expect("memory"))).expect("room");
            let bytes = buffer(&a.pd, &data);
            let work = match writes {
                true => a.qp.post(Work::write_with_imm(bytes, remote(&target), 1)),
                false => a.qp.post(Work::send(bytes)),
            };
            work.expect("room");
            wait(&a.cq).ok().expect("sent");
            let done = wait(&b.cq).ok().expect("received").memory.and_then(Memory::into_buf);
            let got = done.expect("the buffer");
            assert!(writes || *got == *data, "a SEND");
        }
        assert!(bytes_of(&target, 0, 1 << 20) == data, "a WRITE");
        assert_eq!(a.context.counters().send_dropped, 0);
    });
}
