//! Life cycle: beginnings of the process, of its children, and of programs that take its place.
//!
//! # Safety
//!
//! [`BEGIN`] and [`END`] are pointers in the sections of functions that the loader calls before and
//! after `main`; they take no arguments that they look at, and other libraries' may call us before
//! and after them.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use adverb_shm::alive;
use adverb_switchover::Route;

use crate::base::lock::Lock;
use crate::base::{config, confined, forks, heap, raw, real, signal, thread, vfork};
use crate::share::{exec_target, processes};
use crate::socket::ownership::Reserved;
use crate::socket::state::{self, Kind, Socket};
use crate::socket::{arena, loans, policy, stamps, table};
use crate::transport::{doorbell, fallback, offer, path_proof, rendezvous, xdp};
use crate::wait::{epoll, filters};

/// Called by the loader.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// Called by the loader, after `main`.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn begin() {
    vfork::settle_in();
    // SAFETY: the function takes pointers to functions of the type it wants, or none.
    unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
    adopt_descriptors();
    doorbell::make_room();
}

/// The program ends in peace: its peers see that as if it had closed everything.
extern "C" fn end() {
    if vfork::is_child() || confined::is_confined() {
        return;
    }
    xdp::streams::end_begins();
    table::each(0, usize::MAX, |fd| {
        // Those without rings too, and what watches them: others of the family may go on for long.
        if table::socket(fd).is_some() || epoll::of(fd).is_some() {
            crate::share::closing::forget(fd);
        }
    });
    xdp::streams::linger();
    if crate::share::stats::remove() {
        rendezvous::clear_away();
    }
}

/// The program is about to confine itself to some system calls (`seccomp`), which we do not know: from now
/// on it makes those alone that it would make without us. So all that can be done beforehand is done, as
/// if it were about to end.
pub(crate) fn confine() {
    if vfork::is_child() || confined::is_confined() {
        return;
    }
    signal::guard();
    let errno = raw::errno();
    heap::provide();
    alive::confine();
    exec_target::give_up_all();
    let mut is_passthrough = true;
    table::each(0, usize::MAX, |fd| match epoll::of(fd) {
        Some(epoll) if epoll.is_kernels_alone(fd) => {
            epoll.stop_notifications();
            table::clear(fd);
        }
        Some(_) => is_passthrough = false,
        None => {}
    });
    table::each(0, usize::MAX, |fd| {
        let Some(socket) = table::socket(fd) else { return };
        let is_watched = socket.waiters.watchers.load(Ordering::Relaxed) > 0;
        if socket.route() == Route::Kernel && !is_watched {
            table::clear(fd).map(Socket::release).unwrap_or(());
        } else {
            is_passthrough = false;
        }
    });
    if crate::share::stats::remove() {
        rendezvous::clear_away();
    }
    vfork::move_out();
    confined::confine(is_passthrough);
    raw::set_errno(errno);
}

/// The end of a program that ends on the spot: perhaps in a handler, which must not wait for locks
/// that this very thread holds.
pub(crate) fn end_at_once() {
    if !thread::holds_locks() {
        end();
    }
}

/// Before a fork by the function of that name.
pub(crate) fn before_fork() {
    if !confined::is_confined() {
        processes::sweep_if_due();
    }
    prepare_many();
    thread::with(|thread| thread.is_forking.set(true));
}

/// Before the first of many forks that is no handler's, looks up what their children may call, and the like. That takes the
/// loader's locks, and the program's memory for what it does not find: a handler may have interrupted either.
fn prepare_many() {
    let forks = FORKS.load(Ordering::Relaxed);
    let is_in_midst = thread::holds_locks() || thread::is_in_handler();
    if forks > MANY_FORKS || forks == MANY_FORKS && is_in_midst {
        return;
    }
    let (o, next) = (Ordering::Relaxed, forks + 1);
    if FORKS.compare_exchange(forks, next, o, o).is_ok() && next > MANY_FORKS {
        real::find_all();
        forks::learn_threads();
        epoll::get_ready();
    }
}

/// Forks of this process, as far as they are counted. What makes them cheaper takes as long as some of them.
static FORKS: AtomicU32 = AtomicU32::new(0);
const MANY_FORKS: u32 = 8;

