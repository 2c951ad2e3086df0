//! Memory windows: what a peer can reach through one, and when that ends.
//!
//! # Safety
//!
//! Raw requests are of regions that outlive them and lend no references.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

#[path = "verbs/alone.rs"]
mod alone;
#[path = "verbs/pair.rs"]
mod pair;
#[path = "verbs/path.rs"]
mod path;
mod support;

use adverb_verbs::{
    Access, AllocateError, BindError, BindMwError, Completion, Cq, Mr, Mw, MwBind, MwKind, Pd,
    PostError, Qp, QpConfig, QpState, Rc, RemoteSlice, Rkey, SendData, SendKind, SendTo, SendWork,
    Uc, WcOpcode, WcStatus, Work, XrcInitiator,
};
use path::{Path, on_every_path};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::Bench;

on_every_path! {
    a_key_can_be_sent_right_after_the_binding,
    a_key_is_dead_when_its_window_is_not_bound_by_it_any_more,
    a_peer_cannot_invalidate_what_is_not_its_to_use,
    a_peer_does_through_a_window_what_the_window_allows,
    a_peer_ends_the_window_that_it_has_just_written_through,
    a_range_that_leaves_the_window_is_refused_though_the_region_goes_on,
    a_right_that_the_window_lacks_is_refused_though_others_have_it,
    a_window_of_type_2_is_bound_again_under_the_next_key,
    a_window_of_type_2_serves_the_peer_of_its_queue_pair_alone,
    a_window_that_moves_under_load_lets_no_write_past,
    a_zero_based_window_counts_from_its_own_start,
    the_regions_own_key_gives_no_more_than_it_was_registered_with,
    windows_work_over_unreliable_connections_where_a_refusal_is_a_dropped_message,
}

const BINDABLE: Access = Access::LOCAL_WRITE.with(Access::MW_BIND);
const WRITE: Access = Access::REMOTE_WRITE;
const LEN: usize = 4096;

/// The owner of a region that is only reached through windows, and its peer.
struct Scene {
    bench: Bench,
    cq: Cq,
    owner: Qp<Rc>,
    peer_cq: Cq,
    peer: Qp<Rc>,
    mr: Mr,
}

impl Scene {
    fn new() -> Self {
        Self::on(Bench::new())
    }

    fn over(path: Path) -> Self {
        let scene = Self::on(Bench::over(path.contexts()));
        assert_eq!(scene.peer.path(), Some(path.expected()));
        scene
    }

    fn on(bench: Bench) -> Self {
        let cqs = [&bench.context, &bench.far].map(|side| side.create_cq(256).unwrap());
        let [owner, peer] = bench.pair(&cqs[0], &cqs[1]);
        let mr = bench.pd.allocate(LEN, BINDABLE).unwrap();
        let [cq, peer_cq] = cqs;
        Self { bench, cq, owner, peer_cq, peer, mr }
    }

    fn window(&self, kind: MwKind) -> Mw {
        self.bench.pd.alloc_mw(kind).unwrap()
    }

    /// What work of the owner's comes to.
    fn done(&self, work: Work<impl Sized>) -> WcStatus {
        self.owner.post(work.any()).unwrap();
        self.cq.wait().unwrap().wc.status
    }

    /// Binds a window of whatever type; the range as the peer sees it.
    fn bind(&self, mw: &Mw, to: &MwBind<'_>) -> RemoteSlice {
        let rkey = match mw.kind() {
            MwKind::Type1 => {
                let rkey = self.owner.bind_mw(mw, to, 7).unwrap();
                let done = self.cq.wait().unwrap().ok().unwrap();
                assert_eq!((done.wc.wr_id, done.wc.opcode), (7, WcOpcode::BindWindow));
                rkey
            }
            MwKind::Type2 => {
                let rkey = mw.rkey().incremented();
                let work = Work::bind_mw(mw, rkey, to).unwrap();
                self.owner.post(work.wr_id(8)).unwrap();
                let done = self.cq.wait().unwrap().ok().unwrap();
                assert_eq!((done.wc.wr_id, done.wc.opcode), (8, WcOpcode::BindWindow));
                assert!(done.memory.is_none_or(|memory| memory.into_buf().is_none()));
                rkey
            }
        };
        assert_eq!((mw.rkey(), mw.is_bound()), (rkey, true));
        RemoteSlice { addr: to.addr(), rkey }
    }

