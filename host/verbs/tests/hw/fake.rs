//! Which device the tests use: that of the double, or a real one that the environment names.
//!
//! # Safety
//!
//! The environment is changed once, before a library is opened: all tests come here first, and wait
//! for the one that does it. Nothing else in these programs reads it meanwhile.

use adverb_verbs::Context;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Names a real device to test instead, such as `rxe0`.
const VARIABLE: &str = "ADVERB_TEST_DEVICE";

/// The double, which is an example of this package so that it is built with its tests.
pub(crate) fn double() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(|deps| deps.parent()).unwrap();
    let double = folder.join("examples").join("libfake_ibverbs.so");
    let how = "cargo build -p adverb-verbs --example fake_ibverbs";
    assert!(double.exists(), "the double is not built: {how}");
    double
}

/// The name of the device under test.
pub(crate) fn name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        std::env::var(VARIABLE).unwrap_or_else(|_| {
            // SAFETY: the header's: no other code reads the environment meanwhile.
            unsafe { std::env::set_var("ADVERB_IBVERBS", double()) };
            "fake0".to_owned()
        })
    })
}

/// The device is the double's.
pub(crate) fn is_double() -> bool {
    name() == "fake0"
}

pub(crate) fn open() -> Context {
    Context::open(name()).unwrap()
}
