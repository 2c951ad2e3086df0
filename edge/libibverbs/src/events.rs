//! Asynchronous events.
//!
//! # Safety
//!
//! 1. As in `export.rs` and `boxed.rs`.
//! 2. The device knows completion queues, queue pairs and shared receive queues by the address of what C knows of
//!    them. It forgets their events when they end, which is before their memory goes.

use crate::acknowledge::acknowledge;
use crate::boxed::named;
use crate::context;
use crate::cq::{AGAIN, cq_of};
use crate::errno::INVALID;
use crate::export::export;
use crate::qp::qp_of;
use crate::real::Function;
use crate::srq::srq_of;
use crate::waiting::Attempt;
use adverb_device::{AsyncEvent, Element, EventKind};
use adverb_ibv::layout::{self, value};
use libc::{c_int, c_void};
use std::sync::atomic::Ordering;

/// The number of an event, as C has it.
fn event_for_c(kind: EventKind) -> Option<c_int> {
    Some(match kind {
        EventKind::CqErr => value::EVENT_CQ_ERR,
        EventKind::CommEst => value::EVENT_COMM_EST,
        EventKind::DeviceFatal => value::EVENT_DEVICE_FATAL,
        EventKind::GidChange => value::EVENT_GID_CHANGE,
        EventKind::LastWqeReached => value::EVENT_QP_LAST_WQE_REACHED,
        EventKind::PortActive => value::EVENT_PORT_ACTIVE,
        EventKind::PortErr => value::EVENT_PORT_ERR,
        EventKind::QpAccessErr => value::EVENT_QP_ACCESS_ERR,
        EventKind::QpFatal => value::EVENT_QP_FATAL,
        EventKind::QpReqErr => value::EVENT_QP_REQ_ERR,
        EventKind::SqDrained => value::EVENT_SQ_DRAINED,
        EventKind::SrqErr => value::EVENT_SRQ_ERR,
        EventKind::SrqLimitReached => value::EVENT_SRQ_LIMIT_REACHED,
        _ => return None,
    })
}

/// The object of an event, which counts it as taken.
fn element_for_c(event: &AsyncEvent) -> *mut c_void {
    match event.element {
        Element::Cq { context } => {
            let cq: *mut layout::Cq = named(context);
            // SAFETY: rule 2.
            if let Ok(queue) = unsafe { cq_of(cq) } {
                queue.async_events.fetch_add(1, Ordering::Release);
            }
            cq.cast()
        }
        Element::Qp { context, .. } => {
            let qp: *mut layout::Qp = named(context);
            // SAFETY: rule 2.
            if let Ok(pair) = unsafe { qp_of(qp) } {
                pair.events.fetch_add(1, Ordering::Release);
            }
            qp.cast()
        }
        Element::Srq { context, .. } => {
            let srq: *mut layout::Srq = named(context);
            // SAFETY: rule 2.
            if let Ok(queue) = unsafe { srq_of(srq) } {
                queue.events.fetch_add(1, Ordering::Release);
            }
            srq.cast()
        }
        Element::Port { number } => std::ptr::without_provenance_mut(number.into()),
        Element::Device => std::ptr::null_mut(),
    }
}

export! {
    minus waits "IBVERBS_1.1"
    fn ibv_get_async_event(context: *mut layout::Context, place: *mut layout::AsyncEvent) -> c_int,
    of context is context::is_ours, {
        // SAFETY: one of ours, or null.
        let inner = unsafe { context::of(context) }?;
        if place.is_null() {
            return Err(INVALID);
        }
        while let Some(event) = inner.events.try_get() {
            if let Some(event_type) = event_for_c(event.kind) {
                let element = element_for_c(&event);
                // SAFETY: the program's place.
                unsafe { place.write(layout::AsyncEvent { element, event_type }) };
                return Ok(Attempt::Done);
            }
        }
        let fd = &inner.async_fd;
        if fd.is_non_blocking() { Err(AGAIN) } else { Ok(Attempt::Waits(fd.number())) }
    }
}

crate::export::versioned!("IBVERBS_1.1" ibv_ack_async_event);
unsafe extern "C" fn ibv_ack_async_event(event: Option<&layout::AsyncEvent>) {
    let Some(event) = event.filter(|event| !event.element.is_null()) else {
        return;
    };
    // Only fields that C knows are touched: objects of the real library have them too.
    match event.event_type {
        value::EVENT_CQ_ERR => {
            let cq: *mut layout::Cq = event.element.cast();
            // SAFETY: the queue of the event, which lives until it is acknowledged.
            let (mutex, cond, completed) = unsafe {
                (&raw mut (*cq).mutex, &raw mut (*cq).cond, &raw mut (*cq).async_events_completed)
            };
            acknowledge(mutex, cond, completed, 1);
        }
        value::EVENT_QP_FATAL
        | value::EVENT_QP_REQ_ERR
        | value::EVENT_QP_ACCESS_ERR
        | value::EVENT_COMM_EST
        | value::EVENT_SQ_DRAINED
        | value::EVENT_PATH_MIG
        | value::EVENT_PATH_MIG_ERR
        | value::EVENT_QP_LAST_WQE_REACHED => {
            let qp: *mut layout::Qp = event.element.cast();
            // SAFETY: the queue pair of the event, which lives until it is acknowledged.
            let (mutex, cond, completed) = unsafe {
                (&raw mut (*qp).mutex, &raw mut (*qp).cond, &raw mut (*qp).events_completed)
            };
            acknowledge(mutex, cond, completed, 1);
        }
        value::EVENT_SRQ_ERR | value::EVENT_SRQ_LIMIT_REACHED => {
            let srq: *mut layout::Srq = event.element.cast();
            // SAFETY: the queue of the event, which lives until it is acknowledged.
            let (mutex, cond, completed) = unsafe {
                (&raw mut (*srq).mutex, &raw mut (*srq).cond, &raw mut (*srq).events_completed)
            };
            acknowledge(mutex, cond, completed, 1);
        }
        // Of a type that this library does not know, such as that of a work queue.
        later if later > value::EVENT_GID_CHANGE => {
            type Real = unsafe extern "C" fn(Option<&layout::AsyncEvent>);
            static REAL: Function<Real> = Function::new("ibv_ack_async_event", "IBVERBS_1.1");
            if let Some(real) = REAL.get() {
                // SAFETY: the function of this name, with the program's argument.
                unsafe { real(Some(event)) };
            }
        }
        _ => {}
    }
}
