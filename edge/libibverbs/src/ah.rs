//! Address handles.
//!
//! # Safety
//!
//! As in `export.rs` and `boxed.rs`.

use crate::boxed::{Boxed, Plain};
use crate::context;
use crate::errno::{Answer, Errno, INVALID};
use crate::export::export;
use crate::memory::{Use, pd_of};
use crate::query::PORT;
use crate::way::{group, way, way_for_c};
use adverb_device::{AhAttr, Gid, Grh, Port};
use adverb_ibv::layout::{self, value};
use libc::c_int;
use std::sync::Arc;

/// Bytes of a network header.
const GRH_LEN: usize = 40;

/// What is ours of an address handle.
pub(crate) struct AhInner {
    pub(crate) ah: adverb_device::Ah,
    _pd: Use,
}

pub(crate) type Ah = Boxed<layout::Ah, AhInner>;

/// The address handle behind a program's pointer.
///
/// # Safety
///
/// It is one of ours, or null.
pub(crate) unsafe fn ah_of<'a>(ah: *mut layout::Ah) -> Answer<&'a Ah> {
    // SAFETY: the caller's promise.
    unsafe { Ah::checked(ah) }
}

fn create(pd: *mut layout::Pd, mut attr: AhAttr) -> Answer<*mut layout::Ah> {
    // SAFETY: one of ours, or null.
    let of = unsafe { pd_of(pd) }?;
    attr.gid = group(attr.gid.0);
    let ah = of.port.create_ah(of.domain, attr)?;
    let mut c = layout::Ah::zeroed();
    // SAFETY: one of ours.
    c.context = unsafe { (*pd).context };
    c.pd = pd;
    Ok(Ah::give(c, AhInner { ah, _pd: Arc::clone(&of.uses) }))
}

export! {
    pointer "IBVERBS_1.1"
    fn ibv_create_ah(pd: *mut layout::Pd, attr: Option<&layout::AhAttr>) -> *mut layout::Ah, of pd {
        create(pd, way(attr.ok_or(INVALID)?)?)
    }
}

/// Where to answer a datagram to.
fn answer_to(port: &Port, wc: &layout::Wc, grh: &[u8; GRH_LEN]) -> Answer<AhAttr> {
    if wc.wc_flags & value::WC_FLAG_GRH == 0 {
        return Err(INVALID);
    }
    let Grh { src, dst, marks } = Grh::parse(grh).ok_or(INVALID)?;
    let gids = port.gids();
    let place = gids.iter().find(|entry| entry.gid == Gid(dst)).ok_or(Errno(libc::ENOENT))?;
    Ok(AhAttr::new(Gid(src)).gid_index(place.index).marked(marks))
}

export! {
    value "IBVERBS_1.1"
    fn ibv_init_ah_from_wc(
        context: *mut layout::Context,
        port: u8,
        wc: Option<&layout::Wc>,
        grh: Option<&[u8; GRH_LEN]>,
        attr: Option<&mut std::mem::MaybeUninit<layout::AhAttr>>,
    ) -> c_int, of context is context::is_ours, {
        // SAFETY: one of ours, or null.
        let inner = unsafe { context::of(context) }?;
        if port != PORT {
            return Err(INVALID);
        }
        let way = answer_to(&inner.port, wc.ok_or(INVALID)?, grh.ok_or(INVALID)?)?;
        attr.ok_or(INVALID)?.write(way_for_c(&way));
        Ok(0)
    }
}

export! {
    pointer "IBVERBS_1.1"
    fn ibv_create_ah_from_wc(
        pd: *mut layout::Pd, wc: Option<&layout::Wc>, grh: Option<&[u8; GRH_LEN]>, port: u8,
    ) -> *mut layout::Ah, of pd {
        // SAFETY: one of ours, or null.
        let of = unsafe { pd_of(pd) }?;
        if port != PORT {
            return Err(INVALID);
        }
        create(pd, answer_to(&of.port, wc.ok_or(INVALID)?, grh.ok_or(INVALID)?)?)
    }
}

export! {
    code "IBVERBS_1.1"
    fn ibv_destroy_ah(ah: *mut layout::Ah) -> c_int, of ah {
        // SAFETY: one of ours, or null.
        unsafe { ah_of(ah) }?;
        // SAFETY: the program does not use it any more.
        drop(unsafe { Ah::take(ah) });
        Ok(())
    }
}

export! {
    value "IBVERBS_1.1"
    fn ibv_resolve_eth_l2_from_gid(
        context: *mut layout::Context,
        attr: Option<&layout::AhAttr>,
        mac: Option<&mut [u8; 6]>,
        vlan: Option<&mut u16>,
    ) -> c_int, of context is context::is_ours, {
        let _ = (attr, mac, vlan);
        Err(crate::errno::UNSUPPORTED)
    }
}
