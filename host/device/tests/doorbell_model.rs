//! Every interleaving of writers that ring and a thread that goes to sleep, tried by a model checker.
//!
//! The file under test is the device's own; the words are loom's, and so is the event counter. A lost wake-up shows
//! as a deadlock: a sleeper that is not woken, while a record waits for it.

#![allow(dead_code, unreachable_pub, reason = "a part of the device, seen from outside")]
#![expect(clippy::unwrap_used, reason = "a test may fail")]

/// What the file under test finds in its surroundings.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
    use loom::sync::{Arc, Condvar, Mutex};
    use std::io;

    /// An event counter as the kernel's: it can be read from a signal on until it is drained. Clones are the same.
    #[derive(Clone, Debug)]
    pub(crate) struct EventFd(Arc<(Mutex<u64>, Condvar)>);

    impl EventFd {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self(Arc::new((Mutex::new(0), Condvar::new()))))
        }

        pub(crate) fn signal(&self) -> io::Result<()> {
            let (count, heard) = &*self.0;
            *count.lock().unwrap() += 1;
            heard.notify_all();
            Ok(())
        }

        pub(crate) fn drain(&self) -> io::Result<u64> {
            Ok(std::mem::take(&mut *self.0.0.lock().unwrap()))
        }

        /// Sleeps until it can be read.
        pub(crate) fn wait(&self) {
            let (count, heard) = &*self.0;
            let mut count = count.lock().unwrap();
            while *count == 0 {
                count = heard.wait(count).unwrap();
            }
        }
    }
}

mod memory {
    pub(crate) mod peer_page {
        use crate::sync::AtomicU32;
        use std::io;

        #[derive(Debug)]
        pub(crate) struct PeerPage(AtomicU32);

        impl PeerPage {
            pub(crate) fn new() -> io::Result<Self> {
                Ok(Self(AtomicU32::new(0)))
            }

            pub(crate) fn sleepers(&self) -> &AtomicU32 {
                &self.0
            }
        }
    }
}

#[path = "../src/link/shm/doorbell.rs"]
mod doorbell;

use doorbell::{Doorbell, PeerDoorbell, forget};
use loom::thread;
use std::sync::Arc;
use sync::{AtomicU32, Ordering};

/// One direction of a link: how many records were written, and whether its writer has rung.
struct Link {
    written: AtomicU32,
    rung: AtomicU32,
}

/// A device and the links to it.
struct Device {
    doorbell: Doorbell,
    links: Vec<Link>,
}

impl Device {
    fn new(links: usize) -> Arc<Self> {
        let link = || Link { written: AtomicU32::new(0), rung: AtomicU32::new(0) };
        let links = std::iter::repeat_with(link).take(links).collect();
        Arc::new(Self { doorbell: Doorbell::new().unwrap(), links })
    }

    /// A process that writes so many records to a link, one after the other.
    fn write(self: &Arc<Self>, link: usize, records: u32) -> thread::JoinHandle<()> {
        let device = Arc::clone(self);
        thread::spawn(move || {
            let bell =
                PeerDoorbell::new(device.doorbell.fd().clone(), device.doorbell.page().clone());
            let link = device.links.get(link).unwrap();
            for number in 1..=records {
                link.written.store(number, Ordering::Release);
                bell.ring(&link.rung);
            }
        })
    }

    /// Records that have come, on all links.
    fn look(&self) -> u32 {
        self.links.iter().map(|link| link.written.load(Ordering::Acquire)).sum()
    }

    /// As the device takes records: the doorbell is silenced and forgotten before the look.
    fn take(&self) -> u32 {
        if self.doorbell.silence() {
            self.links.iter().for_each(|link| forget(&link.rung));
        }
        self.look()
    }

    /// Takes until there are so many, and sleeps between.
    fn sleep_until(&self, records: u32) {
        loop {
            let taken = self.take();
            if taken == records {
                return;
            }
            self.doorbell.announce();
            if self.look() == taken {
                self.doorbell.fd().wait();
            }
            self.doorbell.retire();
        }
    }

    /// The same of a sleeper that has announced itself once and for all.
    fn watch_until(&self, records: u32) {
        while self.take() < records {
            self.doorbell.fd().wait();
            self.doorbell.suspect();
        }
    }
}

/// Tries every interleaving in which threads are interrupted at most so many times.
fn model(interruptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(interruptions);
    model.check(run);
}

#[test]
fn a_sleeper_is_woken_for_each_record_that_it_has_not_seen() {
    model(3, || {
        let device = Device::new(1);
        let writer = device.write(0, 2);
        device.sleep_until(2);
        writer.join().unwrap();
    });
}

#[test]
fn a_sleeper_is_woken_by_each_of_two_writers() {
    model(2, || {
        let device = Device::new(2);
        let writers = [device.write(0, 1), device.write(1, 1)];
        device.sleep_until(2);
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

#[test]
fn a_set_that_is_watched_all_the_time_rings_again_once_it_is_silenced() {
    model(3, || {
        let device = Device::new(1);
        device.doorbell.announce();
        let writer = device.write(0, 3);
        device.watch_until(3);
        writer.join().unwrap();
    });
}

#[test]
fn a_writer_that_died_while_it_rang_silences_its_own_link_alone() {
    model(3, || {
        let device = Device::new(2);
        device.links.first().unwrap().rung.store(1, Ordering::Relaxed);
        let writer = device.write(1, 1);
        device.sleep_until(1);
        writer.join().unwrap();
    });
}
