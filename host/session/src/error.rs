//! What can go wrong, one type for each thing that people do.
//!
//! Every text says what was asked, what is allowed and, where it is not plain, what to do.

use crate::frame::{FrameError, Name, NameError, Refusal};
use crate::link::Departure;
use crate::ring::{Operation, Ticket};
use adverb_verbs::{
    AllocateError, CreateError, DataPath, Gid, OpenError, PollError, PostError, RangeError,
    WcStatus,
};
use std::error::Error;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// From where to where the packets of an endpoint go, and how.
///
/// Errors have one, and so has a channel: [`Channel::route`](crate::Channel::route).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Route {
    /// The address of this side's port.
    pub local: Gid,
    /// The address of the peer's.
    pub remote: Gid,
    /// How; `None` until it is known.
    pub path: Option<DataPath>,
}

impl Route {
    /// Between these two addresses.
    pub const fn new(local: Gid, remote: Gid, path: Option<DataPath>) -> Self {
        Self { local, remote, path }
    }

    /// That nothing comes back, and what usually is the cause: text for a person.
    pub fn silence(&self) -> String {
        struct Silence<'a>(&'a Route);
        impl fmt::Display for Silence<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.write_silence(f)
            }
        }
        Silence(self).to_string()
    }

    /// Says that nothing comes back, and what usually is the cause.
    fn write_silence(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local, remote, path } = self;
        write!(f, "GID {remote} does not answer GID {local}")?;
        if let Some(path) = path {
            write!(f, " over {path}")?;
        }
        let memory = matches!(path, Some(DataPath::SharedMemory | DataPath::InProcess));
        f.write_str(if memory {
            ": its process may be stopped; ADVERB_PATH=udp on one side takes the network instead"
        } else {
            ": a firewall may close UDP port 4791 on either side, the network carry no packets as long as \
             the path MTU, or the process there be stopped"
        })?;
        if local.is_loopback() {
            f.write_str("; a loopback device reaches its own host alone")?;
        }
        Ok(())
    }
}

/// Why an adapter was not opened.
#[non_exhaustive]
pub enum AdapterError {
    /// Two channels have one name.
    ChannelTwice {
        /// The name.
        name: Name,
    },
    /// The system would not list its network interfaces.
    List {
        /// What it said.
        error: io::Error,
    },
    /// Something cannot have this name.
    Name(NameError),
    /// No device has this address.
    NoDevice {
        /// The local address of a connection.
        local: IpAddr,
        /// The names of the devices there are.
        known: Vec<String>,
    },
    /// The loopback interface is down, or has no address.
    NoLoopback,
    /// The session has not one adapter for all its endpoints.
    NotOne,
    /// No entry of the device's GID table has this index.
    NoSuchGid {
        /// What was asked.
        index: u8,
        /// What there is.
        known: Vec<(u8, IpAddr)>,
    },
    /// The device was not opened.
    Open(OpenError),
    /// A number is outside its bounds.
    OutOfRange {
        /// Which one.
        what: &'static str,
        /// What was asked.
        asked: u32,
        /// What is allowed, at least and at most.
        allowed: (u32, u32),
    },
}

impl fmt::Display for AdapterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChannelTwice { name } => {
                write!(f, "two channels are called {name}: give each a name of its own")
            }
            Self::List { error } => write!(f, "cannot list the network interfaces: {error}"),
            Self::Name(error) => fmt::Display::fmt(error, f),
            Self::NoDevice { local, .. } if local.is_loopback() => write!(
                f,
                "no device has the address {local}: the loopback interface is down or has no address; \
                 `ip link set lo up` brings it up"
            ),
            Self::NoDevice { local, known } => {
                write!(f, "no device has the address {local}; there are:")?;
                known.iter().try_for_each(|name| write!(f, " {name}"))?;
                f.write_str("; name one of them")
            }
            Self::NoLoopback => f.write_str(
                "the loopback interface is down or has no address: `ip link set lo up` brings it up",
            ),
            Self::NotOne => f.write_str(
                "the session chooses a device for each connection: ask an endpoint for its adapter, \
                 or name a device",
            ),
            Self::NoSuchGid { index, known } => {
                write!(f, "the device has no GID with index {index}; it has:")?;
                known.iter().try_for_each(|(index, ip)| write!(f, " {index} ({ip})"))
            }
            Self::Open(error) => fmt::Display::fmt(error, f),
            Self::OutOfRange { what, asked, allowed: (least, most) } => {
                write!(f, "{what} = {asked}, but it must be from {least} to {most}")
            }
        }
    }
}

