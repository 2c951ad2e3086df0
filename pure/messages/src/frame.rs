//! What two connectors say to each other over TCP, as values and as bytes.
//!
//! This file touches no socket: [`Frame::parse`] and [`Frame::emit`] are all of it, so that hostile
//! bytes can be tried on it. All numbers are big-endian.
//!
//! ```text
//!  byte  0        4         6      7          8        12
//!       +--------+---------+------+----------+--------+----------------
//!       | "ADVB" | version | kind | 0        | length | length bytes …
//!       +--------+---------+------+----------+--------+----------------
//! ```
//!
//! The client says [`Frame::Hello`]; the server has its queue pairs ready to receive when it answers
//! with [`Frame::Welcome`]; the client has when it says [`Frame::Ready`]. A server with a secret says
//! [`Frame::Challenge`] before, and goes on once the client has answered with [`Frame::Proof`]. From
//! then on each side may say [`Frame::Advertise`] and, last of all, [`Frame::Bye`]; the answer to
//! [`Frame::Ping`] is [`Frame::Pong`]. Either side may say [`Frame::Refuse`] instead of what the
//! other expects, and closes then.
//!
//! Parsing forgives nothing: a frame with a byte too many is no frame.

pub use adverb_engine::Access;
use adverb_engine::Gid;
use adverb_wire::{PathMtu, Psn, Qpn, Rkey};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// The version of the protocol that this file speaks. Sides of different versions part at once.
pub const VERSION: u16 = 2;
/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 12;
/// Bytes that can follow the header.
pub const BODY_BYTES_MAX: usize = 16 << 10;
/// Channels that one endpoint can have.
pub const CHANNELS_MAX: usize = 64;
/// Bytes of the longest name.
pub const NAME_BYTES_MAX: usize = 64;
/// Bytes of the longest explanation of a refusal.
pub const TEXT_BYTES_MAX: usize = 256;
/// Bytes of a number that is used once.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof that a side knows the secret.
pub const PROOF_BYTES: usize = 32;

const MAGIC: [u8; 4] = *b"ADVB";
const CHANNEL_BYTES_MAX: usize = 1 + NAME_BYTES_MAX + 16;
const _: () = assert!(CHANNELS_MAX * CHANNEL_BYTES_MAX + 512 <= BODY_BYTES_MAX);
const _: () = assert!(NAME_BYTES_MAX <= 255 && CHANNELS_MAX <= 255);

/// A name of a session, device, channel or buffer: 1 to [`NAME_BYTES_MAX`] bytes of UTF-8 without
/// control characters.
///
/// [`Frame`] has an example.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Name(Box<str>);

impl Name {
    /// The name `text`.
    ///
    /// # Errors
    ///
    /// [`NameError`], which says what a name may be.
    pub fn new(text: &str) -> Result<Self, NameError> {
        let fits = (1..=NAME_BYTES_MAX).contains(&text.len());
        if fits && !text.chars().any(char::is_control) {
            return Ok(Self(text.into()));
        }
        Err(NameError { text: text.into() })
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that cannot be a name.
#[derive(Clone, Eq, PartialEq)]
pub struct NameError {
    text: Box<str>,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.text.len();
        let start: String = self.text.chars().take(NAME_BYTES_MAX).collect();
        write!(
            f,
            "{start:?} cannot be a name: a name has 1 to {NAME_BYTES_MAX} bytes (this has {len}) \
             and no control characters"
        )
    }
}

/// What a program's `main` prints of it.
impl fmt::Debug for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for NameError {}

/// Something that one side says to the other.
///
/// ```
/// use adverb_messages::frame::{Frame, FrameError, HEADER_BYTES};
///
/// let bytes = Frame::Ping.emit();
/// assert_eq!(Frame::parse(&bytes)?, Some((Frame::Ping, bytes.len())));
/// assert_eq!(Frame::parse(&bytes[..HEADER_BYTES - 1])?, None); // More has to come.
/// # Ok::<(), FrameError>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Frame {
    /// The client's start: its name and queue pairs, and the channels that it wants.
    Hello(Hello),
    /// The server's answer: its name, and its queue pairs for the same channels in the same order.
    Welcome(Hello),
    /// The client can receive: the endpoint is up on both sides.
    Ready,
    /// The server shows that it knows the secret, and asks the client to.
    Challenge {
        /// Never used before.
        nonce: [u8; NONCE_BYTES],
        /// Over the client's Hello and the nonce.
        proof: [u8; PROOF_BYTES],
    },
    /// The client shows that it knows the secret: over the same.
    Proof([u8; PROOF_BYTES]),
    /// Are you there?
    Ping,
    /// Yes.
    Pong,
    /// A buffer that the other side may use.
    Advertise(Advertisement),
    /// The last words of a side that ends in peace.
    Bye,
    /// The last words of a side that will not go on.
    Refuse(Refusal),
}

