//! Arrows between crates point down: from the edge to the host to the pure, never up.
//!
//! The storey of a crate is the directory it lies in. Whatever lies elsewhere is a tool of the
//! trade, such as this one: it may use everything, and nothing may use it.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::Failure;

/// The storeys, from the bottom.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Storey {
    Pure,
    Host,
    Edge,
    Tool,
}

impl Storey {
    fn of(path: &Path, root: &Path) -> Self {
        let inside = path.strip_prefix(root).unwrap_or(path);
        match inside.iter().next().and_then(|first| first.to_str()) {
            Some("pure") => Self::Pure,
            Some("host") => Self::Host,
            Some("edge") => Self::Edge,
            Some(_) | None => Self::Tool,
        }
    }
}

/// Every dependency of a crate on one of a higher storey.
pub(super) fn broken(root: &Path) -> Result<Vec<String>, Failure> {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["metadata", "--format-version=1", "--no-deps", "--offline"]);
    let output = command.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let metadata = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    Ok(arrows_up(&metadata, root))
}

fn arrows_up(metadata: &Value, root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for package in list(metadata, "packages") {
        let from = Storey::of(Path::new(text(package, "manifest_path")), root);
        for dependency in list(package, "dependencies") {
            let path = text(dependency, "path");
            let to = Storey::of(Path::new(path), root);
            if !path.is_empty() && to > from {
                let (user, used) = (text(package, "name"), text(dependency, "name"));
                found.push(format!(
                    "{user} ({from:?}) depends on {used} ({to:?}), which is above it"
                ));
            }
        }
    }
    found
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn arrow(from: &str, to: Option<&str>) -> Vec<String> {
        let path = to.map(|to| format!("/tree/{to}"));
        let metadata = json!({ "packages": [{
            "name": "user",
            "manifest_path": format!("/tree/{from}/Cargo.toml"),
            "dependencies": [{ "name": "used", "path": path }],
        }] });
        arrows_up(&metadata, Path::new("/tree"))
    }

    #[test]
    fn arrows_down_and_along_a_storey_are_right() {
        for (from, to) in [
            ("edge/tools", "host/sys"),
            ("edge/tools", "pure/wire"),
            ("host/device", "host/sys"),
            ("host/device", "pure/engine"),
            ("xtask", "edge/tools"),
        ] {
            assert!(arrow(from, Some(to)).is_empty(), "{from} {to}");
        }
    }

    #[test]
    fn arrows_up_are_found() {
        for (from, to) in [
            ("pure/wire", "host/sys"),
            ("pure/wire", "edge/tools"),
            ("host/sys", "edge/tools"),
            ("edge/tools", "xtask"),
        ] {
            assert_eq!(arrow(from, Some(to)).len(), 1, "{from} {to}");
        }
    }

    #[test]
    fn packages_from_elsewhere_have_no_storey() {
        assert!(arrow("pure/wire", None).is_empty());
    }
}
