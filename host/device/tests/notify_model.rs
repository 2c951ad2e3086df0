//! Every interleaving of publishing, arming, polling and sleeping, tried by a model checker.
//!
//! The file under test is the device's own; the primitives are loom's. A lost wake-up shows as a
//! deadlock: a sleeper that is not rung for, while there is something to take.

#![allow(dead_code, unreachable_pub, reason = "a part of the device, seen from outside")]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

/// What the file under test finds in its surroundings.
mod sync {
    use loom::sync::MutexGuard;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    /// It excludes as the other does. That a release may miss a thread which begins to wait only takes time.
    pub(crate) use Mutex as FutexMutex;
}

#[path = "../src/objects/notify.rs"]
mod notify;

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use notify::{Arm, Mailbox, Queue};

/// A doorbell as the kernel's: rings until silenced, and its sleepers wake.
struct Doorbell {
    rings: Mutex<bool>,
    heard: Condvar,
}

impl Doorbell {
    fn new() -> Self {
        Self { rings: Mutex::new(false), heard: Condvar::new() }
    }

    fn ring(&self) {
        *self.rings.lock().unwrap() = true;
        self.heard.notify_all();
    }

    fn silence(&self) {
        *self.rings.lock().unwrap() = false;
    }

    fn sleep(&self) {
        let mut rings = self.rings.lock().unwrap();
        while !*rings {
            rings = self.heard.wait(rings).unwrap();
        }
    }
}

struct Channel {
    mail: Mailbox<u32>,
    doorbell: Doorbell,
}

impl Channel {
    fn new() -> Self {
        Self { mail: Mailbox::new(4), doorbell: Doorbell::new() }
    }

    fn post(&self, name: u32) {
        if self.mail.post(|events| events.push_back(name)) {
            self.ring();
        }
    }

    fn ring(&self) {
        self.doorbell.ring();
        self.mail.rang(|| self.doorbell.silence());
    }

    /// Does something that may post, and takes an event.
    fn look(&self, run: impl FnOnce()) -> Option<u32> {
        self.mail.begin_look();
        run();
        let next = |events: &mut std::collections::VecDeque<u32>| events.pop_front();
        let (event, ring) = self.mail.end_look(next, || self.doorbell.silence());
        if ring {
            self.ring();
        }
        event
    }

    /// Waits for one event.
    fn get(&self) -> u32 {
        loop {
            let next = self.mail.take(|events| events.pop_front(), || self.doorbell.silence());
            if let Some(name) = next {
                return name;
            }
            if self.mail.begin_sleep() {
                self.doorbell.sleep();
                self.mail.end_sleep();
            }
        }
    }
}

fn publish(queue: &Queue<u32>, channel: &Channel, item: u32, urgent: bool) {
    if queue.publish(item, urgent).wake {
        channel.post(0);
    }
}

/// Polls as a program does: arms, polls again, sleeps only if there was nothing.
fn collect(queue: &Queue<u32>, channel: &Channel, want: usize) -> Vec<u32> {
    let mut all = Vec::new();
    while all.len() < want {
        queue.arm(Arm::Any);
        let mut out = [0; 4];
        let taken = queue.take(&mut out);
        all.extend(&out[..taken]);
        if taken == 0 {
            channel.get();
        }
    }
    all
}

#[test]
fn a_thread_that_arms_and_polls_before_sleeping_gets_everything() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model.check(|| {
        let shared = Arc::new((Queue::new(4), Channel::new()));
        let publisher = Arc::clone(&shared);
        let publisher = thread::spawn(move || {
            let (queue, channel) = &*publisher;
            publish(queue, channel, 1, false);
            publish(queue, channel, 2, false);
        });
        let (queue, channel) = &*shared;
        assert_eq!(collect(queue, channel, 2), [1, 2]);
        publisher.join().unwrap();
    });
}

#[test]
fn two_publishers_wake_one_sleeper_and_nothing_is_lost() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Arc::new((Queue::new(4), Channel::new()));
        let publishers = [1, 2].map(|item| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || publish(&shared.0, &shared.1, item, false))
        });
        let mut all = collect(&shared.0, &shared.1, 2);
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
        publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
    });
}

