//! The real libibverbs behind us: found when it is first needed, if there is one.
//!
//! # Safety
//!
//! 1. A function of this name and version has the type that rdma-core's public header gives it.
//! 2. The library is never closed.
//! 3. Loading it runs its constructors. It is the system's, or the one that `ADVERB_IBVERBS` names.

use adverb_device::uncancelled;
use libc::{c_char, c_void};
use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A function of the real library, of type `F`.
pub(crate) struct Function<F> {
    name: &'static str,
    node: &'static str,
    found: OnceLock<usize>,
    kind: PhantomData<fn() -> F>,
}

impl<F: Copy> Function<F> {
    pub(crate) const fn new(name: &'static str, node: &'static str) -> Self {
        Self { name, node, found: OnceLock::new(), kind: PhantomData }
    }

    /// The function; `None` if the real library has none of this name, or there is no such library.
    pub(crate) fn get(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<usize>(), "a pointer to a function") };
        let found = *self.found.get_or_init(|| find(self.name, self.node).expose_provenance());
        if found == 0 {
            return None;
        }
        let pointer: *mut c_void = std::ptr::with_exposed_provenance_mut(found);
        // SAFETY: a pointer to a function of this type (rule 1), for ever (rule 2).
        Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&pointer) })
    }
}

/// The address of a symbol of the real library; null if there is none.
pub(crate) fn find(name: &str, node: &str) -> *mut c_void {
    let (Ok(name), Ok(node)) = (CString::new(name), CString::new(node)) else {
        return std::ptr::null_mut();
    };
    uncancelled(|| {
        let next = symbol(libc::RTLD_NEXT, &name, &node);
        if !next.is_null() {
            return next;
        }
        library().map_or(std::ptr::null_mut(), |library| symbol(library.0, &name, &node))
    })
}

#[expect(
    clippy::let_and_return,
    reason = "the linker looks at the return address to know the caller"
)]
fn symbol(handle: *mut c_void, name: &CStr, node: &CStr) -> *mut c_void {
    // SAFETY: an open library (rule 2), and names that end with a zero.
    let found = unsafe { dlvsym(handle, name.as_ptr(), node.as_ptr()) };
    if !found.is_null() {
        return found;
    }
    // SAFETY: as above.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    found
}

/// An open library.
#[derive(Clone, Copy)]
struct Library(*mut c_void);

// SAFETY: a handle of the dynamic linker, which any thread can use.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// The real library, for programs whose own way to it leads to us.
fn library() -> Option<Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let path = path()?;
        let path = CString::new(path.into_os_string().into_encoded_bytes()).ok()?;
        let handle = crate::loader::open(&path, libc::RTLD_NOW | libc::RTLD_LOCAL); // Rule 3.
        (!handle.is_null()).then_some(Library(handle))
    })
}

/// Where the real library is: where `ADVERB_IBVERBS` says (`off`: nowhere), or in one of the usual directories. Nowhere if that
/// is this library, which would forward to itself for ever.
fn path() -> Option<PathBuf> {
    let own = own_path().and_then(|path| identity(&path));
    let is_other = |path: &PathBuf| identity(path).is_none_or(|found| Some(found) != own);
    match std::env::var_os("ADVERB_IBVERBS") {
        Some(value) if value == "off" => return None,
        Some(value) if !value.is_empty() => return Some(PathBuf::from(value)).filter(is_other),
        Some(_) | None => {}
    }
    let mut places = DIRECTORIES.iter().map(|place| Path::new(place).join("libibverbs.so.1"));
    places.find(|path| path.exists() && is_other(path))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = path.metadata().ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// The file of this library.
pub(crate) fn own_path() -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let info = object_at((&raw const HERE).cast())?;
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a name that ends with a zero, for as long as the library is loaded (rule 2).
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}

/// A function at this address is one of this library's.
pub(crate) fn is_own(address: *const c_void) -> bool {
    let start = |address| object_at(address).map(|info| info.dli_fbase);
    start(address).is_some_and(|there| start((&raw const HERE).cast()) == Some(there))
}

/// The loaded object that has this address.
fn object_at(address: *const c_void) -> Option<libc::Dl_info> {
    // SAFETY: an empty structure of C.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address, and a place for the answer.
    let found = unsafe { libc::dladdr(address, &raw mut info) };
    (found != 0).then_some(info)
}

/// A place in this library.
static HERE: u8 = 0;

const DIRECTORIES: [&str; 10] = [
    #[cfg(target_arch = "x86_64")]
    "/usr/lib/x86_64-linux-gnu",
    #[cfg(target_arch = "x86_64")]
    "/lib/x86_64-linux-gnu",
    #[cfg(not(target_arch = "x86_64"))]
    "/usr/lib/aarch64-linux-gnu",
    #[cfg(not(target_arch = "x86_64"))]
    "/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
    "/usr/local/lib64",
    "/usr/local/lib",
    "/opt/rdma-core/lib64",
    "/opt/rdma-core/lib",
];

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}
