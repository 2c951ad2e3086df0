//! Statistics page: the counters that a process shows to others, and how others read it.
//!
//! Each open device has pages of its own in memory, which others find through the registry and a
//! descriptor in `/proc`, and which vanish with their process. Nothing is written there on the data
//! path: a reader asks by a word in the registry and a datagram that wakes the device, and
//! the helper copies the counters once. A process that is stopped shows what it showed last.
//!
//! A reader trusts nothing: the pages may be another version's, or change at any time.

use crate::data_path::DataPath;
use crate::registry::counters::PortCounters;
use crate::registry::relay::LOOPBACK;
use crate::registry::{Exhibitor, RegistryReader};
use adverb_engine::{QpCounters, QpState};
use adverb_sys::memory::{self, Mapping};
use adverb_wire::Qpn;
use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

/// The layout, in words of 64 bits. A change of any of it is a change of [`VERSION`].
mod layout {
    use super::{PortCounters, QpCounters};

    pub(super) const MAGIC: usize = 0;
    /// Version, and how many counters of either kind there are.
    pub(super) const SHAPE: usize = 1;
    pub(super) const PID: usize = 2;
    /// Odd while it is written.
    pub(super) const EDITION: usize = 3;
    /// The last question that was answered.
    pub(super) const ANSWERED: usize = 4;
    /// Queue pairs that there are; of them the first have rows.
    pub(super) const QPS: usize = 5;
    pub(super) const NAME: usize = 6;
    pub(super) const NAME_WORDS: usize = 4;
    pub(super) const PORT: usize = NAME + NAME_WORDS;
    /// All queue pairs together, those that have gone included.
    pub(super) const TOTAL: usize = PORT + PortCounters::COUNT;
    pub(super) const ROWS: usize = TOTAL + QpCounters::COUNT;
    pub(super) const ROW_NUMBER: usize = 0;
    /// One more than the peer's number; 0 for none.
    pub(super) const ROW_PEER: usize = 1;
    pub(super) const ROW_STATE: usize = 2;
    /// One more than the place of the path in [`super::PATHS`]; 0 for none.
    pub(super) const ROW_PATH: usize = 3;
    pub(super) const ROW_COUNTERS: usize = 4;
    pub(super) const ROW_WORDS: usize = ROW_COUNTERS + QpCounters::COUNT;
    pub(super) const WORDS: usize = ROWS + ROW_WORDS * super::ROWS_MAX;
}

const MAGIC: u64 = 0x4164_7672_636f_756e;
const VERSION: u64 = 2;
/// Paths by the number that stands for them.
const PATHS: [DataPath; 3] = [DataPath::Udp, DataPath::SharedMemory, DataPath::InProcess];
/// Queue pairs of one device that others see.
const ROWS_MAX: usize = 1024;
const WORD_BYTES: usize = size_of::<u64>();
/// Times that a reader starts again because it was being written.
const TRIES_MAX: usize = 100;
/// How long a reader waits for answers: longer than the helper looks away.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);

/// One queue pair, as others see it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QpRow {
    /// Its number.
    pub number: Qpn,
    /// The peer's number, if it is connected to one.
    pub peer: Option<Qpn>,
    /// Its state.
    pub state: QpState,
    /// Which way its packets go, if it is connected.
    pub path: Option<DataPath>,
    /// What it has counted.
    pub counters: QpCounters,
}

/// One open device of one process, as others see it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DeviceReport {
    /// The process.
    pub pid: u32,
    /// The device's name.
    pub device: String,
    /// It answered in time; otherwise this is what it showed last.
    pub fresh: bool,
    /// What the port has counted.
    pub port: PortCounters,
    /// What all its queue pairs have counted, those that have gone included.
    pub total: QpCounters,
    /// Its queue pairs, as many as fit.
    pub qps: Vec<QpRow>,
    /// Those that did not fit.
    pub more: u64,
}

/// The pages of one device of this process.
#[derive(Debug)]
pub(crate) struct StatsPage {
    memory: Mapping,
    file: OwnedFd,
    answered: AtomicU32,
}

