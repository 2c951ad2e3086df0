//! Settings, each with a default: the device is that of each connection, if none is named.
//!
//! Nothing is checked here: opening an [`crate::Adapter`] does that, and says what is wrong.

use crate::auth::Secret;
use crate::frame;
use crate::link::Departure;
use adverb_verbs::{AckTimeout, PathMtu, QpLimits, RetryCount, RnrRetry, RnrTimer};
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

/// Channels that one endpoint can have.
pub const CHANNELS_MAX: usize = frame::CHANNELS_MAX;

/// Everything that can be set about a session.
///
/// # Examples
///
/// ```
/// use adverb_session::Config;
///
/// let config = Config::default()
///     .device("soft_lo")
///     .channels(["control", "data"])
///     .send_depth(64);
/// assert_eq!(config.queues.send_depth, 64);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// What the peer is told to call this side.
    pub name: String,
    /// Names of an endpoint's channels; one, `data`, unless set. The client's count; a server makes those
    /// that it is asked for.
    pub channels: Vec<String>,
    /// The device, and how its queue pairs behave on the network.
    pub adapter: AdapterConfig,
    /// Sizes of a channel's queues.
    pub queues: QueueConfig,
    /// How long to wait for what.
    pub timeouts: Timeouts,
    /// How calls and threads that wait do it; [`WorkMode::CompletionChannel`] unless set: they sleep.
    pub work_mode: WorkMode,
    /// Which completions come together, and which threads take them.
    pub thread_mode: ThreadMode,
    /// What sessions meet over; [`Connector::Tcp`] unless set. Both sides need the same.
    pub connector: Connector,
    /// What peers have to know to be let in, and servers to be trusted.
    pub secret: Option<Secret>,
    /// How a client comes back by itself to a server that it has lost; `None`: not at all.
    pub reconnect: Option<Reconnect>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "session".to_owned(),
            channels: vec!["data".to_owned()],
            adapter: AdapterConfig::default(),
            queues: QueueConfig::default(),
            timeouts: Timeouts::default(),
            work_mode: WorkMode::default(),
            thread_mode: ThreadMode::default(),
            connector: Connector::default(),
            secret: None,
            reconnect: None,
        }
    }
}

impl Config {
    /// Sets what the peer is told to call this side.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the names of an endpoint's channels, 1 to [`CHANNELS_MAX`].
    #[must_use]
    pub fn channels(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.channels = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the name of the device, which is otherwise that of each connection's local address.
    #[must_use]
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.adapter.device = Some(name.into());
        self
    }

    adverb_sys::setters! {
        /// Sets the place of the address to use in the device's GID table, which is otherwise that of each
        /// connection's local address.
        fn gid_index(index: u8) => self.adapter.gid_index = Some(index);
        /// Sets the largest path MTU to use.
        fn path_mtu(mtu: PathMtu) => self.adapter.path_mtu = Some(mtu);
        /// Sets the traffic class of all packets to peers: DSCP in the upper six bits.
        fn traffic_class(class: u8) => self.adapter.traffic_class = class;
        /// Sets how many routers packets to peers may pass; 0 leaves it to the system.
        fn hop_limit(routers: u8) => self.adapter.hop_limit = routers;
        /// Sets how much work may be in flight from one channel.
        fn send_depth(depth: u32) => self.queues.send_depth = depth;
        /// Sets how many receives may be posted to one channel.
        fn receive_depth(depth: u32) => self.queues.receive_depth = depth;
        /// Sets up to how many bytes a message or WRITE is copied when it is posted.
        fn inline_bytes(bytes: u32) => self.queues.inline_bytes = bytes;
        /// Sets which posted work asks the device for a completion.
        fn signal(signal: Signal) => self.queues.signal = signal;
        /// Sets how long a client tries to connect.
        fn connect_timeout(timeout: Duration) => self.timeouts.connect = timeout;
        /// Sets how long a server waits for the Hello of a new connection.
        fn handshake_timeout(timeout: Duration) => self.timeouts.handshake = timeout;
        /// Sets how long the waiting calls of channels, messengers and endpoints wait.
        fn work_timeout(timeout: Duration) => self.timeouts.work = Some(timeout);
        /// Sets what sessions meet over.
        fn connector(connector: Connector) => self.connector = connector;
        /// Sets how calls and threads that wait do it.
        fn work_mode(mode: WorkMode) => self.work_mode = mode;
        /// Sets how many completions a completion queue holds.
        fn cq_size(completions: u32) => self.queues.cq_size = Some(completions);
        /// Sets how long a peer may be silent, also when it is asked, before it is given up.
        fn silence_timeout(timeout: Duration) => self.timeouts.silence = Some(timeout);
        /// Has a client come back by itself to a server that it has lost.
        fn reconnect(policy: Reconnect) => self.reconnect = Some(policy);
    }

