//! The README's commands as a script: what `dist --check` does in its fresh root is what the page says.
//!
//! Two network namespaces stand for two machines: a server runs in `a`, and what names `HOST` in `b`. A line that is
//! neither known to be done by the gate nor a command of `adverb` is an error, so page and script cannot differ.

use std::fmt::Write;

use crate::Failure;
use crate::dist::Origin;

/// One line of the page's blocks of commands.
#[derive(Debug, Eq, PartialEq)]
enum Line {
    /// Done by the gate, or by the check before the script runs: builds, tests and the installation.
    Elsewhere,
    /// Runs until the next command has ended.
    Server(String),
    /// Runs to its end.
    Client(String),
}

/// A shell script that runs the commands of `page` in order: where `adverb` is installed, or where there is a clone in
/// `/src`, all but the tests.
pub(crate) fn script(page: &str, origin: Origin) -> Result<String, Failure> {
    let mut script = PROLOGUE.to_owned();
    for line in commands(page) {
        let is_build = line.starts_with("cargo ") || line.starts_with(INSTALL);
        let written = match classify(line)? {
            _ if is_build && origin == Origin::Source && line != TESTS => {
                writeln!(script, "build {}", line.trim_start_matches("sudo "))
            }
            Line::Elsewhere => Ok(()),
            Line::Server(command) => writeln!(script, "serve {command}"),
            Line::Client(command) => {
                let namespace = if command.contains(HOST) { "b" } else { "a" };
                let command = command.replace(HOST, ADDRESS);
                writeln!(script, "use {namespace} {command}")
            }
        };
        written.map_err(|error| error.to_string())?;
    }
    script.push_str(EPILOGUE);
    Ok(script)
}

/// The lines of blocks of shell commands, without their comments.
fn commands(page: &str) -> impl Iterator<Item = &str> {
    let blocks = page.split("\n```sh\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("\n```").next().unwrap_or_default().lines());
    lines
        .map(|line| line.split(" #").next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty())
}

fn classify(line: &str) -> Result<Line, Failure> {
    if ELSEWHERE.iter().any(|start| line.starts_with(start)) {
        return Ok(Line::Elsewhere);
    }
    let built = line.strip_prefix("cargo run --release --bin adverb -- ");
    let arguments = built.or_else(|| line.strip_prefix("adverb ")).ok_or_else(|| {
        format!("README.md: {line:?}: a line is a command of adverb, or begins with one of {ELSEWHERE:?}")
    })?;
    Ok(match arguments.strip_suffix(" &") {
        Some(arguments) => Line::Server(format!("adverb {arguments}")),
        None if arguments.ends_with("--server") => Line::Server(format!("adverb {arguments}")),
        None => Line::Client(format!("adverb {arguments}")),
    })
}

const ELSEWHERE: [&str; 3] = ["cargo xtask ", "cargo install --path ", INSTALL];
const INSTALL: &str = "sudo dpkg -i target/dist/";
/// They have a gate of their own.
const TESTS: &str = "cargo xtask test";

/// What the page calls the other machine, and its address in the namespaces.
const HOST: &str = "HOST";
const ADDRESS: &str = "10.77.0.1";

/// A client starts when its server listens; `timeout` bounds it. A server that has been used ends, and the next one
/// starts when nothing listens any more: what the last one leaves would be taken for it. perftest measures the processor's
/// clock before it reports, and refuses to where other work has disturbed that: this pair runs again.
const PROLOGUE: &str = r#"set -eu
mkdir -p /run/netns /tmp/work
cd /tmp/work
ip netns add a
ip netns add b
ip link add va netns a type veth peer name vb netns b
for end in a b; do
    ip -n $end link set lo up
    ip -n $end link set v$end up
done
ip -n a addr add 10.77.0.1/24 dev va
ip -n b addr add 10.77.0.2/24 dev vb
server=
DISTURBED="^Correlation coefficient"
listens() {
    [ -n "$(ip netns exec a ss -Hltn)" ]
}
end() {
    [ -n "$server" ] || return 0
    kill -TERM -$server 2>/dev/null || true
    server=
    for try in $(seq 100); do
        listens || return 0
        sleep 0.1
    done
    echo "a server still listens ten seconds after SIGTERM"
    exit 1
}
build() {
    echo "$ $*"
    (cd /src && eval "$*")
}
serve() {
    echo "$ $* &"
    start "$@"
}
start() {
    end
    served=$*
    setsid ip netns exec a "$@" >/tmp/work/server 2>&1 &
    server=$!
    # A client that is started before there is a listener may fail, or never end: redis-benchmark 7.0 spins.
    for try in $(seq 100); do
        listens && return 0
        sleep 0.1
    done
    tail -n 20 /tmp/work/server
    end
    exit 1
}
use() {
    namespace=$1
    shift
    echo "$ $*"
    for try in $(seq 5); do
        if timeout 240 ip netns exec $namespace "$@" >/tmp/work/out 2>/tmp/work/errors && [ -s /tmp/work/out ]; then
            tr '\r' '\n' </tmp/work/out | grep . | tail -n 3
            end
            return
        fi
        grep -q "$DISTURBED" /tmp/work/errors || break
        echo "again: perftest could not measure the clock of the processor"
        start $served
    done
    tail -n 20 /tmp/work/out /tmp/work/errors /tmp/work/server
    end
    exit 1
}
"#;

const EPILOGUE: &str = "cd /\nip netns del a\nip netns del b\numount /run/netns\nrm -rf /tmp/work /run/netns /run/mount\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_leads_to_a_figure_two_machines_redis_and_perftest() {
        let page = include_str!("../../README.md");
        let script = script(page, Origin::Package).unwrap();
        for line in [
            "\nuse a adverb bench\n",
            "\nserve adverb bench --server\nuse b adverb bench 10.77.0.1\n",
            "\nserve adverb run -- ib_write_bw\nuse a adverb run -- ib_write_bw 127.0.0.1\n",
            "\nserve adverb sockets -- redis-server\nuse a adverb sockets -- redis-benchmark",
        ] {
            assert!(script.contains(line), "{line:?} is not in\n{script}");
        }
    }

    #[test]
    fn a_line_that_the_check_does_not_know_is_refused() {
        assert_eq!(classify("cargo xtask test"), Ok(Line::Elsewhere));
        assert!(classify("make install").unwrap_err().contains("make install"));
        let page = "\n```sh\nadverb devices   # all\ncurl x | sh\n```\n";
        assert!(script(page, Origin::Package).is_err());
    }

    #[test]
    fn from_a_clone_everything_is_built_but_the_tests() {
        let script = script(include_str!("../../README.md"), Origin::Source).unwrap();
        for line in [
            "\nbuild cargo run --release --bin adverb -- bench\n",
            "\nbuild cargo xtask dist\nbuild dpkg -i target/dist/adverb_*.deb\n",
            "\nserve adverb bench --server\n",
        ] {
            assert!(script.contains(line), "{line:?} is not in\n{script}");
        }
        assert!(!script.contains(TESTS));
    }
}
