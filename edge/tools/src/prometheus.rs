//! Numbers as Prometheus reads them: its text format, version 0.0.4.
//!
//! Samples of one name stand together, whatever order they come in, as the format has it.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

/// Whether a number only grows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
}

/// Samples, by name.
#[derive(Debug, Default)]
pub(crate) struct Exposition(BTreeMap<String, (Kind, Vec<(String, u64)>)>);

impl Exposition {
    /// Adds a sample. A counter's name gets the ending `_total`.
    pub(crate) fn add(&mut self, name: &str, kind: Kind, labels: &[(&str, &str)], value: u64) {
        let name = match kind {
            Kind::Counter => format!("{name}_total"),
            Kind::Gauge => name.to_owned(),
        };
        let (_, samples) = self.0.entry(name).or_insert((kind, Vec::new()));
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        samples.push((labels.join(","), value));
    }
}

/// A label's value as it stands between quotes.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Display for Exposition {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (name, (kind, samples)) in &self.0 {
            let kind = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
            };
            writeln!(f, "# TYPE {name} {kind}")?;
            for (labels, value) in samples {
                writeln!(f, "{name}{{{labels}}} {value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_name_stand_together_and_labels_are_escaped() {
        let mut all = Exposition::default();
        all.add("b_bytes", Kind::Counter, &[("fd", "3")], 7);
        all.add("a", Kind::Gauge, &[("command", "say \"a\\b\"\n"), ("pid", "1")], 2);
        all.add("b_bytes", Kind::Counter, &[("fd", "4")], 8);
        assert_eq!(
            all.to_string(),
            "# TYPE a gauge\na{command=\"say \\\"a\\\\b\\\"\\n\",pid=\"1\"} 2\n# TYPE b_bytes_total counter\n\
             b_bytes_total{fd=\"3\"} 7\nb_bytes_total{fd=\"4\"} 8\n"
        );
    }
}