adverb_sys::caused! {
    AdapterError: error in
    Self::List { error },
    Self::Name(error),
    Self::Open(error),
}

adverb_sys::wraps!(AdapterError: Name(NameError), Open(OpenError));

/// Why a buffer was not allocated.
#[non_exhaustive]
pub enum BufferError {
    /// The memory was not given or not registered.
    Allocate(AllocateError),
    /// A block has more bytes than a message can have.
    BlockTooLong {
        /// What was asked.
        asked: usize,
        /// What is allowed.
        max: usize,
    },
    /// No blocks, or blocks of no bytes.
    Empty,
    /// All blocks together have more bytes than can be counted.
    TooLarge {
        /// How many blocks.
        blocks: usize,
        /// Bytes of each.
        block_bytes: usize,
    },
}

impl fmt::Display for BufferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocate(error) => fmt::Display::fmt(error, f),
            Self::BlockTooLong { asked, max } => {
                write!(f, "blocks of {asked} bytes, but the longest message has {max}")
            }
            Self::Empty => f.write_str("a buffer has at least one block of at least one byte"),
            Self::TooLarge { blocks, block_bytes } => {
                write!(f, "{blocks} blocks of {block_bytes} bytes are more than an address space")
            }
        }
    }
}

impl Error for BufferError {}

adverb_sys::wraps!(BufferError: Allocate(AllocateError));

/// A claim on a buffer that it cannot meet.
#[derive(Clone, Copy, Eq, PartialEq)]
#[non_exhaustive]
pub enum BlockError {
    /// No block is free: each is in posted work, in an event, or with the program.
    AllInUse {
        /// How many there are.
        blocks: usize,
    },
    /// The memory does not allow it.
    Memory(RangeError),
    /// The buffer has no such block.
    NoSuchBlock {
        /// What was asked.
        index: usize,
        /// How many there are.
        blocks: usize,
    },
    /// Some byte lies outside the block.
    OutOfBlock {
        /// Offset of the first byte asked for.
        offset: usize,
        /// Bytes asked for.
        len: usize,
        /// Bytes of the block.
        block: usize,
    },
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllInUse { blocks } => write!(
                f,
                "all blocks of the buffer, {blocks}, are in use: take events of posted work and drop \
                 them, or have more blocks"
            ),
            Self::Memory(error) => fmt::Display::fmt(error, f),
            Self::NoSuchBlock { index, blocks } => write!(
                f,
                "there is no block {index}: the buffer has {blocks} blocks, 0 to {}",
                blocks.saturating_sub(1)
            ),
            Self::OutOfBlock { offset, len, block } => {
                write!(f, "{len} bytes at offset {offset} do not fit a block of {block} bytes")
            }
        }
    }
}

impl Error for BlockError {}

adverb_sys::wraps!(BlockError: Memory(RangeError));

