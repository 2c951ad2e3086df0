//! `adverb top`: what lives on this host, and how fast it goes, refreshed in place.
//!
//! Processes of this user with devices of Adverb show their queue pairs when they are asked (`adverb counters` asks for
//! the same); programs under `adverb sockets` show their sockets in a file. This room sets both in one table, and takes
//! rates from two looks. The screen is drawn with the sequences that every terminal knows.

pub(crate) mod group;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adverb::verbs::{self, DeviceReport, QpRow};
use adverb_sys::terminal::{self, Keys};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use self::group::{Flow, Group, Member, printable};
use crate::args::TopArgs;
use crate::failure::{Doing, Failure};
use crate::output::json;
use crate::prometheus::{Exposition, Kind};
use crate::sockets::stat;

/// All that lives here, at one moment.
#[derive(Clone, Debug, Serialize)]
struct Look {
    /// Over which the rates were taken.
    interval_s: f64,
    groups: Vec<Group>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    if args.prometheus {
        return print(&exposition(&look()?).to_string());
    }
    let delay = Duration::from_secs_f64(args.delay);
    if args.once || args.json || !stdout().is_terminal() {
        let (start, before) = (Instant::now(), look()?);
        std::thread::sleep(delay);
        let mut now = look()?;
        now.rate(&before, start.elapsed());
        return print(&match args.json {
            true => json(&now)?,
            false => now.text(usize::MAX),
        });
    }
    live(delay)
}

/// Draws again and again, until a key or a signal ends it. The terminal is as before afterwards.
fn live(delay: Duration) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).doing("waiting for signals")?;
    }
    let keys = Keys::take();
    print("\x1b[?1049h\x1b[?25l\x1b[?7l")?;
    let ended = watch(delay, &stop, keys.as_ref());
    print("\x1b[?7h\x1b[?25h\x1b[?1049l")?;
    ended
}

fn watch(delay: Duration, stop: &AtomicBool, keys: Option<&Keys>) -> Result<(), Failure> {
    let (mut at, mut before) = (Instant::now(), look()?);
    let mut wait = delay.min(FIRST);
    while !stop.load(Ordering::Relaxed) {
        match keys {
            Some(keys) if keys.wait(wait).is_some_and(|key| ENDS.contains(&key)) => break,
            Some(_) => {}
            None => std::thread::sleep(wait),
        }
        wait = delay;
        let mut now = look()?;
        now.rate(&before, at.elapsed());
        (at, before) = (Instant::now(), now);
        let rows = terminal::size(stdout()).map_or(ROWS, |(_, rows)| rows);
        let text = before.text(rows.saturating_sub(1));
        // Over what is there, line by line, so that nothing flickers.
        print(&format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n")))?;
    }
    Ok(())
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).doing("printing what lives here")
}

/// Asks all processes.
fn look() -> Result<Look, Failure> {
    let reports = verbs::survey().doing("asking the processes for their counters")?;
    let mut groups: Vec<_> = reports.into_iter().map(of_device).chain(stat::groups()).collect();
    groups.sort_by(|one, next| (one.pid, &one.place).cmp(&(next.pid, &next.place)));
    Ok(Look { interval_s: 0.0, groups })
}

fn of_device(report: DeviceReport) -> Group {
    let DeviceReport { pid, device, fresh, port, total, qps, more, .. } = report;
    let read = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    let dropped = total.dropped_pkts + port.icrc_errors + port.malformed + port.unknown_qp;
    Group {
        pid,
        command: printable(read.unwrap_or_default().trim()),
        place: printable(&device),
        fresh,
        flow: Flow {
            sent: total.sent_pkts,
            received: total.rcvd_pkts,
            dropped,
            resent: total.completer_retry_err,
        },
        members: qps.iter().map(of_qp).collect(),
        more,
        sent_per_s: 0,
        received_per_s: 0,
    }
}

