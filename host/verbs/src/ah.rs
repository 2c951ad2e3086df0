//! Address handles: where datagrams go.

use crate::cq::WorkCompletion;
use crate::provider::{self, Domain};
use adverb_device::{AhAttr, ConnectError, Gid, GidEntry, Grh};
use std::fmt;
use std::net::Ipv4Addr;

/// An address handle: the way to a port or to a multicast group. `struct ibv_ah`; IBTA Vol. 1
/// §11.2.2.
///
/// The way is found when the handle is made; sending looks nothing up. A handle: clones are the same
/// way, requests that are posted hold one each, and it ends with the last.
///
/// ```
/// use adverb_verbs::{AhAttr, Context, GRH_LEN, Qkey, QpConfig, Ud, Work};
///
/// let context = Context::open("soft_lo")?;
/// let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// let a = pd.create_qp_of::<Ud>(&QpConfig::new(&cq))?;
/// let b = pd.create_qp_of::<Ud>(&QpConfig::new(&cq))?;
/// let qkey = Qkey(0x1234);
/// a.activate(qkey)?;
/// b.activate(qkey)?;
///
/// b.post(Work::recv(pd.buffer(GRH_LEN + 5)?).wr_id(1))?;
/// let mut message = pd.buffer(5)?;
/// message.copy_from_slice(b"hello");
/// let ah = pd.create_ah(&AhAttr::new(b.address()?.gid))?;
/// a.post(Work::send_to(message, &ah, b.number(), qkey).wr_id(2))?;
/// for _ in 0..2 {
///     let done = cq.wait()?.ok()?;
///     if done.wc.wr_id == 1 {
///         let received = done.memory.and_then(adverb_verbs::Memory::into_buf).unwrap();
///         assert_eq!(&received[GRH_LEN..], b"hello");
///         assert_eq!(done.wc.src_qp, a.number());
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "ibv_ah")]
#[doc(alias = "ibv_destroy_ah")]
pub struct Ah {
    device: provider::Ah,
}

impl Ah {
    pub(crate) fn create(domain: &Domain, attr: &AhAttr) -> Result<Self, AhError> {
        Ok(Self { device: domain.create_ah(attr)? })
    }

    pub(crate) fn device(&self) -> &provider::Ah {
        &self.device
    }

    /// What it was made of.
    #[doc(alias = "ibv_ah_attr")]
    pub fn attr(&self) -> AhAttr {
        self.device.attr()
    }
}

/// The network header in front of a datagram, in the first bytes of its receive. `struct ibv_grh`.
///
/// [`Ah`] has an example.
#[doc(alias = "ibv_grh")]
pub type GlobalRoute = [u8; 40];

/// Where to answer a datagram to: its completion, and the first 40 bytes of its receive, say it.
pub(crate) fn answer_to(
    gids: &[GidEntry],
    wc: &WorkCompletion,
    grh: &GlobalRoute,
) -> Result<AhAttr, AhError> {
    if !wc.grh {
        return Err(AhError::NoHeader);
    }
    let Grh { src, dst, marks } = Grh::parse(grh).ok_or(AhError::NoHeader)?;
    let (gid, own) = (Gid(src), Gid(dst));
    if is_multicast(own) {
        return Err(AhError::Multicast { gid: own });
    }
    let place = gids.iter().find(|entry| entry.gid == own);
    let place = place.ok_or(AhError::NotOurs { gid: own })?;
    Ok(AhAttr::new(gid).gid_index(place.index).marked(marks))
}

/// The address is that of a multicast group.
pub(crate) fn is_multicast(gid: Gid) -> bool {
    match gid.v4() {
        Some(octets) => Ipv4Addr::from(octets).is_multicast(),
        None => gid.0.first() == Some(&0xff),
    }
}

/// Error of creating an address handle.
#[non_exhaustive]
pub enum AhError {
    /// There is no way to the address.
    Connect(ConnectError),
    /// The datagram was sent to a multicast group, so that it does not say which address of ours
    /// should answer: make the attributes yourself, with a place of the GID table.
    Multicast {
        /// The group.
        gid: Gid,
    },
    /// The completion is not of a datagram, or its header is neither that of IPv4 nor of IPv6.
    NoHeader,
    /// The datagram was sent to an address that is not in the GID table.
    NotOurs {
        /// The address.
        gid: Gid,
    },
}

impl fmt::Display for AhError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => fmt::Display::fmt(error, f),
            Self::Multicast { gid } => write!(
                f,
                "the datagram was sent to the multicast group {gid}: choose the address to answer \
                 from yourself"
            ),
            Self::NoHeader => {
                f.write_str("the completion is not of a datagram, or its network header is broken")
            }
            Self::NotOurs { gid } => {
                write!(f, "the datagram was sent to {gid}, which is not in the GID table")
            }
        }
    }
}

adverb_device::caused!(AhError: error in Self::Connect(error));

adverb_device::wraps!(AhError: Connect(ConnectError));

adverb_device::debug_as_display!(AhError);