    /// Sets which completions come together, and which threads take them.
    #[must_use]
    pub fn thread_mode(mut self, mode: ThreadMode) -> Self {
        self.thread_mode = mode;
        self
    }

    /// Sets the processors that threads of channels with handlers are kept on, in turn. A thread that
    /// cannot be kept there runs anywhere.
    #[must_use]
    pub fn cpus(mut self, cpus: impl IntoIterator<Item = usize>) -> Self {
        self.queues.cpus = cpus.into_iter().collect();
        self
    }

    /// Puts the completions of channel `name` into the shared queue `key`.
    #[must_use]
    pub fn cq_key(mut self, name: impl Into<String>, key: impl Into<String>) -> Self {
        self.queues.cq_keys.push((name.into(), key.into()));
        self
    }

    /// Sets what both sides have to know.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<Secret>) -> Self {
        self.secret = Some(secret.into());
        self
    }
}

/// The device, and how its queue pairs behave on the network.
///
/// [`Config`] sets it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AdapterConfig {
    /// Name of the device; `None`: the one that has the local address of each connection.
    pub device: Option<String>,
    /// Place of the address to use in the device's GID table; `None`: that of the local address of each
    /// connection, or else the first of its family.
    pub gid_index: Option<u8>,
    /// The largest path MTU to use; `None`: any. Each connection has the largest that fits the interfaces
    /// of both sides when it is made, and that both sides allow.
    pub path_mtu: Option<PathMtu>,
    /// Traffic class of all packets to peers, of queue pairs and of the connector: DSCP in the upper six
    /// bits, ECN below, which the connector leaves to TCP. Each side has its own.
    pub traffic_class: u8,
    /// How many routers those packets may pass; 0 leaves it to the system.
    pub hop_limit: u8,
    /// How long to wait for an acknowledgement before sending again.
    pub ack_timeout: AckTimeout,
    /// How often to send again then.
    pub retry_count: RetryCount,
    /// How often to send again when the peer has no receive posted.
    pub rnr_retry: RnrRetry,
    /// How long the peer is told to wait when no receive is posted here.
    pub min_rnr_timer: RnrTimer,
    /// READs and atomics under way at once, each way; 128 unless set. The smallest of this, the other side's and what
    /// the devices allow is used.
    pub reads: u8,
}

impl Default for AdapterConfig {
    fn default() -> Self {
        Self {
            device: None,
            gid_index: None,
            path_mtu: None,
            traffic_class: 0,
            hop_limit: 0,
            ack_timeout: AckTimeout::from_exponent(14).unwrap_or(AckTimeout::FOREVER),
            retry_count: RetryCount::MAX,
            rnr_retry: RnrRetry::FOREVER,
            min_rnr_timer: RnrTimer::new(12),
            reads: QpLimits::RD_ATOMIC_MAX,
        }
    }
}

/// Sizes of a channel's queues.
///
/// [`Config`] sets it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueConfig {
    /// Sends, WRITEs, READs and atomics in flight at once; 128 unless set. Work counts until its event is
    /// taken.
    pub send_depth: u32,
    /// Receives posted at once; 128 unless set. A receive counts until its event is taken.
    pub receive_depth: u32,
    /// Messages and WRITEs of up to this many bytes are copied when they are posted; 0, unless set: none.
    pub inline_bytes: u32,
    /// Which posted work asks the device for a completion.
    pub signal: Signal,
    /// Completions that a completion queue holds, at least those of its channels; `None`: as many.
    pub cq_size: Option<u32>,
    /// With [`ThreadMode::SharedCq`]: names of channels, and keys of the queues that their completions
    /// come to. Channels that are not named share one.
    pub cq_keys: Vec<(String, String)>,
    /// Processors that threads of channels with handlers are kept on, in turn; none: any.
    pub cpus: Vec<usize>,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            send_depth: 128,
            receive_depth: 128,
            inline_bytes: 0,
            signal: Signal::All,
            cq_size: None,
            cq_keys: Vec::new(),
            cpus: Vec::new(),
        }
    }
}

/// Which posted work asks the device for a completion.
///
/// All work has its event whatever is chosen here; without a completion of its own it has it when
/// later work completes. Calls that wait ask always, and so does the work that fills the queue. Buffers
/// whose blocks come from [`Buffer::next`](crate::Buffer::next) have more blocks than that, or
/// [`Channel::drain`](crate::Channel::drain) brings the events.
///
/// [`Config::signal`] sets it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Signal {
    /// All of it.
    All,
    /// One in so many.
    Every(NonZeroU32),
}

