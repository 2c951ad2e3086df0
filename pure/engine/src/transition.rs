//! State transitions of queue pairs: which attributes each needs, and may take: the
//! table behind `modify`.
//!
//! Alternate paths are in no column: no queue pair here migrates.
//!
//! Read IBTA Vol. 1 §11.2.5.2 (modify queue pair) and ibv_modify_qp(3) before changing it.

use crate::status::QpState;
use crate::transport::QpType;
use core::fmt;

/// A set of attributes, with the bits of `enum ibv_qp_attr_mask`.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct AttributeSet(u32);

impl AttributeSet {
    /// No attributes.
    pub const NONE: Self = Self(0);
    /// The state to go to; it is part of every change, and in no set that is reported.
    pub const STATE: Self = Self(1);
    /// The state that the queue pair is believed to be in.
    pub const CURRENT_STATE: Self = Self(1 << 1);
    /// Whether SQ_DRAINED is raised.
    pub const NOTIFY_DRAINED: Self = Self(1 << 2);
    /// What the peer may do.
    pub const ACCESS: Self = Self(1 << 3);
    /// The partition.
    pub const PKEY: Self = Self(1 << 4);
    /// The port.
    pub const PORT: Self = Self(1 << 5);
    /// The queue key.
    pub const QKEY: Self = Self(1 << 6);
    /// The address of the peer.
    pub const ADDRESS: Self = Self(1 << 7);
    /// The path MTU.
    pub const PATH_MTU: Self = Self(1 << 8);
    /// The wait for an acknowledgement.
    pub const TIMEOUT: Self = Self(1 << 9);
    /// How often to send again.
    pub const RETRY_COUNT: Self = Self(1 << 10);
    /// How often to send again when the peer has no receive.
    pub const RNR_RETRY: Self = Self(1 << 11);
    /// Sequence number of the peer's first packet.
    pub const EXPECTED_PSN: Self = Self(1 << 12);
    /// READs and atomics under way at once.
    pub const MAX_RD_ATOMIC: Self = Self(1 << 13);
    /// The wait that a peer without a receive is told.
    pub const MIN_RNR_TIMER: Self = Self(1 << 15);
    /// Sequence number of the first packet.
    pub const FIRST_PSN: Self = Self(1 << 16);
    /// READs and atomics of the peer at once.
    pub const MAX_DEST_RD_ATOMIC: Self = Self(1 << 17);
    /// The peer's queue pair.
    pub const REMOTE: Self = Self(1 << 20);

    /// Names, as the verbs spell them, in the order of the bits.
    const NAMES: [(Self, &'static str); 18] = [
        (Self::STATE, "qp_state"),
        (Self::CURRENT_STATE, "cur_qp_state"),
        (Self::NOTIFY_DRAINED, "en_sqd_async_notify"),
        (Self::ACCESS, "qp_access_flags"),
        (Self::PKEY, "pkey_index"),
        (Self::PORT, "port_num"),
        (Self::QKEY, "qkey"),
        (Self::ADDRESS, "ah_attr"),
        (Self::PATH_MTU, "path_mtu"),
        (Self::TIMEOUT, "timeout"),
        (Self::RETRY_COUNT, "retry_cnt"),
        (Self::RNR_RETRY, "rnr_retry"),
        (Self::EXPECTED_PSN, "rq_psn"),
        (Self::MAX_RD_ATOMIC, "max_rd_atomic"),
        (Self::MIN_RNR_TIMER, "min_rnr_timer"),
        (Self::FIRST_PSN, "sq_psn"),
        (Self::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic"),
        (Self::REMOTE, "dest_qp_num"),
    ];

    /// The set with these bits.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// There are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// These and those.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These without those.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Every attribute of `other` is among these.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Their names, as the verbs spell them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let has = move |(set, _): &(Self, &str)| self.contains(*set);
        Self::NAMES.into_iter().filter(has).map(|(_, name)| name)
    }
}

impl fmt::Display for AttributeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, name) in self.names().enumerate() {
            if at > 0 {
                f.write_str(", ")?;
            }
            f.write_str(name)?;
        }
        Ok(())
    }
}