/// The name of a side, and how to reach its queue pairs.
///
/// [`Frame`] has an example.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hello {
    /// Name of the session.
    pub session: Name,
    /// Name of its device.
    pub device: Name,
    /// Identifier of its node.
    pub node_guid: u64,
    /// Address of its port.
    pub gid: Gid,
    /// The largest path MTU that it can use. A Welcome has the one that both will use.
    pub path_mtu: PathMtu,
    /// READs and atomics that it can have under way, and remember, at once.
    pub reads: u8,
    /// What it can do that others may not; a Welcome has what both can.
    pub features: Features,
    /// Never used before.
    pub nonce: [u8; NONCE_BYTES],
    /// Its queue pairs: 1 to [`CHANNELS_MAX`], all names different.
    pub channels: Vec<ChannelHello>,
}

/// What a side can do that others may not. Bits that this side does not know are left alone.
///
/// [`Frame`] has an example.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Features(pub u64);

impl Features {
    /// Answers [`Frame::Ping`].
    pub const PONG: Self = Self(1);
    /// All that this side can do.
    pub const OURS: Self = Self::PONG;

    /// What both can do.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// It can do all of `other`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A channel's queue pair.
///
/// [`Frame`] has an example.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ChannelHello {
    /// Name of the channel.
    pub name: Name,
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Sequence number of the first packet that it will send.
    pub psn: Psn,
    /// Work that it can have in flight.
    pub send_depth: u32,
    /// Receives that it can have posted.
    pub receive_depth: u32,
}

/// A buffer that the other side may use.
///
/// [`Frame`] has an example.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Advertisement {
    /// Name of the buffer.
    pub name: Name,
    /// Address of its first byte.
    pub addr: u64,
    /// Key of its region.
    pub rkey: Rkey,
    /// What may be done with it.
    pub access: Access,
    /// Bytes of a block, at least 1.
    pub block_bytes: u64,
    /// How many blocks there are, at least 1. All of them together end before 2⁶⁴.
    pub blocks: u64,
}

/// Why a side will not go on.
///
/// [`Frame`] has an example.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refusal {
    /// In a word.
    pub reason: Reason,
    /// For people: at most [`TEXT_BYTES_MAX`] bytes.
    pub text: String,
}

impl Refusal {
    /// A refusal; a text that is too long is cut.
    pub fn new(reason: Reason, text: &str) -> Self {
        let mut text: String = text.chars().filter(|c| !c.is_control()).collect();
        let end = text.floor_char_boundary(TEXT_BYTES_MAX);
        text.truncate(end);
        Self { reason, text }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a side will not go on, in a word.
///
/// [`Frame`] has an example.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// Too many others are being served just now: try again.
    Busy,
    /// The two sides cannot reach each other, or want different things.
    Disagreement,
    /// A failure of its own.
    Failure,
    /// What was said was not a frame, or not the one that was due.
    Garbage,
    /// The two sides do not have the same secret.
    Secret,
    /// Nothing was said for too long.
    Silence,
    /// The other side speaks another version.
    Version,
}

impl Reason {
    const ALL: [Self; 7] = [
        Self::Busy,
        Self::Disagreement,
        Self::Failure,
        Self::Garbage,
        Self::Secret,
        Self::Silence,
        Self::Version,
    ];

