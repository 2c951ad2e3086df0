//! What the connection manager knows, as the kernel's structures have it, and back.

use crate::errno::{Answer, Errno, INVALID};
use crate::query::PORT;
use adverb_device::{AhAttr, Gid, QpState};
use adverb_ibv::rdma_cm::{self, AddressAnswer, GidAnswer, PathRecord, QpAttr, RouteAnswer};
use adverb_rdmacm::{Id, Param, Parameters, Private, Space, Transport};
use std::net::{IpAddr, SocketAddr};

/// The kind of connection that a port space and a type of queue pair stand for. Only one space has several types.
pub(super) fn kind(port_space: u16, qp_type: u8) -> Answer<(Space, Transport)> {
    let space = Space::from_number(port_space).ok_or(INVALID)?;
    let transport = match (space, qp_type) {
        (Space::Tcp, _) | (Space::Ib, 2) => Transport::Rc,
        (Space::Udp | Space::Ipoib, _) | (Space::Ib, 4) => Transport::Ud,
        (Space::Ib, 3) => Transport::Uc,
        (Space::Ib, 9 | 10) => Transport::Xrc,
        (Space::Ib, _) => return Err(INVALID),
    };
    Ok((space, transport))
}

/// What a program offers with a connection.
pub(super) fn parameters(given: &rdma_cm::Parameters) -> Answer<Parameters> {
    Ok(Parameters {
        qpn: given.qp_num,
        qkey: (given.qkey != 0).then_some(given.qkey),
        private: Private::new(&given.private).ok_or(INVALID)?,
        srq: given.srq,
        responder_resources: given.responder_resources,
        initiator_depth: given.initiator_depth,
        flow_control: given.flow_control,
        retry_count: given.retry_count,
        rnr_retry_count: given.rnr_retry_count,
    })
}

/// What comes with an event.
pub(super) fn param(param: &Param) -> rdma_cm::Param {
    match param {
        Param::None => rdma_cm::Param::None,
        Param::Argument(argument) => rdma_cm::Param::Argument(*argument),
        Param::Connection(offered) => rdma_cm::Param::Connection(rdma_cm::Parameters {
            qp_num: offered.qpn,
            qkey: offered.qkey.unwrap_or(0),
            private: offered.private.as_slice().to_vec(),
            srq: offered.srq,
            responder_resources: offered.responder_resources,
            initiator_depth: offered.initiator_depth,
            flow_control: offered.flow_control,
            retry_count: offered.retry_count,
            rnr_retry_count: offered.rnr_retry_count,
        }),
        Param::Datagram(datagram) => rdma_cm::Param::Datagram {
            qp_num: datagram.qpn,
            qkey: datagram.qkey,
            ah: way(&datagram.ah),
            private: datagram.private.as_slice().to_vec(),
        },
    }
}

fn way(ah: &AhAttr) -> rdma_cm::AhAttr {
    rdma_cm::AhAttr {
        dgid: ah.gid.0,
        flow_label: ah.flow_label,
        sgid_index: ah.gid_index.unwrap_or(0),
        hop_limit: if ah.hop_limit == 0 { HOP_LIMIT } else { ah.hop_limit },
        traffic_class: ah.traffic_class,
        sl: 0,
        port_num: PORT,
    }
}

/// The attributes that move a queue pair to a state.
pub(super) fn qp_attr(id: &Id, state: u32) -> Answer<Vec<u8>> {
    let to = match state {
        1 => QpState::Init,
        2 => QpState::Rtr,
        3 => QpState::Rts,
        _ => return Err(INVALID),
    };
    let found = id.qp_attributes(to)?;
    let given = found.attributes;
    let attr = QpAttr {
        mask: given.given().bits() | STATE,
        state,
        path_mtu: given.path_mtu.map_or(0, |mtu| mtu.code().into()),
        qkey: given.qkey.map_or(0, |key| key.0),
        rq_psn: given.expected_psn.map_or(0, |psn| psn.get()),
        sq_psn: given.first_psn.map_or(0, |psn| psn.get()),
        dest_qp_num: given.remote.map_or(0, |qpn| qpn.get()),
        access_flags: given.access.map_or(0, |access| access.bits()),
        ah: found.ah.as_ref().map(way).unwrap_or_default(),
        pkey_index: given.partition.map_or(0, |partition| partition.index),
        max_rd_atomic: given.max_rd_atomic.unwrap_or(0),
        max_dest_rd_atomic: given.max_dest_rd_atomic.unwrap_or(0),
        min_rnr_timer: given.min_rnr_timer.map_or(0, |timer| timer.code()),
        port_num: PORT,
        timeout: given.timeout.map_or(0, |timeout| timeout.exponent()),
        retry_cnt: given.retry_count.map_or(0, |count| count.get()),
        rnr_retry: given.rnr_retry.map_or(0, |count| count.get()),
    };
    Ok(attr.emit())
}