/// Why a queue pair was not modified; nothing has changed then.
#[derive(Clone, Copy, Eq, PartialEq)]
pub enum ModifyError {
    /// The attributes are not those of this transition.
    Attributes {
        /// The type of the queue pair.
        kind: QpType,
        /// The state it is in.
        from: QpState,
        /// The state it was asked to go to.
        to: QpState,
        /// Required, and not given.
        missing: AttributeSet,
        /// Given, and not allowed.
        not_allowed: AttributeSet,
    },
    /// The caller believed it to be in another state.
    Current {
        /// The state it is in.
        actual: QpState,
        /// What the caller believed.
        believed: QpState,
    },
    /// There is no way from one state to the other.
    State {
        /// The state it is in.
        from: QpState,
        /// The state it was asked to go to.
        to: QpState,
    },
}

impl fmt::Display for ModifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attributes { kind, from, to, missing, not_allowed } => {
                write!(f, "a queue pair ({kind}) on its way from {from} to {to}")?;
                if !missing.is_empty() {
                    write!(f, " needs {missing}")?;
                }
                if !missing.is_empty() && !not_allowed.is_empty() {
                    f.write_str(" and")?;
                }
                if !not_allowed.is_empty() {
                    write!(f, " takes no {not_allowed}")?;
                }
                Ok(())
            }
            Self::Current { actual, believed } => {
                write!(f, "the queue pair is in {actual}, not in {believed}")
            }
            Self::State { from, to } => write!(f, "a queue pair in {from} cannot go to {to}"),
        }
    }
}

/// What a program's `main` prints of it.
impl fmt::Debug for ModifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for ModifyError {}

/// What a transition requires, and what it allows besides.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TransitionRule {
    /// Attributes that must be given.
    pub required: AttributeSet,
    /// Attributes that may be given.
    pub optional: AttributeSet,
}

/// The table. `None` if there is no such transition.
pub const fn transition(kind: QpType, from: QpState, to: QpState) -> Option<TransitionRule> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    match (from, to) {
        (_, Reset | Err) => rule(&[], &[]),
        (Reset, Init) => match kind {
            QpType::Ud => rule(&[PKEY, PORT, QKEY], &[]),
            QpType::Rc | QpType::Uc | QpType::XrcInitiator | QpType::XrcTarget => {
                rule(&[PKEY, PORT, ACCESS], &[])
            }
        },
        (Init, Init) => match kind {
            QpType::Ud => rule(&[], &[PKEY, PORT, QKEY]),
            QpType::Rc | QpType::Uc | QpType::XrcInitiator | QpType::XrcTarget => {
                rule(&[], &[PKEY, PORT, ACCESS])
            }
        },
        (Init, Rtr) => match kind {
            QpType::Ud => rule(&[], &[PKEY, QKEY]),
            QpType::Uc | QpType::XrcInitiator => {
                rule(&[ADDRESS, PATH_MTU, REMOTE, EXPECTED_PSN], &[PKEY, ACCESS])
            }
            QpType::Rc | QpType::XrcTarget => rule(
                &[ADDRESS, PATH_MTU, REMOTE, EXPECTED_PSN, MAX_DEST_RD_ATOMIC, MIN_RNR_TIMER],
                &[PKEY, ACCESS],
            ),
        },
        (Rtr, Rts) => match kind {
            QpType::Ud => rule(&[FIRST_PSN], &[CURRENT_STATE, QKEY]),
            QpType::Uc => rule(&[FIRST_PSN], &[CURRENT_STATE, ACCESS]),
            QpType::Rc => rule(
                &[FIRST_PSN, TIMEOUT, RETRY_COUNT, RNR_RETRY, MAX_RD_ATOMIC],
                &[CURRENT_STATE, ACCESS, MIN_RNR_TIMER],
            ),
            QpType::XrcInitiator => rule(
                &[FIRST_PSN, TIMEOUT, RETRY_COUNT, RNR_RETRY, MAX_RD_ATOMIC],
                &[CURRENT_STATE, ACCESS],
            ),
            QpType::XrcTarget => {
                rule(&[FIRST_PSN, TIMEOUT], &[CURRENT_STATE, ACCESS, MIN_RNR_TIMER])
            }
        },
        (Rts | Sqd, Rts) => match kind {
            QpType::Ud => rule(&[], &[CURRENT_STATE, QKEY]),
            QpType::Uc | QpType::XrcInitiator => rule(&[], &[CURRENT_STATE, ACCESS]),
            QpType::Rc | QpType::XrcTarget => rule(&[], &[CURRENT_STATE, ACCESS, MIN_RNR_TIMER]),
        },
        (Rts, Sqd) => rule(&[], &[CURRENT_STATE, NOTIFY_DRAINED]),
        (Sqd, Sqd) => match kind {
            QpType::Ud => rule(&[], &[PKEY, QKEY]),
            QpType::Uc => rule(&[], &[ADDRESS, ACCESS, PKEY]),
            QpType::Rc => rule(
                &[],
                &[
                    PORT,
                    ADDRESS,
                    TIMEOUT,
                    RETRY_COUNT,
                    RNR_RETRY,
                    MAX_RD_ATOMIC,
                    MAX_DEST_RD_ATOMIC,
                    ACCESS,
                    PKEY,
                    MIN_RNR_TIMER,
                ],
            ),
            QpType::XrcInitiator => rule(
                &[],
                &[PORT, ADDRESS, TIMEOUT, RETRY_COUNT, RNR_RETRY, MAX_RD_ATOMIC, ACCESS, PKEY],
            ),
            QpType::XrcTarget => rule(
                &[],
                &[PORT, ADDRESS, TIMEOUT, MAX_DEST_RD_ATOMIC, ACCESS, PKEY, MIN_RNR_TIMER],
            ),
        },
        (Sqe, Rts) => match kind {
            QpType::Ud => rule(&[], &[CURRENT_STATE, QKEY]),
            QpType::Uc => rule(&[], &[CURRENT_STATE, ACCESS]),
            // Reliable queue pairs are never in SQE.
            QpType::Rc | QpType::XrcInitiator | QpType::XrcTarget => None,
        },
        (Reset, Rtr | Rts | Sqd | Sqe)
        | (Init, Rts | Sqd | Sqe)
        | (Rtr, Init | Rtr | Sqd | Sqe)
        | (Rts | Sqd, Init | Rtr | Sqe)
        | (Sqe, Init | Rtr | Sqd | Sqe)
        | (Err, Init | Rtr | Rts | Sqd | Sqe) => None,
    }
}

