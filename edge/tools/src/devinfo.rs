//! `adverb devinfo`: what `ibv_devinfo` prints, in its layout, because scripts cut it into pieces.
//!
//! Every line is a label, tabs up to a column, and a value. What a software device does not have,
//! such as a subnet manager, is printed as that tool prints it for other RoCE devices.

use std::fmt::Write as _;
use std::io::Write as _;

use adverb::verbs::{self, Context, Device, DeviceAttr, PathMtu, Provider};
use serde_json::{Map, Value, json};

use crate::args::DevinfoArgs;
use crate::devices::asked_for;
use crate::failure::{Doing, Failure};
use crate::output;

/// Runs the subcommand.
pub(crate) fn run(args: &DevinfoArgs) -> Result<(), Failure> {
    if args.list {
        return print(&list(&verbs::devices().doing("listing the RDMA devices")?));
    }
    let shown = asked_for(args.device.as_deref())?;
    let sheets = shown.iter().map(|device| Sheet::of(device, args.verbose));
    if args.json {
        let all: Vec<Value> = sheets.map(|sheet| sheet.json()).collect();
        print(&output::json(json!({ "devices": all }))?)
    } else {
        print(&sheets.map(|sheet| sheet.text()).collect::<String>())
    }
}

fn print(text: &str) -> Result<(), Failure> {
    std::io::stdout().write_all(text.as_bytes()).doing("printing the devices")
}

/// The names alone.
fn list(devices: &[Device]) -> String {
    let found = if devices.len() == 1 { "HCA" } else { "HCAs" };
    let names: String = devices.iter().map(|device| format!("\t{}\n", device.name)).collect();
    format!("{} {found} found:\n{names}\n", devices.len())
}

/// A label and a value.
type Line = (String, String);

/// What is printed of one device.
struct Sheet {
    name: String,
    device: Vec<Line>,
    port: Vec<Line>,
    gids: Vec<Line>,
}

impl Sheet {
    fn of(device: &Device, verbose: bool) -> Self {
        let mut sheet = Self {
            name: device.name.clone(),
            device: identity(device),
            port: lines(&port(device)),
            gids: Vec::new(),
        };
        if verbose {
            sheet.device.extend(lines(&limits(device)));
            sheet.port.extend(lines(&port_details(device)));
            let gid = |entry: &verbs::GidEntry| {
                (format!("GID[{:3}]", entry.index), format!("{}, {}", entry.gid, entry.kind))
            };
            sheet.gids = device.gids.iter().map(gid).collect();
        }
        sheet
    }

    fn text(&self) -> String {
        let mut text = format!("hca_id:\t{}\n", self.name);
        for (label, value) in &self.device {
            line(&mut text, 1, label, value, DEVICE_COLUMN);
        }
        text.push_str("\t\tport:\t1\n");
        for (label, value) in &self.port {
            line(&mut text, 3, label, value, PORT_COLUMN);
        }
        for (label, value) in &self.gids {
            line(&mut text, 3, label, value, PORT_COLUMN);
        }
        text.push('\n');
        text
    }

    fn json(&self) -> Value {
        let map = |lines: &[Line]| -> Map<String, Value> {
            lines.iter().map(|(label, value)| (label.clone(), json!(value))).collect()
        };
        let mut port = map(&self.port);
        port.insert("port".to_owned(), json!(1));
        let gids: Vec<&String> = self.gids.iter().map(|(_, value)| value).collect();
        if !gids.is_empty() {
            port.insert("gids".to_owned(), json!(gids));
        }
        let mut device = map(&self.device);
        device.insert("hca_id".to_owned(), json!(self.name));
        device.insert("ports".to_owned(), json!([port]));
        Value::Object(device)
    }
}

/// Adds a line: `indent` tabs, the label, tabs up to `column`, the value.
fn line(text: &mut String, indent: usize, label: &str, value: &str, column: usize) {
    let used = indent * TAB + label.len() + 1;
    let tabs = (column.saturating_sub(used)).div_ceil(TAB).max(1);
    // Writing to a string does not fail.
    let _ = writeln!(text, "{}{label}:{}{value}", "\t".repeat(indent), "\t".repeat(tabs));
}

fn lines(pairs: &[(&str, String)]) -> Vec<Line> {
    pairs.iter().map(|(label, value)| ((*label).to_owned(), value.clone())).collect()
}

fn identity(device: &Device) -> Vec<Line> {
    let guid = guid(device.guid);
    let DeviceAttr { vendor_id, vendor_part_id, hw_ver, phys_port_cnt, .. } = attr(device);
    let mut identity = lines(&[
        ("transport", "InfiniBand (0)".to_owned()),
        ("fw_ver", env!("CARGO_PKG_VERSION").to_owned()),
        ("node_guid", guid.clone()),
        ("sys_image_guid", guid),
        ("vendor_id", format!("{vendor_id:#06x}")),
        ("vendor_part_id", vendor_part_id.to_string()),
        ("hw_ver", format!("{hw_ver:#x}")),
        ("board_id", device.interface.clone()),
        ("phys_port_cnt", phys_port_cnt.to_string()),
    ]);
    // What is not asked of hardware is left out rather than made up.
    let made_up = ["fw_ver", "sys_image_guid", "board_id"];
    let known = |label: &str| device.provider == Provider::Soft || !made_up.contains(&label);
    identity.retain(|(label, _)| known(label));
    identity
}

