//! A report as pictures: latency, bandwidth, and the share of the floor that both have, by size.
//!
//! A row of three charts for each path. Sizes, latencies and bandwidths have logarithmic axes. The picture is SVG
//! without scripts; the page has it in itself, and all figures as a table.

use std::fmt::Write as _;

use super::summary::{figure, short, what};
use super::{Machine, Path, Record, Report, Value};
use crate::args::{Op, Test};
use crate::bench::plan::Buffers;
use crate::bench::stats::to_f64;

/// The picture.
pub(crate) fn svg(report: &Report) -> String {
    let rows: Vec<_> = PATHS
        .into_iter()
        .filter_map(|path| {
            let of = report.results.iter().filter(|record| record.path == path);
            let records: Vec<_> = of.collect();
            (!records.is_empty()).then_some((path, records))
        })
        .collect();
    let (width, height) = (3.0 * PANEL_WIDTH, HEAD + to_f64(count(rows.len())) * ROW_HEIGHT);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#222\">\n\
         <title>adverb bench</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"16\" y=\"24\" font-size=\"15\" font-weight=\"bold\">adverb bench</text>\n\
         <text x=\"16\" y=\"42\" fill=\"#555\">{}</text>\n",
        escaped(&machine(&report.machine))
    );
    for (place, (path, records)) in rows.iter().enumerate() {
        let y = HEAD + to_f64(count(place)) * ROW_HEIGHT;
        let title = format!("{}, by bytes of a message", escaped(&path.to_string()));
        let _ = writeln!(
            text,
            "<text x=\"16\" y=\"{}\" font-size=\"13\" font-weight=\"bold\">{title}</text>",
            y + 14.0
        );
        for (column, panel) in panels(records).iter().enumerate() {
            let x = to_f64(count(column)) * PANEL_WIDTH;
            let _ = writeln!(text, "<g transform=\"translate({x} {})\">", y + 20.0);
            panel.draw(&mut text);
            text.push_str("</g>\n");
        }
    }
    text + "</svg>\n"
}

/// The page.
pub(crate) fn html(report: &Report) -> String {
    let mut rows = String::new();
    for record in &report.results {
        let floor = record.floor.as_ref();
        let theirs = floor.map(|floor| figure(record.value, floor.value, false));
        let p99 = match record.value {
            Value::Completion(times) | Value::HalfRoundTrip(times) => {
                format!("{} µs", short(to_f64(times.p99) / 1e3))
            }
            Value::BytesPerSecond(_) | Value::MessagesPerSecond(_) => String::new(),
        };
        let cells = [
            record.path.to_string(),
            what(record),
            figure(record.value, record.value.compared(), false),
            p99,
            theirs.unwrap_or_default(),
            floor.map(|floor| floor.name.clone()).unwrap_or_default(),
            record.ratio.map(short).unwrap_or_default(),
        ];
        let cells: String =
            cells.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
        let _ = writeln!(rows, "<tr>{cells}</tr>");
    }
    let medians = match report.rounds {
        1 => "Latencies are medians of one round.".to_owned(),
        rounds => format!("Latencies are medians; of {rounds} rounds the median counts."),
    };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>adverb bench</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<div>\n{}</div>\n\
         <p>A dashed line is the floor: what plain sockets, or shared pages, reach between the same two processes. \
         {medians} The share of the floor is 1 where Adverb is as fast \
         as the floor, less where it is slower.</p>\n\
         <div>\n<table>\n<thead><tr><th>path</th><th>measured</th><th>Adverb</th><th>99 %</th><th>floor</th><th></th>\
         <th>ratio</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n</body>\n</html>\n",
        svg(report),
    )
}

/// The three charts of a path.
fn panels(records: &[&Record]) -> [Panel; 3] {
    let of = |op: Op, test: Test| {
        records.iter().copied().filter(move |record| {
            let Record { buffers, memory, .. } = record;
            let usual = *buffers != Some(Buffers::One) && memory.is_none();
            // SEND and WRITE have half round trips, READ has none.
            let trip = matches!(record.value, Value::HalfRoundTrip(_)) || op == Op::Read;
            record.op == op && record.test == test && usual && (trip || test != Test::Latency)
        })
    };
    let lines = |test: Test, scale: f64| {
        OPS.into_iter().flat_map(move |(op, colour)| {
            let point = move |record: &Record| {
                (to_f64(record.bytes), to_f64(record.value.compared()) / scale)
            };
            let floor = move |record: &Record| {
                Some((to_f64(record.bytes), to_f64(record.floor.as_ref()?.value) / scale))
            };
            [
                Line {
                    name: op.to_string(),
                    colour,
                    dashed: false,
                    points: of(op, test).map(point).collect(),
                },
                Line {
                    name: String::new(),
                    colour,
                    dashed: true,
                    points: of(op, test).filter_map(floor).collect(),
                },
            ]
        })
    };
    let shares = [Test::Latency, Test::Bandwidth].into_iter().flat_map(|test| {
        OPS.into_iter().map(move |(op, colour)| Line {
            name: if test == Test::Latency { op.to_string() } else { String::new() },
            colour,
            dashed: test != Test::Latency,
            points: of(op, test)
                .filter_map(|record| Some((to_f64(record.bytes), record.share()?)))
                .collect(),
        })
    });
    [
        Panel::new(
            "Latency, µs; READ: post to completion",
            lines(Test::Latency, 1e3),
            Axis::Decades,
        ),
        Panel::new("Bandwidth, GB/s", lines(Test::Bandwidth, 1e9), Axis::Decades),
        Panel::new("Share of the floor's speed (2: twice or more)", shares, Axis::Share),
    ]
}

