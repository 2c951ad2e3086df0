//! The interface of the kernel's `rdma_cm` character device: commands that librdmacm writes to it, as values.
//!
//! A command is a header (number, length of what follows, room for the answer) and a structure of
//! `rdma/rdma_user_cm.h`, in the byte order of the machine. Answers go to an address that the structure names; they
//! are made in `rdma_cm/answer.rs`. Nothing is read or written here but the bytes of the command, so any bytes
//! are safe to parse.
//!
//! The version of the interface is 4. Commands may be longer than the structures here (later releases add fields
//! behind the old ones), and shorter by what later releases have added.

mod answer;
mod reader;

pub use answer::{
    AddressAnswer, AhAttr, Event, EventKind, GidAnswer, Param, PathRecord, QpAttr, RouteAnswer,
    id_answer, path_answer, reported_answer,
};

use reader::Reader;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// A command, without what only its answer needs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// What is asked.
    pub command: Command,
    /// Where the answer goes. Commands without an answer name no place.
    pub place: Place,
}

/// Memory of the caller for an answer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Place {
    /// Its address.
    pub address: u64,
    /// Its length in bytes.
    pub len: usize,
}

/// What librdmacm asks. Identifiers are those of the device, `uid`s are numbers of the caller that events show.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "the fields are those of the kernel's structures")]
pub enum Command {
    /// Accepts a connection; without parameters: says that the queue pair of an accepted one is ready.
    Accept { id: u32, uid: u64, parameters: Option<Parameters> },
    /// Binds to a local address; port 0 is chosen.
    Bind { id: u32, address: SocketAddr },
    /// Asks a peer for a connection.
    Connect { id: u32, parameters: Parameters },
    /// Makes an identifier of a port space, for a type of queue pair.
    CreateId { uid: u64, port_space: u16, qp_type: u8 },
    /// Ends an identifier; the answer says how many events of it have been reported.
    DestroyId { id: u32 },
    /// Ends a connection.
    Disconnect { id: u32 },
    /// Takes the next event, and waits for one unless the descriptor is not to block.
    GetEvent,
    /// Asks for attributes that move the queue pair to a state.
    InitQpAttr { id: u32, state: u32 },
    /// Joins a multicast group.
    JoinMulticast { id: u32, uid: u64, address: SocketAddr, send_only: bool },
    /// Leaves a multicast group, which has an identifier of its own.
    LeaveMulticast { id: u32 },
    /// Lets peers ask for connections.
    Listen { id: u32, backlog: u32 },
    /// Moves an identifier from the descriptor `fd` to the one that the command is written to.
    MigrateId { id: u32, fd: i32 },
    /// Says that an event of the queue pair has happened.
    Notify { id: u32, event: u32 },
    /// Asks for addresses, path or GIDs.
    Query { id: u32, what: Query },
    /// Refuses a connection.
    Reject { id: u32, reason: u8, private: Vec<u8> },
    /// Finds the device that leads to an address.
    ResolveAddress {
        id: u32,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    },
    /// Finds the path to the address.
    ResolveRoute { id: u32, timeout: Duration },
    /// Sets an option; its value is in the caller's memory.
    SetOption { id: u32, level: u32, name: u32, value: Place },
    /// Puts an event of the caller's own into the queue of the identifier.
    WriteEvent { id: u32, event: u32, status: u32, argument: u64 },
}

/// What is asked about an identifier.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Query {
    /// Addresses, as `struct sockaddr_storage`.
    Address,
    /// GIDs, as `struct sockaddr_ib`.
    Gid,
    /// Paths, as the records of the subnet administrator.
    Path,
    /// Addresses and paths in one answer, the older form.
    Route,
}

/// `struct rdma_ucm_conn_param`: what is offered with a connection.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Parameters {
    /// The queue pair of this side.
    pub qp_num: u32,
    /// Its Q_Key, for datagrams.
    pub qkey: u32,
    /// What the peer's user gets: at most 255 bytes.
    pub private: Vec<u8>,
    /// The queue pair has a shared receive queue.
    pub srq: bool,
    /// How many READs and atomics of the peer this side serves at once.
    pub responder_resources: u8,
    /// How many READs and atomics this side has outstanding at once.
    pub initiator_depth: u8,
    /// End-to-end flow control: nothing depends on it.
    pub flow_control: bool,
    /// How often to send a packet again.
    pub retry_count: u8,
    /// How often to ask again while no receive is posted; 7 is for ever.
    pub rnr_retry_count: u8,
}

