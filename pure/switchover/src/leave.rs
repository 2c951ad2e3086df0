//! Going back to the kernel: the end that leaves, and the end that follows.
//!
//! A program that knows nothing of rings can use a connection only if all that is still to come arrives
//! through the kernel. So the end that is about to be handed to one *leaves*:
//!
//! 1. It reads no more from its ring, and writes no more to the other.
//! 2. It takes what the kernel's queue holds in front of pending bells, and the bells.
//! 3. It sends a last bell, and is the kernel's.
//!
//! The other end *follows* with its next call, or when the last bell has woken it:
//!
//! 1. It reads what is in its ring, drops the bells, which it can count, and then reads from the kernel.
//! 2. What the end that left has not read it sends again, through the kernel, before anything new.
//!
//! ```text
//! leaver            Leaves: no more rings              Left: as if there had never been any
//! its queue         given | bell bell      ==>         (empty)
//! follower sends                                       what was given and not read | its ring | new
//! follower reads    given | bell | ring | last bell    new
//! ```
//!
//! Bytes are counted, so neither end has to wait for the other. Both locks of an end are held while it leaves or
//! follows.

use crate::bell::Wake;
use crate::page::{Broken, Connection, Leaver, NEVER};
use crate::sync::Ordering;

/// More than the kernel holds for a connection.
pub const QUEUE_MAX: u64 = 1 << 30;

/// What has come of a look at the kernel's queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Received {
    /// So many bytes.
    Bytes(u64),
    /// None yet.
    Nothing,
    /// None ever: the stream has ended.
    Ended,
}

/// What the end that leaves has to do next.
#[derive(Debug)]
pub enum Leaving<'a> {
    /// A thread of the other end is about to send a bell: gives it a moment.
    Pause,
    /// Receives bytes that are known to come, at most so many: [`Leave::on_received`].
    Receive {
        /// So many.
        most: u64,
        /// They are bells: else they are kept.
        are_bells: bool,
    },
    /// Waits until there is something to receive.
    Await,
    /// Leaves what it has kept where the other end finds it, to send it again: [`Leave::on_kept`].
    Keep,
    /// The other end is no more: what has been kept, and what is in the ring, it is for this end to put where a program
    /// finds it. The connection is the kernel's then: [`Leave::on_inherited`].
    Inherit,
    /// Wakes the other end, and sends the last bell: [`Leave::on_last_bell`].
    LastBell(Wake<'a>),
    /// The other end has written nonsense, or does not do what it has begun: the connection is reset.
    Reset,
    /// The connection is the kernel's. Wakes a thread of this end that has slept on the ring meanwhile.
    Finish(Wake<'a>),
}

/// An end that leaves.
#[derive(Debug)]
pub struct Leave<'a> {
    connection: Connection<'a>,
    most_ns: u64,
    stage: Stage,
    has_kept: bool,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Threads of the other end may be sending bells.
    Notified,
    /// So many bytes have to be received, and then so many bells.
    Queue {
        given: u64,
        bells: u64,
        is_alone: bool,
        has_stalled: bool,
    },
    Keep,
    LastBell,
    Left,
    Torn,
}

impl<'a> Connection<'a> {
    /// This end leaves, and waits so long for the other at most. `None` if that has begun to before.
    #[must_use]
    pub fn leave(&self, most_ns: u64) -> Option<Leave<'a>> {
        self.page.begin_to_leave(self.me).then(|| {
            self.outgoing().switch();
            Leave { connection: *self, most_ns, stage: Stage::Notified, has_kept: false }
        })
    }

    /// Whether this end can leave without giving back to the other what has come through the kernel.
    pub fn leaves_freely(&self) -> bool {
        let incoming = self.incoming();
        incoming.pending_bells() == 0 || incoming.is_past()
    }

    /// How many bytes this end has to send again, through the kernel, as the end that left has not read them.
    pub fn left_to_send(&self) -> u64 {
        let resent = self.page.resent.load(Ordering::Acquire);
        self.resend().saturating_sub(resent).saturating_add(self.outgoing().waiting())
    }

    fn resend(&self) -> u64 {
        self.page.resend.load(Ordering::Acquire).min(QUEUE_MAX)
    }

    /// What is left to be dropped of the kernel's queue by the end that follows: bells. `None` before all that
    /// comes otherwise has been read.
    pub fn bells_behind(&self) -> Option<u64> {
        // What comes meanwhile has a bell: they are counted last.
        if self.incoming().has_bytes() { None } else { self.bells_past() }
    }

    /// How many bells are in front of what the kernel's queue has besides. `None` before all has been taken that was given to
    /// it before the rings were.
    pub fn bells_past(&self) -> Option<u64> {
        let incoming = self.incoming();
        incoming.is_past().then(|| incoming.pending_bells())
    }
}

