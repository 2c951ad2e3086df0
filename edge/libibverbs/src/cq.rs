//! Completion queues, plain and extended, and completion channels.
//!
//! # Safety
//!
//! 1. As in `export.rs` and `boxed.rs`.
//! 2. The device knows completion queues, queue pairs and shared receive queues by the address of what C knows of
//!    them. It forgets their events when they end, which is before their memory goes.
//! 3. Between `start_poll` and `end_poll` the completion in an extended queue is the caller's, which holds its lock.

use crate::acknowledge::{acknowledge, wait_acknowledged};
use crate::boxed::{Boxed, Plain, name_of, named};
use crate::context;
use crate::descriptor::Descriptor;
use crate::errno::{Answer, Errno, INVALID, UNSUPPORTED};
use crate::export::{caught, entry, export, is_ours};
use crate::memory::{Use, free};
use crate::waiting::Attempt;
use adverb_device::{
    Arm, CompChannel, Completion, CompletionQueue, CqConfig, Port, Timestamps, WcOpcode, WcStatus,
};
use adverb_ibv::layout::{self, value};
use libc::{c_int, c_uint, c_void, pthread_mutex_t};
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What is ours of a completion channel.
pub(crate) struct ChannelInner {
    fd: Descriptor,
    channel: CompChannel,
    uses: Use,
}

type Channel = Boxed<layout::CompChannel, ChannelInner>;

/// What is ours of a completion queue.
pub(crate) struct CqInner {
    /// There until the queue is destroyed.
    pub(crate) cq: Option<adverb_device::Cq>,
    port: Arc<Port>,
    pub(crate) uses: Use,
    channel: Option<(Use, *mut layout::CompChannel)>,
    /// Events that the program has taken.
    comp_events: AtomicU32,
    pub(crate) async_events: AtomicU32,
    _domain: Option<Use>,
    /// The lock and the completion of an extended queue (rule 3).
    poll_lock: UnsafeCell<pthread_mutex_t>,
    single_threaded: bool,
    current: UnsafeCell<Completion>,
    /// Polls in turn that have found nothing.
    empty: AtomicU32,
}

/// Every queue has room for what an extended one has.
pub(crate) type Cq = Boxed<layout::CqEx, CqInner>;

/// The queue behind a program's pointer.
///
/// # Safety
///
/// It is one of ours, or null.
pub(crate) unsafe fn cq_of<'a>(cq: *mut layout::Cq) -> Answer<&'a Cq> {
    // SAFETY: the caller's promise.
    unsafe { Cq::checked(cq.cast()) }
}

export! {
    pointer "IBVERBS_1.0"
    fn ibv_create_comp_channel(context: *mut layout::Context) -> *mut layout::CompChannel,
    of context is context::is_ours, {
        // SAFETY: one of ours, or null.
        let inner = unsafe { context::of(context) }?;
        let channel = inner.port.create_comp_channel()?;
        let mut c = layout::CompChannel::zeroed();
        let fd = Descriptor::watching(channel.watch_events())?;
        (c.context, c.fd) = (context, fd.number());
        Ok(Channel::give(c, ChannelInner { fd, channel, uses: Use::default() }))
    }
}

unsafe fn channel_of<'a>(channel: *mut layout::CompChannel) -> Answer<&'a Channel> {
    // SAFETY: the caller's promise.
    unsafe { Channel::checked(channel) }
}

export! {
    code "IBVERBS_1.0"
    fn ibv_destroy_comp_channel(channel: *mut layout::CompChannel) -> c_int, of channel {
        // SAFETY: one of ours, or null.
        free(&unsafe { channel_of(channel) }?.uses)?;
        // SAFETY: nothing uses it any more.
        drop(unsafe { Channel::take(channel) });
        Ok(())
    }
}

/// How to make a queue.
struct Makings {
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut layout::CompChannel,
    comp_vector: u32,
    timestamps: Timestamps,
    single_threaded: bool,
    domain: Option<Use>,
}

