//! Posting, as `ibv_post_send` and its siblings do it: lists of requests become batches of the device.
//!
//! # Safety
//!
//! 1. As in `export.rs` and `boxed.rs`: lists, their pieces and inline bytes are the program's, for the length of a
//!    call.
//! 2. A piece is laid out in the same way here and there.
//! 3. What pieces name is checked by the device against its table of regions.

use crate::ah::ah_of;
use crate::boxed::Boxed;
use crate::errno::{Answer, Errno, INVALID};
use crate::export::{caught, entry, style};
use crate::memory::{Mw, mr_of};
use crate::qp::{QpInner, qp_of};
use crate::srq::srq_of;
use adverb_device::{
    Access, Bind, BindTo, Imm, Key, PostError, Qkey, QpLimits, Qpn, ReceiveWork, Rkey, SendData,
    SendKind, SendTo, SendWork, Sge, WindowKind,
};
use adverb_ibv::layout::{self, RecvWr, SendWr, value};
use libc::{c_int, c_uint};
use std::mem::offset_of;

/// Rule 2.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<layout::Sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(layout::Sge, addr));
    assert!(offset_of!(Sge, len) == offset_of!(layout::Sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(layout::Sge, lkey));
};

/// Requests that go to the device together.
const BATCH: usize = 16;
const INLINE_MAX: usize = 4096;
const _: () = assert!(QpLimits::INLINE_MAX == 4096);

/// The pieces of a request.
///
/// # Safety
///
/// Rule 1.
unsafe fn pieces<'a>(list: *const layout::Sge, count: c_int) -> Answer<&'a [Sge]> {
    let count = usize::try_from(count).map_err(|_| INVALID)?;
    if count == 0 {
        return Ok(&[]);
    }
    if list.is_null() {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise; rule 2.
    Ok(unsafe { std::slice::from_raw_parts(list.cast::<Sge>(), count) })
}

/// Inline bytes.
///
/// # Safety
///
/// They are the program's, for the length of the call.
unsafe fn bytes<'a>(sge: &Sge) -> &'a [u8] {
    let start: *const u8 =
        std::ptr::with_exposed_provenance(usize::try_from(sge.addr).unwrap_or(0));
    let len = usize::try_from(sge.len).unwrap_or(0);
    if len == 0 || start.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start, len) }
}

/// Puts inline bytes of several pieces together.
///
/// # Safety
///
/// As for [`bytes`].
unsafe fn gather<'a>(sges: &[Sge], room: &'a mut [u8; INLINE_MAX]) -> Answer<&'a [u8]> {
    let mut len = 0;
    for sge in sges {
        // SAFETY: the caller's promise.
        let part = unsafe { bytes(sge) };
        let place = room.get_mut(len..).and_then(|rest| rest.get_mut(..part.len()));
        place.ok_or(INVALID)?.copy_from_slice(part);
        len += part.len();
    }
    Ok(room.get(..len).unwrap_or_default())
}

/// What a request does.
#[inline(always)]
fn kind(wr: &SendWr) -> Answer<SendKind> {
    let imm = || Some(Imm(u32::from_be(wr.imm_data)));
    // SAFETY: numbers: any bytes are some.
    let rdma = unsafe { wr.wr.rdma };
    let (va, rkey) = (rdma.remote_addr, Rkey(rdma.rkey));
    Ok(match wr.opcode {
        value::WR_SEND => SendKind::Send { imm: None },
        value::WR_SEND_WITH_IMM => SendKind::Send { imm: imm() },
        value::WR_SEND_WITH_INV => SendKind::SendInvalidate { rkey: Rkey(wr.imm_data) },
        value::WR_RDMA_WRITE => SendKind::Write { va, rkey, imm: None },
        value::WR_RDMA_WRITE_WITH_IMM => SendKind::Write { va, rkey, imm: imm() },
        value::WR_RDMA_READ => SendKind::Read { va, rkey },
        value::WR_ATOMIC_WRITE => SendKind::AtomicWrite { va, rkey },
        value::WR_LOCAL_INV => SendKind::LocalInvalidate { rkey: Rkey(wr.imm_data) },
        value::WR_BIND_MW => SendKind::BindWindow,
        value::WR_ATOMIC_CMP_AND_SWP | value::WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: as above.
            let atomic = unsafe { wr.wr.atomic };
            let (va, rkey) = (atomic.remote_addr, Rkey(atomic.rkey));
            match wr.opcode {
                value::WR_ATOMIC_FETCH_AND_ADD => {
                    SendKind::FetchAdd { va, rkey, add: atomic.compare_add }
                }
                _ => {
                    let (compare, swap) = (atomic.compare_add, atomic.swap);
                    SendKind::CompareSwap { va, rkey, compare, swap }
                }
            }
        }
        _ => return Err(INVALID),
    })
}

