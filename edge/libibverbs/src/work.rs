//! Posting by `ibv_wr_start`, `ibv_wr_*` and `ibv_wr_complete`: requests are put together one after another, and
//! posted at once.
//!
//! # Safety
//!
//! 1. As in `export.rs` and `boxed.rs`.
//! 2. What is put together belongs to the thread that called `ibv_wr_start`, until it calls `ibv_wr_complete` or
//!    `ibv_wr_abort`: it holds a lock meanwhile.
//! 3. Pieces are copied when they are given, and inline bytes, too. Address handles live until the requests are posted.

use crate::ah::ah_of;
use crate::boxed::Boxed;
use crate::errno::{Answer, Errno, INVALID};
use crate::export::{caught, style};
use crate::post::binding;
use crate::qp::QpInner;
use adverb_device::{
    Bind, Feth, Imm, Qkey, QpType, Qpn, Rkey, SendData, SendKind, SendTo, SendWork, Sge,
};
use adverb_ibv::layout::{self, DataBuf, MwBindInfo, QpEx, value};
use libc::{c_int, c_uint, c_void, pthread_mutex_t};
use std::cell::UnsafeCell;
use std::ops::Range;

/// Requests that are being put together.
pub(crate) struct Builder {
    lock: UnsafeCell<pthread_mutex_t>,
    requests: Vec<Request>,
    sges: Vec<Sge>,
    bytes: Vec<u8>,
    mistake: Option<Errno>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            requests: Vec::new(),
            sges: Vec::new(),
            bytes: Vec::new(),
            mistake: None,
        }
    }
}

/// Where the bytes of a request are.
enum Local {
    Gather(Range<usize>),
    Inline(Range<usize>),
    Bind(Bind),
}

/// Recipient of a request.
enum Recipient {
    Peer,
    Datagram { ah: *mut layout::Ah, remote: Qpn, qkey: Qkey },
    SharedQueue(u32),
}

struct Request {
    wr_id: u64,
    flags: c_uint,
    kind: SendKind,
    local: Local,
    recipient: Recipient,
}

impl Builder {
    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.bytes.clear();
        self.mistake = None;
    }
}

type Qp = Boxed<QpEx, QpInner>;

/// The requests of a queue pair, for the thread that is putting them together.
fn builder<'a>(qp: *mut QpEx) -> &'a mut Builder {
    // SAFETY: one of ours.
    let inner = unsafe { Qp::of(qp) };
    // SAFETY: rule 2.
    unsafe { &mut *inner.builder.get() }
}

/// What queue pairs of this type can be asked for.
pub(crate) fn supports(kind: QpType, operations: u64) -> bool {
    let sends = value::QP_EX_WITH_SEND | value::QP_EX_WITH_SEND_WITH_IMM;
    let writes = value::QP_EX_WITH_RDMA_WRITE | value::QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let keys =
        value::QP_EX_WITH_SEND_WITH_INV | value::QP_EX_WITH_LOCAL_INV | value::QP_EX_WITH_BIND_MW;
    let reliable = value::QP_EX_WITH_RDMA_READ
        | value::QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | value::QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | value::QP_EX_WITH_ATOMIC_WRITE
        | value::QP_EX_WITH_FLUSH;
    let known = match kind {
        QpType::Ud => sends,
        QpType::Uc => sends | writes | keys,
        QpType::Rc | QpType::XrcInitiator => sends | writes | keys | reliable,
        QpType::XrcTarget => 0,
    };
    operations & !known == 0
}

/// Fills in the functions.
pub(crate) fn fill(qp: &mut QpEx) {
    qp.wr_atomic_cmp_swp = Some(cmp_swp);
    qp.wr_atomic_fetch_add = Some(fetch_add);
    qp.wr_bind_mw = Some(bind);
    qp.wr_local_inv = Some(local_inv);
    qp.wr_rdma_read = Some(read);
    qp.wr_rdma_write = Some(write);
    qp.wr_rdma_write_imm = Some(write_imm);
    qp.wr_send = Some(send);
    qp.wr_send_imm = Some(send_imm);
    qp.wr_send_inv = Some(send_inv);
    qp.wr_set_ud_addr = Some(set_ud_addr);
    qp.wr_set_xrc_srqn = Some(set_xrc_srqn);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
    qp.wr_atomic_write = Some(atomic_write);
    qp.wr_flush = Some(flush);
}

unsafe extern "C" fn start(qp: *mut QpEx) {
    // SAFETY: one of ours.
    let inner = unsafe { Qp::of(qp) };
    // SAFETY: a field of it, by its address alone: another thread may have the rest.
    let lock = unsafe { &raw const (*inner.builder.get()).lock };
    // SAFETY: a mutex that lives as long as the queue pair.
    unsafe { libc::pthread_mutex_lock(UnsafeCell::raw_get(lock)) };
    let _ = cleared(builder(qp));
}