fn create(context: *mut layout::Context, of: Makings) -> Answer<*mut layout::CqEx> {
    // SAFETY: one of ours, or null.
    let inner = unsafe { context::of(context) }?;
    if of.cqe == 0 || of.cqe > CompletionQueue::CAPACITY_MAX || of.comp_vector > 0 {
        return Err(INVALID);
    }
    let channel = match of.channel.is_null() {
        true => None,
        // SAFETY: one of ours.
        false => Some(unsafe { channel_of(of.channel) }?),
    };
    // SAFETY: one of ours, or null.
    unsafe { context::own_all(context, [of.channel.cast()]) }?;
    let mut c = layout::CqEx::zeroed();
    c.cq.context = context;
    (c.cq.channel, c.cq.cq_context) = (of.channel, of.cq_context);
    c.cq.cqe = c_int::try_from(of.cqe).map_err(|_| INVALID)?;
    let made = Cq::give(
        c,
        CqInner {
            cq: None,
            port: Arc::clone(&inner.port),
            uses: Use::default(),
            channel: channel.map(|channel| (Arc::clone(&channel.uses), of.channel)),
            comp_events: AtomicU32::new(0),
            async_events: AtomicU32::new(0),
            _domain: of.domain,
            poll_lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            single_threaded: of.single_threaded,
            current: UnsafeCell::new(Completion::EMPTY),
            empty: AtomicU32::new(0),
        },
    );
    if !of.channel.is_null() {
        count_channel(of.channel, 1);
    }
    // SAFETY: just made, and not shared yet.
    unsafe { Cq::of_mut(made) }.ours_mut().cq = Some(inner.port.create_cq(&CqConfig {
        capacity: of.cqe,
        context: name_of(made),
        channel: channel.map(|channel| channel.channel.clone()),
        events: Some(Arc::clone(&inner.events)),
        timestamps: of.timestamps,
    }));
    Ok(made)
}

/// Counts queues of a channel where the program can see it.
fn count_channel(channel: *mut layout::CompChannel, change: c_int) {
    // SAFETY: a channel of ours.
    let place = unsafe { &raw mut (*channel).refcnt };
    // SAFETY: an aligned field that lives as long as the channel, and that is changed here alone.
    let count = unsafe { std::sync::atomic::AtomicI32::from_ptr(place) };
    count.fetch_add(change, Ordering::Relaxed);
}

export! {
    pointer "IBVERBS_1.1"
    fn ibv_create_cq(
        context: *mut layout::Context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut layout::CompChannel,
        comp_vector: c_int,
    ) -> *mut layout::Cq, of context is context::is_ours, {
        let made = create(context, Makings {
            cqe: u32::try_from(cqe).map_err(|_| INVALID)?,
            cq_context,
            channel,
            comp_vector: u32::try_from(comp_vector).map_err(|_| INVALID)?,
            timestamps: Timestamps::None,
            single_threaded: false,
            domain: None,
        })?;
        Ok(made.cast())
    }
}

/// What an extended queue here can say of a completion: all but tags of tag matching.
const WC_KNOWN: u64 = value::WC_STANDARD_FLAGS
    | value::WC_EX_WITH_COMPLETION_TIMESTAMP
    | value::WC_EX_WITH_CVLAN
    | value::WC_EX_WITH_FLOW_TAG
    | value::WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

