//! Links of pages in HTML: the file is there, and so is the place in it.
//!
//! Pages are those of `cargo doc` and of the book, which tools have made. What has a scheme leads elsewhere and is not
//! looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use crate::Failure;
use crate::files::{self, read};

/// Links that lead nowhere, of all pages below `place` whose path from there `is_ours`.
pub(crate) fn dead(place: &Path, is_ours: impl Fn(&Path) -> bool) -> Result<Vec<String>, Failure> {
    let pages = pages(place)?;
    let mut anchors = BTreeMap::new();
    let mut dead = Vec::new();
    for page in &pages {
        let name = page.strip_prefix(place).unwrap_or(page);
        if !is_ours(name) {
            continue;
        }
        let text = read(page)?;
        let links: BTreeSet<&str> = values(&text, "href").collect();
        for link in links.into_iter().filter(|link| !link.contains(':') && *link != FOREIGN) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let file = file.split('?').next().unwrap_or_default();
            let to = match (file, page.parent()) {
                ("", _) | (_, None) => page.clone(),
                (file, Some(parent)) => plain(&parent.join(file)),
            };
            if !to.exists() {
                dead.push(format!("{}: {link}: there is no such file", name.display()));
                continue;
            }
            // Lines of sources are marked by the program that shows them.
            let is_source = to.strip_prefix(place).is_ok_and(|to| to.starts_with("src"));
            if anchor.is_empty() || is_source || to.extension().is_none_or(|end| end != "html") {
                continue;
            }
            if !anchors.contains_key(&to) {
                let text = moved(&to)?;
                anchors.insert(to.clone(), values(&text, "id").map(str::to_owned).collect());
            }
            if !anchors.get(&to).is_some_and(|all: &BTreeSet<String>| all.contains(anchor)) {
                dead.push(format!("{}: {link}: there is no such place", name.display()));
            }
        }
    }
    match pages.is_empty() {
        true => Err(format!("there are no pages in {}", place.display())),
        false => Ok(dead),
    }
}

/// All files of HTML below a directory.
fn pages(place: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut due = vec![place.to_path_buf()];
    let mut pages = Vec::new();
    while let Some(directory) = due.pop() {
        for path in files::list(&directory)? {
            if path.is_dir() {
                due.push(path);
            } else if path.extension().is_some_and(|end| end == "html") {
                pages.push(path);
            }
        }
    }
    Ok(pages)
}

/// What an attribute is set to, wherever it is.
fn values<'a>(text: &'a str, attribute: &str) -> impl Iterator<Item = &'a str> {
    let start = format!(" {attribute}=\"");
    let values: Vec<&str> =
        text.split(start.as_str()).skip(1).filter_map(|rest| rest.split('"').next()).collect();
    values.into_iter()
}

/// The path without steps back.
fn plain(path: &Path) -> PathBuf {
    let mut whole = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(whole.pop()),
            Component::CurDir => {}
            Component::Normal(_) | Component::RootDir | Component::Prefix(_) => whole.push(part),
        }
    }
    whole
}

/// The text of a page, or of the one that it sends browsers to.
fn moved(page: &Path) -> Result<String, Failure> {
    let text = read(page)?;
    let to =
        text.split_once("http-equiv=\"refresh\"").and_then(|(_, rest)| rest.split_once("URL="));
    match (to.and_then(|(_, rest)| rest.split('"').next()), page.parent()) {
        (Some(to), Some(parent)) => read(&plain(&parent.join(to))),
        (_, _) => Ok(text),
    }
}

/// In the documentation of a trait of `tracing` that every type has.
const FOREIGN: &str = "dispatcher#setting-the-default-subscriber";

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn files_and_places_that_links_lead_to_are_looked_for() {
        let place = std::env::temp_dir().join(format!("adverb-html-{}", std::process::id()));
        fs::create_dir_all(place.join("below")).unwrap();
        fs::write(place.join("a.html"), r#"<h2 class="x" id="here">A</h2>"#).unwrap();
        let sent = r#"<meta http-equiv="refresh" content="0;URL=a.html">"#;
        fs::write(place.join("old.html"), sent).unwrap();
        let mut found = Vec::new();
        for link in [
            "../a.html",
            "../a.html#here",
            "../a.html?search=x",
            "../old.html#here",
            "#own",
            "https://example.org/x#y",
            "../b.html",
            "../a.html#there",
            "../old.html#there",
            "#there",
        ] {
            let text = format!(r#"<p id="own"><a class="y" href="{link}">B</a></p>"#);
            fs::write(place.join("below/c.html"), text).unwrap();
            found.extend(dead(&place, |page| page.starts_with("below")).unwrap());
        }
        fs::remove_dir_all(&place).unwrap();
        let links: Vec<&str> = found.iter().filter_map(|one| one.split(": ").nth(1)).collect();
        assert_eq!(links, ["../b.html", "../a.html#there", "../old.html#there", "#there"]);
    }
}
