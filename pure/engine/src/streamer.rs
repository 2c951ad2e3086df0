//! The streamer: the requester of unreliable transports. It emits every packet once, and a request
//! is done when its last packet is out.
//!
//! It shares the packetizer with the reliable requester and nothing else: there is no window, no
//! clock and no way back.
//!
//! Read IBTA Vol. 1 §9.8.2 (UC) and §9.8.3 (UD) before changing this file.

use crate::counters::QpCounters;
use crate::cutting::Cutting;
use crate::host::Host;
use crate::packetizer::Path;
use crate::requester::{Emitted, run_locally, status_of};
use crate::send_queue::{Entry, SendQueue};
use crate::status::WcStatus;
use crate::work::To;
use adverb_wire::{Deth, Psn, Qkey, Qpn};

/// The sending half of an unreliable queue pair.
#[derive(Clone, Debug)]
pub(crate) struct Streamer {
    path: Path,
    /// This queue pair and its key, as datagrams name them.
    own: Deth,
    next: Psn,
    /// No packet was emitted yet.
    fresh: bool,
    /// Packets of the oldest request that were emitted.
    at: u32,
    /// Requests that have not begun have to wait.
    held: bool,
}

impl Streamer {
    pub(crate) fn new(path: Path, number: Qpn, qkey: Qkey, first_psn: Psn) -> Self {
        let own = Deth { qkey, src_qp: number };
        Self { path, own, next: first_psn, fresh: true, at: 0, held: false }
    }

    /// Changes where packets go.
    pub(crate) fn set_path(&mut self, path: Path) {
        self.path = path;
    }

    /// Makes requests that have not begun wait, or lets them begin.
    pub(crate) fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Changes the key that stands in for the ones that requests leave open.
    pub(crate) fn set_qkey(&mut self, qkey: Qkey) {
        self.own.qkey = qkey;
    }

    /// It has emitted no packet since it was connected.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Requests wait to be emitted.
    pub(crate) fn has_work(&self, queue: &SendQueue) -> bool {
        queue.get(queue.head()).is_some_and(|entry| !self.held || entry.has_begun())
    }

    /// Emits what there is room for, and ends the requests that are out. `Broken` means that the
    /// oldest request has failed and ended.
    pub(crate) fn transmit(
        &mut self,
        queue: &mut SendQueue,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) -> Emitted {
        loop {
            let index = queue.head();
            let Some(entry) = queue.get_mut(index) else {
                return Emitted::All;
            };
            if self.held && !entry.has_begun() {
                return Emitted::All;
            }
            if !host.room() {
                return Emitted::NoRoom;
            }
            match self.step(index, entry, host) {
                Ok(false) => self.at += 1,
                Ok(true) => {
                    self.at = 0;
                    counters.note_sends(1);
                    queue.retire(WcStatus::Success, host);
                }
                Err(status) => {
                    self.at = 0;
                    counters.note_failure(status);
                    queue.retire(status, host);
                    return Emitted::Broken;
                }
            }
        }
    }

    /// Emits the next packet of the oldest request; true if it is the last.
    fn step(
        &mut self,
        index: u64,
        entry: &mut Entry,
        host: &mut impl Host,
    ) -> Result<bool, WcStatus> {
        let request = entry.request;
        if request.kind.is_local() {
            return run_locally(index, &request.kind, host).map(|()| true);
        }
        if self.at == 0 {
            let trains = self.path.link.trains;
            entry.start = index;
            entry.cutting = Cutting::of(&request, self.path.mtu, trains, false, 0);
        }
        let mut cut = self.path.cut(self.at, self.next, index, entry);
        let cut = cut.as_mut().ok_or(WcStatus::General)?; // By reference, as in requester.rs.
        let mut route = None;
        if let To::Datagram(to) = request.to {
            cut.headers.bth.dest_qp = to.remote;
            cut.headers.deth = Some(Deth { qkey: to.shown(self.own.qkey), ..self.own });
            route = Some(to.route);
        }
        host.emit(&cut.headers, cut.payload, route).map_err(status_of)?;
        (self.next, self.fresh) = (self.next.plus(1), false);
        Ok(cut.last)
    }
}

#[cfg(test)]
mod tests;
