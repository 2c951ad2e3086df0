//! `adverb devices`: every interface with an address has a device.

use serde_json::Value;

use super::{adverb, command, stderr, stdout};

#[test]
fn json_describes_the_device_of_the_loopback_interface() {
    let output = adverb(&["devices", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let devices: Value = serde_json::from_slice(&output.stdout).expect("valid JSON");
    let all = devices["devices"].as_array().expect("a list");
    let lo = all.iter().find(|device| device["name"] == "soft_lo").expect("soft_lo");
    assert_eq!(lo["provider"], "soft");
    assert_eq!(lo["netdev"], "lo");
    let port = &lo["ports"][0];
    assert_eq!(port["number"], 1);
    assert_eq!(port["active"], true);
    let gids: Vec<_> =
        port["gids"].as_array().expect("a list").iter().map(|gid| &gid["gid"]).collect();
    assert!(gids.iter().any(|gid| *gid == "::ffff:127.0.0.1"), "{gids:?}");
    for limit in ["max_qp_wr", "max_sge", "max_cqe"] {
        assert!(lo["limits"][limit].as_u64().is_some_and(|most| most > 0), "{limit}");
    }
}

#[test]
fn text_is_a_table_of_all_addresses_and_with_v_what_scripts_look_for() {
    let short = adverb(&["devices"]);
    assert_eq!(short.status.code(), Some(0), "{}", stderr(&short));
    assert!(stdout(&short).starts_with("DEVICE "), "{}", stdout(&short));
    for cell in ["soft_lo ", " lo ", " up ", " ::ffff:127.0.0.1 ", "RoCE v2\n"] {
        assert!(stdout(&short).contains(cell), "{cell:?} in\n{}", stdout(&short));
    }
    let long = adverb(&["devices", "-v"]);
    for label in [
        "hca_id:\tsoft_lo",
        "transport:",
        "node_guid:",
        "PORT_ACTIVE (4)",
        "active_mtu:",
        "max_qp_wr:",
    ] {
        assert!(stdout(&long).contains(label), "{label:?} in\n{}", stdout(&long));
    }
    assert!(stdout(&long).lines().count() > stdout(&short).lines().count());
}

/// Goal: where the kernel has no RDMA device the system's libibverbs is not asked, which would warn of limits that matter to
/// nothing. Method: a library of that name that speaks when it is loaded, and is found before the system's.
#[test]
fn a_library_for_hardware_is_left_alone_where_there_is_none() {
    let hardware = std::fs::read_dir("/sys/class/infiniband");
    if hardware.is_ok_and(|mut devices| devices.next().is_some()) {
        return; // It is asked here, and rightly so.
    }
    let place = std::env::temp_dir().join(format!("adverb-ibverbs-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a directory");
    let (source, library) = (place.join("loud.c"), place.join("libibverbs.so.1"));
    let loud = "#include <stdio.h>\n__attribute__((constructor)) static void say(void) { fputs(\"asked\\n\", stderr); }\n";
    std::fs::write(&source, loud).expect("a file");
    let built = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return println!("skipped: there is no compiler for C");
    }
    let run = |variable: &str, value: &std::path::Path| {
        let output = command(&["devices"]).env(variable, value).output().expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stderr(&output)
    };
    assert_eq!(run("LD_LIBRARY_PATH", &place), "");
    assert!(run("ADVERB_IBVERBS", &library).contains("asked"), "it would be heard");
    std::fs::remove_dir_all(&place).expect("it is ours");
}
