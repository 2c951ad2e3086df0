//! The files that accelerated programs publish: what sockets count, and where the rest is to be asked for.
//!
//! Each program publishes a file whose first lines say how to read the rest, so this room knows
//! names, and no layout. Addresses and states are the kernel's, and come from `/proc`. Not here: how all that
//! is shown (`stat.rs`).

use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use adverb_sys::process;
use rustix::fs::OFlags;

use crate::top::group::printable;

/// What waits to be received; not in the file, but known when it is asked for.
pub(super) const WAITING_BYTES: &str = "rx_waiting_bytes";
pub(super) const WAITING_PACKETS: &str = "rx_waiting_packets";

/// What the library calls its thread, as the kernel says it.
const INTERNAL_THREAD: &str = "adverb-frames\n";

/// One socket's numbers, by name.
pub(super) type Row = BTreeMap<String, u64>;

/// One program's file.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) file: File,
    pub(super) pid: u32,
    pub(super) command: String,
    why: Vec<String>,
    /// Name, and place in a slot, of each number.
    fields: Vec<(String, Range<usize>)>,
    slots_at: u64,
    slot_bytes: usize,
    fresh_at: u64,
    /// Where a level and details of the log may be asked for.
    pub(super) level_at: Option<u64>,
    pub(super) details_at: Option<u64>,
    /// Where a description of a socket may be asked for.
    subject_at: Option<u64>,
    /// Where memberships are, how long one is, and how many there are.
    members: Option<[u64; 3]>,
    /// How many sockets are shown.
    shown_max: usize,
    /// Where files of rings and mailboxes have what is needed to know how much waits there.
    ring: Option<[u64; 4]>,
    mailbox: Option<[u64; 6]>,
    /// Where what sockets had counted lies that are closed.
    closed_at: Option<u64>,
    waits: Option<Waits>,
    /// Where these files are.
    directory: PathBuf,
    /// What the kernel said of the sockets of each network namespace, and where mailboxes are, by the kernel's number
    /// of each's socket: to read that for each socket, or each process, would take for ever.
    tables: RefCell<BTreeMap<(PathBuf, &'static str), Table>>,
    mailboxes: RefCell<Option<BTreeMap<String, PathBuf>>>,
}

/// Where calls that wait count: in several places, of which each has what each call has counted.
#[derive(Debug)]
struct Waits {
    at: u64,
    stride: u64,
    places: u64,
    calls: Vec<String>,
    names: Vec<String>,
}

impl Waits {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(':');
        let mut number = || words.next()?.parse().ok();
        let (at, stride, places) = (number()?, number()?, number()?);
        let mut list = || words.next()?.split(',').map(name).collect::<Option<Vec<_>>>();
        let (calls, names) = (list()?, list()?);
        let is_legal = places <= PLACES_MAX && calls.len() * names.len() <= FIELDS_MAX;
        is_legal.then_some(Self { at, stride, places, calls, names })
    }

    /// Where each number of each call lies, in all places.
    fn each(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        let names = move |call| self.names.iter().map(move |name| (call, name));
        let all = self.calls.iter().flat_map(names);
        (0..self.places).flat_map(move |place| {
            let start = self.at.saturating_add(place.saturating_mul(self.stride));
            let each = all.clone().zip((0..).step_by(8));
            each.map(move |((call, name), at)| {
                (call.as_str(), name.as_str(), start.saturating_add(at))
            })
        })
    }
}

// What a file says may be nonsense. It is believed up to these bounds.

/// Places where calls that wait count.
const PLACES_MAX: u64 = 1024;
/// Numbers of a socket; or of one such place.
const FIELDS_MAX: usize = 256;
/// What one socket takes in the file.
const SLOT_BYTES_MAX: usize = 1 << 16;
/// Sockets.
const SLOTS_MAX: u64 = 1 << 18;
/// Memberships of all sockets.
const MEMBERS_BYTES_MAX: u64 = 1 << 20;
/// Tables of the kernel's that are kept for the sockets of one file: four for each network namespace of its processes.
const TABLES_MAX: usize = 4 * 16;

/// The name of a number, as others may read it.
fn name(text: &str) -> Option<String> {
    let is_legal = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    (!text.is_empty() && text.bytes().all(is_legal)).then(|| text.to_owned())
}

/// When the time was measured first for which calls have spun.
pub(super) const SINCE: &str = "polling_since_ns";

