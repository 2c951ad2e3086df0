//! `adverb devices`: which RDMA devices there are, and what they can do.
//!
//! A table of devices and all their addresses; with `-v` the labels of `ibv_devinfo` and the limits, one `label: value` a line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;

use adverb::verbs::{self, Context, DeviceAttr, PathMtu, Provider};
use serde::Serialize;

use crate::args::DevicesArgs;
use crate::failure::{Doing, Failure};
use crate::output::json;

/// One device.
#[derive(Clone, Debug, Serialize)]
struct Device {
    /// The name that `--device` takes.
    name: String,
    /// `"soft"`: this project's own. `"hw"`: the system's.
    provider: &'static str,
    /// The network interface under it.
    netdev: String,
    /// EUI-64 that no other device has.
    node_guid: String,
    /// Ports, counted from 1.
    ports: Vec<Port>,
    /// How its queue pairs reach those of other processes of this host, if both sides agree.
    neighbours: String,
    /// What can be asked of it, by the names of the verbs.
    limits: BTreeMap<&'static str, u64>,
}

/// One port of a device.
#[derive(Clone, Debug, Serialize)]
struct Port {
    /// Counted from 1.
    number: u8,
    /// Whether it can carry traffic.
    active: bool,
    /// Largest path MTU in bytes.
    max_mtu: u16,
    /// Largest path MTU in bytes that the interface carries as it is set up now.
    active_mtu: u16,
    /// The addresses, by index.
    gids: Vec<Gid>,
}

/// One address of a port.
#[derive(Clone, Debug, Serialize)]
struct Gid {
    /// What `--gid-index` takes.
    index: u8,
    /// In the shortest notation of IPv6; that of an IPv4 address ends with it.
    gid: String,
    /// What packets from there look like.
    #[serde(rename = "type")]
    kind: String,
}

/// Their names, for a person.
pub(crate) fn device_names(devices: &[verbs::Device]) -> String {
    match devices {
        [] => NONE.to_owned(),
        some => some.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", "),
    }
}

/// Why there are none.
const NONE: &str = "none, for no network interface that is up has an address: `ip link set lo up` brings the loopback up";

/// Runs the subcommand.
pub(crate) fn run(args: &DevicesArgs) -> Result<(), Failure> {
    let devices: Vec<Device> = asked_for(None)?.iter().map(describe).collect();
    let text = if args.json {
        json(serde_json::json!({ "devices": devices }))?
    } else {
        match args.verbose {
            true => devices.iter().map(print).collect(),
            false => table(&devices),
        }
    };
    std::io::stdout().write_all(text.as_bytes()).doing("printing the devices")
}

/// The devices of this machine, or the one of this name. There is at least one.
pub(crate) fn asked_for(name: Option<&str>) -> Result<Vec<verbs::Device>, Failure> {
    let mut devices = verbs::devices().doing("listing the RDMA devices")?;
    if devices.is_empty() {
        return Err(Failure::Skipped(format!("RDMA devices: {NONE}")));
    }
    let known = device_names(&devices);
    devices.retain(|device| name.is_none_or(|name| device.name == name));
    match (name, devices.as_slice()) {
        (Some(name), []) => {
            Err(Failure::failed(format!("there is no device {name}; there are: {known}")))
        }
        (_, _) => Ok(devices),
    }
}

/// What there is to say about a device.
fn describe(device: &verbs::Device) -> Device {
    let limits = limits(device);
    let limits = [
        ("max_cqe", u64::from(limits.max_cqe)),
        ("max_inline_data", u64::from(limits.max_inline)),
        ("max_qp_init_rd_atom", u64::from(limits.max_qp_init_rd_atom)),
        ("max_qp_rd_atom", u64::from(limits.max_qp_rd_atom)),
        ("max_qp_wr", u64::from(limits.max_qp_wr)),
        ("max_sge", u64::from(limits.max_sge)),
    ];
    let bytes = |mtu: PathMtu| u16::try_from(mtu.bytes()).unwrap_or(u16::MAX);
    Device {
        name: device.name.clone(),
        provider: device.provider.name(),
        netdev: device.interface.clone(),
        node_guid: guid(device.guid),
        ports: vec![Port {
            number: 1,
            active: device.active,
            max_mtu: bytes(PathMtu::B4096),
            active_mtu: bytes(device.active_mtu()),
            gids: device
                .gids
                .iter()
                .map(|entry| Gid {
                    index: entry.index,
                    gid: entry.gid.to_string(),
                    kind: entry.kind.to_string(),
                })
                .collect(),
        }],
        neighbours: match device.provider {
            Provider::Soft => verbs::neighbours_path()
                .map_or_else(|error| error.to_string(), |path| path.to_string()),
            Provider::Hw(_) => device.name.clone(),
        },
        limits: limits.into_iter().collect(),
    }
}

/// What can be asked of a device: hardware says so itself, if it can be opened.
fn limits(device: &verbs::Device) -> DeviceAttr {
    match device.provider {
        Provider::Soft => DeviceAttr::SOFT,
        Provider::Hw(_) => {
            Context::open(&device.name).map_or(DeviceAttr::SOFT, |context| context.query_device())
        }
    }
}

