//! What to set on a queue pair so that it works with the peer of its identifier: `rdma_init_qp_attr`.

use crate::error::Error;
use crate::parameters::Transport;
use crate::state::{Stage, State};
use adverb_device::{Access, AckTimeout, AhAttr, Attributes, Partition, QpState, RetryCount};
use adverb_device::{Qkey, RnrRetry, RnrTimer};

/// What to set on a queue pair on its way to a state.
///
/// [`Id`](crate::Id) has an example.
#[derive(Clone, Copy, Debug)]
pub struct QpAttributes {
    /// The state.
    pub state: QpState,
    /// What to set; [`Attributes::given`] is the mask.
    pub attributes: Attributes,
    /// The address, where one is to be set: the place of the peer's in `attributes`, and how packets
    /// are marked.
    pub ah: Option<AhAttr>,
}

/// The key of datagrams, if nothing else is said: `RDMA_UDP_QKEY`.
pub(crate) const USUAL_QKEY: u32 = 0x0123_4567;

impl State {
    /// What to set on the way to `to`: INIT, RTR or RTS.
    pub(crate) fn qp_attributes(&self, to: QpState) -> Result<QpAttributes, Error> {
        let place = self.place()?;
        let (attributes, ah) = match to {
            QpState::Init => (self.init(), None),
            QpState::Rtr if self.transport == Transport::Ud => (Attributes::default(), None),
            QpState::Rtr => {
                let ah = self.ah().ok_or(Error::State("resolved"))?;
                (self.rtr(ah)?, Some(ah.gid_index(place.gid_index)))
            }
            QpState::Rts => (self.rts()?, None),
            QpState::Err | QpState::Reset | QpState::Sqd | QpState::Sqe => {
                return Err(Error::Invalid("the state of the queue pair"));
            }
        };
        Ok(QpAttributes { state: to, attributes, ah })
    }

    fn init(&self) -> Attributes {
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let (access, qkey) = match self.transport {
            Transport::Rc | Transport::Xrc => (Some(remote), None),
            Transport::Uc => (Some(Access::REMOTE_WRITE), None),
            Transport::Ud => (None, Some(Qkey(USUAL_QKEY))),
        };
        let partition = Some(Partition::DEFAULT);
        Attributes { partition, port: Some(1), access, qkey, ..Attributes::default() }
    }

    fn rtr(&self, ah: AhAttr) -> Result<Attributes, Error> {
        let path = self.path().ok_or(Error::State("resolved"))?;
        let qpn = match (self.request, self.reply) {
            (Some(request), _) => request.qpn,
            (None, Some(reply)) => reply.qpn,
            (None, None) => return Err(Error::State("asked or answered by its peer")),
        };
        let reliable = self.transport != Transport::Uc;
        Ok(Attributes {
            remote_gid: Some(ah.gid),
            remote: Some(qpn),
            path_mtu: Some(path.mtu),
            expected_psn: Some(self.psn),
            max_dest_rd_atomic: reliable.then(|| self.depths().0),
            min_rnr_timer: reliable.then(|| RnrTimer::new(MIN_RNR_TIMER)),
            ..Attributes::default()
        })
    }

    fn rts(&self) -> Result<Attributes, Error> {
        if self.transport == Transport::Ud {
            return Ok(Attributes { first_psn: Some(self.psn), ..Attributes::default() });
        }
        // Each side has said which number it expects.
        let (psn, retries, rnr) = match (self.request, self.reply) {
            (Some(request), _) => (request.psn, request.retries.get(), request.rnr_retries.get()),
            (None, Some(reply)) => (reply.psn, self.said.retry_count, reply.rnr_retries.get()),
            (None, None) => return Err(Error::State("asked or answered by its peer")),
        };
        let reliable = self.transport != Transport::Uc;
        let timeout = AckTimeout::from_exponent(self.ack_timeout()).ok();
        Ok(Attributes {
            first_psn: Some(psn),
            timeout: timeout.filter(|_| reliable),
            retry_count: RetryCount::new(retries).filter(|_| reliable),
            rnr_retry: RnrRetry::new(rnr).filter(|_| reliable),
            max_rd_atomic: reliable.then(|| self.depths().1),
            ..Attributes::default()
        })
    }

    /// READs and atomics: how many of the peer are served at once, and how many of this side are outstanding.
    fn depths(&self) -> (u8, u8) {
        match (self.stage, self.request, self.reply) {
            (Stage::Requested, Some(request), _) => {
                (request.initiator_depth, request.responder_resources)
            }
            (_, None, Some(reply)) => (reply.initiator_depth, reply.responder_resources),
            (_, _, _) => (self.said.responder_resources, self.said.initiator_depth),
        }
    }
}

/// How long the peer is told to wait when no receive is posted: 655 ms, as the kernel does. It tries again as often as
/// it was told at set-up, and a receive that is a little late is not to end the connection.
const MIN_RNR_TIMER: u8 = 0;