    fn part(&self, offset: usize, len: usize) -> MwBind<'_> {
        MwBind::new(&self.mr, offset, len, WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC)
    }

    fn buffer(&self, byte: u8, len: usize) -> adverb_verbs::Buf {
        let mut buffer = self.bench.pd.buffer(len).unwrap();
        buffer.fill(byte);
        buffer
    }

    /// A buffer of the peer's.
    fn peers_buffer(&self, byte: u8, len: usize) -> adverb_verbs::Buf {
        let mut buffer = self.bench.far_pd.buffer(len).unwrap();
        buffer.fill(byte);
        buffer
    }

    /// What work of the peer's comes to.
    fn peers(&self, work: Work<impl Sized>) -> Completion {
        self.peer.post(work.any()).unwrap();
        self.peer_cq.wait().unwrap()
    }

    /// What a WRITE of the peer's comes to, and whether it is in place.
    fn write(&self, to: RemoteSlice, byte: u8, len: usize) -> WcStatus {
        self.peers(Work::write(self.peers_buffer(byte, len), to)).wc.status
    }

    /// The peer is refused, both queue pairs end, and nothing has changed.
    fn refused(self, to: RemoteSlice, len: usize) {
        self.refused_beyond(to, len, 0..0);
    }

    /// [`Scene::refused`] of a range that begins where the peer may write, for which packets of their own are
    /// made: only there may anything have changed.
    fn refused_beyond(self, to: RemoteSlice, len: usize, written: Range<usize>) {
        let before = self.bytes(0, LEN);
        assert_eq!(self.write(to, 0xee, len), WcStatus::RemoteAccess);
        let mut after = self.bytes(0, LEN);
        after[written.clone()].copy_from_slice(&before[written]);
        assert_eq!(after, before);
        assert_eq!((self.owner.state(), self.peer.state()), (QpState::Err, QpState::Err));
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.read(offset, &mut bytes).unwrap();
        bytes
    }
}

const KINDS: [MwKind; 2] = [MwKind::Type1, MwKind::Type2];

fn a_peer_does_through_a_window_what_the_window_allows(path: Path) {
    for kind in KINDS {
        let scene = Scene::over(path);
        let mw = scene.window(kind);
        let there = scene.bind(&mw, &scene.part(1000, 2000));
        assert_eq!(scene.write(there, 5, 2000), WcStatus::Success);
        assert_eq!(scene.bytes(999, 2002), [vec![0], vec![5; 2000], vec![0]].concat());
        let read = scene.peers(Work::read(scene.peers_buffer(0, 2000), there)).ok().unwrap();
        assert_eq!(read.memory.unwrap().into_buf().unwrap()[..], [5; 2000]);
        let word = there.plus(16);
        let added = Work::fetch_add(scene.peers_buffer(0, 8), word, 1);
        assert_eq!(scene.peers(added).wc.status, WcStatus::Success);
        let put = Work::atomic_write(scene.peers_buffer(9, 8), word);
        assert_eq!(scene.peers(put).wc.status, WcStatus::Success);
        assert_eq!(scene.bytes(1016, 8), [9; 8]);
        // Nothing at all is allowed anywhere.
        assert_eq!(scene.write(there.plus(2000), 1, 0), WcStatus::Success);
    }
}

/// Goal: a window whose key is invalidated is not waited for by the thread that holds it.
/// Method: WRITEs and the SEND with invalidate leave in one post, so that their packets come in one burst.
fn a_peer_ends_the_window_that_it_has_just_written_through(path: Path) {
    let scene = Scene::over(path);
    let mw = scene.window(MwKind::Type2);
    for round in 1..=20 {
        let there = scene.bind(&mw, &scene.part(0, 64));
        scene.owner.post(Work::recv(scene.buffer(0, 8))).unwrap();
        let write =
            |at| Work::write(scene.peers_buffer(round, 8), there.plus(at)).any().unsignaled();
        let end = Work::send_with_invalidate(scene.peers_buffer(round, 8), there.rkey).any();
        scene.peer.post_all([write(0), write(8), end]).unwrap();
        assert_eq!(scene.peer_cq.wait().unwrap().wc.status, WcStatus::Success);
        let done = scene.cq.wait().unwrap().ok().unwrap();
        assert_eq!(done.wc.invalidated, Some(there.rkey));
        assert_eq!(scene.bytes(0, 16), [round; 16]);
    }
}

fn a_range_that_leaves_the_window_is_refused_though_the_region_goes_on(path: Path) {
    for kind in KINDS {
        for (offset, len) in [(2000, 1), (0, 2001), (1999, 2), (u64::MAX, 1), (1 << 63, 8)] {
            let scene = Scene::over(path);
            let mw = scene.window(kind);
            let there = scene.bind(&mw, &scene.part(1000, 2000));
            let packets_of_their_own = len > 1024 && path.has_packets();
            let written = if packets_of_their_own { 1000..3000 } else { 0..0 };
            scene.refused_beyond(there.plus(offset), len, written);
        }
    }
}