/// A list of so many numbers.
pub(super) fn numbers<const COUNT: usize>(text: &str) -> Option<[u64; COUNT]> {
    let numbers: Option<Vec<u64>> = text.split(',').map(|number| number.parse().ok()).collect();
    numbers?.try_into().ok()
}

/// A number in a file.
pub(super) fn number(file: &File, at: u64, size: usize) -> Option<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(bytes.get_mut(..size)?, at).ok()?;
    Some(u64::from_le_bytes(bytes))
}

/// A pipe would be waited for, and a link may lead to anything.
const FLAGS: i32 = OFlags::NONBLOCK.union(OFlags::NOFOLLOW).bits().cast_signed();

/// Opens a file of a program's, if it is one: its user may have put anything there.
fn open(path: &Path, options: &mut OpenOptions) -> Option<File> {
    let file = options.read(true).custom_flags(FLAGS).open(path).ok()?;
    file.metadata().is_ok_and(|about| about.is_file()).then_some(file)
}

/// The same, to read it alone.
fn open_read(path: &Path) -> Option<File> {
    open(path, &mut File::options())
}

impl Source {
    pub(super) fn open(path: &Path) -> Option<Self> {
        let file = open(path, File::options().write(true))?;
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
        let mut sizes = sizes.split(' ').map(str::parse::<u64>);
        let slots_at = sizes.next()?.ok()?;
        let slot_bytes = usize::try_from(sizes.next()?.ok()?).ok();
        let slot_bytes = slot_bytes.filter(|bytes| (1..=SLOT_BYTES_MAX).contains(bytes))?;
        let fields = fields.split_whitespace().map(|field| {
            let mut parts = field.split(':');
            let name = name(parts.next()?)?;
            let (start, size): (usize, usize) =
                (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            let end = start.checked_add(size).filter(|end| size <= 8 && *end <= slot_bytes)?;
            Some((name, start..end))
        });
        let fields: Vec<_> = fields.collect::<Option<_>>()?;
        if fields.len() > FIELDS_MAX {
            return None;
        }
        Some(Self {
            file,
            pid,
            command: printable(command),
            why: why.split(';').map(printable).collect(),
            fields,
            slots_at,
            slot_bytes,
            fresh_at: sizes.next()?.ok()?,
            level_at: sizes.next().and_then(Result::ok),
            details_at: sizes.next().and_then(Result::ok),
            members: (|| Some([sizes.next()?.ok()?, sizes.next()?.ok()?, sizes.next()?.ok()?]))(),
            subject_at: sizes.next().and_then(Result::ok),
            shown_max: word("fds=").and_then(|most| most.parse().ok()).unwrap_or(usize::MAX),
            ring,
            mailbox,
            closed_at: word("closed=").and_then(|at| at.parse().ok()),
            waits: word("waits=").and_then(Waits::parse),
            directory: path.parent().unwrap_or(Path::new("/")).to_owned(),
            tables: RefCell::default(),
            mailboxes: RefCell::default(),
        })
    }

    fn number(&self, at: u64, size: usize) -> Option<u64> {
        number(&self.file, at, size)
    }

    /// The multicast groups of the socket at a place in the file.
    pub(super) fn groups(&self, socket_at: u64) -> BTreeSet<IpAddr> {
        let Some([start, size, count]) = self.members else { return BTreeSet::new() };
        let socket = socket_at.saturating_sub(self.slots_at) / self.slot_stride() + 1;
        let bytes = size.saturating_mul(count).min(MEMBERS_BYTES_MAX);
        let mut all = vec![0; usize::try_from(bytes).unwrap_or(0)];
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

    /// The kernel's line about a socket, found by the number that its descriptor has, as it was when the sockets were last
    /// gone through.
    pub(super) fn kernel_line(&self, row: &Row) -> Option<KernelLine> {
        let (pid, fd) = (get(row, "pid"), get(row, "fd"));
        let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
        let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        let names = if kind(row) == "datagram" { ["udp", "udp6"] } else { ["tcp", "tcp6"] };
        let namespace = fs::read_link(format!("/proc/{pid}/ns/net")).ok()?;
        let mut tables = self.tables.borrow_mut();
        names.into_iter().find_map(|name| {
            let place = (namespace.clone(), name);
            if tables.len() >= TABLES_MAX && !tables.contains_key(&place) {
                return None;
            }
            let table = match tables.entry(place) {
                Entry::Occupied(known) => known.into_mut(),
                // A process that has ended says nothing of its namespace, but others there may.
                Entry::Vacant(unknown) => unknown.insert(table_of(pid, name)?),
            };
            table.get(inode).cloned()
        })
    }

    /// Fills in what is known when it is asked for: what waits to be received, in shared memory and in the
    /// kernel's queue, and what neither had room for.
    fn ask_around(&self, row: &mut Row) {
        let (queue, drops) = self.kernel_line(row).map_or((0, 0), |line| (line.queue, line.drops));
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
        let file = open_read(&self.directory.join(name))?;
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
        let mut known = self.mailboxes.borrow_mut();
        let mailboxes = known.get_or_insert_with(|| mailboxes_in(&self.directory));
        let file = open_read(mailboxes.get(&format!("{:016x}", get(row, "cookie")))?)?;
        let counts = self.mailbox?.map(|at| number(&file, at, 8));
        let [Some(pushed), Some(taken), Some(charged), Some(released), Some(lost), Some(bytes)] =
            counts
        else {
            return None;
        };
        Some([pushed.saturating_sub(taken), charged.saturating_sub(released), lost, bytes])
    }

    fn slot_stride(&self) -> u64 {
        u64::try_from(self.slot_bytes).unwrap_or(u64::MAX)
    }

    /// The sockets that are open, and where each is in the file.
    pub(super) fn rows(&self) -> impl Iterator<Item = (u64, Row)> {
        self.tables.borrow_mut().clear();
        self.mailboxes.borrow_mut().take();
        let count = self.number(self.fresh_at, 4).unwrap_or(0).min(SLOTS_MAX);
        let mut slot = vec![0; self.slot_bytes];
        (0..count).filter_map(move |index| {
            let at = self.slots_at.checked_add(index * self.slot_stride())?;
            self.file.read_exact_at(&mut slot, at).ok()?;
            let number = |place: &Range<usize>| {
                let mut bytes = [0; 8];
                let from = slot.get(place.clone()).unwrap_or_default();
                bytes.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                u64::from_le_bytes(bytes)
            };
            let (_, references) = self.fields.iter().find(|(name, _)| name == "refs")?;
            if number(references) == 0 {
                return None;
            }
            let numbers = self.fields.iter().map(|(name, place)| (name.clone(), number(place)));
            let mut row: Row = numbers.collect();
            self.ask_around(&mut row);
            Some((at, row))
        })
    }

    /// How many of them the program wants shown, the first ones.
    pub(super) fn shown_max(&self) -> usize {
        self.shown_max
    }

    /// Asks for another level, or other details, of the log. Both are written one higher.
    pub(super) fn ask(&self, at: Option<u64>, value: u32) -> std::io::Result<()> {
        match at {
            Some(at) => self.file.write_all_at(&value.saturating_add(1).to_le_bytes(), at),
            None => Err(std::io::Error::other("the program's library is too old for that")),
        }
    }

    /// Asks for a description of a socket in the program's log: descriptor and level, each one higher.
    pub(super) fn ask_about(&self, fd: u32, level: u32) -> std::io::Result<()> {
        let Some(at) = self.subject_at else {
            return Err(std::io::Error::other("the program's library is too old for that"));
        };
        let words = u64::from(level.saturating_add(1)) << 32 | u64::from(fd.saturating_add(1));
        self.file.write_all_at(&words.to_le_bytes(), at)
    }

    /// What each kind of call that waits has counted.
    pub(super) fn waits(&self) -> BTreeMap<String, Row> {
        let mut all: BTreeMap<String, Row> = BTreeMap::new();
        for (call, name, at) in self.waits.iter().flat_map(Waits::each) {
            let Some(count) = self.number(at, 8) else { continue };
            let row = all.entry(call.to_owned()).or_default();
            let sum = row.entry(name.to_owned()).or_default();
            *sum = match name {
                SINCE if *sum == 0 || count == 0 => count.max(*sum),
                SINCE => count.min(*sum),
                _ => sum.saturating_add(count),
            };
        }
        all
    }

    /// What the thread of the library that carries frames has taken of processors, in ns, and how often it has slept, by the
    /// kernel; `None` if the program has none.
    pub(super) fn internal_thread(&self) -> Option<Row> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid)).ok()?;
        let is_it = |thread: &PathBuf| {
            fs::read_to_string(thread.join("comm")).is_ok_and(|name| name == INTERNAL_THREAD)
        };
        let thread = threads.flatten().map(|entry| entry.path()).find(is_it)?;
        let times = fs::read_to_string(thread.join("schedstat")).ok()?;
        let status = fs::read_to_string(thread.join("status")).ok()?;
        let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        Some(Row::from([
            ("cpu_ns".to_owned(), times.split_whitespace().next()?.parse().ok()?),
            ("sleeps".to_owned(), sleeps?.trim().parse().ok()?),
        ]))
    }

    /// What all sockets have counted, those that are closed as well.
    pub(super) fn totals(&self) -> Row {
        let counters = || self.fields.iter().filter(|(name, _)| is_counter(name));
        let first = counters().map(|(_, place)| place.start).min().unwrap_or(0);
        let mut totals = Row::new();
        for (name, place) in counters().filter(|(name, _)| is_flow(name)) {
            let behind = u64::try_from(place.start - first).unwrap_or(u64::MAX);
            let at = self.closed_at.and_then(|at| at.checked_add(behind));
            let closed = at.and_then(|at| self.number(at, place.len()));
            totals.insert(name.clone(), closed.unwrap_or(0));
        }
        for (_, row) in self.rows() {
            for (name, sum) in &mut totals {
                *sum = sum.saturating_add(get(&row, name));
            }
        }
        totals
    }

    pub(super) fn zero(&self) -> std::io::Result<()> {
        for (at, _) in self.rows() {
            for (_, place) in self.fields.iter().filter(|(name, _)| is_counter(name)) {
                let start = u64::try_from(place.start).unwrap_or(u64::MAX);
                let zeros = [0; 8];
                let zeros = zeros.get(..place.len()).unwrap_or_default();
                self.file.write_all_at(zeros, at.saturating_add(start))?;
            }
        }
        for (_, _, at) in self.waits.iter().flat_map(Waits::each) {
            self.file.write_all_at(&[0; 8], at)?;
        }
        Ok(())
    }
}

