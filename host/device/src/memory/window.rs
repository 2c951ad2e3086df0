//! Memory windows: keys to parts of a region that are given and taken back without registering
//! anything.
//!
//! A window is bound, by a request in a send queue, to a range of a region; from then on peers reach
//! that range by the window's key, and nothing else of the region. It ends by being bound anew or to
//! nothing (type 1), by being invalidated by its owner or by the peer (type 2), or with the window or
//! the region itself: memory that is no longer registered is out of reach, whatever is bound to it.
//!
//! The slot of a window, in the table of `region.rs`, looks to an access like that of a small region.
//! What it is beyond that is a [`State`] under the slot's lock, which only binding and invalidating
//! take. This file changes what a slot says, by the rules of `region.rs`, and touches no memory.
//!
//! Read IBTA Vol. 1 §10.6.7 (memory windows) and §11.2.9 to §11.2.10 (their verbs) before changing
//! this file.
//!
//! # Safety
//!
//! [`Regions::bind`] forms one address, within the region that it holds.

use crate::memory::region::{Key, ON_DEMAND, Region, RegionError, Regions, Serial, Slot};
use adverb_engine::{Access, AccessError, Invalidator};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

/// Type of a window: how it is bound and unbound. `enum ibv_mw_type`; IBTA Vol. 1 §10.6.7.2.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[doc(alias = "ibv_mw_type")]
pub enum WindowKind {
    /// Type 1: bound anew at any time, to nothing in the end. The device chooses its keys. Any
    /// peer of the protection domain may use it.
    #[doc(alias = "IBV_MW_TYPE_1")]
    Type1,
    /// Type 2 (2B): bound only while it is not, under a key that the owner chooses; unbound by
    /// invalidating that key. Only the peer of the queue pair that bound it may use it.
    #[doc(alias = "IBV_MW_TYPE_2")]
    Type2,
}

/// Target of a binding. `struct ibv_mw_bind_info`.
#[derive(Clone, Copy, Debug)]
pub struct BindTo<'a> {
    /// The region.
    pub region: &'a Region,
    /// Where in it the window starts, in bytes.
    pub offset: usize,
    /// Length of the window in bytes.
    pub len: usize,
    /// What peers may do: of [`Access::REMOTE_WRITE`], `REMOTE_READ` and
    /// `REMOTE_ATOMIC`, whether or not the region gives these rights; with `ZERO_BASED` the window's
    /// first byte has address 0.
    pub access: Access,
}

/// Error of a binding. The caller's mistake.
#[derive(Clone, Copy, Eq, PartialEq)]
#[non_exhaustive]
pub enum BindError {
    /// Remote writing or atomics in a region without local writing. IBTA Vol. 1 §10.6.7.2.2.
    AccessWithoutLocalWrite,
    /// A window of type 2 is unbound by invalidating its key, and not by binding it to nothing.
    Empty,
    /// The key is not one of this window's.
    ForeignKey {
        /// What was asked.
        key: Key,
    },
    /// The region belongs to another protection domain or device.
    ForeignRegion,
    /// The device chooses the keys of windows of type 1, and their owner those of type 2.
    Kind {
        /// That of the window.
        kind: WindowKind,
    },
    /// The region was registered without [`Access::MW_BIND`].
    NoBindAccess,
    /// Some byte lies outside the region.
    OutOfBounds {
        /// Offset of the first byte asked for.
        offset: usize,
        /// Bytes asked for.
        len: usize,
        /// Length of the region in bytes.
        region: usize,
    },
    /// A right that windows do not have.
    Rights {
        /// What was asked.
        access: Access,
    },
    /// The region is zero-based, and so has no addresses for a window.
    ZeroBasedRegion,
    /// A window of type 1 cannot be zero-based.
    ZeroBasedType1,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AccessWithoutLocalWrite => {
                "remote write and remote atomic access need a region with local write access"
            }
            Self::Empty => {
                "a window of type 2 has at least one byte: invalidate its key to unbind it"
            }
            Self::ForeignKey { key } => {
                return write!(f, "key {:#x} is not one of this window's", key.0);
            }
            Self::ForeignRegion => {
                "the region belongs to another protection domain or device than the window"
            }
            Self::Kind { kind: WindowKind::Type1 } => {
                "a window of type 1 is bound by the verb for it, which chooses its key"
            }
            Self::Kind { kind: WindowKind::Type2 } => {
                "a window of type 2 is bound by a work request, with a key of the owner's choice"
            }
            Self::NoBindAccess => "the region was registered without window bind access",
            Self::OutOfBounds { offset, len, region } => {
                return write!(
                    f,
                    "{len} bytes at offset {offset} do not fit a region of {region} bytes"
                );
            }
            Self::Rights { access } => {
                return write!(f, "a window has rights for peers only, and not: {access}");
            }
            Self::ZeroBasedRegion => "windows cannot be bound to a zero-based region",
            Self::ZeroBasedType1 => "a window of type 1 cannot be zero-based",
        })
    }
}

