//! Queue pairs: made, taken through their states, asked, ended.
//!
//! # Safety
//!
//! As in `export.rs` and `boxed.rs`.

use crate::acknowledge::wait_acknowledged;
use crate::boxed::{Boxed, Plain, name_of};
use crate::context;
use crate::cq::cq_of;
use crate::errno::{Answer, BUSY, INVALID, UNSUPPORTED};
use crate::export::{entry, export};
use crate::memory::{Use, pd_of};
use crate::message;
use crate::opened::{self, Remote, state_for_c};
use crate::srq::srq_of;
use crate::way::{group, way, way_for_c};
use crate::work::{self, Builder};
use crate::xrc::xrcd_of;
use adverb_device::locks::Mutex;
use adverb_device::{
    Access, AckTimeout, AhAttr, Attributes, Change, CompletionQueue, Gid, OpenTarget, Partition,
    PathMtu, Psn, Qkey, QpCap, QpConfig, QpLimits, QpQuery, QpState, QpType, Qpn, RetryCount,
    RnrRetry, RnrTimer,
};
use adverb_ibv::layout::{self, value};
use libc::c_int;
use std::cell::UnsafeCell;
use std::collections::BTreeSet;
use std::io;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What is ours of a queue pair.
pub(crate) struct QpInner {
    /// There until the queue pair is destroyed, unless it is another process's. An XRC target ends with the last that has
    /// it open.
    pub(crate) qp: Option<Arc<adverb_device::Qp>>,
    /// A handle of a target that another handle was made with.
    opened: Opened,
    /// Events that the program has taken.
    pub(crate) events: AtomicU32,
    kind: QpType,
    cap: layout::QpCap,
    signal_all: bool,
    cqs: Vec<CompletionQueue>,
    _of: Vec<Use>,
    /// Requests between `ibv_wr_start` and `ibv_wr_complete`.
    pub(crate) builder: UnsafeCell<Builder>,
    pub(crate) is_extended: bool,
    /// Multicast groups that it is attached to, whichever way the program writes them.
    groups: Mutex<BTreeSet<Gid>>,
}

/// What a handle of a target has that another handle was made with.
enum Opened {
    /// It is not such a handle.
    No,
    /// Where its events go, if the other is this process's.
    Here { _listener: adverb_device::Listener },
    /// The target, if the other is another process's.
    There(Box<Remote>),
}

impl QpInner {
    /// Pieces of one request.
    pub(crate) fn max_send_sge(&self) -> usize {
        usize::try_from(self.cap.max_send_sge.max(1)).unwrap_or(usize::MAX)
    }

    /// Bytes of one request inline.
    pub(crate) fn max_inline(&self) -> usize {
        usize::try_from(self.cap.max_inline_data).unwrap_or(0)
    }
}

/// Every queue pair has room for what an extended one has.
pub(crate) type Qp = Boxed<layout::QpEx, QpInner>;

/// The queue pair behind a program's pointer.
///
/// # Safety
///
/// It is one of ours, or null.
pub(crate) unsafe fn qp_of<'a>(qp: *mut layout::Qp) -> Answer<&'a Qp> {
    // SAFETY: the caller's promise.
    unsafe { Qp::checked(qp.cast()) }
}

fn kind_of(kind: c_int) -> Answer<QpType> {
    Ok(match kind {
        value::QPT_RC => QpType::Rc,
        value::QPT_UC => QpType::Uc,
        value::QPT_UD => QpType::Ud,
        value::QPT_XRC_SEND => QpType::XrcInitiator,
        value::QPT_XRC_RECV => QpType::XrcTarget,
        _ => return Err(UNSUPPORTED),
    })
}

/// Bytes that every queue pair takes inline, whatever was asked.
const INLINE_MIN: u32 = 256;

/// What a queue pair is made of beyond the plain attributes.
#[derive(Default)]
struct Extra {
    xrcd: Option<*mut layout::Xrcd>,
    block_self_multicast: bool,
    is_extended: bool,
}

