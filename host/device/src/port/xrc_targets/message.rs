//! Messages between a process that has made an XRC target and one that has opened it.
//!
//! A message is a row of words, the same number for each kind. Nothing in it is believed: fields that make no sense make
//! no message.

use crate::objects::events::EventKind;
use crate::objects::qp::{Change, QpQuery};
use crate::registry::DomainName;
use adverb_engine::{
    Access, AckTimeout, Attributes, Gid, Partition, QpState, RetryCount, RnrRetry,
};
use adverb_wire::{Marks, PathMtu, Pkey, Psn, Qkey, Qpn, RnrTimer};

/// A message. The opener asks with the first three, one at a time; the others come from the maker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Message {
    /// Opens the target of this domain with this number, for as long as the connection stands.
    Open { domain: DomainName, number: Qpn },
    /// Changes the target's attributes.
    Modify { to: QpState, change: Change },
    /// Asks for them.
    Query,
    /// It is opened, or modified.
    Done,
    /// It is not: the system's error, or 0 for the opener's own.
    Refused(u32),
    /// What was asked for, and whether the target is connected.
    Found { query: QpQuery, is_connected: bool },
    /// Something has happened to the target.
    Event(EventKind),
}

const MAGIC: [u8; 4] = *b"advt";
/// Grows with every change of a message.
const VERSION: u32 = 2;
const WORDS: usize = 3 + CHANGE_WORDS;
const CHANGE_WORDS: usize = 7 + ATTRIBUTES;
const WORD_BYTES: usize = 4;

const OPEN: u32 = 1;
const MODIFY: u32 = 2;
const QUERY: u32 = 3;
const DONE: u32 = 4;
const REFUSED: u32 = 5;
const FOUND: u32 = 6;
const EVENT: u32 = 7;

/// Events of a target, by their numbers in messages.
const EVENTS: [EventKind; 5] = [
    EventKind::CommEst,
    EventKind::LastWqeReached,
    EventKind::QpAccessErr,
    EventKind::QpFatal,
    EventKind::QpReqErr,
];

impl Message {
    /// Length in bytes.
    pub(super) const LEN: usize = MAGIC.len() + WORD_BYTES * (1 + WORDS);

    pub(super) fn emit(&self) -> [u8; Self::LEN] {
        let words = [VERSION].into_iter().chain(self.words()).flat_map(u32::to_ne_bytes);
        let mut bytes = [0; Self::LEN];
        bytes
            .iter_mut()
            .zip(MAGIC.into_iter().chain(words))
            .for_each(|(place, byte)| *place = byte);
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let (magic, words) = bytes.split_first_chunk::<4>()?;
        let mut words =
            words.as_chunks::<WORD_BYTES>().0.iter().map(|word| u32::from_ne_bytes(*word));
        let version = words.next()?;
        let row = std::array::from_fn(|_| words.next().unwrap_or(0));
        (*magic == MAGIC && version == VERSION).then(|| Self::from_words(row))?
    }

    fn words(&self) -> [u32; WORDS] {
        let row = |head: [u32; 3], rest: &[u32]| {
            let mut words = head.into_iter().chain(rest.iter().copied());
            std::array::from_fn(|_| words.next().unwrap_or(0))
        };
        match self {
            Self::Open { domain, number } => row([OPEN, number.get(), 0], &domain.words()),
            Self::Modify { to, change } => row([MODIFY, code_of(*to), 0], &change_words(change)),
            Self::Query => row([QUERY, 0, 0], &[]),
            Self::Done => row([DONE, 0, 0], &[]),
            Self::Refused(errno) => row([REFUSED, *errno, 0], &[]),
            Self::Found { query, is_connected } => {
                let flags = u32::from(query.draining) | u32::from(*is_connected) << 1;
                let change = Change {
                    attributes: query.settings.into(),
                    gid_index: query.gid_index,
                    marks: query.marks,
                };
                row([FOUND, code_of(query.state), flags], &change_words(&change))
            }
            Self::Event(kind) => {
                let at = EVENTS.iter().position(|known| known == kind);
                row([EVENT, at.and_then(|at| u32::try_from(at).ok()).unwrap_or(u32::MAX), 0], &[])
            }
        }
    }

    fn from_words(words: [u32; WORDS]) -> Option<Self> {
        let [kind, first, second, rest @ ..] = words;
        Some(match kind {
            OPEN => {
                let [d0, d1, d2, d3, d4, ..] = rest;
                let domain = DomainName::from_words([d0, d1, d2, d3, d4]);
                Self::Open { domain, number: Qpn::new(first) }
            }
            MODIFY => Self::Modify { to: state_of(first)?, change: change_of(rest)? },
            QUERY => Self::Query,
            DONE => Self::Done,
            REFUSED => Self::Refused(first),
            FOUND => {
                let Change { attributes, gid_index, marks } = change_of(rest)?;
                let (draining, is_connected) = (second & 1 != 0, second & 2 != 0);
                let (state, settings) = (state_of(first)?, attributes.all()?);
                let query = QpQuery { state, draining, gid_index, marks, settings };
                Self::Found { query, is_connected }
            }
            EVENT => Self::Event(*EVENTS.get(usize::try_from(first).ok()?)?),
            _ => return None,
        })
    }
}

