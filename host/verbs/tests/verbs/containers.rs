//! Processes of one network namespace that have something else of their own, as containers of one pod or with the
//! host's network have: each finds the other, by the best path.
//!
//! | the other one has of its own | path |
//! |---|---|
//! | processes | shared memory |
//! | `/dev/shm`, of any size, read-only, or none at all | shared memory |
//! | both | shared memory |
//! | users, the same in truth | shared memory |
//! | user, with or without processes and `/dev/shm` of its own, at an address of its own | UDP |
//! | the same, at the same address | refused by name |
//! | network | UDP (`namespaces.rs`) |
//!
//! Needs root and `unshare`; says so and does nothing where they are missing.

use crate::agent::Agent;
use crate::alone::{alone, is_alone, program};
use crate::namespaces::one_way;
use crate::pair::{Setup, eventually};
use crate::path::Path;
use crate::talker::signal;
use crate::users::add_addresses;
use adverb_sys::process;
use std::process::Command;
use std::time::Instant;

/// Namespaces of processes.
const PROCESSES: &[&str] = &["-p", "-f", "--kill-child", "--mount-proc"];
/// Namespaces of mounts.
const MOUNTS: &[&str] = &["-m", "--propagation", "private"];

/// A process of this test program that has these namespaces of its own, and has run a script there before.
fn contained(flags: &[&str], script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(flags).args(["sh", "-c", &format!("{script}\nexec \"$@\""), "sh"]).arg(program());
    command
}

fn start(command: Command) -> Agent {
    Agent::start_by(command, "soft_lo", 1)
}

/// Says why not, if containers cannot be had.
fn has_containers(flags: &[&str]) -> bool {
    let listed = || contained(flags, "").arg("--list").output();
    let able = is_alone() && listed().is_ok_and(|output| output.status.success());
    if !able {
        println!("skipped: no namespaces for unshare {}, or not root", flags.join(" "));
    }
    able
}

/// Data by every operation in both directions, over shared memory. Nothing is sent again: there is no time-out.
fn share_memory(a: &mut Agent, b: &mut Agent) {
    let (x, y) = Agent::introduce(a, b, &Setup { timeout: 0, ..Setup::default() });
    assert_eq!(a.ask(&format!("path {}", x.index)), "shm");
    assert_eq!(b.ask(&format!("path {}", y.index)), "shm");
    one_way(a, b, x, y);
    one_way(b, a, y, x);
}

/// Goal: a container of the same pod, whose processes cannot see ours nor be seen, is reached by memory, whichever of
/// them comes first; so are two that see neither each other nor us. None keeps a processor busy afterwards.
#[test]
fn processes_that_cannot_see_each_other_share_memory() {
    alone("containers::processes_that_cannot_see_each_other_share_memory", || {
        if !has_containers(PROCESSES) {
            return;
        }
        let here = || Command::new(program());
        let there = || contained(PROCESSES, "");
        for [first, second] in [[here(), there()], [there(), here()], [there(), there()]] {
            let [mut a, mut b] = [first, second].map(start);
            share_memory(&mut a, &mut b);
            drop(b);
            let (start, before) = (Instant::now(), a.cpu());
            a.ask("idle 1000");
            let (used, idle) = (a.cpu() - before, start.elapsed());
            assert!(used < idle / 2, "{used:?} of {idle:?}, with nothing to do");
        }
    });
}

/// Goal: what there is of `/dev/shm` makes no difference.
#[test]
fn a_container_with_any_dev_shm_shares_memory() {
    alone("containers::a_container_with_any_dev_shm_shares_memory", || {
        if !has_containers(MOUNTS) {
            return;
        }
        let sized = |size: &str| format!("mount -t tmpfs -o size={size} none /dev/shm || exit 99");
        let full = format!("{}; cat /dev/zero > /dev/shm/all 2>/dev/null", sized("1m"));
        let absent = "mount -t tmpfs -o ro,size=4k,mode=0 none /dev || exit 99";
        let scripts = [
            sized("64m"),
            sized("1m"),
            sized("512k"),
            sized("16k"),
            full,
            format!("{} && mount -o remount,ro /dev/shm || exit 99", sized("1m")),
            absent.to_owned(),
            // Filled while it is in use.
            format!("{}; (sleep 0.1; cat /dev/zero > /dev/shm/all 2>/dev/null) &", sized("64m")),
        ];
        let mut here = start(Command::new(program()));
        for script in scripts {
            println!("{script}");
            let mut there = start(contained(MOUNTS, &script));
            share_memory(&mut here, &mut there);
            // No file is there that a namespace could leave behind when it ends.
            let files = std::fs::read_dir(format!("/proc/{}/root/dev/shm", there.pid()));
            let files = files.into_iter().flatten().flatten().map(|file| file.file_name());
            assert_eq!(files.filter(|name| name != "all").count(), 0, "{script}");
            // And by itself, as the first that opens a device.
            drop(start(contained(
                &[MOUNTS, &["-n"]].concat(),
                &format!("{script}\nip link set lo up"),
            )));
        }
        let both = [PROCESSES, MOUNTS].concat();
        let mut there = start(contained(&both, &sized("512k")));
        share_memory(&mut here, &mut there);
    });
}

