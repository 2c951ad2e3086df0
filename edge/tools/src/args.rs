//! The command line: what may be typed, and what is refused before anything is measured.
//!
//! Options that perftest has carry perftest's names and letters, with `-` or `_`. A value that no run
//! could use is refused here, with the values that are allowed; `bench/plan.rs` fills in defaults.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use adverb::session::WorkMode;
use clap::builder::NonEmptyStringValueParser;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::bench::rdma::DeviceChoice;
use crate::help::explained;

/// RDMA on any machine: measure it, check it, look at its devices.
#[derive(Debug, Parser)]
#[command(name = "adverb", version, propagate_version = true)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// Those of this process; ends it if they cannot be.
    pub(crate) fn read() -> Self {
        Self::of(std::env::args_os()).unwrap_or_else(|error| {
            let text = error.to_string();
            let Some(why) = text.strip_prefix("error: ") else {
                error.exit(); // Help, or the version.
            };
            eprint!("adverb: {why}");
            std::process::exit(error.exit_code())
        })
    }

    /// All that may be typed, with all that help says.
    pub(crate) fn definition() -> clap::Command {
        explained(take_negative(Self::command()))
    }

    fn of<W: Into<OsString> + Clone>(
        words: impl IntoIterator<Item = W>,
    ) -> Result<Self, clap::Error> {
        let mut command = Self::definition();
        let matches = command.try_get_matches_from_mut(words)?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }
}

/// A number below zero is a value of an option, which says what is allowed.
fn take_negative(command: clap::Command) -> clap::Command {
    let command = command.mut_subcommands(take_negative);
    command.mut_args(|arg| match !arg.is_positional() && arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    })
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Add up vectors of several processes, and check every bit
    Allreduce(AllreduceArgs),
    /// Measure latency, bandwidth and message rate, beside what the machine's sockets reach
    Bench(Box<BenchArgs>),
    /// Show what the RDMA devices of all your processes have counted
    Counters(CountersArgs),
    /// List RDMA devices, their addresses and limits
    Devices(DevicesArgs),
    /// Describe RDMA devices in the layout of ibv_devinfo
    Devinfo(DevinfoArgs),
    /// Check what this machine lacks, what that costs and what to do
    Doctor(crate::doctor::DoctorArgs),
    /// Print the variables that `run` sets, for scripts and containers
    Env(crate::run::EnvArgs),
    /// Write manual pages and completions
    #[command(hide = true)]
    Generate(crate::generate::GenerateArgs),
    /// Let many nodes write and send to one another at once, and check every block
    Mesh(Box<MeshArgs>),
    /// Test a connection: greet, exchange buffers, write, read back, compare every byte
    Pingpong(PingpongArgs),
    /// Run a program that uses libibverbs on the software devices
    Run(crate::run::RunArgs),
    /// Run a program with its sockets accelerated, or look at programs that run so
    Sockets(crate::sockets::SocketsArgs),
    /// Watch processes, queue pairs and sockets of this host: paths, rates, drops
    Top(TopArgs),
}

/// One operation of RDMA.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Op {
    /// Two-sided: the peer has posted a receive.
    Send,
    /// One-sided: into the peer's memory.
    Write,
    /// One-sided: out of the peer's memory.
    Read,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "SEND",
            Self::Write => "WRITE",
            Self::Read => "READ",
        })
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Test {
    /// How long one message takes.
    Latency,
    /// How many bytes a second, with many messages in flight.
    Bandwidth,
    /// How many messages a second, with many messages in flight.
    Rate,
}

/// Where client and server of a test meet, and how packets go between them.
#[derive(Debug, clap::Args)]
pub(crate) struct ConnectionArgs {
    /// The machine where the same command with --server runs; none: this machine, both ends
    #[arg(conflicts_with = "server", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) host: Option<String>,

    /// Serve one client after another
    #[arg(long)]
    pub(crate) server: bool,

    /// The server's address to listen on; none: every one
    #[arg(long, value_name = "ADDR", requires = "server")]
    pub(crate) bind: Option<IpAddr>,

    /// TCP port where client and server meet
    #[arg(short, long, default_value_t = 18515)]
    pub(crate) port: u16,