/// Why bytes are no command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CommandError {
    /// A field has a value that means nothing, or there are too few bytes.
    Invalid,
    /// There is no room for the answer.
    NoRoom,
    /// The kernel has no such command, either.
    Unknown,
}

impl CommandError {
    /// The number in `errno`.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Invalid => libc::EINVAL,
            Self::NoRoom => libc::ENOSPC,
            Self::Unknown => libc::ENOSYS,
        }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invalid => "no command of rdma_cm",
            Self::NoRoom => "the answer needs more room",
            Self::Unknown => "rdma_cm has no such command",
        })
    }
}

impl std::error::Error for CommandError {}

impl Request {
    /// Reads one command, as written in one `write`.
    ///
    /// # Errors
    ///
    /// [`CommandError`], as the kernel has it: see there.
    pub fn parse(bytes: &[u8]) -> Result<Self, CommandError> {
        let mut header = Reader::new(bytes);
        let (number, len, room) = (header.u32()?, header.u16()?, header.u16()?);
        let body = header.take(usize::from(len))?;
        let mut body = Reader::new(body);
        let mut place = Place { address: 0, len: usize::from(room) };
        let command = Command::parse(number, &mut body, &mut place)?;
        if place.len < command.answer_min() {
            return Err(CommandError::NoRoom);
        }
        Ok(Self { command, place })
    }
}

impl Command {
    /// The least room for the answer, in bytes: later releases of the interface have longer ones.
    const fn answer_min(&self) -> usize {
        match self {
            Self::CreateId { .. }
            | Self::DestroyId { .. }
            | Self::JoinMulticast { .. }
            | Self::LeaveMulticast { .. }
            | Self::MigrateId { .. } => 4,
            Self::GetEvent => answer::EVENT_LEN - answer::EVENT_ADDED,
            Self::InitQpAttr { .. } => QpAttr::LEN,
            Self::Query { what, .. } => match what {
                Query::Route => RouteAnswer::LEN - answer::INDEX_ADDED,
                Query::Address => AddressAnswer::LEN - answer::INDEX_ADDED,
                Query::Gid => GidAnswer::LEN - answer::INDEX_ADDED,
                Query::Path => answer::PATHS_HEAD,
            },
            Self::Accept { .. }
            | Self::Bind { .. }
            | Self::Connect { .. }
            | Self::Disconnect { .. }
            | Self::Listen { .. }
            | Self::Notify { .. }
            | Self::Reject { .. }
            | Self::ResolveAddress { .. }
            | Self::ResolveRoute { .. }
            | Self::SetOption { .. }
            | Self::WriteEvent { .. } => 0,
        }
    }

