//! Modules inside a crate: rooms that see one another downwards only, and no circle of many files.
//!
//! What a file uses is read off its paths: `crate::`, `super::`, `self::`, and `use` of a module below it.
//! Tests are left out, and so is that a file declares another as its part.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Source;

/// Crates of several rooms, and the rooms from the bottom.
const ROOMS: [(&str, &[&str]); 2] = [
    ("host/device", &["registry", "memory", "link", "objects", "progress", "port"]),
    ("edge/preload", &["base", "socket", "transport", "wait", "share", "exports"]),
];

/// Files that may use one another in a circle.
const CIRCLE_MAX: usize = 3;

/// Crates with larger circles, how many files those have at most, and why they are still there. A number here
/// goes down only.
const CIRCLES: [(&str, usize, &str); 3] = [
    (
        "edge/tools",
        15,
        "the benchmark's arguments, plan and report are written against one another",
    ),
    ("host/session", 19, "channels, endpoints and links own one another"),
    ("host/verbs", 19, "each object names the provider's enum, and that all objects"),
];

/// Files of a crate, by the module that each is, and the modules that it uses.
type Uses<'a> = BTreeMap<Vec<&'a str>, BTreeSet<Vec<&'a str>>>;

/// Every arrow that points up, and every circle that is too large.
pub(super) fn broken(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for (name, uses) in crates(sources) {
        let rooms =
            ROOMS.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, rooms)| rooms);
        found.extend(arrows_up(name, rooms, &uses));
        let known = CIRCLES.iter().find(|(known, ..)| *known == name);
        let most = known.map_or(CIRCLE_MAX, |(_, most, _)| *most);
        for circle in circles(&uses).into_iter().filter(|circle| circle.len() > most) {
            let files: Vec<_> = circle.iter().map(|module| module.join("/")).collect();
            found.push(format!(
                "{name}: {} files use one another in a circle, {most} may: {}",
                files.len(),
                files.join(", ")
            ));
        }
    }
    found
}

/// The rooms of each crate that has some, and which rooms each uses, by so many files.
pub(super) fn drawing(sources: &[Source]) -> String {
    let mut drawing = String::new();
    let crates = crates(sources);
    for (name, rooms) in ROOMS {
        let Some(uses) = crates.get(name) else {
            continue;
        };
        drawing += &format!("rooms of {name}, and how many files of a room use another\n");
        for (height, room) in rooms.iter().enumerate().rev() {
            let of_room = || uses.iter().filter(|(user, _)| user.first() == Some(room));
            let used = rooms.iter().take(height).rev().filter_map(|below| {
                let uses_it =
                    |used: &BTreeSet<Vec<&str>>| used.iter().any(|u| u.first() == Some(below));
                let count = of_room().filter(|(_, used)| uses_it(used)).count();
                (count > 0).then(|| format!("{below} {count}"))
            });
            let used: Vec<_> = used.collect();
            drawing += &format!("  {room} ({} files) -> {}\n", of_room().count(), used.join(", "));
        }
    }
    drawing
}

/// The modules of every crate, by its directory.
fn crates(sources: &[Source]) -> BTreeMap<&str, Uses<'_>> {
    let mut crates: BTreeMap<&str, Vec<(Vec<&str>, &Source)>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        if let Some((name, inside)) = source.path.split_once("/src/")
            && !source.product().is_empty()
        {
            crates.entry(name).or_default().push((module(inside), source));
        }
    }
    crates.into_iter().map(|(name, files)| (name, uses_of(files))).collect()
}

fn uses_of<'a>(files: Vec<(Vec<&'a str>, &'a Source)>) -> Uses<'a> {
    let modules: BTreeSet<_> = files.iter().map(|(module, _)| module.clone()).collect();
    let mut uses = Uses::new();
    for (module, source) in files {
        let used = used(&module, source.product(), &modules);
        uses.insert(module, used);
    }
    uses
}

/// The module that a file is; none for the root of a crate.
fn module(path: &str) -> Vec<&str> {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let mut parts: Vec<_> = path.split('/').collect();
    parts.pop_if(|last| matches!(*last, "mod" | "lib" | "main"));
    parts
}

/// The modules that the code of `module` uses.
fn used<'a>(
    module: &[&'a str],
    code: &'a str,
    modules: &BTreeSet<Vec<&'a str>>,
) -> BTreeSet<Vec<&'a str>> {
    let mut found = BTreeSet::new();
    let tokens = tokens(code);
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let after_path = at.checked_sub(1).and_then(|before| tokens.get(before)) == Some(&"::");
        let base: Option<Vec<&str>> = match *token {
            "crate" => Some(Vec::new()),
            "self" => Some(module.to_vec()),
            "super" => Some(module.split_last().map_or(&[][..], |(_, parents)| parents).to_vec()),
            // A module below this one needs no prefix.
            word if at > 0 && tokens.get(at - 1) == Some(&"use") => {
                let mut child = module.to_vec();
                child.push(word);
                modules.contains(&child).then_some(child)
            }
            _ => None,
        };
        at += 1;
        if let (Some(base), false, Some(&"::")) = (base, after_path, tokens.get(at)) {
            at = follow(&tokens, at, base, &mut |path| {
                let known = (1..=path.len()).rev().find_map(|len| modules.get(path.get(..len)?));
                found.extend(known.filter(|known| known.as_slice() != module).cloned());
            });
        }
    }
    found
}

