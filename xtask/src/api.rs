//! The public API of the crates that programs depend on, kept in the tree as text.
//!
//! A change of `docs/api/` in a commit is a change of what programs compile against. A line that goes or
//! changes breaks programs, and asks for a new version in the sense of Semantic Versioning 2.0.0 (before
//! 1.0: the second number); a line that comes is an addition.
//!
//! The lists are made from rustdoc's JSON. Its format belongs to a version of the compiler, and the
//! `public-api` crate knows one.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use public_api::{Builder, PublicApi};

use crate::program::{LINTED, run, target};
use crate::{Failure, examples, files};

/// Where the lists are, from the root of the tree.
const PLACE: &str = "docs/api";
/// The crates that programs depend on.
const PACKAGES: [&str; 3] = ["adverb", "adverb-verbs", "adverb-session"];
/// Crates whose items those re-export.
const INNER: [&str; 4] = ["adverb-device", "adverb-engine", "adverb-rdmacm", "adverb-wire"];
/// The list of what is re-exported.
const SHARED: &str = "shared";

/// A list: its name, and one line for each item.
type List = (String, Vec<String>);

/// Compares the public API with the lists; fails if it differs.
pub(crate) fn compare(root: &Path) -> Result<(), Failure> {
    let mut differences = String::new();
    for (name, now) in lists(root)? {
        let path = place(root, &name);
        let text = files::read(&path)?;
        let before: BTreeSet<&str> = text.lines().collect();
        let now: BTreeSet<&str> = now.iter().map(String::as_str).collect();
        for (sign, line) in changes(&before, &now) {
            let _ = writeln!(differences, "{sign} {line}");
        }
    }
    if !differences.is_empty() {
        return Err(format!(
            "the public API is not the one of {PLACE}:\n{differences}\
             `cargo xtask api --write` records it; lines with - break programs, and CHANGELOG.md says so"
        ));
    }
    let shown = PACKAGES.iter().chain(&INNER);
    let documents: Result<Vec<_>, Failure> = shown.map(|package| document(root, package)).collect();
    let bare = examples::missing(&documents?, PACKAGES.len());
    match bare.is_empty() {
        true => Ok(()),
        false => Err(format!("no example, and no link to one:\n{}", bare.join("\n"))),
    }
}

/// Puts the lists of the public API in the place of those in the tree.
pub(crate) fn write(root: &Path) -> Result<(), Failure> {
    for (name, lines) in lists(root)? {
        let path = place(root, &name);
        let text = lines.iter().fold(String::new(), |text, line| text + line + "\n");
        files::write(&path, &text)?;
    }
    Ok(())
}

fn place(root: &Path, name: &str) -> PathBuf {
    root.join(PLACE).join(format!("{name}.txt"))
}

/// What has gone (`-`) and what has come (`+`).
fn changes<'a>(
    before: &BTreeSet<&'a str>,
    now: &BTreeSet<&'a str>,
) -> impl Iterator<Item = (char, &'a str)> {
    let gone: Vec<_> = before.difference(now).map(|line| ('-', *line)).collect();
    let come: Vec<_> = now.difference(before).map(|line| ('+', *line)).collect();
    gone.into_iter().chain(come)
}

fn lists(root: &Path) -> Result<Vec<List>, Failure> {
    documents(root)?;
    let mut lists = Vec::new();
    let mut shared = BTreeSet::new();
    for package in PACKAGES {
        let lines = items(&api(root, package)?);
        shared.extend(lines.iter().filter_map(|line| re_exported(line)).map(str::to_owned));
        lists.push((package.to_owned(), lines));
    }
    let mut inner = Vec::new();
    for package in INNER {
        let lines = items(&api(root, package)?);
        let name = package.replace('-', "_");
        inner.extend(lines.into_iter().filter(|line| is_of(line, &name, &shared)));
    }
    lists.push((SHARED.to_owned(), inner));
    Ok(lists)
}

/// The last name of an item that is re-exported: `pub use adverb_verbs::Gid` is `Gid`.
fn re_exported(line: &str) -> Option<&str> {
    line.strip_prefix("pub use ")?.rsplit("::").next()
}

/// The line is about one of these items of a crate: its path begins there.
fn is_of(line: &str, name: &str, items: &BTreeSet<String>) -> bool {
    let prefix = format!("{name}::");
    let Some((before, rest)) = line.split_once(&prefix) else {
        return false;
    };
    let item = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    !before.starts_with("pub use") && items.contains(item)
}

fn items(api: &PublicApi) -> Vec<String> {
    api.items().map(|item| item.to_string()).collect()
}

/// Has rustdoc say what it knows of all the packages, with all their features.
fn documents(root: &Path) -> Result<(), Failure> {
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(root)
        .args(["doc", "--quiet", "--no-deps", "--lib", "--all-features"])
        .args(PACKAGES.iter().chain(&INNER).flat_map(|package| ["--package", package]))
        // Of what the pages are made of, and in a place of its own.
        .env("CARGO_BUILD_BUILD_DIR", target(root))
        .env("CARGO_TARGET_DIR", target(root).join("api"))
        .env("RUSTDOC", root.join("xtask/rustdoc-json"))
        .envs(LINTED)
        .env("RUSTDOCFLAGS", "-Z unstable-options --output-format json --cap-lints allow");
    run(cargo).map(drop)
}

/// The public API of a package.
fn api(root: &Path, package: &str) -> Result<PublicApi, Failure> {
    Builder::from_rustdoc_json(json(root, package))
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .map_err(|error| format!("the public API of {package}: {error}"))
}

/// Where rustdoc writes what it says of a package.
fn json(root: &Path, package: &str) -> PathBuf {
    target(root).join("api/doc").join(format!("{}.json", package.replace('-', "_")))
}

fn document(root: &Path, package: &str) -> Result<serde_json::Value, Failure> {
    let path = json(root, package);
    let text = files::read(&path)?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_gone_and_come_is_told() {
        let (before, now) = (BTreeSet::from(["a", "b"]), BTreeSet::from(["b", "c"]));
        let changes: Vec<_> = changes(&before, &now).collect();
        assert_eq!(changes, [('-', "a"), ('+', "c")]);
    }

    #[test]
    fn an_item_of_an_inner_crate_counts_if_it_is_re_exported() {
        let line = "pub use adverb_verbs::Gid";
        let shared = BTreeSet::from([re_exported(line).unwrap().to_owned()]);
        for (line, counts) in [
            ("pub struct adverb_engine::Gid(pub [u8; 16])", true),
            ("pub fn adverb_engine::Gid::v4(&self) -> core::option::Option", true),
            ("impl core::fmt::Display for adverb_engine::Gid", true),
            ("pub struct adverb_engine::GidEntry", false),
            ("pub fn adverb_engine::Qp::gid(&self) -> adverb_engine::Gid", false),
            ("pub use adverb_engine::Gid", false),
        ] {
            assert_eq!(is_of(line, "adverb_engine", &shared), counts, "{line}");
        }
    }
}