const CURRENT_STATE: AttributeSet = AttributeSet::CURRENT_STATE;
const NOTIFY_DRAINED: AttributeSet = AttributeSet::NOTIFY_DRAINED;
const ACCESS: AttributeSet = AttributeSet::ACCESS;
const PKEY: AttributeSet = AttributeSet::PKEY;
const PORT: AttributeSet = AttributeSet::PORT;
const QKEY: AttributeSet = AttributeSet::QKEY;
const ADDRESS: AttributeSet = AttributeSet::ADDRESS;
const PATH_MTU: AttributeSet = AttributeSet::PATH_MTU;
const TIMEOUT: AttributeSet = AttributeSet::TIMEOUT;
const RETRY_COUNT: AttributeSet = AttributeSet::RETRY_COUNT;
const RNR_RETRY: AttributeSet = AttributeSet::RNR_RETRY;
const EXPECTED_PSN: AttributeSet = AttributeSet::EXPECTED_PSN;
const MAX_RD_ATOMIC: AttributeSet = AttributeSet::MAX_RD_ATOMIC;
const MIN_RNR_TIMER: AttributeSet = AttributeSet::MIN_RNR_TIMER;
const FIRST_PSN: AttributeSet = AttributeSet::FIRST_PSN;
const MAX_DEST_RD_ATOMIC: AttributeSet = AttributeSet::MAX_DEST_RD_ATOMIC;
const REMOTE: AttributeSet = AttributeSet::REMOTE;

const fn rule(required: &[AttributeSet], optional: &[AttributeSet]) -> Option<TransitionRule> {
    Some(TransitionRule { required: union(required), optional: union(optional) })
}

const fn union(mut sets: &[AttributeSet]) -> AttributeSet {
    let mut all = AttributeSet::NONE;
    while let Some((set, rest)) = sets.split_first() {
        all = all.with(*set);
        sets = rest;
    }
    all
}