impl<'a> Leave<'a> {
    /// What to do next. `is_abandoned`: whether the process at the other end has died. `waited_ns`: how long this end
    /// has waited, and could have seen what the other does meanwhile.
    pub fn next(&mut self, is_abandoned: impl Fn() -> bool, waited_ns: u64) -> Leaving<'a> {
        let Self { connection, most_ns, .. } = *self;
        let (incoming, outgoing) = (connection.incoming(), connection.outgoing());
        if matches!(self.stage, Stage::Notified) {
            // Once none is about to send a bell, bells can be counted. One that is sent later, by a thread that has been
            // stopped just before, would be data to the next program.
            if incoming.producer.notifying.load(Ordering::SeqCst) != 0 && !is_abandoned() {
                return if waited_ns < most_ns { Leaving::Pause } else { Leaving::Reset };
            }
            let is_gone = outgoing.consumer.sleep.gone.load(Ordering::SeqCst) != 0;
            self.stage = self.count(is_gone || is_abandoned());
        }
        match &mut self.stage {
            Stage::Notified | Stage::Torn => Leaving::Reset,
            Stage::Queue { has_stalled, .. } if *has_stalled => {
                *has_stalled = false;
                if waited_ns < most_ns {
                    return Leaving::Await;
                }
                // What comes later could not be told apart from the other end's data.
                Leaving::Reset
            }
            Stage::Queue { given: 0, bells: 0, is_alone: true, .. } => Leaving::Inherit,
            Stage::Queue { given: 0, bells: 0, .. } if self.has_kept => {
                self.stage = Stage::Keep;
                Leaving::Keep
            }
            Stage::Queue { given: 0, bells: 0, .. } | Stage::LastBell => {
                self.stage = Stage::LastBell;
                outgoing.producer.bells.fetch_add(1, Ordering::SeqCst);
                Leaving::LastBell(outgoing.wake_at_end())
            }
            Stage::Queue { given: 0, bells, .. } => {
                Leaving::Receive { most: *bells, are_bells: true }
            }
            Stage::Queue { given, .. } => Leaving::Receive { most: *given, are_bells: false },
            Stage::Keep => Leaving::Keep,
            Stage::Left => {
                connection.page.has_left(connection.me);
                Leaving::Finish(incoming.wake_at_end())
            }
        }
    }

    /// What has to be taken out of the kernel's queue: bells, and what is in front of them. If there are no bells, it
    /// stays where it is, unless the ring's bytes come behind it for a program that does not know of rings.
    fn count(&self, is_alone: bool) -> Stage {
        let incoming = self.connection.incoming();
        let bells = incoming.pending_bells();
        let stays = bells == 0 && !(is_alone && incoming.has_bytes());
        if stays {
            return Stage::Queue { given: 0, bells: 0, is_alone, has_stalled: false };
        }
        let end = match incoming.producer.switched_at.load(Ordering::Acquire) {
            NEVER => incoming.producer.given.load(Ordering::Acquire),
            switched => switched,
        };
        let given = end.saturating_sub(incoming.consumer.taken.load(Ordering::Acquire));
        if given.max(bells) > QUEUE_MAX {
            return Stage::Torn;
        }
        Stage::Queue { given, bells, is_alone, has_stalled: false }
    }

    /// What has come of [`Leaving::Receive`].
    pub fn on_received(&mut self, received: Received) {
        let Stage::Queue { given, bells, has_stalled, .. } = &mut self.stage else { return };
        let incoming = self.connection.incoming();
        match received {
            Received::Nothing => *has_stalled = true,
            // What is in the ring comes behind bytes that are lost.
            Received::Ended if *given > 0 => self.stage = Stage::Torn,
            Received::Ended => *bells = 0,
            Received::Bytes(count) if *given > 0 => {
                *given = given.saturating_sub(count);
                self.has_kept = true;
                incoming.consumer.taken.fetch_add(count, Ordering::AcqRel);
            }
            Received::Bytes(count) => {
                *bells = bells.saturating_sub(count);
                incoming.drained(count);
            }
        }
    }

    /// So many bytes have been kept for the other end; `None` if there was no room for all.
    pub fn on_kept(&mut self, bytes: Option<u64>) {
        self.stage = match bytes {
            Some(bytes) => {
                self.connection.page.resend.store(bytes, Ordering::Release);
                Stage::LastBell
            }
            None => Stage::Torn,
        };
    }

    /// What the other end has left behind has been taken over.
    pub fn on_inherited(&mut self) {
        self.stage = Stage::Left;
    }

    /// Whether the kernel has taken the last bell.
    pub fn on_last_bell(&mut self, is_sent: bool) {
        if !is_sent {
            self.connection.outgoing().producer.bells.fetch_sub(1, Ordering::SeqCst);
        }
        self.stage = Stage::Left;
    }
}

