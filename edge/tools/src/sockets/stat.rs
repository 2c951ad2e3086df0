//! `adverb sockets stat`: what accelerated programs count, in the views of vma_stats.
//!
//! Each program publishes a file whose first lines say how to read the rest, so this room knows
//! names, and no layout. Addresses and states are the kernel's, and come from `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use serde_json::json;

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

/// What waits to be received; not in the file, but known when it is asked for.
const WAITING_BYTES: &str = "rx_waiting_bytes";
const WAITING_PACKETS: &str = "rx_waiting_packets";

/// One socket's numbers, by name.
type Row = BTreeMap<String, u64>;

/// One program's file.
#[derive(Debug)]
struct Source {
    file: File,
    pid: u32,
    command: String,
    why: Vec<String>,
    /// Name, offset and size of each number.
    fields: Vec<(String, u64, usize)>,
    slots_at: u64,
    slot_bytes: u64,
    fresh_at: u64,
    /// Where a level and details of the log may be asked for.
    level_at: Option<u64>,
    details_at: Option<u64>,
    /// Where a description of a socket may be asked for.
    subject_at: Option<u64>,
    /// Where memberships are, how long one is, and how many there are.
    members: Option<[u64; 3]>,
    /// Where files of rings and mailboxes have what is needed to know how much waits there.
    ring: Option<[u64; 4]>,
    mailbox: Option<[u64; 6]>,
    /// Where these files are.
    directory: PathBuf,
}

/// A list of so many numbers.
fn numbers<const COUNT: usize>(text: &str) -> Option<[u64; COUNT]> {
    let numbers: Option<Vec<u64>> = text.split(',').map(|number| number.parse().ok()).collect();
    numbers?.try_into().ok()
}

/// A number in a file.
fn number(file: &File, at: u64, size: usize) -> Option<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(bytes.get_mut(..size)?, at).ok()?;
    Some(u64::from_le_bytes(bytes))
}

