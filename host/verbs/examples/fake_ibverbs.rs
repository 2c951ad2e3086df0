//! A libibverbs that is none: one device whose queue pairs live in this process and whose network is a
//! copy of bytes. Tests open it in the place of the system's, so that the way to hardware is tested where
//! there is no hardware.
//!
//! It does what the manual pages say, as plainly as possible: everything at once, under one lock. It
//! checks keys, ranges and rights, so that what arrives wrong is seen.
//!
//! # Safety
//!
//! Programs call these functions as C's: with pointers that these functions have returned and that have
//! not been destroyed, and with places for answers. That is the contract of every function here, and
//! of every block; each object is a C structure followed by what the double knows of it. All of that is
//! touched under one lock. The only addresses that come from elsewhere are those of work requests, and
//! they are checked against what was registered.

#![allow(missing_docs, reason = "the names are C's")]
#![allow(unsafe_op_in_unsafe_fn, reason = "all of each function is C's contract")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "the header says it for all")]
#![allow(clippy::multiple_unsafe_ops_per_block, reason = "the header says it for all")]
#![allow(clippy::missing_safety_doc, reason = "the header says it for all")]
#![allow(clippy::unwrap_used, reason = "a double that cannot go on has failed its test")]

use adverb_ibv::layout::{
    self, AhAttr, QpAttr, QpInitAttr, RecvWr, SendWr, Sge, SrqAttr, Wc, value,
};
use libc::{c_char, c_int, c_uint, c_void};
use std::collections::{BTreeMap, VecDeque};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[repr(C)]
struct Context {
    base: layout::VerbsContext,
    events: VecDeque<layout::AsyncEvent>,
}

#[repr(C)]
struct Channel {
    base: layout::CompChannel,
    events: VecDeque<usize>,
}

#[repr(C)]
struct Cq {
    base: layout::Cq,
    completions: VecDeque<Wc>,
    /// For solicited ones only, or for all.
    armed: Option<bool>,
}

#[repr(C)]
struct Srq {
    base: layout::Srq,
    attr: SrqAttr,
    receives: VecDeque<Receive>,
}

#[repr(C)]
struct Qp {
    base: layout::Qp,
    init: QpInitAttr,
    attr: QpAttr,
    receives: VecDeque<Receive>,
}

struct Receive {
    wr_id: u64,
    sges: Vec<Sge>,
}

/// What was registered.
#[derive(Clone, Copy)]
struct Region {
    start: usize,
    len: usize,
    iova: u64,
    access: c_int,
    pd: usize,
}

struct World {
    next: u32,
    regions: BTreeMap<u32, Region>,
    qps: BTreeMap<u32, usize>,
    /// Objects that were made and not destroyed.
    objects: c_int,
}

static WORLD: Mutex<World> =
    Mutex::new(World { next: 0x10, regions: BTreeMap::new(), qps: BTreeMap::new(), objects: 0 });

fn world() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Bytes behind a key.
    fn at(&self, key: u32, pd: usize, addr: u64, len: u32, rights: c_int) -> Option<*mut u8> {
        let region = self.regions.get(&key).filter(|region| region.pd == pd)?;
        let offset = usize::try_from(addr.checked_sub(region.iova)?).ok()?;
        let end = offset.checked_add(usize::try_from(len).ok()?)?;
        let fits = end <= region.len && region.access & rights == rights;
        fits.then(|| std::ptr::with_exposed_provenance_mut::<u8>(region.start + offset))
    }
}

const LOCAL_WRITE: c_int = 1;
const REMOTE_WRITE: c_int = 2;
const REMOTE_READ: c_int = 4;
const REMOTE_ATOMIC: c_int = 8;

const LOC_LEN: c_int = 1;
const LOC_PROT: c_int = 4;
const FLUSHED: c_int = 5;
const REM_ACCESS: c_int = 10;
const RNR: c_int = 13;

const RTS: c_int = 3;
const ERR: c_int = 6;

unsafe fn fail(errno: c_int) {
    *libc::__errno_location() = errno;
}

fn eventfd() -> c_int {
    unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE) }
}

unsafe fn ring(fd: c_int) {
    libc::write(fd, (&raw const ONE).cast(), 8);
}

/// Takes one from a descriptor's count; says whether there was one, and waits for it if it blocks.
unsafe fn answer(fd: c_int) -> bool {
    let mut count = 0_u64;
    libc::read(fd, (&raw mut count).cast(), 8) == 8
}