/// Why two connectors did not come to terms, or stopped.
#[non_exhaustive]
pub enum ConnectorError {
    /// The peer closed the connection without a word.
    Closed,
    /// What the peer said is not a frame.
    Frame(FrameError),
    /// The peer refused.
    Refused(Refusal),
    /// The two sides do not have the same secret.
    Secret(SecretError),
    /// The system refused something.
    System {
        /// What we were doing.
        doing: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// The peer did not say what was due.
    Timeout {
        /// What was due.
        due: &'static str,
        /// How long we waited.
        waited: Duration,
    },
    /// The peer said something else than what was due.
    Unexpected {
        /// What was due.
        due: &'static str,
        /// What it said.
        said: &'static str,
    },
}

impl fmt::Display for ConnectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the peer closed the connection without a word"),
            Self::Frame(error) => fmt::Display::fmt(error, f),
            Self::Refused(refusal) => write!(f, "the peer refused: {refusal}"),
            Self::Secret(error) => fmt::Display::fmt(error, f),
            Self::System { doing, error } => write!(f, "cannot {doing}: {error}"),
            Self::Timeout { due, waited } => {
                write!(f, "the peer did not say {due} within {waited:?}")
            }
            Self::Unexpected { due, said } => {
                write!(f, "the peer said {said} where {due} was due")
            }
        }
    }
}

adverb_sys::caused! {
    ConnectorError: error in
    Self::Frame(error),
    Self::Secret(error),
    Self::System { error, .. },
}

adverb_sys::wraps!(ConnectorError: Frame(FrameError));

/// How two sides can fail to have the same secret.
#[derive(Clone, Copy, Eq, PartialEq)]
#[non_exhaustive]
pub enum SecretError {
    /// The server asks for a secret, and this side has none.
    Missing,
    /// This side has a secret, and the server does not ask for one.
    Unasked,
    /// The peer's proof was not made with this secret.
    Wrong,
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "the server asks for a secret: configure the one that it has",
            Self::Unasked => {
                "the server does not ask for a secret, but one is configured here: it is not the \
                 server that you mean, or it has none"
            }
            Self::Wrong => "the peer does not know the secret that is configured here",
        })
    }
}

impl Error for SecretError {}

/// Why an endpoint's channels were not set up, although both sides understand each other.
#[non_exhaustive]
pub enum SetUpError {
    /// The connection's device was not opened.
    Adapter(AdapterError),
    /// The server answered with other channels than it was asked for.
    Channels,
    /// A queue pair was not connected.
    Connect(adverb_verbs::ConnectError),
    /// A completion queue or queue pair was not made.
    Create(CreateError),
    /// The shared completion queue does not get as large as one more channel needs.
    CqFull {
        /// Completions that it would have to hold.
        needed: u32,
    },
    /// One side has an IPv4 address and the other an IPv6 address.
    Family {
        /// The local address.
        local: Gid,
        /// The peer's.
        remote: Gid,
    },
    /// One side uses the loopback device, which reaches its own host alone.
    Loopback {
        /// The local address.
        local: Gid,
        /// The peer's.
        remote: Gid,
    },
    /// The system refused something.
    System {
        /// What we were doing.
        doing: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// The connection is there, but the queue pairs do not reach each other.
    Unanswered(Route),
}

impl fmt::Display for SetUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adapter(error) => fmt::Display::fmt(error, f),
            Self::Channels => {
                f.write_str("the server answered with other channels than it was asked for")
            }
            Self::Connect(error) => fmt::Display::fmt(error, f),
            Self::Create(error) => fmt::Display::fmt(error, f),
            Self::CqFull { needed } => write!(
                f,
                "the shared completion queue would have to hold {needed} completions, which it \
                 cannot: configure a larger one, shallower queues, or another key"
            ),
            Self::System { doing, error } => write!(f, "cannot {doing}: {error}"),
            Self::Family { local, remote } => write!(
                f,
                "the GIDs {local} and {remote} are not both IPv4 or both IPv6: choose another \
                 gid_index on one side"
            ),
            Self::Loopback { local, remote } => write!(
                f,
                "the GIDs are {local} here and {remote} there, and a loopback device reaches its own \
                 host alone: let each side use the device of the connection by naming none"
            ),
            Self::Unanswered(route) => {
                f.write_str("the queue pairs do not reach each other: ")?;
                route.write_silence(f)
            }
        }
    }
}

adverb_sys::caused! {
    SetUpError: error in
    Self::Adapter(error),
    Self::Connect(error),
    Self::Create(error),
    Self::System { error, .. },
}

adverb_sys::wraps! {
    SetUpError:
    Adapter(AdapterError),
    Create(CreateError),
    Connect(adverb_verbs::ConnectError),
}

