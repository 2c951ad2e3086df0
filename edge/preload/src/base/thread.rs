//! Thread-local state: what each thread knows about itself.
//!
//! All of it is plain numbers in thread-local storage without destructors, so that it works in
//! signal handlers and while a thread ends.
//!
//! # Safety
//!
//! A thread's numbers lie where they are for as long as it runs, also in the child of a fork of its. A [`Here`] says where,
//! and stays with its thread.

use std::cell::Cell;
use std::ptr::NonNull;

use adverb_shm::alive::{self, Forking};

use crate::base::pace::Pace;
use crate::base::{raw, vfork};

/// One thread's own numbers.
#[derive(Debug)]
pub(crate) struct Thread {
    id: Cell<u32>,
    /// How many of our locks it holds.
    depth: Cell<u32>,
    /// Signals that are held back until it holds none, one bit each, as in the kernel's masks.
    deferred: Cell<u64>,
    /// Handlers that have run, which interrupt every wait.
    interrupts: Cell<u32>,
    /// Handlers among them that do not ask for calls to be restarted.
    hard_interrupts: Cell<u32>,
    /// How long it is worth spinning, in nanoseconds; `u64::MAX` as long as it has not tried.
    pub(crate) spin_ns: Cell<u64>,
    /// Sleeps in a row that were short.
    pub(crate) short_sleeps: Cell<u32>,
    /// How often in a row it has been tried in vain whether spinning pays.
    pub(crate) failures: Cell<u32>,
    /// What it has learnt of the intervals at which what it waits for comes.
    pub(crate) pace: Cell<Pace>,
    /// How often the scheduler had taken its processor away, when it last looked.
    pub(crate) preemptions: Cell<u64>,
    /// It has woken another thread, which may be waiting for its processor.
    pub(crate) has_woken: Cell<bool>,
    /// The outermost handler that it is in.
    handler: Cell<Option<Handler>>,
    /// It has taken all locks for a fork; or is the only thread, and handlers wait.
    pub(crate) is_prepared: Cell<bool>,
    pub(crate) is_alone: Cell<bool>,
    /// It is in a fork by the function of that name.
    pub(crate) is_forking: Cell<bool>,
    /// When it was about to fork.
    pub(crate) forking: Cell<Option<Forking>>,
    /// The place of the child that it is about to have; see `ownership.rs`.
    pub(crate) reserved: Cell<Option<u64>>,
    /// Which doorbell it had when it last slept in `poll`.
    pub(crate) doorbell: Cell<usize>,
    /// Where its stack is while it copies from or to the program; see `copy.rs`.
    pub(crate) fault_return: Cell<usize>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            id: Cell::new(0),
            depth: Cell::new(0),
            deferred: Cell::new(0),
            interrupts: Cell::new(0),
            hard_interrupts: Cell::new(0),
            spin_ns: Cell::new(u64::MAX),
            short_sleeps: Cell::new(0),
            failures: Cell::new(0),
            pace: Cell::new(Pace::new()),
            preemptions: Cell::new(0),
            has_woken: Cell::new(false),
            handler: Cell::new(None),
            is_prepared: Cell::new(false),
            is_alone: Cell::new(false),
            is_forking: Cell::new(false),
            forking: Cell::new(None),
            reserved: Cell::new(None),
            doorbell: Cell::new(0),
            fault_return: Cell::new(0),
        }
    };
}

/// Calls `f` with the calling thread's numbers.
#[inline]
pub(crate) fn with<T>(f: impl FnOnce(&Thread) -> T) -> T {
    THREAD.with(f)
}

/// The calling thread, as others know it; see [`alive`].
#[inline]
pub(crate) fn id() -> u32 {
    with(Thread::id)
}

impl Thread {
    #[inline]
    fn id(&self) -> u32 {
        match self.id.get() {
            0 => self.find_id(),
            id => id,
        }
    }

    #[inline]
    fn is_in_handler(&self) -> bool {
        self.handler.get().is_some_and(|handler| is_still_in(self, handler))
    }

    #[cold]
    fn find_id(&self) -> u32 {
        let id = alive::thread(raw::thread_id());
        // A `vfork` child uses the memory of its parent's thread, which goes on with it.
        if !vfork::is_child() {
            self.id.set(id);
        }
        id
    }
}

/// In a child just forked: its only thread has another number than the one it was copied from.
pub(crate) fn forget_id() {
    with(|thread| thread.id.set(0));
}

/// The calling thread has woken another one, or may have.
#[inline]
pub(crate) fn note_woken() {
    with(|thread| thread.has_woken.set(true));
}

/// Where the calling thread's numbers are: to look that up takes a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here(NonNull<Thread>);

impl Here {
    #[inline]
    pub(crate) fn find() -> Self {
        with(|thread| Self(NonNull::from(thread)))
    }

    /// The calling thread, as others know it, and whether it is in a handler.
    #[inline]
    pub(crate) fn id_and_handler(self) -> (u32, bool) {
        let thread = self.thread();
        (thread.id(), thread.is_in_handler())
    }

    /// Where it notes its stack while it copies from or to the program; see `copy.rs`.
    #[inline]
    pub(crate) fn fault_return(self) -> *mut usize {
        self.thread().fault_return.as_ptr()
    }

    #[inline]
    fn thread(&self) -> &Thread {
        // SAFETY: they are the calling thread's, whose `Here` no other has, and there for as long as it runs.
        unsafe { self.0.as_ref() }
    }

    /// The calling thread is about to take a lock: from here on handlers wait. Returns its number.
    #[inline]
    pub(crate) fn enter(self) -> u32 {
        let thread = self.thread();
        thread.depth.set(thread.depth.get().wrapping_add(1));
        thread.id()
    }