fn of_qp(qp: &QpRow) -> Member {
    let QpRow { number, peer, state, path, counters, .. } = qp;
    let peer = peer.map_or(String::new(), |peer| format!(" to {:#08x}", peer.get()));
    Member {
        name: format!("qp {:#08x}{peer}", number.get()),
        state: state.to_string(),
        path: path.map_or(String::new(), |path| path.to_string()),
        flow: Flow {
            sent: counters.sent_pkts,
            received: counters.rcvd_pkts,
            dropped: counters.dropped_pkts,
            resent: counters.completer_retry_err,
        },
        sent_per_s: 0,
        received_per_s: 0,
    }
}

impl Look {
    /// Sets the rates, by what was before.
    fn rate(&mut self, before: &Self, elapsed: Duration) {
        self.interval_s = (elapsed.as_secs_f64() * 1000.0).round() / 1000.0;
        let known: BTreeMap<_, _> =
            before.groups.iter().map(|group| ((group.pid, group.place.as_str()), group)).collect();
        for group in &mut self.groups {
            let Some(old) = known.get(&(group.pid, group.place.as_str())) else { continue };
            (group.sent_per_s, group.received_per_s) = group.flow.since(old.flow, elapsed);
            let flows: BTreeMap<_, _> =
                old.members.iter().map(|member| (member.name.as_str(), member.flow)).collect();
            for member in &mut group.members {
                if let Some(flow) = flows.get(member.name.as_str()) {
                    (member.sent_per_s, member.received_per_s) = member.flow.since(*flow, elapsed);
                }
            }
        }
    }

    /// The table, in so many lines at most.
    fn text(&self, lines_max: usize) -> String {
        let count = self.groups.iter().map(|group| group.members.len()).sum::<usize>();
        let processes: std::collections::BTreeSet<_> =
            self.groups.iter().map(|group| group.pid).collect();
        let head =
            format!("adverb top: {} processes, {count} queue pairs and sockets", processes.len());
        if self.groups.is_empty() {
            return format!(
                "{head}\n\nNo process of this user has a device open, or its sockets accelerated.\n\
                 `adverb bench` and `adverb run -- PROGRAM` are some that do.\n"
            );
        }
        let titles = Line {
            start: format!("{:>7} {:<15} {:<13}", "PID", "COMMAND", "DEVICE"),
            path: "PATH",
            numbers: ["SENT/s", "RECVD/s", "DROPPED", "RESENT"].map(str::to_owned),
        };
        let mut lines = vec![head, String::new(), titles.to_string()];
        for group in &self.groups {
            lines.push(group.line());
            lines.extend(group.members.iter().map(Member::line));
            if group.more > 0 {
                lines.push(format!("        and {} more", group.more));
            }
        }
        if lines.len() > lines_max {
            let left = lines.len() - lines_max + 1;
            lines.truncate(lines_max.saturating_sub(1));
            lines.push(format!("        {left} lines more: `adverb top --once` has them"));
        }
        lines.iter().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{}", line.trim_end());
            text
        })
    }
}

/// A line of the table.
struct Line<'a> {
    start: String,
    path: &'a str,
    numbers: [String; 4],
}

impl std::fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [sent, received, dropped, resent] = &self.numbers;
        write!(
            f,
            "{:<37} {:<10} {sent:>7} {received:>7} {dropped:>7} {resent:>6}",
            self.start, self.path
        )
    }
}

impl Group {
    fn line(&self) -> String {
        let Self { pid, command, place, fresh, flow, .. } = self;
        let mut paths = self.members.iter().map(|member| member.path.as_str());
        let path = match (fresh, paths.next()) {
            (false, _) => "no answer",
            (true, Some(first)) if paths.all(|path| path == first) => first,
            (true, Some(_)) => "mixed",
            (true, None) => "",
        };
        let start = format!("{pid:>7} {command:<15.15} {place:<13.13}");
        Line { start, path, numbers: numbers(*flow, self.sent_per_s, self.received_per_s) }
            .to_string()
    }
}

impl Member {
    fn line(&self) -> String {
        let Self { name, state, path, flow, .. } = self;
        let start = format!("        {:<29.29}", format!("{name} {state}"));
        Line { start, path, numbers: numbers(*flow, self.sent_per_s, self.received_per_s) }
            .to_string()
    }
}

