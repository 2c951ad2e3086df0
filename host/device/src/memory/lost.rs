//! Registered memory that the program has unmapped, cut short or protected meanwhile.
//!
//! A NIC holds the pages of a region until it is deregistered: what a peer writes then goes to pages that no program sees.
//! Here an access is an instruction of this process, and would end it by a signal. Instead, a page without contents
//! takes the place of a missing one, as long as the process lives. One that is protected is opened, as it is to a NIC.
//!
//! # Safety
//!
//! A table that is listed is there: it is taken out before it goes, and waits for handlers that look.

use crate::memory::region::{ON_DEMAND, Regions, Slot};
use adverb_engine::Access;
use adverb_sys::faults::{self, Fault};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

/// The tables of this process's devices.
static TABLES: [AtomicPtr<Regions>; 64] = [const { AtomicPtr::new(ptr::null_mut()) }; 64];
/// Handlers that look at them.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// From now on accesses to regions of this table survive that their memory has gone. With more devices than have room, those of the last
/// do not.
pub(crate) fn survive(table: &Regions) {
    let own = ptr::from_ref(table).cast_mut();
    let is_there = TABLES.iter().any(|place| place.load(Ordering::SeqCst) == own);
    let _ = is_there
        || TABLES.iter().any(|place| {
            let (from, to) = (ptr::null_mut(), own);
            place.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        });
    faults::watch(mend);
}

/// The table is about to go.
pub(crate) fn forget(table: &Regions) {
    let own = ptr::from_ref(table).cast_mut();
    for place in &TABLES {
        let _ = place.compare_exchange(own, ptr::null_mut(), Ordering::SeqCst, Ordering::SeqCst);
    }
    // A process that was forked while another thread looked is not waited for: that thread is not in it.
    for _ in 0..LOOKS_MAX {
        if LOOKING.load(Ordering::SeqCst) == 0 {
            break;
        }
        std::thread::sleep(LOOK);
    }
}

/// A handler that looks is not interrupted, and takes far less.
const LOOKS_MAX: u32 = 1000;
const LOOK: Duration = Duration::from_micros(100);

/// Mends a fault of an access to a region; one of anything else is not mended.
fn mend(address: usize, fault: Fault) -> bool {
    LOOKING.fetch_add(1, Ordering::SeqCst);
    let writes = TABLES.iter().find_map(|place| {
        // SAFETY: a table that is listed (header).
        let table = unsafe { place.load(Ordering::SeqCst).as_ref() };
        writes(table?, address)
    });
    LOOKING.fetch_sub(1, Ordering::SeqCst);
    // SAFETY: a region of the program's, of which the fault says what is missing, and which it has opened to devices so.
    writes.is_some_and(|writes| unsafe { faults::give_page(address, fault, writes) })
}

/// Whether the region that is being accessed and has this address can be written to; `None` if there is none. One on demand was looked
/// at before.
fn writes(table: &Regions, address: usize) -> Option<bool> {
    let mut found = table.slots().filter(|slot| {
        let offset = address.checked_sub(slot.base.load(Ordering::Relaxed).addr());
        offset.is_some_and(|offset| offset < slot.len.load(Ordering::Relaxed))
            && slot.users.load(Ordering::SeqCst) > 0
            && slot.access.load(Ordering::Relaxed) & ON_DEMAND == 0
    });
    let first = found.next()?;
    let can = |slot: &Slot| {
        Access::from_bits(slot.access.load(Ordering::Relaxed)).contains(Access::LOCAL_WRITE)
    };
    Some(can(first) || found.any(can))
}