/// Why a server does not listen.
#[non_exhaustive]
pub enum BindError {
    /// The device was not opened.
    Adapter(AdapterError),
    /// The address cannot be listened on.
    Listen {
        /// What the address stands for; nothing, if it stands for none.
        addresses: Vec<SocketAddr>,
        /// What the system said.
        error: io::Error,
    },
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adapter(error) => fmt::Display::fmt(error, f),
            Self::Listen { addresses, error } if addresses.is_empty() => {
                write!(f, "cannot listen: {error}")
            }
            Self::Listen { addresses, error } => {
                let all: Vec<_> = addresses.iter().map(ToString::to_string).collect();
                write!(f, "cannot listen on {}: {error}", all.join(" or "))
            }
        }
    }
}

adverb_sys::caused!(BindError: error in Self::Adapter(error), Self::Listen { error, .. });

adverb_sys::wraps!(BindError: Adapter(AdapterError));

/// Why no peer was accepted. The server goes on: call again.
#[non_exhaustive]
pub enum AcceptError {
    /// The system refused something.
    Listen {
        /// What it said.
        error: io::Error,
    },
    /// Its channels were not set up.
    SetUp {
        /// Its address.
        from: SocketAddr,
        /// Why.
        error: SetUpError,
    },
    /// A connection did not follow the protocol of clients. It was told so, and is closed.
    Stranger {
        /// Its address.
        from: SocketAddr,
        /// What was wrong.
        error: ConnectorError,
    },
    /// No client connected.
    Timeout {
        /// How long we waited.
        waited: Duration,
    },
}

impl fmt::Display for AcceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { error } => write!(f, "cannot accept connections: {error}"),
            Self::SetUp { from, error } => {
                write!(f, "cannot set up the channels to {from}: {error}")
            }
            Self::Stranger { from, error: error @ ConnectorError::Refused(_) } => {
                write!(f, "{from} has gone again: {error}")
            }
            Self::Stranger { from, error } => write!(f, "{from} is not a client: {error}"),
            Self::Timeout { waited } => write!(f, "no client connected within {waited:?}"),
        }
    }
}

adverb_sys::caused! {
    AcceptError: error in
    Self::Listen { error },
    Self::SetUp { error, .. },
    Self::Stranger { error, .. },
}

/// Why a client is not connected.
#[non_exhaustive]
pub enum ConnectError {
    /// The address is none.
    Address {
        /// What the system said.
        error: io::Error,
    },
    /// Buffers were not advertised again.
    Exchange {
        /// To whom.
        to: SocketAddr,
        /// Why.
        error: ExchangeError,
    },
    /// The two sides did not come to terms.
    Handshake {
        /// The server's address.
        to: SocketAddr,
        /// Why.
        error: ConnectorError,
    },
    /// The endpoint is a server's: its client has to come again.
    NotAClient,
    /// The channels were not set up.
    SetUp {
        /// The server's address.
        to: SocketAddr,
        /// Why.
        error: SetUpError,
    },
    /// No server answered.
    Unreachable {
        /// Where.
        to: SocketAddr,
        /// How long we tried.
        waited: Duration,
        /// What came of the last try.
        error: io::Error,
    },
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { error } => write!(f, "cannot find the address: {error}"),
            Self::Exchange { to, error } => {
                write!(f, "cannot advertise the buffers to {to} again: {error}")
            }
            Self::Handshake { to, error } => write!(f, "cannot agree with {to}: {error}"),
            Self::NotAClient => f.write_str(
                "the endpoint was accepted, not connected: its client has to connect again",
            ),
            Self::SetUp { to, error } => write!(f, "cannot set up the channels to {to}: {error}"),
            Self::Unreachable { to, waited, error } => write!(
                f,
                "no server at {to} within {waited:?} (the last try: {error}): is it running, and \
                 is the address right?"
            ),
        }
    }
}

