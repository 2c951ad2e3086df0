//! The files of the tree, and Rust source with everything blanked out that is not code.
//!
//! Blanking keeps every line where it is, so that positions in the code are positions in the file.
//! This is a scanner, not a parser: it knows comments, strings and characters, and nothing of what
//! lies between them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;

/// A text file of the tree.
#[derive(Debug)]
pub(crate) struct Source {
    /// Its path, from the root of the tree.
    pub(crate) path: String,
    /// All of it.
    pub(crate) text: String,
    /// The same with comments, strings and characters blanked out; empty if it is not Rust.
    pub(crate) code: String,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let code = if path.ends_with(".rs") { blank(text) } else { String::new() };
        Self { path: path.to_owned(), text: text.to_owned(), code }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The module comment that the file opens with; empty if it opens with anything else.
    pub(crate) fn header(&self) -> String {
        let lines = self.text.lines().take_while(|line| line.starts_with("//!"));
        lines.map(|line| format!("{line}\n")).collect()
    }

    /// The code that is not a test: all of it, up to the tests at the end of the file.
    pub(crate) fn product(&self) -> &str {
        if self.path.contains("/tests/") || self.path.ends_with("/tests.rs") {
            return "";
        }
        self.code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
    }
}

/// Every text file that is tracked, or would be if it were added now.
pub(crate) fn tree(root: &Path) -> Result<Vec<Source>, Failure> {
    let mut sources = Vec::new();
    for path in paths(root)? {
        // A file that git knows and that is gone, or that is not text, is left out.
        let Ok(bytes) = fs::read(root.join(&path)) else {
            continue;
        };
        let Ok(text) = String::from_utf8(bytes) else {
            continue;
        };
        if !text.contains('\0') {
            sources.push(Source::new(&path.to_string_lossy(), &text));
        }
    }
    Ok(sources)
}