    /// RDMA device; none: soft_lo on this machine, else the one that holds the address in use
    #[arg(short, long, visible_alias = "ib-dev", alias = "ib_dev", value_name = "NAME")]
    pub(crate) device: Option<String>,

    /// Index into the device's GID table
    #[arg(short = 'x', long, alias = "gid_index", value_name = "INDEX")]
    pub(crate) gid_index: Option<u8>,

    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, default_value = "4096", value_parser = mtu)]
    pub(crate) mtu: u16,

    /// Traffic class of all packets: DSCP in the upper six bits
    #[arg(short = 'T', long = "tclass", visible_alias = "tos", aliases = ["traffic-class", "traffic_class"], value_name = "CLASS", default_value = "0", value_parser = class)]
    pub(crate) traffic_class: u8,

    /// How many routers packets may pass; 0: as many as the system says
    #[arg(long, alias = "hop_limit", value_name = "ROUTERS", default_value_t = 0)]
    pub(crate) hop_limit: u8,

    /// How long to look for the server; none: `bench` gives up after 5 s or when it is refused, `pingpong` after 10 s
    #[arg(long, alias = "connect_timeout", value_name = "SECONDS", conflicts_with = "server", value_parser = seconds)]
    pub(crate) connect_timeout: Option<f64>,

    /// Serve one client, and print nothing but the port: for the process that started this one
    #[arg(long, hide = true, requires = "server")]
    pub(crate) child: bool,
}

impl ConnectionArgs {
    /// Whether nothing is said of the path.
    pub(crate) fn has_usual_path(&self) -> bool {
        self.mtu == MTU_MAX && self.hop_limit == 0
    }

    /// The device that is asked for.
    pub(crate) fn choice(&self) -> DeviceChoice {
        DeviceChoice { device: self.device.clone(), gid_index: self.gid_index }
    }
}

/// Options of `adverb bench`.
#[derive(Debug, Parser)]
#[command(after_help = "\
Without HOST and --server, both ends run on this machine over the device soft_lo, or where the loopback has no
address, over that of another address.
A client sends its options to the server: give them once, at the client.
A network that is away for five seconds ends the run; `adverb mesh` goes on.

