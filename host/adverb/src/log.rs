//! The log: prints what the libraries tell, if `ADVERB_LOG` asks for it.
//!
//! The libraries tell it to `tracing` and do not know the listener. This is a small one: one line
//! for each event, no spans, no colours.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Prints to standard error what the environment variable `ADVERB_LOG` asks for: a level, which is
/// `off`, `error`, `warn`, `info`, `debug` or `trace`, and levels of modules, as in
/// `info,verbs=debug,session::link=trace`. Without it nothing is printed.
///
/// For programs that have no `tracing` subscriber of their own. Call it once, before anything else.
///
/// # Errors
///
/// [`LogError`]; nothing will be printed then.
///
/// # Examples
///
/// ```
/// adverb::log_to_stderr()?;
/// let context = adverb::verbs::Context::open("soft_lo")?; // Says so, with ADVERB_LOG=info.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn log_to_stderr() -> Result<(), LogError> {
    let Some(text) = std::env::var_os(VARIABLE) else {
        return Ok(());
    };
    let filter = Filter::from_str(&text.to_string_lossy())?;
    if filter.most() == LevelFilter::OFF {
        return Ok(());
    }
    tracing::subscriber::set_global_default(Printer { filter }).map_err(|_| LogError::Taken)
}

/// Why nothing is logged.
#[derive(Clone, Eq, PartialEq)]
#[non_exhaustive]
pub enum LogError {
    /// `ADVERB_LOG` names a level that does not exist.
    Level {
        /// What it says.
        level: String,
    },
    /// The program has a subscriber already.
    Taken,
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Level { level } => write!(
                f,
                "{VARIABLE}: there is no level {level:?}: take off, error, warn, info, debug or \
                 trace, or MODULE=LEVEL, with commas"
            ),
            Self::Taken => f.write_str("the program has a subscriber of `tracing` already"),
        }
    }
}

/// What a program's `main` prints of it.
impl fmt::Debug for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for LogError {}

/// What is printed.
#[derive(Debug, Eq, PartialEq)]
struct Filter {
    /// Of modules that are not named.
    others: LevelFilter,
    /// The more precise ones first.
    modules: Vec<(String, LevelFilter)>,
}

impl FromStr for Filter {
    type Err = LogError;

    fn from_str(text: &str) -> Result<Self, LogError> {
        let mut filter = Self { others: LevelFilter::OFF, modules: Vec::new() };
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                None => filter.others = level(part)?,
                Some((module, of)) => {
                    filter.modules.push((short(module.trim()).to_owned(), level(of.trim())?));
                }
            }
        }
        filter.modules.sort_by_key(|(module, _)| std::cmp::Reverse(module.len()));
        Ok(filter)
    }
}

fn level(text: &str) -> Result<LevelFilter, LogError> {
    // Numbers are levels too for `tracing`, and few know which.
    let named = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphabetic());
    let level = named.then(|| text.parse().ok()).flatten();
    level.ok_or_else(|| LogError::Level { level: text.to_owned() })
}

/// A module as people call it: `session::link` for `adverb_session::link`.
fn short(module: &str) -> &str {
    let rest = module.strip_prefix("adverb_").or_else(|| module.strip_prefix("adverb::"));
    rest.unwrap_or(module)
}

impl Filter {
    /// The most that any module prints.
    fn most(&self) -> LevelFilter {
        self.modules.iter().map(|(_, level)| *level).fold(self.others, LevelFilter::max)
    }

    fn of(&self, target: &str) -> LevelFilter {
        let within = |module: &str| {
            let rest = short(target).strip_prefix(module);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        let named = self.modules.iter().find(|(module, _)| within(module));
        named.map_or(self.others, |(_, level)| *level)
    }
}

/// Prints events.
struct Printer {
    filter: Filter,
}

impl Subscriber for Printer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        !metadata.is_span() && *metadata.level() <= self.filter.of(metadata.target())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.filter.most())
    }

    fn event(&self, event: &Event<'_>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (second, micros) = (now.as_secs() % 86_400, now.subsec_micros());
        let (hours, minutes, seconds) = (second / 3600, second / 60 % 60, second % 60);
        let (metadata, process) = (event.metadata(), std::process::id());
        let (level, module) = (metadata.level().as_str(), short(metadata.target()));
        let mut line = Line(String::with_capacity(LINE_BYTES));
        let _ = write!(
            line.0,
            "{hours:02}:{minutes:02}:{seconds:02}.{micros:06} {process} {level:<5} {module}: "
        );
        event.record(&mut line);
        line.0.push('\n');
        // In one go, so that lines of several processes do not mix. A closed descriptor is no error.
        let _ = std::io::stderr().write_all(line.0.as_bytes());
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// A line of the log.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

const VARIABLE: &str = "ADVERB_LOG";
/// Most lines are shorter.
const LINE_BYTES: usize = 256;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail")]
mod tests {
    use super::*;

    #[test]
    fn the_most_precise_module_decides_and_a_level_alone_is_for_all_others() {
        let text = "info, session=off,verbs::qp=trace , adverb_verbs=debug";
        let filter: Filter = text.parse().unwrap();
        let of = |target| filter.of(target);
        assert_eq!(of("adverb_session::link"), LevelFilter::OFF);
        assert_eq!(of("adverb_verbs::qp::modify"), LevelFilter::TRACE);
        assert_eq!(of("adverb_verbs::qpx"), LevelFilter::DEBUG);
        assert_eq!(of("adverb_verbs"), LevelFilter::DEBUG);
        assert_eq!(of("adverb_device"), LevelFilter::INFO);
        assert_eq!(of("sessions"), LevelFilter::INFO);
        assert_eq!(filter.most(), LevelFilter::TRACE);
    }

    #[test]
    fn modules_alone_leave_all_others_off() {
        let filter: Filter = "session=debug".parse().unwrap();
        assert_eq!(filter.of("adverb_verbs"), LevelFilter::OFF);
        assert_eq!("".parse::<Filter>().unwrap().most(), LevelFilter::OFF);
    }

    #[test]
    fn a_level_that_does_not_exist_is_named() {
        for text in ["loud", "session=loud", "3", "info,=x", "session="] {
            let error = text.parse::<Filter>().unwrap_err();
            assert!(error.to_string().contains("take off, error, warn"), "{text}: {error}");
            assert_eq!(format!("{error:?}"), error.to_string()); // What `main` prints of it.
        }
    }
}