impl Source {
    fn open(path: &Path) -> Option<Self> {
        let file = File::options().read(true).write(true).open(path).ok()?;
        let mut head = [0; 4096];
        file.read_exact_at(&mut head, 0).ok()?;
        let end = head.iter().position(|byte| *byte == 0)?;
        let text = std::str::from_utf8(head.get(..end)?).ok()?;
        let text = text.strip_prefix("adverb-sockets 1 ")?;
        let (text, command) = text.split_once(" command=")?;
        let (text, why) = text.split_once(" why=")?;
        let (text, layout) = text.split_once(" layout=")?;
        let word = |name| text.split(' ').find_map(|word| word.strip_prefix(name));
        let pid = word("pid=")?.parse().ok()?;
        let (ring, mailbox) = (word("ring=").and_then(numbers), word("box=").and_then(numbers));
        let (fields, sizes) = layout.split_once("| ")?;
        let fields = fields.split_whitespace().map(|field| {
            let mut parts = field.split(':');
            let name = parts.next()?.to_owned();
            Some((name, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        });
        let mut sizes = sizes.split(' ').map(str::parse::<u64>);
        Some(Self {
            file,
            pid,
            command: command.to_owned(),
            why: why.split(';').map(str::to_owned).collect(),
            fields: fields.collect::<Option<_>>()?,
            slots_at: sizes.next()?.ok()?,
            slot_bytes: sizes.next()?.ok()?,
            fresh_at: sizes.next()?.ok()?,
            level_at: sizes.next().and_then(Result::ok),
            details_at: sizes.next().and_then(Result::ok),
            members: (|| Some([sizes.next()?.ok()?, sizes.next()?.ok()?, sizes.next()?.ok()?]))(),
            subject_at: sizes.next().and_then(Result::ok),
            ring,
            mailbox,
            directory: path.parent().unwrap_or(Path::new("/")).to_owned(),
        })
    }

    fn number(&self, at: u64, size: usize) -> Option<u64> {
        number(&self.file, at, size)
    }

    /// The multicast groups of the socket at a place in the file.
    fn groups(&self, socket_at: u64) -> BTreeSet<IpAddr> {
        let Some([start, size, count]) = self.members else { return BTreeSet::new() };
        let socket = socket_at.saturating_sub(self.slots_at) / self.slot_bytes.max(1) + 1;
        let mut all = vec![0; usize::try_from(size.saturating_mul(count)).unwrap_or(0)];
        if self.file.read_exact_at(&mut all, start).is_err() {
            return BTreeSet::new();
        }
        let size = usize::try_from(size).unwrap_or(0).max(1);
        let members = all.chunks_exact(size).filter_map(|member| {
            let (whose, rest) = member.split_first_chunk::<4>()?;
            let (high, rest) = rest.get(4..)?.split_first_chunk::<8>()?;
            let low = rest.first_chunk::<8>()?;
            let is_it = u64::from(u32::from_le_bytes(*whose)) == socket;
            let (high, low) = (u64::from_le_bytes(*high), u64::from_le_bytes(*low));
            let bits = u128::from(high) << 64 | u128::from(low);
            (is_it && bits != 0).then(|| IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical())
        });
        members.collect()
    }

    /// Fills in what is known when it is asked for: what waits to be received, in shared memory and in the
    /// kernel's queue, and what neither had room for.
    fn ask_around(&self, row: &mut Row) {
        let (queue, drops) = kernel_line(row).map_or((0, 0), |line| (line.queue, line.drops));
        let (bytes, packets) = match (kind(row), transport(row)) {
            ("datagram", _) => {
                let [packets, bytes, lost, lost_bytes] = self.in_mailbox(row).unwrap_or([0; 4]);
                row.insert("rx_dropped_packets".to_owned(), lost.saturating_add(drops));
                row.insert("rx_dropped_bytes".to_owned(), lost_bytes);
                (bytes.saturating_add(queue), packets)
            }
            // What is in the kernel's queue are bells.
            (_, "shm") => {
                row.insert("rx_limit_bytes".to_owned(), get(row, "ring_bytes"));
                (self.in_ring(row).unwrap_or(0), 0)
            }
            _ => (queue, 0),
        };
        row.insert(WAITING_BYTES.to_owned(), bytes);
        row.insert(WAITING_PACKETS.to_owned(), packets);
    }

    fn in_ring(&self, row: &Row) -> Option<u64> {
        let name = format!("{:016x}{:016x}", get(row, "meeting_a"), get(row, "meeting_b"));
        let file = File::open(self.directory.join(name)).ok()?;
        let [to_server_head, to_server_tail, to_client_head, to_client_tail] = self.ring?;
        let (head, tail) = match get(row, "is_server") {
            0 => (to_client_head, to_client_tail),
            _ => (to_server_head, to_server_tail),
        };
        let (tail, head) = (number(&file, tail, 8)?, number(&file, head, 8)?);
        Some(head.saturating_sub(tail))
    }

    /// Datagrams in a mailbox and their bytes, and datagrams and bytes it had no room for.
    fn in_mailbox(&self, row: &Row) -> Option<[u64; 4]> {
        let suffix = format!(".{:016x}", get(row, "cookie"));
        let mut entries = fs::read_dir(&self.directory).ok()?.flatten();
        let is_it = |name: &str| name.starts_with("udp.") && name.ends_with(&suffix);
        let entry = entries.find(|entry| entry.file_name().to_str().is_some_and(is_it))?;
        let file = File::open(entry.path()).ok()?;
        let counts = self.mailbox?.map(|at| number(&file, at, 8));
        let [Some(pushed), Some(taken), Some(charged), Some(released), Some(lost), Some(bytes)] =
            counts
        else {
            return None;
        };
        Some([pushed.saturating_sub(taken), charged.saturating_sub(released), lost, bytes])
    }

    /// The sockets that are open, and where each is in the file.
    fn rows(&self) -> Vec<(u64, Row)> {
        let count = self.number(self.fresh_at, 4).unwrap_or(0);
        let slots = (0..count).map(|index| self.slots_at + index * self.slot_bytes);
        slots
            .filter_map(|at| {
                let read = |(name, offset, size): &(String, u64, usize)| {
                    Some((name.clone(), self.number(at + offset, *size)?))
                };
                let mut row: Row = self.fields.iter().map(read).collect::<Option<_>>()?;
                let is_open = get(&row, "refs") > 0;
                if is_open {
                    self.ask_around(&mut row);
                }
                is_open.then_some((at, row))
            })
            .collect()
    }

    /// Asks for another level, or other details, of the log. Both are written one higher.
    fn ask(&self, at: Option<u64>, value: u32) -> std::io::Result<()> {
        match at {
            Some(at) => self.file.write_all_at(&value.saturating_add(1).to_le_bytes(), at),
            None => Err(std::io::Error::other("the program's library is too old for that")),
        }
    }

    /// Asks for a description of a socket in the program's log: descriptor and level, each one higher.
    fn ask_about(&self, fd: u32, level: u32) -> std::io::Result<()> {
        let Some(at) = self.subject_at else {
            return Err(std::io::Error::other("the program's library is too old for that"));
        };
        let words = u64::from(level.saturating_add(1)) << 32 | u64::from(fd.saturating_add(1));
        self.file.write_all_at(&words.to_le_bytes(), at)
    }

    fn zero(&self) -> std::io::Result<()> {
        for (at, _) in self.rows() {
            let counters = self.fields.iter().filter(|(name, _, _)| is_counter(name));
            for (_, offset, size) in counters {
                self.file.write_all_at([0; 8].get(..*size).unwrap_or(&[]), at + offset)?;
            }
        }
        Ok(())
    }
}

fn is_counter(name: &str) -> bool {
    ["rx_", "tx_", "bells"].iter().any(|start| name.starts_with(start))
}

/// Whether a counter is about what comes and goes, rather than a mark it has left.
fn is_flow(name: &str) -> bool {
    let is_state = ["_max", "rx_limit_bytes", WAITING_BYTES, WAITING_PACKETS];
    is_counter(name) && !is_state.iter().any(|end| name.ends_with(end))
}

fn get(row: &Row, name: &str) -> u64 {
    row.get(name).copied().unwrap_or(0)
}

/// The files of programs that run, those asked for.
fn sources(args: &StatArgs) -> Vec<Source> {
    let mut found = sources_in(args.directory.as_deref(), !args.forbid_clean);
    found.retain(|source| args.pid.is_none_or(|pid| pid == source.pid));
    found.retain(|source| args.name.as_ref().is_none_or(|name| source.command.contains(name)));
    found
}

/// The files of all programs that run, by their numbers; those of others are removed if `cleans`.
fn sources_in(directory: Option<&Path>, cleans: bool) -> Vec<Source> {
    let user = fs::metadata("/proc/self").map(|meta| std::os::unix::fs::MetadataExt::uid(&meta));
    let meeting = format!("/dev/shm/adverb-sockets-{}", user.unwrap_or(0));
    let named = std::env::var_os("ADVERB_SOCKETS_SHM_DIR").filter(|named| !named.is_empty());
    let directory = directory.map(PathBuf::from).or_else(|| named.map(PathBuf::from));
    let directory = directory.unwrap_or_else(|| PathBuf::from(meeting));
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<Source> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let name = name.to_str()?;
            let pid = name.strip_prefix("stat.").or(name.strip_prefix("adverb-sockets."))?;
            if !Path::new("/proc").join(pid).exists() {
                if cleans {
                    let _ = fs::remove_file(entry.path());
                }
                return None;
            }
            // A child goes on with the file of the one that made it.
            let pid = pid.parse().ok()?;
            Source::open(&entry.path()).map(|source| Source { pid, ..source })
        })
        .collect();
    found.sort_by_key(|source| source.pid);
    found
}

