//! Public items without an example.
//!
//! A type, trait, function or module that programs see has an example in its documentation or in that of one of its
//! methods, or leads by a link to an item that has; of an item of another crate that is handed on, also where it is
//! handed on. Errors are left out: what returns them shows them. Read from rustdoc's JSON, which `api` has made.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// What is known of one item.
#[derive(Debug, Default)]
struct Item {
    /// Its documentation, or that of one of its members, has code that is compiled.
    has_example: bool,
    /// Items that its documentation leads to.
    links: Vec<Key>,
}

/// Crate and name. The path between the two depends on the side it is seen from.
type Key = (String, String);

/// Items that the first `seen` of the crates show to programs, and that have no example and lead to none.
pub(crate) fn missing(crates: &[Value], seen: usize) -> Vec<String> {
    let mut items: BTreeMap<Key, Item> = BTreeMap::new();
    for (key, Item { has_example, links }) in crates.iter().flat_map(self::items) {
        let item = items.entry(key).or_default();
        item.has_example |= has_example;
        item.links.extend(links);
    }
    let public: BTreeSet<Key> = crates.iter().take(seen).flat_map(public).collect();
    let leads = |item: &Item| {
        item.links.iter().any(|link| items.get(link).is_some_and(|other| other.has_example))
    };
    let is_bare = |key: &&Key| {
        let is_error = key.1.ends_with("Error") || key.1.ends_with("error");
        !is_error && items.get(*key).is_some_and(|item| !item.has_example && !leads(item))
    };
    public.iter().filter(is_bare).map(|(from, name)| format!("{from}::{name}")).collect()
}

/// What programs can name of a crate: all that its public modules have or hand on.
fn public(document: &Value) -> Vec<Key> {
    let mut found = Vec::new();
    let mut due: Vec<&Value> = document.get("root").into_iter().collect();
    while let Some(id) = due.pop() {
        let Some(item) = at(document, "index", id) else { continue };
        if let Some(within) = item.pointer("/inner/module/items").and_then(Value::as_array) {
            due.extend(within);
            found.extend(key(document, id));
        } else if let Some(target) = item.pointer("/inner/use/id") {
            let kind = at(document, "paths", target).and_then(|path| path.get("kind")?.as_str());
            found.extend(
                key(document, target).filter(|_| kind.is_some_and(|kind| KINDS.contains(&kind))),
            );
        } else if KINDS.iter().any(|kind| item.pointer(&format!("/inner/{kind}")).is_some()) {
            found.extend(key(document, id));
        }
    }
    found
}

fn items(document: &Value) -> Vec<(Key, Item)> {
    let index = document.get("index").and_then(Value::as_object);
    let mut owners = BTreeMap::new();
    let mut found: BTreeMap<Key, Item> = BTreeMap::new();
    for item in index.into_iter().flat_map(|index| index.values()) {
        let Some(key) = documented(document, item) else { continue };
        for member in members(document, item) {
            owners.insert(member.to_string(), key.clone());
            let has_example = at(document, "index", member).is_some_and(has_example);
            found.entry(key.clone()).or_default().has_example |= has_example;
        }
        found.entry(key).or_default().has_example |= has_example(item);
    }
    for item in index.into_iter().flat_map(|index| index.values()) {
        let Some(key) = documented(document, item) else { continue };
        let links = item.get("links").and_then(Value::as_object);
        let targets = links.into_iter().flat_map(|links| links.values());
        let keys = targets.filter_map(|target| {
            owners.get(&target.to_string()).cloned().or_else(|| self::key(document, target))
        });
        found.entry(key).or_default().links.extend(keys);
    }
    found.into_iter().collect()
}

/// Methods, variants, fields, and items of traits.
fn members<'a>(document: &'a Value, item: &'a Value) -> Vec<&'a Value> {
    let list = |value: &'a Value, place: &str| {
        value.pointer(place).and_then(Value::as_array).into_iter().flatten()
    };
    let mut found: Vec<&Value> =
        ["/inner/trait/items", "/inner/enum/variants", "/inner/struct/kind/plain/fields"]
            .iter()
            .flat_map(|place| list(item, place))
            .collect();
    for kind in ["struct", "enum", "union"] {
        for block in list(item, &format!("/inner/{kind}/impls")) {
            let block = at(document, "index", block);
            found.extend(block.into_iter().flat_map(|block| list(block, "/inner/impl/items")));
        }
    }
    found
}