impl std::error::Error for BindError {}

/// A binding that makes sense, as far as can be told before its turn comes.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    index: u32,
    window: Serial,
    /// The key that the window will have.
    key: Key,
    domain: u32,
    /// To nothing, if `None`.
    view: Option<View>,
}

impl Bind {
    /// The key that the window will have.
    pub fn key(&self) -> Key {
        self.key
    }

    pub(crate) fn domain(&self) -> u32 {
        self.domain
    }
}

/// A part of a registration, with what peers may do there.
#[derive(Clone, Copy, Debug)]
struct View {
    index: u32,
    registration: Serial,
    offset: usize,
    len: usize,
    va: u64,
    access: Access,
}

/// State of a window, bound or not.
#[derive(Debug)]
pub(crate) struct State {
    kind: WindowKind,
    serial: Serial,
    /// The key that it has, or had last.
    key: u32,
    /// The registration that it is bound to.
    bound: Option<(u32, Serial)>,
}

/// A memory window. `struct ibv_mw`.
///
/// Dropping it unbinds it: its key is dead from then on.
#[derive(Debug)]
pub struct Window {
    table: Arc<Regions>,
    index: u32,
    serial: Serial,
    kind: WindowKind,
    domain: u32,
}

impl Window {
    /// How it is bound and unbound.
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// The protection domain it belongs to.
    pub fn domain(&self) -> u32 {
        self.domain
    }

    /// The key that it has, or had last: it means something only while the window is bound.
    pub fn key(&self) -> Key {
        Key(self.look(|state| state.key).unwrap_or(0))
    }

    /// It is bound to a region that has not ended.
    pub fn is_bound(&self) -> bool {
        let bound = self.look(|state| state.bound).flatten();
        bound.is_some_and(|(index, serial)| self.table.hold_registration(index, serial).is_ok())
    }

    fn look<R>(&self, at: impl FnOnce(&State) -> R) -> Option<R> {
        lock(self.table.slot(self.index)?).as_ref().map(at)
    }

    /// Says how to bind it: a window of type 2 under the key `key`. For one of type 1, which is
    /// given none, a key is chosen: another at each call, until they come round after 256.
    ///
    /// # Errors
    ///
    /// [`BindError`].
    pub fn bind(&self, to: BindTo<'_>, key: Option<Key>) -> Result<Bind, BindError> {
        let nothing = to.len == 0 && self.kind == WindowKind::Type1;
        let view = if nothing { None } else { Some(self.check(to)?) };
        self.to_bind(view, key)
    }

    /// Says how to bind it to nothing: a window of type 1.
    ///
    /// # Errors
    ///
    /// [`BindError::Empty`] for a window of type 2.
    pub fn unbind(&self) -> Result<Bind, BindError> {
        match self.kind {
            WindowKind::Type1 => self.to_bind(None, None),
            WindowKind::Type2 => Err(BindError::Empty),
        }
    }

