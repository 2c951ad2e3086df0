//! The link to a peer once it is up: who it is, what it has advertised, and whether it is still there.
//!
//! The TCP connection outlives the handshake for three uses: buffers are advertised over it, it says
//! goodbye, and its end tells that the peer's process has ended, however that came. Channels look at
//! it now and then while they have nothing to do.

use crate::buffer::Buffer;
use crate::connector::{Connector, Deadline, system, wait};
use crate::error::{ConnectorError, ExchangeError};
use crate::frame::{Advertisement, ChannelHello, Frame, Name};
use crate::remote::RemoteBuffer;
use adverb_sys::epoll::Interest;
use adverb_verbs::{Access, Gid, PathMtu};
use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Who is at the other end of an endpoint.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct PeerInfo {
    /// The other end of the TCP connection.
    pub addr: SocketAddr,
    /// What it calls itself.
    pub name: Name,
    /// Name of its device, there.
    pub device: Name,
    /// Identifier of its node.
    pub node_guid: u64,
    /// Address of its port.
    pub gid: Gid,
    /// The path MTU that both sides use.
    pub path_mtu: PathMtu,
    /// READs and atomics that can be under way to it at once, on each channel.
    pub reads: u8,
    /// Its queue pairs, one for each channel, in the client's order.
    pub channels: Vec<ChannelHello>,
}

/// How a peer went.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Departure {
    /// It said goodbye.
    Closed,
    /// This side has closed the endpoint.
    Here,
    /// It went without a word: it was killed, or the connection to it broke.
    Lost,
    /// It said something on the connection that no peer says.
    Unruly,
}

impl Departure {
    const ALL: [Self; 4] = [Self::Closed, Self::Here, Self::Lost, Self::Unruly];

    /// Never 0, which is a peer that is there.
    const fn code(self) -> u8 {
        match self {
            Self::Closed => 1,
            Self::Here => 2,
            Self::Lost => 3,
            Self::Unruly => 4,
        }
    }
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the peer has closed the endpoint",
            Self::Here => "this side has closed the endpoint",
            Self::Lost => {
                "the peer is gone without a word: its process was killed, or the network broke"
            }
            Self::Unruly => "the peer said something that no peer says, and was hung up on",
        })
    }
}

/// The link to a peer.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: PeerInfo,
    /// How the peer went, as [`Departure::code`]; 0 while it is there.
    departed: AtomicU8,
    /// The connection again, to wait on without the lock.
    waiter: TcpStream,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    connector: Connector,
    theirs: Vec<Advertisement>,
    /// What the peer was told of stays registered for as long as it may use it.
    ours: Vec<(Name, Buffer)>,
}

