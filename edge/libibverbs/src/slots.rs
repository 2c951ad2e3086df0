//! Import slots of libraries that open files of RDMA devices: functions of the C library lead here.
//!
//! The dynamic linker has put the address of each imported function into a slot of the importing library. It is exchanged
//! there, for the libraries that are named and no others, so nothing is in the way of the program's own calls. Such a library
//! may be loaded late: it lists the devices before it opens anything, and the slots are exchanged whenever devices are listed.
//!
//! # Safety
//!
//! 1. The dynamic linker describes objects that are loaded, and keeps them while it calls back: headers, the dynamic
//!    section, tables and strings are where they say, in the layout of the ELF specification.
//! 2. A slot is a word that the linker has written, aligned, and read by calls at any time: it is exchanged by one
//!    atomic store. What is put in has the type of what was there.
//! 3. A slot may lie in pages that the linker has made read-only: they are writable for the length of the exchange.

use libc::{c_char, c_int, c_void};
use std::ffi::CStr;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the C library: its names, what is called instead, and where to remember the one that was there.
pub(crate) struct Slot {
    pub(crate) names: &'static [&'static CStr],
    pub(crate) ours: fn() -> *mut c_void,
    pub(crate) next: &'static AtomicPtr<c_void>,
}

/// The address of a function, whose type is named.
macro_rules! address {
    ($function:path as $kind:ty) => {
        || {
            let function: $kind = $function;
            #[expect(clippy::as_conversions, reason = "the only way to a function's address")]
            let address = function as *mut libc::c_void;
            address
        }
    };
}
pub(crate) use address;

/// What is exchanged in libraries of which the file's name begins with one of `libraries`.
#[derive(Clone, Copy)]
pub(crate) struct Exchange {
    pub(crate) libraries: &'static [&'static [u8]],
    pub(crate) slots: &'static [Slot],
}

impl Exchange {
    /// Exchanges the slots in all such libraries that are loaded.
    pub(crate) fn make(&self) {
        let argument: *mut c_void = (&raw const *self).cast_mut().cast();
        // SAFETY: the function below, with what lives for the length of the call.
        unsafe { libc::dl_iterate_phdr(Some(visit), argument) };
    }

    fn concerns(&self, path: *const c_char) -> bool {
        if path.is_null() {
            return false;
        }
        // SAFETY: rule 1.
        let path = unsafe { CStr::from_ptr(path) }.to_bytes();
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        self.libraries.iter().any(|library| name.starts_with(library))
    }
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, what: *mut c_void) -> c_int {
    // SAFETY: rule 1.
    let info = unsafe { &*info };
    // SAFETY: the argument of `Exchange::make`.
    let what = unsafe { *what.cast::<Exchange>() };
    if what.concerns(info.dlpi_name) {
        // SAFETY: rule 1.
        unsafe { exchange_in(info, what.slots) };
    }
    0
}

/// # Safety
///
/// Rule 1.
unsafe fn exchange_in(info: &libc::dl_phdr_info, slots: &[Slot]) {
    let Ok(base) = usize::try_from(info.dlpi_addr) else {
        return;
    };
    // SAFETY: rule 1.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let place = |kind| headers.iter().find(|header| header.p_type == kind);
    let Some(dynamic) = place(libc::PT_DYNAMIC) else {
        return;
    };
    let sealed = place(libc::PT_GNU_RELRO).map(|header| {
        let start = base.wrapping_add(word(header.p_vaddr));
        start..start.wrapping_add(word(header.p_memsz))
    });
    let entries: *const Dynamic =
        std::ptr::with_exposed_provenance(base.wrapping_add(word(dynamic.p_vaddr)));
    // SAFETY: rule 1.
    let Some(tables) = (unsafe { Tables::read(base, entries) }) else {
        return;
    };
    let end = headers.iter().map(|header| word(header.p_vaddr).wrapping_add(word(header.p_memsz)));
    let own = base..base.wrapping_add(end.max().unwrap_or(0));
    for (start, bytes) in tables.relocations {
        let count = bytes / size_of::<Relocation>();
        let first: *const Relocation = std::ptr::with_exposed_provenance(start);
        for at in 0..count {
            // SAFETY: within the table (rule 1).
            let relocation = unsafe { first.add(at).read() };
            if !matches!(word(relocation.info) & 0xffff_ffff, JUMP_SLOT | GLOB_DAT) {
                continue;
            }
            // SAFETY: rule 1.
            let name = unsafe { tables.name(word(relocation.info) >> 32) };
            let Some(slot) = slots.iter().find(|slot| slot.names.contains(&name)) else {
                continue;
            };
            let address = base.wrapping_add(word(relocation.offset));
            put(address, slot, name, &own, sealed.as_ref());
        }
    }
}

