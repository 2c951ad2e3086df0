//! `adverb sockets stat`: what accelerated programs count, in the views of vma_stats.
//!
//! Where the numbers come from is `source.rs`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use adverb_sys::clock;
use clap::Parser;
use serde_json::json;

use super::daemon;
use super::source::{
    Dead, KernelLine, Row, SINCE, Source, WAITING_BYTES, WAITING_PACKETS, get, is_counter, is_flow,
    kind, sources_in, transport, why,
};
use crate::failure::{Doing, Failure};
use crate::output::json_line;
use crate::prometheus::{Exposition, Kind};
use crate::top::group::{Flow, Group, Member, printable};

/// Options of `adverb sockets stat`: those of vma_stats, and JSON.
#[derive(Debug, Parser)]
pub(crate) struct StatArgs {
    /// Only this process
    #[arg(short, long)]
    pid: Option<u32>,

    /// Only processes of this command
    #[arg(short, long)]
    name: Option<String>,

    /// Find the process that runs; this is the default
    #[arg(short, long)]
    find_pid: bool,

    /// Where the files are
    #[arg(short = 'k', long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,

    /// Leave files of processes that have died
    #[arg(short = 'F', long)]
    forbid_clean: bool,

    /// Seconds between two reports, in whole numbers
    #[arg(short, long, default_value_t = 1, value_name = "SECONDS", value_parser = seconds)]
    interval: u64,

    /// Reports; 0 for as many as there is time for
    #[arg(short, long, default_value_t = 1)]
    cycles: u64,

    /// 1 counters, 2 more of them, 3 all of them, 4 multicast groups, 5 as netstat
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    view: u8,

    /// 1 totals, 2 what has come since the last report
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    details: u8,

    /// Everything about one descriptor; 0 for all. With a level, the program says it in its log as well,
    /// at that level, when it next waits for something, or makes or closes a connection
    #[arg(short = 'S', long, value_names = ["FD", "LEVEL"], num_args = 1..=2)]
    fd_dump: Vec<String>,

    /// Start counting from 0
    #[arg(short, long)]
    zero: bool,

    /// Only these descriptors, such as 4-16 or 1,9
    #[arg(short, long, value_name = "FDS", value_delimiter = ',', value_parser = range)]
    sockets: Vec<RangeInclusive<u64>>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// What the daemon knows: programs that run, and totals of those that have ended
    #[arg(long, conflicts_with_all = ["prometheus", "fd_dump", "view", "zero"])]
    daemon: bool,

    /// Print the text format of Prometheus
    #[arg(long, conflicts_with_all = ["json", "fd_dump"])]
    prometheus: bool,

    /// Set how much programs log: 0 to 8, or the name of a level
    #[arg(short, long, value_name = "LEVEL")]
    log_level: Option<String>,

    /// Set how much each line of their logs says about its writer: 0 to 3
    #[arg(short = 'D', long, value_name = "DETAILS", value_parser = clap::value_parser!(u32).range(0..=3))]
    details_level: Option<u32>,
}

/// The files of programs that run, those asked for.
fn sources(args: &StatArgs) -> Vec<Source> {
    let dead = if args.forbid_clean { Dead::Left } else { Dead::Removed };
    let mut found = sources_in(args.directory.as_deref(), dead);
    found.retain(|source| args.pid.is_none_or(|pid| pid == source.pid));
    found.retain(|source| args.name.as_ref().is_none_or(|name| source.command.contains(name)));
    found
}

/// What accelerated programs do, for `adverb top`.
pub(crate) fn groups() -> Vec<Group> {
    sources_in(None, Dead::Left).iter().map(group).collect()
}