/// The bounds of a device: hardware says so itself, if it can be opened.
fn attr(device: &Device) -> DeviceAttr {
    match device.provider {
        Provider::Soft => DeviceAttr::SOFT,
        Provider::Hw(_) => {
            Context::open(&device.name).map_or(DeviceAttr::SOFT, |context| context.query_device())
        }
    }
}

fn limits(device: &Device) -> [(&'static str, String); 13] {
    let attr = attr(device);
    [
        ("max_mr_size", "0xffffffffffffffff".to_owned()),
        ("max_qp_wr", attr.max_qp_wr.to_string()),
        ("max_sge", attr.max_sge.to_string()),
        ("max_sge_rd", attr.max_sge.to_string()),
        ("max_cqe", attr.max_cqe.to_string()),
        ("max_qp_rd_atom", attr.max_qp_rd_atom.to_string()),
        ("max_qp_init_rd_atom", attr.max_qp_init_rd_atom.to_string()),
        ("atomic_cap", "ATOMIC_HCA (1)".to_owned()),
        ("max_mcast_grp", attr.max_mcast_grp.to_string()),
        ("max_mcast_qp_attach", attr.max_mcast_qp_attach.to_string()),
        ("max_total_mcast_qp_attach", attr.max_total_mcast_qp_attach.to_string()),
        ("max_pkeys", "1".to_owned()),
        ("num_comp_vectors", attr.num_comp_vectors.to_string()),
    ]
}

fn port(device: &Device) -> [(&'static str, String); 7] {
    let state = if device.active { "PORT_ACTIVE (4)" } else { "PORT_DOWN (1)" };
    [
        ("state", state.to_owned()),
        ("max_mtu", mtu(PathMtu::B4096)),
        ("active_mtu", mtu(device.active_mtu())),
        ("sm_lid", "0".to_owned()),
        ("port_lid", "0".to_owned()),
        ("port_lmc", "0x00".to_owned()),
        ("link_layer", "Ethernet".to_owned()),
    ]
}

fn port_details(device: &Device) -> [(&'static str, String); 13] {
    let phys = if device.active { "LINK_UP (5)" } else { "DISABLED (3)" };
    [
        ("max_msg_sz", "0x80000000".to_owned()),
        ("port_cap_flags", "0x00010000".to_owned()),
        ("port_cap_flags2", "0x0000".to_owned()),
        ("max_vl_num", "1 (1)".to_owned()),
        ("bad_pkey_cntr", "0x0".to_owned()),
        ("qkey_viol_cntr", "0x0".to_owned()),
        ("sm_sl", "0".to_owned()),
        ("pkey_tbl_len", "1".to_owned()),
        ("gid_tbl_len", device.gid_places().to_string()),
        ("subnet_timeout", "0".to_owned()),
        ("init_type_reply", "0".to_owned()),
        ("active_width", "1X (1)".to_owned()),
        ("phys_state", phys.to_owned()),
    ]
}

/// In four groups of four digits, as the verbs' tools print it.
fn guid(guid: u64) -> String {
    let digits = format!("{guid:016x}");
    let groups: Vec<_> = digits.as_bytes().chunks(4).map(String::from_utf8_lossy).collect();
    groups.join(":")
}

/// An MTU with the number that the verbs give it.
fn mtu(mtu: PathMtu) -> String {
    let code = PathMtu::ALL.into_iter().zip(1..).find(|(known, _)| *known == mtu);
    let code = code.map_or(0, |(_, code)| code);
    format!("{} ({code})", mtu.bytes())
}

/// How wide a tab is.
const TAB: usize = 8;
/// Where values of a device begin.
const DEVICE_COLUMN: usize = 40;
/// Where values of a port begin.
const PORT_COLUMN: usize = 48;

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout as the other tool prints it for a RoCE device: typed in by hand.
    const PRINTED: &str = "hca_id:\tsoft_lo
\ttransport:\t\t\tInfiniBand (0)
\tnode_guid:\t\t\t0200:0000:0000:0001
\tsys_image_guid:\t\t\t0200:0000:0000:0001
\tvendor_part_id:\t\t\t0
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tsm_lid:\t\t\t0
\t\t\tport_lid:\t\t0
\t\t\tport_lmc:\t\t0x00
\t\t\tlink_layer:\t\tEthernet
\t\t\tGID[  0]:\t\tfe80::1, RoCE v2

";

    #[test]
    fn lines_are_indented_and_aligned_with_tabs_like_the_other_tools() {
        let guid = || guid(0x0200_0000_0000_0001);
        let port = [
            ("state", "PORT_ACTIVE (4)".to_owned()),
            ("max_mtu", mtu(PathMtu::B4096)),
            ("active_mtu", mtu(PathMtu::B1024)),
            ("sm_lid", "0".to_owned()),
            ("port_lid", "0".to_owned()),
            ("port_lmc", "0x00".to_owned()),
            ("link_layer", "Ethernet".to_owned()),
        ];
        let sheet = Sheet {
            name: "soft_lo".to_owned(),
            device: lines(&[
                ("transport", "InfiniBand (0)".to_owned()),
                ("node_guid", guid()),
                ("sys_image_guid", guid()),
                ("vendor_part_id", "0".to_owned()),
                ("phys_port_cnt", "1".to_owned()),
            ]),
            port: lines(&port),
            gids: lines(&[("GID[  0]", "fe80::1, RoCE v2".to_owned())]),
        };
        assert_eq!(sheet.text(), PRINTED);
        let json = sheet.json();
        assert_eq!(json["ports"][0]["state"], "PORT_ACTIVE (4)");
        assert_eq!(json["hca_id"], "soft_lo");
    }
}
