//! The handle of a queue pair, and what its owner can ask and tell it.

use crate::data_path::DataPath;
use crate::link::errors::ConnectError;
use crate::link::shm::link::PeerId;
use crate::link::udp::multicast::GroupError;
use crate::objects::events::Listener;
use crate::objects::notice::DeferredWakeups;
use crate::objects::qp::{Change, PostError, QpInner, QpQuery, Side};
use crate::objects::table::Place;
use crate::objects::work::{ReceiveWork, SendWork};
use crate::port::xrc_targets::forget_ended_targets;
use crate::progress::Port;
use adverb_engine::{Gid, QpCounters, QpState, QpType};
use adverb_wire::Qpn;
use std::sync::Arc;

/// A queue pair. `struct ibv_qp`.
#[derive(Debug)]
pub struct Qp {
    pub(super) port: Arc<Port>,
    number: Qpn,
    place: Place,
}

/// Where the general path has stopped in a batch of requests.
#[derive(Debug)]
enum Stop {
    /// At the end of the batch.
    End,
    /// At a datagram for a neighbour that has to be met first.
    Stranger { at: usize, stranger: PeerId },
    /// At a request that was refused.
    Mistake { at: usize, error: PostError },
}

impl Qp {
    pub(crate) const fn new(port: Arc<Port>, number: Qpn, place: Place) -> Self {
        Self { port, number, place }
    }

    /// Its number, unique on this host.
    #[inline]
    pub fn number(&self) -> Qpn {
        self.number
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.inner(|inner| inner.engine.state())
    }

    /// What it has counted.
    pub fn counters(&self) -> QpCounters {
        self.inner(|inner| inner.engine.counters())
    }

    /// The peer's address and queue pair, once connected.
    pub fn remote(&self) -> Option<(Gid, Qpn)> {
        self.inner(|inner| inner.engine.remote())
    }

    /// The path of its packets, once connected.
    pub fn path(&self) -> Option<DataPath> {
        self.inner(|inner| inner.path())
    }

    /// Requests posted to the send queue that have not ended.
    pub fn outstanding(&self) -> u64 {
        self.inner(|inner| inner.engine.outstanding())
    }

    fn inner<R>(&self, run: impl FnOnce(&mut QpInner) -> R) -> R {
        self.briefly(|inner| {
            inner.settle(None, &self.port.links);
            run(inner)
        })
    }

    /// As [`Qp::inner`], for callers that do not need to know which requests have ended.
    #[inline]
    fn briefly<R>(&self, run: impl FnOnce(&mut QpInner) -> R) -> R {
        let _deferred = DeferredWakeups::begin();
        let mut guard = self
            .place
            .lock()
            .unwrap_or_else(|| unreachable!("a queue pair is in the table while its handle lives"));
        let inner = guard
            .as_mut()
            .unwrap_or_else(|| unreachable!("the table hands out slots that are taken"));
        let result = run(inner);
        inner.show(&self.port.links);
        result
    }

    /// Goes to another state, or stays and changes attributes. `forgotten` is told the buffers of work
    /// that vanishes on the way to RESET.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; nothing has changed then.
    pub fn modify(
        &self,
        to: QpState,
        change: &Change,
        mut forgotten: impl FnMut(Side, u32),
    ) -> Result<(), ConnectError> {
        let port = &self.port;
        change.check()?;
        self.inner(|inner| inner.engine.may_modify(to, &change.attributes))?;
        // Sockets are opened under no queue pair's lock.
        let (kind, local, packets) = self.inner(|inner| {
            (inner.engine.kind(), inner.has_shm_link(), inner.takes_packets_alone())
        });
        let link = match change.attributes.remote_gid {
            // The peer stays the one that it is, whatever its address is called.
            Some(_) if local && to != QpState::Rtr => None,
            Some(remote) => {
                let connected = kind != QpType::Ud && !packets;
                Some(port.link(connected, change, remote)?)
            }
            None => None,
        };
        if !kind.is_reliable() && to == QpState::Rtr {
            port.stop_marking();
        }
        if kind == QpType::Ud && to == QpState::Rtr {
            port.show_marks();
            port.open_all()?;
        }
        if matches!(to, QpState::Reset | QpState::Err) {
            port.pay_debt(self.number);
        }
        if to == QpState::Rts {
            self.look_at_path();
        }
        self.inner(|inner| {
            let aftermath = inner.modify(to, change, link, &port.links, &mut forgotten)?;
            port.follow_up(self.number, inner, aftermath);
            Ok::<(), ConnectError>(())
        })?;
        if matches!(to, QpState::Reset | QpState::Err) {
            port.wait_for_neighbours();
        }
        Ok(())
    }

    /// Notes the window of the queue pair that was connected to the same peer last.
    fn look_at_path(&self) {
        let links = &self.port.links;
        let Some(peer) = self.inner(|inner| inner.path_to()) else { return };
        let latest =
            links.paths(|paths| paths.latest(peer)).filter(|latest| *latest != self.number);
        let window =
            latest.and_then(|latest| self.port.table.lock(latest)?.as_ref()?.engine.window());
        if let Some(window) = window {
            links.paths(|paths| paths.note(peer, window, links.now()));
        }
    }