/// Rates, and what has been lost and repeated.
fn numbers(flow: Flow, sent_per_s: u64, received_per_s: u64) -> [String; 4] {
    [sent_per_s, received_per_s, flow.dropped, flow.resent].map(short)
}

/// A number in six characters.
fn short(number: u64) -> String {
    match number {
        0 => "-".to_owned(),
        1..=9_999 => number.to_string(),
        10_000..=9_999_999 => format!("{}k", number / 1000),
        10_000_000..=9_999_999_999 => format!("{}M", number / 1_000_000),
        _ => format!("{}G", number / 1_000_000_000),
    }
}

/// Totals by process and device: a name for each queue pair would be new with each connection.
fn exposition(look: &Look) -> Exposition {
    let mut all = Exposition::default();
    for group in &look.groups {
        let pid = group.pid.to_string();
        let labels = [("pid", pid.as_str()), ("command", &group.command), ("device", &group.place)];
        let Flow { sent, received, dropped, resent } = group.flow;
        let names =
            [("sent", sent), ("received", received), ("dropped", dropped), ("resent", resent)];
        for (name, value) in names {
            all.add(&format!("adverb_top_{name}"), Kind::Counter, &labels, value);
        }
        let members = u64::try_from(group.members.len()).unwrap_or(u64::MAX);
        let open = members.saturating_add(group.more);
        all.add("adverb_top_members", Kind::Gauge, &labels, open);
    }
    all
}

/// Keys that end it: q, Q and Escape.
const ENDS: [u8; 3] = [b'q', b'Q', 0x1b];
/// The first table comes early.
const FIRST: Duration = Duration::from_millis(200);
/// Of a terminal that does not say how high it is.
const ROWS: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    fn look(sent: u64) -> Look {
        let flow = Flow { sent, received: 7, dropped: 0, resent: 12_345 };
        let member = Member {
            name: "qp 0x000011 to 0x000012".to_owned(),
            state: "RTS".to_owned(),
            path: "shm".to_owned(),
            flow,
            sent_per_s: 0,
            received_per_s: 0,
        };
        let group = Group {
            pid: 42,
            command: "program".to_owned(),
            place: "soft_lo".to_owned(),
            fresh: true,
            flow,
            members: vec![member],
            more: 3,
            sent_per_s: 0,
            received_per_s: 0,
        };
        Look { interval_s: 0.0, groups: vec![group] }
    }

    #[test]
    fn rates_are_what_has_come_since_the_look_before() {
        let mut now = look(3000);
        now.rate(&look(1000), Duration::from_secs(2));
        assert_eq!(now.groups[0].sent_per_s, 1000);
        assert_eq!(now.groups[0].members[0].sent_per_s, 1000);
        assert_eq!(now.groups[0].received_per_s, 0);
        let mut again = look(1000);
        again.rate(&now, Duration::from_secs(1));
        assert_eq!(again.groups[0].sent_per_s, 0, "a process of the same number has begun again");
    }

    #[test]
    fn the_table_fits_eighty_columns_and_as_many_lines_as_there_are() {
        let mut now = look(9_999_999);
        now.rate(&look(0), Duration::from_secs(1));
        let text = now.text(usize::MAX);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for part in [
            "     42 program         soft_lo",
            "qp 0x000011 to 0x000012 RTS",
            "shm",
            "9999k",
            "12k",
            "and 3 more",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        assert_eq!(now.text(5).lines().count(), 5);
        assert!(
            now.text(5).ends_with("2 lines more: `adverb top --once` has them\n"),
            "{}",
            now.text(5)
        );
    }

    #[test]
    fn where_nothing_lives_it_says_so() {
        let empty = Look { groups: Vec::new(), ..look(0) };
        assert!(empty.text(usize::MAX).contains("No process of this user has a device open"));
    }

    #[test]
    fn names_that_others_chose_do_not_move_the_cursor() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a?[2Jb?c");
    }
}
