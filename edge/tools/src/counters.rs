//! `adverb counters`: what the devices have counted, in all processes of this user on this host.
//!
//! A device lives in the process that uses it and counts there; each process shows its counters to
//! processes that ask. Names are those of the hardware's and rxe's drivers, and the port's own after them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use adverb::verbs::{self, DeviceReport, PortCounters, QpCounters, QpRow};
use serde_json::{Map, Value, json};

use crate::args::CountersArgs;
use crate::devices::asked_for;
use crate::failure::{Doing, Failure};
use crate::output::json_line;
use crate::prometheus::{Exposition, Kind};

/// One device, over all processes that have it open.
#[derive(Debug, Default)]
struct Device {
    port: PortCounters,
    total: QpCounters,
    processes: Vec<DeviceReport>,
}

/// Devices by name.
type Devices = BTreeMap<String, Device>;

/// Runs the subcommand.
pub(crate) fn run(args: &CountersArgs) -> Result<(), Failure> {
    let found = asked_for(args.device.as_deref())?;
    let names: Vec<_> = found.into_iter().map(|device| device.name).collect();
    loop {
        let reports = verbs::survey().doing("asking the processes for their counters")?;
        show(&collect(&names, reports), args)?;
        let Some(seconds) = args.watch else {
            return Ok(());
        };
        std::thread::sleep(Duration::from_secs_f64(seconds));
    }
}

/// Sorts what the processes have shown by device; those that are not open count nothing.
fn collect(names: &[String], reports: Vec<DeviceReport>) -> Devices {
    let mut devices: Devices = names.iter().map(|name| (name.clone(), Device::default())).collect();
    for report in reports {
        if let Some(device) = devices.get_mut(&report.device) {
            device.port += report.port;
            device.total += report.total;
            device.processes.push(report);
        }
    }
    devices
}

/// Prints the counters of all devices once.
fn show(devices: &Devices, args: &CountersArgs) -> Result<(), Failure> {
    let text = if args.json {
        let all = devices.iter().map(|(name, device)| (name.clone(), as_json(device)));
        json_line(json!({ "devices": Value::Object(all.collect()) }))?
    } else if args.prometheus {
        as_prometheus(devices).to_string()
    } else {
        devices.iter().map(|(name, device)| as_text(name, device, args.all)).collect()
    };
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).doing("printing the counters")
}

/// All names and values of a device; where two lists have a name, it stands for the same count.
fn counters(port: &PortCounters, total: &QpCounters) -> Vec<(&'static str, u64)> {
    let mut all = verbs::hw_counters(port, total);
    for (name, value) in verbs::diag_counters(port, total).into_iter().chain(port.iter()) {
        match all.iter_mut().find(|(known, _)| *known == name) {
            // Packets that no queue pair has seen are the port's alone.
            Some((_, count)) => *count = value.max(*count),
            None => all.push((name, value)),
        }
    }
    all
}

fn as_object(counters: impl IntoIterator<Item = (&'static str, u64)>) -> Map<String, Value> {
    counters.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect()
}

fn as_json(device: &Device) -> Value {
    let mut all = as_object(counters(&device.port, &device.total));
    let process = |report: &DeviceReport| {
        let qps: Vec<_> = report.qps.iter().map(qp_as_json).collect();
        json!({ "pid": report.pid, "fresh": report.fresh, "qps": qps, "more_qps": report.more })
    };
    all.insert("processes".to_owned(), device.processes.iter().map(process).collect());
    Value::Object(all)
}

fn qp_as_json(qp: &QpRow) -> Value {
    let QpRow { number, peer, state, path, counters, .. } = qp;
    let mut all = as_object(counters.hardware().into_iter().chain(counters.diagnostics()));
    all.insert("qpn".to_owned(), json!(number.get()));
    all.insert("peer_qpn".to_owned(), json!(peer.map(|peer| peer.get())));
    all.insert("path".to_owned(), json!(path.map(|path| path.to_string())));
    all.insert("state".to_owned(), json!(state.to_string()));
    Value::Object(all)
}

/// All counters of all devices, and how many processes have each open.
fn as_prometheus(devices: &Devices) -> Exposition {
    let mut all = Exposition::default();
    for (name, device) in devices {
        let labels = [("device", name.as_str())];
        for (counter, value) in counters(&device.port, &device.total) {
            all.add(&format!("adverb_device_{counter}"), Kind::Counter, &labels, value);
        }
        let open = u64::try_from(device.processes.len()).unwrap_or(u64::MAX);
        all.add("adverb_device_processes", Kind::Gauge, &labels, open);
    }
    all
}

/// The counters of the device, and of each queue pair, that are not 0; of the device, all if asked for.
fn as_text(name: &str, device: &Device, all: bool) -> String {
    let mut text = format!("{name}\n");
    // Writing to a string does not fail.
    for (name, value) in counters(&device.port, &device.total) {
        if all || value > 0 {
            let _ = writeln!(text, "    {name:<24}{value}");
        }
    }
    if device.processes.is_empty() {
        text.push_str("    no process of this user has it open\n");
    }
    for process in &device.processes {
        let stale = if process.fresh { "" } else { ", does not answer" };
        let _ = writeln!(text, "    process {}{stale}", process.pid);
        for qp in &process.qps {
            let peer = qp.peer.map_or(String::new(), |peer| format!(" to {:#08x}", peer.get()));
            let path = qp.path.map_or(String::new(), |path| format!(" by {path}"));
            let _ = write!(text, "        qp {:#08x}{peer} {}{path}:", qp.number.get(), qp.state);
            let all = qp.counters.hardware().into_iter().chain(qp.counters.diagnostics());
            for (name, value) in all.filter(|(_, value)| *value > 0) {
                let _ = write!(text, " {name} {value}");
            }
            text.push('\n');
        }
        if process.more > 0 {
            let _ = writeln!(text, "        and {} queue pairs more", process.more);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_gets_every_counter_of_a_device_that_no_process_has_open() {
        let devices = [("soft_lo".to_owned(), Device::default())].into();
        let text = as_prometheus(&devices).to_string();
        assert!(text.contains("# TYPE adverb_device_sent_pkts_total counter\n"), "{text}");
        assert!(text.contains("adverb_device_sent_pkts_total{device=\"soft_lo\"} 0\n"), "{text}");
        assert!(text.contains("adverb_device_processes{device=\"soft_lo\"} 0\n"), "{text}");
    }

    #[test]
    fn a_device_that_no_process_has_open_says_so() {
        let text = as_text("soft_lo", &Device::default(), false);
        assert_eq!(text, "soft_lo\n    no process of this user has it open\n");
        let text = as_text("soft_lo", &Device::default(), true);
        assert!(text.contains("sent_pkts               0\n"), "{text}");
    }
}
