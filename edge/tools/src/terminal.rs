//! What a terminal can show that a file or a pipe should not have: colours and bars.

use std::io::{IsTerminal, stdout};

/// How standard output may be painted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Paint {
    colours: bool,
    columns: usize,
}

impl Paint {
    /// For standard output: plain in files and pipes, with `NO_COLOR` and on terminals that are `dumb`.
    pub(crate) fn of_stdout() -> Self {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        if !stdout().is_terminal() {
            return Self::default();
        }
        let columns = adverb_sys::terminal::size(stdout()).map_or(COLUMNS, |(columns, _)| columns);
        Self { colours: !is_set("NO_COLOR") && !dumb, columns }
    }

    /// `text` in a colour, where there are colours.
    pub(crate) fn colour(self, colour: Colour, text: &str) -> String {
        match self.colours {
            true => format!("\x1b[{}m{text}\x1b[0m", colour.code()),
            false => text.to_owned(),
        }
    }

    /// A bar for a share of 1 in its colour, if it fits behind so many columns; else nothing.
    pub(crate) fn bar(self, share: f64, taken: usize) -> String {
        match self.columns >= taken + BAR {
            true => self.colour(Colour::of(share), &bar(share)),
            false => String::new(),
        }
    }

    /// The share of a floor decides the colour.
    pub(crate) fn graded(self, share: f64, text: &str) -> String {
        self.colour(Colour::of(share), text)
    }

    /// Only for tests of what a terminal gets.
    #[cfg(test)]
    pub(crate) const fn new(colours: bool, columns: usize) -> Self {
        Self { colours, columns }
    }
}

/// The colours that are used, of those that every terminal has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Colour {
    Bold,
    Good,
    Middling,
    Poor,
}

impl Colour {
    const fn code(self) -> u8 {
        match self {
            Self::Bold => 1,
            Self::Good => 32,
            Self::Middling => 33,
            Self::Poor => 31,
        }
    }

    /// Of a share of what could be reached.
    pub(crate) fn of(share: f64) -> Self {
        match share {
            _ if share >= GOOD => Self::Good,
            _ if share >= MIDDLING => Self::Middling,
            _ => Self::Poor,
        }
    }
}

/// Filled up to `share`, in eighths of a character.
fn bar(share: f64) -> String {
    #[expect(clippy::as_conversions, clippy::cast_sign_loss, reason = "0 to 80")]
    let eighths = (share.clamp(0.0, 1.0) * 80.0).round() as usize;
    let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"].get(eighths % 8).copied().unwrap_or("");
    let full = "█".repeat(eighths / 8);
    format!("{full}{part}")
}

/// Characters of a bar.
const BAR: usize = 10;
/// Of a terminal that does not say how wide it is.
const COLUMNS: usize = 80;
/// At least this share of the floor is good.
const GOOD: f64 = 0.6;
/// At least this is middling.
const MIDDLING: f64 = 0.25;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_share_and_never_longer_than_all() {
        let lengths = [0.0, 0.1, 0.55, 1.0, 7.0, f64::NAN].map(|share| bar(share).chars().count());
        assert_eq!(lengths, [0, 1, 6, 10, 10, 0]);
    }

    #[test]
    fn where_there_is_no_terminal_nothing_is_painted() {
        let plain = Paint::default();
        assert_eq!(plain.graded(0.1, "0.10"), "0.10");
        assert_eq!(plain.bar(0.5, 0), "");
        let narrow = Paint::new(true, 80);
        assert_eq!(narrow.bar(0.5, 79), "");
        assert_eq!(narrow.graded(0.1, "0.10"), "\x1b[31m0.10\x1b[0m");
        assert_eq!(Paint::new(false, 120).bar(0.5, 79), "█████");
    }
}