#[test]
fn two_queues_share_a_channel_and_both_sleepers_wake() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let channel = Arc::new(Channel::new());
        let sleeper = Arc::clone(&channel);
        let sleeper = thread::spawn(move || sleeper.get());
        let poster = Arc::clone(&channel);
        let poster = thread::spawn(move || {
            poster.post(1);
            poster.post(2);
        });
        let mine = channel.get();
        let theirs = sleeper.join().unwrap();
        assert_eq!(mine + theirs, 3);
        poster.join().unwrap();
    });
}

#[test]
fn a_solicited_arm_sleeps_through_the_rest_and_wakes_for_the_urgent_one() {
    loom::model(|| {
        let shared = Arc::new((Queue::new(4), Channel::new()));
        let publisher = Arc::clone(&shared);
        let (queue, channel) = &*shared;
        queue.arm(Arm::Solicited);
        let publisher = thread::spawn(move || {
            publish(&publisher.0, &publisher.1, 1, false);
            publish(&publisher.0, &publisher.1, 2, true);
        });
        channel.get();
        let mut out = [0; 4];
        assert_eq!(queue.take(&mut out), 2, "the event came with the first, unsolicited one");
        publisher.join().unwrap();
    });
}

/// Goal: one arm is one event, whatever publishes at the same time.
#[test]
fn one_arm_gives_one_event() {
    loom::model(|| {
        let queue = Arc::new(Queue::new(4));
        queue.arm(Arm::Any);
        let other = Arc::clone(&queue);
        let other = thread::spawn(move || usize::from(other.publish(1, false).wake));
        let mine = usize::from(queue.publish(2, true).wake);
        assert_eq!(mine + other.join().unwrap(), 1);
    });
}

#[test]
fn a_doorbell_that_is_watched_too_late_rings_for_the_mail_that_is_there() {
    loom::model(|| {
        let channel = Arc::new(Channel::new());
        let poster = Arc::clone(&channel);
        let poster = thread::spawn(move || poster.post(7));
        channel.mail.watch(|| channel.doorbell.ring());
        channel.doorbell.sleep();
        let got = channel.mail.take(|events| events.pop_front(), || channel.doorbell.silence());
        assert_eq!(got, Some(7));
        poster.join().unwrap();
    });
}

/// Goal: what a looker finds costs no ring, and what it leaves rings for the sleepers of the doorbell.
#[test]
fn a_doorbell_that_is_watched_rings_for_what_lookers_leave() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let channel = Arc::new(Channel::new());
        channel.mail.watch(|| channel.doorbell.ring());
        let poster = Arc::clone(&channel);
        let poster = thread::spawn(move || poster.post(1));
        // Another thread of the program looks once, and posts itself while it does.
        let looker = Arc::clone(&channel);
        let looker = thread::spawn(move || looker.look(|| looker.post(2)).unwrap());
        // This one sleeps by the doorbell until it has the other event.
        let mut mine = None;
        while mine.is_none() {
            channel.doorbell.sleep();
            mine = channel.look(|| {});
        }
        assert_eq!(mine.unwrap() + looker.join().unwrap(), 3);
        poster.join().unwrap();
    });
}

#[test]
fn a_looker_that_takes_everything_leaves_the_doorbell_silent() {
    loom::model(|| {
        let channel = Channel::new();
        channel.mail.watch(|| channel.doorbell.ring());
        let rung = |channel: &Channel| *channel.doorbell.rings.lock().unwrap();
        assert_eq!(channel.look(|| channel.post(1)), Some(1));
        assert!(!rung(&channel));
        assert_eq!(channel.look(|| (2..=3).for_each(|name| channel.post(name))), Some(2));
        assert!(rung(&channel), "one is left");
        assert_eq!(channel.look(|| {}), Some(3));
        assert!(!rung(&channel));
    });
}

/// Goal: a doorbell that was rung late is silent again once all have come to rest, so that no
/// watcher is woken for ever by nothing.
#[test]
fn a_doorbell_that_rings_too_late_is_silenced() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let channel = Arc::new(Channel::new());
        channel.mail.watch(|| channel.doorbell.ring());
        let posters = [1, 2].map(|name| {
            let poster = Arc::clone(&channel);
            thread::spawn(move || poster.post(name))
        });
        let take = || channel.mail.take(|events| events.pop_front(), || channel.doorbell.silence());
        let mut all = 0;
        while all < 3 {
            match take() {
                Some(name) => all += name,
                None => channel.doorbell.sleep(),
            }
        }
        posters.into_iter().for_each(|poster| poster.join().unwrap());
        assert!(!*channel.doorbell.rings.lock().unwrap(), "it rings for nothing");
    });
}
