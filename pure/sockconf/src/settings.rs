//! Settings: the value of every parameter, and its source.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::nearest;
use crate::parameter::{Parameter, Value};
use crate::profile::Profile;
use crate::rule::RuleError;
use crate::table::PARAMETERS;

/// Source of a parameter's value. Later ones win over earlier ones.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Origin {
    /// None: it is the default.
    Default,
    /// The profile.
    Profile,
    /// The file.
    File,
    /// The environment.
    Environment,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Profile => "profile",
            Self::File => "file",
            Self::Environment => "environment",
        })
    }
}

/// One parameter with its value.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Which.
    pub parameter: &'static Parameter,
    /// Its value.
    pub value: Value,
    /// Its source.
    pub origin: Origin,
}

/// The value of every parameter.
#[derive(Clone, Debug)]
pub struct Settings {
    settings: Vec<Setting>,
}

impl Settings {
    /// Works out all values from what a file and the environment say, as pairs of name and value.
    ///
    /// Names that do not begin like ours are none of our business. Names in a file may leave out
    /// the prefix `ADVERB_SOCKETS_`, in any case. The environment is bytes, which need not be UTF-8. What is
    /// unknown, out of range or no text becomes a warning.
    #[must_use]
    pub fn resolve<'a>(
        file: impl IntoIterator<Item = (&'a str, &'a str)>,
        environment: impl IntoIterator<Item = (impl AsRef<[u8]>, impl AsRef<[u8]>)>,
    ) -> (Self, Vec<Warning>) {
        let settings = PARAMETERS.iter().map(|parameter| Setting {
            parameter,
            value: parameter.default(),
            origin: Origin::Default,
        });
        let mut all = Self { settings: settings.collect() };
        let mut warnings = Vec::new();
        for (name, text) in file {
            let name = long_name(name);
            all.set(&name, text, Origin::File, &mut warnings);
        }
        for (name, text) in environment {
            // A name that is not UTF-8 is none of our parameters.
            let Ok(name) = core::str::from_utf8(name.as_ref()) else { continue };
            if !PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
                continue;
            }
            match core::str::from_utf8(text.as_ref()) {
                Ok(text) => all.set(name, text, Origin::Environment, &mut warnings),
                Err(_) => warnings.push(Warning::NoText { name: name.to_owned() }),
            }
        }
        all.apply_profile();
        (all, warnings)
    }

    /// The value of the parameter `name`, as a number; 0 if there is none.
    #[must_use]
    pub fn number(&self, name: &str) -> i64 {
        self.get(name).and_then(|setting| setting.value.number()).unwrap_or(0)
    }

    /// The value of the parameter `name`, as a text; empty if there is none.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        self.get(name).and_then(|setting| setting.value.text()).unwrap_or("")
    }

    /// Whether the parameter `name` is a number other than 0.
    #[must_use]
    pub fn is_on(&self, name: &str) -> bool {
        self.number(name) != 0
    }

    /// Source of the value of the parameter `name`.
    #[must_use]
    pub fn origin(&self, name: &str) -> Origin {
        self.get(name).map_or(Origin::Default, |setting| setting.origin)
    }

    /// One parameter with its value.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.parameter.name == name)
    }

    /// All of them, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = &Setting> {
        self.settings.iter()
    }

    fn set(&mut self, name: &str, text: &str, origin: Origin, warnings: &mut Vec<Warning>) {
        let name = RENAMED.iter().find(|(old, _)| *old == name).map_or(name, |(_, new)| new);
        let found = self.settings.iter_mut().find(|setting| setting.parameter.name == name);
        let Some(setting) = found else {
            let close = nearest(name, PARAMETERS.iter().map(|parameter| parameter.name));
            warnings.push(Warning::Unknown { name: name.to_owned(), nearest: close });
            return;
        };
        match setting.parameter.parse(text) {
            Some(value) => {
                setting.value = value;
                setting.origin = origin;
            }
            None => warnings.push(Warning::Value {
                parameter: setting.parameter,
                text: text.to_owned(),
                kept: setting.value.clone(),
            }),
        }
    }

    fn apply_profile(&mut self) {
        let ours = self.number("ADVERB_SOCKETS_PROFILE");
        let number = if ours == 0 { self.number("VMA_SPEC") } else { ours };
        let values = Profile::of(number).map_or(&[][..], |profile| profile.values);
        for setting in self.settings.iter_mut().filter(|s| s.origin == Origin::Default) {
            let value = values.iter().find(|(name, _)| *name == setting.parameter.name);
            if let Some(value) = value.and_then(|(_, text)| setting.parameter.parse(text)) {
                setting.value = value;
                setting.origin = Origin::Profile;
            }
        }
    }
}

/// The name of a parameter as the environment has it: `spin_usec` is `ADVERB_SOCKETS_SPIN_USEC`.
fn long_name(name: &str) -> String {
    let name = name.to_ascii_uppercase().replace('-', "_");
    if PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        return name;
    }
    alloc::format!("ADVERB_SOCKETS_{name}")
}

/// Names of parameters begin with one of these.
const PREFIXES: [&str; 2] = ["VMA_", "ADVERB_SOCKETS_"];