fn group(source: &Source) -> Group {
    // All are counted, as many are listed as the program wants.
    let mut members: Vec<_> = source.rows().map(|(_, row)| member(&row)).collect();
    let each = |of: fn(&Flow) -> u64| members.iter().map(move |member| of(&member.flow));
    let sum = |of| each(of).fold(0, u64::saturating_add);
    let flow = Flow {
        sent: sum(|flow| flow.sent),
        received: sum(|flow| flow.received),
        dropped: sum(|flow| flow.dropped),
        resent: 0,
    };
    let more = members.len().saturating_sub(source.shown_max());
    members.truncate(source.shown_max());
    Group {
        pid: source.pid,
        command: printable(source.command.rsplit('/').next().unwrap_or_default()),
        place: "sockets".to_owned(),
        fresh: true,
        flow,
        members,
        more: u64::try_from(more).unwrap_or(u64::MAX),
        sent_per_s: 0,
        received_per_s: 0,
    }
}

fn member(row: &Row) -> Member {
    let both = |one, other| get(row, one).saturating_add(get(row, other));
    Member {
        name: format!("fd {}", get(row, "fd")),
        state: kind(row).to_owned(),
        path: transport(row).to_owned(),
        flow: Flow {
            sent: both("tx_packets", "tx_os_packets"),
            received: both("rx_packets", "rx_os_packets"),
            dropped: get(row, "rx_dropped_packets"),
            resent: 0,
        },
        sent_per_s: 0,
        received_per_s: 0,
    }
}

/// Reads a number of seconds.
fn seconds(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(seconds @ 1..=86_400) => Ok(seconds),
        _ => Err("an interval is 1 to 86400 seconds".to_owned()),
    }
}

/// Reads descriptors such as `4-16`, or a single one.
fn range(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        _ => Err("descriptors are numbers or ranges of them, such as 4-16 or 1,9".to_owned()),
    }
}

/// Whether one of the ranges has a number.
fn lists(ranges: &[RangeInclusive<u64>], fd: u64) -> bool {
    ranges.iter().any(|range| range.contains(&fd))
}

/// A level of the log, by its number or its name.
fn level_of(text: &str) -> Option<u32> {
    let names = ["panic", "error", "warning", "info", "details", "debug", "fine", "finer"];
    let by_name = names.iter().position(|name| name.eq_ignore_ascii_case(text));
    let by_name = by_name.and_then(|at| u32::try_from(at).ok());
    by_name.or_else(|| text.parse().ok().filter(|level| *level <= 8))
}

/// The level that is asked for, if one is.
fn asked_level(text: Option<&str>) -> Result<Option<u32>, Failure> {
    let Some(text) = text else { return Ok(None) };
    let wrong = || Failure::Usage(format!("{text} is no level: 0 to 8, or panic to finer"));
    level_of(text).map(Some).ok_or_else(wrong)
}

/// The descriptor that is to be described in the log, and at which level.
fn subject(args: &StatArgs) -> Result<Option<(u32, u32)>, Failure> {
    let Some(fd) = args.fd_dump.first() else { return Ok(None) };
    let wrong = |_| Failure::Usage(format!("{fd} is no descriptor: a number, or 0 for all"));
    let fd = fd.parse().map_err(wrong)?;
    let level = asked_level(args.fd_dump.get(1).map(String::as_str))?;
    Ok(level.map(|level| (fd, level)))
}

