//! Progress of a device, as the objects that programs hold see it.

use crate::link::Links;
use crate::registry::DomainName;
use adverb_wire::Qpn;
use std::fmt;

/// Progress of a device: implemented by its port.
pub(crate) trait Progress: fmt::Debug + Send + Sync {
    /// What queue pairs share of the device.
    fn links(&self) -> &Links;

    /// Takes a step on behalf of the program. True if something was there to do.
    fn drive(&self) -> bool;

    /// Takes a step that is not the program's, which leaves nothing for the program's next call.
    fn help(&self) -> bool;

    /// An acknowledgement waits for the program's next call, or a step is being taken and may defer one.
    fn has_deferred(&self) -> bool;

    /// A neighbour has sent something that was not looked at. Waits for the end of a step that looks right now.
    fn has_record_left(&self) -> bool;

    /// The number of a shared receive queue is free again.
    fn give_number_back(&self, number: Qpn);

    /// The last queue of this XRC domain has gone from this process: proxies let go of those that they know.
    fn forget_queues_in(&self, domain: DomainName);
}
