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
use adverb_shm::page::{Page, Writers};
use adverb_sys::memory;
use adverb_wire::Qpn;
use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

adverb_shm::layout! {
    /// What lies in the pages. A change of any of it is a change of [`VERSION`].
    struct Layout {
        magic: AtomicU64,
        /// Version, and how many counters of either kind there are.
        shape: AtomicU64,
        pid: AtomicU64,
        /// Odd while it is written.
        edition: AtomicU64,
        /// The last question that was answered.
        answered: AtomicU64,
        /// Queue pairs that there are; of them the first have rows.
        qps: AtomicU64,
        name: [AtomicU64; NAME_WORDS],
        port: [AtomicU64; PortCounters::COUNT],
        /// All queue pairs together, those that have gone included.
        total: [AtomicU64; QpCounters::COUNT],
        rows: [Row; ROWS_MAX],
    }

    struct Row {
        number: AtomicU64,
        /// One more than the peer's number; 0 for none.
        peer: AtomicU64,
        state: AtomicU64,
        /// One more than the place of the path in [`PATHS`]; 0 for none.
        path: AtomicU64,
        counters: [AtomicU64; QpCounters::COUNT],
    }
}

const MAGIC: u64 = 0x4164_7672_636f_756e;
const VERSION: u64 = 2;
/// Paths by the number that stands for them.
const PATHS: [DataPath; 3] = [DataPath::Udp, DataPath::SharedMemory, DataPath::InProcess];
/// Queue pairs of one device that others see.
const ROWS_MAX: usize = 1024;
/// What the file is called in `/proc/PID/fd`.
const FILE_NAME: &str = "adverb-counters";
/// Words of a device's name.
const NAME_WORDS: usize = 4;
/// Times that a reader starts again because it was being written.
const TRIES_MAX: usize = 100;
/// How long a reader waits for answers: longer than the helper looks away.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);

/// One queue pair, as others see it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
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
#[non_exhaustive]
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
    page: Page<Layout>,
    file: OwnedFd,
    answered: AtomicU32,
}

impl StatsPage {
    pub(crate) fn new(device: &str) -> io::Result<Self> {
        let (page, file) = Page::<Layout>::create(FILE_NAME, Writers::Maker)?;
        page.shape.store(shape(), Ordering::Relaxed);
        page.pid.store(u64::from(std::process::id()), Ordering::Relaxed);
        let mut name = [0; NAME_WORDS * size_of::<u64>()];
        name.iter_mut().zip(device.bytes()).for_each(|(place, byte)| *place = byte);
        put_all(&page.name, name.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)));
        page.magic.store(MAGIC, Ordering::Relaxed);
        Ok(Self { page, file, answered: AtomicU32::new(0) })
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
        let page = &*self.page;
        let before = page.edition.load(Ordering::Relaxed);
        page.edition.store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        put_all(&page.port, port.to_array());
        let (mut count, mut total) = (0, gone);
        let mut places = page.rows.iter();
        for row in rows {
            total += row.counters;
            if let Some(place) = places.next() {
                place.put(&row);
            }
            count += 1;
        }
        put_all(&page.total, total.to_array());
        page.qps.store(count, Ordering::Relaxed);
        page.answered.store(u64::from(asked), Ordering::Relaxed);
        page.edition.store(before.wrapping_add(2), Ordering::Release);
        self.answered.store(asked, Ordering::Relaxed);
    }
}

impl Row {
    fn put(&self, row: &QpRow) {
        let state = QpState::ALL.iter().position(|state| *state == row.state);
        let path = row.path.and_then(|path| PATHS.iter().position(|known| *known == path));
        let number = |place: usize| u64::try_from(place).unwrap_or(0);
        self.number.store(u64::from(row.number.get()), Ordering::Relaxed);
        let peer = row.peer.map_or(0, |peer| u64::from(peer.get()) + 1);
        self.peer.store(peer, Ordering::Relaxed);
        self.state.store(state.map_or(0, number), Ordering::Relaxed);
        self.path.store(path.map_or(0, |at| number(at + 1)), Ordering::Relaxed);
        put_all(&self.counters, row.counters.to_array());
    }

    fn get(&self) -> Option<QpRow> {
        let number = |word: &AtomicU64| u32::try_from(word.load(Ordering::Relaxed)).ok();
        let state = usize::try_from(self.state.load(Ordering::Relaxed)).ok()?;
        Some(QpRow {
            number: Qpn::new(number(&self.number)?),
            peer: number(&self.peer)?.checked_sub(1).map(Qpn::new),
            state: *QpState::ALL.get(state)?,
            path: number(&self.path)?
                .checked_sub(1)
                .and_then(|at| PATHS.get(usize::try_from(at).ok()?).copied()),
            counters: QpCounters::from_array(get_all(&self.counters)),
        })
    }
}

