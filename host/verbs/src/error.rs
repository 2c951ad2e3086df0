//! Errors, by verb: the caller's mistakes, the system's refusals, and work that failed.

use crate::cq::WorkCompletion;
use crate::memory::Memory;
use adverb_device::{BindError, PostError, RegionError};
use std::fmt;
use std::io;

pub use adverb_device::OpenError;

/// The device has nothing of the kind.
///
/// [`Context::alloc_dm`](crate::Context::alloc_dm) may fail with it.
#[derive(Clone, Eq, PartialEq)]
pub struct Lacks {
    /// Its name.
    pub device: String,
    /// What it lacks.
    pub what: &'static str,
}

impl fmt::Display for Lacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has no {} here", self.device, self.what)
    }
}

impl std::error::Error for Lacks {}

/// Why memory was not allocated or registered, or a region not registered anew or deregistered: of the latter
/// [`DeregisterError`](crate::DeregisterError) and [`ReregisterError`](crate::ReregisterError) give the region
/// back.
#[non_exhaustive]
pub enum AllocateError {
    /// The file is shorter than the range that was to be registered.
    FileTooShort {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: usize,
        /// Bytes that the file has.
        file: usize,
    },
    /// The memory and the protection domain are of different devices.
    ForeignDevice,
    /// Others use the region.
    InUse {
        /// Other handles and slices of it, and outstanding work.
        handles: usize,
    },
    /// The device has nothing of the kind.
    Lacks(Lacks),
    /// The system has no memory to give, or refused it.
    Memory {
        /// Bytes asked for.
        len: usize,
        /// What it said.
        error: io::Error,
    },
    /// The file's length is not sealed: cutting it would kill this process.
    NotSealed,
    /// The range does not lie in the device's memory.
    Range(RangeError),
    /// The device refused it.
    Region(RegionError),
    /// A slice is longer than one piece of a request can be.
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// Memory windows are bound to the region.
    WindowsBound {
        /// How many.
        windows: u32,
    },
}

impl fmt::Display for AllocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lacks(lacks) => fmt::Display::fmt(lacks, f),
            Self::Memory { len, error } => write!(f, "cannot get {len} bytes of memory: {error}"),
            Self::FileTooShort { offset, len, file } => {
                write!(f, "{len} bytes at offset {offset} do not fit a file of {file} bytes")
            }
            Self::ForeignDevice => {
                f.write_str("the memory and the protection domain are of different devices")
            }
            Self::InUse { handles } => {
                write!(f, "{handles} other handles, slices or requests use the region")
            }
            Self::NotSealed => f.write_str(
                "the file can still be cut short, which would kill this process: seal it with \
                 F_SEAL_SHRINK and F_SEAL_GROW",
            ),
            Self::Range(error) => fmt::Display::fmt(error, f),
            Self::Region(error) => fmt::Display::fmt(error, f),
            Self::TooLong { len } => write!(f, "{len} bytes are more than 4 GiB"),
            Self::WindowsBound { windows } => {
                write!(f, "{windows} memory windows are bound to the region: unbind them first")
            }
        }
    }
}

impl std::error::Error for AllocateError {}

adverb_device::wraps!(AllocateError: Lacks(Lacks), Region(RegionError));

/// A range that does not lie in its memory, or an operation that the memory does not allow.
#[derive(Clone, Copy, Eq, PartialEq)]
#[non_exhaustive]
pub enum RangeError {
    /// An atomic access to an address that is not a multiple of 8.
    Misaligned {
        /// Offset into the memory, in bytes.
        offset: usize,
    },
    /// Some byte lies outside.
    OutOfBounds {
        /// Offset of the first byte asked for.
        offset: usize,
        /// Bytes asked for.
        len: usize,
        /// Length of the memory in bytes.
        memory: usize,
    },
    /// The memory was registered without [`crate::Access::LOCAL_WRITE`].
    ReadOnly,
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misaligned { offset } => {
                write!(f, "an atomic access needs an offset that is a multiple of 8, not {offset}")
            }
            Self::OutOfBounds { offset, len, memory } => {
                write!(f, "{len} bytes at offset {offset} do not fit a memory of {memory} bytes")
            }
            Self::ReadOnly => f.write_str("the memory was registered without local write access"),
        }
    }
}

impl std::error::Error for RangeError {}

/// Error of binding a memory window by its verb.
#[derive(Clone, Copy, Eq, PartialEq)]
#[non_exhaustive]
pub enum BindMwError {
    /// It cannot be bound like this.
    Bind(BindError),
    /// The device refused the request.
    Refused(PostError),
}

