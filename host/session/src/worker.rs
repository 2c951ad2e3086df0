//! The threads of channels with handlers.
//!
//! Each takes completions from one source and hands the events to the handlers. It ends when the
//! source has, which it looks for at least now and then.

use crate::adapter::Adapter;
use crate::channel::Shared;
use crate::config::ThreadMode;
use crate::source::Source;
use adverb_sys::affinity;
use std::hint::spin_loop;
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;
use tracing::debug;

/// Starts the threads of a channel's source, unless they run already.
pub(crate) fn start(adapter: &Adapter, channel: &Shared) -> io::Result<()> {
    let source = channel.source();
    if !source.claim_workers() {
        source.bed().kick();
        return Ok(());
    }
    debug!(channel = %channel.title(), "threads for handlers started");
    let threads = match adapter.config().thread_mode {
        ThreadMode::PerChannel => 1,
        ThreadMode::SharedCq { threads } => threads.get(),
    };
    for _ in 0..threads {
        let cpu = adapter.next_cpu();
        let source = Arc::downgrade(source);
        thread::Builder::new().name("adverb-channel".to_owned()).spawn(move || {
            if let Some(cpu) = cpu {
                // A processor that is gone is no reason not to work.
                let _ = affinity::pin_to_cpu(cpu);
            }
            run(&source);
        })?;
    }
    Ok(())
}

fn run(source: &Weak<Source>) {
    let mut idle = 0_u32;
    while let Some(source) = source.upgrade() {
        let bed = Arc::clone(source.bed());
        let epoch = bed.epoch();
        source.arm();
        let reaped = source.reap();
        let served = source.serve();
        if matches!(reaped, Ok(true)) || served {
            idle = 0;
            continue;
        }
        let rests = !source.is_polled() || reaped.is_err() || source.is_deserted();
        // The source may end while this thread sleeps.
        drop(source);
        if rests {
            let _ = bed.sleep(epoch, LOOK_EVERY);
            continue;
        }
        spin_loop();
        idle = idle.wrapping_add(1);
        if idle.is_multiple_of(SPINS_PER_REST) {
            thread::yield_now();
        }
    }
}

/// How long a thread sleeps at most before it looks whether it is still needed.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Polls before a thread offers its core to others.
const SPINS_PER_REST: u32 = 256;
