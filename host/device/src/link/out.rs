//! Outputs: what takes the packets that the transport emits, a burst or a batch of records.

use crate::link::Links;
use crate::link::address_vector::AddressVector;
use crate::link::peer_cache::Addresses;
use crate::link::shm::SEGMENT_BYTES;
use crate::link::shm::link::{ShmLink, TxBatch};
use crate::link::udp::burst::{Burst, Route, with_burst};
use crate::memory::local::{Local, Source};
use crate::memory::region::Regions;
use adverb_engine::AccessError;
use adverb_wire::Headers;
use std::sync::Arc;

/// Output of a call: takes the packets that it emits.
#[derive(Debug)]
pub(crate) enum Out<'a, 'b> {
    /// A burst of packets.
    Packets(&'a mut Burst<'b>),
    /// Records of a link.
    Records(&'a mut TxBatch<'b>),
}

/// Lends a burst that goes this way to `run`, and sends it; says how many packets there were. `None`: this
/// thread has no memory for one any more.
pub(crate) fn on_udp_link<R>(
    address_vector: &AddressVector,
    budget: usize,
    links: &Links,
    run: impl FnOnce(Out<'_, '_>) -> R,
) -> Option<(R, u64)> {
    let route = Route::new(address_vector, links.regions(), &links.counters);
    with_burst(route, budget, |burst| run(Out::Packets(burst)))
}

/// Lends records to `run`, and sends them; says how many there were.
#[inline]
pub(crate) fn on_shm_link<R>(
    mut tx_batch: TxBatch<'_>,
    run: impl FnOnce(Out<'_, '_>) -> R,
) -> (R, u64) {
    let result = run(Out::Records(&mut tx_batch));
    (result, tx_batch.send())
}

impl<'b> Out<'_, 'b> {
    /// One more packet may be emitted.
    #[inline]
    pub(crate) fn room(&mut self) -> bool {
        match self {
            Self::Packets(burst) => burst.room(),
            Self::Records(tx_batch) => tx_batch.room(),
        }
    }

    /// An acknowledgement costs less than a packet of its own: it leaves with others, or is a record.
    #[inline]
    pub(crate) fn takes_along(&self) -> bool {
        match self {
            Self::Packets(burst) => burst.packets() > 1,
            Self::Records(_) => true,
        }
    }

    /// The peer's memory, if the packets go to where it is mapped.
    #[inline]
    pub(crate) fn shm_link(&self) -> Option<&'b ShmLink> {
        match self {
            Self::Packets(_) => None,
            Self::Records(tx_batch) => Some(tx_batch.shm_link()),
        }
    }

    /// Takes a packet with these bytes. A datagram goes by a record if it is
    /// for a neighbour whose addresses are `near`, and to the neighbours of a multicast group by the
    /// links of `fan_out`.
    #[inline(always)]
    pub(crate) fn emit(
        &mut self,
        headers: &Headers,
        source: &Source<'_>,
        near: Option<&Addresses>,
        fan_out: &[Arc<ShmLink>],
        regions: &Regions,
    ) -> Result<(), AccessError> {
        match (self, near, source) {
            (Self::Records(tx_batch), _, Source::Local { local: Local::Gather(sges), len, .. })
                if *len > SEGMENT_BYTES =>
            {
                tx_batch.emit_by_reference(headers, sges, *len, regions)
            }
            (Self::Records(tx_batch), None, _) => tx_batch.emit(headers, source, regions),
            (Self::Records(tx_batch), Some(near), _) => {
                tx_batch.emit_to(*near, headers, source, regions)
            }
            (Self::Packets(burst), near, _) => {
                if let Some(near) = near
                    && !fan_out.is_empty()
                {
                    // Before the packet: a process that gets a copy of it has had the record then.
                    burst.let_go(); // The lock of a link may have a holder that waits for pins.
                    fan_out_to(fan_out, *near, headers, source, regions)?;
                }
                burst.emit(headers, source)
            }
        }
    }
}

/// Writes the record of a datagram into each of these links.
#[inline(never)]
fn fan_out_to(
    shm_links: &[Arc<ShmLink>],
    near: Addresses,
    headers: &Headers,
    source: &Source<'_>,
    regions: &Regions,
) -> Result<(), AccessError> {
    for shm_link in shm_links {
        let mut tx_batch = shm_link.tx_batch(1);
        tx_batch.emit_to(near, headers, source, regions)?;
        tx_batch.send();
    }
    Ok(())
}
