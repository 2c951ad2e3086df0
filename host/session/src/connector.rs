//! The connector: frames over a stream of bytes, never waiting longer than it is told.
//!
//! The stream does not wait; waits have a deadline. What frames
//! are is the business of `frame.rs`, what they mean of `set_up.rs` and `link.rs`.

use crate::config::AdapterConfig;
use crate::error::ConnectorError;
use crate::frame::{Frame, Reason, Refusal};
use crate::pipe::Pipe;
use adverb_sys::epoll::{Epoll, Events, Interest};
use adverb_sys::tcp;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::warn;

/// A point in time until which something is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    start: Instant,
    pub(crate) allowed: Duration,
}

impl Deadline {
    pub(crate) fn after(allowed: Duration) -> Self {
        Self { start: Instant::now(), allowed }
    }

    /// What is left; nothing once it has passed.
    pub(crate) fn left(&self) -> Duration {
        self.allowed.saturating_sub(self.start.elapsed())
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.left().is_zero()
    }
}

/// Frames over a stream of bytes.
#[derive(Debug)]
pub(crate) struct Connector {
    stream: Arc<Pipe>,
    /// Bytes that are not a whole frame yet: at most one frame and a read.
    input: Vec<u8>,
}

impl Connector {
    pub(crate) fn new(stream: Pipe) -> Self {
        Self { stream: Arc::new(stream), input: Vec::new() }
    }

    pub(crate) fn stream(&self) -> &Arc<Pipe> {
        &self.stream
    }

    /// Takes the next frame, if it is all there.
    pub(crate) fn try_receive(&mut self) -> Result<Option<Frame>, ConnectorError> {
        loop {
            if let Some((frame, len)) = Frame::parse(&self.input)? {
                self.input.drain(..len);
                return Ok(Some(frame));
            }
            let mut bytes = [0; READ_BYTES];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(ConnectorError::Closed),
                Ok(len) => self.input.extend_from_slice(bytes.get(..len).unwrap_or(&bytes)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(broken("receive", error)),
            }
        }
    }

    /// Waits for the next frame, which `due` describes.
    pub(crate) fn receive(
        &mut self,
        due: &'static str,
        deadline: Deadline,
    ) -> Result<Frame, ConnectorError> {
        loop {
            if let Some(frame) = self.try_receive()? {
                return Ok(frame);
            }
            if deadline.has_passed() {
                return Err(ConnectorError::Timeout { due, waited: deadline.allowed });
            }
            wait(&self.stream, Interest::Readable, deadline.left())
                .map_err(system("wait for the peer"))?;
        }
    }

    /// Sends a frame.
    pub(crate) fn send(&self, frame: &Frame, deadline: Deadline) -> Result<(), ConnectorError> {
        send(&self.stream, frame, deadline)
    }

    /// Sends last words, without waiting for room, and ends the connection: with [`Pipe::finish`] and its `patience`.
    pub(crate) fn part(&mut self, last: &Frame, patience: Duration) {
        // A peer that is gone or does not listen need not be told.
        let _ = self.send(last, Deadline::after(Duration::ZERO));
        self.stream.finish(patience);
    }

    /// Tells the peer why it is not served, if that is news for it, and ends the connection.
    pub(crate) fn refuse(&mut self, error: &ConnectorError) {
        let reason = match error {
            ConnectorError::Frame(crate::frame::FrameError::Version { .. }) => Reason::Version,
            ConnectorError::Frame(_) | ConnectorError::Unexpected { .. } => Reason::Garbage,
            ConnectorError::Secret(_) => Reason::Secret,
            ConnectorError::Timeout { .. } => Reason::Silence,
            ConnectorError::Closed | ConnectorError::Refused(_) => return,
            ConnectorError::System { .. } => Reason::Failure,
        };
        self.part(&Frame::Refuse(Refusal::new(reason, &error.to_string())), STRANGER_PATIENCE);
    }
}

/// Has packets of a connection, or of all that a listener accepts, treated on their way as those of the
/// queue pairs are.
pub(crate) fn mark(socket: impl AsFd, config: &AdapterConfig) {
    // What the system does anyway need not be said.
    let AdapterConfig { traffic_class: class, hop_limit: hops, .. } = *config;
    let classed = class == 0 || tcp::set_traffic_class(&socket, class).is_ok();
    let limited = hops == 0 || tcp::set_hop_limit(&socket, hops).is_ok();
    if !(classed && limited) {
        // What matters goes over the queue pairs.
        warn!(class, hops, "the system does not let connections have this class and these hops");
    }
}

/// What a frame is that was not due.
pub(crate) fn unexpected(due: &'static str, frame: Frame) -> ConnectorError {
    match frame {
        Frame::Refuse(refusal) => ConnectorError::Refused(refusal),
        Frame::Hello(_)
        | Frame::Welcome(_)
        | Frame::Ready
        | Frame::Challenge { .. }
        | Frame::Proof(_)
        | Frame::Ping
        | Frame::Pong
        | Frame::Advertise(_)
        | Frame::Bye => ConnectorError::Unexpected { due, said: frame.kind() },
    }
}

/// Sends a frame. The caller sees to it that no other thread sends meanwhile.
pub(crate) fn send(stream: &Pipe, frame: &Frame, deadline: Deadline) -> Result<(), ConnectorError> {
    let bytes = frame.emit();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        match stream.write(rest) {
            Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                return Err(broken("send", error));
            }
            Err(_) if deadline.has_passed() => {
                return Err(ConnectorError::Timeout {
                    due: "that it takes what it is sent",
                    waited: deadline.allowed,
                });
            }
            Err(_) => wait(stream, Interest::Writable, deadline.left())
                .map_err(system("wait for the peer"))?,
        }
    }
    Ok(())
}

/// Sends a frame that need not be sent, if there is room for all of it; false if half of it went
/// out, so that nothing can follow.
pub(crate) fn offer(stream: &Pipe, frame: &Frame) -> bool {
    let bytes = frame.emit();
    match stream.write(&bytes) {
        Ok(sent) => sent == bytes.len(),
        // A connection that is broken is noticed when it is read.
        Err(_) => true,
    }
}

/// Sleeps until the socket is ready or the time is over, and not much longer.
pub(crate) fn wait(stream: &Pipe, interest: Interest, most: Duration) -> io::Result<()> {
    // Made anew each time: waiting is rare, and an idle endpoint holds one descriptor less.
    let epoll = Epoll::new()?;
    let (fd, interest) = stream.watched(interest);
    epoll.add(fd, 0, interest)?;
    // Rounded up, so that the deadline has passed by the clock when the wait ends.
    let most = most.saturating_add(Duration::from_millis(1));
    epoll.wait(&mut Events::with_capacity(1), Some(most))?;
    Ok(())
}

/// What it means that the system will not carry bytes.
fn broken(doing: &'static str, error: io::Error) -> ConnectorError {
    let by_peer = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    match by_peer.contains(&error.kind()) {
        true => ConnectorError::Closed,
        false => system(doing)(error),
    }
}

pub(crate) fn system(doing: &'static str) -> impl Fn(io::Error) -> ConnectorError {
    move |error| ConnectorError::System { doing, error }
}

const READ_BYTES: usize = 4096;
/// How long the last words to a stranger may take, which others wait for meanwhile.
pub(crate) const STRANGER_PATIENCE: Duration = Duration::from_millis(20);
/// How long the last words to a peer may take.
pub(crate) const PEER_PATIENCE: Duration = Duration::from_secs(1);
