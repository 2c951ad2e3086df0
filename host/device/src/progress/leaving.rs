//! What a process still does for its peers when it ends and has not dropped its devices: it sends the
//! acknowledgements that wait (`engine`, `port/acks.rs`), and then what the manager of its connections has to say.
//!
//! The hardware of an adapter acknowledges a message whatever becomes of the program that received it. Here a
//! program that ends with its last completion would take the acknowledgement along, and its peer's SEND would
//! fail. A process that is killed still does.

use super::seats::Table;
use super::{Clock, Port, lock};
use crate::objects::notice::DeferredWakeups;
use crate::sync::Mutex;
use adverb_engine::Look;
use adverb_sys::fork::PerProcess;
use adverb_sys::process::at_exit;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Open ports of this process.
static OPEN: PerProcess<Mutex<Vec<Weak<Port>>>> = PerProcess::new();

/// What is said after the acknowledgements.
static LAST_WORDS: PerProcess<OnceLock<fn() -> bool>> = PerProcess::new();

/// Looks at a lock that another thread may hold: the one that ends may be its holder, in a signal handler.
const LOOKS_MAX: u32 = 1000;
/// From one look to the next: the holder may have to wait for a processor.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);

/// This port pays what it owes when the process ends.
pub(super) fn remember(port: &Arc<Port>) {
    static HANDLER: PerProcess<OnceLock<()>> = PerProcess::new();
    let mut open = lock(OPEN.get());
    open.retain(|known| known.strong_count() > 0);
    open.push(Arc::downgrade(port));
    drop(open);
    HANDLER.get().get_or_init(|| {
        let _ = at_exit(leave);
    });
}

/// Acknowledges what all ports have received.
extern "C" fn leave() {
    // The handler of `exit` may have interrupted a call, whose locks are held.
    if DeferredWakeups::is_deferring() {
        return;
    }
    let Some(open) = look(|| OPEN.get().try_lock().ok()) else {
        return;
    };
    for port in open.iter().filter_map(Weak::upgrade) {
        port.acknowledge_all();
        // The last handle may have gone meanwhile: threads are not waited for here.
        std::mem::forget(port);
    }
    drop(open);
    if let Some(say) = LAST_WORDS.get().get() {
        let _ = look(|| say().then_some(()));
    }
}

/// What `attempt` gives, sooner or later.
fn look<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    (0..LOOKS_MAX).find_map(|_| {
        let found = attempt();
        if found.is_none() {
            std::thread::sleep(LOOK_INTERVAL);
        }
        found
    })
}

impl Port {
    /// Has `say` called when this process ends by `exit(3)` or by returning from `main`, after the acknowledgements that
    /// peers wait for, until it answers true, and for a tenth of a second at most: a lock that it needs may be held
    /// for ever. The first one that is given is called, and no other one.
    pub fn on_leaving(say: fn() -> bool) {
        let _ = LAST_WORDS.get().set(say);
    }

    /// Sends all acknowledgements that wait.
    fn acknowledge_all(&self) {
        let Some(mut receiver) = look(|| self.receiver.try_lock()) else {
            return;
        };
        let mut clock = Clock::new();
        let now = clock.now();
        let mut table = Table { port: self, clock: &mut clock, poll_buffer: None };
        receiver.waiting.acknowledge(&mut table, Look::Everything);
        receiver.waiting.acknowledge_held(&mut table, now, Look::Everything);
    }
}
