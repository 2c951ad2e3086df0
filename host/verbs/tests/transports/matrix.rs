//! Every operation over every transport that has it, with the bytes compared.
//!
//! # Safety
//!
//! Raw requests here name no memory: their lists of pieces are empty.

use crate::pair::{bytes_of, pattern, remote, wait};
use adverb_verbs::{
    Access, Context, Imm, Memory, Mr, PathMtu, PostError, PostFailure, Qkey, QpConfig, QpType, Qpn,
    RemoteSlice, Rkey, SendData, SendKind, SendTo, SendWork, Uc, UcConnect, Ud, WcOpcode, Work,
};

/// A pair of unreliable connections.
fn uc() -> (Context, adverb_verbs::Pd, adverb_verbs::Cq, [adverb_verbs::Qp<Uc>; 2]) {
    let context = Context::open("soft_lo").expect("the loopback device");
    let (pd, cq) = (context.alloc_pd(), context.create_cq(256).expect("a queue"));
    let make = || pd.create_qp_of::<Uc>(&QpConfig::new(&cq)).expect("a queue pair");
    let [a, b] = [make(), make()];
    let [here, there] = [&a, &b].map(|qp| qp.address(1).expect("an address"));
    a.connect(&UcConnect::new(here, there)).expect("connected");
    b.connect(&UcConnect::new(there, here)).expect("connected");
    (context, pd, cq, [a, b])
}

fn buffer(pd: &adverb_verbs::Pd, bytes: &[u8]) -> adverb_verbs::Buf {
    let mut buffer = pd.buffer(bytes.len()).expect("memory");
    buffer.copy_from_slice(bytes);
    buffer
}

