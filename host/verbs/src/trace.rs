//! Tracing events of devices and their objects.
//!
//! Nothing here is called on the data path, and none of it costs more than a look at a number while
//! no subscriber listens. The program chooses the subscriber: everything goes to `tracing`.

use crate::context::Context;
use crate::cq::CqConfig;
use crate::memory::Mr;
use adverb_device::QpCap;
use adverb_device::{Attributes, Gid, QpState, QpType, Qpn};
use std::fmt;
use tracing::{debug, info};

/// A device was opened.
pub(crate) fn opened(context: &Context) {
    // Looking at the port asks the system: only if a subscriber wants to know.
    if !tracing::enabled!(tracing::Level::INFO) {
        return;
    }
    let (device, port) = (context.device(), context.query_port());
    info!(
        device = %device.name,
        interface = %device.interface,
        node_guid = format_args!("{:#018x}", device.guid),
        "device opened"
    );
    info!(
        device = %device.name,
        port = 1,
        state = %port.state,
        max_mtu = port.max_mtu.bytes(),
        active_mtu = port.active_mtu.bytes(),
        gids = port.gid_tbl_len,
        link_layer = "Ethernet",
        "port attributes"
    );
    for entry in context.gids() {
        debug!(device = %device.name, index = entry.index, gid = %entry.gid, "GID");
    }
}

/// A completion queue was made.
pub(crate) fn queue_made(config: &CqConfig<'_>) {
    debug!(cqe = config.cqe, channel = config.channel.is_some(), "completion queue created");
}

/// A queue pair was made.
pub(crate) fn pair_made(number: Qpn, kind: QpType, cap: QpCap) {
    debug!(
        qp = format_args!("{:#08x}", number.get()),
        kind = ?kind,
        send_wr = cap.max_send_wr,
        recv_wr = cap.max_recv_wr,
        inline = cap.max_inline,
        "queue pair created"
    );
}

/// A queue pair has changed its state, or attributes of it.
pub(crate) fn changed(number: Qpn, from: QpState, to: QpState, attributes: &Attributes) {
    let given = Given(attributes);
    debug!(qp = format_args!("{:#08x}", number.get()), "queue pair: {from} to {to}{given}");
}

/// Memory was registered.
pub(crate) fn registered(mr: &Mr) {
    debug!(
        addr = format_args!("{:#x}", mr.addr()),
        bytes = mr.len(),
        access = %mr.access(),
        lkey = format_args!("{:#x}", mr.lkey()),
        rkey = format_args!("{:#x}", mr.rkey().0),
        "memory region registered"
    );
}

/// The attributes that were given, under the names that C has for them.
struct Given<'a>(&'a Attributes);

impl fmt::Display for Given<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attributes {
            current,
            window_packets,
            window_first,
            partition,
            port,
            access,
            qkey,
            remote_gid,
            remote,
            path_mtu,
            expected_psn,
            max_dest_rd_atomic,
            min_rnr_timer,
            first_psn,
            timeout,
            retry_count,
            rnr_retry,
            max_rd_atomic,
            notify_drained,
        } = self.0;
        let mut given = |name: &str, value: Option<&dyn fmt::Debug>| match value {
            Some(value) => write!(f, " {name}={}", bare(&format!("{value:?}"))),
            None => Ok(()),
        };
        given("cur_qp_state", shown(current))?;
        given("window_packets", shown(window_packets))?;
        given("window_first", shown(window_first))?;
        given("pkey_index", shown(&partition.map(|partition| partition.index)))?;
        given("port_num", shown(port))?;
        given("qp_access_flags", shown(access))?;
        given("qkey", shown(qkey))?;
        given("dgid", shown(&remote_gid.as_ref().map(Gid::to_string)))?;
        given("dest_qp_num", shown(&remote.map(|qpn| qpn.get())))?;
        given("path_mtu", shown(&path_mtu.map(|mtu| mtu.bytes())))?;
        given("rq_psn", shown(expected_psn))?;
        given("max_dest_rd_atomic", shown(max_dest_rd_atomic))?;
        given("min_rnr_timer", shown(min_rnr_timer))?;
        given("sq_psn", shown(first_psn))?;
        given("timeout", shown(timeout))?;
        given("retry_cnt", shown(retry_count))?;
        given("rnr_retry", shown(rnr_retry))?;
        given("max_rd_atomic", shown(max_rd_atomic))?;
        given("en_sqd_async_notify", shown(notify_drained))
    }
}

fn shown<T: fmt::Debug>(value: &Option<T>) -> Option<&dyn fmt::Debug> {
    value.as_ref().map(|value| -> &dyn fmt::Debug { value })
}

/// What is in a type of one number, or in quotes.
fn bare(value: &str) -> &str {
    let inner = value.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(value).trim_matches('"')
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_device::{Psn, RetryCount};

    #[test]
    fn only_what_is_given_is_told_and_under_the_names_of_c() {
        assert_eq!(Given(&Attributes::default()).to_string(), "");
        let attributes = Attributes {
            retry_count: Some(RetryCount::MAX),
            first_psn: Some(Psn::new(9)),
            ..Attributes::default()
        };
        assert_eq!(Given(&attributes).to_string(), " sq_psn=9 retry_cnt=7");
    }
}