fn code_of(state: QpState) -> u32 {
    let at = QpState::ALL.iter().position(|known| *known == state);
    at.and_then(|at| u32::try_from(at).ok()).unwrap_or(u32::MAX)
}

fn state_of(code: u32) -> Option<QpState> {
    QpState::ALL.get(usize::try_from(code).ok()?).copied()
}

/// Attributes of one word: its value in a message, and what that means, if anything.
macro_rules! words {
    ($($name:ident: $emit:expr, $parse:expr;)*) => {
        const ATTRIBUTES: usize = [$(stringify!($name)),*].len();

        fn attribute_words(attributes: &Attributes) -> [Option<u32>; ATTRIBUTES] {
            let Attributes { remote_gid: _, $($name),* } = *attributes;
            [$($name.map($emit)),*]
        }

        fn attributes_of(words: [Option<u32>; ATTRIBUTES], remote_gid: Option<Gid>) -> Option<Attributes> {
            let [$($name),*] = words;
            $(let $name = match $name {
                Some(word) => Some($parse(word)?),
                None => None,
            };)*
            Some(Attributes { remote_gid, $($name),* })
        }
    };
}

words! {
    current: code_of, state_of;
    window_packets: u32::from, Some;
    window_first: u32::from, Some;
    partition: partition_word, partition_of;
    port: u32::from, byte;
    access: |access: Access| access.bits(), |bits| Some(Access::from_bits(bits).transport());
    qkey: |Qkey(key)| key, |key| Some(Qkey(key));
    remote: Qpn::get, |number| Some(Qpn::new(number));
    path_mtu: |mtu: PathMtu| mtu.code().into(), |code| PathMtu::from_code(byte(code)?);
    expected_psn: Psn::get, |psn| Some(Psn::new(psn));
    max_dest_rd_atomic: u32::from, byte;
    min_rnr_timer: |timer: RnrTimer| timer.code().into(), |code| byte(code).map(RnrTimer::new);
    first_psn: Psn::get, |psn| Some(Psn::new(psn));
    timeout: |timeout: AckTimeout| timeout.exponent().into(), |exponent| {
        AckTimeout::from_exponent(byte(exponent)?).ok()
    };
    retry_count: |count: RetryCount| count.get().into(), |count| RetryCount::new(byte(count)?);
    rnr_retry: |count: RnrRetry| count.get().into(), |count| RnrRetry::new(byte(count)?);
    max_rd_atomic: u32::from, byte;
    notify_drained: u32::from, |is_set| Some(is_set != 0);
}

fn byte(word: u32) -> Option<u8> {
    u8::try_from(word).ok()
}

fn partition_word(Partition { index, pkey: Pkey(pkey) }: Partition) -> u32 {
    u32::from(index) << 16 | u32::from(pkey)
}

fn partition_of(word: u32) -> Option<Partition> {
    let [i0, i1, p0, p1] = word.to_be_bytes();
    let pkey = Pkey(u16::from_be_bytes([p0, p1]));
    Some(Partition { index: u16::from_be_bytes([i0, i1]), pkey })
}

/// The attributes that are given have a bit in the first word; each has its word, and the peer's GID four.
fn change_words(change: &Change) -> [u32; CHANGE_WORDS] {
    let Change { attributes, gid_index, marks } = change;
    let Marks { traffic_class, hop_limit, flow_label } = *marks;
    let words = attribute_words(attributes);
    let is_given = words.iter().rev().map(Option::is_some).chain([attributes.remote_gid.is_some()]);
    let given = is_given.fold(0, |given, is_given| given << 1 | u32::from(is_given));
    let small = u32::from_be_bytes([*gid_index, traffic_class, hop_limit, 0]);
    let [g0, g1, g2, g3] = attributes.remote_gid.map_or([0; 4], gid_words);
    let values = words.into_iter().map(Option::unwrap_or_default);
    let mut words = [given, small, flow_label, g0, g1, g2, g3].into_iter().chain(values);
    std::array::from_fn(|_| words.next().unwrap_or(0))
}

/// What is not given is legal, whatever its word; what is given and makes no sense is not.
fn change_of(words: [u32; CHANGE_WORDS]) -> Option<Change> {
    let [given, small, flow_label, g0, g1, g2, g3, values @ ..] = words;
    let mut left = given;
    let mut next = |value| {
        let is_given = left & 1 != 0;
        left >>= 1;
        is_given.then_some(value)
    };
    let remote_gid = next(0).map(|_| gid_of([g0, g1, g2, g3]));
    let attributes = attributes_of(values.map(next), remote_gid)?;
    let [gid_index, traffic_class, hop_limit, _] = small.to_be_bytes();
    let flow_label = flow_label & Marks::FLOW_LABEL_MAX;
    Some(Change { attributes, gid_index, marks: Marks { traffic_class, hop_limit, flow_label } })
}