/// One chart.
#[derive(Debug)]
struct Panel {
    title: &'static str,
    lines: Vec<Line>,
    axis: Axis,
}

/// What goes up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Axis {
    /// A quantity with a unit, by powers of ten.
    Decades,
    /// A share of the floor, up to [`SHARE_MAX`]: at long messages a busy machine's floor may be anything.
    Share,
}

#[derive(Debug)]
struct Line {
    /// In the legend; empty: not there.
    name: String,
    colour: &'static str,
    dashed: bool,
    points: Vec<(f64, f64)>,
}

impl Panel {
    fn new(title: &'static str, lines: impl Iterator<Item = Line>, axis: Axis) -> Self {
        let drawable = |(x, y): &(f64, f64)| *x > 0.0 && *y > 0.0 && x.is_finite() && y.is_finite();
        let lines = lines.map(|mut line| {
            line.points.retain(drawable);
            line.points.sort_by(|(one, _), (next, _)| one.total_cmp(next));
            line
        });
        Self { title, lines: lines.filter(|line| !line.points.is_empty()).collect(), axis }
    }

    /// Least and most of one coordinate, as the axis has it; no axis is empty.
    fn range(&self, of: impl Fn(&(f64, f64)) -> f64) -> (f64, f64) {
        let all = || self.lines.iter().flat_map(|line| &line.points).map(&of);
        let (least, most) = (all().fold(f64::MAX, f64::min), all().fold(f64::MIN, f64::max));
        if least > most { (0.0, 1.0) } else { (least, most.max(least + 1.0)) }
    }

