//! The Python package: built, linted and tested in an environment of its own, below `target/python`.
//!
//! The package is a workspace of its own (`edge/python/Cargo.toml` says why), so no other command sees it. What it
//! is built and tested with comes from the package index, in the versions of `edge/python/requirements.txt`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::program::{LINTED, target, watch};
use crate::{Failure, files};

/// Lints the package, builds it as a developer does, and runs its tests. Where there is no Python it says so; on the
/// build machine (`CI` is set) that is a failure.
pub(crate) fn test(root: &Path) -> Result<(), Failure> {
    let Some(place) = Place::prepare(root)? else {
        if env::var_os("CI").is_some() {
            return Err(NONE.to_owned());
        }
        println!("skipped: {NONE}");
        return Ok(());
    };
    place.run("cargo", &["fmt", "--check"])?;
    // `cargo clippy` has all that the package is made of checked beside its build.
    place.run_with(&LINTED, "maturin", &["develop", "--quiet"])?;
    place.run("python", &["-m", "pytest", "--quiet"])
}

/// Builds a wheel and puts it into `dist`, for use if the profile is `release`; returns whether there is a Python to do it
/// with.
pub(crate) fn wheel(root: &Path, dist: &Path, profile: &str) -> Result<bool, Failure> {
    let Some(place) = Place::prepare(root)? else { return Ok(false) };
    let dist = dist.to_str().ok_or("the directory's name is not UTF-8")?;
    let profile = if profile == "release" { "release" } else { "dev" };
    place.run("maturin", &["build", "--profile", profile, "--quiet", "--out", dist])?;
    Ok(true)
}

/// Installs the wheel in `dist` in a fresh environment, from nowhere else, and runs there what the book shows; says
/// whether there is one.
pub(crate) fn try_wheel(root: &Path, dist: &Path) -> Result<bool, Failure> {
    let mut all = files::list(dist)?.into_iter();
    let Some(wheel) = all.find(|file| file.extension().is_some_and(|end| end == "whl")) else {
        return Ok(false);
    };
    let package = dist.join("fresh");
    let environment = package.join("venv");
    let place = Place { target: package.clone(), environment, package };
    let _ = fs::remove_dir_all(&place.package);
    files::make(&place.package)?;
    place.run("python3", &["-m", "venv", "venv"])?;
    let wheel = wheel.to_str().ok_or("the wheel's name is not UTF-8")?;
    place.run("pip", &["install", "--quiet", "--no-index", "--no-deps", wheel])?;
    let chapter = files::read(&root.join(CHAPTER))?;
    let mut count = 0;
    for listing in listings(&chapter) {
        files::write(&place.package.join("listing.py"), listing)?;
        // Apart from the environment of the program that calls, and from this directory.
        place.run("python", &["-I", "listing.py"])?;
        count += 1;
    }
    if count == 0 {
        return Err(format!("{CHAPTER} has no listing that runs without other packages"));
    }
    fs::remove_dir_all(&place.package).map_err(|error| format!("removing it: {error}"))?;
    Ok(true)
}

/// The chapter's programs that need nothing but the package.
fn listings(chapter: &str) -> impl Iterator<Item = &str> {
    let blocks = chapter.split("```python\n").skip(1);
    let listings = blocks.filter_map(|block| block.split("```").next());
    listings.filter(|listing| !listing.contains("numpy"))
}

/// Why nothing is done.
pub(crate) const NONE: &str = "there is no Python 3.11 or later with the module venv";

/// Where the package is, and what it is built with.
struct Place {
    package: PathBuf,
    target: PathBuf,
    environment: PathBuf,
}

impl Place {
    /// Makes the environment, unless it is there; `None` if there is no Python for it.
    fn prepare(root: &Path) -> Result<Option<Self>, Failure> {
        let package = root.join("edge/python");
        let target = target(root).join("python");
        let place = Self { package, environment: target.join("venv"), target };
        let wanted = place.package.join("requirements.txt");
        let wanted = files::read(&wanted)?;
        let done = place.environment.join("requirements.txt");
        if fs::read_to_string(&done).is_ok_and(|text| text == wanted) {
            return Ok(Some(place));
        }
        let mut probe = Command::new("python3");
        probe.args(["-c", PROBE]).stdout(Stdio::null()).stderr(Stdio::null());
        if !probe.status().is_ok_and(|status| status.success()) {
            return Ok(None);
        }
        let environment = place.environment.to_string_lossy().into_owned();
        place.run("python3", &["-m", "venv", "--clear", &environment])?;
        place.run(
            "pip",
            &["install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS],
        )?;
        files::write(&done, &wanted)?;
        Ok(Some(place))
    }

    /// Runs a program of the environment, or of the system, in the package's directory.
    fn run(&self, program: &str, words: &[&str]) -> Result<(), Failure> {
        self.run_with(&[], program, words)
    }

    /// The same with variables set.
    fn run_with(
        &self,
        variables: &[(&str, &str)],
        program: &str,
        words: &[&str],
    ) -> Result<(), Failure> {
        let set: String =
            variables.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        eprintln!("$ {set}{program} {}", words.join(" "));
        let own = self.environment.join("bin").join(program);
        let mut command = Command::new(if own.exists() { own } else { PathBuf::from(program) });
        command.args(words).current_dir(&self.package);
        command.env("VIRTUAL_ENV", &self.environment).env("CARGO_TARGET_DIR", &self.target);
        command.envs(variables.iter().copied());
        watch(command)
    }
}

const CHAPTER: &str = "docs/book/src/python.md";
const REQUIREMENTS: &str = "requirements.txt";

/// Ends well where an environment can be made.
const PROBE: &str = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))";
