//! The same programs with the library in the place of `libibverbs.so.1`, and not in front of it.

use super::cm;
use super::compiled::Compiled;
use super::support::{self, Place, is_installed, pair};
use super::table::{UCX, UCX_TRANSPORTS};
use super::{must, perftest, pingpong, ucx_with};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory in which libibverbs is ours; it is gone afterwards.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static MADE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let id = MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("adverb-drop-in-{}-{id}", std::process::id());
        let place = std::env::temp_dir().join(name);
        std::fs::create_dir(&place).unwrap();
        for name in ["libibverbs.so.1", "libibverbs.so"] {
            symlink(support::library().canonicalize().unwrap(), place.join(name)).unwrap();
        }
        Self(place)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The environment of a program that finds it.
    pub(crate) fn set(&self) -> [(&str, &str); 2] {
        [("LD_PRELOAD", ""), ("LD_LIBRARY_PATH", self.0.to_str().unwrap())]
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Goal: programs that vendors' libraries come with, which want all that is private to rdma-core, start and run.
#[test]
fn perftest_runs_with_the_library_in_the_place_of_libibverbs() {
    if !is_installed("ib_send_bw") {
        return;
    }
    let directory = Directory::new();
    for path in support::PATHS {
        for command in
            ["ib_send_bw", "ib_write_lat", "ib_read_lat", "ib_atomic_bw", "ib_send_lat -e"]
        {
            let place = Place::Here(path);
            must(pair(&perftest(command, place), place, &directory.set()));
        }
    }
}

/// Goal: UCX, which takes no device whose files it does not find, finds them.
#[test]
fn ucx_runs_with_the_library_in_the_place_of_libibverbs() {
    if !is_installed("ucx_perftest") {
        return;
    }
    let directory = Directory::new();
    for path in support::PATHS {
        for transports in UCX_TRANSPORTS {
            must(ucx_with(UCX[0], transports, Place::Here(path), &directory.set()));
        }
    }
}

/// Goal: the kernel's device under the real librdmacm is emulated, too.
#[test]
fn the_programs_of_rdma_cm_run_with_the_library_in_the_place_of_libibverbs() {
    if !is_installed("rping") || !is_installed("rstream") {
        return;
    }
    let directory = Directory::new();
    for path in support::PATHS {
        for name in ["rping -v -V", "ucmatose -c 100", "udaddy", "rdma_client", "rstream"] {
            let line = cm::RDMACM.iter().chain(&cm::RSOCKETS).find(|line| line.name == name);
            must(cm::run_with(line.unwrap(), Place::Here(path), &directory.set()));
        }
    }
}

/// Goal: librdmacm, which has structures of the kernel turned by libibverbs, needs no real one behind.
#[test]
fn the_programs_of_rdma_cm_run_where_there_is_no_other_libibverbs() {
    if !is_installed("rping") || !is_installed("udaddy") {
        return;
    }
    let directory = Directory::new();
    let set = [directory.set().as_slice(), &[("ADVERB_IBVERBS", "off")]].concat();
    for name in ["rping -v -V", "udaddy"] {
        let line = cm::RDMACM.iter().find(|line| line.name == name);
        must(cm::run_with(line.unwrap(), Place::Here("shm"), &set));
    }
}

#[test]
fn a_program_that_loads_the_drop_in_by_name_and_version_writes_by_a_device() {
    let Some(program) = Compiled::new("loaded", &["-ldl"]) else {
        return;
    };
    let directory = Directory::new();
    let said = support::alone(program.path(), &["soft_lo"], &directory.set());
    assert!(said.lines().any(|line| line == "written"), "{said}");
}

/// Goal: a library that is told that the real one is itself forwards to none.
#[test]
fn the_drop_in_does_not_forward_to_itself() {
    if !is_installed("ibv_devices") {
        return;
    }
    let directory = Directory::new();
    let own = directory.path().join("libibverbs.so.1");
    let set = [directory.set().as_slice(), &[("ADVERB_IBVERBS", own.to_str().unwrap())]].concat();
    let said = support::alone("ibv_devices", &[], &set);
    assert!(said.contains("soft_lo"), "{said}");
}

/// Goal: Python's modules, which want names of many versions, load, and see the devices.
#[test]
fn pyverbs_finds_the_devices_of_the_drop_in() {
    let python = "/usr/bin/python3"; // The system's own: others do not have the system's modules.
    let list = "import pyverbs.device as d, pyverbs.qp, pyverbs.mr, pyverbs.cq, pyverbs.srq, pyverbs.cmid\n\
                print([x.name.decode() for x in d.get_device_list()])\n";
    let has = Command::new(python).args(["-c", "import pyverbs.device"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        println!("skipped: no pyverbs: it is not installed");
        return;
    }
    let directory = Directory::new();
    let said = support::alone(python, &["-c", list], &directory.set());
    assert!(said.contains("'soft_lo'"), "{said}");
}

/// Hides the real libibverbs from the command that follows.
const WITHOUT_RDMA_CORE: &str = r#"
    set -e
    work=$(mktemp -d)
    mount -t tmpfs none "$work"
    mkdir "$work/up" "$work/w"
    real=$(dirname "$(ldconfig -p | sed -n 's/.*libibverbs.so.1 .*=> //p' | head -n 1)")
    for file in "$real"/libibverbs.so*; do mknod "$work/up/$(basename "$file")" c 0 0; done
    mount -t overlay overlay -o "lowerdir=$real,upperdir=$work/up,workdir=$work/w" "$real"
    for file in "$real"/libibverbs.so*; do test ! -e "$file"; done
    echo hidden
    exec "$@"
"#;

/// Goal: an image without rdma-core needs no more than the drop-in: devices are listed, traffic flows.
#[test]
fn the_drop_in_needs_no_rdma_core() {
    if !is_installed("ibv_rc_pingpong") || !is_installed("ibv_devinfo") {
        return;
    }
    let directory = Directory::new();
    let unshare = ["-m", "sh", "-c", WITHOUT_RDMA_CORE, "sh"];
    let output = Command::new("unshare").args(unshare).arg("true").output();
    if !output.as_ref().is_ok_and(|output| output.status.success()) {
        println!("skipped: no overlay in a mount namespace: {output:?}");
        return;
    }
    let without = Command::new("unshare").args(unshare).arg("ibv_devices").output().unwrap();
    assert!(!without.status.success(), "there is a libibverbs still: {without:?}");
    let within = |command: &str| {
        format!(
            "{command} & server=$!; trap 'kill $server' EXIT; sleep 1; {command} 127.0.0.1 && wait $server; code=$?; trap - EXIT; exit $code"
        )
    };
    let place = Place::Here("udp");
    let port = support::port();
    let both = within(&format!("{} -p {port}", pingpong("ibv_rc_pingpong", place)));
    for script in [both.as_str(), "ibv_devinfo -d soft_lo"] {
        let mut command = Command::new("unshare");
        command.args(unshare).args(["bash", "-c", script]).envs(directory.set());
        let output = support::ended(command.stdout(std::process::Stdio::piped()).spawn().unwrap());
        assert!(output.status.success(), "{script}: {output:?}");
    }
}
