//! Settings: what the environment and the files say, read once, when it is first needed.
//!
//! # Safety
//!
//! One call asks whether a descriptor is a terminal; it takes a number.

use std::ffi::CString;
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

use adverb_sockconf::{
    DEFAULT_FILE, Level, Origin, RuleError, Rules, Settings, Socket, Transport, Warning, banner,
    processors,
};

use crate::base::lock::{Guarded, Lazy};
use crate::base::log::{self, Log};
use crate::base::logic::Logic;
use crate::base::raw::{self, Errno};

/// Everything that is decided at the start.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) log: Log,
    /// What programs that no rule is about get, at most.
    pub(crate) transport: Transport,
    /// Whether sockets are accelerated unless a thread says otherwise.
    pub(crate) is_on: bool,
    /// How long waits spin, at most, in nanoseconds: receiving, and looking at many.
    pub(crate) receive_spin_ns: u64,
    pub(crate) select_spin_ns: u64,
    /// The same of a UDP socket that has joined no group, if that is another time.
    pub(crate) first_spin_ns: Option<u64>,
    /// Spins are cut short where they do not pay.
    pub(crate) adaptive: bool,
    /// Spins let others run.
    pub(crate) gives_way: bool,
    /// How many processors the machine had at the start.
    pub(crate) processors: u64,
    /// Of connections that this end makes.
    pub(crate) rings: Sizes,
    /// The program polls rings rather than sockets.
    pub(crate) socketxtreme: bool,
    /// Which sockets share a ring, if nothing else is said of one, and how many rings there are at most; 0: as
    /// many as it takes.
    pub(crate) ring_logic: Logic,
    pub(crate) rings_max: usize,
    /// Looks at rings for each look at the kernel, while a wait spins; and at a mailbox, while a call spins that
    /// receives datagrams.
    pub(crate) kernel_every: usize,
    pub(crate) mailbox_looks: u32,
    /// Calls that found a ring ready for each that looks at the kernel nevertheless.
    pub(crate) kernel_skip: u32,
    /// The least that `SO_RCVBUF` may be.
    pub(crate) receive_buffer_min: i32,
    pub(crate) nodelay: bool,
    pub(crate) quickack: bool,
    /// The kernel's algorithm of congestion control; `None`: its own choice.
    pub(crate) congestion: Option<&'static [u8; 5]>,
    /// Connections that frames carry have no congestion control.
    pub(crate) is_uncontrolled: bool,
    /// The longest segment; `None`: the kernel's own choice.
    pub(crate) segment_max: Option<i32>,
    /// What a mailbox has no room for is an error to calls that do not wait.
    pub(crate) says_full: bool,
    /// A fault that ends the program is traced.
    pub(crate) traces_faults: bool,
    /// To ask for a socket's name warms its way to the peer.
    pub(crate) warms_by_name: bool,
    pub(crate) multicast_loop: bool,
    /// It is measured how long calls that look at many descriptors spin.
    pub(crate) measures_polling: bool,
    /// Connections between network namespaces may have rings.
    pub(crate) reaches_across: bool,
    /// Says of each socket what has become of it.
    pub(crate) explain: bool,
    /// `None`: at the rendezvous. Empty: nowhere.
    pub(crate) stats_dir: Option<String>,
    pub(crate) stats_file: Option<CString>,
    /// Where the thread that carries frames runs: processors, if any are named, and a set of the kernel's.
    pub(crate) helper_processors: Option<Vec<usize>>,
    pub(crate) helper_cpuset: Option<String>,
    /// How many sockets are shown; `None`: all.
    pub(crate) stats_fds: Option<i64>,
    /// How often a connection that frames cannot carry on is told to go back to the kernel, while a thread of its program is in
    /// the midst of something.
    pub(crate) leave_attempts_max: u32,
}

/// How large the rings of a segment are; both are powers of two.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Sizes {
    /// What a ring has at first.
    pub(crate) first: usize,
    /// What it has when it has grown; 0 if it does not.
    pub(crate) large: usize,
}