impl Link {
    pub(crate) fn new(peer: PeerInfo, connector: Connector) -> Result<Self, ConnectorError> {
        let waiter = connector.stream().try_clone();
        Ok(Self {
            peer,
            departed: AtomicU8::new(0),
            waiter: waiter.map_err(system("prepare the connection"))?,
            state: Mutex::new(State { connector, theirs: Vec::new(), ours: Vec::new() }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the peer went, as far as is known.
    pub(crate) fn departure(&self) -> Option<Departure> {
        let code = self.departed.load(Ordering::Acquire);
        Departure::ALL.into_iter().find(|d| d.code() == code)
    }

    /// Looks whether the peer is still there.
    pub(crate) fn check(&self) -> Option<Departure> {
        if self.departure().is_none()
            && let Ok(mut state) = self.state.try_lock()
        {
            self.hear(&mut state);
        }
        self.departure()
    }

    /// Takes in what the peer has said.
    fn hear(&self, state: &mut State) {
        while self.departure().is_none() {
            match state.connector.try_receive() {
                Ok(None) => break,
                Ok(Some(Frame::Advertise(theirs))) => self.learn(state, theirs),
                Ok(Some(Frame::Bye)) => self.depart(Departure::Closed),
                Ok(Some(Frame::Hello(_) | Frame::Welcome(_) | Frame::Ready | Frame::Refuse(_)))
                | Err(ConnectorError::Frame(_)) => self.depart(Departure::Unruly),
                Err(
                    ConnectorError::Closed
                    | ConnectorError::Refused(_)
                    | ConnectorError::System { .. }
                    | ConnectorError::Timeout { .. }
                    | ConnectorError::Unexpected { .. },
                ) => self.depart(Departure::Lost),
            }
        }
    }

    fn learn(&self, state: &mut State, new: Advertisement) {
        if let Some(old) = state.theirs.iter_mut().find(|old| old.name == new.name) {
            *old = new;
        } else if state.theirs.len() < BUFFERS_MAX {
            state.theirs.push(new);
        } else {
            self.depart(Departure::Unruly);
        }
    }

    fn depart(&self, how: Departure) {
        // The first cause is the one that counts.
        let _ = self.departed.compare_exchange(0, how.code(), Ordering::AcqRel, Ordering::Relaxed);
    }

    pub(crate) fn advertise(
        &self,
        name: &str,
        buffer: &Buffer,
        timeout: Duration,
    ) -> Result<(), ExchangeError> {
        let name = Name::new(name)?;
        let remote = Access::ALL.bits() & !Access::LOCAL_WRITE.bits();
        if buffer.access().bits() & remote == 0 {
            return Err(ExchangeError::NotShared);
        }
        let mut state = self.lock();
        if let Some(how) = self.departure() {
            return Err(ExchangeError::PeerGone(how));
        }
        if state.ours.iter().any(|(known, _)| *known == name) {
            return Err(ExchangeError::NameTaken { name });
        }
        if state.ours.len() >= BUFFERS_MAX {
            return Err(ExchangeError::TooMany { max: BUFFERS_MAX });
        }
        let frame = Frame::Advertise(Advertisement {
            name: name.clone(),
            addr: buffer.addr(),
            rkey: buffer.rkey(),
            access: buffer.access(),
            block_bytes: u64::try_from(buffer.block_bytes()).unwrap_or(u64::MAX),
            blocks: u64::try_from(buffer.blocks()).unwrap_or(u64::MAX),
        });
        let sent = state.connector.send(&frame, Deadline::after(timeout));
        if sent.is_err() {
            // Half a frame may have gone out, and nothing can follow half a frame.
            self.depart(Departure::Lost);
        }
        sent.map_err(ExchangeError::Connector)?;
        state.ours.push((name, buffer.clone()));
        Ok(())
    }

    pub(crate) fn remote_buffer(
        &self,
        name: &str,
        timeout: Duration,
    ) -> Result<RemoteBuffer, ExchangeError> {
        let name = Name::new(name)?;
        let deadline = Deadline::after(timeout);
        loop {
            let mut state = self.lock();
            self.hear(&mut state);
            if let Some(found) = state.theirs.iter().find(|known| known.name == name) {
                return Ok(RemoteBuffer::new(found));
            }
            if let Some(how) = self.departure() {
                return Err(ExchangeError::PeerGone(how));
            }
            if deadline.has_passed() {
                let known = state.theirs.iter().map(|known| known.name.clone());
                return Err(ExchangeError::Timeout {
                    name,
                    known: known.collect(),
                    waited: timeout,
                });
            }
            drop(state);
            // Another thread may hear the peer's words in our stead, so look again now and then.
            let most = deadline.left().min(LOOK_AGAIN);
            wait(&self.waiter, Interest::Readable, most)
                .map_err(|error| ExchangeError::Connector(system("wait for the peer")(error)))?;
        }
    }

    /// Says goodbye, once.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        if self.departure().is_none() {
            self.depart(Departure::Here);
            state.connector.part(&Frame::Bye);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// Buffers that each side of an endpoint can advertise.
const BUFFERS_MAX: usize = 1024;
const LOOK_AGAIN: Duration = Duration::from_millis(10);