/// After a fork that answered `child`. The parent may end before the child has begun to run.
pub(crate) fn after_fork(child: libc::pid_t) {
    let reserved = thread::with(|thread| {
        thread.is_forking.set(false);
        thread.reserved.take()
    });
    if let Some(reserved) = reserved.map(Reserved::unpack) {
        match u32::try_from(child) {
            Ok(child) => processes::confirm(reserved, child),
            Err(_) => uncount_child(reserved),
        }
    }
    release();
    if let Ok(child @ 1..) = u32::try_from(child)
        && !confined::is_confined()
    {
        arena::add_process(child);
    }
}

/// The child's descriptors count as well: all those there are, while no thread changes any.
fn count_child(reserved: Reserved) {
    table::each(0, usize::MAX, |fd| {
        if let Some(socket) = table::socket(fd) {
            processes::give(reserved, &socket);
            if let Some(segment) = socket.segment() {
                segment.share(socket.end());
            }
        }
    });
}

/// The child has not come into being, and no descriptor has been changed yet.
fn uncount_child(reserved: Reserved) {
    table::each(0, usize::MAX, |fd| {
        if let Some(socket) = table::socket(fd) {
            processes::take_away(reserved, &socket);
        }
    });
    processes::cancel(reserved);
}

/// The locks on what a process has for itself. The last one is held by its threads for a moment only, and
/// while they hold no other.
fn locks() -> impl Iterator<Item = &'static Lock> {
    let ours = [
        config::RULES.lock(),
        policy::WISHES.lock(),
        &path_proof::OPENING,
        &doorbell::OPENING,
        filters::lock(),
        loans::lock(),
        loans::spare(),
        epoll::FREE.lock(),
        &table::CHANGES,
    ];
    forks::locks().chain(ours)
}

/// Connections that frames carry are the kernel's before two processes have them.
fn give_back_framed() {
    let mut framed = Vec::new();
    table::each(0, usize::MAX, |fd| {
        let socket = table::socket(fd).filter(|socket| xdp::streams::is_bound(socket));
        framed.extend(socket.map(|socket| (socket, fd)));
    });
    let all: Vec<_> = framed.iter().map(|(socket, fd)| (&**socket, *fd)).collect();
    fallback::leave_all(&all);
    all.iter().for_each(|(socket, fd)| policy::explain(socket, *fd, "frames"));
}

/// Before a fork, where there is one thread, and no socket that would have to go back to the kernel: handlers wait until
/// after it, and no lock is needed. To take them would give parent and child a copy each of every page that they lie in.
fn keep_handlers_out() -> bool {
    if !forks::is_alone() {
        return false;
    }
    thread::enter();
    let has_frames = xdp::has_had_any();
    if has_frames {
        thread::leave();
    }
    !has_frames
}

/// Just before every fork, by whatever function: the child gets nothing that another thread is in the middle
/// of. The fork of a handler that has interrupted this thread in such a middle has to do without.
extern "C" fn prepare() {
    if !thread::holds_locks() {
        let is_alone = keep_handlers_out();
        if !is_alone {
            xdp::before_fork();
            give_back_framed();
            epoll::before_fork();
            locks().for_each(|lock| std::mem::forget(lock.hold()));
        }
        thread::with(|thread| {
            thread.is_prepared.set(true);
            thread.is_alone.set(is_alone);
        });
        xdp::about_to_fork();
    } else {
        xdp::defer_hand_over();
    }
    if let Some(reserved) = processes::reserve() {
        thread::with(|thread| thread.reserved.set(Some(reserved.pack())));
        count_child(reserved);
    }
    thread::with(|thread| thread.forking.set(alive::before_fork()));
}

/// Just after it in the parent. Forks that have passed by us, such as that of `forkpty`, may have failed,
/// and do not say so; others say it a little later.
extern "C" fn in_parent() {
    if !thread::with(|thread| thread.is_forking.get()) {
        if let Some(reserved) = thread::with(|thread| thread.reserved.take()) {
            processes::doubt(Reserved::unpack(reserved));
        }
        release();
    }
}

/// Lets go of all locks, if the calling thread has taken them for a fork.
fn release() -> bool {
    let is_prepared = thread::with(|thread| thread.is_prepared.replace(false));
    if is_prepared && thread::with(|thread| thread.is_alone.get()) {
        thread::leave();
    } else if is_prepared {
        locks().for_each(Lock::let_go);
        epoll::after_fork_in_parent();
        xdp::after_fork(false);
    }
    is_prepared
}