Exit codes: 0 ok, 1 failure, 2 wrong usage, 3 a --limit was not met,
77 this machine lacks what it takes.")]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,

    /// Message size in bytes; K, M, G as suffix; several with commas
    #[arg(short, long, value_name = "BYTES", value_delimiter = ',', value_parser = size)]
    pub(crate) size: Vec<u64>,

    /// Every power of two from 1 byte to 8 MiB. The default of tables: most of them, and 1500, 6144 and 100000
    #[arg(short, long, conflicts_with_all = ["size", "quick"])]
    pub(crate) all: bool,

    /// Iterations of each test
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "duration")]
    pub(crate) iters: Option<u64>,

    /// Seconds for each test
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<f64>,

    /// Operations to measure
    #[arg(long, value_delimiter = ',')]
    pub(crate) op: Vec<Op>,

    /// Quantities to measure
    #[arg(long, value_delimiter = ',')]
    pub(crate) test: Vec<Test>,

    /// Fewer rounds, and in tables fewer sizes and less time: about 15 seconds
    #[arg(long)]
    pub(crate) quick: bool,

    /// Print tables of all sizes instead of the main figures. The default with --json, --csv, --output, --svg, --html
    /// and wherever sizes, operations, quantities or ways to post are chosen
    #[arg(long)]
    pub(crate) tables: bool,

    /// How often each test is run; the median counts
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub(crate) rounds: Option<u32>,

    /// Requests in flight, at most
    #[arg(short, long, alias = "tx_depth", value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..=DEPTH_MAX))]
    pub(crate) tx_depth: Option<u32>,

    /// Receives posted
    #[arg(short, long, alias = "rx_depth", value_name = "RECEIVES", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=DEPTH_MAX))]
    pub(crate) rx_depth: u32,

    /// Requests in one post; at most the transmit depth. None: one, and rates also with many
    #[arg(short = 'l', long, alias = "post_list", value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..=DEPTH_MAX))]
    pub(crate) post_list: Option<u32>,

    /// Ask for a completion of every Nth request; at most the transmit depth
    #[arg(short = 'Q', long, alias = "cq_mod", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=DEPTH_MAX))]
    pub(crate) cq_mod: Option<u32>,

    /// Largest message that is copied into the request itself
    #[arg(short = 'I', long = "inline", aliases = ["inline_size", "inline-size"], value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=INLINE_MAX))]
    pub(crate) inline: u32,

    /// Bandwidth in Gbit/s instead of MiB/s
    #[arg(long = "report_gbits", alias = "report-gbits")]
    pub(crate) report_gbits: bool,

    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,

    /// Print CSV
    #[arg(long)]
    pub(crate) csv: bool,

    /// Write JSON (with --csv or a name that ends in .csv: CSV) to FILE, and tables to the screen
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Draw latency, bandwidth and their share of the floor by size to FILE, as a picture
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// The same with all figures, as a page that needs nothing else
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Set the run beside one that --output has written as JSON; two with a comma: these, without a run
    #[arg(long, value_name = "FILE", value_delimiter = ',', conflicts_with_all = ["server", "json", "csv"])]
    pub(crate) compare: Vec<PathBuf>,

    /// What the queue pairs meet over
    #[arg(long, value_enum, default_value_t = Meeting::Tcp)]
    pub(crate) connector: Meeting,

    /// Do not measure what the machine's sockets reach
    #[arg(long)]
    pub(crate) no_floor: bool,

    /// Do not bind client and server to one CPU each
    #[arg(long)]
    pub(crate) no_pin: bool,

    /// Fail with exit code 3 if a bandwidth is below this many Gbit/s
    #[arg(long = "limit_bw", alias = "limit-bw", value_name = "GBITS", value_parser = positive)]
    pub(crate) limit_bw: Option<f64>,

    /// Fail with exit code 3 if a rate is below this many million messages a second
    #[arg(long = "limit_msgrate", alias = "limit-msgrate", value_name = "MMSGS", value_parser = positive)]
    pub(crate) limit_msgrate: Option<f64>,

    /// Fail with exit code 3 if a median latency is above this many microseconds
    #[arg(long = "limit_lat", alias = "limit-lat", value_name = "USEC", value_parser = positive)]
    pub(crate) limit_lat: Option<f64>,

    /// Measure the six ways of a session to wait and to thread instead: latency and processor use
    #[arg(long, conflicts_with_all = OF_TESTS)]
    pub(crate) modes: bool,

    /// Measure what a session adds to raw verbs instead: latency and bandwidth
    #[arg(long, conflicts_with_all = OF_TESTS, conflicts_with_all = ["modes", "size", "inline"])]
    pub(crate) layers: bool,

    /// The other end of the layers
    #[arg(long, hide = true, requires = "layers")]
    pub(crate) layers_child: bool,

    /// The other end of one mode
    #[arg(long, hide = true, requires = "modes")]
    pub(crate) modes_child: Option<String>,
}

/// Options of `adverb devices`.
#[derive(Debug, Parser)]
pub(crate) struct DevicesArgs {
    /// The layout of ibv_devinfo, with limits
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `adverb devinfo`: those of ibv_devinfo, and JSON.
#[derive(Debug, Parser)]
pub(crate) struct DevinfoArgs {
    /// Only this device
    #[arg(short, long, visible_alias = "ib-dev", alias = "ib_dev", value_name = "NAME")]
    pub(crate) device: Option<String>,

    /// Only the names
    #[arg(short, long, conflicts_with_all = ["device", "verbose", "json"])]
    pub(crate) list: bool,

    /// Also limits and all GIDs
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `adverb counters`.
#[derive(Debug, Parser)]
pub(crate) struct CountersArgs {
    /// Only this device
    #[arg(short, long, value_name = "NAME")]
    pub(crate) device: Option<String>,

    /// Again every so many seconds, until interrupted
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) watch: Option<f64>,

    /// Also what is 0; JSON has it always
    #[arg(short, long)]
    pub(crate) all: bool,

    /// Print JSON, one object a line
    #[arg(long)]
    pub(crate) json: bool,