/// In four groups of four digits, as the verbs' tools print it.
fn guid(guid: u64) -> String {
    let digits = format!("{guid:016x}");
    let groups: Vec<_> = digits.as_bytes().chunks(4).map(String::from_utf8_lossy).collect();
    groups.join(":")
}

/// All of them, a line for each address.
fn table(devices: &[Device]) -> String {
    let mut rows =
        vec![["DEVICE", "INTERFACE", "STATE", "MTU", "INDEX", "GID", "TYPE"].map(str::to_owned)];
    for device in devices {
        for port in &device.ports {
            let state = if port.active { "up" } else { "down" };
            let mtu = port.active_mtu.to_string();
            let mut first = [device.name.clone(), device.netdev.clone(), state.to_owned(), mtu];
            for gid in &port.gids {
                let [name, interface, state, mtu] = std::mem::take(&mut first);
                rows.push([
                    name,
                    interface,
                    state,
                    mtu,
                    gid.index.to_string(),
                    gid.gid.clone(),
                    gid.kind.clone(),
                ]);
            }
            if port.gids.is_empty() {
                let [name, interface, state, mtu] = first;
                rows.push([
                    name,
                    interface,
                    state,
                    mtu,
                    "-".to_owned(),
                    "none".to_owned(),
                    String::new(),
                ]);
            }
        }
    }
    let mut widths = [0; COLUMNS];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    let line = |row: &[String; COLUMNS]| {
        let cells: String =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}  ")).collect();
        cells.trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

const COLUMNS: usize = 7;

/// One device as text.
fn print(device: &Device) -> String {
    let mut text = format!("hca_id:\t{}\n", device.name);
    let mut line = |indent: &str, label: &str, value: &dyn std::fmt::Display| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{indent}{:<24}{value}", format!("{label}:"));
    };
    line("\t", "transport", &"InfiniBand (0)");
    line("\t", "provider", &device.provider);
    line("\t", "netdev", &device.netdev);
    line("\t", "node_guid", &device.node_guid);
    line("\t", "phys_port_cnt", &device.ports.len());
    line("\t", "path_to_neighbours", &device.neighbours);
    device.limits.iter().for_each(|(label, value)| line("\t", label, value));
    for port in &device.ports {
        line("\t\t", "port", &port.number);
        let state = if port.active { "PORT_ACTIVE (4)" } else { "PORT_DOWN (1)" };
        line("\t\t\t", "state", &state);
        line("\t\t\t", "max_mtu", &mtu(port.max_mtu));
        line("\t\t\t", "active_mtu", &mtu(port.active_mtu));
        line("\t\t\t", "link_layer", &"Ethernet");
        for gid in &port.gids {
            line("\t\t\t", &format!("GID[{:3}]", gid.index), &format!("{}, {}", gid.gid, gid.kind));
        }
    }
    text.push('\n');
    text
}

/// An MTU with the number that the verbs give it.
fn mtu(bytes: u16) -> String {
    let code = match bytes {
        256 => "1",
        512 => "2",
        1024 => "3",
        2048 => "4",
        4096 => "5",
        _ => "invalid",
    };
    format!("{bytes} ({code})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Device {
        let gid = |index, gid: &str| Gid { index, gid: gid.to_owned(), kind: "RoCE v2".to_owned() };
        Device {
            name: "soft_lo".to_owned(),
            provider: "soft",
            netdev: "lo".to_owned(),
            node_guid: "0200:00ff:fe00:0001".to_owned(),
            ports: vec![Port {
                number: 1,
                active: true,
                max_mtu: 4096,
                active_mtu: 1024,
                gids: vec![gid(0, "fe80::1"), gid(1, "::ffff:127.0.0.1")],
            }],
            neighbours: "shm".to_owned(),
            limits: BTreeMap::from([("max_qp", 65_536)]),
        }
    }

    fn squeezed(text: &str) -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn the_table_has_a_line_for_each_address() {
        let lines = squeezed(&table(&[device()]));
        assert_eq!(
            lines,
            [
                "DEVICE INTERFACE STATE MTU INDEX GID TYPE",
                "soft_lo lo up 1024 0 fe80::1 RoCE v2",
                "1 ::ffff:127.0.0.1 RoCE v2",
            ]
        );
    }

    #[test]
    fn the_lines_that_scripts_look_for_are_there() {
        let lines = squeezed(&print(&device()));
        for line in [
            "hca_id: soft_lo",
            "transport: InfiniBand (0)",
            "node_guid: 0200:00ff:fe00:0001",
            "phys_port_cnt: 1",
            "port: 1",
            "state: PORT_ACTIVE (4)",
            "max_mtu: 4096 (5)",
            "active_mtu: 1024 (3)",
            "link_layer: Ethernet",
        ] {
            assert!(lines.iter().any(|l| l == line), "no line {line:?} in {lines:?}");
        }
    }

    #[test]
    fn verbose_adds_limits_and_all_addresses() {
        let lines = squeezed(&print(&device()));
        assert!(lines.contains(&"GID[ 1]: ::ffff:127.0.0.1, RoCE v2".to_owned()), "{lines:?}");
        assert!(lines.contains(&"max_qp: 65536".to_owned()), "{lines:?}");
        assert!(lines.contains(&"path_to_neighbours: shm".to_owned()), "{lines:?}");
    }
}
