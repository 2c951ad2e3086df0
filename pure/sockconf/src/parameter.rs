//! One parameter: what it is called, what it may be, and what it does here.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// What setting a parameter changes, in this implementation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    /// What the manual says.
    Active,
    /// Something close to it; the text says what.
    Approximated(&'static str),
    /// Nothing: it is accepted so that no script has to change. The text says why.
    None(&'static str),
}

impl Effect {
    /// One word for tables and scripts.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Approximated(_) => "approximated",
            Self::None(_) => "none",
        }
    }

    /// What else there is to say; empty for [`Effect::Active`].
    #[must_use]
    pub const fn note(self) -> &'static str {
        match self {
            Self::Active => "",
            Self::Approximated(note) | Self::None(note) => note,
        }
    }
}

/// What values a parameter takes.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// 0 or 1.
    Flag,
    /// A whole number between two bounds, both included.
    Integer(i64, i64),
    /// One of these numbers, which also have names. The first name of a number is the one printed.
    Choice(&'static [(i64, &'static str)]),
    /// Processors: `-1` for any, a mask (`0x3`), or a list of numbers and ranges (`0,2-5`).
    Processors,
    /// A text: a path, a name.
    Text,
}

/// The value of a parameter.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Value {
    /// A flag, an integer or a choice.
    Number(i64),
    /// A text.
    Text(String),
}

impl Value {
    /// The number, if it is one.
    #[must_use]
    pub const fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) => None,
        }
    }

    /// The text, if it is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Number(_) => None,
            Self::Text(text) => Some(text),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// Default of a parameter.
#[derive(Clone, Copy, Debug)]
pub enum Default {
    /// A number.
    Number(i64),
    /// A text.
    Text(&'static str),
}

/// One parameter: one row of the table of all of them.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its name in the environment.
    pub name: &'static str,
    /// What the start-up banner calls it.
    pub label: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// Its default value.
    pub default: Default,
    /// What it does here.
    pub effect: Effect,
}

impl Parameter {
    /// Its default value.
    #[must_use]
    pub fn default(&self) -> Value {
        match self.default {
            Default::Number(number) => Value::Number(number),
            Default::Text(text) => Value::Text(text.to_owned()),
        }
    }

    /// Reads a value, such as it stands in the environment; `None` if it is not one of the allowed.
    #[must_use]
    pub fn parse(&self, text: &str) -> Option<Value> {
        let trimmed = text.trim();
        match self.kind {
            Kind::Text => Some(Value::Text(text.to_owned())),
            Kind::Processors => is_processors(trimmed).then(|| Value::Text(trimmed.to_owned())),
            Kind::Flag => flag(trimmed).map(Value::Number),
            Kind::Integer(low, high) => {
                let number = integer(trimmed)?;
                (low..=high).contains(&number).then_some(Value::Number(number))
            }
            Kind::Choice(choices) => {
                let by_name = choices.iter().find(|(_, name)| name.eq_ignore_ascii_case(trimmed));
                let by_number = || {
                    let number = integer(trimmed)?;
                    choices.iter().find(|(choice, _)| *choice == number)
                };
                by_name.or_else(by_number).map(|(number, _)| Value::Number(*number))
            }
        }
    }

    /// What values are allowed, in words.
    #[must_use]
    pub fn allowed(&self) -> String {
        match self.kind {
            Kind::Processors => "-1, a mask like 0x3, or a list like 0,2-5".to_owned(),
            Kind::Text => "a text".to_owned(),
            Kind::Flag => "0 or 1".to_owned(),
            Kind::Integer(low, high) => alloc::format!("a number from {low} to {high}"),
            Kind::Choice(choices) => {
                let mut text = "one of".to_owned();
                for (number, name) in choices {
                    text.push_str(&alloc::format!(" {number} ({name})"));
                }
                text
            }
        }
    }

    /// `value` as people read it: flags and choices by their names.
    #[must_use]
    pub fn show(&self, value: &Value) -> String {
        match (self.kind, value) {
            (Kind::Flag, Value::Number(0)) => "Disabled".to_owned(),
            (Kind::Flag, Value::Number(_)) => "Enabled".to_owned(),
            (Kind::Choice(choices), Value::Number(number)) => {
                let choice = choices.iter().find(|(choice, _)| choice == number);
                choice.map_or_else(|| alloc::format!("{number}"), |(_, name)| (*name).to_owned())
            }
            (Kind::Integer(..) | Kind::Processors | Kind::Text, _) | (_, Value::Text(_)) => {
                alloc::format!("{value}")
            }
        }
    }
}

