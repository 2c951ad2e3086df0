//! What is printed when a program starts: version, command line, and what is not as usual.
//!
//! One line for each thing, as the manual has them: label, value, and in brackets the name of the
//! parameter. Level and file of the log are always printed, others if they are not the default, and
//! all of them from the level *details* on.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::settings::{Setting, Settings};

/// How important a line of the log is, from the most important on.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Level {
    /// The program cannot go on.
    Panic,
    /// Something does not work.
    Error,
    /// Something is not as it should be.
    Warning,
    /// Worth knowing.
    Info,
    /// Every parameter.
    Details,
    /// Every decision.
    Debug,
    /// Every call.
    Fine,
    /// Every call, and what happens within.
    Finer,
}

impl Level {
    const ALL: [(Self, &'static str); 8] = [
        (Self::Panic, "PANIC"),
        (Self::Error, "ERROR"),
        (Self::Warning, "WARNING"),
        (Self::Info, "INFO"),
        (Self::Details, "DETAILS"),
        (Self::Debug, "DEBUG"),
        (Self::Fine, "FINE"),
        (Self::Finer, "FINER"),
    ];

    /// The level that `VMA_TRACELEVEL` means by `number`; more than the last is the last.
    #[must_use]
    pub fn of(number: i64) -> Self {
        let index = usize::try_from(number).unwrap_or(0);
        Self::ALL.get(index).map_or(Self::Finer, |(level, _)| *level)
    }

    /// Its name in a line of the log.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(level, _)| *level == self).map_or("", |(_, word)| word)
    }
}

/// The lines of the banner, with the level each is logged at.
#[must_use]
pub fn banner(settings: &Settings, version: &str, command: &str) -> Vec<(Level, String)> {
    let mut lines = Vec::new();
    lines.push((Level::Info, alloc::format!("VMA_VERSION: adverb {version}")));
    lines.push((Level::Info, alloc::format!("Cmd Line: {command}")));
    for setting in settings.iter() {
        let always = ["VMA_TRACELEVEL", "VMA_LOG_FILE"].contains(&setting.parameter.name);
        let usual = setting.value == setting.parameter.default();
        let level = if always || !usual { Level::Info } else { Level::Details };
        lines.push((level, line(setting)));
    }
    lines
}

fn line(setting: &Setting) -> String {
    let parameter = setting.parameter;
    let shown = parameter.show(&setting.value);
    let text = alloc::format!("{:<30} {:<26} [{}]", parameter.label, shown, parameter.name);
    let usual = setting.value == parameter.default();
    match parameter.effect {
        crate::Effect::None(why) if !usual => {
            text.trim_end().to_string() + &alloc::format!(" (accepted, no effect: {why})")
        }
        crate::Effect::None(_) | crate::Effect::Active | crate::Effect::Approximated(_) => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(environment: &[(&'static str, &'static str)], most: Level) -> Vec<String> {
        let (settings, _) = Settings::resolve([], environment.iter().copied());
        let lines = banner(&settings, "0.1.0", "sockperf server");
        lines.into_iter().filter(|(level, _)| *level <= most).map(|(_, line)| line).collect()
    }

    #[test]
    fn a_usual_start_prints_four_lines() {
        assert_eq!(
            printed(&[], Level::Info),
            [
                "VMA_VERSION: adverb 0.1.0",
                "Cmd Line: sockperf server",
                "Log Level                      INFO                       [VMA_TRACELEVEL]",
                "Log File                                                  [VMA_LOG_FILE]",
            ]
        );
    }

    #[test]
    fn what_is_unusual_is_printed_and_what_does_nothing_says_so() {
        let lines = printed(&[("VMA_RX_POLL", "-1"), ("VMA_BF", "0")], Level::Info);
        assert_eq!(lines.len(), 6);
        assert!(lines[4].starts_with("Rx Poll Loops                  -1 "), "{lines:?}");
        assert!(lines[5].contains("Disabled") && lines[5].contains("no effect"), "{lines:?}");
    }

    #[test]
    fn everything_is_printed_with_details() {
        assert_eq!(printed(&[], Level::Details).len(), crate::PARAMETERS.len() + 2);
    }

    #[test]
    fn levels_have_the_numbers_of_the_code() {
        for (number, word) in
            [(-2, "PANIC"), (3, "INFO"), (4, "DETAILS"), (7, "FINER"), (99, "FINER")]
        {
            assert_eq!(Level::of(number).word(), word, "{number}");
        }
    }
}