/// Recipient of a request.
#[inline(always)]
fn to<'a>(qp: *mut layout::Qp, wr: &SendWr) -> Answer<SendTo<'a>> {
    // SAFETY: a field of a queue pair that lives.
    match unsafe { (*qp).qp_type } {
        value::QPT_UD => {
            // SAFETY: what the program has filled in for a datagram.
            let ud = unsafe { wr.wr.ud };
            // SAFETY: one of ours, or null.
            let ah = unsafe { ah_of(ud.ah) }?;
            Ok(SendTo::Datagram {
                ah: &ah.ah,
                remote: Qpn::new(ud.remote_qpn),
                qkey: Qkey(ud.remote_qkey),
            })
        }
        value::QPT_XRC_SEND => Ok(SendTo::SharedQueue(wr.remote_srqn)),
        _ => Ok(SendTo::Peer),
    }
}

/// How a window is to be bound.
pub(crate) fn binding(
    mw: *mut layout::Mw,
    info: &layout::MwBindInfo,
    key: Option<u32>,
) -> Answer<Bind> {
    if mw.is_null() {
        return Err(INVALID);
    }
    // SAFETY: one of ours.
    let window = &unsafe { Mw::of(mw) }.window;
    if info.mr.is_null() || info.length == 0 {
        return Ok(window.unbind()?);
    }
    // SAFETY: one of ours.
    let region = unsafe { mr_of(info.mr) }?.region.as_ref().ok_or(INVALID)?;
    let offset = info.addr.checked_sub(region.addr()).ok_or(INVALID)?;
    // Local writing means nothing to a window, and programs ask for it beside remote writing.
    let asked = info.mw_access_flags & !Access::LOCAL_WRITE.bits();
    let access = Access::from_bits(asked);
    if access.bits() != asked {
        return Err(INVALID);
    }
    let to = BindTo {
        region,
        offset: usize::try_from(offset).map_err(|_| INVALID)?,
        len: usize::try_from(info.length).map_err(|_| INVALID)?,
        access,
    };
    Ok(window.bind(to, key.map(Key))?)
}

/// A request for the device, but for its local bytes.
#[inline(always)]
fn request<'a>(qp: *mut layout::Qp, wr: &SendWr, data: SendData<'a>) -> Answer<SendWork<'a>> {
    let flag = |flag: c_uint| wr.send_flags & flag != 0;
    let (to, kind) = (to(qp, wr)?, kind(wr)?);
    Ok(SendWork {
        wr_id: wr.wr_id,
        to,
        kind,
        data,
        signaled: flag(value::SEND_SIGNALED),
        solicited: flag(value::SEND_SOLICITED),
        fence: flag(value::SEND_FENCE),
        buffer: None,
    })
}

/// One request that the batch has no place for: its bytes have to be put together first, or it binds a window.
#[cold]
fn post_alone(pair: &adverb_device::Qp, qp: *mut layout::Qp, wr: &SendWr) -> Answer<()> {
    let alone = |data| -> Answer<()> {
        Ok(pair.post_send(&[request(qp, wr, data)?]).map_err(|(_, error)| error)?)
    };
    if wr.opcode == value::WR_BIND_MW {
        let bind = wr.bind_mw;
        return alone(SendData::Bind(&binding(bind.mw, &bind.bind_info, Some(bind.rkey))?));
    }
    let mut room = [0; INLINE_MAX];
    // SAFETY: rule 1.
    let sges = unsafe { pieces(wr.sg_list, wr.num_sge) }?;
    // SAFETY: one of ours. A list that claims to be longer is not looked at.
    if sges.len() > unsafe { qp_of(qp) }?.max_send_sge() {
        return Err(INVALID);
    }
    // SAFETY: rule 1.
    alone(SendData::Inline(unsafe { gather(sges, &mut room) }?))
}

