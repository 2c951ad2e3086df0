//! Modifying a queue pair: what each transition makes, changes and forgets.
//!
//! Which transitions there are, and with which attributes, is the table in `transition.rs`.

use super::{Peer, Progress, Qp};
use crate::attributes::{Attributes, Settings};
use crate::early::EarlyBudget;
use crate::host::Host;
use crate::link::Capabilities;
use crate::marked::Marked;
use crate::packetizer::Path;
use crate::roles::{Receiver, Sender};
use crate::segment::Segment;
use crate::status::{QpEvent, QpState};
use crate::transition::{ModifyError, check};
use crate::transport::QpType;

impl Qp {
    /// Goes to another state, or stays and changes attributes. `ibv_modify_qp`.
    ///
    /// On the way to RESET, requests vanish without completions, as the verbs have it; own receives
    /// are the host's to clear, and one that was in use is put back.
    ///
    /// # Errors
    ///
    /// [`ModifyError`] names what is missing and what is not allowed; nothing has changed then.
    pub fn modify(
        &mut self,
        to: QpState,
        attributes: &Attributes,
        host: &mut impl Host,
    ) -> Result<(), ModifyError> {
        check(self.kind(), self.state, to, attributes.given(), attributes.current)?;
        let settings = attributes.change(self.settings);
        match to {
            QpState::Reset => self.reset(host),
            QpState::Err => self.to_err(host),
            QpState::Init | QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe => {
                self.enter(to, settings);
                self.note_drained(host);
            }
        }
        Ok(())
    }

    /// Says whether [`Qp::modify`] would make this change.
    ///
    /// # Errors
    ///
    /// [`ModifyError`], as from there.
    pub fn may_modify(&self, to: QpState, attributes: &Attributes) -> Result<(), ModifyError> {
        check(self.kind(), self.state, to, attributes.given(), attributes.current)
    }

    /// Says what the link to the peer can do: [`Capabilities::PACKETS`] unless it is said. For connected
    /// queue pairs, before RTR: afterwards it changes nothing.
    pub fn set_link(&mut self, link: Capabilities) {
        if self.peer.is_none() {
            self.link = link;
        }
    }

    /// Says of which budget requests are kept that come early; its own if it is not said. Before RTR: afterwards it
    /// changes nothing.
    pub fn set_early_budget(&mut self, budget: &EarlyBudget) {
        self.budget = budget.clone();
    }

    /// Any state to ERR: all outstanding work ends as flushed.
    pub fn to_err(&mut self, host: &mut impl Host) {
        self.fail(host);
    }

    /// Any state to ERR, because something outside the transport has failed, such as a completion
    /// queue that is full: QP_FATAL is raised.
    pub fn abort(&mut self, host: &mut impl Host) {
        if self.state != QpState::Err {
            host.event(QpEvent::QpFatal);
        }
        self.fail(host);
    }

    /// Makes the transition, which is in the table.
    fn enter(&mut self, to: QpState, settings: Settings) {
        let from = self.state;
        (self.state, self.settings) = (to, settings);
        match (from, to) {
            (QpState::Init, QpState::Rtr) => self.make_peer(),
            (QpState::Rtr, QpState::Rts) => {
                self.progress = Progress::Settled;
                self.change_roles();
                self.make_sender();
            }
            (QpState::Rts, QpState::Sqd) => {
                self.progress = Progress::Drains;
                self.hold(true);
            }
            (_, QpState::Rts) => {
                self.progress = Progress::Settled;
                self.change_roles();
                self.hold(false);
            }
            (QpState::Sqd, QpState::Sqd) => self.change_roles(),
            (_, _) => {} // RESET or INIT to INIT: attributes only.
        }
    }

    fn path(&self) -> Path {
        let Settings { partition, remote, path_mtu, .. } = self.settings;
        let mtu = match self.kind() {
            QpType::Ud => Segment::of(self.options.port_mtu),
            QpType::Rc | QpType::Uc | QpType::XrcInitiator | QpType::XrcTarget => {
                match self.link.segment {
                    0 => Segment::of(path_mtu),
                    bytes => Segment::of_link(bytes),
                }
            }
        };
        let link = self.link;
        let transport = self.kind().transport();
        let (pkey, pkey_index) = (partition.pkey, partition.index);
        Path { transport, remote, pkey, pkey_index, mtu, link, keeps_early: false }
    }

    fn make_peer(&mut self) {
        let path = self.path();
        let receiver = Receiver::new(self.kind(), path, &self.settings, &self.budget);
        self.peer = Some(Peer { gid: self.settings.remote_gid, path, receiver });
        self.progress = Progress::AwaitsPacket;
    }

    fn make_sender(&mut self) {
        let (path, settings) = (self.path(), &self.settings);
        self.sender = Sender::new(self.kind(), self.number(), path, settings, &self.queue);
    }

    /// Carries changed settings to the roles that there are.
    fn change_roles(&mut self) {
        let (path, settings) = (self.path(), self.settings);
        if let Some(peer) = self.peer.as_mut() {
            (peer.gid, peer.path) = (settings.remote_gid, path);
            if let Some(receiver) = peer.receiver.as_mut() {
                receiver.change(path, &settings);
            }
        }
        if let Some(sender) = self.sender.as_mut() {
            sender.change(path, &settings);
        }
    }

    fn hold(&mut self, held: bool) {
        if let Some(sender) = self.sender.as_mut() {
            sender.hold(held);
        }
    }

    /// Forgets outstanding work and everything known of the peer, without a word.
    fn reset(&mut self, host: &mut impl Host) {
        if let Some(receiver) = self.peer.as_mut().and_then(|peer| peer.receiver.as_mut()) {
            receiver.forget(host);
        }
        self.state = QpState::Reset;
        self.settings = Settings::new(self.options.port_mtu);
        self.peer = None;
        self.sender = None;
        self.marks = Marked::default();
        self.progress = Progress::Settled;
        while self.queue.pop().is_some() {}
    }
}