entry! {
    pointer
    fn create_cq_ex(
        context: *mut layout::Context,
        attr: *mut layout::CqInitAttrEx,
    ) -> *mut layout::CqEx {
        // SAFETY: the program's structure, or null.
        let attr = unsafe { attr.as_ref() }.ok_or(INVALID)?;
        let known = value::CQ_INIT_ATTR_MASK_FLAGS | value::CQ_INIT_ATTR_MASK_PD;
        if attr.comp_mask & !known != 0 || attr.wc_flags & !WC_KNOWN != 0 {
            return Err(UNSUPPORTED);
        }
        let given = |mask| attr.comp_mask & mask != 0;
        let flags = if given(value::CQ_INIT_ATTR_MASK_FLAGS) { attr.flags } else { 0 };
        let known =
            value::CREATE_CQ_ATTR_SINGLE_THREADED | value::CREATE_CQ_ATTR_IGNORE_OVERRUN;
        if flags & !known != 0 {
            return Err(UNSUPPORTED);
        }
        let domain = match given(value::CQ_INIT_ATTR_MASK_PD) {
            true => {
                // SAFETY: one of ours, or null.
                let domain = unsafe { crate::memory::pd_of(attr.parent_domain) }?;
                Some(Arc::clone(&domain.uses))
            }
            false => None,
        };
        let stamped = |flag| attr.wc_flags & flag != 0;
        let timestamps = match (
            stamped(value::WC_EX_WITH_COMPLETION_TIMESTAMP),
            stamped(value::WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK),
        ) {
            (true, _) => Timestamps::Monotonic,
            (false, true) => Timestamps::WallClock,
            (false, false) => Timestamps::None,
        };
        let made = create(
            context,
            Makings {
                cqe: attr.cqe,
                cq_context: attr.cq_context,
                channel: attr.channel,
                comp_vector: attr.comp_vector,
                timestamps,
                single_threaded: flags & value::CREATE_CQ_ATTR_SINGLE_THREADED != 0,
                domain,
            },
        )?;
        // SAFETY: just made, and not shared yet.
        let c = unsafe { &mut *made };
        c.start_poll = Some(start_poll);
        c.next_poll = Some(next_poll);
        c.end_poll = Some(end_poll);
        c.read_opcode = Some(read_opcode);
        c.read_vendor_err = Some(read_vendor_err);
        c.read_byte_len = Some(read_byte_len);
        c.read_imm_data = Some(read_imm_data);
        c.read_qp_num = Some(read_qp_num);
        c.read_src_qp = Some(read_src_qp);
        c.read_wc_flags = Some(read_wc_flags);
        c.read_slid = Some(read_nothing);
        c.read_sl = Some(read_sl);
        c.read_dlid_path_bits = Some(read_no_path_bits);
        c.read_completion_ts = Some(read_timestamp);
        c.read_completion_wallclock_ns = Some(match timestamps {
            Timestamps::Monotonic => read_wall_clock,
            Timestamps::WallClock | Timestamps::None => read_timestamp,
        });
        c.read_cvlan = Some(read_no_vlan);
        c.read_flow_tag = Some(read_nothing);
        Ok(made)
    }
}

export! {
    code "IBVERBS_1.1"
    fn ibv_resize_cq(cq: *mut layout::Cq, cqe: c_int) -> c_int, of cq {
        // SAFETY: one of ours, or null.
        let inner = unsafe { cq_of(cq) }?;
        let asked = u32::try_from(cqe).map_err(|_| INVALID)?;
        inner.cq.as_ref().ok_or(INVALID)?.resize(asked)?;
        // SAFETY: a field of a queue that lives (rule 3 of `boxed.rs`).
        unsafe { (&raw mut (*cq).cqe).write(cqe) };
        Ok(())
    }
}

export! {
    code "IBVERBS_1.1"
    fn ibv_destroy_cq(cq: *mut layout::Cq) -> c_int, of cq {
        // SAFETY: one of ours, or null.
        free(&unsafe { cq_of(cq) }?.uses)?;
        // SAFETY: no queue pair uses it, and the program does not use it any more.
        let whole = unsafe { Cq::of_mut(cq.cast()) };
        drop(whole.ours_mut().cq.take());
        let (comp, events) = (whole.comp_events.load(Ordering::Acquire), whole.async_events.load(Ordering::Acquire));
        let c = whole.c();
        // SAFETY: fields of a queue that lives.
        let (mutex, cond) = unsafe { (&raw mut (*c).cq.mutex, &raw mut (*c).cq.cond) };
        // SAFETY: as above.
        let done = unsafe {
            [(&raw const (*c).cq.comp_events_completed, comp), (&raw const (*c).cq.async_events_completed, events)]
        };
        wait_acknowledged(mutex, cond, &done);
        // SAFETY: nothing uses it any more.
        let inner = unsafe { Cq::take(cq.cast()) };
        if let Some((_, channel)) = &inner.channel {
            count_channel(*channel, -1);
        }
        Ok(())
    }
}

/// There is nothing now.
pub(crate) const AGAIN: Errno = Errno(libc::EAGAIN);

/// How long a thread that waits for an event drives the device. After that it waits for the descriptor alone, where it can be
/// cancelled.
const PATIENCE: Duration = Duration::from_millis(100);

export! {
    minus waits "IBVERBS_1.1"
    fn ibv_get_cq_event(
        channel: *mut layout::CompChannel, cq: *mut *mut layout::Cq, cq_context: *mut *mut c_void,
    ) -> c_int, of channel is is_ours, {
        // SAFETY: one of ours, or null.
        let inner = unsafe { channel_of(channel) }?;
        // SAFETY: the program's places, or null.
        let (cq, cq_context) = unsafe { (cq.as_mut().ok_or(INVALID)?, cq_context.as_mut().ok_or(INVALID)?) };
        let waits = || !inner.fd.is_non_blocking();
        let Some(notice) = inner.channel.get_unless_signal(waits, PATIENCE)? else {
            return if waits() { Ok(Attempt::Waits(inner.fd.number())) } else { Err(AGAIN) };
        };
        notice.acknowledge(1);
        *cq = named(notice.context());
        // SAFETY: the queue lives: its events are forgotten when it ends (rule 2).
        let queue = unsafe { cq_of(*cq) }?;
        queue.comp_events.fetch_add(1, Ordering::Release);
        // SAFETY: a field of a queue that lives.
        *cq_context = unsafe { (**cq).cq_context };
        Ok(Attempt::Done)
    }
}