    /// The calling thread has released a lock; handlers that have waited run now.
    #[inline]
    pub(crate) fn leave(self) {
        let thread = self.thread();
        thread.depth.set(thread.depth.get().wrapping_sub(1));
        let due = if thread.depth.get() == 0 { thread.deferred.replace(0) } else { 0 };
        if due != 0 {
            raw::let_through(due);
        }
    }
}

/// The calling thread is about to take a lock: from here on handlers wait. Returns its number.
#[inline]
pub(crate) fn enter() -> u32 {
    Here::find().enter()
}

/// The calling thread has released a lock; handlers that have waited run now.
#[inline]
pub(crate) fn leave() {
    Here::find().leave();
}

/// Handlers of the calling thread wait until this is dropped, as while it holds one of our locks.
#[derive(Debug)]
pub(crate) struct Deferring(());

impl Deferring {
    pub(crate) fn new() -> Self {
        enter();
        Self(())
    }
}

impl Drop for Deferring {
    fn drop(&mut self) {
        leave();
    }
}

/// Whether the calling thread holds any of our locks.
pub(crate) fn holds_locks() -> bool {
    with(|thread| thread.depth.get() > 0)
}

/// The calling thread lets these signals through when it has released its locks.
pub(crate) fn defer(signals: u64) {
    with(|thread| thread.deferred.set(thread.deferred.get() | signals));
}

/// A handler has run.
pub(crate) fn count_interrupt(restarts: bool) {
    with(|thread| {
        thread.interrupts.set(thread.interrupts.get().wrapping_add(1));
        if !restarts {
            thread.hard_interrupts.set(thread.hard_interrupts.get().wrapping_add(1));
        }
    });
}

/// Where on its stack a handler runs, which has interrupted its thread wherever that was: below the context that the kernel
/// has given it. One that is left by `longjmp` has not returned, but the stack is no longer there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handler {
    pub(crate) context: usize,
    /// Start and length of the other stack that its thread has for handlers.
    pub(crate) alternate: (usize, usize),
}

impl Handler {
    fn holds(self, stack: usize) -> bool {
        let (start, len) = self.alternate;
        let is_alternate = |at: usize| at.wrapping_sub(start) < len;
        is_alternate(stack) || !is_alternate(self.context) && stack < self.context
    }
}

/// A handler begins. Returns whether it is the outermost one, for which [`end_handler`] is called.
pub(crate) fn begin_handler(new: Handler) -> bool {
    with(|thread| {
        let is_outermost = thread.handler.get().is_none_or(|outer| !outer.holds(new.context));
        if is_outermost {
            thread.handler.set(Some(new));
        }
        is_outermost
    })
}

/// The outermost handler returns.
pub(crate) fn end_handler() {
    with(|thread| thread.handler.set(None));
}

/// Whether the calling thread is in a handler. After one that was left by `longjmp`, that is believed as long as the thread
/// has only been asked in calls that reach as deep.
#[inline]
pub(crate) fn is_in_handler() -> bool {
    with(Thread::is_in_handler)
}

#[cold]
#[inline(never)]
fn is_still_in(thread: &Thread, handler: Handler) -> bool {
    let here = 0_u8;
    let is_in = handler.holds((&raw const here).addr());
    if !is_in {
        thread.handler.set(None);
    }
    is_in
}

/// What interrupts a wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Interrupts {
    /// Every handler: `poll`, `select`, `epoll_wait`, and calls with a time limit.
    All,
    /// Handlers that do not ask for a restart: `recv` and `send` without a time limit.
    Hard,
}

/// How many handlers had run when a call began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    all: u32,
    hard: u32,
}

impl Seen {
    /// Now.
    #[inline]
    pub(crate) fn now() -> Self {
        with(|thread| Self { all: thread.interrupts.get(), hard: thread.hard_interrupts.get() })
    }

    pub(crate) fn of(self, kind: Interrupts) -> u32 {
        match kind {
            Interrupts::All => self.all,
            Interrupts::Hard => self.hard,
        }
    }
}

/// How many handlers of that kind have run so far.
#[inline]
pub(crate) fn interrupts(kind: Interrupts) -> u32 {
    with(|thread| match kind {
        Interrupts::All => thread.interrupts.get(),
        Interrupts::Hard => thread.hard_interrupts.get(),
    })
}

#[cfg(test)]
mod tests {
    use super::{Handler, begin_handler, end_handler, is_in_handler, with};

    fn below(calls: u32, f: &mut dyn FnMut(usize)) {
        let here = [0_u8; 256];
        match calls {
            0 => f((&raw const here).addr()),
            _ => below(calls - 1, f),
        }
    }

    /// Goal: a handler counts as long as its stack is there, also one in another, and one on a stack of its own.
    #[test]
    fn a_handler_that_has_been_left_is_none() {
        let none = (0, 0);
        below(20, &mut |context| {
            assert!(begin_handler(Handler { context, alternate: none }));
            below(5, &mut |context| {
                assert!(is_in_handler());
                assert!(!begin_handler(Handler { context, alternate: none }));
            });
            assert!(is_in_handler());
        });
        assert!(!is_in_handler());
        below(20, &mut |context| {
            assert!(begin_handler(Handler { context, alternate: none }));
        });
        below(10, &mut |context| {
            assert!(begin_handler(Handler { context, alternate: none }));
            end_handler();
            assert!(!is_in_handler());
        });
        let own = Box::new([0_u8; 64]);
        let alternate = (own.as_ptr().addr(), own.len());
        assert!(begin_handler(Handler { context: alternate.0 + 60, alternate }));
        assert!(with(|thread| thread.handler.get()).is_some_and(|one| one.holds(alternate.0)));
        below(20, &mut |_| assert!(!is_in_handler()));
    }
}