static CONFIG: Lazy<Config> = Lazy::new();
static HAS_SPOKEN: AtomicBool = AtomicBool::new(false);

/// What has been decided; decided now if this is the first call.
#[inline]
pub(crate) fn get() -> &'static Config {
    match CONFIG.get() {
        Some(config) => config,
        None => start(),
    }
}

#[cold]
fn start() -> &'static Config {
    let _stays = raw::Uncancelled::new();
    let _errno = raw::KeptErrno::new();
    let mut messages = Vec::new();
    let config = CONFIG.get_or_init(|| {
        let (config, lines) = Config::read();
        messages = lines;
        config
    });
    // Of several threads that have come first, one says so.
    if !messages.is_empty() && !HAS_SPOKEN.swap(true, Ordering::Relaxed) {
        for (level, line) in messages {
            config.log.print(level, &line);
        }
    }
    config
}

/// Looks at rings that cost as much as one of the looks that the manual counts.
const RINGS_FOR_QUEUE: usize = 8;

/// The name of this program, without its path.
pub(crate) fn program() -> String {
    let all = std::fs::read("/proc/self/comm").unwrap_or_default();
    let comm = String::from_utf8_lossy(&all).trim_end().to_owned();
    let exe = std::fs::read_link("/proc/self/exe").ok();
    let exe = exe.as_deref().and_then(|path| path.file_name()).and_then(|name| name.to_str());
    exe.map_or(comm, str::to_owned)
}

/// The command line of this program.
pub(crate) fn command() -> String {
    let all = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    String::from_utf8_lossy(&all).trim_end_matches('\0').replace('\0', " ")
}

impl Config {
    /// Reads everything, and returns what is to be printed about it.
    fn read() -> (Self, Vec<(Level, String)>) {
        let File { pairs: file, rules: first, complaint } = File::read();
        let mut lines: Vec<(Level, String)> =
            complaint.into_iter().map(|complaint| (Level::Warning, complaint)).collect();
        let (settings, warnings) = Settings::resolve(
            file.iter().map(|(name, value)| (name.as_str(), value.as_str())),
            std::env::vars_os().map(|(name, value)| (name.into_vec(), value.into_vec())),
        );
        let (rules, more, complaint) = rules(&settings, &first);
        lines.extend(complaint.map(|complaint| (Level::Warning, complaint)));
        // Another thread that reads it at the same time may be further, and have added some.
        RULES.with(|known| _ = known.get_or_insert(rules));
        let mut config = Self::of(&settings);
        lines.extend(config.check_files().map(|complaint| (Level::Warning, complaint)));
        if !settings.is_on("ADVERB_SOCKETS_QUIET") {
            lines.splice(0..0, banner(&settings, env!("CARGO_PKG_VERSION"), &command()));
        }
        let warnings = warnings.iter().chain(&more).map(Warning::to_string);
        lines.extend(warnings.map(|warning| (Level::Warning, warning)));
        (config, lines)
    }

    /// Files that are to be written have to be there: one that cannot be opened is done without, and said.
    fn check_files(&mut self) -> impl Iterator<Item = String> {
        let check = |file: &mut Option<CString>, name: &str, instead: &str| {
            let path = file.as_ref()?;
            let error = match log::open(path) {
                Ok(fd) => {
                    raw::close(fd);
                    return None;
                }
                Err(Errno(errno)) => io::Error::from_raw_os_error(errno),
            };
            let text =
                format!("{name}: {} cannot be opened: {error}; {instead}", path.to_string_lossy());
            *file = None;
            Some(text)
        };
        let log = check(&mut self.log.file, "VMA_LOG_FILE", "lines go to the standard error");
        let stats = check(&mut self.stats_file, "VMA_STATS_FILE", "there are no reports");
        log.into_iter().chain(stats)
    }