/// Where the bytes of a request are; `None` if it has to be posted alone.
#[inline(always)]
fn data<'a>(wr: &SendWr) -> Answer<Option<SendData<'a>>> {
    if let value::WR_BIND_MW | value::WR_LOCAL_INV = wr.opcode {
        return Ok((wr.opcode == value::WR_LOCAL_INV).then_some(SendData::Gather(&[])));
    }
    // SAFETY: rule 1.
    let sges = unsafe { pieces(wr.sg_list, wr.num_sge) }?;
    if wr.send_flags & value::SEND_INLINE == 0 {
        return Ok(Some(SendData::Gather(sges)));
    }
    Ok(match sges {
        [] => Some(SendData::Inline(&[])),
        // SAFETY: rule 1.
        [one] => Some(SendData::Inline(unsafe { bytes(one) })),
        [_, _, ..] => None,
    })
}

/// Posts a list; says at which request it has stopped, and why.
#[inline(always)]
fn post_list(
    pair: &adverb_device::Qp,
    qp: *mut layout::Qp,
    first: *mut SendWr,
) -> Result<(), (*mut SendWr, Errno)> {
    // SAFETY: rule 1.
    match unsafe { first.as_ref() } {
        None => Ok(()),
        // Most lists are of one request, which needs no copy in an array.
        Some(wr) if wr.next.is_null() => post_one(pair, qp, wr).map_err(|error| (first, error)),
        Some(_) => post_several(pair, qp, first),
    }
}

/// Posts one request.
#[inline(always)]
fn post_one(pair: &adverb_device::Qp, qp: *mut layout::Qp, wr: &SendWr) -> Answer<()> {
    let Some(local) = data(wr)? else {
        return post_alone(pair, qp, wr);
    };
    let work = request(qp, wr, local)?;
    Ok(pair.post_send(std::slice::from_ref(&work)).map_err(|(_, error)| error)?)
}

/// Posts a list of several requests, as [`post_list`] does.
#[inline(never)]
fn post_several(
    pair: &adverb_device::Qp,
    qp: *mut layout::Qp,
    first: *mut SendWr,
) -> Result<(), (*mut SendWr, Errno)> {
    let mut next = first;
    // SAFETY: rule 1.
    while let Some(wr) = unsafe { next.as_ref() } {
        let at = |error| (next, error);
        next = match data(wr).map_err(at)? {
            None => {
                post_alone(pair, qp, wr).map_err(at)?;
                wr.next
            }
            Some(local) => {
                let work = request(qp, wr, local).map_err(at)?;
                post_some(pair, qp, next, work)?
            }
        };
    }
    Ok(())
}

/// Posts as many requests of a list as go to the device together, of which the first is known; says which is next.
fn post_some(
    pair: &adverb_device::Qp,
    qp: *mut layout::Qp,
    first: *mut SendWr,
    work: SendWork<'_>,
) -> Result<*mut SendWr, (*mut SendWr, Errno)> {
    let mut batch = [SendWork::EMPTY; BATCH];
    let mut mistake = None;
    let mut ready = 1;
    if let Some(place) = batch.first_mut() {
        *place = work;
    }
    // SAFETY: rule 1.
    let mut next = unsafe { (*first).next };
    for place in batch.iter_mut().skip(1) {
        // SAFETY: rule 1.
        let Some(wr) = (unsafe { next.as_ref() }) else {
            break;
        };
        match data(wr).and_then(|local| local.map(|local| request(qp, wr, local)).transpose()) {
            Ok(Some(work)) => *place = work,
            Ok(None) => break,
            Err(error) => {
                mistake = Some((next, error));
                break;
            }
        }
        ready += 1;
        next = wr.next;
    }
    if let Err((at, error)) = pair.post_send(batch.get(..ready).unwrap_or_default()) {
        let mut bad = first;
        for _ in 0..at {
            // SAFETY: rule 1; there were as many.
            bad = unsafe { (*bad).next };
        }
        return Err((bad, error.into()));
    }
    mistake.map_or(Ok(next), Err)
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut layout::Qp,
    wr: *mut SendWr,
    bad: *mut *mut SendWr,
) -> c_int {
    let mut stopped = wr;
    let posted = caught(|| {
        // SAFETY: one of ours, or null.
        let pair = unsafe { qp_of(qp) }?.qp.as_ref().ok_or(INVALID)?;
        post_list(pair, qp, wr).map_err(|(at, error)| {
            stopped = at;
            error
        })
    });
    if posted.is_err() && !bad.is_null() {
        // SAFETY: the program's place.
        unsafe { bad.write(stopped) };
    }
    style!(code, posted)
}