export! {
    value "IBVERBS_1.1"
    fn ibv_ack_cq_events(cq: *mut layout::Cq, count: c_uint) -> (), of cq {
        // SAFETY: one of ours, or null.
        unsafe { cq_of(cq) }?;
        // SAFETY: fields of a queue that lives.
        let (mutex, cond, completed) = unsafe {
            (&raw mut (*cq).mutex, &raw mut (*cq).cond, &raw mut (*cq).comp_events_completed)
        };
        acknowledge(mutex, cond, completed, count);
        Ok(())
    }
}

/// What a request was, as C has it.
pub(crate) fn opcode_for_c(opcode: WcOpcode) -> c_int {
    match opcode {
        WcOpcode::Send => value::WC_SEND,
        WcOpcode::RdmaWrite => value::WC_RDMA_WRITE,
        WcOpcode::RdmaRead => value::WC_RDMA_READ,
        WcOpcode::CompareSwap => value::WC_COMP_SWAP,
        WcOpcode::FetchAdd => value::WC_FETCH_ADD,
        WcOpcode::AtomicWrite => value::WC_ATOMIC_WRITE,
        WcOpcode::Flush => value::WC_FLUSH,
        WcOpcode::LocalInvalidate => value::WC_LOCAL_INV,
        WcOpcode::BindWindow => value::WC_BIND_MW,
        WcOpcode::ReceiveRdmaWithImm => value::WC_RECV_RDMA_WITH_IMM,
        WcOpcode::Receive | _ => value::WC_RECV,
    }
}

fn flags_for_c(wc: &Completion) -> c_uint {
    let flag = |set, flag| if set { flag } else { 0 };
    flag(wc.grh, value::WC_FLAG_GRH)
        | flag(wc.imm.is_some(), value::WC_FLAG_WITH_IMM)
        | flag(wc.invalidated.is_some(), value::WC_FLAG_WITH_INV)
}

fn imm_for_c(wc: &Completion) -> u32 {
    match (wc.imm, wc.invalidated) {
        (Some(imm), _) => imm.0.to_be(),
        (None, Some(key)) => key.0,
        (None, None) => 0,
    }
}

/// The network protocol of a datagram, where adapters for RoCE say it: 1 is IPv6 and 2 IPv4; 8 more for UDP.
fn sl_for_c(wc: &Completion) -> u8 {
    match wc.grh {
        true if wc.ipv6 => 0b1001,
        true => 0b1010,
        false => 0,
    }
}

#[inline]
fn for_c(wc: &Completion) -> layout::Wc {
    layout::Wc {
        wr_id: wc.wr_id,
        status: wc.status.code().into(),
        opcode: opcode_for_c(wc.opcode),
        vendor_err: if wc.status == WcStatus::Success { 0 } else { wc.vendor_err() },
        byte_len: wc.byte_len,
        imm_data: imm_for_c(wc),
        qp_num: wc.qp.get(),
        src_qp: wc.src_qp.get(),
        wc_flags: flags_for_c(wc),
        pkey_index: wc.pkey_index,
        slid: 0,
        sl: sl_for_c(wc),
        dlid_path_bits: 0,
    }
}

/// Completions that the first look of a poll can take: most polls find no more.
const FEW: usize = 2;
/// Those that are taken together after it.
const BATCH: usize = 16;
/// Polls in turn that find nothing before a thread lets others run, and again after so many more: a message that is on its
/// way is there before that.
const EMPTY_MAX: u32 = 256;
const EMPTY_MORE: u32 = 32;

