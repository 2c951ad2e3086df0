//! Messages between an owner and its members, over a UNIX socket that keeps their bounds.
//!
//! The owner sends a greeting with the descriptors of the UMEM, of the member's gates, and of a pipe
//! that it holds for as long as it has the UMEM mapped, and the sockets behind it, as many to a message as there
//! is room for. Then the member asks, and each question has one answer: 0, or the number of an error. Numbers are in the
//! byte order of the host.

use crate::gate::GATES;
use crate::steering::{KEY_BYTES, Key};
use crate::umem::Shape;
use adverb_sys::unix::{FDS_MAX, Stream};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// What the owner says of a new member.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Greeting {
    pub(crate) place: u32,
    pub(crate) shape: Shape,
    /// How many sockets follow.
    pub(crate) sockets: u32,
}

impl Greeting {
    pub(crate) const LEN: usize = 20;

    pub(crate) fn emit(self) -> Vec<u8> {
        let Self { place, shape: Shape { frames, frame_bytes }, sockets } = self;
        [VERSION, place, frames, frame_bytes, sockets]
            .iter()
            .flat_map(|n| n.to_ne_bytes())
            .collect()
    }

    /// `Err`: the error that the owner answers with instead.
    pub(crate) fn parse(bytes: &[u8]) -> io::Result<Self> {
        let (words, rest) = bytes.as_chunks::<4>();
        let words: Vec<_> = words.iter().map(|word| u32::from_ne_bytes(*word)).collect();
        match (words.as_slice(), rest) {
            ([VERSION, place, frames, frame_bytes, sockets], []) => {
                let shape = Shape { frames: *frames, frame_bytes: *frame_bytes };
                Ok(Self { place: *place, shape, sockets: (*sockets).min(SOCKETS_MAX) })
            }
            ([code], []) => Err(io::Error::from_raw_os_error(code.cast_signed())),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// What a member asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Request {
    /// Packets that match, while that gate is open if there is one; with it comes the kernel's socket that has the port.
    Claim(Key, Option<u32>),
    /// These packets no longer.
    Release(Key),
    /// The socket that came with the claim is to be taken out of the kernel's hands, or put back with its packets.
    Repair(Key, bool),
}

impl Request {
    pub(crate) const LEN: usize = 4 + KEY_BYTES + 4;

    pub(crate) fn emit(self) -> io::Result<Vec<u8>> {
        let (word, key, gate) = match self {
            Self::Claim(key, gate) => (CLAIM, key, gate.unwrap_or(NO_GATE)),
            Self::Release(key) => (RELEASE, key, NO_GATE),
            Self::Repair(key, true) => (REPAIR, key, NO_GATE),
            Self::Repair(key, false) => (PUT_BACK, key, NO_GATE),
        };
        let key = key.bytes().ok_or(io::ErrorKind::InvalidInput)?;
        Ok([word.to_ne_bytes().as_slice(), &key, &gate.to_ne_bytes()].concat())
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (word, rest) = bytes.split_first_chunk::<4>()?;
        let (key, gate) = rest.split_first_chunk::<KEY_BYTES>()?;
        let key = Key::parse(key)?;
        let gate = match u32::from_ne_bytes(gate.try_into().ok()?) {
            NO_GATE => None,
            gate => Some(gate).filter(|gate| *gate < GATES).map(Some)?,
        };
        match (u32::from_ne_bytes(*word), gate) {
            (CLAIM, gate) => Some(Self::Claim(key, gate)),
            (RELEASE, None) => Some(Self::Release(key)),
            (REPAIR, None) => Some(Self::Repair(key, true)),
            (PUT_BACK, None) => Some(Self::Repair(key, false)),
            _ => None,
        }
    }
}

/// Answers with 0, or the number of an error.
pub(crate) fn answer(stream: &Stream, result: io::Result<()>) -> io::Result<()> {
    let code = match result {
        Ok(()) => 0,
        Err(error) => match (error.raw_os_error(), error.kind()) {
            (Some(code), _) => code.cast_unsigned(),
            (None, io::ErrorKind::AlreadyExists) => EEXIST,
            (None, io::ErrorKind::ResourceBusy) => EBUSY,
            (None, io::ErrorKind::PermissionDenied) => EPERM,
            (None, _) => EINVAL,
        },
    };
    stream.send(&code.to_ne_bytes(), &[])
}

/// What an answer says.
pub(crate) fn parse_answer(bytes: &[u8]) -> io::Result<()> {
    match <[u8; 4]>::try_from(bytes).map(u32::from_ne_bytes) {
        Ok(0) => Ok(()),
        Ok(code) => Err(io::Error::from_raw_os_error(code.cast_signed())),
        Err(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Sends sockets with the numbers of their queues.
pub(crate) fn send_sockets(stream: &Stream, sockets: &[(u32, OwnedFd)]) -> io::Result<()> {
    for some in sockets.chunks(FDS_MAX) {
        let numbers: Vec<_> = some.iter().flat_map(|(queue, _)| queue.to_ne_bytes()).collect();
        let fds: Vec<_> = some.iter().map(|(_, fd)| fd.as_fd()).collect();
        stream.send(&numbers, &fds)?;
    }
    Ok(())
}

/// Reads the queues of one message of sockets, and gives each its descriptor.
pub(crate) fn parse_sockets(bytes: &[u8], fds: Vec<OwnedFd>) -> io::Result<Vec<(u32, OwnedFd)>> {
    let (queues, rest) = bytes.as_chunks::<4>();
    if queues.len() != fds.len() || fds.is_empty() || !rest.is_empty() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(queues.iter().map(|queue| u32::from_ne_bytes(*queue)).zip(fds).collect())
}

/// Sockets that a member takes.
const SOCKETS_MAX: u32 = 64;
/// Of these messages and of the layout of a UMEM's record: those of other versions are refused.
const VERSION: u32 = 0x5844_0004;
const NO_GATE: u32 = u32::MAX;
const CLAIM: u32 = 1;
const RELEASE: u32 = 2;
const REPAIR: u32 = 3;
const PUT_BACK: u32 = 4;
const EPERM: u32 = 1;
const EBUSY: u32 = 16;
const EEXIST: u32 = 17;
const EINVAL: u32 = 22;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_greeting_is_read_as_it_was_written_or_is_an_error() {
        let shape = Shape { frames: 8, frame_bytes: 2048 };
        let greeting = Greeting { place: 3, shape, sockets: 2 };
        assert_eq!(Greeting::parse(&greeting.emit()).unwrap(), greeting);
        let refused = Greeting::parse(&EBUSY.to_ne_bytes()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
    }

    proptest! {
        /// Goal: nothing that a member or an owner says makes the other fail.
        #[test]
        fn any_bytes_are_a_message_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = Greeting::parse(&bytes);
            let _ = parse_answer(&bytes);
            let _ = parse_sockets(&bytes, Vec::new());
            if let Some(request) = Request::parse(&bytes) {
                prop_assert_eq!(request.emit().unwrap(), bytes);
            }
        }
    }
}