fn a_right_that_the_window_lacks_is_refused_though_others_have_it(path: Path) {
    let reads = |scene: &Scene, to| Work::read(scene.peers_buffer(0, 8), to).any();
    let writes = |scene: &Scene, to| Work::write(scene.peers_buffer(0, 8), to).any();
    let adds = |scene: &Scene, to| Work::fetch_add(scene.peers_buffer(0, 8), to, 1).any();
    let puts = |scene: &Scene, to| Work::atomic_write(scene.peers_buffer(0, 8), to).any();
    type Make = fn(&Scene, RemoteSlice) -> Work;
    let all: [(Make, Access); 4] = [
        (reads, Access::REMOTE_READ),
        (writes, WRITE),
        (adds, Access::REMOTE_ATOMIC),
        (puts, WRITE),
    ];
    for (work, right) in all {
        for given in [Access::REMOTE_READ, WRITE, Access::REMOTE_ATOMIC, Access::NONE] {
            let mut scene = Scene::over(path);
            scene.mr = scene.bench.pd.allocate(LEN, Access::ALL | Access::MW_BIND).unwrap();
            let mw = scene.window(MwKind::Type1);
            let to = MwBind::new(&scene.mr, 0, 64, given);
            let there = scene.bind(&mw, &to);
            let status = scene.peers(work(&scene, there)).wc.status;
            let expected = if given == right { WcStatus::Success } else { WcStatus::RemoteAccess };
            assert_eq!(status, expected, "{right} through a window with {given}");
        }
    }
}

fn the_regions_own_key_gives_no_more_than_it_was_registered_with(path: Path) {
    let scene = Scene::over(path);
    let mw = scene.window(MwKind::Type2);
    let there = scene.bind(&mw, &scene.part(0, LEN));
    let own = RemoteSlice { rkey: scene.mr.rkey(), ..there };
    scene.refused(own, 8);
}

fn a_zero_based_window_counts_from_its_own_start(path: Path) {
    let scene = Scene::over(path);
    let mw = scene.window(MwKind::Type2);
    let to = MwBind::new(&scene.mr, 100, 50, WRITE | Access::ZERO_BASED);
    let there = scene.bind(&mw, &to);
    assert_eq!(there.addr, 0);
    assert_eq!(scene.write(there.plus(2), 3, 48), WcStatus::Success);
    assert_eq!(scene.bytes(100, 52), [vec![0; 2], vec![3; 48], vec![0; 2]].concat());
    scene.refused(there.plus(3), 48);
}

/// Every end of a window is an end for its key.
fn a_key_is_dead_when_its_window_is_not_bound_by_it_any_more(path: Path) {
    type End = fn(&mut Scene, &mut Option<Mw>, Rkey);
    let invalidated: End = |scene, _, key| {
        assert_eq!(scene.done(Work::local_invalidate(key)), WcStatus::Success);
    };
    let by_the_peer: End = |scene, _, key| {
        scene.owner.post(Work::recv(scene.buffer(0, 8))).unwrap();
        let work = Work::send_with_invalidate(scene.peers_buffer(1, 8), key);
        assert_eq!(scene.peers(work).wc.status, WcStatus::Success);
        let done = scene.cq.wait().unwrap().ok().unwrap();
        assert_eq!((done.wc.byte_len, done.wc.invalidated), (8, Some(key)));
    };
    let bound_elsewhere: End = |scene, mw, _| {
        scene.bind(mw.as_ref().unwrap(), &scene.part(LEN / 2, 64));
    };
    let unbound: End = |scene, mw, _| {
        let mw = mw.as_ref().unwrap();
        scene.owner.bind_mw(mw, &scene.part(0, 0), 0).unwrap();
        scene.cq.wait().unwrap().ok().unwrap();
        assert!(!mw.is_bound());
    };
    let dropped: End = |_, mw, _| drop(mw.take());
    let region_dropped: End = |scene, mw, _| {
        scene.mr = scene.bench.pd.allocate(LEN, BINDABLE).unwrap();
        assert!(!mw.as_ref().unwrap().is_bound());
    };
    for (kind, end) in [
        (MwKind::Type2, invalidated),
        (MwKind::Type2, by_the_peer),
        (MwKind::Type1, bound_elsewhere),
        (MwKind::Type1, unbound),
        (MwKind::Type1, dropped),
        (MwKind::Type2, dropped),
        (MwKind::Type1, region_dropped),
        (MwKind::Type2, region_dropped),
    ] {
        let mut scene = Scene::over(path);
        let mut mw = Some(scene.window(kind));
        let there = scene.bind(mw.as_ref().unwrap(), &scene.part(0, 64));
        assert_eq!(scene.write(there, 1, 64), WcStatus::Success);
        end(&mut scene, &mut mw, there.rkey);
        scene.refused(there, 8);
    }
}