    /// Print the text format of Prometheus
    #[arg(long, conflicts_with = "json")]
    pub(crate) prometheus: bool,
}

/// Options of `adverb top`.
#[derive(Debug, Parser)]
#[command(after_help = "\
SENT/s and RECVD/s are packets, of a device's total and of each queue pair, and of sockets sends and receives.
DROPPED and RESENT count from when the queue pair, or the socket, was made.

Examples:
  adverb top                until q or Ctrl-C
  adverb top --once         one table, for a log
  adverb top --json         the same for programs
  adverb top --prometheus   totals by process and device, for a textfile collector")]
pub(crate) struct TopArgs {
    /// Time between two looks
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) delay: f64,

    /// One table; so it is too where the output is no terminal
    #[arg(long)]
    pub(crate) once: bool,

    /// Print JSON, once
    #[arg(long)]
    pub(crate) json: bool,

    /// Print the text format of Prometheus, once
    #[arg(long, conflicts_with = "json")]
    pub(crate) prometheus: bool,
}

/// What the nodes of a mesh do.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum MeshTraffic {
    /// Messages
    Send,
    /// WRITEs, and notices that tell of them
    Write,
    /// One after the other
    Mixed,
}

impl MeshTraffic {
    /// As it is typed.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Mixed => "mixed",
        }
    }
}

/// How threads of a session wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Wait {
    /// Poll without rest
    Busy,
    /// Sleep on a completion channel
    Channel,
    /// Sleep on one epoll set
    Epoll,
}

impl Wait {
    /// As it is typed.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Channel => "channel",
            Self::Epoll => "epoll",
        }
    }

    /// As a session's setting.
    pub(crate) const fn mode(self) -> WorkMode {
        match self {
            Self::Busy => WorkMode::BusyPoll,
            Self::Channel => WorkMode::CompletionChannel,
            Self::Epoll => WorkMode::Epoll,
        }
    }
}

/// How members of a group pass data on.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Shape {
    /// By the length of the vector and the number of members
    Auto,
    /// Everybody to everybody
    Mesh,
    /// Round a ring
    Ring,
    /// Up a tree and down again
    Tree,
    /// Half up one binary tree, half up another
    DoubleTree,
}

impl Shape {
    /// As it is typed.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Mesh => "mesh",
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::DoubleTree => "double-tree",
        }
    }
}

/// Options of `adverb allreduce`.
#[derive(Debug, Parser)]
pub(crate) struct AllreduceArgs {
    /// So many processes on this machine
    #[arg(long, value_name = "N", default_value = "4", value_parser = nodes)]
    pub(crate) local: usize,

    /// Bytes of the vector, a multiple of 4; K, M, G as suffix
    #[arg(short, long, value_name = "BYTES", default_value = "1M", value_parser = size)]
    pub(crate) size: u64,

    /// How often; the median counts
    #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iters: u64,

    /// How data is passed on
    #[arg(long, default_value = "auto")]
    pub(crate) topology: Shape,

    /// Members below each with --topology tree; none: 2
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) width: Option<u16>,

    /// How threads wait
    #[arg(long, default_value = "epoll")]
    pub(crate) wait: Wait,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// A member
    #[arg(long, hide = true, requires = "ports")]
    pub(crate) rank: Option<usize>,

    /// Where the members are
    #[arg(long, hide = true, value_delimiter = ',')]
    pub(crate) ports: Vec<u16>,
}

/// Options of `adverb mesh`.
#[derive(Debug, Parser)]
#[command(after_help = "\
Run it with the same --nodes on each node, or with --local N on one machine. The time begins when all
nodes are there, or after 20 seconds; each of them has the whole matrix at the end.

Ranks and sizes of mpirun, srun and indexed Jobs of Kubernetes are found in the environment; a name with
{} stands for all ranks, as in --nodes mesh-{}.mesh --ranks 8, which ADVERB_NODES and ADVERB_SIZE can say
too. Of ranks that were found so the first one alone prints.

