//! Links of the tree's pages: the file is there, and so is the heading.
//!
//! Looks at what is between brackets and parentheses in files of Markdown, but for code. What has a scheme leads
//! elsewhere and is not looked at: nothing here needs a network.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use crate::source::Source;

/// Every link that leads nowhere, one sentence each. `root` is asked for files that are no pages.
pub(crate) fn broken(root: &Path, sources: &[Source]) -> Vec<String> {
    let pages = sources.iter().filter(|source| source.path.ends_with(".md"));
    let pages: BTreeMap<&str, &Source> =
        pages.map(|source| (source.path.as_str(), source)).collect();
    let mut found = Vec::new();
    for page in pages.values() {
        for (line, target) in links(&page.text) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = match path {
                "" => page.path.clone(),
                path => beside(&page.path, path),
            };
            let problem = match pages.get(path.as_str()) {
                Some(other) if anchor.is_empty() || has_anchor(&other.text, anchor) => continue,
                Some(_) => format!("{path} has no heading #{anchor}"),
                None if path.starts_with("..") => format!("{path} is outside the tree"),
                None if anchor.is_empty() && root.join(&path).exists() => continue,
                None => format!("there is no {path}"),
            };
            found.push(format!("{}:{line}: a link leads nowhere: {problem}", page.path));
        }
    }
    found
}

/// Links within the tree, and their lines.
pub(crate) fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (line, text) in prose(text) {
        // Code in a sentence may go on in the next line, and not in the next paragraph.
        in_code &= !text.trim().is_empty();
        for (number, piece) in text.split('`').enumerate() {
            // Every other piece lies between back-quotes.
            in_code ^= number > 0;
            if in_code {
                continue;
            }
            // What is in a link's text may be code: the target follows.
            let start = piece.strip_prefix("](").filter(|_| number > 0);
            for after in start.into_iter().chain(piece.split("](").skip(1)) {
                let target = after.split([')', ' ']).next().unwrap_or_default();
                if !target.contains(':') {
                    found.push((line, target));
                }
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Lines outside fenced code, counted from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// `path` as seen from the file `page`.
pub(crate) fn beside(page: &str, path: &str) -> String {
    let mut whole = PathBuf::new();
    let directory = Path::new(page).parent().unwrap_or(Path::new(""));
    for part in directory.join(path).components() {
        match part {
            Component::ParentDir => {
                if !whole.pop() {
                    return format!("../{path}");
                }
            }
            Component::CurDir => {}
            Component::Normal(_) | Component::RootDir | Component::Prefix(_) => whole.push(part),
        }
    }
    whole.to_string_lossy().into_owned()
}

fn has_anchor(text: &str, anchor: &str) -> bool {
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| slug(line)).any(|slug| slug == anchor)
}

/// What browsers are sent to for a heading: lower case, blanks as dashes, other marks left out.
fn slug(heading: &str) -> String {
    let title = heading.trim_start_matches('#').trim();
    let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken_in(path: &str, text: &str) -> Vec<String> {
        let there = Source::new("docs/there.md", "# Top\n\n## When, and `when` not\n");
        broken(&crate::workspace_root(), &[Source::new(path, text), there])
    }

    #[test]
    fn links_to_pages_headings_files_and_directories_of_the_tree_are_whole() {
        for link in [
            "there.md",
            "there.md#when-and-when-not",
            "#here",
            "../Cargo.toml",
            "../host",
            "https://example.org/no-such-page",
        ] {
            let text = format!("# Here\n\nA [link]({link}), and [`code`]({link}).\n");
            assert_eq!(broken_in("docs/a.md", &text), Vec::<String>::new());
        }
    }

    #[test]
    fn links_that_lead_nowhere_are_found_with_their_line() {
        for link in ["gone.md", "there.md#gone", "#gone", "../../Cargo.toml", "Cargo.toml"] {
            let found = broken_in("docs/a.md", &format!("# Here\n\n[link]({link})\n"));
            assert!(found.len() == 1 && found[0].starts_with("docs/a.md:3: "), "{link}: {found:?}");
        }
        assert_eq!(broken_in("docs/a.md", "[`code`](gone.md) and [a](gone.md)").len(), 1);
        assert_eq!(broken_in("docs/a.md", "`a\nb`). [c](gone.md)").len(), 1);
    }

    #[test]
    fn what_is_code_is_no_link() {
        let text = "`[a](gone.md)` `b\n[c](gone.md)` `d`\n\n```rust\nf[a](b)\n```\n";
        assert_eq!(broken_in("docs/a.md", text), Vec::<String>::new());
    }
}
