//! What `--help` says beyond the options: examples, exit codes, the environment. Manual pages have the same.
//!
//! Each fact stands here once; `docs/environment.md` is the table of this file, which a test compares.

/// A variable that programs on the library, or its tools, look at.
#[derive(Debug)]
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    pub(crate) values: &'static str,
    pub(crate) effect: &'static str,
    pub(crate) readers: Readers,
}

/// Which programs look at a variable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Readers {
    /// Every program on the library, the command included.
    All,
    /// The command.
    Command,
    /// Programs on `libadverb_ibverbs.so`.
    Ibverbs,
    /// Programs on `libadverb_sockets.so`.
    Sockets,
}

impl Readers {
    const fn title(self) -> &'static str {
        match self {
            Self::All => "Every program that uses the library, the command included",
            Self::Command => "The command adverb",
            Self::Ibverbs => "Programs under `adverb run`",
            Self::Sockets => "Programs under `adverb sockets`",
        }
    }
}

/// All of them.
pub(crate) const VARIABLES: [Variable; 14] = [
    variable(
        Readers::All,
        "ADVERB_PATH",
        "auto, udp, shm, ring, xdp",
        "the way to peers: the best, UDP, shared memory, its rings alone, or frames past the kernel",
    ),
    variable(
        Readers::All,
        "ADVERB_LOG",
        "error to trace, or target=level",
        "the log, on standard error",
    ),
    variable(
        Readers::All,
        "ADVERB_PCAP",
        "FILE",
        "packets of a process for Wireshark; with .PID before the extension while another process writes to FILE",
    ),
    variable(
        Readers::All,
        "ADVERB_IBVERBS",
        "FILE, off",
        "the library to use for hardware instead of the system's libibverbs; off: none",
    ),
    variable(
        Readers::Command,
        "ADVERB_NODES",
        "HOST,HOST or a name with {}",
        "the nodes of `adverb mesh`, as --nodes",
    ),
    variable(Readers::Command, "ADVERB_SIZE", "N", "how many nodes a mesh has, as --ranks"),
    variable(
        Readers::Command,
        "ADVERB_IBVERBS_LIBRARY",
        "FILE",
        "libadverb_ibverbs.so for `run` and `env`, as --library",
    ),
    variable(
        Readers::Command,
        "ADVERB_SOCKETS_LIBRARY",
        "FILE",
        "libadverb_sockets.so for `sockets`, as --library",
    ),
    variable(Readers::Command, "NO_COLOR", "anything", "no colours on terminals"),
    variable(
        Readers::Ibverbs,
        "ADVERB_DEVICES",
        "names, soft, hw",
        "the devices that the program sees, in this order, as --devices",
    ),
    variable(
        Readers::Ibverbs,
        "ADVERB_EXPLAIN",
        "1",
        "why a call is refused, on standard error, as --explain",
    ),
    variable(
        Readers::Ibverbs,
        "ADVERB_PART_ID",
        "N",
        "the vendor_part_id that devices report; perftest sends inline only on parts that it knows, such as 25408",
    ),
    variable(
        Readers::Sockets,
        "ADVERB_SOCKETS_CONFIG",
        "FILE",
        "settings; `adverb sockets parameters` lists them, and each as a variable",
    ),
    variable(
        Readers::Sockets,
        "ADVERB_SOCKETS_SHM_DIR",
        "DIRECTORY",
        "where programs meet, instead of /dev/shm",
    ),
];

const fn variable(
    readers: Readers,
    name: &'static str,
    values: &'static str,
    effect: &'static str,
) -> Variable {
    Variable { name, values, effect, readers }
}

/// Examples of every command, by the words that it is called with.
const EXAMPLES: [(&str, &str); 15] = [
    ("", "adverb bench\nadverb doctor\nadverb top"),
    ("allreduce", "adverb allreduce\nadverb allreduce --local 8 -s 64M --topology ring"),
    (
        "bench",
        "adverb bench                         ten seconds: the main figures of this machine\n\
         adverb bench --html bench.html       every size, drawn\n\
         adverb bench -o before.json\n\
         adverb bench --compare before.json   the same again, beside it\n\
         adverb bench --server                on one machine\n\
         adverb bench node-1 -s 64,4K,1M      on another one",
    ),
    (
        "counters",
        "adverb counters\nadverb counters -d soft_eth0 --watch 1\nadverb counters --prometheus",
    ),
    ("devices", "adverb devices\nadverb devices -v\nadverb devices --json"),
    ("devinfo", "adverb devinfo -d soft_lo -v\nadverb devinfo --list"),
    ("doctor", "adverb doctor\nadverb doctor --json"),
    ("generate", "adverb generate target/generated"),
    ("env", "eval \"$(adverb env)\"\nadverb env --path udp"),
    (
        "mesh",
        "adverb mesh --local 4\n\
         adverb mesh --nodes node-0,node-1,node-2 -D 60 --svg mesh.svg   the same on each node\n\
         adverb mesh --local 8 --kill-every 5",
    ),
    (
        "pingpong",
        "adverb pingpong                      both ends on this machine\n\
         adverb pingpong --server             on one machine\n\
         adverb pingpong node-1 -n 100000     on another one",
    ),
    ("run", "adverb run -- ib_write_bw\nadverb run --path udp -- ibv_rc_pingpong -d soft_lo -g 0"),
    (
        "sockets",
        "adverb sockets -- redis-server\nadverb sockets --profile latency -- ./server\nadverb sockets stat --interval 1 --cycles 0",
    ),
    ("sockets parameters", "adverb sockets parameters\nadverb sockets parameters --json"),
    ("sockets stat", "adverb sockets stat -v 2\nadverb sockets stat --prometheus"),
];

