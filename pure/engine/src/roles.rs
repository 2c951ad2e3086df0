//! Roles of a queue pair, by its transport: one `match` each, and nothing decided.
//!
//! `qp.rs` talks to these two, whatever the transport is; what a role does is in its own file.

use crate::assembler::Assembler;
use crate::attributes::Settings;
use crate::completer::Completer;
use crate::connected::ConnectedResponder;
use crate::counters::QpCounters;
use crate::datagram::DatagramResponder;
use crate::early::EarlyBudget;
use crate::host::Host;
use crate::packetizer::Path;
use crate::requester::Requester;
use crate::responder::{Responder, Served};
use crate::send_queue::SendQueue;
use crate::status::WcStatus;
use crate::streamer::Streamer;
use crate::transport::QpType;
use adverb_wire::{Packet, Qpn};

/// The role that serves a peer's requests.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all queue pairs have the large one, in place")]
pub(crate) enum Receiver {
    Reliable(Responder),
    Connected(ConnectedResponder),
    Datagram(DatagramResponder),
}

impl Receiver {
    /// `None` for a queue pair that serves no requests.
    pub(crate) fn new(
        kind: QpType,
        path: Path,
        settings: &Settings,
        budget: &EarlyBudget,
    ) -> Option<Self> {
        match kind {
            QpType::Rc => {
                let path = Path { keeps_early: path.link.keeps_early, ..path };
                let responder = Responder::new(path, settings);
                Some(Self::Reliable(responder.with_budget(budget)))
            }
            // Others may have a turn between its packets: `handover.rs`.
            QpType::XrcTarget => Some(Self::Reliable(Responder::new(path, settings))),
            QpType::Uc => Some(Self::Connected(ConnectedResponder::new(path, settings))),
            QpType::Ud => Some(Self::Datagram(DatagramResponder::new(path, settings.qkey))),
            QpType::XrcInitiator => None,
        }
    }

    /// Takes over what may change while it works.
    pub(crate) fn change(&mut self, path: Path, settings: &Settings) {
        if let Self::Reliable(responder) = self {
            responder.set_rnr_timer(settings.min_rnr_timer);
            responder.set_reads_max(settings.max_dest_rd_atomic);
            responder.set_path(path);
        }
        if let Self::Datagram(responder) = self {
            responder.set_qkey(settings.qkey);
            responder.set_path(path);
        }
        if let Some(assembler) = self.assembler() {
            assembler.set_access(settings.access);
            assembler.set_path(path);
        }
    }

    fn assembler(&mut self) -> Option<&mut Assembler> {
        match self {
            Self::Reliable(responder) => Some(responder.assembler_mut()),
            Self::Connected(responder) => Some(responder.assembler_mut()),
            Self::Datagram(_) => None,
        }
    }

    #[inline]
    pub(crate) fn on_request(
        &mut self,
        packet: &Packet<'_>,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) -> Served {
        match self {
            Self::Reliable(responder) => responder.on_request(packet, counters, host),
            Self::Connected(responder) => responder.on_request(packet, counters, host),
            Self::Datagram(responder) => responder.on_request(packet, counters, host),
        }
    }

    /// Ends the receive that a message was filling, if there is one, as flushed.
    pub(crate) fn abandon(&mut self, counters: &mut QpCounters, host: &mut impl Host) {
        if let Some(assembler) = self.assembler() {
            assembler.abandon(WcStatus::WorkRequestFlushed, counters, host);
        }
    }

    /// Puts back the receive that a message was filling, if there is one.
    pub(crate) fn forget(&mut self, host: &mut impl Host) {
        if let Some(assembler) = self.assembler() {
            assembler.forget(host);
        }
    }

    /// Owes nothing any more.
    pub(crate) fn forget_debts(&mut self) {
        if let Self::Reliable(responder) = self {
            responder.forget_debts();
        }
    }

    /// The role that owes answers, if it is one that ever does.
    #[inline]
    pub(crate) fn debtor(&self) -> Option<&Responder> {
        match self {
            Self::Reliable(responder) => Some(responder),
            Self::Connected(_) | Self::Datagram(_) => None,
        }
    }

    #[inline]
    pub(crate) fn debtor_mut(&mut self) -> Option<&mut Responder> {
        match self {
            Self::Reliable(responder) => Some(responder),
            Self::Connected(_) | Self::Datagram(_) => None,
        }
    }
}

/// The roles that send requests.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one in a queue pair, and each packet looks into it"
)]
#[derive(Clone, Debug)]
pub(crate) enum Sender {
    Reliable { requester: Requester, completer: Completer },
    Unreliable(Streamer),
}

impl Sender {
    /// `None` for a queue pair that sends nothing. Requests before the queue's head belong to an
    /// earlier life.
    pub(crate) fn new(
        kind: QpType,
        number: Qpn,
        path: Path,
        settings: &Settings,
        queue: &SendQueue,
    ) -> Option<Self> {
        match kind {
            QpType::Rc | QpType::XrcInitiator => Some(Self::Reliable {
                requester: Requester::new(path, settings).start_at(queue.head()),
                completer: Completer::new(&path, settings),
            }),
            QpType::Uc | QpType::Ud => Some(Self::Unreliable(Streamer::new(
                path,
                number,
                settings.qkey,
                settings.first_psn,
            ))),
            QpType::XrcTarget => None,
        }
    }

    /// Takes over what may change while it works.
    pub(crate) fn change(&mut self, path: Path, settings: &Settings) {
        match self {
            Self::Reliable { requester, completer } => {
                requester.set_path(path);
                requester.set_reads_max(settings.max_rd_atomic);
                completer.set_limits(settings);
            }
            Self::Unreliable(streamer) => {
                streamer.set_path(path);
                streamer.set_qkey(settings.qkey);
            }
        }
    }

    /// Makes requests that have not begun wait, or lets them begin.
    pub(crate) fn hold(&mut self, held: bool) {
        match self {
            Self::Reliable { requester, .. } => requester.hold(held),
            Self::Unreliable(streamer) => streamer.hold(held),
        }
    }

    /// Requests may wait to be emitted.
    pub(crate) fn has_work(&self, queue: &SendQueue) -> bool {
        match self {
            Self::Reliable { requester, .. } => requester.has_work(queue),
            Self::Unreliable(streamer) => streamer.has_work(queue),
        }
    }
}
