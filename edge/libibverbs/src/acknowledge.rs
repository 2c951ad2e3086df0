//! Acknowledgements of events: an object is not destroyed before all events of it that the program has taken are
//! acknowledged.
//!
//! # Safety
//!
//! Mutex, condition and counter are fields of one object that lives, as C knows it; the counter is changed under the
//! mutex.

use libc::{pthread_cond_t, pthread_mutex_t};

/// Waits until as many events have been acknowledged as were taken.
pub(crate) fn wait_acknowledged(
    mutex: *mut pthread_mutex_t,
    cond: *mut pthread_cond_t,
    counts: &[(*const u32, u32)],
) {
    // SAFETY: a mutex of an object that lives.
    unsafe { libc::pthread_mutex_lock(mutex) };
    for (completed, taken) in counts {
        // SAFETY: a field of the same object, which is changed under the mutex.
        while unsafe { completed.read() } != *taken {
            // SAFETY: the mutex is held.
            unsafe { libc::pthread_cond_wait(cond, mutex) };
        }
    }
    // SAFETY: as above.
    unsafe { libc::pthread_mutex_unlock(mutex) };
}

/// Counts events as acknowledged.
pub(crate) fn acknowledge(
    mutex: *mut pthread_mutex_t,
    cond: *mut pthread_cond_t,
    completed: *mut u32,
    count: u32,
) {
    // SAFETY: a mutex of an object that lives.
    unsafe { libc::pthread_mutex_lock(mutex) };
    // SAFETY: a field of the same object, which is changed under the mutex.
    unsafe { completed.write(completed.read().wrapping_add(count)) };
    // SAFETY: as above.
    unsafe { libc::pthread_cond_broadcast(cond) };
    // SAFETY: as above.
    unsafe { libc::pthread_mutex_unlock(mutex) };
}
