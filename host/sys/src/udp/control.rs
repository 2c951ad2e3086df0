//! Control messages: what the kernel is told of one burst, and tells of one that has come.
//!
//! Every value here is four bytes or fewer, so that every message takes the same room and several
//! of them are an array.
//!
//! # Safety
//!
//! A [`Message`] is integers: whatever the kernel writes there is one. [`crate::udp`] tells it the
//! length of an array of them.

use std::ffi::c_int;
use std::mem::offset_of;

use super::Marks;

/// A control message, or room for one.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Message {
    header: libc::cmsghdr,
    value: [u8; VALUE_BYTES],
    padding: [u8; size_of::<usize>() - VALUE_BYTES],
}

impl Message {
    /// Room for the kernel to write one.
    pub(super) const EMPTY: Self = Self {
        header: libc::cmsghdr { cmsg_len: 0, cmsg_level: 0, cmsg_type: 0 },
        value: [0; VALUE_BYTES],
        padding: [0; size_of::<usize>() - VALUE_BYTES],
    };

    /// Tells the kernel to cut what is sent into datagrams of `size` bytes.
    ///
    /// It wants 16 bits when we send and gives 32 when we receive, at the same place.
    #[inline]
    pub(super) const fn to_cut(size: u16) -> Self {
        let [low, high] = size.to_ne_bytes();
        Self {
            header: libc::cmsghdr {
                cmsg_len: HEADER_BYTES + size_of::<u16>(),
                cmsg_level: libc::SOL_UDP,
                cmsg_type: libc::UDP_SEGMENT,
            },
            value: [low, high, 0, 0],
            ..Self::EMPTY
        }
    }

    const fn new(cmsg_level: c_int, cmsg_type: c_int, value: [u8; VALUE_BYTES]) -> Self {
        let cmsg_len = HEADER_BYTES + VALUE_BYTES;
        Self { header: libc::cmsghdr { cmsg_len, cmsg_level, cmsg_type }, value, ..Self::EMPTY }
    }

    /// The size of segments that the kernel has reported, if that is what it says.
    #[inline]
    pub(super) fn segment(&self) -> Option<usize> {
        let Self { header, value, padding: _ } = self;
        let is_size = header.cmsg_level == libc::SOL_UDP
            && header.cmsg_type == libc::UDP_GRO
            && header.cmsg_len >= HEADER_BYTES + size_of::<c_int>();
        let size = usize::try_from(c_int::from_ne_bytes(*value)).ok()?;
        (is_size && size > 0).then_some(size)
    }

    /// Adds what the kernel has reported: the size of segments, or something of the marks.
    #[inline]
    fn read(&self, segment: &mut Option<usize>, marks: &mut Marks) {
        let Self { header, value, padding: _ } = self;
        if header.cmsg_len <= HEADER_BYTES {
            return;
        }
        match (header.cmsg_level, header.cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_TOS) => [marks.traffic_class, ..] = *value, // A single byte.
            (libc::SOL_UDP, libc::UDP_GRO) => *segment = segment.or_else(|| self.segment()),
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                marks.hop_limit = u8::try_from(c_int::from_ne_bytes(*value)).unwrap_or(0);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO) => {
                let info = u32::from_be_bytes(*value);
                let [class, ..] = (info << 4).to_be_bytes();
                marks.traffic_class = class;
                marks.flow_label = info & Marks::FLOW_LABEL_MAX;
            }
            _ => {}
        }
    }
}

/// Control messages of a burst whose packets are to be marked.
pub(super) struct Orders {
    messages: [Message; ORDERS_MAX],
    count: usize,
}

