//! Facts about single files. Each function looks at one file and says what is wrong with it.

use crate::source::{Source, has_word};

/// What does not hold for `source`, one sentence each.
pub(super) fn broken(source: &Source) -> Vec<String> {
    let checks = [header, safety, purity, forbidden_in_pure, open_ends, places];
    checks.iter().flat_map(|check| check(source)).collect()
}

/// Every file of code opens by saying what it is.
fn header(source: &Source) -> Vec<String> {
    let missing = source.is_rust() && source.header().is_empty();
    when(missing, || format!("{}: does not open with a `//!` header", source.path))
}

/// Where there is `unsafe`, the header states the rules.
fn safety(source: &Source) -> Vec<String> {
    let missing = has_word(&source.code, "unsafe") && !source.header().contains("# Safety");
    when(missing, || format!("{}: has `unsafe`, and no `# Safety` in its header", source.path))
}

/// The crates of the lowest storey promise what they are built on.
fn purity(source: &Source) -> Vec<String> {
    let is_root = source.path.starts_with("pure/") && source.path.ends_with("/src/lib.rs");
    let promises = ["#![no_std]", "#![forbid(unsafe_code)]"];
    let missing = promises.iter().filter(|promise| is_root && !source.code.contains(*promise));
    missing.map(|promise| format!("{}: does not say {promise}", source.path)).collect()
}

/// Code of the lowest storey touches neither clock nor network, starts no thread and reads no
/// environment. Its tests and benchmarks may.
fn forbidden_in_pure(source: &Source) -> Vec<String> {
    if !source.path.starts_with("pure/") || !source.path.contains("/src/") {
        return Vec::new();
    }
    let found = FORBIDDEN_IN_PURE.iter().filter(|word| has_word(&source.code, word));
    found.map(|word| format!("{}: `{word}` has no place in pure code", source.path)).collect()
}

/// Nothing is left for later in the code.
fn open_ends(source: &Source) -> Vec<String> {
    if !source.is_rust() {
        return Vec::new();
    }
    let found = OPEN_ENDS.iter().flat_map(|end| lines_with(source, end).map(move |at| (end, at)));
    found.map(|(end, line)| format!("{}:{line}: `{end}`", source.path)).collect()
}

/// The tree does not know the machine it was written on, nor where its packages come from: the
/// lock file names the public index, and nothing else names any.
fn places(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for (line, text) in (1..).zip(source.text.lines()) {
        let machine = MACHINE_PATHS.iter().find(|path| has_path(text, path));
        let public = text.trim() == PUBLIC_INDEX && source.path.ends_with("Cargo.lock");
        let host = REGISTRIES.iter().find(|host| text.contains(**host) && !public);
        for place in machine.into_iter().chain(host) {
            found.push(format!("{}:{line}: names the place `{place}`", source.path));
        }
    }
    found
}

/// Whether `path`, which begins with a slash, begins an absolute path in `text`.
fn has_path(text: &str, path: &str) -> bool {
    text.match_indices(path).any(|(at, _)| {
        let before = text.split_at(at).0.chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-~/$}*".contains(c))
    })
}

fn lines_with<'a>(source: &'a Source, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let numbered = (1..).zip(source.text.lines());
    numbered.filter(move |(_, text)| has_word(text, word)).map(|(line, _)| line)
}

fn when(condition: bool, sentence: impl FnOnce() -> String) -> Vec<String> {
    if condition { vec![sentence()] } else { Vec::new() }
}

// The words below are put together so that this file does not contain what it looks for.

const OPEN_ENDS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

const MACHINE_PATHS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];

const REGISTRIES: [&str; 8] = [
    concat!("regis", "try+"),
    concat!("spar", "se+"),
    concat!("[sour", "ce."),
    concat!("index.cra", "tes.io"),
    concat!("static.cra", "tes.io"),
    concat!("pypi", ".org"),
    concat!("registry.np", "mjs"),
    concat!("deb.deb", "ian.org"),
];

const PUBLIC_INDEX: &str =
    concat!("source = \"regis", "try+https://github.com/rust-lang/cra", "tes.io-index\"");

const FORBIDDEN_IN_PURE: [&str; 8] = [
    "Instant",
    "SystemTime",
    "TcpListener",
    "TcpStream",
    "UdpSocket",
    "UnixStream",
    "env",
    "thread",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn broken_in(path: &str, text: &str) -> Vec<String> {
        broken(&Source::new(path, text))
    }

    #[test]
    fn a_tidy_file_breaks_nothing() {
        let text = "//! What it is.\n//!\n//! # Safety\n//!\n//! Rules.\n\nunsafe fn a() {}\n";
        assert_eq!(broken_in("host/x/src/a.rs", text), Vec::<String>::new());
    }

    #[test]
    fn a_file_without_a_header_is_found() {
        assert_eq!(broken_in("host/x/src/a.rs", "fn a() {}\n").len(), 1);
        assert!(broken_in("docs/a.md", "Text.\n").is_empty());
    }

    #[test]
    fn unsafe_code_without_rules_is_found_and_talk_about_it_is_not() {
        assert_eq!(broken_in("host/x/src/a.rs", "//! A.\nunsafe impl Send for A {}\n").len(), 1);
        assert!(
            broken_in("host/x/src/a.rs", "//! A.\n// unsafe\nconst A: &str = \"unsafe\";\n")
                .is_empty()
        );
    }

    #[test]
    fn pure_crates_promise_and_keep() {
        let promises = "//! A.\n#![no_std]\n#![forbid(unsafe_code)]\n";
        assert!(broken_in("pure/x/src/lib.rs", promises).is_empty());
        assert_eq!(broken_in("pure/x/src/lib.rs", "//! A.\n").len(), 2);
        let clock = "//! A.\nfn now() { std::time::Instant::now(); }\n";
        assert_eq!(broken_in("pure/x/src/a.rs", clock).len(), 1);
        assert!(broken_in("pure/x/benches/a.rs", clock).is_empty());
        assert!(broken_in("host/x/src/a.rs", clock).is_empty());
    }

    #[test]
    fn work_left_for_later_is_found() {
        let text = format!("//! A.\n// {}: finish.\n", OPEN_ENDS[0]);
        assert_eq!(broken_in("host/x/src/a.rs", &text).len(), 1);
    }

    #[test]
    fn machine_paths_are_found_and_paths_that_look_alike_are_not() {
        for path in MACHINE_PATHS {
            assert_eq!(broken_in("docs/a.md", &format!("see {path}x\n")).len(), 1, "{path}");
            assert!(broken_in("docs/a.md", &format!("see my{path}x\n")).is_empty(), "{path}");
        }
    }

    #[test]
    fn the_lock_file_may_name_the_public_index_and_no_other() {
        let other = PUBLIC_INDEX.replace("github", "elsewhere");
        assert!(broken_in("Cargo.lock", PUBLIC_INDEX).is_empty());
        assert_eq!(broken_in("Cargo.lock", &other).len(), 1);
        assert_eq!(broken_in("README.md", PUBLIC_INDEX).len(), 1);
    }
}