fn paths(root: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut command = Command::new("git");
    command.current_dir(root).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let output = command.output().map_err(|error| format!("cannot run git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let list = String::from_utf8(output.stdout).map_err(|_| "a file name is not UTF-8")?;
    Ok(list.split_terminator('\0').map(PathBuf::from).collect())
}

/// What the scanner is in the middle of.
#[derive(Clone, Copy)]
enum State {
    Code,
    LineComment,
    /// Comments nest.
    BlockComment {
        depth: usize,
    },
    Text,
    /// A raw string ends with a quote and this many `#`.
    RawText {
        hashes: usize,
    },
}

/// `text` with a space for every character that is part of a comment or a literal.
fn blank(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut state = State::Code;
    let mut rest = text;
    let mut previous = ' ';
    while let Some(first) = rest.chars().next() {
        let (taken, next) = match state {
            State::Code => in_code(rest, previous),
            State::LineComment => {
                let len = rest.find('\n').unwrap_or(rest.len());
                (rest.split_at(len).0.chars().count(), State::Code)
            }
            State::BlockComment { depth } => in_block_comment(rest, depth),
            State::Text => match first {
                '\\' => (2, state),
                '"' => (1, State::Code),
                _ => (1, state),
            },
            State::RawText { hashes } if ends_raw(rest, hashes) => (1 + hashes, State::Code),
            State::RawText { .. } => (1, state),
        };
        let was_code = matches!((state, next), (State::Code, State::Code)) && taken == 1;
        for character in rest.chars().take(taken) {
            code.push(if was_code || character == '\n' { character } else { ' ' });
            previous = character;
        }
        rest = rest.char_indices().nth(taken).map_or("", |(at, _)| rest.split_at(at).1);
        state = next;
    }
    code
}

/// How many characters belong together at the start of code, and what follows them.
fn in_code(rest: &str, previous: char) -> (usize, State) {
    if rest.starts_with("//") {
        return (2, State::LineComment);
    }
    if rest.starts_with("/*") {
        return (2, State::BlockComment { depth: 1 });
    }
    if rest.starts_with('"') {
        return (1, State::Text);
    }
    if rest.starts_with('\'') {
        return (character_len(rest), State::Code);
    }
    let in_word = previous.is_alphanumeric() || previous == '_';
    let raw = ["r", "br", "cr"].iter().find_map(|prefix| rest.strip_prefix(prefix));
    if let (false, Some(after)) = (in_word, raw) {
        let hashes = after.chars().take_while(|&character| character == '#').count();
        if after.chars().nth(hashes) == Some('"') {
            let prefix = rest.chars().count() - after.chars().count();
            return (prefix + hashes + 1, State::RawText { hashes });
        }
    }
    (1, State::Code)
}

fn in_block_comment(rest: &str, depth: usize) -> (usize, State) {
    match (rest.starts_with("/*"), rest.starts_with("*/"), depth) {
        (true, _, _) => (2, State::BlockComment { depth: depth + 1 }),
        (_, true, 1) => (2, State::Code),
        (_, true, _) => (2, State::BlockComment { depth: depth - 1 }),
        _ => (1, State::BlockComment { depth }),
    }
}

/// Length of a character literal at the start of `rest`; 1 if it is a lifetime.
fn character_len(rest: &str) -> usize {
    let mut characters = rest.chars().skip(1);
    match (characters.next(), characters.next()) {
        (Some('\\'), _) => rest.chars().skip(3).position(|c| c == '\'').map_or(1, |at| at + 4),
        (_, Some('\'')) => 3,
        _ => 1,
    }
}

fn ends_raw(rest: &str, hashes: usize) -> bool {
    let Some(after) = rest.strip_prefix('"') else {
        return false;
    };
    after.chars().take_while(|&character| character == '#').take(hashes).count() == hashes
}

/// Whether `word` stands in `code` as a word of its own.
pub(crate) fn has_word(code: &str, word: &str) -> bool {
    // To look for it is quicker by far than to take everything to pieces.
    code.contains(word) && words(code).any(|found| found == word)
}

/// The identifiers and keywords of `code`.
pub(crate) fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|character: char| !character.is_alphanumeric() && character != '_')
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_code_stays_where_it_is() {
        let cases = [
            ("a // unsafe\nb", "a          \nb"),
            ("a /* x /* y */ z */ b", "a                   b"),
            (r#"f("unsafe \" still") + g"#, r#"f(                 ) + g"#),
            (r###"f(r#"a "quoted" b"#) + g"###, "f(                 ) + g"),
            ("f(b\"x\", 'y', '\\'', '\"', 'a)", "f(b   ,    ,     ,    , 'a)"),
            ("r\"raw\\\" + for_r\"x\"", "        + for_r   "),
            ("\"two\nlines\" x", "    \n       x"),
            ("'\\u{1f600}' x", "            x"),
        ];
        for (text, expected) in cases {
            assert_eq!(blank(text), expected, "{text}");
        }
    }

    #[test]
    fn a_file_that_ends_in_the_middle_of_something_is_no_trouble() {
        for text in ["\"", "\"\\", "/*", "'", "'\\", "r#\"", "//", ""] {
            assert_eq!(blank(text).len(), text.len(), "{text}");
        }
    }

    #[test]
    fn a_word_is_not_found_inside_another() {
        assert!(has_word("unsafe { x }", "unsafe"));
        assert!(!has_word("forbid(unsafe_code)", "unsafe"));
    }

    #[test]
    fn the_header_ends_where_the_module_comment_ends() {
        let source = Source::new("a.rs", "//! One.\n//!\n//! Two.\n\nuse x;\n//! Not this.\n");
        assert_eq!(source.header(), "//! One.\n//!\n//! Two.\n");
        assert_eq!(Source::new("a.rs", "\n//! Late.\n").header(), "");
    }

    #[test]
    fn tests_are_not_product() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n";
        assert_eq!(Source::new("x/src/a.rs", text).product(), "fn a() {}\n");
        assert_eq!(Source::new("x/src/a/tests.rs", text).product(), "");
    }
}