Exit codes: 0 ok, 1 a node failed or a block was spoilt, lost or repeated, 2 wrong usage,
77 this machine lacks what it takes.")]
pub(crate) struct MeshArgs {
    /// Start so many nodes on this machine
    #[arg(long, value_name = "N", value_parser = nodes, conflicts_with_all = ["nodes", "rank", "ranks", "port", "device", "gid_index"])]
    pub(crate) local: Option<usize>,

    /// All nodes in the order of their ranks, HOST or HOST:PORT, with commas
    #[arg(long, value_delimiter = ',')]
    pub(crate) nodes: Vec<String>,

    /// Which of them this is; none: as the launcher says, or the one with an address of this machine
    #[arg(long)]
    pub(crate) rank: Option<usize>,

    /// How many there are, where the names do not tell; none: as the launcher says
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<usize>,

    /// The first port of nodes that have none
    #[arg(short, long, default_value_t = 18600, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,

    /// Block size in bytes; K, M, G as suffix
    #[arg(short, long, value_name = "BYTES", default_value = "4096", value_parser = size)]
    pub(crate) size: u64,

    /// What the nodes do
    #[arg(long, default_value = "mixed")]
    pub(crate) traffic: MeshTraffic,

    /// Seconds; an interrupt (Ctrl-C) ends it before, with all results
    #[arg(short = 'D', long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) duration: f64,

    /// How threads wait
    #[arg(long, default_value = "epoll")]
    pub(crate) wait: Wait,

    /// Kill one node after the other, every so many seconds, and let it come back
    #[arg(long, value_name = "SECONDS", requires = "local", conflicts_with_all = ["nodes", "rank", "ranks"], value_parser = seconds)]
    pub(crate) kill_every: Option<f64>,

    /// RDMA device; none: the one that holds the node's address
    #[arg(short, long, visible_alias = "ib-dev", alias = "ib_dev", value_name = "NAME")]
    pub(crate) device: Option<String>,

    /// Index into the device's GID table
    #[arg(short = 'x', long, alias = "gid_index", value_name = "INDEX")]
    pub(crate) gid_index: Option<u8>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Write JSON to FILE too
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Write the matrix as a picture to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// A node of --local
    #[arg(long, hide = true)]
    pub(crate) child: bool,
}

/// Options of `adverb pingpong`.
#[derive(Debug, Parser)]
#[command(after_help = "\
A network that is away for two seconds ends the run; `adverb mesh` goes on.")]
pub(crate) struct PingpongArgs {
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,

    /// Message size in bytes; K, M, G as suffix
    #[arg(short, long, value_name = "BYTES", default_value = "4096", value_parser = size)]
    pub(crate) size: u64,

    /// Messages there and back
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iters: u64,

    /// What both sides meet over
    #[arg(long, value_enum, default_value_t = Meeting::Tcp)]
    pub(crate) connector: Meeting,

    /// Print JSON
    #[arg(long, conflicts_with = "server")]
    pub(crate) json: bool,
}

/// What two ends meet over.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
pub(crate) enum Meeting {
    /// Messages of rdma_cm
    Cm,
    /// A TCP connection
    #[default]
    Tcp,
}

impl Meeting {
    /// As it is typed.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cm => "cm",
            Self::Tcp => "tcp",
        }
    }
}

/// Reads a message size such as `64`, `64K` or `1M`.
fn size(text: &str) -> Result<u64, String> {
    let units = [(['K', 'k'], 1 << 10), (['M', 'm'], 1 << 20), (['G', 'g'], 1 << 30)];
    let suffixed = |(suffix, unit)| Some((text.strip_suffix(suffix)?, unit));
    let (digits, unit) = units.into_iter().find_map(suffixed).unwrap_or((text, 1));
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    match bytes {
        Some(bytes @ 1..=SIZE_MAX) => Ok(bytes),
        _ => Err("a size is 1 byte to 1G, e.g. 64, 64K or 1M".to_owned()),
    }
}

/// Reads a number of nodes.
fn nodes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 2..=64) => Ok(count),
        _ => Err("on one machine there can be 2 to 64".to_owned()),
    }
}

/// Reads a path MTU.
fn mtu(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(mtu @ (256 | 512 | 1024 | 2048 | 4096)) => Ok(mtu),
        _ => Err("a path MTU is 256, 512, 1024, 2048 or 4096 bytes".to_owned()),
    }
}