static ONE: u64 = 1;

fn give<T, U>(object: T) -> *mut U {
    world().objects += 1;
    Box::into_raw(Box::new(object)).cast()
}

unsafe fn take<T, U>(object: *mut U) -> c_int {
    world().objects -= 1;
    drop(Box::from_raw(object.cast::<T>()));
    0
}

/// How many objects there are: for tests of their ends.
#[unsafe(no_mangle)]
pub extern "C" fn fake_objects() -> c_int {
    world().objects
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut layout::Device {
    let mut device: layout::Device = zeroed();
    device.node_type = value::NODE_CA;
    for (place, byte) in device.name.iter_mut().zip(b"fake0") {
        *place = c_char::try_from(*byte).unwrap();
    }
    *count = 1;
    // One for all: programs keep devices beyond the list.
    let device: *mut layout::Device = Box::into_raw(Box::new(device));
    Box::into_raw(Box::new([device, null_mut()])).cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut layout::Device) {
    drop(Box::from_raw(list.cast::<[*mut layout::Device; 2]>()));
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_guid(_device: *mut layout::Device) -> u64 {
    0x0200_0000_0000_00fa_u64.to_be()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut layout::Device) -> *mut layout::Context {
    let mut base: layout::VerbsContext = zeroed();
    base.query_port = Some(query_port);
    base.sz = size_of::<layout::VerbsContext>();
    base.context.device = device;
    base.context.async_fd = eventfd();
    base.context.num_comp_vectors = 1;
    base.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    base.context.ops.poll_cq = Some(poll_cq);
    base.context.ops.req_notify_cq = Some(req_notify_cq);
    base.context.ops.post_srq_recv = Some(post_srq_recv);
    base.context.ops.post_send = Some(post_send);
    base.context.ops.post_recv = Some(post_recv);
    let context: *mut Context = give(Context { base, events: VecDeque::new() });
    &raw mut (*context).base.context
}

unsafe fn whole(context: *mut layout::Context) -> *mut Context {
    context.byte_sub(std::mem::offset_of!(layout::VerbsContext, context)).cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut layout::Context) -> c_int {
    libc::close((*context).async_fd);
    take::<Context, _>(whole(context))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(
    _context: *mut layout::Context,
    attr: *mut layout::DeviceAttr,
) -> c_int {
    (*attr).vendor_id = 0xfa;
    (*attr).max_qp_wr = 256;
    (*attr).max_sge = 4;
    (*attr).max_cqe = 1024;
    (*attr).max_qp_rd_atom = 8;
    (*attr).max_qp_init_rd_atom = 8;
    (*attr).phys_port_cnt = 1;
    0
}

unsafe extern "C" fn query_port(
    _context: *mut layout::Context,
    _port: u8,
    attr: *mut layout::PortAttr,
    _size: usize,
) -> c_int {
    (*attr).state = value::PORT_ACTIVE;
    (*attr).max_mtu = 5;
    (*attr).active_mtu = 3;
    (*attr).gid_tbl_len = 2;
    (*attr).max_msg_sz = 1 << 30;
    (*attr).pkey_tbl_len = 1;
    (*attr).link_layer = value::LINK_LAYER_ETHERNET;
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_port(
    _context: *mut layout::Context,
    _port: u8,
    _attr: *mut layout::PortAttr,
) -> c_int {
    libc::EINVAL // The other way has to be taken.
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    _context: *mut layout::Context,
    _port: u8,
    index: c_int,
    gid: *mut [u8; 16],
) -> c_int {
    *gid = match index {
        0 => [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        _ => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1],
    };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut layout::Context) -> *mut layout::Pd {
    let mut pd: layout::Pd = zeroed();
    pd.context = context;
    give(pd)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut layout::Pd) -> c_int {
    take::<layout::Pd, _>(pd)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut layout::Pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut layout::Mr {
    let iova = u64::try_from(addr.addr()).unwrap();
    ibv_reg_mr_iova2(pd, addr, len, iova, access.cast_unsigned())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut layout::Pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut layout::Mr {
    let mut mr: layout::Mr = zeroed();
    let mut world = world();
    (mr.context, mr.pd, mr.addr, mr.length) = ((*pd).context, pd, addr, len);
    (mr.lkey, mr.rkey) = (world.number(), world.number());
    let start = addr.expose_provenance();
    let access = access.cast_signed();
    let local = Region { start, len, iova, access: access & LOCAL_WRITE, pd: pd.addr() };
    world.regions.insert(mr.lkey, local);
    world.regions.insert(mr.rkey, Region { access, ..local });
    drop(world);
    give(mr)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut layout::Mr) -> c_int {
    for key in [(*mr).lkey, (*mr).rkey] {
        world().regions.remove(&key);
    }
    take::<layout::Mr, _>(mr)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut layout::Context,
) -> *mut layout::CompChannel {
    let mut base: layout::CompChannel = zeroed();
    (base.context, base.fd) = (context, eventfd());
    give(Channel { base, events: VecDeque::new() })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut layout::CompChannel) -> c_int {
    libc::close((*channel).fd);
    take::<Channel, _>(channel)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut layout::CompChannel,
    cq: *mut *mut layout::Cq,
    context: *mut *mut c_void,
) -> c_int {
    if !answer((*channel).fd) {
        return -1;
    }
    let _world = world();
    let from = (*channel.cast::<Channel>()).events.pop_front().unwrap();
    *cq = std::ptr::with_exposed_provenance_mut(from);
    *context = (**cq).cq_context;
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_cq_events(_cq: *mut layout::Cq, _count: c_uint) {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut layout::Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut layout::CompChannel,
    _vector: c_int,
) -> *mut layout::Cq {
    let mut base: layout::Cq = zeroed();
    (base.context, base.channel, base.cq_context) = (context, channel, cq_context);
    base.cqe = cqe + 1; // As devices do, a little more than was asked for.
    give(Cq { base, completions: VecDeque::new(), armed: None })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut layout::Cq, cqe: c_int) -> c_int {
    (*cq).cqe = cqe;
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut layout::Cq) -> c_int {
    take::<Cq, _>(cq)
}

unsafe extern "C" fn poll_cq(cq: *mut layout::Cq, room: c_int, out: *mut Wc) -> c_int {
    let _world = world();
    let completions = &mut (*cq.cast::<Cq>()).completions;
    let taken = completions.len().min(usize::try_from(room).unwrap());
    for (at, wc) in completions.drain(..taken).enumerate() {
        *out.add(at) = wc;
    }
    c_int::try_from(taken).unwrap()
}

unsafe extern "C" fn req_notify_cq(cq: *mut layout::Cq, solicited: c_int) -> c_int {
    let _world = world();
    let armed = &mut (*cq.cast::<Cq>()).armed;
    *armed = Some(solicited != 0 && *armed != Some(false));
    0
}

/// Publishes a completion, under the lock.
unsafe fn publish(cq: *mut layout::Cq, wc: Wc, urgent: bool) {
    let cq = cq.cast::<Cq>();
    (*cq).completions.push_back(wc);
    let wake = (*cq).armed.is_some_and(|solicited| !solicited || urgent || wc.status != 0);
    let channel = (*cq).base.channel;
    if wake && !channel.is_null() {
        (*cq).armed = None;
        (*channel.cast::<Channel>()).events.push_back(cq.expose_provenance());
        ring((*channel).fd);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut layout::Pd,
    init: *mut layout::SrqInitAttr,
) -> *mut layout::Srq {
    let mut base: layout::Srq = zeroed();
    (base.context, base.pd, base.srq_context) = ((*pd).context, pd, (*init).srq_context);
    give(Srq { base, attr: (*init).attr, receives: VecDeque::new() })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(
    srq: *mut layout::Srq,
    attr: *mut SrqAttr,
    mask: c_int,
) -> c_int {
    let _world = world();
    let srq = srq.cast::<Srq>();
    if mask & value::SRQ_LIMIT != 0 {
        (*srq).attr.srq_limit = (*attr).srq_limit;
    }
    if mask & value::SRQ_MAX_WR != 0 {
        (*srq).attr.max_wr = (*attr).max_wr;
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut layout::Srq, attr: *mut SrqAttr) -> c_int {
    *attr = (*srq.cast::<Srq>()).attr;
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut layout::Srq) -> c_int {
    take::<Srq, _>(srq)
}

unsafe fn pieces(list: *const Sge, count: c_int) -> Vec<Sge> {
    (0..usize::try_from(count).unwrap()).map(|at| *list.add(at)).collect()
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut layout::Srq,
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    let _world = world();
    let srq = srq.cast::<Srq>();
    if (*srq).receives.len() >= usize::try_from((*srq).attr.max_wr).unwrap() {
        *bad = wr;
        return libc::ENOMEM;
    }
    let sges = pieces((*wr).sg_list, (*wr).num_sge);
    (*srq).receives.push_back(Receive { wr_id: (*wr).wr_id, sges });
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut layout::Pd,
    init: *mut QpInitAttr,
) -> *mut layout::Qp {
    if (*init).cap.max_inline_data > 128 {
        fail(libc::EINVAL);
        return null_mut();
    }
    let mut base: layout::Qp = zeroed();
    let number = world().number();
    (base.context, base.pd, base.qp_context) = ((*pd).context, pd, (*init).qp_context);
    base.qp_num = number;
    let attr = QpAttr::default();
    let qp: *mut layout::Qp = give(Qp { base, init: *init, attr, receives: VecDeque::new() });
    world().qps.insert(number, qp.expose_provenance());
    qp
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut layout::Qp,
    attr: *mut QpAttr,
    mask: c_int,
) -> c_int {
    let world = world();
    let (qp, new) = (qp.cast::<Qp>(), &*attr);
    let known = &mut (*qp).attr;
    macro_rules! set {
        ($($mask:ident $field:ident)*) => {
            $(if mask & value::$mask != 0 {
                known.$field = new.$field;
            })*
        };
    }
    set! {
        QP_STATE qp_state QP_ACCESS_FLAGS qp_access_flags QP_PKEY_INDEX pkey_index QP_PORT port_num
        QP_QKEY qkey QP_AV ah_attr QP_DEST_QPN dest_qp_num QP_PATH_MTU path_mtu QP_RQ_PSN rq_psn
        QP_SQ_PSN sq_psn QP_TIMEOUT timeout QP_RETRY_CNT retry_cnt QP_RNR_RETRY rnr_retry
        QP_MIN_RNR_TIMER min_rnr_timer QP_MAX_QP_RD_ATOMIC max_rd_atomic
        QP_MAX_DEST_RD_ATOMIC max_dest_rd_atomic
    }
    if mask & value::QP_AV != 0 && new.ah_attr.grh.dgid.0.last() == Some(&66) {
        return libc::ETIMEDOUT; // No device has it.
    }
    match known.qp_state {
        0 => (*qp).receives.clear(),
        ERR => flush(&world, qp),
        _ => {}
    }
    0
}

/// Ends what is outstanding, under the lock.
unsafe fn flush(_world: &World, qp: *mut Qp) {
    (*qp).attr.qp_state = ERR;
    let number = (*qp).base.qp_num;
    while let Some(receive) = (*qp).receives.pop_front() {
        let wc = Wc { wr_id: receive.wr_id, status: FLUSHED, qp_num: number, ..Wc::default() };
        publish((*qp).init.recv_cq, wc, true);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut layout::Qp,
    attr: *mut QpAttr,
    _mask: c_int,
    init: *mut QpInitAttr,
) -> c_int {
    let _world = world();
    let qp = qp.cast::<Qp>();
    (*attr, *init) = ((*qp).attr, (*qp).init);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut layout::Qp) -> c_int {
    world().qps.remove(&(*qp).qp_num);
    take::<Qp, _>(qp)
}

unsafe extern "C" fn post_recv(
    qp: *mut layout::Qp,
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    let world = world();
    let qp = qp.cast::<Qp>();
    if (*qp).receives.len() >= usize::try_from((*qp).init.cap.max_recv_wr).unwrap() {
        *bad = wr;
        return libc::ENOMEM;
    }
    let sges = pieces((*wr).sg_list, (*wr).num_sge);
    (*qp).receives.push_back(Receive { wr_id: (*wr).wr_id, sges });
    if (*qp).attr.qp_state == ERR {
        flush(&world, qp);
    }
    0
}

unsafe extern "C" fn post_send(
    qp: *mut layout::Qp,
    first: *mut SendWr,
    bad: *mut *mut SendWr,
) -> c_int {
    let world = world();
    let (qp, mut next) = (qp.cast::<Qp>(), first);
    while !next.is_null() {
        let wr = &*next;
        if (*qp).attr.qp_state < RTS || wr.num_sge > 4 {
            *bad = next;
            return libc::EINVAL;
        }
        let status = match (*qp).attr.qp_state {
            RTS => carry_out(&world, qp, wr),
            _ => FLUSHED,
        };
        let signaled = wr.send_flags & value::SEND_SIGNALED != 0 || (*qp).init.sq_sig_all != 0;
        if signaled || status != 0 {
            let number = (*qp).base.qp_num;
            // Of work that failed C says neither what nor how much it was.
            let (opcode, byte_len) = if status == 0 { (0, 1) } else { (99, 99) };
            let wc =
                Wc { wr_id: wr.wr_id, status, opcode, byte_len, qp_num: number, ..Wc::default() };
            publish((*qp).init.send_cq, wc, false);
        }
        if status != 0 {
            flush(&world, qp);
        }
        next = wr.next;
    }
    0
}

/// Does what a request asks for; says how it ended.
unsafe fn carry_out(world: &World, qp: *mut Qp, wr: &SendWr) -> c_int {
    let pd = (*qp).base.pd.addr();
    let sges = pieces(wr.sg_list, wr.num_sge);
    let back = matches!(
        wr.opcode,
        value::WR_RDMA_READ | value::WR_ATOMIC_CMP_AND_SWP | value::WR_ATOMIC_FETCH_AND_ADD
    );
    let mut bytes = Vec::new();
    for sge in &sges {
        let rights = if back { LOCAL_WRITE } else { 0 };
        let from = match wr.send_flags & value::SEND_INLINE {
            0 => world.at(sge.lkey, pd, sge.addr, sge.length, rights),
            _ => Some(std::ptr::with_exposed_provenance_mut(usize::try_from(sge.addr).unwrap())),
        };
        let Some(from) = from else {
            return LOC_PROT;
        };
        let len = usize::try_from(sge.length).unwrap();
        (0..len).for_each(|at| bytes.push(*from.add(at)));
    }
    let datagram = (*qp).init.qp_type == value::QPT_UD;
    let number = if datagram { wr.wr.ud.remote_qpn } else { (*qp).attr.dest_qp_num };
    let Some(peer) = world.qps.get(&number) else {
        return if datagram { 0 } else { 12 };
    };
    let peer = std::ptr::with_exposed_provenance_mut::<Qp>(*peer);
    let far_pd = (*peer).base.pd.addr();
    let far = |len: usize, rights| {
        let (addr, key) = match wr.opcode {
            value::WR_ATOMIC_CMP_AND_SWP | value::WR_ATOMIC_FETCH_AND_ADD => {
                (wr.wr.atomic.remote_addr, wr.wr.atomic.rkey)
            }
            _ => (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey),
        };
        world.at(key, far_pd, addr, u32::try_from(len).unwrap(), rights)
    };
    let imm = match wr.opcode {
        value::WR_SEND_WITH_IMM | value::WR_RDMA_WRITE_WITH_IMM => Some(wr.imm_data),
        _ => None,
    };
    let solicited = wr.send_flags & value::SEND_SOLICITED != 0;
    match wr.opcode {
        value::WR_SEND | value::WR_SEND_WITH_IMM => {
            if datagram && wr.wr.ud.remote_qkey != (*peer).attr.qkey {
                return 0;
            }
            deliver(world, qp, peer, &bytes, imm, solicited)
        }
        value::WR_RDMA_WRITE | value::WR_RDMA_WRITE_WITH_IMM => {
            let Some(to) = far(bytes.len(), REMOTE_WRITE) else {
                return REM_ACCESS;
            };
            bytes.iter().enumerate().for_each(|(at, byte)| *to.add(at) = *byte);
            if imm.is_none() {
                return 0;
            }
            let Some(receive) = next_receive(peer) else {
                return RNR;
            };
            received(
                qp,
                peer,
                receive.wr_id,
                value::WC_RECV_RDMA_WITH_IMM,
                bytes.len(),
                imm,
                solicited,
            );
            0
        }
        value::WR_RDMA_READ => {
            let Some(from) = far(bytes.len(), REMOTE_READ) else {
                return REM_ACCESS;
            };
            let bytes: Vec<u8> = (0..bytes.len()).map(|at| *from.add(at)).collect();
            scatter(world, pd, &sges, &bytes)
        }
        value::WR_ATOMIC_CMP_AND_SWP | value::WR_ATOMIC_FETCH_AND_ADD => {
            let Some(at) = far(8, REMOTE_ATOMIC) else {
                return REM_ACCESS;
            };
            let (at, atomic) = (at.cast::<u64>(), wr.wr.atomic);
            let found = *at;
            *at = match wr.opcode {
                value::WR_ATOMIC_FETCH_AND_ADD => found.wrapping_add(atomic.compare_add),
                _ if found == atomic.compare_add => atomic.swap,
                _ => found,
            };
            scatter(world, pd, &sges, &found.to_ne_bytes())
        }
        _ => 2,
    }
}

unsafe fn scatter(world: &World, pd: usize, sges: &[Sge], mut bytes: &[u8]) -> c_int {
    for sge in sges {
        let len = usize::try_from(sge.length).unwrap().min(bytes.len());
        let (now, later) = bytes.split_at(len);
        let to = world.at(sge.lkey, pd, sge.addr, u32::try_from(len).unwrap(), LOCAL_WRITE);
        let Some(to) = to else {
            return LOC_PROT;
        };
        now.iter().enumerate().for_each(|(at, byte)| *to.add(at) = *byte);
        bytes = later;
    }
    if bytes.is_empty() { 0 } else { LOC_LEN }
}

unsafe fn next_receive(qp: *mut Qp) -> Option<Receive> {
    let srq = (*qp).init.srq.cast::<Srq>();
    if srq.is_null() {
        return (*qp).receives.pop_front();
    }
    let receive = (*srq).receives.pop_front();
    let (left, limit) = ((*srq).receives.len(), &mut (*srq).attr.srq_limit);
    if left < usize::try_from(*limit).unwrap() {
        *limit = 0;
        let (context, event_type) = ((*srq).base.context, value::EVENT_SRQ_LIMIT_REACHED);
        let event = layout::AsyncEvent { element: srq.cast(), event_type };
        (*whole(context)).events.push_back(event);
        ring((*context).async_fd);
    }
    receive
}

/// Puts a message into the peer's next receive.
unsafe fn deliver(
    world: &World,
    qp: *mut Qp,
    peer: *mut Qp,
    bytes: &[u8],
    imm: Option<u32>,
    solicited: bool,
) -> c_int {
    let datagram = (*qp).init.qp_type == value::QPT_UD;
    let Some(receive) = next_receive(peer) else {
        return if datagram { 0 } else { RNR };
    };
    let mut whole = if datagram { vec![0x60; 40] } else { Vec::new() };
    whole.extend_from_slice(bytes);
    let status = scatter(world, (*peer).base.pd.addr(), &receive.sges, &whole);
    if status != 0 {
        let number = (*peer).base.qp_num;
        let wc = Wc { wr_id: receive.wr_id, status, qp_num: number, ..Wc::default() };
        publish((*peer).init.recv_cq, wc, true);
        flush(world, peer);
        return 11;
    }
    received(qp, peer, receive.wr_id, value::WC_RECV, whole.len(), imm, solicited);
    0
}

/// Tells the peer what it has received.
unsafe fn received(
    qp: *mut Qp,
    peer: *mut Qp,
    wr_id: u64,
    opcode: c_int,
    len: usize,
    imm: Option<u32>,
    solicited: bool,
) {
    let grh = if (*qp).init.qp_type == value::QPT_UD { value::WC_FLAG_GRH } else { 0 };
    let with_imm = if imm.is_some() { value::WC_FLAG_WITH_IMM } else { 0 };
    let wc = Wc {
        wr_id,
        opcode,
        byte_len: u32::try_from(len).unwrap(),
        imm_data: imm.unwrap_or(0),
        qp_num: (*peer).base.qp_num,
        src_qp: (*qp).base.qp_num,
        wc_flags: grh | with_imm,
        ..Wc::default()
    };
    publish((*peer).init.recv_cq, wc, solicited);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut layout::Pd, _attr: *mut AhAttr) -> *mut layout::Ah {
    let mut ah: layout::Ah = zeroed();
    (ah.context, ah.pd) = ((*pd).context, pd);
    give(ah)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut layout::Ah) -> c_int {
    take::<layout::Ah, _>(ah)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_attach_mcast(
    _qp: *mut layout::Qp,
    _gid: *const [u8; 16],
    _lid: u16,
) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_detach_mcast(
    _qp: *mut layout::Qp,
    _gid: *const [u8; 16],
    _lid: u16,
) -> c_int {
    libc::EINVAL
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut layout::Context,
    event: *mut layout::AsyncEvent,
) -> c_int {
    if !answer((*context).async_fd) {
        return -1;
    }
    let _world = world();
    *event = (*whole(context)).events.pop_front().unwrap();
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_async_event(_event: *mut layout::AsyncEvent) {}
