//! Setting up an endpoint's channels: what to tell the peer, and what to make of what it says.

use crate::adapter::Adapter;
use crate::auth;
use crate::channel::{Shared, post_probe};
use crate::connector::Deadline;
use crate::error::{ConnectorError, Route, SetUpError};
use crate::frame::{ChannelHello, Features, Hello, Name};
use crate::link::PeerInfo;
use crate::source::Places;
use adverb_verbs::{GidEntry, PathMtu, Qp, QpConfig, Qpn, Rc, RcConnect, RemoteQp, WcStatus};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tracing::info;

/// A channel's queue pair, without a peer as yet.
#[derive(Debug)]
pub(crate) struct Unlinked {
    pub(crate) name: Name,
    pub(crate) qp: Qp<Rc>,
    /// Where its completions come from.
    pub(crate) places: Places,
}

/// What can go wrong between two sides that are connected.
pub(crate) enum Failure {
    Connector(ConnectorError),
    SetUp(SetUpError),
}

adverb_sys::wraps!(Failure: Connector(ConnectorError), SetUp(SetUpError));

/// Makes a queue pair for each name.
pub(crate) fn make(adapter: &Adapter, names: &[Name]) -> Result<Vec<Unlinked>, SetUpError> {
    names.iter().map(|name| make_one(adapter, name)).collect()
}

fn make_one(adapter: &Adapter, name: &Name) -> Result<Unlinked, SetUpError> {
    let queues = &adapter.config().queues;
    let depth = queues.send_depth + queues.receive_depth;
    let places = adapter.source(name, depth)?.reserve(depth)?;
    make_on(adapter, name, places)
}

/// Makes another queue pair for a channel whose own has ended, with the same places for completions.
pub(crate) fn make_again(adapter: &Adapter, channel: &Shared) -> Result<Unlinked, SetUpError> {
    let places = Arc::clone(channel.source()).reserve(0)?;
    make_on(adapter, channel.title(), places)
}

fn make_on(adapter: &Adapter, name: &Name, places: Places) -> Result<Unlinked, SetUpError> {
    let queues = &adapter.config().queues;
    let mut config = QpConfig::new(places.source().cq());
    config.max_send_wr = queues.send_depth;
    config.max_recv_wr = queues.receive_depth;
    config.max_inline = queues.inline_bytes;
    let qp = adapter.pd().create_qp(&config)?;
    Ok(Unlinked { name: name.clone(), qp, places })
}

/// What to tell the peer.
pub(crate) fn hello(
    adapter: &Adapter,
    channels: &[Unlinked],
    place: GidEntry,
    path_mtu: PathMtu,
    features: Features,
) -> Result<Hello, SetUpError> {
    let config = adapter.config();
    let channel = |channel: &Unlinked| {
        let RemoteQp { qpn, psn, .. } = channel.qp.address_at(place.index)?;
        Ok::<_, SetUpError>(ChannelHello {
            name: channel.name.clone(),
            qpn,
            psn,
            send_depth: config.queues.send_depth,
            receive_depth: config.queues.receive_depth,
        })
    };
    let device = adapter.context().query_device();
    let reads_max = device.max_qp_rd_atom.min(device.max_qp_init_rd_atom);
    Ok(Hello {
        session: adapter.name().clone(),
        device: adapter.device_name().clone(),
        node_guid: device.node_guid,
        gid: place.gid,
        path_mtu,
        reads: config.adapter.reads.min(reads_max),
        features,
        nonce: auth::nonce()
            .map_err(|error| SetUpError::System { doing: "get random bytes", error })?,
        channels: channels.iter().map(channel).collect::<Result<_, _>>()?,
    })
}

/// What both sides will do: of each bound the smaller one.
pub(crate) fn agree(
    adapter: &Adapter,
    place: GidEntry,
    theirs: &Hello,
    addr: SocketAddr,
) -> Result<PeerInfo, SetUpError> {
    let (local, remote) = (place.gid, theirs.gid);
    if local.v4().is_some() != remote.v4().is_some() {
        return Err(SetUpError::Family { local, remote });
    }
    if local.is_loopback() != remote.is_loopback() {
        return Err(SetUpError::Loopback { local, remote });
    }
    let smaller = [adapter.path_mtu(), theirs.path_mtu].into_iter().min_by_key(|mtu| mtu.bytes());
    Ok(PeerInfo {
        addr,
        name: theirs.session.clone(),
        device: theirs.device.clone(),
        node_guid: theirs.node_guid,
        gid: remote,
        local: (place.index, local),
        path_mtu: smaller.unwrap_or(theirs.path_mtu),
        reads: adapter.config().adapter.reads.min(theirs.reads),
        features: Features::OURS.and(theirs.features),
        channels: theirs.channels.clone(),
    })
}

