//! Nearest names: what a name that does not exist may have meant.

use alloc::vec::Vec;

/// The one of `names` that is closest to `typed`, unless none is close.
///
/// Close is at most a third of the letters wrong, missing or too many.
pub fn nearest<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = typed.chars().count().div_ceil(3);
    names
        .into_iter()
        .map(|name| (distance(typed, name), name))
        .filter(|&(distance, _)| distance <= most)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, name)| name)
}

/// How many letters have to be changed, added or removed to make `a` of `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (done, letter) in a.chars().enumerate() {
        let mut diagonal = done;
        let mut left = done + 1;
        for (cell, other) in row.iter_mut().skip(1).zip(&b) {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = *cell;
            left = replaced.min(left + 1).min(diagonal + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = done + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_levenshtein() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("abc", "acb", 2),
            ("a", "a", 0),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn a_slip_is_recognised_and_a_stranger_is_not() {
        let names = ["VMA_RX_POLL", "VMA_SELECT_POLL", "VMA_MTU"];
        assert_eq!(nearest("VMA_RX_POL", names), Some("VMA_RX_POLL"));
        assert_eq!(nearest("VMA_SELCT_POLL", names), Some("VMA_SELECT_POLL"));
        assert_eq!(nearest("QQQQQQ", names), None);
    }
}
