//! What is made from a context: memory regions, queues, queue pairs, address handles.
//!
//! Each value holds what it was made from, so that C's objects end in the order that C wants: a queue
//! pair before its queues, everything before its domain and its context.
//!
//! # Safety
//!
//! 1. Each value holds the pointer that the library returned until it is dropped, and holds the values
//!    whose pointers the library keeps in it. So all pointers are good while they can be used.
//! 2. The library's functions may be called from any thread, on any object at once, but for ending it:
//!    that is done in `drop`, when no other code has it.
//! 3. Completion events are acknowledged before the call that took them returns. The library does not
//!    let a queue end before that, so that the queue of an event is there to be looked at.
//! 4. What a program posts is the caller's promise, as `adverb-verbs` passes it on: the device checks
//!    keys, ranges and rights, and what it cannot know is which code holds references to the bytes.

use crate::context::{Context, check, nonblocking};
use crate::layout::{
    self, AhAttr, QpAttr, QpCap, QpInitAttr, RecvWr, SendWr, Sge, SrqAttr, SrqInitAttr, Wc,
};
use libc::{c_int, c_uint, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// A number of the program's, kept by the library in the place of a pointer.
fn context_of_addr(context: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(context).unwrap_or(usize::MAX))
}

/// The number that was put in the place of a pointer.
pub(crate) fn addr_of_context(context: *mut c_void) -> u64 {
    u64::try_from(context.addr()).unwrap_or(u64::MAX)
}

fn made<T>(raw: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(raw).ok_or_else(io::Error::last_os_error)
}

macro_rules! shareable {
    ($($name:ident)*) => {
        $(
            // SAFETY: the library may be called from any thread (rule 2).
            unsafe impl Send for $name {}
            // SAFETY: the library may be called from any thread (rule 2).
            unsafe impl Sync for $name {}
        )*
    };
}

shareable! { Ah Channel Cq Mr Pd Qp Srq }

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    raw: NonNull<layout::Pd>,
    context: Arc<Context>,
}

impl Pd {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn new(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: a context that is open for as long as it is borrowed.
        let raw = unsafe { (context.library.ibv_alloc_pd)(context.raw()) };
        Ok(Self { raw: made(raw)?, context: Arc::clone(context) })
    }

    /// What it was made from.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: made once, and whatever was made from it has gone (rule 1).
        unsafe { (self.context.library.ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// A memory region. It ends when it is dropped; where the device does not release the memory, the
/// process ends, because that memory could not be used again.
#[derive(Debug)]
pub struct Mr {
    raw: NonNull<layout::Mr>,
    lkey: u32,
    rkey: u32,
    pd: Arc<Pd>,
}

impl Mr {
    /// Registers memory that is known by the addresses from `iova` on. `access` has the bits of
    /// `enum ibv_access_flags`.
    ///
    /// # Errors
    ///
    /// The library's; `Unsupported` if addresses cannot be chosen, nor hints be given.
    ///
    /// # Safety
    ///
    /// `start..start + len` stays mapped until this is dropped: readable, and writable if `access`
    /// allows any writing. Until then no code holds a reference to bytes of it that an access by the
    /// device or a peer could make untrue.
    pub unsafe fn register(
        pd: &Arc<Pd>,
        start: NonNull<u8>,
        len: usize,
        iova: u64,
        access: u32,
    ) -> io::Result<Self> {
        let library = pd.context.library;
        let base = start.as_ptr().cast::<c_void>();
        let plain = access & HINTS == 0 && u64::try_from(base.addr()) == Ok(iova);
        let raw = match library.ibv_reg_mr_iova2 {
            // SAFETY: a domain (rule 1), and the caller's promise.
            Some(register) if !plain => unsafe {
                register(pd.raw.as_ptr(), base, len, iova, access)
            },
            None if !plain => return Err(io::ErrorKind::Unsupported.into()),
            // SAFETY: a domain (rule 1), and the caller's promise.
            Some(_) | None => unsafe {
                (library.ibv_reg_mr)(pd.raw.as_ptr(), base, len, access.cast_signed())
            },
        };
        let raw = made(raw)?;
        // SAFETY: the library has just made it, and no other code has it.
        let layout::Mr { lkey, rkey, .. } = *unsafe { raw.as_ref() };
        Ok(Self { raw, lkey, rkey, pd: Arc::clone(pd) })
    }

    /// The local key.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The remote key.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Its domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}

/// Bits of `enum ibv_access_flags` that a device may ignore, and old functions do not know.
const HINTS: u32 = 0x3ff0_0000;

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: the library made it once, and it ends once, here.
        let code = unsafe { (self.pd.context.library.ibv_dereg_mr)(self.raw.as_ptr()) };
        let gone =
            |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EIO | libc::ENODEV));
        if let Err(error) = check(code).or_else(|e| if gone(&e) { Ok(()) } else { Err(e) }) {
            let device = self.pd.context.name();
            eprintln!("adverb: {device} does not let go of memory that ends: {error}");
            std::process::abort();
        }
    }
}

