//! Control messages between two processes about an XRC target queue pair that one of them has, and
//! whose requests name shared receive queues of the other.
//!
//! The target's process *delegates* a packet to the queue's process, which answers the peer itself and
//! *reports* how far it has come; when the target goes, the other is *dismissed*. Control messages travel by way
//! of the relay sockets (`relay.rs`) and can get lost there: a process that misses an answer asks again, at the
//! latest when the peer sends again. `xrc_home.rs` decides which process is delegated to, and when.
//!
//! A control message is a row of words, the same number for each kind. Nothing in it is believed: fields that
//! make no sense make no control message, and the reader checks the sender, and that it is about what it knows.

use crate::registry::{DomainName, Member, SlotId};
use adverb_engine::{Access, QpEvent, Standing};
use adverb_wire::{Marks, Msn, PathMtu, Pkey, Psn, Qpn, RnrTimer};

/// A control message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ControlMessage {
    Delegation(Delegation),
    Report(Report),
    Dismissal(Dismissal),
}

/// What a control message is about, and its writer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Subject {
    /// The writer.
    pub(crate) from: Member,
    /// The target queue pair.
    pub(crate) target: Qpn,
    /// Which of its lives: it begins one whenever it is connected.
    pub(crate) life: u64,
}

/// Task of the queue's process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Task {
    /// Serve the packet that comes with the control message.
    Serve,
    /// Answer the packet again: it was served before.
    Again,
    /// Report.
    Report,
}

/// From the target's process to the queue's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Delegation {
    pub(crate) subject: Subject,
    /// Grows whenever the requests are delegated to another process.
    pub(crate) epoch: u64,
    pub(crate) task: Task,
    /// What has been served, as far as the writer knows.
    pub(crate) known: Standing,
    pub(crate) domain: DomainName,
    /// What the target is set to.
    pub(crate) attributes: TargetAttributes,
}

/// Attributes of a target.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct TargetAttributes {
    pub(crate) peer: Qpn,
    pub(crate) path_mtu: PathMtu,
    pub(crate) pkey: Pkey,
    pub(crate) access: Access,
    pub(crate) min_rnr_timer: RnrTimer,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) marks: Marks,
}

/// Condition of a proxy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Condition {
    /// At work: something is still to be sent.
    Busy,
    /// Everything is sent.
    Idle,
    /// It has refused a request for good, and told the peer.
    Refused(Option<QpEvent>),
    /// There is none.
    Gone,
}

/// From the queue's process to the target's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Report {
    pub(crate) subject: Subject,
    pub(crate) epoch: u64,
    /// What has been served.
    pub(crate) standing: Standing,
    pub(crate) condition: Condition,
}

/// From the target's process to the queue's: the target is no more what it was.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Dismissal {
    pub(crate) subject: Subject,
    /// A receive whose message has begun ends as flushed; otherwise it is put back.
    pub(crate) flush: bool,
}

const MAGIC: [u8; 4] = *b"advx";
const WORDS: usize = 21;
const WORD_BYTES: usize = 4;

impl ControlMessage {
    /// Length in bytes.
    pub(crate) const LEN: usize = MAGIC.len() + WORDS * WORD_BYTES;

    pub(crate) fn subject(&self) -> &Subject {
        match self {
            Self::Delegation(Delegation { subject, .. })
            | Self::Report(Report { subject, .. })
            | Self::Dismissal(Dismissal { subject, .. }) => subject,
        }
    }

