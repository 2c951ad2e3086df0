//! Completion queues, and the table of memory that outstanding work owns.

use crate::channel::CompChannel;
use crate::error::{Busy, CreateError, NotifyError, PollError, WorkError};
use crate::memory::Memory;
use crate::provider::{self, Events, Port};
use crate::srq::{self, Srq};
use crate::trace;
use adverb_device::locks::Mutex;
use adverb_device::{BufferNumber, ResizeError, Timestamps, WcStatus};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A work completion. `struct ibv_wc`; IBTA Vol. 1 §11.4.2.1.
///
/// [`Cq`] has an example.
#[doc(alias = "ibv_wc")]
pub type WorkCompletion = adverb_device::Completion;

/// Memory of outstanding work, by number.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

/// A place for the memory of one request.
#[derive(Debug, Default)]
struct Slot {
    memory: Option<Memory>,
    /// Its completion was polled: the device has done with the memory.
    completed: bool,
    /// Times that the place was taken: tells one request from the next.
    generation: u64,
    /// The unsignaled request of the same queue pair before it.
    before: Option<Link>,
}

/// A request that owns memory, by name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Link {
    pub(crate) number: u32,
    generation: u64,
}

impl Owned {
    /// Makes room, so that posting never has to.
    pub(crate) fn reserve(&mut self, more: usize) {
        self.slots.reserve(more);
        // Whatever is free or taken fits, so that giving back never has to either.
        self.free.reserve(self.slots.capacity().saturating_sub(self.free.len()));
    }

    /// Takes memory in. `before` is an unsignaled request that ends before this one.
    pub(crate) fn put(&mut self, memory: Memory, before: Option<Link>) -> Link {
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let mut generation = 0;
        if let Some(slot) = self.slot(number) {
            generation = slot.generation.wrapping_add(1);
            *slot = Slot { memory: Some(memory), completed: false, generation, before };
        }
        Link { number, generation }
    }

    /// Takes back what was never posted.
    pub(crate) fn take_back(&mut self, number: u32) -> Option<Memory> {
        let memory = self.slot(number)?.memory.take()?;
        self.free.push(number);
        Some(memory)
    }

    /// The request's completion was polled: it has ended, and so have the unsignaled ones before
    /// it, whose memory is released.
    fn complete(&mut self, number: u32) {
        let Some(slot) = self.slot(number) else {
            return;
        };
        slot.completed = true;
        let mut before = slot.before.take();
        if slot.memory.as_ref().is_some_and(Memory::is_nothing) {
            drop(self.take_back(number)); // It will not be asked for.
        }
        while let Some(Link { number, generation }) = before {
            let same = |slot: &&mut Slot| slot.generation == generation && !slot.completed;
            // One that failed has a completion of its own, which has released what was before it.
            let Some(slot) = self.slot(number).filter(same) else {
                return;
            };
            before = slot.before.take();
            drop(self.take_back(number));
        }
    }

    /// Takes what has completed, and nothing else: a completion is a plain value that the program
    /// may keep, copy or make up.
    fn take(&mut self, number: u32) -> Option<Memory> {
        self.slot(number).filter(|slot| slot.completed)?;
        self.take_back(number)
    }

    fn slot(&mut self, number: u32) -> Option<&mut Slot> {
        self.slots.get_mut(usize::try_from(number).ok()?)
    }
}