fn a_window_of_type_2_is_bound_again_under_the_next_key(path: Path) {
    let scene = Scene::over(path);
    let mw = scene.window(MwKind::Type2);
    for round in 0..600_usize {
        let at = round % 32 * 64;
        let there = scene.bind(&mw, &scene.part(at, 64));
        assert_eq!(scene.write(there, 1, 64), WcStatus::Success);
        assert_eq!(scene.done(Work::local_invalidate(there.rkey)), WcStatus::Success);
        assert_eq!((mw.is_bound(), scene.mr.windows()), (false, 0));
    }
}

/// Goal: work that follows a binding on the same queue pair may tell its key; no wait is needed.
fn a_key_can_be_sent_right_after_the_binding(path: Path) {
    let scene = Scene::over(path);
    let mw = scene.window(MwKind::Type1);
    scene.peer.post(Work::recv(scene.peers_buffer(0, 4))).unwrap();
    let rkey = scene.owner.bind_mw(&mw, &scene.part(0, 64), 0).unwrap();
    let mut message = scene.bench.pd.buffer(4).unwrap();
    message.copy_from_slice(&rkey.0.to_le_bytes());
    scene.owner.post(Work::send(message)).unwrap();
    let told = scene.peer_cq.wait().unwrap().ok().unwrap().memory.unwrap().into_buf().unwrap();
    let rkey = Rkey(u32::from_le_bytes(told[..].try_into().unwrap()));
    let there = RemoteSlice { addr: scene.mr.addr(), rkey };
    assert_eq!(scene.write(there, 1, 64), WcStatus::Success);
}

fn a_peer_cannot_invalidate_what_is_not_its_to_use(path: Path) {
    type Key = fn(&Scene, &mut Vec<Mw>, &Qp<Rc>) -> Rkey;
    let regions: Key = |scene, _, _| scene.mr.rkey();
    let type_1s: Key = |scene, mws, _| {
        mws.push(scene.window(MwKind::Type1));
        scene.bind(&mws[0], &scene.part(0, 64)).rkey
    };
    let unbound: Key = |scene, mws, _| {
        mws.push(scene.window(MwKind::Type2));
        mws[0].rkey()
    };
    let another_queue_pairs: Key = |scene, mws, other| {
        mws.push(scene.window(MwKind::Type2));
        let rkey = mws[0].rkey().incremented();
        other.post(Work::bind_mw(&mws[0], rkey, &scene.part(0, 64)).unwrap()).unwrap();
        scene.cq.wait().unwrap().ok().unwrap();
        rkey
    };
    let nobodys: Key = |_, _, _| Rkey(0x0fff_ff00);
    for key in [regions, type_1s, unbound, another_queue_pairs, nobodys] {
        let scene = Scene::over(path);
        let [other, _peer] = scene.bench.pair(&scene.cq, &scene.peer_cq);
        let mut mws = Vec::new();
        let key = key(&scene, &mut mws, &other);
        let bound = mws.first().is_some_and(Mw::is_bound);
        scene.owner.post(Work::recv(scene.buffer(0, 8))).unwrap();
        let work = Work::send_with_invalidate(scene.peers_buffer(1, 8), key);
        assert_eq!(scene.peers(work).wc.status, WcStatus::RemoteAccess);
        let done = scene.cq.wait().unwrap();
        assert_eq!((done.wc.opcode, done.wc.status), (WcOpcode::Receive, WcStatus::LocalAccess));
        assert_eq!(done.wc.invalidated, None);
        assert_eq!((scene.owner.state(), scene.peer.state()), (QpState::Err, QpState::Err));
        assert_eq!(mws.first().is_some_and(Mw::is_bound), bound, "as it was");
    }
}

#[test]
fn an_owner_cannot_invalidate_what_is_no_window_of_type_2_of_its_queue_pair() {
    for number in 0..4 {
        let scene = Scene::new();
        let [other, _peer] = scene.bench.pair(&scene.cq, &scene.peer_cq);
        let mw = scene.window(if number == 1 { MwKind::Type1 } else { MwKind::Type2 });
        let there = scene.bind(&mw, &scene.part(0, 64));
        let (qp, key) = match number {
            0 => (&scene.owner, scene.mr.rkey()),
            1 => (&scene.owner, there.rkey),
            2 => (&scene.owner, there.rkey.incremented()),
            _ => (&other, there.rkey),
        };
        qp.post(Work::local_invalidate(key).wr_id(6)).unwrap();
        let done = scene.cq.wait().unwrap();
        assert_eq!((done.wc.wr_id, done.wc.status), (6, WcStatus::MemoryWindowBind));
        assert_eq!(done.wc.opcode, WcOpcode::LocalInvalidate);
        assert_eq!(qp.state(), QpState::Err);
        assert!(mw.is_bound(), "as it was");
    }
}

