//! Owners that may lock little memory, of which the kernel counts a UMEM: for each user over all of its processes.
//!
//! Each test's owner is of another user, so that tests do not count for one another. UMEMs are of 4 MiB, as the hard limit may
//! be one that no test can raise: 8 MiB on many systems.

use super::PORT;
use super::place::{FAR, Pair, Running, limited_owner, run, user_role, with_namespaces};
use adverb_xdp::MemlockError;
use std::process::Command;
use std::time::Duration;

/// Goal: the documented capabilities are enough where the hard limit is.
#[test]
fn an_owner_raises_its_limit_as_far_as_it_may() {
    with_namespaces("limits::an_owner_raises_its_limit_as_far_as_it_may", || {
        let pair = Pair::new(1);
        let _owner = limited_owner(1011, CAPS, (MIB, UMEM_BYTES), SMALL);
        serves_two(&pair, 1011);
    });
}

/// Goal: with CAP_IPC_LOCK the limit is no matter, whatever the size.
#[test]
fn an_owner_with_the_capability_has_no_limit() {
    with_namespaces("limits::an_owner_with_the_capability_has_no_limit", || {
        let pair = Pair::new(1);
        let _owner = limited_owner(1012, &format!("{CAPS},+ipc_lock"), (MIB, MIB), "");
        serves_two(&pair, 1012);
    });
}

/// Goal: both say why, where the limit is too low: the owner with numbers, and with what is to be done.
#[test]
fn an_owner_that_may_not_lock_the_memory_says_what_it_takes() {
    with_namespaces("limits::an_owner_that_may_not_lock_the_memory_says_what_it_takes", || {
        let _pair = Pair::new(1);
        let mut owner = limited_owner(1013, CAPS, (MIB, 2 * MIB), "");
        let _refused = user_role(1013, "unlucky", "");
        let why = MemlockError { asked_bytes: 16 * MIB, limit_bytes: 2 * MIB }.to_string();
        for part in ["16384 KiB", "2048 KiB", "CAP_IPC_LOCK", "LimitMEMLOCK="] {
            assert!(why.contains(part), "{why}");
        }
        // One that says nothing is waited for no longer.
        let id = owner.id();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(5));
            run(Command::new("kill").arg(id));
        });
        owner.wait_for(&format!("user 1013: {why}"));
    });
}

/// Goal: each user's memory counts, and one that has no program keeps none from the next.
#[test]
fn the_memory_of_a_user_without_members_is_the_next_ones() {
    with_namespaces("limits::the_memory_of_a_user_without_members_is_the_next_ones", || {
        let _pair = Pair::new(4);
        // Root's, as it serves several users. There are queues for all of them.
        let limit_bytes = UMEM_BYTES + UMEM_BYTES / 2;
        let _owner = limited_owner(0, CAPS, (limit_bytes, limit_bytes), SMALL);
        for user in [1014, 1015, 1014] {
            let _member = user_role(user, "idle", "");
            user_role(1016, "unlucky", "").wait_for("refused");
        }
    });
}

/// Programs of one user share what is locked.
fn serves_two(pair: &Pair, user: u32) {
    let _echo = pair.far_role("echo", &format!("{FAR} {PORT}"));
    let start = |port| user_role(user, "member", &format!("{port} {PORT} 20"));
    let mut members: [Running; 2] = [8000, 8010].map(start);
    members.iter_mut().for_each(|member| member.wait_for("done"));
}

/// What is documented (`docs/sockets.md`).
const CAPS: &str = "+net_admin,+bpf,+net_raw";
const MIB: u64 = 1 << 20;
/// Frames and queues of each user, and how much memory that is.
const SMALL: &str = "2048 1";
const UMEM_BYTES: u64 = 4 * MIB;
