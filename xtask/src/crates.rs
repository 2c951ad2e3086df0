//! Crates for a registry: what each has to say of itself, and in which order they go.
//!
//! `cargo metadata` says what the manifests have; `packaging/README.md` lists the order for a person. Nothing here speaks to a
//! registry.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::program::run;
use crate::{Failure, files};

/// What keeps crates from being published, one sentence each.
pub(crate) fn broken(root: &Path) -> Result<Vec<String>, Failure> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(["metadata", "--format-version=1", "--no-deps", "--offline"]);
    let metadata: Value =
        serde_json::from_slice(&run(cargo)?.stdout).map_err(|error| error.to_string())?;
    let page = files::read(&root.join(PAGE))?;
    Ok(faults(&metadata, &page))
}

fn faults(metadata: &Value, page: &str) -> Vec<String> {
    let order = order(page);
    let packages =
        metadata.get("packages").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    // Of those that are not published the list of registries is empty; of others there is none.
    let (public, private): (Vec<_>, Vec<_>) =
        packages.iter().partition(|package| package.get("publish").is_none_or(Value::is_null));
    let mut found = Vec::new();
    for package in public {
        let name = text(package, "name");
        for field in ["description", "license", "readme"] {
            if text(package, field).is_empty() {
                found.push(format!("{name} has no {field}"));
            }
        }
        for (field, most) in [("categories", 5), ("keywords", 5)] {
            let count = package.get(field).and_then(Value::as_array).map_or(0, Vec::len);
            if count == 0 || count > most {
                found.push(format!("{name} has {count} {field}: 1 to {most} are allowed"));
            }
        }
        let has_features =
            package.get("features").and_then(Value::as_object).is_some_and(|all| !all.is_empty());
        if has_features
            && package.pointer("/metadata/docs/rs/all-features") != Some(&Value::Bool(true))
        {
            found.push(format!("{name} has features, and its documentation shows none of them"));
        }
        let Some(place) = step(&order, name) else {
            found.push(format!("{name} is published, and not in the order of {PAGE}"));
            continue;
        };
        for used in package.get("dependencies").and_then(Value::as_array).into_iter().flatten() {
            let (other, is_ours) = (text(used, "name"), !text(used, "path").is_empty());
            let is_dev = text(used, "kind") == "dev";
            if !is_ours || other == name {
                continue;
            }
            let has_version = text(used, "req") != "*";
            match (is_dev, step(&order, other)) {
                // Without a version it is left out when the crate is packed.
                (true, _) if !has_version => {}
                (_, Some(before)) if before < place || is_dev => {}
                (_, _) => found
                    .push(format!("{name} depends on {other}, which is not published before it")),
            }
            if !is_dev && text(used, "req") != format!("^{}", text(package, "version")) {
                found.push(format!(
                    "{name} depends on {other} {}: not its version",
                    text(used, "req")
                ));
            }
        }
    }
    for name in order.iter().flatten() {
        if private.iter().any(|package| text(package, "name") == *name) {
            found.push(format!("{name} is in the order of {PAGE}, and not published"));
        }
    }
    found
}

/// The numbered list of the page: names of crates, step by step.
fn order(page: &str) -> Vec<Vec<&str>> {
    let is_step = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit());
    let steps = page.lines().filter(is_step);
    steps.map(|line| line.split('`').skip(1).step_by(2).collect()).collect()
}

fn step(order: &[Vec<&str>], name: &str) -> Option<usize> {
    order.iter().position(|step| step.contains(&name))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

const PAGE: &str = "packaging/README.md";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_crates_of_the_tree_can_be_published_in_the_order_of_the_page() {
        assert_eq!(broken(&crate::workspace_root()), Ok(Vec::new()));
    }

    fn package(name: &str, dependency: &str, req: &str) -> Value {
        json!({
            "name": name, "version": "0.1.0", "publish": null, "description": "d", "license": "MIT",
            "readme": "README.md", "categories": ["c"], "keywords": ["k"], "features": {},
            "dependencies": [{"name": dependency, "path": "p", "req": req, "kind": null}]
        })
    }

    #[test]
    fn what_keeps_a_crate_from_being_published_is_found() {
        let of = |package: Value, page: &str| faults(&json!({"packages": [package]}), page);
        let page = "1. `b`\n2. `a`\n";
        assert_eq!(of(package("a", "b", "^0.1.0"), page), Vec::<String>::new());
        for (wrong, page) in [
            (package("a", "b", "*"), page),
            (package("a", "b", "^0.2.0"), page),
            (package("a", "c", "^0.1.0"), page),
            (package("a", "b", "^0.1.0"), "1. `a`\n2. `b`\n"),
            (package("a", "b", "^0.1.0"), "1. `b`\n"),
        ] {
            assert!(!of(wrong, page).is_empty(), "{page}");
        }
        let mut bare = package("a", "b", "^0.1.0");
        for field in ["description", "readme", "keywords"] {
            bare[field] = Value::Null;
        }
        assert_eq!(of(bare, page).len(), 3);
        let mut with_features = package("a", "b", "^0.1.0");
        with_features["features"] = json!({"tokio": []});
        assert_eq!(of(with_features, page).len(), 1);
    }
}