    fn of(settings: &Settings) -> Self {
        let number = |name| settings.number(name);
        let text = |name| settings.text(name);
        let level = number("VMA_TRACELEVEL");
        let log_file = text("VMA_LOG_FILE").replacen("%d", &raw::process_id().to_string(), 1);
        let is_default = |name| settings.origin(name) == Origin::Default;
        let details = number("VMA_LOG_DETAILS");
        let details = if is_default("VMA_LOG_DETAILS") && level >= 4 { 2 } else { details };
        // Loops of looking at a queue, at about 50 ns each, as the original's are.
        let loops_ns = |loops: i64| spin_ns(loops, 50);
        let most_ns = spin_ns(number("ADVERB_SOCKETS_SPIN_USEC"), 1000);
        let by_name = |name, ns| if is_default(name) { most_ns } else { ns };
        let path = |text: &str| {
            if text.is_empty() { None } else { CString::new(text.to_owned()).ok() }
        };
        let bytes = |name| {
            let bytes = usize::try_from(number(name)).unwrap_or(1 << 18);
            bytes.next_power_of_two()
        };
        let first = bytes("ADVERB_SOCKETS_RING_BYTES");
        let large = bytes("ADVERB_SOCKETS_RING_BYTES_MAX");
        let clamp = |name| u32::try_from(number(name)).unwrap_or(0);
        let online = raw::processors();
        // 0, and nothing said, are the default: what the kernel has would be waited for in vain.
        let os_ratio = |name| {
            let is_said = !is_default(name) && number(name) != 0;
            is_said.then(|| u32::try_from(number(name).min(10_000)).unwrap_or(1))
        };
        Self {
            log: Log {
                level: (level >= 0).then(|| Level::of(level)),
                details,
                colours: settings.is_on("VMA_LOG_COLORS") && log_file.is_empty() && is_terminal(),
                file: path(&log_file),
                started_ns: raw::now_ns(),
            },
            transport: match number("ADVERB_SOCKETS_TRANSPORT") {
                1 => Transport::Os,
                2 => Transport::Spin,
                3 => Transport::SharedMemory,
                4 => Transport::Frames,
                _ => Transport::Best,
            },
            is_on: settings.is_on("VMA_OFFLOADED_SOCKETS"),
            receive_spin_ns: by_name("VMA_RX_POLL", loops_ns(number("VMA_RX_POLL"))),
            select_spin_ns: by_name("VMA_SELECT_POLL", spin_ns(number("VMA_SELECT_POLL"), 1000)),
            first_spin_ns: (!is_default("VMA_RX_POLL_INIT"))
                .then(|| loops_ns(number("VMA_RX_POLL_INIT"))),
            adaptive: settings.is_on("ADVERB_SOCKETS_ADAPTIVE")
                && is_default("VMA_RX_POLL")
                && is_default("VMA_SELECT_POLL"),
            gives_way: settings.is_on("VMA_RX_POLL_YIELD") || online == 1,
            processors: online,
            socketxtreme: settings.is_on("VMA_SOCKETXTREME"),
            ring_logic: Logic::of(number("VMA_RING_ALLOCATION_LOGIC_RX"), 0)
                .unwrap_or(Logic::Interface),
            rings_max: usize::try_from(number("VMA_RING_LIMIT_PER_INTERFACE")).unwrap_or(0),
            rings: Sizes { first, large: if large > first { large } else { 0 } },
            kernel_every: usize::try_from(os_ratio("VMA_SELECT_POLL_OS_RATIO").unwrap_or(10))
                .unwrap_or(1)
                * RINGS_FOR_QUEUE,
            mailbox_looks: os_ratio("VMA_RX_UDP_POLL_OS_RATIO").unwrap_or(MAILBOX_LOOKS),
            kernel_skip: clamp("VMA_SELECT_SKIP_OS").max(1),
            receive_buffer_min: match is_default("VMA_RX_BYTES_MIN") {
                true => 0,
                false => i32::try_from(number("VMA_RX_BYTES_MIN")).unwrap_or(i32::MAX),
            },
            nodelay: settings.is_on("VMA_TCP_NODELAY"),
            quickack: settings.is_on("VMA_TCP_QUICKACK"),
            congestion: match number("VMA_TCP_CC_ALGO") {
                0 if !is_default("VMA_TCP_CC_ALGO") => Some(b"reno\0"),
                1 => Some(b"cubic"),
                _ => None,
            },
            is_uncontrolled: number("VMA_TCP_CC_ALGO") == 2,
            segment_max: segment_max(number("VMA_MSS"), number("VMA_MTU")),
            says_full: settings.is_on("VMA_TX_NONBLOCKED_EAGAINS"),
            traces_faults: settings.is_on("VMA_HANDLE_SIGSEGV"),
            warms_by_name: settings.is_on("VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME"),
            multicast_loop: settings.is_on("VMA_TX_MC_LOOPBACK"),
            measures_polling: settings.is_on("VMA_CPU_USAGE_STATS"),
            reaches_across: settings.is_on("ADVERB_SOCKETS_ACROSS"),
            explain: settings.is_on("ADVERB_SOCKETS_EXPLAIN"),
            stats_dir: match is_default("VMA_STATS_SHMEM_DIR") {
                true => None,
                false => Some(text("VMA_STATS_SHMEM_DIR").to_owned()),
            },
            stats_file: path(text("VMA_STATS_FILE")),
            helper_processors: processors(text("VMA_INTERNAL_THREAD_AFFINITY")),
            helper_cpuset: Some(text("VMA_INTERNAL_THREAD_CPUSET").to_owned())
                .filter(|path| !path.is_empty()),
            stats_fds: (!is_default("VMA_STATS_FD_NUM")).then(|| number("VMA_STATS_FD_NUM")),
            leave_attempts_max: std::env::var("ADVERB_TEST_LEAVE_ATTEMPTS")
                .map_or(LEAVE_ATTEMPTS_MAX, |text| text.parse().unwrap_or(LEAVE_ATTEMPTS_MAX)),
        }
    }