pub(super) fn is_counter(name: &str) -> bool {
    ["rx_", "tx_", "bells"].iter().any(|start| name.starts_with(start))
}

/// Whether a counter is about what comes and goes, rather than a mark it has left.
pub(super) fn is_flow(name: &str) -> bool {
    let is_state = ["_max", "rx_limit_bytes", WAITING_BYTES, WAITING_PACKETS];
    is_counter(name) && !is_state.iter().any(|end| name.ends_with(end))
}

pub(super) fn get(row: &Row, name: &str) -> u64 {
    row.get(name).copied().unwrap_or(0)
}

/// Where programs of a user meet, unless they are told otherwise.
pub(super) fn meeting_of(user: u32) -> PathBuf {
    PathBuf::from(format!("/dev/shm/adverb-sockets-{user}"))
}

/// What becomes of files of programs that have ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Dead {
    Left,
    Removed,
    /// They are listed with the others.
    Listed,
}

/// The files of all programs that run, by their numbers.
pub(super) fn sources_in(directory: Option<&Path>, dead: Dead) -> Vec<Source> {
    let named = std::env::var_os("ADVERB_SOCKETS_SHM_DIR").filter(|named| !named.is_empty());
    let directory = directory.map(PathBuf::from).or_else(|| named.map(PathBuf::from));
    let directory = directory.unwrap_or_else(|| meeting_of(process::user()));
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let own = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let mut found: Vec<Source> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let name = name.to_str()?;
            let of = name.strip_prefix("stat.").or(name.strip_prefix("adverb-sockets."))?;
            let (pid, processes) = of.split_once('.').unwrap_or((of, "0"));
            let pid = pid.parse().ok()?;
            // Of another process namespace, its number says nothing here.
            if processes != "0" && own.as_os_str() != format!("pid:[{processes}]").as_str() {
                return None;
            }
            let source = Source::open(&entry.path());
            if dead != Dead::Listed && !Path::new(&format!("/proc/{pid}")).exists() {
                if dead == Dead::Removed {
                    let _ = fs::remove_file(entry.path());
                }
                return None;
            }
            // A child goes on with the file of the one that made it.
            source.map(|source| Source { pid, ..source })
        })
        .collect();
    found.sort_by_key(|source| source.pid);
    found
}

