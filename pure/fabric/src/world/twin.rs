//! A copy of a queue pair that does the general way what the queue pair does in a shorter one: what either
//! leaves, emits and tells its host has to be the same.
//!
//! The copy has all to itself: buffers, a ring of its own to the peer, and of the peer's memory a copy, too.

use super::desk::{ByReference, Desk, Own, Peer, gid};
use super::wires::{Frame, Wires};
use crate::memory::Memory;
use crate::random::Random;
use adverb_engine::{EagerHeader, Qp, Request, Time};
use adverb_wire::{Extension, Headers, Syndrome};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use core::cell::{Cell, RefCell};

/// The copy.
#[derive(Clone, Debug)]
pub(super) struct Twin {
    qp: Qp,
    own: Own,
    peer: Peer,
    memory: RefCell<Memory>,
    me: usize,
    now: Time,
}

impl Twin {
    pub(super) fn new(
        qp: Qp,
        own: Own,
        peer: &Peer,
        memory: &RefCell<Memory>,
        (me, now): (usize, Time),
    ) -> Self {
        let memory = memory.clone();
        let theirs = if me == peer.process { memory.clone() } else { (*peer.memory).clone() };
        let open = Rc::new(Cell::new(peer.open.get()));
        let peer = Peer { memory: Rc::new(theirs), open, ..peer.clone() };
        Self { qp, own, peer, memory, me, now }
    }

    /// Lends the copy's own surroundings; says what was emitted.
    fn lend(
        &mut self,
        by_reference: Option<ByReference>,
        run: impl FnOnce(&mut Qp, &mut Desk<'_>),
    ) -> RefCell<Wires> {
        let Self { qp, own, peer, memory, me, now } = self;
        let wires = RefCell::new(Wires::between(*me, peer.process, peer.medium));
        let mut desk = Desk {
            me: *me,
            own,
            peer,
            memory,
            wires: &wires,
            random: &RefCell::new(Random::new(0)),
            now: *now,
            left: 16,
            willing: true,
            emitted: 0,
            published: 0,
            by_reference,
            direct: 0,
            fetched: 0,
        };
        run(qp, &mut desk);
        wires
    }

    /// Takes an eager header's message as the packet that it stands for.
    pub(super) fn take(mut self, eager: &EagerHeader, payload: &[u8]) -> Self {
        let packet = eager.psn.and_then(|psn| eager.packet(psn));
        let Some(packet) = packet else {
            return self;
        };
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let by_reference = Some(ByReference { bytes: Some(Rc::new(payload.to_vec())), len });
        let source = gid(self.peer.process);
        self.lend(by_reference, |qp, desk| qp.on_packet(&packet, source, Time::ZERO, desk));
        self
    }

    /// Posts and emits a SEND that has left as an eager header of these words with this payload.
    pub(super) fn send(mut self, request: Request, words: [u64; 2], payload: &[u8]) -> Self {
        let wires = self.emit(request).into_inner();
        let eager = EagerHeader::parse(words).expect("it makes sense");
        let psn = eager.psn.expect("it is one of a SEND");
        let expected = eager.packet(psn).expect("there is such a packet").headers;
        let (mut sent, mut acked) = (0, None);
        for frame in wires.records(self.me, self.peer.process) {
            let Frame::Packet { headers, payload: bytes } = frame else {
                panic!("it goes as a packet");
            };
            if matches!(headers.extension, Extension::Aeth(aeth) if aeth.syndrome == Syndrome::ACK)
            {
                acked = Some(headers.bth.psn);
            } else {
                assert!(is_same(headers, &expected), "{headers:?} for {expected:?}");
                assert!(bytes == payload, "other bytes");
                sent += 1;
            }
        }
        assert_eq!((sent, acked), (1, eager.acked), "an eager header says what packets say");
        self
    }

    /// Posts a request and carries it out, the general way.
    pub(super) fn reach(mut self, request: Request) -> Self {
        self.emit(request);
        self
    }

    fn emit(&mut self, request: Request) -> RefCell<Wires> {
        self.qp.post(request).expect("what can go eagerly makes sense");
        self.lend(None, |qp, desk| while qp.transmit(Time::UNKNOWN, true, desk) && desk.left > 0 {})
    }

    /// The queue pair is as its copy is, and its host was told the same.
    pub(super) fn judge(&self, qp: &Qp, own: &Own) {
        same("queue pair", &told(&self.qp), &told(qp));
        same("host", &format!("{:?}", self.own), &format!("{own:?}"));
    }

    /// As [`Twin::judge`]; of requests that have ended, slots say nothing.
    pub(super) fn judge_ended(&self, qp: &Qp, own: &Own, peer: &Peer) {
        let state =
            |qp: &Qp| (qp.outstanding(), qp.next_index(), qp.counters(), qp.next_deadline());
        same("queue pair", &format!("{:?}", state(&self.qp)), &format!("{:?}", state(qp)));
        same("host", &format!("{:?}", self.own), &format!("{own:?}"));
        let bytes = |memory: &Memory| {
            memory.regions.iter().map(|one| one.bytes.clone()).collect::<alloc::vec::Vec<_>>()
        };
        assert!(bytes(&self.peer.memory.borrow()) == bytes(&peer.memory.borrow()), "other bytes");
    }
}

/// Panics with what is around the first difference.
fn same(what: &str, general: &str, short: &str) {
    if general != short {
        let at = general.bytes().zip(short.bytes()).take_while(|(a, b)| a == b).count();
        let part = |text: &str| {
            text.get(at.saturating_sub(60)..).map(|text| text.chars().take(120).collect::<String>())
        };
        let [general, short] = [general, short].map(part);
        panic!("the short way leaves another {what}:\n general {general:?}\n short   {short:?}");
    }
}

/// All that can be told of a queue pair, but for whose turn it is, and for how long no packet has asked for an
/// acknowledgement: the last of a message asks, and an eager header only if a completion is waited for.
fn told(qp: &Qp) -> String {
    let text = format!("{qp:?}");
    let mut told = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(at) =
        ["requests_first: ", "unasked: "].iter().filter_map(|name| rest.find(name)).min()
    {
        let (before, after) = rest.split_at(at);
        told.push_str(before);
        rest = after.split_once(',').map_or("", |(_, rest)| rest);
    }
    told.push_str(rest);
    told
}

/// The headers of a SEND are those that its eager header stands for.
fn is_same(headers: &Headers, expected: &Headers) -> bool {
    let mut of_eager = *expected;
    of_eager.bth.pad = headers.bth.pad;
    *headers == of_eager
}