/// Of commands that say nothing else.
fn exit_codes(words: &str) -> &'static str {
    match words {
        "doctor" => "Exit codes: 0 nothing is broken, 1 something is, 2 wrong usage.",
        "run" | "sockets" => {
            "Exit codes: those of the program; 127 if there is none, 126 if it cannot be started; 2 wrong usage, 1 any other \
             failure."
        }
        _ => "Exit codes: 0 ok, 1 failure, 2 wrong usage, 77 this machine lacks what it takes.",
    }
}

/// Adds examples and exit codes to the help of every command, and the environment to that of the whole.
pub(crate) fn explained(command: clap::Command) -> clap::Command {
    let command = with_examples(command, "");
    let before = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    command.after_help(format!("{before}\n\n{}", environment()))
}

fn with_examples(command: clap::Command, words: &str) -> clap::Command {
    let below = |name: &str| format!("{words} {name}").trim_start().to_owned();
    let command = command.mut_subcommands(|sub| {
        let words = below(sub.get_name());
        with_examples(sub, &words)
    });
    let mut parts: Vec<String> =
        command.get_after_help().map(ToString::to_string).into_iter().collect();
    let has = |parts: &[String], what: &str| parts.iter().any(|part| part.contains(what));
    if let Some((_, lines)) = EXAMPLES.iter().find(|(known, _)| *known == words) {
        parts.push(format!("Examples:\n  {}", lines.replace('\n', "\n  ")));
    }
    if !has(&parts, "Exit codes:") {
        parts.push(exit_codes(words).to_owned());
    }
    command.after_help(parts.join("\n\n"))
}

/// The variables, as the end of the help.
fn environment() -> String {
    let mut text = String::new();
    for readers in [Readers::All, Readers::Command, Readers::Ibverbs, Readers::Sockets] {
        text.push_str(&format!(
            "{}Environment: {}\n",
            if text.is_empty() { "" } else { "\n" },
            readers.title()
        ));
        for Variable { name, values, effect, .. } in of(readers) {
            text.push_str(&format!("  {name}: {values}\n      {effect}\n"));
        }
    }
    text.trim_end().to_owned()
}

fn of(readers: Readers) -> impl Iterator<Item = &'static Variable> {
    VARIABLES.iter().filter(move |variable| variable.readers == readers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page of the environment, as it has to be.
    fn page() -> String {
        let mut text = "# Environment\n\nThe variables that Adverb looks at; `adverb --help` has the same. Empty is as good as unset.\n".to_owned();
        for readers in [Readers::All, Readers::Command, Readers::Ibverbs, Readers::Sockets] {
            text.push_str(&format!(
                "\n## {}\n\n| variable | values | effect |\n|---|---|---|\n",
                readers.title()
            ));
            for Variable { name, values, effect, .. } in of(readers) {
                text.push_str(&format!("| `{name}` | {values} | {effect} |\n"));
            }
        }
        text
    }

    #[test]
    fn the_page_of_the_environment_has_what_the_help_has() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/environment.md");
        let found = std::fs::read_to_string(path).unwrap_or_default();
        let due = page();
        assert!(found == due, "docs/environment.md should be:\n{due}");
    }

    /// Sources outside tests name no variable that the table does not have.
    #[test]
    fn every_variable_that_a_source_reads_is_in_the_table() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let mut names = std::collections::BTreeSet::new();
        for room in ["edge", "host"] {
            for package in std::fs::read_dir(format!("{root}/{room}")).unwrap().flatten() {
                collect(&package.path().join("src"), &mut names);
            }
        }
        assert!(names.len() > 5, "the sources were found: {names:?}");
        let is_known = |name: &&String| VARIABLES.iter().any(|variable| variable.name == **name);
        // Parameters of the sockets have a list of their own, and tests their own variables.
        let is_other = |name: &&String| {
            name.as_str() == "ADVERB_"
                || name.starts_with("ADVERB_SOCKETS_")
                || name.starts_with("ADVERB_TEST_")
        };
        let unknown: Vec<_> =
            names.iter().filter(|name| !is_known(name) && !is_other(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?} are read and not in the table of help.rs");
    }

    fn collect(directory: &std::path::Path, names: &mut std::collections::BTreeSet<String>) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                collect(&path, names);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                for part in text.split('"').filter(|part| part.starts_with("ADVERB_")) {
                    let is_name =
                        part.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
                    if is_name {
                        names.insert(part.to_owned());
                    }
                }
            }
        }
    }
}