impl CqInner {
    /// A poll has found nothing: now and then a peer that waits for a processor gets one. True if it did: the poll looks
    /// again then. That may have taken milliseconds, and programs look next for other news, such as the end of a
    /// connection, and destroy its queue pair together with completions that came before it.
    #[must_use]
    fn found_nothing(&self) -> bool {
        // Threads that poll one queue at once may count one poll for two.
        let count = self.empty.load(Ordering::Relaxed) + 1;
        let yields = count >= EMPTY_MAX;
        self.empty.store(if yields { EMPTY_MAX - EMPTY_MORE } else { count }, Ordering::Relaxed);
        if yields {
            std::thread::yield_now();
        }
        yields
    }

    /// A poll has found something.
    fn found_something(&self) {
        self.empty.store(0, Ordering::Relaxed);
    }
}

/// Looks for completions, and takes up to `FEW`, and no more than `room`; says how many.
///
/// # Safety
///
/// The program has a place for `room` completions.
#[inline(always)]
unsafe fn look(queue: &adverb_device::Cq, places: *mut layout::Wc, room: usize) -> Answer<usize> {
    let mut few = [Completion::EMPTY; FEW];
    let part = few.get_mut(..room.min(FEW)).unwrap_or_default();
    let found = queue.poll(part).map_err(|_| Errno(libc::EIO))?;
    for (at, wc) in few.iter().take(found).enumerate() {
        // SAFETY: the caller's promise.
        unsafe { places.add(at).write(for_c(wc)) };
    }
    Ok(found)
}

/// The same, for a poll that has let others run.
///
/// # Safety
///
/// As for [`look`].
#[inline(never)]
unsafe fn look_again(
    queue: &adverb_device::Cq,
    places: *mut layout::Wc,
    room: usize,
) -> Answer<usize> {
    // SAFETY: the caller's promise.
    unsafe { look(queue, places, room) }
}

/// Takes what a look has left in the queue; says how many. There is no further look: most find nothing.
///
/// # Safety
///
/// As for [`look`].
#[inline(never)]
unsafe fn take_rest(queue: &adverb_device::Cq, places: *mut layout::Wc, room: usize) -> usize {
    let mut taken = 0;
    let mut batch = [Completion::EMPTY; BATCH];
    while taken < room {
        let part = batch.get_mut(..BATCH.min(room - taken)).unwrap_or_default();
        let found = queue.take(part);
        for (at, wc) in batch.iter().take(found).enumerate() {
            // SAFETY: the caller's promise: so many are left.
            unsafe { places.add(taken + at).write(for_c(wc)) };
        }
        taken += found;
        if found < BATCH {
            break;
        }
    }
    taken
}

pub(crate) unsafe extern "C" fn poll_cq(
    cq: *mut layout::Cq,
    count: c_int,
    places: *mut layout::Wc,
) -> c_int {
    let taken = caught(|| {
        // SAFETY: one of ours, or null.
        let inner = unsafe { cq_of(cq) }?;
        let queue = inner.cq.as_ref().ok_or(INVALID)?;
        let room = usize::try_from(count).unwrap_or(0);
        // SAFETY: the program has room for as many.
        let mut taken = unsafe { look(queue, places, room) }?;
        if taken == 0 && inner.found_nothing() {
            // SAFETY: as above.
            taken = unsafe { look_again(queue, places, room) }?;
        }
        if taken == FEW && room > FEW {
            // SAFETY: as above.
            taken += unsafe { take_rest(queue, places.add(FEW), room - FEW) };
        }
        if taken > 0 {
            inner.found_something();
        }
        Ok(taken)
    });
    taken.map_or(-1, |taken| c_int::try_from(taken).unwrap_or(c_int::MAX))
}

entry! {
    code
    fn req_notify_cq(cq: *mut layout::Cq, solicited_only: c_int) -> c_int {
        // SAFETY: one of ours, or null.
        let inner = unsafe { cq_of(cq) }?;
        let arm = if solicited_only == 0 { Arm::Any } else { Arm::Solicited };
        // What has arrived is in the queue before it is armed: programs poll next, and some take an event whose
        // completion they have polled already for another one.
        inner.port.settle();
        // Without a channel there are no events.
        let _ = inner.cq.as_ref().ok_or(INVALID)?.arm(arm);
        Ok(())
    }
}

impl CqInner {
    fn lock_polls(&self) {
        if !self.single_threaded {
            // SAFETY: a mutex that lives as long as the queue.
            unsafe { libc::pthread_mutex_lock(self.poll_lock.get()) };
        }
    }

    fn unlock_polls(&self) {
        if !self.single_threaded {
            // SAFETY: locked by `lock_polls`.
            unsafe { libc::pthread_mutex_unlock(self.poll_lock.get()) };
        }
    }
}

