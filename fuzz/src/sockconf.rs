//! Targets of `adverb-sockconf`.

use adverb_sockconf::{Rules, Settings};

/// No file of rules and no value of a parameter makes anything worse than warnings.
pub(crate) fn rules(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (rules, warnings) = Rules::parse(&text, "redis-server", "B1");
    assert!(rules.len() + warnings.len() <= text.lines().count());
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    let (settings, _) = Settings::resolve(pairs.clone(), pairs);
    for setting in settings.iter() {
        let again = setting.parameter.parse(&setting.value.to_string());
        assert_eq!(again.as_ref(), Some(&setting.value), "{}", setting.parameter.name);
    }
}

/// Files that mean something.
pub(crate) fn files() -> Vec<Vec<u8>> {
    [
        "application-id tcp-lat B1\nuse vma tcp_client 192.168.1.0/24:*:*:*\nuse os tcp_server *:5001\n",
        "application-id redis* *\nuse shm udp_connect [fd00::1]/8:1-65536:*:* # all\nlog 3\n",
        "VMA_RX_POLL -1\nspin_usec 100\nVMA_SPEC latency\nVMA_STATS_FD_NUM 1024\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
