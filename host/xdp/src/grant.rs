//! Messages between an owner and its members, over a UNIX socket that keeps their bounds.
//!
//! The owner sends a greeting with the descriptors of the UMEM, of the member's gates, and of a pipe
//! that it holds for as long as it has the UMEM mapped, and the sockets behind it, as many to a message as there
//! is room for. Then the member asks, and each question has a number and one answer, in turn: that number, and 0 or the number
//! of an error. What a question wants is not done once its time is over, so that one that was given up means nothing.
//! Numbers are in the byte order of the host.

use crate::gate::GATES;
use crate::steering::{KEY_BYTES, Key};
use crate::umem::Shape;
use adverb_sys::bpf::XdpMode;
use adverb_sys::unix::{FDS_MAX, Stream};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// What the owner says of a new member.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Greeting {
    pub(crate) place: u32,
    pub(crate) shape: Shape,
    /// Where the program on the interface is.
    pub(crate) mode: XdpMode,
    /// How many sockets follow.
    pub(crate) sockets: u32,
}

impl Greeting {
    pub(crate) const LEN: usize = 24;

    pub(crate) fn emit(self) -> Vec<u8> {
        let Self { place, shape: Shape { frames, frame_bytes }, mode, sockets } = self;
        let mode = match mode {
            XdpMode::Native => NATIVE,
            XdpMode::Generic => GENERIC,
        };
        [VERSION, place, frames, frame_bytes, mode, sockets]
            .iter()
            .flat_map(|n| n.to_ne_bytes())
            .collect()
    }