/// Reads a flag by the words that people use for one.
fn flag(text: &str) -> Option<i64> {
    let is = |words: &[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
    if is(&["0", "false", "no", "off", "disable", "disabled"]) {
        Some(0)
    } else if is(&["1", "true", "yes", "on", "enable", "enabled"]) {
        Some(1)
    } else {
        None
    }
}

/// Whether a text names processors, or says that any will do.
fn is_processors(text: &str) -> bool {
    text == "-1" || processors(text).is_some()
}

/// The numbers of the processors that a mask or a list names; `None` if it is neither.
#[must_use]
pub fn processors(text: &str) -> Option<Vec<usize>> {
    if let Some(digits) = text.strip_prefix("0x") {
        let digits = digits.chars().rev().map(|digit| digit.to_digit(16));
        let digits = digits.collect::<Option<Vec<_>>>().filter(|digits| !digits.is_empty())?;
        let bits = digits.into_iter().flat_map(|digit| (0..4).map(move |bit| digit >> bit & 1));
        return Some(bits.enumerate().filter(|(_, bit)| *bit != 0).map(|(at, _)| at).collect());
    }
    let number = |digits: &str| digits.parse::<u16>().ok();
    let range = |place: &str| {
        let (first, last) = place.split_once('-').unwrap_or((place, place));
        let (first, last) = (number(first)?, number(last)?);
        (first <= last).then_some(first..=last)
    };
    let ranges = text.split(',').map(|place| range(place.trim())).collect::<Option<Vec<_>>>()?;
    Some(ranges.into_iter().flatten().map(usize::from).collect())
}

/// Reads a decimal or `0x` hexadecimal number, perhaps with `_` between digits.
fn integer(text: &str) -> Option<i64> {
    let text: String = text.chars().filter(|c| *c != '_').collect();
    match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn of(kind: Kind) -> Parameter {
        Parameter {
            name: "VMA_X",
            label: "X",
            kind,
            default: Default::Number(0),
            effect: Effect::Active,
        }
    }

    #[test]
    fn values_are_read_by_kind_and_refused_outside_their_range() {
        let number = |n| Some(Value::Number(n));
        let cases: &[(Kind, &str, Option<Value>)] = &[
            (Kind::Flag, "1", number(1)),
            (Kind::Flag, " off ", number(0)),
            (Kind::Flag, "2", None),
            (Kind::Integer(-1, 100), "-1", number(-1)),
            (Kind::Integer(-1, 100), "0x10", number(16)),
            (Kind::Integer(-1, 100), "101", None),
            (Kind::Integer(-1, 100), "", None),
            (Kind::Integer(-1, 100), "99999999999999999999", None),
            (Kind::Choice(&[(0, "none"), (10, "ultra"), (10, "best")]), "BEST", number(10)),
            (Kind::Choice(&[(0, "none"), (10, "ultra")]), "10", number(10)),
            (Kind::Choice(&[(0, "none")]), "7", None),
            (Kind::Processors, "-1", Some(Value::Text("-1".to_owned()))),
            (Kind::Processors, "0x3f", Some(Value::Text("0x3f".to_owned()))),
            (Kind::Processors, " 0,2-5 ", Some(Value::Text("0,2-5".to_owned()))),
            (Kind::Processors, "0-99,zz", None),
            (Kind::Processors, "5-2", None),
            (Kind::Processors, "0x", None),
            (Kind::Processors, "-2", None),
            (Kind::Processors, "", None),
            (Kind::Text, " /tmp ", Some(Value::Text(" /tmp ".to_owned()))),
        ];
        for (kind, text, expected) in cases {
            assert_eq!(of(*kind).parse(text), *expected, "{kind:?} {text}");
        }
    }

    #[test]
    fn values_are_shown_by_name() {
        assert_eq!(of(Kind::Flag).show(&Value::Number(1)), "Enabled");
        assert_eq!(of(Kind::Choice(&[(3, "INFO")])).show(&Value::Number(3)), "INFO");
        assert_eq!(of(Kind::Integer(0, 9)).show(&Value::Number(3)), "3");
    }
}