/// Connects each queue pair to the peer's of the same name.
pub(crate) fn connect(
    adapter: &Adapter,
    channels: &[Unlinked],
    peer: &PeerInfo,
) -> Result<(), SetUpError> {
    let same = |(ours, theirs): (&Unlinked, &ChannelHello)| ours.name == theirs.name;
    let pairs = || channels.iter().zip(&peer.channels);
    if channels.len() != peer.channels.len() || !pairs().all(same) {
        return Err(SetUpError::Channels);
    }
    let config = &adapter.config().adapter;
    let (gid_index, _) = peer.local;
    for (ours, theirs) in pairs() {
        let remote = RemoteQp { gid: peer.gid, qpn: theirs.qpn, psn: theirs.psn };
        let how = RcConnect::new(remote)
            .gid_index(gid_index)
            .traffic_class(config.traffic_class)
            .hop_limit(config.hop_limit)
            .path_mtu(peer.path_mtu)
            .timeout(config.ack_timeout)
            .retry_count(config.retry_count)
            .rnr_retry(config.rnr_retry)
            .min_rnr_timer(config.min_rnr_timer)
            .max_rd_atomic(peer.reads)
            .max_dest_rd_atomic(peer.reads);
        ours.qp.connect(how)?;
        info!("{}", Table { adapter, peer, name: &ours.name, qp: &ours.qp, remote });
    }
    Ok(())
}

/// Has the peer's device answer on the first of the queue pairs, which the peer has ready: whatever keeps
/// packets of the two apart is found here, and not by the program's first work.
pub(crate) fn probe(
    channels: &[Unlinked],
    peer: &PeerInfo,
    deadline: Deadline,
) -> Result<(), SetUpError> {
    let Some(Unlinked { qp, places, .. }) = channels.first() else {
        return Ok(());
    };
    let refused = |error: &dyn fmt::Display| SetUpError::System {
        doing: "reach the peer's queue pair",
        error: io::Error::other(error.to_string()),
    };
    let (source, number) = (places.source(), qp.number());
    source.expect(number);
    let first = post_probe(qp)
        .map_err(|error| refused(&error))
        .and_then(|()| source.first(number, deadline).map_err(|error| refused(&error)));
    source.forget(number);
    match first? {
        Some(WcStatus::Success) => Ok(()),
        Some(WcStatus::RetryExceeded) | None => Err(SetUpError::Unanswered(Route {
            local: peer.local.1,
            remote: peer.gid,
            path: qp.path(),
        })),
        Some(status) => Err(refused(&status)),
    }
}

/// Both sides of a channel, for the log.
struct Table<'a> {
    adapter: &'a Adapter,
    peer: &'a PeerInfo,
    name: &'a Name,
    qp: &'a Qp<Rc>,
    remote: RemoteQp,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { adapter, peer, name, qp, remote } = self;
        write!(f, "channel {name} connected, path MTU {}", peer.path_mtu.bytes())?;
        qp.path().map_or(Ok(()), |path| write!(f, ", path {path}"))?;
        let mut row = |what: &str, local: &dyn fmt::Display, remote: &dyn fmt::Display| {
            // Not every type pads itself.
            let (local, remote) = (local.to_string(), remote.to_string());
            write!(f, "\n  {what:<10}  {local:<GID_CHARS$}  {remote}")
        };
        row("", &"local", &"remote")?;
        row("session", adapter.name(), &peer.name)?;
        row("device", adapter.device_name(), &peer.device)?;
        let number = |qpn: Qpn| format!("{:#08x}", qpn.get());
        row("queue pair", &number(qp.number()), &number(remote.qpn))?;
        row("GID", &peer.local.1, &remote.gid)?;
        row("first PSN", &qp.first_psn().get(), &remote.psn.get())
    }
}

/// A GID in words of 16 bits.
const GID_CHARS: usize = 39;