fn a_window_of_type_2_serves_the_peer_of_its_queue_pair_alone(path: Path) {
    let scene = Scene::over(path);
    let mw = scene.window(MwKind::Type2);
    let there = scene.bind(&mw, &scene.part(0, 64));
    let [_owner, stranger] = scene.bench.pair(&scene.cq, &scene.peer_cq);
    stranger.post(Work::write(scene.peers_buffer(1, 8), there)).unwrap();
    assert_eq!(scene.peer_cq.wait().unwrap().wc.status, WcStatus::RemoteAccess);
    assert_eq!(scene.write(there, 2, 64), WcStatus::Success);

    let mw = scene.window(MwKind::Type1);
    let there = scene.bind(&mw, &scene.part(0, 64));
    let [_owner, friend] = scene.bench.pair(&scene.cq, &scene.peer_cq);
    friend.post(Work::write(scene.peers_buffer(1, 8), there)).unwrap();
    assert_eq!(scene.peer_cq.wait().unwrap().wc.status, WcStatus::Success);
}

/// Goal: over an unreliable connection windows protect the same memory, without notice.
/// Method: a message with immediate data says that those before it have come.
fn windows_work_over_unreliable_connections_where_a_refusal_is_a_dropped_message(path: Path) {
    let scene = Scene::over(path);
    let make = |pd: &Pd, cq: &Cq| pd.create_qp_of::<Uc>(&QpConfig::new(cq)).unwrap();
    let owner = make(&scene.bench.pd, &scene.cq);
    let peer = make(&scene.bench.far_pd, &scene.peer_cq);
    let [here, there] = [owner.address().unwrap(), peer.address().unwrap()];
    owner.connect(there).unwrap();
    peer.connect(here).unwrap();
    let open = scene.bench.pd.allocate(64, Access::ALL).unwrap();
    let open = RemoteSlice { addr: open.addr(), rkey: open.rkey() };
    let write = |to, byte| {
        owner.post(Work::recv(scene.buffer(0, 8))).unwrap();
        peer.post(Work::write(scene.peers_buffer(byte, 64), to)).unwrap();
        peer.post(Work::write_with_imm(scene.peers_buffer(0, 8), open, 1)).unwrap();
        for cq in [&scene.peer_cq, &scene.peer_cq, &scene.cq] {
            cq.wait().unwrap().ok().unwrap();
        }
    };
    let mw = scene.window(MwKind::Type2);
    let key = mw.rkey().incremented();
    owner.post(Work::bind_mw(&mw, key, &scene.part(100, 64)).unwrap()).unwrap();
    assert_eq!(scene.cq.wait().unwrap().ok().unwrap().wc.opcode, WcOpcode::BindWindow);
    let range = RemoteSlice { addr: scene.part(100, 64).addr(), rkey: key };
    write(range, 1);
    assert_eq!(scene.bytes(100, 64), [1; 64]);
    write(range.plus(1), 2);
    owner.post(Work::local_invalidate(key)).unwrap();
    assert_eq!(scene.cq.wait().unwrap().ok().unwrap().wc.opcode, WcOpcode::LocalInvalidate);
    write(range, 3);
    assert_eq!(scene.bytes(99, 66), [vec![0], vec![1; 64], vec![0]].concat());
    assert_eq!(owner.state(), QpState::Rts);
}

/// Goal: the sending end of an extended reliable connection, which receives nothing itself, binds
/// windows of type 1 for the other queue pairs of its domain.
#[test]
fn an_xrc_initiator_binds_windows_that_others_use() {
    let scene = Scene::new();
    let config = QpConfig::new(&scene.cq);
    let qp = scene.bench.pd.create_qp_of::<XrcInitiator>(&config).unwrap();
    let here = qp.address().unwrap();
    qp.connect(here).unwrap();
    let mw = scene.window(MwKind::Type1);
    let part = scene.part(0, 64);
    let rkey = qp.bind_mw(&mw, &part, 0).unwrap();
    scene.cq.wait().unwrap().ok().unwrap();
    let there = RemoteSlice { addr: part.addr(), rkey };
    assert_eq!(scene.write(there, 1, 64), WcStatus::Success);
    assert_eq!(scene.bytes(0, 64), [1; 64]);
}