fn put_all(words: &[AtomicU64], values: impl IntoIterator<Item = u64>) {
    words.iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
}

fn get_all<const N: usize>(words: &[AtomicU64; N]) -> [u64; N] {
    words.each_ref().map(|word| word.load(Ordering::Relaxed))
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
    page: Page<Layout>,
    pid: u32,
}

impl Book {
    fn open(exhibitor: &Exhibitor) -> Option<Self> {
        let Exhibitor { pid, descriptor, .. } = *exhibitor;
        let path = format!("/proc/{pid}/fd/{descriptor}");
        // Looked at before it is opened: it may be anything by now.
        let target = std::fs::read_link(&path).ok()?;
        if !target
            .as_os_str()
            .as_encoded_bytes()
            .starts_with(format!("/memfd:{FILE_NAME}").as_bytes())
        {
            return None;
        }
        Self::of(&memory::open_again(Path::new(&path), false).ok()?, pid)
    }

    /// `None` unless all of the layout is there for good, and is this version's.
    fn of(file: &File, pid: u32) -> Option<Self> {
        let page = Page::<Layout>::open(file, Writers::Maker).ok()?;
        let head = [&page.magic, &page.shape, &page.pid].map(|word| word.load(Ordering::Relaxed));
        (head == [MAGIC, shape(), u64::from(pid)]).then_some(Self { page, pid })
    }

    fn answered(&self) -> u64 {
        self.page.answered.load(Ordering::Acquire)
    }

    /// What is written there; `None` if it is being written all the time.
    fn report(&self, asked: u32) -> Option<DeviceReport> {
        let edition = &self.page.edition;
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
        let name = get_all(&self.page.name).map(u64::to_le_bytes);
        let name: Vec<u8> = name.into_iter().flatten().take_while(|byte| *byte != 0).collect();
        let qps = self.page.qps.load(Ordering::Relaxed);
        let count = usize::try_from(qps).unwrap_or(usize::MAX);
        let rows: Vec<_> = self.page.rows.iter().take(count).filter_map(Row::get).collect();
        DeviceReport {
            pid: self.pid,
            device: String::from_utf8_lossy(&name).into_owned(),
            fresh: self.answered() == u64::from(asked),
            port: PortCounters::from_array(get_all(&self.page.port)),
            total: QpCounters::from_array(get_all(&self.page.total)),
            more: qps.saturating_sub(u64::try_from(rows.len()).unwrap_or(u64::MAX)),
            qps: rows,
        }
    }
}

/// Version and numbers of counters.
fn shape() -> u64 {
    let count = |n: usize| u64::try_from(n).unwrap_or(0);
    VERSION << 32 | count(PortCounters::COUNT) << 16 | count(QpCounters::COUNT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: u32) -> QpRow {
        let mut counters = QpCounters::default();
        counters.sent_pkts = u64::from(number);
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
        let mut gone = QpCounters::default();
        gone.sent_pkts = 1000;
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
        stats_page.page.shape.store(shape() + 1, Ordering::Relaxed);
        assert!(open(&stats_page, std::process::id()).is_none(), "another version");
        let file = File::from(memory::memfd("unsealed", size_of::<Layout>()).unwrap());
        assert!(Book::of(&file, std::process::id()).is_none());
        memory::seal(&file).unwrap();
        assert!(Book::of(&file, std::process::id()).is_none(), "zeros");
    }

    #[test]
    fn nonsense_in_the_pages_is_left_out() {
        let stats_page = StatsPage::new("soft_test").unwrap();
        let book = open(&stats_page, std::process::id()).unwrap();
        stats_page.answer(1, PortCounters::default(), QpCounters::default(), (1..=2).map(row));
        stats_page.page.qps.store(u64::MAX, Ordering::Relaxed);
        stats_page.page.rows[0].state.store(99, Ordering::Relaxed);
        let report = book.report(1).unwrap();
        // The rows that were never written are of number 0 in RESET; the first is of no state.
        assert_eq!((report.qps.len(), report.qps[0]), (ROWS_MAX - 1, row(2)));
        stats_page.page.edition.store(1, Ordering::Relaxed);
        assert!(book.report(1).is_none(), "the writer died while it wrote");
    }
}