/// How long to wait for what.
///
/// [`Config`] sets it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Timeouts {
    /// For a server to be there and to answer, all tries together; 10 s unless set.
    pub connect: Duration,
    /// For the Hello of a new connection; 3 s unless set.
    pub handshake: Duration,
    /// For calls that wait for work on a channel or for a message; `None`, unless set: until it is there
    /// or the peer is gone. The waiting is over then, not the channel: one may ask again. Calls that set
    /// something up or end it, such as [`crate::Endpoint::remote_buffer`] and [`crate::Endpoint::close`],
    /// wait as long as this too, and as long as `connect` if it is `None`.
    pub work: Option<Duration>,
    /// For a peer that nothing is heard of, also when it is asked; `None`: for ever. At least 20 ms; 5 s
    /// unless set.
    pub silence: Option<Duration>,
}

impl Timeouts {
    /// For work and messages.
    pub(crate) fn work_limit(&self) -> Duration {
        self.work.unwrap_or(Duration::MAX)
    }

    /// For what sets something up or ends it.
    pub(crate) fn change(&self) -> Duration {
        self.work.unwrap_or(self.connect)
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            handshake: Duration::from_secs(3),
            work: None,
            silence: Some(Duration::from_secs(5)),
        }
    }
}

/// How a client comes back by itself to a server that it has lost.
///
/// What was in flight ends with [`crate::ChannelError::PeerGone`], once, before it tries. When it has
/// succeeded, the same endpoint and channels go on, and the server is told of the same buffers under
/// the same names; the server's have to be asked for again, and receives posted again. Handlers are
/// told by [`crate::Handler::established`]; [`crate::Endpoint::wait_until_up`] waits for it.
///
/// ```
/// use adverb_session::{Config, Reconnect};
/// use std::time::Duration;
///
/// let policy = Reconnect::default().attempts(20).longest_pause(Duration::from_secs(5));
/// let config = Config::default().reconnect(policy);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Reconnect {
    /// How often it tries, each time for as long as [`Timeouts::connect`] at most. Then the peer is
    /// gone for good.
    pub attempts: u32,
    /// The pause before the first try. Each pause is twice the one before, and up to a half shorter by
    /// chance.
    pub first_pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
    /// Also come back to a server that has said goodbye.
    pub after_goodbye: bool,
}

impl Default for Reconnect {
    fn default() -> Self {
        Self {
            attempts: 10,
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(2),
            after_goodbye: false,
        }
    }
}

impl Reconnect {
    adverb_sys::setters! {
        /// Sets how often it tries.
        fn attempts(attempts: u32) => self.attempts = attempts;
        /// Sets the pause before the first try.
        fn first_pause(pause: Duration) => self.first_pause = pause;
        /// Sets the longest pause.
        fn longest_pause(pause: Duration) => self.longest_pause = pause;
        /// Sets whether it also comes back to a server that has said goodbye.
        fn after_goodbye(also: bool) => self.after_goodbye = also;
    }

    pub(crate) const fn covers(self, how: Departure) -> bool {
        match how {
            Departure::Lost | Departure::Silent => true,
            Departure::Closed => self.after_goodbye,
            Departure::Here | Departure::Unruly => false,
        }
    }

    /// The pause before a try, the first being 0.
    pub(crate) fn pause_before(self, attempt: u32) -> Duration {
        let factor = 1_u32.checked_shl(attempt).unwrap_or(u32::MAX);
        self.first_pause.saturating_mul(factor).min(self.longest_pause)
    }
}

/// What sessions meet over: names, buffers by name and the goodbye travel there.
///
/// [`Config::connector`] sets it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Connector {
    /// A queue pair that `rdma_cm`'s messages connect, by address and port: for networks that let RoCE pass and no
    /// TCP. Software devices alone have it. A peer that is killed is noticed within [`Timeouts::silence`], and not at once.
    Cm,
    /// A TCP connection.
    #[default]
    Tcp,
}

/// How calls and threads that wait do it.
///
/// [`Config::work_mode`] sets it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum WorkMode {
    /// They poll without rest: the shortest latency for a whole core.
    BusyPoll,
    /// They sleep on the completion channel of one completion queue. From 1,024 queues of an adapter on, a few share one.
    #[default]
    CompletionChannel,
    /// They sleep on one completion channel for all completion queues of the adapter.
    Epoll,
}

/// Which completions come together, and which threads take them.
///
/// [`Config::thread_mode`] sets it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum ThreadMode {
    /// Each channel has a completion queue of its own and, if it has a handler, a thread.
    #[default]
    PerChannel,
    /// Channels share a completion queue, and those with handlers so many threads.
    SharedCq {
        /// How many.
        threads: NonZeroUsize,
    },
}

impl ThreadMode {
    /// A shared completion queue with one thread.
    pub const SHARED: Self = Self::SharedCq { threads: NonZeroUsize::MIN };
}