pub(super) fn kind(row: &Row) -> &'static str {
    match get(row, "kind") {
        2 => "listener",
        3 => "connecting",
        4 => "connection",
        5 => "datagram",
        _ => "new",
    }
}

pub(super) fn transport(row: &Row) -> &'static str {
    // A datagram socket with a mailbox has both, and is called by the faster.
    let has_mailbox = kind(row) == "datagram" && get(row, "has_inbox") != 0;
    match get(row, "carrier") {
        3 => "shm",
        _ if has_mailbox => "shm",
        _ => "kernel",
    }
}

pub(super) fn why<'a>(source: &'a Source, row: &Row) -> &'a str {
    let index = usize::try_from(get(row, "why")).unwrap_or(usize::MAX);
    source.why.get(index).map_or("", String::as_str)
}

/// What the kernel says of a socket.
#[derive(Clone, Debug)]
pub(super) struct KernelLine {
    pub(super) table: &'static str,
    pub(super) local: String,
    pub(super) remote: String,
    pub(super) state: &'static str,
    pub(super) inode: String,
    /// Bytes in its receive queue, and datagrams there was no room for.
    queue: u64,
    drops: u64,
}

impl KernelLine {
    fn parse(table: &'static str, line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (_, queue) = words.get(4)?.split_once(':')?;
        let is_datagram = table.starts_with("udp");
        Some(Self {
            table,
            local: address(words.get(1)?),
            remote: address(words.get(2)?),
            state: if is_datagram { "" } else { state_name(words.get(3)?) },
            inode: (*words.get(9)?).to_owned(),
            queue: u64::from_str_radix(queue, 16).ok()?,
            drops: words.get(12).filter(|_| is_datagram).and_then(|n| n.parse().ok()).unwrap_or(0),
        })
    }
}

