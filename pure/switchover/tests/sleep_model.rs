//! Every interleaving of writing, reading, falling asleep and waking, as far as the memory model lets it be, tried by
//! a model checker.
//!
//! The files under test are the crate's own; their words are loom's. A lost wake-up shows as a deadlock: a sleeper that
//! nothing wakes, while there is something for it.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "parts of the crate, seen from outside"
)]
#![expect(clippy::unwrap_used, reason = "a test may fail by a panic")]

#[path = "../src/bell.rs"]
mod bell;
#[path = "../src/carry.rs"]
mod carry;
#[path = "../src/leave.rs"]
mod leave;
#[path = "../src/page.rs"]
mod page;
#[path = "../src/park.rs"]
mod park;

/// What the files under test find in their surroundings.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

use bell::{Bells, Wake};
use loom::model::Builder;
use loom::sync::atomic::Ordering;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread::{self, JoinHandle};
use page::{Connection, End, Page, Route, Waiters};
use park::{OnWord, Want};

/// Bytes that wake whatever sleeps on them: the kernel's queue of one end, or a word that it sleeps on.
#[derive(Default)]
struct Queue {
    bells: Mutex<u32>,
    came: Condvar,
}

impl Queue {
    fn put(&self) {
        *self.bells.lock().unwrap() += 1;
        self.came.notify_all();
    }

    /// Sleeps until there is one, and leaves it there.
    fn sleep(&self) {
        let mut bells = self.bells.lock().unwrap();
        while *bells == 0 {
            bells = self.came.wait(bells).unwrap();
        }
    }

    /// Takes at most so many out, and says how many those were.
    fn take(&self, most: u64) -> u64 {
        let mut bells = self.bells.lock().unwrap();
        let taken = most.min(u64::from(*bells));
        *bells -= u32::try_from(taken).unwrap();
        taken
    }
}

/// A connection whose ends both use the rings. One byte fits into a ring.
#[derive(Default)]
struct World {
    page: Page,
    waiters: [Waiters; 2],
    /// Of the server's end.
    queue: Queue,
    /// The word on which the server's end sleeps.
    word: Queue,
}

impl World {
    fn new() -> Arc<Self> {
        let world = Self::default();
        world.page.prepare();
        assert!(world.page.take(0, 0));
        for direction in world.page.directions() {
            direction.switch();
            direction.consumer.sleep.armed.store(0, Ordering::Relaxed);
        }
        Arc::new(world)
    }

    fn end(&self, me: End) -> Connection<'_> {
        let [client, server] = &self.waiters;
        let waiters = if me == End::Client { client } else { server };
        Connection { page: &self.page, waiters, me }
    }

    /// Does what wakes the server's end.
    fn wake(&self, client: Connection<'_>, wake: Wake<'_>) {
        match wake {
            Wake::Nothing => {}
            Wake::Word(_) => self.word.put(),
            Wake::Doorbell(number) => panic!("nothing has the doorbell {number}"),
            Wake::Bell => client.bell().unwrap().send(|| {
                self.queue.put();
                true
            }),
        }
    }

    /// The client's end sends a byte, and publishes it by a plain store.
    fn send(&self) {
        let client = self.end(End::Client);
        client.outgoing().producer.head.store(1, Ordering::Release);
        self.wake(client, client.wake_reader());
    }

    /// The server's end sleeps on the kernel's stream until there is a byte, and reads it.
    fn receive(&self) {
        let server = self.end(End::Server);
        server.waiters.sleepers.fetch_add(1, Ordering::SeqCst);
        while !server.incoming().has_bytes() {
            if server.arm(Want::Read, || Route::Rings, || false).sleeps {
                self.queue.sleep();
                if server.incoming().has_bytes() {
                    break;
                }
                // A bell for what has been read before.
                server.incoming().drained(self.queue.take(1));
            }
        }
        server.waiters.sleepers.fetch_sub(1, Ordering::SeqCst);
        server.incoming().consumer.tail.fetch_add(1, Ordering::Release);
    }
}

/// Another thread of the same world.
fn beside(world: &Arc<World>, act: impl FnOnce(&World) + 'static) -> JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || act(&world))
}

#[test]
fn a_reader_that_falls_asleep_on_the_stream_is_woken() {
    loom::model(|| {
        let world = World::new();
        let sender = beside(&world, World::send);
        world.receive();
        sender.join().unwrap();
    });
}

#[test]
fn a_reader_that_falls_asleep_on_the_word_is_woken() {
    loom::model(|| {
        let world = World::new();
        let sender = beside(&world, World::send);
        let server = world.end(End::Server);
        server.waiters.sleepers.fetch_add(1, Ordering::SeqCst);
        while !server.incoming().has_bytes() {
            match server.arm_on_word(Route::Rings, || false) {
                OnWord::Sleep => world.word.sleep(),
                OnWord::Look => {}
                OnWord::Refused => assert!(server.incoming().has_bytes()),
            }
        }
        sender.join().unwrap();
    });
}

#[test]
fn one_of_two_ends_that_say_at_once_that_they_wait_sees_the_other() {
    loom::model(|| {
        let world = World::new();
        let progress = world.end(End::Client).progress();
        assert_eq!(world.end(End::Server).progress(), progress);
        let client = thread::spawn({
            let world = Arc::clone(&world);
            move || world.end(End::Client).waits_in_vain(progress)
        });
        let server = world.end(End::Server).waits_in_vain(progress);
        assert!(client.join().unwrap().is_some() || server.is_some());
        // A byte that has been read since is news.
        world.end(End::Client).incoming().consumer.tail.store(1, Ordering::Relaxed);
        let progress = world.end(End::Client).progress();
        assert_eq!(world.end(End::Client).waits_in_vain(progress), None);
    });
}

#[test]
fn a_writer_that_waits_for_room_is_woken() {
    loom::model(|| {
        let world = World::new();
        // The server's ring is full.
        world.end(End::Server).outgoing().producer.head.store(1, Ordering::Relaxed);
        let reader = beside(&world, |world| {
            let client = world.end(End::Client);
            client.incoming().consumer.tail.store(1, Ordering::Release);
            world.wake(client, client.wake_writer(|| true));
        });
        let server = world.end(End::Server);
        let has_room = || server.outgoing().waiting() == 0;
        while !has_room() {
            if server.arm(Want::Room, || Route::Rings, has_room).sleeps {
                world.queue.sleep();
            }
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_writer_does_not_take_the_bell_of_a_reader() {
    // Three threads: all interleavings would take half a minute.
    let mut model = Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let world = World::new();
        let sender = beside(&world, World::send);
        let writer = beside(&world, |world| {
            let server = world.end(End::Server);
            if let Bells::Take(most) = server.bells_to_take() {
                server.incoming().drained(world.queue.take(most));
            }
        });
        world.receive();
        sender.join().unwrap();
        writer.join().unwrap();
    });
}