impl fmt::Display for BindMwError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind(error) => fmt::Display::fmt(error, f),
            Self::Refused(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl std::error::Error for BindMwError {}

/// Error of creating a completion queue or queue pair.
#[non_exhaustive]
pub enum CreateError {
    /// A completion channel belongs to another device than the completion queue.
    ForeignChannel,
    /// A completion queue belongs to another device than the protection domain.
    ForeignCq,
    /// An XRC domain belongs to another device than the protection domain.
    ForeignXrcd,
    /// A shared receive queue belongs to another device than the queue pair.
    ForeignSrq,
    /// The device has nothing of the kind.
    Lacks(Lacks),
    /// A capacity is outside its bounds.
    OutOfRange {
        /// Which one.
        what: &'static str,
        /// What was asked.
        asked: u32,
        /// What is allowed, at least and at most.
        allowed: (u32, u32),
    },
    /// The system refused something.
    System(io::Error),
}

impl CreateError {
    /// Whether each of these, by its name, is from the least that is allowed to the most.
    pub(crate) fn check<const N: usize>(
        bounds: [(&'static str, u32, (u32, u32)); N],
    ) -> Result<(), Self> {
        let outside =
            |(_, asked, (least, most)): &(_, u32, (u32, u32))| asked < least || asked > most;
        match bounds.into_iter().find(outside) {
            Some((what, asked, allowed)) => Err(Self::OutOfRange { what, asked, allowed }),
            None => Ok(()),
        }
    }
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForeignChannel => f.write_str(
                "the completion channel and the completion queue are of different devices",
            ),
            Self::ForeignCq => f.write_str(
                "the completion queue and the protection domain are of different devices",
            ),
            Self::ForeignXrcd => {
                f.write_str("the XRC domain and the protection domain are of different devices")
            }
            Self::ForeignSrq => {
                f.write_str("the shared receive queue and the queue pair are of different devices")
            }
            Self::Lacks(lacks) => fmt::Display::fmt(lacks, f),
            Self::OutOfRange { what, asked, allowed: (least, most) } => {
                write!(f, "{what} = {asked}, but it must be from {least} to {most}")
            }
            Self::System(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl std::error::Error for CreateError {}

adverb_device::wraps!(CreateError: Lacks(Lacks));

/// Error of polling: the queue overran, and completions were lost.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct PollError(pub(crate) adverb_device::Overrun);

impl fmt::Display for PollError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for PollError {}

/// Requests that were not posted, from the first that was refused on, with their memory. No completion tells of
/// them.
///
/// ```
/// use adverb_verbs::{Context, QpConfig, Work};
///
/// let context = Context::open("soft_lo")?;
/// let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// let qp = pd.create_qp(&QpConfig::new(&cq))?;
/// let early = qp.post(Work::send(pd.buffer(8)?)); // It is not connected.
/// println!("{}", early.unwrap_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Rejected {
    /// Requests of the same call before it, which are posted.
    pub posted: usize,
    /// Why the first was refused.
    pub error: PostError,
    /// The memory that would have been given away, in order; none of raw requests.
    pub memory: Vec<Memory>,
}

impl Rejected {
    /// The first `posted` requests are posted, and the next one is refused; it owned this memory.
    #[cold]
    pub(crate) fn new(
        posted: usize,
        error: PostError,
        memory: impl IntoIterator<Item = Memory>,
    ) -> Self {
        Self { posted, error, memory: memory.into_iter().collect() }
    }

    /// The device refuses a raw request.
    #[cold]
    pub(crate) fn raw((posted, error): (usize, PostError)) -> Self {
        Self { posted, error, memory: Vec::new() }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.posted {
            0 => fmt::Display::fmt(&self.error, f),
            posted => write!(f, "number {posted} of the batch, from 0: {}", self.error),
        }
    }
}

impl std::error::Error for Rejected {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Work that was posted and failed.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct WorkError(pub WorkCompletion);

impl fmt::Display for WorkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkCompletion { status, opcode, wr_id, qp, .. } = self.0;
        let number = qp.get();
        write!(f, "{opcode:?} (wr_id {wr_id}) on queue pair {number:#x} failed: {status}")
    }
}

impl std::error::Error for WorkError {}

/// The completion queue was made without a completion channel, so that there is no place for an
/// event. Nothing was armed.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct NotifyError;

impl fmt::Display for NotifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the completion queue has no completion channel: name one in CqConfig::channel when \
             creating it",
        )
    }
}

impl std::error::Error for NotifyError {}

/// An object that cannot end yet. It is as it was.
///
/// [`Cq::destroy`](crate::Cq::destroy) returns it.
pub struct Busy<T> {
    /// The object.
    pub object: T,
    /// Other handles of it, those that objects made with it hold included.
    pub handles: usize,
    /// Events of it that were not acknowledged.
    pub unacknowledged: u32,
}

impl<T> fmt::Display for Busy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { handles, unacknowledged, .. } = self;
        write!(
            f,
            "still in use: by {handles} other handles (objects made with it included) and \
             {unacknowledged} events that were not acknowledged"
        )
    }
}

impl<T> fmt::Debug for Busy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<T> std::error::Error for Busy<T> {}

adverb_device::debug_as_display!(
    Lacks,
    AllocateError,
    RangeError,
    BindMwError,
    CreateError,
    PollError,
    Rejected,
    WorkError,
    NotifyError
);