/// Reads a traffic class such as `104` or `0x68`.
fn class(text: &str) -> Result<u8, String> {
    let class = match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16),
        None => text.parse(),
    };
    class.map_err(|_| "a traffic class is 0 to 255, or 0x0 to 0xff".to_owned())
}

/// Reads a number of seconds.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("a duration is 0.001 to 86400 seconds".to_owned()),
    }
}

/// Reads a limit.
fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err("a limit is a number above 0".to_owned()),
    }
}

/// Options that say nothing to `--modes` and `--layers`.
const OF_TESTS: [&str; 30] = [
    "host",
    "server",
    "bind",
    "port",
    "gid_index",
    "mtu",
    "traffic_class",
    "hop_limit",
    "connect_timeout",
    "all",
    "iters",
    "op",
    "test",
    "quick",
    "rounds",
    "tx_depth",
    "rx_depth",
    "post_list",
    "cq_mod",
    "report_gbits",
    "csv",
    "output",
    "svg",
    "html",
    "compare",
    "connector",
    "no_floor",
    "limit_bw",
    "limit_msgrate",
    "limit_lat",
];
/// The largest path MTU, which is what is asked for if nothing is said.
const MTU_MAX: u16 = 4096;
/// Largest message the command measures: 1 GiB.
const SIZE_MAX: u64 = 1 << 30;
/// Most requests or receives that a queue may hold.
const DEPTH_MAX: i64 = 16384;
/// Most bytes that a request may carry inline.
const INLINE_MAX: i64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn bench(words: &[&str]) -> Result<Box<BenchArgs>, clap::Error> {
        let words = ["adverb", "bench"].iter().chain(words);
        Args::of(words).map(|args| match args.command {
            Command::Bench(args) => args,
            Command::Allreduce(_)
            | Command::Counters(_)
            | Command::Devices(_)
            | Command::Devinfo(_)
            | Command::Doctor(_)
            | Command::Env(_)
            | Command::Generate(_)
            | Command::Mesh(_)
            | Command::Pingpong(_)
            | Command::Run(_)
            | Command::Sockets(_)
            | Command::Top(_) => unreachable!("`bench` was asked for"),
        })
    }

    #[test]
    fn the_definition_of_the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    /// Every command that may be typed says how, and what it says may be typed.
    #[test]
    fn every_help_has_examples_that_are_right_and_exit_codes() {
        fn walk(command: &clap::Command, words: &str) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Exit codes:"), "{words}: {help}");
            let (_, examples) =
                help.split_once("Examples:\n").unwrap_or_else(|| panic!("{words}: {help}"));
            let lines = examples.lines().take_while(|line| line.starts_with("  "));
            let lines: Vec<_> = lines.collect();
            assert!(!lines.is_empty(), "{words}");
            for line in lines.iter().filter(|line| line.starts_with("  adverb ")) {
                // What follows three blanks says what it does.
                let typed = line.trim_start().split("   ").next().unwrap_or_default();
                let parsed = Args::of(typed.split_whitespace());
                assert!(parsed.is_ok(), "{typed}: {}", parsed.unwrap_err());
            }
            for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
                walk(sub, &format!("{words} {}", sub.get_name()));
            }
        }
        walk(&Args::definition(), "adverb");
    }

    /// Lines of shell in pages: what readers type is what there is.
    #[test]
    fn commands_that_the_pages_show_can_be_typed() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut pages = vec![root.join("README.md")];
        for directory in ["docs", "docs/book/src"] {
            let files = std::fs::read_dir(root.join(directory)).expect("pages").flatten();
            pages.extend(
                files
                    .map(|file| file.path())
                    .filter(|path| path.extension() == Some("md".as_ref())),
            );
        }
        let mut count = 0;
        for page in pages {
            let text = std::fs::read_to_string(&page).expect("a page");
            let blocks =
                text.split("```sh\n").skip(1).filter_map(|block| block.split("```").next());
            for line in blocks.flat_map(str::lines) {
                let (command, _) = line.split_once(" #").unwrap_or((line, ""));
                let Some((before, rest)) = command.split_once("adverb ") else { continue };
                // Of other programs `adverb` is an argument, or the start of a name.
                if !(before.is_empty() || before.ends_with(' '))
                    || before.contains("cargo")
                    || before.contains("podman")
                {
                    continue;
                }
                let words = rest.trim().trim_end_matches('&').trim_end_matches([')', '"']);
                let words = std::iter::once("adverb").chain(words.split_whitespace());
                let parsed = Args::of(words);
                assert!(parsed.is_ok(), "{}: {line}: {}", page.display(), parsed.unwrap_err());
                count += 1;
            }
        }
        assert!(count > 20, "the lines were found: {count}");
    }

    #[test]
    fn sizes_take_suffixes_and_commas() {
        let args = bench(&["-s", "1,64K,8M,1G"]).unwrap();
        assert_eq!(args.size, [1, 64 << 10, 8 << 20, 1 << 30]);
    }

    #[test]
    fn values_that_no_run_could_use_are_refused_with_what_is_allowed() {
        for (flag, value, hint) in [
            ("-s", "0", "1 byte to 1G"),
            ("-s", "99999M", "1 byte to 1G"),
            ("-s", "18446744073709551615M", "1 byte to 1G"),
            ("-s", "-5", "1 byte to 1G"),
            ("-s", "12q", "1 byte to 1G"),
            ("-m", "1500", "256, 512, 1024, 2048 or 4096"),
            ("-D", "-1", "0.001 to 86400"),
            ("-D", "0", "0.001 to 86400"),
            ("-D", "NaN", "0.001 to 86400"),
            ("-n", "0", "1.."),
            ("-t", "0", "1..=16384"),
            ("-I", "2000", "0..=1024"),
            ("--op", "atomic", "send, write, read"),
            ("--test", "speed", "latency, bandwidth, rate"),
            ("--limit_bw", "-1", "above 0"),
            ("--rounds", "0", "1..=99"),
            ("--tclass", "256", "0 to 255"),
            ("--tclass", "0x100", "0 to 255"),
            ("--hop-limit", "256", "0..=255"),
        ] {
            // `flag=value`, so that a value may begin with a dash.
            let word = if flag.starts_with("--") {
                format!("{flag}={value}")
            } else {
                format!("{flag}{value}")
            };
            let error = bench(&[&word]).expect_err(&word);
            assert_eq!(error.exit_code(), 2, "{word}");
            assert!(error.to_string().contains(hint), "{word}: {error}");
        }
    }

    #[test]
    fn perftest_spellings_with_dash_and_underscore_are_the_same_option() {
        for flag in ["--report_gbits", "--report-gbits"] {
            assert!(bench(&[flag]).unwrap().report_gbits, "{flag}");
        }
        for flag in ["--gid-index", "--gid_index", "-x"] {
            assert_eq!(bench(&[flag, "3"]).unwrap().connection.gid_index, Some(3), "{flag}");
        }
        for flag in ["--ib-dev", "--device", "-d"] {
            assert_eq!(
                bench(&[flag, "soft_lo"]).unwrap().connection.device.as_deref(),
                Some("soft_lo"),
                "{flag}"
            );
        }
    }

    #[test]
    fn traffic_classes_are_decimal_or_hexadecimal_under_every_name_they_have() {
        for words in [["--tclass", "104"], ["--tos", "0x68"], ["-T", "104"]] {
            assert_eq!(bench(&words).unwrap().connection.traffic_class, 0x68, "{words:?}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for words in [
            &["-n", "5", "-D", "1"][..],
            &["-a", "-s", "64"],
            &["--server", "somewhere"],
            &["--server", "--connect-timeout", "1"],
            &["--bind", "127.0.0.1"],
            &["--json", "--csv"],
            &["--all", "--quick"],
            &["--modes", "--layers"],
            &["--modes", "-o", "file"],
            &["--modes", "-x", "0"],
            &["--modes", "-p", "18515"],
            &["--layers", "--bind", "127.0.0.1"],
            &["--layers", "-s", "64"],
            &["--layers", "somewhere"],
        ] {
            assert_eq!(bench(words).expect_err("a contradiction").exit_code(), 2, "{words:?}");
        }
    }
}
