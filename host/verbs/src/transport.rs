//! Transports as types: which operations a queue pair has is known before the program runs.
//!
//! A [`Qp`](crate::Qp) carries its transport as a marker, [`Work`](crate::Work) its operation.
//! [`Supports`] is implemented for the pairs that exist and no others; a test compares the table with
//! the engine's, entry by entry.
//!
//! Read IBTA Vol. 1 §9.2 and §10.8 before changing it.

use crate::qp::{Own, Steps};
use crate::remote::RemoteQp;
use adverb_device::QpType;
#[cfg(test)]
use adverb_device::{RequestOp, allowed};
use std::fmt;

mod sealed {
    /// Keeps the lists of transports and operations ours.
    pub trait Sealed {}
}

/// A transport: which operations a queue pair has. `enum ibv_qp_type`.
///
/// [`Pd::create_qp_of`](crate::Pd::create_qp_of) has an example.
#[doc(alias = "ibv_qp_type")]
pub trait Transport: sealed::Sealed + fmt::Debug + 'static {
    /// Its value.
    const KIND: QpType;
}

/// A transport whose queue pairs have one peer each, chosen once.
///
/// [`Pd::create_qp_of`](crate::Pd::create_qp_of) has an example.
pub trait Connected: Transport {
    /// Parameters of connecting.
    type Connect: From<RemoteQp>;

    /// What changes on the ways to INIT, RTR and RTS.
    #[doc(hidden)]
    fn steps(how: &Self::Connect, own: Own<'_>) -> Steps;
}

/// A transport whose queue pairs send requests.
///
/// [`Pd::create_qp_of`](crate::Pd::create_qp_of) has an example.
pub trait Sends: Transport {}

/// A transport whose queue pairs have receives: their own, or those of a shared queue that they were
/// made with.
///
/// [`Pd::create_qp_of`](crate::Pd::create_qp_of) has an example.
pub trait Receives: Transport {}

/// A transport that [`crate::Pd::create_qp_of`] makes queue pairs of: all that belong to a protection
/// domain.
///
/// [`Pd::create_qp_of`](crate::Pd::create_qp_of) has an example.
pub trait InDomain: Transport {}

/// Reliable connection: every message arrives once and in order, or the sender learns that it did
/// not. IBTA Vol. 1 §9.7.
///
/// The example of the [crate](crate) has two of them.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "IBV_QPT_RC")]
pub enum Rc {}

/// Unreliable connection: messages of any length to one peer; those that break on the way are
/// dropped whole, without notice. IBTA Vol. 1 §9.8.2.
///
/// [`Pd::create_qp_of`](crate::Pd::create_qp_of) has an example.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "IBV_QPT_UC")]
pub enum Uc {}

/// Unreliable datagram: messages of one packet, to and from all that know the Q_Key, and to
/// multicast groups. IBTA Vol. 1 §9.8.3.
///
/// [`Ah`](crate::Ah) has an example.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "IBV_QPT_UD")]
pub enum Ud {}

/// The sending end of an extended reliable connection: each request names a shared receive queue of
/// the other side. IBTA Vol. 1 Annex A14.
///
/// [`Xrcd`](crate::Xrcd) has an example.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "IBV_QPT_XRC_SEND")]
pub enum XrcInitiator {}

/// The receiving end of an extended reliable connection, to which nothing is posted. IBTA Vol. 1
/// Annex A14.
///
/// [`Xrcd`](crate::Xrcd) has an example.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "IBV_QPT_XRC_RECV")]
pub enum XrcTarget {}

impl InDomain for Rc {}
impl InDomain for Uc {}
impl InDomain for Ud {}
impl InDomain for XrcInitiator {}

impl Receives for Rc {}
impl Receives for Uc {}
impl Receives for Ud {}

impl Sends for Rc {}
impl Sends for Uc {}
impl Sends for Ud {}
impl Sends for XrcInitiator {}

/// Operations as types: what a [`Work`](crate::Work) does.
pub mod op {
    /// Anything: whether the queue pair has it is checked when it is posted.
    #[derive(Clone, Copy, Debug)]
    pub enum Any {}

