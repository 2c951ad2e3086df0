//! Once a channel is set up, nothing on its data path allocates.
//!
//! # Safety
//!
//! The allocator hands every call to the system's, unchanged, and counts.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::{Config, Messenger, MessengerConfig, Signal};
use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: each call is the system allocator's own, with the caller's arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Some run of the same work allocates nothing.
fn assert_none(what: &str, work: impl Fn()) {
    let measure = || {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        work();
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    let fewest = (0..20).map(|_| measure()).min_by_key(|count| *count);
    assert_eq!(fewest, Some(0), "{what}: the same work always allocates");
}

/// Goal: send, receive, write, read, atomics and polling allocate nothing.
/// Method: the same work again and again. A thread of the device may make room for itself when it
/// first has something to do, which is not up to us; but what the work itself allocates, it
/// allocates each time.
#[test]
fn the_data_path_does_not_allocate() {
    let every = Signal::Every(NonZeroU32::new(4).unwrap());
    let config = Config::default().signal(every).inline_bytes(16);
    let (client, server) = support::pair(config);
    let (near, far) = (client.channel("data").unwrap(), server.channel("data").unwrap());
    let sink = server.adapter().buffer(8, 9000).unwrap();
    server.advertise("sink", &sink).unwrap();
    let remote = client.remote_buffer("sink").unwrap();
    let local = client.adapter().buffer(8, 9000).unwrap();
    let work = || {
        for round in 0..200 {
            let block = local.next().unwrap().first(1 + round * 40).unwrap();
            block.fill(7).unwrap();
            far.post_recv(sink.next().unwrap()).unwrap();
            near.send(block.clone()).unwrap();
            far.recv().unwrap();
            far.post_recv(sink.next().unwrap()).unwrap();
            near.write_with_imm(block.clone(), remote.next(), 1).unwrap();
            far.recv().unwrap();
            near.read(block.clone(), remote.next()).unwrap();
            let word = local.at(0).unwrap().first(8).unwrap();
            near.fetch_add(word, remote.at(0).unwrap(), 1).unwrap();
            for _ in 0..10 {
                near.post_write(block.clone(), remote.next()).unwrap();
            }
            near.drain().unwrap();
            while near.poll().unwrap().is_some() {}
        }
    };
    assert_none("channels", work);
    drop((client, server));

    let (client, server) = support::pair(Config::default());
    let open = |endpoint| Messenger::open(&endpoint, "data", MessengerConfig::default());
    let other = std::thread::spawn(move || open(server).unwrap());
    let near = open(client).unwrap();
    let far = other.join().unwrap();
    assert_none("messengers", || {
        let mut bytes = [7; 1000];
        for len in 0..bytes.len() {
            near.send(&bytes[..len]).unwrap();
            let message = far.recv().unwrap();
            message.read(0, &mut bytes[..len]).unwrap();
            far.send(&bytes[..len]).unwrap();
            assert_eq!(near.recv().unwrap().len(), len);
        }
    });
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > 0, "the allocator counts");
}
