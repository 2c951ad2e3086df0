//! Captures: reading classic pcap files, and writing pcapng.
//!
//! Reading is for test data, so it knows the classic format and two link types. Writing is for
//! people: the device can show its traffic, which no interface ever sees as a whole. Both work on
//! bytes in memory and neither trusts them.

mod classic;
mod ng;

pub use self::classic::{Error, Frame, Reader};
pub use self::ng::{enhanced_packet, interface_description, section_header};
