//! Objects that programs hold: a structure that C knows, and what is ours behind it.
//!
//! # Safety
//!
//! 1. A [`Boxed`] begins with the structure that C knows, so that the program's pointer to that structure is the
//!    pointer to the whole. It is made by [`Boxed::give`] and ends with [`Boxed::take`]; in between it does not move.
//! 2. The program keeps the contract of the manual pages: what it passes as an object is one that it was given and
//!    has not destroyed, and no other thread uses an object that is being destroyed.
//! 3. Fields that C knows are written through raw pointers: the program may look at them at any time.
//! 4. [`Plain`] is for structures of numbers, pointers and optional functions, for which zeros are a value.

use crate::errno::{Answer, INHERITED, INVALID};
use adverb_device::Generation;
use adverb_ibv::layout;
use std::cell::UnsafeCell;
use std::ops::Deref;

/// A structure of C for which zeros are a value.
///
/// # Safety
///
/// Rule 4.
pub(crate) unsafe trait Plain: Sized {
    /// All zeros.
    fn zeroed() -> Self {
        // SAFETY: zeros are a value (rule 4).
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! plain {
    ($($name:ident)*) => {$(
        // SAFETY: rule 4; `adverb_ibv::layout` has the fields.
        unsafe impl Plain for layout::$name {}
    )*};
}

plain! {
    Ah AsyncEvent CompChannel Context ContextOps CqEx Device DeviceAttr DeviceAttrEx Dm Mr Mw Pd PortAttr QpAttr
    QpEx QpInitAttr Srq Td VerbsContext Xrcd
}

/// An object.
#[repr(C)]
pub(crate) struct Boxed<C, T> {
    c: UnsafeCell<C>,
    generation: Generation,
    ours: T,
}

impl<C, T> Boxed<C, T> {
    /// Makes an object, which is the program's from now on.
    pub(crate) fn give(c: C, ours: T) -> *mut C {
        Box::into_raw(Box::new(Self { c: UnsafeCell::new(c), generation: Generation::now(), ours }))
            .cast()
    }

    /// The object behind the program's pointer.
    ///
    /// # Safety
    ///
    /// It is one of these (rule 2).
    pub(crate) unsafe fn of<'a>(c: *mut C) -> &'a Self {
        // SAFETY: the caller's promise; rule 1.
        unsafe { &*c.cast::<Self>() }
    }

    /// The object behind a pointer that may be null, or of an object that this process was forked with: those are its
    /// parent's, which would notice what is done with them.
    ///
    /// # Safety
    ///
    /// As for [`Boxed::of`], unless it is null.
    #[inline]
    pub(crate) unsafe fn checked<'a>(c: *mut C) -> Answer<&'a Self> {
        if c.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the caller's promise.
        let whole = unsafe { Self::of(c) };
        if whole.generation.is_inherited() {
            return Err(INHERITED);
        }
        Ok(whole)
    }

    /// The object, while no other thread uses it.
    ///
    /// # Safety
    ///
    /// It is one of these, and is being destroyed (rule 2).
    pub(crate) unsafe fn of_mut<'a>(c: *mut C) -> &'a mut Self {
        // SAFETY: the caller's promise; rule 1.
        unsafe { &mut *c.cast::<Self>() }
    }

    /// Takes the object back.
    ///
    /// # Safety
    ///
    /// It is one of these, and is not used any more (rule 2).
    pub(crate) unsafe fn take(c: *mut C) -> T {
        // SAFETY: the caller's promise; it was made by `give` (rule 1).
        let boxed = unsafe { Box::from_raw(c.cast::<Self>()) };
        boxed.ours
    }

    /// What C knows.
    pub(crate) fn c(&self) -> *mut C {
        self.c.get()
    }

    /// What is ours, for changes while no other thread uses it.
    pub(crate) fn ours_mut(&mut self) -> &mut T {
        &mut self.ours
    }
}

impl<C, T> Deref for Boxed<C, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.ours
    }
}

/// The number by which an object is known to the device.
pub(crate) fn name_of<C>(c: *mut C) -> u64 {
    u64::try_from(c.expose_provenance()).unwrap_or(0)
}

/// The object that the device knows by this number; null for none.
pub(crate) fn named<C>(name: u64) -> *mut C {
    std::ptr::with_exposed_provenance_mut(usize::try_from(name).unwrap_or(0))
}
