//! Numbers that stand out. None of them is wrong by itself.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::source::{Source, words};

/// Something with a size, and where it is.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Sized {
    size: usize,
    place: String,
}

/// All oddities, as text.
pub(super) fn report(sources: &[Source]) -> String {
    let mut report = String::new();
    let code: Vec<&Source> = sources.iter().filter(|source| source.is_rust()).collect();
    let files = code.iter().map(|source| file(source)).collect();
    let functions = code.iter().flat_map(|source| functions(source)).collect();
    let structs = code.iter().flat_map(|source| structs(source)).collect();
    section(&mut report, "longest files (code lines, without tests)", files, 400);
    section(&mut report, "longest functions (lines)", functions, 70);
    section(&mut report, "widest structs (fields)", structs, 12);
    listing(&mut report, "names that say nothing", code.iter().filter_map(|s| empty_name(s)));
    listing(&mut report, "short SAFETY comments", code.iter().flat_map(|s| short_safety(s)));
    listing(&mut report, "bounds that nothing checks", unused_bounds(&code).into_iter());
    report
}

/// The three largest, whatever their size, and all of at least `limit`.
fn section(report: &mut String, title: &str, mut found: Vec<Sized>, limit: usize) {
    found.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.place.cmp(&b.place)));
    let shown = found.iter().enumerate().filter(|(rank, it)| *rank < 3 || it.size >= limit);
    listing(report, title, shown.map(|(_, Sized { size, place })| format!("{size:5} {place}")));
}

fn listing(report: &mut String, title: &str, lines: impl Iterator<Item = String>) {
    let lines: Vec<String> = lines.collect();
    if !lines.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(report, "{title}:\n  {}", lines.join("\n  "));
    }
}

/// Lines of a file that are neither blank, nor comment, nor test.
fn file(source: &Source) -> Sized {
    let size = source.product().lines().filter(|line| !line.trim().is_empty()).count();
    Sized { size, place: source.path.clone() }
}

/// The functions outside tests, with the lines they span.
fn functions(source: &Source) -> Vec<Sized> {
    items(source, "fn").map(|(name, body)| sized(source, name, body.lines().count())).collect()
}

/// The structs with named fields, and how many they have.
fn structs(source: &Source) -> Vec<Sized> {
    items(source, "struct").map(|(name, body)| sized(source, name, fields(body))).collect()
}

fn sized(source: &Source, name: &str, size: usize) -> Sized {
    Sized { size, place: format!("{} {name}", source.path) }
}

/// Names and bodies, braces included, of the items that `keyword` introduces.
fn items<'a>(source: &'a Source, keyword: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let code = source.product();
    code.match_indices(keyword).filter_map(move |(at, _)| {
        let (before, after) = code.split_at_checked(at)?;
        let after = after.strip_prefix(keyword)?.strip_prefix(' ')?;
        if before.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_') {
            return None;
        }
        Some((words(after).next()?, body(after)?))
    })
}

/// From the first brace to the one that closes it; `None` if a semicolon ends the item before.
fn body(code: &str) -> Option<&str> {
    let mut depth = 0_usize;
    let mut nested = 0_usize; // Parentheses and brackets: a semicolon in `[u8; 4]` ends nothing.
    let mut start = None;
    for (at, character) in code.char_indices() {
        match character {
            '(' | '[' => nested += 1,
            ')' | ']' => nested = nested.saturating_sub(1),
            ';' if depth == 0 && nested == 0 => return None,
            '{' => {
                depth += 1;
                start.get_or_insert(at);
            }
            '}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return code.get(start?..=at);
                }
            }
            _ => {}
        }
    }
    None
}

/// How many fields a struct's body declares: its single colons outside nested types.
fn fields(body: &str) -> usize {
    let mut nested = 0_usize;
    let mut count = 0;
    for character in body.replace("::", "  ").chars() {
        match character {
            '(' | '[' | '{' => nested += 1,
            ')' | ']' | '}' => nested = nested.saturating_sub(1),
            ':' if nested == 1 => count += 1,
            _ => {}
        }
    }
    count
}