    const fn code(self) -> u8 {
        match self {
            Self::Garbage => 1,
            Self::Version => 2,
            Self::Silence => 3,
            Self::Busy => 4,
            Self::Disagreement => 5,
            Self::Failure => 6,
            Self::Secret => 7,
        }
    }
}

/// Why bytes are not a frame.
#[derive(Clone, Eq, PartialEq)]
#[non_exhaustive]
pub enum FrameError {
    /// A field of the body has a value that it cannot have.
    Field {
        /// Which one.
        what: &'static str,
    },
    /// There is no such kind of frame.
    Kind {
        /// The kind.
        kind: u8,
    },
    /// They do not begin as frames do: this is some other protocol.
    Magic,
    /// The body has more bytes than a frame of its kind.
    Surplus {
        /// How many more.
        bytes: usize,
    },
    /// The frame says that it is longer than any frame is.
    TooLong {
        /// Bytes of the body.
        len: u32,
    },
    /// The body ends too early.
    Truncated,
    /// Another version of the protocol.
    Version {
        /// Theirs.
        theirs: u16,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field { what } => write!(f, "a frame's {what} is not what it can be"),
            Self::Kind { kind } => write!(f, "there are no frames of kind {kind}"),
            Self::Magic => f.write_str(
                "this is not the protocol of sessions: is the port that of another program?",
            ),
            Self::Surplus { bytes } => write!(f, "a frame has {bytes} bytes more than its kind"),
            Self::TooLong { len } => {
                write!(f, "a frame of {len} bytes, but the longest has {BODY_BYTES_MAX}")
            }
            Self::Truncated => f.write_str("a frame is shorter than its kind"),
            Self::Version { theirs } => write!(
                f,
                "the peer speaks version {theirs} of the protocol of sessions, this side version \
                 {VERSION}: use the same release on both sides"
            ),
        }
    }
}

/// What a program's `main` prints of it.
impl fmt::Debug for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for FrameError {}