/// Takes the first completion of an extended queue; the lock is held if there is one.
fn begin_poll(inner: &CqInner, cq: *mut layout::CqEx) -> Answer<()> {
    inner.lock_polls();
    caught(|| advance(cq)).inspect_err(|_| inner.unlock_polls())
}

/// Takes the next completion of an extended queue; the lock is held.
fn advance(cq: *mut layout::CqEx) -> Answer<()> {
    // SAFETY: one of ours.
    let inner = unsafe { Cq::of(cq) };
    // SAFETY: rule 3.
    let current = unsafe { &mut *inner.current.get() };
    let queue = inner.cq.as_ref().ok_or(INVALID)?;
    let taken = queue.poll(std::slice::from_mut(current)).map_err(|_| Errno(libc::EIO))?;
    if taken == 0 {
        return Err(NOTHING);
    }
    // SAFETY: fields of a queue that lives (rule 3 of `boxed.rs`).
    unsafe { (&raw mut (*cq).wr_id).write(current.wr_id) };
    // SAFETY: as above.
    unsafe { (&raw mut (*cq).status).write(current.status.code().into()) };
    Ok(())
}

/// An extended queue has no completion now.
const NOTHING: Errno = Errno(libc::ENOENT);

entry! {
    code quick
    fn start_poll(cq: *mut layout::CqEx, attr: *mut c_void) -> c_int {
        // SAFETY: the program's structure, whose only field is a mask of what it adds, or null.
        if unsafe { attr.cast::<u32>().as_ref() }.is_some_and(|mask| *mask != 0) {
            return Err(INVALID);
        }
        // SAFETY: one of ours.
        let inner = unsafe { Cq::checked(cq) }?;
        let mut found = begin_poll(inner, cq);
        if found == Err(NOTHING) && inner.found_nothing() {
            found = begin_poll(inner, cq);
        }
        if found.is_ok() {
            inner.found_something();
        }
        found
    }
}

entry! {
    code quick
    fn next_poll(cq: *mut layout::CqEx) -> c_int {
        advance(cq)
    }
}

unsafe extern "C" fn end_poll(cq: *mut layout::CqEx) {
    // SAFETY: one of ours.
    unsafe { Cq::of(cq) }.unlock_polls();
}

/// What to add to a time of the clock that begins with the system, for that of the day.
fn wall_clock_ahead_ns() -> u64 {
    let now_ns = |clock| {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a place for the answer.
        unsafe { libc::clock_gettime(clock, &raw mut now) };
        let part = |part: i64| part.cast_unsigned();
        part(now.tv_sec).wrapping_mul(1_000_000_000).wrapping_add(part(now.tv_nsec))
    };
    let since_start = now_ns(libc::CLOCK_MONOTONIC);
    now_ns(libc::CLOCK_REALTIME).wrapping_sub(since_start)
}

/// What an extended queue says of the completion that it is at.
macro_rules! reads {
    ($(fn $name:ident($wc:pat) -> $result:ty { $value:expr })*) => {$(
        entry! {
            value quick
            fn $name(cq: *mut layout::CqEx) -> $result {
                // SAFETY: one of ours.
                let inner = unsafe { Cq::of(cq) };
                // SAFETY: rule 3.
                let $wc = unsafe { &*inner.current.get() };
                Ok($value)
            }
        }
    )*};
}

reads! {
    fn read_opcode(wc) -> c_int { opcode_for_c(wc.opcode) }
    fn read_vendor_err(wc) -> u32 { wc.vendor_err() }
    fn read_byte_len(wc) -> u32 { wc.byte_len }
    fn read_imm_data(wc) -> u32 { imm_for_c(wc) }
    fn read_qp_num(wc) -> u32 { wc.qp.get() }
    fn read_src_qp(wc) -> u32 { wc.src_qp.get() }
    fn read_wc_flags(wc) -> c_uint { flags_for_c(wc) }
    fn read_sl(wc) -> u8 { sl_for_c(wc) }
    fn read_timestamp(wc) -> u64 { wc.timestamp_ns }
    fn read_wall_clock(wc) -> u64 { wc.timestamp_ns.wrapping_add(wall_clock_ahead_ns()) }
    fn read_nothing(_) -> u32 { 0 }
    fn read_no_path_bits(_) -> u8 { 0 }
    fn read_no_vlan(_) -> u16 { 0 }
}
