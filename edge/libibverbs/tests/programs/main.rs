//! Programs that are compiled against rdma-core's libibverbs run on the software device, unmodified.
//!
//! Each is run between two processes of this host, through shared memory and over UDP. A program that is not
//! installed is skipped.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

mod support;

use support::{PATHS, Pair, is_installed};

/// The rdma-core test programs that a pair of processes runs.
const PINGPONGS: [&str; 17] = [
    "ibv_rc_pingpong",
    "ibv_rc_pingpong -e",
    "ibv_rc_pingpong -t",
    "ibv_rc_pingpong -N",
    "ibv_rc_pingpong -o",
    "ibv_rc_pingpong -j",
    "ibv_rc_pingpong -N -t",
    "ibv_rc_pingpong -s 1000000 -m 4096 -n 50",
    "ibv_uc_pingpong",
    "ibv_uc_pingpong -e",
    "ibv_ud_pingpong",
    "ibv_ud_pingpong -e",
    "ibv_srq_pingpong",
    "ibv_srq_pingpong -e",
    "ibv_srq_pingpong -q 3 -r 100",
    "ibv_xsrq_pingpong",
    "ibv_xsrq_pingpong -e",
];

#[test]
fn the_software_devices_are_listed_and_described() {
    if !is_installed("ibv_devices") {
        return;
    }
    let listed = support::alone("ibv_devices", &[], &[]);
    assert!(listed.contains("soft_lo"), "{listed}");
    let described = support::alone("ibv_devinfo", &["-v", "-d", "soft_lo"], &[]);
    for fact in ["hca_id:\tsoft_lo", "PORT_ACTIVE (4)", "Ethernet", "::ffff:127.0.0.1, RoCE v2"] {
        assert!(described.contains(fact), "{fact}: {described}");
    }
}

#[test]
fn the_environment_chooses_and_orders_devices() {
    if !is_installed("ibv_devices") {
        return;
    }
    let names = |choice: &str| {
        let listed = support::alone("ibv_devices", &[], &[("ADVERB_DEVICES", choice)]);
        listed
            .lines()
            .skip(2)
            .map(|line| line.split_whitespace().next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("soft_lo"), ["soft_lo"]);
    assert!(names("hw,no_such_device").iter().all(|name| !name.starts_with("soft_")));
    assert_eq!(names("soft_lo,soft")[0], "soft_lo");
}

#[test]
fn the_pingpongs_of_rdma_core_run() {
    if !is_installed("ibv_rc_pingpong") {
        return;
    }
    for path in PATHS {
        for command in PINGPONGS {
            Pair::new(command, &["-g", "1", "-d", "soft_lo"], path).run();
        }
    }
}