/// What the documentation of an item is about: itself, or what it hands on.
fn documented(document: &Value, item: &Value) -> Option<Key> {
    let target = || key(document, item.pointer("/inner/use/id")?);
    key(document, item.get("id")?).or_else(target)
}

fn key(document: &Value, id: &Value) -> Option<Key> {
    let path = at(document, "paths", id)?.get("path")?.as_array()?;
    Some((path.first()?.as_str()?.to_owned(), path.last()?.as_str()?.to_owned()))
}

fn at<'a>(document: &'a Value, map: &str, id: &Value) -> Option<&'a Value> {
    document.get(map)?.get(id.to_string())
}

/// The documentation of an item has code that compiles and is no drawing.
fn has_example(item: &Value) -> bool {
    let docs = item.get("docs").and_then(Value::as_str).unwrap_or_default();
    let fences = docs.lines().filter_map(|line| line.trim_start().strip_prefix("```")).step_by(2);
    let runs = |words: &str| words.split(',').all(|word| COMPILED.contains(&word.trim()));
    fences.into_iter().any(runs)
}

const KINDS: [&str; 7] = ["enum", "function", "macro", "struct", "trait", "type_alias", "union"];
/// What may stand behind a fence of code that is compiled, and is to be.
const COMPILED: [&str; 4] = ["", "rust", "no_run", "should_panic"];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document(docs: &str, links: Value, method: &str) -> Value {
        json!({
            "root": 0,
            "index": {
                "0": {"id": 0, "docs": "```\nf();\n```", "links": {}, "inner": {"module": {"items": [1, 2]}}},
                "1": {"id": 1, "docs": docs, "links": links, "inner": {"struct": {"impls": [3], "kind": "unit"}}},
                "2": {"id": 2, "docs": "", "links": {}, "inner": {"enum": {"impls": [], "variants": []}}},
                "3": {"id": 3, "docs": null, "links": {}, "inner": {"impl": {"items": [4]}}},
                "4": {"id": 4, "docs": method, "links": {}, "inner": {"function": {}}},
            },
            "paths": {
                "0": {"path": ["a"]}, "1": {"path": ["a", "b", "Thing"]}, "2": {"path": ["a", "OpenError"]},
            },
        })
    }

    #[test]
    fn an_item_has_an_example_itself_by_a_method_or_by_a_link() {
        let code = "Text.\n\n```no_run\nf();\n```";
        for (docs, links, method) in
            [(code, json!({}), ""), ("", json!({}), code), ("See [a].", json!({"a": 0}), "")]
        {
            assert_eq!(missing(&[document(docs, links, method)], 1), Vec::<String>::new());
        }
    }

    #[test]
    fn an_item_of_another_crate_has_an_example_where_it_is_handed_on() {
        for (docs, bare) in [("```\nf();\n```", &[][..]), ("", &["b::Value"])] {
            let document = json!({
                "root": 0,
                "index": {
                    "0": {"id": 0, "docs": "```\nf();\n```", "links": {}, "inner": {"module": {"items": [1]}}},
                    "1": {"id": 1, "docs": docs, "links": {}, "inner": {"use": {"id": 2}}},
                },
                "paths": {
                    "0": {"path": ["a"]}, "2": {"path": ["b", "Value"], "kind": "struct"},
                },
            });
            // The other crate says nothing of its use.
            let own = json!({
                "root": 0,
                "index": {"1": {"id": 1, "docs": "", "links": {}, "inner": {"struct": {"impls": [], "kind": "unit"}}}},
                "paths": {"1": {"path": ["b", "Value"]}},
            });
            assert_eq!(missing(&[document, own], 1), bare);
        }
    }

    #[test]
    fn a_drawing_or_what_must_not_compile_is_no_example() {
        for docs in ["", "```text\nx\n```", "```compile_fail,E0382\nx\n```"] {
            let found = missing(&[document(docs, json!({"x": 2}), docs)], 1);
            assert_eq!(found, ["a::Thing"], "{docs}");
        }
    }
}
