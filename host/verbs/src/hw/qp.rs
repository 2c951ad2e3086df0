//! Queue pairs of hardware.
//!
//! # Safety
//!
//! What is posted is the caller's promise, as for the software device: see `qp.rs` of the crate. The
//! device checks keys, ranges and rights. Inline bytes are copied when posted; address handles are held
//! by the book until their request has ended.

use super::cq::{Book, Cq, Entry, Ring, wr_id};
use super::srq::Srq;
use super::{Domain, PORT, Port, way};
use adverb_device::QpCap;
use adverb_device::locks::Mutex;
use adverb_device::{
    Access, AckTimeout, AhAttr, Attributes, Change, ConnectError, Gid, GroupError, Partition,
    PathMtu, PostError, Psn, Qkey, QpQuery, QpState, QpType, Qpn, ReceiveWork, RetryCount,
    RnrRetry, RnrTimer, SendData, SendKind, SendTo, SendWork, Settings, Sge, Side, WcOpcode,
    allowed, check_modify,
};
use adverb_ibv::layout::{self, SendWr, value};
use std::io;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Parameters of a queue pair.
pub(crate) struct Makings<'a> {
    pub(crate) kind: QpType,
    pub(crate) send_cq: &'a Arc<Cq>,
    pub(crate) recv_cq: &'a Arc<Cq>,
    pub(crate) srq: Option<&'a Arc<Srq>>,
    pub(crate) cap: QpCap,
    pub(crate) signal_all: bool,
    pub(crate) context: u64,
}

/// Whom a request is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum To<'a> {
    Peer,
    Datagram { ah: &'a super::Ah, remote: Qpn, qkey: Qkey },
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    raw: adverb_ibv::Qp,
    port: Arc<Port>,
    kind: QpType,
    cap: QpCap,
    mtu: PathMtu,
    /// The state that it was last taken to, or found in: its place among [`QpState::ALL`].
    state: AtomicU8,
    sends: (u32, Arc<Book>),
    receives: (u32, Arc<Book>),
    own_receives: bool,
    cqs: [Arc<Cq>; 2],
    way: Mutex<Option<(Gid, Qpn, Change)>>,
}

/// Requests that one call hands to the device.
const BATCH: usize = 8;