/// Sets an option of an identifier.
pub(super) fn set_option(id: &Id, level: u32, name: u32, value: &[u8]) -> Answer<()> {
    let byte = || match value {
        [byte] => Ok(*byte),
        _ => Err(INVALID),
    };
    let flag = || {
        <[u8; 4]>::try_from(value).map(|word| i32::from_ne_bytes(word) != 0).map_err(|_| INVALID)
    };
    match (level, name) {
        (OPTION_ID, 0) => id.set_tos(byte()?)?,
        (OPTION_ID, 1) => id.set_reuse(flag()?)?,
        (OPTION_ID, 2) => id.set_af_only(flag()?)?,
        (OPTION_ID, 3) => id.set_ack_timeout(byte()?)?,
        (OPTION_IB, 1) if !value.is_empty() && value.len().is_multiple_of(PathRecord::DATA_LEN) => {
            id.set_path()?;
        }
        (OPTION_IB, 1) => return Err(INVALID),
        _ => return Err(Errno(libc::ENOSYS)),
    }
    Ok(())
}

/// The device's identifier as `ibv_get_device_guid` gives it, and its port; zeros if the identifier has none yet.
fn device(id: &Id) -> (u64, u8) {
    id.device().map_or((0, 0), |device| (device.guid.to_be(), device.port))
}

/// The path, if it is known.
pub(super) fn path(id: &Id) -> Option<PathRecord> {
    let path = id.path()?;
    Some(PathRecord {
        dgid: path.peer.0,
        sgid: path.local.0,
        flow_label: path.flow_label,
        mtu: path.mtu.code(),
        pkey: path.pkey,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        rate: RATE_40_GBPS,
        packet_life_time: path.ack_timeout,
    })
}

pub(super) fn route(id: &Id) -> RouteAnswer {
    let (node_guid, port_num) = device(id);
    let (local, peer) = (id.local(), id.peer());
    let path = path(id);
    let unresolved = || PathRecord {
        sgid: gid_of(Some(local)),
        dgid: gid_of(peer),
        pkey: PKEY,
        ..PathRecord::default()
    };
    RouteAnswer {
        node_guid,
        port_num,
        path: path.unwrap_or_else(unresolved),
        is_resolved: path.is_some(),
        source: Some(local),
        destination: peer,
    }
}

pub(super) fn address(id: &Id) -> AddressAnswer {
    let (node_guid, port_num) = device(id);
    AddressAnswer {
        node_guid,
        port_num,
        pkey: PKEY,
        source: Some(id.local()),
        destination: id.peer(),
    }
}

pub(super) fn gid(id: &Id) -> GidAnswer {
    let (node_guid, port_num) = device(id);
    let service = |address: SocketAddr| {
        u64::from(id.space().number()) << u16::BITS | u64::from(address.port())
    };
    let (local, peer) = (id.local(), id.peer());
    GidAnswer {
        node_guid,
        port_num,
        pkey: PKEY,
        source: (gid_of(Some(local)), service(local)),
        destination: (gid_of(peer), peer.map_or(0, service)),
    }
}

/// The GID of an address; zeros if there is none.
fn gid_of(address: Option<SocketAddr>) -> [u8; 16] {
    match address.map(|address| address.ip()) {
        None => [0; 16],
        Some(ip) if ip.is_unspecified() => [0; 16],
        Some(IpAddr::V4(ip)) => Gid::from_v4(ip.octets()).0,
        Some(IpAddr::V6(ip)) => ip.octets(),
    }
}

/// `IBV_QP_STATE`.
const STATE: u32 = 1;

/// The partition that every port is in.
const PKEY: u16 = 0xffff;

/// How many routers packets pass if nothing else is said.
const HOP_LIMIT: u8 = 64;

/// `IBV_RATE_40_GBPS`, which ports of software devices have.
const RATE_40_GBPS: u8 = 7;

const OPTION_ID: u32 = 0;
const OPTION_IB: u32 = 1;
