//! The book in HTML: its chapters, and the pages of the tree that they lead to, in one place.
//!
//! Chapters link to pages outside the book, as `../../session.md`. Here each of them becomes a page of the book, links
//! follow, and drawings become pictures; `mdbook` or `rustdoc` makes HTML of that. What is put together is checked by
//! `tidy`'s rules for links, and the HTML once more.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::files::{self, read, write};
use crate::program::{run, target};
use crate::source::Source;
use crate::tidy::links;
use crate::{Failure, html, picture};

/// Writes the book to `target/book` and makes it HTML: by `mdbook` if there is one, else by `rustdoc`.
pub(crate) fn book(root: &Path) -> Result<(), Failure> {
    let settings = read(&root.join("docs/book/book.toml"))?;
    let has_mdbook = Command::new("mdbook").arg("--version").output().is_ok();
    let place = target(root).join("book");
    let _ = fs::remove_dir_all(&place);
    for (path, text) in staged(root)? {
        write(&place.join("src").join(path), &text)?;
    }
    write(&place.join("book.toml"), &settings)?;
    if has_mdbook {
        let mut build = Command::new("mdbook");
        build.arg("build").arg(&place);
        run(build)?;
    } else {
        pages(&place)?;
    }
    // The page to print shows the links of other pages.
    let dead = html::dead(&place.join("book"), |page| page != Path::new("print.html"))?;
    let first = if has_mdbook { "index.html" } else { "SUMMARY.html" };
    println!("{}", place.join("book").join(first).display());
    if dead.is_empty() { Ok(()) } else { Err(dead.join("\n")) }
}

/// The pages in HTML, by the program that is wherever a compiler is. The table of contents is the first of them.
fn pages(place: &Path) -> Result<(), Failure> {
    let (from, to) = (place.join("src"), place.join("book"));
    let style = place.join("style");
    write(&style, STYLE)?;
    let mut due = vec![from.clone()];
    while let Some(path) = due.pop() {
        if path.is_dir() {
            due.extend(files::list(&path)?);
            continue;
        }
        let text = read(&path)?;
        let text = links::links(&text).into_iter().fold(text.clone(), |text, (_, target)| {
            let page = target.replace(".md", ".html");
            text.replace(&format!("]({target})"), &format!("]({page})"))
        });
        write(&path, &text)?;
        let within = path.strip_prefix(&from).ok().and_then(Path::parent).unwrap_or(Path::new(""));
        let mut rustdoc = Command::new("rustdoc");
        rustdoc.args(["--markdown-no-toc", "--html-in-header"]).arg(&style);
        rustdoc.arg("--output").arg(to.join(within)).arg(&path);
        run(rustdoc)?;
    }
    Ok(())
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
    let summary = read(&root.join(SUMMARY))?;
    let mut due = vec![SUMMARY.to_owned()];
    let mut pages = BTreeMap::new();
    let mut seen = BTreeSet::new();
    while let Some(path) = due.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let text = read(&root.join(&path))?;
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

/// How pages look that `rustdoc` has made.
const STYLE: &str = "<style>body { max-width: 50em; margin: 2em auto; padding: 0 1em; font-family: sans-serif; line-height: 1.5 }
pre { background: #f4f4f4; padding: 0.7em; overflow: auto } table { border-collapse: collapse }
td, th { border: 1px solid #ccc; padding: 0.2em 0.6em; text-align: left; vertical-align: top } .doc-anchor { display: none }</style>
";
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