/// A completion queue. `struct ibv_cq`; IBTA Vol. 1 §11.2.8.
///
/// A handle: clones are the same queue.
///
/// Four ways to take completions: with their memory, one after the other; a wait that polls; all that
/// there are; and as C does, many at once without their memory, which [`Cq::take`] then hands out.
///
/// ```
/// use adverb_verbs::{Work, WorkCompletion};
/// use std::time::Duration;
/// # use adverb_verbs::{Context, QpConfig};
/// # let context = Context::open("soft_lo")?;
/// # let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// # let a = pd.create_qp(&QpConfig::new(&cq))?;
/// # let b = pd.create_qp(&QpConfig::new(&cq))?;
/// # a.connect(b.address()?)?;
/// # b.connect(a.address()?)?;
/// let post = |wr_id| {
///     b.post(Work::recv(pd.buffer(8)?).wr_id(wr_id))?;
///     a.post(Work::send(pd.buffer(8)?).wr_id(wr_id).unsignaled())?;
///     Ok::<_, Box<dyn std::error::Error>>(())
/// };
/// assert!(cq.next()?.is_none());
/// assert!(cq.wait_timeout(Duration::from_millis(1))?.is_none());
/// post(1)?;
/// let done = cq.wait()?.ok()?; // An error names what failed, and where.
/// assert_eq!((done.wc.wr_id, done.wc.byte_len), (1, 8));
/// let buffer = done.memory.and_then(adverb_verbs::Memory::into_buf).ok_or("a buffer")?;
/// assert_eq!(buffer.len(), 8);
///
/// post(2)?;
/// let mut many = [WorkCompletion::EMPTY; 16];
/// let count = loop {
///     match cq.poll(&mut many)? {
///         0 => std::hint::spin_loop(),
///         count => break count,
///     }
/// };
/// for wc in many.iter().take(count) {
///     assert!(cq.take(wc).is_some());
/// }
///
/// post(3)?;
/// while cq.completions().next().is_none() {}
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_cq")]
pub struct Cq {
    inner: Arc<Inner>,
}

/// Shared state of a queue's handles.
pub(crate) struct Inner {
    device: provider::Cq,
    port: Port,
    owned: Mutex<Tables>,
    channel: Option<CompChannel>,
    context: u64,
}

/// Memory of work that completes on a queue.
#[derive(Default)]
struct Tables {
    /// That of requests of its queue pairs.
    owned: Owned,
    /// That of shared receive queues, by number.
    shared: Vec<(u32, Weak<srq::Inner>)>,
}

impl Tables {
    /// Does something to the table that the completion's memory is in.
    fn table<R>(
        &mut self,
        completion: &WorkCompletion,
        run: impl FnOnce(&mut Owned) -> R,
    ) -> Option<R> {
        let Some(number) = completion.srq else {
            return Some(run(&mut self.owned));
        };
        let (_, srq) = self.shared.iter().find(|(known, _)| *known == number)?;
        let srq = srq.upgrade()?;
        let result = run(&mut srq.owned());
        Some(result)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let (Some(channel), Some(id)) = (&self.channel, self.device.id()) {
            channel.forget(id);
        }
    }
}

/// Parameters of a completion queue. `struct ibv_cq_init_attr_ex`.
///
/// [`CompChannel`](crate::CompChannel) has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[doc(alias = "ibv_cq_init_attr_ex")]
pub struct CqConfig<'a> {
    /// Completions it holds, 1 to [`crate::DeviceAttr::max_cqe`].
    pub cqe: u32,
    /// A number of the program's own; comes back with the queue's events.
    pub context: u64,
    /// Where it says that it has something.
    pub channel: Option<&'a CompChannel>,
    /// Which of the device's completion vectors serves it, below
    /// [`crate::DeviceAttr::num_comp_vectors`]. They are all alike.
    pub comp_vector: u32,
    /// Which clock its completions are stamped with.
    pub timestamps: Timestamps,
}

impl<'a> CqConfig<'a> {
    /// A queue for `cqe` completions without a channel.
    pub const fn new(cqe: u32) -> Self {
        Self { cqe, context: 0, channel: None, comp_vector: 0, timestamps: Timestamps::None }
    }

    adverb_device::setters! {
        cqe: u32,
        context: u64,
        comp_vector: u32,
        timestamps: Timestamps,
        ;
        channel?: &'a CompChannel,
    }

