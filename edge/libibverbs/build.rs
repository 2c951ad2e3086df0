//! Gives the library the version nodes of libibverbs.
//!
//! The linker gets two version scripts: the compiler's own, which is anonymous and lists the names without a
//! version, and this one, which declares the nodes. `src/export.rs` says which name is in which node. LLVM's linker
//! takes both; it is the default one here. The GNU linker refuses to combine them.

fn main() {
    println!("cargo:rerun-if-changed=ibverbs.map");
    let Ok(directory) = std::env::var("CARGO_MANIFEST_DIR") else {
        return;
    };
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={directory}/ibverbs.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--undefined-version");
}