    fn parse(number: u32, body: &mut Reader<'_>, place: &mut Place) -> Result<Self, CommandError> {
        Ok(match number {
            0 => {
                let uid = body.u64()?;
                place.address = body.u64()?;
                let (port_space, qp_type) = (body.u16()?, body.u8()?);
                body.skip(5)?;
                Self::CreateId { uid, port_space, qp_type }
            }
            1 => Self::DestroyId { id: answered_id(body, place)? },
            2 => {
                body.skip(8)?;
                let address = body.address_in6()?;
                Self::Bind { id: body.u32()?, address: address.ok_or(CommandError::Invalid)? }
            }
            3 => {
                let (source, destination) = (body.address_in6()?, body.address_in6()?);
                let (id, timeout) = (body.u32()?, body.milliseconds()?);
                let destination = destination.ok_or(CommandError::Invalid)?;
                Self::ResolveAddress { id, source, destination, timeout }
            }
            4 => Self::ResolveRoute { id: body.u32()?, timeout: body.milliseconds()? },
            5 => {
                place.address = body.u64()?;
                Self::Query { id: body.u32()?, what: Query::Route }
            }
            6 => {
                let parameters = Parameters::parse(body)?.ok_or(CommandError::Invalid)?;
                let id = body.u32()?;
                body.skip(4)?;
                Self::Connect { id, parameters }
            }
            7 => Self::Listen { id: body.u32()?, backlog: body.u32()? },
            8 => {
                let uid = body.u64()?;
                let parameters = Parameters::parse(body)?;
                let id = body.u32()?;
                body.skip(4)?;
                Self::Accept { id, uid, parameters }
            }
            9 => {
                let (id, len, reason) = (body.u32()?, body.u8()?, body.u8()?);
                body.skip(2)?;
                Self::Reject { id, reason, private: body.private(len)? }
            }
            10 => Self::Disconnect { id: body.u32()? },
            11 => {
                place.address = body.u64()?;
                Self::InitQpAttr { id: body.u32()?, state: body.u32()? }
            }
            12 => {
                place.address = body.u64()?;
                Self::GetEvent
            }
            14 => {
                let address = body.u64()?;
                let (id, level, name, len) = (body.u32()?, body.u32()?, body.u32()?, body.u32()?);
                let len = usize::try_from(len).map_err(|_| CommandError::Invalid)?;
                if len > OPTION_MAX {
                    return Err(CommandError::Invalid);
                }
                Self::SetOption { id, level, name, value: Place { address, len } }
            }
            15 => Self::Notify { id: body.u32()?, event: body.u32()? },
            16 => {
                place.address = body.u64()?;
                let (uid, address) = (body.u64()?, body.address_in6()?);
                let address = address.ok_or(CommandError::Invalid)?;
                Self::JoinMulticast { id: body.u32()?, uid, address, send_only: false }
            }
            17 => Self::LeaveMulticast { id: answered_id(body, place)? },
            18 => {
                place.address = body.u64()?;
                let (id, fd) = (body.u32()?, body.u32()?);
                Self::MigrateId { id, fd: i32::try_from(fd).map_err(|_| CommandError::Invalid)? }
            }
            19 => {
                place.address = body.u64()?;
                let id = body.u32()?;
                let what = match body.u32()? {
                    0 => Query::Address,
                    1 => Query::Path,
                    2 => Query::Gid,
                    _ => return Err(CommandError::Unknown),
                };
                Self::Query { id, what }
            }
            20 => {
                let (id, len, reserved) = (body.u32()?, body.u16()?, body.u16()?);
                let address = body.address_storage(len)?;
                if reserved != 0 {
                    return Err(CommandError::Invalid);
                }
                Self::Bind { id, address: address.ok_or(CommandError::Invalid)? }
            }
            21 => {
                let (id, timeout) = (body.u32()?, body.milliseconds()?);
                let (source_len, destination_len) = (body.u16()?, body.u16()?);
                let reserved = body.u32()?;
                let source = body.address_storage(source_len)?;
                let destination = body.address_storage(destination_len)?;
                if reserved != 0 {
                    return Err(CommandError::Invalid);
                }
                let destination = destination.ok_or(CommandError::Invalid)?;
                Self::ResolveAddress { id, source, destination, timeout }
            }
            22 => {
                place.address = body.u64()?;
                let (uid, id, len, flags) = (body.u64()?, body.u32()?, body.u16()?, body.u16()?);
                let address = body.address_storage(len)?.ok_or(CommandError::Invalid)?;
                let send_only = match flags {
                    0 => false,
                    1 => true,
                    _ => return Err(CommandError::Invalid),
                };
                Self::JoinMulticast { id, uid, address, send_only }
            }
            24 => {
                let id = body.u32()?;
                body.skip(4)?;
                let (event, status) = (body.u32()?, body.u32()?);
                Self::WriteEvent { id, event, status, argument: body.u64()? }
            }
            13 | 23 => return Err(CommandError::Unknown),
            _ => return Err(CommandError::Invalid),
        })
    }
}

/// `struct rdma_ucm_destroy_id`: an identifier behind the place of the answer.
fn answered_id(body: &mut Reader<'_>, place: &mut Place) -> Result<u32, CommandError> {
    place.address = body.u64()?;
    body.u32()
}

impl Parameters {
    /// Reads the structure; `None` if it says that it is not valid.
    fn parse(body: &mut Reader<'_>) -> Result<Option<Self>, CommandError> {
        let (qp_num, qkey) = (body.u32()?, body.u32()?);
        let private = body.take(PRIVATE_MAX)?;
        let private_len = usize::from(body.u8()?);
        let parameters = Self {
            qp_num,
            qkey,
            private: private.get(..private_len).ok_or(CommandError::Invalid)?.to_vec(),
            srq: body.u8()? != 0,
            responder_resources: body.u8()?,
            initiator_depth: body.u8()?,
            flow_control: body.u8()? != 0,
            retry_count: body.u8()?,
            rnr_retry_count: body.u8()?,
        };
        Ok((body.u8()? != 0).then_some(parameters))
    }
}

/// Room for private data in the structures, in bytes.
const PRIVATE_MAX: usize = 256;

/// The longest value of an option that is looked at: two paths.
const OPTION_MAX: usize = 2 * PathRecord::DATA_LEN;