pub(super) fn run(args: &StatArgs) -> Result<(), Failure> {
    if args.daemon {
        return daemon::ask(args.directory.as_deref(), args.json);
    }
    let level = asked_level(args.log_level.as_deref())?;
    let subject = subject(args)?;
    let mut before: BTreeMap<(u32, u64), Row> = BTreeMap::new();
    let mut waited: BTreeMap<(u32, String), Row> = BTreeMap::new();
    let seconds = args.interval;
    if args.details == 2 {
        // What has come since the last report: the first has one before it that is not shown.
        for source in sources(args) {
            let rows = source.rows();
            before.extend(rows.map(|(at, row)| ((source.pid, at), row)));
            let calls = source.waits().into_iter();
            waited.extend(calls.map(|(call, row)| ((source.pid, call), row)));
            let thread = source.internal_thread().into_iter();
            waited.extend(thread.map(|row| ((source.pid, INTERNAL.to_owned()), row)));
        }
        std::thread::sleep(Duration::from_secs(seconds));
    }
    let mut cycle = 0;
    loop {
        let sources = sources(args);
        if sources.is_empty() {
            return Err(Failure::failed(NO_PROCESS));
        }
        for source in &sources {
            if let Some(level) = level {
                source.ask(source.level_at, level).doing("setting the level of the log")?;
            }
            if let Some(details) = args.details_level {
                source.ask(source.details_at, details).doing("setting the details of the log")?;
            }
        }
        for source in sources.iter().filter(|_| cycle == 0) {
            if let Some((fd, level)) = subject {
                source.ask_about(fd, level).doing("asking for a description of a socket")?;
            }
        }
        if args.zero {
            for source in &sources {
                source.zero().doing("setting counters to 0")?;
            }
        }
        let mut exposition = Exposition::default();
        let is_table = !args.json && !args.prometheus;
        if args.view == 5 && is_table {
            println!(
                "Proto Offloaded Local Address           Foreign Address         State        Inode   PID"
            );
        }
        if args.view == 4 && is_table {
            println!("VMA Group Membership Information\nGroup                fd number");
        }
        for source in &sources {
            let mut shown = Vec::new();
            for (number, (at, row)) in source.rows().enumerate() {
                let is_wanted = args.sockets.is_empty() || lists(&args.sockets, get(&row, "fd"));
                if number >= source.shown_max() || !is_wanted {
                    // It may be shown the next time, with what has come since now.
                    before.insert((source.pid, at), row);
                    continue;
                }
                let mut delta = row.clone();
                if args.details == 2 {
                    let new = Row::new();
                    let old = before.get(&(source.pid, at)).unwrap_or(&new);
                    for (name, value) in delta.iter_mut().filter(|(name, _)| is_flow(name)) {
                        *value = value.saturating_sub(get(old, name)) / seconds;
                    }
                }
                before.insert((source.pid, at), row);
                shown.push((at, delta));
            }
            let mut waits = source.waits();
            for (call, row) in &mut waits {
                let old =
                    waited.insert((source.pid, call.clone()), row.clone()).unwrap_or_default();
                if args.details == 2 {
                    polling_share(row, &old, seconds.saturating_mul(1_000_000_000));
                    for (name, value) in row.iter_mut().filter(|(name, _)| *name != CPU) {
                        *value = value.saturating_sub(get(&old, name)) / seconds;
                    }
                } else {
                    let since = get(row, SINCE);
                    polling_share(row, &Row::new(), clock::now_ns().saturating_sub(since));
                }
                row.remove(SINCE);
            }
            let mut thread = source.internal_thread();
            if let Some(row) = thread.as_mut().filter(|_| args.details == 2) {
                let key = (source.pid, INTERNAL.to_owned());
                let old = waited.insert(key, row.clone()).unwrap_or_default();
                for (name, value) in row.iter_mut() {
                    *value = value.saturating_sub(get(&old, name)) / seconds;
                }
            }
            match args.prometheus {
                true => {
                    shown.iter().for_each(|(_, row)| expose(&mut exposition, source, row));
                    expose_waits(&mut exposition, source, &waits);
                    expose_thread(&mut exposition, source, thread.iter().flatten());
                }
                false => show(args, source, &shown, &waits, thread.as_ref())?,
            }
        }
        print!("{exposition}");
        cycle += 1;
        if cycle == args.cycles {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

/// Fills in which part of `span_ns` calls have spun, in hundredths, if that is measured.
fn polling_share(row: &mut Row, old: &Row, span_ns: u64) {
    let spun = get(row, SPUN).saturating_sub(get(old, SPUN));
    let share = spun.saturating_mul(100).checked_div(span_ns).unwrap_or(0);
    row.insert(CPU.to_owned(), if get(row, SINCE) == 0 { 0 } else { share });
}

/// In the words of vma_stats, and what to do.
const NO_PROCESS: &str = "Failed to identify process: no accelerated program that the options name runs here (`adverb sockets -- COMMAND` starts one)";
const SPUN: &str = "polling_ns";
const CPU: &str = "polling_percent";
/// Among the calls, what is not one.
const INTERNAL: &str = "internal thread";

fn show(
    args: &StatArgs,
    source: &Source,
    rows: &[(u64, Row)],
    waits: &BTreeMap<String, Row>,
    thread: Option<&Row>,
) -> Result<(), Failure> {
    if args.json {
        let sockets: Vec<_> = rows.iter().map(|(at, row)| as_json(source, *at, row)).collect();
        let all = json!({ "pid": source.pid, "command": source.command, "sockets": sockets, "waits": waits, "internal_thread": thread });
        print!("{}", json_line(all)?);
        return Ok(());
    }
    let per = if args.details == 2 { "/s" } else { "" };
    if let Some(fd) = args.fd_dump.first() {
        let is_it = |row: &Row| fd == "0" || *fd == get(row, "fd").to_string();
        rows.iter()
            .filter(|(_, row)| is_it(row))
            .for_each(|(at, row)| whole(source, *at, row, per));
        return Ok(());
    }
    match args.view {
        3 => {
            println!("pid {} {}", source.pid, source.command);
            rows.iter().for_each(|(at, row)| whole(source, *at, row, per));
            rings(rows, per);
            calls(waits, per);
            internal_thread(thread, per);
        }
        4 => {
            for (at, row) in rows {
                for group in source.groups(*at) {
                    println!("{:<20} {}", format!("[{group}]"), get(row, "fd"));
                }
            }
        }
        5 => rows.iter().for_each(|(_, row)| netstat(source, row)),
        view => {
            let name = |name: &str| format!("{name}{per}");
            let [pkt, kbyte, eagain, error] = ["pkt", "Kbyte", "eagain", "error"].map(name);
            println!("pid {} {}", source.pid, source.command);
            println!("   Fd      {:->44} offloaded - {:-<28} os -", " ", " ");
            println!(
                "           {pkt:>11} {kbyte:>11} {eagain:>9} {error:>7} {:>6} {pkt:>11} {kbyte:>11}  \
                 transport",
                "poll%"
            );
            for (_, row) in rows {
                counters(source, row, view, per);
            }
            calls(waits, per);
            internal_thread(thread, per);
        }
    }
    Ok(())
}

/// The numbers of one socket: what it has counted, marks that it has left, and what waits.
fn expose(all: &mut Exposition, source: &Source, row: &Row) {
    let (pid, fd) = (source.pid.to_string(), get(row, "fd").to_string());
    let labels = [
        ("pid", pid.as_str()),
        ("command", source.command.as_str()),
        ("fd", fd.as_str()),
        ("kind", kind(row)),
        ("transport", transport(row)),
    ];
    for (name, value) in row.iter().filter(|(name, _)| is_counter(name) || *name == "ring_bytes") {
        let kind = if is_flow(name) { Kind::Counter } else { Kind::Gauge };
        all.add(&format!("adverb_sockets_{name}"), kind, &labels, *value);
    }
}

/// The numbers of calls that wait.
fn expose_waits(all: &mut Exposition, source: &Source, waits: &BTreeMap<String, Row>) {
    let pid = source.pid.to_string();
    for (call, row) in waits {
        let (command, call) = (source.command.as_str(), call.as_str());
        let labels = [("pid", pid.as_str()), ("command", command), ("call", call)];
        for (name, value) in row {
            let kind = if name == CPU { Kind::Gauge } else { Kind::Counter };
            all.add(&format!("adverb_sockets_wait_{name}"), kind, &labels, *value);
        }
    }
}

/// The numbers of the library's own thread.
fn expose_thread<'a>(
    all: &mut Exposition,
    source: &Source,
    numbers: impl Iterator<Item = (&'a String, &'a u64)>,
) {
    let pid = source.pid.to_string();
    let labels = [("pid", pid.as_str()), ("command", source.command.as_str())];
    for (name, value) in numbers {
        all.add(&format!("adverb_sockets_internal_thread_{name}"), Kind::Counter, &labels, *value);
    }
}

/// What the thread that carries frames costs.
fn internal_thread(thread: Option<&Row>, per: &str) {
    if let Some(row) = thread {
        let (cpu, sleeps) = (get(row, "cpu_ns"), get(row, "sleeps"));
        println!("Internal thread: CPU {} us{per}, sleeps {sleeps}{per}", cpu / 1000);
    }
}

/// Which part of all looks found something, `whole` being all of them.
fn share_of(whole: u128, hit: u64, miss: u64) -> u128 {
    (whole * u128::from(hit)).checked_div(u128::from(hit) + u128::from(miss)).unwrap_or(0)
}

fn percent(hit: u64, miss: u64) -> String {
    let hundredths = share_of(10_000, hit, miss);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// What calls that wait have found, as the manual's program shows it.
fn calls(waits: &BTreeMap<String, Row>, per: &str) {
    for (call, row) in waits {
        let n = |name| get(row, name);
        let (os, rings, miss, hit) =
            (n("ready_os"), n("ready_rings"), n("poll_miss"), n("poll_hit"));
        if [os, rings, miss, hit, n("errors")] == [0; 5] {
            continue;
        }
        let percent = percent(hit, miss);
        let name = if call == "epoll" { "epoll_wait" } else { call };
        println!("{name}() Rx Ready: {os}/{rings} [os/offload]{per}");
        println!("{name}() Polls: {miss}/{hit} ({percent}%) [miss/hit]{per}");
        println!("{name}() Timeouts: {}, Errors: {}{per}", n("timeouts"), n("errors"));
        println!("{name}() Polling CPU: {}%", n(CPU));
    }
}

fn as_json(source: &Source, at: u64, row: &Row) -> serde_json::Value {
    let mut value = json!(row);
    if let Some(object) = value.as_object_mut() {
        let groups: Vec<String> = source.groups(at).iter().map(IpAddr::to_string).collect();
        object.insert("groups".to_owned(), groups.into());
        object.insert("kind".to_owned(), kind(row).into());
        object.insert("transport".to_owned(), transport(row).into());
        object.insert("why".to_owned(), why(source, row).into());
    }
    value
}

fn counters(source: &Source, row: &Row, view: u8, per: &str) {
    let n = |name| get(row, name);
    let tenths = share_of(1000, n("rx_poll_hit"), n("rx_poll_miss"));
    println!(
        "{:>5}  Rx: {:>11} {:>11} {:>9} {:>7} {:>4}.{} {:>11} {:>11}  {}: {}",
        n("fd"),
        n("rx_packets"),
        n("rx_bytes") / 1024,
        n("rx_eagain"),
        n("rx_errors"),
        tenths / 10,
        tenths % 10,
        n("rx_os_packets"),
        n("rx_os_bytes") / 1024,
        transport(row),
        why(source, row),
    );
    println!(
        "       Tx: {:>11} {:>11} {:>9} {:>7} {:>6} {:>11} {:>11}",
        n("tx_packets"),
        n("tx_bytes") / 1024,
        n("tx_eagain"),
        n("tx_errors"),
        "",
        n("tx_os_packets"),
        n("tx_os_bytes") / 1024,
    );
    if view >= 2 {
        println!(
            "       {}, ring {} bytes, bells{per} {}, polls{per} {} / {} [miss/hit], dropped{per} {}",
            kind(row),
            n("ring_bytes"),
            n("bells_rung"),
            n("rx_poll_miss"),
            n("rx_poll_hit"),
            n("rx_dropped_packets"),
        );
    }
}

/// Everything about one socket.
fn whole(source: &Source, at: u64, row: &Row, per: &str) {
    let n = |name| get(row, name);
    let blocks = if n("nonblocking") == 0 { "Blocked" } else { "Non-Blocked" };
    let is_datagram = kind(row) == "datagram";
    let echo = match (is_datagram, n("loop_off")) {
        (true, 0) => ", MC Loop Enabled",
        (true, _) => ", MC Loop Disabled",
        (false, _) => "",
    };
    println!("======================================================");
    println!("Fd=[{}] - {blocks}{echo} - {}, {}", n("fd"), kind(row), transport(row));
    println!("- Transport: {}", why(source, row));
    if let Some(KernelLine { local, remote, state, .. }) = source.kernel_line(row) {
        match is_datagram {
            true => println!("- Bound IF = [{local}]"),
            false => println!("- Local = [{local}], Foreign = [{remote}], {state}"),
        }
    }
    for group in source.groups(at) {
        println!("- Member of = [{group}]");
    }
    let line = |title: &str, [bytes, packets, eagains, errors]: [u64; 4]| {
        let unit = format!("[kilobytes{per}/packets{per}/eagains{per}/errors{per}]");
        println!("{title} {} / {packets} / {eagains} / {errors} {unit}", bytes / 1024);
    };
    line("Tx Offload:", [n("tx_bytes"), n("tx_packets"), n("tx_eagain"), n("tx_errors")]);
    line("Tx OS info:", [n("tx_os_bytes"), n("tx_os_packets"), 0, 0]);
    line("Rx Offload:", [n("rx_bytes"), n("rx_packets"), n("rx_eagain"), n("rx_errors")]);
    line("Rx OS info:", [n("rx_os_bytes"), n("rx_os_packets"), 0, 0]);
    let (bytes, packets) = (n(WAITING_BYTES), n(WAITING_PACKETS));
    let (max, dropped) = (n("rx_waiting_bytes_max"), n("rx_dropped_bytes"));
    let limit = n("rx_limit_bytes");
    println!("Rx byte: cur {bytes} / max {max} / dropped{per} {dropped} / limit {limit}");
    let (max, dropped) = (n("rx_waiting_packets_max"), n("rx_dropped_packets"));
    println!("Rx pkt : cur {packets} / max {max} / dropped{per} {dropped}");
    let (miss, hit) = (n("rx_poll_miss"), n("rx_poll_hit"));
    let percent = percent(hit, miss);
    println!("Rx poll: {miss} / {hit} ({percent}%) [miss/hit]");
    if n("tx_dummies") > 0 {
        println!("Tx Dummy messages{per}: {}", n("tx_dummies"));
    }
}

/// The rings of a program, as the manual has those of interfaces: one for each socket.
fn rings(rows: &[(u64, Row)], per: &str) {
    let ringed = rows.iter().filter(|(_, row)| transport(row) == "shm");
    for (number, (_, row)) in ringed.enumerate() {
        let n = |name| get(row, name);
        println!("======================================================");
        println!("RING_SHM=[{number}]");
        println!("Fd: {}", n("fd"));
        let unit = format!("[kilobytes{per}/packets{per}]");
        println!("Tx Offload: {} / {} {unit}", n("tx_bytes") / 1024, n("tx_packets"));
        println!("Rx Offload: {} / {} {unit}", n("rx_bytes") / 1024, n("rx_packets"));
        println!("Ring size: {} [bytes each way]", n("ring_bytes"));
        println!("Bells: {} [rung{per}]", n("bells_rung"));
    }
    println!("======================================================");
}

/// One line as netstat has it: addresses and state are the kernel's.
fn netstat(source: &Source, row: &Row) {
    let Some(KernelLine { table, local, remote, state, inode, .. }) = source.kernel_line(row)
    else {
        return;
    };
    let offloaded = if transport(row) == "shm" { "Yes" } else { "No" };
    let pid = get(row, "pid");
    println!("{table:<5} {offloaded:<9} {local:<23} {remote:<23} {state:<12} {inode:<7} {pid}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_descriptors_are_ranges_and_numbers() {
        for (list, fd, expected) in
            [("4-16", 4, true), ("4-16", 17, false), ("1,9", 9, true), ("1, 3-5", 4, true)]
        {
            let ranges: Vec<_> = list.split(',').map(|part| range(part).expect(part)).collect();
            assert_eq!(lists(&ranges, fd), expected, "{list} {fd}");
        }
        for wrong in ["x", "", "5-4", "1-", "-1", "1-2-3"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn levels_have_numbers_and_names() {
        assert_eq!(level_of("DEBUG"), Some(5));
        assert_eq!(level_of("3"), Some(3));
        assert_eq!(level_of("9"), None);
        assert_eq!(level_of("loud"), None);
    }
}