    /// What rules allow for a socket, which is looked at if there are any.
    pub(crate) fn allowed(&self, socket: impl FnOnce() -> Socket) -> Transport {
        // The socket is looked at by calls of the kernel's, which no other thread is to wait for.
        let has_rules = RULES.with(|rules| rules.as_ref().is_some_and(|rules| !rules.is_empty()));
        let particular = has_rules.then(socket).map_or(Transport::Best, |socket| {
            RULES.with(|rules| {
                rules.as_ref().map_or(Transport::Best, |rules| rules.transport(&socket))
            })
        });
        match (particular, self.transport) {
            (Transport::Best, general) => general,
            (particular, _) => particular,
        }
    }

    /// Puts a rule in front of the others.
    pub(crate) fn add_rule(&self, line: &str) -> Result<(), RuleError> {
        RULES.with(|rules| rules.as_mut().map_or(Ok(()), |rules| rules.prepend(line)))
    }
}

/// The rules, once they have been read.
pub(crate) static RULES: Guarded<Option<Rules>> = Guarded::new(None);

/// The longest segment, as the kernel takes it; `None`: its own choice.
fn segment_max(mss: i64, mtu: i64) -> Option<i32> {
    let wanted = match (mss, mtu) {
        (0, 0) => return None,
        (0, mtu) => mtu - HEADERS_BYTES,
        (mss, _) => mss,
    };
    i32::try_from(wanted.clamp(SEGMENT_MIN, SEGMENT_MAX)).ok()
}

/// Of IPv4 and of TCP, without options.
const HEADERS_BYTES: i64 = 40;
/// What the kernel allows for.
const SEGMENT_MIN: i64 = 88;
const SEGMENT_MAX: i64 = 32_767;

/// Unless a test says otherwise.
const LEAVE_ATTEMPTS_MAX: u32 = 200;

/// Looks at a mailbox for each look at the kernel, unless another number is set.
const MAILBOX_LOOKS: u32 = 64;

/// `count` units of so many nanoseconds; a negative count is for ever.
fn spin_ns(count: i64, unit_ns: u64) -> u64 {
    u64::try_from(count).map_or(u64::MAX, |count| count.saturating_mul(unit_ns))
}

fn is_terminal() -> bool {
    // SAFETY: the call takes a number and has no preconditions.
    unsafe { libc::isatty(libc::STDERR_FILENO) == 1 }
}

