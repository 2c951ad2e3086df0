//! Shared receive queues.
//!
//! # Safety
//!
//! As in `export.rs` and `boxed.rs`.

use crate::acknowledge::wait_acknowledged;
use crate::boxed::{Boxed, Plain, name_of};
use crate::context;
use crate::cq::cq_of;
use crate::errno::{Answer, INVALID, UNSUPPORTED};
use crate::export::{entry, export};
use crate::memory::{Use, free, pd_of};
use crate::xrc::xrcd_of;
use adverb_device::{QpLimits, SrqConfig};
use adverb_ibv::layout::{self, value};
use libc::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What is ours of a shared receive queue.
pub(crate) struct SrqInner {
    /// There until the queue is destroyed.
    pub(crate) srq: Option<adverb_device::Srq>,
    pub(crate) uses: Use,
    /// Events that the program has taken.
    pub(crate) events: AtomicU32,
    /// It is an XRC queue.
    is_xrc: bool,
    _of: Vec<Use>,
}

pub(crate) type Srq = Boxed<layout::Srq, SrqInner>;

/// The queue behind a program's pointer.
///
/// # Safety
///
/// It is one of ours, or null.
pub(crate) unsafe fn srq_of<'a>(srq: *mut layout::Srq) -> Answer<&'a Srq> {
    // SAFETY: the caller's promise.
    unsafe { Srq::checked(srq) }
}

/// The domain and the completion queue of an XRC queue.
type Xrc = (*mut layout::Xrcd, *mut layout::Cq);

fn create(
    pd: *mut layout::Pd,
    context: *mut libc::c_void,
    attr: &mut layout::SrqAttr,
    xrc: Option<Xrc>,
) -> Answer<*mut layout::Srq> {
    // SAFETY: one of ours, or null.
    let domain = unsafe { pd_of(pd) }?;
    let (wr, sge) = (attr.max_wr.max(1), attr.max_sge.max(1));
    if wr > QpLimits::WR_MAX || sge > QpLimits::SGE_MAX {
        return Err(INVALID);
    }
    // SAFETY: one of ours.
    let of = unsafe { (*pd).context };
    let mut c = layout::Srq::zeroed();
    (c.context, c.srq_context, c.pd) = (of, context, pd);
    // SAFETY: the context of a domain that lives.
    let events = &unsafe { context::of(of) }?.events;
    let mut uses = vec![Arc::clone(&domain.uses)];
    let made = Srq::give(
        c,
        SrqInner {
            srq: None,
            uses: Use::default(),
            events: AtomicU32::new(0),
            is_xrc: xrc.is_some(),
            _of: Vec::new(),
        },
    );
    let config = SrqConfig {
        domain: domain.domain,
        context: name_of(made),
        max_wr: wr,
        max_sge: sge,
        events: Some(Arc::clone(events)),
    };
    let srq = match xrc {
        None => Ok(adverb_device::Srq::new(&config)),
        // SAFETY: of ours, or null.
        Some(xrc) => unsafe { xrc_queue(&domain.port, &config, of, xrc, &mut uses) },
    };
    let srq = match srq {
        Ok(srq) => srq,
        Err(error) => {
            // SAFETY: not shared yet.
            drop(unsafe { Srq::take(made) });
            return Err(error);
        }
    };
    attr.max_wr = wr;
    attr.max_sge = sge;
    // SAFETY: just made, and not shared yet.
    let whole = unsafe { Srq::of_mut(made) };
    // SAFETY: a field of it.
    unsafe { (&raw mut (*whole.c()).handle).write(srq.number()) };
    (whole.ours_mut().srq, whole.ours_mut()._of) = (Some(srq), uses);
    Ok(made)
}

/// # Safety
///
/// The domain and the queue are of ours, or null.
unsafe fn xrc_queue(
    port: &Arc<adverb_device::Port>,
    config: &SrqConfig,
    of: *mut layout::Context,
    (domain, cq): Xrc,
    uses: &mut Vec<Use>,
) -> Answer<adverb_device::Srq> {
    // SAFETY: the caller's promise.
    let xrcd = unsafe { xrcd_of(domain) }?;
    // SAFETY: the caller's promise.
    let queue = unsafe { cq_of(cq) }?;
    // SAFETY: of ours.
    unsafe { context::own_all(of, [domain.cast(), cq.cast()]) }?;
    uses.extend([Arc::clone(&xrcd.uses), Arc::clone(&queue.uses)]);
    Ok(port.create_xrc_srq(config, &xrcd.xrcd, queue.cq.as_ref().ok_or(INVALID)?)?)
}

export! {
    pointer "IBVERBS_1.1"
    fn ibv_create_srq(pd: *mut layout::Pd, attr: Option<&mut layout::SrqInitAttr>) -> *mut layout::Srq,
    of pd {
        let attr = attr.ok_or(INVALID)?;
        create(pd, attr.srq_context, &mut attr.attr, None)
    }
}

