//! The handle of a queue pair, and what its owner can ask and tell it.

use super::{ConnectError, PostError, QpInner};
use crate::link::path::DataPath;
use crate::link::udp::multicast::GroupError;
use crate::link::way::check;
use crate::objects::channel::Hush;
use crate::objects::table::Place;
use crate::objects::work::{ReceiveWork, SendWork};
use crate::progress::{Port, QpLimits};
use adverb_engine::{Attributes, Gid, QpCounters, QpState, QpType, Settings};
use adverb_wire::{Marks, Qpn};
use std::sync::Arc;

/// What is to be changed of a queue pair.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Change {
    /// The attributes.
    pub attributes: Attributes,
    /// With a peer's address: the place of its own in the GID table.
    pub gid_index: u8,
    /// With a peer's address: how packets are to be marked. Between queue pairs of one host there are
    /// none.
    pub marks: Marks,
}

impl Change {
    /// Says whether the attributes have values that exist here.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Attribute`].
    pub fn check(&self) -> Result<(), ConnectError> {
        let Attributes { partition, port, max_rd_atomic, max_dest_rd_atomic, .. } = self.attributes;
        check(self.marks)?;
        let reads_max = u32::from(QpLimits::RD_ATOMIC_MAX);
        let checks = [
            ("pkey_index", partition.map(|partition| partition.index.into()), (0, 0)),
            ("port_num", port.map(u32::from), (1, 1)),
            ("max_rd_atomic", max_rd_atomic.map(u32::from), (0, reads_max)),
            ("max_dest_rd_atomic", max_dest_rd_atomic.map(u32::from), (0, reads_max)),
        ];
        for (what, asked, allowed) in checks {
            if let Some(asked) = asked.filter(|asked| *asked < allowed.0 || *asked > allowed.1) {
                return Err(ConnectError::Attribute { what, asked, allowed });
            }
        }
        Ok(())
    }
}

/// A queue of a queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// Its receive queue.
    Receive,
    /// Its send queue.
    Send,
}

/// What a queue pair is set to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QpQuery {
    /// Its state.
    pub state: QpState,
    /// In SQD: requests that had begun have not all ended.
    pub draining: bool,
    /// Place of its own address in the GID table, once it is known.
    pub gid_index: u8,
    /// How its packets are to be marked.
    pub marks: Marks,
    /// Its attributes.
    pub settings: Settings,
}

/// A queue pair. `struct ibv_qp`.
#[derive(Debug)]
pub struct Qp {
    port: Arc<Port>,
    number: Qpn,
    place: Place,
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

    /// The way its packets go, once connected.
    pub fn path(&self) -> Option<DataPath> {
        self.inner(|inner| inner.path())
    }

    /// Requests posted to the send queue that have not ended.
    pub fn outstanding(&self) -> u64 {
        self.inner(|inner| inner.engine.outstanding())
    }

    fn inner<R>(&self, run: impl FnOnce(&mut QpInner) -> R) -> R {
        self.briefly(|inner| {
            inner.settle(None, &self.port);
            run(inner)
        })
    }

    /// As [`Qp::inner`], for whoever does not care what of its requests has ended.
    #[inline]
    fn briefly<R>(&self, run: impl FnOnce(&mut QpInner) -> R) -> R {
        let _hush = Hush::begin();
        let mut guard = self
            .place
            .lock()
            .unwrap_or_else(|| unreachable!("a queue pair is in the table while its handle lives"));
        let inner = guard
            .as_mut()
            .unwrap_or_else(|| unreachable!("the table hands out slots that are taken"));
        let result = run(inner);
        inner.show(&self.port);
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
        let (kind, local, packets) = self
            .inner(|inner| (inner.engine.kind(), inner.is_local(), inner.takes_packets_alone()));
        let link = match change.attributes.remote_gid {
            // The peer stays the one that it is, whatever its address is called.
            Some(_) if local && to != QpState::Rtr => None,
            Some(remote) => {
                let connected = kind != QpType::Ud && !packets;
                Some(port.link(connected, change, remote)?)
            }
            None => None,
        };
        if kind == QpType::Ud && to == QpState::Rtr {
            port.show_marks();
            port.open_all()?;
        }
        if matches!(to, QpState::Reset | QpState::Err) {
            port.pay_debt(self.number);
        }
        self.inner(|inner| {
            let aftermath = inner.modify(to, change, link, port, &mut forgotten)?;
            port.follow_up(self.number, inner, aftermath);
            Ok::<(), ConnectError>(())
        })?;
        if matches!(to, QpState::Reset | QpState::Err) {
            port.wait_for_neighbours();
        }
        Ok(())
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
            inner.quietly(port, |engine, host| engine.to_err(host));
            inner.end_term(true, port);
        });
        port.wait_for_neighbours();
    }

    /// Posts requests, in order, and starts them.
    ///
    /// # Errors
    ///
    /// The first mistake and the request it is in; those before it are posted, those from it on
    /// are not.
    #[inline]
    pub fn post_send(&self, batch: &[SendWork<'_>]) -> Result<(), (usize, PostError)> {
        let port = &self.port;
        let mut next = 0;
        loop {
            let (result, stranger) = self.briefly(|inner| {
                let short = inner.post_briefly(batch.get(next..).unwrap_or_default(), port);
                if short.requests > 0 {
                    let aftermath = inner.after_brief(short, port);
                    port.follow_up(self.number, inner, aftermath);
                    next += short.requests;
                    if next == batch.len() {
                        return (Ok(()), None);
                    }
                }
                let (mut result, mut stranger) = (Ok(()), None);
                for (at, work) in batch.iter().enumerate().skip(next) {
                    stranger = inner.stranger(work, port);
                    if stranger.is_some() {
                        next = at;
                        break;
                    }
                    if let Err(error) = inner.post_send(work, port) {
                        result = Err((at, error));
                        break;
                    }
                }
                let aftermath = inner.send_off(port);
                port.follow_up(self.number, inner, aftermath);
                (result, stranger)
            });
            let Some(stranger) = stranger else {
                return result;
            };
            // Under no queue pair's lock: whoever is met may have to do with others of ours.
            let lane = port.meet(stranger);
            self.inner(|inner| inner.vicinity.learn(stranger, lane));
        }
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
        self.briefly(|inner| {
            let posted = batch
                .iter()
                .enumerate()
                .try_for_each(|(at, work)| inner.post_receive(work).map_err(|error| (at, error)));
            if inner.engine.state() == QpState::Err {
                inner.quietly(port, |engine, host| engine.flush(host));
            }
            posted
        })
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
        if self.inner(|inner| inner.engine.kind()) == QpType::Ud {
            self.port.detach(None, self.number);
        }
        self.port.pay_debt(self.number);
        self.port.remove_qp(self.number);
    }
}