fn gid_words(Gid(bytes): Gid) -> [u32; 4] {
    let mut words = bytes.as_chunks::<WORD_BYTES>().0.iter().map(|word| u32::from_be_bytes(*word));
    std::array::from_fn(|_| words.next().unwrap_or(0))
}

fn gid_of(words: [u32; 4]) -> Gid {
    let [a, b, c, d] = words.map(u128::from);
    Gid((a << 96 | b << 64 | c << 32 | d).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_engine::Settings;

    fn change() -> Change {
        let attributes = Attributes {
            current: Some(QpState::Init),
            access: Some(Access::REMOTE_WRITE),
            remote_gid: Some(Gid(std::array::from_fn(|n| u8::try_from(n).unwrap() + 1))),
            remote: Some(Qpn::new(0x0012_3456)),
            path_mtu: Some(PathMtu::B4096),
            expected_psn: Some(Psn::new(0x00ff_ffff)),
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(RnrTimer::new(31)),
            notify_drained: Some(true),
            ..Attributes::default()
        };
        let marks = Marks { traffic_class: 1, hop_limit: 2, flow_label: 0xa_bcde };
        Change { attributes, gid_index: 3, marks }
    }

    fn messages() -> Vec<Message> {
        let settings = Settings {
            partition: Partition { index: 0x1234, pkey: Pkey(0x5678) },
            port: 1,
            access: Access::REMOTE_READ,
            qkey: Qkey(0x8765_4321),
            remote_gid: Gid::from_v4([10, 9, 8, 7]),
            remote: Qpn::new(17),
            path_mtu: PathMtu::B1024,
            expected_psn: Psn::new(1),
            max_dest_rd_atomic: 2,
            min_rnr_timer: RnrTimer::new(3),
            first_psn: Psn::new(4),
            timeout: AckTimeout::FOREVER,
            retry_count: RetryCount::MAX,
            rnr_retry: RnrRetry::FOREVER,
            max_rd_atomic: 8,
            window_packets: 9,
            window_first: None,
            notify_drained: false,
        };
        let Change { gid_index, marks, .. } = change();
        let query = QpQuery { state: QpState::Rtr, draining: true, gid_index, marks, settings };
        let domain = DomainName::from_words([1, 2, 3, 4, 5]);
        let mut messages = vec![
            Message::Open { domain, number: Qpn::new(0x00ff_fffe) },
            Message::Modify { to: QpState::Rtr, change: change() },
            Message::Modify { to: QpState::Err, change: Change::default() },
            Message::Query,
            Message::Done,
            Message::Refused(22),
            Message::Found { query, is_connected: true },
            Message::Found { query, is_connected: false },
        ];
        messages.extend(EVENTS.map(Message::Event));
        messages
    }

    #[test]
    fn every_message_arrives_as_it_was_written() {
        for message in messages() {
            assert_eq!(Message::parse(&message.emit()), Some(message));
        }
    }

    #[test]
    fn other_lengths_kinds_and_versions_are_no_messages() {
        let bytes = Message::Query.emit();
        assert_eq!(Message::parse(&bytes[1..]), None);
        assert_eq!(Message::parse(&[&bytes[..], b"x"].concat()), None);
        for at in [0, 4, 9] {
            let mut other = bytes;
            other[at] ^= 0x55;
            assert_eq!(Message::parse(&other), None, "{at}");
        }
    }

    /// Goal: fields out of their ranges make no message, and no panic.
    #[test]
    fn any_word_may_be_anything() {
        for message in messages() {
            let words = message.emit();
            for at in (MAGIC.len()..words.len()).step_by(WORD_BYTES) {
                for value in [1, 0x80, 0xff00, u32::MAX] {
                    let mut other = words;
                    other[at..at + WORD_BYTES].copy_from_slice(&u32::to_ne_bytes(value));
                    if let Some(parsed) = Message::parse(&other) {
                        assert_eq!(Message::parse(&parsed.emit()), Some(parsed));
                    }
                }
            }
        }
        let mut mtu = Message::Modify { to: QpState::Rtr, change: change() }.emit();
        let at = MAGIC.len() + WORD_BYTES * (1 + 3 + 6 + 9);
        assert_eq!(mtu[at..at + WORD_BYTES], u32::to_ne_bytes(PathMtu::B4096.code().into()));
        mtu[at..at + WORD_BYTES].copy_from_slice(&u32::to_ne_bytes(9));
        assert_eq!(Message::parse(&mtu), None);
    }
}
