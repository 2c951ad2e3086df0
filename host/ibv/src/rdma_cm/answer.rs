//! Answers of the device: values to the bytes of the kernel's structures.

use super::Parameters;
use super::reader::{IN_LEN, IN6_LEN, STORAGE_LEN};
use std::net::SocketAddr;

/// The answer of [`Command::GetEvent`](super::Command::GetEvent).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// What the caller calls the identifier, or the multicast group.
    pub uid: u64,
    /// The identifier; of a request for a connection: the new one.
    pub id: u32,
    /// What has happened.
    pub kind: EventKind,
    /// 0, a negative error number, or the reason of a rejection.
    pub status: i32,
    /// What comes with it.
    pub param: Param,
}

/// `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EventKind(pub u32);

/// What comes with an event.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Param {
    /// Nothing.
    None,
    /// A number of the caller's own.
    Argument(u64),
    /// What the peer offers with a connection.
    Connection(Parameters),
    /// How a queue pair of datagrams is reached.
    Datagram {
        /// The queue pair.
        qp_num: u32,
        /// Its Q_Key.
        qkey: u32,
        /// The way to it.
        ah: AhAttr,
        /// What the peer's user says: at most 255 bytes.
        private: Vec<u8>,
    },
}

/// `struct ib_uverbs_ah_attr`, as far as it means something with RoCE.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "the fields are those of `struct ibv_ah_attr`")]
pub struct AhAttr {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub sl: u8,
    pub port_num: u8,
}

/// `struct ib_uverbs_qp_attr`, as far as connection management sets it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "the fields are those of `struct ibv_qp_attr`")]
pub struct QpAttr {
    /// Which fields are set: bits of `enum ibv_qp_attr_mask`.
    pub mask: u32,
    pub state: u32,
    pub path_mtu: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub access_flags: u32,
    pub ah: AhAttr,
    pub pkey_index: u16,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
}

/// A path, as the subnet administrator of InfiniBand would describe it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PathRecord {
    /// GID of the peer.
    pub dgid: [u8; 16],
    /// GID of this side.
    pub sgid: [u8; 16],
    /// Flow label of packets.
    pub flow_label: u32,
    /// `enum ibv_mtu`.
    pub mtu: u8,
    /// Partition.
    pub pkey: u16,
    /// Hop limit of packets.
    pub hop_limit: u8,
    /// Traffic class of packets.
    pub traffic_class: u8,
    /// `enum ibv_rate`.
    pub rate: u8,
    /// How long packets may take: 4.096 us times 2 to the power of this.
    pub packet_life_time: u8,
}

/// The answer of [`Query::Route`](super::Query::Route).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RouteAnswer {
    /// GUID of the device, as `ibv_get_device_guid` has it; 0: there is none yet.
    pub node_guid: u64,
    /// Its port.
    pub port_num: u8,
    /// What leads from here to the peer. Without a route only its GIDs and its partition mean something.
    pub path: PathRecord,
    /// The route is known.
    pub is_resolved: bool,
    /// The address of this side.
    pub source: Option<SocketAddr>,
    /// The address of the peer.
    pub destination: Option<SocketAddr>,
}

/// The answer of [`Query::Address`](super::Query::Address).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AddressAnswer {
    /// GUID of the device, as `ibv_get_device_guid` has it; 0: there is none yet.
    pub node_guid: u64,
    /// Its port.
    pub port_num: u8,
    /// Partition.
    pub pkey: u16,
    /// The address of this side.
    pub source: Option<SocketAddr>,
    /// The address of the peer.
    pub destination: Option<SocketAddr>,
}

/// The answer of [`Query::Gid`](super::Query::Gid).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GidAnswer {
    /// GUID of the device, as `ibv_get_device_guid` has it; 0: there is none yet.
    pub node_guid: u64,
    /// Its port.
    pub port_num: u8,
    /// Partition.
    pub pkey: u16,
    /// GID of this side, and the service.
    pub source: ([u8; 16], u64),
    /// GID of the peer, and the service.
    pub destination: ([u8; 16], u64),
}

/// The answer of commands that make an identifier.
pub fn id_answer(id: u32) -> Vec<u8> {
    id.to_ne_bytes().to_vec()
}

/// The answer of commands that end or move an identifier: how many events of it have been reported.
pub fn reported_answer(events: u32) -> Vec<u8> {
    events.to_ne_bytes().to_vec()
}

/// The answer of [`Query::Path`](super::Query::Path), as long as there is room for a path.
pub fn path_answer(path: Option<&PathRecord>, room: usize) -> Vec<u8> {
    let path = path.filter(|_| room >= PATHS_HEAD + PathRecord::DATA_LEN);
    let mut out = Writer::default();
    out.u32(u32::from(path.is_some()));
    out.zeros(4);
    if let Some(path) = path {
        path.emit_data(&mut out);
    }
    out.0
}

