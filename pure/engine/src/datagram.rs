//! The responder of unreliable datagrams: every packet is a message, from any sender that has the key.
//!
//! The network header goes in front of the message, in the first 40 bytes of its receive. What does
//! not fit, or does not show the Q_Key, is dropped and counted, without notice.
//!
//! Read IBTA Vol. 1 §9.8.3 (unreliable datagrams) before changing this file.

use crate::counters::QpCounters;
use crate::host::{GRH_LEN, Host, Landing, LocalError, Receive, ReceiveDone};
use crate::packetizer::Path;
use crate::responder::Served;
use crate::status::{WcOpcode, WcStatus};
use adverb_wire::{Extension, Packet, Qkey, Qpn};

/// The serving half of a datagram queue pair.
#[derive(Clone, Debug)]
pub(crate) struct DatagramResponder {
    path: Path,
    qkey: Qkey,
}

impl DatagramResponder {
    pub(crate) fn new(path: Path, qkey: Qkey) -> Self {
        Self { path, qkey }
    }

    /// Changes where packets go.
    pub(crate) fn set_path(&mut self, path: Path) {
        self.path = path;
    }

    /// Changes the key that datagrams must show.
    pub(crate) fn set_qkey(&mut self, qkey: Qkey) {
        self.qkey = qkey;
    }

    /// Takes one packet.
    pub(crate) fn on_request(
        &mut self,
        packet: &Packet<'_>,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) -> Served {
        let known = packet.headers.deth.filter(|deth| deth.qkey == self.qkey);
        let Some(deth) = known else {
            counters.qkey_viol += 1;
            counters.dropped_pkts += 1;
            return Served::Fine;
        };
        let len = u32::try_from(packet.payload.len()).unwrap_or(u32::MAX);
        let receive = match len <= self.path.mtu.bytes() {
            true => host.take_receive(None).ok(),
            false => None,
        };
        let Some(receive) = receive else {
            counters.dropped_pkts += 1;
            return Served::Fine;
        };
        let byte_len = GRH_LEN.saturating_add(len);
        if byte_len > receive.len {
            counters.dropped_pkts += 1;
            host.put_back_receive(receive, None);
            return Served::Fine;
        }
        let (status, served) = match scatter(receive, packet, host) {
            Ok(()) => (WcStatus::Success, Served::Fine),
            Err(LocalError::Protection) => (WcStatus::LocalProtection, Served::Fatal(None)),
        };
        counters.note_receive(status);
        host.receive_done(self.done(receive, status, byte_len, packet, deth.src_qp));
        served
    }

    fn done(
        &self,
        receive: Receive,
        status: WcStatus,
        byte_len: u32,
        packet: &Packet<'_>,
        src_qp: Qpn,
    ) -> ReceiveDone {
        let imm = match packet.headers.extension {
            Extension::Imm(imm) => Some(imm),
            Extension::None
            | Extension::Reth(_)
            | Extension::RethImm(..)
            | Extension::Invalidate(_)
            | Extension::Atomic(_)
            | Extension::Flush(..)
            | Extension::Aeth(_)
            | Extension::AtomicAck(..)
            | Extension::Cnp => None,
        };
        ReceiveDone {
            receive,
            status,
            opcode: WcOpcode::Receive,
            byte_len,
            imm,
            invalidated: None,
            solicited: packet.headers.bth.solicited,
            src_qp,
            grh: true,
            pkey_index: self.path.pkey_index,
            srq: None,
        }
    }
}

/// Puts network header and message into a receive that has room for both.
fn scatter(receive: Receive, packet: &Packet<'_>, host: &mut impl Host) -> Result<(), LocalError> {
    let grh = host.grh();
    host.scatter(Landing::Receive(receive), 0, &grh)?;
    host.scatter(Landing::Receive(receive), GRH_LEN, packet.payload)
}
