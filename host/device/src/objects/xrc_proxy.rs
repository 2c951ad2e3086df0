//! XRC proxy: serves the requests to another process's target queue pair that name queues of this one.
//!
//! It is a queue pair that the program does not see. It has a place in the table under a number of this process, and
//! calls itself by the target's number: that is what completions say. Packets reach it with the control messages of
//! the target's process (`control_message.rs`), in an order that the XRC home there has made; it answers the peer
//! itself, and reports to the XRC home first. `xrc_home.rs` has the whole of it.

use crate::registry::Member;
use crate::registry::control_message::{Condition, Delegation, Report, Subject, Task};
use adverb_engine::{Qp, QpEvent, QpState};

/// State of a queue pair as a proxy.
#[derive(Debug)]
pub(crate) struct XrcProxy {
    /// The target, and the process that it belongs to.
    subject: Subject,
    /// The last delegation's.
    epoch: u64,
    /// Why a request was refused, if no completion tells.
    event: Option<QpEvent>,
    /// What the XRC home was last told, unless it is to be told anyway.
    reported: Option<Report>,
    /// A timer runs that looks whether the XRC home lives.
    pub(crate) watched: bool,
}

impl XrcProxy {
    pub(crate) fn new(delegation: &Delegation) -> Self {
        Self {
            subject: delegation.subject,
            epoch: delegation.epoch,
            event: None,
            reported: None,
            watched: false,
        }
    }

    /// The target, and the process that it belongs to.
    pub(crate) fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Something has happened to the queue pair.
    pub(crate) fn note(&mut self, event: QpEvent) {
        if matches!(event, QpEvent::QpFatal | QpEvent::QpReqErr | QpEvent::QpAccessErr) {
            self.event = Some(event);
        }
    }

    /// Says whether a delegation is still of use; one of a new epoch begins where the XRC home says.
    pub(crate) fn accept(&mut self, delegation: &Delegation) -> Option<Begin> {
        match delegation.task {
            Task::Again => Some(Begin::GoOn),
            Task::Serve | Task::Report if delegation.epoch < self.epoch => None,
            Task::Serve | Task::Report if delegation.epoch > self.epoch => {
                (self.epoch, self.reported) = (delegation.epoch, None);
                Some(Begin::Anew)
            }
            Task::Serve | Task::Report => Some(Begin::GoOn),
        }
    }

    /// The XRC home is to be told, whatever it was told before.
    pub(crate) fn forget_report(&mut self) {
        self.reported = None;
    }

    /// What the XRC home is to be told, if it was not.
    pub(crate) fn report(&mut self, engine: &Qp, me: Member) -> Option<Report> {
        let condition = match (engine.state() == QpState::Err, engine.owes_data()) {
            (true, _) => Condition::Refused(self.event),
            (false, true) => Condition::Busy,
            (false, false) => Condition::Idle,
        };
        let subject = Subject { from: me, ..self.subject };
        let standing = engine.standing()?;
        let report = Report { subject, epoch: self.epoch, standing, condition };
        (self.reported.replace(report) != Some(report)).then_some(report)
    }
}

/// Start of a proxy's work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Begin {
    /// Where it is.
    GoOn,
    /// Where the XRC home says.
    Anew,
}