impl Event {
    /// The bytes of `struct rdma_ucm_event_resp`.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.uid);
        out.u32(self.id);
        out.u32(self.kind.0);
        out.bytes(&self.status.to_ne_bytes());
        let end = out.0.len() + PARAM_LEN;
        match &self.param {
            Param::None => {}
            Param::Argument(argument) => out.u64(*argument),
            Param::Connection(parameters) => parameters.emit(&mut out),
            Param::Datagram { qp_num, qkey, ah, private } => {
                out.u32(*qp_num);
                out.u32(*qkey);
                ah.emit(&mut out);
                out.private(private);
                out.zeros(7);
            }
        }
        out.0.resize(end, 0);
        out.zeros(EVENT_ADDED);
        out.0
    }
}

impl Parameters {
    fn emit(&self, out: &mut Writer) {
        out.u32(self.qp_num);
        out.u32(self.qkey);
        out.private(&self.private);
        out.bytes(&[
            u8::from(self.srq),
            self.responder_resources,
            self.initiator_depth,
            u8::from(self.flow_control),
            self.retry_count,
            self.rnr_retry_count,
            1,
        ]);
    }
}

impl AhAttr {
    fn emit(&self, out: &mut Writer) {
        out.bytes(&self.dgid);
        out.u32(self.flow_label);
        out.bytes(&[self.sgid_index, self.hop_limit, self.traffic_class, 0]);
        out.u16(0);
        let (src_path_bits, static_rate, is_global) = (0, 0, 1);
        out.bytes(&[self.sl, src_path_bits, static_rate, is_global, self.port_num, 0]);
    }
}

impl QpAttr {
    /// Length of `struct ib_uverbs_qp_attr` in bytes.
    pub const LEN: usize = 144;

    /// The bytes of the structure.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u32(self.mask);
        out.u32(self.state);
        out.u32(self.state);
        out.u32(self.path_mtu);
        out.u32(0); // State of migration.
        out.u32(self.qkey);
        out.u32(self.rq_psn);
        out.u32(self.sq_psn);
        out.u32(self.dest_qp_num);
        out.u32(self.access_flags);
        self.ah.emit(&mut out);
        out.zeros(AH_LEN); // The alternate path.
        out.zeros(5 * 4); // Capabilities.
        out.u16(self.pkey_index);
        out.u16(0);
        out.bytes(&[0, 0, self.max_rd_atomic, self.max_dest_rd_atomic]);
        out.bytes(&[self.min_rnr_timer, self.port_num, self.timeout, self.retry_cnt]);
        out.bytes(&[self.rnr_retry, 0, 0]);
        out.zeros(5);
        out.0
    }
}

impl PathRecord {
    /// Length of `struct ib_path_rec_data` in bytes.
    pub const DATA_LEN: usize = 72;

    /// `struct ib_user_path_rec`.
    fn emit_user(&self, out: &mut Writer) {
        out.bytes(&self.dgid);
        out.bytes(&self.sgid);
        out.zeros(4); // LIDs.
        out.u32(0); // Raw traffic.
        out.bytes(&self.flow_label.to_be_bytes());
        out.u32(u32::from(self.mtu != 0)); // Reversible.
        out.u32(self.mtu.into());
        out.bytes(&self.pkey.to_be_bytes());
        let (paths, sl) = (1, 0);
        out.bytes(&[self.hop_limit, self.traffic_class, paths, sl, EXACTLY, EXACTLY]);
        out.bytes(&[self.rate, EXACTLY, self.packet_life_time, 0]);
    }

    /// `struct ib_path_rec_data`: flags and a PathRecord of the subnet administrator, IBTA Vol. 1 §15.2.5.16.
    fn emit_data(&self, out: &mut Writer) {
        const FLOW_LABEL_MAX: u32 = 0xf_ffff;
        let selected = |value: u8| (EXACTLY << 6) | (value & 0x3f);
        out.u32(PATH_FLAGS);
        out.u32(0);
        out.zeros(8); // Service.
        out.bytes(&self.dgid);
        out.bytes(&self.sgid);
        out.zeros(4); // LIDs.
        let flow = (self.flow_label & FLOW_LABEL_MAX) << 8 | u32::from(self.hop_limit);
        out.bytes(&flow.to_be_bytes());
        out.bytes(&[self.traffic_class, REVERSIBLE_ONE]);
        out.bytes(&self.pkey.to_be_bytes());
        out.u16(0); // Service level.
        out.bytes(&[selected(self.mtu), selected(self.rate), selected(self.packet_life_time), 0]);
        out.zeros(6);
    }
}

impl RouteAnswer {
    /// Length of `struct rdma_ucm_query_route_resp` in bytes.
    pub const LEN: usize = 208;