adverb_sys::caused! {
    ConnectError: error in
    Self::Address { error },
    Self::Unreachable { error, .. },
    Self::Exchange { error, .. },
    Self::Handshake { error, .. },
    Self::SetUp { error, .. },
}

/// Why a buffer was not advertised, or the peer's not found.
#[non_exhaustive]
pub enum ExchangeError {
    /// The peer was not told.
    Connector(ConnectorError),
    /// The buffer belongs to another adapter than the endpoint.
    ForeignBuffer,
    /// A buffer of this name has been advertised.
    NameTaken {
        /// The name.
        name: Name,
    },
    /// It cannot have this name.
    Name(NameError),
    /// The buffer was registered without any right for peers.
    NotShared,
    /// The peer is gone.
    PeerGone(Departure),
    /// The peer has not advertised a buffer of this name.
    Timeout {
        /// The name.
        name: Name,
        /// What it has advertised.
        known: Vec<Name>,
        /// How long we waited.
        waited: Duration,
    },
    /// More buffers than an endpoint can advertise.
    TooMany {
        /// What is allowed.
        max: usize,
    },
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connector(error) => fmt::Display::fmt(error, f),
            Self::ForeignBuffer => f.write_str(FOREIGN_BUFFER),
            Self::NameTaken { name } => {
                write!(f, "this endpoint has advertised another buffer as {name}")
            }
            Self::Name(error) => fmt::Display::fmt(error, f),
            Self::NotShared => f.write_str(
                "the buffer was allocated without any right for peers: allocate it with one, such \
                 as Access::REMOTE_WRITE",
            ),
            Self::PeerGone(departure) => fmt::Display::fmt(departure, f),
            Self::Timeout { name, known, waited } => {
                write!(f, "the peer advertised no buffer {name} within {waited:?}")?;
                match known.as_slice() {
                    [] => f.write_str(", nor any other"),
                    known => {
                        f.write_str(", but:")?;
                        known.iter().try_for_each(|name| write!(f, " {name}"))
                    }
                }
            }
            Self::TooMany { max } => write!(f, "an endpoint can advertise {max} buffers"),
        }
    }
}

adverb_sys::caused!(ExchangeError: error in Self::Connector(error), Self::Name(error));

adverb_sys::wraps!(ExchangeError: Name(NameError));

/// An endpoint has no channel of this name.
///
/// [`Config`](crate::Config) names the channels.
#[derive(Clone, Eq, PartialEq)]
pub struct NoSuchChannel {
    /// The name.
    pub name: String,
    /// Those that it has.
    pub known: Vec<String>,
}

impl fmt::Display for NoSuchChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the endpoint has no channel {:?}; it has:", self.name)?;
        self.known.iter().try_for_each(|name| write!(f, " {name}"))
    }
}

impl Error for NoSuchChannel {}

