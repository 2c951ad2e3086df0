//! The gate: one list of steps that a change passes at the desk and on the build machine alike.
//!
//! Every step is one call of `cargo`, shown before it runs, and the first that fails ends the run.
//! What the steps check is decided elsewhere: lints in the workspace manifest, facts about the tree
//! in `tidy`, seeds in the simulated network's own tests.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::program::{LINTED, target, watch};
use crate::{DEFAULT_SECONDS, Failure, api, book, dist, files, html, suite, tidy};

/// One step of the gate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    Fmt,
    Clippy,
    Tidy,
    Test,
    Doc,
    Api,
    Seeds,
}

impl Step {
    /// In the order in which they run: the quick ones first.
    const ALL: [Self; 7] =
        [Self::Fmt, Self::Clippy, Self::Tidy, Self::Doc, Self::Api, Self::Test, Self::Seeds];

    const fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Clippy => "clippy",
            Self::Tidy => "tidy",
            Self::Test => "test",
            Self::Doc => "doc",
            Self::Api => "api",
            Self::Seeds => "seeds",
        }
    }

    fn named(name: &str) -> Result<Self, Failure> {
        let known = Self::ALL.map(Self::name).join(" ");
        let step = Self::ALL.into_iter().find(|step| step.name() == name);
        step.ok_or_else(|| format!("no such step: {name}; there are {known}"))
    }

    fn run(self, root: &Path) -> Result<(), Failure> {
        match self {
            Self::Fmt => cargo(root, &["fmt", "--all", "--check"], &[]),
            Self::Clippy => {
                // Where every build has the lints, all is checked but what is built for measurements alone.
                let has_lints = env::var_os(LINTED[0].0).is_some_and(|set| set == LINTED[0].1);
                let targets: &[&str] = if has_lints {
                    &["--bench", "*"]
                } else {
                    &["--all-targets", "--all-features"]
                };
                cargo(root, &[&["check", "--workspace"], targets].concat(), &LINTED)?;
                // What users get without features, and what they run with its own.
                cargo(root, &["check", "--package", "adverb"], &LINTED)?;
                let packages = dist::PACKAGES.iter().flat_map(|name| ["--package", name]);
                let args: Vec<&str> = ["check", "--locked"].into_iter().chain(packages).collect();
                cargo(root, &args, &LINTED)
            }
            Self::Tidy => tidy::tidy(root),
            Self::Test => suite::test(root),
            Self::Doc => {
                // The front page comes last: rustdoc makes no link to a crate that has no pages yet.
                let pages = target(root).join("doc/adverb");
                let _ = fs::remove_dir_all(&pages);
                for which in [["--workspace", "--exclude=adverb"], ["--package", "adverb"]] {
                    let args = [&["doc", "--no-deps"], &which[..]].concat();
                    // What pages are made of is what clippy has checked, or will.
                    let variables = [&LINTED[..], &[("RUSTDOCFLAGS", "-Dwarnings")]].concat();
                    cargo(root, &args, &variables)?;
                }
                let front = files::read(&pages.join("index.html"))?;
                if front.contains("[<code>") {
                    return Err("the front page of rustdoc has links that are text".to_owned());
                }
                let ours = |page: &Path| page.to_string_lossy().starts_with("adverb");
                match html::dead(&target(root).join("doc"), ours)?.join("\n") {
                    dead if dead.is_empty() => book::book(root),
                    dead => Err(dead),
                }
            }
            Self::Api => api::compare(root),
            Self::Seeds => seeds(root, DEFAULT_SECONDS),
        }
    }
}

/// Runs the steps named, or all of them.
pub(crate) fn check(root: &Path, names: &[&str]) -> Result<(), Failure> {
    let named: Result<Vec<Step>, Failure> = names.iter().map(|name| Step::named(name)).collect();
    let steps = if names.is_empty() { Step::ALL.to_vec() } else { named? };
    for step in steps {
        let start = Instant::now();
        step.run(root).map_err(|failure| format!("{}: {failure}", step.name()))?;
        eprintln!("xtask: {} passed in {:.1} s", step.name(), start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Random runs of the simulated network; a failing one prints its seed.
pub(crate) fn seeds(root: &Path, seconds: u64) -> Result<(), Failure> {
    cargo(root, &SEEDS, &[("ADVERB_SEED_SECONDS", &seconds.to_string())])
}

/// Random runs of simulated hosts with ports; a failing one prints its seed.
pub(crate) fn sim(root: &Path, seconds: u64) -> Result<(), Failure> {
    cargo(root, &SIM, &[("ADVERB_SIM_SECONDS", &seconds.to_string())])
}

/// The run that `seed` stands for, and its trace.
pub(crate) fn seed(root: &Path, seed: &str) -> Result<(), Failure> {
    let digits =
        seed.strip_prefix("0x").ok_or_else(|| format!("a seed is 0x and digits: {seed}"))?;
    let seed = u64::from_str_radix(digits, 16).map_err(|error| format!("seed {seed}: {error}"))?;
    cargo(root, &SEEDS, &[("ADVERB_SEED", &format!("{seed:#x}"))])
}

/// Random bytes into the parsers.
pub(crate) fn fuzz(root: &Path, seconds: u64) -> Result<(), Failure> {
    let seconds = seconds.to_string();
    let environment = [("ADVERB_FUZZ_SECONDS", seconds.as_str())];
    cargo(root, &FUZZ, &environment)
}

/// Runs `cargo` in the workspace, and says what it runs.
fn cargo(root: &Path, args: &[&str], environment: &[(&str, &str)]) -> Result<(), Failure> {
    let set: String = environment.iter().map(|(name, value)| format!("{name}={value} ")).collect();
    let line = format!("{set}cargo {}", args.join(" "));
    eprintln!("$ {line}");
    let mut command = Command::new("cargo");
    command.current_dir(root).args(args).envs(environment.iter().copied());
    watch(command)
}

// As all tests are built: our own assertions hold in these, too.
const SEEDS: [&str; 7] = ["test", "-p", "adverb-fabric", "--test", "seeds", "--", "--nocapture"];
const SIM: [&str; 7] = ["test", "-p", "adverb-fabric", "--test", "worlds", "--", "--nocapture"];
const FUZZ: [&str; 7] = ["test", "-p", "adverb-fuzz", "--test", "targets", "--", "--nocapture"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_found_by_its_name_and_nothing_else_is() {
        for step in Step::ALL {
            assert_eq!(Step::named(step.name()), Ok(step));
        }
        assert!(Step::named("all").unwrap_err().contains("fmt clippy tidy doc api test seeds"));
    }

    #[test]
    fn a_seed_that_is_no_hexadecimal_number_is_refused_before_anything_runs() {
        for bad in ["5eed", "0x", "0xseed", "0x10000000000000000"] {
            assert!(seed(Path::new("/nowhere"), bad).unwrap_err().contains("seed"), "{bad}");
        }
    }
}