fn cleared(builder: &mut Builder) -> Answer<()> {
    caught(|| {
        builder.clear();
        Ok(())
    })
}

fn unlock(builder: &Builder) {
    // SAFETY: locked by `start`.
    unsafe { libc::pthread_mutex_unlock(builder.lock.get()) };
}

unsafe extern "C" fn abort(qp: *mut QpEx) {
    let builder = builder(qp);
    let _ = cleared(builder);
    unlock(builder);
}

unsafe extern "C" fn complete(qp: *mut QpEx) -> c_int {
    let builder = builder(qp);
    let posted = caught(|| {
        // SAFETY: one of ours.
        post(unsafe { Qp::checked(qp) }?, builder)
    });
    let cleared = cleared(builder);
    unlock(builder);
    style!(code, posted.and(cleared))
}

/// Requests that need no memory to go to the device.
const BATCH: usize = 16;

fn post(inner: &QpInner, builder: &Builder) -> Answer<()> {
    if let Some(error) = builder.mistake {
        return Err(error);
    }
    let pair = inner.qp.as_ref().ok_or(INVALID)?;
    let requests = &builder.requests;
    let mut few = [SendWork::EMPTY; BATCH];
    let mut many = Vec::new();
    let batch = match few.get_mut(..requests.len()) {
        Some(batch) => batch,
        None => {
            many.resize(requests.len(), SendWork::EMPTY);
            many.as_mut_slice()
        }
    };
    for (place, request) in batch.iter_mut().zip(requests) {
        *place = request.work(builder)?;
    }
    Ok(pair.post_send_all(batch).map_err(|(_, error)| error)?)
}

impl Request {
    fn work<'a>(&'a self, builder: &'a Builder) -> Answer<SendWork<'a>> {
        let flag = |flag: c_uint| self.flags & flag != 0;
        Ok(SendWork {
            wr_id: self.wr_id,
            to: match self.recipient {
                Recipient::Peer => SendTo::Peer,
                Recipient::Datagram { ah, remote, qkey } => {
                    // SAFETY: one of ours, or null; it lives (rule 3).
                    let ah = unsafe { ah_of(ah) }?;
                    SendTo::Datagram { ah: &ah.ah, remote, qkey }
                }
                Recipient::SharedQueue(number) => SendTo::SharedQueue(number),
            },
            kind: self.kind,
            data: match &self.local {
                Local::Gather(range) => {
                    SendData::Gather(builder.sges.get(range.clone()).unwrap_or_default())
                }
                Local::Inline(range) => {
                    SendData::Inline(builder.bytes.get(range.clone()).unwrap_or_default())
                }
                Local::Bind(bind) => SendData::Bind(bind),
            },
            signaled: flag(value::SEND_SIGNALED),
            solicited: flag(value::SEND_SOLICITED),
            fence: flag(value::SEND_FENCE),
            buffer: None,
        })
    }
}

/// Takes one step of putting requests together. If it fails, the requests are not posted, and `complete` says why.
fn step(qp: *mut QpEx, step: impl FnOnce() -> Answer<()>) {
    if let Err(error) = caught(step) {
        let builder = builder(qp);
        builder.mistake = builder.mistake.or(Some(error));
    }
}

/// Functions that take a step.
macro_rules! steps {
    ($(fn $name:ident($qp:ident $(, $arg:ident: $type:ty)*) $body:expr;)*) => {$(
        unsafe extern "C" fn $name($qp: *mut QpEx $(, $arg: $type)*) {
            step($qp, move || $body)
        }
    )*};
}