impl Frame {
    /// Takes a frame off the front of `bytes` and says how many bytes it had; `None` if they are
    /// the start of a frame that is not all there.
    ///
    /// # Errors
    ///
    /// [`FrameError`], as soon as the bytes that are there cannot become a frame.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, FrameError> {
        if !bytes.iter().zip(MAGIC).all(|(byte, magic)| *byte == magic) {
            return Err(FrameError::Magic);
        }
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let [_, _, _, _, v0, v1, kind, reserved, l0, l1, l2, l3] = *header;
        let theirs = u16::from_be_bytes([v0, v1]);
        if theirs != VERSION {
            return Err(FrameError::Version { theirs });
        }
        if reserved != 0 {
            return Err(FrameError::Field { what: "reserved byte" });
        }
        let len = u32::from_be_bytes([l0, l1, l2, l3]);
        let short = usize::try_from(len).ok().filter(|l| *l <= BODY_BYTES_MAX);
        let body_len = short.ok_or(FrameError::TooLong { len })?;
        let Some(body) = rest.get(..body_len) else {
            return Ok(None);
        };
        let mut body = Reader(body);
        let frame = match kind {
            HELLO => Self::Hello(Hello::parse(&mut body)?),
            WELCOME => Self::Welcome(Hello::parse(&mut body)?),
            READY => Self::Ready,
            ADVERTISE => Self::Advertise(Advertisement::parse(&mut body)?),
            BYE => Self::Bye,
            REFUSE => Self::Refuse(Refusal::parse(&mut body)?),
            CHALLENGE => Self::Challenge { nonce: body.array()?, proof: body.array()? },
            PROOF => Self::Proof(body.array()?),
            PING => Self::Ping,
            PONG => Self::Pong,
            kind => return Err(FrameError::Kind { kind }),
        };
        match body.0.len() {
            0 => Ok(Some((frame, HEADER_BYTES + body_len))),
            bytes => Err(FrameError::Surplus { bytes }),
        }
    }

    /// The frame as bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut body = Vec::new();
        match self {
            Self::Hello(hello) | Self::Welcome(hello) => hello.emit(&mut body),
            Self::Advertise(advertisement) => advertisement.emit(&mut body),
            Self::Refuse(refusal) => refusal.emit(&mut body),
            Self::Challenge { nonce, proof } => {
                body.extend_from_slice(nonce);
                body.extend_from_slice(proof);
            }
            Self::Proof(proof) => body.extend_from_slice(proof),
            Self::Ready | Self::Bye | Self::Ping | Self::Pong => {}
        }
        debug_assert!(body.len() <= BODY_BYTES_MAX, "bounds are checked above");
        let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        bytes.extend_from_slice(&[self.code(), 0]);
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// What kind of frame it is, for people.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Hello(_) => "Hello",
            Self::Welcome(_) => "Welcome",
            Self::Ready => "Ready",
            Self::Advertise(_) => "Advertise",
            Self::Bye => "Bye",
            Self::Refuse(_) => "Refuse",
            Self::Challenge { .. } => "Challenge",
            Self::Proof(_) => "Proof",
            Self::Ping => "Ping",
            Self::Pong => "Pong",
        }
    }

    const fn code(&self) -> u8 {
        match self {
            Self::Hello(_) => HELLO,
            Self::Welcome(_) => WELCOME,
            Self::Ready => READY,
            Self::Advertise(_) => ADVERTISE,
            Self::Bye => BYE,
            Self::Refuse(_) => REFUSE,
            Self::Challenge { .. } => CHALLENGE,
            Self::Proof(_) => PROOF,
            Self::Ping => PING,
            Self::Pong => PONG,
        }
    }
}

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const READY: u8 = 3;
const ADVERTISE: u8 = 4;
const BYE: u8 = 5;
const REFUSE: u8 = 6;
const CHALLENGE: u8 = 7;
const PROOF: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

impl Hello {
    fn parse(body: &mut Reader<'_>) -> Result<Self, FrameError> {
        let session = body.name()?;
        let device = body.name()?;
        let node_guid = body.u64()?;
        let gid = Gid(body.array()?);
        let path_mtu =
            PathMtu::from_code(body.u8()?).ok_or(FrameError::Field { what: "path MTU" })?;
        let reads = body.u8()?;
        let features = Features(body.u64()?);
        let nonce = body.array()?;
        let count = usize::from(body.u8()?);
        if !(1..=CHANNELS_MAX).contains(&count) {
            return Err(FrameError::Field { what: "number of channels" });
        }
        let mut channels: Vec<ChannelHello> = Vec::with_capacity(count);
        for _ in 0..count {
            let channel = ChannelHello::parse(body)?;
            if channels.iter().any(|known| known.name == channel.name) {
                return Err(FrameError::Field { what: "channel name, which it has twice," });
            }
            channels.push(channel);
        }
        Ok(Self { session, device, node_guid, gid, path_mtu, reads, features, nonce, channels })
    }

    fn emit(&self, body: &mut Vec<u8>) {
        put_text(body, self.session.as_str());
        put_text(body, self.device.as_str());
        body.extend_from_slice(&self.node_guid.to_be_bytes());
        body.extend_from_slice(&self.gid.0);
        let count = u8::try_from(self.channels.len()).unwrap_or(u8::MAX);
        body.extend_from_slice(&[self.path_mtu.code(), self.reads]);
        body.extend_from_slice(&self.features.0.to_be_bytes());
        body.extend_from_slice(&self.nonce);
        body.push(count);
        for channel in &self.channels {
            channel.emit(body);
        }
    }
}