    fn check(&self, port: &Port) -> Result<(), CreateError> {
        let attr = port.attr();
        CreateError::check([
            ("cqe", self.cqe, (1, attr.max_cqe)),
            ("comp_vector", self.comp_vector, (0, attr.num_comp_vectors - 1)),
        ])?;
        match self.channel {
            Some(channel) if !channel.belongs_to(port) => Err(CreateError::ForeignChannel),
            Some(_) | None => Ok(()),
        }
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}

impl Cq {
    pub(crate) fn create(
        port: &Port,
        events: &Events,
        config: &CqConfig<'_>,
    ) -> Result<Self, CreateError> {
        config.check(port)?;
        let device = port.create_cq(events, config)?;
        let inner = Arc::new(Inner {
            device,
            port: port.clone(),
            owned: Mutex::default(),
            channel: config.channel.cloned(),
            context: config.context,
        });
        if let (Some(channel), Some(id)) = (config.channel, inner.device.id()) {
            channel.remember(id, &inner);
        }
        trace::queue_made(config);
        Ok(Self { inner })
    }

    /// The queue of an event, unless it has gone meanwhile.
    pub(crate) fn upgrade(weak: &Weak<Inner>) -> Option<Self> {
        Some(Self { inner: weak.upgrade()? })
    }

    pub(crate) fn device(&self) -> &provider::Cq {
        &self.inner.device
    }

    pub(crate) fn belongs_to(&self, port: &Port) -> bool {
        self.inner.port.is_same(port)
    }

    pub(crate) fn reserve(&self, more: u32) {
        self.inner.owned.lock().owned.reserve(usize::try_from(more).unwrap_or(0));
    }

    /// Completions of receives from `srq` will come here.
    pub(crate) fn expect_from(&self, srq: &Srq) {
        let mut tables = self.inner.owned.lock();
        tables.shared.retain(|(_, srq)| srq.strong_count() > 0);
        if !tables.shared.iter().any(|(number, _)| *number == srq.number()) {
            tables.shared.push((srq.number(), srq.downgrade()));
        }
    }

    pub(crate) fn put(&self, memory: Memory, before: Option<Link>) -> Link {
        self.inner.owned.lock().owned.put(memory, before)
    }

    pub(crate) fn take_back(&self, number: u32) -> Option<Memory> {
        self.inner.owned.lock().owned.take_back(number)
    }

    /// Completions that it can hold.
    pub fn capacity(&self) -> usize {
        self.inner.device.capacity()
    }

    /// The number that its maker gave it.
    pub fn context(&self) -> u64 {
        self.inner.context
    }

    /// The channel where it says that it has something.
    pub fn channel(&self) -> Option<&CompChannel> {
        self.inner.channel.as_ref()
    }

    /// Two handles are of the same queue.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Changes how many completions it can hold; those that are there stay. IBTA Vol. 1 §11.2.8.
    ///
    /// # Errors
    ///
    /// [`ResizeError`]; nothing has changed then.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, cqe: u32) -> Result<(), ResizeError> {
        self.inner.device.resize(cqe)
    }