impl Orders {
    /// To mark packets of IPv4, or of IPv6, and to cut them into segments.
    pub(super) fn new(is_v6: bool, marks: Marks, segment: Option<u16>) -> Self {
        let Marks { traffic_class, hop_limit, flow_label } = marks;
        let (level, class_name, limit_name) = match is_v6 {
            false => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
            true => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
        };
        let number = |name, value| Message::new(level, name, c_int::from(value).to_ne_bytes());
        let label = (flow_label & Marks::FLOW_LABEL_MAX).to_be_bytes();
        let all = [
            segment.map(Message::to_cut),
            (traffic_class != 0).then(|| number(class_name, traffic_class)),
            (hop_limit != 0).then(|| number(limit_name, hop_limit)),
            (is_v6 && flow_label != 0).then(|| Message::new(level, libc::IPV6_FLOWINFO, label)),
        ];
        let mut orders = Self { messages: [Message::EMPTY; ORDERS_MAX], count: 0 };
        for (place, message) in orders.messages.iter_mut().zip(all.into_iter().flatten()) {
            *place = message;
            orders.count += 1;
        }
        orders
    }

    /// Where they are, and how many bytes they take.
    pub(super) fn as_raw(&self) -> (*const Message, usize) {
        (self.messages.as_ptr(), self.count * size_of::<Message>())
    }
}

/// Room for what the kernel tells of a burst whose packets show how they are marked.
pub(super) type Tidings = [Message; TIDINGS_MAX];

/// Nothing told yet.
pub(super) const NO_TIDINGS: Tidings = [Message::EMPTY; TIDINGS_MAX];

/// What the kernel has told: the size of segments, and how they are marked.
#[inline]
pub(super) fn read(tidings: &[Message]) -> (Option<usize>, Marks) {
    let (mut segment, mut marks) = (None, Marks::default());
    for message in tidings {
        message.read(&mut segment, &mut marks);
    }
    (segment, marks)
}

/// Segment size, traffic class, hop limit, flow label.
const ORDERS_MAX: usize = 4;
/// Segment size and, of IPv4, two messages; of IPv6, two that say three things.
const TIDINGS_MAX: usize = 3;
/// Bytes of a value, which all have.
const VALUE_BYTES: usize = 4;
const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();

// The value follows the header without a gap, and the whole is as long as the kernel thinks.
const _: () = {
    assert!(offset_of!(Message, value) == size_of::<libc::cmsghdr>());
    assert!(size_of::<libc::cmsghdr>().is_multiple_of(align_of::<libc::cmsghdr>()));
    assert!(size_of::<Message>() == HEADER_BYTES + size_of::<usize>());
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_train_that_shows_its_marks_tells_both_in_either_order() {
        let number = |level, name, value: c_int| Message::new(level, name, value.to_ne_bytes());
        let segment = number(libc::SOL_UDP, libc::UDP_GRO, 1000);
        let limit = number(libc::IPPROTO_IP, libc::IP_TTL, 7);
        let mut class = Message::new(libc::IPPROTO_IP, libc::IP_TOS, [0x2e, 0, 0, 0]);
        class.header.cmsg_len = HEADER_BYTES + 1;
        let marks = Marks { traffic_class: 0x2e, hop_limit: 7, flow_label: 0 };
        assert_eq!(read(&[segment, class, limit]), (Some(1000), marks));
        assert_eq!(read(&[class, limit, segment]), (Some(1000), marks));
        let info = Message::new(libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO, [0x02, 0xe1, 0x23, 0x45]);
        let limit = number(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, 7);
        let marks = Marks { flow_label: 0x1_2345, ..marks };
        assert_eq!(read(&[segment, limit, info]), (Some(1000), marks));
    }

    #[test]
    fn what_has_no_value_or_no_size_tells_nothing() {
        let mut short = Message::new(libc::IPPROTO_IP, libc::IP_TTL, [7, 0, 0, 0]);
        short.header.cmsg_len = HEADER_BYTES;
        let none = Message::new(libc::SOL_UDP, libc::UDP_GRO, [0; VALUE_BYTES]);
        let strange = Message::new(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, [9, 0, 0, 0]);
        assert_eq!(read(&[short, none, strange, Message::EMPTY]), (None, Marks::default()));
    }
}
