//! What the user sees of a run: each figure, or row of figures, as soon as it is known.

use std::io::Write;

use super::{Findings, Path, Record, Report, summary, table};
use crate::bench::machine::Machine;
use crate::bench::plan::{Job, Plan};
use crate::failure::{Doing, Failure};
use crate::terminal::Paint;

/// How figures are shown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Style {
    /// A line each, and a sentence at the end.
    Summary,
    /// Rows of tables.
    Tables,
    /// Not at all: the screen is for something else.
    Nothing,
}

/// What has been shown.
#[derive(Debug)]
pub(crate) struct Screen {
    style: Style,
    gbits: bool,
    paint: Paint,
    machine: Option<Machine>,
    /// Of the last line.
    path: Option<Path>,
    /// Of the table that the last row was of.
    title: String,
}

impl Screen {
    /// Nothing is on it. Bandwidth is in Gbit/s, or in GB/s and in tables MiB/s.
    pub(crate) const fn new(style: Style, gbits: bool, paint: Paint) -> Self {
        Self { style, gbits, paint, machine: None, path: None, title: String::new() }
    }

    /// A run on this machine begins.
    pub(crate) fn machine(&mut self, machine: Machine) {
        self.machine = Some(machine);
    }

    /// Shows what the jobs of a row have come to.
    pub(crate) fn show(
        &mut self,
        findings: &Findings,
        row: &[Job],
        plan: &Plan,
    ) -> Result<(), Failure> {
        match self.text(findings, row, plan) {
            text if text.is_empty() => Ok(()),
            text => print(&text),
        }
    }

    /// The row, below what stands over it if it is the first.
    pub(super) fn text(&mut self, findings: &Findings, row: &[Job], plan: &Plan) -> String {
        let records: Vec<_> = row.iter().filter_map(|job| findings.record(*job, plan)).collect();
        match (self.style, records.as_slice()) {
            (Style::Summary, [record, ..]) => self.line(findings, record),
            (Style::Tables, records @ [_, ..]) => self.row(findings, records),
            (Style::Summary | Style::Tables, []) | (Style::Nothing, _) => String::new(),
        }
    }

    fn line(&mut self, findings: &Findings, record: &Record) -> String {
        let mut text = String::new();
        if let Some(machine) = self.machine.take() {
            if self.path.is_none() {
                text = headline(&findings.machine(machine), None);
            }
            text.push('\n');
            text.push_str(&summary::heads(record, self.paint));
        }
        self.path = Some(record.path);
        text.push_str(&summary::line(record, self.gbits, self.paint));
        text
    }

    fn row(&mut self, findings: &Findings, records: &[Record]) -> String {
        let Some(first) = records.first() else {
            return String::new();
        };
        let (mut text, floors) = (String::new(), findings.floors());
        if let Some(machine) = self.machine.take() {
            if self.path.is_some() {
                text.push('\n');
            }
            text.push_str(&headline(&findings.machine(machine), Some(first.path)));
            text.push_str(&table::sockets(&floors, self.gbits));
            self.title.clear();
        }
        self.path = Some(first.path);
        let table = table::Table::of(first, self.gbits);
        if table.title != self.title {
            text.push_str(&table.head());
            self.title.clone_from(&table.title);
        }
        text.push_str(&table.row(&table::cells(records, &floors, self.gbits)));
        text
    }

    /// Says what the main figures come to, and where there are more.
    pub(crate) fn conclude(&self, report: &Report) -> Result<(), Failure> {
        let verdict = summary::verdict(&report.results).unwrap_or_default();
        let advice = summary::advice(&report.results);
        print(&format!(
            "\n{verdict}Every size and operation: --tables; for programs: --json.\n{advice}"
        ))
    }
}

fn print(text: &str) -> Result<(), Failure> {
    let mut screen = std::io::stdout().lock();
    screen.write_all(text.as_bytes()).and_then(|()| screen.flush()).doing("printing the results")
}

/// The device, the way that the bytes went if it is one, and the machine, in two lines.
fn headline(machine: &Machine, path: Option<Path>) -> String {
    let Machine { cpu, cpus, kernel, device, mtu, adverb, pinned, .. } = machine;
    let bound = if *pinned { "client and server bound to one each" } else { "not bound" };
    let path = path.map(|path| format!(", path {path}")).unwrap_or_default();
    format!(
        "adverb {adverb}, device {device}{path}, path MTU {mtu}\n\
         {cpu}, {cpus} processors ({bound}), Linux {kernel}\n"
    )
}