/// Exchanges one slot, once. `own` is where its library lies, `sealed` the part of it that is read-only.
fn put(
    address: usize,
    slot: &Slot,
    name: &CStr,
    own: &Range<usize>,
    sealed: Option<&Range<usize>>,
) {
    let ours = (slot.ours)();
    let place: *mut *mut c_void = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: rule 2.
    let place = unsafe { AtomicPtr::from_ptr(place) };
    let old = place.load(Ordering::Relaxed);
    if old == ours {
        return;
    }
    // A slot within its own library is not bound yet: a call would bind it, and undo the exchange; unless it binds it to ours.
    let next = if own.contains(&old.addr()) {
        // SAFETY: a name that ends with a zero.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    } else {
        old
    };
    if next == ours || next.is_null() {
        return;
    }
    slot.next.store(next, Ordering::Release);
    let page = page();
    let start = address & !(page - 1);
    let is_sealed = sealed.is_some_and(|sealed| sealed.contains(&address));
    if is_sealed && !protect(start, page, libc::PROT_READ | libc::PROT_WRITE) {
        return;
    }
    place.store(ours, Ordering::Release);
    if is_sealed {
        protect(start, page, libc::PROT_READ);
    }
}

fn page() -> usize {
    // SAFETY: a call without pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

fn protect(start: usize, len: usize, rights: c_int) -> bool {
    let start: *mut c_void = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: a page of slots (rule 3), which stays readable.
    unsafe { libc::mprotect(start, len, rights) == 0 }
}

/// Where the tables of an object are.
struct Tables {
    symbols: usize,
    strings: usize,
    /// Start and length in bytes.
    relocations: [(usize, usize); 2],
}

impl Tables {
    /// # Safety
    ///
    /// Rule 1.
    unsafe fn read(base: usize, mut entry: *const Dynamic) -> Option<Self> {
        let mut found = [0; 6];
        loop {
            // SAFETY: the table ends with an empty entry.
            let Dynamic { tag, value } = unsafe { entry.read() };
            if tag == 0 {
                break;
            }
            if let Some(at) = TAGS.iter().position(|known| *known == tag)
                && let Some(place) = found.get_mut(at)
            {
                *place = word(value);
            }
            // SAFETY: as above.
            entry = unsafe { entry.add(1) };
        }
        // The linker of glibc has replaced offsets by addresses.
        let absolute = |value: usize| if value < base { base.wrapping_add(value) } else { value };
        let [symbols, strings, slots, slots_len, others, others_len] = found;
        let relocations = [(absolute(slots), slots_len), (absolute(others), others_len)];
        (symbols != 0 && strings != 0).then(|| Self {
            symbols: absolute(symbols),
            strings: absolute(strings),
            relocations,
        })
    }

    /// # Safety
    ///
    /// Rule 1, for the number of a symbol in a relocation.
    unsafe fn name(&self, symbol: usize) -> &CStr {
        let symbols: *const Symbol = std::ptr::with_exposed_provenance(self.symbols);
        // SAFETY: rule 1.
        let symbol = unsafe { symbols.add(symbol).read() };
        let at = self.strings.wrapping_add(usize::try_from(symbol.name).unwrap_or_default());
        // SAFETY: rule 1.
        unsafe { CStr::from_ptr(std::ptr::with_exposed_provenance(at)) }
    }
}

fn word(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// `Elf64_Dyn`.
#[repr(C)]
struct Dynamic {
    tag: u64,
    value: u64,
}

/// `Elf64_Rela`.
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

/// `Elf64_Sym`.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// `DT_SYMTAB`, `DT_STRTAB`, `DT_JMPREL`, `DT_PLTRELSZ`, `DT_RELA`, `DT_RELASZ`.
const TAGS: [u64; 6] = [6, 5, 23, 2, 7, 8];

#[cfg(target_arch = "x86_64")]
const GLOB_DAT: usize = 6;
#[cfg(target_arch = "x86_64")]
const JUMP_SLOT: usize = 7;
#[cfg(not(target_arch = "x86_64"))]
const GLOB_DAT: usize = 1025;
#[cfg(not(target_arch = "x86_64"))]
const JUMP_SLOT: usize = 1026;