    /// The bytes of the structure.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.node_guid);
        self.path.emit_user(&mut out);
        out.zeros(64); // The alternate path.
        out.address(self.source, IN6_LEN);
        out.address(self.destination, IN6_LEN);
        out.u32(u32::from(self.is_resolved));
        out.bytes(&[self.port_num, 0, 0, 0]);
        out.u32(NO_INDEX);
        out.u32(0);
        out.0
    }
}

impl AddressAnswer {
    /// Length of `struct rdma_ucm_query_addr_resp` in bytes.
    pub const LEN: usize = 280;

    /// The bytes of the structure.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.node_guid);
        out.bytes(&[self.port_num, 0]);
        out.u16(self.pkey);
        out.u16(len_of(self.source));
        out.u16(len_of(self.destination));
        out.address(self.source, STORAGE_LEN);
        out.address(self.destination, STORAGE_LEN);
        out.u32(NO_INDEX);
        out.u32(0);
        out.0
    }
}

impl GidAnswer {
    /// Length of `struct rdma_ucm_query_addr_resp` in bytes.
    pub const LEN: usize = AddressAnswer::LEN;

    /// The bytes of the structure.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.node_guid);
        out.bytes(&[self.port_num, 0]);
        out.u16(self.pkey);
        out.u16(SOCKADDR_IB_LEN);
        out.u16(SOCKADDR_IB_LEN);
        for (gid, service) in [self.source, self.destination] {
            let end = out.0.len() + STORAGE_LEN;
            out.u16(AF_IB);
            out.bytes(&self.pkey.to_be_bytes());
            out.u32(0);
            out.bytes(&gid);
            out.bytes(&service.to_be_bytes());
            out.bytes(&u64::MAX.to_be_bytes());
            out.0.resize(end, 0);
        }
        out.u32(NO_INDEX);
        out.u32(0);
        out.0
    }
}

/// Bytes of a structure, in the order of the machine.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn zeros(&mut self, len: usize) {
        self.0.resize(self.0.len() + len, 0);
    }

    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_ne_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_ne_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_ne_bytes());
    }

    /// Private data in its field, and its length behind it. What is too long is cut.
    fn private(&mut self, private: &[u8]) {
        let end = self.0.len() + super::PRIVATE_MAX;
        let len = u8::try_from(private.len()).unwrap_or(u8::MAX);
        self.bytes(private.get(..usize::from(len)).unwrap_or_default());
        self.0.resize(end, 0);
        self.bytes(&[len]);
    }

    /// An address in a field of `room` bytes; zeros if there is none.
    fn address(&mut self, address: Option<SocketAddr>, room: usize) {
        let end = self.0.len() + room;
        match address {
            None => {}
            Some(SocketAddr::V4(address)) => {
                self.u16(AF_INET);
                self.bytes(&address.port().to_be_bytes());
                self.bytes(&address.ip().octets());
            }
            Some(SocketAddr::V6(address)) => {
                self.u16(AF_INET6);
                self.bytes(&address.port().to_be_bytes());
                self.bytes(&address.flowinfo().to_be_bytes());
                self.bytes(&address.ip().octets());
                self.u32(address.scope_id());
            }
        }
        self.0.resize(end, 0);
    }
}

/// Length of the structure of an address.
fn len_of(address: Option<SocketAddr>) -> u16 {
    let len = match address {
        None => 0,
        Some(SocketAddr::V4(_)) => IN_LEN,
        Some(SocketAddr::V6(_)) => IN6_LEN,
    };
    u16::try_from(len).unwrap_or_default()
}

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// The family of GIDs.
const AF_IB: u16 = 27;

/// Length of `struct sockaddr_ib`.
const SOCKADDR_IB_LEN: u16 = 48;

/// A value that is neither a least nor a largest one.
const EXACTLY: u8 = 2;

/// One path, which can be used both ways.
const REVERSIBLE_ONE: u8 = 0x81;

/// The path is for management and data, the first one, in both directions.
const PATH_FLAGS: u32 = 1 | 2 | 8 | 32;

/// librdmacm is to look for the device by its GUID.
const NO_INDEX: u32 = u32::MAX;

/// Length of `struct ib_uverbs_ah_attr`.
const AH_LEN: usize = 32;

/// Length of the union of `struct rdma_ucm_event_resp`.
const PARAM_LEN: usize = 304;

/// What later releases have put behind `struct rdma_ucm_event_resp`: a reserved word and ECE.
pub(super) const EVENT_ADDED: usize = 12;

/// Length of `struct rdma_ucm_event_resp`.
pub(super) const EVENT_LEN: usize = 20 + PARAM_LEN + EVENT_ADDED;

/// What later releases have put behind answers to queries: the index of the device.
pub(super) const INDEX_ADDED: usize = 8;

/// Length of `struct rdma_ucm_query_path_resp` without paths.
pub(super) const PATHS_HEAD: usize = 8;