/// What the TOML file that `ADVERB_SOCKETS_CONFIG` names says.
#[derive(Debug, Default)]
struct File {
    /// Parameters.
    pairs: Vec<(String, String)>,
    /// The lines of `rules = ["use os …", …]`.
    rules: String,
    complaint: Option<String>,
}

impl File {
    fn read() -> Self {
        let path = std::env::var("ADVERB_SOCKETS_CONFIG").unwrap_or_default();
        if path.is_empty() {
            return Self::default();
        }
        let mut file = Self::default();
        let parsed = text_of(&path).map_err(|error| error.to_string()).and_then(|text| {
            text.parse::<toml::Table>().map_err(|error| error.message().to_owned())
        });
        match parsed {
            Ok(table) => file.take("", &table),
            Err(error) => file.complaint = Some(format!("{path}: {error}")),
        }
        file
    }

    /// Turns nested tables into names joined by underscores.
    fn take(&mut self, prefix: &str, table: &toml::Table) {
        for (name, value) in table {
            let name = format!("{prefix}{name}");
            match value {
                toml::Value::Table(inner) => self.take(&format!("{name}_"), inner),
                toml::Value::String(text) => self.pairs.push((name, text.clone())),
                toml::Value::Boolean(flag) => {
                    self.pairs.push((name, u8::from(*flag).to_string()));
                }
                toml::Value::Integer(number) => self.pairs.push((name, number.to_string())),
                toml::Value::Array(lines) if name == "rules" => {
                    for line in lines.iter().filter_map(toml::Value::as_str) {
                        self.rules.push_str(line);
                        self.rules.push('\n');
                    }
                }
                toml::Value::Float(_) | toml::Value::Datetime(_) | toml::Value::Array(_) => {
                    self.complaint = Some(format!("{name}: neither a text nor a number"));
                }
            }
        }
    }
}

/// The rules for this program: of the file that is named, or of the default one, or the default.
///
/// Those of the TOML file come first. With them: what is wrong with lines, and with the file as a whole.
fn rules(settings: &Settings, first: &str) -> (Rules, Vec<Warning>, Option<String>) {
    let path = settings.text("VMA_CONFIG_FILE");
    let is_default = settings.origin("VMA_CONFIG_FILE") == Origin::Default;
    let (text, complaint) = match text_of(path) {
        Ok(text) => (text, None),
        Err(error) if is_default && error.kind() == ErrorKind::NotFound => {
            (DEFAULT_FILE.to_owned(), None)
        }
        Err(error) => {
            let complaint = format!("VMA_CONFIG_FILE: {path}: {error}; the default rules hold");
            (DEFAULT_FILE.to_owned(), Some(complaint))
        }
    };
    let all = first.to_owned() + &text;
    let (rules, warnings) = Rules::parse(&all, &program(), settings.text("VMA_APPLICATION_ID"));
    (rules, warnings, complaint)
}

/// The text of a file of settings, which has to be an ordinary file: a FIFO would be waited for.
fn text_of(path: &str) -> io::Result<String> {
    let refused = |reason: &str| Err(io::Error::new(ErrorKind::InvalidInput, reason));
    let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let facts = file.metadata()?;
    if !facts.is_file() {
        return refused("is not an ordinary file");
    }
    if facts.len() > TEXT_BYTES_MAX {
        return refused("is longer than 1 MiB");
    }
    let mut bytes = Vec::new();
    file.take(TEXT_BYTES_MAX).read_to_end(&mut bytes)?;
    String::from_utf8(bytes).or_else(|_| refused("is not UTF-8"))
}

/// The length of a file of settings, at most.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// The directory, unless the user has named another.
pub(crate) fn default_place() -> String {
    format!("/dev/shm/adverb-sockets-{}", raw::user_id())
}

/// The rendezvous directory: the one that the user has named, or the default.
pub(crate) fn rendezvous() -> String {
    let given = std::env::var("ADVERB_SOCKETS_SHM_DIR").unwrap_or_default();
    if given.is_empty() { default_place() } else { given }
}