/// A completion channel.
#[derive(Debug)]
pub struct Channel {
    raw: NonNull<layout::CompChannel>,
    context: Arc<Context>,
}

impl Channel {
    /// Makes one, whose descriptor does not block.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn new(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: a context that is open for as long as it is borrowed.
        let raw = unsafe { (context.library.ibv_create_comp_channel)(context.raw()) };
        let channel = Self { raw: made(raw)?, context: Arc::clone(context) };
        nonblocking(channel.fd())?;
        Ok(channel)
    }

    /// A descriptor that can be read while there are events.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the pointer is good for as long as `self` lives (rule 1).
        let fd = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: the channel keeps it open for as long as `self` lives (rule 1).
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Takes an event, if there is one, and acknowledges it; says what the maker of its queue gave
    /// that. Does not wait.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn take(&self) -> io::Result<Option<u64>> {
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let library = self.context.library;
        // SAFETY: a channel (rule 1), and places for the answers. The descriptor does not block.
        let code =
            unsafe { (library.ibv_get_cq_event)(self.raw.as_ptr(), &raw mut cq, &raw mut context) };
        if code != 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        // SAFETY: the event that was just taken, once (rule 3).
        unsafe { (library.ibv_ack_cq_events)(cq, 1) };
        Ok(Some(addr_of_context(context)))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made once, and its queues have gone (rule 1).
        unsafe { (self.context.library.ibv_destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// The queue can not be polled any more: it has overrun, or its device has gone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Dead;

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    raw: NonNull<layout::Cq>,
    poll: unsafe extern "C" fn(*mut layout::Cq, c_int, *mut Wc) -> c_int,
    arm: unsafe extern "C" fn(*mut layout::Cq, c_int) -> c_int,
    _channel: Option<Arc<Channel>>,
    context: Arc<Context>,
}

impl Cq {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn new(
        context: &Arc<Context>,
        cqe: u32,
        name: u64,
        channel: Option<&Arc<Channel>>,
        vector: u32,
    ) -> io::Result<Self> {
        let at = channel.map_or(std::ptr::null_mut(), |channel| channel.raw.as_ptr());
        let (cqe, vector) = (count(cqe), count(vector));
        let name = context_of_addr(name);
        // SAFETY: an open context and a channel of it, or none (rule 1).
        let raw = unsafe { (context.library.ibv_create_cq)(context.raw(), cqe, name, at, vector) };
        let raw = made(raw)?;
        let ops = ops(context);
        let Ops { poll: Some(poll), arm: Some(arm), .. } = ops else {
            // SAFETY: the library has just made it, and no other code has it.
            unsafe { (context.library.ibv_destroy_cq)(raw.as_ptr()) };
            return Err(io::ErrorKind::Unsupported.into());
        };
        Ok(Self { raw, poll, arm, _channel: channel.cloned(), context: Arc::clone(context) })
    }

    /// Completions that it holds.
    pub fn capacity(&self) -> usize {
        // SAFETY: the pointer is good for as long as `self` lives (rule 1).
        let cqe = unsafe { (*self.raw.as_ptr()).cqe };
        usize::try_from(cqe).unwrap_or(0)
    }

    /// Takes completions; says how many.
    ///
    /// # Errors
    ///
    /// [`Dead`].
    #[inline]
    pub fn poll(&self, out: &mut [Wc]) -> Result<usize, Dead> {
        let room = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        // SAFETY: a queue (rule 1), and room for as many completions as is named.
        let taken = unsafe { (self.poll)(self.raw.as_ptr(), room, out.as_mut_ptr()) };
        usize::try_from(taken).map_err(|_| Dead)
    }

    /// Asks for an event.
    ///
    /// # Errors
    ///
    /// The library's.
    #[inline]
    pub fn arm(&self, solicited_only: bool) -> io::Result<()> {
        // SAFETY: the pointer is good for as long as `self` lives (rule 1).
        check(unsafe { (self.arm)(self.raw.as_ptr(), c_int::from(solicited_only)) })
    }

    /// Changes how many completions it holds.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn resize(&self, cqe: u32) -> io::Result<()> {
        // SAFETY: the pointer is good for as long as `self` lives (rule 1).
        check(unsafe { (self.context.library.ibv_resize_cq)(self.raw.as_ptr(), count(cqe)) })
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: made once, and its queue pairs have gone (rule 1).
        unsafe { (self.context.library.ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}

/// Functions of a context that the header's inline functions call.
struct Ops {
    poll: Option<unsafe extern "C" fn(*mut layout::Cq, c_int, *mut Wc) -> c_int>,
    arm: Option<unsafe extern "C" fn(*mut layout::Cq, c_int) -> c_int>,
    post_send: Option<PostSend>,
    post_recv: Option<PostRecv>,
    post_srq_recv: Option<PostSrqRecv>,
}

type PostSend = unsafe extern "C" fn(*mut layout::Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut layout::Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;
type PostSrqRecv = unsafe extern "C" fn(*mut layout::Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int;

fn ops(context: &Context) -> Ops {
    // SAFETY: a context that is open for as long as it is borrowed.
    let ops = unsafe { &(*context.raw()).ops };
    Ops {
        poll: ops.poll_cq,
        arm: ops.req_notify_cq,
        post_send: ops.post_send,
        post_recv: ops.post_recv,
        post_srq_recv: ops.post_srq_recv,
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    raw: NonNull<layout::Srq>,
    post: PostSrqRecv,
    pd: Arc<Pd>,
}

impl Srq {
    /// Makes one, and says what it holds at least.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn new(pd: &Arc<Pd>, name: u64, attr: SrqAttr) -> io::Result<(Self, SrqAttr)> {
        let library = pd.context.library;
        let mut init = SrqInitAttr { srq_context: context_of_addr(name), attr };
        // SAFETY: a domain (rule 1), and a place for the answer.
        let raw = unsafe { (library.ibv_create_srq)(pd.raw.as_ptr(), &raw mut init) };
        let raw = made(raw)?;
        let Some(post) = ops(&pd.context).post_srq_recv else {
            // SAFETY: the library has just made it, and no other code has it.
            unsafe { (library.ibv_destroy_srq)(raw.as_ptr()) };
            return Err(io::ErrorKind::Unsupported.into());
        };
        Ok((Self { raw, post, pd: Arc::clone(pd) }, init.attr))
    }

    /// What it is like now.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn query(&self) -> io::Result<SrqAttr> {
        let mut attr = SrqAttr::default();
        let query = self.pd.context.library.ibv_query_srq;
        // SAFETY: rule 1, and a place for the answer.
        check(unsafe { query(self.raw.as_ptr(), &raw mut attr) })?;
        Ok(attr)
    }

    /// Changes what `mask` says.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn modify(&self, mut attr: SrqAttr, mask: i32) -> io::Result<()> {
        let modify = self.pd.context.library.ibv_modify_srq;
        // SAFETY: the pointer is good for as long as `self` lives (rule 1).
        check(unsafe { modify(self.raw.as_ptr(), &raw mut attr, mask) })
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// The library's.
    ///
    /// # Safety
    ///
    /// Until the receive has completed, no code holds a reference to bytes of `sges`.
    #[inline]
    pub unsafe fn post(&self, wr_id: u64, sges: &[Sge]) -> io::Result<()> {
        let (mut wr, mut bad) = (receive(wr_id, sges), std::ptr::null_mut());
        // SAFETY: rule 1, a list of one, and the caller's promise (rule 4).
        check(unsafe { (self.post)(self.raw.as_ptr(), &raw mut wr, &raw mut bad) })
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: made once, and its queue pairs have gone (rule 1).
        unsafe { (self.pd.context.library.ibv_destroy_srq)(self.raw.as_ptr()) };
    }
}

fn receive(wr_id: u64, sges: &[Sge]) -> RecvWr {
    let num_sge = c_int::try_from(sges.len()).unwrap_or(c_int::MAX);
    RecvWr { wr_id, next: std::ptr::null_mut(), sg_list: sges.as_ptr(), num_sge }
}

/// What a queue pair is made of.
#[derive(Debug)]
pub struct QpMakings<'a> {
    /// Names it in its events.
    pub name: u64,
    /// Where requests complete.
    pub send_cq: &'a Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: &'a Arc<Cq>,
    /// Where receives come from.
    pub srq: Option<&'a Arc<Srq>>,
    /// What it holds at least.
    pub cap: QpCap,
    /// `enum ibv_qp_type`.
    pub kind: i32,
    /// Every request completes visibly.
    pub signal_all: bool,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    raw: NonNull<layout::Qp>,
    number: u32,
    post_send: PostSend,
    post_recv: PostRecv,
    _srq: Option<Arc<Srq>>,
    _cqs: [Arc<Cq>; 2],
    pd: Arc<Pd>,
}

impl Qp {
    /// Makes one, and says what it holds.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn new(pd: &Arc<Pd>, of: &QpMakings<'_>) -> io::Result<(Self, QpCap)> {
        let library = pd.context.library;
        let mut init = QpInitAttr {
            qp_context: context_of_addr(of.name),
            send_cq: of.send_cq.raw.as_ptr(),
            recv_cq: of.recv_cq.raw.as_ptr(),
            srq: of.srq.map_or(std::ptr::null_mut(), |srq| srq.raw.as_ptr()),
            cap: of.cap,
            qp_type: of.kind,
            sq_sig_all: c_int::from(of.signal_all),
        };
        // SAFETY: a domain and queues (rule 1), and a place for the answer.
        let raw = unsafe { (library.ibv_create_qp)(pd.raw.as_ptr(), &raw mut init) };
        let raw = made(raw)?;
        let Ops { post_send: Some(post_send), post_recv: Some(post_recv), .. } = ops(&pd.context)
        else {
            // SAFETY: the library has just made it, and no other code has it.
            unsafe { (library.ibv_destroy_qp)(raw.as_ptr()) };
            return Err(io::ErrorKind::Unsupported.into());
        };
        // SAFETY: the library has just made it, and no other code has it.
        let number = unsafe { (*raw.as_ptr()).qp_num };
        let qp = Self {
            raw,
            number,
            post_send,
            post_recv,
            _srq: of.srq.cloned(),
            _cqs: [Arc::clone(of.send_cq), Arc::clone(of.recv_cq)],
            pd: Arc::clone(pd),
        };
        Ok((qp, init.cap))
    }

    /// Its number.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Changes what `mask` says.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn modify(&self, mut attr: QpAttr, mask: i32) -> io::Result<()> {
        let modify = self.pd.context.library.ibv_modify_qp;
        // SAFETY: the pointer is good for as long as `self` lives (rule 1).
        check(unsafe { modify(self.raw.as_ptr(), &raw mut attr, mask) })
    }

    /// What it is set to.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn query(&self, mask: i32) -> io::Result<QpAttr> {
        let mut attr = QpAttr::default();
        let mut init = MaybeUninit::<QpInitAttr>::zeroed();
        let query = self.pd.context.library.ibv_query_qp;
        // SAFETY: rule 1, and places for the answers.
        check(unsafe { query(self.raw.as_ptr(), &raw mut attr, mask, init.as_mut_ptr()) })?;
        Ok(attr)
    }

    /// Posts a list of requests, which `batch` is linked to; says how many were posted.
    ///
    /// # Errors
    ///
    /// How many were posted, and why the next was not.
    ///
    /// # Safety
    ///
    /// The pieces that the requests name are there now. Until a request has completed, no code holds a
    /// reference to bytes of registered pieces that it changes, nor a `&mut` reference to those that
    /// it reads. Address handles in it are of this domain and live until then.
    #[inline]
    pub unsafe fn post_send(&self, batch: &mut [SendWr]) -> Result<(), (usize, io::Error)> {
        let first = batch.as_mut_ptr();
        if batch.is_empty() {
            return Ok(());
        }
        let mut next: *mut SendWr = std::ptr::null_mut();
        for (at, wr) in (0..batch.len()).zip(batch.iter_mut()).rev() {
            wr.next = next;
            next = first.wrapping_add(at);
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: rule 1, a list whose links were just made, and the caller's promise (rule 4).
        let code = unsafe { (self.post_send)(self.raw.as_ptr(), first, &raw mut bad) };
        check(code).map_err(|error| {
            let done = bad.addr().saturating_sub(first.addr()) / size_of::<SendWr>();
            (if bad.is_null() { 0 } else { done.min(batch.len()) }, error)
        })
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// The library's.
    ///
    /// # Safety
    ///
    /// Until the receive has completed, no code holds a reference to bytes of `sges`.
    #[inline]
    pub unsafe fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> io::Result<()> {
        let (mut wr, mut bad) = (receive(wr_id, sges), std::ptr::null_mut());
        // SAFETY: rule 1, a list of one, and the caller's promise (rule 4).
        check(unsafe { (self.post_recv)(self.raw.as_ptr(), &raw mut wr, &raw mut bad) })
    }

    /// Attaches it to a multicast group.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn attach(&self, group: &[u8; 16]) -> io::Result<()> {
        let attach = self.pd.context.library.ibv_attach_mcast;
        // SAFETY: rule 1, and an identifier.
        check(unsafe { attach(self.raw.as_ptr(), group, 0) })
    }

    /// Detaches it.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn detach(&self, group: &[u8; 16]) -> io::Result<()> {
        let detach = self.pd.context.library.ibv_detach_mcast;
        // SAFETY: rule 1, and an identifier.
        check(unsafe { detach(self.raw.as_ptr(), group, 0) })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: the library made it once, and it ends once, here.
        unsafe { (self.pd.context.library.ibv_destroy_qp)(self.raw.as_ptr()) };
    }
}

/// An address handle.
#[derive(Debug)]
pub struct Ah {
    raw: NonNull<layout::Ah>,
    pd: Arc<Pd>,
}

impl Ah {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn new(pd: &Arc<Pd>, mut attr: AhAttr) -> io::Result<Self> {
        let create = pd.context.library.ibv_create_ah;
        // SAFETY: a domain (rule 1).
        let raw = unsafe { create(pd.raw.as_ptr(), &raw mut attr) };
        Ok(Self { raw: made(raw)?, pd: Arc::clone(pd) })
    }

    /// For a request.
    #[inline]
    pub fn as_ptr(&self) -> *mut layout::Ah {
        self.raw.as_ptr()
    }

    /// Its domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: made once, and no request that names it is outstanding: those hold it.
        unsafe { (self.pd.context.library.ibv_destroy_ah)(self.raw.as_ptr()) };
    }
}

fn count(n: c_uint) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}