impl StatsPage {
    pub(crate) fn new(device: &str) -> io::Result<Self> {
        let bytes = layout::WORDS * WORD_BYTES;
        let file = memory::memfd("adverb-counters", bytes)?;
        let memory = Mapping::shared(&file, bytes)?;
        memory::seal_for_readers(&file)?;
        let stats_page = Self { memory, file, answered: AtomicU32::new(0) };
        stats_page.put(layout::SHAPE, shape());
        stats_page.put(layout::PID, u64::from(std::process::id()));
        let mut name = [0; layout::NAME_WORDS * WORD_BYTES];
        name.iter_mut().zip(device.bytes()).for_each(|(place, byte)| *place = byte);
        for (at, bytes) in name.as_chunks().0.iter().enumerate() {
            stats_page.put(layout::NAME + at, u64::from_le_bytes(*bytes));
        }
        stats_page.put(layout::MAGIC, MAGIC);
        Ok(stats_page)
    }

    /// Where others find it.
    pub(crate) fn descriptor(&self) -> u32 {
        u32::try_from(self.file.as_raw_fd()).unwrap_or(u32::MAX)
    }

    /// No reader has asked since the last answer.
    #[inline]
    pub(crate) fn has_answered(&self, asked: u32) -> bool {
        self.answered.load(Ordering::Relaxed) == asked
    }

    /// Answers question number `asked`; `gone` is what queue pairs have counted that are no more.
    /// One thread at a time does this.
    pub(crate) fn answer(
        &self,
        asked: u32,
        port: PortCounters,
        gone: QpCounters,
        rows: impl Iterator<Item = QpRow>,
    ) {
        let edition = word(&self.memory, layout::EDITION);
        let before = edition.load(Ordering::Relaxed);
        edition.store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.put_all(layout::PORT, &port.to_array());
        let (mut count, mut total) = (0, gone);
        for row in rows {
            total += row.counters;
            if count < ROWS_MAX {
                self.put_row(layout::ROWS + count * layout::ROW_WORDS, &row);
            }
            count += 1;
        }
        self.put_all(layout::TOTAL, &total.to_array());
        self.put(layout::QPS, u64::try_from(count).unwrap_or(u64::MAX));
        self.put(layout::ANSWERED, u64::from(asked));
        edition.store(before.wrapping_add(2), Ordering::Release);
        self.answered.store(asked, Ordering::Relaxed);
    }

    fn put_row(&self, base: usize, row: &QpRow) {
        let state = QpState::ALL.iter().position(|state| *state == row.state);
        self.put(base + layout::ROW_NUMBER, u64::from(row.number.get()));
        self.put(base + layout::ROW_PEER, row.peer.map_or(0, |peer| u64::from(peer.get()) + 1));
        self.put(base + layout::ROW_STATE, state.and_then(|at| at.try_into().ok()).unwrap_or(0));
        let path = row.path.and_then(|path| PATHS.iter().position(|known| *known == path));
        self.put(
            base + layout::ROW_PATH,
            path.and_then(|at| u64::try_from(at + 1).ok()).unwrap_or(0),
        );
        self.put_all(base + layout::ROW_COUNTERS, &row.counters.to_array());
    }

    fn put_all(&self, base: usize, values: &[u64]) {
        for (at, value) in values.iter().enumerate() {
            self.put(base + at, *value);
        }
    }

    fn put(&self, at: usize, value: u64) {
        word(&self.memory, at).store(value, Ordering::Relaxed);
    }
}