#[test]
fn a_binding_that_fails_in_its_turn_says_so_and_leaves_the_window_as_it_was() {
    let scene = Scene::new();
    let mw = scene.window(MwKind::Type2);
    let there = scene.bind(&mw, &scene.part(0, 64));
    let again = Work::bind_mw(&mw, there.rkey.incremented(), &scene.part(64, 64)).unwrap();
    scene.owner.post(again.wr_id(3)).unwrap();
    let done = scene.cq.wait().unwrap();
    assert_eq!((done.wc.wr_id, done.wc.status), (3, WcStatus::MemoryWindowBind));
    assert_eq!(done.wc.opcode, WcOpcode::BindWindow);
    assert_eq!(scene.owner.counters().sq_num_mwbe, 1);
    assert_eq!((mw.rkey(), mw.is_bound()), (there.rkey, true));

    let scene = Scene::new();
    let mw = scene.window(MwKind::Type2);
    let same = Work::bind_mw(&mw, mw.rkey(), &scene.part(0, 64)).unwrap();
    assert_eq!(scene.done(same), WcStatus::MemoryWindowBind, "the key has to change");
    assert!(!mw.is_bound());
}

/// Goal: a binding looks for its window and its region when its turn comes.
/// Method: an invalidation waits for all before it, and a SEND that finds no receive for a receive.
#[test]
fn a_binding_whose_window_or_region_has_gone_meanwhile_fails() {
    for what in 0..2 {
        let mut scene = Scene::new();
        let mut mw = Some(scene.window(MwKind::Type2));
        let idle = scene.window(MwKind::Type2);
        scene.owner.post(Work::send(scene.buffer(1, 8))).unwrap();
        scene.owner.post(Work::local_invalidate(idle.rkey())).unwrap();
        let window = mw.as_ref().unwrap();
        let bind = Work::bind_mw(window, window.rkey().incremented(), &scene.part(0, 64)).unwrap();
        scene.owner.post(bind).unwrap();
        match what {
            0 => drop(mw.take()),
            _ => scene.mr = scene.bench.pd.allocate(LEN, BINDABLE).unwrap(),
        }
        scene.peer.post(Work::recv(scene.peers_buffer(0, 8))).unwrap();
        let expected = [WcStatus::Success, WcStatus::Success, WcStatus::MemoryWindowBind];
        assert_eq!(expected.map(|_| scene.cq.wait().unwrap().wc.status), expected);
        assert!(mw.is_none_or(|mw| !mw.is_bound()));
    }
}

/// Goal: an invalidation waits for accesses under way, but never for its own queue pair's.
/// Method: the acknowledgement that makes the invalidation due comes together with READs through
/// the window, because acknowledgements wait for the program's next burst.
#[test]
fn an_invalidation_does_not_wait_for_the_answer_that_its_own_queue_pair_is_sending() {
    if !is_over_udp(
        "an_invalidation_does_not_wait_for_the_answer_that_its_own_queue_pair_is_sending",
    ) {
        return;
    }
    let mut seen = [0, 0];
    let until = Instant::now() + Duration::from_secs(60);
    for round in 0.. {
        // On a busy machine the acknowledgement often goes without company, and then nothing is shown.
        if round >= 100 && (seen[1] > 0 || Instant::now() > until) {
            break;
        }
        let scene = Scene::new();
        let mw = scene.window(MwKind::Type2);
        let there = scene.bind(&mw, &scene.part(0, LEN));
        // Requests and answers take turns in going first.
        for _ in 0..round % 4 {
            assert_eq!(scene.write(there, 1, 8), WcStatus::Success);
        }
        scene.peer.post(Work::recv(scene.peers_buffer(0, 8)).wr_id(1)).unwrap();
        scene.owner.post(Work::send(scene.buffer(1, 8))).unwrap();
        scene.owner.post(Work::local_invalidate(there.rkey)).unwrap();
        scene.peer_cq.wait().unwrap().ok().unwrap();
        let room = scene.bench.pd.allocate(LEN, Access::LOCAL_WRITE).unwrap();
        let sges = [room.sge(0, LEN).unwrap()];
        let kind = SendKind::Read { va: there.addr, rkey: there.rkey };
        let (signaled, solicited, fence) = (true, false, false);
        let data = SendData::Gather(&sges);
        let to = SendTo::Peer;
        let read = SendWork { wr_id: 0, to, kind, data, signaled, solicited, fence, buffer: None };
        // SAFETY: the region outlives the requests and lends no references.
        unsafe { scene.peer.post_send(&[read; 3]) }.unwrap();
        let read = scene.peer_cq.wait().unwrap().wc;
        let in_time = read.status == WcStatus::Success;
        assert!(in_time || read.status == WcStatus::RemoteAccess, "{read:?}");
        seen[usize::from(in_time)] += 1;
    }
    assert!(seen[1] > 0, "no READ came in time");
}

