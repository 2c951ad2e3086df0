//! A source of completions for one channel or many: a completion queue, and the channels that it serves.
//!
//! A channel that has a source of its own polls it under its own lock (`channel/shared.rs`). One that
//! many share is polled under a lock of its own, which is held until what was taken is noted in the
//! channels: completions of one queue pair must not overtake one another.

use crate::adapter::Adapter;
use crate::bed::Bed;
use crate::channel::Shared;
use crate::config::WorkMode;
use crate::connector::Deadline;
use crate::error::SetUpError;
use adverb_verbs::locks::Mutex;
use adverb_verbs::{Cq, CqConfig, PollError, Qpn, WcStatus, WorkCompletion};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::thread;
use std::time::Duration;

/// A completion queue and the channels that it serves.
#[derive(Debug)]
pub(crate) struct Source {
    cq: Cq,
    bed: Arc<Bed>,
    is_shared: bool,
    /// Completions that may come.
    places: Mutex<u32>,
    /// Where completions of a shared queue are put when they are taken.
    taking: Mutex<Box<[WorkCompletion]>>,
    members: RwLock<HashMap<u32, Weak<Shared>>>,
    /// Queue pairs on a shared queue that no channel has as yet and that wait for their first completion, and those completions.
    firsts: Mutex<HashMap<u32, Option<WcStatus>>>,
    /// Channels with handlers that have events.
    ready: Mutex<VecDeque<Arc<Shared>>>,
    /// Its threads were started.
    has_workers: AtomicBool,
}

/// Room in a completion queue, for as long as a channel needs it.
#[derive(Debug)]
pub(crate) struct Places {
    source: Arc<Source>,
    count: u32,
}

impl Places {
    #[inline]
    pub(crate) fn source(&self) -> &Arc<Source> {
        &self.source
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        *self.source.places.lock() -= self.count;
    }
}

impl Source {
    pub(crate) fn new(adapter: &Adapter, is_shared: bool, least: u32) -> Result<Self, SetUpError> {
        let failed = |error| SetUpError::System { doing: "make a completion channel", error };
        let context = adapter.context();
        let mode = adapter.config().work_mode;
        let bed = match mode {
            WorkMode::BusyPoll => Arc::new(Bed::of_nails()),
            WorkMode::CompletionChannel => adapter.next_bed().map_err(failed)?,
            WorkMode::Epoll => adapter.bed().map_err(failed)?,
        };
        let cqe = adapter.config().queues.cq_size.unwrap_or(0).max(least);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let config = CqConfig::new(cqe).channel(bed.channel()).context(number);
        let cq = context.create_cq_with(&config)?;
        let scratch = if is_shared { COMPLETIONS_MAX } else { 0 };
        Ok(Self {
            cq,
            bed,
            is_shared,
            places: Mutex::new(0),
            taking: Mutex::new(vec![WorkCompletion::EMPTY; scratch].into()),
            members: RwLock::default(),
            firsts: Mutex::default(),
            ready: Mutex::default(),
            has_workers: AtomicBool::new(false),
        })
    }

    /// Sees to it that `count` more completions fit.
    pub(crate) fn reserve(self: Arc<Self>, count: u32) -> Result<Places, SetUpError> {
        let mut places = self.places.lock();
        let needed = places.saturating_add(count);
        let has = u32::try_from(self.cq.capacity()).unwrap_or(u32::MAX);
        if needed > has {
            // Twice as many, so that a thousand channels do not mean a thousand new queues.
            let grown = self.cq.resize(needed.saturating_mul(2));
            grown.or_else(|_| self.cq.resize(needed)).map_err(|_| SetUpError::CqFull { needed })?;
        }
        *places = needed;
        drop(places);
        Ok(Places { source: self, count })
    }

    pub(crate) fn cq(&self) -> &Cq {
        &self.cq
    }

    pub(crate) fn bed(&self) -> &Arc<Bed> {
        &self.bed
    }

    /// The number that events of its completion queue carry.
    #[cfg(feature = "tokio")]
    pub(crate) fn number(&self) -> u64 {
        self.cq.context()
    }