/// Everything that devices of this user in this network namespace have counted: one report for each
/// device that a process has open.
///
/// Processes of another version are left out, and so are those of another process namespace.
///
/// # Errors
///
/// The registry cannot be read.
pub fn survey() -> io::Result<Vec<DeviceReport>> {
    let Some(reader) = RegistryReader::begin()? else {
        return Ok(Vec::new());
    };
    let open: Vec<_> = reader
        .exhibitors()
        .filter_map(|exhibitor| Some((Book::open(&exhibitor)?, exhibitor)))
        .map(|(book, exhibitor)| (book, reader.ask(&exhibitor), exhibitor))
        .collect();
    for here in LOOPBACK {
        let Ok(doorbell) = UdpSocket::bind((here, 0)) else { continue };
        for (_, _, exhibitor) in &open {
            // A device that cannot be woken answers when it next looks, or shows what it showed last.
            let _ = doorbell.send_to(&[], (here, exhibitor.relay_port));
        }
    }
    let end = Instant::now() + ANSWER_TIMEOUT;
    let late = |(book, asked, _): &(Book, u32, Exhibitor)| book.answered() != u64::from(*asked);
    while open.iter().any(late) && Instant::now() < end {
        thread::sleep(Duration::from_micros(500));
    }
    Ok(open.iter().filter_map(|(book, asked, _)| book.report(*asked)).collect())
}

/// The pages of a device, in the hands of a reader.
#[derive(Debug)]
struct Book {
    memory: Mapping,
    pid: u32,
}

impl Book {
    fn open(exhibitor: &Exhibitor) -> Option<Self> {
        let Exhibitor { pid, descriptor, .. } = *exhibitor;
        let path = format!("/proc/{pid}/fd/{descriptor}");
        // Looked at before it is opened: it may be anything by now.
        let target = std::fs::read_link(&path).ok()?;
        if !target.as_os_str().as_encoded_bytes().starts_with(b"/memfd:adverb-counters") {
            return None;
        }
        Self::of(&memory::open_again(Path::new(&path), false).ok()?, pid)
    }

    /// `None` unless all of the layout is there for good, and is this version's.
    fn of(file: &File, pid: u32) -> Option<Self> {
        let bytes = layout::WORDS * WORD_BYTES;
        if !memory::is_sealed(file) || memory::file_len(file).ok()? < bytes {
            return None;
        }
        let book = Self { memory: Mapping::shared_for_reading(file, bytes).ok()?, pid };
        let head = [layout::MAGIC, layout::SHAPE, layout::PID].map(|at| book.get(at));
        (head == [MAGIC, shape(), u64::from(pid)]).then_some(book)
    }

    fn get(&self, at: usize) -> u64 {
        word(&self.memory, at).load(Ordering::Relaxed)
    }

    fn get_all<const N: usize>(&self, base: usize) -> [u64; N] {
        std::array::from_fn(|at| self.get(base + at))
    }

    fn answered(&self) -> u64 {
        word(&self.memory, layout::ANSWERED).load(Ordering::Acquire)
    }

    /// What is written there; `None` if it is being written all the time.
    fn report(&self, asked: u32) -> Option<DeviceReport> {
        let edition = word(&self.memory, layout::EDITION);
        for _ in 0..TRIES_MAX {
            let before = edition.load(Ordering::Acquire);
            let report = self.read(asked);
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && edition.load(Ordering::Relaxed) == before {
                return Some(report);
            }
            thread::yield_now();
        }
        None
    }

    fn read(&self, asked: u32) -> DeviceReport {
        let name = self.get_all::<{ layout::NAME_WORDS }>(layout::NAME).map(u64::to_le_bytes);
        let name: Vec<u8> = name.into_iter().flatten().take_while(|byte| *byte != 0).collect();
        let qps = self.get(layout::QPS);
        let rows = usize::try_from(qps).unwrap_or(usize::MAX).min(ROWS_MAX);
        let rows = (0..rows).filter_map(|at| self.row(layout::ROWS + at * layout::ROW_WORDS));
        let rows: Vec<_> = rows.collect();
        DeviceReport {
            pid: self.pid,
            device: String::from_utf8_lossy(&name).into_owned(),
            fresh: self.answered() == u64::from(asked),
            port: PortCounters::from_array(self.get_all(layout::PORT)),
            total: QpCounters::from_array(self.get_all(layout::TOTAL)),
            more: qps.saturating_sub(u64::try_from(rows.len()).unwrap_or(u64::MAX)),
            qps: rows,
        }
    }

