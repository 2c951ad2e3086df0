//! Where packets go: addresses as C has them, and as the device does.

use crate::errno::{Answer, INVALID};
use crate::query::PORT;
use adverb_device::{AhAttr, Gid};
use adverb_ibv::layout;

/// Where packets go, as the device wants it. Every address is global.
pub(crate) fn way(attr: &layout::AhAttr) -> Answer<AhAttr> {
    if attr.is_global == 0 || attr.port_num != PORT {
        return Err(INVALID);
    }
    let grh = &attr.grh;
    Ok(AhAttr::new(Gid(grh.dgid.0))
        .gid_index(grh.sgid_index)
        .flow_label(grh.flow_label & 0x000f_ffff)
        .traffic_class(grh.traffic_class)
        .hop_limit(if grh.hop_limit <= 1 { 0 } else { grh.hop_limit }))
}

pub(crate) fn way_for_c(attr: &AhAttr) -> layout::AhAttr {
    layout::AhAttr {
        grh: layout::GlobalRoute {
            dgid: layout::Gid(attr.gid.0),
            flow_label: attr.flow_label,
            sgid_index: attr.gid_index.unwrap_or(0),
            hop_limit: attr.hop_limit,
            traffic_class: attr.traffic_class,
        },
        is_global: 1,
        port_num: PORT,
        ..layout::AhAttr::default()
    }
}

/// The group of a multicast GID: one that stands for a group of IPv4, `ff0e::ffff:a.b.c.d`, is that group.
pub(crate) fn group(gid: [u8; 16]) -> Gid {
    match gid {
        [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Gid::from_v4([a, b, c, d]),
        other => Gid(other),
    }
}
