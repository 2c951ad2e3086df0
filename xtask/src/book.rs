//! The book in HTML: its chapters, and the pages of the tree that they lead to, in one place.
//!
//! Chapters link to pages outside the book, as `../../session.md`. Here each of them becomes a page of the book, links
//! follow, and drawings become pictures; `mdbook` makes HTML of that. What is put together is checked by `tidy`'s
//! rules for links, and the HTML once more.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Failure;
use crate::picture;
use crate::program::run;
use crate::source::Source;
use crate::tidy::links;

/// Writes the book to `target/book`, and builds it if there is an `mdbook`.
pub(crate) fn book(root: &Path) -> Result<(), Failure> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let place = target.join("book");
    let _ = fs::remove_dir_all(&place);
    for (path, text) in staged(root)? {
        write(&place.join("src").join(path), &text)?;
    }
    let settings = fs::read_to_string(root.join("docs/book/book.toml"))
        .map_err(|error| format!("book.toml: {error}"))?;
    write(&place.join("book.toml"), &settings)?;
    println!("{}", place.join("src").display());
    if Command::new("mdbook").arg("--version").output().is_err() {
        println!("skipped: no HTML: there is no mdbook (`cargo install mdbook`)");
        return Ok(());
    }
    let mut build = Command::new("mdbook");
    build.arg("build").arg(&place);
    run(build)?;
    let dead = dead(&place.join("book"))?;
    println!("{}", place.join("book/index.html").display());
    if dead.is_empty() { Ok(()) } else { Err(dead.join("\n")) }
}

/// Links of the book as it is put together that lead nowhere.
pub(crate) fn broken(root: &Path) -> Result<Vec<String>, Failure> {
    let pages: Vec<Source> =
        staged(root)?.iter().map(|(path, text)| Source::new(path, text)).collect();
    // Nothing outside is there: a link has to lead to a page of the book.
    let found = links::broken(Path::new("/nonexistent"), &pages);
    Ok(found.into_iter().map(|fact| format!("the book: {fact}")).collect())
}

/// Every page, by its place in the book.
fn staged(root: &Path) -> Result<BTreeMap<String, String>, Failure> {
    let read = |path: &str| {
        fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"))
    };
    let summary = read(SUMMARY)?;
    let mut due = vec![SUMMARY.to_owned()];
    let mut pages = BTreeMap::new();
    let mut seen = BTreeSet::new();
    while let Some(path) = due.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let text = read(&path)?;
        let mut moved = text.clone();
        for (_, target) in links::links(&text) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            if file.is_empty() {
                continue;
            }
            let to = links::beside(&path, file);
            if to.ends_with(".md") && root.join(&to).is_file() {
                let anchor = if anchor.is_empty() { String::new() } else { format!("#{anchor}") };
                let link = format!("]({}{}{anchor})", up(&place(&path)), place(&to));
                moved = moved.replace(&format!("]({target})"), &link);
                due.push(to);
            } else {
                // What is no page is named, and not led to.
                moved = without_link(&moved, target);
            }
        }
        pages.insert(path, with_pictures(&moved));
    }
    let mut whole: BTreeMap<String, String> =
        pages.iter().map(|(path, text)| (place(path), text.clone())).collect();
    let mut contents = whole.remove("SUMMARY.md").unwrap_or(summary);
    contents.push_str("\n# Reference\n\n");
    for (path, text) in pages.iter().filter(|(path, _)| !path.starts_with(CHAPTERS)) {
        let title = text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or(path);
        let _ = writeln!(contents, "- [{title}]({})", place(path));
    }
    whole.insert("SUMMARY.md".to_owned(), contents);
    Ok(whole)
}

/// Where a page of the tree is in the book. `mdbook` takes a README for an index.
fn place(path: &str) -> String {
    let path = path.replace("README.md", "overview.md");
    match (path.strip_prefix(CHAPTERS), path.strip_prefix("docs/")) {
        (Some(chapter), _) => chapter.to_owned(),
        (None, Some(page)) => format!("reference/{page}"),
        (None, None) => format!("reference/tree/{path}"),
    }
}

/// From a page's directory to the book's root.
fn up(place: &str) -> String {
    "../".repeat(place.matches('/').count())
}

/// The text with each link to `target` replaced by the words that it stands under.
fn without_link(text: &str, target: &str) -> String {
    let mut text = text.to_owned();
    let end = format!("]({target})");
    while let Some(at) = text.find(&end) {
        text.replace_range(at..at + end.len(), "");
        if let Some(open) = text.get(..at).and_then(|before| before.rfind('[')) {
            text.remove(open);
        }
    }
    text
}

/// The text with its drawings as pictures.
fn with_pictures(text: &str) -> String {
    let mut whole = String::new();
    let mut block: Option<(String, String)> = None;
    for line in text.lines() {
        match (&mut block, line.strip_prefix("```")) {
            (None, Some(_)) => block = Some((line.to_owned(), String::new())),
            (None, None) => whole.extend([line, "\n"]),
            (Some((_, body)), None) => body.extend([line, "\n"]),
            (Some((fence, body)), Some(_)) => {
                let is_text = fence == "```" || fence == "```text";
                if is_text && picture::is_drawing(body) {
                    whole.extend([picture::svg(body).as_str(), "\n"]);
                } else {
                    whole.extend([fence.as_str(), "\n", body, "```\n"]);
                }
                block = None;
            }
        }
    }
    whole
}

/// Links of HTML files that lead nowhere.
fn dead(place: &Path) -> Result<Vec<String>, Failure> {
    let mut due = vec![place.to_path_buf()];
    let mut pages = Vec::new();
    while let Some(directory) = due.pop() {
        let entries = fs::read_dir(&directory)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                due.push(path);
            } else if path.extension().is_some_and(|end| end == "html") {
                pages.push(path);
            }
        }
    }
    let mut dead = Vec::new();
    for page in pages {
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let text = read(&page);
        // What the print page shows has the links of its own pages.
        if page.file_name().is_some_and(|name| name == "print.html") {
            continue;
        }
        for link in text.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            if file.contains(':') {
                continue;
            }
            let to = match (file, page.parent()) {
                ("", _) | (_, None) => page.clone(),
                (file, Some(parent)) => parent.join(file),
            };
            let has_anchor = || read(&to).contains(&format!("id=\"{anchor}\""));
            if !to.exists() || !(anchor.is_empty() || has_anchor()) {
                dead.push(format!("{}: {link} leads nowhere", page.display()));
            }
        }
    }
    Ok(dead)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

const CHAPTERS: &str = "docs/book/src/";
const SUMMARY: &str = "docs/book/src/SUMMARY.md";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_outside_the_book_are_pages_of_it() {
        let pages = staged(&crate::workspace_root()).unwrap();
        assert!(pages["sessions.md"].contains("](reference/session.md)"));
        assert!(pages["SUMMARY.md"].contains("](reference/verbs.md)"));
        assert!(pages["introduction.md"].contains("<svg "));
        assert_eq!(broken(&crate::workspace_root()), Ok(Vec::new()));
    }

    #[test]
    fn a_link_to_what_is_no_page_is_its_words() {
        assert_eq!(without_link("a [`b`](c.rs), [d](e)", "c.rs"), "a `b`, [d](e)");
    }
}