    fn row(&self, base: usize) -> Option<QpRow> {
        let number = |at: usize| u32::try_from(self.get(base + at)).ok();
        let state = usize::try_from(self.get(base + layout::ROW_STATE)).ok()?;
        Some(QpRow {
            number: Qpn::new(number(layout::ROW_NUMBER)?),
            peer: number(layout::ROW_PEER)?.checked_sub(1).map(Qpn::new),
            state: *QpState::ALL.get(state)?,
            path: number(layout::ROW_PATH)?
                .checked_sub(1)
                .and_then(|at| PATHS.get(usize::try_from(at).ok()?).copied()),
            counters: QpCounters::from_array(self.get_all(base + layout::ROW_COUNTERS)),
        })
    }
}

/// Version and numbers of counters.
fn shape() -> u64 {
    let count = |n: usize| u64::try_from(n).unwrap_or(0);
    VERSION << 32 | count(PortCounters::COUNT) << 16 | count(QpCounters::COUNT)
}

fn word(memory: &Mapping, at: usize) -> &AtomicU64 {
    memory.word(at * WORD_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: u32) -> QpRow {
        let counters = QpCounters { sent_pkts: u64::from(number), ..QpCounters::default() };
        let peer = number.is_multiple_of(2).then(|| Qpn::new(number + 1));
        let path = peer.map(|_| DataPath::SharedMemory);
        QpRow { number: Qpn::new(number), peer, state: QpState::Rts, path, counters }
    }

    fn open(stats_page: &StatsPage, pid: u32) -> Option<Book> {
        Book::of(&File::from(stats_page.file.try_clone().unwrap()), pid)
    }

    #[test]
    fn a_reader_sees_what_was_answered_and_how_many_did_not_fit() {
        let stats_page = StatsPage::new("soft_test").unwrap();
        let book = open(&stats_page, std::process::id()).unwrap();
        assert!(stats_page.has_answered(0) && !stats_page.has_answered(1));
        let port = PortCounters { icrc_errors: 3, ..PortCounters::default() };
        let gone = QpCounters { sent_pkts: 1000, ..QpCounters::default() };
        stats_page.answer(1, port, gone, (1..=3).map(row));
        let report = book.report(1).unwrap();
        assert_eq!((report.device.as_str(), report.fresh, report.more), ("soft_test", true, 0));
        assert_eq!((report.port, report.total.sent_pkts), (port, 1006));
        assert_eq!(report.qps, [row(1), row(2), row(3)]);
        assert!(!book.report(2).unwrap().fresh);

        let many = u32::try_from(ROWS_MAX).unwrap() + 5;
        stats_page.answer(2, port, gone, (1..=many).map(row));
        let report = book.report(2).unwrap();
        assert_eq!((report.qps.len(), report.more), (ROWS_MAX, 5));
    }

    #[test]
    fn pages_of_others_are_not_believed() {
        let stats_page = StatsPage::new("soft_test").unwrap();
        assert!(open(&stats_page, std::process::id() + 1).is_none());
        stats_page.put(layout::SHAPE, shape() + 1);
        assert!(open(&stats_page, std::process::id()).is_none(), "another version");
        let file = File::from(memory::memfd("unsealed", layout::WORDS * WORD_BYTES).unwrap());
        assert!(Book::of(&file, std::process::id()).is_none());
        memory::seal(&file).unwrap();
        assert!(Book::of(&file, std::process::id()).is_none(), "zeros");
    }

    #[test]
    fn nonsense_in_the_pages_is_left_out() {
        let stats_page = StatsPage::new("soft_test").unwrap();
        let book = open(&stats_page, std::process::id()).unwrap();
        stats_page.answer(1, PortCounters::default(), QpCounters::default(), (1..=2).map(row));
        stats_page.put(layout::QPS, u64::MAX);
        stats_page.put(layout::ROWS + layout::ROW_STATE, 99);
        let report = book.report(1).unwrap();
        // The rows that were never written are of number 0 in RESET; the first is of no state.
        assert_eq!((report.qps.len(), report.qps[0]), (ROWS_MAX - 1, row(2)));
        word(&stats_page.memory, layout::EDITION).store(1, Ordering::Relaxed);
        assert!(book.report(1).is_none(), "the writer died while it wrote");
    }
}