    fn to_bind(&self, view: Option<View>, key: Option<Key>) -> Result<Bind, BindError> {
        let Self { index, serial, domain, kind, .. } = *self;
        let key = match (kind, key) {
            (WindowKind::Type1, None) => {
                let slot = self.table.slot(index);
                Key(slot.map_or(0, |slot| slot.next_key(index)))
            }
            (WindowKind::Type2, Some(key)) if key.0 >> Regions::TAG_BITS == index => key,
            (WindowKind::Type2, Some(key)) => return Err(BindError::ForeignKey { key }),
            (kind, _) => return Err(BindError::Kind { kind }),
        };
        Ok(Bind { index, window: serial, key, domain, view })
    }

    /// IBTA Vol. 1 C10-72 to C10-75, o10-36.2.2, o10-37.2.40.
    fn check(&self, to: BindTo<'_>) -> Result<View, BindError> {
        let BindTo { region, offset, len, access } = to;
        let has = region.access();
        if !Arc::ptr_eq(&self.table, region.table()) || self.domain != region.domain() {
            return Err(BindError::ForeignRegion);
        }
        if !has.contains(Access::MW_BIND) {
            return Err(BindError::NoBindAccess);
        }
        if !RIGHTS.contains(access) {
            return Err(BindError::Rights { access });
        }
        if has.contains(Access::ZERO_BASED) {
            return Err(BindError::ZeroBasedRegion);
        }
        let zero_based = access.contains(Access::ZERO_BASED);
        if zero_based && self.kind == WindowKind::Type1 {
            return Err(BindError::ZeroBasedType1);
        }
        let writing = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.bits() & writing.bits() != 0 && !has.contains(Access::LOCAL_WRITE) {
            return Err(BindError::AccessWithoutLocalWrite);
        }
        if len == 0 {
            return Err(BindError::Empty);
        }
        let out = BindError::OutOfBounds { offset, len, region: region.len() };
        offset.checked_add(len).filter(|end| *end <= region.len()).ok_or(out)?;
        let start = region.addr().wrapping_add(u64::try_from(offset).unwrap_or(u64::MAX));
        Ok(View {
            index: region.index(),
            registration: region.serial().ok_or(BindError::ForeignRegion)?,
            offset,
            len,
            va: if zero_based { 0 } else { start },
            access,
        })
    }
}

/// What a window can be bound with.
const RIGHTS: Access = Access::REMOTE_WRITE
    .with(Access::REMOTE_READ)
    .with(Access::REMOTE_ATOMIC)
    .with(Access::ZERO_BASED);

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(slot) = self.table.slot(self.index) {
            let mut place = lock(slot);
            if let Some(mut state) = place.take() {
                self.table.part(slot, &mut state);
                // The next tenant's key is one that its peers have not seen lately.
                if state.kind == WindowKind::Type2 {
                    slot.generation.store(state.key.wrapping_add(1), Ordering::Relaxed);
                }
            }
            drop(place);
            self.table.give_back(self.index);
        }
    }
}

impl Regions {
    /// Makes a window, bound to nothing.
    pub(crate) fn alloc_window(
        self: &Arc<Self>,
        domain: u32,
        kind: WindowKind,
    ) -> Result<Window, RegionError> {
        let index = self.take_index().ok_or(RegionError::TooMany)?;
        let slot = self.slot_or_new(index).ok_or(RegionError::TooMany)?;
        let serial = Serial::new();
        // The place is new, or was given back when its last tenant was gone: it is not in use.
        slot.serial.set(Some(serial));
        slot.domain.store(domain, Ordering::Relaxed);
        let key = slot.next_key(index);
        *lock(slot) = Some(State { kind, serial, key, bound: None });
        Ok(Window { table: Arc::clone(self), index, serial, kind, domain })
    }