/// What accelerated programs do, for `adverb top`.
pub(crate) fn groups() -> Vec<Group> {
    sources_in(None, false).iter().map(group).collect()
}

fn group(source: &Source) -> Group {
    let members: Vec<_> = source.rows().iter().map(|(_, row)| member(row)).collect();
    let sum = |of: fn(&Flow) -> u64| members.iter().map(|member| of(&member.flow)).sum();
    Group {
        pid: source.pid,
        command: printable(source.command.rsplit('/').next().unwrap_or_default()),
        place: "sockets".to_owned(),
        fresh: true,
        flow: Flow {
            sent: sum(|flow| flow.sent),
            received: sum(|flow| flow.received),
            dropped: sum(|flow| flow.dropped),
            resent: 0,
        },
        members,
        more: 0,
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
    let level = asked_level(args.log_level.as_deref())?;
    let subject = subject(args)?;
    let mut before: BTreeMap<(u32, u64), Row> = BTreeMap::new();
    let seconds = args.interval;
    if args.details == 2 {
        // What has come since the last report: the first has one before it that is not shown.
        for source in sources(args) {
            let rows = source.rows().into_iter();
            before.extend(rows.map(|(at, row)| ((source.pid, at), row)));
        }
        std::thread::sleep(Duration::from_secs(seconds));
    }
    let mut cycle = 0;
    loop {
        let sources = sources(args);
        if sources.is_empty() {
            return Err(Failure::Failed("Failed to identify process...".to_owned()));
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
            let rows = source
                .rows()
                .into_iter()
                .filter(|(_, row)| args.sockets.is_empty() || lists(&args.sockets, get(row, "fd")));
            let mut shown = Vec::new();
            for (at, row) in rows {
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
            match args.prometheus {
                true => shown.iter().for_each(|(_, row)| expose(&mut exposition, source, row)),
                false => show(args, source, &shown)?,
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

fn show(args: &StatArgs, source: &Source, rows: &[(u64, Row)]) -> Result<(), Failure> {
    if args.json {
        let sockets: Vec<_> = rows.iter().map(|(at, row)| as_json(source, *at, row)).collect();
        let all = json!({ "pid": source.pid, "command": source.command, "sockets": sockets });
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
        }
        4 => {
            for (at, row) in rows {
                for group in source.groups(*at) {
                    println!("{:<20} {}", format!("[{group}]"), get(row, "fd"));
                }
            }
        }
        5 => rows.iter().for_each(|(_, row)| netstat(row)),
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

fn kind(row: &Row) -> &'static str {
    match get(row, "kind") {
        2 => "listener",
        3 => "connecting",
        4 => "connection",
        5 => "datagram",
        _ => "new",
    }
}

fn transport(row: &Row) -> &'static str {
    // A datagram socket with a mailbox has both, and is called by the faster.
    let has_mailbox = kind(row) == "datagram" && get(row, "has_inbox") != 0;
    match get(row, "carrier") {
        3 => "shm",
        _ if has_mailbox => "shm",
        _ => "kernel",
    }
}

fn why<'a>(source: &'a Source, row: &Row) -> &'a str {
    let index = usize::try_from(get(row, "why")).unwrap_or(usize::MAX);
    source.why.get(index).map_or("", String::as_str)
}

fn counters(source: &Source, row: &Row, view: u8, per: &str) {
    let n = |name| get(row, name);
    let polls = n("rx_poll_hit") + n("rx_poll_miss");
    let percent = (n("rx_poll_hit") * 1000).checked_div(polls).unwrap_or(0);
    println!(
        "{:>5}  Rx: {:>11} {:>11} {:>9} {:>7} {:>4}.{} {:>11} {:>11}  {}: {}",
        n("fd"),
        n("rx_packets"),
        n("rx_bytes") / 1024,
        n("rx_eagain"),
        n("rx_errors"),
        percent / 10,
        percent % 10,
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
    if let Some(KernelLine { local, remote, state, .. }) = kernel_line(row) {
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
    let hundredths = (hit * 10_000).checked_div(hit + miss).unwrap_or(0);
    let percent = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    println!("Rx poll: {miss} / {hit} ({percent}%) [miss/hit]");
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

/// What the kernel says of a socket.
struct KernelLine {
    table: &'static str,
    local: String,
    remote: String,
    state: &'static str,
    inode: String,
    /// Bytes in its receive queue, and datagrams there was no room for.
    queue: u64,
    drops: u64,
}

/// The kernel's line about a socket, found by the number that its descriptor has.
fn kernel_line(row: &Row) -> Option<KernelLine> {
    let (pid, fd) = (get(row, "pid"), get(row, "fd"));
    let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned();
    let is_datagram = kind(row) == "datagram";
    let tables = if is_datagram { ["udp", "udp6"] } else { ["tcp", "tcp6"] };
    tables.into_iter().find_map(|table| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).ok()?;
        let is_it = |line: &&str| line.split_whitespace().nth(9) == Some(&inode);
        let words: Vec<&str> = text.lines().find(is_it)?.split_whitespace().collect();
        let (_, queue) = words.get(4)?.split_once(':')?;
        Some(KernelLine {
            table,
            local: address(words.get(1)?),
            remote: address(words.get(2)?),
            state: if is_datagram { "" } else { state_name(words.get(3)?) },
            inode: inode.clone(),
            queue: u64::from_str_radix(queue, 16).ok()?,
            drops: words.get(12).filter(|_| is_datagram).and_then(|n| n.parse().ok()).unwrap_or(0),
        })
    })
}

/// One line as netstat has it: addresses and state are the kernel's.
fn netstat(row: &Row) {
    let Some(KernelLine { table, local, remote, state, inode, .. }) = kernel_line(row) else {
        return;
    };
    let offloaded = if transport(row) == "shm" { "Yes" } else { "No" };
    let pid = get(row, "pid");
    println!("{table:<5} {offloaded:<9} {local:<23} {remote:<23} {state:<12} {inode:<7} {pid}");
}

fn state_name(state: &str) -> &'static str {
    match state {
        "01" => "ESTABLISHED",
        "02" => "SYN_SENT",
        "04" => "FIN_WAIT1",
        "05" => "FIN_WAIT2",
        "06" => "TIME_WAIT",
        "08" => "CLOSE_WAIT",
        "0A" => "LISTEN",
        _ => "CLOSED",
    }
}

/// An address as `/proc/net` has it: hexadecimal words, each in the machine's order.
fn address(text: &str) -> String {
    let Some((host, port)) = text.split_once(':') else { return text.to_owned() };
    let port = u16::from_str_radix(port, 16).unwrap_or(0);
    let words: Vec<u32> = (0..host.len() / 8)
        .filter_map(|at| u32::from_str_radix(host.get(at * 8..at * 8 + 8)?, 16).ok())
        .collect();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let host = match (<[u8; 4]>::try_from(bytes.as_slice()), <[u8; 16]>::try_from(bytes)) {
        (Ok(v4), _) => std::net::Ipv4Addr::from(v4).to_string(),
        (_, Ok(v6)) => Ipv6Addr::from(v6).to_string(),
        _ => host.to_owned(),
    };
    if port == 0 { format!("{host}:*") } else { format!("{host}:{port}") }
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

    #[test]
    fn addresses_are_read_as_proc_writes_them() {
        assert_eq!(address("0100007F:1F90"), "127.0.0.1:8080");
        assert_eq!(address("00000000:0000"), "0.0.0.0:*");
        assert_eq!(address("00000000000000000000000001000000:0050"), "::1:80");
    }
}