    /// COMPARE AND SWAP or FETCH AND ADD.
    #[derive(Clone, Copy, Debug)]
    pub enum Atomic {}

    /// ATOMIC WRITE.
    #[derive(Clone, Copy, Debug)]
    pub enum AtomicWrite {}

    /// FLUSH.
    #[derive(Clone, Copy, Debug)]
    pub enum Flush {}

    /// Binding of a memory window.
    #[derive(Clone, Copy, Debug)]
    pub enum BindWindow {}

    /// Invalidation of a key of this side's.
    #[derive(Clone, Copy, Debug)]
    pub enum LocalInvalidate {}

    /// RDMA READ.
    #[derive(Clone, Copy, Debug)]
    pub enum Read {}

    /// A receive.
    #[derive(Clone, Copy, Debug)]
    pub enum Receive {}

    /// SEND to the connected peer, with or without immediate data.
    #[derive(Clone, Copy, Debug)]
    pub enum Send {}

    /// SEND that invalidates a key of the receiver's.
    #[derive(Clone, Copy, Debug)]
    pub enum SendInvalidate {}

    /// SEND to an address, with or without immediate data.
    #[derive(Clone, Copy, Debug)]
    pub enum SendTo {}

    /// RDMA WRITE, with or without immediate data.
    #[derive(Clone, Copy, Debug)]
    pub enum Write {}

    /// An operation that reaches a peer, which has shared receive queues if it is an XRC target.
    pub trait Remote: super::sealed::Sealed {}

    macro_rules! remote {
        ($($operation:ident)*) => {
            $(
                impl super::sealed::Sealed for $operation {}
                impl Remote for $operation {}
            )*
        };
    }

    remote! { Atomic AtomicWrite Flush Read Send SendInvalidate Write }

    /// Another operation, for a shared receive queue that it names.
    #[derive(Clone, Copy, Debug)]
    pub struct Xrc<O>(std::marker::PhantomData<O>);
}

/// The pairs of a transport and an operation that exist: [`crate::Qp::post`] asks for one.
///
/// | | [`Rc`] | [`Uc`] | [`Ud`] | [`XrcInitiator`] | [`XrcTarget`] |
/// |---|---|---|---|---|---|
/// | receive | yes | yes | yes | | |
/// | SEND, SEND with immediate | yes | yes | [to an address](crate::Work::send_to) | [to a queue](crate::Work::to_srq) | |
/// | SEND with invalidate | yes | | | to a queue | |
/// | WRITE, WRITE with immediate | yes | yes | | to a queue | |
/// | READ, atomics, ATOMIC WRITE, FLUSH | yes | | | to a queue | |
/// | local invalidate, bind window | yes | yes | | yes | |
///
/// Everything else does not compile:
///
/// ```compile_fail,E0277
/// # use adverb_verbs::{Context, QpConfig, RemoteSlice, Rkey, Uc, Work};
/// # let context = Context::open("soft_lo")?;
/// # let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// # let far = RemoteSlice { addr: 0, rkey: Rkey(1) };
/// let qp = pd.create_qp_of::<Uc>(&QpConfig::new(&cq))?;
/// qp.post(Work::read(pd.buffer(8)?, far))?; // An unreliable connection cannot READ.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```compile_fail,E0277
/// # use adverb_verbs::{Context, QpConfig, Ud, Work};
/// # let context = Context::open("soft_lo")?;
/// # let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// let qp = pd.create_qp_of::<Ud>(&QpConfig::new(&cq))?;
/// qp.post(Work::send(pd.buffer(8)?))?; // A datagram needs an address.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```compile_fail,E0277
/// # use adverb_verbs::{Context, QpConfig, RemoteSlice, Rkey, Ud, Work};
/// # let context = Context::open("soft_lo")?;
/// # let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// # let far = RemoteSlice { addr: 0, rkey: Rkey(1) };
/// let qp = pd.create_qp_of::<Ud>(&QpConfig::new(&cq))?;
/// qp.post(Work::write(pd.buffer(8)?, far))?; // Datagrams are SENDs.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```compile_fail,E0277
/// # use adverb_verbs::{Context, QpConfig, Work, XrcInitiator};
/// # let context = Context::open("soft_lo")?;
/// # let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// let qp = pd.create_qp_of::<XrcInitiator>(&QpConfig::new(&cq))?;
/// qp.post(Work::send(pd.buffer(8)?))?; // To which shared receive queue?
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```compile_fail,E0277
/// # use adverb_verbs::{Context, QpConfig, Work, XrcInitiator};
/// # let context = Context::open("soft_lo")?;
/// # let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// let qp = pd.create_qp_of::<XrcInitiator>(&QpConfig::new(&cq))?;
/// qp.post(Work::recv(pd.buffer(8)?))?; // It receives nothing.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```compile_fail,E0277
/// # use adverb_verbs::{Context, QpConfig, Work};
/// # let context = Context::open("soft_lo")?;
/// # let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// let qp = pd.create_qp(&QpConfig::new(&cq))?;
/// qp.post(Work::send(pd.buffer(8)?).to_srq(7))?; // Only XRC names queues.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "queue pairs of type `{Self}` do not have the operation `{O}`",
    label = "not an operation of this transport",
    note = "a datagram (`Ud`) says where it goes: `Work::send_to(memory, &ah, qpn, qkey)`; a request over XRC which queue: `.to_srq(number)`",
    note = "the table is in the documentation of `adverb_verbs::Supports`"
)]
pub trait Supports<O>: Transport {}