    /// No thread is to sleep: completions are polled for.
    #[inline]
    pub(crate) fn is_polled(&self) -> bool {
        self.bed.channel().is_none()
    }

    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Serves a channel from now on.
    pub(crate) fn add(&self, number: u32, channel: Weak<Shared>) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        members.retain(|_, known| known.strong_count() > 0);
        members.insert(number, channel);
        // So that nothing has to make room on the data path.
        self.ready.lock().reserve(members.len());
    }

    /// A channel has another queue pair now.
    pub(crate) fn rename(&self, old: u32, new: u32) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = members.remove(&old) {
            members.insert(new, channel);
        }
    }

    /// Asks for a wake-up when the next completion comes.
    #[inline]
    pub(crate) fn arm(&self) {
        if !self.is_polled() {
            let armed = self.cq.req_notify(false);
            debug_assert!(armed.is_ok(), "the queue has a channel");
        }
    }

    /// Takes what has completed, for all channels; false if nothing had.
    pub(crate) fn reap(&self) -> Result<bool, PollError> {
        if !self.is_shared {
            let one = self.one();
            return one.map_or(Ok(false), |channel| channel.reap_own());
        }
        let mut taking = self.taking.lock();
        let count = self.cq.poll(&mut taking)?;
        if count == 0 {
            return Ok(false);
        }
        let mut current: Option<(u32, Arc<Shared>)> = None;
        for completion in taking.iter().take(count) {
            let number = completion.qp.get();
            if current.as_ref().is_none_or(|(known, _)| *known != number) {
                let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
                let found = members.get(&number).and_then(Weak::upgrade);
                drop(members);
                if found.is_none() {
                    // The probe of a queue pair that begins, or the last work of one that has ended.
                    self.firsts
                        .lock()
                        .entry(number)
                        .and_modify(|first| *first = Some(completion.status));
                }
                current = found.map(|channel| (number, channel));
            }
            if let Some((_, channel)) = &current {
                channel.take_in(completion);
            }
        }
        Ok(true)
    }

    /// Keeps the completion of a queue pair that no channel has as yet, whichever thread takes it, until
    /// [`Source::forget`]. Said before there can be one.
    pub(crate) fn expect(&self, qp: Qpn) {
        self.firsts.lock().insert(qp.get(), None);
    }

    pub(crate) fn forget(&self, qp: Qpn) {
        self.firsts.lock().remove(&qp.get());
    }

    /// Waits for the only completion of a queue pair that no channel has as yet, that of its probe; `None` if
    /// it does not come in time.
    pub(crate) fn first(&self, qp: Qpn, deadline: Deadline) -> Result<Option<WcStatus>, PollError> {
        let look = || -> Result<_, PollError> {
            if self.is_shared {
                self.reap()?;
                return Ok(self.firsts.lock().get(&qp.get()).copied().flatten());
            }
            // A client that comes back: others may poll the queue too, for the channel that it is of.
            if let Some(channel) = self.one() {
                return channel.probed(qp);
            }
            let mut one = [WorkCompletion::EMPTY];
            let count = self.cq.poll(&mut one)?;
            Ok(one.first().filter(|_| count > 0).map(|completion| completion.status))
        };
        let mut looks = 0_u32;
        loop {
            match look() {
                Ok(None) if !deadline.has_passed() => {}
                answer => return answer,
            }
            looks = looks.saturating_add(1);
            if looks < LOOKS_PER_NAP { thread::yield_now() } else { thread::sleep(NAP) }
        }
    }

    fn one(&self) -> Option<Arc<Shared>> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members.values().next().and_then(Weak::upgrade)
    }

    /// A channel with a handler has events.
    pub(crate) fn put_ready(&self, channel: Arc<Shared>) {
        self.ready.lock().push_back(channel);
    }

    /// Hands events to the handlers that they are for; false if there was none.
    pub(crate) fn serve(&self) -> bool {
        if !self.is_shared {
            return self.one().is_some_and(|channel| channel.serve());
        }
        let mut any = false;
        loop {
            let next = self.ready.lock().pop_front();
            match next {
                Some(channel) => any |= channel.serve(),
                None => return any,
            }
        }
    }

    /// All its channels have gone.
    pub(crate) fn is_deserted(&self) -> bool {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members.values().all(|known| known.strong_count() == 0)
    }

    /// True for the first call.
    pub(crate) fn claim_workers(&self) -> bool {
        !self.has_workers.swap(true, Ordering::AcqRel)
    }

    /// Sleeps in the source's bed. See [`Bed::sleep`].
    pub(crate) fn sleep(&self, epoch: u64, most: Duration) -> io::Result<()> {
        self.bed.sleep(epoch, most)
    }
}

#[cfg(feature = "tokio")]
impl Drop for Source {
    fn drop(&mut self) {
        let mut served = self.bed.served.lock();
        let others = served.as_mut().map(|served| {
            served.remove(&self.number());
            served.len()
        });
        drop(served);
        if others == Some(0) {
            self.bed.kick(); // The task that serves them ends.
        }
    }
}

/// Looks for a queue pair's first completion before it is slept in between, and for how long then.
const LOOKS_PER_NAP: u32 = 1000;
const NAP: Duration = Duration::from_micros(200);
/// Numbers of sources.
static NUMBERS: AtomicU64 = AtomicU64::new(0);
/// Completions taken at once.
const COMPLETIONS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ThreadMode};
    use crate::frame::Name;

    #[test]
    fn channels_of_one_key_share_a_completion_queue_of_the_size_that_is_set() {
        let config = Config::default().cq_size(500).cq_key("a", "x").cq_key("b", "x");
        let shared = Adapter::open(config.clone().thread_mode(ThreadMode::SHARED)).unwrap();
        let source =
            |adapter: &Adapter, name| adapter.source(&Name::new(name).unwrap(), 16).unwrap();
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| source(&shared, name));
        assert!(Arc::ptr_eq(&a, &b) && Arc::ptr_eq(&c, &d) && !Arc::ptr_eq(&a, &c));
        assert!(a.cq().capacity() >= 500);
        let own = Adapter::open(config).unwrap();
        assert!(!Arc::ptr_eq(&source(&own, "a"), &source(&own, "b")));
    }

    #[test]
    fn a_completion_queue_grows_with_the_channels_that_share_it() {
        let adapter = Adapter::open(Config::default().thread_mode(ThreadMode::SHARED)).unwrap();
        let source = adapter.source(&Name::new("a").unwrap(), 16).unwrap();
        let before = source.cq().capacity();
        let most = u32::try_from(before).unwrap();
        let places = Arc::clone(&source).reserve(most).unwrap();
        assert_eq!(source.cq().capacity(), before);
        let more = Arc::clone(&source).reserve(1).unwrap();
        assert!(source.cq().capacity() > before);
        drop((places, more));
        assert_eq!(*source.places.lock(), 0);
    }
}