    fn draw(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "<text x=\"{LEFT}\" y=\"14\" font-weight=\"bold\">{}</text>",
            self.title
        );
        if self.lines.is_empty() {
            let _ = writeln!(text, "<text x=\"{LEFT}\" y=\"40\" fill=\"#777\">not measured</text>");
            return;
        }
        let (x0, x1) = self.range(|(x, _)| x.log2());
        let (y0, y1) = match self.axis {
            Axis::Decades => {
                let (least, most) = self.range(|(_, y)| y.log10());
                (least.floor(), most.ceil())
            }
            Axis::Share => (0.0, SHARE_MAX),
        };
        let height = |y: f64| match self.axis {
            Axis::Decades => y.log10(),
            Axis::Share => y.min(SHARE_MAX),
        };
        let at_x = |x: f64| LEFT + (x.log2() - x0) / (x1 - x0) * INNER_WIDTH;
        let at_y = |y: f64| TOP + (y1 - height(y)) / (y1 - y0) * INNER_HEIGHT;
        self.draw_axes(text, (x0, x1), (y0, y1), at_x, at_y);
        for line in &self.lines {
            let points = line.points.iter().map(|&(x, y)| (at_x(x), at_y(y)));
            let points: Vec<_> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let dash = if line.dashed { " stroke-dasharray=\"5 4\"" } else { "" };
            let _ = writeln!(
                text,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"{dash}/>",
                points.join(" "),
                line.colour
            );
            for (&(x, y), place) in line.points.iter().zip(&points) {
                let (cx, cy) = place.split_once(',').unwrap_or_default();
                let _ = writeln!(
                    text,
                    "<circle cx=\"{cx}\" cy=\"{cy}\" r=\"2.2\" fill=\"{}\"><title>{} {}B: {}</title></circle>",
                    line.colour,
                    match (self.axis, line.dashed) {
                        (Axis::Decades, true) => "floor",
                        (Axis::Share, true) => "bandwidth",
                        (Axis::Decades | Axis::Share, false) => &line.name,
                    },
                    bytes(x),
                    short(y)
                );
            }
        }
        self.draw_legend(text);
    }

    fn draw_axes(
        &self,
        text: &mut String,
        (x0, x1): (f64, f64),
        (y0, y1): (f64, f64),
        at_x: impl Fn(f64) -> f64,
        at_y: impl Fn(f64) -> f64,
    ) {
        let (bottom, right) = (TOP + INNER_HEIGHT, LEFT + INNER_WIDTH);
        for exponent in (0..=MOST_EXPONENT).step_by(5) {
            let exponent = f64::from(exponent);
            if (x0..=x1).contains(&exponent) {
                let (x, label) = (at_x(exponent.exp2()), bytes(exponent.exp2()));
                let _ = writeln!(
                    text,
                    "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#eee\"/>\
                     <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{label}</text>",
                    bottom + 15.0
                );
            }
        }
        let ticks: Vec<f64> = match self.axis {
            Axis::Decades => (-6..=9)
                .map(f64::from)
                .filter(|tick| (y0..=y1).contains(tick))
                .map(|tick| 10_f64.powf(tick))
                .collect(),
            Axis::Share => (0..=4).map(|part| f64::from(part) / 4.0 * SHARE_MAX).collect(),
        };
        for tick in ticks {
            let y = at_y(tick);
            let label = format!("{}", (tick * 1e6).round() / 1e6);
            // Where Adverb is as fast as the floor.
            let stroke =
                if self.axis == Axis::Share && (tick - 1.0).abs() < 1e-9 { "#999" } else { "#eee" };
            let _ = writeln!(
                text,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"{stroke}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{label}</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
        let _ = writeln!(
            text,
            "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{INNER_WIDTH}\" height=\"{INNER_HEIGHT}\" fill=\"none\" \
             stroke=\"#bbb\"/>"
        );
    }

    /// Below the axis: a name for each line, and what is dashed.
    fn draw_legend(&self, text: &mut String) {
        let mut named: Vec<_> = self
            .lines
            .iter()
            .filter(|line| !line.name.is_empty())
            .map(|line| (line.name.as_str(), line.colour, line.dashed))
            .collect();
        if self.lines.iter().any(|line| line.name.is_empty()) {
            match self.axis {
                Axis::Decades => named.push(("floor", GREY, true)),
                Axis::Share => named.extend([("latency", GREY, false), ("bandwidth", GREY, true)]),
            }
        }
        for (place, (name, colour, dashed)) in named.into_iter().enumerate() {
            let x = LEFT + to_f64(count(place % 3)) * LEGEND_WIDTH;
            let y = TOP + INNER_HEIGHT + 34.0 + to_f64(count(place / 3)) * 15.0;
            let dash = if dashed { " stroke-dasharray=\"5 4\"" } else { "" };
            let _ = writeln!(
                text,
                "<line x1=\"{x}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\
                 <text x=\"{}\" y=\"{y}\">{name}</text>",
                y - 4.0,
                x + 18.0,
                y - 4.0,
                x + 23.0
            );
        }
    }
}

/// The machine, in a line.
fn machine(machine: &Machine) -> String {
    let Machine { cpu, cpus, kernel, adverb, device, mtu, .. } = machine;
    format!(
        "{cpu}, {cpus} processors, Linux {kernel}; adverb {adverb}, device {device}, path MTU {mtu}"
    )
}

/// A length with its unit's prefix: "64 ", "4 Ki".
fn bytes(bytes: f64) -> String {
    match bytes {
        1_048_576.0.. => format!("{} Mi", (bytes / 1_048_576.0 * 10.0).round() / 10.0),
        1024.0.. => format!("{} Ki", (bytes / 1024.0 * 10.0).round() / 10.0),
        _ => format!("{bytes} "),
    }
}

/// As text of XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Rows from above to below.
const PATHS: [Path; 4] = [Path::Hw, Path::Udp, Path::Shm, Path::Local];
/// Colours that can be told apart without red and green.
const OPS: [(Op, &str); 3] = [(Op::Send, "#0072b2"), (Op::Write, "#d55e00"), (Op::Read, "#009e73")];
const GREY: &str = "#777";
/// The top of the axis of shares.
const SHARE_MAX: f64 = 2.0;
/// Longest message: 2^30 bytes.
const MOST_EXPONENT: u32 = 30;
/// Sizes of the picture, in pixels.
const HEAD: f64 = 56.0;
const PANEL_WIDTH: f64 = 410.0;
const ROW_HEIGHT: f64 = 340.0;
const LEFT: f64 = 58.0;
const TOP: f64 = 24.0;
const INNER_WIDTH: f64 = 336.0;
const INNER_HEIGHT: f64 = 230.0;
const LEGEND_WIDTH: f64 = 118.0;
const STYLE: &str = "\
body { font-family: sans-serif; max-width: 1240px; margin: 1em auto; padding: 0 1em; color: #222; background: white; }
/* On a narrow screen, what is wide is pushed along, and stays large enough to be read. */
div { overflow-x: auto; }
svg { width: 100%; min-width: 900px; height: auto; }
table { border-collapse: collapse; font-size: 13px; }
th, td { text-align: left; padding: 2px 14px 2px 0; border-bottom: 1px solid #8884; white-space: nowrap; }
:is(th, td):is(:nth-child(3), :nth-child(4), :nth-child(5), :nth-child(7)) { text-align: right; font-variant-numeric: tabular-nums; }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #181818; }
  svg { filter: invert(0.9) hue-rotate(180deg); }
}
";
