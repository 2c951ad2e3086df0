//! `adverb devinfo` and `adverb counters` as a user types them.

use super::{adverb, stderr};

/// What it prints, if all is well.
fn stdout(words: &[&str]) -> String {
    let output = adverb(words);
    assert_eq!(output.status.code(), Some(0), "{words:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn devinfo_prints_the_lines_that_scripts_cut_out() {
    let text = stdout(&["devinfo", "-d", "soft_lo"]);
    for line in [
        "hca_id:\tsoft_lo",
        "\ttransport:\t\t\tInfiniBand (0)",
        "\tphys_port_cnt:\t\t\t1",
        "\t\tport:\t1",
        "\t\t\tstate:\t\t\tPORT_ACTIVE (4)",
        "\t\t\tmax_mtu:\t\t4096 (5)",
        "\t\t\tlink_layer:\t\tEthernet",
    ] {
        assert!(text.lines().any(|l| l == line), "no line {line:?} in:\n{text}");
    }
    assert!(!text.contains("GID["));
    let verbose = stdout(&["devinfo", "-v", "--ib-dev", "soft_lo"]);
    assert!(verbose.contains("\tmax_mcast_grp:\t\t\t32\n"), "{verbose}");
    assert!(verbose.contains("\tmax_qp_wr:\t\t\t1048576\n"), "{verbose}");
    assert!(verbose.contains("GID[  1]:\t\t::ffff:127.0.0.1, RoCE v2\n"), "{verbose}");
}

#[test]
fn devinfo_lists_names_and_speaks_json() {
    assert!(stdout(&["devinfo", "-l"]).contains("found:\n\tsoft_lo\n"));
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&["devinfo", "--json", "-v"])).expect("JSON");
    let lo = json["devices"].as_array().expect("a list").iter().find(|d| d["hca_id"] == "soft_lo");
    assert_eq!(lo.expect("soft_lo")["ports"][0]["link_layer"], "Ethernet");
}

#[test]
fn a_device_that_does_not_exist_is_a_failure_that_names_those_that_do() {
    for command in ["devinfo", "counters"] {
        let output = adverb(&[command, "-d", "mlx5_0"]);
        assert_eq!(output.status.code(), Some(1), "{command}");
        let text = stderr(&output);
        assert!(text.contains("there is no device mlx5_0"), "{text}");
    }
    for seconds in ["0", "-1", "often"] {
        let output = adverb(&["counters", "-w", seconds]);
        assert_eq!(output.status.code(), Some(2), "{seconds}");
        assert!(stderr(&output).contains("a duration is 0.001"), "{}", stderr(&output));
    }
}

#[test]
fn counters_are_printed_by_name() {
    let text = stdout(&["counters", "-d", "soft_lo", "--all"]);
    assert!(text.starts_with("soft_lo\n") && text.contains("icrc_errors"), "{text}");
    let text = stdout(&["counters", "-d", "soft_lo"]);
    let is_zero = |line: &str| line.ends_with(" 0");
    assert!(text.starts_with("soft_lo\n") && !text.lines().any(is_zero), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&["counters", "--json"])).expect("JSON");
    for name in ["sent_pkts", "link_downed", "num_cqovf", "sq_num_tree", "icrc_errors"] {
        assert!(json["devices"]["soft_lo"][name].is_u64(), "{name}: {json}");
    }
    assert!(json["devices"]["soft_lo"]["processes"].is_array(), "{json}");
    let text = stdout(&["counters", "-d", "soft_lo", "--prometheus"]);
    assert!(text.contains("\nadverb_device_icrc_errors_total{device=\"soft_lo\"} "), "{text}");
}