impl Qp {
    pub(crate) fn new(domain: &Domain, of: &Makings<'_>) -> io::Result<Self> {
        let port = domain.port();
        let kind = match of.kind {
            QpType::Rc => value::QPT_RC,
            QpType::Uc => value::QPT_UC,
            QpType::Ud => value::QPT_UD,
            QpType::XrcInitiator | QpType::XrcTarget => {
                return Err(io::ErrorKind::Unsupported.into());
            }
        };
        let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline } = of.cap;
        let makings = adverb_ibv::QpMakings {
            name: of.context,
            send_cq: of.send_cq.raw(),
            recv_cq: of.recv_cq.raw(),
            srq: of.srq.map(|srq| srq.raw()),
            cap: layout::QpCap {
                max_send_wr,
                max_recv_wr,
                max_send_sge,
                max_recv_sge,
                max_inline_data: max_inline,
            },
            kind,
            signal_all: of.signal_all,
        };
        let (raw, _) = adverb_ibv::Qp::new(domain.pd()?, &makings)?;
        let book = |book: Book| (port.name(of.context), Arc::new(book));
        let sends = book(Book::Sends(Mutex::new(Ring::new(max_send_wr))));
        let receives = match of.srq {
            Some(srq) => (srq.number(), Arc::clone(srq.book())),
            None => book(Book::Receives(Mutex::new(Ring::new(max_recv_wr)))),
        };
        of.send_cq.enter(sends.0, &sends.1);
        of.recv_cq.enter(receives.0, &receives.1);
        Ok(Self {
            raw,
            port: Arc::clone(port),
            kind: of.kind,
            cap: of.cap,
            mtu: port.device().active_mtu(),
            state: AtomicU8::new(0),
            sends,
            receives,
            own_receives: of.srq.is_none(),
            cqs: [Arc::clone(of.send_cq), Arc::clone(of.recv_cq)],
            way: Mutex::new(None),
        })
    }

    #[inline]
    pub(crate) fn number(&self) -> Qpn {
        Qpn::new(self.raw.number())
    }

    /// Its state, as the device has it.
    pub(crate) fn state(&self) -> QpState {
        if let Ok(attr) = self.raw.query(value::QP_STATE) {
            self.remember(state_of(attr.qp_state));
        }
        self.known_state()
    }

    /// The state that it was in when it was last queried.
    #[inline]
    fn known_state(&self) -> QpState {
        let at = usize::from(self.state.load(Ordering::Relaxed));
        QpState::ALL.get(at).copied().unwrap_or(QpState::Err)
    }

    fn remember(&self, state: QpState) {
        let at = QpState::ALL.iter().position(|known| *known == state).unwrap_or(0);
        self.state.store(u8::try_from(at).unwrap_or(0), Ordering::Relaxed);
    }

    /// The peer's address and queue pair, once connected.
    pub(crate) fn remote(&self) -> Option<(Gid, Qpn)> {
        self.way.lock().map(|(gid, qpn, _)| (gid, qpn))
    }

    fn ring(book: &Book) -> Option<&Mutex<Ring>> {
        match book {
            Book::Sends(ring) | Book::Receives(ring) => Some(ring),
            Book::Shared(..) => None,
        }
    }

    pub(crate) fn outstanding(&self) -> u64 {
        Self::ring(&self.sends.1).map_or(0, |ring| ring.lock().outstanding())
    }

    /// Goes to another state, or stays and changes attributes. `forgotten` is told the memory of work
    /// that vanishes on the way to RESET.
    pub(crate) fn modify(
        &self,
        to: QpState,
        change: &Change,
        mut forgotten: impl FnMut(Side, u32),
    ) -> Result<(), ConnectError> {
        change.check()?;
        let given = &change.attributes;
        check_modify(self.kind, self.state(), to, given.given(), given.current)?;
        let attr = self.port.attr();
        let reads = [
            ("max_rd_atomic", given.max_rd_atomic, attr.max_qp_init_rd_atom),
            ("max_dest_rd_atomic", given.max_dest_rd_atomic, attr.max_qp_rd_atom),
        ];
        for (what, asked, most) in reads {
            if let Some(asked) = asked.filter(|asked| *asked > most) {
                let allowed = (0, most.into());
                return Err(ConnectError::Attribute { what, asked: asked.into(), allowed });
            }
        }
        if given.remote_gid.is_some() {
            self.port.has_gid(change.gid_index)?;
        }
        let (attr, mask) = for_c(to, change);
        self.raw.modify(attr, mask).map_err(|error| self.port.refused(taking(to), error))?;
        self.remember(to);
        if let (Some(gid), Some(qpn)) = (given.remote_gid, given.remote) {
            *self.way.lock() = Some((gid, qpn, *change));
        }
        if to == QpState::Reset {
            *self.way.lock() = None;
            self.clear(&mut forgotten);
        }
        Ok(())
    }

    /// Forgets all work.
    fn clear(&self, forgotten: &mut impl FnMut(Side, u32)) {
        if let Some(ring) = Self::ring(&self.sends.1) {
            ring.lock().clear(|buffer| forgotten(Side::Send, buffer));
        }
        if let Some(ring) = Self::ring(&self.receives.1) {
            ring.lock().clear(|buffer| forgotten(Side::Receive, buffer));
        }
    }

    /// Any state to ERR: all work ends as flushed.
    pub(crate) fn to_err(&self) {
        let (attr, mask) = for_c(QpState::Err, &Change::default());
        // From RESET there is no way on some devices, and nothing to flush either.
        if self.raw.modify(attr, mask).is_ok() {
            self.remember(QpState::Err);
        }
    }

    /// What it is set to now, as far as the device tells.
    pub(crate) fn query(&self) -> QpQuery {
        let attr = self.raw.query(EVERYTHING).unwrap_or_default();
        self.remember(state_of(attr.qp_state));
        let change = self.way.lock().map(|(_, _, change)| change).unwrap_or_default();
        QpQuery {
            state: self.known_state(),
            draining: attr.sq_draining != 0,
            gid_index: change.gid_index,
            marks: change.marks,
            settings: settings(&attr, self.mtu),
        }
    }

    pub(crate) fn attach(&self, group: Gid) -> Result<(), GroupError> {
        self.raw.attach(&group.0).map_err(|error| GroupError::System { gid: group, error })
    }

    pub(crate) fn detach(&self, group: Gid) -> Result<(), GroupError> {
        self.raw.detach(&group.0).map_err(|_| GroupError::NotAttached { gid: group })
    }

    /// Posts requests, in order, all for `to` unless they say otherwise.
    #[inline(never)] // Keeps the software device's way short, which shares a match with it.
    pub(crate) fn post_send(
        &self,
        batch: &[SendWork<'_>],
        to: To<'_>,
    ) -> Result<(), (usize, PostError)> {
        let state = self.known_state();
        if !state.behaviour().post_send && !batch.is_empty() {
            return Err((0, PostError::NotReady { state }));
        }
        let Some(ring) = Self::ring(&self.sends.1) else {
            return Ok(());
        };
        let mut ring = ring.lock();
        let mut posted = 0;
        for part in batch.chunks(BATCH) {
            self.post_part(&mut ring, part, to).map_err(|(at, error)| (posted + at, error))?;
            posted += part.len();
        }
        Ok(())
    }

    /// Posts what one call can take.
    #[inline]
    fn post_part(
        &self,
        ring: &mut Ring,
        part: &[SendWork<'_>],
        to: To<'_>,
    ) -> Result<(), (usize, PostError)> {
        let mut list = [SendWr::EMPTY; BATCH];
        let mut inline = [layout::Sge::default(); BATCH];
        let (mut ready, mut mistake) = (0, None);
        for ((work, wr), sge) in part.iter().zip(&mut list).zip(&mut inline) {
            match self.prepare(ring, work, to, wr, sge) {
                Ok(()) => ready += 1,
                Err(error) => {
                    mistake = Some((ready, error));
                    break;
                }
            }
        }
        // SAFETY: pieces are those of the caller's requests, whose promise it is, or of `inline`,
        // which lives beyond this call, like the bytes that it names. Address handles are in the ring.
        let posted = unsafe { self.raw.post_send(list.get_mut(..ready).unwrap_or_default()) };
        if let Err((done, error)) = posted {
            (done..ready).for_each(|_| ring.take_back());
            return Err((done, refusal(&error, ring.capacity())));
        }
        mistake.map_or(Ok(()), Err)
    }

    /// Checks a request, remembers it, and writes it down as C has it.
    #[inline]
    fn prepare(
        &self,
        ring: &mut Ring,
        work: &SendWork<'_>,
        to: To<'_>,
        wr: &mut SendWr,
        inline: &mut layout::Sge,
    ) -> Result<(), PostError> {
        let (kind, operation) = (self.kind, work.kind.operation());
        let here = !matches!(
            work.kind,
            SendKind::AtomicWrite { .. } | SendKind::Flush { .. } | SendKind::BindWindow
        );
        if let SendData::Bind(_) = work.data {
            return Err(PostError::ForeignWindow); // They are all of the software device.
        }
        if !allowed(kind, operation) || !here {
            return Err(PostError::Operation { kind, operation });
        }
        let len = self.pieces(work, wr, inline)?;
        let ah = self.address(work, to, len, wr)?;
        if work.kind.is_atomic() && len != 8 {
            return Err(PostError::AtomicLength { len });
        }
        let flag = |set: bool, flag| if set { flag } else { 0 };
        wr.send_flags |= flag(work.signaled, value::SEND_SIGNALED)
            | flag(work.solicited, value::SEND_SOLICITED)
            | flag(work.fence, value::SEND_FENCE);
        operation_for_c(work.kind, wr);
        let (id, buffer, opcode) = (work.wr_id, work.buffer, work.kind.wc_opcode());
        let entry = Entry { wr_id: id, buffer, opcode, len, ah };
        let number = ring.put(entry).ok_or(PostError::QueueFull { capacity: ring.capacity() })?;
        wr.wr_id = wr_id(self.sends.0, number);
        Ok(())
    }

    /// Says where the bytes are; returns how many.
    #[inline]
    fn pieces(
        &self,
        work: &SendWork<'_>,
        wr: &mut SendWr,
        inline: &mut layout::Sge,
    ) -> Result<u32, PostError> {
        match work.data {
            SendData::Gather(sges) => {
                let (count, max) =
                    (sges.len(), usize::try_from(self.cap.max_send_sge).unwrap_or(0));
                if count > max {
                    return Err(PostError::TooManySges { count, max });
                }
                let local = work.kind.is_local();
                wr.sg_list = as_c(sges).as_ptr();
                wr.num_sge = if local { 0 } else { i32::try_from(count).unwrap_or(0) };
                total_len(sges).ok_or(PostError::TooLong)
            }
            SendData::Inline(bytes) => {
                let (len, max) = (bytes.len(), usize::try_from(self.cap.max_inline).unwrap_or(0));
                if work.kind.awaits_data() {
                    return Err(PostError::InlineForRead);
                }
                if len > max {
                    return Err(PostError::InlineTooLong { len, max });
                }
                let length = u32::try_from(len).unwrap_or(0);
                let addr = u64::try_from(bytes.as_ptr().expose_provenance()).unwrap_or(0);
                *inline = layout::Sge { addr, length, lkey: 0 };
                wr.sg_list = &raw const *inline;
                wr.num_sge = 1;
                wr.send_flags = value::SEND_INLINE;
                Ok(length)
            }
            SendData::Bind(_) => Err(PostError::ForeignWindow),
        }
    }

    /// Writes down whom it is for; returns the address handle to hold.
    #[inline]
    fn address(
        &self,
        work: &SendWork<'_>,
        to: To<'_>,
        len: u32,
        wr: &mut SendWr,
    ) -> Result<Option<Arc<adverb_ibv::Ah>>, PostError> {
        let datagrams = self.kind == QpType::Ud;
        match (work.to, to) {
            (SendTo::Peer, To::Peer) if !datagrams => Ok(None),
            (SendTo::Peer, To::Datagram { ah, remote, qkey }) if datagrams => {
                if !Arc::ptr_eq(ah.raw.pd(), self.raw.pd()) {
                    return Err(PostError::ForeignAddress);
                }
                let mtu = self.mtu.bytes();
                if len > mtu {
                    return Err(PostError::DatagramTooLong { len, mtu });
                }
                let (remote_qpn, remote_qkey) = (remote.get(), qkey.0);
                let to = layout::Datagram { ah: ah.raw.as_ptr(), remote_qpn, remote_qkey };
                wr.wr = layout::Remote { ud: to };
                Ok(Some(Arc::clone(&ah.raw)))
            }
            (SendTo::Datagram { .. }, _) => Err(PostError::ForeignAddress), // Of the software device.
            (SendTo::Peer | SendTo::SharedQueue(_), _) => {
                Err(PostError::Address { kind: self.kind })
            }
        }
    }

    /// Posts receives, in order.
    #[inline(never)] // Keeps the software device's way short, which shares a match with it.
    pub(crate) fn post_receive(&self, batch: &[ReceiveWork<'_>]) -> Result<(), (usize, PostError)> {
        let state = self.known_state();
        if !self.own_receives && !batch.is_empty() {
            return Err((0, PostError::SharedReceives));
        }
        if !state.behaviour().post_receive && !batch.is_empty() {
            return Err((0, PostError::NotReady { state }));
        }
        let Some(ring) = Self::ring(&self.receives.1) else {
            return Ok(());
        };
        let mut ring = ring.lock();
        batch.iter().enumerate().try_for_each(|(at, work)| {
            self.post_one_receive(&mut ring, work).map_err(|error| (at, error))
        })
    }

    #[inline]
    fn post_one_receive(&self, ring: &mut Ring, work: &ReceiveWork<'_>) -> Result<(), PostError> {
        let (count, max) = (work.sges.len(), usize::try_from(self.cap.max_recv_sge).unwrap_or(0));
        if count > max {
            return Err(PostError::TooManySges { count, max });
        }
        let len = total_len(work.sges).ok_or(PostError::TooLong)?;
        let (id, buffer, opcode) = (work.wr_id, work.buffer, WcOpcode::Receive);
        let entry = Entry { wr_id: id, buffer, opcode, len, ah: None };
        let capacity = ring.capacity();
        let number = ring.put(entry).ok_or(PostError::QueueFull { capacity })?;
        // SAFETY: the caller's promise.
        let posted = unsafe { self.raw.post_recv(wr_id(self.receives.0, number), as_c(work.sges)) };
        posted.map_err(|error| {
            ring.take_back();
            refusal(&error, capacity)
        })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // Its completions name books that are not found from now on.
        let [send_cq, recv_cq] = &self.cqs;
        send_cq.leave(self.sends.0);
        self.port.forget(self.sends.0);
        if self.own_receives {
            recv_cq.leave(self.receives.0);
            self.port.forget(self.receives.0);
        }
    }
}

/// What was asked of a device that did not take a queue pair to a state.
fn taking(to: QpState) -> &'static str {
    match to {
        QpState::Reset => "take a queue pair to RESET",
        QpState::Init => "take a queue pair to INIT",
        QpState::Rtr => "take a queue pair to RTR",
        QpState::Rts => "take a queue pair to RTS",
        QpState::Sqd => "take a queue pair to SQD",
        QpState::Sqe => "take a queue pair to SQE",
        QpState::Err => "take a queue pair to ERR",
    }
}

/// The number of a state in `enum ibv_qp_state`: its place among all.
fn state_for_c(state: QpState) -> i32 {
    let at = QpState::ALL.iter().position(|known| *known == state);
    at.and_then(|at| i32::try_from(at).ok()).unwrap_or(0)
}

fn state_of(code: i32) -> QpState {
    let state = usize::try_from(code).ok().and_then(|at| QpState::ALL.get(at));
    state.copied().unwrap_or(QpState::Err)
}

/// Attributes and their mask, as C has them.
fn for_c(to: QpState, change: &Change) -> (layout::QpAttr, i32) {
    let Change { attributes, gid_index, marks } = change;
    let Attributes { partition, port, access, qkey, remote_gid, remote, path_mtu, .. } =
        *attributes;
    let Attributes { expected_psn, max_dest_rd_atomic, min_rnr_timer, first_psn, .. } = *attributes;
    let Attributes { timeout, retry_count, rnr_retry, max_rd_atomic, .. } = *attributes;
    let mut attr = layout::QpAttr { qp_state: state_for_c(to), ..layout::QpAttr::default() };
    let mut mask = value::QP_STATE;
    macro_rules! set {
        ($($given:expr, $mask:ident: |$it:ident| $field:ident = $value:expr;)*) => {
            $(if let Some($it) = $given {
                attr.$field = $value;
                mask |= value::$mask;
            })*
        };
    }
    set! {
        attributes.current, QP_CUR_STATE: |state| cur_qp_state = state_for_c(state);
        partition, QP_PKEY_INDEX: |partition| pkey_index = partition.index;
        port, QP_PORT: |port| port_num = port;
        access, QP_ACCESS_FLAGS: |access| qp_access_flags = access.bits();
        qkey, QP_QKEY: |qkey| qkey = qkey.0;
        remote_gid, QP_AV: |gid| ah_attr = way(AhAttr::new(gid).marked(*marks), *gid_index);
        remote, QP_DEST_QPN: |remote| dest_qp_num = remote.get();
        path_mtu, QP_PATH_MTU: |mtu| path_mtu = i32::from(mtu.code());
        expected_psn, QP_RQ_PSN: |psn| rq_psn = psn.get();
        max_dest_rd_atomic, QP_MAX_DEST_RD_ATOMIC: |reads| max_dest_rd_atomic = reads;
        min_rnr_timer, QP_MIN_RNR_TIMER: |timer| min_rnr_timer = timer.code();
        first_psn, QP_SQ_PSN: |psn| sq_psn = psn.get();
        timeout, QP_TIMEOUT: |timeout| timeout = timeout.exponent();
        retry_count, QP_RETRY_CNT: |count| retry_cnt = count.get();
        rnr_retry, QP_RNR_RETRY: |count| rnr_retry = count.get();
        max_rd_atomic, QP_MAX_QP_RD_ATOMIC: |reads| max_rd_atomic = reads;
        attributes.notify_drained, QP_EN_SQD_ASYNC_NOTIFY: |on| en_sqd_async_notify = u8::from(on);
    }
    (attr, mask)
}

/// All attributes that are asked for.
const EVERYTHING: i32 = (1 << 21) - 1;

fn settings(attr: &layout::QpAttr, mtu: PathMtu) -> Settings {
    Settings {
        partition: Partition { index: attr.pkey_index, ..Partition::DEFAULT },
        port: if attr.port_num == 0 { PORT } else { attr.port_num },
        access: Access::from_bits(attr.qp_access_flags).transport(),
        qkey: Qkey(attr.qkey),
        remote_gid: Gid(attr.ah_attr.grh.dgid.0),
        remote: Qpn::new(attr.dest_qp_num),
        path_mtu: super::mtu(attr.path_mtu).unwrap_or(mtu),
        expected_psn: Psn::new(attr.rq_psn),
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: RnrTimer::new(attr.min_rnr_timer),
        first_psn: Psn::new(attr.sq_psn),
        timeout: AckTimeout::from_exponent(attr.timeout).unwrap_or(AckTimeout::FOREVER),
        retry_count: RetryCount::new(attr.retry_cnt).unwrap_or(RetryCount::MAX),
        rnr_retry: RnrRetry::new(attr.rnr_retry).unwrap_or(RnrRetry::FOREVER),
        max_rd_atomic: attr.max_rd_atomic,
        window_packets: Settings::WINDOW_PACKETS,
        window_first: None,
        notify_drained: attr.en_sqd_async_notify != 0,
    }
}

/// Writes down what a request does.
#[inline]
fn operation_for_c(kind: SendKind, wr: &mut SendWr) {
    let rdma = |remote_addr, rkey: adverb_device::Rkey| layout::Remote {
        rdma: layout::Rdma { remote_addr, rkey: rkey.0 },
    };
    let with_imm = |imm: Option<adverb_device::Imm>| imm.map_or(0, |imm| imm.0.to_be());
    match kind {
        SendKind::Send { imm } => {
            wr.opcode = if imm.is_some() { value::WR_SEND_WITH_IMM } else { value::WR_SEND };
            wr.imm_data = with_imm(imm);
        }
        SendKind::SendInvalidate { rkey } => {
            wr.opcode = value::WR_SEND_WITH_INV;
            wr.imm_data = rkey.0;
        }
        SendKind::Write { va, rkey, imm } => {
            let plain = value::WR_RDMA_WRITE;
            wr.opcode = if imm.is_some() { value::WR_RDMA_WRITE_WITH_IMM } else { plain };
            wr.imm_data = with_imm(imm);
            wr.wr = rdma(va, rkey);
        }
        SendKind::Read { va, rkey } => {
            wr.opcode = value::WR_RDMA_READ;
            wr.wr = rdma(va, rkey);
        }
        SendKind::CompareSwap { va, rkey, compare, swap } => {
            let (remote_addr, rkey) = (va, rkey.0);
            wr.opcode = value::WR_ATOMIC_CMP_AND_SWP;
            let atomic = layout::Atomic { remote_addr, compare_add: compare, swap, rkey };
            wr.wr = layout::Remote { atomic };
        }
        SendKind::FetchAdd { va, rkey, add } => {
            let (remote_addr, rkey) = (va, rkey.0);
            wr.opcode = value::WR_ATOMIC_FETCH_AND_ADD;
            let atomic = layout::Atomic { remote_addr, compare_add: add, swap: 0, rkey };
            wr.wr = layout::Remote { atomic };
        }
        SendKind::LocalInvalidate { rkey } => {
            wr.opcode = value::WR_LOCAL_INV;
            wr.imm_data = rkey.0;
        }
        SendKind::AtomicWrite { .. } | SendKind::Flush { .. } | SendKind::BindWindow => {
            debug_assert!(false, "refused before");
        }
    }
}

/// Pieces as C has them.
#[inline]
pub(super) fn as_c(sges: &[Sge]) -> &[layout::Sge] {
    const _: () = assert!(
        size_of::<Sge>() == size_of::<layout::Sge>()
            && align_of::<Sge>() == align_of::<layout::Sge>()
            && offset_of!(Sge, addr) == offset_of!(layout::Sge, addr)
            && offset_of!(Sge, len) == offset_of!(layout::Sge, length)
            && offset_of!(Sge, lkey) == offset_of!(layout::Sge, lkey)
    );
    // SAFETY: as many values of the same layout, as just asserted, for as long as those are borrowed.
    unsafe { std::slice::from_raw_parts(sges.as_ptr().cast(), sges.len()) }
}

/// Length of all pieces; `None` beyond 2 GiB.
#[inline]
pub(super) fn total_len(sges: &[Sge]) -> Option<u32> {
    let len: u64 = sges.iter().map(|sge| u64::from(sge.len)).sum();
    u32::try_from(len).ok().filter(|len| *len <= 1 << 31)
}

/// What a device's refusal of a request means.
#[cold]
pub(super) fn refusal(error: &io::Error, capacity: u64) -> PostError {
    if error.kind() == io::ErrorKind::OutOfMemory {
        return PostError::QueueFull { capacity };
    }
    PostError::Refused { errno: error.raw_os_error().unwrap_or(0) }
}