    /// Binds a window, for a queue pair of `domain`. Waits for accesses through the window.
    pub(crate) fn bind(&self, bind: &Bind, domain: u32, qp: Serial) -> Result<(), AccessError> {
        let slot = self.slot(bind.index).ok_or(AccessError::UnknownKey)?;
        let mut place = lock(slot);
        let state = place.as_mut().filter(|state| state.serial == bind.window);
        let state = state.filter(|_| domain == bind.domain).ok_or(AccessError::UnknownKey)?;
        self.part_from_ended(slot, state);
        // o10-37.2.30. A key that does not change would bring old copies of it to life.
        let refused = state.kind == WindowKind::Type2 && state.bound.is_some();
        if refused || state.key == bind.key.0 {
            return Err(AccessError::Denied);
        }
        let Some(view) = bind.view else {
            self.part(slot, state);
            state.key = bind.key.0;
            return Ok(());
        };
        let region = self.hold_registration(view.index, view.registration)?;
        let end = view.offset.saturating_add(view.len);
        if end > region.slot.len.load(Ordering::Relaxed) {
            return Err(AccessError::OutOfBounds);
        }
        self.part(slot, state);
        let base = region.slot.base.load(Ordering::Relaxed);
        slot.base.store(base.wrapping_add(view.offset), Ordering::Relaxed);
        slot.len.store(view.len, Ordering::Relaxed);
        slot.va.store(view.va, Ordering::Relaxed);
        let on_demand = region.slot.access.load(Ordering::Relaxed) & ON_DEMAND;
        slot.access.store(view.access.transport().bits() | on_demand, Ordering::Relaxed);
        slot.under.store(view.index, Ordering::Relaxed);
        slot.under_serial.set(Some(view.registration));
        slot.tied_to.set(match state.kind {
            WindowKind::Type1 => None,
            WindowKind::Type2 => Some(qp),
        });
        region.slot.windows.fetch_add(1, Ordering::Relaxed);
        state.bound = Some((view.index, view.registration));
        state.key = bind.key.0;
        slot.key.store(bind.key.0, Ordering::SeqCst);
        Ok(())
    }

    /// Invalidates a window's key, for a queue pair of `domain`. Waits for accesses through it.
    ///
    /// A key that its owner has invalidated already may be invalidated by it again; a peer is refused
    /// whatever it may not use. IBTA Vol. 1 o10-37.2.26.
    pub(crate) fn invalidate(
        &self,
        key: u32,
        domain: u32,
        qp: Serial,
        by: Invalidator,
    ) -> Result<(), AccessError> {
        let slot = self.slot(key >> Self::TAG_BITS).ok_or(AccessError::UnknownKey)?;
        let mut place = lock(slot);
        // Only the owner of a region ends it: it has no window to be found here.
        let state = place.as_mut().filter(|state| state.key == key);
        let state = state.filter(|_| slot.domain.load(Ordering::Relaxed) == domain);
        let state = state.ok_or(AccessError::UnknownKey)?;
        self.part_from_ended(slot, state);
        match (state.kind, state.bound, by) {
            (WindowKind::Type1, _, _) => return Err(AccessError::Denied),
            (WindowKind::Type2, None, Invalidator::Owner) => return Ok(()),
            (WindowKind::Type2, None, Invalidator::Peer) => return Err(AccessError::UnknownKey),
            (WindowKind::Type2, Some(_), _) if slot.tied_to.get() != Some(qp) => {
                return Err(AccessError::UnknownKey);
            }
            (WindowKind::Type2, Some(_), _) => self.part(slot, state),
        }
        Ok(())
    }

    /// Parts a window from a region that has ended: it is bound to nothing then.
    fn part_from_ended(&self, slot: &Slot, state: &mut State) {
        let ended = |(index, serial)| self.hold_registration(index, serial).is_err();
        if state.bound.is_some_and(ended) {
            self.part(slot, state);
        }
    }

    /// Parts a window from its region, if it is bound, and waits for accesses through it.
    fn part(&self, slot: &Slot, state: &mut State) {
        let Some((index, registration)) = state.bound.take() else {
            return;
        };
        slot.close();
        // A region that has ended counts no windows any more.
        if let Ok(region) = self.hold_registration(index, registration) {
            region.slot.windows.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn lock(slot: &Slot) -> MutexGuard<'_, Option<State>> {
    slot.window.lock()
}

#[cfg(test)]
mod model;

adverb_sys::debug_as_display!(BindError);

#[cfg(test)]
mod tests;