/// Goal: a container of another user namespace, whose users have other numbers, is of the same user if the kernel
/// says so.
#[test]
fn a_container_that_counts_its_users_differently_shares_memory() {
    alone("containers::a_container_that_counts_its_users_differently_shares_memory", || {
        let unprivileged = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        let by = |flags: &[&str]| {
            let mut command = Command::new("setpriv");
            command.args(unprivileged).args(flags).arg(program());
            command
        };
        let rootless = ["unshare", "-U", "-r"];
        let able = by(&rootless).arg("--list").output();
        if !is_alone() || !able.is_ok_and(|output| output.status.success()) {
            println!("skipped: no setpriv, or no user namespaces for all users");
            return;
        }
        for [first, second] in [[&[][..], &rootless], [&rootless, &[]]] {
            let [mut a, mut b] = [first, second].map(|flags| start(by(flags)));
            share_memory(&mut a, &mut b);
        }
    });
}

/// Goal: a container of another user that has everything else of its own but the network is reached by packets at
/// an address of its own, and refused by name at ours.
#[test]
fn a_container_of_another_user_gets_packets_at_an_address_of_its_own() {
    alone("containers::a_container_of_another_user_gets_packets_at_an_address_of_its_own", || {
        let both = [PROCESSES, MOUNTS].concat();
        if !has_containers(&both) {
            return;
        }
        let setup = Setup { gid_index: add_addresses(), ..Setup::default() };
        let theirs = || {
            let script = "mount -t tmpfs -o size=1m none /dev/shm || exit 99\n\
                exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"";
            contained(&both, script)
        };
        let here = Command::new(program());
        let mut here = Agent::start_by(here, "soft_one", setup.gid_index);
        let mut there = Agent::start_by(theirs(), "soft_two", setup.gid_index);
        let (x, y) = Agent::introduce(&mut here, &mut there, &setup);
        for (agent, end) in [(&mut here, &x), (&mut there, &y)] {
            assert_eq!(agent.ask(&format!("path {}", end.index)), "udp");
        }
        one_way(&mut here, &mut there, x, y);
        one_way(&mut there, &mut here, y, x);
        let mut ours = Agent::start_over(Path::Udp);
        let (x, z) = (ours.qp(), ours.qp());
        ours.connect(&z, x.qp, &Setup::default());
        let mut third = Agent::start_by(theirs(), "soft_lo", 1);
        let y = third.qp();
        let refused = third.refused(&y, x.qp, &Setup::default());
        assert!(refused.contains("by a program of another user"), "{refused}");
    });
}

/// Goal: a newcomer that cannot look into a process that is stopped gets the registry from one that is not.
#[test]
fn a_stopped_process_keeps_no_container_out() {
    alone("containers::a_stopped_process_keeps_no_container_out", || {
        if !has_containers(PROCESSES) {
            return;
        }
        let here = || start(Command::new(program()));
        let (stopped, mut lives) = ([here(), here()], here());
        for agent in &stopped {
            signal(agent.pid(), "-STOP");
            eventually("it stops", || process::is_stopped(agent.pid()));
        }
        let mut there = start(contained(PROCESSES, ""));
        share_memory(&mut lives, &mut there);
    });
}

/// Goal: another user that takes all names by which devices would be found keeps them from nothing.
#[test]
fn names_that_another_user_has_taken_keep_no_two_apart() {
    alone("containers::names_that_another_user_has_taken_keep_no_two_apart", || {
        let mut unprivileged = Command::new("setpriv");
        unprivileged.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program());
        if !has_containers(PROCESSES) {
            return;
        }
        let mut squatter = start(unprivileged);
        assert_eq!(squatter.ask(&format!("squat {}", process::user())), "has 8");
        let mut here = start(Command::new(program()));
        let mut there = start(contained(PROCESSES, ""));
        share_memory(&mut here, &mut there);
        share_memory(&mut here, &mut start(Command::new(program())));
    });
}

/// Goal: a process of the same user that poses as another one's device is refused, and counted; the one that it poses
/// as is reached as before.
#[test]
fn a_device_is_met_by_its_own_process_only() {
    alone("containers::a_device_is_met_by_its_own_process_only", || {
        if !is_alone() {
            println!("skipped: no namespace");
            return;
        }
        let [mut victim, mut honest, mut posing] = [(); 3].map(|()| start(Command::new(program())));
        let count = |agent: &mut Agent| agent.counter("refused_neighbours");
        let (victims, honests) = (victim.ask("listener"), honest.ask("listener"));
        assert_eq!(posing.ask(&format!("pose {victims} {honests}")), "refused");
        assert_eq!(count(&mut victim), 1);
        share_memory(&mut victim, &mut honest);
        share_memory(&mut victim, &mut posing);
        assert_eq!((count(&mut victim), count(&mut honest)), (1, 0));
    });
}