fn create(
    context: *mut layout::Context,
    pd: *mut layout::Pd,
    attr: &mut layout::QpInitAttr,
    extra: &Extra,
) -> Answer<*mut layout::Qp> {
    // SAFETY: one of ours, or null.
    let inner = unsafe { context::of(context) }?;
    let kind = kind_of(attr.qp_type)?;
    let target = kind == QpType::XrcTarget;
    let mut uses = Vec::new();
    let domain = match (target, extra.xrcd) {
        (true, Some(xrcd)) => {
            // SAFETY: one of ours, or null.
            uses.push(Arc::clone(&unsafe { xrcd_of(xrcd) }?.uses));
            inner.port.new_domain()
        }
        (true, None) => return Err(INVALID),
        (false, _) => {
            // SAFETY: one of ours, or null.
            let pd = unsafe { pd_of(pd) }?;
            uses.push(Arc::clone(&pd.uses));
            pd.domain
        }
    };
    let receives = matches!(kind, QpType::Rc | QpType::Uc | QpType::Ud);
    let mut cap = attr.cap;
    if target {
        (cap.max_send_wr, cap.max_send_sge, cap.max_inline_data) = (0, 0, 0);
    } else {
        cap.max_inline_data = cap.max_inline_data.max(INLINE_MIN);
    }
    if !receives || !attr.srq.is_null() {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let fits = cap.max_send_wr <= QpLimits::WR_MAX
        && cap.max_recv_wr <= QpLimits::WR_MAX
        && cap.max_send_sge <= QpLimits::SGE_MAX
        && cap.max_recv_sge <= QpLimits::SGE_MAX
        && cap.max_inline_data <= QpLimits::INLINE_MAX;
    if !fits {
        return Err(INVALID);
    }
    let unused =
        || inner.port.create_cq(&adverb_device::CqConfig { capacity: 1, ..Default::default() });
    let (send_cq, recv_cq) = match kind {
        QpType::XrcTarget => {
            let cq = unused();
            ((*cq).clone(), (*cq).clone())
        }
        QpType::Rc | QpType::Uc | QpType::Ud | QpType::XrcInitiator => {
            // SAFETY: one of ours, or null.
            let send = unsafe { cq_of(attr.send_cq) }?;
            let recv = match kind {
                QpType::XrcInitiator => send,
                QpType::Rc | QpType::Uc | QpType::Ud | QpType::XrcTarget => {
                    // SAFETY: one of ours, or null.
                    unsafe { cq_of(attr.recv_cq) }?
                }
            };
            uses.extend([Arc::clone(&send.uses), Arc::clone(&recv.uses)]);
            let queue = |cq: &crate::cq::Cq| Some((**cq.cq.as_ref()?).clone());
            (queue(send).ok_or(INVALID)?, queue(recv).ok_or(INVALID)?)
        }
    };
    let srq = match receives && !attr.srq.is_null() {
        true => {
            // SAFETY: one of ours.
            let srq = unsafe { srq_of(attr.srq) }?;
            uses.push(Arc::clone(&srq.uses));
            srq.srq.clone()
        }
        false => None,
    };
    let xrcd = match (target, extra.xrcd) {
        // SAFETY: one of ours, or null.
        (true, Some(xrcd)) => Some(unsafe { xrcd_of(xrcd) }?.xrcd.clone()),
        _ => None,
    };
    let used = match kind {
        QpType::XrcTarget => {
            [extra.xrcd.map_or(null_mut(), <*mut _>::cast), null_mut(), null_mut(), null_mut()]
        }
        QpType::XrcInitiator => [pd.cast(), attr.send_cq.cast(), null_mut(), null_mut()],
        QpType::Rc | QpType::Uc | QpType::Ud => {
            [pd.cast(), attr.send_cq.cast(), attr.recv_cq.cast(), attr.srq.cast()]
        }
    };
    // SAFETY: of ours, or null.
    unsafe { context::own_all(context, used) }?;
    let mut c = layout::QpEx::zeroed();
    c.qp_base.context = context;
    c.qp_base.qp_context = attr.qp_context;
    // A target has no use for a protection domain; librdmacm reads here the one that it has given all the same.
    c.qp_base.pd = pd;
    if !target {
        (c.qp_base.send_cq, c.qp_base.recv_cq) = (attr.send_cq, attr.recv_cq);
        c.qp_base.srq = attr.srq;
    }
    c.qp_base.qp_type = attr.qp_type;
    if extra.is_extended {
        work::fill(&mut c);
    }
    let signal_all = attr.sq_sig_all != 0;
    let made = Qp::give(
        c,
        QpInner {
            qp: None,
            opened: Opened::No,
            events: AtomicU32::new(0),
            kind,
            cap,
            signal_all,
            cqs: vec![send_cq.clone(), recv_cq.clone()],
            _of: uses,
            builder: UnsafeCell::new(Builder::default()),
            is_extended: extra.is_extended,
            groups: Mutex::new(BTreeSet::new()),
        },
    );
    let created = inner.port.create_qp(&QpConfig {
        domain,
        kind,
        send_cq,
        recv_cq,
        srq,
        xrcd,
        events: Some(Arc::clone(&inner.events)),
        context: name_of(made),
        cap: QpCap {
            max_send_wr: cap.max_send_wr.max(1),
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge.max(1),
            max_recv_sge: cap.max_recv_sge.max(1),
            max_inline: cap.max_inline_data,
        },
        signal_all,
        block_self_multicast: extra.block_self_multicast,
    });
    let qp = match created {
        Ok(qp) => qp,
        Err(error) => {
            // SAFETY: not shared yet.
            drop(unsafe { Qp::take(made) });
            return Err(error.into());
        }
    };
    let qp = Arc::new(qp);
    if let (true, Some(xrcd)) = (target, extra.xrcd) {
        // SAFETY: one of ours, or null.
        inner.port.share_target(&unsafe { xrcd_of(xrcd) }?.xrcd, &qp, serve);
    }
    attr.cap = cap;
    Ok(name_it(made, qp.number(), Some(qp), Opened::No))
}

/// Makes a queue pair that was made for a program its own.
fn name_it(
    made: *mut layout::QpEx,
    number: Qpn,
    qp: Option<Arc<adverb_device::Qp>>,
    opened: Opened,
) -> *mut layout::Qp {
    // SAFETY: just made, and not shared yet.
    let whole = unsafe { Qp::of_mut(made) };
    let base = whole.c().cast::<layout::Qp>();
    // SAFETY: fields of it.
    unsafe { (&raw mut (*base).qp_num).write(number.get()) };
    // SAFETY: as above.
    unsafe { (&raw mut (*base).handle).write(number.get()) };
    let ours = whole.ours_mut();
    (ours.qp, ours.opened) = (qp, opened);
    base
}

export! {
    pointer "IBVERBS_1.1"
    fn ibv_create_qp(pd: *mut layout::Pd, attr: Option<&mut layout::QpInitAttr>) -> *mut layout::Qp,
    of pd {
        if pd.is_null() {
            return Err(INVALID);
        }
        // SAFETY: one of ours.
        let context = unsafe { (*pd).context };
        create(context, pd, attr.ok_or(INVALID)?, &Extra::default())
    }
}

entry! {
    pointer
    fn create_qp_ex(
        context: *mut layout::Context,
        attr: *mut layout::QpInitAttrEx,
    ) -> *mut layout::Qp {
        // SAFETY: the program's structure, or null.
        let attr = unsafe { attr.as_mut() }.ok_or(INVALID)?;
        let given = |mask| attr.comp_mask & mask != 0;
        let known = value::QP_INIT_ATTR_PD
            | value::QP_INIT_ATTR_XRCD
            | value::QP_INIT_ATTR_CREATE_FLAGS
            | value::QP_INIT_ATTR_SEND_OPS_FLAGS;
        if given(!known) {
            return Err(UNSUPPORTED);
        }
        let flags = if given(value::QP_INIT_ATTR_CREATE_FLAGS) { attr.create_flags } else { 0 };
        if flags & !value::QP_CREATE_BLOCK_SELF_MCAST_LB != 0 {
            return Err(UNSUPPORTED);
        }
        let extra = Extra {
            xrcd: given(value::QP_INIT_ATTR_XRCD).then_some(attr.xrcd),
            block_self_multicast: flags != 0,
            is_extended: given(value::QP_INIT_ATTR_SEND_OPS_FLAGS),
        };
        if extra.is_extended && !work::supports(kind_of(attr.qp_type)?, attr.send_ops_flags) {
            return Err(UNSUPPORTED);
        }
        let pd = if given(value::QP_INIT_ATTR_PD) { attr.pd } else { null_mut() };
        let mut plain = layout::QpInitAttr {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
        };
        let made = create(context, pd, &mut plain, &extra)?;
        attr.cap = plain.cap;
        Ok(made)
    }
}

entry! {
    pointer
    fn open_qp(context: *mut layout::Context, attr: *mut layout::QpOpenAttr) -> *mut layout::Qp {
        // SAFETY: one of ours, or null.
        let inner = unsafe { context::of(context) }?;
        // SAFETY: the program's structure, or null.
        let attr = unsafe { attr.as_ref() }.ok_or(INVALID)?;
        let needed = value::QP_OPEN_ATTR_NUM | value::QP_OPEN_ATTR_XRCD | value::QP_OPEN_ATTR_TYPE;
        if attr.comp_mask & !value::QP_OPEN_ATTR_CONTEXT != needed
            || attr.qp_type != value::QPT_XRC_RECV
        {
            return Err(INVALID);
        }
        // SAFETY: one of ours, or null.
        let domain = unsafe { xrcd_of(attr.xrcd) }?;
        // SAFETY: one of ours.
        unsafe { context::own_all(context, [attr.xrcd.cast()]) }?;
        let mut c = layout::QpEx::zeroed();
        c.qp_base.context = context;
        if attr.comp_mask & value::QP_OPEN_ATTR_CONTEXT != 0 {
            c.qp_base.qp_context = attr.qp_context;
        }
        c.qp_base.qp_type = attr.qp_type;
        let none = layout::QpCap::default();
        let made = Qp::give(
            c,
            QpInner {
                qp: None,
                opened: Opened::No,
                events: AtomicU32::new(0),
                kind: QpType::XrcTarget,
                cap: none,
                signal_all: false,
                cqs: Vec::new(),
                _of: vec![Arc::clone(&domain.uses)],
                builder: UnsafeCell::new(Builder::default()),
                is_extended: false,
                groups: Mutex::new(BTreeSet::new()),
            },
        );
        let number = Qpn::new(attr.qp_num);
        let opened = inner.port.open_target(&domain.xrcd, number, &inner.events, name_of(made));
        let (state, qp, opened) = match opened {
            Ok(OpenTarget::Here { target, listener }) => {
                let state = state_for_c(target.state());
                (state, Some(target), Opened::Here { _listener: listener })
            }
            Ok(OpenTarget::There(target)) => {
                let target = Box::new(Remote::new(target));
                let (found, _) = target.ask(0, &layout::QpAttr::zeroed());
                (found.qp_state, None, Opened::There(target))
            }
            Err(error) => {
                // SAFETY: not shared yet.
                drop(unsafe { Qp::take(made) });
                let is_unknown = error.kind() == io::ErrorKind::NotFound;
                return Err(if is_unknown { INVALID } else { error.into() });
            }
        };
        let qp = name_it(made, number, qp, opened);
        show_state(qp, state);
        Ok(qp)
    }
}

export! {
    pointer "IBVERBS_1.6"
    fn ibv_qp_to_qp_ex(qp: *mut layout::Qp) -> *mut layout::QpEx, of qp {
        // SAFETY: one of ours, or null.
        let inner = unsafe { qp_of(qp) }?;
        if inner.is_extended { Ok(qp.cast()) } else { Err(INVALID) }
    }
}

fn state_of(code: c_int) -> Answer<QpState> {
    let state = usize::try_from(code).ok().and_then(|at| QpState::ALL.get(at));
    state.copied().ok_or(INVALID)
}

/// What can be changed here.
const KNOWN: c_int = value::QP_STATE
    | value::QP_CUR_STATE
    | value::QP_EN_SQD_ASYNC_NOTIFY
    | value::QP_ACCESS_FLAGS
    | value::QP_PKEY_INDEX
    | value::QP_PORT
    | value::QP_QKEY
    | value::QP_AV
    | value::QP_PATH_MTU
    | value::QP_TIMEOUT
    | value::QP_RETRY_CNT
    | value::QP_RNR_RETRY
    | value::QP_RQ_PSN
    | value::QP_MAX_QP_RD_ATOMIC
    | value::QP_MIN_RNR_TIMER
    | value::QP_SQ_PSN
    | value::QP_MAX_DEST_RD_ATOMIC
    | value::QP_PATH_MIG_STATE
    | value::QP_DEST_QPN;

/// Attributes that programs give to queue pairs of this type as to RC ones, and that mean nothing there.
fn meaningless(kind: QpType) -> c_int {
    match kind {
        QpType::XrcInitiator => value::QP_MIN_RNR_TIMER | value::QP_MAX_DEST_RD_ATOMIC,
        QpType::XrcTarget => value::QP_RETRY_CNT | value::QP_RNR_RETRY | value::QP_MAX_QP_RD_ATOMIC,
        QpType::Rc | QpType::Uc | QpType::Ud => 0,
    }
}

/// Attributes that mean nothing here and that the kernel takes on some ways alone: a state of migration where connected queue
/// pairs send or are about to, the state that a queue pair is believed to be in on no way to SQD.
fn refused(kind: QpType, from: QpState, to: QpState) -> c_int {
    let migration = match (from, to) {
        (QpState::Rtr | QpState::Rts | QpState::Sqd, QpState::Rts)
        | (QpState::Sqd, QpState::Sqd)
            if kind != QpType::Ud =>
        {
            0
        }
        _ => value::QP_PATH_MIG_STATE,
    };
    let believed = if to == QpState::Sqd { value::QP_CUR_STATE } else { 0 };
    migration | believed
}

/// A queue pair has migrated: the only state of migration without alternate paths.
const MIGRATED: c_int = 0;

fn change(attr: &layout::QpAttr, mask: c_int) -> Answer<Change> {
    let given = |flag| mask & flag != 0;
    if mask & !KNOWN != 0 || given(value::QP_PATH_MIG_STATE) && attr.path_mig_state != MIGRATED {
        return Err(INVALID);
    }
    let way = if given(value::QP_AV) { Some(way(&attr.ah_attr)?) } else { None };
    macro_rules! some {
        ($flag:ident, $made:expr) => {
            if given(value::$flag) { Some($made) } else { None }
        };
    }
    let mtu = u8::try_from(attr.path_mtu).ok().and_then(PathMtu::from_code);
    let attributes = Attributes {
        current: some!(QP_CUR_STATE, state_of(attr.cur_qp_state)?),
        window_packets: None,
        window_first: None,
        partition: some!(QP_PKEY_INDEX, Partition { index: attr.pkey_index, ..Partition::DEFAULT }),
        port: some!(QP_PORT, attr.port_num),
        access: some!(QP_ACCESS_FLAGS, Access::from_bits(attr.qp_access_flags).transport()),
        qkey: some!(QP_QKEY, Qkey(attr.qkey)),
        remote_gid: way.map(|way| way.gid),
        remote: some!(QP_DEST_QPN, Qpn::new(attr.dest_qp_num)),
        path_mtu: some!(QP_PATH_MTU, mtu.ok_or(INVALID)?),
        expected_psn: some!(QP_RQ_PSN, Psn::new(attr.rq_psn)),
        max_dest_rd_atomic: some!(QP_MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic),
        min_rnr_timer: some!(QP_MIN_RNR_TIMER, RnrTimer::new(attr.min_rnr_timer)),
        first_psn: some!(QP_SQ_PSN, Psn::new(attr.sq_psn)),
        timeout: some!(QP_TIMEOUT, AckTimeout::from_exponent(attr.timeout).map_err(|_| INVALID)?),
        retry_count: some!(QP_RETRY_CNT, RetryCount::new(attr.retry_cnt).ok_or(INVALID)?),
        rnr_retry: some!(QP_RNR_RETRY, RnrRetry::new(attr.rnr_retry).ok_or(INVALID)?),
        max_rd_atomic: some!(QP_MAX_QP_RD_ATOMIC, attr.max_rd_atomic),
        notify_drained: some!(QP_EN_SQD_ASYNC_NOTIFY, attr.en_sqd_async_notify != 0),
    };
    let (gid_index, marks) =
        way.map_or_else(Default::default, |way| (attr.ah_attr.grh.sgid_index, way.marks()));
    Ok(Change { attributes, gid_index, marks })
}

export! {
    code "IBVERBS_1.1"
    fn ibv_modify_qp(qp: *mut layout::Qp, attr: Option<&layout::QpAttr>, mask: c_int) -> c_int, of qp {
        // SAFETY: one of ours, or null.
        let inner = unsafe { qp_of(qp) }?;
        let attr = attr.ok_or(INVALID)?;
        if let Opened::There(target) = &inner.opened {
            let (found, modified) = target.ask(mask, attr);
            show_state(qp, found.qp_state);
            return modified;
        }
        let pair = inner.qp.as_ref().ok_or(INVALID)?;
        let modified = modify(pair, inner.kind, attr, mask);
        show_state(qp, state_for_c(pair.state()));
        if modified? == QpState::Reset {
            inner.cqs.iter().for_each(|cq| cq.forget(pair.number()));
        }
        Ok(())
    }
}

/// Does what another process asks of a target that it has opened.
fn serve(target: &adverb_device::Qp, request: &[u8]) -> Vec<u8> {
    let changed = match message::parse(request) {
        None => Err(INVALID),
        Some((0, _)) => Ok(()),
        Some((mask, attr)) => modify(target, QpType::XrcTarget, &attr, mask).map(drop),
    };
    opened::answer(changed, &query(target))
}

/// Changes what the mask says; the state that it was to go to.
fn modify(
    pair: &adverb_device::Qp,
    kind: QpType,
    attr: &layout::QpAttr,
    mask: c_int,
) -> Answer<QpState> {
    let to = match mask & value::QP_STATE {
        0 => pair.state(),
        _ => state_of(attr.qp_state)?,
    };
    if mask & refused(kind, pair.state(), to) != 0 {
        return Err(INVALID);
    }
    pair.modify(to, &change(attr, mask & !meaningless(kind))?, |_, _| {})?;
    Ok(to)
}

/// Writes down the state where the program can see it.
fn show_state(qp: *mut layout::Qp, state: c_int) {
    // SAFETY: a field of a queue pair that lives (rule 3 of `boxed.rs`).
    unsafe { (&raw mut (*qp).state).write(state) };
}

/// What it is set to now, but for its capacity.
fn query(pair: &adverb_device::Qp) -> layout::QpAttr {
    let QpQuery { state, draining, gid_index, marks, settings } = pair.query();
    let remote = pair.remote();
    let gid = remote.map_or(Gid([0; 16]), |(gid, _)| gid);
    let mut attr = layout::QpAttr::zeroed();
    attr.qp_state = state_for_c(state);
    attr.cur_qp_state = attr.qp_state;
    attr.path_mtu = settings.path_mtu.code().into();
    attr.path_mig_state = MIGRATED;
    attr.qkey = settings.qkey.0;
    attr.rq_psn = settings.expected_psn.get();
    attr.sq_psn = settings.first_psn.get();
    attr.dest_qp_num = remote.map_or(0, |(_, qpn)| qpn.get());
    attr.qp_access_flags = settings.access.bits();
    if remote.is_some() {
        attr.ah_attr = way_for_c(&AhAttr::new(gid).gid_index(gid_index).marked(marks));
    }
    attr.pkey_index = settings.partition.index;
    attr.en_sqd_async_notify = settings.notify_drained.into();
    attr.sq_draining = draining.into();
    attr.max_rd_atomic = settings.max_rd_atomic;
    attr.max_dest_rd_atomic = settings.max_dest_rd_atomic;
    attr.min_rnr_timer = settings.min_rnr_timer.code();
    attr.port_num = settings.port;
    attr.timeout = settings.timeout.exponent();
    attr.retry_cnt = settings.retry_count.get();
    attr.rnr_retry = settings.rnr_retry.get();
    attr
}

export! {
    code "IBVERBS_1.1"
    fn ibv_query_qp(
        qp: *mut layout::Qp,
        attr: Option<&mut std::mem::MaybeUninit<layout::QpAttr>>,
        mask: c_int,
        init: Option<&mut std::mem::MaybeUninit<layout::QpInitAttr>>,
    ) -> c_int, of qp {
        let _ = mask;
        // SAFETY: one of ours, or null.
        let inner = unsafe { qp_of(qp) }?;
        let mut found = match &inner.opened {
            Opened::There(target) => target.ask(0, &layout::QpAttr::zeroed()).0,
            Opened::No | Opened::Here { .. } => query(inner.qp.as_ref().ok_or(INVALID)?),
        };
        found.cap = inner.cap;
        attr.ok_or(INVALID)?.write(found);
        // SAFETY: fields of a queue pair that lives.
        let init_attr = unsafe {
            layout::QpInitAttr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap: inner.cap,
                qp_type: (*qp).qp_type,
                sq_sig_all: inner.signal_all.into(),
            }
        };
        init.ok_or(INVALID)?.write(init_attr);
        show_state(qp, found.qp_state);
        Ok(())
    }
}