/// The files of mailboxes there.
fn mailboxes_in(directory: &Path) -> BTreeMap<String, PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mailboxes = entries.filter_map(|entry| {
        let name = entry.file_name();
        let (_, cookie) = name.to_str()?.strip_prefix("udp.")?.rsplit_once('.')?;
        Some((cookie.to_owned(), entry.path()))
    });
    mailboxes.collect()
}

/// Lines of one of the kernel's tables, by the numbers that descriptors have.
type Table = BTreeMap<String, KernelLine>;

/// The table that a process sees, which is that of its network namespace.
fn table_of(pid: u64, table: &'static str) -> Option<Table> {
    let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).ok()?;
    let lines = text.lines().filter_map(|line| KernelLine::parse(table, line));
    Some(lines.map(|line| (line.inode.clone(), line)).collect())
}

pub(super) fn state_name(state: &str) -> &'static str {
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
pub(super) fn address(text: &str) -> String {
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
    fn places_of_calls_are_read_in_their_order() {
        let waits = Waits::parse("64:32:2:select,poll:hit,miss").expect("a legal text");
        let all: Vec<_> = waits.each().collect();
        let first = [("select", "hit", 64), ("select", "miss", 72), ("poll", "hit", 80)];
        assert_eq!(all.get(..3), Some(&first[..]));
        assert_eq!(all.get(4), Some(&("select", "hit", 96)));
        assert_eq!(all.len(), 8);
        assert!(Waits::parse("64:32:x:select:hit").is_none());
    }

    #[test]
    fn a_process_that_has_ended_says_nothing_of_its_namespace() {
        let mut ended = std::process::Command::new("true").spawn().expect("true(1)");
        let pid = u64::from(ended.id());
        ended.wait().expect("it ends");
        assert!(table_of(pid, "udp").is_none());
        assert!(table_of(std::process::id().into(), "udp").is_some());
    }

    /// Goal: a pipe that lies where a ring or a mailbox should is not waited for, and a link is not followed.
    #[test]
    fn only_files_are_opened() {
        let place = std::env::temp_dir().join(format!("adverb-opened-{}", std::process::id()));
        fs::create_dir_all(&place).expect("a directory");
        let [file, pipe, link] = ["file", "pipe", "link"].map(|name| place.join(name));
        fs::write(&file, "text").expect("a file");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo(1)");
        assert!(made.success());
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        assert!(open_read(&file).is_some());
        assert!([&pipe, &link, &place].into_iter().all(|path| open_read(path).is_none()));
        fs::remove_dir_all(&place).expect("a directory");
    }

    #[test]
    fn addresses_are_read_as_proc_writes_them() {
        assert_eq!(address("0100007F:1F90"), "127.0.0.1:8080");
        assert_eq!(address("00000000:0000"), "0.0.0.0:*");
        assert_eq!(address("00000000000000000000000001000000:0050"), "::1:80");
    }
}