steps! {
    fn cmp_swp(qp, rkey: u32, va: u64, compare: u64, swap: u64)
        begin(qp, SendKind::CompareSwap { va, rkey: Rkey(rkey), compare, swap });
    fn fetch_add(qp, rkey: u32, va: u64, add: u64)
        begin(qp, SendKind::FetchAdd { va, rkey: Rkey(rkey), add });
    fn local_inv(qp, rkey: u32) begin(qp, SendKind::LocalInvalidate { rkey: Rkey(rkey) });
    fn read(qp, rkey: u32, va: u64) begin(qp, SendKind::Read { va, rkey: Rkey(rkey) });
    fn write(qp, rkey: u32, va: u64) begin(qp, SendKind::Write { va, rkey: Rkey(rkey), imm: None });
    fn write_imm(qp, rkey: u32, va: u64, imm: u32)
        begin(qp, SendKind::Write { va, rkey: Rkey(rkey), imm: Some(Imm(u32::from_be(imm))) });
    fn send(qp) begin(qp, SendKind::Send { imm: None });
    fn send_imm(qp, imm: u32) begin(qp, SendKind::Send { imm: Some(Imm(u32::from_be(imm))) });
    fn send_inv(qp, rkey: u32) begin(qp, SendKind::SendInvalidate { rkey: Rkey(rkey) });
    fn atomic_write(qp, rkey: u32, va: u64, from: *const c_void) {
        begin(qp, SendKind::AtomicWrite { va, rkey: Rkey(rkey) })?;
        if from.is_null() {
            return Err(INVALID);
        }
        inline(qp, [(from, 8)])
    };
    fn flush(qp, rkey: u32, va: u64, len: usize, placement: u8, selectivity: u8) {
        let len = u32::try_from(len).map_err(|_| INVALID)?;
        let how = Feth { placement, selectivity };
        begin(qp, SendKind::Flush { va, rkey: Rkey(rkey), len, how })
    };
    fn bind(qp, mw: *mut layout::Mw, rkey: u32, info: *const MwBindInfo) {
        begin(qp, SendKind::BindWindow)?;
        // SAFETY: the program's structure, or null.
        let info = unsafe { info.as_ref() }.ok_or(INVALID)?;
        let bound = binding(mw, info, Some(rkey))?;
        last(qp)?.local = Local::Bind(bound);
        Ok(())
    };
    fn set_ud_addr(qp, ah: *mut layout::Ah, remote: u32, qkey: u32) {
        last(qp)?.recipient = Recipient::Datagram { ah, remote: Qpn::new(remote), qkey: Qkey(qkey) };
        Ok(())
    };
    fn set_xrc_srqn(qp, number: u32) {
        last(qp)?.recipient = Recipient::SharedQueue(number);
        Ok(())
    };
    fn set_inline_data(qp, from: *mut c_void, len: usize) inline(qp, [(from.cast_const(), len)]);
    fn set_inline_data_list(qp, count: usize, list: *const DataBuf) {
        // SAFETY: one of ours. A part has a byte: a list that claims to be longer is not looked at.
        if count > unsafe { Qp::of(qp) }.max_inline() {
            return Err(Errno(libc::ENOMEM));
        }
        // SAFETY: the program's list.
        let list = unsafe { listed(list, count) };
        inline(qp, list.iter().map(|part| (part.addr.cast_const(), part.length)))
    };
    fn set_sge(qp, lkey: u32, addr: u64, len: u32) gather(qp, [Sge { addr, len, lkey }]);
    fn set_sge_list(qp, count: usize, list: *const layout::Sge) {
        // SAFETY: one of ours. A list that claims to be longer is not looked at.
        if count > unsafe { Qp::of(qp) }.max_send_sge() {
            return Err(INVALID);
        }
        // SAFETY: the program's list.
        let list = unsafe { listed(list, count) };
        gather(qp, list.iter().map(|sge| Sge { addr: sge.addr, len: sge.length, lkey: sge.lkey }))
    };
}

/// Begins a request, with the number and the flags that the program has set.
fn begin(qp: *mut QpEx, kind: SendKind) -> Answer<()> {
    // SAFETY: fields of a queue pair that lives.
    let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    let local = Local::Gather(0..0);
    builder(qp).requests.push(Request { wr_id, flags, kind, local, recipient: Recipient::Peer });
    Ok(())
}

/// A list of a program's; none is empty.
///
/// # Safety
///
/// It has as many, and those are not more than a request takes.
unsafe fn listed<'a, T>(list: *const T, count: usize) -> &'a [T] {
    if list.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(list, count) }
}

/// The request that was begun last.
fn last<'a>(qp: *mut QpEx) -> Answer<&'a mut Request> {
    builder(qp).requests.last_mut().ok_or(INVALID)
}

/// The bytes of the last request, by where the program has them.
fn inline(qp: *mut QpEx, parts: impl IntoIterator<Item = (*const c_void, usize)>) -> Answer<()> {
    // SAFETY: one of ours.
    let most = unsafe { Qp::of(qp) }.max_inline();
    let builder = builder(qp);
    let start = builder.bytes.len();
    for (from, len) in parts.into_iter().filter(|(from, len)| !from.is_null() && *len > 0) {
        if len > most - (builder.bytes.len() - start) {
            return Err(Errno(libc::ENOMEM));
        }
        // SAFETY: the program's bytes, no more than a request carries.
        builder.bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from.cast(), len) });
    }
    last(qp)?.local = Local::Inline(start..builder.bytes.len());
    Ok(())
}

/// The pieces of the last request.
fn gather(qp: *mut QpEx, pieces: impl IntoIterator<Item = Sge>) -> Answer<()> {
    let builder = builder(qp);
    let start = builder.sges.len();
    builder.sges.extend(pieces);
    last(qp)?.local = Local::Gather(start..builder.sges.len());
    Ok(())
}
