//! Which of a port's own threads has the port at the moment.
//!
//! Such a thread has a weak handle, and a strong one for the length of a step. If the program gives up the last one of its own
//! meanwhile, the thread would be left with the port, and would end it later than the program's call. So the call waits until
//! none of them has it.

use crate::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// How long a thread keeps away before it looks again whether the call is over.
const PAUSE: Duration = Duration::from_micros(50);

/// The mark of one thread.
#[derive(Debug, Default)]
pub(crate) struct Holder {
    held: Mutex<()>,
    /// Calls that wait until it does not have the port.
    closing: AtomicU32,
}

impl Holder {
    /// Marks, until the guard is dropped, that the thread has the port; by that thread.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        while self.closing.load(Ordering::SeqCst) > 0 {
            thread::sleep(PAUSE); // The lock alone would not let the other thread in, nor a yield one of lower priority.
        }
        self.held.lock()
    }

    /// Calls `f` while none of these threads has the port.
    pub(crate) fn without<A>(holders: [&Self; 2], f: impl FnOnce() -> A) -> A {
        holders.iter().for_each(|one| _ = one.closing.fetch_add(1, Ordering::SeqCst));
        let held = holders.map(|one| one.held.lock());
        let answer = f();
        drop(held);
        holders.iter().for_each(|one| _ = one.closing.fetch_sub(1, Ordering::SeqCst));
        answer
    }
}
