//! Program names with wildcards: `*` is any run of characters, `?` any one.

/// Whether `name` is one of the names that `pattern` stands for.
///
/// # Examples
///
/// ```
/// use adverb_sockconf::matches;
///
/// assert!(matches("db2*", "db2sysc"));
/// assert!(matches("t?cp", "ttcp"));
/// assert!(!matches("t?cp", "tcp"));
/// ```
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.chars(), name.chars());
    // Where to go on from if the last `*` has to swallow one character more.
    let mut retry: Option<(core::str::Chars<'_>, core::str::Chars<'_>)> = None;
    loop {
        let (mut next_pattern, mut next_name) = (pattern.clone(), name.clone());
        let matched = match (next_pattern.next(), next_name.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                retry = Some((next_pattern.clone(), name.clone()));
                next_name = name.clone();
                true
            }
            (Some('?'), Some(_)) => true,
            (Some(wanted), Some(found)) => wanted == found,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if matched {
            (pattern, name) = (next_pattern, next_name);
            continue;
        }
        let Some((after_star, mut swallowed)) = retry.take() else { return false };
        if swallowed.next().is_none() {
            return false;
        }
        pattern = after_star.clone();
        name = swallowed.clone();
        retry = Some((after_star, swallowed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_mean_what_a_shell_means() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", "anything", true),
            ("", "", true),
            ("", "a", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("*ab", "aab", true),
            ("a?", "a", false),
            ("sockperf", "sockperf", true),
            ("sockperf", "sockperf2", false),
            ("**x", "x", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    /// Goal: many stars on a long name that almost fits take no time to speak of.
    #[test]
    fn a_hostile_pattern_ends() {
        let name = "a".repeat(10_000);
        assert!(!matches("*a*a*a*a*a*a*a*a*b", &name));
    }

    use alloc::string::ToString;
    proptest::proptest! {
        #[test]
        fn every_name_matches_itself_and_a_star(name in "[a-z0-9._-]{0,20}", cut in 0_usize..20) {
            proptest::prop_assert!(matches(&name, &name));
            let (head, _) = name.split_at(cut.min(name.len()));
            let star = head.to_string() + "*";
            proptest::prop_assert!(matches(&star, &name));
        }
    }
}
