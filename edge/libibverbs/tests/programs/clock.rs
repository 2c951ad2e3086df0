//! perftest without its measurement of the processor's clock.
//!
//! Each size that it reports spins for a fifth of a second on both sides, to compare the processor's clock with
//! `gettimeofday`: more than all packets of most tests take. Where the figures do not matter that clock runs faster. Nothing else
//! of perftest asks it, and the library asks another.

use super::compiled::Compiled;
use super::support;

pub(crate) struct Clock {
    preload: String,
    _library: Option<Compiled>,
}

impl Clock {
    /// With it, the figures that perftest prints are wrong.
    pub(crate) fn fast() -> Self {
        let library = Compiled::new("clock", &["-shared", "-fPIC"]);
        let own = library.as_ref().map_or("", Compiled::path);
        Self { preload: format!("{} {own}", support::library().display()), _library: library }
    }

    /// The figures are right.
    pub(crate) fn of_the_machine() -> Self {
        Self { preload: support::library().display().to_string(), _library: None }
    }

    /// What a program is given that is to have this clock.
    pub(crate) fn set(&self) -> (&'static str, &str) {
        ("LD_PRELOAD", &self.preload)
    }
}