/// In every child of a fork, by whatever function.
extern "C" fn in_child() {
    thread::forget_id();
    crate::transport::datagram::forget_sleeps();
    alive::after_fork(thread::with(|thread| thread.forking.take()));
    thread::with(|thread| thread.is_forking.set(false));
    let is_confined = confined::is_confined();
    if let Some(reserved) = thread::with(|thread| thread.reserved.take()) {
        if is_confined {
            processes::untrack();
        }
        if is_confined || !processes::start(Reserved::unpack(reserved)) {
            table::disown_all();
        }
    }
    if !is_confined {
        vfork::settle_in();
        arena::add_process(alive::me());
    }
    if thread::is_in_handler() {
        // What it has interrupted may be looking whether frames have come.
        adverb_sys::memory::put_zeros_for_kept();
    }
    adverb_sys::memory::forget_kept();
    xdp::after_fork(true);
    doorbell::after_fork();
    rendezvous::after_fork();
    if thread::with(|thread| thread.is_prepared.replace(false)) {
        let is_alone = thread::with(|thread| thread.is_alone.get());
        if !is_alone {
            locks().for_each(Lock::let_go);
        }
        epoll::after_fork(is_alone);
        if is_alone {
            thread::leave();
        }
        if !thread::is_in_handler() {
            epoll::count_again();
            count_users();
        }
    } else {
        locks().for_each(Lock::reset);
    }
    forks::in_child();
    table::each(0, usize::MAX, |fd| {
        if let Some(socket) = table::socket(fd) {
            crate::transport::datagram::after_fork(&socket);
        }
    });
}

/// In a child just forked, where the only thread is in the midst of nothing: what others were using is
/// used by descriptors and registrations alone. What those others were about to give back is given back.
fn count_users() {
    state::forget_users();
    state::each(crate::transport::datagram::forget_threads);
    table::each_socket(Socket::count_user);
    // Those that another thread was closing, and that no descriptor stands for any more.
    let mut orphans: Vec<&'static Socket> = Vec::new();
    epoll::each_socket(|socket| {
        if !socket.has_users() && !orphans.iter().any(|known| std::ptr::eq(*known, socket)) {
            orphans.push(socket);
        }
    });
    epoll::each_socket(Socket::count_user);
    for socket in orphans {
        // This process was not counted for it, and must not give it back.
        socket.count_user();
        epoll::forget(None, socket);
        socket.forget_user();
    }
    state::forget_unused();
}

/// A program that has just taken this process over may have got connections with rings: from the
/// one before it, or from the program that started it.
fn adopt_descriptors() {
    for fd in raw::descriptors_of("self").unwrap_or_default() {
        if table::socket(fd).is_none() {
            adopt(fd);
        }
    }
}

/// A descriptor that came from elsewhere: if it is a connection with rings, so it stays.
pub(crate) fn adopt(fd: c_int) {
    if policy::is_over() {
        return;
    }
    let get = |name| raw::option::<c_int>(fd, libc::SOL_SOCKET, name);
    let (Ok(domain), Ok(kind)) = (get(libc::SO_DOMAIN), get(libc::SO_TYPE)) else { return };
    if ![libc::AF_INET, libc::AF_INET6].contains(&domain) || !config::get().is_on {
        return;
    }
    let is_listener = get(libc::SO_ACCEPTCONN).unwrap_or(0) != 0;
    let kind = match kind {
        libc::SOCK_STREAM if is_listener => Kind::Listener,
        libc::SOCK_STREAM => Kind::Stream,
        libc::SOCK_DGRAM => Kind::Datagram,
        _ => return,
    };
    let Some(socket) = processes::create(kind) else { return };
    let nonblocking = raw::file_flags(fd).unwrap_or(0) & libc::O_NONBLOCK != 0;
    socket.flags.is_nonblocking.store(nonblocking, Ordering::Relaxed);
    policy::read_limits(socket, fd);
    socket.options.stamps.store(stamps::wanted(fd), Ordering::Relaxed);
    socket.paced.learn(fd);
    if kind == Kind::Stream && !offer::inherit(socket, fd) {
        // Its owner before may have sent and received without our counting.
        socket.leave_to_kernel(state::Reason::HandedOver);
    }
    if kind == Kind::Datagram {
        socket.datagrams.is_v4.store(domain == libc::AF_INET, Ordering::Relaxed);
        socket.leave_to_kernel(state::Reason::Spin);
        crate::transport::datagram::adopted(socket, fd);
    }
    table::set_socket(fd, socket);
}