/// Says whether a queue pair in `from` may be changed so: the attributes in `given`, by a caller that
/// has `believed` it to be in that state.
///
/// # Errors
///
/// [`ModifyError`] names what is missing and what is not allowed.
pub fn check(
    kind: QpType,
    from: QpState,
    to: QpState,
    given: AttributeSet,
    believed: Option<QpState>,
) -> Result<(), ModifyError> {
    if let Some(believed) = believed.filter(|&believed| believed != from) {
        return Err(ModifyError::Current { actual: from, believed });
    }
    let rule = transition(kind, from, to).ok_or(ModifyError::State { from, to })?;
    let missing = rule.required.without(given);
    let not_allowed = given.without(rule.required.with(rule.optional));
    if missing.is_empty() && not_allowed.is_empty() {
        return Ok(());
    }
    Err(ModifyError::Attributes { kind, from, to, missing, not_allowed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    /// What ibv_modify_qp(3) prints as required, typed in by hand.
    const PRINTED: [(QpType, QpState, QpState, &str); 9] = [
        (QpType::Ud, QpState::Reset, QpState::Init, "pkey_index port_num qkey"),
        (QpType::Ud, QpState::Init, QpState::Rtr, ""),
        (QpType::Ud, QpState::Rtr, QpState::Rts, "sq_psn"),
        (QpType::Uc, QpState::Reset, QpState::Init, "pkey_index port_num qp_access_flags"),
        (QpType::Uc, QpState::Init, QpState::Rtr, "ah_attr path_mtu dest_qp_num rq_psn"),
        (QpType::Uc, QpState::Rtr, QpState::Rts, "sq_psn"),
        (QpType::Rc, QpState::Reset, QpState::Init, "pkey_index port_num qp_access_flags"),
        (
            QpType::Rc,
            QpState::Init,
            QpState::Rtr,
            "ah_attr path_mtu dest_qp_num rq_psn max_dest_rd_atomic min_rnr_timer",
        ),
        (
            QpType::Rc,
            QpState::Rtr,
            QpState::Rts,
            "sq_psn max_rd_atomic retry_cnt rnr_retry timeout",
        ),
    ];

    #[test]
    fn what_is_required_is_what_the_manual_prints() {
        for (kind, from, to, printed) in PRINTED {
            let mut ours: Vec<&str> =
                transition(kind, from, to).unwrap().required.names().collect();
            let mut theirs: Vec<&str> = printed.split_whitespace().collect();
            ours.sort_unstable();
            theirs.sort_unstable();
            assert_eq!(ours, theirs, "{kind} {from} {to}");
        }
    }

    /// `x`: there is a way from the state of the line to the state of the column, for all types
    /// that can be in it; states from RESET to ERR.
    const WAYS: [&str; 7] =
        ["xx....x", "xxx...x", "x..x..x", "x..xx.x", "x..xx.x", "x..x..x", "x.....x"];

    #[test]
    fn there_are_no_other_ways_than_those_drawn() {
        for kind in QpType::ALL {
            for (from, line) in QpState::ALL.into_iter().zip(WAYS) {
                for (to, cell) in QpState::ALL.into_iter().zip(line.chars()) {
                    let only_unreliable = from == QpState::Sqe && to == QpState::Rts;
                    let expected = cell == 'x' && !(only_unreliable && kind.is_reliable());
                    let found = transition(kind, from, to).is_some();
                    assert_eq!(found, expected, "{kind}: {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn nothing_is_both_required_and_optional_and_everything_has_a_name() {
        for kind in QpType::ALL {
            for from in QpState::ALL {
                for to in QpState::ALL {
                    let Some(TransitionRule { required, optional }) = transition(kind, from, to)
                    else {
                        continue;
                    };
                    assert_eq!(required.bits() & optional.bits(), 0, "{kind}: {from} to {to}");
                    let all = required.with(optional);
                    let named = all.names().count();
                    assert_eq!(usize::try_from(all.bits().count_ones()), Ok(named));
                }
            }
        }
    }

    #[test]
    fn the_error_names_what_is_missing_and_what_is_not_allowed() {
        let given = PORT.with(QKEY);
        let error = check(QpType::Rc, QpState::Reset, QpState::Init, given, None).unwrap_err();
        let (missing, not_allowed) = (PKEY.with(ACCESS), QKEY);
        let (kind, from, to) = (QpType::Rc, QpState::Reset, QpState::Init);
        assert_eq!(error, ModifyError::Attributes { kind, from, to, missing, not_allowed });
        assert_eq!(
            error.to_string(),
            "a queue pair (RC) on its way from RESET to INIT needs qp_access_flags, pkey_index \
             and takes no qkey"
        );
    }
}