    pub(crate) fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let words = self.words().into_iter().flat_map(u32::to_be_bytes);
        for (place, byte) in bytes.iter_mut().zip(MAGIC.into_iter().chain(words)) {
            *place = byte;
        }
        bytes
    }

    /// Splits a control message off the front of a message.
    pub(crate) fn parse(message: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = message.split_first_chunk::<{ Self::LEN }>()?;
        let (magic, words) = head.split_first_chunk::<4>()?;
        if *magic != MAGIC {
            return None;
        }
        let mut words =
            words.as_chunks::<WORD_BYTES>().0.iter().map(|word| u32::from_be_bytes(*word));
        let row = std::array::from_fn(|_| words.next().unwrap_or(0));
        Some((Self::from_words(row)?, rest))
    }

    fn words(&self) -> [u32; WORDS] {
        let Subject { from, target, life } = *self.subject();
        let (kind, epoch, standing, rest) = match *self {
            Self::Delegation(Delegation { epoch, task, known, domain, attributes, .. }) => {
                let [d0, d1, d2, d3, d4] = domain.words();
                let TargetAttributes { peer, path_mtu, pkey, access, min_rnr_timer, marks, .. } =
                    attributes;
                let Marks { traffic_class, hop_limit, flow_label } = marks;
                let task = match task {
                    Task::Serve => 0,
                    Task::Again => 1,
                    Task::Report => 2,
                };
                let reads = attributes.max_dest_rd_atomic;
                let small = [path_mtu.code(), min_rnr_timer.code(), reads, traffic_class];
                let small = u32::from_be_bytes(small);
                let [p0, p1] = pkey.0.to_be_bytes();
                let large = u32::from_be_bytes([hop_limit, 0, p0, p1]);
                let (peer, access) = (peer.get(), access.bits());
                let rest = [task, d0, d1, d2, d3, d4, peer, small, access, large, flow_label];
                (DELEGATION, epoch, Some(known), rest)
            }
            Self::Report(Report { epoch, standing, condition, .. }) => {
                let (condition, event) = match condition {
                    Condition::Busy => (0, None),
                    Condition::Idle => (1, None),
                    Condition::Refused(event) => (2, event),
                    Condition::Gone => (3, None),
                };
                let event = event.map_or(0, QpEvent::code).into();
                (REPORT, epoch, Some(standing), [condition, event, 0, 0, 0, 0, 0, 0, 0, 0, 0])
            }
            Self::Dismissal(Dismissal { flush, .. }) => {
                (DISMISSAL, 0, None, [flush.into(), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
            }
        };
        let (expected, msn) =
            standing.map_or((0, 0), |standing| (standing.expected.get(), standing.msn.get()));
        let [l0, l1] = halves(life);
        let [e0, e1] = halves(epoch);
        let (slot, serial, target) = (from.slot.number(), from.serial, target.get());
        let head = [kind, slot, serial, target, l0, l1, e0, e1, expected, msn];
        let mut words = head.into_iter().chain(rest);
        std::array::from_fn(|_| words.next().unwrap_or(0))
    }

    fn from_words(words: [u32; WORDS]) -> Option<Self> {
        let [kind, slot, serial, target, l0, l1, e0, e1, expected, msn, rest @ ..] = words;
        let [r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10] = rest;
        let from = Member { slot: SlotId::new(slot)?, serial };
        let subject = Subject { from, target: Qpn::new(target), life: whole(l0, l1) };
        let epoch = whole(e0, e1);
        let standing = Standing { expected: Psn::new(expected), msn: Msn::new(msn) };
        Some(match kind {
            DELEGATION => {
                let task = match r0 {
                    0 => Task::Serve,
                    1 => Task::Again,
                    2 => Task::Report,
                    _ => return None,
                };
                let [mtu, timer, reads, traffic_class] = r7.to_be_bytes();
                let [hop_limit, _, p0, p1] = r9.to_be_bytes();
                let flow_label = r10 & Marks::FLOW_LABEL_MAX;
                let attributes = TargetAttributes {
                    peer: Qpn::new(r6),
                    path_mtu: PathMtu::from_code(mtu)?,
                    pkey: Pkey(u16::from_be_bytes([p0, p1])),
                    access: Access::from_bits(r8).transport(),
                    min_rnr_timer: RnrTimer::new(timer),
                    max_dest_rd_atomic: reads.min(crate::QpLimits::RD_ATOMIC_MAX),
                    marks: Marks { traffic_class, hop_limit, flow_label },
                };
                let domain = DomainName::from_words([r1, r2, r3, r4, r5]);
                Self::Delegation(Delegation {
                    subject,
                    epoch,
                    task,
                    known: standing,
                    domain,
                    attributes,
                })
            }
            REPORT => {
                let events = [QpEvent::QpFatal, QpEvent::QpReqErr, QpEvent::QpAccessErr];
                let event = events.into_iter().find(|event| u32::from(event.code()) == r1);
                let condition = match r0 {
                    0 => Condition::Busy,
                    1 => Condition::Idle,
                    2 => Condition::Refused(event),
                    3 => Condition::Gone,
                    _ => return None,
                };
                Self::Report(Report { subject, epoch, standing, condition })
            }
            DISMISSAL if r0 <= 1 => Self::Dismissal(Dismissal { subject, flush: r0 == 1 }),
            _ => return None,
        })
    }
}

const DELEGATION: u32 = 1;
const REPORT: u32 = 2;
const DISMISSAL: u32 = 3;

fn halves(number: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = number.to_be_bytes();
    [u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])]
}

fn whole(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_letter_arrives_as_it_was_written_and_nothing_else_is_one() {
        let subject = Subject {
            from: Member { slot: SlotId::new(7).unwrap(), serial: 9 },
            target: Qpn::new(0x0012_3456),
            life: 0x0102_0304_0506_0708,
        };
        let known = Standing { expected: Psn::new(0x00ff_ffff), msn: Msn::new(77) };
        let attributes = TargetAttributes {
            peer: Qpn::new(3),
            path_mtu: PathMtu::B4096,
            pkey: Pkey::DEFAULT,
            access: Access::ALL,
            min_rnr_timer: RnrTimer::new(31),
            max_dest_rd_atomic: 128,
            marks: Marks { traffic_class: 1, hop_limit: 2, flow_label: 0xa_bcde },
        };
        let domain = DomainName::from_words([1, 2, 3, 4, 5]);
        let delegation = |task| {
            ControlMessage::Delegation(Delegation {
                subject,
                epoch: 1 << 40,
                task,
                known,
                domain,
                attributes,
            })
        };
        let report = |condition| {
            ControlMessage::Report(Report { subject, epoch: 5, standing: known, condition })
        };
        let control_messages = [
            delegation(Task::Serve),
            delegation(Task::Again),
            delegation(Task::Report),
            report(Condition::Busy),
            report(Condition::Idle),
            report(Condition::Gone),
            report(Condition::Refused(None)),
            report(Condition::Refused(Some(QpEvent::QpAccessErr))),
            ControlMessage::Dismissal(Dismissal { subject, flush: true }),
        ];
        for control in control_messages {
            let bytes = control.emit();
            let message = [&bytes[..], b"more"].concat();
            assert_eq!(ControlMessage::parse(&message), Some((control, &b"more"[..])));
            for len in 0..bytes.len() {
                assert_eq!(ControlMessage::parse(&bytes[..len]), None);
            }
            for (at, byte) in [(0, 0), (7, 9), (8, 0xff), (47, 9)] {
                let mut other = bytes;
                other[at] = byte;
                assert_ne!(ControlMessage::parse(&other), Some((control, &b""[..])), "{at}");
            }
        }
    }
}