    /// What it is set to now.
    pub fn query(&self) -> QpQuery {
        self.inner(|inner| QpQuery {
            state: inner.engine.state(),
            draining: inner.engine.is_draining(),
            gid_index: inner.gid_index,
            marks: inner.marks,
            settings: *inner.engine.settings(),
        })
    }

    /// Any state to ERR: all work ends as flushed.
    pub fn to_err(&self) {
        let port = &self.port;
        port.pay_debt(self.number);
        self.inner(|inner| {
            inner.quietly(&port.links, |engine, host| engine.to_err(host));
            inner.end_epoch(true, &port.links);
        });
        port.wait_for_neighbours();
    }

    /// Has another hear of its events.
    pub(crate) fn listen(&self, listener: &Listener) {
        self.briefly(|inner| inner.listen(listener));
    }

    /// Posts requests, in order, and starts them.
    ///
    /// # Errors
    ///
    /// The first mistake and the request it is in; those before it are posted, those from it on
    /// are not.
    #[inline]
    pub fn post_send(&self, batch: &[SendWork<'_>]) -> Result<(), (usize, PostError)> {
        if batch.is_empty() {
            return Ok(());
        }
        let port = &self.port;
        let mut stop = None;
        self.briefly(|inner| {
            let posted = inner.post_eagerly(batch, &port.links);
            if posted.requests > 0 {
                let aftermath = inner.after_eager(posted, &port.links);
                port.follow_up(self.number, inner, aftermath);
            }
            if posted.requests < batch.len() {
                stop = Some(self.post_generally(inner, batch, posted.requests));
            }
        });
        match stop {
            None | Some(Stop::End) => Ok(()),
            Some(stop) => self.post_rest(batch, stop),
        }
    }

    /// The general path: posts requests from number `next` on until one of them stops it, and sends what was posted. Not
    /// inlined: the eager path keeps what it works with in registers.
    #[inline(never)]
    fn post_generally(&self, inner: &mut QpInner, batch: &[SendWork<'_>], next: usize) -> Stop {
        let links = &self.port.links;
        let mut stop = Stop::End;
        for (at, work) in batch.iter().enumerate().skip(next) {
            if let Some(stranger) = inner.stranger(work, links) {
                stop = Stop::Stranger { at, stranger };
                break;
            }
            if let Err(error) = inner.post_send(work, links) {
                stop = Stop::Mistake { at, error };
                break;
            }
        }
        let aftermath = inner.send_off(links);
        self.port.follow_up(self.number, inner, aftermath);
        stop
    }

    /// Posts what the general path has left, if it may go on.
    #[inline(never)]
    fn post_rest(&self, batch: &[SendWork<'_>], mut stop: Stop) -> Result<(), (usize, PostError)> {
        loop {
            match stop {
                Stop::End => return Ok(()),
                Stop::Mistake { at, error } => return Err((at, error)),
                Stop::Stranger { at, stranger } => {
                    // Under no queue pair's lock: the device that is met may have to do with others of ours.
                    let shm_link = self.port.meet(stranger);
                    stop = self.briefly(|inner| {
                        inner.peer_cache.learn(stranger, shm_link);
                        self.post_generally(inner, batch, at)
                    });
                }
            }
        }
    }

    /// As [`Qp::post_send`], but all of them or none. (Where other threads post to it meanwhile, the queue can be full before
    /// all are posted.)
    ///
    /// # Errors
    ///
    /// The first mistake and the request it is in; no request is posted then.
    pub fn post_send_all(&self, batch: &[SendWork<'_>]) -> Result<(), (usize, PostError)> {
        if batch.len() > 1 {
            self.briefly(|inner| inner.check_all(batch, &self.port.links))?;
        }
        self.post_send(batch)
    }

    /// Posts receives, in order.
    ///
    /// # Errors
    ///
    /// The first mistake and the receive it is in; those before it are posted, those from it on
    /// are not.
    #[inline]
    pub fn post_receive(&self, batch: &[ReceiveWork<'_>]) -> Result<(), (usize, PostError)> {
        let port = &self.port;
        let mut mistake = None;
        self.briefly(|inner| {
            for (at, work) in batch.iter().enumerate() {
                if let Err(error) = inner.post_receive(work) {
                    mistake = Some((at, error));
                    break;
                }
            }
            if inner.engine.state() == QpState::Err {
                inner.quietly(&port.links, |engine, host| engine.flush(host));
            }
        });
        mistake.map_or(Ok(()), Err)
    }
}

impl Qp {
    /// Attaches a datagram queue pair to a multicast group: it gets a copy of each message to it.
    /// Once more changes nothing.
    ///
    /// # Errors
    ///
    /// [`GroupError`].
    pub fn attach(&self, group: Gid) -> Result<(), GroupError> {
        self.port.attach(group, self.number)
    }

    /// Detaches it.
    ///
    /// # Errors
    ///
    /// [`GroupError::NotAttached`].
    pub fn detach(&self, group: Gid) -> Result<(), GroupError> {
        match self.port.detach(Some(group), self.number) {
            true => Ok(()),
            false => Err(GroupError::NotAttached { gid: group }),
        }
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        match self.inner(|inner| inner.engine.kind()) {
            QpType::Ud => _ = self.port.detach(None, self.number),
            QpType::XrcTarget => forget_ended_targets(),
            QpType::Rc | QpType::Uc | QpType::XrcInitiator => {}
        }
        self.port.pay_debt(self.number);
        self.port.remove_qp(self.number);
    }
}
