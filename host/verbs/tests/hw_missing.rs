//! Where there is no libibverbs there are no devices of its, without a message.
//!
//! # Safety
//!
//! The environment is changed before anything else, by the program's only test.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

use adverb_verbs::{Context, OpenError, Provider, devices};

#[test]
fn without_a_library_there_are_software_devices_only() {
    // SAFETY: the header's: no other thread runs.
    unsafe { std::env::set_var("ADVERB_IBVERBS", "libno-such-thing.so.1") };
    let all = devices().unwrap();
    assert!(!all.is_empty() && all.iter().all(|device| device.provider == Provider::Soft));
    let error = Context::open("mlx5_0").unwrap_err();
    let OpenError::NotFound { known, .. } = error else {
        panic!("{error}");
    };
    assert!(known.iter().all(|name| name.starts_with("soft_")), "{known:?}");
}
