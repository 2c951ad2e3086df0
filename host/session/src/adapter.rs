//! An open device with the settings of a session: what buffers and channels are made of.

use crate::bed::Bed;
use crate::buffer::Buffer;
use crate::config::{Config, ThreadMode};
use crate::error::{AdapterError, BufferError, SetUpError};
use crate::frame::Name;
use crate::keeper::Keeper;
use crate::link::Link;
use crate::source::Source;
use adverb_verbs::{Access, Context, Gid, PathMtu, Pd, QpLimits};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tracing::{debug, info};

/// An open device with the settings of a session.
///
/// A handle: clones are the same adapter. Buffers can be used on all channels of their adapter; give
/// one adapter to several sessions to share buffers between them.
#[derive(Clone)]
pub struct Adapter {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pd: Pd,
    context: Context,
    gid: Gid,
    path_mtu: PathMtu,
    name: Name,
    device: Name,
    channels: Vec<Name>,
    config: Config,
    /// Listens to peers; started by the first endpoint.
    keeper: Mutex<Option<Keeper>>,
    /// Where all sleep who do so on one completion channel.
    bed: Mutex<Option<Arc<Bed>>>,
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
    /// Opens the device that `config` names.
    ///
    /// # Errors
    ///
    /// [`AdapterError`], for each setting that cannot be.
    pub fn open(config: Config) -> Result<Self, AdapterError> {
        check_bounds(&config)?;
        let channels = channel_names(&config.channels)?;
        let context = Context::open(&config.adapter.device)?;
        let index = config.adapter.gid_index;
        let gid = context.gids().iter().find(|entry| entry.index == index);
        let gid = gid.ok_or_else(|| AdapterError::NoSuchGid {
            index,
            known: context.gids().iter().map(|e| (e.index, e.ip())).collect(),
        })?;
        let largest = context.query_port().active_mtu;
        let path_mtu = config.adapter.path_mtu.unwrap_or(largest);
        if path_mtu.bytes() > largest.bytes() {
            return Err(AdapterError::PathMtu { asked: path_mtu, largest });
        }
        let inner = Inner {
            gid: gid.gid,
            path_mtu,
            name: Name::new(&config.name)?,
            device: Name::new(&context.device().name)?,
            channels,
            pd: context.alloc_pd(),
            context,
            config,
            keeper: Mutex::default(),
            bed: Mutex::default(),
            sources: Mutex::default(),
            threads: AtomicUsize::new(0),
        };
        info!(
            name = %inner.name,
            device = %inner.device,
            gid_index = index,
            gid = %inner.gid,
            path_mtu = inner.path_mtu.bytes(),
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

    /// The address that peers are told.
    pub fn gid(&self) -> Gid {
        self.inner.gid
    }

    /// The path MTU that peers are offered.
    pub fn path_mtu(&self) -> PathMtu {
        self.inner.path_mtu
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
        let mut keeper = self.inner.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        if keeper.is_none() {
            *keeper = Some(Keeper::start(self.config().timeouts.silence)?);
        }
        keeper.as_ref().map_or(Ok(()), |keeper| keeper.keep(link))
    }

    /// Where all sleep who do so on one completion channel.
    pub(crate) fn bed(&self) -> io::Result<Arc<Bed>> {
        let mut bed = self.inner.bed.lock().unwrap_or_else(PoisonError::into_inner);
        match &*bed {
            Some(bed) => Ok(Arc::clone(bed)),
            None => {
                let channel = self.context().create_comp_channel()?;
                Ok(Arc::clone(bed.insert(Arc::new(Bed::of_many(channel)?))))
            }
        }
    }

    /// Where completions of the channel `name` come from.
    pub(crate) fn source(&self, name: &Name, least: u32) -> Result<Arc<Source>, SetUpError> {
        match self.config().thread_mode {
            ThreadMode::PerChannel => Ok(Arc::new(Source::new(self, false, least)?)),
            ThreadMode::SharedCq { .. } => {
                let keys = &self.config().queues.cq_keys;
                let key = keys.iter().find(|(channel, _)| channel == name.as_str());
                let key = key.map_or("", |(_, key)| key.as_str());
                let mut sources = self.inner.sources.lock().unwrap_or_else(PoisonError::into_inner);
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