impl ChannelHello {
    fn parse(body: &mut Reader<'_>) -> Result<Self, FrameError> {
        let name = body.name()?;
        let qpn = body.u24("queue pair number")?;
        let psn = body.u24("sequence number")?;
        let send_depth = body.u32()?;
        let receive_depth = body.u32()?;
        // 0 and 1 are the fabric's own, and the last one means everybody.
        if qpn < 2 || qpn == Qpn::MULTICAST.get() {
            return Err(FrameError::Field { what: "queue pair number" });
        }
        Ok(Self { name, qpn: Qpn::new(qpn), psn: Psn::new(psn), send_depth, receive_depth })
    }

    fn emit(&self, body: &mut Vec<u8>) {
        put_text(body, self.name.as_str());
        for number in [self.qpn.get(), self.psn.get(), self.send_depth, self.receive_depth] {
            body.extend_from_slice(&number.to_be_bytes());
        }
    }
}

impl Advertisement {
    fn parse(body: &mut Reader<'_>) -> Result<Self, FrameError> {
        let name = body.name()?;
        let addr = body.u64()?;
        let rkey = Rkey(body.u32()?);
        let bits = u32::from(body.u8()?);
        let access = Access::from_bits(bits);
        let block_bytes = body.u64()?;
        let blocks = body.u64()?;
        if access.bits() != bits || !Access::ALL.contains(access) {
            return Err(FrameError::Field { what: "access rights" });
        }
        let end = block_bytes
            .checked_mul(blocks)
            .filter(|len| *len > 0)
            .and_then(|len| addr.checked_add(len));
        if end.is_none() {
            return Err(FrameError::Field { what: "buffer size" });
        }
        Ok(Self { name, addr, rkey, access, block_bytes, blocks })
    }

    fn emit(&self, body: &mut Vec<u8>) {
        put_text(body, self.name.as_str());
        body.extend_from_slice(&self.addr.to_be_bytes());
        body.extend_from_slice(&self.rkey.0.to_be_bytes());
        body.push(u8::try_from(self.access.bits()).unwrap_or(0));
        body.extend_from_slice(&self.block_bytes.to_be_bytes());
        body.extend_from_slice(&self.blocks.to_be_bytes());
    }
}

impl Refusal {
    fn parse(body: &mut Reader<'_>) -> Result<Self, FrameError> {
        let code = body.u8()?;
        let reason = Reason::ALL.into_iter().find(|r| r.code() == code);
        let reason = reason.ok_or(FrameError::Field { what: "reason" })?;
        let len = usize::from(body.u16()?);
        let text = body.text(len)?;
        let refusal = Self::new(reason, text);
        if refusal.text != text {
            return Err(FrameError::Field { what: "explanation" });
        }
        Ok(refusal)
    }

    fn emit(&self, body: &mut Vec<u8>) {
        let Self { reason, text } = Self::new(self.reason, &self.text);
        let len = u16::try_from(text.len()).unwrap_or(u16::MAX);
        body.push(reason.code());
        body.extend_from_slice(&len.to_be_bytes());
        body.extend_from_slice(text.as_bytes());
    }
}

fn put_text(body: &mut Vec<u8>, text: &str) {
    body.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
    body.extend_from_slice(text.as_bytes());
}

/// The part of a body that is still to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(FrameError::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, FrameError> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    fn u16(&mut self) -> Result<u16, FrameError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, FrameError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, FrameError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    fn u24(&mut self, what: &'static str) -> Result<u32, FrameError> {
        match self.u32()? {
            number @ 0..0x0100_0000 => Ok(number),
            0x0100_0000.. => Err(FrameError::Field { what }),
        }
    }

    fn text(&mut self, len: usize) -> Result<&'a str, FrameError> {
        let (text, rest) = self.0.split_at_checked(len).ok_or(FrameError::Truncated)?;
        self.0 = rest;
        core::str::from_utf8(text).map_err(|_| FrameError::Field { what: "text" })
    }

    fn name(&mut self) -> Result<Name, FrameError> {
        let len = usize::from(self.u8()?);
        Name::new(self.text(len)?).map_err(|_| FrameError::Field { what: "name" })
    }
}

#[cfg(test)]
mod tests;