    /// `Err`: the error that the owner answers with instead.
    pub(crate) fn parse(bytes: &[u8]) -> io::Result<Self> {
        let (words, rest) = bytes.as_chunks::<4>();
        let words: Vec<_> = words.iter().map(|word| u32::from_ne_bytes(*word)).collect();
        match (words.as_slice(), rest) {
            ([VERSION, place, frames, frame_bytes, mode, sockets], []) => {
                let shape = Shape { frames: *frames, frame_bytes: *frame_bytes };
                let mode = match *mode {
                    NATIVE => XdpMode::Native,
                    GENERIC => XdpMode::Generic,
                    _ => return Err(io::ErrorKind::InvalidData.into()),
                };
                Ok(Self { place: *place, shape, mode, sockets: (*sockets).min(SOCKETS_MAX) })
            }
            ([ENOBUFS], []) => {
                let message = "the interface's owner may not lock the memory for frames (its log says how much that is)";
                Err(io::Error::new(io::ErrorKind::QuotaExceeded, message))
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

/// A request with its number, and the time until which it counts: in nanoseconds of a clock that both have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Question {
    pub(crate) number: u32,
    pub(crate) until_ns: u64,
    pub(crate) request: Request,
}

impl Question {
    pub(crate) const LEN: usize = 12 + Request::LEN;

    pub(crate) fn emit(self) -> io::Result<Vec<u8>> {
        let Self { number, until_ns, request } = self;
        let request = request.emit()?;
        Ok([number.to_ne_bytes().as_slice(), &until_ns.to_ne_bytes(), &request].concat())
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (until_ns, rest) = rest.split_first_chunk()?;
        let (number, until_ns) = (u32::from_ne_bytes(*number), u64::from_ne_bytes(*until_ns));
        Some(Self { number, until_ns, request: Request::parse(rest)? })
    }
}

impl Request {
    const LEN: usize = 4 + KEY_BYTES + 4;

    fn emit(self) -> io::Result<Vec<u8>> {
        let (word, key, gate) = match self {
            Self::Claim(key, gate) => (CLAIM, key, gate.unwrap_or(NO_GATE)),
            Self::Release(key) => (RELEASE, key, NO_GATE),
            Self::Repair(key, true) => (REPAIR, key, NO_GATE),
            Self::Repair(key, false) => (PUT_BACK, key, NO_GATE),
        };
        let key = key.bytes().ok_or(io::ErrorKind::InvalidInput)?;
        Ok([word.to_ne_bytes().as_slice(), &key, &gate.to_ne_bytes()].concat())
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
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

/// Refuses a member with the number of an error.
pub(crate) fn refuse(stream: &Stream, error: &io::Error) -> io::Result<()> {
    stream.send(&code(error).to_ne_bytes(), &[])
}

/// Answers the question of that number with 0, or the number of an error.
pub(crate) fn answer(stream: &Stream, number: u32, result: &io::Result<()>) -> io::Result<()> {
    let code = result.as_ref().err().map_or(0, code);
    stream.send([number.to_ne_bytes(), code.to_ne_bytes()].as_flattened(), &[])
}

fn code(error: &io::Error) -> u32 {
    match (error.raw_os_error(), error.kind()) {
        (Some(code), _) => code.cast_unsigned(),
        (None, io::ErrorKind::AlreadyExists) => EEXIST,
        (None, io::ErrorKind::ResourceBusy) => EBUSY,
        (None, io::ErrorKind::PermissionDenied) => EPERM,
        (None, io::ErrorKind::QuotaExceeded) => ENOBUFS, // As the kernel has it.
        (None, io::ErrorKind::TimedOut) => ETIMEDOUT,
        (None, _) => EINVAL,
    }
}

/// Which question an answer is to, and what it says.
pub(crate) fn parse_answer(bytes: &[u8]) -> Option<(u32, io::Result<()>)> {
    let (number, code) = bytes.split_first_chunk::<4>()?;
    let result = match u32::from_ne_bytes(code.try_into().ok()?) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.cast_signed())),
    };
    Some((u32::from_ne_bytes(*number), result))
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

/// Goal: nothing that a member or an owner says makes the other fail, and what is taken is what was said.
///
/// # Panics
///
/// If a request that is taken would be written otherwise.
#[cfg(feature = "hostile")]
pub fn messages(bytes: &[u8]) {
    if let Ok(greeting) = Greeting::parse(bytes) {
        assert!(greeting.sockets <= SOCKETS_MAX);
        assert_eq!(Greeting::parse(&greeting.emit()).ok(), Some(greeting));
    }
    if let Some((number, Ok(()))) = parse_answer(bytes) {
        assert_eq!(bytes, [number.to_ne_bytes(), [0; 4]].as_flattened());
    }
    assert!(parse_sockets(bytes, Vec::new()).is_err(), "there are none");
    if let Some(question) = Question::parse(bytes) {
        assert_eq!(question.emit().ok().as_deref(), Some(bytes));
    }
    if let Some(key) = bytes.first_chunk().and_then(Key::parse) {
        assert_eq!(key.bytes().as_ref().map(<[u8; KEY_BYTES]>::as_slice), bytes.get(..KEY_BYTES));
    }
}

/// Messages of each kind.
#[cfg(feature = "hostile")]
#[must_use]
pub fn conversation() -> Vec<Vec<u8>> {
    let at = |address: &str| address.parse::<std::net::SocketAddr>().ok();
    let key = |protocol, local, remote| {
        at(local).map(|local| Key { protocol, local, remote: at(remote) })
    };
    let (tcp, udp) = (crate::steering::Protocol::Tcp, crate::steering::Protocol::Udp);
    let keys = [
        key(tcp, "10.0.0.1:80", "10.0.0.2:40000"),
        key(udp, "[fd00::1]:53", ""),
        key(tcp, "[fd00::1]:80", "[fd00::2]:40000"),
    ];
    let shape = Shape { frames: 8, frame_bytes: 2048 };
    let mut messages = vec![
        Greeting { place: 3, shape, mode: XdpMode::Native, sockets: 2 }.emit(),
        EBUSY.to_ne_bytes().to_vec(),
        [7, EEXIST].map(u32::to_ne_bytes).as_flattened().to_vec(),
    ];
    for key in keys.into_iter().flatten() {
        messages.extend(key.bytes().map(|bytes| bytes.to_vec()));
        let requests = [
            Request::Claim(key, None),
            Request::Claim(key, Some(5)),
            Request::Release(key),
            Request::Repair(key, true),
            Request::Repair(key, false),
        ];
        messages.extend(
            requests.into_iter().filter_map(|request| {
                Question { number: 9, until_ns: 1 << 40, request }.emit().ok()
            }),
        );
    }
    messages
}

/// Sockets that a member takes.
const SOCKETS_MAX: u32 = 64;
/// Of these messages and of the layout of a UMEM's record: those of other versions are refused.
const VERSION: u32 = 0x5844_0006;
const NATIVE: u32 = 1;
const GENERIC: u32 = 2;
const NO_GATE: u32 = u32::MAX;
const CLAIM: u32 = 1;
const RELEASE: u32 = 2;
const REPAIR: u32 = 3;
const PUT_BACK: u32 = 4;
const EPERM: u32 = 1;
const EBUSY: u32 = 16;
const EEXIST: u32 = 17;
const EINVAL: u32 = 22;
const ENOBUFS: u32 = 105;
const ETIMEDOUT: u32 = 110;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_greeting_is_read_as_it_was_written_or_is_an_error() {
        let shape = Shape { frames: 8, frame_bytes: 2048 };
        for mode in [XdpMode::Native, XdpMode::Generic] {
            let greeting = Greeting { place: 3, shape, mode, sockets: 2 };
            assert_eq!(Greeting::parse(&greeting.emit()).unwrap(), greeting);
        }
        let refused = Greeting::parse(&EBUSY.to_ne_bytes()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        let refused = Greeting::parse(&code(&io::ErrorKind::QuotaExceeded.into()).to_ne_bytes());
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
    }

    proptest! {
        /// Goal: nothing that a member or an owner says makes the other fail.
        #[test]
        fn any_bytes_are_a_message_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..72)) {
            let _ = Greeting::parse(&bytes);
            let _ = parse_answer(&bytes);
            let _ = parse_sockets(&bytes, Vec::new());
            if let Some(question) = Question::parse(&bytes) {
                prop_assert_eq!(question.emit().unwrap(), bytes);
            }
        }
    }
}