#[test]
fn mistakes_with_windows_are_refused_before_anything_is_queued() {
    let scene = Scene::new();
    let [one, two] = KINDS.map(|kind| scene.window(kind));
    let part = scene.part(0, 64);
    let wrong = scene.owner.bind_mw(&two, &part, 0).unwrap_err();
    assert_eq!(wrong, BindMwError::Bind(BindError::Kind { kind: MwKind::Type2 }));
    let wrong = Work::bind_mw(&one, one.rkey().incremented(), &part).unwrap_err();
    assert_eq!(wrong, BindError::Kind { kind: MwKind::Type1 });
    let wrong = Work::bind_mw(&two, one.rkey(), &part).unwrap_err();
    assert!(matches!(wrong, BindError::ForeignKey { .. }), "{wrong}");
    let wrong = scene.owner.bind_mw(&one, &scene.part(LEN, 1), 0).unwrap_err();
    let BindMwError::Bind(BindError::OutOfBounds { region, .. }) = wrong else {
        panic!("{wrong}");
    };
    assert_eq!(region, LEN);

    // Domains: of the window and the region, and of the window and the queue pair.
    let elsewhere = scene.bench.context.alloc_pd();
    let foreign = elsewhere.allocate(LEN, BINDABLE).unwrap();
    let wrong = scene.owner.bind_mw(&one, &MwBind::new(&foreign, 0, 64, WRITE), 0).unwrap_err();
    assert_eq!(wrong, BindMwError::Bind(BindError::ForeignRegion));
    let theirs = elsewhere.alloc_mw(MwKind::Type2).unwrap();
    let work = Work::bind_mw(&theirs, theirs.rkey(), &MwBind::new(&foreign, 0, 64, WRITE));
    let rejected = scene.owner.post(work.unwrap()).unwrap_err();
    assert_eq!(rejected.error, PostError::ForeignWindow);

    let idle = scene.bench.pd.create_qp(&QpConfig::new(&scene.cq)).unwrap();
    let wrong = idle.bind_mw(&one, &part, 0).unwrap_err();
    let not_ready = PostError::NotReady { state: QpState::Reset };
    assert_eq!(wrong, BindMwError::Refused(not_ready));
    assert_eq!(scene.owner.query().outstanding, 0);
    assert!(!one.is_bound() && !two.is_bound());
}

#[test]
fn a_region_with_windows_does_not_end_by_accident() {
    let scene = Scene::new();
    let mw = scene.window(MwKind::Type2);
    let there = scene.bind(&mw, &scene.part(0, 64));
    let Scene { bench, cq, owner, peer_cq: _peer_cq, peer: _peer, mr } = scene;
    assert_eq!(mr.windows(), 1);
    let refused = mr.deregister().unwrap_err();
    assert!(matches!(refused.why, AllocateError::WindowsBound { windows: 1 }), "{refused}");
    let refused = refused.mr.reregister(&bench.pd, BINDABLE).unwrap_err();
    assert!(matches!(refused.why, AllocateError::WindowsBound { windows: 1 }), "{refused}");
    let mr = refused.mr;
    let refused = mr.clone().deregister().unwrap_err();
    assert!(matches!(refused.why, AllocateError::InUse { handles: 1 }), "{refused}");
    drop(refused);

    owner.post(Work::local_invalidate(there.rkey)).unwrap();
    cq.wait().unwrap().ok().unwrap();
    mr.deregister().unwrap();
}

/// Goal: handles go in any order, with a window bound and a binding outstanding.
#[test]
fn handles_with_windows_are_dropped_in_any_order() {
    for order in 0..120_usize {
        let scene = Scene::new();
        let mw = scene.window(MwKind::Type2);
        let there = scene.bind(&mw, &scene.part(0, 64));
        for wr_id in 0..4 {
            scene.peer.post(Work::write(scene.peers_buffer(1, 64), there).wr_id(wr_id)).unwrap();
        }
        scene.owner.post(Work::local_invalidate(there.rkey)).unwrap();
        let again = Work::bind_mw(&mw, there.rkey.incremented(), &scene.part(0, 64)).unwrap();
        scene.owner.post(again).unwrap();
        let Scene { bench, cq, owner, peer_cq, peer, mr } = scene;
        let mut handles: Vec<Box<dyn std::any::Any>> = vec![
            Box::new(mr),
            Box::new(mw),
            Box::new((bench, cq)),
            Box::new(owner),
            Box::new((peer, peer_cq)),
        ];
        let mut left = order;
        for radix in (1..=5).rev() {
            drop(handles.remove(left % radix));
            left /= radix;
        }
    }
}