/// Why work on a channel was not posted, did not succeed, or was not waited for to its end.
#[derive(Clone, Copy, Eq, PartialEq)]
#[non_exhaustive]
pub enum ChannelError {
    /// Earlier work failed, and took the channel with it.
    Broken {
        /// What failed.
        operation: Operation,
        /// How.
        status: WcStatus,
    },
    /// The buffer belongs to another adapter than the channel. Nothing was posted.
    ForeignBuffer,
    /// All places of a queue are taken. Nothing was posted.
    Full {
        /// What was to be posted.
        operation: Operation,
        /// How many places there are.
        depth: u32,
    },
    /// An atomic works on 8 bytes at an address that is a multiple of 8. Nothing was posted.
    NotAWord,
    /// There is no receive posted, so nothing can arrive.
    NothingPosted,
    /// The peer's buffer is one of before it was lost and found again: ask for it anew. Nothing was
    /// posted.
    OldBuffer,
    /// The peer is gone.
    PeerGone(Departure),
    /// The system did not let the caller sleep.
    Sleep(io::ErrorKind),
    /// Completions cannot be had any more.
    Poll(PollError),
    /// The device did not take the work. Nothing was posted.
    Post(PostError),
    /// The work's event was taken already, or it never was.
    Taken(Ticket),
    /// The time was over first. The work goes on, and its event comes with [`crate::Channel::poll`].
    Timeout {
        /// How long we waited.
        waited: Duration,
    },
    /// The local block is longer than the peer's. Nothing was posted.
    TooLong {
        /// Bytes of the local block.
        local: usize,
        /// Bytes of the peer's.
        remote: usize,
    },
    /// The work was sent again and again without an answer ([`WcStatus::RetryExceeded`]), and the channel
    /// has ended.
    Unanswered {
        /// What it was.
        operation: Operation,
        /// Where it did not arrive, or its answer.
        route: Route,
    },
    /// The work failed, and the channel with it.
    Work {
        /// What it was.
        operation: Operation,
        /// How it failed.
        status: WcStatus,
    },
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken { operation, status } => {
                write!(f, "the channel ended when an earlier {operation} failed: ")?;
                write_status(f, *status)
            }
            Self::ForeignBuffer => f.write_str(FOREIGN_BUFFER),
            Self::Full { operation, depth } => write!(
                f,
                "no room for another {operation}: all {depth} places of the queue are taken; take \
                 events with poll(), or configure a deeper queue"
            ),
            Self::NotAWord => f.write_str(
                "an atomic needs a local block of 8 bytes, and 8 bytes of the peer's at an address \
                 that is a multiple of 8",
            ),
            Self::OldBuffer => f.write_str(
                "the buffer was advertised before the peer was lost and found again: ask for it anew \
                 with remote_buffer()",
            ),
            Self::NothingPosted => {
                f.write_str("nothing can arrive: no receive is posted; call post_recv() before")
            }
            Self::PeerGone(departure) => fmt::Display::fmt(departure, f),
            Self::Poll(error) => fmt::Display::fmt(error, f),
            Self::Sleep(kind) => write!(f, "cannot wait for completions: {kind}"),
            Self::Post(error) => fmt::Display::fmt(error, f),
            Self::Taken(ticket) => {
                write!(f, "the event of {ticket} has been taken, or it never was")
            }
            Self::Timeout { waited } => write!(
                f,
                "the work was not done within {waited:?}: its event will come with poll()"
            ),
            Self::TooLong { local, remote } => write!(
                f,
                "the local block has {local} bytes, but the peer's has {remote}: take a part of it"
            ),
            Self::Unanswered { operation, route } => {
                write!(f, "{operation} failed: {}: ", WcStatus::RetryExceeded)?;
                route.write_silence(f)
            }
            Self::Work { operation, status } => {
                write!(f, "{operation} failed: ")?;
                write_status(f, *status)
            }
        }
    }
}

/// What a status means on a channel, where the usual causes are few.
#[expect(clippy::wildcard_enum_match_arm, reason = "the device may learn more of them")]
fn write_status(f: &mut fmt::Formatter<'_>, status: WcStatus) -> fmt::Result {
    let hint = match status {
        WcStatus::LocalLength => ": the message is longer than the block of the receive",
        WcStatus::RemoteInvalidRequest => {
            ": the message is longer than the block of the peer's receive, or the peer does not \
             allow the operation"
        }
        WcStatus::RemoteAccess => {
            ": the peer's memory is not there, ends earlier, or is not shared for this"
        }
        WcStatus::RetryExceeded => ": the peer does not answer",
        WcStatus::RnrRetryExceeded => ": the peer has posted no receive",
        // The others say all there is to say.
        _ => "",
    };
    write!(f, "{status}{hint}")
}

adverb_sys::caused!(ChannelError: error in Self::Poll(error), Self::Post(error));

adverb_sys::wraps!(ChannelError: Poll(PollError));