entry! {
    pointer
    fn create_srq_ex(
        context: *mut layout::Context,
        attr: *mut layout::SrqInitAttrEx,
    ) -> *mut layout::Srq {
        // SAFETY: one of ours, or null.
        unsafe { context::of(context) }?;
        // SAFETY: the program's structure, or null.
        let attr = unsafe { attr.as_mut() }.ok_or(INVALID)?;
        let given = |mask| attr.comp_mask & mask != 0;
        if given(!ALL) {
            return Err(UNSUPPORTED);
        }
        let kind =
            if given(value::SRQ_INIT_ATTR_TYPE) { attr.srq_type } else { value::SRQT_BASIC };
        if !given(value::SRQ_INIT_ATTR_PD) {
            return Err(INVALID);
        }
        let xrc = match kind {
            value::SRQT_BASIC => None,
            value::SRQT_XRC
                if given(value::SRQ_INIT_ATTR_XRCD) && given(value::SRQ_INIT_ATTR_CQ) =>
            {
                Some((attr.xrcd, attr.cq))
            }
            value::SRQT_XRC => return Err(INVALID),
            _ => return Err(UNSUPPORTED),
        };
        // SAFETY: one of ours, or null.
        unsafe { pd_of(attr.pd) }?;
        // SAFETY: as above.
        unsafe { context::own_all(context, [attr.pd.cast()]) }?;
        create(attr.pd, attr.srq_context, &mut attr.attr, xrc)
    }
}

const ALL: u32 = value::SRQ_INIT_ATTR_TYPE
    | value::SRQ_INIT_ATTR_PD
    | value::SRQ_INIT_ATTR_XRCD
    | value::SRQ_INIT_ATTR_CQ;

entry! {
    code
    fn get_srq_num(srq: *mut layout::Srq, number: *mut u32) -> c_int {
        // SAFETY: one of ours, or null.
        let inner = unsafe { srq_of(srq) }?;
        if !inner.is_xrc {
            return Err(UNSUPPORTED);
        }
        // SAFETY: the program's place, or null.
        let place = unsafe { number.as_mut() }.ok_or(INVALID)?;
        *place = inner.srq.as_ref().ok_or(INVALID)?.number();
        Ok(())
    }
}

export! {
    code "IBVERBS_1.1"
    fn ibv_modify_srq(srq: *mut layout::Srq, attr: Option<&layout::SrqAttr>, mask: c_int) -> c_int, of srq {
        // SAFETY: one of ours, or null.
        let inner = unsafe { srq_of(srq) }?;
        let (queue, attr) = (inner.srq.as_ref().ok_or(INVALID)?, attr.ok_or(INVALID)?);
        if mask & !(value::SRQ_MAX_WR | value::SRQ_LIMIT) != 0 {
            return Err(INVALID);
        }
        if mask & value::SRQ_MAX_WR != 0 {
            queue.resize(attr.max_wr)?;
        }
        if mask & value::SRQ_LIMIT != 0 {
            queue.arm_limit(attr.srq_limit)?;
        }
        Ok(())
    }
}

export! {
    code "IBVERBS_1.1"
    fn ibv_query_srq(srq: *mut layout::Srq, attr: Option<&mut std::mem::MaybeUninit<layout::SrqAttr>>) -> c_int,
    of srq {
        // SAFETY: one of ours, or null.
        let inner = unsafe { srq_of(srq) }?;
        let now = inner.srq.as_ref().ok_or(INVALID)?.query();
        let (max_wr, max_sge, srq_limit) = (now.max_wr, now.max_sge, now.srq_limit);
        attr.ok_or(INVALID)?.write(layout::SrqAttr { max_wr, max_sge, srq_limit });
        Ok(())
    }
}

export! {
    code "IBVERBS_1.1"
    fn ibv_destroy_srq(srq: *mut layout::Srq) -> c_int, of srq {
        // SAFETY: one of ours, or null.
        free(&unsafe { srq_of(srq) }?.uses)?;
        // SAFETY: no queue pair uses it, and the program does not use it any more.
        let whole = unsafe { Srq::of_mut(srq) };
        if let Some(queue) = whole.ours_mut().srq.take() {
            queue.close();
        }
        let taken = whole.events.load(Ordering::Acquire);
        let c = whole.c();
        // SAFETY: fields of a queue that lives.
        let (mutex, cond, done) = unsafe {
            (&raw mut (*c).mutex, &raw mut (*c).cond, &raw const (*c).events_completed)
        };
        wait_acknowledged(mutex, cond, &[(done, taken)]);
        // SAFETY: nothing uses it any more.
        drop(unsafe { Srq::take(srq) });
        Ok(())
    }
}