/// Follows a path, or a tree of them, from the `::` at `at` on; says where it ends.
fn follow<'a>(
    tokens: &[&'a str],
    mut at: usize,
    mut path: Vec<&'a str>,
    tell: &mut impl FnMut(&[&'a str]),
) -> usize {
    while tokens.get(at) == Some(&"::") {
        at += 1;
        match tokens.get(at) {
            Some(&"{") => {
                at += 1;
                while let Some(&token) = tokens.get(at) {
                    at += 1;
                    match token {
                        "}" => break,
                        "," => {}
                        "self" => tell(&path),
                        word => {
                            let mut longer = path.clone();
                            longer.push(word);
                            at = follow(tokens, at, longer, tell);
                        }
                    }
                }
                return at;
            }
            Some(&"super") => drop(path.pop()),
            Some(word) => path.push(word),
            None => break,
        }
        at += 1;
    }
    tell(&path);
    at
}

/// Words, `::`, and single characters of other kinds.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let in_word = |character: char| character.is_alphanumeric() || character == '_';
        let len = if in_word(first) {
            rest.find(|character| !in_word(character)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(len);
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

fn arrows_up(name: &str, rooms: &[&str], uses: &Uses<'_>) -> Vec<String> {
    let height = |module: &[&str]| rooms.iter().position(|room| module.first() == Some(room));
    let mut found = Vec::new();
    for (user, used) in uses {
        for used in used {
            if let (Some(from), Some(to)) = (height(user), height(used))
                && to > from
            {
                let [user, used] = [user, used].map(|module| module.join("/"));
                found.push(format!("{name}: {user} uses {used}, which is in a room above it"));
            }
        }
    }
    found
}

/// Modules that use one another in a circle, the largest first: strongly connected components (Kosaraju).
fn circles<'a>(uses: &Uses<'a>) -> Vec<Vec<Vec<&'a str>>> {
    fn visit<'m, 'a>(
        module: &'m Vec<&'a str>,
        next: &BTreeMap<&'m Vec<&'a str>, Vec<&'m Vec<&'a str>>>,
        seen: &mut BTreeSet<&'m Vec<&'a str>>,
        order: &mut Vec<&'m Vec<&'a str>>,
    ) {
        if seen.insert(module) {
            for other in next.get(module).into_iter().flatten() {
                visit(other, next, seen, order);
            }
            order.push(module);
        }
    }
    let mut forward: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut backward: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (user, used) in uses {
        for used in used {
            forward.entry(user).or_default().push(used);
            backward.entry(used).or_default().push(user);
        }
    }
    let (mut seen, mut order) = (BTreeSet::new(), Vec::new());
    uses.keys().for_each(|module| visit(module, &forward, &mut seen, &mut order));
    seen.clear();
    let mut found = Vec::new();
    for module in order.into_iter().rev() {
        let mut circle = Vec::new();
        visit(module, &backward, &mut seen, &mut circle);
        if circle.len() > 1 {
            let mut circle: Vec<_> = circle.into_iter().cloned().collect();
            circle.sort();
            found.push(circle);
        }
    }
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Vec<Source> {
        files.iter().map(|(path, text)| Source::new(path, text)).collect()
    }

    #[test]
    fn an_arrow_from_a_room_to_one_above_it_is_found_however_it_is_written() {
        let texts = [
            "use crate::progress::helper::Helper;",
            "use crate::{memory, progress::helper::{self, Helper}};",
            "fn f() { crate::progress::helper::go(); }",
            "use super::super::progress::helper;",
        ];
        for text in texts {
            let files = [
                ("host/device/src/link/udp.rs", text),
                ("host/device/src/progress/helper.rs", "//"),
            ];
            let files = [
                files[0],
                (files[1].0, "fn go() {}"),
                ("host/device/src/memory/mod.rs", "fn m() {}"),
            ];
            let found = broken(&tree(&files));
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].contains("link/udp uses progress/helper"), "{found:?}");
        }
    }

    #[test]
    fn arrows_down_comments_and_tests_are_right() {
        let text = "use crate::memory::region::Region; // crate::progress::helper\n\
                    #[cfg(test)]\nmod tests {\n    use crate::progress::helper::Helper;\n}\n";
        let files = tree(&[
            ("host/device/src/link/udp.rs", text),
            ("host/device/src/memory/region.rs", "struct Region;"),
            ("host/device/src/progress/helper.rs", "struct Helper;"),
        ]);
        assert_eq!(broken(&files), Vec::<String>::new());
        assert!(drawing(&files).contains("link (1 files) -> memory 1\n"), "{}", drawing(&files));
    }

    #[test]
    fn circles_of_more_than_three_files_are_found() {
        let ring = |count: usize| {
            let file = |at: usize| {
                let text = format!("use crate::m{}::X;", (at + 1) % count);
                Source::new(&format!("host/x/src/m{at}.rs"), &text)
            };
            broken(&(0..count).map(file).collect::<Vec<_>>())
        };
        assert_eq!(ring(3), Vec::<String>::new());
        let found = ring(4);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("4 files") && found[0].contains("m0, m1, m2, m3"), "{found:?}");
    }
}