/// Why a message was not sent or not received.
#[derive(Clone, Copy, Eq, PartialEq)]
#[non_exhaustive]
pub enum MessageError {
    /// The blocks are too small for what messengers say to each other.
    Block {
        /// Bytes of a block.
        len: usize,
        /// How many it has to have.
        least: usize,
    },
    /// The channel failed.
    Channel(ChannelError),
    /// A claim on a buffer that it cannot meet.
    Claim(BlockError),
    /// There is no memory for a long message. It was not sent; one to be received is still the next.
    Memory {
        /// Bytes of the message.
        len: usize,
    },
    /// The peer may not read the block: its buffer needs `Access::REMOTE_READ`. Nothing was sent.
    NotReadable,
    /// Nothing may be written to the block: its buffer needs `Access::LOCAL_WRITE`. Nothing was
    /// received.
    NotWritable,
    /// The messenger was not opened: memory, a name, or the peer was missing.
    Open {
        /// Which.
        what: &'static str,
    },
    /// A queue of the channel is too shallow for a messenger.
    Shallow {
        /// Which one.
        what: &'static str,
        /// How deep it is.
        depth: u32,
        /// How deep it has to be.
        least: u32,
    },
    /// The time was over first. Nothing was sent, or received.
    Timeout {
        /// How long we waited.
        waited: Duration,
    },
    /// The message is longer than its receiver takes.
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// How many are taken.
        max: usize,
    },
    /// The peer does not do as messengers do.
    Unruly {
        /// What it did.
        what: &'static str,
    },
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block { len, least } => {
                write!(f, "blocks of {len} bytes are too small for a messenger: at least {least}")
            }
            Self::Channel(error) => fmt::Display::fmt(error, f),
            Self::Claim(error) => fmt::Display::fmt(error, f),
            Self::Memory { len } => write!(
                f,
                "there is no memory for a message of {len} bytes: free some and try again"
            ),
            Self::NotReadable => f.write_str(
                "the peer may not read the block: allocate its buffer with Access::REMOTE_READ",
            ),
            Self::NotWritable => f.write_str(
                "a message cannot be written to the block: allocate its buffer with \
                 Access::LOCAL_WRITE",
            ),
            Self::Open { what } => write!(f, "cannot open the messenger: {what}"),
            Self::Shallow { what, depth, least } => {
                write!(f, "{what} = {depth}, but a messenger needs at least {least}")
            }
            Self::Timeout { waited } => write!(f, "nothing came of it within {waited:?}"),
            Self::TooLong { len, max } => {
                write!(f, "a message of {len} bytes, but at most {max} are taken")
            }
            Self::Unruly { what } => write!(f, "the peer does not do as messengers do: {what}"),
        }
    }
}

adverb_sys::caused!(MessageError: error in Self::Channel(error), Self::Claim(error));

adverb_sys::wraps!(MessageError: Channel(ChannelError), Claim(BlockError));

impl From<BufferError> for MessageError {
    fn from(_: BufferError) -> Self {
        Self::Open { what: "there is no memory for its blocks" }
    }
}

impl From<NoSuchChannel> for MessageError {
    fn from(_: NoSuchChannel) -> Self {
        Self::Open {
            what: "there is no channel of this name; the client's Config::channels names them",
        }
    }
}

impl From<ExchangeError> for MessageError {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::PeerGone(how) => Self::Channel(ChannelError::PeerGone(how)),
            ExchangeError::NameTaken { .. } => Self::Open { what: HAS_ONE },
            ExchangeError::Timeout { .. } => Self::Open { what: "the peer has not opened it" },
            ExchangeError::Connector(_)
            | ExchangeError::ForeignBuffer
            | ExchangeError::Name(_)
            | ExchangeError::NotShared
            | ExchangeError::TooMany { .. } => Self::Open { what: "the peer cannot be told" },
        }
    }
}

adverb_sys::debug_as_display!(
    AcceptError,
    AdapterError,
    BindError,
    BlockError,
    BufferError,
    ChannelError,
    ConnectError,
    ConnectorError,
    ExchangeError,
    MessageError,
    NoSuchChannel,
    SecretError,
    SetUpError,
);

pub(crate) const HAS_ONE: &str = "the channel has one already: use a clone of it";
const FOREIGN_BUFFER: &str = "the buffer is of another adapter: allocate it with endpoint.adapter(), or give one adapter to \
     all sessions that share it";