export! {
    value "IBVERBS_1.14"
    fn ibv_query_qp_data_in_order(qp: *mut layout::Qp, operation: c_int, flags: u32) -> c_int, of qp {
        let _ = (qp, operation, flags);
        Ok(0)
    }
}

export! {
    code "IBVERBS_1.1"
    fn ibv_destroy_qp(qp: *mut layout::Qp) -> c_int, of qp {
        // SAFETY: one of ours, or null.
        if !unsafe { qp_of(qp) }?.groups.lock().is_empty() {
            return Err(BUSY);
        }
        // SAFETY: the program does not use it any more.
        let whole = unsafe { Qp::of_mut(qp.cast()) };
        let ours = whole.ours_mut();
        ours.opened = Opened::No;
        if let Some(pair) = ours.qp.take() {
            let number = pair.number();
            drop(pair);
            whole.cqs.iter().for_each(|cq| cq.forget(number));
        }
        let taken = whole.events.load(Ordering::Acquire);
        // SAFETY: fields of a queue pair that lives.
        let (mutex, cond, done) = unsafe {
            (&raw mut (*qp).mutex, &raw mut (*qp).cond, &raw const (*qp).events_completed)
        };
        wait_acknowledged(mutex, cond, &[(done, taken)]);
        // SAFETY: nothing uses it any more.
        drop(unsafe { Qp::take(qp.cast()) });
        Ok(())
    }
}

export! {
    code "IBVERBS_1.1"
    fn ibv_attach_mcast(qp: *mut layout::Qp, gid: Option<&[u8; 16]>, lid: u16) -> c_int, of qp {
        let _ = lid;
        // SAFETY: one of ours, or null.
        let inner = unsafe { qp_of(qp) }?;
        let (pair, group) = (inner.qp.as_ref().ok_or(INVALID)?, group(*gid.ok_or(INVALID)?));
        if inner.kind != QpType::Ud {
            return Err(INVALID);
        }
        let mut groups = inner.groups.lock();
        pair.attach(group)?;
        groups.insert(group);
        Ok(())
    }
}

export! {
    code "IBVERBS_1.1"
    fn ibv_detach_mcast(qp: *mut layout::Qp, gid: Option<&[u8; 16]>, lid: u16) -> c_int, of qp {
        let _ = lid;
        // SAFETY: one of ours, or null.
        let inner = unsafe { qp_of(qp) }?;
        let (pair, group) = (inner.qp.as_ref().ok_or(INVALID)?, group(*gid.ok_or(INVALID)?));
        let mut groups = inner.groups.lock();
        pair.detach(group)?;
        groups.remove(&group);
        Ok(())
    }
}
