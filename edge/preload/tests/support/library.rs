//! Where the library is that programs are to load.

use std::path::PathBuf;

/// Beside this test, or one up.
pub(crate) fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a path of this test");
    let deps = exe.parent().expect("a directory");
    let places = [deps.to_owned(), deps.parent().expect("a directory").to_owned()];
    let files = places.map(|place| place.join("libadverb_sockets.so"));
    files.into_iter().find(|file| file.exists()).expect("the library has been built")
}