/// Names that parameters had once.
const RENAMED: [(&str, &str); 2] =
    [("VMA_RX_POLL_OS_RATIO", "VMA_RX_UDP_POLL_OS_RATIO"), ("VMA_MAX_INLINE", "VMA_TX_MAX_INLINE")];

/// Something that could not be understood, and has changed nothing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Warning {
    /// A value that is not UTF-8.
    NoText {
        /// The parameter.
        name: String,
    },
    /// A line of the file of rules.
    Rule {
        /// Its number, from 1.
        line: usize,
        /// What it says.
        text: String,
        /// What is wrong with it.
        error: RuleError,
    },
    /// A parameter that does not exist.
    Unknown {
        /// What was typed.
        name: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
    },
    /// A value that the parameter does not take.
    Value {
        /// Which.
        parameter: &'static Parameter,
        /// What was typed.
        text: String,
        /// The value it keeps.
        kept: Value,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoText { name } => {
                write!(f, "the value of {name} is not UTF-8, and changes nothing")
            }
            Self::Rule { line, text, error } => {
                write!(f, "configuration line {line}, `{text}`: {error}")
            }
            Self::Unknown { name, nearest: Some(nearest) } => {
                write!(f, "{name} is not a parameter; did you mean {nearest}?")
            }
            Self::Unknown { name, nearest: None } => write!(f, "{name} is not a parameter"),
            Self::Value { parameter, text, kept } => {
                let (name, allowed) = (parameter.name, parameter.allowed());
                write!(f, "{name}={text} is not {allowed}; it stays {kept}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn resolve(
        file: &[(&'static str, &'static str)],
        environment: &[(&'static str, &'static str)],
    ) -> (Settings, Vec<String>) {
        let (settings, warnings) =
            Settings::resolve(file.iter().copied(), environment.iter().copied());
        (settings, warnings.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_environment_wins_over_the_file_the_file_over_the_profile() {
        let (settings, warnings) = resolve(
            &[("VMA_RX_POLL", "7"), ("vma-select-poll", "8")],
            &[("VMA_SPEC", "latency"), ("VMA_RX_POLL", "9"), ("PATH", "/bin")],
        );
        assert!(warnings.is_empty(), "{warnings:?}");
        for (name, value, origin) in [
            ("VMA_RX_POLL", 9, Origin::Environment),
            ("VMA_SELECT_POLL", 8, Origin::File),
            ("VMA_TX_WRE", 256, Origin::Profile),
            ("VMA_MSS", 0, Origin::Default),
        ] {
            assert_eq!((settings.number(name), settings.origin(name)), (value, origin), "{name}");
        }
    }

    #[test]
    fn our_own_profile_wins_over_the_manuals() {
        let both = [("VMA_SPEC", "latency"), ("ADVERB_SOCKETS_PROFILE", "frugal")];
        assert_eq!(resolve(&[], &both).0.number("VMA_RX_POLL"), 0);
        assert_eq!(resolve(&[("profile", "15")], &[]).0.number("VMA_RX_POLL"), -1);
    }

    #[test]
    fn what_is_wrong_warns_and_changes_nothing() {
        let (settings, warnings) = resolve(
            &[("spin_usek", "1")],
            &[("VMA_RX_POL", "1"), ("VMA_STATS_FD_NUM", "5000"), ("VMA_ZZZZZZZZZZZZ", "")],
        );
        assert_eq!(
            warnings,
            [
                "ADVERB_SOCKETS_SPIN_USEK is not a parameter; did you mean ADVERB_SOCKETS_SPIN_USEC?",
                "VMA_RX_POL is not a parameter; did you mean VMA_RX_POLL?",
                "VMA_STATS_FD_NUM=5000 is not a number from 0 to 1024; it stays 100",
                "VMA_ZZZZZZZZZZZZ is not a parameter",
            ]
        );
        assert_eq!(settings.number("VMA_STATS_FD_NUM"), 100);
        assert_eq!(settings.origin("VMA_STATS_FD_NUM"), Origin::Default);
    }

    #[test]
    fn a_value_that_is_no_text_warns_and_changes_nothing() {
        let environment: [(&[u8], &[u8]); 4] = [
            (b"VMA_RX_POLL", b"1\xff"),
            (b"VMA_LOG_FILE", b"/\xc3"),
            (b"PATH", b"\xff"),
            (b"VMA_\xff", b"1"),
        ];
        let (settings, warnings) = Settings::resolve([], environment);
        let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            warnings,
            ["VMA_RX_POLL", "VMA_LOG_FILE"].map(|name| alloc::format!(
                "the value of {name} is not UTF-8, and changes nothing"
            ))
        );
        assert_eq!(settings.origin("VMA_RX_POLL"), Origin::Default);
        assert_eq!(settings.text("VMA_LOG_FILE"), "");
    }

    #[test]
    fn old_names_still_work() {
        let (settings, _) = resolve(&[], &[("VMA_RX_POLL_OS_RATIO", "3")]);
        assert_eq!(settings.number("VMA_RX_UDP_POLL_OS_RATIO"), 3);
    }
}