    /// Asks for one event on the channel when the next completion comes, or, with
    /// `solicited_only`, the next one that its sender marked as solicited or that is an error.
    /// IBTA Vol. 1 §11.4.2.2.
    ///
    /// Completions that are in the queue already raise none: poll once more after arming, before
    /// sleeping. Asking for solicited ones only takes nothing back.
    ///
    /// # Errors
    ///
    /// [`NotifyError`] if the queue was made without a channel.
    #[doc(alias = "ibv_req_notify_cq")]
    #[inline]
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), NotifyError> {
        if self.inner.device.arm(solicited_only) { Ok(()) } else { Err(NotifyError) }
    }

    /// Acknowledges `count` events that were kept with [`crate::CqEvent::keep`].
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn ack_events(&self, count: u32) {
        self.inner.device.acknowledge(count);
    }

    /// Events of this queue that were taken and not acknowledged: completion events, and
    /// asynchronous ones that may still wait to be taken.
    pub fn unacknowledged(&self) -> u32 {
        self.inner.device.unacknowledged()
    }

    /// Ends the queue, or says why it cannot end yet. Dropping the last handle does so without
    /// asking. IBTA Vol. 1 §11.2.8.
    ///
    /// # Errors
    ///
    /// [`Busy`] with the queue, while queue pairs or other handles use it, or events of it are not
    /// acknowledged.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn destroy(self) -> Result<(), Busy<Self>> {
        let handles = Arc::strong_count(&self.inner) - 1;
        let unacknowledged = self.unacknowledged();
        if handles > 0 || unacknowledged > 0 {
            return Err(Busy { object: self, handles, unacknowledged });
        }
        Ok(())
    }

    /// Takes completions, oldest first, as many as there are and `out` has room for; says how many.
    /// Drives the device if there are none. IBTA Vol. 1 §11.4.2.1.
    ///
    /// A completion of [`crate::Qp::post`] says in `buffer` what [`Cq::take`] gives back.
    ///
    /// # Errors
    ///
    /// [`PollError`] once the queue has overrun and all completions from before are taken.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, PollError> {
        let taken = self.inner.device.poll(out).map_err(PollError)?;
        let new = out.get(..taken).unwrap_or_default();
        if new.iter().any(|completion| completion.buffer.is_some()) {
            self.release(new);
        }
        Ok(taken)
    }

    /// Releases the memory of requests that have ended, where they own some.
    fn release(&self, completions: &[WorkCompletion]) {
        let mut tables = self.inner.owned.lock();
        for completion in completions {
            if let Some(number) = completion.buffer.map(BufferNumber::get) {
                tables.table(completion, |owned| owned.complete(number));
            }
        }
    }

    /// Gives back the memory of work that has completed, once.
    pub fn take(&self, completion: &WorkCompletion) -> Option<Memory> {
        let number = completion.buffer?.get();
        self.inner.owned.lock().table(completion, |owned| owned.take(number))?
    }

    /// Takes one completion and the memory that comes back with it.
    ///
    /// # Errors
    ///
    /// As [`Cq::poll`].
    pub fn next(&self) -> Result<Option<Completion>, PollError> {
        let mut one = [WorkCompletion::EMPTY];
        if self.poll(&mut one)? == 0 {
            return Ok(None);
        }
        let [wc] = one;
        let memory = self.take(&wc);
        Ok(Some(Completion { wc, memory }))
    }

    /// Polls until there is a completion, without sleeping and without a limit: the fastest way to wait, and
    /// the dearest, because it keeps a processor busy. [`Cq::wait_timeout`] ends; a
    /// [`CompChannel`](crate::CompChannel) sleeps.
    ///
    /// # Errors
    ///
    /// As [`Cq::poll`].
    pub fn wait(&self) -> Result<Completion, PollError> {
        loop {
            if let Some(completion) = self.next()? {
                return Ok(completion);
            }
            std::hint::spin_loop();
        }
    }

    /// Polls without sleeping, for `timeout` at most: `None` if there is no completion by then.
    ///
    /// # Errors
    ///
    /// As [`Cq::poll`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<Completion>, PollError> {
        let start = Instant::now();
        loop {
            // Reading the clock takes as long as some polls that find nothing.
            for _ in 0..POLLS {
                if let Some(completion) = self.next()? {
                    return Ok(Some(completion));
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= timeout {
                return Ok(None);
            }
        }
    }

    /// Takes the completions that there are, one after the other.
    pub fn completions(&self) -> Completions<'_> {
        Completions { cq: Some(self) }
    }
}

/// Polls between looks at the clock.
const POLLS: u32 = 16;

/// A completion with the memory that comes back.
///
/// [`Cq`] has an example.
#[derive(Debug)]
pub struct Completion {
    /// How the work ended.
    pub wc: WorkCompletion,
    /// What it owned.
    pub memory: Option<Memory>,
}

impl Completion {
    /// The completion, if the work succeeded.
    ///
    /// # Errors
    ///
    /// [`WorkError`] if it did not; the memory is dropped then.
    pub fn ok(self) -> Result<Self, WorkError> {
        if self.wc.status == WcStatus::Success { Ok(self) } else { Err(WorkError(self.wc)) }
    }
}

/// Completions of a queue, until it is empty. The error of one that has overrun is the last item.
///
/// [`Cq`] has an example.
#[derive(Debug)]
pub struct Completions<'a> {
    /// None after an error.
    cq: Option<&'a Cq>,
}

impl Iterator for Completions<'_> {
    type Item = Result<Completion, PollError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.cq?.next();
        if next.is_err() {
            self.cq = None;
        }
        next.transpose()
    }
}
