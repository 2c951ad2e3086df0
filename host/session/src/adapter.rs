//! An open device with the settings of a session: what buffers and channels are made of.

use crate::bed::Bed;
use crate::buffer::Buffer;
use crate::config::{Config, ThreadMode};
use crate::error::{AdapterError, BufferError, SetUpError};
use crate::frame::Name;
use crate::keeper::Keeper;
use crate::link::Link;
use crate::source::Source;
use adverb_verbs::locks::Mutex;
use adverb_verbs::{Access, Context, Device, Gid, GidEntry, PathMtu, Pd, PortState, QpLimits};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use tracing::{debug, info};

/// An open device with the settings of a session.
///
/// A handle: clones are the same adapter. Buffers can be used on all channels of their adapter; give
/// one adapter to several sessions to share buffers between them.
///
/// [`Buffer::part`](crate::Buffer::part) has an example.
#[derive(Clone)]
pub struct Adapter {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pd: Pd,
    context: Context,
    /// Where connections are that have no place of their own in the GID table.
    place: GidEntry,
    name: Name,
    device: Name,
    channels: Vec<Name>,
    config: Config,
    /// Listens to peers; started by the first endpoint.
    keeper: Mutex<Option<Keeper>>,
    /// The wait set of all channels that share one completion channel.
    bed: Mutex<Option<Arc<Bed>>>,
    /// Those of completion queues with a completion channel of their own, or of a few; the next to get one is in front.
    beds: Mutex<VecDeque<Weak<Bed>>>,
    /// Shared completion queues by key.
    sources: Mutex<HashMap<String, Weak<Source>>>,
    threads: AtomicUsize,
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Adapter");
        shown.field("device", &self.context().device().name).field("gid", &self.gid());
        shown.finish_non_exhaustive()
    }
}

impl Adapter {
    /// Opens the device that `config` names, or else the loopback device, which reaches this host alone.
    ///
    /// # Errors
    ///
    /// [`AdapterError`], for each setting that cannot be.
    pub fn open(config: Config) -> Result<Self, AdapterError> {
        check(&config)?;
        if let Some(name) = config.adapter.device.clone() {
            return Self::open_device(&name, config);
        }
        let all = devices()?;
        let loopback = all.iter().find(|device| device.loopback);
        let loopback = loopback.ok_or(AdapterError::NoLoopback)?;
        Self::open_device(&loopback.name, config)
    }

    /// Opens the device that `config` names, or else the one that has the address `local`; its port
    /// number means nothing.
    ///
    /// # Errors
    ///
    /// [`AdapterError`], for each setting that cannot be.
    pub fn open_at(local: SocketAddr, config: Config) -> Result<Self, AdapterError> {
        check(&config)?;
        if let Some(name) = config.adapter.device.clone() {
            return Self::open_device(&name, config);
        }
        let all = devices()?;
        match all.iter().find(|device| device.entry_at(local).is_some()) {
            Some(device) => Self::open_device(&device.name, config),
            None => Err(AdapterError::NoDevice {
                local: local.ip(),
                known: all.into_iter().map(|device| device.name).collect(),
            }),
        }
    }

