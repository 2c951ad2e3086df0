//! The JSON of every command is what `docs/json.schema.json` says, and `docs/json.md` names every field.
//!
//! The checker knows the words of JSON Schema that the file uses, and takes no other.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use super::{adverb, stderr};

/// Panics if `document` is not what the schema says of `definition`.
pub(crate) fn check(definition: &str, document: &Value) {
    let schema = schema();
    let named = schema.pointer(&format!("/$defs/{definition}"));
    let mut problems = Vec::new();
    look(&schema, named.expect("a definition"), document, "$", &mut problems);
    assert!(problems.is_empty(), "{definition}: {problems:#?}\nin {document}");
}

fn page(name: &str) -> String {
    let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(path).expect("a page")
}

fn schema() -> Value {
    serde_json::from_str(&page("json.schema.json")).expect("valid JSON")
}

/// Notes what is wrong with `value`, which is at `place` of the document.
fn look(root: &Value, schema: &Value, value: &Value, place: &str, problems: &mut Vec<String>) {
    let words = schema.as_object().expect("a schema is an object");
    let properties = words.get("properties").and_then(Value::as_object);
    for (word, what) in words {
        match word.as_str() {
            "$ref" => {
                let name = what.as_str().and_then(|name| name.strip_prefix('#'));
                let there = name.and_then(|name| root.pointer(name)).expect("a definition");
                look(root, there, value, place, problems);
            }
            "const" if what != value => problems.push(format!("{place}: not {what}")),
            "enum" if !list(what).contains(value) => {
                problems.push(format!("{place}: {value} is not one of {what}"));
            }
            "type" => {
                let names = what.as_array().cloned().unwrap_or_else(|| vec![what.clone()]);
                if !names.iter().any(|name| is_a(value, name.as_str().expect("a type"))) {
                    problems.push(format!("{place}: {value} is not {what}"));
                }
            }
            "required" => {
                for name in list(what).iter().filter_map(Value::as_str) {
                    if value.get(name).is_none() {
                        problems.push(format!("{place}: no {name}"));
                    }
                }
            }
            "oneOf" => {
                let fits = list(what).iter().filter(|one| {
                    let mut problems = Vec::new();
                    look(root, one, value, place, &mut problems);
                    problems.is_empty()
                });
                let count = fits.count();
                if count != 1 {
                    problems.push(format!("{place}: fits {count} of {what}"));
                }
            }
            "properties" => {
                for (name, schema) in properties.into_iter().flatten() {
                    if let Some(value) = value.get(name) {
                        look(root, schema, value, &format!("{place}.{name}"), problems);
                    }
                }
            }
            "additionalProperties" => {
                let is_known =
                    |name: &str| properties.is_some_and(|known| known.contains_key(name));
                let others =
                    value.as_object().into_iter().flatten().filter(|(name, _)| !is_known(name));
                for (name, value) in others {
                    if what.is_boolean() {
                        problems.push(format!("{place}: {name} is not in the schema"));
                    } else {
                        look(root, what, value, &format!("{place}.{name}"), problems);
                    }
                }
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    look(root, what, item, &format!("{place}[{index}]"), problems);
                }
            }
            "const" | "enum" => {}
            other => panic!("the checker does not know {other}"),
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn is_a(value: &Value, name: &str) -> bool {
    match name {
        "array" => value.is_array(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "object" => value.is_object(),
        "string" => value.is_string(),
        other => panic!("no type: {other}"),
    }
}

/// What a command prints, a document a line or one in all.
pub(crate) fn documents(words: &[&str]) -> Vec<Value> {
    let output = adverb(words);
    assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    let documents = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    documents.map(|document| document.expect("valid JSON")).collect()
}

#[test]
fn every_command_prints_what_its_schema_says() {
    for (definition, words) in [
        ("allreduce", "allreduce --local 2 -n 3 -s 4K --json"),
        ("bench", "bench --json -s 1,5000 -n 20"),
        ("bench", "bench --json -s 64 -n 20 --no-floor"),
        ("modes", "bench --modes -D 0.05 --json"),
        ("layers", "bench --layers -D 0.05 --json"),
        ("counters", "counters --json"),
        ("devices", "devices --json"),
        ("devinfo", "devinfo --json"),
        ("devinfo", "devinfo --json -v"),
        ("mesh", "mesh --local 2 -D 0.2 --json"),
        ("pingpong", "pingpong -n 3 --json"),
        ("parameters", "sockets parameters --json"),
        ("top", "top --json -d 0.1"),
    ] {
        let words: Vec<_> = words.split(' ').collect();
        let all = documents(&words);
        assert_eq!(all.len(), 1, "{words:?}");
        all.iter().for_each(|document| check(definition, document));
    }
    // It fails where the machine is not as it should be.
    let doctor = adverb(&["doctor", "--json"]);
    check("doctor", &serde_json::from_slice(&doctor.stdout).expect("valid JSON"));
}

#[test]
fn the_checker_finds_what_is_missing_too_much_or_of_another_kind() {
    let device = r#"{"schema_version": 1, "devices": []}"#;
    check("devices", &serde_json::from_str(device).expect("JSON"));
    for wrong in [
        r#"{"devices": []}"#,
        r#"{"schema_version": 2, "devices": []}"#,
        r#"{"schema_version": 1, "devices": [], "more": 1}"#,
        r#"{"schema_version": 1, "devices": {}}"#,
        r#"{"schema_version": 1, "devices": [{"name": 5}]}"#,
        "[]",
    ] {
        let schema = schema();
        let mut problems = Vec::new();
        let named = schema.pointer("/$defs/devices").expect("a definition");
        let document = serde_json::from_str(wrong).expect("JSON");
        look(&schema, named, &document, "$", &mut problems);
        assert!(!problems.is_empty(), "{wrong}");
    }
}

#[test]
fn the_page_names_every_field_of_the_schema() {
    let page = page("json.md");
    let mut names = BTreeSet::new();
    gather(&schema(), &mut names);
    assert!(names.len() > 80, "{names:?}");
    let unnamed: Vec<_> = names.iter().filter(|name| !page.contains(name.as_str())).collect();
    assert!(unnamed.is_empty(), "docs/json.md does not name {unnamed:?}");
}

fn gather(schema: &Value, names: &mut BTreeSet<String>) {
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        names.extend(properties.keys().cloned());
    }
    let below = schema.as_object().map(|object| object.values()).into_iter().flatten();
    below.chain(schema.as_array().into_iter().flatten()).for_each(|one| gather(one, names));
}
