//! Borrowed memory for work: registered for as long as a closure runs.
//!
//! # Safety
//!
//! 1. Slices are borrowed for `'env`, which outlives the call of [`Pd::scope`]; a value on that call's stack,
//!    of which the closure sees a reference, ends their registrations when it is dropped. So they end before
//!    the call does, however it ends, and cannot be leaked. A [`Lent`] may stay longer: it has no
//!    registration any more then, and is refused where it is posted.
//! 2. A registration that has ended is out of the device's reach, whatever work is outstanding: the
//!    device looks up a key at each access, and ending waits for accesses under way. Drivers of
//!    hardware promise the same; see `provider.rs`.
//! 3. A shared slice is registered without any right to write; a mutable one is borrowed mutably for
//!    longer than it is registered, so that no other code sees it. No peer has rights to either.

use crate::context::Pd;
use crate::error::AllocateError;
use crate::memory::Lent;
use adverb_device::locks::Mutex;
use adverb_device::{Access, Sge};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Lends slices of the program's own to work. See [`Pd::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    pd: &'env Pd,
    lent: Registrations,
    /// Invariant in both, like `std::thread::Scope`.
    lifetimes: PhantomData<(&'scope mut &'scope (), &'env mut &'env ())>,
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").finish_non_exhaustive()
    }
}

/// What a scope has lent; it ends with this.
#[derive(Default)]
struct Registrations(Mutex<Vec<Lent>>);

impl Drop for Registrations {
    fn drop(&mut self) {
        let lent = self.0.get_mut();
        lent.iter().for_each(Lent::end);
    }
}

impl Pd {
    /// Runs `work`, which can lend slices of the program to queue pairs. When it returns, or panics,
    /// the slices are taken back at once: poll for completions in it. Work that is outstanding then
    /// fails with [`crate::WcStatus::LocalProtection`], and touches nothing.
    ///
    /// ```
    /// # use adverb_verbs::{Context, QpConfig, Work};
    /// # let context = Context::open("soft_lo")?;
    /// # let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
    /// # let (a, b) = (pd.create_qp(&QpConfig::new(&cq))?, pd.create_qp(&QpConfig::new(&cq))?);
    /// # a.connect(b.address()?)?;
    /// # b.connect(a.address()?)?;
    /// let (message, mut room) = (*b"hello", [0; 5]);
    /// pd.scope(|scope| {
    ///     b.post(Work::recv(scope.lend_mut(&mut room)?))?;
    ///     a.post(Work::send(scope.lend(&message)?))?;
    ///     cq.wait()?.ok()?;
    ///     cq.wait()?.ok()?;
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// assert_eq!(room, message);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// What is lent cannot be touched meanwhile, nor outlive its slice:
    ///
    /// ```compile_fail,E0503
    /// # let pd = adverb_verbs::Context::open("soft_lo").unwrap().alloc_pd();
    /// let mut room = [0; 5];
    /// pd.scope(|scope| {
    ///     let lent = scope.lend_mut(&mut room);
    ///     room[0] = 1; // The device may be writing to it.
    ///     drop(lent);
    /// });
    /// ```
    ///
    /// ```compile_fail,E0597
    /// # let pd = adverb_verbs::Context::open("soft_lo").unwrap().alloc_pd();
    /// pd.scope(|scope| {
    ///     let short = [0; 5];
    ///     let lent = scope.lend(&short); // Gone before the scope ends.
    /// });
    /// ```
    pub fn scope<'env, R>(
        &'env self,
        work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    ) -> R {
        let scope = Scope { pd: self, lent: Registrations::default(), lifetimes: PhantomData };
        work(&scope)
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Lends bytes that work reads: to send or to write.
    ///
    /// # Errors
    ///
    /// [`AllocateError`], also for no bytes and for more than 4 GiB.
    pub fn lend(&'scope self, bytes: &'env [u8]) -> Result<Lent, AllocateError> {
        let start = NonNull::from(bytes).cast::<u8>();
        // SAFETY: shared for `'env`, registered for less (rules 1 and 2), for reading (rule 3).
        unsafe { self.enter(start, bytes.len(), Access::NONE) }
    }

    /// Lends bytes that work writes: to receive or to read into. They can be looked at when the
    /// scope has ended.
    ///
    /// # Errors
    ///
    /// [`AllocateError`], also for no bytes and for more than 4 GiB.
    pub fn lend_mut(&'scope self, bytes: &'env mut [u8]) -> Result<Lent, AllocateError> {
        let len = bytes.len();
        let start = NonNull::from(bytes).cast::<u8>();
        // SAFETY: borrowed mutably for `'env`, registered for less (rules 1 to 3).
        unsafe { self.enter(start, len, Access::LOCAL_WRITE) }
    }

    /// # Safety
    ///
    /// The bytes are borrowed for `'env`, mutably if `access` allows writing.
    unsafe fn enter(
        &'scope self,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Lent, AllocateError> {
        let short = u32::try_from(len).map_err(|_| AllocateError::TooLong { len })?;
        // SAFETY: the caller's promise; the region ends with the scope (rules 1 and 2).
        let region = unsafe { self.pd.register_region(start, len, access) }?;
        let sge = Sge { addr: region.addr(), len: short, lkey: region.lkey() };
        let lent = Lent::new(sge, self.pd.domain().number(), region);
        self.lent.0.lock().push(lent.clone());
        Ok(lent)
    }
}