    fn open_device(name: &str, config: Config) -> Result<Self, AdapterError> {
        let context = Context::open(name)?;
        let index = config.adapter.gid_index;
        let gids = || context.gids().iter();
        let place = match index {
            Some(index) => gids().find(|entry| entry.index == index),
            None => gids().find(|entry| entry.ip().is_ipv4()).or(gids().next()),
        };
        let place = *place.ok_or_else(|| AdapterError::NoSuchGid {
            index: index.unwrap_or(0),
            known: gids().map(|e| (e.index, e.ip())).collect(),
        })?;
        let inner = Inner {
            place,
            name: Name::new(&config.name)?,
            device: Name::new(&context.device().name)?,
            channels: channel_names(&config.channels)?,
            pd: context.alloc_pd(),
            context,
            config,
            keeper: Mutex::default(),
            bed: Mutex::default(),
            beds: Mutex::default(),
            sources: Mutex::default(),
            threads: AtomicUsize::new(0),
        };
        info!(
            name = %inner.name,
            device = %inner.device,
            gid_index = place.index,
            gid = %place.gid,
            traffic_class = inner.config.adapter.traffic_class,
            hop_limit = inner.config.adapter.hop_limit,
            work_mode = ?inner.config.work_mode,
            thread_mode = ?inner.config.thread_mode,
            "adapter opened"
        );
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Allocates a buffer of `blocks` blocks of `block_bytes` zeros each, which peers may read,
    /// write and run atomics on once they are told of it.
    ///
    /// # Errors
    ///
    /// [`BufferError`].
    pub fn buffer(&self, blocks: usize, block_bytes: usize) -> Result<Buffer, BufferError> {
        self.buffer_with(blocks, block_bytes, Access::ALL)
    }

    /// Allocates a buffer with these rights, such as [`Access::LOCAL_WRITE`] alone for one that no
    /// peer can reach.
    ///
    /// # Errors
    ///
    /// [`BufferError`].
    pub fn buffer_with(
        &self,
        blocks: usize,
        block_bytes: usize,
        access: Access,
    ) -> Result<Buffer, BufferError> {
        Buffer::allocate(self, blocks, block_bytes, access)
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The open device.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The protection domain of its buffers and channels.
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// The address that peers are told, unless their connections come to another one of the device's.
    pub fn gid(&self) -> Gid {
        self.inner.place.gid
    }

    /// The place in the GID table for a connection with this local address: its own, unless the settings
    /// name one, or else the first of its family.
    pub(crate) fn place(&self, local: SocketAddr) -> GidEntry {
        if self.config().adapter.gid_index.is_some() {
            return self.inner.place;
        }
        let is_v4 = local.ip().to_canonical().is_ipv4();
        let now = self.context().query_gid_table();
        let mut device = self.context().device().clone();
        device.gids = now.unwrap_or_default();
        let like = || device.gids.iter().find(|entry| entry.ip().is_ipv4() == is_v4);
        device.entry_at(local).or_else(like).copied().unwrap_or(self.inner.place)
    }

    /// The path MTU that peers are offered now: the largest that fits the interface, unless the settings
    /// say less.
    pub fn path_mtu(&self) -> PathMtu {
        let largest = self.context().query_port().active_mtu;
        let asked = self.config().adapter.path_mtu;
        asked.filter(|mtu| mtu.bytes() < largest.bytes()).unwrap_or(largest)
    }

    pub(crate) fn name(&self) -> &Name {
        &self.inner.name
    }

    pub(crate) fn device_name(&self) -> &Name {
        &self.inner.device
    }

    pub(crate) fn channel_names(&self) -> &[Name] {
        &self.inner.channels
    }

    /// Has a link looked after.
    pub(crate) fn keep(&self, link: &Arc<Link>) -> io::Result<()> {
        let mut keeper = self.inner.keeper.lock();
        if keeper.is_none() {
            *keeper = Some(Keeper::start(self.config().timeouts.silence)?);
        }
        keeper.as_ref().map_or(Ok(()), |keeper| keeper.keep(link))
    }

    /// The wait set of all channels that share one completion channel.
    pub(crate) fn bed(&self) -> io::Result<Arc<Bed>> {
        let mut bed = self.inner.bed.lock();
        match &*bed {
            Some(bed) => Ok(Arc::clone(bed)),
            None => {
                let channel = self.context().create_comp_channel()?;
                Ok(Arc::clone(bed.insert(Arc::new(Bed::of_many(channel)?))))
            }
        }
    }

    /// The wait set of one more completion queue: with a completion channel of its own, as long as there are not too
    /// many of them, or with that of a few others, in turn.
    pub(crate) fn next_bed(&self) -> io::Result<Arc<Bed>> {
        let mut beds = self.inner.beds.lock();
        while beds.len() >= BEDS_MAX {
            let Some(next) = beds.pop_front() else { break };
            // One whose queues have gone makes room for another.
            if let Some(bed) = next.upgrade() {
                beds.push_back(next);
                return Ok(bed);
            }
        }
        let bed = Arc::new(Bed::on_channel(self.context().create_comp_channel()?));
        beds.push_back(Arc::downgrade(&bed));
        Ok(bed)
    }

    /// Where completions of the channel `name` come from.
    pub(crate) fn source(&self, name: &Name, least: u32) -> Result<Arc<Source>, SetUpError> {
        match self.config().thread_mode {
            ThreadMode::PerChannel => Ok(Arc::new(Source::new(self, false, least)?)),
            ThreadMode::SharedCq { .. } => {
                let keys = &self.config().queues.cq_keys;
                let key = keys.iter().find(|(channel, _)| channel == name.as_str());
                let key = key.map_or("", |(_, key)| key.as_str());
                let mut sources = self.inner.sources.lock();
                if let Some(source) = sources.get(key).and_then(Weak::upgrade) {
                    debug!(channel = %name, key, "shared completion queue found");
                    return Ok(source);
                }
                debug!(channel = %name, key, "shared completion queue not found: made");
                let source = Arc::new(Source::new(self, true, least)?);
                sources.insert(key.to_owned(), Arc::downgrade(&source));
                Ok(source)
            }
        }
    }

    /// The processor that the next thread is kept on, if any.
    pub(crate) fn next_cpu(&self) -> Option<usize> {
        let cpus = &self.config().queues.cpus;
        let turn = self.inner.threads.fetch_add(1, Ordering::Relaxed);
        cpus.get(turn.checked_rem(cpus.len())?).copied()
    }

    #[inline]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

/// Wait sets of an adapter that are for one completion queue or a few. Each takes a descriptor, and five in a runtime, of
/// which a process has 20,000 in some places: with that many a process has room for more than 10,000 endpoints.
const BEDS_MAX: usize = 1024;

/// The adapters of a session: one, or one for each device that connections come to.
#[derive(Debug)]
pub(crate) struct Adapters {
    config: Config,
    only: Option<Adapter>,
    open: Mutex<Vec<Adapter>>,
}

impl Adapters {
    /// One, if the settings name its device.
    pub(crate) fn new(config: Config) -> Result<Self, AdapterError> {
        match config.adapter.device {
            Some(_) => Adapter::open(config).map(Self::of),
            None => {
                check(&config)?;
                Ok(Self { config, only: None, open: Mutex::default() })
            }
        }
    }

    /// This one alone.
    pub(crate) fn of(adapter: Adapter) -> Self {
        let config = adapter.config().clone();
        Self { config, only: Some(adapter), open: Mutex::default() }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn only(&self) -> Result<&Adapter, AdapterError> {
        self.only.as_ref().ok_or(AdapterError::NotOne)
    }

    /// The adapter for a connection with this local address.
    pub(crate) fn at(&self, local: SocketAddr) -> Result<Adapter, AdapterError> {
        if let Some(only) = &self.only {
            return Ok(only.clone());
        }
        let is_active =
            |adapter: &Adapter| adapter.context().query_port().state == PortState::Active;
        let mut open = self.open.lock();
        let has = |known: &Adapter| known.context().entry_at(local).is_some();
        // A look at the port brings its table up to date: the address may be another interface's now.
        let known = open.iter().find(|known| has(known) && is_active(known) && has(known));
        if let Some(known) = known {
            return Ok(known.clone());
        }
        let adapter = Adapter::open_at(local, self.config.clone())?;
        open.retain(is_active); // The interfaces of the others have gone.
        open.push(adapter.clone());
        Ok(adapter)
    }
}

fn devices() -> Result<Vec<Device>, AdapterError> {
    adverb_verbs::devices().map_err(|error| AdapterError::List { error })
}

/// Whether the settings can be, whatever the device.
fn check(config: &Config) -> Result<(), AdapterError> {
    check_bounds(config)?;
    Name::new(&config.name)?;
    channel_names(&config.channels).map(drop)
}

fn check_bounds(config: &Config) -> Result<(), AdapterError> {
    let queues = &config.queues;
    let bounds = [
        ("send_depth", queues.send_depth, (1, QpLimits::WR_MAX)),
        ("receive_depth", queues.receive_depth, (1, QpLimits::WR_MAX)),
        ("inline_bytes", queues.inline_bytes, (0, QpLimits::INLINE_MAX)),
        ("reads", u32::from(config.adapter.reads), (0, u32::from(QpLimits::RD_ATOMIC_MAX))),
        (
            "the number of channels",
            u32::try_from(config.channels.len()).unwrap_or(u32::MAX),
            (1, u32::try_from(crate::CHANNELS_MAX).unwrap_or(u32::MAX)),
        ),
    ];
    for (what, asked, allowed) in bounds {
        if asked < allowed.0 || asked > allowed.1 {
            return Err(AdapterError::OutOfRange { what, asked, allowed });
        }
    }
    Ok(())
}

fn channel_names(names: &[String]) -> Result<Vec<Name>, AdapterError> {
    let mut channels: Vec<Name> = Vec::with_capacity(names.len());
    for name in names {
        let name = Name::new(name)?;
        if channels.contains(&name) {
            return Err(AdapterError::ChannelTwice { name });
        }
        channels.push(name);
    }
    Ok(channels)
}