#[test]
fn an_unreliable_connection_sends_and_writes_messages_of_any_length() {
    let (_context, pd, cq, [a, b]) = uc();
    for (seed, len) in (1..).zip([0, 1, 1023, 1024, 1025, 100_000]) {
        let data = pattern(seed, len);
        for imm in [None, Some(0xfeed_0000)] {
            b.post(Work::recv(pd.buffer(len + 3).expect("memory")).wr_id(1)).expect("room");
            let work = match imm {
                None => Work::send(buffer(&pd, &data)),
                Some(imm) => Work::send_with_imm(buffer(&pd, &data), imm),
            };
            a.post(work.wr_id(2)).expect("room");
            for _ in 0..2 {
                let done = wait(&cq).ok().expect("success");
                if done.wc.wr_id == 2 {
                    assert_eq!(done.wc.opcode, WcOpcode::Send);
                    continue;
                }
                assert_eq!(done.wc.imm, imm.map(Imm));
                assert_eq!(usize::try_from(done.wc.byte_len), Ok(len));
                assert!(!done.wc.grh);
                assert_eq!((done.wc.qp, done.wc.src_qp), (b.number(), a.number()));
                let got = done.memory.and_then(Memory::into_buf).expect("the buffer");
                assert!(got.get(..len) == Some(&data[..]), "SEND of {len} bytes");
            }

            let target = pd.allocate(len + 16, Access::ALL).expect("memory");
            let there = remote(&target).plus(8);
            let work = match imm {
                None => Work::write(buffer(&pd, &data), there),
                Some(imm) => Work::write_with_imm(buffer(&pd, &data), there, imm),
            };
            b.post(Work::recv(pd.buffer(0).expect("memory")).wr_id(1)).expect("room");
            a.post(work.wr_id(2)).expect("room");
            assert_eq!(wait(&cq).ok().expect("sent").wc.opcode, WcOpcode::RdmaWrite);
            if imm.is_some() {
                let done = wait(&cq).ok().expect("written");
                assert_eq!(done.wc.opcode, WcOpcode::ReceiveRdmaWithImm);
                assert_eq!(done.wc.imm, imm.map(Imm));
            } else {
                // Nobody says when it has arrived: the next message does.
                a.post(Work::send(pd.buffer(0).expect("memory"))).expect("room");
                wait(&cq).ok().expect("success");
                wait(&cq).ok().expect("success");
            }
            assert!(bytes_of(&target, 8, len) == data, "WRITE of {len} bytes");
            assert_eq!(bytes_of(&target, len + 8, 8), [0; 8]);
        }
    }
    assert_eq!(
        (a.counters().sent_pkts, b.counters().rcvd_pkts > 0),
        (b.counters().rcvd_pkts, true)
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
#[test]
fn raw_requests_that_a_transport_does_not_have_are_refused_by_name() {
    let (context, pd, cq, [a, _b]) = uc();
    for kind in KINDS {
        let operation = kind.operation();
        // SAFETY: the request names no memory (header).
        let posted = unsafe { a.post_send(&[raw(kind)]) };
        let refused = PostError::Operation { kind: QpType::Uc, operation };
        let allowed = adverb_device::allowed(QpType::Uc, operation);
        assert_eq!(posted, if allowed { Ok(()) } else { Err((0, refused)) });
    }
    let datagram = pd.create_qp_of::<Ud>(&QpConfig::new(&cq)).expect("a queue pair");
    datagram.activate(Qkey(1)).expect("ready");
    let own = datagram.address(1).expect("an address").gid;
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
        assert_eq!(posted, Err((0, refused)), "{operation}");
    }
    let untyped = Work::read(pd.buffer(8).expect("memory"), RemoteSlice { addr: 0, rkey: Rkey(1) });
    let rejected = a.post(untyped.any()).expect_err("a UC queue pair");
    assert_eq!(rejected.to_string(), "queue pairs of type UC do not have the operation RDMA READ");
    assert!(rejected.memory.is_some());
    // An address where none belongs, and one of somebody else's.
    let strange = Work::send_to(pd.buffer(0).expect("memory"), &ah, Qpn::new(2), Qkey(1));
    let rejected = a.post(strange.any()).expect_err("connected");
    assert_eq!(rejected.error, PostError::Address { kind: QpType::Uc });
    let foreign = context.alloc_pd().create_ah(&ah.attr()).expect("a way");
    let work = Work::send_to(pd.buffer(0).expect("memory"), &foreign, Qpn::new(2), Qkey(1));
    let rejected = datagram.post(work).expect_err("foreign");
    assert_eq!(rejected.error, PostFailure::Refused(PostError::ForeignAddress));
}

/// Goal: what cannot be done is not done in part.
/// Method: a WRITE to a key that does not exist ends well here, changes nothing there, and the
/// connection goes on.
#[test]
fn an_unreliable_connection_drops_what_it_may_not_do() {
    let (_context, pd, cq, [a, b]) = uc();
    let target: Mr = pd.allocate(64, Access::LOCAL_WRITE).expect("memory");
    a.post(Work::write(buffer(&pd, &[7; 64]), remote(&target))).expect("room");
    wait(&cq).ok().expect("it was sent, and that is all that is known");
    // Too long for its receive, which then takes the next.
    b.post(Work::recv(pd.buffer(8).expect("memory")).wr_id(1)).expect("room");
    a.post(Work::send(buffer(&pd, &[1; 3000])).wr_id(2)).expect("room");
    a.post(Work::send(buffer(&pd, b"it fits!")).wr_id(3)).expect("room");
    let mut received = None;
    for _ in 0..3 {
        let done = wait(&cq).ok().expect("success");
        if done.wc.wr_id == 1 {
            received = done.memory.and_then(Memory::into_buf);
        }
    }
    assert_eq!(received.as_deref(), Some(&b"it fits!"[..]));
    assert_eq!(bytes_of(&target, 0, 64), [0; 64]);
    assert!(b.counters().dropped_pkts > 0);
}

#[test]
fn an_unreliable_connection_works_with_every_path_mtu_and_address() {
    for gid_index in [0, 1] {
        for path_mtu in [PathMtu::B256, PathMtu::B4096] {
            let context = Context::open("soft_lo").expect("the loopback device");
            let (pd, cq) = (context.alloc_pd(), context.create_cq(64).expect("a queue"));
            let make = || pd.create_qp_of::<Uc>(&QpConfig::new(&cq)).expect("a queue pair");
            let [a, b] = [make(), make()];
            let [here, there] = [&a, &b].map(|qp| qp.address(gid_index).expect("an address"));
            let how = |x, y| UcConnect { gid_index, path_mtu, ..UcConnect::new(x, y) };
            a.connect(&how(here, there)).expect("connected");
            b.connect(&how(there, here)).expect("connected");
            let data = pattern(5, 20_000);
            b.post(Work::recv(pd.buffer(20_000).expect("memory")).wr_id(1)).expect("room");
            a.post(Work::send(buffer(&pd, &data)).wr_id(2)).expect("room");
            for _ in 0..2 {
                let done = wait(&cq).ok().expect("success");
                let got = done.memory.and_then(Memory::into_buf).expect("a buffer");
                assert!(*got == *data);
            }
        }
    }
}