/// What the end that follows has to do next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Following {
    /// The other end, or another program that has this one, is still about to leave: nothing can be done yet. If
    /// that lasts, the connection is reset.
    Wait,
    /// Another program that had this end, too, has left: the connection is the kernel's.
    Gone,
    /// Sends what the other end has kept, from a position on: [`Follow::on_resent`].
    Resend {
        /// So many bytes of it have been sent.
        from: u64,
        /// So many it has.
        of: u64,
    },
    /// Sends what is in the ring: [`Follow::on_forwarded`].
    Forward,
    /// Drops the bells behind all that has been read ([`Connection::bells_behind`]): [`Follow::on_drained`].
    Drain,
    /// Nothing more for now: the kernel takes nothing, or the program has to read first.
    Later,
    /// The connection is the kernel's.
    Finish,
    /// The other end has written nonsense: the connection is reset.
    Reset,
}

/// An end that follows, for the length of one attempt: how far it is lies in the page.
#[derive(Debug)]
pub struct Follow<'a> {
    connection: Connection<'a>,
    step: Step,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Leaver,
    Resend,
    Forward,
    Drain,
    Later,
    Finish,
}

impl<'a> Connection<'a> {
    /// Does what can be done now, after the other end.
    #[must_use]
    pub const fn follow(&self) -> Follow<'a> {
        Follow { connection: *self, step: Step::Leaver }
    }
}

impl Follow<'_> {
    /// What to do next. `is_abandoned`: whether the process at the other end has died.
    pub fn next(&mut self, is_abandoned: impl FnOnce() -> bool) -> Following {
        let Self { connection, step } = self;
        if matches!(step, Step::Leaver) {
            match connection.page.leaver() {
                Err(Broken) | Ok(Leaver::Neither) => return Following::Reset,
                Ok(Leaver::Left(end)) if end == connection.me => return Following::Gone,
                // If it was killed meanwhile, what it had taken out of the kernel's queue is lost.
                Ok(Leaver::Leaves(end)) if end == connection.me => return Following::Wait,
                Ok(Leaver::Leaves(_)) if !is_abandoned() => return Following::Wait,
                Ok(Leaver::Leaves(_) | Leaver::Left(_)) => *step = Step::Resend,
            }
        }
        if matches!(step, Step::Resend) {
            let (from, of) = (connection.page.resent.load(Ordering::Acquire), connection.resend());
            if from < of {
                return Following::Resend { from, of };
            }
            *step = Step::Forward;
        }
        match step {
            Step::Leaver | Step::Resend | Step::Forward => Following::Forward,
            Step::Drain => Following::Drain,
            Step::Later => Following::Later,
            Step::Finish => Following::Finish,
        }
    }

    /// So many bytes more of what the other end has kept are with the kernel, and whether that is all.
    pub fn on_resent(&mut self, bytes: u64, is_all: bool) {
        self.connection.page.resent.fetch_add(bytes, Ordering::AcqRel);
        self.step = if is_all { Step::Forward } else { Step::Later };
    }

    /// Whether all that was in the ring is with the kernel.
    pub fn on_forwarded(&mut self, is_all: bool) {
        self.step = if is_all { Step::Drain } else { Step::Later };
    }

    /// Whether nothing is left in the ring and in front of what comes through the kernel from now on.
    pub fn on_drained(&mut self, is_all: bool) {
        self.step = if is_all { Step::Finish } else { Step::Later };
    }
}
