//! The longest message there is: 2 GiB, whole, by every operation that can be so long.
//!
//! The sender's side takes 64 MiB, for a list may name the same bytes more than once: its 32 pieces
//! begin one byte apart, so that no two are the same.

use crate::pair::{Setup, Side, assert_same, bytes_of, pattern, remote};
use adverb_verbs::{
    Access, Mr, PathMtu, QpState, ReceiveWork, SendData, SendKind, SendTo, SendWork, Sge, WcOpcode,
};

const PIECES: usize = 32;
const PIECE: usize = 64 << 20;
const LONGEST: u32 = 1 << 31;

fn pieces(mr: &Mr, step: usize) -> Vec<Sge> {
    (0..PIECES).map(|n| mr.sge(n * step, PIECE).expect("in there")).collect()
}

fn post(side: &Side, kind: SendKind, sges: &[Sge]) {
    let (signaled, solicited, fence) = (true, false, false);
    let data = SendData::Gather(sges);
    let work = SendWork {
        wr_id: 1,
        to: SendTo::Peer,
        kind,
        data,
        signaled,
        solicited,
        fence,
        buffer: None,
    };
    side.post_send(&[work]).expect("room");
}

fn done(side: &Side, opcode: WcOpcode) -> u32 {
    let wc = side.wait().ok().expect("success").wc;
    assert_eq!(wc.opcode, opcode);
    wc.byte_len
}

/// Goal: offsets and sequence numbers hold out to the last byte of the longest message.
/// Method: each operation moves 2 GiB, of which every byte is compared on the side that has room for
/// all of them.
#[test]
fn a_message_of_2_gib_arrives_whole() {
    let setup = Setup { sge: 32, path_mtu: PathMtu::B4096, ..Setup::default() };
    let pair = setup.pair();
    let (a, b) = (&pair.a, &pair.b);
    let source_bytes = pattern(1, PIECE + PIECES);
    let source = a.region(&source_bytes);
    let target = b.pd.allocate(PIECES * PIECE, Access::ALL).expect("memory");
    let (from, to) = (pieces(&source, 1), pieces(&target, PIECE));
    let arrived = |what: &str| {
        for n in 0..PIECES {
            let what = format!("piece {n} of the {what}");
            assert_same(&bytes_of(&target, n * PIECE, PIECE), &source_bytes[n..n + PIECE], &what);
        }
        target.fill(0, PIECES * PIECE, 0).expect("it fits");
    };

    b.post_recv(&[ReceiveWork { wr_id: 2, sges: &to, buffer: None }]).expect("room");
    post(a, SendKind::Send { imm: None }, &from);
    assert_eq!(done(b, WcOpcode::Receive), LONGEST);
    done(a, WcOpcode::Send);
    arrived("SEND");

    let there = remote(&target);
    post(a, SendKind::Write { va: there.addr, rkey: there.rkey, imm: None }, &from);
    done(a, WcOpcode::RdmaWrite);
    arrived("WRITE");

    for n in 0..PIECES {
        target.write(n * PIECE, &source_bytes[n..n + PIECE]).expect("it fits");
    }
    source.fill(0, source_bytes.len(), 0).expect("it fits");
    post(a, SendKind::Read { va: there.addr, rkey: there.rkey }, &from);
    assert_eq!(done(a, WcOpcode::RdmaRead), LONGEST);
    // Each piece has come over the one before it, except for its first byte.
    let end = PIECES - 1 + PIECE;
    assert_same(&bytes_of(&source, 0, end), &source_bytes[..end], "READ");
    assert_eq!(a.qp.state(), QpState::Rts);
}