fn empty_name(source: &Source) -> Option<String> {
    let stem = source.path.strip_suffix(".rs")?.rsplit('/').find(|part| *part != "mod")?;
    let says_nothing = ["common", "helper", "helpers", "manager", "misc", "util", "utils"];
    says_nothing.contains(&stem).then(|| source.path.clone())
}

/// Comments that promise safety in fewer words than a reason takes.
fn short_safety(source: &Source) -> Vec<String> {
    let lines: Vec<&str> = source.text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (number, tail) in (1..).zip((0..lines.len()).filter_map(|at| lines.get(at..))) {
        let comment = tail.iter().map_while(|line| line.strip_prefix("//"));
        let mut comment = comment.map(str::trim).collect::<Vec<_>>().join(" ");
        if comment.starts_with("SAFETY:") {
            comment.drain(.."SAFETY:".len());
            if words(&comment).count() < SAFETY_WORDS_MIN {
                found.push(format!("{}:{number}:{comment}", source.path));
            }
        }
    }
    found
}

/// Constants called `…_MAX` that are named once, where they are defined.
fn unused_bounds(code: &[&Source]) -> Vec<String> {
    let mut seen: HashMap<&str, (usize, &str)> = HashMap::new();
    for source in code {
        for word in words(&source.code).filter(|word| word.ends_with("_MAX")) {
            seen.entry(word).or_insert((0, &source.path)).0 += 1;
        }
    }
    let once = seen.into_iter().filter(|(_, (count, _))| *count == 1);
    let mut once: Vec<String> = once.map(|(word, (_, path))| format!("{path} {word}")).collect();
    once.sort();
    once
}

const SAFETY_WORDS_MIN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::new("host/x/src/a.rs", text)
    }

    #[test]
    fn functions_are_as_long_as_their_bodies() {
        let source = source("fn a() {}\nfn b(x: [u8; 2]) -> u8 {\n    if x {\n    }\n}\nfn c();\n");
        let sizes: Vec<usize> = functions(&source).iter().map(|found| found.size).collect();
        assert_eq!(sizes, [1, 4]);
    }

    #[test]
    fn fields_are_counted_and_paths_in_types_are_not() {
        let source = source(
            "struct A<T: B> {\n    a: x::Y,\n    pub b: Vec<(u8, u8)>,\n    c: [u8; 4],\n}\nstruct B(u8);\n",
        );
        assert_eq!(structs(&source), [Sized { size: 3, place: "host/x/src/a.rs A".into() }]);
    }

    #[test]
    fn comment_and_test_lines_do_not_make_a_file_long() {
        let source =
            source("//! A.\n\nfn a() {}\n// b\n#[cfg(test)]\nmod tests {\n    fn c() {}\n}\n");
        assert_eq!(file(&source).size, 1);
    }

    #[test]
    fn a_safety_comment_without_a_reason_is_found() {
        let short = "//! A.\n// SAFETY: fine.\nunsafe {}\n";
        let long = "//! A.\n// SAFETY: in bounds,\n// as checked above.\nunsafe {}\n";
        assert_eq!(short_safety(&source(short)), ["host/x/src/a.rs:2: fine."]);
        assert!(short_safety(&source(long)).is_empty());
    }

    #[test]
    fn a_bound_is_found_if_nothing_names_it_again() {
        let source = source("const A_MAX: u8 = 1;\nconst B_MAX: u8 = 2;\nfn a() { B_MAX; }\n");
        assert_eq!(unused_bounds(&[&source]), ["host/x/src/a.rs A_MAX"]);
    }

    #[test]
    fn a_name_that_says_nothing_is_found() {
        assert!(empty_name(&Source::new("host/x/src/util.rs", "")).is_some());
        assert!(empty_name(&Source::new("host/x/src/utility_bill.rs", "")).is_none());
    }
}