#[test]
fn silent_windows_work_and_memory_of_silent_work_before_it_come_back() {
    let scene = Scene::new();
    let [mw, own] = [(); 2].map(|()| scene.window(MwKind::Type2));
    let target = scene.bench.pd.allocate(64, Access::ALL).unwrap();
    let to = RemoteSlice { addr: target.addr(), rkey: target.rkey() };
    let mut key = mw.rkey();
    for _ in 0..100 {
        key = key.incremented();
        let bind = Work::bind_mw(&mw, key, &scene.part(0, 64)).unwrap().unsignaled();
        scene.owner.post(bind).unwrap();
        let slice = scene.mr.slice(0, 8).unwrap();
        scene.owner.post(Work::write(slice, to).unsignaled()).unwrap();
        scene.owner.post(Work::local_invalidate(key).wr_id(1)).unwrap();
        let done = scene.cq.wait().unwrap().ok().unwrap();
        assert_eq!((done.wc.wr_id, done.wc.opcode), (1, WcOpcode::LocalInvalidate));
    }
    assert!(!own.is_bound() && !mw.is_bound());
    scene.mr.deregister().expect("all slices were released");
}

/// Goal: whatever peers do at whatever time, nothing is touched that no window shows.
/// Method: a window moves between two halves while peers write to both by the newest key; what it
/// has left is its owner's, which finds it as it was left.
fn a_window_that_moves_under_load_lets_no_write_past(path: Path) {
    let scene = Scene::over(path);
    let mw = scene.window(MwKind::Type1);
    let half = LEN / 2;
    let key = AtomicU32::new(scene.bind(&mw, &scene.part(0, half)).rkey.0);
    let (stop, refusals, successes) =
        (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // A refusal ends a connection: make another.
                    let sides = [&scene.bench.context, &scene.bench.far];
                    let [theirs, cq] = sides.map(|side| side.create_cq(16).unwrap());
                    let [_owner, peer] = scene.bench.pair(&theirs, &cq);
                    loop {
                        let rkey = Rkey(key.load(Ordering::Relaxed));
                        let there = RemoteSlice { addr: scene.mr.addr(), rkey };
                        let offset = if rkey.0 & 1 == 0 { 0 } else { half };
                        let there = there.plus(u64::try_from(offset).unwrap());
                        peer.post(Work::write(scene.peers_buffer(0xff, half), there)).unwrap();
                        let done = cq.wait().unwrap();
                        if done.wc.status != WcStatus::Success {
                            assert_eq!(done.wc.status, WcStatus::RemoteAccess);
                            refusals.fetch_add(1, Ordering::Relaxed);
                            break;
                        }
                        successes.fetch_add(1, Ordering::Relaxed);
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                }
            });
        }
        let _stop = Stop(&stop);
        let mut rounds = 0;
        let until = Instant::now() + Duration::from_secs(60);
        let enough =
            || successes.load(Ordering::Relaxed) >= 50 && refusals.load(Ordering::Relaxed) > 0;
        while rounds < 200 || (!enough() && Instant::now() < until) {
            // The key says which half it is for, so that the peers are right about half the time.
            let next = Rkey(key.load(Ordering::Relaxed)).incremented();
            let (at, other) = if next.0 & 1 == 0 { (0, half) } else { (half, 0) };
            let there = scene.bind(&mw, &scene.part(at, half));
            scene.mr.fill(other, half, 7).unwrap();
            key.store(there.rkey.0, Ordering::Relaxed);
            for _ in 0..20 {
                scene.bench.context.drive();
            }
            let found = scene.bytes(other, half).iter().position(|byte| *byte != 7);
            assert_eq!(found, None, "bytes outside the window were written in round {rounds}");
            rounds += 1;
        }
    });
    assert!(refusals.load(Ordering::Relaxed) > 0, "no write came too late");
}

/// Runs a test again in a process of its own whose packets go over UDP: they are what it is about.
/// True in that process.
fn is_over_udp(name: &str) -> bool {
    if std::env::var("ADVERB_PATH").as_deref() == Ok("udp") {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(program);
    let output = command.args(["--exact", name, "--nocapture"]).env("ADVERB_PATH", "udp").output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("running 1 test"), "{name} has not run: {text}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    false
}