/// Posts a list of receives by this function, and says where it has stopped.
fn receive_list(
    first: *mut RecvWr,
    post: impl Fn(&[ReceiveWork<'_>]) -> Result<(), (usize, PostError)>,
) -> Result<(), (*mut RecvWr, Errno)> {
    let mut next = first;
    // SAFETY: rule 1.
    while let Some(wr) = unsafe { next.as_ref() } {
        if wr.next.is_null() {
            // SAFETY: rule 1.
            let sges = unsafe { pieces(wr.sg_list, wr.num_sge) }.map_err(|error| (next, error))?;
            let alone = ReceiveWork { wr_id: wr.wr_id, sges, buffer: None };
            return post(std::slice::from_ref(&alone)).map_err(|(_, error)| (next, error.into()));
        }
        next = receive_some(next, &post)?;
    }
    Ok(())
}

/// Posts as many receives of a list as go to the device together; says which is next.
#[inline(never)]
fn receive_some(
    first: *mut RecvWr,
    post: &impl Fn(&[ReceiveWork<'_>]) -> Result<(), (usize, PostError)>,
) -> Result<*mut RecvWr, (*mut RecvWr, Errno)> {
    let mut next = first;
    let mut batch = [ReceiveWork { wr_id: 0, sges: &[], buffer: None }; BATCH];
    let (mut ready, mut mistake) = (0, None);
    for place in &mut batch {
        // SAFETY: rule 1.
        let Some(wr) = (unsafe { next.as_ref() }) else {
            break;
        };
        // SAFETY: rule 1.
        match unsafe { pieces(wr.sg_list, wr.num_sge) } {
            Ok(sges) => *place = ReceiveWork { wr_id: wr.wr_id, sges, buffer: None },
            Err(error) => {
                mistake = Some((next, error));
                break;
            }
        }
        ready += 1;
        next = wr.next;
    }
    if let Err((at, error)) = post(batch.get(..ready).unwrap_or_default()) {
        let mut bad = first;
        for _ in 0..at {
            // SAFETY: rule 1; there were as many.
            bad = unsafe { (*bad).next };
        }
        return Err((bad, error.into()));
    }
    mistake.map_or(Ok(next), Err)
}

/// Answers as posting receives does.
fn received(
    bad: *mut *mut RecvWr,
    first: *mut RecvWr,
    post: impl FnOnce() -> Result<Result<(), (*mut RecvWr, Errno)>, Errno>,
) -> c_int {
    let mut stopped = first;
    let posted = caught(|| {
        post()?.map_err(|(at, error)| {
            stopped = at;
            error
        })
    });
    if posted.is_err() && !bad.is_null() {
        // SAFETY: the program's place.
        unsafe { bad.write(stopped) };
    }
    style!(code, posted)
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut layout::Qp,
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    received(bad, wr, || {
        // SAFETY: one of ours, or null.
        let pair = unsafe { qp_of(qp) }?.qp.as_ref().ok_or(INVALID)?;
        Ok(receive_list(wr, |batch| pair.post_receive(batch)))
    })
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut layout::Srq,
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    received(bad, wr, || {
        // SAFETY: one of ours, or null.
        let queue = unsafe { srq_of(srq) }?.srq.as_ref().ok_or(INVALID)?;
        Ok(receive_list(wr, |batch| queue.post_receive(batch)))
    })
}

entry! {
    code
    fn bind_mw(
        qp: *mut layout::Qp,
        mw: *mut layout::Mw,
        bind: *mut layout::MwBind,
    ) -> c_int {
        // SAFETY: one of ours, or null.
        let inner: &Boxed<_, QpInner> = unsafe { qp_of(qp) }?;
        let pair = inner.qp.as_ref().ok_or(INVALID)?;
        // SAFETY: the program's structure, or null.
        let how = unsafe { bind.as_ref() }.ok_or(INVALID)?;
        if mw.is_null() {
            return Err(INVALID);
        }
        // SAFETY: one of ours.
        if unsafe { Mw::of(mw) }.window.kind() != WindowKind::Type1 {
            return Err(INVALID);
        }
        let binding = binding(mw, &how.bind_info, None)?;
        let flag = |flag: c_uint| how.send_flags & flag != 0;
        let work = SendWork {
            wr_id: how.wr_id,
            kind: SendKind::BindWindow,
            data: SendData::Bind(&binding),
            signaled: flag(value::SEND_SIGNALED),
            solicited: flag(value::SEND_SOLICITED),
            fence: flag(value::SEND_FENCE),
            ..SendWork::EMPTY
        };
        pair.post_send(&[work]).map_err(|(_, error)| error)?;
        // SAFETY: a field of a window that lives (rule 3 of `boxed.rs`).
        unsafe { (&raw mut (*mw).rkey).write(binding.key().0) };
        Ok(())
    }
}
