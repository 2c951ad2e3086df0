//! A report as comma-separated values: one line a result, with every column in every line.

use super::{Report, Value};
use crate::bench::plan::Buffers;

/// Header and lines. No field needs quotes: all are numbers or words of ours.
pub(crate) fn csv(report: &Report) -> String {
    let mut text = HEADER.to_owned();
    for record in &report.results {
        let (unit, value, p99, p999) = match record.value {
            Value::Completion(p) => ("completion_ns", p.p50, Some(p.p99), Some(p.p999)),
            Value::HalfRoundTrip(p) => ("half_rtt_ns", p.p50, Some(p.p99), Some(p.p999)),
            Value::BytesPerSecond(rate) => ("bytes_per_s", rate, None, None),
            Value::MessagesPerSecond(rate) => ("messages_per_s", rate, None, None),
        };
        let buffers = match record.buffers {
            Some(Buffers::RoundRobin) => "round_robin",
            Some(Buffers::One) => "one",
            None => "",
        };
        let fields = [
            word(&record.test),
            word(&record.op),
            word(&record.path),
            record.bytes.to_string(),
            buffers.to_owned(),
            unit.to_owned(),
            value.to_string(),
            optional(p99),
            optional(p999),
            record.floor.as_ref().map(|floor| floor.name.clone()).unwrap_or_default(),
            optional(record.floor.as_ref().map(|floor| floor.value)),
            optional(record.ratio),
            optional(record.tcp_ratio),
            record.memory.as_ref().map(word).unwrap_or_default(),
            optional(record.post_list),
        ];
        text.push_str(&fields.join(","));
        text.push('\n');
    }
    text
}

/// The word that the JSON uses.
fn word(value: &impl serde::Serialize) -> String {
    let json = serde_json::to_string(value).unwrap_or_default();
    json.trim_matches('"').to_owned()
}

/// A number, or nothing.
fn optional(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Names as in the JSON. `value` is the median of a latency.
const HEADER: &str = "test,op,path,bytes,buffers,unit,value,p99,p999,floor_name,floor_value,ratio,tcp_ratio,memory,\
     post_list\n";