/// Writes the markers' values and one column of the table each, and checks the column.
macro_rules! transports {
    ($($marker:ident: $($operation:ty = [$($request:ident),*]),*;)*) => {
        $(
            impl sealed::Sealed for $marker {}

            impl Transport for $marker {
                const KIND: QpType = QpType::$marker;
            }

            impl Supports<op::Any> for $marker {}
            $(impl Supports<$operation> for $marker {})*
        )*

        /// The requests of a column.
        #[cfg(test)]
        fn written(kind: QpType) -> &'static [RequestOp] {
            match kind {
                $(QpType::$marker => &[$($(RequestOp::$request,)*)*],)*
            }
        }
    };
}

transports! {
    Rc:
        op::Receive = [],
        op::Send = [Send, SendImm],
        op::SendInvalidate = [SendInvalidate],
        op::Write = [Write, WriteImm],
        op::Read = [Read],
        op::Atomic = [CompareSwap, FetchAdd],
        op::AtomicWrite = [AtomicWrite],
        op::Flush = [Flush],
        op::LocalInvalidate = [LocalInvalidate],
        op::BindWindow = [BindWindow];
    Uc:
        op::Receive = [],
        op::Send = [Send, SendImm],
        op::Write = [Write, WriteImm],
        op::LocalInvalidate = [LocalInvalidate],
        op::BindWindow = [BindWindow];
    Ud:
        op::Receive = [],
        op::SendTo = [Send, SendImm];
    XrcInitiator:
        op::Xrc<op::Send> = [Send, SendImm],
        op::Xrc<op::SendInvalidate> = [SendInvalidate],
        op::Xrc<op::Write> = [Write, WriteImm],
        op::Xrc<op::Read> = [Read],
        op::Xrc<op::Atomic> = [CompareSwap, FetchAdd],
        op::Xrc<op::AtomicWrite> = [AtomicWrite],
        op::Xrc<op::Flush> = [Flush],
        op::LocalInvalidate = [LocalInvalidate],
        op::BindWindow = [BindWindow];
    XrcTarget: ;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_those_of_the_engine() {
        for kind in QpType::ALL {
            for operation in RequestOp::ALL {
                let here = written(kind).contains(&operation);
                assert_eq!(here, allowed(kind, operation), "{operation} over {kind}");
            }
        }
    }
}
